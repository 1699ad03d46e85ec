/* side.c - see side.h. */
#include "repl/compare/side.h"

#include "engine/tools/noise_backend.h"

struct running {
    const struct diff_side *side;
    const struct run_ask *ask;
    struct run_facts *out;
    struct rerun *run;
    struct rerun_how how;
    struct buf settings; /* of the turn that runs */
};

static bool on_opened(void *arg, struct backend *b, const char *about, const char *now,
                      struct err *e)
{
    struct running *x = arg;
    x->out->about.n = 0;
    buf_str(&x->out->about, now);
    return !x->side->opened || x->side->opened(x->side->arg, b, about, now, e);
}

static void on_turn(void *arg, const struct act *a)
{
    struct running *x = arg;
    struct backend *b = x->run->backend;
    struct err e;
    x->settings.n = 0;
    rerun_settings(x->how.with, x->how.n_with, a->user.sampling, &x->settings);
    trace_begin(&x->out->trace, a->user.n, x->settings.p, x->out->about.p);
    x->out->trace.turn[x->out->trace.n - 1].forced = x->how.forced;
    if (x->side->turn)
        x->side->turn(x->side->arg, a);
    if (!x->ask->probe || a != x->run->goal)
        return;
    struct probe_ask ask = {.turn = x->ask->turn, .step = x->ask->step, .row = x->ask->row,
                            .layer = x->ask->layer, .armed = true};
    if (!backend_has(b, VIEW_PROBE))
        snprintf(x->out->no_probe, sizeof x->out->no_probe, "%s", b->lacks[VIEW_PROBE]);
    else if (!b->probe->ask(b, &ask, &e))
        snprintf(x->out->no_probe, sizeof x->out->no_probe, "%.150s", e.msg);
}

static bool on_event(void *arg, const struct act *a, struct event *ev)
{
    struct running *x = arg;
    struct run_facts *f = x->out;
    if (ev->kind == EV_PROBE) {
        probe_free(f->probe);
        f->probe = ev->probe;
        ev->probe = NULL;
        snprintf(f->no_probe, sizeof f->no_probe, "%.150s", buf_text(&ev->text));
    }
    if (!a)
        return true;
    trace_event(&f->trace, ev);
    if (ev->kind == EV_TURN_END)
        return !x->side->ended || x->side->ended(x->side->arg, a, ev);
    if (ev->kind != EV_FAULT || act_has_fault(a, ev))
        return true;
    if (!f->rule[0] && ev->at.rule) {
        snprintf(f->rule, sizeof f->rule, "%.250s", ev->text.p);
        f->at = ev->at;
        f->rule_turn = ev->turn;
        f->rule_step = ev->step;
    }
    return false;
}

/* Lists the side's changes and those of the run; returns how many there are. */
static int add_changes(const struct running *x, const char **with)
{
    int n = 0;
    for (int i = 0; i < x->side->how.n_with; i++) {
        bool over = (x->ask->strict && !strncmp(x->side->how.with[i], "check=", 6)) ||
                    (x->ask->plain && !strncmp(x->side->how.with[i], "spec=", 5));
        if (!over)
            with[n++] = x->side->how.with[i];
    }
    if (x->ask->strict)
        with[n++] = "check=strict";
    if (x->ask->plain)
        with[n++] = "spec=off";
    return n;
}

/* Noise is added to float32 rows on the CPU, even if the side was computed on a GPU, whose packed
 * activation rows cannot take noise of the size of roundings. */
static bool add_noise(struct running *x, struct err *e)
{
    x->how.engine.precision = "f32";
    x->how.engine.backend = noise_backend(x->ask->noise, x->ask->seed, e);
    return x->how.engine.backend != NULL;
}

bool side_run(const struct diff_side *s, const struct run_ask *ask, struct run_facts *f,
              struct err *e)
{
    /* and two of add_changes() */
    const char **with = xmalloc((size_t)(s->how.n_with + 2) * sizeof *with);
    struct rerun run = {0};
    struct running x = {.side = s, .ask = ask, .out = f, .run = &run, .how = s->how};
    *f = (struct run_facts){0};
    x.how.n_with = add_changes(&x, with);
    x.how.with = with;
    x.how.turn = ask->turn;
    x.how.step = ask->step;
    if (ask->forced) {
        x.how.forced = true;
        x.how.given = ask->forced;
    }
    struct rerun_calls on = {.opened = on_opened, .turn = on_turn, .event = on_event, .arg = &x};
    bool ok = (ask->noise <= 0 || add_noise(&x, e)) && rerun_play(&run, s->script, &x.how, &on, e);
    int last = s->script->n; /* the operations behind the last turn */
    while (last > 0 && !s->script->act[last - 1].is_turn)
        last--;
    for (int i = last; i < s->script->n && ok && !run.stop; i++)
        trace_op(&f->trace, &s->script->act[i]);
    if (run.backend && backend_has(run.backend, VIEW_CHECK)) {
        struct check_view v;
        run.backend->check->counts(run.backend, &v);
        f->checks = v.checks;
    }
    rerun_close(&run);
    buf_free(&x.settings);
    free(with);
    return ok;
}

void run_facts_free(struct run_facts *f)
{
    trace_free(&f->trace);
    buf_free(&f->about);
    probe_free(f->probe);
    *f = (struct run_facts){0};
}
