/* packed.cuh - weights packed in blocks (kernels/packed.h) on the device. A packed matrix that
 * stays packed (packs_on() of route.c) is stored in the panels of a bf16 matrix (base/panel.cuh),
 * but a row's chunk of 32 elements has its codes and, elsewhere, its scales, so that bulk copies
 * find whole words of 16 bytes although a block has 18 or 34 bytes. A panel is
 *
 *     codes  (positions, K_SPLITS, pairs of rows, 2 code_bytes())
 *     scales (pairs of positions, K_SPLITS, rows of a panel, 2 scale_bytes())
 *     blocks (blocks of a split, K_SPLITS, rows of a panel, block_bytes())
 *
 * Every position has a place for each of the K_SPLITS splits; places without a chunk are zeros. So
 * a matrix has the bytes of its blocks, but for rows that fill up the last panel, for such places,
 * of which there are none if k is a multiple of 256, and for the scales of one position if a split
 * has an odd number of them. `blocks` is what the chunks of a block of 256 share; splits begin
 * inside of blocks, so one that two splits share is there twice.
 *
 * A weight of E4M3 is its code times a bf16 scale, rounded once. The bits of a code are those of a
 * bf16 number 2^-120 times as large (fp8.cuh), and the upload stores the scale times 2^120, so one
 * multiplication of bf16 numbers gives the weight. A chunk of two rows has eight times two words:
 * number 2q + r has elements 8q to 8q + 7 of row r. Scales from 2^8 on have no such factor: a
 * matrix with one becomes bf16 (mem.cu).
 *
 * A weight of Q4_0 is level d with a level of -8 to 7, rounded to bf16. For every d that an f16 can
 * have there are two bf16 factors, of which the weight is the product, level times the first
 * rounded before it is multiplied by the second: two operations for a pair of weights (struct
 * four_factors). The upload finds them.
 *
 * A weight of Q4_K is (code dk) - mk, rounded to float32 and then to bf16; dk is the chunk's scale,
 * at most 17 bits, and mk its minimum. So it is an fma of float32 numbers, rounded to bf16. The fma
 * takes the bits of a code as a number, code 2^-129 (struct four_bits), and 2^129 dk: dk must be
 * below 1/2. A matrix with larger scales becomes bf16 (mem.cu).
 *
 * A weight of Q5_K is that of Q4_K with a code of five bits, code 2^-130 (struct five_bits): dk
 * must be below 1/4. A weight of Q5_1 is (code d) + m, rounded to float32 and then to bf16: the
 * same fma, with an f16 d below 1/4. So are those of Q4_1.
 *
 * Half a chunk of Q2_K has four different weights, in a table: a code picks its bytes there.
 *
 * A weight of Q8_0, Q5_0, Q6_K, Q3_K or IQ4_XS is (byte - 128) x, rounded to bf16. The byte is a
 * code of Q8_0 plus 128, eight times one of Q5_0, four times one of Q6_K, which is 0 to 63, 16
 * times one of Q3_K, which is 4 to 11, a level of IQ4_XS (packed_iq4) plus 128; x is d, d / 8, 1/4
 * or 1/16 of the scale of half a chunk, or the scale of a chunk: at most 19 bits.
 * For each x that these types can have there are two bf16 numbers, its parts, with which three
 * operations make a pair of weights (byte_weights()): byte - 128, exact; its product with one part,
 * rounded; that plus the product with the other part, rounded. The parts' sum is x, or nearly. The
 * upload finds them (parts_of()).
 *
 * A weight of E2M1 is a level, which has two bits, times a scale and then times a factor, rounded
 * to float32 and then to bf16. As levels are 1 or 3 times powers of two, there is a number of 11
 * bits by which one multiplication, rounded to bf16, gives the same weights: the numbers from which
 * on level x rounds otherwise are a sixth of a unit in the last place of a bf16 apart or more. The
 * upload finds the number, which has to be from 2^-62 to below 4, or the matrix becomes bf16
 * (mem.cu), and stores it as six bits of exponent and ten of mantissa. Its first eight bits and its
 * last three are two bf16 numbers (struct two_parts), the level a bf16 number times 2^-126. Signs
 * of scales are in codes, and codes with a scale of zero are zeros.
 *
 * A type with the values of another one is stored as that (packed_as() of route.c): Q4_1 as Q5_1,
 * IQ4_NL as IQ4_XS, MXFP4 and NVFP4 as E2M1.
 *
 * A chunk of two rows has eight times a word: number 2q + r has codes of elements 8q to 8q + 7 of
 * row r:
 *
 *     Q4_0, Q4_K, Q3_K
 *                 element 2j + e from bit 16e + 4j on.
 *     Q2_K        half a word: element 2j + e from bit 8e + 2j on.
 *     IQ4_XS      element i from bit 4i on.
 *     E2M1        e2m1_word() below.
 *     Q5_K, Q5_1, Q5_0
 *                 byte b = 2e + j / 2 has element 2j + e from bit 3 on if j is even, and its low
 *                 three bits if j is odd. The two high bits of those are in a byte with the scales,
 *                 of byte b from bit 6 - 2b on.
 *     Q6_K        byte b = 2e + j / 2 has element 2j + e from bit 2 on if j is even, and its low
 *                 two bits if j is odd. The four high bits of those are in halves of four words
 *                 (high_codes_of()): of bytes 2, 0, 3, 1 from bits 0, 4, 8, 12 on.
 *
 * and of Q8_0 eight times two words: a byte for each of elements 8q to 8q + 7 of row r.
 *
 * Scales of a row's chunk:
 *
 *     Q4_0        the factors: the second, times 2^7, of both positions; then the first, times
 *                 2^122 (struct four_factors).
 *     Q8_0, IQ4_XS
 *                 2^6 times the parts of x, the first one in the low half of a word.
 *     E4M3        the block's times 2^120, a bf16.
 *     Q4_K        the chunk's own scale and minimum, two bytes; the block has d, times 2^9, and
 *                 dmin, two f16.
 *     Q2_K        four bf16 weights for each half of the chunk, by code: their low bytes, then the
 *                 high ones.
 *     Q6_K, Q3_K  the same of both halves of the chunk.
 *     Q5_K        of both positions: a byte of high bits for each q; then the scales and minima, as
 *                 of Q4_K; the block has d, times 2^10, and dmin.
 *     Q5_1        of both positions: a byte of high bits for each q; then d, times 2^17, and m, two
 *                 f16.
 *     Q5_0        the same, with 2^6 times the parts of x instead of d and m.
 *     E2M1        the numbers of both halves of the chunk, two bytes each.
 *
 * So a chunk takes 20 bytes of Q4_0 where a file has 18, 36 of Q8_0 (34), about 18.8 of Q4_K (18),
 * 24 of Q2_K (10.5) and Q3_K (13.75), 32 of Q6_K (26.25), about 22.8 of Q5_K (22), 24 of Q5_1 (24),
 * Q5_0 (22) and Q4_1 (20), 20 of IQ4_XS (17), IQ4_NL (18), MXFP4 (17), NVFP4 (18) and E2M1 (22).
 *
 * The decode kernel multiplies packed weights as they are, and so do the verify and the prefill
 * kernel, which unpack them in registers (packed_pair). For so many rows that each is unpacked too
 * often (scratch_rows_of() of route.c), and without wgmma, a product unpacks a matrix, or as many
 * of its panels as fit into scratch, to the panels of a bf16 matrix, and multiplies those: the bits
 * are the same.
 */
#pragma once

#include "kernels/cuda/base/copy.cuh"
#include "kernels/cuda/dense/fp8.cuh"

/* How the weights of a matrix in panels are stored: DT_BF16, a packed type, or codes of FP8. */
enum { STORED_FP8 = DT_U8 };

/* Whether a code is four bits, eight successive ones of a row a word; or five, of which two bits of
 * every second one are elsewhere. */
static constexpr inline __host__ __device__ bool four_bit(int stored)
{
    return stored == DT_Q4_0 || stored == DT_Q4_K || stored == DT_Q3_K || stored == DT_IQ4_XS ||
           stored == DT_E2M1;
}
static constexpr inline __host__ __device__ bool five_bit(int stored)
{
    return stored == DT_Q5_K || stored == DT_Q5_0 || stored == DT_Q5_1;
}
/* Bytes of the codes of a row's chunk, and of its scales. */
static constexpr inline __host__ __device__ int code_bytes(int stored)
{
    return stored == DT_BF16                        ? 2 * (int)K_CHUNK
           : four_bit(stored) || five_bit(stored) ? (int)K_CHUNK / 2
           : stored == DT_Q6_K                      ? (int)K_CHUNK * 6 / 8
           : stored == DT_Q2_K                      ? (int)K_CHUNK / 4
                                                    : (int)K_CHUNK;
}
/* Whether the decode kernel has units of two panels for them (UNIT_DOUBLE). */
static constexpr inline __host__ __device__ bool in_doubles(int stored)
{
    return code_bytes(stored) <= (int)K_CHUNK / 2;
}
static constexpr inline __host__ __device__ int scale_bytes(int stored)
{
    switch (stored) {
    case DT_E4M3:
    case DT_Q4_K: return 2;
    case DT_Q8_0:
    case DT_Q4_0:
    case DT_IQ4_XS:
    case DT_E2M1: return 4;
    case DT_Q5_K: return 6;
    case DT_Q3_K:
    case DT_Q6_K:
    case DT_Q5_0:
    case DT_Q5_1: return 8;
    case DT_Q2_K: return 16;
    default: return 0;
    }
}
/* Whether both halves of a row's chunk have parts of their own (parts_of()). */
static constexpr inline __host__ __device__ bool half_parts(int stored)
{
    return stored == DT_Q6_K || stored == DT_Q3_K;
}
/* Bytes of what the chunks of a block of 256 share, of a row. */
static constexpr inline __host__ __device__ int block_bytes(int stored)
{
    return stored == DT_Q4_K || stored == DT_Q5_K ? 4 : 0;
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

/* Positions in whole pairs. */
static inline __host__ __device__ int in_pairs(int positions) { return (positions + 1) / 2 * 2; }

/* Bytes of a panel. */
static inline __host__ __device__ size_t stored_bytes(const struct panels &p, int stored)
{
    const int places = scale_bytes(stored) ? p.ksplit.each * (int)K_SPLITS : p.ksplit.chunks;
    const int scales = in_pairs(p.ksplit.each) * (int)K_SPLITS;
    const int blocks = block_bytes(stored) ? last_block(p.ksplit.each - 1) + 1 : 0;
    return (size_t)(places * p.rows) * (size_t)code_bytes(stored) +
           (size_t)(scales * p.rows) * (size_t)scale_bytes(stored) +
           (size_t)(blocks * (int)K_SPLITS * p.rows) * (size_t)block_bytes(stored);
}
/* Where a row's chunk is in a panel: the codes of its pair of rows, its scales (Q4_0: its second
 * factor; the first is FIRST_FACTOR behind), what its block has, its bytes of high bits, or what is
 * in their place: those of position 0 are where the row's scales begin. */
enum { FIRST_FACTOR = 4, HIGH_BYTES = 4 };
struct packed_place {
    size_t codes, scales, block, high;
};
static inline __host__ __device__ struct packed_place packed_place_of(const struct panels &p,
                                                                      int type, int row, int split,
                                                                      int position)
{
    const int splits = (int)K_SPLITS, each = p.ksplit.each;
    const int at = (position * splits + split) * p.rows + row / 2 * 2;
    const int scale = (position / 2 * splits + split) * p.rows + row;
    const int block = (block_of(p.ksplit, split, position) * splits + split) * p.rows + row;
    struct packed_place place = {(size_t)at * (size_t)code_bytes(type), 0, 0, 0};
    place.scales = (size_t)(each * splits * p.rows) * (size_t)code_bytes(type);
    place.block = place.scales +
                  (size_t)(in_pairs(each) * splits * p.rows) * (size_t)scale_bytes(type) +
                  (size_t)block * (size_t)block_bytes(type);
    const int high = five_bit(type) ? HIGH_BYTES : 0,
              own = type == DT_Q4_0 ? 2 : scale_bytes(type) - high; /* of a position */
    place.scales += (size_t)(2 * scale) * (size_t)scale_bytes(type);
    place.high = place.scales + (size_t)(position % 2 * high);
    place.scales += (size_t)(2 * high + position % 2 * own);
    return place;
}
/* Where number g of a chunk of two rows has its codes behind those of the chunk, and the high bits
 * of Q6_K. */
static inline __host__ __device__ int codes_of(int type, int g)
{
    return g * (type == DT_Q8_0 || type == DT_E4M3 ? 8 : type == DT_Q2_K ? 2 : 4);
}
static inline __host__ __device__ int high_codes_of(int g) { return 32 + g % 4 * 4 + g / 4 * 2; }

/* Unpacks panels first .. first + n - 1 of a packed matrix to the panels of a bf16 matrix at dst
 * (dense/packed.cu). */
void cuda_unpack_panels(struct kdev *d, const struct panels *p, int type, const void *panels,
                        int first, int n, void *dst);
/* The number of panels of each matrix of a product by the prefill kernel, at most `most`, whose
 * tiles are whole waves of blocks; `most` if they are less than one (dense/prefill.cu). */
int cuda_prefill_panels(const struct kdev *d, const struct product *p, int most);
/* Puts rows of blocks, which begin with row 0 of a panel, into n panels at dst. *too_large, on the
 * device, becomes 1 if a scale is too large for the format above; products must not read the
 * panels then. */
void cuda_repack_blocks(struct kdev *d, const struct panels *p, int type, const void *blocks,
                        int rows, int k, int n, void *dst, unsigned *too_large);

#ifdef __CUDACC__

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
__device__ __forceinline__ float bf16_value(uint16_t h)
{
    return __bfloat162float(__ushort_as_bfloat16(h));
}
__device__ __forceinline__ float rounded_bf16(float x)
{
    return __bfloat162float(__float2bfloat16_rn(x));
}

/* Which bytes of a row's scales of two chunks, and of its block, a lane loads. */
__device__ __forceinline__ uint32_t of_scales(int type)
{
    const uint32_t q = threadIdx.x % 4;
    return block_bytes(type)                  ? q
           : type == DT_E2M1                  ? q / 2 * 2
           : half_parts(type)                 ? q / 2 * 4
           : type == DT_Q2_K                  ? q / 2 * 8
                                              : 0;
}
__device__ __forceinline__ uint32_t of_block(int type)
{
    return block_bytes(type) ? threadIdx.x % 2 * 2 : 0;
}

/* A lane's eight weights of a row in each of two chunks, as stored. fetch() loads them from where
 * the lane has its codes of the first and of the second chunk in shared memory, its scales and its
 * block (of_scales() and of_block() behind those of its row). */
template <int STORED> struct packed_eight;

/* a b + c of bf16 pairs, each rounded once. */
__device__ __forceinline__ uint32_t bf16_fma(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t y;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(c));
    return y;
}
__device__ __forceinline__ uint32_t bf16_times(uint32_t a, uint32_t b)
{
    return bf16_fma(a, b, 0x80008000); /* -0 */
}
/* Half u of a word in both halves: as an operand of bf16_fma() not an instruction. */
__device__ __forceinline__ uint32_t both_halves(uint32_t x, int u)
{
    uint32_t y;
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {l, l}; }" : "=r"(y) : "r"(x));
    if (u)
        asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {h, h}; }" : "=r"(y) : "r"(x));
    return y;
}

/* A pair of levels, exact, times a number that is the sum of two bf16 numbers, each in both halves
 * of a word: rounded as their product with the number for which the upload found the two. */
__device__ __forceinline__ uint32_t times_parts(uint32_t levels, uint32_t high, uint32_t low)
{
    return bf16_fma(levels, high, bf16_times(levels, low));
}

/* A pair of weights (byte - 128) x. bytes: bits 0 to 7 and 16 to 23, which are subnormal numbers,
 * byte 2^-133; s: 2^6 times the parts of x. */
__device__ __forceinline__ uint32_t byte_weights(uint32_t bytes, uint32_t s)
{
    const uint32_t levels = bf16_fma(bytes, 0x7f007f00 /* 2^127 */, 0xc000c000 /* -2 */);
    return times_parts(levels, both_halves(s, 0), both_halves(s, 1));
}

/* Q8_0: the eight weights of two words. */
__device__ __forceinline__ uint4 q8_0_weights(uint2 w, uint32_t s)
{
    uint4 y;
#pragma unroll
    for (int j = 0; j < 4; j++)
        (&y.x)[j] = byte_weights(__byte_perm(j < 2 ? w.x : w.y, 0, j % 2 ? 0x4342 : 0x4140), s);
    return y;
}

template <> struct packed_eight<DT_Q8_0> {
    uint2 w[2], s; /* s: of both chunks */
    __device__ __forceinline__ void fetch(uint32_t a, uint32_t b, uint32_t scales, uint32_t)
    {
        w[0] = shared8(a), w[1] = shared8(b), s = shared8(scales);
    }
    __device__ __forceinline__ void as_bf16(uint4 &first, uint4 &second) const
    {
        first = q8_0_weights(w[0], s.x), second = q8_0_weights(w[1], s.y);
    }
};

/* The factors of a row of Q4_0 in two chunks, the first chunk's in the low halves. A code in bits 0
 * to 3 of a bf16 number is code 2^-133, a subnormal; in bits 4 to 7, code 2^-129. */
struct four_factors {
    uint32_t second, high, low, less; /* the second factors; the first ones for codes in bits 4 to
                                         7, in bits 0 to 3; -8 times the first ones */
    __device__ __forceinline__ four_factors(uint32_t second, uint32_t first)
        : second(second), high(first), low(bf16_times(first, 0x41804180)) /* 16 */,
          less(bf16_times(first, 0x80808080)) /* -2^-126 */
    {
    }
    /* The eight weights of a word. both(x): a factor with its chunk's number in both halves. */
    template <class BOTH>
    __device__ __forceinline__ uint4 weights(uint32_t w, const BOTH &both) const
    {
        uint4 y;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const uint32_t code = (j < 2 ? w : w >> 8) & (j % 2 ? 0x00f000f0 : 0x000f000f);
            (&y.x)[j] = bf16_times(bf16_fma(code, both(j % 2 ? high : low), both(less)),
                                   both(second));
        }
        return y;
    }
    /* Of a word in chunk u. */
    __device__ __forceinline__ uint4 weights(uint32_t w, int u) const
    {
        return weights(w, [=](uint32_t x) { return both_halves(x, u); });
    }
};

template <> struct packed_eight<DT_Q4_0> {
    uint32_t w[2];
    uint2 d; /* second factors, first factors */
    __device__ __forceinline__ void fetch(uint32_t a, uint32_t b, uint32_t scales, uint32_t)
    {
        w[0] = shared4(a), w[1] = shared4(b), d = shared8(scales);
    }
    __device__ __forceinline__ void as_bf16(uint4 &first, uint4 &second) const
    {
        const four_factors f(d.x, d.y);
        first = f.weights(w[0], 0), second = f.weights(w[1], 1);
    }
};

template <> struct packed_eight<DT_E4M3> {
    uint2 w[2];
    uint32_t factors; /* of both chunks */
    __device__ __forceinline__ void fetch(uint32_t a, uint32_t b, uint32_t scales, uint32_t)
    {
        w[0] = shared8(a), w[1] = shared8(b), factors = shared4(scales);
    }
    __device__ __forceinline__ void as_bf16(uint4 &first, uint4 &second) const
    {
        first = fp8_eight(w[0], both_halves(factors, 0));
        second = fp8_eight(w[1], both_halves(factors, 1));
    }
};

/* Eight codes in the high bits of bytes as float32 numbers: a byte in bits 16 to 23 is byte 2^-133,
 * a subnormal number or one of the smallest others. */
struct small_floats {
    uint32_t even, odd; /* of even j; of odd j */
    /* Element 2j + e. */
    __device__ __forceinline__ float at(int j, int e) const
    {
        return __uint_as_float(__byte_perm(j % 2 ? odd : even, 0, 0x4044 | (2 * e + j / 2) << 8));
    }
    /* Each code times `by` minus `less`, rounded to float32 and then to bf16. */
    __device__ __forceinline__ uint4 weights(float by, float less) const
    {
        uint4 y;
#pragma unroll
        for (int j = 0; j < 4; j++)
            (&y.x)[j] = bf16_pair(fmaf(at(j, 0), by, -less), fmaf(at(j, 1), by, -less));
        return y;
    }
    /* Each byte minus 128 times the number of which s has the parts. */
    __device__ __forceinline__ uint4 by_parts(uint32_t s) const
    {
        uint4 y;
#pragma unroll
        for (int j = 0; j < 4; j++)
            (&y.x)[j] = byte_weights(__byte_perm(j % 2 ? odd : even, 0, j / 2 ? 0x4341 : 0x4240),
                                     s);
        return y;
    }
};

/* Codes of four bits, in bits 20 to 23: code 2^-129. Weights of Q4_K: by is 2^129 dk. */
struct four_bits : small_floats {
    __device__ __forceinline__ explicit four_bits(uint32_t w)
        : small_floats{w << 4 & 0xf0f0f0f0, w & 0xf0f0f0f0}
    {
    }
};

/* The factors of a row of Q4_K or Q5_K in two chunks: dk, d times the chunk's scale (times 2^129 or
 * 2^130), and mk, dmin times its minimum. Lane q of the four that have a row makes number q of dk,
 * mk of the first chunk, dk, mk of the second: own and d are its factors. */
struct affine_factors {
    float by[2], less[2];
    __device__ __forceinline__ affine_factors(uint32_t own, uint32_t d)
    {
        const float mine = half_value(d) * ((float)own * (threadIdx.x % 2 ? 1.f : 0x1p120f));
#pragma unroll
        for (int u = 0; u < 2; u++) {
            by[u] = __shfl_sync(~0u, mine, 2 * u, 4);
            less[u] = __shfl_sync(~0u, mine, 2 * u + 1, 4);
        }
    }
};

template <> struct packed_eight<DT_Q4_K> {
    uint32_t w[2], own, d;
    __device__ __forceinline__ void fetch(uint32_t a, uint32_t b, uint32_t scales, uint32_t block)
    {
        w[0] = shared4(a), w[1] = shared4(b), own = shared1(scales), d = shared2(block);
    }
    __device__ __forceinline__ void as_bf16(uint4 &first, uint4 &second) const
    {
        const affine_factors f(own, d);
        first = four_bits(w[0]).weights(f.by[0], f.less[0]);
        second = four_bits(w[1]).weights(f.by[1], f.less[1]);
    }
};

/* For each of the low four nibbles of `codes`, of which the others are ignored, the byte with its
 * number in a table of eight. If bytes are below 128, nibbles from 8 on give 0. */
__device__ __forceinline__ uint32_t bytes_of(uint32_t first, uint32_t behind, uint32_t codes)
{
    uint32_t y;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(y) : "r"(first), "r"(behind), "r"(codes));
    return y;
}
/* Q2_K: the eight weights of half u of a word of codes. table: the low bytes of the four weights of
 * half a chunk, by code, and the high ones. */
__device__ __forceinline__ uint4 of_table(uint32_t w, int u, uint2 table)
{
    uint4 y;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        /* code c becomes the nibbles c and c + 4: the constant times 17 is 0x40404040 */
        const uint32_t both = ((w >> 2 * j & 0x03030303) | 0xf4b87c40) * 17;
        (&y.x)[j] = bytes_of(table.x, table.y, both >> 16 * u);
    }
    return y;
}

template <> struct packed_eight<DT_Q2_K> {
    uint32_t w;
    uint2 table[2];
    __device__ __forceinline__ void fetch(uint32_t a, uint32_t b, uint32_t scales, uint32_t)
    {
        w = shared2(a) | shared2(b) << 16;
        table[0] = shared8(scales), table[1] = shared8(scales + 16);
    }
    __device__ __forceinline__ void as_bf16(uint4 &first, uint4 &second) const
    {
        first = of_table(w, 0, table[0]), second = of_table(w, 1, table[1]);
    }
};

/* Codes of five bits, in bits 19 to 23: code 2^-130. w: their word; h: the byte of high bits, which
 * the multiplication copies four times, 10 bits apart. Weights of Q5_K: by is 2^130 dk; of Q5_1:
 * less is -m, too. */
struct five_bits : small_floats {
    __device__ __forceinline__ five_bits(uint32_t w, uint32_t h)
        : small_floats{w & 0xf8f8f8f8, (h * 0x40100401 & 0xc0c0c0c0) | (w << 3 & 0x38383838)}
    {
    }
};

template <> struct packed_eight<DT_Q5_K> {
    uint32_t w[2], high[2], own, d;
    __device__ __forceinline__ void fetch(uint32_t a, uint32_t b, uint32_t scales, uint32_t block)
    {
        w[0] = shared4(a), w[1] = shared4(b), d = shared2(block);
        high[0] = shared1(scales), high[1] = shared1(scales + HIGH_BYTES);
        own = shared1(scales + 2 * HIGH_BYTES);
    }
    __device__ __forceinline__ void as_bf16(uint4 &first, uint4 &second) const
    {
        const affine_factors f(own, d);
        first = five_bits(w[0], high[0]).weights(f.by[0], f.less[0]);
        second = five_bits(w[1], high[1]).weights(f.by[1], f.less[1]);
    }
};

/* Q5_1, Q5_0: the eight weights of a word. high: the chunk's bytes of high bits; s: 2^17 d and m,
 * or the parts of d / 8. */
template <int STORED>
__device__ __forceinline__ uint4 five_weights(uint32_t w, uint32_t high, uint32_t s)
{
    const five_bits code(w, __byte_perm(high, 0, 0x4440 | threadIdx.x % 4));
    return STORED == DT_Q5_0
               ? code.by_parts(s)
               : code.weights(half_value(s & 0xffff) * 0x1p113f, -half_value(s >> 16));
}

template <int STORED> struct eight_five {
    uint32_t w[2];
    uint4 s; /* the high bits of both chunks, their d and m or parts */
    __device__ __forceinline__ void fetch(uint32_t a, uint32_t b, uint32_t scales, uint32_t)
    {
        w[0] = shared4(a), w[1] = shared4(b), s = shared16(scales);
    }
    __device__ __forceinline__ void as_bf16(uint4 &first, uint4 &second) const
    {
        first = five_weights<STORED>(w[0], s.x, s.z);
        second = five_weights<STORED>(w[1], s.y, s.w);
    }
};
template <> struct packed_eight<DT_Q5_1> : eight_five<DT_Q5_1> {};
template <> struct packed_eight<DT_Q5_0> : eight_five<DT_Q5_0> {};

/* Codes of six bits, for by_parts(). w: their word; h: the high bits behind the words. */
struct six_bits : small_floats {
    __device__ __forceinline__ six_bits(uint32_t w, uint32_t h)
        : small_floats{w & 0xfcfcfcfc, (h * 0x100001 & 0xf0f0f0f0) | (w << 2 & 0x0c0c0c0c)}
    {
    }
};

template <> struct packed_eight<DT_Q6_K> {
    uint32_t w[2], high[2], s[2];
    __device__ __forceinline__ void fetch(uint32_t a, uint32_t b, uint32_t scales, uint32_t)
    {
        const int n = (int)threadIdx.x % 4 * 2;
        const uint32_t from = (uint32_t)(high_codes_of(n) - codes_of(DT_Q6_K, n));
        w[0] = shared4(a), w[1] = shared4(b), s[0] = shared4(scales), s[1] = shared4(scales + 8);
        high[0] = shared2(a + from), high[1] = shared2(b + from);
    }
    __device__ __forceinline__ void as_bf16(uint4 &first, uint4 &second) const
    {
        first = six_bits(w[0], high[0]).by_parts(s[0]);
        second = six_bits(w[1], high[1]).by_parts(s[1]);
    }
};

/* Q3_K: the eight weights of a word. */
__device__ __forceinline__ uint4 q3_k_weights(uint32_t w, uint32_t s)
{
    uint4 y;
#pragma unroll
    for (int j = 0; j < 4; j++)
        (&y.x)[j] = byte_weights((j ? w >> 4 * (j - 1) : w << 4) & 0x00f000f0, s);
    return y;
}

template <> struct packed_eight<DT_Q3_K> {
    uint32_t w[2], s[2];
    __device__ __forceinline__ void fetch(uint32_t a, uint32_t b, uint32_t scales, uint32_t)
    {
        w[0] = shared4(a), w[1] = shared4(b), s[0] = shared4(scales), s[1] = shared4(scales + 8);
    }
    __device__ __forceinline__ void as_bf16(uint4 &first, uint4 &second) const
    {
        first = q3_k_weights(w[0], s[0]), second = q3_k_weights(w[1], s[1]);
    }
};

/* IQ4_XS: the eight weights of a word. Of codes below 8 a table has levels without their sign. */
__device__ __forceinline__ uint4 iq4_weights(uint32_t w, uint32_t s)
{
    const uint32_t other = w ^ 0x88888888;
    uint4 y;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const int half = j / 2 * 16;
        const uint32_t bytes = 0x80808080 + bytes_of(0x26190d01, 0x71594535, other >> half) -
                               bytes_of(0x4153687f, 0x0a162331, w >> half); /* levels + 128 */
        (&y.x)[j] = byte_weights(__byte_perm(bytes, 0, j % 2 ? 0x4342 : 0x4140), s);
    }
    return y;
}

template <> struct packed_eight<DT_IQ4_XS> {
    uint32_t w[2];
    uint2 s;
    __device__ __forceinline__ void fetch(uint32_t a, uint32_t b, uint32_t scales, uint32_t)
    {
        w[0] = shared4(a), w[1] = shared4(b), s = shared8(scales);
    }
    __device__ __forceinline__ void as_bf16(uint4 &first, uint4 &second) const
    {
        first = iq4_weights(w[0], s.x), second = iq4_weights(w[1], s.y);
    }
};

/* Eight codes of E2M1 (a sign, two bits of exponent, one of mantissa) as a word of which shifts and
 * masks make pairs of bf16 numbers (e2m1_pair()). A half of the word has a code of each pair:
 *
 *     bit    15 14 13 12 11 10 9 8 7 6 5 4 3 2 1 0
 *     pair    0  2  2  2  1  3 3 0 0 0 2 1 1 1 3 3
 *
 * Bits 15 and 11 are signs of pairs 0 and 1; bit 5 is the sign of pair 2 in the other half.
 * e2m1_pair() combines bits of pair 3 with other bits, which is undone here. */
static inline __host__ __device__ uint32_t e2m1_word(const uint8_t *code)
{
    uint32_t half[2];
    for (int e = 0; e < 2; e++) {
        const uint32_t c0 = code[e], c1 = code[2 + e], c2 = code[4 + e];
        half[e] = (c0 & 8) << 12 | (c0 & 7) << 6 | (c1 & 8) << 8 | (c1 & 7) << 2 | (c2 & 7) << 12 |
                  (code[5 - e] & 8) << 2;
    }
    for (int e = 1; e >= 0; e--) { /* the low half's bit 9 depends on the high half's bit 1 */
        const uint32_t c = code[6 + e];
        const uint32_t bit9 = (c >> 3 & 1) ^ (e ? 0 : half[1] >> 1 & 1);
        half[e] |= bit9 << 9 | ((c >> 2 & 1) ^ (half[e] >> 2 & 1)) << 10 |
                   ((c >> 1 & 1) ^ bit9) << 1 | ((c & 1) ^ (half[e] >> 8 & 1));
    }
    return half[0] | half[1] << 16;
}
/* Elements 2j and 2j + 1, times 2^-126. */
__device__ __forceinline__ uint32_t e2m1_pair(uint32_t w, int j)
{
    const uint32_t bits = j == 0   ? w
                          : j == 1 ? w << 4
                          : j == 2 ? __funnelshift_r(w, w, 6)
                                   : (w << 6 ^ w >> 2);
    return bits & 0x81c081c0;
}
/* E2M1: the eight weights of a word. s: the number of its half of the chunk; times 2^126 it is the
 * sum of two bf16 numbers. */
enum {
    E2M1_LEAST = 65, /* the biased exponent of the least number, as a float32 */
    E2M1_UP = 126,   /* powers of two that levels lack */
};
struct two_parts {
    uint32_t high, low; /* each in both halves */
    __device__ __forceinline__ explicit two_parts(uint32_t s)
    {
        const uint32_t x = s * 0x2000 + ((uint32_t)(E2M1_LEAST + E2M1_UP) << 23);
        const float rest = __uint_as_float(x) - __uint_as_float(x & 0xffff0000);
        high = __byte_perm(x, 0, 0x3232), low = __byte_perm(__float_as_uint(rest), 0, 0x3232);
    }
    __device__ __forceinline__ uint4 weights(uint32_t w) const
    {
        uint4 y;
#pragma unroll
        for (int j = 0; j < 4; j++)
            (&y.x)[j] = times_parts(e2m1_pair(w, j), high, low);
        return y;
    }
};

template <> struct packed_eight<DT_E2M1> {
    uint32_t w[2], s[2];
    __device__ __forceinline__ void fetch(uint32_t a, uint32_t b, uint32_t scales, uint32_t)
    {
        w[0] = shared4(a), w[1] = shared4(b), s[0] = shared2(scales), s[1] = shared2(scales + 4);
    }
    __device__ __forceinline__ void as_bf16(uint4 &first, uint4 &second) const
    {
        first = two_parts(s[0]).weights(w[0]), second = two_parts(s[1]).weights(w[1]);
    }
};

/* ---- a pair of rows ------------------------------------------------------------------------- */

/* For products whose tensor cores have no time to unpack: a thread's eight weights of both rows of
 * a pair in each of two chunks, from shared memory; lane % 4 is q, which eight of a chunk. fetch()
 * takes where the pair's codes of the first chunk are and bytes from there to the second's, the
 * scales of the pair's first row, what its block has, bytes to what the second chunk's block has.
 * unpack(): the weights of chunk u of both rows, with the bits of packed_bf16(). */
template <int TYPE> struct packed_pair;

/* A lane's words of codes in each of two chunks: of both rows; of both rows. */
__device__ __forceinline__ uint4 pair_words(uint32_t codes, uint32_t second)
{
    const uint32_t at = codes + threadIdx.x % 4 * 8;
    const uint2 a = shared8(at), b = shared8(at + second);
    return make_uint4(a.x, a.y, b.x, b.y);
}

/* The parts of a lane's halves in each of two chunks: of the first row, of the second. */
struct pair_parts {
    uint32_t s[2][2];
    __device__ __forceinline__ void fetch(uint32_t scales_at)
    {
        const uint32_t own = scales_at + threadIdx.x % 4 / 2 * 4;
#pragma unroll
        for (uint32_t r = 0; r < 2; r++)
            s[0][r] = shared4(own + r * 16), s[1][r] = shared4(own + r * 16 + 8);
    }
};

template <> struct packed_pair<DT_Q6_K> {
    uint4 w;
    uint32_t high[2][2]; /* of a chunk: of the first row, of the second */
    struct pair_parts parts;
    __device__ __forceinline__ void fetch(uint32_t codes, uint32_t second, uint32_t scales_at,
                                          uint32_t, uint32_t)
    {
        const uint32_t q = threadIdx.x % 4;
        w = pair_words(codes, second), parts.fetch(scales_at);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const uint32_t more = codes + (uint32_t)high_codes_of((int)q * 2 + r);
            high[0][r] = shared2(more), high[1][r] = shared2(more + second);
        }
    }
    __device__ __forceinline__ void unpack(int u, uint4 &first, uint4 &second) const
    {
        first = six_bits(u ? w.z : w.x, high[u][0]).by_parts(parts.s[u][0]);
        second = six_bits(u ? w.w : w.y, high[u][1]).by_parts(parts.s[u][1]);
    }
};

template <> struct packed_pair<DT_Q3_K> {
    uint4 w;
    struct pair_parts parts;
    __device__ __forceinline__ void fetch(uint32_t codes, uint32_t second, uint32_t scales_at,
                                          uint32_t, uint32_t)
    {
        w = pair_words(codes, second), parts.fetch(scales_at);
    }
    __device__ __forceinline__ void unpack(int u, uint4 &first, uint4 &second) const
    {
        first = q3_k_weights(u ? w.z : w.x, parts.s[u][0]);
        second = q3_k_weights(u ? w.w : w.y, parts.s[u][1]);
    }
};

/* Q4_K and Q5_K: weights of chunk u. scales: those of both chunks; block: d and dmin. */
struct affine_pair {
    /* Byte i of a word as a number, times 2^120 or 1: FLOATS has it in bits 16 to 23, or 0 to 7. */
    template <uint32_t FLOATS>
    __device__ __forceinline__ static float small_value(uint32_t word, int i)
    {
        const bool large = FLOATS == 0x7f000000;
        return __uint_as_float(__byte_perm(word, FLOATS, large ? 0x7044 | i << 8 : 0x7440 | i)) -
               __uint_as_float(FLOATS);
    }
    __device__ __forceinline__ static uint4 weights(const small_floats &code, uint32_t scales,
                                                    uint32_t block, int u)
    {
        return code.weights(half_value(block & 0xffff) * small_value<0x7f000000>(scales, 2 * u),
                            half_value(block >> 16) * small_value<0x4b000000>(scales, 2 * u + 1));
    }
};

template <> struct packed_pair<DT_Q4_K> {
    uint4 w;
    uint2 scales, block[2]; /* of the first row, of the second; of a chunk */
    __device__ __forceinline__ void fetch(uint32_t codes, uint32_t second, uint32_t scales_at,
                                          uint32_t blocks, uint32_t next_block)
    {
        w = pair_words(codes, second), scales = shared8(scales_at);
        block[0] = shared8(blocks), block[1] = shared8(blocks + next_block);
    }
    __device__ __forceinline__ void unpack(int u, uint4 &first, uint4 &second) const
    {
        first = affine_pair::weights(four_bits(u ? w.z : w.x), scales.x, block[u].x, u);
        second = affine_pair::weights(four_bits(u ? w.w : w.y), scales.y, block[u].y, u);
    }
};

/* Q2_K: tables are loaded where they are used, as codes of E4M3 (late_codes). */
template <> struct packed_pair<DT_Q2_K> {
    uint32_t w[2], at; /* of a chunk: of both rows; the tables of the first row in both chunks */
    __device__ __forceinline__ void fetch(uint32_t codes, uint32_t second, uint32_t scales_at,
                                          uint32_t, uint32_t)
    {
        const uint32_t q = threadIdx.x % 4;
        w[0] = shared4(codes + q * 4), w[1] = shared4(codes + second + q * 4);
        at = scales_at + q / 2 * 8;
    }
    __device__ __forceinline__ void unpack(int u, uint4 &first, uint4 &second) const
    {
        first = of_table(w[u], 0, shared8(at + (uint32_t)u * 16));
        second = of_table(w[u], 1, shared8(at + (uint32_t)u * 16 + 32));
    }
};

template <> struct packed_pair<DT_Q5_K> {
    uint4 w;
    uint2 high, scales, block[2]; /* of the first row, of the second; high: a byte of each chunk */
    __device__ __forceinline__ void fetch(uint32_t codes, uint32_t second, uint32_t scales_at,
                                          uint32_t blocks, uint32_t next_block)
    {
        const uint2 a = shared8(scales_at), b = shared8(scales_at + 8), c = shared8(scales_at + 16);
        const uint32_t both = threadIdx.x % 4 * 0x11 + 0x40;
        w = pair_words(codes, second);
        high = make_uint2(__byte_perm(a.x, a.y, both), __byte_perm(b.y, c.x, both));
        scales = make_uint2(b.x, c.y);
        block[0] = shared8(blocks), block[1] = shared8(blocks + next_block);
    }
    __device__ __forceinline__ void unpack(int u, uint4 &first, uint4 &second) const
    {
        const uint32_t byte = u ? 0x4441 : 0x4440;
        first = affine_pair::weights(five_bits(u ? w.z : w.x, __byte_perm(high.x, 0, byte)),
                                     scales.x, block[u].x, u);
        second = affine_pair::weights(five_bits(u ? w.w : w.y, __byte_perm(high.y, 0, byte)),
                                      scales.y, block[u].y, u);
    }
};

template <int STORED> struct pair_five {
    uint4 w, first_row, second_row; /* scales, as in eight_five */
    __device__ __forceinline__ void fetch(uint32_t codes, uint32_t second, uint32_t scales_at,
                                          uint32_t, uint32_t)
    {
        w = pair_words(codes, second);
        first_row = shared16(scales_at), second_row = shared16(scales_at + 16);
    }
    __device__ __forceinline__ void unpack(int u, uint4 &first, uint4 &second) const
    {
        const uint4 &a = first_row, &b = second_row;
        first = five_weights<STORED>(u ? w.z : w.x, u ? a.y : a.x, u ? a.w : a.z);
        second = five_weights<STORED>(u ? w.w : w.y, u ? b.y : b.x, u ? b.w : b.z);
    }
};
template <> struct packed_pair<DT_Q5_1> : pair_five<DT_Q5_1> {};
template <> struct packed_pair<DT_Q5_0> : pair_five<DT_Q5_0> {};

template <> struct packed_pair<DT_IQ4_XS> {
    uint4 w, s; /* s: scales of the first row in both chunks, of the second */
    __device__ __forceinline__ void fetch(uint32_t codes, uint32_t second, uint32_t scales_at,
                                          uint32_t, uint32_t)
    {
        w = pair_words(codes, second), s = shared16(scales_at);
    }
    __device__ __forceinline__ void unpack(int u, uint4 &first, uint4 &second) const
    {
        first = iq4_weights(u ? w.z : w.x, u ? s.y : s.x);
        second = iq4_weights(u ? w.w : w.y, u ? s.w : s.z);
    }
};

template <> struct packed_pair<DT_E2M1> {
    uint4 w, s; /* as of IQ4_XS */
    __device__ __forceinline__ void fetch(uint32_t codes, uint32_t second, uint32_t scales_at,
                                          uint32_t, uint32_t)
    {
        w = pair_words(codes, second), s = shared16(scales_at);
    }
    __device__ __forceinline__ static uint32_t own(uint32_t s)
    {
        return threadIdx.x % 4 < 2 ? s & 0xffff : s >> 16;
    }
    __device__ __forceinline__ void unpack(int u, uint4 &first, uint4 &second) const
    {
        first = two_parts(own(u ? s.y : s.x)).weights(u ? w.z : w.x);
        second = two_parts(own(u ? s.w : s.z)).weights(u ? w.w : w.y);
    }
};

template <> struct packed_pair<DT_Q4_0> {
    uint4 w;
    uint4 factors; /* of the first row: second factors, first factors; of the second row */
    __device__ __forceinline__ void fetch(uint32_t codes, uint32_t second, uint32_t scales_at,
                                          uint32_t, uint32_t)
    {
        w = pair_words(codes, second), factors = shared16(scales_at);
    }
    __device__ __forceinline__ void unpack(int u, uint4 &first, uint4 &second) const
    {
        first = four_factors(factors.x, factors.y).weights(u ? w.z : w.x, u);
        second = four_factors(factors.z, factors.w).weights(u ? w.w : w.y, u);
    }
};

/* E4M3 and Q8_0: codes are loaded where they are unpacked, which leaves registers for more
 * columns. */
struct late_codes {
    uint32_t at, second; /* of the first chunk; bytes to the second */
    __device__ __forceinline__ void fetch(uint32_t codes, uint32_t to_second)
    {
        at = codes + threadIdx.x % 4 * 16, second = to_second;
    }
    /* A lane's codes of chunk u, of both rows. */
    __device__ __forceinline__ uint4 of(int u) const { return shared16(at + (u ? second : 0)); }
};

template <> struct packed_pair<DT_E4M3> {
    struct late_codes late;
    uint2 factors; /* of the first row in both chunks, of the second */
    __device__ __forceinline__ void fetch(uint32_t codes, uint32_t second, uint32_t scales_at,
                                          uint32_t, uint32_t)
    {
        late.fetch(codes, second), factors = shared8(scales_at);
    }
    __device__ __forceinline__ void unpack(int u, uint4 &first, uint4 &second) const
    {
        const uint4 w = late.of(u);
        first = fp8_eight(make_uint2(w.x, w.y), both_halves(factors.x, u));
        second = fp8_eight(make_uint2(w.z, w.w), both_halves(factors.y, u));
    }
};

template <> struct packed_pair<DT_Q8_0> {
    struct late_codes late;
    uint4 s; /* of the first row in both chunks, of the second */
    __device__ __forceinline__ void fetch(uint32_t codes, uint32_t second, uint32_t scales_at,
                                          uint32_t, uint32_t)
    {
        late.fetch(codes, second), s = shared16(scales_at);
    }
    __device__ __forceinline__ void unpack(int u, uint4 &first, uint4 &second) const
    {
        const uint4 w = late.of(u);
        first = q8_0_weights(make_uint2(w.x, w.y), u ? s.y : s.x);
        second = q8_0_weights(make_uint2(w.z, w.w), u ? s.w : s.z);
    }
};

/* Weights by parts, of which zeros become those of a level of zero: with the sign of the parts'
 * sum. If that is zero, weights have their signs. */
__device__ __forceinline__ uint4 with_sign(uint4 y, uint32_t parts)
{
    const uint32_t sign = parts & 0x7fff ? parts & 0x8000 : 0;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        uint32_t &two = (&y.x)[j];
        two |= (two & 0xffff ? 0 : sign) | (two >> 16 ? 0 : sign << 16);
    }
    return y;
}

/* Eight weights of a row of a panel in memory. q: which eight of the chunk at `at`; type: what the
 * panel is stored as; law: the packed type that it was, so that zeros have the sign that
 * packed_bf16() gives them; DT_NONE: they may have another one. */
__device__ __forceinline__ uint4 eight_at(const struct packed_place &at, int type,
                                          const uint8_t *panel, int row, int q, int law)
{
    const uint8_t *codes = panel + at.codes, *scales = panel + at.scales;
    const int number = 2 * q + row % 2;
    if (type == DT_Q2_K)
        return of_table(*(const uint16_t *)(codes + codes_of(type, number)), 0,
                        *(const uint2 *)(scales + q / 2 * 8));
    const uint32_t word = *(const uint32_t *)(codes + codes_of(type, number)),
                   s = *(const uint16_t *)scales;
    if (type == DT_E4M3)
        return fp8_eight(*(const uint2 *)(codes + codes_of(type, number)), both_halves(s, 0));
    if (type == DT_Q4_0)
        return four_factors(s, *(const uint16_t *)(scales + FIRST_FACTOR)).weights(word, 0);
    if (type == DT_Q4_K) {
        const uint16_t *block = (const uint16_t *)(panel + at.block);
        return four_bits(word).weights(half_value(block[0]) * ((float)scales[0] * 0x1p120f),
                                       half_value(block[1]) * (float)scales[1]);
    }
    if (type == DT_Q5_K) {
        const uint16_t *block = (const uint16_t *)(panel + at.block);
        return five_bits(word, *(const uint32_t *)(panel + at.high) >> 8 * q & 0xff)
            .weights(half_value(block[0]) * ((float)scales[0] * 0x1p120f),
                     half_value(block[1]) * (float)scales[1]);
    }
    const uint32_t high = five_bit(type)
                              ? *(const uint32_t *)(panel + at.high) >> 8 * q & 0xff
                              : 0;
    if (type == DT_Q5_1)
        return five_bits(word, high)
            .weights(half_value(s) * 0x1p113f, -half_value(*(const uint16_t *)(scales + 2)));
    if (type == DT_E2M1)
        return two_parts(*(const uint16_t *)(scales + q / 2 * 2)).weights(word);
    const uint32_t parts = *(const uint32_t *)(scales + (half_parts(type) ? q / 2 * 4 : 0));
    if (type == DT_IQ4_XS)
        return iq4_weights(word, parts);
    uint4 y;
    if (type == DT_Q3_K)
        y = q3_k_weights(word, parts);
    else if (type == DT_Q5_0)
        y = five_bits(word, high).by_parts(parts);
    else if (type == DT_Q6_K)
        y = six_bits(word, *(const uint16_t *)(codes + high_codes_of(number))).by_parts(parts);
    else
        y = q8_0_weights(*(const uint2 *)(codes + codes_of(type, number)), parts);
    return law == DT_NONE ? y : with_sign(y, parts);
}

#endif
