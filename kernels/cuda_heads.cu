/* cuda_heads.cu - heads of many rows after their projection: norm, turn, cell. A warp takes a head
 * (two, where they are short), a thread four elements at a time; the bits are those of
 * finish_head().
 */
#include "kernels/cuda_heads.cuh"

enum { MANY = 65, MOST = 65535 }; /* rows */

/* DIM: of a head. A warp holds one head, or as many as fill its lanes. */
template <int DIM> struct span {
    enum {
        LANES = DIM / 4 < 32 ? DIM / 4 : 32,
        EACH = DIM / 4 / LANES, /* fours of a thread, 4 * LANES elements apart */
        HEADS = 32 / LANES,
        OF_BLOCK = ROW_WARPS * HEADS,
    };
};

/* 1 / rms of a head, in the order of head_sum(). */
template <int DIM>
__device__ __forceinline__ float span_inverse(const float4 (&x)[span<DIM>::EACH],
                                              const struct norm &norm)
{
    using S = span<DIM>;
    if (norm.kind == NORM_NONE)
        return 1;
    float sum = 0;
#pragma unroll
    for (int j = 0; j < S::EACH; j++) {
        float s = (x[j].x * x[j].x + x[j].y * x[j].y) + (x[j].z * x[j].z + x[j].w * x[j].w);
#pragma unroll
        for (int d = 1; d < S::LANES; d *= 2)
            s += __shfl_xor_sync(~0u, s, d);
        sum = j ? sum + s : s;
    }
    return 1 / sqrtf(sum / (float)DIM + norm.eps);
}

/* Elements i .. i + 3 of a head, normalised, with those they turn with. cs: of the row. */
__device__ __forceinline__ float4 turned(const heads &a, const struct norm &norm, const float *x,
                                         float4 y, float inv, const float *cs, int i)
{
    const int n = a.head_dim, other = other_of(a, i);
    const float4 w = norm.w.p ? four_weights(norm.w, n, i) : y;
    y = four_normed(norm.kind, y, inv, w);
    if (!cs || i >= a.rot)
        return y;
    float4 z = __ldcg((const float4 *)(x + other));
    z = four_normed(norm.kind, z, inv, norm.w.p ? four_weights(norm.w, n, other) : z);
    const float4 *turn = (const float4 *)(cs + 2 * min(i, other));
    const float4 t0 = __ldcg(turn), t1 = __ldcg(turn + 1);
    const float c[4] = {t0.x, t0.z, t1.x, t1.z}, s[4] = {t0.y, t0.w, t1.y, t1.w};
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const float zs = (&z.x)[e] * s[e];
        (&y.x)[e] = fmaf((&y.x)[e], c[e], i < a.rot / 2 ? -zs : zs);
    }
    return y;
}

__device__ __forceinline__ void put_four(void *pool, int type_bf16, size_t at, float4 y)
{
    if (!type_bf16) {
        *(float4 *)((float *)pool + at) = y;
        return;
    }
    __nv_bfloat162 v[2] = {__floats2bfloat162_rn(y.x, y.y), __floats2bfloat162_rn(y.z, y.w)};
    *(uint2 *)((bf16 *)pool + at) = *(uint2 *)v;
}

/* Blocks (heads, row). */
template <int DIM>
__global__ void __launch_bounds__(ROW_THREADS)
    heads_of_many(const __grid_constant__ struct heads a, int all)
{
    using S = span<DIM>;
    let_next();
    after();
    const int r = (int)blockIdx.y, group = (int)threadIdx.x / S::LANES;
    const int h_of_all = (int)blockIdx.x * S::OF_BLOCK + group;
    const bool mine = h_of_all < all;
    int h, kind = kind_of_head(a, mine ? h_of_all : 0, h);
    const float *x = kind == HEAD_Q ? a.q : kind == HEAD_K || a.v_from_k ? a.k : a.v;
    x += ((size_t)r * (size_t)(kind == HEAD_Q ? a.n_head : a.n_kv) + (size_t)h) * DIM;
    const struct norm &norm = kind == HEAD_Q ? a.q_norm : kind == HEAD_K ? a.k_norm : a.v_norm;
    const int slot = kind == HEAD_Q ? 0 : __ldcg(a.write + r);
    const int first = (int)threadIdx.x % S::LANES * 4;
    float4 y[S::EACH];
#pragma unroll
    for (int j = 0; j < S::EACH; j++)
        y[j] = __ldcg((const float4 *)(x + first + j * 4 * S::LANES));
    const float inv = span_inverse<DIM>(y, norm);
    if (!mine || slot < 0 || (kind != HEAD_Q && slot >= a.n_slots))
        return;
    const float *cs = kind == HEAD_V ? NULL : a.cs + (size_t)r * (size_t)a.rot;
#pragma unroll
    for (int j = 0; j < S::EACH; j++) {
        const int i = first + j * 4 * S::LANES;
        const float4 v = turned(a, norm, x, y[j], inv, cs, i);
        if (kind == HEAD_Q)
            *(float4 *)(a.dst + ((size_t)r * (size_t)a.n_head + (size_t)h) * DIM + (size_t)i) = v;
        else
            put_four(kind == HEAD_K ? a.cell_k : a.cell_v, a.kv_bf16,
                     ((size_t)slot * (size_t)a.n_kv + (size_t)h) * DIM + (size_t)i, v);
    }
}

template <int DIM> static void run(struct kdev *d, const struct heads *h, int rows)
{
    int all = h->n_head + (h->k ? 2 * h->n_kv : 0);
    dim3 grid((unsigned)div_up(all, (int)span<DIM>::OF_BLOCK), (unsigned)rows);
    cuda_launch(d, heads_of_many<DIM>, grid, ROW_THREADS, 0, *h, all);
}

bool cuda_heads_of_many(struct kdev *d, const struct heads *h, int rows)
{
    const uintptr_t at = (uintptr_t)h->q | (uintptr_t)h->k | (uintptr_t)h->v | (uintptr_t)h->cs |
                         (uintptr_t)h->dst | (uintptr_t)h->cell_k | (uintptr_t)h->cell_v;
    if (rows < MANY || rows > MOST || h->whole || h->rot % 8 || at % 16)
        return false;
    if (h->head_dim == 64)
        run<64>(d, h, rows);
    else if (h->head_dim == 128)
        run<128>(d, h, rows);
    else if (h->head_dim == 256)
        run<256>(d, h, rows);
    else
        return false;
    return true;
}
