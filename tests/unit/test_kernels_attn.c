/* test_kernels_attn.c - the CPU kernels' attention, merge, move and mixture of experts: against
 * double precision, and bit for bit against themselves (tests/kernel_test.h).
 *
 * A case says what each row sees: a list of cells by logical index. A layout says where the cells
 * lie and how the table names them. Whatever the layout, the bits must be the same.
 */
#include "tests/kernel_test.h"

/* ---- attention ------------------------------------------------------------------------------ */

enum { MAX_ROWS = 40 };

struct attn_case {
    int rows, n_head, n_kv, head_dim, n_req, len, n_cells; /* len: of the longest row */
    enum kv_type type;
    float scale, softcap, spread; /* spread: of the queries */
    bool sinks;
    struct tensor sink;
    float *q, *k, *v; /* (rows, n_head, head_dim), (n_cells, n_kv, head_dim) x 2 */
    int req[MAX_ROWS], lo[MAX_ROWS], end[MAX_ROWS];
    int shared[MAX_ROWS]; /* cells below this index are the request's, the others the row's */
    int *cell;            /* (rows, len) */
};

struct layout {
    int page_size;
    uint64_t seed; /* of the order of pages; 0: as they come */
    int cut;       /* keys from here on are named through expand; -1: from `shared` on */
};

/* The pool cells of a layout: page 0 stays NaN, pages are shuffled, every page is half used by
 * nobody beyond its request's end. */
static int32_t *place_cells(const struct attn_case *c, const struct layout *l, int *n_slots)
{
    int cols = div_up(c->len, l->page_size), prefix = c->n_req * c->len;
    int n_pages = 1 + c->n_req * cols + div_up(c->n_cells - prefix, l->page_size);
    int32_t *page = xmalloc((size_t)n_pages * sizeof *page);
    int32_t *slot = xmalloc((size_t)c->n_cells * sizeof *slot);
    for (int i = 0; i < n_pages; i++)
        page[i] = i;
    for (int i = n_pages - 1; l->seed && i > 1; i--) {
        int j = 1 + (int)(mix64(l->seed + (uint64_t)i) % (uint64_t)i);
        int32_t t = page[i];
        page[i] = page[j], page[j] = t;
    }
    for (int i = 0; i < c->n_cells; i++) {
        int at = i < prefix ? i / c->len * cols * l->page_size + i % c->len
                            : c->n_req * cols * l->page_size + i - prefix;
        slot[i] = page[1 + at / l->page_size] * l->page_size + at % l->page_size;
    }
    *n_slots = n_pages * l->page_size;
    free(page);
    return slot;
}

static kbuf pool_of(const struct attn_case *c, const float *x, const int32_t *slot, int n_slots)
{
    size_t cell = (size_t)(c->n_kv * c->head_dim), size = kv_type_size(c->type);
    char *raw = xmalloc((size_t)n_slots * cell * size);
    memset(raw, 0xFF, (size_t)n_slots * cell * size);
    for (size_t i = 0; i < (size_t)c->n_cells; i++)
        for (size_t j = 0; j < cell; j++) {
            size_t at = (size_t)slot[i] * cell + j;
            if (c->type == KV_F32)
                ((float *)raw)[at] = x[i * cell + j];
            else
                ((uint16_t *)raw)[at] = f32_to_bf16(x[i * cell + j]);
        }
    kbuf b = dev_buf(&T, raw, (size_t)n_slots * cell * size);
    free(raw);
    return b;
}

/* Runs the rows order[0..n) of the case in a layout; out: (n, n_head, head_dim), lse (n, n_head) */
static void attn_in(const struct attn_case *c, const struct layout *l, const int *order, int n,
                    float *out, float *out_lse)
{
    int n_slots, cols = div_up(c->len, l->page_size);
    int32_t *slot = place_cells(c, l, &n_slots), req[MAX_ROWS], lo[MAX_ROWS], hi[MAX_ROWS];
    int32_t extra[MAX_ROWS], *expand = xcalloc((size_t)(n * c->len), sizeof *expand);
    int32_t *pages = xcalloc((size_t)(c->n_req * cols), sizeof *pages);
    size_t row = (size_t)(c->n_head * c->head_dim), heads = (size_t)(n * c->n_head);
    float *q = xmalloc((size_t)n * row * sizeof *q);
    for (int i = 0; i < c->n_req * cols; i++)
        pages[i] = slot[i / cols * c->len + i % cols * l->page_size] / l->page_size;
    for (int i = 0; i < n; i++) {
        int r = order[i], cut = l->cut < 0 ? c->shared[r] : min_int(l->cut, c->shared[r]);
        req[i] = c->req[r], lo[i] = c->lo[r], hi[i] = min_int(cut, c->end[r]);
        extra[i] = c->end[r] - hi[i];
        for (int j = hi[i]; j < c->end[r]; j++)
            expand[i * c->len + j - hi[i]] = slot[c->cell[r * c->len + j]];
        memcpy(q + (size_t)i * row, c->q + (size_t)r * row, row * sizeof *q);
    }
    struct k_table table = {
        .page_size = l->page_size, .n_cols = cols, .expand_w = c->len, .req = ints(req, (size_t)n),
        .pages = ints(pages, (size_t)(c->n_req * cols)), .lo = ints(lo, (size_t)n),
        .hi = ints(hi, (size_t)n), .expand = ints(expand, (size_t)(n * c->len)),
        .n_expand = ints(extra, (size_t)n)};
    struct k_attn a = {
        .rows = n, .n_head = c->n_head, .scale = c->scale, .softcap = c->softcap,
        .sinks = c->sinks ? &c->sink : NULL, .q = floats(q, (size_t)n * row),
        .cells = {pool_of(c, c->k, slot, n_slots), pool_of(c, c->v, slot, n_slots), c->type,
                  n_slots, c->n_kv, c->head_dim},
        .table = &table, .dst = blank((size_t)n * row), .lse = blank(heads)};
    T.k->attn(T.d, &a);
    take(out, a.dst, (size_t)n * row);
    take(out_lse, a.lse, heads);
    free(slot), free(expand), free(pages), free(q);
    dev_release(&T);
}

static void run_attn(const void *arg, float *out)
{
    const struct attn_case *c = arg;
    static const struct layout layouts[] = {{1, 0, -1}, {4, 7, -1}, {16, 9, -1}, {64, 3, -1},
                                            {1, 5, 0}, {16, 2, 3}, {4, 8, 60}, {64, 6, 64}};
    size_t row = (size_t)(c->n_head * c->head_dim), n = (size_t)c->rows * row;
    size_t heads = (size_t)(c->rows * c->n_head);
    float *again = xmalloc((n + heads) * sizeof *again), *lse = out + n;
    int order[MAX_ROWS];
    for (int i = 0; i < c->rows; i++)
        order[i] = i;
    attn_in(c, &layouts[0], order, c->rows, out, lse);
    for (size_t i = 1; i < sizeof layouts / sizeof *layouts; i++) {
        attn_in(c, &layouts[i], order, c->rows, again, again + n);
        same_bits(again, out, n, "another layout");
        same_bits(again + n, lse, heads, "another layout's lse");
    }
    for (int i = 0; i < c->rows; i += one_in(3)) { /* each row alone */
        attn_in(c, &layouts[2], &i, 1, again, again + n);
        same_bits(again, out + (size_t)i * row, row, "a row alone");
    }
    for (int i = 0; i < c->rows; i++) /* most rows, turned around */
        order[i] = c->rows - 1 - i;
    attn_in(c, &layouts[1], order, c->rows - c->rows / 3, again, again + n);
    for (int i = 0; i < c->rows - c->rows / 3; i++)
        same_bits(again + (size_t)i * row, out + (size_t)order[i] * row, row, "another order");
    free(again);
}

static void ref_attn(const struct attn_case *c, double *out, double *lse)
{
    int n = c->head_dim, group = c->n_head / c->n_kv;
    double *p = xmalloc((size_t)c->len * sizeof *p);
    for (int r = 0; r < c->rows; r++)
        for (int h = 0; h < c->n_head; h++) {
            const float *q = c->q + (r * c->n_head + h) * n;
            double *o = out + (r * c->n_head + h) * n, max = -INFINITY, sum = 0;
            memset(o, 0, (size_t)n * sizeof *o);
            lse[r * c->n_head + h] = -INFINITY;
            for (int j = c->lo[r]; j < c->end[r]; j++) {
                const float *k = c->k + (c->cell[r * c->len + j] * c->n_kv + h / group) * n;
                double s = 0;
                for (int i = 0; i < n; i++)
                    s += (double)q[i] * (double)k[i];
                p[j] = ref_cap(s * (double)c->scale, (double)c->softcap);
                max = fmax(max, p[j]);
            }
            if (c->lo[r] == c->end[r])
                continue;
            if (c->sinks)
                sum = exp(weight_at(&c->sink, (size_t)h) - max);
            for (int j = c->lo[r]; j < c->end[r]; j++)
                sum += p[j] = exp(p[j] - max);
            for (int j = c->lo[r]; j < c->end[r]; j++)
                for (int i = 0; i < n; i++)
                    o[i] += p[j] / sum *
                            (double)c->v[(c->cell[r * c->len + j] * c->n_kv + h / group) * n + i];
            lse[r * c->n_head + h] = max + log(sum);
        }
    free(p);
}

/* Random rows over n_req requests: windows, ends anywhere, tails of cells of their own. */
static struct attn_case attn_case_of(int rows, int n_head, int n_kv, int head_dim, int len)
{
    struct attn_case c = {.rows = rows, .n_head = n_head, .n_kv = n_kv, .head_dim = head_dim,
                          .n_req = 2, .len = len, .scale = 1 / sqrtf((float)head_dim)};
    c.n_cells = c.n_req * len;
    c.cell = xmalloc((size_t)(rows * len) * sizeof *c.cell);
    for (int r = 0; r < rows; r++) {
        c.req[r] = rnd_int(2);
        c.end[r] = r == 1 ? len : 1 + rnd_int(len);
        c.lo[r] = r % 3 == 1 ? max_int(0, c.end[r] - 20) : r % 3 == 2 ? rnd_int(c.end[r]) : 0;
        if (r == 3)
            c.lo[r] = c.end[r]; /* sees nothing */
        c.shared[r] = r % 2 ? c.end[r] : max_int(0, c.end[r] - rnd_int(9));
        for (int j = 0; j < len; j++)
            c.cell[r * len + j] = j < c.shared[r] ? c.req[r] * len + j : c.n_cells++;
    }
    return c;
}

static void attn_case_fill(struct attn_case *c, float spread)
{
    c->spread = spread;
    size_t row = (size_t)(c->n_head * c->head_dim), cell = (size_t)(c->n_kv * c->head_dim);
    c->q = rnd_floats((size_t)c->rows * row, spread);
    c->k = rnd_floats((size_t)c->n_cells * cell, 1);
    c->v = rnd_floats((size_t)c->n_cells * cell, 1);
    c->sink = TENSOR(DT_BF16, 1, c->n_head);
    for (size_t i = 0; c->type == KV_BF16 && i < (size_t)c->n_cells * cell; i++) {
        c->k[i] = bf16_to_f32(f32_to_bf16(c->k[i]));
        c->v[i] = bf16_to_f32(f32_to_bf16(c->v[i]));
    }
}

static void check_attn(struct attn_case *c, double tol)
{
    size_t n = (size_t)(c->rows * c->n_head * c->head_dim), heads = (size_t)(c->rows * c->n_head);
    float *out = rnd_floats(n + heads, 1);
    double *want = xmalloc((n + heads) * sizeof *want);
    ref_attn(c, want, want + n);
    everywhere(run_attn, c, out, n + heads);
    close_to(out, want, n, tol);
    /* where a device rounds queries to eight bits, a score moves by 2^-8 (1 + spread) at most */
    double lse = TOL > 0x1p-8 ? 0x1p-8 * (1 + (double)c->spread) : 2e-5;
    for (size_t i = 0; i < heads; i++)
        assert_true(isinf(want[n + i]) ? out[n + i] == -INFINITY
                                       : fabs((double)out[n + i] - want[n + i]) < lse);
    free(out), free(want), free(c->q), free(c->k), free(c->v), free(c->cell), free(c->sink.data);
}

static void test_attention_every_shape_and_layout(void **state)
{
    (void)state;
    static const int shapes[][5] = {/* rows, heads, kv heads, head_dim, longest */
                                    {1, 4, 2, 64, 70}, {9, 4, 4, 64, 130}, {6, 8, 1, 40, 90},
                                    {5, 6, 2, 32, 200}, {7, 5, 1, 16, 65}, {4, 2, 1, 256, 100},
                                    {12, 3, 3, 33, 64}, {2, 16, 2, 96, 140}};
    for (int i = 0; i < 16; i += one_in(3)) {
        if (rounds(one_in(2) == 1, 0) && (i + i / 8) % 2)
            continue; /* usually each shape once, half of them in each type */
        const int *s = shapes[i % 8];
        struct attn_case c = attn_case_of(s[0], s[1], s[2], s[3], s[4]);
        c.type = i / 8 ? KV_F32 : KV_BF16;
        c.softcap = i % 4 == 1 ? 5 : 0;
        c.sinks = i % 3 == 0;
        attn_case_fill(&c, i % 5 == 0 ? 12 : 1);
        check_attn(&c, TOL);
    }
}

/* Rows of one request, as in a chunk of a prompt, which begins at key `base`, or in a tree over
 * `base` keys: each row sees all earlier keys, or the last `window` of them. Rows of the same
 * request share their keys' panels, if there are enough heads. */
static struct attn_case chunk_of(int rows, int n_head, int n_kv, int head_dim, int base, int window,
                                 bool tree)
{
    struct attn_case c = attn_case_of(rows, n_head, n_kv, head_dim, base + rows);
    c.n_cells = c.n_req * c.len;
    for (int r = 0; r < rows; r++) {
        c.req[r] = 1;
        c.end[r] = base + 1 + (tree ? r % 5 : r);
        c.lo[r] = window ? max_int(0, c.end[r] - window) : 0;
        c.shared[r] = tree ? base : c.end[r];
        for (int j = 0; j < c.len; j++)
            c.cell[r * c.len + j] = j < c.shared[r] ? c.len + j : j < c.end[r] ? c.n_cells++ : 0;
    }
    return c;
}

static void test_attention_of_prompts_and_trees(void **state)
{
    (void)state;
    static const struct { int rows, heads, kv, dim, base, window; bool tree; } t[] = {
        {40, 4, 2, 64, 0, 0, false},  {33, 4, 2, 64, 95, 0, true},
        {40, 3, 1, 33, 100, 100, false},
        {20, 8, 1, 96, 61, 0, false}, {17, 2, 2, 256, 140, 0, false}, {9, 40, 1, 16, 70, 0, false},
        {40, 2, 2, 32, 500, 0, false}, {24, 5, 1, 40, 510, 64, true}};
    for (int i = 0; i < 16; i += one_in(5)) {
        if (rounds(one_in(2) == 1, 0) && (i + i / 8) % 2)
            continue;
        struct attn_case c = chunk_of(t[i % 8].rows, t[i % 8].heads, t[i % 8].kv, t[i % 8].dim,
                                      t[i % 8].base, t[i % 8].window, t[i % 8].tree);
        c.type = i / 8 ? KV_F32 : KV_BF16;
        c.softcap = i % 4 == 1 ? 5 : 0;
        c.sinks = i % 3 == 0;
        attn_case_fill(&c, 1);
        check_attn(&c, TOL);
    }
}

static void test_attention_over_many_splits(void **state)
{
    (void)state;
    /* 1 row: splits on all threads; many rows: rows on all threads */
    for (int i = 0; i < 4; i += rounds(3, one_in(3))) {
        struct attn_case c = attn_case_of(i % 2 ? 24 : 2, 4, 2, 32, 1700);
        c.type = i / 2 ? KV_F32 : KV_BF16;
        c.sinks = i == 3;
        attn_case_fill(&c, 2);
        check_attn(&c, TOL);
    }
}

/* ---- merge ---------------------------------------------------------------------------------- */

struct merge_case {
    const float *a, *la, *b, *lb;
};

enum { M_ROWS = 4, M_HEADS = 3, M_DIM = 21, M_N = M_ROWS * M_HEADS };

static void run_merge(const void *arg, float *out)
{
    const struct merge_case *c = arg;
    kbuf a = floats(c->a, M_N * M_DIM), la = floats(c->la, M_N);
    T.k->merge(T.d, &(struct k_merge){M_ROWS, M_HEADS, M_DIM, a, la, floats(c->b, M_N * M_DIM),
                                      floats(c->lb, M_N)});
    take(out, a, M_N * M_DIM);
    take(out + M_N * M_DIM, la, M_N);
}

static void test_merge_weighs_by_lse_and_takes_empty_parts(void **state)
{
    (void)state;
    float *a = rnd_floats(M_N * M_DIM, 1), *b = rnd_floats(M_N * M_DIM, 1);
    float *la = rnd_floats(M_N, 9), *lb = rnd_floats(M_N, 9), out[M_N * (M_DIM + 1)];
    double want[M_N * (M_DIM + 1)];
    la[0] = la[1] = lb[1] = lb[2] = -INFINITY;
    for (int i = 0; i < M_DIM; i++) /* what belongs to an empty part is not read */
        a[i] = b[M_DIM + i] = a[M_DIM + i] = b[2 * M_DIM + i] = NAN;
    struct merge_case c = {a, la, b, lb};
    everywhere(run_merge, &c, out, M_N * (M_DIM + 1));
    for (int h = 0; h < M_N; h++) {
        double ea = exp((double)la[h]), eb = exp((double)lb[h]);
        want[M_N * M_DIM + h] = log(ea + eb);
        for (int i = 0; i < M_DIM; i++)
            want[h * M_DIM + i] = ea + eb == 0 ? 0 :
                                  (ea ? ea * (double)a[h * M_DIM + i] : 0) / (ea + eb) +
                                             (eb ? eb * (double)b[h * M_DIM + i] : 0) / (ea + eb);
    }
    close_to(out, want, M_N * M_DIM, 2e-6);
    for (int h = 0; h < M_N; h++)
        assert_true(h == 1 ? out[M_N * M_DIM + h] == -INFINITY
                           : fabs((double)out[M_N * M_DIM + h] - want[M_N * M_DIM + h]) < 1e-5);
    free(a), free(b), free(la), free(lb);
}

/* ---- move ----------------------------------------------------------------------------------- */

static void run_move(const void *arg, float *out)
{
    const float *x = arg;
    static const int32_t src[] = {3, 4, 1, 7}, dst[] = {4, 3, 2, 6}; /* 3 and 4 change places */
    kbuf k = floats(x, 8 * 6), v = floats(x + 48, 8 * 6);
    struct k_cells cells = {k, v, KV_F32, 8, 2, 3};
    T.k->move(T.d, &(struct k_move){4, 1, {{ints(src, 4), ints(dst, 4), 1, &cells}}});
    take(out, k, 48);
    take(out + 48, v, 48);
}

static void test_move_reads_every_source_first(void **state)
{
    (void)state;
    static const int from[8] = {0, 1, 1, 4, 3, 5, 7, 7};
    float *x = rnd_floats(96, 1), out[96];
    everywhere(run_move, x, out, 96);
    for (int i = 0; i < 96; i++)
        assert_true(out[i] == x[i / 48 * 48 + from[i % 48 / 6] * 6 + i % 6]);
    free(x);
}

enum { MV_SLOTS = 90, MV_LAYERS = 70, MV_WORDS = 32 /* floats of a cell, at most */ };

/* Layers 0 .. n[0] - 1 are the first pool's. K and V of a layer lie in `old` one behind the other,
 * MV_SLOTS * MV_WORDS floats of room each. */
struct moves {
    int pairs, n[2];
    int32_t src[2][K_MAX_PAIRS], dst[2][K_MAX_PAIRS];
    struct k_cells layer[MV_LAYERS];
    float *old;
};

static size_t move_cell(const struct k_cells *c)
{
    return (size_t)(c->n_kv * c->head_dim) * kv_type_size(c->type);
}

static void run_moves(const void *arg, float *out)
{
    const struct moves *m = arg;
    const size_t side = MV_SLOTS * MV_WORDS;
    struct k_cells cells[MV_LAYERS];
    int n = m->n[0] + m->n[1];
    for (int l = 0; l < n; l++) {
        cells[l] = m->layer[l];
        cells[l].k = floats(m->old + (size_t)(2 * l) * side, side);
        cells[l].v = floats(m->old + (size_t)(2 * l + 1) * side, side);
    }
    size_t pairs = (size_t)m->pairs;
    T.k->move(T.d, &(struct k_move){m->pairs, 2, {
        {ints(m->src[0], pairs), ints(m->dst[0], pairs), m->n[0], cells},
        {ints(m->src[1], pairs), ints(m->dst[1], pairs), m->n[1], cells + m->n[0]}}});
    for (int l = 0; l < n; l++) {
        take(out + (size_t)(2 * l) * side, cells[l].k, side);
        take(out + (size_t)(2 * l + 1) * side, cells[l].v, side);
    }
}

/* Slots anywhere; the path's rows ascend, so that targets are rows before, which may be sources. Or
 * any pairs at all, no slot a target twice. */
static void draw_pairs(int pairs, bool path, int32_t *src, int32_t *dst)
{
    int32_t slot[MV_SLOTS];
    for (int i = 0; i < MV_SLOTS; i++)
        slot[i] = i;
    for (int i = MV_SLOTS - 1; i > 0; i--) {
        int j = rnd_int(i + 1);
        int32_t t = slot[i];
        slot[i] = slot[j], slot[j] = t;
    }
    int row = 0, spare = MV_SLOTS - pairs;
    for (int i = 0; i < pairs; i++, row++) {
        while (path && i && spare && rnd() % 2)
            row++, spare--;
        dst[i] = slot[i];
        src[i] = slot[path ? row : rnd_int(MV_SLOTS)];
    }
}

static void draw_moves(struct moves *m, int turn)
{
    m->pairs = turn == 0 ? K_MAX_PAIRS : 1 + rnd_int(20);
    m->n[0] = turn == 1 ? 66 : turn == 2 ? 64 : 1 + rnd_int(3); /* CUDA: a launch moves 64 */
    m->n[1] = turn == 2 ? 0 : rnd_int(4);
    for (int p = 0; p < 2; p++)
        draw_pairs(m->pairs, turn % 3 > 0, m->src[p], m->dst[p]);
    for (int l = 0; l < m->n[0] + m->n[1]; l++) {
        struct k_cells *c = &m->layer[l];
        *c = (struct k_cells){.type = rnd() % 2 ? KV_F32 : KV_BF16, .n_slots = MV_SLOTS};
        c->n_kv = 1 + rnd_int(2);
        c->head_dim = turn % 2 ? 8 << rnd_int(2) : 1 + rnd_int(16);
    }
}

static void test_moves_of_many_layers(void **state)
{
    (void)state;
    const size_t side = MV_SLOTS * MV_WORDS, room = 2 * MV_LAYERS * side;
    struct moves m = {.old = rnd_floats(room, 1)};
    float *out = rnd_floats(room, 1), *want = rnd_floats(room, 1);
    for (int turn = 0; turn < 24; turn++) {
        draw_moves(&m, turn);
        size_t n = (size_t)(m.n[0] + m.n[1]) * 2 * side;
        everywhere(run_moves, &m, out, n);
        memcpy(want, m.old, n * sizeof *want);
        for (int l = 0; l < m.n[0] + m.n[1]; l++)
            for (int kv = 0, p = l >= m.n[0]; kv < 2; kv++)
                for (int i = 0; i < m.pairs; i++) {
                    size_t cell = move_cell(&m.layer[l]), at = (size_t)(2 * l + kv) * side;
                    memcpy((char *)(want + at) + (size_t)m.dst[p][i] * cell,
                           (const char *)(m.old + at) + (size_t)m.src[p][i] * cell, cell);
                }
        same_bits(out, want, n, "a move");
    }
    free(m.old), free(out), free(want);
}

/* ---- mixture of experts --------------------------------------------------------------------- */

struct moe_case {
    int rows, in, ffn, n_expert, top_k;
    enum expert_layout layout;
    enum act_kind act;
    const float *src, *dst;
    struct k_norm pre, router_norm, post;
    struct tensor router, router_b, router_in, expert_scale;
    struct tensor gate_up, gate_up_s, gate_up_b, down, down_s, down_b;
    bool bias, add, scaled, all;
    enum router_kind by_sigmoid; /* or ROUTER_CHOSEN */
    struct tensor choice_b;
    float cap;
    bool weigh_input;
};

static void moe_on(const struct moe_case *c, const float *src, const float *old, int rows,
                   float *out, int32_t *chosen)
{
    size_t n = (size_t)(rows * c->in), pairs = (size_t)(rows * c->top_k);
    bool mx = c->layout == EXPERT_MXFP4;
    kbuf dst = c->add ? floats(old, n) : blank(n), ids = dev_buf(&T, NULL, pairs * 4);
    T.k->moe(T.d, &(struct k_moe){
        .rows = rows, .in = c->in, .ffn = c->ffn, .n_expert = c->n_expert, .top_k = c->top_k,
        .src = floats(src, n), .pre = c->pre, .router_norm = c->router_norm,
        .router_in = c->scaled ? &c->router_in : NULL, .router_scale = c->scaled ? .3f : 1,
        .router = &c->router, .router_b = c->bias ? &c->router_b : NULL,
        .router_kind = c->all ? ROUTER_ALL : c->by_sigmoid, .router_cap = c->cap,
        .choice_b = c->choice_b.data ? &c->choice_b : NULL, .weigh_input = c->weigh_input,
        .expert_scale = c->scaled ? &c->expert_scale : NULL, .weight_scale = c->all ? .7f : 0,
        .layout = c->layout,
        .gate_up = &c->gate_up, .gate_up_s = mx ? &c->gate_up_s : NULL,
        .gate_up_b = c->bias ? &c->gate_up_b : NULL, .down = &c->down,
        .down_s = mx ? &c->down_s : NULL, .down_b = c->bias ? &c->down_b : NULL, .act = c->act,
        .limit = 7, .post = c->post, .add = c->add, .dst = dst, .chosen = ids});
    take(out, dst, n);
    T.k->get(T.d, chosen, ids, pairs * sizeof *chosen);
    dev_release(&T);
}

static void run_moe(const void *arg, float *out)
{
    const struct moe_case *c = arg;
    size_t n = (size_t)(c->rows * c->in);
    int32_t *chosen = xmalloc((size_t)(c->rows * c->top_k) * sizeof *chosen), *alone = chosen;
    float *again = xmalloc((size_t)c->in * sizeof *again);
    moe_on(c, c->src, c->dst, c->rows, out, chosen);
    for (int i = 0; i < c->rows * c->top_k; i++)
        out[n + (size_t)i] = (float)chosen[i];
    for (int r = c->rows - 1; r >= 0; r -= 3) {
        moe_on(c, c->src + r * c->in, c->dst + r * c->in, 1, again, alone);
        same_bits(again, out + r * c->in, (size_t)c->in, "a row alone");
    }
    free(chosen), free(again);
}

static double mxfp4_at(const struct tensor *w, const struct tensor *s, size_t row, int k, int i)
{
    static const double table[8] = {0, .5, 1, 1.5, 2, 3, 4, 6};
    uint8_t b = ((const uint8_t *)w->data)[row * (size_t)(k / 2) + (size_t)(i / 2)];
    uint8_t e = ((const uint8_t *)s->data)[row * (size_t)(k / 32) + (size_t)(i / 32)];
    int nibble = i % 2 ? b >> 4 : b & 15;
    return ldexp(nibble & 8 ? -table[nibble & 7] : table[nibble], e - 127);
}

/* Weight of expert e from input i to output o, of n outputs and k inputs */
static double expert_at(const struct moe_case *c, bool down, int e, int o, int i, int n, int k)
{
    const struct tensor *w = down ? &c->down : &c->gate_up, *s = down ? &c->down_s : &c->gate_up_s;
    size_t row = (size_t)e * (size_t)n + (size_t)o;
    if (c->layout == EXPERT_MXFP4)
        return mxfp4_at(w, s, row, k, i);
    if (c->layout == EXPERT_HALVES)
        return weight_at(w, row * (size_t)k + (size_t)i);
    return weight_at(w, ((size_t)e * (size_t)k + (size_t)i) * (size_t)n + (size_t)o);
}

static double expert_act(const struct moe_case *c, double g, double u)
{
    if (c->act != ACT_SWIGLU_CLAMP)
        return ref_act(g, c->act) * u;
    g = fmin(g, 7), u = fmax(-7, fmin(u, 7));
    return (u + 1) * g / (1 + exp(-1.702 * g));
}

static void ref_expert(const struct moe_case *c, const double *x, int e, double in, double *y)
{
    double h[512];
    int f = c->ffn;
    for (int i = 0; i < f; i++) {
        int at[2] = {c->layout == EXPERT_HALVES ? i : 2 * i,
                     c->layout == EXPERT_HALVES ? f + i : 2 * i + 1};
        double v[2];
        for (int j = 0; j < 2; j++) {
            v[j] = c->bias ? weight_at(&c->gate_up_b, (size_t)(e * 2 * f + at[j])) : 0;
            for (int k = 0; k < c->in; k++)
                v[j] += x[k] * expert_at(c, false, e, at[j], k, 2 * f, c->in);
        }
        h[i] = expert_act(c, in * v[0], in * v[1]);
    }
    for (int o = 0; o < c->in; o++) {
        y[o] = c->bias ? weight_at(&c->down_b, (size_t)(e * c->in + o)) : 0;
        for (int i = 0; i < f; i++)
            y[o] += h[i] * expert_at(c, true, e, o, i, c->in, f);
    }
}

static void ref_moe_row(const struct moe_case *c, int r, double *want, float *chosen)
{
    double x[512], rx[512], y[512], sum[512] = {0}, logit[64], choice[64], total = 0, best = 0;
    const bool sigmoids = c->by_sigmoid != ROUTER_CHOSEN;
    bool taken[64] = {false};
    double *raw = widened(c->src + r * c->in, (size_t)c->in);
    ref_norm(raw, c->in, &c->pre, x);
    ref_norm(raw, c->in, c->router_norm.kind ? &c->router_norm : &c->pre, rx);
    for (int i = 0; i < c->in; i++)
        rx[i] *= c->scaled ? weight_at(&c->router_in, (size_t)i) * (double).3f : 1;
    for (int e = 0; e < c->n_expert; e++) {
        logit[e] = c->bias ? weight_at(&c->router_b, (size_t)e) : 0;
        for (int i = 0; i < c->in; i++)
            logit[e] += rx[i] * weight_at(&c->router, (size_t)(e * c->in + i));
        choice[e] = sigmoids ? 1 / (1 + exp(-ref_cap(logit[e], (double)c->cap))) : logit[e];
        choice[e] += c->choice_b.data ? weight_at(&c->choice_b, (size_t)e) : 0;
    }
    int ids[64];
    for (int k = 0; k < c->top_k; k++) {
        int b = -1;
        for (int e = 0; e < c->n_expert; e++)
            if (!taken[e] && (b < 0 || choice[e] > choice[b]))
                b = e;
        taken[ids[k] = b] = true;
        best = logit[ids[0]];
        total += sigmoids ? 1 / (1 + exp(-ref_cap(logit[b], (double)c->cap)))
                          : exp(logit[b] - best);
        chosen[k] = (float)b;
    }
    for (int e = 0; c->all && e < c->n_expert; e++)
        total += taken[e] ? 0 : exp(logit[e] - best);
    for (int k = 0; k < c->top_k; k++) {
        double w = exp(logit[ids[k]] - best) / total;
        if (sigmoids)
            w = 1 / (1 + exp(-ref_cap(logit[ids[k]], (double)c->cap)));
        if (c->by_sigmoid == ROUTER_SIGMOID)
            w /= total;
        w *= c->scaled ? weight_at(&c->expert_scale, (size_t)ids[k]) : 1;
        w *= c->all ? (double).7f : 1;
        ref_expert(c, x, ids[k], c->weigh_input ? w : 1, y);
        for (int i = 0; i < c->in; i++)
            sum[i] += (c->weigh_input ? 1 : w) * y[i];
    }
    ref_norm(sum, c->in, &c->post, want);
    for (int i = 0; i < c->in; i++)
        want[i] += c->add ? (double)c->dst[r * c->in + i] : 0;
    free(raw);
}

static struct moe_case moe_case_of(int i, struct tensor *norm)
{
    static const enum expert_layout layouts[] = {EXPERT_MXFP4, EXPERT_IN_OUT, EXPERT_HALVES};
    struct moe_case c = {.rows = i % 4 == 0 ? 1 : 5 + i, .in = 64 + 32 * (i % 3), .ffn = 64,
                         .n_expert = 5 + i, .top_k = 1 + i % 4, .layout = layouts[i % 3],
                         .bias = i % 2, .add = i % 5 < 2, .scaled = i % 4 == 2,
                         .all = i % 4 > 1};
    if (c.layout != EXPERT_MXFP4)
        c.in -= 5, c.ffn = 51;
    int E = c.n_expert, in = c.in, f = c.ffn;
    enum dtype type = weight_types[i / 3 % 3];
    float s = .15f;
    c.act = i % 3 != 2 || i % 4 == 3 ? ACT_SWIGLU_CLAMP : i % 2 ? ACT_SILU : ACT_GELU_TANH;
    *norm = TENSOR(DT_BF16, 1, in);
    c.pre = (struct k_norm){i % 2 ? NORM_RMS : NORM_NONE, norm, 1e-5f};
    c.router_norm = (struct k_norm){i % 4 == 2 ? NORM_PLAIN : NORM_NONE, NULL, 1e-5f};
    c.post = (struct k_norm){i % 3 == 2 ? NORM_RMS1P : NORM_NONE, norm, 1e-5f};
    c.router = TENSOR(DT_BF16, 1, E, in), c.router_b = TENSOR(DT_BF16, 1, E);
    for (int e = 3; e < E; e += 2) /* ties between experts */
        memcpy((uint16_t *)c.router.data + e * in, (uint16_t *)c.router.data + in, (size_t)in * 2);
    for (int e = 3; e < E; e += 2)
        ((uint16_t *)c.router_b.data)[e] = ((uint16_t *)c.router_b.data)[1];
    c.router_in = TENSOR(DT_BF16, 1, in), c.expert_scale = TENSOR(DT_F32, 1, E);
    c.gate_up_b = TENSOR(DT_BF16, 2, E, 2 * f), c.down_b = TENSOR(DT_BF16, 1, E, in);
    if (c.layout == EXPERT_MXFP4) {
        c.gate_up = TENSOR(DT_U8, 1, E, 2 * f, in / 32, 16);
        c.gate_up_s = TENSOR(DT_U8, 1, E, 2 * f, in / 32);
        c.down = TENSOR(DT_U8, 1, E, in, f / 32, 16), c.down_s = TENSOR(DT_U8, 1, E, in, f / 32);
        for (size_t j = 0; j < c.gate_up_s.bytes; j++)
            ((uint8_t *)c.gate_up_s.data)[j] = (uint8_t)(120 + rnd_int(6));
        for (size_t j = 0; j < c.down_s.bytes; j++)
            ((uint8_t *)c.down_s.data)[j] = (uint8_t)(120 + rnd_int(6));
    } else if (c.layout == EXPERT_IN_OUT) {
        c.gate_up = TENSOR(type, s, E, in, 2 * f), c.down = TENSOR(type, s, E, f, in);
    } else {
        c.gate_up = TENSOR(type, s, E, 2 * f, in), c.down = TENSOR(type, s, E, in, f);
    }
    c.src = rnd_floats((size_t)(c.rows * in), 1), c.dst = rnd_floats((size_t)(c.rows * in), 1);
    return c;
}

static void moe_case_free(struct moe_case *c)
{
    struct tensor *all[] = {&c->router, &c->router_b, &c->router_in, &c->expert_scale, &c->gate_up,
                            &c->gate_up_s, &c->gate_up_b, &c->down, &c->down_s, &c->down_b,
                            &c->choice_b};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]->data);
    free((float *)c->src), free((float *)c->dst);
}

static void check_moe(const struct moe_case *c)
{
    size_t n = (size_t)(c->rows * c->in), pairs = (size_t)(c->rows * c->top_k);
    float *out = rnd_floats(n + pairs, 1), *chosen = rnd_floats(pairs, 1);
    double *want = xmalloc(n * sizeof *want);
    for (int r = 0; r < c->rows; r++)
        ref_moe_row(c, r, want + r * c->in, chosen + r * c->top_k);
    everywhere(run_moe, c, out, n + pairs);
    same_bits(out + n, chosen, pairs, "chosen experts");
    close_to(out, want, n, TOL);
    free(out), free(chosen), free(want);
}

/* Experts beside a dense product, both with norms behind, whose sum a third norm adds to x, times a
 * factor: x and y, by one operation or each step by itself (`apart`). */
static void moe_to_x(struct case_dev *b, int rows, int in, enum norm_kind after, bool apart,
                     float *x, float *y)
{
    enum { FFN = 32, E = 6, K = 3, N_TENSORS = 10 };
    const uint64_t seed = case_seed;
    struct tensor t[N_TENSORS] = {
        TENSOR(DT_BF16, .1f, E, 2 * FFN, in), TENSOR(DT_BF16, .1f, E, in, FFN),
        TENSOR(DT_BF16, .1f, E, in), TENSOR(DT_BF16, 1, in), TENSOR(DT_BF16, 1, in),
        TENSOR(DT_BF16, 1, in), TENSOR(DT_BF16, 1, in), TENSOR(DT_BF16, 1, 1),
        TENSOR(DT_BF16, .1f, in, 64), TENSOR(DT_BF16, .1f, in)};
    void *host[N_TENSORS];
    struct err e;
    t[2].by_row = true;
    for (int i = 0; i < N_TENSORS; i++) {
        host[i] = t[i].data;
        assert_true(b->k->upload(b->d, &t[i], &e));
    }
    const size_t n = (size_t)rows * (size_t)in;
    float *h = rnd_floats((size_t)rows * 64, 1), *old = rnd_floats(n, 1);
    kbuf hid = dev_buf(b, h, (size_t)rows * 64 * 4), xb = dev_buf(b, old, n * 4),
         yb = dev_buf(b, NULL, n * 4);
    b->k->linear(b->d, &(struct k_linear){.rows = rows, .src_stride = 64, .src = hid, .w = &t[8],
                                          .scale = 1, .post = {NORM_RMS1P, &t[4], 1e-6f},
                                          .dst = yb});
    if (apart)
        b->k->sync(b->d, &e);
    struct k_moe a = {.rows = rows, .in = in, .ffn = FFN, .n_expert = E, .top_k = K, .src = xb,
                      .pre = {NORM_RMS, &t[3], 1e-6f}, .router_scale = 1, .router = &t[2],
                      .layout = EXPERT_HALVES, .gate_up = &t[0], .down = &t[1],
                      .act = ACT_GELU_TANH, .post = {NORM_RMS, &t[5], 1e-6f}, .add = true,
                      .dst = yb};
    const struct k_norm last = {after, &t[6], 1e-6f};
    if (!apart)
        a.x = xb, a.after = last, a.s = &t[7];
    b->k->moe(b->d, &a);
    if (apart) {
        b->k->normalize(b->d, &(struct k_normalize){.rows = rows, .n = in, .src_stride = in,
                                                    .dst_stride = in, .src = yb, .dst = xb,
                                                    .norm = last, .add = true, .scale = 1});
        b->k->scale(b->d, &(struct k_scale){.rows = rows, .n = in, .x = xb, .s = &t[7]});
    }
    b->k->get(b->d, x, xb, n * 4);
    b->k->get(b->d, y, yb, n * 4);
    dev_release(b);
    for (int i = 0; i < N_TENSORS; i++) {
        b->k->unload(b->d, &t[i]);
        free(host[i]);
    }
    free(h), free(old);
    case_seed = seed;
}

/* Widths with ends, of one pass of a block's threads over a row and of two. */
static void moe_to_x_on(struct case_dev *b)
{
    static const int rows[] = {1, 3, 5, 17, 70}, widths[] = {96, 100, 3136};
    for (int i = 0; i < 15; i++) {
        const int r = rows[i % 5], in = widths[i / 5];
        const size_t n = (size_t)r * (size_t)in;
        float *x[2], *y[2];
        for (int apart = 0; apart < 2; apart++) {
            x[apart] = xmalloc(n * 4), y[apart] = xmalloc(n * 4);
            moe_to_x(b, r, in, i % 4 == 3 ? NORM_NONE : NORM_RMS1P, apart, x[apart], y[apart]);
        }
        assert_memory_equal(x[0], x[1], n * 4);
        assert_memory_equal(y[0], y[1], n * 4);
        assert_true(isfinite(x[0][0]) && x[0][0] != y[0][0]);
        for (int apart = 0; apart < 2; apart++)
            free(x[apart]), free(y[apart]);
    }
}

static void test_moe_every_layout(void **state)
{
    (void)state;
    for (int i = 0; i < 24; i += one_in(5)) {
        struct tensor norm;
        struct moe_case c = moe_case_of(i, &norm);
        check_moe(&c);
        free(norm.data);
        moe_case_free(&c);
    }
}

static void test_moe_to_x(void **state)
{
    (void)state;
    dev_open(&T, &kernels_cpu, NULL, 1);
    moe_to_x_on(&T);
    dev_close(&T);
}

/* Router weights of a sixteenth: near 1, where single precision holds few sigmoids, rounding would
 * choose between experts. */
static void quiet_router(struct tensor *router)
{
    uint16_t *w = router->data;
    for (size_t i = 0; i < router->bytes / sizeof *w; i++)
        if ((w[i] >> 7 & 0xff) > 4)
            w[i] = (uint16_t)(w[i] - (4 << 7));
}

/* Sigmoids as weights, a bias for the choice only, a soft-cap, weights of the inputs. */
static void test_moe_by_sigmoids(void **state)
{
    (void)state;
    for (int i = 0; i < 24; i += one_in(5)) {
        struct tensor norm;
        struct moe_case c = moe_case_of(i, &norm);
        quiet_router(&c.router);
        c.all = false;
        c.by_sigmoid = i % 2 ? ROUTER_SIGMOID : ROUTER_RAW;
        c.cap = i % 3 ? 1.5f : 0;
        c.weigh_input = c.layout != EXPERT_MXFP4 && !c.bias;
        if (i % 4)
            c.choice_b = TENSOR(i % 8 < 4 ? DT_F32 : DT_BF16, .5f, c.n_expert);
        check_moe(&c);
        free(norm.data);
        moe_case_free(&c);
    }
}

/* The same weights stored as halves and as (in, out) give the same bits. */
static void test_moe_layouts_agree(void **state)
{
    (void)state;
    struct tensor norm;
    struct moe_case a = moe_case_of(5, &norm), b = a; /* halves */
    int E = a.n_expert, in = a.in, f = a.ffn;
    size_t n = (size_t)(a.rows * in), all = n + (size_t)(a.rows * a.top_k);
    size_t size = dtype_size(a.gate_up.type);
    b.layout = EXPERT_IN_OUT;
    b.gate_up = TENSOR(a.gate_up.type, 1, E, in, 2 * f), b.down = TENSOR(a.down.type, 1, E, f, in);
    b.gate_up_b = TENSOR(DT_BF16, 1, E, 2 * f);
    for (int e = 0; e < E; e++)
        for (int o = 0; o < 2 * f; o++) {
            int to = o < f ? 2 * o : 2 * (o - f) + 1;
            ((uint16_t *)b.gate_up_b.data)[e * 2 * f + to] =
                ((uint16_t *)a.gate_up_b.data)[e * 2 * f + o];
            for (int i = 0; i < in; i++) {
                memcpy((char *)b.gate_up.data + (size_t)((e * in + i) * 2 * f + to) * size,
                       (char *)a.gate_up.data + (size_t)((e * 2 * f + o) * in + i) * size, size);
                if (o < f)
                    memcpy((char *)b.down.data + (size_t)((e * f + o) * in + i) * size,
                           (char *)a.down.data + (size_t)((e * in + i) * f + o) * size, size);
            }
        }
    float *x = rnd_floats(all, 1), *y = rnd_floats(all, 1);
    everywhere(run_moe, &a, x, all);
    everywhere(run_moe, &b, y, all);
    same_bits(y, x, all, "(in, out)");
    free(b.gate_up.data), free(b.down.data), free(b.gate_up_b.data), free(x), free(y);
    free(norm.data);
    moe_case_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention_every_shape_and_layout),
        cmocka_unit_test(test_attention_of_prompts_and_trees),
        cmocka_unit_test(test_attention_over_many_splits),
        cmocka_unit_test(test_merge_weighs_by_lse_and_takes_empty_parts),
        cmocka_unit_test(test_move_reads_every_source_first),
        cmocka_unit_test(test_moves_of_many_layers),
        cmocka_unit_test(test_moe_every_layout),
        cmocka_unit_test(test_moe_to_x),
        cmocka_unit_test(test_moe_by_sigmoids),
        cmocka_unit_test(test_moe_layouts_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
