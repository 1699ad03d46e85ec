/* hazards.h - which turns ran with a historical fault switched on or with the checker off.
 *
 * Both stand among the settings ("bug.24617=on", "check=off") that the log keeps with each turn, so
 * one reading of such lines serves the running chat, a logged turn and a whole session.
 */
#ifndef AERIE_HAZARDS_H
#define AERIE_HAZARDS_H

#include "history/history.h"

/* Appends "BUG 24617", "BUG 26512 counted-twice", "CHECK OFF" for those among "name=value" lines
 * (NULL: none), `between` them. False: there is none. */
bool hazards_of_settings(const char *lines, const char *between, struct buf *out);

/* The same over all turns of a session's context, also those it was forked from. With `turns` each
 * one names them: "CHECK OFF in turns 2-4, 7 (31 steps unchecked)". Nothing is appended when there
 * is none. False and *e on failure. */
bool hdb_hazards(struct hdb *d, const char *session, bool turns, const char *between,
                 struct buf *out, struct err *e);

#endif
