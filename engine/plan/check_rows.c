/* check_rows.c - what the rows of a request read and write in one table of a plan: rows of new
 * cells, of a draft's levels, of blocks and of trees. See check_view.h. */
#include "engine/plan/check_view.h"

static bool bad_slot(const struct view *v, const struct table *t, int row, const char *what,
                     int32_t slot, int cell)
{
    int expected = slot_of(v, t->pool, cell);
    if (slot >= 0 && slot < GUARD_PAGES << v->kv->shift)
        return FAIL(v, in_table_row(v, 8, t, row), "%s slot %d lies in the guard page", what, slot);
    return FAIL(v, differs(with_cell(in_table_row(v, 4, t, row), cell), slot, expected),
                "%s slot %d, cell %d is in slot %d", what, slot, cell, expected);
}

/* One request's rows in one table: what all of them share, loaded once because a step has hundreds
 * of rows. The functions marked PER_KIND are compiled once for each kind of row. */
enum kind { LINE /* of new cells */, LEVEL /* of a draft */, BLOCK, TREE, FROZEN };
#define PER_KIND static inline __attribute__((always_inline))
struct check_rows {
    const struct view *v;
    const struct table *t;
    enum kind kind;
    int n, prefix, shift, first_page_slot;
    bool causal; /* of a block */
    int window, part_start; /* part_start: the first cell of this part, 0 without two parts */
    int width;
    const int32_t *lo, *hi, *n_expand, *expand, *write;
    const uint16_t *ref;
    const int32_t *slot;           /* of each tree node's cell */
    const struct tree *tree;
    const struct draft_row *level;
};

static struct check_rows rows_of(const struct view *v, const struct table *t, enum kind kind)
{
    const struct plan *p = v->p;
    const size_t r0 = (size_t)v->r0;
    return (struct check_rows){
        .v = v, .t = t, .kind = kind, .n = p->q_len[v->b], .prefix = p->prefix_len[v->b],
        .shift = v->kv->shift, .first_page_slot = GUARD_PAGES << v->kv->shift, .window = t->window,
        .causal = t->causal,
        .part_start = plan_two_parts(p) ? p->prefix_len[v->b] : 0, .width = t->expand_w,
        .lo = t->lo + r0,
        .hi = t->hi + r0, .n_expand = t->n_expand + r0,
        .expand = t->expand + r0 * (size_t)t->expand_w, .write = t->write ? t->write + r0 : NULL,
        .ref = v->kv->pool[t->pool].ref, .slot = v->slot, .tree = v->q->tree,
        .level = v->q->draft};
}

PER_KIND bool slot_right(const struct check_rows *r, int i, const char *what, int32_t slot,
                              int32_t expected, int cell)
{
    return (slot == expected && slot >= r->first_page_slot) ||
           bad_slot(r->v, r->t, r->v->r0 + i, what, slot, cell);
}

static bool bad_write(const struct check_rows *r, int i)
{
    const struct view *v = r->v;
    if (!r->write)
        return FAIL(v, in_table(v->p, 6, r->t->pool), "no written slots");
    if (r->kind == FROZEN)
        return FAIL(v, in_table(v->p, 6, r->t->pool), "a frozen pass must write nothing");
    int32_t page = r->write[i] >> r->shift;
    struct violation at = with_page(in_table_row(v, 6, r->t, v->r0 + i), page);
    return FAIL(v, differs(at, r->ref[page], 1), "writes page %d, which has %d holders", page,
                r->ref[page]);
}

PER_KIND bool check_write(const struct check_rows *r, int i)
{
    if (r->kind == FROZEN)
        return !r->write || bad_write(r, i);
    if (!r->write)
        return bad_write(r, i);
    int cell = r->kind == LEVEL ? r->level[i].cell : r->prefix + i;
    int32_t expected = r->kind == TREE ? r->slot[i] : slot_of(r->v, r->t->pool, cell);
    return slot_right(r, i, "written", r->write[i], expected, cell) &&
           (r->ref[r->write[i] >> r->shift] == 1 || bad_write(r, i));
}

/* The usual case, in which the window begins before the tree: a row's expand columns are those of
 * its parent's row, which was checked before, then its own cell. */
PER_KIND bool extends_parent(const struct check_rows *r, int i, int n)
{
    const int32_t *mine = r->expand + mul64(i, r->width);
    const int32_t *up = n > 1 ? r->expand + mul64(r->tree->parent[i], r->width) : mine;
    int32_t other = mine[n - 1] ^ r->slot[i];
    for (int k = 0; k < n - 1; k++)
        other |= mine[k] ^ up[k];
    return other == 0 && mine[n - 1] >= r->first_page_slot;
}

/* The cell of another node of the row's request that lies in a slot; -1: of none. */
static int stranger(const struct check_rows *r, int i, int32_t slot)
{
    for (int k = 0; k < r->n; k++) {
        int cell = r->kind == LEVEL ? r->level[k].cell : r->prefix + k;
        int32_t own = r->kind == TREE ? r->slot[k] : slot_of(r->v, r->t->pool, cell);
        if (k != i && own == slot && slot >= r->first_page_slot)
            return cell;
    }
    return -1;
}

/* Expand column k of row i, which must hold the slot of a cell. */
static bool expand_right(const struct check_rows *r, int i, int k, int32_t expected, int cell)
{
    const struct view *v = r->v;
    int32_t slot = r->expand[mul64(i, r->width) + k];
    if (slot == expected && slot >= r->first_page_slot)
        return true;
    int other = stranger(r, i, slot);
    if (other < 0)
        return bad_slot(v, r->t, v->r0 + i, "expand", slot, cell);
    return FAIL(v, differs(with_cell(in_table_row(v, 18, r->t, v->r0 + i), cell), slot, expected),
                "node %d of its tree part is in slot %d, that of cell %d, expected slot %d, of "
                "cell %d", k, slot, other, expected, cell);
}

/* Compares the expand columns with the ancestors one by one, without the first `skip`, which lie
 * before the window. */
static bool matches_ancestors(const struct check_rows *r, int i, int skip)
{
    uint64_t left = i < r->tree->n ? r->tree->anc[i] : UINT64_C(1) << i;
    for (int k = 0; k < skip; k++)
        left &= left - 1;
    for (int k = 0; k < r->n_expand[i]; k++, left &= left - 1) {
        int node = __builtin_ctzll(left);
        if (!expand_right(r, i, k, r->slot[node], r->prefix + node))
            return false;
    }
    return true;
}

/* The expand columns of a draft row are the cells that its request lists. */
static bool matches_request(const struct check_rows *r, int i, int skip)
{
    const int *cell = r->level[i].seen + skip;
    return ALL(k, r->n_expand[i],
               expand_right(r, i, k, slot_of(r->v, r->t->pool, cell[k]), cell[k]));
}

/* The expand columns of a block's row are the block's cells from its first one on. */
static bool matches_block(const struct check_rows *r, int i)
{
    return ALL(k, r->n_expand[i],
               expand_right(r, i, k, slot_of(r->v, r->t->pool, r->prefix + k), r->prefix + k));
}

static bool bad_keys(const struct check_rows *r, int i, int n, int first, int expected_hi,
                     int query)
{
    const struct view *v = r->v;
    if (r->n_expand[i] < 0 || r->n_expand[i] > r->width || n > r->width)
        return FAIL(v, differs(in_table_row(v, 7, r->t, v->r0 + i), r->n_expand[i], n),
                    "%d expand cells in %d columns, %d nodes to see", r->n_expand[i], r->width, n);
    if (r->lo[i] == first && r->hi[i] == expected_hi)
        return FAIL(v, differs(in_table_row(v, 18, r->t, v->r0 + i), r->n_expand[i],
                               query + 1 - expected_hi),
                    "%d nodes in its tree part, expected %d", r->n_expand[i],
                    query + 1 - expected_hi);
    return FAIL(v, in_table_row(v, 12, r->t, v->r0 + i),
                "keys [%d, %d) + %d of the tree, expected [%d, %d) + %d", r->lo[i], r->hi[i],
                r->n_expand[i], first, expected_hi, query + 1 - expected_hi);
}

/* The first key in the query's window, or in its chunk of -W keys. */
PER_KIND int first_key(int query, int W)
{
    return W < 0 ? query / -W * -W : W ? max_int(0, query - W + 1) : 0;
}

/* A row's keys begin at the start of its window and end at its own position. n: cells of its tree
 * part, those before the window included. */
PER_KIND bool check_keys(const struct check_rows *r, int i, int n)
{
    bool line = r->kind == LINE || r->kind == FROZEN;
    /* the query's logical index: a linear row's own cell, a tree row's prefix + depth */
    int query = r->prefix - 1 + (r->kind == LINE ? i + 1 : n);
    int first = first_key(query, r->window);
    first = max_int(first, r->part_start); /* the prefix part reads the cells before */
    int expected_hi = line ? query + 1 : max_int(r->prefix, first);
    int n_expand = r->n_expand[i];
    return (n_expand >= 0 && n_expand <= n && n <= r->width && r->lo[i] == first &&
            r->hi[i] == expected_hi && expected_hi + n_expand - 1 == query) ||
           bad_keys(r, i, n, first, expected_hi, query);
}

/* A block's row reads the cached keys that are within the window of its position, and of the block
 * every cell, or in causal layers those up to its own. */
static bool check_block_keys(const struct check_rows *r, int i)
{
    int n = r->causal ? i + 1 : r->n, first = 0;
    if (r->window && r->prefix + i - r->window + 1 > 0)
        first = min_int(r->prefix, r->prefix + i - r->window + 1);
    return (r->n_expand[i] == n && n <= r->width && r->lo[i] == first && r->hi[i] == r->prefix) ||
           bad_keys(r, i, n, first, r->prefix, r->prefix + n - 1);
}

PER_KIND bool check_row(const struct check_rows *r, int i)
{
    if (r->kind == BLOCK)
        return check_block_keys(r, i) && check_write(r, i) && matches_block(r, i);
    int n = r->kind == TREE    ? r->tree->depth[node_of(r->tree, i)] + 1
            : r->kind == LEVEL ? r->level[i].n_seen
                               : 0;
    if (!check_keys(r, i, n) || !check_write(r, i))
        return false;
    if (r->kind == TREE)
        return (r->lo[i] < r->hi[i] && extends_parent(r, i, n)) ||
               matches_ancestors(r, i, n - r->n_expand[i]);
    return r->kind != LEVEL || matches_request(r, i, n - r->n_expand[i]);
}

PER_KIND bool check_rows_of(const struct view *v, const struct table *t, enum kind kind)
{
    const struct check_rows r = rows_of(v, t, kind);
    return ALL(i, r.n, check_row(&r, i));
}

bool check_rows(const struct view *v, const struct table *t)
{
    return v->q->tree                ? check_rows_of(v, t, TREE)
           : v->q->draft             ? check_rows_of(v, t, LEVEL)
           : v->p->mode == PLAN_FROZEN ? check_rows_of(v, t, FROZEN)
           : v->p->mode == PLAN_BLOCK  ? check_rows_of(v, t, BLOCK)
                                     : check_rows_of(v, t, LINE);
}

bool check_prefix_rows(const struct view *v, const struct table *t)
{
    int prefix = v->p->prefix_len[v->b];
    for (int i = 0; i < v->p->q_len[v->b]; i++) {
        int row = v->r0 + i, query = prefix + i;
        int first = first_key(query, t->window);
        int expected = first < prefix ? first : prefix;
        struct violation at = in_table_row(v, 12, t, row);
        at.prefix = true;
        if (t->lo[row] != expected || t->hi[row] != prefix || t->n_expand || t->write)
            return FAIL(v, at, "keys [%d, %d), expected [%d, %d)", t->lo[row], t->hi[row], expected,
                        prefix);
    }
    return true;
}
