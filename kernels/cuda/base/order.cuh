/* order.cuh - floats as unsigned integers in the same order, so that integer maxima, counts and
 * sorts work on them.
 */
#pragma once

#include "kernels/cuda/cuda.h"

#ifdef __CUDACC__

/* -0 and 0 are equal. The value 0 stands for no number: rank_of() maps NaN to it, and other floats
 * never give it. */
__device__ __forceinline__ uint32_t ordered_bits(float x)
{
    uint32_t u = __float_as_uint(x + 0.f);
    return u ^ ((uint32_t)((int32_t)u >> 31) | 0x80000000u);
}
__device__ __forceinline__ uint32_t rank_of(float x)
{
    const uint32_t u = ordered_bits(x); /* first, so that the compiler selects without a branch */
    return x != x ? 0 : u;
}

/* The float of ordered bits. */
__device__ __forceinline__ float value_of(uint32_t rank)
{
    return __uint_as_float(rank & 0x80000000u ? rank & 0x7fffffffu : ~rank);
}

#endif
