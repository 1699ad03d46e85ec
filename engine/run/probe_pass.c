/* probe_pass.c - see probe_pass.h. */
#include "engine/run/probe_pass.h"

#include "kernels/fp8.h"

#include <math.h>

#define F32(n) ((size_t)(n) * sizeof(float))

/* ---- buffers --------------------------------------------------------------------------------- */

static bool want_buffer(struct net *n, kbuf *b, size_t bytes, struct err *e)
{
    *b = n->dev.k->alloc(n->dev.d, bytes, "a probe's buffers", e);
    return b->p != NULL;
}

bool probe_open(struct probe_pass *x, struct net *n, struct err *e)
{
    const struct config *c = &n->m->cfg;
    int wide = 0, heads = 0;
    FOR_EACH(const struct layer, w, n->m->layer, c->n_layer) {
        wide = max_int(wide, w->n_head * w->head_dim);
        heads = max_int(heads, w->n_head);
    }
    size_t experts = (size_t)c->n_layer * (size_t)n->max_rows * (size_t)c->top_k * sizeof(int32_t);
    *x = (struct probe_pass){.row = -1, .key_layer = -1};
    if (want_buffer(n, &x->o, F32(PROBE_ROWS * wide), e) &&
        want_buffer(n, &x->lse, F32(PROBE_ROWS * heads), e) &&
        want_buffer(n, &x->bare, F32(PROBE_ROWS * heads), e) &&
        (!c->n_expert || want_buffer(n, &x->chosen, experts, e)))
        return true;
    probe_close(x, n);
    return false;
}

void probe_close(struct probe_pass *x, struct net *n)
{
    kbuf all[] = {x->o, x->lse, x->bare, x->chosen};
    for (size_t i = 0; i < LEN(all); i++)
        n->dev.k->release(n->dev.d, all[i]);
    *x = (struct probe_pass){0};
}

/* ---- rows of buffers ------------------------------------------------------------------------- */

static void get_floats(struct net *n, kbuf src, size_t first, size_t count, float *dst)
{
    n->dev.k->get(n->dev.d, dst, kbuf_at(src, first * sizeof *dst, count * sizeof *dst),
                  count * sizeof *dst);
}

/* Keeps the probe's rows of a buffer whose rows are `width` floats; `from`: the buffer's first
 * row. */
static void keep_rows(struct net *n, int l, enum probe_point at, kbuf src, int from, int width)
{
    struct probe *p = n->probe->out;
    struct probe_layer *w = &p->layer[l];
    size_t count = (size_t)p->n_row * (size_t)width;
    w->width[at] = width;
    w->tap[at] = xmalloc(count * sizeof *w->tap[at]);
    get_floats(n, src, (size_t)(p->row0 - from) * (size_t)width, count, w->tap[at]);
}

void probe_begin(struct net *n, const struct plan *plan, const struct k_plan *kp)
{
    struct probe_pass *x = n->probe;
    const struct config *c = &n->m->cfg;
    if (!x)
        return;
    CHECK(plan->n_req == 1);
    struct probe *p = x->out;
    int last = plan->n_rows - 1;
    probe_clear(p); /* of a pass that failed */
    x->plan = plan;
    x->kp = kp;
    p->n_layer = c->n_layer;
    p->hidden = c->hidden;
    p->window = c->window;
    p->top_k = c->top_k;
    p->n_rows = plan->n_rows;
    p->n_row = min_int(plan->n_rows, PROBE_ROWS);
    p->share_row = x->row < 0 ? last : min_int(x->row, last);
    p->row0 = min_int(p->share_row, plan->n_rows - p->n_row);
    p->pos0 = plan->prefix_len[0];
    p->key_layer = x->key_layer < c->n_layer ? x->key_layer : -1;
    for (int i = 0; i < p->n_row; i++) {
        p->token[i] = plan->token[p->row0 + i];
        p->pos[i] = plan->pos[p->row0 + i];
        p->parent[i] = plan->up[p->row0 + i];
        for (int k = 0; k < PROBE_BEST; k++) {
            p->best[i][k] = -1;
            p->best_logp[i][k] = -INFINITY;
        }
    }
    p->layer = xcalloc((size_t)c->n_layer + 1, sizeof *p->layer);
    for (int l = 0; l < c->n_layer; l++) {
        const struct layer *w = &n->m->layer[l];
        struct probe_layer *o = &p->layer[l];
        o->window = w->window;
        o->n_head = w->n_head;
        o->n_kv = w->n_kv;
        o->head_dim = w->head_dim;
        o->kv_src = w->kv_src;
    }
}

void probe_residual(struct net *n, int l, enum probe_point at)
{
    if (n->probe)
        keep_rows(n, l, at, n->x, 0, n->m->cfg.hidden);
}

void probe_experts(struct net *n, int l)
{
    const struct config *c = &n->m->cfg;
    if (!n->probe || !n->m->layer[l].is_moe)
        return;
    struct probe *p = n->probe->out;
    size_t each = (size_t)c->top_k * sizeof(int32_t);
    size_t at = ((size_t)l * (size_t)n->max_rows + (size_t)p->row0) * each;
    size_t bytes = (size_t)p->n_row * each;
    p->layer[l].expert = xmalloc(bytes);
    n->dev.k->get(n->dev.d, p->layer[l].expert, kbuf_at(n->probe->chosen, at, bytes), bytes);
}

void probe_logits(struct net *n, int first, int rows, kbuf logits, kbuf ids, kbuf logp)
{
    if (!n->probe)
        return;
    struct probe *p = n->probe->out;
    int V = n->m->cfg.vocab, k = min_int(PROBE_BEST, V);
    FREED(free_at) int32_t *id = xmalloc((size_t)rows * (size_t)k * sizeof *id);
    FREED(free_at) float *lp = xmalloc(F32(mul64(rows, k)));
    n->dev.k->topk(n->dev.d, &(struct k_topk){.rows = rows, .n = V, .k = k, .logits = logits,
                                              .ids = ids, .logp = logp});
    n->dev.k->get(n->dev.d, id, ids, (size_t)rows * (size_t)k * sizeof *id);
    n->dev.k->get(n->dev.d, lp, logp, F32(mul64(rows, k)));
    for (int i = 0; i < rows; i++) {
        int row = first + i - p->row0;
        if (row < 0 || row >= p->n_row)
            continue;
        memcpy(p->best[row], id + mul64(i, k), (size_t)k * sizeof *id);
        memcpy(p->best_logp[row], lp + mul64(i, k), F32(k));
    }
}

/* ---- keys and values ------------------------------------------------------------------------- */

static void widen_cell(const struct k_cells *c, const uint8_t *cell, float *dst)
{
    size_t n = (size_t)c->n_kv * (size_t)c->head_dim;
    if (c->type == KV_F32)
        memcpy(dst, cell, F32(n));
    for (int h = 0; c->type == KV_FP8 && h < c->n_kv; h++)
        fp8_cell_read(cell + mul64(h, c->head_dim), cell[n + (size_t)h], c->head_dim,
                      dst + mul64(h, c->head_dim));
    for (size_t i = 0; c->type == KV_BF16 && i < n; i++) {
        uint16_t half;
        memcpy(&half, cell + i * sizeof half, sizeof half);
        uint32_t bits = (uint32_t)half << 16;
        memcpy(&dst[i], &bits, sizeof bits);
    }
}

/* Copies n cells of successive slots to float32. */
static void get_cells(struct net *n, const struct k_cells *c, kbuf from, int32_t slot, int count,
                      float *dst)
{
    size_t numbers = (size_t)c->n_kv * (size_t)c->head_dim, floats = (size_t)count * numbers;
    size_t each = kv_cell_bytes(c->type, c->n_kv, c->head_dim);
    if (slot < 0 || count > c->n_slots - slot) { /* a historical fault's slot */
        for (size_t i = 0; i < floats; i++)
            dst[i] = NAN;
        return;
    }
    FREED(free_at) uint8_t *cells = xmalloc((size_t)count * each);
    n->dev.k->get(n->dev.d, cells, kbuf_at(from, (size_t)slot * each, (size_t)count * each),
                  (size_t)count * each);
    for (int k = 0; k < count; k++, dst += numbers)
        widen_cell(c, cells + (size_t)k * each, dst);
}

/* The cells that the probe's rows have written. */
static void keep_cells(struct net *n, int l)
{
    const struct probe_pass *x = n->probe;
    struct probe_layer *w = &x->out->layer[l];
    const struct table *t = &x->plan->table[target_table(w->window)];
    int width = w->n_kv * w->head_dim;
    if (w->kv_src != l || !t->write)
        return;
    for (int i = PROBE_K; i <= PROBE_V; i++) {
        w->width[i] = width;
        w->tap[i] = xmalloc(F32(mul64(x->out->n_row, width)));
        kbuf from = i == PROBE_K ? n->cells[l].k : n->cells[l].v;
        for (int r = 0; r < x->out->n_row; r++)
            get_cells(n, &n->cells[l], from, t->write[x->out->row0 + r], 1,
                      w->tap[i] + mul64(r, width));
    }
}

/* ---- attention of one row -------------------------------------------------------------------- */

/* The sums over one row's keys. Weights are e^(score - lse): a head's sum to 1 less its sink, but
 * for rounding, which the end divides out. */
struct probe_reading {
    struct net *n;
    struct probe *p;
    const struct probe_layer *w;
    const struct config *c;
    const float *q, *lse;
    int pos;     /* of the query */
    int near;    /* the first position that W keys reach */
    double *sum; /* (n_head) of all weights */
    double (*part)[4]; /* (n_head) within, beyond, tree, first */
    bool keys;   /* keep the weights, and add up ... */
    double *out; /* (n_head, head_dim) ... their products with the values */
};

static void read_key(struct probe_reading *a, int position, int32_t slot, const float *k,
                     const float *v)
{
    const struct probe_layer *w = a->w;
    struct probe *p = a->p;
    int group = w->n_head / w->n_kv, D = w->head_dim;
    for (int h = 0; h < w->n_head; h++) {
        const float *q = a->q + mul64(h, D), *key = k + mul64(h / group, D);
        double dot = 0;
        for (int i = 0; i < D; i++)
            dot += (double)q[i] * (double)key[i];
        double s = dot * (double)a->c->attn_scale, cap = (double)a->c->attn_softcap;
        if (cap > 0)
            s = cap * tanh(s / cap);
        double x = exp(s - (double)a->lse[h]);
        a->sum[h] += x;
        a->part[h][position >= p->pos0 ? 2 : position >= a->near ? 0 : 1] += x;
        if (position == 0)
            a->part[h][3] += x;
        if (!a->keys)
            continue;
        p->key_p[(size_t)h * (size_t)p->n_key + (size_t)(position - p->key_pos[0])] = (float)x;
        for (int i = 0; i < D; i++)
            a->out[h * D + i] += x * (double)v[h / group * D + i];
    }
    if (a->keys)
        p->key_slot[position - p->key_pos[0]] = slot;
}

enum { CELLS_AT_ONCE = 128 };

/* Reads `count` cells of successive slots, whose positions are successive, too. */
static void read_run(struct probe_reading *a, const struct k_cells *c, int position, int32_t slot,
                     int count, float *k, float *v)
{
    int width = c->n_kv * c->head_dim;
    get_cells(a->n, c, c->k, slot, count, k);
    if (a->keys)
        get_cells(a->n, c, c->v, slot, count, v);
    for (int i = 0; i < count; i++)
        read_key(a, position + i, slot + i, k + mul64(i, width), v + mul64(i, width));
}

/* Reads the row's keys in the order of their positions: through pages, then the expanded ones. */
static void read_keys(struct probe_reading *a, const struct k_cells *c, const struct table *t,
                      int row, const int32_t *pages)
{
    size_t floats = (size_t)CELLS_AT_ONCE * (size_t)c->n_kv * (size_t)c->head_dim;
    float *k = xmalloc(F32(floats)), *v = xmalloc(F32(floats));
    int P = t->page_size, hi = t->hi[row];
    for (int j = t->lo[row], n; j < hi; j += n) {
        int32_t slot = pages[j / P] * P + j % P;
        n = 1;
        while (j + n < hi && n < CELLS_AT_ONCE &&
               pages[(j + n) / P] * P + (j + n) % P == slot + n)
            n++;
        read_run(a, c, j, slot, n, k, v);
    }
    for (int e = 0; e < t->n_expand[row]; e++)
        read_run(a, c, hi + e, t->expand[(size_t)row * (size_t)t->expand_w + (size_t)e], 1, k, v);
    FREE(k, v);
}

static void begin_keys(struct probe *p, const struct probe_layer *w, const struct table *t, int row)
{
    int lo = min_int(t->lo[row], t->hi[row]); /* the window may begin among the expanded keys */
    p->n_key = t->hi[row] - lo + t->n_expand[row];
    p->key_pos = xmalloc((size_t)max_int(1, p->n_key) * sizeof *p->key_pos);
    p->key_slot = xcalloc((size_t)max_int(1, p->n_key), sizeof *p->key_slot);
    p->key_p = xcalloc((size_t)p->n_key * (size_t)w->n_head + 1, sizeof *p->key_p);
    for (int i = 0; i < p->n_key; i++)
        p->key_pos[i] = lo + i;
}

/* Divides what one head's weights add up to out of the sums, and stores the shares. */
static void share_head(struct probe_reading *a, int h, double sink, struct attn_share *s)
{
    double whole = a->sum[h] > 0 ? (1 - sink) / a->sum[h] : 0;
    *s = (struct attn_share){.sink = (float)sink, .within = (float)(a->part[h][0] * whole),
                             .beyond = (float)(a->part[h][1] * whole),
                             .tree = (float)(a->part[h][2] * whole),
                             .first = (float)(a->part[h][3] * whole)};
    if (!a->keys)
        return;
    int D = a->w->head_dim;
    const float *tapped = probe_row(a->p, (int)(a->w - a->p->layer), PROBE_ATTN, a->p->share_row);
    float *key = a->p->key_p + (size_t)h * (size_t)a->p->n_key;
    double most = 0, off = 0;
    for (int i = 0; i < a->p->n_key; i++)
        key[i] = (float)((double)key[i] * whole);
    for (int i = 0; i < a->w->n_head * D; i++)
        most = fmax(most, fabs((double)tapped[i]));
    for (int i = 0; i < D; i++)
        off = fmax(off, fabs(a->out[h * D + i] * whole - (double)tapped[h * D + i]));
    if (most > 0)
        a->p->key_error = fmaxf(a->p->key_error, (float)(off / most));
}

/* lse: with sinks; bare: without, or the same. */
static void share_row(struct net *n, int l, const float *lse, const float *bare)
{
    const struct probe_pass *x = n->probe;
    struct probe *p = x->out;
    struct probe_layer *w = &p->layer[l];
    const struct table *t = &x->plan->table[target_table(w->window)];
    int row = p->share_row;
    struct probe_reading a = {.n = n, .p = p, .w = w, .c = &n->m->cfg, .lse = lse,
                              .q = probe_row(p, l, PROBE_Q, row), .pos = x->plan->pos[row],
                              .keys = l == p->key_layer};
    a.near = window_first(a.pos, p->window);
    a.sum = xcalloc((size_t)w->n_head, sizeof *a.sum);
    a.part = xcalloc((size_t)w->n_head, sizeof *a.part);
    a.out = xcalloc((size_t)w->n_head * (size_t)w->head_dim, sizeof *a.out);
    w->share = xcalloc((size_t)w->n_head, sizeof *w->share);
    if (a.keys) {
        p->key_window_lo = a.near;
        begin_keys(p, w, t, row);
    }
    read_keys(&a, &n->cells[l], t, row,
              t->pages + (size_t)x->plan->req[row] * (size_t)t->n_cols);
    for (int h = 0; h < w->n_head; h++)
        share_head(&a, h, bare ? -expm1((double)bare[h] - (double)lse[h]) : 0, &w->share[h]);
    FREE(a.sum, a.part, a.out);
}

/* Runs the attention of the probe's rows into the probe's buffers. */
static void attend(struct net *n, int l, bool sinks, kbuf lse)
{
    const struct probe_pass *x = n->probe;
    const struct probe *p = x->out;
    const struct layer *w = &n->m->layer[l];
    struct k_plan part = plan_rows(x->kp, p->row0, p->n_row);
    struct k_attn a = net_attn(n, &part, l, p->n_row);
    size_t row = F32(mul64(w->n_head, w->head_dim));
    a.q = kbuf_at(n->q, (size_t)p->row0 * row, (size_t)p->n_row * row);
    a.sinks = sinks ? a.sinks : NULL;
    a.dst = x->o;
    a.lse = lse;
    n->dev.k->attn(n->dev.d, &a);
}

void probe_attention(struct net *n, int l)
{
    struct probe_pass *x = n->probe;
    const struct layer *w = &n->m->layer[l];
    if (!x)
        return;
    struct probe *p = x->out;
    keep_rows(n, l, PROBE_Q, n->q, 0, w->n_head * w->head_dim);
    keep_cells(n, l);
    if (x->kp->two_parts) /* probe_output() follows */
        return;
    bool sinks = w->sinks.data != NULL;
    if (sinks)
        attend(n, l, false, x->bare);
    attend(n, l, true, x->lse);
    keep_rows(n, l, PROBE_ATTN, x->o, p->row0, w->n_head * w->head_dim);
    size_t at = (size_t)(p->share_row - p->row0) * (size_t)w->n_head, heads = (size_t)w->n_head;
    float *lse = xmalloc(2 * F32(w->n_head)), *bare = lse + w->n_head;
    get_floats(n, x->lse, at, heads, lse);
    if (sinks)
        get_floats(n, x->bare, at, heads, bare);
    share_row(n, l, lse, sinks ? bare : NULL);
    free(lse);
}

void probe_output(struct net *n, int l)
{
    const struct layer *w = &n->m->layer[l];
    if (n->probe && n->probe->kp->two_parts)
        keep_rows(n, l, PROBE_ATTN, n->o, 0, w->n_head * w->head_dim);
}
