/* tree.h - the draft tree as flat arrays.
 *
 * Node 0 is the root: the last sampled token, which is not drafted. Parents precede their children;
 * siblings are in the order of the drafter's candidates. Invariants, checked by tree_ok():
 *   (1) parent[0] == -1 and 0 <= parent[i] < i for i > 0
 *   (2) depth[0] == 0 and depth[i] == depth[parent[i]] + 1
 *   (3) anc[i] == anc[parent[i]] | 1 << i   (the ancestors mask: bit j for node j, self included)
 */
#ifndef AERIE_TREE_H
#define AERIE_TREE_H

#include "kernels/base.h"

enum { TREE_MAX = 64 };

enum fate {
    FATE_NONE,     /* not verified yet */
    FATE_ACCEPTED, /* on the accepted path; the root always is */
    FATE_REJECTED, /* its parent was accepted, but the target chose another token */
    FATE_CUT,      /* an ancestor was rejected, or max_nodes ended the path above this node */
};

struct tree {
    int n;
    int32_t token[TREE_MAX]; /* target ids */
    int8_t parent[TREE_MAX], depth[TREE_MAX];
    uint8_t fate[TREE_MAX]; /* enum fate */
    uint64_t anc[TREE_MAX];
    float score[TREE_MAX]; /* sum of the draft's log probabilities along the path */
    float q[TREE_MAX]; /* the draft's probability of the node given its parent; 1 for the root */
    float p[TREE_MAX]; /* the target's probability of the same, at temperature 1; NaN: not known */
    float u[TREE_MAX]; /* the uniform drawn at a node of the accepted path; NaN elsewhere */
};

void tree_init(struct tree *t, int32_t root);
/* Adds a child of `parent`; returns its index. The tree must have fewer than TREE_MAX nodes. */
int tree_add(struct tree *t, int parent, int32_t token, float q, float score);
bool tree_ok(const struct tree *t, struct err *e); /* the rules above; *e names rule and node */
int tree_depth(const struct tree *t);              /* the greatest depth */
uint64_t tree_digest(const struct tree *t);        /* tokens, parents and accepted fates */

/* Walks from the root (kernels/tree_rules.h): at node i the target's own token is choice[i]; the
 * first child that holds it is accepted. Writes the accepted nodes, root first, to path, sets every
 * fate, and returns how many there are (>= 1). choice[path[last]] is the bonus token. At most
 * max_nodes (>= 1, the root counts) are accepted; choice[] is read at nodes of the path only. force
 * > 0: accepts first children, whatever was chosen, up to this many nodes. Unforced, the rule
 * leaves the target's distribution unchanged, because every emitted token is the target's own draw
 * at its place; the tree only decides how many of them one pass yields. */
int tree_accept(struct tree *t, const int32_t *choice, int max_nodes, int force,
                int path[TREE_MAX]);

/* Packed form for the log: u8 version, u8 n, then a node: i32 token, i8 parent, u8 fate, f32 q, f32
 * p, f32 u (little-endian). tree_unpack() rejects anything else and leaves *t alone then; depth,
 * ancestors and score are worked out again. */
void tree_pack(const struct tree *t, struct buf *out);
bool tree_unpack(struct tree *t, const void *p, size_t n, struct err *e);

#endif
