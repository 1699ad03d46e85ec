/* test_cuda_stress.c - the same passes again and again: every time the same bits. A pass has four
 * layers, of heads of 256 and a gated product or of heads of 64 and experts in MXFP4, and is
 * recorded as a graph, so that a kernel starts while its predecessor drains; rows of a decode step,
 * of a tree, of a prompt. Two inputs take turns: what a kernel reads too early is left from the
 * other input. The reference is a pass that waits after each operation. On the CPU, and on a GPU
 * where there is one.
 *   test_cuda_stress [PASSES [TESTS]] on the GPU alone; so many passes of each number of rows, four
 *                                         times as many of a prompt's (with AERIE_FEW as many)
 * A build with STRESS=1 delays warps at random; its digests are those of an ordinary build
 * (tests/bench/gpu.sh stress).
 */
#include "kernels/kernels.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

#include "kernels/fp8.h"
#include "tests/few.h"
#include "tests/kernel_cases.h"

/* KEYS: cells before those of the rows; PATH: nodes of a path of a tree. */
enum { LAYERS = 4, HIDDEN = 512, KEYS = 300, PAGE = 16, MOST = 128, PATH = 8, MAX_WEIGHTS = 16 };

static const int windows[LAYERS] = {128, 128, 0, 128};

/* The numbers of rows that each of the kernels takes, and how often. */
static const struct {
    int n, times;
    bool tree;
} row_counts[] = {{1, 1, false}, {4, 1, false}, {16, 1, false}, {17, 1, true},
                  {60, 1, true}, {65, 4, false}, {MOST, 4, false}};
enum { N_COUNTS = sizeof row_counts / sizeof *row_counts, FEW_COUNTS = 2 /* on the CPU */ };

static struct case_dev T; /* the device at hand */
static int passes;
static uint64_t digest; /* of all references on the device at hand */

/* ---- a layer, which is run LAYERS times ------------------------------------------------------ */

static const struct kind {
    const char *name;
    int n_head, n_kv, dim, ffn, experts, top_k; /* experts 0: a gated product */
    enum k_precision precision;
    enum kv_type type;
    bool quantize;
} kinds[] = {
    {"heads of 256, bf16", 4, 2, 256, 1024, 0, 0, K_BF16, KV_BF16, false},
    {"heads of 256, FP8", 4, 2, 256, 1024, 0, 0, K_BF16, KV_FP8, true},
    {"heads of 256, f32", 4, 2, 256, 1024, 0, 0, K_F32, KV_F32, false},
    {"experts, bf16", 16, 4, 64, 256, 16, 4, K_BF16, KV_BF16, false},
    {"experts, FP8", 16, 4, 64, 256, 16, 4, K_BF16, KV_FP8, true},
    {"experts, f32", 16, 4, 64, 256, 16, 4, K_F32, KV_F32, false},
};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

struct net {
    const struct kind *k;
    struct tensor weight[MAX_WEIGHTS];
    void *host[MAX_WEIGHTS];
    int n_weights;
    struct k_norm norm, post, head;
    const struct tensor *wq, *wk, *wv, *wo, *gate, *up, *down;
    struct k_moe moe;
    struct k_cells cells[LAYERS];
    kbuf in[2], out[2], x, q, a, h, cs;
};

static const struct tensor *weights(struct net *w, struct tensor t, bool by_row)
{
    struct err e;
    CHECK(w->n_weights < MAX_WEIGHTS);
    struct tensor *to = &w->weight[w->n_weights];
    *to = t;
    to->by_row = by_row;
    to->quantize = w->k->quantize && t.type == DT_BF16 && t.n_dim == 2 && !by_row;
    w->host[w->n_weights++] = t.data;
    if (!T.k->upload(T.d, to, &e))
        die("%s", e.msg);
    return to;
}

/* Scales of MXFP4: exponents from -9 on. */
static struct tensor scales(struct tensor t)
{
    for (size_t i = 0; i < t.bytes; i++)
        ((uint8_t *)t.data)[i] = (uint8_t)(118 + rnd_int(5));
    return t;
}

static void make_experts(struct net *w)
{
    const int E = w->k->experts, ffn = w->k->ffn, in = HIDDEN;
    w->moe = (struct k_moe){
        .in = in, .ffn = ffn, .n_expert = E, .top_k = w->k->top_k, .pre = w->norm,
        .router_scale = 1, .layout = EXPERT_MXFP4, .act = ACT_SWIGLU_CLAMP, .limit = 7, .add = true,
        .router = weights(w, TENSOR(DT_BF16, .02f, E, in), true),
        .router_b = weights(w, TENSOR(DT_BF16, .1f, E), false),
        .gate_up = weights(w, TENSOR(DT_U8, 1, E, 2 * ffn, in / 32, 16), false),
        .gate_up_s = weights(w, scales(TENSOR(DT_U8, 1, E, 2 * ffn, in / 32)), false),
        .gate_up_b = weights(w, TENSOR(DT_BF16, .1f, E, 2 * ffn), true),
        .down = weights(w, TENSOR(DT_U8, 1, E, in, ffn / 32, 16), false),
        .down_s = weights(w, scales(TENSOR(DT_U8, 1, E, in, ffn / 32)), false),
        .down_b = weights(w, TENSOR(DT_BF16, .1f, E, in), true),
    };
}

static kbuf random_buf(size_t n)
{
    float *x = rnd_floats(n, 1);
    kbuf b = dev_buf(&T, x, n * sizeof *x);
    free(x);
    return b;
}

/* Cells of random numbers. */
static kbuf random_cells(const struct kind *k, int n_slots)
{
    const size_t cell = kv_cell_bytes(k->type, k->n_kv, k->dim), n = (size_t)(k->n_kv * k->dim);
    uint8_t *all = xcalloc((size_t)n_slots, cell);
    for (int s = 0; s < n_slots; s++) {
        uint8_t *at = all + (size_t)s * cell;
        float *f = rnd_floats(n, 1);
        for (size_t i = 0; i < n && k->type == KV_BF16; i++)
            ((uint16_t *)(void *)at)[i] = f32_to_bf16(f[i]);
        for (int h = 0; h < k->n_kv && k->type == KV_FP8; h++)
            fp8_cell_write(f + h * k->dim, k->dim, at + h * k->dim, at + n + h);
        if (k->type == KV_F32)
            memcpy(at, f, n * sizeof *f);
        free(f);
    }
    kbuf b = dev_buf(&T, all, (size_t)n_slots * cell);
    free(all);
    return b;
}

static void make_net(struct net *w, const struct kind *k, int n_slots)
{
    *w = (struct net){.k = k};
    const int nq = k->n_head * k->dim, nkv = k->n_kv * k->dim;
    const size_t rows = MOST;
    w->norm = (struct k_norm){NORM_RMS, weights(w, TENSOR(DT_BF16, 1, HIDDEN), false), 1e-5f};
    w->post = (struct k_norm){NORM_RMS1P, weights(w, TENSOR(DT_BF16, .1f, HIDDEN), false), 1e-6f};
    w->head = (struct k_norm){NORM_RMS1P, weights(w, TENSOR(DT_BF16, .1f, k->dim), false), 1e-6f};
    w->wq = weights(w, TENSOR(DT_BF16, .04f, nq, HIDDEN), false);
    w->wk = weights(w, TENSOR(DT_BF16, .04f, nkv, HIDDEN), false);
    w->wv = weights(w, TENSOR(DT_BF16, .04f, nkv, HIDDEN), false);
    w->wo = weights(w, TENSOR(DT_BF16, .03f, HIDDEN, nq), false);
    if (k->experts) {
        make_experts(w);
    } else {
        w->gate = weights(w, TENSOR(DT_BF16, .04f, k->ffn, HIDDEN), false);
        w->up = weights(w, TENSOR(DT_BF16, .04f, k->ffn, HIDDEN), false);
        w->down = weights(w, TENSOR(DT_BF16, .03f, HIDDEN, k->ffn), false);
        w->h = dev_buf(&T, NULL, rows * (size_t)k->ffn * 4);
    }
    for (int i = 0; i < LAYERS; i++)
        w->cells[i] = (struct k_cells){random_cells(k, n_slots), random_cells(k, n_slots), k->type,
                                       n_slots, k->n_kv, k->dim};
    for (int i = 0; i < 2; i++) {
        w->in[i] = random_buf(rows * HIDDEN);
        w->out[i] = dev_buf(&T, NULL, rows * HIDDEN * 4);
    }
    w->cs = random_buf(rows * (size_t)k->dim);
    w->x = dev_buf(&T, NULL, rows * HIDDEN * 4);
    w->q = dev_buf(&T, NULL, rows * (size_t)nq * 4);
    w->a = dev_buf(&T, NULL, rows * (size_t)nq * 4);
}

static void free_net(struct net *w)
{
    for (int i = 0; i < w->n_weights; i++)
        free(w->host[i]);
}

/* ---- what the rows see ----------------------------------------------------------------------- */

enum { COLS = (KEYS + MOST + PAGE - 1) / PAGE, N_SLOTS = (COLS + 1) * PAGE };

/* Row r writes the cell of position KEYS + r. In a tree, paths of PATH rows hang on the keys
 * before, and a row sees its path through expand; other rows follow each other. One table for
 * layers with a window, one for those without. */
static void make_tables(struct k_table t[2], int rows, bool tree)
{
    int32_t pages[COLS], req[MOST] = {0}, lo[MOST], hi[MOST], extra[MOST], write[MOST];
    int32_t *expand = xcalloc(MOST * PATH, sizeof *expand);
    const size_t n = (size_t)rows * 4;
    CHECK(COLS % 7);
    for (int i = 0; i < COLS; i++)
        pages[i] = 1 + i * 7 % COLS;
    for (int r = 0; r < rows; r++)
        write[r] = pages[(KEYS + r) / PAGE] * PAGE + (KEYS + r) % PAGE;
    for (int i = 0; i < 2; i++) {
        for (int r = 0; r < rows; r++) {
            extra[r] = tree ? r % PATH + 1 : 0;
            hi[r] = tree ? KEYS : KEYS + r + 1;
            lo[r] = i ? 0 : max_int(0, hi[r] + extra[r] - windows[0]);
            for (int j = 0; j < extra[r]; j++)
                expand[r * PATH + j] = write[r - r % PATH + j];
        }
        t[i] = (struct k_table){.page_size = PAGE, .n_cols = COLS, .expand_w = PATH,
                                .req = dev_buf(&T, req, n), .lo = dev_buf(&T, lo, n),
                                .hi = dev_buf(&T, hi, n), .write = dev_buf(&T, write, n),
                                .pages = dev_buf(&T, pages, sizeof pages)};
        if (tree) {
            t[i].n_expand = dev_buf(&T, extra, n);
            t[i].expand = dev_buf(&T, expand, n * PATH);
        }
    }
    free(expand);
}

/* ---- a pass ---------------------------------------------------------------------------------- */

static bool apart; /* wait after each operation */

static void done(void)
{
    struct err e;
    if (apart && !T.k->sync(T.d, &e))
        fail_msg("%s", e.msg);
}

static void layer(const struct net *w, int i, int rows, const struct k_table t[2])
{
    const struct kind *k = w->k;
    const bool dense = !k->experts, packed = !k->quantize;
    const struct k_norm none = {.kind = NORM_NONE};
    struct k_qkv qkv = {.rows = rows, .src = w->x, .norm = w->norm, .wq = w->wq, .wk = w->wk,
                        .wv = w->wv, .n_head = k->n_head, .n_kv = k->n_kv, .head_dim = k->dim,
                        .rot = k->dim, .cs = w->cs, .q = w->q, .cells = w->cells[i],
                        .table = &t[!windows[i]]};
    if (dense)
        qkv.q_norm = qkv.k_norm = w->head;
    T.k->qkv(T.d, &qkv);
    done();
    T.k->attn(T.d, &(struct k_attn){.rows = rows, .n_head = k->n_head, .window = windows[i],
                                    .scale = 1 / sqrtf((float)k->dim), .q = w->q,
                                    .cells = w->cells[i], .table = &t[!windows[i]],
                                    .packed = packed, .dst = w->a});
    done();
    T.k->linear(T.d, &(struct k_linear){.rows = rows, .src = w->a, .w = w->wo, .scale = 1,
                                        .packed = packed, .add = true, .dst = w->x,
                                        .post = dense ? w->post : none});
    done();
    if (dense) {
        T.k->glu(T.d, &(struct k_glu){.rows = rows, .src = w->x, .pre = w->norm, .gate = w->gate,
                                      .up = w->up, .act = ACT_GELU_TANH, .packed = true,
                                      .dst = w->h});
        done();
        T.k->linear(T.d, &(struct k_linear){.rows = rows, .src = w->h, .w = w->down, .scale = 1,
                                            .packed = true, .add = true, .dst = w->x,
                                            .post = w->post});
    } else {
        struct k_moe moe = w->moe;
        moe.rows = rows, moe.src = moe.dst = w->x;
        T.k->moe(T.d, &moe);
    }
    done();
}

/* From input `turn` to output `turn`. */
static void pass(const struct net *w, int turn, int rows, const struct k_table t[2])
{
    T.k->rows(T.d, &(struct k_rows){.rows = rows, .n = HIDDEN, .src = w->in[turn], .dst = w->x});
    done();
    for (int i = 0; i < LAYERS; i++)
        layer(w, i, rows, t);
    T.k->rows(T.d, &(struct k_rows){.rows = rows, .n = HIDDEN, .src = w->x, .dst = w->out[turn]});
    done();
}

/* The passes of one number of rows. */
static void repeat(const struct net *w, int rows, bool tree, int times)
{
    const size_t n = (size_t)rows * HIDDEN;
    float *want[2] = {xmalloc(n * 4), xmalloc(n * 4)}, *got = xmalloc(n * 4);
    const int held = T.n_held;
    struct kgraph *g[2] = {NULL, NULL};
    struct k_table t[2];
    struct err e;
    make_tables(t, rows, tree);
    apart = true;
    for (int turn = 0; turn < 2; turn++) {
        pass(w, turn, rows, t);
        T.k->get(T.d, want[turn], w->out[turn], n * 4);
        for (size_t i = 0; i < n; i++) {
            if (!isfinite(want[turn][i]))
                fail_msg("%d rows: element %zu is %g", rows, i, (double)want[turn][i]);
            uint32_t bits;
            memcpy(&bits, &want[turn][i], 4);
            digest = mix64(digest ^ bits);
        }
    }
    assert_memory_not_equal(want[0], want[1], n * 4);
    apart = false;
    for (int turn = 0; turn < 2 && T.k->graph_begin(T.d); turn++) {
        pass(w, turn, rows, t);
        g[turn] = T.k->graph_end(T.d, &e);
        if (!g[turn])
            fail_msg("%s", e.msg);
    }
    for (int i = 0; i < times; i += 2) {
        for (int turn = 0; turn < 2; turn++)
            g[turn] ? T.k->graph_launch(T.d, g[turn]) : pass(w, turn, rows, t);
        for (int turn = 0; turn < 2; turn++) {
            T.k->get(T.d, got, w->out[turn], n * 4);
            if (memcmp(got, want[turn], n * 4) == 0)
                continue;
            size_t at = 0;
            while (memcmp(&got[at], &want[turn][at], 4) == 0)
                at++;
            fail_msg("%d rows, pass %d: element %zu is %.9g, not %.9g", rows, i + turn, at,
                     (double)got[at], (double)want[turn][at]);
        }
    }
    if (!T.k->sync(T.d, &e))
        fail_msg("%s", e.msg);
    for (int turn = 0; turn < 2; turn++)
        if (g[turn])
            T.k->graph_free(T.d, g[turn]);
    while (T.n_held > held)
        T.k->release(T.d, T.held[--T.n_held]);
    free(want[0]), free(want[1]), free(got);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static bool open_device(const struct kernels *k, enum k_precision precision)
{
    struct err e;
    T = (struct case_dev){.k = k};
    T.d = k->open(&(struct k_opts){.precision = precision, .threads = 2}, &e);
    return T.d != NULL;
}

static void run_kind(const struct kind *k, int counts, int times)
{
    struct net w;
    case_seed = 1; /* a kind's bits do not depend on the kinds before */
    make_net(&w, k, N_SLOTS);
    for (int i = 0; i < counts; i++)
        repeat(&w, row_counts[i].n, row_counts[i].tree,
               times * (row_counts[i].times / one_in(row_counts[i].times)));
    dev_close(&T);
    free_net(&w);
}

static void test_on_a_cpu(void **state)
{
    (void)state;
    for (int i = 0; i < N_KINDS; i++)
        if (!kinds[i].quantize && open_device(&kernels_cpu, K_F32))
            run_kind(&kinds[i], FEW_COUNTS, 2);
}

#if HAVE_CUDA
static void test_on_a_gpu(void **state)
{
    const struct kind *k = *state;
    if (!open_device(&kernels_cuda, k->precision))
        skip();
    run_kind(k, N_COUNTS, passes);
}
#endif

int main(int argc, char **argv)
{
    const struct CMUnitTest cpu[] = {cmocka_unit_test(test_on_a_cpu)};
    int failed = 0;
    passes = argc > 1 ? max_int(2, atoi(argv[1])) : 20;
    if (argc < 2)
        failed += cmocka_run_group_tests(cpu, NULL, NULL);
#if HAVE_CUDA
    struct CMUnitTest gpu[N_KINDS];
    for (int i = 0; i < N_KINDS; i++) {
        struct kind *k = (struct kind *)&kinds[i];
        gpu[i] = (struct CMUnitTest){k->name, test_on_a_gpu, NULL, NULL, k};
    }
    if (argc > 2)
        cmocka_set_test_filter(argv[2]);
    digest = 0;
    failed += cmocka_run_group_tests(gpu, NULL, NULL);
    if (digest)
        printf("# cuda: digest %016llx, %d passes of a few rows\n", (unsigned long long)digest,
               passes);
#endif
    return failed != 0;
}
