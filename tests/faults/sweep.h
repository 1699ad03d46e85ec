/* sweep.h - runs the trials of many faults in several processes, in one run or in several runs.
 *
 * A sweep is one kind of fault in one session, with a trial for each call n. The trials of all
 * sweeps form one queue, from which each process takes the next trial. If the queue is in a file,
 * the next run continues where a run ended at its time limit.
 */
#pragma once

#include "tests/faults/trace.h"

#include <stdatomic.h>

struct sweep {
    int session;
    struct fault f;      /* n: of its first trial */
    long step, n_trial;
    int listed;          /* not 0: the calls n of the trials are in queue.list, from this index
                            on */
    long total;          /* calls of a run without a fault */
    atomic_long tried, fired, failed;
};

enum { MAX_SWEEPS = 2000, MAX_LISTED = 1 << 18 };

struct queue {
    uint64_t of;         /* a hash of the program and the sweeps */
    bool whole;          /* all sweeps were added */
    int n_sweep;
    struct sweep sweep[MAX_SWEEPS];
    atomic_long next;    /* the next trial, counted over all sweeps */
    int n_listed;        /* entries of `list`; the first, list[0], is unused */
    int list[MAX_LISTED];
};

/* The queue in a file (NULL: in memory), empty unless the file has one for the same `of`. */
struct queue *queue_open(const char *file, uint64_t of);
void queue_add(struct queue *q, const struct sweep *w);
/* Runs a trial. False: it found a fault in the program. *fired: a call was made to fail. */
typedef bool trial_fn(void *arg, const struct sweep *w, const struct fault *f, bool *fired);
/* In each process: takes trials until none is left or clock_ns() reaches the end. */
void queue_work(struct queue *q, uint64_t until_ns, trial_fn *trial, void *arg);
/* Prints a line of TAP for each sweep. Returns how many sweeps found a fault. */
long queue_print(const struct queue *q, const char *(*session)(int), const char *(*how)(enum how));
