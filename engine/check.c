/* check.c - see check.h. */
#include "engine/check.h"

#include <stdio.h>
#include <string.h>

static const char *const rules[] = {
    "I1  free and owned pages add up to each pool",
    "I2  free lists are sets of free pages",
    "I3  references are as many as the columns that hold pages",
    "I4  map, inverse, row and table agree on every swa page",
    "I5  every visible key is held",
    "I6  written cells have one holder, the row's own sequence",
    "I7  nothing is stored beyond a table's columns",
    "I8  page 0 is never read or written",
    "I9  extents: kv = prefix + new, rows add up, positions end at kv - 1",
    "I10 no row reads a cell that nothing wrote",
    "I11 tables are made for the pools that their layers read",
    "I12 a row's keys are exactly its window, each once",
    "I13 the tree has parents first and ancestors closed",
    "I14 the draft is one pairing behind, in a pool that holds as much",
    "I15 marks of read cells chain to the sequence's end",
    "I16 uniforms consumed are uniforms counted",
    "I17 tables filled on the device are those of its tree",
};

int check_rule_count(void)
{
    return (int)(sizeof rules / sizeof *rules);
}

const char *check_rule(int i)
{
    return rules[i];
}

static bool violated(struct checker *c, const struct err *mine, struct err *e)
{
    c->violations++;
    snprintf(c->last, sizeof c->last, "%.250s", mine->msg);
    if (e)
        *e = *mine;
    return false;
}

/* What is being checked: one request of one plan against its sequence. */
struct view {
    enum check_level level;
    const struct plan *p;
    const struct kv *kv;
    const struct plan_req *q;
    int b, r0; /* request, its first row */
    struct err *e;
    int32_t slot[TREE_MAX]; /* of each node's cell, in the pool of the table at hand */
};

#define FAIL(v, ...) err_set((v)->e, ERR_INVARIANT, __VA_ARGS__)

static inline int32_t seq_page(const struct view *v, enum pool_id pool, int c)
{
    const struct seq *s = v->q->seq;
    if (pool == POOL_DRAFT)
        return c < s->n_dcol ? s->dcol[c].v : 0;
    if (c >= s->n_col)
        return 0;
    return pool == POOL_FULL ? s->col[c].full.v : s->col[c].swa.v;
}

/* ---- pools, by running sums ------------------------------------------------------------------ */

static bool check_pool(const struct kv *kv, enum pool_id id, struct err *e)
{
    const struct pages *p = &kv->pool[id];
    if (p->n_free + p->n_owned != p->total - GUARD_PAGES)
        return err_set(e, ERR_INVARIANT, "I1 %s: %d free + %d owned != %d pages", pool_name(id),
                       p->n_free, p->n_owned, p->total - GUARD_PAGES);
    int32_t next = p->n_free > 0 ? p->free[p->n_free - 1] : 0; /* the page to be handed out next */
    if (p->n_free > 0 && (next < GUARD_PAGES || next >= p->total || p->ref[next]))
        return err_set(e, ERR_INVARIANT, "I2 %s: free list entry %d holds page %d (%s)",
                       pool_name(id), p->n_free - 1, next,
                       next < GUARD_PAGES || next >= p->total ? "out of range" : "still owned");
    if (p->n_refs != kv->held[id])
        return err_set(e, ERR_INVARIANT, "I3 %s: %d references, but sequences hold %d pages",
                       pool_name(id), p->n_refs, kv->held[id]);
    if (p->ref[0])
        return err_set(e, ERR_INVARIANT, "I8 %s: guard page 0 has %d references", pool_name(id),
                       p->ref[0]);
    if (kv->mem[id].base && kv->mem[id].slots < p->total * kv->page_size)
        return err_set(e, ERR_INVARIANT, "I14 %s: %d pages of %d slots, memory for %d slots",
                       pool_name(id), p->total, kv->page_size, kv->mem[id].slots);
    return true;
}

static bool check_pools(const struct kv *kv, struct err *e)
{
    for (int id = 0; id < N_POOLS; id++)
        if (kv->pool[id].total && !check_pool(kv, (enum pool_id)id, e))
            return false;
    if (kv->has_draft && kv_capacity(kv, POOL_DRAFT) < kv_capacity(kv, POOL_FULL))
        return err_set(e, ERR_INVARIANT, "I14 draft: the pool holds %d pages, the full pool %d",
                       kv_capacity(kv, POOL_DRAFT), kv_capacity(kv, POOL_FULL));
    return true;
}

/* ---- what lies behind the tables ------------------------------------------------------------- */

#define RED4(w) w, w, w, w
#define RED16(w) RED4(w), RED4(w), RED4(w), RED4(w)

/* The words behind an array of (rows, width). `what` is "row" or "request". */
static bool check_zone(const struct plan *p, const struct table *t, const char *name,
                       const char *what, const int32_t *array, int rows, int width, struct err *e)
{
    if (!array)
        return true;
    static const int32_t red[RED_ZONE] = {RED16(RED_WORD)};
    const int32_t *zone = array + (size_t)rows * (size_t)width;
    if (!memcmp(zone, red, sizeof red))
        return true;
    for (int i = 0; i < RED_ZONE; i++)
        if (zone[i] != RED_WORD)
            return err_set(e, ERR_INVARIANT,
                           "I7 %s %s table %s %d column %d: %d was stored behind the %d columns "
                           "of %s",
                           plan_mode_name(p->mode), pool_name(t->pool), what, max_int(0, rows - 1),
                           width + i, zone[i], width, name);
    return true;
}

static bool check_zones(const struct plan *p, const struct table *t, struct err *e)
{
    int n = p->n_rows;
    int cols = p->list ? p->list->cols : t->n_cols;
    if (p->list && t->pages != p->list->page[t->pool])
        return err_set(e, ERR_INVARIANT, "I11 %s %s table: its pages lie in another pool's list",
                       plan_mode_name(p->mode), pool_name(t->pool));
    return check_zone(p, t, "pages", "request", t->pages, p->n_req, cols, e) &&
           check_zone(p, t, "lo", "row", t->lo, n, 1, e) &&
           check_zone(p, t, "hi", "row", t->hi, n, 1, e) &&
           check_zone(p, t, "n_expand", "row", t->n_expand, n, 1, e) &&
           check_zone(p, t, "expand", "row", t->expand, n, t->expand_w, e) &&
           check_zone(p, t, "write", "row", t->write, n, 1, e);
}

/* ---- extents --------------------------------------------------------------------------------- */

static bool draft_mode(enum plan_mode m)
{
    return m == PLAN_DRAFT || m == PLAN_DRAFT_EXTEND;
}

static bool check_extents(const struct view *v)
{
    const struct plan *p = v->p;
    const struct seq *s = v->q->seq;
    int prefix = p->prefix_len[v->b], n = p->q_len[v->b], kv = p->kv_len[v->b];
    const char *mode = plan_mode_name(p->mode);
    int final_ = draft_mode(p->mode) ? s->drafted : s->committed;
    if (prefix != final_)
        return FAIL(v, "I9 %s request %d: prefix_len %d, the sequence has %d final cells", mode,
                    v->b, prefix, final_);
    if (n != v->q->n || p->row0[v->b + 1] - p->row0[v->b] != n)
        return FAIL(v, "I9 %s request %d: q_len %d, rows %d to %d, tokens %d", mode, v->b, n,
                    p->row0[v->b], p->row0[v->b + 1], v->q->n);
    if (p->mode == PLAN_DRAFT)
        return kv >= prefix ||
               FAIL(v, "I9 %s request %d: kv_len %d below prefix_len %d", mode, v->b, kv, prefix);
    if (p->mode == PLAN_FROZEN)
        return kv == prefix || FAIL(v, "I9 %s request %d: kv_len %d, expected prefix_len %d", mode,
                                    v->b, kv, prefix);
    if (kv != prefix + n)
        return FAIL(v, "I9 %s request %d: kv_len %d, expected prefix_len %d + q_len %d", mode, v->b,
                    kv, prefix, n);
    return true;
}

/* ---- the draft's lag ------------------------------------------------------------------------- */

static bool check_lag(const struct view *v)
{
    const struct seq *s = v->q->seq;
    if (v->p->mode == PLAN_DRAFT && s->drafted != s->committed)
        return FAIL(v, "I14 draft request %d: %d draft slots for %d committed tokens", v->b,
                    s->drafted, s->committed);
    if (v->p->mode == PLAN_DRAFT_EXTEND && v->p->kv_len[v->b] > s->committed + v->q->ahead)
        return FAIL(v, "I14 draft-extend request %d: slots to %d, but %d committed tokens", v->b,
                    v->p->kv_len[v->b], s->committed + v->q->ahead);
    return true;
}

/* ---- pages ----------------------------------------------------------------------------------- */

static bool bad_swa_page(const struct view *v, int c, int32_t page)
{
    int32_t full = seq_page(v, POOL_FULL, c);
    if (page < GUARD_PAGES || page >= v->kv->pool[POOL_SWA].total)
        return FAIL(v,
                    "I4 %s swa table request %d column %d: page %d is outside the swa pool of %d",
                    plan_mode_name(v->p->mode), v->b, c, page, v->kv->pool[POOL_SWA].total);
    return FAIL(v,
                "I4 %s swa table request %d column %d: holds page %d, but full page %d maps to "
                "swa page %d",
                plan_mode_name(v->p->mode), v->b, c, page, full, v->kv->swa_of[full]);
}

static bool bad_column(const struct view *v, const struct table *t, int c, int32_t page,
                       int32_t own)
{
    const char *mode = plan_mode_name(v->p->mode);
    if (page == 0 && own == 0)
        return FAIL(v, "I5 %s %s table request %d column %d: a visible page is not held", mode,
                    pool_name(t->pool), v->b, c);
    return FAIL(v, "I10 %s %s table request %d column %d: page %d, the sequence holds %d", mode,
                pool_name(t->pool), v->b, c, page, own);
}

/* Columns [first, last] of request b are live pages of the sequence, in the table's own space. */
static bool check_columns(const struct view *v, const struct table *t, int first, int last)
{
    const struct kv *kv = v->kv;
    const struct pages *pool = &kv->pool[t->pool];
    if (last >= t->n_cols)
        return FAIL(v, "I7 %s %s table request %d: column %d needed, %d columns",
                    plan_mode_name(v->p->mode), pool_name(t->pool), v->b, last, t->n_cols);
    const int32_t *pages = t->pages + (size_t)v->b * (size_t)t->n_cols;
    for (int c = first; c <= last; c++) {
        int32_t page = pages[c], own = seq_page(v, t->pool, c);
        bool inside = page >= GUARD_PAGES && page < pool->total;
        if (!page && !own)
            return bad_column(v, t, c, page, own);
        if (t->pool == POOL_SWA) {
            int32_t full = seq_page(v, POOL_FULL, c);
            if (!inside || kv->swa_of[full] != page || kv->full_of[page] != full)
                return bad_swa_page(v, c, page);
        }
        if (page != own || !inside || !pool->ref[page])
            return bad_column(v, t, c, page, own);
    }
    return true;
}

/* Columns that lie in the plan's list as they were checked there, and that have not changed since. */
static int known_columns(const struct view *v, const struct table *t)
{
    const struct page_list *l = v->p->list;
    const struct seq *s = v->q->seq;
    if (v->level >= CHECK_STRICT || !l || !l->settled || l->settled != s->settled)
        return 0;
    return t->pool == POOL_DRAFT ? s->dsteady : s->steady;
}

/* ---- marks ----------------------------------------------------------------------------------- */

static const struct mark *mark_at(const struct kv *kv, enum pool_id pool, int32_t page, int cell)
{
    return &kv->mark[pool][page * kv->page_size + cell % kv->page_size];
}

/* Cell `cell` of a sequence holds its own position, and its chain goes on from the cell before. */
static bool link_ok(const struct kv *kv, const struct seq *s, enum pool_id pool, int cell,
                    struct err *e)
{
    int P = kv->page_size, first = pool == POOL_SWA ? s->swa_lo : 0;
    const struct column *c = &s->col[cell / P], *up = &s->col[max_int(0, cell - 1) / P];
    const struct mark *m = mark_at(kv, pool, pool == POOL_SWA ? c->swa.v : c->full.v, cell);
    if (pool == POOL_SWA && (!c->swa.v || (cell > first && !up->swa.v)))
        return err_set(e, ERR_INVARIANT, "I5 swa cell %d: a visible page is not held",
                       c->swa.v ? cell - 1 : cell);
    if (m->pos != cell)
        return err_set(e, ERR_INVARIANT, "I10 %s cell %d: %s", pool_name(pool), cell,
                       m->pos < 0 ? "no pass has written it" : "another position's KV lies there");
    if (cell > 0 && cell == first)
        return true; /* what came before is released */
    uint64_t before = MARK_ROOT;
    if (cell > 0)
        before = mark_at(kv, pool, pool == POOL_SWA ? up->swa.v : up->full.v, cell - 1)->chain;
    if (m->chain != mark_chain(before, m->token, m->pos))
        return err_set(e, ERR_INVARIANT, "I15 %s cell %d: token %d does not follow the cell before",
                       pool_name(pool), cell, m->token);
    return true;
}

/* The last committed cell is written, in both pools, and is the one that was committed. */
static bool tail_ok(const struct kv *kv, const struct seq *s, struct err *e)
{
    int cell = s->committed - 1;
    if (cell < 0)
        return true;
    const struct column *c = &s->col[cell / kv->page_size];
    if (!link_ok(kv, s, POOL_FULL, cell, e) || (c->swa.v && !link_ok(kv, s, POOL_SWA, cell, e)))
        return false;
    if (mark_at(kv, POOL_FULL, c->full.v, cell)->chain != s->tail ||
        (c->swa.v && mark_at(kv, POOL_SWA, c->swa.v, cell)->chain != s->tail))
        return err_set(e, ERR_INVARIANT, "I15 cell %d: its chain is not the one that was committed",
                       cell);
    return true;
}

static bool check_tail(const struct view *v)
{
    if (tail_ok(v->kv, v->q->seq, v->e))
        return true;
    /* the rule's number stays in front */
    char what[sizeof v->e->msg];
    memcpy(what, v->e->msg, sizeof what);
    size_t n = strcspn(what, " ");
    return FAIL(v, "%.*s %s request %d, prefix_len %d:%.400s", (int)n, what,
                plan_mode_name(v->p->mode), v->b, v->p->prefix_len[v->b], what + n);
}

/* STRICT: every committed cell in [lo, hi), read through the table. */
static bool check_chain(const struct view *v, const struct table *t, int lo, int hi)
{
    const struct kv *kv = v->kv;
    int final_ = v->q->seq->committed, P = kv->page_size;
    if (t->pool == POOL_DRAFT)
        return true;
    uint64_t before = MARK_ROOT;
    for (int c = lo; c < min_int(hi, final_); c++) {
        int32_t page = t->pages[(size_t)v->b * (size_t)t->n_cols + (size_t)(c / P)];
        const struct mark *m = mark_at(kv, t->pool, page, c);
        if (m->pos != c)
            return FAIL(v, "I10 %s %s table request %d column %d: cell %d is not written",
                        plan_mode_name(v->p->mode), pool_name(t->pool), v->b, c / P, c);
        if ((c > lo || c == 0) && m->chain != mark_chain(before, m->token, m->pos))
            return FAIL(v, "I15 %s %s table request %d column %d: cell %d, token %d, does not "
                           "follow the cell before",
                        plan_mode_name(v->p->mode), pool_name(t->pool), v->b, c / P, c, m->token);
        before = m->chain;
    }
    return true;
}

bool check_sweep(const struct kv *kv, const struct seq *const *seqs, int n, struct err *e)
{
    if (!kv_check(kv, seqs, n, e))
        return false;
    for (int i = 0; i < n; i++) {
        const struct seq *s = seqs[i];
        for (int c = 0; c < s->committed; c++)
            if (!link_ok(kv, s, POOL_FULL, c, e) ||
                (kv->has_swa && c >= s->swa_lo && !link_ok(kv, s, POOL_SWA, c, e)))
                return false;
        if (!tail_ok(kv, s, e))
            return false;
    }
    return true;
}

bool check_draws(struct checker *c, uint64_t before, uint64_t after, const int *offset, int n,
                 bool sampled, struct err *e)
{
    if (c->level == CHECK_OFF)
        return true;
    struct err mine = {0};
    bool ok = after - before == (sampled ? (uint64_t)n : 0);
    if (!ok)
        err_set(&mine, ERR_INVARIANT, "I16 %d tokens were emitted, %llu uniforms counted", n,
                (unsigned long long)(after - before));
    for (int i = 0; i < n && ok; i++)
        if (offset[i] != i)
            ok = err_set(&mine, ERR_INVARIANT, "I16 token %d of the step was drawn with uniform %d",
                         i, offset[i]);
    return ok || violated(c, &mine, e);
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* The cell that row i of the request writes, from the request alone. */
static int own_cell(const struct view *v, int i)
{
    if (v->p->mode == PLAN_DRAFT)
        return v->q->draft[i].cell;
    return v->p->prefix_len[v->b] + i;
}

static inline int32_t slot_of(const struct view *v, enum pool_id pool, int cell)
{
    return seq_page(v, pool, cell >> v->kv->shift) << v->kv->shift | (cell & (v->kv->page_size - 1));
}

static bool bad_slot(const struct view *v, const struct table *t, int row, const char *what,
                     int32_t slot, int cell)
{
    const char *mode = plan_mode_name(v->p->mode);
    if (slot >= 0 && slot < GUARD_PAGES << v->kv->shift)
        return FAIL(v, "I8 %s %s table row %d: %s slot %d lies in the guard page", mode,
                    pool_name(t->pool), row, what, slot);
    return FAIL(v, "I4 %s %s table row %d: %s slot %d, cell %d is in slot %d", mode,
                pool_name(t->pool), row, what, slot, cell, slot_of(v, t->pool, cell));
}

/* `want` is the slot of the cell. */
static inline bool check_slot(const struct view *v, const struct table *t, int row,
                              const char *what, int32_t slot, int32_t want, int cell)
{
    return (slot == want && slot >= GUARD_PAGES << v->kv->shift) ||
           bad_slot(v, t, row, what, slot, cell);
}

static bool check_write(const struct view *v, const struct table *t, int i)
{
    int row = v->r0 + i, cell = own_cell(v, i);
    if (!t->write)
        return v->p->mode == PLAN_FROZEN ||
               FAIL(v, "I6 %s %s table: no written slots", plan_mode_name(v->p->mode),
                    pool_name(t->pool));
    if (v->p->mode == PLAN_FROZEN)
        return FAIL(v, "I6 %s %s table: a frozen pass must write nothing",
                    plan_mode_name(v->p->mode), pool_name(t->pool));
    int32_t want = v->q->tree ? v->slot[i] : slot_of(v, t->pool, cell);
    if (!check_slot(v, t, row, "written", t->write[row], want, cell))
        return false;
    int32_t page = t->write[row] >> v->kv->shift;
    if (v->kv->pool[t->pool].ref[page] != 1)
        return FAIL(v, "I6 %s %s table row %d: writes page %d, which has %d holders",
                    plan_mode_name(v->p->mode), pool_name(t->pool), row, page,
                    v->kv->pool[t->pool].ref[page]);
    return true;
}

/* Rows behind the tree's nodes repeat the root. */
static inline int node_of(const struct view *v, int i)
{
    return i < v->q->tree->n ? i : 0;
}

/* How many cells a row sees beyond the prefix: from the tree or the draft grid, not the plan. */
static inline int seen_by(const struct view *v, int i)
{
    return v->q->tree    ? v->q->tree->depth[node_of(v, i)] + 1
           : v->q->draft ? v->q->draft[i].n_seen
                         : 0;
}

/* Row i of the tree sees what its parent's row sees, which was checked, then its own cell: the usual
 * case, in which the window begins before the tree. One length for all rows, and no branch in it. */
static bool sees_as_parent(const struct view *v, const struct table *t, int i, int n)
{
    const int32_t *mine = t->expand + (size_t)(v->r0 + i) * (size_t)t->expand_w;
    const int32_t *up = mine + (v->q->tree->parent[i] - i) * t->expand_w;
    int32_t other = mine[n - 1] ^ v->slot[i];
    for (int k = 0; k < t->expand_w; k++)
        other |= k < n - 1 ? mine[k] ^ up[k] : 0;
    return other == 0 && v->slot[i] >= GUARD_PAGES << v->kv->shift;
}

/* The row's expand slots are those of the cells it sees, by depth, without the first `skip`. */
static bool check_expand(const struct view *v, const struct table *t, int i, int skip)
{
    int row = v->r0 + i, n = t->n_expand[row], prefix = v->p->prefix_len[v->b];
    const int32_t *expand = t->expand + (size_t)row * (size_t)t->expand_w;
    uint64_t left = !v->q->tree ? 0 : i < v->q->tree->n ? v->q->tree->anc[i] : UINT64_C(1) << i;
    if (n > 1 && left && t->lo[row] < t->hi[row] && sees_as_parent(v, t, i, n))
        return true;
    for (int k = 0; left && k < skip; k++)
        left &= left - 1;
    for (int k = 0; k < n; k++, left &= left - 1) {
        int node = v->q->tree ? __builtin_ctzll(left) : 0;
        int cell = v->q->tree ? prefix + node : v->q->draft[i].seen[skip + k];
        int32_t want = v->q->tree ? v->slot[node] : slot_of(v, t->pool, cell);
        if (!check_slot(v, t, row, "expand", expand[k], want, cell))
            return false;
    }
    return true;
}

static bool check_row(const struct view *v, const struct table *t, int i)
{
    int row = v->r0 + i, n = seen_by(v, i), n_expand = t->n_expand[row];
    int prefix = v->p->prefix_len[v->b], lo = t->lo[row], hi = t->hi[row];
    if (n_expand < 0 || n_expand > n || (n && n > t->expand_w))
        return FAIL(v, "I7 %s %s table row %d: %d expand cells in %d columns, %d nodes to see",
                    plan_mode_name(v->p->mode), pool_name(t->pool), row, n_expand, t->expand_w, n);
    /* the query's logical index: a linear row's own cell, a tree row's prefix + depth */
    bool linear = !v->q->tree && !v->q->draft;
    int query = v->p->mode == PLAN_FROZEN ? prefix - 1 : linear ? own_cell(v, i) : prefix + n - 1;
    int first = t->window && query - t->window + 1 > 0 ? query - t->window + 1 : 0;
    if (v->p->parts == 2 && first < prefix)
        first = prefix; /* what lies before is the other part's */
    int want_hi = linear ? query + 1 : prefix > first ? prefix : first;
    if (lo != first || hi != want_hi || hi + n_expand - 1 != query)
        return FAIL(
            v, "I12 %s %s table row %d: keys [%d, %d) + %d of the tree, expected [%d, %d) + %d",
            plan_mode_name(v->p->mode), pool_name(t->pool), row, lo, hi, n_expand, first, want_hi,
            query + 1 - want_hi);
    return check_expand(v, t, i, n - n_expand) && check_write(v, t, i);
}

/* The prefix part of a row: the cached keys that its window still reaches, nothing else. */
static bool check_prefix_row(const struct view *v, const struct table *t, int i)
{
    int row = v->r0 + i, prefix = v->p->prefix_len[v->b], query = own_cell(v, i);
    int first = t->window && query - t->window + 1 > 0 ? query - t->window + 1 : 0;
    int want = first < prefix ? first : prefix;
    return (t->lo[row] == want && t->hi[row] == prefix && !t->n_expand && !t->write) ||
           FAIL(v, "I12 %s %s prefix table row %d: keys [%d, %d), expected [%d, %d)",
                plan_mode_name(v->p->mode), pool_name(t->pool), row, t->lo[row], t->hi[row], want,
                prefix);
}

static bool check_identity(const struct view *v, const struct table *t, enum pool_id reads)
{
    const char *mode = plan_mode_name(v->p->mode);
    if (t->pool != reads)
        return FAIL(v, "I11 %s table request %d: made for the %s pool, its layers read the %s pool",
                    mode, v->b, pool_name(t->pool), pool_name(reads));
    if (t->epoch != v->kv->pool[reads].epoch)
        return FAIL(v, "I11 %s %s table request %d: epoch %u, the pool is at %u", mode,
                    pool_name(reads), v->b, t->epoch, v->kv->pool[reads].epoch);
    if (t->base != v->kv->mem[reads].base)
        return FAIL(v, "I11 %s %s table request %d: made for other memory than the pool's", mode,
                    pool_name(reads), v->b);
    return t->page_size == v->kv->page_size ||
           FAIL(v, "I11 %s %s table request %d: page size %d, the pool's is %d", mode,
                pool_name(reads), v->b, t->page_size, v->kv->page_size);
}

/* The columns that rows read, or as many of them as are not known. */
static bool check_reach(const struct view *v, const struct table *t, int known)
{
    int n = v->p->q_len[v->b], lo = INT32_MAX, hi = 0, P = v->kv->page_size;
    for (int r = v->r0; r < v->r0 + n; r++)
        if (t->lo[r] < t->hi[r]) {
            lo = min_int(lo, t->lo[r]);
            hi = max_int(hi, t->hi[r]);
        }
    return lo >= hi ||
           (check_columns(v, t, max_int(lo / P, known), (hi - 1) / P) &&
            (v->level < CHECK_STRICT || check_chain(v, t, lo, hi)));
}

/* Every table of the plan is held against the pool that its layers read. */
static bool check_table(struct view *v, const struct table *t, enum pool_id reads,
                        bool (*row)(const struct view *v, const struct table *t, int i))
{
    if (!check_identity(v, t, reads))
        return false;
    int W = t->pool == POOL_SWA && v->p->mode != PLAN_FROZEN ? v->kv->window : t->window;
    if (t->window != W || (t->pool == POOL_FULL && t->window))
        return FAIL(v, "I12 %s %s table: window %d, the layers' is %d", plan_mode_name(v->p->mode),
                    pool_name(t->pool), t->window, t->pool == POOL_FULL ? 0 : W);
    for (int i = 0; v->q->tree && i < v->q->n; i++)
        v->slot[i] = slot_of(v, t->pool, v->p->prefix_len[v->b] + i);
    for (int i = 0; i < v->p->q_len[v->b]; i++)
        if (!row(v, t, i))
            return false;
    return check_reach(v, t, known_columns(v, t));
}

/* ---- what a row is, pools aside -------------------------------------------------------------- */

static bool check_tree_row(const struct view *v, int i)
{
    const struct plan *p = v->p;
    int row = v->r0 + i, prefix = p->prefix_len[v->b];
    int node = v->q->tree ? node_of(v, i) : 0;
    int pos = v->q->tree ? prefix + v->q->tree->depth[node] : prefix - 1 + v->q->draft[i].depth;
    int up = !v->q->tree ? v->q->draft[i].up : node ? v->r0 + v->q->tree->parent[node] : -1;
    if (p->pos[row] != pos)
        return FAIL(v, "I13 %s row %d: position %d, its depth says %d", plan_mode_name(p->mode),
                    row, p->pos[row], pos);
    return p->up[row] == up || FAIL(v, "I13 %s row %d: follows row %d, its parent is row %d",
                                    plan_mode_name(p->mode), row, p->up[row], up);
}

static bool check_line_row(const struct view *v, int i)
{
    const struct plan *p = v->p;
    bool frozen = p->mode == PLAN_FROZEN;
    int row = v->r0 + i, pos = p->prefix_len[v->b] + (frozen ? -1 : i);
    int up = i && !frozen ? row - 1 : -1;
    if (p->pos[row] != pos)
        return FAIL(v, "I9 %s row %d: position %d, expected %d", plan_mode_name(p->mode), row,
                    p->pos[row], pos);
    return p->up[row] == up || FAIL(v, "I9 %s row %d: follows row %d, expected %d",
                                    plan_mode_name(p->mode), row, p->up[row], up);
}

static bool check_what(const struct view *v, int i)
{
    const struct plan *p = v->p;
    int row = v->r0 + i;
    int32_t token = v->q->tree ? v->q->tree->token[node_of(v, i)] : v->q->token[i];
    if (p->req[row] != v->b)
        return FAIL(v, "I9 %s row %d: belongs to request %d, says %d", plan_mode_name(p->mode), row,
                    v->b, p->req[row]);
    if (p->token[row] != token)
        return FAIL(v, "I9 %s row %d: token %d, the request's is %d", plan_mode_name(p->mode), row,
                    p->token[row], token);
    return v->q->tree || v->q->draft ? check_tree_row(v, i) : check_line_row(v, i);
}

/* ---- everything ------------------------------------------------------------------------------ */

static bool check_request(struct view *v)
{
    const struct plan *p = v->p;
    if (!check_extents(v) || !check_lag(v))
        return false;
    if (!draft_mode(p->mode) && !check_tail(v))
        return false;
    if (v->q->tree && !tree_ok(v->q->tree, v->e))
        return err_prefix(v->e, "I13 %s request %d", plan_mode_name(p->mode), v->b);
    if (v->q->tree && (v->q->tree->n > v->q->n || v->q->n > TREE_MAX))
        return FAIL(v, "I13 %s request %d: %d rows for a tree of %d nodes", plan_mode_name(p->mode),
                    v->b, v->q->n, v->q->tree->n);
    for (int i = 0; i < p->q_len[v->b]; i++)
        if (!check_what(v, i))
            return false;
    bool two = p->parts == 2;
    return (!p->use_full || check_table(v, &p->full.t, POOL_FULL, check_row)) &&
           (!two || check_table(v, &p->full_prefix.t, POOL_FULL, check_prefix_row)) &&
           (!p->use_swa || check_table(v, &p->swa.t, POOL_SWA, check_row)) &&
           (!two || !p->use_swa || check_table(v, &p->swa_prefix.t, POOL_SWA, check_prefix_row)) &&
           (!p->use_draft || check_table(v, &p->draft.t, POOL_DRAFT, check_row)) &&
           (!p->use_draft_win || check_table(v, &p->draft_win.t, POOL_DRAFT, check_row));
}

/* All that does not belong to one request. */
static bool check_whole(const struct plan *p, const struct kv *kv, struct err *e)
{
    const struct table *used[] = {p->use_full ? &p->full.t : NULL, p->use_swa ? &p->swa.t : NULL,
                                  p->use_draft ? &p->draft.t : NULL,
                                  p->use_draft_win ? &p->draft_win.t : NULL};
    if (!check_pools(kv, e))
        return false;
    for (int i = 0; i < 4; i++)
        if (used[i] && !check_zones(p, used[i], e))
            return false;
    if (p->row0[0] != 0 || p->row0[p->n_req] != p->n_rows)
        return err_set(e, ERR_INVARIANT, "I9 %s: requests have rows %d to %d, the plan 0 to %d",
                       plan_mode_name(p->mode), p->row0[0], p->row0[p->n_req], p->n_rows);
    return true;
}

static bool check_all(const struct checker *c, const struct plan *p, const struct kv *kv,
                      const struct plan_req *req, struct err *e)
{
    if (!check_whole(p, kv, e))
        return false;
    for (int b = 0; b < p->n_req; b++) {
        struct view v = {.level = c->level, .p = p, .kv = kv, .q = &req[b], .b = b,
                         .r0 = p->row0[b], .e = e};
        if (!check_request(&v))
            return false;
    }
    return true;
}

/* The verdict on a plan, and what it took. */
static bool conclude(struct checker *c, bool ok, uint64_t start, const struct err *mine,
                     struct err *e)
{
    c->checks++;
    if (!ok)
        violated(c, mine, e);
    c->ns += clock_ns() - start;
    return ok;
}

bool check_plan(struct checker *c, const struct plan *p, const struct kv *kv,
                const struct plan_req *req, struct err *e)
{
    uint64_t start = clock_ns();
    struct err mine = {0};
    return c->level == CHECK_OFF || conclude(c, check_all(c, p, kv, req, &mine), start, &mine, e);
}

bool check_filled(struct checker *c, const struct plan *p, const struct kv *kv,
                  const struct plan_req *req, struct err *e)
{
    uint64_t start = clock_ns();
    struct err mine = {0};
    return c->level == CHECK_OFF ||
           conclude(c, check_all(c, p, kv, req, &mine) ||
                           err_prefix(&mine, "I17 what the device filled in"), start, &mine, e);
}

bool check_list(struct checker *c, const struct plan *p, const struct kv *kv,
                 const struct plan_req *req, struct err *e)
{
    if (c->level == CHECK_OFF || !p->list)
        return true;
    uint64_t start = clock_ns();
    struct err mine = {0};
    struct view v = {.level = CHECK_ON, .p = p, .kv = kv, .q = req, .e = &mine};
    bool ok = (!p->use_full || check_reach(&v, &p->full.t, 0)) &&
              (!p->use_swa || check_reach(&v, &p->swa.t, 0)) &&
              (!p->use_draft || check_reach(&v, &p->draft.t, 0)) &&
              (!p->use_draft_win || check_reach(&v, &p->draft_win.t, 0));
    if (!ok)
        violated(c, &mine, e);
    c->ns += clock_ns() - start;
    return ok;
}
