/* trace.h - runs a program in which calls of one class fail.
 *
 * Allocations fail in preload.c, without a tracer. A system call is stopped by a seccomp filter and
 * answered by the tracer instead of the kernel, so calls of the C library's own (of stdio, of
 * threads) fail like those of the program, whatever thread or child makes them. Calls are counted
 * over all threads and processes from the moment at which all libraries are loaded. Which call is
 * the n-th may differ from run to run where threads race; a sweep therefore goes on until a run has
 * fewer than n calls.
 */
#pragma once

#include "kernels/base.h"

#include <sys/types.h>

enum fault_class {
    CALLS_ALLOC, CALLS_READ, CALLS_WRITE, CALLS_SYNC, CALLS_RENAME, CALLS_MMAP, CALLS_THREAD,
    CALLS_FORK, CALLS_POLL, CALLS_OPEN, CALLS_FILE,
    CALLS_LOCK, CALLS_MESSAGE, CALLS_MAKE, CALLS_TERMINAL, N_CLASS,
};

/* How calls fail. */
enum how {
    NEVER,     /* not at all: calls are only counted */
    FORKED,    /* CALLS_ALLOC: each call, in a process that is forked for it (preload.c) */
    ONCE,      /* the n-th call */
    FROM,      /* the n-th call and all later ones */
    INTERRUPT, /* with EINTR; n says which calls (enum interrupted) */
    SHORTEN,   /* each call transfers about half of the bytes asked for, at least one (CALLS_READ,
                  CALLS_WRITE) */
};

/* Which calls of a thread are interrupted. A faulty loop of two calls that starts over after EINTR,
 * instead of repeating the interrupted call, makes no progress with FIRST_TRIES, nor with one of
 * ODD_CALLS and EVEN_CALLS (which of the two depends on the number of calls before it). */
enum interrupted { ODD_CALLS = 1, EVEN_CALLS, FIRST_TRIES };

struct fault {
    enum fault_class class;
    enum how how;
    long n;    /* from 1; INTERRUPT: enum interrupted */
    int error; /* errno; 0: the first of the class */
};

const char *class_name(enum fault_class c);
const char *class_help(enum fault_class c); /* the calls of which it consists */
int class_error(enum fault_class c, int i); /* the i-th errno that calls of the class may return; 0:
                                               no more */
bool class_interrupts(enum fault_class c);  /* its calls may return EINTR */

struct command {
    char *const *argv;
    const char *in, *out, *err; /* files; NULL: /dev/null (out, err: made anew) */
    int terminal;  /* a pseudo-terminal's other end, instead of the files; -1: none */
    int limit_ms;  /* the program is killed after this time */
    const char *page;    /* a scratch file, of struct faults_page (shared.h) */
    const char *preload; /* preload.c as a library */
};

struct trial {
    int status;      /* as of waitpid() */
    bool timed_out;
    bool armed;      /* the program's libraries are loaded: calls are counted from here on */
    long calls;      /* of the class */
    bool fired;
    int error;       /* the errno of the failed calls */
    char what[160];  /* the call that failed first: "write sessions.db-wal" */
};

/* Starts the program under a tracer process, whose id is returned; `t` must be in memory shared
 * with child processes. */
pid_t trace_start(const struct command *c, const struct fault *f, struct trial *t);
/* Whether this machine can trace: an x86-64 whose kernel lets a process trace its children. */
bool trace_possible(void);
/* Waits until the tracer ends. */
void trace_wait(pid_t tracer);
