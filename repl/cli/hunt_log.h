/* hunt_log.h - the requests of `aerie probe` in the session log: a case is a session, each of its
 * requests a turn. Main thread only. */
#pragma once

#include "engine/remote/by_ids.h"
#include "history/history.h"

struct hunt_case;
struct hunt_log;

/* Opens the log for replies of the server. NULL and *e. */
struct hunt_log *hunt_log_open(const char *path, struct upkeep *u, struct err *e);
/* Stores what is left; false and *e: not everything could be stored. NULL is fine. */
bool hunt_log_close(struct hunt_log *l, struct err *e);
/* The session of the next requests: a line that says why they are sent. */
void hunt_log_begin(struct hunt_log *l, const char *title);
void hunt_log_ask(struct hunt_log *l, const char *note, const struct ids_ask *a);
void hunt_log_case(struct hunt_log *l, const struct hunt_case *c, const struct ids_ask *a);
const char *hunt_log_session(const struct hunt_log *l); /* id of the session of the last begin */
