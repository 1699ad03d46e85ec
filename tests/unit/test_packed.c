/* test_packed.c - weights packed in blocks: their values against the Python package gguf
 * (tests/golden/packed.txt, made by tests/peers/packed.py).
 */
#include "kernels/packed.h"
#include "tests/kernel_test.h"

static const enum dtype packed_types[] = {DT_Q8_0, DT_Q4_0, DT_Q4_1, DT_Q5_0,   DT_Q5_1,   DT_Q2_K,  DT_Q3_K,
                                          DT_Q4_K, DT_Q5_K, DT_Q6_K, DT_IQ4_NL, DT_IQ4_XS, DT_MXFP4, DT_NVFP4};
enum { N_TYPES = sizeof packed_types / sizeof *packed_types, GOLDEN = 16384 };

static enum dtype type_named(const char *name)
{
    for (int i = 0; i < N_TYPES; i++)
        if (!strcmp(dtype_name(packed_types[i]), name))
            return packed_types[i];
    fail_msg("no type is named %s", name);
    return DT_NONE;
}

static void put_half(uint8_t *p, uint16_t h)
{
    p[0] = (uint8_t)h;
    p[1] = (uint8_t)(h >> 8);
}

/* The blocks of tests/peers/packed.py. */
static uint8_t *golden_blocks(enum dtype t, int number)
{
    static const uint16_t extreme[8] = {0x0000, 0x8000, 0x0001, 0x83ff, 0x7bff, 0xfbff, 0x0400, 0x3c00};
    static const uint8_t exponents[8] = {0, 1, 2, 3, 127, 128, 251, 252};
    const struct packed_format *f = packed_format(t);
    size_t n = GOLDEN / (size_t)f->elements, size = (size_t)f->bytes;
    uint8_t *b = xmalloc(n * size);
    for (size_t i = 0; i < n * size; i++)
        b[i] = (uint8_t)mix64(((uint64_t)number << 32) + i);
    for (size_t k = 0; k < n; k++) {
        uint8_t *p = b + k * size;
        for (size_t i = 0; i < 2 && f->scale[i] >= 0; i++) {
            if (k < 8)
                put_half(p + f->scale[i], extreme[(k + 8 - 3 * i) % 8]);
            if ((p[f->scale[i] + 1] & 0x7c) == 0x7c)
                p[f->scale[i] + 1] ^= 0x40;
        }
        if (t == DT_MXFP4)
            p[0] = k < 8 ? exponents[k] : p[0] > 252 ? 252 : p[0];
        for (int i = 0; t == DT_NVFP4 && i < 4; i++)
            p[i] ^= (p[i] & 0x7f) == 0x7f;
    }
    return b;
}

static void test_values_are_those_of_gguf(void **state)
{
    (void)state;
    FILE *f = fopen("tests/golden/packed.txt", "r");
    assert_non_null(f);
    char name[16], floats_hash[65], bf16_hash[65], got[65];
    int number, elements, bytes, seen = 0;
    float *y = xmalloc(GOLDEN * sizeof *y);
    uint16_t *h = xmalloc(GOLDEN * sizeof *h);
    while (fscanf(f, "%15s %d %d %d %64s %64s", name, &number, &elements, &bytes, floats_hash, bf16_hash) == 6) {
        enum dtype t = type_named(name);
        assert_int_equal(packed_format(t)->elements, elements);
        assert_int_equal(packed_format(t)->bytes, bytes);
        assert_true(PACKED_BLOCK % elements == 0);
        uint8_t *b = golden_blocks(t, number);
        assert_int_equal(packed_not_finite(t, b, GOLDEN / elements), -1);
        packed_floats(t, b, GOLDEN, y);
        sha256_hex(y, GOLDEN * sizeof *y, got);
        if (strcmp(got, floats_hash))
            fail_msg("%s: float32 values differ", name);
        packed_bf16(t, b, GOLDEN, h);
        sha256_hex(h, GOLDEN * sizeof *h, got);
        if (strcmp(got, bf16_hash))
            fail_msg("%s: bf16 values differ", name);
        for (int i = 0; i < GOLDEN; i++)
            assert_true(isfinite(y[i]) && (h[i] & 0x7f80) != 0x7f80);
        free(b);
        seen++;
    }
    assert_int_equal(seen, N_TYPES);
    fclose(f);
    free(y);
    free(h);
}

/* Each scale of a block, made NaN or infinite, is found, and nothing else. */
static void test_scales_that_are_not_finite_are_found(void **state)
{
    (void)state;
    for (int i = 0; i < N_TYPES; i++) {
        enum dtype t = packed_types[i];
        const struct packed_format *f = packed_format(t);
        uint8_t *b = golden_blocks(t, i), *at = b + 5 * f->bytes;
        int scales = 0;
        for (int off = 0; off < f->bytes; off++) {
            uint8_t was[2] = {at[off], off + 1 < f->bytes ? at[off + 1] : 0};
            bool half = off == f->scale[0] || off == f->scale[1];
            bool byte = (t == DT_MXFP4 && off == 0) || (t == DT_NVFP4 && off < 4);
            static const uint16_t bad[] = {0x7c00, 0xfc00, 0x7e00, 0xfdff};
            for (int k = 0; half && k < 4; k++) {
                put_half(at + off, bad[k]);
                assert_int_equal(packed_not_finite(t, b, 8), 5);
                assert_int_equal(packed_not_finite(t, b, 5), -1);
            }
            memcpy(at + off, was, half ? 2 : 1);
            if (!half && (off == 0 || (off - 1 != f->scale[0] && off - 1 != f->scale[1]))) {
                at[off] = 0xff;
                assert_int_equal(packed_not_finite(t, b, 8), byte ? 5 : -1);
                at[off] = 252; /* MXFP4: the largest of which six times is finite */
                assert_int_equal(packed_not_finite(t, b, 8), -1);
                at[off] = 253;
                assert_int_equal(packed_not_finite(t, b, 8), t == DT_MXFP4 && byte ? 5 : -1);
                at[off] = was[0];
            }
            scales += half || byte;
        }
        assert_true(scales > 0);
        free(b);
    }
}

static void test_bytes_of_rows(void **state)
{
    (void)state;
    size_t n = 77;
    assert_int_equal(dtype_bytes(DT_BF16, 7), 14);
    assert_int_equal(dtype_bytes(DT_Q4_K, 512), 288);
    assert_int_equal(dtype_size(DT_Q4_K), 0);
    assert_true(dtype_bytes_fit(DT_Q5_0, 3, (const int64_t[]){3, 5, 64}, &n) && n == 3 * 5 * 44);
    assert_true(dtype_bytes_fit(DT_F32, 0, NULL, &n) && n == 4);
    assert_true(dtype_bytes_fit(DT_F16, 2, (const int64_t[]){0, 3}, &n) && n == 0);
    n = 77;
    assert_false(dtype_bytes_fit(DT_Q5_0, 2, (const int64_t[]){2, 48}, &n));
    assert_false(dtype_bytes_fit(DT_Q4_K, 1, (const int64_t[]){-256}, &n));
    assert_false(dtype_bytes_fit(DT_F32, 2, (const int64_t[]){-1, 2}, &n));
    assert_false(dtype_bytes_fit(DT_OTHER, 1, (const int64_t[]){2}, &n));
    assert_false(dtype_bytes_fit(DT_F32, 2, (const int64_t[]){(int64_t)1 << 40, (int64_t)1 << 22}, &n));
    assert_false(dtype_bytes_fit(DT_Q8_0, 3, (const int64_t[]){(int64_t)1 << 30, (int64_t)1 << 30, 32}, &n));
    assert_int_equal(n, 77);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values_are_those_of_gguf),
        cmocka_unit_test(test_scales_that_are_not_finite_are_found),
        cmocka_unit_test(test_bytes_of_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
