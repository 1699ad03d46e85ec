/* cycle.c - see cycle.h. */
#include "engine/cycle/cycle.h"

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
    struct kv_shape ks = pool_shape(r, shape, drafter_kv_of(draft) == DRAFT_KV_OWN);
    if (drafter_kv_of(draft) == DRAFT_KV_TARGET) /* its query stands one before the committed length */
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
        struct drafter_setup setup = {dev, draft, &r->net, ks.draft_pages * P, shape->kv,
                                      r->max_rows + 1};
        r->drafter = drafter_open(&setup, e);
        ok = r->drafter != NULL;
        r->pass.opts.draft_window = draft_window(draft);
        for (int l = 0; l < draft->cfg.n_layer; l++)
            r->pass.opts.draft_full |= draft->layer[l].window == 0;
    }
    if (ok)
        back_pools(r);
    else
        rig_close(r);
    if (ok && shape->bugs)
        rig_set_bugs(r, shape->bugs);
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
    CHECK(!r->drafter || src->tap_row < 0);
    *dst = *src;
    dst->seq = (struct seq){0};
    dst->tok = (struct ids){0};
    dst->tap = NULL;
    dst->slot = 0;
    int committed = src->seq.committed;
    if (r->hook.shared)
        src->seq.committed = r->hook.shared(r, src);
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

/* net.stop ended a pass between two layers. */
static bool stopped(struct err *e)
{
    return err_set(e, ERR_NEGATIVE, "the pass was stopped");
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

/* One lane that the drafter follows over a pass: cells [base, base + out->n_cells) are about to be
 * committed, tap[i] is the tap row of cell base + i (NULL: row i). With redo, slot base - 1 is
 * computed again from the parked state, because its next token may have changed. */
struct follower {
    struct lane *lane;
    struct outcome *out;
    const int *tap;
    bool redo;
    int base, drafted; /* lengths before the pass: of the target's cells, of the draft's */
};

/* The drafter's pass over the lanes that follow: planned and checked before the commit, run after. */
struct following {
    struct follower f[MAX_LANES];
    int n;
    struct seq after[MAX_LANES]; /* the sequences as the commit will leave them */
    int32_t *from;               /* tap row of each row of the plan */
};

static void add_follower(struct following *w, struct lane *l, struct outcome *out, const int *tap,
                         bool redo)
{
    w->f[w->n++] = (struct follower){l, out, tap, redo, l->seq.committed, l->seq.drafted};
}

/* The token at index i of the lane once the outcome is committed. */
static int32_t token_at(const struct follower *f, int i)
{
    const struct ids *tok = &f->lane->tok;
    CHECK(i < tok->n + f->out->n_new);
    return i < tok->n ? tok->v[i] : f->out->token[i - tok->n];
}

/* Reserves the draft cells of one lane and lists its rows. A drafter without KV of its own needs
 * only the lane's last state and its pending token. */
static bool request_follow(struct rig *r, struct following *w, int b, int32_t *token, int32_t *from,
                           struct plan_req *req, struct err *e)
{
    struct follower *f = &w->f[b];
    struct lane *l = f->lane;
    bool owns = drafter_owns_kv(r->drafter), ok = true;
    int upto = f->base + f->out->n_cells, first = owns ? f->base - f->redo : upto - 1;
    CHECK(!f->redo || (w->n == 1 && l->tap));
    pass_lock(&r->pass);
    if (owns)
        ok = kv_reserve_draft(&r->kv, &l->seq, first, upto, e);
    kv_ahead(&r->kv, &l->seq, upto, &w->after[b]);
    pass_unlock(&r->pass);
    if (!ok)
        return false;
    f->out->drafted = owns ? upto : -1;
    *req = (struct plan_req){.seq = &w->after[b], .n = upto - first, .token = token,
                             .draft_from = first};
    if (f->redo)
        drafter_put_tap(r->drafter, drafter_spare_row(r->drafter), l->tap);
    for (int s = first, k = 0; s < upto; s++, k++) {
        int i = s - f->base;
        token[k] = token_at(f, s + 1);
        from[k] = i < 0 ? drafter_spare_row(r->drafter) : f->tap ? f->tap[i] : i;
    }
    return true;
}

/* Everything about the drafter's pass that can fail. Nothing of the lanes is final yet. */
static bool plan_follow(struct rig *r, struct following *w, struct err *e)
{
    struct plan_req req[MAX_LANES];
    int rows = 0;
    if (w->n == 0)
        return true;
    for (int b = 0; b < w->n; b++)
        rows += w->f[b].out->n_cells + w->f[b].redo;
    int32_t *token = xmalloc((size_t)rows * sizeof *token);
    w->from = xmalloc((size_t)rows * sizeof *w->from);
    bool ok = true;
    rows = 0;
    for (int b = 0; b < w->n && ok; b++) {
        ok = request_follow(r, w, b, token + rows, w->from + rows, &req[b], e);
        rows += ok ? req[b].n : 0;
    }
    ok = ok && pass_prepare(&r->pass, drafter_extend_mode(r->drafter), req, w->n, e);
    free(token);
    return ok;
}

/* Runs the planned pass behind the commit. Only the device can fail here, and its next sync tells. */
static void run_follow(struct rig *r, struct following *w, int topk)
{
    int32_t slot[MAX_LANES];
    struct guess guess[MAX_LANES];
    if (w->n == 0)
        return;
    for (int b = 0; b < w->n; b++)
        slot[b] = w->f[b].lane->slot - 1;
    drafter_extend(r->drafter, &r->pass, w->from, slot, topk, guess);
    for (int b = 0; b < w->n; b++)
        w->f[b].lane->guess = guess[b];
    free(w->from);
}

/* Undoes what the phases before the commit have reserved. */
static void roll_back(struct rig *r, struct lane **lane, int n, struct following *w)
{
    pass_lock(&r->pass);
    for (int b = 0; b < w->n; b++)
        w->f[b].lane->seq.drafted = w->f[b].drafted;
    for (int b = 0; b < n; b++)
        kv_rollback(&r->kv, &lane[b]->seq);
    pass_unlock(&r->pass);
    free(w->from);
}

/* ---- commit ---------------------------------------------------------------------------------- */

void lane_commit(struct rig *r, struct lane *l, const struct outcome *o)
{
    kv_commit(&r->kv, &l->seq, l->seq.committed + o->n_cells);
    if (o->drafted >= 0)
        kv_commit_draft(&r->kv, &l->seq, o->drafted);
    for (int i = 0; i < o->n_new; i++)
        ids_add(&l->tok, o->token[i]);
    kv_release_window(&r->kv, &l->seq);
    kv_rollback(&r->kv, &l->seq);
    l->rec = o->rec;
    l->rec.draws = l->draws = o->draws;
    l->n_new = o->n_new;
    l->stopped = o->n_new > 0 && rig_stops(r, o->rec.bonus);
    forget_tap(l);
}

/* ---- running a prompt ------------------------------------------------------------------------ */

/* The target's pass over tok[from, upto), and with `last` the draw of the next token. */
static bool run_chunk(struct rig *r, struct lane *l, int upto, bool last, bool draft,
                      struct outcome *out, struct err *e)
{
    int from = l->seq.committed, n = upto - from;
    struct plan_req req = {.seq = &l->seq, .n = n, .token = l->tok.v + from};
    pass_lock(&r->pass);
    bool ok = kv_reserve(&r->kv, &l->seq, upto, e);
    pass_unlock(&r->pass);
    if (!ok || !pass_prepare(&r->pass, PLAN_EXTEND, &req, 1, e))
        return false;
    if (!net_forward(&r->net, &r->pass.plan[PLAN_EXTEND], &r->pass.kp,
                     draft ? drafter_taps(r->drafter) : NULL))
        return stopped(e);
    *out = (struct outcome){
        .rec = {.kind = STEP_PREFILL, .pos0 = from, .rows = n, .bonus = -1}, .n_cells = n,
        .n_new = last, .draws = l->draws + (last && l->how.temperature > 0), .drafted = -1};
    if (last) {
        int32_t row = n - 1, id;
        float u;
        r->dev.k->put(r->dev.d, r->row, &row, 4);
        net_logits(&r->net, 1, r->row, r->logits, (kbuf){0});
        sample(r, l, 0, 1, &(int){0}, &id, &u);
        out->rec.logit_digest = logit_digest(r, 0, &(int){0}, 1);
        out->rec.bonus = out->token[0] = id;
        if (!r->dev.k->sync(r->dev.d, e)) /* what a failed device gives is no token */
            return false;
        return id >= 0 || bad_token(e);
    }
    return r->dev.k->sync(r->dev.d, e);
}

bool lane_extend(struct rig *r, struct lane *l, int upto, bool last, bool draft, int topk,
                 struct err *e)
{
    int from = l->seq.committed, n = upto - from;
    struct outcome out;
    struct following w = {0};
    CHECK(n > 0 && n <= r->max_rows && upto <= l->tok.n && (!last || upto == l->tok.n));
    uint64_t t0 = clock_ns(), checked = r->pass.check.ns;
    draft = draft && lane_can_follow(r, l) && take_slot(r, l);
    r->pass.opts.parts = max_int(1, r->parts);
    if (r->pass.opts.parts == 2 && !net_two_parts(&r->net, e))
        return false;
    lane_park(r, l);
    pass_begin_step(&r->pass);
    bool ok = run_chunk(r, l, upto, last, draft, &out, e);
    uint64_t t1 = clock_ns();
    if (ok && draft && (last || drafter_owns_kv(r->drafter)))
        add_follower(&w, l, &out, NULL, l->tap && from > 0);
    if (!ok || !plan_follow(r, &w, e)) {
        roll_back(r, &l, 1, &w);
        return false;
    }
    pass_lock(&r->pass);
    lane_commit(r, l, &out);
    l->guess.n = l->tree.n = 0;
    l->tap_row = draft ? n - 1 : -1;
    pass_unlock(&r->pass);
    run_follow(r, &w, topk);
    l->rec.page_digest = r->pass.digest;
    l->rec.us_verify = (uint32_t)((t1 - t0) / 1000);
    l->rec.us_commit = (uint32_t)((clock_ns() - t1) / 1000);
    l->rec.us_check = (uint32_t)((r->pass.check.ns - checked) / 1000);
    return true;
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
        struct drafting one = {&l->seq, &l->guess, l->slot - 1, depth, &l->tree, l->tok.v, l->tok.n};
        if (shape && r->drafter && depth > 0 && shape->nodes > 1 &&
            r->drafter->ops->ready(r->drafter, &one))
            d[k++] = one;
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
    if (!net_forward(&r->net, p, &r->pass.kp, tap ? drafter_taps(r->drafter) : NULL))
        return stopped(e);
    net_logits(&r->net, p->n_rows, (kbuf){0}, r->logits, (kbuf){0});
    return true;
}

/* Moves the accepted nodes' cells next to the committed ones, in every pool the target writes. All
 * of them are scratch until the commit. */
static void compact(struct rig *r, struct lane *l, const int *path, int n)
{
    int32_t src[2][MAX_STEPS + 1], dst[2][MAX_STEPS + 1];
    int at = l->seq.committed, k = 0, pools = r->kv.has_swa ? 2 : 1;
    pass_lock(&r->pass);
    for (int i = 0; i < n; i++) {
        if (path[i] == i)
            continue;
        full_slot from = kv_full_slot(&r->kv, &l->seq, at + path[i]);
        full_slot to = kv_full_slot(&r->kv, &l->seq, at + i);
        src[POOL_FULL][k] = from.v;
        dst[POOL_FULL][k] = to.v;
        src[POOL_SWA][k] = kv_swa_slot(&r->kv, from).v;
        dst[POOL_SWA][k] = kv_swa_slot(&r->kv, to).v;
        for (int p = 0; p < pools; p++)
            kv_moved(&r->kv, (enum pool_id)p, src[p][k], dst[p][k]);
        k++;
    }
    pass_unlock(&r->pass);
    for (int p = 0; p < pools && k > 0; p++) {
        kbuf from[2] = {{0}}, to[2] = {{0}};
        r->dev.k->put(r->dev.d, r->pair_src, src[p], (size_t)k * 4);
        r->dev.k->put(r->dev.d, r->pair_dst, dst[p], (size_t)k * 4);
        from[p] = r->pair_src;
        to[p] = r->pair_dst;
        net_move(&r->net, k, from, to);
    }
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
static int walk(struct rig *r, struct lane *l, int max_new, const int32_t *choice,
                int path[TREE_MAX])
{
    int most = min_int(max_new, r->context - l->tok.n);
    int n = tree_accept(&l->tree, choice, max_int(1, most), path);
    for (int i = 0; i < n; i++)
        if (rig_stops(r, choice[path[i]]))
            return i + 1;
    return n;
}

/* Samples every row of a lane, whose rows of the pass begin at `first`, and finds the path that is
 * kept; tap_rows: the rows of its nodes. The lane itself stays as it was. */
static bool accept(struct rig *r, struct lane *l, const struct step_limits *lim, int first,
                   int *tap_rows, struct outcome *out, struct err *e)
{
    int depth[TREE_MAX], path[TREE_MAX], offset[TREE_MAX];
    int32_t choice[TREE_MAX];
    float u[TREE_MAX];
    bool sampled = l->how.temperature > 0;
    for (int i = 0; i < l->tree.n; i++)
        depth[i] = l->tree.depth[i];
    sample(r, l, first, l->tree.n, depth, choice, u);
    if (!r->dev.k->sync(r->dev.d, e)) /* what a failed device gives are zeros, not tokens */
        return false;
    for (int i = 0; i < l->tree.n; i++)
        if (choice[i] < 0)
            return bad_token(e);
    script_choices(l, choice);
    int n = walk(r, l, l->force > 0 ? min_int(l->force, lim->max_new) : lim->max_new, choice, path);
    *out = (struct outcome){
        .rec = {.kind = l->tree.n > 1 ? STEP_SPEC : STEP_DECODE, .pos0 = l->seq.committed,
                .rows = l->tree.n, .drafted = l->tree.n - 1, .accepted = n - 1,
                .bonus = choice[path[n - 1]]},
        .n_cells = n, .n_new = n, .draws = l->draws + (sampled ? (uint64_t)n : 0), .drafted = -1};
    for (int i = 0; i < n; i++) {
        offset[i] = depth[path[i]];
        out->token[i] = choice[path[i]];
        tap_rows[i] = first + path[i];
        if (sampled)
            l->tree.u[path[i]] = u[path[i]];
    }
    pass_lock(&r->pass);
    bool ok = check_draws(&r->pass.check, l->draws, out->draws, offset, n, sampled, e);
    pass_unlock(&r->pass);
    if (!ok)
        return false;
    node_probabilities(r, first, &l->tree);
    out->rec.logit_digest = logit_digest(r, first, path, n);
    compact(r, l, path, n);
    return true;
}

/* Whether the lane's drafter has fallen behind the cells that were final before the step. */
static bool left_behind(const struct rig *r, const struct lane *l)
{
    return r->drafter && drafter_owns_kv(r->drafter) && l->seq.drafted < l->rec.pos0;
}

static void commit(struct rig *r, struct lane **lane, struct outcome *out,
                   int (*taps)[MAX_STEPS + 1], int n, bool drafting)
{
    pass_lock(&r->pass);
    for (int b = 0; b < n; b++) {
        struct lane *l = lane[b];
        lane_commit(r, l, &out[b]);
        l->tap_row = taps[b][out[b].n_new - 1];
        if (!drafting || left_behind(r, l)) {
            l->guess.n = 0;
            l->tap_row = -1;
        }
    }
    pass_unlock(&r->pass);
}

/* The captured states of the pass before are overwritten by a verify pass, also by one that fails. */
static void lose_taps(struct lane **lane, int n)
{
    for (int b = 0; b < n; b++)
        lane[b]->tap_row = -1;
}

bool lane_step(struct rig *r, struct lane **lane, const struct step_limits *lim, int n,
               const struct tree_shape *shape, struct err *e)
{
    CHECK(n <= MAX_LANES);
    if (n == 1 && fused_fits(r, lane[0], lim, shape))
        return fused_step(r, lane[0], lim, shape, e);
    struct following w = {0};
    struct outcome out[MAX_LANES];
    int taps[MAX_LANES][MAX_STEPS + 1];
    uint64_t t0 = clock_ns(), checked = r->pass.check.ns;
    pass_begin_step(&r->pass);
    for (int b = 0; b < n; b++)
        if (shape && lane_can_follow(r, lane[b]) && take_slot(r, lane[b]))
            add_follower(&w, lane[b], &out[b], taps[b], false);
    bool ok = draft(r, lane, lim, n, shape, e);
    uint64_t t1 = clock_ns();
    if (ok && w.n)
        lose_taps(lane, n);
    ok = ok && verify(r, lane, n, w.n > 0, e) && r->dev.k->sync(r->dev.d, e);
    uint64_t t2 = clock_ns();
    for (int b = 0, first = 0; b < n && ok; first += lane[b]->tree.n, b++)
        ok = accept(r, lane[b], &lim[b], first, taps[b], &out[b], e);
    if (!ok || !plan_follow(r, &w, e)) {
        roll_back(r, lane, n, &w);
        return false;
    }
    commit(r, lane, out, taps, n, shape != NULL);
    run_follow(r, &w, shape ? shape->topk : 1);
    uint64_t t3 = clock_ns();
    for (int b = 0; b < n; b++) {
        struct lane *l = lane[b];
        l->rec.page_digest = r->pass.digest;
        l->rec.draft_digest = l->tree.n > 1 ? tree_digest(&l->tree) : 0;
        l->rec.us_draft = (uint32_t)((t1 - t0) / 1000);
        l->rec.us_verify = (uint32_t)((t2 - t1) / 1000);
        l->rec.us_commit = (uint32_t)((t3 - t2) / 1000);
        l->rec.us_check = (uint32_t)((r->pass.check.ns - checked) / 1000);
    }
    return true;
}
