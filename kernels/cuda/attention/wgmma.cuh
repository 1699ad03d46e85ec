/* wgmma.cuh - what four warps do together with one tile of keys on Hopper (wgmma): scores and
 * weighted values of 64 packed rows.
 */
#pragma once

#include "kernels/cuda/attention/tile.cuh"

/* ---- four warps multiply together ------------------------------------------------------------ */

/* wgmma adds 16 products to a sum exactly as mma.sync does (dense/wgmma.cuh). The host chooses
 * these configurations only if the device runs code for 9.0a; in code for other GPUs the
 * functions are empty. */
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define HAVE_WGMMA 1
#else
#define HAVE_WGMMA 0
#endif

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* s = queries * keys, or s += queries * keys if `onto`; 64 rows by 16 dimensions */
#define WGMMA_SCORES(shape, names, queries, keys, more, ...)                                       \
    asm volatile("{\n"                                                                             \
                 ".reg .pred p;\n"                                                                 \
                 "setp.ne.b32 p, " more ", 0;\n"                                                   \
                 "wgmma.mma_async.sync.aligned." shape ".f32.bf16.bf16 {" names "}, "              \
                 queries ", " keys ", p, 1, 1, 0, 0;\n"                                            \
                 "}\n"                                                                             \
                 : __VA_ARGS__                                                                     \
                 : "l"(q), "l"(k), "r"(onto))

__device__ __forceinline__ void wgmma_scores(float (&s)[16], uint64_t q, uint64_t k, int onto)
{
    WGMMA_SCORES("m64n32k16", REG16, "%16", "%17", "%18", ACC16(s, 0));
}
__device__ __forceinline__ void wgmma_scores(float (&s)[32], uint64_t q, uint64_t k, int onto)
{
    WGMMA_SCORES("m64n64k16", REG32, "%32", "%33", "%34", ACC32(s, 0));
}

/* x += weights * values; 64 rows by 16 keys, values transposed (key after key) */
#define WGMMA_VALUES(shape, names, w0, w1, w2, w3, values, ...)                                    \
    asm volatile("wgmma.mma_async.sync.aligned." shape ".f32.bf16.bf16 {" names "}, "              \
                 "{" w0 "," w1 "," w2 "," w3 "}, " values ", 1, 1, 1, 1;"                          \
                 : __VA_ARGS__                                                                     \
                 : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "l"(v))

__device__ __forceinline__ void wgmma_values(float (&x)[32], const uint32_t (&w)[4], uint64_t v)
{
    WGMMA_VALUES("m64n64k16", REG32, "%32", "%33", "%34", "%35", "%36", ACC32(x, 0));
}
__device__ __forceinline__ void wgmma_values(float (&x)[64], const uint32_t (&w)[4], uint64_t v)
{
    WGMMA_VALUES("m64n128k16", REG64, "%64", "%65", "%66", "%67", "%68", ACC32(x, 0),
                 ACC32(x, 32));
}
__device__ __forceinline__ void wgmma_values(float (&x)[128], const uint32_t (&w)[4], uint64_t v)
{
    WGMMA_VALUES("m64n256k16", REG128, "%128", "%129", "%130", "%131", "%132", ACC64(x, 0),
                 ACC64(x, 64));
}

#undef WGMMA_SCORES
#undef WGMMA_VALUES

/* wgmma_descriptor() of an address that is the same in all lanes: kept in uniform registers, from
 * which wgmma takes descriptors. */
__device__ __forceinline__ uint64_t uniform_descriptor(uint32_t at, int apart)
{
    return wgmma_descriptor(__shfl_sync(~0u, at, 0), apart);
}

/* The descriptor of what lies `bytes` behind. */
__device__ __forceinline__ uint64_t descriptor_after(uint64_t d, int bytes)
{
    return (d & ~(uint64_t)UINT32_MAX) | ((uint32_t)d + (uint32_t)(bytes / 16));
}

/* Starts s = q k for this warp's rows; wgmma_wait() waits. */
template <class S>
__device__ __forceinline__ void start_scores(const place<S> &p, uint32_t keys,
                                             float (&s)[1][S::KT][4])
{
    const uint64_t q = uniform_descriptor(p.base + (uint32_t)(S::Q_AT + p.wm / 4 * 64 * 128), 16),
                   of = uniform_descriptor(keys, 16);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < S::HD / 16; k++)
        wgmma_scores(reinterpret_cast<float(&)[S::KT * 4]>(s[0]),
                     descriptor_after(q, k / 4 * S::ROWS * 128 + k % 4 * 32),
                     descriptor_after(of, k / 4 * S::TK * 128 + k % 4 * 32), k);
    wgmma_commit();
}

/* Starts acc += weights v, for this warp's dimensions; wgmma_wait() waits. */
template <class S>
__device__ __forceinline__ void start_values(const place<S> &p, uint32_t values,
                                             const float (&s)[1][S::KT][4], sums<S> &x)
{
    values += (uint32_t)(p.wn * (S::DT / 8) * S::TK * 128); /* 64 dimensions a panel */
    const uint64_t of = uniform_descriptor(values, S::TK * 128);
    uint32_t w[S::TK / 16][4];
#pragma unroll
    for (int k = 0; k < S::TK / 16; k++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            w[k][i] = bf16_two(s[0][2 * k + i / 2][i % 2 * 2], s[0][2 * k + i / 2][i % 2 * 2 + 1]);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < S::TK / 16; k++)
        wgmma_values(reinterpret_cast<float(&)[S::DT * 4]>(x.acc[0]), w[k],
                     descriptor_after(of, k * 16 * 128));
    wgmma_commit();
}

#else

template <class S>
__device__ __forceinline__ void start_scores(const place<S> &, uint32_t, float (&)[1][S::KT][4])
{
}
template <class S>
__device__ __forceinline__ void start_values(const place<S> &, uint32_t,
                                             const float (&)[1][S::KT][4], sums<S> &)
{
}
template <int LEFT> __device__ __forceinline__ void wgmma_wait() {}

#endif

/* Copies the queries to shared memory as bf16, in panels of 64 dimensions of all rows. If the
 * queries exist as bf16 already, the copies are asynchronous and wait_queries() waits. */
template <class S>
__device__ __forceinline__ void share_queries(const tile_args &t, const place<S> &p)
{
    const attn_args &a = t.a;
    const int chunk = (int)threadIdx.x % S::CHUNKS;
    const uint32_t to = (uint32_t)(S::Q_AT + chunk / 8 * (S::ROWS * 128));
    const size_t first = ((size_t)p.r0 * (size_t)a.n_head + (size_t)(p.kv * a.group)) * S::HD +
                         (size_t)(chunk * 8);
    constexpr int STEP = S::NT / S::CHUNKS;
    const int row0 = (int)threadIdx.x / S::CHUNKS, more = a.n_head - a.group;
    if (a.q_bf16) {
#pragma unroll 2
        for (int row = row0; row < S::ROWS; row += STEP) {
            const int r = row_of(t, row), there = r < p.n ? 0 : -1;
            const uint16_t *from = a.q_bf16 + first + (r < p.n ? (r * more + row) * S::HD : 0);
            cp_async16(p.base + to + row * 128 + ((chunk % 8 ^ (row & 7)) << 4), from, there);
        }
        cp_async_commit();
        return;
    }
#pragma unroll 8
    for (int row = row0; row < S::ROWS; row += STEP) {
        const int r = row_of(t, row);
        float4 x = {0, 0, 0, 0}, y = x;
        if (r < p.n) {
            const float4 *q = (const float4 *)(a.q + first + (r * more + row) * S::HD);
            x = __ldcg(q), y = __ldcg(q + 1);
        }
        *(uint4 *)(p.shared + to + row * 128 + ((chunk % 8 ^ (row & 7)) << 4)) = make_uint4(
            bf16_two(x.x, x.y), bf16_two(x.z, x.w), bf16_two(y.x, y.y), bf16_two(y.z, y.w));
    }
}

/* Waits for asynchronous copies of queries, and for copies of cells that were started before. */
__device__ __forceinline__ void wait_queries(const tile_args &t)
{
    if (t.a.q_bf16)
        cp_async_wait<0>();
}
