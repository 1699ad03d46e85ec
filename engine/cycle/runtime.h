/* runtime.h - the runtime: models, pools and buffers on one device.
 *
 * Lanes (lane.h) are the sequences that it extends, cycles (cycle.h) are how it extends them.
 * Engine thread.
 */
#pragma once

#include "engine/bugs.h"
#include "engine/draft/head.h"

struct runtime;
struct lane;
struct outcome;

/* Replacements by which historical faults (faults.c) change a cycle. NULL: nothing is replaced. */
struct cycle_hooks {
    /* In place of the number of cells of src that a fork shares: its committed cells. */
    int (*shared)(const struct runtime *r, const struct lane *src);
    /* In place of the number of tokens that a fork with a draft may take over where n tokens are
     * alike. */
    int (*pairs)(const struct lane *src, int n);
    /* Called with the outcome of a tree, which it may change. */
    void (*accepted)(const struct tree *t, struct outcome *o);
    /* In place of the number of cells against which the window's pages are released. */
    int (*passed)(const struct runtime *r, const struct lane *l, const struct outcome *o);
};

struct runtime {
    struct device dev;
    struct model *model;
    struct net net;
    struct drafter *drafter; /* NULL: none */
    struct kv kv;
    struct pass pass;
    struct fused *fused; /* of fused cycles (fused.h); NULL until the first one */
    bool fuse;           /* run a cycle of one lane fused where that is possible ... */
    bool record;         /* ... and record its operations as a graph where the device has graphs */
    uint64_t n_fused, n_replayed; /* fused cycles launched; those of them launched as a graph */
    /* Host time of the last fused cycle in nanoseconds: before the launch, while the device runs,
     * and from its results to the end. */
    struct { uint64_t before, during, after; } host;
    bool weights_seen;   /* an output was no number, and the weights were looked through ... */
    const struct tensor *odd_weight; /* ... and this one has what is no number; NULL: none */
    int context;  /* most tokens of a lane */
    int parts;    /* of a prompt pass: 2: attention to the cached prefix is computed apart; 0, 1 */
    int max_rows; /* of one pass */
    int32_t stop[MAX_STOP]; /* tokens that end a reply */
    int n_stop;
    struct bugs bugs; /* the historical faults that are on; set by runtime_set_bugs() */
    struct cycle_hooks hook;
    uint64_t slots;   /* drafter slots in use, one bit each */
    kbuf logits;      /* (max_logits, vocab) of the last pass */
    int max_logits;
    kbuf path_logits; /* (MAX_STEPS + 1, vocab) the rows of an accepted path */
    /* arguments of sampling and moves */
    kbuf ids, prob, uniform, row, logp, idx, pair_src, pair_dst, mask, changes, bans;
};

struct runtime_shape {
    int page_size, context;
    int full_pages, swa_pages;              /* 0: derived from the context */
    int max_rows;                           /* 0: 512 */
    int lanes;                              /* most lanes at the same time, 0: 1 */
    enum kv_type kv;
    bool shorten; /* if the context does not fit the device, use the longest one that does */
    const struct bugs *bugs; /* historical faults that are on from the start; NULL: none */
};

/* Uploads the models and allocates pools and buffers. draft may be NULL. The models must outlive
 * the runtime. False: nothing is left open. Whether the device has room: fit_shape() (fit.h). */
bool runtime_open(struct runtime *rt, struct device dev, struct model *model, struct draft *draft,
                  const struct runtime_shape *shape, struct err *e);
void runtime_close(struct runtime *rt);
/* Switches the historical faults of this runtime, between two passes. Every runtime has its own. */
void runtime_set_bugs(struct runtime *rt, const struct bugs *on);
/* Logits of rows [first, first + n) of the target's last pass, of which `rows` count; returns n, as
 * many as are left and as rt->logits has room for. */
int runtime_logits(struct runtime *rt, int first, int rows);
/* The target's most probable token after each of the first `rows` rows of its last pass, however
 * many of them its logits have room for at a time. Waits for the device; a failure shows at the
 * next sync(). */
void runtime_choices(struct runtime *rt, int rows, int32_t *choice);
/* Whether a token ends a reply. */
bool runtime_stops(const struct runtime *rt, int32_t id);
/* Ids that must never be sampled (they have no text): mask[id] != 0. n <= vocab. */
bool runtime_mask(struct runtime *rt, const uint8_t *mask, int n, struct err *e);
