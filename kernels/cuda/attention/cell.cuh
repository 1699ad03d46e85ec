/* cell.cuh - FP8 cells of keys and values on the device (kv_cell_bytes(), kernels.h): in a slot the
 * codes of all kv heads, then a scale of a byte for each head (fp8.h). All numbers of a cell are
 * bf16 numbers. Kernels that multiply bf16 copy 16 codes and 16 scales to where the 16 bf16 numbers
 * belong, 32 bytes, and widen them there: so all that reads them afterwards is the same code, on the
 * same bits, as with bf16 cells.
 */
#ifndef AERIE_CUDA_CELL_CUH
#define AERIE_CUDA_CELL_CUH

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

/* Two numbers as bf16. bits: in the high byte of each half a code, zeros below. The bits of a code
 * are those of a bf16 with another exponent, subnormal numbers included; 2^120 makes up for it, and
 * not in one product with the scale, whose exponent may then be beyond bf16's. */
__device__ __forceinline__ uint32_t fp8_cell_pair(uint32_t bits, uint32_t factor)
{
    const uint32_t small = (bits >> 4 & 0x07f007f0) | (bits & 0x80008000);
    return bf16_pair_times(bf16_pair_times(small, 0x7b807b80), factor);
}

/* Eight numbers as bf16, from eight codes in their order. */
__device__ __forceinline__ uint4 fp8_cell_eight(uint2 codes, uint32_t factor)
{
    return make_uint4(fp8_cell_pair(__byte_perm(codes.x, 0, 0x1404), factor),
                      fp8_cell_pair(__byte_perm(codes.x, 0, 0x3424), factor),
                      fp8_cell_pair(__byte_perm(codes.y, 0, 0x1404), factor),
                      fp8_cell_pair(__byte_perm(codes.y, 0, 0x3424), factor));
}

/* Widens 16 codes at address `at` of shared memory; the 16 bytes at address at ^ 16 are scales.
 * Codes 0 to 7 become the bf16 at `at`, the others those at at ^ 16. scale: which of the 16 is the
 * head's. */
__device__ __forceinline__ void fp8_cell_widen(uint32_t at, int scale)
{
    const uint4 codes = shared16(at);
    const uint32_t factor = fp8_cell_factor(shared1((at ^ 16) + (uint32_t)scale));
    store_shared16(at, fp8_cell_eight(make_uint2(codes.x, codes.y), factor));
    store_shared16(at ^ 16, fp8_cell_eight(make_uint2(codes.z, codes.w), factor));
}

#endif
#endif
