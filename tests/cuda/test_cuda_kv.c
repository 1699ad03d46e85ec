/* test_cuda_kv.c - test_kv_fp8 on a GPU: skipped where there is none. */
#define TEST_DEVICE "cuda"
#include "tests/unit/test_kv_fp8.c"
