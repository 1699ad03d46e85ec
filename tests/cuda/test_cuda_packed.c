/* test_cuda_packed.c - matrices packed in blocks on the GPU: operations on matrices that stay
 * packed (packs_on() of route.c) have the bits of the same operations on the bf16 matrices with
 * their values, for every number of rows. Scales and codes are random, zeros, negative and
 * subnormal scales among them. With the kernels of the GPU at hand, then with those of GPUs without
 * wgmma (AERIE_GPU_AS). Without a GPU every test is skipped. */
#include "kernels/cuda/route.h"
#include "kernels/kernels.h"
#include "kernels/packed.h"

#if HAVE_CUDA
#include "tests/few.h"

#define kernels_cpu kernels_cuda
#include "tests/kernel_test.h"
#undef kernels_cpu

enum { MOST = 200, VOCAB = 530 };

static const int row_counts[] = {1, 2, 4, 5, 8, 9, 16, 17, 40, 64, 65, 130, 180, MOST};
enum { N_COUNTS = sizeof row_counts / sizeof *row_counts };

static enum dtype type; /* of the packed matrices */

/* Whether the type has a layout of its own. If not, the kernels are those of the type that has it,
 * and only what depends on the upload is tested again. */
static bool own_layout(void) { return packed_as(type) == (int)type; }

/* A matrix twice: packed, and as bf16. */
struct both {
    struct tensor t[2];
};

/* A scale of no more than ten bits whose values stay near 1/64: of any sign, zero, or as small as
 * an f16 can be. */
static uint16_t some_scale(float near)
{
    switch (rnd_int(16)) {
    case 0: return (uint16_t)(rnd_int(2) << 15);
    case 1: return (uint16_t)(rnd() % 1024 | (rnd() & 1) << 15); /* subnormal */
    default: return (uint16_t)(f32_to_f16(near * (.2f + 2 * rnd_unit())) | (rnd() & 1) << 15);
    }
}

/* The same of a bf16. */
static uint16_t some_bf16_scale(float near)
{
    switch (rnd_int(16)) {
    case 0: return (uint16_t)(rnd_int(2) << 15);
    case 1: return (uint16_t)(rnd() % 256 | (rnd() & 1) << 15); /* subnormal, or nearly so */
    default: return (uint16_t)(f32_to_bf16(near * (.2f + 2 * rnd_unit())) | (rnd() & 1) << 15);
    }
}

/* Random scales of a block of E2M1, MXFP4 or NVFP4, some of them zero or negative, where the type
 * has such, and some very small. */
static void fill_fp4_scales(float near, uint8_t *block)
{
    const int small = rnd_int(16) ? 0 : 20;
    const float factor = rnd_int(16) ? near * (.2f + 2 * rnd_unit()) * (rnd() & 1 ? 1.f : -1.f) : 0;
    if (type == DT_MXFP4)
        block[0] = (uint8_t)(121 - rnd_int(4) - small);
    for (int i = 0; i < 4 && type == DT_NVFP4; i++)
        block[i] = (uint8_t)(small ? rnd_int(4) : 8 + rnd_int(16));
    for (int i = 4; i < 6 && type == DT_E2M1; i++)
        block[i] = (uint8_t)((small ? rnd_int(8) : 0x30 + rnd_int(16)) | (rnd() & 1) << 7);
    if (type == DT_E2M1)
        memcpy(block, &factor, sizeof factor);
}

/* Random codes and scales of a block. */
static void fill_block(const struct packed_format *f, float near, uint8_t *block)
{
    for (int i = 0; i < f->bytes; i++)
        block[i] = (uint8_t)rnd();
    fill_fp4_scales(near, block);
    for (int i = 2; i < f->bytes && type == DT_E4M3; i++)
        block[i] ^= (block[i] & 0x7f) == 0x7f; /* NaN */
    for (int j = 0; j < 2; j++) {
        const int at = type == DT_E4M3 && j == 0 ? 0 : f->scale[j];
        const uint16_t h = type == DT_E4M3 ? some_bf16_scale(near)
                                           : some_scale(j ? near * -f->minimum : near);
        if (at >= 0)
            block[at] = (uint8_t)h, block[at + 1] = (uint8_t)(h >> 8);
    }
}

static void upload(struct tensor *t)
{
    struct err e;
    void *host = t->data;
    if (!kernels_cuda.upload(T.d, t, &e))
        die("%s", e.msg);
    kernels_cuda.sync(T.d, &e);
    free(host);
}

/* blocks_of(): a matrix of random blocks in the host's memory; uploaded(): with its twin. */
static struct both blocks_of(int out, int in)
{
    const struct packed_format *f = packed_format(type);
    const size_t n = (size_t)out * (size_t)in, blocks = n / (size_t)f->elements;
    const float near = fmaxf(1 / (64 * f->deviation), .0004f);
    struct both b = {{{.type = type, .n_dim = 2, .dim = {out, in}, .name = "packed"},
                      {.type = DT_BF16, .n_dim = 2, .dim = {out, in}, .name = "twin"}}};
    b.t[0].bytes = blocks * (size_t)f->bytes, b.t[1].bytes = n * 2;
    for (int i = 0; i < 2; i++)
        b.t[i].data = xaligned(b.t[i].bytes);
    for (size_t i = 0; i < blocks; i++)
        fill_block(f, near, (uint8_t *)b.t[0].data + i * (size_t)f->bytes);
    return b;
}
static struct both uploaded(struct both b)
{
    packed_bf16(type, b.t[0].data, b.t[1].bytes / 2, b.t[1].data);
    upload(&b.t[0]), upload(&b.t[1]);
    return b;
}
static struct both both_of(int out, int in)
{
    const struct both b = uploaded(blocks_of(out, in));
    if (b.t[0].type != type)
        fail_msg("%s was unpacked", dtype_name(type));
    return b;
}

static struct tensor vector(int n)
{
    struct tensor t = TENSOR(DT_BF16, 1, n);
    upload(&t);
    return t;
}

/* run(arg, i, rows, out): the operation with tensors i (0: packed, 1: their twins). */
typedef void twin_fn(const void *arg, int i, int rows, float *out);

static void check_twins(twin_fn *run, const void *arg, int width, const char *what)
{
    float *out[2];
    char name[80];
    for (int i = 0; i < 2; i++)
        out[i] = xmalloc((size_t)(MOST * width) * sizeof **out);
    for (int c = 0; c < N_COUNTS; c += one_in(2)) {
        const int rows = row_counts[c];
        snprintf(name, sizeof name, "%s, %s, %d rows", dtype_name(type), what, rows);
        for (int i = 0; i < 2; i++)
            run(arg, i, rows, out[i]);
        for (size_t j = 0; j < (size_t)(rows * width); j++)
            if (!isfinite(out[1][j]))
                fail_msg("%s: element %zu is %g", name, j, (double)out[1][j]);
        same_bits(out[0], out[1], (size_t)(rows * width), name);
    }
    free(out[0]), free(out[1]);
}

/* ---- linear --------------------------------------------------------------------------------- */

struct lin {
    struct k_linear a;
    const struct both *w;
    const float *x, *old;
};

static void run_linear(const void *arg, int i, int rows, float *out)
{
    const struct lin *l = arg;
    const size_t in = (size_t)l->w->t[i].dim[1], n = (size_t)l->w->t[i].dim[0], r = (size_t)rows;
    struct k_linear a = l->a;
    a.w = &l->w->t[i];
    a.rows = rows;
    a.src = floats(l->x, r * in), a.dst = floats(l->old, r * n);
    T.k->linear(T.d, &a);
    take(out, a.dst, r * n);
    dev_release(&T);
}

/* Matrices whose panels have many rows and few, k splits of several lengths and empty ones; with
 * blocks of 32 also widths that are no multiple of 256. */
static void test_linear(void **state)
{
    (void)state;
    static const int shapes[][2] = {{256, 2560}, {2880, 4096}, {1000, 2304}, {130, 256}, {16, 512},
                                    {640, 1536}, {5376, 1280}, {2560, 768}, {4240, 3840},
                                    {300, 10240}, {640, 2880}, {96, 416}, {10, 32}};
    for (int i = 0; i < 13; i += one_in(2)) {
        const int out = shapes[i][0], in = shapes[i][1];
        if (in % packed_format(type)->elements)
            continue;
        struct both w = both_of(out, in);
        struct tensor b = vector(out), norm = vector(in), post = vector(out);
        float *x = rnd_floats((size_t)(MOST * in), 3), *old = rnd_floats((size_t)(MOST * out), 1);
        struct lin l = {{.scale = 1, .pre = {NORM_RMS, &norm, 1e-5f}}, &w, x, old};
        if (i % 3 == 1)
            l.a.b = &b, l.a.add = true, l.a.act = ACT_SILU, l.a.scale = .5f;
        if (i % 3 == 2)
            l.a.post = (struct k_norm){NORM_RMS, &post, 1e-5f}, l.a.add = true;
        check_twins(run_linear, &l, out, "linear");
        free(x), free(old);
    }
}

/* Gives a block of E2M1, MXFP4 or NVFP4 the largest scale that stays packed, 4; more: the next one,
 * of E2M1 a somewhat larger one. */
static void put_large_fp4_scale(uint8_t *block, bool more, bool negative)
{
    const float factor = (more ? 4.03125f : 4.f) * (negative ? -1.f : 1.f);
    if (type == DT_E2M1)
        memcpy(block, &factor, sizeof factor), block[4] = block[5] = 0x38; /* 1 */
    else if (type == DT_MXFP4)
        block[0] = more ? 130 : 129;
    else
        memset(block, more ? 0x49 : 0x48, 4);
}

/* The first scale that is too large for a type that has f16 scales; 0: there is none. Its
 * sub-scales, from byte *from to before *to, have to be the largest ones. */
static float least_too_large(int *from, int *to)
{
    *from = *to = 0;
    switch (type) {
    case DT_Q4_K: *from = 4, *to = 16; return .5f / 63;
    case DT_Q5_K: *from = 4, *to = 16; return .25f / 63;
    case DT_Q4_1:
    case DT_Q5_1: return .25f;
    default: return 0;
    }
}

/* The largest scales that stay packed in one block, the first or the last, and the next larger
 * ones, with which a matrix becomes bf16. */
static void test_large_scales(void **state)
{
    (void)state;
    enum { OUT = 130, IN = 256 };
    int from, to;
    const struct packed_format *f = packed_format(type);
    const bool fp4 = type == DT_E2M1 || type == DT_MXFP4 || type == DT_NVFP4;
    const float least = least_too_large(&from, &to);
    uint16_t d = type == DT_E4M3 ? 0x437f : f32_to_f16(least); /* 255 */
    while (least != 0 && f16_to_f32(d) >= least)
        d--;
    if (least == 0 && !fp4 && type != DT_E4M3)
        return;
    for (int i = 0; i < 4; i++) {
        const uint16_t h = (uint16_t)((d + i / 2) | i % 2 << 15);
        struct both w = blocks_of(OUT, IN);
        uint8_t *block = w.t[0].data;
        block += i % 2 ? w.t[0].bytes - (size_t)f->bytes : 0;
        for (int j = from; j < to; j++) /* 63 */
            block[j] = 255;
        if (fp4)
            put_large_fp4_scale(block, i > 1, i % 2);
        block += type == DT_E4M3 || fp4 ? 0 : f->scale[0];
        if (!fp4)
            block[0] = (uint8_t)h, block[1] = (uint8_t)(h >> 8);
        w = uploaded(w);
        assert_int_equal(w.t[0].type, i < 2 ? type : DT_BF16);
        float *x = rnd_floats(MOST * IN, 3), *old = rnd_floats(MOST * OUT, 1);
        struct lin l = {{.scale = 1}, &w, x, old};
        check_twins(run_linear, &l, OUT, "large scales");
        free(x), free(old);
    }
}

/* A product of so many weights that scratch holds some of its panels: without wgmma, and with so
 * many rows that the prefill kernel takes it from there. With fewer rows that kernel unpacks in
 * registers, in tiles of 128, 160 and 192 columns. */
static void test_linear_in_parts(void **state)
{
    (void)state;
    if (!own_layout())
        return;
    enum { MANY = 1536 };
    const int out = 11264, in = 12288;
    static const int counts[] = {40, 80, 130, 180, MANY};
    struct both w = both_of(out, in);
    struct tensor b = vector(out);
    float *x = rnd_floats((size_t)MANY * in, 3), *old = rnd_floats((size_t)MANY * out, 1), *got[2];
    struct lin l = {{.scale = 1, .b = &b, .add = true}, &w, x, old};
    for (int c = 0; c < 5; c++) {
        const int rows = counts[c];
        for (int i = 0; i < 2; i++) {
            got[i] = xmalloc((size_t)rows * out * sizeof **got);
            run_linear(&l, i, rows, got[i]);
        }
        same_bits(got[0], got[1], (size_t)rows * out, "in parts");
        free(got[0]), free(got[1]);
    }
    free(x), free(old);
}

/* ---- glu, and the linear behind it ---------------------------------------------------------- */

struct pair {
    const struct both *gate, *up, *down;
    struct k_norm post;
    enum act_kind act;
    bool packed; /* the rows between */
    const float *x;
};

static void run_pair(const void *arg, int i, int rows, float *out)
{
    const struct pair *p = arg;
    const size_t in = (size_t)p->gate->t[i].dim[1], ffn = (size_t)p->gate->t[i].dim[0],
                 n = (size_t)p->down->t[i].dim[0], r = (size_t)rows;
    kbuf between = blank(r * ffn);
    struct k_glu g = {.rows = rows, .src = floats(p->x, r * in), .gate = &p->gate->t[i],
                      .up = &p->up->t[i], .act = p->act, .packed = p->packed, .dst = between};
    struct k_linear l = {.rows = rows, .src = between, .src_stride = (int)ffn,
                         .w = &p->down->t[i], .scale = 1, .packed = p->packed, .post = p->post,
                         .dst = blank(r * n)};
    T.k->glu(T.d, &g);
    T.k->linear(T.d, &l);
    take(out, l.dst, r * n);
    dev_release(&T);
}

static void test_glu(void **state)
{
    (void)state;
    if (!own_layout())
        return;
    static const int shapes[][3] = {{768, 2560, 72}, {1280, 1536, 264}, {256, 512, 72},
                                    {3072, 1024, 640}, {5632, 2048, 2048}};
    for (int i = 0; i < 5; i++) {
        struct both gate = both_of(shapes[i][0], shapes[i][1]),
                    up = both_of(shapes[i][0], shapes[i][1]),
                    down = both_of(shapes[i][2], shapes[i][0]);
        struct tensor post = vector(shapes[i][2]);
        float *x = rnd_floats((size_t)(MOST * shapes[i][1]), 1);
        struct pair p = {&gate, &up, &down, {NORM_RMS, &post, 1e-5f},
                         i == 1 ? ACT_SILU : ACT_GELU_TANH, i % 2 == 0, x};
        check_twins(run_pair, &p, shapes[i][2], "glu and linear");
        free(x);
    }
}

/* ---- q, k and v ----------------------------------------------------------------------------- */

enum { IN = 768, HEADS = 8 };

struct heads {
    struct k_qkv a;
    const struct both *w[3];
    const float *x, *cs;
};

/* out: of each row q, then the cells of k and v */
static void run_qkv(const void *arg, int i, int rows, float *out)
{
    const struct heads *h = arg;
    const size_t r = (size_t)rows, nq = (size_t)(HEADS * h->a.head_dim),
                 nk = (size_t)(h->a.n_kv * h->a.head_dim);
    int32_t slot[MOST];
    struct k_qkv a = h->a;
    for (int j = 0; j < rows; j++)
        slot[j] = j;
    struct k_table t = {.write = ints(slot, r)};
    a.rows = rows, a.table = &t;
    a.wq = &h->w[0]->t[i], a.wk = &h->w[1]->t[i], a.wv = &h->w[2]->t[i];
    a.src = floats(h->x, r * IN), a.cs = floats(h->cs, r * (size_t)a.rot);
    a.q = blank(r * nq);
    a.cells = (struct k_cells){blank(r * nk), blank(r * nk), KV_F32, rows, h->a.n_kv,
                               h->a.head_dim};
    T.k->qkv(T.d, &a);
    take(out, a.q, r * nq);
    take(out + r * nq, a.cells.k, r * nk);
    take(out + r * (nq + nk), a.cells.v, r * nk);
    dev_release(&T);
}

static void test_qkv(void **state)
{
    (void)state;
    if (!own_layout())
        return;
    static const struct {
        int dim, n_kv;
        bool norms;
    } cases[] = {{64, 2, false}, {64, 8, true}, {128, 4, true}, {256, 2, true}};
    for (int i = 0; i < 4; i++) {
        const int dim = cases[i].dim, n_kv = cases[i].n_kv;
        struct both q = both_of(HEADS * dim, IN), k = both_of(n_kv * dim, IN),
                    v = both_of(n_kv * dim, IN);
        struct tensor norm = vector(IN), head = vector(dim);
        float *x = rnd_floats(MOST * IN, 1), *cs = rnd_floats((size_t)(MOST * dim), 1);
        struct heads h = {{.n_head = HEADS, .n_kv = n_kv, .head_dim = dim, .rot = dim,
                           .norm = {NORM_RMS, &norm, 1e-5f}}, {&q, &k, &v}, x, cs};
        if (cases[i].norms)
            h.a.q_norm = h.a.k_norm = (struct k_norm){NORM_RMS1P, &head, 1e-5f};
        check_twins(run_qkv, &h, (HEADS + 2 * n_kv) * dim, "qkv");
        free(x), free(cs);
    }
}

/* ---- rows of a table ------------------------------------------------------------------------ */

struct lookup {
    const struct both *table;
    const struct tensor *norm;
};

/* out: of each row the row of the table as embed() and as gather() has it, then normalised */
static void run_lookup(const void *arg, int i, int rows, float *out)
{
    const struct lookup *l = arg;
    const struct tensor *w = &l->table->t[i];
    const size_t n = (size_t)w->dim[1], r = (size_t)rows;
    int32_t id[MOST];
    for (int j = 0; j < rows; j++)
        id[j] = (j * 37 + 11) % VOCAB;
    kbuf ids = ints(id, r), copy = blank(r * n), normed = blank(r * n), plain = blank(r * n);
    T.k->embed(T.d, &(struct k_embed){.rows = rows, .n = (int)n, .ids = ids, .table = w,
                                      .scale = 3, .dst = plain});
    struct k_gather g = {.rows = rows, .n_parts = 1};
    g.part[0] = (struct k_part){.n = (int)n, .table = w, .scale = 3, .idx = ids,
                                .norm = {NORM_RMS, l->norm, 1e-5f}, .copy = copy, .dst = normed,
                                .width = (int)n};
    T.k->gather(T.d, &g);
    take(out, plain, r * n), take(out + r * n, copy, r * n), take(out + 2 * r * n, normed, r * n);
    dev_release(&T);
}

static void test_lookup(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        const int n = i ? 2560 : 512;
        struct both table = both_of(VOCAB, n);
        struct tensor norm = vector(n);
        struct lookup l = {&table, &norm};
        check_twins(run_lookup, &l, 3 * n, "rows of a table");
    }
}

/* Block h of those with every scale of E4M3 that stays packed and every code. */
static void fill_e4m3(int h, uint8_t *block)
{
    const int scale = h / 16 | h / 8 % 2 << 15;
    block[0] = (uint8_t)scale, block[1] = (uint8_t)(scale >> 8);
    for (int i = 2; i < 34; i++) {
        block[i] = (uint8_t)(h % 8 * 32 + i - 2);
        block[i] ^= (block[i] & 0x7f) == 0x7f; /* NaN */
    }
}

/* The same of a block of 32 codes of four or five bits: all of them, in different places. f16
 * scales that would be too large become subnormal. Scales of MXFP4 are all that stay packed; those
 * of E2M1 all positive ones, with random factors. */
static void fill_codes(const struct packed_format *f, int h, uint8_t *block)
{
    const int codes = f->bytes - 16;
    const bool fifth = type == DT_Q5_0 || type == DT_Q5_1;
    const float least = type == DT_Q4_1 || type == DT_Q5_1 ? .25f : 65536.f;
    const uint16_t minimum = some_scale(.1f);
    const float factor = (.5f + rnd_unit()) * 0x1p-8f * (h % 2 ? 1.f : -1.f);
    const int scale = fabsf(f16_to_f32((uint16_t)h)) < least ? h : h & 0x83ff;
    block[0] = (uint8_t)scale, block[1] = (uint8_t)(scale >> 8);
    if (f->scale[1] > 0)
        block[2] = (uint8_t)minimum, block[3] = (uint8_t)(minimum >> 8);
    if (type == DT_MXFP4)
        block[0] = (uint8_t)(65 + h % 65);
    if (type == DT_E2M1) {
        memcpy(block, &factor, sizeof factor);
        block[4] = (uint8_t)(h % 127), block[5] = (uint8_t)((h + 64) % 127);
    }
    memset(block + codes - 4, 0, fifth ? 4 : 0);
    for (int i = 0; i < 32; i++) {
        const int code = i ^ (h & 31);
        uint8_t *q = block + codes + i % 16;
        *q = (uint8_t)(i < 16 ? code & 15 : *q | code << 4);
        if (fifth)
            block[codes - 4 + i / 8] |= (uint8_t)((code >> 4) << i % 8);
    }
}

/* Four scales of NVFP4. */
static void fill_nvfp4(int h, uint8_t *block)
{
    for (int k = 0; k < 4; k++) {
        block[k] = (uint8_t)((4 * h + k) % 0x49);
        for (int i = 0; i < 8; i++)
            block[4 + 8 * k + i] = (uint8_t)(i | (i + 8) << 4);
    }
}

/* The same of a block of Q8_0: with eight scales of the same digits all codes. */
static void fill_q8_0(int h, uint8_t *block)
{
    const int scale = fabsf(f16_to_f32((uint16_t)h)) < 65536 ? h : h & 0x83ff;
    block[0] = (uint8_t)scale, block[1] = (uint8_t)(scale >> 8);
    for (int i = 0; i < 32; i++)
        block[2 + i] = (uint8_t)(h / 1024 % 8 * 32 + i);
}

/* Blocks with all digits that a scale can have, and each of its sub-scales that differs by more
 * than a power of two or a sign, with every code. Four of IQ4_XS and Q3_K, 16 of Q2_K, 32 of Q6_K
 * have the same d; those of Q2_K have minima with other digits. */
static void fill_iq4_xs(int h, uint8_t *block)
{
    const int d = 0x2400 | h / 4;
    memset(block, 0, 8);
    block[0] = (uint8_t)d, block[1] = (uint8_t)(d >> 8);
    for (int k = 0; k < 8; k++) {
        const int scale = 31 - (h % 4 * 8 + k); /* less 32 */
        block[2 + k / 4] |= (uint8_t)(scale >> 4 << k % 4 * 2);
        block[4 + k / 2] |= (uint8_t)((scale & 15) << k % 2 * 4);
        for (int i = 0; i < 16; i++)
            block[8 + 16 * k + i] = (uint8_t)(i * 0x11);
    }
}
static void fill_q6_k(int h, uint8_t *block)
{
    const int d = 0x2400 | h / 32;
    memset(block, 0, 192);
    block[208] = (uint8_t)d, block[209] = (uint8_t)(d >> 8);
    for (int i = 0; i < 256; i++) {
        const int code = h / 8 % 4 * 16 + i % 16, half = i / 128, j = i / 32 % 4;
        block[64 * half + 32 * (j % 2) + i % 32] |= (uint8_t)((code & 15) << j / 2 * 4);
        block[128 + 32 * half + i % 32] |= (uint8_t)(code >> 4 << 2 * j);
        block[192 + i / 16] = (uint8_t)-(h % 8 * 16 + i / 16 + 1);
    }
}

static void fill_q3_k(int h, uint8_t *block)
{
    const int d = 0x2400 | h / 4;
    memset(block, 0, 108);
    block[108] = (uint8_t)d, block[109] = (uint8_t)(d >> 8);
    for (int i = 0; i < 256; i++) {
        const int code = i % 8;
        block[32 + i / 128 * 32 + i % 32] |= (uint8_t)((code & 3) << i % 128 / 32 * 2);
        block[i % 32] |= (uint8_t)(code >> 2 << i / 32);
    }
    for (int k = 0; k < 16; k++) {
        const int scale = h % 4 * 16 + k;
        block[96 + k % 8] |= (uint8_t)((scale & 15) << k / 8 * 4);
        block[104 + k % 4] |= (uint8_t)(scale >> 4 << k / 4 * 2);
    }
}
static void fill_q2_k(int h, uint8_t *block)
{
    const int d = 0x2400 | h / 16, least = 0x2400 | h / 16 * 37 % 1024;
    memset(block, 0, 80);
    block[80] = (uint8_t)d, block[81] = (uint8_t)(d >> 8);
    block[82] = (uint8_t)least, block[83] = (uint8_t)(least >> 8);
    for (int i = 0; i < 16; i++)
        block[i] = (uint8_t)(h % 16 * 16 + i);
    for (int i = 0; i < 256; i++)
        block[16 + i / 128 * 32 + i % 32] |= (uint8_t)((i ^ i / 16) % 4 << i % 128 / 32 * 2);
}

/* The number of blocks with all scales of a type, 0: not tested; fills block h of them. */
static int all_scales(const struct packed_format *f, int h, uint8_t *block)
{
    enum { E4M3_SCALES = 0x4380 /* from 2^8 on */ };
    switch (type) {
    case DT_Q8_0: fill_q8_0(h, block); return 65536;
    case DT_IQ4_XS: fill_iq4_xs(h, block); return 1024 * 4;
    case DT_Q6_K: fill_q6_k(h, block); return 1024 * 32;
    case DT_Q3_K: fill_q3_k(h, block); return 1024 * 4;
    case DT_Q2_K: fill_q2_k(h, block); return 1024 * 16;
    case DT_E4M3: fill_e4m3(h, block); return 2 * E4M3_SCALES * 8;
    case DT_NVFP4: fill_nvfp4(h, block); return 64 * 64;
    default:
        if (f->elements > 32)
            return 0;
        fill_codes(f, h, block);
        return 65536;
    }
}

/* Every finite scale that stays packed, with every code, of the types of blocks of 32 and of NVFP4,
 * and all digits of those of IQ4_XS, Q6_K, Q3_K and Q2_K, as rows of a table. */
static void test_all_scales(void **state)
{
    (void)state;
    enum { WIDE = 4096, MOST_BYTES = 256 };
    const struct packed_format *f = packed_format(type);
    uint8_t probe[MOST_BYTES];
    const int blocks = all_scales(f, 0, probe), all = blocks * f->elements / WIDE;
    if (!blocks)
        return;
    struct tensor made[2] = {{.type = type, .n_dim = 2, .dim = {all, WIDE}, .name = "packed"},
                             {.type = DT_BF16, .n_dim = 2, .dim = {all, WIDE}, .name = "twin"}};
    float *got[2];
    for (int i = 0; i < 2; i++) {
        made[i].bytes = (size_t)all * dtype_bytes(made[i].type, WIDE);
        made[i].data = xaligned(made[i].bytes);
        got[i] = xmalloc(MOST * WIDE * sizeof **got);
    }
    uint8_t *block = made[0].data;
    for (int h = 0; h < blocks; h++, block += f->bytes)
        all_scales(f, h, block);
    packed_bf16(type, made[0].data, (size_t)all * WIDE, made[1].data);
    upload(&made[0]), upload(&made[1]);
    assert_int_equal(made[0].type, type);
    for (int from = 0; from < all; from += MOST) {
        const int rows = all - from < MOST ? all - from : MOST;
        int32_t id[MOST];
        for (int j = 0; j < rows; j++)
            id[j] = from + j;
        for (int i = 0; i < 2; i++) {
            kbuf ids = ints(id, (size_t)rows), dst = blank((size_t)(rows * WIDE));
            T.k->embed(T.d, &(struct k_embed){.rows = rows, .n = WIDE, .ids = ids,
                                              .table = &made[i], .scale = 1, .dst = dst});
            take(got[i], dst, (size_t)(rows * WIDE));
            dev_release(&T);
        }
        same_bits(got[0], got[1], (size_t)(rows * WIDE), "all scales");
    }
    free(got[0]), free(got[1]);
}

/* ---- synthetic weights ---------------------------------------------------------------------- */

/* The same on the device as packed_random() makes them, also if the scales are too large for the
 * kernels, so that the matrix becomes bf16. */
static void check_synthetic(float scale)
{
    enum { OUT = 40, WIDE = 512 };
    struct tensor made = {.type = type, .n_dim = 2, .dim = {OUT, WIDE}, .name = "made"},
                  given = made;
    struct err e;
    made.bytes = given.bytes = OUT * dtype_bytes(type, WIDE);
    given.data = xaligned(given.bytes);
    packed_random(type, 7, scale, 0,
                  (size_t)OUT * WIDE / (size_t)packed_format(type)->elements, given.data);
    if (!kernels_cuda.synthesize(T.d, &made, 7, scale, &e))
        die("%s", e.msg);
    upload(&given);
    assert_int_equal(made.type, given.type);
    struct both w = {{made, given}};
    float *x = rnd_floats((size_t)(MOST * WIDE), 1), *old = rnd_floats(MOST * OUT, 1);
    struct lin l = {{.scale = 1}, &w, x, old};
    check_twins(run_linear, &l, OUT, "synthetic");
    free(x), free(old);
    for (int i = 0; i < 2; i++)
        kernels_cuda.unload(T.d, &w.t[i]);
}

static void test_synthetic(void **state)
{
    (void)state;
    check_synthetic(1 / 64.f);
    check_synthetic(64);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear), cmocka_unit_test(test_large_scales),
        cmocka_unit_test(test_linear_in_parts),
        cmocka_unit_test(test_glu), cmocka_unit_test(test_qkv), cmocka_unit_test(test_lookup),
        cmocka_unit_test(test_all_scales), cmocka_unit_test(test_synthetic),
    };
    static const char *const classes[] = {"", "8.6", "8.0"};
    const char *as = getenv("AERIE_GPU_AS");
    const bool given = as && *as;
    int failed = 0;
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    for (int i = 0; i < (given ? 1 : 3) * (DT_E2M1 - DT_Q8_0 + 1); i++) {
        struct err e;
        type = DT_Q8_0 + (enum dtype)(i / (given ? 1 : 3));
        if (!given)
            setenv("AERIE_GPU_AS", classes[i % 3], 1);
        struct tensor w = {.type = type, .n_dim = 2, .dim = {8, 256}, .name = "probe"};
        w.bytes = 8 * dtype_bytes(type, 256);
        T = (struct case_dev){.k = &kernels_cuda};
        T.d = kernels_cuda.open(&(struct k_opts){.precision = K_BF16}, &e);
        if (!T.d) {
            printf("1..1\nok 1 - packed matrices # SKIP no CUDA device (%s)\n", e.msg);
            return 0;
        }
        if (!kernels_cuda.synthesize(T.d, &w, 1, 1, &e))
            die("%s", e.msg);
        printf("# %s as %s%s\n", dtype_name(type), getenv("AERIE_GPU_AS"),
               w.type == type ? "" : ": unpacked during the upload");
        if (w.type == type && (own_layout() || given || i % 3 == 0))
            failed += cmocka_run_group_tests_name(dtype_name(type), tests, NULL, NULL);
        dev_close(&T);
    }
    return failed;
}

#else

#include <stdio.h>

int main(void)
{
    printf("1..1\nok 1 - packed matrices # SKIP built without CUDA\n");
    return 0;
}

#endif
