/* case.h - a case: one attention step as any engine sees it, in a file (history/pack/CASE.md).
 *
 * A case holds what the kernels were given: lengths, page tables or slots of each group of layers,
 * the map from full to swa slots, the slots that rows write, the tree as parents or mask, and if
 * known the cells that rows read and the pages that requests hold. case_judge() checks it against
 * the rules of the checker (engine/plan/check.h) that such a file allows; rules that need more are
 * listed with what is missing. It is another implementation on purpose: numbers, page sizes and
 * null values are those of the foreign engine, and every violation is reported, not only the first.
 *
 * Sizes of a file are bounded before they are used. No state; any thread.
 */
#pragma once

#include "engine/fault.h"

enum {
    CASE_BYTES = 16 << 20, /* of a file */
    CASE_REQUESTS = 1024,
    CASE_ROWS = 65536,
    CASE_TREE = 1024, /* rows of one request with a tree */
    CASE_GROUPS = 16,
    CASE_FOUND = 64, /* violations that are kept */
};

struct case_ints {
    int32_t *v; /* owned */
    int n;
    bool given;
};

struct case_lists {
    struct case_ints *v; /* owned */
    int n;
    bool given;
};

struct case_request {
    int prefix_len, q_len, kv_len, pool_row;
    int row0; /* its first row */
    int64_t mask0; /* where its part of the mask begins */
};

enum case_part { PART_WHOLE, PART_PREFIX, PART_NEW };

struct case_group {
    char name[32];
    enum pool_id space; /* pool whose ids it holds */
    enum pool_id reads; /* pool that its layers read */
    int page_size, pool_page_size; /* of the ids, of the pool */
    int window, layer_window; /* that the kernel is given, that its layers have */
    bool slots; /* its tables hold a slot for each cell, not a page for each column */
    int null, pool_pages; /* pool_pages 0: not known */
    enum case_part part;
    struct case_lists tables, held; /* per request */
    struct case_ints start;         /* per request: the cell of column 0 */
    struct case_ints write;         /* per row: the slot that it writes */
    struct case_ints lo, hi;        /* per row: cells that it reads through the table */
    struct case_lists expand;       /* per row: slots that it reads besides */
    struct case_lists claim;        /* per row: all slots that it reads; a list that is not given:
                                       not known */
    struct case_ints layers;
};

struct attn_case {
    char engine[64], version[64], backend[64];
    enum plan_mode mode;
    int n_request, n_row, n_group;
    struct case_request *request;
    struct case_ints row_start;              /* (n_request + 1) as the engine has them */
    struct case_ints position, parent, cell; /* per row; parent: a row of the request, -1: root */
    struct case_ints mask;                   /* 0 or 1; instead of parent */
    struct case_lists seen;                  /* per row: cells of its tree part */
    struct case_group group[CASE_GROUPS];
    struct case_lists map; /* pairs [full slot, swa slot] */
};

void case_ints_free(struct case_ints *a);
void case_lists_free(struct case_lists *l);
void case_group_free(struct case_group *g);

/* Reads a case. False and *e (ERR_USAGE): one line, which names the field, what it holds and what
 * was expected; *c is empty. */
bool case_read(struct attn_case *c, const char *text, size_t n, struct err *e);
void case_free(struct attn_case *c);
/* Appends the case as one JSON object, which case_read() reads as the same case. */
void case_json(const struct attn_case *c, struct buf *out);
/* Reads every case of a file: the file is one, or holds the plans of a step (history/pack/PACK.md),
 * each with its own. fn may change the case, which is freed afterwards; false ends the reading.
 * Returns how many there were; -1 and *e (ERR_USAGE): the file is neither. */
int case_each(const char *text, size_t n, bool (*fn)(struct attn_case *c, int i, void *arg),
              void *arg, struct err *e);

struct case_verdict {
    int n; /* violations, at most CASE_FOUND */
    struct {
        int rule;
        char text[256];
    } found[CASE_FOUND];
    int checked;           /* bit i: rule Ii was checked */
    const char *why[N_RULES]; /* of the other rules: what is missing; constant */
};
const char *case_rule(int rule); /* the text of a rule: "I4  map, inverse ..." */
void case_judge(const struct attn_case *c, struct case_verdict *v);
/* Appends a picture: a line for each row of each group, which cells it must read and reads. */
void case_draw(const struct attn_case *c, struct buf *out);
/* Makes a failing case smaller while it violates the rule of its first violation; stop may be
 * NULL. Returns how many smaller cases were tried. */
int case_shrink(struct attn_case *c, const struct stop *stop);
/* How many numbers the arrays of the case hold. */
int case_numbers(const struct attn_case *c);

/* For case_*.c: the rows of a request, what they must read, and where cells lie. */
struct case_want {
    int first, end;     /* cells [first, end) of the request's pages ... */
    const int32_t *seen; /* ... then these cells of the tree part */
    int n_seen, skip;   /* skip: how many of the tree part lie before the window */
    int query;
};
/* Whether kv_len is what prefix_len and q_len say. */
bool case_kv_follows(const struct attn_case *c, int b);
bool case_has_tree(const struct attn_case *c);
/* room: CASE_TREE, for the cells of the tree part. */
struct case_want case_wanted(const struct attn_case *c, const struct case_group *g, int b, int i,
                             int32_t *room);
/* The slot of a cell as the request holds it; -1: none. */
int64_t case_held_slot(const struct attn_case *c, const struct case_group *g, int b, int cell);
/* The slot that row i of request b is known to read as its k-th key, of n; -1 beyond. */
int64_t case_read_slot(const struct case_group *g, int b, int row, int k);
int case_n_read(const struct case_group *g, int row); /* -1: not known */
