/* debug_ops.c - what the caller's thread asks of the debugger: its view, breakpoints, and how far
 * to run. See debug.h. */
#include "engine/thread/internal.h"

static void debug_view(struct backend *b, struct debug_view *v)
{
    struct debugger *debugger = &engine_of(b)->debug;
    LOCKED(&debugger->mu);
    *v = debugger->view;
    v->until = debugger->until;
    v->forced = debugger->forced;
    for (int i = 0; v->forced >= 0 && v->verified && !v->n_token && i < v->tree.n; i++)
        v->tree.fate[i] = FATE_NONE; /* what accept will find depends on the forced token now */
    v->first = debugger->turn ? debugger->first : 1;
    v->last = debugger->turn ? debugger->last : 0;
    v->n_break = debugger->breaks.n;
    breaks_about(&debugger->breaks, v->paused ? &debugger->facts : NULL, v->at);
}

static bool debug_run(struct backend *b, enum run_until until, int steps, const char *condition,
                      struct err *e)
{
    struct debugger *debugger = &engine_of(b)->debug;
    struct expr expr;
    if (condition && !expr_parse_condition(&expr, condition, e))
        return false;
    LOCKED(&debugger->mu);
    debugger->until = until;
    debugger->asked = false;
    debugger->left = max_int(1, steps);
    debugger->breaks.has_condition = condition != NULL;
    if (condition)
        debugger->breaks.condition = expr;
    debugger->view.paused = false;
    pthread_cond_signal(&debugger->go);
    return true;
}

/* A saved session runs again to any step. */
#define REPLAY "; aerie replay ID --goto %d.%d runs a saved session again and pauses there"

static bool refuse_back(const struct debugger *debugger, int turn, int step, struct err *e)
{
    int t = max_int(1, turn), s = max_int(1, step);
    if (!debugger->view.paused)
        return err_set(e, ERR_USAGE, "no turn is paused" REPLAY, t, s);
    if (turn != debugger->turn)
        return err_set(e, ERR_USAGE, "turn %d is not the one that is paused (%d)" REPLAY, turn,
                       debugger->turn, t, s);
    if (step < 0 || step > debugger->last)
        return err_set(e, ERR_USAGE, "step %d.%d: expected %d.0 to %d.%d", turn, step, turn, turn,
                       debugger->last);
    if (step < debugger->first)
        return err_set(e, ERR_USAGE, "no state before step %d.%d is kept any more" REPLAY, turn,
                       step + 1, t, s);
    return true;
}

static bool debug_back(struct backend *b, int turn, int step, struct err *e)
{
    struct debugger *debugger = &engine_of(b)->debug;
    LOCKED(&debugger->mu);
    bool ok = refuse_back(debugger, turn, step, e);
    if (ok) {
        debugger->until = RUN_BACK;
        debugger->target = step;
        debugger->asked = true;
        debugger->breaks.has_condition = false;
        debugger->view.paused = false;
        pthread_cond_signal(&debugger->go);
    }
    return ok;
}

static int debug_add(struct backend *b, const char *expr, enum break_kind kind, struct err *e)
{
    struct debugger *debugger = &engine_of(b)->debug;
    LOCKED(&debugger->mu);
    return breaks_add(&debugger->breaks, expr, kind, e);
}

static bool debug_remove(struct backend *b, int number, struct err *e)
{
    struct debugger *debugger = &engine_of(b)->debug;
    LOCKED(&debugger->mu);
    return breaks_remove(&debugger->breaks, number, e);
}

const struct debug_ops local_debug = {.view = debug_view, .run = debug_run, .back = debug_back,
                                      .force = local_force, .what_if = local_what_if,
                                      .add = debug_add, .remove = debug_remove,
                                      .name = expr_name};
