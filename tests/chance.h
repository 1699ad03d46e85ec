/* chance.h - a test's random numbers: the same ones in every run. One thread. */
#pragma once

#include "kernels/base.h"

static uint64_t dice = 1; /* the state: a test that sets it can draw the same numbers again */

/* A number of [0, n). */
static inline uint64_t roll(uint64_t n)
{
    dice = mix64(dice);
    return dice % n;
}

static inline int below(int n) /* the same */
{
    return (int)roll((uint64_t)n);
}
