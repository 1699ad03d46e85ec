/* few.h - fewer cases for tools that slow a device down a hundredfold: tests/bench/gpu.sh check. */
#ifndef AERIE_FEW_H
#define AERIE_FEW_H

#include <stdlib.h>

/* The step of a loop over cases: 1, or `share` where AERIE_FEW is set: one of so many is run. */
static inline int one_in(int share)
{
    return getenv("AERIE_FEW") ? share : 1;
}

#endif
