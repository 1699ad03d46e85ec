/* faults.c - the historical faults of the page cache; see kvcache.h. */
#include "engine/bugs.h"
#include "engine/cache/kvcache.h"

/* 17630: the draft's pool is as large as the sliding-window pool. */
static int draft_pool_small(const struct kv *kv, enum pool_id pool, int pages)
{
    bool small = pool == POOL_DRAFT && kv->has_swa;
    return small ? min_int(pages, kv->pool[POOL_SWA].total - GUARD_PAGES) : pages;
}

/* 27789: the rolled-back column forgets its swa page, which the pool does not get back. */
static void swa_leak_page(struct kv *kv, struct column *col)
{
    if (kv->page_size == 1 || !col->swa.v)
        return;
    kv->held[POOL_SWA]--;
    kv->swa_of[col->full.v] = 0;
    kv->full_of[col->swa.v] = 0;
    col->swa.v = 0;
}

/* 10875: the length that suits the full layers is taken for the sliding ones, too. */
static bool reuse_last_window(const struct kv *, const struct seq *, int)
{
    return true;
}

struct kv_hooks kv_faults(const struct bugs *on)
{
    return (struct kv_hooks){
        .capacity = bug_on(on, BUG_DRAFT_POOL_SMALL) ? draft_pool_small : NULL,
        .holds = bug_on(on, BUG_REUSE_LAST_WINDOW) ? reuse_last_window : NULL,
        .rolling_back = bug_on(on, BUG_SWA_LEAK_PAGE) ? swa_leak_page : NULL};
}
