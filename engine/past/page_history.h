/* page_history.h - computes page tables of the past from page events.
 *
 * struct page_history is the state of the pools after a sequence of page events
 * (engine/cache/page_event.h). Packed steps of one session are applied in order; the first of them
 * must begin with PAGE_RESET. The result is the state that pages->table showed after the last of
 * them.
 *
 * struct page_tape, the ring of a live session, keeps packed steps so that any of them can be found
 * quickly: steps are in groups, and the first step of a group has the whole state beside the
 * change. Cost of a step, with pages of 16 tokens: 50 bytes (trees of 6) to 220 (of 64) and the
 * whole state every TAPE_STEPS steps, and under 2 microseconds; with pages of 1: 350 to 2,600 bytes
 * and up to 14 microseconds (tests/bench/bench_time.c).
 *
 * No locks, no engine state: the caller's thread, or the caller's lock.
 */
#pragma once

#include "engine/backend.h"

struct page_history {
    int page_size, window, capacity; /* 0: not known yet */
    struct context_lengths lengths;  /* after the last step applied */
    struct page_fold {
        int total;      /* pages; 0: no such pool */
        uint16_t *refs; /* (total) */
        uint16_t *idle; /* (total) of them, those of idle sessions */
        int32_t *page;  /* (n) of the session's columns, 0: none; the last one is not 0 */
        int n, cap;
        int used; /* pages with references */
    } pool[N_POOLS];
};

void page_history_free(struct page_history *h); /* zeroes it */
/* Applies packed steps, joined. False and *e (ERR_DB): they are damaged, or the first events of a
 * new history do not begin with PAGE_RESET; *h is to be freed then. */
bool page_history_apply(struct page_history *h, const void *packed, size_t n, struct err *e);
/* Appends the whole state as one packed step, for the beginning of a slice of a session. */
void page_history_pack(const struct page_history *h, struct buf *out);
/* The page table as pages->table showed it, without session, turn, step and violation.
 * page_table_free() frees it. */
void page_history_table(const struct page_history *h, struct page_table *t);
/* A position as pages->position showed it. token: at that position. False and *e (ERR_USAGE): there
 * is none. */
bool page_history_position(const struct page_history *h, int position, int32_t token,
                           struct pos_view *v, struct err *e);

/* Collects the changes of one page, from the newest step back. A walk is over where the pool was
 * emptied, unless the page was held then (a fork), or where `out` is full. */
struct page_walk {
    enum pool_id pool;
    int page;
    struct page_change *out; /* newest first, until page_walk_end() */
    int n, max;
    bool over;
};
/* Adds the events of one step. */
void page_walk_add(struct page_walk *w, int turn, int step, const struct page_event *ev, int n);
/* The same of packed events; events that do not unpack add nothing. */
void page_walk_packed(struct page_walk *w, int turn, int step, const void *packed, size_t n);
void page_walk_end(struct page_walk *w); /* oldest first */

enum { TAPE_STEPS = 256 /* of a group */ };

struct page_tape {
    struct tape_group {
        struct buf bytes; /* packed steps, joined */
        size_t whole;     /* bytes of the first, which are the whole state */
        struct buf first; /* the change of the first step */
        int n;
        struct {
            int turn, step;
            size_t end; /* in bytes */
        } at[TAPE_STEPS];
    } **group; /* (n) oldest first */
    int n;
    size_t used, budget; /* bytes; budget 0: no limit. The oldest groups are dropped when more is
                            used */
};

void tape_close(struct page_tape *t); /* zeroes it; {0} is an empty one */
void tape_clear(struct page_tape *t); /* keeps the budget */
void tape_budget(struct page_tape *t, size_t bytes);
/* Whether the next step has to be added as the whole state. */
bool tape_wants_whole(const struct page_tape *t);
/* Adds the newest step; (turn, step) must be greater than those before. change: the packed change
 * if `packed` is the whole state. */
void tape_add(struct page_tape *t, int turn, int step, const struct buf *packed,
              const struct buf *change);
/* Drops the steps after (turn, step). The next step must begin with PAGE_RESET. */
void tape_cut(struct page_tape *t, int turn, int step);
/* Appends the packed steps that yield the state after a step, for page_history_apply(). False: the
 * step is not held. */
bool tape_copy(const struct page_tape *t, int turn, int step, struct buf *out);
/* Walks back through the group that holds the latest step not after *turn.*step, from that step on;
 * then *turn.*step is just before the group. False: there is no such group. */
bool tape_walk(const struct page_tape *t, int *turn, int *step, struct page_walk *w);
