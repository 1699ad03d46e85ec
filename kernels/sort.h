/* sort.h - sorts numbers. */
#pragma once

#include <stdint.h>
#include <stdlib.h>

/* From the least to the greatest; n may be 0, and no number NAN. */
#define SORT_UP(name, number)                                                                      \
    static inline int name##_order(const void *a, const void *b)                                   \
    {                                                                                              \
        number x = *(const number *)a, y = *(const number *)b;                                     \
        return (x > y) - (x < y);                                                                  \
    }                                                                                              \
    static inline void name(number *v, int64_t n)                                                  \
    {                                                                                              \
        if (n > 1)                                                                                 \
            qsort(v, (size_t)n, sizeof *v, name##_order);                                          \
    }
SORT_UP(sort_up, double)
SORT_UP(sort_floats, float)
SORT_UP(sort_ints, int32_t)
SORT_UP(sort_times, uint32_t)
#undef SORT_UP
