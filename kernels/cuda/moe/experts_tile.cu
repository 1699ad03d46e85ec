/* experts_tile.cu - MXFP4 experts for prefill rows on GPUs without wgmma: both products of
 * experts.cu, equal to the bit, without the sum, by the building blocks of dense/tile.cuh. Packed
 * rows are in the order of the experts (router_prefill.cu). Weights are decoded into registers,
 * scales included, 32 of k at a time.
 *
 * Blocks take tile after tile. A stage of the ring holds 128 of k: for each 16 outputs their
 * weights and scales as they are in memory, and the columns.
 */
#include "kernels/cuda/base/ring.cuh"
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
    static_assert(COLUMNS_AT % 256 == 0 && STAGE % 256 == 0);
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
    /* Copies pieces P .. END - 1 of a chunk, if `there`, to the stage that begins `at` bytes behind
     * the first. */
    static constexpr int PIECES = EACH_W + 1 + EACH_X;
    template <int P, int END>
    __device__ __forceinline__ void copy(int chunk, uint32_t at, bool there) const
    {
        if constexpr (P < END) {
            const int tid = (int)threadIdx.x, place = chunk_place(chunk, chunks);
            const uint32_t to = shared + at;
            if constexpr (P < EACH_W) {
                const int u = tid / 64 + P * (S::THREADS / 64);
                cp_async16_if(to + (uint32_t)((tid + P * S::THREADS) * 16),
                              w + (uint32_t)((of_unit(u) + place) * 64 + tid % 64), there);
            } else if constexpr (P == EACH_W) {
                cp_async16_if(to + (uint32_t)(R::SCALES_AT + tid * 16),
                              s + (uint32_t)((of_unit(tid / 4) + place) * 4 + tid % 4),
                              there && tid < R::UNITS * 4);
            } else {
                constexpr int I = P - EACH_W - 1;
                const int col = min(tid / 16 + I * (S::THREADS / 16), cols - 1);
                cp_async16_if(to + (uint32_t)(R::COLUMNS_AT + I * S::THREADS * 16) +
                                  (uint32_t)piece_at<16>(tid / 16, tid % 16),
                              x + (uint32_t)((col * chunks + chunk) * 16 + tid % 16), there);
            }
            copy<P + 1, END>(chunk, at, there);
        }
    }
    /* The first chunk of 16 outputs of the tile. */
    __device__ __forceinline__ int of_unit(int i) const { return min(unit + i, last) * chunks; }
};

/* ---- multiplication ------------------------------------------------------------------------- */

/* A warp's operands in registers. A chunk is multiplied in four blocks of 32 of k, a block in STEPS
 * steps of 16 columns and 16 of k. While a block is multiplied the weights of the next block are
 * decoded, and while a step is multiplied the columns of the next step are loaded. */
template <class S> struct expert_operands {
    static constexpr int STEPS = 2 * S::MT;
    static_assert(S::NT <= STEPS);
    uint4 raw[S::NT]; /* of a chunk */
    uint32_t scales[S::NT], weights[2][S::NT][4], columns[2][4];

    __device__ __forceinline__ void load_raw(uint32_t w, uint32_t s)
    {
#pragma unroll
        for (int j = 0; j < S::NT; j++) {
            raw[j] = shared16(w + (uint32_t)(j * 512));
            scales[j] = shared4(s + (uint32_t)(j / 2 * 64 + j % 2 * 4));
        }
    }
    template <int B> __device__ __forceinline__ void decode(int j)
    {
        scaled_pairs((&raw[j].x)[B], scales[j], B, weights[B % 2][j]);
    }
    /* Loads the columns of step T of block B, of the chunk whose columns are at x. */
    template <int B, int T> __device__ __forceinline__ void load_columns(uint32_t x)
    {
        ldmatrix_x4(columns[T % 2], (x ^ (uint32_t)((B * 4 + T / S::MT * 2) * 16)) +
                                        (uint32_t)(T % S::MT * 16 * STAGE_K * 2));
    }
    /* Loads the first operands of a tile. `unit` gets the row scale of the lane's output of each
     * eight, which only the first chunk's scales have. */
    __device__ __forceinline__ void begin(uint32_t w, uint32_t s, uint32_t x, float (&unit)[S::NT])
    {
        load_raw(w, s);
#pragma unroll
        for (int j = 0; j < S::NT; j++)
            unit[j] = mx_unit(scales[j]);
#pragma unroll
        for (int j = 0; j < S::NT; j++)
            decode<0>(j);
        load_columns<0, 0>(x);
    }
    /* acc += columns * weights, steps T .. END - 1 of block B. x: the chunk's columns; w, s,
     * x_next: the next chunk, of which the last block loads. Calls copy<T>() in each step. */
    template <int B, int T, int END, class COPY>
    __device__ __forceinline__ void multiply(float (&acc)[S::MT][S::NT][4], uint32_t x, uint32_t w,
                                             uint32_t s, uint32_t x_next, const COPY &copy)
    {
        if constexpr (T < END) {
            constexpr int NEXT = (B + 1) % 4, J = T - (STEPS - S::NT);
            if constexpr (B == 3 && T == 0)
                load_raw(w, s);
            if constexpr (T + 1 < STEPS)
                load_columns<B, T + 1>(x);
            else
                load_columns<NEXT, 0>(B == 3 ? x_next : x);
#pragma unroll
            for (int j = 0; j < S::NT; j++) {
                const uint32_t(&c)[4] = columns[T % 2];
                const uint32_t(&h)[4] = weights[B % 2][j];
                mma_f16(acc[T % S::MT][j], c[0], c[1], c[2], c[3], h[T / S::MT * 2],
                        h[T / S::MT * 2 + 1]);
            }
            if constexpr (J >= 0)
                decode<NEXT>(J);
            copy.template operator()<T>();
            multiply<B, T + 1, END>(acc, x, w, s, x_next, copy);
        }
    }
};

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
    __syncthreads(); /* `rows` is complete, and hidden values replace the ring */
    if (a.down)
        store_down<TERMS, S>(a, rows, t.to - t.from, t.out + first + 2 * q, row, sum);
    else if (a.m.act == ACT_SWIGLU_CLAMP)
        stage_hidden<TERMS, S, true>(a, t, rows, first / 2 + q, row, sum, hidden);
    else
        stage_hidden<TERMS, S, false>(a, t, rows, first / 2 + q, row, sum, hidden);
    __syncthreads();
    if (a.down)
        return;
    store_hidden<TERMS, S>(a, t, hidden);
    __syncthreads();
}

/* ---- the kernel ----------------------------------------------------------------------------- */

/* The ring of a block, with the stages that are multiplied from, and copied to, next. */
struct tile_ring {
    uint32_t at, full, empty;
    struct ring_pos now, to;
};

/* The sums of a tile: all k splits, times the outputs' row scales. */
template <int TERMS, class S>
__device__ __forceinline__ void multiply_tile(const pair_copier<TERMS, S> &copies, tile_ring &r,
                                              float (&sum)[S::MT][S::NT][4 / TERMS])
{
    using R = ring_shape<S>;
    using O = expert_operands<S>;
    using C = pair_copier<TERMS, S>;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, chunks = copies.chunks;
    const int unit0 = warp / S::WARPS_COL * S::NT / 2;
    const int col = warp % S::WARPS_COL * S::WARP_COLS + lane_column();
    const int each = (chunks + (int)K_SPLITS - 1) / (int)K_SPLITS;
    const uint32_t w = r.at + (uint32_t)(unit0 * 1024 + lane * 16),
                   s = r.at + (uint32_t)(R::SCALES_AT + unit0 * 64 + lane / 4 * 8),
                   x = r.at + (uint32_t)(R::COLUMNS_AT + piece_at<16>(col, lane_piece()));
    float acc[S::MT][S::NT][4], unit[S::NT];
    O o;
    mbarrier_wait(barrier_at(r.empty, r.to.slot), r.to.phase ^ 1);
    copies.template copy<0, C::PIECES>(0, (uint32_t)(r.to.slot * R::STAGE), true);
    cp_async_arrive(barrier_at(r.full, r.to.slot));
    r.to.next(STAGES);
    mbarrier_wait(barrier_at(r.full, r.now.slot), r.now.phase);
    const uint32_t begin = (uint32_t)(r.now.slot * R::STAGE);
    o.begin(w + begin, s + begin, x + begin, unit);
    set_sums(sum, -0.f);
#pragma unroll 1
    for (int from = 0; from < chunks; from += each) {
        set_sums(acc, 0.f);
#pragma unroll 1
        for (int c = from; c < min(from + each, chunks); c++) {
            const bool more = c + 1 < chunks;
            const int slot = r.now.slot;
            const uint32_t in = x + (uint32_t)(slot * R::STAGE),
                           to = (uint32_t)(r.to.slot * R::STAGE);
            o.template multiply<0, 0, S::MT>(acc, in, 0, 0, 0, no_copies());
            if (more)
                mbarrier_wait(barrier_at(r.empty, r.to.slot), r.to.phase ^ 1);
            o.template multiply<0, S::MT, O::STEPS>(acc, in, 0, 0, 0, [&]<int T>() {
                constexpr int I = T - S::MT;
                copies.template copy<I * C::PIECES / S::MT, (I + 1) * C::PIECES / S::MT>(c + 1, to,
                                                                                       more);
            });
            if (more) {
                cp_async_arrive(barrier_at(r.full, r.to.slot));
                r.to.next(STAGES);
            }
            o.template multiply<1, 0, O::STEPS>(acc, in, 0, 0, 0, no_copies());
            o.template multiply<2, 0, O::STEPS>(acc, in, 0, 0, 0, no_copies());
            r.now.next(STAGES);
            if (more)
                mbarrier_wait(barrier_at(r.full, r.now.slot), r.now.phase);
            /* Behind the last chunk this one's operands are loaded again, in vain. */
            const uint32_t next = (uint32_t)((more ? r.now.slot : slot) * R::STAGE);
            o.template multiply<3, 0, O::STEPS>(acc, in, w + next, s + next, x + next, no_copies());
            mbarrier_arrive_warp(barrier_at(r.empty, slot));
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
    extern __shared__ __align__(256) uint8_t shared[]; /* a column has 256 bytes (load_columns()) */
    __shared__ uint64_t full[STAGES], empty[STAGES];
    __shared__ struct pair_tiles tiling;
    __shared__ struct tile_rows<S> rows;
    pdl_wait_trigger();
    if (threadIdx.x < 32)
        tiling.make<S::COLS / TERMS>(a.m);
    if (threadIdx.x == 0) {
        init_ring(full, empty, STAGES, S::THREADS, S::THREADS / 32);
        mbarrier_init_fence();
    }
    __syncthreads();
    struct tile_ring ring = {shared_at(shared), shared_at(full), shared_at(empty)};
    struct tile_coord t = {(int)blockIdx.x};
    for (; tiling.locate(a.m, a.tiles_out, S::OUTS, t); t.tile += (int)gridDim.x) {
        float sum[S::MT][S::NT][4 / TERMS];
        rows.fetch(a, t);
        const pair_copier<TERMS, S> copies(a, t, shared_at(shared));
        multiply_tile<TERMS, S>(copies, ring, sum);
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
