/* gguf_kit.h - writes GGUF files, well-formed ones and others, for tests and for the seeds of
 * fuzzing.
 *
 * A struct gw collects metadata and tensors; gw_bytes() puts the file together.
 */
#pragma once

#include "kernels/base.h"
#include "kernels/packed.h"
#include "models/checkpoint/gguf.h"

#include <stdlib.h>
#include <string.h>

enum {
    GW_U8,
    GW_I8,
    GW_U16,
    GW_I16,
    GW_U32,
    GW_I32,
    GW_F32,
    GW_BOOL,
    GW_STRING,
    GW_ARRAY,
    GW_U64,
    GW_I64,
    GW_F64
};

struct gw {
    struct buf keys, infos, data;
    int n_key, n_tensor;
    uint64_t align; /* 0: 32 */
};

static inline void gw_little(struct buf *b, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++)
        buf_char(b, (char)(v >> (8 * i)));
}

static inline void gw_text(struct buf *b, const char *s)
{
    gw_little(b, strlen(s), 8);
    buf_str(b, s);
}

static inline void gw_key(struct gw *w, const char *key, int type)
{
    gw_text(&w->keys, key);
    gw_little(&w->keys, (uint64_t)type, 4);
    w->n_key++;
}

static inline int gw_width(int type)
{
    return type == GW_U64 || type == GW_I64 || type == GW_F64   ? 8
           : type == GW_U32 || type == GW_I32 || type == GW_F32 ? 4
           : type == GW_U16 || type == GW_I16                   ? 2
                                                                : 1;
}

static inline void gw_int(struct gw *w, const char *key, int type, int64_t v)
{
    gw_key(w, key, type);
    gw_little(&w->keys, (uint64_t)v, gw_width(type));
}

static inline void gw_u32(struct gw *w, const char *key, int64_t v)
{
    gw_int(w, key, GW_U32, v);
}

static inline void gw_bool(struct gw *w, const char *key, bool v)
{
    gw_int(w, key, GW_BOOL, v);
}

static inline void gw_f32(struct gw *w, const char *key, double v)
{
    union {
        float f;
        uint32_t u;
    } x = {.f = (float)v};
    gw_int(w, key, GW_F32, x.u);
}

static inline void gw_string(struct gw *w, const char *key, const char *s)
{
    gw_key(w, key, GW_STRING);
    gw_text(&w->keys, s);
}

/* Begins an array, whose n elements the caller adds to w->keys. */
static inline void gw_array(struct gw *w, const char *key, int type, size_t n)
{
    gw_key(w, key, GW_ARRAY);
    gw_little(&w->keys, (uint64_t)type, 4);
    gw_little(&w->keys, n, 8);
}

static inline void gw_ints(struct gw *w, const char *key, int type, const int64_t *v, size_t n)
{
    gw_array(w, key, type, n);
    for (size_t i = 0; i < n; i++)
        gw_little(&w->keys, (uint64_t)v[i], gw_width(type));
}

static inline void gw_strings(struct gw *w, const char *key, const char *const *v, size_t n)
{
    gw_array(w, key, GW_STRING, n);
    for (size_t i = 0; i < n; i++)
        gw_text(&w->keys, v[i]);
}

static inline void gw_pad(struct buf *b, uint64_t align)
{
    while (b->n % (align ? align : 32))
        buf_char(b, 0);
}

/* A tensor of a row-major shape. */
static inline void gw_tensor(struct gw *w, const char *name, int type, int n_dim,
                             const int64_t *dim, const void *bytes, size_t n)
{
    gw_pad(&w->data, w->align);
    gw_text(&w->infos, name);
    gw_little(&w->infos, (uint64_t)n_dim, 4);
    for (int i = n_dim - 1; i >= 0; i--)
        gw_little(&w->infos, (uint64_t)dim[i], 8);
    gw_little(&w->infos, (uint64_t)type, 4);
    gw_little(&w->infos, w->data.n, 8);
    buf_add(&w->data, bytes, n);
    w->n_tensor++;
}

/* The file; the caller frees it. The writer is empty afterwards. */
static inline struct buf gw_bytes(struct gw *w)
{
    struct buf b = {0};
    buf_add(&b, "GGUF", 4);
    gw_little(&b, 3, 4);
    gw_little(&b, (uint64_t)w->n_tensor, 8);
    gw_little(&b, (uint64_t)w->n_key, 8);
    buf_add(&b, w->keys.p, w->keys.n);
    buf_add(&b, w->infos.p, w->infos.n);
    if (w->n_tensor)
        gw_pad(&b, w->align);
    buf_add(&b, w->data.p, w->data.n);
    buf_free(&w->keys);
    buf_free(&w->infos);
    buf_free(&w->data);
    *w = (struct gw){0};
    return b;
}

/* A small file with a value of every type and three tensors. */
static inline struct buf gw_sample(void)
{
    struct gw w = {0};
    char data[256];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (char)(i * 7);
    gw_string(&w, "general.architecture", "llama");
    gw_u32(&w, "general.alignment", 32);
    gw_int(&w, "a.u8", GW_U8, 200);
    gw_int(&w, "a.i8", GW_I8, -3);
    gw_int(&w, "a.u16", GW_U16, 60000);
    gw_int(&w, "a.i16", GW_I16, -300);
    gw_int(&w, "a.i32", GW_I32, -70000);
    gw_int(&w, "a.u64", GW_U64, 1ll << 40);
    gw_int(&w, "a.i64", GW_I64, -(1ll << 40));
    gw_f32(&w, "a.f32", 1.5);
    gw_int(&w, "a.f64", GW_F64, 0x3FF8000000000000ll);
    gw_bool(&w, "a.bool", true);
    gw_ints(&w, "a.ints", GW_I32, (const int64_t[]){1, -2, 3}, 3);
    gw_ints(&w, "a.bools", GW_BOOL, (const int64_t[]){1, 0}, 2);
    gw_array(&w, "a.reals", GW_F32, 2);
    gw_little(&w.keys, 0x3FC00000, 4);
    gw_little(&w.keys, 0xC0000000, 4);
    gw_strings(&w, "a.strings", (const char *const[]){"one", "", "three"}, 3);
    gw_array(&w, "a.none", GW_STRING, 0);
    gw_tensor(&w, "token_embd.weight", GGUF_F32, 2, (const int64_t[]){3, 4}, data, 48);
    gw_tensor(&w, "blk.0.attn_q.weight", GGUF_Q4_0, 2, (const int64_t[]){2, 32}, data, 36);
    gw_tensor(&w, "output_norm.weight", GGUF_BF16, 1, (const int64_t[]){4}, data, 8);
    return gw_bytes(&w);
}

/* A matrix of small numbers of any type whose blocks begin with their scale. */
static inline void gw_matrix(struct gw *w, const char *name, int type, int64_t a, int64_t b,
                             int64_t c)
{
    const enum dtype of[] = {
        [GGUF_F32] = DT_F32, [GGUF_Q4_0] = DT_Q4_0, [GGUF_Q8_0] = DT_Q8_0, [GGUF_MXFP4] = DT_MXFP4};
    const int64_t dim[3] = {a, b, c};
    size_t n = (size_t)a * (c ? (size_t)b * dtype_bytes(of[type], (size_t)c)
                              : dtype_bytes(of[type], (size_t)b));
    char *p = xcalloc(n, 1);
    for (size_t i = 0; i < n; i++)
        p[i] = (char)(i % 5);
    gw_tensor(w, name, type, c ? 3 : 2, dim, p, n);
    free(p);
}

static inline void gw_vector(struct gw *w, const char *name, int64_t n)
{
    float *v = xcalloc((size_t)n, sizeof *v);
    for (int64_t i = 0; i < n; i++)
        v[i] = 1;
    gw_tensor(w, name, GGUF_F32, 1, &n, v, (size_t)n * sizeof *v);
    free(v);
}

/* A model of one layer as small as blocks allow, for the seeds of fuzzing: "llama" or "gpt-oss". */
static inline struct buf gw_small(const char *arch)
{
    struct gw w = {0};
    char key[64];
    const bool oss = !strcmp(arch, "gpt-oss");
    const struct {
        const char *key;
        int64_t v;
    } ints[] = {{"block_count", 1},
                {"context_length", 64},
                {"embedding_length", 32},
                {"attention.head_count", 4},
                {"attention.head_count_kv", 2},
                {"feed_forward_length", 32},
                {"attention.key_length", 8},
                {"attention.value_length", 8},
                {"expert_count", oss ? 2 : 0},
                {"expert_used_count", oss},
                {"attention.sliding_window", oss ? 8 : 0}};
    gw_string(&w, "general.architecture", arch);
    for (size_t i = 0; i < sizeof ints / sizeof *ints; i++) {
        snprintf(key, sizeof key, "%s.%s", arch, ints[i].key);
        gw_u32(&w, key, ints[i].v);
    }
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", arch);
    gw_f32(&w, key, 1e-5);
    gw_strings(&w, "tokenizer.ggml.tokens", (const char *const[]){"<|im_end|>", "a"}, 2);
    gw_u32(&w, "tokenizer.ggml.eos_token_id", 0);
    gw_matrix(&w, "token_embd.weight", GGUF_Q8_0, 2, 32, 0);
    gw_matrix(&w, "output.weight", GGUF_Q4_0, 2, 32, 0);
    gw_vector(&w, "output_norm.weight", 32);
    gw_vector(&w, "blk.0.attn_norm.weight", 32);
    gw_vector(&w, oss ? "blk.0.post_attention_norm.weight" : "blk.0.ffn_norm.weight", 32);
    gw_matrix(&w, "blk.0.attn_q.weight", GGUF_Q4_0, 32, 32, 0);
    gw_matrix(&w, "blk.0.attn_k.weight", GGUF_Q4_0, 16, 32, 0);
    gw_matrix(&w, "blk.0.attn_v.weight", GGUF_Q4_0, 16, 32, 0);
    gw_matrix(&w, "blk.0.attn_output.weight", GGUF_Q4_0, 32, 32, 0);
    const char *const mlp[] = {"gate", "up", "down"};
    for (int i = 0; i < 3; i++) {
        snprintf(key, sizeof key, "blk.0.ffn_%s%s.weight", mlp[i], oss ? "_exps" : "");
        if (oss)
            gw_matrix(&w, key, GGUF_MXFP4, 2, 32, 32);
        else
            gw_matrix(&w, key, GGUF_Q4_0, 32, 32, 0);
    }
    if (oss)
        gw_matrix(&w, "blk.0.ffn_gate_exps.bias", GGUF_F32, 2, 32, 0);
    if (oss)
        gw_matrix(&w, "blk.0.ffn_up_exps.bias", GGUF_F32, 2, 32, 0);
    if (oss)
        gw_matrix(&w, "blk.0.ffn_down_exps.bias", GGUF_F32, 2, 32, 0);
    if (oss)
        gw_matrix(&w, "blk.0.ffn_gate_inp.weight", GGUF_F32, 2, 32, 0);
    if (oss)
        gw_vector(&w, "blk.0.ffn_gate_inp.bias", 2);
    gw_vector(&w, oss ? "blk.0.attn_sinks.weight" : "rope_freqs.weight", 4);
    return gw_bytes(&w);
}
