/* cuda_experts.cuh - what the kernels of a mixture of experts share.
 *
 * Pairs (row, rank of a chosen expert) are grouped into jobs: an expert and at most `per` of its
 * pairs, whose rows are multiplied together while the expert's weights are read once. Few rows have
 * their experts chosen and their pairs grouped by every block that needs to know (`direct`: it
 * costs a warp half a microsecond, less than waiting for a block that does it for all); else the
 * last block of the router does both.
 *
 * MXFP4. Blocks lie as cuda_mem.cu says. The byte of a scale 2^(s - 127) is kept as s + 1, at most
 * 255, so that all but 255 shifted into the exponent of a float32 is twice the scale, the smallest
 * included; 255, which stands for NaN and for 2^127, becomes infinity there, and a sum that is
 * infinite becomes NaN (mx_sum). Decoded weights are 2^-14 of themselves: sums are 2^-13 of the
 * true ones. Activations are f16 times a power of two: a row's own for the input, the fixed
 * h_scale for what lies between the matrices.
 */
#ifndef AERIE_CUDA_EXPERTS_CUH
#define AERIE_CUDA_EXPERTS_CUH

#include "kernels/cuda_product.cuh"

enum {
    MOST_EXPERTS = 512,
    MOST_TOP_K = 32,
    DIRECT_PAIRS = 256, DIRECT_EXPERTS = 128,
    TILE_COUNTERS = N_COUNTERS / 2, /* where the counters of down's tiles begin */
};

struct moe_args {
    const float *src;
    int rows, in, ffn, n_expert, top_k;
    struct norm pre, router_norm, post;
    struct vec router_in, router_b, expert_scale, gate_up_b, down_b;
    float router_scale;
    struct vec router;
    size_t router_pitch, gate_up_b_pitch, down_b_pitch;
    bool halves, f16; /* halves: gate rows first, then up */
    int act;
    float limit;
    bool add;
    float *dst;
    int32_t *chosen_out; /* or NULL */
    int terms;           /* of a packed activation */
    int per;             /* pairs of a job at most */
    bool direct;
    bool tiled;          /* packed rows lie as cuda_tile_moe.cu wants them */
    bool sums;           /* down's last block of a tile adds up the rows' experts */
    struct mat gate_up_m, down_m;
    float h_scale, h_undo; /* of packed hidden rows, f16: a power of two, and 1 / it */
    /* scratch */
    struct packed x, h;    /* rows for gate and up, pairs for down */
    uint16_t *x_to, *h_to;
    float *logits;         /* (rows, E) */
    float *x_inv;          /* (rows): undoes the power of two of a packed row, f16 */
    int32_t *chosen;       /* (rows, top_k) */
    float *weight;         /* (rows, top_k) */
    int32_t *n_active, *active; /* jobs: expert active[j] has order[begin[j] .. begin[j + 1]) */
    int32_t *begin, *order;
    int32_t *place;        /* (pairs): order[place[p]] == p; tiled */
    float *up, *down;      /* (pairs, 2 ffn), (pairs, in) */
    unsigned *counters;
};

/* cuda_experts.cu: gate, up and activation; then down and, without a norm behind, the sum of a
 * row's experts. */
void cuda_few_experts(struct kdev *d, const struct moe_args *m);
/* Pairs that a job may have there. */
int cuda_few_pairs(const struct kdev *d, const struct k_moe *a, int rows);

/* The same for many rows, but never the sum (cuda_tile_moe.cu). Packed rows are those of pairs, as
 * `order` has them. */
void cuda_tile_experts(struct kdev *d, const struct moe_args *m);
/* The router of many rows, grouping and packing; and the sum without a norm (cuda_tile_route.cu).
 * Whether they can. */
bool cuda_tile_routes(const struct moe_args *m);
void cuda_tile_route(struct kdev *d, const struct moe_args *m);
void cuda_tile_sum(struct kdev *d, const struct moe_args *m);

#ifdef __CUDACC__

/* Orders floats as unsigned integers do; NaN is below all, 0 below NaN. */
__device__ __forceinline__ uint32_t order_key(float x)
{
    uint32_t u = __float_as_uint(x + 0.f); /* -0 is 0 */
    return x != x ? 1 : u ^ ((uint32_t)((int32_t)u >> 31) | 0x80000000u);
}

/* The top_k largest logits of a row (ties: lowest index), softmax over those; one warp, whose lane
 * i receives the expert of rank i and its weight. Lane l looks at experts l, l + 32, ... */
template <int EACH>
__device__ __forceinline__ void choose(const moe_args &a, const float *logits, int *expert,
                                       float *weight)
{
    const int lane = (int)threadIdx.x % 32;
    uint32_t key[EACH];
    float first = 0, sum = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int e = lane + 32 * i;
        key[i] = e < a.n_expert ? order_key(__ldcg(logits + e)) : 0;
    }
    for (int k = 0; k < a.top_k; k++) {
        uint32_t best = 0;
        int at = 0;
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (key[i] > best)
                best = key[i], at = i;
        uint32_t top = __reduce_max_sync(~0u, best);
        int e = (int)__reduce_min_sync(~0u, best == top ? (unsigned)(lane + 32 * at) : ~0u);
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (lane + 32 * i == e)
                key[i] = 0;
        float x = top == 1 ? NAN
                           : __uint_as_float(top ^ (top >> 31 ? 0x80000000u : 0xffffffffu));
        first = k ? first : x;
        float w = expf(x - first);
        sum += w;
        if (k == lane)
            *expert = e, *weight = w;
    }
    *weight /= sum;
    if (a.expert_scale.p && lane < a.top_k)
        *weight *= weight_at(a.expert_scale, (size_t)*expert);
}

/* A block's own lists of jobs. */
struct jobs {
    int32_t chosen[DIRECT_PAIRS], order[DIRECT_PAIRS];
    int32_t active[DIRECT_PAIRS], begin[DIRECT_PAIRS + 1];
    float weight[DIRECT_PAIRS];
    int n;
};

/* Inclusive sum over the lanes of a warp. */
__device__ __forceinline__ int running_sum(int v)
{
    for (int i = 1; i < 32; i *= 2) {
        int left = __shfl_up_sync(~0u, v, i);
        v += (int)threadIdx.x % 32 >= i ? left : 0;
    }
    return v;
}

/* Groups at most 32 pairs: experts in the order in which pairs name them first. One warp. */
__device__ __forceinline__ void group_few(const moe_args &a, struct jobs *l)
{
    const int lane = (int)threadIdx.x % 32, pairs = a.rows * a.top_k;
    int e = lane < pairs ? l->chosen[lane] : -1 - lane;
    unsigned same = __match_any_sync(~0u, e);
    int rank = __popc(same & ((1u << lane) - 1)), leader = __ffs(same) - 1;
    int mine = lane < pairs && rank == 0 ? __popc(same) : 0;
    int at = __shfl_sync(~0u, running_sum(mine) - mine, leader) + rank;
    bool starts = lane < pairs && rank % a.per == 0;
    unsigned all = __reduce_or_sync(~0u, starts ? 1u << at : 0u);
    if (lane < pairs)
        l->order[at] = lane;
    if (starts) {
        int job = __popc(all & ((1u << at) - 1));
        l->active[job] = e, l->begin[job] = at;
    }
    if (lane == 0)
        l->n = __popc(all), l->begin[__popc(all)] = pairs;
}

/* Groups up to DIRECT_PAIRS, in every block alike: by expert, within one in their order; thread p
 * has pair p. room: (9, E) ints. */
template <int THREADS>
__device__ __forceinline__ void group_many(const moe_args &a, struct jobs *l, int *room)
{
    const int p = (int)threadIdx.x, warp = p / 32, lane = p % 32, E = a.n_expert;
    const int pairs = a.rows * a.top_k, warps = (pairs + 31) / 32;
    int *start = room + 8 * E, e = p < pairs ? l->chosen[p] : -1, rank = 0;
    for (int i = p; i < warps * E; i += THREADS)
        room[i] = 0;
    __syncthreads();
    if (warp < warps) {
        unsigned same = __match_any_sync(~0u, e);
        rank = __popc(same & ((1u << lane) - 1));
        if (e >= 0 && rank == 0)
            room[warp * E + e] = __popc(same);
    }
    __syncthreads();
    if (warp == 0) {
        int sum = 0, n = 0;
        for (int x = lane; x < (E + 31) / 32 * 32; x += 32) {
            int c = 0;
            for (int w = 0; w < warps && x < E; w++) {
                int here = room[w * E + x];
                room[w * E + x] = c;
                c += here;
            }
            int jobs = (c + a.per - 1) / a.per;
            int upto = running_sum(c), jobs_upto = running_sum(jobs);
            for (int j = 0; j < jobs; j++) {
                l->begin[n + jobs_upto - jobs + j] = sum + upto - c + j * a.per;
                l->active[n + jobs_upto - jobs + j] = x;
            }
            if (x < E)
                start[x] = sum + upto - c;
            n += __shfl_sync(~0u, jobs_upto, 31);
            sum += __shfl_sync(~0u, upto, 31);
        }
        if (lane == 0)
            l->n = n, l->begin[n] = sum;
    }
    __syncthreads();
    if (e >= 0)
        l->order[start[e] + room[warp * E + e] + rank] = p;
}

/* Chooses the experts of all rows and groups the pairs, for the whole block. */
template <int THREADS>
__device__ __forceinline__ void choose_directly(const moe_args &a, struct jobs *l, int *room)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    for (int r = warp; r < a.rows; r += THREADS / 32) {
        const float *logits = a.logits + (size_t)r * (size_t)a.n_expert;
        int e = 0;
        float w = 0;
        if (a.n_expert <= 32)
            choose<1>(a, logits, &e, &w);
        else
            choose<DIRECT_EXPERTS / 32>(a, logits, &e, &w);
        if (lane < a.top_k)
            l->chosen[r * a.top_k + lane] = e, l->weight[r * a.top_k + lane] = w;
    }
    if (a.rows == 1) { /* a job each */
        if (warp == 0 && lane < a.top_k)
            l->active[lane] = l->chosen[lane], l->order[lane] = l->begin[lane] = lane;
        if (threadIdx.x == 0)
            l->n = l->begin[a.top_k] = a.top_k;
    } else {
        __syncthreads();
        if (a.rows * a.top_k > 32)
            group_many<THREADS>(a, l, room);
        else if (warp == 0)
            group_few(a, l);
    }
    __syncthreads();
}

/* Twice the scale of block b of four. */
__device__ __forceinline__ float mx_scale(uint32_t four, int b)
{
    uint32_t at = b == 0 ? four << 23 : b == 1 ? four << 15 : b == 2 ? four << 7 : four >> 1;
    return __uint_as_float(at & 0x7f800000u);
}

/* The sum that the runs' sums amount to; a scale of NaN made it infinite. */
__device__ __forceinline__ float mx_sum(float y) { return isinf(y) ? NAN : y * 8192; }

/* Element i of the sum of a row's experts, in the order of their rank. */
__device__ __forceinline__ float sum_of(const moe_args &a, const int32_t *chosen,
                                        const float *weight, int r, int i)
{
    float sum = 0;
#pragma unroll 4
    for (int k = 0; k < a.top_k; k++) {
        int pair = r * a.top_k + k;
        float v = __ldcg(a.down + (size_t)pair * (size_t)a.in + (size_t)i);
        if (a.down_b.p)
            v += weight_at(a.down_b, (size_t)chosen[pair] * a.down_b_pitch + (size_t)i);
        sum = k ? fmaf(weight[pair], v, sum) : v * weight[pair];
    }
    return sum;
}

#endif
#endif
