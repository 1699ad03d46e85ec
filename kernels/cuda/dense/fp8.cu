/* fp8.cu - quantizes a bf16 matrix to FP8 (fp8.h) on the device, during its upload. */
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

/* Quantizes one group of eight weights a thread; groups have the same order in both panels. */
__global__ void quantize_eights(uint4 *w, size_t n, int unit, uint2 *to)
{
    const size_t i = (size_t)blockIdx.x * QUANT_THREADS + threadIdx.x;
    if (i >= n)
        return;
    uint16_t v[8];
    uint8_t codes[8];
    memcpy(v, w + i, sizeof v);
    for (int j = 0; j < 8; j++) {
        codes[j] = fp8_of(v[j], unit);
        v[j] = fp8_value(codes[j], unit);
    }
    memcpy(w + i, v, sizeof v);
    to[i] = make_uint2(fp8_word(codes), fp8_word(codes + 4));
}

bool cuda_quantize(struct kdev *d, struct tensor *t, const struct panels &p, uint8_t *to,
                   struct err *e)
{
    const size_t all = (size_t)p.n * panel_bytes(p), n = all / sizeof(uint4);
    unsigned *found = (unsigned *)d->arena, largest = 0;
    cudaError_t rc = cudaMemsetAsync(found, 0, sizeof *found, d->stream);
    find_largest<<<d->n_sm, QUANT_THREADS, 0, d->stream>>>((const uint4 *)to, n, found);
    if (rc == cudaSuccess)
        rc = cudaMemcpyAsync(&largest, found, sizeof largest, cudaMemcpyDefault, d->stream);
    if (rc == cudaSuccess)
        rc = cuda_finish(d);
    if (rc == cudaSuccess && largest >= FP8_NOT_FINITE)
        return err_set(e, ERR_MODEL, FP8_REFUSED, t->name);
    t->unit = fp8_unit((uint16_t)largest);
    if (rc == cudaSuccess)
        quantize_eights<<<(unsigned)((n + QUANT_THREADS - 1) / QUANT_THREADS), QUANT_THREADS, 0,
                          d->stream>>>((uint4 *)to, n, t->unit, (uint2 *)(to + all));
    if (rc == cudaSuccess)
        rc = cudaGetLastError();
    if (rc == cudaSuccess)
        rc = cuda_finish(d);
    return cuda_upload_ok(t, rc, e);
}
