/* test_cuda_back.c - test_back on a GPU: skipped where there is none. Cycles are fused there, but
 * for those that run phase by phase or have a given token. */
#define TEST_DEVICE "cuda"
#include "tests/unit/test_back.c"
