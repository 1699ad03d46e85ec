/* rounding_kit.h - kernel tables over the CPU's that differ from it by rounding only, for tests of
 * verdicts: activations rounded to bf16, sums in another order, noise of the size of float32's or
 * bf16's rounding, other instruction sets. There is one table at a time.
 */
#pragma once

#include "tests/verdict_kit.h"

enum other {
    R_BF16,        /* activations and cells */
    R_CELLS,       /* cells only */
    R_ORDER,       /* sums of products in another order */
    R_TWO_PARTS,   /* attention to the prefix apart, combined by log-sum-exp */
    R_JITTER_F32,  /* noise of float32's size */
    R_JITTER_BF16, /* noise of bf16's size */
    R_ISA,         /* another instruction set: no bit may differ */
    R_THREADS,     /* another number of threads: no bit may differ */
    R_PAGES, R_CHUNKS, R_TREES, /* other pages, chunks, trees: no bit may differ */
    N_OTHERS
};

KIT const char *other_name(enum other o)
{
    static const char *const name[] = {"bf16", "bf16 cells", "order of sums", "two parts",
                                       "noise of float32",
                                       "noise of bf16", "instruction set", "threads", "page size",
                                       "prompt chunks", "trees"};
    return name[o];
}

KIT struct {
    struct kernels table;
    const struct kernels *base;
    enum other kind;
    uint64_t seed;
    const char *isa;
} rounding;

/* One element of a row on its way into a product. */
KIT float rounded(float x, int column)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (rounding.kind == R_BF16) {
        bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
        memcpy(&x, &bits, sizeof x);
        return x;
    }
    uint64_t z = mix64(rounding.seed ^ mix64((uint64_t)bits << 32 | (uint32_t)column));
    float size = rounding.kind == R_JITTER_BF16 ? 0x1p-9f : 0x1p-23f;
    return x * (1 + size * ((float)(int64_t)z * 0x1p-63f));
}

/* Dense rows in a new buffer, each element changed or (order) in reverse. */
KIT kbuf changed_rows(kbuf src, int rows, int n, int stride)
{
    float *x = xcalloc((size_t)max_int(1, rows) * (size_t)n, sizeof *x);
    for (int r = 0; r < rows; r++) {
        const float *from = (const float *)src.p + (size_t)r * (size_t)(stride > 0 ? stride : n);
        for (int i = 0; i < n; i++)
            x[r * n + i] = rounding.kind == R_ORDER ? from[n - 1 - i] : rounded(from[i], i);
    }
    return (kbuf){x, (size_t)max_int(1, rows) * (size_t)n * sizeof *x};
}

/* A matrix of bf16 with its columns in reverse; a vector likewise. The caller frees its data. */
KIT struct tensor reversed(const struct tensor *t)
{
    struct tensor r = *t;
    int64_t n = t->dim[t->n_dim - 1], rows = (int64_t)(t->bytes / 2) / n;
    uint16_t *to = xmalloc(t->bytes);
    const uint16_t *from = t->data;
    for (int64_t k = 0; k < rows; k++)
        for (int64_t i = 0; i < n; i++)
            to[k * n + i] = from[k * n + n - 1 - i];
    r.data = to;
    return r;
}

KIT bool can_reverse(const struct tensor *w, const struct k_norm *norm)
{
    return w->type == DT_BF16 && w->n_dim == 2 &&
           (norm->kind == NORM_NONE || !norm->w || norm->w->type == DT_BF16);
}

KIT void other_linear(struct kdev *d, const struct k_linear *a)
{
    struct k_linear b = *a;
    struct tensor w, pre;
    bool order = rounding.kind == R_ORDER, norm = a->pre.kind != NORM_NONE && a->pre.w;
    if (order && !can_reverse(a->w, &a->pre)) {
        rounding.base->linear(d, a);
        return;
    }
    b.src = changed_rows(a->src, a->rows, (int)a->w->dim[1], a->src_stride);
    b.src_stride = 0;
    if (order) {
        w = reversed(a->w);
        b.w = &w;
        if (norm) {
            pre = reversed(a->pre.w);
            b.pre.w = &pre;
        }
    }
    rounding.base->linear(d, &b);
    if (order)
        free(w.data);
    if (order && norm)
        free(pre.data);
    free(b.src.p);
}

KIT void other_glu(struct kdev *d, const struct k_glu *a)
{
    struct k_glu b = *a;
    if (rounding.kind == R_ORDER) {
        rounding.base->glu(d, a);
        return;
    }
    b.src = changed_rows(a->src, a->rows, (int)a->gate->dim[1], 0);
    rounding.base->glu(d, &b);
    free(b.src.p);
}

KIT void other_qkv(struct kdev *d, const struct k_qkv *a)
{
    struct k_qkv b = *a;
    if (rounding.kind == R_ORDER || a->capture.p) {
        rounding.base->qkv(d, a);
        return;
    }
    b.src = changed_rows(a->src, a->rows, (int)a->wq->dim[1], a->src_stride);
    b.src_stride = 0;
    rounding.base->qkv(d, &b);
    free(b.src.p);
}

KIT struct kdev *open_isa(const struct k_opts *opts, struct err *e)
{
    struct k_opts o = *opts;
    struct kdev *d;
    o.isa = rounding.isa;
    d = rounding.base->open(&o, e);
    if (d)
        return d;
    o.isa = "scalar"; /* this machine lacks the other instruction set */
    return rounding.base->open(&o, e);
}

KIT bool put_two_parts(void *arg, struct backend *b, const char *about, const char *now,
                       struct err *e)
{
    (void)arg, (void)about, (void)now, (void)e;
    engine_of(b)->own.runtime.parts = 2;
    return true;
}

/* The table of a kind; NULL: the kind needs none. */
KIT const struct kernels *rounding_table(enum other kind, uint64_t seed)
{
    struct device dev;
    struct err e = {0};
    must(device_open(&dev, "cpu", 1, NULL, &e), &e);
    rounding.base = dev.k;
    device_close(&dev);
    rounding.table = *rounding.base;
    rounding.kind = kind;
    rounding.seed = seed;
    if (kind == R_THREADS || kind >= R_PAGES)
        return NULL;
    if (kind == R_ISA) {
        rounding.isa = seed & 1 ? "avx2" : "scalar";
        rounding.table.open = open_isa;
        return &rounding.table;
    }
    if (kind != R_CELLS)
        rounding.table.name = "other"; /* facts of the run say that another device computed */
    if (kind == R_CELLS || kind == R_TWO_PARTS)
        return &rounding.table;
    rounding.table.linear = other_linear;
    rounding.table.glu = other_glu;
    rounding.table.qkv = other_qkv;
    return &rounding.table;
}
