/* auto_shape.h - chooses the shape of the next draft tree from measured times and measured
 * acceptance (draft.shape = auto).
 *
 * Plain data: the state changes by auto_shape_take() only, which is a pure function of the state
 * and of what a step measured. A log keeps the shapes that were chosen, so a replay never measures.
 *
 * Model: a step of shape s yields 1 + A(s) * c(s) tokens in ns(s) nanoseconds.
 *   A(s)     expected accepted nodes: the sum over d = 1 .. steps of b(1) ... b(d); b(d) is the
 *            chance that a child at depth d is right: that of the draft's best child, which every
 * step
 *            that drafts measures, whatever its shape; of a tree with several children a node, also
 *            the chance that another one is right if the best is not, which steps of this shape
 *            measure (before: a prior)
 *   c(s)     accepted nodes of the steps of shape s over those that the model expected
 *   ns(s)    wall time of a step: a moving average in units of a common drift, so that shapes which
 *            have not run lately do not look fast when the machine gets slower or the context
 *            longer
 * The shape with the most tokens a second runs. A shape that never ran has an estimate that errs
 * towards fast, so a promising one is tried. A rival that was measured long ago runs again for some
 * steps (a probe); the less a probe is expected to cost, the sooner it runs. A switch needs an
 * advantage, and some steps since the last one. Engine thread.
 */
#pragma once

#include "engine/draft/drafter.h"
#include "engine/event.h"

enum { AUTO_SHAPES = 9, AUTO_GUESSES = 8 /* the greatest topk of them */ };

/* Candidate i, 0 <= i < AUTO_SHAPES, in the order of their rows; 0 is plain decoding. */
const struct tree_shape *auto_shape_at(int i);

enum auto_reason {
    AUTO_FIRST,  /* nothing was measured yet */
    AUTO_BEST,   /* the most tokens a second, as measured */
    AUTO_TRIED,  /* a shape that never ran and may be faster */
    AUTO_PROBED, /* a shape that was measured long ago and may be faster */
};

struct auto_measure {
    double ns;          /* a step, in units of `drift`; 0: never measured */
    double verify, level; /* of `ns`: the target's pass; one level of the draft */
    int runs;           /* steps, those included that are not measured */
    int n;              /* measured steps */
    uint64_t last;      /* number of the last of them */
    double accepted, expected; /* recent accepted nodes; those that the model expected */
    double failed, rescued;    /* recent nodes whose best child was wrong; of these, nodes with
                                  another child right */
};

struct auto_shape {
    bool ready;       /* false: auto_shape_init() comes first */
    int now;          /* the candidate that runs next */
    enum auto_reason why;
    int home;         /* the candidate to which a probe returns */
    int stay, left;   /* steps since the last switch; steps left of a probe */
    int wait;         /* steps until the next probe */
    uint64_t steps, switches;
    uint64_t drafted; /* number of the last step that drafted */
    double drift;
    double tried[MAX_STEPS + 1], hit[MAX_STEPS + 1]; /* recent, by depth */
    struct auto_measure of[AUTO_SHAPES];
};

/* The measurements of a step. */
struct auto_step {
    double ns, ns_draft, ns_verify; /* wall time; of it the phases */
    const struct tree *tree;        /* as accepted; n <= 1: nothing was drafted */
    int accepted;
};

/* first: the shape to begin with; the nearest candidate is used. */
void auto_shape_init(struct auto_shape *a, const struct tree_shape *first);
/* The shape of the next step. */
const struct tree_shape *auto_shape_next(const struct auto_shape *a);
/* A step of the shape auto_shape_next() has run; chooses the next one. */
void auto_shape_take(struct auto_shape *a, const struct auto_step *s);
/* Call it at the end of a turn: a probe does not continue in the next one. */
void auto_shape_rest(struct auto_shape *a);

/* For views: the expected tokens and time of a step of a candidate; ns 0: it never ran. */
double auto_shape_tokens(const struct auto_shape *a, int i);
double auto_shape_ns(const struct auto_shape *a, int i);
