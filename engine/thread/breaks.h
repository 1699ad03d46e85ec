/* breaks.h - breakpoints, watches and the condition of /until: a list that is tested against one
 * step after another. The debugger of a live engine and the player of a recorded session use it. No
 * locks.
 */
#pragma once

#include "engine/thread/expr.h"

struct breakpoint {
    struct debug_break about;
    struct expr when;
    double last; /* of a watch: its value after the step before; NAN: unknown */
};

struct breaks {
    struct breakpoint at[MAX_BREAKS];
    int n, last_number;
    bool has_condition; /* of /until, for one pause */
    struct expr condition;
};

/* Adds one and returns its number; 0 and *e: the condition is wrong, or there are too many. */
int breaks_add(struct breaks *b, const char *expr, enum break_kind kind, struct err *e);
/* number 0: all that pause, -1: all displays. False and *e: there is none of the number. */
bool breaks_remove(struct breaks *b, int number, struct err *e);
/* Whether any of them, or the condition, may pause a turn. */
bool breaks_pause(const struct breaks *b);
/* Writes their descriptions to out[b->n]; s: the step whose values displays show, NULL: none. */
void breaks_about(const struct breaks *b, const struct step_facts *s, struct debug_break *out);
/* Watches compare the next step with no step before it. */
void breaks_forget(struct breaks *b);
/* Whether a breakpoint or watch (*broke), or the condition, asks for a pause after this step; `why`
 * names it. All watches are updated, also if another one causes the pause. past: only updates the
 * watches. */
bool breaks_hold(struct breaks *b, const struct step_facts *s, bool past, bool *broke, char *why,
                 size_t n);
