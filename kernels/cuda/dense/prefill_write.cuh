/* prefill_write.cuh - the writer warps of the prefill kernel (prefill.cuh): how a tile's sums,
 * which the consumers have put into shared memory, are finished and stored.
 */
#pragma once

#include "kernels/cuda/dense/wgmma.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

enum { BATCH = 2 /* rows whose old values a writer loads together */ };

/* The part of a tile that a writer warp stores: rows warp, warp + WRITERS, ... The writers' code is
 * small, because the consumers share the instruction cache with it. */
struct strip {
    const float *sums;
    int first, rows;                /* the first of the product's rows, number of rows */
    int panel, row, run, wide; /* the outputs: see tile_origin */
    int high;                  /* rows of a panel */
    int n;                          /* outputs of the matrix */
    int warp;
    /* The output at a place of the tile; n or more: none. The output at an even place and the next
     * one are successive. */
    __device__ __forceinline__ int output(int at) const
    {
        return at < wide ? (panel + at / run) * high + row + at % run : n;
    }
};

/* Stores sums, after bias and addition, 16 bytes a lane where these are successive. */
template <int TERMS, int WRITERS>
__device__ __forceinline__ void write_wide(const strip &s, const epilogue &f)
{
    const int mine = (int)threadIdx.x % 32 * 4, out = s.output(mine), more = s.output(mine + 2);
    const bool low = out < s.n, high = more < s.n, whole = out % 4 == 0 && more == out + 2 && high;
    if (!low && !high)
        return;
    float4 b = make_float4(0, 0, 0, 0);
    if (f.b.p && low)
        b.x = weight_at(f.b, (size_t)out), b.y = weight_at(f.b, (size_t)(out + 1));
    if (f.b.p && high)
        b.z = weight_at(f.b, (size_t)more), b.w = weight_at(f.b, (size_t)(more + 1));
    const bool bias = f.b.p, add = f.add;
    const size_t pitch = f.dst_stride;
    float *dst = f.dst + (size_t)s.first * pitch + (low ? out : more);
    const int apart = low && high ? more - out : 0;
    for (int i = s.warp; i < s.rows; i += BATCH * WRITERS) {
        float2 old[BATCH][2];
#pragma unroll
        for (int j = 0; add && j < BATCH; j++) {
            const float *from = dst + (size_t)min(i + j * WRITERS, s.rows - 1) * pitch;
            old[j][0] = *(const float2 *)from, old[j][1] = *(const float2 *)(from + apart);
        }
#pragma unroll
        for (int j = 0; j < BATCH; j++) {
            const int row = i + j * WRITERS;
            if (row >= s.rows)
                break;
            float2 l = *(const float2 *)(s.sums + sum_at<TERMS>(row, mine));
            float2 h = *(const float2 *)(s.sums + sum_at<TERMS>(row, mine + 2));
            if (bias)
                l.x += b.x, l.y += b.y, h.x += b.z, h.y += b.w;
            if (add)
                l.x += old[j][0].x, l.y += old[j][0].y, h.x += old[j][1].x, h.y += old[j][1].y;
            float *to = dst + (size_t)row * pitch;
            if (whole) {
                *(float4 *)to = make_float4(l.x, l.y, h.x, h.y);
                continue;
            }
            if (low)
                *(float2 *)to = l;
            if (high)
                *(float2 *)(to + apart) = h;
        }
    }
}

/* GLU: stores act(gate) * up packed for the next product, in rows of `pitch` elements, two outputs
 * a lane. A warp takes two successive rows at a time. With one term their sums are at the same
 * places of the buffer's rows (sum_at()). */
template <int TERMS, int WRITERS, int ACT>
__device__ __forceinline__ void pack_gated(const strip &s, uint16_t *to, size_t pitch)
{
    enum { EACH = 2 };
    const int mine = (int)threadIdx.x % 32 * 2, out = s.output(mine), begin = s.warp * EACH;
    if (out >= s.n)
        return;
    to += (size_t)((s.first + begin) * TERMS) * pitch + (size_t)tile_place(out);
    const unsigned step = (unsigned)pitch * (WRITERS * EACH * TERMS);
#pragma unroll 1
    for (int row = begin; row < s.rows; row += WRITERS * EACH, to += step) {
        const float *sums = s.sums + sum_at<TERMS>(row, mine);
        float2 y[EACH];
#pragma unroll
        for (int i = 0; i < EACH; i++) { /* behind the last row: not stored */
            const float *at = TERMS == 1 ? sums + i * TILE_OUT
                                         : s.sums + sum_at<TERMS>(row + i, mine);
            const float2 gate = *(const float2 *)at, up = *(const float2 *)(at + HALF_OUT);
            y[i] = make_float2(activate(gate.x, ACT) * up.x, activate(gate.y, ACT) * up.y);
        }
#pragma unroll
        for (int i = 0; i < EACH; i++)
#pragma unroll
            for (int t = 0; t < TERMS && row + i < s.rows; t++)
                *(uint32_t *)(to + (size_t)(i * TERMS + t) * pitch) =
                    split_two<bf16>(y[i].x, y[i].y);
    }
}

/* GLU: stores act(gate) * up as floats, one output a lane. */
template <int TERMS, int WRITERS>
__device__ __forceinline__ void write_gated(const strip &s, const epilogue &f, int act)
{
#pragma unroll 1
    for (int at = (int)threadIdx.x % 32; at < HALF_OUT; at += 32) {
        const int out = s.output(at);
#pragma unroll 1
        for (int row = s.warp; row < s.rows && out < s.n; row += WRITERS) {
            float y = activate(s.sums[sum_at<TERMS>(row, at)], act) *
                      s.sums[sum_at<TERMS>(row, HALF_OUT + at)];
            f.dst[(size_t)(s.first + row) * f.dst_stride + (size_t)out] = y;
        }
    }
}

/* Stores sums after any epilogue, one output a lane. */
template <int TERMS, int WRITERS>
__device__ __forceinline__ void write_any(const strip &s, const epilogue &f)
{
#pragma unroll 1
    for (int at = (int)threadIdx.x % 32; at < TILE_OUT; at += 32) {
        const int out = s.output(at);
#pragma unroll 1
        for (int row = s.warp; row < s.rows && out < s.n; row += WRITERS)
            store_output(f, apply_epilogue(f, s.sums[sum_at<TERMS>(row, at)], out, s.first + row),
                         out, s.first + row);
    }
}

#endif
