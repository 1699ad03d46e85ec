/* cuda_shim.h - the CUDA kernels behind the face of the CPU's, so that the tests written for the
 * CPU kernels run on the GPU unchanged: every weight tensor in an operation's arguments is host
 * memory and is uploaded on the way. One device serves all; a test's open() and close() share it.
 */
#pragma once

#include "kernels/kernels.h"

#include <string.h>

static struct kdev *shim_dev;
static struct tensor shim_tensor[32];
static int shim_n;

/* Asked for as "scalar" or as the best there is: two runs that must agree to the bit. */
static struct kdev *shim_open(const struct k_opts *o, struct err *e)
{
    if (o->isa && strcmp(o->isa, "scalar") != 0) {
        err_set(e, ERR_USAGE, "the GPU has no %s", o->isa);
        return NULL;
    }
    return shim_dev;
}

static void shim_close(struct kdev *d) { (void)d; }
static const char *shim_about(struct kdev *d) { return kernels_cuda.about(d); }

static const struct tensor *up(struct kdev *d, const struct tensor *t)
{
    struct err e;
    if (!t || !t->data)
        return t;
    CHECK(shim_n < 32);
    struct tensor *copy = &shim_tensor[shim_n++];
    *copy = *t;
    if (!kernels_cuda.upload(d, copy, &e))
        die("%s", e.msg);
    return copy;
}

/* Of which single rows are read. */
static const struct tensor *up_rows(struct kdev *d, const struct tensor *t)
{
    static struct tensor rows[4];
    static int at;
    if (!t || !t->data)
        return t;
    struct tensor *copy = &rows[at++ % 4];
    *copy = *t;
    copy->by_row = true;
    return up(d, copy);
}

static struct k_norm up_norm(struct kdev *d, struct k_norm n)
{
    if (n.kind == NORM_RMS || n.kind == NORM_RMS1P || n.kind == NORM_LAYER)
        n.w = up(d, n.w);
    return n;
}

#define SHIM(name, ...)                                                                            \
    static void shim_##name(struct kdev *d, const struct k_##name *given)                          \
    {                                                                                              \
        struct k_##name a = *given;                                                                \
        struct err e;                                                                              \
        shim_n = 0;                                                                                \
        __VA_ARGS__;                                                                               \
        kernels_cuda.name(d, &a);                                                                  \
        if (!kernels_cuda.sync(d, &e))                                                             \
            die("%s", e.msg);                                                                      \
    }

SHIM(embed, a.table = up(d, a.table))
SHIM(rope, (void)0)
SHIM(normalize, a.norm = up_norm(d, a.norm))
SHIM(linear, a.pre = up_norm(d, a.pre), a.post = up_norm(d, a.post), a.w = up(d, a.w),
     a.b = up(d, a.b))
SHIM(glu, a.pre = up_norm(d, a.pre), a.gate = up(d, a.gate), a.up = up(d, a.up))
SHIM(qkv, a.norm = up_norm(d, a.norm), a.wq = up(d, a.wq), a.wk = up(d, a.wk), a.wv = up(d, a.wv),
     a.bq = up(d, a.bq), a.bk = up(d, a.bk), a.bv = up(d, a.bv), a.q_norm = up_norm(d, a.q_norm),
     a.k_norm = up_norm(d, a.k_norm), a.v_norm = up_norm(d, a.v_norm))
SHIM(attn, a.sinks = up(d, a.sinks))
SHIM(merge, (void)0)
SHIM(moe, a.pre = up_norm(d, a.pre), a.router_norm = up_norm(d, a.router_norm),
     a.post = up_norm(d, a.post), a.after = up_norm(d, a.after), a.s = up(d, a.s),
     a.router_in = up(d, a.router_in), a.router = up_rows(d, a.router),
     a.router_b = up(d, a.router_b), a.choice_b = up(d, a.choice_b),
     a.expert_scale = up(d, a.expert_scale),
     a.gate_up = up(d, a.gate_up), a.gate_up_s = up(d, a.gate_up_s),
     a.gate_up_b = up_rows(d, a.gate_up_b), a.down = up(d, a.down), a.down_s = up(d, a.down_s),
     a.down_b = up_rows(d, a.down_b))
SHIM(scale, a.s = up(d, a.s))
SHIM(rows, (void)0)
SHIM(conv, a.base = up_rows(d, a.base))
SHIM(rerank, a.table = up_rows(d, a.table))
SHIM(gather, for (int i = 0; i < a.n_parts; i++)
              a.part[i].table = up(d, a.part[i].table), a.part[i].norm = up_norm(d, a.part[i].norm))
SHIM(topk, (void)0)
SHIM(sample, (void)0)
SHIM(adjust, (void)0)
SHIM(logp, (void)0)
SHIM(read, (void)0)
SHIM(move, (void)0)

static kbuf shim_alloc(struct kdev *d, size_t n, const char *what, struct err *e)
{
    return kernels_cuda.alloc(d, n, what, e);
}
static void shim_release(struct kdev *d, kbuf b) { kernels_cuda.release(d, b); }
static void shim_put(struct kdev *d, kbuf dst, const void *src, size_t n)
{
    kernels_cuda.put(d, dst, src, n);
}
static void shim_get(struct kdev *d, void *dst, kbuf src, size_t n)
{
    kernels_cuda.get(d, dst, src, n);
}
static void shim_fill(struct kdev *d, kbuf dst, uint8_t byte) { kernels_cuda.fill(d, dst, byte); }
static bool shim_sync(struct kdev *d, struct err *e) { return kernels_cuda.sync(d, e); }
static bool shim_upload(struct kdev *d, struct tensor *t, struct err *e)
{
    return kernels_cuda.upload(d, t, e);
}

static const struct kernels kernels_shim = {
    .name = "cuda", .open = shim_open, .close = shim_close, .about = shim_about,
    .alloc = shim_alloc, .release = shim_release, .put = shim_put, .get = shim_get,
    .fill = shim_fill, .upload = shim_upload, .sync = shim_sync, .embed = shim_embed,
    .rope = shim_rope, .normalize = shim_normalize, .linear = shim_linear, .glu = shim_glu,
    .qkv = shim_qkv, .attn = shim_attn, .merge = shim_merge, .moe = shim_moe, .scale = shim_scale,
    .rows = shim_rows, .conv = shim_conv, .gather = shim_gather, .topk = shim_topk,
    .rerank = shim_rerank, .sample = shim_sample,
    .adjust = shim_adjust, .logp = shim_logp,
    .read = shim_read, .move = shim_move,
};
