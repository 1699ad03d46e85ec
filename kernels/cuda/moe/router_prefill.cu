/* router_prefill.cu - a mixture of experts for prefill rows, before and after its products: router,
 * selection and grouping (route_prefill), order of the pairs and packing in that order
 * (pack_pairs), sum (sum_prefill). The results equal those of router.cu to the bit: an element
 * belongs to the same thread, and sums follow the same tree.
 */
#include "kernels/cuda/moe/router.cuh"

#include <limits.h>

enum {
    THREADS = ROUTE_THREADS,
    WARPS = ROUTE_WARPS,
    SUM_THREADS = 256,
};

/* A block's rows. A thread holds its elements of all of them, and has the partial sums of all rows
 * with X experts at a time, one for each lane that they are distributed to. */
template <int ROWS> struct share {
    enum {
        EACH = 8 * (int)PER / ROWS, /* elements of a row: moe_router_rows() knows */
        X = 32 / ROWS,
        BATCH = ROWS == 8 ? 8 : 16 / X, /* elements whose weights are loaded together */
        BATCHES = EACH / BATCH,
    };
    static_assert((int)X * ROWS == 32 && (int)BATCHES * BATCH == (int)EACH);
};

/* ---- router --------------------------------------------------------------------------------- */

/* Sums v[i] over the lanes of a warp, by the tree of warp_sum(); lane i gets the sum of v[i]. */
__device__ __forceinline__ float warp_sums(float (&v)[32])
{
    reduce_scatter_lanes<16, 16>(v);
    reduce_scatter_lanes<8, 8>(v);
    reduce_scatter_lanes<4, 4>(v);
    reduce_scatter_lanes<2, 2>(v);
    reduce_scatter_lanes<1, 1>(v);
    return v[0];
}

/* One weight as raw bits; 0 without weights, or behind the end of the row. Nothing branches, so
 * that the loads that follow do not wait for it. */
__device__ __forceinline__ uint32_t fetch_raw(const struct vec &v, int i, bool there)
{
    const bool whole = v.type == DT_F32;
    return fetch((const uint32_t *)v.p + i, there && v.p && whole) |
           fetch((const uint16_t *)v.p + i, there && v.p && !whole);
}

/* Multiplies a thread's elements of rows r0 .. by all factors besides 1 / rms. ss: the squares of
 * these elements, for each row. */
template <int ROWS>
__device__ __forceinline__ void scale_rows(const moe_args &a, const struct norm &norm, int r0,
                                           float (&y)[share<ROWS>::EACH][ROWS], float (&ss)[ROWS])
{
    enum { EACH = share<ROWS>::EACH, BATCH = 32 / ROWS };
    const int tid = (int)threadIdx.x;
    const float *src[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        src[r] = a.src + (size_t)min(r0 + r, a.rows - 1) * (size_t)a.in + tid;
#pragma unroll
    for (int from = 0; from < EACH; from += BATCH) {
        uint32_t w[BATCH], in[BATCH];
#pragma unroll
        for (int j = 0; j < BATCH; j++) {
            const int i = (from + j) * THREADS;
            const bool there = tid + i < a.in;
            w[j] = fetch_raw(norm.w, tid + i, there);
            in[j] = fetch_raw(a.router_in, tid + i, there);
#pragma unroll
            for (int r = 0; r < ROWS; r++)
                y[from + j][r] = fetch(src[r] + i, there);
        }
#pragma unroll
        for (int j = 0; j < BATCH; j++) {
            const bool there = tid + (from + j) * THREADS < a.in;
            float f = normed_by(norm.kind, 1, 1, raw_value(norm.w.type, w[j]));
            if (a.router_in.p)
                f *= raw_value(a.router_in.type, in[j]);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const float x = y[from + j][r];
                ss[r] = fmaf(x, x, ss[r]);
                y[from + j][r] = there ? x * f : 0.f;
            }
        }
    }
}

/* Weights of X experts from e0 on, of BATCH of a thread's elements from number `from` on. */
template <int ROWS> struct weight_batch {
    enum { X = share<ROWS>::X, BATCH = share<ROWS>::BATCH };
    uint32_t raw[BATCH][X];
    template <bool BF16>
    __device__ __forceinline__ void load(const moe_args &a, int e0, int from)
    {
#pragma unroll
        for (int x = 0; x < X; x++) {
            const size_t at = (size_t)min(e0 + x, a.n_expert - 1) * a.router_pitch +
                              (size_t)(from * THREADS + (int)threadIdx.x);
            const uint16_t *half = (const uint16_t *)a.router.p + at;
            const uint32_t *whole = (const uint32_t *)a.router.p + at;
#pragma unroll
            for (int j = 0; j < BATCH; j++) {
                const bool there = (from + j) * THREADS + (int)threadIdx.x < a.in;
                raw[j][x] = !BF16 && a.router.type == DT_F32 ? fetch(whole + j * THREADS, there)
                                                             : fetch(half + j * THREADS, there);
            }
        }
    }
};

/* The partial products of a warp for all experts: part[g * WARPS * 32 ..] gets those of the rows
 * with experts g X .. g X + X. The next weights are loaded before the sums of a group are
 * distributed. BF16: the type of the weights. */
template <int ROWS, bool BF16>
__device__ __forceinline__ void multiply_rows(const moe_args &a,
                                              const float (&y)[share<ROWS>::EACH][ROWS],
                                              float *part)
{
    enum { X = share<ROWS>::X, BATCH = share<ROWS>::BATCH, BATCHES = share<ROWS>::BATCHES };
    struct weight_batch<ROWS> w;
    w.template load<BF16>(a, 0, 0);
#pragma unroll 1
    for (int e0 = 0; e0 < a.n_expert; e0 += X, part += WARPS * 32) {
        float sum[32] = {};
#pragma unroll
        for (int b = 0; b < BATCHES; b++) {
            if (b && b * BATCH * THREADS >= a.in)
                continue;
#pragma unroll
            for (int j = 0; j < BATCH; j++)
#pragma unroll
                for (int x = 0; x < X; x++) {
                    const float v = as_float<BF16>(a.router, w.raw[j][x]);
#pragma unroll
                    for (int r = 0; r < ROWS; r++)
                        sum[r * X + x] = fmaf(y[b * BATCH + j][r], v, sum[r * X + x]);
                }
            const bool last = b + 1 == BATCHES || (b + 1) * BATCH * THREADS >= a.in;
            w.template load<BF16>(a, last ? e0 + X : e0, last ? 0 : (b + 1) * BATCH);
        }
        part[threadIdx.x % 32] = warp_sums(sum);
    }
}

/* The keys of the logits of a block's rows. Shared: part (groups of X experts, warps, 32); square:
 * sums of squares (warps, ROWS). */
template <int ROWS>
__device__ __forceinline__ void logits_of(const moe_args &a, int r0, float *part, float *square)
{
    enum { X = share<ROWS>::X };
    const int tid = (int)threadIdx.x;
    const struct norm &norm = route_norm(a);
    float y[share<ROWS>::EACH][ROWS], ss[ROWS] = {};
    scale_rows<ROWS>(a, norm, r0, y, ss);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const float v = warp_sum(ss[r]);
        if (tid % 32 == 0)
            square[tid / 32 * ROWS + r] = v;
    }
    if (a.router.type == DT_BF16)
        multiply_rows<ROWS, true>(a, y, part + tid / 32 * 32);
    else
        multiply_rows<ROWS, false>(a, y, part + tid / 32 * 32);
    __syncthreads();
    for (int i = tid; i < ROWS * a.n_expert; i += THREADS) {
        const int r = i / a.n_expert, e = i % a.n_expert;
        float v = 0, s = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            s += square[w * ROWS + r];
            v += part[(e / X * WARPS + w) * 32 + r * X + e % X];
        }
        if (r0 + r < a.rows)
            store_logit(a, norm, r0 + r, e, v, s, a.router_b.p ? raw_at(a.router_b, e) : 0);
    }
    __syncthreads();
}

/* The last block, when all pairs have their numbers (in a.number) and the experts their numbers of
 * pairs (in `pairs`, which becomes zero again): makes the jobs and the experts' first positions. */
__device__ __forceinline__ void place_experts(const moe_args &a, unsigned *pairs)
{
    __shared__ int at[MAX_EXPERTS];
    for (int e = (int)threadIdx.x; e < a.n_expert; e += THREADS)
        at[e] = (int)__ldcg(pairs + e), pairs[e] = 0;
    __syncthreads();
    if (threadIdx.x < 32)
        begin_jobs(a, at);
    __syncthreads();
    for (int e = (int)threadIdx.x; e < a.n_expert; e += THREADS)
        a.first[e] = at[e];
}

/* A block has ROWS rows. Shared: see logits_of(). */
template <int ROWS>
__global__ void __launch_bounds__(THREADS, 1)
    route_prefill(const __grid_constant__ struct moe_args a)
{
    extern __shared__ __align__(16) float part[];
    __shared__ float square[WARPS * ROWS];
    const int r0 = (int)blockIdx.x * ROWS, warp = (int)threadIdx.x / 32, r = r0 + warp;
    static_assert(ROWS <= (int)WARPS);
    pdl_trigger();
    pdl_wait_trigger();
    logits_of<ROWS>(a, r0, part, square);
    unsigned *const pairs = a.counters + 1;
    if (warp < ROWS && r < a.rows) {
        const int lane = (int)threadIdx.x % 32;
        const int e = a.n_expert <= 32 ? select_and_store<1>(a, r)
                                       : select_and_store<MAX_EXPERTS / 32>(a, r);
        if (lane < a.top_k) /* in any order: a pair's results do not depend on its position */
            a.number[r * a.top_k + lane] = (int)atomicAdd(pairs + e, 1);
    }
    if (last_to_arrive(a.counters, gridDim.x))
        place_experts(a, pairs);
}

/* ---- packing -------------------------------------------------------------------------------- */

/* Index of element i of a row in shared memory: 8 more for every 32, so that threads that read the
 * same position of different 32s use different banks. */
__device__ __forceinline__ int padded(int i)
{
    return i + i / 32 * 8;
}

/* Stores the normalised row in y, padded with zeros; returns its largest magnitude. */
__device__ __forceinline__ float norm_into(const moe_args &a, const float *src, float *y,
                                           float *scratch)
{
    uint32_t w[PER] = {};
    float x[PER], ss = 0, top = 0, inv = 1;
    for (int from = 0; from < a.in; from += ROUTE_PASS) {
        fetch_part(src, a.in, from, x);
#pragma unroll
        for (int j = 0; j < PER; j++)
            ss = fmaf(x[j], x[j], ss);
    }
    if (a.pre.kind != NORM_NONE)
        inv = 1 / sqrtf(route_sum(ss, scratch) / (float)a.in + a.pre.eps);
    for (int from = 0; from < a.x.kp; from += ROUTE_PASS) {
        if (a.in > ROUTE_PASS)
            fetch_part(src, a.in, from, x);
        fetch_weights<false>(a.pre.w, 0, a.in, from, w);
#pragma unroll
        for (int j = 0; j < PER; j++) {
            const int i = from + j * THREADS + (int)threadIdx.x;
            if (i >= a.x.kp)
                break;
            const float z = as_float<false>(a.pre.w, w[j]);
            const float v = i < a.in ? normed_by(a.pre.kind, x[j], inv, z) : 0.f;
            y[padded(i)] = v;
            top = fmaxf(top, fabsf(v));
        }
    }
    return route_max(top, scratch + WARPS); /* its barrier also makes y visible */
}

/* The next terms (T: bf16 or __half) of eight values that are adjacent in tile order. */
template <class T> __device__ __forceinline__ uint4 next_eight(float (&v)[8])
{
    uint32_t h[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        h[i] = split_two<T>(v[2 * i], v[2 * i + 1]);
    return make_uint4(h[0], h[1], h[2], h[3]);
}

/* One block a row: packs the row at the position of each of its pairs, and stores the pairs in
 * `order`. Shared: the row. */
__global__ void __launch_bounds__(THREADS) pack_pairs(const __grid_constant__ struct moe_args a)
{
    extern __shared__ __align__(16) float y[];
    __shared__ float scratch[2 * WARPS];
    __shared__ int place[MAX_TOP_K];
    const int r = (int)blockIdx.x, kp = a.x.kp;
    pdl_trigger();
    pdl_wait_trigger();
    if ((int)threadIdx.x < a.top_k) {
        const int pair = r * a.top_k + (int)threadIdx.x;
        const int at = __ldcg(a.first + __ldcg(a.chosen + pair)) + __ldcg(a.number + pair);
        place[threadIdx.x] = at, a.order[at] = pair;
    }
    const float top = norm_into(a, a.src + (size_t)r * (size_t)a.in, y, scratch);
    const float s = a.f16 ? f16_scale_of(top) : 1;
    if (threadIdx.x == 0)
        a.x_inv[r] = inverse_scale(s);
    for (int u = (int)threadIdx.x; u < kp / 8; u += THREADS) {
        float v[8];
#pragma unroll
        for (int q = 0; q < 4; q++) {
            const float2 two = *(const float2 *)(y + padded(tile_element(u * 8 + 2 * q)));
            v[2 * q] = two.x * s, v[2 * q + 1] = two.y * s;
        }
        for (int t = 0; t < a.terms; t++) {
            const uint4 eight = a.f16 ? next_eight<__half>(v) : next_eight<bf16>(v);
            for (int k = 0; k < a.top_k; k++) {
                const int row = place[k] * a.terms + t;
                *(uint4 *)(a.x_to + (size_t)row * (size_t)kp + (size_t)u * 8) = eight;
            }
        }
    }
}

/* ---- sum ------------------------------------------------------------------------------------ */

/* Sums the experts of a row in the order of rank; one block a row, four outputs a thread. */
__global__ void __launch_bounds__(SUM_THREADS)
    sum_prefill(const __grid_constant__ struct moe_args a)
{
    pdl_trigger();
    pdl_wait_trigger();
    const int r = (int)blockIdx.x;
    for (int i = (int)threadIdx.x * 4; i < a.in; i += 4 * SUM_THREADS) {
        float4 *dst = (float4 *)(a.dst + (size_t)r * (size_t)a.in + (size_t)i);
        float4 sum = make_float4(0, 0, 0, 0);
        const float4 old = a.add ? __ldcg(dst) : sum;
#pragma unroll 4
        for (int k = 0; k < a.top_k; k++) {
            const int pair = r * a.top_k + k;
            const float weight = __ldcg(a.weight + pair);
            float4 v = __ldcg((const float4 *)(a.down + (size_t)pair * (size_t)a.in + (size_t)i));
            if (a.down_b.p) {
                const int at = __ldcg(a.chosen + pair) * (int)a.down_b_pitch + i;
                const float4 b = four_weights(a.down_b, INT_MAX, at);
                v.x += b.x, v.y += b.y, v.z += b.z, v.w += b.w;
            }
#pragma unroll
            for (int j = 0; j < 4; j++)
                (&sum.x)[j] = k ? fmaf(weight, (&v.x)[j], (&sum.x)[j]) : (&v.x)[j] * weight;
        }
        if (a.add)
            sum.x += old.x, sum.y += old.y, sum.z += old.z, sum.w += old.w;
        *dst = sum;
    }
}

/* ---- host ----------------------------------------------------------------------------------- */

template <int ROWS>
static void run_router(struct kdev *d, const struct moe_args *m, const struct moe_shape *s)
{
    cuda_launch(d, route_prefill<ROWS>, dim3((unsigned)div_up(m->rows, ROWS)), THREADS,
                moe_router_bytes(s, ROWS), *m);
}

void cuda_prefill_route(struct kdev *d, const struct moe_args *m, const struct moe_shape *s)
{
    const int rows = moe_router_rows(&d->gpu, s);
    if (rows == 8)
        run_router<8>(d, m, s);
    else
        rows == 4 ? run_router<4>(d, m, s) : run_router<2>(d, m, s);
    cuda_launch(d, pack_pairs, dim3((unsigned)m->rows), THREADS, moe_pack_bytes(s), *m);
}

void cuda_prefill_sum(struct kdev *d, const struct moe_args *m)
{
    cuda_launch(d, sum_prefill, dim3((unsigned)m->rows), SUM_THREADS, 0, *m);
}
