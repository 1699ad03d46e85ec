/* cycle.h - the rig (models, pools, buffers on one device) and the cycle that extends lanes.
 *
 * A lane is one sequence with its tokens: seq.committed of them have KV, the last one is pending
 * (sampled or given, not yet run). lane_extend() runs prompt tokens, lane_step() one cycle for a
 * batch of lanes. The phases are draft, verify, accept, commit, follow (the drafter takes in what
 * was committed). Everything that can fail happens before the commit of the first lane, the
 * reservation, plan and check of the drafter's pass included: when a step fails, no lane has
 * changed. Engine thread.
 */
#ifndef AERIE_CYCLE_H
#define AERIE_CYCLE_H

#include "engine/bugs.h"
#include "engine/draft/head.h"

struct rig;
struct lane;

/* Where historical faults (faults.c) get into a cycle. A NULL member is not called. */
struct cycle_hooks {
    /* Replaces the cells of src that a fork shares: those that are committed. */
    int (*shared)(const struct rig *r, const struct lane *src);
};

struct rig {
    struct device dev;
    struct model *m;
    struct net net;
    struct drafter *drafter; /* NULL: none */
    struct kv kv;
    struct pass pass;
    struct fused *fused; /* NULL until it is needed */
    bool fuse;           /* cycles of one lane run as one (fused.h) where that is possible ... */
    bool record;         /* ... and are recorded where the device can */
    uint64_t n_fused, n_replayed; /* cycles that took that road; those that replayed a record */
    /* The host's part of the last of them, in nanoseconds: until the launch, beside the device, and
     * from its results to the end. */
    struct { uint64_t before, during, after; } host;
    int context;  /* most tokens of a lane */
    int parts;    /* of an extend: 2 attends to the cached prefix apart; 0 or 1: together */
    int max_rows; /* of one pass */
    int32_t stop[MAX_STOP];
    int n_stop;
    struct bugs bugs; /* the historical faults that are on; set by rig_set_bugs() */
    struct cycle_hooks hook;
    uint64_t slots; /* of the drafter in use, one bit each */
    kbuf logits;    /* (max_logits, vocab) */
    int max_logits;
    kbuf some;   /* (MAX_STEPS + 1, vocab) the rows of an accepted path */
    kbuf ids, p, u, row, logp, idx, pair_src, pair_dst, mask;
};

struct rig_shape {
    int page_size, context;
    int full_pages, swa_pages, draft_pages; /* 0: derived from the context */
    int max_rows;                           /* 0: 512 */
    int lanes;                              /* that may live at once, 0: 1 */
    enum kv_type kv;
    bool shorten; /* a context that does not fit the device gives way to the longest that does */
    const struct bugs *bugs; /* historical faults that are on from the start; NULL: none */
};

/* draft may be NULL. The models must outlive the rig; on failure everything is closed. What does
 * not fit the device fails before anything is uploaded, and *e says what would (fit.h). */
bool rig_open(struct rig *r, struct device dev, struct model *m, struct draft *draft,
              const struct rig_shape *shape, struct err *e);
void rig_close(struct rig *r);
void fused_close(struct rig *r); /* what fused.c keeps in it */
/* Switches the historical faults of this rig, between two passes. Every other rig keeps its own. */
void rig_set_bugs(struct rig *r, const struct bugs *on);
/* Whether a token ends a reply. */
bool rig_stops(const struct rig *r, int32_t id);
/* Ids that must never be sampled (no string): mask[id] != 0. n <= vocab. */
bool rig_mask(struct rig *r, const uint8_t *mask, int n, struct err *e);

struct lane {
    struct seq seq;
    struct ids tok;
    struct guess guess; /* of the drafter, for the pending token; n == 0: it cannot draft now */
    int slot;           /* of the drafter, plus one; 0: none yet */
    float *tap;         /* captured states of cell committed - 1, once parked; NULL: none */
    int tap_row;        /* where they are on the device since the last pass, -1: nowhere */
    struct sampling how;
    uint64_t seed, draws;
    int force; /* for benchmarks: rows of the tree to accept, whatever is sampled; 0: the truth */
    /* the last step */
    struct step_rec rec;
    struct tree tree; /* n == 1: nothing was drafted */
    int n_new;        /* tokens it appended to tok */
    bool stopped;     /* the last of them ends the reply */
};

void lane_free(struct rig *r, struct lane *l);
/* Saves what the device knows of the last cell, so that another pass may overwrite it. Waits for the
 * device: not under the pass's lock. */
void lane_park(struct rig *r, struct lane *l);
/* dst, empty, continues where src stands; all pages are shared. src is parked. */
void lane_fork(struct rig *r, struct lane *src, struct lane *dst);

/* Whether the drafter can go on from here: its slots reach the committed length. */
bool lane_can_follow(const struct rig *r, const struct lane *l);

/* The result of a lane's pass before its commit; lane_commit() makes it final. */
struct outcome {
    struct step_rec rec;
    int n_cells; /* of the target, from the committed length on */
    int n_new;   /* tokens appended: 0 for a prompt chunk that is not the last */
    int32_t token[MAX_STEPS + 1];
    uint64_t draws; /* uniforms drawn, these included */
    int drafted;    /* the draft's final cells then; -1: as many as before */
};
/* The commit phase, of stepped and fused cycles and of prompts: cannot fail. Under the pass's lock. */
void lane_commit(struct rig *r, struct lane *l, const struct outcome *o);

/* Runs tok[committed, upto). With `last`, upto == tok.n and the next token is sampled and appended.
 * draft: keep the drafter in step. False: nothing is committed (*e: pool short, rule violated,
 * stopped by net.stop, device). */
bool lane_extend(struct rig *r, struct lane *l, int upto, bool last, bool draft, int topk,
                 struct err *e);

struct step_limits {
    int max_new; /* tokens the lane may still emit, >= 1 */
};
/* One cycle for n lanes. shape NULL: plain decoding. False: nothing of any lane is committed. */
bool lane_step(struct rig *r, struct lane **lane, const struct step_limits *lim, int n,
               const struct tree_shape *shape, struct err *e);

/* The uniform number `counter` of a seed, in [0, 1): splitmix64 over both, 24 bits. */
static inline float uniform(uint64_t seed, uint64_t counter)
{
    return (float)(mix64(mix64(seed) ^ (counter * 0xD1342543DE82EF95ull + 1)) >> 40) * 0x1p-24f;
}

#endif
