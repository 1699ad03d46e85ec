/* undo.c - what a step that the user stops leaves behind: nothing. A replay stops the turn before
 * the step. The checkpoint that a prompt's last chunk makes goes with the turn, which has no reply; a
 * drafter that has caught up for the step would have done so at the turn's end (shapes.c). */
#include "engine/serve/internal.h"

void undo_begin(struct engine *g)
{
    g->own.undo_given_up = g->own.ses.given_up;
    g->own.ses.lane.seq.n_replaced = 0; /* by a step that failed */
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
