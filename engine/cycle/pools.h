/* pools.h - the sizes of a runtime's pools: the one place that multiplies pages, cells, windows and
 * lanes.
 *
 * Every factor comes from outside: from config.json, from flags, from a log that is replayed. The
 * products are computed in 64 bits, and a pool with more than POOL_CELLS cells is refused, so that
 * a slot, which is an int, can name each cell. Any thread.
 */
#pragma once

#include "engine/cycle/runtime.h"

enum {
    MOST_CONTEXT = 1 << 30, /* tokens; as of max_position_embeddings */
    MOST_ROWS = 1 << 17,    /* of a pass */
    LEAST_PAGES = 4, /* the guard page, and three for a sequence that is extended and copied */
};

/* The most rows of a pass: what the shape asks for, and at least a draft tree of each lane. */
int pools_rows(const struct runtime_shape *shape);
/* The sizes of the pools for a runtime of this shape over a target and a draft (NULL: none): those
 * that the shape gives, and for the others room for the context, the cells of a running pass,
 * checkpoints and forks. The sliding pool is bounded by the context and by the full pool: each of
 * its pages belongs to a page of the full pool. False and *e (ERR_USAGE) if a number of the shape
 * is out of its range, if a pool would have more than POOL_CELLS cells, or if what the host keeps
 * for each cell needs more memory than the machine has. */
bool pools_shape(const struct runtime_shape *shape, const struct model *model,
                 const struct draft *draft, struct kv_shape *out, struct err *e);
