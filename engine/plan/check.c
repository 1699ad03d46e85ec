/* check.c - see check.h. */
#include "engine/plan/check.h"

#include "engine/plan/check_view.h"

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
    "I18 the tree part of a row is its ancestors and itself, or its block",
    "I19 accepted rows are a path of the tree from its root",
    "I20 the draft's last cell pairs with the token that follows",
};

int check_rule_count(void)
{
    return (int)(LEN(rules));
}

const char *check_rule(int i)
{
    return rules[i];
}

bool check_rule_swept(int i)
{
    static const bool swept[] = {[0] = true, [1] = true, [2] = true, [3] = true, [4] = true,
                                 [7] = true, [9] = true, [14] = true};
    return (size_t)i < sizeof swept && swept[i];
}

void checker_start(struct checker *c)
{
    c->checks = c->violations = c->unchecked = 0;
}

static bool record_violation(struct checker *c, const struct err *mine, struct err *e)
{
    c->violations++;
    if (e)
        *e = *mine;
    return false;
}

/* ---- red zones behind the arrays ------------------------------------------------------------- */

#define RED4(w) w, w, w, w
#define RED16(w) RED4(w), RED4(w), RED4(w), RED4(w)

/* The red zone behind an array of (rows, width), of rows or of requests. */
static bool check_zone(const struct plan *p, const struct table *t, const char *name, bool of_rows,
                       const int32_t *array, int rows, int width, struct err *e)
{
    if (!array)
        return true;
    static const int32_t red[RED_ZONE] = {RED16(RED_WORD)};
    const int32_t *zone = array + (size_t)rows * (size_t)width;
    if (!memcmp(zone, red, sizeof red))
        return true;
    int i = 0;
    while (zone[i] == RED_WORD)
        i++;
    struct violation at = differs(in_table(p, 7, t->pool), zone[i], RED_WORD);
    *(of_rows ? &at.row : &at.request) = max_int(0, rows - 1);
    at.column = width + i;
    return fault_set(e, at, "%d was stored behind the %d columns of %s", zone[i], width, name);
}

static bool check_zones(const struct plan *p, const struct table *t, struct err *e)
{
    int n = p->n_rows;
    int cols = p->list ? p->list->cols : t->n_cols;
    if (p->list && t->pages != p->list->page[t->pool])
        return fault_set(e, in_table(p, 11, t->pool), "its pages lie in another pool's list");
    return check_zone(p, t, "pages", false, t->pages, p->n_req, cols, e) &&
           check_zone(p, t, "lo", true, t->lo, n, 1, e) &&
           check_zone(p, t, "hi", true, t->hi, n, 1, e) &&
           check_zone(p, t, "n_expand", true, t->n_expand, n, 1, e) &&
           check_zone(p, t, "expand", true, t->expand, n, t->expand_w, e) &&
           check_zone(p, t, "write", true, t->write, n, 1, e);
}

/* ---- extents --------------------------------------------------------------------------------- */

static bool check_extents(const struct view *v)
{
    const struct plan *p = v->p;
    const struct seq *s = v->q->seq;
    int prefix = p->prefix_len[v->b], n = p->q_len[v->b], kv = p->kv_len[v->b];
    int final_ = plan_mode_drafts(p->mode) ? s->drafted : s->committed;
    if (!SAME(v, in_request(v, 9), prefix, final_,
              "prefix_len %d, the sequence has %d final cells", prefix, final_))
        return false;
    int rows = p->row0[v->b + 1] - p->row0[v->b];
    if (n != v->q->n || rows != n)
        return FAIL(v, differs(in_request(v, 9), n != v->q->n ? n : rows, v->q->n),
                    "q_len %d, rows %d to %d, tokens %d",
                    n, p->row0[v->b], p->row0[v->b + 1], v->q->n);
    if (p->mode == PLAN_DRAFT)
        return kv >= prefix || FAIL(v, differs(in_request(v, 9), kv, prefix),
                                    "kv_len %d below prefix_len %d", kv, prefix);
    if (p->mode == PLAN_FROZEN)
        return SAME(v, in_request(v, 9), kv, prefix, "kv_len %d, expected prefix_len %d", kv,
                    prefix);
    return SAME(v, in_request(v, 9), kv, prefix + n,
                "kv_len %d, expected prefix_len %d + q_len %d", kv, prefix, n);
}

/* ---- the draft's lag ------------------------------------------------------------------------- */

static bool check_lag(const struct view *v)
{
    const struct seq *s = v->q->seq;
    bool grows = v->p->mode == PLAN_DRAFT || v->p->mode == PLAN_BLOCK;
    if (grows && s->drafted != s->committed)
        return FAIL(v, differs(in_request(v, 14), s->drafted, s->committed),
                    "%d draft slots for %d committed tokens", s->drafted, s->committed);
    if (v->p->mode == PLAN_DRAFT_EXTEND && v->p->kv_len[v->b] > s->committed + v->q->ahead)
        return FAIL(v, differs(in_request(v, 14), v->p->kv_len[v->b], s->committed + v->q->ahead),
                    "slots to %d, but %d committed tokens", v->p->kv_len[v->b],
                    s->committed + v->q->ahead);
    if (v->p->mode != PLAN_DRAFT_EXTEND || v->q->ahead || s->drafted == 0 || s->next < 0 ||
        s->drafted >= s->committed)
        return true;
    int32_t page = s->col[s->drafted / v->kv->page_size].full.v;
    int32_t token = mark_at(v->kv, POOL_FULL, page, s->drafted)->token;
    return s->next == token ||
           FAIL(v, differs(with_cell(in_request(v, 20), s->drafted - 1), s->next, token),
                "draft cell %d was computed with token %d, the sequence goes on with %d",
                s->drafted - 1, s->next, token);
}

/* ---- pages ----------------------------------------------------------------------------------- */

static bool bad_swa_page(const struct view *v, const struct table *t, int c, int32_t page)
{
    int32_t full = seq_page(v, POOL_FULL, c);
    struct violation at = with_page(in_column(v, 4, t, c), page);
    if (page < GUARD_PAGES || page >= v->kv->pool[POOL_SWA].total)
        return FAIL(v, at, "page %d is outside the swa pool of %d", page,
                    v->kv->pool[POOL_SWA].total);
    if (page == v->kv->swa_of[full])
        return FAIL(v, differs(at, v->kv->full_of[page], full),
                    "holds page %d, which maps back to full page %d, not to %d", page,
                    v->kv->full_of[page], full);
    return FAIL(v, differs(at, page, v->kv->swa_of[full]),
                "holds page %d, but full page %d maps to swa page %d", page, full,
                v->kv->swa_of[full]);
}

static bool bad_column(const struct view *v, const struct table *t, int c, int32_t page,
                       int32_t own)
{
    if (page == 0 && own == 0)
        return FAIL(v, in_column(v, 5, t, c), "a visible page is not held");
    struct violation at = with_page(in_column(v, 10, t, c), page);
    if (page == own)
        return FAIL(v, at, "the sequence holds page %d, which is no live page of the pool", page);
    return FAIL(v, differs(at, page, own), "page %d, the sequence holds %d", page, own);
}

/* Columns [first, last] of request b must be live pages of the sequence, with ids of the table's
 * pool. */
static bool check_columns(const struct view *v, const struct table *t, int first, int last)
{
    const struct kv *kv = v->kv;
    const struct pool *pool = &kv->pool[t->pool];
    if (last >= t->n_cols)
        return FAIL(v, in_column(v, 7, t, -1), "column %d needed, %d columns", last, t->n_cols);
    const int32_t *pages = t->pages + (size_t)v->b * (size_t)t->n_cols;
    for (int c = first; c <= last; c++) {
        int32_t page = pages[c], own = seq_page(v, t->pool, c);
        bool inside = page >= GUARD_PAGES && page < pool->total;
        if (!page && !own)
            return bad_column(v, t, c, page, own);
        if (t->pool == POOL_SWA) {
            int32_t full = seq_page(v, POOL_FULL, c);
            if (!inside || kv->swa_of[full] != page || kv->full_of[page] != full)
                return bad_swa_page(v, t, c, page);
        }
        if (page != own || !inside || !pool->ref[page])
            return bad_column(v, t, c, page, own);
    }
    return true;
}

/* How many leading columns of the plan's list need no check: they were checked in that list and
 * have not changed since. */
static int checked_columns(const struct view *v, const struct table *t)
{
    if (v->level >= CHECK_STRICT || !v->p->list)
        return 0;
    return list_checked(v->p->list, v->q->seq, side_of(t->pool));
}

/* ---- marks ----------------------------------------------------------------------------------- */

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
            return FAIL(v, with_cell(in_column(v, 10, t, c / P), c), "cell %d is not written", c);
        if ((c > lo || c == 0) && m->chain != mark_chain(before, m->token, m->pos))
            return FAIL(v, with_cell(in_column(v, 15, t, c / P), c),
                        "cell %d, token %d, does not follow the cell before", c, m->token);
        before = m->chain;
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
        fault_set(&mine, differs(fault_at(16), (int64_t)(after - before), sampled ? n : 0),
                  "%d tokens were emitted, %llu uniforms counted", n,
                  (unsigned long long)(after - before));
    for (int i = 0; i < n && ok; i++)
        if (offset[i] != i)
            ok = fault_set(&mine, differs(fault_at(16), offset[i], i),
                           "token %d of the step was drawn with uniform %d", i, offset[i]);
    return ok || record_violation(c, &mine, e);
}

bool check_accepted(struct checker *c, const struct tree *t, const int *path, int n, struct err *e)
{
    if (c->level == CHECK_OFF)
        return true;
    struct err mine = {0};
    bool ok = (n >= 1 && n <= t->n) ||
              fault_set(&mine, differs(fault_at(19), n, t->n), "%d rows of %d were accepted", n,
                        t->n);
    for (int i = 0; i < n && ok; i++)
        if (path[i] < 0 || path[i] >= t->n || t->parent[path[i]] != (i ? path[i - 1] : -1)) {
            struct violation at = fault_at(19);
            at.row = path[i];
            ok = i ? fault_set(&mine, at, "accepted after row %d, which is not its parent",
                               path[i - 1])
                   : fault_set(&mine, at, "accepted first of %d rows, expected the root, row 0",
                               t->n);
        }
    return ok || record_violation(c, &mine, e);
}

/* ---- tables ---------------------------------------------------------------------------------- */

static bool check_table_identity(const struct view *v, const struct table *t, enum pool_id reads)
{
    struct violation at = in_column(v, 11, t, -1);
    unsigned epoch = v->kv->pool[reads].epoch;
    if (t->pool != reads)
        return FAIL(v, at, "made for the %s pool, its layers read the %s pool", pool_name(t->pool),
                    pool_name(reads));
    if (!SAME(v, at, t->epoch, epoch, "epoch %u, the pool is at %u", t->epoch, epoch))
        return false;
    if (t->base != v->kv->mem[reads].base)
        return FAIL(v, at, "made for other memory than the pool's");
    return SAME(v, at, t->page_size, v->kv->page_size, "page size %d, the pool's is %d",
                t->page_size, v->kv->page_size);
}

/* The columns that the request's rows read, from column `checked` on. */
static bool check_read_columns(const struct view *v, const struct table *t, int checked)
{
    int n = v->p->q_len[v->b], lo = INT32_MAX, hi = 0, P = v->kv->page_size;
    for (int r = v->r0; r < v->r0 + n; r++)
        if (t->lo[r] < t->hi[r]) {
            lo = min_int(lo, t->lo[r]);
            hi = max_int(hi, t->hi[r]);
        }
    return lo >= hi ||
           (check_columns(v, t, max_int(lo / P, checked), (hi - 1) / P) &&
            (v->level < CHECK_STRICT || check_chain(v, t, lo, hi)));
}

/* The window of the layers that read a table. A draft's sliding layers, and those that read the
 * target's cells, have a window of their own, which is no wider than that of all draft layers. */
static int layers_window(const struct view *v, enum table_id id, const struct table *t)
{
    int all = v->kv->draft_window;
    switch (id) {
    case TABLE_SWA: return v->p->mode == PLAN_FROZEN ? t->window : v->kv->window;
    case TABLE_DRAFT: return all;
    case TABLE_DRAFT_SWA: return all && (t->window < 1 || t->window > all) ? all : t->window;
    default: return 0;
    }
}

/* Checks a table against the pool that its layers read. */
static bool check_table(struct view *v, enum table_id id, const struct table *t,
                        bool (*rows)(const struct view *v, const struct table *t))
{
    if (!check_table_identity(v, t, table_pool(id)))
        return false;
    int W = layers_window(v, id, t);
    if (!SAME(v, in_table(v->p, 12, t->pool), t->window, W, "window %d, the layers' is %d",
              t->window, W))
        return false;
    if (v->p->list && (t->n_cols > v->p->list->cols ||
                       t->n_cols < div_up(v->p->kv_len[v->b], v->kv->page_size)))
        return FAIL(v, in_column(v, 7, t, -1), "%d columns of a list of %d, cells to %d", t->n_cols,
                    v->p->list->cols, v->p->kv_len[v->b]);
    for (int i = 0; v->q->tree && i < v->q->n; i++)
        v->slot[i] = slot_of(v, t->pool, v->p->prefix_len[v->b] + i);
    return rows(v, t) && check_read_columns(v, t, checked_columns(v, t));
}

/* ---- tokens, positions and parents of rows --------------------------------------------------- */

static bool check_tree_row(const struct view *v, int i)
{
    const struct plan *p = v->p;
    int row = v->r0 + i, prefix = p->prefix_len[v->b];
    int node = v->q->tree ? node_of(v->q->tree, i) : 0;
    int pos = v->q->tree ? prefix + v->q->tree->depth[node] : prefix - 1 + v->q->draft[i].depth;
    int up = !v->q->tree ? v->q->draft[i].up : node ? v->r0 + v->q->tree->parent[node] : -1;
    return SAME(v, in_row(v, 13, row), p->pos[row], pos, "position %d, its depth says %d",
                p->pos[row], pos) &&
           SAME(v, in_row(v, 13, row), p->up[row], up, "follows row %d, its parent is row %d",
                p->up[row], up);
}

static bool check_line_row(const struct view *v, int i)
{
    const struct plan *p = v->p;
    bool frozen = p->mode == PLAN_FROZEN, alone = frozen || p->mode == PLAN_BLOCK;
    int row = v->r0 + i, pos = p->prefix_len[v->b] + (frozen ? -1 : i);
    int up = i && !alone ? row - 1 : -1;
    return SAME(v, in_row(v, 9, row), p->pos[row], pos, "position %d, expected %d", p->pos[row],
                pos) &&
           SAME(v, in_row(v, 9, row), p->up[row], up, "follows row %d, expected %d", p->up[row],
                up);
}

static bool check_row_identity(const struct view *v, int i)
{
    const struct plan *p = v->p;
    int row = v->r0 + i;
    int32_t token = v->q->tree ? v->q->tree->token[node_of(v->q->tree, i)] : v->q->token[i];
    return SAME(v, in_row(v, 9, row), p->req[row], v->b, "belongs to request %d, says %d", v->b,
                p->req[row]) &&
           SAME(v, in_row(v, 9, row), p->token[row], token, "token %d, the request's is %d",
                p->token[row], token) &&
           (v->q->tree || v->q->draft ? check_tree_row(v, i) : check_line_row(v, i));
}

/* ---- everything ------------------------------------------------------------------------------ */

static bool check_request(struct view *v)
{
    const struct plan *p = v->p;
    if (!check_extents(v) || !check_lag(v))
        return false;
    if (!plan_mode_drafts(p->mode) && !check_tail(v->kv, v->q->seq, in_request(v, 0), v->e))
        return false;
    struct err why;
    if (v->q->tree && !tree_ok(v->q->tree, &why))
        return FAIL(v, in_request(v, 13), "%s", why.msg);
    if (v->q->tree && (v->q->tree->n > v->q->n || v->q->n > TREE_MAX))
        return FAIL(v, in_request(v, 13), "%d rows for a tree of %d nodes", v->q->n, v->q->tree->n);
    for (int i = 0; i < p->q_len[v->b]; i++)
        if (!check_row_identity(v, i))
            return false;
    for (enum table_id i = 0; i < N_TABLES; i++)
        if ((p->table[i].used && !check_table(v, i, &p->table[i], check_rows)) ||
            (p->prefix[i].used && !check_table(v, i, &p->prefix[i], check_prefix_rows)))
            return false;
    return true;
}

/* The checks that do not belong to a single request. */
static bool check_whole(const struct plan *p, const struct kv *kv, struct err *e)
{
    if (!check_pools(kv, e))
        return false;
    for (int i = 0; i < N_TABLES; i++)
        if (p->table[i].used && !check_zones(p, &p->table[i], e))
            return false;
    if (p->row0[0] != 0 || p->row0[p->n_req] != p->n_rows)
        return fault_set(e, differs(in_plan(p, 9), p->row0[p->n_req], p->n_rows),
                         "requests have rows %d to %d, the plan 0 to %d", p->row0[0],
                         p->row0[p->n_req], p->n_rows);
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

/* Counts a violation and the time since `start`; returns ok. */
static bool end_check(struct checker *c, bool ok, uint64_t start, const struct err *mine,
                      struct err *e)
{
    if (!ok)
        record_violation(c, mine, e);
    c->ns += clock_ns() - start;
    return ok;
}

bool check_plan(struct checker *c, const struct plan *p, const struct kv *kv,
                const struct plan_req *req, struct err *e)
{
    uint64_t start = clock_ns();
    struct err mine = {0};
    if (c->level == CHECK_OFF) {
        c->unchecked++;
        return true;
    }
    c->checks++;
    return end_check(c, check_all(c, p, kv, req, &mine), start, &mine, e);
}

bool check_filled(struct checker *c, const struct plan *p, const struct kv *kv,
                  const struct plan_req *req, struct err *e)
{
    uint64_t start = clock_ns();
    struct err mine = {0};
    return c->level == CHECK_OFF ||
           end_check(c, check_all(c, p, kv, req, &mine) ||
                           fault_filled(&mine), start, &mine, e);
}

bool check_list(struct checker *c, const struct plan *p, const struct kv *kv,
                const struct plan_req *req, struct err *e)
{
    if (c->level == CHECK_OFF || !p->list)
        return true;
    uint64_t start = clock_ns();
    struct err mine = {0};
    struct view v = {.level = CHECK_ON, .p = p, .kv = kv, .q = req, .e = &mine};
    bool ok = true;
    for (int i = 0; i < N_TABLES && ok; i++)
        ok = !p->table[i].used || check_read_columns(&v, &p->table[i], 0);
    if (!ok)
        record_violation(c, &mine, e);
    c->ns += clock_ns() - start;
    return ok;
}
