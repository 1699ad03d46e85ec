/* experts.cuh - what the kernels of a mixture of experts share.
 *
 * A pair is a row and one of its selected experts, numbered row * top_k + rank. Pairs are grouped
 * into jobs: an expert and at most job_pairs of its pairs, whose rows are multiplied together while
 * the expert's weights are read once. With at most DIRECT_PAIRS pairs and DIRECT_EXPERTS experts,
 * every block selects the experts and groups the pairs itself (block_select): that takes a warp
 * half a microsecond, less than waiting for one block to do it for all. Otherwise the last block of
 * the router does both.
 *
 * With at most FLAG_PAIRS pairs (by_flags), blocks exchange hidden rows and results through words
 * that are their own flags (publish(), base/barrier.cuh); the router's packing blocks clear these
 * words after they have packed their row. A single row (single_row) is packed by every block for
 * itself.
 *
 * A logit is stored as its key: an unsigned integer in the order of the logits, never 0. Blocks
 * that select experts themselves do not wait for the router to end, only for its keys: a key is 0
 * until the router writes it, and the readers set it to 0 again. These keys and counters are read
 * before the kernels earlier in the stream have ended, so they are in memory that no other
 * operation uses (MOE_COUNTERS_AT).
 *
 * MXFP4. Blocks are stored in the order that mem.cu describes. Weights are decoded to f16 with
 * their scale included, so the tensor cores alone sum a k split: e2m1_pairs() gives 2^-14 of a
 * weight, and one multiplication by 2^13 times (its scale / the row's largest scale) does the rest.
 * The sum over the k splits is multiplied by twice the row's largest scale (mx_unit). f16 holds a
 * weight exactly while its scale is at least 2^-22 of the row's largest; below that bits are lost,
 * and from 2^-28 on the whole weight, which a float32 sum beside the others would not show either.
 * A NaN scale becomes infinity, and so does the unit of 2^127: infinite sums become NaN (mx_sum).
 * Activations are f16 times a power of two: a row's own for the input, the fixed h_scale for the
 * hidden rows.
 */
#pragma once

#include "kernels/cuda/base/order.cuh"
#include "kernels/cuda/dense/product.cuh"
#include "kernels/cuda/moe/expert_blocks.cuh"

enum {
    MAX_EXPERTS = 512,
    MAX_TOP_K = 32,
    /* at MOE_COUNTERS_AT, which only this operation uses: */
    ROWS_READY = 0, GROUP_READY = 1, DOWN_READY = 8, ROWS_CLEARED = 9, KEYS = 32,
};

struct moe_args {
    const float *src;
    int rows, in, ffn, n_expert, top_k;
    struct norm pre, router_norm, post;
    struct vec router_in, router_b, choice_b, expert_scale, gate_up_b, down_b;
    float router_scale, weight_scale; /* weight_scale 0: none */
    int router_kind;
    float router_cap; /* 0: none */
    bool weigh_input;
    struct vec router;
    size_t router_pitch, gate_up_b_pitch, down_b_pitch;
    bool halves, f16; /* halves: gate rows first, then up rows */
    int act;
    float limit;
    bool add;
    float *dst;
    int32_t *chosen_out; /* or NULL */
    int terms;           /* f16 or bf16 terms of a packed activation */
    int job_pairs;       /* most pairs of a job */
    bool block_select;
    bool prefill;          /* packed rows are in the layout of experts_prefill.cu */
    bool adds_experts;     /* the expert kernel also sums each row's experts */
    bool by_flags;         /* blocks exchange data through flags (experts_few.cu) */
    bool single_row;       /* there is one row, and each block packs it */
    int stages, row_stages; /* of a block's rings of weights and of rows */
    struct mat gate_up_m, down_m;
    float h_scale, h_undo; /* power of two of packed hidden rows (f16), and 1 / h_scale */
    /* scratch */
    struct packed x, h;    /* x: rows for gate and up; h: pairs for down */
    uint16_t *x_to, *h_to;
    unsigned *sync;        /* counters, and if block_select the (rows, E) keys */
    uint32_t *keys;        /* (rows, E) keys of the logits */
    float *x_inv;          /* (rows): 1 / the power of two of a packed row (f16) */
    int32_t *chosen;       /* (rows, top_k) */
    float *weight;         /* (rows, top_k) */
    int32_t *n_active, *active; /* jobs: expert active[j] has order[begin[j] .. begin[j + 1]) */
    int32_t *begin, *order;
    int32_t *first, *number; /* only if prefill. (E): position in `order` of an expert's first pair;
                              (pairs): the pair's number among those of its expert */
    float *up, *down;      /* (pairs, 2 ffn), (pairs, in) */
    unsigned *counters;
};

/* router.cu: router and packing for decode and verify rows and, unless block_select, the selection
 * of experts and the grouping of pairs. */
void cuda_route(struct kdev *d, const struct moe_args *m);

/* experts.cu: gate, up and activation; down; and, if there is no post-norm, the sum of each row's
 * experts. experts_few.cu: the same for MOE_ROW and MOE_FEW. */
void cuda_decode_experts(struct kdev *d, const struct moe_args *m, const struct moe_route *r);
void cuda_few_experts(struct kdev *d, const struct moe_args *m, const struct moe_route *r);

/* experts_prefill.cu: the same products for prefill rows, without the sum. Packed rows are those of
 * pairs, in the order of `order`. */
void cuda_prefill_experts(struct kdev *d, const struct moe_args *m);
/* experts_tile.cu: the same without wgmma. */
void cuda_tile_experts(struct kdev *d, const struct moe_args *m);
/* router_prefill.cu: router, grouping and packing for prefill rows; the sum if there is no
 * post-norm. */
void cuda_prefill_route(struct kdev *d, const struct moe_args *m, const struct moe_shape *s);
void cuda_prefill_sum(struct kdev *d, const struct moe_args *m);

/* Whether upload() stores a tensor as bf16 experts in tiles: 16 rows of an expert, whose chunks of
 * 32 elements (64 bytes a row) are in the order of a panel's (chunk_place()), the last one filled
 * up with zeros. Rows as the checkpoint has them would be fetched 64 bytes at a time. Half of an
 * expert's rows, its gate, are whole tiles. */
static inline bool cuda_tiles_experts(const struct kdev *d, const struct tensor *t)
{
    return d->gpu.has_wgmma && t->type == DT_BF16 && t->n_dim == 3 && t->dim[1] % 32 == 0;
}

#ifdef __CUDACC__

/* Named barriers of the kernels: of the epilogue warps, of the warps that select experts, of the
 * threads that hold a row. */
enum { EPILOGUE_BARRIER = 1, SELECT_BARRIER = 2, ROUTE_BARRIER = 3 };

/* Position of chunk c (128 of k) in a tile of 16 outputs: as that of a chunk in a panel
 * (base/panel.cuh). */
__host__ __device__ __forceinline__ int chunk_place(int c, int chunks)
{
    return chunk_place(ksplit_of(chunks * K_CHUNK), c);
}

/* The key of a logit. NaN maps to 1, below all numbers; 0 is no key. */
__device__ __forceinline__ uint32_t order_key(float x)
{
    const uint32_t u = ordered_bits(x);
    return x != x ? 1 : u;
}
__device__ __forceinline__ float logit_of_key(uint32_t key)
{
    return key == 1 ? NAN : value_of(key);
}

/* Waits for the keys of a row; lane l gets those of experts l, l + 32, ... */
template <int EACH>
__device__ __forceinline__ void wait_for_keys(const moe_args &a, const uint32_t *keys,
                                              uint32_t (&key)[EACH])
{
    const int lane = (int)threadIdx.x % 32;
    bool missing;
    do {
        missing = false;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            int e = lane + 32 * i;
            key[i] = e < a.n_expert ? load_acquire(keys + e) : 0;
            missing |= e < a.n_expert && key[i] == 0;
            if (!WAITS && e < a.n_expert)
                key[i] = (uint32_t)e + 2; /* any keys that differ */
        }
    } while (WAITS && __any_sync(~0u, missing));
}

/* The sum of exp(logit - largest) over all experts of a row. One warp, which gets it in every
 * lane. */
template <int EACH>
__device__ __forceinline__ float sum_of_all(const moe_args &a, const uint32_t (&key)[EACH])
{
    const int lane = (int)threadIdx.x % 32;
    uint32_t best = 0;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++)
        best = max(best, key[i]);
    const float top = logit_of_key(__reduce_max_sync(~0u, best));
#pragma unroll
    for (int i = 0; i < EACH; i++)
        if (lane + 32 * i < a.n_expert)
            sum += expf(logit_of_key(key[i]) - top);
#pragma unroll
    for (int i = 16; i; i /= 2)
        sum += __shfl_xor_sync(~0u, sum, i);
    return sum;
}

/* The expert with the largest key of a row (ties: lowest index). One warp. */
template <int EACH>
__device__ __forceinline__ int largest_key(const uint32_t (&key)[EACH], uint32_t *top)
{
    const int lane = (int)threadIdx.x % 32;
    uint32_t best = 0;
    int at = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++)
        if (key[i] > best)
            best = key[i], at = i;
    *top = __reduce_max_sync(~0u, best);
    return (int)__reduce_min_sync(~0u, best == *top ? (unsigned)(lane + 32 * at) : ~0u);
}

/* The top_k experts with the largest sigmoid + choice_b, weighed by their sigmoids alone. */
template <int EACH>
__device__ __forceinline__ void select_by_sigmoid(const moe_args &a, const uint32_t (&key)[EACH],
                                                  int *expert, float *weight)
{
    const int lane = (int)threadIdx.x % 32;
    uint32_t order[EACH];
    float sum = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int e = lane + 32 * i;
        const float b = a.choice_b.p && e < a.n_expert ? weight_at(a.choice_b, (size_t)e) : 0.f;
        const float s = sigmoid(soft_capped(logit_of_key(key[i]), a.router_cap));
        order[i] = e < a.n_expert ? order_key(s + b) : 0;
    }
    for (int k = 0; k < a.top_k; k++) {
        uint32_t top, mine = 0;
        const int e = largest_key(order, &top);
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (lane + 32 * i == e)
                order[i] = 0, mine = key[i];
        const float x = logit_of_key(__shfl_sync(~0u, mine, e % 32));
        const float w = sigmoid(soft_capped(x, a.router_cap));
        sum += w;
        if (k == lane)
            *expert = e, *weight = w;
    }
    if (a.router_kind == ROUTER_SIGMOID)
        *weight /= sum + 1e-20f;
}

/* The top_k largest logits of a row (ties: lowest index) and the softmax over them or over all. */
template <int EACH>
__device__ __forceinline__ void select_by_softmax(const moe_args &a, uint32_t (&key)[EACH],
                                                  int *expert, float *weight)
{
    const int lane = (int)threadIdx.x % 32;
    const bool of_all = a.router_kind == ROUTER_ALL;
    const float all = of_all ? sum_of_all(a, key) : 0;
    float first = 0, sum = 0;
    for (int k = 0; k < a.top_k; k++) {
        uint32_t top;
        const int e = largest_key(key, &top);
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (lane + 32 * i == e)
                key[i] = 0;
        float x = logit_of_key(top);
        first = k ? first : x;
        float w = expf(x - first);
        sum += w;
        if (k == lane)
            *expert = e, *weight = w;
    }
    *weight /= of_all ? all : sum;
}

/* Chooses the experts of a row and weighs them. One warp; lane i receives the expert of rank i and
 * its weight. */
template <int EACH>
__device__ __forceinline__ void select_experts(const moe_args &a, uint32_t (&key)[EACH],
                                               int *expert, float *weight)
{
    const int lane = (int)threadIdx.x % 32;
    if (a.router_kind == ROUTER_SIGMOID || a.router_kind == ROUTER_RAW)
        select_by_sigmoid(a, key, expert, weight);
    else
        select_by_softmax(a, key, expert, weight);
    if (a.expert_scale.p && lane < a.top_k)
        *weight *= weight_at(a.expert_scale, (size_t)*expert);
    if (a.weight_scale != 0)
        *weight *= a.weight_scale;
}

/* A block's own lists of pairs and jobs. */
struct jobs {
    float weight[DIRECT_PAIRS];
    float x_inv[DIRECT_PAIRS]; /* of the pair's row */
    int16_t chosen[DIRECT_PAIRS], order[DIRECT_PAIRS];
    int16_t active[DIRECT_PAIRS], begin[DIRECT_PAIRS + 1];
    int n;
};

/* Groups at most 32 pairs; experts in the order in which pairs first name them. One warp. */
__device__ __forceinline__ void group_32(const moe_args &a, struct jobs *l)
{
    const int lane = (int)threadIdx.x % 32, pairs = a.rows * a.top_k;
    int e = lane < pairs ? l->chosen[lane] : -1 - lane;
    unsigned same = __match_any_sync(~0u, e);
    int rank = __popc(same & ((1u << lane) - 1)), leader = __ffs(same) - 1;
    int mine = lane < pairs && rank == 0 ? __popc(same) : 0;
    int at = __shfl_sync(~0u, inclusive_scan(mine) - mine, leader) + rank;
    bool starts = lane < pairs && rank % a.job_pairs == 0;
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

/* Barrier of the first THREADS threads of a block. */
template <int THREADS> __device__ __forceinline__ void selectors_sync()
{
    named_barrier<SELECT_BARRIER, THREADS>();
}

/* Groups at most DIRECT_PAIRS pairs, with the same result in every block: by expert, and within an
 * expert in order of the pairs; thread p has pair p. scratch: (9, E) ints. */
template <int THREADS>
__device__ __forceinline__ void group_256(const moe_args &a, struct jobs *l, int *scratch)
{
    const int p = (int)threadIdx.x, warp = p / 32, lane = p % 32, E = a.n_expert;
    const int pairs = a.rows * a.top_k, warps = (pairs + 31) / 32;
    int *start = scratch + 8 * E, e = p < pairs ? l->chosen[p] : -1, rank = 0;
    for (int i = p; i < warps * E; i += THREADS)
        scratch[i] = 0;
    selectors_sync<THREADS>();
    if (warp < warps) {
        unsigned same = __match_any_sync(~0u, e);
        rank = __popc(same & ((1u << lane) - 1));
        if (e >= 0 && rank == 0)
            scratch[warp * E + e] = __popc(same);
    }
    selectors_sync<THREADS>();
    if (warp == 0) {
        int sum = 0, n = 0;
        for (int x = lane; x < (E + 31) / 32 * 32; x += 32) {
            int c = 0;
            for (int w = 0; w < warps && x < E; w++) {
                int here = scratch[w * E + x];
                scratch[w * E + x] = c;
                c += here;
            }
            int jobs = (c + a.job_pairs - 1) / a.job_pairs;
            int upto = inclusive_scan(c), jobs_upto = inclusive_scan(jobs);
            for (int j = 0; j < jobs; j++) {
                l->begin[n + jobs_upto - jobs + j] = (int16_t)(sum + upto - c + j * a.job_pairs);
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
    selectors_sync<THREADS>();
    if (e >= 0)
        l->order[start[e] + scratch[warp * E + e] + rank] = (int16_t)p;
}

/* Selects the experts of row r. One warp. */
__device__ __forceinline__ void select_row(const moe_args &a, struct jobs *l, int r)
{
    const int lane = (int)threadIdx.x % 32;
    const uint32_t *keys = a.keys + (size_t)r * (size_t)a.n_expert;
    int e = 0;
    float w = 0;
    if (a.n_expert <= 32) {
        uint32_t key[1];
        wait_for_keys(a, keys, key);
        select_experts(a, key, &e, &w);
    } else {
        uint32_t key[DIRECT_EXPERTS / 32];
        wait_for_keys(a, keys, key);
        select_experts(a, key, &e, &w);
    }
    if (lane >= a.top_k)
        return;
    l->chosen[r * a.top_k + lane] = (int16_t)e, l->weight[r * a.top_k + lane] = w;
    if (a.rows == 1)
        l->active[lane] = (int16_t)e;
}

/* The jobs of a single row: one for each rank, whatever the expert. One warp. */
__device__ __forceinline__ void group_one(const moe_args &a, struct jobs *l)
{
    const int lane = (int)threadIdx.x % 32;
    if (lane < a.top_k)
        l->order[lane] = l->begin[lane] = (int16_t)lane;
    if (lane == 0)
        l->n = l->begin[a.top_k] = (int16_t)a.top_k;
}

/* Selects the experts of all rows and groups the pairs; the first THREADS threads of a block. */
template <int THREADS>
__device__ __forceinline__ void select_and_group(const moe_args &a, struct jobs *l, int *scratch)
{
    const int warp = (int)threadIdx.x / 32;
    for (int r = warp; r < a.rows; r += THREADS / 32)
        select_row(a, l, r);
    selectors_sync<THREADS>();
    if (a.rows * a.top_k > 32)
        group_256<THREADS>(a, l, scratch);
    else if (warp == 0)
        a.rows == 1 ? group_one(a, l) : group_32(a, l);
}

/* A word holds four scales of a row. The lower two bits of its bytes are 0, except in the row's
 * first word, where together they are the exponent of the row's largest scale: removes these bits,
 * and returns twice that scale. */
__device__ __forceinline__ float mx_unit(uint32_t &four)
{
    /* Collects the bits in the upper byte. */
    const uint32_t most = (four & 0x03030303u) * 0x01041040u;
    four &= 0x7c7c7c7cu;
    return __uint_as_float((most >> 1 & 0x7f800000u) + 0x00800000u);
}

/* Decodes eight weights of block b of four into f16 pairs, scaled. */
__device__ __forceinline__ void scaled_pairs(uint32_t w, uint32_t scales, int b, uint32_t (&h)[4])
{
    const uint32_t pair = (b % 2 ? scales : scales << 8) & 0xFF00FF00u;
    const __half2 both = *(const __half2 *)&pair; /* selecting one half costs no instruction */
    const __half2 one = b / 2 ? __high2half2(both) : __low2half2(both);
    e2m1_pairs(w, h);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const __half2 y = __hmul2_rn(*(const __half2 *)&h[i], one);
        h[i] = *(const uint32_t *)&y;
    }
}

/* The sum over all k splits; infinite only because of a NaN scale, hence NaN. */
__device__ __forceinline__ float mx_sum(float y) { return isinf(y) ? NAN : y; }

/* Element i of the sum of a row's experts, in the order of rank. */
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
