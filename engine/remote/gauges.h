/* gauges.h - a server's metrics, read periodically during the conversation, and kept for an hour.
 *
 * The meaning of the numbers depends on the server; `about` says it. SGLang and aerie count the
 * tokens of each pool exactly; vLLM reports one share of all blocks; llama-server the tokens of its
 * slots. The names of metrics, not the kind of server, decide how a page is read. Threads: as
 * http.h, but gauges_pools(), gauges_view() and gauges_samples() may be called from any thread.
 */
#pragma once

#include <pthread.h>

#include "engine/backend.h"
#include "engine/remote/server.h"

/* The numbers of one reading. A counter of -1 is not reported. */
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
    int path;          /* index of the page that is being requested */
    uint64_t ns_begin; /* when the first page of this reading was requested; 0: never */
    struct gauge_page now, before;
    struct buf metrics;  /* the page of metrics that came last, as it was received */
    uint64_t ns_metrics; /* clock_ns() then; 0: never */

    pthread_mutex_t mu; /* guards the rest */
    struct gauge_page page; /* of the latest reading that succeeded */
    struct gauges_view view;
    struct gauge_sample *sample; /* (GAUGES_KEPT) a ring, allocated with the first reading */
    uint64_t n_sample;           /* number of samples ever added */
};

void gauges_open(struct gauges *gauges);
void gauges_close(struct gauges *gauges, struct http *http);
/* Takes the pages that the server's probe read as the first reading, so that an open server has
 * been read at least once. `ms` is the time between readings (0: there will be no more). */
void gauges_first(struct gauges *gauges, const struct server *server, int ms);
/* Handles answers that have arrived, and begins a reading every `ms` milliseconds (0: never), but
 * not before the last one is answered. Returns the milliseconds after which it must be called again
 * even if nothing arrives. */
int gauges_look(struct gauges *gauges, struct http *http, const struct server *server, int ms);
void gauges_pools(struct gauges *gauges, struct pool_view pool[N_POOLS]);
void gauges_view(struct gauges *gauges, struct gauges_view *out);
int gauges_samples(struct gauges *gauges, struct gauge_sample *out, int max);

/* ---- for tests ---- */

void gauge_page_init(struct gauge_page *page); /* nothing is reported */
/* Adds the numbers of a page: metrics, or the slots of llama-server. False: the page has none that
 * are used here. */
bool gauges_read(enum server_kind kind, const char *text, size_t n, struct gauge_page *page);
/* The sample of a reading requested at `ns`; the reading before it was requested at ns_before (0:
 * there was none). */
void gauges_add(struct gauges *gauges, const struct gauge_page *now, uint64_t ns,
                const struct gauge_page *before, uint64_t ns_before);
