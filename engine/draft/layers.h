/* layers.h - a draft's layers with KV of their own: the cells in the draft pool, the buffers, and
 * one layer of a pass. Shared by the heads that own KV, EAGLE3 and DFlash; each embeds it.
 *
 * A layer is that of Llama and Qwen3: x += Wo attention(norm(x)); x += mlp(norm(x)). Engine thread.
 */
#pragma once

#include "engine/draft/head.h"

struct layers {
    kbuf q, o, h, cs; /* (max_rows, ...) */
    kbuf y, z, by;    /* the same, of a draft with convolutions: (hidden) x 2, and coefficients */
};

/* A layer's input: rows of src, `stride` floats apart, as struct k_qkv takes them. */
struct layer_input {
    kbuf src;
    int stride;
    struct k_norm norm;
    bool packed;
};

/* For a head that joins the target's captured states: sets its taps and state_n, allocates the
 * cells, filled with NaN, the buffers for h->max_rows rows and those that all heads share. False
 * and *e: out of memory. */
bool layers_open(struct layers *y, struct head *h, const struct drafter_setup *s, struct err *e);
/* The rope angles of a pass, which an operation of the caller computes into y->cs. */
struct k_rope layers_rope(const struct layers *y, const struct head *h, const struct k_plan *kp,
                          int rows);
/* Runs layer l: adds attention over the layer's cells, then the MLP, to x (rows, hidden). If the
 * draft has convolutions, the rows of a request are a block, in order, and `in` is x with a norm.
 */
void layers_run(struct layers *y, struct head *h, const struct k_plan *kp, int l, int rows,
                struct layer_input in, kbuf x);
/* Writes keys and values of layer l for rows of `in`, without a norm and without attention. */
void layers_store(struct layers *y, struct head *h, const struct k_plan *kp, int l, int rows,
                  struct layer_input in);
/* Whether the projections of layer l take packed activation rows (kernels.h). */
bool layers_pack(const struct layer *w);
