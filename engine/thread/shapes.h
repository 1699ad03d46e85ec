/* shapes.h - the shape of each step's draft tree in a turn: as the settings say, chosen from
 * measurements (draft.shape = auto), or as the log of a replayed turn says.
 *
 * A turn with draft.shape = auto posts OP_SHAPE before its first cycle and before each step whose
 * shape differs from the one before. The shapes of the turn are kept, so that a step that runs
 * again after going back has the shape it had. With shapes from a log nothing is measured. The
 * engine's thread.
 */
#pragma once

#include "engine/backend.h"
#include "engine/draft/auto_shape.h"

struct engine;

struct shapes {
    struct auto_shape chooser; /* keeps its measurements from turn to turn */
    struct shape_change *at;   /* (n) of the turn, by step; owned */
    int n;
    int decided; /* the newest step that has a shape; 0: none */
    bool logged; /* the shapes come from the request (a replay) */
};

/* The turn begins with the shapes that its request names. */
void shapes_turn_begins(struct engine *engine, const struct request *rq);
/* At the turn's end: runs the drafter over the cells that it is behind, and ends a probe of the
 * chooser. */
void shapes_turn_ended(struct engine *engine);
/* The shape of the next step, in *room; posts OP_SHAPE if it differs from the one before. NULL:
 * plain decoding without a drafter. */
const struct tree_shape *shapes_next(struct engine *engine, struct tree_shape *room);
/* The shape that the next step would have with other settings; posts nothing. */
const struct tree_shape *shapes_peek(const struct engine *engine, const struct settings *set,
                                     struct tree_shape *room);
/* Call it after a step, with the nanoseconds of wall time that it took. */
void shapes_measure(struct engine *engine, uint64_t ns);
/* Copies the chooser's measurements for views; under the lock of engine_shared. */
void shapes_view(const struct engine *engine, struct auto_view *v);
