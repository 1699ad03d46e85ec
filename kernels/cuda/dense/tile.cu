/* tile.cu - the tile kernel: products of bf16 matrices with 17 rows and more on GPUs without wgmma
 * (on Hopper: of verify rows of two terms).
 *
 * Large tiles serve many rows: their two sets of accumulators (of a k split, and of the splits
 * before) fill the registers of a multiprocessor. Smaller tiles serve few rows or few outputs, two
 * or three on a multiprocessor, and if there are still too few tiles, several blocks share a tile
 * (split-K): each accumulates some of the k splits and stores their partial sums to scratch. A
 * reduction kernel adds them (verify.cu), or the kernel that reads the sums next.
 *
 * A matrix quantized to FP8 is read in that form and converted to bf16 in registers (fp8.cuh).
 *
 * With GLU, every second output of a tile belongs to the up matrix, so that one thread has both
 * sums of an output.
 */
#include "kernels/cuda/base/ring.cuh"
#include "kernels/cuda/dense/fp8.cuh"
#include "kernels/cuda/dense/tile.cuh"

enum {
    STAGES = 4,
    GROUP = 8, /* tiles of rows that are processed together, so that they read the same weights
                  from L2 */
};

typedef tile_shape<4, 2, 6, 4, 1> large; /* 192 outputs, 128 columns */
typedef tile_shape<4, 2, 4, 2, 2> small; /* 128 outputs, 64 columns */
typedef tile_shape<2, 2, 4, 2, 3> tiny;  /* 64 outputs, 64 columns */

/* Whether blocks are persistent: each computes tile after tile, and copies the next tile's first
 * chunks before the epilogue of the tile at hand. Smaller tiles have other blocks on the
 * multiprocessor, which multiply during that time (results-h200.md, "Tiles of mma.sync, second
 * form"). */
template <class S> constexpr bool is_persistent = S::BLOCKS == 1;

struct tiled_product {
    struct product p;
    int begin[MAX_MATS]; /* a matrix's first output among all, with an even number for every
                            matrix */
    int all;             /* outputs of all matrices */
    int tiles_out, tiles_row;
    int k_blocks;             /* blocks that share a tile, each with some of the k splits */
    float *part;              /* the partial sums (partial_at()), if k_blocks > 1 */
    uint32_t scale[MAX_MATS]; /* FP8: each matrix's scale (fp8_factor()) */
};

#ifdef __CUDACC__

/* ---- tiles ---------------------------------------------------------------------------------- */

struct tile_origin {
    int mat, out, col; /* the tile's first output in the matrix, its first column */
};
template <class S>
__device__ __forceinline__ struct tile_origin origin_of(const tiled_product &a, int tile)
{
    struct tile_origin at = {};
    const int first = tile / (GROUP * a.tiles_out) * GROUP;
    const int width = min((int)GROUP, a.tiles_row - first), in = tile - first * a.tiles_out;
    const int t = in / width;
    at.col = (first + in % width) * S::COLS;
    while (!a.p.glu && at.mat + 1 < a.p.n_mats && t >= a.p.first[at.mat + 1])
        at.mat++;
    at.out = (t - a.p.first[at.mat]) * (a.p.glu ? S::OUTS / 2 : S::OUTS);
    return at;
}

/* v, of which the compiler then knows nothing: it keeps v in a register, instead of what v is
 * computed from. */
__device__ __forceinline__ uint32_t opaque(uint32_t v)
{
    asm volatile("" : "+r"(v));
    return v;
}

/* ---- copies --------------------------------------------------------------------------------- */

/* The place in a stage of an output's weights, counted in outputs. With GLU `out` is an output of
 * gate (mat 0) or up (mat 1). bf16: eight outputs of gate, then the same eight of up with their
 * halves exchanged, so that ldmatrix, which reads four of both, meets no bank conflict. FP8: an
 * output of gate, the same of up, and so on. */
template <int BYTES> __device__ __forceinline__ int place_of(bool glu, int out, int mat)
{
    if (!glu)
        return out;
    return BYTES == 1 ? 2 * out + mat : out / 8 * 16 + mat * 8 + (out % 8 ^ mat * 4);
}

/* A thread's pieces, of 16 bytes, of every stage of a tile. A stage has the weights as a panel has
 * a chunk's: first unit 0 of all outputs, and so on; with FP8 one output after the other.
 * Successive threads copy successive pieces of memory, because the time of a copy grows with the
 * lines that a warp touches (results-h200.md, "Tiles of mma.sync, second form"). With GLU the first
 * half of the threads copies gate's weights, the second half up's. */
template <int BYTES, class S> struct copier {
    /* Pieces of an output's chunk; of all weights, of all columns of a stage; of a thread. */
    static constexpr int WEIGHT_PIECES = (int)K_CHUNK * BYTES / 16, W = S::OUTS * WEIGHT_PIECES,
                         X = S::COLS * 4, EACH_W = (W + S::THREADS - 1) / S::THREADS,
                         EACH_X = X / S::THREADS, WEIGHTS_BYTES = W * 16,
                         STAGE = WEIGHTS_BYTES + X * 16, PIECES = EACH_W + EACH_X;
    static_assert(X % S::THREADS == 0);
    /* A piece of weights as one word: the low TO_BITS bits are its place in the stage, the others
     * its place in memory, in pieces from the tile's first panel on. */
    static constexpr int TO_BITS = 10;
    static_assert(W < 1 << TO_BITS);
    static_assert((S::OUTS + 2 * (int)PANEL_MAX_ROWS) * (PANEL_MAX_K / (int)K_CHUNK) *
                      WEIGHT_PIECES < 1 << (32 - TO_BITS));
    /* Of columns and outputs behind the last nothing is copied: what they give is not used, and
     * thousands of copies of the same line would wait for each other. */
    static constexpr uint32_t NOTHING = ~0u;
    const uint4 *weights, *columns;
    uint32_t w[EACH_W], x[EACH_X]; /* x: from columns, of the first chunk */
    uint32_t step;                 /* from a chunk of a panel to the next */
    const uint32_t to_w, to_x;
    struct ksplit c;
    int split, in, place; /* of the next chunk */
    __device__ __forceinline__ copier(uint32_t shared)
        : to_w(shared),
          to_x(opaque(shared + WEIGHTS_BYTES +
                      (uint32_t)piece_at<4>((int)threadIdx.x / 4, (int)threadIdx.x % 4)))
    {
    }
    /* Begins a tile. */
    __device__ __forceinline__ void begin(const tiled_product &a, const struct tile_origin &at,
                                          int first)
    {
        c = a.p.m[0].panels.ksplit, split = place = first, in = 0;
        const int tid = (int)threadIdx.x, cols = a.p.rows * a.p.x.terms;
        const bool glu = a.p.glu;
        const int threads = glu ? S::THREADS / 2 : S::THREADS, outs = glu ? S::OUTS / 2 : S::OUTS,
                  up = glu ? tid / threads : 0;
        const mat &m = a.p.m[glu ? up : at.mat];
        const struct panels &l = m.panels;
        const int panel = at.out / l.rows, from = at.out - panel * l.rows;
        const int head = min(l.rows - from, outs); /* outputs of the first panel */
        step = (uint32_t)(l.rows * WEIGHT_PIECES);
        weights = (const uint4 *)m.w + (size_t)panel * (size_t)l.ksplit.chunks * step;
        columns = (const uint4 *)a.p.x.x;
#pragma unroll
        for (int i = 0; i < EACH_W; i++) {
            /* Piece n, in the order of memory: of the panel `behind` the first one, whose outputs
             * in the tile are `some` from `out` on; the first of them is its row `row`. */
            int n = tid - up * threads + i * threads;
            int behind = 0, row = from, some = head, out = 0;
            if (n >= head * WEIGHT_PIECES) {
                n -= head * WEIGHT_PIECES;
                behind = n / (l.rows * WEIGHT_PIECES);
                n -= behind * (l.rows * WEIGHT_PIECES);
                out = head + behind * l.rows, some = min(l.rows, outs - out);
                behind++, row = 0;
            }
            const int unit = BYTES == 2 ? n / max(some, 1) : n % WEIGHT_PIECES;
            const int r = BYTES == 2 ? n - unit * some : n / WEIGHT_PIECES;
            const bool there = out + r < outs && panel + behind < l.n;
            const int to = place_of<BYTES>(glu, out + r, up);
            const uint32_t of =
                (uint32_t)(behind * l.ksplit.chunks) * step +
                (uint32_t)(BYTES == 2 ? unit * l.rows + row + r : (row + r) * WEIGHT_PIECES + unit);
            const int at_stage = BYTES == 2 ? unit * S::OUTS + to : to * WEIGHT_PIECES + unit;
            w[i] = there ? of << TO_BITS | (uint32_t)at_stage : NOTHING;
        }
#pragma unroll
        for (int i = 0; i < EACH_X; i++) {
            const int col = tid / 4 + i * (S::THREADS / 4);
            x[i] = at.col + col < cols ? (uint32_t)(at.col + col) * (uint32_t)(a.p.x.kp / 8) +
                                             (uint32_t)(tid % 4)
                                       : NOTHING;
        }
    }
    /* Copies pieces P .. END - 1 of the next chunk, if `there`, to the stage that begins `at` bytes
     * behind the first. */
    template <int P, int END> __device__ __forceinline__ void copy(uint32_t at, bool there) const
    {
        if constexpr (P < END) {
            if constexpr (P < EACH_W) {
                cp_async16_if(to_w + at + w[P] % (1 << TO_BITS) * 16,
                              weights + ((w[P] >> TO_BITS) + (uint32_t)place * step),
                              there && w[P] != NOTHING);
            } else {
                constexpr int X_PIECE = P - EACH_W;
                cp_async16_if(to_x + at + (uint32_t)(X_PIECE * S::THREADS * 16),
                              columns + (x[X_PIECE] + (uint32_t)(split * c.each + in) * 4),
                              there && x[X_PIECE] != NOTHING);
            }
            copy<P + 1, END>(at, there);
        }
    }
    __device__ __forceinline__ void next()
    {
        if (++in == (split == c.splits - 1 ? c.rest : c.each))
            place = ++split, in = 0;
        else
            place += in <= c.rest ? c.splits : c.splits - 1;
    }
};

/* ---- multiplication ------------------------------------------------------------------------- */

/* Where a lane's weights of its warp's outputs are, `first` the first of them, in a stage: of bf16
 * the output for which it gives ldmatrix the address. */
template <int BYTES, class S>
__device__ __forceinline__ uint32_t lane_weights(bool glu, int first, int lane)
{
    if (BYTES == 1)
        return (uint32_t)(first * K_CHUNK + lane * 8);
    static_assert(S::WARP_OUTS % 16 == 0);
    const int out = first + lane % 8 + lane / 16 * 8;
    return (uint32_t)((place_of<2>(glu, glu ? out / 2 : out, out % 2) + lane / 8 % 2 * S::OUTS) *
                      UNIT_BYTES);
}

/* A warp's operands in registers. A chunk is multiplied in two halves of 16 of k, a half in MT
 * steps of 16 columns. While a half is multiplied, the weights of the next half are loaded; while a
 * step is multiplied, the columns of the next step. */
template <int BYTES, class S> struct operands {
    static_assert(S::NT % 2 == 0);
    /* Weights of both halves; FP8: of the half at hand, which are made of the codes. */
    static constexpr int HALVES = BYTES == 2 ? 2 : 1;
    uint32_t weights[HALVES][S::NT][2], columns[2][4];
    uint2 codes[BYTES == 1 ? S::NT : 1]; /* FP8: of a chunk */

    /* Loads step I's part of the weights of half H from the chunk at w. */
    template <int H, int I> __device__ __forceinline__ void load_weights(uint32_t w)
    {
        if constexpr (BYTES == 2) {
#pragma unroll
            for (int j = I * 2; j < S::NT; j += S::MT * 2) {
                uint32_t v[4];
                ldmatrix_x4(v, w + (uint32_t)((H * 2 * S::OUTS + j * 8) * UNIT_BYTES));
                weights[H][j][0] = v[0], weights[H][j][1] = v[1];
                weights[H][j + 1][0] = v[2], weights[H][j + 1][1] = v[3];
            }
        } else if constexpr (H == 0 && I == 0) {
#pragma unroll
            for (int j = 0; j < S::NT; j++)
                codes[j] = shared8(w + (uint32_t)(j * 8 * K_CHUNK));
        }
    }
    template <int H> __device__ __forceinline__ void convert(uint32_t scale)
    {
#pragma unroll
        for (int j = 0; j < S::NT; j++) {
            const uint2 v = fp8_four(H == 0 ? codes[j].x : codes[j].y, scale);
            weights[0][j][0] = v.x, weights[0][j][1] = v.y;
        }
    }
    /* Loads the first operands of a tile. */
    template <int I = 0> __device__ __forceinline__ void begin(uint32_t w, uint32_t x)
    {
        if constexpr (I < S::MT) {
            load_weights<0, I>(w);
            begin<I + 1>(w, x);
        } else {
            ldmatrix_x4(columns[0], x);
        }
    }
    /* acc += columns * weights, half H of a chunk, from step I on. w: the chunk of the weights to
     * be loaded; x, x_next: the columns of this half and of the next one. Calls copy<I>() in each
     * step. */
    template <int H, int I = 0, class COPY>
    __device__ __forceinline__ void multiply(float (&acc)[S::MT][S::NT][4], uint32_t w, uint32_t x,
                                             uint32_t x_next, uint32_t scale, const COPY &copy)
    {
        if constexpr (I < S::MT) {
            constexpr int NOW = (H * S::MT + I) % 2;
            if constexpr (BYTES == 1 && I == 0)
                convert<H>(scale);
            ldmatrix_x4(columns[1 - NOW],
                        I + 1 < S::MT ? x + (uint32_t)((I + 1) * 16 * 64) : x_next);
            load_weights<1 - H, I>(w);
#pragma unroll
            for (int j = 0; j < S::NT; j++)
                mma_bf16(acc[I][j], columns[NOW], weights[H % HALVES][j][0],
                         weights[H % HALVES][j][1]);
            copy.template operator()<I>();
            multiply<H, I + 1>(acc, w, x, x_next, scale, copy);
        }
    }
};

/* ---- epilogue ------------------------------------------------------------------------------- */

/* What a thread has of a tile. */
struct share {
    int mat, out, row; /* its first output, the first row of its warp */
};

/* Stores two neighbouring outputs; pairs: both are there, and aligned. */
__device__ __forceinline__ void store_two(float *to, float y0, float y1, bool pairs, bool second)
{
    if (pairs) {
        *(float2 *)to = make_float2(y0, y1);
        return;
    }
    to[0] = y0;
    if (second)
        to[1] = y1;
}

/* The epilogue of bias and addition, which most products have. */
template <int TERMS, class S>
__device__ __forceinline__ void store_plain(const product &p, const struct share &t,
                                            const float (&sum)[S::MT][S::NT][4 / TERMS])
{
    const epilogue &f = p.f[t.mat];
    const bool aligned = ((size_t)f.dst | f.dst_stride * sizeof(float)) % 8 == 0;
    const bool biased = f.b.p, add = f.add;
    const int n = p.m[t.mat].n;
#pragma unroll
    for (int j = 0; j < S::NT; j++) {
        const int out = t.out + j * 8;
        const bool second = out + 1 < n, pairs = aligned && second;
        if (out >= n)
            break;
        const float b0 = biased ? weight_at(f.b, (size_t)out) : 0.f;
        const float b1 = biased && second ? weight_at(f.b, (size_t)(out + 1)) : 0.f;
        float2 old[S::MT][2 / TERMS];
        float *to[S::MT][2 / TERMS];
#pragma unroll
        for (int i = 0; i < S::MT; i++)
#pragma unroll
            for (int e = 0; e < 2 / TERMS; e++) {
                const int row = t.row + row_of<TERMS>(i, e);
                to[i][e] = f.dst + (size_t)row * f.dst_stride + (size_t)out;
                old[i][e] = make_float2(0, 0);
                if (add && row < p.rows && pairs)
                    old[i][e] = *(const float2 *)to[i][e];
                else if (add && row < p.rows)
                    old[i][e] = make_float2(to[i][e][0], second ? to[i][e][1] : 0.f);
            }
#pragma unroll
        for (int i = 0; i < S::MT; i++)
#pragma unroll
            for (int e = 0; e < 2 / TERMS; e++) {
                float y0 = sum[i][j][2 * e], y1 = sum[i][j][2 * e + 1];
                if (biased)
                    y0 += b0, y1 += b1;
                if (add)
                    y0 += old[i][e].x, y1 += old[i][e].y;
                if (t.row + row_of<TERMS>(i, e) < p.rows)
                    store_two(to[i][e], y0, y1, pairs, second);
            }
    }
}

/* Any other epilogue, in little code, with a copy of the sums that can be indexed by a variable. */
template <int TERMS, class S>
__device__ __forceinline__ void store_any(const product &p, const struct share &t,
                                          const float (&sum)[S::MT][S::NT][4 / TERMS])
{
    constexpr int EACH = 4 / TERMS;
    float copy[S::MT * S::NT * EACH];
#pragma unroll
    for (int i = 0; i < S::MT * S::NT * EACH; i++)
        copy[i] = sum[i / EACH / S::NT][i / EACH % S::NT][i % EACH];
#pragma unroll 1
    for (int i = 0; i < S::MT * S::NT * EACH; i++) {
        const int out = t.out + i / EACH % S::NT * 8 + i % 2;
        const int row = t.row + row_of<TERMS>(i / EACH / S::NT, i % EACH / 2);
        if (out < p.m[t.mat].n && row < p.rows)
            store_output(p.f[t.mat], apply_epilogue(p.f[t.mat], copy[i], out, row), out, row);
    }
}

/* GLU: stores the outputs as floats, or as terms into `packed`, `pitch` elements a column of the
 * warp's. */
template <int TERMS, class S, int ACT>
__device__ __forceinline__ void store_gated(const product &p, const struct share &t, int in,
                                            const float (&sum)[S::MT][S::NT][4 / TERMS],
                                            uint16_t *packed, int pitch)
{
#pragma unroll
    for (int i = 0; i < S::MT; i++)
#pragma unroll
        for (int j = 0; j < S::NT; j++)
#pragma unroll
            for (int e = 0; e < 2 / TERMS; e++) {
                const int r = row_of<TERMS>(i, e), out = t.out + j * 4;
                float y = activate(sum[i][j][2 * e], ACT) * sum[i][j][2 * e + 1];
                if (p.pack_to) {
#pragma unroll
                    for (int term = 0; term < TERMS; term++)
                        packed[(r * TERMS + term) * pitch + tile_place(in + j * 4)] =
                            split_term<bf16>(y);
                } else if (t.row + r < p.rows && out < p.m[0].n) {
                    p.f[0].dst[(size_t)(t.row + r) * p.f[0].dst_stride + (size_t)out] = y;
                }
            }
}

/* Stores the packed outputs of WARP_COLS columns of the tile, from its column `first` on, 16 bytes
 * a thread. */
template <int TERMS, class S>
__device__ __forceinline__ void store_packed(const product &p, const struct tile_origin &at,
                                             int first, const uint16_t *packed, int pitch)
{
    constexpr int PIECES = S::OUTS / 2 / 8;
    const int cols = min(p.rows * TERMS - at.col - first, S::WARP_COLS);
    const int pieces = min((p.m[0].n - at.out) / 8, PIECES);
    for (int i = (int)threadIdx.x; i < cols * PIECES; i += S::THREADS) {
        const int col = i / PIECES, piece = i % PIECES;
        if (piece < pieces)
            *(uint4 *)(p.pack_to + (size_t)(at.col + first + col) * (size_t)p.pack_as.kp +
                       (size_t)(at.out + piece * 8)) =
                *(const uint4 *)(packed + col * pitch + piece * 8);
    }
}

/* Elements of a column of packed outputs in shared memory. */
template <class S> constexpr int packed_pitch = S::OUTS / 2 + 8;

template <int TERMS, class S, int ACT>
__device__ __forceinline__ void finish_gated(const product &p, const struct tile_origin &at,
                                             const float (&sum)[S::MT][S::NT][4 / TERMS],
                                             uint16_t *packed)
{
    constexpr int PITCH = packed_pitch<S>;
    const int warp = (int)threadIdx.x / 32, col = warp % S::WARPS_COL * S::WARP_COLS;
    /* opaque: otherwise places are computed before the first tile, and spill. */
    const int in =
        (int)opaque((uint32_t)(warp / S::WARPS_COL * S::WARP_OUTS / 2) + threadIdx.x % 4);
    const struct share t = {0, at.out + in, (at.col + col) / TERMS};
    if (!p.pack_to) {
        store_gated<TERMS, S, ACT>(p, t, in, sum, packed, PITCH);
        return;
    }
#pragma unroll 1
    for (int first = 0; first < S::COLS; first += S::WARP_COLS) {
        __syncthreads(); /* no warp reads the stage, or the columns before */
        if (col == first)
            store_gated<TERMS, S, ACT>(p, t, in, sum, packed, PITCH);
        __syncthreads();
        store_packed<TERMS, S>(p, at, first, packed, PITCH);
    }
    __syncthreads(); /* chunks of the next tile replace the columns */
}

/* packed: a stage of the ring that nothing is copied to. */
template <int TERMS, class S>
__device__ __forceinline__ void finish_tile(const product &p, const struct tile_origin &at,
                                            const float (&sum)[S::MT][S::NT][4 / TERMS],
                                            uint16_t *packed)
{
    const int warp = (int)threadIdx.x / 32, q = (int)threadIdx.x % 4;
    const int col = warp % S::WARPS_COL * S::WARP_COLS, row = (at.col + col) / TERMS;
    if (!p.glu) {
        const struct share t = {at.mat, at.out + warp / S::WARPS_COL * S::WARP_OUTS + 2 * q, row};
        const epilogue &f = p.f[at.mat];
        if (f.act == ACT_NONE && f.softcap <= 0 && f.scale == 1 && !f.mul)
            store_plain<TERMS, S>(p, t, sum);
        else
            store_any<TERMS, S>(p, t, sum);
    } else if (p.glu_act == ACT_SILU) {
        finish_gated<TERMS, S, ACT_SILU>(p, at, sum, packed);
    } else if (p.glu_act == ACT_GELU_TANH) {
        finish_gated<TERMS, S, ACT_GELU_TANH>(p, at, sum, packed);
    } else {
        finish_gated<TERMS, S, ACT_NONE>(p, at, sum, packed);
    }
}

/* Stores the partial sums of a k split. */
template <int TERMS, class S>
__device__ __forceinline__ void store_partials(const tiled_product &a, const struct tile_origin &at,
                                               const float (&acc)[S::MT][S::NT][4], int split)
{
    const int warp = (int)threadIdx.x / 32, n = a.p.m[at.mat].n;
    const int out = at.out + warp / S::WARPS_COL * S::WARP_OUTS + (int)threadIdx.x % 4 * 2;
    const int first = (at.col + warp % S::WARPS_COL * S::WARP_COLS) / TERMS;
    float *part = a.part + (size_t)split * partial_floats(a.p.rows, a.all);
#pragma unroll
    for (int i = 0; i < S::MT; i++)
#pragma unroll
        for (int e = 0; e < 2 / TERMS; e++) {
            const int row = first + row_of<TERMS>(i, e);
#pragma unroll
            for (int j = 0; j < S::NT; j++) {
                const int o = out + j * 8;
                float2 v = make_float2(acc[i][j][2 * e], acc[i][j][2 * e + 1]);
                if (TERMS == 2)
                    v.x += acc[i][j][2], v.y += acc[i][j][3];
                if (o < n && row < a.p.rows) /* a matrix has room for an even number */
                    *(float2 *)(part + partial_at(a.p.rows, row, a.begin[at.mat] + o)) = v;
            }
        }
}

/* ---- the kernel ----------------------------------------------------------------------------- */

/* Copies a tile's first STAGES - 1 chunks of splits before `last`. Of chunks behind the last one
 * nothing is copied, here and in the loop below: their stages become full all the same, so that the
 * loop has no branch around a barrier. */
template <int BYTES, class S>
__device__ __forceinline__ void start_copies(copier<BYTES, S> &copies, int last, uint32_t full,
                                             uint32_t empty, ring_pos &to)
{
    using C = copier<BYTES, S>;
#pragma unroll 1
    for (int i = 0; i < STAGES - 1; i++) {
        const bool more = copies.split < last;
        mbarrier_wait(barrier_at(empty, to.slot), to.phase ^ 1);
        copies.template copy<0, C::PIECES>((uint32_t)(to.slot * C::STAGE), more);
        cp_async_arrive(barrier_at(full, to.slot));
        if (more)
            copies.next();
        to.next(STAGES);
    }
}

/* Releases the stages of chunks behind a tile's last one. */
__device__ __forceinline__ void skip_stages(uint32_t full, uint32_t empty, ring_pos &now)
{
#pragma unroll 1
    for (int i = 0; i < STAGES - 1; i++, now.next(STAGES)) {
        mbarrier_wait(barrier_at(full, now.slot), now.phase);
        mbarrier_arrive_warp(barrier_at(empty, now.slot));
    }
}

/* FP8: the scale of a lane's weights. */
template <class S> __device__ __forceinline__ uint32_t scale_of(const tiled_product &a, int tile)
{
    return a.scale[a.p.glu ? (int)threadIdx.x % 32 / 4 % 2 : origin_of<S>(a, tile).mat];
}

/* SPLIT: k_blocks > 1; never with GLU. */
template <int TERMS, int BYTES, class S, bool SPLIT>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS)
    tiled_product_kernel(const __grid_constant__ struct tiled_product a)
{
    using C = copier<BYTES, S>;
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ uint64_t barriers[2 * STAGES]; /* full, then empty */
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const struct ksplit c = a.p.m[0].panels.ksplit;
    const int each = SPLIT ? K_SPLITS / a.k_blocks : (int)K_SPLITS;
    const int first = (int)blockIdx.y * each, last = min(first + each, c.splits);
    if (SPLIT && first >= last) { /* absent splits are not reduced */
        pdl_wait_trigger();
        return;
    }
    const int col = warp % S::WARPS_COL * S::WARP_COLS + lane_column();
    const uint32_t w =
        opaque(shared_at(shared) +
               lane_weights<BYTES, S>(a.p.glu, warp / S::WARPS_COL * S::WARP_OUTS, lane));
    const uint32_t x = opaque(shared_at(shared) + C::WEIGHTS_BYTES +
                              (uint32_t)piece_at<4>(col, lane_piece()));
    const uint32_t full = opaque(shared_at(barriers)), empty = full + STAGES * 8;
    if (threadIdx.x == 0) {
        init_ring(barriers, barriers + STAGES, STAGES, S::THREADS, S::THREADS / 32);
        mbarrier_init_fence();
    }
    __syncthreads();
    struct ring_pos now = {}, to = {}; /* the stages multiplied from, and copied to, next */
    C copies(shared_at(shared));
    copies.begin(a, origin_of<S>(a, (int)blockIdx.x), first);
    pdl_wait_trigger();
    start_copies<BYTES, S>(copies, last, full, empty, to);
    int tile = (int)blockIdx.x;
#pragma unroll 1
    for (;;) {
        float acc[S::MT][S::NT][4], sum[S::MT][S::NT][4 / TERMS];
        operands<BYTES, S> o;
        const uint32_t scale = BYTES == 1 ? scale_of<S>(a, tile) : 0;
        mbarrier_wait(barrier_at(full, now.slot), now.phase);
        const uint32_t begin = (uint32_t)(now.slot * C::STAGE);
        o.begin(w + begin, x + begin);
        set_sums(sum, -0.f);
#pragma unroll 1
        for (int split = first; split < last; split++) {
            set_sums(acc, 0.f);
#pragma unroll 1
            for (int i = split == c.splits - 1 ? c.rest : c.each; i > 0; i--) {
                const int of = now.slot;
                const uint32_t in = (uint32_t)(of * C::STAGE);
                o.template multiply<0>(acc, w + in, x + in, (x ^ 32) + in, scale, no_copies());
                now.next(STAGES);
                /* Behind the tile's last chunk, what is in the stage is loaded in vain. */
                mbarrier_wait(barrier_at(empty, to.slot), to.phase ^ 1);
                mbarrier_wait(barrier_at(full, now.slot), now.phase);
                const uint32_t next = (uint32_t)(now.slot * C::STAGE);
                const bool more = copies.split < last;
                o.template multiply<1>(
                    acc, w + next, (x ^ 32) + in, x + next, scale, [&]<int I>() {
                        copies.template copy<I * C::PIECES / S::MT, (I + 1) * C::PIECES / S::MT>(
                            (uint32_t)(to.slot * C::STAGE), more);
                    });
                cp_async_arrive(barrier_at(full, to.slot));
                mbarrier_arrive_warp(barrier_at(empty, of));
                if (more)
                    copies.next();
                to.next(STAGES);
            }
            if constexpr (SPLIT)
                store_partials<TERMS, S>(a, origin_of<S>(a, tile), acc, split);
            else
                add_split<TERMS>(sum, acc);
        }
        const int next = tile + (int)gridDim.x;
        const bool more = is_persistent<S> && next < a.tiles_out * a.tiles_row;
        if constexpr (!SPLIT) {
            if (more) {
                skip_stages(full, empty, now);
                copies.begin(a, origin_of<S>(a, next), first);
                start_copies<BYTES, S>(copies, last, full, empty, to);
            }
            if (c.splits < K_SPLITS) { /* empty splits add zero: -0 becomes 0 */
                set_sums(acc, 0.f);
                add_split<TERMS>(sum, acc);
            }
            finish_tile<TERMS, S>(a.p, origin_of<S>(a, tile), sum,
                                  (uint16_t *)(shared + to.slot * C::STAGE));
        }
        if (!more)
            break;
        tile = next;
    }
}

#endif

/* ---- host ----------------------------------------------------------------------------------- */

static inline int paired(int n) { return (n + 1) / 2 * 2; }

/* Divides the outputs into tiles; returns their number. */
static int tiles_of(const struct product *p, int outs, int *first)
{
    int tiles = 0;
    for (int i = 0; i < p->n_mats; i++) {
        first[i] = tiles;
        if (!p->glu || i == 0)
            tiles += div_up(p->m[i].n, p->glu ? outs / 2 : outs);
    }
    return tiles;
}

template <int TERMS, int BYTES, class S, bool SPLIT>
static int run(struct kdev *d, const struct product *p, int k_blocks, bool defers)
{
    constexpr int SHARED = (int)STAGES * copier<BYTES, S>::STAGE;
    static_assert(S::WARP_COLS * packed_pitch<S> * 2 <= copier<BYTES, S>::STAGE);
    static_assert(SHARED <= 99 << 10, "every GPU has that much");
    static_assert(S::BLOCKS * (SHARED + 1024) <= 100 << 10, "of a multiprocessor, too");
    struct tiled_product a = {};
    a.p = *p;
    a.tiles_out = tiles_of(p, S::OUTS, a.p.first);
    a.tiles_row = div_up(p->rows * TERMS, S::COLS);
    a.k_blocks = k_blocks;
    for (int i = 0; i < p->n_mats; i++) {
        a.begin[i] = a.all, a.all += paired(p->m[i].n);
        if (BYTES == 1)
            a.scale[i] = fp8_factor(p->m[i].unit);
    }
    const int splits = SPLIT ? p->m[0].panels.ksplit.splits : 0;
    defers = defers && SPLIT && (p->row_epilogue.is_qkv || cuda_is_bare_store(&p->f[0]));
    if (defers)
        a.part = p->f[0].dst;
    else if (SPLIT)
        a.part =
            (float *)cuda_take(d, (size_t)splits * partial_floats(p->rows, a.all) * sizeof(float));
    const int tiles = a.tiles_out * a.tiles_row,
              blocks = is_persistent<S> ? min_int(tiles, d->gpu.n_sm) : tiles;
    cuda_launch(d, tiled_product_kernel<TERMS, BYTES, S, SPLIT>,
                dim3((unsigned)blocks, (unsigned)k_blocks), S::THREADS, (size_t)SHARED, a);
    if (SPLIT && !defers)
        cuda_reduce_splits(d, p, a.part, a.all, splits);
    return defers ? splits : 0;
}

/* The relative time of tiles of shape S, k_blocks blocks each, in mma instructions of a
 * multiprocessor. Memory delivers about MMA_BYTES to a multiprocessor while it executes one mma, on
 * GPUs from A100 to RTX. A block takes at least LATENCY for a chunk, during which the other blocks
 * of the multiprocessor work (measured). */
template <class S>
static double cost_of(const struct kdev *d, const struct product *p, int terms, int k_blocks)
{
    constexpr double MMA_BYTES = 30, REDUCE = 3500, LATENCY = 280;
    constexpr int BEGIN = 12; /* chunks that a tile costs before and after */
    int first[MAX_MATS];
    const int rows = div_up(p->rows * terms, S::COLS), tiles = tiles_of(p, S::OUTS, first) * rows;
    const double blocks = (double)(tiles * k_blocks) / d->gpu.n_sm, rounds = ceil(blocks);
    const double turns = ceil(blocks / S::BLOCKS);
    const double chunks = p->m[0].panels.ksplit.chunks / k_blocks + BEGIN;
    const double compute = S::OUTS * S::COLS / 64 * (S::BLOCKS == 1 ? 1 : 1.25);
    const double memory = S::OUTS * (int)K_CHUNK_BYTES / MMA_BYTES / rows;
    return chunks * fmax(turns * LATENCY, fmax(rounds * compute, blocks * memory)) +
           (k_blocks > 1 ? REDUCE : 0);
}

template <int TERMS, int BYTES>
static int choose(struct kdev *d, const struct product *p, bool splits, bool defers)
{
    int best = 1;
    double least = cost_of<tiny>(d, p, TERMS, 1);
    for (int k = 2; splits && k <= (int)K_SPLITS; k *= 2) {
        const double cost = cost_of<tiny>(d, p, TERMS, k);
        if (cost < least)
            least = cost, best = k;
    }
    const double of_large = cost_of<large>(d, p, TERMS, 1),
                 of_small = cost_of<small>(d, p, TERMS, 1);
    if (of_large <= least && of_large <= of_small)
        return run<TERMS, BYTES, large, false>(d, p, 1, defers);
    if (of_small <= least)
        return run<TERMS, BYTES, small, false>(d, p, 1, defers);
    return best > 1 ? run<TERMS, BYTES, tiny, true>(d, p, best, defers)
                    : run<TERMS, BYTES, tiny, false>(d, p, 1, defers);
}

int cuda_product_tile(struct kdev *d, const struct product *p, bool defers)
{
    bool fp8 = true, splits = !p->glu && p->rows <= MAX_VERIFY_ROWS;
    for (int i = 0; i < p->n_mats; i++) {
        fp8 &= p->m[i].fp8;
        splits &= p->m[i].panels.ksplit.chunks == p->m[0].panels.ksplit.chunks;
    }
    CHECK(!p->pack_to || (p->glu && p->pack_as.kind == ROW_TILED));
    if (p->x.terms == 2)
        return fp8 ? choose<2, 1>(d, p, splits, defers) : choose<2, 2>(d, p, splits, defers);
    return fp8 ? choose<1, 1>(d, p, splits, defers) : choose<1, 2>(d, p, splits, defers);
}
