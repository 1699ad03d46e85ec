/* test_cuda_moe.c - mixtures of experts on the GPU, in both precisions. Without a GPU every test is
 * skipped.
 *
 * The CPU kernels' scenarios (every layout, against double precision), then full widths: the same
 * experts as the CPU chooses, sums within what rounding an activation allows, and a row's bits
 * whatever rows are multiplied with it.
 */
#include "kernels/kernels.h"

#include "kernels/packed.h"

#if HAVE_CUDA
#include "tests/cuda/cuda_shim.h"
#include "tests/few.h"

#define kernels_cpu kernels_shim
#define TOL TOL_OF_THE_CPU
#include "tests/kernel_test.h"
#undef TOL
static double TOL; /* of the precision at hand */
#define main main_of_attn
#include "tests/unit/test_kernels_attn.c"
#undef main
#undef kernels_cpu

static struct case_dev C; /* the CPU; T is the GPU, as the shim sees it */
static bool rounded;      /* K_BF16 */

/* A sum of outputs is off by the rounding of an activation, 2^-12 / sqrt 3 of it on average where
 * it becomes one f16 and 2^-18 / sqrt 3 as two bf16 (2^-23 as two f16), once before either matrix;
 * the clamped activation's slope is 8 at most and 2 where it matters. */
static double wide_tol(void) { return rounded ? 0x1p-12 * 2 : 8e-6; }

static int open_gpu(void **state)
{
    (void)state;
    dev_open(&T, &kernels_shim, NULL, 1);
    return 0;
}

/* ---- a layer -------------------------------------------------------------------------------- */

enum { MOST = 200 };

struct layer {
    int in, ffn, E, k;
    struct tensor gate_up, gate_up_s, gate_up_b, down, down_s, down_b, router, router_b, norm, post;
    struct k_moe a;
};

static void fill_scales(struct tensor *s, int least, int n)
{
    for (size_t i = 0; i < s->bytes; i++)
        ((uint8_t *)s->data)[i] = (uint8_t)(least + rnd_int(n));
}

static void layer_make(struct layer *l, int in, int ffn, int E, int k)
{
    *l = (struct layer){.in = in, .ffn = ffn, .E = E, .k = k,
        .gate_up = TENSOR(DT_U8, 1, E, 2 * ffn, in / 32, 16),
        .gate_up_s = TENSOR(DT_U8, 1, E, 2 * ffn, in / 32),
        .gate_up_b = TENSOR(DT_BF16, .1f, E, 2 * ffn),
        .down = TENSOR(DT_U8, 1, E, in, ffn / 32, 16), .down_s = TENSOR(DT_U8, 1, E, in, ffn / 32),
        .down_b = TENSOR(DT_BF16, .1f, E, in), .router = TENSOR(DT_BF16, .02f, E, in),
        .router_b = TENSOR(DT_BF16, .1f, E), .norm = TENSOR(DT_BF16, 1, in),
        .post = TENSOR(DT_BF16, 1, in)};
    l->gate_up_b.by_row = l->down_b.by_row = l->router.by_row = true;
    fill_scales(&l->gate_up_s, 118, 5), fill_scales(&l->down_s, 118, 5);
    l->a = (struct k_moe){.in = in, .ffn = ffn, .n_expert = E, .top_k = k,
                          .pre = {NORM_RMS, &l->norm, 1e-5f}, .router_scale = 1,
                          .router = &l->router, .router_b = &l->router_b, .layout = EXPERT_MXFP4,
                          .gate_up = &l->gate_up, .gate_up_s = &l->gate_up_s,
                          .gate_up_b = &l->gate_up_b, .down = &l->down, .down_s = &l->down_s,
                          .down_b = &l->down_b, .act = ACT_SWIGLU_CLAMP, .limit = 7};
}

static void layer_free(struct layer *l)
{
    struct tensor *t[] = {&l->gate_up, &l->gate_up_s, &l->gate_up_b, &l->down, &l->down_s,
                          &l->down_b, &l->router, &l->router_b, &l->norm, &l->post};
    for (int i = 0; i < 10; i++)
        free(t[i]->data);
}

/* out (rows, in), chosen (rows, k); dst begins as x where the layer adds to it. */
static void layer_run(const struct layer *l, struct case_dev *b, const float *x, int rows,
                      float *out, int32_t *chosen)
{
    size_t n = (size_t)rows * (size_t)l->in, pairs = (size_t)(rows * l->k);
    struct k_moe a = l->a;
    a.rows = rows;
    a.src = dev_buf(b, x, n * 4);
    a.dst = a.add ? a.src : dev_buf(b, NULL, n * 4);
    a.chosen = dev_buf(b, NULL, pairs * 4);
    b->k->moe(b->d, &a);
    b->k->get(b->d, out, a.dst, n * 4);
    b->k->get(b->d, chosen, a.chosen, pairs * 4);
    dev_release(b);
}

/* `most` rows against the CPU's within wide_tol() * tol, then fewer of them, alone and from the
 * middle: the same bits. */
static void layer_check(const struct layer *l, const char *name, int most, double tol)
{
    size_t n = (size_t)most * (size_t)l->in, pairs = (size_t)(most * l->k);
    float *x = rnd_floats(n, 1), *want = rnd_floats(n, 1), *all = rnd_floats(n, 1),
          *got = rnd_floats(n, 1);
    int32_t *ids = xmalloc(pairs * 3 * 4), *all_ids = ids + pairs, *got_ids = ids + 2 * pairs;
    layer_run(l, &C, x, most, want, ids);
    layer_run(l, &T, x, most, all, all_ids);
    assert_memory_equal(all_ids, ids, pairs * 4);
    double rel = relative_l2(all, want, n);
    print_message("# %s: relative L2 to the CPU %.2g\n", name, rel);
    assert_true(rel < wide_tol() * tol);
    static const int counts[] = {1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 64, 100};
    for (int i = 0; i < 13; i += one_in(5)) {
        int rows = counts[i];
        for (int from = 0; from + rows <= most && from <= 37; from += 37) {
            size_t at = (size_t)from * (size_t)l->in;
            layer_run(l, &T, x + at, rows, got, got_ids);
            same_bits(got, all + at, (size_t)rows * (size_t)l->in, "rows among fewer");
            assert_memory_equal(got_ids, all_ids + from * l->k, (size_t)(rows * l->k) * 4);
        }
    }
    free(x), free(want), free(all), free(got), free(ids);
}

static void test_few_large_experts(void **state)
{
    (void)state;
    struct layer l;
    layer_make(&l, 2880, 2880, 10, 4);
    l.a.add = true;
    layer_check(&l, "10 experts, 2880 x 2880, top 4", MOST, 1);
    layer_free(&l);
}

static void test_many_experts(void **state)
{
    (void)state;
    struct layer l;
    layer_make(&l, 1440, 320, 128, 4);
    layer_check(&l, "128 experts, 1440 x 320, top 4", MOST, 1);
    layer_free(&l);
    layer_make(&l, 256, 96, 300, 5);
    layer_check(&l, "300 experts, 256 x 96, top 5", MOST, 1);
    layer_free(&l);
    layer_make(&l, 384, 160, 16, 6);
    layer_check(&l, "16 experts, 384 x 160, top 6", MOST, 1);
    layer_free(&l);
}

/* More than a step of chunks in a run; a norm behind; an activation without bound. */
static void test_long_rows_and_a_norm_behind(void **state)
{
    (void)state;
    struct layer l;
    layer_make(&l, 4096, 3200, 6, 2);
    l.a.post = (struct k_norm){NORM_RMS, &l.post, 1e-5f};
    layer_check(&l, "6 experts, 4096 x 3200, top 2, post-norm", 40, 1);
    l.a.post.kind = NORM_NONE;
    l.a.act = ACT_SILU;
    layer_check(&l, "the same without a norm, SiLU", 40, 1);
    layer_free(&l);
}

/* Experts as most families store them: bf16, gate before up, without biases of gate and up. */
static void store_as_bf16(struct layer *l)
{
    free(l->gate_up.data), free(l->down.data);
    l->gate_up = TENSOR(DT_BF16, .05f, l->E, 2 * l->ffn, l->in);
    l->down = TENSOR(DT_BF16, .05f, l->E, l->in, l->ffn);
    l->a.layout = EXPERT_HALVES, l->a.act = ACT_SILU;
    l->a.gate_up_s = l->a.down_s = l->a.gate_up_b = NULL;
}

/* Widths that are not whole tiles or units, k splits that end within a stage, splits without a
 * chunk, a norm behind, widths of gemma-4-26B. */
static void test_bf16_experts(void **state)
{
    (void)state;
    static const struct { int in, ffn, E, k; bool post; } t[] = {
        {1024, 768, 12, 4, false}, {704, 352, 16, 8, true}, {96, 40, 40, 3, false},
        {32, 32, 4, 2, false}, {544, 96, 128, 4, true}, {416, 100, 7, 7, false},
        {2816, 704, 9, 8, true}, {160, 48, 150, 8, false},
    };
    for (int i = 0; i < (int)(sizeof t / sizeof *t); i++) {
        struct layer l;
        layer_make(&l, t[i].in, t[i].ffn, t[i].E, t[i].k);
        store_as_bf16(&l);
        l.a.act = i % 2 ? ACT_GELU_TANH : ACT_SILU;
        l.a.down_b = i % 3 ? NULL : &l.down_b;
        l.a.add = i % 2;
        if (t[i].post)
            l.a.post = (struct k_norm){NORM_RMS, &l.post, 1e-5f};
        char name[80];
        snprintf(name, sizeof name, "bf16, %d experts, %d x %d, top %d", t[i].E, t[i].in, t[i].ffn,
                 t[i].k);
        layer_check(&l, name, MOST / 2, 2);
        layer_free(&l);
    }
}

/* Other scales of a block of four-bit floats; some at the ends of their range. */
static void vary_floats(enum dtype type, uint8_t *b)
{
    static const uint8_t small[] = {0, 3, 8, 9, 20};
    if (type == DT_MXFP4)
        b[0] = rnd_int(100) ? (uint8_t)(b[0] - rnd_int(3)) : small[rnd_int(5)];
    for (int k = 0; type == DT_NVFP4 && k < 4; k++)
        b[k] = rnd_int(100) ? (uint8_t)(b[k] + rnd_int(16)) : (uint8_t)(rnd_int(0x7f) | 0x80);
    if (type != DT_E2M1)
        return;
    static const uint8_t rare[] = {0, 0x80, 1, 0x7e, 0xfe, 8};
    float factor;
    memcpy(&factor, b, sizeof factor);
    factor *= rnd_int(100) ? rnd_normal() : rnd_int(2) ? 0.f : 0x1p-130f;
    memcpy(b, &factor, sizeof factor);
    for (int k = 4; k < 6; k++)
        b[k] = rnd_int(50) ? (uint8_t)(0x30 + rnd_int(16) + rnd_int(2) * 0x80) : rare[rnd_int(6)];
}

/* Random experts of a packed type. The exponents and signs of their scales vary (f16, or bf16 of
 * E4M3), and some scales are at the ends of their range. */
static struct tensor random_packed(enum dtype type, int E, int n, int k)
{
    struct tensor t = {.type = type, .n_dim = 3, .dim = {E, n, k}, .name = "experts"};
    assert_true(dtype_bytes_fit(t.type, 3, t.dim, &t.bytes));
    uint8_t *b = t.data = xmalloc(t.bytes);
    const struct packed_format *f = packed_format(t.type);
    const size_t blocks = t.bytes / (size_t)f->bytes;
    const int mantissa = type == DT_E4M3 ? 7 : 10;
    packed_random(t.type, rnd(), .05f, 0, blocks, b);
    for (size_t i = 0; i < blocks; i++, b += f->bytes) {
        vary_floats(type, b);
        for (int j = 0; j < 2; j++) {
            static const uint16_t rare[] = {0, 0x8000, 1, 0x8060, 0x43ff};
            const int at = type == DT_E4M3 ? -j : f->scale[j];
            if (at < 0)
                continue;
            unsigned scale = (unsigned)(b[at] | b[at + 1] << 8), exponent = scale << 1 & 0xffff;
            exponent = max_int((int)(exponent >> (mantissa + 1)) + rnd_int(4) - 2, 0);
            scale = (rnd() & (0x8000 | ((1u << mantissa) - 1))) | exponent << mantissa;
            if (rnd_int(200) == 0)
                scale = rare[rnd_int(5)];
            b[at] = (uint8_t)scale, b[at + 1] = (uint8_t)(scale >> 8);
        }
    }
    assert_int_equal(packed_not_finite(t.type, t.data, (int64_t)blocks), -1);
    return t;
}

static struct tensor twin_of(const struct tensor *x)
{
    struct tensor y = *x;
    const size_t n = (size_t)(x->dim[0] * x->dim[1] * x->dim[2]);
    y.type = DT_BF16, y.bytes = 2 * n, y.data = xmalloc(y.bytes);
    packed_bf16(x->type, x->data, n, y.data);
    return y;
}

static void store_packed(struct layer *l, enum dtype up, enum dtype down)
{
    store_as_bf16(l);
    free(l->gate_up.data), free(l->down.data);
    l->gate_up = random_packed(up, l->E, 2 * l->ffn, l->in);
    l->down = random_packed(down, l->E, l->in, l->ffn);
}
static void store_as_e4m3(struct layer *l) { store_packed(l, DT_E4M3, DT_E4M3); }
static void store_as_q8_0(struct layer *l) { store_packed(l, DT_Q8_0, DT_Q8_0); }
static void store_as_q4_k_m(struct layer *l) { store_packed(l, DT_Q4_K, DT_Q6_K); }

/* Every number of rows has the bits that the same layer with the twins has. */
static void same_as_twin(const struct layer *l, const struct layer *twin, const char *what)
{
    static const int counts[] = {1, 2, 3, 4, 5, 8, 9, 16, 17, 33, 64, 100};
    const size_t n = (size_t)MOST / 2 * (size_t)l->in;
    float *x = rnd_floats(n, 1), *want = rnd_floats(n, 1), *got = xmalloc(n * sizeof *got);
    int32_t *ids = xmalloc((size_t)MOST * (size_t)l->k * sizeof *ids);
    for (int i = 0; i < 12; i += one_in(5)) {
        memcpy(got, want, n * sizeof *got);
        layer_run(twin, &T, x, counts[i], want, ids);
        layer_run(l, &T, x, counts[i], got, ids);
        same_bits(got, want, n, what);
    }
    free(x), free(want), free(got), free(ids);
}

struct widths {
    int in, ffn, E, k;
    bool post;
};

/* Packed experts are those of the bf16 experts with their values, by every kernel, with each of n
 * widths. mixes: of which of them kernels for all layers are tried, too; they take those of which
 * one matrix is bf16, whose inputs are weighed, or whose gate is clamped. */
static void packed_experts(enum dtype up, enum dtype down, const struct widths *t, int n,
                           unsigned mixes)
{
    const uint64_t seed = case_seed; /* given back: later tests draw as before */
    for (int i = 0; i < n; i++) {
        struct layer l, twin;
        layer_make(&l, t[i].in, t[i].ffn, t[i].E, t[i].k);
        store_packed(&l, up, down);
        l.a.act = i % 2 ? ACT_GELU_TANH : ACT_SILU;
        l.a.down_b = i % 3 ? NULL : &l.down_b;
        l.a.add = i % 2;
        if (t[i].post)
            l.a.post = (struct k_norm){NORM_RMS, &l.post, 1e-5f};
        twin = l;
        twin.gate_up = twin_of(&l.gate_up), twin.down = twin_of(&l.down);
        twin.a.gate_up = &twin.gate_up, twin.a.down = &twin.down;
        same_as_twin(&l, &twin, dtype_name(up));
        if (mixes >> i & 1) {
            l.a.down = &twin.down;
            same_as_twin(&l, &twin, "gate and up packed");
            l.a.down = &l.down, l.a.gate_up = &twin.gate_up;
            same_as_twin(&l, &twin, "down packed");
            l.a.gate_up = &l.gate_up;
            l.a.weigh_input = twin.a.weigh_input = true;
            same_as_twin(&l, &twin, "weighed inputs");
            l.a.weigh_input = twin.a.weigh_input = false;
            l.a.act = twin.a.act = ACT_SILU_CLAMP;
            same_as_twin(&l, &twin, "a clamped gate");
        }
        free(twin.gate_up.data), free(twin.down.data);
        layer_free(&l);
    }
    case_seed = seed;
}

/* The widths of test_bf16_experts() that are whole blocks of 32. */
static const struct widths of_32[] = {
    {1024, 768, 12, 4, false}, {704, 352, 16, 8, true}, {96, 64, 40, 3, false},
    {32, 32, 4, 2, false}, {544, 96, 128, 4, true}, {416, 96, 7, 7, false},
    {2816, 704, 9, 8, true}, {160, 64, 150, 8, false},
};
enum { N_OF_32 = sizeof of_32 / sizeof *of_32 };

static void test_e4m3_experts(void **state)
{
    (void)state;
    packed_experts(DT_E4M3, DT_E4M3, of_32, N_OF_32, 1 << 2 | 1 << 4);
}

static void test_q8_0_experts(void **state)
{
    (void)state;
    packed_experts(DT_Q8_0, DT_Q8_0, of_32, N_OF_32, 1 << 2 | 1 << 4);
}

/* Experts of every kind on this GPU and on this GPU used as one of another class (AERIE_GPU_AS),
 * which takes other kernels (those of moe.cu for bf16 and bytes, tiles without wgmma for prompts)
 * or has less shared memory for them: the same bits and the same choice, whatever the rows. So have
 * the first rows alone, as decode rows. */
static void test_routes_agree(void **state)
{
    (void)state;
    static void (*const stores[])(struct layer *) = {NULL, store_as_bf16, store_as_e4m3,
                                                     store_as_q8_0};
    static const char *const names[] = {"MXFP4", "bf16", "E4M3", "Q8_0"},
                      *const classes[] = {"8.6", "8.0"};
    static const struct { int in, ffn, E, k; bool post; } t[] = {
        {1024, 768, 12, 4, false}, {544, 96, 128, 4, true}, {96, 64, 40, 3, false},
        {4160, 32, 5, 2, false}, {6176, 32, 5, 2, false}, /* wide rows for a router's block */
    };
    enum { DECODE = 16 };
    static const int counts[] = {1, 2, 4, 5, 8, DECODE, 17, 33, 64, 100};
    const uint64_t seed = case_seed; /* given back: later tests draw as before */
    const char *as = getenv("AERIE_GPU_AS");
    char was[16];
    snprintf(was, sizeof was, "%s", as ? as : "");
    struct case_dev other[2] = {{.k = &kernels_shim}, {.k = &kernels_shim}};
    for (int c = 0; c < 2; c++) {
        struct err e = {0};
        setenv("AERIE_GPU_AS", classes[c], 1);
        other[c].d =
            kernels_cuda.open(&(struct k_opts){.precision = rounded ? K_BF16 : K_F32}, &e);
        if (!other[c].d)
            die("%s", e.msg);
    }
    setenv("AERIE_GPU_AS", was, 1);
    for (int i = 0; i < (int)(sizeof t / sizeof *t) * 4; i++) {
        const int at = i / 4, store = i % 4;
        struct layer l;
        layer_make(&l, t[at].in, t[at].ffn, t[at].E, t[at].k);
        if (stores[store])
            stores[store](&l);
        if (t[at].post)
            l.a.post = (struct k_norm){NORM_RMS, &l.post, 1e-5f};
        const size_t n = (size_t)MOST / 2 * (size_t)l.in;
        float *x = rnd_floats(n, 1), *want = rnd_floats(n, 1), *got = xmalloc(n * sizeof *got);
        int32_t *ids = xmalloc((size_t)MOST * (size_t)l.k * sizeof *ids),
                *ids_got = ids + MOST / 2 * l.k;
        for (int r = 0; r < 10; r += one_in(5)) {
            layer_run(&l, &T, x, counts[r], want, ids);
            for (int c = 0; c < 2; c++) {
                char what[80];
                snprintf(what, sizeof what, "%s, %d x %d, %d rows, as %s", names[store], l.in,
                         l.ffn, counts[r], classes[c]);
                layer_run(&l, &other[c], x, counts[r], got, ids_got);
                same_bits(got, want, (size_t)counts[r] * (size_t)l.in, what);
                assert_memory_equal(ids_got, ids, (size_t)(counts[r] * l.k) * sizeof *ids);
            }
            if (counts[r] <= DECODE)
                continue;
            layer_run(&l, &T, x, DECODE, got, ids_got); /* a row by the kernels for decode rows */
            same_bits(got, want, (size_t)DECODE * (size_t)l.in, "prefill and decode rows");
            assert_memory_equal(ids_got, ids, (size_t)(DECODE * l.k) * sizeof *ids);
        }
        free(x), free(want), free(got), free(ids);
        layer_free(&l);
    }
    for (int c = 0; c < 2; c++)
        kernels_cuda.close(other[c].d);
    case_seed = seed;
}

/* All types, in whole blocks of 256; k splits of one chunk to five. Gate and up of one type, down
 * of another, as llama.cpp mixes them. */
static void test_packed_experts(void **state)
{
    (void)state;
    static const enum dtype of[][2] = {
        {DT_Q4_0, DT_Q4_0}, {DT_Q4_K, DT_Q6_K}, {DT_E2M1, DT_E2M1}, {DT_Q5_K, DT_Q4_K},
        {DT_Q6_K, DT_Q5_K}, {DT_Q5_0, DT_Q4_1}, {DT_Q4_1, DT_Q5_1}, {DT_Q5_1, DT_Q5_0},
        {DT_Q2_K, DT_Q3_K}, {DT_Q3_K, DT_Q2_K}, {DT_IQ4_XS, DT_IQ4_NL}, {DT_IQ4_NL, DT_IQ4_XS},
        {DT_MXFP4, DT_NVFP4}, {DT_NVFP4, DT_MXFP4},
    };
    static const struct widths t[] = {
        {1280, 256, 5, 4, false}, {512, 768, 7, 3, true}, {256, 256, 40, 8, false},
    };
    for (int i = 0; i < (int)(sizeof of / sizeof *of); i++)
        packed_experts(of[i][0], of[i][1], t, i < 3 ? 3 : 2, i < 2);
}

/* What the device holds of them: codes and scales of a chunk of 32 (expert_blocks.cuh). Tiles of an
 * expert that are not whole: the bf16 twin. */
static void test_footprint_of_packed(void **state)
{
    (void)state;
    static const struct { enum dtype type; size_t bytes; } of[] = {
        {DT_E4M3, 34}, {DT_E2M1, 22}, {DT_Q8_0, 34}, {DT_Q4_0, 20}, {DT_Q4_1, 22}, {DT_Q5_0, 26},
        {DT_Q5_1, 26}, {DT_Q4_K, 22}, {DT_Q5_K, 26}, {DT_Q6_K, 28}, {DT_Q3_K, 28}, {DT_IQ4_NL, 20},
        {DT_Q2_K, 22}, {DT_IQ4_XS, 20}, {DT_MXFP4, 22}, {DT_NVFP4, 22},
    };
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        struct tensor t = random_packed(of[i].type, 3, 64, 256);
        assert_int_equal(kernels_cuda.footprint(shim_dev, &t), 3 * 64 * 256 / 32 * of[i].bytes);
        t.dim[1] = 40;
        assert_int_equal(kernels_cuda.footprint(shim_dev, &t), 3 * 40 * 256 * 2);
        t.dim[1] = 64;
        uint8_t *file = t.data;
        assert_false(kernels_cuda.holds(shim_dev, &t));
        assert_true(kernels_cuda.upload(shim_dev, &t, NULL) && t.data != file);
        assert_true(kernels_cuda.holds(shim_dev, &t));
        assert_int_equal(kernels_cuda.footprint(shim_dev, &t), 3 * 64 * 256 / 32 * of[i].bytes);
        kernels_cuda.unload(shim_dev, &t);
        free(file);
    }
}

/* Activations at the clamp: the largest hidden numbers there are; what is not there has been
 * amplified by the slope of 8. */
static void test_hidden_rows_at_the_clamp(void **state)
{
    (void)state;
    struct layer l;
    layer_make(&l, 512, 512, 4, 1);
    fill_scales(&l.gate_up_s, 124, 5);
    layer_check(&l, "at the clamp", 40, 8);
    layer_free(&l);
}

/* Scales at the ends of their range: 0 is 2^-127, 255 is NaN in its output and in no other. */
static void test_scales_at_the_ends(void **state)
{
    (void)state;
    enum { IN = 160, FFN = 64, ROWS = 9, BAD = 37 };
    const uint64_t seed = case_seed; /* its own numbers, whatever tests ran before it */
    struct layer l;
    case_seed = 41;
    layer_make(&l, IN, FFN, 1, 1);
    l.a.pre.kind = NORM_NONE;
    fill_scales(&l.gate_up_s, 100, 50); /* seven at the clamp, some tiny */
    memset(l.down_s.data, 0, l.down_s.bytes);
    memset(l.down_b.data, 0, l.down_b.bytes);
    float x[ROWS * IN], want[ROWS * IN], got[ROWS * IN];
    int32_t ids[ROWS];
    for (int i = 0; i < ROWS * IN; i++)
        x[i] = rnd_normal() * 0x1p10f;
    layer_run(&l, &C, x, ROWS, want, ids);
    layer_run(&l, &T, x, ROWS, got, ids);
    for (int i = 0; i < ROWS * IN; i++)
        assert_true(fabsf(want[i]) < 0x1p-110f);
    assert_true(relative_l2(got, want, ROWS * IN) < wide_tol());
    fill_scales(&l.down_s, 120, 5);
    ((uint8_t *)l.down_s.data)[BAD * (FFN / 32) + 1] = 255;
    layer_run(&l, &T, x, ROWS, got, ids);
    for (int i = 0; i < ROWS * IN; i++)
        assert_true(isnan(got[i]) == (i % IN == BAD));
    fill_scales(&l.down_s, 120, 5);
    ((uint8_t *)l.gate_up_s.data)[BAD * (IN / 32)] = 255; /* one hidden element: every output */
    layer_run(&l, &T, x, ROWS, got, ids);
    for (int i = 0; i < ROWS * IN; i++)
        assert_true(isnan(got[i]));
    layer_free(&l);
    case_seed = seed;
}

/* Operations run one after another without a pause, as in a graph: each leaves its counters and its
 * routing state as the next one needs them, whatever their numbers of rows, also when the whole
 * sequence is repeated. */
static void one_behind_another(void (*store_as)(struct layer *))
{
    enum { IN = 512, FFN = 256, ROWS = 64, N = 9, SIZE = ROWS * IN };
    static const int rows[N] = {1, 5, 1, 40, 2, 64, 16, 1, 1};
    const uint64_t seed = case_seed; /* given back: later tests draw as before */
    struct layer l;
    struct err e;
    layer_make(&l, IN, store_as == store_as_q4_k_m ? FFN : 96, 64, 4);
    if (store_as)
        store_as(&l);
    struct tensor *t[] = {&l.gate_up, &l.gate_up_s, &l.gate_up_b, &l.down, &l.down_s,
                          &l.down_b, &l.router, &l.router_b, &l.norm, &l.post};
    void *host[10];
    for (int i = 0; i < 10; i++) {
        host[i] = t[i]->data;
        assert_true(kernels_cuda.upload(shim_dev, t[i], &e));
    }
    float *x = rnd_floats(SIZE, 1), *got = rnd_floats(SIZE, 1),
          *want = rnd_floats((size_t)N * SIZE, 1);
    int32_t ids[ROWS * 4];
    for (int i = 0; i < N; i++)
        layer_run(&l, &T, x, rows[i], want + i * SIZE, ids);
    kbuf src = dev_buf(&T, x, SIZE * 4), dst[N];
    for (int i = 0; i < N; i++)
        dst[i] = dev_buf(&T, NULL, SIZE * 4);
    assert_true(kernels_cuda.graph_begin(shim_dev));
    for (int i = 0; i < N; i++) {
        struct k_moe a = l.a;
        a.rows = rows[i], a.src = src, a.dst = dst[i];
        kernels_cuda.moe(shim_dev, &a);
    }
    struct kgraph *g = kernels_cuda.graph_end(shim_dev, &e);
    assert_non_null(g);
    for (int times = 0; times < 3; times++) {
        for (int i = 0; i < N; i++)
            kernels_cuda.fill(shim_dev, dst[i], 0xff);
        kernels_cuda.graph_launch(shim_dev, g);
        for (int i = 0; i < N; i++) {
            kernels_cuda.get(shim_dev, got, dst[i], (size_t)(rows[i] * IN) * 4);
            same_bits(got, want + i * SIZE, (size_t)(rows[i] * IN), "behind another");
        }
    }
    kernels_cuda.graph_free(shim_dev, g);
    dev_release(&T);
    for (int i = 0; i < 10; i++)
        t[i]->data = host[i];
    layer_free(&l);
    free(x), free(want), free(got);
    case_seed = seed;
}

static void test_one_behind_another(void **state)
{
    (void)state;
    one_behind_another(NULL);
    one_behind_another(store_as_bf16);
    one_behind_another(store_as_e4m3);
    one_behind_another(store_as_q8_0);
    one_behind_another(store_as_q4_k_m);
}

/* Without the shim, which waits after each operation: the norm behind the dense product waits until
 * the experts are done. */
static void test_experts_to_x(void **state)
{
    (void)state;
    struct case_dev gpu = {.k = &kernels_cuda, .d = shim_dev};
    moe_to_x_on(&gpu);
}

static const struct CMUnitTest all_tests[] = {
    cmocka_unit_test(test_experts_to_x),
    cmocka_unit_test(test_moe_every_layout),
    cmocka_unit_test(test_moe_layouts_agree),
    cmocka_unit_test_setup(test_few_large_experts, open_gpu),
    cmocka_unit_test_setup(test_many_experts, open_gpu),
    cmocka_unit_test_setup(test_bf16_experts, open_gpu),
    cmocka_unit_test_setup(test_e4m3_experts, open_gpu),
    cmocka_unit_test_setup(test_q8_0_experts, open_gpu),
    cmocka_unit_test_setup(test_packed_experts, open_gpu),
    cmocka_unit_test_setup(test_routes_agree, open_gpu),
    cmocka_unit_test(test_footprint_of_packed),
    cmocka_unit_test_setup(test_long_rows_and_a_norm_behind, open_gpu),
    cmocka_unit_test_setup(test_hidden_rows_at_the_clamp, open_gpu),
    cmocka_unit_test_setup(test_scales_at_the_ends, open_gpu),
    cmocka_unit_test_setup(test_one_behind_another, open_gpu),
};

static int (*const others[])(void) = {main_of_attn}; /* compiled with the shared tests, not run */

int main(int argc, char **argv)
{
    int failed = 0;
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    CHECK(others[0]);
    dev_open(&C, &kernels_cpu, NULL, 0);
    for (int p = 0; p < 2; p++) {
        struct err e = {0};
        struct k_opts o = {.precision = p ? K_BF16 : K_F32};
        shim_dev = kernels_cuda.open(&o, &e);
        if (!shim_dev) {
            printf("1..1\nok 1 - experts on the GPU # SKIP no CUDA device (%s)\n", e.msg);
            break;
        }
        rounded = p;
        /* as wide_tol(), but for single elements (three standard deviations) after a norm's weights
         * (times eight) */
        TOL = rounded ? 0x1p-12 * 3 * 8 : 1e-4;
        struct CMUnitTest tests[sizeof all_tests / sizeof *all_tests];
        memcpy(tests, all_tests, sizeof tests);
        failed += _cmocka_run_group_tests(p ? "bf16" : "f32", tests,
                                          sizeof tests / sizeof *tests, NULL, NULL);
        kernels_cuda.close(shim_dev);
    }
    dev_close(&C);
    return failed != 0;
}

#else
#include <stdio.h>

int main(void)
{
    printf("1..1\nok 1 - experts on the GPU # SKIP built without CUDA\n");
    return 0;
}
#endif
