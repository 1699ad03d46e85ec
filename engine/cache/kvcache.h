/* kvcache.h - page tables of sequences over three pools, joined by one full→swa map.
 *
 * A sequence owns columns: column c covers its cells [c * page_size, (c+1) * page_size). Cells
 * below `committed` hold the KV of committed tokens and can no longer be rolled back; cells from
 * there on are scratch for the pass in flight (prompt chunk or draft tree). Each column has a page
 * of the full pool and, while the window can still reach it, a page of the swa pool. The draft's
 * columns live in a pool of their own.
 *
 * Always true, and checked by kv_check() and check.c:
 *   (1) slot j of full page f and slot j of swa page map[f] hold the same token (page affinity)
 *   (2) map restricted to live pages is one to one; pages that are not live have no entry
 *   (3) whoever holds an swa page also holds the full page it belongs to
 *   (4) a page with more than one holder is never written: kv_reserve() replaces it by a copy
 *   (5) swa pages are released against the committed length only, in whole pages
 *   (6) the columns of a side below its `steady` hold final cells only, and the pages that they held
 *       when kv_settle() was called last for that side
 * A fork shares every page; a checkpoint is a fork that nobody extends. Engine thread, under its
 * lock. Knows nothing of devices: page copies it wants are queued for the caller.
 */
#ifndef AERIE_KVCACHE_H
#define AERIE_KVCACHE_H

#include "engine/cache/pages.h"
#include "engine/cache/slots.h"
#include "kernels/window.h"

struct column {
    full_page full;
    swa_page swa; /* 0: released, or the model has no sliding layers */
};

/* The columns of a sequence: those over the target's two pools, and those over the draft's. */
enum side { SIDE_TARGET, SIDE_DRAFT, N_SIDES };
static inline enum side side_of(enum pool_id p) { return p == POOL_DRAFT ? SIDE_DRAFT : SIDE_TARGET; }

struct seq {
    struct column *col;
    draft_page *dcol;
    int n_col, cap_col, n_dcol, cap_dcol;
    int committed; /* target cells that are final */
    int drafted;   /* draft cells that are final */
    int swa_lo;    /* first cell whose swa page is still held; a multiple of page_size */
    uint64_t tail; /* mark chain of cell committed - 1 when it became final */
    /* for those who keep a copy of a side's columns */
    uint64_t settled[N_SIDES]; /* names the last kv_settle(), 0: there was none */
    int steady[N_SIDES];
};

/* What the last pass that wrote a target cell put there: token, position, and a digest chained
 * over every token on the way to it. A cell nobody wrote since its page was taken has pos -1. */
struct mark {
    int32_t token, pos;
    uint64_t chain;
};
#define MARK_ROOT UINT64_C(0x6165726965) /* the chain before position 0 */
static inline uint64_t mark_chain(uint64_t before, int32_t token, int32_t pos)
{
    return mix64(before ^ mix64((uint64_t)(uint32_t)token << 32 | (uint32_t)pos));
}

/* The memory behind a pool: where the first layer's cells lie and how many slots there are. */
struct backing {
    const void *base; /* an identity, never followed */
    int slots;
};

struct page_copy {
    enum pool_id pool;
    int32_t src, dst;
};

struct kv;

/* Where historical faults (faults.h) get into the cache. A NULL member is not called. */
struct kv_hooks {
    /* Replaces the capacity of a pool of `pages` pages. */
    int (*capacity)(const struct kv *kv, enum pool_id pool, int pages);
    /* A column is about to be rolled back: its pages are still held. */
    void (*rolling_back)(struct kv *kv, struct column *col);
};

struct kv {
    int page_size, window;
    int shift; /* page_size == 1 << shift */
    int reach; /* swa cells before the committed length that a pass may still read */
    bool has_swa, has_draft;
    struct pages pool[N_POOLS];
    int32_t *swa_of;  /* (full pages) the map: swa page of each live full page, 0: none */
    int32_t *full_of; /* (swa pages) its inverse */
    struct mark *mark[2];     /* of POOL_FULL, POOL_SWA: (slots) */
    int held[N_POOLS];        /* columns of all sequences that hold a page: the sum of references */
    struct backing mem[N_POOLS];
    struct page_copy *copy; /* queued copies; the caller carries them out before the next pass */
    int n_copy, cap_copy;
    uint64_t n_settled; /* names handed out by kv_settle() */
    struct page_log log;
    struct kv_hooks hook;
};

struct kv_shape {
    int page_size; /* power of two, 1..64 */
    int window;    /* W of the sliding layers, 0: none */
    int reach;     /* 0: W - 1, what the target's next query sees before itself */
    int full_pages, swa_pages, draft_pages; /* with the guard page; 0: no such pool */
};

void kv_init(struct kv *kv, const struct kv_shape *s);
void kv_free(struct kv *kv);
void kv_reset(struct kv *kv); /* every page free, in the first order; sequences must be empty */

/* Says what lies behind a pool; a new memory is a new epoch. */
void kv_back(struct kv *kv, enum pool_id pool, const void *base, int slots);
/* Pages that a pool can hold, the guard page left out; those of them that may still be taken. */
int kv_capacity(const struct kv *kv, enum pool_id pool);
int kv_left(const struct kv *kv, enum pool_id pool);

/* Makes cells [committed, upto) writable: takes missing columns, replaces shared pages (queueing
 * copies of those that hold committed cells). False, with nothing changed, when a pool is short:
 * *e names it (ERR_NEGATIVE). Queued copies stay valid until the next pass carries them out. */
bool kv_reserve(struct kv *kv, struct seq *s, int upto, struct err *e);
/* The same for draft cells [from, upto); from <= drafted becomes the new drafted. */
bool kv_reserve_draft(struct kv *kv, struct seq *s, int from, int upto, struct err *e);
void kv_commit(struct kv *kv, struct seq *s, int n);       /* committed = n */
void kv_commit_draft(struct kv *kv, struct seq *s, int n); /* drafted = n */
/* *after: s as committing n cells will leave it, for planning the pass behind the commit. It shares
 * the columns of s: read only, valid until s changes. */
void kv_ahead(const struct kv *kv, const struct seq *s, int n, struct seq *after);
void kv_rollback(struct kv *kv, struct seq *s); /* drops columns that hold no final cell */
/* Drops the swa pages wholly before the last `reach` committed cells: no later pass reads them. */
void kv_release_window(struct kv *kv, struct seq *s);
/* From here on steady[side] tells how many of the side's columns of final cells have not changed.
 * Returns the name of this state of them, which no other has. */
uint64_t kv_settle(struct kv *kv, struct seq *s, enum side side);
/* A cell of a target pool was moved on the device: its mark goes along. */
void kv_moved(struct kv *kv, enum pool_id pool, int32_t src, int32_t dst);
/* dst, empty, becomes a copy of src that shares its pages, cut to final cells. */
void kv_fork(struct kv *kv, const struct seq *src, struct seq *dst);
void kv_drop(struct kv *kv, struct seq *s); /* gives everything back; s is empty and reusable */

/* Columns that would have to be taken to reserve up to a cell, at most (copies included). */
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
/* The translation, and the only one: full to swa through the map. 0 stays 0. */
swa_page kv_swa_page(const struct kv *kv, full_page f);
swa_slot kv_swa_slot(const struct kv *kv, full_slot f);

/* Every rule of the pools and the map, given all sequences that exist (I1-I5, I8). O(pages). */
bool kv_check(const struct kv *kv, const struct seq *const *seqs, int n, struct err *e);

#endif
