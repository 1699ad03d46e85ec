/* kv_state.h - a copy of all bookkeeping of the cache: pools, free lists in their order, map,
 * marks, the log of page events. It contains neither the contents of cells nor sequences.
 *
 * Saving and loading copy the arrays: O(slots) memory and time, about 30 bytes a slot. Engine
 * thread, under its lock. */
#pragma once

#include "engine/cache/kvcache.h"

struct kv_state {
    struct pool pool[N_POOLS]; /* their arrays point into mem */
    int32_t *swa_of, *full_of;
    struct mark *mark[2];
    int held[N_POOLS];
    struct page_event *since; /* (n_since) owned: of the page log */
    int n_since;
    void *mem; /* owned */
    size_t bytes;
};

/* No page copy may be queued. kv_state_free() frees *s. */
void kv_state_save(const struct kv *kv, struct kv_state *s);
/* Restores the cache to its state when *s was saved, except its stamps, which stay unique. The
 * caller restores the columns of every sequence and marks them as not clean. */
void kv_state_load(struct kv *kv, const struct kv_state *s);
void kv_state_free(struct kv_state *s);
