/* codes.h - which of the GPU code in the program a GPU runs. Plain C, without CUDA headers. */
#pragma once

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

struct cuda_code {
    int compute;   /* the compute capability for which the code was compiled: 90 means 9.0 */
    bool specific; /* uses instructions that later GPUs do not have (90a: wgmma) */
    bool ptx;      /* PTX, which the driver compiles at its first use */
};

/* Finds the code that the driver chooses for a GPU of compute capability major.minor. codes: the
 * words of the Makefile's CODES; "80" is machine code for 8.0 and later 8.x, "90a" machine code for
 * 9.0 alone, "90+ptx" PTX for 9.0 and everything later. The driver takes the nearest machine code,
 * else the nearest PTX. False: no code runs on that GPU. */
bool cuda_find_code(const char *codes, int major, int minor, struct cuda_code *found);

/* Whether a driver that supports CUDA `driver` runs such code of a build of CUDA `runtime` (12040:
 * 12.4): machine code of the same major version or an older one, PTX of its own version or an older
 * one. */
bool cuda_driver_runs(int driver, int runtime, bool ptx);

#ifdef __cplusplus
}
#endif
