/* pair.h - finds the draft of a target, and the target of a draft, where nobody named it.
 *
 * A draft lies in its target's folder (any folder in it, or a file beside a GGUF of the hub's
 * cache), beside the target, or in the cache beside the target's repository. Beside it, a draft
 * counts if it names the target: speculators_config.verifier.name_or_path of its config, base_model
 * of its model card (README.md) or of a GGUF's metadata; if it says nothing, the names of folders
 * are compared without words such as eagle3, assistant, draft, bf16 and Q4_K_M. Of several that say
 * nothing, the folder "draft" comes first.
 *
 * Only configs, model cards and headers are read. Nothing is fetched or written.
 */
#pragma once

#include "kernels/base.h"

struct found_draft {
    char *path; /* folder or GGUF file */
    char *from; /* where it was found, for people */
    char *why;  /* why it does not fit the target, for people; NULL: it fits, or it is the only one,
                   which was not tried */
    const char *kind; /* of a draft that was tried and fits: as in struct draft; else NULL */
    int rank;   /* pair.c's */
};

struct pairing {
    char *model;               /* the target; NULL: `path` is the target as it stands */
    struct found_draft *draft; /* (n) in order of preference, those that fit first */
    int n;
};

/* Fills *p for a model or draft at a path that hub_find() returned. False and *e (ERR_MODEL): the
 * path is a draft, and its target is not there; the message names it. */
bool pair_find(const char *path, struct pairing *p, struct err *e);
/* The drafts of a target's path alone, each of them tried. */
void pair_drafts(const char *target, struct pairing *p);
void pair_free(struct pairing *p); /* accepts a zeroed one */

/* Calls fn with the path of each model that lies in the folder of `path` or beside it, and then of
 * each one in the hub's cache; from: where, for people. Drafts are left out. */
void pair_models(const char *path, void (*fn)(void *arg, const char *path, const char *from),
                 void *arg);
