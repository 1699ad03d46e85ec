/* hunt_state.h - the file of `aerie probe --state FILE`: a line of JSON for the server and one for
 * each finished case, from which a later call goes on. Main thread only. */
#pragma once

#include "repl/cli/hunt.h"

struct hunt_state;

/* Opens or makes the file. NULL and *e: it cannot be read or written, or it is of another server,
 * model or shape. The sums of the earlier calls are added to *p. */
struct hunt_state *hunt_state_open(const char *path, struct hunt *p, struct err *e);
int hunt_state_next(const struct hunt_state *s); /* the number of the first case to run */
/* The case is done; found: p->n_found before it. */
bool hunt_state_add(struct hunt_state *s, int number, const struct hunt *p, int found,
                     struct err *e);
void hunt_state_close(struct hunt_state *s); /* NULL is fine */
/* Reads the lines of a file into *p and *next. False and *e. Nothing else is touched. */
bool hunt_state_read(const char *text, size_t n, struct hunt *p, int *next, struct err *e);
