/* kernel_cases.h - what the test and the bench of the kernels share: random data, tensors, and a
 * device whose buffers are released together. Header only; each program has its own copy.
 */
#pragma once

#include "kernels/kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define UNUSED __attribute__((unused))

/* ---- random data: a counter through mix64, the same on every run ---------------------------- */

static uint64_t case_seed;

UNUSED static uint64_t rnd(void) { return mix64(case_seed++); }
UNUSED static int rnd_int(int n) { return (int)(rnd() % (uint64_t)n); }
UNUSED static float rnd_unit(void) { return (float)(rnd() >> 40) * 0x1p-24f; } /* [0, 1) */

UNUSED static float rnd_normal(void)
{
    double u = ((double)(rnd() >> 11) + .5) * 0x1p-53, v = (double)(rnd() >> 11) * 0x1p-53;
    return (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
}

UNUSED static float *rnd_floats(size_t n, float scale)
{
    float *x = xmalloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = rnd_normal() * scale;
    return x;
}

UNUSED static uint16_t f32_to_f16(float f) /* values of tests only: normal, rounded down */
{
    union { float f; uint32_t u; } x = {.f = f};
    int exp = (int)(x.u >> 23 & 255) - 112;
    uint16_t sign = (uint16_t)(x.u >> 16 & 0x8000);
    return exp <= 0 ? sign : (uint16_t)(sign | exp << 10 | (x.u >> 13 & 1023));
}

/* ---- tensors -------------------------------------------------------------------------------- */

/* Random weights in host memory; `dim` ends with 0. The caller frees t.data. */
UNUSED static struct tensor rnd_tensor(enum dtype type, float scale, const int64_t *dim)
{
    struct tensor t = {.type = type, .name = "test"};
    size_t n = 1;
    for (; t.n_dim < 4 && dim[t.n_dim]; t.n_dim++)
        n *= (size_t)(t.dim[t.n_dim] = dim[t.n_dim]);
    t.bytes = n * dtype_size(type);
    t.data = xaligned(t.bytes);
    for (size_t i = 0; i < n; i++) {
        float f = type == DT_U8 ? 0 : rnd_normal() * scale;
        if (type == DT_F32)
            ((float *)t.data)[i] = f;
        else if (type == DT_BF16)
            ((uint16_t *)t.data)[i] = f32_to_bf16(f);
        else if (type == DT_F16)
            ((uint16_t *)t.data)[i] = f32_to_f16(f);
        else
            ((uint8_t *)t.data)[i] = (uint8_t)rnd();
    }
    return t;
}
#define TENSOR(type, scale, ...) rnd_tensor(type, scale, (const int64_t[]){__VA_ARGS__, 0})

UNUSED static double weight_at(const struct tensor *t, size_t i)
{
    if (t->type == DT_F32)
        return (double)((const float *)t->data)[i];
    uint16_t h = ((const uint16_t *)t->data)[i];
    return (double)(t->type == DT_BF16 ? bf16_to_f32(h) : f16_to_f32(h));
}

/* ---- a device ------------------------------------------------------------------------------- */

struct case_dev {
    const struct kernels *k;
    struct kdev *d;
    kbuf held[256];
    int n_held;
};

UNUSED static void dev_open(struct case_dev *b, const struct kernels *k, const char *isa,
                            int threads)
{
    struct err e;
    *b = (struct case_dev){.k = k};
    b->d = k->open(&(struct k_opts){.isa = isa, .threads = threads}, &e);
    if (!b->d)
        die("%s", e.msg);
}

/* A buffer of that many bytes, filled from src, or with NaN where src is NULL. */
UNUSED static kbuf dev_buf(struct case_dev *b, const void *src, size_t bytes)
{
    struct err e;
    kbuf buf = b->k->alloc(b->d, bytes, "test", &e);
    CHECK(buf.p && b->n_held < 256);
    b->held[b->n_held++] = buf;
    if (src)
        b->k->put(b->d, buf, src, bytes);
    else
        b->k->fill(b->d, buf, 0xFF);
    return buf;
}

UNUSED static void dev_release(struct case_dev *b)
{
    while (b->n_held)
        b->k->release(b->d, b->held[--b->n_held]);
}

UNUSED static void dev_close(struct case_dev *b)
{
    dev_release(b);
    b->k->close(b->d);
}
