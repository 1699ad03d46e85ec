/* barrier.cuh - how threads wait for each other: named barriers of a block, mbarriers in shared
 * memory, and counters, grid barriers and flags in global memory between blocks.
 *
 * Blocks may wait for each other only if all of them are resident at once; such a kernel is
 * launched with cuda_launch_resident().
 *
 * A build with STRESS=1 delays warps at random wherever they wait or announce something, and all
 * lanes arrive where otherwise one lane does for its warp: racecheck of compute-sanitizer does not
 * see that __syncwarp() and the arrival of one lane order the accesses of the others.
 */
#pragma once

#include "kernels/cuda/cuda.h"

#ifdef __CUDACC__

/* The 32-bit address of a pointer to shared memory. */
__device__ __forceinline__ uint32_t shared_at(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* ---- stress ---------------------------------------------------------------------------------- */

#ifdef STRESS
enum { LANES_THAT_ARRIVE = 32 };
/* One call in eight sleeps up to two microseconds; the lanes of a warp together. */
__device__ __forceinline__ void stress_delay()
{
    uint32_t t;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(t));
    t = (t ^ blockIdx.x * 0x9e3779b9u ^ threadIdx.x / 32 * 0x85ebca6bu) * 0x7feb352du;
    t ^= t >> 15;
    if (t % 8 == 0)
        __nanosleep(t >> 8 & 2047);
}
#else
enum { LANES_THAT_ARRIVE = 1 };
__device__ __forceinline__ void stress_delay() {}
#endif

/* ---- named barriers -------------------------------------------------------------------------- */

/* Barrier number ID of some warps of a block, THREADS threads in all. Numbers are 1 to 15 (0 is
 * __syncthreads()); each kernel assigns them. */
template <int ID, int THREADS> __device__ __forceinline__ void named_barrier()
{
    stress_delay();
    asm volatile("bar.sync %0, %1;" ::"n"(ID), "n"(THREADS) : "memory");
}
/* The same with a number, or with a number of threads, that is known only at run time. */
template <int THREADS> __device__ __forceinline__ void named_barrier_at(int id)
{
    stress_delay();
    asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(THREADS) : "memory");
}
template <int ID> __device__ __forceinline__ void named_barrier_of(int threads)
{
    stress_delay();
    asm volatile("bar.sync %0, %1;" ::"n"(ID), "r"(threads) : "memory");
}
/* Arrives at the barrier without waiting. */
template <int ID, int THREADS> __device__ __forceinline__ void named_barrier_arrive()
{
    stress_delay();
    asm volatile("bar.arrive %0, %1;" ::"n"(ID), "n"(THREADS) : "memory");
}

/* ---- mbarriers ------------------------------------------------------------------------------- */

/* An mbarrier by its address in shared memory. */
struct mbarrier {
    uint32_t at;
    __device__ __forceinline__ mbarrier(uint32_t address) : at(address) {}
    __device__ __forceinline__ mbarrier(const uint64_t *p) : at(shared_at(p)) {}
};

__device__ __forceinline__ void mbarrier_init(mbarrier b, int arrivals)
{
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(b.at), "r"(arrivals) : "memory");
}
/* Makes initialised mbarriers visible to the copy engine; a barrier of the block's threads
 * follows. */
__device__ __forceinline__ void mbarrier_init_fence()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
__device__ __forceinline__ void mbarrier_arrive(mbarrier b)
{
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(b.at)
                 : "memory");
}
/* The arrivals that mbarrier_init() must expect for n warps that call mbarrier_arrive_warp(). */
__device__ __forceinline__ constexpr int warp_arrivals(int n)
{
    return n * LANES_THAT_ARRIVE;
}
/* Arrives for the whole warp, after all lanes have reached this point. */
__device__ __forceinline__ void mbarrier_arrive_warp(mbarrier b)
{
    stress_delay();
    __syncwarp();
    if (threadIdx.x % 32 < LANES_THAT_ARRIVE)
        mbarrier_arrive(b);
}
/* Waits until the phase of this parity is complete. */
__device__ __forceinline__ void mbarrier_wait(mbarrier b, uint32_t parity)
{
    stress_delay();
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
#if __CUDA_ARCH__ >= 900
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
#else
                 "mbarrier.test_wait.parity.shared.b64 done, [%0], %1;\n"
#endif
                 "@!done bra again;\n"
                 "}" ::"r"(b.at),
                 "r"(parity)
                 : "memory");
}
/* Whether the phase of this parity is complete; the same answer for the whole warp. */
__device__ __forceinline__ bool mbarrier_done(mbarrier b, uint32_t parity)
{
    int done;
    stress_delay();
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "mbarrier.test_wait.parity.shared.b64 done, [%1], %2;\n"
                 "selp.s32 %0, 1, 0, done;\n"
                 "}"
                 : "=r"(done)
                 : "r"(b.at), "r"(parity)
                 : "memory");
    return __all_sync(~0u, done);
}

/* ---- counters between blocks ----------------------------------------------------------------- */

/* Loads and stores of words that other blocks access while this kernel runs. */
__device__ __forceinline__ uint32_t load_acquire(const unsigned *p)
{
    uint32_t v;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ void store_release(unsigned *p, unsigned v)
{
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

/* Fence between a block's data and the counter or flag that announces the data. */
__device__ __forceinline__ void fence_acq_rel()
{
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
}

/* Adds one to the counter for the whole block. A thread that sees the sum by load_acquire() also
 * sees what this block has written. */
__device__ __forceinline__ void block_arrives(unsigned *counter)
{
    stress_delay();
    __syncthreads();
    if (threadIdx.x == 0) {
        fence_acq_rel();
        atomicAdd(counter, 1);
    }
}

/* True in the block that is the last of n to arrive; its threads then see what all n blocks wrote:
 * each block's barrier, its first thread's fence and the last block's fences order the writes.
 * *counter is 0 before and after. */
__device__ __forceinline__ bool last_to_arrive(unsigned *counter, unsigned n)
{
    __shared__ bool last;
    stress_delay();
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        last = atomicAdd(counter, 1) + 1 == n;
        if (last)
            *counter = 0;
        __threadfence();
    }
    __syncthreads();
    return last;
}

/* A grid barrier in two halves, one thread a block. The counter is 0 before, and again when all
 * blocks have arrived. */
__device__ __forceinline__ void grid_arrive(unsigned *counter)
{
    stress_delay();
    fence_acq_rel();
    atomicInc(counter, gridDim.x - 1);
}
/* Only after grid_arrive(). */
__device__ __forceinline__ void grid_wait(const unsigned *counter)
{
    while (WAITS && load_acquire(counter))
        ;
    stress_delay();
}

/* ---- words that are their own flags ---------------------------------------------------------- */

/* Values that one block publishes for other resident blocks, each word being its own flag. A word
 * is stored as its complement into a place that holds zero: the complement is never zero, because
 * its value would be a NaN (all bits set) that no instruction produces. A reader polls until the
 * word is not zero. That is one trip through L2; a fence, a counter that others poll, and a copy
 * take four times as long. */
__device__ __forceinline__ void publish(uint32_t *p, uint32_t v)
{
    stress_delay();
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(~v) : "memory");
}
__device__ __forceinline__ void publish_two(uint32_t *p, float x, float y)
{
    stress_delay();
    asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1,%2};" ::"l"(p), "r"(~__float_as_uint(x)),
                 "r"(~__float_as_uint(y))
                 : "memory");
}
__device__ __forceinline__ void publish_four(uint32_t *p, float x, float y, float z, float w)
{
    stress_delay();
    asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(p),
                 "r"(~__float_as_uint(x)), "r"(~__float_as_uint(y)), "r"(~__float_as_uint(z)),
                 "r"(~__float_as_uint(w))
                 : "memory");
}
/* Reads words that may be unpublished (0); a published word is the complement of its value. */
__device__ __forceinline__ uint32_t poll(const uint32_t *p)
{
    uint32_t v;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ uint4 poll_four(const uint4 *p)
{
    uint4 v;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}
__device__ __forceinline__ bool all_published(uint4 v)
{
    return v.x && v.y && v.z && v.w;
}

#endif
