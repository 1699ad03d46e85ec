/* cycle.c - see cycle.h. */
#include "engine/cycle/cycle.h"

#include "engine/bugs.h"
#include "engine/cycle/fit.h"
#include "engine/cycle/fused.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the rig --------------------------------------------------------------------------------- */

/* Carries out queued page copies: page_size cell moves each, pool by pool. */
static void copy_pages(void *arg, const struct page_copy *copy, int n)
{
    struct rig *r = arg;
    int P = r->kv.page_size;
    int32_t src[64], dst[64];
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < P; j++) {
            src[j] = copy[i].src * P + j;
            dst[j] = copy[i].dst * P + j;
        }
        r->dev.k->put(r->dev.d, r->pair_src, src, (size_t)P * sizeof *src);
        r->dev.k->put(r->dev.d, r->pair_dst, dst, (size_t)P * sizeof *dst);
        if (copy[i].pool == POOL_DRAFT) {
            drafter_move(r->drafter, P, r->pair_src, r->pair_dst);
            continue;
        }
        kbuf from[2] = {{0}}, to[2] = {{0}};
        from[copy[i].pool] = r->pair_src;
        to[copy[i].pool] = r->pair_dst;
        net_move(&r->net, P, from, to);
    }
}

static bool want(struct rig *r, kbuf *b, size_t bytes, struct err *e)
{
    *b = r->dev.k->alloc(r->dev.d, bytes, "sampling buffers", e);
    return b->p != NULL;
}

static bool open_buffers(struct rig *r, struct err *e)
{
    size_t rows = (size_t)r->max_rows, v = (size_t)r->m->cfg.vocab;
    return want(r, &r->logits, (size_t)r->max_logits * v * 4, e) &&
           want(r, &r->some, (MAX_STEPS + 1) * v * 4, e) && want(r, &r->ids, rows * 4 * 8, e) &&
           want(r, &r->p, rows * 4 * 8, e) && want(r, &r->u, rows * 4, e) &&
           want(r, &r->row, rows * 4, e) && want(r, &r->logp, rows * 4, e) &&
           want(r, &r->idx, rows * 4, e) && want(r, &r->pair_src, K_MAX_PAIRS * 4, e) &&
           want(r, &r->pair_dst, K_MAX_PAIRS * 4, e);
}

/* Pool sizes: the context, the pass in flight, and room for checkpoints and forks. */
static struct kv_shape pool_shape(const struct rig *r, const struct rig_shape *s, bool draft)
{
    int P = s->page_size, lanes = max_int(1, s->lanes), W = r->m->cfg.window;
    int scratch = div_up(max_int(r->max_rows, TREE_MAX), P) + 2;
    int full = lanes * (div_up(s->context, P) + div_up(TREE_MAX, P) + 2) + 64;
    int swa = lanes * (div_up(W, P) + scratch) + 16 * (div_up(W, P) + 2);
    int draft_cells = s->context + MAX_STEPS * MAX_TOPK;
    int draft_pages = lanes * (div_up(draft_cells, P) + 2) + 64;
    return (struct kv_shape){
        .page_size = P, .window = W, .full_pages = s->full_pages ? s->full_pages : full,
        .swa_pages = W ? (s->swa_pages ? s->swa_pages : swa) : 0,
        .draft_pages = !draft           ? 0
                       : s->draft_pages ? s->draft_pages
                                        : max_int(draft_pages, s->full_pages)};
}

/* Tells the cache which memory its pools stand for; tables carry it, the checker compares. */
static void back_pools(struct rig *r)
{
    const void *base[N_POOLS] = {NULL};
    for (int l = r->m->cfg.n_layer - 1; l >= 0; l--)
        base[r->m->layer[l].window ? POOL_SWA : POOL_FULL] = r->net.cells[l].k.p;
    if (r->drafter)
        base[POOL_DRAFT] = r->drafter;
    for (int p = 0; p < N_POOLS; p++)
        if (r->kv.pool[p].total)
            kv_back(&r->kv, (enum pool_id)p, base[p], r->kv.pool[p].total * r->kv.page_size);
}

bool rig_open(struct rig *r, struct device dev, struct model *m, struct draft *draft,
              const struct rig_shape *wanted, struct err *e)
{
    struct rig_shape fitting = *wanted, *shape = &fitting;
    *r = (struct rig){0};
    if (!fit_shape(dev, m, draft, shape, e))
        return false;
    *r = (struct rig){.dev = dev, .m = m, .context = shape->context,
                      .max_rows = shape->max_rows ? shape->max_rows : 512};
    r->max_rows = max_int(r->max_rows, TREE_MAX * max_int(1, shape->lanes));
    r->fuse = r->record = dev.k->queued;
    r->max_logits = TREE_MAX * max_int(1, shape->lanes);
    struct kv_shape ks = pool_shape(r, shape, draft && draft->kind == DRAFT_EAGLE3);
    if (draft && draft->kind == DRAFT_FROZEN) /* its query stands one before the committed length */
        ks.reach = max_int(ks.window - 1, draft_window(draft));
    kv_init(&r->kv, &ks);
    pass_init(&r->pass, dev, &r->kv);
    r->pass.copy = copy_pages;
    r->pass.copy_arg = r;
    int P = shape->page_size;
    bool ok = net_open(&r->net, dev, m, ks.full_pages * P, ks.swa_pages * P, shape->kv, r->max_rows,
                       e) &&
              open_buffers(r, e);
    if (ok && draft) {
        r->drafter = drafter_open(dev, draft, &r->net, ks.draft_pages * P, shape->kv,
                                  r->max_rows + 1, e);
        ok = r->drafter != NULL;
        r->pass.opts.draft_window = draft_window(draft);
        for (int l = 0; l < draft->cfg.n_layer; l++)
            r->pass.opts.draft_full |= draft->layer[l].window == 0;
    }
    if (ok)
        back_pools(r);
    else
        rig_close(r);
    return ok;
}

void rig_close(struct rig *r)
{
    if (!r->dev.k)
        return;
    fused_close(r);
    kbuf all[] = {r->logits, r->some, r->ids, r->p, r->u, r->row, r->logp, r->idx, r->pair_src,
                  r->pair_dst, r->mask};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        r->dev.k->release(r->dev.d, all[i]);
    drafter_close(r->drafter);
    net_close(&r->net);
    pass_free(&r->pass);
    kv_free(&r->kv);
    *r = (struct rig){0};
}

bool rig_mask(struct rig *r, const uint8_t *mask, int n, struct err *e)
{
    size_t v = (size_t)r->m->cfg.vocab;
    uint8_t *all = xmalloc(v);
    memset(all, 1, v);
    memcpy(all, mask, (size_t)min_int(n, (int)v));
    r->mask = r->dev.k->alloc(r->dev.d, v, "token mask", e);
    if (r->mask.p)
        r->dev.k->put(r->dev.d, r->mask, all, v);
    free(all);
    return r->mask.p != NULL;
}

bool rig_stops(const struct rig *r, int32_t id)
{
    for (int i = 0; i < r->n_stop; i++)
        if (r->stop[i] == id)
            return true;
    return false;
}

/* ---- lanes ----------------------------------------------------------------------------------- */

/* Gives the lane a slot of the drafter, if one is free. */
static bool take_slot(struct rig *r, struct lane *l)
{
    if (l->slot == 0 && r->slots != UINT64_MAX) {
        l->slot = __builtin_ctzll(~r->slots) + 1;
        r->slots |= 1ull << (l->slot - 1);
    }
    return l->slot > 0;
}

static void give_slot(struct rig *r, struct lane *l)
{
    if (l->slot)
        r->slots &= ~(1ull << (l->slot - 1));
    l->slot = 0;
}

void lane_free(struct rig *r, struct lane *l)
{
    kv_drop(&r->kv, &l->seq);
    give_slot(r, l);
    ids_free(&l->tok);
    free(l->tap);
    *l = (struct lane){.tap_row = -1};
}

void lane_park(struct rig *r, struct lane *l)
{
    if (!r->drafter || l->tap_row < 0)
        return;
    if (!l->tap)
        l->tap = xmalloc((size_t)drafter_tap_floats(r->drafter) * sizeof *l->tap);
    drafter_get_tap(r->drafter, l->tap_row, l->tap);
    l->tap_row = -1;
}

void lane_fork(struct rig *r, struct lane *src, struct lane *dst)
{
    lane_park(r, src);
    *dst = *src;
    dst->seq = (struct seq){0};
    dst->tok = (struct ids){0};
    dst->tap = NULL;
    dst->slot = 0;
    int committed = src->seq.committed;
    int held = src->seq.n_col * r->kv.page_size;
    if (bug_on(BUG_PUBLISH_BEFORE_WRITE)) /* 41838: the whole last page counts as done */
        src->seq.committed = max_int(committed, min_int(held, src->tok.n - 1));
    if (dst->guess.n && take_slot(r, dst))
        drafter_copy_slot(r->drafter, src->slot - 1, dst->slot - 1);
    else
        dst->guess.n = 0;
    ids_cat(&dst->tok, src->tok.v, src->tok.n);
    kv_fork(&r->kv, &src->seq, &dst->seq);
    src->seq.committed = committed;
    if (src->tap) {
        size_t n = (size_t)drafter_tap_floats(r->drafter) * sizeof *dst->tap;
        dst->tap = memcpy(xmalloc(n), src->tap, n);
    }
}

/* ---- sampling -------------------------------------------------------------------------------- */

/* Draws for rows [first, first + n) of the logits: the uniform of a row depends on its depth. */
static void sample(struct rig *r, const struct lane *l, int first, int n, const int *depth,
                   int32_t *ids, float *u)
{
    size_t v = (size_t)r->m->cfg.vocab * 4;
    for (int i = 0; i < n; i++)
        u[i] = l->how.temperature > 0 ? uniform(l->seed, l->draws + (uint64_t)depth[i]) : 0;
    r->dev.k->put(r->dev.d, r->u, u, (size_t)n * 4);
    r->dev.k->sample(r->dev.d, &(struct k_sample){
        .rows = n, .n = r->m->cfg.vocab,
        .logits = kbuf_at(r->logits, (size_t)first * v, (size_t)n * v), .mask = r->mask,
        .how = l->how, .u = r->u, .ids = r->ids, .p = r->p});
    r->dev.k->get(r->dev.d, ids, r->ids, (size_t)n * 4);
}

/* Digest of the eight best ids and log probabilities of each row on the path. */
static uint64_t logit_digest(struct rig *r, int first, const int *path, int n)
{
    int V = r->m->cfg.vocab, k = min_int(8, V);
    int32_t row[MAX_STEPS + 1], ids[(MAX_STEPS + 1) * 8];
    float logp[(MAX_STEPS + 1) * 8];
    CHECK(n <= MAX_STEPS + 1);
    for (int i = 0; i < n; i++)
        row[i] = first + path[i];
    r->dev.k->put(r->dev.d, r->idx, row, (size_t)n * 4);
    r->dev.k->rows(r->dev.d, &(struct k_rows){.rows = n, .n = V, .src_stride = V, .dst_stride = V,
                                              .src = r->logits, .dst = r->some, .idx = r->idx});
    r->dev.k->topk(r->dev.d, &(struct k_topk){.rows = n, .n = V, .k = k, .logits = r->some,
                                              .ids = r->ids, .logp = r->p});
    r->dev.k->get(r->dev.d, ids, r->ids, (size_t)(n * k) * 4);
    r->dev.k->get(r->dev.d, logp, r->p, (size_t)(n * k) * 4);
    return hash64(logp, (size_t)(n * k) * 4, hash64(ids, (size_t)(n * k) * 4, 0));
}

/* The target's probability of every node after its parent, for people. */
static void node_probabilities(struct rig *r, int first, struct tree *t)
{
    int32_t row[TREE_MAX], id[TREE_MAX];
    float logp[TREE_MAX];
    int n = t->n - 1;
    if (n <= 0)
        return;
    for (int i = 0; i < n; i++) {
        row[i] = first + t->parent[i + 1];
        id[i] = t->token[i + 1];
    }
    r->dev.k->put(r->dev.d, r->row, row, (size_t)n * 4);
    r->dev.k->put(r->dev.d, r->idx, id, (size_t)n * 4);
    r->dev.k->logp(r->dev.d, &(struct k_logp){.pairs = n, .n = r->m->cfg.vocab,
                                              .rows = first + t->n, .logits = r->logits,
                                              .row = r->row, .id = r->idx, .logp = r->logp});
    r->dev.k->get(r->dev.d, logp, r->logp, (size_t)n * 4);
    for (int i = 0; i < n; i++)
        t->p[i + 1] = expf(logp[i]);
}

static bool bad_token(struct err *e)
{
    return err_set(e, ERR_INVARIANT, "the model's output is not a number; the turn was stopped");
}

/* ---- the drafter's side ---------------------------------------------------------------------- */

bool lane_can_follow(const struct rig *r, const struct lane *l)
{
    if (r->drafter && !drafter_owns_kv(r->drafter))
        return true;
    return r->drafter && l->seq.drafted == l->seq.committed &&
           (l->seq.committed == 0 || l->tap || l->tap_row >= 0 || l->guess.n);
}

static void forget_tap(struct lane *l)
{
    free(l->tap);
    l->tap = NULL;
}

/* One lane that the drafter follows over a pass: cells [base, committed) are new, tap[i] is the tap
 * row of cell base + i (NULL: row i). With redo, slot base - 1 is made again from the parked state,
 * because its next token may have changed. */
struct follower {
    struct lane *lane;
    int base;
    const int *tap;
    bool redo;
};

static int last_tap(const struct follower *f)
{
    int i = f->lane->seq.committed - f->base - 1;
    return f->tap ? f->tap[i] : i;
}

/* A drafter without KV of its own only needs each lane's last state and its pending token. */
static bool follow_frozen(struct rig *r, const struct follower *f, int n, int topk, struct err *e)
{
    struct plan_req req[MAX_LANES];
    struct guess guess[MAX_LANES];
    int32_t from[MAX_LANES], slot[MAX_LANES];
    CHECK(n > 0 && n <= MAX_LANES);
    for (int b = 0; b < n; b++) {
        const struct lane *l = f[b].lane;
        req[b] = (struct plan_req){.seq = &l->seq, .n = 1, .token = &l->tok.v[l->seq.committed]};
        from[b] = last_tap(&f[b]);
        slot[b] = l->slot - 1;
    }
    if (!pass_prepare(&r->pass, PLAN_FROZEN, req, n, e))
        return false;
    drafter_extend(r->drafter, &r->pass, from, slot, topk, guess);
    for (int b = 0; b < n; b++)
        f[b].lane->guess = guess[b];
    return true;
}

static bool follow(struct rig *r, const struct follower *f, int n, int topk, struct err *e)
{
    if (!drafter_owns_kv(r->drafter))
        return follow_frozen(r, f, n, topk, e);
    struct plan_req req[MAX_LANES];
    struct guess guess[MAX_LANES];
    int rows = 0;
    for (int b = 0; b < n; b++)
        rows += f[b].lane->seq.committed - f[b].base + f[b].redo;
    int32_t *token = xmalloc((size_t)rows * 4), *from = xmalloc((size_t)rows * 4);
    int32_t slot[MAX_LANES];
    bool ok = true;
    rows = 0;
    for (int b = 0; b < n && ok; b++) {
        struct lane *l = f[b].lane;
        slot[b] = l->slot - 1;
        int first = f[b].base - f[b].redo, upto = l->seq.committed;
        CHECK(l->tok.n > upto && (!f[b].redo || (n == 1 && l->tap)));
        req[b] = (struct plan_req){.seq = &l->seq, .n = upto - first, .token = token + rows,
                                   .draft_from = first};
        pass_lock(&r->pass);
        ok = kv_reserve_draft(&r->kv, &l->seq, first, upto, e);
        pass_unlock(&r->pass);
        if (f[b].redo)
            drafter_put_tap(r->drafter, drafter_spare_row(r->drafter), l->tap);
        for (int s = first; s < upto; s++, rows++) {
            int i = s - f[b].base;
            token[rows] = l->tok.v[s + 1];
            from[rows] = i < 0 ? drafter_spare_row(r->drafter) : f[b].tap ? f[b].tap[i] : i;
        }
    }
    ok = ok && pass_prepare(&r->pass, PLAN_DRAFT_EXTEND, req, n, e);
    if (ok)
        drafter_extend(r->drafter, &r->pass, from, slot, topk, guess);
    pass_lock(&r->pass);
    for (int b = 0; b < n && ok; b++) {
        kv_commit_draft(&r->kv, &f[b].lane->seq, f[b].lane->seq.committed);
        f[b].lane->guess = guess[b];
    }
    pass_unlock(&r->pass);
    free(token);
    free(from);
    return ok;
}

static void roll_back(struct rig *r, struct lane **lane, int n)
{
    pass_lock(&r->pass);
    for (int b = 0; b < n; b++)
        kv_rollback(&r->kv, &lane[b]->seq);
    pass_unlock(&r->pass);
}

/* ---- running a prompt ------------------------------------------------------------------------ */

bool lane_extend(struct rig *r, struct lane *l, int upto, bool last, bool draft, int topk,
                 struct err *e)
{
    int from = l->seq.committed, n = upto - from;
    CHECK(n > 0 && n <= r->max_rows && upto <= l->tok.n && (!last || upto == l->tok.n));
    uint64_t t0 = clock_ns(), checked = r->pass.check.ns;
    draft = draft && lane_can_follow(r, l) && take_slot(r, l);
    r->pass.opts.parts = bug_on(BUG_SWA_EXTEND_WINDOW) ? 2 : max_int(1, r->parts);
    if (r->pass.opts.parts == 2 && !net_two_parts(&r->net, e))
        return false;
    lane_park(r, l);
    pass_begin_step(&r->pass);
    pass_lock(&r->pass);
    struct plan_req req = {.seq = &l->seq, .n = n, .token = l->tok.v + from};
    bool ok = kv_reserve(&r->kv, &l->seq, upto, e);
    pass_unlock(&r->pass);
    if (!ok || !pass_prepare(&r->pass, PLAN_EXTEND, &req, 1, e)) {
        roll_back(r, &l, 1);
        return false;
    }
    if (!net_forward(&r->net, &r->pass.plan[PLAN_EXTEND], &r->pass.kp,
                     draft ? drafter_taps(r->drafter) : NULL)) {
        roll_back(r, &l, 1);
        return err_set(e, ERR_NEGATIVE, "the prompt was stopped");
    }
    l->rec = (struct step_rec){.kind = STEP_PREFILL, .pos0 = from, .rows = n, .bonus = -1};
    l->n_new = 0;
    l->guess.n = 0;
    l->tree.n = 0;
    if (last) {
        int32_t row = n - 1, id;
        float u;
        r->dev.k->put(r->dev.d, r->row, &row, 4);
        net_logits(&r->net, 1, r->row, r->logits, (kbuf){0});
        sample(r, l, 0, 1, &(int){0}, &id, &u);
        if (id < 0)
            ok = bad_token(e);
        l->rec.logit_digest = logit_digest(r, 0, &(int){0}, 1);
        l->rec.bonus = id;
    }
    if (!ok || !r->dev.k->sync(r->dev.d, e)) {
        roll_back(r, &l, 1);
        return false;
    }
    uint64_t t1 = clock_ns();
    pass_lock(&r->pass);
    kv_commit(&r->kv, &l->seq, upto);
    if (last) {
        ids_add(&l->tok, l->rec.bonus);
        l->n_new = 1;
        l->draws += l->how.temperature > 0;
        l->stopped = rig_stops(r, l->rec.bonus);
    }
    kv_release_window(&r->kv, &l->seq);
    pass_unlock(&r->pass);
    if (draft && (last || drafter_owns_kv(r->drafter))) {
        struct follower f = {l, from, NULL, l->tap && from > 0};
        ok = follow(r, &f, 1, topk, e);
    }
    forget_tap(l);
    l->tap_row = draft ? n - 1 : -1;
    l->rec.page_digest = r->pass.digest;
    l->rec.draws = l->draws;
    l->rec.us_verify = (uint32_t)((t1 - t0) / 1000);
    l->rec.us_commit = (uint32_t)((clock_ns() - t1) / 1000);
    l->rec.us_check = (uint32_t)((r->pass.check.ns - checked) / 1000);
    return ok;
}

/* ---- one cycle ------------------------------------------------------------------------------- */

/* How deep lane l may draft: each accepted node needs room for itself and the bonus token. */
static int draft_depth(const struct rig *r, const struct lane *l, const struct step_limits *lim)
{
    return min_int(r->context - l->tok.n - 1, lim->max_new - 1);
}

static bool draft(struct rig *r, struct lane **lane, const struct step_limits *lim, int n,
                  const struct tree_shape *shape, struct err *e)
{
    struct drafting d[MAX_LANES];
    int k = 0;
    for (int b = 0; b < n; b++) {
        struct lane *l = lane[b];
        tree_init(&l->tree, l->tok.v[l->tok.n - 1]);
        int depth = draft_depth(r, l, &lim[b]);
        if (shape && r->drafter && l->guess.n && depth > 0 && shape->nodes > 1)
            d[k++] = (struct drafting){&l->seq, &l->guess, l->slot - 1, depth, &l->tree};
    }
    return k == 0 || drafter_grow(r->drafter, &r->pass, d, k, shape, e);
}

/* Reserves cells and runs the target over all trees. Nothing is committed yet. */
static bool verify(struct rig *r, struct lane **lane, int n, bool tap, struct err *e)
{
    struct plan_req req[MAX_LANES];
    enum plan_mode mode = PLAN_DECODE;
    for (int b = 0; b < n; b++)
        if (lane[b]->tree.n > 1)
            mode = PLAN_VERIFY;
    bool ok = true;
    pass_lock(&r->pass);
    for (int b = 0; b < n && ok; b++) {
        struct lane *l = lane[b];
        ok = kv_reserve(&r->kv, &l->seq, l->seq.committed + l->tree.n, e);
        req[b] = (struct plan_req){.seq = &l->seq, .n = l->tree.n, .token = l->tree.token,
                                   .tree = mode == PLAN_VERIFY ? &l->tree : NULL};
    }
    pass_unlock(&r->pass);
    if (!ok || !pass_prepare(&r->pass, mode, req, n, e))
        return false;
    const struct plan *p = &r->pass.plan[mode];
    net_forward(&r->net, p, &r->pass.kp, tap ? drafter_taps(r->drafter) : NULL);
    net_logits(&r->net, p->n_rows, (kbuf){0}, r->logits, (kbuf){0});
    return true;
}

/* Accepted nodes' cells move next to the committed ones, in every pool the target writes. */
static void compact(struct rig *r, struct lane *l, const int *path, int n)
{
    int32_t full[2][MAX_STEPS + 1], swa[2][MAX_STEPS + 1];
    int at = l->seq.committed, k = 0;
    for (int i = 0; i < n; i++) {
        if (path[i] == i)
            continue;
        full_slot from = kv_full_slot(&r->kv, &l->seq, at + path[i]);
        full_slot to = kv_full_slot(&r->kv, &l->seq, at + i);
        full[0][k] = from.v;
        full[1][k] = to.v;
        swa[0][k] = kv_swa_slot(&r->kv, from).v;
        swa[1][k] = kv_swa_slot(&r->kv, to).v;
        kv_moved(&r->kv, POOL_FULL, from.v, to.v);
        if (r->kv.has_swa)
            kv_moved(&r->kv, POOL_SWA, swa[0][k], swa[1][k]);
        k++;
    }
    if (k == 0)
        return;
    r->dev.k->put(r->dev.d, r->pair_src, full[0], (size_t)k * 4);
    r->dev.k->put(r->dev.d, r->pair_dst, full[1], (size_t)k * 4);
    net_move(&r->net, k, (kbuf[2]){r->pair_src}, (kbuf[2]){r->pair_dst});
    if (!r->kv.has_swa)
        return;
    r->dev.k->put(r->dev.d, r->pair_src, swa[0], (size_t)k * 4);
    r->dev.k->put(r->dev.d, r->pair_dst, swa[1], (size_t)k * 4);
    net_move(&r->net, k, (kbuf[2]){[POOL_SWA] = r->pair_src}, (kbuf[2]){[POOL_SWA] = r->pair_dst});
}

/* Makes the target choose a first child, row by row, so far as the lane's script says. */
static void script_choices(const struct lane *l, int32_t *choice)
{
    const struct tree *t = &l->tree;
    for (int at = 0, rows = 1, i = 1; i < t->n && rows < l->force; i++)
        if (t->parent[i] == at) {
            choice[at] = t->token[i];
            at = i;
            rows++;
        }
}

/* Walks the tree with the target's choices; returns the length of the path that is kept: it ends
 * where a stop token is emitted. */
static int accept(struct rig *r, struct lane *l, const struct step_limits *lim,
                  const int32_t *choice, int path[TREE_MAX])
{
    int most = min_int(lim->max_new, r->context - l->tok.n);
    int n = tree_accept(&l->tree, choice, max_int(1, most), path);
    for (int i = 0; i < n; i++)
        if (rig_stops(r, choice[path[i]]))
            return i + 1;
    return n;
}

/* Samples every row of a lane, accepts, compacts and commits; keeps the path's tap rows. */
static bool settle(struct rig *r, struct lane *l, const struct step_limits *lim, int first,
                   int *tap_rows, struct err *e)
{
    int depth[TREE_MAX], path[TREE_MAX];
    int32_t choice[TREE_MAX];
    float u[TREE_MAX];
    for (int i = 0; i < l->tree.n; i++)
        depth[i] = l->tree.depth[i];
    sample(r, l, first, l->tree.n, depth, choice, u);
    if (!r->dev.k->sync(r->dev.d, e)) /* what a failed device gives are zeros, not tokens */
        return false;
    for (int i = 0; i < l->tree.n; i++)
        if (choice[i] < 0)
            return bad_token(e);
    struct step_limits scripted = {l->force > 0 ? min_int(l->force, lim->max_new) : lim->max_new};
    script_choices(l, choice);
    int n = accept(r, l, &scripted, choice, path), offset[TREE_MAX];
    bool sampled = l->how.temperature > 0;
    uint64_t draws = l->draws + (sampled ? (uint64_t)n : 0);
    for (int i = 0; i < n; i++)
        offset[i] = depth[path[i]];
    if (!check_draws(&r->pass.check, l->draws, draws, offset, n, sampled, e))
        return false;
    l->rec = (struct step_rec){.kind = l->tree.n > 1 ? STEP_SPEC : STEP_DECODE,
                               .pos0 = l->seq.committed, .rows = l->tree.n,
                               .drafted = l->tree.n - 1, .accepted = n - 1,
                               .bonus = choice[path[n - 1]]};
    node_probabilities(r, first, &l->tree);
    l->rec.logit_digest = logit_digest(r, first, path, n);
    pass_lock(&r->pass);
    compact(r, l, path, n);
    kv_commit(&r->kv, &l->seq, l->seq.committed + n);
    for (int i = 0; i < n; i++) {
        ids_add(&l->tok, choice[path[i]]);
        tap_rows[i] = first + path[i];
        if (l->how.temperature > 0)
            l->tree.u[path[i]] = u[path[i]];
    }
    kv_release_window(&r->kv, &l->seq);
    kv_rollback(&r->kv, &l->seq);
    pass_unlock(&r->pass);
    l->n_new = n;
    l->draws = draws;
    l->stopped = rig_stops(r, l->rec.bonus);
    l->tap_row = tap_rows[n - 1];
    forget_tap(l);
    return true;
}

bool lane_step(struct rig *r, struct lane **lane, const struct step_limits *lim, int n,
               const struct tree_shape *shape, struct err *e)
{
    CHECK(n <= MAX_LANES);
    if (n == 1 && fused_fits(r, lane[0], lim, shape))
        return fused_step(r, lane[0], lim, shape, e);
    struct follower f[MAX_LANES];
    int taps[MAX_LANES][MAX_STEPS + 1], n_follow = 0;
    uint64_t t0 = clock_ns(), checked = r->pass.check.ns;
    pass_begin_step(&r->pass);
    for (int b = 0; b < n; b++)
        if (shape && lane_can_follow(r, lane[b]) && take_slot(r, lane[b]))
            f[n_follow++] = (struct follower){lane[b], lane[b]->seq.committed, taps[b], false};
    bool ok = draft(r, lane, lim, n, shape, e);
    uint64_t t1 = clock_ns();
    ok = ok && verify(r, lane, n, n_follow > 0, e) && r->dev.k->sync(r->dev.d, e);
    uint64_t t2 = clock_ns();
    for (int b = 0, first = 0; b < n && ok; first += lane[b]->tree.n, b++)
        ok = settle(r, lane[b], &lim[b], first, taps[b], e);
    if (!ok) {
        roll_back(r, lane, n);
        return false;
    }
    for (int b = 0; b < n; b++)
        if (!shape || (r->drafter && drafter_owns_kv(r->drafter) &&
                       lane[b]->seq.drafted < lane[b]->rec.pos0)) {
            lane[b]->guess.n = 0;
            lane[b]->tap_row = -1;
        }
    ok = n_follow == 0 || follow(r, f, n_follow, shape->topk, e);
    uint64_t t3 = clock_ns();
    for (int b = 0; b < n; b++) {
        struct lane *l = lane[b];
        l->rec.page_digest = r->pass.digest;
        l->rec.draft_digest = l->tree.n > 1 ? tree_digest(&l->tree) : 0;
        l->rec.draws = l->draws;
        l->rec.us_draft = (uint32_t)((t1 - t0) / 1000);
        l->rec.us_verify = (uint32_t)((t2 - t1) / 1000);
        l->rec.us_commit = (uint32_t)((t3 - t2) / 1000);
        l->rec.us_check = (uint32_t)((r->pass.check.ns - checked) / 1000);
    }
    return ok;
}
