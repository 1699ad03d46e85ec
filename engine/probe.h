/* probe.h - the result of a probed pass of the target: copies of values that its layers computed.
 *
 * A step can be run with taps: the same operations in the same order with the same bits, and
 * between them rows of the buffers are copied to the host. Rows are those of the step's pass: the
 * nodes of a verified tree (row 0 is the root), the one row of plain decoding, the tokens of a
 * prompt chunk. All values are float32, also where the device stores others. Plain data; any
 * thread. */
#pragma once

#include "engine/event.h"

enum { PROBE_ROWS = 64, PROBE_BEST = 8 }; /* rows kept of a pass; best tokens kept of a row */

/* Where a layer is tapped, in the order of computation. */
enum probe_point {
    PROBE_IN,   /* the residual stream that enters the layer: boundary l (hidden) */
    PROBE_Q,    /* queries after norm and RoPE (n_head * head_dim) */
    PROBE_K,    /* keys as the cell stores them (n_kv * head_dim); none: the layer shares KV */
    PROBE_V,    /* values, the same */
    PROBE_ATTN, /* output of attention, before the output projection (n_head * head_dim) */
    PROBE_MID,  /* the residual stream after attention (hidden) */
    PROBE_OUT,  /* the residual stream after the MLP or the experts (hidden) */
    N_PROBE_POINTS,
};

/* The shares of a head's attention. sink + within + beyond + tree == 1. */
struct attn_share {
    float sink;   /* the learned sink (gpt-oss) */
    float within; /* committed tokens that a sliding layer would see: at most W keys back */
    float beyond; /* committed tokens before them */
    float tree;   /* cells that this pass writes: the row's ancestors and itself */
    float first;  /* the first token; also part of `within` or `beyond` */
};

struct probe_layer {
    int window; /* keys a row sees; 0: all */
    int n_head, n_kv, head_dim;
    int kv_src; /* the layer whose cells are read */
    int width[N_PROBE_POINTS];  /* floats of a row; 0: the layer has no such value */
    float *tap[N_PROBE_POINTS]; /* (n_row, width) */
    int32_t *expert;            /* (n_row, top_k) ids of the chosen experts; NULL: a dense MLP */
    struct attn_share *share;   /* (n_head) of row share_row; NULL: not computed */
};

struct probe {
    char session[SESSION_ID];
    int turn, step;
    bool again;   /* the step was computed again, on a scratch sequence; else while it ran */
    int n_shared; /* again: context tokens whose cells the session still had; the others were
                     computed again, too */
    char refused[200]; /* again: the rule that the pass violates with the historical faults that are
                          on; all else is of the pass without them. "": there is none */
    struct step_rec rec;  /* the step as it ran */
    bool has_digest, same; /* again: the logits were computed; their digest equals the recorded
                              one */
    int n_layer, hidden, window, page_size, top_k;
    int n_rows;       /* of the pass */
    int row0, n_row;  /* rows kept: [row0, row0 + n_row) */
    int share_row;    /* the row that `share` and the keys are about */
    int pos0;         /* first position that the pass writes */
    int32_t token[PROBE_ROWS], pos[PROBE_ROWS], parent[PROBE_ROWS]; /* (n_row); parent: row or -1 */
    struct probe_layer *layer; /* (n_layer + 1): the last has PROBE_IN only */
    /* The target's best tokens after each kept row, log probabilities at temperature 1; id -1: the
     * row has fewer, or its logits were not computed. */
    int32_t best[PROBE_ROWS][PROBE_BEST];
    float best_logp[PROBE_ROWS][PROBE_BEST];
    /* The keys that row share_row reads in layer key_layer (-1: not asked for), in their order. */
    int key_layer, n_key, key_window_lo; /* key_window_lo: the first position that W keys reach */
    int32_t *key_pos, *key_slot; /* (n_key) slot: of the layer's pool; of a step computed again,
                                    that of the scratch sequence */
    int32_t *key_token;          /* (n_key) */
    float *key_p;                        /* (n_head, n_key) attention */
    float key_error; /* the largest difference between sum p v and the tapped attention output,
                        relative to the largest output */
};

/* The facts from the log of a step that is no longer in the engine's memory. */
struct probe_past {
    struct step_rec rec;
    struct tree tree;   /* n <= 1: nothing was drafted */
    struct ids context; /* tokens before the step, the pending one included; of a prompt chunk: the
                           whole prompt */
    int n_prompt;       /* of them of the turn's prompt */
};
void probe_past_free(struct probe_past *p); /* allocated with xcalloc(); NULL is fine */

/* A request for a probe. */
struct probe_ask {
    int turn, step; /* armed: 0.0 disarms */
    int row;        /* of the shares and keys; -1: the last one of the accepted path; armed, or a
                       prompt chunk: the last one of the pass */
    int layer;      /* whose keys are listed; -1: none */
    bool armed;     /* the step has not run yet: when it runs, it runs with taps, as a stepped cycle
                       (never fused or as a graph), with the same bits as without taps; its page
                       digest is that of a stepped cycle. If it fails after its pass, its taps are
                       posted at the turn's end with an empty record */
    struct probe_past *past; /* for a step that is not in the engine's memory, else NULL; ask()
                                takes it over, also if it fails */
};

/* Frees everything that *p owns, and zeroes it. */
void probe_clear(struct probe *p);
/* Frees a probe that was allocated with xcalloc(); NULL is fine. */
void probe_free(struct probe *p);
/* Row `row` of the pass at a point of layer l; NULL: not kept, or the layer has no such value. */
const float *probe_row(const struct probe *p, int l, enum probe_point at, int row);
