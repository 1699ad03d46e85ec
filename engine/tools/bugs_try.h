/* bugs_try.h - runs the smallest input of each historical fault on a real model.
 *
 * An input runs three times, each time on a runtime of its own: without the fault, with the fault
 * and the checker, and with the fault and no checker. The results of the first and the third run
 * are compared row by row. Engines may be running meanwhile. Runs on the caller's thread. */
#pragma once

#include "engine/bugs.h"
#include "engine/run/forward.h"

struct bug_outcome {
    char needs[128];    /* what the models at hand lack to show the fault; empty: nothing */
    char scene[160];    /* the input */
    char caught[512];   /* the checker's message; empty: there was none */
    bool rule_right;    /* the message names the rule that the fault violates */
    int prevented;      /* attention kernels that the checker kept from being launched */
    int rows;           /* result rows of the run without the checker */
    int wrong, first;   /* how many of them are wrong; the first one (-1: none) */
    int expected_first; /* the first row that must be wrong; >= rows: the run must end before it */
    int nan;            /* rows that hold a NaN */
    float worst;        /* largest difference in the other wrong rows; 0: there are none */
    char stopped[256];  /* the error that ended the run without the checker early; empty: none */
};

/* draft may be NULL. False: the run without the fault failed (*e). */
bool bug_try(struct device dev, struct model *m, struct draft *draft, enum bug b, int variant,
             struct bug_outcome *o, struct err *e);
/* The same for the command line: loads the models from folders on the CPU and appends the outcome
 * as text or as one JSON array. False: the checker did not name the rule, no result was wrong, or
 * an error. */
bool bug_try_text(const char *model, const char *draft, const char *which, bool json,
                  struct buf *out, struct err *e);
