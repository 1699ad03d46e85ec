/* bugs_try.h - the smallest input of each historical fault, run on a real model.
 *
 * A scene runs three times on fresh pools: as it is, with the fault on under the checker, and with
 * the fault on and the checker off. What the passes computed is compared row by row. The switches
 * are those of the scene's own runtime, so engines may be running. The caller's thread. */
#ifndef AERIE_BUGS_TRY_H
#define AERIE_BUGS_TRY_H

#include "engine/bugs.h"
#include "engine/run/forward.h"

struct bug_outcome {
    char needs[128];    /* not empty: the models at hand cannot show it, this is missing */
    char scene[160];    /* what was run */
    char caught[512];   /* the checker's message; empty: it said nothing */
    bool rule_right;    /* it names the rule that must catch the fault */
    int prevented;      /* attention kernels of the right run that were not launched then */
    int rows;           /* rows of results with the checker off */
    int wrong, first;   /* of them wrong; the first (-1: none) */
    int expected_first; /* where the scene says that the damage begins; rows: past the results */
    int nan;            /* rows that hold a NaN */
    float worst;        /* largest difference of the others */
    char stopped[256];  /* how the run without the checker ended early; empty: it did not */
};

/* draft may be NULL. False only when a run that ought to work does not (*e). */
bool bug_try(struct device dev, struct model *m, struct draft *draft, enum bug b, int variant,
             struct bug_outcome *o, struct err *e);
/* The same with models loaded from folders on the CPU, as text or one JSON object, for the command
 * line. False: not caught by its rule, or no damage, or an error. */
bool bug_try_text(const char *model, const char *draft, const char *which, bool json,
                  struct buf *out, struct err *e);

#endif
