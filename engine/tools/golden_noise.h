/* golden_noise.h - float32 runs with noise: how far rounding alone moves a reference.
 *
 * Some references amplify every rounding error: attention without a scale turns it into other
 * weights, a router near a tie chooses another expert. A large error there does not mean that the
 * device's kernels are wrong. So the float32 engine runs on the CPU NOISE_RUNS times with random
 * changes of the inputs of products, of the size of roundings at the device's precision. If these
 * runs keep a tensor within the tolerance, the device must, too; if not, the device's error may
 * exceed theirs by at most the tolerance. If errors are not amplified, runs with bf16's noise are
 * off by 0.008 to 0.019, and transformers in bf16 by 0.009 to 0.015. */
#pragma once

#include "kernels/kernels.h"

enum { NOISE_RUNS = 32 };

/* `base`, a table of float32, but each element that enters a product (qkv, linear, glu, moe) has
 * been multiplied by a factor in 1 +- size, which follows from seed, element and column: a row's
 * bits do not depend on its neighbours. There is one such table, of the latest size and seed. */
const struct kernels *noise_table(const struct kernels *base, float size, uint64_t seed);
