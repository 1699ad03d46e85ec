/* check_kv.h - the part of the checker (check.h) that needs no plan: the pools, and the marks of
 * the cells of sequences. check_kv.c has check_sweep() of check.h, too. Engine thread.
 */
#pragma once

#include "engine/cache/kvcache.h"

/* A place with more that is known of it. */
static inline struct violation differs(struct violation at, int64_t found, int64_t expected)
{
    at.compared = true;
    at.found = found;
    at.expected = expected;
    return at;
}

static inline struct violation with_page(struct violation at, int page)
{
    at.page = page;
    return at;
}

static inline const struct mark *mark_at(const struct kv *kv, enum pool_id pool, int32_t page,
                                         int cell)
{
    return &kv->mark[pool][page * kv->page_size + cell % kv->page_size];
}

/* I1 to I3 by running sums, and I14 of the capacity of the draft's pool. */
bool check_pools(const struct kv *kv, struct err *e);
/* The last committed cell is written in both pools, and its chain is the committed one (I5, I10,
 * I15). at: the request or sequence. */
bool check_tail(const struct kv *kv, const struct seq *s, struct violation at, struct err *e);
