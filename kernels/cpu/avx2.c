/* avx2.c - the inner loops for AVX2, FMA and F16C; built with those flags. */
#if defined(__x86_64__)
#define CPU_ISA 1
#define CPU_TABLE cpu_isa_avx2
#define CPU_NAME "avx2"
#define CPU_TITLE "AVX2"
#include "kernels/cpu/math.h"
#else
typedef int cpu_avx2_is_empty; /* C11 requires a declaration in a translation unit */
#endif
