/* round.cuh - one round of decode attention (decode.cu): the shape of a thread block and its shared
 * memory, how a round's cells are copied, the queries, and a round's scores, softmax and weighted
 * values.
 *
 * A round is up to G successive tiles of keys, which the warps of a block share. Two warps score a
 * tile, each half of its keys. Then each warp adds the weighted values of the whole round, for its
 * part of the dimensions. So the tiles of a round, whose sums follow each other (in the order that
 * tile.cu defines), go through the softmax at the same time. Heads of 512 dimensions have more
 * warps than score: a score is one chain of products, which more warps do not shorten, but they
 * share copies and values.
 *
 * Always true:
 *   - Scores, maxima, weights and sums have the bits that the functions of tile.cuh compute: the
 *     steps of a score, the half tiles of a sum of weights and the tiles of a segment are added in
 *     the same order.
 *   - A round has four barriers, which are in walk_rounds() (decode.cu). From the first to the
 *     second, warps read queries and keys and store maxima; up to the third they read maxima and
 *     store weights, sums of weights, and factors that rescale the sums so far; up to the fourth
 *     they read these and the values. The copies of the next keys start after the second barrier,
 *     those of the next values after the fourth.
 *   - For a key without a cell (cell_of() is -1), zeros are copied. mask() sets the score of a key
 *     that a row does not see to -inf.
 *   - FP8: shared memory holds the codes. The warp that multiplies a code widens it in registers,
 *     between ldmatrix and mma.sync.
 */
#pragma once

#include "kernels/cuda/attention/combine.cuh"

/* ---- shape of a block ----------------------------------------------------------------------- */

/* MI * 16 packed rows, rounds of G tiles. WHOLE: a block walks all keys of its rows; else blocks
 * share the keys and send segments to each other. FP8: of the cells. Shared memory holds their
 * codes, which are widened between ldmatrix and the product; so twice as many keys fit (DEPTH). */
template <int HD_, int MI_, int G_, int BLOCKS_, bool WHOLE_, bool FP8_> struct round_config {
    enum : int {
        HD = HD_, MI = MI_, G = G_, BLOCKS = BLOCKS_,
        SCORERS = 2 * G,            /* warps of which each scores half a tile */
        WARPS = HD > 256 ? 8 : SCORERS,
        WN = 1,                     /* a warp's sums run over all keys */
        LG = 2,
        WHOLE = WHOLE_, WGMMA = 0, FP8 = FP8_, CODES = FP8_,
        /* Rounds that are walked or being copied; 32 packed rows have few rounds, and on some GPUs
         * no room for two, unless heads are of 512. */
        DEPTH = FP8 && (MI == 1 || HD > 256) ? 2 : 1,
        NT = 32 * WARPS,
        ROWS = 16 * MI,
        TK = HD > 128 ? 32 : 64,
        KEYS = G * TK,              /* keys of a round */
        CHUNKS = HD / 8,            /* chunks of 16 bytes of a query */
        KEY_BYTES = FP8 ? HD : 2 * HD, /* of K, and of V */
        CELL_PARTS = KEY_BYTES / 16,     /* parts of 16 bytes of a key */
        EACH = KEYS * CELL_PARTS / NT,   /* parts of K that a thread fetches; as many of V */
        STEP = NT / CELL_PARTS,          /* keys between two of its parts */
        KT = KEYS / 8 / SCORERS,    /* n8 tiles of keys of a warp */
        DT = HD / 8 / WARPS,        /* n8 tiles of dimensions of a warp */
        V_AT = KEYS * KEY_BYTES,
        ROUND_BYTES = 2 * V_AT,
        Q_AT = DEPTH * ROUND_BYTES,
        P_AT = Q_AT + ROWS * HD * 2,
        MAXIMA_AT = P_AT + ROWS * KEYS * 2,
        L_AT = MAXIMA_AT + SCORERS * ROWS * 4,
        RUN_AT = L_AT + SCORERS * ROWS * 16,
        CELL_AT = RUN_AT + G * ROWS * 8, /* cells of DEPTH + 1 rounds and of a tree part */
        /* Keys of a tree part beside a round; heads of 512 have no room for them. */
        TREE_AHEAD = !WHOLE && BLOCKS == 1 && HD <= 256 ? 2 * TK : 0,
        SCALE_AT = CELL_AT + (DEPTH + 2) * KEYS * 4, /* words with the scale of K, and of V */
        FACTOR_AT = SCALE_AT + (FP8 ? (DEPTH + (TREE_AHEAD > 0)) * 2 * KEYS * 4 : 0),
        TOTAL_AT = FACTOR_AT + (FP8 ? 2 * KEYS * 2 : 0),
        /* Of a thread's combined sums those without a register, in shared memory, and the
         * others. */
        SPARED = WHOLE && MI == 2 && G == 2 ? 16 : 0,
        REG_TOTALS = MI * DT * 4 - SPARED,
        BYTES = TOTAL_AT + SPARED * NT * 4,
        TREE_AHEAD_AT = (BYTES + 127) / 128 * 128,
        TREE_AHEAD_BYTES = TREE_AHEAD_AT + 2 * TREE_AHEAD * KEY_BYTES,
    };
    static_assert(KEYS <= NT && ROWS <= 32 && (int)TREE_KEYS < (int)TK);
};

/* ---- cells ---------------------------------------------------------------------------------- */

/* The cell of this thread's key in the round that begins with `tile`. */
template <class S>
__device__ __forceinline__ int look_up_round(const tile_args &t, const cell_lookup &c, int kv,
                                             int tile)
{
    int key = (int)threadIdx.x;
    return key < S::KEYS ? cell_of<S::FP8>(t, c, kv, tile * S::TK + key) : -1;
}

/* Stores a cell so that the keys that a thread fetches are adjacent. */
template <class S> __device__ __forceinline__ void store_round(int *to, int cell)
{
    int key = (int)threadIdx.x;
    if (key < S::KEYS)
        to[key % S::STEP * S::EACH + key / S::STEP] = cell;
}

/* Where 16 bytes of a key are among the keys of a round: in any eight successive keys the same part
 * lies in eight different parts of a line. turn: the key, or one that is a multiple of 8 away. */
template <class S> __device__ __forceinline__ uint32_t part_at(int key, int part, int turn)
{
    turn = S::KEY_BYTES == 64 ? turn >> 1 & 3 : turn & 7;
    return (uint32_t)(key * S::KEY_BYTES + ((part ^ turn) << 4));
}

/* The keys and values of a round in shared memory; FP8: and the words with their scales. */
struct kv_buffers {
    uint32_t k, v, k_scales, v_scales;
};
/* turn: of round % DEPTH; DEPTH: of the tree part that is copied ahead. */
template <class S> __device__ __forceinline__ kv_buffers buffers_of(const place<S> &p, int turn)
{
    const bool ahead = turn == S::DEPTH;
    const uint32_t at = p.base + (ahead ? (uint32_t)S::TREE_AHEAD_AT
                                        : (uint32_t)turn * (uint32_t)S::ROUND_BYTES);
    const uint32_t scales = p.base + (uint32_t)(S::SCALE_AT + turn * 2 * S::KEYS * 4);
    return {at, at + (ahead ? (uint32_t)(S::TREE_AHEAD * S::KEY_BYTES) : (uint32_t)S::V_AT),
            scales, scales + S::KEYS * 4};
}

/* Starts the copies of the words that hold the scales of keys [a, b), one key a thread. */
template <class S>
__device__ __forceinline__ void fetch_scales(const tile_args &t, int kv, const void *from,
                                             const int *cells, int a, int b, uint32_t to)
{
    const int key = (int)threadIdx.x;
    if (key >= S::KEYS || (unsigned)(key - a) >= (unsigned)(b - a))
        return;
    const int cell = cells[key % S::STEP * S::EACH + key / S::STEP];
    const char *x = (const char *)from + t.a.n_kv * S::HD + (kv & ~3);
    cp_async4(to + (uint32_t)key * 4,
              x + (size_t)(unsigned)max(cell, 0) * (unsigned)t.a.cell_bytes, cell);
}

/* Starts the copies of keys [a, b) of a round, of K or V. Issuing the copies takes most of the
 * time, so little is computed for each. */
template <class S>
__device__ __forceinline__ void fetch_round(const tile_args &t, int kv, const void *from,
                                            const int *cells, int a, int b, uint32_t to,
                                            uint32_t scales)
{
    constexpr int N = S::EACH < 4 ? S::EACH : 4; /* cells read together */
    const int first = (int)threadIdx.x / S::CELL_PARTS, part = (int)threadIdx.x % S::CELL_PARTS;
    const char *x = part_of<S>(from, kv, part);
    asm volatile("" : "+l"(x)); /* from here on one addition for each chunk */
#pragma unroll 1
    for (int i = 0; i < S::EACH; i += N) {
        int cell[N];
        read_cells<N>(cells + first * S::EACH + i, cell);
#pragma unroll
        for (int j = 0; j < N; j++) {
            const int key = first + (i + j) * S::STEP;
            if ((unsigned)(key - a) < (unsigned)(b - a))
                copy_part<S>(t, to + part_at<S>(key, part, S::STEP % 8 ? key : first), x, 0,
                             cell[j]);
        }
    }
    if constexpr (S::FP8)
        fetch_scales<S>(t, kv, from, cells, a, b, scales);
}

/* Starts the copies of keys [a, b) of a round, of K and then of V. */
template <class S>
__device__ __forceinline__ void fetch_both(const tile_args &t, int kv, const int *cells, int a,
                                           int b, const kv_buffers &to, bool commits)
{
#pragma unroll 1
    for (int side = 0; side < 2; side++) {
        fetch_round<S>(t, kv, side ? t.a.v : t.a.k, cells, a, b, side ? to.v : to.k,
                       side ? to.v_scales : to.k_scales);
        if (commits && !side)
            cp_async_commit();
    }
}

template <class S> __device__ __forceinline__ uint32_t factors_at(bool v)
{
    return (uint32_t)(S::FACTOR_AT + (v ? S::KEYS * 2 : 0));
}

/* Barrier after which all have what each thread has fetched of K or V, which has arrived. FP8:
 * stores the bf16 that the scales of n keys stand for. Returns whether one of these is at least
 * FP8_CELL_FAR. */
template <class S>
__device__ __forceinline__ bool round_arrived(const place<S> &p, int n, uint32_t scales, bool v)
{
    if constexpr (!S::FP8) {
        __syncthreads();
        return false;
    } else {
        const int key = (int)threadIdx.x;
        bool far = false;
        if (key < n && key < S::KEYS) {
            const uint32_t scale = shared1(scales + (uint32_t)key * 4 + (uint32_t)(p.kv & 3));
            far = scale >= FP8_CELL_FAR;
            *(uint16_t *)(p.shared + factors_at<S>(v) + key * 2) =
                (uint16_t)fp8_cell_factor(scale);
        }
        return __syncthreads_or(far);
    }
}

/* ---- queries -------------------------------------------------------------------------------- */

template <class S> __device__ __forceinline__ uint32_t query_at(int row, int chunk)
{
    return (uint32_t)(S::Q_AT + row * S::HD * 2 + ((chunk ^ (row & 7)) << 4));
}

/* Chunks of the queries that a thread has at once: their addresses, and their values in float32. */
template <class S> struct queries {
    enum {
        ALL = (S::ROWS * S::CHUNKS + S::NT - 1) / S::NT, /* chunks of a thread */
        N = ALL < 4 ? ALL : 4,                           /* more at once would lack registers */
    };
    static_assert(ALL % N == 0);
    const float4 *from[N]; /* NULL: packed row without a row */
    float4 x[N][2];
};

/* first: of a thread's chunks, here and in store_queries(). */
template <class S>
__device__ __forceinline__ void find_queries(const tile_args &t, const place<S> &p, int first,
                                             queries<S> &q)
{
#pragma unroll
    for (int n = 0; n < queries<S>::N; n++) {
        const int i = (int)threadIdx.x + (first + n) * S::NT;
        const int row = i / S::CHUNKS, r = row_of(t, row);
        const int head = (p.r0 + r) * t.a.n_head + p.kv * t.a.group + row - r * t.a.group;
        q.from[n] = (const float4 *)(t.a.q + (size_t)head * S::HD) + 2 * (i % S::CHUNKS);
        if (r >= p.n)
            q.from[n] = NULL;
        asm volatile("" : "+l"(q.from[n])); /* computes the address before the wait */
    }
}

template <class S> __device__ __forceinline__ void load_queries(queries<S> &q)
{
#pragma unroll
    for (int n = 0; n < queries<S>::N; n++) {
        q.x[n][0] = q.x[n][1] = {0, 0, 0, 0};
        if (q.from[n])
            q.x[n][0] = __ldcg(q.from[n]), q.x[n][1] = __ldcg(q.from[n] + 1);
    }
}

template <class S>
__device__ __forceinline__ void store_queries(const place<S> &p, int first, const queries<S> &q)
{
#pragma unroll
    for (int n = 0; n < queries<S>::N; n++) {
        const int i = (int)threadIdx.x + (first + n) * S::NT;
        const int row = i / S::CHUNKS, chunk = i % S::CHUNKS;
        const float4 x = q.x[n][0], y = q.x[n][1];
        if (i >= S::ROWS * S::CHUNKS)
            continue;
        if constexpr (S::CODES && CODES_IN_ANY_ORDER) { /* as fp8_cell_four() places keys */
            unsigned char *even = p.shared + query_at<S>(row, chunk & ~1) + chunk % 2 * 8;
            unsigned char *odd = p.shared + query_at<S>(row, chunk | 1) + chunk % 2 * 8;
            *(uint2 *)even = make_uint2(bf16_two(x.x, x.z), bf16_two(y.x, y.z));
            *(uint2 *)odd = make_uint2(bf16_two(x.y, x.w), bf16_two(y.y, y.w));
        } else {
            *(uint4 *)(p.shared + query_at<S>(row, chunk)) = make_uint4(
                bf16_two(x.x, x.y), bf16_two(x.z, x.w), bf16_two(y.x, y.y), bf16_two(y.z, y.w));
        }
    }
}

/* ---- scores --------------------------------------------------------------------------------- */

/* Addresses of a lane's query and key rows for ldmatrix, for each step of 16 dimensions; they
 * repeat every four steps, STEPS_APART bytes further on. */
enum { STEPS_APART = 4 * 32 };
struct step_places {
    uint32_t q[4], k[4];
};

template <class S>
__device__ __forceinline__ step_places step_places_of(const place<S> &p, uint32_t keys)
{
    step_places at;
    const int key = p.wn * S::KT * 8 + p.lane % 8 + p.lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const int chunk = 2 * k + p.lane / 8 % 2;
        at.q[k] = p.base + query_at<S>(p.lane % 16, 2 * k + p.lane / 16);
        at.k[k] = keys + part_at<S>(key, chunk, key);
    }
    return at;
}

template <class S> __device__ __forceinline__ void clear_scores(float (&s)[S::MI][S::KT][4])
{
#pragma unroll
    for (int mi = 0; mi < S::MI; mi++)
#pragma unroll
        for (int n = 0; n < S::KT; n++)
            s[mi][n][0] = s[mi][n][1] = s[mi][n][2] = s[mi][n][3] = 0;
}

/* The operands of a step: queries and this warp's keys. */
template <class S> struct step_parts {
    uint32_t a[S::MI][4], b[S::KT / 2][4];
};

template <class S>
__device__ __forceinline__ void load_step(const step_places &at, int k, step_parts<S> &x)
{
    constexpr uint32_t SIXTEEN = 16 * S::HD * 2; /* rows */
    const uint32_t on = (uint32_t)(k / 4 * STEPS_APART);
#pragma unroll
    for (int mi = 0; mi < S::MI; mi++)
        ldmatrix_x4(x.a[mi], at.q[k % 4] + on + (uint32_t)mi * SIXTEEN);
#pragma unroll
    for (int n = 0; n < S::KT / 2; n++)
        ldmatrix_x4(x.b[n], at.k[k % 4] + on + (uint32_t)n * SIXTEEN);
}

/* s = q k for this warp's keys, which begin at address `keys`; sums in the order of score_tile(). A
 * step is loaded while the one before is multiplied. */
template <class S>
__device__ __forceinline__ void score_round(const place<S> &p, uint32_t keys,
                                            float (&s)[S::MI][S::KT][4])
{
    constexpr int STEPS = S::HD / 16;
    const step_places at = step_places_of<S>(p, keys);
    step_parts<S> x[2];
    clear_scores<S>(s);
    load_step<S>(at, 0, x[0]);
#pragma unroll
    for (int k = 0; k < STEPS; k++) {
        if (k + 1 < STEPS)
            load_step<S>(at, k + 1, x[(k + 1) % 2]);
        const step_parts<S> &now = x[k % 2];
#pragma unroll
        for (int n = 0; n < S::KT / 2; n++)
#pragma unroll
            for (int mi = 0; mi < S::MI; mi++) {
                mma_bf16(s[mi][2 * n], now.a[mi], now.b[n][0], now.b[n][1]);
                mma_bf16(s[mi][2 * n + 1], now.a[mi], now.b[n][2], now.b[n][3]);
            }
    }
}

/* The factors (fp8_cell_factor()) of one key, or of two. FAR: see fp8_cell_pair(). */
template <bool FAR> __device__ __forceinline__ uint32_t factor_of_key(uint32_t at)
{
    const uint32_t x = shared2(at);
    return fp8_cell_by<FAR>(x | x << 16);
}
template <bool FAR> __device__ __forceinline__ uint32_t factor_of_keys(uint32_t at)
{
    return fp8_cell_by<FAR>(shared4(at));
}

/* The operands of two steps: queries and the codes of this warp's keys. */
template <class S> struct code_parts {
    uint32_t a[2][S::MI][4], b[S::KT / 2][4];
};

template <class S>
__device__ __forceinline__ void load_codes(const step_places &at, int k, code_parts<S> &x)
{
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int mi = 0; mi < S::MI; mi++)
            ldmatrix_x4(x.a[i][mi], at.q[(2 * k + i) % 4] +
                                        (uint32_t)((2 * k + i) / 4 * STEPS_APART) +
                                        (uint32_t)(mi * 16 * S::HD * 2));
#pragma unroll
    for (int n = 0; n < S::KT / 2; n++)
        ldmatrix_x4(x.b[n], at.k[k % 4] + (uint32_t)(k / 4 * STEPS_APART) +
                                (uint32_t)(n * 16 * S::KEY_BYTES));
}

/* score_round() of codes. 16 bytes of a key are a step, so ldmatrix loads two steps at once. */
template <class S, bool FAR>
__device__ __forceinline__ void score_codes(const place<S> &p, uint32_t keys,
                                            float (&s)[S::MI][S::KT][4])
{
    constexpr int PAIRS = S::HD / 32;
    const step_places at = step_places_of<S>(p, keys);
    const uint32_t factors =
        p.base + factors_at<S>(false) + (uint32_t)(p.wn * S::KT * 8 + p.lane / 4) * 2;
    uint32_t by[S::KT];
    code_parts<S> x[2];
#pragma unroll
    for (int n = 0; n < S::KT; n++)
        by[n] = factor_of_key<FAR>(factors + (uint32_t)n * 16);
    clear_scores<S>(s);
    load_codes<S>(at, 0, x[0]);
#pragma unroll
    for (int k = 0; k < PAIRS; k++) {
        if (k + 1 < PAIRS)
            load_codes<S>(at, k + 1, x[(k + 1) % 2]);
        const code_parts<S> &now = x[k % 2];
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int n = 0; n < S::KT; n++) {
                const uint2 b = fp8_cell_four<FAR>(now.b[n / 2][n % 2 * 2 + i], by[n]);
#pragma unroll
                for (int mi = 0; mi < S::MI; mi++)
                    mma_bf16(s[mi][n], now.a[i][mi], b.x, b.y);
            }
    }
}

/* ---- softmax -------------------------------------------------------------------------------- */

/* Stores the largest score of each packed row among this warp's keys. */
template <class S>
__device__ __forceinline__ void store_maxima(const place<S> &p, const float (&s)[S::MI][S::KT][4])
{
    float *top = (float *)(p.shared + S::MAXIMA_AT) + p.wn * S::ROWS;
#pragma unroll
    for (int mi = 0; mi < S::MI; mi++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float m = largest_score<S>(s[mi], h);
            if (p.lane % 4 == 0)
                top[packed_row<S>(p, mi, h)] = m;
        }
}

/* The running maxima m of packed rows at tile `own` of the round that begins with tile k, and the
 * maxima before that tile (was). ENDS: segments may end before it. */
template <class S, bool ENDS>
__device__ __forceinline__ void running_maxima(const place<S> &p, int k, int own,
                                               const extent<S> &e, float (&m)[S::MI][2],
                                               float (&was)[S::MI][2])
{
    const float *tops = (const float *)(p.shared + S::MAXIMA_AT) + packed_row<S>(p, 0, 0);
    extent<S> now = e;
#pragma unroll 1
    for (int g = 0; g <= own; g++, tops += 2 * S::ROWS) {
        float top[S::MI][2];
#pragma unroll
        for (int mi = 0; mi < S::MI; mi++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                top[mi][h] = fmaxf(tops[mi * 16 + h * 8], tops[S::ROWS + mi * 16 + h * 8]);
#pragma unroll
        for (int mi = 0; mi < S::MI; mi++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                if (ENDS && k + g == now.ends[mi][h]) {
                    m[mi][h] = -INFINITY;
                    now.ends[mi][h] =
                        next_end<S::TK>(p.rows[p.row[mi][h]], k + g, now.stop[mi][h]);
                }
                was[mi][h] = m[mi][h];
                m[mi][h] = fmaxf(m[mi][h], top[mi][h]);
            }
    }
}

/* Whether a segment of this thread's packed rows ends before tile `to`. */
template <class S> __device__ __forceinline__ bool ends_within(const extent<S> &e, int to)
{
    int first = INT_MAX;
#pragma unroll
    for (int mi = 0; mi < S::MI; mi++)
        first = min(first, min(e.ends[mi][0], e.ends[mi][1]));
    return first < to;
}

/* Where the weights of a packed row and 8 keys are: in any eight successive rows the same chunk
 * lies in eight different parts of a line. A round of 32 keys has four chunks. */
template <class S> __device__ __forceinline__ int weight_at(int row, int chunk)
{
    const int turn = S::KEYS == 32 ? row >> 1 & 3 : row & 7;
    return S::P_AT + row * S::KEYS * 2 + ((chunk ^ turn) << 4);
}

/* Writes to shared memory: this warp's weights, their sums over its half tile, and for each packed
 * row the factor that rescales the sums before the tile, and the running maximum of the tile. */
template <class S>
__device__ __forceinline__ void softmax_round(const tile_args &t, const place<S> &p, int k,
                                              const extent<S> &e, const sums<S> &x,
                                              const float (&s)[S::MI][S::KT][4])
{
    float *sum = (float *)(p.shared + S::L_AT);
    float2 *run = (float2 *)(p.shared + S::RUN_AT);
    const int own = p.wn / 2;
    float m[S::MI][2], was[S::MI][2];
#pragma unroll
    for (int mi = 0; mi < S::MI; mi++)
        m[mi][0] = x.m[mi][0], m[mi][1] = x.m[mi][1];
    if (__any_sync(~0u, ends_within<S>(e, k + own + 1)))
        running_maxima<S, true>(p, k, own, e, m, was);
    else
        running_maxima<S, false>(p, k, own, e, m, was);
#pragma unroll
    for (int mi = 0; mi < S::MI; mi++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int row = packed_row<S>(p, mi, h);
            const float at = m[mi][h] == -INFINITY ? 0.f : m[mi][h] * t.factor;
            float l = 0;
#pragma unroll
            for (int n = 0; n < S::KT; n++) {
                float u = exp2_approx(fmaf(s[mi][n][2 * h], t.factor, -at));
                float v = exp2_approx(fmaf(s[mi][n][2 * h + 1], t.factor, -at));
                l += u;
                l += v;
                *(uint32_t *)(p.shared + weight_at<S>(row, p.wn * S::KT + n) + p.lane % 4 * 4) =
                    bf16_two(u, v);
            }
            sum[(p.wn * S::ROWS + row) * 4 + p.lane % 4] = l;
            const float by = exp2_approx((was[mi][h] - m[mi][h]) * t.factor);
            if (p.wn % 2 == 0 && p.lane % 4 == 0)
                run[own * S::ROWS + row] =
                    make_float2(was[mi][h] == m[mi][h] ? 1.f : by, m[mi][h]);
        }
}

/* ---- weighted values ------------------------------------------------------------------------ */

/* A warp's values of a tile, as ldmatrix.trans loads them. Of codes, ldmatrix.trans takes pairs of
 * successive dimensions for numbers, so 16 dimensions are loaded at once: the n8 tile of the even
 * ones and that of the odd ones (dim_at()). A warp with one n8 tile shares them with its
 * neighbour. A warp with many sums loads one half of its dimensions after the other. */
template <class S> struct tile_values {
    enum {
        HALVES = S::WHOLE && S::MI * S::DT > 8 ? 2 : 1, /* one would lack registers */
        DT = S::DT / HALVES,                /* n8 tiles of dimensions of a half */
        N = S::CODES ? (DT + 1) / 2 : (int)DT,
    };
    uint32_t v[S::TK / 32][N][4];
};

template <class S>
__device__ __forceinline__ void load_values(const place<S> &p, uint32_t values, int g, int half,
                                            tile_values<S> &x)
{
    const int first = p.wn * S::DT + half * tile_values<S>::DT;
#pragma unroll
    for (int k = 0; k < S::TK / 32; k++)
#pragma unroll
        for (int n = 0; n < tile_values<S>::N; n++) {
            const int key = g * S::TK + k * 32 + p.lane;
            const int part = (S::CODES ? first / 2 : first) + n;
            ldmatrix_x4_trans(x.v[k][n], values + part_at<S>(key, part, key));
        }
}

/* acc += weights v, for a half of the dimensions */
template <class S, bool FAR>
__device__ __forceinline__ void add_products(const place<S> &p, int g, int half,
                                             const uint32_t (&w)[S::MI][S::TK / 16][4],
                                             const tile_values<S> &x, sums<S> &to)
{
    constexpr int DT = tile_values<S>::DT;
    if constexpr (!S::CODES) {
#pragma unroll
        for (int mi = 0; mi < S::MI; mi++)
#pragma unroll
            for (int k = 0; k < S::TK / 16; k++)
#pragma unroll
                for (int n = 0; n < DT; n++)
                    mma_bf16(to.acc[mi][half * DT + n], w[mi][k], x.v[k / 2][n][k % 2 * 2],
                             x.v[k / 2][n][k % 2 * 2 + 1]);
    } else {
        const uint32_t factors =
            p.base + factors_at<S>(true) + (uint32_t)(g * S::TK + p.lane % 4 * 2) * 2;
        const int up = S::DT == 1 && p.wn % 2 ? 0 : 8; /* bits: even dimensions become high bytes */
#pragma unroll
        for (int k = 0; k < S::TK / 16; k++) {
            const uint32_t by[2] = {factor_of_keys<FAR>(factors + (uint32_t)k * 32),
                                    factor_of_keys<FAR>(factors + (uint32_t)k * 32 + 16)};
#pragma unroll
            for (int n = 0; n < DT; n++) {
                uint32_t b[2];
#pragma unroll
                for (int i = 0; i < 2; i++)
                    b[i] = fp8_cell_pair<FAR>(x.v[k / 2][n / 2][k % 2 * 2 + i] << (n % 2 ? 0 : up),
                                              by[i]);
#pragma unroll
                for (int mi = 0; mi < S::MI; mi++)
                    mma_bf16(to.acc[mi][half * DT + n], w[mi][k], b[0], b[1]);
            }
        }
    }
}

/* Adds tile g of the round, whose values begin at address `values`, to the sums. All loads from
 * shared memory (of a half) are issued before the first is used: waiting for one takes as long as
 * two MMAs. */
template <class S>
__device__ __forceinline__ void add_tile(const place<S> &p, uint32_t values, int g, bool far,
                                         sums<S> &x)
{
    const float *sum = (const float *)(p.shared + S::L_AT) + p.lane % 4;
    const float2 *run = (const float2 *)(p.shared + S::RUN_AT) + g * S::ROWS;
    uint32_t w[S::MI][S::TK / 16][4];
    tile_values<S> v;
#pragma unroll
    for (int mi = 0; mi < S::MI; mi++)
#pragma unroll
        for (int k = 0; k < S::TK / 16; k++) {
            const int row = mi * 16 + p.lane % 16, chunk = g * S::TK / 8 + 2 * k + p.lane / 16;
            ldmatrix_x4(w[mi][k], p.base + (uint32_t)weight_at<S>(row, chunk));
        }
    load_values<S>(p, values, g, 0, v);
#pragma unroll
    for (int mi = 0; mi < S::MI; mi++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int row = packed_row<S>(p, mi, h);
            const float2 r = run[row];
            x.m[mi][h] = r.y;
#pragma unroll
            for (int i = 0; i < 2; i++)
                x.l[mi][h][i] = fmaf(x.l[mi][h][i], r.x, sum[((2 * g + i) * S::ROWS + row) * 4]);
#pragma unroll
            for (int n = 0; n < S::DT; n++)
                x.acc[mi][n][2 * h] *= r.x, x.acc[mi][n][2 * h + 1] *= r.x;
        }
#pragma unroll
    for (int half = 0; half < tile_values<S>::HALVES; half++) {
        if (half)
            load_values<S>(p, values, g, half, v);
        if (S::CODES && far)
            add_products<S, true>(p, g, half, w, v, x);
        else
            add_products<S, false>(p, g, half, w, v, x);
    }
}
