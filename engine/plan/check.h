/* check.h - the always-on checker: every plan is held against numbered rules before a kernel runs.
 *
 * Each message begins with the number of the rule that was violated, then names plan, table, row or
 * request, column and value:
 *   I1  a pool's free and owned pages add up to it
 *   I2  the free list is a set of pages without references
 *   I3  the references of a pool are as many as the columns that hold its pages
 *   I4  map, inverse map, row and table agree on the swa page of a live full page
 *   I5  every key that a row can see is held
 *   I6  a written cell lies in a page with one holder, in the row's own sequence
 *   I7  nothing is stored beyond a table's columns; the words behind every array are intact
 *   I8  page 0 is never read or written
 *   I9  kv_len == prefix_len + q_len of each request, rows add up, the last one stands at kv_len - 1
 *   I10 no row reads a cell that no pass has written
 *   I11 a table's pool, epoch and memory are those that its layers read now
 *   I12 the keys of a row, over all parts, are exactly its window, each once
 *   I13 the tree: parents first, depths and ancestors right
 *   I14 the draft is one pairing behind the target, in a pool that holds as much
 *   I15 the marks of the cells a row reads chain token by token to its sequence's end
 *   I16 the uniforms consumed are the ones that were counted
 *   I17 what the device filled in is what its tree asks for
 * ON checks all of them for what a pass touches: I1 to I3 by running sums, I15 at the end of each
 * prefix, and of the pages in a list (page_list.h) those that are new or have changed since they
 * were checked there. STRICT passes over none of them and follows the chain of every cell read, and
 * the engine sweeps all pools and sequences after each step (check_sweep). The checker works out
 * what it checks from the sequences and shares no code with plan.c. Cost: linear in the rows of the
 * plan and in the columns that are looked at. Engine thread.
 */
#ifndef AERIE_CHECK_H
#define AERIE_CHECK_H

#include "engine/plan/plan.h"
#include "engine/settings.h"

struct checker {
    enum check_level level;
    uint64_t checks, violations; /* plans that were checked; plans and sweeps that violated a rule */
    uint64_t unchecked;          /* plans that were launched while the level was CHECK_OFF */
    uint64_t ns;                 /* spent so far */
};

/* Counts from 0 again: a session begins. */
void checker_start(struct checker *c);
/* True when every rule holds (or the level is off). */
bool check_plan(struct checker *c, const struct plan *p, const struct kv *kv,
                const struct plan_req *req, struct err *e);
/* Every pool, both maps and the whole chain of every sequence that exists (I1-I5, I8, I10, I15). */
bool check_sweep(const struct kv *kv, const struct seq *const *seqs, int n, struct err *e);
/* I16: a reply's n emitted tokens used the uniforms `before` + offset[i]; `after` is what is logged
 * and where the next step goes on. Not sampled: none were used. */
bool check_draws(struct checker *c, uint64_t before, uint64_t after, const int *offset, int n,
                 bool sampled, struct err *e);
/* check_plan() of a plan whose rows the device has filled in: whatever is wrong with it is I17. */
bool check_filled(struct checker *c, const struct plan *p, const struct kv *kv,
                  const struct plan_req *req, struct err *e);
/* All the pages that the rows of a plan over a list read, also those that check_plan() passed over
 * because they have not changed since they were checked in that list. */
bool check_list(struct checker *c, const struct plan *p, const struct kv *kv,
                 const struct plan_req *req, struct err *e);
/* Names of the rules, for /check: "I4  map, inverse, row and table agree ...". */
int check_rule_count(void);
const char *check_rule(int i);
/* Whether check_sweep() looks at the rule; the others are about plans, and checked with each plan. */
bool check_rule_swept(int i);
/* Whether a message of the checker names rule i. */
bool check_names(const char *message, int i);

#endif
