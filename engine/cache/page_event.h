/* page_event.h - page events: the changes of pages between two steps, and their packed form.
 *
 * A committed step carries the page events since the step before it, and the lengths after it. The
 * events of a session's steps, applied in order to empty pools, yield the page table of the session
 * after each step, and the references of all pages (engine/past/page_history.h). PAGE_RESET events
 * say where the pools are empty: at the beginning of a session, where it is resumed, and where a
 * fork begins, whose first step then also lists all pages that are held (PAGE_HOLD).
 */
#pragma once

#include "kernels/base.h"

enum pool_id { POOL_FULL, POOL_SWA, POOL_DRAFT, N_POOLS };
const char *pool_name(enum pool_id p); /* "full", "swa", "draft" */
const char *pool_cells(enum pool_id p); /* what memory for the pool's cells is called */

/* The memory that a runtime takes where it computes, in bytes. */
struct need {
    size_t weights, draft;  /* of the target and of the draft, in the device's layout */
    size_t cells[N_POOLS];  /* of each pool */
    size_t work;            /* all other buffers */
};
static inline size_t need_sum(const struct need *n)
{
    size_t all = n->weights + n->draft + n->work;
    for (int p = 0; p < N_POOLS; p++)
        all += n->cells[p];
    return all;
}

/* One page of one pool changed hands. */
enum page_op {
    PAGE_TAKE,   /* a free page got its first holder */
    PAGE_SHARE,  /* one more holder */
    PAGE_DROP,   /* one holder less; others are left */
    PAGE_FREE,   /* the last holder gave it back */
    PAGE_WINDOW, /* the same for a page that left the window of its pool's layers; refs: holders
                    left */
    PAGE_RESET,  /* the pool is empty from here on. page: pages in all, 0: there is no such pool;
                    column: tokens a page; refs: of the full pool the context's capacity, of the swa
                    pool the window, of the draft's 0 */
    PAGE_HOLD,   /* after PAGE_RESET: the page is held, by `refs` holders in all */
};
enum { LAST_PAGE_OP = PAGE_HOLD };
const char *page_op_name(enum page_op op); /* "take", ... */

/* The holder whose page table an event concerns. */
enum page_holder {
    HOLDER_SESSION, /* the conversation's own */
    HOLDER_POINT,   /* a checkpoint of the session, or a copy held by work outside the
                       conversation */
    HOLDER_IDLE,    /* the idle parent of a fork */
    HOLDER_BATCH,   /* a reply of a batch; no step carries events of a batch */
};
enum { LAST_PAGE_HOLDER = HOLDER_BATCH };

struct page_event {
    uint8_t pool, op, holder;
    int32_t page, column, refs; /* column: logical page of the holder, -1: none; refs: holders after
                                   the event */
};
/* Whether a page left the window of the target's sliding layers. */
static inline bool page_left_window(const struct page_event *ev)
{
    return ev->op == PAGE_WINDOW && ev->pool == POOL_SWA;
}

/* Of the session, after a step. */
struct context_lengths {
    int32_t length;    /* context tokens; in a prompt: all of its tokens */
    int32_t committed; /* those with KV */
    int32_t drafted;   /* final cells of the draft's pool */
    int32_t window_lo; /* first position whose sliding-window KV is still held */
};

/* The packed form for the ring and the log, little-endian: u8 version, i32 length, committed,
 * drafted, window_lo, i32 number of runs; then each run, 20 bytes: u8 pool, u8 op, u8 holder, i8 d,
 * i32 page, i32 column, i32 refs, i32 n. A run is n events with the same pool, op, holder and refs:
 * event k is about page + k * d and column + k * d, or column -1 if column is -1. Events about one
 * page keep their order, and so do all others of a pool, except that the pages which one holder
 * shares, drops or holds in a sweep over its columns come in the order that takes the fewest runs.
 * Packed steps may be concatenated: each one contains its own size. */
enum { PAGE_PACK_VERSION = 1, PAGE_PACK_HEAD = 21, PAGE_PACK_RUN = 20 };

void page_pack(const struct context_lengths *l, const struct page_event *ev, int n,
               struct buf *out); /* appends */

struct page_run {
    struct page_event first;
    int d, n;
};
/* Reads the packed step at *p, which ends before `end`: its lengths and the number of its runs,
 * which page_unpack_run() then reads one by one, advancing *p. False and *e (ERR_DB): it is
 * damaged. */
bool page_unpack_head(const uint8_t **p, const uint8_t *end, struct context_lengths *l, int *runs,
                      struct err *e);
bool page_unpack_run(const uint8_t **p, struct page_run *r, struct err *e);
/* All events of one packed step: *ev (allocated, *n). False and *e: it is damaged, or more
 * follows. */
bool page_unpack(const void *p, size_t size, struct context_lengths *l, struct page_event **ev,
                 int *n, struct err *e);
