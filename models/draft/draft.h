/* draft.h - declarations shared by draft.c and the loaders of the kinds of drafts. */
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
bool dflash_load(struct drafting *g);

/* Finds the boundaries of the target that a head reads whose fc concatenates captured states: sets
 * capture, n_capture and capture_from. False and an error if fc takes another number of states than
 * the list has, or a boundary is out of range. (EAGLE3's and DFlash's keys differ.) */
bool eagle3_captures(struct drafting *g, const struct tensor *fc);
bool dflash_captures(struct drafting *g, const struct tensor *fc);

/* Of drafts that may share the target's embedding and head (fit.c): the prefixes of their names. */
extern const char *const draft_roots[];
/* Sets draft_vocab from the rows of lm_head and the config; `c` has the key, or none has. */
void fit_vocab(struct drafting *g, const struct conf *c, const char *key);
/* Checks widths and vocabularies against the target's, and which tensors the draft then needs.
 * width: where target_hidden_size may stand. False and an error. */
bool fit_target(struct drafting *g, const struct conf *width);
/* Sets the extents that shapes of such a draft are made of; after fit_target() and the captures. */
void fit_extents(struct drafting *g);
/* Loads d2t, and checks it and t2d. False and an error. */
bool fit_ids(struct drafting *g);

/* Sets the error "CONFIG: the draft does not fit the target: WHAT is HAS, expected EXPECTED";
 * returns false. */
static inline bool draft_misfit(const struct drafting *g, const char *what, long long has,
                                long long expected)
{
    return err_set(g->b.e, ERR_MODEL, "%s: the draft does not fit the target: %s is %lld, expected "
                                      "%lld", show_path(g->config_path).s, what, has, expected);
}

#endif
