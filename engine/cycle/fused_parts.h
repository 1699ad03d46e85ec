/* fused_parts.h - what the files of the fused cycle share: fused.c (plans, launch), fused_layout.c
 * (buffers, inbox, outbox), fused_ops.c (the device operations), fused_results.c (the outbox, read
 * and checked). Private to them.
 */
#pragma once

#include "engine/cycle/fused.h"

enum { MAX_RECORDINGS = 16 };
enum { TIME_BEGIN, TIME_GROWN, TIME_SAMPLED, N_TIMES };

/* The key of a recorded run: everything it depends on besides the contents of buffers. */
struct graph_key {
    int steps, topk, nodes; /* steps 0: plain */
    int guesses;            /* of the drafter's pass after the tree */
    bool captures;          /* the target's pass leaves its captured states */
    int slot;               /* of the drafter; steps > 0 */
    int draft_window;       /* of struct kv; steps > 0 */
    int cols;               /* of the page tables */
    struct sampling how;
};

struct recording {
    struct graph_key key;
    struct kgraph *graph; /* NULL: not recorded yet */
    uint64_t used;        /* clock of the last use, 0: this entry is free */
};

/* State that is kept from one fused cycle to the next. */
struct fused {
    struct page_list list;    /* the pages of all plans */
    enum check_level checked; /* level at which the list's unchanged columns were checked */
    kbuf mem;                 /* of the layout */
    struct recording recording[MAX_RECORDINGS];
    uint64_t clock;
};

/* The buffers of a run, i32 and f32 (kernels.h describes each). The first `in` bytes are the
 * inbox's image, [out0, out1) is the outbox's; plans whose rows the device fills in lie in both. */
struct fused_layout {
    kbuf root, prefix, drafted, state, limit, force, stop, draws;
    kbuf guess, guess_logp;             /* (topk) of the root */
    kbuf cells, full, swa;              /* slots of the draft's scratch cells, of the tree's rows */
    kbuf which;                         /* (steps) rows of the block that guess */
    kbuf copied;                        /* (steps * topk) of a row of copy: which guess it has */
    kbuf plan_extend, plan_draft, plan_verify;
    size_t in, out0, out1;
    kbuf n_nodes, parent, parent0, logp, score, u;
    kbuf choice, choice_p, node_logp;   /* (nodes); node_logp: without the root */
    kbuf best, best_logp;               /* (nodes, DIGEST_BEST) */
    kbuf n_path, path, last, src[2], dst[2];
    kbuf unused[2];                     /* (topk) of a level that no pass extends */
    kbuf copy, copy_logp;               /* (steps, topk, topk) the children of all nodes */
    kbuf next, next_logp;               /* (guesses) after the new root, draft ids */
    kbuf time[N_TIMES];                 /* (2) words of nanoseconds */
    struct k_tree tree;
    size_t end;
};

/* A fused cycle in progress. */
struct fused_cycle {
    struct cycle *cycle;
    struct runtime *rt;
    struct fused *fused;
    struct lane *lane;
    struct cycle_lane *part; /* the cycle's only lane */
    struct graph_key key;
    int nodes, scratch;   /* rows of verify; draft cells of all levels, or of the block */
    int block;            /* rows of the drafter's block; 0: it has none, or runs level by level */
    struct plan *draft, *verify, *extend; /* the pass's own; NULL: the shape has none */
    struct fused_layout at;
    char *in;
    const char *out;
};

/* Assigns every buffer its place, with more memory if that is needed, and opens the inbox. */
bool fused_layout(struct fused_cycle *run, struct err *e);
void fused_forget_recordings(struct runtime *rt); /* they have the places of the buffers */
void fused_fill_inbox(struct fused_cycle *run);
/* Where a buffer lies in the outbox, once the results are there. */
const void *fused_out(const struct fused_cycle *run, kbuf b);
int32_t fused_out_int(const struct fused_cycle *run, kbuf b);

/* Enqueues every operation between inbox and outbox. */
void fused_operations(struct fused_cycle *run);

/* Reads the outbox into the cycle: tree, outcome, guess, device times. False: a choice is no token,
 * or what the device filled in violates a rule. Takes the pass's lock. */
bool fused_results(struct fused_cycle *run, struct err *e);
