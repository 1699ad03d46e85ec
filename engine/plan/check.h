/* check.h - the always-on checker: every plan is checked against numbered rules before its pass is
 * launched.
 *
 * A violation (struct violation) carries the number of the rule, plan, table, row or request,
 * column and values; its message begins with them (engine/fault.h):
 *   I1  a pool's free and owned pages add up to it
 *   I2  the free list is a set of pages without references
 *   I3  a pool has as many references as there are columns that hold its pages
 *   I4  map, inverse map, row and table agree on the swa page of a live full page
 *   I5  the sequence holds the page of every key that a row reads
 *   I6  a written cell lies in a page with one holder, in the row's own sequence
 *   I7  nothing is stored beyond a table's columns; the red zone behind every array is intact
 *   I8  page 0 is never read or written
 *   I9  kv_len == prefix_len + q_len for each request, rows add up, the last row has position
 *       kv_len - 1
 *   I10 no row reads a cell that no pass has written
 *   I11 a table's pool, epoch and memory are those that its layers read now
 *   I12 the keys of a row, over all parts, are exactly its window, each once
 *   I13 the tree: parents precede children, depths and ancestors masks are right
 *   I14 the draft is one pairing behind the target, in a pool of at least the full pool's capacity
 *   I15 the marks of the cells that a row reads form one chain up to the sequence's end
 *   I16 a step consumed as many uniforms as were counted
 *   I17 the rows that the device filled in match the tree that it grew
 *   I18 the tree part of a row is its ancestors within the window and itself, nothing else
 *   I19 the rows that a step accepts are a path of its tree, from the root on
 *   I20 the draft's last cell was computed with the token that follows it in the sequence
 *
 * Level ON checks every rule for the cells and pages of the pass: I1 to I3 by running sums, I15 at
 * the end of each prefix, and of the pages in a page list (page_list.h) only the columns that are
 * new or have changed since they were checked in that list. Level STRICT checks all columns and the
 * chain of every cell read; the engine also sweeps all pools and sequences after each step
 * (check_sweep()). Cost of a check: linear in the rows of the plan and in the columns checked.
 *
 * The checker is a second implementation on purpose: it derives the expected values, windows and
 * tree parts included, from the sequences and requests, and shares no code with plan.c. Engine
 * thread.
 */
#pragma once

#include "engine/cache/tree.h"
#include "engine/plan/plan.h"
#include "engine/settings.h"

struct checker {
    enum check_level level;
    uint64_t checks, violations; /* plans checked; plans and sweeps that violated a rule */
    uint64_t unchecked;          /* plans launched while the level was CHECK_OFF */
    uint64_t ns;                 /* time spent checking */
};

/* Resets the counters of plans, at the beginning of a session. */
void checker_start(struct checker *c);
/* True if every rule holds, or if the level is CHECK_OFF. False: *e names the violated rule. */
bool check_plan(struct checker *c, const struct plan *p, const struct kv *kv,
                const struct plan_req *req, struct err *e);
/* Checks all pools, both maps and the whole chain of every sequence (I1-I5, I8, I10, I15). seqs:
 * all sequences that exist. */
bool check_sweep(const struct kv *kv, const struct seq *const *seqs, int n, struct err *e);
/* I16: token i of a step's n tokens was drawn with uniform `before` + offset[i], and `after`, the
 * logged number of uniforms, is where the next step continues. sampled false: none were drawn. */
bool check_draws(struct checker *c, uint64_t before, uint64_t after, const int *offset, int n,
                 bool sampled, struct err *e);
/* I19: path[0, n) are the accepted rows of a tree. */
bool check_accepted(struct checker *c, const struct tree *t, const int *path, int n,
                    struct err *e);
/* check_plan() of a plan whose rows the device has filled in; any violation is reported as I17. */
bool check_filled(struct checker *c, const struct plan *p, const struct kv *kv,
                  const struct plan_req *req, struct err *e);
/* Checks all columns that the rows of a plan over a page list read, those included that
 * check_plan() skipped because they have not changed since they were checked in that list. */
bool check_list(struct checker *c, const struct plan *p, const struct kv *kv,
                const struct plan_req *req, struct err *e);
/* The text of each rule: "I4  map, inverse, row and table agree ...". */
int check_rule_count(void);
const char *check_rule(int i);
/* Whether check_sweep() checks rule i; the others are checked with each plan. */
bool check_rule_swept(int i);
