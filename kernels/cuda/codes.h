/* codes.h - which of the program's GPU code a GPU runs. Plain C without CUDA headers. */
#ifndef AERIE_KERNELS_CUDA_CODES_H
#define AERIE_KERNELS_CUDA_CODES_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

struct cuda_code {
    int compute;   /* the compute capability that the code was compiled for: 90 is 9.0 */
    bool specific; /* with instructions that later GPUs do not have (90a: wgmma) */
    bool ptx;      /* PTX: the driver compiles it when it is first used */
};

/* The code that the driver chooses for a GPU of compute capability major.minor out of `codes`, the words
 * of the Makefile's CODES: "80" is machine code for 8.0 and later 8.x, "90a" machine code for 9.0 alone,
 * "90+ptx" PTX for 9.0 and everything later. The nearest machine code, else the nearest PTX. False: no word fits. */
bool cuda_find_code(const char *codes, int major, int minor, struct cuda_code *found);

#ifdef __cplusplus
}
#endif

#endif
