/* test_cuda_debug.c - test_debug on a GPU: skipped where there is none. */
#define TEST_DEVICE "cuda"
#include "tests/unit/test_debug.c"
