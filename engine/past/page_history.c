/* page_history.c - see page_history.h. */
#include "engine/past/page_history.h"

#include "kernels/window.h"

/* Limits of what a damaged log can make this allocate. */
enum { MAX_PAGES = 1 << 24, MAX_COLUMNS = 1 << 24 };

/* ---- applying events ------------------------------------------------------------------------- */

static void free_pool(struct page_fold *p)
{
    FREE(p->refs, p->idle, p->page);
    *p = (struct page_fold){0};
}

void page_history_free(struct page_history *h)
{
    for (int i = 0; i < N_POOLS; i++)
        free_pool(&h->pool[i]);
    *h = (struct page_history){0};
}

static bool reset(struct page_history *h, const struct page_event *ev, struct err *e)
{
    struct page_fold *p = &h->pool[ev->pool];
    if (ev->page > MAX_PAGES || ev->column < 1 || ev->column > 64 ||
        (ev->column & (ev->column - 1)))
        return err_set(e, ERR_DB, "page events: a pool of %d pages of %d tokens", ev->page,
                       ev->column);
    if (p->total != ev->page) {
        free_pool(p);
        p->total = ev->page;
        /* zeros take no memory until they are written: a log may name more pages than it uses */
        p->refs = xcalloc((size_t)p->total + 1, sizeof *p->refs);
        p->idle = xcalloc((size_t)p->total + 1, sizeof *p->idle);
    } else if (p->total) {
        memset(p->refs, 0, (size_t)p->total * sizeof *p->refs);
        memset(p->idle, 0, (size_t)p->total * sizeof *p->idle);
    }
    p->n = p->used = 0;
    h->page_size = ev->column;
    if (ev->pool == POOL_FULL)
        h->capacity = ev->refs;
    if (ev->pool == POOL_SWA)
        h->window = ev->refs;
    return true;
}

static void set_column(struct page_fold *p, int c, int32_t page)
{
    RESERVE(p->page, c + 1, p->cap);
    while (p->n <= c)
        p->page[p->n++] = 0;
    p->page[c] = page;
}

static void clear_column(struct page_fold *p, int c, int32_t page)
{
    if (c < p->n && p->page[c] == page) /* else a copy has replaced the page already */
        p->page[c] = 0;
    while (p->n && p->page[p->n - 1] == 0)
        p->n--;
}

/* Whether an event gives the page one more holder, rather than one less. */
static bool adds(enum page_op op)
{
    return op == PAGE_TAKE || op == PAGE_SHARE || op == PAGE_HOLD;
}

static bool apply_event(struct page_history *h, const struct page_event *ev, struct err *e)
{
    struct page_fold *p = &h->pool[ev->pool];
    if (ev->op == PAGE_RESET)
        return reset(h, ev, e);
    if (ev->page < 1 || ev->page >= p->total || ev->refs > UINT16_MAX || ev->column >= MAX_COLUMNS)
        return err_set(e, ERR_DB, "page events: %s of %s page %d, column %d, in a pool of %d",
                       page_op_name((enum page_op)ev->op), pool_name((enum pool_id)ev->pool),
                       ev->page, ev->column, p->total);
    bool more = adds((enum page_op)ev->op);
    p->used += (ev->refs > 0) - (p->refs[ev->page] > 0);
    p->refs[ev->page] = (uint16_t)ev->refs;
    if (ev->holder == HOLDER_IDLE && (more || p->idle[ev->page]))
        p->idle[ev->page] = (uint16_t)(p->idle[ev->page] + (more ? 1 : -1));
    if (ev->holder != HOLDER_SESSION || ev->column < 0)
        return true;
    if (more)
        set_column(p, ev->column, ev->page);
    else
        clear_column(p, ev->column, ev->page);
    return true;
}

static bool apply_step(struct page_history *h, const uint8_t **at, const uint8_t *end,
                       struct err *e)
{
    int runs;
    if (!page_unpack_head(at, end, &h->lengths, &runs, e))
        return false;
    for (int i = 0; i < runs; i++) {
        struct page_run r;
        if (!page_unpack_run(at, &r, e))
            return false;
        for (int k = 0; k < r.n; k++) {
            if (!apply_event(h, &r.first, e))
                return false;
            r.first.page += r.d;
            r.first.column += r.first.column < 0 ? 0 : r.d;
        }
    }
    return h->page_size ||
           err_set(e, ERR_DB, "page events: the first of them do not say how large the pools are");
}

bool page_history_apply(struct page_history *h, const void *packed, size_t n, struct err *e)
{
    const uint8_t *at = packed, *end = at + n;
    while (at < end)
        if (!apply_step(h, &at, end, e))
            return false;
    return true;
}

/* ---- the whole state ------------------------------------------------------------------------- */

struct events {
    struct page_event *ev;
    int n;
};

static void add_event(struct events *list, int pool, enum page_op op, enum page_holder holder,
                      int32_t page, int column, int refs)
{
    *APPEND(list->ev, list->n) = (struct page_event){(uint8_t)pool, (uint8_t)op, (uint8_t)holder,
                                                     page, column, refs};
}

static void add_pool(const struct page_history *h, int pool, struct events *list)
{
    const struct page_fold *p = &h->pool[pool];
    int about = pool == POOL_FULL ? h->capacity : pool == POOL_SWA ? h->window : 0;
    FREED(free_at) uint8_t *listed = xcalloc((size_t)p->total + 1, 1);
    add_event(list, pool, PAGE_RESET, HOLDER_SESSION, p->total, max_int(1, h->page_size), about);
    for (int c = 0; c < p->n; c++)
        if (p->page[c]) {
            add_event(list, pool, PAGE_HOLD, HOLDER_SESSION, p->page[c], c, p->refs[p->page[c]]);
            listed[p->page[c]] = 1;
        }
    for (int32_t page = 1; page < p->total; page++) {
        for (int k = 0; k < p->idle[page]; k++)
            add_event(list, pool, PAGE_HOLD, HOLDER_IDLE, page, -1, p->refs[page]);
        if (p->refs[page] && !p->idle[page] && !listed[page])
            add_event(list, pool, PAGE_HOLD, HOLDER_POINT, page, -1, p->refs[page]);
    }
}

void page_history_pack(const struct page_history *h, struct buf *out)
{
    struct events list = {0};
    for (int p = 0; p < N_POOLS; p++)
        add_pool(h, p, &list);
    page_pack(&h->lengths, list.ev, list.n, out);
    free(list.ev);
}

/* ---- views ----------------------------------------------------------------------------------- */

/* The page of a column; the swa column of a column that the session has given back shows none,
 * whatever became of its swa page. */
static int32_t column_page(const struct page_history *h, enum pool_id pool, int c)
{
    const struct page_fold *p = &h->pool[pool];
    bool there = pool != POOL_SWA || c < h->pool[POOL_FULL].n;
    return there && c < p->n ? p->page[c] : 0;
}

static void fill_pool(const struct page_history *h, enum pool_id id, struct page_table *t)
{
    const struct page_fold *p = &h->pool[id];
    struct pool_view *v = &t->pool[id];
    *v = (struct pool_view){.exists = p->total > 0};
    if (!v->exists)
        return;
    v->page_size = h->page_size;
    v->total = p->total;
    v->reserved = 1; /* page 0 */
    t->mine[id] = xcalloc((size_t)p->total, 1);
    t->refs[id] = xcopy(p->refs, (size_t)p->total, sizeof *p->refs);
    for (int c = 0; c < p->n; c++)
        if (column_page(h, id, c))
            t->mine[id][p->page[c]] = 1;
    for (int page = 1; page < p->total; page++)
        ++*(!p->refs[page]        ? &v->free
            : !t->mine[id][page]  ? &v->evictable
            : p->idle[page]       ? &v->protected_
                                  : &v->used);
}

void page_history_table(const struct page_history *h, struct page_table *t)
{
    *t = (struct page_table){.length = h->lengths.length, .committed = h->lengths.committed,
                             .capacity = h->capacity, .window = h->window,
                             .window_lo = h->lengths.window_lo,
                             .draft_length = h->lengths.drafted};
    t->n_page = max_int(h->pool[POOL_FULL].n, h->pool[POOL_DRAFT].n);
    t->page = xcalloc((size_t)t->n_page + 1, sizeof *t->page);
    for (int c = 0; c < t->n_page; c++) {
        struct page_view *v = &t->page[c];
        v->full = column_page(h, POOL_FULL, c);
        v->swa = column_page(h, POOL_SWA, c);
        v->draft = column_page(h, POOL_DRAFT, c);
        v->full_refs = (int16_t)(v->full ? h->pool[POOL_FULL].refs[v->full] : 0);
        v->swa_refs = (int16_t)(v->swa ? h->pool[POOL_SWA].refs[v->swa] : 0);
        v->draft_refs = (int16_t)(v->draft ? h->pool[POOL_DRAFT].refs[v->draft] : 0);
    }
    for (int p = 0; p < N_POOLS; p++)
        fill_pool(h, (enum pool_id)p, t);
}

bool page_history_position(const struct page_history *h, int position, int32_t token,
                           struct pos_view *v, struct err *e)
{
    int n = h->lengths.length, P = h->page_size;
    if (position < 0 || position >= n)
        return n == 0 ? err_set(e, ERR_USAGE, "the context was empty then")
                      : err_set(e, ERR_USAGE, "position %d: expected 0 to %d", position, n - 1);
    int32_t page[N_POOLS];
    for (int p = 0; p < N_POOLS; p++)
        page[p] = column_page(h, (enum pool_id)p, position / P);
    *v = (struct pos_view){.position = position, .token = token,
                           .committed = position < h->lengths.committed,
                           .in_window = position >= window_first(h->lengths.committed, h->window)};
    v->full_slot = page[POOL_FULL] ? page[POOL_FULL] * P + position % P : 0;
    v->swa_slot = page[POOL_SWA] ? page[POOL_SWA] * P + position % P : 0;
    v->draft_slot = page[POOL_DRAFT] ? page[POOL_DRAFT] * P + position % P : 0;
    return true;
}

/* ---- the changes of one page ----------------------------------------------------------------- */

void page_walk_add(struct page_walk *w, int turn, int step, const struct page_event *ev, int n)
{
    bool held = false; /* by an event of this step: PAGE_HOLD follows PAGE_RESET */
    for (int i = n - 1; i >= 0 && !w->over; i--) {
        if (ev[i].pool != w->pool)
            continue;
        if (ev[i].op == PAGE_RESET)
            w->over = !held;
        if (ev[i].op == PAGE_RESET || ev[i].page != w->page)
            continue;
        held |= ev[i].op == PAGE_HOLD;
        w->over = w->n == w->max;
        if (!w->over)
            w->out[w->n++] = (struct page_change){turn, step, ev[i]};
    }
}

void page_walk_packed(struct page_walk *w, int turn, int step, const void *packed, size_t n)
{
    struct context_lengths l;
    struct page_event *ev;
    int count;
    if (n && page_unpack(packed, n, &l, &ev, &count, NULL)) {
        page_walk_add(w, turn, step, ev, count);
        free(ev);
    }
}

void page_walk_end(struct page_walk *w)
{
    for (int i = 0; i < w->n / 2; i++) {
        struct page_change c = w->out[i];
        w->out[i] = w->out[w->n - 1 - i];
        w->out[w->n - 1 - i] = c;
    }
}

/* ---- the tape -------------------------------------------------------------------------------- */

enum { GROUP_BYTES = 64 << 10 /* of changes, unless the whole state is larger */ };

static size_t group_size(const struct tape_group *g)
{
    return sizeof *g + g->bytes.cap + g->first.cap;
}

static void drop_group(struct page_tape *t, int i)
{
    t->used -= group_size(t->group[i]);
    buf_free(&t->group[i]->bytes);
    buf_free(&t->group[i]->first);
    free(t->group[i]);
    CUT(t->group, t->n, i);
}

void tape_clear(struct page_tape *t)
{
    while (t->n)
        drop_group(t, t->n - 1);
}

void tape_close(struct page_tape *t)
{
    tape_clear(t);
    free(t->group);
    *t = (struct page_tape){0};
}

static void fit_budget(struct page_tape *t)
{
    while (t->budget && t->used > t->budget && t->n > 1)
        drop_group(t, 0);
}

void tape_budget(struct page_tape *t, size_t bytes)
{
    t->budget = bytes;
    fit_budget(t);
}

bool tape_wants_whole(const struct page_tape *t)
{
    if (t->n == 0)
        return true;
    const struct tape_group *g = t->group[t->n - 1];
    size_t changes = g->bytes.n - g->whole, most = GROUP_BYTES;
    return g->n == TAPE_STEPS || changes > (g->whole > most ? g->whole : most);
}

static struct tape_group *add_group(struct page_tape *t)
{
    struct tape_group *g = xcalloc(1, sizeof *g);
    *APPEND(t->group, t->n) = g;
    t->used += group_size(g);
    return g;
}

void tape_add(struct page_tape *t, int turn, int step, const struct buf *packed,
              const struct buf *change)
{
    bool whole = tape_wants_whole(t);
    struct tape_group *g = whole ? add_group(t) : t->group[t->n - 1];
    size_t before = group_size(g);
    buf_add(&g->bytes, packed->p, packed->n);
    if (whole) {
        g->whole = packed->n;
        buf_add(&g->first, change->p, change->n);
    }
    g->at[g->n].turn = turn;
    g->at[g->n].step = step;
    g->at[g->n++].end = g->bytes.n;
    t->used += group_size(g) - before;
    fit_budget(t);
}

/* Whether step i of the group comes after (turn, step). */
static bool later(const struct tape_group *g, int i, int turn, int step)
{
    return g->at[i].turn != turn ? g->at[i].turn > turn : g->at[i].step > step;
}

void tape_cut(struct page_tape *t, int turn, int step)
{
    while (t->n) {
        struct tape_group *g = t->group[t->n - 1];
        while (g->n && later(g, g->n - 1, turn, step))
            g->n--;
        if (g->n) {
            g->bytes.n = g->at[g->n - 1].end;
            return;
        }
        drop_group(t, t->n - 1);
    }
}

/* The last step of the group that is not later; -1: none. */
static int find_step(const struct tape_group *g, int turn, int step)
{
    return FIRST_NOT(i, g->n, !later(g, i, turn, step)) - 1;
}

/* The last group whose first step is not later; NULL: none. */
static const struct tape_group *find_group(const struct page_tape *t, int turn, int step)
{
    int n = FIRST_NOT(i, t->n, !later(t->group[i], 0, turn, step));
    return n ? t->group[n - 1] : NULL;
}

bool tape_walk(const struct page_tape *t, int *turn, int *step, struct page_walk *w)
{
    const struct tape_group *g = find_group(t, *turn, *step);
    if (!g)
        return false;
    for (int i = find_step(g, *turn, *step); i >= 0 && !w->over; i--) {
        const struct buf *b = i ? &g->bytes : &g->first;
        size_t from = i ? g->at[i - 1].end : 0, end = i ? g->at[i].end : b->n;
        page_walk_packed(w, g->at[i].turn, g->at[i].step, b->p + from, end - from);
    }
    *turn = g->at[0].turn;
    *step = g->at[0].step - 1;
    return true;
}

bool tape_copy(const struct page_tape *t, int turn, int step, struct buf *out)
{
    const struct tape_group *g = find_group(t, turn, step);
    int i = g ? find_step(g, turn, step) : -1;
    if (i < 0 || g->at[i].turn != turn || g->at[i].step != step)
        return false;
    buf_add(out, g->bytes.p, g->at[i].end);
    return true;
}
