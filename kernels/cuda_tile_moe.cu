/* cuda_tile_moe.cu - MXFP4 experts for many rows, on Hopper: both products of cuda_experts.cu, bit
 * for bit, without the sum. Rows of pairs lie anywhere, so two warps gather them with cp.async; two
 * more write the pairs' results out; the two warpgroups that multiply turn weights into f16 on
 * their way into registers.
 *
 * As in cuda_product.cuh a block of 32 k is summed from zero and then added with its scale. So a
 * warpgroup has two halves of columns in turn: while the one is multiplied the other is added.
 */
#include "kernels/cuda_experts.cuh"
#include "kernels/cuda_tile.cuh"

enum {
    THREADS = 384, /* four warps to fetch and write, eight to multiply */
    STAGE_K = 128,
    COLS_BYTES = COLS * STAGE_K * 2, /* twice: 128 bytes of every column, swizzled */
    OUTS_BYTES = TILE_OUT * STAGE_K / 2,
    SCALES_BYTES = TILE_OUT * 4,
    WEIGHTS_16 = 16 * STAGE_K / 2, /* bytes of 16 outputs, which lie together */
    STAGE_SPAN = (COLS_BYTES + OUTS_BYTES + SCALES_BYTES + 1023) / 1024 * 1024,
    STAGES = 3,
    SHARED = STAGES * STAGE_SPAN + ROOM_BYTES + 1024,
    FETCHERS = 2, WRITERS = 2, /* warps */
};

struct many_experts {
    struct moe_args m;
    bool down; /* which of the two products */
    int tiles_out;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* ---- device: the shape of the work ---------------------------------------------------------- */

/* A tile: the pairs from .. to of an expert (COLS / TERMS at most), outputs out .. + TILE_OUT. */
struct place {
    int tile, i; /* the i-th active expert */
    int expert, from, to, out;
};

/* upto[i]: tiles of rows of the active experts before the i-th; the last entry: of all. False when
 * there is no tile any more. Tiles of one expert and the same outputs follow each other. */
template <int TERMS>
__device__ __forceinline__ bool find(const many_experts &a, const int *upto, int n_active,
                                     struct place &at)
{
    if (at.tile >= upto[n_active] * a.tiles_out)
        return false;
    while (at.tile >= upto[at.i + 1] * a.tiles_out)
        at.i++;
    int rows = upto[at.i + 1] - upto[at.i], in = at.tile - upto[at.i] * a.tiles_out;
    at.expert = __ldg(a.m.active + at.i);
    at.from = __ldg(a.m.begin + at.i) + in % rows * (COLS / TERMS);
    at.to = min(at.from + COLS / TERMS, __ldg(a.m.begin + at.i + 1));
    at.out = in / rows * TILE_OUT;
    return true;
}

/* One warp. */
template <int TERMS>
__device__ __forceinline__ void count_tiles(const many_experts &a, int *upto, int n_active)
{
    int lane = (int)threadIdx.x, sum = 0;
    for (int first = 0; first < n_active; first += 32) {
        int i = first + lane, n = 0;
        if (i < n_active)
            n = (a.m.begin[i + 1] - a.m.begin[i] + COLS / TERMS - 1) / (COLS / TERMS);
        int before = n;
        for (int d = 1; d < 32; d *= 2) {
            int v = __shfl_up_sync(~0u, before, d);
            before += lane >= d ? v : 0;
        }
        if (i < n_active)
            upto[i + 1] = sum + before;
        sum += __shfl_sync(~0u, before, 31);
    }
    if (lane == 0)
        upto[0] = 0;
}

__device__ __forceinline__ const struct mat &mat_of(const many_experts &a)
{
    return a.down ? a.m.down_m : a.m.gate_up_m;
}
__device__ __forceinline__ const struct packed &rows_of(const many_experts &a)
{
    return a.down ? a.m.h : a.m.x;
}

/* ---- device: the roles ---------------------------------------------------------------------- */

/* No memory clobber: the barrier that follows orders them. */
__device__ __forceinline__ void copy16(uint32_t to, const void *from)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from));
}
__device__ __forceinline__ void copy4(uint32_t to, const void *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from));
}

/* Successive bytes, a multiple of 16. */
__device__ __forceinline__ void fetch_bytes(void *to, const void *from, int n, uint64_t *full)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(shared_at(to)), "l"(from), "r"(n),
                 "r"(shared_at(full))
                 : "memory");
}

/* Where the first scales of an output lie; 64 bytes on, those of the next chunk. */
__device__ __forceinline__ uint32_t scale_place(int out, uint32_t scale_pitch)
{
    return (uint32_t)(out / 16 * 16) * scale_pitch + (uint32_t)(out % 8 * 2 + out / 8 % 2) * 4;
}

/* The threads that fetch; 16 of them share a column, and each has every fourth. offset: room for
 * the bytes at which the tile's columns begin, those of a thread together. */
template <int TERMS>
__device__ __forceinline__ void fetch_tiles(const many_experts &a, ring<STAGES> r, const int *upto,
                                            int n_active, uint32_t *offset)
{
    enum { LANES = FETCHERS * 32, EVERY = LANES / 16, EACH = COLS / EVERY };
    const struct packed &rows = rows_of(a);
    const struct mat &m = mat_of(a);
    const int t = (int)threadIdx.x, chunks = rows.kp / STAGE_K, own = t / 16;
    const uint8_t *x = (const uint8_t *)rows.x + t % 16 * 16;
    const uint32_t piece = (uint32_t)(t % 16 / 8 * (COLS * 128));
    struct place at = {(int)blockIdx.x};
    for (; find<TERMS>(a, upto, n_active, at); at.tile += (int)gridDim.x) {
        const int cols = (at.to - at.from) * TERMS;
        threads_meet(1, LANES);
        for (int i = t; i < COLS; i += LANES) {
            int pair = a.m.order[min(at.from + i / TERMS, at.to - 1)];
            int row = a.down ? pair : pair / a.m.top_k;
            offset[i % EVERY * EACH + i / EVERY] =
                (uint32_t)(row * TERMS + i % TERMS) * (uint32_t)(rows.kp * 2);
        }
        threads_meet(1, LANES);
        const uint8_t *s = m.scale + (size_t)at.expert * m.expert_scale;
        const uint8_t *w = m.w + (size_t)at.expert * m.expert +
                           (size_t)min(at.out / 16 + t, m.n / 16 - 1) * 16 * m.pitch;
        uint32_t scale[TILE_OUT / LANES];
#pragma unroll
        for (int i = 0; i < TILE_OUT / LANES; i++)
            scale[i] = scale_place(min(at.out + t + i * LANES, m.n - 1), (uint32_t)m.scale_pitch);
#pragma unroll 1
        for (int c = 0; c < chunks; c++) {
            uint64_t *full = &r.full[r.slot];
            uint8_t *stage = r.stage + r.slot * STAGE_SPAN;
            const size_t here = (size_t)chunk_place(c, chunks);
            barrier_wait(&r.empty[r.slot], r.phase ^ 1);
            if (t == 0)
                barrier_expect(full, OUTS_BYTES);
            if (t < TILE_OUT / 16)
                fetch_bytes(stage + COLS_BYTES + t * WEIGHTS_16, w + here * WEIGHTS_16, WEIGHTS_16,
                            full);
            uint32_t to = shared_at(stage);
#pragma unroll
            for (int i = 0; i < TILE_OUT / LANES; i++)
                copy4(to + COLS_BYTES + OUTS_BYTES + (uint32_t)(t + i * LANES) * 4,
                      s + scale[i] + here * 64);
            to += piece;
            const uint8_t *from = x + (size_t)c * (STAGE_K * 2);
#pragma unroll 2
            for (int j = 0; j < EACH && own + j * EVERY < cols; j += 4) {
                const uint4 o = *(const uint4 *)(offset + own * EACH + j);
                const uint32_t each[4] = {o.x, o.y, o.z, o.w};
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    int col = own + (j + i) * EVERY;
                    copy16(to + (uint32_t)(col * 128 + ((t % 8) ^ (col & 7)) * 16), from + each[i]);
                }
            }
            asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(
                             shared_at(full))
                         : "memory");
            r.next();
        }
    }
}

/* A block of 32 k of two outputs as f16: the four registers of each 16 k. */
struct weights {
    uint32_t h0[4], h1[4];
    __device__ __forceinline__ void decode(uint32_t w0, uint32_t w1)
    {
        e2m1_pairs(w0, h0);
        e2m1_pairs(w1, h1);
    }
    __device__ __forceinline__ void multiply(float (&part)[32], uint64_t cols) const
    {
        mma_begin();
        wgmma_f16(part, h0[0], h1[0], h0[1], h1[1], cols, 0);
        wgmma_f16(part, h0[2], h1[2], h0[3], h1[3], cols + 2, 1);
        mma_commit();
    }
};

__device__ __forceinline__ void add_scaled(float (&acc)[32], const float (&part)[32],
                                           float e0, float e1)
{
#pragma unroll
    for (int i = 0; i < 32; i += 4) {
        acc[i] = fmaf(part[i], e0, acc[i]);
        acc[i + 1] = fmaf(part[i + 1], e0, acc[i + 1]);
        acc[i + 2] = fmaf(part[i + 2], e1, acc[i + 2]);
        acc[i + 3] = fmaf(part[i + 3], e1, acc[i + 3]);
    }
}

/* A chunk of 128 k. wide: there are more than 64 columns. */
__device__ __forceinline__ void multiply_chunk(float (&acc)[2][32], const uint8_t *stage,
                                               int out, bool wide)
{
    const int q = (int)threadIdx.x % 4;
    const uint8_t *w = stage + COLS_BYTES + out * 64 + q * 16;
    const uint32_t *s = (const uint32_t *)(stage + COLS_BYTES + OUTS_BYTES) + out;
    const uint4 r0 = *(const uint4 *)w, r1 = *(const uint4 *)(w + 8 * 64);
    const uint32_t w0[4] = {r0.x, r0.y, r0.z, r0.w}, w1[4] = {r1.x, r1.y, r1.z, r1.w};
    const uint32_t s0 = s[0], s1 = s[8];
    const uint64_t cols = columns_at(stage);
    float part[2][32];
    struct weights now, next;
    now.decode(w0[0], w1[0]);
    now.multiply(part[0], cols);
#pragma unroll
    for (int b = 0; b < 4; b++) {
        const uint64_t here = cols + (uint64_t)(b / 2 * (COLS * 128 / 16) + b % 2 * 4);
        const uint64_t there = cols + (uint64_t)((b + 1) / 2 * (COLS * 128 / 16) + (b + 1) % 2 * 4);
        const float e0 = mx_scale(s0, b), e1 = mx_scale(s1, b);
        if (wide)
            now.multiply(part[1], here + 64 * 128 / 16);
        if (b < 3)
            next.decode(w0[b + 1], w1[b + 1]);
        if (wide)
            mma_wait<1>();
        else
            mma_wait<0>();
        add_scaled(acc[0], part[0], e0, e1);
        if (b < 3)
            next.multiply(part[0], there);
        if (wide) {
            if (b < 3)
                mma_wait<1>();
            else
                mma_wait<0>();
            add_scaled(acc[1], part[1], e0, e1);
        }
        now = next;
    }
}

template <int TERMS>
__device__ __forceinline__ void multiply_tiles(const many_experts &a, ring<STAGES> r,
                                               const int *upto, int n_active, int half,
                                               const exchange &e)
{
    const int chunks = rows_of(a).kp / STAGE_K, each = (chunks + RUNS - 1) / RUNS;
    const int t = (int)threadIdx.x % 128, out = half * HALF_OUT + t / 32 * 16 + t % 32 / 4;
    uint32_t turn = 1;
    struct place at = {(int)blockIdx.x};
    for (; find<TERMS>(a, upto, n_active, at); at.tile += (int)gridDim.x, turn ^= 1) {
        float sum[COLS / 2 / TERMS];
        bool wide = (at.to - at.from) * TERMS > 64;
        for (int run = 0; run < RUNS; run++) {
            float acc[2][32] = {};
            int n = min(chunks - run * each, each);
            for (int i = 0; i < n; i++) {
                barrier_wait(&r.full[r.slot], r.phase);
                asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
                if (wide)
                    multiply_chunk(acc, r.stage + r.slot * STAGE_SPAN, out, true);
                else
                    multiply_chunk(acc, r.stage + r.slot * STAGE_SPAN, out, false);
                warp_arrives(&r.empty[r.slot]);
                r.next();
            }
#pragma unroll
            for (int i = 0; i < COLS / 2 / TERMS; i++) {
                const int j = i * TERMS;
                float v = acc[j / 32][j % 32];
                if (TERMS == 2)
                    v += acc[j / 32][j % 32 + 1];
                sum[i] = run ? sum[i] + v : v;
            }
        }
        barrier_wait(e.drained, turn);
        leave_sums<TERMS>(e.room, sum, out);
        warp_arrives(e.filled);
    }
}

/* Hidden values i and i + 1 (i even) of a pair, packed in tile order. */
__device__ __forceinline__ void put_two_hidden(const moe_args &a, int pair, int i, float h0,
                                               float h1)
{
    uint16_t *to = a.h_to + (size_t)pair * (size_t)(a.terms * a.h.kp) + (size_t)tile_place(i);
    float x0 = h0 * a.h_scale, x1 = h1 * a.h_scale;
    for (int t = 0; t < a.terms; t++, to += a.h.kp) {
        __half v0 = __float2half_rn(x0), v1 = __float2half_rn(x1);
        *(uint32_t *)to = __half_as_ushort(v0) | (uint32_t)__half_as_ushort(v1) << 16;
        x0 = isfinite(__half2float(v0)) ? x0 - __half2float(v0) : 0.f;
        x1 = isfinite(__half2float(v1)) ? x1 - __half2float(v1) : 0.f;
    }
}

/* Four outputs of gate and up, interleaved: two hidden values. Behind the last of them zeros follow
 * up to a whole chunk. */
__device__ __forceinline__ void write_hidden(const moe_args &a, int pair, int out, float4 y,
                                             float inv, const float (&b)[4])
{
    const int i = out / 2;
    if (i >= a.h.kp)
        return;
    float h0 = gated(mx_sum(y.x * inv) + b[0], mx_sum(y.y * inv) + b[1], a.act, a.limit);
    float h1 = gated(mx_sum(y.z * inv) + b[2], mx_sum(y.w * inv) + b[3], a.act, a.limit);
    put_two_hidden(a, pair, i, i < a.ffn ? h0 : 0, i + 1 < a.ffn ? h1 : 0);
}

template <int TERMS>
__device__ __forceinline__ void write_tiles(const many_experts &a, const int *upto, int n_active,
                                            int warp, const exchange &e)
{
    const int mine = (int)threadIdx.x % 32 * 4;
    uint32_t turn = 0;
    struct place at = {(int)blockIdx.x};
    for (; find<TERMS>(a, upto, n_active, at); at.tile += (int)gridDim.x, turn ^= 1) {
        const int out = at.out + mine, rows = at.to - at.from;
        float bias[4] = {};
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (!a.down && a.m.gate_up_b.p && out + j < 2 * a.m.ffn)
                bias[j] = weight_at(a.m.gate_up_b, (size_t)at.expert * a.m.gate_up_b_pitch +
                                                       (size_t)(out + j));
        barrier_wait(e.filled, turn);
#pragma unroll 2
        for (int i = warp; i < rows; i += WRITERS) {
            const int pair = a.m.order[at.from + i];
            float4 y = *(const float4 *)(e.room + room_at<TERMS>(i, mine));
            if (!a.down) {
                write_hidden(a.m, pair, out, y, a.m.x_inv[pair / a.m.top_k], bias);
                for (int z = at.out + TILE_OUT + mine; /* the last tile fills up */
                     at.out + TILE_OUT >= 2 * a.m.ffn && z < 2 * a.m.h.kp; z += TILE_OUT)
                    put_two_hidden(a.m, pair, z / 2, 0, 0);
            } else if (out < a.m.in) {
                const float undo = a.m.h_undo;
                *(float4 *)(a.m.down + (size_t)pair * (size_t)a.m.in + (size_t)out) =
                    make_float4(mx_sum(y.x * undo), mx_sum(y.y * undo), mx_sum(y.z * undo),
                                mx_sum(y.w * undo));
            }
        }
        warp_arrives(e.drained);
    }
}

#endif

/* ---- the kernel ----------------------------------------------------------------------------- */

template <int TERMS>
__global__ void __launch_bounds__(THREADS, 1)
    many_experts_kernel(const __grid_constant__ struct many_experts a)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ uint8_t dynamic[];
    __shared__ uint64_t full[STAGES], empty[STAGES], filled, drained;
    __shared__ __align__(16) uint32_t offset[COLS];
    __shared__ int upto[MOST_EXPERTS + 1];
    uint8_t *stage = dynamic + (1024 - shared_at(dynamic) % 1024) % 1024;
    const struct exchange e = {(float *)(stage + STAGES * STAGE_SPAN), &filled, &drained};
    let_next();
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++)
            barrier_init(&full[i], FETCHERS * 32 + 1), barrier_init(&empty[i], 8);
        barrier_init(&filled, 8), barrier_init(&drained, WRITERS);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    after();
    const int n_active = *a.m.n_active;
    if (threadIdx.x < 32)
        count_tiles<TERMS>(a, upto, n_active);
    __syncthreads();
    struct ring<STAGES> r = {stage, full, empty, 0, 0};
    int warp = __shfl_sync(~0u, (int)threadIdx.x / 32, 0);
    if (warp < 4) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (warp < FETCHERS)
            fetch_tiles<TERMS>(a, r, upto, n_active, offset);
        else
            write_tiles<TERMS>(a, upto, n_active, warp - FETCHERS, e);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        multiply_tiles<TERMS>(a, r, upto, n_active, warp / 4 - 1, e);
    }
#endif
}

/* ---- host ----------------------------------------------------------------------------------- */

void cuda_tile_experts(struct kdev *d, const struct moe_args *m)
{
    for (int down = 0; down < 2; down++) {
        struct many_experts a = {};
        a.m = *m;
        a.down = down;
        a.tiles_out = div_up(down ? m->down_m.n : m->gate_up_m.n, TILE_OUT);
        cuda_launch(d, m->terms == 1 ? many_experts_kernel<1> : many_experts_kernel<2>,
                    dim3((unsigned)d->n_sm), THREADS, SHARED, a);
    }
}
