/* cuda_sample.cuh - what cuda_sample.cu reads logits with: rows cut into segments, keys that order
 * candidates, a segment in registers, the log of a sum of exponentials, the k best of a block.
 */
#ifndef AERIE_CUDA_SAMPLE_CUH
#define AERIE_CUDA_SAMPLE_CUH

#include "kernels/cuda.h"

enum {
    THREADS = 512, WARPS = THREADS / 32, EACH = 8,
    MOST_K = 64,
    LIST = 512,        /* candidates for the k best that are ranked at once */
    WINDOW = 4096,     /* candidates of a draw that are sorted at once */
    BINS = 16,
    CELLS = 6, /* counters of a row: arrivals, length of the list, two u64 weights */
};

typedef unsigned long long u64;

/* Rows of logits, (rows, n), and the ids that are no candidates. */
struct source {
    const float *x;
    const uint8_t *mask;
    int n, segs, len; /* len: of a segment, the last may be shorter */
    bool whole; /* every row can be read 16 bytes at a time */
};

static source source_of(kbuf logits, kbuf mask, int rows, int n)
{
    CHECK(n > 0 && (!mask.p || mask.n >= (size_t)n));
    int segs = div_up(n, THREADS * EACH);
    source s = {cuda_f32(logits, (size_t)rows * (size_t)n), (const uint8_t *)mask.p, n, segs,
                div_up(div_up(n, segs), 4) * 4, false};
    s.whole = n % 4 == 0 && (uintptr_t)s.x % 16 == 0 && (uintptr_t)s.mask % 4 == 0;
    return s;
}

/* ---- keys ----------------------------------------------------------------------------------- */

/* Orders as floats do, -0 and 0 alike. 0 is no candidate: NaN is none. */
__device__ __forceinline__ uint32_t rank_of(float x)
{
    uint32_t u = __float_as_uint(x + 0.f);
    u ^= (uint32_t)((int)u >> 31) | 0x80000000u;
    return x != x ? 0 : u;
}
__device__ __forceinline__ u64 key_at(uint32_t rank, int i)
{
    return rank ? (u64)rank << 32 | (0xffffffffu - (uint32_t)i) : 0;
}
__device__ __forceinline__ u64 key_of(float x, int i)
{
    return key_at(rank_of(x), i);
}
__device__ __forceinline__ int index_of(u64 key)
{
    return (int)(0xffffffffu - (uint32_t)key);
}
__device__ __forceinline__ float logit_of(u64 key)
{
    uint32_t u = (uint32_t)(key >> 32);
    return __uint_as_float(u & 0x80000000u ? u & 0x7fffffffu : ~u);
}

/* Maximum or sum over `width` neighbouring lanes. */
template <bool MAX> __device__ __forceinline__ u64 lanes_u64(u64 v, int width)
{
    for (int i = width / 2; i; i /= 2) {
        u64 w = __shfl_xor_sync(~0u, v, i);
        v = MAX ? (w > v ? w : v) : v + w;
    }
    return v;
}

/* The maximum over the block, for every thread; room: WARPS. */
__device__ __forceinline__ u64 block_max(u64 v, u64 *room)
{
    v = lanes_u64<true>(v, 32);
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        room[threadIdx.x / 32] = v;
    __syncthreads();
    v = room[0];
#pragma unroll
    for (int i = 1; i < WARPS; i++)
        v = room[i] > v ? room[i] : v;
    return v;
}

/* True for the block that is the last of n to arrive; *counter is 0 before and after. What the
 * others wrote is behind their barrier, their first thread's fence, and ours. */
__device__ __forceinline__ bool last_of_row(unsigned *counter, unsigned n)
{
    __shared__ bool last;
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        last = atomicAdd(counter, 1) + 1 == n;
        if (last)
            *counter = 0;
        __threadfence();
    }
    __syncthreads();
    return last;
}

/* ---- a segment in registers ------------------------------------------------------------------ */

/* Where this thread's element j of the block's segment lies in the row. */
__device__ __forceinline__ int place(const source &s, int j)
{
    return (int)blockIdx.x * s.len + j / 4 * (4 * THREADS) + (int)threadIdx.x * 4 + j % 4;
}

__device__ __forceinline__ int segment_end(const source &s)
{
    return min(s.n, ((int)blockIdx.x + 1) * s.len);
}

/* x[j]: -inf beyond the segment. */
__device__ __forceinline__ void load_segment(const source &s, int r, float (&x)[EACH])
{
    const int end = segment_end(s);
    const float *row = s.x + (size_t)r * (size_t)s.n;
#pragma unroll
    for (int j = 0; j < EACH; j += 4) {
        int at = place(s, j);
        float4 v = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
        if (s.whole && at < end) {
            v = *(const float4 *)(row + at);
        } else if (!s.whole) {
            v.x = at < end ? row[at] : v.x, v.y = at + 1 < end ? row[at + 1] : v.y;
            v.z = at + 2 < end ? row[at + 2] : v.z, v.w = at + 3 < end ? row[at + 3] : v.w;
        }
        x[j] = v.x, x[j + 1] = v.y, x[j + 2] = v.z, x[j + 3] = v.w;
    }
}

/* One bit for each element that may be chosen. */
__device__ __forceinline__ unsigned load_allowed(const source &s)
{
    const int end = segment_end(s);
    unsigned bits = 0;
#pragma unroll
    for (int j = 0; j < EACH; j += 4) {
        int at = place(s, j);
        uint32_t four = 0;
        if (s.mask && s.whole && at < end)
            four = *(const uint32_t *)(s.mask + at);
        else if (s.mask)
            for (int i = 0; i < 4 && at + i < end; i++)
                four |= (uint32_t)s.mask[at + i] << 8 * i;
#pragma unroll
        for (int i = 0; i < 4; i++)
            bits |= at + i < end && !(four >> 8 * i & 255) ? 1u << (j + i) : 0;
    }
    return bits;
}

/* ---- the log of the sum of exp --------------------------------------------------------------- */

struct mass {
    float max, sum; /* sum of exp(x - max); NaN where there is a NaN or +inf */
};

/* Of a warp's share of a segment. */
__device__ __forceinline__ mass warp_mass(const float (&x)[EACH])
{
    mass m = {-INFINITY, 0};
#pragma unroll
    for (int j = 0; j < EACH; j++)
        m.max = fmaxf(m.max, x[j]);
    m.max = warp_max(m.max);
    float from = m.max == -INFINITY ? 0.f : m.max;
#pragma unroll
    for (int j = 0; j < EACH; j++)
        m.sum += expf(x[j] - from);
    m.sum = warp_sum(m.sum);
    return m;
}

/* What a thread has of a row's masses, and of the row. */
struct total {
    float max;
    double sum;
};

/* n masses, thread by thread. */
__device__ __forceinline__ total my_total(const mass *m, int n)
{
    total t = {-INFINITY, 0};
    for (int i = (int)threadIdx.x; i < n; i += THREADS) {
        float2 v = __ldcg((const float2 *)(m + i));
        float top = fmaxf(t.max, v.x), from = top == -INFINITY ? 0.f : top;
        t.sum = t.sum * (double)expf(t.max - from) + (double)v.y * (double)expf(v.x - from);
        t.max = top;
    }
    return t;
}

/* For the whole block. */
__device__ __forceinline__ double lse_of(total t)
{
    __shared__ float room[33];
    __shared__ double sums[WARPS];
    float top = block_reduce<true>(t.max, room), from = top == -INFINITY ? 0.f : top;
    double sum = t.sum * (double)expf(t.max - from);
    for (int i = 16; i; i /= 2)
        sum += __shfl_xor_sync(~0u, sum, i);
    if (threadIdx.x % 32 == 0)
        sums[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (int i = 0; i < WARPS; i++)
        sum += sums[i];
    return (double)top + log(sum);
}

/* ---- the k best of a block's keys ------------------------------------------------------------ */

struct picking {
    u64 top[MOST_K], list[LIST], room[WARPS], bar;
    int n;
};

/* For keys too many of which look good: one after the other. */
template <class All> __device__ void one_by_one(const All &all, int k, u64 *out, picking &s)
{
    u64 last = ~0ull;
    for (int j = 0; j < k; j++) {
        u64 mine = 0;
        all([&](u64 key) { mine = key < last && key > mine ? key : mine; });
        last = block_max(mine, s.room);
        if (threadIdx.x == 0)
            out[j] = last;
    }
}

/* Writes the k largest keys of the block, best first, 0 where there are fewer; `mine` is the
 * largest of this thread, all(f) calls f with each, those(bar, f) with each that is not below bar.
 * The k-th largest of the maxima of k or more groups of threads bounds them from below, and leaves
 * few above it. */
template <class All, class Those>
__device__ __forceinline__ void best_of(u64 mine, const All &all, const Those &those, int k,
                                        u64 *out, picking &s)
{
    const int tid = (int)threadIdx.x, width = k <= 16 ? 32 : k <= 32 ? 16 : 8;
    mine = lanes_u64<true>(mine, width);
    if (tid % width == 0)
        s.top[tid / width] = mine;
    if (tid == 0)
        s.n = 0, s.bar = 1;
    __syncthreads();
    if (tid < THREADS / width) {
        int above = 0;
        mine = s.top[tid];
#pragma unroll 16
        for (int i = 0; i < THREADS / width; i++)
            above += s.top[i] > mine;
        if (mine && above == k - 1)
            s.bar = mine;
    }
    __syncthreads();
    u64 bar = s.bar;
    if (k == 1) {
        if (tid == 0)
            out[0] = bar > 1 ? bar : 0;
        return;
    }
    those(bar, [&](u64 key) {
        int at = atomicAdd(&s.n, 1);
        if (at < LIST)
            s.list[at] = key;
    });
    __syncthreads();
    int n = s.n;
    if (n > LIST) {
        one_by_one(all, k, out, s);
        return;
    }
    for (int i = tid; i < n; i += THREADS) {
        int above = 0;
        mine = s.list[i];
#pragma unroll 8
        for (int j = 0; j < n; j++)
            above += s.list[j] > mine;
        if (above < k)
            out[above] = mine;
    }
    for (int i = n + tid; i < k; i += THREADS)
        out[i] = 0;
}

#endif
