/* show_served.h - what `aerie show` prints of replies that a server computed. */
#ifndef AERIE_SHOW_SERVED_H
#define AERIE_SHOW_SERVED_H

#include "history/history.h"
#include "repl/text/sheet.h"

/* The line below a reply: how it ended, what the server counted and timed, and what came when here. */
void show_served(const struct turn_row *r, struct sheet *out);
/* The same as "server": {...}, of an open object; s NULL: null. */
void show_served_json(const struct served *s, struct buf *b);
/* When a step came, and the best tokens of its rows. Nothing of a step computed here. */
void show_served_step(const struct step_row *r, struct sheet *out);
void show_served_step_json(const struct step_row *r, struct buf *b);
/* How many facts of its launch a server reported, and some of them; nothing where none computed. */
void show_launch(const char *about, struct sheet *out);
/* Appends all of them as "name=value" lines, sorted as the server sent them. */
void show_launch_lines(const char *about, struct buf *out);

#endif
