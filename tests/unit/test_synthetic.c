/* test_synthetic.c - generated weights: their distribution, that every device generates those of
 * the CPU, and that a model made from shapes alone has the tensors of a real one. Without a GPU the
 * comparison is skipped. */
#include "engine/cycle/cycle.h"
#include "engine/run/device.h"
#include "engine/tools/synthetic.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct device cpu;

static struct tensor shape(enum dtype type, int n_dim, int a, int b, int c, int d)
{
    struct tensor t = {.type = type, .n_dim = n_dim, .dim = {a, b, c, d}, .name = "t"};
    t.bytes = dtype_size(type);
    for (int i = 0; i < n_dim; i++)
        t.bytes *= (size_t)t.dim[i];
    return t;
}

/* A row for each of n experts. */
static struct tensor each(int n, int width)
{
    struct tensor t = shape(DT_BF16, 2, n, width, 0, 0);
    t.by_row = true;
    return t;
}

static struct tensor made(struct device *dev, struct tensor t, float scale)
{
    struct err e = {0};
    if (!dev->k->synthesize(dev->d, &t, 7, scale, &e))
        fail_msg("%s", e.msg);
    return t;
}

/* ---- on the CPU ------------------------------------------------------------------------------ */

static void spread_of(const float *x, size_t n, double *mean, double *deviation)
{
    double sum = 0, squares = 0;
    for (size_t i = 0; i < n; i++) {
        sum += (double)x[i];
        squares += (double)x[i] * (double)x[i];
    }
    *mean = sum / (double)n;
    *deviation = sqrt(squares / (double)n);
}

static void test_floats_have_the_deviation(void **state)
{
    (void)state;
    enum { N = 333 * 1001 }; /* ends inside a word */
    struct tensor t = made(&cpu, shape(DT_BF16, 2, 333, 1001, 0, 0), 0.25f);
    struct tensor f = made(&cpu, shape(DT_F32, 2, 333, 1001, 0, 0), 0.25f);
    float *x = xmalloc(N * sizeof *x);
    double mean, deviation;
    for (int i = 0; i < N; i++) {
        x[i] = bf16_to_f32(((uint16_t *)t.data)[i]);
        assert_true(fabsf(x[i] - ((float *)f.data)[i]) <= fabsf(x[i]) / 128);
    }
    spread_of(x, N, &mean, &deviation);
    assert_true(fabs(mean) < 0.25 * 0.01 && fabs(deviation / 0.25 - 1) < 0.01);
    free(x);
}

static void test_zero_means_one(void **state)
{
    (void)state;
    struct tensor t = made(&cpu, shape(DT_BF16, 1, 77, 0, 0, 0), 0);
    for (int i = 0; i < 77; i++)
        assert_int_equal(((uint16_t *)t.data)[i], 0x3f80);
}

/* Every product of a row with ones of deviation 1 deviates by sqrt(in) scale. */
static void test_mxfp4_has_the_deviation(void **state)
{
    (void)state;
    static const float code[] = {0, .5f, 1, 1.5f, 2, 3, 4, 6, 0, -.5f, -1, -1.5f, -2, -3, -4, -6};
    for (float scale = 0.5f; scale > 0.001f; scale /= 3) {
        struct tensor b = made(&cpu, shape(DT_U8, 4, 2, 64, 9, 16), scale);
        struct tensor s = made(&cpu, shape(DT_U8, 3, 2, 64, 9, 0), scale);
        double squares = 0;
        for (size_t i = 0; i < b.bytes; i++) {
            int byte = ((uint8_t *)b.data)[i], e = ((uint8_t *)s.data)[i / 16];
            double lo = ldexp((double)code[byte & 15], e - 127);
            double hi = ldexp((double)code[byte >> 4], e - 127);
            squares += lo * lo + hi * hi;
        }
        double deviation = sqrt(squares / (double)(2 * b.bytes));
        assert_true(deviation > scale / 1.5 && deviation < scale * 1.5);
    }
}

/* ---- models of shapes ------------------------------------------------------------------------ */

static const struct published {
    const char *name;
    double bytes; /* all tensors, by the published parameter counts */
} published[] = {
    {"gpt-oss-20b", 13.76e9}, {"gpt-oss-120b", 65.25e9}, {"gemma-3-270m", 0.536e9},
    {"gemma-3-1b", 2.0e9},    {"gemma-3-4b", 7.76e9},    {"gemma-3-27b", 54.0e9},
    {"gemma-4-E4B", 15.0e9},  {"gemma-4-31B", 61.4e9},  {"gemma-4-26B-A4B", 50.4e9},
    {"qwen3-30b-a3b", 61.06e9},
    {"gemma-3-27b:Q4_0", 15.19e9}, {"gemma-3-27b:q8_0", 28.7e9},
    {"qwen3-30b-a3b:Q4_0", 17.17e9}, {"gemma-4-26B-A4B:Q4_K", 15.0e9},
    {"gemma-3-27b:Q4_0+dspark", 15.19e9},
};

static void test_block_drafts_add_up(void **state)
{
    (void)state;
    struct model m;
    struct draft d;
    struct err e = {0};
    const char *brief;
    assert_true(synthetic_open(&m, &d, "gpt-oss-20b+dflash", &brief, &e));
    assert_string_equal(brief, "20b.dflash");
    assert_string_equal(d.kind, "dflash");
    const double h = 2880, layer = h * 64 * (64 + 8 + 8 + 64) + 3 * h * 3 * h;
    const double all = 2 * (5 * layer + 5 * h * h);
    assert_true((double)d.bytes > all && (double)d.bytes < 1.001 * all);
    assert_int_equal(draft_block_guesses(&d), 7);
    for (int i = 0; i < d.n_capture; i++)
        assert_true(d.capture[i] > (i ? d.capture[i - 1] : 0) && d.capture[i] < m.cfg.n_layer);
    draft_free(&d);
    model_free(&m);
    assert_true(synthetic_open(&m, &d, "gemma-3-27b:Q4_0+dspark", &brief, &e));
    assert_string_equal(brief, "g27b.Q4_0.dspark");
    assert_string_equal(d.kind, "dspark");
    assert_int_equal(draft_block_guesses(&d), 7);
    assert_int_equal(d.next.dim[0], m.cfg.vocab);
    draft_free(&d);
    model_free(&m);
}

static void test_shapes_add_up(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof published / sizeof *published; i++) {
        struct model m;
        struct draft d;
        struct err e = {0};
        const char *brief;
        if (!synthetic_open(&m, &d, published[i].name, &brief, &e))
            fail_msg("%s", e.msg);
        double off = (double)m.bytes / published[i].bytes;
        if (off < 0.98 || off > 1.02)
            fail_msg("%s has %.3f GB", published[i].name, (double)m.bytes * 1e-9);
        assert_int_equal(d.cfg.hidden, m.cfg.hidden);
        draft_free(&d);
        model_free(&m);
    }
}

static void test_unknown_name(void **state)
{
    (void)state;
    struct model m;
    struct draft d;
    struct err e = {0};
    const char *brief;
    assert_false(synthetic_open(&m, &d, "gpt-1", &brief, &e));
    assert_int_equal(e.kind, ERR_USAGE);
    assert_non_null(strstr(e.msg, "gpt-oss-120b"));
    assert_false(synthetic_open(&m, &d, "gemma-3-27b:Q4", &brief, &e));
    assert_false(synthetic_open(&m, &d, "gemma-3-27:Q4_0", &brief, &e));
    assert_false(synthetic_open(&m, &d, "gemma-3-27b:Q4_0+eagle", &brief, &e));
    assert_false(synthetic_open(&m, &d, "gemma-3-27b:Q4+dflash", &brief, &e));
}

/* A config small enough for a moment: the same family code, all of gpt-oss's switches. */
static const char small[] =
    "{\"model_type\":\"gpt_oss\",\"hidden_size\":64,\"intermediate_size\":64,"
    "\"num_hidden_layers\":4,\"num_local_experts\":8,\"num_experts_per_tok\":4,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":32,\"vocab_size\":512,"
    "\"max_position_embeddings\":4096,\"sliding_window\":32}";

/* kind: 0: an EAGLE3 head, 1: DFlash, 2: DSpark. */
static void speaks_and_drafts(int kind)
{
    struct model m;
    struct draft d;
    struct err e = {0};
    struct runtime r;
    const struct tree_shape shape_of_tree = {3, 2, 6};
    const struct step_limits lim = {100};
    struct runtime_shape shape_of_runtime = {.page_size = 4, .context = 256, .kv = KV_F32};
    assert_true(model_shaped(&m, small, &e));
    assert_true(kind ? block_draft_shaped(&d, &m, kind == 2, &e)
                     : draft_shaped(&d, &m, 128, 100, &e));
    if (!runtime_open(&r, cpu, &m, &d, &shape_of_runtime, &e))
        fail_msg("%s", e.msg);
    struct lane l = {.tap_row = -1}, *one = &l;
    for (int i = 0; i < 50; i++)
        ids_add(&l.tok, i * 7 % 512);
    assert_true(lane_extend(&r, &l, 50, true, true, 2, &e));
    for (int i = 0; i < 6; i++) { /* scripted: 1, 2, 3, 4, then all the way down */
        int before = l.tok.n;
        l.force = i + 1;
        if (!lane_step(&r, &one, &lim, 1, &shape_of_tree, &e))
            fail_msg("%s", e.msg);
        assert_true(l.n_new >= 1 && l.n_new <= min_int(i + 1, 4));
        assert_int_equal(l.tok.n, before + l.n_new);
        assert_true(i > 1 || l.n_new == i + 1);
    }
    lane_free(&r, &l);
    runtime_close(&r);
    draft_free(&d);
    model_free(&m);
}

static void test_a_synthetic_runtime_speaks_and_drafts(void **state)
{
    (void)state;
    for (int kind = 0; kind < 3; kind++)
        speaks_and_drafts(kind);
}

/* ---- a device makes the CPU's weights -------------------------------------------------------- */

static bool open_gpu(struct device *gpu)
{
    struct err e = {0};
    return device_open(gpu, "cuda", 0, "f32", &e);
}

static kbuf buffer(struct device *dev, const void *x, size_t bytes)
{
    struct err e = {0};
    kbuf b = dev->k->alloc(dev->d, bytes, "test", &e);
    assert_non_null(b.p);
    if (x)
        dev->k->put(dev->d, b, x, bytes);
    else
        dev->k->fill(dev->d, b, 0xff);
    return b;
}

enum { ROWS = 3, IN = 1000, OUT = 77 };

static void multiply(struct device *dev, const float *x, float *y)
{
    struct tensor w = made(dev, shape(DT_BF16, 2, OUT, IN, 0, 0), 1 / 32.f);
    kbuf src = buffer(dev, x, ROWS * IN * 4), dst = buffer(dev, NULL, ROWS * OUT * 4);
    dev->k->linear(dev->d, &(struct k_linear){.rows = ROWS, .src_stride = IN, .src = src, .w = &w,
                                              .scale = 1, .dst = dst});
    dev->k->get(dev->d, y, dst, ROWS * OUT * 4);
    dev->k->release(dev->d, src);
    dev->k->release(dev->d, dst);
}

static void mix(struct device *dev, const float *x, float *y)
{
    enum { E = 8, N = 96 };
    struct tensor b[2] = {made(dev, shape(DT_U8, 4, E, 2 * N, N / 32, 16), .1f),
                          made(dev, shape(DT_U8, 4, E, N, N / 32, 16), .1f)};
    struct tensor s[2] = {made(dev, shape(DT_U8, 3, E, 2 * N, N / 32, 0), .1f),
                          made(dev, shape(DT_U8, 3, E, N, N / 32, 0), .1f)};
    struct tensor bias[2] = {made(dev, each(E, 2 * N), .1f),
                             made(dev, each(E, N), .1f)};
    struct tensor router = made(dev, each(E, N), .1f);
    kbuf src = buffer(dev, x, ROWS * N * 4), dst = buffer(dev, NULL, ROWS * N * 4);
    dev->k->moe(dev->d, &(struct k_moe){
        .rows = ROWS, .in = N, .ffn = N, .n_expert = E, .top_k = 4, .src = src, .router_scale = 1,
        .router = &router, .layout = EXPERT_MXFP4, .gate_up = &b[0], .gate_up_s = &s[0],
        .gate_up_b = &bias[0], .down = &b[1], .down_s = &s[1], .down_b = &bias[1],
        .act = ACT_SWIGLU_CLAMP, .limit = 7, .dst = dst});
    dev->k->get(dev->d, y, dst, ROWS * N * 4);
    dev->k->release(dev->d, src);
    dev->k->release(dev->d, dst);
}

static double distance(const float *a, const float *b, int n)
{
    double off = 0, all = 0;
    for (int i = 0; i < n; i++) {
        off += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        all += (double)b[i] * (double)b[i];
    }
    return sqrt(off / all);
}

static void test_a_gpu_makes_the_same(void **state)
{
    (void)state;
    struct device gpu;
    if (!open_gpu(&gpu))
        skip();
    static float x[ROWS * IN], want[ROWS * IN], got[ROWS * IN];
    for (int i = 0; i < ROWS * IN; i++)
        x[i] = (float)(mix64((uint64_t)i) >> 40) * 0x1p-23f - 1;
    multiply(&cpu, x, want);
    multiply(&gpu, x, got);
    assert_true(distance(got, want, ROWS * OUT) < 1e-5);
    mix(&cpu, x, want);
    mix(&gpu, x, got);
    assert_true(distance(got, want, ROWS * 96) < 1e-3);
    device_close(&gpu);
}

static void test_a_gpu_streams(void **state)
{
    (void)state;
    struct device gpu;
    enum { N = 3 << 20 };
    if (!open_gpu(&gpu))
        skip();
    char *x = xmalloc(N), *y = xmalloc(N);
    for (int i = 0; i < N; i++)
        x[i] = (char)mix64((uint64_t)i);
    kbuf a = buffer(&gpu, x, N), b = buffer(&gpu, NULL, N);
    gpu.k->stream(gpu.d, a, (kbuf){0});
    gpu.k->stream(gpu.d, a, b);
    for (int kind = PHASE_LAUNCH; kind <= PHASE_FLAG; kind++)
        assert_true(gpu.k->phase(gpu.d, kind, 3) || kind == PHASE_EARLY);
    gpu.k->get(gpu.d, y, b, N);
    assert_memory_equal(x, y, N);
    gpu.k->release(gpu.d, a);
    gpu.k->release(gpu.d, b);
    device_close(&gpu);
    free(x);
    free(y);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_floats_have_the_deviation),
        cmocka_unit_test(test_zero_means_one),
        cmocka_unit_test(test_mxfp4_has_the_deviation),
        cmocka_unit_test(test_shapes_add_up),
        cmocka_unit_test(test_block_drafts_add_up),
        cmocka_unit_test(test_unknown_name),
        cmocka_unit_test(test_a_synthetic_runtime_speaks_and_drafts),
        cmocka_unit_test(test_a_gpu_makes_the_same),
        cmocka_unit_test(test_a_gpu_streams),
    };
    struct err e = {0};
    if (!device_open(&cpu, "cpu", 0, NULL, &e))
        die("%s", e.msg);
    int bad = cmocka_run_group_tests(tests, NULL, NULL);
    device_close(&cpu);
    return bad;
}
