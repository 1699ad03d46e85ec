/* locate.c - see locate.h. */
#include "repl/compare/locate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/fault.h"
#include "engine/tools/noise_backend.h"
#include "repl/compare/facts.h"

/* ---- running a side -------------------------------------------------------------------------- */

struct running {
    const struct diff_side *side;
    const struct run_ask *ask;
    struct run_facts *out;
    struct rerun *run;
    struct rerun_how how;
    struct buf settings; /* of the turn that runs */
};

static bool on_opened(void *arg, struct backend *b, const char *about, const char *now, struct err *e)
{
    struct running *x = arg;
    (void)about, (void)e;
    x->out->about.n = 0;
    buf_str(&x->out->about, now);
    if (x->side->opened)
        x->side->opened(x->side->arg, b);
    return true;
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
        snprintf(f->no_probe, sizeof f->no_probe, "%.150s", ev->text.p ? ev->text.p : "");
    }
    if (!a)
        return true;
    trace_event(&f->trace, ev);
    if (ev->kind != EV_FAULT || act_has_fault(a, ev))
        return true;
    if (!f->rule[0] && ev->at.rule) {
        snprintf(f->rule, sizeof f->rule, "%.250s", ev->text.p);
        f->rule_turn = ev->turn;
        f->rule_step = ev->step;
    }
    return false;
}

/* Lists the side's changes and those of the run; returns how many there are. */
static int add_changes(const struct running *x, const char **with, int room)
{
    int n = 0;
    for (int i = 0; i < x->side->how.n_with && n < room; i++) {
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

bool side_run(const struct diff_side *s, const struct run_ask *ask, struct run_facts *f, struct err *e)
{
    enum { ROOM = 64 };
    const char *with[ROOM + 2];
    struct rerun run = {0};
    struct running x = {.side = s, .ask = ask, .out = f, .run = &run, .how = s->how};
    *f = (struct run_facts){0};
    x.how.n_with = add_changes(&x, with, ROOM);
    x.how.with = with;
    x.how.turn = ask->turn;
    x.how.step = ask->step;
    x.how.forced = ask->forced != NULL;
    x.how.given = ask->forced;
    struct rerun_calls on = {.opened = on_opened, .turn = on_turn, .event = on_event, .arg = &x};
    bool ok = (ask->noise <= 0 || add_noise(&x, e)) && rerun_play(&run, s->script, &x.how, &on, e);
    if (run.backend && backend_has(run.backend, VIEW_CHECK)) {
        struct check_view v;
        run.backend->check->counts(run.backend, &v);
        f->checks = v.checks;
    }
    rerun_close(&run);
    buf_free(&x.settings);
    return ok;
}

void run_facts_free(struct run_facts *f)
{
    trace_free(&f->trace);
    buf_free(&f->about);
    probe_free(f->probe);
    *f = (struct run_facts){0};
}

/* ---- rows ------------------------------------------------------------------------------------ */

bool rows_all(const struct probe *a, const struct probe *b, struct row_map *m)
{
    m->n = 0;
    for (int i = 0; i < a->n_row && a->n_rows == b->n_rows; i++) {
        int row = a->row0 + i, k = row - b->row0;
        if (k < 0 || k >= b->n_row)
            continue;
        m->a[m->n] = m->b[m->n] = row;
        m->n++;
    }
    return m->n > 0;
}

int row_of_token(const struct probe *p, const struct step_row *s, int at)
{
    if (s->rec.kind == STEP_PREFILL)
        return p->row0 + p->n_row == p->n_rows ? p->n_rows - 1 : -1;
    int row = 0;
    for (int i = 0; i < at; i++) {
        int next = -1;
        for (int k = p->n_row - 1; k > 0; k--)
            if (p->parent[k] == row && p->token[k] == s->tokens.v[i])
                next = k;
        if (next < 0)
            return -1;
        row = next;
    }
    return p->row0 == 0 ? row : -1;
}

/* ---- points ---------------------------------------------------------------------------------- */

const char *place_operation(const struct place *p)
{
    switch (p->at) {
    case PROBE_IN: return p->layer == 0 ? "embedding" : "the layer before";
    case PROBE_Q: return "norm, q projection and RoPE";
    case PROBE_K: return "norm, k projection, RoPE and the store of the cell";
    case PROBE_V: return "norm, v projection and the store of the cell";
    case PROBE_ATTN: return "attention";
    case PROBE_MID: return "output projection of attention";
    case PROBE_OUT: return p->experts ? "router" : p->moe ? "experts" : "MLP";
    case N_PROBE_POINTS: break;
    }
    return "final norm and LM head";
}

/* Relative distance of two rows; infinite if a value is NaN or infinite. */
static double distance(const float *a, const float *b, int n)
{
    double diff = 0, norm = 0;
    if (memcmp(a, b, (size_t)n * sizeof *a) == 0)
        return 0;
    for (int i = 0; i < n; i++) {
        double d = (double)a[i] - (double)b[i];
        diff += d * d;
        norm += (double)a[i] * (double)a[i];
    }
    if (isnan(diff) || isnan(norm))
        return INFINITY;
    return norm > 0 ? sqrt(diff / norm) : diff > 0 ? INFINITY : 0;
}

static bool same_experts(const struct probe *a, const struct probe *b, int l, int row_a, int row_b)
{
    const int32_t *x = a->layer[l].expert, *y = b->layer[l].expert;
    size_t k = (size_t)a->top_k;
    return !x || !y || memcmp(x + (size_t)(row_a - a->row0) * k, y + (size_t)(row_b - b->row0) * k,
                              k * sizeof *x) == 0;
}

static double band_of(const struct bands *b, int l, int at)
{
    return b ? fmax(b->at[l][at], b->least) : 0;
}

/* Whether rows differ at a point by more than they may; fills in the place. */
static bool differs_at(const struct probe *a, const struct probe *b, const struct row_map *m,
                       const struct bands *bands, double factor, int l, int at, struct place *p)
{
    int width = a->layer[l].width[at];
    *p = (struct place){.layer = l, .at = (enum probe_point)at, .row = -1, .compared = m->n,
                        .sliding = a->layer[l].window > 0, .moe = a->layer[l].expert != NULL,
                        .band = band_of(bands, l, at)};
    if (!width || width != b->layer[l].width[at])
        return false;
    for (int i = 0; i < m->n; i++) {
        const float *x = probe_row(a, l, (enum probe_point)at, m->a[i]);
        const float *y = probe_row(b, l, (enum probe_point)at, m->b[i]);
        double far = x && y ? distance(x, y, width) : 0;
        bool differs = x && y && (bands ? far > factor * p->band
                                        : memcmp(x, y, (size_t)width * sizeof *x) != 0);
        p->far = far > p->far ? far : p->far;
        p->rows += differs;
        if (differs && p->row < 0) {
            p->row = m->a[i];
            p->row_b = m->b[i];
            p->pos = a->pos[m->a[i] - a->row0];
            p->experts = at == PROBE_OUT && !same_experts(a, b, l, m->a[i], m->b[i]);
        }
    }
    p->found = p->rows > 0;
    return p->found;
}

/* The logits: the best tokens of each row with their log probabilities. */
static bool logits_differ(const struct probe *a, const struct probe *b, const struct row_map *m,
                          struct place *p)
{
    *p = (struct place){.layer = a->n_layer, .at = N_PROBE_POINTS, .row = -1, .compared = m->n};
    for (int i = 0; i < m->n; i++) {
        int x = m->a[i] - a->row0, y = m->b[i] - b->row0;
        bool known = a->best[x][0] >= 0 && b->best[y][0] >= 0;
        bool differs = known && (memcmp(a->best[x], b->best[y], sizeof a->best[x]) != 0 ||
                                 memcmp(a->best_logp[x], b->best_logp[y], sizeof a->best_logp[x]) != 0);
        p->rows += differs;
        if (differs && p->row < 0) {
            p->row = m->a[i];
            p->row_b = m->b[i];
            p->pos = a->pos[x];
            p->far = fabs((double)a->best_logp[x][0] - (double)b->best_logp[y][0]);
        }
    }
    p->found = p->rows > 0;
    return p->found;
}

void locate(const struct probe *a, const struct probe *b, const struct row_map *m,
            const struct bands *bands, double factor, struct place *p)
{
    *p = (struct place){.found = false};
    if (a->n_layer != b->n_layer)
        return;
    for (int l = 0; l <= a->n_layer; l++)
        for (int at = 0; at < (l < a->n_layer ? N_PROBE_POINTS : 1); at++)
            if (differs_at(a, b, m, bands, factor, l, at, p))
                return;
    if (bands || !logits_differ(a, b, m, p))
        *p = (struct place){.found = false, .compared = m->n};
}

void bands_add(struct bands *bands, const struct probe *a, const struct probe *b,
               const struct row_map *m)
{
    if (!bands->at) {
        bands->n_layer = a->n_layer;
        bands->at = xcalloc((size_t)a->n_layer + 1, sizeof *bands->at);
    }
    for (int l = 0; l <= a->n_layer; l++)
        for (int at = 0; at < (l < a->n_layer ? N_PROBE_POINTS : 1); at++) {
            struct place p;
            differs_at(a, b, m, NULL, 1, l, at, &p);
            if (p.far > bands->at[l][at])
                bands->at[l][at] = p.far;
        }
}

void bands_free(struct bands *b)
{
    free(b->at);
    *b = (struct bands){0};
}
