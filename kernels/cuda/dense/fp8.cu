/* fp8.cu - finds the scale with which a bf16 matrix is quantized to FP8 (fp8.h) during its upload.
 * */
#include "kernels/cuda/dense/fp8.cuh"

enum { QUANT_THREADS = 256 };

/* The largest magnitude among n groups of eight bf16, as its bits. */
__global__ void find_largest(const uint4 *w, size_t n, unsigned *out)
{
    const size_t step = (size_t)gridDim.x * QUANT_THREADS;
    unsigned most = 0; /* of the low and of the high half of the word separately */
    for (size_t i = (size_t)blockIdx.x * QUANT_THREADS + threadIdx.x; i < n; i += step) {
        const uint4 v = w[i];
        most = __vmaxu2(most, __vmaxu2(v.x & 0x7fff7fff, v.y & 0x7fff7fff));
        most = __vmaxu2(most, __vmaxu2(v.z & 0x7fff7fff, v.w & 0x7fff7fff));
    }
    most = __reduce_max_sync(~0u, max(most >> 16, most & 0xffff));
    if (threadIdx.x % 32 == 0)
        atomicMax(out, most);
}

void cuda_find_largest(struct kdev *d, void *w, size_t n, unsigned *most)
{
    const size_t bytes = n * sizeof(uint16_t), words = (bytes + 15) / 16;
    if (bytes % 16)
        cuda_ok(d, cudaMemsetAsync((char *)w + bytes, 0, words * 16 - bytes, d->stream));
    find_largest<<<d->gpu.n_sm, QUANT_THREADS, 0, d->stream>>>((const uint4 *)w, words, most);
    cuda_ok(d, cudaGetLastError());
}
