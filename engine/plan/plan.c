/* plan.c - see plan.h. */
#include "engine/plan/plan.h"

const char *table_name(enum table_id id)
{
    static const char *const name[N_TABLES] = {"full", "swa", "draft", "draft window"};
    return id < N_TABLES ? name[id] : "?";
}

/* ---- storage -------------------------------------------------------------------------------- */

/* A bump allocator. place_plan() runs twice: without base, to add up the words, then with
 * memory. */
struct bump {
    int32_t *base;
    size_t n;
};

static int32_t *carve(struct bump *b, size_t n)
{
    int32_t *p = b->base ? b->base + b->n : NULL;
    b->n += n + RED_ZONE;
    for (int i = 0; p && i < RED_ZONE; i++)
        p[n + (size_t)i] = RED_WORD;
    return p;
}

static void place_pages(struct bump *b, struct table *t, const struct plan *p)
{
    t->pages = p->list ? p->list->page[t->pool] : carve(b, (size_t)p->n_req * (size_t)t->n_cols);
}

static void place_table(struct bump *b, struct table *t, const struct plan *p, bool writes)
{
    size_t rows = (size_t)p->n_rows;
    t->lo = carve(b, rows);
    t->hi = carve(b, rows);
    t->n_expand = carve(b, rows);
    t->expand = carve(b, rows * (size_t)t->expand_w);
    t->write = writes ? carve(b, rows) : NULL;
}

/* A prefix table has extents of its own and shares everything else with the whole table. */
static void place_prefix(struct bump *b, struct table *t, const struct table *whole,
                         const struct plan *p)
{
    *t = *whole;
    t->expand_w = 0;
    t->expand = t->n_expand = t->write = NULL;
    t->lo = carve(b, (size_t)p->n_rows);
    t->hi = carve(b, (size_t)p->n_rows);
}

static void place_plan(struct bump *b, struct plan *p)
{
    size_t rows = (size_t)p->n_rows, reqs = (size_t)p->n_req;
    for (int i = 0; i < N_TABLES; i++)
        if (p->table[i].used)
            place_pages(b, &p->table[i], p);
    p->prefix_len = carve(b, reqs);
    p->q_len = carve(b, reqs);
    p->kv_len = carve(b, reqs);
    p->row0 = carve(b, reqs + 1);
    p->token = carve(b, rows);
    p->pos = carve(b, rows);
    p->req = carve(b, rows);
    p->up = carve(b, rows);
    for (int i = 0; i < N_TABLES; i++)
        if (p->table[i].used)
            place_table(b, &p->table[i], p, p->mode != PLAN_FROZEN);
    for (int i = 0; i < N_TABLES; i++)
        if (p->prefix[i].used)
            place_prefix(b, &p->prefix[i], &p->table[i], p);
}

static void allocate(struct plan *p)
{
    struct bump b = {NULL, 0};
    place_plan(&b, p);
    CHECK(b.n <= INT32_MAX);
    if ((int)b.n > p->cap_mem) {
        p->cap_mem = (int)(b.n + b.n / 2);
        free(p->mem);
        p->mem = xmalloc((size_t)p->cap_mem * sizeof *p->mem);
    }
    memset(p->mem, 0, b.n * sizeof *p->mem);
    b = (struct bump){p->mem, 0};
    place_plan(&b, p);
    p->n_mem = (int)b.n;
}

void plan_free(struct plan *p)
{
    free(p->mem);
    memset(p, 0, sizeof *p);
}

/* ---- typed stores ---------------------------------------------------------------------------- */

static int32_t *expand_at(struct table *t, int row, int i)
{
    CHECK(i >= 0 && i < t->expand_w);
    return &t->expand[(size_t)row * (size_t)t->expand_w + (size_t)i];
}
/* Each function below takes ids of one pool's type and stores them in a table of that pool, so that
 * an id cannot be stored in the table of another pool. The draft has two tables: `id`. */
static struct table *of_draft(struct plan *p, enum table_id id)
{
    CHECK(table_pool(id) == POOL_DRAFT);
    return &p->table[id];
}
static void full_put_page(struct plan *p, int req, int col, full_page page)
{
    *table_page(&p->table[TABLE_FULL], req, col) = page.v;
}
static void full_put_write(struct plan *p, int row, full_slot s)
{
    p->table[TABLE_FULL].write[row] = s.v;
}
static void swa_put_page(struct plan *p, int req, int col, swa_page page)
{
    *table_page(&p->table[TABLE_SWA], req, col) = page.v;
}
static void swa_put_write(struct plan *p, int row, swa_slot s)
{
    p->table[TABLE_SWA].write[row] = s.v;
}
static void draft_put_page(struct plan *p, enum table_id id, int req, int col, draft_page page)
{
    *table_page(of_draft(p, id), req, col) = page.v;
}
static void draft_put_expand(struct plan *p, enum table_id id, int row, int i, draft_slot s)
{
    *expand_at(of_draft(p, id), row, i) = s.v;
}
static void draft_put_write(struct plan *p, enum table_id id, int row, draft_slot s)
{
    of_draft(p, id)->write[row] = s.v;
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* One row, in cells of its request. It writes `cell` (-1: none). Without a window it reads cells
 * [0, hi) through pages, then the n_seen cells seen[] through expand, whose positions are hi, hi +
 * 1, ... */
struct plan_row {
    int32_t token;
    int pos, cell, hi, up;
    int n_seen;
    const int *seen;
};

/* Stores the extent of row r; returns how many cells of seen[] lie before the window. */
static int put_row_extent(struct table *t, int r, const struct plan_row *row)
{
    struct row_extent x = row_extent(row->hi, row->n_seen, t->window);
    t->lo[r] = x.lo;
    t->hi[r] = x.hi;
    t->n_expand[r] = x.n_expand;
    return x.skip;
}

/* Moves the cells before `prefix` from row r of a table to the prefix table. */
static void split_extent(struct table *t, struct table *part, int r, int prefix)
{
    part->lo[r] = min_int(t->lo[r], prefix);
    part->hi[r] = prefix;
    t->lo[r] = max_int(t->lo[r], prefix);
}

/* The slots of cells [base, base + n) of a request, in the pools that the plan's tables use. */
enum { CELLS_AT_ONCE = 256 };
struct plan_cells {
    int base;
    full_slot full[CELLS_AT_ONCE];
    swa_slot swa[CELLS_AT_ONCE];
    draft_slot draft[CELLS_AT_ONCE];
};

static void find_cells(struct plan_cells *c, const struct plan *p, const struct kv *kv,
                       const struct seq *s, int base, int n)
{
    CHECK(n <= CELLS_AT_ONCE && (p->table[TABLE_FULL].used || !p->table[TABLE_SWA].used));
    c->base = base;
    for (int i = 0; i < n && p->table[TABLE_FULL].used; i++)
        c->full[i] = kv_full_slot(kv, s, base + i);
    for (int i = 0; i < n && p->table[TABLE_SWA].used; i++)
        c->swa[i] = kv_swa_slot(kv, c->full[i]);
    for (int i = 0; i < n && plan_mode_drafts(p->mode); i++)
        c->draft[i] = kv_draft_slot(kv, s, base + i);
}

/* The extent of a row in a table of the target, in one part or split at the prefix. */
static void put_extent(struct plan *p, enum table_id id, int r, const struct plan_row *row)
{
    put_row_extent(&p->table[id], r, row);
    if (p->prefix[id].used)
        split_extent(&p->table[id], &p->prefix[id], r, p->prefix_len[p->req[r]]);
}

/* A row of an extend, decode or frozen pass in the target's tables. */
static void put_target_row(struct plan *p, const struct plan_cells *c, int r,
                           const struct plan_row *row)
{
    bool writes = row->cell >= 0;
    if (writes)
        full_put_write(p, r, c->full[row->cell - c->base]);
    put_extent(p, TABLE_FULL, r, row);
    if (!p->table[TABLE_SWA].used)
        return;
    if (writes)
        swa_put_write(p, r, c->swa[row->cell - c->base]);
    put_extent(p, TABLE_SWA, r, row);
}

static void put_draft_row(struct plan *p, enum table_id id, const struct plan_cells *c, int r,
                          const struct plan_row *row)
{
    CHECK(plan_mode_drafts(p->mode)); /* find_cells() has found the draft's cells */
    draft_put_write(p, id, r, c->draft[row->cell - c->base]);
    int skip = put_row_extent(&p->table[id], r, row);
    for (int i = skip; i < row->n_seen; i++)
        draft_put_expand(p, id, r, i - skip, c->draft[row->seen[i] - c->base]);
}

static void put_row(struct plan *p, const struct plan_cells *c, int b, int r,
                    const struct plan_row *row)
{
    p->token[r] = row->token;
    p->pos[r] = row->pos;
    p->req[r] = b;
    p->up[r] = row->up;
    if (p->table[TABLE_FULL].used)
        put_target_row(p, c, r, row);
    for (int i = TABLE_DRAFT; i < N_TABLES; i++)
        if (p->table[i].used)
            put_draft_row(p, (enum table_id)i, c, r, row);
}

static void linear_rows(struct plan *p, const struct kv *kv, const struct plan_req *q, int b,
                        int r0)
{
    struct plan_cells c;
    for (int i = 0; i < q->n; i++) {
        int at = p->prefix_len[b] + i, hi = p->kv_len[b] - q->n + i + 1; /* last row: kv_len */
        if (i % CELLS_AT_ONCE == 0)
            find_cells(&c, p, kv, q->seq, at, min_int(CELLS_AT_ONCE, q->n - i));
        put_row(p, &c, b, r0 + i,
                &(struct plan_row){.token = q->token[i], .pos = at, .cell = at,
                                   .hi = max_int(0, hi),
                                   .up = i ? r0 + i - 1 : -1});
    }
}

/* The rows of a tree in one table; slot[i] is the slot of cell prefix + i. A node's tree part is
 * its parent's, then its own cell; that of a row past the last node is its own cell. Windows count
 * from the row's position, prefix + depth. */
static void put_tree(struct table *t, int r0, const struct tree *tree, int n, int prefix,
                     const int32_t *slot)
{
    const int w = t->expand_w, window = t->window;
    int32_t *lo = t->lo + r0, *hi = t->hi + r0, *n_expand = t->n_expand + r0;
    int32_t *write = t->write + r0, *expand = t->expand + (size_t)r0 * (size_t)w;
    for (int j = 0; j < n; j++) {
        int node = j < tree->n ? j : 0, up = tree->parent[node], depth = tree->depth[node];
        struct row_extent x = row_extent(prefix, depth + 1, window);
        int32_t *row = expand + mul64(j, w);
        CHECK(depth < w);
        if (up >= 0 && x.skip == 0)
            for (int k = 0; k < w; k++) /* always w columns: the branch is predictable */
                row[k] = expand[up * w + k];
        else
            for (int at = depth - 1; at >= x.skip; at--, up = tree->parent[up])
                row[at - x.skip] = slot[up];
        if (depth >= x.skip)
            row[depth - x.skip] = slot[j];
        lo[j] = x.lo;
        hi[j] = x.hi;
        n_expand[j] = x.n_expand;
        write[j] = slot[j];
    }
}
static void full_put_tree(struct plan *p, int r0, const struct tree *tree, int n, int prefix,
                          const full_slot *slot)
{
    put_tree(&p->table[TABLE_FULL], r0, tree, n, prefix, &slot->v);
}
static void swa_put_tree(struct plan *p, int r0, const struct tree *tree, int n, int prefix,
                         const swa_slot *slot)
{
    put_tree(&p->table[TABLE_SWA], r0, tree, n, prefix, &slot->v);
}

static void tree_rows(struct plan *p, const struct kv *kv, const struct plan_req *q, int b, int r0)
{
    const struct tree *t = q->tree;
    const int prefix = p->prefix_len[b];
    int32_t *token = p->token + r0, *pos = p->pos + r0, *req = p->req + r0, *up = p->up + r0;
    struct plan_cells c;
    CHECK(p->table[TABLE_FULL].used);
    find_cells(&c, p, kv, q->seq, prefix, q->n);
    for (int j = 0; j < q->n; j++) {
        int node = j < t->n ? j : 0;
        token[j] = t->token[node];
        pos[j] = prefix + t->depth[node];
        req[j] = b;
        up[j] = node ? r0 + t->parent[node] : -1;
    }
    full_put_tree(p, r0, t, q->n, prefix, c.full);
    if (p->table[TABLE_SWA].used)
        swa_put_tree(p, r0, t, q->n, prefix, c.swa);
}

static void draft_rows(struct plan *p, const struct kv *kv, const struct plan_req *q, int b, int r0)
{
    int prefix = p->prefix_len[b];
    struct plan_cells c;
    find_cells(&c, p, kv, q->seq, prefix, p->kv_len[b] - prefix);
    for (int i = 0; i < q->n; i++) {
        const struct draft_row *d = &q->draft[i];
        put_row(p, &c, b, r0 + i,
                &(struct plan_row){.token = q->token[i], .pos = prefix - 1 + d->depth,
                                   .cell = d->cell,
                                   .hi = prefix, .n_seen = d->n_seen, .seen = d->seen,
                                   .up = d->up});
    }
}

/* Row i of the block in one table of the draft. */
static void put_block_row(struct plan *p, enum table_id id, const struct plan_cells *c, int r,
                          int i, int n)
{
    struct table *t = &p->table[id];
    const int prefix = c->base, seen = t->causal ? i + 1 : n;
    t->lo[r] = min_int(window_first(prefix + i, t->window), prefix);
    t->hi[r] = prefix;
    t->n_expand[r] = seen;
    draft_put_write(p, id, r, c->draft[i]);
    for (int k = 0; k < seen; k++)
        draft_put_expand(p, id, r, k, c->draft[k]);
}

static void block_rows(struct plan *p, const struct kv *kv, const struct plan_req *q, int b, int r0)
{
    struct plan_cells c;
    find_cells(&c, p, kv, q->seq, p->prefix_len[b], q->n);
    for (int i = 0; i < q->n; i++) {
        int r = r0 + i;
        p->token[r] = q->token[i];
        p->pos[r] = c.base + i;
        p->req[r] = b;
        p->up[r] = -1;
        for (int id = TABLE_DRAFT; id < N_TABLES; id++)
            if (p->table[id].used)
                put_block_row(p, (enum table_id)id, &c, r, i, q->n);
    }
}

static void frozen_rows(struct plan *p, const struct plan_req *q, int b, int r0)
{
    int prefix = p->prefix_len[b];
    for (int i = 0; i < q->n; i++)
        put_row(p, NULL, b, r0 + i,
                &(struct plan_row){.token = q->token[i], .pos = prefix - 1, .cell = -1,
                                   .hi = prefix,
                                   .up = -1});
}

/* ---- page columns ---------------------------------------------------------------------------- */

static void put_columns(struct plan *p, const struct kv *kv, const struct seq *s, int b)
{
    if (p->list)
        return; /* list_write() has stored them */
    int n = div_up(p->kv_len[b], kv->page_size);
    for (int c = 0; c < n && p->table[TABLE_FULL].used; c++) {
        full_put_page(p, b, c, s->col[c].full);
        if (p->table[TABLE_SWA].used && c >= s->swa_lo / kv->page_size)
            swa_put_page(p, b, c, kv_swa_page(kv, s->col[c].full));
    }
    for (int i = TABLE_DRAFT; i < N_TABLES; i++)
        for (int c = 0; c < min_int(n, s->n_dcol) && p->table[i].used; c++)
            draft_put_page(p, (enum table_id)i, b, c, s->dcol[c]);
}

/* ---- building -------------------------------------------------------------------------------- */

static int prefix_of(enum plan_mode mode, const struct plan_req *q)
{
    return mode == PLAN_DRAFT || mode == PLAN_BLOCK ? q->seq->drafted
           : mode == PLAN_DRAFT_EXTEND ? q->draft_from
                                       : q->seq->committed;
}

/* kv_len of a request: the prefix and the cells that the pass adds. */
static int kv_len_of(enum plan_mode mode, const struct plan_req *q, const struct plan_hooks *h)
{
    int prefix = prefix_of(mode, q), kv_len = prefix + (mode == PLAN_FROZEN ? 0 : q->n);
    for (int i = 0; q->draft && i < q->n; i++)
        kv_len = max_int(kv_len, q->draft[i].cell + 1);
    return h->extent ? h->extent(h->on, mode, q, kv_len) : kv_len;
}

/* The window of a draft's layers that have `own`: the smaller one, if the cache has one, too. */
static int draft_sees(const struct kv *kv, int own)
{
    return !own || !kv->draft_window ? own + kv->draft_window : min_int(own, kv->draft_window);
}

/* The tables that the layers of the pass read, and their windows. */
static void set_tables(struct plan *p, const struct kv *kv, const struct plan_opts *o)
{
    const bool draft = plan_mode_drafts(p->mode);
    const bool used[N_TABLES] = {[TABLE_FULL] = !draft, [TABLE_SWA] = !draft && kv->has_swa,
                                 [TABLE_DRAFT] = draft && o->draft_full,
                                 [TABLE_DRAFT_SWA] = draft && o->draft_window > 0};
    const int window[N_TABLES] = {
        [TABLE_SWA] = p->mode == PLAN_FROZEN ? o->draft_window : kv->window,
        [TABLE_DRAFT] = draft_sees(kv, 0), [TABLE_DRAFT_SWA] = draft_sees(kv, o->draft_window)};
    for (int i = 0; i < N_TABLES; i++) {
        enum pool_id pool = table_pool((enum table_id)i);
        p->table[i] = (struct table){.used = used[i], .pool = pool, .epoch = kv->pool[pool].epoch,
                                     .base = kv->mem[pool].base, .window = window[i],
                                     .causal = draft && o->draft_causal[i == TABLE_DRAFT_SWA],
                                     .page_size = kv->page_size};
        p->prefix[i].used = used[i] && p->mode == PLAN_EXTEND && o->parts == 2;
    }
}

/* Rows, columns and expand columns: as many as the longest request needs, and at least those of the
 * options. */
static void set_shape(struct plan *p, const struct kv *kv, const struct plan_req *req,
                      const struct plan_opts *o)
{
    int cols = o->cols, width = o->width;
    FOR_EACH(const struct plan_req, q, req, p->n_req) {
        for (int i = 0; q->draft && i < q->n; i++)
            width = max_int(width, q->draft[i].n_seen);
        if (q->tree)
            width = max_int(width, tree_depth(q->tree) + 1);
        if (p->mode == PLAN_BLOCK)
            width = max_int(width, q->n);
        cols = max_int(cols, div_up(kv_len_of(p->mode, q, &o->hook), kv->page_size));
        p->n_rows += q->n;
    }
    for (int i = 0; i < N_TABLES; i++) {
        p->table[i].n_cols = cols;
        p->table[i].expand_w = width;
    }
}

/* The single request's pages lie in the list, which list_write() updates. */
static void use_list(struct plan *p, const struct kv *kv, const struct plan_req *req,
                     struct page_list *list)
{
    p->list = list;
    p->list_version = p->list_digest = 0;
    if (!list)
        return;
    CHECK(p->n_req == 1 && p->table[0].n_cols <= list->cols);
    enum side side = plan_mode_drafts(p->mode) ? SIDE_DRAFT : SIDE_TARGET;
    list_write(list, kv, req->seq, side);
    p->list_version = list->version[side];
    for (enum pool_id i = 0; i < N_POOLS; i++)
        if (side_of(i) == side)
            p->list_digest = mix64(p->list_digest ^ list->sum[i]);
}

void plan_build(struct plan *p, const struct kv *kv, enum plan_mode mode,
                const struct plan_req *req, int n_req, const struct plan_opts *o)
{
    p->mode = mode;
    p->n_req = n_req;
    p->n_rows = 0;
    set_tables(p, kv, o);
    set_shape(p, kv, req, o);
    use_list(p, kv, req, o->list);
    allocate(p);
    int r = 0;
    for (int b = 0; b < n_req; b++) {
        const struct plan_req *q = &req[b];
        CHECK(!q->tree || (mode == PLAN_VERIFY && q->tree->n <= q->n && q->n <= TREE_MAX));
        CHECK(!!q->draft == (mode == PLAN_DRAFT));
        p->prefix_len[b] = prefix_of(mode, q);
        p->q_len[b] = q->n;
        p->kv_len[b] = kv_len_of(mode, q, &o->hook);
        p->row0[b] = r;
        put_columns(p, kv, q->seq, b);
        if (q->tree)
            tree_rows(p, kv, q, b, r);
        else if (q->draft)
            draft_rows(p, kv, q, b, r);
        else if (mode == PLAN_FROZEN)
            frozen_rows(p, q, b, r);
        else if (mode == PLAN_BLOCK)
            block_rows(p, kv, q, b, r);
        else
            linear_rows(p, kv, q, b, r);
        r += q->n;
    }
    p->row0[n_req] = r;
    if (o->hook.built)
        o->hook.built(o->hook.on, p, kv, req);
}

uint64_t plan_digest(const struct plan *p)
{
    return hash64(p->mem, (size_t)p->n_mem * sizeof *p->mem, p->list_digest ^ (uint64_t)p->mode);
}

/* ---- marks ----------------------------------------------------------------------------------- */

void plan_mark(const struct plan *p, struct kv *kv, const struct plan_req *req)
{
    const int32_t *write = p->table[TABLE_FULL].write;
    if (!p->table[TABLE_FULL].used || !write)
        return;
    for (int b = 0; b < p->n_req; b++) {
        int prefix = p->prefix_len[b];
        struct mark *full = kv->mark[POOL_FULL];
        uint64_t root = MARK_ROOT;
        if (prefix)
            root = full[kv_full_slot(kv, req[b].seq, prefix - 1).v].chain;
        for (int r = p->row0[b]; r < p->row0[b] + p->q_len[b]; r++) {
            uint64_t up = p->up[r] < 0 ? root : full[write[p->up[r]]].chain;
            struct mark m = {p->token[r], p->pos[r], mark_chain(up, p->token[r], p->pos[r])};
            full[write[r]] = m;
            if (p->table[TABLE_SWA].used)
                kv->mark[POOL_SWA][p->table[TABLE_SWA].write[r]] = m;
        }
    }
}

/* ---- on the device --------------------------------------------------------------------------- */

static kbuf slice(const struct plan *p, kbuf mem, const int32_t *at, size_t n)
{
    return kbuf_at(mem, (size_t)(at - p->mem) * sizeof *at, n * sizeof *at);
}

static struct k_table view_table(const struct plan *p, kbuf mem, const struct table *t)
{
    size_t rows = (size_t)p->n_rows;
    kbuf pages = p->list ? list_view(p->list, t->pool, t->n_cols)
                         : slice(p, mem, t->pages, (size_t)p->n_req * (size_t)t->n_cols);
    return (struct k_table){
        .page_size = t->page_size, .n_cols = t->n_cols, .expand_w = t->expand_w,
        .req = slice(p, mem, p->req, rows),
        .pages = pages,
        .lo = slice(p, mem, t->lo, rows), .hi = slice(p, mem, t->hi, rows),
        .expand = t->expand ? slice(p, mem, t->expand, rows * (size_t)t->expand_w) : (kbuf){0},
        .n_expand = t->n_expand ? slice(p, mem, t->n_expand, rows) : (kbuf){0},
        .write = t->write ? slice(p, mem, t->write, rows) : (kbuf){0}};
}

struct k_plan plan_view(const struct plan *p, kbuf mem)
{
    size_t rows = (size_t)p->n_rows;
    struct k_plan kp = {.token = slice(p, mem, p->token, rows), .pos = slice(p, mem, p->pos, rows),
                        .req = slice(p, mem, p->req, rows)};
    for (int i = 0; i < N_TABLES; i++) {
        if (p->table[i].used)
            kp.table[i] = view_table(p, mem, &p->table[i]);
        if (p->prefix[i].used)
            kp.prefix[i] = view_table(p, mem, &p->prefix[i]);
    }
    kp.two_parts = plan_two_parts(p);
    return kp;
}

struct k_plan plan_upload(const struct plan *p, const struct kernels *k, struct kdev *d, kbuf mem)
{
    k->put(d, mem, p->mem, (size_t)p->n_mem * sizeof *p->mem);
    return plan_view(p, mem);
}

static kbuf slice_rows(kbuf all, int first, int n, int width)
{
    size_t row = (size_t)width * sizeof(int32_t);
    return all.p ? kbuf_at(all, (size_t)first * row, (size_t)n * row) : all;
}

static struct k_table table_rows(const struct k_table *t, int first, int n)
{
    struct k_table part = *t;
    part.req = slice_rows(t->req, first, n, 1);
    part.lo = slice_rows(t->lo, first, n, 1);
    part.hi = slice_rows(t->hi, first, n, 1);
    part.expand = slice_rows(t->expand, first, n, t->expand_w);
    part.n_expand = slice_rows(t->n_expand, first, n, 1);
    part.write = slice_rows(t->write, first, n, 1);
    return part;
}

struct k_plan plan_rows(const struct k_plan *kp, int first, int n)
{
    struct k_plan part = *kp;
    part.token = slice_rows(kp->token, first, n, 1);
    part.pos = slice_rows(kp->pos, first, n, 1);
    part.req = slice_rows(kp->req, first, n, 1);
    for (int i = 0; i < N_TABLES; i++) {
        part.table[i] = table_rows(&kp->table[i], first, n);
        part.prefix[i] = table_rows(&kp->prefix[i], first, n);
    }
    return part;
}
