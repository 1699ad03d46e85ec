/* check_kv.c - see check_kv.h. */
#include "engine/plan/check_kv.h"

#include "engine/plan/check.h"

static struct violation in_pool(int rule, enum pool_id pool)
{
    struct violation at = fault_at(rule);
    at.pool = (int)pool;
    return at;
}

/* ---- pools, by running sums ------------------------------------------------------------------ */

static bool check_pool(const struct kv *kv, enum pool_id id, struct err *e)
{
    const struct pool *p = &kv->pool[id];
    if (p->n_free + p->n_owned != p->total - GUARD_PAGES)
        return fault_set(e, differs(in_pool(1, id), p->n_free + p->n_owned, p->total - GUARD_PAGES),
                         "%d free + %d owned != %d pages", p->n_free, p->n_owned,
                         p->total - GUARD_PAGES);
    int32_t next = p->n_free > 0 ? p->free[p->n_free - 1] : 0; /* the page to be handed out next */
    if (p->n_free > 0 && (next < GUARD_PAGES || next >= p->total || p->ref[next]))
        return fault_set(e, with_page(in_pool(2, id), next),
                         "free list entry %d holds page %d (%s)", p->n_free - 1, next,
                         next < GUARD_PAGES || next >= p->total ? "out of range" : "still owned");
    if (p->n_refs != kv->held[id])
        return fault_set(e, differs(in_pool(3, id), p->n_refs, kv->held[id]),
                         "%d references, but sequences hold %d pages", p->n_refs, kv->held[id]);
    if (p->ref[0])
        return fault_set(e, differs(in_pool(8, id), p->ref[0], 0),
                         "guard page 0 has %d references", p->ref[0]);
    if (kv->mem[id].base && kv->mem[id].slots < p->total * kv->page_size)
        return fault_set(e, in_pool(14, id), "%d pages of %d slots, memory for %d slots", p->total,
                         kv->page_size, kv->mem[id].slots);
    return true;
}

bool check_pools(const struct kv *kv, struct err *e)
{
    for (int id = 0; id < N_POOLS; id++)
        if (kv->pool[id].total && !check_pool(kv, (enum pool_id)id, e))
            return false;
    if (kv->has_draft && kv_capacity(kv, POOL_DRAFT) < kv_capacity(kv, POOL_FULL))
        return fault_set(e, differs(in_pool(14, POOL_DRAFT), kv_capacity(kv, POOL_DRAFT),
                                    kv_capacity(kv, POOL_FULL)),
                         "the pool holds %d pages, the full pool %d", kv_capacity(kv, POOL_DRAFT),
                         kv_capacity(kv, POOL_FULL));
    return true;
}

/* ---- cells ---- */

/* The place `at` of a request or a sequence, with a rule and a cell of a pool. */
static struct violation at_cell(struct violation at, int rule, enum pool_id pool, int cell)
{
    at.rule = rule;
    at.pool = (int)pool;
    at.cell = cell;
    return at;
}

/* The mark of a cell has the cell's position, and its chain continues that of the cell before.
 * at: whose cell it is. */
static bool link_ok(const struct kv *kv, const struct seq *s, enum pool_id pool, int cell,
                    struct violation at, struct err *e)
{
    int P = kv->page_size, first = pool == POOL_SWA ? s->swa_lo : 0;
    const struct column *c = &s->col[cell / P], *up = &s->col[max_int(0, cell - 1) / P];
    const struct mark *m = mark_at(kv, pool, pool == POOL_SWA ? c->swa.v : c->full.v, cell);
    if (pool == POOL_SWA && (!c->swa.v || (cell > first && !up->swa.v)))
        return fault_set(e, at_cell(at, 5, pool, c->swa.v ? cell - 1 : cell),
                         "a visible page is not held");
    if (m->pos != cell)
        return fault_set(e, differs(at_cell(at, 10, pool, cell), m->pos, cell), "%s",
                         m->pos < 0 ? "no pass has written it"
                                    : "another position's KV lies there");
    if (cell > 0 && cell == first)
        return true; /* the cell before is released */
    uint64_t before = MARK_ROOT;
    if (cell > 0)
        before = mark_at(kv, pool, pool == POOL_SWA ? up->swa.v : up->full.v, cell - 1)->chain;
    if (m->chain != mark_chain(before, m->token, m->pos))
        return fault_set(e, at_cell(at, 15, pool, cell), "token %d does not follow the cell before",
                         m->token);
    return true;
}

bool check_tail(const struct kv *kv, const struct seq *s, struct violation at, struct err *e)
{
    int cell = s->committed - 1;
    if (cell < 0)
        return true;
    const struct column *c = &s->col[cell / kv->page_size];
    if (!link_ok(kv, s, POOL_FULL, cell, at, e) ||
        (c->swa.v && !link_ok(kv, s, POOL_SWA, cell, at, e)))
        return false;
    bool full = mark_at(kv, POOL_FULL, c->full.v, cell)->chain == s->tail;
    return (full && (!c->swa.v || mark_at(kv, POOL_SWA, c->swa.v, cell)->chain == s->tail)) ||
           fault_set(e, at_cell(at, 15, full ? POOL_SWA : POOL_FULL, cell),
                     "its chain is not the one that was committed");
}

bool check_sweep(const struct kv *kv, const struct seq *const *seqs, int n, struct err *e)
{
    if (!kv_check(kv, seqs, n, e))
        return false;
    for (int i = 0; i < n; i++) {
        const struct seq *s = seqs[i];
        struct violation at = fault_at(0);
        for (int c = 0; c < s->committed; c++)
            if (!link_ok(kv, s, POOL_FULL, c, at, e) ||
                (kv->has_swa && c >= s->swa_lo && !link_ok(kv, s, POOL_SWA, c, at, e)))
                return false;
        if (!check_tail(kv, s, at, e))
            return false;
    }
    return true;
}
