/* heads.cuh - the epilogue of one head of one row of a q, k, v projection: norm, rope, and the
 * store of k and v into their pool cell.
 *
 * Here a block of ROW_THREADS processes a head; in heads.cu a warp does, and in decode_run.cuh the
 * blocks that compute the head. The order of a head's sum of squares is the same in all
 * (neighbour_sum() of base/reduce.cuh). Three kernels exist because each is faster where it is
 * used: the blocks of a decode product hold the head already, a warp a head serves several rows,
 * and a block a head takes what the other two do not support.
 */
#pragma once

#include "kernels/cuda/base/row.cuh"
#include "kernels/fp8.h"

struct heads {
    const float *q, *k, *v; /* projections, before the norm; k NULL: only q */
    int n_head, n_kv, head_dim, rot;
    bool whole, v_from_k;
    struct norm q_norm, k_norm, v_norm;
    const float *cs;
    float *dst;           /* q after norm and rope */
    uint16_t *bits;       /* out: dst as bf16; or NULL */
    const int32_t *write; /* the slot of each row's k and v; NULL: none */
    void *cell_k, *cell_v;
    enum kv_type kv;
    int n_slots;
    size_t cell_bytes; /* kv_cell_bytes() */
    int splits;      /* q holds this many partial sums of all heads (partial_at()), to be
                        reduced and biased here; 0: q, k, v hold the elements */
    struct vec b[3]; /* with splits: the biases */
};

/* Processes all heads of the rows with a warp a head (heads.cu). False: this kernel does not
 * support these heads. Splits are supported only if cuda_heads_reduce(). For at most
 * MAX_VERIFY_ROWS rows the queries are stored as bf16, too (kdev.queries). */
bool cuda_heads(struct kdev *d, const struct heads *h, int rows);
bool cuda_heads_reduce(const struct heads *h);

/* Whether keys and values become FP8. Then a head is normalised and rotated as a whole before any
 * of it is stored: its largest number gives the scale. */
static inline __host__ __device__ bool stores_fp8(const struct heads *h)
{
    return h->k && h->kv == KV_FP8;
}

#ifdef __CUDACC__

enum { HEAD_Q, HEAD_K, HEAD_V };

__device__ __forceinline__ uint32_t magnitude_of(float x)
{
    return __float_as_uint(x) & 0x7fffffff;
}

/* A head's part of a cell. */
struct fp8_head {
    uint8_t *codes, *scale;
};
__device__ __forceinline__ fp8_head fp8_head_of(const heads &a, int kind, int slot, int h)
{
    uint8_t *cell = (uint8_t *)(kind == HEAD_K ? a.cell_k : a.cell_v) + (size_t)slot * a.cell_bytes;
    return {cell + h * a.head_dim, cell + a.n_kv * a.head_dim + h};
}

__device__ __forceinline__ void put_cell(void *pool, int type_bf16, size_t at, float x)
{
    if (type_bf16)
        ((bf16 *)pool)[at] = __float2bfloat16_rn(x);
    else
        ((float *)pool)[at] = x;
}

/* What a thread needs for its first element of a head besides the projection, so that the loads can
 * be in flight early. A thread's elements are threadIdx.x + ROW_THREADS * j. */
struct head_part {
    float w, w_other, c, s;
    int slot; /* of k and v; -1: the row is not stored */
};

/* The heads of q are numbered first, then those of k, then of v. */
__device__ __forceinline__ int kind_of_head(const heads &a, int h, int &of_kind)
{
    int kind = h < a.n_head ? HEAD_Q : h < a.n_head + a.n_kv ? HEAD_K : HEAD_V;
    of_kind = h - (kind == HEAD_Q ? 0 : a.n_head) - (kind == HEAD_V ? a.n_kv : 0);
    return kind;
}

/* The element that rope pairs with element i; i itself behind the rotated part. */
__device__ __forceinline__ int rope_partner(const heads &a, int i)
{
    int half = a.rot / 2;
    return i >= a.rot ? i : i < half ? i + half : i - half;
}

__device__ __forceinline__ float norm_weight(const struct norm &norm, int i)
{
    return norm.w.p ? weight_at(norm.w, (size_t)i) : 0.f;
}

__device__ __forceinline__ void load_element(const heads &a, int r, int kind, int h, int i,
                                             struct head_part &p)
{
    const struct norm &norm = kind == HEAD_Q ? a.q_norm : kind == HEAD_K ? a.k_norm : a.v_norm;
    int other = rope_partner(a, i), at = a.whole && kind != HEAD_V ? h * a.head_dim : 0;
    p.w = norm_weight(norm, at + i);
    p.w_other = norm_weight(norm, at + other);
    if (kind == HEAD_V || i >= a.rot)
        return;
    const float2 *cs = (const float2 *)(a.cs + (size_t)r * (size_t)a.rot);
    float2 angle = __ldcg(cs + min(i, other));
    p.c = angle.x, p.s = angle.y;
}

__device__ __forceinline__ void load_head(const heads &a, int r, int h_of_all, struct head_part &p)
{
    int h, kind = kind_of_head(a, h_of_all, h), i = (int)threadIdx.x;
    p.slot = kind == HEAD_Q ? 0 : __ldcg(a.write + r);
    if (p.slot >= a.n_slots && kind != HEAD_Q)
        p.slot = -1;
    if (i < a.head_dim)
        load_element(a, r, kind, h, i, p);
}

/* The sum over the block, neighbours first. scratch: see row_sum(). */
__device__ __forceinline__ float head_sum(float v, float *scratch)
{
    return neighbour_sum<ROW_WARPS>(v, scratch, row_barrier);
}

/* 1 / rms of n elements; x0: the thread's first element. */
__device__ __forceinline__ float head_inverse(const float *x, int n, float x0,
                                              const struct norm &norm, float *scratch)
{
    if (norm.kind == NORM_NONE)
        return 1;
    float ss = (int)threadIdx.x < n ? x0 * x0 : 0.f;
#pragma unroll 1
    for (int i = (int)threadIdx.x + ROW_THREADS; i < n; i += ROW_THREADS) {
        float y = __ldcg(x + i);
        ss = fmaf(y, y, ss);
    }
    return 1 / sqrtf(head_sum(ss, scratch) / (float)n + norm.eps);
}

/* The largest of the block's threads' magnitudes. */
__device__ __forceinline__ uint32_t largest_of_row(uint32_t most, float *scratch)
{
    row_barrier(); /* no thread reads scratch any more */
    const float x = __uint_as_float(most);
    return __float_as_uint(block_max_positive<ROW_WARPS>(x, scratch, row_barrier));
}

/* Finishes one head of row r; with v_from_k a head of v has the same projection as that of k. */
__device__ __forceinline__ void finish_kind(const heads &a, int r, int kind, int h,
                                            const struct head_part &first, float *scratch)
{
    int n = a.head_dim, n_of = kind == HEAD_Q ? a.n_head : a.n_kv;
    const float *row = kind == HEAD_Q ? a.q : kind == HEAD_K || a.v_from_k ? a.k : a.v;
    row += (size_t)r * (size_t)(n_of * n);
    const struct norm &norm = kind == HEAD_Q ? a.q_norm : kind == HEAD_K ? a.k_norm : a.v_norm;
    bool whole = a.whole && kind != HEAD_V;
    const float *x = row + (size_t)h * (size_t)n;
    int i = (int)threadIdx.x, i0 = min(i, n - 1);
    float x0 = __ldcg(x + i0), z0 = __ldcg(x + rope_partner(a, i0)); /* in flight during the sum */
    float first_of_all = whole ? __ldcg(row + min(i, n_of * n - 1)) : x0;
    float inv = head_inverse(whole ? row : x, whole ? n_of * n : n, first_of_all, norm, scratch);
    if (first.slot < 0)
        return;
    const auto finished = [&](int i) {
        struct head_part p = first;
        float xi = x0, zi = z0;
        if (i >= ROW_THREADS) {
            load_element(a, r, kind, h, i, p);
            xi = __ldcg(x + i), zi = __ldcg(x + rope_partner(a, i));
        }
        float y = normed_by(norm.kind, xi, inv, p.w);
        if (kind != HEAD_V && i < a.rot) {
            float z = normed_by(norm.kind, zi, inv, p.w_other);
            y = i < a.rot / 2 ? fmaf(y, p.c, -(z * p.s)) : fmaf(y, p.c, z * p.s);
        }
        return y;
    };
    if (kind != HEAD_Q && stores_fp8(&a)) {
        uint32_t most = 0;
        for (int j = i; j < n; j += ROW_THREADS)
            most = max(most, magnitude_of(finished(j)));
        const uint8_t scale = fp8_cell_scale_of(largest_of_row(most, scratch));
        const fp8_head to = fp8_head_of(a, kind, first.slot, h);
        for (int j = i; j < n; j += ROW_THREADS)
            to.codes[j] = fp8_cell_code(finished(j), scale);
        if (i == 0)
            *to.scale = scale;
        return;
    }
    for (; i < n; i += ROW_THREADS) {
        const float y = finished(i);
        if (kind == HEAD_Q)
            a.dst[((size_t)r * (size_t)a.n_head + (size_t)h) * (size_t)n + (size_t)i] = y;
        else
            put_cell(kind == HEAD_K ? a.cell_k : a.cell_v, a.kv == KV_BF16,
                     ((size_t)first.slot * (size_t)a.n_kv + (size_t)h) * (size_t)n + (size_t)i, y);
    }
}

/* Finishes head h_of_all of row r; p: what load_head() loaded for it. */
__device__ __forceinline__ void finish_head(const heads &a, int r, int h_of_all,
                                            const struct head_part &p, float *scratch)
{
    int h, kind = kind_of_head(a, h_of_all, h);
    finish_kind(a, r, kind, h, p, scratch);
    if (kind == HEAD_K && a.v_from_k) {
        struct head_part v = p;
        if ((int)threadIdx.x < a.head_dim)
            load_element(a, r, HEAD_V, h, (int)threadIdx.x, v);
        row_barrier();
        finish_kind(a, r, HEAD_V, h, v, scratch);
    }
}

#endif
