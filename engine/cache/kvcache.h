/* kvcache.h - page tables of sequences over three pools, joined by one full→swa map.
 *
 * Cell i of a sequence holds the KV of its i-th token. A sequence's page table has columns: column
 * c covers cells [c * page_size, (c+1) * page_size). Cells below `committed` hold the KV of
 * committed tokens and can no longer be rolled back; the cells from there on are scratch for the
 * pass in flight (prompt chunk or draft tree). Each column has a page of the full pool and, while
 * the window can still reach the column, a page of the swa pool. The draft's columns have pages of
 * the draft pool, while the draft's window can still reach them.
 *
 * Invariants, checked by kv_check() and check.c:
 *   (1) slot j of full page f and slot j of swa page map[f] hold the same token (page affinity)
 *   (2) map restricted to live pages is one to one; pages that are not live have no entry
 *   (3) a sequence that holds an swa page also holds the full page that maps to it
 *   (4) a page with more than one holder is never written: kv_reserve() replaces it by a copy
 *   (5) swa pages are released against the committed length only, and draft pages against the
 *       drafted one, in whole pages
 *   (6) the columns of a side below its `clean` hold final cells only, and the same pages as when
 *       kv_mark_clean() was called last for that side
 * A fork shares every page; a checkpoint is a fork that is never extended. The cache does not
 * access any device: it queues the page copies that the caller has to carry out. Engine thread,
 * under its lock.
 */
#pragma once

#include "engine/cache/pool.h"
#include "engine/cache/slots.h"
#include "kernels/window.h"

struct column {
    full_page full;
    swa_page swa; /* 0: released, or the model has no sliding layers */
};

/* The columns of a sequence: those over the target's two pools, and those over the draft's. */
enum side { SIDE_TARGET, SIDE_DRAFT, N_SIDES };
static inline enum side side_of(enum pool_id p)
{
    return p == POOL_DRAFT ? SIDE_DRAFT : SIDE_TARGET;
}

/* A shared column that a reservation has replaced by a copy. Pages: of the side's pools, else 0. */
struct replaced_column {
    enum side side;
    int c;
    int32_t page[N_POOLS]; /* its pages before */
};
enum { MAX_REPLACED = 4 }; /* a step replaces the last column of each side */

struct seq {
    enum page_holder holder; /* the holder of these columns in the page log; constant */
    struct column *col;
    draft_page *dcol;
    int n_col, cap_col, n_dcol, cap_dcol;
    int committed; /* target cells that are final */
    int drafted;   /* draft cells that are final */
    int32_t next;  /* the token with which draft cell drafted - 1 was computed, that of the target's
                      cell `drafted`; -1: not known. Only with drafted > 0 */
    int swa_lo;    /* first cell whose swa page is still held; a multiple of page_size */
    int draft_lo;  /* first draft cell whose page is still held; a multiple of page_size */
    uint64_t tail; /* mark chain of cell committed - 1 when it became final */
    /* For copies of a side's columns (page_list.h): the columns below `clean` have not changed
     * since the kv_mark_clean() that returned `stamp`; 0: none. */
    uint64_t stamp[N_SIDES];
    int clean[N_SIDES];
    struct replaced_column replaced[MAX_REPLACED]; /* since the last commit, for kv_undo() */
    int n_replaced;
};

/* What the last pass wrote to a cell of the target's pools: the token, its position, and a digest
 * chained over all tokens up to it. A cell that no pass has written since its page was taken has
 * pos -1. */
struct mark {
    int32_t token, pos;
    uint64_t chain;
};
#define MARK_ROOT UINT64_C(0x6165726965) /* the chain before position 0 */
static inline uint64_t mark_chain(uint64_t before, int32_t token, int32_t pos)
{
    return mix64(before ^ mix64((uint64_t)(uint32_t)token << 32 | (uint32_t)pos));
}

/* The memory behind a pool: the address of the first layer's cells and the number of slots. */
struct backing {
    const void *base; /* compared, never dereferenced */
    int slots;
};

struct page_copy {
    enum pool_id pool;
    int32_t src, dst;
};

struct kv;

/* Hooks for historical faults. A NULL member is not called. */
struct kv_hooks {
    /* Returns the capacity of a pool in place of `pages`. */
    int (*capacity)(const struct kv *kv, enum pool_id pool, int pages);
    /* In place of the question whether src still holds the swa pages that a fork at n needs. */
    bool (*holds)(const struct kv *kv, const struct seq *src, int n);
    /* Called before a column is rolled back, while the column still holds its pages. */
    void (*rolling_back)(struct kv *kv, struct column *col);
};
/* faults.c: those of the historical faults (bugs.h) that are on; all NULL when none of them is the
 * cache's. */
struct bugs;
struct kv_hooks kv_faults(const struct bugs *on);

struct kv {
    int page_size, window;
    int shift; /* page_size == 1 << shift */
    int reach; /* how many of the last committed cells a later pass may read in the swa pool */
    int draft_window; /* W of all layers of a draft with cells of its own, beside any window that a
                         layer has anyway; 0: none. May change between passes: a sequence that has
                         released cells which a wider window reaches cannot draft, which
                         kv_can_draft() says */
    bool has_swa, has_draft;
    struct pool pool[N_POOLS];
    int32_t *swa_of;  /* (full pages) the map: swa page of each live full page, 0: none */
    int32_t *full_of; /* (swa pages) its inverse */
    struct mark *mark[2];     /* of POOL_FULL, POOL_SWA: (slots) */
    int held[N_POOLS];        /* columns of all sequences that hold a page of the pool */
    struct backing mem[N_POOLS];
    struct page_copy *copy; /* queue: the caller carries the copies out before the next pass */
    int n_copy;
    uint64_t last_stamp; /* of kv_mark_clean() */
    struct page_log log;
    struct kv_hooks hook;
};

enum {
    MOST_PAGE_SIZE = 64,
    POOL_CELLS = INT32_MAX, /* the most cells of a pool: a slot is an int */
};

struct kv_shape {
    int page_size; /* power of two, 1..MOST_PAGE_SIZE */
    int window;    /* W of the sliding layers, 0: none */
    int reach;     /* see struct kv; 0: what the target's next query sees, W - 1 */
    int full_pages, swa_pages, draft_pages; /* the guard page included; 0: no such pool */
};

/* The cells of a pool, which are its slots too; at most POOL_CELLS, or aerie is at fault: sizes
 * from outside become a shape in pools_shape() (engine/cycle/pools.h), which refuses more. */
int kv_cells(const struct kv_shape *s, enum pool_id pool);
/* The bytes that kv_init() allocates. */
uint64_t kv_bytes(const struct kv_shape *s);

void kv_init(struct kv *kv, const struct kv_shape *s);
void kv_free(struct kv *kv);
/* Frees every page and restores the initial order of the free lists; sequences must be empty. */
void kv_reset(struct kv *kv);

/* Sets the memory behind a pool and begins a new epoch of the pool. */
void kv_back(struct kv *kv, enum pool_id pool, const void *base, int slots);
int kv_capacity(const struct kv *kv, enum pool_id pool); /* pages, without the guard page */
int kv_left(const struct kv *kv, enum pool_id pool);     /* pages that can still be taken */

/* Makes cells [committed, upto) writable: adds missing columns and replaces shared pages; a copy is
 * queued for each replaced page that holds committed cells. If a pool has too few free pages, false
 * with nothing changed: *e names the pool (ERR_NEGATIVE). */
bool kv_reserve(struct kv *kv, struct seq *s, int upto, struct err *e);
/* As kv_reserve(), for draft cells [from, upto); from <= drafted becomes the new drafted. */
bool kv_reserve_draft(struct kv *kv, struct seq *s, int from, int upto, struct err *e);
void kv_commit(struct kv *kv, struct seq *s, int n);       /* committed = n */
void kv_commit_draft(struct kv *kv, struct seq *s, int n); /* drafted = n, next is not known */
/* *after: s as it will be after kv_commit(kv, s, n), to plan the pass that follows the commit. It
 * shares the columns of s: read only, valid until s changes. */
void kv_ahead(const struct kv *kv, const struct seq *s, int n, struct seq *after);
/* Drops the columns that hold no final cell, of both sides. Columns replaced by copies stay. */
void kv_rollback(struct kv *kv, struct seq *s);
/* As kv_rollback(), and restores the columns that were replaced since the last commit: afterwards
 * the sequence has the same pages, and the pools the same order of free pages, as before the
 * reservations. Only if no other sequence has taken, dropped or written pages since. */
void kv_undo(struct kv *kv, struct seq *s);
/* Releases the swa pages all of whose cells lie before the last `reach` committed cells, and with
 * draft_window the draft pages all of whose cells lie before the last draft_window drafted ones:
 * the next draft pass may begin with the last drafted cell once more. */
void kv_release_window(struct kv *kv, struct seq *s);
/* The same as if n cells were committed. */
void kv_release_before(struct kv *kv, struct seq *s, int n);
/* Marks the side's columns of final cells as clean: from now on clean[side] is the number of
 * leading columns that have not changed. Returns the stamp of this state, which no other state
 * has. */
uint64_t kv_mark_clean(struct kv *kv, struct seq *s, enum side side);
/* Copies the mark of a cell of a target pool whose KV was moved on the device. Slots. */
void kv_moved(struct kv *kv, enum pool_id pool, int32_t src, int32_t dst);
/* dst, empty but for its holder, becomes a copy of the final cells of src and shares their
 * pages. */
void kv_fork(struct kv *kv, const struct seq *src, struct seq *dst);
/* As kv_fork(), with only the first n final cells (1 <= n <= src->committed) and the first
 * `drafted` cells of the draft (<= n, <= src->drafted); only if src still holds the swa pages that
 * a sliding layer needs to continue there, and kv_can_draft(kv, src, drafted). */
bool kv_can_fork_at(const struct kv *kv, const struct seq *src, int n);
/* Whether the sequence still holds the draft cells that a draft pass reads after its first
 * `drafted` ones. */
bool kv_can_draft(const struct kv *kv, const struct seq *src, int drafted);
void kv_fork_at(struct kv *kv, const struct seq *src, int n, int drafted, struct seq *dst);
/* Releases every page; s is empty but for its holder, and reusable. */
void kv_drop(struct kv *kv, struct seq *s);
/* Replaces the page log's events since the last step by those that yield the present state from
 * nothing: a PAGE_RESET of each pool and a PAGE_HOLD of each page that seqs hold. context: the most
 * cells of a sequence, for the record. */
void kv_log_state(struct kv *kv, const struct seq *const *seqs, int n, int context);

/* The order in which the free pages of each pool will be handed out. Work that takes pages for a
 * while and must leave the pools as they were (a batch beside the conversation, which a replay does
 * not repeat) saves it before and restores it after. */
struct kv_order {
    int32_t *free[N_POOLS]; /* owned */
    int n[N_POOLS];
};
void kv_save_order(const struct kv *kv, struct kv_order *o);
/* False and *e (ERR_INVARIANT; names the pool): the free pages are not exactly those of that time,
 * and the order is not changed. Frees *o either way. */
bool kv_restore_order(struct kv *kv, struct kv_order *o, struct err *e);

/* The most columns that kv_reserve() up to cell `upto` would take, copies included. */
int kv_columns_missing(const struct kv *kv, const struct seq *s, int upto);

static inline full_slot kv_full_slot(const struct kv *kv, const struct seq *s, int cell)
{
    int32_t page = s->col[cell >> kv->shift].full.v;
    return (full_slot){(page << kv->shift) | (cell & (kv->page_size - 1))};
}
static inline draft_slot kv_draft_slot(const struct kv *kv, const struct seq *s, int cell)
{
    int32_t page = s->dcol[cell >> kv->shift].v;
    return (draft_slot){(page << kv->shift) | (cell & (kv->page_size - 1))};
}
/* Translate full ids to swa ids through the map; no other function does. 0 stays 0. */
swa_page kv_swa_page(const struct kv *kv, full_page f);
swa_slot kv_swa_slot(const struct kv *kv, full_slot f);

/* Checks the pools and the map against all sequences that exist (rules I1-I5, I8 of check.h): *e
 * names the rule. O(pages). */
bool kv_check(const struct kv *kv, const struct seq *const *seqs, int n, struct err *e);
