/* gauges.h - a server's metrics, read again and again beside the conversation, and kept for an hour.
 *
 * What the numbers are depends on the server, and `about` says it: SGLang and aerie count tokens of each
 * pool, exactly; vLLM gives one share of all blocks; llama-server the tokens of its slots. Names, not
 * the kind of server, decide how a page of metrics is read.
 * Threads: as http.h, but gauges_pools(), gauges_view() and gauges_samples() may be called from any
 * thread.
 */
#ifndef AERIE_GAUGES_H
#define AERIE_GAUGES_H

#include <pthread.h>

#include "engine/backend.h"
#include "engine/remote/server.h"

/* What one reading says. Counters are -1 where they are not reported. */
struct gauge_page {
    struct pool_view pool[N_POOLS]; /* those that exist are reported in tokens or blocks */
    float v[N_GAUGES];              /* NAN: not reported */
    double hits, queries;           /* of the prefix cache, in tokens, since the server's start */
    double tokens;                  /* generated */
    double drafts, accepted;        /* steps that verified a draft; draft tokens accepted in them */
    const char *unit, *about;       /* as in struct gauges_view; about NULL: no pool is reported */
};

struct gauges {
    struct http_call call;
    bool asking;
    bool unreachable;  /* the latest reading failed because no answer came */
    int path;          /* which of the pages is asked for */
    uint64_t ns_begin; /* when the first page of this reading was asked for; 0: never */
    struct gauge_page now, before;
    struct buf metrics;  /* the page of metrics that came last, as it was received */
    uint64_t ns_metrics; /* clock_ns() then; 0: never */

    pthread_mutex_t mu; /* guards the rest */
    struct gauge_page page; /* of the latest reading that succeeded */
    struct gauges_view view;
    struct gauge_sample *sample; /* (GAUGES_KEPT) a ring, allocated with the first reading */
    uint64_t n_sample;           /* there ever were */
};

void gauges_open(struct gauges *g);
void gauges_close(struct gauges *g, struct http *h);
/* Takes what has come, and asks again every `ms` milliseconds (0: never), but not before the answers to
 * the reading before. Returns the milliseconds until it wants to be called again, whatever comes. */
int gauges_look(struct gauges *g, struct http *h, const struct server *s, int ms);
void gauges_pools(struct gauges *g, struct pool_view pool[N_POOLS]);
void gauges_view(struct gauges *g, struct gauges_view *out);
int gauges_samples(struct gauges *g, struct gauge_sample *out, int max);

/* ---- for tests ---- */

void gauge_page_init(struct gauge_page *p); /* nothing is reported */
/* Adds what a page says: metrics, or the slots of llama-server. False: it reports nothing of ours. */
bool gauges_read(enum server_kind kind, const char *page, size_t n, struct gauge_page *p);
/* Of a reading that was asked for at `ns`, and the one before it at ns_before (0: there was none). */
void gauges_add(struct gauges *g, const struct gauge_page *now, uint64_t ns, const struct gauge_page *before,
                uint64_t ns_before);

#endif
