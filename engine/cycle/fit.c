/* fit.c - see fit.h. */
#include "engine/cycle/fit.h"

#include <stdio.h>
#include <string.h>

enum {
    SHORTEST = 512,     /* the shortest context that is proposed */
    CONTEXT_STEP = 256, /* proposed contexts are multiples of this ... */
    PAGE_STEP = 16,     /* ... and proposed pool sizes of this */
};

/* Bytes kept free for the driver, for plans, which grow with the context, and for graphs. */
static const size_t SPARE = (size_t)384 << 20;

/* ---- a device that only counts --------------------------------------------------------------- */

struct count {
    struct device real;
    struct need n;
};

static struct count *count_of(struct kdev *d)
{
    return (struct count *)(void *)d;
}

/* A driver allocates large buffers in units of 2 MiB, and small ones inside such a unit. */
static size_t rounded(size_t bytes)
{
    size_t unit = bytes < (size_t)1 << 20 ? 512 : (size_t)2 << 20;
    return (bytes + unit - 1) / unit * unit;
}

static kbuf count_alloc(struct kdev *d, size_t bytes, const char *what, struct err *e)
{
    (void)e;
    struct count *c = count_of(d);
    *(strcmp(what, "KV cells") == 0 ? &c->n.cells : &c->n.work) += rounded(bytes);
    return (kbuf){c, bytes}; /* not NULL; never read or written */
}

static bool count_upload(struct kdev *d, struct tensor *t, struct err *e)
{
    (void)e;
    struct count *c = count_of(d);
    size_t bytes = c->real.k->footprint(c->real.d, t);
    c->n.weights += bytes ? rounded(bytes) : 0;
    return true;
}

static bool count_synthesize(struct kdev *d, struct tensor *t, uint64_t seed, float scale,
                             struct err *e)
{
    (void)seed, (void)scale;
    return count_upload(d, t, e);
}

static void count_release(struct kdev *d, kbuf b) { (void)d, (void)b; }
static void count_fill(struct kdev *d, kbuf b, uint8_t byte) { (void)d, (void)b, (void)byte; }
static void count_put(struct kdev *d, kbuf dst, const void *src, size_t bytes)
{
    (void)d, (void)dst, (void)src, (void)bytes;
}

static bool count_sync(struct kdev *d, struct err *e)
{
    (void)d, (void)e;
    return true;
}

static void count_memory(struct kdev *d, size_t *free_bytes, size_t *total_bytes)
{
    (void)d;
    *free_bytes = *total_bytes = 0; /* unknown: a runtime that only counts always fits */
}

struct need fit_need(struct device dev, struct model *m, struct draft *draft,
                     const struct runtime_shape *shape)
{
    const struct kernels k = {
        .name = dev.k->name, .queued = dev.k->queued, .alloc = count_alloc,
        .release = count_release, .put = count_put, .fill = count_fill, .upload = count_upload,
        .synthesize = count_synthesize, .sync = count_sync, .memory = count_memory};
    struct count c = {.real = dev};
    struct device counting = {&k, (struct kdev *)(void *)&c, dev.kv};
    struct runtime r;
    struct err e = {0};
    if (runtime_open(&r, counting, m, draft, shape, &e))
        runtime_close(&r);
    return c.n;
}

/* ---- what fits ------------------------------------------------------------------------------- */

struct fit {
    struct device dev;
    struct model *m;
    struct draft *draft;
    size_t room; /* bytes */
};

static size_t sum(const struct need *n)
{
    return n->weights + n->cells + n->work;
}

static bool fits(const struct fit *f, const struct runtime_shape *s)
{
    struct need n = fit_need(f->dev, f->m, f->draft, s);
    return sum(&n) <= f->room;
}

/* The largest value of *knob, a member of *s, with which *s fits, among least, least + step, ...
 * below its present value; 0: none fits. */
static int largest(const struct fit *f, struct runtime_shape *s, int *knob, int least, int step)
{
    int lo = 0, hi = (*knob - 1 - least) / step + 1; /* lo steps up from least - step fit */
    if (*knob <= least)
        return 0;
    while (lo < hi) {
        int mid = lo + (hi - lo + 1) / 2;
        *knob = least + (mid - 1) * step;
        if (fits(f, s))
            lo = mid;
        else
            hi = mid - 1;
    }
    return lo ? least + (lo - 1) * step : 0;
}

struct size_text {
    char s[16];
};

static struct size_text text(size_t bytes)
{
    struct size_text t;
    if (bytes < (size_t)1 << 30)
        snprintf(t.s, sizeof t.s, "%zu MiB", bytes >> 20);
    else
        snprintf(t.s, sizeof t.s, "%.1f GiB", (double)bytes / 0x1p30);
    return t;
}

/* Proposes a change with which the runtime would fit, as text. */
static void propose(const struct fit *f, const struct runtime_shape *shape, char *out, size_t size)
{
    struct runtime_shape s = *shape;
    bool pages = s.full_pages > 0;
    int n = largest(f, &s, pages ? &s.full_pages : &s.context, pages ? PAGE_STEP : SHORTEST,
                    pages ? PAGE_STEP : CONTEXT_STEP);
    struct fit alone = *f;
    alone.draft = NULL;
    if (n)
        snprintf(out, size, "%s %d fits", pages ? "--full-pages" : "--context", n);
    else if (f->draft && fits(&alone, shape))
        snprintf(out, size, "it fits without the draft");
    else
        snprintf(out, size, "no context fits; --device cpu needs none");
}

static bool too_large(const struct fit *f, const struct runtime_shape *shape, size_t free_bytes,
                      struct err *e)
{
    struct need n = fit_need(f->dev, f->m, f->draft, shape);
    char how[64];
    if (n.weights > f->room)
        return err_set(e, ERR_MODEL, "the model's weights need %s of GPU memory, %s are free: "
                       "--device cpu needs none", text(n.weights + SPARE).s, text(free_bytes).s);
    propose(f, shape, how, sizeof how);
    return err_set(e, ERR_MODEL, "the model needs %s of GPU memory (weights %s, KV cells of %d "
                   "tokens %s), %s are free: %s", text(sum(&n) + SPARE).s, text(n.weights).s,
                   shape->full_pages ? shape->full_pages * shape->page_size : shape->context,
                   text(n.cells).s, text(free_bytes).s, how);
}

bool fit_shape(struct device dev, struct model *m, struct draft *draft, struct runtime_shape *shape,
               struct err *e)
{
    size_t left, all;
    dev.k->memory(dev.d, &left, &all);
    if (all == 0)
        return true;
    struct fit f = {dev, m, draft, left > SPARE ? left - SPARE : 0};
    if (fits(&f, shape))
        return true;
    struct runtime_shape s = *shape;
    int n = shape->shorten ? largest(&f, &s, &s.context, SHORTEST, CONTEXT_STEP) : 0;
    if (n == 0)
        return too_large(&f, shape, left, e);
    shape->context = n;
    return true;
}
