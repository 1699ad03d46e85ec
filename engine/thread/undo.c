/* undo.c - undoes a step that the user stops, because a replay stops the turn before that step:
 * page tables and the order of free pages must be the same afterwards. Two effects need no undo.
 * The checkpoint before a prompt's last chunk is dropped with the turn, which has no reply. The
 * drafter's catch-up pass before the step is one that the turn's end runs otherwise (shapes.c). */
#include "engine/thread/internal.h"

void undo_begin(struct engine *engine)
{
    engine->own.undo_given_up = engine->own.ses.given_up;
    engine->own.ses.lane.seq.n_replaced = 0; /* a step that failed may have left some */
}

bool undo_possible(const struct engine *engine)
{
    return engine->own.ses.given_up == engine->own.undo_given_up;
}

bool undo_wanted(const struct engine *engine)
{
    return stop_asked(&engine->stop) && undo_possible(engine);
}

void undo_step(struct engine *engine)
{
    struct runtime *rt = &engine->own.runtime;
    CHECK(undo_possible(engine));
    pass_lock(&rt->pass);
    kv_undo(&rt->kv, &engine->own.ses.lane.seq);
    pass_unlock(&rt->pass);
}
