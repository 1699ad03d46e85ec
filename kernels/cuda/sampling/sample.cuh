/* sample.cuh - how topk.cu, sample.cu and tree.cu read logits: rows divided into segments, keys
 * that order candidates, a segment in registers, the log of a sum of exponentials, the k best keys
 * of a block and of successive segments.
 */
#pragma once

#include "kernels/cuda/base/order.cuh"
#include "kernels/cuda/base/reduce.cuh"

enum {
    THREADS = 512, WARPS = THREADS / 32, PER_THREAD = 8,
    MAX_K = 64,
    MAXIMA = 2 * MAX_K, /* of groups of lanes (group_shift()) */
    LIST = 512,        /* candidates for the k best that are ranked at once */
    WINDOW = 4096,     /* candidates of a draw that are sorted at once */
    BINS = 16,
    ROW_COUNTERS = 6, /* counters of a row: blocks arrived, length of the list, two u64 weights */
};

typedef unsigned long long u64;

/* Rows of logits, (rows, n), and a mask of the ids that are no candidates. */
struct logit_rows {
    const float *x;
    const uint8_t *mask;
    int n, segs, len; /* len: elements of a segment; the last may be shorter */
    bool aligned; /* every row can be read 16 bytes at a time */
};

static inline logit_rows logit_rows_of(kbuf logits, kbuf mask, int rows, int n)
{
    CHECK(n > 0 && (!mask.p || mask.n >= (size_t)n));
    int segs = div_up(n, THREADS * PER_THREAD);
    logit_rows s = {cuda_f32(logits, (size_t)rows * (size_t)n), (const uint8_t *)mask.p, n, segs,
                div_up(div_up(n, segs), 4) * 4, false};
    s.aligned = n % 4 == 0 && (uintptr_t)s.x % 16 == 0 && (uintptr_t)s.mask % 4 == 0;
    return s;
}

/* ---- keys ----------------------------------------------------------------------------------- */

/* A candidate: the rank of its logit (base/order.cuh) and its index; 0 is no candidate. */
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
    return value_of((uint32_t)(key >> 32));
}

/* Maximum or sum over groups of `width` adjacent lanes. */
template <bool MAX> __device__ __forceinline__ u64 lanes_u64(u64 v, int width)
{
    for (int i = width / 2; i; i /= 2) {
        u64 w = __shfl_xor_sync(~0u, v, i);
        v = MAX ? (w > v ? w : v) : v + w;
    }
    return v;
}

/* The maximum over the block, for every thread. scratch: WARPS. */
__device__ __forceinline__ u64 block_max(u64 v, u64 *scratch)
{
    v = lanes_u64<true>(v, 32);
    __syncthreads();
    share_by_warp(v, scratch, [] { __syncthreads(); });
    v = scratch[0];
#pragma unroll
    for (int i = 1; i < WARPS; i++)
        v = scratch[i] > v ? scratch[i] : v;
    return v;
}

/* ---- a segment in registers ------------------------------------------------------------------ */

/* Index in the row of this thread's element j of a segment. */
__device__ __forceinline__ int element_index(const logit_rows &s, int seg, int j)
{
    return seg * s.len + j / 4 * (4 * THREADS) + (int)threadIdx.x * 4 + j % 4;
}

__device__ __forceinline__ int segment_end(const logit_rows &s, int seg)
{
    return min(s.n, (seg + 1) * s.len);
}

/* x[j] is -inf beyond the segment's end. */
__device__ __forceinline__ void load_segment(const logit_rows &s, int r, int seg,
                                             float (&x)[PER_THREAD])
{
    const int end = segment_end(s, seg);
    const float *row = s.x + (size_t)r * (size_t)s.n;
#pragma unroll
    for (int j = 0; j < PER_THREAD; j += 4) {
        int at = element_index(s, seg, j);
        float4 v = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
        if (s.aligned && at < end) {
            v = *(const float4 *)(row + at);
        } else if (!s.aligned) {
            v.x = at < end ? row[at] : v.x, v.y = at + 1 < end ? row[at + 1] : v.y;
            v.z = at + 2 < end ? row[at + 2] : v.z, v.w = at + 3 < end ? row[at + 3] : v.w;
        }
        x[j] = v.x, x[j + 1] = v.y, x[j + 2] = v.z, x[j + 3] = v.w;
    }
}

/* One bit for each element that is a candidate. */
__device__ __forceinline__ unsigned load_allowed(const logit_rows &s, int seg)
{
    const int end = segment_end(s, seg);
    unsigned bits = 0;
#pragma unroll
    for (int j = 0; j < PER_THREAD; j += 4) {
        int at = element_index(s, seg, j);
        uint32_t four = 0;
        if (s.mask && s.aligned && at < end)
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

struct exp_sum {
    float max, sum; /* sum of exp(x - max); NaN if there is a NaN or +inf */
};

/* The largest element; NaN is ignored. */
__device__ __forceinline__ float largest(const float (&x)[PER_THREAD])
{
    float max = -INFINITY;
#pragma unroll
    for (int j = 0; j < PER_THREAD; j++)
        max = fmaxf(max, x[j]);
    return max;
}
__device__ __forceinline__ float largest_of(const float (&x)[PER_THREAD], unsigned allowed)
{
    float max = -INFINITY;
#pragma unroll
    for (int j = 0; j < PER_THREAD; j++)
        max = fmaxf(max, allowed >> j & 1 ? x[j] : -INFINITY);
    return max;
}

/* e^x for x <= 0 in one instruction: relative error 2^-21 plus 2^-23 |x|, far below the effect of
 * the order of a sum. */
__device__ __forceinline__ float exp_approx(float x)
{
    return exp2_approx(x * 1.44269504f);
}

/* Of a warp's share of a segment. peak: this thread's largest element. */
__device__ __forceinline__ exp_sum warp_exp_sum(const float (&x)[PER_THREAD], float peak)
{
    exp_sum m = {value_of(__reduce_max_sync(~0u, rank_of(peak))), 0};
    float from = m.max == -INFINITY ? 0.f : m.max;
#pragma unroll
    for (int j = 0; j < PER_THREAD; j++)
        m.sum += exp_approx(x[j] - from);
    m.sum = warp_sum(m.sum);
    return m;
}

/* A thread's, a lane's or a row's sum of exponentials, relative to e^max. */
struct total {
    float max;
    double sum;
};

__device__ __forceinline__ void add_exp_sum(total &t, exp_sum m)
{
    float top = fmaxf(t.max, m.max), from = top == -INFINITY ? 0.f : top;
    t.sum = t.sum * (double)expf(t.max - from) + (double)m.sum * (double)expf(m.max - from);
    t.max = top;
}
__device__ __forceinline__ exp_sum load_exp_sum(const exp_sum *m)
{
    float2 v = __ldcg((const float2 *)m);
    return {v.x, v.y};
}

/* This thread's share of n partial sums. */
__device__ __forceinline__ total thread_total(const exp_sum *m, int n)
{
    total t = {-INFINITY, 0};
    for (int i = (int)threadIdx.x; i < n; i += THREADS)
        add_exp_sum(t, load_exp_sum(m + i));
    return t;
}

/* The sum over a warp's lanes, relative to e^top. */
__device__ __forceinline__ double warp_total(total t, float top)
{
    double sum = t.sum * (double)expf(t.max - (top == -INFINITY ? 0.f : top));
    for (int i = 16; i; i /= 2)
        sum += __shfl_xor_sync(~0u, sum, i);
    return sum;
}

/* The log of the sum of exponentials over the block. */
__device__ __forceinline__ double lse_of(total t)
{
    __shared__ float scratch[33];
    __shared__ double sums[WARPS];
    float top = block_reduce<true>(t.max, scratch);
    double sum = warp_total(t, top);
    share_by_warp(sum, sums, [] { __syncthreads(); });
    sum = 0;
    for (int i = 0; i < WARPS; i++)
        sum += sums[i];
    return (double)top + log(sum);
}

/* ---- the weights of a draw ------------------------------------------------------------------- */

/* Weights exp((x - max) / t) in units of 2^-40; the sum of 2^18 of them is below 2^59. */
enum { UNIT_BITS = 40 };

__device__ __forceinline__ u64 weight_of(float x, float max, float t)
{
    return __float2ull_rn(expf((x - max) / t) * (float)(1ull << UNIT_BITS));
}

/* top_p_of(): the weight that the candidates kept by top_p must reach, of the total weight `mass`.
 * min_p_of(): the least weight that min_p keeps. target_of(): the cumulative weight that the drawn
 * candidate is the first to reach. */
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

/* ---- partial results of topk() for grow() (tree.cu) ----------------------------------------- */

/* For each row the k best keys of every block (0 where a block has fewer) and the partial sums of
 * exponentials. Only for few, short rows. */
struct topk_parts {
    const u64 *best;  /* (rows, keys); NULL: topk() finished its work */
    const exp_sum *part; /* (rows, exp_sums), in the order of the threads */
    int keys, exp_sums, k;
    int32_t *ids; /* out, (rows, k) */
    float *logp;
};
enum { PARTS_PER_LANE = 4, MAX_PARTS = 32 * PARTS_PER_LANE /* most keys, most exp_sums */ };

/* Launches the first half of topk(). False, and nothing is done, if there are too many keys. */
bool cuda_topk_parts(struct kdev *d, const struct k_topk *a, struct topk_parts *f);

/* cuda_sample() for top_k from 1 to MAX_K; the operation has begun. */
void cuda_topk_draw(struct kdev *d, const struct k_sample *a);

/* The log of the sum of exponentials over a row; one warp. Equal to lse_of() to the bit. */
__device__ __forceinline__ double warp_lse_of(const exp_sum (&m)[PARTS_PER_LANE])
{
    total t[PARTS_PER_LANE];
    float top = -INFINITY;
#pragma unroll
    for (int j = 0; j < PARTS_PER_LANE; j++) {
        t[j] = {-INFINITY, 0};
        add_exp_sum(t[j], m[j]);
        top = fmaxf(top, t[j].max);
    }
    top = warp_max(top);
    double sum = 0;
#pragma unroll
    for (int j = 0; j < PARTS_PER_LANE; j++)
        sum += warp_total(t[j], top);
    return (double)top + log(sum);
}

/* ---- the k best of a block's keys ------------------------------------------------------------ */

struct topk_state {
    u64 top[MAXIMA], list[LIST], scratch[WARPS], threshold;
    __align__(16) uint32_t rank[2][MAXIMA];
    int n;
};

/* The k best one after the other, for lists with too many candidates. */
template <class All> __device__ void select_serially(const All &all, int k, u64 *out, topk_state &s)
{
    u64 last = ~0ull;
    for (int j = 0; j < k; j++) {
        u64 mine = 0;
        all([&](u64 key) { mine = key < last && key > mine ? key : mine; });
        last = block_max(mine, s.scratch);
        if (threadIdx.x == 0)
            out[j] = last;
    }
}

/* Lanes that share a maximum, as a power of two. There are at least 2k such groups, so that the
 * k-th best of their maxima is a useful bound. */
__device__ __forceinline__ int group_shift(int k)
{
    return k <= 8 ? 5 : k <= 16 ? 4 : k <= 32 ? 3 : 2;
}

/* Writes the k largest of the listed keys, best first, 0 where there are fewer. all(f) calls f with
 * every key. */
template <class All>
__device__ __forceinline__ void rank_list(const All &all, int k, u64 *out, topk_state &s)
{
    const int tid = (int)threadIdx.x, n = s.n;
    if (n > LIST) {
        select_serially(all, k, out, s);
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

__device__ __forceinline__ void append_key(u64 key, topk_state &s)
{
    int at = atomicAdd(&s.n, 1);
    if (at < LIST)
        s.list[at] = key;
}

/* Writes the k largest keys of the block, best first, 0 where there are fewer. mine: this thread's
 * largest key; all(f) calls f with each of its keys, at_least(threshold, f) with those that are not
 * below the threshold. The threshold is the k-th largest of the maxima of groups of threads (k
 * groups or more): at least k keys are not below it, and few are above. */
template <class All, class Those>
__device__ __forceinline__ void block_topk(u64 mine, const All &all, const Those &at_least, int k,
                                           u64 *out, topk_state &s)
{
    const int tid = (int)threadIdx.x, shift = group_shift(k), groups = THREADS >> shift;
    mine = lanes_u64<true>(mine, 1 << shift);
    if ((tid & ((1 << shift) - 1)) == 0)
        s.top[tid >> shift] = mine;
    if (tid == 0)
        s.n = 0, s.threshold = 1;
    __syncthreads();
    if (tid < groups) {
        int above = 0;
        mine = s.top[tid];
#pragma unroll 16
        for (int i = 0; i < groups; i++)
            above += s.top[i] > mine;
        if (mine && above == k - 1)
            s.threshold = mine;
    }
    __syncthreads();
    u64 threshold = s.threshold;
    if (k == 1) {
        if (tid == 0)
            out[0] = threshold > 1 ? threshold : 0;
        return;
    }
    at_least(threshold, [&](u64 key) { append_key(key, s); });
    __syncthreads();
    rank_list(all, k, out, s);
}

/* ---- the k best of successive segments ------------------------------------------------------ */

/* What a thread knows of the segments that its block has read. */
struct run_state {
    uint32_t group_max; /* rank of the largest element of its group of lanes */
    float threshold;    /* k of the block's candidates are not below it */
};

/* A rank that at least k of n are not below, and few more than k; computed by every lane of a warp.
 * At most 32 ranks are compared with each other; more are counted in a binary search over the
 * rank's bits. */
__device__ __forceinline__ uint32_t threshold_of_32(const uint32_t *rank, int n, int k)
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
__device__ __forceinline__ uint32_t threshold_of_128(const uint32_t *rank, int n, int k)
{
    enum { A_LANE = MAXIMA / 32 };
    uint32_t mine[A_LANE], threshold = 0;
#pragma unroll
    for (int i = 0; i < A_LANE; i++)
        mine[i] = i * 32 < n ? rank[i * 32 + (int)threadIdx.x % 32] : 0;
    for (uint32_t bit = 1u << 31; bit; bit /= 2) {
        int reach = 0;
#pragma unroll
        for (int i = 0; i < A_LANE; i++)
            reach += __popc(__ballot_sync(~0u, mine[i] >= (threshold | bit)));
        threshold |= reach >= k ? bit : 0;
        if (reach == k)
            break;
    }
    return threshold;
}
__device__ __forceinline__ float threshold_of(const uint32_t *rank, int n, int k)
{
    uint32_t threshold = n <= 32 ? threshold_of_32(rank, n, k) : threshold_of_128(rank, n, k);
    return threshold ? value_of(threshold) : -INFINITY;
}

/* Appends the elements that may be among the block's k best to the list. peak: this thread's
 * largest element; s.n is 0 before the first segment. A warp without an element at its known
 * threshold skips computing the new threshold. */
__device__ __forceinline__ void append_segment(const logit_rows &s, int seg,
                                               const float (&x)[PER_THREAD], float peak, int k,
                                               run_state &v, topk_state &scratch)
{
    const int tid = (int)threadIdx.x, shift = group_shift(k), groups = THREADS >> shift;
    const float top = s.mask ? largest_of(x, load_allowed(s, seg)) : peak;
    uint32_t *rank = scratch.rank[seg & 1], mine = rank_of(top);
    if (shift == 5)
        mine = __reduce_max_sync(~0u, mine);
    else
        mine = (uint32_t)lanes_u64<true>(mine, 1 << shift);
    v.group_max = max(v.group_max, mine);
    if ((tid & ((1 << shift) - 1)) == 0)
        rank[tid >> shift] = v.group_max;
    __syncthreads();
    if (!__any_sync(~0u, top >= v.threshold))
        return;
    v.threshold = fmaxf(v.threshold, threshold_of(rank, groups, k));
    if (top >= v.threshold)
#pragma unroll
        for (int j = 0; j < PER_THREAD; j++) {
            int at = element_index(s, seg, j);
            if (x[j] >= v.threshold && at < segment_end(s, seg) && !(s.mask && s.mask[at]))
                append_key(key_of(x[j], at), scratch);
        }
}
