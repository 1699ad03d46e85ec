/* experts_few.cu - the experts of experts.cu for a single row and for few pairs (decode rows, small
 * trees): the jobs and warps of experts.cu. A word that one block writes for others is its own flag
 * (publish(), base/barrier.cuh): the row warps wait for the words of hidden rows and of results
 * themselves, and sum the rows' experts as the results arrive. The router has set these words to 0.
 *
 * The rows for gate and up are resident, fetched before any weights, behind which their copies
 * would queue. A single row (SINGLE) is packed by every block, as soon as the row exists, and its
 * jobs are its ranks: they are known before its experts are.
 */
#include "kernels/cuda/moe/experts_roles.cuh"

/* ---- a single row --------------------------------------------------------------------------- */

/* Packs the row for this block as pack_row() of router.cu does, as soon as the row exists; the
 * first ROUTE_THREADS threads. Faster than waiting for one block to pack it for all. */
template <int KIND>
__device__ __forceinline__ void pack_single_row(const moe_args &a, const smem_layout<KIND> &r,
                                                float *x_inv, float *scratch)
{
    const int tid = (int)threadIdx.x;
    uint32_t w[PER] = {};
    float x[PER], ss = 0, top = 0, inv = 1;
    if (a.pre.w.p)
        fetch_part((const uint16_t *)a.pre.w.p, a.in, 0, w);
    if (tid == 0)
        while (WAITS && !load_acquire(a.sync + ROWS_READY))
            ;
    route_sync();
    fetch_part(a.src, a.in, 0, x);
#pragma unroll
    for (int j = 0; j < PER; j++)
        ss = fmaf(x[j], x[j], ss);
    if (a.pre.kind != NORM_NONE)
        inv = 1 / sqrtf(route_sum(ss, scratch) / (float)a.in + a.pre.eps);
#pragma unroll
    for (int j = 0; j < PER; j++) {
        const float y = normed_by(a.pre.kind, x[j], inv, low_bf16(w[j]));
        x[j] = tid + j * ROUTE_THREADS < a.in ? y : 0.f;
        top = fmaxf(top, fabsf(x[j]));
    }
    float s = 1;
    if (!is_bf16(KIND)) {
        s = f16_scale_of(route_max(top, scratch + ROUTE_WARPS));
        if (tid < a.top_k)
            x_inv[tid] = inverse_scale(s);
    }
#pragma unroll
    for (int j = 0; j < PER; j++) {
        float y = x[j] * s;
        char *to = r.resident + (tid + j * ROUTE_THREADS) * 2;
#pragma unroll
        for (int t = 0; t < shape<KIND>::ROW_COLS; t++, to += r.pitch)
            if (tid + j * ROUTE_THREADS < a.x.kp)
                *(uint16_t *)to = split_term<term_of<KIND>>(y);
    }
}

/* ---- the row warp --------------------------------------------------------------------------- */

/* Copies a hidden row's TERMS columns into shared memory, `pitch` bytes apart, as their words
 * arrive; one warp. */
template <int TERMS>
__device__ __forceinline__ void receive_row(const moe_args &a, char *to, int pitch, int pair)
{
    enum { IN_FLIGHT = 6 };
    const int column = a.h.kp * 2, all = TERMS * column; /* bytes */
    const char *const from = (const char *)a.h.x + (size_t)pair * (size_t)all;
    for (int i = (int)threadIdx.x % 32 * 16; i < all; i += IN_FLIGHT * 512) {
        uint4 v[IN_FLIGHT];
        bool missing;
        do {
            missing = false;
#pragma unroll
            for (int j = 0; j < IN_FLIGHT; j++) {
                v[j] = make_uint4(~0u, ~0u, ~0u, ~0u); /* zeros after the row's end */
                const int at = i + j * 512, in = TERMS == 2 && at >= column ? at - column : at;
                if ((TERMS == 1 || at < all) && in < a.ffn * 2)
                    v[j] = poll_four((const uint4 *)(from + at));
                missing |= !all_published(v[j]);
            }
        } while (WAITS && missing);
#pragma unroll
        for (int j = 0; j < IN_FLIGHT; j++) {
            const int at = i + j * 512, behind = TERMS == 2 && at >= column ? pitch - column : 0;
            if (at < all)
                *(uint4 *)(to + at + behind) = make_uint4(~v[j].x, ~v[j].y, ~v[j].z, ~v[j].w);
        }
    }
}

/* Waits until the words for flags are 0: no flag of an earlier step is left in them. */
__device__ __forceinline__ void wait_for_cleared(const moe_args &a, block &b)
{
    while (WAITS && load_acquire(a.sync + ROWS_CLEARED) != (unsigned)a.rows)
        ;
    mbarrier_wait(&b.resident, 0);
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        /* This block has selected its experts and read all of the router's counters. */
        grid_arrive(a.sync + GROUP_READY);
        mbarrier_arrive(&b.flags_cleared);
    }
    __syncwarp(); /* no lane may find the counter at 0 because no block has arrived yet */
}

/* Receives the hidden rows of a job; all lanes. */
template <int TERMS>
__device__ __forceinline__ void receive_rows(const moe_args &a, const job_lists &jobs, int job,
                                             char *to, int pitch, uint64_t *full)
{
    for (int i = jobs.begin(job); i < jobs.begin(job + 1); i++, to += TERMS * pitch)
        receive_row<TERMS>(a, to, pitch, jobs.order(i));
    mbarrier_arrive_warp(full);
}

/* Receives the hidden rows of one job after another. Before the first, or at the end if there are
 * none, all blocks are known to have selected experts. */
template <int KIND>
__device__ __forceinline__ void produce_rows(const moe_args &a, const job_lists &jobs, block &b,
                                             const smem_layout<KIND> &r)
{
    struct ring_pos row_stage = {};
    bool left = false;
    unit_walk at(a, jobs);
    wait_for_cleared(a, b);
    while (at.next()) {
        if (!at.fresh || !at.down())
            continue;
        if (!left) {
            grid_wait(a.sync + GROUP_READY);
            release_keys<KIND>(a, jobs);
            left = true;
        }
        char *to = r.rows + row_stage.slot * r.row_stage_bytes;
        mbarrier_wait(&b.rows_empty[row_stage.slot], row_stage.phase ^ 1);
        __syncwarp(); /* a lane that still waited would miss the phase, and wait for the next */
        receive_rows<shape<KIND>::ROW_COLS>(a, jobs, at.job, to, r.stage_pitch,
                                             &b.rows_full[row_stage.slot]);
        row_stage.next(a.row_stages);
    }
    if (!left) {
        grid_wait(a.sync + GROUP_READY);
        release_keys<KIND>(a, jobs);
    }
}

/* ---- the sum -------------------------------------------------------------------------------- */

/* Elements i .. i + 3 of a vector; i is a multiple of four. */
__device__ __forceinline__ float4 four_at(const vec &v, size_t i)
{
    if (v.type == DT_F32)
        return __ldg((const float4 *)((const float *)v.p + i));
    const uint2 raw = __ldg((const uint2 *)((const uint16_t *)v.p + i));
    const float2 x = two_of(v.type, &raw, 0), y = two_of(v.type, &raw, 2);
    return make_float4(x.x, x.y, y.x, y.y);
}

/* Sums the rows' experts, four elements a lane, as the results arrive. */
__device__ __forceinline__ void add_experts(const moe_args &a, const struct jobs &l)
{
    enum { IN_FLIGHT = 4 };
    const int block = (int)(gridDim.x - 1 - blockIdx.x), lane = (int)threadIdx.x % 32;
    for (int i = (block * 32 + lane) * 4; i < a.rows * a.in; i += (int)gridDim.x * 128) {
        const int pair = i / a.in * a.top_k, at = i % a.in;
        const float4 old = a.add ? __ldcg((const float4 *)(a.dst + i)) : make_float4(0, 0, 0, 0);
        float4 sum = make_float4(0, 0, 0, 0);
        for (int k0 = 0; k0 < a.top_k; k0 += IN_FLIGHT) {
            const int n = min(a.top_k - k0, (int)IN_FLIGHT);
            float4 bias[IN_FLIGHT];
            uint4 y[IN_FLIGHT];
            bool missing;
#pragma unroll
            for (int k = 0; k < IN_FLIGHT; k++)
                bias[k] = a.down_b.p && k < n
                              ? four_at(a.down_b, (size_t)l.chosen[pair + k0 + k] * a.down_b_pitch +
                                                      (size_t)at)
                              : make_float4(0, 0, 0, 0);
            do {
                missing = false;
#pragma unroll
                for (int k = 0; k < IN_FLIGHT; k++)
                    if (k < n) {
                        const size_t from = (size_t)(pair + k0 + k) * (size_t)a.in + (size_t)at;
                        y[k] = poll_four((const uint4 *)(a.down + from));
                        missing |= !all_published(y[k]);
                    }
            } while (WAITS && missing);
#pragma unroll
            for (int k = 0; k < IN_FLIGHT; k++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const float w = l.weight[pair + min(k0 + k, a.top_k - 1)];
                    float v = __uint_as_float(~(&y[k].x)[e]);
                    v = a.down_b.p ? v + (&bias[k].x)[e] : v;
                    if (k < n)
                        (&sum.x)[e] = k0 + k ? fmaf(w, v, (&sum.x)[e]) : v * w;
                }
        }
        if (a.add)
            sum = make_float4(sum.x + old.x, sum.y + old.y, sum.z + old.z, sum.w + old.w);
        *(float4 *)(a.dst + i) = sum;
    }
}

/* ---- the kernel ----------------------------------------------------------------------------- */

template <int KIND, bool SINGLE>
__global__ void __launch_bounds__(THREADS, 1)
    few_expert_kernel(const __grid_constant__ moe_args a)
{
    if (is_bf16(KIND) && !BF16_RUNS)
        return;
    extern __shared__ __align__(128) char shared[];
    __shared__ struct block b;
    const int warp = __shfl_sync(~0u, (int)threadIdx.x / 32, 0);
    const smem_layout<KIND> r(a, shared);
    if (threadIdx.x == 0)
        STAMP_BLOCK(BEGINS, STAMP_EXPERTS);
    if (warp == ROW_WARP)
        b.init(SINGLE, true);
    if ((SINGLE || a.rows == 1) && warp == WEIGHT_WARP)
        divide_units<is_bf16(KIND)>(a, a.top_k, b.shares);
    if (SINGLE && warp == 0)
        group_one(a, &b.lists);
    __syncthreads();
    if constexpr (SINGLE) {
        if (warp < ROUTE_WARPS) {
            pack_single_row<KIND>(a, r, b.lists.x_inv, b.scratch);
            mbarrier_arrive_warp(&b.resident);
        } else if (warp == WEIGHT_WARP) {
            select_row(a, &b.lists, 0);
            mbarrier_arrive_warp(&b.chosen);
        } else if (warp > WEIGHT_WARP) {
            mbarrier_wait(&b.chosen, 0);
        }
    } else if (warp == ROW_WARP) {
        take_rows(a, b, r);
        mbarrier_wait(&b.chosen, 0);
    } else {
        select_for_block<KIND>(a, b, (int *)shared);
    }
    const struct job_lists jobs = {&b.lists, a.active, a.begin, a.order, b.shares};
    run_roles(a, jobs, b, r, warp, [&] {
        produce_rows(a, jobs, b, r);
        if (a.adds_experts)
            add_experts(a, b.lists);
        if (threadIdx.x % 32 == 0)
            STAMP_BLOCK(ENDS, 0);
    });
    if (threadIdx.x == 0) /* a warp that multiplies: all weights have arrived */
        STAMP_BLOCK(LAST, 0);
}

/* ---- host ----------------------------------------------------------------------------------- */

void cuda_few_experts(struct kdev *d, const struct moe_args *m, const struct moe_route *r)
{
    const bool single = r->kernel == MOE_ROW;
    if (dtype_packed((enum dtype)m->gate_up_m.type))
        launch_experts(d, single ? few_expert_kernel<FEW_BLOCKS, true>
                                 : few_expert_kernel<FEW_BLOCKS, false>,
                       m, r->shared);
    else if (m->f16)
        launch_experts(d, single ? few_expert_kernel<FEW_PAIRS, true>
                                 : few_expert_kernel<FEW_PAIRS, false>,
                       m, r->shared);
    else
        launch_experts(d, single ? few_expert_kernel<FEW_BF16, true>
                                 : few_expert_kernel<FEW_BF16, false>,
                       m, r->shared);
}
