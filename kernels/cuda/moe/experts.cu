/* experts.cu - MXFP4, bf16 and packed experts for decode and verify rows, at the speed of memory.
 *
 * One kernel after the router; all its blocks are resident. Its jobs are in two groups, and its
 * work in parts: gate and up for one group after the other, then down for each group, so that the
 * hidden rows with which down begins were complete long before. A part is divided into units (a
 * job, two tiles of 16 outputs), and every block has an equal, contiguous share of the units, so a
 * block has few jobs. At the end each row's experts are summed in the order of rank.
 *
 * The warps of a block iterate over its units side by side, each with its own task. A block has two
 * pipelines, which alternate: while one waits for partial sums or runs a unit's epilogue, the other
 * multiplies. In a pipeline, one producer warp copies weights into a ring in shared memory, a stage
 * of which holds one chunk of each of the 8 k splits of each tile. Eight consumer warps multiply,
 * each one k split of both tiles, with the order of sums of dense/product.cuh. Two epilogue warps
 * add the k splits in order and write the results. One more warp of the block, the row warp,
 * fetches the rows of the next job and waits for what other blocks must have written before.
 *
 * Instruction issue is the bound: decoding costs 1.5 instructions a weight, for four rows as for
 * one, so everything else must be short. Hence a consumer warp has two tiles, which share what it
 * reads of the rows.
 *
 * Weights, their biases and rows are fetched by the copy engine: an ordinary load would queue
 * behind all copies of the ring, and a fence would wait for its own thread's copies. Blocks signal
 * each other through counters; with few pairs, experts_few.cu does without.
 *
 * bf16 experts (moe_shape::as_bf16) are stored in tiles, too (cuda_tiles_experts()), and multiplied
 * in the order of product_kernel: a chunk has 32 of k, and a row has two columns, whose sums are
 * added in each k split. Packed experts (moe/expert_blocks.cuh) are unpacked to bf16 by the
 * consumers; everything else is the same.
 */
#include "kernels/cuda/moe/experts_roles.cuh"

/* ---- the row warp --------------------------------------------------------------------------- */

/* Waits until the hidden rows of a group are complete. */
__device__ __forceinline__ void wait_for_group(const moe_args &a, block &b, int group)
{
    mbarrier_wait(&b.part_done[group], 0);
    grid_wait(a.sync + GROUP_READY + group);
    fence_async_proxy();
}

/* Starts the copies of a job's rows from memory; COPY_LANES lanes. */
__device__ __forceinline__ void copy_rows(const moe_args &a, const job_lists &jobs, bool down,
                                          int job, char *to, int pitch, uint64_t *full)
{
    const packed &x = down ? a.h : a.x;
    const int first = jobs.begin(job), n = jobs.begin(job + 1) - first;
    bulk_expect(full, n * a.terms * x.kp * 2);
#pragma unroll 1
    for (int i = 0; i < n; i++) {
        const int pair = jobs.order(first + i), row = down ? pair : pair / a.top_k;
        const uint16_t *from = x.x + (size_t)(row * a.terms) * (size_t)x.kp;
        for (int t = 0; t < a.terms; t++, to += pitch, from += x.kp)
            bulk_copy(shared_at(to), from, x.kp * 2, full);
    }
    bulk_issued(full);
}

/* Fetches the rows of one job after another. Before the first rows for down, or at the end if
 * there are none, all blocks are known to have selected experts. */
template <int KIND>
__device__ __forceinline__ void produce_rows(const moe_args &a, const job_lists &jobs, block &b,
                                             const smem_layout<KIND> &r)
{
    struct ring_pos row_stage = {};
    int ready = 0;
    unit_walk at(a, jobs);
    while (at.next()) {
        if (!at.fresh)
            continue;
        for (; ready <= at.part - JOB_GROUPS; ready++)
            wait_for_group(a, b, ready);
        char *to = r.rows + row_stage.slot * r.row_stage_bytes;
        mbarrier_wait(&b.rows_empty[row_stage.slot], row_stage.phase ^ 1);
        __syncwarp(); /* a lane that still waited would miss the phase, and wait for the next */
        if (threadIdx.x % 32 < COPY_LANES)
            copy_rows(a, jobs, at.down(), at.job, to, r.stage_pitch, &b.rows_full[row_stage.slot]);
        row_stage.next(a.row_stages);
    }
    for (; ready < JOB_GROUPS; ready++)
        wait_for_group(a, b, ready);
    release_keys<KIND>(a, jobs);
}

/* ---- the kernel ----------------------------------------------------------------------------- */

/* Sums the rows' experts. */
template <class INT>
__device__ __forceinline__ void add_experts(const moe_args &a, const INT *chosen,
                                            const float *weight)
{
    const int step = (int)gridDim.x * THREADS;
    for (int i = first_sum(a) + (int)threadIdx.x; i < a.rows * a.in; i += step) {
        float old = a.add ? a.dst[i] : 0.f, y = sum_of(a, chosen, weight, i / a.in, i % a.in);
        a.dst[i] = a.add ? y + old : y;
    }
}

template <int KIND>
__global__ void __launch_bounds__(THREADS, 1)
    expert_kernel(const __grid_constant__ moe_args a)
{
    if (is_bf16(KIND) && !BF16_RUNS)
        return;
    extern __shared__ __align__(128) char shared[];
    __shared__ struct block b;
    const int warp = __shfl_sync(~0u, (int)threadIdx.x / 32, 0);
    const smem_layout<KIND> r(a, shared);
    if (warp == ROW_WARP)
        b.init(false, false);
    if (a.block_select && a.rows == 1 && warp == WEIGHT_WARP)
        divide_units<is_bf16(KIND)>(a, a.top_k, b.shares);
    __syncthreads();
    if (!a.block_select) {
        pdl_wait();
        if (warp == WEIGHT_WARP)
            divide_units<is_bf16(KIND)>(a, *a.n_active, b.shares);
        __syncthreads();
    } else if (warp == ROW_WARP) {
        take_rows(a, b, r);
        mbarrier_wait(&b.chosen, 0);
    } else {
        select_for_block<KIND>(a, b, (int *)shared);
    }
    const struct job_lists jobs = {a.block_select ? &b.lists : NULL, a.active, a.begin, a.order,
                                   b.shares};
    run_roles(a, jobs, b, r, warp, [&] { produce_rows(a, jobs, b, r); });
    __syncthreads();
    if (a.block_select)
        add_experts(a, b.lists.chosen, b.lists.weight);
    else
        add_experts(a, a.chosen, a.weight);
}

/* ---- host ----------------------------------------------------------------------------------- */

void cuda_decode_experts(struct kdev *d, const struct moe_args *m, const struct moe_route *r)
{
    if (dtype_packed((enum dtype)m->gate_up_m.type))
        return launch_experts(d, expert_kernel<COLS_BLOCKS>, m, r->shared);
    if (!m->f16)
        return launch_experts(d, expert_kernel<COLS_BF16>, m, r->shared);
    launch_experts(d,
                   r->kernel == MOE_COLUMNS_16  ? expert_kernel<COLS_16>
                   : r->kernel == MOE_COLUMNS_8 ? expert_kernel<COLS_8>
                                                : expert_kernel<COLS_4>,
                   m, r->shared);
}
