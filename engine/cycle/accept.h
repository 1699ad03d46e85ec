/* accept.h - from the logits of a pass to what the cycle commits, the same for stepped and fused
 * cycles: the acceptance walk, its outcome, the step's record. Engine thread.
 */
#pragma once

#include "engine/cycle/lane.h"
#include "kernels/tree_rules.h"

/* The result of a lane's pass. It becomes final with the cycle's commit. */
struct outcome {
    struct step_rec rec; /* without times and digests of plans and trees */
    int n_cells;     /* of the target that become final, from the committed length on */
    int n_new;       /* tokens appended: 0 for a prompt chunk that is not the last */
    int first_row;   /* of the lane in the pass */
    int path[MAX_STEPS + 1]; /* the rows of the tree whose cells become final, root first: the row
                                of each cell; unused for a prompt, whose cells are its rows */
    int32_t token[MAX_STEPS + 1]; /* (n_new) */
    struct token_fact fact[MAX_STEPS + 1]; /* (n_new) */
    uint64_t draws;  /* the lane's uniforms, those of this step included */
    int draft_cells; /* length of the draft's final cells afterwards; -1: as before */
};

/* The row of the pass that computed new cell i, which is also the row of the cell's captured
 * states. */
static inline int outcome_row(const struct outcome *out, int i)
{
    return out->rec.kind == STEP_PREFILL ? i : out->first_row + out->path[i];
}

enum { DIGEST_BEST = 8 }; /* logits of a row that its digest covers */

/* The k best ids and log probabilities of each row on a path. */
struct best_logits {
    int rows, k; /* rows 0: no token was chosen */
    int32_t id[(MAX_STEPS + 1) * DIGEST_BEST]; /* (rows, k) */
    float logp[(MAX_STEPS + 1) * DIGEST_BEST]; /* (rows, k) */
};
uint64_t best_digest(const struct best_logits *best);
/* Sets the digest, the margin and the facts of the new tokens. node_logp: the log probability of
 * each node after its parent, without the root, whose tokens lie on the path (NULL: no tree). The
 * log probability of another token that is not among the best is computed on the device from its
 * row of the logits, row[i] for token i, and waited for. */
void outcome_set_logits(struct runtime *rt, struct outcome *out, const struct best_logits *best,
                        const int32_t *row, const float *node_logp);

/* Most rows of the tree that may be accepted, >= 1, if the cycle may append max_new tokens. */
int accept_limit(const struct runtime *rt, const struct lane *lane, int max_new);
/* Walks the tree with the target's choices (chosen: one a row) and describes the outcome: sets
 * every node's fate, the uniforms of the path, and all of *out but the logit digest. u: of each
 * row. A given token of the lane replaces the choices of all rows at its depth: a child that holds
 * the given token is accepted, else the given token is the bonus. lane->force > 0 accepts first
 * children instead. False: a choice is no token, the uniforms do not add up (I16), or the path is
 * none (I19). Takes the pass's lock. */
bool accept_tree(struct runtime *rt, const struct lane *lane, struct tree *tree, int max_new,
                 const int32_t *chosen, const float *u, struct outcome *out, struct err *e);
/* As accept_tree(), for a prompt chunk of n_cells rows; with `last`, the next token is *choice, or
 * the first given one. */
bool accept_prompt(struct runtime *rt, const struct lane *lane, int n_cells, bool last,
                   const int32_t *choice, struct outcome *out, struct err *e);
/* Lists the moves (source and destination slots, by POOL_FULL and POOL_SWA) that put the accepted
 * rows' cells right after the committed cells; moves the cells' marks and returns the number of
 * pairs. Takes the pass's lock. */
int accept_moves(struct runtime *rt, const struct lane *lane, const struct outcome *out,
                 int32_t src[2][MAX_STEPS + 1], int32_t dst[2][MAX_STEPS + 1]);

/* The stepped cycle's accept phase for one lane whose rows of logits begin at `first`: samples
 * every row, accepts, and moves the accepted cells on the device. */
bool accept_lane(struct runtime *rt, const struct lane *lane, int first, int max_new,
                 struct tree *tree, struct outcome *out, struct err *e);
/* What accept_lane() will find, without accepting: sets the tree's fates, probabilities and
 * uniforms, and *rec, whose digest and margin are not known yet. False: the device has failed or
 * its output is no number, which accept_lane() will report. */
bool accept_peek(struct runtime *rt, const struct lane *lane, int first, int max_new,
                 struct tree *tree, struct step_rec *rec);
/* Scores n rows of the logits, 1 to TREE_MAX, from row 0 on, of which row i is followed by the
 * prompt's token number at + i. */
void score_prompt(struct runtime *rt, const struct lane *lane, int at, int n);
/* The k best tokens of each row that gave one of the lane's last n_new tokens: (n_new, k), best
 * first, padded with id -1. Before the runtime's next pass. */
void lane_best(struct runtime *rt, const struct lane *lane, int k, struct job_token *out);
/* Samples one token from row 0 of the logits; *best: the best logits of that row. */
int32_t sample_prompt(struct runtime *rt, const struct lane *lane, struct best_logits *best);
