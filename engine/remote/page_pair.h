/* page_pair.h - a server's metrics before a request and after its reply, for the log.
 *
 * The page before is the newest that was read: after the reply before it, while nothing ran, or when
 * the server was opened; a request does not wait for one. Threads: as http.h.
 */
#ifndef AERIE_PAGE_PAIR_H
#define AERIE_PAGE_PAIR_H

#include "engine/remote/gauges.h"
#include "engine/served.h"

struct page_pair {
    struct http_call call;
    struct buf page, before;
    uint64_t ns, ns_before; /* clock_ns() when they came; 0: never */
};

void page_pair_open(struct page_pair *p, struct server *s); /* takes s->page */
void page_pair_begin(struct page_pair *p, const struct gauges *g);
/* Reads the page after a reply that was sent at ns_sent, for at most ms milliseconds, and writes both
 * into *out. */
void page_pair_end(struct page_pair *p, struct http *h, const char *model, uint64_t ns_sent, int ms,
                   struct served *out);
void page_pair_close(struct page_pair *p);

/* The metrics of two pages: scalars of an engine (with a prefix such as "vllm:"), no parts of
 * histograms but their counts and sums, none of another model; joined by name and labels, at most
 * SERVED_METRICS. For tests, too. */
enum { SERVED_METRICS = 512 };
void page_pair_join(const struct buf *before, const struct buf *after, const char *model,
                    struct served *out);

#endif
