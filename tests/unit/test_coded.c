/* test_coded.c - folders with matrices stored as codes and scales, as inference servers load them:
 * each equals the folder whose matrices are the unpacked ones in bf16, bit for bit; and what is
 * refused.
 *
 * Numbers expected are computed here from the formats' definitions, in double precision where they
 * are exact. tests/peers/coded.py compares the same with compressed-tensors.
 */
#include "tests/twin_kit.h"

#include "models/checkpoint/coded_config.h"
#include "models/checkpoint/scaled.h"
#include "models/checkpoint/safetensors.h"

#define G "tests/golden/"

static char *folder, *twin;

static int setup(void **state)
{
    (void)state;
    folder = scratch_folder();
    twin = scratch_folder();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    scratch_remove(folder);
    scratch_remove(twin);
    return 0;
}

static void empty_twins(void)
{
    scratch_empty(folder);
    scratch_empty(twin);
}

/* ---- formats ---- */

enum shape { ONE, EACH_ROW, BLOCKS, GROUPS };

static const struct format {
    const char *name, *config; /* quantization_config */
    enum code code;
    const char *type, *scale; /* types of codes and scales in the file */
    enum shape shape;
    int rows, cols; /* of a block; GROUPS: cols */
    const char *outer; /* name of the further scale, or NULL */
    const char *inverse; /* name of the scales; NULL: weight_scale */
    bool exact;          /* scales of F32 are bf16 numbers */
} formats[] = {
    {"FP8, a scale a row",
     "{\"quant_method\": \"compressed-tensors\", \"format\": \"float-quantized\", "
     "\"config_groups\": {\"group_0\": {\"targets\": [\"Linear\"], \"weights\": {\"num_bits\": 8, "
     "\"type\": \"float\", \"strategy\": \"channel\"}, \"input_activations\": {\"num_bits\": 8, "
     "\"type\": \"float\", \"dynamic\": true, \"strategy\": \"token\"}}}, \"ignore\": "
     "[\"lm_head\", \"re:.*gate$\"]}",
     CODE_E4M3, "F8_E4M3", "BF16", EACH_ROW, 0, 0, NULL, NULL, false},
    {"FP8, one scale",
     "{\"quant_method\": \"compressed-tensors\", \"format\": \"float-quantized\", "
     "\"config_groups\": {\"group_0\": {\"targets\": [\"Linear\"], \"weights\": {\"num_bits\": 8, "
     "\"type\": \"float\", \"strategy\": \"tensor\"}}}}",
     CODE_E4M3, "F8_E4M3", "F32", ONE, 0, 0, NULL, NULL, false},
    {"FP8, blocks of compressed-tensors",
     "{\"quant_method\": \"compressed-tensors\", \"format\": \"float-quantized\", "
     "\"config_groups\": {\"group_0\": {\"targets\": [\"Linear\"], \"weights\": {\"num_bits\": 8, "
     "\"type\": \"float\", \"strategy\": \"block\", \"block_structure\": \"16x32\"}}}}",
     CODE_E4M3, "F8_E4M3", "BF16", BLOCKS, 16, 32, NULL, NULL, false},
    {"FP8, blocks of fp8",
     "{\"quant_method\": \"fp8\", \"fmt\": \"e4m3\", \"activation_scheme\": \"dynamic\","
     " \"weight_block_size\": [128, 128], \"modules_to_not_convert\": [\"lm_head\", \"gate\"]}",
     CODE_E4M3, "F8_E4M3", "F32", BLOCKS, 128, 128, NULL, "weight_scale_inv", false},
    {"FP8, small blocks of fp8",
     "{\"quant_method\": \"fp8\", \"weight_block_size\": [7, 5]}",
     CODE_E4M3, "F8_E4M3", "F32", BLOCKS, 7, 5, NULL, "weight_scale_inv", false},
    {"FP8, one scale, of fp8",
     "{\"quant_method\": \"fp8\", \"activation_scheme\": \"static\", \"weight_block_size\": null}",
     CODE_E4M3, "F8_E4M3", "BF16", ONE, 0, 0, NULL, "weight_scale_inv", false},
    {"FP8 of modelopt", "{\"quant_method\": \"modelopt\", \"quant_algo\": \"FP8\", \"ignore\": "
                        "[\"lm_head\"]}",
     CODE_E4M3, "F8_E4M3", "F32", ONE, 0, 0, NULL, NULL, false},
    {"NVFP4",
     "{\"quant_method\": \"compressed-tensors\", \"format\": \"nvfp4-pack-quantized\", "
     "\"config_groups\": {\"group_0\": {\"targets\": [\"Linear\"], \"weights\": {\"num_bits\": 4, "
     "\"type\": \"float\", \"strategy\": \"tensor_group\", \"group_size\": 16}, "
     "\"input_activations\": {\"num_bits\": 4, \"type\": \"float\", \"group_size\": 16}}}}",
     CODE_E2M1, "U8", "F8_E4M3", GROUPS, 0, 16, "weight_global_scale", NULL, false},
    {"NVFP4 of modelopt", "{\"quant_method\": \"modelopt\", \"quant_algo\": \"NVFP4\"}",
     CODE_E2M1, "U8", "F8_E4M3", GROUPS, 0, 16, "weight_scale_2", NULL, false},
    {"MXFP4",
     "{\"quant_method\": \"compressed-tensors\", \"format\": \"mxfp4-pack-quantized\", "
     "\"config_groups\": {\"group_0\": {\"targets\": [\"Linear\"], \"weights\": {\"num_bits\": 4, "
     "\"type\": \"float\", \"strategy\": \"group\", \"group_size\": 32}}}}",
     CODE_E2M1, "U8", "U8", GROUPS, 0, 32, NULL, NULL, false},
    {"MXFP8",
     "{\"quant_method\": \"compressed-tensors\", \"format\": \"mxfp8-quantized\", "
     "\"config_groups\": {\"group_0\": {\"targets\": [\"Linear\"], \"weights\": {\"num_bits\": 8, "
     "\"type\": \"float\", \"strategy\": \"group\", \"group_size\": 32}}}}",
     CODE_E4M3, "F8_E4M3", "U8", GROUPS, 0, 32, NULL, NULL, false},
    {"INT4",
     "{\"quant_method\": \"compressed-tensors\", \"format\": \"pack-quantized\", "
     "\"config_groups\": {\"group_0\": {\"targets\": [\"Linear\"], \"weights\": {\"num_bits\": 4, "
     "\"type\": \"int\", \"strategy\": \"group\", \"group_size\": 4, \"symmetric\": true}}}}",
     CODE_U4, "I32", "BF16", GROUPS, 0, 4, NULL, NULL, false},
    {"packed INT8",
     "{\"quant_method\": \"compressed-tensors\", \"format\": \"pack-quantized\", "
     "\"config_groups\": {\"group_0\": {\"targets\": [\"Linear\"], \"weights\": {\"num_bits\": 8, "
     "\"type\": \"int\", \"strategy\": \"channel\"}}}}",
     CODE_U8, "I32", "BF16", EACH_ROW, 0, 0, NULL, NULL, false},
    {"INT8",
     "{\"quant_method\": \"compressed-tensors\", \"format\": \"int-quantized\", \"config_groups\": "
     "{\"group_0\": {\"targets\": [\"Linear\"], \"weights\": {\"num_bits\": 8, \"type\": \"int\", "
     "\"strategy\": \"channel\"}, \"input_activations\": {\"num_bits\": 8, \"type\": \"int\", "
     "\"strategy\": \"token\"}}}}", CODE_I8, "I8", "F32", EACH_ROW, 0, 0, NULL, NULL, false},
    {"FP8, blocks of fp8, F32 scales that are bf16 numbers",
     "{\"quant_method\": \"fp8\", \"weight_block_size\": [16, 32]}",
     CODE_E4M3, "F8_E4M3", "F32", BLOCKS, 16, 32, NULL, "weight_scale_inv", true},
    {"INT8, F32 scales that are f16 numbers",
     "{\"quant_method\": \"compressed-tensors\", \"format\": \"int-quantized\", \"config_groups\": "
     "{\"group_0\": {\"targets\": [\"Linear\"], \"weights\": {\"num_bits\": 8, \"type\": \"int\", "
     "\"strategy\": \"channel\"}}}}",
     CODE_I8, "I8", "F32", EACH_ROW, 0, 0, NULL, NULL, true},
    {"INT4, groups of 32",
     "{\"quant_method\": \"compressed-tensors\", \"format\": \"pack-quantized\", "
     "\"config_groups\": {\"group_0\": {\"targets\": [\"Linear\"], \"weights\": {\"num_bits\": 4, "
     "\"type\": \"int\", \"strategy\": \"group\", \"group_size\": 32, \"symmetric\": true}}}}",
     CODE_U4, "I32", "BF16", GROUPS, 0, 32, NULL, NULL, false},
};

enum { N_FORMATS = COUNT(formats) };

static double e4m3_of(int c)
{
    int e = c >> 3 & 15, m = c & 7;
    double v = e ? ldexp(8 + m, e - 10) : ldexp(m, -9);
    return c & 0x80 ? -v : v;
}

static double code_of(enum code code, int c)
{
    static const double e2m1[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    switch (code) {
    case CODE_E4M3: return e4m3_of(c);
    case CODE_E2M1: return c & 8 ? -e2m1[c & 7] : e2m1[c];
    case CODE_I8: return c < 128 ? c : c - 256;
    case CODE_U8: return c - 128;
    case CODE_U4: return c - 8;
    }
    return NAN;
}

/* Random codes of one matrix, their scales, and the numbers they stand for. */
struct matrix {
    int rows, cols, block_rows, block_cols, s_rows, s_cols;
    uint8_t *code; /* one a byte */
    float *scale;
    char *scale_raw;
    float outer;
};

static int up(int a, int b)
{
    return (a + b - 1) / b;
}

static size_t type_bytes(const char *type)
{
    return !strcmp(type, "F32") ? 4 : !strcmp(type, "BF16") ? 2 : 1;
}

/* A scale that makes weights of a usual size, stored at p. */
static float put_scale(const struct format *f, uint64_t seed, char *p)
{
    float v = (float)(1 + (double)(mix64(seed) % 1000) / 999) * (f->code == CODE_E4M3 ? 0x1p-11f
                                                                 : 0x1p-9f);
    uint8_t byte;
    if (f->exact)
        v = bf16_to_f32(f32_to_bf16(v));
    if (!strcmp(f->scale, "F32"))
        return memcpy(p, &v, 4), v;
    if (!strcmp(f->scale, "BF16")) {
        uint16_t half = f32_to_bf16(v);
        return memcpy(p, &half, 2), bf16_to_f32(half);
    }
    if (!strcmp(f->scale, "F8_E4M3")) {
        byte = (uint8_t)(seed % 16 == 3 ? 0 : 40 + mix64(seed) % 70); /* 0 is legal, too */
        return memcpy(p, &byte, 1), (float)e4m3_of(byte);
    }
    byte = (uint8_t)(117 + mix64(seed) % 6);
    return memcpy(p, &byte, 1), (float)ldexp(1, byte - 127);
}

static struct matrix make_matrix(const struct format *f, int rows, int cols, uint64_t seed)
{
    struct matrix m = {.rows = rows, .cols = cols, .block_rows = 1, .block_cols = cols, .outer = 1};
    if (f->shape == ONE)
        m.block_rows = rows;
    else if (f->shape == BLOCKS)
        m.block_rows = f->rows, m.block_cols = f->cols;
    else if (f->shape == GROUPS)
        m.block_cols = f->cols;
    m.s_rows = up(rows, m.block_rows), m.s_cols = up(cols, m.block_cols);
    size_t n = (size_t)rows * (size_t)cols, s = (size_t)m.s_rows * (size_t)m.s_cols,
        size = type_bytes(f->scale);
    m.code = xmalloc(n);
    m.scale = xmalloc(s * sizeof *m.scale);
    m.scale_raw = xmalloc(s * size);
    for (size_t i = 0; i < n; i++) {
        m.code[i] = (uint8_t)(mix64(seed + i) >> 8 & (f->code == CODE_E2M1 || f->code == CODE_U4
                                                      ? 15 : 255));
        if (f->code == CODE_E4M3 && (m.code[i] & 0x7f) == 0x7f)
            m.code[i] ^= 1;
    }
    for (size_t i = 0; i < s; i++)
        m.scale[i] = put_scale(f, seed * 31 + i, m.scale_raw + i * size);
    if (f->outer)
        m.outer = strstr(f->outer, "global") ? (float)(3000 + seed % 777)
                                             : 1 / (float)(3000 + seed % 777);
    return m;
}

/* The float32 number of element (i, j); *exact: the number without any rounding. */
static float number(const struct format *f, const struct matrix *m, int i, int j, double *exact)
{
    double c = code_of(f->code, m->code[(size_t)i * (size_t)m->cols + (size_t)j]);
    double s = (double)m->scale[i / m->block_rows * m->s_cols + j / m->block_cols];
    bool divide = f->outer && strstr(f->outer, "global");
    float inner = (float)(c * s);
    *exact = divide ? c * s / (double)m->outer : c * s * (double)m->outer;
    return (float)(divide ? (double)inner / (double)m->outer : (double)inner * (double)m->outer);
}

static void free_matrix(struct matrix *m)
{
    free(m->code);
    free(m->scale);
    free(m->scale_raw);
}

/* ---- values ---- */

enum { GOLDEN_ROWS = 200, GOLDEN_COLS = 320 };

static const struct golden { /* tests/peers/coded.py */
    const char *name;
    enum code code;
    enum scale_type scale;
    int rows, cols; /* of a block */
    float outer;
    bool divide;
} goldens[] = {
    {"fp8-row", CODE_E4M3, SCALE_BF16, 1, GOLDEN_COLS, 1, false},
    {"fp8-tensor", CODE_E4M3, SCALE_F32, GOLDEN_ROWS, GOLDEN_COLS, 1, false},
    {"fp8-block", CODE_E4M3, SCALE_BF16, 128, 128, 1, false},
    {"mxfp8", CODE_E4M3, SCALE_E8M0, 1, 32, 1, false},
    {"int8-row", CODE_I8, SCALE_F32, 1, GOLDEN_COLS, 1, false},
    {"nvfp4", CODE_E2M1, SCALE_E4M3, 1, 16, 3001.7f, true},
    {"nvfp4-modelopt", CODE_E2M1, SCALE_E4M3, 1, 16, (float)(1 / 3001.7), false},
    {"mxfp4", CODE_E2M1, SCALE_E8M0, 1, 32, 1, false},
    {"int4-group", CODE_U4, SCALE_BF16, 1, 64, 1, false},
    {"int8-packed", CODE_U8, SCALE_BF16, 1, GOLDEN_COLS, 1, false},
};

static void golden_scale(enum scale_type type, uint64_t r, char *p)
{
    float v = (float)ldexp(1 + (double)(r & 0xfffff) / (1 << 20), -11);
    uint16_t half = (uint16_t)(0x3a00 + (r & 0x1ff));
    uint8_t byte = (uint8_t)(type == SCALE_E4M3 ? 8 + r % 118 : 110 + r % 20);
    memcpy(p, type == SCALE_F32 ? (void *)&v : type == SCALE_BF16 ? (void *)&half : (void *)&byte,
           scale_size(type));
}

/* What can become blocks has the same numbers there. */
static void same_in_blocks(const struct scaled *s, const uint8_t *code, const char *scale,
                           const uint16_t *want)
{
    static uint8_t b[GOLDEN_COLS / 32 * 34];
    static uint16_t w[GOLDEN_COLS];
    static const enum dtype types[] = {[CODE_E4M3] = DT_E4M3, [CODE_E2M1] = DT_E2M1,
                                       [CODE_I8] = DT_Q8_0,   [CODE_U8] = DT_Q8_0,
                                       [CODE_U4] = DT_Q4_0};
    struct scaled one = *s;
    assert_true(scaled_multiply(&one));
    const enum dtype as = scaled_packs_as(&one);
    assert_int_equal(as, s->type == SCALE_F32 ? DT_NONE : types[s->code]);
    for (int i = 0; as && i < GOLDEN_ROWS; i++) {
        const char *at = scale + (size_t)(i / s->block_rows) * scaled_scale_bytes(s);
        const uint8_t *row = code + (size_t)i * s->code_bytes;
        assert_true(scaled_blocks(&one, row, at, b));
        packed_bf16(as, b, GOLDEN_COLS, w);
        assert_memory_equal(w, want + (size_t)i * GOLDEN_COLS, sizeof w);
    }
}

static void test_values_are_those_of_compressed_tensors(void **state)
{
    (void)state;
    FILE *f = fopen("tests/golden/coded.txt", "r");
    assert_non_null(f);
    char name[32], hash[65], got[65];
    static uint16_t w[GOLDEN_ROWS * GOLDEN_COLS];
    int seed = 0;
    for (; fscanf(f, "%31s %64s", name, hash) == 2; seed++) {
        const struct golden *g = &goldens[seed];
        assert_string_equal(name, g->name);
        struct scaled s = {.code = g->code, .type = g->scale, .rows = GOLDEN_ROWS,
                           .cols = GOLDEN_COLS,
                           .block_rows = g->rows, .block_cols = g->cols,
                           .code_bytes = scaled_code_bytes(g->code, GOLDEN_COLS), .outer = g->outer,
                           .divide = g->divide, .exact = g->scale != SCALE_F32};
        size_t codes = GOLDEN_ROWS * s.code_bytes, row = scaled_scale_bytes(&s);
        size_t scales = (size_t)up(GOLDEN_ROWS, g->rows) * row / scale_size(g->scale);
        uint8_t *code = xmalloc(codes);
        char *scale = xmalloc(scales * scale_size(g->scale));
        for (size_t i = 0; i < codes; i++) {
            code[i] = (uint8_t)mix64(((uint64_t)seed << 32) + i);
            code[i] ^= g->code == CODE_E4M3 && (code[i] & 0x7f) == 0x7f;
        }
        for (size_t i = 0; i < scales; i++)
            golden_scale(g->scale, mix64(((uint64_t)(seed + 100) << 32) + i),
                         scale + i * scale_size(g->scale));
        for (int i = 0; i < GOLDEN_ROWS; i++)
            assert_true(scaled_row(&s, code + (size_t)i * s.code_bytes,
                                   scale + (size_t)(i / g->rows) * row,
                                   w + (size_t)i * GOLDEN_COLS));
        sha256_hex(w, sizeof w, got);
        if (strcmp(got, hash))
            fail_msg("%s: values differ", name);
        same_in_blocks(&s, code, scale, w);
        free(code);
        free(scale);
    }
    assert_int_equal(seed, COUNT(goldens));
    fclose(f);
}

/* ---- folders ---- */

static void add(struct ck *c, const char *base, const char *suffix, const char *type, json_t *shape,
                const void *p, size_t n)
{
    char *name = xasprintf("%s.%s", base, suffix);
    ck_add(c, name, type, shape, p, n);
    free(name);
}

/* Adds the codes as the file holds them. */
static void add_codes(struct ck *c, const struct format *f, const char *base,
                      const struct matrix *m)
{
    bool four = f->code == CODE_E2M1 || f->code == CODE_U4, words = !strcmp(f->type, "I32");
    int width = four ? up(m->cols, 2) : m->cols;
    width = words ? up(width, 4) * 4 : width;
    uint8_t *raw = xcalloc((size_t)m->rows * (size_t)width, 1);
    for (int i = 0; i < m->rows; i++)
        for (int j = 0; j < m->cols; j++) {
            uint8_t code = m->code[(size_t)i * (size_t)m->cols + (size_t)j];
            raw[i * width + (four ? j / 2 : j)] |= (uint8_t)(four && j % 2 ? code << 4 : code);
        }
    bool packed = words || (four && strcmp(f->outer ? f->outer : "", "weight_scale_2") != 0);
    add(c, base, packed ? "weight_packed" : "weight", f->type,
        json_pack("[ii]", m->rows, words ? width / 4 : width), raw,
        (size_t)m->rows * (size_t)width);
    int64_t shape[2] = {m->rows, m->cols};
    if (words)
        add(c, base, "weight_shape", "I64", json_pack("[i]", 2), shape, sizeof shape);
    free(raw);
}

static void add_scales(struct ck *c, const struct format *f, const char *base,
                       const struct matrix *m)
{
    size_t n = (size_t)m->s_rows * (size_t)m->s_cols * type_bytes(f->scale);
    bool scalar = f->shape == ONE && f->inverse;
    add(c, base, f->inverse ? f->inverse : "weight_scale", f->scale,
        scalar          ? json_array()
        : f->shape == ONE ? json_pack("[i]", 1)
                          : json_pack("[ii]", m->s_rows, m->s_cols),
        m->scale_raw, n);
    if (f->outer)
        add(c, base, f->outer, "F32", f->outer[7] == 'g' ? json_pack("[i]", 1) : json_array(),
            &m->outer, 4);
}

static bool is_matrix(const struct ck_tensor *t)
{
    size_t n = strlen(t->name);
    const bool router = strstr(t->name, "mlp.gate.weight"); /* of qwen3moe-b */
    return n > 12 && (router || !strcmp(t->name + n - 12, "_proj.weight")) &&
           json_array_size(t->shape) == 2;
}

static int extent(const struct ck_tensor *t, size_t i)
{
    return (int)json_integer_value(json_array_get(t->shape, i));
}

struct errors { /* of rounding to bf16, against numbers without rounding */
    double sum, of, most;
    int n;
};

/* Adds one matrix as codes to c, and writes its numbers as bf16 to `to`. */
static void add_matrix(struct ck *c, const struct format *f, const char *base, int rows, int cols,
                       char *to, struct errors *err)
{
    struct matrix m = make_matrix(f, rows, cols, hash64(base, strlen(base), 1) >> 8);
    add_codes(c, f, base, &m);
    add_scales(c, f, base, &m);
    for (int i = 0; i < rows * cols; i++) {
        double exact;
        uint16_t half = f32_to_bf16(number(f, &m, i / cols, i % cols, &exact));
        memcpy(to + 2 * i, &half, 2);
        double off = (double)bf16_to_f32(half) - exact;
        err->sum += off * off, err->of += exact * exact;
        if (exact != 0)
            err->most = fmax(err->most, fabs(off / exact));
        err->n++;
    }
    free_matrix(&m);
}

/* The experts of a stacked tensor, each in matrices of its own: gate and up, or down. */
static int add_experts(struct ck *c, const struct format *f, const struct ck_tensor *w,
                       struct errors *err)
{
    bool down = strstr(w->name, "down_proj") != NULL;
    int parts = down ? 1 : 2, rows = extent(w, 1) / parts, cols = extent(w, 2);
    for (int i = 0; i < extent(w, 0) * parts; i++) {
        char *base = xasprintf("%.*s.%d.%s_proj", (int)(strstr(w->name, "experts") - w->name) + 7,
                               w->name, i / parts, down ? "down" : i % 2 ? "up" : "gate");
        add_matrix(c, f, base, rows, cols, w->data + (size_t)i * (size_t)rows * (size_t)cols * 2,
                   err);
        free(base);
    }
    return extent(w, 0) * parts;
}

/* Writes both folders: matrices as codes, and as bf16. Returns how many there are. */
static int write_twins(const char *dir, const struct format *f, struct errors *err)
{
    struct ck c = ck_load(dir, ST), t = ck_load(dir, ST);
    int made = 0;
    ck_set_text(&c, "quantization_config", f->config);
    for (int k = 0; k < t.n; k++) {
        struct ck_tensor *w = &t.t[k];
        bool stacked = strstr(w->name, ".experts.") && json_array_size(w->shape) == 3;
        if ((!stacked && !is_matrix(w)) || (f->shape == GROUPS && extent(w, 1 + stacked) % f->cols))
            continue;
        ck_drop(&c, w->name);
        free(w->dtype);
        w->dtype = xstrdup("BF16");
        if (stacked) {
            made += add_experts(&c, f, w, err);
            continue;
        }
        char *base = xasprintf("%.*s", (int)strlen(w->name) - 7, w->name);
        add_matrix(&c, f, base, extent(w, 0), extent(w, 1), w->data, err);
        free(base);
        made++;
    }
    qsort(c.t, (size_t)c.n, sizeof *c.t, ck_order);
    ck_save(&c, folder, 2);
    ck_save(&t, twin, 1);
    ck_free(&c);
    ck_free(&t);
    return made;
}

enum { WIDE = 64, WIDE_FFN = 32 }; /* whole blocks */

/* The extent in place of another one: of dimension i of t. */
typedef int resize_fn(const struct ck_tensor *t, size_t i, int was);

/* Gives the tensors other extents and random numbers. */
static void resize(struct ck *c, resize_fn *to)
{
    for (int k = 0; k < c->n; k++) {
        struct ck_tensor *t = &c->t[k];
        size_t n = 1;
        for (size_t i = 0; i < json_array_size(t->shape); i++) {
            const int now = to(t, i, extent(t, i));
            json_array_set_new(t->shape, i, json_integer(now));
            n *= (size_t)now;
        }
        t->n = 2 * n;
        t->data = xrealloc(t->data, n, 2);
        for (size_t i = 0; i < n; i++) {
            const float v = (float)(int8_t)mix64((uint64_t)k << 32 | i) * 0x1p-9f;
            const uint16_t half = f32_to_bf16(n > 100 ? v : 1 + v);
            memcpy(t->data + 2 * i, &half, 2);
        }
    }
}

static int wider(const struct ck_tensor *t, size_t i, int was)
{
    (void)i;
    return was == 48                                   ? (int)WIDE
           : was == 20 && strstr(t->name, ".experts.") ? (int)WIDE_FFN
                                                       : was;
}

/* Writes a folder like qwen3moe-b, but so wide. */
static char *wide_folder(void)
{
    char *dir = scratch_folder();
    struct ck c = ck_load(G "qwen3moe-b", ST);
    ck_set(&c, "hidden_size", json_integer(WIDE));
    ck_set(&c, "moe_intermediate_size", json_integer(WIDE_FFN));
    resize(&c, wider);
    ck_save(&c, dir, 1);
    ck_free(&c);
    return dir;
}

/* As what matrices of the wide folder stay packed. */
static enum dtype packed_as(const struct format *f)
{
    const bool exact = strcmp(f->scale, "F32") != 0 || f->exact;
    switch (f->code) {
    case CODE_E2M1: return DT_E2M1;
    case CODE_E4M3: return exact ? DT_E4M3 : DT_BF16;
    case CODE_I8:
    case CODE_U8: return exact ? DT_Q8_0 : DT_BF16;
    case CODE_U4: return f->cols % 32 ? DT_BF16 : DT_Q4_0;
    }
    return DT_NONE;
}

/* ---- the law ---- */

/* Numbers by which NVFP4 of compressed-tensors divides: blocks of E2M1 multiply, and have the same
 * numbers for all of them, codes and scales (random numbers, and ends of the range). */
static void test_division_becomes_multiplication(void **state)
{
    (void)state;
    enum { COLS = 32 * 16 };
    struct scaled s = {.code = CODE_E2M1, .type = SCALE_E4M3, .rows = 1, .cols = COLS,
                       .block_rows = 1, .block_cols = 16, .code_bytes = COLS / 2, .divide = true};
    uint8_t code[COLS / 2], scale[COLS / 16], b[COLS / 32 * 22];
    uint16_t want[COLS], got[COLS];
    int not_made = 0;
    for (int i = 0; i < COLS / 2; i++)
        code[i] = (uint8_t)(i * 2 % 16 | (i * 2 + 1) % 16 << 4);
    for (uint64_t i = 0; i < 20000; i++) {
        const float outer[] = {ldexpf(1 + (float)(mix64(i) >> 41) * 0x1p-23f,
                                      (int)(mix64(i + 1) % 160) - 80), 0x1p-90f, -0x1.fffffep89f};
        s.outer = outer[i % 100 < 98 ? 0 : i % 100 - 97];
        for (int k = 0; k < COLS / 16; k++)
            scale[k] = (uint8_t)((i * 32 + (uint64_t)k) % 127);
        struct scaled times = s;
        not_made += !scaled_multiply(&times);
        assert_int_equal(scaled_packs_as(&times), times.divide ? DT_NONE : DT_E2M1);
        if (times.divide)
            continue;
        assert_true(scaled_row(&s, code, scale, want) && scaled_blocks(&times, code, scale, b));
        packed_bf16(DT_E2M1, b, COLS, got);
        assert_memory_equal(got, want, sizeof got);
    }
    assert_true(not_made < 20);
    s.outer = 0x1p91f;
    assert_false(scaled_multiply(&s));
    s.outer = 0x1p-91f;
    assert_false(scaled_multiply(&s));
}

static const char *const dirs[] = {G "llama-b", G "qwen3moe-b", G "gemma3-a", G "ministral3-b",
                                   G "gemma4-moe-b"};
enum { GEMMA = 2 /* all of its matrices are whole blocks */ };

static void test_a_folder_equals_its_unpacked_twin(void **state)
{
    const struct format *f = *state;
    struct errors err = {0};
    int made = 0;
    char *wide = wide_folder();
    for (int d = 0; d <= COUNT(dirs); d++) {
        int n = write_twins(d < COUNT(dirs) ? dirs[d] : wide, f, &err);
        struct model a = load(folder), b = load(twin);
        const enum dtype stays = packed_as(f);
        const bool packed = stays != DT_BF16;
        if (d == COUNT(dirs)) {
            assert_int_equal(a.layer[0].gate_up.type, stays);
            assert_int_equal(a.layer[0].wq.type, stays);
            assert_int_equal(a.layer[0].router.type, DT_BF16); /* single rows are read */
        } else if (d == GEMMA) {
            assert_int_equal(a.layer[0].wo.type, stays);
            assert_int_equal(a.layer[1].down.type, stays);
        }
        assert_same_weights(&a, &b);
        assert_true(n == 0 || strstr(a.about, " unpacked to BF16") || packed);
        assert_true(d != GEMMA || !strstr(a.about, "matrices, which stay packed;") == !packed);
        const bool kept = strstr(a.about, "which stay packed") ||
                          strstr(a.about, "that stay packed");
        assert_true(d != COUNT(dirs) || kept == packed);
        assert_null(b.about);
        model_free(&a);
        model_free(&b);
        if (d == 1 || d == 2 || d == 4 || d == COUNT(dirs))
            assert_same_run(folder, twin);
        made += n;
        empty_twins();
    }
    assert_true(made > 10);
    scratch_remove(wide);
    double rms = sqrt(err.sum / err.of);
    print_message("# %s: %d weights, rounding to bf16: rms %.2e, at most %.2e of a weight\n",
                  f->name, err.n, rms, err.most);
    assert_true(rms < 1.8e-3 && err.most < 0x1.02p-8);
}

static int narrower(const struct ck_tensor *t, size_t i, int was)
{
    return strstr(t->name, i ? "o_proj" : "v_proj") ? was / 10 * 8 : was;
}

/* Where values are narrower than keys, columns are added to o: it becomes bf16. */
static void test_padded_columns_become_bf16(void **state)
{
    (void)state;
    struct ck c = ck_load(G "mimo-b", ST);
    struct errors err = {0};
    char *dir = scratch_folder();
    ck_set(&c, "v_head_dim", json_integer(8));
    resize(&c, narrower);
    ck_save(&c, dir, 1);
    write_twins(dir, &formats[0], &err);
    struct model a = load(folder), b = load(twin);
    assert_true(a.layer[0].wo.dim[1] > 32 && a.layer[0].wo.type == DT_BF16);
    assert_same_weights(&a, &b);
    assert_same_run(folder, twin);
    model_free(&a), model_free(&b);
    ck_free(&c);
    scratch_remove(dir);
    empty_twins();
}

/* One expert that is not FP8, and none of the folder stays so. */
static void test_experts_of_two_types_become_bf16(void **state)
{
    (void)state;
    char *wide = wide_folder();
    struct errors err = {0};
    write_twins(wide, &formats[0], &err);
    struct ck c = ck_load(folder, "model-00000-of-00001.safetensors");
    const char *name = "model.layers.0.mlp.experts.1.gate_proj.weight";
    assert_non_null(ck_find(&c, name));
    ck_drop(&c, name);
    ck_drop(&c, "model.layers.0.mlp.experts.1.gate_proj.weight_scale");
    uint16_t w[WIDE_FFN * WIDE] = {0};
    ck_add(&c, name, "BF16", json_pack("[ii]", WIDE_FFN, WIDE), w, sizeof w);
    ck_load_more(&c, folder, "model-00001-of-00001.safetensors");
    struct model m = load_ck(&c, 1);
    assert_int_equal(m.layer[0].gate_up.type, DT_BF16);
    assert_int_equal(m.layer[2].down_e.type, DT_BF16);
    model_free(&m);
    ck_free(&c);
    scratch_remove(wide);
    empty_twins();
}

/* ---- what is said of a folder ---- */

#define Q "model.layers.0.self_attn.q_proj"

static void add_number(struct ck *c, const char *name, float v)
{
    ck_add(c, name, "F32", json_array(), &v, 4);
}

static struct ck coded(int format)
{
    struct errors err = {0};
    write_twins(G "llama-b", &formats[format], &err);
    struct ck c = ck_load(folder, "model-00000-of-00001.safetensors");
    ck_load_more(&c, folder, "model-00001-of-00001.safetensors");
    scratch_empty(folder);
    return c;
}

static void test_scales_of_inputs_and_of_the_cache_are_read_and_named(void **state)
{
    (void)state;
    struct ck c = coded(7);
    add_number(&c, Q ".input_global_scale", 12);
    add_number(&c, "model.layers.0.self_attn.k_scale", 0.5f);
    add_number(&c, "model.layers.1.self_attn.v_proj.v_scale", 0.25f);
    add_number(&c, "model.layers.1.self_attn.k_proj.output_scale", 0.25f);
    ck_add(&c, "model.layers.2.self_attn.k_scale", "F32", json_pack("[i]", 2), "\0\0\0\0\0\0\0", 8);
    ck_set_text(&c, "quantization_config.quantization_status", "\"frozen\"");
    ck_save(&c, folder, 1);
    ck_write_text(folder, "generation_config.json", "{\"eos_token_id\": [11, 12]}");
    struct model a = load(folder), b = load(twin);
    assert_int_equal(a.cfg.n_stop, b.cfg.n_stop + 2); /* a folder as any other */
    assert_same_weights(&a, &b);
    assert_string_equal(a.about, "compressed-tensors, 18 NVFP4 matrices unpacked to BF16 (what "
                                 "stays packed: rows of whole blocks of 32, FP8 with bf16 numbers "
                                 "as scales, integers with f16 numbers; experts, if all can); "
                                 "a server's inputs of matrices: FP4, one scale a token and 16 "
                                 "inputs; not used: 1 scales of inputs, 4 of a KV cache");
    assert_string_equal(a.served_inputs, "FP4, one scale a token and 16 inputs");
    assert_null(b.served_inputs);
    assert_non_null(strstr(a.note, "it does not leave out 3 matrices that are not quantized "
                                   "(model.layers.0.mlp.down_proj)")); /* 72 columns are no multiple
                                                                          of 16 */
    model_free(&a);
    model_free(&b);
    ck_free(&c);
}

static void test_contradictions_of_config_and_tensors_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *key, *json, *says;
    } notes[] = {
        {"quantization_config.ignore", "[\"model.language_model.layers.0.self_attn.q_proj\"]",
         "it leaves out 1 matrix that is quantized (" Q ")"},
        {"quantization_config.ignore", "[\"re:.*layers\\\\.1\\\\..*proj$\"]",
         "it leaves out 7 matrices"},
        {"quantization_config.ignore", "[\"re:.*(gate|up)_proj$\", \"q_proj\"]",
         "it leaves out 3 matrices"},
        {"quantization_config.ignore", "[\"model.layers.2\"]", "it leaves out 7 matrices"},
        {"quantization_config.ignore", "[\"re:visual.*\", \"proj\"]", NULL},
    };
    for (int i = 0; i < COUNT(notes); i++) {
        struct ck c = coded(0);
        ck_set_text(&c, notes[i].key, notes[i].json);
        struct model m = load_ck(&c, 1);
        if (notes[i].says ? !m.note || !strstr(m.note, notes[i].says) : m.note != NULL)
            fail_msg("\"%s\", expected \"%s\"", m.note ? m.note : "", notes[i].says ? notes[i].says
                     : "");
        model_free(&m);
        ck_free(&c);
    }
    struct ck c = ck_load(G "llama-b", ST);
    ck_set_text(&c, "quantization_config", formats[0].config);
    struct model m = load_ck(&c, 1);
    assert_non_null(strstr(m.note, "it names a format, but no matrix is quantized"));
    model_free(&m);
    ck_free(&c);
}

/* Wildcards of modelopt, in a file of its own. */
static void test_the_file_of_modelopt_is_read(void **state)
{
    (void)state;
    struct ck c = coded(8);
    ck_set(&c, "quantization_config", NULL);
    ck_save(&c, folder, 1);
    ck_write_text(folder, "hf_quant_config.json",
                  "{\"producer\": {\"name\": \"modelopt\"}, \"quantization\": {\"quant_algo\": "
                  "\"NVFP4\", \"exclude_modules\": [\"lm_head\", \"*layers.?.mlp*\", "
                  "\"*[ab]*\"]}}");
    struct model a = load(folder), b = load(twin);
    assert_same_weights(&a, &b);
    assert_non_null(strstr(a.note, "hf_quant_config.json: "));
    model_free(&a);
    model_free(&b);
    ck_free(&c);
}

/* ---- what is refused ---- */

enum edit { SET, DROP, RENAME, RESHAPE, BYTES, EXTRA };

static const struct refusal {
    int format;
    enum edit edit;
    const char *a, *b, *c; /* SET: key, JSON. RESHAPE: tensor, type, shape. BYTES: tensor, hex,
                              at */
    const char *says;
} refusals[] = {
    {0, SET, "quantization_config.quant_method", "\"awq\"", NULL,
     "quantization_config.quant_method \"awq\" is not supported; fetch the model in bf16, "
     "in FP8 or NVFP4"},
    {0, SET, "quantization_config.quant_method", "\"gptq\"", NULL, "or a GGUF file of it, instead"},
    {0, SET, "quantization_config.quant_method", "\"bitsandbytes\"", NULL,
     "\"bitsandbytes\" is not supported; fetch"},
    {0, SET, "quantization_config.quant_method", "\"mxfp4\"", NULL,
     "not supported for this family"},
    {0, SET, "quantization_config", "{\"group_size\": 64, \"bits\": 4}", NULL,
     "\"mlx\" is not supported; fetch the model in bf16"},
    {0, SET, "quantization_config", "null", NULL, "and scales, but"},
    {0, SET, "quantization_config.format", "\"marlin-24\"", NULL,
     "in format \"marlin-24\", which is not supported"},
    {0, SET, "quantization_config.format", "\"nvfp4-pack-quantized\"", NULL,
     "is 8 bits, float, in format"},
    {0, SET, "quantization_config.quantization_status", "\"calibration\"", NULL,
     "expected \"compressed\""},
    {0, SET, "quantization_config.transform_config", "{\"x\": {}}", NULL,
     "transform_config is not supported"},
    {0, SET, "quantization_config.sparsity_config", "{\"format\": \"sparse-24-bitmask\"}", NULL,
     "sparsity_config"},
    {0, SET, "quantization_config.config_groups.group_0.weights.symmetric", "false", NULL,
     "zero points"},
    {0, SET, "quantization_config.config_groups.group_0.weights.num_bits", "99", NULL,
     "expected 1 to 64"},
    {0, SET, "quantization_config.config_groups.group_0.weights", "7", NULL, "is not an object"},
    {0, SET, "quantization_config.ignore", "[7]", NULL, "ignore has an entry that is not a string"},
    {0, SET, "quantization_config.ignore", "\"lm_head\"", NULL, "ignore is not a list"},
    {3, SET, "quantization_config.weight_block_size", "[0, 128]", NULL, "is not a pair of sizes"},
    {3, SET, "quantization_config.weight_block_size", "[128]", NULL, "is not a pair of sizes"},
    {3, SET, "quantization_config.weight_block_size", "\"128\"", NULL, "is not a pair of sizes"},
    {4, SET, "quantization_config.weight_block_size", "null", NULL,
     "has a shape that does not fit 48 x 72 weights, expected one scale, one a row"},
    {4, SET, "quantization_config.weight_block_size", "[7, 6]", NULL,
     "or one for each block of the config"},
    {3, SET, "quantization_config.fmt", "\"e5m2\"", NULL, "expected \"e4m3\""},
    {8, SET, "quantization_config.quant_algo", "\"FP8_PB_WO\"", NULL,
     "quant_algo \"FP8_PB_WO\" is not supported"},
    {8, SET, "quantization_config.quant_algo", "\"FP8\"", NULL,
     "is stored as NVFP4, which the quantization_config"},
    {0, DROP, Q ".weight_scale", NULL, NULL, "but there is no " Q ".weight_scale"},
    {7, DROP, Q ".weight_global_scale", NULL, NULL, "is stored as MXFP4"},
    {8, DROP, Q ".weight_scale_2", NULL, NULL, "has no " Q ".weight_scale_2"},
    {11, DROP, Q ".weight_shape", NULL, NULL, "has no " Q ".weight_shape"},
    {7, RENAME, Q ".weight_global_scale", Q ".weight_scale_2", NULL,
     "belongs to NVFP4 of another kind"},
    {0, EXTRA, Q ".weight_scale_inv", "BF16", "[1]", "has both weight_scale and weight_scale_inv"},
    {0, EXTRA, Q ".weight_scale_3", "BF16", "[1]", "does not belong to a llama model"},
    {11, EXTRA, Q ".weight_zero_point", "I32", "[1]", "zero points are not supported"},
    {11, EXTRA, Q ".weight_g_idx", "I32", "[48]", "fetch a checkpoint without actorder"},
    {8, EXTRA, Q ".pre_quant_scale", "BF16", "[48]", "scales of inputs before quantization"},
    {0, RESHAPE, Q ".weight_scale", "BF16", "[47, 1]",
     "has a shape that does not fit 48 x 48 weights"},
    {0, RESHAPE, Q ".weight_scale", "BF16", "[0]", "has a shape that does not fit 48 x 48 weights"},
    {0, RESHAPE, Q ".weight_scale", "I16", "[48, 1]", "has type I16, which is no type of scales"},
    {0, RESHAPE, Q ".weight", "F8_E4M3", "[2304]", "expected the rows and columns of one matrix"},
    {0, RESHAPE, Q ".weight", "F8_E4M3", "[0, 48]", "expected the rows and columns of one matrix"},
    {0, RESHAPE, Q ".weight", "F8_E4M3", "[4, 12, 48]", "has 3 dimensions"},
    {0, RESHAPE, Q ".weight", "F8_E5M2", "[48, 48]", "F8_E5M2"},
    {0, RESHAPE, Q ".weight", "BF16", "[48, 48]", "was found, but " Q ".weight has type BF16"},
    {0, RESHAPE, Q ".weight", "F8_E4M3", "[24, 96]", "has a shape that does not fit 24 x 96"},
    {7, RESHAPE, Q ".weight_packed", "BF16", "[48, 24]", "expected U8 or I32"},
    {7, RESHAPE, Q ".weight_scale", "BF16", "[48, 3]", "has type BF16, expected F8_E4M3"},
    {7, RESHAPE, Q ".weight_scale", "F8_E4M3", "[48, 2]", "with a scale for 16 columns"},
    {7, RESHAPE, Q ".weight_global_scale", "F32", "[2]", "expected one number"},
    {11, RESHAPE, Q ".weight_scale", "BF16", "[48, 7]", "does not fit 48 x 48"},
    {11, RESHAPE, Q ".weight_shape", "I64", "[3]", "is not a pair of integers"},
    {11, BYTES, Q ".weight_shape", "31", "0", "says 49 x 48, which 48 x 6 words do not hold"},
    {11, BYTES, Q ".weight_shape", "ff", "15", "words do not hold"},
    {0, BYTES, Q ".weight", "7f", "100", Q ".weight: the weight at [2, 4] is NaN"},
    {0, BYTES, Q ".weight", "ff", "0", "the weight at [0, 0] is NaN"},
    {0, BYTES, Q ".weight_scale", "c07f", "6", Q ".weight_scale: the scale at [3, "
                                                 "0] is not finite"},
    {0, BYTES, Q ".weight_scale", "7f7f", "0", "times its scales is too large for bf16"},
    {7, BYTES, Q ".weight_scale", "7f", "4", Q ".weight_scale: the scale at [1, 1] is not finite"},
    {7, BYTES, Q ".weight_global_scale", "00000000", "0", Q ".weight_global_scale is 0"},
    {7, BYTES, Q ".weight_global_scale", "0000c07f", "0", Q ".weight_global_scale is not finite"},
};

static void edit(struct ck *c, const struct refusal *r)
{
    switch (r->edit) {
    case SET: ck_set_text(c, r->a, r->b); break;
    case DROP: ck_drop(c, r->a); break;
    case RENAME: ck_rename(c, r->a, r->b); break;
    case RESHAPE: ck_reshape(c, r->a, r->b, r->c); break;
    case BYTES:
        for (size_t i = 0, at = (size_t)atoi(r->c); r->b[2 * i]; i++) {
            unsigned byte;
            sscanf(r->b + 2 * i, "%2x", &byte);
            ck_find(c, r->a)->data[at + i] = (char)byte;
        }
        break;
    case EXTRA:
        ck_add(c, r->a, r->b, json_array(), NULL, 1);
        ck_reshape(c, r->a, r->b, r->c);
    }
}

static void test_what_does_not_fit_is_refused_by_name(void **state)
{
    (void)state;
    int failed = 0;
    for (int i = 0; i < COUNT(refusals); i++) {
        const struct refusal *r = &refusals[i];
        struct ck c = coded(r->format);
        struct model m;
        struct err e = {0};
        edit(&c, r);
        ck_save(&c, folder, 1);
        if (model_load(&m, folder, NULL, &e) || !strstr(e.msg, r->says) || strchr(e.msg, '\n') ||
            !strstr(e.msg, folder))
            print_error("row %d: \"%s\", expected \"%s\"\n", i, e.msg, r->says), failed++;
        ck_free(&c);
    }
    assert_int_equal(failed, 0);
}

int main(void)
{
    enum { BEFORE = 8 }; /* tests that are no format's */
    struct CMUnitTest tests[BEFORE + N_FORMATS] = {
        cmocka_unit_test(test_values_are_those_of_compressed_tensors),
        cmocka_unit_test_setup_teardown(test_scales_of_inputs_and_of_the_cache_are_read_and_named,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(test_contradictions_of_config_and_tensors_are_named, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_experts_of_two_types_become_bf16, setup, teardown),
        cmocka_unit_test_setup_teardown(test_padded_columns_become_bf16, setup, teardown),
        cmocka_unit_test(test_division_becomes_multiplication),
        cmocka_unit_test_setup_teardown(test_the_file_of_modelopt_is_read, setup, teardown),
        cmocka_unit_test_setup_teardown(test_what_does_not_fit_is_refused_by_name, setup, teardown),
    };
    for (int i = 0; i < N_FORMATS; i++)
        tests[BEFORE + i] = (struct CMUnitTest){
            formats[i].name, test_a_folder_equals_its_unpacked_twin, setup, teardown,
            (void *)(uintptr_t)&formats[i]};
    return cmocka_run_group_tests_name("matrices stored as codes and scales", tests, NULL, NULL);
}
