/* cuda_experts.cu - MXFP4 experts for few rows at the speed of memory.
 *
 * Two kernels. The first multiplies with gate and up and writes the packed hidden rows; the second
 * multiplies with down and, for one row, the block that completes a tile of outputs adds up the
 * row's experts in the order of their rank. Blocks stay: each takes an equal share of the units (a
 * job, a tile of 16 rows of weights), in their order, so that a block meets few jobs. A warp has a
 * run of k, as in cuda_product.cuh, with the same order of sums: blocks of 32 from zero in two
 * instructions, then times their scale onto the run's sum; the runs in their order.
 *
 * Weights reach a warp through its own ring in shared memory, chunk by chunk, SLOTS of them on
 * their way, whatever unit they belong to. (Registers will not do: loads in flight share the few
 * counters that an instruction can wait for, so the first use waits for the newest.) The rows'
 * fragments lie beside, in the shape in which the lanes read them. What the warps have summed is
 * added up by one or a few of them in turn while the others go on.
 *
 * For few rows the second kernel reads the router's logits, and fetches weights, before it waits
 * for the first: the first lets it start only after it has itself waited for the router.
 */
#include "kernels/cuda_experts.cuh"

enum {
    EXPERT_THREADS = 32 * (int)RUNS, /* of the group that shares a tile */
    STEP = 3,                        /* chunks of a run whose rows lie in shared memory */
    SLOT = 2 * 32 * 16 + 16 * 4,     /* bytes of a chunk: weights, 16 scales of four blocks */
};

/* EVEN: up to four rows, in the even columns. FEW: up to eight columns. MORE: up to 16; two groups
 * of warps share the rows. */
enum kind { EVEN, FEW, MORE };

template <int KIND> struct shape {
    static constexpr int NT = KIND == MORE ? 2 : 1, GROUPS = KIND == MORE ? 2 : 1,
                         THREADS = EXPERT_THREADS * GROUPS,
                         BLOCKS = KIND == MORE ? 1 : 2, /* of a multiprocessor */
                         SLOTS = 5; /* chunks of a warp that are on their way at once */
    static constexpr int ROW_LANES = KIND == EVEN ? 16 : 32; /* whose fragments of rows differ */
    static constexpr int COLS = KIND == EVEN ? 4 : 8 * NT,
                         PITCH = KIND == EVEN ? 24 : 20; /* of 16 outputs; spreads the banks */
    /* Sums of so many units lie in shared memory. With eight, a unit is ended by one warp, and a
     * warp that has had its turn since may write over them; with fewer all warps meet. */
    static constexpr int BUFS = KIND == EVEN ? 8 : KIND == FEW ? 2 : 1,
                         ENDERS = KIND == EVEN ? 1 : KIND == FEW ? 4 : 8;
    static constexpr int ROW_BYTES = (int)RUNS * STEP * 4 * NT * ROW_LANES * 16,
                         SHARED = ROW_BYTES + (int)RUNS * GROUPS * SLOTS * SLOT;
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

template <int BYTES> __device__ __forceinline__ void copy_async(uint32_t to, const uint8_t *from)
{
    if (BYTES == 16)
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void copies_end()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int LEFT> __device__ __forceinline__ void copies_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

/* Of a group's warps some wait until all have come, the others just say so. */
__device__ __forceinline__ void meet(int barrier, bool wait)
{
    if (wait)
        asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"((int)EXPERT_THREADS) : "memory");
    else
        asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"((int)EXPERT_THREADS) : "memory");
}

/* One chunk of 128 of k. w: the weights of rows g and g + 8 and their scales in shared memory; x:
 * the rows' fragments there, at this lane. */
template <int KIND>
__device__ __forceinline__ void multiply(const char *w, int lane, const uint4 *x, float (*acc)[4])
{
    constexpr int NT = shape<KIND>::NT;
    const uint4 v0 = *(const uint4 *)(w + lane * 16), v1 = *(const uint4 *)(w + 512 + lane * 16);
    const uint2 s = *(const uint2 *)(w + 1024 + lane / 4 * 8);
    const uint32_t w0[4] = {v0.x, v0.y, v0.z, v0.w}, w1[4] = {v1.x, v1.y, v1.z, v1.w};
#pragma unroll
    for (int b = 0; b < 4; b++) {
        uint32_t h0[4], h1[4];
        e2m1_pairs(w0[b], h0);
        e2m1_pairs(w1[b], h1);
        float e0 = mx_scale(s.x, b), e1 = mx_scale(s.y, b);
#pragma unroll
        for (int j = 0; j < NT; j++) {
            uint4 v = x[(b * NT + j) * shape<KIND>::ROW_LANES];
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

/* The weights that a warp fetches: its run of one unit after the other. */
struct stream {
    const uint8_t *w, *s; /* row g and this lane's part; the scales of row lane % 16 */
    int chunks, tiles, units; /* left of the run, of the job, of all */
    int job;
};

/* Adds the runs' sums of column `col`, outputs o and o + 1. */
template <int KIND>
__device__ __forceinline__ float2 sum_runs(
    const float (*red)[shape<KIND>::COLS * shape<KIND>::PITCH], int col, int o, bool two)
{
    float2 y = {};
#pragma unroll
    for (int r = 0; r < RUNS; r++) {
        float2 v = *(const float2 *)&red[r][col * shape<KIND>::PITCH + o];
        if (two) {
            float2 lo = *(const float2 *)&red[r][(col + 1) * shape<KIND>::PITCH + o];
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

/* What a thread that ends a unit needs besides the sums: outputs 2 * o and 2 * o + 1 of a tile for
 * one pair, which for gate and up are one hidden element. Fetched before the sums are there. */
struct ending {
    int pair, col, o; /* pair -1: nothing */
    float inv;
    uint2 bias;
};

template <int KIND, bool DOWN>
__device__ __forceinline__ void end_unit(
    const moe_args &a, const ending &e, int tile,
    const float (*red)[shape<KIND>::COLS * shape<KIND>::PITCH], bool two)
{
    float2 y = sum_runs<KIND>(red, e.col, 2 * e.o, two);
    if (DOWN) {
        float *to = a.down + (size_t)e.pair * (size_t)a.in + (size_t)(tile * 16 + 2 * e.o);
        *(float2 *)to = make_float2(mx_sum(y.x * a.h_undo), mx_sum(y.y * a.h_undo));
        return;
    }
    float2 b = two_of(a.gate_up_b, e.bias);
    float gate = mx_sum(y.x * e.inv) + b.x, up = mx_sum(y.y * e.inv) + b.y;
    put_hidden(a, e.pair, tile * 8 + e.o, gated(gate, up, a.act, a.limit));
}

/* Counts a block's units, and adds up the rows' experts in the tiles that are complete. */
template <int THREADS>
__device__ void add_up(const moe_args &a, const int32_t *chosen, const float *weight, int jobs,
                       int tiles, int begin, int end)
{
    __shared__ int complete[THREADS], n;
    const int tid = (int)threadIdx.x;
    __threadfence();
    for (int from = begin; from < end; from += THREADS) {
        __syncthreads();
        if (tid == 0)
            n = 0;
        __syncthreads();
        if (from + tid < end) {
            int tile = (from + tid) % tiles;
            unsigned *counter = a.counters + TILE_COUNTERS + tile;
            if (atomicAdd(counter, 1) + 1 == (unsigned)jobs) {
                *counter = 0;
                complete[atomicAdd(&n, 1)] = tile;
            }
        }
        __threadfence();
        __syncthreads();
        for (int at = tid; at < n * 16 * a.rows; at += THREADS) {
            int i = complete[at / (16 * a.rows)] * 16 + at % 16, r = at / 16 % a.rows;
            if (i >= a.in)
                continue;
            float *dst = a.dst + (size_t)r * (size_t)a.in + (size_t)i;
            float old = a.add ? *dst : 0.f, y = sum_of(a, chosen, weight, r, i);
            *dst = a.add ? y + old : y;
        }
    }
}

template <int KIND, bool DOWN>
__global__ void __launch_bounds__(shape<KIND>::THREADS, shape<KIND>::BLOCKS)
    expert_kernel(const __grid_constant__ struct moe_args a)
{
    using S = shape<KIND>;
    extern __shared__ __align__(16) char shared[]; /* the rows' fragments, then the rings */
    __shared__ __align__(16) float red[S::BUFS][S::GROUPS][RUNS][S::COLS * S::PITCH];
    __shared__ struct jobs lists;
    const int tid = (int)threadIdx.x, lane = tid % 32, g = lane / 4, q = lane % 4;
    const int group = S::GROUPS > 1 ? tid / EXPERT_THREADS : 0, warp = tid / 32 % RUNS;
    const mat &m = DOWN ? a.down_m : a.gate_up_m;
    const packed &x = DOWN ? a.h : a.x;
    const bool two = KIND != EVEN && a.terms == 2;

    if (DOWN && a.direct)
        let_next();
    auto active = [&](int i) { return a.direct ? lists.active[i] : a.active[i]; };
    auto begin = [&](int i) { return a.direct ? lists.begin[i] : a.begin[i]; };
    auto order = [&](int i) { return a.direct ? lists.order[i] : a.order[i]; };
    const int tiles = m.n / 16, per_job = tiles / S::GROUPS; /* units: GROUPS tiles of a job */
    const int chunks = x.kp / 128, each = (chunks + (int)RUNS - 1) / (int)RUNS;
    const int c0 = min(warp * each, chunks), run = min(each, chunks - c0);
    char *const rows = shared + warp * STEP * 4 * S::NT * S::ROW_LANES * 16;
    const uint4 *const mine = (const uint4 *)rows + (KIND == EVEN ? g / 2 * 4 + q : lane);
    char *const slots = shared + S::ROW_BYTES + (group * (int)RUNS + warp) * S::SLOTS * SLOT;
    const uint32_t slots_at = (uint32_t)__cvta_generic_to_shared(slots);

    int from = 0, n = 1, staged = -1;
    /* Brings the rows' fragments for chunks c and on of the run, 16 bytes a lane, from where they
     * lie in a row to where multiply() looks for them. Columns without a row may hold anything. */
    auto stage = [&](int c) {
        const int pieces = min(STEP, run - c) * 16;
        const uint32_t to = (uint32_t)__cvta_generic_to_shared(rows);
#pragma unroll 1
        for (int col = group * 8; col < min(n << (int)two, group * 8 + 8); col++) {
            int row = a.rows == 1 && !DOWN ? 0 : order(from + (col >> (int)two));
            if (!DOWN && a.rows > 1)
                row /= a.top_k;
            const uint16_t *src =
                x.x + ((size_t)row * (size_t)a.terms + (two ? col & 1 : 0)) * (size_t)x.kp +
                (size_t)(c0 + c) * 128;
            for (int p = lane; p < pieces; p += 32) {
                int at = (p / 4 * S::NT + group) * S::ROW_LANES + col % 8 * 4 + p % 4;
                copy_async<16>(to + at * 16, (const uint8_t *)(src + p * 8));
            }
        }
        copies_end();
    };

    if (!(DOWN && a.direct))
        after();
    if (!DOWN && a.rows == 1)
        stage(0);
    if (a.direct) {
        choose_directly<S::THREADS>(a, &lists, (int *)shared);
        for (int p = tid; !DOWN && blockIdx.x == 0 && p < a.rows * a.top_k; p += S::THREADS) {
            a.chosen[p] = lists.chosen[p], a.weight[p] = lists.weight[p];
            if (a.chosen_out)
                a.chosen_out[p] = lists.chosen[p];
        }
    }

    const int n_jobs = a.direct ? lists.n : *a.n_active;
    const unsigned all = (unsigned)(n_jobs * per_job), share = all / gridDim.x,
                   more = all - share * gridDim.x;
    const int first = (int)(blockIdx.x * share + min(blockIdx.x, more)),
              end = first + (int)share + (blockIdx.x < more);
    int job = (int)((unsigned)first / (unsigned)per_job), at = first - job * per_job;
    int tile = at * S::GROUPS + group;

    struct stream next;
    auto aim = [&](int j, int t) { /* at a job's tile */
        size_t e = (size_t)active(j), row = (size_t)(t * 16);
        next.w = m.w + e * m.expert + (row + (size_t)g) * m.pitch + (size_t)(c0 * 64 + q * 16);
        next.s = m.scale + e * m.expert_scale + (row + (size_t)(lane % 16)) * m.scale_pitch +
                 (size_t)(c0 * 4);
    };
    auto fetch = [&](uint32_t to) { /* the next chunk */
        if (next.units > 0) {
            copy_async<16>(to + lane * 16, next.w);
            copy_async<16>(to + 512 + lane * 16, next.w + 8 * m.pitch);
            if (lane < 16)
                copy_async<4>(to + 1024 + lane % 8 * 8 + lane / 8 * 4, next.s);
            next.w += 64, next.s += 4;
            if (--next.chunks == 0) {
                next.chunks = run;
                next.units--;
                next.w += (size_t)(16 * S::GROUPS) * m.pitch - (size_t)(run * 64);
                next.s += (size_t)(16 * S::GROUPS) * m.scale_pitch - (size_t)(run * 4);
                if (--next.tiles == 0 && next.units > 0) {
                    next.tiles = per_job;
                    aim(++next.job, group);
                }
            }
        }
        copies_end();
    };
    next.job = job;
    next.tiles = per_job - at;
    next.chunks = run;
    next.units = run ? end - first : 0;
    if (first < end) {
        aim(job, tile);
        if (!DOWN) {
            from = begin(job), n = begin(job + 1) - from;
            if (a.rows > 1 && each <= STEP)
                stage(0);
            staged = job;
        }
    }
    for (int i = 0; i < S::SLOTS; i++)
        fetch(slots_at + i * SLOT);
    if (DOWN && a.direct)
        after();

    int slot = 0;
#pragma unroll 1
    for (int unit = first; unit < end; unit++) {
        bool fresh = false;
        if (job != staged) {
            from = begin(job);
            n = begin(job + 1) - from;
            staged = job;
            fresh = DOWN || a.rows > 1;
        }
        const int turn = (warp - (unit - first) * S::ENDERS) & ((int)RUNS - 1);
        const bool ends = turn < S::ENDERS;
        const int item = turn * 32 + lane;
        struct ending e = {-1, item / 8 << (int)two, item % 8, 1, {}};
        if (ends && item / 8 < n) {
            e.pair = order(from + item / 8);
            if (!DOWN) {
                e.inv = __ldcg(a.x_inv + (a.rows == 1 ? 0 : e.pair / a.top_k));
                e.bias = two_raw(a.gate_up_b, (size_t)active(job) * a.gate_up_b_pitch +
                                                  (size_t)(tile * 16 + 2 * e.o));
            }
        }

        float acc[S::NT][4] = {};
        if (fresh && each <= STEP) {
            if (S::GROUPS > 1)
                __syncthreads();
            else
                __syncwarp();
            stage(0);
            copies_wait<0>();
        }
        if (S::GROUPS > 1 && (fresh || unit == first)) {
            copies_wait<0>();
            __syncthreads();
        }
#pragma unroll 1
        for (int c = 0, in = 0; c < run; c++) {
            if (in == 0 && each > STEP) {
                __syncwarp();
                stage(c);
                copies_wait<0>();
            }
            copies_wait<S::SLOTS - 1>();
            __syncwarp();
            multiply<KIND>(slots + slot, lane, mine + in * 4 * S::NT * S::ROW_LANES, acc);
            __syncwarp();
            fetch(slots_at + slot);
            slot = slot == (S::SLOTS - 1) * SLOT ? 0 : slot + SLOT;
            in = in == STEP - 1 ? 0 : in + 1;
        }

        const int buf = (unit - first) % S::BUFS, barrier = 1 + group * S::BUFS + buf;
        float (*to)[S::COLS * S::PITCH] = red[buf][group];
        if (S::BUFS == 1)
            meet(barrier, true);
#pragma unroll
        for (int j = 0; j < S::NT; j++) {
            float *r = to[warp] + (KIND == EVEN ? q : j * 8 + 2 * q) * S::PITCH + g;
            r[0] = acc[j][0], r[8] = acc[j][2];
            if (KIND != EVEN)
                r[S::PITCH] = acc[j][1], r[S::PITCH + 8] = acc[j][3];
        }
        meet(barrier, ends || S::BUFS < (int)RUNS);
        if (e.pair >= 0)
            end_unit<KIND, DOWN>(a, e, tile, to, two);
        if (!DOWN && tile == tiles - 1) { /* zeros up to a whole chunk */
            int pad = a.h.kp - a.ffn;
            for (int i = tid % EXPERT_THREADS; i < n * pad; i += EXPERT_THREADS)
                put_hidden(a, order(from + i / pad), a.ffn + i % pad, 0);
        }
        tile += S::GROUPS;
        if (tile >= tiles)
            tile = group, job++;
    }
    if (DOWN && a.sums)
        add_up<S::THREADS>(a, a.direct ? lists.chosen : a.chosen,
                           a.direct ? lists.weight : a.weight, n_jobs, tiles, first * S::GROUPS,
                           end * S::GROUPS);
}

/* MORE needs rows whose runs fit in a step, and an even number of tiles. */
int cuda_few_pairs(const struct kdev *d, const struct k_moe *a, int rows)
{
    int terms = d->terms;
    bool more = rows * terms > 8 && rows * a->top_k * terms > 4 * a->n_expert &&
                max_int(a->in, a->ffn) <= 128 * STEP * (int)RUNS;
    bool even = terms == 1 && (rows <= 4 || rows * a->top_k <= a->n_expert);
    return more ? 16 / terms : even ? 4 : 8 / terms;
}

template <int KIND> static void run(struct kdev *d, const struct moe_args *m)
{
    dim3 grid((unsigned)(d->n_sm * shape<KIND>::BLOCKS));
    cuda_launch(d, expert_kernel<KIND, false>, grid, shape<KIND>::THREADS, shape<KIND>::SHARED, *m);
    cuda_launch(d, expert_kernel<KIND, true>, grid, shape<KIND>::THREADS, shape<KIND>::SHARED, *m);
}

void cuda_few_experts(struct kdev *d, const struct moe_args *m)
{
    int columns = m->per * m->terms;
    if (columns > 8)
        run<MORE>(d, m);
    else if (columns > 4)
        run<FEW>(d, m);
    else
        run<EVEN>(d, m);
}
