/* plan.h - everything one forward pass needs besides weights, for every mode and batch size.
 *
 * plan_build() is the only place where positions, page tables, extents and masks are made; check.c
 * validates the result, the kernels' arguments are uploaded from it unchanged, commands print it
 * and the log digests it. Lengths are never bare: prefix_len cells were final before the pass,
 * q_len are new, kv_len is what the request's last row may read to.
 *
 * Which rows read what:
 *   extend, decode  row i at position prefix + i writes its own cell, then sees [first, position]
 *                   through pages (its pass wrote the new cells before anything reads them)
 *   verify          node j of the tree writes cell prefix + j at position prefix + depth(j); sees
 *                   [first, prefix) through pages and its ancestors and itself through expand
 *   draft           the same in the draft's pool for the nodes of one tree level
 *   draft extend    like extend in the draft's pool; slot i pairs target state i with token i + 1
 *   frozen          every row stands at position prefix - 1 of the target's own pools, sees [first,
 *                   prefix - 1] through pages, and writes nothing
 * "first" is 0 in full layers and window_first() in sliding ones; where the window begins inside
 * the tree, ancestors before it are left out and lo == hi.
 *
 * With two parts, extend rows see the new cells [prefix, position] through table[] and the cached
 * ones [first, prefix) through prefix[]; the two attentions are combined afterwards.
 *
 * Every mode takes 0 requests or more. Engine thread.
 */
#ifndef AERIE_PLAN_H
#define AERIE_PLAN_H

#include "engine/cache/page_list.h"

struct bugs;

enum plan_mode {
    PLAN_EXTEND,
    PLAN_DECODE,
    PLAN_VERIFY,
    PLAN_DRAFT,
    PLAN_DRAFT_EXTEND,
    PLAN_FROZEN,
    N_MODES
};
const char *plan_mode_name(enum plan_mode m); /* "extend", "decode", ... */

/* The page tables that a pass may read: one for each kind of layer. Full and sliding layers of the
 * target and of the draft; both kinds of draft layers read the draft's pool. */
enum table_id { TABLE_FULL, TABLE_SWA, TABLE_DRAFT, TABLE_DRAFT_SWA, N_TABLES };
const char *table_name(enum table_id id); /* "full", "swa", "draft", "draft window" */
/* The pool whose ids a table of this kind holds. */
static inline enum pool_id table_pool(enum table_id id)
{
    return id == TABLE_FULL ? POOL_FULL : id == TABLE_SWA ? POOL_SWA : POOL_DRAFT;
}

/* The table that a layer reads: one of the target's, or of a draft with KV of its own. */
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
    bool used;         /* some layer of the pass reads it; else nothing below is set */
    enum pool_id pool; /* whose ids it holds */
    uint32_t epoch;    /* of the pool when the table was built */
    const void *base;  /* the memory behind the pool then */
    int window;        /* 0: none */
    int page_size, n_cols, expand_w;
    int32_t *pages;    /* (n_req, n_cols) page of each column, 0: released or none */
    int32_t *lo, *hi;  /* (n_rows) */
    int32_t *expand;   /* (n_rows, expand_w) slots, 0 beyond n_expand */
    int32_t *n_expand; /* (n_rows) */
    int32_t *write;    /* (n_rows) slots; NULL: the pass writes nothing here */
};

struct plan {
    enum plan_mode mode;
    int n_req, n_rows;
    /* per request */
    int32_t *prefix_len, *q_len, *kv_len; /* (n_req) */
    int32_t *row0;                        /* (n_req + 1) first row of each request */
    /* per row */
    int32_t *token, *pos, *req; /* (n_rows) */
    int32_t *up;                /* (n_rows) row of the parent within the pass; -1: none */
    struct table table[N_TABLES];
    /* used with two parts: the cached prefix has the same pages and other extents; a pass writes
     * nothing through these */
    struct table prefix[N_TABLES];
    const struct page_list *list; /* holds the tables' pages; NULL: they lie in mem */
    uint64_t list_version, list_digest; /* of the list when the plan was built */
    /* storage: one run of i32, uploaded as it is: the tables' pages, then from `row_words` on
     * everything else */
    int32_t *mem;
    int n_mem, cap_mem, row_words;
};

/* A draft row: where its state goes and which draft cells it sees beyond the prefix. */
struct draft_row {
    int depth;            /* 1: a child of the root */
    int cell;             /* draft cell it writes */
    int up;               /* row of the plan that holds its parent, or -1 */
    int n_seen, seen[20]; /* cells of its ancestors below the root, then its own, by depth */
};

struct plan_req {
    const struct seq *seq;
    int n;                        /* rows */
    const int32_t *token;         /* (n) */
    const struct tree *tree;      /* PLAN_VERIFY: n nodes, or fewer: the rows behind them repeat the
                                     root, but write their own cell and see it in place of its */
    const struct draft_row *draft; /* PLAN_DRAFT: (n) */
    int draft_from;               /* PLAN_DRAFT_EXTEND: first slot written */
    int levels, topk; /* PLAN_DRAFT: scratch cells are (levels, topk) from seq->drafted */
    int ahead; /* PLAN_DRAFT_EXTEND: cells that the verify pass before it may commit at most */
};

/* Where historical faults (faults.h) get into a plan, before its check. A NULL member is not
 * called. */
struct plan_hooks {
    const struct bugs *on; /* the first argument of both */
    /* Replaces the kv_len of a request, from which the table's columns follow. */
    int (*extent)(const struct bugs *on, enum plan_mode mode, const struct plan_req *q, int kv_len);
    /* Changes the finished plan. */
    void (*built)(const struct bugs *on, struct plan *p, const struct kv *kv,
                  const struct plan_req *req);
};

struct plan_opts {
    bool draft_full;  /* the draft has layers that see everything */
    int draft_window; /* of the draft's sliding layers, 0: none; in frozen mode the window of its
                         reads of the target's swa pool */
    int parts;        /* of extend; 2: prefix and new cells apart, else together */
    int cols, width; /* columns and expand columns of every table at least: plans of one shape then
                        lie alike */
    struct page_list *list; /* where the pages of the one request are kept; NULL: each plan has them
                               all */
    struct plan_hooks hook;
};

/* Builds the plan over reserved cells. Its arrays are valid until the next build; plan_free() ends
 * it. */
void plan_build(struct plan *p, const struct kv *kv, enum plan_mode mode,
                const struct plan_req *req, int n_req, const struct plan_opts *o);
/* Of all that a plan holds: its words, and its pages. */
uint64_t plan_digest(const struct plan *p);
/* The pass was launched: every target cell it writes gets its mark. */
void plan_mark(const struct plan *p, struct kv *kv, const struct plan_req *req);
void plan_free(struct plan *p);

/* The plan on the device. `mem` receives all arrays with one put(). */
struct k_plan {
    kbuf token, pos, req;
    struct k_table table[N_TABLES];
    struct k_table prefix[N_TABLES];
    bool two_parts; /* prefix[] is used */
};
struct k_plan plan_upload(const struct plan *p, const struct kernels *k, struct kdev *d, kbuf mem);
/* The same where mem already holds, or will hold, p->mem. */
struct k_plan plan_view(const struct plan *p, kbuf mem);
/* Rows [first, first + n) of a plan on the device. */
struct k_plan plan_rows(const struct k_plan *kp, int first, int n);
/* Whether the pass has prefix tables: see "two parts" above. */
static inline bool plan_two_parts(const struct plan *p)
{
    return p->prefix[TABLE_FULL].used;
}

/* For people: lengths, tables with their space, extents, masks. */
void plan_print(const struct plan *p, bool json, struct buf *out);

#endif
