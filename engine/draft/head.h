/* head.h - the common part of drafters with a neural head: buffers, the target's captured states,
 * first guesses, and the growth of the tree level by level (head.c).
 *   EAGLE3      owns the draft pool and follows the target one pairing behind: its slot i joins
 *               the target's state at position i with token i + 1 and guesses token i + 2
 *   P-EAGLE     as EAGLE3, but all guesses behind the first come from one pass over masked slots
 *   DFlash      owns the draft pool, too: its cell i is made from the target's state at position i,
 *               whatever comes after. It guesses a whole block in one pass, when a tree is grown
 *   frozen KV   owns nothing: its layers read the target's own cells in both pools, from the
 *               position of the last committed token, which does not advance with depth
 * Engine thread.
 */
#pragma once

#include "engine/draft/drafter.h"

/* Cells of the target that a head may be behind (lane.h), which is also the rows of its backlog:
 * their captured states, until the head runs over them. */
enum { HEAD_BACKLOG = 64, HEAD_OWNED = 32 };

/* The part of a drafter that all heads share; each embeds it first. */
struct head {
    struct drafter base;
    const struct head_ops *ops;
    struct device dev;
    struct draft *w;
    struct net *target;
    int max_rows;     /* of one extend pass */
    int max_heads;    /* rows whose states and logits are wanted at once */
    struct taps taps; /* dst: (max_rows + 1 + HEAD_BACKLOG, stride) captured target states */
    kbuf state;       /* (max_heads, state_n) by row of the last pass: inputs of a level */
    kbuf root;        /* (MAX_LANES, state_n) the same after the last true row of each slot */
    kbuf inputs;      /* (max_heads, state_n) states gathered for the next level */
    int state_n;      /* floats of a state row */
    kbuf idx, last;   /* (rows of a gather), (MAX_LANES) i32 */
    kbuf logits;      /* (max_heads, draft_vocab) of the last pass */
    kbuf ids, logp;   /* (max_heads, MAX_TOPK) */
    kbuf parents;     /* (max_heads) i32 tokens, of a draft with edges */
    kbuf d2t;         /* (draft vocabulary) i32 target ids; absent: the same */
    kbuf out;         /* output rows of the last pass, for golden tests */
    struct k_cells *cells; /* (n_cells) of the draft pool, one a layer; 0: the head owns none */
    int n_cells;
    kbuf *own[HEAD_OWNED]; /* (n_own) buffers that head_close() frees, beside the cells */
    int n_own;
};

struct head_ops {
    size_t size; /* of the head's own struct */
    /* Allocates what the head has beside struct head; its weights are on the device. */
    bool (*open)(struct head *h, const struct drafter_setup *s, struct err *e);
    /* Runs the head over the rows of a pass of the drafter's extend mode, row r from tap row
     * from[r]; last[b] (n_req) is the last row of request b. Leaves request b's state after that
     * row in row b of `state`, its logits in row b of h->logits. from, last: i32 on the device.
     * If its guesses begin in the block (draft_guesses_next()), it only writes the rows' cells. */
    void (*extend)(struct head *h, const struct k_plan *kp, int rows, kbuf from, kbuf last,
                   int n_req, kbuf state);
    /* The same for one tree level: row r starts from row from[r] of `states`, or without `from`
     * from row r of h->inputs, which are lost; states (h->state) and logits by row. The two buffers
     * may change places. NULL: the head has block(). */
    void (*level)(struct head *h, const struct k_plan *kp, int rows, kbuf states, kbuf from);
    /* Runs the head over the rows of a block pass (head_block_token()). Leaves the logits of the
     * rows which[i], i < n, in row i of h->logits. which: i32 on the device. NULL: the head guesses
     * level by level. */
    void (*block)(struct head *h, const struct k_plan *kp, int rows, kbuf which, int n);
    /* Of a draft whose guesses depend on the token before (struct draft, edges): the guesses after
     * `rows` parents. Parent r holds the target's id token[r]; its children are guessed by row
     * which[r] of those whose logits the last block() left, which stay. Leaves the topk best of
     * each, ids of the draft (-1: no more), in h->ids and h->logp. token, which: i32 on the device.
     */
    void (*edges)(struct head *h, int rows, kbuf token, kbuf which, int topk);
};

/* For the open functions of the heads: allocates the shared buffers; state_n and the taps must be
 * set. */
bool head_buffers(struct head *h, struct err *e);
/* Allocates a field of the head's own struct, which head_close() frees. 0 bytes: it stays
 * absent. */
bool head_want(struct head *h, kbuf *field, size_t bytes, struct err *e);
/* Floats of a row of all heads' outputs, and of an MLP's inner state, in the widest layer. */
void head_widths(const struct draft *w, size_t *heads, size_t *ffn);

/* For the table entries of the heads. */
#define HEAD_DRAFTER                                                                               \
    .open = head_open, .close = head_close, .ready = head_ready, .grow = head_grow
struct drafter *head_open(const struct drafter_ops *ops, const struct drafter_setup *s,
                          struct err *e);
void head_close(struct drafter *d);
bool head_ready(const struct drafter *d, const struct drafting *lane);
bool head_grow(struct drafter *d, struct pass *ps, struct drafting *lane, int n,
               const struct tree_shape *shape, struct err *e);

/* Of a head with block(). The rows of a block that guesses down to `depth`: all, or where no row
 * sees a later one only those that are needed. Maybe none. */
int head_block_rows(const struct head *h, int depth);
/* The token of row i of a block. */
int32_t head_block_token(const struct head *h, int i, int32_t pending);

/* dst[i] = src[from[i]], rows of n floats; from: i32 on the device. */
void head_gather(struct head *h, kbuf src, kbuf from, int rows, int n, kbuf dst);
/* Host indices on the device, in h->idx. */
kbuf head_rows(struct head *h, const int32_t *from, int rows);
/* The topk best guesses of n rows of logits: ids of the draft's own vocabulary. */
struct k_topk head_best(const struct head *h, int n, int topk, kbuf ids, kbuf logp);
void head_topk(struct head *h, int n, int topk, kbuf ids, kbuf logp);
/* The state that the root of a slot starts from. */
kbuf head_root(struct head *h, int slot);
/* What a head has whose guesses begin in the block: the lane can draft, whatever the topk. */
void head_no_guesses(struct guess *g);

/* The destination of the states that net_forward() captures for extend: row r of the pass in row r.
 * NULL: the drafter is not a head, so nothing is captured and no pass is followed. */
const struct taps *drafter_taps(const struct drafter *d);
/* One row of captured states to and from host memory (head_tap_floats() of them). Row
 * head_spare_row() and the rows head_backlog_row(0 .. HEAD_BACKLOG - 1) are never written by a
 * pass. */
int head_tap_floats(const struct head *h);
int head_spare_row(const struct head *h);
int head_backlog_row(const struct head *h, int i);
void head_get_tap(struct head *h, int row, float *out);
void head_put_tap(struct head *h, int row, const float *in);
void head_copy_tap(struct head *h, int from, int to); /* on the device */

/* The plan mode of head_extend(): every new row where the head owns KV, else each lane's last
 * one. */
enum plan_mode head_extend_mode(const struct head *h);
/* Runs the head over the rows of a prepared pass of that mode; from[r] is the tap row of plan
 * row r. out[b] receives request b's guesses after its last row, whose state is kept in slot[b],
 * a number below MAX_LANES that belongs to the lane. (Of a head whose guesses begin in the block:
 * as many guesses as anybody may ask for, all of them none; head_grow() finds them.) */
void head_extend(struct head *h, struct pass *ps, const int32_t *from, const int32_t *slot,
                 int topk, struct guess *out);
/* Copies the state kept in one slot to another. */
void head_copy_slot(struct head *h, int from, int to);
/* Moves single cells of every draft layer: pairs of slots, i32 on the device. */
void head_move(struct head *h, int pairs, kbuf src, kbuf dst);

/* First-level logits of the last extend for its request b: (draft_vocab), for golden tests. */
void head_logits(struct head *h, int b, float *out);
/* Output states (hidden) of the rows of the last pass, for golden tests. */
void head_states(struct head *h, int rows, float *out);
int head_vocab(const struct head *h);
