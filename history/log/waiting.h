/* waiting.h - the writer (history.h) as its files see it: the events that wait in memory, and their
 * commits (waiting.c); the thread and its callers (history.c). */
#pragma once

#include "history/internal.h"

#include <pthread.h>
#include <time.h>

enum { EV_MARK = 1000 }; /* an event kind of these files: history_mark() */

struct history {
    /* constant while the writer thread runs */
    struct evq *q;
    pthread_t thread;
    int wake; /* an eventfd, written when the status changes */

    /* the writer thread's; other threads read the constant w.db.path and w.live only */
    struct writer w;
    struct waiting *wait; /* (cap_wait) */
    int n_wait, cap_wait;
    size_t bytes;      /* of all waiting events */
    bool urgent;       /* commit as soon as the queue is empty */
    uint64_t first_ns; /* when the oldest waiting event arrived */
    int retry_ms;
    uint64_t failing_ns, retry_ns; /* since when commits fail, next retry; 0: none failed */
    uint64_t dropped;
    int sync; /* the connection's synchronous: 1 NORMAL, 2 EXTRA (FULL, and the folder is synced
                 where a journal is deleted); 0: not set */
    char why[200]; /* the last failure's reason */
    bool in_side_file; /* a side file holds the waiting events */
    bool blocked;      /* the log is full: turns that begin now are not stored */
    bool limit_changed; /* status.limit changed since set_status() */

    /* shared by the writer thread and its callers, all of it under mu */
    pthread_mutex_t mu;
    pthread_cond_t flushed;
    uint64_t mark; /* the newest EV_MARK */
    enum log_level level;
    bool many;     /* history_store_many() was called */
    bool closing;  /* history_finish() was called */
    uint64_t hastened_ns; /* when history_hasten() was called; 0: it was not */
    bool joined;   /* the thread was joined */
    bool give_up;  /* no more retries */
    bool finished; /* the thread ended */
    struct history_left left; /* while closing */
    struct history_about described; /* by history_describe(), not yet moved to w.about, ... */
    struct vocabulary vocab;        /* ... and to w.texts */
    bool has_described;
    struct history_limit limit;
    struct history_status status;
};

/* strings only; copies all of them */
void about_copy(struct history_about *to, const struct history_about *from);
/* The monotonic time `ms` milliseconds from now. */
void deadline_after(struct timespec *t, int ms);

/* The writer thread's. Takes over *ev, unless the log is full of what waits. */
void waiting_add(struct history *h, struct event *ev);
/* Stores what waits in one transaction; where that fails, sets the time of the next try. */
void waiting_commit(struct history *h);
/* Whether no more events should wait for their commit. */
bool waiting_full(struct history *h);
/* Whether history_store_many() was called. */
bool storing_many(struct history *h);
/* Whether history_hasten() was called more than ms milliseconds ago. */
bool closing_late(struct history *h, int ms);
/* The connection's synchronous, as in struct history. SQLite's code. */
int writer_sync(struct history *h, int sync);
