/* expert_blocks.cuh - experts that stay packed on the device (packed.h), and the bf16 weights that
 * kernels make of them in registers.
 *
 * Sixteen outputs of an expert are a tile, whose chunks of 32 of k are stored in the order of a
 * panel's (chunk_place()). A chunk has the codes and scales of the outputs 0 to 7, then those of
 * the outputs 8 to 15:
 *
 *     (experts, tiles, places, 2, eight_bytes())
 *
 * so that the lanes (g, q) of a warp find their elements 8q .. 8q + 7 of eight outputs in
 * successive bytes. Nine types are stored as themselves, others as one of these that has the same
 * values (experts_as() of route.c). What eight outputs have of a chunk, each for a lane or output:
 *
 *     E4M3, Q8_0  8 bytes of codes (E4M3: words of fp8.cuh; Q8_0: codes plus 128, in their order);
 *                 the scale, a bf16 or an f16
 *     Q4_0        a word of codes; the scale's two factors, the second one in the low half
 *                 (packed.cuh)
 *     Q4_K        a word of codes; d and dmin, two f16; the scale and the minimum, two bytes
 *     Q2_K        the same, but the two bytes have the scale, low, and the minimum of half a chunk
 *     Q5_K        as Q4_K, and behind the words a byte with the codes' fifth bits
 *     E2M1        a word of codes as MXFP4 has them (packed_word()); the factor, a float32; the
 *                 scales of both halves of the chunk, two bytes
 *     IQ4_XS      a word of codes in their order; d, an f16, and the scale plus 128, a byte; a zero
 *     Q6_K        a word of codes; two bytes with their fifth and sixth bits; d, an f16, and the
 *                 scales of both halves of the chunk plus 128, two bytes
 *
 * Other words of codes have the low four bits of element 2j + e from bit 16e + 4j on; where its
 * higher bits are in the byte or bytes behind the words, high_bit_of() says.
 */
#pragma once

#include "kernels/cuda/dense/fp8.cuh"
#include "kernels/cuda/dense/packed.cuh"

/* Whether codes have eight bits, and an output's chunk a scale of two bytes. */
static constexpr inline __host__ __device__ bool has_byte_codes(int form)
{
    return form == DT_E4M3 || form == DT_Q8_0;
}
/* Bytes of what eight outputs have of a chunk; `form`: experts_as(). Where their scales begin, and
 * behind them the two bytes of forms with has_own_scales(). */
static constexpr inline __host__ __device__ int eight_bytes(int form)
{
    return form == DT_Q4_0 || form == DT_IQ4_XS                    ? 160
           : form == DT_Q4_K || form == DT_Q2_K || form == DT_E2M1 ? 176
           : form == DT_Q5_K                                       ? 208
           : form == DT_Q6_K                                       ? 224
                                                                   : 272;
}
static constexpr inline __host__ __device__ int scales_at(int form)
{
    return has_byte_codes(form) ? 256 : form == DT_Q6_K ? 192 : form == DT_Q5_K ? 160 : 128;
}
enum { HIGH_AT = 128, OWN_SCALES = 32 };
static constexpr inline __host__ __device__ int chunk_bytes(int form)
{
    return 2 * eight_bytes(form);
}
/* Whether an output's chunk has two bytes of its own behind a word of scales. */
static constexpr inline __host__ __device__ bool has_own_scales(int form)
{
    return form == DT_Q4_K || form == DT_Q2_K || form == DT_Q5_K || form == DT_E2M1;
}
/* The bit of an element's lowest high bit: of Q5_K in the lane's byte, of Q6_K in byte e. */
static inline __host__ __device__ int high_bit_of(int form, int j, int e)
{
    return form == DT_Q5_K ? j / 2 + j % 2 * 4 + 2 * e : j / 2 * 2 + j % 2 * 4;
}

/* Device bytes of such a tensor (cuda_packed_experts()). */
static inline size_t packed_experts_size(const struct tensor *t)
{
    return (size_t)(t->dim[0] * t->dim[1] / TILE_OUTS * (t->dim[2] / K_CHUNK)) *
           (size_t)chunk_bytes(experts_as(t->type));
}
/* Stores n tiles in that layout (repack.cu). blocks: their outputs, of k elements each, as the file
 * has them. */
void cuda_repack_experts(struct kdev *d, int type, const void *blocks, int k, int n, void *dst);

#ifdef __CUDACC__

/* ---- codes of E2M1 in memory ----------------------------------------------------------------- */

/* Converts eight 4-bit weights, the first in the lowest bits, to a word in the device layout. */
__device__ __forceinline__ uint32_t packed_word(uint32_t in)
{
    const int of_byte[4] = {2, 0, 3, 1}; /* which of the eight weights is the byte's first */
    uint32_t w = 0;
    for (int b = 0; b < 4; b++) {
        uint32_t code = in >> (4 * of_byte[b]) & 15;
        w |= (code >> 3) << (8 * b + 7) | (code & 7) << (8 * b + 1);
    }
    for (int b = 0; b < 4; b++) { /* upwards, because the bits that w << 7 brings come from the
                                     byte below */
        uint32_t code = in >> (4 * of_byte[b] + 16) & 15, brought = (w << 7) >> (8 * b + 1) & 7;
        w |= ((code & 7) ^ brought) << (8 * b + 4);
        w |= ((code >> 3) ^ (b < 3 ? w >> (8 * b + 10) & 1 : 0)) << (8 * b);
    }
    return w;
}

/* ---- eight weights from codes of a byte ------------------------------------------------------ */

/* The bits of packed_bf16(), but for the sign of zeros, here as everywhere below.
 *
 * E4M3: first the codes' own values; the scale may be too large to be multiplied by 2^120. Four
 * significant bits times eight are exact before the rounding to bf16, so one multiplication of bf16
 * numbers is the law of packed weights. */
__device__ __forceinline__ uint4 e4m3_eight(uint2 v, uint32_t scale)
{
    const uint4 codes = fp8_eight(v, fp8_factor(0));
    const uint32_t both = __byte_perm(scale, 0, 0x1010);
    return make_uint4(fp8_pair(codes.x, both), fp8_pair(codes.y, both), fp8_pair(codes.z, both),
                      fp8_pair(codes.w, both));
}
/* Q8_0: a byte as the second one of a float32 from 2^15 on is 32768 + byte; less 32896 (nine
 * significant bits) it is the code, all times the scale in one exact fma. */
__device__ __forceinline__ uint4 q8_0_eight(uint2 v, uint32_t scale)
{
    const float by = half_value(scale), less = -32896.f * by;
    uint4 y;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        float two[2];
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int at = j % 2 * 2 + e;
            const uint32_t bits = __byte_perm(j < 2 ? v.x : v.y, 0x47000000, 0x7604 | at << 4);
            two[e] = fmaf(__uint_as_float(bits), by, less);
        }
        (&y.x)[j] = bf16_pair(two[0], two[1]);
    }
    return y;
}

/* ---- eight weights from codes of four, five and six bits ------------------------------------- */

/* Q4_0: one chunk's factors, the second one in the low half. */
__device__ __forceinline__ uint4 q4_0_eight(uint32_t w, uint32_t factors)
{
    const four_factors f(both_halves(factors, 0), both_halves(factors, 1));
    return f.weights(w, [](uint32_t x) { return x; });
}
/* A weight is code by - less. A code in bits 0 to 5 of an f16 is code 2^-24, a subnormal; in bits 4
 * to 9, code 2^-20. by_24: `by` times 2^24. high: what a lane has of higher bits. */
template <int FORM>
__device__ __forceinline__ uint4 affine_eight(uint32_t w, uint32_t high, float by_24, float less)
{
    const float by_20 = by_24 * 0.0625f;
    /* Q5_K: bits 0, 4, 1 and 5 to the low half, 2, 6, 3 and 7 to the high half */
    const uint32_t spread = FORM == DT_Q5_K   ? high * 0x4001u
                            : FORM == DT_Q6_K ? __byte_perm(high, 0, 0x4140)
                                              : 0;
    uint4 y;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        uint32_t two = (j < 2 ? w : w >> 8) & (j % 2 ? 0x00f000f0 : 0x000f000f);
        if (FORM == DT_Q5_K)
            two |= spread << (j < 2 ? 4 : 3) & (j % 2 ? 0x01000100 : 0x00100010);
        if (FORM == DT_Q6_K)
            two |= spread << (j < 2 ? 4 : 2) & (j % 2 ? 0x03000300 : 0x00300030);
        const float2 codes = __half22float2(*(const __half2 *)&two);
        const float by = j % 2 ? by_20 : by_24;
        (&y.x)[j] = bf16_pair(fmaf(codes.x, by, -less), fmaf(codes.y, by, -less));
    }
    return y;
}
/* Byte i of a word, times 2^24 if UP: the lowest bits of 2^23 + byte, or of 2^47 + 2^24 byte. */
template <bool UP> __device__ __forceinline__ float byte_value(uint32_t word, int i)
{
    const uint32_t most = UP ? 0x57000000 : 0x4b000000;
    return __uint_as_float(__byte_perm(word, most, 0x7550 | i)) - __uint_as_float(most);
}
/* d: both f16; own: a scale and a minimum, two bytes. */
template <int FORM>
__device__ __forceinline__ uint4 with_minimum(uint32_t w, uint32_t high, uint32_t d, uint32_t own)
{
    return affine_eight<FORM>(w, high, half_value(d & 0xffff) * byte_value<true>(own, 0),
                              half_value(d >> 16) * byte_value<false>(own, 1));
}
/* Q2_K: the scale is in the low four bits of a byte for half a chunk, its minimum in the others. */
__device__ __forceinline__ uint4 q2_k_eight(uint32_t w, uint32_t d, uint32_t own)
{
    const uint32_t mine = threadIdx.x % 4 < 2 ? own : own >> 8;
    return with_minimum<DT_Q2_K>(w, 0, d, (mine & 15) | (mine << 4 & 0xf00));
}
/* Q6_K: (code - 32) dk, dk being d times the scale of half a chunk; all exact. */
__device__ __forceinline__ uint4 q6_k_eight(uint32_t w, uint32_t high, uint32_t scales)
{
    const float d = half_value(scales & 0xffff);
    const uint32_t bits = __byte_perm(scales, 0x47000000, threadIdx.x % 4 < 2 ? 0x7624 : 0x7634);
    const float dk = fmaf(__uint_as_float(bits), d, -32896.f * d);
    return affine_eight<DT_Q6_K>(w, high, dk * 0x1p24f, dk * 32.f);
}
/* IQ4_XS: a level of packed_iq4, four at a time by bytes of a table, times d and the scale. The
 * product is rounded once, so the level must be a number of its own. */
__device__ __forceinline__ uint4 iq4_xs_eight(uint32_t w, uint32_t scales)
{
    /* the levels plus 128 */
    const uint32_t table[4] = {0x3f2d1801, 0x766a5d4f, 0xa6998d81, 0xf1d9c5b5};
    const float d = half_value(scales & 0xffff);
    const uint32_t scale = __byte_perm(scales, 0x47000000, 0x7624);
    const float dk = fmaf(__uint_as_float(scale), d, -32896.f * d);
    uint4 y;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint32_t codes = half ? w >> 16 : w, in = codes & 0x7777;
        const uint32_t four = __byte_perm(__byte_perm(table[0], table[1], in),
                                          __byte_perm(table[2], table[3], in),
                                          0x3210 | (codes >> 1 & 0x4444));
#pragma unroll
        for (int j = 0; j < 2; j++) {
            float two[2];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const uint32_t bits = __byte_perm(four, 0x47000000, 0x7604 | (2 * j + e) << 4);
                two[e] = (__uint_as_float(bits) - 32896.f) * dk;
            }
            (&y.x)[2 * half + j] = bf16_pair(two[0], two[1]);
        }
    }
    return y;
}

/* ---- eight weights from codes of E2M1 -------------------------------------------------------- */

/* (a ^ b) & mask in one instruction; the compiler would emit two. */
template <uint32_t MASK> __device__ __forceinline__ uint32_t xor_and(uint32_t a, uint32_t b)
{
    uint32_t y;
    asm("lop3.b32 %0, %1, %2, %3, 0x28;" : "=r"(y) : "r"(a), "r"(b), "n"(MASK));
    return y;
}

/* Four pairs of f16 from eight MXFP4 weights, times 2^-14. The layout of w: mem.cu. */
__device__ __forceinline__ void e2m1_pairs(uint32_t w, uint32_t (&h)[4])
{
    uint32_t second = xor_and<0x8E8E8E8Eu>(w >> 3, w << 7);
    h[0] = w & 0x8E008E00u;
    h[1] = w << 8 & 0x8E008E00u;
    h[2] = second & 0xFF00FF00u;
    h[3] = __byte_perm(second, 0, 0x2404);
}

/* Code times scale is exact in f16, with six significant bits; times 2^-7 it is a multiple of 2^-17
 * below 32. That times the factor is rounded twice, as the law has it. scales: those of both halves
 * of a chunk. */
__device__ __forceinline__ uint4 e2m1_eight(uint32_t w, uint32_t factor, uint32_t scales)
{
    uint32_t h[4];
    uint4 y;
    e2m1_pairs(w, h); /* times 2^-14 */
    /* a code of E4M3 as the bits of an f16: 2^-8 of its value, subnormal ones included; to 2^7 */
    const uint32_t code = __byte_perm(scales, 0, threadIdx.x % 4 < 2 ? 0x4040 : 0x4141);
    const uint32_t bits = (code << 8 & 0x80008000) | (code << 7 & 0x3f803f80);
    const __half2 scale = __hmul2_rn(*(const __half2 *)&bits, __half2half2(__float2half_rn(32768)));
    const float by = __uint_as_float(factor) * 0x1p7f;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const float2 inner = __half22float2(__hmul2_rn(*(const __half2 *)&h[j], scale));
        (&y.x)[j] = bf16_pair(inner.x * by, inner.y * by);
    }
    return y;
}

/* ---- a lane's codes and scales --------------------------------------------------------------- */

/* Loads from shared memory, and from memory that no kernel writes. */
__device__ __forceinline__ uint32_t load1(uint32_t at) { return shared1(at); }
__device__ __forceinline__ uint32_t load2(uint32_t at) { return shared2(at); }
__device__ __forceinline__ uint32_t load4(uint32_t at) { return shared4(at); }
__device__ __forceinline__ uint2 load8(uint32_t at) { return shared8(at); }
__device__ __forceinline__ uint32_t load1(const uint8_t *at) { return __ldg(at); }
__device__ __forceinline__ uint32_t load2(const uint8_t *at) { return __ldg((const uint16_t *)at); }
__device__ __forceinline__ uint32_t load4(const uint8_t *at) { return __ldg((const uint32_t *)at); }
__device__ __forceinline__ uint2 load8(const uint8_t *at) { return __ldg((const uint2 *)at); }

/* What a lane has of a chunk of eight outputs: elements 8q to 8q + 7 of output g. */
struct coded_eight {
    uint2 code; /* codes of four bits: x; y: higher bits */
    uint32_t scale, own;
    /* at: where the eight outputs begin. */
    template <int FORM, class PLACE> __device__ __forceinline__ void fetch(PLACE at)
    {
        constexpr bool BYTES = has_byte_codes(FORM);
        const unsigned lane = threadIdx.x % 32, g = lane / 4;
        if constexpr (BYTES)
            code = load8(at + lane * 8);
        else
            code.x = load4(at + lane * 4);
        if constexpr (FORM == DT_Q5_K)
            code.y = load1(at + (unsigned)HIGH_AT + lane);
        if constexpr (FORM == DT_Q6_K)
            code.y = load2(at + (unsigned)HIGH_AT + lane * 2);
        const PLACE scales = at + (unsigned)scales_at(FORM);
        scale = BYTES ? load2(scales + g * 2) : load4(scales + g * 4);
        if constexpr (has_own_scales(FORM))
            own = load2(scales + (unsigned)OWN_SCALES + g * 2);
    }
    template <int FORM> __device__ __forceinline__ uint4 as_bf16() const
    {
        if constexpr (FORM == DT_E4M3)
            return e4m3_eight(code, scale);
        else if constexpr (FORM == DT_Q8_0)
            return q8_0_eight(code, scale);
        else if constexpr (FORM == DT_Q4_0)
            return q4_0_eight(code.x, scale);
        else if constexpr (FORM == DT_Q2_K)
            return q2_k_eight(code.x, scale, own);
        else if constexpr (FORM == DT_IQ4_XS)
            return iq4_xs_eight(code.x, scale);
        else if constexpr (FORM == DT_E2M1)
            return e2m1_eight(code.x, scale, own);
        else if constexpr (FORM == DT_Q6_K)
            return q6_k_eight(code.x, code.y, scale);
        else
            return with_minimum<FORM>(code.x, code.y, scale, own);
    }
};

/* Calls f with the form of experts as its template argument. */
template <class F> __device__ __forceinline__ void with_form(int form, F &&f)
{
    switch (form) { /* moe.cu checks that there is no other form */
#define CALL(type) return f.template operator()<(int)type>();
#define FORM(type) case type: CALL(type)
#define LAST(type) default: CALL(type)
        EXPERT_FORMS(FORM, LAST)
#undef LAST
#undef FORM
#undef CALL
    }
}

#endif
