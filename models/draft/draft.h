/* draft.h - declarations shared by draft.c and the loaders of the kinds of drafts. */
#pragma once

#include "models/families/families.h"

/* A draft being loaded. */
struct drafting {
    struct draft *d;
    const struct model *target;
    const char *config_path;
    struct buf config; /* its text */
    const char *capture; /* boundaries that the user gave, e.g. "2,4,5", or NULL */
    const struct loading *progress;
    struct conf top, own; /* config.json; the object in it that may hold the draft's own keys
                             (eagle_config, dflash_config), else the same */
    struct binder b;     /* owns the open checkpoint */
};

/* The object that holds a key which may stand in either. */
static inline const struct conf *place_of(const struct drafting *g, const char *key)
{
    return conf_has(&g->own, key) ? &g->own : &g->top;
}

/* Each reads the config, binds and loads the tensors, and checks that the draft fits the target.
 * False and the binder's error on failure; memory allocated so far belongs to *g->d. */
bool eagle3_load(struct drafting *g);
bool frozen_load(struct drafting *g);
bool dflash_load(struct drafting *g);

/* Finds the boundaries of the target that a head reads whose fc concatenates captured states: sets
 * capture, n_capture and capture_from. False and an error if fc takes another number of states than
 * the list has, or a boundary is out of range. dflash: by DFlash's keys, else EAGLE3's. */
bool draft_captures(struct drafting *g, const struct tensor *fc, bool dflash);

/* Of drafts that may share the target's embedding and head (fit.c): the prefixes of their names,
 * the tensors of a layer, and patterns of those that are not loaded: copies of the target's, which
 * training frameworks leave in the file. */
extern const char *const draft_roots[], *const draft_ignored[];
extern const struct tensor_spec draft_layer[];
/* Sets draft_vocab from the rows of lm_head and the config; `c` has the key, or none has. */
void fit_vocab(struct drafting *g, const struct conf *c, const char *key);
/* Checks widths and vocabularies against the target's, and which tensors the draft then needs; then
 * finds the captures (above) and fills the rope. width: where target_hidden_size may stand. False
 * and an error. */
bool fit_target(struct drafting *g, const struct conf *width, const struct tensor *fc, bool dflash);
/* Sets the extents that shapes of such a draft are made of; after fit_target() and the captures. */
void fit_extents(struct drafting *g);
void shape_extents(int64_t *x, const struct draft *d);
/* A draft of `layers` Llama layers, without tensors and without captures: the target's hidden size,
 * vocabulary and heads, MLPs `ffn` wide. False and *e, and *d is zeroed, if heads of that size have
 * no rope. The caller frees *d. */
bool draft_shape(struct draft *d, const char *kind, const struct model *target, int layers, int ffn,
                 struct err *e);
/* Loads d2t, and checks it and t2d. False and an error. */
bool fit_ids(struct drafting *g);
/* Loads the tensors that are bound, after a check that the checkpoint has no others than those that
 * match `ignored`. False and an error. */
bool draft_finish(struct drafting *g, const char *const *ignored);

/* Adds "DIR: " and a text to d->note, for people. */
void draft_note(struct draft *d, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Sets the error "CONFIG: the draft does not fit the target: WHAT is HAS, expected EXPECTED";
 * returns false. */
static inline bool draft_misfit(const struct drafting *g, const char *what, long long has,
                                long long expected)
{
    return err_set(g->b.e, ERR_MODEL, "%s: the draft does not fit the target: %s is %lld, expected "
                                      "%lld", show_path(g->config_path).s, what, has, expected);
}
