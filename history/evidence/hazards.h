/* hazards.h - which turns ran with a historical fault switched on or with the checker off.
 *
 * Both are settings ("bug.24617=on", "check=off"), which the log stores with each turn.
 */
#pragma once

#include "history/history.h"

/* Appends "BUG 24617" (state "on"), "BUG 26512 counted-twice", or for number NULL "CHECK OFF". */
void hazard_print(const char *number, const char *state, struct buf *out);

/* The same for the hazards among "name=value" lines (NULL: no lines), separated by `between`.
 * False: there is none. */
bool hazards_of_settings(const char *lines, const char *between, struct buf *out);

/* The same over all turns of a session's context, those before a fork included. With `turns` each
 * hazard names its turns: "CHECK OFF in turns 2-4, 7 (31 steps unchecked)". Nothing is appended if
 * there is none. False and *e (ERR_DB) on failure. */
bool hdb_hazards(struct hdb *d, const char *session, bool turns, const char *between,
                 struct buf *out, struct err *e);
