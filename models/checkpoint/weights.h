/* weights.h - tensor-name tables, and binding them to a checkpoint. Shared by target and drafts.
 *
 * A table row (struct slot) says: this struct tensor has this name in the file, these dimensions
 * and these types, and is there under this condition. Dimensions are words ("extents"), whose
 * numbers come from the config, so a wrong shape is refused before anything is allocated.
 * Every tensor of the files is bound, or listed as spare, or refused by name.
 */
#ifndef AERIE_MODELS_WEIGHTS_H
#define AERIE_MODELS_WEIGHTS_H

#include "models/checkpoint/json.h"
#include "models/models.h"
#include "models/checkpoint/store.h"

enum extent {
    X_NONE, X_ONE, X_HIDDEN, X_IN, X_VOCAB, X_Q, X_KV, X_HEAD_DIM, X_HEADS, X_FFN, X_EXPERTS,
    X_EXPERT_FFN, X_EXPERT_FFN2, X_HIDDEN_BLOCKS, X_EXPERT_FFN_BLOCKS, X_BLOCK, X_PLE, X_PLE_VOCAB,
    X_PLE_ALL, X_TARGET, X_TARGET2, X_CAPTURED, X_DRAFT_VOCAB, X_CENTROIDS, N_EXTENT,
};

enum when {
    ALWAYS, IF_PRESENT, IF_UNTIED, IF_QKV_BIAS, IF_KV_BIAS, IF_V_BIAS, IF_O_BIAS, IF_OWN_KV,
    IF_OWN_V, IF_QK_NORM, IF_K_NORM, IF_MOE, IF_MXFP4, IF_PLAIN_EXPERTS, IF_PLE,
};

enum content { FLOATS, BYTES }; /* BF16, F16 or F32; U8 */

struct slot {
    const char *name; /* below the prefix; NULL ends a table */
    size_t at;        /* offset of the struct tensor in struct layer, model or draft */
    enum extent dim[4];
    enum when when;
    enum content content;
    bool spare; /* a layer that reads another one's K and V may have it all the same, unused */
};

/* Whether the tensor has a row for each expert, of which only single ones are read. */
static inline bool slot_by_row(const struct slot *s)
{
    return s->dim[0] == X_EXPERTS && s->dim[1] != X_NONE && s->dim[2] == X_NONE;
}

/* {SLOT(layer, in_norm, "input_layernorm.weight", X_HIDDEN), .when = ...} */
#define SLOT(type, member, name_, ...)                                                             \
    .name = (name_), .at = offsetof(struct type, member), .dim = {__VA_ARGS__}

struct binder {
    struct safetensors *st;
    bool *taken; /* (st_count) */
    struct want *want;
    int n_want;
    const struct config *cfg;
    int64_t x[N_EXTENT];
    struct err *e;
};

/* Takes over *st, sets the extents that the config alone decides. */
void binder_open(struct binder *b, struct safetensors *st, const struct config *cfg,
                 struct err *e);
void binder_close(struct binder *b); /* closes st too */

/* The extents that a config decides; binder_open() sets those of the config as it is then. */
void extents_of_config(int64_t *x, const struct config *g);

/* The first of "PREFIX NAME" that is in the checkpoint and not taken yet; NULL. Prefixes end with
 * a NULL. */
const struct tensor *binder_find(const struct binder *b, const char *const *prefix,
                                 const char *name);
/* Binds a table's tensors into *base; `l` (NULL: none) and its index decide
 * conditions and extents. */
bool binder_bind(struct binder *b, const struct slot *slot, const char *const *prefix, void *base,
                 const struct layer *l, int index);
/* Marks a tensor as used though it is read elsewhere. */
void binder_take(struct binder *b, const struct tensor *t);
/* Takes a tied tensor's second copy, which must hold the same as `of`. */
bool binder_take_copy(struct binder *b, const struct tensor *copy, const struct tensor *of);
/* Refuses the first tensor that nothing took and that matches no fnmatch() pattern of `spare`. */
bool binder_finish(const struct binder *b, const char *const *spare);

/* Checks one tensor against what is expected of it. */
bool check_tensor(const struct binder *b, const struct tensor *t, const enum extent *dim,
                  enum content content);

/* ---- shapes without a checkpoint ---- */

/* Where the names of made-up tensors lie, and how many bytes all of them would take. */
struct namer {
    char *all; /* the model's to free */
    size_t room, used;
    uint64_t bytes;
};
void namer_open(struct namer *n, int layers);
/* Gives one tensor of a table its name, type and shape. */
void shape_tensor(const struct slot *s, const int64_t *x, const char *prefix, void *base,
                  struct namer *names);
/* The same for every row of a table whose condition holds, IF_PRESENT left out. */
void shape_tensors(const struct slot *slot, const struct config *g, int64_t *x, const char *prefix,
                   void *base, const struct layer *l, int index, struct namer *names);

/* Loads what was bound: *store, *bytes and the digest of models.h, which covers `config_path`. */
bool binder_load(struct binder *b, const char *what, const char *config_path, struct store **store,
                 uint64_t *bytes, char sha[65], const struct progress *p);

/* Calls fn for one tensor if it is there (model_each). */
bool each_tensor(struct tensor *t, struct store *store,
                 bool (*fn)(struct tensor *t, void *arg, struct err *e), void *arg, struct err *e);

#endif
