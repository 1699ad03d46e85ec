/* terms.cuh - activations as 16-bit terms. The tensor cores take an activation as one 16-bit number
 * or as the sum of two, its terms: the first is the activation rounded, the second the rounded
 * rest. Here is the rule by which a term is split off; where terms are stored: row.cuh.
 */
#pragma once

#include "kernels/cuda/cuda.h"

#ifdef __CUDACC__

__device__ __forceinline__ uint16_t bits_of(bf16 x)
{
    return __bfloat16_as_ushort(x);
}
__device__ __forceinline__ uint16_t bits_of(__half x)
{
    return __half_as_ushort(x);
}
__device__ __forceinline__ float float_of(bf16 x)
{
    return __bfloat162float(x);
}
__device__ __forceinline__ float float_of(__half x)
{
    return __half2float(x);
}
template <class T> __device__ __forceinline__ T rounded_to(float y);
template <> __device__ __forceinline__ bf16 rounded_to<bf16>(float y)
{
    return __float2bfloat16_rn(y);
}
template <> __device__ __forceinline__ __half rounded_to<__half>(float y)
{
    return __float2half_rn(y);
}

/* What is left of y after a term of value t. Infinities and NaN have no second term. */
__device__ __forceinline__ float rest_after(float y, float t)
{
    return isfinite(t) ? y - t : 0.f;
}

/* Splits the next term (T: bf16 or __half) off y and returns it. */
template <class T> __device__ __forceinline__ uint16_t split_term(float &y)
{
    const T t = rounded_to<T>(y);
    y = rest_after(y, float_of(t));
    return bits_of(t);
}
/* Of two and of four floats; the first is in the low bits. */
template <class T> __device__ __forceinline__ uint32_t split_two(float &x, float &y)
{
    const uint16_t low = split_term<T>(x), high = split_term<T>(y);
    return low | (uint32_t)high << 16;
}
template <class T> __device__ __forceinline__ uint2 split_four(float4 &y)
{
    uint16_t h[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        h[i] = split_term<T>((&y.x)[i]);
    return make_uint2(h[0] | (uint32_t)h[1] << 16, h[2] | (uint32_t)h[3] << 16);
}

/* Two and four floats rounded to bf16: their only terms. */
__device__ __forceinline__ uint32_t bf16_two(float x, float y)
{
    const __nv_bfloat162 v = __floats2bfloat162_rn(x, y);
    return *(const uint32_t *)&v;
}
__device__ __forceinline__ uint2 bf16_four(float4 y)
{
    return make_uint2(bf16_two(y.x, y.y), bf16_two(y.z, y.w));
}
/* The two bf16 of a word, and four bf16, as floats. */
__device__ __forceinline__ float low_bf16(uint32_t v)
{
    return __uint_as_float(v << 16);
}
__device__ __forceinline__ float high_bf16(uint32_t v)
{
    return __uint_as_float(v & 0xffff0000u);
}
__device__ __forceinline__ float4 floats_of(uint2 v)
{
    return make_float4(low_bf16(v.x), high_bf16(v.x), low_bf16(v.y), high_bf16(v.y));
}

/* The power of two that brings the largest element of a row into [2^13, 2^14), so that f16 terms
 * have as many bits as they can; 1 if there is no such power. And its inverse. */
__device__ __forceinline__ float f16_scale_of(float largest)
{
    const bool scaled = largest > 0 && isfinite(largest);
    const int exponent = (int)(__float_as_uint(largest) >> 23);
    const int e = scaled ? max(min(14 + 126 - exponent, 120), -120) : 0;
    return __int_as_float((127 + e) << 23);
}
__device__ __forceinline__ float inverse_scale(float s)
{
    return __int_as_float((254 << 23) - __float_as_int(s));
}

#endif
