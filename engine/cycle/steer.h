/* steer.h - what changes a lane's choices besides its sampling: biases and penalties of tokens, and
 * the grammar that a reply must follow.
 *
 * The target's choice at a row of a tree depends on the logits of the row and on the tokens before
 * it, which are the lane's tokens and the nodes on the row's path. Each row's logits are therefore
 * copied and changed with the counts along its own path, and the token is chosen from the copy. The
 * walk through the tree compares tokens as ever, so that a reply is the same with drafting and
 * without. Each row likewise has a state of the grammar, that after its path. Log probabilities,
 * digests and margins are those of the logits as the model gave them. Engine thread. */
#pragma once

#include "engine/cycle/lane.h"
#include "models/grammar/grammar.h"

struct steer {
    struct penalties penalties;
    struct guide *guide; /* of the reply's grammar, not owned; NULL: there is none */
    int first; /* index in the lane's tokens of the reply's first one */
};

/* Sets *steer for a reply whose first token is number `first` of its lane; guide may be NULL.
 * Returns steer, or NULL if nothing changes a choice. */
const struct steer *steer_set(struct steer *steer, const struct penalties *penalties,
                              struct guide *guide, int first);

/* Most rows of one steer_rows(). */
enum { STEER_ROWS = MAX_STEPS + 1 };
/* Bytes of the runtime's buffer for changes: of every id once, and of the nodes on all paths. */
static inline size_t steer_bytes(int vocab)
{
    return ((size_t)vocab + (size_t)STEER_ROWS * MAX_STEPS) * sizeof(struct k_change);
}
/* Bytes of its buffer for the tokens that a grammar bans. */
static inline size_t steer_ban_bytes(int vocab)
{
    return (size_t)STEER_ROWS * (((size_t)vocab + 31) / 32) * 4;
}
/* Copies n rows of logits, from row `first` of the runtime's on, with the changes that the lane's
 * steer makes, and returns the copies. Row i is that of node at + i of the tree; tree NULL: of the
 * lane's last token. The copies lie in rt->path_logits. */
kbuf steer_rows(struct runtime *rt, const struct lane *lane, const struct tree *tree, int at,
                int first, int n);
