/* linear.c - products with weight matrices: linear, glu, qkv.
 *
 * A product runs in two parallel regions (threads.c): one normalises and packs the rows, one
 * computes tiles of outputs. A tile's weights are read from memory once and multiplied with all
 * rows while they are in the CPU cache. Operations on whole rows of outputs (a post-norm, rope) are
 * a third region.
 */
#include "kernels/cpu/cpu.h"

/* ---- packing -------------------------------------------------------------------------------- */

struct pack_run {
    const struct cpu_isa *isa;
    const float *src;
    float *dst;
    size_t stride;
    int n;
    const struct k_norm *norm;
    const struct tensor *factor;
    float scale;
};

static void pack_row(void *arg, int r, int thread)
{
    (void)thread;
    const struct pack_run *p = arg;
    p->isa->pack(p->src + (size_t)r * p->stride, p->n, p->norm, p->factor, p->scale,
                 p->dst + (size_t)r * (size_t)cpu_packed(p->n));
}

float *cpu_pack_rows(struct kdev *d, enum cpu_scratch_use use, const float *src, size_t stride,
                     int rows, int n, const struct k_norm *norm, const struct tensor *factor,
                     float scale)
{
    CHECK(norm->kind == NORM_NONE || norm->kind == NORM_PLAIN || (norm->w && norm->w->data));
    struct pack_run run = {d->isa, src, cpu_floats(d, use, (size_t)rows * (size_t)cpu_packed(n)),
                           stride, n, norm, factor, scale};
    cpu_each(d, rows, n * 4.0, pack_row, &run);
    return run.dst;
}

/* ---- products ------------------------------------------------------------------------------- */

enum { MAX_MATS = 3 };

struct product {
    const struct cpu_isa *isa;
    const float **x; /* (rows) packed inputs */
    int rows, tile;  /* tile: outputs of an item */
    int n_mats;
    struct {
        struct cpu_mat w;
        struct cpu_epilogue f;
        int first; /* its first item */
    } m[MAX_MATS];
};

static void product_start(struct kdev *d, struct product *p, const float *packed, int rows, int n)
{
    *p = (struct product){.isa = d->isa, .rows = rows};
    p->x = cpu_scratch(d, SCRATCH_PTR, (size_t)rows, sizeof *p->x);
    for (int r = 0; r < rows; r++)
        p->x[r] = packed + (size_t)r * (size_t)cpu_packed(n);
}

static struct cpu_epilogue *product_add(struct product *p, const struct tensor *w,
                                      const struct tensor *b, float *dst, size_t stride)
{
    CHECK(p->n_mats < MAX_MATS);
    int i = p->n_mats++;
    p->m[i].w = cpu_mat_of(w);
    CHECK(p->m[i].w.k == p->m[0].w.k);
    CHECK(!b || (b->data && b->dim[0] == w->dim[0]));
    if (b)
        cpu_store_of(b);
    p->m[i].f = (struct cpu_epilogue){.b = b, .scale = 1, .dst = dst, .dst_stride = stride};
    return &p->m[i].f;
}

static void product_item(void *arg, int item, int thread)
{
    (void)thread;
    const struct product *p = arg;
    int i = p->n_mats - 1;
    while (item < p->m[i].first)
        i--;
    const struct cpu_mat *w = &p->m[i].w;
    int out = (item - p->m[i].first) * p->tile, n = min_int(p->tile, w->n - out);
    for (int r = 0; r < p->rows; r += TILE_ROWS) {
        float tile[TILE_ROWS * TILE_OUT];
        int rows = min_int(TILE_ROWS, p->rows - r);
        p->isa->multiply(w, p->x + r, rows, out, n, tile);
        struct cpu_epilogue f = p->m[i].f;
        f.b_at = (size_t)out;
        f.dst += (size_t)r * f.dst_stride + (size_t)out;
        if (f.mul)
            f.mul += (size_t)r * f.mul_stride + (size_t)out;
        p->isa->epilogue(&f, tile, rows, n);
    }
}

/* Outputs of one item: the largest tile that gives every thread at least four items. */
static int tile_for(const struct kdev *d, int outputs)
{
    int tile = TILE_OUT;
    while (tile > 8 && outputs / tile < 4 * d->threads)
        tile /= 2;
    return tile;
}

static void product_run(struct kdev *d, struct product *p)
{
    int outputs = 0, items = 0;
    for (int i = 0; i < p->n_mats; i++)
        outputs += p->m[i].w.n;
    p->tile = tile_for(d, outputs);
    for (int i = 0; i < p->n_mats; i++) {
        p->m[i].first = items;
        items += div_up(p->m[i].w.n, p->tile);
    }
    cpu_each(d, items, (double)p->rows * p->tile * p->m[0].w.k, product_item, p);
}

void cpu_product(struct kdev *d, const float *packed, int rows, const struct tensor *w,
                 const struct tensor *b, float *dst)
{
    struct product p;
    product_start(d, &p, packed, rows, (int)w->dim[1]);
    product_add(&p, w, b, dst, (size_t)w->dim[0]);
    product_run(d, &p);
}

/* ---- linear --------------------------------------------------------------------------------- */

struct post_run {
    const struct cpu_isa *isa;
    const struct k_norm *norm;
    const float *src;
    float *dst;
    size_t dst_stride;
    int n;
    bool add;
};

static void post_row(void *arg, int r, int thread)
{
    (void)thread;
    const struct post_run *p = arg;
    p->isa->normalize(p->src + (size_t)r * (size_t)p->n, p->n, p->norm, p->add, 1,
                      p->dst + (size_t)r * p->dst_stride);
}

static size_t span(int rows, int stride, int n)
{
    return rows ? (size_t)(rows - 1) * (size_t)stride + (size_t)n : 0;
}

void cpu_linear(struct kdev *d, const struct k_linear *a)
{
    int out = (int)a->w->dim[0], in = (int)a->w->dim[1];
    int ss = cpu_stride(a->src_stride, in), ds = cpu_stride(a->dst_stride, out);
    int ms = cpu_stride(a->mul_stride, out);
    float *dst = cpu_f32(a->dst, span(a->rows, ds, out));
    bool post = a->post.kind != NORM_NONE;
    CHECK(a->act != ACT_SWIGLU_CLAMP);
    struct product p;
    float *x = cpu_pack_rows(d, SCRATCH_PACK, cpu_f32(a->src, span(a->rows, ss, in)), (size_t)ss,
                             a->rows, in, &a->pre, NULL, 1);
    float *to = post ? cpu_floats(d, SCRATCH_OUT, (size_t)a->rows * (size_t)out) : dst;
    product_start(d, &p, x, a->rows, in);
    struct cpu_epilogue *f = product_add(&p, a->w, a->b, to, (size_t)(post ? out : ds));
    f->act = a->act;
    f->softcap = a->softcap;
    f->scale = a->scale;
    f->add = a->add && !post;
    if (a->mul.p) {
        f->mul = cpu_f32(a->mul, span(a->rows, ms, out));
        f->mul_stride = (size_t)ms;
    }
    product_run(d, &p);
    if (post) {
        struct post_run run = {d->isa, &a->post, to, dst, (size_t)ds, out, a->add};
        cpu_each(d, a->rows, out * 4.0, post_row, &run);
    }
}

/* ---- glu ------------------------------------------------------------------------------------ */

struct glu_run {
    const struct product *p;
    const struct k_glu *a;
    float *dst;
};

static void glu_item(void *arg, int item, int thread)
{
    (void)thread;
    const struct glu_run *run = arg;
    const struct product *p = run->p;
    int ffn = p->m[0].w.n, out = item * p->tile, n = min_int(p->tile, ffn - out);
    for (int r = 0; r < p->rows; r += TILE_ROWS) {
        float gate[TILE_ROWS * TILE_OUT], up[TILE_ROWS * TILE_OUT];
        int rows = min_int(TILE_ROWS, p->rows - r);
        p->isa->multiply(&p->m[0].w, p->x + r, rows, out, n, gate);
        p->isa->multiply(&p->m[1].w, p->x + r, rows, out, n, up);
        for (int i = 0; i < rows; i++)
            p->isa->gate(gate + i * TILE_OUT, up + i * TILE_OUT, n, run->a->act, 0,
                         run->dst + (size_t)(r + i) * (size_t)ffn + out);
    }
}

void cpu_glu(struct kdev *d, const struct k_glu *a)
{
    int ffn = (int)a->gate->dim[0], in = (int)a->gate->dim[1];
    CHECK(a->act != ACT_SWIGLU_CLAMP); /* only k_moe has its limit */
    CHECK(a->up->dim[0] == ffn);
    struct product p;
    float *x = cpu_pack_rows(d, SCRATCH_PACK, cpu_f32(a->src, (size_t)a->rows * (size_t)in),
                             (size_t)in, a->rows, in, &a->pre, NULL, 1);
    product_start(d, &p, x, a->rows, in);
    product_add(&p, a->gate, NULL, NULL, 0);
    product_add(&p, a->up, NULL, NULL, 0);
    p.tile = tile_for(d, ffn);
    struct glu_run run = {&p, a, cpu_f32(a->dst, (size_t)a->rows * (size_t)ffn)};
    cpu_each(d, div_up(ffn, p.tile), 2.0 * a->rows * p.tile * in, glu_item, &run);
}

/* ---- qkv ------------------------------------------------------------------------------------ */

struct qkv_run {
    const struct k_qkv *a;
    const struct cpu_isa *isa;
    float *q, *k, *v; /* (rows, heads, head_dim) raw projections; v == NULL with v_from_k */
    const float *cs;
    const int32_t *write;
};

static void norm_heads(const struct qkv_run *run, float *x, int heads, const struct k_norm *norm,
                       bool whole)
{
    int n = run->a->head_dim;
    if (norm->kind == NORM_NONE)
        return;
    if (whole)
        run->isa->normalize(x, heads * n, norm, false, 1, x);
    else
        for (int h = 0; h < heads; h++)
            run->isa->normalize(x + h * n, n, norm, false, 1, x + h * n);
}

static void rotate_heads(const struct qkv_run *run, float *x, int heads, int r)
{
    const struct k_qkv *a = run->a;
    if (a->rot)
        for (int h = 0; h < heads; h++)
            run->isa->rotate(x + h * a->head_dim, a->rot, run->cs + (size_t)r * (size_t)a->rot);
}

static void write_cell(const struct qkv_run *run, kbuf pool, int32_t slot, const float *x)
{
    const struct k_cells *c = &run->a->cells;
    size_t n = (size_t)c->n_kv * (size_t)c->head_dim, size = n * kv_type_size(c->type);
    char *at = (char *)pool.p + (size_t)slot * size;
    if (c->type == KV_F32)
        memcpy(at, x, size);
    else
        run->isa->to_bf16(x, (int)n, (uint16_t *)at);
}

static void qkv_row(void *arg, int r, int thread)
{
    (void)thread;
    const struct qkv_run *run = arg;
    const struct k_qkv *a = run->a;
    size_t nq = (size_t)a->n_head * (size_t)a->head_dim, nk = (size_t)a->n_kv * (size_t)a->head_dim;
    float *q = run->q + (size_t)r * nq;
    norm_heads(run, q, a->n_head, &a->q_norm, a->norm_whole);
    rotate_heads(run, q, a->n_head, r);
    if (!run->k)
        return;
    float *k = run->k + (size_t)r * nk, *v = run->v + (size_t)r * nk;
    if (a->v_from_k)
        memcpy(v, k, nk * sizeof *v);
    norm_heads(run, v, a->n_kv, &a->v_norm, false);
    norm_heads(run, k, a->n_kv, &a->k_norm, a->norm_whole);
    rotate_heads(run, k, a->n_kv, r);
    if (!run->write)
        return;
    int32_t slot = run->write[r];
    CHECK(slot >= 0 && slot < a->cells.n_slots);
    write_cell(run, a->cells.k, slot, k);
    write_cell(run, a->cells.v, slot, v);
}

void cpu_qkv(struct kdev *d, const struct k_qkv *a)
{
    int in = (int)a->wq->dim[1], ss = cpu_stride(a->src_stride, in);
    int nq = a->n_head * a->head_dim, nk = a->n_kv * a->head_dim;
    size_t rows = (size_t)a->rows;
    CHECK(a->wq->dim[0] == nq && a->rot % 2 == 0 && a->rot <= a->head_dim);
    struct qkv_run run = {.a = a, .isa = d->isa, .q = cpu_f32(a->q, rows * (size_t)nq)};
    float *x = cpu_pack_rows(d, SCRATCH_PACK, cpu_f32(a->src, span(a->rows, ss, in)), (size_t)ss,
                             a->rows, in, &a->norm, NULL, 1);
    if (a->capture.p) {
        CHECK(!a->packed && a->capture_stride >= in);
        cpu_rows(d, &(struct k_rows){.rows = a->rows, .n = in, .src_stride = ss,
                                     .dst_stride = a->capture_stride, .src = a->src,
                                     .dst = a->capture});
    }
    struct product p;
    product_start(d, &p, x, a->rows, in);
    product_add(&p, a->wq, a->bq, run.q, (size_t)nq);
    if (a->wk) {
        CHECK(a->wk->dim[0] == nk && (a->v_from_k || (a->wv && a->wv->dim[0] == nk)));
        run.k = cpu_floats(d, SCRATCH_K, rows * (size_t)nk);
        run.v = cpu_floats(d, SCRATCH_V, rows * (size_t)nk);
        product_add(&p, a->wk, a->bk, run.k, (size_t)nk);
        if (!a->v_from_k)
            product_add(&p, a->wv, a->bv, run.v, (size_t)nk);
        if (a->table && a->table->write.p) {
            CHECK(a->cells.n_kv == a->n_kv && a->cells.head_dim == a->head_dim);
            cpu_check_cells(&a->cells);
            run.write = cpu_i32(a->table->write, rows);
        }
    }
    if (a->rot)
        run.cs = cpu_f32(a->cs, rows * (size_t)a->rot);
    product_run(d, &p);
    cpu_each(d, a->rows, (nq + 2 * nk) * 4.0, qkv_row, &run);
}
