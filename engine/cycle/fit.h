/* fit.h - what a rig takes of its device's memory, and the longest context that fits.
 *
 * Nothing is worked out twice: the rig is opened on a device that only counts. Any thread.
 */
#ifndef AERIE_FIT_H
#define AERIE_FIT_H

#include "engine/cycle/cycle.h"

struct need {
    size_t weights, cells, work; /* bytes: in the device's form; KV cells; all other buffers */
};

struct need fit_need(struct device dev, struct model *m, struct draft *draft,
                     const struct rig_shape *shape);
/* Whether it fits into what is free; true where the device does not say. If not and shape->shorten
 * is set, the context gives way; else *e says what is needed, what is free and what would fit. */
bool fit_shape(struct device dev, struct model *m, struct draft *draft, struct rig_shape *shape,
               struct err *e);

#endif
