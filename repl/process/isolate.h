/* isolate.h - isolates the process before it reads a model, a log or a server's answer: it can
 * then no longer write outside of its folders, change the attributes of any file, open a device
 * other than its own terminal and GPU, start programs, act on other processes, or use the network.
 *
 * The kernel enforces this for every thread and child, and it cannot be undone. Landlock limits
 * writes to the named folders, and devices to the few that the program needs; seccomp makes
 * execve(), chmod(), socket() and other system calls that the program never uses fail with EPERM.
 * Files outside of /dev can be read everywhere. monitor.h does what the isolated process may not
 * do. If the kernel lacks one of the two mechanisms, the other is still used; struct isolated says
 * what is in force.
 *
 * Call it before the first thread is started: Landlock applies only to threads started later. */
#pragma once

#include "kernels/base.h"

struct isolation {
    const char *const *folder; /* absolute or relative; those that do not exist are skipped */
    int n_folder;
    /* what socket() makes, as a sum. UNTIL_LOADED: the local socket (AF_UNIX, SOCK_SEQPACKET) that
     * the CUDA driver needs when it starts, until isolate_after_loading(). KEPT: TCP and UDP.
     * LOCAL: all of AF_UNIX, with which programs of this machine can be asked to act. LINKS_MADE is
     * not of the network: symbolic links can be made in the folders. */
    enum {
        NETWORK_NEVER = 0,
        NETWORK_UNTIL_LOADED = 1,
        NETWORK_KEPT = 2,
        NETWORK_LOCAL = 4,
        LINKS_MADE = 8
    } network;
};

/* Which parts of the isolation are, or could be, in force in this process. */
struct isolated {
    bool writes, programs, network; /* confined */
    bool failed; /* the kernel has the mechanisms, but a call failed, so that a part is not in
                    force */
    char writes_why_not[96], programs_why_not[96];
};

/* Closes the descriptors above standard error that the process was started with and that are open
 * for writing: nothing limits what is written to a file that is open already. Those for reading
 * stay, such as the /dev/fd/63 of a shell. Before the first descriptor of the process's own is
 * opened. */
void isolate_descriptors(void);
/* Isolates the process. *got receives which parts are in force. A part that the kernel lacks or
 * refuses is not an error; if got->failed, say so. */
void isolate(const struct isolation *i, struct isolated *got);
/* Ends NETWORK_UNTIL_LOADED, for all threads. */
void isolate_after_loading(void);
/* Makes socket() fail from now on, for all threads of a process that isolate() has confined: a
 * server that listens needs no further sockets. */
void isolate_from_network(void);
/* Tries in a child process which parts isolate() could put in force; nothing changes for this
 * process. */
void isolation_probe(struct isolated *got);
