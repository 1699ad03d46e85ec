/* test_check.c - the checker against mutations: one thing of a valid plan, a pool, a map, a tree or
 * a mark is changed, and the rule that forbids it must say so. Each of them over many random
 * states. */
#include "tests/kv_kit.h"

#include "kernels/json.h"
#include "engine/fault.h"
#include "engine/plan/plan.h"
#include "engine/tools/case.h"

#include <stdio.h>

/* ---- a valid plan in a random world ---------------------------------------------------------- */

struct shot {
    struct world *w;
    struct plan *p;
    int n, which[MAX_BATCH];
    struct plan_req req[MAX_BATCH];
    struct tree tree[MAX_BATCH];
    struct draft_row row[MAX_BATCH][10];
    int32_t tok[MAX_BATCH][TREE_MAX];
    int b, r, c; /* a request, one of its rows, a visible column of it */
    struct table *t;
    struct err e;
};

static bool all_fit(const struct world *w, int i)
{
    return w->seq[i].committed > 1 && w_room(w, i);
}

/* Some plans of one request have their pages in a list. */
static struct page_list list;
static int listed;

static kbuf no_room(struct kdev *d, size_t bytes, const char *what, struct err *e)
{
    (void)d, (void)what, (void)e;
    return (kbuf){&list, bytes}; /* nobody follows it: nothing is sent */
}
static void no_release(struct kdev *d, kbuf b)
{
    (void)d, (void)b;
}
static const struct kernels no_device = {.alloc = no_room, .release = no_release};

/* Builds a plan of `mode` over reserved cells; a tree may have fewer nodes than rows. */
static bool shoot(struct shot *s, enum plan_mode mode, int parts)
{
    struct world *w = s->w;
    bool draft = mode == PLAN_DRAFT;
    s->n = w_batch(w, draft || mode == PLAN_BLOCK ? w_draft_level : mode == PLAN_DRAFT_EXTEND
                   ? w_draft_behind : all_fit, s->which);
    int got = 0;
    for (int k = 0; k < s->n; k++) {
        struct seq *q = &w->seq[s->which[k]];
        int n = mode == PLAN_BLOCK && got ? s->req[0].n : 2 + w_below(w, 5);
        struct plan_req *r = &s->req[got];
        *r = (struct plan_req){.seq = q, .n = mode == PLAN_DECODE ? 1 : n, .token = s->tok[got]};
        for (int i = 0; i < n; i++)
            s->tok[got][i] = 1 + w_below(w, 1000);
        bool ok = true;
        if (mode == PLAN_VERIFY) {
            w_tree(w, &s->tree[got], 2, n);
            r->tree = &s->tree[got];
            r->token = s->tree[got].token;
            r->n += w_below(w, 4) ? 0 : w_below(w, 3);
        }
        if (draft) {
            ok = w_reserve_draft(w, s->which[k], q->drafted, q->drafted + n);
            for (int i = 0; i < n; i++) {
                s->row[got][i] = (struct draft_row){.depth = 1, .cell = q->drafted + i, .up = -1,
                                                    .n_seen = 1};
                s->row[got][i].seen[0] = q->drafted + i;
            }
            r->draft = s->row[got];
        } else if (mode == PLAN_DRAFT_EXTEND) {
            r->n = min_int(n, q->committed - q->drafted);
            r->draft_from = q->drafted;
            ok = w_reserve_draft(w, s->which[k], q->drafted, q->drafted + r->n);
        } else if (mode == PLAN_BLOCK) {
            ok = w_reserve_draft(w, s->which[k], q->drafted, q->drafted + r->n);
        } else if (mode != PLAN_FROZEN) {
            ok = w_reserve(w, s->which[k], q->committed + r->n);
        }
        s->which[got] = s->which[k];
        got += ok;
    }
    s->n = got;
    if (got == 0)
        return false;
    w->opts.parts = parts;
    for (int k = 0; k < 2; k++)
        w->opts.draft_causal[k] = w_below(w, 2);
    w->opts.list = got == 1 && w_below(w, 2) ? &list : NULL;
    plan_build(s->p, &w->kv, mode, s->req, got, &w->opts);
    listed += w->opts.list != NULL;
    w->opts.list = NULL;
    if (!check_plan(&w->check, s->p, &w->kv, s->req, &s->e))
        fail_msg("false alarm: %s", s->e.msg);
    s->b = w_below(w, got);
    s->r = s->p->row0[s->b] + w_below(w, s->p->q_len[s->b]);
    return true;
}

/* Whether a message that names something names the number that the field holds. */
static bool names(const char *message, const char *what, int v)
{
    char text[40];
    snprintf(text, sizeof text, " %s %d", what, v);
    return strstr(message, what) == NULL || v < 0 || strstr(message, text) != NULL;
}

/* The fields of a violation say what its message says. */
static void assert_agrees(const struct err *e, enum plan_mode mode)
{
    const struct violation *at = &e->at;
    const char *message = e->msg;
    if (at->mode >= 0 ? at->mode != (int)mode || !strstr(message, plan_mode_name(mode))
                      : at->pool < 0)
        fail_msg("plan %d and pool %d beside: %s", at->mode, at->pool, message);
    if (at->pool >= 0 && !strstr(message, pool_name((enum pool_id)at->pool)))
        fail_msg("pool %d beside: %s", at->pool, message);
    if ((strstr(message, " row ") && at->row < 0) ||
        (strstr(message, " column ") && at->column < 0) ||
        (strstr(message, " cell ") && at->cell < 0) || !names(message, "row", at->row) ||
        !names(message, "column", at->column) || !names(message, "cell", at->cell) ||
        !names(message, "page", at->page))
        fail_msg("another place than in: %s", message);
    if (at->compared && at->found == at->expected)
        fail_msg("found what was expected beside: %s", message);
}

/* ---- changing one thing and putting it back -------------------------------------------------- */

static struct {
    void *at;
    size_t n;
    char old[64];
} undo[8];
static int n_undo;

static void poke(void *at, const void *value, size_t n)
{
    assert_true(n <= sizeof undo->old && n_undo < 8);
    undo[n_undo].at = at;
    undo[n_undo].n = n;
    memcpy(undo[n_undo++].old, at, n);
    memcpy(at, value, n);
}
static bool set(int32_t *at, int32_t v)
{
    if (*at == v)
        return false;
    poke(at, &v, sizeof v);
    return true;
}
static void put_back(void)
{
    while (n_undo--)
        memcpy(undo[n_undo].at, undo[n_undo].old, undo[n_undo].n);
    n_undo = 0;
}

/* ---- the mutations
 * ------------------------------------------------------------------------------------------ * Each
 * returns false where it does not apply. */

#define M(name) static bool name(struct shot *s)

static struct seq *seq_of(const struct shot *s)
{
    return (struct seq *)(uintptr_t)s->req[s->b].seq;
}
/* A column of the request that some row of table t reads. */
static bool column(struct shot *s, struct table *t)
{
    int P = s->w->kv.page_size, r = s->r;
    if (t->lo[r] >= t->hi[r])
        return false;
    s->t = t;
    s->c = (t->lo[r] + w_below(s->w, t->hi[r] - t->lo[r])) / P;
    return true;
}
static int32_t *page_of(struct shot *s)
{
    return &s->t->pages[s->b * s->t->n_cols + s->c];
}

M(prefix_longer) { return set(&s->p->prefix_len[s->b], s->p->prefix_len[s->b] + 1); }
M(rows_fewer) { return set(&s->p->q_len[s->b], s->p->q_len[s->b] - 1); }
M(extent_longer) { return set(&s->p->kv_len[s->b], s->p->kv_len[s->b] + 1); }
M(extent_shorter) { return set(&s->p->kv_len[s->b], s->p->prefix_len[s->b] - 1); }
M(extent_is_prefix) { return set(&s->p->kv_len[s->b], s->p->prefix_len[s->b]); }
M(extent_twice) { return set(&s->p->kv_len[s->b], s->p->kv_len[s->b] + s->p->q_len[s->b]); }
M(first_row_moved) { return set(&s->p->row0[s->b + 1], s->p->row0[s->b + 1] - 1); }
M(row_of_another) { return set(&s->p->req[s->r], s->b + 1); }
M(position_later) { return set(&s->p->pos[s->r], s->p->pos[s->r] + 1); }
M(other_parent) { return set(&s->p->up[s->r], s->r); }
M(other_token) { return set(&s->p->token[s->r], 5000); }

M(full_page_foreign)
{
    return column(s, &s->p->table[TABLE_FULL]) &&
           set(page_of(s), 1 + *page_of(s) % (s->w->kv.pool[0].total - 1));
}
M(full_page_zero) { return column(s, &s->p->table[TABLE_FULL]) && set(page_of(s), 0); }
M(swa_page_is_full_page)
{
    return s->p->table[TABLE_SWA].used && column(s, &s->p->table[TABLE_SWA]) &&
           set(page_of(s), seq_of(s)->col[s->c].full.v);
}
M(swa_page_outside)
{
    return s->p->table[TABLE_SWA].used && column(s, &s->p->table[TABLE_SWA]) &&
           set(page_of(s), s->w->kv.pool[POOL_SWA].total);
}
M(swa_page_zero) { return s->p->table[TABLE_SWA].used && column(s, &s->p->table[TABLE_SWA]) &&
                  set(page_of(s), 0); }
M(draft_page_foreign)
{
    return column(s, &s->p->table[TABLE_DRAFT]) &&
           set(page_of(s), 1 + *page_of(s) % (s->w->kv.pool[2].total - 1));
}
static struct table *main_table(struct shot *s);
M(page_not_live)
{
    uint16_t none = 0;
    if (!column(s, main_table(s)) || *page_of(s) == 0)
        return false;
    poke(&s->w->kv.pool[s->t->pool].ref[*page_of(s)], &none, sizeof none);
    return true;
}
M(draft_page_zero) { return column(s, &s->p->table[TABLE_DRAFT]) && set(page_of(s), 0); }
M(draft_window_wider)
{
    struct table *t = &s->p->table[TABLE_DRAFT];
    return set(&t->window, t->window + 1);
}
M(draft_window_off)
{
    struct table *t = &s->p->table[TABLE_DRAFT];
    return t->window && set(&t->window, 0);
}
M(draft_own_window_wider)
{
    struct table *t = &s->p->table[TABLE_DRAFT_SWA];
    return t->used && s->w->kv.draft_window && set(&t->window, s->w->kv.draft_window + 1);
}
M(draft_row_unbounded)
{
    struct table *t = &s->p->table[TABLE_DRAFT];
    return t->lo[s->r] > 0 && set(&t->lo[s->r], 0);
}
M(draft_window_moved)
{
    struct table *t = &s->p->table[TABLE_DRAFT];
    return t->window && t->lo[s->r] > 0 && set(&t->lo[s->r], t->lo[s->r] - 1) &&
           set(&t->hi[s->r], t->hi[s->r] - 1);
}
M(draft_released_too_early)
{
    return column(s, &s->p->table[TABLE_DRAFT]) &&
           (s->c + 1) * s->w->kv.page_size <= s->p->prefix_len[s->b] && /* no row writes there */
           set(&seq_of(s)->dcol[s->c].v, 0) && set(page_of(s), 0);
}
M(too_few_columns)
{
    struct table *t = s->p->table[TABLE_FULL].used ? &s->p->table[TABLE_FULL]
                                                   : &s->p->table[TABLE_DRAFT];
    return set(&t->n_cols, t->n_cols - 1);
}

static struct table *main_table(struct shot *s)
{
    struct table *t = s->p->table;
    if (t[TABLE_SWA].used && w_below(s->w, 2))
        return &t[TABLE_SWA];
    return t[TABLE_FULL].used ? &t[TABLE_FULL] : &t[TABLE_DRAFT];
}
M(begins_later) { int32_t *v = &main_table(s)->lo[s->r]; return set(v, *v + 1); }
M(begins_earlier) { int32_t *v = &main_table(s)->lo[s->r]; return *v > 0 && set(v, *v - 1); }
M(ends_later) { int32_t *v = &main_table(s)->hi[s->r]; return set(v, *v + 1); }
M(ends_earlier) { int32_t *v = &main_table(s)->hi[s->r]; return set(v, *v - 1); }
M(no_window)
{
    return s->p->table[TABLE_SWA].used && s->p->table[TABLE_SWA].window &&
           set(&s->p->table[TABLE_SWA].lo[s->r], 0);
}
M(one_node_more) { int32_t *v = &main_table(s)->n_expand[s->r]; return set(v, *v + 1); }
M(one_node_less)
{
    int32_t *v = &main_table(s)->n_expand[s->r];
    return *v > 0 && set(v, *v - 1);
}
M(nodes_negative) { return set(&main_table(s)->n_expand[s->r], -1); }
static int32_t *node_slot(struct shot *s)
{
    struct table *t = main_table(s);
    return t->n_expand[s->r] ? &t->expand[s->r * t->expand_w + w_below(s->w, t->n_expand[s->r])]
                             : NULL;
}
M(node_slot_next) { int32_t *v = node_slot(s); return v && set(v, *v + 1); }
M(node_slot_guard)
{
    int32_t *v = node_slot(s);
    return v && set(v, w_below(s->w, s->w->kv.page_size));
}
M(sibling_seen)
{
    struct table *t = main_table(s);
    int last = s->p->row0[s->b + 1] - 1;
    int32_t *v = &t->expand[s->r * t->expand_w + t->n_expand[s->r] - 1];
    return s->r != last && t->n_expand[s->r] && set(v, t->write[last]);
}
M(writes_next) { int32_t *v = &main_table(s)->write[s->r]; return set(v, *v + 1); }
M(writes_guard) { return set(&main_table(s)->write[s->r], 0); }
M(writes_another_row)
{
    struct table *t = main_table(s);
    return s->p->row0[s->b] != s->r && set(&t->write[s->r], t->write[s->p->row0[s->b]]);
}
M(writes_shared_page)
{
    struct table *t = main_table(s);
    uint16_t two = 2;
    poke(&s->w->kv.pool[t->pool].ref[t->write[s->r] / s->w->kv.page_size], &two, sizeof two);
    return true;
}
M(frozen_writes) { s->p->table[TABLE_FULL].write = s->p->pos; return true; }
M(window_wider) { return s->p->table[TABLE_SWA].used && set(&s->p->table[TABLE_SWA].window,
                                                            s->p->table[TABLE_SWA].window + 1); }
M(window_on_full) { return set(&s->p->table[TABLE_FULL].window, 4); }
M(other_epoch)
{
    struct table *t = main_table(s);
    uint32_t v = w_below(s->w, 2) ? t->epoch - 1 : t->epoch + 1;
    poke(&t->epoch, &v, sizeof v);
    return true;
}
M(other_memory)
{
    const void *v = s;
    poke(&main_table(s)->base, &v, sizeof v);
    return true;
}
M(other_pool)
{
    enum pool_id v = POOL_FULL;
    if (!s->p->table[TABLE_SWA].used)
        return false;
    poke(&s->p->table[TABLE_SWA].pool, &v, sizeof v);
    return true;
}
M(other_page_size) { struct table *t = main_table(s); return set(&t->page_size, t->page_size * 2); }

M(behind_pages)
{
    struct table *t = main_table(s);
    return set(&t->pages[s->p->list ? s->p->list->cols : s->p->n_req * t->n_cols], 1);
}
M(behind_lo) { return set(&main_table(s)->lo[s->p->n_rows], 1); }
M(behind_hi) { return set(&main_table(s)->hi[s->p->n_rows + RED_ZONE - 1], 1); }
M(behind_n_expand) { return set(&main_table(s)->n_expand[s->p->n_rows], 1); }
M(behind_expand)
{
    struct table *t = main_table(s);
    return set(&t->expand[s->p->n_rows * t->expand_w + 1], 1);
}
M(behind_write) { return set(&main_table(s)->write[s->p->n_rows], 1); }

static struct table *part_table(struct shot *s)
{
    return s->p->table[TABLE_SWA].used && w_below(s->w, 2) ? &s->p->prefix[TABLE_SWA]
                                                           : &s->p->prefix[TABLE_FULL];
}
M(part_runs_on) { int32_t *v = &part_table(s)->hi[s->r]; return set(v, *v + 1); }
M(part_too_short) { int32_t *v = &part_table(s)->hi[s->r]; return set(v, *v - 1); }
M(part_begins_later) { int32_t *v = &part_table(s)->lo[s->r]; return set(v, *v + 1); }
M(part_overlaps) { int32_t *v = &main_table(s)->lo[s->r]; return set(v, *v - 1); }

static struct pool *any_pool(struct shot *s)
{
    int id = w_below(s->w, N_POOLS);
    return s->w->kv.pool[id].total ? &s->w->kv.pool[id] : &s->w->kv.pool[POOL_FULL];
}
M(free_lost) { struct pool *p = any_pool(s); return p->n_free && set(&p->n_free, p->n_free - 1); }
M(owned_lost) { struct pool *p = any_pool(s); return set(&p->n_owned, p->n_owned - 1); }
M(next_free_is_owned)
{
    struct pool *p = &s->w->kv.pool[POOL_FULL];
    return p->n_free && set(&p->free[p->n_free - 1], seq_of(s)->col[0].full.v);
}
M(next_free_is_guard)
{
    struct pool *p = any_pool(s);
    return p->n_free && set(&p->free[p->n_free - 1], 0);
}
M(next_free_is_outside)
{
    struct pool *p = any_pool(s);
    return p->n_free && set(&p->free[p->n_free - 1], p->total);
}
M(one_reference_more) { struct pool *p = any_pool(s); return set(&p->n_refs, p->n_refs + 1); }
M(one_holder_less) { int32_t *v = &s->w->kv.held[any_pool(s)->id]; return set(v, *v - 1); }
M(guard_is_live) { uint16_t one = 1; poke(&any_pool(s)->ref[0], &one, sizeof one); return true; }
static int one_page_fewer(const struct kv *kv, enum pool_id pool, int pages)
{
    return pool == POOL_DRAFT ? kv->pool[POOL_FULL].total - GUARD_PAGES - 1 : pages;
}
M(draft_pool_smaller)
{
    int (*fewer)(const struct kv *kv, enum pool_id pool, int pages) = one_page_fewer;
    if (s->w->kv.has_draft)
        poke(&s->w->kv.hook.capacity, &fewer, sizeof fewer);
    return s->w->kv.has_draft;
}
M(memory_smaller)
{
    struct backing *m = &s->w->kv.mem[any_pool(s)->id];
    return set(&m->slots, m->slots - 1);
}
M(map_elsewhere)
{
    if (!s->p->table[TABLE_SWA].used || !column(s, &s->p->table[TABLE_SWA]))
        return false;
    int32_t f = seq_of(s)->col[s->c].full.v, *v = &s->w->kv.swa_of[f];
    return set(v, *v + 1);
}
M(inverse_elsewhere)
{
    return s->p->table[TABLE_SWA].used && column(s, &s->p->table[TABLE_SWA]) &&
           set(&s->w->kv.full_of[*page_of(s)], 0);
}
M(released_too_early)
{
    return s->p->table[TABLE_SWA].used && column(s, &s->p->table[TABLE_SWA]) &&
           set(&seq_of(s)->col[s->c].swa.v, 0) && set(page_of(s), 0);
}
M(committed_behind_plan) { return set(&seq_of(s)->committed, seq_of(s)->committed + 1); }
M(draft_lags) { return set(&seq_of(s)->committed, seq_of(s)->committed + 1); }
M(draft_pair_of_another)
{
    struct seq *q = seq_of(s);
    if (q->drafted == 0 || q->drafted >= q->committed)
        return false;
    return set(&q->next, 1 + s->w->kv.mark[POOL_FULL]
                                 [kv_full_slot(&s->w->kv, q, q->drafted).v].token);
}
M(draft_ahead) { return set(&seq_of(s)->committed, s->p->kv_len[s->b] - 1); }

M(parent_after_child)
{
    struct tree *t = &s->tree[s->b];
    int8_t v = (int8_t)(t->n - 1);
    poke(&t->parent[t->n - 1], &v, 1);
    return t->n > 1;
}
M(depth_wrong)
{
    struct tree *t = &s->tree[s->b];
    int8_t v = (int8_t)(t->depth[t->n - 1] + 1);
    poke(&t->depth[t->n - 1], &v, 1);
    return t->n > 1;
}
M(ancestor_missing)
{
    struct tree *t = &s->tree[s->b];
    uint64_t v = t->anc[t->n - 1] & ~UINT64_C(1);
    poke(&t->anc[t->n - 1], &v, sizeof v);
    return t->n > 1;
}
M(stranger_among_ancestors)
{
    struct tree *t = &s->tree[s->b];
    uint64_t v = t->anc[t->n - 1] ^ UINT64_C(1) << 62;
    poke(&t->anc[t->n - 1], &v, sizeof v);
    return true;
}

static struct mark *tail_mark(struct shot *s, enum pool_id pool)
{
    const struct seq *q = s->req[s->b].seq;
    full_slot f = kv_full_slot(&s->w->kv, q, q->committed - 1);
    return &s->w->kv.mark[pool][pool == POOL_FULL ? f.v : kv_swa_slot(&s->w->kv, f).v];
}
M(tail_unwritten) { return set(&tail_mark(s, POOL_FULL)->pos, -1); }
M(tail_of_another)
{
    struct mark *m = tail_mark(s, POOL_FULL);
    return set(&m->token, m->token + 1);
}
M(swa_tail_unwritten) { return s->p->table[TABLE_SWA].used && set(&tail_mark(s, POOL_SWA)->pos,
                                                                  -1); }
M(swa_tail_of_another)
{
    struct mark *m = s->p->table[TABLE_SWA].used ? tail_mark(s, POOL_SWA) : NULL;
    return m && set(&m->token, m->token + 1);
}
M(other_history)
{
    struct seq *q = seq_of(s);
    uint64_t v = q->tail + 1;
    poke(&q->tail, &v, sizeof v);
    return true;
}
static struct mark *inner_mark(struct shot *s)
{
    const struct seq *q = s->req[s->b].seq;
    int cell = w_below(s->w, q->committed);
    return &s->w->kv.mark[POOL_FULL][kv_full_slot(&s->w->kv, q, cell).v];
}
M(strict_inner_token) { struct mark *m = inner_mark(s); return set(&m->token, m->token + 1); }
M(strict_inner_unwritten) { return set(&inner_mark(s)->pos, -1); }

static struct table *block_table(struct shot *s, bool causal)
{
    for (int i = 0, at = w_below(s->w, 2); i < 2; i++) {
        struct table *t = &s->p->table[TABLE_DRAFT + (at + i) % 2];
        if (t->used && t->causal == causal)
            return t;
    }
    return NULL;
}
/* The row's cells end at its own, as in a causal layer. */
M(block_cut)
{
    struct table *t = block_table(s, false);
    return t && set(&t->n_expand[s->r], s->r - s->p->row0[s->b] + 1);
}
M(block_looks_ahead)
{
    struct table *t = block_table(s, true);
    return t && s->r + 1 < s->p->row0[s->b + 1] && set(&t->n_expand[s->r], t->n_expand[s->r] + 1);
}
M(block_kind)
{
    struct table *t = block_table(s, w_below(s->w, 2));
    bool other = t && !t->causal;
    if (t)
        poke(&t->causal, &other, sizeof other);
    return t != NULL;
}
/* Two rows of the block change places in a row's sight: the same keys, in another order. */
M(block_order)
{
    struct table *t = block_table(s, w_below(s->w, 2));
    int32_t *v = t ? &t->expand[s->r * t->expand_w] : NULL, first = v ? *v : 0;
    return t && t->n_expand[s->r] > 1 && set(v, v[1]) && set(v + 1, first);
}
M(block_window_slides)
{
    int row0 = s->p->row0[s->b];
    for (int i = TABLE_DRAFT; i < N_TABLES; i++) {
        struct table *t = &s->p->table[i];
        if (t->used && s->r > row0 && set(&t->lo[s->r], t->lo[row0]))
            return true;
    }
    return false;
}

#undef M

#define LINE (1 << PLAN_EXTEND | 1 << PLAN_DECODE)
#define TREE (1 << PLAN_VERIFY)
#define TARGET (LINE | TREE)
#define LEVEL (1 << PLAN_DRAFT)
#define FOLLOW (1 << PLAN_DRAFT_EXTEND)
#define STILL (1 << PLAN_FROZEN)
#define BLOCK (1 << PLAN_BLOCK)
#define WRITING (TARGET | LEVEL | FOLLOW | BLOCK)
#define EITHER (WRITING | STILL)
#define PARTS 256  /* extend in two parts */
#define STRICT 512

static const struct mutation {
    const char *name;
    bool (*change)(struct shot *s);
    int modes;
    const char *rules; /* any of these may be the one that says so */
} mutations[] = {
    {"prefix_len + 1", prefix_longer, EITHER, "I9"},
    {"q_len - 1", rows_fewer, EITHER, "I9"},
    {"kv_len + 1", extent_longer, TARGET | FOLLOW | STILL | BLOCK, "I9"},
    {"kv_len below prefix_len", extent_shorter, EITHER, "I9"},
    {"kv_len = prefix_len", extent_is_prefix, TARGET | FOLLOW | BLOCK, "I9"},
    {"kv_len counts q_len twice", extent_twice, TARGET | FOLLOW | BLOCK, "I9"},
    {"row0 - 1", first_row_moved, EITHER, "I9"},
    {"a row of another request", row_of_another, EITHER, "I9"},
    {"a position off by one", position_later, LINE | FOLLOW | STILL | BLOCK, "I9"},
    {"a node's position off by one", position_later, TREE | LEVEL, "I13"},
    {"a row follows itself", other_parent, LINE | FOLLOW | STILL | BLOCK, "I9"},
    {"a node follows itself", other_parent, TREE | LEVEL, "I13"},
    {"another token", other_token, EITHER, "I9"},
    {"another full page", full_page_foreign, TARGET | STILL, "I10"},
    {"full page 0", full_page_zero, TARGET | STILL, "I10"},
    {"a full page in the swa table", swa_page_is_full_page, TARGET | STILL, "I4"},
    {"an swa page past the pool", swa_page_outside, TARGET | STILL, "I4"},
    {"swa page 0", swa_page_zero, TARGET | STILL, "I4"},
    {"another draft page", draft_page_foreign, LEVEL | FOLLOW | BLOCK, "I10"},
    {"a page that nobody holds", page_not_live, EITHER, "I10 I6"},
    {"draft page 0", draft_page_zero, LEVEL | FOLLOW | BLOCK, "I10"},
    {"the draft's window one wider", draft_window_wider, LEVEL | FOLLOW | BLOCK, "I12"},
    {"the draft's window off", draft_window_off, LEVEL | FOLLOW | BLOCK, "I12"},
    {"a draft's own window past the draft's", draft_own_window_wider, LEVEL | FOLLOW, "I12"},
    {"a draft row sees all", draft_row_unbounded, LEVEL | FOLLOW | BLOCK, "I12"},
    {"a draft row's window one earlier", draft_window_moved, LEVEL | FOLLOW | BLOCK, "I12"},
    {"a draft page released too early", draft_released_too_early, LEVEL | FOLLOW, "I5"},
    {"a column too few", too_few_columns, EITHER, "I7"},
    {"lo + 1", begins_later, EITHER, "I12"},
    {"lo - 1", begins_earlier, EITHER, "I12"},
    {"hi + 1", ends_later, EITHER, "I12"},
    {"hi - 1", ends_earlier, EITHER, "I12"},
    {"no window", no_window, TARGET | STILL, "I12"},
    {"a node more than there is", one_node_more, TREE | LEVEL | BLOCK, "I7 I18"},
    {"a node too few", one_node_less, TREE | LEVEL | BLOCK, "I18"},
    {"fewer than no nodes", nodes_negative, EITHER, "I7"},
    {"the slot next to a node's", node_slot_next, TREE | LEVEL | BLOCK, "I4 I18"},
    {"a node in the guard page", node_slot_guard, TREE | LEVEL | BLOCK, "I8"},
    {"a sibling in a node's sight", sibling_seen, TREE | LEVEL, "I18"},
    {"a row of a block sees it up to itself", block_cut, BLOCK, "I18"},
    {"a causal row of a block looks ahead", block_looks_ahead, BLOCK, "I18"},
    {"a block of the other kind of layers", block_kind, BLOCK, "I18"},
    {"a block in another order", block_order, BLOCK, "I4 I18"},
    {"a block's window stays at its first row", block_window_slides, BLOCK, "I12"},
    {"the slot next to the row's is written", writes_next, WRITING, "I4"},
    {"the guard page is written", writes_guard, WRITING, "I8"},
    {"two rows write one slot", writes_another_row, WRITING, "I4"},
    {"a shared page is written", writes_shared_page, WRITING, "I6"},
    {"a frozen pass writes", frozen_writes, STILL, "I6 I7"},
    {"a window one wider", window_wider, TARGET, "I12"},
    {"a window on full layers", window_on_full, TARGET | STILL, "I12"},
    {"another epoch", other_epoch, EITHER, "I11"},
    {"other memory", other_memory, EITHER, "I11"},
    {"another pool's table", other_pool, TARGET | STILL, "I11"},
    {"another page size", other_page_size, EITHER, "I11"},
    {"a word behind pages", behind_pages, EITHER, "I7"},
    {"a word behind lo", behind_lo, EITHER, "I7"},
    {"a word behind hi", behind_hi, EITHER, "I7"},
    {"a word behind n_expand", behind_n_expand, EITHER, "I7"},
    {"a word behind expand", behind_expand, EITHER, "I7"},
    {"a word behind write", behind_write, WRITING, "I7"},
    {"the prefix part runs on", part_runs_on, PARTS, "I12"},
    {"the prefix part ends early", part_too_short, PARTS, "I12"},
    {"the prefix part begins late", part_begins_later, PARTS, "I12"},
    {"the parts overlap", part_overlaps, PARTS, "I12"},
    {"a free page lost", free_lost, EITHER, "I1"},
    {"an owned page lost", owned_lost, EITHER, "I1"},
    {"the next free page is owned", next_free_is_owned, TARGET | STILL, "I2"},
    {"the next free page is the guard", next_free_is_guard, EITHER, "I2"},
    {"the next free page is outside", next_free_is_outside, EITHER, "I2"},
    {"a reference nobody holds", one_reference_more, EITHER, "I3"},
    {"a holder nobody counts", one_holder_less, EITHER, "I3"},
    {"the guard page is live", guard_is_live, EITHER, "I8"},
    {"a draft pool of a page fewer", draft_pool_smaller, LEVEL | FOLLOW | BLOCK, "I14"},
    {"less memory than pages", memory_smaller, EITHER, "I14"},
    {"the map leads elsewhere", map_elsewhere, TARGET | STILL, "I4"},
    {"the inverse map leads elsewhere", inverse_elsewhere, TARGET | STILL, "I4"},
    {"a window page released too early", released_too_early, TARGET | STILL, "I5 I4"},
    {"the sequence has moved on", committed_behind_plan, TARGET | STILL, "I9"},
    {"the draft lags", draft_lags, LEVEL | BLOCK, "I14"},
    {"the draft is ahead", draft_ahead, FOLLOW, "I14"},
    {"the draft's last cell is of another text", draft_pair_of_another, FOLLOW, "I20"},
    {"a parent after its child", parent_after_child, TREE, "I13"},
    {"a depth off by one", depth_wrong, TREE, "I13"},
    {"an ancestor missing", ancestor_missing, TREE, "I13"},
    {"a stranger among the ancestors", stranger_among_ancestors, TREE, "I13"},
    {"the last cell is unwritten", tail_unwritten, TARGET | STILL, "I10"},
    {"the last cell is another's", tail_of_another, TARGET | STILL, "I15"},
    {"the last swa cell is unwritten", swa_tail_unwritten, TARGET | STILL, "I10"},
    {"the last swa cell is another's", swa_tail_of_another, TARGET | STILL, "I15"},
    {"another history", other_history, TARGET | STILL, "I15"},
    {"strict: a cell is another's", strict_inner_token, STRICT, "I15"},
    {"strict: a cell is unwritten", strict_inner_unwritten, STRICT, "I10 I15"},
};
enum { N_MUTATIONS = sizeof mutations / sizeof *mutations };

static bool rule_fits(const char *msg, const char *rules)
{
    size_t n = strcspn(msg, " ");
    for (const char *p = rules; *p; p += strcspn(p, " ") + (p[strcspn(p, " ")] == ' '))
        if (strcspn(p, " ") == n && !strncmp(p, msg, n))
            return true;
    return false;
}

static int caught[N_MUTATIONS], as_case[N_MUTATIONS];

/* ---- the same plans as cases ----------------------------------------------------------------- */

static bool breaks(const struct case_verdict *v, const char *rules)
{
    for (int i = 0; i < v->n; i++)
        if (rule_fits(v->found[i].text, rules))
            return true;
    return false;
}

/* The verdict on a plan as a case that was written and read; false: the case is refused. */
static bool verdict_of(struct shot *s, struct buf *text, struct case_verdict *v, struct err *e)
{
    struct attn_case c;
    buf_clear(text);
    plan_case(s->p, &s->w->kv, s->req, text);
    if (!case_read(&c, text->p, text->n, e))
        return false;
    case_judge(&c, v);
    struct buf again = {0};
    struct attn_case d;
    case_json(&c, &again);
    w_must(case_read(&d, again.p, again.n, e), e);
    buf_free(&again);
    case_free(&c);
    case_free(&d);
    return true;
}

/* A plan that no rule forbids is a case that no rule forbids. */
static void assert_clean_case(struct shot *s, const char *what)
{
    static struct buf text;
    struct case_verdict v;
    struct err e = {0};
    w_must(verdict_of(s, &text, &v, &e), &e);
    if (v.n)
        fail_msg("%s: false alarm of the case: %s\n%s", what, v.found[0].text, text.p);
    buf_free(&text);
    text = (struct buf){0};
}

/* A changed plan breaks its rule as a case, too, if the change can be seen in one. */
static void try_as_case(struct shot *s, int i, const struct buf *before)
{
    struct buf text = {0};
    struct case_verdict v;
    struct err e = {0};
    const char *rules = mutations[i].rules;
    /* a stride of the array, or a count that is none, which a case does not have */
    if (mutations[i].change == too_few_columns || mutations[i].change == nodes_negative ||
        mutations[i].change == one_node_more)
        return;
    if (!verdict_of(s, &text, &v, &e)) {
        if (!rule_fits("I9 ", rules))
            fail_msg("%s: no case: %s", mutations[i].name, e.msg);
        as_case[i]++;
    } else if (text.n != before->n || memcmp(text.p, before->p, text.n) != 0) {
        /* a wrong length contradicts positions and windows, and a case has no other length */
        if (!breaks(&v, rules) && !(v.n && rule_fits("I9 ", rules)))
            fail_msg("%s: expected %s of the case, got %s\n%s", mutations[i].name, rules,
                     v.n ? v.found[0].text : "nothing", text.p);
        as_case[i]++;
    }
    buf_free(&text);
}

static void mutate_all(struct world *w)
{
    static struct shot s;
    for (int i = 0; i < N_MUTATIONS; i++) {
        const struct mutation *m = &mutations[i];
        int mode = w_below(w, N_MODES), modes = m->modes;
        bool parts = modes & PARTS, strict = modes & STRICT;
        if (parts || strict)
            mode = PLAN_EXTEND;
        else if (!(modes >> mode & 1))
            continue;
        if ((mode == PLAN_FROZEN) == (w->kv.has_draft || !w->kv.has_swa) && mode != PLAN_EXTEND &&
            !(TARGET >> mode & 1))
            continue;
        s.w = w;
        s.p = &w->plan;
        w->check.level = strict ? CHECK_STRICT : CHECK_ON;
        if (shoot(&s, (enum plan_mode)mode, parts ? 2 : 1)) {
            int32_t *write = s.p->table[TABLE_FULL].write;
            struct err e = {0};
            struct buf text = {0};
            /* some as cases, which takes longer; a block is none */
            bool read = w_below(w, 64) == 0 && mode != PLAN_BLOCK;
            if (read) {
                assert_clean_case(&s, m->name);
                plan_case(s.p, &w->kv, s.req, &text);
            }
            if (m->change(&s)) {
                if (read)
                    try_as_case(&s, i, &text);
                uint64_t before = w->check.violations;
                if (check_plan(&w->check, s.p, &w->kv, s.req, &e))
                    fail_msg("%s (%s): not caught", m->name, plan_mode_name((enum plan_mode)mode));
                if (!rule_fits(e.msg, m->rules))
                    fail_msg("%s (%s): expected %s, got: %s", m->name,
                             plan_mode_name((enum plan_mode)mode), m->rules, e.msg);
                assert_agrees(&e, (enum plan_mode)mode);
                assert_int_equal(w->check.violations, before + 1);
                caught[i]++;
            }
            put_back();
            buf_free(&text);
            s.p->table[TABLE_FULL].write = write;
            if (!check_plan(&w->check, s.p, &w->kv, s.req, &e))
                fail_msg("%s: not put back: %s", m->name, e.msg);
        }
        w_copies(w); /* of shared pages that were replaced, for passes that never ran */
        for (int k = 0; k < N_SEQ; k++)
            kv_rollback(&w->kv, &w->seq[k]);
    }
}

static void test_a_place_is_printed_and_has_a_column(void **state)
{
    (void)state;
    struct violation at = fault_at(4);
    struct buf text = {0};
    struct err e;
    at.mode = PLAN_VERIFY, at.pool = POOL_SWA, at.table = true, at.row = 2, at.cell = 130;
    assert_int_equal(fault_place_column(&at, 16), 8);
    fault_place_print(&at, &text);
    assert_string_equal(text.p, "I4 verify, swa, row 2, position 130");
    fault_set(&e, at, "expand slot %d, cell 130 is in slot 3", 131);
    assert_string_equal(e.msg, "I4 verify swa table row 2: expand slot 131, cell 130 is in slot 3");
    fault_filled(&e);
    assert_string_equal(e.msg, "I17 what the device filled in: I4 verify swa table row 2: "
                               "expand slot 131, cell 130 is in slot 3");
    assert_true(fault_is_of(&e.at, 17) && !fault_is_of(&e.at, 4) && fault_is_of(&at, 4));
    at.row = -1, at.cell = -1, at.request = 0, at.column = 3, at.page = 9;
    assert_int_equal(fault_place_column(&at, 16), 3);
    at.row = 3; /* a row's column is no page */
    assert_int_equal(fault_place_column(&at, 16), -1);
    at = fault_at(3), at.pool = POOL_SWA, at.page = 7, at.compared = true, at.found = 2,
        at.expected = 1;
    buf_clear(&text);
    jput_open(&text, '{');
    fault_json(&at, &text);
    jput_close(&text, '}');
    assert_string_equal(text.p,
                        "{\"rule\":\"I3\",\"pool\":\"swa\",\"page\":7,\"found\":2,\"expected\":1}");
    err_set(&e, ERR_USAGE, "the model's output");
    assert_int_equal(e.at.rule, 0);
    buf_free(&text);
}

static void test_every_mutation_is_caught_by_its_rule(void **state)
{
    (void)state;
    uint64_t seed = 100;
    struct err e = {0};
    w_must(list_open(&list, &no_device, NULL, MAX_CELLS, &e), &e);
    for (int P = 1; P <= 64; P *= 2)
        for (int kind = 0; kind < 3; kind++) {
            struct world w;
            w_open(&w, P, kind == 0 ? 0 : 11, kind == 2, false, seed++);
            w.opts.draft_full = true;
            if (w.kv.has_draft && P % 3 == 1) /* beside the window of all layers */
                w.opts.draft_window = 6;
            for (int i = 0; i < 400; i++) {
                for (int k = 0; k < 20; k++)
                    w_op(&w);
                mutate_all(&w);
            }
            w_close(&w);
        }
    int all = 0, least = INT32_MAX, cases = 0, kinds = 0;
    for (int i = 0; i < N_MUTATIONS; i++) {
        cases += as_case[i];
        kinds += as_case[i] > 0;
        if (caught[i] < 20)
            fail_msg("%s was tried only %d times", mutations[i].name, caught[i]);
        all += caught[i];
        least = min_int(least, caught[i]);
    }
    print_message("%d mutations, %d times in all, each at least %d times; %d plans over a list\n",
                  N_MUTATIONS, all, least, listed);
    print_message("%d of them as cases, of %d kinds\n", cases, kinds);
    assert_true(listed > 10000 && kinds >= 36);
    list_close(&list, &no_device, NULL);
}

/* ---- what only the sweep sees ---------------------------------------------------------------- */

static void expect_sweep(struct world *w, const char *rules)
{
    const struct seq *all[N_SEQ];
    struct err e = {0};
    for (int i = 0; i < N_SEQ; i++)
        all[i] = &w->seq[i];
    assert_false(check_sweep(&w->kv, all, N_SEQ, &e));
    if (!rule_fits(e.msg, rules))
        fail_msg("expected %s, got: %s", rules, e.msg);
    put_back();
    w_must(check_sweep(&w->kv, all, N_SEQ, &e), &e);
}

/* A row whose window begins in the tree reads no cell through the table: an engine may say so by
 * any empty range, as [prefix, prefix). */
static void test_an_empty_range_may_lie_anywhere(void **state)
{
    (void)state;
    static const char form[] =
        "{\"aerie_case\": 1, \"mode\": \"verify\", \"requests\": [{\"prefix_len\": 3, \"q_len\": 3}],"
        " \"parents\": [-1, 0, 1], \"groups\": [{\"name\": \"swa\", \"space\": \"swa\","
        " \"page_size\": 1, \"window\": 2, \"unit\": \"slot\", \"null\": 0,"
        " \"tables\": [[0, 0, 6, 5, 4, 3]], \"write\": [5, 4, 3], \"lo\": [2, 3, %d],"
        " \"hi\": [3, 3, %d], \"expand\": [[5], [5, 4], [4, 3]]}]}";
    static const int lo_hi[][3] = {{4, 4, 1}, {3, 3, 1}, {0, 0, 1}, {2, 3, 0}, {3, 4, 0}};
    for (size_t i = 0; i < sizeof lo_hi / sizeof *lo_hi; i++) {
        struct attn_case c;
        struct case_verdict v;
        struct err e = {0};
        char *text = xasprintf(form, lo_hi[i][0], lo_hi[i][1]);
        w_must(case_read(&c, text, strlen(text), &e), &e);
        case_judge(&c, &v);
        assert_int_equal(!v.n, lo_hi[i][2]);
        case_free(&c);
        free(text);
    }
}

static void test_the_sweep_sees_what_no_pass_touches(void **state)
{
    (void)state;
    struct world w;
    w_open(&w, 4, 9, false, false, 7);
    for (int round = 0; round < 60; round++) {
        int i = -1;
        for (int k = 0; k < 20 || i < 0; k++) {
            w_op(&w);
            i = -1; /* what was long enough before may be dropped now */
            for (int q = 0; q < N_SEQ; q++)
                if (w.seq[q].committed > 30)
                    i = q;
        }
        struct seq *s = &w.seq[i];
        struct pool *p = &w.kv.pool[POOL_FULL];
        uint16_t more = (uint16_t)(p->ref[s->col[0].full.v] + 1);
        poke(&p->ref[s->col[0].full.v], &more, sizeof more);
        expect_sweep(&w, "I3");
        set(&p->free[0], p->free[1]);
        expect_sweep(&w, "I2");
        set(&w.kv.swa_of[p->free[0]], p->free[0]);
        expect_sweep(&w, "I4");
        set(&s->col[s->n_col - 1].swa.v, 0);
        expect_sweep(&w, "I5");
        int32_t swa = s->col[s->n_col - 1].swa.v, beyond = w.kv.pool[POOL_SWA].total;
        set(&w.kv.full_of[swa], 0);
        expect_sweep(&w, "I4");
        set(&s->col[s->n_col - 1].swa.v, beyond);
        expect_sweep(&w, "I8");
        full_slot oldest = kv_full_slot(&w.kv, s, s->swa_lo);
        set(&w.kv.mark[POOL_SWA][kv_swa_slot(&w.kv, oldest).v].pos, -1);
        expect_sweep(&w, "I10");
        set(&p->n_owned, p->n_owned + 1);
        expect_sweep(&w, "I1");
        set(&p->n_refs, p->n_refs - 1);
        expect_sweep(&w, "I3");
        more = 1;
        poke(&p->ref[0], &more, sizeof more);
        expect_sweep(&w, "I8");
        set(&s->n_dcol, 0), set(&s->drafted, 0);
        set(&s->draft_lo, 4); /* of no cells */
        expect_sweep(&w, "I5");
        set(&s->swa_lo, (s->committed - w.kv.reach + 7) / 4 * 4 + 4);
        expect_sweep(&w, "I5");
        if (s->n_dcol) {
            set(&s->dcol[s->n_dcol - 1].v, 0);
            expect_sweep(&w, "I5");
            set(&s->draft_lo, s->draft_lo + 4);
            expect_sweep(&w, "I5");
            set(&s->dcol[s->n_dcol - 1].v, w.kv.pool[POOL_DRAFT].total);
            expect_sweep(&w, "I8");
        }
        set(&s->col[1].full.v, s->col[0].full.v);
        expect_sweep(&w, "I3 I4");
        set(&s->col[0].full.v, 0);
        expect_sweep(&w, "I8");
        struct mark *m = &w.kv.mark[POOL_FULL][kv_full_slot(&w.kv, s, 5).v];
        set(&m->token, m->token + 1);
        expect_sweep(&w, "I15");
        set(&m->pos, 6);
        expect_sweep(&w, "I10");
    }
    w_close(&w);
}

static void test_uniforms_are_counted(void **state)
{
    (void)state;
    struct checker c = {.level = CHECK_ON};
    struct err e = {0};
    w_must(check_draws(&c, 10, 13, (int[]){0, 1, 2}, 3, true, &e), &e);
    w_must(check_draws(&c, 10, 10, (int[]){0, 1, 2}, 3, false, &e), &e);
    assert_false(check_draws(&c, 10, 14, (int[]){0, 1, 2}, 3, true, &e));
    assert_true(rule_fits(e.msg, "I16"));
    assert_false(check_draws(&c, 10, 13, (int[]){0, 2, 2}, 3, true, &e));
    assert_true(rule_fits(e.msg, "I16"));
    assert_false(check_draws(&c, 10, 11, (int[]){0}, 1, false, &e));
    assert_int_equal(c.violations, 3);
    c.level = CHECK_OFF;
    assert_true(check_draws(&c, 10, 11, (int[]){0}, 1, false, &e));
}

static void test_accepted_rows_are_a_path(void **state)
{
    (void)state;
    struct checker c = {.level = CHECK_ON};
    struct err e = {0};
    struct tree t;
    tree_init(&t, 1);
    tree_add(&t, 0, 2, 0.5f, -1);
    tree_add(&t, 0, 3, 0.4f, -1);
    tree_add(&t, 1, 4, 0.3f, -2);
    w_must(check_accepted(&c, &t, (int[]){0}, 1, &e), &e);
    w_must(check_accepted(&c, &t, (int[]){0, 1, 3}, 3, &e), &e);
    static const struct { int n, path[3]; } wrong[] = {
        {1, {3}}, {1, {-1}}, {1, {4}}, {0, {0}}, {5, {0}}, {2, {0, 3}}, {3, {0, 2, 3}},
        {2, {0, 0}}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_false(check_accepted(&c, &t, wrong[i].path, wrong[i].n, &e));
        assert_true(rule_fits(e.msg, "I19"));
    }
    assert_int_equal(c.violations, sizeof wrong / sizeof *wrong);
    c.level = CHECK_OFF;
    assert_true(check_accepted(&c, &t, (int[]){3}, 1, &e));
}

/* Whether a mutation, or a test below, expects rule `number`. */
static bool is_tested(const char *number)
{
    /* test_uniforms_are_counted(), test_fused.c, test_accepted_rows_are_a_path() */
    if (rule_fits(number, "I16 I17 I19"))
        return true;
    for (int m = 0; m < N_MUTATIONS; m++)
        if (rule_fits(number, mutations[m].rules))
            return true;
    return false;
}

static void test_every_rule_has_a_number_a_line_and_a_test(void **state)
{
    (void)state;
    for (int i = 0; i < check_rule_count(); i++) {
        char number[16];
        snprintf(number, sizeof number, "I%d ", i + 1);
        assert_memory_equal(check_rule(i), number, strlen(number));
        if (!is_tested(check_rule(i)))
            fail_msg("no mutation expects rule %.4s", check_rule(i));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_mutation_is_caught_by_its_rule),
        cmocka_unit_test(test_a_place_is_printed_and_has_a_column),
        cmocka_unit_test(test_an_empty_range_may_lie_anywhere),
        cmocka_unit_test(test_the_sweep_sees_what_no_pass_touches),
        cmocka_unit_test(test_uniforms_are_counted),
        cmocka_unit_test(test_accepted_rows_are_a_path),
        cmocka_unit_test(test_every_rule_has_a_number_a_line_and_a_test),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
