/* mock.h - a target and drafters without weights for the real engine: the result of a row is a hash
 * of everything that the row reads.
 *
 * A row is one 64-bit number, carried through the kernel table as two floats that no operation
 * changes. Its low byte is its token. A cell holds the number of the row that wrote it, so a key
 * that is read from a wrong slot, at a wrong position, twice or not at all gives another number,
 * and with it other tokens. mock_next() computes the expected token without pages, plans or engine.
 */
#pragma once

#include <string.h>

#include "tests/runtimes.h"

enum { MOCK_V = 16, MOCK_H = 2, MOCK_LAYERS = 3, MOCK_MAX = 192 };

static inline uint64_t mock_join(uint64_t x, uint64_t y) /* the token is y's */
{
    return (mix64(x ^ mix64(y)) & ~UINT64_C(255)) | (y & 255);
}
static inline uint64_t mock_embed(int32_t token)
{
    return (mix64((uint64_t)token + 1) & ~UINT64_C(255)) | (uint64_t)(token & 255);
}
static inline uint64_t mock_see(uint64_t h, uint64_t key, int index)
{
    return (mix64(h ^ mix64(key + (uint64_t)index * 0x9E3779B97F4A7C15ull)) & ~UINT64_C(255)) |
           (h & 255);
}
/* Mostly the successor of the row's token, so that a drafter can guess; the rest is the hash's. */
static inline void mock_logits(uint64_t x, float *out)
{
    for (int v = 0; v < MOCK_V; v++)
        out[v] = (float)(mix64((x >> 8) + (uint64_t)v * 0xD1342543DE82EF95ull) >> 44) * 0x1p-20f;
    out[((x & 255) * 5 + 3) % MOCK_V] += 0.6f;
}

/* ---- the oracle: plain arrays, one position after the other ---------------------------------- */

struct mock_oracle {
    int window[MOCK_LAYERS];
    uint64_t key[MOCK_LAYERS][MOCK_MAX];
    int n;
};

/* W < 0: chunks of -W keys. */
static inline bool mock_sees(int W, int query, int key)
{
    return W < 0 ? query / -W == key / -W : !W || query - key < W;
}

/* Takes the next token in and says which one follows. */
static inline int32_t mock_next(struct mock_oracle *o, int32_t token)
{
    int p = o->n++;
    uint64_t x = mock_embed(token);
    for (int l = 0; l < MOCK_LAYERS; l++) {
        uint64_t h = x;
        o->key[l][p] = x;
        for (int k = 0; k <= p; k++)
            if (mock_sees(o->window[l], p, k))
                h = mock_see(h, o->key[l][k], k);
        x = mock_join(x, h);
        x = mock_join(x, (mix64(x) & ~UINT64_C(255)) | (x & 255));
    }
    float logits[MOCK_V];
    int best = 0;
    mock_logits(x, logits);
    for (int v = 1; v < MOCK_V; v++)
        if (logits[v] > logits[best])
            best = v;
    return best;
}

/* ---- the kernels ----------------------------------------------------------------------------- */

static inline uint64_t mock_get(kbuf b, size_t row, size_t stride)
{
    uint64_t v;
    memcpy(&v, (const float *)b.p + row * stride, sizeof v);
    return v;
}
static inline void mock_put(kbuf b, size_t row, size_t stride, uint64_t v)
{
    CHECK((row * stride + 2) * sizeof(float) <= b.n);
    memcpy((float *)b.p + row * stride, &v, sizeof v);
}
static inline int32_t mock_index(kbuf b, size_t i)
{
    CHECK((i + 1) * 4 <= b.n);
    return ((const int32_t *)b.p)[i];
}

static inline bool mock_upload(struct kdev *d, struct tensor *t, struct err *e)
{
    (void)d, (void)t, (void)e;
    return true;
}
static inline void mock_k_embed(struct kdev *d, const struct k_embed *a)
{
    (void)d;
    for (int r = 0; r < a->rows; r++)
        mock_put(a->dst, (size_t)r, (size_t)(a->dst_stride ? a->dst_stride : a->n),
                 mock_embed(mock_index(a->ids, (size_t)r)));
}
static inline void mock_k_rope(struct kdev *d, const struct k_rope *a)
{
    (void)d, (void)a;
}
static inline void mock_k_normalize(struct kdev *d, const struct k_normalize *a)
{
    (void)d;
    for (size_t r = 0; r < (size_t)a->rows; r++)
        mock_put(a->dst, r, (size_t)a->dst_stride, mock_get(a->src, r, (size_t)a->src_stride));
}
static inline void mock_k_gather(struct kdev *d, const struct k_gather *a)
{
    (void)d;
    for (int i = 0; i < a->n_parts; i++) {
        const struct k_part *p = &a->part[i];
        kbuf to = kbuf_at(p->dst, (size_t)p->at * 4, p->dst.n - (size_t)p->at * 4);
        for (size_t r = 0; r < (size_t)a->rows; r++) {
            int32_t from = p->idx.p ? mock_index(p->idx, r) : (int32_t)r;
            for (size_t j = 0; j < (size_t)p->n; j += 2) {
                kbuf src = p->table ? to : kbuf_at(p->src, j * 4, p->src.n - j * 4);
                uint64_t x = p->table ? mock_embed(from)
                                      : mock_get(src, (size_t)from, (size_t)p->src_stride);
                if (p->copy.p)
                    mock_put(p->copy, r, (size_t)p->n, x);
                mock_put(kbuf_at(to, j * 4, to.n - j * 4), r, (size_t)p->width, x);
            }
        }
    }
}
/* Attention's output and the MLP's join the row; a head makes logits; the rest mixes its inputs. */
static inline void mock_k_linear(struct kdev *d, const struct k_linear *a)
{
    (void)d;
    for (size_t r = 0; r < (size_t)a->rows; r++) {
        uint64_t x = mock_get(a->src, r, (size_t)a->src_stride);
        if (a->w->dim[0] == MOCK_V) {
            float *dst = (float *)a->dst.p + r * MOCK_V, y[MOCK_V];
            mock_logits(x, y);
            for (int v = 0; v < MOCK_V; v++)
                dst[v] = a->add ? dst[v] + y[v] : y[v];
            continue;
        }
        for (int64_t i = 2; i < a->w->dim[1]; i += 2) {
            kbuf rest = kbuf_at(a->src, (size_t)i * 4, a->src.n - (size_t)i * 4);
            x = mock_join(mock_get(rest, r, (size_t)a->src_stride), x);
        }
        mock_put(a->dst, r, MOCK_H, a->add ? mock_join(mock_get(a->dst, r, MOCK_H), x) : x);
    }
}
static inline void mock_k_glu(struct kdev *d, const struct k_glu *a)
{
    (void)d;
    for (size_t r = 0; r < (size_t)a->rows; r++) {
        uint64_t x = mock_get(a->src, r, MOCK_H);
        mock_put(a->dst, r, MOCK_H, (mix64(x) & ~UINT64_C(255)) | (x & 255));
    }
}
static inline void mock_k_qkv(struct kdev *d, const struct k_qkv *a)
{
    (void)d;
    for (size_t r = 0; r < (size_t)a->rows; r++) {
        uint64_t x = mock_get(a->src, r, (size_t)a->src_stride);
        if (a->capture.p)
            mock_put(a->capture, r, (size_t)a->capture_stride, x);
        if (a->src_stride > MOCK_H) /* a drafter's first layer: token and state side by side */
            x = mock_join(mock_get(kbuf_at(a->src, 8, a->src.n - 8), r, (size_t)a->src_stride), x);
        mock_put(a->q, r, MOCK_H, x);
        if (a->wk && a->table->write.p) {
            int32_t slot = mock_index(a->table->write, r);
            CHECK(slot >= a->table->page_size && slot < a->cells.n_slots);
            mock_put(a->cells.k, (size_t)slot, MOCK_H, x);
        }
    }
}
static inline void mock_k_attn(struct kdev *d, const struct k_attn *a)
{
    (void)d;
    const struct k_table *t = a->table;
    for (size_t r = 0; r < (size_t)a->rows; r++) {
        uint64_t h = mock_get(a->q, r, MOCK_H);
        int lo = mock_index(t->lo, r), hi = mock_index(t->hi, r);
        int n = t->n_expand.p ? mock_index(t->n_expand, r) : 0;
        for (int j = lo; j < hi + n; j++) {
            size_t cell = (size_t)mock_index(t->req, r) * (size_t)t->n_cols;
            int32_t slot = j >= hi
                ? mock_index(t->expand, r * (size_t)t->expand_w + (size_t)(j - hi))
                : mock_index(t->pages, cell + (size_t)(j / t->page_size)) * t->page_size +
                      j % t->page_size;
            CHECK(slot >= 0 && slot < a->cells.n_slots);
            h = mock_see(h, mock_get(a->cells.k, (size_t)slot, MOCK_H), j);
        }
        mock_put(a->dst, r, MOCK_H, h);
    }
}

/* ---- the models ------------------------------------------------------------------------------ */

struct mock {
    struct kernels k;
    struct device dev;
    struct model m;
    struct draft d;
    struct layer layer[MOCK_LAYERS], dlayer[2];
    float inv_freq, weight;
};

static inline struct tensor mock_tensor(struct mock *m, int out, int in)
{
    return (struct tensor){.data = &m->weight, .type = DT_F32, .n_dim = 2, .dim = {out, in},
                           .bytes = 4, .name = "mock"};
}

static inline void mock_layer(struct mock *m, struct layer *l, int window, int index, int in,
                              bool kv)
{
    *l = (struct layer){.window = window, .rope_id = -1, .n_head = 1, .n_kv = 1,
                        .head_dim = MOCK_H, .ffn = MOCK_H, .kv_src = index};
    l->wq = mock_tensor(m, MOCK_H, in);
    l->wo = l->gate = l->up = l->down = mock_tensor(m, MOCK_H, MOCK_H);
    if (kv)
        l->wk = l->wv = mock_tensor(m, MOCK_H, in);
}

static inline void mock_config(struct config *c, int layers, int window)
{
    *c = (struct config){.hidden = MOCK_H, .n_layer = layers, .vocab = MOCK_V, .max_pos = 4096,
                         .norm = NORM_RMS, .attn_scale = 1, .embed_scale = 1, .residual_scale = 1,
                         .logit_scale = 1, .value_scale = 1, .route_scale = 1, .window = window,
                         .bos = -1, .pad = -1};
}

/* A target whose layers are sliding, full, sliding. */
static inline void mock_open(struct mock *m, int window)
{
    struct err e = {0};
    *m = (struct mock){.weight = 1};
    must(device_open(&m->dev, "cpu", 1, NULL, &e), &e);
    m->k = *m->dev.k;
    m->k.upload = mock_upload;
    m->k.embed = mock_k_embed;
    m->k.rope = mock_k_rope;
    m->k.normalize = mock_k_normalize;
    m->k.gather = mock_k_gather;
    m->k.linear = mock_k_linear;
    m->k.glu = mock_k_glu;
    m->k.qkv = mock_k_qkv;
    m->k.attn = mock_k_attn;
    mock_config(&m->m.cfg, MOCK_LAYERS, window);
    m->m.layer = m->layer;
    for (int l = 0; l < MOCK_LAYERS; l++)
        mock_layer(m, &m->layer[l], l == 1 ? 0 : window, l, MOCK_H, true);
    m->m.embed = m->m.head = mock_tensor(m, MOCK_V, MOCK_H);
    m->m.norm = mock_tensor(m, MOCK_H, MOCK_H);
}

static inline void mock_eagle(struct mock *m, int window)
{
    m->d = (struct draft){.kind = "eagle3", .target_hidden = MOCK_H, .draft_vocab = MOCK_V,
                          .n_capture = 2, .capture = {1, 2}, .kv_full = -1, .kv_swa = -1};
    mock_config(&m->d.cfg, 1, window);
    m->d.layer = m->dlayer;
    mock_layer(m, &m->dlayer[0], window, 0, 2 * MOCK_H, true);
    m->d.fc = mock_tensor(m, MOCK_H, 2 * MOCK_H);
    m->d.head = mock_tensor(m, MOCK_V, MOCK_H);
    m->d.norm = mock_tensor(m, MOCK_H, MOCK_H);
}

/* Four masks behind the true cells. */
static inline void mock_peagle(struct mock *m, int window)
{
    mock_eagle(m, window);
    m->d.kind = "peagle";
    m->d.block = 4;
    m->d.block_depth = 2;
    m->d.mask = 9;
    m->d.causal[0] = m->d.causal[1] = true;
    m->d.mask_hidden = mock_tensor(m, 2, MOCK_H);
}

/* Blocks of six rows; with a window, the layer is a sliding and a causal one. */
static inline void mock_dflash(struct mock *m, int window)
{
    m->d = (struct draft){.kind = "dflash", .target_hidden = MOCK_H, .draft_vocab = MOCK_V,
                          .n_capture = 2, .capture = {0, 2}, .kv_full = -1, .kv_swa = -1,
                          .block = 6, .mask = 7, .causal = {false, true}};
    mock_config(&m->d.cfg, 1, window);
    m->d.layer = m->dlayer;
    mock_layer(m, &m->dlayer[0], window, 0, MOCK_H, true);
    m->d.fc = mock_tensor(m, MOCK_H, 2 * MOCK_H);
    m->d.context_norm = m->d.norm = mock_tensor(m, MOCK_H, MOCK_H);
    m->d.head = mock_tensor(m, MOCK_V, MOCK_H);
}

/* The first row guesses, too, and the token before counts. */
static inline void mock_dspark(struct mock *m, int window)
{
    mock_dflash(m, window);
    m->d.kind = "dspark";
    m->d.block_depth = 1;
    m->d.edges = EDGES_BIAS;
    m->d.rank = MOCK_H;
    m->d.prev = m->d.next = mock_tensor(m, MOCK_V, MOCK_H);
}

static inline void mock_frozen(struct mock *m)
{
    m->d = (struct draft){.kind = "frozen-kv", .target_hidden = MOCK_H, .draft_vocab = MOCK_V,
                          .kv_full = 1, .kv_swa = 2};
    mock_config(&m->d.cfg, 2, m->m.cfg.window);
    m->d.layer = m->dlayer;
    mock_layer(m, &m->dlayer[0], m->m.cfg.window, 2, MOCK_H, false);
    mock_layer(m, &m->dlayer[1], 0, 1, MOCK_H, false);
    m->d.pre_proj = mock_tensor(m, MOCK_H, 2 * MOCK_H);
    m->d.post_proj = m->d.norm = mock_tensor(m, MOCK_H, MOCK_H);
    m->d.head = mock_tensor(m, MOCK_V, MOCK_H);
}

static inline struct device mock_device(struct mock *m)
{
    return (struct device){&m->k, m->dev.d, m->dev.kv, m->dev.precision};
}

static inline void mock_close(struct mock *m)
{
    device_close(&m->dev);
}
