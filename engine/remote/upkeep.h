/* upkeep.h - requests to a server besides conversations: to empty its prefix cache, and for its
 * draft counts.
 *
 * It has its own connections and waits for the answer to each request. One thread.
 */
#pragma once

#include "engine/opts.h"

struct upkeep;

/* model: as in engine_opts. NULL and *e: the server cannot be reached. */
struct upkeep *upkeep_open(const struct server_opts *opts, const char *model, struct err *e);
void upkeep_close(struct upkeep *upkeep); /* NULL is fine */

/* Empties the prefix cache. how: a line that says how this was done, or why it is not possible and
 * which flag of the server would change that. */
bool upkeep_reset_cache(struct upkeep *upkeep, char how[200]);
/* The path of the one request that does so; NULL: there is none, or it takes several. Constant. */
const char *upkeep_reset_path(const struct upkeep *upkeep);

/* Drafts since the server started, of all its clients, from its metrics; -1: not reported. */
enum { METERED_DEPTHS = 16 };
struct draft_totals {
    int64_t drafts, drafted, accepted; /* verified drafts; draft tokens; those of them accepted */
    int depths;                        /* 0: counts by depth are not reported */
    int64_t at[METERED_DEPTHS];        /* (depths) accepted tokens at depth 1, 2, ... */
    double length; /* tokens of a verifying step, where that is all that is reported (SGLang); 0:
                      not reported */
};
void upkeep_drafts(struct upkeep *upkeep, struct draft_totals *out);
/* The same from n bytes of a page of metrics. False: the page cannot be read; nothing is known. */
bool drafts_read(const char *page, size_t n, struct draft_totals *out);

/* Sends a message as a chat of its own and waits for the end of its reply, greedy and of at most
 * `most` tokens, which is not kept: for what the server counts meanwhile. False and *e. */
bool upkeep_chat(struct upkeep *upkeep, const char *message, int most, const struct stop *stop,
                 struct err *e);

/* "vLLM 0.26.0", and the name of the model that it serves. Constant. */
const char *upkeep_server(const struct upkeep *upkeep);
const char *upkeep_model(const struct upkeep *upkeep);
const char *upkeep_url(const struct upkeep *upkeep); /* without user, password and query */
int upkeep_context(const struct upkeep *upkeep); /* most tokens of a request, 0: not reported */
/* Whether a reply of the server promises the same bits whatever else it computes: aerie. */
bool upkeep_exact(const struct upkeep *upkeep);
/* A fact that the server reported of its launch; a JSON string without its quotes. False: none. */
bool upkeep_fact(const struct upkeep *upkeep, const char *name, char *out, size_t room);
/* The first fact of these names (ended by NULL) that is a number; 0: none is. */
int upkeep_number(const struct upkeep *upkeep, const char *const *names);
