/* soak.h - what the files of the soak share (soak.c says what a soak does).
 *
 * A user is a thread that drives one process of aerie: the full screen over a pseudo-terminal, or
 * plain lines over pipes. The seed determines everything that a user does; only timing (how far a
 * reply had come) depends on the machine.
 */
#pragma once

#include "kernels/base.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

enum { N_POOLS = 3 };

/* Counts of a pool's ledger. */
struct pool {
    long total, used, shared, evictable, free;
};

struct user {
    const char *name;
    bool screen;
    pid_t pid;
    int in, out; /* the same descriptor for a screen */
    uint64_t rng;
    int width, height;
    bool fault_on;      /* a historical fault was switched on since the last rest */
    bool log_refused;   /* plain: a command failed because of the log, which the exit status
                           reports */
    size_t unanswered;  /* screen: n_out when input was sent last */
    size_t n_out;       /* bytes of output so far */
    struct buf got;     /* the end of the output since the last forget_output() */
    size_t scanned;     /* plain: bytes of `got` whose lines were read */
    bool marked;        /* plain: the marker's answer has come */
    FILE *acked;        /* plain: the turns that it printed, a JSON object a line */
    struct pool pool[N_POOLS];
    bool pools_known, rules_hold;
    pthread_t thread;
    const volatile int64_t *heap; /* bytes of its heap in use, held by its allocator, SQLite's
                                     (shim.c) */
};

struct soak {
    const char *build, *leak; /* leak: what the run leaks on purpose, or "" */
    uint64_t seed;
    int seconds;
    char *aerie, *folder, *small, *kept, *log; /* the program; everything; the small disk, and its
                                                  copy after a failure; the database */
    FILE *journal;
    bool mounted;               /* `small` is a file system of its own */
    atomic_int_least64_t *clock; /* nanoseconds by which the programs' wall clock is ahead */
    struct user user[2];
    long visits, kills;         /* other processes that were run, and those that were killed */
    /* done so far */
    atomic_long messages, commands, keys, resizes, cancels, faults, forks, exports, refused;
    atomic_bool full;           /* the disk is full now */
    atomic_uint_least64_t room_ns; /* when the disk last had room again */
    atomic_bool over, stop;     /* over: the run shall end; stop: users end when they leave their
                                   rest */
    pthread_barrier_t rest, go; /* users and the main thread, at rest */
    atomic_bool resting;        /* users rest after their present action */
    atomic_int failures;
};

extern struct soak soak;

/* Writes a line to the journal: seconds, who, what. Any thread. */
void note(const char *who, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* A failure: a line on standard output and in the journal; the run goes on. Any thread. */
void failed(const char *who, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* 0 .. n - 1, the next of a user's random numbers. */
int roll(uint64_t *rng, int n);
double seconds_since(uint64_t begin_ns);
/* Whether an answer may report a full disk: it is full, or was seconds ago. */
bool disk_was_full(void);

/* ---- processes (user.c) ---------------------------------------------------------------------- */

void user_start(struct user *u);
/* Ends it by /bye; its exit status, -1 if it had to be killed. */
int user_end(struct user *u);
/* Reads output for ms milliseconds. */
void user_pump(struct user *u, int ms);
void user_send(struct user *u, const char *bytes, size_t n);
/* A line and Enter; user_settle() waits until it was answered and the program rests. */
void user_line(struct user *u, const char *line);
void user_settle(struct user *u);
void user_resize(struct user *u, int width, int height);
/* Full screen: makes the program redraw, and returns the text with blanks collapsed, valid until
 * the next call. */
const char *user_screen(struct user *u);
/* Reads the ledgers and the checker's verdict. */
void user_inspect(struct user *u);
/* Runs a program to its end, with its output in *out; its status, or 128 + signal. After ms
 * milliseconds it gets the signal `sig`, and SIGKILL (status -1) if it has not ended a minute
 * later. */
int run_program(const char *const *argv, struct buf *out, int ms, int sig);

/* ---- what users do (act.c) ------------------------------------------------------------------- */

void *user_main(void *arg);

/* ---- other processes (visit.c) --------------------------------------------------------------- */

/* Runs one command of aerie while the users run, and fails if its exit status is not one of those
 * allowed. */
void visit(uint64_t *rng);

/* ---- measuring (measure.c) ------------------------------------------------------------------- */

/* Takes a sample of all processes and of the log; users are at rest. */
void measure(void);
/* Prints the samples' summary and fails what is neither flat nor explained. */
void judge_samples(void);
/* A number from the log by SQL; -1 and a failure if the query fails. */
long log_number(const char *sql);
