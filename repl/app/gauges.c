/* gauges.c - see gauges.h. A cell of a graph shows the greatest value of its time, because a full
 * pool or a long queue is what one looks for; of rates, the mean. */
#include "repl/app/gauges.h"

#include <math.h>

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

/* "full", "swa", "running", ...: of the graph and of the JSON member. */
static const char *gauge_name(const struct gauges_view *v, enum gauge g)
{
    return (int)g == GAUGE_POOL + POOL_FULL && v->unit ? v->unit : kind[g].name;
}

void gauge_series_read(struct gauge_series *s, struct backend *b)
{
    *s = (struct gauge_series){.at = xmalloc(GAUGES_KEPT * sizeof *s->at), .ns = clock_ns()};
    b->gauges->view(b, &s->view);
    s->n = b->gauges->samples(b, s->at, GAUGES_KEPT);
}

static void add_step_of(struct gauge_series *s, int turn, int step, const struct step_rec *rec,
                        const struct pages_held *held)
{
    MAKE_ROOM(s->at, s->n);
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
    *APPEND(s->step, s->n) = (struct address){turn, step};
}

static bool take_step(const struct step_view *v, void *arg)
{
    add_step_of(arg, v->turn, v->step, &v->rec, &v->held);
    return true;
}

static void read_memory(struct gauge_series *s, struct app *a)
{
    FREED(free_at) struct step_info *step = xmalloc(STEPS_KEPT * sizeof *step);
    int n = a->backend->steps->latest(a->backend, step, STEPS_KEPT);
    for (int i = 0; i < n; i++)
        if (step[i].turn > a->foreign)
            add_step_of(s, step[i].turn, step[i].step, &step[i].rec, &step[i].held);
}

void gauge_series_steps(struct gauge_series *s, struct app *a, bool logged)
{
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
        app_each_step(a, false, take_step, s, s->source);
    else
        read_memory(s, a);
}

void gauge_series_free(struct gauge_series *s)
{
    FREE(s->step, s->at);
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

static void show_gauge(const struct gauge_series *s, enum gauge g, int width,
                       const struct printer *to)
{
    float cell[CELLS_MOST], last = s->n ? s->at[s->n - 1].v[g] : NAN;
    double ms;
    char now[16], min[16], max[16];
    int cells = max_int(min_int(width - LABEL - VALUE - RANGE, CELLS_MOST), 8);
    struct gauge_range r = gauge_range(s, g);
    number_text(s, g, last, now);
    number_text(s, g, r.min, min);
    number_text(s, g, r.max, max);
    PRINT_IN(to, gauge_name(&s->view, g), '{');
    print_add(to, ST_LABEL, "%-*s\v%*s \f%s{about}%g{now}%g{min}%g{max}", LABEL,
              gauge_name(&s->view, g), VALUE - 1, now, s->step ? kind[g].local : kind[g].about,
              (double)last, (double)r.min, (double)r.max);
    int used = to->json ? 0 : gauge_cells(s, g, cells, cell, &ms);
    for (int c = 0; c < used; c++)
        add_cell(s, g, cell[c], is_share(s, g) ? 1 : r.max, to->out);
    print_note(to, ST_DIM, "%*s  %s .. %s", cells - used, "", min, max);
}

static void time_text(double s, char out[24])
{
    if (s < 100)
        snprintf(out, 24, s < 10 ? "%.1f s" : "%.0f s", s);
    else
        snprintf(out, 24, s < 6000 ? "%.0f min" : "%.1f h", s < 6000 ? s / 60 : s / 3600);
}

static void steps_foot(const struct gauge_series *s, double cell, const struct printer *to)
{
    if (s->n == 0) {
        print_note(to, ST_DIM, "there is no step yet: send a message first");
        return;
    }
    const struct address *at = &s->step[s->n - 1];
    print_add(to, ST_DIM, "at step %d.%d, over %d step%s %s, least .. greatest; ", at->turn,
              at->step, s->n, plural(s->n), s->source);
    print_note(to, ST_DIM, cell > 1
                   ? "a cell is %.0f steps: their fullest pool, their mean rate"
                   : "a cell is a step\f%f", cell);
}

static void foot(const struct gauge_series *s, int width, const struct printer *to)
{
    float cell[CELLS_MOST];
    double ms;
    char span[24], each[24], age[24];
    int cells = max_int(min_int(width - LABEL - VALUE - RANGE, CELLS_MOST), 8);
    gauge_cells(s, GAUGE_RUNNING, cells, cell, &ms);
    if (s->step) {
        steps_foot(s, ms, to);
        return;
    }
    if (s->n > 0) {
        time_text((double)(s->at[s->n - 1].ns - s->at[0].ns) / 1e9, span);
        time_text(ms / 1e3, each);
        time_text((double)(s->ns - s->at[s->n - 1].ns) / 1e9, age);
        print_note(to, ST_DIM, "now, over %s (%d reading%s), least .. greatest; a cell is %s, the "
                   "greatest value, of rates the mean; read %s ago", span, s->n, plural(s->n), each,
                   age);
    }
    if (s->view.hits >= 0 && s->view.queries > 0)
        print_note(to, ST_TEXT, "prefix cache: %.0f of %.0f prompt tokens found, since the "
                   "server's start (%.1f%%)", s->view.hits, s->view.queries,
                   100 * s->view.hits / s->view.queries);
    if (s->view.ms == 0)
        print_note(to, ST_WARN, "the metrics are not read: /set gauge.ms 1000");
    if (s->view.fault[0])
        print_note(to, ST_BAD, "the latest reading failed: %s", s->view.fault);
    else if (s->n == 0 && s->view.ms > 0)
        print_note(to, ST_DIM, "the metrics have not been read yet");
    if (s->view.about)
        print_note(to, ST_DIM, "%s", s->view.about);
}

static void pool_row(const struct gauge_series *s, const struct pool_view *p, enum pool_id pool,
                     const struct printer *to)
{
    const char *unit = s->step ? "pages" : p->page_size > 1 ? "blocks" : "tokens";
    const char *name = gauge_name(&s->view, GAUGE_POOL + (enum gauge)pool);
    int total = s->step ? p->total - p->reserved : p->total;
    PRINT_IN(to, NULL, '{');
    print_add(to, ST_LABEL, "%-*s{pool}\v\f%d{page_size}%d{total}\f%d{used} of %d %s used", LABEL,
              name, p->page_size, p->total, p->used, total, unit);
    if (p->protected_)
        print_add(to, ST_TEXT, ", %d shared", p->protected_);
    print_add(to, ST_TEXT, p->evictable ? ", %d{evictable:-1} evictable" : "\f%d{evictable:-1}",
              s->view.unit ? -1 : p->evictable);
    print_add(to, ST_TEXT, ", %d{free} free", p->free);
    if (p->page_size > 1)
        print_add(to, ST_DIM, " (%s of %d tokens)", unit, p->page_size);
    print_end(to);
}

void gauge_pools(const struct gauge_series *s, const struct pool_view pool[N_POOLS],
                 const struct printer *to)
{
    PRINT_IN(to, NULL, '[');
    for (int i = 0; i < N_POOLS; i++)
        if (pool[i].exists)
            pool_row(s, &pool[i], (enum pool_id)i, to);
}

/* Members for programs only. */
static void show_samples(const struct gauge_series *s, int most, const struct printer *to)
{
    PRINT_IN(to, "samples", '[');
    for (int i = max_int(0, s->n - most); to->json && i < s->n; i++) {
        PRINT_IN(to, NULL, '{');
        if (s->step)
            print_add(to, ST_TEXT, "\f%d{turn}%d{step}", s->step[i].turn, s->step[i].step);
        else
            print_real(to, "age_s", (double)(s->ns - s->at[i].ns) / 1e9);
        for (int g = 0; g < N_GAUGES; g++)
            if (s->view.reported[g])
                print_real(to, gauge_name(&s->view, (enum gauge)g), (double)s->at[i].v[g]);
    }
}

void view_gauges(const struct gauge_series *s, int most, int width, const struct printer *to)
{
    const struct gauges_view *v = &s->view;
    print_open(to, NULL, '{');
    if (s->step)
        print_add(to, ST_TEXT, "\f%d{steps}%s{source}", s->n, s->source);
    else
        print_add(to, ST_TEXT, "\f%s{about}%d{every_ms}%lu{readings}%lu{failed}%s{fault}"
                  "%g{prefix_hits}%g{prefix_queries}", v->about, v->ms, v->n_read, v->n_failed,
                  v->fault[0] ? v->fault : NULL, v->hits < 0 ? NAN : v->hits,
                  v->queries < 0 ? NAN : v->queries);
    print_open(to, "gauges", '{');
    for (int g = 0; g < N_GAUGES; g++)
        if (v->reported[g])
            show_gauge(s, (enum gauge)g, width, to);
    print_close(to, '}');
    show_samples(s, most, to);
    print_close(to, '}');
    foot(s, width, to);
}
