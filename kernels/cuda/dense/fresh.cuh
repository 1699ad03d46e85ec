/* fresh.cuh - fresh cells (struct fresh_cells, cuda.h): decode rows' keys and values become FP8. */
#pragma once

#include "kernels/cuda/cuda.h"
#include "kernels/fp8.h"

#ifdef __CUDACC__

/* Stores kv head h of a row's keys or values; a warp calls. */
template <int HD>
__device__ __forceinline__ void store_fresh_head(const fresh_cells &f, int row, bool v, int h)
{
    constexpr int EACH = HD / 32; /* elements of a lane: 2, 4 or 8 */
    const int lane = (int)threadIdx.x % 32, slot = __ldcg(f.write + row);
    const float *x =
        (v ? f.v : f.k) + ((size_t)row * (size_t)f.n_kv + (size_t)h) * HD + lane * EACH;
    float2 y[EACH / 2];
    uint32_t most = 0, codes[2] = {};
#pragma unroll
    for (int i = 0; i < EACH / 2; i++)
        y[i] = __ldcg((const float2 *)x + i);
#pragma unroll
    for (int i = 0; i < EACH / 2; i++)
        most = max(most, max(__float_as_uint(y[i].x) & 0x7fffffff,
                             __float_as_uint(y[i].y) & 0x7fffffff));
    most = __reduce_max_sync(~0u, most);
    if ((unsigned)slot >= (unsigned)f.n_slots)
        return;
    const uint8_t scale = fp8_cell_scale_of(most);
    uint8_t *cell = (uint8_t *)(v ? f.cell_v : f.cell_k) + (size_t)slot * f.cell_bytes;
    uint8_t *to = cell + h * HD + lane * EACH;
#pragma unroll
    for (int i = 0; i < EACH; i++)
        codes[i / 4] |= (uint32_t)fp8_cell_code(i % 2 ? y[i / 2].y : y[i / 2].x, scale)
                        << i % 4 * 8;
    if constexpr (EACH == 2)
        *(uint16_t *)to = (uint16_t)codes[0];
    else if constexpr (EACH == 4)
        *(uint32_t *)to = codes[0];
    else
        *(uint2 *)to = make_uint2(codes[0], codes[1]);
    if (lane == 0)
        cell[f.n_kv * HD + h] = scale;
}

#endif
