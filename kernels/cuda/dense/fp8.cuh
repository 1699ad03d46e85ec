/* fp8.cuh - FP8 weights (fp8.h) on the device. A quantized matrix is stored in FP8 only, in the
 * panels of a bf16 matrix (base/panel.cuh) with a byte a weight, but without units: a chunk has
 * the elements of one row after the other. The kernels of all products read the codes and widen
 * them to bf16 in registers.
 *
 *     (panels, positions, splits, rows of a panel, 32), a byte each
 *
 * A word holds four successive weights. Each half of the word holds one of the first two (`first`)
 * and one of the last two (`second`); s is the sign, m a bit of the magnitude:
 *
 *     bit    15  14 13 12  11  10 9 8 7 6 5 4  3 2 1 0
 *     first   s                 m m m m m m m
 *     second      m  m  m   s                   m m m m
 *
 * So a mask makes bf16 of the first, and two shifts and two masks make bf16 of the second.
 */
#pragma once

#include "kernels/cuda/base/panel.cuh"
#include "kernels/fp8.h"

/* Four FP8 codes as one word of that layout. */
static inline __host__ __device__ uint32_t fp8_word(const uint8_t *c)
{
    uint32_t word = 0;
    for (int i = 0; i < 2; i++) {
        const uint32_t a = c[i], b = c[2 + i];
        const uint32_t half = (a & 0x80) << 8 | (a & 0x7f) << 4 | (b & 0x80) << 4 |
                              (b & 0x70) << 8 | (b & 0x0f);
        word |= half << 16 * i;
    }
    return word;
}
static inline __host__ __device__ size_t fp8_panel_bytes(const struct panels &p)
{
    return panel_bytes(p) / 2;
}
/* Where elements i .. i + 3 of the first row of a panel are, in bytes from the panel on; i is a
 * multiple of 4. The next row's are K_CHUNK bytes further. */
static inline __host__ __device__ uint32_t fp8_place(const struct panels &p, int i)
{
    return (uint32_t)(chunk_place(p.ksplit, i / K_CHUNK) * p.rows * K_CHUNK + i % K_CHUNK);
}
/* The pair of bf16 by which fp8_pair() multiplies: the scale 2^unit, times 2^120 because the bits
 * of an E4M3 exponent (bias 7) are read as those of a bf16 exponent (bias 127). */
static inline __host__ __device__ uint32_t fp8_factor(int unit)
{
    return (uint32_t)(unit + 120 + 127) << 7 | (uint32_t)(unit + 120 + 127) << 23;
}

/* Raises *most, on the device, to the largest magnitude of n bf16 at w, as its bits. w is a
 * multiple of 16 and may be overwritten with zeros up to the next such multiple behind its end. */
void cuda_find_largest(struct kdev *d, void *w, size_t n, unsigned *most);

#ifdef __CUDACC__

/* The codes of eight weights in the device layout. */
__device__ __forceinline__ uint2 fp8_codes(const uint16_t (&w)[8], int unit)
{
    uint8_t codes[8];
    for (int j = 0; j < 8; j++)
        codes[j] = fp8_of(w[j], unit);
    return make_uint2(fp8_word(codes), fp8_word(codes + 4));
}

/* Two weights of bf16 from their codes; each half of `bits` has the sign at bf16's sign and the
 * magnitude at the low bits of bf16's exponent and the high bits of its mantissa. */
__device__ __forceinline__ uint32_t fp8_pair(uint32_t bits, uint32_t factor)
{
    uint32_t y;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(bits), "r"(factor), "r"(0x80008000));
    return y;
}
__device__ __forceinline__ uint2 fp8_four(uint32_t v, uint32_t factor)
{
    return make_uint2(fp8_pair(v & 0x87f087f0, factor),
                      fp8_pair((v << 4 & 0x80f080f0) | (v >> 4 & 0x07000700), factor));
}
__device__ __forceinline__ uint4 fp8_eight(uint2 v, uint32_t factor)
{
    const uint2 a = fp8_four(v.x, factor), b = fp8_four(v.y, factor);
    return make_uint4(a.x, a.y, b.x, b.y);
}

#endif
