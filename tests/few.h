/* few.h - how many cases a test runs: `make test` runs the usual number in five minutes for all
 * tests, AERIE_TEST_LONG=1 runs many more, AERIE_FEW=1 fewer, for tools that slow a test down
 * tenfold (ThreadSanitizer) or a hundredfold (tests/bench/gpu.sh check). */
#pragma once

#include <stdlib.h>
#include <string.h>

/* The step of a loop over cases: 1, or `share` where AERIE_FEW is set: one of so many is run. */
static inline int one_in(int share)
{
    return getenv("AERIE_FEW") ? share : 1;
}

/* A number of cases: `usual`, or `all` where AERIE_TEST_LONG is set and not 0. */
static inline int rounds(int usual, int all)
{
    const char *l = getenv("AERIE_TEST_LONG");
    return l && *l && strcmp(l, "0") != 0 ? all : usual;
}

/* How many threads of an engine compute in a test: one, because more tests run at once than there
 * are cores, and two threads that wait for each other take a tenth more processor time. No bit
 * depends on the number (test_kernels, test_verdict, test_resume.sh). Two where AERIE_TEST_LONG or
 * AERIE_FEW is set: ThreadSanitizer looks for races. */
static inline int test_threads(void)
{
    return getenv("AERIE_FEW") ? 2 : rounds(1, 2);
}
