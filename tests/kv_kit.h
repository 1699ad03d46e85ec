/* kv_kit.h - a model of the page cache's users: sequences whose cells are known one by one.
 *
 * mem[pool][slot] stands for the device's cells and holds the token that a pass has written there.
 * The kit also keeps the expected tokens of every sequence in plain arrays without pages. Every
 * pass takes the engine's steps: reserve, plan, check, copies, marks, writes, commit.
 */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/plan/check.h"
#include "engine/cache/tree.h"

enum { N_SEQ = 6, MAX_CELLS = 512, MAX_BATCH = 4 };

struct cells {
    int32_t tok[MAX_CELLS], dtok[MAX_CELLS];
};

struct world {
    struct kv kv;
    struct seq seq[N_SEQ];
    struct cells cells[N_SEQ];
    int32_t *mem[N_POOLS];
    struct plan plan;
    struct checker check;
    struct plan_opts opts;
    int cap; /* cells of a sequence */
    uint64_t rng;
    uint64_t ops, plans, short_of; /* operations, plans checked, refused reservations */
    uint64_t rows[N_MODES];
};

static inline int w_below(struct world *w, int n)
{
    w->rng = mix64(w->rng);
    return (int)((w->rng >> 11) % (uint64_t)n);
}

static inline void w_must(bool ok, const struct err *e)
{
    if (!ok)
        fail_msg("%s", e->msg);
}

static inline void w_open(struct world *w, int P, int window, bool frozen, bool least,
                          uint64_t seed)
{
    *w = (struct world){.cap = 2 * TREE_MAX + 40 + 4 * P, .rng = seed, .check.level = CHECK_ON};
    int cols = div_up(w->cap, P) + div_up(TREE_MAX, P) + 2;
    struct kv_shape s = {.page_size = P, .window = window};
    w->opts.draft_window = window && frozen ? window + 1 : window && seed % 3 == 0 ? window : 0;
    w->opts.draft_full = true;
    s.reach = frozen && window ? window + 1 : 0;
    s.full_pages = least ? cols + 2 : N_SEQ * cols + 1;
    s.swa_pages = !window ? 0 : least ? div_up(window, P) + div_up(TREE_MAX, P) + 4 : s.full_pages;
    s.draft_pages = frozen ? 0 : s.full_pages;
    kv_init(&w->kv, &s);
    w->kv.draft_window = s.draft_pages && seed % 2 ? 1 + (int)(seed % 13) : 0;
    for (int p = 0; p < N_POOLS; p++)
        if (w->kv.pool[p].total) {
            int slots = w->kv.pool[p].total * P;
            w->mem[p] = xcalloc((size_t)slots, sizeof *w->mem[p]);
            kv_back(&w->kv, (enum pool_id)p, w->mem[p], slots);
        }
}

static inline void w_close(struct world *w)
{
    for (int i = 0; i < N_SEQ; i++)
        kv_drop(&w->kv, &w->seq[i]);
    struct err e = {0};
    w_must(kv_check(&w->kv, NULL, 0, &e), &e);
    for (int p = 0; p < N_POOLS; p++) {
        assert_int_equal(w->kv.pool[p].total ? pool_used(&w->kv.pool[p]) : 0, 0);
        free(w->mem[p]);
    }
    plan_free(&w->plan);
    kv_free(&w->kv);
}

/* ---- what must be true ----------------------------------------------------------------------- */

static inline void w_check_cell(const struct world *w, int i, int cell)
{
    const struct seq *s = &w->seq[i];
    full_slot f = kv_full_slot(&w->kv, s, cell);
    assert_int_equal(w->mem[POOL_FULL][f.v], w->cells[i].tok[cell]);
    if (!w->kv.has_swa)
        return;
    swa_slot a = kv_swa_slot(&w->kv, f);
    int P = w->kv.page_size;
    if (cell >= s->swa_lo) {
        assert_true(a.v >= P);
        assert_int_equal(a.v % P, f.v % P); /* page affinity */
        assert_int_equal(w->mem[POOL_SWA][a.v], w->cells[i].tok[cell]);
    }
    assert_true(s->swa_lo <= max_int(0, s->committed - w->kv.reach));
}

static inline void w_check_some(struct world *w, int i)
{
    const struct seq *s = &w->seq[i];
    for (int k = 0; k < 2 && s->committed; k++)
        w_check_cell(w, i, w_below(w, s->committed));
    if (s->drafted > s->draft_lo) {
        int c = s->draft_lo + w_below(w, s->drafted - s->draft_lo);
        assert_int_equal(w->mem[POOL_DRAFT][kv_draft_slot(&w->kv, s, c).v], w->cells[i].dtok[c]);
    }
    for (int p = 0; p < N_POOLS; p++)
        assert_int_equal(w->kv.pool[p].n_refs, w->kv.held[p]);
}

static inline void w_check_all(struct world *w)
{
    const struct seq *all[N_SEQ];
    struct err e = {0};
    for (int i = 0; i < N_SEQ; i++) {
        all[i] = &w->seq[i];
        for (int c = 0; c < w->seq[i].committed; c++)
            w_check_cell(w, i, c);
        for (int c = w->seq[i].draft_lo; c < w->seq[i].drafted; c++)
            assert_int_equal(w->mem[POOL_DRAFT][kv_draft_slot(&w->kv, &w->seq[i], c).v],
                             w->cells[i].dtok[c]);
    }
    w_must(check_sweep(&w->kv, all, N_SEQ, &e), &e);
}

/* ---- passes ---------------------------------------------------------------------------------- */

static inline void w_copies(struct world *w)
{
    int P = w->kv.page_size;
    for (int i = 0; i < w->kv.n_copy; i++) {
        const struct page_copy *c = &w->kv.copy[i];
        memcpy(w->mem[c->pool] + c->dst * P, w->mem[c->pool] + c->src * P,
               (size_t)P * sizeof(int32_t));
    }
    w->kv.n_copy = 0;
}

/* The plan of a pass, checked; copies carried out, cells marked and written. */
static inline void w_pass(struct world *w, enum plan_mode mode, struct plan_req *req, int n)
{
    struct err e = {0};
    struct plan *p = &w->plan;
    w->opts.parts = 1 + w_below(w, 2);
    plan_build(p, &w->kv, mode, req, n, &w->opts);
    w_must(check_plan(&w->check, p, &w->kv, req, &e), &e);
    w->plans++;
    w->rows[mode] += (uint64_t)p->n_rows;
    w_copies(w);
    plan_mark(p, &w->kv, req);
    for (int r = 0; r < p->n_rows; r++) {
        if (p->table[TABLE_FULL].used && p->table[TABLE_FULL].write)
            w->mem[POOL_FULL][p->table[TABLE_FULL].write[r]] = p->token[r];
        if (p->table[TABLE_SWA].used && p->table[TABLE_SWA].write)
            w->mem[POOL_SWA][p->table[TABLE_SWA].write[r]] = p->token[r];
        if (p->table[TABLE_DRAFT].used)
            w->mem[POOL_DRAFT][p->table[TABLE_DRAFT].write[r]] = p->token[r];
    }
}

/* Up to MAX_BATCH different sequences for which fit() holds. */
static inline int w_batch(struct world *w, bool (*fit)(const struct world *w, int i),
                          int out[MAX_BATCH])
{
    int n = 0, want = w_below(w, MAX_BATCH + 1), from = w_below(w, N_SEQ);
    for (int k = 0; k < N_SEQ && n < want; k++)
        if (fit(w, (from + k) % N_SEQ))
            out[n++] = (from + k) % N_SEQ;
    return n;
}

/* Reserves cells. A refusal is right only if a pool is short, and must leave everything
 * unchanged. */
static inline bool w_reserve(struct world *w, int i, int upto)
{
    struct seq *s = &w->seq[i], before = *s;
    struct err e = {0};
    int missing = kv_columns_missing(&w->kv, s, upto), free_full = w->kv.pool[POOL_FULL].n_free;
    int free_swa = w->kv.has_swa ? w->kv.pool[POOL_SWA].n_free : INT32_MAX;
    bool ok = kv_reserve(&w->kv, s, upto, &e);
    w->ops++;
    assert_int_equal(ok, missing <= free_full && missing <= free_swa);
    if (!ok) {
        w->short_of++;
        assert_int_equal(e.kind, ERR_NEGATIVE);
        assert_int_equal(w->kv.pool[POOL_FULL].n_free, free_full);
        assert_memory_equal(&before, s, sizeof before);
    } else {
    }
    return ok;
}

static inline bool w_room(const struct world *w, int i)
{
    return w->seq[i].committed < w->cap - TREE_MAX - 1;
}
static inline bool w_started(const struct world *w, int i)
{
    return w->seq[i].committed > 0;
}
/* Whether a pass of the draft may read all cells that its window reaches. */
static inline bool w_can_draft(const struct world *w, int i)
{
    return w->kv.has_draft && kv_can_draft(&w->kv, &w->seq[i], w->seq[i].drafted);
}
static inline bool w_draft_behind(const struct world *w, int i)
{
    return w_can_draft(w, i) && w->seq[i].drafted < w->seq[i].committed;
}
static inline bool w_draft_level(const struct world *w, int i)
{
    return w_can_draft(w, i) && w->seq[i].drafted == w->seq[i].committed && w->seq[i].drafted > 0;
}

static inline void w_end_pass(struct world *w, const int *which, int n)
{
    for (int b = 0; b < n; b++) {
        struct seq *s = &w->seq[which[b]];
        if (w_below(w, 2)) {
            kv_release_window(&w->kv, s);
            w->ops++;
        }
        kv_rollback(&w->kv, s);
        w->ops++;
        w_check_some(w, which[b]);
    }
}

/* Rolls back the sequences that were reserved before another could not be. */
static inline int w_reserve_batch(struct world *w, int *which, int n, const int *rows)
{
    int got = 0;
    for (int b = 0; b < n; b++)
        if (w_reserve(w, which[b], w->seq[which[b]].committed + rows[b]))
            which[got++] = which[b];
        else
            n = b;
    return got;
}

static inline void w_linear(struct world *w, enum plan_mode mode)
{
    int which[MAX_BATCH], rows[MAX_BATCH];
    int32_t tok[MAX_BATCH][TREE_MAX];
    struct plan_req req[MAX_BATCH];
    int n = w_batch(w, w_room, which);
    for (int b = 0; b < n; b++) {
        rows[b] = mode == PLAN_DECODE ? 1 : 1 + w_below(w, w_below(w, 4) ? 9 : TREE_MAX);
        for (int i = 0; i < rows[b]; i++)
            tok[b][i] = 1 + w_below(w, 1000);
    }
    n = w_reserve_batch(w, which, n, rows);
    for (int b = 0; b < n; b++)
        req[b] = (struct plan_req){.seq = &w->seq[which[b]], .n = rows[b], .token = tok[b]};
    w_pass(w, mode, req, n);
    for (int b = 0; b < n; b++) {
        struct seq *s = &w->seq[which[b]];
        memcpy(w->cells[which[b]].tok + s->committed, tok[b], (size_t)rows[b] * sizeof(int32_t));
        kv_commit(&w->kv, s, s->committed + rows[b]);
        w->ops++;
    }
    w_end_pass(w, which, n);
}

static inline void w_tree(struct world *w, struct tree *t, int topk, int nodes)
{
    int level = 0, next = 1;
    tree_init(t, 1 + w_below(w, 1000));
    while (t->n < nodes) {
        int up = topk == 1 ? t->n - 1 : level + w_below(w, max_int(1, next - level));
        tree_add(t, up, 1 + w_below(w, 1000), 0.5f, -(float)t->n);
        if (t->n - next >= topk) {
            level = next;
            next = t->n;
        }
    }
}

/* The accepted path's cells move down next to the committed ones, as cycle.c does it. */
static inline void w_accept(struct world *w, int i, const struct tree *t)
{
    struct seq *s = &w->seq[i];
    int path[TREE_MAX], n = 0, node = w_below(w, t->n), P0 = s->committed;
    uint64_t anc = t->anc[node];
    for (int j = 0; j < t->n; j++)
        if (anc >> j & 1)
            path[n++] = j;
    for (int k = 0; k < n; k++) {
        full_slot from = kv_full_slot(&w->kv, s, P0 + path[k]),
                  to = kv_full_slot(&w->kv, s, P0 + k);
        swa_slot a = kv_swa_slot(&w->kv, from), b = kv_swa_slot(&w->kv, to);
        w->mem[POOL_FULL][to.v] = w->mem[POOL_FULL][from.v];
        kv_moved(&w->kv, POOL_FULL, from.v, to.v);
        if (w->kv.has_swa) {
            w->mem[POOL_SWA][b.v] = w->mem[POOL_SWA][a.v];
            kv_moved(&w->kv, POOL_SWA, a.v, b.v);
        }
        w->cells[i].tok[P0 + k] = t->token[path[k]];
    }
    kv_commit(&w->kv, s, P0 + n);
    w->ops++;
}

static inline void w_verify(struct world *w)
{
    int which[MAX_BATCH], rows[MAX_BATCH];
    struct tree tree[MAX_BATCH];
    struct plan_req req[MAX_BATCH];
    int n = w_batch(w, w_room, which), topk = 1 + w_below(w, 10);
    for (int b = 0; b < n; b++) {
        rows[b] = 1 + w_below(w, w_below(w, 4) ? 16 : TREE_MAX);
        w_tree(w, &tree[b], topk, rows[b]);
    }
    n = w_reserve_batch(w, which, n, rows);
    for (int b = 0; b < n; b++)
        req[b] = (struct plan_req){.seq = &w->seq[which[b]], .n = rows[b], .token = tree[b].token,
                                   .tree = &tree[b]};
    w_pass(w, PLAN_VERIFY, req, n);
    for (int b = 0; b < n; b++)
        if (w_below(w, 8)) /* else the step is cancelled: nothing is accepted */
            w_accept(w, which[b], &tree[b]);
    w_end_pass(w, which, n);
}

static inline bool w_reserve_draft(struct world *w, int i, int from, int upto)
{
    struct err e = {0};
    struct seq *s = &w->seq[i];
    int drafted = s->drafted, free_pages = w->kv.pool[POOL_DRAFT].n_free;
    bool ok = kv_reserve_draft(&w->kv, s, from, upto, &e);
    w->ops++;
    if (!ok) {
        w->short_of++;
        assert_int_equal(s->drafted, drafted);
        assert_int_equal(w->kv.pool[POOL_DRAFT].n_free, free_pages);
        assert_true(free_pages < div_up(upto, w->kv.page_size));
    }
    return ok;
}

static inline void w_draft_extend(struct world *w)
{
    int which[MAX_BATCH], n = w_batch(w, w_draft_behind, which), got = 0;
    int32_t tok[MAX_BATCH][MAX_CELLS];
    struct plan_req req[MAX_BATCH];
    for (int b = 0; b < n; b++) {
        struct seq *s = &w->seq[which[b]];
        int from = max_int(0, s->drafted - w_below(w, 2));
        int upto = from + 1 + w_below(w, s->committed - from);
        if (!w_reserve_draft(w, which[b], from, upto))
            continue;
        for (int i = 0; i < upto - from; i++)
            tok[got][i] = 1 + w_below(w, 1000);
        req[got] = (struct plan_req){.seq = s, .n = upto - from, .token = tok[got],
                                     .draft_from = from};
        which[got++] = which[b];
    }
    w_pass(w, PLAN_DRAFT_EXTEND, req, got);
    for (int b = 0; b < got; b++) {
        memcpy(w->cells[which[b]].dtok + req[b].draft_from, tok[b],
               (size_t)req[b].n * sizeof(int32_t));
        kv_commit_draft(&w->kv, &w->seq[which[b]], req[b].draft_from + req[b].n);
        w->ops++;
        w_check_some(w, which[b]);
    }
}

/* Levels of a draft over scratch cells, as drafter_grow() lays them out. */
static inline void w_draft(struct world *w)
{
    enum { TOP = 10, LEVELS = 5 };
    static struct draft_row row[MAX_BATCH][2][TOP];
    int which[MAX_BATCH], n = w_batch(w, w_draft_level, which), got = 0;
    int topk = 1 + w_below(w, TOP), levels = 1 + w_below(w, LEVELS);
    for (int b = 0; b < n; b++)
        if (w_reserve_draft(w, which[b], w->seq[which[b]].drafted,
                            w->seq[which[b]].drafted + levels * topk))
            which[got++] = which[b];
    for (int level = 0; level < levels; level++) {
        struct plan_req req[MAX_BATCH];
        int32_t tok[TOP] = {0};
        for (int b = 0; b < got; b++) {
            for (int k = 0; k < topk; k++) {
                struct draft_row *d = &row[b][level & 1][k];
                const struct draft_row *up = &row[b][~level & 1][w_below(w, topk)];
                *d = level ? *up : (struct draft_row){0};
                d->depth = level + 1;
                d->up = -1;
                d->cell = w->seq[which[b]].drafted + level * topk + k;
                d->seen[d->n_seen++] = d->cell;
            }
            req[b] = (struct plan_req){.seq = &w->seq[which[b]], .n = topk, .token = tok,
                                       .draft = row[b][level & 1], .levels = levels, .topk = topk};
        }
        w_pass(w, PLAN_DRAFT, req, got);
    }
    w_end_pass(w, which, got);
}

/* One block of scratch cells a sequence, of layers of either kind. */
static inline void w_block(struct world *w)
{
    enum { MOST = 17 };
    int which[MAX_BATCH], n = w_batch(w, w_draft_level, which), got = 0, rows = 4 + w_below(w, 14);
    int32_t tok[MAX_BATCH][MOST];
    struct plan_req req[MAX_BATCH];
    for (int b = 0; b < n; b++) {
        struct seq *s = &w->seq[which[b]];
        if (!w_reserve_draft(w, which[b], s->drafted, s->drafted + rows))
            continue;
        for (int i = 0; i < rows; i++)
            tok[got][i] = 1 + w_below(w, 1000);
        req[got] = (struct plan_req){.seq = s, .n = rows, .token = tok[got]};
        which[got++] = which[b];
    }
    for (int i = 0; i < 2; i++)
        w->opts.draft_causal[i] = w_below(w, 2);
    w_pass(w, PLAN_BLOCK, req, got);
    w_end_pass(w, which, got);
}

static inline void w_frozen(struct world *w)
{
    int which[MAX_BATCH], n = w_batch(w, w_started, which);
    int32_t tok[10] = {0};
    struct plan_req req[MAX_BATCH];
    for (int b = 0; b < n; b++)
        req[b] = (struct plan_req){.seq = &w->seq[which[b]], .n = 1 + w_below(w, 10), .token = tok};
    w_pass(w, PLAN_FROZEN, req, n);
}

static inline void w_fork(struct world *w, int from, int to)
{
    int n = 1 + w_below(w, w->seq[from].committed + 1);
    int drafted = w_below(w, min_int(n, w->seq[from].drafted + 1));
    kv_drop(&w->kv, &w->seq[to]);
    if (w_below(w, 2) && kv_can_fork_at(&w->kv, &w->seq[from], n))
        /* below n: the draft's cell n - 1 was computed with the token after it, which may differ */
        kv_fork_at(&w->kv, &w->seq[from], n,
                   kv_can_draft(&w->kv, &w->seq[from], drafted) ? drafted : 0, &w->seq[to]);
    else
        kv_fork(&w->kv, &w->seq[from], &w->seq[to]);
    w->cells[to] = w->cells[from];
    w->ops += 2;
    w_check_some(w, to);
}

static inline void w_op(struct world *w)
{
    int what = w_below(w, 20), i = w_below(w, N_SEQ), j = w_below(w, N_SEQ);
    if (what < 4)
        w_linear(w, PLAN_EXTEND);
    else if (what < 6)
        w_linear(w, PLAN_DECODE);
    else if (what < 10)
        w_verify(w);
    else if (what < 13 && w->kv.has_draft)
        w_draft_extend(w);
    else if (what < 15 && w->kv.has_draft)
        (w_below(w, 2) ? w_draft : w_block)(w);
    else if (what < 15 && w->kv.has_swa)
        w_frozen(w);
    else if (what < 17 && i != j)
        w_fork(w, i, j);
    else if (what < 19)
        kv_release_window(&w->kv, &w->seq[i]);
    else
        kv_drop(&w->kv, &w->seq[i]);
    if (!w_room(w, j) && w_below(w, 3) == 0)
        kv_drop(&w->kv, &w->seq[j]);
    if (w->kv.has_draft && w_below(w, 100) == 0) { /* /set draft.window between two turns */
        w->kv.draft_window = w_below(w, 3) ? 1 + w_below(w, 20) : 0;
        for (int k = 0; k < N_SEQ; k++)
            if (!w_can_draft(w, k) && w_below(w, 2))
                kv_drop(&w->kv, &w->seq[k]); /* the conversation is computed again */
    }
    w->ops++;
}
