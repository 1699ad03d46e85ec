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
 * below 1/2. A weight of Q6_K is (code - 32) dk, rounded to bf16, where dk is the scale of half a
 * chunk, at most 19 bits: an fma of code 2^-131 (struct six_bits), 2^131 dk and 32 dk, exact before
 * it is rounded; dk must be below 1/8. A matrix with larger scales becomes bf16 (mem.cu).
 *
 * A weight of Q5_K is that of Q4_K with a code of five bits, code 2^-130 (struct five_bits): dk
 * must be below 1/4. A weight of Q5_1 is (code d) + m, rounded to float32 and then to bf16: the
 * same fma, with an f16 d below 1/4. So are those of Q4_1, and of Q5_0, whose m is -16 d.
 *
 * A weight of IQ4_XS is a level (packed_iq4) times dk, which has 17 bits at most, rounded to bf16:
 * an fma of (level + 128) 2^-133, a byte, 2^133 dk and 128 dk; dk must be below 1/32.
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
 * A type with the values of another one is stored as that (packed_as() of route.c): Q4_1 and Q5_0
 * as Q5_1, Q3_K as Q6_K, IQ4_NL as IQ4_XS, MXFP4 and NVFP4 as E2M1.
 *
 * A chunk of two rows has eight times a word: number 2q + r has codes of elements 8q to 8q + 7 of
 * row r:
 *
 *     Q4_0, Q4_K  element 2j + e from bit 16e + 4j on.
 *     IQ4_XS      element i from bit 4i on.
 *     E2M1        e2m1_word() below.
 *     Q5_K, Q5_1  byte b = 2e + j / 2 has element 2j + e from bit 3 on if j is even, and its low
 *                 three bits if j is odd. The two high bits of those are in a byte with the scales,
 *                 of byte b from bit 6 - 2b on.
 *     Q6_K        byte b = 2e + j / 2 has element 2j + e from bit 2 on if j is even, and its low
 *                 two bits if j is odd. The four high bits of those are in halves of four words
 *                 (high_codes_of()): of bytes 2, 0, 3, 1 from bits 0, 4, 8, 12 on.
 *
 * Codes of Q8_0 are unpacked by tensor cores (mma_diagonal()) and lie as their operand needs them:
 * a chunk of two rows has eight bytes for each g < 8: at 2j + r, plus 128, that of element
 * 8 (g / 2) + 2j + g % 2 of row r.
 *
 * Scales of a row's chunk:
 *
 *     Q4_0        the factors: the second, times 2^7, of both positions; then the first, times
 *                 2^122 (struct four_factors).
 *     Q8_0        the block's, an f16.
 *     E4M3        the block's times 2^120, a bf16.
 *     Q4_K        the chunk's own scale and minimum, two bytes; the block has d, times 2^9, and
 *                 dmin, two f16.
 *     Q6_K        the block's d, times 2^19, an f16, and two bytes, the scales of both halves of
 *                 the chunk plus 128. Q3_K, whose codes are levels -4 to 3, has eight times those
 *                 and an eighth of d.
 *     Q5_K        of both positions: a byte of high bits for each q; then the scales and minima, as
 *                 of Q4_K; the block has d, times 2^10, and dmin.
 *     Q5_1        of both positions: a byte of high bits for each q; then d, times 2^17, and m, two
 *                 f16.
 *     IQ4_XS      d times 2^21, an f16, the scale plus 128, a byte, and a zero.
 *     E2M1        the numbers of both halves of the chunk, two bytes each.
 *
 * So a chunk takes 20 bytes of Q4_0 where a file has 18, about 18.8 of Q4_K (18), 28 of Q6_K
 * (26.25) and Q3_K (13.75), about 22.8 of Q5_K (22), 24 of Q5_1 (24), Q5_0 (22) and Q4_1 (20), 20
 * of IQ4_XS (17), IQ4_NL (18), MXFP4 (17), NVFP4 (18) and E2M1 (22).
 *
 * The decode kernel multiplies packed weights as they are, and so does the prefill kernel, which
 * unpacks them in registers (packed_pair). For so many rows that each weight would be unpacked too
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
    return stored == DT_Q4_0 || stored == DT_Q4_K || stored == DT_IQ4_XS || stored == DT_E2M1;
}
static constexpr inline __host__ __device__ bool five_bit(int stored)
{
    return stored == DT_Q5_K || stored == DT_Q5_1;
}

/* Bytes of the codes of a row's chunk, and of its scales. */
static constexpr inline __host__ __device__ int code_bytes(int stored)
{
    return stored == DT_BF16                        ? 2 * (int)K_CHUNK
           : four_bit(stored) || five_bit(stored) ? (int)K_CHUNK / 2
           : stored == DT_Q6_K                      ? (int)K_CHUNK * 6 / 8
                                                    : (int)K_CHUNK;
}
static constexpr inline __host__ __device__ int scale_bytes(int stored)
{
    switch (stored) {
    case DT_Q8_0:
    case DT_E4M3:
    case DT_Q4_K: return 2;
    case DT_Q4_0:
    case DT_Q6_K:
    case DT_IQ4_XS:
    case DT_E2M1: return 4;
    case DT_Q5_K: return 6;
    case DT_Q5_1: return 8;
    default: return 0;
    }
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
    return g * (type == DT_Q8_0 || type == DT_E4M3 ? 8 : 4);
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

/* The sum of two pairs of f16, each rounded once. */
__device__ __forceinline__ uint32_t plus_halves(uint32_t a, uint32_t b)
{
    uint32_t y;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    return y;
}

/* A diagonal of 16 elements of f16 as the sparse operand of a product. Of four successive elements
 * of a row, the operand has two, at places that `places` says. Lane / 4 is g: a lane has elements
 * g of the first eight, and g of the others, where they are in rows 4 (lane % 4) to 4 (lane % 4) +
 * 3 of the operand's columns; elsewhere zeros. */
struct diagonals {
    uint32_t half[2]; /* selectors for __byte_perm(x, 0, .) of the operand's words: x has element g
                         of the first eight in its low half, of the others in its high half */
    uint32_t places;
    float times; /* Q4_K: what the lane multiplies its scale by */
    __device__ __forceinline__ void set()
    {
        times = threadIdx.x % 2 ? 1.f : 0x1p120f;
        const uint32_t lane = threadIdx.x % 32, g = lane / 4, i = g % 4;
        places = (i < 3 ? i | 12 : 12) * 0x11111111; /* i and 3, or 0 and 3 */
        for (uint32_t u = 0; u < 2; u++) {
            const uint32_t bytes = u ? 0x32 : 0x10;
            half[u] = lane % 4 != 2 * u + g / 4 ? 0x4444 : i == 3 ? bytes << 8 | 0x44
                                                                  : 0x4400 | bytes;
        }
    }
};

/* d = diag(a0, a1) b with f16 operands: row i of d is a_i b_i, i < 16, in eight columns: exact. */
__device__ __forceinline__ void mma_diagonal(float (&d)[4], const diagonals &g, uint32_t a0,
                                             uint32_t a1, uint32_t b0, uint32_t b1)
{
    asm("mma.sp::ordered_metadata.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0,%1,%2,%3}, {%4,%5}, {%6,%7}, {%9,%9,%9,%9}, %8, 0x0;"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a0), "r"(a1), "r"(b0), "r"(b1), "r"(g.places), "f"(0.f));
}

/* Which bytes of a row's scales of two chunks, and of its block, a lane loads. */
__device__ __forceinline__ uint32_t of_scales(int type)
{
    const uint32_t q = threadIdx.x % 4;
    return block_bytes(type) ? q : type == DT_E2M1 ? q / 2 * 2 : 0;
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
    __device__ __forceinline__ void as_bf16(const diagonals &, uint4 &first, uint4 &second) const
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
    __device__ __forceinline__ void as_bf16(const diagonals &, uint4 &first, uint4 &second) const
    {
        first = fp8_eight(w[0], both_halves(factors, 0));
        second = fp8_eight(w[1], both_halves(factors, 1));
    }
};

/* A weight is (code - 128) d, rounded once. Levels code - 128 are exact in f16, and the product has
 * 19 bits. 1024 + code are two bytes. */
template <> struct packed_eight<DT_Q8_0> {
    uint2 w[2];
    uint32_t d;
    __device__ __forceinline__ void fetch(uint32_t a, uint32_t b, uint32_t scales, uint32_t)
    {
        w[0] = shared8(a), w[1] = shared8(b), d = shared4(scales);
    }
    __device__ __forceinline__ static uint32_t level(uint2 w, int j)
    {
        return plus_halves(__byte_perm(j < 2 ? w.x : w.y, 0x64646464, j % 2 ? 0x4342 : 0x4140),
                           0xe480e480); /* -1152 */
    }
    __device__ __forceinline__ void as_bf16(const diagonals &g, uint4 &first, uint4 &second) const
    {
        const uint32_t a0 = __byte_perm(d, 0, g.half[0]), a1 = __byte_perm(d, 0, g.half[1]);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float y[4];
            mma_diagonal(y, g, a0, a1, level(w[0], j), level(w[1], j));
            (&first.x)[j] = bf16_pair(y[0], y[1]), (&second.x)[j] = bf16_pair(y[2], y[3]);
        }
    }
};

/* Eight codes of four bits as float32 numbers: a code in bits 20 to 23 is code 2^-129, a subnormal
 * number or one of the smallest others. */
struct four_bits {
    uint32_t even, odd; /* of even and of odd j, in the high halves of bytes */
    __device__ __forceinline__ explicit four_bits(uint32_t w)
        : even(w << 4 & 0xf0f0f0f0), odd(w & 0xf0f0f0f0)
    {
    }
    /* Element 2j + e. */
    __device__ __forceinline__ float at(int j, int e) const
    {
        return __uint_as_float(__byte_perm(j % 2 ? odd : even, 0, 0x4044 | (2 * e + j / 2) << 8));
    }
    /* Weights of Q4_K. by: 2^129 dk. */
    __device__ __forceinline__ uint4 weights(float by, float less) const
    {
        uint4 y;
#pragma unroll
        for (int j = 0; j < 4; j++)
            (&y.x)[j] = bf16_pair(fmaf(at(j, 0), by, -less), fmaf(at(j, 1), by, -less));
        return y;
    }
};

/* The factors of a row of Q4_K or Q5_K in two chunks: dk, d times the chunk's scale (times 2^129 or
 * 2^130), and mk, dmin times its minimum. Lane q of the four that have a row makes number q of dk,
 * mk of the first chunk, dk, mk of the second: own and d are its factors. */
struct affine_factors {
    float by[2], less[2];
    __device__ __forceinline__ affine_factors(const diagonals &g, uint32_t own, uint32_t d)
    {
        const float mine = half_value(d) * ((float)own * g.times);
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
    __device__ __forceinline__ void as_bf16(const diagonals &g, uint4 &first, uint4 &second) const
    {
        const affine_factors f(g, own, d);
        first = four_bits(w[0]).weights(f.by[0], f.less[0]);
        second = four_bits(w[1]).weights(f.by[1], f.less[1]);
    }
};

/* Eight codes of five bits, as struct four_bits: in bits 19 to 23, code 2^-130. w: their word; h:
 * the byte of high bits, which the multiplication copies four times, 10 bits apart. */
struct five_bits {
    uint32_t even, odd; /* of even j; of odd j: in the high bits of bytes */
    __device__ __forceinline__ five_bits(uint32_t w, uint32_t h)
        : even(w & 0xf8f8f8f8), odd((h * 0x40100401 & 0xc0c0c0c0) | (w << 3 & 0x38383838))
    {
    }
    __device__ __forceinline__ float at(int j, int e) const
    {
        return __uint_as_float(__byte_perm(j % 2 ? odd : even, 0, 0x4044 | (2 * e + j / 2) << 8));
    }
    /* Weights of Q5_K and, with -m for `less`, of Q5_1. by: 2^130 dk. */
    __device__ __forceinline__ uint4 weights(float by, float less) const
    {
        uint4 y;
#pragma unroll
        for (int j = 0; j < 4; j++)
            (&y.x)[j] = bf16_pair(fmaf(at(j, 0), by, -less), fmaf(at(j, 1), by, -less));
        return y;
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
    __device__ __forceinline__ void as_bf16(const diagonals &g, uint4 &first, uint4 &second) const
    {
        const affine_factors f(g, own, d);
        first = five_bits(w[0], high[0]).weights(f.by[0], f.less[0]);
        second = five_bits(w[1], high[1]).weights(f.by[1], f.less[1]);
    }
};

/* Q5_1: the eight weights of a word. high: the chunk's bytes of high bits; dm: 2^17 d and m. */
__device__ __forceinline__ uint4 q5_1_weights(uint32_t w, uint32_t high, uint32_t dm)
{
    const five_bits code(w, __byte_perm(high, 0, 0x4440 | threadIdx.x % 4));
    return code.weights(half_value(dm & 0xffff) * 0x1p113f, -half_value(dm >> 16));
}

template <> struct packed_eight<DT_Q5_1> {
    uint32_t w[2];
    uint4 s; /* the high bits of both chunks, their d and m */
    __device__ __forceinline__ void fetch(uint32_t a, uint32_t b, uint32_t scales, uint32_t)
    {
        w[0] = shared4(a), w[1] = shared4(b), s = shared16(scales);
    }
    __device__ __forceinline__ void as_bf16(const diagonals &, uint4 &first, uint4 &second) const
    {
        first = q5_1_weights(w[0], s.x, s.z), second = q5_1_weights(w[1], s.y, s.w);
    }
};

/* Eight codes of six bits, as struct four_bits: in bits 18 to 23, code 2^-131. w: their word; h:
 * the high bits behind the words. */
struct six_bits {
    uint32_t even, odd; /* of even j; of odd j: in the high bits of bytes */
    __device__ __forceinline__ six_bits(uint32_t w, uint32_t h)
        : even(w & 0xfcfcfcfc), odd((h * 0x100001 & 0xf0f0f0f0) | (w << 2 & 0x0c0c0c0c))
    {
    }
    __device__ __forceinline__ float at(int j, int e) const
    {
        return __uint_as_float(__byte_perm(j % 2 ? odd : even, 0, 0x4044 | (2 * e + j / 2) << 8));
    }
    /* Weights of Q6_K; zeros have no sign. by: 2^131 dk. */
    __device__ __forceinline__ uint4 weights(float by) const
    {
        const float less = by * 0x1p-126f; /* 32 dk */
        uint4 y;
#pragma unroll
        for (int j = 0; j < 4; j++)
            (&y.x)[j] = bf16_pair(fmaf(at(j, 0), by, -less), fmaf(at(j, 1), by, -less));
        return y;
    }
};
/* 2^131 dk of a lane's eight weights. s: a chunk's scales: d times 2^19, and two bytes, of which a
 * number 2^112 times as large is made. */
__device__ __forceinline__ float six_factor(uint32_t s)
{
    const uint32_t byte = __byte_perm(s, 0x7f000000, threadIdx.x % 4 < 2 ? 0x7424 : 0x7434);
    return (__uint_as_float(byte) - 0x1.01p127f) * half_value(s & 0xffff);
}

template <> struct packed_eight<DT_Q6_K> {
    uint32_t w[2], high[2];
    uint2 d;
    __device__ __forceinline__ void fetch(uint32_t a, uint32_t b, uint32_t scales, uint32_t)
    {
        const int n = (int)threadIdx.x % 4 * 2;
        const uint32_t from = (uint32_t)(high_codes_of(n) - codes_of(DT_Q6_K, n));
        w[0] = shared4(a), w[1] = shared4(b), d = shared8(scales);
        high[0] = shared2(a + from), high[1] = shared2(b + from);
    }
    __device__ __forceinline__ void as_bf16(const diagonals &, uint4 &first, uint4 &second) const
    {
        first = six_bits(w[0], high[0]).weights(six_factor(d.x));
        second = six_bits(w[1], high[1]).weights(six_factor(d.y));
    }
};

/* IQ4_XS: the eight weights of a word. s: d times 2^21, and the scale plus 128, a byte. Bytes are
 * levels plus 128, four at a time from a table. */
__device__ __forceinline__ uint4 iq4_weights(uint32_t w, uint32_t s)
{
    const uint32_t table[4] = {0x3f2d1801, 0x766a5d4f, 0xa6998d81, 0xf1d9c5b5};
    const uint32_t low = w & 0x77777777, high = (w >> 1 & 0x44444444) | 0x32103210;
    /* the scale times 2^112, as in six_factor() */
    const uint32_t byte = __byte_perm(s, 0x7f000000, 0x7424);
    const float by = (__uint_as_float(byte) - 0x1.01p127f) * half_value(s & 0xffff),
                less = by * 0x1p-126f; /* 128 dk */
    uint4 y;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint32_t in = half ? low >> 16 : low;
        const uint32_t four = __byte_perm(__byte_perm(table[0], table[1], in),
                                          __byte_perm(table[2], table[3], in),
                                          half ? high >> 16 : high);
#pragma unroll
        for (int j = 0; j < 2; j++) {
            float two[2];
#pragma unroll
            for (int e = 0; e < 2; e++)
                two[e] = fmaf(__uint_as_float(__byte_perm(four, 0, 0x4044 | (2 * j + e) << 8)), by,
                              -less);
            (&y.x)[2 * half + j] = bf16_pair(two[0], two[1]);
        }
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
    __device__ __forceinline__ void as_bf16(const diagonals &, uint4 &first, uint4 &second) const
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
        for (int j = 0; j < 4; j++) {
            const uint32_t code = e2m1_pair(w, j);
            (&y.x)[j] = bf16_fma(code, high, bf16_times(code, low));
        }
        return y;
    }
};

template <> struct packed_eight<DT_E2M1> {
    uint32_t w[2], s[2];
    __device__ __forceinline__ void fetch(uint32_t a, uint32_t b, uint32_t scales, uint32_t)
    {
        w[0] = shared4(a), w[1] = shared4(b), s[0] = shared2(scales), s[1] = shared2(scales + 4);
    }
    __device__ __forceinline__ void as_bf16(const diagonals &, uint4 &first, uint4 &second) const
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

template <> struct packed_pair<DT_Q8_0> {
    uint4 w[2]; /* of a chunk */
    uint2 scales; /* of the first row in both chunks, of the second */
    __device__ __forceinline__ void fetch(uint32_t codes, uint32_t second, uint32_t scales_at,
                                          uint32_t, uint32_t)
    {
        const uint32_t at = codes + threadIdx.x % 4 * 16;
        w[0] = shared16(at), w[1] = shared16(at + second), scales = shared8(scales_at);
    }
    /* Levels of elements 2j + e of both rows. */
    __device__ __forceinline__ static uint32_t levels(const uint4 &v, int j, int e)
    {
        return packed_eight<DT_Q8_0>::level(e ? make_uint2(v.z, v.w) : make_uint2(v.x, v.y), j);
    }
    __device__ __forceinline__ void unpack(int u, uint4 &first, uint4 &second) const
    {
        const float by[2] = {half_value(u ? scales.x >> 16 : scales.x & 0xffff),
                             half_value(u ? scales.y >> 16 : scales.y & 0xffff)};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const uint32_t even = levels(w[u], j, 0), odd = levels(w[u], j, 1);
            (&first.x)[j] = bf16_pair(half_value(even & 0xffff) * by[0],
                                      half_value(odd & 0xffff) * by[0]);
            (&second.x)[j] = bf16_pair(half_value(even >> 16) * by[1],
                                       half_value(odd >> 16) * by[1]);
        }
    }
};

template <> struct packed_pair<DT_Q6_K> {
    uint4 w;
    uint32_t high[2][2]; /* of a chunk: of the first row, of the second */
    uint4 scales; /* of the first row in both chunks, of the second */
    __device__ __forceinline__ void fetch(uint32_t codes, uint32_t second, uint32_t scales_at,
                                          uint32_t, uint32_t)
    {
        const uint32_t q = threadIdx.x % 4;
        w = pair_words(codes, second), scales = shared16(scales_at);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const uint32_t more = codes + (uint32_t)high_codes_of((int)q * 2 + r);
            high[0][r] = shared2(more), high[1][r] = shared2(more + second);
        }
    }
    __device__ __forceinline__ void unpack(int u, uint4 &first, uint4 &second) const
    {
        first = six_bits(u ? w.z : w.x, high[u][0]).weights(six_factor(u ? scales.y : scales.x));
        second = six_bits(u ? w.w : w.y, high[u][1]).weights(six_factor(u ? scales.w : scales.z));
    }
};

/* Q4_K and Q5_K: weights of chunk u. code: struct four_bits or five_bits; scales: those of both
 * chunks; block: d and dmin. */
struct affine_pair {
    /* Byte i of a word as a number, times 2^120 or 1: FLOATS has it in bits 16 to 23, or 0 to 7. */
    template <uint32_t FLOATS>
    __device__ __forceinline__ static float small_value(uint32_t word, int i)
    {
        const bool large = FLOATS == 0x7f000000;
        return __uint_as_float(__byte_perm(word, FLOATS, large ? 0x7044 | i << 8 : 0x7440 | i)) -
               __uint_as_float(FLOATS);
    }
    template <class BITS>
    __device__ __forceinline__ static uint4 weights(const BITS &code, uint32_t scales,
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

template <> struct packed_pair<DT_Q5_1> {
    uint4 w, first_row, second_row; /* scales, as in packed_eight */
    __device__ __forceinline__ void fetch(uint32_t codes, uint32_t second, uint32_t scales_at,
                                          uint32_t, uint32_t)
    {
        w = pair_words(codes, second);
        first_row = shared16(scales_at), second_row = shared16(scales_at + 16);
    }
    __device__ __forceinline__ void unpack(int u, uint4 &first, uint4 &second) const
    {
        const uint4 &a = first_row, &b = second_row;
        first = q5_1_weights(u ? w.z : w.x, u ? a.y : a.x, u ? a.w : a.z);
        second = q5_1_weights(u ? w.w : w.y, u ? b.y : b.x, u ? b.w : b.z);
    }
};

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

/* E4M3: codes are loaded where they are unpacked, which leaves registers for more columns. */
template <> struct packed_pair<DT_E4M3> {
    uint32_t at, next; /* of the first chunk; bytes to the second */
    uint2 factors;     /* of the first row in both chunks, of the second */
    __device__ __forceinline__ void fetch(uint32_t codes, uint32_t second, uint32_t scales_at,
                                          uint32_t, uint32_t)
    {
        at = codes + threadIdx.x % 4 * 16, next = second, factors = shared8(scales_at);
    }
    __device__ __forceinline__ void unpack(int u, uint4 &first, uint4 &second) const
    {
        const uint4 w = shared16(at + (u ? next : 0)); /* of both rows */
        first = fp8_eight(make_uint2(w.x, w.y), both_halves(factors.x, u));
        second = fp8_eight(make_uint2(w.z, w.w), both_halves(factors.y, u));
    }
};

/* Weights of IQ4_XS if dk is zero; the first eight levels are negative. */
__device__ __forceinline__ uint4 iq4_zeros(uint32_t w, bool negative)
{
    uint4 y;
    w ^= negative ? 0 : 0x88888888;
#pragma unroll
    for (int j = 0; j < 4; j++)
        (&y.x)[j] = (w >> 8 * j & 8) << 12 | (w >> 8 * j & 0x80) << 24;
    return y;
}

/* Weights of Q5_0: (code - 16) d. */
__device__ __forceinline__ uint4 level_times(const five_bits &code, float d)
{
    uint4 y;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        float two[2];
#pragma unroll
        for (int e = 0; e < 2; e++)
            two[e] = fmaf(code.at(j, e), 0x1p127f, -2.f) * 8 * d;
        (&y.x)[j] = bf16_pair(two[0], two[1]);
    }
    return y;
}

/* Eight weights of a row of a panel in memory. q: which eight of the chunk at `at`; type: what the
 * panel is stored as. Zeros have the sign that packed_bf16() gives them, but those of Q5_0 only
 * with `centred` (see level_times()). */
__device__ __forceinline__ uint4 eight_at(const struct packed_place &at, int type,
                                          const uint8_t *panel, int row, int q, bool centred)
{
    const uint8_t *codes = panel + at.codes, *scales = panel + at.scales;
    const int r = row % 2, number = 2 * q + r;
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
        return five_bits(word, panel[at.high + q])
            .weights(half_value(block[0]) * ((float)scales[0] * 0x1p120f),
                     half_value(block[1]) * (float)scales[1]);
    }
    if (type == DT_Q5_1) {
        const five_bits code(word, panel[at.high + q]);
        const float d = half_value(s);
        return centred ? level_times(code, d * 0x1p-17f)
                       : code.weights(d * 0x1p113f,
                                      -half_value(*(const uint16_t *)(scales + 2)));
    }
    if (type == DT_IQ4_XS) {
        const float dk = half_value(s) * (float)((int)scales[2] - 128);
        return dk == 0 ? iq4_zeros(word, signbit(dk))
                       : iq4_weights(word, s | (uint32_t)scales[2] << 16);
    }
    if (type == DT_E2M1)
        return two_parts(*(const uint16_t *)(scales + q / 2 * 2)).weights(word);
    const bool six = type == DT_Q6_K;
    const six_bits code(word, six ? *(const uint16_t *)(codes + high_codes_of(number)) : 0);
    const float by = half_value(s) * (six ? 0x1p-15f * (float)((int)scales[2 + q / 2] - 128) : 1.f);
    uint4 y;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        float two[2]; /* levels; of Q6_K sixteenths of them */
#pragma unroll
        for (int e = 0; e < 2; e++)
            two[e] = six ? fmaf(code.at(j, e), 0x1p127f, -2.f)
                         : (float)((int)codes[codes_of(type, 2 * q + e) + 2 * j + r] - 128);
        (&y.x)[j] = bf16_pair(two[0] * by, two[1] * by);
    }
    return y;
}

#endif
