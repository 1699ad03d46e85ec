/* eagle3.c - the EAGLE3 head; see head.h.
 *
 * Forward (Li et al. 2025, arXiv 2503.01840, and the SafeAILab and SpecForge sources):
 *   g = fc [a_low; a_mid; a_high]      the target's captured states; on later levels of a tree, the
 *                                      head's own output
 *   z = [norm(E[token]); norm(g)]
 *   x = g + attention(z);  x = x + mlp(norm(x));  logits = head(norm(x));
 *   x is the g of the next level
 */
#include "engine/draft/head.h"

#include <stdlib.h>
#include <string.h>

#define F32(n) ((size_t)(n) * sizeof(float))

_Static_assert((int)K_MAX_PARTS > (int)MAX_CAPTURE,
               "one gather joins all captured states and the token embedding");

struct eagle3 {
    struct head base;
    struct k_cells *cells; /* (n_layer) */
    kbuf fused;            /* (max_rows, n_capture * target_hidden) */
    kbuf x;                /* (max_rows, hidden) */
    kbuf out;              /* the buffer with the last pass's states: x, or the base's state */
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
        size_t bytes = (size_t)slots * kv_cell_bytes(kv, c->n_kv, c->head_dim);
        const char *what = pool_cells(POOL_DRAFT);
        if (!want_as(d, what, &c->k, bytes, e) || !want_as(d, what, &c->v, bytes, e))
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
    size_t wide = (size_t)w->n_capture * (size_t)w->target_hidden;
    for (int l = 0; l < c->n_layer; l++) {
        size_t n = (size_t)w->layer[l].n_head * (size_t)w->layer[l].head_dim;
        heads = heads > n ? heads : n;
        ffn = ffn > (size_t)w->layer[l].ffn ? ffn : (size_t)w->layer[l].ffn;
    }
    d->base.taps.n = w->n_capture;
    d->base.taps.stride = (int)wide;
    d->base.state_n = c->hidden;
    memcpy(d->base.taps.boundary, w->capture, sizeof w->capture);
    size_t half = c->n_rope ? (size_t)c->rope[0].half : 1;
    return head_buffers(&d->base, e) && want(d, &d->fused, F32(rows * wide), e) &&
           want(d, &d->x, F32(rows * H), e) &&
           want(d, &d->z, F32(rows * 2 * H), e) && want(d, &d->q, F32(rows * heads), e) &&
           want(d, &d->o, F32(rows * heads), e) && want(d, &d->h, F32(rows * ffn), e) &&
           want(d, &d->cs, F32(rows * half * 2), e);
}

static void close_eagle3(struct head *base)
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

/* Whether a linear with these weights reads packed activation rows (kernels.h). */
static bool packs(const struct tensor *w)
{
    return w->type == DT_BF16;
}
static bool packs_first(const struct layer *w)
{
    return packs(&w->wq) && packs(&w->wk) && packs(&w->wv);
}
static bool packs_fc(const struct draft *w)
{
    return packs(&w->fc) && !w->input_norm.data;
}

/* The gather's parts for the captured states, each normalized if the head has a norm for it.
 * Returns how many parts there are. */
static int taps_part(const struct eagle3 *d, kbuf from, struct k_part *part)
{
    const struct draft *w = d->base.w;
    const struct taps *t = &d->base.taps;
    bool normed = false;
    for (int i = 0; i < w->n_capture; i++)
        normed |= w->fc_norm[i].data != NULL;
    int n = normed ? w->n_capture : 1, each = t->stride / n;
    for (int i = 0; i < n; i++) {
        part[i] = (struct k_part){.n = each, .src_stride = t->stride, .idx = from, .dst = d->fused,
                                  .width = t->stride, .at = i * each, .packed = packs_fc(w)};
        part[i].src = kbuf_at(t->dst, F32(mul64(i, each)), t->dst.n - F32(mul64(i, each)));
        part[i].norm = norm_of(&w->cfg, &w->fc_norm[i]);
    }
    return n;
}

/* The two halves of the first layer's input, z = [norm(E[token]); norm(g)]. g is row from[r] of
 * `states`; the gather also copies g to x. */
static struct k_part token_part(const struct eagle3 *d, const struct k_plan *kp)
{
    const struct draft *w = d->base.w;
    const struct tensor *table = w->embed.data ? &w->embed : &d->base.target->m->embed;
    return (struct k_part){.n = w->cfg.hidden, .table = table, .scale = 1, .idx = kp->token,
                           .norm = norm_of(&w->cfg, &w->layer[0].in_norm), .dst = d->z,
                           .width = 2 * w->cfg.hidden, .packed = packs_first(&w->layer[0])};
}

static struct k_part state_part(const struct eagle3 *d, kbuf states, kbuf from, kbuf x)
{
    const struct draft *w = d->base.w;
    int H = w->cfg.hidden;
    bool normed = w->norm_before_residual;
    return (struct k_part){.n = H, .src = states, .src_stride = H, .idx = from,
                           .norm = norm_of(&w->cfg, &w->layer[0].hidden_norm),
                           .copy = from.p || normed ? x : (kbuf){0}, .copy_normed = normed,
                           .dst = d->z, .width = 2 * H, .at = H,
                           .packed = packs_first(&w->layer[0])};
}

static struct k_rope rope_of(const struct eagle3 *d, const struct k_plan *kp, int rows)
{
    const struct rope *r = &d->base.w->cfg.rope[0];
    return (struct k_rope){.rows = rows, .half = r->half, .pos = kp->pos, .inv_freq = r->inv_freq,
                           .factor = r->cs_factor, .cs = d->cs};
}

/* From the captured states of an extend pass: x = fc [a_low; a_mid; a_high], and z. */
static void begin_extend(struct eagle3 *d, const struct k_plan *kp, kbuf from, int rows)
{
    const struct draft *w = d->base.w;
    const struct kernels *k = d->base.dev.k;
    struct k_rope rope = rope_of(d, kp, rows);
    struct k_gather first = {.rows = rows, .rope = {&rope}}, second = {.rows = rows, .n_parts = 1};
    first.n_parts = taps_part(d, from, first.part);
    first.part[first.n_parts++] = token_part(d, kp);
    second.part[0] = state_part(d, d->x, (kbuf){0}, d->x);
    k->gather(d->base.dev.d, &first);
    k->linear(d->base.dev.d, &(struct k_linear){
        .rows = rows, .src_stride = d->base.taps.stride, .src = d->fused,
        .pre = norm_of(&w->cfg, &w->input_norm), .w = &w->fc, .b = tensor_opt(&w->fc_b), .scale = 1,
        .packed = packs_fc(w), .dst = d->x});
    k->gather(d->base.dev.d, &second);
}

static void attention(struct eagle3 *d, const struct k_plan *kp, int l, int rows, kbuf x)
{
    const struct config *c = &d->base.w->cfg;
    const struct layer *w = &d->base.w->layer[l];
    const struct k_table *table = &kp->table[draft_table(w->window)];
    bool first = l == 0, packed = packs(&w->wo);
    d->base.dev.k->qkv(d->base.dev.d, &(struct k_qkv){
        .rows = rows, .src_stride = first ? 2 * c->hidden : c->hidden, .src = first ? d->z : x,
        .norm = first ? (struct k_norm){NORM_NONE, NULL, c->eps} : norm_of(c, &w->in_norm),
        .packed = first && packs_first(w),
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

/* The layers. x: the states g, which the output states replace; d->z must be filled in. */
static void forward(struct eagle3 *d, const struct k_plan *kp, int rows, kbuf x)
{
    const struct config *c = &d->base.w->cfg;
    const struct kernels *k = d->base.dev.k;
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

/* The logits of n rows of output states, into base.logits. */
static void logits(struct eagle3 *d, kbuf state, int n)
{
    const struct draft *w = d->base.w;
    const struct tensor *head = w->head.data ? &w->head : &d->base.target->m->head;
    d->base.dev.k->linear(d->base.dev.d, &(struct k_linear){
        .rows = n, .src_stride = w->cfg.hidden, .src = state,
        .pre = norm_of(&w->cfg, &w->norm), .w = head, .scale = 1, .dst = d->base.logits});
}

static void extend(struct head *base, const struct k_plan *kp, int rows, kbuf from, kbuf last,
                   int n_req, kbuf state)
{
    struct eagle3 *d = (struct eagle3 *)base;
    begin_extend(d, kp, from, rows);
    forward(d, kp, rows, d->x);
    head_gather(base, d->x, last, n_req, base->w->cfg.hidden, state);
    logits(d, state, n_req);
}

/* One level of a tree: g is the head's own output for the parent, normalized if norm_output says
 * so. */
static void level(struct head *base, const struct k_plan *kp, int rows, kbuf states, kbuf from)
{
    struct eagle3 *d = (struct eagle3 *)base;
    const struct config *c = &base->w->cfg;
    struct k_rope rope = rope_of(d, kp, rows);
    kbuf x = base->inputs;
    if (base->w->norm_output) {
        if (from.p)
            head_gather(base, states, from, rows, c->hidden, x);
        base->dev.k->normalize(base->dev.d, &(struct k_normalize){
            .rows = rows, .n = c->hidden, .src_stride = c->hidden, .dst_stride = c->hidden,
            .src = x, .dst = x, .norm = norm_of(c, &base->w->norm), .scale = 1});
        from = (kbuf){0};
    }
    base->dev.k->gather(base->dev.d, &(struct k_gather){
        .rows = rows, .n_parts = 2, .rope = {&rope},
        .part = {token_part(d, kp), state_part(d, from.p ? states : x, from, x)}});
    forward(d, kp, rows, x);
    base->inputs = base->state;
    base->state = x;
    logits(d, x, rows);
}

static kbuf output(struct head *base)
{
    return ((struct eagle3 *)base)->out;
}

static void move(struct head *base, int pairs, kbuf src, kbuf dst)
{
    struct eagle3 *d = (struct eagle3 *)base;
    base->dev.k->move(base->dev.d, &(struct k_move){
        .pairs = pairs, .n_pools = 1,
        .pool = {{.src = src, .dst = dst, .n_layers = base->w->cfg.n_layer, .cells = d->cells}}});
}

static const struct head_ops eagle3_ops = {.close = close_eagle3, .extend = extend, .level = level,
                                           .output = output, .move = move};

static struct drafter *open_eagle3(const struct drafter_setup *s, struct err *e)
{
    struct eagle3 *d = xcalloc(1, sizeof *d);
    struct device dev = s->dev;
    head_init(&d->base, &eagle3_ops, s);
    if (draft_each(s->w, device_upload, &dev, e) && open_cells(d, s->slots, s->kv, e) &&
        open_buffers(d, e))
        return &d->base.base;
    head_close(&d->base.base);
    return NULL;
}

const struct drafter_ops eagle3_drafter = {.name = "eagle3", .about = "an EAGLE3 head",
                                           .kv = DRAFT_KV_OWN, .open = open_eagle3,
                                           .close = head_close, .ready = head_ready,
                                           .grow = head_grow};
