/* agree.cu - whether wgmma and mma.sync of this GPU give the same bits, on which the kernels for
 * many rows rely (wgmma.cuh). Checked once when the device is opened: a product of random numbers
 * by both instructions, in bf16 and in f16, for four kinds of numbers; in bf16 also by wgmma with
 * both operands in shared memory, the weights in units of 16 bytes as panels have them.
 */
#include "kernels/cuda/dense/wgmma.cuh"

/* Numbers of similar size; of very different sizes; pairs that almost cancel each other; subnormal
 * numbers times large ones. */
enum numbers { SIMILAR, WIDE, CANCELLING, SUBNORMAL, KINDS };

enum {
    TRIALS = 4,  /* of each kind and type */
    ROUNDS = 6,  /* stages of 64 of k that are added to the same accumulators */
    STAGE_K = 64,
    COLS = 64,   /* compared */
    THREADS = 128,
    UNIT = HALF_OUT * 16, /* bytes of eight elements of every weight's row */
};
static_assert((int)COLS == (int)HALF_OUT);

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

__device__ __forceinline__ uint32_t random_bits(uint32_t x)
{
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

/* A number of 16 bits: bf16 or f16. row: one of the activations, otherwise a weight. Element k of a
 * row and the next one cancel each other where the two weights are equal. */
template <bool F16>
__device__ __forceinline__ uint32_t number(int kind, uint32_t seed, int k, bool row)
{
    constexpr int MANTISSA = F16 ? 10 : 7, ONE = F16 ? 15 : 127;
    const uint32_t r = random_bits(seed * 977 + (uint32_t)(kind == CANCELLING ? k & ~1 : k));
    uint32_t exponent = ONE - 2 + r % 4;
    if (kind == WIDE)
        exponent = F16 ? 1 + r % 28 : ONE - 30 + r % 60;
    if (kind == SUBNORMAL)
        exponent = row ? r % 3 : F16 ? 20 + r % 8 : ONE + 60 + r % 20;
    const uint32_t sign = kind == CANCELLING && row && k % 2 ? 0x8000 : 0;
    const uint32_t last = kind == CANCELLING && row && k % 2 ? random_bits(r) % 2 : 0;
    return (exponent << MANTISSA | (r >> 3 & ((1u << MANTISSA) - 1)) |
            (r >> 16 & 0x8000)) ^ sign ^ last;
}

template <bool F16>
__device__ __forceinline__ uint32_t two_numbers(int kind, uint32_t seed, int k, bool row)
{
    return number<F16>(kind, seed, k, row) | number<F16>(kind, seed, k + 1, row) << 16;
}

/* acc (64, COLS) by wgmma and, in a warp's 16 rows, by mma.sync; w: as both take them. */
__device__ __forceinline__ void multiply_16(float (&acc)[COLS / 2], const uint32_t (&w)[4],
                                            uint64_t rows, bool f16, int onto)
{
    const uint32_t w0 = w[0], w1 = w[1], w2 = w[2], w3 = w[3];
    if (f16)
        WGMMA("m64n64k16.f32.f16.f16", REG32, "%32", "%33", "%34", "%35", "%36", "%37",
              ACC32(acc, 0));
    else
        WGMMA("m64n64k16.f32.bf16.bf16", REG32, "%32", "%33", "%34", "%35", "%36", "%37",
              ACC32(acc, 0));
}

/* The same in bf16 with the weights in shared memory. */
__device__ __forceinline__ void multiply_shared(float (&acc)[COLS / 2], uint64_t weights,
                                                uint64_t rows, int onto)
{
    WGMMA_SHARED("m64n64k16.f32.bf16.bf16", REG32, "%32", "%33", "%34", ACC32(acc, 0));
}

/* Where elements k and k + 1 are: of a row, with the 128-byte swizzle; of a weight's row, in units
 * (wgmma_units()). */
__device__ __forceinline__ int place_in_rows(int row, int k)
{
    return row * 128 + ((k / 8 ^ row % 8) * 16) + k % 8 * 2;
}
__device__ __forceinline__ int place_in_units(int row, int k)
{
    return k / 8 * UNIT + row * 16 + k % 8 * 2;
}

/* Counts the accumulators that differ. stage: of rows; weights: of weights. */
template <bool F16>
__device__ void compare(int kind, uint32_t seed, uint8_t *stage, uint8_t *weights, unsigned *out)
{
    const int tid = (int)threadIdx.x, lane = tid % 32, g = lane / 4, q = lane % 4;
    float acc[COLS / 2] = {}, both[COLS / 2] = {}, sums[COLS / 8][4] = {};
    for (int round = 0; round < ROUNDS; round++) {
        __syncthreads();
        for (int i = tid; i < COLS * STAGE_K / 2; i += THREADS) {
            const int col = i / (STAGE_K / 2), k = i % (STAGE_K / 2) * 2;
            *(uint32_t *)(stage + place_in_rows(col, k)) =
                two_numbers<F16>(kind, seed + (uint32_t)(round * COLS + col), k, true);
            *(uint32_t *)(weights + place_in_units(col, k)) = /* as many weights as columns */
                two_numbers<F16>(kind, ~seed - (uint32_t)(round * HALF_OUT + col), k, false);
        }
        fence_async_proxy_shared();
        __syncthreads();
        for (int step = 0; step < STAGE_K / 16; step++) {
            uint32_t w[4];
            for (int i = 0; i < 4; i++)
                w[i] = two_numbers<F16>(
                    kind, ~seed - (uint32_t)(round * HALF_OUT + tid / 32 * 16 + g + i % 2 * 8),
                    step * 16 + q * 2 + i / 2 * 8, false);
            wgmma_fence();
            const uint64_t rows = wgmma_descriptor(shared_at(stage)) + (uint64_t)(step * 2);
            multiply_16(acc, w, rows, F16, round || step);
            if (!F16)
                multiply_shared(
                    both, wgmma_units(shared_at(weights) + (uint32_t)(step * 2 * UNIT), UNIT), rows,
                    round || step);
            wgmma_commit();
            wgmma_wait<0>();
#pragma unroll
            for (int c = 0; c < COLS / 8; c++) {
                const int col = c * 8 + g;
                const uint8_t *row = stage + col * 128 + q * 4;
                const uint32_t b0 = *(const uint32_t *)(row + ((step * 2 ^ col % 8) * 16)),
                               b1 = *(const uint32_t *)(row + ((step * 2 + 1 ^ col % 8) * 16));
                if (F16)
                    mma_f16(sums[c], w[0], w[1], w[2], w[3], b0, b1);
                else
                    mma_bf16(sums[c], w[0], w[1], w[2], w[3], b0, b1);
            }
        }
    }
    int differ = 0;
#pragma unroll
    for (int i = 0; i < COLS / 2; i++) {
        const uint32_t want = __float_as_uint(sums[i / 4][i % 4]);
        differ += __float_as_uint(acc[i]) != want;
        differ += !F16 && __float_as_uint(both[i]) != want;
    }
    if (differ)
        atomicAdd(out, (unsigned)differ);
}

#endif

/* Blocks (trial, kind of numbers, type). */
__global__ void __launch_bounds__(THREADS) agree_kernel(unsigned *out)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    __shared__ __align__(1024) uint8_t stage[COLS * STAGE_K * 2], weights[HALF_OUT * STAGE_K * 2];
    const uint32_t seed = 1 + blockIdx.x * 65536 + blockIdx.y * 4096;
    pdl_wait_trigger();
    if (blockIdx.z)
        compare<true>((int)blockIdx.y, seed, stage, weights, out);
    else
        compare<false>((int)blockIdx.y, seed, stage, weights, out);
#endif
}

bool cuda_wgmma_agrees(struct kdev *d)
{
    unsigned *out = (unsigned *)d->arena, differ = 0;
    cuda_begin(d, "open");
    if (!cuda_ok(d, cudaMemsetAsync(out, 0, sizeof *out, d->stream)))
        return true;
    cuda_launch(d, agree_kernel, dim3(TRIALS, KINDS, 2), THREADS, 0, out);
    cuda_ok(d, cudaMemcpyAsync(&differ, out, sizeof differ, cudaMemcpyDeviceToHost, d->stream));
    cuda_wait(d);
    return differ == 0;
}
