/* scaled.c - see scaled.h. */
#include "models/checkpoint/scaled.h"

#include "kernels/fp8.h"
#include "kernels/packed.h"

enum { INFINITE = 0x7f80 }; /* magnitudes of bf16 from here on are not finite */

size_t scaled_code_bytes(enum code c, int64_t n)
{
    return c == CODE_E2M1 || c == CODE_U4 ? (size_t)((n + 1) / 2) : (size_t)n;
}

size_t scale_size(enum scale_type t)
{
    return t == SCALE_F32 ? 4 : t == SCALE_F16 || t == SCALE_BF16 ? 2 : 1;
}

static int64_t blocks_of_row(const struct scaled *s)
{
    return (s->cols + s->block_cols - 1) / s->block_cols;
}

size_t scaled_scale_bytes(const struct scaled *s)
{
    return (size_t)blocks_of_row(s) * scale_size(s->type);
}

static float e4m3(uint8_t c)
{
    return (c & 0x7f) == 0x7f ? NAN : bf16_to_f32(fp8_value(c, 0));
}

float scale_value(enum scale_type t, const void *p)
{
    uint8_t byte;
    uint16_t half;
    float v;
    switch (t) {
    case SCALE_F32: return memcpy(&v, p, 4), v;
    case SCALE_F16: return memcpy(&half, p, 2), f16_to_f32(half);
    case SCALE_BF16: return memcpy(&half, p, 2), bf16_to_f32(half);
    case SCALE_E4M3: return memcpy(&byte, p, 1), e4m3(byte);
    case SCALE_E8M0: return memcpy(&byte, p, 1), byte == 0xff ? NAN : ldexpf(1, byte - 127);
    }
    return NAN;
}

static float code_value(enum code c, uint8_t v)
{
    switch (c) {
    case CODE_E4M3: return e4m3(v);
    case CODE_E2M1: return (v & 8 ? -0.5f : 0.5f) * (float)packed_e2m1[v & 7]; /* 8: -0 */
    case CODE_I8: return (float)(int8_t)v;
    case CODE_U8: return (float)v - 128;
    case CODE_U4: return (float)v - 8;
    }
    return NAN;
}

static uint8_t code_at(const struct scaled *s, const uint8_t *codes, int64_t j)
{
    if (s->code != CODE_E2M1 && s->code != CODE_U4)
        return codes[j];
    return j % 2 ? codes[j / 2] >> 4 : codes[j / 2] & 15;
}

static float weight(const struct scaled *s, float code, float scale)
{
    float inner = code * scale;
    return s->divide ? inner / s->outer : inner * s->outer;
}

bool scaled_row(const struct scaled *s, const uint8_t *codes, const void *scales, uint16_t *out)
{
    float value[256];
    int n_value = s->code == CODE_E2M1 || s->code == CODE_U4 ? 16 : 256;
    for (int v = 0; v < n_value; v++)
        value[v] = code_value(s->code, (uint8_t)v);
    const char *at = scales;
    unsigned most = 0;
    for (int64_t from = 0; from < s->cols; from += s->block_cols, at += scale_size(s->type)) {
        int64_t end = s->cols - from < s->block_cols ? s->cols : from + s->block_cols;
        float scale = scale_value(s->type, at);
        for (int64_t j = from; j < end; j++) {
            out[j] = f32_to_bf16(weight(s, value[code_at(s, codes, j)], scale));
            unsigned magnitude = out[j] & 0x7fff;
            most = magnitude > most ? magnitude : most;
        }
    }
    return most < INFINITE;
}

/* ---- blocks ---------------------------------------------------------------------------------- */

enum scale_type scaled_block_scale(const struct scaled *s)
{
    switch (s->code) {
    case CODE_E4M3: return SCALE_BF16;
    case CODE_E2M1: return s->type;
    case CODE_I8:
    case CODE_U8:
    case CODE_U4: return SCALE_F16;
    }
    return s->type;
}

static enum dtype blocks_of_codes(const struct scaled *s)
{
    switch (s->code) {
    case CODE_E4M3: return DT_E4M3;
    case CODE_E2M1: return DT_E2M1;
    case CODE_I8:
    case CODE_U8: return DT_Q8_0;
    case CODE_U4: return DT_Q4_0;
    }
    return DT_NONE;
}

enum dtype scaled_packs_as(const struct scaled *s)
{
    const enum dtype t = blocks_of_codes(s);
    const int elements = packed_format(t)->elements;
    if (s->cols % elements)
        return DT_NONE;
    const bool nvfp4 = s->type == SCALE_E4M3 && s->block_cols == 16 && !s->divide,
               mxfp4 = s->type == SCALE_E8M0 && s->block_cols == 32 && s->outer == 1;
    if (t == DT_E2M1)
        return (nvfp4 || mxfp4) && s->block_rows == 1 ? t : DT_NONE;
    const bool whole = s->block_cols == s->cols || s->block_cols % elements == 0;
    return whole && s->exact && s->outer == 1 ? t : DT_NONE;
}

/* Of 32 elements from codes on, each half a byte: those of j and j + 16 in byte j. */
static void halves(const uint8_t *codes, uint8_t *out)
{
    for (int j = 0; j < 16; j++)
        out[j] = (uint8_t)((codes[j / 2] >> j % 2 * 4 & 15) |
                           (codes[8 + j / 2] >> j % 2 * 4 & 15) << 4);
}

/* NaN: the file has changed since its scales were read, or one is not finite. */
static uint16_t half_of(float scale)
{
    enum { NOT = 0x7e00 };
    uint16_t d;
    return f16_of(scale, &d) ? d : NOT;
}

/* A block of E4M3, Q8_0 or Q4_0: the scale, of two bytes, and 32 codes. */
static void put_block(const struct scaled *s, const uint8_t *codes, float scale, uint8_t *out)
{
    const uint16_t d = s->code == CODE_E4M3 ? f32_to_bf16(scale) : half_of(scale); /* exact */
    out[0] = (uint8_t)d, out[1] = (uint8_t)(d >> 8);
    if (s->code == CODE_U4)
        halves(codes, out + 2);
    else
        for (int j = 0; j < 32; j++)
            out[2 + j] = s->code == CODE_U8 ? codes[j] ^ 0x80 : codes[j];
}

/* A block of E2M1: a factor of all, two scales in E4M3, 32 codes. */
static void put_e2m1(const struct scaled *s, const uint8_t *codes, const uint8_t *scale,
                     uint8_t *out)
{
    enum { ONE = 0x38 }; /* of E4M3 */
    const bool own = s->type == SCALE_E4M3;
    const float factor = own ? s->outer : scale_value(s->type, scale);
    memcpy(out, &factor, sizeof factor);
    out[4] = own ? scale[0] : ONE, out[5] = own ? scale[1] : ONE;
    halves(codes, out + 6);
}

bool scaled_blocks(const struct scaled *s, const uint8_t *codes, const void *scales, uint8_t *out)
{
    const enum dtype t = scaled_packs_as(s);
    const struct packed_format *f = packed_format(t);
    const int64_t blocks = s->cols / f->elements;
    const size_t each = scaled_code_bytes(s->code, f->elements);
    for (int64_t i = 0; i < blocks; i++, codes += each) {
        const int64_t of = i * f->elements / s->block_cols;
        const uint8_t *scale = (const uint8_t *)scales + (size_t)of * scale_size(s->type);
        uint8_t *to = out + i * f->bytes;
        if (t == DT_E2M1)
            put_e2m1(s, codes, scale, to);
        else
            put_block(s, codes, scale_value(s->type, scale), to);
    }
    return packed_not_finite(t, out, blocks) < 0;
}

/* Whether products with `factor` are those of the law when they are rounded to bf16: of all
 * significands that a code times a scale can have. */
static bool is_factor(const struct scaled *s, float factor)
{
    bool is = true;
    for (int scale = 8; scale < 16; scale++)
        for (int code = 2; code < 4; code++) {
            const float inner = (float)(scale * code);
            is &= f32_to_bf16(inner * factor) == f32_to_bf16(weight(s, 1, inner));
        }
    return is;
}

bool scaled_multiply(struct scaled *s)
{
    enum { TRIES = 8 };
    if (!s->divide)
        return true;
    if (s->code != CODE_E2M1 || fabsf(s->outer) < 0x1p-90f || fabsf(s->outer) > 0x1p90f)
        return false;
    float up = 1 / s->outer, down = up;
    for (int i = 0; i < TRIES; i++) {
        if (is_factor(s, up) || is_factor(s, down)) {
            s->outer = is_factor(s, up) ? up : down;
            s->divide = false;
            return true;
        }
        up = nextafterf(up, INFINITY), down = nextafterf(down, -INFINITY);
    }
    return false;
}

void scaled_fault(const struct scaled *s, int64_t row, const uint8_t *codes, const void *scales,
                  bool *of_scale, char *why, size_t n)
{
    long long i = (long long)row;
    for (int64_t j = 0; j < s->cols; j++) {
        int64_t block = j / s->block_cols;
        float scale =
            scale_value(s->type, (const char *)scales + (size_t)block * scale_size(s->type));
        float code = code_value(s->code, code_at(s, codes, j));
        *of_scale = !isfinite(scale);
        if (*of_scale)
            snprintf(why, n, "the scale at [%lld, %lld] is not finite",
                     (long long)(row / s->block_rows), (long long)block);
        else if (!isfinite(code))
            snprintf(why, n, "the weight at [%lld, %lld] is NaN", i, (long long)j);
        else if ((f32_to_bf16(weight(s, code, scale)) & 0x7fff) >= INFINITE)
            snprintf(why, n, "the weight at [%lld, %lld] times its scales is too large for bf16", i,
                     (long long)j);
        else
            continue;
        return;
    }
    *of_scale = true;
    snprintf(why, n, "a scale of row %lld is too large", i);
}
