/* layers.c - see layers.h. */
#include "engine/draft/layers.h"

#include "kernels/packed.h"

#define F32(n) ((size_t)(n) * sizeof(float))

/* ---- opening --------------------------------------------------------------------------------- */

static bool open_cells(struct head *h, int slots, enum kv_type kv, struct err *e)
{
    const struct draft *w = h->w;
    h->cells = xcalloc((size_t)w->cfg.n_layer, sizeof *h->cells);
    h->n_cells = w->cfg.n_layer;
    for (int l = 0; l < w->cfg.n_layer; l++) {
        struct k_cells *c = &h->cells[l];
        *c = (struct k_cells){.type = kv, .n_slots = slots, .n_kv = w->layer[l].n_kv,
                              .head_dim = w->layer[l].head_dim};
        size_t bytes = (size_t)slots * kv_cell_bytes(kv, c->n_kv, c->head_dim);
        const char *what = pool_cells(POOL_DRAFT);
        c->k = h->dev.k->alloc(h->dev.d, bytes, what, e);
        c->v = c->k.p ? h->dev.k->alloc(h->dev.d, bytes, what, e) : (kbuf){0};
        if (!c->v.p)
            return false;
        h->dev.k->fill(h->dev.d, c->k, 0xff);
        h->dev.k->fill(h->dev.d, c->v, 0xff);
    }
    return true;
}

/* Coefficients of a row: those of inputs, then those of outputs. */
static int kernels_of(const struct draft *w)
{
    return w->taps ? 2 * w->taps * (w->cfg.hidden / w->group) : 0;
}

bool layers_open(struct layers *y, struct head *h, const struct drafter_setup *s, struct err *e)
{
    const struct draft *w = h->w;
    size_t rows = (size_t)h->max_rows, heads, ffn;
    size_t half = w->cfg.n_rope ? (size_t)w->cfg.rope[0].half : 1;
    size_t hidden = w->taps ? (size_t)w->cfg.hidden : 0;
    head_widths(w, &heads, &ffn);
    h->taps.n = w->n_capture;
    h->taps.stride = w->n_capture * w->target_hidden;
    h->state_n = w->cfg.hidden;
    memcpy(h->taps.boundary, w->capture, sizeof w->capture);
    return open_cells(h, s->slots, s->kv, e) && head_want(h, &y->q, F32(rows * heads), e) &&
           head_want(h, &y->o, F32(rows * heads), e) && head_want(h, &y->h, F32(rows * ffn), e) &&
           head_want(h, &y->cs, F32(rows * half * 2), e) &&
           head_want(h, &y->y, F32(rows * hidden), e) &&
           head_want(h, &y->z, F32(rows * hidden), e) &&
           head_want(h, &y->by, F32(rows * (size_t)kernels_of(w)), e) && head_buffers(h, e);
}

/* ---- attention's part ------------------------------------------------------------------------ */

bool layers_pack(const struct layer *w)
{
    return dtype_as_bf16(w->wq.type) && dtype_as_bf16(w->wk.type) && dtype_as_bf16(w->wv.type);
}

struct k_rope layers_rope(const struct layers *y, const struct head *h, const struct k_plan *kp,
                          int rows)
{
    const struct rope *r = &h->w->cfg.rope[0];
    return (struct k_rope){.rows = rows, .half = r->half, .pos = kp->pos, .inv_freq = r->inv_freq,
                           .factor = r->cs_factor, .cs = y->cs};
}

static struct k_qkv qkv_of(const struct layers *y, const struct head *h, const struct k_plan *kp,
                           int l, int rows, struct layer_input in)
{
    const struct config *c = &h->w->cfg;
    const struct layer *w = &h->w->layer[l];
    return (struct k_qkv){
        .rows = rows, .src_stride = in.stride, .src = in.src, .norm = in.norm, .packed = in.packed,
        .wq = &w->wq, .wk = &w->wk, .wv = &w->wv,
        .bq = tensor_opt(&w->bq), .bk = tensor_opt(&w->bk), .bv = tensor_opt(&w->bv),
        .n_head = w->n_head, .n_kv = w->n_kv, .head_dim = w->head_dim,
        .q_norm = norm_of(c, &w->q_norm), .k_norm = norm_of(c, &w->k_norm),
        .norm_whole = c->qk_norm_whole, .rot = c->rope[0].rot, .cs = y->cs, .q = y->q,
        .cells = h->cells[l], .table = &kp->table[draft_table(w->window)]};
}

void layers_store(struct layers *y, struct head *h, const struct k_plan *kp, int l, int rows,
                  struct layer_input in)
{
    struct k_qkv a = qkv_of(y, h, kp, l, rows, in);
    /* qkv() always computes queries: the keys' projection, the smallest one, stands in for them */
    a.wq = a.wk;
    a.bq = a.bk;
    a.q_norm = a.k_norm;
    a.n_head = a.n_kv;
    h->dev.k->qkv(h->dev.d, &a);
}

/* ---- convolutions (DFlash 2) ----------------------------------------------------------------- */

/* The convolution around one part of a layer. */
struct around {
    const struct tensor *base, *by;
};

/* side 0: of the part's input, 1: of its output. */
static void convolve(struct layers *y, struct head *h, const struct k_plan *kp, int rows,
                     struct around a, int side, kbuf src, bool add, kbuf dst)
{
    const struct draft *w = h->w;
    int wide = kernels_of(w) / 2;
    size_t from = F32(side * wide);
    h->dev.k->conv(h->dev.d, &(struct k_conv){
        .rows = rows, .n = w->cfg.hidden, .taps = w->taps, .group = w->group,
        .run = kp->req, .src = src, .base = a.base, .at = side * w->taps,
        .by = kbuf_at(y->by, from, y->by.n - from), .by_stride = 2 * wide, .add = add,
        .dst = dst});
}

/* y->y = the input's convolution of norm(x); the coefficients stay for the output's. */
static void convolve_input(struct layers *y, struct head *h, const struct k_plan *kp, int rows,
                           struct around a, kbuf x, struct k_norm norm)
{
    const struct kernels *k = h->dev.k;
    int n = h->w->cfg.hidden;
    k->normalize(h->dev.d, &(struct k_normalize){.rows = rows, .n = n, .src = x, .dst = y->z,
                                                 .norm = norm, .scale = 1});
    k->linear(h->dev.d, &(struct k_linear){.rows = rows, .src_stride = n, .src = y->z, .w = a.by,
                                           .scale = 1, .dst = y->by});
    convolve(y, h, kp, rows, a, 0, y->z, false, y->y);
}

/* ---- a layer --------------------------------------------------------------------------------- */

void layers_run(struct layers *y, struct head *h, const struct k_plan *kp, int l, int rows,
                struct layer_input in, kbuf x)
{
    static const struct k_norm none = {NORM_NONE, NULL, 0};
    const struct config *c = &h->w->cfg;
    const struct layer *w = &h->w->layer[l];
    const struct kernels *k = h->dev.k;
    const bool conv = h->w->taps > 0;
    struct around attn = {&w->attn_conv, &w->attn_by}, mlp = {&w->mlp_conv, &w->mlp_by};
    bool out_packed = dtype_as_bf16(w->wo.type);
    bool mlp_packed = w->gate.type == w->up.type && w->up.type == w->down.type;
    if (conv) {
        convolve_input(y, h, kp, rows, attn, in.src, in.norm);
        in = (struct layer_input){y->y, c->hidden, none, false};
    }
    struct k_qkv qkv = qkv_of(y, h, kp, l, rows, in);
    k->qkv(h->dev.d, &qkv);
    k->attn(h->dev.d, &(struct k_attn){
        .rows = rows, .n_head = w->n_head, .scale = c->attn_scale, .q = y->q,
        .cells = h->cells[l], .table = qkv.table, .packed = out_packed, .dst = y->o});
    k->linear(h->dev.d, &(struct k_linear){
        .rows = rows, .src_stride = w->n_head * w->head_dim, .src = y->o, .w = &w->wo,
        .b = tensor_opt(&w->bo), .scale = 1, .add = !conv, .packed = out_packed,
        .dst = conv ? y->z : x});
    if (conv) {
        convolve(y, h, kp, rows, attn, 1, y->z, true, x);
        convolve_input(y, h, kp, rows, mlp, x, norm_of(c, &w->ffn_in_norm));
    }
    k->glu(h->dev.d, &(struct k_glu){.rows = rows, .src = conv ? y->y : x,
                                     .pre = conv ? none : norm_of(c, &w->ffn_in_norm),
                                     .gate = &w->gate, .up = &w->up, .act = c->act,
                                     .packed = mlp_packed, .dst = y->h});
    k->linear(h->dev.d, &(struct k_linear){.rows = rows, .src_stride = w->ffn, .src = y->h,
                                           .w = &w->down, .scale = 1, .add = !conv,
                                           .packed = mlp_packed, .dst = conv ? y->z : x});
    if (conv)
        convolve(y, h, kp, rows, mlp, 1, y->z, true, x);
}
