/* noise_backend.h - float32 runs with noise: how far rounding alone moves a reference.
 *
 * Some references amplify every rounding error: attention without a scale turns it into other
 * weights, a router near a tie chooses another expert. A large error there does not mean that the
 * device's kernels are wrong. So the float32 engine runs on the CPU NOISE_RUNS times with random
 * changes of the inputs of products, of the size of roundings at the device's precision. If these
 * runs keep a tensor within the tolerance, the device must, too; if not, the device's error may
 * exceed theirs by at most the tolerance. If errors are not amplified, runs with bf16's noise are
 * off by 0.008 to 0.019, and transformers in bf16 by 0.009 to 0.015. */
#pragma once

#include "kernels/base.h"

struct kernels;

enum { NOISE_RUNS = 32 };

/* The noise of roundings: sums of float32 in another order; activations and cells of bf16; weights
 * of eight bits. Fractions of the elements that enter a product. */
#define NOISE_F32 0x1p-20f
#define NOISE_BF16 (3 * 0x1p-9f)
#define NOISE_FP8 0x1p-4f

/* `base`, a table of float32, but each element that enters a product (qkv, linear, glu, moe) has
 * been multiplied by a factor in 1 +- size, which follows from seed, element and column: a row's
 * bits do not depend on its neighbours. The table asks no operation for packed rows (`packed` in
 * kernels.h). There is one such table, of the latest size and seed. */
const struct kernels *noise_table(const struct kernels *base, float size, uint64_t seed);
/* That table of the CPU, for engine_opts.backend: the spread of its runs is the band within which
 * the results of another precision, or of sums in another order, may lie. An open engine that uses
 * it, and must not run a pass during the call, continues with the size and the seed of the latest
 * call. NULL and *e on failure. */
const struct kernels *noise_backend(float size, uint64_t seed, struct err *e);
