/* experts_tile.cu - MXFP4 experts for prefill rows on GPUs without wgmma: both products of
 * experts.cu, equal to the bit, without the sum, by the building blocks of dense/tile.cuh. Packed
 * rows are in the order of the experts (router_prefill.cu). Weights are decoded into registers,
 * scales included, 32 of k at a time.
 *
 * Blocks take tile after tile. A stage of the ring holds 128 of k: for each 16 outputs their
 * weights and scales as they are in memory, and the columns.
 */
#include "kernels/cuda/dense/tile.cuh"
#include "kernels/cuda/moe/pair_tiles.cuh"

enum { STAGE_K = 128, STAGES = 2 };

typedef tile_shape<4, 2, 4, 4, 1> wide;   /* 128 outputs, 128 columns */
typedef tile_shape<4, 2, 4, 2, 1> narrow; /* 128 outputs, 64 columns */

struct tile_experts {
    struct moe_args m;
    bool down; /* the down product; else gate and up */
    int tiles_out;
};

template <class S> struct ring_shape {
    static constexpr int UNITS = S::OUTS / 16, SCALES_AT = UNITS * 1024,
                         COLUMNS_AT = SCALES_AT + UNITS * 64,
                         STAGE = COLUMNS_AT + S::COLS * STAGE_K * 2, SHARED = (int)STAGES * STAGE;
    /* Elements of a column of hidden values, which replace the stages. */
    static constexpr int HIDDEN_PITCH = S::OUTS / 2 + 8;
    static_assert(S::COLS * HIDDEN_PITCH * 2 <= SHARED);
};

#ifdef __CUDACC__

/* ---- copies --------------------------------------------------------------------------------- */

/* A thread's pieces of every stage of a tile. Offsets, in units of 16 bytes, are computed anew for
 * each stage, because the registers are needed for sums. */
template <int TERMS, class S> struct pair_copier {
    using R = ring_shape<S>;
    static constexpr int EACH_W = R::UNITS * 64 / S::THREADS, EACH_X = S::COLS * 16 / S::THREADS;
    static_assert(EACH_W * S::THREADS == R::UNITS * 64 && EACH_X * S::THREADS == S::COLS * 16);
    static_assert(R::UNITS * 4 <= S::THREADS && S::THREADS / 16 % 8 == 0);
    const uint4 *w, *s, *x;
    uint32_t shared;
    int chunks, unit, last, cols; /* unit, last: the tile's first 16 outputs, the matrix's last */
    __device__ __forceinline__ pair_copier(const tile_experts &a, const tile_coord &t, uint32_t to)
        : shared(to), unit(t.out / 16), cols((t.to - t.from) * TERMS)
    {
        const mat &m = a.down ? a.m.down_m : a.m.gate_up_m;
        const packed &rows = a.down ? a.m.h : a.m.x;
        chunks = rows.kp / STAGE_K, last = m.n / 16 - 1;
        w = (const uint4 *)(m.w + (size_t)t.expert * m.expert);
        s = (const uint4 *)(m.scale + (size_t)t.expert * m.expert_scale);
        x = (const uint4 *)(rows.x + (size_t)(t.from * TERMS) * (size_t)rows.kp);
    }
    __device__ __forceinline__ void copy(int chunk, int stage) const
    {
        const int tid = (int)threadIdx.x, place = chunk_place(chunk, chunks);
        const uint32_t to = shared + (uint32_t)(stage * R::STAGE);
#pragma unroll
        for (int i = 0; i < EACH_W; i++)
            cp_async16(to + (uint32_t)((tid + i * S::THREADS) * 16),
                       w + (uint32_t)((of_unit(tid / 64 + i * (S::THREADS / 64)) + place) * 64 +
                                      tid % 64),
                       0);
        if (tid < R::UNITS * 4)
            cp_async16(to + (uint32_t)(R::SCALES_AT + tid * 16),
                       s + (uint32_t)((of_unit(tid / 4) + place) * 4 + tid % 4), 0);
#pragma unroll
        for (int i = 0; i < EACH_X; i++)
            cp_async16(to + (uint32_t)(R::COLUMNS_AT + i * S::THREADS * 16) +
                           (uint32_t)piece_at<16>(tid / 16, tid % 16),
                       x + (uint32_t)((min(tid / 16 + i * (S::THREADS / 16), cols - 1) * chunks +
                                       chunk) * 16 + tid % 16),
                       0);
    }
    /* The first chunk of 16 outputs of the tile. */
    __device__ __forceinline__ int of_unit(int i) const { return min(unit + i, last) * chunks; }
};

/* ---- multiplication ------------------------------------------------------------------------- */

/* acc += columns * weights, 128 of k. w, s, x: the addresses of the lane's weights and scales, and
 * of its column of the first 16. first: the outputs' first chunk, from which `unit` gets the row
 * scale of the lane's output of each eight. */
template <class S>
__device__ __forceinline__ void multiply_chunk(float (&acc)[S::MT][S::NT][4], uint32_t w,
                                               uint32_t s, uint32_t x, bool first,
                                               float (&unit)[S::NT])
{
    const int swizzle = lane_column() / 2 % 8;
    uint4 raw[S::NT];
    uint32_t scales[S::NT];
#pragma unroll
    for (int j = 0; j < S::NT; j++) {
        raw[j] = shared16(w + (uint32_t)(j * 512));
        scales[j] = shared4(s + (uint32_t)(j / 2 * 64 + j % 2 * 4));
    }
    if (first)
#pragma unroll
        for (int j = 0; j < S::NT; j++)
            unit[j] = mx_unit(scales[j]);
#pragma unroll
    for (int b = 0; b < 4; b++) {
        uint32_t h[S::NT][4];
#pragma unroll
        for (int j = 0; j < S::NT; j++)
            scaled_pairs((&raw[j].x)[b], scales[j], b, h[j]);
        const uint32_t x0 = x + (uint32_t)(((b * 4 + lane_piece()) ^ swizzle) * 16),
                       x1 = x + (uint32_t)(((b * 4 + 2 + lane_piece()) ^ swizzle) * 16);
#pragma unroll
        for (int i = 0; i < S::MT; i++) {
            uint32_t a[4], c[4];
            ldmatrix_x4(a, x0 + (uint32_t)(i * 16 * STAGE_K * 2));
            ldmatrix_x4(c, x1 + (uint32_t)(i * 16 * STAGE_K * 2));
#pragma unroll
            for (int j = 0; j < S::NT; j++)
                mma_f16(acc[i][j], a[0], a[1], a[2], a[3], h[j][0], h[j][1]);
#pragma unroll
            for (int j = 0; j < S::NT; j++)
                mma_f16(acc[i][j], c[0], c[1], c[2], c[3], h[j][2], h[j][3]);
        }
    }
}

/* ---- epilogue ------------------------------------------------------------------------------- */

/* A tile's pairs and the inverses of their rows' powers of two. */
template <class S> struct tile_rows {
    int pair[S::COLS];
    float inv[S::COLS];
    __device__ __forceinline__ void fetch(const tile_experts &a, const tile_coord &t)
    {
        for (int i = (int)threadIdx.x; i < t.to - t.from; i += S::THREADS) {
            pair[i] = __ldcg(a.m.order + t.from + i);
            inv[i] = a.down ? a.m.h_undo : __ldcg(a.m.x_inv + pair[i] / a.m.top_k);
        }
    }
};

/* Stores a thread's sums of the down product. out: its first output; row: its warp's first row. */
template <int TERMS, class S>
__device__ __forceinline__ void store_down(const tile_experts &a, const tile_rows<S> &rows, int n,
                                           int out, int row,
                                           const float (&sum)[S::MT][S::NT][4 / TERMS])
{
#pragma unroll
    for (int i = 0; i < S::MT; i++)
#pragma unroll
        for (int e = 0; e < 2 / TERMS; e++) {
            const int r = row + row_of<TERMS>(i, e);
            if (r >= n)
                continue;
            const float inv = rows.inv[r];
            float *to = a.m.down + (size_t)rows.pair[r] * (size_t)a.m.in + (size_t)out;
#pragma unroll
            for (int j = 0; j < S::NT; j++)
                if (out + j * 8 < a.m.in)
                    *(float2 *)(to + j * 8) = make_float2(mx_sum(sum[i][j][2 * e] * inv),
                                                          mx_sum(sum[i][j][2 * e + 1] * inv));
        }
}

/* Gate and up, interleaved, become packed hidden values in shared memory; zeros after the last. in:
 * the thread's first hidden value in the tile. */
template <int TERMS, class S, bool CLAMPED>
__device__ __forceinline__ void stage_hidden(const tile_experts &a, const tile_coord &t,
                                             const tile_rows<S> &rows, int in, int row,
                                             const float (&sum)[S::MT][S::NT][4 / TERMS],
                                             uint16_t *hidden)
{
    const int act = CLAMPED ? (int)ACT_SWIGLU_CLAMP : a.m.act, n = t.to - t.from;
#pragma unroll
    for (int j = 0; j < S::NT; j++) {
        const int o = in + j * 4, h = t.out / 2 + o;
        const bool there = h < a.m.ffn;
        float bg = 0, bu = 0;
        if (there && a.m.gate_up_b.p) {
            const size_t b = (size_t)t.expert * a.m.gate_up_b_pitch + (size_t)(2 * h);
            bg = weight_at(a.m.gate_up_b, b), bu = weight_at(a.m.gate_up_b, b + 1);
        }
#pragma unroll
        for (int i = 0; i < S::MT; i++)
#pragma unroll
            for (int e = 0; e < 2 / TERMS; e++) {
                const int r = row + row_of<TERMS>(i, e);
                if (r >= n)
                    continue;
                const float inv = rows.inv[r];
                float y = gated(mx_sum(sum[i][j][2 * e] * inv) + bg,
                                mx_sum(sum[i][j][2 * e + 1] * inv) + bu, act, a.m.limit);
                y = there ? y * a.m.h_scale : 0.f;
#pragma unroll
                for (int term = 0; term < TERMS; term++)
                    hidden[(r * TERMS + term) * ring_shape<S>::HIDDEN_PITCH + tile_place(o)] =
                        split_term<__half>(y);
            }
    }
}

/* Stores the tile's hidden values, 16 bytes a thread; the last tile of outputs also pads the rows
 * with zeros. */
template <int TERMS, class S>
__device__ __forceinline__ void store_hidden(const tile_experts &a, const tile_coord &t,
                                             const uint16_t *hidden)
{
    constexpr int PIECES = S::OUTS / 2 / 8;
    const int cols = (t.to - t.from) * TERMS, first = t.out / 2, kp = a.m.h.kp;
    const int end = first + S::OUTS / 2 >= a.m.ffn ? kp : first + S::OUTS / 2;
    const int pieces = (end - first) / 8;
    uint16_t *to = a.m.h_to + (size_t)(t.from * TERMS) * (size_t)kp + (size_t)first;
    for (int i = (int)threadIdx.x; i < cols * pieces; i += S::THREADS) {
        const int col = i / pieces, piece = i % pieces;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (piece < PIECES)
            v = *(const uint4 *)(hidden + col * ring_shape<S>::HIDDEN_PITCH + piece * 8);
        *(uint4 *)(to + (size_t)col * (size_t)kp + (size_t)(piece * 8)) = v;
    }
}

template <int TERMS, class S>
__device__ __forceinline__ void finish_tile(const tile_experts &a, const tile_coord &t,
                                            const tile_rows<S> &rows,
                                            const float (&sum)[S::MT][S::NT][4 / TERMS],
                                            uint16_t *hidden)
{
    const int warp = (int)threadIdx.x / 32, q = (int)threadIdx.x % 4;
    const int first = warp / S::WARPS_COL * S::WARP_OUTS,
              row = warp % S::WARPS_COL * S::WARP_COLS / TERMS;
    if (a.down)
        store_down<TERMS, S>(a, rows, t.to - t.from, t.out + first + 2 * q, row, sum);
    __syncthreads(); /* hidden values replace the ring */
    if (a.down)
        return;
    if (a.m.act == ACT_SWIGLU_CLAMP)
        stage_hidden<TERMS, S, true>(a, t, rows, first / 2 + q, row, sum, hidden);
    else
        stage_hidden<TERMS, S, false>(a, t, rows, first / 2 + q, row, sum, hidden);
    __syncthreads();
    store_hidden<TERMS, S>(a, t, hidden);
    __syncthreads();
}

/* ---- the kernel ----------------------------------------------------------------------------- */

/* The sums of a tile: all k splits, times the outputs' row scales. */
template <int TERMS, class S>
__device__ __forceinline__ void multiply_tile(const pair_copier<TERMS, S> &copies, uint32_t shared,
                                              float (&sum)[S::MT][S::NT][4 / TERMS])
{
    using R = ring_shape<S>;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, chunks = copies.chunks;
    const int unit0 = warp / S::WARPS_COL * S::NT / 2;
    const int col = warp % S::WARPS_COL * S::WARP_COLS + lane_column();
    const int each = (chunks + (int)K_SPLITS - 1) / (int)K_SPLITS;
    const uint32_t w = shared + (uint32_t)(unit0 * 1024 + lane * 16),
                   s = shared + (uint32_t)(R::SCALES_AT + unit0 * 64 + lane / 4 * 8),
                   x = shared + (uint32_t)(R::COLUMNS_AT + col * STAGE_K * 2);
    float acc[S::MT][S::NT][4], unit[S::NT] = {};
    set_sums(sum, -0.f);
    copies.copy(0, 0);
    cp_async_commit();
#pragma unroll 1
    for (int from = 0; from < chunks; from += each) {
        set_sums(acc, 0.f);
#pragma unroll 1
        for (int c = from; c < min(from + each, chunks); c++) {
            const uint32_t at = (uint32_t)(c % STAGES * R::STAGE);
            cp_async_wait<0>();
            __syncthreads(); /* the chunk has arrived, and nobody reads the one before */
            if (c + 1 < chunks)
                copies.copy(c + 1, (c + 1) % STAGES);
            cp_async_commit();
            multiply_chunk<S>(acc, w + at, s + at, x + at, c == 0, unit);
        }
        add_split<TERMS>(sum, acc);
    }
    const bool empty = (K_SPLITS - 1) * each >= chunks; /* an empty split: -0 becomes 0 */
#pragma unroll
    for (int j = 0; j < S::NT; j++) {
        const float units[2] = {__shfl_sync(~0u, unit[j], lane % 4 * 8),
                                __shfl_sync(~0u, unit[j], lane % 4 * 8 + 4)};
#pragma unroll
        for (int i = 0; i < S::MT; i++)
#pragma unroll
            for (int e = 0; e < 4 / TERMS; e++)
                sum[i][j][e] = (empty ? sum[i][j][e] + 0.f : sum[i][j][e]) * units[e % 2];
    }
}

template <int TERMS, class S>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS)
    tile_experts_kernel(const __grid_constant__ struct tile_experts a)
{
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ struct pair_tiles tiling;
    __shared__ struct tile_rows<S> rows;
    pdl_wait_trigger();
    if (threadIdx.x < 32)
        tiling.make<S::COLS / TERMS>(a.m);
    __syncthreads();
    struct tile_coord t = {(int)blockIdx.x};
    for (; tiling.locate(a.m, a.tiles_out, S::OUTS, t); t.tile += (int)gridDim.x) {
        float sum[S::MT][S::NT][4 / TERMS];
        rows.fetch(a, t);
        const pair_copier<TERMS, S> copies(a, t, shared_at(shared));
        multiply_tile<TERMS, S>(copies, shared_at(shared), sum);
        finish_tile<TERMS, S>(a, t, rows, sum, (uint16_t *)shared);
    }
}

#endif

/* ---- host ----------------------------------------------------------------------------------- */

template <int TERMS, class S> static void run(struct kdev *d, const struct moe_args *m, bool down)
{
    constexpr int SHARED = ring_shape<S>::SHARED;
    static_assert(SHARED + (int)sizeof(struct pair_tiles) + (int)sizeof(struct tile_rows<S>) <=
                  99 << 10, "every GPU has that much");
    struct tile_experts a = {*m, down, div_up(down ? m->down_m.n : m->gate_up_m.n, S::OUTS)};
    cuda_launch(d, tile_experts_kernel<TERMS, S>, dim3((unsigned)(d->gpu.n_sm * S::BLOCKS)),
                S::THREADS,
                (size_t)SHARED, a);
}

void cuda_tile_experts(struct kdev *d, const struct moe_args *m)
{
    /* columns of an expert, if all experts have as many */
    const bool many = m->rows * m->top_k * m->terms > 96 * m->n_expert;
    for (int down = 0; down < 2; down++)
        if (m->terms == 1)
            many ? run<1, wide>(d, m, down) : run<1, narrow>(d, m, down);
        else
            many ? run<2, wide>(d, m, down) : run<2, narrow>(d, m, down);
}
