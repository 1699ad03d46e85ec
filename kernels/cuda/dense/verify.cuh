/* verify.cuh - the verify kernel: products with 17 to 128 rows (the nodes of a draft tree, short
 * prompts), with wgmma on Hopper. verify.cu has its forms for bf16 and FP8, verify_packed.cu those
 * for weights packed in blocks.
 *
 * With so many rows, reading the activations is expensive: 64 rows of 10,240 elements are 1.3 MB,
 * which every multiprocessor would read in order to multiply them with its 200 KB of weights. So a
 * block computes many outputs: a group of some panels of every matrix, up to 192 outputs, for which
 * it reads a stage of the rows once. If a matrix has too few outputs for one group a block, several
 * blocks share a group (split-K): each accumulates some of the 8 k splits and stores their partial
 * sums to scratch. A reduction kernel adds them, or the kernel that reads the sums next.
 *
 * One producer thread fetches stages of 64 of k; it requests weights before the wait for the
 * previous kernel. Three consumer warpgroups multiply, 64 outputs each: weights from registers,
 * rows from shared memory. With GLU a thread has the same outputs of both matrices.
 *
 * A matrix quantized to FP8 (fp8.cuh) or packed in blocks (packed.cuh) is read in that form and
 * widened in registers. Codes of a pair of rows lie together, so a thread has two successive
 * outputs of a packed matrix; with GLU half of a warp's threads have pairs of the gate's, the
 * others the same of up's, and they exchange sums (exchange_gated()).
 *
 * The order of summation is that of product.cuh; wgmma gives the bits of mma.sync (wgmma.cuh).
 */
#pragma once

#include "kernels/cuda/dense/boxes.cuh"

#include <limits.h>

enum {
    STAGE_K = 64,
    WARPGROUPS = 3, /* of consumers */
    MAX_OUTS = WARPGROUPS * HALF_OUT,
    SLACK = HALF_OUT * (int)K_CHUNK_BYTES, /* bytes that a consumer may read behind a group's
                                              last output */
    MAX_STAGES = 16,
    EARLY_BYTES = 84 << 10, /* of weights requested before the wait; more would delay the
                               previous kernel's loads */
    PACKED_PITCH = 65, /* words of a row of packed outputs; odd, so that rows begin in different
                          banks */
};

/* A block for more than 64 columns has a whole warpgroup of which one thread fetches, so that
 * consumers can have more registers than the threads' even share. */
template <int COLS> struct verify_form {
    enum {
        WIDE = COLS > 64, THREADS = WARPGROUPS * 128 + (WIDE ? 128 : 32),
        PRODUCER_REGS = 24, CONSUMER_REGS = 160, /* of a thread, if WIDE */
    };
};

struct verify_args {
    CUtensorMap w[MAX_MATS], x;
    struct product p;
    int panels[MAX_MATS]; /* panels of each matrix in a group */
    int at[MAX_MATS];     /* a matrix's first output among the group's */
    int begin[MAX_MATS];  /* the same among all outputs, with an even number for every matrix */
    int outs, all;        /* outputs of a group; of all groups */
    int place[MAX_MATS];  /* where a matrix's weights begin among those of a chunk of k, in bytes */
    int chunk;            /* bytes from one chunk of a stage to the next */
    int weights;          /* bytes of a stage's weights */
    uint32_t scale[MAX_MATS]; /* FP8: each matrix's scale (fp8_factor()) */
    int warps;            /* consumer warps */
    int groups, k_blocks; /* k_blocks: blocks that share a group, each with some of the k splits */
    int stages;           /* of the ring */
    int stage_bytes;      /* a stage has the rows (swizzled), then the weights of each chunk */
    int early;            /* stages whose weights are requested before the wait */
    float *part;          /* the partial sums (partial_at()), if k_blocks > 1 */
};
/* Packed weights: w has the codes. A stage has the scales of both chunks behind their codes, then
 * what the blocks of each chunk have. */
struct packed_args : verify_args {
    CUtensorMap scales[MAX_MATS], blocks[MAX_MATS];
    int scales_at[MAX_MATS], blocks_at[MAX_MATS]; /* a matrix's, from the stage's weights on */
    int next_blocks;                              /* bytes to those of the second chunk */
    int scale_copy, block_copy; /* bytes that are copied of scales; of a chunk's blocks */
};
template <int STORED>
using args_of = std::conditional_t<is_packed(STORED), packed_args, verify_args>;

static inline __host__ __device__ int paired(int n) { return (n + 1) / 2 * 2; }

/* cuda_product_verify() for packed matrices (verify_packed.cu). */
int cuda_verify_packed(struct kdev *d, const struct product *p, bool defers);

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* ---- device: a block's share -------------------------------------------------------------- */

/* A block's share: groups first, first + step, ... and k splits from .. to - 1 of each. */
struct block_share {
    int first, step, from, to;
    __device__ __forceinline__ explicit block_share(const verify_args &a)
    {
        const int each = K_SPLITS / a.k_blocks, k_block = (int)blockIdx.x % a.k_blocks;
        first = (int)blockIdx.x / a.k_blocks, step = (int)gridDim.x / a.k_blocks;
        from = k_block * each, to = from + each;
    }
};

/* ---- device: fetching ----------------------------------------------------------------------- */

/* The producer thread. It has little time for a stage, so nothing is divided or indexed by a
 * variable. */
template <int COLS, int STORED> struct fetcher {
    enum { ROWS_BYTES = COLS * STAGE_K * 2 };
    const args_of<STORED> &a;
    pointer_ring s;
    uint64_t once;
    __device__ __forceinline__ fetcher(const args_of<STORED> &args, const pointer_ring &ring)
        : a(args), s(ring)
    {
        once = evict_first_policy();
    }
    __device__ __forceinline__ void weights(int group, const k_stages &k, const struct ksplit &c)
    {
        const uint32_t to = shared_at(s.place()) + ROWS_BYTES, full = shared_at(s.filled());
        int bytes = k.n * a.outs * code_bytes(STORED) + ROWS_BYTES;
        if constexpr (is_packed(STORED))
            bytes += a.scale_copy + (block_bytes(STORED) ? k.n * a.block_copy : 0);
        bulk_expect(s.filled(), bytes);
#pragma unroll
        for (int m = 0; m < MAX_MATS; m++) {
            if (m >= a.p.n_mats)
                break;
            const uint32_t at = to + (uint32_t)a.place[m];
            const int panel = group * a.panels[m];
            if constexpr (is_packed(STORED)) {
                const packed_boxes<STORED> from(c, k, a.p.m[m].panels.rows, 0);
                const uint32_t blocks = to + (uint32_t)a.blocks_at[m];
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    if (i == k.n)
                        break;
                    copy(at + (uint32_t)(i * a.chunk), &a.w[m], from.place(i), panel, full);
                    if (block_bytes(STORED))
                        copy_box(blocks + (uint32_t)(i * a.next_blocks), &a.blocks[m],
                                 from.block(i), panel, full);
                }
                copy_box(to + (uint32_t)a.scales_at[m], &a.scales[m], from.scales(), panel, full);
                continue;
            }
            copy(at, &a.w[m], k.place[0], panel, full);
            if (k.n > 1)
                copy(at + (uint32_t)a.chunk, &a.w[m], k.place[1], panel, full);
        }
    }
    /* One chunk of the group's panels of a matrix. */
    __device__ __forceinline__ void copy(uint32_t to, const CUtensorMap *map, int place, int panel,
                                         uint32_t full) const
    {
        if (STORED == DT_BF16)
            copy_units_once(to, map, place, panel, full, once);
        else
            copy_pieces_once(to, map, place, panel, full, once);
    }
    __device__ __forceinline__ void rows(const k_stages &k, const struct ksplit &c)
    {
        copy_box(shared_at(s.place()), &a.x, k.k(c), 0, s.filled());
    }
};

/* The weights of the first stages are requested while the previous kernel drains. */
template <int COLS, int STORED>
__device__ __forceinline__ void fetch_stages(const args_of<STORED> &a, const pointer_ring &s)
{
    const struct ksplit c = a.p.m[0].panels.ksplit;
    const block_share w(a);
    fetcher<COLS, STORED> f(a, s), first(a, s);
    int early = 0;
#pragma unroll 1
    for (k_stages k(c, w.from, w.to); early < a.early && !k.over(); early++, k.next(c)) {
        first.weights(w.first, k, c);
        first.s.next();
    }
    pdl_wait_trigger();
    for (int group = w.first; group < a.groups; group += w.step)
#pragma unroll 1
        for (k_stages k(c, w.from, w.to); !k.over(); k.next(c)) {
            if (early == 0) {
                mbarrier_wait(f.s.emptied(), f.s.pos.phase ^ 1);
                f.weights(group, k, c);
            }
            early -= early > 0;
            f.rows(k, c);
            f.s.next();
        }
}

/* ---- device: consumers ---------------------------------------------------------------------- */

/* acc (64 outputs, 32, 64 or 128 columns) = or += weights * rows, as in wgmma.cuh */
__device__ __forceinline__ void wgmma_narrow(float (&acc)[16], uint32_t w0, uint32_t w1,
                                             uint32_t w2, uint32_t w3, uint64_t rows, int onto)
{
    WGMMA("m64n32k16.f32.bf16.bf16", REG16, "%16", "%17", "%18", "%19", "%20", "%21", ACC8(acc, 0),
          ACC8(acc, 8));
}
__device__ __forceinline__ void wgmma_narrow(float (&acc)[32], uint32_t w0, uint32_t w1,
                                             uint32_t w2, uint32_t w3, uint64_t rows, int onto)
{
    WGMMA("m64n64k16.f32.bf16.bf16", REG32, "%32", "%33", "%34", "%35", "%36", "%37",
          ACC32(acc, 0));
}
__device__ __forceinline__ void wgmma_narrow(float (&acc)[64], uint32_t w0, uint32_t w1,
                                             uint32_t w2, uint32_t w3, uint64_t rows, int onto)
{
    wgmma_bf16(acc, w0, w1, w2, w3, rows, onto);
}

/* The two outputs of a group that quad g of a warp has. With GLU: the same output of both matrices.
 * PACKED: two neighbours. SPLIT (k_blocks > 1): two neighbours, in the last four quads the later
 * one first, so that the eight quads' outputs begin in different banks (shared_units()). */
template <bool SPLIT, bool PACKED> struct outputs {
    int o[2], warp;
    __device__ __forceinline__ outputs(const verify_args &a, int w,
                                       int g = (int)threadIdx.x % 32 / 4)
        : warp(w)
    {
        if (PACKED && !a.p.glu) {
            o[0] = warp * 16 + 2 * g;
            o[1] = o[0] + 1;
        } else if (SPLIT) {
            o[0] = warp * 16 + 2 * g + g / 4;
            o[1] = o[0] ^ 1;
        } else {
            o[0] = warp * (a.p.glu ? 8 : 16) + g;
            o[1] = a.p.glu ? a.at[1] + o[0] : o[0] + 8;
        }
    }
};

/* Where a thread loads weights of two outputs of a chunk, in bytes, and their scales. FP8: the
 * weights of its own outputs. bf16: one unit of the outputs of quad lane % 8 (shared_units()); a
 * chunk of a matrix has unit 0 of the group's outputs, then unit 1 and so on. */
template <int STORED> struct own_weights {
    int row[2];
    uint32_t scale[2];
    template <bool SPLIT>
    __device__ __forceinline__ own_weights(const verify_args &a, const outputs<SPLIT, false> &own)
    {
        constexpr bool UNIT = STORED == DT_BF16;
        const int lane = (int)threadIdx.x % 32;
        const outputs<SPLIT, false> of(a, own.warp, UNIT ? lane % 8 : lane / 4);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int mat = 0;
#pragma unroll
            for (int m = 1; m < MAX_MATS; m++)
                mat = m < a.p.n_mats && of.o[i] >= a.at[m] ? m : mat;
            const int out = of.o[i] - a.at[mat], outs = a.panels[mat] * a.p.m[mat].panels.rows;
            row[i] = a.place[mat] + (UNIT ? (out + lane / 8 * outs) * (int)UNIT_BYTES
                                          : out * K_CHUNK + lane % 4 * 8);
            scale[i] = UNIT ? 0 : a.scale[mat];
        }
    }
};

/* Packed: where the codes of a thread's pair of outputs are, in bytes from a stage's weights on;
 * the scales of its first output and what its blocks have, but for the skew of a split. */
template <int STORED> struct own_pair {
    uint32_t codes, scales, blocks;
    int rows; /* of a panel */
    template <bool SPLIT>
    __device__ __forceinline__ own_pair(const packed_args &a, const outputs<SPLIT, true> &own)
    {
        const int g = (int)threadIdx.x % 32 / 4;
        int mat = a.p.glu ? g % 2 : 0, out = own.warp * 8 + g / 2 * 2;
        if (!a.p.glu) {
#pragma unroll
            for (int m = 1; m < MAX_MATS; m++)
                mat = m < a.p.n_mats && own.o[0] >= a.at[m] ? m : mat;
            out = own.o[0] - a.at[mat];
        }
        rows = a.p.m[mat].panels.rows;
        const int words = scale_words(STORED), panel = out / rows, in = out % rows;
        codes = (uint32_t)(a.place[mat] + out * code_bytes(STORED));
        scales = (uint32_t)(a.scales_at[mat] + (panel * box_words(rows, words) + in * words) * 4);
        blocks = (uint32_t)(a.blocks_at[mat] + (panel * box_words(rows, 1) + in) * 4);
    }
};

/* A thread's weights of two outputs, one chunk (32 of k). */
struct two_weights {
    uint4 v[2];
    __device__ __forceinline__ void load(const uint8_t *at, const own_weights<DT_BF16> &own)
    {
        v[0] = shared_units(shared_at(at) + (uint32_t)own.row[0]);
        v[1] = shared_units(shared_at(at) + (uint32_t)own.row[1]);
    }
    __device__ __forceinline__ void load(const uint8_t *at, const own_weights<STORED_FP8> &own)
    {
        v[0] = fp8_eight(*(const uint2 *)(at + own.row[0]), own.scale[0]);
        v[1] = fp8_eight(*(const uint2 *)(at + own.row[1]), own.scale[1]);
    }
    template <int EACH>
    __device__ __forceinline__ void multiply(float (&acc)[EACH], uint64_t rows, bool onto) const
    {
        wgmma_narrow(acc, v[0].x, v[1].x, v[0].y, v[1].y, rows, onto);
        wgmma_narrow(acc, v[0].z, v[1].z, v[0].w, v[1].w, rows + 2, 1);
    }
};

/* Accumulates one k split of n > 0 chunks into acc. */
template <int COLS, int STORED>
__device__ __forceinline__ void multiply_split(float (&acc)[COLS / 2], const verify_args &a,
                                               pointer_ring &s, int, int n,
                                               const own_weights<STORED> &own)
{
    struct two_weights first, second;
#pragma unroll 1
    for (int i = 0; i < n; i += 2) {
        const uint8_t *stage = s.place(), *w = stage + COLS * STAGE_K * 2;
        const bool both = i + 1 < n;
        mbarrier_wait(s.filled(), s.pos.phase);
        first.load(w, own);
        second.load(w + (both ? a.chunk : 0), own);
        wgmma_fence();
        first.multiply(acc, wgmma_descriptor(shared_at(stage)), i > 0);
        wgmma_commit();
        if (both) {
            wgmma_fence();
            second.multiply(acc, wgmma_descriptor(shared_at(stage)) + 4, true);
            wgmma_commit();
        }
        wgmma_wait<0>();
        mbarrier_arrive_warp(s.emptied());
        s.next();
    }
}

/* The same with packed weights. While wgmma multiplies one chunk, the next one's weights are
 * unpacked. A stage is released when no wgmma reads it any more. */
template <int COLS, int STORED>
__device__ __forceinline__ void multiply_split(float (&acc)[COLS / 2], const packed_args &a,
                                               address_ring &s, int split, int n,
                                               const own_pair<STORED> &own)
{
    struct two_weights even, odd;
    struct packed_pair<STORED> pair;
    const uint32_t codes = COLS * STAGE_K * 2 + own.codes,
                   skew = (uint32_t)skew_of(1, split * own.rows) * 4,
                   scales = COLS * STAGE_K * 2 + own.scales +
                            (scale_words(STORED) % 2 ? skew : 0),
                   blocks = COLS * STAGE_K * 2 + own.blocks + skew;
    uint32_t last = 0;
#pragma unroll 1
    for (int i = 0; i < n; i += 2) {
        const uint32_t stage = s.place();
        const bool both = i + 1 < n;
        const uint64_t rows = wgmma_descriptor(stage);
        mbarrier_wait(s.filled(), s.pos.phase);
        pair.fetch(stage + codes, both ? (uint32_t)a.chunk : 0, stage + scales, stage + blocks,
                   both ? (uint32_t)a.next_blocks : 0);
        pair.unpack(0, even.v[0], even.v[1]);
        wgmma_fence();
        even.multiply(acc, rows, i > 0);
        wgmma_commit();
        wgmma_wait<1>(); /* the previous stage has been read, and `odd` may be overwritten */
        if (i > 0)
            mbarrier_arrive_warp(last);
        last = s.emptied();
        s.next();
        if (!both)
            break;
        pair.unpack(1, odd.v[0], odd.v[1]);
        wgmma_fence();
        odd.multiply(acc, rows + 4, true);
        wgmma_commit();
        wgmma_wait<1>();
    }
    wgmma_wait<0>();
    mbarrier_arrive_warp(last);
}

/* What a consumer warp multiplies with: its outputs and where their weights are, its block's share,
 * and its ring. */
template <bool SPLIT, int STORED> struct consumer {
    using ring = std::conditional_t<is_packed(STORED), address_ring, pointer_ring>;
    using places = std::conditional_t<is_packed(STORED), own_pair<STORED>, own_weights<STORED>>;
    const struct ksplit c;
    const outputs<SPLIT, is_packed(STORED)> own;
    const places weights;
    const block_share w;
    ring s;
    __device__ __forceinline__ consumer(const args_of<STORED> &a, const pointer_ring &p, int warp)
        : c(ksplit_of(a.p.x.kp)), own(a, warp), weights(a, own), w(a), s(ring_from(p))
    {
    }
    /* The chunks of a k split; none: 0 or less. */
    __device__ __forceinline__ int chunks(int split) const
    {
        return min(c.chunks - split * c.each, c.each);
    }
    __device__ __forceinline__ static ring ring_from(const pointer_ring &s)
    {
        if constexpr (is_packed(STORED))
            return {shared_at(s.at), shared_at(s.full), shared_at(s.empty), s.stages, s.stage, {}};
        else
            return s;
    }
};

/* ---- device: the epilogue -------------------------------------------------------------------- */

/* Output o of a group: its matrix, and its index there; out -1: no such output. */
struct target {
    int mat, out;
    __device__ __forceinline__ target(const verify_args &a, int group, int o) : mat(0)
    {
        while (mat + 1 < a.p.n_mats && o >= a.at[mat + 1])
            mat++;
        const int n = a.panels[mat] * a.p.m[mat].panels.rows;
        out = group * n + o - a.at[mat];
        if (o - a.at[mat] >= n || out >= a.p.m[mat].n)
            out = -1;
    }
};

/* Calls store(row, sum of output 0, sum of output 1) for each of a thread's rows: of every eight
 * columns a thread has 2q and 2q + 1. */
template <int COLS, class STORE>
__device__ __forceinline__ void each_sum(const verify_args &a, const float (&sum)[COLS / 2],
                                         const STORE &store)
{
    const int q = (int)threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < COLS / 4; i++) {
        const int row = i / 2 * 8 + 2 * q + i % 2, at = i / 2 * 4 + i % 2;
        if (row < a.p.rows)
            store(row, sum[at], sum[at + 2]);
    }
}

/* Where the partial sums of a thread's two outputs are stored, of the first split and of its first
 * row; NULL: no such outputs. Each matrix has an even number of outputs (panel_rows()). */
__device__ __forceinline__ float *place_of_pair(const verify_args &a, int group, const int (&o)[2])
{
    const target t(a, group, min(o[0], o[1]));
    if (t.out < 0)
        return NULL;
    return a.part + partial_at(a.p.rows, 2 * ((int)threadIdx.x % 4), a.begin[t.mat] + t.out);
}

template <int COLS, bool PACKED>
__device__ __forceinline__ void store_partial(const verify_args &a, const float (&acc)[COLS / 2],
                                              float *to)
{
    const bool turned = !PACKED && (int)threadIdx.x / 16 % 2; /* see outputs */
#pragma unroll
    for (int i = 0; i < COLS / 8; i++) {
        if (i * 8 >= a.p.rows)
            break;
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const float y0 = acc[i * 4 + e], y1 = acc[i * 4 + 2 + e];
            *(float2 *)(to + (i * 8 + e * 4) * PARTIAL_TILE) =
                make_float2(turned ? y1 : y0, turned ? y0 : y1);
        }
    }
}

/* Puts the outputs of a group, packed, into shared memory; each row begins at a whole chunk.
 * Threads of neighbouring outputs form pairs: one stores the even row, the other the odd row. at:
 * where the pair goes in a row, or -1. */
template <int COLS>
__device__ __forceinline__ void stage_packed(const float (&y)[COLS / 4], uint32_t *scratch, int at)
{
    const int lane = (int)threadIdx.x % 32, row = lane % 4 * 2 + lane / 4 % 2;
    const bool odd = row % 2;
    uint32_t *to = scratch + row * PACKED_PITCH + at;
#pragma unroll
    for (int i = 0; i < COLS / 4; i += 2) {
        const float other = __shfl_xor_sync(~0u, odd ? y[i] : y[i + 1], 4);
        const uint32_t v = bf16_two(odd ? other : y[i], odd ? y[i + 1] : other);
        if (at >= 0)
            to[i / 2 * 8 * PACKED_PITCH] = v;
    }
}

/* Stores outputs from .. to - 1 from shared memory to pack_to, a warp a row. */
__device__ __forceinline__ void store_packed(const verify_args &a, const uint32_t *scratch,
                                             int from, int to, int warp)
{
    const int first = from & ~31, lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int i = lane; i < PACKED_PITCH - 1; i += 32) {
        const int out = first + tile_element(2 * i);
        if (out < from || out >= to)
            continue;
        for (int row = warp; row < a.p.rows; row += a.warps)
            *(uint32_t *)(a.p.pack_to + (size_t)row * (size_t)a.p.pack_as.kp + first + 2 * i) =
                scratch[row * PACKED_PITCH + i];
    }
}

__device__ __forceinline__ void consumer_barrier(const verify_args &a)
{
    named_barrier_of<1>(a.warps * 32);
}

/* GLU with packed weights: of a pair of outputs, quads 2j have the gate's sums, quads 2j + 1 up's.
 * Afterwards the former have both sums of the first output, the latter of the second, where
 * finish_gated() takes them. */
template <int COLS> __device__ __forceinline__ void exchange_gated(float (&sum)[COLS / 2])
{
    const bool odd = (int)threadIdx.x / 4 % 2;
#pragma unroll
    for (int i = 0; i < COLS / 4; i++) {
        float &first = sum[i / 2 * 4 + i % 2], &second = sum[i / 2 * 4 + i % 2 + 2];
        const float got = __shfl_xor_sync(~0u, odd ? first : second, 4);
        first = odd ? got : first, second = odd ? second : got;
    }
}

template <int COLS, int ACT, class OWN>
__device__ __forceinline__ void finish_gated(const verify_args &a, const float (&sum)[COLS / 2],
                                             int group, const OWN &own,
                                             uint32_t *scratch)
{
    const target t(a, group, own.o[0]);
    const bool any = t.mat == 0 && t.out >= 0;
    float y[COLS / 4];
#pragma unroll
    for (int i = 0; i < COLS / 4; i++) { /* without a branch, so that the activations overlap */
        const int at = i / 2 * 4 + i % 2;
        y[i] = activate(sum[at], ACT) * sum[at + 2];
    }
    if (a.p.pack_to) {
        const int n = a.panels[0] * a.p.m[0].panels.rows, from = group * n;
        consumer_barrier(a);
        stage_packed<COLS>(y, scratch, any ? (tile_place(t.out) - (from & ~31)) / 2 : -1);
        consumer_barrier(a);
        store_packed(a, scratch, from, min(from + n, a.p.m[0].n), own.warp);
        return;
    }
    float *dst = a.p.f[0].dst + t.out;
#pragma unroll
    for (int i = 0; i < COLS / 4; i++) {
        const int row = i / 2 * 8 + (int)threadIdx.x % 4 * 2 + i % 2;
        if (any && row < a.p.rows)
            dst[(size_t)row * a.p.f[0].dst_stride] = y[i];
    }
}

/* The epilogue of one output of all rows, if it has only bias and addition, as most have. */
template <int COLS>
__device__ __forceinline__ void finish_plain(const verify_args &a, const float (&sum)[COLS / 2],
                                             const target &t, int second)
{
    if (t.out < 0)
        return;
    const epilogue &f = a.p.f[t.mat];
    const float b = f.b.p ? weight_at(f.b, (size_t)t.out) : 0.f;
    const bool biased = f.b.p, add = f.add;
    float *dst = f.dst + t.out;
    each_sum<COLS>(a, sum, [&](int row, float y0, float y1) {
        float y = second ? y1 : y0, *to = dst + (size_t)row * f.dst_stride;
        y = biased ? y + b : y;
        *to = add ? y + *to : y;
    });
}

/* Any other epilogue, in little code, with a copy of the sums that can be indexed by a variable. */
template <int COLS>
__device__ __forceinline__ void finish_any(const verify_args &a, const float (&sum)[COLS / 2],
                                           const target &t, int second)
{
    float copy[COLS / 2];
#pragma unroll
    for (int i = 0; i < COLS / 2; i++)
        copy[i] = sum[i];
    const int q = (int)threadIdx.x % 4;
#pragma unroll 1
    for (int i = 0; t.out >= 0 && i < COLS / 4; i++) {
        const int row = i / 2 * 8 + 2 * q + i % 2;
        if (row < a.p.rows) {
            float y = copy[i / 2 * 4 + second * 2 + i % 2];
            store_output(a.p.f[t.mat], apply_epilogue(a.p.f[t.mat], y, t.out, row), t.out, row);
        }
    }
}

template <int COLS, class OWN>
__device__ __forceinline__ void finish_sums(const verify_args &a, const float (&sum)[COLS / 2],
                                            int group, const OWN &own)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const target t(a, group, own.o[i]);
        const epilogue &f = a.p.f[t.mat];
        if (f.act == ACT_NONE && f.softcap <= 0 && f.scale == 1 && !f.mul)
            finish_plain<COLS>(a, sum, t, i);
        else
            finish_any<COLS>(a, sum, t, i);
    }
}

template <int COLS, class OWN>
__device__ __forceinline__ void finish_group(const verify_args &a, const float (&sum)[COLS / 2],
                                             int group, const OWN &own,
                                             uint32_t *scratch)
{
    if (!a.p.glu)
        finish_sums<COLS>(a, sum, group, own);
    else if (a.p.glu_act == ACT_GELU_TANH)
        finish_gated<COLS, ACT_GELU_TANH>(a, sum, group, own, scratch);
    else if (a.p.glu_act == ACT_SILU)
        finish_gated<COLS, ACT_SILU>(a, sum, group, own, scratch);
    else
        finish_gated<COLS, ACT_NONE>(a, sum, group, own, scratch);
}

/* A consumer warp that accumulates all of k, for each group of the block. */
template <int COLS, int STORED>
__device__ __forceinline__ void multiply_groups(const args_of<STORED> &a, pointer_ring p, int warp)
{
    consumer<false, STORED> my(a, p, warp);
    float acc[COLS / 2], sum[COLS / 2];
    for (int group = my.w.first; group < a.groups; group += my.w.step) {
        for (int split = 0; split < K_SPLITS; split++) {
            const int n = my.chunks(split);
            if (n > 0)
                multiply_split<COLS>(acc, a, my.s, split, n, my.weights);
#pragma unroll
            for (int i = 0; i < COLS / 2; i++) /* an empty split adds zero (-0 becomes 0), as in
                                                  the other kernels */
                sum[i] = split ? sum[i] + (n > 0 ? acc[i] : 0.f) : acc[i];
        }
        if (is_packed(STORED) && a.p.glu)
            exchange_gated<COLS>(sum);
        finish_group<COLS>(a, sum, group, my.own, (uint32_t *)(p.at + p.stages * p.stage));
    }
}

/* A consumer warp that accumulates some k splits of the block's one group. */
template <int COLS, int STORED>
__device__ __forceinline__ void multiply_splits(const args_of<STORED> &a, pointer_ring p, int warp)
{
    consumer<true, STORED> my(a, p, warp);
    float acc[COLS / 2], *to = place_of_pair(a, my.w.first, my.own.o);
    for (int split = my.w.from; split < my.w.to; split++) {
        const int n = my.chunks(split);
        if (n <= 0)
            return;
        multiply_split<COLS>(acc, a, my.s, split, n, my.weights);
        if (to)
            store_partial<COLS, is_packed(STORED)>(
                a, acc, to + (size_t)split * partial_floats(a.p.rows, a.all));
    }
}

#endif

/* ---- kernels -------------------------------------------------------------------------------- */

template <int COLS, bool SPLIT, int STORED>
__global__ void __launch_bounds__(verify_form<COLS>::THREADS, 1)
    verify_kernel(const __grid_constant__ args_of<STORED> a)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ uint8_t dynamic[];
    __shared__ uint64_t full[MAX_STAGES], empty[MAX_STAGES];
    pointer_ring s = {align_stages(dynamic), full, empty, a.stages, a.stage_bytes, {}};
    pdl_trigger();
    if (threadIdx.x == 0) {
        init_ring(full, empty, a.stages, 1, a.warps);
        mbarrier_init_fence();
    }
    __syncthreads();
    using F = verify_form<COLS>;
    const int warp = __shfl_sync(~0u, (int)threadIdx.x / 32, 0);
    if (warp < a.warps) {
        if constexpr (F::WIDE)
            asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"((int)F::CONSUMER_REGS));
        pdl_wait_trigger();
        if (SPLIT)
            multiply_splits<COLS, STORED>(a, s, warp);
        else
            multiply_groups<COLS, STORED>(a, s, warp);
    } else if (warp >= 4 * WARPGROUPS) {
        if constexpr (F::WIDE)
            asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"((int)F::PRODUCER_REGS));
        if (threadIdx.x == WARPGROUPS * 128)
            fetch_stages<COLS, STORED>(a, s);
    }
#endif
}

/* ---- host ----------------------------------------------------------------------------------- */

/* Divides the work into `groups` groups, shared by k_blocks blocks each. False: a group would have
 * more outputs than the consumers hold. */
static bool divide_work(struct verify_args *a, int groups, int k_blocks)
{
    const struct product *p = &a->p;
    a->outs = a->all = a->groups = 0;
    a->k_blocks = k_blocks;
    for (int i = 0; i < p->n_mats; i++) {
        const struct panels *l = &p->m[i].panels;
        a->panels[i] = div_up(l->n, groups);
        a->groups = max_int(a->groups, div_up(l->n, a->panels[i]));
        a->at[i] = a->outs, a->begin[i] = a->all;
        a->outs += a->panels[i] * l->rows, a->all += paired(p->m[i].n);
    }
    return a->outs <= MAX_OUTS;
}

/* The relative time of a division: the bytes a multiprocessor reads (rows, which come from L2, at
 * half the price of weights), and the reduction, as long as reading 80 KB. */
static long long cost_of(const struct kdev *d, const struct verify_args *a, int cols, int chunk)
{
    enum { REDUCE = 80 << 10 };
    long long rounds = div_up(a->groups, max_int(d->gpu.n_sm / a->k_blocks, 1));
    long long chunks = rounds * a->p.x.kp / (int)K_CHUNK / a->k_blocks;
    return chunks * (a->outs * chunk + cols * (int)K_CHUNK) + (a->k_blocks > 1 ? REDUCE : 0);
}

/* chunk: bytes of an output's chunk of k. */
template <class ARGS>
static void choose_division(const struct kdev *d, ARGS *a, int cols, int chunk)
{
    enum { ROUNDS = 4 }; /* divisions to try with k_blocks 1 */
    ARGS best = {};
    long long least = LLONG_MAX;
    for (int k_blocks = 1; k_blocks <= (a->p.glu ? 1 : (int)K_SPLITS); k_blocks *= 2)
        for (int round = 1, fits = 0; fits < (k_blocks > 1 ? 1 : ROUNDS); round++) {
            if (!divide_work(a, d->gpu.n_sm * round / k_blocks, k_blocks)) {
                if (k_blocks > 1)
                    break;
                continue;
            }
            fits++;
            long long cost = cost_of(d, a, cols, chunk);
            if (cost < least)
                least = cost, best = *a;
        }
    *a = best;
}

/* Copies of boxes go to multiples of 128 bytes. */
static int box_room(int bytes) { return (int)cuda_round((size_t)bytes, 128); }

/* Where the weights of a stage are. */
template <int STORED> static void place_weights(args_of<STORED> *a)
{
    const struct product *p = &a->p;
    a->chunk = 0;
    for (int i = 0; i < p->n_mats; i++) {
        a->place[i] = a->chunk;
        a->chunk += box_room(a->panels[i] * p->m[i].panels.rows * code_bytes(STORED));
        a->scale[i] = STORED == STORED_FP8 ? fp8_factor(p->m[i].unit) : 0;
    }
    a->weights = 2 * a->chunk;
    if constexpr (is_packed(STORED)) {
        int blocks = 0;
        for (int i = 0; i < p->n_mats; i++) {
            const int rows = p->m[i].panels.rows,
                      bytes = a->panels[i] * box_words(rows, scale_words(STORED)) * 4;
            a->scales_at[i] = a->weights;
            a->weights += box_room(bytes), a->scale_copy += bytes;
        }
        for (int i = 0; block_bytes(STORED) && i < p->n_mats; i++) {
            const int bytes = a->panels[i] * box_words(p->m[i].panels.rows, 1) * 4;
            a->blocks_at[i] = a->weights + blocks;
            blocks += box_room(bytes), a->block_copy += bytes;
        }
        a->next_blocks = blocks;
        a->weights += 2 * blocks;
    }
}

template <int COLS, int STORED>
static int run(struct kdev *d, const struct product *p, bool defers)
{
    args_of<STORED> a = {};
    a.p = *p;
    choose_division(d, &a, COLS, code_bytes(STORED) + scale_bytes(STORED));
    const int splits = a.k_blocks > 1 ? p->m[0].panels.ksplit.splits : 0;
    for (int i = 0; i < p->n_mats; i++) { /* a box: one chunk of the panels of a group */
        const int rows = p->m[i].panels.rows;
        part_map<STORED>(d, &a.w[i], &p->m[i], a.panels[i], rows);
        if constexpr (is_packed(STORED))
            scale_maps<STORED>(d, &a.scales[i], &a.blocks[i], &p->m[i], a.panels[i], rows);
    }
    cuda_tile_map(d, &a.x, p->x.x, p->rows, p->x.kp, (size_t)p->x.kp * 2, STAGE_K, COLS);
    place_weights<STORED>(&a);
    a.stage_bytes = (int)cuda_round((size_t)(COLS * STAGE_K * 2 + a.weights), 1024);
    a.warps = 4 * (p->glu ? div_up(a.at[1], HALF_OUT / 2) : div_up(a.outs, HALF_OUT));
    CHECK(!p->pack_to || (p->glu && p->pack_as.kind == ROW_TILED));
    const int behind = max_int(SLACK, p->pack_to ? COLS * PACKED_PITCH * (int)sizeof(uint32_t) : 0);
    a.stages = min_int((MAX_SMEM - 2048 - behind) / a.stage_bytes, MAX_STAGES);
    if (splits) /* with less shared memory, a block can start beside one of the previous kernel */
        a.stages =
            min_int(a.stages, (int)K_SPLITS / a.k_blocks * div_up(p->m[0].panels.ksplit.each, 2));
    a.early = min_int(a.stages, max_int(EARLY_BYTES / a.weights, 2));
    defers = defers && splits && p->rows <= MAX_VERIFY_ROWS &&
             (p->row_epilogue.is_qkv || cuda_is_bare_store(&p->f[0]));
    if (defers)
        a.part = p->f[0].dst;
    else if (splits)
        a.part =
            (float *)cuda_take(d, (size_t)splits * partial_floats(p->rows, a.all) * sizeof(float));
    int blocks = splits ? a.groups * a.k_blocks : min_int(a.groups, d->gpu.n_sm);
    cuda_launch(d, splits ? verify_kernel<COLS, true, STORED> : verify_kernel<COLS, false, STORED>,
                dim3((unsigned)blocks), verify_form<COLS>::THREADS,
                (size_t)(a.stages * a.stage_bytes + 1024 + behind), a);
    if (splits && !defers)
        cuda_reduce_splits(d, p, a.part, a.all, splits);
    return defers ? splits : 0;
}

/* The kernel for 32, 64 or 128 columns. */
template <int STORED> static int run_rows(struct kdev *d, const struct product *p, bool defers)
{
    CHECK(p->rows <= 128);
    return p->rows <= 32   ? run<32, STORED>(d, p, defers)
           : p->rows <= 64 ? run<64, STORED>(d, p, defers)
                           : run<128, STORED>(d, p, defers);
}
