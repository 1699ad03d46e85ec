/* pages.c - the Pages pane: the session's pages in the three pools, and what is known about the
 * position under the cursor. The cells are those of /pages (cmd/views_pages.c). */
#include "repl/tui/tui.h"

#include <stdio.h>
#include <string.h>

enum { LABEL = 6, EVENTS = 4, RULER = 10, MAX_CELLS = 400 };

struct map {
    const struct engine_view *v;
    struct sheet *out;
    int unit;    /* tokens a cell */
    int columns; /* cells drawn */
    int cells;   /* of them a row */
    int cursor;  /* cell under the cursor */
};

/* Positions above the map; the cursor stands among them, above its column, so that it needs no
 * colour. A number that it would touch is left out. */
static void ruler(const struct map *m, int from, int to)
{
    char text[512];
    int n = min_int(LABEL + to - from, (int)sizeof text), at = LABEL + m->cursor - from;
    bool here = m->cursor >= from && m->cursor < to;
    memset(text, ' ', (size_t)n);
    for (int c = from; c < to; c += RULER) {
        char number[16];
        int x = LABEL + c - from, k = snprintf(number, sizeof number, "%d", c * m->unit);
        if (x + k <= n && !(here && at >= x - 1 && at <= x + k))
            memcpy(text + x, number, (size_t)k);
    }
    if (here) {
        sheet_addn(m->out, ST_DIM, text, (size_t)at);
        sheet_add(m->out, ST_KEY, m->out->ascii ? "v" : "▼");
        sheet_addn(m->out, ST_DIM, text + at + 1, (size_t)(n - at - 1));
    } else {
        sheet_addn(m->out, ST_DIM, text, (size_t)n);
    }
    sheet_line(m->out);
}

static void map_rows(const struct map *m, int from)
{
    int to = min_int(from + m->cells, m->columns);
    ruler(m, from, to);
    for (int i = 0; i < N_POOLS; i++) {
        if (!m->v->pool[i].exists)
            continue;
        sheet_printf(m->out, ST_LABEL, "%-6s", pool_name((enum pool_id)i));
        for (int c = from; c < to; c++)
            map_cell(m->v, (enum pool_id)i, c * m->unit, m->unit, m->out);
        sheet_line(m->out);
    }
}

static void position(const struct map *m, struct engine *g, int pos)
{
    const struct engine_view *v = m->v;
    struct pos_view at;
    if (v->length == 0) {
        sheet_add(m->out, ST_DIM, "the context is empty");
        sheet_line(m->out);
        return;
    }
    map_translation(v, pos, m->out);
    if (!engine_position(g, pos, &at, NULL) || at.token < 0)
        return;
    int c = pos / map_page_size(v);
    const struct page_view none = {0}, *p = c < v->n_page ? &v->page[c] : &none;
    size_t n;
    const char *s = engine_token(g, at.token, &n);
    sheet_add(m->out, ST_DIM, "token ");
    sheet_quote(m->out, ST_TEXT, s, n, 20);
    sheet_printf(m->out, ST_DIM, "  refs %d/%d/%d", p->full_refs, p->swa_refs, p->draft_refs);
    sheet_line(m->out);
}

/* The full page's latest events: its biography, newest last, on one row. */
static void biography(const struct map *m, struct engine *g, int pos)
{
    struct page_event ev[EVENTS];
    uint64_t seq[EVENTS];
    int c = pos / map_page_size(m->v);
    int page = c < m->v->n_page ? m->v->page[c].full : 0;
    if (page == 0)
        return;
    int n = engine_page_events(g, POOL_FULL, page, ev, seq, EVENTS);
    sheet_printf(m->out, ST_DIM, "full page %d:", page);
    for (int i = 0; i < n; i++)
        sheet_printf(m->out, ST_DIM, " %s #%llu", page_op_name((enum page_op)ev[i].op),
                     (unsigned long long)seq[i]);
    if (n == 0)
        sheet_add(m->out, ST_DIM, " no events kept");
    sheet_line(m->out);
}

static void title(const struct map *m)
{
    const struct engine_view *v = m->v;
    sheet_add(m->out, ST_HEAD, "PAGES");
    sheet_printf(m->out, ST_DIM, " %d.%d ", v->turn, v->step);
    for (int i = 0; i < N_POOLS; i++)
        if (v->pool[i].exists)
            sheet_printf(m->out, ST_TEXT, " %s %d/%d", pool_name((enum pool_id)i),
                         v->pool[i].used + v->pool[i].protected_,
                         v->pool[i].total - v->pool[i].reserved);
    sheet_line(m->out);
}

static int cursor_position(const struct tui *t)
{
    int last = max_int(t->view.length - 1, 0);
    return t->page_at < 0 ? last : min_int(t->page_at, last);
}

/* The cursor stays inside the context, and in another session it begins at the newest position. */
static void keep_cursor(struct tui *t)
{
    if (strcmp(t->page_session, t->view.session) != 0 || t->page_at >= t->view.length)
        t->page_at = -1;
    memcpy(t->page_session, t->view.session, sizeof t->page_session);
}

void tui_pages_write(struct tui *t, struct pane *p, int width)
{
    const struct engine_view *v = &t->view;
    struct map m = {.v = v, .out = &p->rows};
    keep_cursor(t);
    int pos = cursor_position(t);
    m.cells = min_int(max_int((width - LABEL) / RULER * RULER, RULER), MAX_CELLS);
    m.unit = map_unit(v, m.cells);
    m.columns = min_int(div_up(max_int(v->capacity, 1), m.unit),
                        max_int(div_up(div_up(map_held(v), m.unit), m.cells), 1) * m.cells);
    m.cursor = pos / m.unit;
    t->page_cells = m.cells;
    t->page_unit = m.unit;
    title(&m);
    position(&m, t->app->engine, pos);
    biography(&m, t->app->engine, pos);
    map_scale(v, m.unit, m.out);
    map_legend(v, width, m.out);
    p->head = p->rows.n_row;
    p->scroll_to = -1;
    for (int c = 0; c < m.columns; c += m.cells) {
        map_rows(&m, c);
        if (m.cursor >= c && m.cursor < c + m.cells)
            p->scroll_to = p->rows.n_row - 1;
    }
}

void tui_pages_move(struct tui *t, int cells, int rows)
{
    int64_t pos = cursor_position(t) + ((int64_t)cells + (int64_t)rows * t->page_cells) * t->page_unit;
    int last = max_int(t->view.length - 1, 0);
    if (pos > last) {
        t->page_at = -1; /* follows the newest position again */
        return;
    }
    t->page_at = pos < 0 ? 0 : (int)pos;
}
