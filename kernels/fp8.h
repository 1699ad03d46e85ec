/* fp8.h - quantizing to FP8 (E4M3): bf16 weights (`--weights fp8`, `--draft-weights fp8`), and keys
 * and values in their cells (`--kv fp8`).
 *
 * A quantized matrix has one scale, a power of two, and each weight becomes the nearest scale * c,
 * where c is an E4M3 number (a sign, 4 exponent bits, 3 mantissa bits; largest 448, smallest 2^-9;
 * ties to even). All these products are bf16 numbers, so a quantized matrix is an ordinary bf16
 * matrix with rounded weights. A device may use that form, or read the 8-bit codes (half the bytes)
 * and get the same bits.
 *
 * One scale a matrix is enough because E4M3 is a floating-point format: only weights below 2^-14 of
 * the largest lose precision. For the same reason one scale a head of a cell is enough, and a power
 * of two rounds nothing by itself. (Format: OCP 8-bit Floating Point Specification, E4M3.)
 */
#pragma once

#include "kernels/base.h"

#include <math.h>

#ifdef __CUDACC__
#define FP8_BOTH __host__ __device__
#else
#define FP8_BOTH
#endif

enum {
    FP8_UNIT_LEAST = -100, FP8_UNIT_MOST = 7, /* exponents: all products stay normal numbers */
    FP8_LARGEST = 0x7e,                       /* 448 */
    FP8_NOT_FINITE = 0x7f80,                  /* magnitudes of bf16 from here on */
};
#define FP8_REFUSED "%s has a weight that is not finite: it cannot be quantized to FP8"

static inline FP8_BOTH float fp8_power(int exponent) /* -126 .. 127 */
{
    union { uint32_t bits; float v; } x = {(uint32_t)(exponent + 127) << 23};
    return x.v;
}

/* The scale's exponent for a matrix whose largest magnitude has these bf16 bits: 448 times the
 * scale is at least that magnitude. */
static inline FP8_BOTH int fp8_unit(uint16_t largest)
{
    int unit = (largest >> 7) - 127 - 8 + ((largest & 0x7f) > 0x60);
    return unit < FP8_UNIT_LEAST ? (int)FP8_UNIT_LEAST
           : unit > FP8_UNIT_MOST ? (int)FP8_UNIT_MOST : unit;
}

/* The E4M3 code nearest to a finite number divided by the scale; saturates at 448. bits: of the
 * number as float32. */
static inline FP8_BOTH uint8_t fp8_code(uint32_t bits, int unit)
{
    union { uint32_t bits; float v; } x = {bits & 0x7fffffff};
    uint32_t code;
    x.v *= fp8_power(-unit);
    if (x.v < 0x1p-6f) {
        code = (uint32_t)rintf(x.v * 0x1p9f);
    } else {
        code = ((x.bits + 0x7ffff + (x.bits >> 20 & 1)) >> 20) - (120 << 3);
        code = code > FP8_LARGEST ? (uint32_t)FP8_LARGEST : code;
    }
    return (uint8_t)(code | (bits >> 24 & 0x80));
}

/* The same of a finite bf16. */
static inline FP8_BOTH uint8_t fp8_of(uint16_t w, int unit)
{
    return fp8_code((uint32_t)w << 16, unit);
}

/* The weight that a code stands for, as bf16 bits. */
static inline FP8_BOTH uint16_t fp8_value(uint8_t code, int unit)
{
    uint32_t magnitude = code & 0x7f;
    union { float v; uint32_t bits; } x;
    x.v = magnitude < 8 ? (float)magnitude * 0x1p-9f
                        : (float)(8 + (magnitude & 7)) * fp8_power((int)(magnitude >> 3) - 10);
    x.v *= fp8_power(unit);
    return (uint16_t)(x.bits >> 16 | (uint32_t)(code & 0x80) << 8);
}

/* ---- keys and values ------------------------------------------------------------------------- */

enum {
    FP8_CELL_LEAST = -110, FP8_CELL_MOST = 119, /* exponents of a scale; stored plus 127 */
    FP8_CELL_NAN = 0xff, /* in place of a scale: the head is NaN, as in a cell that was never
                            written */
};

/* The byte that stands for the scale of a head whose largest magnitude has these bits as float32:
 * 448 times the scale is at least that magnitude, half of that is not. A number that is not finite
 * makes the head NaN. */
static inline FP8_BOTH uint8_t fp8_cell_scale_of(uint32_t most)
{
    if (most >= 0x7f800000)
        return FP8_CELL_NAN;
    int unit = (int)(most >> 23) - 127 - 8 + ((most & 0x7fffff) > 0x600000);
    unit = unit < FP8_CELL_LEAST ? (int)FP8_CELL_LEAST : unit > FP8_CELL_MOST ? (int)FP8_CELL_MOST
           : unit;
    return (uint8_t)(unit + 127);
}

/* The code of a number of a head that has this scale. */
static inline FP8_BOTH uint8_t fp8_cell_code(float x, uint8_t scale)
{
    union { float v; uint32_t bits; } u = {x};
    return scale == FP8_CELL_NAN ? 0xff : fp8_code(u.bits, scale - 127);
}

/* The byte that stands for the scale of a head's n numbers. */
static inline uint8_t fp8_cell_scale(const float *x, int n)
{
    uint32_t most = 0;
    for (int i = 0; i < n; i++) {
        union { float v; uint32_t bits; } u = {x[i]};
        uint32_t magnitude = u.bits & 0x7fffffff;
        most = magnitude > most ? magnitude : most;
    }
    return fp8_cell_scale_of(most);
}

static inline void fp8_cell_write(const float *x, int n, uint8_t *code, uint8_t *scale)
{
    *scale = fp8_cell_scale(x, n);
    for (int i = 0; i < n; i++)
        code[i] = fp8_cell_code(x[i], *scale);
}

/* The bits of a code are those of a float32 with another exponent, subnormal numbers included. A
 * head that is NaN has a scale that is NaN. */
static inline void fp8_cell_read(const uint8_t *code, uint8_t scale, int n, float *x)
{
    float unit = scale == FP8_CELL_NAN ? NAN : fp8_power(scale - 127);
    for (int i = 0; i < n; i++) {
        union { uint32_t bits; float v; } u = {(uint32_t)(code[i] & 0x7f) << 20 |
                                               (uint32_t)(code[i] & 0x80) << 24};
        x[i] = u.v * 0x1p120f * unit;
    }
}
