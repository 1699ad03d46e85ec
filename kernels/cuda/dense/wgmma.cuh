/* wgmma.cuh - building blocks of the wgmma products on Hopper (sm_90a): verify.cu, prefill.cu,
 * moe/tile.cu.
 *
 * In a block of the prefill kernels one thread fetches stages of weights and rows into a ring in
 * shared memory. Two consumer warpgroups multiply, 64 outputs each by the columns of a tile (a
 * column is a term of a packed row): wgmma with the weights from registers and the rows from shared
 * memory. They put their sums into a buffer in shared memory, from which the remaining warps
 * (writers) store them while the consumers multiply the next tile.
 *
 * The bits are those of product_kernel (product.cuh): k is divided into the same splits, and wgmma
 * adds sixteen products to an accumulator exactly as mma.sync does, whatever their order among the
 * sixteen (tested with random, wide, cancelling and subnormal numbers of both kinds). The sets of
 * sixteen are the same because packed rows are permuted for wgmma: tile_place().
 */
#ifndef AERIE_CUDA_DENSE_WGMMA_CUH
#define AERIE_CUDA_DENSE_WGMMA_CUH

#include "kernels/cuda/dense/product.cuh"

#include <cuda.h>

enum {
    HALF_OUT = 64, /* outputs of a warpgroup */
    TILE_OUT = 128,
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* ---- barriers and TMA ----------------------------------------------------------------------- */

__device__ __forceinline__ uint32_t shared_at(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

__device__ __forceinline__ void barrier_init(uint64_t *b, int n)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_at(b)), "r"(n) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint64_t *b)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_at(b)) : "memory");
}
__device__ __forceinline__ void barrier_expect(uint64_t *b, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_at(b)),
                 "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void barrier_wait(uint64_t *b, uint32_t phase)
{
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n"
                 "}\n" ::"r"(shared_at(b)),
                 "r"(phase)
                 : "memory");
}
/* One arrival for the whole warp, after all lanes have reached this point. */
__device__ __forceinline__ void warp_arrives(uint64_t *b)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        barrier_arrive(b);
}

/* Copies a box of a matrix, from element (k, row) on, to shared memory. */
__device__ __forceinline__ void fetch_box(void *to, const CUtensorMap *map, int k, int row,
                                          uint64_t *full)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];" ::"r"(shared_at(to)),
                 "l"(map), "r"(k), "r"(row), "r"(shared_at(full))
                 : "memory");
}

/* Copies piece `piece` of each row of a box of rows (cuda_piece_map()), one row's piece after the
 * other's. */
__device__ __forceinline__ void fetch_pieces(void *to, const CUtensorMap *map, int piece, int row,
                                             uint64_t *full)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {0, %2, %3}], [%4];" ::"r"(shared_at(to)),
                 "l"(map), "r"(piece), "r"(row), "r"(shared_at(full))
                 : "memory");
}

/* The ring of stages, with the position of one role. */
template <int STAGES> struct ring {
    uint8_t *stage;
    uint64_t *full, *empty;
    int slot;
    uint32_t phase;
    __device__ __forceinline__ void next()
    {
        if (++slot == STAGES)
            slot = 0, phase ^= 1;
    }
};

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

__device__ __forceinline__ void mma_begin()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void mma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int LEFT> __device__ __forceinline__ void mma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

#define ACC8(a, i)                                                                                 \
    "+f"(a[i]), "+f"(a[i + 1]), "+f"(a[i + 2]), "+f"(a[i + 3]), "+f"(a[i + 4]), "+f"(a[i + 5]),    \
        "+f"(a[i + 6]), "+f"(a[i + 7])
#define ACC4(a, i) "+f"(a[i]), "+f"(a[i + 1]), "+f"(a[i + 2]), "+f"(a[i + 3])
#define ACC32(a, i) ACC8(a, i), ACC8(a, i + 8), ACC8(a, i + 16), ACC8(a, i + 24)
#define REG24                                                                                      \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23"
#define REG32 REG24 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define REG36 REG32 ",%32,%33,%34,%35"
#define REG40 REG36 ",%36,%37,%38,%39"
#define REG44 REG40 ",%40,%41,%42,%43"
#define REG48 REG44 ",%44,%45,%46,%47"
#define REG64                                                                                      \
    REG48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define REG80 REG64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define REG96 REG80 ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define WGMMA(shape, regs, a0, a1, a2, a3, desc, onto_, ...)                                       \
    asm volatile("{\n"                                                                             \
                 ".reg .pred p;\n"                                                                 \
                 "setp.ne.b32 p, " onto_ ", 0;\n"                                                  \
                 "wgmma.mma_async.sync.aligned." shape " {" regs "}, {" a0 "," a1 "," a2 "," a3    \
                 "}, " desc ", p, 1, 1, 0;\n"                                                      \
                 "}\n"                                                                             \
                 : __VA_ARGS__                                                                     \
                 : "r"(w0), "r"(w1), "r"(w2), "r"(w3), "l"(rows), "r"(onto))

/* acc (64 outputs, 128 or 160 or 192 columns) = or += weights (bf16, of 16 k) * rows */
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

/* f16: acc (64 outputs, the first N columns) */
template <int N, int EACH>
__device__ __forceinline__ void wgmma_f16(float (&acc)[EACH], uint32_t w0, uint32_t w1, uint32_t w2,
                                          uint32_t w3, uint64_t rows, int onto)
{
    if constexpr (N == 48)
        WGMMA("m64n48k16.f32.f16.f16", REG24, "%24", "%25", "%26", "%27", "%28", "%29",
              ACC8(acc, 0), ACC8(acc, 8), ACC8(acc, 16));
    if constexpr (N == 64)
        WGMMA("m64n64k16.f32.f16.f16", REG32, "%32", "%33", "%34", "%35", "%36", "%37",
              ACC32(acc, 0));
    if constexpr (N == 72)
        WGMMA("m64n72k16.f32.f16.f16", REG36, "%36", "%37", "%38", "%39", "%40", "%41",
              ACC32(acc, 0), ACC4(acc, 32));
    if constexpr (N == 80)
        WGMMA("m64n80k16.f32.f16.f16", REG40, "%40", "%41", "%42", "%43", "%44", "%45",
              ACC32(acc, 0), ACC8(acc, 32));
    if constexpr (N == 88)
        WGMMA("m64n88k16.f32.f16.f16", REG44, "%44", "%45", "%46", "%47", "%48", "%49",
              ACC32(acc, 0), ACC8(acc, 32), ACC4(acc, 40));
    if constexpr (N == 96)
        WGMMA("m64n96k16.f32.f16.f16", REG48, "%48", "%49", "%50", "%51", "%52", "%53",
              ACC32(acc, 0), ACC8(acc, 32), ACC8(acc, 40));
}

/* wgmma's descriptor of columns of 128 bytes in TMA's 128-byte swizzle. */
__device__ __forceinline__ uint64_t column_desc(const void *p)
{
    return (uint64_t)(shared_at(p) >> 4) | (uint64_t)1 << 16 | (uint64_t)64 << 32 |
           (uint64_t)1 << 62;
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
    return row * PITCH + (out ^ (TERMS == 1 ? row / 2 % 4 : row % 4) * 8);
}

/* Stores a thread's sums to the buffer. sum: for each 8 columns, outputs out and out + 8 of this
 * thread's two columns (or of their one row, with two terms). */
template <int TERMS, int PITCH = TILE_OUT, int EACH>
__device__ __forceinline__ void store_sums(float *scratch, const float (&sum)[EACH], int out)
{
    const int q = (int)threadIdx.x % 4, row = TERMS == 1 ? 2 * q : q;
    float *at[2] = {scratch + sum_at<TERMS, PITCH>(row, out),
                    scratch + sum_at<TERMS, PITCH>(row, out + 8)};
#pragma unroll
    for (int i = 0; i < EACH; i++)
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
/* The tensor map of `rows` rows of `pieces` pieces of `bytes` bytes (at most 2048); a box is one
 * piece of box_rows rows. */
void cuda_piece_map(struct kdev *d, CUtensorMap *map, const void *p, int bytes, int pieces,
                    int rows, int box_rows);

#endif
