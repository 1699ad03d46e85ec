/* test_kv_fp8.c - cells in FP8 (--kv fp8): the codes are the nearest ones, a head depends on itself
 * only, and replies are the same whatever the shape of the tree, the page size and the chunk. */
#include "kernels/fp8.h"
#include "tests/chance.h"
#include "tests/few.h"
#include "tests/runtimes.h"

#include <math.h>

/* A number of any sign, of 2^-lo to 2^0. */
static float number(int lo)
{
    float x = ldexpf(1 + (float)below(1 << 20) * 0x1p-20f, -1 - below(lo));
    return below(2) ? x : -x;
}

/* What E4M3 says. */
static double value_of(uint8_t code)
{
    int e = code >> 3 & 15, m = code & 7;
    double v = e ? ldexp(8 + m, e - 10) : ldexp(m, -9);
    return code & 0x80 ? -v : v;
}

static void test_every_code_is_read_as_its_number(void **state)
{
    (void)state;
    for (int scale = FP8_CELL_LEAST + 127; scale <= FP8_CELL_MOST + 127; scale++)
        for (int code = 0; code < 256; code++) {
            float x;
            if ((code & 0x7f) == 0x7f) /* never written */
                continue;
            fp8_cell_read(&(uint8_t){(uint8_t)code}, (uint8_t)scale, 1, &x);
            assert_true((double)x == ldexp(value_of((uint8_t)code), scale - 127));
            assert_int_equal(signbit(x) != 0, code >> 7);
        }
}

/* By comparison with every other code; at a tie the code with an even mantissa. */
static void test_the_nearest_code_is_written(void **state)
{
    (void)state;
    enum { N = 24 };
    for (int round = 0; round < 400; round++) {
        float x[N], y[N];
        uint8_t code[N], scale;
        float size = ldexpf(1, below(200) - 100);
        for (int i = 0; i < N; i++)
            x[i] = below(10) ? number(round % 2 ? 4 : 30) * size : 0;
        if (round % 5 == 0) /* half way between two codes */
            x[1] = 17 * 0x1p-5f * size, x[0] = size;
        fp8_cell_write(x, N, code, &scale);
        fp8_cell_read(code, scale, N, y);
        double most = 0;
        for (int i = 0; i < N; i++)
            most = fmax(most, fabs((double)x[i]));
        double unit = ldexp(1, scale - 127);
        assert_true(most <= 448 * unit && (most > 224 * unit || scale == FP8_CELL_LEAST + 127));
        for (int i = 0; i < N; i++) {
            double off = fabs((double)y[i] - (double)x[i]);
            for (int c = 0; c < 0x7f; c++) {
                double other = fabs(value_of((uint8_t)c) * unit - fabs((double)x[i]));
                assert_true(other >= off);
                if (other == off && c != (code[i] & 0x7f))
                    assert_int_equal(code[i] & 1, 0);
            }
            if (fabs((double)x[i]) >= ldexp(unit, -6))
                assert_true(off <= fabs((double)x[i]) / 16);
        }
    }
}

static void test_what_is_not_finite_makes_the_head_nan(void **state)
{
    (void)state;
    static const float odd[] = {NAN, -NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 4; i++) {
        float x[4] = {1, odd[i], 0, -3}, y[4];
        uint8_t code[4], scale;
        fp8_cell_write(x, 4, code, &scale);
        assert_int_equal(scale, FP8_CELL_NAN);
        fp8_cell_read(code, scale, 4, y);
        for (int k = 0; k < 4; k++)
            assert_true(isnan(y[k]));
    }
    float never[4];
    memset(never, 0, sizeof never);
    fp8_cell_read((const uint8_t *)"\xff\xff\xff\xff", 0xff, 4, never); /* a cell as it starts */
    for (int k = 0; k < 4; k++)
        assert_true(isnan(never[k]));
}

static void test_cells_are_whole_units(void **state)
{
    (void)state;
    for (int kv = 1; kv <= 16; kv++)
        for (int dim = 8; dim <= 256; dim += 8) {
            size_t n = kv_cell_bytes(KV_FP8, kv, dim);
            assert_true(n % 16 == 0 && n >= (size_t)(kv * dim + kv) &&
                        n < (size_t)(kv * dim + kv) + 16);
            assert_int_equal(kv_cell_bytes(KV_BF16, kv, dim), 2 * kv * dim);
        }
}

/* ---- with a model ---------------------------------------------------------------------------- */

#ifndef TEST_DEVICE
#define TEST_DEVICE "cpu"
#endif

static void open_bed(struct bed *b, const char *target, const char *draft, const char *precision,
                     int page_size)
{
    if (!bed_device(b, TEST_DEVICE, precision))
        skip();
    bed_load(b, target, draft);
    b->dev.kv = KV_FP8;
    bed_runtime(b, &(struct runtime_shape){.page_size = page_size, .context = 1024, .kv = KV_FP8});
}

static void replies_equal(const char *target, const char *draft, const char *precision,
                          float temperature)
{
    static const struct tree_shape shapes[] = {{0, 0, 1}, {3, 1, 4}, {5, 4, 16}, {6, 8, 60}};
    static const int page_sizes[] = {1, 4, 16}, chunks[] = {256, 17, 3};
    struct bed b[3];
    for (int i = 0; i < 3; i++)
        open_bed(&b[i], target, draft, precision, page_sizes[i]);
    for (int turn = 0; turn < 2; turn++) {
        struct lane first = {.tap_row = -1};
        for (int n = 20 + below(60); n > 0; n--)
            ids_add(&first.tok, below(b[0].m.cfg.vocab));
        int n_prompt = first.tok.n;
        struct ids expected = {0};
        for (int i = 0; i < rounds(5, 8); i++) { /* each shape after the plain reply */
            struct runtime *r = &b[i % 3].r;
            const struct tree_shape *shape = i ? &shapes[i % 4] : NULL;
            struct lane l = {.tap_row = -1, .seed = 5,
                             .how = {.temperature = temperature, .top_p = 1}};
            ids_cat(&l.tok, first.tok.v, n_prompt);
            lane_prompt(r, &l, chunks[i % 3], shape ? &shapes[1] : NULL);
            lane_run(r, &l, 40, shape);
            if (!expected.n)
                ids_cat(&expected, l.tok.v, l.tok.n);
            assert_int_equal(l.tok.n, expected.n);
            assert_memory_equal(l.tok.v, expected.v, (size_t)expected.n * sizeof *expected.v);
            lane_free(r, &l);
        }
        ids_free(&expected);
        ids_free(&first.tok);
    }
    for (int i = 0; i < 3; i++) {
        assert_int_equal(b[i].r.pass.check.violations, 0);
        assert_true(b[i].r.net.cells[0].k.n < b[i].r.net.cells[0].n_slots *
                                                 kv_cell_bytes(KV_BF16, b[i].r.net.cells[0].n_kv,
                                                               b[i].r.net.cells[0].head_dim));
        bed_close(&b[i]);
    }
}

static void test_replies_do_not_depend_on_shapes_pages_or_chunks(void **state)
{
    (void)state;
    replies_equal("models/nestling/target", "models/nestling/draft", "bf16", 0);
    replies_equal("tests/golden/gptoss-a", "tests/golden/eagle3-gptoss-a", "f32", 0.8f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_code_is_read_as_its_number),
        cmocka_unit_test(test_the_nearest_code_is_written),
        cmocka_unit_test(test_what_is_not_finite_makes_the_head_nan),
        cmocka_unit_test(test_cells_are_whole_units),
        cmocka_unit_test(test_replies_do_not_depend_on_shapes_pages_or_chunks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
