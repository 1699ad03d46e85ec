/* undo.c - undoes a step that the user stops, because a replay stops the turn before that step:
 * page tables and the order of free pages must be the same afterwards. Two effects need no undo.
 * The checkpoint before a prompt's last chunk is dropped with the turn, which has no reply. The
 * drafter's catch-up pass before the step is one that the turn's end runs otherwise (shapes.c). */
#include "engine/thread/internal.h"

void undo_begin(struct engine *g)
{
    g->own.undo_given_up = g->own.ses.given_up;
    g->own.ses.lane.seq.n_replaced = 0; /* a step that failed may have left some */
}

bool undo_possible(const struct engine *g)
{
    return g->own.ses.given_up == g->own.undo_given_up;
}

bool undo_wanted(const struct engine *g)
{
    return stop_asked(&g->stop) && undo_possible(g);
}

void undo_step(struct engine *g)
{
    struct runtime *r = &g->own.runtime;
    CHECK(undo_possible(g));
    pass_lock(&r->pass);
    kv_undo(&r->kv, &g->own.ses.lane.seq);
    pass_unlock(&r->pass);
}
