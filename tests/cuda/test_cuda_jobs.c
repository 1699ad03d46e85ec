/* test_cuda_jobs.c - test_jobs on a GPU: skipped where there is none. Cycles are fused there, but
 * for those that run phase by phase or have a given token. */
#define TEST_DEVICE "cuda"
#include "tests/unit/test_jobs.c"
