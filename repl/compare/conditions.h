/* conditions.h - what two runs of a session were computed with differently, and what each
 * difference may change in their results. Main thread only. */
#pragma once

#include "engine/settings.h"
#include "repl/text/print.h"

/* A condition that differs between the two runs. */
struct condition {
    char name[32];
    char *a, *b; /* its values, owned; "" if the run does not record one */
    unsigned may; /* MAY_* (engine/settings.h): what it may change in the results */
};
struct conditions {
    struct condition *at;
    int n;
    unsigned may; /* `may` of all conditions together */
};
/* about: facts of the run; settings: lines in force. Either may be NULL. */
void conditions_read(struct conditions *c, const char *about_a, const char *settings_a,
                     const char *about_b, const char *settings_b);
/* Adds a condition, unless there is one of this name. */
void conditions_add(struct conditions *c, const char *name, const char *a, const char *b,
                    unsigned may);
/* For a turn in which pages ran short: other pages, trees or chunks fill a pool elsewhere, so each
 * condition that changes those may change `may`, too. */
void conditions_short(struct conditions *c, unsigned may);
void conditions_free(struct conditions *c);
/* "page_size 16 | 4, draft 3279a22d5b8d | none"; those that may change any of `may`. */
void conditions_text(const struct conditions *c, unsigned may, struct buf *out);
/* Appends what `may` stands for, as "trees and chunks, page numbers". */
void may_text(unsigned may, struct buf *out);
/* The member "changed", for programs only: an array of {"name", a, b, "may_change"}; a, b: the
 * keys for the values of the two runs. */
void conditions_list(const struct conditions *c, const char *a, const char *b,
                     const struct printer *to);
