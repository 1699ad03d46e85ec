/* drafter.h - drafters, which guess the next tokens: the interface between them and the engine.
 *
 * A lane is one sequence being extended; a batch is several. A drafter grows one tree of guesses a
 * lane. The table in drafter.c lists all drafters by name. A new drafter is one file that defines a
 * struct drafter_ops and one entry in that table; a drafter with weights also needs a loader in
 * models/draft/. Neural heads (EAGLE3, P-EAGLE, DFlash, frozen KV) share head.h. Engine thread.
 */
#pragma once

#include "engine/run/pass.h"

enum { MAX_TOPK = 16, MAX_STEPS = 16, MAX_LANES = 64 };

struct tree_shape {
    int steps; /* greatest depth; 0: plain decoding, and the drafter runs over the new cells later
                  (lane_catch_up()) */
    int topk;  /* children kept a level */
    int nodes; /* nodes verified, root included */
};

/* A neural head's state of one lane between steps: the first level of the next tree. */
struct guess {
    int n;                   /* first-level candidates: 0: none, the lane cannot draft */
    int32_t token[MAX_TOPK]; /* target ids */
    float logp[MAX_TOPK];
};

/* One lane that drafts. tree->n == 1 (the root) when a tree is to be grown. */
struct drafting {
    struct seq *seq;
    const struct guess *guess; /* of the head's last extend for this lane */
    int slot;                  /* where that extend kept its state */
    int max_depth;             /* >= 1 */
    struct tree *tree;
    const int32_t *token; /* (n_token) the lane's tokens; the last one, the root, is pending */
    int n_token;
};

struct drafter {
    const struct drafter_ops *ops;
    struct head *head; /* this drafter as a neural head (head.h); NULL: it is none */
};

/* The arguments of opening a drafter. */
struct drafter_setup {
    struct device dev;
    struct draft *w;    /* weights, used in place; those of a drafter without weights are empty */
    struct net *target;
    int slots;          /* of the draft pool, 0: there is none */
    enum kv_type kv;
    int max_rows;       /* of one extend pass */
};

struct drafter_ops {
    const char *name;  /* as in struct draft, on the command line and in logs */
    const char *about; /* a noun phrase for users: "an EAGLE3 head" */
    bool weightless;   /* chosen by its name; false: by a folder with weights */
    enum draft_kv kv;
    const struct head_ops *head; /* a neural head's (head.h); NULL: it is none */
    /* NULL and *e on failure. drafter_open() passes the drafter's own row, and sets ops. */
    struct drafter *(*open)(const struct drafter_ops *ops, const struct drafter_setup *s,
                            struct err *e);
    void (*close)(struct drafter *d);
    /* Whether a tree can be grown for the lane now. */
    bool (*ready)(const struct drafter *d, const struct drafting *lane);
    /* As drafter_grow(). */
    bool (*grow)(struct drafter *d, struct pass *ps, struct drafting *lane, int n,
                 const struct tree_shape *shape, struct err *e);
};

/* Loads the drafter `name`: a drafter without weights, or the folder of a draft for this target
 * (draft_load() describes the other arguments). A folder with the name of a drafter without weights
 * must be given as ./NAME. */
bool drafter_load(struct draft *d, const char *name, const struct model *target,
                  const char *capture, const struct loading *p, struct err *e);
/* The drafter of a loaded draft; NULL if w is NULL. */
const struct drafter_ops *drafter_ops_of(const struct draft *w);
/* Whose KV the draft's layers read; DRAFT_KV_NONE if w is NULL. */
enum draft_kv drafter_kv_of(const struct draft *w);
/* W of the draft's sliding layers, 0: none. The layers of a drafter that reads the target's KV
 * reach one key further than the target's: Hugging Face masks them by 0 <= q - k <=
 * sliding_window, against < in the target. */
int draft_window(const struct draft *w);

struct drafter *drafter_open(const struct drafter_setup *s, struct err *e);
void drafter_close(struct drafter *d);
/* Whether the drafter has slots in the draft pool. */
static inline bool drafter_owns_kv(const struct drafter *d)
{
    return d->ops->kv == DRAFT_KV_OWN;
}
/* Grows every lane's tree to the shape, or as deep as max_depth allows; a tree may stay as it is.
 * Every lane must be ready. False: a rule is violated or the pool is short. */
bool drafter_grow(struct drafter *d, struct pass *ps, struct drafting *lane, int n,
                  const struct tree_shape *shape, struct err *e);
