/* draft.h - what the two kinds of draft loaders share with draft.c. */
#ifndef AERIE_MODELS_DRAFT_H
#define AERIE_MODELS_DRAFT_H

#include "models/families/families.h"

/* A draft being loaded. */
struct drafting {
    struct draft *d;
    const struct model *target;
    const char *config_path;
    const char *capture; /* boundaries given by the user, or NULL */
    const struct progress *progress;
    struct conf top;     /* config.json */
    struct binder b;     /* owns the open checkpoint */
};

/* Each reads the config, binds and loads the tensors, and checks that the draft fits the target.
 * On failure the error is set and what was allocated hangs on *d. */
bool eagle3_load(struct drafting *g);
bool frozen_load(struct drafting *g);

/* Which boundaries of the target an EAGLE3 head wants: fills capture, n_capture, capture_from.
 * `n` is how many its fc takes. */
bool eagle3_captures(struct drafting *g, int n);

/* Reads an I64 or I32 tensor of `n` entries into a new array; NULL and an error if one is outside
 * [min, max]. */
int64_t *draft_read_ints(struct drafting *g, const struct tensor *t, int64_t n, int64_t min,
                         int64_t max);

/* "config.json: KEY ... does not fit the target": false. */
bool draft_misfit(struct drafting *g, const char *what, long long has, long long expected);

#endif
