/* sweep.h - the trials of many faults, made by several processes, in one run or in more.
 *
 * A sweep is the same fault at each n of one session. All sweeps form one queue: a process that waits for a trial does
 * not hold up the others. If the queue lies in a file, a run that ended at its time limit is continued by the next one.
 */
#ifndef AERIE_TESTS_FAULTS_SWEEP_H
#define AERIE_TESTS_FAULTS_SWEEP_H

#include "tests/faults/trace.h"

#include <stdatomic.h>

struct sweep {
    int session;
    struct fault f;      /* n: of its first trial */
    long step, n_trial;
    int listed;          /* not 0: the trials' n are those of queue.list from here on */
    long total;          /* calls of a run without a fault */
    atomic_long tried, fired, failed;
};

enum { MAX_SWEEPS = 2000, MAX_LISTED = 1 << 18 };

struct queue {
    uint64_t of;         /* which program and which sweeps */
    bool whole;          /* all sweeps were added */
    int n_sweep;
    struct sweep sweep[MAX_SWEEPS];
    atomic_long next;    /* trial, counted through all sweeps */
    int n_listed;        /* from 1 */
    int list[MAX_LISTED];
};

/* The queue in a file (NULL: in memory), empty unless the file has one for the same `of`. */
struct queue *queue_open(const char *file, uint64_t of);
void queue_add(struct queue *q, const struct sweep *w);
/* A trial: whether all was right; *fired: whether a call failed. */
typedef bool trial_fn(void *arg, const struct sweep *w, const struct fault *f, bool *fired);
/* Takes trials until none is left or the time of clock_ns() has come: one process's share. */
void queue_work(struct queue *q, uint64_t until_ns, trial_fn *trial, void *arg);
/* Prints a line of TAP for each sweep. Returns how many sweeps found a fault. */
long queue_print(const struct queue *q, const char *(*session)(int), const char *(*how)(enum how));

#endif
