/* lane.h - a lane: one sequence, its tokens, and what the drafter needs to continue it.
 *
 * seq.committed of the tokens have KV cells; the last token is pending: it was sampled or given,
 * and no pass has run it yet. Engine thread.
 */
#pragma once

#include "engine/cycle/runtime.h"
#include "engine/job.h"

/* The log probability of each token of a prompt given the ones before, and the best tokens of each
 * row, written while the prompt is computed. */
struct prompt_scores {
    int n, k;                /* tokens of the prompt; best tokens of a row */
    struct token_fact *fact; /* (n) [0] is not written */
    struct job_token *top;   /* (n, k) likewise; NULL with k 0 */
};

struct steer;

struct lane {
    struct seq seq;
    struct ids tok;
    struct guess guess; /* the drafter's, for the token after the pending one; n == 0: none */
    int guesses;        /* first-level candidates that the drafter guesses after each step, so that
                           the next tree may have a greater topk; at least the shape's topk */
    int slot;           /* of the drafter, plus one; 0: none yet */
    float *tap;         /* parked: the target's captured states at cell committed - 1; NULL: none */
    bool settled;       /* forked at its length from a longer lane: the draft's last cell is
                           already that of the token after it, so no tap is needed to go on */
    int tap_row;        /* row of these states on the device since the last pass, -1: none */
    int behind;         /* committed cells that the drafter has not run over yet: those from
                           seq.drafted on. Their captured states are rows 0 .. behind - 1 of the
                           head's backlog. One lane of a runtime at most has such cells */
    struct sampling how;
    const struct steer *steer; /* what else changes choices (steer.h), not owned, kept by forks;
                                  NULL: nothing */
    uint64_t seed, draws; /* uniforms drawn so far */
    int force; /* > 0, for benchmarks: accept this many rows of the tree, whatever is sampled */
    /* Tokens that the next cycles emit in place of the target's choices, first one first; a commit
     * takes away those it has emitted. They replace choices only: logits, probabilities and digests
     * are those of the pass, and a given token uses up the uniform of its place, so that a token
     * drawn later has the uniform that it has without given tokens. Ids of the vocabulary, not
     * owned; forks have none. */
    const int32_t *given;
    int n_given;
    struct prompt_scores *scores; /* of the prompt chunks that run next, not owned; NULL: not asked
                                     for. Forks have none */
    bool run_on; /* stop tokens do not end this reply */
    /* the last step */
    struct step_rec rec;
    struct tree tree; /* n <= 1: nothing was drafted */
    int n_new;        /* tokens it appended to tok */
    int32_t row[MAX_STEPS + 1]; /* (n_new) rows of the logits of the pass that gave them */
    struct token_fact fact[MAX_STEPS + 1]; /* (n_new) */
    bool stopped;     /* the last of them ends the reply */
};

void lane_free(struct runtime *rt, struct lane *lane);
/* Copies the lane's captured states to the host, so that another pass may overwrite them on the
 * device. Waits for the device: not under the pass's lock. */
void lane_park(struct runtime *rt, struct lane *lane);
/* Forks src: dst, empty before, continues from its state and shares all its pages. src is parked.
 * holder: the name of dst in the page log. */
void lane_fork_as(struct runtime *rt, struct lane *src, struct lane *dst, enum page_holder holder);
/* The same for a copy that is not the conversation's own state. */
static inline void lane_fork(struct runtime *rt, struct lane *src, struct lane *dst)
{
    lane_fork_as(rt, src, dst, HOLDER_POINT);
}

/* Most lanes of one lane_step() of this shape (NULL: plain decoding), limited by the rows of the
 * runtime's buffers. */
int runtime_step_lanes(const struct runtime *rt, const struct tree_shape *shape);

/* Gives the lane a slot of the drafter unless it has one. False: all are in use. */
bool lane_take_slot(struct runtime *rt, struct lane *lane);
void lane_give_slot(struct runtime *rt, struct lane *lane);
/* Whether the drafter can go on from the lane's committed length: its own cells reach that far. */
bool lane_can_follow(const struct runtime *rt, const struct lane *lane);
/* How many tokens of a prompt, not all of them, a fork of the lane can begin with; 0: none. The
 * lane's tokens are the prompt's first ones so far, and its cells that a sliding layer needs there
 * are still held; draft: the drafter, too, can go on there. */
int lane_shared(const struct runtime *rt, const struct lane *lane, const struct ids *prompt,
                bool draft);
/* dst, empty, begins with the first n tokens of src, as of lane_shared() with the same draft. */
void lane_fork_at(struct runtime *rt, struct lane *src, int n, bool draft, struct lane *dst,
                  enum page_holder holder);
/* Whether a prompt can go on where the lane ends: the lane's committed tokens are its first ones,
 * and at least one token is left to be run for its logits. draft: the drafter, too, can go on
 * there. */
bool lane_continues(const struct runtime *rt, const struct lane *lane, const struct ids *prompt,
                    bool draft);
/* How many first-level candidates the drafter guesses after a step of this topk. */
static inline int lane_guesses(const struct lane *lane, int topk)
{
    return max_int(1, max_int(topk, lane->guesses));
}
/* Most levels of a tree, if the cycle may append max_new tokens: each accepted node needs room for
 * itself and for the token after it. */
int lane_draft_depth(const struct runtime *rt, const struct lane *lane, int max_new);

/* The uniform number `counter` of a seed, in [0, 1): splitmix64 over both, 24 bits. */
static inline float uniform(uint64_t seed, uint64_t counter)
{
    return (float)(mix64(mix64(seed) ^ (counter * 0xD1342543DE82EF95ull + 1)) >> 40) * 0x1p-24f;
}
/* The uniform with which the token `depth` places after the pending one is drawn; 0: greedy. */
static inline float lane_uniform(const struct lane *lane, int depth)
{
    return lane->how.temperature > 0 ? uniform(lane->seed, lane->draws + (uint64_t)depth) : 0;
}
