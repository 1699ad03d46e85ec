/* route.cuh - how a block of the router holds a row in order to normalise and pack it for the
 * experts: ROUTE_THREADS threads, PER elements each. Every kernel that packs a row sums its squares
 * in this order.
 */
#ifndef AERIE_CUDA_ROUTE_CUH
#define AERIE_CUDA_ROUTE_CUH

#include "kernels/cuda/moe/experts.cuh"

#ifdef __CUDACC__

enum {
    ROUTE_THREADS = 384, ROUTE_WARPS = ROUTE_THREADS / 32, /* the same in tile_route.cu */
    ROUTE_PASS = PER * ROUTE_THREADS, /* elements of a row held at once */
};

/* A predicated volatile load of one number; 0 if `there` is false. In this form the load is a
 * compare and an address with an offset, and the compiler does not move it across the wait. */
__device__ __forceinline__ uint32_t fetch(const uint16_t *p, bool there)
{
    uint32_t v;
    asm volatile("{\n.reg .pred p;\nsetp.ne.s32 p, %2, 0;\nmov.u32 %0, 0;\n"
                 "@p ld.global.nc.u16 %0, [%1];\n}"
                 : "=r"(v)
                 : "l"(p), "r"((int)there)
                 : "memory");
    return v;
}
__device__ __forceinline__ uint32_t fetch(const uint32_t *p, bool there)
{
    uint32_t v;
    asm volatile("{\n.reg .pred p;\nsetp.ne.s32 p, %2, 0;\nmov.u32 %0, 0;\n"
                 "@p ld.global.nc.u32 %0, [%1];\n}"
                 : "=r"(v)
                 : "l"(p), "r"((int)there)
                 : "memory");
    return v;
}
/* The same for an element of a row, which another kernel may have written: not through L1. */
__device__ __forceinline__ float fetch(const float *p, bool there)
{
    float v;
    asm volatile("{\n.reg .pred p;\nsetp.ne.s32 p, %2, 0;\nmov.f32 %0, 0f00000000;\n"
                 "@p ld.global.cg.f32 %0, [%1];\n}"
                 : "=f"(v)
                 : "l"(p), "r"((int)there)
                 : "memory");
    return v;
}

/* A thread's elements of a pass: x[j] is element from + j * ROUTE_THREADS + thread of the n at
 * p. */
template <class IN, class OUT>
__device__ __forceinline__ void fetch_part(const IN *p, int n, int from, OUT (&x)[PER])
{
    const int i = from + (int)threadIdx.x;
    p += i;
#pragma unroll
    for (int j = 0; j < PER; j++)
        x[j] = fetch(p + j * ROUTE_THREADS, i + j * ROUTE_THREADS < n);
}

/* Barrier of the threads that hold a row; the block may have further threads. */
__device__ __forceinline__ void route_sync()
{
    asm volatile("bar.sync 3, %0;" ::"n"((int)ROUTE_THREADS) : "memory");
}

/* block_reduce() with a single barrier. scratch: ROUTE_WARPS floats that no thread still reads. */
__device__ __forceinline__ float block_sum(float v, float *scratch)
{
    const int lane = (int)threadIdx.x % 32;
    v = warp_sum(v);
    if (lane == 0)
        scratch[threadIdx.x / 32] = v;
    route_sync();
    return warp_sum(lane < ROUTE_WARPS ? scratch[lane] : 0.f);
}
/* The same for the maximum of non-negative numbers. */
__device__ __forceinline__ float block_max(float v, float *scratch)
{
    const int lane = (int)threadIdx.x % 32;
    const unsigned top = __reduce_max_sync(~0u, __float_as_uint(v));
    if (lane == 0)
        scratch[threadIdx.x / 32] = __uint_as_float(top);
    route_sync();
    return __uint_as_float(
        __reduce_max_sync(~0u, lane < ROUTE_WARPS ? __float_as_uint(scratch[lane]) : 0u));
}

/* The power of two that brings the largest element of a row into [2^13, 2^14), and its inverse. */
__device__ __forceinline__ float f16_scale_of(float top)
{
    const bool scaled = top > 0 && isfinite(top);
    const int e = scaled ? max(min(14 + 126 - (int)(__float_as_uint(top) >> 23), 120), -120) : 0;
    return __int_as_float((127 + e) << 23);
}
__device__ __forceinline__ float inverse_scale(float s)
{
    return __int_as_float((254 << 23) - __float_as_int(s));
}

#endif
#endif
