/* packed.h - weights packed in blocks, as GGUF files hold them, or made of a folder's matrices in
 * FP8 (E4M3) or FP4 (E2M1): what a block's bytes mean.
 *
 * A row of a packed matrix is a sequence of blocks, each of which holds the codes of 32, 64 or 256
 * consecutive elements and their scales. Rows have no padding: the length of a row is a multiple of
 * the block's elements. A packed tensor has the dimensions of its elements; dtype_size() of its
 * type is 0, and bytes come from dtype_bytes().
 *
 * The law of packed weights. The value of a weight is the float32 number that packed_floats()
 * computes, which is that of the format's definition, bit for bit (ggml; the formulas are those of
 * the Python package gguf). Everywhere a packed weight is used it is that value rounded once to
 * bf16, to nearest, ties to even: an operation on a packed matrix has the bits of the same
 * operation on the bf16 matrix that packed_bf16() makes of it.
 *
 * Source: ggml-common.h and ggml-quants.c of llama.cpp for the layouts; every value is checked
 * against gguf 0.19 (tests/peers/packed.py).
 */
#pragma once

#include "kernels/base.h"

enum { PACKED_BLOCK = 256 }; /* most elements of a block; a multiple of those of every type */

static inline bool dtype_packed(enum dtype t)
{
    return t >= DT_Q8_0 && t <= DT_E2M1;
}

/* Whether products take the weights of a type as bf16 numbers: bf16 itself, and packed types. */
static inline bool dtype_as_bf16(enum dtype t)
{
    return t == DT_BF16 || dtype_packed(t);
}

struct packed_format {
    int elements, bytes; /* of a block */
    int scale[2];        /* offsets of the f16 scales d and dmin (or m); -1: none. E4M3: its bf16
                            scale is at 0, before its 32 codes. E2M1: a float32 that multiplies all,
                            and at 4 scales in E4M3 of 16 elements each, before its 32 codes */
    float deviation; /* of values with random codes, with d = 1 and dmin = minimum: mean about 0 */
    float minimum;
};

/* Of a packed type. */
const struct packed_format *packed_format(enum dtype t);

/* Bytes of n consecutive elements of a row, packed or not. n must be a multiple of the block's
 * elements; the product must fit: dtype_bytes_fit() checks numbers from outside. */
size_t dtype_bytes(enum dtype t, size_t n);

/* The same of dim[0] x .. x dim[n_dim - 1] elements that a file claims. False, with *bytes
 * unchanged: a dimension is negative, the last one is no multiple of the block's elements, the
 * product does not fit in size_t, or the type has no elements (DT_NONE, DT_OTHER). */
bool dtype_bytes_fit(enum dtype t, int n_dim, const int64_t *dim, size_t *bytes);

/* The levels of IQ4_NL and IQ4_XS, and the numbers of E2M1, doubled, by their four-bit codes. */
extern const int8_t packed_iq4[16], packed_e2m1[16];

/* Unpacks n elements, a multiple of the block's elements; packed_bf16() with several threads if
 * there are millions. */
void packed_floats(enum dtype t, const void *blocks, size_t n, float *dst);
void packed_bf16(enum dtype t, const void *blocks, size_t n, uint16_t *dst);

/* Makes n blocks from block `first` on of an endless row of random weights, whose deviation is
 * `scale`; of every seed the same on all machines. For benchmarks. */
void packed_random(enum dtype t, uint64_t seed, float scale, size_t first, size_t n, void *blocks);

/* Magnitudes of a factor of E2M1 that are finite in products are below this. */
#define PACKED_FACTOR 0x1p112f

/* The first of n blocks with a scale that is NaN or infinite, or (MXFP4, E2M1) so large that a
 * value could be, or (E4M3) a value that is not finite; -1: none, and all values are finite, in
 * bf16, too. A loader must refuse such blocks: what products make of them is undefined. */
int64_t packed_not_finite(enum dtype t, const void *blocks, int64_t n);
