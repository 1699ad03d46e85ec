/* views_pages.c - page maps: the pages of the three pools that hold the session's logical pages,
 * and one pool page by page.
 *
 * A cell of the map stands for the smallest power of two of tokens with which all held positions
 * fit into one line. If they do not fit with a page a cell, a cell stands for several pages and
 * shows the greatest of their states. The Pages pane draws the same cells. */

#include "kernels/window.h"
#include "repl/cmd/views.h"

/* In rising order: a cell for several pages shows the greatest state. */
enum cell { C_FREE, C_GONE, C_HELD, C_OPEN, C_WINDOW, C_READ, C_FAULT };
static const struct {
    const char *text, *ascii, *name;
    enum style style;
} look[] = {
    [C_FREE] = {".", ".", "free", ST_COLD},
    [C_GONE] = {"-", "-", "released", ST_DIM},
    [C_HELD] = {"▒", "=", "held", ST_COOL},
    [C_OPEN] = {"d", "d", "draft", ST_DRAFT},
    [C_WINDOW] = {"▓", "+", "window", ST_WARM},
    [C_READ] = {"█", "#", "read", ST_HOT},
    [C_FAULT] = {"!", "!", "violated", ST_BAD},
};

static void add_cell(struct sheet *out, enum cell c)
{
    sheet_add(out, look[c].style, out->ascii ? look[c].ascii : look[c].text);
}

/* ---- the map by logical page ----------------------------------------------------------------- */

int32_t page_in(const struct page_view *p, enum pool_id pool)
{
    return pool == POOL_FULL ? p->full : pool == POOL_SWA ? p->swa : p->draft;
}

int map_page_size(const struct page_table *t)
{
    return max_int(1, t->pool[POOL_FULL].page_size);
}

/* First key that the next query of a sliding layer sees: W keys, its own included. */
static int map_window_start(const struct page_table *t)
{
    return t->window > 0 ? window_first(t->committed, t->window) : t->window_lo;
}

int map_held(const struct page_table *t)
{
    return max_int(max_int(t->length, t->n_page * map_page_size(t)), t->draft_length);
}

int map_unit(const struct page_table *t, int cells)
{
    int unit = 1, size = map_page_size(t), held = map_held(t);
    while (unit < size && (int64_t)unit * cells < held)
        unit *= 2;
    return min_int(unit, size);
}

/* The positions [*first, *end) of a pool that the violation of the present turn names. */
static bool fault_span(const struct page_table *t, enum pool_id pool, int *first, int *end)
{
    const struct violation *at = &t->at;
    int size = map_page_size(t), column = fault_place_column(at, size);
    if (!t->violated || column < 0 || at->pool != (int)pool)
        return false;
    *first = at->cell >= 0 ? at->cell : column * size;
    *end = at->cell >= 0 ? at->cell + 1 : *first + size;
    return true;
}

/* The state of positions [first, end) of one logical page in a pool, as the next forward pass reads
 * them. */
static enum cell span_state(const struct page_table *t, enum pool_id pool, int first, int end)
{
    int size = map_page_size(t), column = first / size, from, to;
    int length = pool == POOL_DRAFT ? t->draft_length : t->committed;
    if (fault_span(t, pool, &from, &to) && from < end && to > first)
        return C_FAULT;
    if (column >= t->n_page || page_in(&t->page[column], pool) == 0)
        return first < length && pool != POOL_FULL ? C_GONE : C_FREE;
    if (first >= length) /* the unused rest of the last page, or a page for a tree */
        return column * size < length ? C_FREE : C_OPEN;
    if (pool != POOL_SWA)
        return C_READ;
    return end > map_window_start(t) ? C_WINDOW : C_HELD;
}

void map_cell(const struct page_table *t, enum pool_id pool, int first, int n, struct sheet *out)
{
    int size = map_page_size(t);
    enum cell best = C_FREE;
    for (int at = first; at < first + n; at += size) {
        enum cell s = span_state(t, pool, at, min_int(at + size, first + n));
        best = s > best ? s : best;
    }
    add_cell(out, best);
}

void map_scale(const struct page_table *t, int unit, int width, struct sheet *out)
{
    int size = map_page_size(t);
    char cell[80], context[40];
    if (unit >= size)
        snprintf(cell, sizeof cell, "one cell: %d page%s of %d token%s", unit / size,
                 unit > size ? "s" : "", size, size > 1 ? "s" : "");
    else
        snprintf(cell, sizeof cell, "one cell: %d token%s of a page's %d", unit,
                 unit > 1 ? "s" : "", size);
    snprintf(context, sizeof context, "context %d/%d", t->length, t->capacity);
    sheet_add(out, ST_DIM, cell);
    if (width && (int)(strlen(cell) + 2 + strlen(context)) > width)
        sheet_line(out);
    else
        sheet_add(out, ST_DIM, "; ");
    say_line(out, ST_DIM, "%s", context);
}

void map_legend(const struct page_table *t, int width, struct sheet *out)
{
    static const enum cell order[] = {C_READ, C_WINDOW, C_HELD, C_OPEN, C_GONE, C_FREE};
    bool swa = t->pool[POOL_SWA].exists;
    bool gone = swa || (t->n_page && t->draft_length && !t->page[0].draft); /* of the draft */
    int gap = width < 53 ? 1 : width < 58 ? 2 : 3, used = 0; /* cells */
    for (size_t i = 0; i < LEN(order); i++) {
        if ((!swa && (order[i] == C_WINDOW || order[i] == C_HELD)) ||
            (!gone && order[i] == C_GONE))
            continue;
        int cells = 2 + (int)strlen(look[order[i]].name);
        if (used && width && used + gap + cells > width) {
            sheet_line(out);
            used = 0;
        }
        sheet_printf(out, ST_DIM, "%*s", used ? gap : 0, "");
        add_cell(out, order[i]);
        sheet_printf(out, ST_DIM, " %s", look[order[i]].name);
        used += (used ? gap : 0) + cells;
    }
    sheet_line(out);
}

static void map_row(const struct page_table *t, enum pool_id pool, int n_cell, int unit,
                    struct sheet *out)
{
    sheet_printf(out, ST_LABEL, "%-6s", pool_name(pool));
    if (!t->pool[pool].exists)
        sheet_add(out, ST_DIM, "none: model and drafter do not need it");
    for (int i = 0; i < n_cell && t->pool[pool].exists; i++)
        map_cell(t, pool, i * unit, unit, out);
    sheet_line(out);
}

static void map_ruler(int n_cell, int unit, struct sheet *out)
{
    sheet_add(out, ST_LABEL, "pos");
    for (int i = 0; i < n_cell; i += 16) {
        sheet_tab(out, 6 + i);
        sheet_printf(out, ST_DIM, "%d", i * unit);
    }
    sheet_line(out);
}

void map_translation(const struct page_table *t, int pos, struct sheet *out)
{
    const char *to = out->ascii ? " -> " : " → ";
    int size = map_page_size(t), c = pos / size;
    const struct page_view none = {0}, *p = c < t->n_page ? &t->page[c] : &none;
    bool swa = t->pool[POOL_SWA].exists;
    sheet_printf(out, ST_KEY, "pos %d", pos);
    sheet_printf(out, ST_TEXT, "%slogical %d:%d", to, c, pos % size);
    if (p->full)
        sheet_printf(out, ST_TEXT, "%sfull %d", to, (int)p->full);
    if (p->full && swa && p->swa)
        sheet_printf(out, ST_TEXT, "%sswa %d", to, (int)p->swa);
    if (pos >= t->length || !p->full)
        sheet_add(out, pos < t->committed ? ST_BAD : ST_DIM,
                  pos < t->committed ? "  MISSING" : "  not written yet");
    else if (swa && !p->swa && pos >= map_window_start(t) && pos < t->committed)
        sheet_add(out, ST_BAD, "  swa MISSING");
    else
        sheet_add(out, ST_GOOD, "  ok");
    sheet_line(out);
    if (!swa)
        return;
    int last = max_int(t->committed - 1, 0);
    bool gone = p->full && !p->swa && pos < map_window_start(t);
    if (gone)
        sheet_add(out, ST_WARN, "swa released: behind the ");
    say_line(out, ST_DIM, "window [%d,%d]", map_window_start(t), last);
}

static void map_header(const struct page_table *t, struct sheet *out)
{
    sheet_add(out, ST_HEAD, "PAGES");
    sheet_printf(out, ST_TEXT, " turn %d step %d  ", t->turn, t->step);
    for (int i = 0; i < N_POOLS; i++) {
        const struct pool_view *p = &t->pool[i];
        if (p->exists)
            sheet_printf(out, ST_TEXT, "  %s %d/%d", pool_name((enum pool_id)i),
                         p->used + p->protected_, p->total - p->reserved);
    }
    sheet_line(out);
}

static void view_map(const struct page_table *t, int width, struct sheet *out)
{
    int size = map_page_size(t), cells = max_int(8, width - 6), unit = map_unit(t, cells);
    if ((int64_t)unit * cells < map_held(t)) /* whole pages, as many as needed */
        unit = div_up(div_up(map_held(t), size), cells) * size;
    int n_cell = unit > size ? div_up(map_held(t), unit)
                             : min_int(cells, max_int(div_up(t->capacity, unit), 1));
    map_header(t, out);
    map_scale(t, unit, width, out);
    for (int i = 0; i < N_POOLS; i++)
        map_row(t, (enum pool_id)i, n_cell, unit, out);
    map_ruler(n_cell, unit, out);
    map_legend(t, width, out);
    if (t->committed > 0)
        map_translation(t, t->committed - 1, out);
}

/* ---- one pool by physical page --------------------------------------------------------------- */

/* Who holds a page of a pool. */
enum holder { H_FREE, H_IDLE, H_SHARED, H_MINE, H_GUARD };
static const struct {
    const char *text, *ascii, *name;
    enum style style;
} held_by[] = {
    [H_FREE] = {".", ".", "free", ST_COLD},
    [H_IDLE] = {"▒", "=", "another's or a checkpoint's", ST_COOL},
    [H_SHARED] = {"▓", "+", "ours, shared", ST_WARM},
    [H_MINE] = {"█", "#", "ours alone", ST_HOT},
    [H_GUARD] = {"X", "X", "guard", ST_DIM},
};

static enum holder page_holder(const struct page_table *t, enum pool_id pool, int page)
{
    if (page == 0)
        return H_GUARD;
    if (t->mine[pool][page])
        return t->refs[pool][page] > 1 ? H_SHARED : H_MINE;
    return t->refs[pool][page] ? H_IDLE : H_FREE;
}

static void add_holder(struct sheet *out, enum holder h)
{
    sheet_add(out, held_by[h].style, out->ascii ? held_by[h].ascii : held_by[h].text);
}

static void grid(const struct page_table *t, enum pool_id pool, int width, struct sheet *out)
{
    enum { MAX_ROWS = 24 };
    const struct pool_view *p = &t->pool[pool];
    int cells = max_int(16, (width - 8) / 16 * 16);
    int per = max_int(1, div_up(p->total, cells * MAX_ROWS));
    if (per > 1)
        say_line(out, ST_DIM, "one cell: %d pages, the busiest shown", per);
    for (int first = 0; first < p->total; first += cells * per) {
        sheet_printf(out, ST_LABEL, "%6d  ", first);
        for (int i = 0; i < cells && first + i * per < p->total; i++) {
            enum holder best = H_FREE;
            int end = min_int(p->total, first + (i + 1) * per);
            for (int page = first + i * per; page < end; page++) {
                enum holder h = page_holder(t, pool, page);
                best = h > best ? h : best;
            }
            add_holder(out, best);
        }
        sheet_line(out);
    }
    sheet_add(out, ST_TEXT, "        ");
    for (int h = H_GUARD; h >= H_FREE; h--) {
        add_holder(out, (enum holder)h);
        sheet_printf(out, ST_DIM, " %s%s", held_by[h].name, h == H_FREE ? "" : "  ");
    }
    sheet_line(out);
}

/* Appends a run of the page table: "0-15→1-16", or "3→7". */
static void add_run(struct sheet *out, int column, int page, int n)
{
    const char *to = out->ascii ? "->" : "→";
    if (n == 1)
        sheet_printf(out, ST_TEXT, "  %d%s%d", column, to, page);
    else
        sheet_printf(out, ST_TEXT, "  %d-%d%s%d-%d", column, column + n - 1, to, page,
                     page + n - 1);
}

/* Appends the session's page table as runs of consecutive pages, newest last. */
static void table_runs(const struct page_table *t, enum pool_id pool, int width, struct sheet *out)
{
    sheet_printf(out, ST_LABEL, "logical page %s %s page:", out->ascii ? "->" : "→",
                 pool_name(pool));
    int used = 30, runs = 0;
    for (int c = 0; c < t->n_page;) {
        int page = page_in(&t->page[c], pool), n = 1;
        if (page == 0) {
            c++;
            continue;
        }
        while (c + n < t->n_page && page_in(&t->page[c + n], pool) == page + n)
            n++;
        if (used + 24 > width) {
            sheet_line(out);
            sheet_add(out, ST_TEXT, "      ");
            used = 6;
        }
        add_run(out, c, page, n);
        used += 24;
        runs++;
        c += n;
    }
    if (runs == 0)
        sheet_add(out, ST_DIM, "  none");
    sheet_line(out);
}

static void view_one_pool(const struct page_table *t, enum pool_id pool, int width,
                          struct sheet *out)
{
    const struct pool_view *p = &t->pool[pool];
    sheet_printf(out, ST_HEAD, "POOL %s", pool_name(pool));
    if (!p->exists) {
        say_line(out, ST_DIM, "  none: model and drafter do not need it");
        return;
    }
    say_line(out, ST_TEXT, "  %d pages of %d tokens: %d used, %d protected, %d evictable, "
             "%d free", p->total, p->page_size, p->used, p->protected_, p->evictable, p->free);
    grid(t, pool, width, out);
    table_runs(t, pool, width, out);
}

void view_pages(const struct page_table *t, const char *which, int width, struct sheet *out)
{
    for (int i = 0; which && i < N_POOLS; i++)
        if (strcmp(which, pool_name((enum pool_id)i)) == 0) {
            view_one_pool(t, (enum pool_id)i, width, out);
            return;
        }
    view_map(t, width, out);
}
