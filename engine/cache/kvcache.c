/* kvcache.c - see kvcache.h. */
#include "engine/cache/kvcache.h"

#include "engine/fault.h"

int kv_cells(const struct kv_shape *s, enum pool_id pool)
{
    int pages = pool == POOL_FULL ? s->full_pages : pool == POOL_SWA ? s->swa_pages
                : s->draft_pages;
    CHECK(pages >= 0 && s->page_size >= 1 && pages <= POOL_CELLS / s->page_size);
    return pages * s->page_size;
}

uint64_t kv_bytes(const struct kv_shape *s)
{
    uint64_t target = (uint64_t)s->full_pages + (uint64_t)s->swa_pages;
    uint64_t cells = (uint64_t)kv_cells(s, POOL_FULL) + (uint64_t)kv_cells(s, POOL_SWA);
    return (target + (uint64_t)s->draft_pages) * PAGE_BYTES + target * sizeof(int32_t) +
           cells * sizeof(struct mark);
}

static struct mark *blank_marks(int n)
{
    return memset(xmalloc((size_t)n * sizeof(struct mark)), 0xff, (size_t)n * sizeof(struct mark));
}

void kv_init(struct kv *kv, const struct kv_shape *s)
{
    CHECK(s->page_size >= 1 && s->page_size <= MOST_PAGE_SIZE &&
          !(s->page_size & (s->page_size - 1)));
    memset(kv, 0, sizeof *kv);
    kv->page_size = s->page_size;
    kv->shift = __builtin_ctz((unsigned)s->page_size);
    kv->window = s->window;
    kv->reach = s->reach ? s->reach : window_before(s->window);
    kv->has_swa = s->window != 0;
    kv->has_draft = s->draft_pages > 0;
    pool_init(&kv->pool[POOL_FULL], POOL_FULL, s->full_pages, &kv->log);
    kv->swa_of = xcalloc((size_t)s->full_pages, sizeof *kv->swa_of);
    kv->mark[POOL_FULL] = blank_marks(kv_cells(s, POOL_FULL));
    if (kv->has_swa) {
        pool_init(&kv->pool[POOL_SWA], POOL_SWA, s->swa_pages, &kv->log);
        kv->full_of = xcalloc((size_t)s->swa_pages, sizeof *kv->full_of);
        kv->mark[POOL_SWA] = blank_marks(kv_cells(s, POOL_SWA));
    }
    if (kv->has_draft) {
        CHECK(kv_cells(s, POOL_DRAFT) > 0);
        pool_init(&kv->pool[POOL_DRAFT], POOL_DRAFT, s->draft_pages, &kv->log);
    }
}

void kv_free(struct kv *kv)
{
    for (int i = 0; i < N_POOLS; i++)
        pool_free(&kv->pool[i]);
    FREE(kv->swa_of, kv->full_of, kv->mark[POOL_FULL], kv->mark[POOL_SWA], kv->copy);
    page_log_free(&kv->log);
    memset(kv, 0, sizeof *kv);
}

void kv_reset(struct kv *kv)
{
    for (int i = 0; i < N_POOLS; i++)
        if (kv->pool[i].total) {
            /* sequences hold no page; pages leaked by historical fault 27789 do not count */
            CHECK(kv->held[i] == 0);
            pool_reset(&kv->pool[i]);
        }
    kv->n_copy = 0;
}

void kv_back(struct kv *kv, enum pool_id pool, const void *base, int slots)
{
    kv->mem[pool] = (struct backing){base, slots};
    kv->pool[pool].epoch++;
}

int kv_capacity(const struct kv *kv, enum pool_id pool)
{
    int pages = kv->pool[pool].total - GUARD_PAGES;
    return kv->hook.capacity ? kv->hook.capacity(kv, pool, pages) : pages;
}

int kv_left(const struct kv *kv, enum pool_id pool)
{
    return max_int(0, kv_capacity(kv, pool) - pool_used(&kv->pool[pool]));
}

swa_page kv_swa_page(const struct kv *kv, full_page f)
{
    CHECK(f.v >= 0 && f.v < kv->pool[POOL_FULL].total);
    return (swa_page){kv->swa_of[f.v]};
}

swa_slot kv_swa_slot(const struct kv *kv, full_slot f)
{
    swa_page p = kv_swa_page(kv, (full_page){f.v >> kv->shift});
    return (swa_slot){p.v ? (p.v << kv->shift) | (f.v & (kv->page_size - 1)) : 0};
}

/* Queues the copy of a page on the device; the marks of its cells are copied at once. */
static void queue_copy(struct kv *kv, enum pool_id pool, int32_t src, int32_t dst)
{
    *APPEND(kv->copy, kv->n_copy) = (struct page_copy){pool, src, dst};
    for (int j = 0; pool != POOL_DRAFT && j < kv->page_size; j++)
        kv_moved(kv, pool, src * kv->page_size + j, dst * kv->page_size + j);
}

void kv_moved(struct kv *kv, enum pool_id pool, int32_t src, int32_t dst)
{
    kv->mark[pool][dst] = kv->mark[pool][src];
}

/* ---- single columns ---- */

/* A page whose cells no pass has written yet. */
static int32_t take_page(struct kv *kv, enum pool_id pool, const struct seq *s, int c)
{
    int32_t page = pool_take(&kv->pool[pool], (struct page_use){s->holder, c});
    size_t P = (size_t)kv->page_size;
    kv->held[pool]++;
    if (pool != POOL_DRAFT)
        memset(kv->mark[pool] + (size_t)page * P, 0xff, P * sizeof(struct mark));
    return page;
}

static void share_page(struct kv *kv, enum pool_id pool, const struct seq *s, int32_t page, int c)
{
    kv->held[pool]++;
    pool_share(&kv->pool[pool], page, (struct page_use){s->holder, c});
}

static bool drop_page(struct kv *kv, enum pool_id pool, const struct seq *s, int32_t page, int c,
                      enum page_op why)
{
    kv->held[pool]--;
    return pool_drop(&kv->pool[pool], page, (struct page_use){s->holder, c}, why);
}

static struct column take_column(struct kv *kv, const struct seq *s, int c)
{
    struct column col = {{take_page(kv, POOL_FULL, s, c)}, {0}};
    if (kv->has_swa) {
        col.swa.v = take_page(kv, POOL_SWA, s, c);
        CHECK(kv->swa_of[col.full.v] == 0 && kv->full_of[col.swa.v] == 0);
        kv->swa_of[col.full.v] = col.swa.v;
        kv->full_of[col.swa.v] = col.full.v;
    }
    return col;
}

static void drop_swa(struct kv *kv, const struct seq *s, struct column *col, int c,
                     enum page_op why)
{
    if (!col->swa.v)
        return;
    if (drop_page(kv, POOL_SWA, s, col->swa.v, c, why)) {
        kv->swa_of[col->full.v] = 0;
        kv->full_of[col->swa.v] = 0;
    }
    col->swa.v = 0;
}

static void drop_column(struct kv *kv, const struct seq *s, struct column *col, int c)
{
    drop_swa(kv, s, col, c, PAGE_DROP);
    drop_page(kv, POOL_FULL, s, col->full.v, c, PAGE_DROP);
    col->full.v = 0;
}

/* Releases the draft page of column c, if the sequence still holds one. */
static void drop_draft(struct kv *kv, struct seq *s, int c, enum page_op why)
{
    if (s->dcol[c].v)
        drop_page(kv, POOL_DRAFT, s, s->dcol[c].v, c, why);
    s->dcol[c].v = 0;
}

static bool shared(const struct kv *kv, const struct column *col)
{
    return kv->pool[POOL_FULL].ref[col->full.v] > 1;
}

/* Call it before column c of a side gets another page, or none. */
static void mark_dirty(struct seq *s, enum side side, int c)
{
    s->clean[side] = min_int(s->clean[side], c);
}

uint64_t kv_mark_clean(struct kv *kv, struct seq *s, enum side side)
{
    s->clean[side] = (side == SIDE_DRAFT ? s->drafted : s->committed) >> kv->shift;
    return s->stamp[side] = ++kv->last_stamp;
}

/* ---- reserving ---- */

/* Call it before column c is replaced by a copy. An swa page that only this sequence holds is freed
 * by that and may be overwritten, so such a column cannot be restored by kv_undo(). */
static void note_replaced(const struct kv *kv, struct seq *s, enum side side, int c)
{
    struct replaced_column was = {.side = side, .c = c};
    if (side == SIDE_DRAFT) {
        was.page[POOL_DRAFT] = s->dcol[c].v;
    } else {
        was.page[POOL_FULL] = s->col[c].full.v;
        was.page[POOL_SWA] = s->col[c].swa.v;
    }
    bool alone = was.page[POOL_SWA] && kv->pool[POOL_SWA].ref[was.page[POOL_SWA]] == 1;
    if (!alone && s->n_replaced < MAX_REPLACED)
        s->replaced[s->n_replaced++] = was;
}

int kv_columns_missing(const struct kv *kv, const struct seq *s, int upto)
{
    int P = kv->page_size, need = div_up(upto, P), missing = max_int(0, need - s->n_col);
    for (int c = s->committed / P; c < min_int(need, s->n_col); c++)
        missing += shared(kv, &s->col[c]);
    return missing;
}

bool kv_reserve(struct kv *kv, struct seq *s, int upto, struct err *e)
{
    int P = kv->page_size, need = div_up(upto, P);
    int missing = kv_columns_missing(kv, s, upto);
    if (missing > kv_left(kv, POOL_FULL))
        return err_set(e, ERR_NEGATIVE, "the full pool is short of pages: %d needed, %d free",
                       missing, kv->pool[POOL_FULL].n_free);
    if (kv->has_swa && missing > kv_left(kv, POOL_SWA))
        return err_set(e, ERR_NEGATIVE, "the swa pool is short of pages: %d needed, %d free",
                       missing, kv->pool[POOL_SWA].n_free);
    for (int c = s->committed / P; c < min_int(need, s->n_col); c++) {
        if (!shared(kv, &s->col[c]))
            continue;
        note_replaced(kv, s, SIDE_TARGET, c);
        struct column old = s->col[c], col = take_column(kv, s, c);
        mark_dirty(s, SIDE_TARGET, c);
        if (c * P < s->committed) {
            queue_copy(kv, POOL_FULL, old.full.v, col.full.v);
            if (old.swa.v)
                queue_copy(kv, POOL_SWA, old.swa.v, col.swa.v);
        }
        drop_column(kv, s, &old, c);
        s->col[c] = col;
    }
    RESERVE(s->col, need, s->cap_col);
    while (s->n_col < need) {
        s->col[s->n_col] = take_column(kv, s, s->n_col);
        s->n_col++;
    }
    return true;
}

bool kv_reserve_draft(struct kv *kv, struct seq *s, int from, int upto, struct err *e)
{
    struct pool *pool = &kv->pool[POOL_DRAFT];
    int P = kv->page_size, need = div_up(upto, P), missing = max_int(0, need - s->n_dcol);
    int final = s->drafted;
    CHECK(from <= final && from >= s->draft_lo);
    for (int c = from / P; c < min_int(need, s->n_dcol); c++)
        missing += pool->ref[s->dcol[c].v] > 1;
    if (missing > kv_left(kv, POOL_DRAFT))
        return err_set(e, ERR_NEGATIVE, "the draft pool is short of pages: %d needed, %d free",
                       missing, kv_left(kv, POOL_DRAFT));
    s->next = from < final ? -1 : s->next;
    s->drafted = from;
    for (int c = from / P; c < min_int(need, s->n_dcol); c++) {
        int32_t old = s->dcol[c].v;
        if (pool->ref[old] <= 1)
            continue;
        note_replaced(kv, s, SIDE_DRAFT, c);
        mark_dirty(s, SIDE_DRAFT, c);
        s->dcol[c].v = take_page(kv, POOL_DRAFT, s, c);
        if (c * P < final) /* also cells from `from` on: a rollback makes them final again */
            queue_copy(kv, POOL_DRAFT, old, s->dcol[c].v);
        drop_page(kv, POOL_DRAFT, s, old, c, PAGE_DROP);
    }
    RESERVE(s->dcol, need, s->cap_dcol);
    while (s->n_dcol < need) {
        s->dcol[s->n_dcol].v = take_page(kv, POOL_DRAFT, s, s->n_dcol);
        s->n_dcol++;
    }
    return true;
}

/* ---- commit, rollback and release ---- */

/* The mark chain of cell n - 1. */
static uint64_t chain_at(const struct kv *kv, const struct seq *s, int n)
{
    return n > s->committed ? kv->mark[POOL_FULL][kv_full_slot(kv, s, n - 1).v].chain : s->tail;
}

void kv_commit(struct kv *kv, struct seq *s, int n)
{
    CHECK(n >= s->committed && n <= s->n_col * kv->page_size);
    s->tail = chain_at(kv, s, n);
    s->committed = n;
    s->n_replaced = 0;
}

/* How many leading columns of the draft no later pass reads once n cells are drafted. */
static int draft_columns_passed(const struct kv *kv, const struct seq *s, int n)
{
    if (!kv->draft_window)
        return 0;
    return min_int(max_int(0, n - kv->draft_window) / kv->page_size, s->n_dcol);
}

/* How many leading columns have swa pages that no later pass reads once n cells are committed. */
static int columns_passed(const struct kv *kv, const struct seq *s, int n)
{
    return min_int(max_int(0, n - kv->reach) / kv->page_size, s->n_col);
}

void kv_ahead(const struct kv *kv, const struct seq *s, int n, struct seq *after)
{
    CHECK(n >= s->committed && n <= s->n_col * kv->page_size);
    *after = *s;
    after->tail = chain_at(kv, s, n);
    after->committed = n;
    if (kv->has_swa)
        after->swa_lo = max_int(s->swa_lo, columns_passed(kv, s, n) * kv->page_size);
}

void kv_commit_draft(struct kv *kv, struct seq *s, int n)
{
    CHECK(n >= s->drafted && n <= s->n_dcol * kv->page_size);
    int kept = 0;
    for (int i = 0; i < s->n_replaced; i++)
        if (s->replaced[i].side != SIDE_DRAFT)
            s->replaced[kept++] = s->replaced[i];
    s->n_replaced = kept;
    s->drafted = n;
    s->next = -1;
}

void kv_rollback(struct kv *kv, struct seq *s)
{
    int keep = div_up(s->committed, kv->page_size);
    while (s->n_col > keep) {
        mark_dirty(s, SIDE_TARGET, --s->n_col);
        if (kv->hook.rolling_back)
            kv->hook.rolling_back(kv, &s->col[s->n_col]);
        drop_column(kv, s, &s->col[s->n_col], s->n_col);
    }
    keep = div_up(s->drafted, kv->page_size);
    while (s->n_dcol > keep) {
        mark_dirty(s, SIDE_DRAFT, --s->n_dcol);
        drop_draft(kv, s, s->n_dcol, PAGE_DROP);
    }
    s->draft_lo = min_int(s->draft_lo, s->n_dcol * kv->page_size);
}

/* Removes the queued copy to a page, if there is one. */
static void cancel_copy(struct kv *kv, enum pool_id pool, int32_t dst)
{
    int n = 0;
    for (int i = 0; i < kv->n_copy; i++)
        if (kv->copy[i].pool != pool || kv->copy[i].dst != dst)
            kv->copy[n++] = kv->copy[i];
    kv->n_copy = n;
}

/* Drops page `now` of column c and restores the page that it replaced. */
static void share_again(struct kv *kv, struct seq *s, enum pool_id pool,
                        const struct replaced_column *was, int32_t now)
{
    if (!was->page[pool])
        return;
    cancel_copy(kv, pool, now);
    share_page(kv, pool, s, was->page[pool], was->c);
}

void kv_undo(struct kv *kv, struct seq *s)
{
    kv_rollback(kv, s);
    while (s->n_replaced) {
        const struct replaced_column *was = &s->replaced[--s->n_replaced];
        int c = was->c;
        if (c >= (was->side == SIDE_DRAFT ? s->n_dcol : s->n_col))
            continue; /* it held no final cell */
        mark_dirty(s, was->side, c);
        if (was->side == SIDE_DRAFT) {
            int32_t now = s->dcol[c].v;
            share_again(kv, s, POOL_DRAFT, was, now);
            s->dcol[c].v = was->page[POOL_DRAFT];
            drop_page(kv, POOL_DRAFT, s, now, c, PAGE_DROP);
        } else {
            struct column now = s->col[c];
            share_again(kv, s, POOL_FULL, was, now.full.v);
            share_again(kv, s, POOL_SWA, was, now.swa.v);
            s->col[c] = (struct column){{was->page[POOL_FULL]}, {was->page[POOL_SWA]}};
            drop_column(kv, s, &now, c);
        }
    }
}

static void release_draft(struct kv *kv, struct seq *s)
{
    int P = kv->page_size, end = draft_columns_passed(kv, s, s->drafted);
    if (s->draft_lo / P < end)
        mark_dirty(s, SIDE_DRAFT, s->draft_lo / P);
    for (int c = s->draft_lo / P; c < end; c++)
        drop_draft(kv, s, c, PAGE_WINDOW);
    s->draft_lo = max_int(s->draft_lo, end * P);
}

void kv_release_before(struct kv *kv, struct seq *s, int n)
{
    release_draft(kv, s);
    if (!kv->has_swa)
        return;
    int P = kv->page_size, end = columns_passed(kv, s, n);
    if (s->swa_lo / P < end)
        mark_dirty(s, SIDE_TARGET, s->swa_lo / P);
    for (int c = s->swa_lo / P; c < end; c++)
        drop_swa(kv, s, &s->col[c], c, PAGE_WINDOW);
    s->swa_lo = max_int(s->swa_lo, end * P);
}

void kv_release_window(struct kv *kv, struct seq *s)
{
    kv_release_before(kv, s, s->committed);
}

void kv_fork(struct kv *kv, const struct seq *src, struct seq *dst)
{
    CHECK(dst->n_col == 0 && dst->n_dcol == 0);
    int n = div_up(src->committed, kv->page_size), nd = div_up(src->drafted, kv->page_size);
    RESERVE(dst->col, n, dst->cap_col);
    RESERVE(dst->dcol, nd, dst->cap_dcol);
    for (int c = 0; c < n; c++) {
        dst->col[c] = src->col[c];
        share_page(kv, POOL_FULL, dst, src->col[c].full.v, c);
        if (src->col[c].swa.v)
            share_page(kv, POOL_SWA, dst, src->col[c].swa.v, c);
    }
    for (int c = 0; c < nd; c++) {
        dst->dcol[c] = src->dcol[c];
        if (src->dcol[c].v)
            share_page(kv, POOL_DRAFT, dst, src->dcol[c].v, c);
    }
    dst->n_col = n;
    dst->n_dcol = nd;
    dst->committed = src->committed;
    dst->drafted = src->drafted;
    dst->next = src->next;
    dst->swa_lo = src->swa_lo;
    dst->draft_lo = min_int(src->draft_lo, nd * kv->page_size);
    dst->tail = src->tail;
}

bool kv_can_fork_at(const struct kv *kv, const struct seq *src, int n)
{
    if (n < 1 || n > src->committed)
        return false;
    if (kv->hook.holds)
        return kv->hook.holds(kv, src, n);
    return !kv->has_swa || src->swa_lo <= max_int(0, n - kv->reach);
}

bool kv_can_draft(const struct kv *kv, const struct seq *src, int drafted)
{
    int before = kv->draft_window ? max_int(0, drafted - kv->draft_window) : 0;
    return drafted == 0 || src->draft_lo <= before;
}

void kv_fork_at(struct kv *kv, const struct seq *src, int n, int drafted, struct seq *dst)
{
    CHECK(kv_can_fork_at(kv, src, n) && drafted <= n && drafted <= src->drafted &&
          kv_can_draft(kv, src, drafted));
    struct seq head = *src;
    head.committed = n;
    head.drafted = drafted;
    if (drafted < src->drafted)
        head.next = kv->mark[POOL_FULL][kv_full_slot(kv, src, drafted).v].token;
    if (n < src->committed)
        head.tail = kv->mark[POOL_FULL][kv_full_slot(kv, src, n - 1).v].chain;
    kv_fork(kv, &head, dst);
}

void kv_drop(struct kv *kv, struct seq *s)
{
    s->committed = s->drafted = 0;
    kv_rollback(kv, s);
    FREE(s->col, s->dcol);
    *s = (struct seq){.holder = s->holder};
}

/* ---- the present state as events ---- */

static void log_hold(struct kv *kv, enum pool_id pool, enum page_holder holder, int32_t page, int c)
{
    if (page)
        page_log_add(&kv->log, &(struct page_event){
            .pool = (uint8_t)pool, .op = PAGE_HOLD, .holder = (uint8_t)holder, .page = page,
            .column = c, .refs = kv->pool[pool].ref[page]});
}

static void log_columns(struct kv *kv, enum pool_id pool, const struct seq *s)
{
    for (int c = 0; c < (pool == POOL_DRAFT ? s->n_dcol : s->n_col); c++)
        log_hold(kv, pool, s->holder,
                 pool == POOL_DRAFT ? s->dcol[c].v
                 : pool == POOL_SWA ? s->col[c].swa.v
                                    : s->col[c].full.v, c);
}

/* For checkpoints only the number of references matters, which the events of other holders of a
 * page contain. So only a page that no one but checkpoints holds, or that no sequence holds (a
 * leak), gets an event, without a column. */
static void log_others(struct kv *kv, enum pool_id pool, const uint8_t *listed)
{
    for (int32_t page = GUARD_PAGES; page < kv->pool[pool].total; page++)
        if (kv->pool[pool].ref[page] && !listed[page])
            log_hold(kv, pool, HOLDER_POINT, page, -1);
}

static void mark_listed(const struct kv *kv, enum pool_id pool, uint8_t *listed)
{
    for (int i = 0; i < kv->log.n_since; i++)
        if (kv->log.since[i].pool == pool && kv->log.since[i].op == PAGE_HOLD)
            listed[kv->log.since[i].page] = 1;
}

void kv_log_state(struct kv *kv, const struct seq *const *seqs, int n, int context)
{
    const int refs[N_POOLS] = {context, kv->has_swa ? window_before(kv->window) + 1 : 0, 0};
    kv->log.n_since = 0;
    for (int p = 0; p < N_POOLS && kv->log.keep; p++) {
        const struct pool *pool = &kv->pool[p];
        page_log_add(&kv->log, &(struct page_event){.pool = (uint8_t)p, .op = PAGE_RESET,
                                                    .page = pool->total, .column = kv->page_size,
                                                    .refs = refs[p]});
        for (int i = 0; i < n; i++)
            if (seqs[i]->holder != HOLDER_POINT)
                log_columns(kv, (enum pool_id)p, seqs[i]);
        FREED(free_at) uint8_t *listed = xcalloc((size_t)pool->total + 1, 1);
        mark_listed(kv, (enum pool_id)p, listed);
        log_others(kv, (enum pool_id)p, listed);
    }
}

/* ---- the order of free pages ---- */

void kv_save_order(const struct kv *kv, struct kv_order *o)
{
    for (int p = 0; p < N_POOLS; p++) {
        size_t bytes = (size_t)kv->pool[p].n_free * sizeof *o->free[p];
        o->n[p] = kv->pool[p].n_free;
        o->free[p] = bytes ? memcpy(xmalloc(bytes), kv->pool[p].free, bytes) : NULL;
    }
}

static struct violation at_page(int rule, enum pool_id pool, int page)
{
    struct violation at = fault_at(rule);
    at.pool = (int)pool;
    at.page = page;
    return at;
}

/* Whether the pages that were free then are those that are free now. */
static bool same_free(const struct pool *pool, const int32_t *page, int n, struct err *e)
{
    for (int i = 0; i < n; i++)
        if (pool->ref[page[i]])
            return fault_set(e, at_page(1, pool->id, page[i]),
                             "page %d was free before and has %d references", page[i],
                             pool->ref[page[i]]);
    return pool->n_free == n || fault_set(e, at_page(1, pool->id, -1),
                                          "%d pages are free, %d were before", pool->n_free, n);
}

bool kv_restore_order(struct kv *kv, struct kv_order *o, struct err *e)
{
    bool ok = true;
    for (int p = 0; p < N_POOLS && ok; p++)
        ok = same_free(&kv->pool[p], o->free[p], o->n[p], e);
    for (int p = 0; p < N_POOLS; p++) {
        if (ok && o->n[p])
            memcpy(kv->pool[p].free, o->free[p], (size_t)o->n[p] * sizeof *o->free[p]);
        free(o->free[p]);
    }
    *o = (struct kv_order){0};
    return ok;
}

/* ---- checking ---- */

static struct violation in_column(int rule, int sequence, int column, int page)
{
    struct violation at = fault_at(rule);
    at.sequence = sequence;
    at.column = column;
    at.page = page;
    return at;
}

struct recount {
    uint16_t *ref[N_POOLS];
};

static bool recount_seq(const struct kv *kv, const struct seq *s, int i, struct recount *r,
                        struct err *e)
{
    int P = kv->page_size;
    if (kv->has_swa && (s->swa_lo % P || s->swa_lo > max_int(0, s->committed - kv->reach)))
        return fault_set(e, in_column(5, i, -1, -1),
                         "released below cell %d, but cell %d is still in reach", s->swa_lo,
                         max_int(0, s->committed - kv->reach));
    for (int c = 0; c < s->n_col; c++) {
        int32_t f = s->col[c].full.v, w = s->col[c].swa.v;
        if (f < GUARD_PAGES || f >= kv->pool[POOL_FULL].total)
            return fault_set(e, in_column(8, i, c, f), "holds full page %d", f);
        r->ref[POOL_FULL][f]++;
        if (kv->has_swa && (w != 0) != (c * P >= s->swa_lo))
            return fault_set(e, in_column(5, i, c, -1), "%s, released below cell %d",
                             w ? "still holds an swa page" : "holds no swa page", s->swa_lo);
        if (!w)
            continue;
        if (!kv->has_swa || w < GUARD_PAGES || w >= kv->pool[POOL_SWA].total)
            return fault_set(e, in_column(8, i, c, w), "holds swa page %d", w);
        r->ref[POOL_SWA][w]++;
        if (kv->swa_of[f] != w || kv->full_of[w] != f)
            return fault_set(e, in_column(4, i, c, f),
                             "full page %d maps to swa page %d (back to %d), the row holds %d", f,
                             kv->swa_of[f], kv->full_of[w], w);
    }
    if (s->draft_lo % P || s->draft_lo > s->drafted)
        return fault_set(e, in_column(5, i, -1, -1),
                         "draft pages released below cell %d of %d drafted ones", s->draft_lo,
                         s->drafted);
    for (int c = 0; c < s->n_dcol; c++) {
        int32_t d = s->dcol[c].v;
        if ((d != 0) != (c * P >= s->draft_lo))
            return fault_set(e, in_column(5, i, c, -1), "%s, released below cell %d",
                             d ? "still holds a draft page" : "holds no draft page", s->draft_lo);
        if (!d)
            continue;
        if (d < GUARD_PAGES || d >= kv->pool[POOL_DRAFT].total)
            return fault_set(e, in_column(8, i, c, d), "holds draft page %d", d);
        r->ref[POOL_DRAFT][d]++;
    }
    return true;
}

static bool compare_refs(const struct kv *kv, const struct recount *r, struct err *e)
{
    for (int p = 0; p < N_POOLS; p++)
        for (int i = 0; i < kv->pool[p].total; i++)
            if (r->ref[p][i] != kv->pool[p].ref[i])
                return fault_set(e, at_page(3, (enum pool_id)p, i),
                                 "page %d has %d references, sequences hold %d", i,
                                 kv->pool[p].ref[i], r->ref[p][i]);
    for (int f = 0; f < kv->pool[POOL_FULL].total; f++)
        if (kv->swa_of[f] && kv->pool[POOL_SWA].ref[kv->swa_of[f]] == 0)
            return fault_set(e, at_page(4, POOL_FULL, f),
                             "page %d maps to swa page %d, which is free", f, kv->swa_of[f]);
    return true;
}

bool kv_check(const struct kv *kv, const struct seq *const *seqs, int n, struct err *e)
{
    for (int p = 0; p < N_POOLS; p++)
        if (kv->pool[p].total && !pool_check(&kv->pool[p], e))
            return false;
    struct recount r;
    for (int p = 0; p < N_POOLS; p++)
        r.ref[p] = xcalloc((size_t)kv->pool[p].total, sizeof *r.ref[p]);
    bool ok = true;
    for (int i = 0; i < n && ok; i++)
        ok = recount_seq(kv, seqs[i], i, &r, e);
    ok = ok && compare_refs(kv, &r, e);
    for (int p = 0; p < N_POOLS; p++)
        free(r.ref[p]);
    return ok;
}
