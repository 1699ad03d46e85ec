/* open.h - opens backends: the local engine, or a server. Main thread only; tests/mock_aerie.c
 * replaces open.c. */
#pragma once

#include "engine/backend.h"
#include "engine/opts.h"

/* The backend that the options name; the caller ends it with backend_close(). NULL and *e. An
 * engine that may use a GPU has started its driver, or found none: isolate_after_loading(). */
struct backend *open_backend(const struct engine_opts *o, struct err *e);
/* Opens an idle backend again: an engine with another draft or model (engine_reopen()), a server
 * with another of its models. now: the options as they are, o: those wanted. *b is another backend
 * then, or the same one. On failure *e; after REOPEN_FAILED *b is a backend without anything, which
 * refuses each request with *e, until backend_close(). */
enum reopened reopen_backend(struct backend **b, const struct engine_opts *now,
                             const struct engine_opts *o, struct err *e);
/* engine_devices(): each kind of device, and whether it can be used here. */
void list_devices(void (*tell)(void *arg, bool ok, const char *line), void *arg);
/* Describes the server that the options name and what it reports; false and *e: it cannot be
 * reached. */
bool look_at_server(const struct engine_opts *o, void (*tell)(void *arg, bool ok, const char *line),
                    void *arg, struct err *e);

/* remote_kv_events(): what this build reads the KV events of servers with; *built false: why it
 * cannot. */
const char *kv_events_about(bool *built);
