/* test_kernels.c - the CPU kernels' row operations, products and qkv: against double precision,
 * and bit for bit against themselves (tests/kernel_test.h). Outputs begin as NaN, cells that no
 * row owns hold NaN.
 */
#include "tests/kernel_test.h"

#include <dirent.h>
#include <time.h>
#include <unistd.h>

/* ---- functions ------------------------------------------------------------------------------ */

static double ulps(float got, double want)
{
    int e;
    frexp(want, &e);
    return fabs((double)got - want) / ldexp(1, e - 24 < -149 ? -149 : e - 24);
}

static void test_functions_are_right_to_a_few_ulp(void **state)
{
    (void)state;
    const struct cpu_isa *isa = &cpu_isa_scalar;
    assert_true(isa->exp(0) == 1 && isa->exp(-INFINITY) == 0 && isa->exp(-1000) == 0);
    assert_true(isnan(isa->exp(NAN)));
    double worst[4] = {0};
    for (int i = 0; i < 200000; i++) {
        float x = i < 100000 ? (rnd_unit() - .5f) * 30 : ldexpf(rnd_unit() - .5f, -rnd_int(30));
        float tile[TILE_OUT] = {x}, y[3];
        struct cpu_epilogue f = {.scale = 1, .dst = y};
        f.softcap = 1;
        isa->epilogue(&f, tile, 1, 1);
        worst[0] = fmax(worst[0], ulps(y[0], tanh((double)x)));
        f.softcap = 0, f.act = ACT_SILU;
        isa->epilogue(&f, tile, 1, 1);
        worst[1] = fmax(worst[1], ulps(y[0], ref_act((double)x, ACT_SILU)));
        f.act = ACT_GELU_TANH;
        isa->epilogue(&f, tile, 1, 1);
        /* 2u carries the roundings of x^3: the error in ulp grows with |u| */
        double u2 = fabs(2 * sqrt(2 / M_PI) * ((double)x + .044715 * (double)x * x * x));
        double sigmoid = 1 / (1 + exp(x < 0 ? u2 : -u2));
        if (u2 < 80)
            worst[2] = fmax(worst[2], ulps(y[0], (double)x * sigmoid) / (1 + u2));
        worst[3] = fmax(worst[3], ulps(isa->exp(-fabsf(x)), exp(-fabs((double)x))));
    }
    assert_true(worst[0] < 4 && worst[1] < 4 && worst[2] < 3 && worst[3] < 1.1);
}

/* ---- rows ----------------------------------------------------------------------------------- */

struct embed_case {
    struct tensor table;
    int rows, n, gap;
    int32_t ids[9];
};

static void run_embed(const void *arg, float *out)
{
    const struct embed_case *c = arg;
    int apart = c->n + c->gap;
    kbuf dst = blank((size_t)(c->rows * apart));
    T.k->embed(T.d, &(struct k_embed){.rows = c->rows, .n = c->n, .ids = ints(c->ids, 9),
                                      .table = &c->table, .scale = 16, .dst = dst,
                                      .dst_stride = c->gap ? apart : 0});
    for (int r = 0; r < c->rows; r++)
        take(out + r * c->n, kbuf_at(dst, (size_t)(r * apart) * 4, (size_t)c->n * 4),
             (size_t)c->n);
}

static void test_embed_scales_table_rows(void **state)
{
    (void)state;
    for (int t = 0; t < 3; t++) {
        struct embed_case c = {.table = TENSOR(weight_types[t], 1, 50, 77), .rows = 9, .n = 77,
                               .gap = t};
        float out[9 * 77];
        double want[9 * 77];
        for (int r = 0; r < 9; r++) {
            c.ids[r] = rnd_int(50);
            for (int i = 0; i < 77; i++)
                want[r * 77 + i] = 16 * weight_at(&c.table, (size_t)(c.ids[r] * 77 + i));
        }
        everywhere(run_embed, &c, out, 9 * 77);
        close_to(out, want, 9 * 77, 0);
        free(c.table.data);
    }
}

struct rope_case {
    int half;
    float inv[40];
    int32_t pos[5];
};

static void run_rope(const void *arg, float *out)
{
    const struct rope_case *c = arg;
    kbuf cs = blank((size_t)(5 * c->half * 2));
    T.k->rope(T.d, &(struct k_rope){.rows = 5, .half = c->half, .pos = ints(c->pos, 5),
                                    .inv_freq = c->inv, .factor = 1.3465735903f, .cs = cs});
    take(out, cs, (size_t)(5 * c->half * 2));
}

static void test_rope_turns_by_position_times_frequency(void **state)
{
    (void)state;
    struct rope_case c = {.half = 37, .pos = {0, 1, 77, 4095, 131071}};
    float out[5 * 37 * 2];
    double want[5 * 37 * 2];
    for (int i = 0; i < c.half; i++)
        c.inv[i] = powf(150000, -2.f * (float)i / 74);
    for (int r = 0; r < 5; r++)
        for (int i = 0; i < c.half; i++) {
            double a = (double)((float)c.pos[r] * c.inv[i]), f = (double)1.3465735903f;
            want[(r * c.half + i) * 2] = cos(a) * f;
            want[(r * c.half + i) * 2 + 1] = sin(a) * f;
        }
    everywhere(run_rope, &c, out, 5 * 37 * 2);
    close_to(out, want, 5 * 37 * 2, 1e-7);
}

struct norm_case {
    int rows, n, src_stride, dst_stride;
    const float *src, *dst; /* dst NULL: in place */
    struct k_norm norm;
    bool add;
    float scale;
};

static void run_normalize(const void *arg, float *out)
{
    const struct norm_case *c = arg;
    size_t ns = (size_t)(c->rows * c->src_stride), nd = (size_t)(c->rows * c->dst_stride);
    kbuf src = floats(c->src, ns), dst = c->dst ? floats(c->dst, nd) : src;
    T.k->normalize(T.d, &(struct k_normalize){
        .rows = c->rows, .n = c->n, .src_stride = c->src_stride, .dst_stride = c->dst_stride,
        .src = src, .dst = dst, .norm = c->norm, .add = c->add, .scale = c->scale});
    take(out, dst, nd);
}

static void test_normalize_every_kind_and_length(void **state)
{
    (void)state;
    static const int lengths[] = {1, 7, 16, 31, 32, 33, 48, 63, 256, 1000};
    for (int i = 0; i < 10; i += one_in(4))
        for (int kind = NORM_NONE; kind <= NORM_LAYER; kind++)
            for (int variant = 0; variant < 3; variant++) {
                int n = lengths[i], rows = 3;
                struct tensor w = TENSOR(weight_types[variant], 1, n);
                struct norm_case c = {rows, n, n + 5, variant == 2 ? n + 5 : n + 2, NULL, NULL,
                                      {(enum norm_kind)kind, &w, 1e-5f}, variant == 1,
                                      variant ? .5f : 1};
                size_t ns = (size_t)(rows * c.src_stride), nd = (size_t)(rows * c.dst_stride);
                float *src = rnd_floats(ns, 3), *dst = rnd_floats(nd, 2), *out = rnd_floats(nd, 1);
                double *want = widened(variant == 2 ? src : dst, nd), *x = widened(src, ns);
                c.src = src;
                c.dst = variant == 2 ? NULL : dst;
                for (int r = 0; r < rows; r++) {
                    double y[1000];
                    ref_norm(x + r * c.src_stride, n, &c.norm, y);
                    for (int j = 0; j < n; j++) {
                        double *d = &want[r * c.dst_stride + j];
                        *d = (y[j] + (c.add ? *d : 0)) * (double)c.scale;
                    }
                }
                everywhere(run_normalize, &c, out, nd);
                close_to(out, want, nd, 1e-6);
                free(src), free(dst), free(out), free(want), free(x), free(w.data);
            }
}

struct gate_case {
    enum gate_kind gate;
    int group; /* of rows of 12 */
    const float *x, *by;
};

static void run_gate(const void *arg, float *out)
{
    const struct gate_case *c = arg;
    kbuf x = floats(c->x, 60), by = floats(c->by, (size_t)(60 / c->group));
    T.k->scale(T.d, &(struct k_scale){.rows = 5, .n = 12, .x = x, .by = by, .group = c->group,
                                      .gate = c->gate, .limit = .6f});
    take(out, x, 60);
}

static double ref_gated(double x, double y, enum gate_kind gate)
{
    if (gate == GATE_SIGMOID)
        return x / (1 + exp(-y));
    if (gate == GATE_SOFTPLUS)
        return x * log(1 + exp(y));
    return fmin(x, (double).6f) * fmax(-(double).6f, fmin(y, (double).6f));
}

static void test_gates_by_element_and_by_head(void **state)
{
    (void)state;
    float *x = rnd_floats(60, 2), *by = rnd_floats(60, 3), out[60];
    for (int gate = GATE_SIGMOID; gate <= GATE_CLAMP; gate++)
        for (int group = 1; group <= 12; group *= group == 1 ? 4 : 3) {
            struct gate_case c = {(enum gate_kind)gate, group, x, by};
            double want[60];
            for (int i = 0; i < 60; i++)
                want[i] = ref_gated(x[i], by[i / group], c.gate);
            everywhere(run_gate, &c, out, 60);
            close_to(out, want, 60, 1e-6);
        }
    free(x), free(by);
}

static void run_copies(const void *arg, float *out)
{
    const float *x = arg;
    static const int32_t idx[4] = {3, 0, 3, 2};
    struct tensor s = {.data = &(uint16_t){0x3f40}, .type = DT_BF16, .n_dim = 1, .dim = {1}};
    kbuf src = floats(x, 40), dst = floats(x, 40), dense = blank(4 * 7);
    T.k->rows(T.d, &(struct k_rows){.rows = 4, .n = 7, .src_stride = 9, .dst_stride = 10,
                                    .src = src, .dst = dst, .idx = ints(idx, 4)});
    T.k->rows(T.d, &(struct k_rows){.rows = 4, .n = 7, .src_stride = 10, .dst_stride = 7,
                                    .src = dst, .dst = dense});
    T.k->scale(T.d, &(struct k_scale){.rows = 2, .n = 7, .x = dense, .s = &s});
    take(out, dst, 40);
    take(out + 40, dense, 28);
}

static void test_rows_and_scale_touch_exactly_their_rows(void **state)
{
    (void)state;
    static const int32_t idx[4] = {3, 0, 3, 2};
    float *x = rnd_floats(40, 1), out[68];
    everywhere(run_copies, x, out, 68);
    for (int r = 0; r < 4; r++)
        for (int i = 0; i < 10; i++)
            assert_true(out[r * 10 + i] == (i < 7 ? x[idx[r] * 9 + i] : x[r * 10 + i]));
    for (int i = 0; i < 28; i++)
        assert_true(out[40 + i] == out[i / 7 * 10 + i % 7] * (i < 14 ? .75f : 1));
    free(x);
}

struct conv_case {
    int rows, n, taps, group, at, by_stride;
    bool add;
    const int32_t *run;
    const float *src, *by, *old;
    struct tensor base;
};

static void run_conv(const void *arg, float *out)
{
    const struct conv_case *c = arg;
    size_t n = (size_t)(c->rows * c->n);
    kbuf dst = floats(c->old, n);
    T.k->conv(T.d, &(struct k_conv){
        .rows = c->rows, .n = c->n, .taps = c->taps, .group = c->group,
        .run = ints(c->run, (size_t)c->rows), .src = floats(c->src, n), .base = &c->base,
        .at = c->at, .by = floats(c->by, (size_t)(c->rows * c->by_stride)),
        .by_stride = c->by_stride, .add = c->add, .dst = dst});
    take(out, dst, n);
}

/* Runs of one row to five, a run that comes again, and coefficients with a gap between rows. */
static void test_conv_stays_within_runs_of_rows(void **state)
{
    (void)state;
    static const int32_t run[11] = {4, 4, 4, 4, 4, 1, 0, 0, 0, 4, 4};
    static const int shapes[][3] = {{24, 1, 3}, {24, 3, 8}, {260, 2, 20}, {7, 8, 7}};
    for (int i = 0; i < 8; i++) {
        int n = shapes[i % 4][0], taps = shapes[i % 4][1], group = shapes[i % 4][2];
        int groups = n / group, wide = taps * groups + i, rows = 11;
        struct conv_case c = {rows, n, taps, group, i % 3, wide, i % 2, run,
                              rnd_floats((size_t)(rows * n), 2),
                              rnd_floats((size_t)(rows * wide), 1),
                              rnd_floats((size_t)(rows * n), 1),
                              TENSOR(weight_types[i % 3], 1, taps + 3, n)};
        float *out = rnd_floats((size_t)(rows * n), 1), *less = rnd_floats((size_t)(rows * n), 1);
        double *want = widened(c.old, (size_t)(rows * n));
        for (int r = 0; r < rows; r++)
            for (int j = 0; j < n; j++) {
                double sum = 0;
                for (int t = 0; t < taps && t <= r && run[r - t] == run[r]; t++)
                    sum += (weight_at(&c.base, (size_t)((c.at + t) * n + j)) +
                            (double)c.by[r * wide + t * groups + j / group]) *
                           (double)c.src[(r - t) * n + j];
                want[r * n + j] = (c.add ? want[r * n + j] : 0) + sum;
            }
        everywhere(run_conv, &c, out, (size_t)(rows * n));
        close_to(out, want, (size_t)(rows * n), 1e-6);
        struct conv_case some = c; /* the last two runs alone: the same bits */
        some.rows = 5, some.run += 6, some.src += 6 * n, some.by += 6 * wide, some.old += 6 * n;
        everywhere(run_conv, &some, less, (size_t)(5 * n));
        assert_memory_equal(less, out + 6 * n, (size_t)(5 * n) * sizeof *out);
        free((void *)c.src), free((void *)c.by), free((void *)c.old), free(c.base.data);
        free(out), free(less), free(want);
    }
}

static const int32_t far_pos[6] = {0, 15, 16, 31, 32, 1000003};

static void run_far_scale(const void *arg, float *out)
{
    kbuf x = floats(arg, 42);
    T.k->scale(T.d, &(struct k_scale){.rows = 6, .n = 7, .x = x, .pos = ints(far_pos, 6),
                                      .beta = .4f, .period = 16});
    take(out, x, 42);
}

static void test_rows_far_into_the_context_get_a_factor(void **state)
{
    (void)state;
    float *x = rnd_floats(42, 1), out[42];
    everywhere(run_far_scale, x, out, 42);
    for (int i = 0; i < 42; i++) {
        double f = 1 + .4 * log(1 + floor(far_pos[i / 7] / 16.));
        assert_true(fabs(out[i] - x[i] * f) <= 1e-6 * fabs(x[i] * f));
        assert_true(i >= 14 || out[i] == x[i]);
    }
    free(x);
}

/* A row of three parts: of a table, of states, and of others that are not normalised. */
struct gather_case {
    int rows, n;
    bool in_place, normed; /* the states: kept where they lie; normed ones */
    const float *x;
    const int32_t *idx;
    struct tensor table, norm, w;
    struct k_norm first, second;
    struct k_rope rope[K_MAX_ROPES]; /* none behind the first where half is 0 */
};

/* Its turns, with idx for positions, into cs one behind the other. */
static void gather_turns(const struct gather_case *c, kbuf idx, kbuf cs,
                         struct k_rope (*rope)[K_MAX_ROPES])
{
    for (size_t i = 0, at = 0; i < K_MAX_ROPES; i++) {
        struct k_rope *r = &(*rope)[i];
        *r = c->rope[i];
        r->rows = c->rows, r->pos = idx, r->cs = kbuf_at(cs, at, cs.n - at);
        at += (size_t)(c->rows * r->half) * 8;
    }
}

static void gather_parts(const struct gather_case *c, kbuf x, kbuf keep, bool packed, kbuf z,
                         kbuf cs)
{
    int n = c->n, wide = 3 * n;
    struct k_rope rope[K_MAX_ROPES];
    kbuf idx = ints(c->idx, (size_t)c->rows), from = c->in_place ? (kbuf){0} : idx;
    struct k_gather a = {.rows = c->rows, .n_parts = 3, .part = {
        {.n = n, .table = &c->table, .scale = .5f, .idx = idx, .norm = c->first},
        {.n = n, .src = x, .src_stride = n, .idx = from, .norm = c->second, .copy = keep,
         .copy_normed = c->normed, .at = n},
        {.n = n, .src = x, .src_stride = n, .idx = idx, .at = 2 * n}}};
    for (int i = 0; i < 3; i++)
        a.part[i].dst = z, a.part[i].width = wide, a.part[i].packed = packed;
    if (c->in_place) /* a part of its own, for the third one reads what it writes */
        a.n_parts = 2;
    gather_turns(c, idx, cs, &rope);
    for (int i = 0; i < K_MAX_ROPES && rope[i].half; i++)
        a.rope[i] = &rope[i];
    T.k->gather(T.d, &a);
}

/* The same, operation by operation. */
static void gather_apart(const struct gather_case *c, kbuf x, kbuf keep, kbuf z, kbuf cs)
{
    int n = c->n, wide = 3 * n, rows = c->rows;
    size_t each = (size_t)n * 4;
    struct k_rope rope[K_MAX_ROPES];
    kbuf idx = ints(c->idx, (size_t)rows);
    T.k->embed(T.d, &(struct k_embed){.rows = rows, .n = n, .ids = idx, .table = &c->table,
                                      .scale = .5f, .dst = z, .dst_stride = wide});
    for (int i = 1; i < (c->in_place ? 2 : 3); i++)
        T.k->rows(T.d, &(struct k_rows){
            .rows = rows, .n = n, .src_stride = n, .dst_stride = wide, .src = x,
            .dst = kbuf_at(z, each * (size_t)i, z.n - each * (size_t)i),
            .idx = i == 1 && c->in_place ? (kbuf){0} : idx});
    for (int i = 0; i < 2; i++) {
        kbuf part = kbuf_at(z, each * (size_t)i, z.n - each * (size_t)i);
        struct k_rows kept = {.rows = rows, .n = n, .src_stride = wide, .src = part, .dst = keep};
        if (i == 1 && !c->normed)
            T.k->rows(T.d, &kept);
        T.k->normalize(T.d, &(struct k_normalize){.rows = rows, .n = n, .src_stride = wide,
                                                  .dst_stride = wide, .src = part, .dst = part,
                                                  .norm = i ? c->second : c->first, .scale = 1});
        if (i == 1 && c->normed)
            T.k->rows(T.d, &kept);
    }
    gather_turns(c, idx, cs, &rope);
    for (int i = 0; i < K_MAX_ROPES && rope[i].half; i++)
        T.k->rope(T.d, &rope[i]);
}

static size_t gather_halves(const struct gather_case *c)
{
    return (size_t)(c->rope[0].half + c->rope[1].half);
}

/* Reads back the results of a gather: z, the copied rows, the rope tables, and a product of z. */
static void take_gather(const struct gather_case *c, bool packed, kbuf z, kbuf keep, kbuf cs,
                        float *out)
{
    size_t rows = (size_t)c->rows, n = (size_t)c->n, half = gather_halves(c);
    kbuf y = blank(rows * (size_t)c->w.dim[0]);
    T.k->linear(T.d, &(struct k_linear){.rows = c->rows, .src_stride = 3 * c->n, .src = z,
                                        .w = &c->w, .scale = 1, .packed = packed, .dst = y});
    if (!packed)
        take(out, z, rows * 3 * n);
    take(out + rows * 3 * n, keep, rows * n);
    take(out + rows * 4 * n, cs, rows * half * 2);
    take(out + rows * (4 * n + half * 2), y, rows * (size_t)c->w.dim[0]);
}

enum { LAID_ROWS = 100, LAID_OUT = 6 };

static void run_gather(const void *arg, float *out)
{
    const struct gather_case *c = arg;
    size_t rows = (size_t)c->rows, n = (size_t)c->n, half = gather_halves(c);
    size_t all = rows * (4 * n + half * 2 + LAID_OUT), nx = LAID_ROWS * n;
    float *apart = rnd_floats(all, 1), *packed = rnd_floats(all, 1);
    for (int i = 0; i < 3; i++) {
        kbuf x = floats(c->x, nx), keep = c->in_place ? x : blank(rows * n);
        kbuf z = floats(c->x, rows * 3 * n), cs = blank(rows * half * 2);
        if (i == 0)
            gather_apart(c, x, keep, z, cs);
        else
            gather_parts(c, x, keep, i == 2 && !c->in_place, z, cs);
        take_gather(c, i == 2 && !c->in_place, z, keep, cs, i == 0 ? apart : i == 1 ? out : packed);
    }
    same_bits(out, apart, all, "laid at once");
    size_t own = rows * 3 * n; /* the device's, where they are packed */
    same_bits(packed + own, apart + own, all - own, "laid for a product");
    free(apart), free(packed);
}

static void test_gather_is_its_parts(void **state)
{
    (void)state;
    static const int rows[] = {1, 3, 8, 20, 64, 100}, lengths[] = {32, 6, 1056, 3200, 4};
    for (int i = 0; i < 6; i += one_in(2))
        for (int j = 0; j < 5; j++) {
            int n = lengths[j], kind = (i + j) % 4;
            struct gather_case c = {.rows = rows[i], .n = n, .in_place = (i + j) % 3 == 2,
                                 .normed = i % 2};
            float *x, freq[300]; /* more than travel with a launch */
            int32_t idx[LAID_ROWS];
            for (int r = 0; r < c.rows; r++)
                idx[r] = rnd_int(LAID_ROWS);
            c.table = TENSOR(weight_types[j % 3], 1, LAID_ROWS, n);
            c.norm = TENSOR(weight_types[i % 3], 1, n);
            c.w = TENSOR(DT_BF16, 1, LAID_OUT, 3 * n);
            c.first = (struct k_norm){(enum norm_kind)kind, &c.norm, 1e-5f};
            c.second = (struct k_norm){kind == NORM_RMS ? NORM_NONE : NORM_RMS, &c.norm, 1e-6f};
            for (int f = 0; f < 300; f++)
                freq[f] = exp2f(-.05f * (float)f);
            c.rope[0] = (struct k_rope){.half = j == 3 ? 300 : 7, .factor = 1.5f, .inv_freq = freq};
            c.rope[1] = (struct k_rope){.half = i % 2 * 3, .factor = .5f, .inv_freq = freq + 40};
            c.idx = idx, c.x = x = rnd_floats((size_t)LAID_ROWS * 3 * (size_t)n, 2);
            size_t all = (size_t)c.rows * ((size_t)(4 * n) + 2 * gather_halves(&c) + LAID_OUT);
            float *out = rnd_floats(all, 1);
            everywhere(run_gather, &c, out, all);
            free(out), free(x), free(c.table.data), free(c.norm.data), free(c.w.data);
        }
}

/* ---- linear and glu ------------------------------------------------------------------------- */

struct linear_case {
    int rows, in, out, src_stride, dst_stride, mul_stride;
    const float *src, *mul, *dst;
    struct tensor w, b;
    struct k_norm pre, post;
    bool has_b, has_mul, add;
    enum act_kind act;
    float softcap, scale;
};

static void run_linear(const void *arg, float *out)
{
    const struct linear_case *c = arg;
    int ds = c->dst_stride ? c->dst_stride : c->out;
    size_t nd = (size_t)(c->rows * ds);
    kbuf dst = c->dst ? floats(c->dst, nd) : blank(nd);
    struct k_linear a = {.rows = c->rows, .src_stride = c->src_stride, .dst_stride = c->dst_stride,
                         .src = floats(c->src, (size_t)(c->rows * c->src_stride)), .pre = c->pre,
                         .post = c->post, .w = &c->w, .b = c->has_b ? &c->b : NULL, .act = c->act,
                         .softcap = c->softcap, .scale = c->scale, .mul_stride = c->mul_stride,
                         .add = c->add, .dst = dst};
    if (c->has_mul)
        a.mul = floats(c->mul, (size_t)(c->rows * c->mul_stride));
    T.k->linear(T.d, &a);
    take(out, dst, nd);
}

static void ref_linear_case(const struct linear_case *c, double *want)
{
    double *x = widened(c->src, (size_t)(c->rows * c->src_stride));
    double *y = xmalloc((size_t)(c->rows * c->out) * sizeof *y);
    double *z = xmalloc((size_t)c->out * sizeof *z);
    int ds = c->dst_stride ? c->dst_stride : c->out;
    ref_linear(x, c->rows, (size_t)c->src_stride, &c->pre, &c->w, c->has_b ? &c->b : NULL, y);
    for (int r = 0; r < c->rows; r++) {
        for (int o = 0; o < c->out; o++) {
            double v = ref_cap(ref_act(y[r * c->out + o], c->act), (double)c->softcap);
            v *= (double)c->scale;
            y[r * c->out + o] = v * (c->has_mul ? (double)c->mul[r * c->mul_stride + o] : 1);
        }
        ref_norm(y + r * c->out, c->out, &c->post, z);
        for (int o = 0; o < ds; o++) {
            double old = c->dst ? (double)c->dst[r * ds + o] : NAN;
            want[r * ds + o] = o >= c->out ? old : z[o] + (c->add ? old : 0);
        }
    }
    free(x), free(y), free(z);
}

/* Options by the bits of a number, so that a loop meets their combinations. */
static struct linear_case linear_case_of(int rows, int in, int out, int bits)
{
    struct linear_case c = {.rows = rows, .in = in, .out = out, .scale = 1};
    enum dtype type = weight_types[bits % 3];
    c.w = TENSOR(type, 1 / sqrtf((float)in), out, in);
    c.b = TENSOR(DT_BF16, 1, out);
    c.src_stride = in + (bits & 1 ? 3 : 0);
    c.has_b = bits & 2;
    c.act = bits & 4 ? ACT_SILU : bits & 8 ? ACT_GELU_TANH : ACT_NONE;
    c.softcap = bits & 16 ? 3 : 0;
    c.scale = bits & 32 ? .25f : 1;
    c.has_mul = bits & 64;
    c.mul_stride = out + 7;
    c.add = bits & 128;
    c.dst_stride = bits & 128 ? out + 2 : 0;
    if (bits & 256)
        c.pre = (struct k_norm){NORM_RMS, NULL, 1e-6f};
    if (bits & 512)
        c.post = (struct k_norm){NORM_RMS1P, NULL, 1e-6f};
    c.src = rnd_floats((size_t)(rows * c.src_stride), 1.5f);
    c.mul = rnd_floats((size_t)(rows * c.mul_stride), 1);
    c.dst = c.add ? rnd_floats((size_t)(rows * c.dst_stride), 1) : NULL;
    return c;
}

static void linear_case_free(struct linear_case *c)
{
    free(c->w.data), free(c->b.data);
    free((float *)c->src), free((float *)c->mul), free((float *)c->dst);
}

static void test_linear_every_option_and_ragged_shape(void **state)
{
    (void)state;
    static const int shapes[][3] = {{1, 1, 1}, {2, 31, 5}, {3, 32, 33}, {5, 33, 64}, {6, 65, 47},
                                    {7, 256, 40}, {13, 96, 100}, {75, 70, 31}, {4, 900, 17}};
    for (int bits = 0; bits < 1024; bits += (1 + rnd_int(11)) * one_in(6)) {
        const int *s = shapes[bits % 9];
        struct linear_case c = linear_case_of(s[0], s[1], s[2], bits);
        struct tensor pre = TENSOR(DT_BF16, 1, c.in), post = TENSOR(DT_F32, 1, c.out);
        c.pre.w = &pre, c.post.w = &post;
        size_t n = (size_t)(c.rows * (c.dst_stride ? c.dst_stride : c.out));
        float *out = rnd_floats(n, 1);
        double *want = xmalloc(n * sizeof *want);
        ref_linear_case(&c, want);
        everywhere(run_linear, &c, out, n);
        close_to(out, want, n, TOL);
        free(out), free(want), free(pre.data), free(post.data);
        linear_case_free(&c);
    }
}

/* Law 5: a row's result depends on that row alone. Many rows are multiplied in panels of 16
 * (wide.h), with a last one that is full or not, and single rows behind them; 16 panels of long
 * rows are a sweep. */
enum { ROWS_APART = 275 };

static void run_linear_rows(const void *arg, float *out)
{
    const struct linear_case *c = arg;
    size_t in = (size_t)c->in, n = (size_t)c->out;
    float *alone = xmalloc(ROWS_APART * n * sizeof *alone),
        *got = xmalloc(ROWS_APART * n * sizeof *got);
    float *src = xmalloc(ROWS_APART * in * sizeof *src);
    struct k_linear a = {.w = &c->w, .scale = 1, .act = ACT_SILU, .src_stride = c->in, .rows = 1};
    for (size_t r = 0; r < ROWS_APART; r++) {
        a.src = floats(c->src + r * in, in);
        a.dst = blank(n);
        T.k->linear(T.d, &a);
        take(alone + r * n, a.dst, n);
        dev_release(&T);
    }
    static const int counts[] = {2,  3,  4,  5,  6,  7,  8,  12,  16, 23,
                                 24, 25, 60, 64, 74, 75, 80, 100, ROWS_APART};
    for (size_t i = 0; i < LEN(counts); i += (size_t)one_in(3)) {
        int m = counts[i], turn = rnd_int(ROWS_APART);
        for (int r = 0; r < m; r++)
            memcpy(src + (size_t)r * in, c->src + (size_t)((r * 7 + turn) % ROWS_APART) * in,
                   in * 4);
        a.rows = m;
        a.src = floats(src, (size_t)m * in);
        a.dst = blank((size_t)m * n);
        T.k->linear(T.d, &a);
        take(got, a.dst, (size_t)m * n);
        for (int r = 0; r < m; r++)
            same_bits(got + (size_t)r * n, alone + (size_t)((r * 7 + turn) % ROWS_APART) * n, n,
                      "a row among others");
        dev_release(&T);
    }
    memcpy(out, alone, ROWS_APART * n * sizeof *out);
    free(alone), free(got), free(src);
}

static void test_linear_rows_do_not_depend_on_their_neighbours(void **state)
{
    (void)state;
    static const struct { int type, in, out; } cases[] = {{0, 130, 70}, {0, 3106, 9}, {1, 130, 70},
                                                          {2, 130, 70}};
    for (size_t i = 0; i < LEN(cases); i += i ? (size_t)one_in(2) : 1) {
        size_t in = (size_t)cases[i].in, n = ROWS_APART * (size_t)cases[i].out;
        struct linear_case c = {.in = cases[i].in, .out = cases[i].out,
                                .src = rnd_floats(ROWS_APART * in, 1)};
        float *out = rnd_floats(n, 1);
        c.w = TENSOR(weight_types[cases[i].type], .1f, cases[i].out, cases[i].in);
        everywhere(run_linear_rows, &c, out, n);
        free(out), free((float *)c.src), free(c.w.data);
    }
}

struct glu_case {
    int rows, in, ffn;
    const float *src;
    struct tensor gate, up;
    struct k_norm pre;
    enum act_kind act;
};

static void run_glu(const void *arg, float *out)
{
    const struct glu_case *c = arg;
    size_t n = (size_t)(c->rows * c->ffn);
    kbuf dst = blank(n);
    T.k->glu(T.d, &(struct k_glu){.rows = c->rows, .src = floats(c->src, (size_t)(c->rows * c->in)),
                                  .pre = c->pre, .gate = &c->gate, .up = &c->up, .act = c->act,
                                  .dst = dst});
    take(out, dst, n);
}

static void test_glu_multiplies_activated_gate_and_up(void **state)
{
    (void)state;
    static const int shapes[][3] = {{1, 64, 90}, {9, 33, 31}, {91, 40, 33}};
    for (int i = 0; i < 9; i += one_in(4)) {
        const int *s = shapes[i % 3];
        struct tensor w = TENSOR(DT_F16, 1, s[1]);
        struct glu_case c = {s[0], s[1], s[2], rnd_floats((size_t)(s[0] * s[1]), 1),
                             TENSOR(weight_types[i / 3], .2f, s[2], s[1]),
                             TENSOR(weight_types[(i + 1) % 3], .2f, s[2], s[1]),
                             {i % 2 ? NORM_RMS1P : NORM_NONE, &w, 1e-6f},
                             i % 2 ? ACT_SILU : ACT_GELU_TANH};
        size_t n = (size_t)(s[0] * s[2]);
        float *out = rnd_floats(n, 1);
        double *x = widened(c.src, (size_t)(s[0] * s[1])), *g = xmalloc(n * 8), *u = xmalloc(n * 8);
        ref_linear(x, s[0], (size_t)s[1], &c.pre, &c.gate, NULL, g);
        ref_linear(x, s[0], (size_t)s[1], &c.pre, &c.up, NULL, u);
        for (size_t j = 0; j < n; j++)
            g[j] = ref_act(g[j], c.act) * u[j];
        everywhere(run_glu, &c, out, n);
        close_to(out, g, n, TOL);
        free(out), free(x), free(g), free(u), free((float *)c.src);
        free(w.data), free(c.gate.data), free(c.up.data);
    }
}

/* ---- qkv ------------------------------------------------------------------------------------ */

enum { QKV_SLOTS = 20 };

struct qkv_case {
    int rows, in, n_head, n_kv, head_dim, rot;
    const float *src, *cs;
    struct k_norm norm, q_norm, k_norm, v_norm;
    struct tensor wq, wk, wv, bq, bk, bv;
    bool bias, whole, v_from_k, shared;
    enum kv_type type;
    int32_t write[8];
};

/* The rows that were kept are the source's. */
static void check_kept(const struct qkv_case *c, kbuf keep, size_t stride)
{
    size_t n = (size_t)c->in;
    float *kept = rnd_floats((size_t)c->rows * stride, 1);
    take(kept, keep, (size_t)c->rows * stride);
    for (size_t r = 0; r < (size_t)c->rows; r++)
        assert_memory_equal(kept + r * stride, c->src + r * n, n * sizeof *kept);
    free(kept);
}

/* out: q, then the whole K and V pools widened to float */
static void run_qkv(const void *arg, float *out)
{
    const struct qkv_case *c = arg;
    size_t nq = (size_t)(c->rows * c->n_head * c->head_dim);
    size_t cells = (size_t)(QKV_SLOTS * c->n_kv * c->head_dim), size = kv_type_size(c->type);
    kbuf q = blank(nq), k = dev_buf(&T, NULL, cells * size), v = dev_buf(&T, NULL, cells * size);
    struct k_table table = {.write = ints(c->write, (size_t)c->rows)};
    size_t wide = (size_t)(c->in + c->rows % 5);
    kbuf keep = blank((size_t)c->rows * wide);
    T.k->qkv(T.d, &(struct k_qkv){
        .rows = c->rows, .src_stride = c->in, .src = floats(c->src, (size_t)(c->rows * c->in)),
        .norm = c->norm, .capture = keep, .capture_stride = (int)wide,
        .wq = &c->wq, .wk = c->shared ? NULL : &c->wk,
        .wv = c->shared || c->v_from_k ? NULL : &c->wv, .bq = c->bias ? &c->bq : NULL,
        .bk = c->bias ? &c->bk : NULL, .bv = c->bias && !c->v_from_k ? &c->bv : NULL,
        .n_head = c->n_head, .n_kv = c->n_kv, .head_dim = c->head_dim, .q_norm = c->q_norm,
        .k_norm = c->k_norm, .v_norm = c->v_norm, .norm_whole = c->whole,
        .v_from_k = c->v_from_k, .rot = c->rot,
        .cs = floats(c->cs, (size_t)(c->rows * c->rot)), .q = q,
        .cells = {k, v, c->type, QKV_SLOTS, c->n_kv, c->head_dim}, .table = &table});
    take(out, q, nq);
    check_kept(c, keep, wide);
    for (int i = 0; i < 2; i++) {
        char *raw = xmalloc(cells * size);
        T.k->get(T.d, raw, i ? v : k, cells * size);
        for (size_t j = 0; j < cells; j++)
            out[nq + (size_t)i * cells + j] =
                c->type == KV_F32 ? ((float *)raw)[j] : bf16_to_f32(((uint16_t *)raw)[j]);
        free(raw);
    }
}

static void ref_heads(double *x, int heads, int n, const struct k_norm *norm, bool whole)
{
    double y[2048];
    int len = whole ? heads * n : n;
    for (int i = 0; i < heads * n; i += len) {
        ref_norm(x + i, len, norm, y);
        memcpy(x + i, y, (size_t)len * sizeof *y);
    }
}

static void ref_turn(double *x, int heads, int n, int rot, const float *cs)
{
    for (int h = 0; h < heads; h++)
        for (int i = 0; i < rot / 2; i++) {
            double *a = x + h * n + i, *b = a + rot / 2, c = cs[2 * i], s = cs[2 * i + 1];
            double old = *a;
            *a = *a * c - *b * s;
            *b = *b * c + old * s;
        }
}

static void ref_qkv(const struct qkv_case *c, double *want)
{
    int n = c->head_dim, nq = c->n_head * n, nk = c->n_kv * n;
    double *x = widened(c->src, (size_t)(c->rows * c->in));
    double *k = xmalloc((size_t)(c->rows * nk) * 8), *v = xmalloc((size_t)(c->rows * nk) * 8);
    double *pool_k = want + c->rows * nq, *pool_v = pool_k + QKV_SLOTS * nk;
    for (int i = 0; i < 2 * QKV_SLOTS * nk; i++)
        pool_k[i] = NAN;
    ref_linear(x, c->rows, (size_t)c->in, &c->norm, &c->wq, c->bias ? &c->bq : NULL, want);
    ref_linear(x, c->rows, (size_t)c->in, &c->norm, &c->wk, c->bias ? &c->bk : NULL, k);
    if (c->v_from_k)
        memcpy(v, k, (size_t)(c->rows * nk) * 8);
    else
        ref_linear(x, c->rows, (size_t)c->in, &c->norm, &c->wv, c->bias ? &c->bv : NULL, v);
    for (int r = 0; r < c->rows; r++) {
        const float *cs = c->cs + r * c->rot;
        ref_heads(want + r * nq, c->n_head, n, &c->q_norm, c->whole);
        ref_heads(k + r * nk, c->n_kv, n, &c->k_norm, c->whole);
        ref_heads(v + r * nk, c->n_kv, n, &c->v_norm, false);
        ref_turn(want + r * nq, c->n_head, n, c->rot, cs);
        ref_turn(k + r * nk, c->n_kv, n, c->rot, cs);
        for (int i = 0; i < nk && !c->shared; i++) {
            pool_k[c->write[r] * nk + i] = k[r * nk + i];
            pool_v[c->write[r] * nk + i] = v[r * nk + i];
        }
    }
    free(x), free(k), free(v);
}

static void check_qkv(const struct qkv_case *c)
{
    int nk = c->n_kv * c->head_dim;
    size_t nq = (size_t)(c->rows * c->n_head * c->head_dim), cells = (size_t)(QKV_SLOTS * nk);
    size_t n = nq + 2 * cells;
    float *out = rnd_floats(n, 1);
    double *want = xmalloc(n * sizeof *want);
    ref_qkv(c, want);
    everywhere(run_qkv, c, out, n);
    close_to(out, want, nq, TOL);
    for (int s = 0; s < QKV_SLOTS * 2; s++) {
        size_t at = nq + (size_t)(s * nk);
        if (isnan(want[at]))
            for (int i = 0; i < nk; i++)
                assert_true(isnan(out[at + (size_t)i])); /* nobody's cell stays as it was */
        else /* bf16 keeps 8 bits: it rounds by up to 2^-8 of the value */
            close_to(out + at, want + at, (size_t)nk, c->type == KV_F32 ? TOL : 0x1p-8 + TOL);
    }
    free(out), free(want);
}

static void test_qkv_every_family_shape(void **state)
{
    (void)state;
    for (int bits = 0; bits < 128; bits += one_in(9)) {
        int hd = bits % 5 == 0 ? 40 : 32, heads = 4, kv = bits % 3 ? 2 : 1, in = 50 + bits % 20;
        struct tensor w[5] = {TENSOR(DT_BF16, 1, in), TENSOR(DT_F32, 1, heads * hd),
                              TENSOR(DT_BF16, 1, kv * hd), TENSOR(DT_F16, 1, hd), {0}};
        enum dtype t = weight_types[bits % 3];
        struct qkv_case c = {
            .rows = 1 + bits % 7, .in = in, .n_head = heads, .n_kv = kv, .head_dim = hd,
            .rot = bits % 4 == 0 ? 0 : bits % 4 == 1 ? hd : hd / 4 * 2,
            .norm = {bits & 1 ? NORM_RMS : NORM_NONE, &w[0], 1e-6f},
            .q_norm = {bits & 2 ? NORM_RMS1P : NORM_NONE, &w[1], 1e-6f},
            .k_norm = {bits & 2 ? NORM_RMS1P : NORM_NONE, &w[2], 1e-6f},
            .v_norm = {bits & 4 ? NORM_PLAIN : NORM_NONE, NULL, 1e-6f},
            .wq = TENSOR(t, .15f, heads * hd, in), .wk = TENSOR(t, .15f, kv * hd, in),
            .wv = TENSOR(DT_BF16, .15f, kv * hd, in), .bq = TENSOR(DT_BF16, 1, heads * hd),
            .bk = TENSOR(DT_F32, 1, kv * hd), .bv = TENSOR(DT_F16, 1, kv * hd),
            .bias = bits & 8, .whole = bits & 16, .v_from_k = bits & 32,
            .shared = bits % 11 == 10, .type = bits & 64 ? KV_BF16 : KV_F32};
        c.src = rnd_floats((size_t)(c.rows * in), 1);
        c.cs = rnd_floats((size_t)(c.rows * c.rot) + 1, 1);
        for (int r = 0; r < c.rows; r++)
            c.write[r] = (r * 3 + bits) % QKV_SLOTS;
        check_qkv(&c);
        free((float *)c.src), free((float *)c.cs);
        struct tensor *all[] = {&w[0], &w[1], &w[2], &w[3], &c.wq, &c.wk, &c.wv,
                                &c.bq, &c.bk, &c.bv};
        for (int i = 0; i < 10; i++)
            free(all[i]->data);
    }
}

/* ---- threads -------------------------------------------------------------------------------- */

struct count_run {
    int hits[300];
    bool own[8]; /* a thread number is used by one thread at a time */
    bool shared;
};

static void count_item(void *arg, int item, int thread)
{
    struct count_run *c = arg;
    if (__atomic_exchange_n(&c->own[thread], true, __ATOMIC_ACQUIRE))
        c->shared = true;
    c->hits[item]++;
    __atomic_store_n(&c->own[thread], false, __ATOMIC_RELEASE);
}

static void test_the_pool_runs_each_item_once(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 7; threads += 2) {
        struct cpu_pool *p = cpu_pool_open(threads);
        assert_int_equal(cpu_pool_threads(p), threads);
        for (int region = 0; p && region < 3000 / one_in(3); region++) {
            struct count_run c = {0};
            int n = 1 + rnd_int(region % 100 ? 20 : 300);
            cpu_pool_run(p, n, count_item, &c);
            for (int i = 0; i < 300; i++)
                assert_int_equal(c.hits[i], i < n);
            assert_false(c.shared);
            if (region % 1000 == 999) /* long enough for the workers to fall asleep */
                nanosleep(&(struct timespec){.tv_nsec = 2000 * 1000}, NULL);
        }
        cpu_pool_close(p);
    }
}

static void add_item(void *arg, int item, int thread)
{
    (void)item, (void)thread;
    __atomic_fetch_add((int *)arg, 1, __ATOMIC_RELAXED);
}

/* Regions alike, one at once after the other: a share that looks as it did may belong to the next
 * region. More threads than cores, so that some are descheduled in between. */
static void test_the_pool_runs_each_item_once_in_regions_alike(void **state)
{
    (void)state;
    struct cpu_pool *p = cpu_pool_open(16);
    for (int region = 0; region < rounds(50000, 150000) / one_in(10); region++) {
        int n = 0;
        cpu_pool_run(p, 64, add_item, &n);
        assert_int_equal(n, 64);
    }
    cpu_pool_close(p);
}

/* How many threads of this process but the calling one are not asleep (state S in /proc). */
static int awake(void)
{
    int n = 0;
    char path[300], line[512];
    DIR *dir = opendir("/proc/self/task");
    assert_non_null(dir);
    for (struct dirent *t; (t = readdir(dir));) {
        snprintf(path, sizeof path, "/proc/self/task/%s/stat", t->d_name);
        FILE *f = *t->d_name == '.' || atoi(t->d_name) == getpid() ? NULL : fopen(path, "r");
        const char *state = f && fgets(line, sizeof line, f) ? strrchr(line, ')') : NULL;
        n += state && state[2] != 'S';
        if (f)
            fclose(f);
    }
    closedir(dir);
    return n;
}

/* Workers wait a short while for the next region, and then sleep until there is one. */
static void test_workers_of_an_idle_pool_sleep(void **state)
{
    (void)state;
    struct cpu_pool *p = cpu_pool_open(3);
    struct count_run c = {0};
    cpu_pool_run(p, 10, count_item, &c);
    int asleep = 0; /* times in a row that all of them slept */
    for (int look = 0; look < 20000 && asleep < 20; look++) {
        asleep = awake() ? 0 : asleep + 1;
        nanosleep(&(struct timespec){.tv_nsec = 1000 * 1000}, NULL);
    }
    assert_int_equal(asleep, 20);
    cpu_pool_close(p);
}

/* ---- the device ----------------------------------------------------------------------------- */

static void test_open_refuses_what_it_cannot_do(void **state)
{
    (void)state;
    struct err e = {0};
    assert_null(kernels_cpu.open(&(struct k_opts){.isa = "sse9"}, &e));
    assert_non_null(strstr(e.msg, "sse9"));
    assert_null(kernels_cpu.open(&(struct k_opts){.threads = -1}, &e));
    assert_null(kernels_cpu.open(&(struct k_opts){.threads = 100000}, &e));
    struct kdev *d = kernels_cpu.open(&(struct k_opts){.threads = 1, .isa = "scalar"}, &e);
    assert_string_equal(kernels_cpu.about(d), "1 thread, plain C");
    kbuf b = kernels_cpu.alloc(d, SIZE_MAX - 10, "everything", &e);
    assert_null(b.p);
    assert_non_null(strstr(e.msg, "everything"));
    kernels_cpu.close(d);
}

/* An operation added to struct kernels is missing in a table until that backend implements it. */
static void test_every_entry_of_a_table_is_filled(void **state)
{
    (void)state;
    static const struct kernels *const tables[] = {
        &kernels_cpu,
#if HAVE_CUDA
        &kernels_cuda,
#endif
    };
    enum {
        FIRST = offsetof(struct kernels, open), SIZE = sizeof(void (*)(void)),
        OPTIONAL = offsetof(struct kernels, slow_start),
    };
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++)
        for (size_t at = FIRST; at < sizeof(struct kernels); at += SIZE) {
            void (*fn)(void);
            memcpy(&fn, (const char *)tables[t] + at, SIZE);
            if (!fn && at != OPTIONAL)
                fail_msg("table %s: entry %zu after open is NULL", tables[t]->name,
                         (at - FIRST) / SIZE);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_entry_of_a_table_is_filled),
        cmocka_unit_test(test_open_refuses_what_it_cannot_do),
        cmocka_unit_test(test_the_pool_runs_each_item_once),
        cmocka_unit_test(test_the_pool_runs_each_item_once_in_regions_alike),
        cmocka_unit_test(test_workers_of_an_idle_pool_sleep),
        cmocka_unit_test(test_functions_are_right_to_a_few_ulp),
        cmocka_unit_test(test_embed_scales_table_rows),
        cmocka_unit_test(test_rope_turns_by_position_times_frequency),
        cmocka_unit_test(test_normalize_every_kind_and_length),
        cmocka_unit_test(test_rows_and_scale_touch_exactly_their_rows),
        cmocka_unit_test(test_conv_stays_within_runs_of_rows),
        cmocka_unit_test(test_rows_far_into_the_context_get_a_factor),
        cmocka_unit_test(test_gates_by_element_and_by_head),
        cmocka_unit_test(test_gather_is_its_parts),
        cmocka_unit_test(test_linear_every_option_and_ragged_shape),
        cmocka_unit_test(test_linear_rows_do_not_depend_on_their_neighbours),
        cmocka_unit_test(test_glu_multiplies_activated_gate_and_up),
        cmocka_unit_test(test_qkv_every_family_shape),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
