/* show_served.h - the part of `aerie show` for replies that a server computed. */
#pragma once

#include "history/history.h"
#include "repl/text/print.h"

/* The line below a reply: how it ended, the server's counts and times, and the times of arrival
 * here. */
void show_served(const struct turn_row *r, struct sheet *out);
/* The same as "server": {...}, of an open object; s NULL: null. */
void show_served_json(const struct served *s, struct buf *b);
/* When a step arrived, and the best tokens of its rows; nothing for a step computed here. */
void show_served_step(const struct step_row *r, const struct printer *to);
/* How many launch facts a server reported, and some of them; nothing if no server computed the
 * session. */
void show_launch(const char *about, struct sheet *out);
/* Appends all of them as "name=value" lines, sorted as the server sent them. */
void show_launch_lines(const char *about, struct buf *out);
