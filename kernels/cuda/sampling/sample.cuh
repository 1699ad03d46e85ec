/* sample.cuh - what topk.cu and sample.cu read logits with: rows cut into segments,
 * keys that order candidates, a segment in registers, the log of a sum of exponentials, the k best
 * of a block and of a run of segments.
 */
#ifndef AERIE_CUDA_SAMPLE_CUH
#define AERIE_CUDA_SAMPLE_CUH

#include "kernels/cuda/cuda.h"

enum {
    THREADS = 512, WARPS = THREADS / 32, EACH = 8,
    MOST_K = 64,
    GROUPS = 2 * MOST_K,
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

static inline source source_of(kbuf logits, kbuf mask, int rows, int n)
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
__device__ __forceinline__ float value_of(uint32_t rank)
{
    return __uint_as_float(rank & 0x80000000u ? rank & 0x7fffffffu : ~rank);
}
__device__ __forceinline__ float logit_of(u64 key)
{
    return value_of((uint32_t)(key >> 32));
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

/* Where this thread's element j of a segment lies in the row. */
__device__ __forceinline__ int place(const source &s, int seg, int j)
{
    return seg * s.len + j / 4 * (4 * THREADS) + (int)threadIdx.x * 4 + j % 4;
}

__device__ __forceinline__ int segment_end(const source &s, int seg)
{
    return min(s.n, (seg + 1) * s.len);
}

/* x[j]: -inf beyond the segment. */
__device__ __forceinline__ void load_segment(const source &s, int r, int seg, float (&x)[EACH])
{
    const int end = segment_end(s, seg);
    const float *row = s.x + (size_t)r * (size_t)s.n;
#pragma unroll
    for (int j = 0; j < EACH; j += 4) {
        int at = place(s, seg, j);
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
__device__ __forceinline__ unsigned load_allowed(const source &s, int seg)
{
    const int end = segment_end(s, seg);
    unsigned bits = 0;
#pragma unroll
    for (int j = 0; j < EACH; j += 4) {
        int at = place(s, seg, j);
        uint32_t four = 0;
        if (s.mask && s.whole && at < end)
            four = *(const uint32_t *)(s.mask + at);
        else if (s.mask)
#pragma unroll 1
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

/* The largest; what is not a number does not count. */
__device__ __forceinline__ float largest(const float (&x)[EACH])
{
    float max = -INFINITY;
#pragma unroll
    for (int j = 0; j < EACH; j++)
        max = fmaxf(max, x[j]);
    return max;
}
__device__ __forceinline__ float largest_of(const float (&x)[EACH], unsigned allowed)
{
    float max = -INFINITY;
#pragma unroll
    for (int j = 0; j < EACH; j++)
        max = fmaxf(max, allowed >> j & 1 ? x[j] : -INFINITY);
    return max;
}

/* e^x of x <= 0, in one step: right to 2^-21 and 2^-23 of x, which is far below what the order of
 * a sum does. */
__device__ __forceinline__ float quick_exp(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.44269504f));
    return y;
}

/* Of a warp's share of a segment; peak: the thread's largest. */
__device__ __forceinline__ mass warp_mass(const float (&x)[EACH], float peak)
{
    mass m = {value_of(__reduce_max_sync(~0u, rank_of(peak))), 0};
    float from = m.max == -INFINITY ? 0.f : m.max;
#pragma unroll
    for (int j = 0; j < EACH; j++)
        m.sum += quick_exp(x[j] - from);
    m.sum = warp_sum(m.sum);
    return m;
}

/* What a thread has of a row's masses, and of the row. */
struct total {
    float max;
    double sum;
};

__device__ __forceinline__ void add_mass(total &t, mass m)
{
    float top = fmaxf(t.max, m.max), from = top == -INFINITY ? 0.f : top;
    t.sum = t.sum * (double)expf(t.max - from) + (double)m.sum * (double)expf(m.max - from);
    t.max = top;
}
__device__ __forceinline__ mass load_mass(const mass *m)
{
    float2 v = __ldcg((const float2 *)m);
    return {v.x, v.y};
}

/* n masses, thread by thread. */
__device__ __forceinline__ total my_total(const mass *m, int n)
{
    total t = {-INFINITY, 0};
    for (int i = (int)threadIdx.x; i < n; i += THREADS)
        add_mass(t, load_mass(m + i));
    return t;
}

/* A warp's sum of what its lanes have, from e^top on. */
__device__ __forceinline__ double warp_total(total t, float top)
{
    double sum = t.sum * (double)expf(t.max - (top == -INFINITY ? 0.f : top));
    for (int i = 16; i; i /= 2)
        sum += __shfl_xor_sync(~0u, sum, i);
    return sum;
}

/* For the whole block. */
__device__ __forceinline__ double lse_of(total t)
{
    __shared__ float room[33];
    __shared__ double sums[WARPS];
    float top = block_reduce<true>(t.max, room);
    double sum = warp_total(t, top);
    if (threadIdx.x % 32 == 0)
        sums[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (int i = 0; i < WARPS; i++)
        sum += sums[i];
    return (double)top + log(sum);
}

/* ---- the weights of a draw ------------------------------------------------------------------- */

/* Weights exp((x - max) / t) in units of 2^-40: 2^18 of them stay below 2^59. */
enum { UNIT_BITS = 40 };

__device__ __forceinline__ u64 weight_of(float x, float max, float t)
{
    return __float2ull_rn(expf((x - max) / t) * (float)(1ull << UNIT_BITS));
}

/* The weight that the head kept by top_p reaches, of all there is; the least that min_p leaves; and
 * the one that the drawn candidate is the first to reach. */
__device__ __forceinline__ u64 top_p_of(const struct sampling &how, u64 mass)
{
    u64 least = (u64)ceil(fmax((double)how.top_p, 0.) * (double)mass);
    return least ? least : 1;
}
__device__ __forceinline__ u64 min_p_of(const struct sampling &how)
{
    return (u64)((double)how.min_p * (double)(1ull << UNIT_BITS) + .5);
}
__device__ __forceinline__ u64 target_of(float u, u64 mass)
{
    return min((u64)((double)u * (double)mass) + 1, mass);
}

/* ---- what topk() may leave to others --------------------------------------------------------- */

/* Of each row the k best keys of every block, 0 where there are fewer, and the masses; of few,
 * short rows. */
struct found {
    const u64 *best;  /* (rows, keys); NULL: nothing was left */
    const mass *part; /* (rows, masses), in threads' order */
    int keys, masses, k;
    int32_t *ids; /* (rows, k) out */
    float *logp;
};
enum { FOUND_LANE = 4, MOST_FOUND = 32 * FOUND_LANE /* keys, masses */ };

/* False: it is too much, nothing was done. */
bool cuda_topk_parts(struct kdev *d, const struct k_topk *a, struct found *f);

/* cuda_sample() where top_k is 1 to MOST_K; the operation has begun. */
void cuda_topk_draw(struct kdev *d, const struct k_sample *a);

/* The log of the sum of exp over a row, for a warp; its bits are lse_of()'s. */
__device__ __forceinline__ double lse_of_few(const mass (&m)[FOUND_LANE])
{
    total t[FOUND_LANE];
    float top = -INFINITY;
#pragma unroll
    for (int j = 0; j < FOUND_LANE; j++) {
        t[j] = {-INFINITY, 0};
        add_mass(t[j], m[j]);
        top = fmaxf(top, t[j].max);
    }
    top = warp_max(top);
    double sum = 0;
#pragma unroll
    for (int j = 0; j < FOUND_LANE; j++)
        sum += warp_total(t[j], top);
    return (double)top + log(sum);
}

/* ---- the k best of a block's keys ------------------------------------------------------------ */

struct picking {
    u64 top[GROUPS], list[LIST], room[WARPS], bar;
    __align__(16) uint32_t rank[2][GROUPS];
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

/* Lanes that share a maximum, as a power of two: there are 2k such groups or more, so that the
 * k-th best of their maxima is no group's worst luck. */
__device__ __forceinline__ int group_shift(int k)
{
    return k <= 8 ? 5 : k <= 16 ? 4 : k <= 32 ? 3 : 2;
}

/* Writes the k largest of the keys listed, best first, 0 where there are fewer; all(f) calls f with
 * each key there is. */
template <class All>
__device__ __forceinline__ void best_listed(const All &all, int k, u64 *out, picking &s)
{
    const int tid = (int)threadIdx.x, n = s.n;
    if (n > LIST) {
        one_by_one(all, k, out, s);
        return;
    }
    for (int i = tid; i < n; i += THREADS) {
        int above = 0;
        u64 mine = s.list[i];
#pragma unroll 8
        for (int j = 0; j < n; j++)
            above += s.list[j] > mine;
        if (above < k)
            out[above] = mine;
    }
    for (int i = n + tid; i < k; i += THREADS)
        out[i] = 0;
}

__device__ __forceinline__ void list_key(u64 key, picking &s)
{
    int at = atomicAdd(&s.n, 1);
    if (at < LIST)
        s.list[at] = key;
}

/* Writes the k largest keys of the block, best first, 0 where there are fewer; `mine` is the
 * largest of this thread, all(f) calls f with each, those(bar, f) with each that is not below bar.
 * The k-th largest of the maxima of k or more groups of threads bounds them from below, and leaves
 * few above it. */
template <class All, class Those>
__device__ __forceinline__ void best_of(u64 mine, const All &all, const Those &those, int k,
                                        u64 *out, picking &s)
{
    const int tid = (int)threadIdx.x, shift = group_shift(k), groups = THREADS >> shift;
    mine = lanes_u64<true>(mine, 1 << shift);
    if ((tid & ((1 << shift) - 1)) == 0)
        s.top[tid >> shift] = mine;
    if (tid == 0)
        s.n = 0, s.bar = 1;
    __syncthreads();
    if (tid < groups) {
        int above = 0;
        mine = s.top[tid];
#pragma unroll 16
        for (int i = 0; i < groups; i++)
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
    those(bar, [&](u64 key) { list_key(key, s); });
    __syncthreads();
    best_listed(all, k, out, s);
}

/* ---- the k best of a run of segments --------------------------------------------------------- */

/* What a thread knows of the segments its block has seen. */
struct seen {
    uint32_t most; /* rank of the largest of its group of lanes */
    float bar;     /* k of the block's candidates are not below it */
};

/* A rank that k of n are not below, and few more; every lane of a warp finds it. Few are counted
 * against each other, many against ever closer ranks. */
__device__ __forceinline__ uint32_t bar_of_few(const uint32_t *rank, int n, int k)
{
    const int lane = (int)threadIdx.x % 32;
    uint32_t mine = lane < n ? rank[lane] : ~0u;
    int above = 0;
    for (int i = 0; i < n; i += 4) {
        uint4 v = *(const uint4 *)(rank + i);
        above += (v.x > mine) + (v.y > mine) + (v.z > mine) + (v.w > mine);
    }
    return __reduce_min_sync(~0u, above < k ? mine : ~0u);
}
__device__ __forceinline__ uint32_t bar_of_many(const uint32_t *rank, int n, int k)
{
    enum { A_LANE = GROUPS / 32 };
    uint32_t mine[A_LANE], bar = 0;
#pragma unroll
    for (int i = 0; i < A_LANE; i++)
        mine[i] = i * 32 < n ? rank[i * 32 + (int)threadIdx.x % 32] : 0;
    for (uint32_t bit = 1u << 31; bit; bit /= 2) {
        int reach = 0;
#pragma unroll
        for (int i = 0; i < A_LANE; i++)
            reach += __popc(__ballot_sync(~0u, mine[i] >= (bar | bit)));
        bar |= reach >= k ? bit : 0;
        if (reach == k)
            break;
    }
    return bar;
}
__device__ __forceinline__ float bar_of(const uint32_t *rank, int n, int k)
{
    uint32_t bar = n <= 32 ? bar_of_few(rank, n, k) : bar_of_many(rank, n, k);
    return bar ? value_of(bar) : -INFINITY;
}

/* Lists what may be among the k best of the block; peak: the thread's largest; s.n is 0 before the
 * first segment. Whoever has nothing that reaches the bar it knows does not look how far that has
 * risen. */
__device__ __forceinline__ void list_segment(const source &s, int seg, const float (&x)[EACH],
                                             float peak, int k, seen &v, picking &room)
{
    const int tid = (int)threadIdx.x, shift = group_shift(k), groups = THREADS >> shift;
    const float top = s.mask ? largest_of(x, load_allowed(s, seg)) : peak;
    uint32_t *rank = room.rank[seg & 1], mine = rank_of(top);
    if (shift == 5)
        mine = __reduce_max_sync(~0u, mine);
    else
        mine = (uint32_t)lanes_u64<true>(mine, 1 << shift);
    v.most = max(v.most, mine);
    if ((tid & ((1 << shift) - 1)) == 0)
        rank[tid >> shift] = v.most;
    __syncthreads();
    if (!__any_sync(~0u, top >= v.bar))
        return;
    v.bar = fmaxf(v.bar, bar_of(rank, groups, k));
    if (top >= v.bar)
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            int at = place(s, seg, j);
            if (x[j] >= v.bar && at < segment_end(s, seg) && !(s.mask && s.mask[at]))
                list_key(key_of(x[j], at), room);
        }
}

#endif
