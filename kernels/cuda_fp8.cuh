/* cuda_fp8.cuh - FP8 weights (fp8.h) on the device: behind a cut matrix's panels of bf16 lie the
 * same in FP8, which products of a few rows read; whatever has more rows takes those of bf16.
 *
 *     (panels, positions, runs, rows of a panel, 32), a byte each
 *
 * Of eight successive weights those that become bf16 together lie so that a shift and a mask bring
 * each to its place: in the order 2, 0, 3, 1, 6, 4, 7, 5.
 */
#ifndef AERIE_CUDA_FP8_CUH
#define AERIE_CUDA_FP8_CUH

#include "kernels/cuda_panel.cuh"
#include "kernels/fp8.h"

/* Where in its eight weight i lies. */
static inline __host__ __device__ int fp8_place(int i)
{
    return i & 4 | (i & 1) << 1 | !(i & 2);
}
static inline __host__ __device__ size_t fp8_panel_bytes(const struct panels &p)
{
    return panel_bytes(p) / 2;
}
/* A pair of bf16: what fp8_pair() multiplies with. Its weights have bf16's exponent, whose zero is
 * at 127, where E4M3's is at 7. */
static inline __host__ __device__ uint32_t fp8_factor(int unit)
{
    return (uint32_t)(unit + 120 + 127) << 7 | (uint32_t)(unit + 120 + 127) << 23;
}

/* Cuts the matrix whose panels lie at `to`, in place, and writes those of FP8 behind them. Sets
 * t->unit. False and *e: a weight is not finite, or the device failed. */
bool cuda_cut(struct kdev *d, struct tensor *t, const struct panels &p, uint8_t *to, struct err *e);

#ifdef __CUDACC__

__device__ __forceinline__ uint2 shared8(uint32_t at)
{
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at));
    return v;
}

/* Two weights, in the upper byte of each half of v. */
__device__ __forceinline__ uint32_t fp8_pair(uint32_t v, uint32_t factor)
{
    uint32_t y, bits = (v & 0x80008000) | (v >> 4 & 0x07f007f0);
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(bits), "r"(factor), "r"(0x80008000));
    return y;
}
__device__ __forceinline__ uint4 fp8_eight(uint2 v, uint32_t factor)
{
    return make_uint4(fp8_pair(v.x, factor), fp8_pair(v.x << 8, factor), fp8_pair(v.y, factor),
                      fp8_pair(v.y << 8, factor));
}

#endif
#endif
