/* page_event.c - see page_event.h. */
#include "engine/cache/page_event.h"

/* Events of one packed step: as many as two forks of a context of a million pages. */
enum { MAX_EVENTS = 1 << 24, MAX_STRIDE = 127 };

/* ---- names ---- */

#define NAME(table, i) ((unsigned)(i) < sizeof(table) / sizeof *(table) ? (table)[i] : "?")

const char *pool_name(enum pool_id p)
{
    static const char *const name[N_POOLS] = {"full", "swa", "draft"};
    return NAME(name, p);
}

const char *pool_cells(enum pool_id p)
{
    static const char *const name[N_POOLS] = {"KV cells", "KV cells of sliding layers",
                                              "KV cells of the draft"};
    return name[p];
}

const char *page_op_name(enum page_op op)
{
    static const char *const name[] = {"take",   "share", "drop", "free",
                                       "window", "reset", "hold"};
    return NAME(name, op);
}

/* ---- packing ---- */

static void put_u32(uint8_t *b, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        b[i] = (uint8_t)(v >> 8 * i);
}

static int32_t get_i32(const uint8_t *b)
{
    return (int32_t)(b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24);
}

static void put_run(const struct page_run *r, struct buf *out)
{
    const struct page_event *ev = &r->first;
    uint8_t b[PAGE_PACK_RUN] = {ev->pool, ev->op, ev->holder, (uint8_t)(int8_t)r->d};
    put_u32(b + 4, (uint32_t)ev->page);
    put_u32(b + 8, (uint32_t)ev->column);
    put_u32(b + 12, (uint32_t)ev->refs);
    put_u32(b + 16, (uint32_t)r->n);
    buf_add(out, b, sizeof b);
}

/* Adds the event to the run if it continues the run. */
static bool goes_on(struct page_run *r, const struct page_event *ev)
{
    const struct page_event *a = &r->first;
    if (r->n == 0 || r->n == MAX_EVENTS || ev->op != a->op || ev->holder != a->holder ||
        ev->refs != a->refs)
        return false;
    int64_t page = (int64_t)ev->page - a->page, column = (int64_t)ev->column - a->column;
    int64_t d = r->n == 1 ? page : r->d;
    int64_t moved = a->column < 0 ? 0 : r->n * d;
    if (d == 0 || d < -MAX_STRIDE || d > MAX_STRIDE || page != r->n * d || column != moved)
        return false;
    r->d = (int)d;
    r->n++;
    return true;
}

static int by_page(const void *x, const void *y)
{
    const struct page_event *a = x, *b = y;
    return (a->page > b->page) - (a->page < b->page);
}

/* Orders by references, then by the distance of page and column, then by column, so that pages
 * which were taken in alternation with other holders form few runs. */
static int by_run(const void *x, const void *y)
{
    const struct page_event *a = x, *b = y;
    int64_t d = (int64_t)a->refs - b->refs;
    if (d == 0)
        d = ((int64_t)a->page - a->column) - ((int64_t)b->page - b->column);
    if (d == 0)
        d = (int64_t)a->column - b->column;
    return (d > 0) - (d < 0);
}

/* The number of events at the beginning that form one sweep over the columns of one holder,
 * ascending or descending. Their order has no meaning, because pages are shared or dropped one by
 * one. */
static int sweep(const struct page_event *ev, int n)
{
    int k = 1;
    bool commutes = ev->op == PAGE_SHARE || ev->op == PAGE_DROP || ev->op == PAGE_HOLD;
    bool up = n > 1 && ev[1].column > ev->column;
    while (commutes && k < n && ev[k].op == ev->op && ev[k].holder == ev->holder &&
           ev[k].column >= 0 && ev[k - 1].column >= 0 &&
           (up ? ev[k].column > ev[k - 1].column : ev[k].column < ev[k - 1].column))
        k++;
    return k;
}

/* Reorders the events within each sweep, in which no page occurs twice. */
static void sort_sweeps(struct page_event *ev, int n)
{
    for (int i = 0, k; i < n; i += k) {
        k = sweep(ev + i, n - i);
        if (k < 3)
            continue;
        FREED(free_at) struct page_event *sorted = xcopy(ev + i, (size_t)k, sizeof *ev);
        qsort(sorted, (size_t)k, sizeof *sorted, by_page);
        bool once = true;
        for (int j = 1; j < k; j++)
            once &= sorted[j].page != sorted[j - 1].page;
        if (once)
            qsort(ev + i, (size_t)k, sizeof *ev, by_run);
    }
}

/* The events of one pool as runs; returns how many. */
static int pack_pool(int pool, const struct page_event *ev, int n, struct buf *out)
{
    FREED(free_at) struct page_event *mine = n ? xcalloc((size_t)n, sizeof *mine) : NULL;
    struct page_run r = {.n = 0};
    int runs = 0, k = 0;
    for (int i = 0; i < n; i++)
        if (ev[i].pool == pool)
            mine[k++] = ev[i];
    sort_sweeps(mine, k);
    for (int i = 0; i < k; i++) {
        if (goes_on(&r, &mine[i]))
            continue;
        if (r.n)
            put_run(&r, out);
        r = (struct page_run){.first = mine[i], .n = 1};
        runs++;
    }
    if (r.n)
        put_run(&r, out);
    return runs;
}

void page_pack(const struct context_lengths *l, const struct page_event *ev, int n,
               struct buf *out)
{
    size_t at = out->n;
    uint8_t head[PAGE_PACK_HEAD] = {PAGE_PACK_VERSION};
    int runs = 0;
    buf_add(out, head, sizeof head);
    for (int p = 0; p < N_POOLS; p++)
        runs += pack_pool(p, ev, n, out);
    uint8_t *b = (uint8_t *)out->p + at;
    put_u32(b + 1, (uint32_t)l->length);
    put_u32(b + 5, (uint32_t)l->committed);
    put_u32(b + 9, (uint32_t)l->drafted);
    put_u32(b + 13, (uint32_t)l->window_lo);
    put_u32(b + 17, (uint32_t)runs);
}

/* ---- unpacking ---- */

bool page_unpack_head(const uint8_t **p, const uint8_t *end, struct context_lengths *l, int *runs,
                      struct err *e)
{
    const uint8_t *b = *p;
    size_t left = (size_t)(end - b);
    if (left < PAGE_PACK_HEAD || b[0] != PAGE_PACK_VERSION)
        return err_set(e, ERR_DB, "not packed page events of version %d", PAGE_PACK_VERSION);
    *l = (struct context_lengths){get_i32(b + 1), get_i32(b + 5), get_i32(b + 9), get_i32(b + 13)};
    *runs = get_i32(b + 17);
    left -= PAGE_PACK_HEAD;
    if (*runs < 0 || (size_t)*runs > left / PAGE_PACK_RUN)
        return err_set(e, ERR_DB, "packed page events: %d runs in %zu bytes", *runs, left);
    *p += PAGE_PACK_HEAD;
    return true;
}

/* Whether a value and those up to n - 1 steps of d from it are all >= least. */
static bool stays_above(int32_t v, int d, int n, int least)
{
    int64_t last = v + (int64_t)d * (n - 1);
    return v >= least && last >= least && last <= INT32_MAX;
}

bool page_unpack_run(const uint8_t **p, struct page_run *r, struct err *e)
{
    const uint8_t *b = *p;
    r->first = (struct page_event){.pool = b[0], .op = b[1], .holder = b[2],
                                   .page = get_i32(b + 4), .column = get_i32(b + 8),
                                   .refs = get_i32(b + 12)};
    r->d = (int8_t)b[3];
    r->n = get_i32(b + 16);
    const struct page_event *ev = &r->first;
    bool one = r->n == 1 && r->d == 0, many = r->n > 1 && r->d != 0 && r->d >= -MAX_STRIDE;
    if (ev->pool >= N_POOLS || ev->op > LAST_PAGE_OP || ev->holder > LAST_PAGE_HOLDER ||
        !(one || many) || r->n > MAX_EVENTS || ev->refs < 0 ||
        !stays_above(ev->page, r->d, r->n, 0) || ev->column < -1 ||
        !stays_above(ev->column, ev->column < 0 ? 0 : r->d, r->n, -1))
        return err_set(e, ERR_DB, "packed page events: a damaged run (pool %d, op %d, page %d, n "
                                  "%d)",
                       b[0], b[1], ev->page, r->n);
    *p += PAGE_PACK_RUN;
    return true;
}

bool page_unpack(const void *packed, size_t size, struct context_lengths *l,
                 struct page_event **ev, int *n, struct err *e)
{
    const uint8_t *p = packed, *end = p + size;
    int runs, cap = 0;
    *ev = NULL;
    *n = 0;
    bool ok = page_unpack_head(&p, end, l, &runs, e);
    for (int i = 0; ok && i < runs; i++) {
        struct page_run r;
        ok = page_unpack_run(&p, &r, e) &&
             (r.n <= MAX_EVENTS - *n || err_set(e, ERR_DB, "packed page events: too many"));
        if (!ok)
            break;
        RESERVE(*ev, *n + r.n, cap);
        for (int k = 0; k < r.n; k++) {
            (*ev)[*n] = r.first;
            (*ev)[*n].page += k * r.d;
            (*ev)[(*n)++].column += r.first.column < 0 ? 0 : k * r.d;
        }
    }
    ok = ok && (p == end || err_set(e, ERR_DB, "packed page events: %zu bytes follow them",
                                    (size_t)(end - p)));
    if (!ok) {
        DROP(*ev);
        *n = 0;
    }
    return ok;
}
