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
 *
 * If the draft samples from the anchor (block_depth 1), row j's logits are of the token at P + j +
 * 1, and row 0 guesses, too. Of DSpark and DFlash 2 the guesses of a row depend on the token before
 * (enum draft_edges in models.h; p is the parent's token, h = norm(x_j)):
 *   DSpark     logits_j + W2 e, e = W1[p], or gated: sigmoid(Wg [h; e] + bg) * e
 *   DFlash 2   of the `choices` best tokens c of row j: logits_j[c] + (pred[p] * W h) . succ[c];
 *              its probabilities are those among them
 * DFlash 2's layers have convolutions over the rows of a block (layers.c), which see earlier rows
 * of the block only; the cells of committed positions have none.
 */
#include "engine/draft/layers.h"

#define F32(n) ((size_t)(n) * sizeof(float))

_Static_assert((int)MAX_BLOCK <= (int)K_MAX_STEPS + 1,
               "the cells of a block are among the last keys of its rows (kernels.h)");
_Static_assert((int)MAX_CHOICES <= (int)MAX_TOPK && (int)MAX_TAPS <= (int)K_MAX_TAPS,
               "what a config may ask for");

struct dflash {
    struct head base;
    struct layers layers;
    kbuf fused; /* (max_rows, n_capture * target_hidden) */
    kbuf x, z;  /* (max_rows, hidden) */
    /* of drafts with edges, a row for each parent: */
    kbuf e, gate;      /* (max_heads, rank) e as above; the gate, or e * W h */
    kbuf in;           /* (max_heads, hidden + rank) of EDGES_GATED; (max_heads, hidden) of
                          EDGES_BEST */
    kbuf biased;       /* (max_heads, draft_vocab) the logits, of EDGES_BIAS and EDGES_GATED */
    kbuf best, best_logp; /* (max_heads, choices) of the block's rows, of EDGES_BEST */
};

/* ---- opening --------------------------------------------------------------------------------- */

static bool open_edges(struct dflash *d, struct err *e)
{
    const struct draft *w = d->base.w;
    size_t rows = (size_t)d->base.max_heads, wide = (size_t)w->cfg.hidden;
    size_t vocab = w->edges == EDGES_BEST ? 0 : (size_t)w->draft_vocab;
    size_t best = w->edges == EDGES_BEST ? (size_t)w->choices : 0;
    if (w->edges == EDGES_NONE)
        return true;
    wide = w->edges == EDGES_BIAS ? 0 : w->edges == EDGES_GATED ? wide + (size_t)w->rank : wide;
    return head_want(&d->base, &d->e, F32(rows * (size_t)w->rank), e) &&
           head_want(&d->base, &d->gate, F32(rows * (size_t)w->rank), e) &&
           head_want(&d->base, &d->in, F32(rows * wide), e) &&
           head_want(&d->base, &d->biased, F32(rows * vocab), e) &&
           head_want(&d->base, &d->best, rows * best * sizeof(int32_t), e) &&
           head_want(&d->base, &d->best_logp, F32(rows * best), e);
}

static bool open_dflash(struct head *base, const struct drafter_setup *s, struct err *e)
{
    struct dflash *d = (struct dflash *)base;
    size_t rows = (size_t)base->max_rows, H = (size_t)base->w->cfg.hidden;
    bool ok = layers_open(&d->layers, base, s, e) &&
              head_want(base, &d->fused, F32(rows * (size_t)base->taps.stride), e) &&
              head_want(base, &d->x, F32(rows * H), e) && head_want(base, &d->z, F32(rows * H), e);
    base->out = d->x;
    return ok && open_edges(d, e);
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
        if (l == 0 && !w->taps)
            in = (struct layer_input){d->z, c->hidden, no_norm, layers_pack(&w->layer[0])};
        layers_run(&d->layers, base, kp, l, rows, in, d->x);
    }
    head_gather(base, d->x, which, n, c->hidden, base->state);
    base->dev.k->linear(base->dev.d, &(struct k_linear){
        .rows = n, .src_stride = c->hidden, .src = base->state, .pre = norm_of(c, &w->norm),
        .w = w->head.data ? &w->head : &base->target->m->head, .softcap = c->final_softcap,
        .scale = c->logit_scale, .dst = base->logits});
    if (w->edges == EDGES_BEST) {
        struct k_topk best = head_best(base, n, w->choices, d->best, d->best_logp);
        base->dev.k->topk(base->dev.d, &best);
    }
}

/* ---- edges ----------------------------------------------------------------------------------- */

/* The state of each parent's row after the last norm, and the parent's row of `prev`. */
static void gather_gate(struct dflash *d, int rows, kbuf token, kbuf which)
{
    const struct draft *w = d->base.w;
    int H = w->cfg.hidden, wide = H + w->rank;
    d->base.dev.k->gather(d->base.dev.d, &(struct k_gather){
        .rows = rows, .n_parts = 2,
        .part = {{.n = H, .src = d->base.state, .src_stride = H, .idx = which,
                  .norm = norm_of(&w->cfg, &w->norm), .dst = d->in, .width = wide},
                 {.n = w->rank, .table = &w->prev, .scale = 1, .idx = token, .norm = no_norm,
                  .copy = d->e, .dst = d->in, .width = wide, .at = H}}});
}

/* d->e = sigmoid(edge in + edge_b) * e */
static void apply_gate(struct dflash *d, int rows)
{
    const struct draft *w = d->base.w;
    const struct kernels *k = d->base.dev.k;
    k->linear(d->base.dev.d, &(struct k_linear){
        .rows = rows, .src_stride = w->cfg.hidden + w->rank, .src = d->in, .w = &w->edge,
        .b = &w->edge_b, .scale = 1, .dst = d->gate});
    k->scale(d->base.dev.d, &(struct k_scale){.rows = rows, .n = w->rank, .x = d->e,
                                              .by = d->gate, .group = 1, .gate = GATE_SIGMOID});
}

static void edges_biased(struct dflash *d, int rows, kbuf token, kbuf which, int topk)
{
    const struct draft *w = d->base.w;
    const struct kernels *k = d->base.dev.k;
    if (w->edges == EDGES_GATED) {
        gather_gate(d, rows, token, which);
        apply_gate(d, rows);
    } else {
        k->embed(d->base.dev.d, &(struct k_embed){.rows = rows, .n = w->rank, .ids = token,
                                                  .table = &w->prev, .scale = 1, .dst = d->e});
    }
    head_gather(&d->base, d->base.logits, which, rows, w->draft_vocab, d->biased);
    k->linear(d->base.dev.d, &(struct k_linear){
        .rows = rows, .src_stride = w->rank, .src = d->e, .w = &w->next,
        .scale = w->cfg.logit_scale, .add = true, .dst = d->biased});
    k->topk(d->base.dev.d, &(struct k_topk){.rows = rows, .n = w->draft_vocab, .k = topk,
                                            .logits = d->biased, .ids = d->base.ids,
                                            .logp = d->base.logp});
}

static void edges_best(struct dflash *d, int rows, kbuf token, kbuf which, int topk)
{
    const struct draft *w = d->base.w;
    const struct kernels *k = d->base.dev.k;
    int H = w->cfg.hidden;
    k->embed(d->base.dev.d, &(struct k_embed){.rows = rows, .n = w->rank, .ids = token,
                                              .table = &w->prev, .scale = 1, .dst = d->e});
    head_gather(&d->base, d->base.state, which, rows, H, d->in);
    k->linear(d->base.dev.d, &(struct k_linear){
        .rows = rows, .src_stride = H, .src = d->in, .pre = norm_of(&w->cfg, &w->norm),
        .w = &w->edge, .scale = 1, .mul = d->e, .mul_stride = w->rank, .dst = d->gate});
    k->rerank(d->base.dev.d, &(struct k_rerank){
        .rows = rows, .n = w->choices, .k = topk, .width = w->rank, .from = which, .ids = d->best,
        .logp = d->best_logp, .src = d->gate, .table = &w->next, .best = d->base.ids,
        .best_logp = d->base.logp});
}

static void edges(struct head *base, int rows, kbuf token, kbuf which, int topk)
{
    (base->w->edges == EDGES_BEST ? edges_best : edges_biased)((struct dflash *)base, rows, token,
                                                               which, topk);
}

static const struct head_ops dflash_ops = {.size = sizeof(struct dflash), .open = open_dflash,
                                           .extend = extend, .block = block, .edges = edges};

#define DRAFTER(name_, about_)                                                                     \
    {.name = (name_), .about = (about_), .kv = DRAFT_KV_OWN, .head = &dflash_ops, HEAD_DRAFTER}

const struct drafter_ops dflash_drafter = DRAFTER("dflash", "a DFlash block draft");
const struct drafter_ops dspark_drafter = DRAFTER("dspark", "a DSpark block draft");
const struct drafter_ops dflash2_drafter = DRAFTER("dflash2", "a DFlash 2 block draft");
