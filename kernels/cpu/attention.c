/* attention.c - attention over paged KV cells, and the combination of two attentions.
 *
 * The keys of a row are read in the order of their logical index. Blocks of 64 keys and splits of
 * 512 begin at multiples of those numbers, whatever the visible range and the slots of the cells.
 * Each split is reduced separately, and the splits are combined in order, so the bits do not depend
 * on the number of threads.
 *
 * A thread's item is a tile: a few consecutive rows and one kv head. The rows of a prompt see
 * mostly the same keys: a block of keys is turned into panels (wide.h) once for all rows of the
 * tile that see it, if they are enough; the scores have the same bits either way.
 */
#include "kernels/cpu/cpu.h"
#include "kernels/fp8.h"

#include <math.h>

struct attn_run {
    const struct k_attn *a;
    const struct cpu_isa *isa;
    int group, packed;     /* query heads of a kv head; cpu_packed(head_dim) */
    int tile;              /* rows of a tile at most */
    int splits;            /* > 0: an item is one split, whose result is stored in `part` */
    size_t softmax_floats; /* floats of one tile's struct cpu_softmax */
    size_t thread_floats;
    float *part, *scratch;
    float *wide; /* KV_FP8: a block's cells in float32, wide_floats a thread; else NULL */
    size_t wide_floats;
    int blocks;    /* > 0: scores and values are separate items; blocks of a row at most */
    float *scores; /* (rows, n_kv, blocks, group, ATTN_BLOCK) */
};

static const int32_t *ints(kbuf b)
{
    return b.p;
}

/* ---- keys ----------------------------------------------------------------------------------- */

static void row_range(const struct k_table *t, int r, int *lo, int *hi, int *end)
{
    *lo = ints(t->lo)[r];
    *hi = ints(t->hi)[r];
    int n = t->n_expand.p ? ints(t->n_expand)[r] : 0;
    *end = *hi + n; /* lo may be above hi: a window that begins among the expanded keys */
    CHECK(*lo >= 0 && *hi >= 0 && n >= 0 && n <= t->expand_w && *lo <= *end);
    CHECK(*hi == 0 || (*hi - 1) / t->page_size < t->n_cols);
}

/* Appends the cells of n keys, in consecutive slots, to the block. */
static void add_keys(const struct attn_run *run, int kv, int64_t slot, int n, struct cpu_block *b)
{
    const struct k_cells *c = &run->a->cells;
    size_t cell = kv_cell_bytes(c->type, c->n_kv, c->head_dim);
    size_t head = (size_t)c->head_dim * (c->type == KV_FP8 ? 1 : kv_type_size(c->type));
    CHECK(slot >= 0 && slot <= c->n_slots - n);
    size_t at = (size_t)slot * cell + (size_t)kv * head;
    for (; n; n--, at += cell, b->n++) {
        b->k[b->n] = (const uint8_t *)c->k.p + at;
        b->v[b->n] = (const uint8_t *)c->v.p + at;
    }
}

/* Fills b with the cells of keys [from, to) of row r, which are within one block. */
static void find_keys(const struct attn_run *run, int r, int hi, int kv, int from, int to,
                      struct cpu_block *b)
{
    const struct k_table *t = run->a->table;
    const int32_t *pages = ints(t->pages) + (size_t)ints(t->req)[r] * (size_t)t->n_cols;
    int page = from / t->page_size, at = from % t->page_size, j = from;
    b->first = from % ATTN_BLOCK;
    b->n = 0;
    for (int n; j < to && j < hi; j += n, page++, at = 0) {
        n = min_int(t->page_size - at, min_int(to, hi) - j);
        add_keys(run, kv, (int64_t)pages[page] * t->page_size + at, n, b);
    }
    const int32_t *expand = ints(t->expand) + (size_t)r * (size_t)t->expand_w;
    for (; j < to; j++)
        add_keys(run, kv, expand[j - hi], 1, b);
}

/* Replaces the cells of a block by float32 copies in the thread's memory: keys with `keys`, values
 * of the dimensions [d0, d1). Other types stay as they are. */
static void widen_block(const struct attn_run *run, int kv, bool keys, int d0, int d1, int thread,
                        struct cpu_block *b)
{
    const struct k_cells *c = &run->a->cells;
    /* bytes from a head's codes to its scale */
    int n = c->head_dim, scale = (c->n_kv - kv) * n + kv;
    float *to = run->wide ? run->wide + (size_t)thread * run->wide_floats : NULL;
    for (int i = 0; to && i < b->n; i++, to += mul64(2, n)) {
        if (keys)
            fp8_cell_read(b->k[i], b->k[i][scale], n, to);
        if (d1 > d0)
            fp8_cell_read(b->v[i] + d0, b->v[i][scale], d1 - d0, to + n + d0);
        b->k[i] = (const uint8_t *)to;
        b->v[i] = (const uint8_t *)(to + n);
    }
}

/* ---- a tile: consecutive rows and one kv head ------------------------------------------------ */

enum {
    TILE_ATTN = 16, /* rows of a tile at most */
    LEAST_WIDE = 8, /* heads for which the keys of a block are worth turning into panels */
};

struct attn_tile {
    int r, rows, kv, thread;
    bool one_request;
    int lo[TILE_ATTN], hi[TILE_ATTN], end[TILE_ATTN];
    struct cpu_heads h; /* of all rows: (rows, group) */
    float *wide_q;      /* the queries as score_wide() reads them; NULL: it is not used */
    float *panels;
    struct cpu_softmax all, one; /* (rows, group) */
};

static struct cpu_softmax softmax_at(const struct attn_run *run, int heads, float *p)
{
    return (struct cpu_softmax){.acc = p, .m = p + mul64(heads, run->packed),
                             .l = p + mul64(heads, run->packed + 1)};
}

/* The part of a tile's softmax, or of its heads, that belongs to row i. */
static struct cpu_softmax softmax_of(const struct attn_run *run, const struct cpu_softmax *s, int i)
{
    int g = i * run->group;
    return (struct cpu_softmax){.acc = s->acc + mul64(g, run->packed), .m = s->m + g,
                                .l = s->l + g};
}

static struct cpu_heads heads_of(const struct attn_run *run, const struct cpu_heads *h, int i,
                                 int rows)
{
    struct cpu_heads one = *h;
    one.n = rows * run->group;
    one.q += mul64(i * run->group, run->packed);
    one.p += mul64(i * run->group, ATTN_BLOCK);
    return one;
}

/* The keys of a block that the rows of a tile see. */
struct keys_seen {
    int from[TILE_ATTN], to[TILE_ATTN];
    int row0, row1;  /* rows outside of [row0, row1) see none */
    int first, last; /* some row sees keys in [first, last) */
    int pairs;       /* of a row and a key */
    bool in_pages;   /* no key is an expanded one */
    bool same;       /* all of [row0, row1) see the same keys */
};

static struct keys_seen seen_in(const struct attn_tile *t, int block)
{
    struct keys_seen s = {.row0 = t->rows, .first = INT32_MAX, .in_pages = true, .same = true};
    for (int i = 0; i < t->rows; i++) {
        s.from[i] = max_int(t->lo[i], block);
        s.to[i] = min_int(t->end[i], block + ATTN_BLOCK);
        if (s.from[i] >= s.to[i])
            continue;
        s.row0 = min_int(s.row0, i), s.row1 = i + 1;
        s.first = min_int(s.first, s.from[i]), s.last = max_int(s.last, s.to[i]);
        s.pairs += s.to[i] - s.from[i];
        s.in_pages &= s.to[i] <= t->hi[i];
    }
    /* without pairs, first is no key */
    s.same = s.pairs > 0 && s.pairs == (s.row1 - s.row0) * (s.last - s.first);
    return s;
}

/* Adds keys [from, to) of the block `b`, which begins at key `first`, to the softmax of row i. */
static void weigh_row(const struct attn_run *run, const struct attn_tile *t,
                      const struct cpu_block *b,
                      int first, int i, int from, int to, const struct cpu_softmax *s)
{
    struct cpu_heads h = heads_of(run, &t->h, i, 1);
    struct cpu_softmax own = softmax_of(run, s, i);
    struct cpu_block part = {.first = from % ATTN_BLOCK, .n = to - from};
    memcpy(part.v, b->v + (from - first), (size_t)part.n * sizeof *part.v);
    run->isa->weigh(&h, &part, &own, 0, h.head_dim);
}

/* A block whose keys are turned into panels once, for all rows that see some of them. */
static void attend_together(const struct attn_run *run, const struct attn_tile *t,
                            const struct keys_seen *seen, const struct cpu_softmax *s)
{
    struct cpu_block b;
    int rows = seen->row1 - seen->row0;
    struct cpu_heads h = heads_of(run, &t->h, seen->row0, rows);
    find_keys(run, t->r, seen->last, t->kv, seen->first, seen->last, &b);
    widen_block(run, t->kv, true, 0, h.head_dim, t->thread, &b);
    run->isa->key_panels(&b, h.type, h.head_dim, t->panels);
    run->isa->score_wide(t->wide_q + mul64(seen->row0, run->group), h.head_dim, t->panels, b.first,
                         b.n, h.n, h.p);
    if (seen->same) {
        struct cpu_softmax own = softmax_of(run, s, seen->row0);
        run->isa->weigh(&h, &b, &own, 0, h.head_dim);
        return;
    }
    for (int i = seen->row0; i < seen->row1; i++)
        if (seen->from[i] < seen->to[i])
            weigh_row(run, t, &b, seen->first, i, seen->from[i], seen->to[i], s);
}

static void attend_alone(const struct attn_run *run, const struct attn_tile *t,
                         const struct keys_seen *seen, int i, const struct cpu_softmax *s)
{
    struct cpu_block b;
    struct cpu_heads h = heads_of(run, &t->h, i, 1);
    struct cpu_softmax own = softmax_of(run, s, i);
    find_keys(run, t->r + i, t->hi[i], t->kv, seen->from[i], seen->to[i], &b);
    widen_block(run, t->kv, true, 0, h.head_dim, t->thread, &b);
    run->isa->score(&h, &b);
    run->isa->weigh(&h, &b, &own, 0, h.head_dim);
}

/* Sets s to the softmax of each row over its visible keys of one split. The bits of a row do not
 * depend on the other rows. */
static void attend_split(const struct attn_run *run, const struct attn_tile *t, int split,
                         const struct cpu_softmax *s)
{
    for (int g = 0; g < t->h.n; g++)
        s->m[g] = -INFINITY, s->l[g] = 0;
    memset(s->acc, 0, (size_t)t->h.n * (size_t)run->packed * sizeof *s->acc);
    for (int block = split * ATTN_SPLIT; block < (split + 1) * ATTN_SPLIT; block += ATTN_BLOCK) {
        struct keys_seen seen = seen_in(t, block);
        int rows = seen.row1 - seen.row0;
        if (t->wide_q && t->one_request && seen.in_pages && rows * run->group >= LEAST_WIDE &&
            2 * seen.pairs >= rows * ATTN_BLOCK)
            attend_together(run, t, &seen, s);
        else
            for (int i = seen.row0; i < seen.row1; i++)
                if (seen.from[i] < seen.to[i])
                    attend_alone(run, t, &seen, i, s);
    }
}

/* Copies the queries of a row's heads to q as score() reads them. */
static void load_queries(const struct attn_run *run, int r, int kv, float *q)
{
    static const struct k_norm none = {.kind = NORM_NONE};
    const struct k_attn *a = run->a;
    int n = a->cells.head_dim;
    const float *src = (const float *)a->q.p +
                       ((size_t)r * (size_t)a->n_head + (size_t)mul64(kv, run->group)) * (size_t)n;
    for (int g = 0; g < run->group; g++, src += n, q += run->packed) {
        if (a->cells.type == KV_BF16) {
            run->isa->pack(src, n, &none, NULL, 1, q);
            continue;
        }
        memcpy(q, src, (size_t)n * sizeof *q);
        memset(q + n, 0, (size_t)(run->packed - n) * sizeof *q);
    }
}

/* The same for score_wide(). tmp: (rows, group, head_dim). */
static void widen_queries(const struct attn_run *run, const struct attn_tile *t, float *tmp)
{
    const struct k_attn *a = run->a;
    size_t n = (size_t)a->cells.head_dim, of_row = (size_t)run->group * n;
    for (int i = 0; i < t->rows; i++)
        memcpy(tmp + (size_t)i * of_row,
               (const float *)a->q.p + ((size_t)(t->r + i) * (size_t)a->n_head) * n +
               (size_t)t->kv * of_row, of_row * sizeof *tmp);
    struct cpu_mat m = {.data = (const uint8_t *)tmp, .type = STORED_F32, .n = t->h.n, .k = (int)n,
                        .pitch = n * sizeof *tmp};
    run->isa->widen_tile(&m, 0, t->h.n, t->wide_q);
}

/* Loads the tile that begins at row r; its memory is the thread's scratch memory. */
static void load_tile(const struct attn_run *run, int r, int kv, int thread, struct attn_tile *t)
{
    const struct k_attn *a = run->a;
    int rows = min_int(run->tile, a->rows - r), heads = rows * run->group;
    float *p = run->scratch + (size_t)thread * run->thread_floats;
    t->r = r, t->rows = rows, t->kv = kv, t->thread = thread;
    t->one_request = true;
    t->h = (struct cpu_heads){
        .n = heads, .head_dim = a->cells.head_dim, .scale = a->scale, .softcap = a->softcap, .q = p,
        .type = a->cells.type == KV_BF16 ? STORED_BF16 : STORED_F32,
        .p = p + mul64(heads, run->packed)};
    for (int i = 0; i < rows; i++) {
        row_range(a->table, r + i, &t->lo[i], &t->hi[i], &t->end[i]);
        t->one_request &= ints(a->table->req)[r + i] == ints(a->table->req)[r];
        load_queries(run, r + i, kv, p + mul64(i * run->group, run->packed));
    }
    memset(t->h.p, 0, (size_t)heads * ATTN_BLOCK * sizeof *t->h.p); /* lanes without a key, too */
    p = t->h.p + mul64(heads, ATTN_BLOCK);
    t->all = softmax_at(run, heads, p);
    t->one = softmax_at(run, heads, p + run->softmax_floats);
    t->panels = p + 2 * run->softmax_floats;
    t->wide_q = heads >= LEAST_WIDE && heads <= TILE_OUT
                    ? t->panels + mul64(ATTN_BLOCK, run->packed) : NULL;
    if (t->wide_q)
        widen_queries(run, t, t->panels);
}

/* Divides by the denominator, sinks included, and stores the heads in dst and lse. */
static void store_row(const struct attn_run *run, int r, int kv, const struct cpu_softmax *s)
{
    const struct k_attn *a = run->a;
    int n = a->cells.head_dim;
    for (int g = 0; g < run->group; g++) {
        int head = kv * run->group + g;
        size_t at = (size_t)r * (size_t)a->n_head + (size_t)head;
        float m = s->m[g], l = s->l[g], keep = 1;
        if (a->sinks && l != 0) {
            float sink;
            run->isa->widen(a->sinks, (size_t)head, 1, 1, &sink);
            float top = m > sink ? m : sink;
            keep = run->isa->exp(m - top);
            l = l * keep + run->isa->exp(sink - top);
            m = top;
        }
        float *dst = (float *)a->dst.p + at * (size_t)n;
        if (s->l[g] == 0) {
            memset(dst, 0, (size_t)n * sizeof *dst);
        } else if (a->cells.type != KV_BF16) {
            run->isa->scale(s->acc + mul64(g, run->packed), n, keep / l);
            memcpy(dst, s->acc + mul64(g, run->packed), (size_t)n * sizeof *dst);
        } else {
            run->isa->unpack(s->acc + mul64(g, run->packed), n, keep / l, dst);
        }
        if (a->lse.p)
            ((float *)a->lse.p)[at] =
                s->l[g] == 0 ? -INFINITY : (float)((double)m + log((double)l));
    }
}

static void copy_softmax(const struct attn_run *run, const struct cpu_softmax *to,
                         const struct cpu_softmax *from)
{
    memcpy(to->m, from->m, (size_t)run->group * sizeof *to->m);
    memcpy(to->l, from->l, (size_t)run->group * sizeof *to->l);
    memcpy(to->acc, from->acc, (size_t)mul64(run->group, run->packed) * sizeof *to->acc);
}

static void attn_item(void *arg, int item, int thread)
{
    const struct attn_run *run = arg;
    int n_kv = run->a->cells.n_kv, first = INT32_MAX, last = 0;
    struct attn_tile t;
    load_tile(run, item / n_kv * run->tile, item % n_kv, thread, &t);
    for (int i = 0; i < t.rows; i++) {
        first = min_int(first, t.lo[i] / ATTN_SPLIT);
        last = max_int(last, max_int(t.lo[i] / ATTN_SPLIT, (t.end[i] - 1) / ATTN_SPLIT));
    }
    for (int split = first; split <= last; split++) {
        attend_split(run, &t, split, &t.one);
        for (int i = 0; i < t.rows; i++) {
            struct cpu_softmax all = softmax_of(run, &t.all, i), one = softmax_of(run, &t.one, i);
            if (split == t.lo[i] / ATTN_SPLIT)
                copy_softmax(run, &all, &one);
            else if (split > t.lo[i] / ATTN_SPLIT && split * ATTN_SPLIT < t.end[i])
                run->isa->combine(&all, &one, run->group, run->packed);
        }
    }
    for (int i = 0; i < t.rows; i++) {
        struct cpu_softmax all = softmax_of(run, &t.all, i);
        store_row(run, t.r + i, t.kv, &all);
    }
}

/* ---- split-K: few rows with many keys, a split of a row is an item --------------------------- */

static void split_item(void *arg, int item, int thread)
{
    const struct attn_run *run = arg;
    int n_kv = run->a->cells.n_kv, i = item / run->splits;
    struct attn_tile t;
    load_tile(run, i / n_kv, i % n_kv, thread, &t);
    int split = t.lo[0] / ATTN_SPLIT + item % run->splits;
    if (split * ATTN_SPLIT >= t.end[0] && split != t.lo[0] / ATTN_SPLIT)
        return;
    struct cpu_softmax s = softmax_at(run, run->group,
                                      run->part + (size_t)item * run->softmax_floats);
    attend_split(run, &t, split, &s);
}

/* ---- fewer splits than threads: a block of scores is an item, then a part of the values ------ */

/* The scores of keys are independent of each other, and so are the dimensions of the weighed sum of
 * values, for which each item repeats the softmax. So the sums are those of attend_split(). */

enum { VALUE_DIMS = 32 };

static float *block_scores(const struct attn_run *run, int i, int block)
{
    return run->scores + ((size_t)i * (size_t)run->blocks + (size_t)block) * (size_t)run->group *
                             ATTN_BLOCK;
}

static void score_item(void *arg, int item, int thread)
{
    const struct attn_run *run = arg;
    int n_kv = run->a->cells.n_kv, i = item / run->blocks, n = item % run->blocks, lo, hi, end;
    int r = i / n_kv, kv = i % n_kv;
    row_range(run->a->table, r, &lo, &hi, &end);
    int first = lo / ATTN_BLOCK + n, from = max_int(lo, first * ATTN_BLOCK);
    int to = min_int(end, (first + 1) * ATTN_BLOCK);
    if (from >= to)
        return;
    struct cpu_block b;
    struct attn_tile t;
    load_tile(run, r, kv, thread, &t);
    t.h.p = block_scores(run, i, n);
    memset(t.h.p, 0, (size_t)run->group * ATTN_BLOCK * sizeof *t.h.p);
    find_keys(run, r, hi, kv, from, to, &b);
    widen_block(run, kv, true, 0, 0, thread, &b);
    run->isa->score(&t.h, &b);
}

static void value_item(void *arg, int item, int thread)
{
    const struct attn_run *run = arg;
    const struct k_attn *a = run->a;
    int n_kv = a->cells.n_kv, dim = a->cells.head_dim, dims = div_up(dim, VALUE_DIMS), lo, hi, end;
    int d = item % dims * VALUE_DIMS, i = item / dims / run->splits, r = i / n_kv, kv = i % n_kv;
    row_range(a->table, r, &lo, &hi, &end);
    int split = lo / ATTN_SPLIT + item / dims % run->splits;
    int from = max_int(lo, split * ATTN_SPLIT), stop = min_int(end, (split + 1) * ATTN_SPLIT);
    if (from >= stop && split != lo / ATTN_SPLIT)
        return;
    float *scratch = run->scratch + (size_t)thread * run->thread_floats;
    struct cpu_heads h = {.n = run->group, .head_dim = dim, .scale = a->scale,
                          .softcap = a->softcap, .p = scratch,
                          .type = a->cells.type == KV_BF16 ? STORED_BF16 : STORED_F32};
    float *part = run->part + (size_t)(item / dims) * run->softmax_floats;
    struct cpu_softmax all = softmax_at(run, run->group, part);
    struct cpu_softmax own = softmax_at(run, run->group, scratch + mul64(run->group, ATTN_BLOCK));
    for (int g = 0; g < run->group; g++) {
        own.m[g] = -INFINITY, own.l[g] = 0;
        memset(all.acc + mul64(g, run->packed) + d, 0, VALUE_DIMS * sizeof *all.acc);
    }
    own.acc = all.acc;
    for (int to; from < stop; from = to) {
        struct cpu_block b;
        to = min_int(stop, (from / ATTN_BLOCK + 1) * ATTN_BLOCK);
        find_keys(run, r, hi, kv, from, to, &b);
        widen_block(run, kv, false, d, min_int(d + VALUE_DIMS, dim), thread, &b);
        memcpy(h.p, block_scores(run, i, from / ATTN_BLOCK - lo / ATTN_BLOCK),
               (size_t)run->group * ATTN_BLOCK * sizeof *h.p);
        run->isa->weigh(&h, &b, &own, d, min_int(d + VALUE_DIMS, dim));
    }
    for (int g = 0; d == 0 && g < run->group; g++)
        all.m[g] = own.m[g], all.l[g] = own.l[g];
}

/* ---- the splits of a row --------------------------------------------------------------------- */

static void combine_item(void *arg, int item, int)
{
    const struct attn_run *run = arg;
    int n_kv = run->a->cells.n_kv, r = item / n_kv, kv = item % n_kv, lo, hi, end;
    row_range(run->a->table, r, &lo, &hi, &end);
    float *part = run->part + (size_t)item * (size_t)run->splits * run->softmax_floats;
    struct cpu_softmax all = softmax_at(run, run->group, part);
    for (int i = 1; (lo / ATTN_SPLIT + i) * ATTN_SPLIT < end; i++) {
        struct cpu_softmax one = softmax_at(run, run->group,
                                            part + (size_t)i * run->softmax_floats);
        run->isa->combine(&all, &one, run->group, run->packed);
    }
    store_row(run, r, kv, &all);
}

/* ---- the operation -------------------------------------------------------------------------- */

static void check_attn(const struct k_attn *a)
{
    const struct k_table *t = a->table;
    const struct k_cells *c = &a->cells;
    size_t rows = (size_t)a->rows, heads = rows * (size_t)a->n_head;
    CHECK(c->n_kv > 0 && a->n_head % c->n_kv == 0 && t->page_size > 0);
    cpu_check_cells(c);
    cpu_i32(t->req, rows), cpu_i32(t->lo, rows), cpu_i32(t->hi, rows);
    if (t->n_expand.p) {
        cpu_i32(t->n_expand, rows);
        cpu_i32(t->expand, rows * (size_t)t->expand_w);
    }
    cpu_f32(a->q, heads * (size_t)c->head_dim);
    cpu_f32(a->dst, heads * (size_t)c->head_dim);
    if (a->lse.p)
        cpu_f32(a->lse, heads);
    if (a->sinks)
        CHECK(a->sinks->dim[0] == a->n_head && cpu_store_of(a->sinks) < N_STORED);
}

/* Rows of a tile: as many as score_wide() takes, but not more than `most`. */
static int tile_rows(int group, int most)
{
    return max_int(1, min_int(min_int(most, TILE_ATTN), TILE_OUT / group));
}

void cpu_attn(struct kdev *d, const struct k_attn *a)
{
    check_attn(a);
    struct attn_run run = {.a = a, .isa = d->isa, .group = a->n_head / a->cells.n_kv,
                           .packed = cpu_packed(a->cells.head_dim)};
    size_t group = (size_t)run.group, packed = (size_t)run.packed;
    int items = a->rows * a->cells.n_kv, splits = 1, blocks = 1;
    double keys = 0;
    for (int r = 0; r < a->rows; r++) {
        int lo, hi, end;
        row_range(a->table, r, &lo, &hi, &end);
        keys += end - lo;
        if (end > lo) {
            splits = max_int(splits, (end - 1) / ATTN_SPLIT - lo / ATTN_SPLIT + 1);
            blocks = max_int(blocks, (end - 1) / ATTN_BLOCK - lo / ATTN_BLOCK + 1);
        }
    }
    int dims = div_up(a->cells.head_dim, VALUE_DIMS);
    int64_t all = mul64(items, splits);
    /* more items than an int counts */
    bool many = all > INT32_MAX / max_int(dims, 2 * ATTN_SPLIT / ATTN_BLOCK);
    bool even = all >= mul64(4, d->threads) || all % d->threads == 0;
    bool whole = d->threads == 1 || many || (even && (splits == 1 || items >= 4 * d->threads));
    int parts = whole ? 0 : (int)all;
    run.tile = !whole ? 1
                      : tile_rows(run.group, d->threads == 1 ? TILE_ATTN
                                  : items / (4 * d->threads));
    size_t heads = (size_t)run.tile * group;
    run.softmax_floats = (heads * (packed + 2) + 15) & ~(size_t)15;
    run.thread_floats = heads * (packed + ATTN_BLOCK) + 2 * run.softmax_floats;
    if (heads >= LEAST_WIDE)
        run.thread_floats += packed * (ATTN_BLOCK + TILE_OUT);
    run.thread_floats = (run.thread_floats + 31) & ~(size_t)31;
    run.scratch = cpu_floats(d, SCRATCH_THREAD, run.thread_floats * (size_t)d->threads);
    if (a->cells.type == KV_FP8) {
        run.wide_floats = (size_t)2 * ATTN_BLOCK * (size_t)a->cells.head_dim;
        run.wide = cpu_floats(d, SCRATCH_CELLS, run.wide_floats * (size_t)d->threads);
    }
    double work = 3.0 * keys * a->n_head * run.packed;
    double of_row = (double)splits * run.group * run.packed;
    if (whole) {
        int tiles = div_up(a->rows, run.tile) * a->cells.n_kv;
        cpu_each(d, tiles, work / max_int(tiles, 1), attn_item, &run);
        return;
    }
    run.splits = splits;
    run.part = cpu_floats(d, SCRATCH_PART, (size_t)parts * run.softmax_floats);
    if (even) {
        cpu_each(d, parts, work / parts, split_item, &run);
    } else {
        run.blocks = blocks;
        run.scores = cpu_floats(d, SCRATCH_SCORES,
                                (size_t)mul64(items, blocks) * group * ATTN_BLOCK);
        cpu_each(d, items * blocks, work / 2 / (items * blocks), score_item, &run);
        cpu_each(d, parts * dims, work / 2 / (parts * dims), value_item, &run);
    }
    cpu_each(d, items, of_row, combine_item, &run);
}

/* ---- merge ---------------------------------------------------------------------------------- */

void cpu_merge(struct kdev *d, const struct k_merge *a)
{
    int heads = a->rows * a->n_head, n = a->head_dim;
    float *va = cpu_f32(a->a, (size_t)heads * (size_t)n), *la = cpu_f32(a->la, (size_t)heads);
    const float *vb = cpu_f32(a->b, (size_t)heads * (size_t)n), *lb = cpu_f32(a->lb, (size_t)heads);
    for (int i = 0; i < heads; i++) {
        float *x = va + (size_t)i * (size_t)n;
        const float *y = vb + (size_t)i * (size_t)n;
        if (lb[i] == -INFINITY && la[i] == -INFINITY) {
            memset(x, 0, (size_t)n * sizeof *x);
        } else if (la[i] == -INFINITY) {
            memcpy(x, y, (size_t)n * sizeof *x);
            la[i] = lb[i];
        } else if (lb[i] != -INFINITY) {
            float m = la[i] > lb[i] ? la[i] : lb[i];
            float wa = d->isa->exp(la[i] - m), wb = d->isa->exp(lb[i] - m), sum = wa + wb;
            d->isa->mix(wa / sum, x, wb / sum, y, n);
            la[i] = (float)((double)m + log((double)sum));
        }
    }
}
