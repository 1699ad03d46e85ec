/* experts.cu - MXFP4 experts for decode and verify rows, at the speed of memory.
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
 * behind all copies of the ring, and a fence would wait for its own thread's copies. Resident rows
 * are fetched before any weights; a single row is packed by every block. Blocks signal each other
 * through counters or, if there are few pairs, through words that are their own flags (by_flags).
 */
#include "kernels/cuda/moe/experts_decode.cuh"

/* ---- producer warps: weights ---------------------------------------------------------------- */

template <int KIND>
__device__ __forceinline__ void produce_weights(const moe_args &a, const job_lists &jobs, block &b,
                                                const smem_layout<KIND> &r, int pipe)
{
    const int number = a.gate_up_b.type == DT_F32 ? 4 : 2; /* bytes */
    auto &mine = b.pipe[pipe];
    char *const ring = r.ring + pipe * a.stages * STAGE;
    struct ring_pos stage = {}, ends = {};
    unit_walk at(a, jobs);
    while (at.next()) {
        if (at.pipe != pipe)
            continue;
        const bool biased = !at.down() && a.gate_up_b.p;
        const mat &m = at.m();
        const int kp = at.s.kp, each = at.s.each, full = at.s.full, rest = at.s.rest;
        const int next_tile = kp / 128 * CHUNK, next_scales = kp / 128 * CHUNK_SCALES;
        const size_t e = (size_t)jobs.active(at.job), chunks = (size_t)(at.tile * (kp / 128));
        const uint8_t *w = m.w + e * m.expert + chunks * CHUNK;
        const uint8_t *s = m.scale + e * m.expert_scale + chunks * CHUNK_SCALES;
#pragma unroll 1
        for (int i = 0; i < each; i++) {
            const int n = full + (i < rest), bias_bytes = biased && i == 0 ? BIAS * number : 0;
            char *to = ring + stage.slot * STAGE;
            uint64_t *filled = &mine.full[stage.slot];
            mbarrier_wait(&mine.empty[stage.slot], stage.phase ^ 1);
            bulk_expect(filled, n * TILES * (CHUNK + CHUNK_SCALES) + bias_bytes);
#pragma unroll
            for (int t = 0; t < TILES; t++, to += STEP) {
                bulk_copy_once(shared_at(to), w + t * next_tile, n * CHUNK, filled);
                bulk_copy_once(shared_at(to + K_SPLITS * CHUNK), s + t * next_scales,
                               n * CHUNK_SCALES, filled);
            }
            if (bias_bytes)
                bulk_copy(shared_at(mine.bias[ends.slot]),
                          (const char *)a.gate_up_b.p +
                              (e * a.gate_up_b_pitch + (size_t)(at.tile * 16)) * (size_t)number,
                          bias_bytes, filled);
            bulk_issued(filled);
            w += n * CHUNK, s += n * CHUNK_SCALES;
            stage.next(a.stages);
        }
        ends.next(BIASES);
    }
}

/* ---- the row warp --------------------------------------------------------------------------- */

/* Whether blocks exchange data through flags, and the row warps sum the experts: with few pairs, a
 * word that one block writes for others is its own flag (publish(), cuda.h). The router has set
 * these words to 0. */
template <int KIND> __device__ __forceinline__ bool by_flags(const moe_args &a)
{
    return KIND == COLS_4 && a.by_flags;
}

/* Copies a hidden row into shared memory as its words arrive; one warp. */
__device__ __forceinline__ void receive_row(const moe_args &a, char *to, int pair)
{
    enum { IN_FLIGHT = 6 };
    const char *const from = (const char *)(a.h.x + (size_t)pair * (size_t)a.h.kp);
    for (int i = (int)threadIdx.x % 32 * 16; i < a.h.kp * 2; i += IN_FLIGHT * 512) {
        uint4 v[IN_FLIGHT];
        bool missing;
        do {
            missing = false;
#pragma unroll
            for (int j = 0; j < IN_FLIGHT; j++) {
                v[j] = make_uint4(~0u, ~0u, ~0u, ~0u); /* zeros after the row's end */
                if (i + j * 512 < a.ffn * 2)
                    v[j] = poll_four((const uint4 *)(from + i + j * 512));
                missing |= !all_published(v[j]);
            }
        } while (missing);
#pragma unroll
        for (int j = 0; j < IN_FLIGHT; j++)
            if (i + j * 512 < a.h.kp * 2)
                *(uint4 *)(to + i + j * 512) = make_uint4(~v[j].x, ~v[j].y, ~v[j].z, ~v[j].w);
    }
}

/* Waits until the rows are packed. by_flags: fetches them into shared memory before any weights,
 * behind which their copies would queue. */
template <int KIND>
__device__ __forceinline__ void take_rows(const moe_args &a, block &b, const smem_layout<KIND> &r)
{
    const int lane = (int)threadIdx.x % 32;
    while (load_acquire(a.sync + ROWS_READY) != (unsigned)a.rows)
        ;
    fence_async_proxy();
    if (lane < COPY_LANES) {
        const int rows = by_flags<KIND>(a) ? a.rows : 0;
        bulk_expect(&b.resident, rows * a.x.kp * 2);
        for (int i = 0; i < rows; i++)
            bulk_copy(shared_at(r.resident + i * r.pitch), a.x.x + (size_t)i * (size_t)a.x.kp,
                      a.x.kp * 2, &b.resident);
        bulk_issued(&b.resident);
    }
    for (int p = lane; p < a.rows * a.top_k; p += 32)
        b.lists.x_inv[p] = __ldcg(a.x_inv + p / a.top_k);
    __threadfence_block();
    mbarrier_arrive_warp(&b.resident);
}

/* Waits until the words for flags are 0: no flag of an earlier step is left in them. */
__device__ __forceinline__ void wait_for_cleared(const moe_args &a, block &b)
{
    while (load_acquire(a.sync + ROWS_CLEARED) != (unsigned)a.rows)
        ;
    mbarrier_wait(&b.resident, 0);
    __syncwarp();
    if (threadIdx.x % 32)
        return;
    /* This block has selected its experts and read all of the router's counters. */
    grid_arrive(a.sync + GROUP_READY);
    mbarrier_arrive(&b.flags_cleared);
}

/* Stores the block's lists for later kernels. */
__device__ __forceinline__ void store_choice(const moe_args &a, const struct jobs &l)
{
    for (int p = (int)threadIdx.x % 32; p < a.rows * a.top_k; p += 32) {
        a.chosen[p] = l.chosen[p], a.weight[p] = l.weight[p];
        if (a.chosen_out)
            a.chosen_out[p] = l.chosen[p];
    }
}

/* Sets this block's share of the keys to 0. */
__device__ __forceinline__ void clear_keys(const moe_args &a)
{
    const int lane = (int)threadIdx.x % 32;
    for (int i = (int)blockIdx.x * 32 + lane; i < a.rows * a.n_expert; i += (int)gridDim.x * 32)
        __stcg(a.keys + i, 0u);
    if (blockIdx.x == 0 && lane == 0)
        __stcg(a.sync + ROWS_READY, 0u), __stcg(a.sync + ROWS_CLEARED, 0u);
    fence_acq_rel();
    __syncwarp();
}

/* The first output element that this block sums; beyond the end if the sum is not this kernel's. */
__device__ __forceinline__ int first_sum(const moe_args &a)
{
    return a.adds_experts ? (int)(gridDim.x - 1 - blockIdx.x) * THREADS : a.rows * a.in;
}

/* Prefetches into L2 the biases that the sum of experts will need first. */
__device__ __forceinline__ void prefetch_bias(const moe_args &a, const job_lists &jobs)
{
    enum { LINE_FLOATS = 64 };
    const int lane = (int)threadIdx.x % 32, size = a.down_b.type == DT_F32 ? 4 : 2;
    for (int j = lane; a.down_b.p && j < THREADS / LINE_FLOATS * a.top_k; j += 32) {
        const int i = first_sum(a) + j / a.top_k * LINE_FLOATS, k = j % a.top_k;
        if (i >= a.rows * a.in)
            return;
        const size_t e = (size_t)jobs.own->chosen[i / a.in * a.top_k + k];
        const char *p = (const char *)a.down_b.p + (e * a.down_b_pitch + (size_t)(i % a.in)) * size;
        prefetch_l2(p);
    }
}

/* Waits until the hidden rows of a group are complete. */
__device__ __forceinline__ void wait_for_group(const moe_args &a, block &b, int group)
{
    mbarrier_wait(&b.part_done[group], 0);
    grid_wait(a.sync + GROUP_READY + group);
    fence_async_proxy();
}

/* Called when all blocks have selected experts: sets the keys to 0 and lets the next kernels start,
 * which may write keys again. */
template <int KIND>
__device__ __forceinline__ void release_keys(const moe_args &a, const job_lists &jobs)
{
    if (a.block_select)
        clear_keys(a);
    pdl_trigger();
    if (a.block_select && !by_flags<KIND>(a))
        prefetch_bias(a, jobs);
    pdl_wait(); /* returns at once; whoever waits for this kernel also waits for those before it */
}

/* Starts the copies of a job's rows from memory; COPY_LANES lanes. */
__device__ __forceinline__ void copy_rows(const moe_args &a, const job_lists &jobs, bool down, int job,
                                          char *to, int pitch, uint64_t *full)
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

/* The same for hidden rows that arrive as flags; all lanes. */
__device__ __forceinline__ void receive_rows(const moe_args &a, const job_lists &jobs, int job, char *to,
                                             int pitch, uint64_t *full)
{
    for (int i = jobs.begin(job); i < jobs.begin(job + 1); i++, to += pitch)
        receive_row(a, to, jobs.order(i));
    mbarrier_arrive_warp(full);
}

/* Fetches the rows of one job after another, except rows that are resident. Before the first rows
 * for down, or at the end if there are none, all blocks are known to have selected experts. */
template <int KIND>
__device__ __forceinline__ void produce_rows(const moe_args &a, const job_lists &jobs, block &b,
                                             const smem_layout<KIND> &r)
{
    struct ring_pos row_stage = {};
    int ready = 0;
    bool left = false;
    unit_walk at(a, jobs);
    if (by_flags<KIND>(a))
        wait_for_cleared(a, b);
    while (at.next()) {
        if (!at.fresh || (by_flags<KIND>(a) && !at.down()))
            continue;
        if (by_flags<KIND>(a) && !left) {
            grid_wait(a.sync + GROUP_READY);
            release_keys<KIND>(a, jobs);
            left = true;
        }
        for (; !by_flags<KIND>(a) && ready <= at.part - JOB_GROUPS; ready++)
            wait_for_group(a, b, ready);
        char *to = r.rows + row_stage.slot * r.row_stage_bytes;
        mbarrier_wait(&b.rows_empty[row_stage.slot], row_stage.phase ^ 1);
        __syncwarp(); /* a lane that still waited would miss the phase, and wait for the next */
        if (by_flags<KIND>(a))
            receive_rows(a, jobs, at.job, to, r.pitch, &b.rows_full[row_stage.slot]);
        else if (threadIdx.x % 32 < COPY_LANES)
            copy_rows(a, jobs, at.down(), at.job, to, r.pitch, &b.rows_full[row_stage.slot]);
        row_stage.next(a.row_stages);
    }
    for (; !by_flags<KIND>(a) && ready < JOB_GROUPS; ready++)
        wait_for_group(a, b, ready);
    if (by_flags<KIND>(a) && !left)
        grid_wait(a.sync + GROUP_READY);
    if (!left)
        release_keys<KIND>(a, jobs);
}

/* ---- consumer warps: multiplication --------------------------------------------------------- */

/* Address of a lane's column of a job's rows: in the given row stage, or among the resident rows.
 * Columns beyond the room for rows repeat the last column. */
template <int KIND>
__device__ __forceinline__ const char *column_of(const moe_args &a, const job_lists &jobs,
                                                 const smem_layout<KIND> &r, int job, bool resident,
                                                 int stage)
{
    const int g = (int)threadIdx.x % 32 / 4, col = KIND == COLS_4 ? g / 2 : g;
    if (!resident)
        return r.rows + stage * r.row_stage_bytes +
               min(col, a.job_pairs * a.terms - 1) * r.pitch;
    const int first = jobs.begin(job), pair = jobs.order(min(first + col, jobs.begin(job + 1) - 1));
    return r.resident + pair / a.top_k * r.pitch;
}

/* A warp multiplies one k split of both tiles of its pipeline's units. */
template <int KIND>
__device__ __forceinline__ void consume_units(const moe_args &a, const job_lists &jobs, block &b,
                                              const smem_layout<KIND> &r, int warp)
{
    using S = shape<KIND>;
    const int lane = (int)threadIdx.x % 32, g = lane / 4, q = lane % 4;
    const int run = warp % (int)K_SPLITS, pipe = warp / (int)K_SPLITS;
    auto &own = b.pipe[pipe];
    const char *const w = r.ring + pipe * a.stages * STAGE + run * CHUNK;
    const char *const s = r.ring + pipe * a.stages * STAGE + K_SPLITS * CHUNK + run * CHUNK_SCALES;
    float *const sums = r.sums + pipe * TILES * S::RED;
    float *const mine =
        sums + run * S::COLS * S::PITCH + (KIND == COLS_4 ? q : 2 * q) * S::PITCH + g;
    struct ring_pos stage = {}, row_stage = {}, turn = {}; /* turn: of the buffer of partial sums */
    bool staged = false;
    int each = 0, n = 0; /* chunks of a unit's longest k split; of this split */
    const char *rows = NULL;
    unit_walk at(a, jobs);
    while (at.next()) {
        if (at.fresh) {
            const bool resident = by_flags<KIND>(a) && !at.down();
            if (staged) {
                mbarrier_arrive_warp(&b.rows_empty[row_stage.slot]);
                row_stage.next(a.row_stages);
            }
            staged = !resident;
            each = at.s.each, n = min(each, at.s.kp / 128 - run * each);
            rows = column_of<KIND>(a, jobs, r, at.job, resident, row_stage.slot) +
                   run * each * 256 + q * 16;
            mbarrier_wait(resident ? &b.resident : &b.rows_full[row_stage.slot],
                          resident ? 0 : row_stage.phase);
        }
        if (at.pipe != pipe)
            continue;
        const char *x = rows;
        float acc[TILES][S::NT][4] = {};
        float2 units[TILES] = {};
#pragma unroll 1
        for (int i = 0; i < each; i++, x += 256) {
            const char *const here = w + stage.slot * STAGE, *const scales = s + stage.slot * STAGE;
            struct chunk_weights c[TILES];
            mbarrier_wait(&own.full[stage.slot], stage.phase);
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                c[t].load(here + t * STEP, scales + t * STEP);
                if (run == 0 && i == 0)
                    units[t] = c[t].take_row_scales();
            }
            mbarrier_arrive_warp(&own.empty[stage.slot]);
            if (i < n)
                multiply<KIND>(c, x, 8 * r.pitch, acc);
            stage.next(a.stages);
        }
        mbarrier_wait(&own.sums_empty, turn.phase ^ 1);
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            float *to = mine + t * S::RED;
#pragma unroll
            for (int j = 0; j < S::NT; j++, to += 8 * S::PITCH) {
                to[0] = acc[t][j][0], to[8] = acc[t][j][2];
                if (KIND != COLS_4)
                    to[S::PITCH] = acc[t][j][1], to[S::PITCH + 8] = acc[t][j][3];
            }
            if (run == 0 && q == 0) {
                float *at_units = sums + t * S::RED + S::UNITS + g;
                at_units[0] = units[t].x, at_units[8] = units[t].y;
            }
        }
        mbarrier_arrive_warp(&own.sums_full);
        turn.next(1);
    }
}

/* ---- epilogue warps ------------------------------------------------------------------------- */

__device__ __forceinline__ void store_hidden(const moe_args &a, int pair, int i, float h)
{
    uint16_t *to = a.h_to + (size_t)pair * (size_t)a.terms * (size_t)a.h.kp + (size_t)i;
    float x = h * a.h_scale;
    to[0] = split_term<__half>(x);
    if (a.terms == 2)
        to[a.h.kp] = split_term<__half>(x);
}

/* A lane's outputs 2 * o and 2 * o + 1 of a tile for one pair; for gate and up these are one hidden
 * element. prepare() once a job; load_sums() reads the sums and biases, whose buffers may be reused
 * afterwards; store() applies the activation and writes. */
struct pair_epilogue {
    int pair, col, o; /* pair -1: no pair; eight lanes share a pair */
    float inv;
    float2 y, bias;
    __device__ __forceinline__ void prepare(const moe_args &a, const job_lists &jobs, bool down, int job,
                                            int item)
    {
        const int from = jobs.begin(job);
        const bool has_pair = item / 8 < jobs.begin(job + 1) - from;
        pair = has_pair ? jobs.order(from + item / 8) : -1;
        col = has_pair ? item / 8 * a.terms : 0, o = item % 8;
        inv = a.h_undo;
        if (has_pair && !down)
            inv = jobs.own ? jobs.own->x_inv[pair] : __ldcg(a.x_inv + pair / a.top_k);
    }
    template <int KIND>
    __device__ __forceinline__ void load_sums(const moe_args &a, bool down, const float *red,
                                              const void *tile_bias)
    {
        y = reduce_splits<KIND>(red, col, 2 * o, KIND != COLS_4 && a.terms == 2);
        bias = make_float2(0, 0);
        if (!down && a.gate_up_b.p)
            bias = two_of(a.gate_up_b.type, tile_bias, 2 * o);
    }
    template <int KIND>
    __device__ __forceinline__ void store(const moe_args &a, bool down, int tile) const
    {
        const float2 z = make_float2(mx_sum(y.x * inv), mx_sum(y.y * inv));
        if (down) {
            float *to = a.down + (size_t)pair * (size_t)a.in + (size_t)(tile * 16 + 2 * o);
            if (pair >= 0 && by_flags<KIND>(a))
                publish_two((uint32_t *)to, z.x, z.y);
            else if (pair >= 0)
                *(float2 *)to = z;
            return;
        }
        const float h = gated(z.x + bias.x, z.y + bias.y, a.act, a.limit);
        if (!by_flags<KIND>(a)) {
            if (pair >= 0)
                store_hidden(a, pair, tile * 8 + o, h);
            return;
        }
        const uint32_t mine = __half_as_ushort(__float2half_rn(h * a.h_scale)),
                       next = __shfl_down_sync(~0u, mine, 1);
        if (pair >= 0 && o % 2 == 0)
            publish((uint32_t *)(a.h_to + (size_t)pair * (size_t)a.h.kp + (size_t)(tile * 8 + o)),
                 mine | next << 16);
    }
};

/* Signals other blocks that this block has finished a part. */
__device__ __forceinline__ void signal_part(const moe_args &a, block &b, int part)
{
    enum { ALL = 32 * (int)EPILOGUE_WARPS };
    const bool down = part >= JOB_GROUPS;
    if (down && part + 1 < WORK_PARTS)
        return;
    __syncwarp(); /* the first lane may still be signalling the part before */
    named_barrier<EPILOGUE_BARRIER, ALL>();
    if ((int)threadIdx.x != 32 * MMA_WARPS)
        return;
    if (!down) {
        grid_arrive(a.sync + GROUP_READY + part);
        mbarrier_arrive(&b.part_done[part]);
        return;
    }
    grid_arrive(a.sync + DOWN_READY);
    if (first_sum(a) < a.rows * a.in)
        grid_wait(a.sync + DOWN_READY);
}

/* An epilogue warp has one tile of each of its pipeline's units. */
template <int KIND>
__device__ __forceinline__ void run_epilogue(const moe_args &a, const job_lists &jobs, block &b,
                                             const smem_layout<KIND> &r, int number)
{
    using S = shape<KIND>;
    const int lane = (int)threadIdx.x % 32, group = number % TILES, pipe = number / TILES;
    const int bias_at = group * 16 * (a.gate_up_b.type == DT_F32 ? 4 : 2);
    const float *const red = r.sums + number * S::RED;
    auto &own = b.pipe[pipe];
    struct ring_pos turn = {}, ends = {};
    int part_done = by_flags<KIND>(a) ? (int)WORK_PARTS : 0;
    bool stale = true;
    struct pair_epilogue e[S::PASSES];
    if (a.block_select)
        mbarrier_wait(&b.resident, 0); /* x_inv is complete */
    if (by_flags<KIND>(a))
        mbarrier_wait(&b.flags_cleared, 0);
    unit_walk at(a, jobs);
    while (at.next()) {
        const bool down = at.down();
        const int tile = at.tile + group;
        for (; part_done < at.part; part_done++)
            signal_part(a, b, part_done);
        stale |= at.fresh;
        if (at.pipe != pipe)
            continue;
        if (stale)
#pragma unroll
            for (int i = 0; i < S::PASSES; i++)
                e[i].prepare(a, jobs, down, at.job, lane + i * 32);
        stale = false;
        mbarrier_wait(&own.sums_full, turn.phase);
#pragma unroll
        for (int i = 0; i < S::PASSES; i++)
            e[i].template load_sums<KIND>(a, down, red,
                                          (const char *)own.bias[ends.slot] + bias_at);
        mbarrier_arrive_warp(&own.sums_empty);
        turn.next(1), ends.next(BIASES);
#pragma unroll
        for (int i = 0; i < S::PASSES; i++)
            e[i].template store<KIND>(a, down, tile);
        if (!by_flags<KIND>(a) && !down && tile == at.s.tiles - 1) { /* zeros up to a whole chunk */
            const int from = jobs.begin(at.job), pad = a.h.kp - a.ffn;
            for (int i = lane; i < (jobs.begin(at.job + 1) - from) * pad; i += 32)
                store_hidden(a, jobs.order(from + i / pad), a.ffn + i % pad, 0);
        }
    }
    for (; part_done < WORK_PARTS; part_done++)
        signal_part(a, b, part_done);
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

/* Elements i .. i + 3 of a vector; i is a multiple of four. */
__device__ __forceinline__ float4 four_at(const vec &v, size_t i)
{
    if (v.type == DT_F32)
        return __ldg((const float4 *)((const float *)v.p + i));
    const uint2 raw = __ldg((const uint2 *)((const uint16_t *)v.p + i));
    const float2 x = two_of(v.type, &raw, 0), y = two_of(v.type, &raw, 2);
    return make_float4(x.x, x.y, y.x, y.y);
}

/* The same by the row warps, four elements a lane, as the results arrive through flags. */
__device__ __forceinline__ void add_experts_by_flags(const moe_args &a, const struct jobs &l)
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
            } while (missing);
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

template <int KIND>
__global__ void __launch_bounds__(THREADS, 1)
    expert_kernel(const __grid_constant__ struct moe_args a)
{
    using S = shape<KIND>;
    extern __shared__ __align__(128) char shared[];
    __shared__ struct block b;
    const int warp = __shfl_sync(~0u, (int)threadIdx.x / 32, 0), lane = (int)threadIdx.x % 32;
    const smem_layout<KIND> r(a, shared);
    if (warp == ROW_WARP)
        b.init(a.single_row, by_flags<KIND>(a));
    if (a.block_select && a.rows == 1 && warp == WEIGHT_WARP)
        divide_units(a, a.top_k, b.shares);
    if (a.single_row && warp == 0)
        group_one(a, &b.lists);
    __syncthreads();
    if (a.single_row) {
        if (warp < ROUTE_WARPS) {
            pack_single_row(a, (uint16_t *)r.resident, b.lists.x_inv, b.scratch);
            mbarrier_arrive_warp(&b.resident);
        } else if (warp == WEIGHT_WARP) {
            select_row(a, &b.lists, 0);
            mbarrier_arrive_warp(&b.chosen);
        } else if (warp > WEIGHT_WARP) {
            mbarrier_wait(&b.chosen, 0);
        }
    } else if (!a.block_select) {
        pdl_wait();
        if (warp == WEIGHT_WARP)
            divide_units(a, *a.n_active, b.shares);
        __syncthreads();
    } else if (warp == ROW_WARP) {
        take_rows(a, b, r);
        mbarrier_wait(&b.chosen, 0);
    } else {
        select_and_group<(int)SELECTORS>(a, &b.lists, (int *)shared);
        selectors_sync<(int)SELECTORS>();
        if (a.rows > 1) {
            if (warp == WEIGHT_WARP)
                divide_units(a, b.lists.n, b.shares);
            selectors_sync<(int)SELECTORS>();
        }
        if ((int)threadIdx.x < SELECTORS_THAT_ARRIVE)
            mbarrier_arrive(&b.chosen);
    }
    const struct job_lists jobs = {a.block_select ? &b.lists : NULL, a.active, a.begin, a.order,
                              b.shares};
    if (warp < MMA_WARPS) {
        consume_units(a, jobs, b, r, warp);
    } else if (warp < WEIGHT_WARP) {
        run_epilogue(a, jobs, b, r, warp - MMA_WARPS);
    } else if (warp < ROW_WARP) {
        if (lane < COPY_LANES)
            produce_weights(a, jobs, b, r, warp - WEIGHT_WARP);
    } else {
        if (a.block_select && blockIdx.x == 0)
            store_choice(a, b.lists);
        produce_rows(a, jobs, b, r);
        if (by_flags<KIND>(a))
            add_experts_by_flags(a, b.lists);
    }
    if (by_flags<KIND>(a))
        return;
    __syncthreads();
    if (a.block_select)
        add_experts(a, b.lists.chosen, b.lists.weight);
    else
        add_experts(a, a.chosen, a.weight);
}

/* ---- host ----------------------------------------------------------------------------------- */

template <int KIND> static int shared_of(const struct moe_args *a, int columns)
{
    int pitch = max_int(a->x.kp, a->h.kp) * 2 + 64;
    int resident = KIND == COLS_4 && a->by_flags ? a->rows : 0;
    int read = KIND == COLS_16 ? 16 - columns : 0; /* behind the last row stage; not used */
    return PIPELINES * a->stages * STAGE + shape<KIND>::SUM_BYTES +
           (a->row_stages * columns + resident + read) * pitch;
}

/* Dynamic shared memory that a block can have beside its static variables. */
static int smem_max(const struct kdev *d)
{
    return (int)d->smem_max - (int)sizeof(struct block) - 128;
}

/* Fewer columns if rows are so long that a block's shared memory cannot hold more. */
int cuda_decode_job_pairs(const struct kdev *d, const struct moe_args *given, int rows)
{
    struct moe_args a = *given;
    const int pairs = rows * a.top_k, terms = a.terms, most = smem_max(d);
    a.stages = a.row_stages = 1;
    bool cols_16 = rows * terms > 8 && pairs * terms > 4 * a.n_expert &&
                shared_of<COLS_16>(&a, 16) <= most;
    bool cols_4 = terms == 1 && (rows <= 4 || pairs <= a.n_expert);
    int job_pairs = min_int(cols_16 ? 16 / terms : cols_4 ? 4 : 8 / terms, rows);
    while (job_pairs > 1 && !cols_16 && shared_of<COLS_8>(&a, job_pairs * terms) > most)
        job_pairs--;
    return job_pairs;
}

bool cuda_experts_use_flags(const struct kdev *d, const struct moe_args *m)
{
    struct moe_args a = *m;
    a.stages = a.row_stages = 1, a.by_flags = true;
    return a.block_select && a.adds_experts && a.terms == 1 && a.job_pairs <= 4 &&
           a.rows <= FLAG_ROWS && a.rows * a.top_k <= FLAG_PAIRS &&
           shared_of<COLS_4>(&a, a.job_pairs) <= smem_max(d);
}

bool cuda_experts_pack_row(const struct moe_args *a)
{
    return a->rows == 1 && a->x.kp <= ROUTE_PASS && (!a->pre.w.p || a->pre.w.type == DT_BF16);
}

/* Blocks wait for each other, so all must be resident: one a multiprocessor. As many row stages as
 * fit beside all weight stages, because units of few rows soon need the next rows; but two row
 * stages are worth more than the last weight stage. */
template <int KIND> static void launch(struct kdev *d, const struct moe_args *given)
{
    struct moe_args a = *given;
    const int most = smem_max(d), columns = a.job_pairs * a.terms;
    a.stages = a.single_row ? GOOD_STAGES : MAX_STAGES, a.row_stages = MAX_ROW_STAGES;
    while (shared_of<KIND>(&a, columns) > most && (a.row_stages > 1 || a.stages > 1))
        if (a.row_stages > (a.stages > GOOD_STAGES ? 2 : 1))
            a.row_stages--;
        else
            a.stages--;
    if (shared_of<KIND>(&a, columns) > most)
        return cuda_fail(d, "experts need more shared memory than this device has");
    cuda_launch_resident(d, expert_kernel<KIND>, dim3((unsigned)d->n_sm), THREADS,
                         (size_t)shared_of<KIND>(&a, columns), a);
}

void cuda_decode_experts(struct kdev *d, const struct moe_args *m)
{
    int columns = m->job_pairs * m->terms;
    if (columns > 8)
        launch<COLS_16>(d, m);
    else if (columns > 4 || m->terms == 2)
        launch<COLS_8>(d, m);
    else
        launch<COLS_4>(d, m);
}
