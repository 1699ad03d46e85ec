/* what_if.h - one step computed twice: as it is, and with something changed. */
#ifndef AERIE_WHAT_IF_H
#define AERIE_WHAT_IF_H

#include "engine/event.h"

/* One of the two. */
struct what_if_side {
    bool failed; /* why says it: a rule, a pool that is short */
    char why[256];
    struct step_rec rec;
    struct tree tree; /* n <= 1: nothing was drafted */
    int32_t token[TREE_MAX];
    struct token_fact fact[TREE_MAX];
    int n_token;
};

struct what_if {
    char change[240]; /* "draft.topk=8 page_size=1" */
    int turn, step;   /* the step that would come next */
    struct what_if_side side[2]; /* as it is, changed */
    bool other_pools; /* the changed one ran on a second runtime: page digests cannot be compared */
    int n_context;    /* tokens that were computed there first */
    double ms;        /* all that took */
};

#endif
