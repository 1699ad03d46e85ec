/* plan.h - the attention metadata of one forward pass: tokens, positions, page tables, extents and
 * slot mapping, for every mode and batch size.
 *
 * Only plan_build() computes them. check.c validates the plan, plan_upload() copies it to the
 * device unchanged, commands print it and the log records its digest. A request has three lengths:
 * prefix_len cells were final before the pass, q_len cells are new, and kv_len is one past the last
 * cell that the request's last row may read.
 *
 * A row reads the cells [lo, hi) through the page table (its prefix part), then the slots of its
 * expand columns (its tree part), and writes one slot:
 *   extend, decode  row i has position prefix + i, writes cell prefix + i and reads cells [first,
 *                   position] through pages (the pass writes the new cells before it reads them)
 *   verify          node j of the tree has position prefix + depth(j) and writes cell prefix + j;
 *                   reads cells [first, prefix) through pages, its ancestors and itself through
 *                   expand
 *   draft           the same in the draft's pool, for the nodes of one tree level
 *   block           row i of a draft's block has position prefix + i and writes cell prefix + i, in
 *                   the draft's pool; reads cells [first, prefix) through pages, and through expand
 *                   all cells of the block, or in causal layers those up to its own
 *   draft extend    like extend, in the draft's pool; slot i pairs target state i with token i + 1
 *   frozen          every row has position prefix - 1, reads cells [first, prefix - 1] of the
 *                   target's own pools through pages, and writes nothing
 * "first" is 0 in full layers and window_first() in sliding layers and in the layers of a draft
 * with kv->draft_window; a window never hides cells of a row's own block. If the window begins
 * inside the tree, the prefix part is empty (lo == hi) and the ancestors before the window are left
 * out of the tree part (kernels/window.h).
 *
 * With two parts, extend rows read the new cells [prefix, position] through table[] and the cached
 * cells [first, prefix) through prefix[]; the two results are combined by log-sum-exp.
 *
 * Every mode takes 0 requests or more. Engine thread.
 */
#pragma once

#include "engine/cache/page_list.h"
#include "engine/fault.h"

struct bugs;

/* Whether the passes of a mode write cells of the draft's pool. */
static inline bool plan_mode_drafts(enum plan_mode m)
{
    return m == PLAN_DRAFT || m == PLAN_DRAFT_EXTEND || m == PLAN_BLOCK;
}

/* The page tables of a pass, one for each kind of layer: full and sliding layers of the target and
 * of the draft. Both kinds of draft layers read the draft's pool. */
enum table_id { TABLE_FULL, TABLE_SWA, TABLE_DRAFT, TABLE_DRAFT_SWA, N_TABLES };
const char *table_name(enum table_id id); /* "full", "swa", "draft", "draft window" */
/* The pool whose page ids a table holds. */
static inline enum pool_id table_pool(enum table_id id)
{
    return id == TABLE_FULL ? POOL_FULL : id == TABLE_SWA ? POOL_SWA : POOL_DRAFT;
}

/* The table that a layer reads, of the target and of a draft with KV of its own. */
static inline enum table_id target_table(bool sliding)
{
    return sliding ? TABLE_SWA : TABLE_FULL;
}
static inline enum table_id draft_table(bool sliding)
{
    return sliding ? TABLE_DRAFT_SWA : TABLE_DRAFT;
}

/* One page table of a plan; the host twin of struct k_table. */
struct table {
    bool used;         /* a layer of the pass reads the table; else no other field is set */
    enum pool_id pool; /* the pool whose ids the table holds */
    uint32_t epoch;    /* of the pool when the table was built */
    const void *base;  /* the memory behind the pool when the table was built */
    int window;        /* keys; 0: no window */
    bool causal;       /* of a block: no row sees a later one */
    int page_size, n_cols, expand_w;
    int32_t *pages;    /* (n_req, n_cols) page table: page of each column, 0: released or none */
    int32_t *lo, *hi;  /* (n_rows) extents: cells read through pages */
    int32_t *expand;   /* (n_rows, expand_w) slots of the tree part, 0 beyond n_expand */
    int32_t *n_expand; /* (n_rows) */
    int32_t *write;    /* (n_rows) slot mapping: the slot that a row writes; NULL: no row writes */
};

/* The page of a request's column. */
static inline int32_t *table_page(struct table *t, int req, int col)
{
    CHECK(col >= 0 && col < t->n_cols);
    return &t->pages[(size_t)req * (size_t)t->n_cols + (size_t)col];
}

struct plan {
    enum plan_mode mode;
    int n_req, n_rows;
    /* per request */
    int32_t *prefix_len, *q_len, *kv_len; /* (n_req) */
    int32_t *row0;                        /* (n_req + 1) first row of each request */
    /* per row */
    int32_t *token, *pos, *req; /* (n_rows) */
    int32_t *up;                /* (n_rows) row of the parent in this pass; -1: none */
    struct table table[N_TABLES];
    /* Used with two parts only: the cached prefix, with the same pages and extents of its own. A
     * pass writes nothing through these tables. */
    struct table prefix[N_TABLES];
    const struct page_list *list; /* the tables' pages lie in this list; NULL: in mem */
    uint64_t list_version, list_digest; /* of the list when the plan was built */
    /* One allocation of i32 words for all arrays, uploaded unchanged: the tables' pages, then
     * everything else. */
    int32_t *mem;
    int n_mem, cap_mem;
};

/* A row of a draft pass: the draft cell that it writes, and the cells of its tree part. */
struct draft_row {
    int depth;            /* 1: a child of the root */
    int cell;             /* the draft cell that the row writes */
    int up;               /* row of the parent in this pass, or -1 */
    int n_seen, seen[20]; /* cells of its ancestors below the root, by depth, then its own */
};

struct plan_req {
    const struct seq *seq;
    int n;                        /* rows */
    const int32_t *token;         /* (n) */
    const struct tree *tree;      /* PLAN_VERIFY: at most n nodes. Rows past the last node copy the
                                     root's row, except that each writes its own cell and reads that
                                     cell instead of the root's */
    const struct draft_row *draft; /* PLAN_DRAFT: (n) */
    int draft_from;               /* PLAN_DRAFT_EXTEND: first slot written */
    int levels, topk; /* PLAN_DRAFT: scratch cells are (levels, topk) from cell seq->drafted on */
    int ahead; /* PLAN_DRAFT_EXTEND: the most cells that the verify pass before it may commit */
};

/* Hooks for historical faults. A NULL member is not called. */
struct plan_hooks {
    const struct bugs *on; /* the first argument of both */
    /* Returns the kv_len of a request in place of the given one; n_cols follows from it. */
    int (*extent)(const struct bugs *on, enum plan_mode mode, const struct plan_req *q, int kv_len);
    /* Called with the finished plan, which it may change. */
    void (*built)(const struct bugs *on, struct plan *p, const struct kv *kv,
                  const struct plan_req *req);
};

struct plan_opts {
    bool draft_full;  /* the draft has full layers */
    int draft_window; /* of the draft's sliding layers, 0: none; in frozen mode: of their reads from
                         the target's swa pool. kv->draft_window is a window of all draft layers */
    bool draft_causal[2]; /* of the draft's full and sliding layers, for blocks: struct draft */
    int parts;        /* of extend; 2: a table for the prefix and one for the new cells, else one */
    int cols, width; /* least numbers of columns and of expand columns of every table, so that plans
                        of different lengths have the same layout */
    struct page_list *list; /* holds the page tables of a single request; NULL: every plan holds its
                               own */
    struct plan_hooks hook;
};

/* Builds the plan of a pass whose cells are reserved. The arrays are valid until the next
 * plan_build() with the same p, or plan_free(). */
void plan_build(struct plan *p, const struct kv *kv, enum plan_mode mode,
                const struct plan_req *req, int n_req, const struct plan_opts *o);
/* A digest of all words of a plan and of its pages. */
uint64_t plan_digest(const struct plan *p);
/* Sets the marks (kvcache.h) of the target cells that the pass writes; to be called when the pass
 * is launched. */
void plan_mark(const struct plan *p, struct kv *kv, const struct plan_req *req);
void plan_free(struct plan *p);

/* The plan on the device, as the kernels take it. */
struct k_plan {
    kbuf token, pos, req;
    struct k_table table[N_TABLES];
    struct k_table prefix[N_TABLES];
    bool two_parts; /* prefix[] is used */
};
/* Copies p->mem to mem in one transfer. */
struct k_plan plan_upload(const struct plan *p, const struct kernels *k, struct kdev *d, kbuf mem);
/* The same without the transfer: mem holds p->mem, or will hold it when a kernel runs. */
struct k_plan plan_view(const struct plan *p, kbuf mem);
/* Rows [first, first + n) of a plan on the device. */
struct k_plan plan_rows(const struct k_plan *kp, int first, int n);
/* Whether the plan has prefix tables ("two parts" above). */
static inline bool plan_two_parts(const struct plan *p)
{
    return p->prefix[TABLE_FULL].used;
}

/* Prints lengths, page tables, extents and slots, as text or as one JSON object. */
void plan_print(const struct plan *p, bool json, struct buf *out);
/* plan_case.c: appends the plan as one JSON object, a case (history/pack/CASE.md), without tokens:
 * with the pages that its sequences hold and the map, so that it can be judged without the engine.
 * req: the requests that it was built from. Not of a block, whose rows see later ones. */
void plan_case(const struct plan *p, const struct kv *kv, const struct plan_req *req,
               struct buf *out);
/* faults.c: the hooks of plan_build() for the historical faults (bugs.h) that are on, each of which
 * changes a correct plan into the one that the old engine launched; all NULL when none is on. *on
 * must outlive them. */
struct plan_hooks plan_faults(const struct bugs *on);
