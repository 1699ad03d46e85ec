/* idioms.h - two idioms of C, each in one line where it is used. */
#ifndef AERIE_IDIOMS_H
#define AERIE_IDIOMS_H

#include "kernels/base.h"

/* In a function that ends in "...": prints the arguments behind fmt into the array `text`. */
#define PRINT_ARGS(text, fmt)                                                                      \
    do {                                                                                           \
        va_list ap_;                                                                               \
        va_start(ap_, fmt);                                                                        \
        vsnprintf(text, sizeof text, fmt, ap_);                                                    \
        va_end(ap_);                                                                               \
    } while (0)

/* Makes room for one more element behind the n that the array v of `cap` elements has: a full array
 * becomes twice as large, an empty one gets `first` elements. */
#define MAKE_ROOM(v, n, cap, first)                                                                \
    do {                                                                                           \
        if ((n) >= (cap)) {                                                                        \
            (cap) = (cap) ? 2 * (cap) : (first);                                                   \
            (v) = xrealloc((v), (size_t)(cap), sizeof *(v));                                       \
        }                                                                                          \
    } while (0)

#endif
