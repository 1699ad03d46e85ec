/* pool.c - see pool.h. */
#include "engine/cache/pool.h"

#include "engine/fault.h"

void page_log_add(struct page_log *log, const struct page_event *ev)
{
    if (!log->keep)
        return;
    RESERVE(log->since, log->n_since + 1, log->cap_since);
    log->since[log->n_since++] = *ev;
}

void page_log_free(struct page_log *log)
{
    DROP(log->since);
    log->n_since = log->cap_since = 0;
}

static void log_event(struct pool *p, enum page_op op, int32_t page, struct page_use use)
{
    if (!p->log)
        return;
    struct page_event ev = {.pool = (uint8_t)p->id, .op = (uint8_t)op,
                            .holder = (uint8_t)use.holder, .page = page, .column = use.column,
                            .refs = p->ref[page]};
    page_log_add(p->log, &ev);
}

void pool_init(struct pool *p, enum pool_id id, int total, struct page_log *log)
{
    CHECK(total > GUARD_PAGES);
    *p = (struct pool){.id = id, .total = total, .log = log};
    p->free = xcalloc((size_t)total, sizeof *p->free);
    p->ref = xcalloc((size_t)total, sizeof *p->ref);
    pool_reset(p);
}

void pool_free(struct pool *p)
{
    FREE(p->free, p->ref);
    *p = (struct pool){0};
}

void pool_reset(struct pool *p)
{
    p->n_free = p->total - GUARD_PAGES;
    for (int i = 0; i < p->n_free; i++)
        p->free[i] = p->total - 1 - i;
    p->n_owned = p->n_refs = 0;
    memset(p->ref, 0, (size_t)p->total * sizeof *p->ref);
    p->epoch++;
}

int32_t pool_take(struct pool *p, struct page_use use)
{
    if (p->n_free == 0)
        return 0;
    int32_t page = p->free[--p->n_free];
    CHECK(page >= GUARD_PAGES && page < p->total && p->ref[page] == 0);
    p->ref[page] = 1;
    p->n_owned++;
    p->n_refs++;
    log_event(p, PAGE_TAKE, page, use);
    return page;
}

void pool_share(struct pool *p, int32_t page, struct page_use use)
{
    CHECK(page >= GUARD_PAGES && page < p->total && p->ref[page] > 0 && p->ref[page] < UINT16_MAX);
    p->ref[page]++;
    p->n_refs++;
    log_event(p, PAGE_SHARE, page, use);
}

bool pool_drop(struct pool *p, int32_t page, struct page_use use, enum page_op why)
{
    CHECK(page >= GUARD_PAGES && page < p->total && p->ref[page] > 0);
    p->ref[page]--;
    p->n_refs--;
    if (p->ref[page]) {
        log_event(p, why, page, use);
        return false;
    }
    p->n_owned--;
    log_event(p, why == PAGE_WINDOW ? PAGE_WINDOW : PAGE_FREE, page, use);
    p->free[p->n_free++] = page;
    return true;
}

static struct violation in_pool(const struct pool *p, int rule)
{
    struct violation at = fault_at(rule);
    at.pool = (int)p->id;
    return at;
}

static struct violation at_page(const struct pool *p, int rule, int32_t page)
{
    struct violation at = in_pool(p, rule);
    at.page = page;
    return at;
}

bool pool_check(const struct pool *p, struct err *e)
{
    int live = 0, refs = 0;
    for (int i = GUARD_PAGES; i < p->total; i++) {
        live += p->ref[i] > 0;
        refs += p->ref[i];
    }
    if (p->ref[0])
        return fault_set(e, in_pool(p, 8), "guard page 0 has %d references", p->ref[0]);
    if (p->n_free + live != p->total - GUARD_PAGES || live != p->n_owned)
        return fault_set(e, in_pool(p, 1), "%d free + %d owned != %d pages", p->n_free, live,
                         p->total - GUARD_PAGES);
    if (refs != p->n_refs)
        return fault_set(e, in_pool(p, 3), "references add up to %d, %d were counted", refs,
                         p->n_refs);
    for (int i = 0; i < p->n_free; i++)
        if (p->free[i] < GUARD_PAGES || p->free[i] >= p->total || p->ref[p->free[i]])
            return fault_set(e, at_page(p, 2, p->free[i]), "free list entry %d holds page %d (%s)",
                             i, p->free[i],
                             p->free[i] < GUARD_PAGES || p->free[i] >= p->total
                                 ? "out of range" : "still owned");
    /* the list has as many entries as there are free pages, and each is one: only duplicates are
     * left */
    FREED(free_at) uint8_t *seen = xcalloc((size_t)p->total, 1);
    bool ok = true;
    for (int i = 0; i < p->n_free && ok; i++) {
        ok = !seen[p->free[i]]++;
        if (!ok)
            fault_set(e, at_page(p, 2, p->free[i]), "page %d is on the free list twice",
                      p->free[i]);
    }
    return ok;
}
