/* pages.c - the Pages pane: the session's pages in the three pools, and details of the position
 * under the cursor. The cells are those of /pages (cmd/views_pages.c). */
#include "repl/cmd/views.h"
#include "repl/tui/tui.h"

enum { LABEL = 6, EVENTS = 4, RULER = 10, MAX_CELLS = 400 };

struct map {
    const struct page_table *t;
    struct sheet *out;
    int unit;    /* tokens per cell */
    int columns; /* cells drawn */
    int cells;   /* cells per row */
    int cursor;  /* cell under the cursor */
};

/* Writes the positions above the map. The cursor is a mark among them, above its column, so it
 * needs no colour. A number that would touch it is omitted. */
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
        if (!m->t->pool[i].exists)
            continue;
        sheet_printf(m->out, ST_LABEL, "%-6s", pool_name((enum pool_id)i));
        for (int c = from; c < to; c++)
            map_cell(m->t, (enum pool_id)i, c * m->unit, m->unit, m->out);
        sheet_line(m->out);
    }
}

static void position(const struct map *m, struct app *a, int pos)
{
    const struct page_table *t = m->t;
    struct pos_view at;
    if (t->length == 0) {
        say_line(m->out, ST_DIM, "the context is empty");
        return;
    }
    map_translation(t, pos, m->out);
    struct err e;
    if (!app_position(a, pos, &at, &e) || at.token < 0)
        return;
    int c = pos / map_page_size(t);
    const struct page_view none = {0}, *p = c < t->n_page ? &t->page[c] : &none;
    size_t n;
    const char *s = backend_token(a->backend, at.token, &n);
    sheet_add(m->out, ST_DIM, "token ");
    sheet_quote(m->out, ST_TEXT, s, n, 20);
    say_line(m->out, ST_DIM, "  refs %d/%d/%d", p->full_refs, p->swa_refs, p->draft_refs);
}

/* Writes the full page's latest events on one row, newest last. */
static void biography(const struct map *m, struct app *a, int pos)
{
    struct page_change change[EVENTS];
    int c = pos / map_page_size(m->t);
    int page = c < m->t->n_page ? m->t->page[c].full : 0;
    if (page == 0)
        return;
    int n = app_page_changes(a, POOL_FULL, page, change, EVENTS);
    sheet_printf(m->out, ST_DIM, "full page %d:", page);
    for (int i = 0; i < n; i++) {
        sheet_printf(m->out, ST_DIM, "%s %s", i ? "," : "",
                     page_op_name((enum page_op)change[i].event.op));
        if (change[i].turn)
            sheet_printf(m->out, ST_DIM, " %d.%d", change[i].turn, change[i].step);
        else
            sheet_add(m->out, ST_DIM, " now");
    }
    if (n == 0)
        sheet_add(m->out, ST_DIM, " no events kept");
    sheet_line(m->out);
}

static void title(const struct map *m)
{
    sheet_add(m->out, ST_HEAD, "PAGES");
    sheet_printf(m->out, ST_DIM, " %d.%d ", m->t->turn, m->t->step);
    for (int i = 0; i < N_POOLS; i++) {
        const struct pool_view *p = &m->t->pool[i];
        if (p->exists)
            sheet_printf(m->out, ST_TEXT, " %s %d/%d", pool_name((enum pool_id)i),
                         p->used + p->protected_, p->total - p->reserved);
    }
    sheet_line(m->out);
}

static int cursor_position(const struct tui *t, int length)
{
    int last = max_int(length - 1, 0);
    return t->page_at < 0 ? last : min_int(t->page_at, last);
}

/* Keeps the cursor within the context; in another session it starts at the newest position. */
static void keep_cursor(struct tui *t, const struct page_table *now)
{
    if (strcmp(t->page_session, now->session) != 0 || t->page_at >= now->length)
        t->page_at = -1;
    memcpy(t->page_session, now->session, sizeof t->page_session);
}

void tui_pages_write(struct tui *t, struct pane *p, int width)
{
    FREED(page_table_free) struct page_table now = {0};
    struct err e = {0};
    if (!app_table(t->app, &now, &e)) {
        struct address at = t->app->at;
        sheet_add(&p->rows, ST_HEAD, "PAGES");
        say_line(&p->rows, ST_DIM, " %d.%d", at.turn, at.step);
        say_line(&p->rows, ST_DIM, "%s", e.msg);
        return;
    }
    struct map m = {.t = &now, .out = &p->rows};
    keep_cursor(t, &now);
    int pos = cursor_position(t, now.length);
    m.cells = min_int(max_int((width - LABEL) / RULER * RULER, RULER), MAX_CELLS);
    m.unit = map_unit(&now, m.cells);
    m.columns = min_int(div_up(max_int(now.capacity, 1), m.unit),
                        max_int(div_up(div_up(map_held(&now), m.unit), m.cells), 1) * m.cells);
    m.cursor = pos / m.unit;
    t->page_cells = m.cells;
    t->page_unit = m.unit;
    t->page_rows = 1;
    for (int i = 0; i < N_POOLS; i++)
        t->page_rows += now.pool[i].exists;
    title(&m);
    position(&m, t->app, pos);
    biography(&m, t->app, pos);
    map_scale(&now, m.unit, width, m.out);
    map_legend(&now, width, m.out);
    p->head = p->rows.n_row;
    p->least = t->page_rows;
    p->scroll_to = -1;
    for (int c = 0; c < m.columns; c += m.cells) {
        map_rows(&m, c);
        if (m.cursor >= c && m.cursor < c + m.cells)
            p->scroll_to = p->rows.n_row - 1;
    }
}

void tui_pages_move(struct tui *t, int cells, int rows)
{
    int length = t->now.chat.length, last = max_int(length - 1, 0);
    int64_t pos = cursor_position(t, length) +
                  ((int64_t)cells + (int64_t)rows * t->page_cells) * t->page_unit;
    if (pos > last) {
        t->page_at = -1; /* follow the newest position again */
        return;
    }
    t->page_at = pos < 0 ? 0 : (int)pos;
}

void tui_pages_click(struct tui *t, int row, int x)
{
    int last = max_int(t->now.chat.length - 1, 0);
    if (row < 0 || x < LABEL || x >= LABEL + t->page_cells || t->page_rows < 1)
        return;
    int64_t cell = (int64_t)(row / t->page_rows) * t->page_cells + x - LABEL;
    t->page_at = (int)(cell * t->page_unit < last ? cell * t->page_unit : last);
}
