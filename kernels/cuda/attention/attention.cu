/* attention.cu - attention over paged cells, and the merge of two attentions.
 *
 * A row's keys are divided into splits of 128 by their logical index, wherever the visible range
 * begins and wherever the cells are. A block reduces splits of one row and kv head, for up to eight
 * of the query heads that share it: one key a thread for the scores, then one or more dimensions a
 * thread for the values. A second kernel combines the splits of a row and head in their order. So
 * the bits of a row depend on its keys alone: not on the other rows, the page size, the slots, or
 * how many blocks share the work.
 *
 * This file serves K_F32, float32 cells, and heads that have no tiles (tile.cu). FP8 cells are read
 * as the bf16 numbers that they stand for, in the order of bf16 cells.
 */
#include "kernels/cuda/attention/attention.cuh"
#include "kernels/cuda/attention/cell.cuh"
#include "kernels/cuda/dense/product.cuh"

enum {
    SPLIT = 128,
    THREADS = 128,
    COMBINE_THREADS = 512,
    SHARING_BLOCKS = 64, /* at most, sharing a row and kv head */
};

struct range {
    int lo, hi, end, first, count; /* splits [first, first + count) */
};

__device__ __forceinline__ range range_of(const attn_args &a, int r)
{
    range x;
    x.lo = a.lo[r];
    x.hi = a.hi[r];
    x.end = x.hi + (a.n_expand ? a.n_expand[r] : 0);
    x.first = x.lo / SPLIT;
    x.count = x.end > x.lo ? min((x.end - 1) / SPLIT - x.first + 1, a.most_splits) : 0;
    return x;
}

__device__ __forceinline__ int slot_of(const attn_args &a, const range &x, int r, int j)
{
    if (j >= x.hi)
        return a.expand[(size_t)r * (size_t)a.expand_w + (size_t)(j - x.hi)];
    int page = a.pages[(size_t)a.req[r] * (size_t)a.n_cols + (size_t)(j / a.page_size)];
    return page * a.page_size + j % a.page_size;
}

/* ---- elements of a cell --------------------------------------------------------------------- */

template <class T, int N> struct cell_load; /* N successive elements as float32 */
template <> struct cell_load<float, 1> {
    static __device__ __forceinline__ void get(const float *p, float (&x)[1]) { x[0] = *p; }
};
template <> struct cell_load<bf16, 1> {
    static __device__ __forceinline__ void get(const bf16 *p, float (&x)[1])
    {
        x[0] = __bfloat162float(*p);
    }
};
template <> struct cell_load<float, 4> {
    static __device__ __forceinline__ void get(const float *p, float (&x)[4])
    {
        float4 v = *(const float4 *)p;
        x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
    }
};
template <> struct cell_load<bf16, 8> {
    static __device__ __forceinline__ void get(const bf16 *p, float (&x)[8])
    {
        uint4 v = *(const uint4 *)p;
        const uint32_t w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            x[2 * i] = __uint_as_float(w[i] << 16);
            x[2 * i + 1] = __uint_as_float(w[i] & 0xffff0000u);
        }
    }
};

/* The codes of one kv head in a slot of FP8 cells, and the head's scale (fp8_cell_factor()). */
struct fp8_codes_of {
    const uint8_t *code;
    uint32_t factor;
    __device__ __forceinline__ fp8_codes_of operator+(int i) const { return {code + i, factor}; }
};
template <> struct cell_load<fp8_codes_of, 1> {
    static __device__ __forceinline__ void get(const fp8_codes_of &p, float (&x)[1])
    {
        const uint32_t code = *p.code;
        const float small = __uint_as_float((code & 0x7f) << 20 | (code & 0x80) << 24);
        x[0] = small * 0x1p120f * __uint_as_float(p.factor & 0xffff0000u);
    }
};
template <> struct cell_load<fp8_codes_of, 8> {
    static __device__ __forceinline__ void get(const fp8_codes_of &p, float (&x)[8])
    {
        const uint4 v = fp8_cell_eight<true>(*(const uint2 *)p.code, p.factor);
        cell_load<bf16, 8>::get((const bf16 *)&v, x);
    }
};

/* Where element i of the n of a kv head in a slot is. */
template <class T>
__device__ __forceinline__ const T *element_at(const attn_args &a, const T *pool, int slot, int kv,
                                               int n, int i)
{
    return pool + ((size_t)slot * (size_t)a.n_kv + (size_t)kv) * (size_t)n + (size_t)i;
}
__device__ __forceinline__ fp8_codes_of element_at(const attn_args &a, const fp8_codes_of *pool,
                                                   int slot, int kv, int n, int i)
{
    const uint8_t *cell = (const uint8_t *)pool + (size_t)slot * (size_t)a.cell_bytes;
    return {cell + kv * n + i, fp8_cell_factor(cell[a.n_kv * n + kv])};
}

/* ---- one split ------------------------------------------------------------------------------ */

/* Scores of this thread's key for HG heads; each sum runs over the dimensions in order. */
template <class T, int N, int HG, class Key>
__device__ __forceinline__ void score_key(Key key, const float *q, int n, float (&s)[HG])
{
#pragma unroll
    for (int g = 0; g < HG; g++)
        s[g] = 0;
#pragma unroll 8
    for (int d = 0; d < n; d += N) {
        float x[N];
        cell_load<T, N>::get(key + d, x);
#pragma unroll
        for (int g = 0; g < HG; g++) {
            float y[N];
#pragma unroll
            for (int i = 0; i < N; i += 4) /* in loads of 16 bytes */
                if constexpr (N >= 4)
                    *(float4 *)(y + i) = *(const float4 *)(q + g * n + d + i);
                else
                    y[i] = q[g * n + d];
#pragma unroll
            for (int i = 0; i < N; i++)
                s[g] = fmaf(x[i], y[i], s[g]);
        }
    }
}

/* One warp turns the scores of one head into exp(score - m). */
__device__ __forceinline__ void softmax_scores(float *p, float *m, float *l)
{
    int lane = (int)threadIdx.x % 32;
    float x[SPLIT / 32], top = -INFINITY, sum = 0;
#pragma unroll
    for (int i = 0; i < SPLIT / 32; i++) {
        x[i] = p[lane + 32 * i];
        top = x[i] > top || x[i] != x[i] ? x[i] : top;
    }
    top = warp_max(top);
#pragma unroll
    for (int i = 0; i < SPLIT / 32; i++) {
        x[i] = x[i] == -INFINITY ? 0.f : expf(x[i] - top);
        p[lane + 32 * i] = x[i];
        sum += x[i];
    }
    sum = warp_sum(sum);
    if (lane == 0)
        *m = top, *l = sum;
}

/* Weighted values of HG heads. A thread takes N dimensions; the threads beyond the dimensions form
 * further lanes, among which the keys are divided. The lanes are added in order. */
template <class T, int N, int HG>
__device__ __forceinline__ void add_values(const attn_args &a, int kv, const int *slot,
                                           const float *p, int from, int to, int heads, float *red,
                                           float *out, size_t out_pitch)
{
    int n = a.head_dim, units = n / N, wide = min(units, THREADS), lanes = THREADS / wide;
    int lane = (int)threadIdx.x / wide, u0 = (int)threadIdx.x % wide;
    for (int u = u0; u - u0 < units; u += wide) {
        float acc[HG][N] = {};
        if (lane < lanes && u < units)
#pragma unroll 8
            for (int j = from - from % lanes + lane; j < to; j += lanes) {
                if (j < from)
                    continue;
                float x[N];
                cell_load<T, N>::get(element_at(a, (const T *)a.v, slot[j], kv, n, u * N), x);
#pragma unroll
                for (int g = 0; g < HG; g++)
#pragma unroll
                    for (int i = 0; i < N; i++)
                        acc[g][i] = fmaf(p[g * SPLIT + j], x[i], acc[g][i]);
            }
        __syncthreads();
#pragma unroll
        for (int g = 0; g < HG; g++)
#pragma unroll
            for (int i = 0; i < N; i++)
                red[(g * THREADS + (int)threadIdx.x) * N + i] = acc[g][i];
        __syncthreads();
        /* red: (HG, lanes, wide, N) */
        for (int at = (int)threadIdx.x; at < heads * wide * N; at += THREADS) {
            int g = at / (wide * N), i = at % (wide * N), d = (u - u0) * N + i;
            if (d >= n)
                continue;
            const float *from_g = red + g * THREADS * N + i;
            float sum = from_g[0];
            for (int l = 1; l < lanes; l++)
                sum += from_g[l * wide * N];
            out[(size_t)g * out_pitch + (size_t)d] = sum;
        }
    }
}

/* ---- the kernel ----------------------------------------------------------------------------- */

/* Combines the splits of a row and head by log-sum-exp; block (head, row). The splits are divided
 * among the lanes (as in add_values()), which are added in order. Shared: COMBINE_THREADS floats
 * (dynamic). */
__global__ void __launch_bounds__(COMBINE_THREADS)
    combine_kernel(const __grid_constant__ struct attn_args a)
{
    extern __shared__ float red[];
    __shared__ float weight[COMBINE_THREADS], scratch[33];
    pdl_wait_trigger();
    const int head = (int)blockIdx.x, r = (int)blockIdx.y, n = a.head_dim, tid = (int)threadIdx.x;
    const range x = range_of(a, r);
    const size_t at = (size_t)r * (size_t)a.n_head + (size_t)head, one = (size_t)(n + 2);
    const float *part = a.part + at * (size_t)a.most_splits * one;
    float *dst = a.dst + at * (size_t)n;
    if (x.count == 0) {
        for (int d = tid; d < n; d += COMBINE_THREADS)
            dst[d] = 0;
        if (a.lse && tid == 0)
            a.lse[at] = -INFINITY;
        return;
    }
    float top = -INFINITY, l = 0;
    for (int s = tid; s < x.count; s += COMBINE_THREADS) {
        float m = part[(size_t)s * one + (size_t)n];
        top = m > top || m != m ? m : top;
    }
    top = block_reduce<true>(top, scratch);
    for (int s = tid; s < x.count; s += COMBINE_THREADS)
        l = fmaf(part[(size_t)s * one + (size_t)n + 1],
                 expf(part[(size_t)s * one + (size_t)n] - top), l);
    l = block_reduce<false>(l, scratch);
    float keep = 1, m = top;
    if (a.sinks.p) {
        float sink = weight_at(a.sinks, (size_t)head);
        m = fmaxf(top, sink);
        keep = expf(top - m);
        l = fmaf(l, keep, expf(sink - m));
    }
    const int wide = min(n, COMBINE_THREADS), lanes = COMBINE_THREADS / wide, lane = tid / wide;
    for (int d0 = 0; d0 < n; d0 += wide) {
        const int d = d0 + tid % wide;
        float acc = 0;
        for (int s0 = 0; s0 < x.count; s0 += COMBINE_THREADS) {
            int count = min(COMBINE_THREADS, x.count - s0);
            __syncthreads();
            if (tid < count)
                weight[tid] = expf(part[(size_t)(s0 + tid) * one + (size_t)n] - top);
            __syncthreads();
            if (lane < lanes && d < n)
#pragma unroll 8
                for (int s = lane; s < count; s += lanes)
                    acc = fmaf(part[(size_t)(s0 + s) * one + (size_t)d], weight[s], acc);
        }
        red[tid] = acc;
        __syncthreads();
        if (tid < wide && d < n) {
            for (int i = 1; i < lanes; i++)
                acc += red[i * wide + tid];
            dst[d] = acc * (keep / l);
        }
        __syncthreads();
    }
    if (a.lse && tid == 0)
        a.lse[at] = (float)((double)m + log((double)l));
}

/* Block (index among the blocks that share the splits, kv head * chunks of HG heads, row). Shared:
 * q, (HG, head_dim), rounded up to 16 bytes because the compiler reads it in such units. Without
 * the 3 the compiler takes half the registers, spills, and loads fewer cells at a time: a float32
 * step of gemma-3-4b is 1.17 to 1.7 times as long (results-h200.md, attention of float32 cells). */
template <class T, int N, int HG>
__global__ void __launch_bounds__(THREADS, 3)
    attn_kernel(const __grid_constant__ struct attn_args a)
{
    extern __shared__ __align__(16) float q[];
    __shared__ float p[HG * SPLIT], m[HG], l[HG], red[HG * THREADS * N];
    __shared__ int slot[SPLIT];
    pdl_wait_trigger();
    const int chunks = (a.group + HG - 1) / HG, kv = (int)blockIdx.y / chunks;
    const int first = (int)blockIdx.y % chunks * HG, heads = min(HG, a.group - first);
    const int r = (int)blockIdx.z, n = a.head_dim, tid = (int)threadIdx.x;
    const range x = range_of(a, r);
    if ((int)blockIdx.x >= x.count)
        return;
    const size_t head = (size_t)r * (size_t)a.n_head + (size_t)(kv * a.group + first);
    const size_t pitch = (size_t)a.most_splits * (size_t)(n + 2);
    for (int i = tid; i < HG * n; i += THREADS)
        q[i] = i < heads * n ? a.q[head * (size_t)n + (size_t)i] : 0.f;

    for (int s = (int)blockIdx.x; s < x.count; s += (int)gridDim.x) {
        int base = (x.first + s) * SPLIT, from = max(x.lo - base, 0), to = min(x.end - base, SPLIT);
        int here = tid >= from && tid < to ? slot_of(a, x, r, base + tid) : -1;
        here = here < a.n_slots ? here : -1;
        const auto key = element_at(a, (const T *)a.k, max(here, 0), kv, n, 0);
        __syncthreads(); /* q is complete; the previous split is no longer read */
        slot[tid] = max(here, 0);
        float score[HG];
        if (here >= 0)
            score_key<T, N, HG>(key, q, n, score);
#pragma unroll
        for (int g = 0; g < HG; g++)
            p[g * SPLIT + tid] =
                here >= 0 ? soft_capped(score[g] * a.scale, a.softcap) : -INFINITY;
        __syncthreads();
        for (int g = tid / 32; g < HG; g += THREADS / 32)
            softmax_scores(p + g * SPLIT, m + g, l + g);
        __syncthreads();
        float *out = a.part + head * pitch + (size_t)s * (size_t)(n + 2);
        add_values<T, N, HG>(a, kv, slot, p, from, to, heads, red, out, pitch);
        if (tid < heads)
            out[(size_t)tid * pitch + (size_t)n] = m[tid],
            out[(size_t)tid * pitch + (size_t)n + 1] = l[tid];
    }
}

/* Heads that are read one element at a time are rare: one form serves them. */
template <class T, int N> static void run(struct kdev *d, const struct attn_args &a, int rows)
{
    const int hg = N == 1 ? 4 : a.group > 4 ? 8 : a.group > 2 ? 4 : a.group;
    const size_t shared = cuda_round((size_t)(hg * a.head_dim) * sizeof(float), 16);
    const dim3 grid((unsigned)min_int(a.most_splits, SHARING_BLOCKS),
                    (unsigned)(a.n_kv * div_up(a.group, hg)), (unsigned)rows);
    auto kernel = attn_kernel<T, N, 4>;
    if constexpr (N > 1)
        kernel = hg == 8   ? attn_kernel<T, N, 8>
                 : hg == 4 ? attn_kernel<T, N, 4>
                 : hg == 2 ? attn_kernel<T, N, 2>
                           : attn_kernel<T, N, 1>;
    cuda_launch(d, kernel, grid, THREADS, shared, a);
    cuda_launch(d, combine_kernel, dim3((unsigned)a.n_head, (unsigned)rows), COMBINE_THREADS,
                COMBINE_THREADS * sizeof(float), a);
}

static void attn_rows(struct kdev *d, const struct k_attn *k, const struct attn_args *all, int r0,
                      int rows)
{
    struct attn_args a = *all;
    size_t heads = (size_t)r0 * (size_t)a.n_head;
    a.q += heads * (size_t)a.head_dim;
    a.dst += heads * (size_t)a.head_dim;
    a.lse = a.lse ? a.lse + heads : NULL;
    a.req += r0, a.lo += r0, a.hi += r0;
    if (a.n_expand) {
        a.n_expand += r0;
        a.expand += (size_t)r0 * (size_t)a.expand_w;
    }
    d->arena_at = 0;
    a.part = (float *)cuda_take(d, (size_t)rows * (size_t)a.n_head * (size_t)a.most_splits *
                                       (size_t)(a.head_dim + 2) * sizeof(float));
    const bool bf = k->cells.type == KV_BF16, fp8 = k->cells.type == KV_FP8;
    if (fp8 && a.head_dim % 8 == 0)
        run<fp8_codes_of, 8>(d, a, rows);
    else if (fp8)
        run<fp8_codes_of, 1>(d, a, rows);
    else if (bf && a.head_dim % 8 == 0)
        run<bf16, 8>(d, a, rows);
    else if (bf)
        run<bf16, 1>(d, a, rows);
    else if (a.head_dim % 4 == 0)
        run<float, 4>(d, a, rows);
    else
        run<float, 1>(d, a, rows);
}

static void check_attn(const struct k_attn *a)
{
    const struct k_table *t = a->table;
    const struct k_cells *c = &a->cells;
    size_t need = (size_t)c->n_slots * kv_cell_bytes(c->type, c->n_kv, c->head_dim);
    size_t rows = (size_t)a->rows, heads = rows * (size_t)a->n_head;
    CHECK(c->n_kv > 0 && a->n_head % c->n_kv == 0 && t->page_size > 0);
    CHECK(c->k.n >= need && c->v.n >= need);
    cuda_i32(t->req, rows), cuda_i32(t->lo, rows), cuda_i32(t->hi, rows);
    if (t->n_expand.p) {
        cuda_i32(t->n_expand, rows);
        cuda_i32(t->expand, rows * (size_t)t->expand_w);
    }
    cuda_f32(a->q, heads * (size_t)c->head_dim);
    cuda_f32(a->dst, heads * (size_t)c->head_dim);
    if (a->lse.p)
        cuda_f32(a->lse, heads);
    CHECK(!a->sinks || a->sinks->dim[0] == a->n_head);
}

/* Takes the device's fresh cells, if these rows have just written them to these cells. */
static struct fresh_cells take_fresh(struct kdev *d, const struct k_attn *k)
{
    const struct fresh_cells f = d->fresh;
    if (!f.k || f.cell_k != k->cells.k.p || f.cell_v != k->cells.v.p || f.rows != k->rows ||
        f.write != k->table->write.p)
        return {};
    d->fresh = {};
    return f;
}

void cuda_attn(struct kdev *d, const struct k_attn *k)
{
    const struct fresh_cells fresh = take_fresh(d, k);
    cuda_begin(d, "attn");
    check_attn(k);
    const struct k_table *t = k->table;
    const struct k_cells *c = &k->cells;
    struct attn_args a = {};
    a.fresh = fresh;
    a.q = (const float *)k->q.p;
    a.k = c->k.p, a.v = c->v.p;
    a.cell_bytes = c->type == KV_FP8 ? (int)kv_cell_bytes(c->type, c->n_kv, c->head_dim) : 0;
    a.req = (const int32_t *)t->req.p, a.pages = (const int32_t *)t->pages.p;
    a.lo = (const int32_t *)t->lo.p, a.hi = (const int32_t *)t->hi.p;
    a.expand = (const int32_t *)t->expand.p, a.n_expand = (const int32_t *)t->n_expand.p;
    a.page_size = t->page_size, a.n_cols = t->n_cols, a.expand_w = t->expand_w;
    a.n_slots = c->n_slots, a.n_head = k->n_head, a.n_kv = c->n_kv, a.head_dim = c->head_dim;
    a.group = k->n_head / c->n_kv;
    a.rows = k->rows;
    a.n_req = t->n_cols ? (int)(t->pages.n / sizeof(int32_t) / (size_t)t->n_cols) : 0;
    a.scale = k->scale, a.softcap = k->softcap, a.window = k->window;
    a.sinks = cuda_vec(k->sinks);
    a.dst = (float *)k->dst.p, a.lse = (float *)k->lse.p;
    const int outs = a.n_head * a.head_dim;
    if (cuda_was_last(d, d->queries.epoch) &&
        cuda_handed(&d->queries, LAYOUT_BF16, a.q, a.rows, outs))
        a.q_bf16 = d->query_bf16;
    /* A single row is packed in the product's prologue, which takes less code. */
    if (k->packed && k->rows > 1 && cuda_makes_packed(outs, DT_BF16)) {
        a.pack_to = (uint16_t *)a.dst;
        a.pack_as = cuda_rows_format(d, k->rows, outs);
    }
    const struct attn_shape s = {a.rows, a.n_req, a.n_head, a.n_kv, a.head_dim, a.page_size,
                                 a.n_cols, a.n_slots, a.window, a.n_expand ? a.expand_w : 0,
                                 c->type == KV_F32, c->type == KV_FP8, a.scale > 0};
    const struct attn_route r = attn_route_of(&d->gpu, &s);
    if (k->packed)
        d->packed = {a.dst, r.kernel != ATTN_SPLITS && a.pack_to ? LAYOUT_PACKED : LAYOUT_FLOATS,
                     a.rows, outs, d->epoch};
    if (r.kernel != ATTN_SPLITS)
        return cuda_attn_tiles(d, &a, &r);
    cuda_store_fresh(d, &fresh);
    a.pack_to = NULL;
    /* No key has a logical index beyond the table's columns and the expanded keys. */
    size_t keys =
        (size_t)t->n_cols * (size_t)t->page_size + (size_t)(t->n_expand.p ? t->expand_w : 0);
    a.most_splits = (int)((keys + SPLIT - 1) / SPLIT) + 1;
    size_t each =
        (size_t)a.n_head * (size_t)a.most_splits * (size_t)(a.head_dim + 2) * sizeof(float);
    int fit = cuda_fit(k->rows, each);
    if (k->rows && !fit)
        cuda_fail(d, "the context is too long for the scratch memory");
    for (int r = 0; fit && r < k->rows; r += fit)
        attn_rows(d, k, &a, r, min_int(fit, k->rows - r));
}

/* ---- merge ---------------------------------------------------------------------------------- */

__global__ void merge_kernel(float *va, float *la, const float *vb, const float *lb, int n)
{
    pdl_wait_trigger();
    size_t i = blockIdx.x;
    float a = la[i], b = lb[i], m = fmaxf(a, b), wa = 0, wb = 0, lse = -INFINITY;
    bool any_a = a != -INFINITY, any_b = b != -INFINITY;
    __syncthreads(); /* all threads have read la[i] */
    if (any_a || any_b) {
        float ea = any_a ? expf(a - m) : 0.f, eb = any_b ? expf(b - m) : 0.f, sum = ea + eb;
        wa = ea / sum, wb = eb / sum;
        lse = any_a && any_b ? (float)((double)m + log((double)sum)) : m;
    }
    for (int j = (int)threadIdx.x; j < n; j += THREADS) {
        float x = any_a ? va[i * (size_t)n + (size_t)j] : 0.f;
        float y = any_b ? vb[i * (size_t)n + (size_t)j] : 0.f;
        va[i * (size_t)n + (size_t)j] = fmaf(wa, x, wb * y);
    }
    if (threadIdx.x == 0)
        la[i] = lse;
}

void cuda_merge(struct kdev *d, const struct k_merge *a)
{
    cuda_begin(d, "merge");
    size_t heads = (size_t)a->rows * (size_t)a->n_head, n = heads * (size_t)a->head_dim;
    cuda_launch(d, merge_kernel, dim3((unsigned)heads), THREADS, 0, cuda_f32(a->a, n),
                cuda_f32(a->la, heads), cuda_f32(a->b, n), cuda_f32(a->lb, heads), a->head_dim);
}
