/* cuda_tile_moe.cu - MXFP4 experts for many rows, on Hopper: both products of cuda_experts.cu, bit
 * for bit, without the sum. Packed rows lie in the order of the experts (cuda_tile_route.cu), so
 * that the copy engine fetches them like weights. How many columns a tile has depends on how many
 * pairs an expert may expect.
 *
 * As in cuda_product.cuh a block of 32 k is summed from zero and then added with its scale. While a
 * warpgroup adds, the others multiply; it decodes while its own block is multiplied.
 */
#include "kernels/cuda_experts.cuh"
#include "kernels/cuda_tile.cuh"

#include <limits.h>

enum {
    GROUPS = 3, /* warpgroups that multiply */
    THREADS = 128 + GROUPS * 128, /* a warp fetches, three write */
    WRITERS = 3,
    OUTS = GROUPS * HALF_OUT, /* of a tile */
    STAGE_K = 128,
    OUTS_BYTES = OUTS * STAGE_K / 2,
    SCALES_BYTES = OUTS * 4,
    MOST_SHARED = 227 << 10,
};

/* N: columns of a tile at most. A stage: twice 128 bytes of every column, swizzled; then the
 * outputs' words, and their scales. */
template <int N> struct form {
    enum {
        HALF_BYTES = N * 128,
        STAGE_SPAN = (2 * HALF_BYTES + OUTS_BYTES + SCALES_BYTES + 1023) / 1024 * 1024,
        ROOM_BYTES = N * OUTS * (int)sizeof(float),
        FIT = (MOST_SHARED - 1024 - 4096 - ROOM_BYTES) / STAGE_SPAN,
        STAGES = FIT < 6 ? FIT : 6,
        SHARED = STAGES * STAGE_SPAN + ROOM_BYTES + 1024,
    };
};

struct many_experts {
    CUtensorMap w, s, x; /* words and scales by sixteens of outputs: cuda_mem.cu */
    struct moe_args m;
    bool down; /* which of the two products */
    int tiles_out;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* ---- device: the shape of the work ---------------------------------------------------------- */

/* A tile: the pairs from .. to of an expert, outputs out .. + OUTS. */
struct place {
    int tile, i; /* the i-th active expert */
    int expert, from, to, out;
};

/* upto[i]: tiles of pairs of the active experts before the i-th; the last entry: of all. False when
 * there is no tile any more. Tiles of one expert and the same outputs follow each other. */
__device__ __forceinline__ bool find(const many_experts &a, const int *upto, int n_active,
                                     struct place &at)
{
    if (at.tile >= upto[n_active] * a.tiles_out)
        return false;
    while (at.tile >= upto[at.i + 1] * a.tiles_out)
        at.i++;
    int tiles = upto[at.i + 1] - upto[at.i], in = at.tile - upto[at.i] * a.tiles_out;
    int begin = __ldcg(a.m.begin + at.i), end = __ldcg(a.m.begin + at.i + 1);
    int each = (end - begin + tiles - 1) / tiles;
    at.expert = __ldcg(a.m.active + at.i);
    at.from = begin + in % tiles * each;
    at.to = min(at.from + each, end);
    at.out = in / tiles * OUTS;
    return true;
}

/* One warp. */
template <int TERMS, int N>
__device__ __forceinline__ void count_tiles(const many_experts &a, int *upto, int n_active)
{
    int lane = (int)threadIdx.x, sum = 0;
    for (int first = 0; first < n_active; first += 32) {
        int i = first + lane, n = 0;
        if (i < n_active)
            n = (__ldcg(a.m.begin + i + 1) - __ldcg(a.m.begin + i) + N / TERMS - 1) / (N / TERMS);
        int before = running_sum(n);
        if (i < n_active)
            upto[i + 1] = sum + before;
        sum += __shfl_sync(~0u, before, 31);
    }
    if (lane == 0)
        upto[0] = 0;
}

__device__ __forceinline__ int chunks_of(const many_experts &a)
{
    return (a.down ? a.m.h.kp : a.m.x.kp) / STAGE_K;
}

/* ---- device: fetching ----------------------------------------------------------------------- */

/* One thread. */
template <int TERMS, int N>
__device__ __forceinline__ void fetch_tiles(const many_experts &a, ring<form<N>::STAGES> r,
                                            const int *upto, int n_active)
{
    using F = form<N>;
    const int chunks = chunks_of(a), sixteens = (a.down ? a.m.down_m.n : a.m.gate_up_m.n) / 16;
    struct place at = {(int)blockIdx.x};
    for (; find(a, upto, n_active, at); at.tile += (int)gridDim.x) {
        const int first = at.expert * sixteens + at.out / 16;
#pragma unroll 1
        for (int c = 0; c < chunks; c++) {
            uint64_t *full = &r.full[r.slot];
            uint8_t *stage = r.stage + r.slot * F::STAGE_SPAN, *outs = stage + 2 * F::HALF_BYTES;
            const int here = chunk_place(c, chunks);
            barrier_wait(&r.empty[r.slot], r.phase ^ 1);
            barrier_expect(full, 2 * F::HALF_BYTES + OUTS_BYTES + SCALES_BYTES);
            fetch_pieces(outs, &a.w, here, first, full);
            fetch_pieces(outs + OUTS_BYTES, &a.s, here, first, full);
            for (int h = 0; h < 2; h++)
                fetch_box(stage + h * F::HALF_BYTES, &a.x, c * STAGE_K + h * 64, at.from * TERMS,
                          full);
            r.next();
        }
    }
}

/* ---- device: multiplying -------------------------------------------------------------------- */

/* Two outputs' share of two blocks of 32 k: a word each. */
struct two_blocks {
    uint2 r0, r1;
    __device__ __forceinline__ void load(const uint8_t *outs, int out, int b)
    {
        const uint8_t *w = outs + out * 64 + (int)threadIdx.x % 4 * 16 + b * 4;
        r0 = *(const uint2 *)w, r1 = *(const uint2 *)(w + 8 * 64);
    }
};

/* A block of 32 k of two outputs as f16: the four registers of each 16 k. */
struct weights {
    uint32_t h0[4], h1[4];
    __device__ __forceinline__ void decode(const two_blocks &w, int b)
    {
        e2m1_pairs(b % 2 ? w.r0.y : w.r0.x, h0);
        e2m1_pairs(b % 2 ? w.r1.y : w.r1.x, h1);
    }
    template <int EACH>
    __device__ __forceinline__ void multiply(float (&part)[EACH], uint64_t cols)
    {
        asm volatile("wgmma.fence.sync.aligned;" /* after which none of these may change */
                     : "+r"(h0[0]), "+r"(h0[1]), "+r"(h0[2]), "+r"(h0[3]), "+r"(h1[0]),
                       "+r"(h1[1]), "+r"(h1[2]), "+r"(h1[3])
                     :
                     : "memory");
        wgmma_f16(part, h0[0], h1[0], h0[1], h1[1], cols, 0);
        wgmma_f16(part, h0[2], h1[2], h0[3], h1[3], cols + 2, 1);
        mma_commit();
    }
};

template <int EACH>
__device__ __forceinline__ void add_scaled(float (&acc)[EACH], const float (&part)[EACH], float e0,
                                           float e1)
{
#pragma unroll
    for (int i = 0; i < EACH; i += 4) {
        acc[i] = fmaf(part[i], e0, acc[i]);
        acc[i + 1] = fmaf(part[i + 1], e0, acc[i + 1]);
        acc[i + 2] = fmaf(part[i + 2], e1, acc[i + 2]);
        acc[i + 3] = fmaf(part[i + 3], e1, acc[i + 3]);
    }
}

/* The run's sums onto those of the runs before it. */
template <int TERMS, int EACH>
__device__ __forceinline__ void add_run(float (&sum)[EACH / TERMS], const float (&acc)[EACH],
                                        bool first)
{
#pragma unroll
    for (int i = 0; i < EACH / TERMS; i++) {
        float v = TERMS == 1 ? acc[i] : acc[2 * i] + acc[2 * i + 1];
        sum[i] = first ? v : sum[i] + v;
    }
}

/* A tile's sums, for one of the warpgroups. The words of the next chunk are read while the last
 * block of this one is multiplied. */
template <int TERMS, int N>
__device__ __forceinline__ void multiply_tile(ring<form<N>::STAGES> &r, int chunks, int out,
                                              float (&sum)[N / 2 / TERMS])
{
    using F = form<N>;
    const int each = (chunks + RUNS - 1) / RUNS;
    float acc[N / 2] = {}, part[N / 2];
    struct two_blocks w;
    struct weights now;
    int left = each;
    barrier_wait(&r.full[r.slot], r.phase);
    w.load(r.stage + r.slot * F::STAGE_SPAN + 2 * F::HALF_BYTES, out, 0);
    now.decode(w, 0);
#pragma unroll 1
    for (int c = 0; c < chunks; c++) {
        const uint8_t *stage = r.stage + r.slot * F::STAGE_SPAN, *outs = stage + 2 * F::HALF_BYTES;
        const uint64_t cols = columns_at(stage);
        const uint2 s = *(const uint2 *)(outs + OUTS_BYTES + out / 16 * 64 + out % 8 * 8);
        const int slot = r.slot;
        r.next();
#pragma unroll
        for (int b = 0; b < 4; b++) {
            struct weights next;
            now.multiply(part, cols + (uint64_t)(b / 2 * (F::HALF_BYTES / 16) + b % 2 * 4));
            if (b == 1)
                w.load(outs, out, 2);
            if (b == 3 && c + 1 < chunks) {
                barrier_wait(&r.full[r.slot], r.phase);
                w.load(r.stage + r.slot * F::STAGE_SPAN + 2 * F::HALF_BYTES, out, 0);
            }
            next.decode(w, b + 1);
            mma_wait<0>();
            if (b == 3)
                warp_arrives(&r.empty[slot]);
            add_scaled(acc, part, mx_scale(s.x, b), mx_scale(s.y, b));
            now = next;
        }
        if (--left == 0 || c + 1 == chunks) {
            add_run<TERMS>(sum, acc, c < each);
            left = each;
#pragma unroll
            for (int i = 0; i < N / 2; i++)
                acc[i] = 0;
        }
    }
    if ((RUNS - 1) * each >= chunks) /* a run without chunks: minus zero becomes zero */
        add_run<TERMS>(sum, acc, false);
}

template <int TERMS, int N>
__device__ __forceinline__ void multiply_tiles(const many_experts &a, ring<form<N>::STAGES> r,
                                               const int *upto, int n_active, int group,
                                               const exchange &e)
{
    const int chunks = chunks_of(a), t = (int)threadIdx.x % 128;
    const int out = group * HALF_OUT + t / 32 * 16 + t % 32 / 4;
    uint32_t turn = 1;
    for (int tile = (int)blockIdx.x; tile < upto[n_active] * a.tiles_out;
         tile += (int)gridDim.x, turn ^= 1) {
        float sum[N / 2 / TERMS];
        multiply_tile<TERMS, N>(r, chunks, out, sum);
        barrier_wait(e.drained, turn);
        leave_sums<TERMS, OUTS>(e.room, sum, out);
        warp_arrives(e.filled);
    }
}

/* ---- device: writing ------------------------------------------------------------------------ */

/* Hidden values i and i + 1 (i even) of packed row p, in tile order. */
__device__ __forceinline__ void put_two_hidden(const moe_args &a, int p, int i, float h0, float h1)
{
    uint16_t *to = a.h_to + (size_t)p * (size_t)(a.terms * a.h.kp) + (size_t)tile_place(i);
    float x0 = h0 * a.h_scale, x1 = h1 * a.h_scale;
    for (int t = 0; t < a.terms; t++, to += a.h.kp) {
        __half v0 = __float2half_rn(x0), v1 = __float2half_rn(x1);
        *(uint32_t *)to = __half_as_ushort(v0) | (uint32_t)__half_as_ushort(v1) << 16;
        x0 = isfinite(__half2float(v0)) ? x0 - __half2float(v0) : 0.f;
        x1 = isfinite(__half2float(v1)) ? x1 - __half2float(v1) : 0.f;
    }
}

/* Four outputs of gate and up, interleaved: two hidden values of packed row p. */
__device__ __forceinline__ void write_hidden(const moe_args &a, int p, int out, float4 y,
                                             float inv, float4 b)
{
    const int i = out / 2;
    if (i >= a.h.kp)
        return;
    float h0 = gated(mx_sum(y.x * inv) + b.x, mx_sum(y.y * inv) + b.y, a.act, a.limit);
    float h1 = gated(mx_sum(y.z * inv) + b.z, mx_sum(y.w * inv) + b.w, a.act, a.limit);
    put_two_hidden(a, p, i, i < a.ffn ? h0 : 0, i + 1 < a.ffn ? h1 : 0);
}

/* One warp's rows of a tile, by twos: 2 warp, 2 warp + 1, 2 (warp + WRITERS), .... Lane l has
 * looked up pair and factor of the l-th of them. */
struct own_rows {
    int pair;
    float inv;
    __device__ __forceinline__ own_rows(const many_experts &a, const place &at, int warp)
    {
        const int l = (int)threadIdx.x % 32, i = (l / 2 * WRITERS + warp) * 2 + l % 2;
        pair = __ldcg(a.m.order + min(at.from + i, at.to - 1));
        inv = a.down ? a.m.h_undo : __ldcg(a.m.x_inv + pair / a.m.top_k);
    }
};

/* Four outputs of row i of a tile. */
__device__ __forceinline__ void write_four(const many_experts &a, const place &at, int i, int out,
                                           int pair, float inv, float4 y, float4 bias)
{
    if (a.down) {
        if (out < a.m.in)
            *(float4 *)(a.m.down + (size_t)pair * (size_t)a.m.in + (size_t)out) = make_float4(
                mx_sum(y.x * inv), mx_sum(y.y * inv), mx_sum(y.z * inv), mx_sum(y.w * inv));
        return;
    }
    write_hidden(a.m, at.from + i, out, y, inv, bias);
    for (int z = out + OUTS; at.out + OUTS >= 2 * a.m.ffn && z < 2 * a.m.h.kp; z += OUTS)
        put_two_hidden(a.m, at.from + i, z / 2, 0, 0); /* the last tile fills up */
}

template <int TERMS>
__device__ __forceinline__ void write_tiles(const many_experts &a, const int *upto, int n_active,
                                            int warp, const exchange &e)
{
    enum { FOURS = OUTS / 4, STEPS = 2 * FOURS / 32 }; /* of a row; of two rows */
    const int lane = (int)threadIdx.x % 32;
    uint32_t turn = 0;
    struct place at = {(int)blockIdx.x};
    for (; find(a, upto, n_active, at); at.tile += (int)gridDim.x, turn ^= 1) {
        const int rows = at.to - at.from;
        const struct own_rows own(a, at, warp);
        float4 bias[STEPS]; /* a lane has the same outputs of all its rows */
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            const int out = at.out + (lane + 32 * step) % FOURS * 4;
            bias[step] = make_float4(0, 0, 0, 0);
            if (!a.down && a.m.gate_up_b.p && out < 2 * a.m.ffn)
                bias[step] = four_weights(a.m.gate_up_b, INT_MAX,
                                          at.expert * (int)a.m.gate_up_b_pitch + out);
        }
        barrier_wait(e.filled, turn);
        for (int n = 0; (n * WRITERS + warp) * 2 < rows; n++)
#pragma unroll
            for (int step = 0; step < STEPS; step++) {
                const int four = lane + 32 * step, second = four / FOURS;
                const int i = (n * WRITERS + warp) * 2 + second, mine = four % FOURS * 4;
                const int pair = __shfl_sync(~0u, own.pair, 2 * n + second);
                const float inv = __shfl_sync(~0u, own.inv, 2 * n + second);
                if (i < rows)
                    write_four(a, at, i, at.out + mine, pair, inv,
                               *(const float4 *)(e.room + room_at<TERMS, OUTS>(i, mine)),
                               bias[step]);
            }
        warp_arrives(e.drained);
    }
}

#endif

/* ---- the kernel ----------------------------------------------------------------------------- */

template <int TERMS, int N>
__global__ void __launch_bounds__(THREADS, 1)
    many_experts_kernel(const __grid_constant__ struct many_experts a)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    using F = form<N>;
    extern __shared__ uint8_t dynamic[];
    __shared__ uint64_t full[F::STAGES], empty[F::STAGES], filled, drained;
    __shared__ int upto[MOST_EXPERTS + 1];
    uint8_t *stage = dynamic + (1024 - shared_at(dynamic) % 1024) % 1024;
    const struct exchange e = {(float *)(stage + F::STAGES * F::STAGE_SPAN), &filled, &drained};
    let_next();
    if (threadIdx.x == 0) {
        for (int i = 0; i < F::STAGES; i++)
            barrier_init(&full[i], 1), barrier_init(&empty[i], 4 * GROUPS);
        barrier_init(&filled, 4 * GROUPS), barrier_init(&drained, WRITERS);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    after();
    const int n_active = __ldcg(a.m.n_active);
    if (threadIdx.x < 32)
        count_tiles<TERMS, N>(a, upto, n_active);
    __syncthreads();
    struct ring<F::STAGES> r = {stage, full, empty, 0, 0};
    int warp = __shfl_sync(~0u, (int)threadIdx.x / 32, 0);
    if (warp < 4) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
        if (threadIdx.x == 0)
            fetch_tiles<TERMS, N>(a, r, upto, n_active);
        if (warp > 0)
            write_tiles<TERMS>(a, upto, n_active, warp - 1, e);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 152;");
        multiply_tiles<TERMS, N>(a, r, upto, n_active, warp / 4 - 1, e);
    }
#endif
}

/* ---- host ----------------------------------------------------------------------------------- */

template <int TERMS, int N>
static void run(struct kdev *d, const struct moe_args *m, bool down)
{
    struct many_experts a = {};
    a.m = *m;
    a.down = down;
    const struct mat *w = down ? &m->down_m : &m->gate_up_m;
    const struct packed *x = down ? &m->h : &m->x;
    a.tiles_out = div_up(w->n, OUTS);
    const int groups = (int)w->scale_pitch / 4, sixteens = m->n_expert * w->n / 16;
    cuda_piece_map(d, &a.w, w->w, 1024, groups, sixteens, OUTS / 16);
    cuda_piece_map(d, &a.s, w->scale, 64, groups, sixteens, OUTS / 16);
    cuda_tile_map(d, &a.x, x->x, m->rows * m->top_k * TERMS, x->kp, (size_t)x->kp * 2,
                  STAGE_K / 2, N);
    cuda_launch(d, many_experts_kernel<TERMS, N>, dim3((unsigned)d->n_sm), THREADS, form<N>::SHARED,
                a);
}

/* What an expert with a few pairs more than the mean costs in tiles of so many columns: a tile that
 * is begun is multiplied whole, and its weights are decoded again. */
static int cost_of(const struct moe_args *m, int columns)
{
    enum { DECODING = 24 }; /* columns that take as long */
    float mean = (float)(m->rows * m->top_k) / (float)m->n_expert;
    int some = (int)((mean + sqrtf(mean)) * (float)m->terms);
    return div_up(some, columns) * (columns + DECODING);
}

template <int TERMS> static void run_both(struct kdev *d, const struct moe_args *m)
{
    int c48 = cost_of(m, 48), c72 = cost_of(m, 72), c88 = cost_of(m, 88);
    for (int down = 0; down < 2; down++)
        if (c88 <= c72 && c88 <= c48)
            run<TERMS, 88>(d, m, down);
        else
            c72 <= c48 ? run<TERMS, 72>(d, m, down) : run<TERMS, 48>(d, m, down);
}

void cuda_tile_experts(struct kdev *d, const struct moe_args *m)
{
    m->terms == 1 ? run_both<1>(d, m) : run_both<2>(d, m);
}
