/* byte_blocks.cuh - experts in blocks of 32 codes of a byte and a scale of two bytes (packed.h:
 * E4M3 with a scale of bf16, Q8_0 with one of f16) on the device, which makes bf16 weights of them
 * in registers.
 *
 * Sixteen outputs of an expert are a tile, whose chunks of k are stored in the order of a panel's
 * (chunk_place()). A chunk has the codes of the outputs 0 to 7, for each output and each of four
 * times eight elements two words; the same of the outputs 8 to 15; and their scales:
 *
 *     (experts, tiles, places, (2 x 8 outputs, 4, 8) bytes and 16 scales)
 *
 * So the lanes (g, q) of a warp find their elements 8q .. 8q + 7 of eight outputs in 256 successive
 * bytes. Words of E4M3 are those of fp8.cuh; bytes of Q8_0 are the codes plus 128, in their order.
 */
#pragma once

#include "kernels/cuda/dense/fp8.cuh"
#include "kernels/cuda/dense/packed.cuh"

/* Outputs of a tile; bytes of the codes of eight of them, and of all, in a chunk; bytes of a
 * chunk. */
enum {
    BYTES_ROWS = 16, BYTES_EIGHT = 8 * K_CHUNK, BYTES_CODES = 2 * BYTES_EIGHT,
    BYTES_CHUNK = BYTES_CODES + BYTES_ROWS * 2,
};
/* Device bytes of such a tensor (cuda_byte_experts()). */
static inline size_t byte_experts_size(const struct tensor *t)
{
    return (size_t)(t->dim[0] * t->dim[1] / BYTES_ROWS * (t->dim[2] / K_CHUNK)) * BYTES_CHUNK;
}
/* Stores n tiles in that layout (packed.cu). blocks: their outputs, of k elements each, as the file
 * has them. */
void cuda_repack_bytes(struct kdev *d, int type, const void *blocks, int k, int n, void *dst);

#ifdef __CUDACC__

/* Eight weights from their codes and their scale; the bits of packed_bf16(), but for the sign of
 * zeros.
 *
 * E4M3: first the codes' own values; the scale may be too large to be multiplied by 2^120. Four
 * significant bits times eight are exact before the rounding to bf16, so one multiplication of bf16
 * numbers is the law of packed weights. */
__device__ __forceinline__ uint4 e4m3_eight(uint2 v, uint32_t scale)
{
    const uint4 codes = fp8_eight(v, fp8_factor(0));
    const uint32_t both = __byte_perm(scale, 0, 0x1010);
    return make_uint4(fp8_pair(codes.x, both), fp8_pair(codes.y, both), fp8_pair(codes.z, both),
                      fp8_pair(codes.w, both));
}
/* Q8_0: a byte as the second one of a float32 from 2^15 on is 32768 + byte; less 32896 (nine
 * significant bits) it is the code, all times the scale in one exact fma. */
__device__ __forceinline__ uint4 q8_0_eight(uint2 v, uint32_t scale)
{
    const float by = half_value(scale), less = -32896.f * by;
    uint4 y;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        float two[2];
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int at = j % 2 * 2 + e;
            const uint32_t bits = __byte_perm(j < 2 ? v.x : v.y, 0x47000000, 0x7604 | at << 4);
            two[e] = fmaf(__uint_as_float(bits), by, less);
        }
        (&y.x)[j] = bf16_pair(two[0], two[1]);
    }
    return y;
}
template <bool Q8> __device__ __forceinline__ uint4 bytes_eight(uint2 v, uint32_t scale)
{
    return Q8 ? q8_0_eight(v, scale) : e4m3_eight(v, scale);
}

#endif
