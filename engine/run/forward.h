/* forward.h - the target's forward pass, written once over the kernel table.
 *
 * A net is a loaded model on a device: its weights, its KV cells in the full and swa pools, and
 * the activations of one pass. Rows come from a checked plan. All activations are float32.
 * Engine thread.
 */
#ifndef AERIE_FORWARD_H
#define AERIE_FORWARD_H

#include "engine/plan/plan.h"
#include "models/models.h"

struct device {
    const struct kernels *k;
    struct kdev *d;
    enum kv_type kv; /* how its pools store keys and values */
};

/* Where a pass leaves the residual stream at chosen boundaries (boundary b enters layer b; boundary
 * n_layer leaves the last one). Row r of boundary[i] lands in dst at (row0 + r) * stride + i *
 * hidden floats. */
struct taps {
    int n, boundary[MAX_CAPTURE];
    int row0, stride;
    kbuf dst;
};

struct net {
    struct device dev;
    const struct model *m;
    const struct stop *stop; /* ends a pass between two layers; NULL: nothing does */
    struct k_cells *cells; /* (n_layer) of the owner layers; shared layers use their owner's */
    struct k_cells *of_pool[2]; /* those of the owner layers, by pool */
    int n_of_pool[2];
    int max_rows;
    kbuf x;            /* (max_rows, hidden) residual stream */
    kbuf q, o;         /* (max_rows, widest heads * head_dim) */
    kbuf h;            /* (max_rows, widest ffn) */
    kbuf y;            /* (max_rows, hidden) */
    kbuf cs[MAX_ROPE]; /* (max_rows, half, 2) */
    kbuf ple, ple_row; /* (max_rows, n_layer * P), (max_rows, P) */
    kbuf chosen; /* for measuring, the owner's: (n_layer, max_rows, top_k) i32 experts of the last
                    pass; absent: not kept */
    kbuf o2, lse, lse2; /* the prefix part of a two-part pass; absent until net_two_parts() */
};

/* For model_each() and draft_each(): hands one tensor to the device in arg (a struct device). One
 * without data (model_shaped()) is made up there, the same in every run. */
bool device_upload(struct tensor *t, void *arg, struct err *e);
/* A norm of the config's kind that is there iff its weight is. */
struct k_norm norm_of(const struct config *c, const struct tensor *w);
/* The tensor, or NULL when the checkpoint has none. */
const struct tensor *tensor_opt(const struct tensor *t);

/* Uploads the weights and allocates cells for the pools' slots and activations for max_rows rows.
 * The model's host copies may be used in place: it must outlive the net. */
bool net_open(struct net *n, struct device dev, struct model *m, int full_slots, int swa_slots,
              enum kv_type kv, int max_rows, struct err *e);
void net_close(struct net *n);
/* Makes room for plans of two parts; may be called again. */
bool net_two_parts(struct net *n, struct err *e);

/* Runs every layer over the plan's rows; leaves the last boundary in n->x. taps may be NULL. False:
 * stop_asked(n->stop); what was written is to be rolled back. */
bool net_forward(struct net *n, const struct plan *p, const struct k_plan *kp,
                 const struct taps *taps);
/* One layer's norm, projections, turned heads and new cells, from n->x into n->q and the pools; part
 * of net_forward(). */
void net_qkv(struct net *n, const struct k_plan *kp, int l, int rows);
/* Final norm and head of `rows` rows of n->x, chosen by idx (i32 on the device; absent: the first
 * ones), into logits (rows, vocab). hidden, if present, receives the normed rows. */
void net_logits(struct net *n, int rows, kbuf idx, kbuf logits, kbuf hidden);

/* Moves single cells of every layer: pairs of slots, i32 on the device, by POOL_FULL and POOL_SWA.
 * A pool whose slots are absent is left as it is. */
void net_move(struct net *n, int pairs, const kbuf src[2], const kbuf dst[2]);

#endif
