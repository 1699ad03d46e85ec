/* file_blocks.cuh - what the blocks of a file have (packed.h), for the layouts of packed matrices
 * (packed.cuh) and of experts (moe/expert_blocks.cuh).
 */
#pragma once

#include "kernels/cuda/dense/packed.cuh"

#ifdef __CUDACC__

/* Four bits of element i of 32, and its fifth bit. */
__device__ __forceinline__ uint32_t nibble_of(const uint8_t *q, int i)
{
    return i < 16 ? q[i] & 15u : q[i - 16] >> 4u;
}
__device__ __forceinline__ uint32_t fifth_of(const uint8_t *high, int i)
{
    return (high[i / 8] >> i % 8 & 1u) << 4;
}

/* The code of element i of chunk k of a block of a type, as the layouts have it. */
__device__ __forceinline__ uint32_t code_of(int type, const uint8_t *b, int k, int i)
{
    const int at = 32 * k + i, half = k / 4, j = k % 4;
    switch (type) {
    case DT_Q4_0:
    case DT_IQ4_NL: return nibble_of(b + 2, i);
    case DT_Q4_1: return nibble_of(b + 4, i);
    case DT_Q5_0: return nibble_of(b + 6, i) | fifth_of(b + 2, i);
    case DT_Q5_1: return nibble_of(b + 8, i) | fifth_of(b + 4, i);
    case DT_E2M1: return nibble_of(b + 6, i);
    case DT_MXFP4: return nibble_of(b + 1, i);
    case DT_IQ4_XS: return nibble_of(b + 8 + 16 * k, i);
    case DT_NVFP4: return b[4 + 8 * (at / 16) + i % 8] >> i % 16 / 8 * 4 & 15u;
    case DT_Q4_K: return b[16 + 32 * (k / 2) + i] >> k % 2 * 4 & 15u;
    case DT_Q5_K:
        return (b[48 + 32 * (k / 2) + i] >> k % 2 * 4 & 15u) | (b[16 + i] >> k & 1u) << 4;
    case DT_Q6_K:
        return (b[64 * half + 32 * (j % 2) + i] >> j / 2 * 4 & 15u) |
               (b[128 + 32 * half + i] >> 2 * j & 3u) << 4;
    case DT_Q2_K: return b[16 + 32 * half + i] >> 2 * j & 3u;
    case DT_Q3_K: /* a level of -4 to 3, plus 32 */
        return (b[32 + 32 * half + i] >> 2 * j & 3u) + (b[i] >> k & 1u ? 32 : 28);
    default: return b[2 + i] ^ 0x80u; /* Q8_0 */
    }
}

/* The f16 at b. */
__device__ __forceinline__ float half_at(const uint8_t *b)
{
    return half_value((uint32_t)(b[0] | b[1] << 8));
}
/* Q4_K and Q5_K: the scale and the minimum of chunk k, six bits each: see scale_min() of
 * packed.c. */
__device__ __forceinline__ void put_scale_min(const uint8_t *b, int k, uint8_t *to)
{
    const uint8_t *s = b + 4;
    to[0] = k < 4 ? s[k] & 63 : (s[k + 4] & 15) | s[k - 4] >> 6 << 4;
    to[1] = k < 4 ? s[k + 4] & 63 : s[k + 4] >> 4 | s[k] >> 6 << 4;
}
/* Q6_K: the scales of both halves of chunk k, plus 128. */
__device__ __forceinline__ void put_half_scales(const uint8_t *b, int k, uint8_t *to)
{
    to[0] = b[192 + 2 * k] ^ 0x80, to[1] = b[192 + 2 * k + 1] ^ 0x80;
}

/* The scale plus 128 of half a chunk of Q3_K, number h of a block. */
__device__ __forceinline__ uint8_t q3_k_scale(const uint8_t *b, int h)
{
    const uint8_t *s = b + 96;
    const int high = s[8 + h % 4] >> 2 * (h / 4) & 3;
    return (uint8_t)(((s[h % 8] >> 4 * (h / 8) & 15) | high << 4) + 96);
}
/* The same of chunk k of IQ4_XS. */
__device__ __forceinline__ uint8_t iq4_xs_scale(const uint8_t *b, int k)
{
    const int high = (b[2] | b[3] << 8) >> 2 * k & 3;
    return (uint8_t)(((b[4 + k / 2] >> 4 * (k % 2) & 15) | high << 4) + 96);
}

/* The factors of d, so that weights() has the bits of packed_bf16(): level times the first one,
 * p / 128 for an integer p < 256, has to round so that its product with the second one rounds to
 * level d. Powers of two and signs of levels change no digits. Tried for every f16: none of them
 * needs more than p = 225; 14 tries in the mean. */
struct two_factors {
    uint16_t second, first;
};
__device__ __forceinline__ bool are_factors(float d, float first, float second)
{
    bool are = true;
#pragma unroll
    for (int level = 1; level < 8; level += 2)
        are &= rounded_bf16(rounded_bf16((float)level * first) * second) ==
               rounded_bf16((float)level * d);
    return are;
}
__device__ __forceinline__ two_factors factors_of(float d)
{
    float first = 1, second = rounded_bf16(d); /* of zero, infinite and NaN */
    bool found = d == 0 || !isfinite(d);
    for (int p = 128; p < 256 && !found; p++)
        for (int more = -1; more < 2 && !found; more++) {
            first = (float)p / 128;
            second = __uint_as_float(__float_as_uint(rounded_bf16(d / first)) +
                                     (uint32_t)(more * 0x10000));
            found = are_factors(d, first, second);
        }
    two_factors f;
    f.second = __bfloat16_as_ushort(__float2bfloat16_rn(second * 128));
    f.first = __bfloat16_as_ushort(__float2bfloat16_rn(first * 0x1p122f));
    return f;
}

#endif
