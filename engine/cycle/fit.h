/* fit.h - the device memory that a runtime needs, and the longest context that fits.
 *
 * The need is counted, not estimated: a runtime is opened on a device that only counts allocations.
 * Any thread. */
#ifndef AERIE_FIT_H
#define AERIE_FIT_H

#include "engine/cycle/cycle.h"

struct need {
    size_t weights, cells, work; /* bytes: weights in the device's layout; KV cells; all other
                                    buffers */
};

/* Opens and closes a runtime that only counts. */
struct need fit_need(struct device dev, struct model *m, struct draft *draft,
                     const struct runtime_shape *shape);
/* Whether a runtime of this shape fits into the free memory; true if the device does not report its
 * memory. If the runtime does not fit and shape->shorten is set, shape->context becomes the longest
 * that fits; else *e says how much is needed, how much is free and what would fit. */
bool fit_shape(struct device dev, struct model *m, struct draft *draft, struct runtime_shape *shape,
               struct err *e);

#endif
