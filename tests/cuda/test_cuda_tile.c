/* test_cuda_tile.c - products of verify and prefill rows on the GPU: every row has the bits that it
 * has among four rows or fewer, in both precisions, with weights as they are stored and quantized
 * to FP8. With the kernels of the GPU at hand, then with those of GPUs without wgmma
 * (AERIE_GPU_AS), of the generations that have the least shared memory and more. Without a GPU
 * every test is skipped.
 *
 * Experts have theirs in test_cuda_moe.c.
 */
#include "kernels/fp8.h"
#include "kernels/kernels.h"

#if HAVE_CUDA
#include "tests/few.h"

#define kernels_cpu kernels_cuda
#include "tests/kernel_test.h"
#undef kernels_cpu

enum { MOST = 333, FEW = 4 };

static const int row_counts[] = {5, 8, 9, 16, 17, 32, 33, 60, 64, 65, 127, 128, 200, MOST};
enum { N_COUNTS = sizeof row_counts / sizeof *row_counts };

static bool cut; /* to FP8: matrices */

/* Uploads a tensor and frees the host's copy. */
static struct tensor *up(struct tensor *t)
{
    struct err e;
    void *host = t->data;
    t->quantize = cut && t->n_dim == 2;
    if (!kernels_cuda.upload(T.d, t, &e))
        die("%s", e.msg);
    kernels_cuda.sync(T.d, &e);
    free(host);
    return t;
}

/* run() computes rows first .. first + rows into out; all rows at once must equal some few. */
typedef void rows_fn(const void *arg, int first, int rows, float *out);

static void check_rows(rows_fn *run, const void *arg, int width, const char *what)
{
    size_t w = (size_t)width;
    float *all = rnd_floats(MOST * w, 1), *few = rnd_floats(FEW * w, 1);
    for (int i = 0; i < N_COUNTS; i += one_in(4)) {
        int n = row_counts[i];
        run(arg, 0, n, all);
        for (size_t j = 0; j < (size_t)n * w; j++)
            if (!isfinite(all[j]))
                fail_msg("%s: element %zu of %d rows is %g", what, j, n, (double)all[j]);
        const int firsts[] = {0, min_int(30, n - 1), min_int(62, n - FEW), n - FEW};
        for (int f = 0; f < 4; f++) {
            int rows = f == 1 ? 1 : FEW;
            run(arg, firsts[f], rows, few);
            same_bits(few, all + (size_t)firsts[f] * w, (size_t)rows * w, what);
        }
    }
    free(all), free(few);
}

/* ---- linear --------------------------------------------------------------------------------- */

struct lin {
    struct k_linear a;
    const float *x, *mul, *old;
};

static void run_linear(const void *arg, int first, int rows, float *out)
{
    const struct lin *l = arg;
    size_t in = (size_t)l->a.w->dim[1], n = (size_t)l->a.w->dim[0], f = (size_t)first,
           r = (size_t)rows;
    struct k_linear a = l->a;
    a.rows = rows;
    a.src = floats(l->x + f * in, r * in);
    a.dst = floats(l->old + f * n, r * n);
    if (l->mul)
        a.mul = floats(l->mul + f * n, r * n);
    T.k->linear(T.d, &a);
    take(out, a.dst, r * n);
    dev_release(&T);
}

static void check_linear(int out, int in, struct k_linear a, bool mul, const char *what)
{
    struct tensor w = TENSOR(DT_BF16, .05f, out, in), b = TENSOR(DT_BF16, 1, out),
                  norm = TENSOR(DT_BF16, 1, in), post = TENSOR(DT_BF16, 1, out);
    size_t n = (size_t)MOST * (size_t)out;
    float *x = rnd_floats((size_t)(MOST * in), 3), *m = rnd_floats(n, 1), *old = rnd_floats(n, 1);
    a.w = up(&w), up(&b), up(&norm), up(&post);
    if (a.b)
        a.b = &b;
    a.pre = (struct k_norm){NORM_RMS, &norm, 1e-5f};
    if (a.post.kind != NORM_NONE)
        a.post.w = &post;
    struct lin l = {a, x, mul ? m : NULL, old};
    check_rows(run_linear, &l, out, what);
    free(x), free(m), free(old);
}

/* Outputs and inputs that fill tiles, and that do not; splits of an even, an odd number of chunks,
 * of one, and empty ones; tiles of whole panels, and of 16 and 4, 14 and 8, 16 and 6 rows of each;
 * more large tiles than multiprocessors, whose blocks are persistent (200 rows of one term, 333 of
 * two; 132 multiprocessors). */
static void test_linear_shapes(void **state)
{
    (void)state;
    static const int shapes[][2] = {{256, 2560}, {2880, 4096}, {1000, 2304}, {130, 262},
                                    {16, 96}, {300, 33}, {640, 1152}, {70, 20}, {2560, 64},
                                    {17270, 160}, {5376, 96}};
    for (int i = 0; i < 11; i += one_in(2))
        check_linear(shapes[i][0], shapes[i][1], (struct k_linear){.scale = 1}, false, "linear");
}

static void test_what_follows_a_sum(void **state)
{
    (void)state;
    static const struct tensor some;
    struct k_linear biased = {.scale = 1, .b = &some, .add = true};
    check_linear(264, 512, biased, false, "bias, add");
    check_linear(263, 512, biased, false, "unaligned");
    check_linear(2560, 96, biased, false, "bias, add, parts of panels");
    check_linear(2880, 96, biased, false, "bias, add, other parts of panels");
    check_linear(264, 512, (struct k_linear){.scale = .5f, .b = &some, .act = ACT_GELU_TANH,
                                             .softcap = 3, .add = true}, true, "everything");
    check_linear(264, 512, (struct k_linear){.scale = 1, .post = {NORM_RMS, NULL, 1e-5f},
                                             .add = true}, false, "a norm behind");
}

/* ---- linear, and the linear behind its norm ------------------------------------------------- */

struct chain {
    struct k_linear first, second;
    const float *x, *old;
};

/* out: of each row the second product, then the row that the first one left. */
static void run_chain(const void *arg, int first, int rows, float *out)
{
    const struct chain *c = arg;
    size_t in = (size_t)c->first.w->dim[1], n = (size_t)c->first.w->dim[0], r = (size_t)rows,
           m = (size_t)c->second.w->dim[0], f = (size_t)first;
    struct k_linear a = c->first, b = c->second;
    float *second = xmalloc(r * m * sizeof *second), *left = xmalloc(r * n * sizeof *left);
    a.rows = b.rows = rows;
    a.src = floats(c->x + f * in, r * in);
    a.dst = b.src = floats(c->old + f * n, r * n);
    b.dst = blank(r * m);
    T.k->linear(T.d, &a);
    T.k->linear(T.d, &b);
    take(second, b.dst, r * m), take(left, a.dst, r * n);
    for (size_t i = 0; i < r; i++) {
        memcpy(out + i * (m + n), second + i * m, m * sizeof *out);
        memcpy(out + i * (m + n) + m, left + i * n, n * sizeof *out);
    }
    free(second), free(left);
    dev_release(&T);
}

/* The norm behind the first product is left to the second one, which has a norm of its own. */
static void test_norm_left_to_the_next_product(void **state)
{
    (void)state;
    static const int widths[] = {256, 2560, 3104};
    for (int i = 0; i < 3; i++) {
        int n = widths[i];
        struct tensor w = TENSOR(DT_BF16, .05f, n, 160), post = TENSOR(DT_BF16, 1, n),
                      pre = TENSOR(DT_BF16, 1, n), v = TENSOR(DT_BF16, .05f, 48, n);
        float *x = rnd_floats(MOST * 160, 1), *old = rnd_floats((size_t)(MOST * n), 1);
        struct chain c = {{.w = up(&w), .scale = 1, .add = i != 1,
                           .post = {NORM_RMS1P, up(&post), 1e-5f}},
                          {.w = up(&v), .scale = 1, .pre = {NORM_RMS1P, up(&pre), 1e-5f}}, x, old};
        check_rows(run_chain, &c, 48 + n, "linear behind a norm");
        free(x), free(old);
    }
}

/* ---- glu ------------------------------------------------------------------------------------ */

struct gated {
    struct k_glu a;
    const float *x;
};

static void run_glu(const void *arg, int first, int rows, float *out)
{
    const struct gated *g = arg;
    size_t in = (size_t)g->a.gate->dim[1], n = (size_t)g->a.gate->dim[0], r = (size_t)rows;
    struct k_glu a = g->a;
    a.rows = rows;
    a.src = floats(g->x + (size_t)first * in, r * in);
    a.dst = blank(r * n);
    T.k->glu(T.d, &a);
    take(out, a.dst, r * n);
    dev_release(&T);
}

static void test_glu(void **state)
{
    (void)state;
    static const int shapes[][2] = {{640, 2560}, {100, 1152}, {65, 200}, {2560, 96}, {2816, 96},
                                    {3072, 96}, {3168, 1536}, {8630, 160}};
    for (int i = 0; i < 8; i++) {
        int ffn = shapes[i][0], in = shapes[i][1];
        struct tensor g = TENSOR(DT_BF16, .05f, ffn, in), u = TENSOR(DT_BF16, .05f, ffn, in);
        float *x = rnd_floats((size_t)(MOST * in), 1);
        enum act_kind act = i == 1 ? ACT_SILU : ACT_GELU_TANH;
        struct gated a = {{.gate = up(&g), .up = up(&u), .act = act}, x};
        check_rows(run_glu, &a, ffn, "glu");
        free(x);
    }
}

/* ---- glu, and the linear behind it ---------------------------------------------------------- */

struct pair {
    struct k_glu g;
    struct k_linear l;
    const float *x;
};

static void run_pair(const void *arg, int first, int rows, float *out)
{
    const struct pair *p = arg;
    size_t in = (size_t)p->g.gate->dim[1], ffn = (size_t)p->g.gate->dim[0], r = (size_t)rows,
           n = (size_t)p->l.w->dim[0];
    struct k_glu g = p->g;
    struct k_linear l = p->l;
    g.rows = l.rows = rows;
    g.src = floats(p->x + (size_t)first * in, r * in);
    g.dst = l.src = blank(r * ffn);
    l.dst = blank(r * n);
    T.k->glu(T.d, &g);
    T.k->linear(T.d, &l);
    take(out, l.dst, r * n);
    dev_release(&T);
}

/* Rows that stay packed between the two, and (200) such as cannot. */
static void test_packed_between(void **state)
{
    (void)state;
    static const int ffns[] = {640, 1056, 200, 2816, 3072, 8640};
    for (int i = 0; i < 6; i++) {
        int ffn = ffns[i];
        struct tensor g = TENSOR(DT_BF16, .05f, ffn, 320), u = TENSOR(DT_BF16, .05f, ffn, 320),
                      w = TENSOR(DT_BF16, .05f, 72, ffn), post = TENSOR(DT_BF16, 1, 72);
        float *x = rnd_floats(MOST * 320, 1);
        enum act_kind act = i == 1 ? ACT_SILU : ACT_GELU_TANH;
        struct pair p = {{.gate = up(&g), .up = up(&u), .act = act, .packed = true},
                         {.w = up(&w), .scale = 1, .packed = true,
                          .post = {NORM_RMS, up(&post), 1e-5f}}, x};
        check_rows(run_pair, &p, 72, "glu and linear");
        free(x);
    }
}

/* ---- qkv ------------------------------------------------------------------------------------ */

enum { IN = 576, HEADS = 5, KV = 2, MOST_DIM = 256 };

struct heads {
    struct k_qkv a;
    enum kv_type type;
    const float *x, *cs;
};

static int width_of(const struct heads *h) { return (HEADS + 2 * KV) * h->a.head_dim; }

/* n numbers of a cell as floats. */
static void widen(float *to, const void *cells, size_t at, size_t n, enum kv_type type)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t u = type == KV_BF16 ? (uint32_t)((const uint16_t *)cells)[at + i] << 16
                                     : ((const uint32_t *)cells)[at + i];
        memcpy(to + i, &u, sizeof u);
    }
}

/* Projects rows; k and v: their cells, of rows * kv_cell_bytes(). */
static void project(const struct heads *h, int first, int rows, enum kv_type type, float *q,
                    void *k, void *v)
{
    size_t r = (size_t)rows, f = (size_t)first, dim = (size_t)h->a.head_dim, nq = HEADS * dim,
           turn = (size_t)h->a.rot, cells = r * kv_cell_bytes(type, KV, (int)dim);
    int32_t slot[MOST];
    for (int i = 0; i < rows; i++)
        slot[i] = i;
    struct k_table t = {.write = ints(slot, r)};
    struct k_qkv a = h->a;
    a.rows = rows, a.table = &t;
    a.src = floats(h->x + f * IN, r * IN);
    if (turn)
        a.cs = floats(h->cs + f * turn, r * turn);
    a.q = blank(r * nq);
    a.cells = (struct k_cells){dev_buf(&T, NULL, cells), dev_buf(&T, NULL, cells), type, rows, KV,
                               (int)dim};
    T.k->qkv(T.d, &a);
    take(q, a.q, r * nq);
    T.k->get(T.d, k, a.cells.k, cells);
    T.k->get(T.d, v, a.cells.v, cells);
    dev_release(&T);
}

/* out: of each row q, k, v */
static void run_qkv(const void *arg, int first, int rows, float *out)
{
    const struct heads *h = arg;
    size_t r = (size_t)rows, dim = (size_t)h->a.head_dim, nq = HEADS * dim, nkv = KV * dim;
    float *q = xmalloc(r * nq * sizeof *q), *k = xmalloc(r * nkv * sizeof *k),
          *v = xmalloc(r * nkv * sizeof *v);
    project(h, first, rows, h->type, q, k, v);
    for (size_t i = 0; i < r; i++) {
        float *to = out + i * (nq + 2 * nkv);
        memcpy(to, q + i * nq, nq * sizeof *q);
        widen(to + nq, k, i * nkv, nkv, h->type);
        widen(to + nq + nkv, v, i * nkv, nkv, h->type);
    }
    free(q), free(k), free(v);
}

/* FP8 cells are those that the CPU makes of the float32 cells; the padding of a slot is left as it
 * was. */
static void check_fp8_cells(const struct heads *h)
{
    static const int counts[] = {1, 2, 3, 4, 5, 8, 9, 17, 33, 64, 65, 200};
    const int dim = h->a.head_dim;
    const size_t nq = (size_t)(HEADS * dim), nkv = (size_t)(KV * dim),
                 wide = kv_cell_bytes(KV_FP8, KV, dim);
    float *q[2] = {xmalloc(MOST * nq * 4), xmalloc(MOST * nq * 4)},
          *cells[2] = {xmalloc(MOST * nkv * 4), xmalloc(MOST * nkv * 4)};
    uint8_t *got[2] = {xmalloc(MOST * wide), xmalloc(MOST * wide)}, *want = xmalloc(wide);
    int nan = 0, scales = 0;
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c += (size_t)one_in(3)) {
        const int rows = counts[c];
        project(h, 0, rows, KV_F32, q[0], cells[0], cells[1]);
        project(h, 0, rows, KV_FP8, q[1], got[0], got[1]);
        same_bits(q[1], q[0], (size_t)min_int(rows, 2) * nq, "queries beside FP8 cells");
        for (int i = 0; i < 2 * rows; i++) {
            const int side = i % 2, r = i / 2;
            memset(want, 0xFF, wide);
            for (int j = 0; j < KV; j++)
                fp8_cell_write(cells[side] + (size_t)r * nkv + (size_t)(j * dim), dim,
                               want + j * dim, want + KV * dim + j);
            nan += want[KV * dim] == FP8_CELL_NAN;
            scales |= 1 << want[KV * dim] % 31;
            for (size_t b = 0; b < wide; b++)
                if (got[side][(size_t)r * wide + b] != want[b])
                    fail_msg("heads of %d, row %d of %d, %s: byte %zu is %02x, not %02x", dim, r,
                             rows, side ? "value" : "key", b, got[side][(size_t)r * wide + b],
                             want[b]);
        }
    }
    assert_true(one_in(3) > 1 || (nan > 0 && __builtin_popcount((unsigned)scales) > 5));
    for (int i = 0; i < 2; i++)
        free(q[i]), free(cells[i]), free(got[i]);
    free(want);
}

/* Heads that one kernel or the other takes. Rows of all sizes, from those whose heads have the
 * least scale to those that are infinite. */
static void test_fp8_cells(void **state)
{
    (void)state;
    static const struct {
        int dim, rot;
        bool norms, v_from_k, whole;
    } cases[] = {{40, 40, false, false, false},   {64, 64, false, false, false},
                 {64, 32, true, false, false},    {128, 128, true, true, false},
                 {128, 0, false, false, false},   {256, 256, false, false, false},
                 {512, 0, false, false, false},   {64, 64, true, false, true},
                 {21, 6, false, true, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i += (size_t)one_in(2)) {
        int dim = cases[i].dim, nq = HEADS * dim, nkv = KV * dim;
        struct tensor wq = TENSOR(DT_BF16, .05f, nq, IN), wk = TENSOR(DT_BF16, .05f, nkv, IN),
                      wv = TENSOR(DT_BF16, .05f, nkv, IN),
                      head = TENSOR(DT_BF16, 1, cases[i].whole ? nq : dim);
        float *x = rnd_floats(MOST * IN, 1), *cs = rnd_floats(MOST * MOST_DIM, 1);
        for (int r = 1; r < MOST; r++)
            for (int k = 0; k < IN; k++)
                x[r * IN + k] = ldexpf(x[r * IN + k], (r * 37) % 270 - 140);
        for (int k = 0; k < IN; k++)
            x[2 * IN + k] = k % 7 ? 1 : INFINITY;
        struct heads h = {{.wq = up(&wq), .wk = up(&wk), .n_head = HEADS, .n_kv = KV,
                           .head_dim = dim, .rot = cases[i].rot, .v_from_k = cases[i].v_from_k,
                           .norm_whole = cases[i].whole, .norm = {.kind = NORM_NONE}},
                          KV_FP8, x, cs};
        up(&wv), up(&head);
        if (!cases[i].v_from_k)
            h.a.wv = &wv;
        if (cases[i].norms)
            h.a.q_norm = h.a.k_norm = (struct k_norm){NORM_RMS, &head, 1e-5f};
        if (cases[i].norms && cases[i].v_from_k)
            h.a.v_norm = (struct k_norm){NORM_PLAIN, NULL, 1e-5f};
        check_fp8_cells(&h);
        free(x), free(cs);
    }
}

/* Heads of a length that warps take, in its variants, and of one that they do not. */
static void test_qkv(void **state)
{
    (void)state;
    static const struct {
        int dim, rot;
        enum kv_type type;
        bool norms, v_from_k;
    } cases[] = {{40, 40, KV_F32, false, false}, {64, 64, KV_BF16, false, false},
                 {64, 32, KV_F32, true, false}, {128, 128, KV_BF16, true, true},
                 {128, 0, KV_F32, true, false}, {256, 256, KV_BF16, true, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int dim = cases[i].dim, nq = HEADS * dim, nkv = KV * dim;
        struct tensor wq = TENSOR(DT_BF16, .05f, nq, IN), wk = TENSOR(DT_BF16, .05f, nkv, IN),
                      wv = TENSOR(DT_BF16, .05f, nkv, IN), bq = TENSOR(DT_BF16, 1, nq),
                      bk = TENSOR(DT_BF16, 1, nkv), bv = TENSOR(DT_BF16, 1, nkv),
                      norm = TENSOR(DT_BF16, 1, IN), head = TENSOR(DT_BF16, 1, dim);
        float *x = rnd_floats(MOST * IN, 1), *cs = rnd_floats(MOST * MOST_DIM, 1);
        struct heads h = {{.wq = up(&wq), .wk = up(&wk), .bq = up(&bq), .bk = up(&bk),
                           .n_head = HEADS, .n_kv = KV, .head_dim = dim, .rot = cases[i].rot,
                           .v_from_k = cases[i].v_from_k, .norm = {NORM_RMS, up(&norm), 1e-5f}},
                          cases[i].type, x, cs};
        up(&wv), up(&bv), up(&head);
        if (!cases[i].v_from_k)
            h.a.wv = &wv, h.a.bv = &bv;
        if (cases[i].norms) {
            h.a.q_norm = (struct k_norm){NORM_RMS1P, &head, 1e-5f};
            h.a.k_norm = (struct k_norm){NORM_RMS, &head, 1e-5f};
            h.a.v_norm = (struct k_norm){NORM_PLAIN, NULL, 1e-5f};
        }
        check_rows(run_qkv, &h, width_of(&h), "qkv");
        free(x), free(cs);
    }
}

int main(int argc, char **argv)
{
    static const enum k_precision precisions[] = {K_BF16, K_F32};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear_shapes), cmocka_unit_test(test_what_follows_a_sum),
        cmocka_unit_test(test_norm_left_to_the_next_product),
        cmocka_unit_test(test_glu), cmocka_unit_test(test_packed_between),
        cmocka_unit_test(test_qkv), cmocka_unit_test(test_fp8_cells),
    };
    static const char *const classes[] = {"", "8.6", "8.0"};
    const char *as = getenv("AERIE_GPU_AS");
    const bool given = as && *as;
    int failed = 0;
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    for (int i = 0; i < (given ? 4 : 12); i++) {
        static const char *const names[] = {"K_BF16", "K_F32", "K_BF16, FP8", "K_F32, FP8"};
        struct err e;
        cut = i / 2 % 2;
        if (!given)
            setenv("AERIE_GPU_AS", classes[i / 4], 1);
        T = (struct case_dev){.k = &kernels_cuda};
        T.d = kernels_cuda.open(&(struct k_opts){.precision = precisions[i % 2]}, &e);
        if (!T.d) {
            printf("1..1\nok 1 - products of many rows # SKIP no CUDA device (%s)\n", e.msg);
            return 0;
        }
        printf("# %s as %s\n", names[i % 4], getenv("AERIE_GPU_AS"));
        failed += cmocka_run_group_tests_name(names[i % 4], tests, NULL, NULL);
        dev_close(&T);
    }
    return failed;
}

#else

#include <stdio.h>

int main(void)
{
    printf("1..1\nok 1 - products of many rows # SKIP built without CUDA\n");
    return 0;
}

#endif
