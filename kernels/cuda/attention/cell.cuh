/* cell.cuh - FP8 cells of keys and values on the device (kv_cell_bytes(), kernels.h): in a slot the
 * codes of all kv heads, then a scale of a byte for each head (fp8.h). All numbers of a cell are
 * bf16 numbers, so products of bf16 have the bits that they have with bf16 cells.
 *
 * Kernels of many rows copy 16 codes and 16 scales to where the 16 bf16 numbers belong, 32 bytes,
 * and widen them there: all that reads them afterwards is the code for bf16 cells. In decode
 * (round.cuh) shared memory holds the codes, and each is widened once, in the registers of the warp
 * that multiplies it.
 */
#pragma once

#include "kernels/cuda/base/copy.cuh"
#include "kernels/fp8.h"

#ifdef __CUDACC__

/* A pair of bf16: the scale that a byte stands for. A head that is NaN has a scale that is NaN; a
 * byte of 0 is 0: a cell that is not there is copied as zeros. */
__device__ __forceinline__ uint32_t fp8_cell_factor(uint32_t scale)
{
    const uint32_t one = scale == (uint32_t)FP8_CELL_NAN ? 0x7fffu : scale << 7;
    return one | one << 16;
}

/* a * b, exact here */
__device__ __forceinline__ uint32_t bf16_pair_times(uint32_t a, uint32_t b)
{
    uint32_t y;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(0x80008000)); /* - 0 */
    return y;
}

/* Scales from here on, FP8_CELL_NAN among them, need two products: 2^120 times the scale is beyond
 * bf16. A head has one only if a number of it is above 28672. */
enum { FP8_CELL_FAR = 127 + 8 };

/* What fp8_cell_pair() multiplies by, from factors. */
template <bool FAR> __device__ __forceinline__ uint32_t fp8_cell_by(uint32_t factor)
{
    return FAR ? factor : factor + 0x3c003c00; /* 120 added to both exponents */
}

/* Two numbers as bf16. bits: in the high byte of each half a code. The bits of a code are those of
 * a bf16 with another exponent, subnormal numbers included; 2^120 makes up for it, in one product
 * with the scale unless FAR. by: fp8_cell_by(). */
template <bool FAR> __device__ __forceinline__ uint32_t fp8_cell_pair(uint32_t bits, uint32_t by)
{
    const uint32_t small = (bits >> 4 & 0x07f007f0) | (bits & 0x80008000);
    return bf16_pair_times(FAR ? bf16_pair_times(small, 0x7b807b80) : small, by);
}

#if __CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1000
/* mma.sync adds sixteen products whatever their order (dense/wgmma.cuh). */
static constexpr bool CODES_IN_ANY_ORDER = true;
#else
static constexpr bool CODES_IN_ANY_ORDER = false;
#endif

/* The operand of a step of mma.sync (16 dimensions) from what ldmatrix loads of a key's 16 codes: a
 * lane has the codes of four successive dimensions. In order they are those of dimensions 2q,
 * 2q + 1 (x), 2q + 8 and 2q + 9 (y) for lane q of four, which costs two shuffles; else the first
 * and the third (x), the second and the fourth (y), and queries are stored accordingly. */
template <bool FAR> __device__ __forceinline__ uint2 fp8_cell_four(uint32_t codes, uint32_t by)
{
    if (!CODES_IN_ANY_ORDER) {
        const int lane = (int)threadIdx.x % 32, from = (lane & ~3) + lane % 4 / 2;
        const uint32_t x = __shfl_sync(~0u, codes, from), y = __shfl_sync(~0u, codes, from + 2);
        codes = __byte_perm(x, y, lane % 2 ? 0x7362 : 0x5140);
    }
    return make_uint2(fp8_cell_pair<FAR>(codes << 8, by), fp8_cell_pair<FAR>(codes, by));
}

/* Eight numbers as bf16, from eight codes in their order. */
template <bool FAR> __device__ __forceinline__ uint4 fp8_cell_eight(uint2 codes, uint32_t by)
{
    return make_uint4(fp8_cell_pair<FAR>(__byte_perm(codes.x, 0, 0x1404), by),
                      fp8_cell_pair<FAR>(__byte_perm(codes.x, 0, 0x3424), by),
                      fp8_cell_pair<FAR>(__byte_perm(codes.y, 0, 0x1404), by),
                      fp8_cell_pair<FAR>(__byte_perm(codes.y, 0, 0x3424), by));
}

template <bool FAR>
__device__ __forceinline__ void fp8_cell_store(uint32_t at, uint4 codes, uint32_t factor)
{
    const uint32_t by = fp8_cell_by<FAR>(factor);
    store_shared16(at, fp8_cell_eight<FAR>(make_uint2(codes.x, codes.y), by));
    store_shared16(at ^ 16, fp8_cell_eight<FAR>(make_uint2(codes.z, codes.w), by));
}

/* Widens 16 codes at address `at` of shared memory; the 16 bytes at address at ^ 16 are scales.
 * Codes 0 to 7 become the bf16 at `at`, the others those at at ^ 16. scale: which of the 16 is the
 * head's. */
__device__ __forceinline__ void fp8_cell_widen(uint32_t at, int scale)
{
    const uint4 codes = shared16(at);
    const uint32_t x = shared1((at ^ 16) + (uint32_t)scale);
    if (__builtin_expect(x >= FP8_CELL_FAR, 0))
        fp8_cell_store<true>(at, codes, fp8_cell_factor(x));
    else
        fp8_cell_store<false>(at, codes, x << 7 | x << 23);
}

#endif
