/* linear.c - products with weight matrices: linear, glu, qkv.
 *
 * A product runs in two parallel regions (threads.c): one normalises and packs the rows, one
 * computes tiles of outputs. A tile's weights are read from memory once and multiplied with all
 * rows while they are in the CPU cache: with panels of rows if there are many (wide.h), else with a
 * few rows at a time (math.h), to the same bits. Operations on whole rows of outputs (a post-norm,
 * rope) are a third region.
 */
#include "kernels/cpu/cpu.h"
#include "kernels/fp8.h"

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

static void pack_row(void *arg, int r, int)
{
    const struct pack_run *p = arg;
    p->isa->pack(p->src + (size_t)r * p->stride, p->n, p->norm, p->factor, p->scale,
                 p->dst + (size_t)r * (size_t)cpu_packed(p->n));
}

float *cpu_pack_rows(struct kdev *d, enum cpu_scratch_use use, const float *src, size_t stride,
                     int rows, int n, const struct k_norm *norm, const struct tensor *factor,
                     float scale)
{
    CHECK(norm->kind != NORM_LAYER);
    CHECK(norm->kind == NORM_NONE || norm->kind == NORM_PLAIN || (norm->w && norm->w->data));
    struct pack_run run = {d->isa, src, cpu_floats(d, use, (size_t)rows * (size_t)cpu_packed(n)),
                           stride, n, norm, factor, scale};
    cpu_each(d, rows, n * 4.0, pack_row, &run);
    return run.dst;
}

/* The input rows of a product: packed, the first ones in panels (wide.h). */
struct linear_input {
    int rows, panels; /* rows: all of them */
    int k;            /* packed elements of a row */
    int sweep;        /* panels of a sweep, but for the last one */
    const float *panel; /* sweeps of (16, panels, k / 16, PANEL), padded with rows of zeros */
    const float *row;   /* (rest, k): the rows that are in no panel */
};

struct input_run {
    struct pack_run p;
    const struct linear_input *in;
    float *panel, *row, *thread_rows;
};

/* The panels of so many rows: none for few, which do not pay for converting the weights. A panel
 * that is not full takes as long as a full one: fewer than MIN_IN_PANEL rows are faster one by
 * one. */
static int panels_of(int rows)
{
    enum { MIN_ROWS = 64, MIN_IN_PANEL = 11 };
    return rows < MIN_ROWS ? 0 : (rows + PANEL - MIN_IN_PANEL) / PANEL;
}

static int rows_in_panels(const struct linear_input *in)
{
    return min_int(in->panels * PANEL, in->rows);
}

static void input_item(void *arg, int item, int thread)
{
    const struct input_run *run = arg;
    const struct linear_input *in = run->in;
    size_t k = (size_t)in->k;
    struct pack_run one = run->p;
    if (item >= in->panels) {
        one.src += (size_t)rows_in_panels(in) * one.stride;
        one.dst = run->row;
        pack_row(&one, item - in->panels, thread);
        return;
    }
    int rows = min_int(PANEL, in->rows - item * PANEL);
    one.src += (size_t)item * PANEL * one.stride;
    one.dst = run->thread_rows + (size_t)thread * PANEL * k;
    for (int r = 0; r < rows; r++)
        pack_row(&one, r, thread);
    memset(one.dst + (size_t)rows * k, 0, (size_t)(PANEL - rows) * k * sizeof *one.dst);
    int sweep = item / in->sweep * in->sweep, panels = min_int(in->sweep, in->panels - sweep);
    size_t piece = k / 16 * PANEL;
    one.isa->panel(one.dst, in->k, piece * (size_t)panels,
                   run->panel + (size_t)sweep * PANEL * k + piece * (size_t)(item - sweep));
}

/* Panels of a sweep. Of long rows, a tile's weights and two panels are more than the second cache
 * holds. Shorter rows are better in sweeps of two panels, which then stay there for the second
 * matrix of glu(), and their sums in the first cache. */
static int sweep_of(int k)
{
    enum { LONG = 3072, SHORT_SWEEP = 2 };
    return k > LONG ? SWEEP : SHORT_SWEEP;
}

static struct linear_input pack_input(struct kdev *d, const float *src, size_t stride, int rows,
                                      int n, const struct k_norm *norm)
{
    CHECK(norm->kind != NORM_LAYER);
    CHECK(norm->kind == NORM_NONE || norm->kind == NORM_PLAIN || (norm->w && norm->w->data));
    struct linear_input in = {.rows = rows, .panels = panels_of(rows), .k = cpu_packed(n)};
    in.sweep = sweep_of(in.k);
    size_t k = (size_t)in.k, panel = (size_t)in.panels * PANEL * k;
    int rest = rows - rows_in_panels(&in);
    struct input_run run = {.p = {d->isa, src, NULL, stride, n, norm, NULL, 1}, .in = &in};
    in.panel = run.panel = cpu_floats(d, SCRATCH_PACK, panel + (size_t)rest * k);
    in.row = run.row = run.panel + panel;
    if (in.panels)
        run.thread_rows = cpu_floats(d, SCRATCH_WIDE, (size_t)d->threads * PANEL * k);
    cpu_each(d, in.panels + rest, n * (in.panels ? 4.0 * PANEL : 4.0), input_item, &run);
    return in;
}

/* ---- products ------------------------------------------------------------------------------- */

struct linear_product {
    const struct cpu_isa *isa;
    struct linear_input in;
    const float **x; /* pointers to the rows of in.row */
    int tile;        /* outputs of an item */
    float *weights;  /* (threads, thread_weights) tiles of weights, if there are panels */
    size_t thread_weights;
    int n_mats;
    struct {
        struct cpu_mat w;
        struct cpu_epilogue f;
        int first; /* its first item */
    } m[CPU_MATS];
};

static void product_start(struct kdev *d, struct linear_product *p, const struct linear_input *in)
{
    *p = (struct linear_product){.isa = d->isa, .in = *in};
    int rest = in->rows - rows_in_panels(in);
    p->x = cpu_scratch(d, SCRATCH_PTR, (size_t)rest, sizeof *p->x);
    for (int r = 0; r < rest; r++)
        p->x[r] = in->row + (size_t)r * (size_t)in->k;
}

static struct cpu_epilogue *product_add(struct linear_product *p, const struct tensor *w,
                                        const struct tensor *b, float *dst, size_t stride)
{
    CHECK(p->n_mats < CPU_MATS);
    int i = p->n_mats++;
    p->m[i].w = cpu_mat_of(w);
    CHECK(cpu_packed(p->m[i].w.k) == p->in.k && p->m[i].w.k == p->m[0].w.k);
    CHECK(!b || (b->data && b->dim[0] == w->dim[0]));
    if (b)
        cpu_store_of(b);
    p->m[i].f = (struct cpu_epilogue){.b = b, .scale = 1, .dst = dst, .dst_stride = stride};
    return &p->m[i].f;
}

/* ---- the product that comes next ------------------------------------------------------------- */

/* A pass runs the same products in the same order as the pass before it. So each product remembers
 * the one that came after it, and threads that wait for the next region prefetch the first weights
 * of their share of that one: memory is read while the threads synchronise. */
enum { N_AHEAD = 1024 };

static struct cpu_ahead *ahead_of(const struct kdev *d, const void *weights)
{
    return &d->ahead[mix64((uint64_t)(uintptr_t)weights) % N_AHEAD];
}

/* Notes the product, and lets the threads prefetch the one that came after it last time. */
static void note_product(struct kdev *d, const struct linear_product *p, int items, bool together)
{
    if (!d->pool)
        return;
    if (!d->ahead)
        d->ahead = xcalloc(N_AHEAD, sizeof *d->ahead);
    const struct cpu_mat *w = &p->m[0].w;
    struct cpu_ahead *this = ahead_of(d, d->last_product), *next = ahead_of(d, w->data);
    size_t tile = (size_t)p->tile * w->pitch;
    if (this->after != d->last_product || this->data[0] != w->data || this->items != items ||
        this->tile != tile) {
        this->after = d->last_product;
        this->mats = p->n_mats;
        this->items = items;
        this->together = together;
        this->tile = tile;
        for (int i = 0; i < p->n_mats; i++) {
            this->data[i] = p->m[i].w.data;
            this->first[i] = together ? 0 : p->m[i].first;
        }
    }
    d->last_product = w->data;
    cpu_pool_ahead(d->pool, next->after == w->data ? next : NULL);
}

/* ---- tiles ----------------------------------------------------------------------------------- */

/* Rows are multiplied in parts: sweeps of those in panels, then up to TILE_ROWS of the others. */
enum { MOST_ROWS = SWEEP * PANEL > TILE_ROWS ? SWEEP * PANEL : TILE_ROWS };

static int sweeps_of(const struct linear_input *in)
{
    return in->panels ? div_up(in->panels, in->sweep) : 0;
}

static int parts_of(const struct linear_product *p)
{
    int rest = p->in.rows - rows_in_panels(&p->in);
    return sweeps_of(&p->in) + div_up(rest, TILE_ROWS);
}

/* Converts the weights of a tile for the rows in panels; NULL if there are none. slot: which of the
 * thread's tiles. */
static const float *tile_weights(const struct linear_product *p, int mat, int out, int n,
                                 int thread, int slot)
{
    if (!p->in.panels)
        return NULL;
    float *to = p->weights + (size_t)thread * p->thread_weights +
                (size_t)slot * (size_t)p->in.k * TILE_OUT;
    p->isa->widen_tile(&p->m[mat].w, out, n, to);
    return to;
}

/* tile: outputs out .. out + n - 1 for the rows of a part. *first: its first row; returns how many
 * rows it has. */
static int multiply_part(const struct linear_product *p, int mat, int out, int n,
                         const float *weights, int part, float *tile, int *first)
{
    int done = rows_in_panels(&p->in), wide = sweeps_of(&p->in);
    if (part < wide) {
        int panels = min_int(p->in.sweep, p->in.panels - part * p->in.sweep);
        *first = part * p->in.sweep * PANEL;
        p->isa->multiply_wide(weights, p->in.k,
                              p->in.panel + (size_t)*first * (size_t)p->in.k, panels, n, tile);
        return min_int(panels * PANEL, done - *first);
    }
    int r = (part - wide) * TILE_ROWS, rows = min_int(TILE_ROWS, p->in.rows - done - r);
    *first = done + r;
    p->isa->multiply(&p->m[mat].w, p->x + r, rows, out, n, tile);
    return rows;
}

static void product_item(void *arg, int item, int thread)
{
    const struct linear_product *p = arg;
    int i = p->n_mats - 1;
    while (item < p->m[i].first)
        i--;
    int out = (item - p->m[i].first) * p->tile, n = min_int(p->tile, p->m[i].w.n - out);
    const float *weights = tile_weights(p, i, out, n, thread, 0);
    for (int part = 0; part < parts_of(p); part++) {
        _Alignas(64) float tile[MOST_ROWS * TILE_OUT];
        int r, rows = multiply_part(p, i, out, n, weights, part, tile, &r);
        struct cpu_epilogue f = p->m[i].f;
        f.b_at = (size_t)out;
        f.dst += (size_t)r * f.dst_stride + (size_t)out;
        if (f.mul)
            f.mul += (size_t)r * f.mul_stride + (size_t)out;
        p->isa->epilogue(&f, tile, rows, n);
    }
}

/* How long a thread takes for its share of the outputs, in outputs, if an item has `tile` of them
 * and all rows are in panels. FIXED: what reading the panels costs for each item. */
static int64_t share_of(const struct kdev *d, int outputs, int tile)
{
    enum { FIXED = 4 };
    return mul64(div_up(div_up(outputs, tile), d->threads), tile + FIXED);
}

/* Chooses the outputs of one item and numbers the items of `outputs` outputs with `mats` matrices
 * each. Without panels: the largest tile that gives every thread at least four items. */
static void product_tile(struct kdev *d, struct linear_product *p, int outputs, int mats)
{
    p->tile = TILE_OUT;
    if (!p->in.panels) {
        while (p->tile > 8 && outputs / p->tile < 4 * d->threads)
            p->tile /= 2;
        return;
    }
    for (int tile = TILE_OUT / 2; tile >= 8; tile /= 2)
        if (share_of(d, outputs, tile) < share_of(d, outputs, p->tile))
            p->tile = tile;
    p->thread_weights = (size_t)mul64(mats, p->in.k) * TILE_OUT;
    p->weights = cpu_floats(d, SCRATCH_WIDE, (size_t)d->threads * p->thread_weights);
}

static void product_run(struct kdev *d, struct linear_product *p)
{
    int outputs = 0, items = 0;
    for (int i = 0; i < p->n_mats; i++)
        outputs += p->m[i].w.n;
    product_tile(d, p, outputs, 1);
    for (int i = 0; i < p->n_mats; i++) {
        p->m[i].first = items;
        items += div_up(p->m[i].w.n, p->tile);
    }
    note_product(d, p, items, false);
    cpu_each(d, items, (double)p->in.rows * p->tile * p->in.k, product_item, p);
}

void cpu_product(struct kdev *d, const float *packed, int rows, const struct tensor *w,
                 const struct tensor *b, float *dst)
{
    struct linear_product p;
    struct linear_input in = {.rows = rows, .k = cpu_packed((int)w->dim[1]), .row = packed};
    product_start(d, &p, &in);
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

static void post_row(void *arg, int r, int)
{
    const struct post_run *p = arg;
    p->isa->normalize(p->src + (size_t)r * (size_t)p->n, p->n, p->norm, p->add, 1,
                      p->dst + (size_t)r * p->dst_stride);
}

void cpu_linear(struct kdev *d, const struct k_linear *a)
{
    int out = (int)a->w->dim[0], in = (int)a->w->dim[1];
    int ss = cpu_stride(a->src_stride, in), ds = cpu_stride(a->dst_stride, out);
    int ms = cpu_stride(a->mul_stride, out);
    float *dst = cpu_f32(a->dst, cpu_span(a->rows, ds, out));
    bool post = a->post.kind != NORM_NONE;
    CHECK(a->act != ACT_SWIGLU_CLAMP);
    struct linear_product p;
    struct linear_input x = pack_input(d, cpu_f32(a->src, cpu_span(a->rows, ss, in)), (size_t)ss,
                                       a->rows, in, &a->pre);
    float *to = post ? cpu_floats(d, SCRATCH_OUT, (size_t)a->rows * (size_t)out) : dst;
    product_start(d, &p, &x);
    struct cpu_epilogue *f = product_add(&p, a->w, a->b, to, (size_t)(post ? out : ds));
    f->act = a->act;
    f->softcap = a->softcap;
    f->scale = a->scale;
    f->add = a->add && !post;
    if (a->mul.p) {
        f->mul = cpu_f32(a->mul, cpu_span(a->rows, ms, out));
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
    const struct linear_product *p;
    const struct k_glu *a;
    float *dst;
};

static void glu_item(void *arg, int item, int thread)
{
    const struct glu_run *run = arg;
    const struct linear_product *p = run->p;
    int ffn = p->m[0].w.n, out = item * p->tile, n = min_int(p->tile, ffn - out);
    const float *gates = tile_weights(p, 0, out, n, thread, 0);
    const float *ups = tile_weights(p, 1, out, n, thread, 1);
    for (int part = 0; part < parts_of(p); part++) {
        _Alignas(64) float gate[MOST_ROWS * TILE_OUT], up[MOST_ROWS * TILE_OUT];
        int r, rows = multiply_part(p, 0, out, n, gates, part, gate, &r);
        multiply_part(p, 1, out, n, ups, part, up, &r);
        for (int i = 0; i < rows; i++)
            p->isa->gate(gate + mul64(i, TILE_OUT), up + mul64(i, TILE_OUT), n, run->a->act, 0,
                         run->dst + (size_t)(r + i) * (size_t)ffn + out);
    }
}

void cpu_glu(struct kdev *d, const struct k_glu *a)
{
    int ffn = (int)a->gate->dim[0], in = (int)a->gate->dim[1];
    CHECK(a->act != ACT_SWIGLU_CLAMP); /* only k_moe has its limit */
    CHECK(a->up->dim[0] == ffn);
    struct linear_product p;
    struct linear_input x = pack_input(d, cpu_f32(a->src, (size_t)a->rows * (size_t)in), (size_t)in,
                                       a->rows, in, &a->pre);
    product_start(d, &p, &x);
    product_add(&p, a->gate, NULL, NULL, 0);
    product_add(&p, a->up, NULL, NULL, 0);
    product_tile(d, &p, ffn, 2);
    struct glu_run run = {&p, a, cpu_f32(a->dst, (size_t)a->rows * (size_t)ffn)};
    note_product(d, &p, div_up(ffn, p.tile), true);
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
            run->isa->normalize(x + mul64(h, n), n, norm, false, 1, x + mul64(h, n));
}

static void rotate_heads(const struct qkv_run *run, float *x, int heads, int r)
{
    const struct k_qkv *a = run->a;
    if (a->rot)
        for (int h = 0; h < heads; h++)
            run->isa->rotate(x + mul64(h, a->head_dim), a->rot,
                             run->cs + (size_t)r * (size_t)a->rot);
}

static void write_cell(const struct qkv_run *run, kbuf pool, int32_t slot, const float *x)
{
    const struct k_cells *c = &run->a->cells;
    size_t n = (size_t)c->n_kv * (size_t)c->head_dim,
        size = kv_cell_bytes(c->type, c->n_kv, c->head_dim);
    char *at = (char *)pool.p + (size_t)slot * size;
    if (c->type == KV_F32)
        memcpy(at, x, size);
    else if (c->type == KV_BF16)
        run->isa->to_bf16(x, (int)n, (uint16_t *)at);
    else
        for (int h = 0; h < c->n_kv; h++)
            fp8_cell_write(x + mul64(h, c->head_dim), c->head_dim,
                           (uint8_t *)at + mul64(h, c->head_dim), (uint8_t *)at + n + h);
}

static void qkv_row(void *arg, int r, int)
{
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
    struct linear_input x = pack_input(d, cpu_f32(a->src, cpu_span(a->rows, ss, in)), (size_t)ss,
                                       a->rows, in, &a->norm);
    if (a->capture.p) {
        CHECK(!a->packed && a->capture_stride >= in);
        cpu_rows(d, &(struct k_rows){.rows = a->rows, .n = in, .src_stride = ss,
                                     .dst_stride = a->capture_stride, .src = a->src,
                                     .dst = a->capture});
    }
    struct linear_product p;
    product_start(d, &p, &x);
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
