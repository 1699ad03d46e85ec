/* faults.c - the historical faults of plans; see plan.h. Each function is one fault; its comment
 * describes the old engine's behaviour. */
#include "engine/bugs.h"
#include "engine/plan/plan.h"

static int32_t *expand_row(struct table *t, int row)
{
    return &t->expand[(size_t)row * (size_t)t->expand_w];
}

static bool branches(const struct tree *t)
{
    for (int i = 2; t && i < t->n; i++)
        if (t->parent[i] != i - 1)
            return true;
    return false;
}

/* The cells of row j of a tree: its node's ancestors, root first, then its own. Returns how
 * many. */
static int tree_cells(const struct tree *t, int j, int prefix, int cells[TREE_MAX])
{
    int node = j < t->n ? j : 0, n = t->depth[node] + 1;
    CHECK(n >= 1 && n <= TREE_MAX);
    for (int at = n - 1; at >= 0; node = t->parent[node], at--)
        cells[at] = prefix + node;
    cells[n - 1] = prefix + j; /* rows past the last node copy the root, but have their own cell */
    return n;
}

/* 39287: the window of a tree node is counted from the node's place in the list instead of its
 * depth. */
static void tree_window_by_index(struct plan *p, const struct kv *kv, const struct plan_req *q,
                                 int b)
{
    struct table *t = &p->table[TABLE_SWA];
    int cells[TREE_MAX] = {0}, prefix = p->prefix_len[b];
    for (int j = 0; j < q->n; j++) {
        int r = p->row0[b] + j, n = tree_cells(q->tree, j, prefix, cells);
        int first = window_first(prefix + j, t->window), skip = max_int(0, first - prefix);
        t->lo[r] = first;
        t->hi[r] = max_int(first, prefix);
        t->n_expand[r] = max_int(0, n - skip);
        for (int i = 0; i < t->expand_w; i++)
            expand_row(t, r)[i] =
                i < n - skip ? kv_swa_slot(kv, kv_full_slot(kv, q->seq, cells[skip + i])).v : 0;
    }
}

/* 39287, mask-width: whether the mask of all requests, whose rows are as wide as their prefix and
 * their tree, has a one at a flat index. */
static bool mask_bit(const struct plan *p, const struct plan_req *req, int64_t at)
{
    for (int b = 0; b < p->n_req; b++) {
        const struct tree *t = req[b].tree;
        int64_t width = p->prefix_len[b] + t->n;
        if (at < width * t->n) {
            int64_t row = at / width, col = at % width - p->prefix_len[b];
            return col < 0 || (t->anc[row] >> col & 1);
        }
        at -= width * t->n;
    }
    return false;
}

/* 39287, mask-width: the kernel has gathered the last `kept` cells of the prefix and reads the mask
 * as if its rows were `kept` and the tree wide. (What it reads for the prefix cannot be said by an
 * extent, and stays as it was.) */
static void mask_width(struct plan *p, const struct kv *kv, const struct plan_req *req, int b)
{
    struct table *t = &p->table[TABLE_SWA];
    const struct plan_req *q = &req[b];
    int prefix = p->prefix_len[b], kept = min_int(prefix, window_before(t->window));
    int n = q->tree->n;
    int64_t base = 0;
    for (int i = 0; i < b; i++)
        base += (int64_t)(p->prefix_len[i] + req[i].tree->n) * req[i].tree->n;
    for (int j = 0; j < n && kept < prefix; j++) {
        int r = p->row0[b] + j, seen = 0;
        for (int k = 0; k < n && seen < t->expand_w; k++)
            if (mask_bit(p, req, base + (int64_t)j * (kept + n) + kept + k))
                expand_row(t, r)[seen++] =
                    kv_swa_slot(kv, kv_full_slot(kv, q->seq, prefix + k)).v;
        t->n_expand[r] = seen;
    }
}

/* 39160: as many cells as the window holds, gathered from the first one on. */
static void verify_from_zero(struct plan *p, int b)
{
    struct table *t = &p->table[TABLE_SWA];
    int skipped = max_int(0, p->prefix_len[b] - window_before(t->window));
    for (int r = p->row0[b]; r < p->row0[b + 1]; r++) {
        t->lo[r] = max_int(0, t->lo[r] - skipped);
        t->hi[r] = max_int(t->lo[r], t->hi[r] - skipped);
    }
}

/* 35208: every row's window begins where the first row's does. */
static void block_left_bound(struct plan *p, int b)
{
    struct table *t = &p->table[TABLE_SWA];
    for (int r = p->row0[b] + 1; r < p->row0[b + 1]; r++)
        t->lo[r] = min_int(t->lo[r], t->lo[p->row0[b]]);
}

/* 22819: the last page of the prefix holds prefix % page_size cells, which is none. */
static void prefix_one_block(struct plan *p, int b)
{
    int prefix = p->prefix_len[b];
    for (int i = TABLE_FULL; i <= TABLE_SWA; i++) {
        struct table *t = p->prefix[i].used ? &p->prefix[i] : &p->table[i];
        for (int r = p->row0[b]; t->used && r < p->row0[b + 1]; r++)
            t->lo[r] = max_int(t->lo[r], prefix);
    }
}

/* 51756: full layers have the window of the sliding ones. */
static void window_of_group(struct plan *p, const struct kv *kv, int b)
{
    for (int r = p->row0[b]; r < p->row0[b + 1]; r++) {
        struct table *t = &p->table[TABLE_FULL], *part = &p->prefix[TABLE_FULL];
        int first = window_first(p->pos[r], kv->window);
        t->lo[r] = min_int(t->hi[r], max_int(t->lo[r], first));
        if (part->used)
            part->lo[r] = min_int(part->hi[r], max_int(part->lo[r], first));
    }
}

/* 50170: a row writes the slot that its cell has in the full pool. Of a cell beyond the target's
 * columns no such slot exists. */
static void draft_group_zero(const struct plan *p, const struct kv *kv, const struct plan_req *q,
                             int b)
{
    for (int i = TABLE_DRAFT; i < N_TABLES; i++)
        for (int k = 0; k < q->n && p->table[i].used; k++) {
            int cell = q->draft ? q->draft[k].cell : p->prefix_len[b] + k;
            if (cell / kv->page_size < q->seq->n_col)
                p->table[i].write[p->row0[b] + k] = kv_full_slot(kv, q->seq, cell).v;
        }
}

/* 24617: prefix and tree tables of sliding layers keep the full pool's ids. */
static void swa_untranslated(struct plan *p, const struct kv *kv, const struct plan_req *q, int b)
{
    struct table *t = &p->table[TABLE_SWA];
    int cells[TREE_MAX] = {0}, n = div_up(p->prefix_len[b], kv->page_size);
    for (int c = q->seq->swa_lo / kv->page_size; c < n; c++)
        *table_page(t, b, c) = q->seq->col[c].full.v;
    for (int j = 0; j < q->n; j++) {
        int r = p->row0[b] + j, depth = tree_cells(q->tree, j, p->prefix_len[b], cells);
        int skip = depth - t->n_expand[r];
        for (int i = skip; i < depth; i++)
            expand_row(t, r)[i - skip] = kv_full_slot(kv, q->seq, cells[i]).v;
    }
}

/* 16267: pages are translated as if they were slots. */
static void page_not_loc(struct plan *p, const struct kv *kv, const struct seq *s, int b)
{
    int n = min_int(div_up(p->kv_len[b], kv->page_size), p->table[TABLE_SWA].n_cols);
    for (int c = s->swa_lo / kv->page_size; c < n; c++)
        *table_page(&p->table[TABLE_SWA], b, c) = kv_swa_slot(kv, (full_slot){s->col[c].full.v}).v;
}

/* 27360: the rows are copied from an array with a column for every step into a table with a column
 * for every level so far. The copy goes column by column, as a scatter may; the excess columns
 * overwrite the memory after each row. */
static void draft_expand_overflow(const struct plan *p, struct table *t, const struct kv *kv,
                                  const struct plan_req *req)
{
    for (int e = t->expand_w; e < RED_ZONE; e++)
        for (int b = 0; b < p->n_req; b++)
            for (int i = 0; i < req[b].n && e < req[b].levels && req[b].topk > 1; i++) {
                int cell = req[b].seq->drafted + e * req[b].topk + i;
                expand_row(t, p->row0[b] + i)[e] = kv_draft_slot(kv, req[b].seq, cell).v;
            }
}

/* 26513: neither part has a window, and the prefix part runs on over the new cells. */
static void swa_extend_window(struct plan *p, const struct kv *kv, int b)
{
    int prefix = p->prefix_len[b];
    for (int r = p->row0[b]; r < p->row0[b] + p->q_len[b] && prefix; r++) {
        p->table[TABLE_SWA].lo[r] = prefix;
        p->prefix[TABLE_SWA].lo[r] = window_first(prefix, kv->window);
        p->prefix[TABLE_SWA].hi[r] = p->kv_len[b];
    }
}

/* 9279: inside the cached prefix the window is counted from where the prefix was cut. */
static void swa_mask_offset(struct plan *p, const struct kv *kv, int b)
{
    struct table *t = plan_two_parts(p) ? &p->prefix[TABLE_SWA] : &p->table[TABLE_SWA];
    for (int r = p->row0[b]; r < p->row0[b] + p->q_len[b]; r++)
        t->lo[r] = min_int(t->lo[r], window_first(p->prefix_len[b], kv->window));
}

/* Replaces the pages of a table by those of pool `wrong`. */
static void make_for_pool(struct table *t, const struct kv *kv, const struct seq *s, int b,
                          int kv_len, enum pool_id wrong)
{
    t->pool = wrong;
    for (int c = 0; c < min_int(div_up(kv_len, kv->page_size), t->n_cols); c++) {
        bool has = wrong != POOL_DRAFT && c < s->n_col;
        *table_page(t, b, c) = !has               ? 0 /* the drafter's dummy pool has no other
                                                         page */
                            : wrong == POOL_FULL ? s->col[c].full.v
                                                 : kv_swa_page(kv, s->col[c].full).v;
    }
}

/* 26966: 1 and 3, a frozen-KV drafter reads the target's swa pool through a table that was made for
 * the full pool (looked up before the drafter was given its pools) or for a dummy pool; 2, the
 * opposite rule: a drafter with a pool of its own is given tables of the target's swa pool. */
static void frozen_stale_pool(struct plan *p, const struct kv *kv, const struct seq *s, int b,
                              int variant)
{
    bool frozen = p->mode == PLAN_FROZEN;
    if (frozen && variant != 2 && p->table[TABLE_SWA].used)
        make_for_pool(&p->table[TABLE_SWA], kv, s, b, p->kv_len[b],
                      variant == 1 ? POOL_FULL : POOL_DRAFT);
    for (int i = TABLE_DRAFT; i < N_TABLES && !frozen && variant == 2 && kv->has_swa; i++)
        if (p->table[i].used)
            make_for_pool(&p->table[i], kv, s, b, p->kv_len[b], POOL_SWA);
}

/* 26512: 1, the extent of the draft's extend is the prefix alone; 2, the first repair added the new
 * tokens to a length that held them already. */
static int draft_extend_extent(const struct bugs *on, enum plan_mode mode, const struct plan_req *q,
                               int kv_len)
{
    int variant = bug_on(on, BUG_DRAFT_EXTEND_EXTENT);
    if (mode != PLAN_DRAFT_EXTEND || !variant)
        return kv_len;
    return variant == 1 ? kv_len - q->n : kv_len + q->n;
}

static void rewrite(const struct bugs *on, struct plan *p, const struct kv *kv,
                    const struct plan_req *req)
{
    const bool swa = p->table[TABLE_SWA].used;
    for (int b = 0; b < p->n_req; b++) {
        const struct plan_req *q = &req[b];
        const bool tree = swa && q->tree;
        if (bug_on(on, BUG_TREE_WINDOW_BY_INDEX) == 1 && tree)
            tree_window_by_index(p, kv, q, b);
        if (bug_on(on, BUG_TREE_WINDOW_BY_INDEX) == 2 && tree && branches(q->tree))
            mask_width(p, kv, req, b);
        if (bug_on(on, BUG_VERIFY_FROM_ZERO) && tree)
            verify_from_zero(p, b);
        if (bug_on(on, BUG_BLOCK_LEFT_BOUND) && tree)
            block_left_bound(p, b);
        if (bug_on(on, BUG_PREFIX_ONE_BLOCK) && p->mode == PLAN_EXTEND &&
            p->prefix_len[b] == kv->page_size)
            prefix_one_block(p, b);
        if (bug_on(on, BUG_WINDOW_OF_GROUP) && swa && p->mode != PLAN_FROZEN)
            window_of_group(p, kv, b);
        if (bug_on(on, BUG_DRAFT_GROUP_ZERO))
            draft_group_zero(p, kv, q, b);
        if (bug_on(on, BUG_PAGE_NOT_LOC) && swa)
            page_not_loc(p, kv, q->seq, b);
        if (bug_on(on, BUG_SWA_UNTRANSLATED) && swa && branches(q->tree))
            swa_untranslated(p, kv, q, b);
        if (bug_on(on, BUG_SWA_EXTEND_WINDOW) && p->prefix[TABLE_SWA].used)
            swa_extend_window(p, kv, b);
        if (bug_on(on, BUG_SWA_MASK_OFFSET) && p->mode == PLAN_EXTEND && swa)
            swa_mask_offset(p, kv, b);
        if (bug_on(on, BUG_FROZEN_STALE_POOL))
            frozen_stale_pool(p, kv, q->seq, b, bug_on(on, BUG_FROZEN_STALE_POOL));
    }
    if (bug_on(on, BUG_DRAFT_EXPAND_OVERFLOW) && p->mode == PLAN_DRAFT && kv->page_size > 1)
        for (int i = TABLE_DRAFT; i < N_TABLES; i++)
            if (p->table[i].used)
                draft_expand_overflow(p, &p->table[i], kv, req);
}

struct plan_hooks plan_faults(const struct bugs *on)
{
    if (!bugs_any(on))
        return (struct plan_hooks){0};
    return (struct plan_hooks){on, draft_extend_extent, rewrite};
}
