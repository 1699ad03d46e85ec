/* scalar.c - the inner loops in plain C, for any machine; avx2.c and avx512.c give the same
 * bits.
 */
#define CPU_ISA 0
#define CPU_TABLE cpu_isa_scalar
#define CPU_NAME "scalar"
#define CPU_TITLE "plain C"
#include "kernels/cpu/math.h"
