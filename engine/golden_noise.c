/* golden_noise.c - see golden_noise.h. */
#include "engine/golden_noise.h"

#include <stdlib.h>

#define NOISE (4 * 0x1p-9f) /* the most that four roundings to bf16 change */

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

static void noisy_qkv(struct kdev *d, const struct k_qkv *a)
{
    size_t in = (size_t)a->wq->dim[1], stride = a->src_stride > 0 ? (size_t)a->src_stride : in;
    float *x = xmalloc(in * sizeof *x);
    for (int r = 0; r < a->rows; r++) {
        kbuf row = kbuf_at(a->src, (size_t)r * stride * sizeof *x, in * sizeof *x);
        noise.base->get(d, x, row, in * sizeof *x);
        for (size_t i = 0; i < in; i++)
            x[i] *= 1 + NOISE * next_noise();
        noise.base->put(d, row, x, in * sizeof *x);
    }
    free(x);
    noise.base->qkv(d, a);
}

const struct kernels *noise_table(const struct kernels *base, uint64_t seed)
{
    noise.table = *base;
    noise.table.qkv = noisy_qkv;
    noise.base = base;
    noise.state = seed;
    return &noise.table;
}
