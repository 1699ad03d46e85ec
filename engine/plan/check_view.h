/* check_view.h - the part of the checker (check.h) that looks at one request of a plan: where a
 * rule fails, and the rules of its rows (check_rows.c). Engine thread.
 */
#pragma once

#include "engine/plan/check.h"
#include "engine/plan/check_kv.h"

/* One request of one plan, and the sequence that it is checked against. */
struct view {
    enum check_level level;
    const struct plan *p;
    const struct kv *kv;
    const struct plan_req *q;
    int b, r0; /* request, its first row */
    struct err *e;
    int32_t slot[TREE_MAX]; /* of each node's cell, in the pool of the table being checked */
};

/* ---- where a rule fails ---- */

static inline struct violation in_plan(const struct plan *p, int rule)
{
    struct violation at = fault_at(rule);
    at.mode = (int)p->mode;
    return at;
}

static inline struct violation in_request(const struct view *v, int rule)
{
    struct violation at = in_plan(v->p, rule);
    at.request = v->b;
    return at;
}

static inline struct violation in_row(const struct view *v, int rule, int row)
{
    struct violation at = in_plan(v->p, rule);
    at.row = row;
    return at;
}

/* In the plan's table of a pool; the caller says of which request, row or column. */
static inline struct violation in_table(const struct plan *p, int rule, enum pool_id pool)
{
    struct violation at = in_plan(p, rule);
    at.pool = (int)pool;
    at.table = true;
    return at;
}

static inline struct violation in_table_row(const struct view *v, int rule, const struct table *t,
                                            int row)
{
    struct violation at = in_table(v->p, rule, t->pool);
    at.row = row;
    return at;
}

/* column -1: of the table as a whole */
static inline struct violation in_column(const struct view *v, int rule, const struct table *t,
                                         int column)
{
    struct violation at = in_table(v->p, rule, t->pool);
    at.request = v->b;
    at.column = column;
    return at;
}

static inline struct violation with_cell(struct violation at, int cell)
{
    at.cell = cell;
    return at;
}

#define FAIL(v, ...) fault_set((v)->e, __VA_ARGS__)
/* Whether a number is what it should be; the message follows. */
#define SAME(v, at, got, want, ...)                                                                \
    ((got) == (want) || FAIL(v, differs(at, got, want), __VA_ARGS__))

static inline int32_t seq_page(const struct view *v, enum pool_id pool, int c)
{
    const struct seq *s = v->q->seq;
    if (pool == POOL_DRAFT)
        return c < s->n_dcol ? s->dcol[c].v : 0;
    if (c >= s->n_col)
        return 0;
    return pool == POOL_FULL ? s->col[c].full.v : s->col[c].swa.v;
}

static inline int32_t slot_of(const struct view *v, enum pool_id pool, int cell)
{
    int32_t page = seq_page(v, pool, cell >> v->kv->shift);
    return page << v->kv->shift | (cell & (v->kv->page_size - 1));
}

/* Rows past the last node of the tree are copies of the root's row. */
static inline int node_of(const struct tree *t, int i)
{
    return i < t->n ? i : 0;
}

/* The request's rows in one table: extents, written slots and expand columns (I4, I6 to I8, I12,
 * I18). False: a rule fails, *v->e says which. */
bool check_rows(const struct view *v, const struct table *t);
/* The prefix part of rows: the cached keys that their windows still reach, nothing else (I12). */
bool check_prefix_rows(const struct view *v, const struct table *t);
