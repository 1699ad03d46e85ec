/* one_stream.cu - a decode step of gemma-3-1b and 270m (made-up weights) as one persistent kernel:
 * what a step takes if the stream of weights never ends (results-h200.md, "The account of a step").
 *   nvcc -std=c++20 -O3 -fmad=false -I. -gencode arch=compute_90a,code=sm_90a -DHAVE_CUDA=1 \
 *        tests/bench/one_stream.cu -o one_stream && ./one_stream
 * Needs a GPU of compute capability 9.0 with 132 multiprocessors. Not a part of the program.
 *
 * Every multiprocessor has one block. Its producer warp copies the block's weights of all products,
 * of all layers and of the lm_head, in their order into a ring of slots, which does not drain
 * between products. The cells that attention reads are in the same list. Eight consumer warps
 * multiply, a k split each, in the order of sums of dense/product.cuh. What a block computes and
 * others need goes through words that are their own flags (base/barrier.cuh); every layer has words
 * of its own. Every block holds the residual row in registers.
 *
 * A layer has six such exchanges: q, k and v (blocks of attention norm and turn the heads), the
 * sums of splits, attention's row, o, the gated row, down.
 *
 * Checked in each of 40 runs: the last hidden row and the best logit have the bits of a reference
 * that launches a simple kernel for each operation, with the same order of every sum.
 */
#include "kernels/cuda/base/mma.cuh"
#include "kernels/cuda/base/ring.cuh"
#include "kernels/cuda/base/row.cuh"
#include "kernels/cuda/base/copy.cuh"

#include <algorithm>
#include <vector>

#define OK(call)                                                              \
    do {                                                                      \
        const cudaError_t failed = (call);                                    \
        if (failed != cudaSuccess) {                                          \
            printf("line %d: %s\n", __LINE__, cudaGetErrorString(failed));    \
            exit(1);                                                          \
        }                                                                     \
    } while (0)

enum {
    N_SM = 132, THREADS = ROW_THREADS + 32,
    HEAD = 256, N_HEAD = 4, N_Q = N_HEAD * HEAD, N_QKV = N_Q + 2 * HEAD, QKV_ROWS = 12,
    CONTEXT = 4096, WINDOW = 512, /* every sixth layer sees the whole context */
    KEYS = 16,                    /* keys of a slot */
    CELL = 2 * HEAD * 2,          /* bytes of a key and a value */
    VOCAB = 262144, EMBEDDED = 4096,
    COMBINERS = 32, /* the last blocks join the splits of attention, 32 dimensions each */
    SLOT = 20480, SLOTS = 9, SLACK_BYTES = 1024,
    PARTIAL = HEAD + 8, /* words of a split and head: its sums, its largest score, its weight */
    PITCH = 56,         /* floats from one k split's sums to the next */
};

/* ---- shapes ---------------------------------------------------------------------------------- */

static constexpr __host__ __device__ int up(int a, int b) { return (a + b - 1) / b; }
/* panel_rows() of base/panel.cuh as a constant. */
static constexpr int rows_of_panel(int n)
{
    const int rows = (up(n, N_SM * up(n, N_SM * (int)PANEL_MAX_ROWS)) + 1) / 2 * 2;
    return rows < 4 ? (int)PANEL_SHORT_ROWS : rows;
}
/* A product of n outputs, or of gate and up of n outputs each, whose panels then lie in pairs. A
 * slot takes `positions` positions of k. */
struct list_product {
    int n, half, rows, units; /* rows of a panel; of a pair; panels or pairs */
    int each, splits, rest;   /* struct ksplit */
    int positions, to;        /* to: where the words of its outputs are in a layer */
    uint32_t panel;           /* bytes of a unit */
    size_t layer;             /* bytes of a layer */
    __host__ __device__ int before(int i) const /* chunks at positions before i */
    {
        return i * splits - (i > rest ? i - rest : 0);
    }
    __device__ int length(int split) const
    {
        return split < splits - 1 ? each : split == splits - 1 ? rest : 0;
    }
};
static list_product shape_of(int n, int k, int rows, bool pair, int to)
{
    const struct ksplit c = ksplit_of(k);
    list_product p = {};
    p.n = n, p.half = rows, p.rows = pair ? 2 * rows : rows, p.units = up(n, rows), p.to = to;
    p.each = c.each, p.splits = c.splits, p.rest = c.rest;
    p.positions = std::min((int)SLOT / ((int)K_SPLITS * p.rows * (int)K_CHUNK_BYTES), p.each);
    p.panel = (uint32_t)(c.chunks * p.rows * (int)K_CHUNK_BYTES);
    p.layer = (size_t)p.panel * (size_t)p.units;
    return p;
}
enum { QKV, O, GATE_UP, DOWN, PRODUCTS };
template <int WIDTH_, int FFN_, int LAYERS_> struct shape {
    static constexpr int WIDTH = WIDTH_, FFN = FFN_, LAYERS = LAYERS_;
    /* Tiles of eight rows of gate and up, and of the lm_head; the other products have two. */
    static constexpr int PAIR_TILES = up(2 * rows_of_panel(FFN), 8),
                         HEAD_TILES = up(rows_of_panel(VOCAB), 8);
    static_assert(rows_of_panel(WIDTH) <= 16 && QKV_ROWS <= 16 && PAIR_TILES * 8 <= PITCH);
    /* Where the words of a layer begin. */
    static constexpr int AT_QKV = 0, AT_ROW = N_QKV, AT_O = AT_ROW + N_Q / 2;
    static constexpr int AT_GATED = AT_O + WIDTH, AT_DOWN = AT_GATED + FFN / 2;
    static constexpr int WORDS = AT_DOWN + WIDTH;
    static constexpr int ROW_BYTES = (FFN > N_Q ? FFN : N_Q) * 2;
};
static constexpr __host__ __device__ bool is_full(int layer) { return layer % 6 == 5; }
/* Splits of a layer's attention: a block each, of one slot, or of two in a full layer. */
static constexpr __host__ __device__ int splits_of(int layer)
{
    return is_full(layer) ? CONTEXT / (2 * KEYS) : WINDOW / KEYS;
}

struct step {
    list_product product[PRODUCTS], head;
    const uint8_t *w[PRODUCTS], *head_w; /* panels of all layers */
    const bf16 *norms; /* (4 * layers + 1, width): before and after attention and the MLP; the
                          last one */
    const bf16 *head_norms; /* (layers, 2, HEAD): of q and k */
    const bf16 *embeddings;
    const float2 *turns; /* (2, HEAD / 2): cosine and sine; of layers with a window, of full ones */
    uint8_t *cells;      /* (layers, CONTEXT, CELL) */
    uint32_t *words, *old; /* exchanges of this step, and of the one before, which are cleared */
    uint32_t *partials;    /* (2, N_SM, N_HEAD, PARTIAL): layers in turn */
    unsigned long long *best; /* of each block */
    const int *token;
    float *hidden; /* out */
    int window;    /* slots under way at once */
    bool waits, streams;       /* false: to find out what waiting and what copying costs */
    unsigned long long *times; /* (N_SM, layers, 16), or NULL */
};

/* ---- what all parts share -------------------------------------------------------------------- */

__device__ __forceinline__ float unpublished(uint32_t v) { return __uint_as_float(~v); }
__device__ __forceinline__ uint32_t pair_of(float x, float y)
{
    return bits_of(rounded_to<bf16>(x)) | (uint32_t)bits_of(rounded_to<bf16>(y)) << 16;
}
__device__ __forceinline__ unsigned long long now_ns()
{
    unsigned long long t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}
#define NOTE(i)                                                                          \
    do {                                                                                 \
        if (NOTES && threadIdx.x == 0)                                                   \
            a.times[((size_t)blockIdx.x * S::LAYERS + (size_t)layer) * 16 + (i)] = now_ns(); \
    } while (0)

/* The consumers' place in the ring. */
struct consumer {
    address_ring r;
    uint32_t row; /* the packed row */
    __device__ __forceinline__ void wait() const { mbarrier_wait(r.filled(), r.pos.phase); }
    __device__ __forceinline__ void release()
    {
        mbarrier_arrive_warp(r.emptied());
        r.next();
    }
};

/* The thread's words of a row of floats, when all have been published. */
template <int N>
__device__ __forceinline__ void receive(const step &a, const uint32_t *from, float4 *x)
{
    uint4 v[up(N, ROW_STEP)];
    bool missing;
    do {
        missing = false;
#pragma unroll
        for (int j = 0; j < up(N, ROW_STEP); j++) {
            v[j] = make_uint4(~0u, ~0u, ~0u, ~0u);
            if (row_index(0, j) < N)
                v[j] = poll_four((const uint4 *)(from + row_index(0, j)));
            missing |= !all_published(v[j]);
        }
    } while (missing && a.waits);
#pragma unroll
    for (int j = 0; j < up(N, ROW_STEP); j++)
        x[j] = make_float4(unpublished(v[j].x), unpublished(v[j].y), unpublished(v[j].z),
                           unpublished(v[j].w));
}
/* Copies n words, at most MOST, into shared memory when they have been published; all consumers. */
template <int MOST>
__device__ __forceinline__ void receive_packed(const step &a, const uint32_t *from, int n,
                                               uint32_t *to)
{
    uint4 v[up(MOST, ROW_STEP)];
    bool missing;
    do {
        missing = false;
#pragma unroll
        for (int j = 0; j < up(MOST, ROW_STEP); j++) {
            v[j] = make_uint4(1, 1, 1, 1);
            if (row_index(0, j) < n)
                v[j] = poll_four((const uint4 *)(from + row_index(0, j)));
            missing |= !all_published(v[j]);
        }
    } while (missing && a.waits);
#pragma unroll
    for (int j = 0; j < up(MOST, ROW_STEP); j++)
        if (row_index(0, j) < n)
            *(uint4 *)(to + row_index(0, j)) = make_uint4(~v[j].x, ~v[j].y, ~v[j].z, ~v[j].w);
    row_barrier();
}

__device__ __forceinline__ struct norm norm_by(const bf16 *w)
{
    struct norm n = {};
    n.kind = NORM_RMS1P, n.eps = 1e-6f, n.w.p = w, n.w.type = DT_BF16;
    return n;
}
/* The thread's part of a row of N elements: groups of four. */
template <int N> struct part_of {
    static constexpr int GROUPS = up(N, ROW_STEP);
    float4 v[GROUPS];
};
/* 1 / rms; not inlined, since code that is run once a layer is fetched each time. */
__device__ __noinline__ float inverse_rms(float ss, float n) { return 1 / sqrtf(ss / n + 1e-6f); }
template <int N>
__device__ __forceinline__ float inverse_of(const part_of<N> &x, float *scratch)
{
    float ss = 0;
#pragma unroll
    for (int j = 0; j < x.GROUPS; j++) {
        ss = fmaf(x.v[j].x, x.v[j].x, ss), ss = fmaf(x.v[j].y, x.v[j].y, ss);
        ss = fmaf(x.v[j].z, x.v[j].z, ss), ss = fmaf(x.v[j].w, x.v[j].w, ss);
    }
    return inverse_rms(row_sum(ss, scratch), (float)N);
}
/* row += post(y), unless it is the first; to = packed pre(row). scratch: two times ROW_WARPS. */
template <int N>
__device__ __forceinline__ void update_and_pack(part_of<N> &row, part_of<N> &y, bool updates,
                                                const short_weights &post, const short_weights &pre,
                                                uint16_t *to, float *scratch)
{
    const struct norm n = norm_by(NULL);
    if (updates) {
        const float inv = inverse_of<N>(y, scratch);
#pragma unroll
        for (int j = 0; j < row.GROUPS; j++)
            row.v[j] = plus(normed_short(n, y.v[j], inv, post.v[j]), row.v[j]);
    }
    const float inv = inverse_of<N>(row, scratch + ROW_WARPS);
#pragma unroll
    for (int j = 0; j < row.GROUPS; j++)
        if (row_index(0, j) < N)
            put_short(to + row_index(0, j), false, normed_short(n, row.v[j], inv, pre.v[j]));
    row_barrier();
}
template <int N> __device__ __forceinline__ void store_row(float *to, const part_of<N> &x)
{
#pragma unroll
    for (int j = 0; j < x.GROUPS; j++)
        if (row_index(0, j) < N)
            *(float4 *)(to + row_index(0, j)) = x.v[j];
}

/* ---- products -------------------------------------------------------------------------------- */

/* A lane's operands at a position of k: tiles of eight rows of weights, and the row. */
template <int TILES> struct operands {
    uint4 tile[TILES], x;
};
template <int TILES>
__device__ __forceinline__ void multiply_position(float (&acc)[(TILES + 1) / 2][4],
                                                  const operands<TILES> &o)
{
#pragma unroll
    for (int n = 0; n < TILES; n += 2) {
        const uint4 &v = o.tile[n], &u = o.tile[n + 1 < TILES ? n + 1 : n];
        mma_bf16(acc[n / 2], v.x, u.x, v.y, u.y, o.x.x, o.x.y);
    }
#pragma unroll
    for (int n = 0; n < TILES; n += 2) {
        const uint4 &v = o.tile[n], &u = o.tile[n + 1 < TILES ? n + 1 : n];
        mma_bf16(acc[n / 2], v.z, u.z, v.w, u.w, o.x.z, o.x.w);
    }
}
/* A warp's k split of a block's units. Behind the split's end other weights are multiplied with
 * zeros, so that there is no branch. */
template <int TILES> struct walk {
    int lane, warp, length, each, splits, rest, positions, chunk, first; /* first: of the slot */
    uint32_t own, row; /* where the lane's weights are in a chunk; where its part of the row is */
    __device__ __forceinline__ walk(const consumer &c, const list_product &p)
    {
        lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, length = p.length(warp);
        each = p.each, splits = p.splits, rest = p.rest, positions = p.positions;
        chunk = p.rows * (int)K_CHUNK_BYTES, first = 0;
        own = (uint32_t)(lane / 8 * p.rows * (int)UNIT_BYTES + lane % 8 * (int)UNIT_BYTES);
        row = c.row + (uint32_t)(warp * each * (int)K_CHUNK_BYTES + lane % 4 * 16);
    }
    __device__ __forceinline__ void load(const consumer &c, int i, operands<TILES> &o) const
    {
        const int place = (i - first) * splits - max(i - max(rest, first), 0) + warp;
        const uint32_t at = c.r.place() + own + (uint32_t)(i < length ? place * chunk : 0);
#pragma unroll
        for (int n = 0; n < TILES; n++)
            o.tile[n] = shared_units(at + (uint32_t)(n * 8 * (int)UNIT_BYTES));
        o.x = make_uint4(0, 0, 0, 0);
        if (lane < 4 && i < length)
            o.x = shared16(row + (uint32_t)(i * (int)K_CHUNK_BYTES));
    }
    /* The sums of a unit. Operands are loaded while those before are multiplied, and a slot is
     * released when its last ones have been loaded. */
    __device__ __forceinline__ void unit(consumer &c, float (&acc)[(TILES + 1) / 2][4])
    {
        operands<TILES> now, next;
        first = 0;
        c.wait();
        load(c, 0, now);
#pragma unroll 1
        for (int i = 1; i < each; i++) {
            if (i == first + positions) {
                c.release();
                first = i;
                c.wait();
            }
            load(c, i, next);
            multiply_position<TILES>(acc, now);
            now = next;
        }
        c.release();
        multiply_position<TILES>(acc, now);
    }
};

/* Leaves the sums of the k splits in shared memory; a barrier. */
template <int TILES>
__device__ __forceinline__ void put_sums(const float (&acc)[(TILES + 1) / 2][4], float *sums)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    if (lane % 4 == 0)
#pragma unroll
        for (int n = 0; n < TILES; n++)
            sums[warp * PITCH + n * 8 + lane / 4] = acc[n / 2][n % 2 * 2];
    row_barrier();
}
__device__ __forceinline__ float sum_of_splits(const float *sums, int row)
{
    float y = sums[row];
#pragma unroll
    for (int s = 1; s < K_SPLITS; s++)
        y += sums[s * PITCH + row];
    return y;
}

/* The sums in shared memory, two buffers that units take in turn. */
struct sum_buffers {
    float *at;
    int turn;
    __device__ __forceinline__ float *next()
    {
        turn ^= 1;
        return at + turn * (int)K_SPLITS * PITCH;
    }
};
/* All units of a block. finish(unit, row, y, up) is called by a whole warp, a lane a row of the
 * panel. */
template <int TILES, bool PAIR, class Finish>
__device__ __forceinline__ void multiply_units(const list_product &p, consumer &c,
                                               sum_buffers &sums, const Finish &finish)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int unit = (int)blockIdx.x;
    if (unit >= p.units)
        return;
    walk<TILES> w(c, p);
#pragma unroll 1
    for (int turn = 0; unit < p.units; unit += N_SM, turn++) {
        float acc[(TILES + 1) / 2][4] = {};
        w.unit(c, acc);
        float *const s = sums.next();
        put_sums<TILES>(acc, s);
        if (warp == turn % (int)K_SPLITS)
            finish(unit, lane, sum_of_splits(s, lane),
                   PAIR ? sum_of_splits(s, min(lane + p.half, (int)PITCH - 1)) : 0.f);
    }
}

/* ---- attention ------------------------------------------------------------------------------- */

struct attention_shared {
    float score[N_HEAD][2 * KEYS];
    float4 weight[2 * KEYS]; /* of the four heads */
};

__device__ __forceinline__ void eight_floats(const uint4 (&v)[2], float (&x)[8])
{
    const uint32_t word[8] = {v[0].x, v[0].y, v[0].z, v[0].w, v[1].x, v[1].y, v[1].z, v[1].w};
#pragma unroll
    for (int e = 0; e < 8; e++)
        x[e] = unpublished(word[e]);
}
__device__ __forceinline__ void eight_bf16(uint4 v, float (&x)[8])
{
    const uint32_t word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int e = 0; e < 4; e++)
        x[2 * e] = low_bf16(word[e]), x[2 * e + 1] = high_bf16(word[e]);
}
__device__ __forceinline__ float squares_of_eight(const float (&x)[8])
{
    float ss = 0;
#pragma unroll
    for (int e = 0; e < 8; e++)
        ss = fmaf(x[e], x[e], ss);
    return ss;
}
/* Norms, turns and rounds a head, of which a lane has elements 8 * lane and the following. */
__device__ __forceinline__ void finish_head(float (&x)[8], uint4 w, const float4 (&turn)[4])
{
    const float inv = inverse_rms(warp_sum(squares_of_eight(x)), HEAD);
    float f[8];
    eight_bf16(w, f);
#pragma unroll
    for (int e = 0; e < 8; e++)
        x[e] = normed_by(NORM_RMS1P, x[e], inv, f[e]);
#pragma unroll
    for (int e = 0; e < 8; e++) {
        const float cosine = e % 2 ? turn[e / 2].z : turn[e / 2].x,
                    z = __shfl_xor_sync(~0u, x[e], 16) * (e % 2 ? turn[e / 2].w : turn[e / 2].y);
        x[e] = float_of(rounded_to<bf16>(fmaf(x[e], cosine, threadIdx.x % 32 < 16 ? -z : z)));
    }
}

/* The sums of one split, `pieces` times KEYS keys; arrive(i): where piece i is in shared memory.
 * newest: the split has the key of this step, which is stored in `cell`. A warp has one head and
 * half the keys of a piece. */
template <class Arrive>
__device__ __forceinline__ void attend(const step &a, int layer, const uint32_t *qkv, int pieces,
                                       bool newest, attention_shared &s, uint32_t *to,
                                       uint8_t *cell, const Arrive &arrive)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, part = warp / N_HEAD;
    const bool own = newest && part == 1; /* the newest key is in the second half */
    const uint4 *norms = (const uint4 *)(a.head_norms + (size_t)layer * 2 * HEAD) + lane;
    const uint4 q_norm = __ldg(norms), k_norm = __ldg(norms + HEAD / 8);
    float4 turn[4];
#pragma unroll
    for (int e = 0; e < 4; e++)
        turn[e] = __ldg((const float4 *)(a.turns + (is_full(layer) ? HEAD / 2 : 0)) +
                        lane % 16 * 4 + e);

    const uint4 *const q_from = (const uint4 *)(qkv + warp % N_HEAD * HEAD) + lane * 2;
    const uint4 *const k_from = (const uint4 *)(qkv + N_Q) + lane * 2;
    uint4 v[2], k[2] = {make_uint4(1, 1, 1, 1), make_uint4(1, 1, 1, 1)};
    uint32_t raw_v = 1;
    bool missing;
    do {
        v[0] = poll_four(q_from), v[1] = poll_four(q_from + 1);
        if (own)
            k[0] = poll_four(k_from), k[1] = poll_four(k_from + 1);
        if (newest)
            raw_v = poll(qkv + N_Q + HEAD + threadIdx.x);
        missing = !raw_v || !all_published(v[0]) || !all_published(v[1]) || !all_published(k[0]) ||
                  !all_published(k[1]);
    } while (missing && a.waits);

    float q[8], new_k[8] = {};
    eight_floats(v, q);
    finish_head(q, q_norm, turn);
#pragma unroll
    for (int e = 0; e < 8; e++)
        q[e] *= 0.0625f * 1.44269504f; /* 1 / sqrt(HEAD), log2(e) */
    const uint16_t new_v = bits_of(rounded_to<bf16>(unpublished(raw_v)));
    if (own) {
        eight_floats(k, new_k);
        finish_head(new_k, k_norm, turn);
        if (warp == (int)K_SPLITS - 1)
            *(uint4 *)(cell + lane * 16) =
                make_uint4(pair_of(new_k[0], new_k[1]), pair_of(new_k[2], new_k[3]),
                           pair_of(new_k[4], new_k[5]), pair_of(new_k[6], new_k[7]));
    }
    if (newest)
        *(uint16_t *)(cell + HEAD * 2 + threadIdx.x * 2) = new_v;

#pragma unroll 1
    for (int i = 0; i < pieces; i++) { /* scores */
        const uint32_t at = arrive(i) + (uint32_t)(part * KEYS / 2 * CELL + lane * 16);
        float d[8];
#pragma unroll
        for (int j = 0; j < KEYS / 2; j++) {
            float c[8], y = 0;
            eight_bf16(shared16(at + (uint32_t)(j * CELL)), c);
#pragma unroll
            for (int e = 0; e < 8; e++)
                y = fmaf(q[e], j == KEYS / 2 - 1 && own && i == pieces - 1 ? new_k[e] : c[e], y);
            d[j] = y;
        }
        reduce_scatter_lanes<16, 4>(d);
        reduce_scatter_lanes<8, 2>(d);
        reduce_scatter_lanes<4, 1>(d);
        d[0] += __shfl_xor_sync(~0u, d[0], 2);
        d[0] += __shfl_xor_sync(~0u, d[0], 1);
        if (lane % 4 == 0)
            s.score[warp % N_HEAD][i * KEYS + part * KEYS / 2 + lane / 4] = d[0];
    }
    row_barrier();

    /* Every warp computes all weights and stores the same ones: no barrier. A lane has head
     * lane / 8 and keys lane % 8, + 8, ... */
    const int h = lane / 8;
    float z[4], m = -INFINITY, sum = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        z[i] = i < 2 * pieces ? s.score[h][lane % 8 + 8 * i] : -INFINITY;
        m = fmaxf(m, z[i]);
    }
#pragma unroll
    for (int i = 4; i; i /= 2)
        m = fmaxf(m, __shfl_xor_sync(~0u, m, i));
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float p = exp2_approx(z[i] - m);
        sum += p;
        if (i < 2 * pieces)
            (&s.weight[lane % 8 + 8 * i].x)[h] = p;
    }
#pragma unroll
    for (int i = 4; i; i /= 2)
        sum += __shfl_xor_sync(~0u, sum, i);
    if (warp == 0 && lane % 8 == 0) {
        publish(to + h * PARTIAL + HEAD, __float_as_uint(m));
        publish(to + h * PARTIAL + HEAD + 1, __float_as_uint(sum));
    }
    __syncwarp();

    float o[N_HEAD] = {}; /* values: a thread has one dimension of all heads */
#pragma unroll 1
    for (int i = 0; i < pieces; i++) {
        const uint32_t at = arrive(i) + (uint32_t)(HEAD * 2) + threadIdx.x * 2;
#pragma unroll
        for (int j = 0; j < KEYS; j++) {
            uint32_t raw = shared2(at + (uint32_t)(j * CELL));
            if (j == KEYS - 1 && newest && i == pieces - 1)
                raw = new_v;
            const float y = low_bf16(raw);
            const float4 p = s.weight[i * KEYS + j];
            o[0] = fmaf(p.x, y, o[0]), o[1] = fmaf(p.y, y, o[1]);
            o[2] = fmaf(p.z, y, o[2]), o[3] = fmaf(p.w, y, o[3]);
        }
    }
#pragma unroll
    for (int i = 0; i < N_HEAD; i++)
        publish(to + i * PARTIAL + threadIdx.x, __float_as_uint(o[i]));
}

/* Joins n splits for 32 dimensions of a head: part 0 to COMBINERS - 1. A warp has an eighth of the
 * splits. */
__device__ __forceinline__ void join_splits(const step &a, int n, int part, const uint32_t *from,
                                            uint32_t *to, float *scratch)
{
    enum { AT_ONCE = 4, LARGEST = ROW_THREADS, WEIGHT = LARGEST + ROW_WARPS };
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, h = part / 8,
              at = part % 8 * 32 + lane, each = n / (int)ROW_WARPS;
    float m = -INFINITY, l = 0, o = 0;
    for (int i0 = 0; i0 < each; i0 += AT_ONCE) {
        uint32_t v[AT_ONCE], mm[AT_ONCE], ll[AT_ONCE];
        bool missing;
        do {
            missing = false;
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                const uint32_t *p = from + ((warp * each + i0 + i) * N_HEAD + h) * PARTIAL;
                v[i] = poll(p + at), mm[i] = poll(p + HEAD), ll[i] = poll(p + HEAD + 1);
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++)
                missing |= !v[i] || !mm[i] || !ll[i];
        } while (missing && a.waits);
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const float x = unpublished(mm[i]), most = fmaxf(m, x), f = exp2_approx(m - most),
                        g = exp2_approx(x - most);
            o = fmaf(o, f, unpublished(v[i]) * g), l = fmaf(l, f, unpublished(ll[i]) * g);
            m = most;
        }
    }
    scratch[warp * 32 + lane] = o;
    if (lane == 0)
        scratch[LARGEST + warp] = m, scratch[WEIGHT + warp] = l;
    row_barrier();
    if (warp)
        return;
    float most = scratch[LARGEST], sum = 0, y = 0;
    for (int w = 1; w < ROW_WARPS; w++)
        most = fmaxf(most, scratch[LARGEST + w]);
    for (int w = 0; w < ROW_WARPS; w++) {
        const float f = exp2_approx(scratch[LARGEST + w] - most);
        sum = fmaf(scratch[WEIGHT + w], f, sum), y = fmaf(scratch[w * 32 + lane], f, y);
    }
    y /= sum;
    const float next = __shfl_down_sync(~0u, y, 1);
    if (lane % 2 == 0)
        publish(to + (h * HEAD + at) / 2, pair_of(y, next));
}

/* ---- the list -------------------------------------------------------------------------------- */

/* One lane fills the ring with everything that the block reads, in its order. */
struct producer {
    address_ring r, seen; /* the next slot; the oldest one that is under way */
    int window, issued;
    bool streams;
    __device__ __forceinline__ void put(const uint8_t *from, int bytes)
    {
        if (issued >= r.stages)
            mbarrier_wait(r.emptied(), r.pos.phase ^ 1);
        if (issued++ >= window) {
            mbarrier_wait(seen.filled(), seen.pos.phase);
            seen.next();
        }
        if (streams) {
            bulk_expect(r.filled(), bytes);
            bulk_copy_once(r.place(), from, bytes, r.filled());
        } else {
            mbarrier_arrive(r.filled());
        }
        r.next();
    }
    __device__ __forceinline__ void units(const list_product &p, const uint8_t *w)
    {
#pragma unroll 1
        for (int unit = (int)blockIdx.x; unit < p.units; unit += N_SM) {
            const uint8_t *from = w + (size_t)unit * p.panel;
#pragma unroll 1
            for (int i = 0; i < p.each; i += p.positions) {
                const int chunks = p.before(min(i + p.positions, p.each)) - p.before(i),
                          bytes = chunks * p.rows * (int)K_CHUNK_BYTES;
                put(from, bytes);
                from += bytes;
            }
        }
    }
    __device__ __forceinline__ void all(const step &a, int layers)
    {
#pragma unroll 1
        for (int i = 0; i < layers * PRODUCTS; i++) {
            const int layer = i / PRODUCTS, which = i % PRODUCTS;
            const list_product p = a.product[which]; /* in registers */
            units(p, a.w[which] + (size_t)layer * p.layer);
            const int pieces = is_full(layer) ? 2 : 1, n = pieces * KEYS,
                      first = (is_full(layer) ? 0 : CONTEXT - WINDOW) + (int)blockIdx.x * n;
            const uint8_t *cells = a.cells + ((size_t)layer * CONTEXT + (size_t)first) * CELL;
            for (int j = 0; which == QKV && (int)blockIdx.x < splits_of(layer) && j < pieces; j++)
                put(cells + j * KEYS * CELL, KEYS * CELL);
        }
        units(a.head, a.head_w);
    }
};

/* ---- the step -------------------------------------------------------------------------------- */

__device__ __forceinline__ unsigned long long rank_of(float logit, int id) /* ties: the lower id */
{
    const uint32_t bits = __float_as_uint(logit), key = bits >> 31 ? ~bits : bits | 0x80000000u;
    return (unsigned long long)key << 32 | (uint32_t)(VOCAB - 1 - id);
}
template <int N> __device__ __forceinline__ void embed(const step &a, part_of<N> &row)
{
    const bf16 *from = a.embeddings + (size_t)(*a.token % EMBEDDED) * N;
#pragma unroll
    for (int j = 0; j < row.GROUPS; j++) {
        const int i = row_index(0, j);
        const float4 v = floats_of(i < N ? *(const uint2 *)(from + i) : make_uint2(0, 0));
        const float f = sqrtf((float)N);
        row.v[j] = make_float4(v.x * f, v.y * f, v.z * f, v.w * f);
    }
}

/* One loop over the products of all layers, so that each piece of code is there once: a step's
 * instructions have to be fetched, too. */
template <class S, bool NOTES>
__global__ void __launch_bounds__(THREADS, 1) step_kernel(const __grid_constant__ step a)
{
    constexpr int N = S::WIDTH;
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ uint64_t full[SLOTS], empty[SLOTS];
    __shared__ float sums_at[2 * (int)K_SPLITS * PITCH], scratch[2 * ROW_WARPS],
        joined[(int)ROW_THREADS + 2 * (int)ROW_WARPS];
    __shared__ __align__(16) attention_shared attention;
    __shared__ unsigned long long winners[ROW_WARPS];
    uint16_t *const packed = (uint16_t *)(shared + SLOTS * SLOT + SLACK_BYTES);
    const int tid = (int)threadIdx.x, block = (int)blockIdx.x;
    if (tid == 0) {
        init_ring(full, empty, SLOTS, COPY_LANES, K_SPLITS);
        mbarrier_init_fence();
    }
    __syncthreads();
    const address_ring ring = {shared_at(shared), shared_at(full), shared_at(empty), SLOTS, SLOT,
                               {}};
    if (tid >= ROW_THREADS) {
        producer p = {ring, ring, a.window, 0, a.streams};
        if (tid == ROW_THREADS)
            p.all(a, S::LAYERS);
        return;
    }
    consumer c = {ring, shared_at(packed)};
    sum_buffers sums = {sums_at, 0};
    part_of<N> row, y = {};
    short_weights post = {}, pre;
    embed<N>(a, row);
    fetch_short(norm_by(a.norms), N, pre);
    const bf16 *norms = a.norms;
#pragma unroll 1
    for (int i = 0;; i++) {
        const int layer = i / PRODUCTS, which = i % PRODUCTS;
        uint32_t *const words = a.words + (size_t)layer * S::WORDS;
        NOTE(which * 4);
        if (which % 2 == 0) {
            if (i)
                receive<N>(a, which ? words + S::AT_O : words - S::WORDS + S::AT_DOWN, y.v);
            NOTE(which * 4 + 1);
            update_and_pack<N>(row, y, i > 0, post, pre, packed, scratch);
            if (layer == S::LAYERS)
                break;
            norms += 2 * N;
            fetch_short(norm_by(norms - N), N, post), fetch_short(norm_by(norms), N, pre);
        }
        const list_product p = a.product[which];
        if (which % 2 && block < p.units)
            receive_packed<(S::FFN > N_Q ? S::FFN : (int)N_Q) / 2>(
                a, words + (which == O ? S::AT_ROW : S::AT_GATED),
                which == O ? N_Q / 2 : S::FFN / 2, (uint32_t *)packed);
        NOTE(which * 4 + 2);
        if (which == GATE_UP)
            multiply_units<S::PAIR_TILES, true>(p, c, sums, [&](int u, int r, float gate, float z) {
                z *= activate(gate, ACT_GELU_TANH);
                const float next = __shfl_down_sync(~0u, z, 1);
                const int to = u * p.half + r;
                if (r < p.half && r % 2 == 0 && to < p.n)
                    publish(words + p.to + to / 2, pair_of(z, next));
            });
        else
            multiply_units<2, false>(p, c, sums, [&](int u, int r, float v, float) {
                const int to = u * p.rows + r;
                if (r < p.rows && to < p.n)
                    publish(words + p.to + to, __float_as_uint(v));
            });
        NOTE(which * 4 + 3);
        const int splits = splits_of(layer);
        uint32_t *const partials = a.partials + (size_t)(layer % 2) * N_SM * N_HEAD * PARTIAL;
        uint32_t *const own = partials + (size_t)block * N_HEAD * PARTIAL;
        if (which == GATE_UP && block < splits) /* joined before o could be complete */
            for (int j = tid; j < N_HEAD * PARTIAL / 4; j += ROW_THREADS)
                ((uint4 *)own)[j] = make_uint4(0, 0, 0, 0);
        if (which != QKV)
            continue;
        if (block < splits) {
            const int pieces = is_full(layer) ? 2 : 1;
            const address_ring at = c.r;
            attend(a, layer, words, pieces, block == splits - 1, attention, own,
                   a.cells + ((size_t)layer * CONTEXT + CONTEXT - 1) * CELL, [&](int piece) {
                       address_ring r = at;
                       if (piece)
                           r.next();
                       mbarrier_wait(r.filled(), r.pos.phase);
                       return r.place();
                   });
            for (int j = 0; j < pieces; j++)
                c.release();
        }
        if (block >= N_SM - COMBINERS)
            join_splits(a, splits, block - (N_SM - COMBINERS), partials, words + S::AT_ROW, joined);
    }
    if (block == 0)
        store_row<N>(a.hidden, row);
    for (int i = block * ROW_THREADS + tid; i < S::LAYERS * S::WORDS / 4; i += N_SM * ROW_THREADS)
        ((uint4 *)a.old)[i] = make_uint4(0, 0, 0, 0);
    unsigned long long most = 0;
    multiply_units<S::HEAD_TILES, false>(a.head, c, sums, [&](int u, int r, float v, float) {
        const int id = u * a.head.rows + r;
        if (r < a.head.rows && id < VOCAB)
            most = max(most, rank_of(v, id));
    });
    for (int i = 16; i; i /= 2)
        most = max(most, __shfl_xor_sync(~0u, most, i));
    share_by_warp(most, winners, row_barrier);
    if (tid == 0) {
        for (int i = 1; i < ROW_WARPS; i++)
            most = max(most, winners[i]);
        a.best[block] = most;
    }
}

/* ---- the reference: a launch an operation ---------------------------------------------------- */

/* One warp a unit; the k splits one after the other. */
__global__ void ref_product(const list_product p, const uint8_t *w, const uint16_t *x, float *out)
{
    const int unit = (int)blockIdx.x, lane = (int)threadIdx.x, g = lane / 4, q = lane % 4;
    for (int r = g; r < (p.rows + 7) / 8 * 8; r += 8) {
        float total = 0;
        for (int s = 0; s < K_SPLITS; s++) {
            float acc[4] = {};
            for (int i = 0; i < p.length(s); i++) {
                const uint8_t *chunk = w + (size_t)unit * p.panel +
                                       (size_t)((p.before(i) + s) * p.rows * (int)K_CHUNK_BYTES);
                const uint16_t *from = x + (s * p.each + i) * (int)K_CHUNK + lane * 8;
                const uint4 v = lane < 4 ? *(const uint4 *)from : make_uint4(0, 0, 0, 0);
                uint32_t t[UNITS] = {};
                for (int u = 0; u < UNITS && r < p.rows; u++)
                    t[u] = *(const uint32_t *)(chunk + (u * p.rows + r) * (int)UNIT_BYTES + q * 4);
                mma_bf16(acc, t[0], 0, t[1], 0, v.x, v.y);
                mma_bf16(acc, t[2], 0, t[3], 0, v.z, v.w);
            }
            total = s ? total + acc[0] : acc[0];
        }
        const bool pair = p.rows > p.half;
        const int to = pair ? (r < p.half ? 0 : p.n) + unit * p.half + r % p.half
                            : unit * p.rows + r;
        if (q == 0 && r < p.rows && (pair || to < p.n))
            out[to] = total;
    }
}
template <int N> __global__ void ref_embed(const step a, float *row)
{
    part_of<N> x;
    embed<N>(a, x);
    store_row<N>(row, x);
}
template <int N>
__global__ void ref_norms(float *row, const float *y, bool updates, const bf16 *post,
                          const bf16 *pre, uint16_t *to)
{
    __shared__ float scratch[2 * ROW_WARPS];
    part_of<N> x, z;
    short_weights w, v;
#pragma unroll
    for (int j = 0; j < x.GROUPS; j++)
        x.v[j] = four_of(row, N, row_index(0, j)), z.v[j] = four_of(y, N, row_index(0, j));
    fetch_short(norm_by(post), N, w), fetch_short(norm_by(pre), N, v);
    update_and_pack<N>(x, z, updates, w, v, to, scratch);
    store_row<N>(row, x);
}
__global__ void ref_publish(const float *y, int n, uint32_t *to)
{
    for (int i = (int)threadIdx.x; i < n; i += ROW_THREADS)
        to[i] = ~__float_as_uint(y[i]);
}
__global__ void ref_attend(const step a, int layer, const uint32_t *qkv, uint32_t *partials)
{
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ __align__(16) attention_shared s;
    const int splits = splits_of(layer), pieces = is_full(layer) ? 2 : 1, block = (int)blockIdx.x;
    uint8_t *const cells = a.cells + (size_t)layer * CONTEXT * CELL;
    const int first = (is_full(layer) ? 0 : CONTEXT - WINDOW) + block * pieces * KEYS;
    for (int i = (int)threadIdx.x; i < pieces * KEYS * CELL / 16; i += ROW_THREADS)
        ((uint4 *)shared)[i] = ((const uint4 *)(cells + (size_t)first * CELL))[i];
    __syncthreads();
    attend(a, layer, qkv, pieces, block == splits - 1, s, partials + block * N_HEAD * PARTIAL,
           cells + (size_t)(CONTEXT - 1) * CELL,
           [&](int i) { return shared_at(shared) + (uint32_t)(i * KEYS * CELL); });
}
__global__ void ref_join(const step a, int layer, const uint32_t *partials, uint32_t *to)
{
    __shared__ float scratch[ROW_THREADS + 2 * ROW_WARPS];
    join_splits(a, splits_of(layer), (int)blockIdx.x, partials, to, scratch);
}
__global__ void ref_packed(const uint32_t *from, int n, uint32_t *to)
{
    for (int i = (int)threadIdx.x; i < n; i += ROW_THREADS)
        to[i] = ~from[i];
}
__global__ void ref_gated(const float *y, int n, uint32_t *to)
{
    for (int i = (int)threadIdx.x * 2; i < n; i += 2 * ROW_THREADS)
        to[i / 2] = pair_of(y[n + i] * activate(y[i], ACT_GELU_TANH),
                            y[n + i + 1] * activate(y[i + 1], ACT_GELU_TANH));
}

/* ---- host ------------------------------------------------------------------------------------ */

/* bf16 numbers of [-scale, scale). */
__global__ void fill_kernel(uint32_t *p, size_t n, uint32_t seed, float scale)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        uint32_t z = (uint32_t)i * 2654435761u + (uint32_t)(i >> 32) * 97u + seed;
        float x[2];
        for (int k = 0; k < 2; k++) {
            z ^= z >> 16, z *= 0x7feb352du, z ^= z >> 15, z *= 0x846ca68bu, z ^= z >> 16;
            x[k] = ((float)(z >> 8) / 8388608.f - 1.f) * scale;
        }
        p[i] = pair_of(x[0], x[1]);
    }
}
__global__ void read_kernel(const uint4 *p, size_t n, uint4 *out)
{
    const size_t all = (size_t)gridDim.x * blockDim.x;
    uint4 x = make_uint4(0, 0, 0, 0);
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += all * 4)
#pragma unroll
        for (size_t k = 0; k < 4; k++)
            if (i + k * all < n) {
                const uint4 v = __ldcs(p + i + k * all);
                x.x ^= v.x, x.y ^= v.y, x.z ^= v.z, x.w ^= v.w;
            }
    if (x.x == 0x12345678)
        *out = x;
}

template <class T> static T *memory(size_t n)
{
    void *p;
    OK(cudaMalloc(&p, n * sizeof(T)));
    OK(cudaMemset(p, 0, n * sizeof(T)));
    return (T *)p;
}
template <class T> static T *weights(size_t bytes, uint32_t seed, float scale)
{
    uint8_t *p = memory<uint8_t>(bytes);
    fill_kernel<<<2048, 256>>>((uint32_t *)p, bytes / 4, seed, scale);
    return (T *)p;
}
template <class T> static T middle(std::vector<T> v)
{
    std::sort(v.begin(), v.end());
    return v.empty() ? T() : v[v.size() / 2];
}
/* The median of what `run` takes, in ms. */
template <class Run> static float time_of(int times, const Run &run)
{
    cudaEvent_t from, to;
    std::vector<float> all;
    OK(cudaEventCreate(&from));
    OK(cudaEventCreate(&to));
    for (int i = 0; i < times; i++) {
        float ms;
        OK(cudaEventRecord(from));
        run();
        OK(cudaEventRecord(to));
        OK(cudaEventSynchronize(to));
        OK(cudaEventElapsedTime(&ms, from, to));
        all.push_back(ms);
    }
    return middle(all);
}
static double read_speed(void) /* bytes a ms */
{
    const size_t n = (size_t)4 << 30;
    uint4 *p = weights<uint4>(n, 1, 1);
    const float ms = time_of(15, [&] { read_kernel<<<N_SM * 8, 256>>>(p, n / 16, p); });
    OK(cudaFree(p));
    printf("mem.read %.3f TB/s\n", n / ms * 1e-9);
    return n / ms;
}

template <class S> static step make_up(void)
{
    const float sd = 1.7f / sqrtf((float)S::WIDTH);
    const int rows = rows_of_panel(S::WIDTH);
    step a = {};
    a.product[QKV] = shape_of(N_QKV, S::WIDTH, QKV_ROWS, false, S::AT_QKV);
    a.product[O] = shape_of(S::WIDTH, N_Q, rows, false, S::AT_O);
    a.product[GATE_UP] = shape_of(S::FFN, S::WIDTH, rows_of_panel(S::FFN), true, S::AT_GATED);
    a.product[DOWN] = shape_of(S::WIDTH, S::FFN, rows, false, S::AT_DOWN);
    a.head = shape_of(VOCAB, S::WIDTH, rows_of_panel(VOCAB), false, 0);
    const float scale[PRODUCTS] = {sd, 0.05f, sd, 0.03f};
    for (int i = 0; i < PRODUCTS; i++)
        a.w[i] = weights<uint8_t>(a.product[i].layer * S::LAYERS, (uint32_t)(11 + i), scale[i]);
    a.head_w = weights<uint8_t>(a.head.layer, 15, sd);
    a.norms = weights<bf16>((size_t)(4 * S::LAYERS + 1) * S::WIDTH * 2, 16, 0.3f);
    a.head_norms = weights<bf16>((size_t)S::LAYERS * 2 * HEAD * 2, 17, 0.3f);
    a.embeddings = weights<bf16>((size_t)EMBEDDED * S::WIDTH * 2, 19, 0.05f);
    a.cells = weights<uint8_t>((size_t)S::LAYERS * CONTEXT * CELL, 20, 1);
    std::vector<float2> turns(HEAD);
    for (int i = 0; i < HEAD; i++) {
        const double base = i < HEAD / 2 ? 1e4 : 1e6,
                     angle = (CONTEXT - 1) * pow(base, -2.0 * (i % (HEAD / 2)) / (int)HEAD);
        turns[i] = make_float2((float)cos(angle), (float)sin(angle));
    }
    float2 *at = memory<float2>(HEAD);
    OK(cudaMemcpy(at, turns.data(), HEAD * sizeof *at, cudaMemcpyHostToDevice));
    const int token = 1234;
    int *id = memory<int>(1);
    OK(cudaMemcpy(id, &token, sizeof token, cudaMemcpyHostToDevice));
    a.turns = at, a.token = id;
    a.partials = memory<uint32_t>((size_t)2 * N_SM * N_HEAD * PARTIAL);
    a.best = memory<unsigned long long>(N_SM), a.hidden = memory<float>(S::WIDTH);
    return a;
}

/* The hidden row, and the rank of the best logit. */
template <class S> static std::vector<float> reference(step a, unsigned long long *best)
{
    constexpr int N = S::WIDTH;
    float *row = memory<float>(N), *y = memory<float>(VOCAB);
    uint16_t *x = memory<uint16_t>(S::ROW_BYTES / 2);
    uint32_t *words = memory<uint32_t>(S::WORDS),
             *partials = memory<uint32_t>((size_t)N_SM * N_HEAD * PARTIAL);
    const int cells = 2 * KEYS * CELL;
    a.waits = false;
    const auto multiply = [&](const list_product &p, const uint8_t *w) {
        ref_product<<<p.units, 32>>>(p, w, x, y);
    };
    const auto of_layer = [&](int which, int l) {
        multiply(a.product[which], a.w[which] + (size_t)l * a.product[which].layer);
    };
    ref_embed<N><<<1, ROW_THREADS>>>(a, row);
    for (int l = 0; l < S::LAYERS; l++) {
        const bf16 *norms = a.norms + (size_t)l * 4 * N;
        ref_norms<N><<<1, ROW_THREADS>>>(row, y, l > 0, l ? norms - N : norms, norms, x);
        of_layer(QKV, l);
        ref_publish<<<1, ROW_THREADS>>>(y, N_QKV, words);
        ref_attend<<<splits_of(l), ROW_THREADS, cells>>>(a, l, words, partials);
        ref_join<<<COMBINERS, ROW_THREADS>>>(a, l, partials, words + S::AT_ROW);
        ref_packed<<<1, ROW_THREADS>>>(words + S::AT_ROW, N_Q / 2, (uint32_t *)x);
        of_layer(O, l);
        ref_norms<N><<<1, ROW_THREADS>>>(row, y, true, norms + N, norms + 2 * N, x);
        of_layer(GATE_UP, l);
        ref_gated<<<1, ROW_THREADS>>>(y, S::FFN, (uint32_t *)x);
        of_layer(DOWN, l);
    }
    const bf16 *last = a.norms + (size_t)(4 * S::LAYERS) * N;
    ref_norms<N><<<1, ROW_THREADS>>>(row, y, true, last - N, last, x);
    multiply(a.head, a.head_w);
    std::vector<float> hidden(N), logits(VOCAB);
    OK(cudaMemcpy(hidden.data(), row, N * sizeof(float), cudaMemcpyDeviceToHost));
    OK(cudaMemcpy(logits.data(), y, VOCAB * sizeof(float), cudaMemcpyDeviceToHost));
    *best = 0;
    for (int i = 0; i < VOCAB; i++) {
        uint32_t bits;
        memcpy(&bits, &logits[i], sizeof bits);
        bits = bits >> 31 ? ~bits : bits | 0x80000000u;
        *best = std::max(*best, (unsigned long long)bits << 32 | (uint32_t)(VOCAB - 1 - i));
    }
    return hidden;
}

struct setting {
    int window;
    bool waits, streams, tells;
};

/* When the blocks of a layer reach each place: medians, in us from the first block's begin. */
template <class S> static void tell_layer(const std::vector<unsigned long long> &times, int layer)
{
    static const char *const product[] = {"qkv", "o", "gate up", "down"};
    static const char *const place[] = {"begins", "known", "packed", "done"};
    const auto at = [&](int block, int i) {
        return times[((size_t)block * S::LAYERS + (size_t)layer) * 16 + (size_t)i];
    };
    unsigned long long zero = ~0ull;
    for (int b = 0; b < N_SM; b++)
        zero = std::min(zero, at(b, 0));
    printf("  layer %d%s:", layer, is_full(layer) ? " (full)" : "");
    for (int i = 0; i < 16; i++) {
        std::vector<double> us;
        for (int b = 0; b < N_SM; b++)
            if (at(b, i) >= zero)
                us.push_back((double)(at(b, i) - zero) * 1e-3);
        printf("%s%s%s %.2f", i % 4 ? " " : "; ", i % 4 ? "" : product[i / 4], i % 4 ? place[i % 4]
               : "", middle(us));
    }
    printf("\n");
}

template <class S> static void measure(const char *name, double speed, double launched)
{
    step a = make_up<S>();
    unsigned long long best, got[N_SM];
    uint32_t *words[2];
    const size_t n_words = (size_t)S::LAYERS * S::WORDS;
    for (int i = 0; i < 2; i++)
        words[i] = memory<uint32_t>(n_words);
    a.times = memory<unsigned long long>((size_t)N_SM * S::LAYERS * 16);
    const std::vector<float> want = reference<S>(a, &best);
    std::vector<float> have(S::WIDTH);
    double bytes = (double)a.head.layer;
    for (int i = 0; i < PRODUCTS; i++)
        bytes += (double)a.product[i].layer * S::LAYERS;
    for (int l = 0; l < S::LAYERS; l++)
        bytes += (is_full(l) ? (int)CONTEXT : (int)WINDOW) * (double)(int)CELL;
    const double least = bytes / speed;
    printf("%s: %.0f MB, floor %.3f ms, launched kernels %.3f ms (R %.2f)\n", name, bytes * 1e-6,
           least, launched, least / launched);
    const int shared = SLOTS * SLOT + SLACK_BYTES + S::ROW_BYTES;
    const auto plain = step_kernel<S, false>, noted = step_kernel<S, true>;
    for (const auto kernel : {plain, noted})
        OK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    int turn = 0;
    const auto launch = [&](decltype(plain) kernel) {
        a.words = words[turn], a.old = words[turn ^ 1];
        turn ^= 1;
        kernel<<<N_SM, THREADS, shared>>>(a);
        OK(cudaGetLastError());
    };
    static const setting settings[] = {
        {3, true, true, true},   {2, true, true, false},  {4, true, true, false},
        {9, true, true, false},  {3, false, true, false}, {3, true, false, true},
        {3, false, false, false},
    };
    for (const setting &s : settings) {
        a.window = s.window, a.waits = s.waits, a.streams = s.streams;
        OK(cudaDeviceSynchronize()); /* a run without waits leaves words behind */
        for (int i = 0; i < 2; i++)
            OK(cudaMemset(words[i], 0, n_words * 4));
        OK(cudaMemset(a.partials, 0, (size_t)2 * N_SM * N_HEAD * PARTIAL * 4));
        int wrong = 0;
        for (int i = 0; i < 40 && s.waits && s.streams; i++) {
            launch(plain);
            OK(cudaMemcpy(have.data(), a.hidden, have.size() * 4, cudaMemcpyDeviceToHost));
            OK(cudaMemcpy(got, a.best, sizeof got, cudaMemcpyDeviceToHost));
            wrong += memcmp(have.data(), want.data(), have.size() * 4) != 0 ||
                     *std::max_element(got, got + N_SM) != best;
        }
        const float ms = time_of(15, [&] {
                             for (int i = 0; i < 10; i++)
                                 launch(plain);
                         }) / 10;
        printf("window %d%s%s: %.4f ms, R %.2f%s\n", s.window, s.waits ? "" : ", nothing waits",
               s.streams ? "" : ", nothing is copied", ms, least / ms,
               !s.waits || !s.streams ? "" : wrong ? ", WRONG BITS" : ", bits equal");
        fflush(stdout);
        if (!s.tells)
            continue;
        launch(noted);
        std::vector<unsigned long long> all((size_t)N_SM * S::LAYERS * 16);
        OK(cudaMemcpy(all.data(), a.times, all.size() * 8, cudaMemcpyDeviceToHost));
        tell_layer<S>(all, 8);
        tell_layer<S>(all, 11);
    }
}

int main()
{
    const double speed = read_speed();
    measure<shape<640, 2048, 18>>("gemma-3-270m", speed, 0.457);
    measure<shape<1152, 6912, 26>>("gemma-3-1b", speed, 0.891);
    return 0;
}
