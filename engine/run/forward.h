/* forward.h - the target's forward pass, written once for all backends over the kernel table.
 *
 * A net is a loaded model on a device: the weights, the KV cells in the full and swa pools, and the
 * activation buffers of one pass. The rows of a pass come from a checked plan. All activations are
 * float32. Engine thread.
 */
#pragma once

#include "engine/plan/plan.h"
#include "models/models.h"

struct device {
    const struct kernels *k;
    struct kdev *d;
    enum kv_type kv; /* type of the keys and values in the pools */
    enum k_precision precision; /* of the activations; K_F32 on the CPU */
};

/* Captures of the residual stream (taps): boundary b is the input of layer b, boundary n_layer the
 * output of the last layer. A pass stores row r of boundary[i] at float (row0 + r) * stride + i *
 * hidden of dst. */
struct taps {
    int n, boundary[MAX_CAPTURE];
    int row0, stride;
    kbuf dst;
};

struct net {
    struct device dev;
    const struct model *m;
    const struct stop *stop; /* ends a pass between two layers; NULL: passes do not end early */
    struct k_cells *cells; /* (n_layer); a layer that shares KV has the owning layer's cells */
    struct k_cells *of_pool[2]; /* the cells of the owning layers, by pool */
    int n_of_pool[2];
    int max_rows;
    kbuf x;            /* (max_rows, hidden) residual stream */
    kbuf q, o;         /* (max_rows, widest heads * head_dim) */
    kbuf h;            /* (max_rows, widest ffn) */
    kbuf y;            /* (max_rows, hidden) */
    kbuf cs[MAX_ROPE]; /* (max_rows, half, 2) cosines and sines of RoPE */
    kbuf gate;         /* (max_rows, rows of Wgate, or of an MLP that is clamped), or absent */
    kbuf ple, ple_row; /* (max_rows, n_layer * P), (max_rows, P) */
    kbuf chosen; /* (n_layer, max_rows, top_k) i32: experts of the last pass. Set and owned by code
                    that measures; absent: not stored */
    kbuf o2, lse, lse2; /* the prefix part of a pass in two parts; absent until net_two_parts() */
    struct probe_pass *probe; /* taps of the passes that run (probe_pass.h); NULL: none */
};

/* For model_each() and draft_each(): uploads one tensor to the device in arg (a struct device). A
 * tensor without data (model_shaped()) is filled with synthetic values, the same in every run. */
bool device_upload(struct tensor *t, void *arg, struct err *e);
/* A norm of the config's kind with weight w; none if the checkpoint has no such weight. */
struct k_norm norm_of(const struct config *c, const struct tensor *w);
/* The norm before the head. */
struct k_norm final_norm_of(const struct config *c, const struct tensor *w);
/* The tensor, or NULL if the checkpoint has none. */
static inline const struct tensor *tensor_opt(const struct tensor *t)
{
    return t->data ? t : NULL;
}

/* Uploads the weights, allocates cells for the pools' slots and activation buffers for max_rows
 * rows. The device may use the model's host memory in place: the model must outlive the net. */
bool net_open(struct net *n, struct device dev, struct model *m, int full_slots, int swa_slots,
              enum kv_type kv, int max_rows, struct err *e);
void net_close(struct net *n);
/* Allocates the buffers for plans with two parts, unless they are already there. */
bool net_two_parts(struct net *n, struct err *e);

/* Runs every layer over the plan's rows; the last boundary is then in n->x. taps may be NULL.
 * False: n->stop ended the pass; the caller has to roll the written cells back. */
bool net_forward(struct net *n, const struct plan *p, const struct k_plan *kp,
                 const struct taps *taps);
/* The part of a layer before attention: norm, Q/K/V projections, RoPE, and the store of the new KV
 * cells. Reads n->x, writes n->q and the pools. */
void net_qkv(struct net *n, const struct k_plan *kp, int l, int rows);
/* Attention of `rows` rows in layer l: n->q and the cells in, n->o out, not packed, no lse. */
static inline struct k_attn net_attn(struct net *n, const struct k_plan *kp, int l, int rows)
{
    const struct layer *w = &n->m->layer[l];
    const struct config *c = &n->m->cfg;
    return (struct k_attn){
        .rows = rows, .n_head = w->n_head, .scale = c->attn_scale, .softcap = c->attn_softcap,
        .window = w->window, .sinks = tensor_opt(&w->sinks), .q = n->q, .cells = n->cells[l],
        .table = &kp->table[target_table(w->window)], .dst = n->o};
}
/* Applies the final norm and the LM head to `rows` rows of n->x and writes logits (rows, vocab).
 * idx: the rows, i32 on the device; absent: the first ones. */
void net_logits(struct net *n, int rows, kbuf idx, kbuf logits);

/* Copies single cells in every layer, from slots src to slots dst: `pairs` of them, i32 on the
 * device, for POOL_FULL and POOL_SWA. A pool with absent slots does not change. */
void net_move(struct net *n, int pairs, const kbuf src[2], const kbuf dst[2]);
