/* reduce.cuh - reductions and scans over the lanes of a warp and the warps of a block.
 *
 * Sums of floats depend on their order, and a row must have the same bits in every kernel, so each
 * order that occurs is defined here once:
 *
 *  - tree: warp_sum(), the halves of a warp first; of a block block_sum(), the same tree over the
 *    warps' sums.
 *  - serial: serial_sum(), the tree within each warp, then the warps' sums one after another. Rows
 *    of activations are summed so (row.cuh).
 *  - neighbours: neighbour_sum(), adjacent elements first, then adjacent pairs, and so on up to the
 *    block. Heads are summed so, because any holder of a power of two of a head's elements can add
 *    them on its own (dense/heads.cuh).
 */
#pragma once

#include "kernels/cuda/base/barrier.cuh"

#ifdef __CUDACC__

/* ---- warps ----------------------------------------------------------------------------------- */

__device__ __forceinline__ float warp_sum(float v)
{
    for (int i = 16; i; i /= 2)
        v += __shfl_xor_sync(~0u, v, i);
    return v;
}
__device__ __forceinline__ float warp_max(float v)
{
    for (int i = 16; i; i /= 2)
        v = fmaxf(v, __shfl_xor_sync(~0u, v, i));
    return v;
}
/* The maximum of floats that are not negative. */
__device__ __forceinline__ float warp_max_positive(float v)
{
    return __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(v)));
}

/* One level of the tree of warp_sum() for several sums at once (a reduce-scatter): a lane keeps N
 * of its 2 N numbers and adds those of the lane D away. One call a level, so that all indices are
 * constants: in a loop the compiler selected registers at run time. */
template <int D, int N, int MOST>
__device__ __forceinline__ void reduce_scatter_lanes(float (&v)[MOST])
{
    const bool upper = threadIdx.x & D;
#pragma unroll
    for (int i = 0; i < N; i++) {
        const float mine = upper ? v[i + N] : v[i], other = upper ? v[i] : v[i + N];
        v[i] = mine + __shfl_xor_sync(~0u, other, D);
    }
}

/* Inclusive scan over the lanes of a warp. */
template <class T> __device__ __forceinline__ T inclusive_scan(T v)
{
    for (int i = 1; i < 32; i *= 2) {
        T left = __shfl_up_sync(~0u, v, i);
        v += (int)threadIdx.x % 32 >= i ? left : 0;
    }
    return v;
}

/* ---- blocks ---------------------------------------------------------------------------------- */

/* Stores a value of each warp, its first lane's, where all warps can read it. barrier(): of the
 * threads that share the values. */
template <class T, class Barrier>
__device__ __forceinline__ void share_by_warp(T v, T *scratch, const Barrier &barrier)
{
    if (threadIdx.x % 32 == 0)
        scratch[threadIdx.x / 32] = v;
    barrier();
}

/* The sum over WARPS warps for each of their threads, in serial order. scratch: WARPS floats of
 * shared memory that no thread still reads (also below). */
template <int WARPS, class Barrier>
__device__ __forceinline__ float serial_sum(float v, float *scratch, const Barrier &barrier)
{
    share_by_warp(warp_sum(v), scratch, barrier);
    float sum = scratch[0];
#pragma unroll
    for (int i = 1; i < WARPS; i++)
        sum += scratch[i];
    return sum;
}

/* The same with neighbours first; WARPS is a power of two. */
template <int WARPS, class Barrier>
__device__ __forceinline__ float neighbour_sum(float v, float *scratch, const Barrier &barrier)
{
#pragma unroll
    for (int d = 1; d < 32; d *= 2)
        v += __shfl_xor_sync(~0u, v, d);
    share_by_warp(v, scratch, barrier);
    float part[WARPS];
#pragma unroll
    for (int i = 0; i < WARPS; i++)
        part[i] = scratch[i];
#pragma unroll
    for (int d = 1; d < WARPS; d *= 2)
#pragma unroll
        for (int i = 0; i < WARPS; i += 2 * d)
            part[i] += part[i + d];
    return part[0];
}

/* The sum as a tree; every warp adds the warps' sums for itself. */
template <int WARPS, class Barrier>
__device__ __forceinline__ float block_sum(float v, float *scratch, const Barrier &barrier)
{
    share_by_warp(warp_sum(v), scratch, barrier);
    const int lane = (int)threadIdx.x % 32;
    return warp_sum(lane < WARPS ? scratch[lane] : 0.f);
}
/* The maximum of floats that are not negative. */
template <int WARPS, class Barrier>
__device__ __forceinline__ float block_max_positive(float v, float *scratch, const Barrier &barrier)
{
    share_by_warp(warp_max_positive(v), scratch, barrier);
    const int lane = (int)threadIdx.x % 32;
    return warp_max_positive(lane < WARPS ? scratch[lane] : 0.f);
}

/* The sum (as a tree) or maximum over a block of 32 * n threads, n <= 32. scratch: 33 floats of
 * shared memory, which may still be read. */
template <bool MAX> __device__ __forceinline__ float block_reduce(float v, float *scratch)
{
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, n = (int)blockDim.x / 32;
    v = MAX ? warp_max(v) : warp_sum(v);
    __syncthreads();
    share_by_warp(v, scratch, [] { __syncthreads(); });
    if (warp == 0) {
        v = lane < n ? scratch[lane] : MAX ? -INFINITY : 0.f;
        v = MAX ? warp_max(v) : warp_sum(v);
        if (lane == 0)
            scratch[32] = v;
    }
    __syncthreads();
    return scratch[32];
}

#endif
