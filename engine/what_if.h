/* what_if.h - the result of computing one step twice: without and with changes. */
#pragma once

#include "engine/event.h"

/* One of the two results. */
struct what_if_side {
    bool failed; /* `why` says the cause: a violated rule, a pool that is short */
    char why[256];
    struct step_rec rec;
    struct tree tree; /* n <= 1: nothing was drafted */
    int32_t token[TREE_MAX];
    struct token_fact fact[TREE_MAX];
    int n_token;
};

struct what_if {
    char change[240]; /* "draft.topk=8 page_size=1" */
    char was[240];    /* the values of the same names in the turn: "draft.topk=4 page_size=16" */
    bool same;        /* the changed values are those of the turn: nothing was changed */
    int turn, step;   /* the step that would come next */
    struct what_if_side side[2]; /* without and with the changes */
    bool other_pools; /* the changed one ran on a second runtime: page digests cannot be compared */
    int n_context;    /* tokens that were computed there first */
    double ms;        /* time of the whole comparison */
};
