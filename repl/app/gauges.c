/* gauges.c - see gauges.h. A cell of a graph shows the greatest value of its time, because a full
 * pool or a long queue is what one looks for; of rates, the mean. */
#include "repl/app/gauges.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/json.h"
#include "repl/repl.h"

enum { LABEL = 10, VALUE = 8, RANGE = 16, CELLS_MOST = 240 };

/* ---- numbers --------------------------------------------------------------------------------- */

static const struct {
    const char *name, *about;
    const char *local; /* the same of a step of the local engine; NULL: steps do not have it */
    bool share; /* of 1, drawn on a fixed scale; else 0 .. the greatest value */
    bool rate;  /* a cell shows the mean */
} kind[N_GAUGES] = {
    [GAUGE_POOL + POOL_FULL] = {"full", "share of the pool that requests hold",
                                "pages of the pool that are held", true, false},
    [GAUGE_POOL + POOL_SWA] = {"swa", "the same of the window pool", "the same of the window pool",
                               true, false},
    [GAUGE_POOL + POOL_DRAFT] = {"draft", "the same of the draft's pool",
                                 "the same of the draft's pool", true, false},
    [GAUGE_RUNNING] = {"running", "requests that are computed", NULL, false, false},
    [GAUGE_WAITING] = {"waiting", "requests in the queue", NULL, false, false},
    [GAUGE_HITS] = {"hits", "prompt tokens found in the prefix cache / looked up", NULL, true,
                    true},
    [GAUGE_TOKENS] = {"tokens/s", "generated, of all clients", "tokens of a cycle / its time",
                      false, true},
    [GAUGE_MAL] = {"MAL", "1 + accepted/drafts, of all clients",
                   "1 + accepted, of a step that drafted", false, true},
};

const char *gauge_name(const struct gauges_view *v, enum gauge g)
{
    return (int)g == GAUGE_POOL + POOL_FULL && v->unit ? v->unit : kind[g].name;
}

void gauge_series_read(struct gauge_series *s, struct backend *b)
{
    *s = (struct gauge_series){.at = xmalloc(GAUGES_KEPT * sizeof *s->at), .ns = clock_ns()};
    b->gauges->view(b, &s->view);
    s->n = b->gauges->samples(b, s->at, GAUGES_KEPT);
}

/* The steps of a session while they are copied. */
struct step_reader {
    struct gauge_series *s;
    int cap;
};

static void add_step_of(struct step_reader *r, int turn, int step, const struct step_rec *rec,
                        const struct pages_held *held)
{
    struct gauge_series *s = r->s;
    if (s->n == r->cap) {
        r->cap = r->cap ? 2 * r->cap : 256;
        s->at = xrealloc(s->at, (size_t)r->cap, sizeof *s->at);
        s->step = xrealloc(s->step, (size_t)r->cap, sizeof *s->step);
    }
    struct gauge_sample *v = &s->at[s->n];
    uint64_t us = (uint64_t)rec->us_draft + rec->us_verify + rec->us_commit;
    bool cycle = rec->kind != STEP_PREFILL;
    v->ns = (uint64_t)s->n * 1000000;
    for (int g = 0; g < N_GAUGES; g++)
        v->v[g] = NAN;
    for (int p = 0; p < N_POOLS; p++)
        if (held->n[p] >= 0)
            v->v[GAUGE_POOL + p] = (float)held->n[p];
    if (cycle && us)
        v->v[GAUGE_TOKENS] = (float)(step_emits(rec) * 1e6 / (double)us);
    if (cycle && rec->drafted)
        v->v[GAUGE_MAL] = (float)(1 + rec->accepted);
    for (int g = 0; g < N_GAUGES; g++)
        s->view.reported[g] |= !isnan(v->v[g]);
    s->step[s->n++] = (struct address){turn, step};
}

static bool take_step(const struct step_view *v, void *arg)
{
    add_step_of(arg, v->turn, v->step, &v->rec, &v->held);
    return true;
}

static void read_memory(struct step_reader *r, struct app *a)
{
    struct step_info *step = xmalloc(STEPS_KEPT * sizeof *step);
    int n = a->backend->steps->latest(a->backend, step, STEPS_KEPT);
    for (int i = 0; i < n; i++)
        if (step[i].turn > a->foreign)
            add_step_of(r, step[i].turn, step[i].step, &step[i].rec, &step[i].held);
    free(step);
}

void gauge_series_steps(struct gauge_series *s, struct app *a, bool logged)
{
    struct step_reader r = {.s = s};
    struct pool_view pool[N_POOLS];
    struct err e;
    *s = (struct gauge_series){.ns = clock_ns(), .source = "in memory",
                               .view = {.ms = 1, .hits = -1, .queries = -1}};
    s->step = xmalloc(sizeof *s->step);
    if (!app_pools(a, pool, &e))
        memset(pool, 0, sizeof pool);
    for (int p = 0; p < N_POOLS; p++)
        s->room[p] = pool[p].total - pool[p].reserved;
    if (logged)
        app_each_step(a, false, take_step, &r, s->source);
    else
        read_memory(&r, a);
}

void gauge_series_free(struct gauge_series *s)
{
    free(s->step);
    free(s->at);
    *s = (struct gauge_series){0};
}

struct gauge_range gauge_range(const struct gauge_series *s, enum gauge g)
{
    struct gauge_range r = {NAN, NAN, NAN, 0};
    for (int i = 0; i < s->n; i++) {
        float v = s->at[i].v[g];
        if (isnan(v))
            continue;
        r.min = r.n ? fminf(r.min, v) : v;
        r.max = r.n ? fmaxf(r.max, v) : v;
        r.last = v;
        r.n++;
    }
    return r;
}

int gauge_cells(const struct gauge_series *s, enum gauge g, int most, float *cell, double *ms)
{
    *ms = fmax(s->view.ms, 1);
    if (s->n == 0 || most < 1)
        return 0;
    uint64_t first = s->at[0].ns, last = s->at[s->n - 1].ns;
    double span = (double)(last - first) / 1e6;
    if (span / *ms >= most - 0.5) /* so that the last reading falls into the last cell */
        *ms = s->step ? ceil(span / (most - 0.5)) : span / (most - 0.5); /* whole steps */
    int used = 0, last_cell = -1, n = 0;
    for (int c = 0; c < most; c++)
        cell[c] = NAN;
    for (int i = 0; i < s->n; i++) { /* a reading belongs to the nearest multiple of the interval */
        int c = min_int((int)((double)(s->at[i].ns - first) / 1e6 / *ms + 0.5), most - 1);
        float v = s->at[i].v[g];
        n = c == last_cell ? n : 0;
        last_cell = c;
        used = max_int(used, c + 1);
        if (isnan(v))
            continue;
        if (n++ == 0)
            cell[c] = v;
        else
            cell[c] = kind[g].rate ? cell[c] + (v - cell[c]) / (float)n : fmaxf(cell[c], v);
    }
    return used;
}

/* ---- text ------------------------------------------------------------------------------------ */

/* Whether the values are shares of 1. */
static bool is_share(const struct gauge_series *s, enum gauge g)
{
    return kind[g].share && !s->step;
}

static void number_text(const struct gauge_series *s, enum gauge g, float v, char out[16])
{
    if (isnan(v))
        snprintf(out, 16, "-");
    else if (is_share(s, g))
        snprintf(out, 16, "%.*f%%", v > 0 && v < 0.0995f ? 1 : 0, 100 * (double)v);
    else
        snprintf(out, 16, "%.*f", g == GAUGE_MAL ? 2 : g == GAUGE_TOKENS && v < 10 ? 1 : 0,
                 (double)v);
}

/* Whether a pool is nearly full. */
static bool is_tight(const struct gauge_series *s, enum gauge g, float v)
{
    return g < GAUGE_POOL + N_POOLS && v > 0.9f * (s->step ? (float)s->room[g - GAUGE_POOL] : 1);
}

static void add_cell(const struct gauge_series *s, enum gauge g, float v, float top,
                     struct sheet *out)
{
    static const char *const block[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    if (isnan(v)) {
        sheet_add(out, ST_DIM, " ");
        return;
    }
    double share = top > 0 ? fmin((double)v / (double)top, 1) : 0;
    enum style st = v <= 0 ? ST_DIM : is_tight(s, g, v) ? ST_WARN : ST_HOT;
    if (out->ascii)
        sheet_printf(out, st, "%d", min_int((int)(share * 10), 9));
    else
        sheet_add(out, st, v <= 0 ? "·" : block[min_int((int)(share * 8), 7)]);
}

static void add_graph(const struct gauge_series *s, enum gauge g, int width, struct sheet *out)
{
    float cell[CELLS_MOST];
    double ms;
    char now[16], min[16], max[16], range[40];
    int cells = max_int(min_int(width - LABEL - VALUE - RANGE, CELLS_MOST), 8);
    struct gauge_range r = gauge_range(s, g);
    int used = gauge_cells(s, g, cells, cell, &ms);
    number_text(s, g, s->n ? s->at[s->n - 1].v[g] : NAN, now);
    number_text(s, g, r.min, min);
    number_text(s, g, r.max, max);
    snprintf(range, sizeof range, "%s .. %s", min, max);
    sheet_printf(out, ST_LABEL, "%-*s", LABEL, gauge_name(&s->view, g));
    sheet_printf(out, ST_TEXT, "%*s ", VALUE - 1, now);
    for (int c = 0; c < used; c++)
        add_cell(s, g, cell[c], is_share(s, g) ? 1 : r.max, out);
    for (int c = used; c < cells; c++)
        sheet_add(out, ST_DIM, " ");
    sheet_printf(out, ST_DIM, "  %s", range);
    sheet_line(out);
}

static void time_text(double s, char out[24])
{
    if (s < 100)
        snprintf(out, 24, s < 10 ? "%.1f s" : "%.0f s", s);
    else
        snprintf(out, 24, s < 6000 ? "%.0f min" : "%.1f h", s < 6000 ? s / 60 : s / 3600);
}

static void steps_foot(const struct gauge_series *s, double cell, struct sheet *out)
{
    if (s->n == 0) {
        sheet_add(out, ST_DIM, "there is no step yet: send a message first");
    } else {
        const struct address *at = &s->step[s->n - 1];
        sheet_printf(out, ST_DIM, "at step %d.%d, over %d step%s %s, least .. greatest; ",
                     at->turn, at->step, s->n, plural(s->n), s->source);
        if (cell > 1)
            sheet_printf(out, ST_DIM, "a cell is %.0f steps: their fullest pool, their mean rate",
                         cell);
        else
            sheet_add(out, ST_DIM, "a cell is a step");
    }
    sheet_line(out);
}

static void foot(const struct gauge_series *s, int width, struct sheet *out)
{
    float cell[CELLS_MOST];
    double ms;
    char span[24], each[24], age[24];
    int cells = max_int(min_int(width - LABEL - VALUE - RANGE, CELLS_MOST), 8);
    gauge_cells(s, GAUGE_RUNNING, cells, cell, &ms);
    if (s->step) {
        steps_foot(s, ms, out);
        return;
    }
    if (s->n > 0) {
        time_text((double)(s->at[s->n - 1].ns - s->at[0].ns) / 1e9, span);
        time_text(ms / 1e3, each);
        time_text((double)(s->ns - s->at[s->n - 1].ns) / 1e9, age);
        sheet_printf(out, ST_DIM, "now, over %s (%d reading%s), least .. greatest; a cell is %s, "
                                  "the greatest value, of rates the mean; read %s ago",
                     span, s->n, plural(s->n), each, age);
        sheet_line(out);
    }
    if (s->view.hits >= 0 && s->view.queries > 0) {
        sheet_printf(out, ST_TEXT, "prefix cache: %.0f of %.0f prompt tokens found, "
                                   "since the server's start (%.1f%%)",
                     s->view.hits, s->view.queries, 100 * s->view.hits / s->view.queries);
        sheet_line(out);
    }
    if (s->view.ms == 0) {
        sheet_add(out, ST_WARN, "the metrics are not read: /set gauge.ms 1000");
        sheet_line(out);
    }
    if (s->view.fault[0]) {
        sheet_printf(out, ST_BAD, "the latest reading failed: %s", s->view.fault);
        sheet_line(out);
    } else if (s->n == 0 && s->view.ms > 0) {
        sheet_add(out, ST_DIM, "the metrics have not been read yet");
        sheet_line(out);
    }
    if (s->view.about) {
        sheet_add(out, ST_DIM, s->view.about);
        sheet_line(out);
    }
}

static void pool_row(const struct gauge_series *s, const struct pool_view *p, enum pool_id pool,
                     struct sheet *out)
{
    const char *unit = s->step ? "pages" : p->page_size > 1 ? "blocks" : "tokens";
    int total = s->step ? p->total - p->reserved : p->total;
    sheet_printf(out, ST_LABEL, "%-*s", LABEL, gauge_name(&s->view, GAUGE_POOL + (enum gauge)pool));
    sheet_printf(out, ST_TEXT, "%d of %d %s used", p->used, total, unit);
    if (p->protected_)
        sheet_printf(out, ST_TEXT, ", %d shared", p->protected_);
    if (p->evictable)
        sheet_printf(out, ST_TEXT, ", %d evictable", p->evictable);
    sheet_printf(out, ST_TEXT, ", %d free", p->free);
    if (p->page_size > 1)
        sheet_printf(out, ST_DIM, " (%s of %d tokens)", unit, p->page_size);
    sheet_line(out);
}

void view_gauges(const struct gauge_series *s, const struct pool_view pool[N_POOLS], int width,
                 struct sheet *out)
{
    for (int i = 0; pool && i < N_POOLS; i++)
        if (pool[i].exists)
            pool_row(s, &pool[i], (enum pool_id)i, out);
    for (int g = 0; g < N_GAUGES; g++)
        if (s->view.reported[g])
            add_graph(s, (enum gauge)g, width, out);
    foot(s, width, out);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void put_number(struct buf *json, const char *name, double v)
{
    jput_key(json, name);
    if (isnan(v) || v < 0)
        jput_null(json);
    else
        jput_real(json, v);
}

void gauges_json(const struct gauge_series *s, int most, struct buf *json)
{
    const struct gauges_view *v = &s->view;
    jput_open(json, '{');
    if (s->step) {
        jput_fields(json, "%d{steps}%s{source}", s->n, s->source);
    } else {
        jput_fields(json, "%s{about}%d{every_ms}%lu{readings}%lu{failed}%s{fault}", v->about, v->ms,
                    v->n_read, v->n_failed, v->fault[0] ? v->fault : NULL);
        put_number(json, "prefix_hits", v->hits);
        put_number(json, "prefix_queries", v->queries);
    }
    jput_kopen(json, "gauges", '{');
    for (int g = 0; g < N_GAUGES; g++) {
        struct gauge_range r = gauge_range(s, (enum gauge)g);
        if (!v->reported[g])
            continue;
        jput_key(json, gauge_name(v, (enum gauge)g));
        jput_open(json, '{');
        jput_kstr(json, "about", s->step ? kind[g].local : kind[g].about);
        put_number(json, "now", s->n ? (double)s->at[s->n - 1].v[g] : NAN);
        put_number(json, "min", (double)r.min);
        put_number(json, "max", (double)r.max);
        jput_close(json, '}');
    }
    jput_close(json, '}');
    jput_kopen(json, "samples", '[');
    for (int i = max_int(0, s->n - most); i < s->n; i++) {
        jput_open(json, '{');
        if (s->step)
            jput_fields(json, "%d{turn}%d{step}", s->step[i].turn, s->step[i].step);
        else
            jput_kreal(json, "age_s", (double)(s->ns - s->at[i].ns) / 1e9);
        for (int g = 0; g < N_GAUGES; g++)
            if (v->reported[g])
                put_number(json, gauge_name(v, (enum gauge)g), (double)s->at[i].v[g]);
        jput_close(json, '}');
    }
    jput_close(json, ']');
    jput_close(json, '}');
}
