/* draft.h - declarations shared by draft.c and the loaders of the two kinds of drafts. */
#ifndef AERIE_MODELS_DRAFT_H
#define AERIE_MODELS_DRAFT_H

#include "models/families/families.h"

/* A draft being loaded. */
struct drafting {
    struct draft *d;
    const struct model *target;
    const char *config_path;
    struct buf config; /* its text */
    const char *capture; /* boundaries that the user gave, e.g. "2,4,5", or NULL */
    const struct loading *progress;
    struct conf top;     /* config.json */
    struct binder b;     /* owns the open checkpoint */
};

/* Each reads the config, binds and loads the tensors, and checks that the draft fits the target.
 * False and the binder's error on failure; memory allocated so far belongs to *g->d. */
bool eagle3_load(struct drafting *g);
bool frozen_load(struct drafting *g);

/* Finds the boundaries of the target that an EAGLE3 head reads: sets capture, n_capture and
 * capture_from. n: the number of states that its fc concatenates. False and an error if the list
 * has another length or a boundary is out of range. */
bool eagle3_captures(struct drafting *g, int n);

/* Sets the error "CONFIG: the draft does not fit the target: WHAT is HAS, expected EXPECTED";
 * returns false. */
static inline bool draft_misfit(const struct drafting *g, const char *what, long long has,
                                long long expected)
{
    return err_set(g->b.e, ERR_MODEL, "%s: the draft does not fit the target: %s is %lld, expected "
                   "%lld", show_path(g->config_path).s, what, has, expected);
}

#endif
