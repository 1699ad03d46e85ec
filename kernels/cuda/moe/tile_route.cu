/* tile_route.cu - a mixture of experts for prefill rows, before and after its products: router,
 * selection, grouping by expert, packing in the order of the groups, sum. Three kernels compute
 * what route.cu computes in one for fewer rows, equal to the bit: an element belongs to the same
 * thread, and sums follow the same tree.
 */
#include "kernels/cuda/moe/experts.cuh"

#include <limits.h>

enum {
    THREADS = 384, WARPS = THREADS / 32, /* as ROUTE_THREADS (route.cuh) */
    X = 4,                               /* experts at a time */
    AHEAD = 4,                           /* of a thread's elements, loaded together */
    SUM_THREADS = 256,
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

/* Multiplies rows r0 .. of the input by all factors besides 1 / rms, into y (ROWS, in). ss: the
 * squares of this thread's elements, for each row. */
template <int ROWS>
__device__ __forceinline__ void scale_rows(const moe_args &a, const struct norm &norm, int r0,
                                           float *y, float (&ss)[ROWS])
{
    for (int i = (int)threadIdx.x; i < a.in; i += THREADS) {
        float f = normed_by(norm.kind, 1, 1, norm.w.p ? weight_at(norm.w, (size_t)i) : 0.f);
        if (a.router_in.p)
            f *= weight_at(a.router_in, (size_t)i);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float x = __ldcg(a.src + (size_t)min(r0 + r, a.rows - 1) * (size_t)a.in + (size_t)i);
            ss[r] = fmaf(x, x, ss[r]);
            y[r * a.in + i] = x * f;
        }
    }
}

/* part[0 .. 32) of this warp: the partial products of ROWS rows with experts e0 .. e0 + X. The
 * weight type is a template argument (BF16), so that nothing branches and many loads are in
 * flight. */
template <int ROWS, bool BF16>
__device__ __forceinline__ void multiply_rows(const moe_args &a, int e0, const float *y,
                                              float *part)
{
    float sum[32] = {};
#pragma unroll 1
    for (int from = (int)threadIdx.x; from < a.in; from += AHEAD * THREADS) {
        float w[AHEAD][X];
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
#pragma unroll
            for (int x = 0; x < X; x++) {
                const int at = min(e0 + x, a.n_expert - 1) * (int)a.router_pitch +
                               min(from + j * THREADS, a.in - 1);
                w[j][x] = BF16 ? __bfloat162float(__ldg((const bf16 *)a.router.p + at))
                               : weight_at(a.router, (size_t)at);
            }
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            const int i = from + j * THREADS;
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const float v = i < a.in ? y[r * a.in + i] : 0.f;
#pragma unroll
                for (int x = 0; x < X; x++)
                    sum[r * X + x] = fmaf(v, i < a.in ? w[j][x] : 0.f, sum[r * X + x]);
            }
        }
    }
    part[threadIdx.x % 32] = warp_sums(sum);
}

/* The logits of a block's rows. Shared: y (ROWS, in); part (groups of X experts, warps, 32);
 * square: sums of squares (warps, ROWS). */
template <int ROWS>
__device__ __forceinline__ void logits_of(const moe_args &a, int r0, float *y)
{
    const int tid = (int)threadIdx.x, groups = (a.n_expert + X - 1) / X;
    const struct norm &norm = a.router_norm.kind != NORM_NONE ? a.router_norm : a.pre;
    float *part = y + ROWS * a.in, *square = part + groups * WARPS * 32, ss[ROWS] = {};
    scale_rows<ROWS>(a, norm, r0, y, ss);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const float v = warp_sum(ss[r]);
        if (tid % 32 == 0)
            square[tid / 32 * ROWS + r] = v;
    }
    for (int g = 0; g < groups; g++) /* a thread reads only what it wrote */
        if (a.router.type == DT_BF16)
            multiply_rows<ROWS, true>(a, g * X, y, part + (g * WARPS + tid / 32) * 32);
        else
            multiply_rows<ROWS, false>(a, g * X, y, part + (g * WARPS + tid / 32) * 32);
    __syncthreads();
    for (int i = tid; i < ROWS * a.n_expert; i += THREADS) {
        const int r = i / a.n_expert, e = i % a.n_expert;
        float v = 0, s = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            s += square[w * ROWS + r];
            v += part[(e / X * WARPS + w) * 32 + r * X + e % X];
        }
        if (norm.kind != NORM_NONE)
            v *= 1 / sqrtf(s / (float)a.in + norm.eps);
        v *= a.router_scale;
        if (a.router_b.p)
            v += weight_at(a.router_b, (size_t)e);
        if (r0 + r < a.rows)
            __stcg(a.keys + (size_t)(r0 + r) * (size_t)a.n_expert + (size_t)e, order_key(v));
    }
    __syncthreads();
}

/* ---- grouping ------------------------------------------------------------------------------- */

/* Computes where each expert's pairs begin. One warp. at: the number of pairs of each expert;
 * becomes the position of the expert's next pair. */
__device__ __forceinline__ void begin_experts(const moe_args &a, int *at)
{
    int sum = 0, n = 0;
    for (int e = (int)threadIdx.x; e < (a.n_expert + 31) / 32 * 32; e += 32) {
        const int c = e < a.n_expert ? at[e] : 0, job = c > 0;
        const int upto = inclusive_scan(c), jobs = inclusive_scan(job);
        if (job)
            a.begin[n + jobs - 1] = sum + upto - c, a.active[n + jobs - 1] = e;
        if (e < a.n_expert)
            at[e] = sum + upto - c;
        n += __shfl_sync(~0u, jobs, 31);
        sum += __shfl_sync(~0u, upto, 31);
    }
    if (threadIdx.x == 0)
        a.begin[n] = sum, *a.n_active = n;
}

/* Groups the pairs by expert, within an expert in any order. One block. */
__device__ __forceinline__ void group(const moe_args &a)
{
    __shared__ int at[MAX_EXPERTS];
    const int pairs = a.rows * a.top_k, tid = (int)threadIdx.x;
    for (int e = tid; e < a.n_expert; e += THREADS)
        at[e] = 0;
    __syncthreads();
#pragma unroll 8
    for (int p = tid; p < pairs; p += THREADS)
        atomicAdd(&at[__ldcg(a.chosen + p)], 1);
    __syncthreads();
    if (tid < 32)
        begin_experts(a, at);
    __syncthreads();
#pragma unroll 8
    for (int p = tid; p < pairs; p += THREADS) {
        const int place = atomicAdd(&at[__ldcg(a.chosen + p)], 1);
        a.order[place] = p, a.place[p] = place;
    }
}

/* A block has ROWS rows; the last block groups the pairs. */
template <int ROWS>
__global__ void __launch_bounds__(THREADS, 2)
    route_prefill(const __grid_constant__ struct moe_args a)
{
    extern __shared__ __align__(16) float y[];
    const int r0 = (int)blockIdx.x * ROWS, warp = (int)threadIdx.x / 32, r = r0 + warp;
    const int lane = (int)threadIdx.x % 32;
    pdl_trigger();
    pdl_wait_trigger();
    logits_of<ROWS>(a, r0, y);
    if (warp < ROWS && r < a.rows) {
        int e = 0;
        float w = 0;
        uint32_t key[MAX_EXPERTS / 32];
        wait_for_keys(a, a.keys + (size_t)r * (size_t)a.n_expert, key);
        select_experts(a, key, &e, &w);
        if (lane < a.top_k) {
            const size_t at = (size_t)r * (size_t)a.top_k + (size_t)lane;
            a.chosen[at] = e, a.weight[at] = w;
            if (a.chosen_out)
                a.chosen_out[at] = e;
        }
    }
    if (last_to_arrive(a.counters, gridDim.x))
        group(a);
}

/* ---- packing -------------------------------------------------------------------------------- */

/* Index of element i of a row in shared memory: 8 more for every 32, so that threads that read the
 * same position of different 32s use different banks. */
__device__ __forceinline__ int padded(int i) { return i + i / 32 * 8; }

/* Stores the normalised row in y, padded with zeros; returns its largest magnitude. */
__device__ __forceinline__ float norm_into(const moe_args &a, const float *src, float *y,
                                           float *scratch)
{
    float x[PER], w[PER], top = 0;
    load_row(src, a.in, 0, x);
    const float inv = inverse_rms_of(x, src, a.in, a.pre, scratch);
    for (int from = 0; from < a.x.kp; from += PER * THREADS) {
        if (from)
            load_row(src, a.in, from, x);
        load_weights(a.pre.w, 0, a.in, from, w);
#pragma unroll
        for (int j = 0; j < PER; j++) {
            const int i = from + j * THREADS + (int)threadIdx.x;
            if (i >= a.x.kp)
                break;
            const float v = i < a.in ? normed_by(a.pre.kind, x[j], inv, w[j]) : 0.f;
            y[padded(i)] = v;
            top = fmaxf(top, fabsf(v));
        }
    }
    return block_reduce<true>(top, scratch); /* the barrier also makes y visible */
}

/* Eight values that are adjacent in tile order, rounded to the next f16 term, which is
 * subtracted. */
__device__ __forceinline__ uint4 next_eight(float (&v)[8])
{
    uint32_t h[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const __half a = __float2half_rn(v[2 * i]), b = __float2half_rn(v[2 * i + 1]);
        h[i] = __half_as_ushort(a) | (uint32_t)__half_as_ushort(b) << 16;
        v[2 * i] = isfinite(__half2float(a)) ? v[2 * i] - __half2float(a) : 0.f;
        v[2 * i + 1] = isfinite(__half2float(b)) ? v[2 * i + 1] - __half2float(b) : 0.f;
    }
    return make_uint4(h[0], h[1], h[2], h[3]);
}

/* One block a row: packs the row at the position of each of its pairs. Shared: the row. */
__global__ void __launch_bounds__(THREADS) pack_pairs(const __grid_constant__ struct moe_args a)
{
    extern __shared__ __align__(16) float y[];
    __shared__ float scratch[33];
    const int r = (int)blockIdx.x, kp = a.x.kp;
    pdl_trigger();
    pdl_wait_trigger();
    const float top = norm_into(a, a.src + (size_t)r * (size_t)a.in, y, scratch);
    int e = 0;
    float s = 1;
    if (top > 0 && isfinite(top)) {
        frexpf(top, &e);
        e = max(min(14 - e, 120), -120);
        s = ldexpf(1, e);
    }
    if (threadIdx.x == 0)
        a.x_inv[r] = ldexpf(1, -e);
    for (int u = (int)threadIdx.x; u < kp / 8; u += THREADS) {
        float v[8];
#pragma unroll
        for (int q = 0; q < 4; q++) { /* inverse of tile_place() */
            const int i = u / 4 * 32 + 8 * q + u % 4 / 2 * 4 + u % 2 * 2;
            const float2 two = *(const float2 *)(y + padded(i));
            v[2 * q] = two.x * s, v[2 * q + 1] = two.y * s;
        }
        for (int t = 0; t < a.terms; t++) {
            const uint4 eight = next_eight(v);
            for (int k = 0; k < a.top_k; k++) {
                const int row = __ldcg(a.place + r * a.top_k + k) * a.terms + t;
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

template <int ROWS> static size_t router_bytes(const struct moe_args *m)
{
    return (size_t)(ROWS * m->in + div_up(m->n_expert, X) * WARPS * 32 + WARPS * ROWS) *
           sizeof(float);
}

bool cuda_tile_routes(const struct moe_args *m)
{
    return router_bytes<2>(m) <= 200 << 10;
}

void cuda_tile_route(struct kdev *d, const struct moe_args *m)
{
    size_t bytes = router_bytes<8>(m);
    if (bytes <= 200 << 10)
        cuda_launch(d, route_prefill<8>, dim3((unsigned)div_up(m->rows, 8)), THREADS, bytes, *m);
    else
        cuda_launch(d, route_prefill<2>, dim3((unsigned)div_up(m->rows, 2)), THREADS,
                    router_bytes<2>(m), *m);
    cuda_launch(d, pack_pairs, dim3((unsigned)m->rows), THREADS,
                (size_t)(m->x.kp / 32 * 40) * sizeof(float), *m);
}

void cuda_tile_sum(struct kdev *d, const struct moe_args *m)
{
    cuda_launch(d, sum_prefill, dim3((unsigned)m->rows), SUM_THREADS, 0, *m);
}
