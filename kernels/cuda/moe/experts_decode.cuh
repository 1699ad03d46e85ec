/* experts_decode.cuh - the building blocks of the expert kernels for decode and verify rows
 * (experts.cu, experts_few.cu): the shape of a block, one multiplication, how units are divided
 * among blocks, and how a warp iterates over its block's units.
 */
#pragma once

#include "kernels/cuda/base/copy.cuh"
#include "kernels/cuda/base/ring.cuh"
#include "kernels/cuda/moe/router.cuh"

#include <type_traits>

enum {
    CHUNK = 16 * 64, /* bytes: 128 of k of MXFP4, 32 of bf16 */
    CHUNK_SCALES = 16 * 4,                         /* bytes */
    STEP = (int)K_SPLITS * (CHUNK + CHUNK_SCALES), /* one chunk of each k split: weights, scales */
    TILES = 2,
    STAGE = TILES * STEP, /* tiles of a unit; bytes of a stage */
    HALF_STAGE = (int)K_SPLITS * CHUNK, /* bf16: 16 rows */
    /* Stages of a pipeline's ring. More bytes in flight than these would delay loads that need a
     * short latency. */
    PIPELINES = EXPERT_RINGS,
    MAX_STAGES = EXPERT_STAGES,
    MAX_ROW_STAGES = EXPERT_ROW_STAGES,
    JOB_GROUPS = 2,
    WORK_PARTS = 2 * JOB_GROUPS,
    /* Biases come with a unit's first weights, so that the epilogue waits for no load. A producer
     * is at most as many units ahead of the epilogues as there are stages. */
    BIAS = TILES * 16,
    BIASES = 8,
    /* warps of a block */
    MMA_WARPS = PIPELINES * (int)K_SPLITS,
    EPILOGUE_WARPS = PIPELINES * TILES,
    WEIGHT_WARP = MMA_WARPS + EPILOGUE_WARPS,
    ROW_WARP = WEIGHT_WARP + PIPELINES,
    SELECTORS = 32 * ROW_WARP,
    THREADS = SELECTORS + 32,
    /* Behind a barrier of theirs: one, or in a stress build all (base/barrier.cuh). */
    SELECTORS_THAT_ARRIVE = (int)LANES_THAT_ARRIVE > 1 ? SELECTORS : 1,
};
static_assert((int)BIASES >= MAX_STAGES + 3, "replaced biases are no longer read");
static_assert((int)MMA_WARPS >= ROUTE_WARPS && (int)SELECTORS >= DIRECT_PAIRS);

/* FEW_PAIRS, COLS_4: up to four rows, in the even columns. COLS_8: up to eight columns. COLS_16: up
 * to 16. FEW_BF16, COLS_BF16: bf16 weights instead of MXFP4, and up to four rows, of two columns
 * each; FEW_BLOCKS, COLS_BLOCKS: the same, and packed weights become the bf16 weights. FEW_...:
 * blocks exchange data through flags (experts_few.cu). */
enum tile_kind {
    FEW_PAIRS, FEW_BF16, FEW_BLOCKS, COLS_4, COLS_BF16, COLS_BLOCKS, COLS_8, COLS_16,
};
constexpr __host__ __device__ bool is_few(int kind) { return kind <= FEW_BLOCKS; }
constexpr __host__ __device__ bool is_blocks(int kind)
{
    return kind == FEW_BLOCKS || kind == COLS_BLOCKS;
}
constexpr __host__ __device__ bool is_bf16(int kind) /* the weights that are multiplied */
{
    return kind == FEW_BF16 || kind == COLS_BF16 || is_blocks(kind);
}
constexpr __host__ __device__ bool is_four(int kind) { return kind <= COLS_BLOCKS; }
template <int KIND> using term_of = std::conditional_t<is_bf16(KIND), bf16, __half>;
constexpr __host__ __device__ int chunk_k(bool bf16) { return bf16 ? 32 : 128; }

template <int KIND> struct shape {
    static constexpr int ROW_COLS = is_bf16(KIND) ? 2 : 1, /* columns of a row, if is_four(KIND) */
                         CHUNK_ROW = chunk_k(is_bf16(KIND)) * 2; /* bytes of a row's chunk */
    static constexpr int NT = KIND == COLS_16 ? 2 : 1, COLS = is_four(KIND) ? 4 : 8 * NT,
                         PITCH = is_four(KIND) ? 24 : 20; /* of 16 outputs; no bank conflicts */
    static constexpr int PASSES = COLS * 8 / 32; /* of an epilogue warp: 8 items a column */
    static constexpr int UNITS = (int)K_SPLITS * COLS * PITCH, /* row scales, after the sums */
                         RED = UNITS + 16, SUM_BYTES = PIPELINES * TILES * RED * 4;
};

/* Whether this code has kernels for bf16 (moe_route_of()). */
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDA_ARCH__)
enum { BF16_RUNS = true };
#else
enum { BF16_RUNS = false };
#endif

/* ---- primitives ----------------------------------------------------------------------------- */

/* The weights of outputs g and g + 8 in a chunk, and their scales (MXFP4). */
struct chunk_weights {
    uint32_t w0[4], w1[4];
    uint2 scales;
    /* second: where the eight outputs from g + 8 on begin. */
    __device__ __forceinline__ void load(const char *w, int second)
    {
        const int lane = (int)threadIdx.x % 32;
        set(*(const uint4 *)(w + lane * 16), *(const uint4 *)(w + second + lane * 16));
    }
    __device__ __forceinline__ void load_scales(const char *s)
    {
        scales = *(const uint2 *)(s + (int)threadIdx.x % 32 / 4 * 8);
    }
    /* Of packed experts: their bf16 weights. */
    __device__ __forceinline__ void set(uint4 v0, uint4 v1)
    {
        w0[0] = v0.x, w0[1] = v0.y, w0[2] = v0.z, w0[3] = v0.w;
        w1[0] = v1.x, w1[1] = v1.y, w1[2] = v1.z, w1[3] = v1.w;
    }
    /* Only for the first chunk of the outputs: removes and returns their row scales (mx_unit()). */
    __device__ __forceinline__ float2 take_row_scales()
    {
        float2 units;
        units.x = mx_unit(scales.x), units.y = mx_unit(scales.y);
        return units;
    }
};

/* Multiplies a chunk of each of a unit's tiles, which share their rows. The MMAs of one tile depend
 * on each other; those of the other tile fill the gaps. x: this lane's 16 bytes of a column;
 * `apart` bytes further are those of the column 8 further. */
template <int KIND>
__device__ __forceinline__ void multiply(const chunk_weights (&c)[TILES], const char *x, int apart,
                                         float (*acc)[shape<KIND>::NT][4])
{
    constexpr int NT = shape<KIND>::NT;
    if constexpr (is_bf16(KIND)) {
        const uint4 v = *(const uint4 *)x;
#pragma unroll
        for (int i = 0; i < 4; i += 2)
#pragma unroll
            for (int t = 0; t < TILES; t++)
                mma_bf16(acc[t][0], c[t].w0[i], c[t].w1[i], c[t].w0[i + 1], c[t].w1[i + 1],
                         i ? v.z : v.x, i ? v.w : v.y);
    } else {
#pragma unroll
        for (int b = 0; b < 4; b++) {
            uint4 v[NT];
#pragma unroll
            for (int j = 0; j < NT; j++)
                v[j] = *(const uint4 *)(x + j * apart + b * 64);
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                uint32_t h0[4], h1[4];
                scaled_pairs(c[t].w0[b], c[t].scales.x, b, h0);
                scaled_pairs(c[t].w1[b], c[t].scales.y, b, h1);
#pragma unroll
                for (int j = 0; j < NT; j++) {
                    mma_f16(acc[t][j], h0[0], h1[0], h0[1], h1[1], v[j].x, v[j].y);
                    mma_f16(acc[t][j], h0[2], h1[2], h0[3], h1[3], v[j].z, v[j].w);
                }
            }
        }
    }
}

/* Adds the k splits' partial sums of column `col`, outputs o and o + 1, and applies the row scales.
 * two: adds the second term's column to each split. */
template <int KIND>
__device__ __forceinline__ float2 reduce_splits(const float *red, int col, int o, bool two)
{
    constexpr int PITCH = shape<KIND>::PITCH, RUN = shape<KIND>::COLS * PITCH;
    float2 y = {};
#pragma unroll
    for (int r = 0; r < K_SPLITS; r++) {
        float2 v = *(const float2 *)&red[r * RUN + col * PITCH + o];
        if (two) {
            float2 lo = *(const float2 *)&red[r * RUN + (col + 1) * PITCH + o];
            v.x += lo.x, v.y += lo.y;
        }
        y.x = r ? y.x + v.x : v.x;
        y.y = r ? y.y + v.y : v.y;
    }
    if (is_bf16(KIND))
        return y;
    const float2 unit = *(const float2 *)(red + shape<KIND>::UNITS + o);
    return make_float2(y.x * unit.x, y.y * unit.y);
}

/* Elements i and i + 1 (i even) of a vector of the given type. */
__device__ __forceinline__ float2 two_of(int type, const void *p, int i)
{
    if (type == DT_F32)
        return *(const float2 *)((const float *)p + i);
    const uint32_t raw = *(const uint32_t *)((const uint16_t *)p + i);
    if (type == DT_BF16)
        return make_float2(low_bf16(raw), high_bf16(raw));
    return __half22float2(*(const __half2 *)&raw);
}

/* ---- units ---------------------------------------------------------------------------------- */

/* The jobs: the block's own lists (block_select), or those of the router's last block. */
struct job_lists {
    const struct jobs *own; /* NULL unless block_select */
    const int32_t *active_, *begin_, *order_;
    const struct unit_share *shares;
    __device__ __forceinline__ int active(int i) const { return own ? own->active[i] : active_[i]; }
    __device__ __forceinline__ int begin(int i) const { return own ? own->begin[i] : begin_[i]; }
    __device__ __forceinline__ int order(int i) const { return own ? own->order[i] : order_[i]; }
};

/* A block's units of a part: `units` of them from `tile` of `job` on. Also how the part's rows are
 * divided into chunks: `each` in the longest k split; of the i-th chunks there are `full`, and one
 * more if i < rest. */
struct unit_share {
    int units, job, tile;
    int chunks, each, full, rest, tiles;
};

/* Divides each part's units evenly among the blocks. The blocks that get one unit more begin where
 * those of the part before ended, so that no block ever has two units more than another. One lane a
 * part computes it while the other warps wait, because divisions are slow. */
template <bool BF16>
__device__ __forceinline__ void divide_units(const moe_args &a, int n_jobs, struct unit_share *all)
{
    const int part = (int)threadIdx.x % 32;
    if (part >= WORK_PARTS)
        return;
    const bool down = part >= JOB_GROUPS;
    const unsigned group = (unsigned)(part % JOB_GROUPS), blocks = gridDim.x;
    const unsigned from = (unsigned)n_jobs * group / JOB_GROUPS,
                   jobs = (unsigned)n_jobs * (group + 1) / JOB_GROUPS - from;
    const unsigned up = (unsigned)(a.gate_up_m.n / 16 / TILES),
                   tiles = down ? (unsigned)(a.down_m.n / 16 / TILES) : up, n = jobs * tiles;
    const unsigned before = (down ? (unsigned)n_jobs * up : 0) + from * tiles;
    const unsigned each = n / blocks, more = n % blocks;
    const unsigned turn = (blockIdx.x + blocks - before % blocks) % blocks,
                   first = turn * each + min(turn, more), ahead = first / tiles;
    struct unit_share &s = all[part];
    s.units = (int)(each + (turn < more));
    s.job = (int)(from + ahead);
    s.tile = (int)(first - ahead * tiles) * TILES;
    s.tiles = (int)tiles * TILES;
    s.chunks = (down ? a.h.kp : a.x.kp) / chunk_k(BF16);
    s.each = (s.chunks + (int)K_SPLITS - 1) / (int)K_SPLITS;
    s.full = s.chunks / s.each;
    s.rest = s.chunks - s.full * s.each;
}

/* Iterates over the block's units, of which each pipeline has every other one. The part's share is
 * kept in registers: a unit takes a microsecond, and sixteen warps advance through it. */
struct unit_walk {
    const moe_args &a;
    const job_lists &jobs;
    int part, left, job, tile; /* left: units of the part after this one */
    int pipe;                  /* the pipeline that has the unit */
    bool fresh;                /* the unit's rows differ from those of the unit before */
    struct unit_share s;       /* of the current part */
    __device__ __forceinline__ unit_walk(const moe_args &args, const job_lists &w)
        : a(args), jobs(w), part(-1), left(0), pipe(PIPELINES - 1)
    {
    }
    __device__ __forceinline__ bool down() const { return part >= JOB_GROUPS; }
    __device__ __forceinline__ const mat &m() const { return down() ? a.down_m : a.gate_up_m; }
    __device__ __forceinline__ bool next()
    {
        fresh = false;
        pipe = pipe + 1 == PIPELINES ? 0 : pipe + 1;
        if (left > 0) {
            left--, tile += TILES;
            if (tile >= s.tiles)
                tile = 0, job++, fresh = true;
            return true;
        }
        while (++part < WORK_PARTS) {
            s = jobs.shares[part];
            if (s.units) {
                left = s.units - 1, job = s.job, tile = s.tile;
                return fresh = true;
            }
        }
        return false;
    }
};

struct block {
    struct jobs lists;
    struct unit_share shares[WORK_PARTS];
    struct pipe {
        uint64_t full[MAX_STAGES], empty[MAX_STAGES], sums_full, sums_empty;
        alignas(16) float bias[BIASES][BIAS]; /* of successive units, in checkpoint type */
    } pipe[PIPELINES];
    uint64_t rows_full[MAX_ROW_STAGES], rows_empty[MAX_ROW_STAGES], part_done[JOB_GROUPS];
    /* block_select: the lists; rows and x_inv; FEW_PAIRS: words for flags */
    uint64_t chosen, resident, flags_cleared;
    float scratch[2 * ROUTE_WARPS]; /* a single row's */
    /* single_row: the block packs it. flags: rows for down are received by the row warp's lanes,
     * not copied. */
    __device__ __forceinline__ void init(bool single_row, bool flags)
    {
        if (threadIdx.x % 32)
            return;
        for (struct pipe &g : pipe) {
            init_ring(g.full, g.empty, MAX_STAGES, COPY_LANES, (int)K_SPLITS);
            mbarrier_init(&g.sums_full, warp_arrivals((int)K_SPLITS)),
                mbarrier_init(&g.sums_empty, warp_arrivals(TILES));
        }
        init_ring(rows_full, rows_empty, MAX_ROW_STAGES, flags ? warp_arrivals(1) : COPY_LANES,
                  MMA_WARPS);
        for (int i = 0; i < JOB_GROUPS; i++)
            mbarrier_init(&part_done[i], 1);
        mbarrier_init(&chosen, single_row ? warp_arrivals(1) : (int)SELECTORS_THAT_ARRIVE);
        mbarrier_init(&resident, single_row ? warp_arrivals((int)ROUTE_WARPS)
                                            : warp_arrivals(1) + (flags ? (int)COPY_LANES : 0));
        mbarrier_init(&flags_cleared, 1);
        mbarrier_init_fence();
    }
};

/* The layout of a block's dynamic shared memory: for each pipeline a ring and room for partial
 * sums; then the row stages, whose columns are `stage_pitch` bytes apart to avoid bank conflicts.
 * resident: all rows for gate and up, if is_few(KIND), whose columns are `pitch` bytes apart. */
template <int KIND> struct smem_layout {
    char *ring, *rows, *resident;
    float *sums;
    int pitch, stage_pitch, row_stage_bytes;
    __device__ __forceinline__ smem_layout(const moe_args &a, char *shared)
    {
        ring = shared;
        sums = (float *)(ring + PIPELINES * a.stages * STAGE);
        rows = (char *)sums + shape<KIND>::SUM_BYTES;
        pitch = a.x.kp * 2 + 64;
        stage_pitch = is_few(KIND) ? a.h.kp * 2 + 64 : max(a.x.kp, a.h.kp) * 2 + 64;
        row_stage_bytes = a.job_pairs * a.terms * stage_pitch;
        resident = rows + a.row_stages * row_stage_bytes;
    }
};

static_assert((int)STAGE == (int)EXPERT_STAGE && sizeof(struct block) + 128 == (int)EXPERT_OWN,
              "route.c divides a block's shared memory");

/* Launches an expert kernel. Blocks wait for each other, so all must be resident: one a
 * multiprocessor. shared: dynamic shared memory of a block. */
static void launch_experts(struct kdev *d, void (*kernel)(moe_args), const struct moe_args *m,
                           size_t shared)
{
    if (!shared)
        return cuda_fail(d, "experts need more shared memory than this device has");
    cuda_launch_resident(d, kernel, dim3((unsigned)d->gpu.n_sm), THREADS, shared, *m);
}
