/* dflash.c - a DFlash draft, which guesses a block of tokens in one pass; see head.h.
 *
 * Forward (arXiv 2602.06036, and the sources of speculators, vLLM and transformers):
 *   cell i of every layer, once position i is committed:
 *     c = norm(fc [captured states of position i]);  K = rope(norm(Wk c), i);  V = Wv c
 *   the block of B rows at positions P .. P + B - 1, P committed positions:
 *     x_0 = E[pending token] s, x_j = E[mask] s; each layer reads its cells 0 .. P - 1 and all
 * cells
 *     of the block (causal layers: those up to the row's own)
 *     logits_j = head(norm(x_j)), j >= 1: of the token at position P + j
 * The block's cells are scratch: they are gone after the pass, whatever is accepted.
 */
#include "engine/draft/layers.h"

#define F32(n) ((size_t)(n) * sizeof(float))

_Static_assert((int)MAX_BLOCK <= (int)K_MAX_STEPS + 1,
               "the cells of a block are among the last keys of its rows (kernels.h)");

struct dflash {
    struct head base;
    struct layers layers;
    kbuf fused; /* (max_rows, n_capture * target_hidden) */
    kbuf x, z;  /* (max_rows, hidden) */
};

/* ---- opening --------------------------------------------------------------------------------- */

static bool open_dflash(struct head *base, const struct drafter_setup *s, struct err *e)
{
    struct dflash *d = (struct dflash *)base;
    size_t rows = (size_t)base->max_rows, H = (size_t)base->w->cfg.hidden;
    bool ok = layers_open(&d->layers, base, s, e) &&
              head_want(base, &d->fused, F32(rows * (size_t)base->taps.stride), e) &&
              head_want(base, &d->x, F32(rows * H), e) && head_want(base, &d->z, F32(rows * H), e);
    base->out = d->x;
    return ok;
}

/* ---- the head -------------------------------------------------------------------------------- */

static const struct k_norm no_norm = {NORM_NONE, NULL, 0};

/* The cells of the rows' positions, from captured states. */
static void extend(struct head *base, const struct k_plan *kp, int rows, kbuf from, kbuf last,
                   int n_req, kbuf state)
{
    struct dflash *d = (struct dflash *)base;
    const struct draft *w = base->w;
    const struct kernels *k = base->dev.k;
    const struct taps *t = &base->taps;
    struct k_rope rope = layers_rope(&d->layers, base, kp, rows);
    bool packed = w->fc.type == DT_BF16;
    (void)last, (void)n_req, (void)state;
    k->gather(base->dev.d, &(struct k_gather){
        .rows = rows, .n_parts = 1, .rope = {&rope},
        .part = {{.n = t->stride, .src = t->dst, .src_stride = t->stride, .idx = from,
                  .norm = no_norm, .dst = d->fused, .width = t->stride, .packed = packed}}});
    k->linear(base->dev.d, &(struct k_linear){
        .rows = rows, .src_stride = t->stride, .src = d->fused, .w = &w->fc, .scale = 1,
        .post = norm_of(&w->cfg, &w->context_norm), .packed = packed, .dst = d->x});
    for (int l = 0; l < w->cfg.n_layer; l++)
        layers_store(&d->layers, base, kp, l, rows,
                     (struct layer_input){d->x, w->cfg.hidden, no_norm, false});
}

/* x = E[token] s, z = norm(x) for the first layer, and the rope angles. */
static void embed(struct dflash *d, const struct k_plan *kp, int rows)
{
    const struct draft *w = d->base.w;
    const struct layer *first = &w->layer[0];
    int H = w->cfg.hidden;
    struct k_rope rope = layers_rope(&d->layers, &d->base, kp, rows);
    d->base.dev.k->gather(d->base.dev.d, &(struct k_gather){
        .rows = rows, .n_parts = 1, .rope = {&rope},
        .part = {{.n = H, .table = w->embed.data ? &w->embed : &d->base.target->m->embed,
                  .scale = w->cfg.embed_scale, .idx = kp->token, .copy = d->x,
                  .norm = norm_of(&w->cfg, &first->in_norm), .dst = d->z, .width = H,
                  .packed = layers_pack(first)}}});
}

static void block(struct head *base, const struct k_plan *kp, int rows, kbuf which, int n)
{
    struct dflash *d = (struct dflash *)base;
    const struct draft *w = base->w;
    const struct config *c = &w->cfg;
    embed(d, kp, rows);
    for (int l = 0; l < c->n_layer; l++) {
        struct layer_input in = {d->x, c->hidden, norm_of(c, &w->layer[l].in_norm), false};
        if (l == 0)
            in = (struct layer_input){d->z, c->hidden, no_norm, layers_pack(&w->layer[0])};
        layers_run(&d->layers, base, kp, l, rows, in, d->x);
    }
    head_gather(base, d->x, which, n, c->hidden, base->state);
    base->dev.k->linear(base->dev.d, &(struct k_linear){
        .rows = n, .src_stride = c->hidden, .src = base->state, .pre = norm_of(c, &w->norm),
        .w = w->head.data ? &w->head : &base->target->m->head, .softcap = c->final_softcap,
        .scale = c->logit_scale, .dst = base->logits});
}

static const struct head_ops dflash_ops = {.size = sizeof(struct dflash), .open = open_dflash,
                                           .extend = extend, .block = block};

const struct drafter_ops dflash_drafter = {.name = "dflash", .about = "a DFlash block draft",
                                           .kv = DRAFT_KV_OWN, .head = &dflash_ops, HEAD_DRAFTER};
