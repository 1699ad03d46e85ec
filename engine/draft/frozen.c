/* frozen.c - a drafter whose layers read the target's KV (the gemma-4 assistant); see head.h.
 *
 * Forward (Hugging Face gemma4_assistant, candidate_generator.py; reference model-families 3.1):
 *   H = the target's last hidden state after its final norm; later the drafter's own output
 *   x = pre_projection [E_target[token] s; H]
 *   per layer: one query at the last committed position; attention over the cells of the target's
 *   last layer of the same type (full or sliding)
 *   logits = head(norm(x)); with centroids, a token outside the chosen centroids gets the least
 *   logit of the tokens inside them, minus 1
 *   next H = post_projection(norm(x))
 * The cells are looked up in the target net for every pass and never stored here: a sliding layer
 * reads the swa cells through the swa table, a full layer the full cells through the full table.
 */
#include "engine/draft/head.h"

#define F32(n) ((size_t)(n) * sizeof(float))

struct frozen {
    struct head base;
    kbuf in;        /* (rows, 2 target_hidden) */
    kbuf x, y;      /* (rows, hidden) */
    kbuf q, o, h;
    kbuf cs[MAX_ROPE];
    kbuf scores;    /* (rows, n_centroid) */
    kbuf top, topp; /* (rows, centroid_top) */
};

/* ---- opening --------------------------------------------------------------------------------- */

static bool open_frozen(struct head *base, const struct drafter_setup *, struct err *e)
{
    struct frozen *d = (struct frozen *)base;
    const struct draft *w = base->w;
    const struct config *c = &w->cfg;
    size_t heads, ffn, H = (size_t)c->hidden, T = (size_t)w->target_hidden;
    head_widths(w, &heads, &ffn);
    base->taps.n = 1;
    base->taps.boundary[0] = base->target->m->cfg.n_layer;
    base->taps.stride = base->state_n = w->target_hidden;
    if (!head_buffers(base, e))
        return false;
    base->out = base->state;
    size_t rows = (size_t)base->max_heads, top = F32(rows * (size_t)w->centroid_top);
    for (int i = 0; i < c->n_rope; i++)
        if (!head_want(base, &d->cs[i], F32(rows * (size_t)c->rope[i].half * 2), e))
            return false;
    return head_want(base, &d->in, F32(rows * 2 * T), e) &&
           head_want(base, &d->x, F32(rows * H), e) && head_want(base, &d->y, F32(rows * H), e) &&
           head_want(base, &d->q, F32(rows * heads), e) &&
           head_want(base, &d->o, F32(rows * heads), e) &&
           head_want(base, &d->h, F32(rows * ffn), e) &&
           head_want(base, &d->scores, F32(rows * (size_t)w->n_centroid), e) &&
           head_want(base, &d->top, top, e) && head_want(base, &d->topp, top, e);
}

/* ---- the head -------------------------------------------------------------------------------- */

/* x = pre_projection [E_target[token] s; H] */
static void pre_project(struct frozen *d, const struct k_plan *kp, kbuf hidden, int rows)
{
    const struct draft *w = d->base.w;
    const struct kernels *k = d->base.dev.k;
    struct kdev *dev = d->base.dev.d;
    int T = w->target_hidden;
    const struct model *m = d->base.target->m;
    /* `state` is free until the end of the pass: the embedding is built there */
    k->embed(dev, &(struct k_embed){.rows = rows, .n = T, .ids = kp->token, .table = &m->embed,
                                    .scale = m->cfg.embed_scale, .dst = d->base.state});
    k->rows(dev, &(struct k_rows){.rows = rows, .n = T, .src_stride = T, .dst_stride = 2 * T,
                                  .src = d->base.state, .dst = d->in});
    k->rows(dev, &(struct k_rows){.rows = rows, .n = T, .src_stride = T, .dst_stride = 2 * T,
                                  .src = hidden, .dst = kbuf_at(d->in, F32(T), d->in.n - F32(T))});
    k->linear(dev, &(struct k_linear){.rows = rows, .src_stride = 2 * T, .src = d->in,
                                      .w = &w->pre_proj, .scale = 1, .dst = d->x});
}

static void layer(struct frozen *d, const struct k_plan *kp, int l, int rows)
{
    const struct config *c = &d->base.w->cfg;
    const struct layer *w = &d->base.w->layer[l];
    const struct kernels *k = d->base.dev.k;
    struct kdev *dev = d->base.dev.d;
    const struct rope *rope = w->rope_id >= 0 ? &c->rope[w->rope_id] : NULL;
    const struct k_table *table = &kp->table[target_table(w->window)];
    int owner = w->window ? d->base.w->kv_swa : d->base.w->kv_full;
    k->qkv(dev, &(struct k_qkv){
        .rows = rows, .src_stride = c->hidden, .src = d->x, .norm = norm_of(c, &w->in_norm),
        .wq = &w->wq, .n_head = w->n_head, .n_kv = w->n_kv, .head_dim = w->head_dim,
        .q_norm = norm_of(c, &w->q_norm), .rot = rope ? rope->rot : 0,
        .cs = rope ? d->cs[w->rope_id] : (kbuf){0}, .q = d->q,
        .cells = d->base.target->cells[owner], .table = table});
    k->attn(dev, &(struct k_attn){.rows = rows, .n_head = w->n_head, .scale = c->attn_scale,
                                  .softcap = c->attn_softcap, .q = d->q,
                                  .cells = d->base.target->cells[owner], .table = table,
                                  .dst = d->o});
    k->linear(dev, &(struct k_linear){.rows = rows, .src_stride = w->n_head * w->head_dim,
                                      .src = d->o, .w = &w->wo, .scale = 1,
                                      .post = norm_of(c, &w->attn_norm), .add = true, .dst = d->x});
    k->glu(dev, &(struct k_glu){.rows = rows, .src = d->x, .pre = norm_of(c, &w->ffn_in_norm),
                                .gate = &w->gate, .up = &w->up, .act = c->act, .dst = d->h});
    k->linear(dev, &(struct k_linear){.rows = rows,
                                      .src_stride = w->ffn,
                                      .src = d->h,
                                      .w = &w->down,
                                      .scale = 1,
                                      .post = norm_of(c, &w->ffn_norm),
                                      .add = true,
                                      .dst = d->x});
    if (w->layer_scalar.data)
        k->scale(dev, &(struct k_scale){.rows = rows, .n = c->hidden, .x = d->x,
                                        .s = &w->layer_scalar});
}

/* Keeps the logits of the best centroids' tokens; each other one becomes the least of them - 1. */
static void keep_centroids(struct frozen *d, int rows)
{
    const struct draft *w = d->base.w;
    const struct kernels *k = d->base.dev.k;
    struct kdev *dev = d->base.dev.d;
    int per = w->draft_vocab / w->n_centroid, top = w->centroid_top;
    size_t bytes = F32(w->draft_vocab);
    FREED(free_at) int32_t *chosen = xmalloc((size_t)rows * (size_t)top * sizeof *chosen);
    FREED(free_at) float *row = xmalloc(bytes);
    FREED(free_at) uint8_t *kept = xcalloc((size_t)w->draft_vocab, 1);
    k->linear(dev, &(struct k_linear){.rows = rows, .src_stride = w->cfg.hidden, .src = d->y,
                                      .w = &w->centroids, .scale = 1, .dst = d->scores});
    k->topk(dev, &(struct k_topk){.rows = rows, .n = w->n_centroid, .k = top, .logits = d->scores,
                                  .ids = d->top, .logp = d->topp});
    k->get(dev, chosen, d->top, (size_t)rows * (size_t)top * sizeof *chosen);
    for (int r = 0; r < rows; r++) {
        kbuf at = kbuf_at(d->base.logits, (size_t)r * bytes, bytes);
        float least = 0;
        if (chosen[(r + 1) * top - 1] < 0)
            continue; /* the centroid scores are NaN, and so are the logits */
        k->get(dev, row, at, bytes);
        memset(kept, 0, (size_t)w->draft_vocab);
        for (int i = 0; i < top * per; i++) {
            int id = w->token_order[chosen[r * top + i / per] * per + i % per];
            least = i == 0 || row[id] < least ? row[id] : least;
            kept[id] = 1;
        }
        for (int i = 0; i < w->draft_vocab; i++)
            if (!kept[i])
                row[i] = least - 1;
        k->put(dev, at, row, bytes);
    }
}

/* A pass: reads the input states H from `hidden`, writes the logits, and the next H to `state`. */
static void forward(struct frozen *d, const struct k_plan *kp, int rows, kbuf hidden, kbuf state)
{
    const struct draft *w = d->base.w;
    const struct config *c = &w->cfg;
    const struct kernels *k = d->base.dev.k;
    struct kdev *dev = d->base.dev.d;
    CHECK(rows <= d->base.max_heads);
    for (int i = 0; i < c->n_rope; i++)
        k->rope(dev, &(struct k_rope){.rows = rows, .half = c->rope[i].half, .pos = kp->pos,
                                      .inv_freq = c->rope[i].inv_freq,
                                      .factor = c->rope[i].cs_factor, .cs = d->cs[i]});
    pre_project(d, kp, hidden, rows);
    for (int l = 0; l < c->n_layer; l++)
        layer(d, kp, l, rows);
    k->normalize(dev, &(struct k_normalize){.rows = rows, .n = c->hidden, .src_stride = c->hidden,
                                            .dst_stride = c->hidden, .src = d->x, .dst = d->y,
                                            .norm = norm_of(c, &w->norm), .scale = 1});
    k->linear(dev, &(struct k_linear){.rows = rows, .src_stride = c->hidden, .src = d->y,
                                      .w = w->head.data ? &w->head : &w->embed,
                                      .softcap = c->final_softcap, .scale = 1,
                                      .dst = d->base.logits});
    if (w->centroids.data)
        keep_centroids(d, rows);
    k->linear(dev, &(struct k_linear){.rows = rows, .src_stride = c->hidden, .src = d->y,
                                      .w = &w->post_proj, .scale = 1, .dst = state});
}

/* ---- the interface --------------------------------------------------------------------------- */

/* Every lane has one row, so `last` names every row. */
static void extend(struct head *base, const struct k_plan *kp, int rows, kbuf from, kbuf last,
                   int n_req, kbuf state)
{
    struct frozen *d = (struct frozen *)base;
    const struct model *m = base->target->m;
    int T = base->state_n;
    CHECK(rows == n_req && last.p);
    head_gather(base, base->taps.dst, from, rows, T, base->inputs);
    base->dev.k->normalize(base->dev.d, &(struct k_normalize){
        .rows = rows, .n = T, .src_stride = T, .dst_stride = T, .src = base->inputs,
        .dst = base->inputs, .norm = {m->cfg.norm, &m->norm, m->cfg.eps}, .scale = 1});
    forward(d, kp, rows, base->inputs, state);
}

static void level(struct head *base, const struct k_plan *kp, int rows, kbuf states, kbuf from)
{
    if (from.p)
        head_gather(base, states, from, rows, base->state_n, base->inputs);
    forward((struct frozen *)base, kp, rows, base->inputs, base->state);
}

static const struct head_ops frozen_ops = {.size = sizeof(struct frozen), .open = open_frozen,
                                           .extend = extend, .level = level};

const struct drafter_ops frozen_drafter = {.name = "frozen-kv", .about = "a frozen-KV head",
                                           .kv = DRAFT_KV_TARGET, .head = &frozen_ops,
                                           HEAD_DRAFTER};
