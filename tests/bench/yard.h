/* yard.h - products of CUTLASS, as a yardstick for those of aerie (yard.cu). */
#pragma once

#include <cuda_runtime.h>

/* A kernel of CUTLASS for y = x w^T, all bf16 and row-major: x (rows, in), w (out, in), y (rows,
 * out), with sums in float32. */
struct cutlass_kernel {
    const char *name;
    bool wgmma; /* for compute capability 9.0; else mma.sync, for 8.0 and later */
    /* Prepares a product and allocates its workspace, for as long as the process lives. NULL: the
     * kernel cannot compute it, or there is no memory. */
    void *(*prepare)(const void *x, const void *w, void *y, int rows, int out, int in);
    bool (*launch)(void *prepared, cudaStream_t stream);
};
enum { CUTLASS_KERNELS = 4 };
extern const struct cutlass_kernel cutlass_kernels[CUTLASS_KERNELS];
extern const char cutlass_version[];
