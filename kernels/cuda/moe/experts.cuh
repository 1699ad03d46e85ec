/* experts.cuh - what the kernels of a mixture of experts share.
 *
 * Pairs (row, rank of a chosen expert) are grouped into jobs: an expert and at most `per` of its
 * pairs, whose rows are multiplied together while the expert's weights are read once. Few rows have
 * their experts chosen and their pairs grouped by every block that needs to know (`direct`: it
 * costs a warp half a microsecond, less than waiting for a block that does it for all); else the
 * last block of the router does both.
 *
 * Of few pairs (`quick`) blocks also hand over what they make as its own flag, for which the router
 * clears the room behind their rows; a single row (`alone`) is packed by each of them.
 *
 * A logit is kept as its key: an unsigned integer, ordered as logits are, and never 0. Where blocks
 * choose for themselves they do not wait for the router to end but for its keys, which are 0 until
 * they are there and are made 0 again by those who read them. Such keys and counters are looked at
 * before what came before in the stream has ended, so they have a place that nobody else uses
 * (MOE_COUNTERS_AT).
 *
 * MXFP4. Blocks lie as mem.cu says. Weights are decoded to f16 with their scale, so that a
 * run is summed by the tensor cores alone: e2m1_pairs() makes them 2^-14 of themselves, and one
 * product by 2^13 times their scale over the largest of their row does the rest. The sum of the
 * runs is multiplied with twice that largest scale (mx_unit). f16 holds a weight exactly while its
 * scale is 2^-22 of the row's largest or more; below, bits are lost, and from 2^-28 on the weight:
 * nothing that a sum of f32 would show beside the others. A scale that is NaN becomes infinity, and
 * so does the unit of 2^127: sums that are infinite become NaN (mx_sum). Activations are f16 times
 * a power of two: a row's own for the input, the fixed h_scale for what lies between the matrices.
 */
#ifndef AERIE_CUDA_EXPERTS_CUH
#define AERIE_CUDA_EXPERTS_CUH

#include "kernels/cuda/dense/product.cuh"

enum {
    MOST_EXPERTS = 512,
    MOST_TOP_K = 32,
    DIRECT_PAIRS = 256, DIRECT_EXPERTS = 128, QUICK_PAIRS = 16, QUICK_ROWS = 4,
    /* from MOE_COUNTERS_AT on, which are the mixture's alone: */
    ROWS_READY = 0, GROUP_READY = 1, DOWN_READY = 8, ROWS_CLEARED = 9, KEYS = 32,
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
    bool tiled;          /* packed rows lie as tile.cu wants them */
    bool sums;           /* adds up the rows' experts, too */
    bool quick;          /* blocks hand over at once (experts.cu) */
    bool alone;          /* and each packs the row, of which there is one, for itself */
    int slots, sets;     /* of a block's ring of weights, of rows */
    struct mat gate_up_m, down_m;
    float h_scale, h_undo; /* of packed hidden rows, f16: a power of two, and 1 / it */
    /* scratch */
    struct packed x, h;    /* rows for gate and up, pairs for down */
    uint16_t *x_to, *h_to;
    unsigned *own;         /* counters, and (rows, E) keys where blocks choose */
    uint32_t *keys;        /* (rows, E) of the logits */
    float *x_inv;          /* (rows): undoes the power of two of a packed row, f16 */
    int32_t *chosen;       /* (rows, top_k) */
    float *weight;         /* (rows, top_k) */
    int32_t *n_active, *active; /* jobs: expert active[j] has order[begin[j] .. begin[j + 1]) */
    int32_t *begin, *order;
    int32_t *place;        /* (pairs): order[place[p]] == p; tiled */
    float *up, *down;      /* (pairs, 2 ffn), (pairs, in) */
    unsigned *counters;
};

/* route.cu: the router of few rows, packing, and, unless blocks choose for themselves, the
 * choice and the groups. */
void cuda_route(struct kdev *d, const struct moe_args *m);

/* experts.cu: gate, up and activation; down; and, without a norm behind, the sum of a row's
 * experts. */
void cuda_few_experts(struct kdev *d, const struct moe_args *m);
/* Pairs that a job may have there. */
int cuda_few_pairs(const struct kdev *d, const struct moe_args *m, int rows);
/* Whether blocks can hand over at once; and pack a row for themselves. */
bool cuda_few_quick(const struct kdev *d, const struct moe_args *m);
bool cuda_few_alone(const struct moe_args *m);

/* The same for many rows, but never the sum (tile.cu). Packed rows are those of pairs, as
 * `order` has them. */
void cuda_tile_experts(struct kdev *d, const struct moe_args *m);
/* The router of many rows, grouping and packing; and the sum without a norm (tile_route.cu).
 * Whether they can. */
bool cuda_tile_routes(const struct moe_args *m);
void cuda_tile_route(struct kdev *d, const struct moe_args *m);
void cuda_tile_sum(struct kdev *d, const struct moe_args *m);

#ifdef __CUDACC__

/* Where the c-th of a tile's chunks lies: the first ones of all runs, then the second ones, ... */
__host__ __device__ __forceinline__ int chunk_place(int c, int chunks)
{
    int each = (chunks + (int)K_SPLITS - 1) / (int)K_SPLITS, full = chunks / each,
        rest = chunks % each;
    int i = c % each;
    return i * full + (i < rest ? i : rest) + c / each;
}

/* Orders floats as unsigned integers do; NaN is below all, 0 below NaN. */
__device__ __forceinline__ uint32_t order_key(float x)
{
    uint32_t u = __float_as_uint(x + 0.f); /* -0 is 0 */
    return x != x ? 1 : u ^ ((uint32_t)((int32_t)u >> 31) | 0x80000000u);
}

__device__ __forceinline__ float keyed(uint32_t key)
{
    return key == 1 ? NAN : __uint_as_float(key ^ (key >> 31 ? 0x80000000u : 0xffffffffu));
}

/* What others write while this kernel runs. */
__device__ __forceinline__ uint32_t look(const unsigned *p)
{
    uint32_t v;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

/* Before and after what tells others: it happens after all that the block has written, or before
 * all that it will read. */
__device__ __forceinline__ void order_memory()
{
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
}

/* What the block has written is there for whoever then sees the counter. */
__device__ __forceinline__ void tell(unsigned *counter)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        order_memory();
        atomicAdd(counter, 1);
    }
}

/* The keys of a row, when all are there; lane l has those of experts l, l + 32, ... */
template <int EACH>
__device__ __forceinline__ void look_at_row(const moe_args &a, const uint32_t *keys,
                                            uint32_t (&key)[EACH])
{
    const int lane = (int)threadIdx.x % 32;
    bool missing;
    do {
        missing = false;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            int e = lane + 32 * i;
            key[i] = e < a.n_expert ? look(keys + e) : 0;
            missing |= e < a.n_expert && key[i] == 0;
        }
    } while (__any_sync(~0u, missing));
}

/* The top_k largest logits of a row (ties: lowest index), softmax over those; one warp, whose lane
 * i receives the expert of rank i and its weight. */
template <int EACH>
__device__ __forceinline__ void choose(const moe_args &a, uint32_t (&key)[EACH], int *expert,
                                       float *weight)
{
    const int lane = (int)threadIdx.x % 32;
    float first = 0, sum = 0;
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
        float x = keyed(top);
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
    float weight[DIRECT_PAIRS];
    float x_inv[DIRECT_PAIRS]; /* of a pair's row */
    int16_t chosen[DIRECT_PAIRS], order[DIRECT_PAIRS];
    int16_t active[DIRECT_PAIRS], begin[DIRECT_PAIRS + 1];
    int n;
};

/* A level of the tree of warp_sum(): a lane has N numbers instead of 2 N, those of lane D further on
 * are the other half. A function for each level, so that every index is known: of a loop it left,
 * the compiler picked registers by comparing. */
template <int D, int N, int MOST> __device__ __forceinline__ void fold_lanes(float (&v)[MOST])
{
    const bool upper = threadIdx.x & D;
#pragma unroll
    for (int i = 0; i < N; i++) {
        const float mine = upper ? v[i + N] : v[i], other = upper ? v[i] : v[i + N];
        v[i] = mine + __shfl_xor_sync(~0u, other, D);
    }
}

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
        l->order[at] = (int16_t)lane;
    if (starts) {
        int job = __popc(all & ((1u << at) - 1));
        l->active[job] = (int16_t)e, l->begin[job] = (int16_t)at;
    }
    if (lane == 0)
        l->n = __popc(all), l->begin[__popc(all)] = (int16_t)pairs;
}

/* The first THREADS of a block meet. */
template <int THREADS> __device__ __forceinline__ void choosers_meet()
{
    asm volatile("bar.sync 2, %0;" ::"n"((int)THREADS) : "memory");
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
    choosers_meet<THREADS>();
    if (warp < warps) {
        unsigned same = __match_any_sync(~0u, e);
        rank = __popc(same & ((1u << lane) - 1));
        if (e >= 0 && rank == 0)
            room[warp * E + e] = __popc(same);
    }
    choosers_meet<THREADS>();
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
                l->begin[n + jobs_upto - jobs + j] = (int16_t)(sum + upto - c + j * a.per);
                l->active[n + jobs_upto - jobs + j] = (int16_t)x;
            }
            if (x < E)
                start[x] = sum + upto - c;
            n += __shfl_sync(~0u, jobs_upto, 31);
            sum += __shfl_sync(~0u, upto, 31);
        }
        if (lane == 0)
            l->n = n, l->begin[n] = (int16_t)sum;
    }
    choosers_meet<THREADS>();
    if (e >= 0)
        l->order[start[e] + room[warp * E + e] + rank] = (int16_t)p;
}

/* Chooses the experts of row r; one warp. */
__device__ __forceinline__ void choose_row(const moe_args &a, struct jobs *l, int r)
{
    const int lane = (int)threadIdx.x % 32;
    const uint32_t *keys = a.keys + (size_t)r * (size_t)a.n_expert;
    int e = 0;
    float w = 0;
    if (a.n_expert <= 32) {
        uint32_t key[1];
        look_at_row(a, keys, key);
        choose(a, key, &e, &w);
    } else {
        uint32_t key[DIRECT_EXPERTS / 32];
        look_at_row(a, keys, key);
        choose(a, key, &e, &w);
    }
    if (lane >= a.top_k)
        return;
    l->chosen[r * a.top_k + lane] = (int16_t)e, l->weight[r * a.top_k + lane] = w;
    if (a.rows == 1)
        l->active[lane] = (int16_t)e;
}

/* The jobs of a single row, whatever its experts: one each. One warp. */
__device__ __forceinline__ void group_one(const moe_args &a, struct jobs *l)
{
    const int lane = (int)threadIdx.x % 32;
    if (lane < a.top_k)
        l->order[lane] = l->begin[lane] = (int16_t)lane;
    if (lane == 0)
        l->n = l->begin[a.top_k] = (int16_t)a.top_k;
}

/* Chooses the experts of all rows and groups the pairs; the first THREADS of the block. */
template <int THREADS>
__device__ __forceinline__ void choose_directly(const moe_args &a, struct jobs *l, int *room)
{
    const int warp = (int)threadIdx.x / 32;
    for (int r = warp; r < a.rows; r += THREADS / 32)
        choose_row(a, l, r);
    choosers_meet<THREADS>();
    if (a.rows * a.top_k > 32)
        group_many<THREADS>(a, l, room);
    else if (warp == 0)
        a.rows == 1 ? group_one(a, l) : group_few(a, l);
}

/* A word has four scales of a row. In the row's first one the bytes' lower two bits, zeros in all
 * others, are the exponent of its largest scale: takes that out, and returns twice that scale. */
__device__ __forceinline__ float mx_unit(uint32_t &four)
{
    const uint32_t most = (four & 0x03030303u) * 0x01041040u; /* brings them into the upper byte */
    four &= 0x7c7c7c7cu;
    return __uint_as_float((most >> 1 & 0x7f800000u) + 0x00800000u);
}

/* Eight weights of block b of four as f16 pairs, scaled. */
__device__ __forceinline__ void scaled_pairs(uint32_t w, uint32_t scales, int b, uint32_t (&h)[4])
{
    const uint32_t pair = (b % 2 ? scales : scales << 8) & 0xFF00FF00u;
    const __half2 both = *(const __half2 *)&pair; /* one half is taken without an instruction */
    const __half2 one = b / 2 ? __high2half2(both) : __low2half2(both);
    e2m1_pairs(w, h);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const __half2 y = __hmul2_rn(*(const __half2 *)&h[i], one);
        h[i] = *(const uint32_t *)&y;
    }
}

/* The sum that the runs' sums amount to; a scale of NaN made it infinite. */
__device__ __forceinline__ float mx_sum(float y) { return isinf(y) ? NAN : y; }

/* Element i of the sum of a row's experts, in the order of their rank. */
template <class INT>
__device__ __forceinline__ float sum_of(const moe_args &a, const INT *chosen, const float *weight,
                                        int r, int i)
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
