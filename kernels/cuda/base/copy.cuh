/* copy.cuh - asynchronous copies from global to shared memory: cp.async by each thread (any GPU),
 * bulk copies by the copy engine (9.0 and later; elsewhere cp.async takes their place), and boxes
 * of tensor maps (TMA).
 *
 * The order of a bulk copy: COPY_LANES lanes of a warp call bulk_expect() with the bytes of all
 * copies that follow, then bulk_copy() for each, then bulk_issued(). The mbarrier, initialised with
 * COPY_LANES arrivals, completes its phase when all bytes have arrived. Addresses and sizes are
 * multiples of 16.
 */
#pragma once

#include "kernels/cuda/base/barrier.cuh"

#include <cuda.h>

#ifdef __CUDACC__

/* ---- shared memory --------------------------------------------------------------------------- */

__device__ __forceinline__ uint32_t shared1(uint32_t at)
{
    uint32_t v;
    asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(at));
    return v;
}
__device__ __forceinline__ uint32_t shared2(uint32_t at)
{
    uint16_t v;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(at));
    return v;
}
__device__ __forceinline__ uint32_t shared4(uint32_t at)
{
    uint32_t v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at));
    return v;
}
__device__ __forceinline__ uint2 shared8(uint32_t at)
{
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at));
    return v;
}
__device__ __forceinline__ uint4 shared16(uint32_t at)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at));
    return v;
}

__device__ __forceinline__ void store_shared16(uint32_t at, uint4 v)
{
    asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(at), "r"(v.x), "r"(v.y), "r"(v.z),
                 "r"(v.w)
                 : "memory");
}

/* ---- copies by each thread ------------------------------------------------------------------- */

/* Copies 16 bytes; stores zeros if cell < 0. */
__device__ __forceinline__ void cp_async16(uint32_t to, const void *from, int cell)
{
    asm volatile("{\n"
                 ".reg .pred none;\n"
                 "setp.lt.s32 none, %2, 0;\n"
                 "cp.async.cg.shared.global [%0], [%1], 16, none;\n"
                 "}" ::"r"(to),
                 "l"(from), "r"(cell)
                 : "memory");
}
/* Copies 16 bytes if `there`; otherwise does nothing. */
__device__ __forceinline__ void cp_async16_if(uint32_t to, const void *from, bool there)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.s32 p, %2, 0;\n"
                 "@p cp.async.cg.shared.global [%0], [%1], 16;\n}" ::"r"(to),
                 "l"(from), "r"((int)there)
                 : "memory");
}
/* Copies 4 bytes through L1, which keeps the line. */
__device__ __forceinline__ void cp_async4(uint32_t to, const void *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
/* The same; stores zeros if cell < 0. */
__device__ __forceinline__ void cp_async4(uint32_t to, const void *from, int cell)
{
    asm volatile("{\n"
                 ".reg .pred none;\n"
                 "setp.lt.s32 none, %2, 0;\n"
                 "cp.async.ca.shared.global [%0], [%1], 4, none;\n"
                 "}" ::"r"(to),
                 "l"(from), "r"(cell)
                 : "memory");
}
__device__ __forceinline__ void cp_async_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/* Waits until at most N of the thread's commit groups are incomplete. */
template <int N> __device__ __forceinline__ void cp_async_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
/* Arrives at the mbarrier when all copies that the thread has issued are complete. */
__device__ __forceinline__ void cp_async_arrive(mbarrier full)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(full.at) : "memory");
}

/* ---- bulk copies ----------------------------------------------------------------------------- */

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
enum { COPY_LANES = 1 };
#else
enum { COPY_LANES = 32 }; /* without bulk copies every lane copies and arrives */
#endif

/* Arrives, and announces the bytes of the copies that follow. Without bulk copies there is nothing
 * to announce. */
__device__ __forceinline__ void bulk_expect(mbarrier full, int bytes)
{
    stress_delay();
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(full.at), "r"(bytes)
                 : "memory");
#endif
}
__device__ __forceinline__ void bulk_copy(uint32_t to, const void *from, int bytes, mbarrier full)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(full.at)
                 : "memory");
#else
    for (int i = (int)threadIdx.x % 32 * 16; i < bytes; i += 32 * 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + i),
                     "l"((const char *)from + i)
                     : "memory");
#endif
}
/* bulk_copy() of data that is read once: L2 evicts it first. */
__device__ __forceinline__ void bulk_copy_once(uint32_t to, const void *from, int bytes,
                                               mbarrier full)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n"
                 ".reg .b64 once;\n"
                 "createpolicy.fractional.L2::evict_first.b64 once, 1.0;\n"
                 "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], once;\n"
                 "}" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(full.at)
                 : "memory");
#else
    for (int i = (int)threadIdx.x % 32 * 16; i < bytes; i += 32 * 16)
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to + i),
                     "l"((const char *)from + i)
                     : "memory");
#endif
}
/* Without bulk copies: cp_async_arrive(). */
__device__ __forceinline__ void bulk_issued(mbarrier full)
{
#if __CUDA_ARCH__ < 900
    cp_async_arrive(full);
#endif
}

/* Makes this thread's view of ordinary writes visible to the copy engine and to wgmma (the async
 * proxy). */
__device__ __forceinline__ void fence_async_proxy()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async;" ::: "memory");
#endif
}
/* The same for shared memory only. */
__device__ __forceinline__ void fence_async_proxy_shared()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/* ---- boxes of tensor maps -------------------------------------------------------------------- */

#if __CUDA_ARCH__ >= 900

/* Copies a box of a matrix, from element (k, row) on. */
__device__ __forceinline__ void copy_box(uint32_t to, const CUtensorMap *map, int k, int row,
                                         mbarrier full)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];" ::"r"(to),
                 "l"(map), "r"(k), "r"(row), "r"(full.at)
                 : "memory");
}

/* Copies piece `piece` of each row of a box of rows (cuda_piece_map()), one row's piece after the
 * other's. from: where in the piece the box begins, in units of 8 bytes. */
__device__ __forceinline__ void copy_pieces(uint32_t to, const CUtensorMap *map, int piece, int row,
                                            mbarrier full, int from = 0)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
                 "l"(map), "r"(from), "r"(piece), "r"(row), "r"(full.at)
                 : "memory");
}

/* The L2 policy for copy_pieces_once() and copy_units_once(). */
__device__ __forceinline__ uint64_t evict_first_policy()
{
    uint64_t once;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(once));
    return once;
}
/* copy_pieces() of data that is read once. The caller makes the policy once for many copies. */
__device__ __forceinline__ void copy_pieces_once(uint32_t to, const CUtensorMap *map, int piece,
                                                 int row, mbarrier full, uint64_t once)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {0, %2, %3}], [%4], %5;" ::"r"(to),
                 "l"(map), "r"(piece), "r"(row), "r"(full.at), "l"(once)
                 : "memory");
}

/* Copies the chunk at place `place` of a box of panels of bf16 (cuda_panel_map()): unit 0 of all
 * their rows, then unit 1, and so on. from: the first row in each panel. */
__device__ __forceinline__ void copy_units(uint32_t to, const CUtensorMap *map, int place,
                                           int panel, mbarrier full, int from)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, 0, %4}], [%5];" ::"r"(to),
                 "l"(map), "r"(from * 2), "r"(panel), "r"(place), "r"(full.at)
                 : "memory");
}
/* copy_units() of data that is read once (evict_first_policy()). */
__device__ __forceinline__ void copy_units_once(uint32_t to, const CUtensorMap *map, int place,
                                                int panel, mbarrier full, uint64_t once)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {0, %2, 0, %3}], [%4], %5;" ::"r"(to),
                 "l"(map), "r"(panel), "r"(place), "r"(full.at), "l"(once)
                 : "memory");
}

#endif
#endif
