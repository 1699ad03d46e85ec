/* experts_roles.cuh - what the warps of both expert kernels do (experts.cu, experts_few.cu): the
 * producers of weights, the consumers, the epilogues; and what their row warps have in common.
 */
#pragma once

#include "kernels/cuda/moe/experts_decode.cuh"

/* Selects the experts and groups the pairs; all warps but the row warp. */
template <int KIND>
__device__ __forceinline__ void select_for_block(const moe_args &a, block &b, int *scratch)
{
    select_and_group<(int)SELECTORS>(a, &b.lists, scratch);
    selectors_sync<(int)SELECTORS>();
    if (a.rows > 1) {
        if ((int)threadIdx.x / 32 == WEIGHT_WARP)
            divide_units<is_bf16(KIND)>(a, b.lists.n, b.shares);
        selectors_sync<(int)SELECTORS>();
    }
    if ((int)threadIdx.x < SELECTORS_THAT_ARRIVE)
        mbarrier_arrive(&b.chosen);
}

/* ---- producer warps: weights ---------------------------------------------------------------- */

/* Where a unit's weights are in memory: the next chunks of its k splits. */
struct mx_source {
    const uint8_t *w, *s;
    int chunks; /* of a tile */
    /* Bytes of a chunk of the unit; chunks of a k split in a stage. */
    static constexpr int bytes = TILES * (CHUNK + CHUNK_SCALES), at_once = 1;
    __device__ __forceinline__ mx_source(const moe_args &, const unit_walk &at, size_t e)
        : chunks(at.s.chunks)
    {
        const size_t first = (size_t)(at.tile * chunks);
        w = at.m().w + e * at.m().expert + first * CHUNK;
        s = at.m().scale + e * at.m().expert_scale + first * CHUNK_SCALES;
    }
    __device__ __forceinline__ void fetch(char *to, int n, uint64_t *filled)
    {
#pragma unroll
        for (int t = 0; t < TILES; t++, to += STEP) {
            bulk_copy_once(shared_at(to), w + t * chunks * CHUNK, n * CHUNK, filled);
            bulk_copy_once(shared_at(to + K_SPLITS * CHUNK), s + t * chunks * CHUNK_SCALES,
                           n * CHUNK_SCALES, filled);
        }
        w += n * CHUNK, s += n * CHUNK_SCALES;
    }
};

/* bf16 in tiles (cuda_tiles_experts()). A unit of gate and up has 16 rows of gate, then the 16 rows
 * of up of the same hidden values; one of down 32 rows. A stage has the first 16 rows of all k
 * splits, then the others. */
struct bf16_source {
    const uint8_t *first, *second;
    static constexpr int bytes = TILES * CHUNK, at_once = 1;
    __device__ __forceinline__ bf16_source(const moe_args &a, const unit_walk &at, size_t e)
    {
        const mat &m = at.m();
        first = m.w + e * m.expert + (size_t)(at.down() ? at.tile : at.tile / 2) * 16 * m.pitch;
        second = first + (size_t)(at.down() ? 16 : a.ffn) * m.pitch;
    }
    __device__ __forceinline__ void fetch(char *to, int n, uint64_t *filled)
    {
        bulk_copy_once(shared_at(to), first, n * CHUNK, filled);
        bulk_copy_once(shared_at(to) + (uint32_t)HALF_STAGE, second, n * CHUNK, filled);
        first += n * CHUNK, second += n * CHUNK;
    }
};

/* Chunks of packed experts of a k split in a stage: as many as fit beside those of the others. */
constexpr __device__ int chunks_at_once(int form)
{
    return (int)STEP / ((int)K_SPLITS * chunk_bytes(form));
}
static_assert(chunks_at_once(DT_E4M3) == 2 && chunks_at_once(DT_Q4_K) == 3);

/* Packed experts, whose outputs are those of bf16_source. A stage has chunks_at_once() chunks of
 * each k split, as they are in memory: of the first tile the next chunk of every split, then the
 * one after it of every split, and so on; then the same of the second tile. */
struct blocks_source {
    const uint8_t *first, *second;
    int bytes, at_once;
    __device__ __forceinline__ blocks_source(const moe_args &a, const unit_walk &at, size_t e)
    {
        const mat &m = at.m();
        bytes = (int)TILES * chunk_bytes(m.type), at_once = chunks_at_once(m.type);
        first = m.w + e * m.expert + (size_t)(at.down() ? at.tile : at.tile / 2) * m.pitch;
        second = first + (size_t)(at.down() ? 1 : a.ffn / TILE_OUTS) * m.pitch;
    }
    __device__ __forceinline__ void fetch(char *to, int n, uint64_t *filled)
    {
        const int all = n * bytes / TILES;
        bulk_copy_once(shared_at(to), first, all, filled);
        bulk_copy_once(shared_at(to) + (uint32_t)STEP, second, all, filled);
        first += all, second += all;
    }
};

template <int KIND>
using source_of = std::conditional_t<is_blocks(KIND), blocks_source,
                                     std::conditional_t<is_bf16(KIND), bf16_source, mx_source>>;

template <int KIND, class ARGS>
__device__ __forceinline__ void produce_weights(const ARGS &a, const job_lists &jobs, block &b,
                                                const smem_layout<KIND> &r, int pipe)
{
    typedef source_of<KIND> source;
    const int number = a.gate_up_b.type == DT_F32 ? 4 : 2; /* bytes */
    auto &mine = b.pipe[pipe];
    char *const ring = r.ring + pipe * a.stages * STAGE;
    struct ring_pos stage = {}, ends = {};
    unit_walk at(a, jobs);
    while (at.next()) {
        if (at.pipe != pipe)
            continue;
        const bool biased = !at.down() && a.gate_up_b.p;
        const int each = at.s.each, full = at.s.full, rest = at.s.rest;
        const size_t e = (size_t)jobs.active(at.job);
        source weights(a, at, e);
#pragma unroll 1
        for (int i = 0; i < each; i += weights.at_once) {
            const int last = min(i + weights.at_once, each), bias_bytes = biased && i == 0
                                                                              ? BIAS * number : 0;
            const int n = (last - i) * full + max(min(last, rest) - i, 0);
            char *to = ring + stage.slot * STAGE;
            uint64_t *filled = &mine.full[stage.slot];
            mbarrier_wait(&mine.empty[stage.slot], stage.phase ^ 1);
            bulk_expect(filled, n * weights.bytes + bias_bytes);
            weights.fetch(to, n, filled);
            if (bias_bytes)
                bulk_copy(shared_at(mine.bias[ends.slot]),
                          (const char *)a.gate_up_b.p +
                              (e * a.gate_up_b_pitch + (size_t)(at.tile * 16)) * (size_t)number,
                          bias_bytes, filled);
            bulk_issued(filled);
            stage.next(a.stages);
        }
        ends.next(BIASES);
    }
}

/* ---- the row warp --------------------------------------------------------------------------- */

/* Waits until the rows are packed, and fetches what undoes their powers of two; if is_few(KIND),
 * also the rows. */
template <int KIND>
__device__ __forceinline__ void take_rows(const moe_args &a, block &b, const smem_layout<KIND> &r)
{
    const int lane = (int)threadIdx.x % 32;
    while (WAITS && load_acquire(a.sync + ROWS_READY) != (unsigned)a.rows)
        ;
    fence_async_proxy();
    if (is_few(KIND) && lane < COPY_LANES) {
        const int columns = a.rows * shape<KIND>::ROW_COLS;
        bulk_expect(&b.resident, columns * a.x.kp * 2);
        for (int i = 0; i < columns; i++)
            bulk_copy(shared_at(r.resident + i * r.pitch), a.x.x + (size_t)i * (size_t)a.x.kp,
                      a.x.kp * 2, &b.resident);
        bulk_issued(&b.resident);
    }
    for (int p = lane; !is_bf16(KIND) && p < a.rows * a.top_k; p += 32)
        b.lists.x_inv[p] = __ldcg(a.x_inv + p / a.top_k);
    __threadfence_block();
    mbarrier_arrive_warp(&b.resident);
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

/* Called when all blocks have selected experts: sets the keys to 0 and lets the next kernels start,
 * which may write keys again. */
template <int KIND>
__device__ __forceinline__ void release_keys(const moe_args &a, const job_lists &jobs)
{
    if (is_few(KIND) || a.block_select)
        clear_keys(a);
    pdl_trigger();
    if (!is_few(KIND) && a.block_select)
        prefetch_bias(a, jobs);
    pdl_wait(); /* returns at once; whoever waits for this kernel also waits for those before it */
}

/* ---- consumer warps: multiplication --------------------------------------------------------- */

/* Address of a lane's column of a job's rows: in the given row stage, or among the resident rows.
 * Columns beyond the room for rows repeat the last column. */
template <int KIND>
__device__ __forceinline__ const char *column_of(const moe_args &a, const job_lists &jobs,
                                                 const smem_layout<KIND> &r, int job, bool resident,
                                                 int stage)
{
    constexpr int TERMS = shape<KIND>::ROW_COLS;
    const int g = (int)threadIdx.x % 32 / 4, col = is_four(KIND) ? g / 2 : g,
              term = g % TERMS; /* of a row in two columns */
    if (!resident)
        return r.rows + stage * r.row_stage_bytes +
               (min(col, a.job_pairs * a.terms / TERMS - 1) * TERMS + term) * r.stage_pitch;
    const int first = jobs.begin(job), pair = jobs.order(min(first + col, jobs.begin(job + 1) - 1));
    return r.resident + (pair / a.top_k * TERMS + term) * r.pitch;
}

/* Unpacks and multiplies a unit's chunks of packed experts in k split `run`, which has n of them.
 * ring: of the pipeline; x: this lane's 16 bytes of the split's first chunk of its column. Outputs
 * as in consume_units(). */
template <int KIND, int FORM, class PIPE>
__device__ __forceinline__ void consume_chunks(const unit_walk &at, PIPE &own, uint32_t ring,
                                               struct ring_pos &stage, int run, int n,
                                               const char *x, float (*acc)[shape<KIND>::NT][4])
{
    constexpr int AT_ONCE = chunks_at_once(FORM);
    constexpr uint32_t EIGHT = eight_bytes(FORM);
    const bool gate_first = !at.down();
    const uint32_t tile = gate_first ? EIGHT : (uint32_t)STEP,
                   second = gate_first ? (uint32_t)STEP : EIGHT;
    const int each = at.s.each, full = at.s.full, rest = at.s.rest;
#pragma unroll 1
    for (int i = 0; i < each; i += AT_ONCE) {
        uint32_t here = ring + (uint32_t)(stage.slot * STAGE + run * chunk_bytes(FORM));
        mbarrier_wait(&own.full[stage.slot], stage.phase);
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++, x += shape<KIND>::CHUNK_ROW) {
            if (i + u < n) {
                struct coded_eight e[TILES][2];
                struct chunk_weights c[TILES];
#pragma unroll
                for (int t = 0; t < TILES; t++) {
                    e[t][0].fetch<FORM>(here + (uint32_t)t * tile);
                    e[t][1].fetch<FORM>(here + (uint32_t)t * tile + second);
                }
#pragma unroll
                for (int t = 0; t < TILES; t++)
                    c[t].set(e[t][0].as_bf16<FORM>(), e[t][1].as_bf16<FORM>());
                multiply<KIND>(c, x, 0, acc);
            }
            here += (uint32_t)((full + (i + u < rest)) * chunk_bytes(FORM));
        }
        mbarrier_arrive_warp(&own.empty[stage.slot]);
        stage.next(at.a.stages);
    }
}

/* mbarrier_arrive_warp() once x is there, which has bits of everything that the warp has loaded
 * from the barrier's buffer. The instruction that arrives does not wait for loads from shared
 * memory that were issued before it, and whoever waits for the barrier overwrites the buffer. */
__device__ __forceinline__ void mbarrier_arrive_warp_after(mbarrier b, uint32_t x)
{
    /* 0 in a lane that arrives, which the compiler does not know (blocks have one dimension) */
    const uint32_t none = LANES_THAT_ARRIVE > 1 ? threadIdx.z : threadIdx.x % 32;
    uint32_t zero;
    asm volatile("and.b32 %0, %1, %2;" : "=r"(zero) : "r"(x), "r"(none));
    mbarrier_arrive_warp(mbarrier(b.at + zero));
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
    char *const ring = r.ring + pipe * a.stages * STAGE;
    const char *const w = ring + run * CHUNK;
    const char *const s = ring + K_SPLITS * CHUNK + run * CHUNK_SCALES;
    float *const sums = r.sums + pipe * TILES * S::RED;
    float *const mine =
        sums + run * S::COLS * S::PITCH + (is_four(KIND) ? q : 2 * q) * S::PITCH;
    struct ring_pos stage = {}, row_stage = {}, turn = {}; /* turn: of the buffer of partial sums */
    bool staged = false;
    int each = 0, n = 0; /* chunks of a unit's longest k split; of this split */
    const char *rows = NULL;
    unit_walk at(a, jobs);
    while (at.next()) {
        if (at.fresh) {
            const bool resident = is_few(KIND) && !at.down();
            if (staged) {
                mbarrier_arrive_warp(&b.rows_empty[row_stage.slot]);
                row_stage.next(a.row_stages);
            }
            staged = !resident;
            each = at.s.each, n = min(each, at.s.chunks - run * each);
            rows = column_of<KIND>(a, jobs, r, at.job, resident, row_stage.slot) +
                   run * each * S::CHUNK_ROW + q * 16;
            mbarrier_wait(resident ? &b.resident : &b.rows_full[row_stage.slot],
                          resident ? 0 : row_stage.phase);
        }
        if (at.pipe != pipe)
            continue;
        const char *x = rows;
        /* where a tile and its outputs from g + 8 on begin; bf16_source: gate before up */
        const bool gate_first = is_bf16(KIND) && !at.down();
        const int tile = !is_bf16(KIND) ? (int)STEP : gate_first ? CHUNK / 2 : HALF_STAGE,
                  second = gate_first ? HALF_STAGE : CHUNK / 2;
        float acc[TILES][S::NT][4] = {};
        float2 units[TILES] = {};
        if constexpr (is_blocks(KIND))
            with_form(at.m().type, [&]<int FORM>() {
                consume_chunks<KIND, FORM>(at, own, shared_at(ring), stage, run, n, x, acc);
            });
#pragma unroll 1
        for (int i = 0; !is_blocks(KIND) && i < each; i++, x += S::CHUNK_ROW) {
            const char *const here = w + stage.slot * STAGE, *const scales = s + stage.slot * STAGE;
            struct chunk_weights c[TILES];
            uint32_t loaded = 0;
            mbarrier_wait(&own.full[stage.slot], stage.phase);
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                c[t].load(here + t * tile, second);
                loaded ^= c[t].w0[0] ^ c[t].w1[0];
                if (!is_bf16(KIND)) {
                    c[t].load_scales(scales + t * STEP);
                    loaded ^= c[t].scales.x;
                }
                if (!is_bf16(KIND) && run == 0 && i == 0)
                    units[t] = c[t].take_row_scales();
            }
            mbarrier_arrive_warp_after(&own.empty[stage.slot], loaded);
            if (i < n)
                multiply<KIND>(c, x, 8 * r.pitch, acc);
            stage.next(a.stages);
        }
        mbarrier_wait(&own.sums_empty, turn.phase ^ 1);
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            float *to = mine + t * S::RED + (gate_first ? 2 * g : g);
            if constexpr (is_bf16(KIND)) /* sums of both terms, gate and up interleaved */
                to[0] = acc[t][0][0] + acc[t][0][1],
                to[gate_first ? 1 : 8] = acc[t][0][2] + acc[t][0][3];
            else
#pragma unroll
                for (int j = 0; j < S::NT; j++, to += 8 * S::PITCH) {
                    to[0] = acc[t][j][0], to[8] = acc[t][j][2];
                    if (!is_four(KIND))
                        to[S::PITCH] = acc[t][j][1], to[S::PITCH + 8] = acc[t][j][3];
                }
            if (!is_bf16(KIND) && run == 0 && q == 0) {
                float *at_units = sums + t * S::RED + S::UNITS + g;
                at_units[0] = units[t].x, at_units[8] = units[t].y;
            }
        }
        mbarrier_arrive_warp(&own.sums_full);
        turn.next(1);
    }
}

/* ---- epilogue warps ------------------------------------------------------------------------- */

template <class TERM>
__device__ __forceinline__ void store_hidden(const moe_args &a, int pair, int i, float h)
{
    uint16_t *to = a.h_to + (size_t)pair * (size_t)a.terms * (size_t)a.h.kp + (size_t)i;
    float x = h * a.h_scale;
    to[0] = split_term<TERM>(x);
    if (a.terms == 2)
        to[a.h.kp] = split_term<TERM>(x);
}

/* A lane's outputs 2 * o and 2 * o + 1 of a tile for one pair; for gate and up these are one hidden
 * element. prepare() once a job; load_sums() reads the sums and biases, whose buffers may be reused
 * afterwards; store() applies the activation and writes. */
struct pair_epilogue {
    int pair, col, o; /* pair -1: no pair; eight lanes share a pair */
    float inv;
    float2 y, bias;
    template <int KIND>
    __device__ __forceinline__ void prepare(const moe_args &a, const job_lists &jobs, bool down,
                                            int job, int item)
    {
        const int from = jobs.begin(job);
        const bool has_pair = item / 8 < jobs.begin(job + 1) - from;
        pair = has_pair ? jobs.order(from + item / 8) : -1;
        col = has_pair ? item / 8 * (is_four(KIND) ? 1 : a.terms) : 0, o = item % 8;
        inv = a.h_undo;
        if (!is_bf16(KIND) && has_pair && !down)
            inv = jobs.own ? jobs.own->x_inv[pair] : __ldcg(a.x_inv + pair / a.top_k);
    }
    template <int KIND>
    __device__ __forceinline__ void load_sums(const moe_args &a, bool down, const float *red,
                                              const void *tile_bias)
    {
        y = reduce_splits<KIND>(red, col, 2 * o, !is_four(KIND) && a.terms == 2);
        bias = make_float2(0, 0);
        if (!is_bf16(KIND) && !down && a.gate_up_b.p)
            bias = two_of(a.gate_up_b.type, tile_bias, 2 * o);
    }
    template <int KIND>
    __device__ __forceinline__ void store(const moe_args &a, bool down, int tile) const
    {
        const float2 z =
            is_bf16(KIND) ? y : make_float2(mx_sum(y.x * inv), mx_sum(y.y * inv));
        if (down) {
            float *to = a.down + (size_t)pair * (size_t)a.in + (size_t)(tile * 16 + 2 * o);
            if (pair >= 0 && is_few(KIND) && a.adds_experts)
                publish_two((uint32_t *)to, z.x, z.y);
            else if (pair >= 0)
                *(float2 *)to = z;
            return;
        }
        const float h = gated(z.x + bias.x, z.y + bias.y, a.act, a.limit);
        if (!is_few(KIND)) {
            if (pair >= 0)
                store_hidden<term_of<KIND>>(a, pair, tile * 8 + o, h);
            return;
        }
        constexpr int TERMS = shape<KIND>::ROW_COLS;
        uint16_t *to = a.h_to + (size_t)(pair * TERMS) * (size_t)a.h.kp + (size_t)(tile * 8 + o);
        float x = h * a.h_scale;
#pragma unroll
        for (int t = 0; t < TERMS; t++, to += a.h.kp) {
            const uint32_t mine = split_term<term_of<KIND>>(x),
                           next = __shfl_down_sync(~0u, mine, 1);
            if (pair >= 0 && o % 2 == 0)
                publish((uint32_t *)to, mine | next << 16);
        }
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
    int part_done = is_few(KIND) ? (int)WORK_PARTS : 0;
    bool stale = true;
    struct pair_epilogue e[S::PASSES];
    if (is_few(KIND) || a.block_select)
        mbarrier_wait(&b.resident, 0); /* x_inv is complete */
    if (is_few(KIND))
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
                e[i].template prepare<KIND>(a, jobs, down, at.job, lane + i * 32);
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
        if (!is_few(KIND) && !down && tile == at.s.tiles - 1) { /* zeros up to a whole chunk */
            const int from = jobs.begin(at.job), pad = a.h.kp - a.ffn;
            for (int i = lane; i < (jobs.begin(at.job + 1) - from) * pad; i += 32)
                store_hidden<term_of<KIND>>(a, jobs.order(from + i / pad), a.ffn + i % pad, 0);
        }
    }
    for (; part_done < WORK_PARTS; part_done++)
        signal_part(a, b, part_done);
}

/* ---- all warps ------------------------------------------------------------------------------ */

/* row_warp(): the task of the row warp after the block's first one has stored the choice. */
template <int KIND, class ARGS, class ROW_WARP_TASK>
__device__ __forceinline__ void run_roles(const ARGS &a, const job_lists &jobs, block &b,
                                          const smem_layout<KIND> &r, int warp,
                                          const ROW_WARP_TASK &row_warp)
{
    if (warp < MMA_WARPS) {
        consume_units(a, jobs, b, r, warp);
    } else if (warp < WEIGHT_WARP) {
        run_epilogue(a, jobs, b, r, warp - MMA_WARPS);
    } else if (warp < ROW_WARP) {
        if (threadIdx.x % 32 < COPY_LANES)
            produce_weights(a, jobs, b, r, warp - WEIGHT_WARP);
    } else {
        if (blockIdx.x == 0 && (is_few(KIND) || a.block_select))
            store_choice(a, b.lists);
        row_warp();
    }
}
