/* eagle3.c - the EAGLE3 head and the P-EAGLE head; see head.h.
 *
 * Forward (Li et al. 2025, arXiv 2503.01840, and the SafeAILab and SpecForge sources):
 *   g = fc [a_low; a_mid; a_high]      the target's captured states; on later levels of a tree, the
 *                                      head's own output
 *   z = [norm(E[token]); norm(g)]
 *   x = g + attention(z);  x = x + mlp(norm(x));  logits = head(norm(x));
 *   x is the g of the next level
 *
 * P-EAGLE (arXiv 2602.01469, and the sources of speculators and vLLM) is the same head, trained to
 * guess all depths at once. Behind P true cells stand masks: at position P - 1 + d (d >= 1) with
 * the token MASK and
 *   g = fc mask_hidden                 in place of captured states, with the norms before fc
 * Each reads the true cells and the masks before it, and its logits are of depth d + 1. Masks'
 * cells are scratch: they are gone after the pass, whatever is accepted.
 */
#include "engine/draft/layers.h"

#include "kernels/packed.h"

#define F32(n) ((size_t)(n) * sizeof(float))

_Static_assert((int)K_MAX_PARTS > (int)MAX_CAPTURE,
               "one gather joins all captured states and the token embedding");

struct eagle3 {
    struct head base;
    struct layers layers;
    kbuf fused;            /* (max_rows, n_capture * target_hidden) */
    kbuf x;                /* (max_rows, hidden) */
    kbuf z;                /* (max_rows, 2 hidden) */
    kbuf mask, zeros;      /* P-EAGLE: (hidden) the g of masks; (max_rows) i32 */
};

/* ---- opening --------------------------------------------------------------------------------- */

static bool open_eagle3(struct head *base, const struct drafter_setup *s, struct err *e)
{
    struct eagle3 *d = (struct eagle3 *)base;
    size_t rows = (size_t)base->max_rows, H = (size_t)base->w->cfg.hidden;
    return layers_open(&d->layers, base, s, e) &&
           head_want(base, &d->fused, F32(rows * (size_t)base->taps.stride), e) &&
           head_want(base, &d->x, F32(rows * H), e) && head_want(base, &d->z, F32(rows * 2 * H), e);
}

/* ---- the head -------------------------------------------------------------------------------- */

/* Whether fc reads packed activation rows (kernels.h). */
static bool packs_fc(const struct draft *w)
{
    return dtype_as_bf16(w->fc.type) && !w->input_norm.data;
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
                           .width = 2 * w->cfg.hidden, .packed = layers_pack(&w->layer[0])};
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
                           .packed = layers_pack(&w->layer[0])};
}

/* x = fc [a_low; a_mid; a_high], of captured states that the gather joins. */
static void fuse(struct eagle3 *d, const struct k_gather *joined)
{
    const struct draft *w = d->base.w;
    const struct kernels *k = d->base.dev.k;
    k->gather(d->base.dev.d, joined);
    k->linear(d->base.dev.d, &(struct k_linear){
        .rows = joined->rows, .src_stride = d->base.taps.stride, .src = d->fused,
        .pre = norm_of(&w->cfg, &w->input_norm), .w = &w->fc, .b = tensor_opt(&w->fc_b), .scale = 1,
        .packed = packs_fc(w), .dst = d->x});
}

/* From the captured states of an extend pass: x and z. */
static void begin_extend(struct eagle3 *d, const struct k_plan *kp, kbuf from, int rows)
{
    struct k_rope rope = layers_rope(&d->layers, &d->base, kp, rows);
    struct k_gather first = {.rows = rows, .rope = {&rope}}, second = {.rows = rows, .n_parts = 1};
    first.n_parts = taps_part(d, from, first.part);
    first.part[first.n_parts++] = token_part(d, kp);
    second.part[0] = state_part(d, d->x, (kbuf){0}, d->x);
    fuse(d, &first);
    d->base.dev.k->gather(d->base.dev.d, &second);
}

/* The layers. x: the states g, which the output states replace; d->z must be filled in. */
static void forward(struct eagle3 *d, const struct k_plan *kp, int rows, kbuf x)
{
    const struct config *c = &d->base.w->cfg;
    for (int l = 0; l < c->n_layer; l++) {
        const struct layer *w = &d->base.w->layer[l];
        struct layer_input in = {x, c->hidden, norm_of(c, &w->in_norm), false};
        if (l == 0)
            in = (struct layer_input){d->z, 2 * c->hidden, {NORM_NONE, NULL, c->eps},
                                      layers_pack(w)};
        layers_run(&d->layers, &d->base, kp, l, rows, in, x);
    }
    d->base.out = x; /* d->x, or the state that base.state becomes */
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
    struct k_rope rope = layers_rope(&d->layers, base, kp, rows);
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

/* ---- P-EAGLE --------------------------------------------------------------------------------- */

/* The g of masks, the same for all. mask_hidden takes the place of a row of captured states. */
static bool open_mask(struct eagle3 *d, struct err *e)
{
    struct head *h = &d->base;
    const struct draft *w = h->w;
    const struct kernels *k = h->dev.k;
    int n = w->n_capture, each = w->target_hidden, spare = head_spare_row(h), H = w->cfg.hidden;
    int32_t row[MAX_CAPTURE] = {0};
    if (!head_want(h, &d->mask, F32(H), e) || !head_want(h, &d->zeros, F32(h->max_rows), e))
        return false;
    k->fill(h->dev.d, d->zeros, 0);
    for (int i = 0; i < n; i++)
        row[i] = i;
    kbuf rows = head_rows(h, row, n);
    struct k_gather put = {.rows = 1, .n_parts = n}, first = {.rows = 1};
    for (int i = 0; i < n; i++)
        put.part[i] = (struct k_part){
            .n = each, .table = &w->mask_hidden, .scale = 1, .idx = kbuf_at(rows, F32(i), F32(1)),
            .dst = kbuf_at(h->taps.dst, F32(mul64(spare, h->taps.stride)), F32(h->taps.stride)),
            .width = h->taps.stride, .at = i * each};
    k->gather(h->dev.d, &put);
    first.n_parts = taps_part(d, head_rows(h, &spare, 1), first.part);
    fuse(d, &first);
    k->rows(h->dev.d, &(struct k_rows){.rows = 1, .n = H, .src_stride = H, .dst_stride = H,
                                       .src = d->x, .dst = d->mask});
    return true;
}

static void block(struct head *base, const struct k_plan *kp, int rows, kbuf which, int n)
{
    struct eagle3 *d = (struct eagle3 *)base;
    struct k_rope rope = layers_rope(&d->layers, base, kp, rows);
    base->dev.k->gather(base->dev.d, &(struct k_gather){
        .rows = rows, .n_parts = 2, .rope = {&rope},
        .part = {token_part(d, kp), state_part(d, d->mask, d->zeros, d->x)}});
    forward(d, kp, rows, d->x);
    head_gather(base, d->x, which, n, base->w->cfg.hidden, base->state);
    logits(d, base->state, n);
}

/* ---- both ------------------------------------------------------------------------------------ */

static bool open_peagle(struct head *base, const struct drafter_setup *s, struct err *e)
{
    return open_eagle3(base, s, e) && open_mask((struct eagle3 *)base, e);
}

static const struct head_ops eagle3_ops = {.size = sizeof(struct eagle3), .open = open_eagle3,
                                           .extend = extend, .level = level};
static const struct head_ops peagle_ops = {.size = sizeof(struct eagle3), .open = open_peagle,
                                           .extend = extend, .block = block};

const struct drafter_ops eagle3_drafter = {.name = "eagle3", .about = "an EAGLE3 head",
                                           .kv = DRAFT_KV_OWN, .head = &eagle3_ops, HEAD_DRAFTER};
const struct drafter_ops peagle_drafter = {.name = "peagle", .about = "a P-EAGLE head",
                                           .kv = DRAFT_KV_OWN, .head = &peagle_ops, HEAD_DRAFTER};
