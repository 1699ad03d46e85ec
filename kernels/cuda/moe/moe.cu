/* moe.cu - mixture of experts.
 *
 * Pairs (row, rank of a selected expert) are grouped by expert, so that an expert's weights are
 * read once for all rows of a tile that selected it. Each pair keeps its own results until the end,
 * where the experts of a row are summed in the order of rank. MXFP4, and with wgmma bf16 and packed
 * experts in halves: a router kernel (norms, packed rows, logits: router.cu), then one kernel for
 * everything else (experts.cu, experts_few.cu); prefill rows: router_prefill.cu and
 * experts_prefill.cu, or experts_tile.cu without wgmma. Everything else has five kernels: the
 * router, whose last block selects experts and groups the pairs; the gate and up product; the
 * activation, which packs the hidden rows; the down product; and the sum.
 */
#include "kernels/cuda/moe/experts.cuh"

enum {
    THREADS = 512,
    PER = 8, /* elements that a thread loads together */
};

/* ---- packed experts in product_kernel() ------------------------------------------------------ */

/* p0: the first chunk of a tile in memory. */
template <> struct chunk<STORE_BLOCKS> {
    enum { K = 32 };
    struct coded_eight e0, e1; /* eight weights of rows g and g + 8 */
    int form;
    __device__ __forceinline__ void load(const mat &m, const uint8_t *p0, const uint8_t *, int c,
                                         int)
    {
        const size_t place = place_of_split(m, c);
        form = m.type;
        with_form(form, [&]<int FORM>() {
            const uint8_t *at = p0 + place * (size_t)chunk_bytes(FORM);
            e0.fetch<FORM>(at), e1.fetch<FORM>(at + eight_bytes(FORM));
        });
    }
    template <int NT>
    __device__ __forceinline__ void multiply(float (&acc)[NT][4], const uint16_t *const (&x)[NT],
                                             int c, int q) const
    {
        uint4 r0, r1;
        with_form(form,
                  [&]<int FORM>() { r0 = e0.as_bf16<FORM>(), r1 = e1.as_bf16<FORM>(); });
        multiply_eights(acc, r0, r1, x, c, q);
    }
};

/* ---- kernels between and after the products ------------------------------------------------- */

/* Packs a row in shared memory as two bf16 terms; the whole block. */
__device__ void pack_shared(const float *y, int n, int kp, uint16_t *hi)
{
    uint16_t *lo = hi + kp;
    for (int i = (int)threadIdx.x; i < kp; i += (int)blockDim.x) {
        float x = i < n ? y[i] : 0.f;
        hi[i] = split_term<bf16>(x);
        lo[i] = split_term<bf16>(x);
    }
}

/* Gate and up of a pair become its packed hidden row; one block a pair. Shared: the row (ffn). */
__global__ void __launch_bounds__(THREADS) gate_pairs(const __grid_constant__ struct moe_args a)
{
    extern __shared__ float y[];
    pdl_wait_trigger();
    const int pair = (int)blockIdx.x, step = a.halves ? 1 : 2, second = a.halves ? a.ffn : 1;
    const float *u = a.up + (size_t)pair * 2 * (size_t)a.ffn;
    const size_t b = (size_t)a.chosen[pair] * a.gate_up_b_pitch;
    const float w = a.weigh_input ? a.weight[pair] : 1.f;
    for (int from = 0; from < a.ffn; from += PER * THREADS) {
        float g[PER], l[PER], bg[PER] = {}, bl[PER] = {};
#pragma unroll
        for (int j = 0; j < PER; j++) {
            int i = min(from + j * THREADS + (int)threadIdx.x, a.ffn - 1);
            g[j] = u[i * step];
            l[j] = u[i * step + second];
            if (a.gate_up_b.p) {
                bg[j] = weight_at(a.gate_up_b, b + (size_t)(i * step));
                bl[j] = weight_at(a.gate_up_b, b + (size_t)(i * step + second));
            }
        }
#pragma unroll
        for (int j = 0; j < PER; j++) {
            int i = from + j * THREADS + (int)threadIdx.x;
            if (i < a.ffn)
                y[i] = a.act == ACT_SILU_CLAMP
                           ? fminf(activate(w * g[j], ACT_SILU), a.limit) *
                                 fminf(fmaxf(w * l[j], -a.limit), a.limit)
                           : gated(w * g[j] + bg[j], w * l[j] + bl[j], a.act, a.limit);
        }
    }
    __syncthreads();
    if (a.weigh_input && threadIdx.x == 0)
        a.weight[pair] = 1; /* no other block reads it before the sum */
    pack_shared(y, a.ffn, a.h.kp, a.h_to + (size_t)pair * (size_t)(2 * a.h.kp));
}

/* Sums the experts of a row. Blocks (slices of the row, row). */
__global__ void __launch_bounds__(THREADS) sum_rows(const __grid_constant__ struct moe_args a)
{
    pdl_wait_trigger();
    const int r = (int)blockIdx.y, first = (int)(blockIdx.x * THREADS + threadIdx.x);
    float *dst = a.dst + (size_t)r * (size_t)a.in;
    for (int i = first; i < a.in; i += (int)gridDim.x * THREADS) {
        const float old = a.add ? dst[i] : 0.f, z = sum_of(a, a.chosen, a.weight, r, i);
        dst[i] = a.add ? z + old : z;
    }
}

/* What follows the sum of a row's experts if there is a norm behind it. All rows have n floats. */
struct joined {
    int n;
    const float *sum;
    struct norm post;
    bool add;
    float *dst;          /* (+)= post(sum) */
    const float *update; /* or NULL: before that, dst = update_post(update) */
    struct norm update_post;
    float *x; /* or NULL; x = (x + after(dst)) * s */
    struct norm after;
    struct vec s; /* absent: 1 */
};

/* A thread's elements of a pass over a row in shared memory. */
__device__ __forceinline__ void load_shared(const float *y, int n, int from, row_part &p)
{
#pragma unroll
    for (int j = 0; j < ROW_REGS; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            (&p.v[j].x)[e] = row_index(from, j) + e < n ? y[row_index(from, j) + e] : 0.f;
}

__device__ __forceinline__ void store_part_of(float *dst, int n, int from, const row_part &p)
{
#pragma unroll
    for (int j = 0; j < ROW_REGS; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (row_index(from, j) + e < n)
                dst[row_index(from, j) + e] = (&p.v[j].x)[e];
}

/* 1 / rms of a row of sums in the order of this operation: thread t adds the squares of elements t,
 * t + THREADS, ... Copies the row to y. The whole block. */
__device__ __forceinline__ float inverse_of_sums(const float *sum, int n, const struct norm &norm,
                                                 float *y, float *scratch)
{
    float ss = 0;
    for (int from = (int)threadIdx.x; from < n; from += PER * THREADS) {
        float v[PER];
#pragma unroll
        for (int j = 0; j < PER; j++)
            v[j] = from + j * THREADS < n ? __ldcg(sum + from + j * THREADS) : 0.f;
#pragma unroll
        for (int j = 0; j < PER; j++)
            if (from + j * THREADS < n)
                y[from + j * THREADS] = v[j], ss = fmaf(v[j], v[j], ss);
    }
    return 1 / sqrtf(block_reduce<false>(ss, scratch) / (float)n + norm.eps);
}

/* One block a row. Shared: the row. The norms but that of the sums have the order of row.cuh. */
__global__ void __launch_bounds__(THREADS) join_rows(const __grid_constant__ struct joined a)
{
    extern __shared__ float y[];
    __shared__ float scratch[33];
    const int n = a.n;
    const size_t row = (size_t)blockIdx.x * (size_t)n;
    float *const dst = a.dst + row, *const x = a.x ? a.x + row : NULL;
    const float *const update = a.update ? a.update + row : a.add ? dst : NULL;
    const bool in_row = threadIdx.x < ROW_THREADS;
    row_part post = {}, first = {}, after = {}, old = {}, more = {};
    pdl_trigger();
    if (in_row) {
        load_norm(a.post, n, 0, post);
        load_norm(a.update_post, n, 0, first);
        load_norm(a.after, n, 0, after);
    }
    pdl_wait();
    if (in_row && update)
        load_part(update, n, 0, more);
    if (in_row && x)
        load_part(x, n, 0, old);
    const float inv = inverse_of_sums(a.sum + row, n, a.post, y, scratch);
    if (!in_row)
        return;
    const float inv_update =
        a.update ? row_inverse(more, update, n, a.update_post, scratch) : 1.f;
    float ss = 0;
    for (int from = 0; from < n; from += ROW_PASS) {
        row_part z;
        if (from) {
            load_norm(a.post, n, from, post);
            load_norm(a.update_post, n, from, first);
            if (update)
                load_part(update, n, from, more);
        }
        load_shared(y, n, from, z);
#pragma unroll
        for (int j = 0; j < ROW_REGS; j++) {
            z.v[j] = four_normed(a.post.kind, z.v[j], inv, post.v[j]);
            if (a.add)
                z.v[j] = plus(z.v[j], a.update ? four_normed(a.update_post.kind, more.v[j],
                                                             inv_update, first.v[j])
                                               : more.v[j]);
        }
        store_part_of(dst, n, from, z);
        store_part_of(y, n, from, z);
        load_shared(y, n, from, z); /* zeros behind the end */
        ss = part_squares(z, ss);
    }
    if (!x)
        return;
    row_barrier(); /* no thread still reads the first sum */
    const float factor = a.s.p ? weight_at(a.s, 0) : 1.f;
    const float inv_after =
        a.after.kind == NORM_NONE
            ? 1.f
            : 1 / sqrtf(row_sum(ss, scratch) / (float)n + a.after.eps);
    for (int from = 0; from < n; from += ROW_PASS) {
        row_part z;
        if (from) {
            load_norm(a.after, n, from, after);
            load_part(x, n, from, old);
        }
        load_shared(y, n, from, z);
#pragma unroll
        for (int j = 0; j < ROW_REGS; j++) {
            z.v[j] = plus(four_normed(a.after.kind, z.v[j], inv_after, after.v[j]), old.v[j]);
#pragma unroll
            for (int e = 0; e < 4; e++)
                (&z.v[j].x)[e] *= factor;
        }
        store_part_of(x, n, from, z);
    }
}

/* ---- the operation -------------------------------------------------------------------------- */

static struct mat expert_mat(const struct kdev *d, const struct k_moe *a, const struct tensor *w,
                             const struct tensor *s, int n, int k)
{
    struct mat m = {};
    size_t all = (size_t)a->n_expert * (size_t)n * (size_t)k;
    m.w = (const uint8_t *)w->data;
    m.n = n;
    m.k = k;
    m.type = w->type;
    if (a->layout == EXPERT_MXFP4) {
        CHECK(k % 32 == 0 && s && s->data && w->type == DT_U8 && s->type == DT_U8);
        CHECK(w->n_dim == 4 && s->n_dim == 3 && w->bytes >= all / 2 && s->bytes >= all / 32);
        m.scale = (const uint8_t *)s->data;
        m.scale_pitch = cuda_round((size_t)k / 32, 4);
        m.pitch = m.scale_pitch * 16;
        m.expert_scale = (size_t)n * m.scale_pitch;
        m.expert = (size_t)n * m.pitch;
        return m;
    }
    if (dtype_packed(w->type)) {
        CHECK(cuda_packed_experts(w) && w->dim[0] == a->n_expert && w->dim[1] == n &&
              w->dim[2] == k && a->layout == EXPERT_HALVES);
        m.type = experts_as(w->type);
        m.panels.ksplit = ksplit_of(k);
        m.pitch = (size_t)(k / K_CHUNK) * (size_t)chunk_bytes(m.type);
        m.expert = (size_t)(n / TILE_OUTS) * m.pitch;
        return m;
    }
    size_t size = dtype_size(w->type);
    CHECK(w->n_dim == 3 && w->bytes >= all * size);
    m.pitch = cuda_pitch(w) * size;
    m.expert = (size_t)w->dim[1] * m.pitch;
    if (cuda_tiles_experts(d, w))
        m.panels.rows = TILE_OUTS, m.panels.ksplit = ksplit_of((int)cuda_pitch(w));
    return m;
}

static enum store store_of(const struct tensor *experts)
{
    return dtype_packed(experts->type) ? STORE_BLOCKS : cuda_store_of(experts);
}

static void multiply(struct kdev *d, const struct k_moe *a, const struct moe_args *m, bool down)
{
    const struct tensor *w = down ? a->down : a->gate_up;
    struct product p = {};
    p.n_mats = 1;
    p.rows = m->rows;
    p.m[0] = down ? m->down_m : m->gate_up_m;
    p.x = down ? m->h : m->x;
    p.f[0].scale = 1;
    p.f[0].dst = down ? m->down : m->up;
    p.f[0].dst_stride = (size_t)p.m[0].n;
    p.e = {m->n_active, m->active, m->begin, m->order, down ? 1 : a->top_k};
    const bool columns = a->layout == EXPERT_IN_OUT || a->layout == EXPERT_IN_OUT_HALVES;
    enum store store = columns ? STORE_COLUMNS : store_of(w);
    cuda_product_experts(d, &p, store, min_int(a->n_expert, m->rows * a->top_k), m->rows);
}

template <int STORE>
static void run(struct kdev *d, const struct product *p, int most_active, bool few)
{
    dim3 grid((unsigned)div_up(p->m[0].n, 16), (unsigned)most_active);
    cuda_launch(d, few ? product_kernel<STORE, 1, true> : product_kernel<STORE, 4, true>, grid,
                PRODUCT_THREADS, 0, *p);
}

void cuda_product_experts(struct kdev *d, const struct product *p, enum store store,
                          int most_active, int most_rows)
{
    const bool few = most_rows <= 4; /* an expert has at most one pair of a row */
    switch (store) {
    case STORE_BF16: return run<STORE_BF16>(d, p, most_active, few);
    case STORE_F16: return run<STORE_F16>(d, p, most_active, few);
    case STORE_F32: return run<STORE_F32>(d, p, most_active, few);
    case STORE_BLOCKS: return run<STORE_BLOCKS>(d, p, most_active, few);
    case STORE_COLUMNS: return run<STORE_COLUMNS>(d, p, most_active, few);
    }
}

static struct moe_args fixed_args(struct kdev *d, const struct k_moe *a)
{
    struct moe_args m = {};
    m.in = a->in, m.ffn = a->ffn, m.n_expert = a->n_expert, m.top_k = a->top_k;
    m.pre = cuda_norm(&a->pre);
    m.router_norm = cuda_norm(&a->router_norm);
    m.post = cuda_norm(&a->post);
    m.router_in = cuda_vec(a->router_in);
    m.router = cuda_vec(a->router);
    m.router_b = cuda_vec(a->router_b);
    m.expert_scale = cuda_vec(a->expert_scale);
    m.gate_up_b = cuda_vec(a->gate_up_b);
    m.down_b = cuda_vec(a->down_b);
    m.router_pitch = cuda_pitch(a->router);
    m.gate_up_b_pitch = a->gate_up_b ? cuda_pitch(a->gate_up_b) : 0;
    m.down_b_pitch = a->down_b ? cuda_pitch(a->down_b) : 0;
    m.router_scale = a->router_scale;
    m.router_kind = (int)a->router_kind, m.router_cap = a->router_cap;
    m.choice_b = cuda_vec(a->choice_b);
    m.weigh_input = a->weigh_input;
    m.weight_scale = a->weight_scale;
    m.halves = a->layout == EXPERT_HALVES || a->layout == EXPERT_IN_OUT_HALVES;
    m.f16 = a->layout == EXPERT_MXFP4;
    m.act = a->act, m.limit = a->limit, m.add = a->add;
    m.terms = m.f16 ? d->gpu.terms : 2;
    m.gate_up_m = expert_mat(d, a, a->gate_up, a->gate_up_s, 2 * a->ffn, a->in);
    m.down_m = expert_mat(d, a, a->down, a->down_s, a->in, a->ffn);
    int e = 0; /* |h| <= limit (limit + 1): scaled as large as f16 allows */
    if (m.f16 && a->act == ACT_SWIGLU_CLAMP)
        frexpf(a->limit * (a->limit + 1), &e), e = 15 - e;
    m.h_scale = ldexpf(1, e), m.h_undo = ldexpf(1, -e);
    m.counters = d->counters;
    return m;
}

static size_t scratch_of_a_row(const struct k_moe *a, const struct moe_args *m)
{
    size_t floats = (size_t)(m->f16 ? 0 : 2 * a->ffn) + (size_t)a->in + 8;
    size_t sum = a->post.kind != NORM_NONE ? (size_t)a->in * sizeof(float) : 0;
    size_t packed = (size_t)((m->x.kp + m->h.kp) * m->terms) * sizeof(uint16_t);
    return 64 + (size_t)a->n_expert * sizeof(float) + sum +
           (size_t)a->top_k * (floats * sizeof(float) + packed);
}

/* Whether the experts are multiplied as bf16 by experts_prefill.cu and experts.cu: bf16 matrices,
 * or both packed, gate before up, without a bias of these. */
static bool multiplied_as_bf16(const struct k_moe *a)
{
    const enum dtype up = a->gate_up->type, down = a->down->type;
    return a->layout == EXPERT_HALVES &&
           (up == DT_BF16 ? down == DT_BF16 : dtype_packed(up) && dtype_packed(down)) &&
           !a->weigh_input && !a->gate_up_b && a->act != ACT_SILU_CLAMP && a->in % 4 == 0;
}

static struct moe_shape shape_of(const struct k_moe *a, int rows)
{
    const struct vec pre = cuda_norm(&a->pre).w;
    return {rows, a->in, a->ffn, a->n_expert, a->top_k, a->layout == EXPERT_MXFP4,
            !pre.p || pre.type == DT_BF16, multiplied_as_bf16(a)};
}

/* The experts of the rows, up to the results of pairs, or of rows if the kernel adds them. */
static void run_experts(struct kdev *d, const struct k_moe *a, struct moe_args *m,
                        const struct moe_route *r)
{
    const size_t pairs = (size_t)m->rows * (size_t)a->top_k;
    switch (r->kernel) {
    case MOE_ROW:
    case MOE_FEW: return cuda_few_experts(d, m, r);
    case MOE_COLUMNS_4:
    case MOE_COLUMNS_8:
    case MOE_COLUMNS_16: return cuda_decode_experts(d, m, r);
    case MOE_PREFILL: return cuda_prefill_experts(d, m);
    case MOE_TILES: return cuda_tile_experts(d, m);
    case MOE_PLAIN: break;
    }
    m->up = (float *)cuda_take(d, pairs * 2 * (size_t)a->ffn * sizeof(float));
    multiply(d, a, m, false);
    cuda_launch(d, gate_pairs, dim3((unsigned)pairs), THREADS, (size_t)a->ffn * sizeof(float), *m);
    multiply(d, a, m, true);
}

/* update: of the rows of dst, applied before their experts are added, if there is a norm behind; or
 * NULL. */
static void moe_rows(struct kdev *d, const struct k_moe *a, struct moe_args m, int r0, int rows,
                     const float *update, const struct norm &update_post)
{
    size_t n = (size_t)rows, pairs = n * (size_t)a->top_k, e = (size_t)a->n_expert;
    const struct moe_shape s = shape_of(a, rows);
    const struct moe_route r = moe_route_of(&d->gpu, &s);
    d->arena_at = 0;
    m.rows = rows;
    m.src = (const float *)a->src.p + (size_t)r0 * (size_t)a->in;
    m.dst = (float *)a->dst.p + (size_t)r0 * (size_t)a->in;
    m.chosen_out = a->chosen.p ? (int32_t *)a->chosen.p + (size_t)r0 * (size_t)a->top_k : NULL;
    size_t x_each = (size_t)(m.x.kp * m.terms) * sizeof(uint16_t);
    m.prefill = r.kernel == MOE_PREFILL || r.kernel == MOE_TILES;
    m.x.x = m.x_to = (uint16_t *)cuda_take(d, (m.prefill ? pairs : n) * x_each);
    m.h.x = m.h_to =
        (uint16_t *)cuda_take(d, pairs * (size_t)(m.h.kp * m.terms) * sizeof(uint16_t));
    m.down = (float *)cuda_take(d, pairs * (size_t)a->in * sizeof(float));
    int32_t *ints = (int32_t *)cuda_take(d, (5 * pairs + 3 * e + 2) * sizeof *ints);
    m.chosen = ints, m.order = ints + pairs, m.active = ints + 2 * pairs;
    m.begin = m.active + e + pairs, m.n_active = m.begin + e + pairs + 1;
    m.number = m.n_active + 1, m.first = m.number + pairs;
    float *floats = (float *)cuda_take(d, (pairs + n) * sizeof *floats);
    m.weight = floats, m.x_inv = floats + pairs;

    m.block_select = r.block_select, m.adds_experts = r.adds_experts;
    m.job_pairs = r.job_pairs, m.stages = r.stages, m.row_stages = r.row_stages;
    m.single_row = r.kernel == MOE_ROW, m.by_flags = m.single_row || r.kernel == MOE_FEW;
    m.sync = d->counters + MOE_COUNTERS_AT;
    m.keys = m.block_select ? m.sync + KEYS : (uint32_t *)cuda_take(d, n * e * sizeof *m.keys);
    const bool post = a->post.kind != NORM_NONE;
    struct joined j = {};
    j.n = a->in, j.post = m.post, j.add = m.add, j.dst = m.dst;
    j.update = update, j.update_post = update_post;
    if (post) {
        m.dst = (float *)cuda_take(d, n * (size_t)a->in * sizeof(float)), m.add = false;
        j.sum = m.dst;
    }
    m.prefill ? cuda_prefill_route(d, &m, &s) : cuda_route(d, &m);
    run_experts(d, a, &m, &r);
    if (m.prefill)
        cuda_prefill_sum(d, &m);
    else if (!m.adds_experts)
        cuda_launch(d, sum_rows, dim3((unsigned)div_up(a->in, THREADS), (unsigned)rows), THREADS, 0,
                    m);
    if (!post)
        return;
    if (a->x.p && a->after.kind != NORM_LAYER)
        j.x = (float *)a->x.p + (size_t)r0 * (size_t)a->in, j.after = cuda_norm(&a->after),
        j.s = cuda_vec(a->s);
    cuda_launch(d, join_rows, dim3((unsigned)rows), THREADS, (size_t)a->in * sizeof(float), j);
}

/* x = (x + after(dst)) * *s, by itself. */
static void add_after(struct kdev *d, const struct k_moe *a)
{
    struct k_normalize norm = {};
    struct k_scale scale = {};
    norm.rows = scale.rows = a->rows, norm.n = scale.n = a->in;
    norm.src_stride = norm.dst_stride = a->in;
    norm.src = a->dst, norm.dst = scale.x = a->x;
    norm.norm = a->after, norm.add = true, norm.scale = 1, scale.s = a->s;
    cuda_normalize(d, &norm);
    if (a->s)
        cuda_scale(d, &scale);
}

void cuda_moe(struct kdev *d, const struct k_moe *a)
{
    /* An update of dst, which is not read before the end, may wait until then. */
    const bool post = a->post.kind != NORM_NONE, joins = post && a->dst.p != a->src.p;
    cuda_begin_fused(d, "moe", joins ? a->dst.p : NULL, a->rows, a->in);
    size_t n = (size_t)a->rows * (size_t)a->in;
    CHECK(a->top_k > 0 && a->top_k <= a->n_expert && a->top_k <= MAX_TOP_K);
    CHECK(a->n_expert <= MAX_EXPERTS);
    CHECK(a->layout != EXPERT_MXFP4 || (!a->weigh_input && a->act != ACT_SILU_CLAMP));
    CHECK(!a->weigh_input || !a->gate_up_b);
    CHECK(a->router_kind == ROUTER_SIGMOID || a->router_kind == ROUTER_RAW ||
          (!a->choice_b && a->router_cap == 0));
    CHECK(a->router->dim[0] == a->n_expert && a->router->dim[1] == a->in);
    CHECK(!cuda_paneled(a->router) && !(a->gate_up_b && cuda_paneled(a->gate_up_b)) &&
          !(a->down_b && cuda_paneled(a->down_b)));
    cuda_f32(a->src, n);
    cuda_f32(a->dst, n);
    if (a->chosen.p)
        cuda_i32(a->chosen, (size_t)a->rows * (size_t)a->top_k);
    struct moe_args m = fixed_args(d, a);
    const struct moe_shape s = shape_of(a, a->rows);
    m.x.kp = moe_packed(&s, a->in), m.h.kp = moe_packed(&s, a->ffn);
    int fit = min_int(cuda_fit(a->rows, scratch_of_a_row(a, &m)), N_COUNTERS - 1);
    if (fit < a->rows) /* groups of rows of about equal size */
        fit = div_up(a->rows, div_up(a->rows, fit));
    if (d->pending.splits || d->pending.add || !a->add)
        cuda_apply_pending(d);
    const struct pending u = d->pending;
    d->pending = {};
    for (int r = 0; r < a->rows; r += fit)
        moe_rows(d, a, m, r, min_int(fit, a->rows - r), u.src ? u.src + (size_t)r * u.n : NULL,
                 u.post);
    if (a->x.p && (!post || a->after.kind == NORM_LAYER))
        add_after(d, a);
}
