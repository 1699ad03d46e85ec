/* wgmma.cuh - what four warps do together with one tile of keys on Hopper (wgmma): scores and
 * weighted values of 64 packed rows.
 */
#ifndef AERIE_CUDA_ATTN_WGMMA_CUH
#define AERIE_CUDA_ATTN_WGMMA_CUH

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

/* Makes this thread's writes to shared memory visible to wgmma (the async proxy); a barrier
 * follows. */
__device__ __forceinline__ void fence_async_proxy()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

__device__ __forceinline__ void wgmma_begin()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_wait()
{
    asm volatile("wgmma.commit_group.sync.aligned;\n"
                 "wgmma.wait_group.sync.aligned 0;" ::: "memory");
}

#define SUMS8(a, i)                                                                                \
    "+f"(a[i]), "+f"(a[i + 1]), "+f"(a[i + 2]), "+f"(a[i + 3]), "+f"(a[i + 4]), "+f"(a[i + 5]),    \
        "+f"(a[i + 6]), "+f"(a[i + 7])
#define SUMS16(a, i) SUMS8(a, i), SUMS8(a, i + 8)
#define SUMS64(a, i) SUMS16(a, i), SUMS16(a, i + 16), SUMS16(a, i + 32), SUMS16(a, i + 48)
#define NAMES16                                                                                    \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define NAMES32 NAMES16 ","                                                                        \
    "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define NAMES128 NAMES32 ","                                                                       \
    "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,"     \
    "%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,"     \
    "%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,"     \
    "%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,"     \
    "%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"

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
    WGMMA_SCORES("m64n32k16", NAMES16, "%16", "%17", "%18", SUMS16(s, 0));
}
__device__ __forceinline__ void wgmma_scores(float (&s)[32], uint64_t q, uint64_t k, int onto)
{
    WGMMA_SCORES("m64n64k16", NAMES32, "%32", "%33", "%34", SUMS16(s, 0), SUMS16(s, 16));
}

/* x += weights * values; 64 rows by 16 keys, values transposed (key after key) */
#define WGMMA_VALUES(shape, names, w0, w1, w2, w3, values, ...)                                    \
    asm volatile("wgmma.mma_async.sync.aligned." shape ".f32.bf16.bf16 {" names "}, "              \
                 "{" w0 "," w1 "," w2 "," w3 "}, " values ", 1, 1, 1, 1;"                          \
                 : __VA_ARGS__                                                                     \
                 : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "l"(v))

__device__ __forceinline__ void wgmma_values(float (&x)[32], const uint32_t (&w)[4], uint64_t v)
{
    WGMMA_VALUES("m64n64k16", NAMES32, "%32", "%33", "%34", "%35", "%36", SUMS16(x, 0),
                 SUMS16(x, 16));
}
__device__ __forceinline__ void wgmma_values(float (&x)[128], const uint32_t (&w)[4], uint64_t v)
{
    WGMMA_VALUES("m64n256k16", NAMES128, "%128", "%129", "%130", "%131", "%132", SUMS64(x, 0),
                 SUMS64(x, 64));
}

#undef WGMMA_SCORES
#undef WGMMA_VALUES

/* The shared-memory descriptor of a matrix with rows of 128 bytes and 128-byte swizzle. apart:
 * bytes between panels of 64 dimensions. */
__device__ __forceinline__ uint64_t smem_descriptor(uint32_t at, int apart)
{
    return (uint64_t)(at >> 4) | (uint64_t)(apart >> 4) << 16 | (uint64_t)64 << 32 |
           (uint64_t)1 << 62;
}

/* s = q k for this warp's rows */
template <class S>
__device__ __forceinline__ void score_wgmma(const place<S> &p, uint32_t keys,
                                            float (&s)[1][S::KT][4])
{
    const uint32_t queries = p.base + (uint32_t)(S::Q_AT + p.wm / 4 * 64 * 128);
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < S::HD / 16; k++)
        wgmma_scores(reinterpret_cast<float(&)[S::KT * 4]>(s[0]),
                     smem_descriptor(queries + (uint32_t)(k / 4 * S::ROWS * 128 + k % 4 * 32), 16),
                     smem_descriptor(keys + (uint32_t)(k / 4 * S::TK * 128 + k % 4 * 32), 16), k);
    wgmma_wait();
}

/* acc += weights v */
template <class S>
__device__ __forceinline__ void add_values_wgmma(uint32_t values, const float (&s)[1][S::KT][4],
                                                 sums<S> &x)
{
    uint32_t w[S::TK / 16][4];
#pragma unroll
    for (int k = 0; k < S::TK / 16; k++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            w[k][i] = bf16x2_of(s[0][2 * k + i / 2][i % 2 * 2], s[0][2 * k + i / 2][i % 2 * 2 + 1]);
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < S::TK / 16; k++)
        wgmma_values(reinterpret_cast<float(&)[S::DT * 4]>(x.acc[0]), w[k],
                     smem_descriptor(values + (uint32_t)(k * 16 * 128), S::TK * 128));
    wgmma_wait();
}

#else

template <class S>
__device__ __forceinline__ void score_wgmma(const place<S> &, uint32_t, float (&)[1][S::KT][4])
{
}
template <class S>
__device__ __forceinline__ void add_values_wgmma(uint32_t, const float (&)[1][S::KT][4], sums<S> &)
{
}

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
    const int row0 = (int)threadIdx.x / S::CHUNKS, more = a.n_head - a.group;
    if (a.q_bf16) {
#pragma unroll 2
        for (int row = row0; row < S::ROWS; row += S::STEP) {
            const int r = row_of(t, row), there = r < p.n ? 0 : -1;
            const uint16_t *from = a.q_bf16 + first + (r < p.n ? (r * more + row) * S::HD : 0);
            cp_async16(p.base + to + row * 128 + ((chunk % 8 ^ (row & 7)) << 4), from, there);
        }
        cp_async_commit();
        return;
    }
#pragma unroll 8
    for (int row = row0; row < S::ROWS; row += S::STEP) {
        const int r = row_of(t, row);
        float4 x = {0, 0, 0, 0}, y = x;
        if (r < p.n) {
            const float4 *q = (const float4 *)(a.q + first + (r * more + row) * S::HD);
            x = __ldcg(q), y = __ldcg(q + 1);
        }
        *(uint4 *)(p.shared + to + row * 128 + ((chunk % 8 ^ (row & 7)) << 4)) = make_uint4(
            bf16x2_of(x.x, x.y), bf16x2_of(x.z, x.w), bf16x2_of(y.x, y.y), bf16x2_of(y.z, y.w));
    }
}

/* Waits for asynchronous copies of queries, and for copies of cells that were started before. */
__device__ __forceinline__ void wait_queries(const tile_args &t)
{
    if (t.a.q_bf16)
        cp_async_wait<0>();
}

#endif
