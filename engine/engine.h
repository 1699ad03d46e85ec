/* engine.h - the local engine: a backend whose model runs in this process.
 *
 * engine_open() loads the models and starts one thread that owns the device, the pools and the
 * sessions. The backend that it returns has every view of backend.h.
 */
#pragma once

#include "engine/backend.h"
#include "engine/opts.h"

/* Loads and starts; the caller ends it with backend_close(). On failure NULL and *e (ERR_MODEL). */
struct backend *engine_open(const struct engine_opts *o, struct err *e);

/* Opens an idle engine again, in place: with another draft over the target that is loaded, or, if
 * the model is another, with that one on the same device. now: the options of the engine as it is,
 * with the present settings and faults; o: the same but for model and draft. Settings, breakpoints
 * and queues stay. After REOPEN_FAILED only backend_close() is allowed. The caller's thread. */
enum reopened engine_reopen(struct backend *b, const struct engine_opts *now,
                            const struct engine_opts *o, struct err *e);

/* Reports each kind of device: whether this build can use it here, and its name or why not. */
void engine_devices(void (*tell)(void *arg, bool ok, const char *line), void *arg);
