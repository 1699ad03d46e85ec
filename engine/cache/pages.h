/* pages.h - one pool of pages: numbers handed out, shared and taken back.
 *
 * What is stored under a number is kvcache.c's business. Engine thread, under its lock.
 * Always true, and checked by pages_check():
 *   (I1) free + owned == total - reserved
 *   (I2) the free list is a set of valid ids with refcount 0; page 0 is never on it
 * A page is free exactly when its refcount is 0. The free list is a stack that first hands out
 * 1, 2, 3, ...: the same operations give the same pages again, which replay relies on.
 */
#ifndef AERIE_PAGES_H
#define AERIE_PAGES_H

#include "engine/event.h"

enum { GUARD_PAGES = 1 /* page 0 */, PAGE_LOG = 8192 };

/* The latest page events of all pools, in a ring; seq counts all that ever happened. */
struct page_log {
    struct page_event ev[PAGE_LOG];
    uint64_t seq;
};

struct pages {
    enum pool_id id;
    uint32_t epoch;   /* changes whenever the memory behind the pool does */
    int total;        /* ids 0 .. total-1, the guard included */
    int n_free, n_owned, n_refs; /* n_owned: pages with references; n_refs: sum of them */
    int32_t *free;    /* (n_free) stack, the next to hand out last */
    uint16_t *ref;    /* (total) */
    struct page_log *log;
};

void pages_init(struct pages *p, enum pool_id id, int total, struct page_log *log);
void pages_free(struct pages *p);
void pages_reset(struct pages *p); /* all free, in the first order; a new epoch */
/* A page with one reference, or 0 when there is none. column: for the log. */
int32_t pages_take(struct pages *p, int column);
void pages_share(struct pages *p, int32_t page, int column);
/* Drops one reference; why is PAGE_DROP or PAGE_WINDOW. True when the page became free. */
bool pages_drop(struct pages *p, int32_t page, int column, enum page_op why);
static inline int pages_used(const struct pages *p) { return p->total - GUARD_PAGES - p->n_free; }
bool pages_check(const struct pages *p, struct err *e);

#endif
