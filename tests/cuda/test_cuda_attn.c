/* test_cuda_attn.c - attention on the tensor cores (kernels/cuda/attention/tile.cu and decode.cu),
 * at one 16-bit number an activation, over bf16 cells and over FP8 cells, and attention over FP8
 * cells in float32. Without a GPU every test is skipped.
 *
 * A world says what each row sees: keys of its request, then keys of its own. A layout says where
 * the cells lie and how the table names them. Each world runs on the CPU in one layout, which is
 * the reference, and on the GPU in many: page sizes, orders of pages, rows alone, some and turned
 * around, own keys named by expand or copied into pages that are the row's alone (so that a tree's
 * row stands beside the same row decoded plainly). On the GPU all must have the same bits. Every
 * cell that no row of a run sees holds NaN, and so does the output before. FP8 cells must give the
 * bits of bf16 cells that hold the same numbers. The GPU used as one whose blocks have the least
 * shared memory (AERIE_GPU_AS=8.6), which takes smaller tiles and rounds, must give the same bits.
 */
#include "kernels/fp8.h"
#include "kernels/kernels.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

#if HAVE_CUDA
#include "tests/few.h"
#include "tests/kernel_cases.h"

/* The CPU, the GPU, and the GPU as one of the class whose blocks have the least shared memory. */
static struct case_dev C, G, SMALL;

enum { MOST_ROWS = 400 };

struct world {
    int rows, n_head, n_kv, dim, n_req, len;
    int window; /* no row sees more keys; 0: no window */
    int room;   /* keys that a request's columns have room for, if more than len; none is seen */
    float scale, softcap, spread; /* spread: rms of the scores */
    bool sinks, fp8; /* fp8: FP8 cells, and the numbers of a head are rounded to such a cell's */
    int size; /* exponent: all keys and values are this much larger, the scores are not */
    int req[MOST_ROWS], lo[MOST_ROWS], end[MOST_ROWS], own[MOST_ROWS]; /* own: of the last keys */
    float *q;
    struct tensor sink;
    uint64_t seed;
};

enum naming {
    BY_TREE,  /* own keys through expand */
    BY_PAGES, /* every row has pages of its own */
    BY_HAND,  /* all keys but the first few through expand */
};

struct layout {
    int page_size;
    uint64_t seed; /* of the order of pages; 0: as they come */
    enum naming naming;
    bool no_window; /* k_attn.window is 0, although the rows see a window */
};

/* ---- what lies where ------------------------------------------------------------------------ */

/* One element of the key or value (side) of a logical key: own keys have an id of their own. */
static float element(const struct world *w, int r, int j, int side, int i)
{
    uint64_t id = j < w->end[r] - w->own[r] ? (uint64_t)w->req[r] << 32 | (uint64_t)j
                                            : (uint64_t)(r + 1) << 48 | (uint64_t)j;
    uint64_t x = mix64(w->seed ^ mix64(id * 2 + (uint64_t)side) ^ ((uint64_t)i << 20));
    float sum = -2;
    for (int k = 0; k < 4; k++, x >>= 16)
        sum += (float)(x & 0xFFFF) * 0x1p-16f;
    /* four uniforms: nearly normal, of variance 1 */
    return bf16_to_f32(f32_to_bf16(sum * 1.7320508f));
}

/* A head of a cell: dim numbers; of FP8 cells also their codes and the scale. Values of different
 * FP8 cells have different sizes; in a large world most cells have scales that are widened in two
 * products (FP8_CELL_FAR). */
struct head_of {
    float x[512];
    uint8_t code[512], scale;
};
static void make_head(const struct world *w, int r, int j, int side, int h, struct head_of *to)
{
    const float size = ldexpf(1, w->size + (w->fp8 && side ? (j * 5 + h) % 6 - 3 : 0));
    for (int i = 0; i < w->dim; i++)
        to->x[i] = size * element(w, r, j, side, h * w->dim + i);
    if (!w->fp8)
        return;
    fp8_cell_write(to->x, w->dim, to->code, &to->scale);
    fp8_cell_read(to->code, to->scale, w->dim, to->x);
}

struct run {
    const struct world *w;
    const struct layout *l;
    const int *order;
    int n, cols, wide, n_req, n_pages;
    int32_t *pages, *expand, *page; /* page: the order of pages */
    enum kv_type type;
    size_t cell; /* bytes */
    uint8_t *k, *v;
    bool *there; /* by slot */
};

static void put_cell(struct run *x, int r, int j, int slot)
{
    const struct world *w = x->w;
    struct head_of head;
    if (x->there[slot])
        return; /* from a row before */
    x->there[slot] = true;
    for (int i = 0; i < 2 * w->n_kv; i++) {
        const int side = i % 2, h = i / 2;
        uint8_t *cell = (side ? x->v : x->k) + (size_t)slot * x->cell;
        make_head(w, r, j, side, h, &head);
        if (x->type == KV_FP8) {
            memcpy(cell + h * w->dim, head.code, (size_t)w->dim);
            cell[w->n_kv * w->dim + h] = head.scale;
        } else {
            for (int d = 0; d < w->dim; d++)
                ((uint16_t *)(void *)cell)[h * w->dim + d] = f32_to_bf16(head.x[d]);
        }
    }
}

/* Page 0 is nobody's; then each request's columns; then cells that expand names. */
static void place(struct run *x, int32_t *hi)
{
    const struct world *w = x->w;
    const int P = x->l->page_size;
    const int used = div_up(w->len, P); /* columns of a request; those beyond name page 0 */
    int spare = x->n_req * used;        /* pages of the tables */
    for (int i = 0; i < x->n_pages; i++)
        x->page[i] = i;
    for (int i = x->n_pages - 1; x->l->seed && i > 1; i--) {
        int j = 1 + (int)(mix64(x->l->seed + (uint64_t)i) % (uint64_t)i);
        int32_t t = x->page[i];
        x->page[i] = x->page[j], x->page[j] = t;
    }
    for (int i = 0; i < spare; i++)
        x->pages[i / used * x->cols + i % used] = x->page[1 + i];
    for (int i = 0, next = 0; i < x->n; i++) {
        int r = x->order[i], end = w->end[r];
        int q = x->l->naming == BY_PAGES ? i : w->req[r];
        hi[i] = x->l->naming == BY_PAGES  ? end
                : x->l->naming == BY_TREE ? end - w->own[r]
                                          : min_int(5, end - w->own[r]);
        for (int j = w->lo[r]; j < end; j++) {
            int slot = x->pages[q * x->cols + j / P] * P + j % P;
            if (j >= hi[i]) {
                slot = x->page[1 + spare + next / P] * P + next % P;
                next++;
            }
            if (j >= hi[i])
                x->expand[i * x->wide + j - hi[i]] = slot;
            put_cell(x, r, j, slot);
        }
        if (hi[i] < w->lo[r]) /* named, never seen */
            for (int j = hi[i]; j < w->lo[r]; j++)
                x->expand[i * x->wide + j - hi[i]] = 0;
    }
}

static void shape_run(struct run *x)
{
    const struct world *w = x->w;
    int spare = 0;
    x->cols = div_up(max_int(w->len, w->room), x->l->page_size);
    x->n_req = x->l->naming == BY_PAGES ? x->n : w->n_req;
    x->wide = 1;
    for (int i = 0; i < x->n; i++) {
        int r = x->order[i];
        int own = x->l->naming == BY_HAND ? w->end[r] : w->own[r];
        x->wide = max_int(x->wide, own);
        spare += own;
    }
    x->n_pages = 1 + x->n_req * div_up(w->len, x->l->page_size) + div_up(spare, x->l->page_size);
    size_t slots = (size_t)(x->n_pages * x->l->page_size);
    x->cell = kv_cell_bytes(x->type, w->n_kv, w->dim);
    x->k = xmalloc(slots * x->cell), x->v = xmalloc(slots * x->cell);
    memset(x->k, 0xFF, slots * x->cell), memset(x->v, 0xFF, slots * x->cell);
    x->there = xcalloc(slots, sizeof *x->there);
    x->pages = xcalloc((size_t)(x->n_req * x->cols), sizeof *x->pages);
    x->expand = xcalloc((size_t)(x->n * x->wide), sizeof *x->expand);
    x->page = xcalloc((size_t)x->n_pages, sizeof *x->page);
}

static void run_cells(struct case_dev *b, const struct world *w, const struct layout *l,
                      enum kv_type type, const int *order, int n, float *out, float *lse)
{
    struct run x = {.w = w, .l = l, .type = type, .order = order, .n = n};
    size_t row = (size_t)(w->n_head * w->dim), R = (size_t)n * 4;
    int32_t req[MOST_ROWS], lo[MOST_ROWS], hi[MOST_ROWS], extra[MOST_ROWS];
    float *q = xmalloc((size_t)n * row * sizeof *q);
    bool any = false;
    shape_run(&x);
    place(&x, hi);
    for (int i = 0; i < n; i++) {
        int r = order[i];
        req[i] = l->naming == BY_PAGES ? i : w->req[r];
        lo[i] = w->lo[r], extra[i] = w->end[r] - hi[i];
        any |= extra[i] > 0;
        memcpy(q + (size_t)i * row, w->q + (size_t)r * row, row * sizeof *q);
    }
    struct k_table t = {.page_size = l->page_size, .n_cols = x.cols, .expand_w = x.wide,
                        .req = dev_buf(b, req, R), .lo = dev_buf(b, lo, R),
                        .hi = dev_buf(b, hi, R),
                        .pages = dev_buf(b, x.pages, (size_t)(x.n_req * x.cols) * 4)};
    if (any) {
        t.n_expand = dev_buf(b, extra, R);
        t.expand = dev_buf(b, x.expand, R * (size_t)x.wide);
    }
    int slots = x.n_pages * l->page_size;
    size_t bytes = (size_t)slots * x.cell, heads = (size_t)(n * w->n_head);
    struct tensor sink = w->sink;
    struct err e;
    if (w->sinks && b != &C)
        CHECK(b->k->upload(b->d, &sink, &e));
    struct k_attn a = {.rows = n, .n_head = w->n_head, .scale = w->scale, .softcap = w->softcap,
                       .window = l->no_window ? 0 : w->window, .sinks = w->sinks ? &sink : NULL,
                       .q = dev_buf(b, q, (size_t)n * row * sizeof *q),
                       .cells = {dev_buf(b, x.k, bytes), dev_buf(b, x.v, bytes), type, slots,
                                 w->n_kv, w->dim},
                       .table = &t, .dst = dev_buf(b, NULL, (size_t)n * row * 4)};
    if (lse)
        a.lse = dev_buf(b, NULL, heads * 4);
    b->k->attn(b->d, &a);
    b->k->get(b->d, out, a.dst, (size_t)n * row * 4);
    if (lse)
        b->k->get(b->d, lse, a.lse, heads * 4);
    if (!b->k->sync(b->d, &e))
        fail_msg("%s", e.msg);
    free(q), free(x.k), free(x.v), free(x.pages), free(x.expand), free(x.page), free(x.there);
    dev_release(b);
}

static void run_on(struct case_dev *b, const struct world *w, const struct layout *l,
                   const int *order, int n, float *out, float *lse)
{
    run_cells(b, w, l, w->fp8 ? KV_FP8 : KV_BF16, order, n, out, lse);
}

/* ---- worlds --------------------------------------------------------------------------------- */

static void finish_world(struct world *w)
{
    size_t n = (size_t)(w->rows * w->n_head * w->dim);
    w->seed = rnd();
    w->size = w->fp8 && w->seed % 4 == 0 ? 15 : 0;
    w->scale = ldexpf(1 / sqrtf((float)w->dim), -w->size);
    w->q = rnd_floats(n, w->spread);
    w->sink = TENSOR(DT_BF16, 1, w->n_head);
}

static void free_world(struct world *w) { free(w->q), free(w->sink.data); }

/* Rows of any kind at all: ends anywhere, windows, gaps, tails of up to `own` keys of their own. */
static struct world any_world(int rows, int n_head, int n_kv, int dim, int len, int own)
{
    struct world w = {.rows = rows, .n_head = n_head, .n_kv = n_kv, .dim = dim, .n_req = 2,
                      .len = len, .spread = 1};
    for (int r = 0; r < rows; r++) {
        w.req[r] = rnd_int(4) == 0;
        w.end[r] = r == 1 ? len : 1 + rnd_int(len);
        w.lo[r] = r % 3 == 1 ? max_int(0, w.end[r] - 20) : r % 3 == 2 ? rnd_int(w.end[r]) : 0;
        if (r == 3)
            w.lo[r] = w.end[r]; /* sees nothing */
        w.own[r] = r % 2 && own ? min_int(w.end[r], 1 + rnd_int(own)) : 0;
    }
    return w;
}

/* A tree behind `prefix` keys (tree), or the rows of a chunk that ends there. */
static struct world rows_world(int rows, int n_head, int n_kv, int dim, int prefix, int window,
                               bool tree)
{
    struct world w = {.rows = rows, .n_head = n_head, .n_kv = n_kv, .dim = dim, .n_req = 1,
                      .len = prefix + 17, .window = window, .spread = 1};
    for (int r = 0; r < rows; r++) {
        int depth = r == 0 ? 1 : 1 + rnd_int(17);
        w.end[r] = tree ? prefix + depth : prefix - rows + 1 + r;
        w.own[r] = tree ? depth : 0;
        w.lo[r] = window ? max_int(0, w.end[r] - window) : 0;
    }
    return w;
}

/* The same number of rows of each of n_req requests, each a chunk of a prompt or (tree) a tree. */
static struct world batch_world(int rows, int n_req, int n_head, int n_kv, int dim, int prefix,
                                int window, bool tree)
{
    struct world w = rows_world(rows, n_head, n_kv, dim, prefix, window, tree);
    const int each = rows / n_req;
    w.n_req = n_req;
    for (int r = 0; r < rows; r++) {
        w.req[r] = r / each;
        if (!tree) {
            w.end[r] = prefix - each + 1 + r % each;
            w.lo[r] = window ? max_int(0, w.end[r] - window) : 0;
        }
    }
    return w;
}

/* ---- judging -------------------------------------------------------------------------------- */

static void must_equal(const struct world *w, const int *order, int n, const float *got,
                       const float *want, size_t each, const char *what)
{
    for (int i = 0; i < n; i++)
        for (size_t j = 0; j < each; j++) {
            float a = got[(size_t)i * each + j], b = want[(size_t)order[i] * each + j];
            if (memcmp(&a, &b, sizeof a) != 0)
                fail_msg("%s: %d rows, %d/%d x %d: row %d (keys %d to %d), element %zu is %.9g, "
                         "not %.9g", what, n, w->n_head, w->n_kv, w->dim, order[i],
                         w->lo[order[i]], w->end[order[i]], j, (double)a, (double)b);
        }
}

/* A weight rounded to bf16 is off by 2^-9 / sqrt 3 of itself, rms; a rounded query moves a score by
 * that times the scores' spread, and so the weight. Errors of many keys are independent, as are the
 * values they multiply, so the whole is off by 2^-9 sqrt((1 + spread^2) / 3); twice that is
 * allowed. One key of 4096 left out would be 2^-6. Logarithms of sums see the queries only, and
 * move by no more than a score does, 2^-9 spread / sqrt 3 rms; seven times that, 2^-7 spread, is
 * allowed, since thousands of heads are compared. */
static void compare(const struct world *w, const float *got, const float *want, const float *lse,
                    const float *want_lse)
{
    size_t row = (size_t)(w->n_head * w->dim);
    double spread = (double)w->spread, err = 0, ref = 0;
    for (size_t i = 0; i < (size_t)w->rows * row; i++) {
        double d = (double)got[i] - (double)want[i];
        err += d * d, ref += (double)want[i] * (double)want[i];
    }
    double rel = sqrt(err / ref), tol = 2 * 0x1p-9 * sqrt((1 + spread * spread) / 3);
    if (!(rel <= tol))
        fail_msg("%d rows, %d/%d x %d, %d keys: relative L2 to the CPU %.3g, allowed %.3g", w->rows,
                 w->n_head, w->n_kv, w->dim, w->len, rel, tol);
    for (size_t i = 0; i < (size_t)(w->rows * w->n_head); i++)
        assert_true(isinf(want_lse[i])
                        ? lse[i] == -INFINITY
                        : fabs((double)lse[i] - (double)want_lse[i]) < 0x1p-7 * spread);
}

static void layouts_agree(const struct world *w, const float *out, const float *lse)
{
    static const struct layout layouts[] = {{1, 5, BY_TREE, false}, {4, 7, BY_TREE, true},
                                            {64, 3, BY_TREE, false}, {16, 11, BY_PAGES, true},
                                            {1, 2, BY_PAGES, false}, {4, 9, BY_HAND, true}};
    size_t row = (size_t)(w->n_head * w->dim), heads = (size_t)w->n_head;
    float *got = xmalloc((size_t)w->rows * (row + heads) * sizeof *got);
    float *got_lse = got + (size_t)w->rows * row;
    int order[MOST_ROWS];
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        if (layouts[i].naming == BY_PAGES && (double)w->rows * w->len * w->n_kv * w->dim > 3e7)
            continue; /* every row would need its own copy of the cells */
        if (layouts[i].naming == BY_HAND && w->rows * w->len > 20000)
            continue;
        for (int r = 0; r < w->rows; r++)
            order[r] = r;
        run_on(&G, w, &layouts[i], order, w->rows, got, got_lse);
        must_equal(w, order, w->rows, got, out, row, "another layout");
        must_equal(w, order, w->rows, got_lse, lse, heads, "another layout's lse");
    }
    for (int k = 0; k < 4; k++) { /* a row alone, some, most turned around */
        int n = k == 0 ? 1 : k == 1 ? max_int(1, w->rows / 5) : k == 2 ? max_int(1, w->rows / 2)
                                                                       : w->rows;
        int from = rnd_int(w->rows - n + 1);
        for (int r = 0; r < n; r++)
            order[r] = k == 3 ? w->rows - 1 - r : from + r;
        bool pages = k == 0 && (double)w->len * w->n_kv * w->dim < 1e7;
        struct layout l = {k % 2 ? 16 : 4, 21, pages ? BY_PAGES : BY_TREE, false};
        run_on(&G, w, &l, order, n, got, k % 2 ? NULL : got_lse);
        must_equal(w, order, n, got, out, row, n == 1 ? "a row alone" : "another choice of rows");
        if (k == 1 || k == 2)
            continue;
        run_on(&SMALL, w, &l, order, n, got, got_lse);
        must_equal(w, order, n, got, out, row, "99 KiB of shared memory");
        must_equal(w, order, n, got_lse, lse, heads, "the lse with 99 KiB of shared memory");
    }
    free(got);
}

static void check_world(struct world *w)
{
    size_t n = (size_t)(w->rows * w->n_head * w->dim), heads = (size_t)(w->rows * w->n_head);
    float *want = xmalloc((n + heads) * 2 * sizeof *want), *out = want + n + heads;
    static const struct layout plain = {16, 0, BY_TREE, false};
    int order[MOST_ROWS];
    for (int r = 0; r < w->rows; r++)
        order[r] = r;
    run_on(&C, w, &plain, order, w->rows, want, want + n);
    run_on(&G, w, &plain, order, w->rows, out, out + n);
    compare(w, out, want, out + n, want + n);
    if (w->fp8) {
        run_cells(&G, w, &plain, KV_BF16, order, w->rows, want, want + n);
        must_equal(w, order, w->rows, out, want, n / (size_t)w->rows, "FP8 cells");
        must_equal(w, order, w->rows, out + n, want + n, (size_t)w->n_head, "the lse of FP8 cells");
    }
    layouts_agree(w, out, out + n);
    free(want);
    free_world(w);
}

/* ---- tests ---------------------------------------------------------------------------------- */

static void test_any_rows_at_all(void **state)
{
    static const int shapes[][5] = {/* rows, heads, kv heads, dim, keys */
                                    {1, 8, 1, 64, 70},    {9, 16, 2, 64, 700},
                                    {70, 8, 1, 64, 300},  {5, 5, 1, 64, 2000},
                                    {24, 16, 1, 64, 900}, {6, 4, 4, 128, 500},
                                    {17, 8, 1, 128, 400}, {3, 14, 2, 128, 90},
                                    {40, 8, 2, 128, 300}, {7, 4, 2, 256, 600},
                                    {20, 8, 4, 256, 200}, {33, 2, 2, 256, 400},
                                    {4, 6, 2, 96, 300},   {5, 4, 1, 40, 200},
                                    {9, 16, 2, 512, 300}, {70, 4, 1, 512, 200},
                                    {3, 14, 1, 512, 700}};
    for (int i = 0; i < 34; i += one_in(5)) {
        const int *s = shapes[i % 17];
        struct world w = any_world(s[0], s[1], s[2], s[3], s[4], i < 17 ? 17 : 90);
        w.softcap = i % 4 == 1 ? 5 : 0;
        w.sinks = i % 3 == 0;
        w.spread = i % 5 == 0 ? 4 : 1;
        w.fp8 = *state != NULL;
        finish_world(&w);
        check_world(&w);
    }
}

static void test_a_tree_is_its_paths_decoded_alone(void **state)
{
    static const int heads[][3] = {{16, 2, 64}, {4, 2, 256}, {8, 2, 128}, {16, 1, 64},
                                   {16, 2, 512}};
    static const int prefixes[] = {3, 63, 64, 129, 600, 2047, 2049};
    static const int rows[] = {2, 4, 8, 16, 60};
    for (int i = 0; i < 35; i += one_in(8)) {
        const int *h = heads[i % 5];
        struct world w = rows_world(rows[i / 5 % 5], h[0], h[1], h[2], prefixes[i % 7],
                                    i % 3 == 2 ? 128 : i % 3 == 1 ? 1024 : 0, true);
        w.sinks = i % 2;
        w.fp8 = *state != NULL;
        finish_world(&w);
        check_world(&w);
    }
}

static void test_chunks_of_a_prompt(void **state)
{
    static const int cases[][6] = {/* rows, heads, kv heads, dim, keys, window */
                                   {300, 8, 1, 64, 700, 0},   {400, 16, 2, 64, 400, 128},
                                   {100, 8, 8, 64, 1500, 0},  {130, 4, 2, 256, 500, 0},
                                   {200, 2, 1, 256, 800, 128}, {150, 8, 2, 128, 400, 0},
                                   {90, 16, 1, 128, 90, 0},   {30, 64, 8, 64, 800, 128},
                                   /* so many tiles of rows that one block walks all keys */
                                   {320, 16, 4, 256, 1300, 1024}, {400, 16, 4, 256, 450, 0},
                                   {400, 32, 4, 128, 700, 300},
                                   {300, 16, 2, 512, 330, 0}, {90, 8, 1, 512, 900, 128}};
    for (int i = 0; i < 13; i += one_in(5)) {
        const int *c = cases[i];
        struct world w = rows_world(c[0], c[1], c[2], c[3], c[4], c[5], false);
        w.sinks = i % 2;
        w.fp8 = *state != NULL;
        finish_world(&w);
        check_world(&w);
    }
}

static void test_long_contexts(void **state)
{
    static const int cases[][6] = {/* rows, heads, kv heads, dim, keys, tree */
                                   {1, 8, 1, 64, 20000, 0}, {8, 8, 1, 64, 20000, 1},
                                   {1, 2, 1, 256, 9000, 0}, {16, 2, 1, 256, 9000, 1},
                                   {3, 16, 8, 64, 4500, 1}, {70, 8, 1, 64, 9000, 0},
                                   {1, 16, 8, 64, 4097, 0},
                                   {280, 32, 2, 256, 33000, 0}, /* sums in device memory */
                                   {16, 4, 2, 256, 4097, 1},
                                   {1, 8, 1, 512, 9000, 0}, {9, 16, 2, 512, 4500, 1},
                                   {272, 64, 8, 512, 4100, 0}}; /* the same */
    for (int i = 0; i < 12; i += one_in(4)) {
        const int *c = cases[i];
        struct world w = rows_world(c[0], c[1], c[2], c[3], c[4], 0, c[5]);
        w.sinks = i % 2;
        w.fp8 = *state != NULL;
        finish_world(&w);
        check_world(&w);
    }
}

/* Divisions of the work that the other tests leave out: rows of several requests, of which one
 * block walks all keys; a block a row; up to 64 packed rows of a long context. */
static void test_several_requests(void **state)
{
    static const int cases[][9] = {
        /* rows, requests, heads, kv heads, dim, keys, window, tree, room */
        {72, 4, 4, 4, 128, 400, 128, 0, 0},     {72, 4, 4, 2, 256, 400, 128, 0, 0},
        {60, 2, 16, 8, 128, 300, 128, 0, 0},    {60, 1, 10, 5, 256, 300, 100, 0, 0},
        {60, 1, 8, 8, 128, 300, 128, 1, 0},     {60, 3, 10, 5, 256, 260, 256, 1, 0},
        {20, 1, 8, 4, 128, 700, 0, 0, 9000},    {24, 1, 4, 2, 128, 650, 0, 1, 9000},
        {396, 18, 8, 4, 128, 200, 0, 0, 9000},  {40, 2, 4, 2, 256, 700, 0, 0, 9000},
        {28, 2, 4, 2, 256, 700, 0, 1, 9000},    {64, 4, 4, 4, 64, 400, 100, 1, 0},
        {16, 1, 16, 8, 128, 600, 0, 1, 0},      {16, 1, 16, 8, 256, 600, 0, 1, 0},
        {24, 4, 16, 2, 512, 300, 0, 1, 9000},   {396, 3, 64, 8, 512, 240, 0, 0, 9000}};
    for (int i = 0; i < 16; i += one_in(5)) {
        const int *c = cases[i];
        struct world w = batch_world(c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7]);
        w.room = c[8];
        w.sinks = i % 2;
        w.fp8 = *state != NULL;
        finish_world(&w);
        check_world(&w);
    }
}

/* ---- behind the product that writes the cells ------------------------------------------------ */

enum { BEHIND_KEYS = 900, BEHIND_IN = 2880, BEHIND_PAGE = 16 };

/* One layer's projection and attention; rows of one request, seen through pages or (tree) a chain
 * seen through expand. */
struct layer {
    int rows, dim;
    bool tree;
    enum kv_type type;
    struct tensor w[3];
    struct k_table table;
    struct k_cells cells;
    kbuf src, q, dst;
};

enum { BEHIND_HEADS = 8, BEHIND_KV = 2 };

static void make_table(struct layer *x)
{
    int cols = div_up(BEHIND_KEYS + x->rows, BEHIND_PAGE), T = x->rows;
    int32_t *pages = xmalloc((size_t)cols * sizeof *pages), req[17] = {0}, lo[17], hi[17];
    int32_t extra[17], write[17], expand[17 * 17] = {0};
    for (int i = 0; i < cols; i++)
        pages[i] = 1 + (i * 7) % cols; /* cols is no multiple of 7 */
    CHECK(cols % 7);
    for (int r = 0; r < T; r++) {
        int at = BEHIND_KEYS + r;
        write[r] = pages[at / BEHIND_PAGE] * BEHIND_PAGE + at % BEHIND_PAGE;
        lo[r] = 3, hi[r] = x->tree ? BEHIND_KEYS : at + 1, extra[r] = x->tree ? r + 1 : 0;
        for (int i = 0; i <= r; i++)
            expand[r * 17 + i] = write[i];
    }
    size_t n = (size_t)T * 4;
    x->table = (struct k_table){.page_size = BEHIND_PAGE, .n_cols = cols, .expand_w = 17,
                                .req = dev_buf(&G, req, n), .lo = dev_buf(&G, lo, n),
                                .hi = dev_buf(&G, hi, n), .write = dev_buf(&G, write, n),
                                .n_expand = dev_buf(&G, extra, n),
                                .expand = dev_buf(&G, expand, n * 17),
                                .pages = dev_buf(&G, pages, (size_t)cols * 4)};
    x->cells.n_slots = (cols + 1) * BEHIND_PAGE;
    free(pages);
}

/* Old cells hold numbers, the others NaN. */
static void fill_cells(struct layer *x, kbuf pool, uint64_t seed)
{
    const int cell = BEHIND_KV * x->dim;
    uint8_t *v = xmalloc(pool.n);
    memset(v, 0xFF, pool.n);
    for (int j = 0; j < BEHIND_KEYS; j++) {
        int page = 1 + (j / BEHIND_PAGE * 7) % x->table.n_cols;
        uint8_t *at = v + (size_t)(page * BEHIND_PAGE + j % BEHIND_PAGE) *
                              kv_cell_bytes(x->type, BEHIND_KV, x->dim);
        float n[BEHIND_KV * 512];
        for (int i = 0; i < cell; i++) {
            n[i] = (float)(mix64(seed + (size_t)(j * cell + i)) >> 40) * 0x1p-23f - 1;
            if (x->type == KV_BF16)
                ((uint16_t *)(void *)at)[i] = f32_to_bf16(n[i]);
        }
        for (int h = 0; h < BEHIND_KV && x->type == KV_FP8; h++)
            fp8_cell_write(n + h * x->dim, x->dim, at + h * x->dim, at + cell + h);
    }
    G.k->put(G.d, pool, v, pool.n);
    free(v);
}

static void make_layer(struct layer *x)
{
    struct err e;
    make_table(x);
    size_t bytes = (size_t)x->cells.n_slots * kv_cell_bytes(x->type, BEHIND_KV, x->dim);
    size_t q = (size_t)(x->rows * BEHIND_HEADS * x->dim), in = (size_t)x->rows * BEHIND_IN;
    x->cells.type = x->type, x->cells.n_kv = BEHIND_KV, x->cells.head_dim = x->dim;
    x->cells.k = dev_buf(&G, NULL, bytes), x->cells.v = dev_buf(&G, NULL, bytes);
    for (int i = 0; i < 3; i++) {
        x->w[i] = TENSOR(DT_BF16, 0.02f, (i ? BEHIND_KV : BEHIND_HEADS) * x->dim, BEHIND_IN);
        void *host = x->w[i].data;
        CHECK(G.k->upload(G.d, &x->w[i], &e));
        free(host);
    }
    float *src = rnd_floats(in, 1);
    x->src = dev_buf(&G, src, in * sizeof *src);
    free(src);
    x->q = dev_buf(&G, NULL, q * 4), x->dst = dev_buf(&G, NULL, q * 4);
}

static void project(struct layer *x)
{
    G.k->qkv(G.d, &(struct k_qkv){
        .rows = x->rows, .src = x->src, .norm = {.kind = NORM_NONE}, .wq = &x->w[0],
        .wk = &x->w[1], .wv = &x->w[2], .n_head = BEHIND_HEADS, .n_kv = BEHIND_KV,
        .head_dim = x->dim, .q = x->q, .cells = x->cells, .table = &x->table});
}

static void attend(struct layer *x)
{
    G.k->attn(G.d, &(struct k_attn){.rows = x->rows, .n_head = BEHIND_HEADS, .scale = 0.1f,
                                    .q = x->q, .cells = x->cells, .table = &x->table,
                                    .dst = x->dst});
}

/* Attention reads what is old before it waits for the product. With a wait between the two, and
 * right behind it in a recorded run, the bits are the same; a new cell that is read too early is
 * NaN. So are the cells, which the product stores, or attention if it is right behind it. */
static void test_right_behind_the_product(void **state)
{
    static const int shapes[][3] = {/* rows, dim, tree */
                                    {1, 64, 0}, {1, 256, 0}, {5, 64, 0}, {17, 128, 0},
                                    {4, 64, 1}, {17, 64, 1}, {8, 256, 1}, {1, 512, 0},
                                    {8, 512, 1}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct layer x = {.rows = shapes[i][0], .dim = shapes[i][1], .tree = shapes[i][2],
                          .type = *state ? KV_FP8 : KV_BF16};
        struct err e;
        make_layer(&x);
        const size_t pool = x.cells.k.n;
        float *out[2] = {xmalloc(x.dst.n), xmalloc(x.dst.n)};
        uint8_t *cells[2] = {xmalloc(2 * pool), xmalloc(2 * pool)};
        for (int behind = 0; behind < 2; behind++) {
            fill_cells(&x, x.cells.k, 1), fill_cells(&x, x.cells.v, 2);
            G.k->fill(G.d, x.q, 0xFF);
            G.k->fill(G.d, x.dst, 0xFF);
            CHECK(G.k->sync(G.d, &e));
            struct kgraph *g = NULL;
            bool recording = behind && G.k->graph_begin(G.d);
            project(&x);
            if (!behind)
                CHECK(G.k->sync(G.d, &e));
            attend(&x);
            if (recording) {
                g = G.k->graph_end(G.d, &e);
                CHECK(g);
                G.k->graph_launch(G.d, g);
            }
            G.k->get(G.d, out[behind], x.dst, x.dst.n);
            G.k->get(G.d, cells[behind], x.cells.k, pool);
            G.k->get(G.d, cells[behind] + pool, x.cells.v, pool);
            G.k->graph_free(G.d, g);
        }
        if (memcmp(cells[0], cells[1], 2 * pool) != 0)
            fail_msg("%d rows of %d, %s: the cells behind the product are not those after a wait",
                     x.rows, x.dim, x.tree ? "a tree" : "a chunk");
        for (size_t j = 0; j < x.dst.n / 4; j++)
            if (!(isfinite(out[0][j]) && memcmp(&out[0][j], &out[1][j], sizeof(float)) == 0))
                fail_msg("%d rows of %d, %s: element %zu is %.9g behind the product, %.9g after "
                         "a wait", x.rows, x.dim, x.tree ? "a tree" : "a chunk", j,
                         (double)out[1][j], (double)out[0][j]);
        free(out[0]), free(out[1]);
        free(cells[0]), free(cells[1]);
        dev_release(&G);
    }
}

static struct kdev *open_gpu(enum k_precision precision, struct err *e)
{
    return kernels_cuda.open(&(struct k_opts){.precision = precision}, e);
}

/* Opens G and SMALL. */
static bool open_gpus(enum k_precision precision, struct err *e)
{
    const char *as = getenv("AERIE_GPU_AS");
    char was[16];
    snprintf(was, sizeof was, "%s", as ? as : "");
    G.k = SMALL.k = &kernels_cuda;
    G.d = open_gpu(precision, e);
    if (!G.d)
        return false;
    setenv("AERIE_GPU_AS", "8.6", 1);
    SMALL.d = open_gpu(precision, e);
    setenv("AERIE_GPU_AS", was, 1);
    if (!SMALL.d)
        die("%s", e->msg);
    return true;
}

static void close_gpus(void) { dev_close(&G), dev_close(&SMALL); }

int main(int argc, char **argv)
{
    static bool yes = true;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_rows_at_all),
        cmocka_unit_test(test_a_tree_is_its_paths_decoded_alone),
        cmocka_unit_test(test_chunks_of_a_prompt),
        cmocka_unit_test(test_long_contexts),
        cmocka_unit_test(test_several_requests),
        cmocka_unit_test(test_right_behind_the_product),
    };
    const struct CMUnitTest fp8[] = {
        {"fp8 any rows at all", test_any_rows_at_all, NULL, NULL, &yes},
        {"fp8 a tree is its paths", test_a_tree_is_its_paths_decoded_alone, NULL, NULL, &yes},
        {"fp8 chunks of a prompt", test_chunks_of_a_prompt, NULL, NULL, &yes},
        {"fp8 long contexts", test_long_contexts, NULL, NULL, &yes},
        {"fp8 several requests", test_several_requests, NULL, NULL, &yes},
        {"fp8 right behind the product", test_right_behind_the_product, NULL, NULL, &yes},
    };
    const struct CMUnitTest float32[] = {
        {"fp8 float32 any rows at all", test_any_rows_at_all, NULL, NULL, &yes},
        {"fp8 float32 right behind the product", test_right_behind_the_product, NULL, NULL, &yes},
    };
    struct err e = {0};
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    if (!open_gpus(K_BF16, &e)) {
        printf("1..1\nok 1 - attention on tensor cores # SKIP no CUDA device (%s)\n", e.msg);
        return 0;
    }
    dev_open(&C, &kernels_cpu, NULL, 0);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    failed += cmocka_run_group_tests(fp8, NULL, NULL);
    close_gpus();
    if (!open_gpus(K_F32, &e))
        die("%s", e.msg);
    failed += cmocka_run_group_tests_name("float32", float32, NULL, NULL);
    dev_close(&C);
    close_gpus();
    return failed != 0;
}

#else

int main(void)
{
    printf("1..1\nok 1 - attention on tensor cores # SKIP built without CUDA\n");
    return 0;
}
#endif
