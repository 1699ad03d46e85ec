/* forward.c - see forward.h. */
#include "engine/run/probe_pass.h"

#include "kernels/packed.h"

#include <math.h>

#define F32(n) ((size_t)(n) * sizeof(float))

/* ---- opening --------------------------------------------------------------------------------- */

/* The deviation of a synthetic tensor, chosen so that activations keep their range: 1 / sqrt(width
 * of the input) for a matrix; 0, so that every element is 1, for norms and scales. A draft's logits
 * deviate by 8: the best guess then has most of the probability, as in a trained head; otherwise
 * draft trees would only grow wide. */
static float synthetic_scale(const struct tensor *t)
{
    bool blocks = t->type == DT_U8;
    float logits = strcmp(t->name, "draft.lm_head.weight") ? 1 : 8;
    if (t->n_dim > 1)
        return logits / sqrtf((float)(blocks ? 32 * t->dim[2] : t->dim[t->n_dim - 1]));
    return strstr(t->name, "norm") || strstr(t->name, "scal") ? 0 : 0.02f;
}

bool device_upload(struct tensor *t, void *arg, struct err *e)
{
    struct device *dev = arg;
    if (t->data)
        return dev->k->upload(dev->d, t, e);
    uint64_t seed = hash64(t->name, strlen(t->name), 0);
    return dev->k->synthesize(dev->d, t, seed, synthetic_scale(t), e);
}

static bool is_sliding(const struct model *m, int l)
{
    return m->layer[l].window > 0;
}

static bool open_cells(struct net *n, int full_slots, int swa_slots, enum kv_type kv,
                       struct err *e)
{
    const struct model *m = n->m;
    n->cells = xcalloc((size_t)m->cfg.n_layer, sizeof *n->cells);
    for (int p = 0; p < 2; p++)
        n->of_pool[p] = xcalloc((size_t)m->cfg.n_layer, sizeof *n->of_pool[p]);
    for (int l = 0; l < m->cfg.n_layer; l++) {
        const struct layer *w = &m->layer[l];
        if (w->kv_src != l) {
            n->cells[l] = n->cells[w->kv_src];
            continue;
        }
        struct k_cells *c = &n->cells[l];
        *c = (struct k_cells){.type = kv, .n_slots = is_sliding(m, l) ? swa_slots : full_slots,
                              .n_kv = w->n_kv, .head_dim = w->head_dim};
        size_t bytes = (size_t)c->n_slots * kv_cell_bytes(kv, c->n_kv, c->head_dim);
        enum pool_id pool = is_sliding(m, l) ? POOL_SWA : POOL_FULL;
        c->k = n->dev.k->alloc(n->dev.d, bytes, pool_cells(pool), e);
        c->v = c->k.p ? n->dev.k->alloc(n->dev.d, bytes, pool_cells(pool), e) : (kbuf){0};
        if (!c->v.p)
            return false;
        /* every cell starts as NaN, so that the use of a cell that was never written shows */
        n->dev.k->fill(n->dev.d, c->k, 0xff);
        n->dev.k->fill(n->dev.d, c->v, 0xff);
        n->of_pool[pool][n->n_of_pool[pool]++] = *c;
    }
    return true;
}

static bool alloc_floats(struct net *n, kbuf *b, size_t floats, struct err *e)
{
    if (floats)
        *b = n->dev.k->alloc(n->dev.d, F32(floats), "activations", e);
    return !floats || b->p;
}

bool net_two_parts(struct net *n, struct err *e)
{
    size_t rows = (size_t)n->max_rows, wide = 0, heads = 0;
    FOR_EACH(const struct layer, w, n->m->layer, n->m->cfg.n_layer) {
        size_t queries = (size_t)w->n_head * (size_t)w->head_dim;
        wide = wide > queries ? wide : queries;
        heads = heads > (size_t)w->n_head ? heads : (size_t)w->n_head;
    }
    /* after a failure the next call allocates the missing buffers */
    return (n->o2.p || alloc_floats(n, &n->o2, rows * wide, e)) &&
           (n->lse.p || alloc_floats(n, &n->lse, rows * heads, e)) &&
           (n->lse2.p || alloc_floats(n, &n->lse2, rows * heads, e));
}

static bool open_activations(struct net *n, struct err *e)
{
    const struct config *c = &n->m->cfg;
    size_t rows = (size_t)n->max_rows, heads = 0, ffn = 0, gate = 0;
    FOR_EACH(const struct layer, w, n->m->layer, c->n_layer) {
        size_t queries = (size_t)w->n_head * (size_t)w->head_dim;
        heads = heads > queries ? heads : queries;
        ffn = ffn > (size_t)w->ffn ? ffn : (size_t)w->ffn;
        gate = w->wgate.n_dim && gate < (size_t)w->wgate.dim[0] ? (size_t)w->wgate.dim[0] : gate;
        gate = w->dense_limit > 0 && gate < (size_t)w->ffn ? (size_t)w->ffn : gate;
    }
    for (int i = 0; i < c->n_rope; i++)
        if (!alloc_floats(n, &n->cs[i], rows * (size_t)c->rope[i].half * 2, e))
            return false;
    return alloc_floats(n, &n->x, rows * (size_t)c->hidden, e) &&
           alloc_floats(n, &n->y, rows * (size_t)c->hidden, e) &&
           alloc_floats(n, &n->q, rows * heads, e) &&
           alloc_floats(n, &n->o, rows * heads, e) && alloc_floats(n, &n->h, rows * ffn, e) &&
           alloc_floats(n, &n->gate, rows * gate, e) &&
           alloc_floats(n, &n->ple, rows * (size_t)c->ple * (size_t)c->n_layer, e) &&
           alloc_floats(n, &n->ple_row, rows * (size_t)max_int(c->ple, c->ple * c->n_layer), e);
}

bool net_open(struct net *n, struct device dev, struct model *m, int full_slots, int swa_slots,
              enum kv_type kv, int max_rows, struct err *e)
{
    *n = (struct net){.dev = dev, .m = m, .max_rows = max_rows};
    if (model_each(m, device_upload, &dev, e) && open_cells(n, full_slots, swa_slots, kv, e) &&
        open_activations(n, e)) {
        if (m->cfg.tied)
            m->head = m->embed;
        return true;
    }
    net_close(n);
    return false;
}

void net_close(struct net *n)
{
    if (!n->dev.k)
        return;
    const struct kernels *k = n->dev.k;
    for (int l = 0; n->cells && l < n->m->cfg.n_layer; l++)
        if (n->m->layer[l].kv_src == l) {
            k->release(n->dev.d, n->cells[l].k);
            k->release(n->dev.d, n->cells[l].v);
        }
    FREE(n->cells, n->of_pool[0], n->of_pool[1]);
    kbuf all[] = {n->x, n->y, n->q, n->o, n->h, n->gate, n->cs[0], n->cs[1], n->ple, n->ple_row,
                  n->o2, n->lse, n->lse2};
    for (size_t i = 0; i < LEN(all); i++)
        k->release(n->dev.d, all[i]);
    *n = (struct net){0};
}

/* ---- the pass -------------------------------------------------------------------------------- */

struct k_norm norm_of(const struct config *c, const struct tensor *w)
{
    return (struct k_norm){w->data ? c->norm : NORM_NONE, w, c->eps};
}

/* The norm of what attention or an MLP adds to x. */
static struct k_norm post_norm_of(const struct config *c, const struct tensor *w)
{
    struct k_norm norm = norm_of(c, w);
    norm.eps = c->post_eps > 0 ? c->post_eps : c->eps;
    return norm;
}

struct k_norm final_norm_of(const struct config *c, const struct tensor *w)
{
    struct k_norm norm = norm_of(c, w);
    if (c->final_norm != NORM_NONE)
        norm.kind = c->final_norm;
    return norm;
}

/* The destination of capture number `skip` of a boundary; absent: the boundary has fewer
 * captures. */
static kbuf tap_of(const struct net *n, const struct taps *t, int boundary, int skip)
{
    for (int i = 0; t && i < t->n; i++)
        if (t->boundary[i] == boundary && skip-- == 0) {
            size_t off =
                F32((size_t)t->row0 * (size_t)t->stride + (size_t)i * (size_t)n->m->cfg.hidden);
            return kbuf_at(t->dst, off, t->dst.n - off);
        }
    return (kbuf){0};
}

static void tap(struct net *n, const struct taps *t, int boundary, int rows, int skip)
{
    int H = n->m->cfg.hidden;
    for (kbuf to; (to = tap_of(n, t, boundary, skip)).p; skip++)
        n->dev.k->rows(n->dev.d, &(struct k_rows){.rows = rows, .n = H, .src_stride = H,
                                                  .dst_stride = t->stride, .src = n->x,
                                                  .dst = to});
}

static bool is_bf16(const struct tensor *t) { return !t->data || dtype_as_bf16(t->type); }

/* Whether embed() stores y, the first layer's normalised input. Layer norms and norms of the
 * embedding itself are operations of their own. */
static bool embeds_input(const struct config *c)
{
    return c->norm != NORM_LAYER && !c->embed_norm;
}

/* Whether the first layer's projections take packed activation rows. */
static bool packs_first(const struct config *c, const struct layer *w)
{
    return embeds_input(c) && !w->wgate.data && is_bf16(&w->wq) && is_bf16(&w->wk) &&
           is_bf16(&w->wv);
}

/* x = E[token] s, y = norm(x) for the first layer, and the RoPE tables, in one operation; then
 * gemma-4's per-layer embeddings (P[token] sqrt(w) + norm(proj x)) / sqrt 2 */
static void embed(struct net *n, const struct k_plan *kp, int rows)
{
    const struct config *c = &n->m->cfg;
    const struct layer *first = &n->m->layer[0];
    const struct kernels *k = n->dev.k;
    struct kdev *d = n->dev.d;
    struct k_rope rope[MAX_ROPE];
    struct k_gather a = {.rows = rows, .n_parts = 1};
    a.part[0] = (struct k_part){.n = c->hidden, .table = &n->m->embed, .scale = c->embed_scale,
                                .idx = kp->token, .norm = {NORM_NONE, NULL, c->eps},
                                .copy = n->x, .copy_normed = c->embed_norm, .dst = n->y,
                                .width = c->hidden, .packed = packs_first(c, first)};
    if (embeds_input(c))
        a.part[0].norm = norm_of(c, &first->in_norm);
    else if (c->embed_norm)
        a.part[0].norm.kind = NORM_PLAIN;
    for (int i = 0; i < c->n_rope; i++) {
        rope[i] = (struct k_rope){.rows = rows, .half = c->rope[i].half, .pos = kp->pos,
                                  .inv_freq = c->rope[i].inv_freq,
                                  .factor = c->rope[i].cs_factor, .cs = n->cs[i]};
        a.rope[i] = &rope[i];
    }
    k->gather(d, &a);
    if (!c->ple)
        return;
    int wide = c->ple * c->n_layer;
    k->embed(d, &(struct k_embed){.rows = rows, .n = wide, .ids = kp->token,
                                  .table = &n->m->ple_embed,
                                  .scale = __builtin_sqrtf((float)c->ple), .dst = n->ple});
    k->linear(d, &(struct k_linear){.rows = rows, .src_stride = c->hidden, .src = n->x,
                                    .w = &n->m->ple_model_proj,
                                    .scale = 1 / __builtin_sqrtf((float)c->hidden),
                                    .dst = n->ple_row});
    k->normalize(d, &(struct k_normalize){
        .rows = rows * c->n_layer, .n = c->ple, .src_stride = c->ple, .dst_stride = c->ple,
        .src = n->ple_row, .dst = n->ple, .norm = norm_of(c, &n->m->ple_proj_norm), .add = true,
        .scale = 0.70710678118654752f});
}

/* Whether attention may store its output as packed activation rows, for the product with Wo. */
static bool output_packed(const struct k_plan *kp, const struct layer *w)
{
    return !kp->two_parts && dtype_as_bf16(w->wo.type) && !w->wgate.data;
}

/* Rows that operations read, and how they normalise them. */
struct input {
    kbuf src;
    struct k_norm norm;
    bool packed;
};

/* norm(x) by w: x, which the operations that read it normalise; y, where they cannot. */
static struct input normed_input(struct net *n, const struct tensor *w, int rows)
{
    const struct config *c = &n->m->cfg;
    if (c->norm != NORM_LAYER)
        return (struct input){n->x, norm_of(c, w), false};
    n->dev.k->normalize(n->dev.d, &(struct k_normalize){
        .rows = rows, .n = c->hidden, .src_stride = c->hidden, .dst_stride = c->hidden,
        .src = n->x, .dst = n->y, .norm = norm_of(c, w), .scale = 1});
    return (struct input){n->y, {NORM_NONE, NULL, c->eps}, false};
}

/* The input of layer l's attention; of the first layer embed() has stored it. */
static struct input layer_input(struct net *n, int l, int rows)
{
    const struct config *c = &n->m->cfg;
    const struct layer *w = &n->m->layer[l];
    if (l == 0 && embeds_input(c))
        return (struct input){n->y, {NORM_NONE, NULL, c->eps}, packs_first(c, w)};
    return normed_input(n, &w->in_norm, rows);
}

/* o = attention over the row's keys. With two parts, one over the new cells and one over the cached
 * cells, combined by log-sum-exp; the sinks are counted once, with the new cells. */
static void attend(struct net *n, const struct k_plan *kp, int l, int rows)
{
    const struct layer *w = &n->m->layer[l];
    bool two = kp->two_parts;
    struct k_attn a = net_attn(n, kp, l, rows);
    a.packed = output_packed(kp, w);
    a.lse = two ? n->lse : (kbuf){0};
    n->dev.k->attn(n->dev.d, &a);
    if (!two)
        return;
    CHECK(n->lse2.p);
    a.sinks = NULL;
    a.table = &kp->prefix[target_table(w->window)];
    a.dst = n->o2;
    a.lse = n->lse2;
    n->dev.k->attn(n->dev.d, &a);
    n->dev.k->merge(n->dev.d, &(struct k_merge){.rows = rows, .n_head = w->n_head,
                                                .head_dim = w->head_dim, .a = n->o, .la = n->lse,
                                                .b = n->o2, .lb = n->lse2});
}

/* The norm of a layer's queries or keys. */
static struct k_norm head_norm_of(const struct config *c, const struct layer *w,
                                  const struct tensor *t)
{
    return w->qk_plain ? (struct k_norm){NORM_PLAIN, NULL, c->eps} : norm_of(c, t);
}

/* Whether the projections of layer l read x and so can store the first capture of it. */
static bool captures(const struct config *c, int l)
{
    return l > 0 && c->norm != NORM_LAYER;
}

static void qkv(struct net *n, const struct k_plan *kp, int l, int rows, const struct input *in,
                const struct taps *taps)
{
    const struct config *c = &n->m->cfg;
    const struct layer *w = &n->m->layer[l];
    const struct rope *rope = w->rope_id >= 0 ? &c->rope[w->rope_id] : NULL;
    const kbuf nowhere = {0};
    n->dev.k->qkv(n->dev.d, &(struct k_qkv){
        .rows = rows, .src_stride = c->hidden, .src = in->src, .norm = in->norm,
        .packed = in->packed, .capture = captures(c, l) ? tap_of(n, taps, l, 0) : nowhere,
        .capture_stride = taps ? taps->stride : 0,
        .wq = &w->wq, .wk = tensor_opt(&w->wk), .wv = tensor_opt(&w->wv),
        .bq = tensor_opt(&w->bq), .bk = tensor_opt(&w->bk), .bv = tensor_opt(&w->bv),
        .n_head = w->n_head, .n_kv = w->n_kv, .head_dim = w->head_dim,
        .q_norm = head_norm_of(c, w, &w->q_norm), .k_norm = head_norm_of(c, w, &w->k_norm),
        .v_norm = {c->v_norm ? NORM_PLAIN : NORM_NONE, NULL, c->eps},
        .norm_whole = c->qk_norm_whole, .v_from_k = w->v_from_k,
        .rot = rope ? rope->rot : 0, .cs = rope ? n->cs[w->rope_id] : nowhere,
        .q = n->q, .cells = n->cells[l], .table = &kp->table[target_table(w->window)]});
    if (w->temper > 0)
        n->dev.k->scale(n->dev.d, &(struct k_scale){
            .rows = rows, .n = w->n_head * w->head_dim, .x = n->q, .pos = kp->pos,
            .beta = w->temper, .period = w->temper_period, .from = w->temper_from});
}

void net_qkv(struct net *n, const struct k_plan *kp, int l, int rows)
{
    const struct input in = normed_input(n, &n->m->layer[l].in_norm, rows);
    qkv(n, kp, l, rows, &in, NULL);
}

/* o *= gate(Wgate norm(x)), by element or by head */
static void gate_output(struct net *n, const struct layer *w, int rows, const struct input *in)
{
    const struct config *c = &n->m->cfg;
    if (!w->wgate.data)
        return;
    n->dev.k->linear(n->dev.d, &(struct k_linear){
        .rows = rows, .src_stride = c->hidden, .src = in->src, .pre = in->norm, .w = &w->wgate,
        .packed = in->packed, .scale = 1, .dst = n->gate});
    n->dev.k->scale(n->dev.d, &(struct k_scale){
        .rows = rows, .n = w->n_head * w->head_dim, .x = n->o, .by = n->gate,
        .group = c->gate_by_head ? w->head_dim : 1, .gate = c->gate});
}

static bool dense_packed(const struct layer *w)
{
    const bool same = w->gate.type == w->up.type && w->up.type == w->down.type,
               bf16 = is_bf16(&w->gate) && is_bf16(&w->up) && is_bf16(&w->down);
    return (same || bf16) && w->dense_limit == 0;
}

/* h = act(gate norm(x)) clamped * up norm(x) clamped */
static void clamped_hidden(struct net *n, const struct layer *w, int rows, const struct input *in)
{
    const struct config *c = &n->m->cfg;
    struct k_linear a = {.rows = rows, .src_stride = c->hidden, .src = in->src, .pre = in->norm,
                         .w = &w->gate, .act = c->act, .scale = 1, .dst = n->h};
    n->dev.k->linear(n->dev.d, &a);
    a.w = &w->up, a.act = ACT_NONE, a.dst = n->gate;
    n->dev.k->linear(n->dev.d, &a);
    n->dev.k->scale(n->dev.d, &(struct k_scale){
        .rows = rows, .n = w->ffn, .x = n->h, .by = n->gate, .group = 1, .gate = GATE_CLAMP,
        .limit = w->dense_limit});
}

/* h = act(gate norm(x)) * up norm(x) */
static void dense_hidden(struct net *n, const struct layer *w, int rows, const struct input *in)
{
    if (w->dense_limit > 0) {
        clamped_hidden(n, w, rows, in);
        return;
    }
    n->dev.k->glu(n->dev.d, &(struct k_glu){
        .rows = rows, .src = in->src, .pre = in->norm, .gate = &w->gate, .up = &w->up,
        .act = n->m->cfg.act, .packed = dense_packed(w), .dst = n->h});
}

/* x += norm(attention(norm(x)) Wo); a parallel MLP reads norm(x) in between. */
static void attention(struct net *n, const struct k_plan *kp, int l, int rows,
                      const struct taps *taps)
{
    const struct config *c = &n->m->cfg;
    const struct layer *w = &n->m->layer[l];
    const struct input in = layer_input(n, l, rows);
    qkv(n, kp, l, rows, &in, taps);
    probe_attention(n, l);
    attend(n, kp, l, rows);
    gate_output(n, w, rows, &in);
    probe_output(n, l);
    if (c->place == PLACE_PARALLEL)
        dense_hidden(n, w, rows, &in);
    n->dev.k->linear(n->dev.d, &(struct k_linear){
        .rows = rows, .src_stride = w->n_head * w->head_dim, .src = n->o, .w = &w->wo,
        .packed = output_packed(kp, w),
        .b = tensor_opt(&w->bo), .scale = c->residual_scale * c->value_scale,
        .post = post_norm_of(c, &w->attn_norm), .add = true,
        .dst = n->x});
}

/* dst (+)= post(down h) */
static void dense_output(struct net *n, const struct layer *w, int rows, const struct tensor *post,
                         bool add, kbuf dst)
{
    const struct config *c = &n->m->cfg;
    n->dev.k->linear(n->dev.d, &(struct k_linear){
        .rows = rows, .src_stride = w->ffn, .src = n->h, .w = &w->down,
        .scale = c->residual_scale,
        .post = post_norm_of(c, post), .add = add, .packed = dense_packed(w), .dst = dst});
}

/* dst (+)= post(down(act(gate pre(x)) * up pre(x))) */
static void dense(struct net *n, const struct layer *w, int rows, const struct tensor *post,
                  bool add, kbuf dst)
{
    const struct input in = normed_input(n, &w->ffn_in_norm, rows);
    dense_hidden(n, w, rows, &in);
    dense_output(n, w, rows, post, add, dst);
}

static kbuf chosen_at(const struct net *n, const struct layer *w)
{
    size_t each = (size_t)n->max_rows * (size_t)n->m->cfg.top_k * sizeof(int32_t);
    kbuf all = n->probe ? n->probe->chosen : n->chosen;
    return all.p ? kbuf_at(all, (size_t)(w - n->m->layer) * each, each) : (kbuf){0};
}

/* dst += post(experts(pre(x))); with after, then x = (x + after(dst)) * *s. */
static void experts(struct net *n, const struct layer *w, int rows, const struct tensor *pre,
                    const struct tensor *post, kbuf dst, const struct tensor *after,
                    const struct tensor *s)
{
    const struct config *c = &n->m->cfg;
    static const enum expert_layout layout[] = {[STORE_MXFP4] = EXPERT_MXFP4,
                                                [STORE_IN_OUT] = EXPERT_IN_OUT,
                                                [STORE_HALVES] = EXPERT_HALVES,
                                                [STORE_IN_OUT_HALVES] = EXPERT_IN_OUT_HALVES};
    bool own_router_norm = c->moe == MOE_GEMMA4;
    n->dev.k->moe(n->dev.d, &(struct k_moe){
        .rows = rows, .in = c->hidden, .ffn = c->expert_ffn, .n_expert = c->n_expert,
        .top_k = c->top_k, .src = n->x, .pre = norm_of(c, pre),
        .router_norm = {own_router_norm ? NORM_PLAIN : NORM_NONE, NULL, c->eps},
        .router_in = tensor_opt(&w->router_in),
        .router_scale = own_router_norm ? 1 / __builtin_sqrtf((float)c->hidden) : 1,
        .router = &w->router, .router_b = tensor_opt(&w->router_b),
        .choice_b = tensor_opt(&w->choice_b), .router_cap = c->router_cap,
        .router_kind = c->router, .weigh_input = c->weigh_input,
        .expert_scale = tensor_opt(&w->expert_scale),
            .weight_scale = c->residual_scale * c->route_scale,
        .layout = layout[c->store], .gate_up = &w->gate_up, .gate_up_s = tensor_opt(&w->gate_up_s),
        .gate_up_b = tensor_opt(&w->gate_up_b), .down = &w->down_e,
        .down_s = tensor_opt(&w->down_s),
        .down_b = tensor_opt(&w->down_b),
        .act = w->expert_limit > 0 ? ACT_SILU_CLAMP : c->act,
        .limit = w->expert_limit > 0 ? w->expert_limit : c->swiglu_limit,
        .post = post_norm_of(c, post), .add = true, .dst = dst, .chosen = chosen_at(n, w),
        .x = after ? n->x : (kbuf){0}, .after = after ? post_norm_of(c, after) : (struct k_norm){0},
        .s = s});
}

/* Whether the operation of the experts also multiplies x by the layer's scalar: if they come last,
 * and nobody reads x in between. */
static bool scales_in_experts(const struct net *n, const struct layer *w)
{
    const struct config *c = &n->m->cfg;
    return w->layer_scalar.data && w->is_moe && c->moe == MOE_GEMMA4 && !c->ple && !n->probe;
}

/* x += norm(mlp(norm(x))), the mlp being dense, a mixture of experts, or the sum of both */
static void feed_forward(struct net *n, const struct layer *w, int rows)
{
    static const struct tensor none = {0};
    const struct config *c = &n->m->cfg;
    if (c->place == PLACE_PARALLEL) {
        dense_output(n, w, rows, &w->ffn_norm, true, n->x);
    } else if (!w->is_moe) {
        dense(n, w, rows, &w->ffn_norm, true, n->x);
    } else if (c->moe == MOE_ALONE) {
        bool shared = w->gate.data != NULL;
        if (shared)
            dense(n, w, rows, &none, false, n->y);
        experts(n, w, rows, &w->ffn_in_norm, shared ? &none : &w->ffn_norm, shared ? n->y : n->x,
                shared ? &w->ffn_norm : NULL, NULL);
    } else {
        dense(n, w, rows, &w->ffn_norm_1, false, n->y);
        experts(n, w, rows, &w->ffn_in_norm_2, &w->ffn_norm_2, n->y, &w->ffn_norm,
                scales_in_experts(n, w) ? &w->layer_scalar : NULL);
    }
}

/* x += norm(proj(gelu(gate x) * ple_l)) */
static void per_layer_input(struct net *n, int l, int rows)
{
    const struct config *c = &n->m->cfg;
    const struct layer *w = &n->m->layer[l];
    int wide = c->ple * c->n_layer;
    size_t off = F32(mul64(l, c->ple));
    n->dev.k->linear(n->dev.d, &(struct k_linear){
        .rows = rows, .src_stride = c->hidden, .src = n->x, .w = &w->ple_gate, .act = c->act,
        .scale = 1, .mul = kbuf_at(n->ple, off, n->ple.n - off), .mul_stride = wide,
        .dst = n->ple_row});
    n->dev.k->linear(n->dev.d, &(struct k_linear){
        .rows = rows, .src_stride = c->ple, .src = n->ple_row, .w = &w->ple_proj, .scale = 1,
        .post = norm_of(c, &w->ple_norm), .add = true, .dst = n->x});
}

bool net_forward(struct net *n, const struct plan *p, const struct k_plan *kp,
                 const struct taps *taps)
{
    const struct config *c = &n->m->cfg;
    int rows = p->n_rows;
    CHECK(rows <= n->max_rows);
    if (rows == 0)
        return true;
    probe_begin(n, p, kp);
    embed(n, kp, rows);
    for (int l = 0; l < c->n_layer; l++) {
        const struct layer *w = &n->m->layer[l];
        if (stop_asked(n->stop))
            return false;
        tap(n, taps, l, rows, captures(c, l)); /* qkv() stores the first capture then */
        probe_residual(n, l, PROBE_IN);
        attention(n, kp, l, rows, taps);
        probe_residual(n, l, PROBE_MID);
        feed_forward(n, w, rows);
        probe_experts(n, l);
        probe_residual(n, l, PROBE_OUT);
        if (c->ple)
            per_layer_input(n, l, rows);
        if (w->layer_scalar.data && !scales_in_experts(n, w))
            n->dev.k->scale(n->dev.d, &(struct k_scale){.rows = rows, .n = c->hidden, .x = n->x,
                                                        .s = &w->layer_scalar});
    }
    tap(n, taps, c->n_layer, rows, 0);
    probe_residual(n, c->n_layer, PROBE_IN);
    return true;
}

void net_logits(struct net *n, int rows, kbuf idx, kbuf logits)
{
    const struct config *c = &n->m->cfg;
    const struct kernels *k = n->dev.k;
    struct kdev *d = n->dev.d;
    if (rows == 0)
        return;
    kbuf src = n->x;
    if (idx.p) {
        k->rows(d, &(struct k_rows){.rows = rows, .n = c->hidden, .src_stride = c->hidden,
                                    .dst_stride = c->hidden, .src = n->x, .dst = n->y, .idx = idx});
        src = n->y;
    }
    struct k_norm pre = final_norm_of(c, &n->m->norm);
    if (c->norm == NORM_LAYER) {
        k->normalize(d, &(struct k_normalize){
            .rows = rows, .n = c->hidden, .src_stride = c->hidden, .dst_stride = c->hidden,
            .src = src, .dst = n->y, .norm = pre, .scale = 1});
        src = n->y, pre.kind = NORM_NONE;
    }
    k->linear(d, &(struct k_linear){.rows = rows, .src_stride = c->hidden, .src = src,
                                    .pre = pre, .w = &n->m->head,
                                    .softcap = c->final_softcap, .scale = c->logit_scale,
                                    .dst = logits});
}

/* ---- moving cells ---------------------------------------------------------------------------- */

void net_move(struct net *n, int pairs, const kbuf src[2], const kbuf dst[2])
{
    struct k_move m = {.pairs = pairs};
    for (int p = 0; p < 2; p++)
        if (src[p].p && n->n_of_pool[p])
            m.pool[m.n_pools++] = (struct k_pool){.src = src[p], .dst = dst[p],
                                                  .n_layers = n->n_of_pool[p],
                                                  .cells = n->of_pool[p]};
    if (pairs && m.n_pools)
        n->dev.k->move(n->dev.d, &m);
}
