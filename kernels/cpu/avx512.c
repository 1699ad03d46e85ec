/* avx512.c - the inner loops for AVX-512 (F, BW, VL, DQ); built with those flags. */
#if defined(__x86_64__)
#define CPU_ISA 2
#define CPU_TABLE cpu_isa_avx512
#define CPU_NAME "avx512"
#define CPU_TITLE "AVX-512"
#include "kernels/cpu/math.h"
#else
typedef int cpu_avx512_is_empty; /* C11 requires a declaration in a translation unit */
#endif
