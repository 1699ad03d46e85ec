/* golden_noise.c - see golden_noise.h. */
#include "engine/tools/golden_noise.h"

#include <stdlib.h>

#define NOISE (3 * 0x1p-9f) /* the most that three roundings to bf16 change */

static struct {
    struct kernels table;
    const struct kernels *base;
    uint64_t state;
} noise;

/* In [-1, 1) */
static float next_noise(void)
{
    noise.state += 0x9e3779b97f4a7c15u;
    uint64_t z = noise.state;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (float)(int64_t)(z ^ z >> 31) * 0x1p-63f;
}

/* Rows of n, dense, in a buffer that the caller releases. */
static kbuf disturbed(struct kdev *d, kbuf src, int rows, int n, int stride)
{
    struct err e = {0};
    size_t bytes = (size_t)n * sizeof(float), step = stride > 0 ? (size_t)stride : (size_t)n;
    kbuf dst = noise.base->alloc(d, (size_t)max_int(rows, 1) * bytes, "noise", &e);
    float *x = xmalloc(bytes);
    if (!dst.p)
        die("%s", e.msg);
    for (int r = 0; r < rows; r++) {
        noise.base->get(d, x, kbuf_at(src, (size_t)r * step * sizeof *x, bytes), bytes);
        for (int i = 0; i < n; i++)
            x[i] *= 1 + NOISE * next_noise();
        noise.base->put(d, kbuf_at(dst, (size_t)r * bytes, bytes), x, bytes);
    }
    free(x);
    return dst;
}

static void noisy_linear(struct kdev *d, const struct k_linear *a)
{
    struct k_linear b = *a;
    b.src = disturbed(d, a->src, a->rows, (int)a->w->dim[1], a->src_stride);
    b.src_stride = 0;
    noise.base->linear(d, &b);
    noise.base->release(d, b.src);
}

static void noisy_glu(struct kdev *d, const struct k_glu *a)
{
    struct k_glu b = *a;
    b.src = disturbed(d, a->src, a->rows, (int)a->gate->dim[1], 0);
    noise.base->glu(d, &b);
    noise.base->release(d, b.src);
}

static void noisy_qkv(struct kdev *d, const struct k_qkv *a)
{
    struct k_qkv b = *a;
    b.src = disturbed(d, a->src, a->rows, (int)a->wq->dim[1], a->src_stride);
    b.src_stride = 0;
    noise.base->qkv(d, &b);
    noise.base->release(d, b.src);
}

static void noisy_moe(struct kdev *d, const struct k_moe *a)
{
    struct k_moe b = *a;
    b.src = disturbed(d, a->src, a->rows, a->in, 0);
    noise.base->moe(d, &b);
    noise.base->release(d, b.src);
}

const struct kernels *noise_table(const struct kernels *base, uint64_t seed)
{
    noise.table = *base;
    noise.table.linear = noisy_linear;
    noise.table.glu = noisy_glu;
    noise.table.qkv = noisy_qkv;
    noise.table.moe = noisy_moe;
    noise.base = base;
    noise.state = seed;
    return &noise.table;
}
