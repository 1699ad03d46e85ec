/* mma.cuh - tensor core instructions: mma.sync with its ldmatrix loads, and what the wgmma kernels
 * (dense/wgmma.cuh, attention/wgmma.cuh) share.
 */
#pragma once

#include "kernels/cuda/cuda.h"

#ifdef __CUDACC__

/* ---- mma.sync -------------------------------------------------------------------------------- */

/* c (16 x 8) += a (16 x 16) b (16 x 8) */
__device__ __forceinline__ void mma_bf16(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                         uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1)
{
    mma_bf16(c, a[0], a[1], a[2], a[3], b0, b1);
}
__device__ __forceinline__ void mma_f16(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                        uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

/* ---- wgmma ----------------------------------------------------------------------------------- */

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* Orders register accesses before the products that follow. */
__device__ __forceinline__ void wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/* Waits until at most LEFT commit groups are incomplete. */
template <int LEFT> __device__ __forceinline__ void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

/* The shared-memory descriptor of a matrix with rows of 128 bytes and 128-byte swizzle, at address
 * `at`. apart: bytes between panels of 64 elements; unused if the product reads one panel. */
__device__ __forceinline__ uint64_t wgmma_descriptor(uint32_t at, int apart = 16)
{
    return (uint64_t)(at >> 4) | (uint64_t)(apart >> 4) << 16 | (uint64_t)64 << 32 |
           (uint64_t)1 << 62;
}

/* Operands %0 .. %n - 1 by name, and elements i .. of an array of accumulators as operands. */
#define REG16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define REG24 REG16 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define REG32 REG24 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define REG36 REG32 ",%32,%33,%34,%35"
#define REG40 REG36 ",%36,%37,%38,%39"
#define REG44 REG40 ",%40,%41,%42,%43"
#define REG48 REG44 ",%44,%45,%46,%47"
#define REG64 REG48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define REG80 REG64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define REG96 REG80 ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define REG128                                                                                     \
    REG96 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,"     \
          "%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define ACC4(a, i) "+f"(a[i]), "+f"(a[i + 1]), "+f"(a[i + 2]), "+f"(a[i + 3])
#define ACC8(a, i) ACC4(a, i), ACC4(a, i + 4)
#define ACC16(a, i) ACC8(a, i), ACC8(a, i + 8)
#define ACC32(a, i) ACC16(a, i), ACC16(a, i + 16)
#define ACC64(a, i) ACC32(a, i), ACC32(a, i + 32)

#endif
#endif
