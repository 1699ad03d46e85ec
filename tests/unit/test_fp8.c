/* test_fp8.c - weights quantized to FP8: the format against its definition by value, what a
 * device's upload() makes of a matrix, and which matrices of a model are quantized.
 * test_cuda_tile.c shows that products of decode rows, which read FP8, have the same bits as
 * products that read bf16.
 */
#include "engine/opts.h"
#include "kernels/fp8.h"
#include "models/models.h"
#include "tests/kernel_test.h"

static float value_of(uint16_t w)
{
    return bf16_to_f32(w);
}

/* The 127 magnitudes of E4M3, by its definition. */
static double magnitude(int code)
{
    int exponent = code >> 3, mantissa = code & 7;
    return exponent ? (1 + mantissa / 8.) * pow(2, exponent - 7) : mantissa / 8. * pow(2, -6);
}

static void test_every_code_is_its_value(void **state)
{
    (void)state;
    for (int unit = FP8_UNIT_LEAST; unit <= FP8_UNIT_MOST; unit++)
        for (int code = 0; code <= FP8_LARGEST; code++) {
            uint16_t w = fp8_value((uint8_t)code, unit);
            assert_true((double)value_of(w) == magnitude(code) * pow(2, unit));
            assert_int_equal(fp8_of(w, unit), code);
            assert_int_equal(fp8_value((uint8_t)(code | 0x80), unit), w | 0x8000);
            assert_int_equal(fp8_of(w | 0x8000, unit), code | 0x80);
        }
}

/* Of all finite bf16: no number of the format is nearer, and of two as near it is the even one. */
static void test_the_nearest_is_taken(void **state)
{
    (void)state;
    for (int unit = -14; unit <= 3; unit += one_in(8))
        for (int w = 0; w < FP8_NOT_FINITE; w++) {
            double x = (double)value_of((uint16_t)w) / pow(2, unit);
            int got = fp8_of((uint16_t)w, unit), from = got > 0 ? got - 1 : 0;
            double off = fabs(magnitude(got) - x);
            for (int c = from; c <= got + 1 && c <= FP8_LARGEST; c++) {
                double other = fabs(magnitude(c) - x);
                if (other < off || (other == off && c != got && got % 2))
                    fail_msg("%g units become number %d, but %d is nearer", x, got, c);
            }
        }
}

/* 448 units reach the largest weight, 224 do not. */
static void test_the_unit_fits(void **state)
{
    (void)state;
    for (int w = 1; w < FP8_NOT_FINITE; w++) {
        int unit = fp8_unit((uint16_t)w);
        double units = (double)value_of((uint16_t)w) / pow(2, unit);
        assert_true(unit >= FP8_UNIT_LEAST && unit <= FP8_UNIT_MOST);
        if (unit > FP8_UNIT_LEAST && unit < FP8_UNIT_MOST)
            assert_true(units > 224 && units <= 448);
    }
    assert_int_equal(fp8_unit(0), FP8_UNIT_LEAST);
}

/* ---- upload() ------------------------------------------------------------------------------- */

/* A matrix with large and tiny weights. */
static struct tensor matrix(int out, int in)
{
    struct tensor t = TENSOR(DT_BF16, .05f, out, in);
    uint16_t *w = t.data;
    for (int i = 0; i < out * in; i += 7)
        w[i] = (uint16_t)((w[i] & 0x807f) | (90 + rnd_int(38)) << 7);
    w[3] = 0x4049; /* 3.14 */
    return t;
}

static struct tensor rounded(const struct tensor *t)
{
    struct tensor r = *t;
    size_t n = t->bytes / 2;
    uint16_t *w = r.data = xmalloc(t->bytes), largest = 0;
    memcpy(w, t->data, t->bytes);
    for (size_t i = 0; i < n; i++)
        largest = (w[i] & 0x7fff) > largest ? w[i] & 0x7fff : largest;
    for (size_t i = 0; i < n; i++)
        w[i] = fp8_value(fp8_of(w[i], fp8_unit(largest)), fp8_unit(largest));
    return r;
}

/* What reads a matrix: a product, a gated product, or a table of rows. */
enum use { LINEAR, GLU, EMBED, USES };

static void compute(struct tensor *t, bool cut, enum use use, int rows, const float *x, float *out)
{
    struct err e;
    size_t n = (size_t)t->dim[0], k = (size_t)t->dim[1], width = use == EMBED ? k : n;
    struct tensor w = *t;
    w.quantize = cut;
    w.data = memcpy(xmalloc(t->bytes), t->data, t->bytes);
    void *host = w.data;
    if (!T.k->upload(T.d, &w, &e))
        die("%s", e.msg);
    kbuf src = floats(x, (size_t)rows * k), dst = blank((size_t)rows * width);
    if (use == LINEAR)
        T.k->linear(T.d, &(struct k_linear){.rows = rows, .w = &w, .scale = 1, .src = src,
                                            .dst = dst});
    else if (use == GLU)
        T.k->glu(T.d, &(struct k_glu){.rows = rows, .gate = &w, .up = &w, .act = ACT_SILU,
                                      .src = src, .dst = dst});
    if (use == EMBED) {
        int32_t *ids = xmalloc((size_t)rows * sizeof *ids);
        for (int i = 0; i < rows; i++)
            ids[i] = i * 7 % (int)n;
        kbuf idx = dev_buf(&T, ids, (size_t)rows * sizeof *ids);
        T.k->embed(T.d, &(struct k_embed){.rows = rows, .n = (int)k, .ids = idx, .table = &w,
                                          .scale = 3, .dst = dst});
        kbuf again = blank((size_t)rows * k); /* the same by another operation */
        T.k->gather(T.d, &(struct k_gather){
            .rows = rows, .n_parts = 1,
            .part = {{.table = &w, .scale = 3, .idx = idx, .n = (int)k, .width = (int)k,
                      .dst = again}}});
        float *one = xmalloc((size_t)rows * k * 4), *two = xmalloc((size_t)rows * k * 4);
        T.k->get(T.d, one, dst, (size_t)rows * k * 4),
            T.k->get(T.d, two, again, (size_t)rows * k * 4);
        same_bits(one, two, (size_t)rows * k, "gathered");
        free(ids), free(one), free(two);
    }
    take(out, dst, (size_t)rows * width);
    dev_release(&T);
    free(host);
}

/* A matrix that the device cuts gives the bits of one that was rounded before; twice is once. */
static void cuts_as_defined(void)
{
    static const int shapes[][2] = {{40, 96}, {130, 262}, {640, 1152}, {70, 20}, {6000, 2560}};
    for (int i = 0; i < (T.k == &kernels_cpu ? 4 : 5); i++) {
        int out = shapes[i][0], in = shapes[i][1];
        struct tensor t = matrix(out, in), before = rounded(&t);
        for (int j = 0; j < 6 * USES; j++) { /* decode, verify and prefill rows of a GPU */
            static const int counts[] = {1, 7, 12, 20, 50, 130};
            const int rows = counts[j % 6];
            const enum use use = (enum use)(j / 6);
            size_t n = (size_t)(rows * (use == EMBED ? in : out));
            float *x = rnd_floats((size_t)(rows * in), 1), *a = rnd_floats(n, 1),
                  *b = rnd_floats(n, 1), *c = rnd_floats(n, 1);
            compute(&t, true, use, rows, x, a);
            compute(&before, false, use, rows, x, b);
            compute(&before, true, use, rows, x, c);
            same_bits(a, b, n, "cut by the device");
            same_bits(c, b, n, "cut twice");
            free(x), free(a), free(b), free(c);
        }
        free(t.data), free(before.data);
    }
}

/* A device keeps no memory for a refused matrix: of TIMES matrices it would be more than other
 * programs on a GPU are likely to allocate meanwhile. */
static void refuses(uint16_t weight)
{
    enum { SIDE = 1536, TIMES = 16, ALL = SIDE * SIDE * TIMES }; /* a byte a weight */
    struct tensor t = matrix(SIDE, SIDE);
    size_t before, after, all;
    ((uint16_t *)t.data)[77] = weight;
    t.quantize = true, t.name = "layers.0.wq";
    void *host = t.data;
    T.k->memory(T.d, &before, &all);
    for (int i = 0; i < TIMES; i++) {
        struct err e = {0};
        assert_false(T.k->upload(T.d, &t, &e));
        assert_int_equal(e.kind, ERR_MODEL);
        assert_non_null(strstr(e.msg, "layers.0.wq has a weight that is not finite"));
        assert_ptr_equal(t.data, host);
    }
    T.k->memory(T.d, &after, &all);
    assert_true(after + ALL / 2 >= before);
    free(host);
}

static void test_on_the_cpu(void **state)
{
    (void)state;
    dev_open(&T, &kernels_cpu, NULL, 2);
    cuts_as_defined();
    refuses(0x7f80), refuses(0xff80), refuses(0x7fc1);
    dev_close(&T);
}

static void test_on_a_gpu(void **state)
{
    (void)state;
#if HAVE_CUDA
    struct err e;
    for (int f32 = 0; f32 < 2; f32++) {
        T = (struct case_dev){.k = &kernels_cuda};
        T.d = kernels_cuda.open(&(struct k_opts){.precision = f32 ? K_F32 : K_BF16}, &e);
        if (!T.d)
            skip();
        cuts_as_defined();
        refuses(0x7f80), refuses(0xff80), refuses(0x7fc1);
        dev_close(&T);
    }
#else
    skip();
#endif
}

/* ---- models --------------------------------------------------------------------------------- */

static int n_cut(struct tensor *t, int n)
{
    int sum = 0;
    for (int i = 0; i < n; i++)
        sum += t[i].quantize;
    return sum;
}

static void check_cut(const struct quant_opts *o, int target, int draft, const char *text)
{
    struct err e;
    struct model m;
    struct draft d;
    int n;
    assert_true(model_load(&m, "models/nestling/target", NULL, &e));
    assert_true(draft_load(&d, "models/nestling/draft", &m, NULL, NULL, &e));
    assert_true(models_quantize(&m, &d, o, &e));
    struct tensor *t = layer_tensors(&m.layer[0], &n);
    assert_int_equal(n_cut(t, n), target);
    assert_int_equal(m.head.quantize, target > 0);
    assert_int_equal(m.embed.quantize, target > 0 && m.cfg.tied);
    assert_false(m.norm.quantize);
    t = layer_tensors(&d.layer[0], &n);
    assert_int_equal(n_cut(t, n), draft);
    assert_int_equal(d.fc.quantize, draft > 0);
    if (text)
        assert_string_equal(models_quant_text(o), text);
    else
        assert_null(models_quant_text(o));
    draft_free(&d);
    model_free(&m);
}

/* Seven matrices a layer: q, k, v, o, gate, up, down. */
static void test_which_are_cut(void **state)
{
    (void)state;
    check_cut(&(struct quant_opts){NULL, NULL}, 0, 0, NULL);
    check_cut(&(struct quant_opts){"stored", NULL}, 0, 0, NULL);
    check_cut(&(struct quant_opts){"fp8", NULL}, 7, 7, "weights fp8");
    check_cut(&(struct quant_opts){"fp8", "stored"}, 7, 0, "weights fp8, not the draft's");
    check_cut(&(struct quant_opts){NULL, "fp8"}, 0, 7, "the draft's weights fp8");
    struct err e = {0};
    assert_false(opts_check(&(struct engine_opts){.quant.weights = "fp4"}, &e));
    assert_string_equal(e.msg, "--weights cannot be \"fp4\"; expected stored or fp8");
}

/* A checkpoint of other types is not cut in silence. */
static void test_nothing_to_cut(void **state)
{
    (void)state;
    struct err e = {0};
    struct layer l = {.wq = {.type = DT_F32, .n_dim = 2, .bytes = 4}};
    struct model m = {.layer = &l, .cfg = {.n_layer = 1}};
    struct draft d = {.layer = &l, .cfg = {.n_layer = 1}};
    assert_false(models_quantize(&m, NULL, &(struct quant_opts){"fp8", NULL}, &e));
    assert_int_equal(e.kind, ERR_MODEL);
    assert_non_null(strstr(e.msg, "--weights fp8: the model has no bf16 matrices"));
    assert_false(models_quantize(&m, &d, &(struct quant_opts){NULL, "fp8"}, &e));
    assert_non_null(strstr(e.msg, "--draft-weights fp8: the draft has no"));
    l.gate = (struct tensor){.type = DT_BF16, .n_dim = 2, .bytes = 2};
    assert_true(models_quantize(&m, NULL, &(struct quant_opts){"fp8", NULL}, &e));
    assert_true(l.gate.quantize && !l.wq.quantize);
    l.gate.type = DT_F32;
    d.next = (struct tensor){.type = DT_BF16, .n_dim = 2, .bytes = 2, .by_row = true};
    assert_false(models_quantize(&m, &d, &(struct quant_opts){NULL, "fp8"}, &e));
    d.next.by_row = false; /* DSpark */
    assert_true(models_quantize(&m, &d, &(struct quant_opts){NULL, "fp8"}, &e) && d.next.quantize);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_code_is_its_value),
        cmocka_unit_test(test_the_nearest_is_taken),
        cmocka_unit_test(test_the_unit_fits),
        cmocka_unit_test(test_on_the_cpu),
        cmocka_unit_test(test_on_a_gpu),
        cmocka_unit_test(test_which_are_cut),
        cmocka_unit_test(test_nothing_to_cut),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
