/* case_shrink.c - draws a case, and makes a failing one smaller; see case.h. */

#include "engine/tools/case.h"

/* ---- the picture ----------------------------------------------------------------------------- */

enum { SHOWN_CELLS = 48, SHOWN_ROWS = 24, SHOWN_KEYS = 12, SEARCHED = 1 << 16 };

static bool reads(const struct case_group *g, int b, int row, int64_t slot)
{
    int n = min_int(case_n_read(g, row), SEARCHED);
    return ANY(k, n, case_read_slot(g, b, row, k) == slot);
}

static bool must(const struct case_want *w, int cell)
{
    return (cell >= w->first && cell < w->end) ||
           ANY(k, w->n_seen, k >= w->skip && w->seen[k] == cell);
}

static void put_slot(struct buf *out, int64_t slot)
{
    if (slot < 0)
        buf_str(out, " -");
    else
        buf_printf(out, " %lld", (long long)slot);
}

/* The slots that a row reads and those that it must read, if they differ. */
static void draw_keys(const struct attn_case *c, const struct case_group *g, int b, int row,
                      const struct case_want *w, struct buf *out)
{
    int n = w->end - w->first + w->n_seen - w->skip, m = case_n_read(g, row);
    FREED(buf_free) struct buf is = {0}, right = {0};
    bool same = m == n;
    for (int k = 0; k < m && k < SHOWN_KEYS; k++)
        put_slot(&is, case_read_slot(g, b, row, k));
    for (int k = 0; k < n && k < SEARCHED; k++) {
        int through = w->end - w->first;
        int cell = k < through ? w->first + k : w->seen[w->skip + k - through];
        int64_t slot = case_held_slot(c, g, b, cell);
        same &= slot == case_read_slot(g, b, row, k);
        if (k < SHOWN_KEYS)
            put_slot(&right, slot);
    }
    if (!same)
        buf_printf(out, "         reads slots%s%s, must read%s%s\n", buf_text(&is),
                   m > SHOWN_KEYS ? " ..." : "", right.n ? right.p : " none",
                   n > SHOWN_KEYS ? " ..." : "");
}

static void draw_row(const struct attn_case *c, const struct case_group *g, int b, int i,
                     struct buf *out)
{
    int32_t room[CASE_TREE];
    const struct case_request *q = &c->request[b];
    struct case_want w = case_wanted(c, g, b, i, room);
    int end = q->prefix_len + q->q_len, from = max_int(0, end - SHOWN_CELLS), row = q->row0 + i;
    bool known = case_n_read(g, row) >= 0;
    buf_printf(out, "  r%d.%-4d ", b, i);
    for (int cell = from; cell < end; cell++) {
        bool right = must(&w, cell);
        int64_t slot = case_held_slot(c, g, b, cell);
        bool read = known ? slot >= 0 && reads(g, b, row, slot) : right;
        buf_str(out, cell == q->prefix_len ? "|" : "");
        buf_char(out, right ? (read ? '#' : '-') : read ? 'X' : '.');
    }
    buf_printf(out, "  position %d\n", c->position.given ? c->position.v[row] : w.query);
    if (known)
        draw_keys(c, g, b, row, &w, out);
}

void case_draw(const struct attn_case *c, struct buf *out)
{
    FOR_EACH(const struct case_group, g, c->group, c->n_group) {
        buf_printf(out, "group %s: %s slots, page size %d", g->name, pool_name(g->space),
                   g->page_size);
        buf_str(out, g->window ? "" : ", no window\n");
        if (g->window)
            buf_printf(out, ", window %d\n", g->window);
        int shown = 0;
        for (int b = 0; b < c->n_request; b++)
            for (int i = 0; i < c->request[b].q_len; i++)
                if (shown++ < SHOWN_ROWS)
                    draw_row(c, g, b, i, out);
        if (shown > SHOWN_ROWS)
            buf_printf(out, "  ... %d more rows ...\n", shown - SHOWN_ROWS);
    }
    buf_str(out, "  # reads and must, - must and does not, X reads and must not, . neither; "
                 "| begins the new cells\n");
}

/* ---- smaller cases --------------------------------------------------------------------------- */

static int lists_size(const struct case_lists *l)
{
    int n = 0;
    for (int i = 0; i < l->n; i++)
        n += l->v[i].n;
    return n;
}

int case_numbers(const struct attn_case *c)
{
    int n = 2 * c->n_request + c->row_start.n + c->position.n + c->parent.n + c->cell.n +
            c->mask.n +
            lists_size(&c->seen) + lists_size(&c->map);
    for (int b = 0; b < c->n_request; b++)
        n += !case_kv_follows(c, b);
    FOR_EACH(const struct case_group, g, c->group, c->n_group)
        n += lists_size(&g->tables) + lists_size(&g->held) + lists_size(&g->expand) +
             lists_size(&g->claim) + g->start.n + g->write.n + g->lo.n + g->hi.n + g->layers.n;
    return n;
}

/* Takes entries [at, at + n) out of an array that is given. */
static void cut_ints(struct case_ints *a, int at, int n)
{
    if (!a->given || at >= a->n)
        return;
    n = min_int(n, a->n - at);
    memmove(a->v + at, a->v + at + n, (size_t)(a->n - at - n) * sizeof *a->v);
    a->n -= n;
}

static void cut_lists(struct case_lists *l, int at, int n)
{
    if (!l->given || at >= l->n)
        return;
    n = min_int(n, l->n - at);
    for (int i = at; i < at + n; i++)
        free(l->v[i].v);
    memmove(l->v + at, l->v + at + n, (size_t)(l->n - at - n) * sizeof *l->v);
    l->n -= n;
}

static void cut_rows(struct attn_case *c, int at, int n)
{
    struct case_ints *const ints[] = {&c->position, &c->parent, &c->cell};
    for (int i = 0; i < 3; i++)
        cut_ints(ints[i], at, n);
    cut_lists(&c->seen, at, n);
    FOR_EACH(struct case_group, g, c->group, c->n_group) {
        cut_ints(&g->write, at, n);
        cut_ints(&g->lo, at, n);
        cut_ints(&g->hi, at, n);
        cut_lists(&g->expand, at, n);
        cut_lists(&g->claim, at, n);
    }
    c->n_row -= n;
}

/* Request i has n rows fewer: those after it begin earlier. */
static void fewer_rows(struct attn_case *c, int i, int n)
{
    for (int k = i + 1; k < c->row_start.n; k++)
        if (c->row_start.v[k] >= n)
            c->row_start.v[k] -= n;
}

/* Each makes the case smaller in its i-th way; false: there is no such way. */

static bool drop_group(struct attn_case *c, int i)
{
    if (i >= c->n_group || c->n_group == 1)
        return false;
    case_group_free(&c->group[i]);
    CUT(c->group, c->n_group, i);
    return true;
}

static bool drop_request(struct attn_case *c, int i)
{
    if (i >= c->n_request || c->n_request == 1)
        return false;
    int n = c->request[i].q_len;
    int64_t wide = (int64_t)c->request[i].prefix_len + n;
    cut_ints(&c->mask, (int)c->request[i].mask0, (int)(wide * n));
    fewer_rows(c, i, n);
    cut_ints(&c->row_start, i + 1, 1);
    cut_rows(c, c->request[i].row0, n);
    for (int k = 0; k < c->n_group; k++) {
        cut_lists(&c->group[k].tables, i, 1);
        cut_lists(&c->group[k].held, i, 1);
        cut_ints(&c->group[k].start, i, 1);
    }
    CUT(c->request, c->n_request, i);
    return true;
}

/* The last row of request i. The rows of a mask become narrower, too. */
static bool drop_row(struct attn_case *c, int i)
{
    if (i >= c->n_request)
        return false;
    struct case_request *q = &c->request[i];
    if (q->q_len < 2)
        return true;
    int64_t wide = (int64_t)q->prefix_len + q->q_len;
    for (int r = q->q_len - 1; r >= 0 && c->mask.given; r--)
        cut_ints(&c->mask, (int)(q->mask0 + r * wide + (r == q->q_len - 1 ? 0 : wide - 1)),
                 r == q->q_len - 1 ? (int)wide : 1);
    fewer_rows(c, i, 1);
    cut_rows(c, q->row0 + q->q_len - 1, 1);
    q->q_len--;
    q->kv_len = max_int(0, q->kv_len - 1);
    return true;
}

static void shift(struct case_ints *a, int at, int n, int by)
{
    for (int i = at; a->given && i < at + n && i < a->n; i++)
        a->v[i] = a->v[i] < 0 ? a->v[i] : max_int(0, a->v[i] - by);
}

/* The keys of cells [0, k) that rows of request b are known to read. */
static void cut_keys(struct attn_case *c, int b, int k)
{
    int32_t room[CASE_TREE];
    for (int i = 0; i < c->n_group; i++)
        for (int r = 0; r < c->request[b].q_len && c->group[i].claim.given; r++) {
            struct case_want w = case_wanted(c, &c->group[i], b, r, room);
            if (k > w.first)
                cut_ints(&c->group[i].claim.v[c->request[b].row0 + r], 0, k - w.first);
        }
}

/* The first k cells of request b are cut off. */
static void cut_prefix(struct attn_case *c, int b, int k)
{
    struct case_request *q = &c->request[b];
    cut_keys(c, b, k);
    int64_t wide = (int64_t)q->prefix_len + q->q_len;
    for (int r = q->q_len - 1; r >= 0 && c->mask.given; r--)
        cut_ints(&c->mask, (int)(q->mask0 + r * wide), k);
    shift(&c->position, q->row0, q->q_len, k);
    shift(&c->cell, q->row0, q->q_len, k);
    for (int r = q->row0; r < q->row0 + q->q_len && c->seen.given; r++)
        shift(&c->seen.v[r], 0, c->seen.v[r].n, k);
    FOR_EACH(struct case_group, g, c->group, c->n_group) {
        int n = k / (g->slots ? 1 : g->page_size);
        shift(&g->lo, q->row0, q->q_len, k);
        shift(&g->hi, q->row0, q->q_len, k);
        cut_ints(&g->tables.v[b], 0, n);
        if (g->held.given)
            cut_ints(&g->held.v[b], 0, n);
    }
    q->prefix_len -= k;
    q->kv_len = max_int(0, q->kv_len - k);
}

/* Halves, quarters ... of the prefix, in whole pages. */
static bool drop_prefix(struct attn_case *c, int i)
{
    int b = i / 24, part = i % 24 + 1, step = 1;
    if (b >= c->n_request)
        return false;
    FOR_EACH(const struct case_group, g, c->group, c->n_group) {
        int P = max_int(g->page_size, g->pool_page_size);
        step = max_int(step, P);
        if (g->start.given || step % P)
            return true;
    }
    int k = (c->request[b].prefix_len >> part) / step * step;
    if (k == 0)
        k = part > 20 && c->request[b].prefix_len >= step ? step : 0;
    if (k)
        cut_prefix(c, b, k);
    return true;
}

static bool drop_pair(struct attn_case *c, int i)
{
    if (i >= c->map.n)
        return false;
    cut_lists(&c->map, i, 1);
    return true;
}

/* The last entry of a table, beyond which nothing may be read. */
static bool drop_column(struct attn_case *c, int i)
{
    int g = i % max_int(1, c->n_group), b = i / max_int(1, c->n_group) % max_int(1, c->n_request);
    if (i >= 2 * c->n_group * c->n_request)
        return false;
    struct case_lists *l = i < c->n_group * c->n_request ? &c->group[g].tables : &c->group[g].held;
    if (l->given && l->v[b].n)
        l->v[b].n--;
    return true;
}

/* What may be left out of a case. */
static bool drop_array(struct attn_case *c, int i)
{
    struct case_ints *const whole[] = {&c->row_start, &c->position, &c->parent, &c->mask, &c->cell};
    struct case_group *g = &c->group[max_int(0, i - 6) / 8];
    if (i >= 6 + 8 * c->n_group)
        return false;
    switch (i < 5 ? -1 : i == 5 ? 0 : 1 + (i - 6) % 8) {
    case -1: case_ints_free(whole[i]); break;
    case 0: case_lists_free(&c->map); break;
    case 1: case_ints_free(&g->write); break;
    case 2: case_ints_free(&g->layers); break;
    case 3: case_lists_free(&g->held); break;
    case 4: case_lists_free(&g->expand); break;
    case 5: case_ints_free(&g->lo), case_ints_free(&g->hi); break;
    case 6: g->pool_pages = 0; break;
    case 7: case_ints_free(&g->start); break;
    default: case_lists_free(&g->claim); break;
    }
    return true;
}

/* One row's claim. */
static bool drop_claim(struct attn_case *c, int i)
{
    int g = i % max_int(1, c->n_group), row = i / max_int(1, c->n_group);
    if (row >= c->n_row)
        return false;
    if (c->group[g].claim.given)
        case_ints_free(&c->group[g].claim.v[row]);
    return true;
}

static bool copy(const struct attn_case *c, struct attn_case *out)
{
    FREED(buf_free) struct buf text = {0};
    struct err e;
    case_json(c, &text);
    return case_read(out, text.p, text.n, &e);
}

/* The size of a case: its numbers, and what its request lengths say. */
static int64_t weight(const struct attn_case *c)
{
    int64_t n = case_numbers(c) + (int64_t)c->n_group * 8;
    for (int i = 0; i < c->n_group; i++)
        n += (c->group[i].pool_pages > 0) + (c->group[i].window > 0);
    for (int b = 0; b < c->n_request; b++)
        n += c->request[b].prefix_len + c->request[b].q_len;
    return n;
}

/* Whether the case breaks a rule first of all, and no rule but those of a set. */
static bool breaks(const struct attn_case *c, int rule, int set)
{
    struct case_verdict v;
    case_judge(c, &v);
    for (int i = 0; i < v.n; i++)
        if (!(set >> v.found[i].rule & 1))
            return false;
    return v.n > 0 && v.found[0].rule == rule;
}

int case_shrink(struct attn_case *c, const struct stop *stop)
{
    static bool (*const way[])(struct attn_case *c, int i) = {
        drop_request, drop_group, drop_prefix, drop_row, drop_array, drop_claim, drop_column,
        drop_pair};
    enum { WAYS = LEN(way), MOST_TRIED = 20000 };
    struct case_verdict v;
    int tried = 0;
    case_judge(c, &v);
    int rule = v.n ? v.found[0].rule : 0, set = 0;
    for (int i = 0; i < v.n; i++)
        set |= 1 << v.found[i].rule;
    for (bool smaller = rule > 0; smaller;) {
        smaller = false;
        for (int k = 0; k < WAYS; k++)
            for (int i = 0; tried < MOST_TRIED && !stop_asked(stop); i++) {
                struct attn_case less, again;
                if (!copy(c, &less))
                    return tried;
                bool more = way[k](&less, i), ok = more && copy(&less, &again);
                int64_t after = ok ? weight(&again) : 0;
                case_free(&less);
                if (!more)
                    break;
                tried++;
                if (!ok)
                    continue;
                if (after < weight(c) && breaks(&again, rule, set)) {
                    case_free(c);
                    *c = again;
                    smaller = true;
                    i--; /* the same way again, of the smaller case */
                } else {
                    case_free(&again);
                }
            }
    }
    return tried;
}
