/* cycle.h - one cycle of n lanes, phase by phase:
 *
 *   draft    the drafter grows each lane's tree
 *   verify   the target runs over all trees, or over the pending tokens
 *   accept   samples every row and walks the trees; then reserves, plans and checks the drafter's
 *            next pass
 *   commit   makes the accepted cells and tokens final, for all lanes
 *   follow   the drafter runs over the committed cells and guesses what comes next
 *
 *     BEGUN -> DRAFTED -> VERIFIED -> ACCEPTED -> COMMITTED -> FOLLOWED
 *       |         |          |           |
 *       +---------+----+-----+-----------+---> ABANDONED (after a phase that failed, too)
 *
 * The phases pass their results in struct cycle. Before the commit only a lane's reservations and
 * the captured states on the device change; from the commit on nothing can fail. lane_step() runs
 * all phases; it may run the first three as one run of device operations (fused.h). Where the
 * runtime runs another pass between verify and accept, cycle_verify_again() must follow. Engine
 * thread.
 */
#pragma once

#include "engine/cycle/follow.h"

enum cycle_phase {
    CYCLE_BEGUN,
    CYCLE_DRAFTED,
    CYCLE_VERIFIED,
    CYCLE_ACCEPTED,
    CYCLE_COMMITTED,
    CYCLE_FOLLOWED,
    CYCLE_FAILED, /* a phase failed: only cycle_abandon() may follow */
    CYCLE_ABANDONED,
};

/* The state of one lane in a cycle. */
struct cycle_lane {
    struct lane *lane;
    int max_new;    /* most tokens it may append, >= 1 */
    bool follows;   /* the drafter runs over its new cells after the commit */
    bool lags;      /* the new cell's captured states join the lane's backlog instead */
    bool captured;  /* the pass leaves its captured states on the device */
    bool took_slot; /* of the drafter, in this cycle */
    struct tree tree; /* from DRAFTED on; n == 1: only the pending token; n == 0: a prompt */
    struct outcome out; /* from ACCEPTED on */
};

struct cycle {
    struct runtime *rt;
    enum cycle_phase phase; /* the last one completed */
    struct tree_shape shape; /* steps == 0: plain decoding */
    bool fused;              /* the device has already followed: follow.guess is there */
    int topk;                /* guesses that the drafter makes after the commit */
    int n;
    struct cycle_lane lane[MAX_LANES];
    struct follow follow;
    /* Nanoseconds: of host time in all phases so far, of it in draft and verify (for a fused cycle,
     * of device time), of it in the checker. */
    uint64_t ns, ns_draft, ns_verify, ns_check;
    uint64_t t0, check0; /* when the running phase began */
};

struct step_limits {
    int max_new; /* tokens the lane may still emit, >= 1 */
};

/* Begins a cycle for n lanes; shape NULL: plain decoding. Parks the lanes, so that cycle_abandon()
 * leaves them as they were. *cycle must stay where it is and belongs to the caller; nothing needs
 * to be freed after cycle_follow() or cycle_abandon(). */
void cycle_begin(struct cycle *cycle, struct runtime *rt, struct lane *const *lane,
                 const struct step_limits *lim, int n, const struct tree_shape *shape);
/* The phases, in this order. False: no lane has changed, and the cycle must be abandoned. (*e: a
 * pool is short, a rule is violated, net.stop ended the pass, the device failed.) */
bool cycle_draft(struct cycle *cycle, struct err *e);
bool cycle_verify(struct cycle *cycle, struct err *e);
bool cycle_accept(struct cycle *cycle, struct err *e);
/* After verify: computes the logits once more, with the same bits, because another pass of the
 * runtime has used their buffer since. */
bool cycle_verify_again(struct cycle *cycle, struct err *e);
void cycle_commit(struct cycle *cycle);
void cycle_follow(struct cycle *cycle);
/* Rolls back what the phases before the commit have reserved. The lanes are as they were; cells
 * that they share with forks may have been copied. */
void cycle_abandon(struct cycle *cycle);

/* Runs the drafter over the cells that the lane is behind, so that the lane can draft again; a lane
 * that is not behind stays as it is. topk: as of lane_guesses(). False: the lane is as it was
 * (*e as of cycle_draft()). */
bool lane_catch_up(struct runtime *rt, struct lane *lane, int topk, struct err *e);
/* Calls lane_catch_up() if the next cycle, of this shape, needs it: because it drafts, or because
 * the backlog is full. Call it before cycle_begin(); lane_step() calls it itself. */
bool lane_ready_for(struct runtime *rt, struct lane *lane, const struct tree_shape *shape,
                    struct err *e);

/* One whole cycle. False: nothing of any lane is committed; a lane that was not parked has lost its
 * captured states if the verify pass ran, and goes on from its guess. */
bool lane_step(struct runtime *rt, struct lane **lane, const struct step_limits *lim, int n,
               const struct tree_shape *shape, struct err *e);

/* Runs tok[committed, upto), a prompt chunk. With `last`, upto == tok.n and the next token is
 * sampled and appended. draft: keep the drafter in step, topk: the guesses it makes. False: nothing
 * is committed (*e as of cycle_draft()). */
bool lane_extend(struct runtime *rt, struct lane *lane, int upto, bool last, bool draft, int topk,
                 struct err *e);
