/* wgmma.cuh - building blocks of the wgmma products on Hopper (sm_90a): verify.cu, prefill.cu,
 * moe/experts_prefill.cu.
 *
 * In a block of the prefill kernels one thread fetches stages of weights and rows into a ring in
 * shared memory. Two consumer warpgroups multiply, 64 outputs each by the columns of a tile (a
 * column is a term of a packed row): wgmma with the weights from registers or shared memory and
 * the rows from shared memory. They put their sums into a buffer in shared memory, from which the
 * remaining warps (writers) store them while the consumers multiply the next tile.
 *
 * The bits are those of product_kernel (product.cuh): k is divided into the same splits, and wgmma
 * adds sixteen products to an accumulator exactly as mma.sync does, whatever their order among the
 * sixteen (tested with random, wide, cancelling and subnormal numbers of both kinds). The sets of
 * sixteen are the same because packed rows are permuted for wgmma: tile_place().
 */
#pragma once

#include "kernels/cuda/base/copy.cuh"
#include "kernels/cuda/base/ring.cuh"
#include "kernels/cuda/dense/product.cuh"

#include <type_traits>

enum {
    HALF_OUT = 64, /* outputs of a warpgroup */
    TILE_OUT = 128,
    MAX_SMEM = 227 << 10, /* the most shared memory of a block on 9.0 */
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* The first address of dynamic shared memory that suits a stage: a multiple of 1024, as the
 * 128-byte swizzle needs. The block has 1024 bytes more than its stages need. */
__device__ __forceinline__ uint8_t *align_stages(uint8_t *dynamic)
{
    return dynamic + (1024 - shared_at(dynamic) % 1024) % 1024;
}

/* ---- iteration over k ------------------------------------------------------------------------ */

/* Iterates over the stages of some of a product's k splits: two chunks of k each; if a split has an
 * odd number of chunks, its last stage has one. Written without divisions, because the fetching
 * thread has 300 cycles a stage. */
struct k_stages {
    int split, end, in, length; /* the stage's first chunk is number `in` of the split's `length` */
    int place[2], n;            /* places of the stage's chunks in a panel; n: one or two chunks */
    __device__ __forceinline__ void locate_chunks(const struct ksplit &c)
    {
        length = split == c.splits - 1 ? c.rest : c.each;
        n = min(length - in, 2);
        place[1] = place[0] + (in < c.rest ? c.splits : c.splits - 1);
    }
    __device__ __forceinline__ k_stages(const struct ksplit &c, int first, int behind)
        : split(first), end(min(behind, c.splits)), in(0)
    {
        place[0] = first;
        locate_chunks(c);
    }
    __device__ __forceinline__ bool over() const { return split >= end; }
    __device__ __forceinline__ void next(const struct ksplit &c)
    {
        in += 2;
        place[0] = place[1] + (in - 1 < c.rest ? c.splits : c.splits - 1);
        if (in >= length)
            place[0] = ++split, in = 0;
        locate_chunks(c);
    }
    __device__ __forceinline__ int k(const struct ksplit &c) const
    {
        return (split * c.each + in) * K_CHUNK;
    }
};

/* ---- wgmma ---------------------------------------------------------------------------------- */

#define WGMMA(shape, regs, a0, a1, a2, a3, desc, onto_, ...)                                       \
    asm volatile("{\n"                                                                             \
                 ".reg .pred p;\n"                                                                 \
                 "setp.ne.b32 p, " onto_ ", 0;\n"                                                  \
                 "wgmma.mma_async.sync.aligned." shape " {" regs "}, {" a0 "," a1 "," a2 "," a3    \
                 "}, " desc ", p, 1, 1, 0;\n"                                                      \
                 "}\n"                                                                             \
                 : __VA_ARGS__                                                                     \
                 : "r"(w0), "r"(w1), "r"(w2), "r"(w3), "l"(rows), "r"(onto))

#define WGMMA_SHARED(shape, regs, w, desc, onto_, ...)                                             \
    asm volatile("{\n"                                                                             \
                 ".reg .pred p;\n"                                                                 \
                 "setp.ne.b32 p, " onto_ ", 0;\n"                                                  \
                 "wgmma.mma_async.sync.aligned." shape " {" regs "}, " w ", " desc                 \
                 ", p, 1, 1, 0, 0;\n"                                                              \
                 "}\n"                                                                             \
                 : __VA_ARGS__                                                                     \
                 : "l"(weights), "l"(rows), "r"(onto))

/* The descriptor of weights that are stored as units of a panel: 16 bytes of one output after the
 * other. apart: bytes from a unit to the next. */
__device__ __forceinline__ uint64_t wgmma_units(uint32_t at, int apart)
{
    return (uint64_t)(at >> 4) | (uint64_t)(apart >> 4) << 16 | (uint64_t)8 << 32;
}

/* acc (64 outputs, 128 or 160 or 192 columns) = or += weights (bf16, of 16 k) * rows, the weights
 * from registers or from shared memory (wgmma_units()) */
__device__ __forceinline__ void wgmma_bf16(float (&acc)[64], uint32_t w0, uint32_t w1, uint32_t w2,
                                           uint32_t w3, uint64_t rows, int onto)
{
    WGMMA("m64n128k16.f32.bf16.bf16", REG64, "%64", "%65", "%66", "%67", "%68", "%69",
          ACC32(acc, 0), ACC32(acc, 32));
}
__device__ __forceinline__ void wgmma_bf16(float (&acc)[80], uint32_t w0, uint32_t w1, uint32_t w2,
                                           uint32_t w3, uint64_t rows, int onto)
{
    WGMMA("m64n160k16.f32.bf16.bf16", REG80, "%80", "%81", "%82", "%83", "%84", "%85",
          ACC32(acc, 0), ACC32(acc, 32), ACC8(acc, 64), ACC8(acc, 72));
}
__device__ __forceinline__ void wgmma_bf16(float (&acc)[96], uint32_t w0, uint32_t w1, uint32_t w2,
                                           uint32_t w3, uint64_t rows, int onto)
{
    WGMMA("m64n192k16.f32.bf16.bf16", REG96, "%96", "%97", "%98", "%99", "%100", "%101",
          ACC32(acc, 0), ACC32(acc, 32), ACC32(acc, 64));
}
__device__ __forceinline__ void wgmma_bf16(float (&acc)[64], uint64_t weights, uint64_t rows,
                                           int onto)
{
    WGMMA_SHARED("m64n128k16.f32.bf16.bf16", REG64, "%64", "%65", "%66", ACC32(acc, 0),
                 ACC32(acc, 32));
}
__device__ __forceinline__ void wgmma_bf16(float (&acc)[80], uint64_t weights, uint64_t rows,
                                           int onto)
{
    WGMMA_SHARED("m64n160k16.f32.bf16.bf16", REG80, "%80", "%81", "%82", ACC32(acc, 0),
                 ACC32(acc, 32), ACC8(acc, 64), ACC8(acc, 72));
}
__device__ __forceinline__ void wgmma_bf16(float (&acc)[96], uint64_t weights, uint64_t rows,
                                           int onto)
{
    WGMMA_SHARED("m64n192k16.f32.bf16.bf16", REG96, "%96", "%97", "%98", ACC32(acc, 0),
                 ACC32(acc, 32), ACC32(acc, 64));
}

/* acc (64 outputs, the first N columns) with f16 or bf16 weights (T) from registers. The name of a
 * type stands twice in that of the instruction. */
#define WGMMA_NARROW(n, types, regs, a0, a1, a2, a3, desc, onto_, ...)                             \
    WGMMA("m64n" n "k16.f32." types, regs, a0, a1, a2, a3, desc, onto_, __VA_ARGS__)
#define REG8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define WGMMA_COLUMNS(types)                                                                       \
    if constexpr (N == 16)                                                                         \
        WGMMA_NARROW("16", types, REG8, "%8", "%9", "%10", "%11", "%12", "%13", ACC8(acc, 0));     \
    if constexpr (N == 48)                                                                         \
        WGMMA_NARROW("48", types, REG24, "%24", "%25", "%26", "%27", "%28", "%29", ACC8(acc, 0),   \
                     ACC8(acc, 8), ACC8(acc, 16));                                                 \
    if constexpr (N == 64)                                                                         \
        WGMMA_NARROW("64", types, REG32, "%32", "%33", "%34", "%35", "%36", "%37",                 \
                     ACC32(acc, 0));                                                               \
    if constexpr (N == 72)                                                                         \
        WGMMA_NARROW("72", types, REG36, "%36", "%37", "%38", "%39", "%40", "%41", ACC32(acc, 0),  \
                     ACC4(acc, 32));                                                               \
    if constexpr (N == 80)                                                                         \
        WGMMA_NARROW("80", types, REG40, "%40", "%41", "%42", "%43", "%44", "%45", ACC32(acc, 0),  \
                     ACC8(acc, 32));                                                               \
    if constexpr (N == 88)                                                                         \
        WGMMA_NARROW("88", types, REG44, "%44", "%45", "%46", "%47", "%48", "%49", ACC32(acc, 0),  \
                     ACC8(acc, 32), ACC4(acc, 40));                                                \
    if constexpr (N == 96)                                                                         \
        WGMMA_NARROW("96", types, REG48, "%48", "%49", "%50", "%51", "%52", "%53", ACC32(acc, 0),  \
                     ACC8(acc, 32), ACC8(acc, 40))
template <int N, class T, int EACH>
__device__ __forceinline__ void wgmma_narrow(float (&acc)[EACH], uint32_t w0, uint32_t w1,
                                             uint32_t w2, uint32_t w3, uint64_t rows, int onto)
{
    if constexpr (std::is_same_v<T, bf16>) {
        WGMMA_COLUMNS("bf16.bf16");
    } else {
        WGMMA_COLUMNS("f16.f16");
    }
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* The buffer between consumers and writers, and its two barriers: filled with sums, drained by the
 * writers. */
struct sum_buffer {
    float *sums;
    uint64_t *filled, *drained;
};

/* Where a sum is in the buffer: N / TERMS rows of PITCH outputs, N being columns. Two bits of the
 * row, in which the threads of a quad differ, are XORed into the output's index to avoid bank
 * conflicts. */
template <int TERMS, int PITCH = TILE_OUT>
__device__ __forceinline__ int sum_at(int row, int out)
{
    return row * PITCH + (out ^ (TERMS == 1 ? row >> 1 & 3 : row & 3) * 8);
}

/* Stores a thread's sums to the buffer, or one of PARTS parts of them. sum: for each 8 columns,
 * outputs out and out + apart of this thread's two columns (or of their one row, with two
 * terms). */
template <int TERMS, int PITCH = TILE_OUT, int PART = 0, int PARTS = 1, int EACH>
__device__ __forceinline__ void store_sums(float *scratch, const float (&sum)[EACH], int out,
                                           int apart = 8)
{
    const int q = (int)threadIdx.x % 4, row = TERMS == 1 ? 2 * q : q;
    float *at[2] = {scratch + sum_at<TERMS, PITCH>(row, out),
                    scratch + sum_at<TERMS, PITCH>(row, out + apart)};
#pragma unroll
    for (int i = PART * EACH / PARTS; i < (PART + 1) * EACH / PARTS; i++)
        if (TERMS == 1)
            at[i / 2 % 2][(i / 4 * 8 + i % 2) * PITCH] = sum[i];
        else
            at[i % 2][i / 2 * 4 * PITCH] = sum[i];
}

#endif

/* ---- host ----------------------------------------------------------------------------------- */

/* The tensor map of a matrix of `rows` rows of n 16-bit elements, `pitch` bytes apart, in boxes 128
 * bytes wide with the 128-byte swizzle. */
void cuda_tile_map(struct kdev *d, CUtensorMap *map, const void *p, int rows, int n, size_t pitch,
                   int box_n, int box_rows);
/* The tensor map of `rows` rows of `pieces` pieces of `bytes` bytes (at most 2048), `pitch` bytes
 * apart (0: one behind the other); a box is one piece of box_rows rows, or box_bytes of the
 * piece. */
void cuda_piece_map(struct kdev *d, CUtensorMap *map, const void *p, int bytes, int pieces,
                    int rows, int box_rows, int box_bytes = 0, size_t pitch = 0);
/* The tensor map of `rows` rows of `words` words of 4 bytes, `pitch` bytes apart. */
void cuda_word_map(struct kdev *d, CUtensorMap *map, const void *p, int words, int rows,
                   size_t pitch, int box_words, int box_rows);
/* The tensor map of a matrix of bf16 in panels, for copy_units(): a box is one chunk of box_rows
 * rows of box_panels panels. */
void cuda_panel_map(struct kdev *d, CUtensorMap *map, const void *p, const struct panels *l,
                    int box_panels, int box_rows);
