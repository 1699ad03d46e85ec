/* accepted.h - what the steps of a session say about acceptance: by depth, by length of the
 * context, at the edge of the window, by kind of token; and how the first rejected guess of each
 * cycle came about. Main thread only. */
#pragma once

#include "engine/event.h"

/* A part of a whole; 0 of nothing. */
static inline double ratio(uint64_t part, uint64_t whole)
{
    return whole ? (double)part / (double)whole : 0;
}

/* Kinds of tokens, by their texts; inside a code fence every token is code. */
enum token_kind { KIND_CODE, KIND_DIGITS, KIND_PUNCTUATION, KIND_WORDS, KIND_SPACE, N_KINDS };
extern const char *const token_kind_name[N_KINDS];

/* Follows code fences, three back-quotes in a row, through the tokens of a reply. {0}: at its
 * beginning. */
struct fence {
    bool open;
    int ticks; /* back-quotes at the end of the text so far */
};

struct kind_count {
    uint64_t drafted, accepted; /* nodes of trees */
    uint64_t emitted, bonus;    /* tokens of replies; those of them that no draft held */
};

/* Where the window's edge is in a cycle: all tokens fit the window; the window has been full for
 * fewer than W tokens; for longer. */
enum edge { EDGE_BEFORE, EDGE_AT, EDGE_PAST, N_EDGES };
extern const char *const edge_name[N_EDGES];

struct some_drafts {
    uint64_t cycles, drafted, accepted, first; /* first: cycles that accepted at depth 1 */
};

struct accepted {
    struct draft_sums drafts;
    struct some_drafts range[DRAFT_RANGES]; /* by draft_range_first() */
    struct some_drafts edge[N_EDGES];
    struct kind_count kind[N_KINDS];
    int window;              /* of the target; 0: none */
    int longest;             /* context before a step */
    uint64_t plain;          /* steps of replies that drafted nothing */
    uint64_t tokens;         /* of replies */
    uint64_t looped;         /* of them: in a text that repeats itself */
    uint64_t judged;         /* cycles whose path ended at a rejected guess or without one */
    uint64_t ended;          /* of them: no guess was left below the accepted path */
    uint64_t sampled_away;   /* of them: the guess was the target's best token, but sampling chose
                                another */
    uint64_t beside;         /* cycles whose choice after the path was guessed, but in another place
                                of the tree */
    uint64_t trees;          /* cycles whose trees are known */
    int depth, nodes;        /* of the deepest tree; of the largest one, root included */
    /* while steps are added */
    struct fence fence;
    int turn;
    struct ids reply;        /* of the turn */
};

/* Adds a step. The token texts: NULL: kinds are not counted. tree, fact may be NULL: not known. */
struct accepted_step {
    int turn;
    const struct step_rec *rec;
    const struct tree *tree;
    const int32_t *token; /* (n) those that the step added to the reply */
    const struct token_fact *fact; /* (n) */
    int n;
};
typedef const char *token_text(void *arg, int32_t id, size_t *n);
void accepted_add(struct accepted *a, const struct accepted_step *s, token_text *text, void *arg);
void accepted_free(struct accepted *a);

/* p_i: cycles that accepted at depth d, of all cycles; and of those that accepted at depth d -
 * 1. */
double accepted_at(const struct draft_sums *s, int depth);
double accepted_after(const struct draft_sums *s, int depth);
