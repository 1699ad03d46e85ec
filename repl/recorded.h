/* recorded.h - a saved session as a backend: every view at every step, without an engine or a model.
 *
 * The session is read once, from a log or a pack, with those that it was forked from. Held are: one
 * entry a step, the nodes of the trees as the log packs them, the page events, the ids, and a whole
 * page table every few hundred steps; together about 400 bytes a step and 24 bytes a drafted node. The
 * log is not read again.
 *
 * The backend has a present: a step of the recording, or where a turn begins. All views without an
 * address show the present; it is the session's end first, and recorded_seek() and the debugger's
 * requests move it. Turns that were undone later are part of the recording.
 *
 * Events: once, from the opening on, backend_next() gives the events of the whole session as a live
 * engine posted them, but for progress and pieces of text: a turn's text comes in one piece. Later only
 * EV_PAUSE comes, where the debugger's requests have moved the present. backend_submit() refuses every
 * request and says how to go on with the session. Main thread only. */
#ifndef AERIE_RECORDED_H
#define AERIE_RECORDED_H

#include "engine/backend.h"
#include "history/history.h"

/* Reads a session (its full id). name: what a person types for it, for messages; file: it is a pack.
 * NULL and *e (ERR_DB). d is not used after the call. */
struct backend *recorded_open(struct hdb *d, const char *session, const char *name, bool file,
                              struct err *e);
/* The recording of a backend that recorded_open() has made. */
struct recorded;
struct recorded *recorded_of(struct backend *b) __attribute__((returns_nonnull));
/* The state after step T.S becomes the present; (T, 0): where turn T begins; (0, 0): the end. False and
 * *e (ERR_NEGATIVE), nothing changed: the recording has no such step. No event is posted. */
bool recorded_seek(struct backend *b, int turn, int step, struct err *e);
/* Drops the session's events that have not been taken: a face that shows no past reads none. */
void recorded_skip(struct backend *b);

#endif
