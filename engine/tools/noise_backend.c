/* noise_backend.c - see noise_backend.h. */
#include "engine/tools/noise_backend.h"

#include "engine/run/device.h"

static struct {
    struct kernels table;
    const struct kernels *base;
    uint64_t seed;
    float size;
} noise;

/* Of the element x of a column, in [-1, 1): the same wherever and whenever its row runs. */
static float noise_of(float x, int column)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint64_t z = mix64(noise.seed + ((uint64_t)bits << 32 | (uint32_t)column));
    return (float)(int64_t)z * 0x1p-63f;
}

/* Rows of n, dense, in a buffer that the caller releases. */
static kbuf disturbed(struct kdev *d, kbuf src, int rows, int n, int stride)
{
    struct err e = {0};
    size_t bytes = (size_t)n * sizeof(float), step = stride > 0 ? (size_t)stride : (size_t)n;
    kbuf dst = noise.base->alloc(d, (size_t)max_int(rows, 1) * bytes, "noise", &e);
    FREED(free_at) float *x = xmalloc(bytes);
    if (!dst.p)
        die("%s", e.msg);
    for (int r = 0; r < rows; r++) {
        noise.base->get(d, x, kbuf_at(src, (size_t)r * step * sizeof *x, bytes), bytes);
        for (int i = 0; i < n; i++)
            x[i] *= 1 + noise.size * noise_of(x[i], i);
        noise.base->put(d, kbuf_at(dst, (size_t)r * bytes, bytes), x, bytes);
    }
    return dst;
}

/* Rows that a device has stored in its packed activation layout cannot be read, so no producer of
 * rows may pack them, and no product may expect it. */
static void floats_gather(struct kdev *d, const struct k_gather *a)
{
    struct k_gather b = *a;
    for (int i = 0; i < b.n_parts; i++)
        b.part[i].packed = false;
    noise.base->gather(d, &b);
}

static void floats_attn(struct kdev *d, const struct k_attn *a)
{
    struct k_attn b = *a;
    b.packed = false;
    noise.base->attn(d, &b);
}

static void noisy_linear(struct kdev *d, const struct k_linear *a)
{
    struct k_linear b = *a;
    b.packed = false;
    b.src = disturbed(d, a->src, a->rows, (int)a->w->dim[1], a->src_stride);
    b.src_stride = 0;
    noise.base->linear(d, &b);
    noise.base->release(d, b.src);
}

static void noisy_glu(struct kdev *d, const struct k_glu *a)
{
    struct k_glu b = *a;
    b.packed = false;
    b.src = disturbed(d, a->src, a->rows, (int)a->gate->dim[1], 0);
    noise.base->glu(d, &b);
    noise.base->release(d, b.src);
}

static void noisy_qkv(struct kdev *d, const struct k_qkv *a)
{
    struct k_qkv b = *a;
    b.packed = false;
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

const struct kernels *noise_table(const struct kernels *base, float size, uint64_t seed)
{
    noise.table = *base;
    noise.table.gather = floats_gather;
    noise.table.attn = floats_attn;
    noise.table.linear = noisy_linear;
    noise.table.glu = noisy_glu;
    noise.table.qkv = noisy_qkv;
    noise.table.moe = noisy_moe;
    noise.base = base;
    noise.seed = mix64(seed);
    noise.size = size;
    return &noise.table;
}

const struct kernels *noise_backend(float size, uint64_t seed, struct err *e)
{
    static struct kernels table;
    struct device dev;
    if (!device_open(&dev, "cpu", 1, NULL, e))
        return NULL;
    table = *noise_table(dev.k, size, seed);
    table.queued = false; /* noise is computed on the host, which a recorded graph would not
                             repeat */
    device_close(&dev);
    return &table;
}
