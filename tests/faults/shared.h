/* shared.h - a page of memory between preload.c, inside the program under test, and trace.c
 * outside.
 *
 * All processes and threads of the program count in the same page, so that "the n-th" has one
 * meaning.
 */
#pragma once

#include <stdatomic.h>

#define FAULTS_PAGE "AERIE_FAULTS_PAGE" /* environment: the file that holds the page */

enum {
    FAULTS_MARK = 0x61657269, /* prctl() with this number: the program's libraries are loaded */
    FAULTS_FRAMES = 40,
    FAULTS_LISTED = 1 << 16,
};

struct faults_page {
    atomic_long allocs;     /* allocations so far */
    long fail;              /* the allocation that fails; 0: none */
    int and_later;          /* nonzero: all later allocations fail, too */
    atomic_int fired;
    unsigned long frame[FAULTS_FRAMES]; /* return addresses of the first that failed */
    int n_frame;
    int forks;              /* nonzero: each allocation fails in a process forked for it */
    atomic_long ended;      /* forked processes that ended with status 2 and one line "out of
                               memory" */
    atomic_long n_other;    /* forked processes that did not */
    long other[FAULTS_LISTED];
};
