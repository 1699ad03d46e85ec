/* test_packed.c - weights packed in blocks: their values against the Python package gguf
 * (tests/golden/packed.txt, made by tests/peers/packed.py), and operations on packed matrices
 * against the same on the bf16 matrices with their values: bit by bit.
 */
#include "kernels/packed.h"
#include "tests/few.h"
#include "tests/kernel_test.h"

static const enum dtype packed_types[] = {DT_Q8_0, DT_Q4_0, DT_Q4_1, DT_Q5_0,   DT_Q5_1,   DT_Q2_K,
                                          DT_Q3_K,
                                          DT_Q4_K, DT_Q5_K, DT_Q6_K, DT_IQ4_NL, DT_IQ4_XS, DT_MXFP4,
                                          DT_NVFP4, DT_E4M3, DT_E2M1};
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

/* Makes random bytes a block of E4M3: its scale, and no code that is NaN. */
static void put_e4m3(uint8_t *p, uint16_t scale)
{
    put_half(p, scale);
    for (int i = 2; i < 34; i++)
        p[i] ^= (p[i] & 0x7f) == 0x7f;
}

/* The blocks of tests/peers/packed.py. */
static uint8_t *golden_blocks(enum dtype t, int number)
{
    static const uint16_t extreme[8] = {0x0000, 0x8000, 0x0001, 0x83ff, 0x7bff, 0xfbff, 0x0400,
                                        0x3c00};
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

/* Says how much of a weight the rounding to bf16 takes; not of those near the smallest bf16. */
static void tell_rounding(const char *name, const float *y, const uint16_t *h)
{
    double squares = 0, most = 0;
    int n = 0;
    for (int i = 0; i < GOLDEN; i++) {
        if (fabsf(y[i]) < 0x1p-100f)
            continue;
        double off = fabs((double)bf16_to_f32(h[i]) / (double)y[i] - 1);
        squares += off * off;
        most = off > most ? off : most;
        n++;
    }
    print_message("# %s: %d weights, rounding to bf16: rms %.2e, at most %.2e of a weight\n", name,
                  n, sqrt(squares / n), most);
    assert_true(most <= 0x1p-8);
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
    while (fscanf(f, "%15s %d %d %d %64s %64s", name, &number, &elements, &bytes, floats_hash,
                  bf16_hash) == 6) {
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
        tell_rounding(name, y, h);
        free(b);
        seen++;
    }
    assert_int_equal(seen, N_TYPES - 2); /* E4M3 and E2M1 are no types of gguf */
    fclose(f);
    free(y);
    free(h);
}

/* Blocks of E4M3 with a code that is NaN, a scale that is not finite, or one too large for their
 * codes are found. Each code has the value of its definition with each scale. */
static void test_e4m3(void **state)
{
    (void)state;
    uint8_t b[2 * 34] = {0};
    float y[32];
    uint16_t h[32];
    assert_int_equal(packed_not_finite(DT_E4M3, b, 2), -1);
    for (int at = 34 + 2; at < 68; at++) {
        b[at] = at % 2 ? 0x7f : 0xff;
        assert_int_equal(packed_not_finite(DT_E4M3, b, 2), 1);
        b[at] = 0;
    }
    put_half(b + 34, 0x7b00); /* 2^119 */
    b[40] = 0xfe;
    assert_int_equal(packed_not_finite(DT_E4M3, b, 2), -1);
    put_half(b + 34, 0x7b80);
    assert_int_equal(packed_not_finite(DT_E4M3, b, 2), 1);
    b[40] = 0x78; /* 256: 2^128 with the scale */
    assert_int_equal(packed_not_finite(DT_E4M3, b, 2), 1);
    b[40] = 0x77; /* 240 */
    assert_int_equal(packed_not_finite(DT_E4M3, b, 2), -1);
    put_half(b + 34, 0xff80);
    assert_int_equal(packed_not_finite(DT_E4M3, b, 2), 1);
    for (unsigned scale = 0; scale < 0x10000; scale += 5 * (unsigned)one_in(5)) {
        if ((scale & 0x7fff) >= 0x7b00)
            continue;
        for (int c = 0; c < 256; c += 32) {
            for (int i = 0; i < 32; i++)
                b[2 + i] = (uint8_t)(c + i);
            put_e4m3(b, (uint16_t)scale);
            packed_floats(DT_E4M3, b, 32, y);
            packed_bf16(DT_E4M3, b, 32, h);
            for (int i = 0; i < 32; i++) {
                const int m = b[2 + i] & 7, e = b[2 + i] >> 3 & 15;
                const double code = e ? ldexp(8 + m, e - 10) : ldexp(m, -9),
                             by = (double)bf16_to_f32((uint16_t)scale);
                const double value = (b[2 + i] & 0x80 ? -code : code) * by;
                assert_true((double)y[i] == value && h[i] == f32_to_bf16(y[i]));
            }
        }
    }
}

/* The same of E2M1: a scale that is NaN, a factor that is not finite or too large; the values of
 * all codes and scales with some factors. */
static void test_e2m1(void **state)
{
    (void)state;
    static const float factors[] = {1, -0x1.234568p-7f, 0x1.fffffep-40f, 0x1p100f, 0x1p-120f, 0};
    static const double code_of[] = {0, .5, 1, 1.5, 2, 3, 4, 6};
    uint8_t b[22] = {0};
    float y[32];
    uint16_t h[32];
    for (int i = 0; i < (int)(sizeof factors / sizeof *factors); i++)
        for (int scale = 0; scale < 256; scale++) {
            memcpy(b, &factors[i], 4);
            b[4] = (uint8_t)scale, b[5] = (uint8_t)(scale ^ 1);
            for (int j = 0; j < 16; j++)
                b[6 + j] = (uint8_t)(j | (15 - j) << 4);
            const bool nan = (scale & 0x7f) == 0x7f || (scale & 0x7f) == 0x7e;
            assert_int_equal(packed_not_finite(DT_E2M1, b, 1), nan ? 0 : -1);
            if (nan)
                continue;
            packed_floats(DT_E2M1, b, 32, y);
            packed_bf16(DT_E2M1, b, 32, h);
            for (int j = 0; j < 32; j++) {
                const int c = j < 16 ? j : 31 - j, s = b[4 + j / 16], m = s & 7, e = s >> 3 & 15;
                const double by = e ? ldexp(8 + m, e - 10) : ldexp(m, -9),
                             inner = (c & 8) != (s >> 4 & 8) ? -code_of[c & 7] * by
                                                             : code_of[c & 7] * by;
                assert_true(y[j] == (float)(inner * (double)factors[i]));
                assert_int_equal(h[j], f32_to_bf16(y[j]));
            }
        }
    static const float bad[] = {NAN, INFINITY, 0x1p112f, -0x1p112f};
    memset(b, 0, sizeof b);
    for (int i = 0; i < (int)(sizeof bad / sizeof *bad); i++) {
        memcpy(b, &bad[i], 4);
        assert_int_equal(packed_not_finite(DT_E2M1, b, 1), 0);
    }
    memset(b, 0xfe, sizeof b);
    memcpy(b, &(float){0x1.fp111f}, 4);
    assert_int_equal(packed_not_finite(DT_E2M1, b, 1), -1);
    packed_bf16(DT_E2M1, b, 32, h);
    assert_true(bf16_to_f32(h[0]) == 0x1.b2p122f); /* -4 x -448 times the factor */
}

/* Each scale of a block, made NaN or infinite, is found, and nothing else. */
static void test_scales_that_are_not_finite_are_found(void **state)
{
    (void)state;
    for (int i = 0; i < N_TYPES; i++) {
        enum dtype t = packed_types[i];
        if (t == DT_E4M3 || t == DT_E2M1) /* see test_e4m3() and test_e2m1() */
            continue;
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

/* ---- operations: a packed tensor, and its twin in bf16 --------------------------------------- */

static uint16_t random_half(void) /* 2^-10 to 2^-5, either sign */
{
    return (uint16_t)((rnd() & 0x83ff) | (unsigned)(5 + rnd_int(5)) << 10);
}

/* Random codes; scales as those of trained weights, but extreme ones in the first row. */
static struct tensor packed_tensor(enum dtype t, int n_dim, int64_t a, int64_t b, int64_t c)
{
    struct tensor x = {.type = t, .n_dim = n_dim, .dim = {a, b, c}, .name = "packed"};
    const struct packed_format *f = packed_format(t);
    assert_true(dtype_bytes_fit(t, n_dim, x.dim, &x.bytes));
    uint8_t *p = x.data = xmalloc(x.bytes);
    size_t row = (size_t)x.dim[n_dim - 1] / (size_t)f->elements, at = 0;
    for (size_t i = 0; i < x.bytes; i++)
        p[i] = (uint8_t)rnd();
    for (; at < x.bytes / (size_t)f->bytes; at++, p += f->bytes) {
        static const uint16_t extreme[] = {0, 0x8000, 1, 0x83ff, 0x7bff, 0xfbff};
        for (int i = 0; i < 2 && f->scale[i] >= 0; i++)
            put_half(p + f->scale[i], at < row ? extreme[rnd_int(6)] : random_half());
        if (t == DT_MXFP4)
            p[0] = at < row ? (uint8_t)rnd_int(253) : (uint8_t)(118 + rnd_int(6));
        for (int i = 0; t == DT_NVFP4 && i < 4; i++)
            p[i] ^= (p[i] & 0x7f) == 0x7f;
        static const uint16_t rare[] = {0, 0x8000, 1, 0x8060, 0x0d80, 0x5012, 0x43ff};
        if (t == DT_E4M3) /* else 2^-14 to 2^-9 */
            put_e4m3(p, at < row ? rare[rnd_int(7)]
                                 : (uint16_t)((rnd() & 0x807f) |
                                              (unsigned)(113 + rnd_int(5)) << 7));
        static const float factors[] = {0, -0.f, 0x1p-149f, 0x1.8p-100f, 0x1.24p33f};
        if (t == DT_E2M1) {
            const float factor = at < row ? factors[rnd_int(5)] : rnd_normal() * 0x1p-14f;
            memcpy(p, &factor, sizeof factor);
            p[4] ^= (p[4] & 0x7f) == 0x7f, p[5] ^= (p[5] & 0x7f) == 0x7f;
        }
    }
    assert_int_equal(packed_not_finite(t, x.data, (int64_t)at), -1);
    return x;
}

static struct tensor twin_of(const struct tensor *x)
{
    struct tensor y = *x;
    size_t n = 1;
    for (int i = 0; i < x->n_dim; i++)
        n *= (size_t)x->dim[i];
    y.type = DT_BF16;
    y.bytes = 2 * n;
    y.data = xmalloc(y.bytes);
    packed_bf16(x->type, x->data, n, y.data);
    return y;
}

enum { OUT = 45, MOST_ROWS = 80, MOST_K = 800 };

struct product_case {
    int rows, k;
    struct tensor w[3], twin[3];
    float x[MOST_ROWS * MOST_K];
};

/* linear, glu and embed of the packed tensors, one behind the other in out; the twins give the
 * same. */
static void run_products(const void *arg, float *out)
{
    const struct product_case *c = arg;
    size_t n = (size_t)c->rows * OUT, e = (size_t)c->rows * (size_t)c->k, all = 2 * n + e;
    float *got[2] = {out, xmalloc(all * sizeof *out)};
    kbuf src = floats(c->x, e);
    int32_t ids[MOST_ROWS];
    for (int i = 0; i < c->rows; i++)
        ids[i] = i * 7 % OUT;
    kbuf id = ints(ids, (size_t)c->rows);
    for (int i = 0; i < 2; i++) {
        const struct tensor *w = i ? c->twin : c->w;
        kbuf y = blank(n), z = blank(n), v = blank(e);
        T.k->linear(
            T.d, &(struct k_linear){.rows = c->rows, .src = src, .w = &w[0], .scale = 1, .dst = y});
        T.k->glu(T.d, &(struct k_glu){.rows = c->rows,
                                      .src = src,
                                      .gate = &w[1],
                                      .up = &w[2],
                                      .act = ACT_SILU,
                                      .dst = z});
        T.k->embed(
            T.d,
            &(struct k_embed){
                .rows = c->rows, .n = c->k, .ids = id, .table = &w[0], .scale = 1.7f, .dst = v});
        take(got[i], y, n), take(got[i] + n, z, n), take(got[i] + 2 * n, v, e);
    }
    same_bits(got[0], got[1], all, dtype_name(c->w[0].type));
    free(got[1]);
}

static void test_products_are_those_of_the_bf16_twin(void **state)
{
    (void)state;
    static const int rows[] = {1, 2, 3, 5, 17, 64, 80};
    struct product_case *c = xmalloc(sizeof *c);
    float *out = xmalloc((2 * OUT + MOST_K) * MOST_ROWS * sizeof *out);
    for (int i = 0; i < N_TYPES; i++) {
        int each = packed_format(packed_types[i])->elements;
        for (int s = 0; s < 3; s++) { /* one block, less than a chunk of 256, more than one */
            c->k = s == 0        ? each
                   : s == 1      ? (each == 32   ? 96
                                    : each == 64 ? 192
                                                 : 512)
                   : each == 256 ? 768
                                 : 352 - each % 64;
            if (each == 64 && s == 2)
                c->k = 448;
            for (size_t j = 0; j < MOST_ROWS * MOST_K; j++)
                c->x[j] = rnd_normal();
            for (int m = 0; m < 3; m++) {
                c->w[m] = packed_tensor(packed_types[i], 2, OUT, c->k, 0);
                c->twin[m] = twin_of(&c->w[m]);
            }
            for (int r = 0; r < 7; r++)
                if (s == 2 || r < 2 || r == 5) {
                    c->rows = rows[r];
                    everywhere(run_products, c, out, (size_t)c->rows * (2 * OUT + (size_t)c->k));
                }
            for (int m = 0; m < 3; m++)
                free(c->w[m].data), free(c->twin[m].data);
        }
    }
    free(out);
    free(c);
}

enum { MANTISSAS = 1024 };

static void run_rounding(const void *arg, float *out)
{
    const struct tensor *w = arg;
    int32_t ids[MANTISSAS];
    for (int i = 0; i < MANTISSAS; i++)
        ids[i] = i;
    kbuf id = ints(ids, MANTISSAS), dst = blank(MANTISSAS * 256);
    T.k->embed(T.d,
               &(struct k_embed){
                   .rows = MANTISSAS, .n = 256, .ids = id, .table = w, .scale = 1, .dst = dst});
    take(out, dst, MANTISSAS * 256);
}

/* Every product of an f16 mantissa and a signed byte, so every tie that a scale and a code make. */
static void test_all_products_are_rounded_as_the_law_says(void **state)
{
    (void)state;
    struct tensor w = packed_tensor(DT_Q8_0, 2, MANTISSAS, 256, 0);
    uint8_t *p = w.data;
    for (int m = 0; m < MANTISSAS; m++)
        for (int i = 0; i < 8; i++, p += 34) {
            put_half(p, (uint16_t)(0x2400 | m));
            for (int j = 0; j < 32; j++)
                p[2 + j] = (uint8_t)(32 * i + j);
        }
    float *out = xmalloc(MANTISSAS * 256 * sizeof *out);
    everywhere(run_rounding, &w, out, MANTISSAS * 256);
    struct tensor twin = twin_of(&w);
    for (int i = 0; i < MANTISSAS * 256; i++)
        if (out[i] != bf16_to_f32(((const uint16_t *)twin.data)[i]))
            fail_msg("mantissa %d, code %d: %.9g", i / 256, (int8_t)(i % 256), (double)out[i]);
    free(out);
    free(w.data);
    free(twin.data);
}

enum { EXPERTS = 3, WIDTH = 256, FFN = 256, PAIRS_OF = 2 };

struct moe_case {
    int rows;
    struct tensor gate_up, down, router;
    struct tensor gate_up_twin, down_twin;
    float x[4 * WIDTH];
};

static void run_experts(const void *arg, float *out)
{
    const struct moe_case *c = arg;
    size_t n = (size_t)c->rows * WIDTH;
    float *twin = xmalloc(n * sizeof *twin);
    kbuf src = floats(c->x, n);
    for (int i = 0; i < 2; i++) {
        kbuf dst = blank(n);
        T.k->moe(T.d, &(struct k_moe){.rows = c->rows,
                                      .in = WIDTH,
                                      .ffn = FFN,
                                      .n_expert = EXPERTS,
                                      .top_k = PAIRS_OF,
                                      .src = src,
                                      .pre = {.kind = NORM_NONE},
                                      .router_scale = 1,
                                      .router = &c->router,
                                      .layout = EXPERT_HALVES,
                                      .gate_up = i ? &c->gate_up_twin : &c->gate_up,
                                      .down = i ? &c->down_twin : &c->down,
                                      .act = ACT_SILU,
                                      .dst = dst});
        take(i ? twin : out, dst, n);
    }
    same_bits(out, twin, n, dtype_name(c->gate_up.type));
    free(twin);
}

static void test_experts_are_those_of_the_bf16_twin(void **state)
{
    (void)state;
    float out[4 * WIDTH];
    for (int i = 0; i < N_TYPES; i++) {
        struct moe_case c = {.rows = 4};
        c.gate_up = packed_tensor(packed_types[i], 3, EXPERTS, 2 * FFN, WIDTH);
        c.down = packed_tensor(packed_types[i], 3, EXPERTS, WIDTH, FFN);
        c.gate_up_twin = twin_of(&c.gate_up), c.down_twin = twin_of(&c.down);
        c.router = TENSOR(DT_F32, .2f, EXPERTS, WIDTH);
        for (size_t j = 0; j < sizeof c.x / sizeof *c.x; j++)
            c.x[j] = rnd_normal();
        everywhere(run_experts, &c, out, 4 * WIDTH);
        free(c.gate_up.data), free(c.down.data), free(c.router.data);
        free(c.gate_up_twin.data), free(c.down_twin.data);
    }
}

static void test_random_weights_have_their_deviation(void **state)
{
    (void)state;
    enum { N = 1 << 16 };
    float *y = xmalloc(N * sizeof *y);
    for (int i = 0; i < N_TYPES; i++) {
        enum dtype t = packed_types[i];
        const struct packed_format *f = packed_format(t);
        size_t blocks = N / (size_t)f->elements, part = blocks / 3;
        uint8_t *all = xmalloc(dtype_bytes(t, N)), *again = xmalloc(dtype_bytes(t, N));
        packed_random(t, 7, 1 / 64.f, 0, blocks, all);
        packed_random(t, 7, 1 / 64.f, 0, part, again);
        packed_random(t, 7, 1 / 64.f, part, blocks - part, again + part * (size_t)f->bytes);
        assert_memory_equal(all, again, dtype_bytes(t, N));
        assert_int_equal(packed_not_finite(t, all, (int64_t)blocks), -1);
        packed_floats(t, all, N, y);
        double sum = 0, square = 0;
        for (int j = 0; j < N; j++)
            sum += (double)y[j], square += (double)y[j] * (double)y[j];
        bool coarse = t == DT_MXFP4 || t == DT_NVFP4; /* powers of two, three bits */
        double deviation = sqrt(square / N) * 64;
        if (deviation < (coarse ? 0.5 : 0.95) || deviation > (coarse ? 1.2 : 1.05) ||
            fabs(sum / N) * 64 > 0.15)
            fail_msg("%s: deviation %g, mean %g of 1", dtype_name(t), deviation, sum / N * 64);
        free(all);
        free(again);
    }
    free(y);
}

/* Millions of elements, which several threads unpack, have the numbers of few at a time; their last
 * part is shorter. */
static void test_many_elements_are_those_of_few(void **state)
{
    (void)state;
    const size_t n = ((size_t)3 << 20) + 256, few = 256;
    uint16_t *all = xmalloc(n * sizeof *all), *some = xmalloc(few * sizeof *some);
    uint8_t *b = xmalloc(dtype_bytes(DT_Q4_K, n));
    packed_random(DT_Q4_K, 5, 0.02f, 0, n / 256, b);
    memset(all, 0xff, n * sizeof *all);
    packed_bf16(DT_Q4_K, b, n, all);
    for (size_t i = 0; i < n; i += few) {
        packed_bf16(DT_Q4_K, b + dtype_bytes(DT_Q4_K, i), few, some);
        assert_memory_equal(all + i, some, few * sizeof *some);
    }
    free(all), free(some), free(b);
}

/* Every f16 number is found by its float32 number, and no number between two is one. */
static void test_f16_numbers_are_found(void **state)
{
    (void)state;
    for (unsigned h = 0; h < 0x10000; h++) {
        const float v = f16_to_f32((uint16_t)h);
        uint16_t got = 1;
        const bool finite = (h & 0x7c00) != 0x7c00;
        assert_true(f16_of(v, &got) == finite);
        assert_true(!finite || got == h);
        assert_false(finite && (h & 0x7fff) != 0 && f16_of(nextafterf(v, 0), &got));
        assert_false(finite && f16_of(nextafterf(v, INFINITY), &got));
    }
    uint16_t got;
    assert_false(f16_of(65536, &got) || f16_of(-0x1p-25f, &got) || f16_of(0x1.8p-24f, &got));
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
    assert_false(dtype_bytes_fit(DT_F32, 2, (const int64_t[]){(int64_t)1 << 40, (int64_t)1 << 22},
                                 &n));
    assert_false(dtype_bytes_fit(DT_Q8_0, 3,
                                 (const int64_t[]){(int64_t)1 << 30, (int64_t)1 << 30, 32}, &n));
    assert_int_equal(n, 77);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values_are_those_of_gguf),
        cmocka_unit_test(test_e4m3),
        cmocka_unit_test(test_e2m1),
        cmocka_unit_test(test_scales_that_are_not_finite_are_found),
        cmocka_unit_test(test_many_elements_are_those_of_few),
        cmocka_unit_test(test_f16_numbers_are_found),
        cmocka_unit_test(test_bytes_of_rows),
        cmocka_unit_test(test_random_weights_have_their_deviation),
        cmocka_unit_test(test_products_are_those_of_the_bf16_twin),
        cmocka_unit_test(test_all_products_are_rounded_as_the_law_says),
        cmocka_unit_test(test_experts_are_those_of_the_bf16_twin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
