/* packed.c - the values of packed blocks, in plain C: the definition that the vector code of
 * kernels/cpu/unpack.h repeats.
 *
 * d, dmin and m are f16. Every product of a scale, a sub-scale and a code is exact in float32 (at
 * most 24 bits); a value with a minimum is rounded once, in the subtraction. So it does not matter
 * whether a compiler fuses them. The scale of E4M3 is bf16, so that its values are exact, too. E2M1
 * is rounded once, in the multiplication by the block's float32.
 */
#include "kernels/packed.h"

#include "kernels/fp8.h"

#include <math.h>
#include <pthread.h>
#include <unistd.h>

static float half_at(const uint8_t *p)
{
    return f16_to_f32((uint16_t)(p[0] | p[1] << 8));
}

/* ---- blocks of 32: byte j of q holds elements j (low four bits) and j + 16 ------------------- */

static void unpack_q8_0(const uint8_t *b, float *y)
{
    float d = half_at(b);
    for (int i = 0; i < 32; i++)
        y[i] = d * (float)(int8_t)b[2 + i];
}

/* n in 0 .. 15 of element i. */
static int nibble(const uint8_t *q, int i)
{
    return i < 16 ? q[i] & 15 : q[i - 16] >> 4;
}

/* The 32 fifth bits at p: of element i, as 0 or 16. */
static int fifth(const uint8_t *p, int i)
{
    return (p[i / 8] >> i % 8 & 1) << 4;
}

static void unpack_q4_0(const uint8_t *b, float *y)
{
    float d = half_at(b);
    for (int i = 0; i < 32; i++)
        y[i] = d * (float)(nibble(b + 2, i) - 8);
}

static void unpack_q4_1(const uint8_t *b, float *y)
{
    float d = half_at(b), m = half_at(b + 2);
    for (int i = 0; i < 32; i++)
        y[i] = d * (float)nibble(b + 4, i) + m;
}

static void unpack_q5_0(const uint8_t *b, float *y)
{
    float d = half_at(b);
    for (int i = 0; i < 32; i++)
        y[i] = d * (float)((nibble(b + 6, i) | fifth(b + 2, i)) - 16);
}

static void unpack_q5_1(const uint8_t *b, float *y)
{
    float d = half_at(b), m = half_at(b + 2);
    for (int i = 0; i < 32; i++)
        y[i] = d * (float)(nibble(b + 8, i) | fifth(b + 4, i)) + m;
}

const int8_t packed_iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                               1,    13,   25,  38,  53,  69,  89,  113};

static void unpack_iq4_nl(const uint8_t *b, float *y)
{
    float d = half_at(b);
    for (int i = 0; i < 32; i++)
        y[i] = d * (float)packed_iq4[nibble(b + 2, i)];
}

const int8_t packed_e2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

static void unpack_mxfp4(const uint8_t *b, float *y)
{
    union {
        uint32_t u;
        float f;
    } half; /* 2^(e - 128): half of the scale */
    half.u = b[0] < 2 ? 0x200000u << b[0] : (uint32_t)(b[0] - 1) << 23;
    for (int i = 0; i < 32; i++)
        y[i] = half.f * (float)packed_e2m1[nibble(b + 1, i)];
}

/* The bf16 scale of a block of E4M3; the value of one of its codes, without the scale. */
static float e4m3_scale(const uint8_t *b)
{
    return bf16_to_f32((uint16_t)(b[0] | b[1] << 8));
}
static float e4m3_code(uint8_t c) { return bf16_to_f32(fp8_value(c, 0)); }

static void unpack_e4m3(const uint8_t *b, float *y)
{
    const float d = e4m3_scale(b);
    for (int i = 0; i < 32; i++)
        y[i] = d * e4m3_code(b[2 + i]);
}

/* Scale k of a block of E2M1, halved, as packed_e2m1 has codes doubled. */
static float e2m1_scale(const uint8_t *b, int k) { return e4m3_code(b[4 + k]) * 0.5f; }
static float e2m1_factor(const uint8_t *b)
{
    float f;
    memcpy(&f, b, sizeof f);
    return f;
}

static void unpack_e2m1(const uint8_t *b, float *y)
{
    const float factor = e2m1_factor(b), scale[2] = {e2m1_scale(b, 0), e2m1_scale(b, 1)};
    for (int i = 0; i < 32; i++) {
        const int code = nibble(b + 6, i);
        const float level = (float)packed_e2m1[code & 7]; /* 8 is -0 */
        y[i] = scale[i / 16] * (code & 8 ? -level : level) * factor;
    }
}

/* ---- blocks of 64 and 256 -------------------------------------------------------------------- */

/* Four sub-blocks of 16, each with an unsigned E4M3 scale. */
static void unpack_nvfp4(const uint8_t *b, float *y)
{
    for (int i = 0; i < 64; i++) {
        int k = i / 16, exponent = b[k] >> 3 & 15, mantissa = b[k] & 7;
        const uint8_t *q = &b[8 * k + 4];
        float scale = (float)(exponent ? (8 + mantissa) << (exponent - 1) : mantissa) * 0x1p-10f;
        y[i] = scale * (float)packed_e2m1[i % 16 < 8 ? q[i % 8] & 15 : q[i % 8] >> 4];
    }
}

/* The six-bit scale k < 8 of Q4_K and Q5_K, and its minimum. */
static void scale_min(const uint8_t *s, int k, int *scale, int *min)
{
    if (k < 4) {
        *scale = s[k] & 63;
        *min = s[k + 4] & 63;
    } else {
        *scale = (s[k + 4] & 15) | s[k - 4] >> 6 << 4;
        *min = s[k + 4] >> 4 | s[k] >> 6 << 4;
    }
}

/* high: the fifth bits, of Q5_K; NULL: none. */
static void unpack_k(const uint8_t *b, const uint8_t *high, const uint8_t *q, float *y)
{
    float d = half_at(b), dmin = half_at(b + 2);
    for (int k = 0; k < 8; k++) {
        int scale, min;
        scale_min(b + 4, k, &scale, &min);
        float by = d * (float)scale, less = dmin * (float)min;
        for (int l = 0; l < 32; l++) {
            int n = q[32 * (k / 2) + l] >> 4 * (k % 2) & 15;
            if (high)
                n |= (high[l] >> k & 1) << 4;
            y[32 * k + l] = by * (float)n - less;
        }
    }
}

static void unpack_q4_k(const uint8_t *b, float *y)
{
    unpack_k(b, NULL, b + 16, y);
}
static void unpack_q5_k(const uint8_t *b, float *y)
{
    unpack_k(b, b + 16, b + 48, y);
}

static void unpack_q6_k(const uint8_t *b, float *y)
{
    float d = half_at(b + 208);
    for (int i = 0; i < 256; i++) {
        int half = i / 128, j = i % 128 / 32, l = i % 32; /* j: which of four elements of l */
        int low = b[64 * half + 32 * (j % 2) + l] >> 4 * (j / 2) & 15;
        int high = b[128 + 32 * half + l] >> 2 * j & 3;
        float scale = d * (float)(int8_t)b[192 + i / 16];
        y[i] = scale * (float)((low | high << 4) - 32);
    }
}

/* The two bits of element i of Q2_K and Q3_K. */
static int two_bits(const uint8_t *q, int i)
{
    return q[32 * (i / 128) + i % 32] >> 2 * (i % 128 / 32) & 3;
}

static void unpack_q2_k(const uint8_t *b, float *y)
{
    float d = half_at(b + 80), dmin = half_at(b + 82);
    for (int i = 0; i < 256; i++)
        y[i] = d * (float)(b[i / 16] & 15) * (float)two_bits(b + 16, i) -
               dmin * (float)(b[i / 16] >> 4);
}

static void unpack_q3_k(const uint8_t *b, float *y)
{
    const uint8_t *s = b + 96;
    float d = half_at(b + 108);
    for (int i = 0; i < 256; i++) {
        int k = i / 16, low = s[k % 8] >> 4 * (k / 8) & 15;
        int scale = low | (s[8 + k % 4] >> 2 * (k / 4) & 3) << 4;
        int high = b[i % 32] >> i / 32 & 1;
        y[i] = d * (float)(scale - 32) * (float)(two_bits(b + 32, i) - (high ? 0 : 4));
    }
}

static void unpack_iq4_xs(const uint8_t *b, float *y)
{
    float d = half_at(b);
    int high = b[2] | b[3] << 8;
    for (int k = 0; k < 8; k++) {
        int scale = (b[4 + k / 2] >> 4 * (k % 2) & 15) | (high >> 2 * k & 3) << 4;
        float by = d * (float)(scale - 32);
        for (int i = 0; i < 32; i++)
            y[32 * k + i] = by * (float)packed_iq4[nibble(&b[16 * k + 8], i)];
    }
}

/* ---- all formats ----------------------------------------------------------------------------- */

static const struct format {
    struct packed_format f;
    void (*unpack)(const uint8_t *block, float *y);
} formats[] = {
    [DT_Q8_0] = {{32, 34, {0, -1}, 73.9f, 0}, unpack_q8_0},
    [DT_Q4_0] = {{32, 18, {0, -1}, 4.63f, 0}, unpack_q4_0},
    [DT_Q4_1] = {{32, 20, {0, 2}, 4.6f, -7.5f}, unpack_q4_1},
    [DT_Q5_0] = {{32, 22, {0, -1}, 9.24f, 0}, unpack_q5_0},
    [DT_Q5_1] = {{32, 24, {0, 2}, 9.24f, -15.5f}, unpack_q5_1},
    [DT_Q2_K] = {{256, 84, {80, 82}, 13.9f, 1.5f}, unpack_q2_k},
    [DT_Q3_K] = {{256, 110, {108, -1}, 43.4f, 0}, unpack_q3_k},
    [DT_Q4_K] = {{256, 144, {0, 2}, 258.f, 7.5f}, unpack_q4_k},
    [DT_Q5_K] = {{256, 176, {0, 2}, 527.f, 15.5f}, unpack_q5_k},
    [DT_Q6_K] = {{256, 210, {208, -1}, 1364.f, 0}, unpack_q6_k},
    [DT_IQ4_NL] = {{32, 18, {0, -1}, 67.4f, 0}, unpack_iq4_nl},
    [DT_IQ4_XS] = {{256, 136, {0, -1}, 1248.f, 0}, unpack_iq4_xs},
    [DT_MXFP4] = {{32, 17, {-1, -1}, 2.93f, 0}, unpack_mxfp4},
    [DT_NVFP4] = {{64, 36, {-1, -1}, 2.93f, 0}, unpack_nvfp4},
    [DT_E4M3] = {{32, 34, {-1, -1}, 107.2f, 0}, unpack_e4m3},
    [DT_E2M1] = {{32, 22, {-1, -1}, 2.93f, 0}, unpack_e2m1},
};

static const struct format *format_of(enum dtype t)
{
    CHECK(dtype_packed(t));
    return &formats[t];
}

const struct packed_format *packed_format(enum dtype t)
{
    return &format_of(t)->f;
}

size_t dtype_bytes(enum dtype t, size_t n)
{
    if (!dtype_packed(t))
        return n * dtype_size(t);
    const struct packed_format *f = packed_format(t);
    CHECK(n % (size_t)f->elements == 0);
    return n / (size_t)f->elements * (size_t)f->bytes;
}

bool dtype_bytes_fit(enum dtype t, int n_dim, const int64_t *dim, size_t *bytes)
{
    int64_t last = n_dim ? dim[n_dim - 1] : 1,
            each = dtype_packed(t) ? packed_format(t)->elements : 1;
    size_t n = dtype_packed(t) ? (size_t)packed_format(t)->bytes : dtype_size(t);
    if (!n || last < 0 || last % each || !size_mul(n, (size_t)(last / each), &n))
        return false;
    for (int i = 0; i + 1 < n_dim; i++)
        if (dim[i] < 0 || !size_mul(n, (size_t)dim[i], &n))
            return false;
    *bytes = n;
    return true;
}

void packed_floats(enum dtype t, const void *blocks, size_t n, float *dst)
{
    const struct format *f = format_of(t);
    const uint8_t *b = blocks;
    CHECK(n % (size_t)f->f.elements == 0);
    for (size_t i = 0; i < n; i += (size_t)f->f.elements, b += f->f.bytes)
        f->unpack(b, dst + i);
}

struct part { /* of packed_bf16() */
    const struct format *f;
    const uint8_t *blocks;
    size_t n; /* blocks */
    uint16_t *dst;
    pthread_t thread;
};

static void *part_bf16(void *arg)
{
    const struct part *p = arg;
    const size_t elements = (size_t)p->f->f.elements, bytes = (size_t)p->f->f.bytes;
    for (size_t i = 0; i < p->n; i++) {
        float y[PACKED_BLOCK];
        p->f->unpack(p->blocks + i * bytes, y);
        for (size_t j = 0; j < elements; j++)
            p->dst[i * elements + j] = f32_to_bf16(y[j]);
    }
    return NULL;
}

void packed_bf16(enum dtype t, const void *blocks, size_t n, uint16_t *dst)
{
    enum { MOST = 16, ELEMENTS = 1 << 20 }; /* threads; elements that are worth one */
    const struct format *f = format_of(t);
    const size_t elements = (size_t)f->f.elements, all = n / elements;
    CHECK(n % elements == 0);
    const long cores = n > ELEMENTS ? sysconf(_SC_NPROCESSORS_ONLN) : 1;
    const int most = (int)(cores < MOST ? cores : MOST);
    const int parts = max_int(1, n / ELEMENTS < MOST ? min_int((int)(n / ELEMENTS), most) : most);
    struct part part[MOST] = {0};
    int started = 1; /* the first one is this thread's, and so are those that cannot start */
    for (int k = 0; k < parts; k++) {
        const size_t from = all * (size_t)k / (size_t)parts;
        part[k] = (struct part){f, (const uint8_t *)blocks + from * (size_t)f->f.bytes,
                                all * (size_t)(k + 1) / (size_t)parts - from,
                                dst + from * elements, 0};
    }
    while (started < parts &&
           pthread_create(&part[started].thread, NULL, part_bf16, &part[started]) == 0)
        started++;
    part_bf16(&part[0]);
    for (int k = 1; k < parts; k++)
        if (k < started)
            pthread_join(part[k].thread, NULL);
        else
            part_bf16(&part[k]);
}

/* A positive number below 65504 as f16, rounded to nearest or, if it is normal, towards 0. */
static uint16_t half_of(float f)
{
    union {
        float f;
        uint32_t u;
    } x = {.f = f};
    if (f < 0x1p-14f)
        return (uint16_t)(f * 0x1p24f + 0.5f);
    return (uint16_t)(((x.u >> 23) - 112) << 10 | (x.u >> 13 & 1023));
}

static void put_half(uint8_t *p, float f)
{
    uint16_t h = f < 0 ? half_of(-f) | 0x8000 : half_of(f);
    p[0] = (uint8_t)h;
    p[1] = (uint8_t)(h >> 8);
}

/* Sets the scale of a block of E4M3, and replaces codes that are NaN. */
static void random_e4m3(uint8_t *b, float scale)
{
    const uint16_t d = f32_to_bf16(scale);
    b[0] = (uint8_t)d, b[1] = (uint8_t)(d >> 8);
    for (int i = 2; i < 34; i++)
        b[i] ^= (b[i] & 0x7f) == 0x7f;
}

/* The scales in E4M3 become 1. */
static void put_e2m1(uint8_t *b, float factor)
{
    memcpy(b, &factor, sizeof factor);
    b[4] = b[5] = 0x38;
}

void packed_random(enum dtype t, uint64_t seed, float scale, size_t first, size_t n, void *blocks)
{
    const struct packed_format *f = packed_format(t);
    uint8_t *b = blocks;
    float d = scale / f->deviation;
    int exponent = 127; /* of the nearest power of two that is not above d */
    for (; exponent > 1 && bf16_to_f32((uint16_t)(exponent << 7)) > d; exponent--)
        ;
    for (size_t i = first; i < first + n; i++, b += f->bytes) {
        for (int j = 0; j < f->bytes; j++)
            b[j] = (uint8_t)(mix64(seed + i * 32 + (size_t)j / 8) >> 8 * (j % 8));
        for (int j = 0; j < 2 && f->scale[j] >= 0; j++)
            put_half(b + f->scale[j], j ? d * f->minimum : d);
        for (int j = 0; j < 4 && (t == DT_NVFP4 || (t == DT_MXFP4 && j < 1)); j++)
            b[j] = (uint8_t)(t == DT_MXFP4    ? exponent
                             : exponent > 120 ? (exponent - 120) << 3
                                              : (int)(d * 512 + 0.5f)); /* E4M3 */
        if (t == DT_E4M3)
            random_e4m3(b, d);
        if (t == DT_E2M1)
            put_e2m1(b, d);
    }
}

/* Whether all values of a block of E4M3 are finite when they are rounded to bf16. */
static bool e4m3_finite(const uint8_t *b)
{
    uint8_t most = 0;
    for (int i = 2; i < 34; i++)
        most = (b[i] & 0x7f) > most ? b[i] & 0x7f : most;
    return most < 0x7f && (f32_to_bf16(e4m3_scale(b) * e4m3_code(most)) & 0x7f80) != 0x7f80;
}

/* The same of E2M1, whose scales and codes are 2688 at most. Kernels multiply factors by 2^7. */
static bool e2m1_finite(const uint8_t *b)
{
    return fabsf(e2m1_factor(b)) < PACKED_FACTOR && (b[4] & 0x7f) != 0x7f && (b[5] & 0x7f) != 0x7f;
}

static bool is_finite(enum dtype t, const struct packed_format *f, const uint8_t *b)
{
    if (t == DT_E4M3)
        return e4m3_finite(b);
    if (t == DT_E2M1)
        return e2m1_finite(b);
    for (int i = 0; i < 2; i++)
        if (f->scale[i] >= 0 && (b[f->scale[i] + 1] & 0x7c) == 0x7c)
            return false;
    for (int i = 0; t == DT_NVFP4 && i < 4; i++)
        if ((b[i] & 0x7f) == 0x7f)
            return false;
    return t != DT_MXFP4 || b[0] < 253; /* 6 x 2^126 is too large */
}

int64_t packed_not_finite(enum dtype t, const void *blocks, int64_t n)
{
    const struct packed_format *f = packed_format(t);
    const uint8_t *b = blocks;
    for (int64_t i = 0; i < n; i++, b += f->bytes)
        if (!is_finite(t, f, b))
            return i;
    return -1;
}
