/* cuda_experts.cu - MXFP4 experts for few rows at the speed of memory.
 *
 * One kernel behind the router, whose blocks are all on the device at once. Its jobs are in two or
 * four groups and its work in parts: gate and up for one group after the other, then down for each,
 * so that the hidden rows that down begins with were ready long before. A part is cut into units (a
 * job, two tiles of 16 outputs), and every block has an equal share of them, in their order, so
 * that it meets few jobs. At last the rows' experts are added up in the order of their rank.
 *
 * The warps of a block walk through its units side by side, each with a task of its own. One
 * fetches weights into a ring in shared memory: a slot has one chunk for each of the 8 runs of k,
 * and lies in memory as one piece. One, the clerk, brings the rows of the next job and waits for
 * what other blocks must have written before. Eight a tile multiply, a run each, with the order of
 * sums of cuda_product.cuh: blocks of 32 from zero in two instructions, then times their scale onto
 * the run's sum. The rest end the units: they add the runs in their order and write the results.
 *
 * Weights and rows come by the copy engine: a load that must be quick (a bias) would wait behind
 * all of the ring's, and a fence for its own thread's.
 */
#include "kernels/cuda_experts.cuh"

enum {
    CHUNK = 16 * 64, CHUNK_SCALES = 16 * 4, /* bytes */
    STEP = (int)RUNS * (CHUNK + CHUNK_SCALES), /* a chunk of each run: the weights, the scales */
    TILES = 2, /* of a unit: two blocks of one multiprocessor would not be equally fast */
    SLOT = TILES * STEP, MOST_SLOTS = 4, MOST_SETS = 2, BUFS = 2,
    MOST_GROUPS = 4, MOST_PARTS = 2 * MOST_GROUPS,
};

/* EVEN: up to four rows, in the even columns. FEW: up to eight columns. MORE: up to 16. */
enum kind { EVEN, FEW, MORE };

template <int KIND> struct shape {
    static constexpr int GROUPS = KIND == EVEN ? 4 : 2, PARTS = 2 * GROUPS;
    static constexpr int NT = KIND == MORE ? 2 : 1, COLS = KIND == EVEN ? 4 : 8 * NT,
                         PITCH = KIND == EVEN ? 24 : 20; /* of 16 outputs; spreads the banks */
    /* warps */
    static constexpr int MULTIPLIERS = (int)RUNS * TILES, ENDERS = KIND == EVEN ? 1 : 2,
                         FETCHER = MULTIPLIERS + ENDERS * TILES, CLERK = FETCHER + 1,
                         THREADS = 32 * (CLERK + 1);
    static constexpr int PASSES = COLS * 8 / (32 * ENDERS); /* of an ender: 8 items a column */
    static constexpr int RED = (int)RUNS * COLS * PITCH, /* floats of a tile's sums */
                         SUM_BYTES = BUFS * TILES * RED * 4;
};

/* ---- pieces --------------------------------------------------------------------------------- */

__device__ __forceinline__ void mma_f16_first(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                              uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%10,%10,%10,%10};"
        : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "f"(0.f));
}

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
 * then the pieces. */
#if __CUDA_ARCH__ >= 900
enum { COPIERS = 1 };
__device__ __forceinline__ void copies_begin(uint64_t *b, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)),
                 "r"(bytes)
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
__device__ __forceinline__ void copies_end(uint64_t *b)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(b))
                 : "memory");
}
__device__ __forceinline__ void copies_follow_writes() {}
#endif

/* One chunk of 128 of k. w, s: the weights of rows g and g + 8 and their scales in shared memory;
 * x: this lane's 16 bytes of a column; `apart` bytes on, those of the column 8 further. */
template <int KIND>
__device__ __forceinline__ void multiply(const char *w, const char *s, const char *x, int apart,
                                         float (*acc)[4])
{
    const int lane = (int)threadIdx.x % 32;
    const uint4 v0 = *(const uint4 *)(w + lane * 16), v1 = *(const uint4 *)(w + 512 + lane * 16);
    const uint2 scales = *(const uint2 *)(s + lane / 4 * 8);
    const uint32_t w0[4] = {v0.x, v0.y, v0.z, v0.w}, w1[4] = {v1.x, v1.y, v1.z, v1.w};
#pragma unroll
    for (int b = 0; b < 4; b++) {
        uint32_t h0[4], h1[4];
        e2m1_pairs(w0[b], h0);
        e2m1_pairs(w1[b], h1);
        float e0 = mx_scale(scales.x, b), e1 = mx_scale(scales.y, b);
#pragma unroll
        for (int j = 0; j < shape<KIND>::NT; j++) {
            uint4 v = *(const uint4 *)(x + j * apart + b * 64);
            float part[4];
            mma_f16_first(part, h0[0], h1[0], h0[1], h1[1], v.x, v.y);
            mma_f16(part, h0[2], h1[2], h0[3], h1[3], v.z, v.w);
            acc[j][0] = fmaf(part[0], e0, acc[j][0]);
            acc[j][2] = fmaf(part[2], e1, acc[j][2]);
            if (KIND != EVEN) {
                acc[j][1] = fmaf(part[1], e0, acc[j][1]);
                acc[j][3] = fmaf(part[3], e1, acc[j][3]);
            }
        }
    }
}

/* Adds the runs' sums of column `col`, outputs o and o + 1. */
template <int KIND>
__device__ __forceinline__ float2 sum_runs(const float *red, int col, int o, bool two)
{
    constexpr int PITCH = shape<KIND>::PITCH, RUN = shape<KIND>::COLS * PITCH;
    float2 y = {};
#pragma unroll
    for (int r = 0; r < RUNS; r++) {
        float2 v = *(const float2 *)&red[r * RUN + col * PITCH + o];
        if (two) {
            float2 lo = *(const float2 *)&red[r * RUN + (col + 1) * PITCH + o];
            v.x += lo.x, v.y += lo.y;
        }
        y.x = r ? y.x + v.x : v.x;
        y.y = r ? y.y + v.y : v.y;
    }
    return y;
}

/* Weights i and i + 1, i even, in two steps: what is fetched, and what it says. */
__device__ __forceinline__ uint2 two_raw(const vec &v, size_t i)
{
    if (!v.p)
        return make_uint2(0, 0);
    if (v.type == DT_F32)
        return __ldg((const uint2 *)((const float *)v.p + i));
    return make_uint2(__ldg((const uint32_t *)((const uint16_t *)v.p + i)), 0);
}
__device__ __forceinline__ float2 two_of(const vec &v, uint2 raw)
{
    if (v.type == DT_F32)
        return make_float2(__uint_as_float(raw.x), __uint_as_float(raw.y));
    if (v.type == DT_BF16)
        return make_float2(__uint_as_float(raw.x << 16), __uint_as_float(raw.x & 0xffff0000u));
    return __half22float2(*(const __half2 *)&raw.x);
}

/* ---- the units ------------------------------------------------------------------------------ */

/* The jobs, as this block has made them or as the router's last block has. */
struct work {
    const struct jobs *own; /* or NULL */
    const int32_t *active_, *begin_, *order_;
    const struct share *shares;
    int n;
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
template <int KIND>
__device__ __forceinline__ void deal(const moe_args &a, int n_jobs, struct share *all)
{
    using S = shape<KIND>;
    const int part = (int)threadIdx.x % 32;
    if (part >= S::PARTS)
        return;
    const bool down = part >= S::GROUPS;
    const unsigned group = (unsigned)(part % S::GROUPS), blocks = gridDim.x;
    const unsigned from = (unsigned)n_jobs * group / S::GROUPS,
                   jobs = (unsigned)n_jobs * (group + 1) / S::GROUPS - from;
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
    s.each = (s.kp / 128 + (int)RUNS - 1) / (int)RUNS;
    s.full = s.kp / 128 / s.each;
    s.rest = s.kp / 128 - s.full * s.each;
}

/* One task's way through the block's units. */
template <int KIND> struct walk {
    const moe_args &a;
    const work &jobs;
    int part, left, job, tile; /* left: of the part */
    bool fresh;                /* other rows than the unit before */
    __device__ __forceinline__ walk(const moe_args &args, const work &w)
        : a(args), jobs(w), part(-1), left(0)
    {
    }
    __device__ __forceinline__ bool down() const { return part >= shape<KIND>::GROUPS; }
    __device__ __forceinline__ const mat &m() const { return down() ? a.down_m : a.gate_up_m; }
    __device__ __forceinline__ const share &s() const { return jobs.shares[part]; }
    __device__ __forceinline__ bool next()
    {
        fresh = false;
        if (left > 0) {
            left--, tile += TILES;
            if (tile >= s().tiles)
                tile = 0, job++, fresh = true;
            return true;
        }
        while (++part < shape<KIND>::PARTS)
            if (s().units) {
                left = s().units - 1, job = s().job, tile = s().tile;
                return fresh = true;
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

template <int KIND> struct block {
    using S = shape<KIND>;
    struct jobs lists;
    struct share shares[MOST_PARTS];
    uint64_t full[MOST_SLOTS], empty[MOST_SLOTS];
    uint64_t rows_full[MOST_SETS], rows_empty[MOST_SETS];
    uint64_t sums_full[BUFS], sums_empty[BUFS], told[MOST_GROUPS];
    __device__ __forceinline__ void init()
    {
        if (threadIdx.x % 32)
            return;
        for (int i = 0; i < MOST_SLOTS; i++)
            barrier_init(&full[i], COPIERS), barrier_init(&empty[i], S::MULTIPLIERS);
        for (int i = 0; i < MOST_SETS; i++)
            barrier_init(&rows_full[i], COPIERS), barrier_init(&rows_empty[i], S::MULTIPLIERS);
        for (int i = 0; i < BUFS; i++)
            barrier_init(&sums_full[i], S::MULTIPLIERS),
                barrier_init(&sums_empty[i], S::ENDERS * TILES);
        for (int i = 0; i < MOST_GROUPS; i++)
            barrier_init(&told[i], 1);
#if __CUDA_ARCH__ >= 900
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
    }
};

/* Where a block's shared memory has what. Rows lie in sets, `pitch` bytes apart, which spreads the
 * banks. */
template <int KIND> struct room {
    char *ring, *rows;
    float *sums;
    int pitch, set;
    __device__ __forceinline__ room(const moe_args &a, char *shared)
    {
        ring = shared;
        sums = (float *)(ring + a.slots * SLOT);
        rows = (char *)sums + shape<KIND>::SUM_BYTES;
        pitch = max(a.x.kp, a.h.kp) * 2 + 64;
        set = a.per * a.terms * pitch;
    }
};

/* ---- the tasks: fetching -------------------------------------------------------------------- */

template <int KIND>
__device__ __forceinline__ void fetch_weights(const moe_args &a, const work &jobs,
                                              block<KIND> &b, const room<KIND> &r)
{
    struct place slot = {};
    walk<KIND> at(a, jobs);
    while (at.next()) {
        const mat &m = at.m();
        const int kp = at.s().kp, each = at.s().each, full = at.s().full, rest = at.s().rest;
        const int next_tile = kp / 128 * CHUNK, next_scales = kp / 128 * CHUNK_SCALES;
        const size_t e = (size_t)jobs.active(at.job);
        const uint8_t *w = m.w + e * m.expert + (size_t)(at.tile * next_tile);
        const uint8_t *s = m.scale + e * m.expert_scale + (size_t)(at.tile * next_scales);
#pragma unroll 1
        for (int i = 0; i < each; i++) {
            const int n = full + (i < rest);
            char *to = r.ring + slot.i * SLOT;
            await(&b.empty[slot.i], slot.phase ^ 1);
            copies_begin(&b.full[slot.i], n * TILES * (CHUNK + CHUNK_SCALES));
#pragma unroll
            for (int t = 0; t < TILES; t++, to += STEP) {
                copy_piece(to, w + t * next_tile, n * CHUNK, &b.full[slot.i]);
                copy_piece(to + RUNS * CHUNK, s + t * next_scales, n * CHUNK_SCALES,
                           &b.full[slot.i]);
            }
            copies_end(&b.full[slot.i]);
            w += n * CHUNK, s += n * CHUNK_SCALES;
            slot.next(a.slots);
        }
    }
}

/* ---- the tasks: the clerk ------------------------------------------------------------------- */

/* Packed rows are there. */
__device__ __forceinline__ void wait_for_rows(const moe_args &a)
{
    while (look(a.own + ROWS_READY) != (unsigned)a.rows)
        ;
    copies_follow_writes();
}

/* One more block has come this far; the counter is 0 again when all have. */
__device__ __forceinline__ void come(unsigned *counter)
{
    order_memory();
    atomicInc(counter, gridDim.x - 1);
}
/* Only after having come. */
__device__ __forceinline__ void wait_for_all(const unsigned *counter)
{
    while (look(counter))
        ;
}

/* The block's lists for who comes later. */
__device__ __forceinline__ void keep_choice(const moe_args &a, const struct jobs &l)
{
    for (int p = (int)threadIdx.x % 32; p < a.rows * a.top_k; p += 32) {
        a.chosen[p] = l.chosen[p], a.weight[p] = l.weight[p];
        if (a.chosen_out)
            a.chosen_out[p] = l.chosen[p];
    }
}

/* A share of what the blocks chose by. */
__device__ __forceinline__ void clear_keys(const moe_args &a)
{
    const int lane = (int)threadIdx.x % 32;
    for (int i = (int)blockIdx.x * 32 + lane; i < a.rows * a.n_expert; i += (int)gridDim.x * 32)
        __stcg(a.keys + i, 0u);
    if (blockIdx.x == 0 && lane == 0)
        __stcg(a.own + ROWS_READY, 0u);
    order_memory();
    __syncwarp();
}

/* The first of the elements that a block adds up; none where the sums are not for this kernel. */
template <int KIND> __device__ __forceinline__ int first_sum(const moe_args &a)
{
    return a.sums ? (int)(gridDim.x - 1 - blockIdx.x) * shape<KIND>::THREADS : a.rows * a.in;
}

/* What the sums will want first comes nearer meanwhile. */
template <int KIND>
__device__ __forceinline__ void prefetch_bias(const moe_args &a, const work &jobs)
{
    enum { APART = 64 };
    const int lane = (int)threadIdx.x % 32, size = a.down_b.type == DT_F32 ? 4 : 2;
    for (int j = lane; a.down_b.p && j < shape<KIND>::THREADS / APART * a.top_k; j += 32) {
        const int i = first_sum<KIND>(a) + j / a.top_k * APART, k = j % a.top_k;
        if (i >= a.rows * a.in)
            return;
        const size_t e = (size_t)jobs.own->chosen[i / a.in * a.top_k + k];
        const char *p = (const char *)a.down_b.p + (e * a.down_b_pitch + (size_t)(i % a.in)) * size;
        asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
    }
}

/* Hidden rows of a group are there. */
template <int KIND>
__device__ __forceinline__ void wait_for_group(const moe_args &a, block<KIND> &b, int group)
{
    await(&b.told[group], 0);
    wait_for_all(a.own + GROUP_READY + group);
    copies_follow_writes();
}

/* The rows of one job after the other, by COPIERS. */
template <int KIND>
__device__ __forceinline__ void bring_rows(const moe_args &a, const work &jobs, block<KIND> &b,
                                           const room<KIND> &r)
{
    struct place set = {};
    int ready = 0;
    walk<KIND> at(a, jobs);
    while (at.next()) {
        if (!at.fresh)
            continue;
        for (; ready <= at.part - shape<KIND>::GROUPS; ready++)
            wait_for_group(a, b, ready);
        const packed &x = at.down() ? a.h : a.x;
        const int first = jobs.begin(at.job), n = jobs.begin(at.job + 1) - first;
        char *to = r.rows + set.i * r.set;
        await(&b.rows_empty[set.i], set.phase ^ 1);
        copies_begin(&b.rows_full[set.i], n * a.terms * x.kp * 2);
#pragma unroll 1
        for (int i = 0; i < n; i++) {
            const int pair = jobs.order(first + i), row = at.down() ? pair : pair / a.top_k;
            const uint16_t *from = x.x + (size_t)(row * a.terms) * (size_t)x.kp;
            for (int t = 0; t < a.terms; t++, to += r.pitch, from += x.kp)
                copy_piece(to, from, x.kp * 2, &b.rows_full[set.i]);
        }
        copies_end(&b.rows_full[set.i]);
        set.next(a.sets);
    }
    for (; ready < shape<KIND>::GROUPS; ready++)
        wait_for_group(a, b, ready);
}

/* All blocks have written hidden rows, so all have chosen: what they chose by may go, and the
 * kernels may come that will write it again. */
template <int KIND>
__device__ __forceinline__ void leave_keys(const moe_args &a, const work &jobs)
{
    if (a.direct)
        clear_keys(a);
    let_next();
    if (a.direct)
        prefetch_bias<KIND>(a, jobs);
    wait_before(); /* long over; who waits for this kernel waits for those before it, too */
}

/* ---- the tasks: multiplying ----------------------------------------------------------------- */

template <int KIND>
__device__ __forceinline__ void multiply_units(const moe_args &a, const work &jobs, block<KIND> &b,
                                               const room<KIND> &r, int warp)
{
    using S = shape<KIND>;
    const int lane = (int)threadIdx.x % 32, g = lane / 4, q = lane % 4, run = warp % (int)RUNS;
    const char *const w = r.ring + warp / (int)RUNS * STEP + run * CHUNK;
    const char *const s = r.ring + warp / (int)RUNS * STEP + RUNS * CHUNK + run * CHUNK_SCALES;
    float *const mine = r.sums + warp / (int)RUNS * S::RED + run * S::COLS * S::PITCH +
                        (KIND == EVEN ? q : 2 * q) * S::PITCH + g;
    /* Columns beyond the room for rows repeat the last one's place. */
    const int col = min(KIND == EVEN ? g / 2 : g, a.per * a.terms - 1);
    struct place slot = {}, set = {}, buf = {};
    bool staged = false;
    walk<KIND> at(a, jobs);
    while (at.next()) {
        const int each = at.s().each, n = min(each, at.s().kp / 128 - run * each);
        if (at.fresh) {
            if (staged) {
                warp_arrives(&b.rows_empty[set.i]);
                set.next(a.sets);
            }
            staged = true;
            await(&b.rows_full[set.i], set.phase);
        }
        const char *x = r.rows + set.i * r.set + col * r.pitch + run * each * 256 + q * 16;
        float acc[S::NT][4] = {};
#pragma unroll 1
        for (int i = 0; i < each; i++, x += 256) {
            await(&b.full[slot.i], slot.phase);
            if (i < n)
                multiply<KIND>(w + slot.i * SLOT, s + slot.i * SLOT, x, 8 * r.pitch, acc);
            warp_arrives(&b.empty[slot.i]);
            slot.next(a.slots);
        }
        float *to = mine + buf.i * TILES * S::RED;
        await(&b.sums_empty[buf.i], buf.phase ^ 1);
#pragma unroll
        for (int j = 0; j < S::NT; j++, to += 8 * S::PITCH) {
            to[0] = acc[j][0], to[8] = acc[j][2];
            if (KIND != EVEN)
                to[S::PITCH] = acc[j][1], to[S::PITCH + 8] = acc[j][3];
        }
        warp_arrives(&b.sums_full[buf.i]);
        buf.next(BUFS);
    }
}

/* ---- the tasks: ending ---------------------------------------------------------------------- */

__device__ __forceinline__ void put_hidden(const moe_args &a, int pair, int i, float h)
{
    uint16_t *to = a.h_to + (size_t)pair * (size_t)a.terms * (size_t)a.h.kp + (size_t)i;
    __half hi = __float2half_rn(h * a.h_scale);
    *to = __half_as_ushort(hi);
    if (a.terms == 2) {
        float rest = isfinite(__half2float(hi)) ? h * a.h_scale - __half2float(hi) : 0.f;
        to[a.h.kp] = __half_as_ushort(__float2half_rn(rest));
    }
}

/* What a lane needs besides the sums: outputs 2 * o and 2 * o + 1 of a tile for one pair, which for
 * gate and up are one hidden element. Fetched before the sums are there. */
struct ending {
    int pair, col, o; /* pair -1: nothing */
    float inv;
    uint2 bias;
    __device__ __forceinline__ void prepare(const moe_args &a, const work &jobs, bool down, int job,
                                            int tile, int item)
    {
        const int from = jobs.begin(job);
        pair = item / 8 < jobs.begin(job + 1) - from ? jobs.order(from + item / 8) : -1;
        col = item / 8 * a.terms, o = item % 8;
        if (pair < 0 || down)
            return;
        inv = __ldcg(a.x_inv + pair / a.top_k);
        bias = two_raw(a.gate_up_b, (size_t)jobs.active(job) * a.gate_up_b_pitch +
                                        (size_t)(tile * 16 + 2 * o));
    }
    template <int KIND>
    __device__ __forceinline__ void end(const moe_args &a, bool down, int tile, const float *red)
    {
        if (pair < 0)
            return;
        float2 y = sum_runs<KIND>(red, col, 2 * o, KIND != EVEN && a.terms == 2);
        if (down) {
            float *to = a.down + (size_t)pair * (size_t)a.in + (size_t)(tile * 16 + 2 * o);
            *(float2 *)to = make_float2(mx_sum(y.x * a.h_undo), mx_sum(y.y * a.h_undo));
            return;
        }
        float2 v = two_of(a.gate_up_b, bias);
        float gate = mx_sum(y.x * inv) + v.x, up = mx_sum(y.y * inv) + v.y;
        put_hidden(a, pair, tile * 8 + o, gated(gate, up, a.act, a.limit));
    }
};

/* The block is done with a part. */
template <int KIND>
__device__ __forceinline__ void tell_part(const moe_args &a, block<KIND> &b, int part)
{
    enum { ALL = 32 * shape<KIND>::ENDERS * TILES };
    const bool down = part >= shape<KIND>::GROUPS;
    if (down && part + 1 < shape<KIND>::PARTS)
        return;
    __syncwarp(); /* the first lane may still be telling of the part before */
    asm volatile("bar.sync 1, %0;" ::"n"((int)ALL) : "memory");
    if ((int)threadIdx.x != 32 * shape<KIND>::MULTIPLIERS)
        return;
    if (!down) {
        come(a.own + GROUP_READY + part);
        arrive(&b.told[part]);
        return;
    }
    come(a.own + DOWN_READY);
    if (first_sum<KIND>(a) < a.rows * a.in)
        wait_for_all(a.own + DOWN_READY);
}

/* Ender `number` of all: some for each tile. */
template <int KIND>
__device__ __forceinline__ void end_units(const moe_args &a, const work &jobs, block<KIND> &b,
                                          const room<KIND> &r, int number)
{
    using S = shape<KIND>;
    const int lane = (int)threadIdx.x % 32, group = number / S::ENDERS;
    const int first = number % S::ENDERS * 32 + lane;
    struct place buf = {};
    int told = 0;
    walk<KIND> at(a, jobs);
    while (at.next()) {
        const bool down = at.down();
        const int tile = at.tile + group;
        for (; told < at.part; told++)
            tell_part(a, b, told);
        struct ending e[S::PASSES];
#pragma unroll
        for (int i = 0; i < S::PASSES; i++)
            e[i].prepare(a, jobs, down, at.job, tile, first + i * S::ENDERS * 32);
        await(&b.sums_full[buf.i], buf.phase);
#pragma unroll
        for (int i = 0; i < S::PASSES; i++)
            e[i].template end<KIND>(a, down, tile, r.sums + (buf.i * TILES + group) * S::RED);
        warp_arrives(&b.sums_empty[buf.i]);
        buf.next(BUFS);
        if (!down && tile == at.s().tiles - 1) { /* zeros up to a whole chunk */
            const int from = jobs.begin(at.job), pad = a.h.kp - a.ffn;
            for (int i = first; i < (jobs.begin(at.job + 1) - from) * pad; i += S::ENDERS * 32)
                put_hidden(a, jobs.order(from + i / pad), a.ffn + i % pad, 0);
        }
    }
    for (; told < S::PARTS; told++)
        tell_part(a, b, told);
}

/* ---- the kernel ----------------------------------------------------------------------------- */

/* Adds up the rows' experts. */
template <int KIND, class INT>
__device__ __forceinline__ void add_up(const moe_args &a, const INT *chosen, const float *weight)
{
    const int step = (int)gridDim.x * shape<KIND>::THREADS;
    for (int i = first_sum<KIND>(a) + (int)threadIdx.x; i < a.rows * a.in; i += step) {
        float old = a.add ? a.dst[i] : 0.f, y = sum_of(a, chosen, weight, i / a.in, i % a.in);
        a.dst[i] = a.add ? y + old : y;
    }
}

template <int KIND>
__global__ void __launch_bounds__(shape<KIND>::THREADS, 1)
    expert_kernel(const __grid_constant__ struct moe_args a)
{
    using S = shape<KIND>;
    extern __shared__ __align__(128) char shared[];
    __shared__ struct block<KIND> b;
    const int warp = __shfl_sync(~0u, (int)threadIdx.x / 32, 0), lane = (int)threadIdx.x % 32;
    if (warp == S::CLERK)
        b.init();
    if (a.direct && a.rows == 1 && warp == S::FETCHER)
        deal<KIND>(a, a.top_k, b.shares);
    if (a.direct && warp == S::CLERK)
        wait_for_rows(a);
    if (a.direct)
        choose_directly<S::THREADS>(a, &b.lists, (int *)shared);
    else
        wait_before();
    __syncthreads();
    const int n_jobs = a.direct ? b.lists.n : *a.n_active;
    if (!a.direct || a.rows > 1) {
        if (warp == S::FETCHER)
            deal<KIND>(a, n_jobs, b.shares);
        __syncthreads();
    }
    const struct work jobs = {a.direct ? &b.lists : NULL, a.active, a.begin, a.order, b.shares,
                              n_jobs};
    const room<KIND> r(a, shared);
    if (warp < S::MULTIPLIERS) {
        multiply_units(a, jobs, b, r, warp);
    } else if (warp < S::FETCHER) {
        end_units(a, jobs, b, r, warp - S::MULTIPLIERS);
    } else if (warp == S::FETCHER) {
        if (lane < COPIERS)
            fetch_weights(a, jobs, b, r);
    } else {
        if (a.direct && blockIdx.x == 0)
            keep_choice(a, b.lists);
        if (lane < COPIERS)
            bring_rows(a, jobs, b, r);
        __syncwarp();
        leave_keys<KIND>(a, jobs);
    }
    __syncthreads();
    if (a.direct)
        add_up<KIND>(a, b.lists.chosen, b.lists.weight);
    else
        add_up<KIND>(a, a.chosen, a.weight);
}

/* ---- host ----------------------------------------------------------------------------------- */

template <int KIND> static int shared_of(const struct moe_args *a, int columns)
{
    int pitch = max_int(a->x.kp, a->h.kp) * 2 + 64;
    return a->slots * SLOT + shape<KIND>::SUM_BYTES + a->sets * columns * pitch;
}

/* What a block may ask for beside what it has of its own. */
static int shared_most(const struct kdev *d)
{
    int most = 0;
    cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, d->ordinal);
    return most - (int)sizeof(struct block<MORE>) - 128;
}

/* Columns are fewer where rows are so long that the shared memory of a block has not more. */
int cuda_few_pairs(const struct kdev *d, const struct moe_args *given, int rows)
{
    struct moe_args a = *given;
    const int pairs = rows * a.top_k, terms = a.terms, most = shared_most(d);
    a.slots = 2, a.sets = 1;
    bool more = rows * terms > 8 && pairs * terms > 4 * a.n_expert &&
                shared_of<MORE>(&a, 16) <= most;
    bool even = terms == 1 && (rows <= 4 || pairs <= a.n_expert);
    int per = more ? 16 / terms : even ? 4 : 8 / terms;
    while (per > 1 && !more && shared_of<FEW>(&a, per * terms) > most)
        per--;
    return per;
}

/* Blocks wait for each other, so no more than fit on the device at once: one a multiprocessor. Two
 * sets of rows where they fit beside all slots; then one, and fewer slots. */
template <int KIND> static void launch(struct kdev *d, const struct moe_args *given)
{
    struct moe_args a = *given;
    const int most = shared_most(d), columns = a.per * a.terms;
    a.slots = MOST_SLOTS, a.sets = MOST_SETS;
    while (shared_of<KIND>(&a, columns) > most && (a.sets > 1 || a.slots > 2))
        if (a.sets > 1)
            a.sets--;
        else
            a.slots--;
    if (shared_of<KIND>(&a, columns) > most)
        return cuda_fail(d, "experts need more shared memory than this device has");
    cuda_launch(d, expert_kernel<KIND>, dim3((unsigned)d->n_sm), shape<KIND>::THREADS,
                (size_t)shared_of<KIND>(&a, columns), a);
}

void cuda_few_experts(struct kdev *d, const struct moe_args *m)
{
    int columns = m->per * m->terms;
    if (columns > 8)
        launch<MORE>(d, m);
    else if (columns > 4 || m->terms == 2)
        launch<FEW>(d, m);
    else
        launch<EVEN>(d, m);
}
