/* pages.c - the Pages pane: the session's logical pages in the three pools, one cell a page,
 * and what is known about the page under the cursor. */
#include "repl/tui/tui.h"

#include <stdio.h>
#include <string.h>

enum { LABEL = 6, EVENTS = 4, RULER = 10, MAX_CELLS = 400, AHEAD = 512 };

struct map {
    const struct engine_view *v;
    struct sheet *out;
    int size;     /* tokens a page */
    int columns;  /* logical pages drawn */
    int cells;    /* a row */
    int cursor;   /* column under the cursor */
    int lo;       /* first position the next query of a sliding layer sees */
};

static int32_t page_in(const struct page_view *p, enum pool_id pool)
{
    return pool == POOL_FULL ? p->full : pool == POOL_SWA ? p->swa : p->draft;
}

static void add_mark(const struct map *m, enum style st, const char *utf8, const char *ascii)
{
    sheet_add(m->out, st, m->out->ascii ? ascii : utf8);
}

/* One logical page in one pool, as the next pass finds it. */
static void add_cell(const struct map *m, enum pool_id pool, int column)
{
    const struct engine_view *v = m->v;
    int first = column * m->size, end = first + m->size;
    int length = pool == POOL_DRAFT ? v->draft_length : v->committed;
    bool there = column < v->n_page && page_in(&v->page[column], pool) != 0;
    if (!there && pool == POOL_SWA && first < length)
        add_mark(m, ST_DIM, "-", "-");
    else if (!there)
        add_mark(m, ST_COLD, ".", ".");
    else if (first >= length)
        add_mark(m, ST_DRAFT, "d", "d");
    else if (end > m->lo && pool != POOL_DRAFT)
        add_mark(m, ST_WARM, "▓", "+");
    else if (pool == POOL_SWA)
        add_mark(m, ST_COOL, "▒", "=");
    else
        add_mark(m, ST_HOT, "█", "#");
}

/* Positions above the map; the cursor stands among them, above its column, so that it needs no
 * colour. A number that it would touch is left out. */
static void ruler(const struct map *m, int from, int to)
{
    char text[512];
    int n = min_int(LABEL + to - from + RULER, (int)sizeof text), at = LABEL + m->cursor - from;
    bool here = m->cursor >= from && m->cursor < to;
    memset(text, ' ', (size_t)n);
    for (int c = from; c < to; c += RULER) {
        char number[16];
        int x = LABEL + c - from, k = snprintf(number, sizeof number, "%d", c * m->size);
        if (x + k <= n && !(here && at >= x - 1 && at <= x + k))
            memcpy(text + x, number, (size_t)k);
    }
    if (here) {
        sheet_addn(m->out, ST_DIM, text, (size_t)at);
        add_mark(m, ST_KEY, "▼", "v");
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
            add_cell(m, (enum pool_id)i, c);
        sheet_line(m->out);
    }
}

static void legend(const struct map *m, int width)
{
    static const struct {
        enum style st;
        const char *utf8, *ascii, *name;
    } mark[] = {
        {ST_HOT, "█", "#", "read"}, {ST_WARM, "▓", "+", "window"}, {ST_COOL, "▒", "=", "held"},
        {ST_DRAFT, "d", "d", "draft"}, {ST_DIM, "-", "-", "gone"}, {ST_COLD, ".", ".", "free"},
    };
    for (size_t i = 0; i < sizeof mark / sizeof *mark; i++) {
        add_mark(m, mark[i].st, mark[i].utf8, mark[i].ascii);
        sheet_printf(m->out, ST_DIM, " %s%s", mark[i].name, width < 52 ? " " : "  ");
    }
    sheet_line(m->out);
}

/* "pos 3071 → logical 191:15 → full page 47 → swa page 12" and whether that is right */
static void position(const struct map *m, struct engine *g, int pos)
{
    const struct engine_view *v = m->v;
    const char *to = m->out->ascii ? " -> " : " → ";
    int c = pos / m->size;
    const struct page_view none = {0}, *p = c < v->n_page ? &v->page[c] : &none;
    struct pos_view at;
    sheet_printf(m->out, ST_KEY, "pos %d", pos);
    sheet_printf(m->out, ST_TEXT, "%slogical %d:%d%sfull %d", to, c, pos % m->size, to,
                 (int)p->full);
    if (v->pool[POOL_SWA].exists)
        sheet_printf(m->out, ST_TEXT, "%sswa %d", to, (int)p->swa);
    bool seen = pos >= m->lo && pos < v->committed;
    if (pos >= v->length)
        sheet_add(m->out, ST_DIM, "  free");
    else if (p->full == 0 || (v->pool[POOL_SWA].exists && seen && p->swa == 0))
        sheet_add(m->out, ST_BAD, "  MISSING");
    else
        sheet_add(m->out, ST_GOOD, "  ok");
    sheet_line(m->out);
    if (pos < v->length && engine_position(g, pos, &at, NULL) && at.token >= 0) {
        size_t n;
        const char *s = engine_token(g, at.token, &n);
        sheet_add(m->out, ST_DIM, "token ");
        sheet_quote(m->out, ST_TEXT, s, n, 0);
        sheet_add(m->out, ST_DIM, "  ");
    }
    sheet_printf(m->out, ST_DIM, "window [%d,%d]  refs %d/%d/%d", m->lo,
                 max_int(v->committed - 1, 0), p->full_refs, p->swa_refs, p->draft_refs);
    sheet_line(m->out);
}

/* The full page's latest events: its biography, newest last, on one row. */
static void biography(const struct map *m, struct engine *g, int pos)
{
    struct page_event ev[EVENTS];
    uint64_t seq[EVENTS];
    int c = pos / m->size;
    int page = c < m->v->n_page ? m->v->page[c].full : 0;
    int n = page ? engine_page_events(g, POOL_FULL, page, ev, seq, EVENTS) : 0;
    sheet_printf(m->out, ST_DIM, "full page %d:", page);
    for (int i = 0; i < n; i++)
        sheet_printf(m->out, ST_DIM, " %s #%llu", page_op_name((enum page_op)ev[i].op),
                     (unsigned long long)seq[i]);
    if (n == 0)
        sheet_add(m->out, ST_DIM, page ? " no events kept" : " none");
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
    return t->page_at < 0 ? last : t->page_at;
}

void tui_pages_write(struct tui *t, struct pane *p, int width)
{
    const struct engine_view *v = &t->view;
    struct map m = {.v = v, .out = &p->rows, .size = max_int(v->pool[POOL_FULL].page_size, 1)};
    int pos = cursor_position(t), all = div_up(max_int(v->capacity, 1), m.size);
    m.cells = min_int(max_int((width - LABEL) / RULER * RULER, RULER), MAX_CELLS);
    m.columns = min_int(all, div_up(v->n_page, m.cells) * m.cells + AHEAD);
    m.cursor = pos / m.size;
    m.lo = v->window > 0 ? max_int(0, v->committed - v->window + 1) : v->window_lo;
    t->page_cells = m.cells;
    title(&m);
    position(&m, t->app->engine, pos);
    biography(&m, t->app->engine, pos);
    legend(&m, width);
    p->head = p->rows.n_row;
    p->scroll_to = -1;
    for (int c = 0; c < m.columns; c += m.cells) {
        map_rows(&m, c);
        if (m.cursor >= c && m.cursor < c + m.cells)
            p->scroll_to = p->rows.n_row - 1;
    }
}

void tui_pages_move(struct tui *t, int pages, int rows)
{
    int size = max_int(t->view.pool[POOL_FULL].page_size, 1);
    int64_t pos = cursor_position(t) + ((int64_t)pages + (int64_t)rows * t->page_cells) * size;
    int last = max_int(t->view.length - 1, 0);
    if (pos > last) {
        t->page_at = -1; /* follows the newest position again */
        return;
    }
    t->page_at = pos < 0 ? 0 : (int)pos;
}
