/* cuda_heads.cuh - what becomes of one head of one row after its projection: norm, turn, cell.
 *
 * For a block of ROW_THREADS, be it one of a kernel of its own or the one that finishes the head's
 * product; the order of a head's sum of squares is the same in both.
 */
#ifndef AERIE_CUDA_HEADS_CUH
#define AERIE_CUDA_HEADS_CUH

#include "kernels/cuda_row.cuh"

struct heads {
    const float *q, *k, *v; /* raw projections; k NULL: none */
    int n_head, n_kv, head_dim, rot;
    bool whole, v_from_k;
    struct norm q_norm, k_norm, v_norm;
    const float *cs;
    float *dst;           /* q */
    const int32_t *write; /* or NULL */
    void *cell_k, *cell_v;
    int kv_bf16, n_slots;
};

#ifdef __CUDACC__

__device__ __forceinline__ void put_cell(void *pool, int type_bf16, size_t at, float x)
{
    if (type_bf16)
        ((bf16 *)pool)[at] = __float2bfloat16_rn(x);
    else
        ((float *)pool)[at] = x;
}

/* Element i of a head after its norm and turn. */
__device__ __forceinline__ float turned(const heads &a, const struct norm &norm, const float *x,
                                        float inv, int at, int i, const float *cs)
{
    int half = a.rot / 2;
    float y = normed(norm, __ldcg(x + i), inv, at + i);
    if (i >= a.rot)
        return y;
    int pair = i < half ? i : i - half, other = i < half ? i + half : i - half;
    float z = normed(norm, __ldcg(x + other), inv, at + other);
    float c = cs[2 * pair], s = cs[2 * pair + 1];
    return i < half ? fmaf(y, c, -(z * s)) : fmaf(y, c, z * s);
}

/* 1 / rms of n elements. */
__device__ __forceinline__ float head_inverse(const float *x, int n, const struct norm &norm,
                                              float *room)
{
    if (norm.kind == NORM_NONE)
        return 1;
    float ss = 0;
    for (int i = (int)threadIdx.x; i < n; i += ROW_THREADS) {
        float y = __ldcg(x + i);
        ss = fmaf(y, y, ss);
    }
    return 1 / sqrtf(row_sum(ss, room) / (float)n + norm.eps);
}

/* Head h of row r: of q (what 0), k (1) or v (2). */
__device__ __forceinline__ void finish_head(const heads &a, int r, int what, int h, float *room)
{
    int n = a.head_dim, n_of = what ? a.n_kv : a.n_head;
    const float *row = what == 0 ? a.q : what == 1 || a.v_from_k ? a.k : a.v;
    row += (size_t)r * (size_t)(n_of * n);
    const struct norm &norm = what == 0 ? a.q_norm : what == 1 ? a.k_norm : a.v_norm;
    bool whole = a.whole && what < 2;
    const float *x = row + (size_t)h * (size_t)n;
    float inv = head_inverse(whole ? row : x, whole ? n_of * n : n, norm, room);
    int at = whole ? h * n : 0;
    const float *cs = a.cs + (size_t)r * (size_t)a.rot;
    int slot = what ? a.write[r] : 0;
    if (what && (slot < 0 || slot >= a.n_slots))
        return;
    for (int i = (int)threadIdx.x; i < n; i += ROW_THREADS) {
        float y = what < 2 ? turned(a, norm, x, inv, at, i, cs)
                           : normed(norm, __ldcg(x + i), inv, i);
        if (what == 0)
            a.dst[((size_t)r * (size_t)a.n_head + (size_t)h) * (size_t)n + (size_t)i] = y;
        else
            put_cell(what == 1 ? a.cell_k : a.cell_v, a.kv_bf16,
                     ((size_t)slot * (size_t)a.n_kv + (size_t)h) * (size_t)n + (size_t)i, y);
    }
}

#endif
#endif
