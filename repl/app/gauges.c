/* gauges.c - see gauges.h. A cell of a graph shows the greatest value of its time, because a full
 * pool or a long queue is what one looks for. */
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
    bool share; /* of 1, drawn on a fixed scale; else 0 .. the greatest value */
} kind[N_GAUGES] = {
    [GAUGE_POOL + POOL_FULL] = {"full", "share of the pool that requests hold", true},
    [GAUGE_POOL + POOL_SWA] = {"swa", "the same of the window pool", true},
    [GAUGE_POOL + POOL_DRAFT] = {"draft", "the same of the draft's pool", true},
    [GAUGE_RUNNING] = {"running", "requests that are computed", false},
    [GAUGE_WAITING] = {"waiting", "requests in the queue", false},
    [GAUGE_HITS] = {"hits", "prompt tokens found in the prefix cache / looked up", true},
    [GAUGE_TOKENS] = {"tokens/s", "generated, of all clients", false},
    [GAUGE_MAL] = {"MAL", "1 + accepted/drafts, of all clients", false},
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

void gauge_series_free(struct gauge_series *s)
{
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
        *ms = span / (most - 0.5);
    int used = 0;
    for (int c = 0; c < most; c++)
        cell[c] = NAN;
    for (int i = 0; i < s->n; i++) { /* a reading belongs to the nearest multiple of the interval */
        int c = min_int((int)((double)(s->at[i].ns - first) / 1e6 / *ms + 0.5), most - 1);
        float v = s->at[i].v[g];
        if (!isnan(v) && !(cell[c] > v))
            cell[c] = v;
        used = max_int(used, c + 1);
    }
    return used;
}

/* ---- text ------------------------------------------------------------------------------------ */

static void number_text(enum gauge g, float v, char out[16])
{
    if (isnan(v))
        snprintf(out, 16, "-");
    else if (kind[g].share)
        snprintf(out, 16, "%.*f%%", v > 0 && v < 0.0995f ? 1 : 0, 100 * (double)v);
    else
        snprintf(out, 16, "%.*f", g == GAUGE_MAL ? 2 : g == GAUGE_TOKENS && v < 10 ? 1 : 0,
                 (double)v);
}

static void add_cell(struct sheet *out, enum gauge g, float v, float top)
{
    static const char *const block[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    if (isnan(v)) {
        sheet_add(out, ST_DIM, " ");
        return;
    }
    double share = top > 0 ? fmin((double)v / (double)top, 1) : 0;
    enum style st = v <= 0 ? ST_DIM : g < GAUGE_RUNNING && kind[g].share && v > 0.9f ? ST_WARN
                    : ST_HOT;
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
    number_text(g, s->n ? s->at[s->n - 1].v[g] : NAN, now);
    number_text(g, r.min, min);
    number_text(g, r.max, max);
    snprintf(range, sizeof range, "%s .. %s", min, max);
    sheet_printf(out, ST_LABEL, "%-*s", LABEL, gauge_name(&s->view, g));
    sheet_printf(out, ST_TEXT, "%*s ", VALUE - 1, now);
    for (int c = 0; c < used; c++)
        add_cell(out, g, cell[c], kind[g].share ? 1 : r.max);
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

static void foot(const struct gauge_series *s, int width, struct sheet *out)
{
    float cell[CELLS_MOST];
    double ms;
    char span[24], each[24], age[24];
    int cells = max_int(min_int(width - LABEL - VALUE - RANGE, CELLS_MOST), 8);
    gauge_cells(s, GAUGE_RUNNING, cells, cell, &ms);
    if (s->n > 0) {
        time_text((double)(s->at[s->n - 1].ns - s->at[0].ns) / 1e9, span);
        time_text(ms / 1e3, each);
        time_text((double)(s->ns - s->at[s->n - 1].ns) / 1e9, age);
        sheet_printf(out, ST_DIM, "now, over %s (%d reading%s), least .. greatest; a cell is %s, "
                                  "the greatest "
                     "value; read %s ago", span, s->n, plural(s->n), each, age);
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

static void pool_row(const struct gauges_view *v, const struct pool_view *p, enum pool_id pool,
                     struct sheet *out)
{
    const char *unit = p->page_size > 1 ? "blocks" : "tokens";
    sheet_printf(out, ST_LABEL, "%-*s", LABEL, gauge_name(v, GAUGE_POOL + (enum gauge)pool));
    sheet_printf(out, ST_TEXT, "%d of %d %s used", p->used, p->total, unit);
    if (p->evictable)
        sheet_printf(out, ST_TEXT, ", %d evictable", p->evictable);
    sheet_printf(out, ST_TEXT, ", %d free", p->free);
    if (p->page_size > 1)
        sheet_printf(out, ST_DIM, " (blocks of %d tokens)", p->page_size);
    sheet_line(out);
}

void view_gauges(const struct gauge_series *s, const struct pool_view pool[N_POOLS], int width,
                 struct sheet *out)
{
    for (int i = 0; pool && i < N_POOLS; i++)
        if (pool[i].exists)
            pool_row(&s->view, &pool[i], (enum pool_id)i, out);
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
    jput_fields(json, "%s{about}%d{every_ms}%lu{readings}%lu{failed}%s{fault}", v->about, v->ms,
                v->n_read, v->n_failed, v->fault[0] ? v->fault : NULL);
    put_number(json, "prefix_hits", v->hits);
    put_number(json, "prefix_queries", v->queries);
    jput_kopen(json, "gauges", '{');
    for (int g = 0; g < N_GAUGES; g++) {
        struct gauge_range r = gauge_range(s, (enum gauge)g);
        if (!v->reported[g])
            continue;
        jput_key(json, gauge_name(v, (enum gauge)g));
        jput_open(json, '{');
        jput_kstr(json, "about", kind[g].about);
        put_number(json, "now", s->n ? (double)s->at[s->n - 1].v[g] : NAN);
        put_number(json, "min", (double)r.min);
        put_number(json, "max", (double)r.max);
        jput_close(json, '}');
    }
    jput_close(json, '}');
    jput_kopen(json, "samples", '[');
    for (int i = max_int(0, s->n - most); i < s->n; i++) {
        jput_open(json, '{');
        jput_kreal(json, "age_s", (double)(s->ns - s->at[i].ns) / 1e9);
        for (int g = 0; g < N_GAUGES; g++)
            if (v->reported[g])
                put_number(json, gauge_name(v, (enum gauge)g), (double)s->at[i].v[g]);
        jput_close(json, '}');
    }
    jput_close(json, ']');
    jput_close(json, '}');
}
