/* draft.h - drafters: what the engine asks of whatever guesses the next tokens.
 *
 * A lane is one sequence being extended; a batch is several. Two drafters stand behind one
 * interface, and the growth of the tree is common to both (draft.c):
 *   EAGLE3      owns the draft pool and follows the target one pairing behind: its slot i joins
 *               the target's state at position i with token i + 1 and guesses token i + 2
 *   frozen KV   owns nothing: its layers read the target's own cells in both pools, from the
 *               position of the last committed token, which does not advance with depth
 * Engine thread.
 */
#ifndef AERIE_DRAFT_H
#define AERIE_DRAFT_H

#include "engine/run/pass.h"

enum { MAX_TOPK = 16, MAX_STEPS = 16, MAX_LANES = 64 };

struct tree_shape {
    int steps; /* greatest depth */
    int topk;  /* children kept a level */
    int nodes; /* nodes verified, root included */
};

/* What a drafter keeps for one lane between steps. */
struct guess {
    int n;                   /* first-level candidates: 0: none, the lane cannot draft */
    int32_t token[MAX_TOPK]; /* target ids */
    float logp[MAX_TOPK];
};

/* The part of a drafter that both kinds share; each embeds it first. */
struct drafter {
    const struct drafter_ops *ops;
    struct device dev;
    struct draft *w;
    struct net *target;
    int max_rows;     /* of one extend pass */
    int max_heads;    /* rows whose states and logits are wanted at once */
    struct taps taps; /* dst: (max_rows + 1, stride) captured target states */
    kbuf state;       /* (max_heads, state_n) what each row of the last pass feeds on */
    kbuf root;        /* (MAX_LANES, state_n) the same after each slot's last true row */
    kbuf inputs;      /* (max_heads, state_n) states gathered for the next level */
    int state_n;      /* floats of a state row */
    kbuf idx, last;   /* (rows of a gather), (MAX_LANES) i32 */
    kbuf logits;      /* (max_heads, draft_vocab) of the last pass */
    kbuf ids, logp;   /* (max_heads, MAX_TOPK) */
    kbuf d2t;         /* (draft vocabulary) i32 target ids; absent: the same */
};

struct drafter_ops {
    bool owns_kv; /* has slots in the draft pool */
    void (*close)(struct drafter *d);
    /* Runs the head over the rows of a pass of the drafter's extend mode, row r from tap row from[r];
     * last[b] (n_req) is the last row of request b. Leaves request b's state after that row in row b
     * of `state`, its logits in row b of d->logits. from, last: i32 on the device. */
    void (*extend)(struct drafter *d, const struct k_plan *kp, int rows, kbuf from, kbuf last,
                   int n_req, kbuf state);
    /* The same for one tree level: row r starts from row from[r] of `states`, or without `from`
     * from row r of d->inputs, which are lost; states (d->state) and logits by row. The two buffers
     * may change places. */
    void (*level)(struct drafter *d, const struct k_plan *kp, int rows, kbuf states, kbuf from);
    /* Output rows for golden tests. */
    kbuf (*output)(struct drafter *d);
    void (*move)(struct drafter *d, int pairs, kbuf src, kbuf dst);
};

struct drafter *eagle3_open(struct device dev, struct draft *w, struct net *target, int slots,
                            enum kv_type kv, int max_rows, struct err *e);
struct drafter *frozen_open(struct device dev, struct draft *w, struct net *target, int max_rows,
                            struct err *e);
/* Allocates the shared buffers; state_n and the taps must be set. */
bool drafter_buffers(struct drafter *d, struct err *e);
/* dst[i] = src[from[i]], rows of n floats; from: i32 on the device. */
void drafter_gather(struct drafter *d, kbuf src, kbuf from, int rows, int n, kbuf dst);
/* Host indices on the device, in d->idx. */
kbuf drafter_rows(struct drafter *d, const int32_t *from, int rows);
/* The topk best guesses of n rows of logits: ids of the draft's own vocabulary. */
struct k_topk drafter_best(const struct drafter *d, int n, int topk, kbuf ids, kbuf logp);
void drafter_topk(struct drafter *d, int n, int topk, kbuf ids, kbuf logp);
/* What a slot's root feeds on. */
kbuf drafter_root(struct drafter *d, int slot);

/* max_rows: of one extend pass. The draft's weights are used in place. */
struct drafter *drafter_open(struct device dev, struct draft *w, struct net *target, int slots,
                             enum kv_type kv, int max_rows, struct err *e);
void drafter_close(struct drafter *d);
bool drafter_owns_kv(const struct drafter *d);
/* W of its sliding layers, 0: it has none. A frozen drafter's reach one key further than the
 * target's: Hugging Face masks them by 0 <= q - k <= sliding_window, against < in the target. */
int draft_window(const struct draft *w);

/* Where net_forward() leaves the states that extend reads: row r of the pass in row r. */
const struct taps *drafter_taps(const struct drafter *d);
/* One row of captured states to and from host memory (drafter_tap_floats() of them). Row
 * drafter_spare_row() is never written by a pass. */
int drafter_tap_floats(const struct drafter *d);
int drafter_spare_row(const struct drafter *d);
void drafter_get_tap(struct drafter *d, int row, float *out);
void drafter_put_tap(struct drafter *d, int row, const float *in);

/* The plan mode of drafter_extend(): every new row for EAGLE3, each lane's last one for frozen KV. */
enum plan_mode drafter_extend_mode(const struct drafter *d);
/* Runs the head over the rows of a prepared pass of that mode; from[r] is the tap row of plan row r.
 * out[b] receives request b's guesses after its last row, whose state is kept in slot[b], a number
 * below MAX_LANES that belongs to the lane. */
void drafter_extend(struct drafter *d, struct pass *ps, const int32_t *from, const int32_t *slot,
                    int topk, struct guess *out);
/* Copies the state kept in one slot to another. */
void drafter_copy_slot(struct drafter *d, int from, int to);

/* One lane that drafts. tree->n == 1 (the root) when called. */
struct drafting {
    struct seq *seq;
    const struct guess *guess; /* of its last extend */
    int slot;                  /* where that extend kept its state */
    int max_depth; /* >= 1 */
    struct tree *tree;
};
/* Grows every lane's tree to the shape, or as deep as max_depth allows. Takes and gives back the
 * scratch cells it needs in the draft's pool. False: a rule is violated or the pool is short. */
bool drafter_grow(struct drafter *d, struct pass *ps, struct drafting *lane, int n,
                  const struct tree_shape *shape, struct err *e);

/* Moves single cells of every draft layer: pairs of slots, i32 on the device. */
void drafter_move(struct drafter *d, int pairs, kbuf src, kbuf dst);

/* First-level logits of the last extend for its request b: (draft_vocab), for golden tests. */
void drafter_logits(struct drafter *d, int b, float *out);
/* Output states (hidden) of the rows of the last pass, for golden tests. */
void drafter_states(struct drafter *d, int rows, float *out);
int drafter_vocab(const struct drafter *d);

#endif
