/* pool.h - the allocator of one pool: page ids with reference counts and a free list.
 *
 * The ids stand for pages of KV cells, whose contents kvcache.c manages. Engine thread, under its
 * lock. Invariants, checked by pool_check():
 *   (I1) free + owned == total - reserved
 *   (I2) the free list is a set of valid ids with refcount 0; page 0 is never on it
 * A page is free if and only if its refcount is 0. The free list is a stack whose first pages are
 * 1, 2, 3, ...: the same sequence of operations yields the same pages, which replay relies on.
 */
#pragma once

#include "engine/event.h"

enum { GUARD_PAGES = 1 /* page 0 */ };

/* The page events of all pools since the last committed step, which will carry them. */
struct page_log {
    bool keep;                /* whether `since` is filled: its reader must empty it */
    struct page_event *since; /* (n_since), allocated */
    int n_since, cap_since;
};

void page_log_add(struct page_log *log, const struct page_event *ev); /* if they are kept */
void page_log_free(struct page_log *log);

struct pool {
    enum pool_id id;
    uint32_t epoch;   /* changes whenever the memory behind the pool does */
    int total;        /* ids 0 .. total - 1, the guard page included */
    int n_free, n_owned, n_refs; /* n_owned: pages with references; n_refs: the sum of references */
    int32_t *free;    /* (n_free) stack; the top is the last element */
    uint16_t *ref;    /* (total) */
    struct page_log *log;
};
enum { PAGE_BYTES = sizeof(int32_t) + sizeof(uint16_t) }; /* of `free` and `ref`, a page */

void pool_init(struct pool *p, enum pool_id id, int total, struct page_log *log);
void pool_free(struct pool *p);
/* Frees every page, restores the initial order of the free list and begins a new epoch. */
void pool_reset(struct pool *p);
/* For the log: whose column an operation is about. */
struct page_use {
    enum page_holder holder;
    int column;
};
/* Takes a free page, which then has one reference; 0: no page is free. */
int32_t pool_take(struct pool *p, struct page_use use);
void pool_share(struct pool *p, int32_t page, struct page_use use);
/* Drops one reference; why is PAGE_DROP or PAGE_WINDOW. True: the page is free now. */
bool pool_drop(struct pool *p, int32_t page, struct page_use use, enum page_op why);
static inline int pool_used(const struct pool *p) { return p->total - GUARD_PAGES - p->n_free; }
bool pool_check(const struct pool *p, struct err *e); /* *e names the violated rule */
