/* upkeep.h - what is asked of a server beside the conversations with it: to empty its prefix cache, and
 * how much it has drafted so far.
 *
 * Connections of its own; whole requests, which wait for their answers. One thread.
 */
#ifndef AERIE_UPKEEP_H
#define AERIE_UPKEEP_H

#include "engine/opts.h"

struct upkeep;

/* model: as of engine_opts. NULL and *e: the server cannot be asked. */
struct upkeep *upkeep_open(const struct server_opts *o, const char *model, struct err *e);
void upkeep_close(struct upkeep *u); /* NULL is fine */

/* Empties the prefix cache. How, or why it cannot be emptied, with the flag of the server that would
 * change that, as one line in *how. */
bool upkeep_reset_cache(struct upkeep *u, char how[200]);

/* Drafts since the server started, of all its clients, from its metrics; -1: not reported. */
struct draft_totals {
    int64_t drafts, drafted, accepted; /* verified drafts; draft tokens; those of them accepted */
};
void upkeep_drafts(struct upkeep *u, struct draft_totals *out);

/* "vLLM 0.26.0", and the name of the model that it serves. Constant. */
const char *upkeep_server(const struct upkeep *u);
const char *upkeep_model(const struct upkeep *u);

#endif
