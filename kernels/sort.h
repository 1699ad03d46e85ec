/* sort.h - sorts numbers. */
#pragma once

#include <stdlib.h>

static inline int sort_order(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* From the least to the greatest; n may be 0, and no number NAN. */
static inline void sort_up(double *v, int n)
{
    if (n > 1)
        qsort(v, (size_t)n, sizeof *v, sort_order);
}
