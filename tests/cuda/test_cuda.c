/* test_cuda.c - the CUDA backend. Without a GPU every test is skipped.
 *
 * The scenarios of the CPU kernels' tests (against double precision; rows alone and among others,
 * layouts, orders: the same bits) run on the GPU through tests/cuda/cuda_shim.h. Then full widths
 * against the CPU kernels, every golden folder, speculation against plain decoding, and errors.
 */
#include "kernels/kernels.h"

#if HAVE_CUDA
#include "tests/cuda/cuda_shim.h"

#define kernels_cpu kernels_shim
#define TOL TOL_OF_THE_CPU
#include "tests/kernel_test.h"
#undef TOL
/* Here an activation enters a product as two bf16, right to 2^-18, or as one, right to 2^-9. A few
 * times that is the error of an output against the rms of all, and the weights of a norm behind it
 * enlarge single ones up to eight times: 2^-18 * 3 * 8, 2^-9 * 3 * 8. */
static double TOL;
static enum k_precision precision; /* of the device at hand */
#define main main_of_kernels
#include "tests/unit/test_kernels.c"
#undef main
#define main main_of_attn
#include "tests/unit/test_kernels_attn.c"
#undef main
#define main main_of_sample
#include "tests/unit/test_kernels_sample.c"
#undef main
#undef kernels_cpu

#include "engine/cycle/cycle.h"
#include "engine/run/device.h"
#include "engine/tools/golden.h"
#include "models/chat/chat.h"

#include <unistd.h>

/* ---- full widths, against the CPU kernels --------------------------------------------------- */

static struct case_dev C; /* the CPU; T is the GPU, as the shim sees it */

static int open_gpu(void **state)
{
    (void)state;
    dev_open(&T, &kernels_shim, NULL, 1);
    return 0;
}

static kbuf on_cpu(const void *x, size_t bytes) { return dev_buf(&C, x, bytes); }

/* Activations keep 16 bits or more (kernels/cuda/dense/product.cuh): 2^-17 / sqrt 3 is 4.4e-6; or
 * eight: 2^-8 / sqrt 3, of a mantissa of 1. */
static double wide_tol(void) { return precision == K_F32 ? 8e-6 : 0x1p-8 / sqrt(3); }

static const int row_counts[] = {1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 64, 100};
enum { N_COUNTS = sizeof row_counts / sizeof *row_counts, MOST = 100 };

/* The last shape's product goes through a norm into a residual stream. */
static void test_linear_at_full_width(void **state)
{
    (void)state;
    static const int shapes[][2] = {{5120, 2880}, {2880, 4096}, {2560, 10240}, {1000, 262},
                                    {2560, 2048}};
    for (int s = 0; s < 5; s += one_in(4)) {
        int out = shapes[s][0], in = shapes[s][1];
        size_t n = (size_t)MOST * (size_t)out;
        struct tensor w = TENSOR(s == 3 ? DT_F16 : DT_BF16, .02f, out, in),
                      norm = TENSOR(DT_BF16, 1, in), post = TENSOR(DT_BF16, 1, out);
        float *x = rnd_floats((size_t)(MOST * in), 3), *want = rnd_floats(n, 1),
              *got = rnd_floats(n, 1), *old = rnd_floats(n, 1);
        struct k_linear a = {
            .rows = MOST, .src_stride = in, .pre = {NORM_RMS, &norm, 1e-5f}, .w = &w, .scale = 1};
        if (s == 4)
            a.post = (struct k_norm){NORM_RMS1P, &post, 1e-6f}, a.add = true;
        struct k_linear c = a;
        c.src = on_cpu(x, (size_t)(MOST * in) * 4), c.dst = on_cpu(old, n * 4);
        kernels_cpu.linear(C.d, &c);
        kernels_cpu.get(C.d, want, c.dst, n * 4);
        float *all = rnd_floats(n, 1);
        for (int i = N_COUNTS - 1; i >= 0; i -= one_in(3)) {
            size_t some = (size_t)row_counts[i] * (size_t)out;
            a.rows = row_counts[i];
            a.src = floats(x, (size_t)(MOST * in)), a.dst = floats(old, some);
            T.k->linear(T.d, &a);
            take(i == N_COUNTS - 1 ? all : got, a.dst, some);
            if (i < N_COUNTS - 1)
                same_bits(got, all, some, "rows among fewer");
            dev_release(&T);
        }
        double rel = relative_l2(all, want, n);
        print_message("# linear %d x %d: relative L2 to the CPU %.2g\n", out, in, rel);
        assert_true(rel < wide_tol());
        free(w.data), free(norm.data), free(post.data);
        free(x), free(want), free(got), free(old), free(all);
        dev_release(&C);
    }
}

/* A product through a norm into the residual stream, then a product of the stream's normalised
 * rows. The rows h of the first, the stream, the second's result. apart: the stream is read between
 * them, so that its update cannot wait for the second. */
static void update_and_multiply(const struct k_linear *first, const struct k_linear *second,
                                bool apart, int rows, const float *h, const float *stream,
                                float *updated, float *out)
{
    const size_t r = (size_t)rows, n = r * (size_t)second->w->dim[1],
                 m = r * (size_t)second->w->dim[0];
    struct k_linear a = *first, b = *second;
    a.rows = b.rows = rows;
    a.src = floats(h, r * (size_t)a.w->dim[1]), a.dst = b.src = floats(stream, n);
    b.dst = blank(m);
    T.k->linear(T.d, &a);
    if (apart)
        take(updated, a.dst, n);
    T.k->linear(T.d, &b);
    take(out, b.dst, m);
    take(updated, a.dst, n);
    dev_release(&T);
}

/* Whether an update waits or not, and whatever the number of rows: the same bits. Widths of small
 * models, of gemma-3-27b, the widest whose update can wait, and a wider one. */
static void test_updates_wait_at_full_width(void **state)
{
    (void)state;
    enum { IN = 512, OUT = 96 };
    static const int widths[] = {2560, 4096, 5376, 6144, 6176};
    for (int i = 0; i < 5; i++) {
        const int width = widths[i];
        const size_t n = (size_t)(MOST * width);
        struct tensor o = TENSOR(DT_BF16, .02f, width, IN), w = TENSOR(DT_BF16, .02f, OUT, width),
                      post = TENSOR(DT_BF16, 1, width), norm = TENSOR(DT_BF16, 1, width);
        struct k_linear first = {.w = &o, .scale = 1, .post = {NORM_RMS1P, &post, 1e-6f},
                                 .add = i != 3},
                        second = {.w = &w, .scale = 1, .pre = {NORM_RMS, &norm, 1e-5f}};
        float *h = rnd_floats(MOST * IN, 1), *stream = rnd_floats(n, 1), *want_x = rnd_floats(n, 1),
              *want = rnd_floats(MOST * OUT, 1), *x = rnd_floats(n, 1),
              *got = rnd_floats(MOST * OUT, 1);
        update_and_multiply(&first, &second, true, MOST, h, stream, want_x, want);
        for (int c = 0; c < N_COUNTS; c++)
            for (int apart = 0; apart < 2; apart++) {
                const size_t rows = (size_t)row_counts[c];
                update_and_multiply(&first, &second, apart, row_counts[c], h, stream, x, got);
                same_bits(x, want_x, rows * (size_t)width, "the stream");
                same_bits(got, want, rows * OUT, "the product behind an update");
            }
        free(o.data), free(w.data), free(post.data), free(norm.data), free(h), free(stream);
        free(want_x), free(want), free(x), free(got);
    }
}

/* q, then K and V of the rows' cells. The cell of row r is r. */
static void qkv_on(struct case_dev *b, const struct k_qkv *shape, const float *x, const float *cs,
                   int rows, float *out)
{
    int32_t write[MOST];
    for (int r = 0; r < rows; r++)
        write[r] = r;
    size_t n = (size_t)rows, nq = n * (size_t)(shape->n_head * shape->head_dim),
           nk = n * (size_t)(shape->n_kv * shape->head_dim);
    struct k_table t = {.write = dev_buf(b, write, n * 4)};
    struct k_qkv a = *shape;
    a.rows = rows, a.table = &t;
    a.src = dev_buf(b, x, n * (size_t)a.wq->dim[1] * 4);
    a.cs = dev_buf(b, cs, n * (size_t)a.rot * 4), a.q = dev_buf(b, NULL, nq * 4);
    a.cells = (struct k_cells){dev_buf(b, NULL, nk * 4), dev_buf(b, NULL, nk * 4), KV_F32, rows,
                               a.n_kv, a.head_dim};
    b->k->qkv(b->d, &a);
    b->k->get(b->d, out, a.q, nq * 4);
    b->k->get(b->d, out + nq, a.cells.k, nk * 4);
    b->k->get(b->d, out + nq + nk, a.cells.v, nk * 4);
    dev_release(b);
}

/* Those of gpt-oss, gemma 3, llama (48 outputs a multiprocessor) and a small gemma, whose few rows
 * of k and v share a tile and have norms both. */
static void test_qkv_at_full_width(void **state)
{
    (void)state;
    static const int shapes[][4] = {
        {64, 8, 64, 2880}, {8, 4, 256, 2560}, {32, 8, 128, 4096}, {4, 1, 256, 1152}};
    for (int s = 0; s < 4; s++) {
        int heads = shapes[s][0], kv = shapes[s][1], dim = shapes[s][2], in = shapes[s][3];
        size_t nq = (size_t)(heads * dim), nk = (size_t)(kv * dim), n = MOST * (nq + 2 * nk);
        struct tensor wq = TENSOR(DT_BF16, .02f, heads * dim, in),
                      wk = TENSOR(DT_BF16, .02f, kv * dim, in),
                      wv = TENSOR(DT_BF16, .02f, kv * dim, in), norm = TENSOR(DT_BF16, 1, in),
                      bq = TENSOR(DT_BF16, 1, heads * dim), bk = TENSOR(DT_BF16, 1, kv * dim),
                      hn = TENSOR(DT_BF16, 1, dim);
        struct k_qkv a = {.src_stride = in, .norm = {NORM_RMS, &norm, 1e-5f}, .wq = &wq, .wk = &wk,
                          .wv = &wv, .n_head = heads, .n_kv = kv, .head_dim = dim, .rot = dim};
        if (s == 0)
            a.bq = &bq, a.bk = &bk, a.bv = &bk;
        else if (s != 2)
            a.q_norm = a.k_norm = (struct k_norm){NORM_RMS1P, &hn, 1e-6f};
        if (s == 3)
            a.v_norm = (struct k_norm){NORM_PLAIN, NULL, 1e-6f};
        float *x = rnd_floats((size_t)(MOST * in), 3), *cs = rnd_floats((size_t)(MOST * dim), 1);
        float *want = rnd_floats(n, 1), *all = rnd_floats(n, 1), *got = rnd_floats(n, 1);
        qkv_on(&C, &a, x, cs, MOST, want);
        qkv_on(&T, &a, x, cs, MOST, all);
        for (int i = 0; i < N_COUNTS - 1; i += one_in(3)) {
            size_t r = (size_t)row_counts[i];
            qkv_on(&T, &a, x, cs, row_counts[i], got);
            same_bits(got, all, r * nq, "q of rows among fewer");
            same_bits(got + r * nq, all + MOST * nq, r * nk, "k of rows among fewer");
            same_bits(got + r * (nq + nk), all + MOST * (nq + nk), r * nk, "v of rows among fewer");
        }
        double rel = relative_l2(all, want, n);
        print_message("# qkv %d/%d x %d: relative L2 to the CPU %.2g\n", heads, kv, dim, rel);
        assert_true(rel < wide_tol());
        struct tensor *t[] = {&wq, &wk, &wv, &norm, &bq, &bk, &hn};
        for (int i = 0; i < 7; i++)
            free(t[i]->data);
        free(x), free(cs), free(want), free(all), free(got);
    }
}

static void test_glu_at_full_width(void **state)
{
    (void)state;
    enum { IN = 2560, FFN = 5120 };
    size_t n = (size_t)MOST * FFN;
    struct tensor g = TENSOR(DT_BF16, .02f, FFN, IN), u = TENSOR(DT_BF16, .02f, FFN, IN);
    float *x = rnd_floats(MOST * IN, 1), *want = rnd_floats(n, 1), *got = rnd_floats(n, 1);
    float *all = rnd_floats(n, 1);
    struct k_glu a = {.rows = MOST, .gate = &g, .up = &u, .act = ACT_GELU_TANH}, c = a;
    c.src = on_cpu(x, MOST * IN * 4), c.dst = on_cpu(NULL, n * 4);
    kernels_cpu.glu(C.d, &c);
    kernels_cpu.get(C.d, want, c.dst, n * 4);
    for (int i = N_COUNTS - 1; i >= 0; i -= one_in(3)) {
        size_t some = (size_t)row_counts[i] * FFN;
        a.rows = row_counts[i], a.src = floats(x, MOST * IN), a.dst = blank(some);
        T.k->glu(T.d, &a);
        take(i == N_COUNTS - 1 ? all : got, a.dst, some);
        if (i < N_COUNTS - 1)
            same_bits(got, all, some, "rows among fewer");
        dev_release(&T);
    }
    double rel = relative_l2(all, want, n);
    print_message("# glu: relative L2 to the CPU %.2g\n", rel);
    assert_true(rel < 2 * wide_tol());
    free(g.data), free(u.data), free(x), free(want), free(got), free(all);
    dev_release(&C);
}

static void fill_scales(struct tensor *s)
{
    for (size_t j = 0; j < s->bytes; j++)
        ((uint8_t *)s->data)[j] = (uint8_t)(118 + rnd_int(5));
}

static void test_experts_at_full_width(void **state)
{
    (void)state;
    enum { IN = 2880, FFN = 1440, E = 12, K = 4, ROWS = 64 };
    size_t n = (size_t)ROWS * IN;
    struct tensor gu = TENSOR(DT_U8, 1, E, 2 * FFN, IN / 32, 16),
                  gs = TENSOR(DT_U8, 1, E, 2 * FFN, IN / 32);
    struct tensor dn = TENSOR(DT_U8, 1, E, IN, FFN / 32, 16),
                  ds = TENSOR(DT_U8, 1, E, IN, FFN / 32);
    struct tensor gb = TENSOR(DT_BF16, .1f, E, 2 * FFN), db = TENSOR(DT_BF16, .1f, E, IN);
    struct tensor router = TENSOR(DT_BF16, .02f, E, IN), rb = TENSOR(DT_BF16, .1f, E);
    struct tensor norm = TENSOR(DT_BF16, 1, IN);
    router.by_row = gb.by_row = db.by_row = true;
    fill_scales(&gs), fill_scales(&ds);
    float *x = rnd_floats(n, 1), *want = rnd_floats(n, 1), *got = rnd_floats(n, 1),
          *all = rnd_floats(n, 1);
    struct k_moe a = {.rows = ROWS, .in = IN, .ffn = FFN, .n_expert = E, .top_k = K,
                      .pre = {NORM_RMS, &norm, 1e-5f}, .router_scale = 1, .router = &router,
                      .router_b = &rb, .layout = EXPERT_MXFP4, .gate_up = &gu, .gate_up_s = &gs,
                      .gate_up_b = &gb, .down = &dn, .down_s = &ds, .down_b = &db,
                      .act = ACT_SWIGLU_CLAMP, .limit = 7}, c = a;
    c.src = on_cpu(x, n * 4), c.dst = on_cpu(NULL, n * 4);
    kernels_cpu.moe(C.d, &c);
    kernels_cpu.get(C.d, want, c.dst, n * 4);
    static const int counts[] = {64, 1, 3, 4, 5, 8, 9, 33};
    for (int i = 0; i < 8; i++) {
        size_t some = (size_t)counts[i] * IN;
        a.rows = counts[i], a.src = floats(x, n), a.dst = blank(some);
        T.k->moe(T.d, &a);
        take(i ? got : all, a.dst, some);
        if (i)
            same_bits(got, all, some, "rows among fewer");
        dev_release(&T);
    }
    double rel = relative_l2(all, want, n);
    print_message("# experts: relative L2 to the CPU %.2g\n", rel);
    assert_true(rel < wide_tol());
    struct tensor *t[] = {&gu, &gs, &dn, &ds, &gb, &db, &router, &rb, &norm};
    for (int i = 0; i < 9; i++)
        free(t[i]->data);
    free(x), free(want), free(got), free(all);
    dev_release(&C);
}

/* 4100 keys in shuffled pages, a tree's rows behind them, against the CPU kernels; heads of 512 */
static void attention_on(struct case_dev *b, const struct k_attn *shape, const int32_t *pages,
                         const float *q, const uint16_t *kv, int rows, float *out)
{
    enum { PAGE = 16, COLS = 257, LO = 0, HI = 4100, TREE = 8 };
    const struct k_cells *c = &shape->cells;
    size_t cell = (size_t)(c->n_kv * c->head_dim) * 2, row = (size_t)(shape->n_head * c->head_dim);
    int32_t req[64] = {0}, lo[64], hi[64], expand[64 * TREE] = {0}, extra[64];
    for (int r = 0; r < rows; r++) {
        lo[r] = r % 3 == 2 ? HI - 100 : LO, hi[r] = HI, extra[r] = 1 + r % TREE;
        for (int i = 0; i < extra[r]; i++)
            expand[r * TREE + i] = (COLS + 1) * PAGE + i * 7 % 16;
    }
    size_t n = (size_t)rows;
    struct k_table t = {.page_size = PAGE,
                        .n_cols = COLS,
                        .expand_w = TREE,
                        .req = dev_buf(b, req, n * 4),
                        .pages = dev_buf(b, pages, COLS * 4),
                        .lo = dev_buf(b, lo, n * 4),
                        .hi = dev_buf(b, hi, n * 4),
                        .expand = dev_buf(b, expand, n * TREE * 4),
                        .n_expand = dev_buf(b, extra, n * 4)};
    struct k_attn a = *shape;
    a.rows = rows, a.table = &t;
    a.q = dev_buf(b, q, n * row * 4), a.dst = dev_buf(b, NULL, n * row * 4);
    a.cells.k = dev_buf(b, kv, (size_t)c->n_slots * cell);
    a.cells.v = dev_buf(b, kv + (size_t)c->n_slots * cell / 2, (size_t)c->n_slots * cell);
    b->k->attn(b->d, &a);
    b->k->get(b->d, out, a.dst, n * row * 4);
    dev_release(b);
}

static void test_attention_at_full_width(void **state)
{
    (void)state;
    static const int shapes[][3] = {{64, 8, 64}, {8, 4, 256}, {4, 1, 512}};
    enum { SLOTS = 259 * 16, COLS = 257 };
    int32_t pages[COLS];
    for (int i = 0; i < COLS; i++)
        pages[i] = 1 + i * 100 % COLS;
    for (int s = 0; s < 3; s++) {
        int heads = shapes[s][0], kv_heads = shapes[s][1], dim = shapes[s][2];
        size_t row = (size_t)(heads * dim), n = 64 * row, cells = (size_t)(SLOTS * kv_heads * dim);
        struct k_attn a = {
            .n_head = heads,
            .scale = 1 / sqrtf((float)dim),
            .cells = {.type = KV_BF16, .n_slots = SLOTS, .n_kv = kv_heads, .head_dim = dim}};
        float *q = rnd_floats(n, 2), *want = rnd_floats(n, 1), *all = rnd_floats(n, 1),
              *got = rnd_floats(n, 1);
        uint16_t *kv = xmalloc(cells * 4);
        for (size_t i = 0; i < cells * 2; i++)
            kv[i] = f32_to_bf16(rnd_normal());
        attention_on(&C, &a, pages, q, kv, 64, want);
        attention_on(&T, &a, pages, q, kv, 64, all);
        attention_on(&T, &a, pages, q, kv, 3, got);
        same_bits(got, all, 3 * row, "rows among fewer");
        double rel = relative_l2(all, want, n);
        print_message("# attention %d/%d x %d: relative L2 to the CPU %.2g\n", heads, kv_heads, dim,
                      rel);
        /* scores spread by 2: rounded queries and weights, as test_cuda_attn.c has it */
        assert_true(rel < (precision == K_F32 ? 3e-6 : 2 * 0x1p-9 * sqrt((1 + 2 * 2) / 3.0)));
        free(q), free(want), free(all), free(got), free(kv);
    }
}

/* ---- the engine ----------------------------------------------------------------------------- */

struct pair {
    const char *target, *draft;
};

static void test_equals_its_reference(void **state)
{
    const struct pair *p = *state;
    static const char *const precisions[] = {"f32", "bf16", "bf16", "f32"};
    static const char *const cells[] = {NULL, NULL, "fp8", "fp8"};
    for (int i = 0; i < 4; i++) {
        struct buf report = {0};
        struct err e = {0};
        struct golden_opts o = {.engine = {.model = p->target, .draft = p->draft, .device = "cuda",
                                           .precision = precisions[i], .kv = cells[i]}};
        if (!golden_run(&o, &report, &e))
            fail_msg("%s%s: %s\n%s", precisions[i], cells[i] ? ", fp8 cells" : "", e.msg,
                     report.p ? report.p : "");
        if (strstr(report.p, "bits differ"))
            fail_msg("%s", report.p);
        buf_free(&report);
    }
}

#define G "tests/golden/"
static struct pair pairs[] = {
    {G "gemma2-b", NULL}, {G "gemma2-c", NULL}, {G "gemma3-a", NULL}, {G "gemma3-b", NULL},
    {G "gemma3-mm-b", NULL}, {G "gemma4-ple-b", NULL}, {G "olmo3-b", NULL}, {G "qwen3-b", NULL},
    {G "llama-b", NULL}, {G "mistral-b", NULL}, {G "gptoss-plain-b", NULL},
    {G "gptoss-mxfp4-b", NULL}, {G "gptoss-a", G "eagle3-gptoss-a"},
    {G "qwen3-b", G "dspark-b"}, {G "gemma3-b", G "dspark-gated-b"},
    {G "qwen3-b", G "dflash2-b"}, {G "gemma3-b", G "dflash2-swa-b"},
    {G "gemma4-a", G "gemma4-a-assistant"}, {G "gemma4-moe-b", NULL},
};
enum { N_PAIRS = sizeof pairs / sizeof *pairs };

struct bed {
    struct device dev;
    struct model m;
    struct draft d;
    struct tokenizer *tok;
    struct chat *chat;
    struct runtime r;
};

static void must(bool ok, const struct err *e)
{
    if (!ok)
        fail_msg("%s", e->msg);
}

static void bed_open(struct bed *b, int page_size)
{
    struct err e = {0};
    *b = (struct bed){0};
    must(device_open(&b->dev, "cuda", 0, "f32", &e), &e);
    must(model_load(&b->m, "models/nestling/target", NULL, &e), &e);
    must(draft_load(&b->d, "models/nestling/draft", &b->m, NULL, NULL, &e), &e);
    must((b->tok = tok_open("models/nestling/target", &e)) != NULL, &e);
    must((b->chat = chat_open(&b->m, b->tok, false, NULL, &e)) != NULL, &e);
    must(runtime_open(&b->r, b->dev, &b->m, &b->d,
                      &(struct runtime_shape){.page_size = page_size, .context = 2048}, &e), &e);
    b->r.n_stop = chat_stops(b->chat, b->r.stop);
}

static void bed_close(struct bed *b)
{
    runtime_close(&b->r);
    chat_close(b->chat);
    tok_close(b->tok);
    draft_free(&b->d);
    model_free(&b->m);
    device_close(&b->dev);
}

/* Generates at most 80 tokens of a reply to `text`, with or (s NULL) without a tree. */
static void reply(struct bed *b, const char *text, const struct tree_shape *s, int chunk,
                  struct ids *out)
{
    struct err e = {0};
    struct message m = {.role = ROLE_USER, .text = (char *)(uintptr_t)text};
    struct lane l = {.tap_row = -1};
    must(chat_render(b->chat, &m, 1, &l.tok, &e), &e);
    int first = l.tok.n;
    while (l.seq.committed < first) {
        int upto = min_int(l.seq.committed + chunk, first);
        must(lane_extend(&b->r, &l, upto, upto == first, s != NULL, s ? s->topk : 1, &e), &e);
    }
    while (!l.stopped && l.tok.n < first + 80) {
        struct step_limits lim = {first + 80 - l.tok.n};
        struct lane *one = &l;
        must(lane_step(&b->r, &one, &lim, 1, s, &e), &e);
    }
    out->n = 0;
    ids_cat(out, l.tok.v + first, l.tok.n - first);
    lane_free(&b->r, &l);
}

static void test_speculation_is_plain_decoding(void **state)
{
    (void)state;
    static const char *const texts[] = {"Hello!", "Who are you?", "Tell me a story about a fox.",
                                        "What is a page table?",
                                        "My name is Ada. What is my name?"};
    static const struct tree_shape shapes[] = {{3, 1, 4}, {5, 4, 16}, {6, 8, 60}};
    static const int page_sizes[] = {1, 16, 64};
    struct ids plain[5] = {{0}}, got = {0};
    int tokens = 0;
    for (int p = 0; p < 3; p += one_in(3)) {
        struct bed b;
        bed_open(&b, page_sizes[p]);
        for (int i = 0; i < 5; i += one_in(5))
            for (int s = -1; s < 3; s += one_in(3)) {
                reply(&b, texts[i], s < 0 ? NULL : &shapes[s], p == 1 ? 7 : 256, &got);
                assert_true(got.n > 0);
                if (p == 0 && s < 0) {
                    ids_cat(&plain[i], got.v, got.n);
                    tokens += got.n;
                }
                assert_int_equal(got.n, plain[i].n);
                assert_memory_equal(got.v, plain[i].v, (size_t)got.n * sizeof *got.v);
            }
        bed_close(&b);
    }
    print_message("# %d tokens in 5 replies, 12 ways each\n", tokens);
    for (int i = 0; i < 5; i++)
        ids_free(&plain[i]);
    ids_free(&got);
}

/* A weight that is infinite makes the same of its output whatever the number of rows, which decides
 * the
 * kernel: some multiply it with zeros, too. The second shape has k splits of different lengths. */
static void test_infinite_weights_are_the_same_among_any_rows(void **state)
{
    (void)state;
    static const int shapes[][2] = {{96, 2880}, {40, 262}};
    for (int s = 0; s < 2; s++) {
        const int out = shapes[s][0], in = shapes[s][1];
        struct tensor w = TENSOR(DT_BF16, .02f, out, in);
        for (int o = 0; o < out; o += 3)
            ((uint16_t *)w.data)[o * in + o * 61 % in] = o % 2 ? 0x7f80 : 0xff80;
        float *x = rnd_floats((size_t)(MOST * in), 3), *want = rnd_floats((size_t)out, 1),
              *got = rnd_floats((size_t)(MOST * out), 1);
        for (int i = 0; i < N_COUNTS; i++) {
            const int rows = row_counts[i];
            struct k_linear a = {.rows = rows, .w = &w, .scale = 1,
                                 .src = floats(x, (size_t)(rows * in)),
                                 .dst = blank((size_t)(rows * out))};
            T.k->linear(T.d, &a);
            take(got, a.dst, (size_t)(rows * out));
            if (i == 0)
                memcpy(want, got, (size_t)out * sizeof *want);
            same_bits(got, want, (size_t)out, "infinite weights");
            assert_true(isnan(got[0]) && isfinite(got[1]));
            dev_release(&T);
        }
        free(w.data), free(x), free(want), free(got);
    }
}

/* ---- errors --------------------------------------------------------------------------------- */

static void test_out_of_memory_says_how_much(void **state)
{
    (void)state;
    struct err e = {0};
    kbuf b = kernels_cuda.alloc(shim_dev, (size_t)1 << 46, "KV cells", &e);
    assert_null(b.p);
    assert_non_null(strstr(e.msg, "KV cells needs 67108864 MiB"));
    assert_true(kernels_cuda.sync(shim_dev, &e)); /* and the device goes on */
    assert_null(kernels_cuda.open(&(struct k_opts){.device = 99}, &e));
    assert_int_equal(e.kind, ERR_USAGE);
}

static int run_group(const char *name, const struct CMUnitTest *tests, size_t n)
{
    struct CMUnitTest list[64];
    memcpy(list, tests, n * sizeof *tests);
    return _cmocka_run_group_tests(name, list, n, NULL, NULL);
}

#define SHARED(f) cmocka_unit_test(f)
#define WIDE(f) cmocka_unit_test_setup(f, open_gpu)

static const struct CMUnitTest kernel_tests[] = {
    SHARED(test_embed_scales_table_rows),
    SHARED(test_rope_turns_by_position_times_frequency),
    SHARED(test_normalize_every_kind_and_length),
    SHARED(test_rows_and_scale_touch_exactly_their_rows),
    SHARED(test_conv_stays_within_runs_of_rows),
    SHARED(test_gather_is_its_parts),
    SHARED(test_linear_every_option_and_ragged_shape),
    SHARED(test_linear_rows_do_not_depend_on_their_neighbours),
    SHARED(test_glu_multiplies_activated_gate_and_up),
    SHARED(test_qkv_every_family_shape),
    SHARED(test_attention_every_shape_and_layout),
    SHARED(test_attention_over_many_splits),
    SHARED(test_merge_weighs_by_lse_and_takes_empty_parts),
    SHARED(test_move_reads_every_source_first),
    SHARED(test_moves_of_many_layers),
    SHARED(test_moe_every_layout),
    SHARED(test_moe_layouts_agree),
    SHARED(test_topk_is_a_sorted_head),
    SHARED(test_rerank_orders_by_score),
    SHARED(test_logp_is_log_softmax),
    SHARED(test_adjust_changes_and_bans_single_logits),
    SHARED(test_read_is_all_of_them),
    SHARED(test_sample_inverts_the_filtered_distribution),
    SHARED(test_sample_frequencies),
    SHARED(test_sample_at_the_edges),
    SHARED(test_sample_rows_are_independent),
    WIDE(test_infinite_weights_are_the_same_among_any_rows),
    WIDE(test_linear_at_full_width), WIDE(test_updates_wait_at_full_width),
    WIDE(test_qkv_at_full_width),
    WIDE(test_glu_at_full_width),
    WIDE(test_experts_at_full_width),
    WIDE(test_attention_at_full_width),
    SHARED(test_out_of_memory_says_how_much),
};
enum { N_KERNEL = sizeof kernel_tests / sizeof *kernel_tests };

/* For tools that slow kernels down a hundredfold: each operation, few cases. */
static const struct CMUnitTest short_tests[] = {
    SHARED(test_embed_scales_table_rows),
    SHARED(test_rope_turns_by_position_times_frequency),
    SHARED(test_rows_and_scale_touch_exactly_their_rows),
    SHARED(test_conv_stays_within_runs_of_rows),
    SHARED(test_gather_is_its_parts),
    SHARED(test_glu_multiplies_activated_gate_and_up),
    SHARED(test_qkv_every_family_shape),
    SHARED(test_attention_every_shape_and_layout),
    SHARED(test_merge_weighs_by_lse_and_takes_empty_parts),
    SHARED(test_move_reads_every_source_first),
    SHARED(test_moves_of_many_layers),
    SHARED(test_moe_every_layout),
    SHARED(test_topk_is_a_sorted_head),
    SHARED(test_rerank_orders_by_score),
    SHARED(test_logp_is_log_softmax),
    SHARED(test_adjust_changes_and_bans_single_logits),
    SHARED(test_read_is_all_of_them),
    SHARED(test_sample_at_the_edges),
};
enum { N_SHORT = sizeof short_tests / sizeof *short_tests };

/* The tests of what only the CPU has are compiled with the shared ones, and not run. */
static int (*const others[])(void) = {main_of_kernels, main_of_attn, main_of_sample};

static bool open_at(enum k_precision p, struct err *e)
{
    precision = p;
    TOL = p == K_F32 ? 1e-4 : 0x1p-9 * 3 * 8;
    shim_dev = kernels_cuda.open(&(struct k_opts){.precision = p}, e);
    return shim_dev != NULL;
}

int main(int argc, char **argv)
{
    struct err e = {0};
    const char *only = argc > 1 ? argv[1] : "all"; /* kernels, engine, short */
    if (argc > 2)
        cmocka_set_test_filter(argv[2]);
    CHECK(others[0] && others[1] && others[2]);
    if (!open_at(K_F32, &e)) {
        printf("1..1\nok 1 - the CUDA backend # SKIP no CUDA device (%s)\n", e.msg);
        return 0;
    }
    dev_open(&C, &kernels_cpu, NULL, 0);
    printf("# %s\n", kernels_cuda.about(shim_dev));
    int failed = 0;
    bool all = !strcmp(only, "all");
    if (!strcmp(only, "short"))
        failed += run_group("short", short_tests, N_SHORT);
    if (all || !strcmp(only, "kernels")) {
        failed += run_group("kernels", kernel_tests, N_KERNEL);
        kernels_cuda.close(shim_dev);
        if (!open_at(K_BF16, &e))
            die("%s", e.msg);
        failed += run_group("kernels, bf16", kernel_tests, N_KERNEL);
    }
    if (all || !strcmp(only, "engine")) {
        struct CMUnitTest list[N_PAIRS + 1];
        size_t n = 0;
        for (int i = 0; i < N_PAIRS; i += one_in(12))
            list[n++] = (struct CMUnitTest){pairs[i].target, test_equals_its_reference, NULL, NULL,
                                            &pairs[i]};
        list[n++] = (struct CMUnitTest)cmocka_unit_test(test_speculation_is_plain_decoding);
        failed += run_group("engine", list, n);
    }
    dev_close(&C);
    kernels_cuda.close(shim_dev);
    return failed != 0;
}

#else
#include <stdio.h>

int main(void)
{
    printf("1..1\nok 1 - the CUDA backend # SKIP built without CUDA\n");
    return 0;
}
#endif
