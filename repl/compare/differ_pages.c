/* differ_pages.c - see differ_pages.h. */
#include "repl/compare/differ_pages.h"

#include "kernels/lines.h"

__attribute__((format(printf, 3, 4)))
static bool say(char *why, size_t n, const char *fmt, ...)
{
    WITH_ARGS(ap, fmt, vsnprintf(why, n, fmt, ap));
    return true;
}

static bool numbers_differ(const char *what, int a, int b, const struct diff_names *in, char *why,
                           size_t n)
{
    return a != b && say(why, n, "%s %d %s, %d %s", what, a, in->a, b, in->b);
}

static int by_page(const void *a, const void *b)
{
    int32_t x = ((const int32_t *)a)[0], y = ((const int32_t *)b)[0];
    return (x > y) - (x < y);
}

/* Whether the columns from `first` to that of position `last` have a page each, all different. */
static bool columns_wrong(const struct page_history *h, enum pool_id p, int first, int last,
                          const char *in, char *why, size_t n)
{
    const struct page_fold *f = &h->pool[p];
    int P = h->page_size, end = last < 0 ? 0 : last / P + 1, k = 0;
    bool wrong = false;
    if (!f->total)
        return false;
    int32_t (*page)[2] = xcalloc((size_t)max_int(1, end), sizeof *page);
    for (int c = first / P; c < end && !wrong; c++) {
        if (c >= f->n || f->page[c] == 0)
            wrong = say(why, n, "position %d has no page of the %s pool %s", c * P, pool_name(p),
                        in);
        else if (k++ >= 0) {
            page[k - 1][0] = f->page[c];
            page[k - 1][1] = c;
        }
    }
    if (!wrong)
        qsort(page, (size_t)k, sizeof *page, by_page);
    for (int i = 1; i < k && !wrong; i++)
        if (page[i][0] == page[i - 1][0])
            wrong = say(why, n, "positions %d and %d share page %d of the %s pool %s",
                        page[i - 1][1] * P, page[i][1] * P, page[i][0], pool_name(p), in);
    free(page);
    return wrong;
}

/* Whether the first positions that the two sides still hold in the swa pool are consistent with one
 * window: pages are released as a whole, so each position is rounded down to its page. */
static bool windows_meet(const struct page_history *a, const struct page_history *b)
{
    int x = a->lengths.window_lo, y = b->lengths.window_lo;
    return x < y + b->page_size && y < x + a->page_size;
}

/* The first position that the pool holds a page of; 0: it holds none. */
static int first_held(const struct page_history *h, enum pool_id p)
{
    const struct page_fold *f = &h->pool[p];
    int c = 0;
    while (c < f->n && f->page[c] == 0)
        c++;
    return c < f->n ? c * h->page_size : 0;
}

static bool tables_differ(const struct page_meaning *m, const struct diff_names *in, char *why,
                          size_t n)
{
    const struct page_history *h = m->h;
    const struct context_lengths *x = &h[0].lengths, *y = &h[1].lengths;
    if (numbers_differ("context length", x->length, y->length, in, why, n) ||
        numbers_differ("committed cells", x->committed, y->committed, in, why, n) ||
        numbers_differ("cells of the draft", x->drafted, y->drafted, in, why, n))
        return true;
    if (h[0].pool[POOL_SWA].total && h[1].pool[POOL_SWA].total && !windows_meet(&h[0], &h[1]))
        return say(why, n, "the swa pool holds positions from %d on %s, from %d on %s",
                   x->window_lo, in->a, y->window_lo, in->b);
    for (int i = 0; i < 2; i++) {
        const char *where = i ? in->b : in->a;
        const struct context_lengths *l = &h[i].lengths;
        int draft = m->draft_window[i] ? first_held(&h[i], POOL_DRAFT) : 0;
        if (columns_wrong(&h[i], POOL_FULL, 0, l->committed - 1, where, why, n) ||
            columns_wrong(&h[i], POOL_SWA, l->window_lo, l->committed - 1, where, why, n) ||
            columns_wrong(&h[i], POOL_DRAFT, draft, l->drafted - 1, where, why, n))
            return true;
    }
    return false;
}

void pages_turn(struct page_meaning *m, const char *a, const char *b)
{
    const char *settings[] = {a, b};
    for (int i = 0; i < 2; i++) {
        struct line v = line_value(settings[i], "draft.window");
        m->draft_window[i] |= v.n > 0 && strncmp(v.p, "0", v.n) != 0;
    }
}

static void apply_step(struct page_meaning *m, int side, const struct step_row *s)
{
    struct err e;
    m->unknown |= !s->pages.n || !page_history_apply(&m->h[side], s->pages.p, s->pages.n, &e) ||
                  m->h[side].page_size == 0;
}

bool pages_differ(struct page_meaning *m, const struct step_row *a, const struct step_row *b,
                  const struct diff_names *in, char *why, size_t n)
{
    const struct step_row *of[] = {a, b};
    for (int i = 0; i < 2 && !m->unknown; i++)
        apply_step(m, i, of[i]);
    return !m->unknown && tables_differ(m, in, why, n);
}

void pages_follow(struct page_meaning *m, const struct trace_turn *a, const struct trace_turn *b,
                  int from)
{
    const struct trace_turn *of[] = {a, b};
    for (int i = 0; i < 2; i++)
        for (int k = from; k < of[i]->n_step && !m->unknown; k++)
            apply_step(m, i, &of[i]->step[k]);
}

void page_meaning_free(struct page_meaning *m)
{
    page_history_free(&m->h[0]);
    page_history_free(&m->h[1]);
}
