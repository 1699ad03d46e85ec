/* head.c - the common part of the neural heads: buffers, guesses, and the growth of the draft tree.
 *
 * Tree: level 1 holds the topk best guesses; each later level extends the topk best nodes of the
 * one before by their topk best children; the nodes - 1 best candidates by summed log probability
 * are kept, in the order they were made (ties: the earlier candidate). After EAGLE-2 (Li et al.
 * 2024, arXiv 2406.16858).
 */
#include "engine/draft/head.h"

#include "kernels/tree_rules.h"

#define F32(n) ((size_t)(n) * sizeof(float))

/* ---- opening --------------------------------------------------------------------------------- */

struct drafter *head_open(const struct drafter_ops *ops, const struct drafter_setup *s,
                          struct err *e)
{
    struct head *d = xcalloc(1, ops->head->size);
    struct device dev = s->dev;
    d->base.head = d;
    d->ops = ops->head;
    d->dev = s->dev;
    d->w = s->w;
    d->target = s->target;
    d->max_rows = s->max_rows;
    if (draft_each(s->w, device_upload, &dev, e) && d->ops->open(d, s, e))
        return &d->base;
    head_close(&d->base);
    return NULL;
}

bool head_want(struct head *d, kbuf *field, size_t bytes, struct err *e)
{
    if (!bytes)
        return true;
    CHECK(d->n_own < HEAD_OWNED);
    d->own[d->n_own++] = field;
    *field = d->dev.k->alloc(d->dev.d, bytes, "draft buffers", e);
    return field->p != NULL;
}

void head_widths(const struct draft *w, size_t *heads, size_t *ffn)
{
    *heads = *ffn = 0;
    for (int l = 0; l < w->cfg.n_layer; l++) {
        size_t n = (size_t)w->layer[l].n_head * (size_t)w->layer[l].head_dim;
        *heads = *heads > n ? *heads : n;
        *ffn = *ffn > (size_t)w->layer[l].ffn ? *ffn : (size_t)w->layer[l].ffn;
    }
}

bool head_buffers(struct head *d, struct err *e)
{
    d->max_heads = max_int(MAX_LANES, d->max_rows / (TREE_MAX / MAX_TOPK));
    size_t rows = (size_t)d->max_heads, n = (size_t)d->state_n;
    if (d->w->d2t) {
        size_t bytes = (size_t)d->w->draft_vocab * sizeof *d->w->d2t;
        if (!head_want(d, &d->d2t, bytes, e))
            return false;
        d->dev.k->put(d->dev.d, d->d2t, d->w->d2t, bytes);
    }
    return head_want(d, &d->taps.dst,
                F32((size_t)(d->max_rows + 1 + HEAD_BACKLOG) * (size_t)d->taps.stride), e) &&
           head_want(d, &d->state, F32(rows * n), e) &&
           head_want(d, &d->inputs, F32(rows * n), e) &&
           head_want(d, &d->root, F32(MAX_LANES * n), e) &&
           head_want(d, &d->idx, (size_t)max_int(d->max_rows, d->max_heads) * sizeof(int32_t), e) &&
           head_want(d, &d->last, MAX_LANES * sizeof(int32_t), e) &&
           head_want(d, &d->logits, F32(rows * (size_t)d->w->draft_vocab), e) &&
           head_want(d, &d->ids, rows * MAX_TOPK * sizeof(int32_t), e) &&
           head_want(d, &d->parents, d->w->edges ? rows * sizeof(int32_t) : 0, e) &&
           head_want(d, &d->logp, F32(rows * MAX_TOPK), e);
}

void head_close(struct drafter *base)
{
    struct head *d = base->head;
    for (int i = 0; i < d->n_own; i++)
        d->dev.k->release(d->dev.d, *d->own[i]);
    for (int l = 0; l < d->n_cells; l++) {
        d->dev.k->release(d->dev.d, d->cells[l].k);
        d->dev.k->release(d->dev.d, d->cells[l].v);
    }
    FREE(d->cells, d);
}

enum plan_mode head_extend_mode(const struct head *d)
{
    return drafter_owns_kv(&d->base) ? PLAN_DRAFT_EXTEND : PLAN_FROZEN;
}

/* ---- captured states ------------------------------------------------------------------------- */

const struct taps *drafter_taps(const struct drafter *d)
{
    return d && d->head ? &d->head->taps : NULL;
}
int head_tap_floats(const struct head *d)
{
    return d->taps.stride;
}
int head_spare_row(const struct head *d)
{
    return d->max_rows;
}
int head_backlog_row(const struct head *d, int i)
{
    return d->max_rows + 1 + i;
}
static kbuf tap_row(struct head *d, int row)
{
    return kbuf_at(d->taps.dst, F32((size_t)row * (size_t)d->taps.stride), F32(d->taps.stride));
}
void head_get_tap(struct head *d, int row, float *out)
{
    d->dev.k->get(d->dev.d, out, tap_row(d, row), F32(d->taps.stride));
}
void head_put_tap(struct head *d, int row, const float *in)
{
    d->dev.k->put(d->dev.d, tap_row(d, row), in, F32(d->taps.stride));
}

void head_copy_tap(struct head *d, int from, int to)
{
    int n = d->taps.stride;
    d->dev.k->rows(d->dev.d, &(struct k_rows){.rows = 1, .n = n, .src_stride = n, .dst_stride = n,
                                              .src = tap_row(d, from), .dst = tap_row(d, to)});
}

/* ---- for golden tests and for the cache ------------------------------------------------------ */

int head_vocab(const struct head *d)
{
    return d->w->draft_vocab;
}
void head_logits(struct head *d, int b, float *out)
{
    size_t n = F32(d->w->draft_vocab);
    d->dev.k->get(d->dev.d, out, kbuf_at(d->logits, (size_t)b * n, n), n);
}
void head_states(struct head *d, int rows, float *out)
{
    size_t n = F32(mul64(rows, d->state_n));
    d->dev.k->get(d->dev.d, out, kbuf_at(d->out, 0, n), n);
}
void head_move(struct head *d, int pairs, kbuf src, kbuf dst)
{
    CHECK(d->n_cells || !pairs);
    if (d->n_cells)
        d->dev.k->move(d->dev.d, &(struct k_move){
            .pairs = pairs, .n_pools = 1,
            .pool = {{.src = src, .dst = dst, .n_layers = d->n_cells, .cells = d->cells}}});
}

/* ---- moving rows ----------------------------------------------------------------------------- */

void head_gather(struct head *d, kbuf src, kbuf from, int rows, int n, kbuf dst)
{
    d->dev.k->rows(d->dev.d, &(struct k_rows){.rows = rows, .n = n, .src_stride = n,
                                              .dst_stride = n, .src = src, .dst = dst,
                                              .idx = from});
}

static kbuf upload_ints(struct head *d, kbuf to, const int32_t *v, int n)
{
    d->dev.k->put(d->dev.d, to, v, (size_t)n * sizeof *v);
    return to;
}

kbuf head_rows(struct head *d, const int32_t *from, int rows)
{
    return upload_ints(d, d->idx, from, rows);
}

/* Row i of src becomes row to[i] of dst, for few rows. */
static void scatter(struct head *d, kbuf src, const int32_t *to, int rows, kbuf dst)
{
    int n = d->state_n;
    for (int i = 0; i < rows; i++)
        d->dev.k->rows(d->dev.d, &(struct k_rows){
            .rows = 1, .n = n, .src_stride = n, .dst_stride = n,
            .src = kbuf_at(src, F32(mul64(i, n)), F32(n)),
            .dst = kbuf_at(dst, F32(mul64(to[i], n)), F32(n))});
}

kbuf head_root(struct head *d, int slot)
{
    return kbuf_at(d->root, F32(mul64(slot, d->state_n)), F32(d->state_n));
}

void head_copy_slot(struct head *d, int from, int to)
{
    const int32_t slot = to;
    scatter(d, head_root(d, from), &slot, 1, d->root);
}

/* ---- guesses --------------------------------------------------------------------------------- */

struct k_topk head_best(const struct head *d, int n, int topk, kbuf ids, kbuf logp)
{
    return (struct k_topk){.rows = n, .n = d->w->draft_vocab, .k = topk, .logits = d->logits,
                           .ids = ids, .logp = logp};
}

void head_topk(struct head *d, int n, int topk, kbuf ids, kbuf logp)
{
    struct k_topk a = head_best(d, n, topk, ids, logp);
    d->dev.k->topk(d->dev.d, &a);
}

/* The guesses of n rows from the device: target ids and log probabilities. */
static void get_guesses(struct head *d, int n, int topk, int32_t *ids, float *logp)
{
    d->dev.k->get(d->dev.d, ids, d->ids, (size_t)n * (size_t)topk * sizeof *ids);
    d->dev.k->get(d->dev.d, logp, d->logp, F32(mul64(n, topk)));
    for (int i = 0; i < n * topk; i++)
        ids[i] = tree_target_id(d->w->d2t, d->w->draft_vocab, ids[i]);
}

/* Best topk guesses of n rows of logits. */
static void guesses(struct head *d, int n, int topk, int32_t *ids, float *logp)
{
    head_topk(d, n, topk, d->ids, d->logp);
    get_guesses(d, n, topk, ids, logp);
}

void head_no_guesses(struct guess *g)
{
    *g = (struct guess){.n = MAX_TOPK};
    for (int i = 0; i < MAX_TOPK; i++)
        g->token[i] = -1;
}

void head_extend(struct head *d, struct pass *ps, const int32_t *from, const int32_t *slot,
                 int topk, struct guess *out)
{
    const struct plan *p = &ps->plan[head_extend_mode(d)];
    CHECK(p->n_rows <= d->max_rows && p->n_req <= MAX_LANES && topk <= MAX_TOPK);
    if (p->n_rows == 0)
        return;
    int32_t ids[MAX_LANES * MAX_TOPK];
    float logp[MAX_LANES * MAX_TOPK];
    int32_t last[MAX_LANES];
    for (int b = 0; b < p->n_req; b++)
        last[b] = p->row0[b + 1] - 1;
    topk = min_int(topk, d->w->draft_vocab);
    d->ops->extend(d, &ps->kp, p->n_rows, head_rows(d, from, p->n_rows),
                   upload_ints(d, d->last, last, p->n_req), p->n_req, d->state);
    if (!draft_guesses_next(d->w)) {
        for (int b = 0; b < p->n_req; b++)
            head_no_guesses(&out[b]);
        return;
    }
    scatter(d, d->state, slot, p->n_req, d->root);
    guesses(d, p->n_req, topk, ids, logp);
    for (int b = 0; b < p->n_req; b++) {
        out[b].n = topk;
        memcpy(out[b].token, ids + mul64(b, topk), (size_t)topk * sizeof *ids);
        memcpy(out[b].logp, logp + mul64(b, topk), F32(topk));
    }
}

/* ---- growing a tree -------------------------------------------------------------------------- */

/* One lane's candidates, and the front that the next level extends. */
struct growth {
    struct tree_growth c;
    void *mem; /* of c */
    int n_front;
    int row0; /* the lane's first row in the pass that guessed the front */
};

static void growth_init(struct growth *g, int topk, int steps)
{
    size_t n = (size_t)tree_candidates(topk, steps), front = (size_t)steps * (size_t)topk;
    int32_t *i32 = g->mem = xmalloc((5 * n + front) * 4);
    float *f32 = (float *)(i32 + 3 * n + front);
    g->c = (struct tree_growth){.topk = topk, .steps = steps, .token = i32, .parent = i32 + n,
                                .cell = i32 + 2 * n, .front = i32 + 3 * n, .logp = f32,
                                .score = f32 + n};
}

/* Level 1: the lane's guesses, which may be fewer than topk. */
static void grow_first_level(struct growth *g, const struct guess *guess)
{
    int32_t ids[MAX_TOPK];
    float logp[MAX_TOPK];
    for (int k = 0; k < g->c.topk; k++) {
        ids[k] = k < guess->n ? guess->token[k] : -1;
        logp[k] = k < guess->n ? guess->logp[k] : 0;
    }
    g->n_front = tree_grow_level(&g->c, 1, ids, logp, NULL, 0);
}

/* The candidate that row k of a level's pass extends. */
static int extended(const struct growth *g, int level, int k)
{
    return g->c.front[(level - 2) * g->c.topk + k];
}

/* Row k of the plan of a level. base: the draft's cells before the scratch ones. */
static struct draft_row draft_row_of(const struct growth *g, int level, int k, int base)
{
    const struct tree_growth *c = &g->c;
    struct draft_row r = {.depth = level - 1, .up = -1};
    r.n_seen = tree_row_cells(c->front + mul64(level - 2, c->topk), c->parent, c->cell, c->topk,
                              level - 1, k, r.seen);
    for (int i = 0; i < r.n_seen; i++)
        r.seen[i] += base;
    r.cell = r.seen[r.n_seen - 1];
    return r;
}

/* One level's rows over all lanes that go this deep. */
struct head_rows {
    struct plan_req req[MAX_LANES];
    int n_req, n;
    struct draft_row *row; /* (n) EAGLE3: where each state goes and what it sees */
    int32_t *token, *from; /* (n) */
};

static void collect(const struct head *d, struct drafting *lane, struct growth *g, int n,
                    int level, int topk, struct head_rows *r)
{
    size_t most = (size_t)n * MAX_TOPK;
    *r = (struct head_rows){.row = xmalloc(most * sizeof *r->row),
                            .token = xmalloc(most * sizeof *r->token),
                            .from = xmalloc(most * sizeof *r->from)};
    for (int b = 0; b < n; b++) {
        if (lane[b].max_depth < level)
            continue;
        r->req[r->n_req++] = (struct plan_req){.seq = lane[b].seq, .n = g[b].n_front,
                                               .token = r->token + r->n,
                                               .draft = drafter_owns_kv(&d->base) ? r->row + r->n
                                                   : NULL,
                                               .levels = lane[b].max_depth - 1, .topk = topk};
        for (int k = 0; k < g[b].n_front; k++, r->n++) {
            int i = extended(&g[b], level, k);
            r->row[r->n] = draft_row_of(&g[b], level, k, lane[b].seq->drafted);
            r->token[r->n] = g[b].c.token[i];
            r->from[r->n] = level == 2 ? lane[b].slot : g[b].row0 + tree_row_of(topk, i);
        }
    }
}

/* Adds the level's candidates of every lane and chooses the next fronts. ids, logp: (rows of the
 * pass, topk). */
static void add_level(struct drafting *lane, struct growth *g, int n, int level, int topk,
                      const int32_t *ids, const float *logp)
{
    for (int b = 0, row = 0; b < n; b++) {
        if (lane[b].max_depth < level)
            continue;
        g[b].row0 = row;
        row += g[b].n_front;
        g[b].n_front = tree_grow_level(&g[b].c, level, ids + mul64(g[b].row0, topk),
                                       logp + mul64(g[b].row0, topk), NULL, 0);
    }
}

static bool grow_level(struct head *d, struct pass *ps, struct drafting *lane, struct growth *g,
                       int n, int level, int topk, struct err *e)
{
    struct head_rows r;
    collect(d, lane, g, n, level, topk, &r);
    bool ok = r.n == 0 ||
              pass_prepare(ps, drafter_owns_kv(&d->base) ? PLAN_DRAFT : PLAN_FROZEN, r.req, r.n_req,
                           e);
    CHECK(r.n <= d->max_heads);
    if (ok) {
        FREED(free_at) int32_t *ids = xmalloc((size_t)(mul64(r.n, topk) + 1) * sizeof *ids);
        FREED(free_at) float *logp = xmalloc(F32(mul64(r.n, topk) + 1));
        if (r.n) {
            d->ops->level(d, &ps->kp, r.n, level == 2 ? d->root : d->state,
                          head_rows(d, r.from, r.n));
            guesses(d, r.n, topk, ids, logp);
        }
        add_level(lane, g, n, level, topk, ids, logp);
    }
    FREE(r.row, r.token, r.from);
    return ok;
}

/* ---- in blocks ------------------------------------------------------------------------------- */

int head_block_rows(const struct head *d, int depth)
{
    const struct draft *w = d->w;
    return w->causal[0] && w->causal[1] ? depth + 1 - w->block_depth : w->block;
}

int32_t head_block_token(const struct head *d, int i, int32_t pending)
{
    return i || d->w->block_depth > 1 ? d->w->mask : pending;
}

/* Adds the levels of one lane from `first` on. Row i of ids and logp (levels, topk) has the guesses
 * at depth first + i: they do not depend on the path, so every front candidate has the same
 * children. */
static void add_block(struct growth *g, int first, const int32_t *ids, const float *logp)
{
    int32_t all_ids[MAX_TOPK * MAX_TOPK];
    float all_logp[MAX_TOPK * MAX_TOPK];
    int k = g->c.topk;
    for (int l = first; l <= g->c.steps; l++, ids += k, logp += k) {
        for (int i = 0; i < (l > 1 ? k * k : k); i++) {
            all_ids[i] = ids[i % k];
            all_logp[i] = logp[i % k];
        }
        tree_grow_level(&g->c, l, all_ids, all_logp, NULL, 0);
    }
}

/* The block pass of n lanes, which leaves the logits of each lane's depths from draft_block_first()
 * on; *guessed: how many rows those are. */
static bool run_block(struct head *d, struct pass *ps, const struct drafting *lane, int n,
                      int *guessed, struct err *e)
{
    struct plan_req req[MAX_LANES];
    int most = n * d->w->block, rows = 0, n_req = 0;
    *guessed = 0;
    FREED(free_at) int32_t *token = xmalloc((size_t)most * sizeof *token);
    FREED(free_at) int32_t *which = xmalloc((size_t)most * sizeof *which);
    for (int b = 0; b < n; b++) {
        int of_lane = head_block_rows(d, lane[b].max_depth);
        if (of_lane == 0)
            continue;
        req[n_req++] = (struct plan_req){.seq = lane[b].seq, .n = of_lane, .token = token + rows};
        for (int l = draft_block_first(d->w); l <= lane[b].max_depth; l++)
            which[(*guessed)++] = rows + l - d->w->block_depth;
        for (int i = 0; i < of_lane; i++)
            token[rows++] = head_block_token(d, i, lane[b].tree->token[0]);
    }
    bool ok = rows == 0 || pass_prepare(ps, PLAN_BLOCK, req, n_req, e);
    if (ok && rows)
        d->ops->block(d, &ps->kp, rows, head_rows(d, which, *guessed), *guessed);
    return ok;
}

/* One level of the lanes' trees after run_block() where guesses depend on the token before: every
 * node of the front has children of its own. */
static void add_edges(struct head *d, const struct drafting *lane, struct growth *g, int n,
                      int level, int topk)
{
    size_t most = (size_t)d->max_heads;
    FREED(free_at) int32_t *token = xmalloc(most * sizeof *token);
    FREED(free_at) int32_t *which = xmalloc(most * sizeof *which);
    FREED(free_at) int32_t *ids = xmalloc(most * (size_t)topk * sizeof *ids);
    FREED(free_at) float *logp = xmalloc(F32(most * (size_t)topk));
    int rows = 0, base = 0; /* base: the lane's first row of logits */
    int parents[MAX_LANES];
    for (int b = 0; b < n; base += lane[b++].max_depth) {
        parents[b] = level > lane[b].max_depth ? 0 : level > 1 ? g[b].n_front : 1;
        for (int k = 0; k < parents[b]; k++) {
            token[rows] = level > 1 ? g[b].c.token[extended(&g[b], level, k)]
                                    : lane[b].tree->token[0];
            which[rows++] = base + level - 1;
        }
    }
    CHECK(rows <= d->max_heads);
    if (rows) {
        d->ops->edges(d, rows, upload_ints(d, d->parents, token, rows), head_rows(d, which, rows),
                      topk);
        get_guesses(d, rows, topk, ids, logp);
    }
    for (int b = 0, row = 0; b < n; row += parents[b++])
        if (level <= lane[b].max_depth)
            g[b].n_front = tree_grow_level(&g[b].c, level, ids + mul64(row, topk),
                                           logp + mul64(row, topk), NULL, 0);
}

/* All levels of all lanes from draft_block_first() on; as many lanes at once as the buffers have
 * rows for. */
static bool grow_blocks(struct head *d, struct pass *ps, struct drafting *lane, struct growth *g,
                        int n, int topk, struct err *e)
{
    int most = d->max_heads / max_int(d->w->block, d->w->edges ? topk : 1);
    int from = draft_block_first(d->w);
    FREED(free_at) int32_t *ids = xmalloc((size_t)mul64(d->max_heads, topk) * sizeof *ids);
    FREED(free_at) float *logp = xmalloc(F32(mul64(d->max_heads, topk)));
    bool ok = true;
    for (int first = 0; first < n && ok; first += most) {
        int some = min_int(most, n - first), row = 0, guessed, deepest = 0;
        ok = run_block(d, ps, lane + first, some, &guessed, e);
        for (int b = first; b < first + some; b++)
            deepest = max_int(deepest, lane[b].max_depth);
        for (int l = 1; l <= deepest && ok && d->w->edges; l++)
            add_edges(d, lane + first, g + first, some, l, topk);
        if (ok && guessed && !d->w->edges)
            guesses(d, guessed, topk, ids, logp);
        for (int b = first; b < first + some && ok && !d->w->edges; b++) {
            add_block(&g[b], from, ids + mul64(row, topk), logp + mul64(row, topk));
            row += max_int(0, lane[b].max_depth + 1 - from);
        }
    }
    return ok;
}

/* ---- both ------------------------------------------------------------------------------------ */

/* Makes a tree of the best candidates, in the order of their indices. */
static void keep_best(const struct growth *g, int nodes, struct tree *t)
{
    int cand[TREE_MAX], parent[TREE_MAX];
    int n = tree_select(&g->c, min_int(nodes, TREE_MAX), cand, parent);
    for (int r = 1; r < n; r++)
        tree_add(t, parent[r], g->c.token[cand[r]], __builtin_expf(g->c.logp[cand[r]]),
                 g->c.score[cand[r]]);
}

bool head_ready(const struct drafter *, const struct drafting *lane)
{
    return lane->guess->n > 0;
}

bool head_grow(struct drafter *base, struct pass *ps, struct drafting *lane, int n,
               const struct tree_shape *shape, struct err *e)
{
    struct head *d = base->head;
    int topk = min_int(shape->topk, d->w->draft_vocab), deepest = 1, block = d->w->block;
    bool next = draft_guesses_next(d->w);
    FREED(free_at) struct growth *g = xcalloc((size_t)n, sizeof *g);
    bool ok = true;
    for (int b = 0; b < n && ok; b++) {
        lane[b].max_depth = min_int(lane[b].max_depth, shape->steps);
        if (block)
            lane[b].max_depth = min_int(lane[b].max_depth, draft_block_reach(d->w));
        deepest = max_int(deepest, lane[b].max_depth);
        if (drafter_owns_kv(&d->base)) {
            int scratch = block ? head_block_rows(d, lane[b].max_depth)
                                : (lane[b].max_depth - 1) * topk;
            pass_lock(ps);
            ok = kv_reserve_draft(ps->kv, lane[b].seq, lane[b].seq->drafted,
                                  lane[b].seq->drafted + scratch, e);
            pass_unlock(ps);
        }
        growth_init(&g[b], topk, lane[b].max_depth);
        if (next)
            grow_first_level(&g[b], lane[b].guess);
    }
    if (block)
        ok = ok && grow_blocks(d, ps, lane, g, n, topk, e);
    for (int level = 2; level <= deepest && ok && !block; level++)
        ok = grow_level(d, ps, lane, g, n, level, topk, e);
    for (int b = 0; b < n; b++) {
        if (ok)
            keep_best(&g[b], shape->nodes, lane[b].tree);
        pass_lock(ps);
        kv_rollback(ps->kv, lane[b].seq);
        pass_unlock(ps);
        free(g[b].mem);
    }
    return ok;
}
