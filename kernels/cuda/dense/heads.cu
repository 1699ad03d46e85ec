/* heads.cu - the epilogue of heads (heads.cuh) for several rows: norm, rope, store to the pool. A
 * warp processes one head (two, if heads are short), a thread four elements at a time, with the
 * bits of finish_head(). If the projection left partial sums, they are reduced here.
 */
#include "kernels/cuda/dense/heads.cuh"

enum {
    MAX_ROWS = 65535, /* rows */
    EARLY = 8, TOGETHER = 4, /* up to EARLY rows: a block has TOGETHER rows */
};

/* How a warp holds heads of DIM elements: one head, or as many as fill its lanes. */
template <int DIM> struct head_lanes {
    enum {
        LANES = DIM / 4 < 32 ? DIM / 4 : 32,
        EACH = DIM / 4 / LANES, /* groups of four elements of a thread, 4 * LANES elements apart */
        HEADS = 32 / LANES,
        OF_BLOCK = ROW_WARPS * HEADS,
    };
};

/* 1 / rms of a head, in the order of head_sum(). The heads of one warp may differ in whether they
 * have a norm. */
template <int DIM>
__device__ __forceinline__ float head_inverse_warp(const float4 (&x)[head_lanes<DIM>::EACH],
                                                   const struct norm &norm)
{
    using S = head_lanes<DIM>;
    const bool normed = norm.kind != NORM_NONE;
    if (!__any_sync(~0u, normed))
        return 1;
    float sum = 0;
#pragma unroll
    for (int j = 0; j < S::EACH; j++) {
        float s = (x[j].x * x[j].x + x[j].y * x[j].y) + (x[j].z * x[j].z + x[j].w * x[j].w);
#pragma unroll
        for (int d = 1; d < S::LANES; d *= 2)
            s += __shfl_xor_sync(~0u, s, d);
        sum = j ? sum + s : s;
    }
    return normed ? 1 / sqrtf(sum / (float)DIM + norm.eps) : 1;
}

/* Four bf16 weights as loaded. */
__device__ __forceinline__ uint2 fetch_four(struct vec v, int i)
{
    return v.p ? __ldg((const uint2 *)((const bf16 *)v.p + i)) : make_uint2(0, 0);
}

/* What a thread needs for four elements besides them and their rope partners. */
struct rotation {
    int i, other; /* index of the four and of their partners in the head */
    uint2 w, b;
    __device__ __forceinline__ void fetch_weights(const heads &a, const struct norm &norm,
                                                  int kind, int h, int at)
    {
        i = at, other = rope_partner(a, at);
        w = fetch_four(norm.w, i);
        if (a.splits)
            b = fetch_four(a.b[kind], h * a.head_dim + i);
    }
    /* Rope: y rotated by the angles t with its partners z, both normalised. */
    __device__ __forceinline__ float4 rotated(const heads &a, const float4 (&t)[2], float4 y,
                                              float4 z) const
    {
        const float c[4] = {t[0].x, t[0].z, t[1].x, t[1].z};
        const float s[4] = {t[0].y, t[0].w, t[1].y, t[1].w};
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float zs = (&z.x)[e] * s[e];
            (&y.x)[e] = fmaf((&y.x)[e], c[e], i < a.rot / 2 ? -zs : zs);
        }
        return y;
    }
};

/* Four elements of the projection, or zeros: a lane without a head must not read the lines of
 * another head, which are discarded (discard_splits()). With ADDS the partial sums are reduced in
 * the order of product.cuh, then biased. */
template <bool ADDS>
__device__ __forceinline__ float4 load_projection(const heads &a, const float *x, size_t apart,
                                                  uint2 b, bool biased, bool there)
{
    constexpr int N = ADDS ? (int)K_SPLITS : 1;
    float4 part[N];
#pragma unroll
    for (int r = 0; r < N; r++)
        part[r] = load_four_volatile(x + (size_t)min(r, max(a.splits - 1, 0)) * apart, there);
#pragma unroll
    for (int r = 1; r < N; r++)
        part[0] = plus(part[0], r < a.splits ? part[r] : make_float4(0, 0, 0, 0));
    return biased ? plus(part[0], floats_of(b)) : part[0];
}

/* The rope partners of a thread's elements if the whole head rotates: they are in the same thread
 * or in another lane. */
template <int DIM>
__device__ __forceinline__ float4 partner(const float4 (&y)[head_lanes<DIM>::EACH], int j)
{
    using S = head_lanes<DIM>;
    if constexpr (S::EACH == 2) {
        return y[1 - j];
    } else {
        float4 z;
#pragma unroll
        for (int e = 0; e < 4; e++)
            (&z.x)[e] = __shfl_xor_sync(~0u, (&y[j].x)[e], S::LANES / 2);
        return z;
    }
}

/* The elements at `from` (a different place in each lane) of the lane's head. */
template <int DIM>
__device__ __forceinline__ float4 elements_at(const float4 (&y)[head_lanes<DIM>::EACH], int from)
{
    using S = head_lanes<DIM>;
    const int lane = (int)threadIdx.x % 32 / S::LANES * S::LANES + from / 4 % S::LANES;
    float4 z = {};
#pragma unroll
    for (int j = 0; j < S::EACH; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float v = __shfl_sync(~0u, (&y[j].x)[e], lane);
            (&z.x)[e] = from / 4 / S::LANES == j ? v : (&z.x)[e];
        }
    return z;
}

__device__ __forceinline__ void put_four(void *pool, int type_bf16, size_t at, float4 y)
{
    if (!type_bf16) {
        *(float4 *)((float *)pool + at) = y;
        return;
    }
    *(uint2 *)((bf16 *)pool + at) = bf16_four(y);
}

/* Stores a lane's elements of a head of K or V as FP8. The whole warp calls; heads that are not of
 * K or V, or have no cell, store nothing. */
template <int DIM>
__device__ __forceinline__ void store_fp8(const heads &a, int kind, int slot, int h, bool stores,
                                          const float4 (&y)[head_lanes<DIM>::EACH])
{
    using S = head_lanes<DIM>;
    const int lane = (int)threadIdx.x % S::LANES;
    uint32_t most = 0;
#pragma unroll
    for (int j = 0; j < S::EACH; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            most = max(most, magnitude_of((&y[j].x)[e]));
#pragma unroll
    for (int d = 1; d < S::LANES; d *= 2)
        most = max(most, __shfl_xor_sync(~0u, most, d));
    if (!stores)
        return;
    const uint8_t scale = fp8_cell_scale_of(most);
    const fp8_head to = fp8_head_of(a, kind, slot, h);
#pragma unroll
    for (int j = 0; j < S::EACH; j++) {
        uint32_t codes = 0;
#pragma unroll
        for (int e = 0; e < 4; e++)
            codes |= (uint32_t)fp8_cell_code((&y[j].x)[e], scale) << 8 * e;
        *(uint32_t *)(to.codes + (lane + j * S::LANES) * 4) = codes;
    }
    if (lane == 0)
        *to.scale = scale;
}

/* Blocks (heads, rows). A block has one row or, for few rows, several, so that all blocks are
 * resident before the previous product ends; the next kernel can start only when all of them have
 * started. triggers_late: as kdev.late_epoch says. */
template <int DIM, bool ADDS, bool FP8>
__global__ void __launch_bounds__(ADDS ? ROW_THREADS : ROW_THREADS * TOGETHER, 1)
    heads_by_warp(const __grid_constant__ struct heads a, int all, int rows, bool triggers_late)
{
    using S = head_lanes<DIM>;
    if (!triggers_late)
        pdl_trigger();
    const int r = (int)(blockIdx.y * blockDim.y + threadIdx.y);
    if (r >= rows)
        return;
    const int lane = (int)threadIdx.x % S::LANES;
    const int h_of_all = (int)blockIdx.x * S::OF_BLOCK + (int)threadIdx.x / S::LANES;
    const bool mine = h_of_all < all;
    int h, kind = kind_of_head(a, mine ? h_of_all : 0, h);
    const float *x = kind == HEAD_Q ? a.q : kind == HEAD_K || a.v_from_k ? a.k : a.v;
    x += ((size_t)r * (size_t)(kind == HEAD_Q ? a.n_head : a.n_kv) + (size_t)h) * DIM;
    if (ADDS)
        x = a.q + partial_at(rows, r, (mine ? h_of_all : 0) * DIM + lane * 4);
    const size_t apart = partial_floats(rows, all * DIM), step = partial_at(rows, 0, S::LANES * 4);
    const struct norm &norm = kind == HEAD_Q ? a.q_norm : kind == HEAD_K ? a.k_norm : a.v_norm;
    float4 y[S::EACH];
    struct rotation rotation[S::EACH];
    float4 t[2] = {}; /* cosines and sines, the same for all groups of a thread (handles()) */
#pragma unroll
    for (int j = 0; j < S::EACH; j++)
        rotation[j].fetch_weights(a, norm, kind, h, (lane + j * S::LANES) * 4);
    pdl_wait_trigger(); /* late, because attention reads old cells before its own wait */
    const int slot = kind == HEAD_Q ? 0 : __ldcg(a.write + r);
#pragma unroll
    for (int j = 0; j < S::EACH; j++) {
        y[j] = load_projection<ADDS>(a, ADDS ? x + j * step : x + rotation[j].i, apart,
                                     rotation[j].b, ADDS && a.b[kind].p, mine);
    }
    if (kind != HEAD_V && rotation[0].i < a.rot) {
        const int angle = min(rotation[0].i, rotation[0].other);
        const float4 *cs = (const float4 *)(a.cs + (size_t)r * (size_t)a.rot + 2 * angle);
        t[0] = __ldcg(cs), t[1] = __ldcg(cs + 1);
    }
    const float inv = head_inverse_warp<DIM>(y, norm);
    float4 z[S::EACH];
#pragma unroll
    for (int j = 0; j < S::EACH; j++)
        y[j] = four_normed(norm.kind, y[j], inv, floats_of(rotation[j].w));
#pragma unroll
    for (int j = 0; j < S::EACH; j++)
        z[j] = a.rot == DIM ? partner<DIM>(y, j) : elements_at<DIM>(y, rotation[j].other);
    const bool stores = mine && slot >= 0 && (kind == HEAD_Q || slot < a.n_slots);
    if (!FP8 && !stores)
        return;
#pragma unroll
    for (int j = 0; j < S::EACH; j++)
        if (kind != HEAD_V && rotation[j].i < a.rot)
            y[j] = rotation[j].rotated(a, t, y[j], z[j]);
    if constexpr (FP8) {
        store_fp8<DIM>(a, kind, slot, h, stores && kind != HEAD_Q, y);
        if (!stores)
            return;
    }
#pragma unroll
    for (int j = 0; j < S::EACH; j++) {
        const size_t i = (size_t)rotation[j].i;
        const float4 v = y[j];
        const size_t at = ((size_t)r * (size_t)a.n_head + (size_t)h) * DIM + i;
        if (kind == HEAD_Q) {
            put_four(a.dst, false, at, v);
            if (a.bits)
                put_four(a.bits, true, at, v);
            continue;
        }
        if (!FP8)
            put_four(kind == HEAD_K ? a.cell_k : a.cell_v, a.kv == KV_BF16,
                     ((size_t)slot * (size_t)a.n_kv + (size_t)h) * DIM + i, v);
    }
    if (ADDS)
        __syncwarp(); /* all lanes have their values */
#pragma unroll
    for (int j = 0; j < S::EACH && ADDS; j++)
        discard_splits(x + j * step, apart, a.splits);
}

template <int DIM, bool FP8> static void run_cells(struct kdev *d, const struct heads *h, int rows)
{
    const int all = h->n_head + (h->k ? 2 * h->n_kv : 0);
    const int together = h->splits || rows > EARLY ? 1 : min_int(rows, TOGETHER);
    dim3 grid((unsigned)div_up(all, (int)head_lanes<DIM>::OF_BLOCK),
              (unsigned)div_up(rows, together));
    cuda_launch(d, h->splits ? heads_by_warp<DIM, true, FP8> : heads_by_warp<DIM, false, FP8>, grid,
                dim3(ROW_THREADS, (unsigned)together),
                cuda_exclusive_smem(d, (int)(grid.x * grid.y)), *h, all, rows, rows <= K_MAX_NODES);
}

template <int DIM> static void run(struct kdev *d, const struct heads *h, int rows)
{
    stores_fp8(h) ? run_cells<DIM, true>(d, h, rows) : run_cells<DIM, false>(d, h, rows);
}

static bool handles(const struct heads *h)
{
    const uintptr_t at = (uintptr_t)h->q | (uintptr_t)h->k | (uintptr_t)h->v | (uintptr_t)h->cs |
                         (uintptr_t)h->dst | (uintptr_t)h->cell_k | (uintptr_t)h->cell_v;
    const bool one_angle = h->head_dim < 256 || h->rot <= 128 || h->rot == 256;
    return !h->whole && h->rot % 8 == 0 && one_angle && at % 16 == 0 &&
           loads_by_four(&h->q_norm.w) && loads_by_four(&h->k_norm.w) &&
           loads_by_four(&h->v_norm.w) &&
           (h->head_dim == 64 || h->head_dim == 128 || h->head_dim == 256);
}

bool cuda_heads_reduce(const struct heads *h)
{
    return handles(h) && !h->v_from_k && loads_by_four(&h->b[0]) && loads_by_four(&h->b[1]) &&
           loads_by_four(&h->b[2]);
}

/* Stores a bf16 copy of the queries, if there is room for it. */
static void store_query_copy(struct kdev *d, struct heads *h, int rows)
{
    const int n = h->n_head * h->head_dim;
    const size_t bytes = (size_t)rows * (size_t)n * sizeof *d->query_bf16,
                 room = d->pending_rows
                            ? (size_t)PENDING_BYTES
                            : (size_t)MAX_VERIFY_ROWS * MAX_QUERY_WIDTH * sizeof(uint16_t);
    if (d->gpu.terms > 1 || bytes > room)
        return;
    h->bits = d->query_bf16;
    d->queries = {h->dst, LAYOUT_BF16, rows, n, d->epoch};
}

bool cuda_heads(struct kdev *d, const struct heads *to_do, int rows)
{
    struct heads h = *to_do;
    if (rows > MAX_ROWS || !handles(&h))
        return false;
    store_query_copy(d, &h, rows);
    if (h.head_dim == 64)
        run<64>(d, &h, rows);
    else if (h.head_dim == 128)
        run<128>(d, &h, rows);
    else
        run<256>(d, &h, rows);
    return true;
}
