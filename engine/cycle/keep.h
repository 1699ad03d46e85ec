/* keep.h - a copy of a lane's state between two steps, so that the lane can go back to it and
 * compute the same bits again.
 *
 * The copy holds the bookkeeping of the cache (kv_state.h); the lane's page table, lengths,
 * guesses, draws and last step; the drafter's state after the last cell; the captured states of
 * that cell and of the lane's backlog; and the contents of the sliding-window pages that no other
 * sequence holds. All other cells that a later step reads do not change: cells of the full and
 * draft pools are final from the commit on, their pages are not freed while the lane lives, and
 * pages with another holder are never written (kvcache.h).
 *
 * Therefore a kept state is valid as long as every sequence that shared pages with the lane still
 * exists, no sequence has been added, and the lane has not gone back to an earlier state: the steps
 * since then may have left rejected tree nodes in cells that this state counts as final. Engine
 * thread. */
#pragma once

#include "engine/cache/kv_state.h"
#include "engine/cycle/lane.h"

struct kept {
    struct kv_state kv;
    struct lane lane; /* seq.col, seq.dcol and tap are owned; of tok only n is kept: tokens are only
                         appended */
    uint64_t slots;   /* of the runtime */
    float *root;      /* the drafter's state of the lane's slot; NULL: none. Owned */
    float *backlog;   /* (lane.behind) captured states, row by row; NULL: none. Owned */
    /* Pages whose contents lie in `cells`; owned. None of the full pool: a turn releases none */
    struct { int32_t *page; int n; } of[N_POOLS];
    uint8_t *cells;   /* pool by pool, every layer's keys, then its values; owned */
    size_t bytes;     /* of memory, all in all */
};

/* Keeps the present state of a lane between two steps. Reads from the device, and waits for that:
 * not under the pass's lock. The caller ends it with keep_free(). */
void keep_state(struct kept *kept, struct runtime *rt, const struct lane *lane);
/* Restores the lane, the pools and the cells. Takes the pass's lock. */
void keep_restore(const struct kept *kept, struct runtime *rt, struct lane *lane);
void keep_free(struct kept *kept); /* an empty one is fine */
