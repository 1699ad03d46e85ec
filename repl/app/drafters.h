/* drafters.h - which drafter a session's turns had, and what each drafter did.
 *
 * A session has a run for each time its backend was opened: by another process, or by /draft. The
 * log's runs name their drafts. Main thread only. */
#pragma once

#include "repl/repl.h"

struct drafter_use {
    char *name;     /* its path, "ngram" or "none" */
    int first, last; /* turns; first 0: none yet */
    struct draft_report drafts; /* with drafters_count() */
    uint64_t steps, tokens, us; /* the same: of replies; time of draft, verify and commit */
};

struct drafters {
    struct drafter_use *v; /* (n) in the order of their first runs; the one in use is among them */
    int n;
    struct {
        int turn, who; /* from this turn on, an index of v */
    } *from; /* (n_from) ascending */
    int n_from;
};

/* Of the present session and those that it was forked from; without a log the drafter in use
 * alone. The caller frees it with drafters_free(). */
void drafters_read(struct drafters *d, struct app *a);
/* The index of a turn's drafter. */
int drafter_of(const struct drafters *d, int turn);
/* Adds the steps of the session to their drafters; source: as of app_each_step(). */
void drafters_count(struct drafters *d, struct app *a, char source[STEP_SOURCE]);
void drafters_free(struct drafters *d);
