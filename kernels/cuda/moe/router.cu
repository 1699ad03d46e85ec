/* router.cu - the router of a mixture of experts for decode and verify rows, and for prefill rows
 * that do not go through the prefill kernels (moe.cu), in one kernel: some blocks normalise and
 * pack the rows for the experts, the others compute the logits of one or four experts each.
 * experts.cuh describes who selects the experts; router.cuh has what the router for prefill rows
 * shares.
 *
 * The blocks start before the rows are complete and load their weights meanwhile. They are small,
 * so that they fit beside the kernel before, and have little code, because code is fetched from
 * memory, too.
 */
#include "kernels/cuda/moe/router.cuh"

enum {
    THREADS = ROUTE_THREADS, WARPS = ROUTE_WARPS,
    SUMS = 8, /* partial sums of a warp and row: experts, then squares */
    MAX_ROWS = 16, /* most rows of a block */
};

/* ---- packing -------------------------------------------------------------------------------- */

/* One weight as raw bits, or 0. */
__device__ __forceinline__ uint32_t fetch_weight(struct vec v, size_t i, bool there)
{
    return v.type == DT_F32 ? fetch((const uint32_t *)v.p + i, there && v.p)
                            : fetch((const uint16_t *)v.p + i, there && v.p);
}

/* Clears the words in which the expert blocks exchange what they compute for a row. */
__device__ __forceinline__ void clear_row(const moe_args &a, int r)
{
    const int tid = (int)threadIdx.x, pair = r * a.top_k;
    uint4 *const h = (uint4 *)(a.h_to + (size_t)(pair * a.terms) * (size_t)a.h.kp);
    uint4 *const down = (uint4 *)(a.down + (size_t)pair * (size_t)a.in);
    for (int i = tid; i < a.top_k * a.terms * a.h.kp / 8; i += THREADS)
        h[i] = make_uint4(0, 0, 0, 0);
    for (int i = tid; a.adds_experts && i < a.top_k * a.in / 4; i += THREADS)
        down[i] = make_uint4(0, 0, 0, 0);
}

/* Stores a thread's elements in one or two terms, kp apart. */
__device__ __forceinline__ void store_part_terms(const moe_args &a, uint16_t *to, int from,
                                                 float (&y)[PER])
{
    const int i = from + (int)threadIdx.x;
    to += i;
#pragma unroll 1
    for (int t = 0; t < a.terms; t++, to += a.x.kp)
#pragma unroll
        for (int j = 0; j < PER; j++) {
            const __half h = rounded_to<__half>(y[j]); /* both types, without a branch */
            const bf16 b = rounded_to<bf16>(y[j]);
            if (i + j * THREADS < a.x.kp)
                to[j * THREADS] = a.f16 ? bits_of(h) : bits_of(b);
            y[j] = rest_after(y[j], a.f16 ? float_of(h) : float_of(b));
        }
}

/* Normalises and packs a row for the experts. f16: scaled by the power of two that brings the
 * largest element into [2^13, 2^14). A row that fits one pass is read once. */
template <bool BF16>
__device__ __forceinline__ void pack_row(const moe_args &a, int r, float *scratch)
{
    enum { SQUARES, LARGEST, STORE };
    const float *src = a.src + (size_t)r * (size_t)a.in;
    uint16_t *const to = a.x_to + (size_t)r * (size_t)(a.terms * a.x.kp);
    uint32_t w[PER];
    float x[PER], ss = 0, top = 0, inv = 1, s = 1;
    bool first = true;
#pragma unroll 1
    for (int phase = SQUARES; phase <= STORE; phase++) {
#pragma unroll 1
        for (int from = 0; from < a.x.kp; from += ROUTE_PASS) {
            if (first || a.x.kp > ROUTE_PASS) {
                fetch_weights<BF16>(a.pre.w, 0, a.in, from, w);
                if (first)
                    pdl_wait_trigger();
                fetch_part(src, a.in, from, x);
                first = false;
            }
            float y[PER];
#pragma unroll
            for (int j = 0; j < PER; j++) {
                const int i = from + j * THREADS + (int)threadIdx.x;
                const float z = as_float<BF16>(a.pre.w, w[j]);
                y[j] = i < a.in ? normed_by(a.pre.kind, x[j], inv, z) * s : 0.f;
                top = fmaxf(top, fabsf(y[j]));
                if (phase == SQUARES)
                    ss = fmaf(x[j], x[j], ss);
            }
            if (phase == STORE)
                store_part_terms(a, to, from, y);
        }
        if (phase == SQUARES && a.pre.kind != NORM_NONE)
            inv = 1 / sqrtf(route_sum(ss, scratch) / (float)a.in + a.pre.eps);
        if (phase == SQUARES)
            top = 0;
        if (phase == LARGEST && a.f16) {
            s = f16_scale_of(route_max(top, scratch + WARPS));
            if (threadIdx.x == 0)
                a.x_inv[r] = inverse_scale(s);
        }
    }
}

/* ---- logits --------------------------------------------------------------------------------- */

/* A thread's share of the router's weights: X experts' weights, and the factors of the input
 * besides 1 / rms. First raw bits (fetch), then float32 (arrive). */
template <int X, bool BF16> struct route_weights {
    uint32_t raw[X + 1][PER];
    __device__ __forceinline__ void fetch(const moe_args &a, const struct norm &norm, int e0,
                                          int from)
    {
        fetch_weights<BF16>(norm.w, 0, a.in, from, raw[X]);
#pragma unroll
        for (int x = 0; x < X; x++)
            fetch_weights<BF16>(a.router, (size_t)min(e0 + x, a.n_expert - 1) * a.router_pitch,
                                a.in, from, raw[x]);
    }
    __device__ __forceinline__ void arrive(const moe_args &a, const struct norm &norm, int from)
    {
        uint32_t in[PER];
        const bool more = !BF16 && a.router_in.p;
        if (more)
            fetch_weights<false>(a.router_in, 0, a.in, from, in);
#pragma unroll
        for (int j = 0; j < PER; j++) {
            float f = normed_by(norm.kind, 1, 1, as_float<BF16>(norm.w, raw[X][j]));
            raw[X][j] = __float_as_uint(more ? f * as_float<false>(a.router_in, in[j]) : f);
#pragma unroll
            for (int x = 0; x < X; x++)
                raw[x][j] = __float_as_uint(as_float<BF16>(a.router, raw[x][j]));
        }
    }
    __device__ __forceinline__ float at(int x, int j) const { return __uint_as_float(raw[x][j]); }
};

/* Sums v[i] over the lanes of a warp; lane 4 i gets the sum of v[i]. */
__device__ __forceinline__ float warp_sums(float (&v)[SUMS])
{
    reduce_scatter_lanes<16, 4>(v);
    reduce_scatter_lanes<8, 2>(v);
    reduce_scatter_lanes<4, 1>(v);
    v[0] += __shfl_xor_sync(~0u, v[0], 2);
    return v[0] + __shfl_xor_sync(~0u, v[0], 1);
}

/* Per-warp partial sums of X experts and of the squares for rows r0 .. r1: over a thread's elements
 * first, then a tree over the lanes. part: (rows, WARPS, SUMS). */
template <int X, bool BF16>
__device__ __forceinline__ void multiply_rows(const moe_args &a, const struct norm &norm, int e0,
                                              int r0, int r1, float *part)
{
    const int tid = (int)threadIdx.x, n = a.in;
    const float *src = a.src + (size_t)r0 * (size_t)n;
    struct route_weights<X, BF16> w;
    float x[PER], next[PER] = {}, sum[X + 1] = {};
    bool first = true;
#pragma unroll 1
    for (int r = r0, from = 0; r < r1;) {
        const bool fresh = first || n > ROUTE_PASS, ends = from + ROUTE_PASS >= n;
        if (fresh)
            w.fetch(a, norm, e0, from);
        if (first) {
            pdl_wait_trigger();
            fetch_part(src, n, 0, x);
        }
        if (!ends || r + 1 < r1)
            fetch_part(ends ? src + n : src, n, ends ? 0 : from + ROUTE_PASS, next);
        if (fresh)
            w.arrive(a, norm, from);
        first = false;
#pragma unroll
        for (int j = 0; j < PER; j++) {
            const float y = x[j] * w.at(X, j);
            sum[X] = fmaf(x[j], x[j], sum[X]);
#pragma unroll
            for (int i = 0; i < X; i++)
                sum[i] = fmaf(y, w.at(i, j), sum[i]);
            x[j] = next[j];
        }
        from += ROUTE_PASS;
        if (!ends)
            continue;
        float v[SUMS] = {};
#pragma unroll
        for (int i = 0; i <= X; i++)
            v[i] = sum[i], sum[i] = 0;
        const float all = warp_sums(v);
        if (tid % 4 == 0)
            part[((r - r0) * WARPS + tid / 32) * SUMS + tid % 32 / 4] = all;
        from = 0, r++, src += n;
    }
}

/* The logits of X experts for rows r0 .. r1; adds the warps' partial sums in order. */
template <int X, bool BF16>
__device__ __forceinline__ void router_product(const moe_args &a, int e0, int r0, int r1,
                                               float *part)
{
    /* This thread finishes row r0 + r, expert e0 + i. */
    const int r = (int)threadIdx.x / X, i = (int)threadIdx.x % X;
    const bool ends = r0 + r < r1 && e0 + i < a.n_expert;
    const struct norm &norm = route_norm(a);
    const uint32_t bias = fetch_weight(a.router_b, (size_t)(e0 + i), ends);
    multiply_rows<X, BF16>(a, norm, e0, r0, r1, part);
    __syncthreads();
    if (!ends)
        return;
    float ss = 0, y = 0;
    part += r * WARPS * SUMS;
#pragma unroll
    for (int p = 0; p < WARPS; p++)
        ss += part[p * SUMS + X], y += part[p * SUMS + i];
    store_logit(a, norm, r0 + r, e0 + i, y, ss, bias);
}

/* ---- selection by the last block ------------------------------------------------------------ */

/* The last block of a group of rows selects the group's experts; the last block of all groups
 * groups the pairs by expert. Not inlined: its registers would be spilled in every block. */
__device__ __noinline__ void select_last(const moe_args &a, int r0, int r1, unsigned blocks)
{
    if (!last_to_arrive(a.counters + 1 + blockIdx.y, blocks))
        return;
    for (int r = r0 + (int)threadIdx.x / 32; r < r1; r += WARPS)
        select_and_store<MAX_EXPERTS / 32>(a, r);
    if (last_to_arrive(a.counters, gridDim.y))
        group_pairs(a); /* rarely many pairs: little code */
}

/* ---- the kernel ----------------------------------------------------------------------------- */

/* Blocks (i < each, group of rows) pack row i of the group; the others compute the logits of X
 * experts for all rows of the group. Shared memory: `part` of multiply_rows(). */
template <int X, bool BF16>
__global__ void __launch_bounds__(THREADS, BF16 ? 2 : 1)
    route_rows(const __grid_constant__ struct moe_args a, int each)
{
    extern __shared__ __align__(16) float part[];
    __shared__ float scratch[2 * WARPS];
    const int r0 = (int)blockIdx.y * each, r1 = min(r0 + each, a.rows);
    const int r = r0 + (int)blockIdx.x;
    if (threadIdx.x == 0)
        STAMP_BLOCK(BEGINS, STAMP_ROUTER);
    pdl_trigger();
    if ((int)blockIdx.x >= each) {
        router_product<X, BF16>(a, ((int)blockIdx.x - each) * X, r0, r1, part);
        if (!a.block_select)
            select_last(a, r0, r1, gridDim.x - (unsigned)each);
    } else if (r < r1) {
        if (a.single_row)
            pdl_wait_trigger();
        else
            pack_row<BF16>(a, r, scratch);
        if (a.block_select)
            block_arrives(a.sync + ROWS_READY);
        if (a.by_flags) {
            clear_row(a, r);
            block_arrives(a.sync + ROWS_CLEARED);
        }
    }
    if (threadIdx.x == 0)
        STAMP_BLOCK(ENDS, 0);
}

template <int X, bool BF16> static void run(struct kdev *d, const struct moe_args *m)
{
    const int groups = div_up(m->n_expert, X); /* at most one block a multiprocessor for logits */
    const int each = min_int(div_up(m->rows, max_int(d->gpu.n_sm / groups, 1)), MAX_ROWS);
    dim3 grid((unsigned)(each + groups), (unsigned)div_up(m->rows, each));
    cuda_launch(d, route_rows<X, BF16>, grid, THREADS,
                (size_t)(each * WARPS * SUMS) * sizeof(float), *m, each);
}

static bool is_bf16(struct vec v) { return !v.p || v.type == DT_BF16; }

void cuda_route(struct kdev *d, const struct moe_args *m)
{
    if (!is_bf16(m->router) || !is_bf16(m->pre.w) || !is_bf16(m->router_norm.w) || m->router_in.p)
        run<4, false>(d, m);
    else if (m->n_expert * m->rows <= d->gpu.n_sm)
        run<1, true>(d, m);
    else
        run<4, true>(d, m);
}
