/* page_pair.h - a server's metrics before a request and after its reply, for the log.
 *
 * The page before the request is the newest that was read: after the last reply, while idle, or
 * when the server was opened. A request does not wait for a new page. Threads: as http.h.
 */
#pragma once

#include "engine/remote/gauges.h"
#include "engine/served.h"

struct page_pair {
    struct http_call call;
    struct buf page, before;
    uint64_t ns, ns_before; /* clock_ns() when they came; 0: never */
};

void page_pair_open(struct page_pair *pair, struct server *server); /* takes server->page */
void page_pair_begin(struct page_pair *pair, const struct gauges *gauges);
/* Reads the page after a reply that was sent at ns_sent, for at most ms milliseconds, and writes
 * both into *out. */
void page_pair_end(struct page_pair *pair, struct http *http, const char *model, uint64_t ns_sent,
                   int ms, struct served *out);
void page_pair_close(struct page_pair *pair);

/* The metrics of two pages, matched by name and labels, at most SERVED_METRICS: scalars of an
 * engine (with a prefix such as "vllm:"); of histograms only counts and sums; none of another
 * model. Also for tests. */
enum { SERVED_METRICS = 512 };
void page_pair_join(const struct buf *before, const struct buf *after, const char *model,
                    struct served *out);
