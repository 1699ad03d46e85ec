/* route.cuh - how a block of the router holds a row, to normalise and pack it for the experts:
 * ROUTE_THREADS threads, PER elements each. Whoever packs a row adds its squares up in this order.
 */
#ifndef AERIE_CUDA_ROUTE_CUH
#define AERIE_CUDA_ROUTE_CUH

#include "kernels/cuda/moe/experts.cuh"

#ifdef __CUDACC__

enum {
    ROUTE_THREADS = 384, ROUTE_WARPS = ROUTE_THREADS / 32, /* as tile_route.cu's */
    ROUTE_PASS = PER * ROUTE_THREADS, /* elements of a row that are held at once */
};

/* One number, or 0 where there is none. In this form a load is a compare and an address with an
 * offset, and stays on its side of the wait. */
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
/* The same of a row: not what the first cache held before. */
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

/* A thread's elements of a pass: number j is element from + j * ROUTE_THREADS + thread, of n at p.
 */
template <class IN, class OUT>
__device__ __forceinline__ void fetch_part(const IN *p, int n, int from, OUT (&x)[PER])
{
    const int i = from + (int)threadIdx.x;
    p += i;
#pragma unroll
    for (int j = 0; j < PER; j++)
        x[j] = fetch(p + j * ROUTE_THREADS, i + j * ROUTE_THREADS < n);
}

/* The threads that hold a row meet; there may be others behind them in the block. */
__device__ __forceinline__ void route_meet()
{
    asm volatile("bar.sync 3, %0;" ::"n"((int)ROUTE_THREADS) : "memory");
}

/* block_reduce() with one meeting; room: ROUTE_WARPS floats that are not in use any more. */
__device__ __forceinline__ float block_sum(float v, float *room)
{
    const int lane = (int)threadIdx.x % 32;
    v = warp_sum(v);
    if (lane == 0)
        room[threadIdx.x / 32] = v;
    route_meet();
    return warp_sum(lane < ROUTE_WARPS ? room[lane] : 0.f);
}
/* The same for the largest of numbers that are not negative. */
__device__ __forceinline__ float block_top(float v, float *room)
{
    const int lane = (int)threadIdx.x % 32;
    const unsigned top = __reduce_max_sync(~0u, __float_as_uint(v));
    if (lane == 0)
        room[threadIdx.x / 32] = __uint_as_float(top);
    route_meet();
    return __uint_as_float(
        __reduce_max_sync(~0u, lane < ROUTE_WARPS ? __float_as_uint(room[lane]) : 0u));
}

/* The power of two that brings the largest element of a row into [2^13, 2^14), and 1 / it. */
__device__ __forceinline__ float unit_of(float top)
{
    const bool some = top > 0 && isfinite(top);
    const int e = some ? max(min(14 + 126 - (int)(__float_as_uint(top) >> 23), 120), -120) : 0;
    return __int_as_float((127 + e) << 23);
}
__device__ __forceinline__ float inverse_of_unit(float s)
{
    return __int_as_float((254 << 23) - __float_as_int(s));
}

#endif
#endif
