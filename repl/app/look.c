/* look.c - the status: what the status line and the panes' alarms show. */
#include <math.h>

#include "repl/repl.h"

static void look_at_gauges(struct backend *b, struct gauge_now *g)
{
    struct gauges_view v;
    struct gauge_sample s;
    b->gauges->view(b, &v);
    int n = b->gauges->samples(b, &s, 1);
    g->unit = v.unit;
    g->n_read = v.n_read;
    g->n_failed = v.n_failed;
    for (int i = 0; i < N_GAUGES; i++)
        g->v[i] = n ? s.v[i] : NAN;
}

static struct address newest(struct backend *b)
{
    struct chat_view v;
    backend_chat(b, &v);
    return (struct address){v.turn, v.step};
}

/* Pools, checks and faults of the step at the address. No step has counts of checks; whether it
 * violated a rule is part of its page table. */
static void look_at_step(struct app *a, struct status *s)
{
    FREED(page_table_free) struct page_table t = {0};
    struct err e;
    struct backend *b = app_shown(a);
    s->has[VIEW_CHECK] = false;
    if (s->has[VIEW_PAGES] && app_table_at(a, a->at.turn, a->at.step, &t, &e)) {
        memcpy(s->pool, t.pool, sizeof s->pool);
        s->check.violated_now = t.violated;
        s->check.violation.at = t.at;
        s->check.violation.turn = t.turn;
        s->check.violation.step = t.step;
    }
    if (b && backend_has(b, VIEW_FAULTS))
        b->faults->on(b, &s->bugs);
    else
        app_bugs(a, &s->bugs);
}

void app_look(struct app *a, struct status *s)
{
    struct backend *b = a->backend;
    *s = (struct status){0};
    for (int v = 0; v < N_VIEWS; v++)
        s->has[v] = backend_has(b, (enum backend_view)v);
    app_chat(a, &s->chat);
    s->at = a->at;
    s->live = newest(b);
    if (s->has[VIEW_GAUGES])
        look_at_gauges(b, &s->gauge);
    if (a->at.turn && !app_recording(a)) {
        look_at_step(a, s);
    } else {
        if (s->has[VIEW_POOLS])
            b->pools->ledger(b, s->pool);
        if (s->has[VIEW_CHECK])
            b->check->counts(b, &s->check);
        app_bugs(a, &s->bugs);
    }
    if (s->has[VIEW_DEBUG]) {
        struct debug_view v;
        b->debug->view(b, &v);
        s->pause.on = v.paused;
        s->pause.turn = v.turn;
        s->pause.step = v.step;
        s->pause.last = v.last;
        s->pause.phase = v.phase;
    }
}
