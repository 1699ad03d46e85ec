/* step_ring.h - the latest steps of the session in memory, each with the tree that it drafted and
 * the tokens that it emitted.
 *
 * The ring has one entry for each committed step of the present session (turn, step, record); for
 * steps that drafted, the tree's nodes as the log packs them: token, parent, fate, three floats;
 * and the emitted tokens, each with its log probability and its rival. Depths and ancestors follow
 * from these. Cells, pages and plans are not kept.
 *
 * Bounds: RING_STEPS entries of 152 bytes, RING_NODES nodes of 20 bytes and RING_TOKENS tokens of
 * 16 bytes, 5.9 MB, of which the operating system provides what has been written. Entries, nodes
 * and tokens are three rings; the oldest step is dropped when one of them is full, so the ring
 * always holds a contiguous range of steps that ends with the newest: 16,384 steps of chains of 5
 * that emit 4 tokens, or 2,048 of trees of 63 nodes.
 *
 * Order: turn numbers of a session only grow, and step numbers within a turn, so entries are sorted
 * by (turn, step) and found by bisection. An undone turn's steps stay. A fork keeps its
 * parent's steps, on which it is based; any other session begins empty.
 *
 * Threads: the owner's lock guards it (the engine's thread pushes, views copy). A push writes one
 * entry, its nodes and its tokens; nothing is allocated after the opening. */
#pragma once

#include "engine/backend.h"

enum { RING_STEPS = STEPS_KEPT, RING_NODES = 131072, RING_TOKENS = 65536 };

struct ring_token {
    int32_t token;
    struct token_fact fact;
};

struct ring_entry {
    struct step_rec rec;
    uint64_t node;  /* number of its first node, counted over all nodes ever pushed */
    uint64_t token; /* the same of its tokens */
    int turn, step;
    struct pages_held held;
    int n_node; /* 0: the step drafted nothing */
    int n_token;
};

struct step_ring {
    struct ring_entry *entry; /* (RING_STEPS) entry number i is at i % RING_STEPS */
    struct tree_node *node;   /* (RING_NODES) the same */
    struct ring_token *token; /* (RING_TOKENS) the same */
    uint64_t first, end;      /* numbers of the entries held: [first, end) */
    uint64_t node_end, token_end; /* nodes and tokens ever pushed */
    uint64_t drafted;         /* number of the newest entry that drafted, plus one; 0: none */
};

void ring_open(struct step_ring *r);
void ring_close(struct step_ring *r);
void ring_clear(struct step_ring *r);
/* Drops the steps of turns after `turn`: the session has gone back to its end. */
void ring_cut(struct step_ring *r, int turn);
/* Adds the newest step with the tokens that it emitted; tree NULL or of one node: it drafted
 * nothing. (turn, step) must be greater than those of the step before. */
void ring_push(struct step_ring *r, int turn, int step, const struct step_rec *rec,
               const struct tree *tree, const int32_t *token, const struct token_fact *fact,
               int n_token, const struct pages_held *held);
/* The entry of a step; NULL: the ring does not hold it. */
const struct ring_entry *ring_find(const struct step_ring *r, int turn, int step);
/* Entry number i of those held, 0: the oldest. */
const struct ring_entry *ring_at(const struct step_ring *r, uint64_t i);
/* The newest entry that drafted; NULL: none that is held did. */
const struct ring_entry *ring_drafted(const struct step_ring *r);
/* The tree of an entry of this ring; n == 0: none. */
void ring_tree(const struct step_ring *r, const struct ring_entry *e, struct tree *out);
/* Its tokens and their facts: (e->n_token). */
void ring_tokens(const struct step_ring *r, const struct ring_entry *e, int32_t *token,
                 struct token_fact *fact);
/* The functions of struct steps_ops, for the steps held. */
void ring_range(const struct step_ring *r, struct step_range *out);
int ring_latest(const struct step_ring *r, struct step_info *out, int max);
void ring_view(const struct step_ring *r, const struct ring_entry *e, struct step_view *out);
