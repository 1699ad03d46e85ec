/* weights.h - tensor-name tables, and binding them to a checkpoint. Shared by target and drafts.
 *
 * A table row (struct tensor_spec) gives the name of one struct tensor in the file, its dimensions,
 * its types, and the condition under which the model has it. Dimensions are symbolic (enum extent);
 * the config decides their values, so a wrong shape is refused before memory is allocated. Every
 * tensor of the files is bound, or ignored by name, or refused by name.
 */
#pragma once

#include "models/checkpoint/json.h"
#include "models/models.h"
#include "models/checkpoint/store.h"

enum extent {
    X_NONE, X_ONE, X_HIDDEN, X_IN, X_VOCAB, X_Q, X_KV, X_HEAD_DIM, X_HEADS, X_FFN, X_EXPERTS,
    X_EXPERT_FFN, X_EXPERT_FFN2, X_HIDDEN_BLOCKS, X_EXPERT_FFN_BLOCKS, X_GATE, X_V, X_O, X_BLOCK,
    X_PLE, X_PLE_VOCAB,
    X_PLE_ALL, X_TARGET, X_TARGET2, X_CAPTURED, X_DRAFT_VOCAB, X_CENTROIDS, X_FUSED,
    X_TWO, X_TAPS, X_KERNELS, X_RANK, X_STATE_RANK, N_EXTENT,
};

enum when {
    ALWAYS, IF_PRESENT, IF_UNTIED, IF_QKV_BIAS, IF_KV_BIAS, IF_V_BIAS, IF_O_BIAS, IF_OWN_KV,
    IF_OWN_V, IF_QK_NORM, IF_K_NORM, IF_DENSE, IF_SHARED, IF_MOE, IF_MXFP4, IF_IN_OUT,
    IF_HALVES, IF_PLE, IF_GATE, IF_SINKS,
};

enum { MAX_STACKED = 2 };

enum content { FLOATS, BYTES }; /* BF16, F16 or F32; U8 */

struct tensor_spec {
    const char *name; /* below the prefix; NULL ends a table */
    size_t at;        /* offset of the struct tensor in struct layer, model or draft */
    enum extent dim[4];
    enum when when;
    enum content content;
    const char *older; /* another name, under which the tensor is looked for if `name` is not
                          there */
    bool rotates; /* its rows are dimensions that rope rotates */
    int values; /* dimensions of values are its rows (1) or columns (2) */
    bool by_row; /* a matrix of which only single rows are read */
    bool unused_ok; /* a layer that shares K and V may have the tensor, which is not loaded */
    int fused;   /* in the first row of so many: these have one name, that of a matrix of the file
                    whose rows are theirs, one after another; 0: none */
    int stacked; /* in the first row of so many: each is a matrix of every expert, "*" in its name
                    being the expert's number; without it one tensor of the file has those of all
                    experts. They lie one after another in one tensor, an expert's before the next
                    one's; 0: none */
    bool instead; /* of a stacked row: read if the tensor of the row before, which has its place in
                     the model, is not there */
};

/* Whether the tensor is a matrix of which only single rows are read: one with a row per expert, or
 * one that says so. */
static inline bool spec_by_row(const struct tensor_spec *s)
{
    return s->by_row || (s->dim[0] == X_EXPERTS && s->dim[1] != X_NONE && s->dim[2] == X_NONE);
}

/* {SPEC(layer, in_norm, "input_layernorm.weight", X_HIDDEN), .when = ...} */
#define SPEC(type, member, name_, ...)                                                             \
    .name = (name_), .at = offsetof(struct type, member), .dim = {__VA_ARGS__}

struct binder {
    struct safetensors *st;
    bool *used; /* (st_count) bound, or accepted without being loaded */
    struct tensor_load *load;
    int n_load, n_stack;
    bool rotates; /* rows of the present layer's heads are loaded in another order */
    const struct config *cfg;
    int64_t x[N_EXTENT];
    struct err *e;
};

/* Takes ownership of *st and sets the extents that the config alone decides. */
void binder_open(struct binder *b, struct safetensors *st, const struct config *cfg,
                 struct err *e);
void binder_close(struct binder *b); /* closes st too */

/* The extents that a config decides. (binder_open() calls this; call it again if the config changes
 * afterwards.) */
void extents_of_config(int64_t *x, const struct config *g);

/* The first tensor named PREFIX followed by NAME that the checkpoint has and that is not used yet,
 * or NULL. The list of prefixes ends with a NULL. */
const struct tensor *binder_find(const struct binder *b, const char *const *prefix,
                                 const char *name);
/* Binds the tensors of a table into *base, the struct that the table's offsets refer to. The layer
 * l and its index decide conditions and extents; NULL outside of layers. False and *e (ERR_MODEL):
 * a tensor is missing, or of the wrong type or shape. */
bool binder_bind(struct binder *b, const struct tensor_spec *spec, const char *const *prefix,
                 void *base, const struct layer *l, int index);
/* Marks a tensor as used that is not loaded through the binder. */
void binder_mark_used(struct binder *b, const struct tensor *t);
/* Marks the second copy of a tied tensor as used. False and *e if its content differs from `of`. */
bool binder_use_copy(struct binder *b, const struct tensor *copy, const struct tensor *of);
/* Refuses the first tensor that is not used and matches no fnmatch() pattern of `ignored`. */
bool binder_refuse_unused(const struct binder *b, const char *const *ignored);

/* ---- shapes without a checkpoint ---- */

/* Memory for the names of tensors without data, and the sum of the tensors' sizes. */
struct namer {
    char *all; /* owned by the model afterwards */
    size_t room, used;
    uint64_t bytes;
};
void namer_open(struct namer *n, int layers);
/* Sets name, type, shape and size of one tensor of a table; data stays NULL. */
void shape_tensor(const struct tensor_spec *s, const int64_t *x, const char *prefix, void *base,
                  struct namer *names);
/* The same for every row of a table whose condition holds, IF_PRESENT left out. */
void shape_tensors(const struct tensor_spec *spec, const struct config *g, int64_t *x,
                   const char *prefix, void *base, const struct layer *l, int index,
                   struct namer *names);

/* Loads all bound tensors into a new store; config: the text of the config. *bytes is the sum of
 * their sizes, sha the SHA-256 that models.h defines (struct model, `sha`); `what` names the model
 * in progress reports. */
bool binder_load(struct binder *b, const char *what, const struct buf *config, struct store **store,
                 uint64_t *bytes, char sha[65], const struct loading *p);

/* Reads an I64 or I32 tensor of n entries into a new array, which the caller frees. NULL and an
 * error if an entry is outside of [min, max]. */
int64_t *binder_read_ints(const struct binder *b, const struct tensor *t, int64_t n, int64_t min,
                          int64_t max);

/* Calls fn for those of n tensors that the model has; part of model_each() and draft_each(). */
bool each_tensor(struct tensor *tensors, int n, struct store *store,
                 bool (*fn)(struct tensor *t, void *arg, struct err *e), void *arg, struct err *e);
