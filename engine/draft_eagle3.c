/* draft_eagle3.c - the EAGLE3 head; see draft.h.
 *
 * Forward (Li et al. 2025, arXiv 2503.01840, and the SafeAILab and SpecForge sources):
 *   g = fc [a_low; a_mid; a_high]      true target states; on later levels the head's own output
 *   z = [norm(E[token]); norm(g)]
 *   x = g + attention(z);  x = x + mlp(norm(x));  logits = head(norm(x));  feed back x
 */
#include "engine/draft.h"

#include <stdlib.h>
#include <string.h>

#define F32(n) ((size_t)(n) * sizeof(float))

struct eagle3 {
    struct drafter base;
    struct k_cells *cells; /* (n_layer) */
    kbuf fused;            /* (max_rows, n_capture * target_hidden) */
    kbuf x;                /* (max_rows, hidden) */
    kbuf out;              /* where the last pass left its states: x, or the base's state */
    kbuf z;                /* (max_rows, 2 hidden) */
    kbuf q, o, h, cs;
};

/* ---- opening --------------------------------------------------------------------------------- */

static bool want_as(struct eagle3 *d, const char *what, kbuf *b, size_t bytes, struct err *e)
{
    *b = d->base.dev.k->alloc(d->base.dev.d, bytes, what, e);
    return b->p != NULL;
}

static bool want(struct eagle3 *d, kbuf *b, size_t bytes, struct err *e)
{
    return want_as(d, "draft buffers", b, bytes, e);
}

static bool open_cells(struct eagle3 *d, int slots, enum kv_type kv, struct err *e)
{
    const struct draft *w = d->base.w;
    d->cells = xcalloc((size_t)w->cfg.n_layer, sizeof *d->cells);
    for (int l = 0; l < w->cfg.n_layer; l++) {
        struct k_cells *c = &d->cells[l];
        *c = (struct k_cells){.type = kv, .n_slots = slots, .n_kv = w->layer[l].n_kv,
                              .head_dim = w->layer[l].head_dim};
        size_t bytes = (size_t)slots * (size_t)(c->n_kv * c->head_dim) * kv_type_size(kv);
        if (!want_as(d, "KV cells", &c->k, bytes, e) || !want_as(d, "KV cells", &c->v, bytes, e))
            return false;
        d->base.dev.k->fill(d->base.dev.d, c->k, 0xff);
        d->base.dev.k->fill(d->base.dev.d, c->v, 0xff);
    }
    return true;
}

static bool open_buffers(struct eagle3 *d, struct err *e)
{
    const struct draft *w = d->base.w;
    const struct config *c = &w->cfg;
    size_t rows = (size_t)d->base.max_rows, heads = 0, ffn = 0, H = (size_t)c->hidden;
    size_t wide = (size_t)(w->n_capture * w->target_hidden);
    for (int l = 0; l < c->n_layer; l++) {
        size_t n = (size_t)(w->layer[l].n_head * w->layer[l].head_dim);
        heads = heads > n ? heads : n;
        ffn = ffn > (size_t)w->layer[l].ffn ? ffn : (size_t)w->layer[l].ffn;
    }
    d->base.taps.n = w->n_capture;
    d->base.taps.stride = (int)wide;
    d->base.state_n = c->hidden;
    memcpy(d->base.taps.boundary, w->capture, sizeof w->capture);
    size_t half = c->n_rope ? (size_t)c->rope[0].half : 1;
    return drafter_buffers(&d->base, e) && want(d, &d->fused, F32(rows * wide), e) &&
           want(d, &d->x, F32(rows * H), e) &&
           want(d, &d->z, F32(rows * 2 * H), e) && want(d, &d->q, F32(rows * heads), e) &&
           want(d, &d->o, F32(rows * heads), e) && want(d, &d->h, F32(rows * ffn), e) &&
           want(d, &d->cs, F32(rows * half * 2), e);
}

static void close_eagle3(struct drafter *base)
{
    struct eagle3 *d = (struct eagle3 *)base;
    const struct kernels *k = base->dev.k;
    for (int l = 0; d->cells && l < base->w->cfg.n_layer; l++) {
        k->release(base->dev.d, d->cells[l].k);
        k->release(base->dev.d, d->cells[l].v);
    }
    free(d->cells);
    kbuf all[] = {d->fused, d->x, d->z, d->q, d->o, d->h, d->cs};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        k->release(base->dev.d, all[i]);
}

/* ---- the head -------------------------------------------------------------------------------- */

/* x = fc of the captured states, each normalised first where the head says so */
static void fuse(struct eagle3 *d, kbuf from, int rows)
{
    const struct draft *w = d->base.w;
    int wide = d->base.taps.stride, t = w->target_hidden;
    drafter_gather(&d->base, d->base.taps.dst, from, rows, wide, d->fused);
    for (int i = 0; i < w->n_capture; i++)
        if (w->fc_norm[i].data) {
            size_t off = F32(i * t);
            kbuf part = kbuf_at(d->fused, off, d->fused.n - off);
            d->base.dev.k->normalize(d->base.dev.d, &(struct k_normalize){
                .rows = rows, .n = t, .src_stride = wide, .dst_stride = wide, .src = part,
                .dst = part, .norm = norm_of(&w->cfg, &w->fc_norm[i]), .scale = 1});
        }
    d->base.dev.k->linear(d->base.dev.d, &(struct k_linear){
        .rows = rows, .src_stride = wide, .src = d->fused, .pre = norm_of(&w->cfg, &w->input_norm),
        .w = &w->fc, .b = tensor_opt(&w->fc_b), .scale = 1, .dst = d->x});
}

static void normalize(struct eagle3 *d, kbuf src, int src_stride, kbuf dst, int dst_stride,
                      int rows, struct k_norm norm)
{
    int H = d->base.w->cfg.hidden;
    d->base.dev.k->normalize(d->base.dev.d, &(struct k_normalize){.rows = rows,
                                                                  .n = H,
                                                                  .src_stride = src_stride,
                                                                  .dst_stride = dst_stride,
                                                                  .src = src,
                                                                  .dst = dst,
                                                                  .norm = norm,
                                                                  .scale = 1});
}

/* x = g + attention([norm(e); norm(g)]), g being what x holds: the first layer's input is twice as
 * wide. */
static void join(struct eagle3 *d, const struct k_plan *kp, int rows, kbuf x)
{
    const struct config *c = &d->base.w->cfg;
    const struct layer *w = &d->base.w->layer[0];
    int H = c->hidden;
    const struct tensor *table =
        d->base.w->embed.data ? &d->base.w->embed : &d->base.target->m->embed;
    d->base.dev.k->embed(d->base.dev.d, &(struct k_embed){
        .rows = rows, .n = H, .ids = kp->token, .table = table, .scale = 1, .dst = d->z,
        .dst_stride = 2 * H});
    kbuf second = kbuf_at(d->z, F32(H), d->z.n - F32(H));
    normalize(d, d->z, 2 * H, d->z, 2 * H, rows, norm_of(c, &w->in_norm));
    normalize(d, x, H, second, 2 * H, rows, norm_of(c, &w->hidden_norm));
    if (d->base.w->norm_before_residual)
        normalize(d, x, H, x, H, rows, norm_of(c, &w->hidden_norm));
}

static void attention(struct eagle3 *d, const struct k_plan *kp, int l, int rows, kbuf x)
{
    const struct config *c = &d->base.w->cfg;
    const struct layer *w = &d->base.w->layer[l];
    const struct k_table *table = w->window ? &kp->draft_win : &kp->draft;
    bool first = l == 0, packed = w->wo.type == DT_BF16;
    d->base.dev.k->qkv(d->base.dev.d, &(struct k_qkv){
        .rows = rows, .src_stride = first ? 2 * c->hidden : c->hidden, .src = first ? d->z : x,
        .norm = first ? (struct k_norm){NORM_NONE, NULL, c->eps} : norm_of(c, &w->in_norm),
        .wq = &w->wq, .wk = &w->wk, .wv = &w->wv,
        .bq = tensor_opt(&w->bq), .bk = tensor_opt(&w->bk), .bv = tensor_opt(&w->bv),
        .n_head = w->n_head, .n_kv = w->n_kv, .head_dim = w->head_dim,
        .q_norm = norm_of(c, &w->q_norm), .k_norm = norm_of(c, &w->k_norm),
        .norm_whole = c->qk_norm_whole, .rot = c->rope[0].rot, .cs = d->cs, .q = d->q,
        .cells = d->cells[l], .table = table});
    d->base.dev.k->attn(d->base.dev.d, &(struct k_attn){
        .rows = rows, .n_head = w->n_head, .scale = c->attn_scale, .q = d->q,
        .cells = d->cells[l], .table = table, .packed = packed, .dst = d->o});
    d->base.dev.k->linear(d->base.dev.d, &(struct k_linear){
        .rows = rows, .src_stride = w->n_head * w->head_dim, .src = d->o, .w = &w->wo,
        .b = tensor_opt(&w->bo), .scale = 1, .add = true, .packed = packed, .dst = x});
}

/* From the states in x and the plan's tokens to the states behind them, in their place. */
static void forward(struct eagle3 *d, const struct k_plan *kp, int rows, kbuf x)
{
    const struct config *c = &d->base.w->cfg;
    const struct kernels *k = d->base.dev.k;
    k->rope(d->base.dev.d, &(struct k_rope){.rows = rows,
                                            .half = c->rope[0].half,
                                            .pos = kp->pos,
                                            .inv_freq = c->rope[0].inv_freq,
                                            .factor = c->rope[0].cs_factor,
                                            .cs = d->cs});
    join(d, kp, rows, x);
    for (int l = 0; l < c->n_layer; l++) {
        const struct layer *w = &d->base.w->layer[l];
        bool packed = w->gate.type == w->up.type && w->up.type == w->down.type;
        attention(d, kp, l, rows, x);
        k->glu(d->base.dev.d, &(struct k_glu){.rows = rows, .src = x,
                                              .pre = norm_of(c, &w->ffn_in_norm),
                                              .gate = &w->gate, .up = &w->up, .act = c->act,
                                              .packed = packed, .dst = d->h});
        k->linear(d->base.dev.d, &(struct k_linear){.rows = rows, .src_stride = w->ffn,
                                                    .src = d->h, .w = &w->down, .scale = 1,
                                                    .add = true, .packed = packed, .dst = x});
    }
    d->out = x;
}

/* The head's logits after n rows of states. */
static void logits(struct eagle3 *d, int n)
{
    const struct draft *w = d->base.w;
    const struct tensor *head = w->head.data ? &w->head : &d->base.target->m->head;
    d->base.dev.k->linear(d->base.dev.d, &(struct k_linear){
        .rows = n, .src_stride = w->cfg.hidden, .src = d->base.state,
        .pre = norm_of(&w->cfg, &w->norm), .w = head, .scale = 1, .dst = d->base.logits});
}

static void extend(struct drafter *base, const struct k_plan *kp, int rows, kbuf from, kbuf last,
                   int n_req)
{
    struct eagle3 *d = (struct eagle3 *)base;
    fuse(d, from, rows);
    forward(d, kp, rows, d->x);
    drafter_gather(base, d->x, last, n_req, base->w->cfg.hidden, base->state);
    logits(d, n_req);
}

/* The head's own outputs take the place of true states: fed back as they are, or normed. */
static void level(struct drafter *base, const struct k_plan *kp, int rows)
{
    struct eagle3 *d = (struct eagle3 *)base;
    const struct config *c = &base->w->cfg;
    kbuf x = base->inputs;
    if (base->w->norm_output)
        normalize(d, x, c->hidden, x, c->hidden, rows, norm_of(c, &base->w->norm));
    forward(d, kp, rows, x);
    base->inputs = base->state;
    base->state = x;
    logits(d, rows);
}

static kbuf output(struct drafter *base)
{
    return ((struct eagle3 *)base)->out;
}

static void move(struct drafter *base, int pairs, kbuf src, kbuf dst)
{
    struct eagle3 *d = (struct eagle3 *)base;
    base->dev.k->move(base->dev.d, &(struct k_move){
        .pairs = pairs, .n_pools = 1,
        .pool = {{.src = src, .dst = dst, .n_layers = base->w->cfg.n_layer, .cells = d->cells}}});
}

static const struct drafter_ops eagle3_ops = {.owns_kv = true, .close = close_eagle3,
                                              .extend = extend, .level = level, .output = output,
                                              .move = move};

struct drafter *eagle3_open(struct device dev, struct draft *w, struct net *target, int slots,
                            enum kv_type kv, int max_rows, struct err *e)
{
    struct eagle3 *d = xcalloc(1, sizeof *d);
    d->base = (struct drafter){.ops = &eagle3_ops, .dev = dev, .w = w, .target = target,
                               .max_rows = max_rows};
    if (draft_each(w, device_upload, &dev, e) && open_cells(d, slots, kv, e) && open_buffers(d, e))
        return &d->base;
    drafter_close(&d->base);
    return NULL;
}
