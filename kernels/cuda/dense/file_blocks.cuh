/* file_blocks.cuh - what the blocks of a file have (packed.h), for the layouts of packed matrices
 * (packed.cuh) and of experts (moe/expert_blocks.cuh).
 */
#pragma once

#include "kernels/cuda/dense/packed.cuh"

#ifdef __CUDACC__

/* The code of element i of chunk k of a block, as packed.cuh has it. */
__device__ __forceinline__ uint32_t code_of(int type, const uint8_t *b, int k, int i)
{
    if (type == DT_Q4_K)
        return b[16 + 32 * (k / 2) + i] >> k % 2 * 4 & 15u;
    if (type == DT_Q6_K) {
        const int half = k / 4, j = k % 4;
        return (b[64 * half + 32 * (j % 2) + i] >> j / 2 * 4 & 15u) |
               (b[128 + 32 * half + i] >> 2 * j & 3u) << 4;
    }
    const uint8_t *q = b + 2;
    return type == DT_Q4_0 ? (i < 16 ? q[i] & 15u : q[i - 16] >> 4u) : q[i] ^ 0x80u;
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
