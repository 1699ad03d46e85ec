/* gauges.h - how full a server's KV cache is, from its metrics: read again and again, beside the
 * conversation.
 *
 * What the numbers are depends on the server, and `about` says it: SGLang counts tokens of its full and
 * its window pool, exactly; vLLM gives one share of all blocks; llama-server the tokens of its slots.
 * Threads: as http.h, but gauges_copy() may be called from any thread.
 */
#ifndef AERIE_GAUGES_H
#define AERIE_GAUGES_H

#include <pthread.h>

#include "engine/backend.h"
#include "engine/remote/server.h"

enum { GAUGE_MS = 1000 };

/* The metrics that were read last. */
struct gauge_view {
    struct pool_view pool[N_POOLS];
    const char *about;  /* constant; where the numbers come from and what they leave out */
    double running, waiting; /* requests, -1: not reported */
    uint64_t hits, queries;  /* of the prefix cache, in tokens; queries 0: not reported */
    uint64_t ns;        /* clock_ns() when they came; 0: never */
};

struct gauges {
    struct http_call call;
    bool running;
    uint64_t ns_next;
    pthread_mutex_t mu;
    struct gauge_view view; /* under mu */
};

void gauges_open(struct gauges *g);
void gauges_close(struct gauges *g, struct http *h);
/* Takes an answer that has come, and asks again if it is time. */
void gauges_look(struct gauges *g, struct http *h, const struct server *s);
void gauges_copy(struct gauges *g, struct gauge_view *out);

/* The view from a page of metrics or slots; for tests. False: it reports no pools. */
bool gauges_read(enum server_kind kind, const char *page, size_t n, struct gauge_view *out);

#endif
