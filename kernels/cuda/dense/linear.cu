/* linear.cu - the operations that multiply with weight matrices: linear, glu, qkv. */
#include "kernels/cuda/dense/packed.cuh"
#include "kernels/cuda/dense/product.cuh"

/* ---- rows ----------------------------------------------------------------------------------- */

static struct rows_in rows_of(const float *src, size_t stride, int n, const struct k_norm *norm)
{
    struct rows_in in = {src, stride, n, cuda_norm(norm), NULL, 0};
    return in;
}

struct row_format cuda_rows_format(const struct kdev *d, int rows, int kp)
{
    return product_kernel_of(&d->gpu, true, rows) == PRODUCT_DECODE
               ? cuda_decode_format(d, rows, kp)
               : row_format{ROW_TILED, 0, kp, 0, {}};
}

/* ---- products ------------------------------------------------------------------------------- */

enum store cuda_store_of(const struct tensor *t)
{
    CHECK(t->data && (dtype_as_bf16(t->type) || t->type == DT_F16 || t->type == DT_F32));
    return dtype_as_bf16(t->type) ? STORE_BF16 : t->type == DT_F16 ? STORE_F16 : STORE_F32;
}

/* Products of f16 and f32 weights, which few checkpoints have; always two terms. */
template <int STORE, int NT> static void run(struct kdev *d, struct product *p)
{
    int tiles = 0;
    for (int i = 0; i < p->n_mats; i++) {
        p->first[i] = tiles;
        tiles += div_up(p->m[i].n, 16);
    }
    dim3 grid((unsigned)tiles, (unsigned)div_up(p->rows, NT * 4));
    cuda_launch(d, product_kernel<STORE, NT, false>, grid, PRODUCT_THREADS, 0, *p);
}

/* One block a row and head; for heads that cuda_heads() does not support. */
__global__ void __launch_bounds__(ROW_THREADS)
    heads_kernel(const __grid_constant__ struct heads a)
{
    __shared__ float scratch[ROW_WARPS];
    pdl_wait_trigger(); /* late, because attention reads old cells before its own wait
                           (kdev.late_epoch) */
    struct head_part part;
    load_head(a, (int)blockIdx.y, (int)blockIdx.x, part);
    finish_head(a, (int)blockIdx.y, (int)blockIdx.x, part, scratch);
}

static void launch_row_epilogue(struct kdev *d, const struct product *p)
{
    const struct row_epilogue *b = &p->row_epilogue;
    const struct heads *h = &b->heads;
    if (b->dst)
        cuda_norm_rows(d, p->f[0].dst, (int)p->f[0].dst_stride, b->dst, (int)b->dst_stride, p->rows,
                       p->m[0].n, &b->post, b->add, 1);
    if (b->is_qkv && !cuda_heads(d, h, p->rows)) {
        int all = h->n_head + (h->k ? (h->v_from_k ? 1 : 2) * h->n_kv : 0);
        dim3 grid((unsigned)all, (unsigned)p->rows);
        cuda_launch(d, heads_kernel, grid, ROW_THREADS, 0, *h);
    }
}

/* Makes the pending update part of the product: the kernel that packs the rows applies it. */
static void take_pending(struct kdev *d, struct product *p)
{
    const struct pending w = d->pending;
    if (!w.src)
        return;
    CHECK(w.x == p->in.src && w.n == p->in.n && w.rows == p->rows);
    p->update = {w.src, w.post, w.add, w.x, d->readers};
    p->update_splits = w.splits;
    d->pending = {};
}

/* Leaves the product's row epilogue as a pending update. splits: see struct pending. */
static void defer_norm(struct kdev *d, const struct product *p, int splits)
{
    const struct row_epilogue *b = &p->row_epilogue;
    d->pending = {p->f[0].dst, b->dst, p->rows, p->m[0].n, b->post, b->add, splits};
}

/* The product's kernel stores keys and values that are to become FP8 as the device's fresh cells,
 * in float32, with a slot for each row. */
static void make_fresh(struct kdev *d, struct product *p)
{
    struct heads *h = &p->row_epilogue.heads;
    float *const k = d->fresh_pool, *const v = k + MAX_FRESH_ROWS * MAX_FRESH_WIDTH;
    cuda_store_fresh(d, &d->fresh); /* of the group of rows before */
    d->fresh = {k, v, h->write, h->cell_k, h->cell_v, h->cell_bytes, p->rows, h->n_kv, h->head_dim,
                h->n_slots};
    h->kv = KV_F32, h->write = d->fresh_slots, h->n_slots = MAX_FRESH_ROWS;
    h->cell_k = k, h->cell_v = v;
}

static struct heads_shape heads_shape_of(const struct heads *h)
{
    return {h->n_kv, h->head_dim, h->rot, h->whole, h->v_from_k, stores_fp8(h),
            (uintptr_t)h->cs % 8 == 0, cuda_heads_reduce(h),
            {h->q_norm.kind != NORM_NONE, h->k_norm.kind != NORM_NONE,
             h->v_norm.kind != NORM_NONE}};
}

/* Whether the sums of a product with a post-norm may wait as a pending update. */
static bool may_wait(const struct kdev *d, const struct product *p)
{
    const struct row_epilogue *b = &p->row_epilogue;
    const size_t n = (size_t)p->m[0].n;
    return (p->rows <= MAX_VERIFY_ROWS || p->f[0].dst == d->pending_rows) && b->dst_stride == n &&
           p->f[0].dst_stride == n && at_16(b->dst) && is_short_norm(&b->post, (int)n);
}

static struct product_shape shape_of(const struct kdev *d, const struct product *p, bool bf16,
                                     int whole_rows)
{
    const struct rows_in *in = &p->in;
    struct product_shape s = {};
    s.rows = p->rows, s.whole = whole_rows;
    s.in = in->n, s.kp = p->x.kp, s.n_mats = p->n_mats, s.outs = p->m[0].n;
    s.bf16 = bf16, s.blocks = dtype_packed((enum dtype)p->m[0].type), s.type = p->m[0].type;
    s.doubles = in_doubles(p->m[0].type);
    s.glu = p->glu, s.packed = p->x.x, s.captures = in->capture;
    s.has_norm = in->norm.kind != NORM_NONE;
    s.aligned = at_16(in->src) && is_short_norm(&in->norm, in->n);
    s.all_aligned = in->stride % 4 == 0 && in->capture_stride % 4 == 0 && at_16(in->capture);
    s.adjacent = in->stride == (size_t)in->n;
    s.work = p->row_epilogue.is_qkv ? WORK_HEADS : p->row_epilogue.dst ? WORK_NORM : WORK_NONE;
    if (s.work == WORK_HEADS)
        s.heads = heads_shape_of(&p->row_epilogue.heads);
    else if (s.work == WORK_NORM)
        s.may_wait = may_wait(d, p);
    for (int i = 0; i < p->n_mats && bf16; i++)
        s.panels[i] = {p->m[i].panels.rows, p->m[i].panels.n};
    return s;
}

/* Packs the rows and, before that, applies the pending update and captures rows, as far as the
 * kernel that packs does not. */
static void pack(struct kdev *d, struct product *p, const struct product_route *r, int whole_rows)
{
    p->update = {};
    p->update_splits = 0;
    if (r->applies_update)
        take_pending(d, p);
    else
        cuda_apply_pending(d);
    if (r->copies_capture)
        cuda_copy_rows(d, p->in.src, p->in.stride, p->in.capture, p->in.capture_stride, p->rows,
                       p->in.n);
    const struct row_format f = r->kernel == PRODUCT_FLOATS
                                    ? row_format{ROW_PLAIN, 0, p->x.kp, 0, {}}
                                    : cuda_rows_format(d, whole_rows, p->x.kp);
    if (r->pack > PACK_PROLOGUE)
        cuda_pack_rows(d, p, r->pack, &f);
}

/* The decode kernel for the layout of the product's matrices. */
static void decode(struct kdev *d, struct product *p, const struct product_route *r)
{
    const int stored = p->m[0].type;
    if (!dtype_packed((enum dtype)stored))
        cuda_product_decode(d, p, r);
    else if (five_bit(stored))
        cuda_product_five(d, p, r);
    else if (stored == DT_Q2_K || stored == DT_Q3_K)
        cuda_product_two(d, p, r);
    else if (stored == DT_IQ4_XS || stored == DT_E2M1)
        cuda_product_levels(d, p, r);
    else
        cuda_product_packed(d, p, r);
}

/* Returns the number of partial sums of each element, or 0. */
static int multiply(struct kdev *d, struct product *p, const struct product_route *r, bool f16)
{
    const bool defers = r->finish == FINISH_SPLITS || r->finish == FINISH_PENDING;
    switch (r->kernel) {
    case PRODUCT_DECODE: decode(d, p, r); return 0;
    case PRODUCT_VERIFY: return cuda_product_verify(d, p, defers);
    case PRODUCT_PREFILL:
        dtype_packed((enum dtype)p->m[0].type) ? cuda_prefill_packed(d, p)
                                               : cuda_product_prefill(d, p);
        return 0;
    case PRODUCT_TILE: return cuda_product_tile(d, p, defers);
    case PRODUCT_FLOATS: break;
    }
    if (f16)
        p->rows <= 4 ? run<STORE_F16, 1>(d, p) : run<STORE_F16, 4>(d, p);
    else
        p->rows <= 4 ? run<STORE_F32, 1>(d, p) : run<STORE_F32, 4>(d, p);
    return 0;
}

/* The product of panels first .. first + n - 1 of matrices `from` to `to` - 1, unpacked to scratch
 * at `at`; n 0: of all panels. */
static struct product unpacked_part(struct kdev *d, const struct product *p, int from, int to,
                                    int first, int n, uint8_t *at)
{
    struct product part = *p;
    part.n_mats = to - from;
    for (int i = from; i < to; i++) {
        const struct mat *m = &p->m[i];
        struct mat *w = &part.m[i - from];
        struct epilogue *f = &part.f[i - from];
        const int out = first * m->panels.rows;
        *w = *m, *f = p->f[i];
        w->w = at, w->type = DT_BF16;
        w->panels.n = n ? n : m->panels.n;
        w->n = min_int(m->n - out, w->panels.n * m->panels.rows);
        cuda_unpack_panels(d, &m->panels, m->type, m->w, first, w->panels.n, at);
        at += (size_t)w->panels.n * panel_bytes(m->panels);
        f->dst += out;
        if (f->b.p)
            f->b.p = (const char *)f->b.p + (size_t)out * dtype_size((enum dtype)f->b.type);
        if (f->mul)
            f->mul += out;
        if (part.pack_to)
            part.pack_to = p->pack_to + out; /* a multiple of 32: in whole chunks */
    }
    return part;
}

/* The same for weights that have to be unpacked first. Scratch is what is left of the arena, less
 * what the product's kernel may need. If a product does not fit there, it is done in parts of its
 * panels. */
static int multiply_unpacked(struct kdev *d, struct product *p, const struct product_route *r)
{
    enum { KEPT = 32 << 20, TOGETHER = 16 /* panels: of rows in pairs, whole chunks of outputs */ };
    CHECK(d->arena_at + KEPT < (size_t)ARENA_BYTES);
    size_t room = (size_t)ARENA_BYTES - d->arena_at - KEPT, all = 0;
    for (int i = 0; i < p->n_mats; i++)
        all += (size_t)p->m[i].panels.n * panel_bytes(p->m[i].panels);
    if (all <= room) {
        struct product whole =
            unpacked_part(d, p, 0, p->n_mats, 0, 0, (uint8_t *)cuda_take(d, all));
        return multiply(d, &whole, r, false);
    }
    struct product_route alone = *r;
    alone.finish = FINISH_NEXT; /* the parts' sums are stored as elements */
    uint8_t *scratch = (uint8_t *)cuda_take(d, room);
    const size_t mark = d->arena_at;
    for (int i = 0; i < p->n_mats; i += p->glu ? p->n_mats : 1) {
        const int to = p->glu ? p->n_mats : i + 1, panels = p->m[i].panels.n;
        int each = (int)(room / ((size_t)(to - i) * panel_bytes(p->m[i].panels)));
        if (r->kernel == PRODUCT_PREFILL) {
            struct product some = *p;
            some.m[0] = p->m[i], some.n_mats = to - i;
            each = cuda_prefill_panels(d, &some, min_int(each, panels));
        }
        each = each / TOGETHER * TOGETHER;
        CHECK(each > 0);
        for (int at = 0; at < panels; at += each) {
            struct product part =
                unpacked_part(d, p, i, to, at, min_int(each, panels - at), scratch);
            d->arena_at = mark;
            multiply(d, &part, &alone, false);
        }
    }
    return 0;
}

void cuda_product(struct kdev *d, struct product *p, enum store store, int whole_rows)
{
    const bool bf16 = store == STORE_BF16;
    CHECK(bf16 || !p->glu);
    p->x.kp = (int)cuda_round((size_t)p->in.n, 32);
    p->x.terms = bf16 ? d->gpu.terms : 2;
    p->row_epilogue.counters = d->counters;
    const struct product_shape s = shape_of(d, p, bf16, whole_rows);
    const struct product_route r = product_route_of(&d->gpu, &s);
    if (r.fresh)
        make_fresh(d, p);
    pack(d, p, &r, whole_rows);
    const int splits = r.unpacks ? multiply_unpacked(d, p, &r)
                                 : multiply(d, p, &r, store == STORE_F16);
    p->row_epilogue.heads.splits = p->row_epilogue.is_qkv ? splits : 0;
    if (r.finish == FINISH_PENDING)
        defer_norm(d, p, splits);
    else if (r.finish != FINISH_HERE)
        launch_row_epilogue(d, p);
}

static struct mat mat_of(const struct kdev *d, const struct tensor *t)
{
    CHECK(t->n_dim == 2 && t->dim[0] <= INT32_MAX && t->dim[1] <= INT32_MAX);
    struct mat m = {};
    m.w = (const uint8_t *)t->data;
    m.pitch = cuda_pitch(t) * dtype_size(t->type);
    m.n = (int)t->dim[0];
    m.k = (int)t->dim[1];
    m.type = cuda_panels_as(t);
    if (dtype_as_bf16(t->type))
        m.panels = cuda_panels(d, t);
    m.fp8 = t->quantize, m.unit = t->unit;
    return m;
}

static struct epilogue *add_mat(const struct kdev *d, struct product *p, const struct tensor *w,
                                const struct tensor *b, float *dst, size_t stride)
{
    CHECK(p->n_mats < MAX_MATS && (!b || b->dim[0] == w->dim[0]));
    int i = p->n_mats++;
    p->m[i] = mat_of(d, w);
    CHECK(p->m[i].k == p->m[0].k && p->m[i].fp8 == p->m[0].fp8);
    p->f[i] = {};
    p->f[i].b = cuda_vec(b);
    p->f[i].scale = 1;
    p->f[i].dst = dst;
    p->f[i].dst_stride = stride;
    return &p->f[i];
}

/* ---- linear --------------------------------------------------------------------------------- */

/* Where the sums of a product with a post-norm go: where they can become a pending update, if they
 * may, else to scratch. whole: p has all rows of the operation. */
static float *sums_for_norm(struct kdev *d, int rows, int n, bool whole)
{
    const size_t bytes = (size_t)rows * (size_t)n * sizeof(float);
    if (rows <= MAX_VERIFY_ROWS && n <= MAX_PENDING_WIDTH)
        return d->pending_buf[d->pending_next ^= 1];
    if (!whole || product_kernel_of(&d->gpu, true, rows) != PRODUCT_PREFILL ||
        bytes > PENDING_BYTES || d->pending_rows_used)
        return (float *)cuda_take(d, bytes);
    d->pending_rows_used = true;
    return d->pending_rows;
}

static void linear_rows(struct kdev *d, const struct k_linear *a, int r0, int rows)
{
    int out = (int)a->w->dim[0], in = (int)a->w->dim[1];
    size_t ss = (size_t)cuda_stride(a->src_stride, in),
           ds = (size_t)cuda_stride(a->dst_stride, out);
    size_t ms = (size_t)cuda_stride(a->mul_stride, out);
    bool post = a->post.kind != NORM_NONE;
    float *dst = (float *)a->dst.p + (size_t)r0 * ds;
    struct product p = {};
    d->arena_at = 0;
    p.rows = rows;
    p.in = rows_of((const float *)a->src.p + (size_t)r0 * ss, ss, in, &a->pre);
    if (a->packed && cuda_handed(&d->packed, LAYOUT_PACKED, a->src.p, a->rows, in))
        p.x.x = (const uint16_t *)a->src.p + (size_t)r0 * (size_t)(in * d->gpu.terms);
    float *to = dst;
    if (post)
        to = sums_for_norm(d, rows, out, rows == a->rows);
    struct epilogue *f = add_mat(d, &p, a->w, a->b, to, post ? (size_t)out : ds);
    f->act = a->act;
    f->softcap = a->softcap;
    f->scale = a->scale;
    f->add = a->add && !post;
    if (a->mul.p) {
        f->mul = (const float *)a->mul.p + (size_t)r0 * ms;
        f->mul_stride = (int)ms;
    }
    if (post) {
        p.row_epilogue.post = cuda_norm(&a->post);
        p.row_epilogue.dst = dst;
        p.row_epilogue.dst_stride = ds;
        p.row_epilogue.add = a->add;
    }
    cuda_product(d, &p, cuda_store_of(a->w), a->rows);
}

void cuda_linear(struct kdev *d, const struct k_linear *a)
{
    int out = (int)a->w->dim[0], in = (int)a->w->dim[1];
    cuda_begin_fused(d, "linear", a->src.p, a->rows, in);
    cuda_f32(a->src, cuda_span(a->rows, cuda_stride(a->src_stride, in), in));
    cuda_f32(a->dst, cuda_span(a->rows, cuda_stride(a->dst_stride, out), out));
    if (a->mul.p)
        cuda_f32(a->mul, cuda_span(a->rows, cuda_stride(a->mul_stride, out), out));
    CHECK(a->act != ACT_SWIGLU_CLAMP);
    CHECK(!a->packed || dtype_as_bf16(a->w->type) ||
          !cuda_handed(&d->packed, LAYOUT_PACKED, a->src.p, a->rows, in));
    CHECK(!a->packed || (a->pre.kind == NORM_NONE && cuda_stride(a->src_stride, in) == in));
    size_t each = cuda_packed_bytes(in + 32) +
                  (a->post.kind != NORM_NONE ? (size_t)out * sizeof(float) : 0);
    int fit = cuda_fit(a->rows, each);
    for (int r = 0; r < a->rows; r += fit)
        linear_rows(d, a, r, min_int(fit, a->rows - r));
}

/* ---- glu ------------------------------------------------------------------------------------ */

__global__ void gate_kernel(const float *g, const float *u, float *dst, size_t n, int act)
{
    pdl_trigger();
    pdl_wait_trigger();
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        dst[i] = activate(g[i], act) * u[i];
}

/* Whether gate and up are one product. */
static bool is_one_product(const struct k_glu *a)
{
    return dtype_as_bf16(a->gate->type) && a->gate->type == a->up->type;
}

static void glu_rows(struct kdev *d, const struct k_glu *a, int r0, int rows)
{
    int ffn = (int)a->gate->dim[0], in = (int)a->gate->dim[1];
    size_t n = (size_t)rows * (size_t)ffn;
    float *dst = (float *)a->dst.p + (size_t)r0 * (size_t)ffn;
    struct product p = {};
    d->arena_at = 0;
    p.rows = rows;
    p.glu_act = a->act;
    p.in = rows_of((const float *)a->src.p + (size_t)r0 * (size_t)in, (size_t)in, in, &a->pre);
    if (is_one_product(a)) {
        add_mat(d, &p, a->gate, NULL, dst, (size_t)ffn);
        add_mat(d, &p, a->up, NULL, dst, (size_t)ffn);
        p.glu = true;
        if (a->packed && cuda_makes_packed(ffn, DT_BF16)) {
            p.pack_to = (uint16_t *)a->dst.p + (size_t)r0 * (size_t)(ffn * d->gpu.terms);
            p.pack_as = cuda_rows_format(d, a->rows, ffn);
        }
        cuda_product(d, &p, STORE_BF16, a->rows);
        return;
    }
    float *part[2];
    const struct tensor *w[2] = {a->gate, a->up};
    for (int i = 0; i < 2; i++) {
        part[i] = (float *)cuda_take(d, n * sizeof(float));
        p.n_mats = 0;
        p.x = {};
        add_mat(d, &p, w[i], NULL, part[i], (size_t)ffn);
        cuda_product(d, &p, cuda_store_of(w[i]), a->rows);
    }
    cuda_launch(d, gate_kernel, dim3((unsigned)((n + 255) / 256)), 256, 0, part[0], part[1], dst, n,
                (int)a->act);
}

void cuda_glu(struct kdev *d, const struct k_glu *a)
{
    cuda_begin_fused(d, "glu", a->src.p, a->rows, (int)a->gate->dim[1]);
    int ffn = (int)a->gate->dim[0], in = (int)a->gate->dim[1];
    const bool keeps = a->packed && is_one_product(a) && cuda_makes_packed(ffn, DT_BF16);
    if (a->packed)
        d->packed = {a->dst.p, keeps ? LAYOUT_PACKED : LAYOUT_FLOATS, a->rows, ffn, d->epoch};
    CHECK(a->act != ACT_SWIGLU_CLAMP && a->up->dim[0] == ffn && a->up->dim[1] == in);
    cuda_f32(a->src, (size_t)a->rows * (size_t)in);
    cuda_f32(a->dst, (size_t)a->rows * (size_t)ffn);
    bool alone = !is_one_product(a);
    size_t each = 2 * cuda_packed_bytes(in + 32) + (alone ? (size_t)ffn * 2 * sizeof(float) : 0);
    int fit = cuda_fit(a->rows, each);
    for (int r = 0; r < a->rows; r += fit)
        glu_rows(d, a, r, min_int(fit, a->rows - r));
}

/* ---- qkv ------------------------------------------------------------------------------------ */

static void check_cells(const struct k_cells *c)
{
    size_t need = (size_t)c->n_slots * kv_cell_bytes(c->type, c->n_kv, c->head_dim);
    CHECK(c->k.p && c->v.p && c->k.n >= need && c->v.n >= need);
}

/* The heads of rows r0 and on; q, k, v: projections in scratch. */
static struct heads heads_of(const struct k_qkv *a, int r0, const float *q, const float *k,
                             const float *v)
{
    struct heads h = {};
    h.q = q, h.k = k, h.v = v;
    h.n_head = a->n_head, h.n_kv = a->n_kv, h.head_dim = a->head_dim, h.rot = a->rot;
    h.whole = a->norm_whole, h.v_from_k = a->v_from_k;
    h.q_norm = cuda_norm(&a->q_norm);
    h.k_norm = cuda_norm(&a->k_norm);
    h.v_norm = cuda_norm(&a->v_norm);
    h.cs = (const float *)a->cs.p + (a->rot ? (size_t)r0 * (size_t)a->rot : 0);
    h.dst = (float *)a->q.p + (size_t)r0 * (size_t)(a->n_head * a->head_dim);
    h.b[0] = cuda_vec(a->bq), h.b[1] = cuda_vec(a->bk), h.b[2] = cuda_vec(a->bv);
    if (k) {
        h.write = (const int32_t *)a->table->write.p + r0;
        h.cell_k = a->cells.k.p, h.cell_v = a->cells.v.p;
        h.kv = a->cells.type, h.cell_bytes = kv_cell_bytes(h.kv, h.n_kv, h.head_dim);
        h.n_slots = a->cells.n_slots;
    }
    return h;
}

static void qkv_rows(struct kdev *d, const struct k_qkv *a, int r0, int rows)
{
    int in = (int)a->wq->dim[1], ss = cuda_stride(a->src_stride, in);
    int nq = a->n_head * a->head_dim, nk = a->n_kv * a->head_dim;
    const struct tensor *w[MAX_MATS] = {a->wq, a->wk, a->v_from_k ? NULL : a->wv};
    const struct tensor *b[MAX_MATS] = {a->bq, a->bk, a->bv};
    float *raw[MAX_MATS] = {NULL, NULL, NULL};
    struct product p = {};
    bool mixed = false;
    d->arena_at = 0;
    p.rows = rows;
    p.in = rows_of((const float *)a->src.p + (size_t)r0 * (size_t)ss, (size_t)ss, in, &a->norm);
    if (a->packed && cuda_handed(&d->packed, LAYOUT_PACKED, a->src.p, a->rows, in))
        p.x.x = (const uint16_t *)a->src.p + (size_t)r0 * (size_t)(in * d->gpu.terms);
    bool write = a->wk && a->table && a->table->write.p;
    if (a->capture.p) {
        p.in.capture = (float *)a->capture.p + (size_t)r0 * (size_t)a->capture_stride;
        p.in.capture_stride = (size_t)a->capture_stride;
    }
    for (int i = 0; i < (write ? MAX_MATS : 1) && w[i]; i++) {
        size_t n = (size_t)(i ? nk : nq);
        size_t scratch = i || !product_leaves_splits(&d->gpu, rows) ? (size_t)rows * n
                                               : PENDING_SPLITS * partial_floats(rows, nq + 2 * nk);
        raw[i] = (float *)cuda_take(d, scratch * sizeof(float));
        add_mat(d, &p, w[i], b[i], raw[i], n);
        mixed |= w[i]->type != a->wq->type;
    }
    for (int i = 0; mixed && i < p.n_mats; i++) {
        struct product one = p;
        one.n_mats = 1;
        one.m[0] = p.m[i];
        one.f[0] = p.f[i];
        cuda_product(d, &one, cuda_store_of(w[i]), a->rows);
    }
    p.row_epilogue.is_qkv = true;
    p.row_epilogue.heads = heads_of(a, r0, raw[0], raw[1], raw[2]);
    if (mixed)
        launch_row_epilogue(d, &p);
    else
        cuda_product(d, &p, cuda_store_of(a->wq), a->rows);
}

void cuda_qkv(struct kdev *d, const struct k_qkv *a)
{
    cuda_begin_fused(d, "qkv", a->src.p, a->rows, (int)a->wq->dim[1]);
    int in = (int)a->wq->dim[1], nq = a->n_head * a->head_dim, nk = a->n_kv * a->head_dim;
    size_t rows = (size_t)a->rows;
    CHECK(a->wq->dim[0] == nq && a->rot % 2 == 0 && a->rot <= a->head_dim);
    CHECK(!a->packed || !cuda_handed(&d->packed, LAYOUT_PACKED, a->src.p, a->rows, in) ||
          (dtype_as_bf16(a->wq->type) && a->norm.kind == NORM_NONE &&
           cuda_stride(a->src_stride, in) == in));
    CHECK(!a->wk || (a->wk->dim[0] == nk && (a->v_from_k || (a->wv && a->wv->dim[0] == nk))));
    cuda_f32(a->src, cuda_span(a->rows, cuda_stride(a->src_stride, in), in));
    cuda_f32(a->q, rows * (size_t)nq);
    if (a->capture.p)
        cuda_f32(a->capture, cuda_span(a->rows, a->capture_stride, in));
    CHECK(!a->capture.p || (!a->packed && a->capture_stride >= in));
    if (a->rot)
        cuda_f32(a->cs, rows * (size_t)a->rot);
    if (a->wk && a->table && a->table->write.p) {
        cuda_i32(a->table->write, rows);
        CHECK(a->cells.n_kv == a->n_kv && a->cells.head_dim == a->head_dim);
        check_cells(&a->cells);
    }
    size_t splits = product_leaves_splits(&d->gpu, a->rows) ? PENDING_SPLITS : 1;
    size_t each = 3 * cuda_packed_bytes(in + 32) + splits * (size_t)(nq + 2 * nk) * sizeof(float);
    int fit = cuda_fit(a->rows, each);
    for (int r = 0; r < a->rows; r += fit)
        qkv_rows(d, a, r, min_int(fit, a->rows - r));
    if (a->rows <= K_MAX_NODES)
        d->late_epoch = d->epoch;
}
