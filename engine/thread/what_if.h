/* what_if.h - counterfactuals: the next step of a paused turn is run twice, as it is and with a
 * change, and both are dropped.
 *
 * The state before the step is kept (engine/cycle/keep.h) and restored after each run, so pools,
 * the order of free pages and the session are exactly as before. Another page size or window cannot
 * run on these pools, and a head has no guesses for more children than it was asked for before: in
 * these cases a second runtime over the same weights is opened, computes the context, runs the step
 * and is closed. Nothing of this is logged. */
#pragma once

#include "engine/backend.h"

struct engine;
struct backend;

/* The engine's thread, while the turn is paused between two steps; answers with EV_WHAT_IF.
 * changes: "NAME=VALUE" words. */
void engine_what_if(struct engine *engine, const char *changes);
/* The caller's thread: debug_ops.what_if. */
bool local_what_if(struct backend *b, const char *changes, struct err *e);
