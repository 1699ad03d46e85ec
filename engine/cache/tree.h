/* tree.h - the draft tree as flat arrays.
 *
 * Node 0 is the root: the last sampled token, which is not drafted. Parents precede their children;
 * siblings are in the order of the drafter's candidates. Invariants, checked by tree_ok():
 *   (1) parent[0] == -1 and 0 <= parent[i] < i for i > 0
 *   (2) depth[0] == 0 and depth[i] == depth[parent[i]] + 1
 *   (3) anc[i] == anc[parent[i]] | 1 << i   (the ancestors mask: bit j for node j, self included)
 */
#pragma once

#include "kernels/base.h"

enum { TREE_MAX = 64 };

enum fate {
    FATE_NONE,     /* not verified yet */
    FATE_ACCEPTED, /* the root, and each node whose token the step emits */
    FATE_REJECTED, /* its parent was accepted, but the target chose another token */
    FATE_CUT,      /* an ancestor was rejected, or the reply ended above this node */
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

/* A node as the rings, the recordings and the log keep it; fields as in struct tree. */
struct tree_node {
    int32_t token;
    float q, p, u;
    int8_t parent;
    uint8_t fate;
};

struct tree_node tree_node(const struct tree *t, int i);
/* Adds such a node with its fate and probabilities: to a tree without nodes, as its root. */
void tree_put(struct tree *t, const struct tree_node *n, float score);

void tree_init(struct tree *t, int32_t root);
/* Adds a child of `parent`; returns its index. The tree must have fewer than TREE_MAX nodes. */
int tree_add(struct tree *t, int parent, int32_t token, float q, float score);
bool tree_ok(const struct tree *t, struct err *e); /* the rules above; *e names rule and node */
int tree_depth(const struct tree *t);              /* the greatest depth */
int tree_accepted(const struct tree *t);           /* accepted nodes without the root */
/* The rank of a node (not the root) among its siblings by the draft's probability, from 1; where
 * probabilities are equal or not known, the earlier node is first. *of: the number of siblings,
 * the node included. */
int tree_rank(const struct tree *t, int node, int *of);
uint64_t tree_digest(const struct tree *t);        /* tokens, parents and accepted fates */

/* Where the walk ends before the tree does. */
struct tree_ends {
    int max_nodes;       /* >= 1: most nodes of the path, the root counts */
    int force;           /* > 0: first children are accepted, whatever was chosen, up to this many
                            nodes, and no token stops the walk */
    const int32_t *stop; /* (n_stop) the walk ends at a node where one of them is chosen */
    int n_stop;
};
/* Walks from the root (kernels/tree_rules.h): at node i the target's own token is choice[i], and
 * the walk goes on to the first child that holds this token. Writes the nodes of the path, root
 * first, sets every fate, and returns the number of nodes (>= 1). Each node of the path emits one
 * token, the last node choice[path[last]]; choice[] is read at nodes of the path only. *held: the
 * child that holds the last token, which is accepted too but not part of the path, because its row
 * commits no cell; -1: no child holds the last token, which is then the bonus. Unforced, the rule
 * leaves the target's distribution unchanged, because every emitted token is the target's own draw
 * at its place; the tree only decides how many of them one pass yields. */
int tree_accept(struct tree *t, const int32_t *choice, const struct tree_ends *ends,
                int path[TREE_MAX], int *held);

/* Packed form for the log: u8 version, u8 n, then a node: i32 token, i8 parent, u8 fate, f32 q, f32
 * p, f32 u (little-endian). tree_unpack() rejects anything else and leaves *t alone then; depth,
 * ancestors and score are worked out again. */
void tree_pack(const struct tree *t, struct buf *out);
bool tree_unpack(struct tree *t, const void *p, size_t n, struct err *e);
