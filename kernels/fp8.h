/* fp8.h - bf16 weights cut to FP8, for `--weights fp8` and `--draft-weights fp8`.
 *
 * A matrix that is cut has one unit, a power of two, and every weight becomes the nearest of
 * unit * c, c a number of E4M3 (a sign, four bits of exponent, three of mantissa; to 448, down to
 * 2^-9; ties to even). All of these are bf16 numbers: a cut matrix is an ordinary one with rounder
 * weights. A device may use it as that, and multiplies to the same bits, or read half the bytes.
 *
 * One unit is enough, for these are floating point: a weight loses precision only below 2^-14 of
 * the matrix's largest. (Format: OCP 8-bit Floating Point Specification, E4M3.)
 */
#ifndef AERIE_FP8_H
#define AERIE_FP8_H

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
#define FP8_REFUSED "%s has a weight that is not finite: it cannot be cut to FP8"

static inline FP8_BOTH float fp8_power(int exponent) /* -126 .. 127 */
{
    union { uint32_t bits; float v; } x = {(uint32_t)(exponent + 127) << 23};
    return x.v;
}

/* The exponent of the unit of a matrix whose largest magnitude is a bf16 of these bits: 448 units
 * reach it. */
static inline FP8_BOTH int fp8_unit(uint16_t largest)
{
    int unit = (largest >> 7) - 127 - 8 + ((largest & 0x7f) > 0x60);
    return unit < FP8_UNIT_LEAST ? (int)FP8_UNIT_LEAST
           : unit > FP8_UNIT_MOST ? (int)FP8_UNIT_MOST : unit;
}

/* The number of units nearest to a finite bf16, as E4M3; beyond 448: that. */
static inline FP8_BOTH uint8_t fp8_of(uint16_t w, int unit)
{
    union { uint32_t bits; float v; } x = {(uint32_t)(w & 0x7fff) << 16};
    uint32_t code;
    x.v *= fp8_power(-unit);
    if (x.v < 0x1p-6f) {
        code = (uint32_t)rintf(x.v * 0x1p9f);
    } else {
        code = ((x.bits + 0x7ffff + (x.bits >> 20 & 1)) >> 20) - (120 << 3);
        code = code > FP8_LARGEST ? (uint32_t)FP8_LARGEST : code;
    }
    return (uint8_t)(code | (uint32_t)(w >> 8 & 0x80));
}

/* What it stands for, as a bf16. */
static inline FP8_BOTH uint16_t fp8_value(uint8_t code, int unit)
{
    uint32_t magnitude = code & 0x7f;
    union { float v; uint32_t bits; } x;
    x.v = magnitude < 8 ? (float)magnitude * 0x1p-9f
                        : (float)(8 + (magnitude & 7)) * fp8_power((int)(magnitude >> 3) - 10);
    x.v *= fp8_power(unit);
    return (uint16_t)(x.bits >> 16 | (uint32_t)(code & 0x80) << 8);
}

#endif
