/* experts_decode.cuh - what the tasks of experts.cu stand on: the shape of a block,
 * barriers, copies and one multiplication, a row packed by every block, how units are dealt to
 * blocks, and a task's way through them.
 */
#ifndef AERIE_CUDA_EXPERTS_FEW_CUH
#define AERIE_CUDA_EXPERTS_FEW_CUH

#include "kernels/cuda/moe/route.cuh"

enum {
    CHUNK = 16 * 64, CHUNK_SCALES = 16 * 4, /* bytes */
    STEP = (int)K_SPLITS * (CHUNK + CHUNK_SCALES), /* a chunk of each run: weights, scales */
    TILES = 2, SLOT = TILES * STEP, /* of a unit */
    /* Slots of a gang's ring: what is under way beyond these delays loads that must be quick. */
    GANGS = 2, MOST_SLOTS = 3, ENOUGH_SLOTS = 2,
    MOST_SETS = 4,
    GROUPS = 2, PARTS = 2 * GROUPS,
    /* Biases come with a unit's first weights, so that its end waits for no load. A fetcher is no
     * more units ahead of the ends than there are slots. */
    BIAS = TILES * 16, BIASES = 8,
    /* warps */
    MULTIPLIERS = GANGS * (int)K_SPLITS, ENDERS = GANGS * TILES, FETCHER = MULTIPLIERS + ENDERS,
    CLERK = FETCHER + GANGS, CHOOSERS = 32 * CLERK, THREADS = CHOOSERS + 32,
};
static_assert((int)BIASES >= MOST_SLOTS + 3, "nobody reads the biases that are replaced");
static_assert((int)MULTIPLIERS >= ROUTE_WARPS && (int)CHOOSERS >= DIRECT_PAIRS);

/* EVEN: up to four rows, in the even columns. FEW: up to eight columns. MORE: up to 16. */
enum kind { EVEN, FEW, MORE };

template <int KIND> struct shape {
    static constexpr int NT = KIND == MORE ? 2 : 1, COLS = KIND == EVEN ? 4 : 8 * NT,
                         PITCH = KIND == EVEN ? 24 : 20; /* of 16 outputs; spreads the banks */
    static constexpr int PASSES = COLS * 8 / 32; /* of an ender: 8 items a column */
    static constexpr int UNITS = (int)K_SPLITS * COLS * PITCH, /* of outputs, behind the sums */
                         RED = UNITS + 16, SUM_BYTES = GANGS * TILES * RED * 4;
};

/* ---- pieces --------------------------------------------------------------------------------- */

__device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* A barrier in shared memory, and what follows from being told of so many arrivals. */
__device__ __forceinline__ void barrier_init(uint64_t *b, int n)
{
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(n) : "memory");
}
__device__ __forceinline__ void arrive(uint64_t *b)
{
    asm volatile("{\n"
                 ".reg .b64 state;\n"
                 "mbarrier.arrive.shared.b64 state, [%0];\n"
                 "}\n" ::"r"(shared_address(b))
                 : "memory");
}
/* For all lanes at once: what they did before is done. */
__device__ __forceinline__ void warp_arrives(uint64_t *b)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        arrive(b);
}
__device__ __forceinline__ void await(uint64_t *b, int phase)
{
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
#if __CUDA_ARCH__ >= 900
                 "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
#else
                 "mbarrier.test_wait.parity.shared.b64 done, [%0], %1;\n"
#endif
                 "@!done bra again;\n"
                 "}\n" ::"r"(shared_address(b)),
                 "r"(phase)
                 : "memory");
}

/* Copies into shared memory, by as many lanes as COPIERS says, one on Hopper: first what will come,
 * then the pieces; those that nobody will want again (copy_once) leave the second cache first. */
#if __CUDA_ARCH__ >= 900
enum { COPIERS = 1 };
__device__ __forceinline__ void copies_begin(uint64_t *b, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)),
                 "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void copy_once(void *to, const void *from, int bytes, uint64_t *b)
{
    asm volatile("{\n"
                 ".reg .b64 once;\n"
                 "createpolicy.fractional.L2::evict_first.b64 once, 1.0;\n"
                 "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], once;\n"
                 "}\n" ::"r"(shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(b))
                 : "memory");
}
__device__ __forceinline__ void copy_piece(void *to, const void *from, int bytes, uint64_t *b)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(b))
                 : "memory");
}
__device__ __forceinline__ void copies_end(uint64_t *) {}
/* What was written in the usual way is there for the copy engine. */
__device__ __forceinline__ void copies_follow_writes()
{
    asm volatile("fence.proxy.async;" ::: "memory");
}
#else
enum { COPIERS = 32 };
__device__ __forceinline__ void copies_begin(uint64_t *, int) {}
__device__ __forceinline__ void copy_piece(void *to, const void *from, int bytes, uint64_t *)
{
    for (int i = (int)threadIdx.x % 32 * 16; i < bytes; i += 512)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to) + i),
                     "l"((const char *)from + i)
                     : "memory");
}
__device__ __forceinline__ void copy_once(void *to, const void *from, int bytes, uint64_t *b)
{
    copy_piece(to, from, bytes, b);
}
__device__ __forceinline__ void copies_end(uint64_t *b)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(b))
                 : "memory");
}
__device__ __forceinline__ void copies_follow_writes() {}
#endif

/* The weights of rows g and g + 8 in a chunk of 128 of k, and their scales. */
struct weights {
    uint32_t w0[4], w1[4];
    uint2 scales;
    __device__ __forceinline__ void load(const char *w, const char *s)
    {
        const int lane = (int)threadIdx.x % 32;
        const uint4 v0 = *(const uint4 *)(w + lane * 16),
                    v1 = *(const uint4 *)(w + 512 + lane * 16);
        w0[0] = v0.x, w0[1] = v0.y, w0[2] = v0.z, w0[3] = v0.w;
        w1[0] = v1.x, w1[1] = v1.y, w1[2] = v1.z, w1[3] = v1.w;
        scales = *(const uint2 *)(s + lane / 4 * 8);
    }
    /* Of the first chunk of the rows. */
    __device__ __forceinline__ float2 take_units()
    {
        float2 units;
        units.x = mx_unit(scales.x), units.y = mx_unit(scales.y);
        return units;
    }
};

/* A chunk of each of a unit's tiles, which share their rows. Sums of one tile follow each other,
 * and those of the other are made while one waits. x: this lane's 16 bytes of a column; `apart`
 * bytes on, those of the column 8 further. */
template <int KIND>
__device__ __forceinline__ void multiply(const weights (&c)[TILES], const char *x, int apart,
                                         float (*acc)[shape<KIND>::NT][4])
{
    constexpr int NT = shape<KIND>::NT;
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

/* Adds the runs' sums of column `col`, outputs o and o + 1, and gives them their units. */
template <int KIND>
__device__ __forceinline__ float2 sum_runs(const float *red, int col, int o, bool two)
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
    const float2 unit = *(const float2 *)(red + shape<KIND>::UNITS + o);
    return make_float2(y.x * unit.x, y.y * unit.y);
}

/* Numbers i and i + 1, i even, of a vector of a type. */
__device__ __forceinline__ float2 two_of(int type, const void *p, int i)
{
    if (type == DT_F32)
        return *(const float2 *)((const float *)p + i);
    const uint32_t raw = *(const uint32_t *)((const uint16_t *)p + i);
    if (type == DT_BF16)
        return make_float2(__uint_as_float(raw << 16), __uint_as_float(raw & 0xffff0000u));
    return __half22float2(*(const __half2 *)&raw);
}

/* ---- a row alone ---------------------------------------------------------------------------- */

/* Packs the row for this block, as pack_row() of route.cu does, once it is there; the first
 * ROUTE_THREADS threads. It costs less than to wait for a block that does it for all. */
__device__ __forceinline__ void pack_alone(const moe_args &a, uint16_t *to, float *x_inv,
                                           float *room)
{
    const int tid = (int)threadIdx.x;
    uint32_t w[PER] = {};
    float x[PER], ss = 0, top = 0, inv = 1;
    if (a.pre.w.p)
        fetch_part((const uint16_t *)a.pre.w.p, a.in, 0, w);
    if (tid == 0)
        while (!look(a.own + ROWS_READY))
            ;
    route_meet();
    fetch_part(a.src, a.in, 0, x);
#pragma unroll
    for (int j = 0; j < PER; j++)
        ss = fmaf(x[j], x[j], ss);
    if (a.pre.kind != NORM_NONE)
        inv = 1 / sqrtf(block_sum(ss, room) / (float)a.in + a.pre.eps);
#pragma unroll
    for (int j = 0; j < PER; j++) {
        const float y = normed_by(a.pre.kind, x[j], inv, __uint_as_float(w[j] << 16));
        x[j] = tid + j * ROUTE_THREADS < a.in ? y : 0.f;
        top = fmaxf(top, fabsf(x[j]));
    }
    const float s = unit_of(block_top(top, room + ROUTE_WARPS));
    if (tid < a.top_k)
        x_inv[tid] = inverse_of_unit(s);
#pragma unroll
    for (int j = 0; j < PER; j++)
        if (tid + j * ROUTE_THREADS < a.x.kp)
            to[tid + j * ROUTE_THREADS] = __half_as_ushort(__float2half_rn(x[j] * s));
}

/* ---- the units ------------------------------------------------------------------------------ */

/* The jobs, as this block has made them or as the router's last block has. */
struct work {
    const struct jobs *own; /* or NULL */
    const int32_t *active_, *begin_, *order_;
    const struct share *shares;
    __device__ __forceinline__ int active(int i) const { return own ? own->active[i] : active_[i]; }
    __device__ __forceinline__ int begin(int i) const { return own ? own->begin[i] : begin_[i]; }
    __device__ __forceinline__ int order(int i) const { return own ? own->order[i] : order_[i]; }
};

/* A block's units of a part, from `tile` of `job` on; and how the part's rows are cut into chunks:
 * `each` in the longest run, and of the i-th ones there are `full`, one more where i < rest. */
struct share {
    int units, job, tile;
    int kp, each, full, rest, tiles;
};

/* Shares are equal: where a part leaves a rest, the next begins to deal, so no block ever has had
 * two units more than another. A lane each does it while others wait: divisions take long. */
__device__ __forceinline__ void deal(const moe_args &a, int n_jobs, struct share *all)
{
    const int part = (int)threadIdx.x % 32;
    if (part >= PARTS)
        return;
    const bool down = part >= GROUPS;
    const unsigned group = (unsigned)(part % GROUPS), blocks = gridDim.x;
    const unsigned from = (unsigned)n_jobs * group / GROUPS,
                   jobs = (unsigned)n_jobs * (group + 1) / GROUPS - from;
    const unsigned up = (unsigned)(a.gate_up_m.n / 16 / TILES),
                   tiles = down ? (unsigned)(a.down_m.n / 16 / TILES) : up, n = jobs * tiles;
    const unsigned before = (down ? (unsigned)n_jobs * up : 0) + from * tiles;
    const unsigned each = n / blocks, more = n % blocks;
    const unsigned turn = (blockIdx.x + blocks - before % blocks) % blocks,
                   first = turn * each + min(turn, more), ahead = first / tiles;
    struct share &s = all[part];
    s.units = (int)(each + (turn < more));
    s.job = (int)(from + ahead);
    s.tile = (int)(first - ahead * tiles) * TILES;
    s.tiles = (int)tiles * TILES;
    s.kp = down ? a.h.kp : a.x.kp;
    s.each = (s.kp / 128 + (int)K_SPLITS - 1) / (int)K_SPLITS;
    s.full = s.kp / 128 / s.each;
    s.rest = s.kp / 128 - s.full * s.each;
}

/* One task's way through the block's units, of which a gang has every other one. What is said of
 * the part is in registers: a unit takes a microsecond, in which sixteen warps go on to the next.
 */
struct walk {
    const moe_args &a;
    const work &jobs;
    int part, left, job, tile; /* left: of the part */
    int gang;                  /* whose unit it is */
    bool fresh;                /* other rows than the unit before */
    struct share s;            /* of the part */
    __device__ __forceinline__ walk(const moe_args &args, const work &w)
        : a(args), jobs(w), part(-1), left(0), gang(GANGS - 1)
    {
    }
    __device__ __forceinline__ bool down() const { return part >= GROUPS; }
    __device__ __forceinline__ const mat &m() const { return down() ? a.down_m : a.gate_up_m; }
    __device__ __forceinline__ bool next()
    {
        fresh = false;
        gang = gang + 1 == GANGS ? 0 : gang + 1;
        if (left > 0) {
            left--, tile += TILES;
            if (tile >= s.tiles)
                tile = 0, job++, fresh = true;
            return true;
        }
        while (++part < PARTS) {
            s = jobs.shares[part];
            if (s.units) {
                left = s.units - 1, job = s.job, tile = s.tile;
                return fresh = true;
            }
        }
        return false;
    }
};

/* A place in a ring. */
struct place {
    int i, phase;
    __device__ __forceinline__ void next(int n)
    {
        if (++i == n)
            i = 0, phase ^= 1;
    }
};

struct block {
    struct jobs lists;
    struct share shares[PARTS];
    struct gang {
        uint64_t full[MOST_SLOTS], empty[MOST_SLOTS], sums_full, sums_empty;
        alignas(16) float bias[BIASES][BIAS]; /* of units one after the other, as they lie */
    } gang[GANGS];
    uint64_t rows_full[MOST_SETS], rows_empty[MOST_SETS], told[GROUPS];
    uint64_t chosen, held, cleared; /* direct: the lists; rows and x_inv; quick: room for flags */
    float room[2 * ROUTE_WARPS]; /* alone */
    __device__ __forceinline__ void init(bool alone)
    {
        if (threadIdx.x % 32)
            return;
        for (struct gang &g : gang) {
            for (int i = 0; i < MOST_SLOTS; i++)
                barrier_init(&g.full[i], COPIERS), barrier_init(&g.empty[i], (int)K_SPLITS);
            barrier_init(&g.sums_full, (int)K_SPLITS), barrier_init(&g.sums_empty, TILES);
        }
        for (int i = 0; i < MOST_SETS; i++)
            barrier_init(&rows_full[i], COPIERS), barrier_init(&rows_empty[i], MULTIPLIERS);
        for (int i = 0; i < GROUPS; i++)
            barrier_init(&told[i], 1);
        barrier_init(&chosen, 1), barrier_init(&held, alone ? (int)ROUTE_WARPS : COPIERS + 1);
        barrier_init(&cleared, 1);
#if __CUDA_ARCH__ >= 900
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
    }
};

/* Where a block's shared memory has what: a ring and room for sums for each gang. Rows lie in sets,
 * `pitch` bytes apart, which spreads the banks. held: all rows for gate and up, where they are few
 * (quick). */
template <int KIND> struct room {
    char *ring, *rows, *held;
    float *sums;
    int pitch, set;
    __device__ __forceinline__ room(const moe_args &a, char *shared)
    {
        ring = shared;
        sums = (float *)(ring + GANGS * a.slots * SLOT);
        rows = (char *)sums + shape<KIND>::SUM_BYTES;
        pitch = max(a.x.kp, a.h.kp) * 2 + 64;
        set = a.per * a.terms * pitch;
        held = rows + a.sets * set;
    }
};

#endif
