/* fault.h - a violation of a rule of the checker: made where the rule fails, printed in one place.
 *
 * The fields of struct violation (kernels/base.h) travel with the error, the event and the views;
 * nothing reads them back from the message. Pure functions; any thread.
 */
#pragma once

#include "engine/cache/page_event.h"
#include "kernels/base.h"

/* What a plan of a forward pass is for (engine/plan/plan.h). */
enum plan_mode {
    PLAN_EXTEND,
    PLAN_DECODE,
    PLAN_VERIFY,
    PLAN_DRAFT,
    PLAN_DRAFT_EXTEND,
    PLAN_FROZEN,
    PLAN_BLOCK,
    N_MODES
};
const char *plan_mode_name(enum plan_mode m); /* "extend", "decode", ... */

enum { N_RULES = 21 }; /* with 0, no rule */
const char *fault_rule(int rule); /* "I4"; "": 0, no rule */
int fault_rule_of(const char *name); /* the same backwards; 0: no rule has this name */
/* A violation of rule I`rule` that names no place yet. */
struct violation fault_at(int rule);
/* Fills *e (may be NULL): ERR_INVARIANT, the place, and as message the place and the sentence:
 * "I4 verify swa table row 0: SENTENCE". Returns false. */
bool fault_set(struct err *e, struct violation at, const char *sentence, ...)
    __attribute__((format(printf, 3, 4)));
/* The same error, found in a plan that the device filled in. Returns false. */
bool fault_filled(struct err *e);
/* Whether the violation is one of rule IN: of its own rule, or of I17 if the device filled in the
 * plan. */
bool fault_is_of(const struct violation *at, int rule);
/* "I4 verify, swa, row 0, position 130": the place in a few words. */
void fault_place_print(const struct violation *at, struct buf *out);
/* The members of a JSON object: rule, plan, pool, row, request, column, position, page, found,
 * expected; those that are named. */
void fault_json(const struct violation *at, struct buf *out);
/* The logical page (of `page_size` tokens) that the place lies in; -1: it names none. */
int fault_place_column(const struct violation *at, int page_size);
