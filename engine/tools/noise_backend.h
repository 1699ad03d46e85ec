/* noise_backend.h - a kernel table of the CPU that computes in float32 with noise of the size of
 * roundings, for engine_opts.backend. The spread of its runs is the band within which the results
 * of another precision, or of sums in another order, may lie. See golden_noise.h.
 */
#pragma once

#include "kernels/base.h"

struct kernels;

/* The noise of roundings: sums of float32 in another order; activations and cells of bf16; weights
 * of eight bits. Fractions of the elements that enter a product. */
#define NOISE_F32 0x1p-20f
#define NOISE_BF16 (3 * 0x1p-9f)
#define NOISE_FP8 0x1p-4f

/* The table with noise. There is one such table: an open engine that uses it, and must not run a
 * pass during the call, continues with the size and the seed of the latest call. NULL and *e on
 * failure. */
const struct kernels *noise_backend(float size, uint64_t seed, struct err *e);
