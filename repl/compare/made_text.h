/* made_text.h - English sentences made up from a seed, as long as wanted: prompts that have no
 * prefix in common with those of another seed. Pure functions. */
#pragma once

#include "kernels/base.h"

/* Appends sentences until at least `words` words were added. The same seed, the same text. */
void made_text(uint64_t seed, int words, struct buf *out);
