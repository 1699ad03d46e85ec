/* isolate.h - what the process gives up before it reads a model, a log or a server's answer: writing
 * outside of its folders, starting programs, the network.
 *
 * The kernel enforces it for every thread and child from then on, and nothing takes it back.
 * Landlock keeps writes to the named folders and to the devices that a terminal and a GPU need;
 * seccomp fails execve(), socket() and system calls that only an attacker would miss with EPERM.
 * Reading stays allowed, everywhere. monitor.h does what the isolated process may not.
 * Where the kernel lacks one of them the other is still used; isolation_about() says what holds.
 *
 * Call before the first thread: Landlock's part holds for threads started later only.
 */
#ifndef AERIE_ISOLATE_H
#define AERIE_ISOLATE_H

#include "kernels/base.h"

struct isolation {
    const char *const *folder; /* absolute or relative; those that do not exist are skipped */
    int n_folder;
    enum { NETWORK_NEVER, NETWORK_UNTIL_LOADED, NETWORK_KEPT } network; /* until when socket() works */
};

/* What holds, or could hold, in this process. */
struct isolated {
    bool writes, programs, network; /* confined */
    bool failed; /* something is not confined although the kernel has what it takes: a call failed */
    char writes_why_not[96], programs_why_not[96];
};

/* Isolates the process. *got receives which parts are in force. A part that the kernel lacks or refuses is not an
 * error; if got->failed, say so. */
void isolate(const struct isolation *i, struct isolated *got);
/* With NETWORK_UNTIL_LOADED: gives up socket() now, for all threads. The CUDA driver needs it once, when it starts. */
void isolate_after_loading(void);
/* Gives up socket() later, for all threads of a process that isolate() confined: a server whose port is open
 * needs no other. */
void isolate_from_network(void);
/* What isolate() would do here and now, tried in a child; nothing changes for this process. */
void isolation_probe(struct isolated *got);

#endif
