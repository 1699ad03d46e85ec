/* prefill.cuh - the prefill kernel: products of more rows than the verify kernel takes (route.c),
 * with wgmma on Hopper. prefill.cu has its forms for bf16 and FP8, prefill_packed.cu those for
 * weights packed in blocks.
 *
 * The kernel is persistent: one block a multiprocessor takes tile after tile (128 outputs by COLS
 * columns). TMA fetches stages of 64 of k. With GLU one of a block's two consumer warpgroups
 * multiplies with the gate matrix and the other with the up matrix. wgmma reads weights and rows
 * from shared memory: panels are stored in the order of its operands (base/panel.cuh). A matrix
 * quantized to FP8 (fp8.cuh) or packed in blocks (packed.cuh) is read in that form and widened in
 * registers, from which wgmma reads it.
 */
#pragma once

#include "kernels/cuda/dense/boxes.cuh"
#include "kernels/cuda/dense/prefill_write.cuh"

#include <type_traits>

enum {
    STAGE_K = 64,
    CHUNK_BYTES = HALF_OUT * (int)K_CHUNK_BYTES, /* bytes of one chunk's weights of a consumer
                                                   warpgroup */
    HALF_BYTES = 2 * CHUNK_BYTES,
    GROUP = 16, /* tiles of rows that are processed together, so that they read the same weights
                   from L2 */
    PANEL_PARTS = 2,
    /* A stage of packed weights: codes, the scales of both chunks (scale_room()), what the blocks
     * of the first and of the second chunk have; with GLU the second half of each room is up's. */
    SCALES_AT = 8 << 10, BLOCKS_AT = 10 << 10, SCALE_ROOM = 2 << 10,
};

/* The number of columns of a tile decides how much shared memory and how many registers are
 * left. */
template <int COLS> struct form {
    enum {
        TILE_STAGE_BYTES = 2 * HALF_BYTES + COLS * STAGE_K * 2,
        SUM_BYTES = COLS * TILE_OUT * (int)sizeof(float),
        STAGES = (MAX_SMEM - 1024 - 512 - SUM_BYTES) / TILE_STAGE_BYTES,
        SHARED = STAGES * TILE_STAGE_BYTES + SUM_BYTES + 1024,
        OTHERS = COLS <= 160 ? 8 : 4, /* warps that do not multiply: one fetches, the others
                                         write */
        WRITERS = OTHERS - 1,
        THREADS = (OTHERS + 8) * 32,
        OTHERS_REGS = COLS == 128 ? 72 : 56, /* registers of a thread */
        MULTIPLY_REGS = COLS == 128 ? 184 : COLS == 160 ? 200 : 224,
    };
};

/* How a matrix's outputs are divided into tiles. The rows of its panels are divided into one part
 * or two: the first run[0] rows, and the others. A tile has one part of successive panels. */
struct division {
    int run[PANEL_PARTS];    /* rows of a part: successive outputs of a tile */
    int panels[PANEL_PARTS]; /* panels of a tile */
    int n, first;      /* number of tiles; of these, tiles of the first part */
};

struct prefill_args {
    CUtensorMap w[MAX_MATS][PANEL_PARTS], x;
    struct product p;
    struct division of[MAX_MATS];
    int tiles_out, tiles_row;
    uint32_t scale[MAX_MATS]; /* FP8: each matrix's scale (fp8_factor()) */
};
/* Packed weights: w has the codes. */
struct packed_args : prefill_args {
    CUtensorMap scales[MAX_MATS][PANEL_PARTS], blocks[MAX_MATS][PANEL_PARTS];
};
template <int STORED>
using args_of = std::conditional_t<is_packed(STORED), packed_args, prefill_args>;

/* Bytes of a stage for scales; types with more have no blocks. */
static constexpr inline __host__ __device__ int scale_room(int stored)
{
    return scale_bytes(stored) > 8 ? 2 * SCALE_ROOM : (int)SCALE_ROOM;
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* ---- device: tiles -------------------------------------------------------------------------- */

struct tile_origin {
    int mat, part;  /* the tile's outputs: their matrix, their part of its panels, */
    int panel, row; /* the first panel, the first row in each panel, */
    int run, wide;  /* how many are successive, how many there are (GLU: of each matrix) */
    int col;        /* the tile's first column */
};
/* Tiles of both parts take turns in proportion to their numbers, so that a panel's parts are read
 * close to each other. */
template <int COLS>
__device__ __forceinline__ struct tile_origin origin_of(const prefill_args &a, int tile)
{
    struct tile_origin at = {};
    int first = tile / (GROUP * a.tiles_out) * GROUP, width = min(GROUP, a.tiles_row - first);
    int in = tile - first * a.tiles_out, t = in / width;
    at.col = (first + in % width) * COLS;
    while (!a.p.glu && at.mat + 1 < a.p.n_mats && t >= a.p.first[at.mat + 1])
        at.mat++;
    t -= a.p.first[at.mat];
    const struct division &of = a.of[at.mat];
    const int before = t * of.first / of.n; /* tiles of the first part */
    at.part = (t + 1) * of.first / of.n == before;
    at.panel = (at.part ? t - before : before) * of.panels[at.part];
    at.row = at.part ? of.run[0] : 0;
    at.run = of.run[at.part];
    at.wide = at.run * of.panels[at.part];
    return at;
}

/* ---- device: the roles ---------------------------------------------------------------------- */

/* Fetches a tile's weights: for each of a stage's two chunks of k, 16 bytes of each output, one
 * output after the other, four times (the units of a panel); of FP8, 32 bytes of each output. With
 * GLU a stage has both chunks of the gate's outputs, then both of up's. */
template <int STORED> struct tile_weights {
    static constexpr int BYTES = code_bytes(STORED) / (int)K_CHUNK;
    const CUtensorMap *map;
    int panel, row, bytes; /* the first panel; the first row in each; bytes of one chunk */
    bool glu;
    __device__ __forceinline__ tile_weights(const prefill_args &a, const tile_origin &at)
        : map(&a.w[at.mat][at.part]), panel(at.panel), row(at.row),
          bytes(at.wide * K_CHUNK * BYTES), glu(a.p.glu)
    {
    }
    __device__ __forceinline__ void copy(uint32_t to, const CUtensorMap *from, int place,
                                         uint64_t *full) const
    {
        if (BYTES == 2)
            copy_units(to, from, place, panel, full, row);
        else
            copy_pieces(to, from, place, panel, full, row * (K_CHUNK / 8));
    }
    __device__ __forceinline__ void fetch(uint8_t *to, const k_stages &k, int rows_bytes,
                                          uint64_t *full) const
    {
        bulk_expect(full, (bytes << (int)glu) * k.n + rows_bytes);
        const uint32_t at = shared_at(to);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if (i == k.n)
                break;
            copy(at + i * CHUNK_BYTES * (glu ? 1 : 2), map, k.place[i], full);
            if (glu)
                copy(at + (2 + i) * CHUNK_BYTES, map + PANEL_PARTS, k.place[i], full);
        }
    }
};

/* Packed weights: boxes of codes, of scales and of blocks. */
template <int STORED> struct packed_tile {
    static constexpr int PIECE = HALF_OUT * code_bytes(STORED); /* a warpgroup's codes of a chunk */
    const CUtensorMap *codes, *scales, *blocks;
    const struct ksplit &c;
    int panel, row, rows; /* the first panel; the first row in each, of so many */
    int bytes, scale_bytes_, block_bytes_;
    bool glu;
    __device__ __forceinline__ packed_tile(const packed_args &a, const tile_origin &at,
                                           const struct ksplit &c)
        : codes(&a.w[at.mat][at.part]), scales(&a.scales[at.mat][at.part]),
          blocks(&a.blocks[at.mat][at.part]), c(c), panel(at.panel), row(at.row),
          rows(a.p.m[at.mat].panels.rows), bytes(at.wide * code_bytes(STORED)), glu(a.p.glu)
    {
        const int panels = at.wide / at.run;
        scale_bytes_ = panels * box_words(at.run, scale_words(STORED)) * 4;
        block_bytes_ = block_bytes(STORED) ? panels * box_words(at.run, 1) * 4 : 0;
    }
    /* up: 1 for the second matrix of GLU. */
    __device__ __forceinline__ void copy(uint32_t at, const k_stages &k, int up,
                                         uint64_t *full) const
    {
        const int maps = up * (int)PANEL_PARTS, half = up * scale_room(STORED) / 2;
        const packed_boxes<STORED> from(c, k, rows, row);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if (i == k.n)
                break;
            copy_pieces(at + (glu ? 2 * up + i : 2 * i) * PIECE, codes + maps, from.place(i), panel,
                        full, row * code_bytes(STORED) / 8);
            if (block_bytes(STORED))
                copy_box(at + BLOCKS_AT + i * SCALE_ROOM + half, blocks + maps, from.block(i),
                         panel, full);
        }
        copy_box(at + SCALES_AT + half, scales + maps, from.scales(), panel, full);
    }
    __device__ __forceinline__ void fetch(uint8_t *to, const k_stages &k, int rows_bytes,
                                          uint64_t *full) const
    {
        const int of_matrix = (bytes + block_bytes_) * k.n + scale_bytes_;
        bulk_expect(full, (of_matrix << (int)glu) + rows_bytes);
        copy(shared_at(to), k, 0, full);
        if (glu)
            copy(shared_at(to), k, 1, full);
    }
};

template <int STORED>
__device__ __forceinline__ auto weights_of(const args_of<STORED> &a, const tile_origin &at,
                                           const struct ksplit &c)
{
    if constexpr (is_packed(STORED))
        return packed_tile<STORED>(a, at, c);
    else
        return tile_weights<STORED>(a, at);
}

__device__ __forceinline__ int tiles_of_block(const prefill_args &a)
{
    return (a.tiles_out * a.tiles_row - 1 - (int)blockIdx.x) / (int)gridDim.x + 1;
}

/* The origins of a block's tiles in turn, in shared memory. The thread that fetches computes the
 * first origin. A writer computes the others, two tiles ahead: an origin's five divisions take as
 * long as two stages, in which the ring would run empty. The thread that fetches waits for an
 * origin's mbarrier; the other warps read the origin once the tile's first stage has arrived. So
 * nothing is further ahead of the writers than two tiles, and N is enough. */
struct tile_list {
    enum { N = 8 };
    tile_origin origin[N];
    uint64_t placed[N];
    __device__ __forceinline__ const tile_origin &operator[](int n) const { return origin[n % N]; }
    __device__ __forceinline__ void init()
    {
        for (int i = 0; i < N; i++)
            mbarrier_init(&placed[i], 1);
    }
    template <int COLS> __device__ __forceinline__ void place(const prefill_args &a, int n)
    {
        origin[n % N] = origin_of<COLS>(a, (int)blockIdx.x + n * (int)gridDim.x);
    }
    /* Tiles 1, 2, ...: one thread places each and announces it, another waits for it. */
    template <int COLS> __device__ __forceinline__ void announce(const prefill_args &a, int n)
    {
        place<COLS>(a, n);
        mbarrier_arrive(&placed[n % N]);
    }
    __device__ __forceinline__ void wait(int n) const
    {
        mbarrier_wait(&placed[n % N], (uint32_t)(n - 1) / N & 1);
    }
};

/* The one thread that fetches. It requests the weights of the first stages while the previous
 * kernel drains. */
template <int COLS, int STORED>
__device__ __forceinline__ void fetch_tiles(const args_of<STORED> &a, pointer_ring r,
                                            tile_list &list)
{
    using F = form<COLS>;
    const struct ksplit c = ksplit_of(a.p.x.kp);
    const int tiles = tiles_of_block(a), rows_bytes = COLS * STAGE_K * 2;
    int early = 0;
    list.place<COLS>(a, 0);
    struct tile_origin at = list[0];
    const auto first = weights_of<STORED>(a, at, c);
#pragma unroll 1
    for (k_stages k(c, 0, c.splits); early < F::STAGES && !k.over(); early++, k.next(c))
        first.fetch(r.at + early * F::TILE_STAGE_BYTES, k, rows_bytes, &r.full[early]);
    pdl_wait_trigger();
    for (int n = 1;; n++) {
        const auto w = weights_of<STORED>(a, at, c);
#pragma unroll 1
        for (k_stages k(c, 0, c.splits); !k.over(); k.next(c)) {
            uint8_t *to = r.place();
            if (early == 0) {
                mbarrier_wait(r.emptied(), r.pos.phase ^ 1);
                w.fetch(to, k, rows_bytes, r.filled());
            }
            early -= early > 0;
            copy_box(shared_at(to) + 2 * HALF_BYTES, &a.x, k.k(c), at.col, r.filled());
            r.next();
        }
        if (n >= tiles)
            return;
        list.wait(n);
        at = list[n];
    }
}

/* A consumer warp's position in the ring, as addresses in shared memory that change by additions
 * only: between two products a warp has time for few instructions. */
template <int COLS> struct consumer_ring {
    uint32_t first_at, first_full, to_empty; /* to_empty: from a full to its empty barrier */
    uint32_t at, full, rows; /* the stage, its full barrier, the low word of its rows' descriptor */
    uint32_t phase;
    int slot;
    __device__ __forceinline__ consumer_ring(const pointer_ring &r)
        : first_at(shared_at(r.at)), first_full(shared_at(r.full)),
          to_empty(shared_at(r.empty) - shared_at(r.full)), phase(0), slot(0)
    {
        begin();
    }
    __device__ __forceinline__ void begin()
    {
        at = first_at, full = first_full;
        rows = (uint32_t)wgmma_descriptor(first_at + 2 * HALF_BYTES);
    }
    __device__ __forceinline__ void next()
    {
        using F = form<COLS>;
        at += F::TILE_STAGE_BYTES, full += 8, rows += F::TILE_STAGE_BYTES / 16;
        if (++slot == F::STAGES)
            slot = 0, phase ^= 1, begin();
    }
    __device__ __forceinline__ uint64_t descriptor() const
    {
        return (wgmma_descriptor(0) & ~(uint64_t)UINT32_MAX) | rows;
    }
    /* The address of the stage's rows, in 16 bytes. */
    __device__ __forceinline__ uint32_t rows_at() const { return rows & 0xffff; }
    __device__ __forceinline__ void wait() const { mbarrier_wait(full, phase); }
    /* Releases the stage whose full barrier is at `of`. */
    __device__ __forceinline__ void release(uint32_t of) const
    {
        mbarrier_arrive_warp(of + to_empty);
    }
};

/* The first of a thread's two outputs among the 64 of its warpgroup; the second is + 8. */
__device__ __forceinline__ int own_output()
{
    int t = (int)threadIdx.x % 128;
    return t / 32 * 16 + t % 32 / 4;
}

/* The first of a thread's two outputs if they are successive. */
__device__ __forceinline__ int own_pair()
{
    const int t = (int)threadIdx.x % 128;
    return t / 32 * 16 + t % 32 / 4 * 2;
}

/* Where the weights of a warpgroup's outputs are, for the tile at hand. bf16: the descriptor of
 * those of the first sixteen of a stage's k, relative to the address of the stage's rows; from
 * there on, in 16 bytes, those of the second sixteen, and the second chunk. Without GLU the
 * outputs of both warpgroups are successive. */
template <int STORED> struct own_weights;
template <> struct own_weights<DT_BF16> {
    uint64_t first;
    uint32_t sixteen, second;
    int behind; /* bytes from the stage on */
    __device__ __forceinline__ own_weights(int half, bool glu)
        : first(0), sixteen(0), second(CHUNK_BYTES * (glu ? 1 : 2) / 16),
          behind(half * (glu ? 2 * CHUNK_BYTES : HALF_OUT * (int)UNIT_BYTES))
    {
    }
    __device__ __forceinline__ void begin(const prefill_args &, const tile_origin &at, int)
    {
        const int unit = at.wide * UNIT_BYTES;
        first = wgmma_units(0, unit) - (uint64_t)((2 * HALF_BYTES - behind) / 16);
        sixteen = (uint32_t)(2 * unit / 16);
    }
};

/* Issues the products of the first CHUNKS chunks of a stage, when it has arrived. */
template <int COLS, int CHUNKS>
__device__ __forceinline__ void multiply_stage(float (&acc)[COLS / 2],
                                               const consumer_ring<COLS> &r,
                                               const own_weights<DT_BF16> &own, bool onto)
{
    const uint64_t rows = r.descriptor(), w = r.rows_at() + own.first;
    r.wait();
    wgmma_fence();
    wgmma_bf16(acc, w, rows, onto);
    wgmma_bf16(acc, w + own.sixteen, rows + 2, 1);
    if constexpr (CHUNKS == 2) {
        wgmma_bf16(acc, w + own.second, rows + 4, 1);
        wgmma_bf16(acc, w + own.second + own.sixteen, rows + 6, 1);
    }
    wgmma_commit();
}

/* What a consumer does while wgmma multiplies: nothing, or as many parts as PARTS says, each called
 * once behind a stage's products. */
struct nothing_beside {
    enum { PARTS = 0 };
    __device__ __forceinline__ void operator()(int) const {}
};

/* Accumulates one k split of n > 0 chunks into acc. While wgmma multiplies a stage, the next
 * stage's products are issued. A stage is released when no wgmma reads it any more. */
template <int COLS, class BESIDE = nothing_beside>
__device__ __forceinline__ void multiply_split(float (&acc)[COLS / 2], consumer_ring<COLS> &r,
                                               int n, const own_weights<DT_BF16> &own,
                                               const BESIDE &beside = {})
{
    uint32_t last = 0;
#pragma unroll 1
    for (int i = 0; i + 1 < n; i += 2) {
        multiply_stage<COLS, 2>(acc, r, own, i > 0);
        if (i / 2 < BESIDE::PARTS)
            beside(i / 2);
        wgmma_wait<1>(); /* the previous stage has been read */
        if (i > 0)
            r.release(last);
        last = r.full;
        r.next();
    }
    if (n % 2) {
        multiply_stage<COLS, 1>(acc, r, own, n > 1);
        wgmma_wait<1>();
        if (n > 1)
            r.release(last);
        last = r.full;
        r.next();
    }
#pragma unroll 1
    for (int i = n / 2; i < BESIDE::PARTS; i++)
        beside(i);
    wgmma_wait<0>();
    r.release(last);
}

/* FP8 and packed weights: a thread's weights of two outputs, one chunk (32 of k). */
struct widened {
    uint4 r0, r1;
    template <int EACH>
    __device__ __forceinline__ void multiply(float (&acc)[EACH], uint64_t rows, bool onto) const
    {
        wgmma_fence();
        wgmma_bf16(acc, r0.x, r1.x, r0.y, r1.y, rows, onto);
        wgmma_bf16(acc, r0.z, r1.z, r0.w, r1.w, rows + 2, 1);
        wgmma_commit();
    }
};
/* A thread's weights of a stage as they are stored: fetch() takes where the stage begins and
 * whether it has a second chunk, widen() makes bf16 numbers of chunk u. */
template <int STORED> struct stage_weights;

/* FP8: where a thread's weights are: those of a stage's first chunk, from the stage on; those of
 * the second chunk, from there on. Without GLU the outputs of both warpgroups are successive. */
template <> struct own_weights<STORED_FP8> {
    uint32_t first, second, scale;
    __device__ __forceinline__ own_weights(int half, bool glu)
        : first((uint32_t)(half * (glu ? 2 * CHUNK_BYTES : HALF_OUT * K_CHUNK) +
                           own_output() * K_CHUNK + (int)threadIdx.x % 4 * 8)),
          second(CHUNK_BYTES * (glu ? 1 : 2)), scale(0)
    {
    }
    __device__ __forceinline__ void begin(const prefill_args &a, const tile_origin &at, int half)
    {
        scale = a.scale[a.p.glu ? half : at.mat];
    }
};

template <> struct stage_weights<STORED_FP8> {
    uint32_t at;
    __device__ __forceinline__ void fetch(uint32_t stage, const own_weights<STORED_FP8> &own, bool)
    {
        at = stage + own.first;
    }
    __device__ __forceinline__ void widen(int u, const own_weights<STORED_FP8> &own,
                                          struct widened &to) const
    {
        const uint32_t from = at + (u ? own.second : 0);
        const uint2 v0 = shared8(from), v1 = shared8(from + 8 * K_CHUNK);
        to.r0 = fp8_eight(v0, own.scale), to.r1 = fp8_eight(v1, own.scale);
    }
};

/* Packed weights: where a thread's are in a stage: the codes of its pair of rows in the first
 * chunk, from there on in the second; their scales; what their blocks have. A thread's two outputs
 * are successive. */
template <int STORED> struct own_weights {
    static constexpr int PIECE = packed_tile<STORED>::PIECE, ROOM = scale_room(STORED);
    uint32_t codes, second, scales, blocks;
    __device__ __forceinline__ own_weights(int, bool) {}
    __device__ __forceinline__ void begin(const prefill_args &, const tile_origin &, int) {}
    /* Before each split. What follows from the tile alone is computed again: a consumer of 192
     * columns has no registers for it. */
    __device__ __forceinline__ void enter(const prefill_args &a, const tile_origin &at, int half,
                                          int split)
    {
        const int first = own_pair() + (a.p.glu ? 0 : half * (int)HALF_OUT), run = at.run,
                  words = scale_words(STORED), panel = first / run,
                  behind = box_words(run, words) - run * words,
                  behind_block = box_words(run, 1) - run,
                  skew = skew_of(words, split * a.p.m[at.mat].panels.rows + at.row);
        const uint32_t room = (uint32_t)(a.p.glu ? half * ROOM / 2 : 0);
        codes = (uint32_t)((a.p.glu ? half * 2 * PIECE : half * PIECE) +
                           own_pair() * code_bytes(STORED));
        second = (uint32_t)(PIECE * (a.p.glu ? 1 : 2));
        scales = SCALES_AT + room + (uint32_t)(first * words + panel * behind + skew) * 4;
        if (block_bytes(STORED))
            blocks = BLOCKS_AT + room + (uint32_t)(first + panel * behind_block + skew) * 4;
    }
};

template <int STORED> struct stage_weights {
    struct packed_pair<STORED> pair;
    __device__ __forceinline__ void fetch(uint32_t stage, const own_weights<STORED> &own, bool two)
    {
        pair.fetch(stage + own.codes, two ? own.second : 0, stage + own.scales, stage + own.blocks,
                   two ? SCALE_ROOM : 0);
    }
    __device__ __forceinline__ void widen(int u, const own_weights<STORED> &,
                                          struct widened &to) const
    {
        pair.unpack(u, to.r0, to.r1);
    }
};

/* The same with FP8 and packed weights. While wgmma multiplies one chunk, the next one's weights
 * are widened. */
template <int COLS, int STORED>
__device__ __forceinline__ void multiply_split(float (&acc)[COLS / 2], consumer_ring<COLS> &r,
                                               int n, const own_weights<STORED> &own)
{
    struct widened even, odd;
    struct stage_weights<STORED> now;
    uint32_t last = 0;
#pragma unroll 1
    for (int i = 0; i + 1 < n; i += 2) {
        const uint64_t rows = r.descriptor();
        r.wait();
        now.fetch(r.at, own, true);
        now.widen(0, own, even);
        even.multiply(acc, rows, i > 0);
        wgmma_wait<1>(); /* the previous stage has been read, and `odd` may be overwritten */
        if (i > 0)
            r.release(last);
        now.widen(1, own, odd);
        odd.multiply(acc, rows + 4, true);
        wgmma_wait<1>();
        last = r.full;
        r.next();
    }
    if (n % 2) {
        r.wait();
        now.fetch(r.at, own, false);
        now.widen(0, own, even);
        even.multiply(acc, r.descriptor(), n > 1);
        wgmma_wait<0>();
        if (n > 1)
            r.release(last);
        last = r.full;
        r.next();
    }
    wgmma_wait<0>();
    r.release(last);
}

/* Stores a thread's sums of the last tile to the buffer, in parts, while the first split of the
 * next tile is multiplied. due: there is a last tile. */
template <int TERMS, int COLS> struct late_sums {
    enum { PARTS = 4 };
    const sum_buffer &e;
    const float (&sum)[COLS / 2 / TERMS];
    int out;
    bool due;
    __device__ __forceinline__ void operator()(int part) const
    {
        if (!due)
            return;
        switch (part) {
        case 0: store_sums<TERMS, TILE_OUT, 0, PARTS>(e.sums, sum, out); break;
        case 1: store_sums<TERMS, TILE_OUT, 1, PARTS>(e.sums, sum, out); break;
        case 2: store_sums<TERMS, TILE_OUT, 2, PARTS>(e.sums, sum, out); break;
        default:
            store_sums<TERMS, TILE_OUT, 3, PARTS>(e.sums, sum, out);
            mbarrier_arrive_warp(e.filled);
        }
    }
};

/* One of the two consumer warpgroups. bf16: a tile's sums are stored while the next tile's first
 * split is multiplied. Loops that unpack have few registers left, so sums of other weights are
 * stored at the tile's end. */
template <int TERMS, int COLS, int STORED>
__device__ __forceinline__ void multiply_tiles(const prefill_args &a, pointer_ring r, int half,
                                               const sum_buffer &e, const tile_list &list)
{
    constexpr bool LATE = STORED == DT_BF16;
    const struct ksplit c = ksplit_of(a.p.x.kp);
    const int tiles = tiles_of_block(a);
    own_weights<STORED> own(half, a.p.glu);
    consumer_ring<COLS> ring(r);
    float sum[COLS / 2 / TERMS];
#pragma unroll
    for (int i = 0; LATE && i < COLS / 2 / TERMS; i++)
        sum[i] = 0;
#pragma unroll 1
    for (int n = 0; n < tiles; n++) {
        float acc[COLS / 2];
        int split = 0;
        ring.wait();
        own.begin(a, list[n], half);
        if constexpr (LATE) {
            if (n > 0)
                mbarrier_wait(e.drained, n & 1);
            const late_sums<TERMS, COLS> last = {e, sum, half * HALF_OUT + own_output(), n > 0};
            multiply_split(acc, ring, min(c.chunks, c.each), own, last);
#pragma unroll
            for (int i = 0; i < COLS / 2 / TERMS; i++)
                sum[i] = TERMS == 1 ? acc[i] : acc[2 * i] + acc[2 * i + 1];
            split = 1;
        } else {
#pragma unroll
            for (int i = 0; i < COLS / 2 / TERMS; i++)
                sum[i] = -0.f; /* the only number that changes no bit when it is added */
        }
        for (; split < K_SPLITS; split++) {
            const int chunks = min(c.chunks - split * c.each, c.each);
            if (chunks <= 0) { /* product_kernel adds zero for an empty split: -0 becomes 0 */
#pragma unroll
                for (int i = 0; i < COLS / 2 / TERMS; i++)
                    sum[i] += 0.f;
                continue;
            }
            if constexpr (is_packed(STORED))
                own.enter(a, list[n], half, split);
            multiply_split(acc, ring, chunks, own);
#pragma unroll
            for (int i = 0; i < COLS / 2 / TERMS; i++)
                sum[i] += TERMS == 1 ? acc[i] : acc[2 * i] + acc[2 * i + 1];
        }
        if (LATE && n + 1 < tiles)
            continue;
        mbarrier_wait(e.drained, ~n & 1);
        if constexpr (is_packed(STORED))
            store_sums<TERMS>(e.sums, sum, half * HALF_OUT + own_pair(), 1);
        else
            store_sums<TERMS>(e.sums, sum, half * HALF_OUT + own_output());
        mbarrier_arrive_warp(e.filled);
    }
}

template <int TERMS, int COLS>
__device__ __forceinline__ void write_tiles(const prefill_args &a, int warp, const sum_buffer &e,
                                            tile_list &list)
{
    enum { WRITERS = form<COLS>::WRITERS };
    const int tiles = tiles_of_block(a);
    int placed = 1;
#pragma unroll 1
    for (int n = 0; n < tiles; n++) {
        for (; threadIdx.x == 32 && placed < min(n + 3, tiles); placed++)
            list.announce<COLS>(a, placed);
        __syncwarp();
        mbarrier_wait(e.filled, n & 1);
        const struct tile_origin at = list[n];
        const struct epilogue &f = a.p.f[at.mat];
        const struct mat &m = a.p.m[at.mat];
        const int first = at.col / TERMS, rows = min(COLS / TERMS, a.p.rows - first);
        const struct strip s = {e.sums, first, rows, at.panel, at.row, at.run,
                                at.wide, m.panels.rows, m.n, warp};
        const bool wide = f.act == ACT_NONE && f.softcap <= 0 && f.scale == 1 && !f.mul &&
                          s.n % 4 == 0 &&
                          ((size_t)f.dst | f.dst_stride * sizeof(float)) % 16 == 0;
        const size_t pitch = (size_t)a.p.pack_as.kp;
        if (a.p.glu && !a.p.pack_to)
            write_gated<TERMS, WRITERS>(s, f, a.p.glu_act);
        else if (a.p.glu && a.p.glu_act == ACT_SILU)
            pack_gated<TERMS, WRITERS, ACT_SILU>(s, a.p.pack_to, pitch);
        else if (a.p.glu && a.p.glu_act == ACT_GELU_TANH)
            pack_gated<TERMS, WRITERS, ACT_GELU_TANH>(s, a.p.pack_to, pitch);
        else if (a.p.glu)
            pack_gated<TERMS, WRITERS, ACT_NONE>(s, a.p.pack_to, pitch);
        else if (wide)
            write_wide<TERMS, WRITERS>(s, f);
        else
            write_any<TERMS, WRITERS>(s, f);
        mbarrier_arrive_warp(e.drained);
    }
}

#endif

/* ---- the kernel ----------------------------------------------------------------------------- */

/* The body is compiled only for GPUs with wgmma; kdev.has_wgmma is false on others. */
template <int TERMS, int COLS, int STORED>
__global__ void __launch_bounds__(form<COLS>::THREADS, 1)
    prefill_kernel(const __grid_constant__ args_of<STORED> a)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    using F = form<COLS>;
    extern __shared__ uint8_t dynamic[];
    __shared__ uint64_t full[F::STAGES], empty[F::STAGES], filled, drained;
    __shared__ struct tile_list list;
    uint8_t *stage = align_stages(dynamic);
    const struct sum_buffer e = {(float *)(stage + F::STAGES * F::TILE_STAGE_BYTES), &filled,
                                 &drained};
    pdl_trigger();
    if (threadIdx.x == 0) {
        init_ring(full, empty, F::STAGES, 1, 8);
        mbarrier_init(&filled, warp_arrivals(8)),
            mbarrier_init(&drained, warp_arrivals(F::WRITERS));
        list.init();
        mbarrier_init_fence();
    }
    __syncthreads();
    pointer_ring r = {stage, full, empty, F::STAGES, F::TILE_STAGE_BYTES, {}};
    int warp = __shfl_sync(~0u, (int)threadIdx.x / 32, 0);
    if (warp < F::OTHERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"((int)F::OTHERS_REGS));
        if (threadIdx.x == 0)
            fetch_tiles<COLS, STORED>(a, r, list);
        if (warp > 0) {
            pdl_wait_trigger();
            write_tiles<TERMS, COLS>(a, warp - 1, e, list);
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"((int)F::MULTIPLY_REGS));
        multiply_tiles<TERMS, COLS, STORED>(a, r, (warp - F::OTHERS) / 4, e, list);
    }
#endif
}

/* ---- host ----------------------------------------------------------------------------------- */

/* The division into parts of all but `rest` rows and of `rest` rows (0: one part). */
static struct division division_of(const struct panels *l, int most, int rest)
{
    struct division d = {};
    d.run[0] = l->rows - rest, d.run[1] = rest;
    d.panels[0] = most / d.run[0];
    d.n = d.first = div_up(l->n, d.panels[0]);
    if (rest) {
        d.panels[1] = most / rest;
        d.n += div_up(l->n, d.panels[1]);
    }
    return d;
}

/* Divides a matrix into the fewest tiles of at most `most` outputs; of divisions into as many,
 * takes one part before two, then the longest second part. TMA copies a part as pieces of 16 bytes
 * a row. A stage of 192 columns takes about 0.65 us with pieces of 320 bytes, 0.73 with 176, which
 * are no whole sectors of 32 bytes, 0.93 with 32; one of 160 columns 0.58 with 64 (one H200; from
 * products of two lengths of k). So parts have an even number of rows, at least four. Panels of 20
 * rows become parts of 16 and 4, of 22 rows 14 and 8 or 16 and 6, of 24 rows with GLU 16 and 8:
 * these fill 126 to 128 of a tile's outputs, where whole panels fill 120, 110 and 96. */
static struct division best_division(const struct panels *l, int most)
{
    enum { LEAST = 4 };
    struct division best = division_of(l, most, 0);
    for (int rest = LEAST; rest <= l->rows / 2; rest += 2) {
        const struct division d = division_of(l, most, rest);
        if (d.n < best.n || (d.n == best.n && best.run[1]))
            best = d;
    }
    return best;
}

/* Divides the outputs into tiles. first: the first tile of each matrix. Returns the number of
 * tiles. */
static int tiles_of(const struct product *p, int *first, struct division *of)
{
    int tiles = 0;
    for (int i = 0; i < p->n_mats; i++) {
        of[i] = best_division(&p->m[i].panels, p->glu ? HALF_OUT : TILE_OUT);
        first[i] = tiles;
        if (!p->glu || i == 0)
            tiles += of[i].n;
    }
    return tiles;
}

/* The relative time with tiles of `cols` columns: tiles of a multiprocessor times the time of a
 * tile's stage, of which a part does not depend on the columns (tests/bench/results-h200.md). */
static int cost_of(const struct kdev *d, const struct product *p, int cols)
{
    enum { FIXED = 64 }; /* that part, in columns */
    int first[MAX_MATS];
    struct division of[MAX_MATS];
    int tiles = tiles_of(p, first, of) * div_up(p->rows * d->gpu.terms, cols);
    return div_up(tiles, d->gpu.n_sm) * (cols + FIXED);
}

/* The columns of the tiles with which a product takes the least time: 128, 160 or 192. */
static int best_columns(const struct kdev *d, const struct product *p)
{
    const int c128 = cost_of(d, p, 128), c160 = cost_of(d, p, 160), c192 = cost_of(d, p, 192);
    return c160 <= c128 && c160 <= c192 ? 160 : c128 <= c192 ? 128 : 192;
}

template <int TERMS, int COLS, int STORED>
static void run(struct kdev *d, const struct product *p)
{
    using F = form<COLS>;
    args_of<STORED> a = {};
    a.p = *p;
    a.tiles_out = tiles_of(p, a.p.first, a.of);
    for (int i = 0; i < p->n_mats; i++) {
        for (int part = 0; part < PANEL_PARTS && a.of[i].run[part]; part++) {
            const int panels = a.of[i].panels[part], rows = a.of[i].run[part];
            part_map<STORED>(d, &a.w[i][part], &p->m[i], panels, rows);
            if constexpr (is_packed(STORED))
                scale_maps<STORED>(d, &a.scales[i][part], &a.blocks[i][part], &p->m[i], panels,
                                   rows);
        }
        a.scale[i] = STORED == STORED_FP8 ? fp8_factor(p->m[i].unit) : 0;
    }
    a.tiles_row = div_up(p->rows * TERMS, COLS);
    cuda_tile_map(d, &a.x, p->x.x, p->rows * TERMS, p->x.kp, (size_t)p->x.kp * 2, STAGE_K,
                  COLS);
    dim3 grid((unsigned)min_int(a.tiles_out * a.tiles_row, d->gpu.n_sm));
    cuda_launch(d, prefill_kernel<TERMS, COLS, STORED>, grid, F::THREADS, F::SHARED, a);
}
