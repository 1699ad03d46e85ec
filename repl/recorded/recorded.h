/* recorded.h - a saved session as a backend: every view at every step, without an engine or a
 * model.
 *
 * The session is read once, from a log or a pack, with the sessions that it was forked from. The
 * recording holds one entry for each step, the nodes of the trees as the log packs them, the page
 * events, the ids, and a whole page table every few hundred steps: about 400 bytes a step and 24
 * bytes a drafted node. The log is not read again.
 *
 * The backend has a present: a step of the recording, or the beginning of a turn. All views without
 * an address show the present, at first the session's end; recorded_seek() and the debugger's
 * requests move it. Turns that were undone later are part of the recording.
 *
 * Events: after the opening, backend_next() returns the events of the whole session once, as a live
 * engine posted them, without progress and with each turn's text in one piece. Later it returns
 * only EV_PAUSE, when the debugger's requests have moved the present. backend_submit() refuses
 * every request and says how the session can be continued. Main thread only. */
#pragma once

#include "engine/backend.h"
#include "history/history.h"

/* Reads a session (its full id). name: the user's name for it, for messages; file: it is a pack.
 * NULL and *e (ERR_DB). d is not used after the call. */
struct backend *recorded_open(struct hdb *d, const char *session, const char *name, bool file,
                              struct err *e);
/* The recording of a backend that recorded_open() has made. */
struct recorded;
struct recorded *recorded_of(struct backend *b) __attribute__((returns_nonnull));
/* Makes the state after step T.S the present; (T, 0): the beginning of turn T; (0, 0): the end.
 * False and *e (ERR_NEGATIVE), nothing changed: the recording has no such step. No event is
 * posted. */
bool recorded_seek(struct backend *b, int turn, int step, struct err *e);
/* Begins the events of the session anew. */
void recorded_rewind(struct backend *b);
/* Calls fn for each step up to T.S ((0, 0): all), oldest first, until it returns false. */
void recorded_each(struct backend *b, int turn, int step,
                   bool (*fn)(const struct step_view *v, void *arg), void *arg);
/* Appends the tokens that step T.S ran on: those before it, the pending one included, or the whole
 * prompt. False: there is no such step, or its tokens are not known. */
bool recorded_context(struct backend *b, int turn, int step, struct ids *out, int *n_prompt);
