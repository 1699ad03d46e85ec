/* debug_ops.c - what the caller's thread asks of the debugger: its view, breakpoints, and how far
 * to run. See debug.h. */
#include "engine/thread/internal.h"

static void debug_view(struct backend *b, struct debug_view *v)
{
    struct debugger *d = &engine_of(b)->debug;
    pthread_mutex_lock(&d->mu);
    *v = d->view;
    v->until = d->until;
    v->forced = d->forced;
    for (int i = 0; v->forced >= 0 && v->verified && !v->n_token && i < v->tree.n; i++)
        v->tree.fate[i] = FATE_NONE; /* what accept will find depends on the forced token now */
    v->first = d->turn ? d->first : 1;
    v->last = d->turn ? d->last : 0;
    v->n_break = d->breaks.n;
    breaks_about(&d->breaks, v->paused ? &d->facts : NULL, v->at);
    pthread_mutex_unlock(&d->mu);
}

static bool debug_run(struct backend *b, enum run_until until, int steps, const char *condition,
                      struct err *e)
{
    struct debugger *d = &engine_of(b)->debug;
    struct expr x;
    if (condition && !expr_parse(&x, condition, e))
        return false;
    pthread_mutex_lock(&d->mu);
    d->until = until;
    d->asked = false;
    d->left = max_int(1, steps);
    d->breaks.has_condition = condition != NULL;
    if (condition)
        d->breaks.condition = x;
    d->view.paused = false;
    pthread_cond_signal(&d->go);
    pthread_mutex_unlock(&d->mu);
    return true;
}

/* A saved session runs again to any step. */
#define REPLAY "; aerie replay ID --goto %d.%d runs a saved session again and pauses there"

static bool refuse_back(const struct debugger *d, int turn, int step, struct err *e)
{
    int t = max_int(1, turn), s = max_int(1, step);
    if (!d->view.paused)
        return err_set(e, ERR_USAGE, "no turn is paused" REPLAY, t, s);
    if (turn != d->turn)
        return err_set(e, ERR_USAGE, "turn %d is not the one that is paused (%d)" REPLAY, turn,
                       d->turn, t, s);
    if (step < 0 || step > d->last)
        return err_set(e, ERR_USAGE, "step %d.%d: expected %d.0 to %d.%d", turn, step, turn, turn,
                       d->last);
    if (step < d->first)
        return err_set(e, ERR_USAGE, "no state before step %d.%d is kept any more" REPLAY, turn,
                       step + 1, t, s);
    return true;
}

static bool debug_back(struct backend *b, int turn, int step, struct err *e)
{
    struct debugger *d = &engine_of(b)->debug;
    pthread_mutex_lock(&d->mu);
    bool ok = refuse_back(d, turn, step, e);
    if (ok) {
        d->until = RUN_BACK;
        d->target = step;
        d->asked = true;
        d->breaks.has_condition = false;
        d->view.paused = false;
        pthread_cond_signal(&d->go);
    }
    pthread_mutex_unlock(&d->mu);
    return ok;
}

static int debug_add(struct backend *b, const char *expr, enum break_kind kind, struct err *e)
{
    struct debugger *d = &engine_of(b)->debug;
    pthread_mutex_lock(&d->mu);
    int number = breaks_add(&d->breaks, expr, kind, e);
    pthread_mutex_unlock(&d->mu);
    return number;
}

static bool debug_remove(struct backend *b, int number, struct err *e)
{
    struct debugger *d = &engine_of(b)->debug;
    pthread_mutex_lock(&d->mu);
    bool found = breaks_remove(&d->breaks, number, e);
    pthread_mutex_unlock(&d->mu);
    return found;
}

const struct debug_ops local_debug = {.view = debug_view, .run = debug_run, .back = debug_back,
                                      .force = local_force, .what_if = local_what_if,
                                      .add = debug_add, .remove = debug_remove,
                                      .name = expr_name};
