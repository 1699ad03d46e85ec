/* page_list.c - see page_list.h. */
#include "engine/cache/page_list.h"

static size_t words(const struct page_list *l)
{
    return N_POOLS * (size_t)(l->cols + RED_ZONE);
}

bool list_open(struct page_list *l, const struct kernels *k, struct kdev *d, int cols,
               struct err *e)
{
    *l = (struct page_list){.cols = cols};
    int32_t *all = xcalloc(words(l), sizeof *all);
    for (int p = 0; p < N_POOLS; p++) {
        l->page[p] = all + (size_t)p * (size_t)(cols + RED_ZONE);
        for (int i = 0; i < RED_ZONE; i++)
            l->page[p][cols + i] = RED_WORD;
        l->hi[p] = cols; /* the device has no column yet */
    }
    l->mem = k->alloc(d, words(l) * sizeof *all, "page columns", e);
    return l->mem.p != NULL;
}

void list_close(struct page_list *l, const struct kernels *k, struct kdev *d)
{
    k->release(d, l->mem);
    free(l->page[0]);
    *l = (struct page_list){0};
}

static uint64_t column_digest(int c, int32_t page)
{
    return page ? mix64((uint64_t)(uint32_t)c << 32 | (uint32_t)page) : 0;
}

static void put_page(struct page_list *l, enum pool_id pool, int c, int32_t page)
{
    int32_t *at = &l->page[pool][c];
    if (*at == page)
        return;
    l->sum[pool] += column_digest(c, page) - column_digest(c, *at);
    *at = page;
    l->lo[pool] = min_int(l->lo[pool], c);
    l->hi[pool] = max_int(l->hi[pool], c + 1);
    l->version[side_of(pool)]++;
}

static void truncate_columns(struct page_list *l, enum pool_id pool, int n)
{
    for (int c = n; c < l->n[pool]; c++)
        put_page(l, pool, c, 0);
    l->n[pool] = n;
}

void list_mark_unchecked(struct page_list *l)
{
    memset(l->stamp, 0, sizeof l->stamp);
}

int list_checked(const struct page_list *l, const struct seq *s, enum side side)
{
    return l->stamp[side] && l->stamp[side] == s->stamp[side] ? s->clean[side] : 0;
}

static void write_target(struct page_list *l, const struct kv *kv, const struct seq *s, int from)
{
    for (int c = from; c < s->n_col; c++) {
        full_page page = s->col[c].full;
        put_page(l, POOL_FULL, c, page.v);
        if (kv->has_swa)
            put_page(l, POOL_SWA, c, c >= s->swa_lo >> kv->shift ? kv_swa_page(kv, page).v : 0);
    }
    truncate_columns(l, POOL_FULL, s->n_col);
    truncate_columns(l, POOL_SWA, kv->has_swa ? s->n_col : 0);
}

static void write_draft(struct page_list *l, const struct seq *s, int from)
{
    for (int c = from; c < s->n_dcol; c++)
        put_page(l, POOL_DRAFT, c, s->dcol[c].v);
    truncate_columns(l, POOL_DRAFT, s->n_dcol);
}

void list_write(struct page_list *l, const struct kv *kv, const struct seq *s, enum side side)
{
    CHECK(s->n_col <= l->cols && s->n_dcol <= l->cols);
    int from = list_checked(l, s, side);
    if (l->stamp[side] != s->stamp[side])
        l->stamp[side] = 0; /* the clean columns were written to another list */
    if (side == SIDE_DRAFT)
        write_draft(l, s, from);
    else
        write_target(l, kv, s, from);
}

void list_mark_checked(struct page_list *l, struct kv *kv, struct seq *s, enum side side)
{
    l->stamp[side] = kv_mark_clean(kv, s, side);
}

void list_send(struct page_list *l, const struct kernels *k, struct kdev *d)
{
    for (int p = 0; p < N_POOLS; p++) {
        size_t n = (size_t)max_int(0, l->hi[p] - l->lo[p]) * sizeof(int32_t);
        const int32_t *from = l->page[p] + l->lo[p];
        if (n)
            k->put(d, kbuf_at(l->mem, (size_t)(from - l->page[0]) * sizeof *from, n), from, n);
        l->lo[p] = l->cols;
        l->hi[p] = 0;
    }
}

kbuf list_view(const struct page_list *l, enum pool_id pool, int n)
{
    CHECK(n <= l->cols);
    return kbuf_at(l->mem, (size_t)(l->page[pool] - l->page[0]) * sizeof *l->page[0],
                   (size_t)n * sizeof *l->page[0]);
}
