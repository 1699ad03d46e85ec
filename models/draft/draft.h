/* draft.h - declarations shared by draft.c and the loaders of the two kinds of drafts. */
#ifndef AERIE_MODELS_DRAFT_H
#define AERIE_MODELS_DRAFT_H

#include "models/families/families.h"

/* A draft being loaded. */
struct drafting {
    struct draft *d;
    const struct model *target;
    const char *config_path;
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

/* Reads an I64 or I32 tensor of n entries into a new array, which the caller frees. NULL and an
 * error if an entry is outside of [min, max]. */
int64_t *draft_read_ints(struct drafting *g, const struct tensor *t, int64_t n, int64_t min,
                         int64_t max);

/* Sets the error "CONFIG: the draft does not fit the target: WHAT is HAS, expected EXPECTED";
 * returns false. */
bool draft_misfit(struct drafting *g, const char *what, long long has, long long expected);

#endif
