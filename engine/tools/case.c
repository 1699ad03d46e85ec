/* case.c - judges a case; see case.h. */
#include "engine/tools/case.h"

#include "engine/plan/check.h"

/* ---- cells, slots, rows ---------------------------------------------------------------------- */

bool case_kv_follows(const struct attn_case *c, int b)
{
    const struct case_request *q = &c->request[b];
    int64_t sum = (int64_t)q->prefix_len + (c->mode == PLAN_FROZEN ? 0 : q->q_len);
    return q->kv_len == sum;
}

bool case_has_tree(const struct attn_case *c)
{
    return (c->mode == PLAN_VERIFY || c->mode == PLAN_DRAFT) &&
           (c->parent.given || c->mask.given || c->seen.given);
}

static int64_t slot_in(const struct case_group *g, const struct case_lists *l, int b, int64_t cell)
{
    const struct case_ints *t = &l->v[b];
    int64_t at = cell - (g->start.given ? g->start.v[b] : 0);
    int64_t column = g->slots ? at : at / g->page_size;
    if (at < 0 || column >= t->n || t->v[column] == g->null)
        return -1;
    return g->slots ? t->v[column]
                    : (int64_t)t->v[column] * g->page_size + at % g->page_size;
}

/* The slot of a cell in the group's table; -1: none. */
static int64_t table_slot(const struct case_group *g, int b, int cell)
{
    return slot_in(g, &g->tables, b, cell);
}

static int by_full(const void *a, const void *b)
{
    const struct case_ints *x = a, *y = b;
    return x->v[0] < y->v[0] ? -1 : x->v[0] > y->v[0];
}

/* The swa slot of a full slot; -1: none. */
static int64_t map_slot(const struct attn_case *c, int64_t full)
{
    /* case_judge() and case_draw() are given a sorted map */
    int at = FIRST_NOT(i, c->map.n, c->map.v[i].v[0] < full);
    return at < c->map.n && c->map.v[at].v[0] == full && c->map.v[at].v[1] ? c->map.v[at].v[1] : -1;
}

static const struct case_group *full_group(const struct attn_case *c)
{
    for (int i = 0; i < c->n_group; i++)
        if (c->group[i].reads == POOL_FULL && c->group[i].part != PART_PREFIX)
            return &c->group[i];
    return NULL;
}

static bool maps(const struct attn_case *c, const struct case_group *g)
{
    return g->reads == POOL_SWA && c->map.given && full_group(c);
}

int64_t case_held_slot(const struct attn_case *c, const struct case_group *g, int b, int cell)
{
    if (g->held.given)
        return slot_in(g, &g->held, b, cell);
    if (!maps(c, g))
        return table_slot(g, b, cell);
    int64_t full = table_slot(full_group(c), b, cell);
    return full < 0 ? -1 : map_slot(c, full);
}

/* Whether the mask has a one in row i of request b at a column. */
static bool masked(const struct attn_case *c, int b, int i, int64_t column)
{
    const struct case_request *q = &c->request[b];
    int64_t at = q->mask0 + (int64_t)i * ((int64_t)q->prefix_len + q->q_len) + column;
    return at < c->mask.n && c->mask.v[at] != 0;
}

/* The cells of row i's tree part, by depth; room: CASE_TREE. */
static int tree_cells(const struct attn_case *c, int b, int i, int32_t *room)
{
    const struct case_request *q = &c->request[b];
    int row = q->row0 + i, n = 0;
    if (!case_has_tree(c))
        return 0;
    if (c->seen.given) {
        n = min_int(c->seen.v[row].n, CASE_TREE);
        if (n)
            memcpy(room, c->seen.v[row].v, (size_t)n * sizeof *room);
        return n;
    }
    if (c->mask.given) {
        for (int k = 0; k < q->q_len; k++)
            if (masked(c, b, i, (int64_t)q->prefix_len + k))
                room[n++] = q->prefix_len + k;
        return n;
    }
    for (int at = i; at >= 0 && at < q->q_len && n < CASE_TREE; n++) {
        int up = c->parent.v[q->row0 + at];
        room[n] = q->prefix_len + at;
        at = up < at ? up : -1;
    }
    for (int k = 0; k < n / 2; k++) {
        int32_t swap = room[k];
        room[k] = room[n - 1 - k];
        room[n - 1 - k] = swap;
    }
    return n;
}

struct case_want case_wanted(const struct attn_case *c, const struct case_group *g, int b, int i,
                             int32_t *room)
{
    const struct case_request *q = &c->request[b];
    bool tree = case_has_tree(c);
    struct case_want w = {.seen = room, .n_seen = tree_cells(c, b, i, room)};
    w.query = c->mode == PLAN_FROZEN ? q->prefix_len - 1
              : tree                 ? q->prefix_len - 1 + w.n_seen
                                     : q->prefix_len + i;
    int W = g->layer_window;
    w.first = W < 0 ? max_int(0, w.query) / -W * -W : W && w.query >= W ? w.query - W + 1 : 0;
    w.end = tree ? max_int(q->prefix_len, w.first) : w.query + 1;
    w.skip = tree ? min_int(max_int(0, w.first - q->prefix_len), w.n_seen) : 0;
    if (g->part == PART_PREFIX)
        w.first = min_int(w.first, q->prefix_len), w.end = q->prefix_len, w.n_seen = w.skip = 0;
    if (g->part == PART_NEW)
        w.first = max_int(w.first, q->prefix_len);
    return w;
}

static bool has_extents(const struct case_group *g)
{
    return g->lo.given && g->hi.given;
}

int case_n_read(const struct case_group *g, int row)
{
    if (g->claim.given && g->claim.v[row].given)
        return g->claim.v[row].n;
    if (!has_extents(g))
        return -1;
    int64_t n = max_int(0, g->hi.v[row]) - (int64_t)max_int(0, g->lo.v[row]);
    n = (n > 0 ? n : 0) + (g->expand.given ? g->expand.v[row].n : 0);
    return n < INT32_MAX ? (int)n : INT32_MAX;
}

int64_t case_read_slot(const struct case_group *g, int b, int row, int k)
{
    if (g->claim.given && g->claim.v[row].given)
        return k < g->claim.v[row].n ? g->claim.v[row].v[k] : -1;
    int lo = max_int(0, g->lo.v[row]), hi = max_int(lo, g->hi.v[row]);
    if (k < hi - lo)
        return table_slot(g, b, lo + k);
    k -= hi - lo;
    return g->expand.given && k < g->expand.v[row].n ? g->expand.v[row].v[k] : -1;
}

/* ---- violations ------------------------------------------------------------------------------ */

struct judge {
    const struct attn_case *c;
    struct case_verdict *v;
    const struct case_group *g;
    int b;
    int32_t *shared; /* pages that several requests hold, in order */
    int n_shared;
};

__attribute__((format(printf, 4, 5)))
static void found(struct judge *j, int rule, int row, const char *fmt, ...)
{
    if (j->v->n == CASE_FOUND)
        return;
    char *to = j->v->found[j->v->n].text, where[96] = "", at[48] = "";
    j->v->found[j->v->n++].rule = rule;
    if (j->g)
        snprintf(where, sizeof where, ", group %s", j->g->name);
    if (row >= 0)
        snprintf(at, sizeof at, ", row %d of request %d", row - j->c->request[j->b].row0, j->b);
    else if (j->b >= 0)
        snprintf(at, sizeof at, ", request %d", j->b);
    int n = snprintf(to, sizeof j->v->found->text, "%s %s%s%s: ", fault_rule(rule),
                     plan_mode_name(j->c->mode), where, at);
    WITH_ARGS(ap, fmt, vsnprintf(to + n, sizeof j->v->found->text - (size_t)n, fmt, ap));
}

static bool full_up(const struct judge *j)
{
    return j->v->n == CASE_FOUND;
}

static bool in_null_page(const struct case_group *g, int64_t slot)
{
    int64_t page = g->slots ? slot : slot / g->page_size;
    return slot < 0 || page == g->null;
}

/* ---- lengths, positions, tree ---------------------------------------------------------------- */

static void judge_lengths(struct judge *j)
{
    const struct case_request *q = &j->c->request[j->b];
    if (j->c->mode == PLAN_DRAFT ? q->kv_len < q->prefix_len : !case_kv_follows(j->c, j->b))
        found(j, 9, -1, "kv_len %d, but prefix_len %d and q_len %d", q->kv_len, q->prefix_len,
              q->q_len);
    const int32_t *start = j->c->row_start.given ? j->c->row_start.v + j->b : NULL;
    if (start && (start[0] != q->row0 || start[1] != q->row0 + q->q_len))
        found(j, 9, -1, "rows %d to %d, expected %d to %d", start[0], start[1], q->row0,
              q->row0 + q->q_len);
}

/* The mask of row i: all of the prefix, and the tree part of every node in its own tree part. */
static void judge_mask(struct judge *j, int i, const int32_t *cells, int n)
{
    const struct attn_case *c = j->c;
    const struct case_request *q = &c->request[j->b];
    int row = q->row0 + i;
    for (int k = 0; k < q->prefix_len; k++)
        if (!masked(c, j->b, i, k)) {
            found(j, 12, row, "the mask hides cell %d of the prefix", k);
            break;
        }
    if (!n || cells[n - 1] != q->prefix_len + i) {
        found(j, 18, row, "the mask ends at cell %d, not at the row's own, %d",
              n ? cells[n - 1] : -1, q->prefix_len + i);
        return;
    }
    int up = n > 1 ? cells[n - 2] - q->prefix_len : -1;
    for (int k = 0; k < i && up >= 0; k++)
        if (masked(c, j->b, i, (int64_t)q->prefix_len + k) !=
            masked(c, j->b, up, (int64_t)q->prefix_len + k)) {
            found(j, 13, row, "the mask's nodes are no path: node %d is%s seen, but its parent "
                  "node %d does%s see it", k,
                  masked(c, j->b, i, (int64_t)q->prefix_len + k) ? "" : " not", up,
                  masked(c, j->b, i, (int64_t)q->prefix_len + k) ? " not" : "");
            return;
        }
}

static void judge_row(struct judge *j, int i)
{
    const struct attn_case *c = j->c;
    const struct case_request *q = &c->request[j->b];
    int32_t room[CASE_TREE];
    bool tree = case_has_tree(c);
    int row = q->row0 + i, n = tree_cells(c, j->b, i, room);
    int pos = c->mode == PLAN_FROZEN ? q->prefix_len - 1
              : tree                 ? q->prefix_len - 1 + n
                                     : q->prefix_len + i;
    if (c->parent.given && tree) {
        int up = c->parent.v[row];
        if (up < -1 || up >= i)
            found(j, 13, row, "its parent is row %d, which does not come before it", up);
    } else if (c->parent.given) {
        int up = i && c->mode != PLAN_FROZEN ? i - 1 : -1;
        if (c->parent.v[row] != up)
            found(j, 9, row, "follows row %d, expected %d", c->parent.v[row], up);
    }
    if (c->mask.given && tree && !c->seen.given)
        judge_mask(j, i, room, n);
    if (c->position.given && c->position.v[row] != pos)
        found(j, tree ? 13 : 9, row, "position %d, expected %d", c->position.v[row], pos);
}

/* ---- the keys of a row ----------------------------------------------------------------------- */

enum { MOST_SEARCHED = 1 << 16 }; /* cells, for the name of a wrong key */

/* The cell of a key that is in no place where it is expected; -1: of no cell of the request. */
static int cell_of(const struct judge *j, int64_t slot)
{
    const struct case_request *q = &j->c->request[j->b];
    for (int cell = 0; cell < q->prefix_len + q->q_len && cell < MOST_SEARCHED; cell++)
        if (case_held_slot(j->c, j->g, j->b, cell) == slot)
            return cell;
    return -1;
}

/* A key that is not the expected one, which is that of `cell`; -1: none is expected. */
static void wrong_key(struct judge *j, int row, int64_t slot, int cell)
{
    const struct case_request *q = &j->c->request[j->b];
    if (in_null_page(j->g, slot)) {
        found(j, 8, row, "reads slot %lld, which lies in the null page", (long long)slot);
        return;
    }
    int is = cell_of(j, slot);
    int64_t right = cell < 0 ? -1 : case_held_slot(j->c, j->g, j->b, cell);
    if (is < 0)
        found(j, j->g->reads == POOL_SWA || (cell >= q->prefix_len && case_has_tree(j->c)) ? 4 : 10,
              row, "reads slot %lld, cell %d is in slot %lld", (long long)slot, cell,
              (long long)right);
    else
        found(j, case_has_tree(j->c) && (is >= q->prefix_len || cell >= q->prefix_len) ? 18 : 12,
              row, "reads cell %d in slot %lld, expected cell %d in slot %lld", is,
              (long long)slot, cell, (long long)right);
}

static void judge_claim(struct judge *j, int row, const struct case_want *w)
{
    const struct case_ints *keys = &j->g->claim.v[row];
    int through = w->end - w->first, n = through + w->n_seen - w->skip;
    for (int k = 0; k < keys->n && k < n; k++) {
        int cell = k < through ? w->first + k : w->seen[w->skip + k - through];
        if (keys->v[k] != case_held_slot(j->c, j->g, j->b, cell)) {
            wrong_key(j, row, keys->v[k], cell);
            return;
        }
    }
    if (keys->n != n)
        found(j, 12, row, "reads %d keys, expected %d: cells [%d, %d) and %d of the tree", keys->n,
              n, w->first, w->end, w->n_seen - w->skip);
}

static void judge_extent(struct judge *j, int row, const struct case_want *w)
{
    const struct case_group *g = j->g;
    const struct case_ints none = {0}, *x = g->expand.given ? &g->expand.v[row] : &none;
    int n = w->n_seen - w->skip;
    /* a window that begins in the tree: no cell is read through the table, wherever that is said */
    bool no_cells = g->lo.v[row] == g->hi.v[row] && w->first == w->end;
    if (!no_cells && (g->lo.v[row] != w->first || g->hi.v[row] != w->end)) {
        found(j, 12, row, "reads cells [%d, %d), expected [%d, %d)", g->lo.v[row], g->hi.v[row],
              w->first, w->end);
        return;
    }
    for (int k = 0; k < x->n && k < n; k++)
        if (x->v[k] != case_held_slot(j->c, g, j->b, w->seen[w->skip + k])) {
            wrong_key(j, row, x->v[k], w->seen[w->skip + k]);
            return;
        }
    if (x->n != n)
        found(j, 18, row, "%d nodes in its tree part, expected %d", x->n, n);
}

static int by_value(const void *a, const void *b)
{
    const int32_t *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

static void judge_write(struct judge *j, int i)
{
    const struct attn_case *c = j->c;
    const struct case_group *g = j->g;
    const struct case_request *q = &c->request[j->b];
    int row = q->row0 + i, cell = c->cell.given ? c->cell.v[row] : q->prefix_len + i;
    if (!g->write.given)
        return;
    int64_t slot = g->write.v[row], right = cell < 0 ? -1 : case_held_slot(c, g, j->b, cell);
    int32_t page = (int32_t)(g->slots ? slot : slot / g->page_size);
    if (c->mode == PLAN_FROZEN)
        found(j, 6, row, "a frozen pass must write nothing, and writes slot %lld", (long long)slot);
    else if (in_null_page(g, slot))
        found(j, 8, row, "writes slot %lld, which lies in the null page", (long long)slot);
    else if (slot != right)
        found(j, 4, row, "writes slot %lld, cell %d is in slot %lld", (long long)slot, cell,
              (long long)right);
    else if (j->n_shared && bsearch(&page, j->shared, (size_t)j->n_shared, sizeof page, by_value))
        found(j, 6, row, "writes %s %d, which several requests hold", g->slots ? "slot" : "page",
              page);
}

/* ---- the columns of a request ---------------------------------------------------------------- */

static bool outside(const struct case_group *g, int64_t slot)
{
    return g->pool_pages && slot / g->pool_page_size >= g->pool_pages;
}

/* The first wrong column of those that the cells [lo, hi) lie in. */
static void judge_columns(struct judge *j, int lo, int hi)
{
    const struct case_group *g = j->g;
    const struct case_ints *t = &g->tables.v[j->b];
    int64_t start = g->start.given ? g->start.v[j->b] : 0, step = g->slots ? 1 : g->page_size;
    int rule = g->reads == POOL_SWA ? 4 : 10;
    if (lo < start) {
        found(j, 5, -1, "cell %d is read, the table begins with cell %lld", lo, (long long)start);
        return;
    }
    if ((hi - 1 - start) / step >= t->n)
        found(j, 7, -1, "column %lld is read, the table has %d",
              (long long)((hi - 1 - start) / step), t->n);
    for (int64_t cell = lo; cell < hi; cell += step - (cell - start) % step) {
        int64_t column = (cell - start) / step;
        if (column >= t->n)
            return;
        int64_t slot = table_slot(g, j->b, (int)cell);
        int64_t own = case_held_slot(j->c, g, j->b, (int)cell);
        int64_t mapped = own;
        if (maps(j->c, g) && g->held.given && own >= 0)
            mapped = map_slot(j->c, case_held_slot(j->c, full_group(j->c), j->b, (int)cell));
        if (slot == own && slot >= 0 && mapped == own && !outside(g, slot))
            continue;
        if (slot < 0 && own < 0)
            found(j, 5, -1, "cell %lld is read and not held: column %lld is null", (long long)cell,
                  (long long)column);
        else if (slot != own)
            found(j, rule, -1, "column %lld leads cell %lld to slot %lld, it is in slot %lld",
                  (long long)column, (long long)cell, (long long)slot, (long long)own);
        else if (mapped != own)
            found(j, 4, -1, "cell %lld is held in slot %lld, but its full slot maps to %lld",
                  (long long)cell, (long long)own, (long long)mapped);
        else
            found(j, rule, -1, "column %lld leads to slot %lld outside the pool of %d pages",
                  (long long)column, (long long)slot, g->pool_pages);
        return;
    }
}

static void judge_request(struct judge *j)
{
    const struct case_request *q = &j->c->request[j->b];
    int32_t room[CASE_TREE];
    int lo = INT32_MAX, hi = 0;
    for (int i = 0; i < q->q_len && !full_up(j); i++) {
        int row = q->row0 + i;
        struct case_want w = case_wanted(j->c, j->g, j->b, i, room);
        bool claimed = j->g->claim.given && j->g->claim.v[row].given, read = has_extents(j->g);
        if (claimed)
            judge_claim(j, row, &w);
        else if (read)
            judge_extent(j, row, &w);
        judge_write(j, i);
        int from = read && !claimed ? max_int(0, j->g->lo.v[row]) : w.first;
        int end = read && !claimed ? j->g->hi.v[row] : w.end;
        if (from < end) {
            lo = min_int(lo, from);
            hi = max_int(hi, end);
        }
    }
    if (lo < hi)
        judge_columns(j, lo, hi);
}

/* ---- groups and the map ---------------------------------------------------------------------- */

/* The pages that several requests hold in the group. */
static void find_shared(struct judge *j)
{
    const struct case_lists *l = j->g->held.given ? &j->g->held : &j->g->tables;
    size_t n = 0, k = 0;
    for (int b = 0; b < l->n; b++)
        n += (size_t)l->v[b].n;
    j->shared = xcalloc(n + 1, sizeof *j->shared);
    for (int b = 0; b < l->n; b++) { /* each page of a request once */
        size_t from = k;
        for (int i = 0; i < l->v[b].n; i++)
            if (l->v[b].v[i] != j->g->null)
                j->shared[k++] = l->v[b].v[i];
        qsort(j->shared + from, k - from, sizeof *j->shared, by_value);
        size_t to = from;
        for (size_t i = from; i < k; i++)
            if (i == from || j->shared[i] != j->shared[i - 1])
                j->shared[to++] = j->shared[i];
        k = to;
    }
    qsort(j->shared, k, sizeof *j->shared, by_value);
    j->n_shared = 0;
    for (size_t i = 1; i < k; i++)
        if (j->shared[i] == j->shared[i - 1])
            j->shared[j->n_shared++] = j->shared[i];
}

static void judge_group(struct judge *j)
{
    const struct case_group *g = j->g;
    j->b = -1;
    if (g->space != g->reads)
        found(j, 11, -1, "its table holds ids of the %s pool, its layers read the %s pool",
              pool_name(g->space), pool_name(g->reads));
    if (g->page_size != g->pool_page_size)
        found(j, 11, -1, "page size %d, the pool's is %d", g->page_size, g->pool_page_size);
    if (g->window != g->layer_window)
        found(j, 12, -1, "window %d, the layers' is %d", g->window, g->layer_window);
    else if (g->reads == POOL_FULL && g->window)
        found(j, 12, -1, "a window of %d on layers of the full pool", g->window);
    find_shared(j);
    for (j->b = 0; j->b < j->c->n_request && !full_up(j); j->b++)
        judge_request(j);
    free(j->shared);
}

static int by_swa(const void *a, const void *b)
{
    const struct case_ints *x = a, *y = b;
    return x->v[1] < y->v[1] ? -1 : x->v[1] > y->v[1] ? 1 : by_full(a, b);
}

/* The pairs of the map in an order; the caller frees. */
static struct case_ints *map_in_order(const struct attn_case *c,
                                      int (*order)(const void *a, const void *b))
{
    struct case_ints *m = xcalloc((size_t)c->map.n + 1, sizeof *m);
    for (int i = 0; i < c->map.n; i++)
        m[i] = c->map.v[i];
    qsort(m, (size_t)c->map.n, sizeof *m, order);
    return m;
}

/* Slots of a full page map to slots of one swa page, place by place, and no two full slots to
 * one. */
static void judge_map(struct judge *j)
{
    const struct attn_case *c = j->c;
    int P = 1;
    j->g = NULL;
    j->b = -1;
    for (int i = 0; i < c->n_group; i++)
        if (c->group[i].reads == POOL_SWA)
            P = c->group[i].pool_page_size;
    for (int i = 0; i < c->map.n && !full_up(j); i++) {
        int f = c->map.v[i].v[0], s = c->map.v[i].v[1];
        const int32_t *before = i ? c->map.v[i - 1].v : NULL;
        bool same = before && before[0] / P == f / P && before[1] && s;
        if (s && f % P != s % P)
            found(j, 4, -1, "full slot %d maps to swa slot %d, another place of a page of %d", f, s,
                  P);
        else if (before && before[0] == f && before[1] != s)
            found(j, 4, -1, "full slot %d maps to swa slots %d and %d", f, before[1], s);
        else if (same && before[1] / P != s / P)
            found(j, 4, -1, "full page %d maps to swa pages %d and %d", f / P, before[1] / P,
                  s / P);
    }
    FREED(free_at) struct case_ints *m = map_in_order(c, by_swa);
    for (int i = 1; i < c->map.n && !full_up(j); i++)
        if (m[i].v[1] && m[i].v[1] == m[i - 1].v[1] && m[i].v[0] != m[i - 1].v[0])
            found(j, 4, -1, "full slots %d and %d map to one swa slot, %d", m[i - 1].v[0],
                  m[i].v[0], m[i].v[1]);
}

/* ---- everything ------------------------------------------------------------------------------ */

static void not_checked(struct case_verdict *v, int rule, const char *why)
{
    v->checked &= ~(1 << rule);
    v->why[rule] = why;
}

static void rules_checked(const struct attn_case *c, struct case_verdict *v)
{
    bool held = false, reads = false, writes = false, sliding = false, known = true;
    FOR_EACH(const struct case_group, g, c->group, c->n_group) {
        held |= g->held.given;
        reads |= g->claim.given || has_extents(g);
        writes |= g->write.given;
        sliding |= g->reads == POOL_SWA;
        known &= g->reads != POOL_SWA || g->held.given || maps(c, g);
    }
    v->checked = (1 << N_RULES) - 2;
    for (int rule = 1; rule <= 3; rule++)
        not_checked(v, rule, "the free lists and references of the pools");
    if (sliding && !known)
        not_checked(v, 4, "full_to_swa, or the pages held");
    if (!writes)
        not_checked(v, 6, "write");
    if (!held)
        not_checked(v, 10, "held: which pages each request holds");
    if (!reads)
        not_checked(v, 12, "lo and hi, or claim: the keys that rows read"),
            not_checked(v, 18, "expand, or claim: the keys that rows read");
    if (!case_has_tree(c))
        not_checked(v, 13, "a tree"), not_checked(v, 18, "a tree");
    not_checked(v, 14, "the lengths of target and draft");
    not_checked(v, 15, "which tokens wrote the cells");
    not_checked(v, 16, "the random numbers drawn");
    not_checked(v, 17, "what the device filled in");
    not_checked(v, 19, "the rows that were accepted");
    not_checked(v, 20, "the tokens");
}

const char *case_rule(int rule)
{
    return check_rule(rule - 1);
}

void case_judge(const struct attn_case *c, struct case_verdict *v)
{
    struct attn_case sorted = *c;
    struct judge j = {.c = &sorted, .v = v};
    memset(v, 0, sizeof *v);
    sorted.map.v = map_in_order(c, by_full);
    rules_checked(c, v);
    for (j.b = 0; j.b < c->n_request && !full_up(&j); j.b++) {
        judge_lengths(&j);
        for (int i = 0; i < c->request[j.b].q_len && !full_up(&j); i++)
            judge_row(&j, i);
    }
    for (int i = 0; i < c->n_group && !full_up(&j); i++) {
        j.g = &sorted.group[i];
        judge_group(&j);
    }
    judge_map(&j);
    free(sorted.map.v);
    for (int i = 0; i < v->n; i++)
        v->checked |= 1 << v->found[i].rule;
}
