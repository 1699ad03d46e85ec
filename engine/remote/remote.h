/* remote.h - a server on the network as a backend: chat, log, and the views of everything that it
 * reports.
 *
 * Every view that the server does not report is absent, with the reason. Prompt and reply ids are
 * logged only as the server sent them. Cancelling closes the connection, which ends the request on
 * all known servers. A request is sent again only if the server cannot have seen it, or said 429 or
 * 503 before any work; at most RETRIES times, and never after the first token.
 */
#pragma once

#include "engine/backend.h"
#include "engine/opts.h"

/* Finds out the kind of the server at opts->server and starts. opts->model: the server's name of
 * the model, or NULL: the first that it lists. Only these, opts->settings, opts->log and
 * opts->attended are used. NULL and *e (ERR_MODEL, ERR_USAGE). */
struct backend *remote_open(const struct engine_opts *opts, struct err *e);
/* `aerie doctor --remote`: everything the server reports, one line each: ok, text. False and *e: it
 * cannot be reached. */
bool remote_doctor(const struct engine_opts *opts,
                   void (*tell)(void *arg, bool ok, const char *line), void *arg, struct err *e);
/* The library with which this build reads KV events; *built false: why it cannot. Any thread. */
const char *remote_kv_events(bool *built);
