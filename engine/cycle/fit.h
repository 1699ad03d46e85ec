/* fit.h - the device memory that a runtime needs, and the longest context that fits.
 *
 * The need is counted, not estimated: a runtime is opened on a device that only counts allocations.
 * Any thread. */
#pragma once

#include "engine/cycle/cycle.h"

/* Opens and closes a runtime that only counts (struct need: engine/cache/page_event.h). held:
 * weights that the device holds already count, too; else they need nothing more. */
struct need fit_need(struct device dev, struct model *model, struct draft *draft,
                     const struct runtime_shape *shape, bool held);
struct fit {
    struct need need;
    size_t kv[3]; /* bytes of all cells by their type (enum kv_type) */
    size_t left, total; /* memory, free and in all, of the device or else of the machine */
    size_t spare;       /* of `left`: what a runtime leaves free */
    bool own;           /* the device's own */
    bool fits;
    int longest;  /* the longest context that fits, at most the model's; 0: none */
    char how[96]; /* what would fit; "" if the shape does */
};
/* Says whether a runtime of this shape fits, and which would. Nothing is uploaded. False and *e
 * (ERR_USAGE): the shape has a number out of its range. */
bool fit_look(struct device dev, struct model *model, struct draft *draft,
              const struct runtime_shape *shape, struct fit *out, struct err *e);
/* Whether a runtime of this shape fits into the free memory; true if the device does not report its
 * memory. If the runtime does not fit and shape->shorten is set, shape->context becomes the longest
 * that fits; else *e says how much is needed, how much is free and what would fit. */
bool fit_shape(struct device dev, struct model *model, struct draft *draft,
               struct runtime_shape *shape, struct err *e);
