/* packed.cuh - weights packed in blocks (kernels/packed.h) on the device. A packed matrix that
 * stays packed (packs_on() of route.c) is stored in the panels of a bf16 matrix (base/panel.cuh),
 * but a row's chunk of 32 elements has its codes and, elsewhere, its scales, so that bulk copies
 * find whole words of 16 bytes although a block has 18 or 34 bytes. A panel is
 *
 *     codes  (positions, K_SPLITS, rows of a panel, code_bytes())
 *     scales (positions, K_SPLITS, rows of a panel, scale_bytes())
 *     blocks (blocks of a split, K_SPLITS, rows of a panel, block_bytes())
 *
 * Every position has a place for each of the K_SPLITS splits; places without a chunk are zeros. So
 * a matrix has the bytes of its blocks, but for rows that fill up the last panel and for such
 * places, of which there are none if k is a multiple of 256. `blocks` is what the chunks of a block
 * of 256 share; splits begin inside of blocks, so one that two splits share is there twice.
 *
 * Of a row's chunk, four threads have eight successive elements each:
 *
 *     Q4_0  a word: bits 4i to 4i + 3 are the code of element 2i, 16 + 4i to 16 + 4i + 3 that of
 *           element 2i + 1. The scale is the block's, an f16.
 *     Q8_0  eight bytes: the codes plus 128. The scale is the block's, an f16.
 *     Q4_K  a word: bits 4i to 4i + 3 are the code of element i. The scales are the chunk's own
 *           scale and minimum, two bytes; the block has d and dmin, two f16.
 *     Q6_K  the low four bits of codes as Q4_0 has codes, sixteen bytes for the chunk, then eight
 *           bytes with the high two bits: of a thread's, bits 2i are those of element 2i, bits 8 +
 *           2i those of element 2i + 1. The scales are the block's d, an f16, and two bytes, the
 *           scales of both halves of the chunk plus 128.
 *
 * So Q4_K takes about 18.8 bytes a chunk where a file has 18, and Q6_K 28 where it has 26.25.
 *
 * The decode kernel multiplies packed weights as they are (PRODUCT_DECODE). For more rows a product
 * unpacks a matrix, or as many of its panels as fit into scratch, to the panels of a bf16 matrix,
 * and multiplies those: the bits are the same.
 */
#ifndef AERIE_CUDA_PACKED_CUH
#define AERIE_CUDA_PACKED_CUH

#include "kernels/cuda/base/copy.cuh"
#include "kernels/cuda/base/panel.cuh"

/* How the weights of a matrix in panels are stored: DT_BF16, a packed type, or codes of FP8. */
enum { STORED_FP8 = DT_U8 };

/* Bytes of the codes of a row's chunk, and of its scales. */
static constexpr inline __host__ __device__ int code_bytes(int stored)
{
    return stored == DT_BF16                       ? 2 * (int)K_CHUNK
           : stored == DT_Q4_0 || stored == DT_Q4_K ? (int)K_CHUNK / 2
           : stored == DT_Q6_K                     ? (int)K_CHUNK * 6 / 8
                                                   : (int)K_CHUNK;
}
static constexpr inline __host__ __device__ int scale_bytes(int stored)
{
    return stored == DT_Q4_0 || stored == DT_Q8_0 ? 2
           : stored == DT_Q4_K                    ? 2
           : stored == DT_Q6_K                    ? 4
                                                  : 0;
}
/* Bytes of what the chunks of a block of 256 share, of a row. */
static constexpr inline __host__ __device__ int block_bytes(int stored)
{
    return stored == DT_Q4_K ? 4 : 0;
}
enum { BLOCK_CHUNKS = 8 };

/* The block of chunk number `position` of a split, among the split's: the first one may have begun
 * in the split before. */
static inline __host__ __device__ int block_of(const struct ksplit &c, int split, int position)
{
    return (split * c.each % BLOCK_CHUNKS + position) / BLOCK_CHUNKS;
}
/* The last block that a split may have at a position. */
static inline __host__ __device__ int last_block(int position)
{
    return (position + BLOCK_CHUNKS - 1) / BLOCK_CHUNKS;
}

/* Bytes of a panel. */
static inline __host__ __device__ size_t stored_bytes(const struct panels &p, int stored)
{
    const int places = scale_bytes(stored) ? p.ksplit.each * (int)K_SPLITS : p.ksplit.chunks;
    const int blocks = block_bytes(stored) ? last_block(p.ksplit.each - 1) + 1 : 0;
    return (size_t)(places * p.rows) * (size_t)(code_bytes(stored) + scale_bytes(stored)) +
           (size_t)(blocks * (int)K_SPLITS * p.rows) * (size_t)block_bytes(stored);
}
/* Where a row's chunk is in a panel: its codes, its scales, what its block has. */
struct packed_place {
    size_t codes, scales, block;
};
static inline __host__ __device__ struct packed_place packed_place_of(const struct panels &p,
                                                                      int type, int row, int chunk)
{
    const int places = p.ksplit.each * (int)K_SPLITS;
    const int split = chunk / p.ksplit.each, position = chunk % p.ksplit.each;
    const int at = (position * (int)K_SPLITS + split) * p.rows + row;
    const int block =
        (block_of(p.ksplit, split, position) * (int)K_SPLITS + split) * p.rows + row;
    const size_t all = (size_t)(places * p.rows);
    struct packed_place place = {(size_t)at * (size_t)code_bytes(type), 0, 0};
    place.scales = all * (size_t)code_bytes(type) + (size_t)at * (size_t)scale_bytes(type);
    place.block = all * (size_t)(code_bytes(type) + scale_bytes(type)) +
                  (size_t)block * (size_t)block_bytes(type);
    return place;
}

/* Unpacks panels first .. first + n - 1 of a packed matrix to the panels of a bf16 matrix at dst
 * (dense/packed.cu). */
void cuda_unpack_panels(struct kdev *d, const struct panels *p, int type, const void *panels,
                        int first, int n, void *dst);
/* Puts rows of blocks, which begin with row 0 of a panel, into n panels at dst. */
void cuda_repack_blocks(struct kdev *d, const struct panels *p, int type, const void *blocks,
                        int rows, int k, int n, void *dst);

#ifdef __CUDACC__

/* a * b + c, each rounded once to bf16. */
__device__ __forceinline__ uint32_t fma_two(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t y;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(c));
    return y;
}
/* Two floats rounded to bf16, the first in the low half. */
__device__ __forceinline__ uint32_t bf16_pair(float low, float high)
{
    uint32_t y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}
__device__ __forceinline__ float half_value(uint32_t h)
{
    return __half2float(__ushort_as_half((uint16_t)h));
}
/* (x & mask) | bits */
template <uint32_t MASK, uint32_t BITS> __device__ __forceinline__ uint32_t masked_with(uint32_t x)
{
    uint32_t y;
    asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(y) : "r"(x), "n"(MASK), "n"(BITS));
    return y;
}

/* Eight weights of bf16. A weight is (code - 8) d, rounded once. d is the sum of two bf16: `high`
 * has its leading eight bits, `low` at most three others, so that (code - 8) low is exact in bf16,
 * and one multiplication and addition rounds the whole. The bits of a code behind those of 128 are
 * the number 128 + code. Zeros have any sign. */
__device__ __forceinline__ uint4 q4_0_eight(uint32_t codes, uint32_t scale)
{
    const float d = half_value(scale);
    const uint32_t high = bf16_pair(d, d);
    const float rest = d - __uint_as_float(high & 0xffff0000u);
    const uint32_t low = bf16_pair(rest, rest), one = 0x3f803f80, minus_136 = 0xc308c308,
                   minus_0 = 0x80008000;
    uint32_t y[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t code = masked_with<0x000f000f, 0x43004300>(codes >> 4 * i);
        const uint32_t level = fma_two(code, one, minus_136);
        y[i] = fma_two(level, high, fma_two(level, low, minus_0));
    }
    return make_uint4(y[0], y[1], y[2], y[3]);
}

/* Eight weights of bf16. The code plus 128 in the second byte of 2^15 is the number 2^15 + 128 +
 * code; its product with d less (2^15 + 128) d, which has at most 20 bits, is exact in float32. */
__device__ __forceinline__ uint4 q8_0_eight(uint2 codes, uint32_t scale)
{
    const float d = half_value(scale), less = -32896.f * d;
    uint32_t y[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t v = i < 2 ? codes.x : codes.y;
        const float a = __uint_as_float(__byte_perm(v, 0x47000000, i % 2 ? 0x7624 : 0x7604)),
                    b = __uint_as_float(__byte_perm(v, 0x47000000, i % 2 ? 0x7634 : 0x7614));
        y[i] = bf16_pair(fmaf(a, d, less), fmaf(b, d, less));
    }
    return make_uint4(y[0], y[1], y[2], y[3]);
}

/* Eight weights of bf16, each (code dk) - mk rounded to float32 and then to bf16, where dk is d
 * times the chunk's scale, mk dmin times its minimum. block: d and dmin; own: scale and minimum. A
 * code at bits p and on of 2^(23 - p) is the number 2^(23 - p) + code. The bytes of own in the
 * second byte of 2^15 are the numbers 2^15 + byte, and 2^15 d is exact. */
__device__ __forceinline__ uint4 q4_k_eight(uint32_t codes, uint32_t block, uint32_t own)
{
    const float by = half_value(block), less = half_value(block >> 16);
    const float dk = fmaf(__uint_as_float(__byte_perm(own, 0x47000000, 0x7604)), by, -32768.f * by);
    const float mk = fmaf(__uint_as_float(__byte_perm(own, 0x47000000, 0x7614)), -less,
                          32768.f * less); /* minus the minimum */
    const uint32_t up = codes >> 12;
    const float y[8] = {
        __uint_as_float(masked_with<0x0000000f, 0x4b000000>(codes)) - 0x1p23f,
        __uint_as_float(masked_with<0x000000f0, 0x49000000>(codes)) - 0x1p19f,
        __uint_as_float(masked_with<0x00000f00, 0x47000000>(codes)) - 0x1p15f,
        __uint_as_float(masked_with<0x0000f000, 0x45000000>(codes)) - 0x1p11f,
        __uint_as_float(masked_with<0x000f0000, 0x43000000>(codes)) - 0x1p7f,
        __uint_as_float(masked_with<0x00000f00, 0x47000000>(up)) - 0x1p15f,
        __uint_as_float(masked_with<0x0000f000, 0x45000000>(up)) - 0x1p11f,
        __uint_as_float(masked_with<0x000f0000, 0x43000000>(up)) - 0x1p7f,
    };
    return make_uint4(bf16_pair(fmaf(y[0], dk, mk), fmaf(y[1], dk, mk)),
                      bf16_pair(fmaf(y[2], dk, mk), fmaf(y[3], dk, mk)),
                      bf16_pair(fmaf(y[4], dk, mk), fmaf(y[5], dk, mk)),
                      bf16_pair(fmaf(y[6], dk, mk), fmaf(y[7], dk, mk)));
}

/* Eight weights of bf16, each (code - 32) times dk, which is d times the scale of half a chunk, at
 * most 24 bits. codes: the low bits, high: the high ones; q: which eight. Codes become the bf16
 * numbers 128 + code. */
__device__ __forceinline__ uint4 q6_k_eight(uint32_t codes, uint32_t high, uint32_t scales, int q)
{
    const float d = half_value(scales);
    const float x = __uint_as_float(__byte_perm(scales, 0x47000000, q < 2 ? 0x7624 : 0x7634));
    const float dk = fmaf(x, d, -32896.f * d), less = -160.f * dk;
    const uint32_t two = __byte_perm(high, 0, 0x4140);
    uint32_t y[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t low = masked_with<0x000f000f, 0x43004300>(codes >> 4 * i);
        const uint32_t all = low | ((i < 2 ? two << (4 - 2 * i) : two >> (2 * i - 4)) & 0x00300030);
        y[i] = bf16_pair(fmaf(__uint_as_float(all << 16), dk, less),
                         fmaf(__uint_as_float(all & 0xffff0000u), dk, less));
    }
    return make_uint4(y[0], y[1], y[2], y[3]);
}

/* Eight weights of a row of a panel in memory, zeros with the sign that packed_bf16() gives them: a
 * weight is level by - less. q: which eight of the chunk. */
__device__ __forceinline__ uint4 eight_at(const struct panels &p, int type, const uint8_t *panel,
                                          int row, int chunk, int q)
{
    const struct packed_place at = packed_place_of(p, type, row, chunk);
    const uint8_t *codes = panel + at.codes, *scales = panel + at.scales;
    float by = half_value(*(const uint16_t *)(type == DT_Q4_K ? panel + at.block : scales)),
          less = 0;
    uint32_t y[4];
    if (type == DT_Q4_K) {
        less = half_value(*(const uint16_t *)(panel + at.block + 2)) * (float)scales[1];
        by *= (float)scales[0];
    } else if (type == DT_Q6_K) {
        by *= (float)((int)scales[2 + q / 2] - 128);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float two[2];
#pragma unroll
        for (int e = 0; e < 2; e++) {
            int level;
            if (type == DT_Q8_0) {
                level = (int)codes[8 * q + 2 * i + e] - 128;
            } else if (type == DT_Q4_K) {
                level = (int)(*(const uint32_t *)(codes + 4 * q) >> (8 * i + 4 * e) & 15);
            } else {
                level = (int)(*(const uint32_t *)(codes + 4 * q) >> (4 * i + 16 * e) & 15);
                if (type == DT_Q6_K)
                    level |= (codes[16 + 2 * q + e] >> 2 * i & 3) << 4;
                level -= type == DT_Q6_K ? 32 : 8;
            }
            two[e] = (float)level * by;
            if (type == DT_Q4_K)
                two[e] -= less;
        }
        y[i] = bf16_pair(two[0], two[1]);
    }
    return make_uint4(y[0], y[1], y[2], y[3]);
}

#endif
#endif
