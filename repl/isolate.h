/* isolate.h - isolates the process before it reads a model, a log or a server's answer: it can then
 * no longer write outside of its folders, start programs, or use the network.
 *
 * The kernel enforces this for every thread and child, and it cannot be undone. Landlock limits
 * writes to the named folders and to the devices that a terminal and a GPU need; seccomp makes
 * execve(), socket() and other system calls that the program never uses fail with EPERM. Reading
 * stays allowed everywhere. monitor.h does what the isolated process may not do. If the kernel
 * lacks one of the two mechanisms, the other is still used; struct isolated says what is in force.
 *
 * Call it before the first thread is started: Landlock applies only to threads started later.
 */
#ifndef AERIE_ISOLATE_H
#define AERIE_ISOLATE_H

#include "kernels/base.h"

struct isolation {
    const char *const *folder; /* absolute or relative; those that do not exist are skipped */
    int n_folder;
    /* how long socket() works */
    enum { NETWORK_NEVER, NETWORK_UNTIL_LOADED, NETWORK_KEPT } network;
};

/* Which parts of the isolation are, or could be, in force in this process. */
struct isolated {
    bool writes, programs, network; /* confined */
    bool failed; /* the kernel has the mechanisms, but a call failed, so that a part is not in
                    force */
    char writes_why_not[96], programs_why_not[96];
};

/* Isolates the process. *got receives which parts are in force. A part that the kernel lacks or refuses is not an
 * error; if got->failed, say so. */
void isolate(const struct isolation *i, struct isolated *got);
/* With NETWORK_UNTIL_LOADED: makes socket() fail from now on, for all threads. The CUDA driver
 * needs it once, when it starts. */
void isolate_after_loading(void);
/* Makes socket() fail from now on, for all threads of a process that isolate() has confined: a
 * server that listens needs no further sockets. */
void isolate_from_network(void);
/* Tries in a child process which parts isolate() could put in force; nothing changes for this
 * process. */
void isolation_probe(struct isolated *got);

#endif
