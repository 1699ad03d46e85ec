/* follow.h - the drafter's pass over the cells that a cycle commits (draft extend).
 *
 * The pass is reserved, planned and checked before the commit, and runs after it. Engine thread.
 */
#pragma once

#include "engine/cycle/accept.h"

/* One lane that the drafter follows. */
struct follow_lane {
    struct lane *lane;
    struct outcome *out; /* what is about to be committed */
    bool redo;           /* compute the draft's last cell again, from the lane's parked states,
                            because the token after it may have changed */
    int behind;          /* the cells of the lane's backlog, over which the drafter runs first */
    int base, drafted;   /* committed target cells and draft cells before the cycle */
};

struct follow {
    int n;
    struct follow_lane lane[MAX_LANES];
    struct seq after[MAX_LANES]; /* the sequences as the commit will leave them */
    int32_t *from;               /* row of captured states of each row of the plan; owned */
    struct guess guess[MAX_LANES]; /* what the drafter guesses next */
};

void follow_init(struct follow *follow);
/* The lane's lengths must be those before the cycle. */
void follow_add(struct follow *follow, struct lane *lane, struct outcome *out, bool redo);
/* Everything about the drafter's pass that can fail: reserves draft cells, builds and checks the
 * plan. Sets the outcomes' draft_cells. */
bool follow_plan(struct runtime *rt, struct follow *follow, struct err *e);
/* Runs the planned pass and fills follow->guess. Only the device can fail; its next sync reports
 * that. */
void follow_run(struct runtime *rt, struct follow *follow, int topk);
/* Sets the lengths of the draft's cells back; the caller rolls the sequences back. */
void follow_abandon(struct follow *follow);
