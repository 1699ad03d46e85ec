/* views_pages.c - page maps: how the session's logical pages lie in the three pools, and one pool
 * page by page.
 *
 * A cell stands for one page, or for several where the line is too short; then it shows the
 * busiest of them and the header says how many it covers.
 */
#include <string.h>

#include "repl/repl.h"

/* In rising order: a cell of several pages shows the greatest. */
enum cell { C_FREE, C_GONE, C_HELD, C_OPEN, C_WINDOW, C_READ };
static const struct {
    const char *text, *ascii, *name;
    enum style style;
} look[] = {
    [C_FREE] = {".", ".", "free", ST_COLD},
    [C_GONE] = {"-", "-", "released", ST_DIM},
    [C_HELD] = {"▒", "=", "held", ST_COOL},
    [C_OPEN] = {"d", "d", "draft", ST_DRAFT},
    [C_WINDOW] = {"▓", "+", "in window", ST_WARM},
    [C_READ] = {"█", "#", "read", ST_HOT},
};

static void add_cell(struct sheet *out, enum cell c)
{
    sheet_add(out, look[c].style, out->ascii ? look[c].ascii : look[c].text);
}

/* ---- the map by logical page ----------------------------------------------------------------- */

/* First position that the query at `committed` sees in a sliding layer: W keys, itself included. */
static int window_start(const struct engine_view *v)
{
    return v->window > 0 ? max_int(0, v->committed - v->window + 1) : v->window_lo;
}

static int32_t page_in(const struct page_view *p, enum pool_id pool)
{
    return pool == POOL_FULL ? p->full : pool == POOL_SWA ? p->swa : p->draft;
}

/* What logical page `column` is in a pool, as the next pass will find it. */
static enum cell column_state(const struct engine_view *v, enum pool_id pool, int column, int size)
{
    int first = column * size, end = first + size;
    int length = pool == POOL_DRAFT ? v->draft_length : v->committed;
    if (column >= v->n_page || page_in(&v->page[column], pool) == 0)
        return first < length && pool == POOL_SWA ? C_GONE : C_FREE;
    if (first >= length)
        return C_OPEN;
    if (pool != POOL_SWA)
        return C_READ;
    return end > window_start(v) ? C_WINDOW : C_HELD;
}

static void map_row(const struct engine_view *v, enum pool_id pool, int n_cell, int per, int size,
                    struct sheet *out)
{
    sheet_printf(out, ST_LABEL, "%-6s", pool_name(pool));
    if (!v->pool[pool].exists) {
        sheet_add(out, ST_DIM, "none: this model does not need it");
        sheet_line(out);
        return;
    }
    for (int i = 0; i < n_cell; i++) {
        enum cell best = C_FREE;
        for (int c = i * per; c < (i + 1) * per; c++) {
            enum cell s = column_state(v, pool, c, size);
            best = s > best ? s : best;
        }
        add_cell(out, best);
    }
    sheet_line(out);
}

static void map_ruler(int n_cell, int per, int size, struct sheet *out)
{
    sheet_add(out, ST_LABEL, "pos");
    for (int i = 0; i < n_cell; i += 16) {
        sheet_tab(out, 6 + i);
        sheet_printf(out, ST_DIM, "%d", i * per * size);
    }
    sheet_line(out);
}

static void map_legend(const struct engine_view *v, struct sheet *out)
{
    static const enum cell order[] = {C_READ, C_WINDOW, C_HELD, C_OPEN, C_GONE, C_FREE};
    sheet_add(out, ST_TEXT, "      ");
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        if (!v->pool[POOL_SWA].exists && order[i] != C_READ && order[i] != C_OPEN &&
            order[i] != C_FREE)
            continue;
        add_cell(out, order[i]);
        sheet_printf(out, ST_DIM, " %s%s", look[order[i]].name, order[i] == C_FREE ? "" : "   ");
    }
    sheet_line(out);
}

/* "pos 3071 → logical 191:15 → full page 47 → swa page 12" and the window there */
static void map_example(const struct engine_view *v, int size, struct sheet *out)
{
    if (v->committed == 0)
        return;
    const char *to = out->ascii ? "->" : "→";
    int pos = v->committed - 1, column = pos / size;
    const struct page_view *p = &v->page[column];
    sheet_printf(out, ST_TEXT, "pos %d %s logical %d:%d %s full page %d", pos, to, column,
                 pos % size, to, (int)p->full);
    if (v->pool[POOL_SWA].exists) {
        sheet_printf(out, ST_TEXT, " %s swa page %d", to, (int)p->swa);
        sheet_line(out);
        int lo = v->window > 0 ? max_int(0, pos - v->window + 1) : v->window_lo;
        sheet_printf(out, ST_DIM, "window [%d,%d]: the keys it sees in sliding layers", lo, pos);
    }
    sheet_line(out);
}

static void map_header(const struct engine_view *v, int per, int size, struct sheet *out)
{
    sheet_add(out, ST_HEAD, "PAGES");
    sheet_printf(out, ST_TEXT, " turn %d step %d  ", v->turn, v->step);
    for (int i = 0; i < N_POOLS; i++) {
        const struct pool_view *p = &v->pool[i];
        if (p->exists)
            sheet_printf(out, ST_TEXT, "  %s %d/%d", pool_name((enum pool_id)i),
                         p->used + p->protected_, p->total - p->reserved);
    }
    sheet_line(out);
    sheet_printf(out, ST_DIM, "      one cell: %d page%s of %d tokens; context %d/%d", per,
                 per > 1 ? "s" : "", size, v->length, v->capacity);
    sheet_line(out);
}

static void view_map(const struct engine_view *v, int width, struct sheet *out)
{
    int size = max_int(1, v->pool[POOL_FULL].page_size), cells = max_int(8, width - 6);
    int per = max_int(1, div_up(v->n_page, cells));
    int n_cell = min_int(cells, max_int(div_up(v->n_page, per), div_up(v->capacity, size)));
    if (per > 1)
        n_cell = div_up(v->n_page, per);
    map_header(v, per, size, out);
    for (int i = 0; i < N_POOLS; i++)
        map_row(v, (enum pool_id)i, n_cell, per, size, out);
    map_ruler(n_cell, per, size, out);
    map_legend(v, out);
    map_example(v, size, out);
}

/* ---- one pool by physical page --------------------------------------------------------------- */

/* A page of a pool, whoever holds it. */
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

static enum holder page_holder(const struct pool_view *p, int page)
{
    if (page == 0)
        return H_GUARD;
    if (p->mine[page])
        return p->refs[page] > 1 ? H_SHARED : H_MINE;
    return p->refs[page] ? H_IDLE : H_FREE;
}

static void add_holder(struct sheet *out, enum holder h)
{
    sheet_add(out, held_by[h].style, out->ascii ? held_by[h].ascii : held_by[h].text);
}

static void grid(const struct pool_view *p, int width, struct sheet *out)
{
    enum { MAX_ROWS = 24 };
    int cells = max_int(16, (width - 8) / 16 * 16);
    int per = max_int(1, div_up(p->total, cells * MAX_ROWS));
    if (per > 1) {
        sheet_printf(out, ST_DIM, "one cell: %d pages, the busiest shown", per);
        sheet_line(out);
    }
    for (int first = 0; first < p->total; first += cells * per) {
        sheet_printf(out, ST_LABEL, "%6d  ", first);
        for (int i = 0; i < cells && first + i * per < p->total; i++) {
            enum holder best = H_FREE;
            for (int page = first + i * per; page < min_int(p->total,
                                                            first + (i + 1) * per); page++)
                best = page_holder(p, page) > best ? page_holder(p, page) : best;
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

/* Both sides of a run of the table: "0-15" and "1-16", or single numbers. */
static void add_run(struct sheet *out, int column, int page, int n)
{
    const char *to = out->ascii ? "->" : "→";
    if (n == 1)
        sheet_printf(out, ST_TEXT, "  %d%s%d", column, to, page);
    else
        sheet_printf(out, ST_TEXT, "  %d-%d%s%d-%d", column, column + n - 1, to, page,
                     page + n - 1);
}

/* The session's page table in runs of neighbours, newest last. */
static void table_runs(const struct engine_view *v, enum pool_id pool, int width, struct sheet *out)
{
    sheet_printf(out, ST_LABEL, "logical page %s %s page:", out->ascii ? "->" : "→",
                 pool_name(pool));
    int used = 30, runs = 0;
    for (int c = 0; c < v->n_page;) {
        int page = page_in(&v->page[c], pool), n = 1;
        if (page == 0) {
            c++;
            continue;
        }
        while (c + n < v->n_page && page_in(&v->page[c + n], pool) == page + n)
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

static void view_one_pool(const struct engine_view *v, enum pool_id pool, int width,
                          struct sheet *out)
{
    const struct pool_view *p = &v->pool[pool];
    sheet_printf(out, ST_HEAD, "POOL %s", pool_name(pool));
    if (!p->exists) {
        sheet_add(out, ST_DIM, "  none: this model does not need it");
        sheet_line(out);
        return;
    }
    sheet_printf(out, ST_TEXT, "  %d pages of %d tokens: %d used, %d protected, %d evictable, "
                 "%d free", p->total, p->page_size, p->used, p->protected_, p->evictable, p->free);
    sheet_line(out);
    grid(p, width, out);
    table_runs(v, pool, width, out);
}

void view_pages(const struct engine_view *v, const char *which, int width, struct sheet *out)
{
    for (int i = 0; which && i < N_POOLS; i++)
        if (strcmp(which, pool_name((enum pool_id)i)) == 0) {
            view_one_pool(v, (enum pool_id)i, width, out);
            return;
        }
    view_map(v, width, out);
}
