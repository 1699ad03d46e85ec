/* experts_prefill.cu - MXFP4 experts for prefill rows on Hopper: both products of experts.cu, equal
 * to the bit, without the sum. Packed rows are in the order of the experts (router_prefill.cu), so
 * that the copy engine fetches them like weights. A consumer warpgroup decodes weights into
 * registers, scales included, while the previous ones are multiplied.
 */
#include "kernels/cuda/moe/pair_tiles.cuh"
#include "kernels/cuda/dense/wgmma.cuh"

#include <limits.h>

enum {
    WARPGROUPS = 3, /* of consumers */
    THREADS = 128 + WARPGROUPS * 128, /* plus one producer warp and three epilogue warps */
    EPILOGUE_WARPS = 3,
    OUTS = WARPGROUPS * HALF_OUT, /* outputs of a tile */
    STAGE_K = 128,
    OUTS_BYTES = OUTS * STAGE_K / 2,
    SCALES_BYTES = OUTS * 4,
    MAX_COLS = 96, /* most columns of a tile: each lane of the epilogue warps looks one row up */
    BOX_COLS = 48, /* columns of one copy */
    HALF_BYTES = 2 * BOX_COLS * 128,
    /* A stage: two halves of 128 bytes of every column, swizzled; the outputs' weights; their
     * scales. */
    STAGE_SPAN = (2 * HALF_BYTES + OUTS_BYTES + SCALES_BYTES + 1023) / 1024 * 1024,
    STAGES = 4,
    SUM_BYTES = MAX_COLS * OUTS * (int)sizeof(float),
    SHARED = STAGES * STAGE_SPAN + SUM_BYTES + 1024,
};

struct prefill_experts {
    CUtensorMap w, s, x; /* w, s: weights and scales in units of 16 outputs (mem.cu) */
    struct moe_args m;
    bool down; /* the down product; else gate and up */
    int tiles_out;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* ---- device: the shape of the work ---------------------------------------------------------- */

__device__ __forceinline__ int chunks_of(const prefill_experts &a)
{
    return (a.down ? a.m.h.kp : a.m.x.kp) / STAGE_K;
}

/* ---- device: producer ----------------------------------------------------------------------- */

/* One thread. */
template <int TERMS>
__device__ __forceinline__ void fetch_tiles(const prefill_experts &a, pointer_ring r,
                                            const pair_tiles &tiling)
{
    const int chunks = chunks_of(a), sixteens = (a.down ? a.m.down_m.n : a.m.gate_up_m.n) / 16;
    struct tile_coord at = {(int)blockIdx.x};
    for (; tiling.locate(a.m, a.tiles_out, OUTS, at); at.tile += (int)gridDim.x) {
        const int first = at.expert * sixteens + at.out / 16;
        const bool wide = tiling.each[at.i] * TERMS > BOX_COLS;
        const int bytes = (wide ? 4 : 2) * BOX_COLS * 128 + OUTS_BYTES + SCALES_BYTES;
#pragma unroll 1
        for (int c = 0; c < chunks; c++) {
            uint64_t *full = r.filled();
            uint8_t *stage = r.place(), *outs = stage + 2 * HALF_BYTES;
            const int here = chunk_place(c, chunks);
            mbarrier_wait(r.emptied(), r.pos.phase ^ 1);
            bulk_expect(full, bytes);
            copy_pieces(shared_at(outs), &a.w, here, first, full);
            copy_pieces(shared_at(outs + OUTS_BYTES), &a.s, here, first, full);
            for (int h = 0; h < 2; h++) {
                uint8_t *half = stage + h * HALF_BYTES;
                const int k = c * STAGE_K + h * 64, col = at.from * TERMS;
                copy_box(shared_at(half), &a.x, k, col, full);
                if (wide)
                    copy_box(shared_at(half + BOX_COLS * 128), &a.x, k, col + BOX_COLS, full);
            }
            r.next();
        }
    }
}

/* ---- device: consumers ---------------------------------------------------------------------- */

/* What a thread multiplies of a stage: its share of two outputs' four blocks of 32 k, two blocks at
 * a time, and their scales. */
struct words {
    const uint8_t *at;
    uint2 r0, r1, scales;
    __device__ __forceinline__ void load(int b)
    {
        r0 = *(const uint2 *)(at + b * 4), r1 = *(const uint2 *)(at + 8 * 64 + b * 4);
    }
    __device__ __forceinline__ void begin(const uint8_t *outs, int out)
    {
        at = outs + out * 64 + (int)threadIdx.x % 4 * 16;
        scales = *(const uint2 *)(outs + OUTS_BYTES + out / 16 * 64 + out % 8 * 8);
        load(0);
    }
};

/* A block of 32 k of two outputs as f16: four registers for each 16 k. */
struct decoded {
    uint32_t h0[4], h1[4];
    __device__ __forceinline__ void decode(const words &w, int b)
    {
        scaled_pairs(b % 2 ? w.r0.y : w.r0.x, w.scales.x, b, h0);
        scaled_pairs(b % 2 ? w.r1.y : w.r1.x, w.scales.y, b, h1);
    }
    template <int N, int EACH>
    __device__ __forceinline__ void multiply(float (&acc)[EACH], uint64_t cols, int onto)
    {
        asm volatile("wgmma.fence.sync.aligned;" /* the registers may not change after this */
                     : "+r"(h0[0]), "+r"(h0[1]), "+r"(h0[2]), "+r"(h0[3]), "+r"(h1[0]), "+r"(h1[1]),
                       "+r"(h1[2]), "+r"(h1[3])
                     :
                     : "memory");
        wgmma_f16<N>(acc, h0[0], h1[0], h0[1], h1[1], cols, onto);
        wgmma_f16<N>(acc, h0[2], h1[2], h0[3], h1[3], cols + 2, 1);
        wgmma_commit();
    }
};

/* Adds a k split's partial sums of N columns to the splits before it. */
template <int TERMS, int N>
__device__ __forceinline__ void add_split(float (&sum)[MAX_COLS / 2 / TERMS],
                                          const float (&acc)[MAX_COLS / 2], bool first)
{
#pragma unroll
    for (int i = 0; i < N / 2 / TERMS; i++) {
        float v = TERMS == 1 ? acc[i] : acc[2 * i] + acc[2 * i + 1];
        sum[i] = first ? v : sum[i] + v;
    }
}

/* A tile's sums of N columns, for one warpgroup; acc is working space. The arrays have the same
 * size for every N, otherwise the compiler runs out of registers. While a block is multiplied the
 * next one is decoded; between stages the other warpgroups keep the tensor cores busy. */
template <int TERMS, int N>
__device__ __forceinline__ void multiply_tile(pointer_ring &r, int chunks, int out,
                                              float (&acc)[MAX_COLS / 2],
                                              float (&sum)[MAX_COLS / 2 / TERMS])
{
    const int each = (chunks + K_SPLITS - 1) / K_SPLITS;
    float unit[2]; /* row scales of the two outputs */
    int left = each;
#pragma unroll 1
    for (int c = 0; c < chunks; c++) {
        const uint8_t *stage = r.place();
        const uint64_t low = wgmma_descriptor(shared_at(stage)), high = low + HALF_BYTES / 16;
        struct words w;
        struct decoded even, odd;
        mbarrier_wait(r.filled(), r.pos.phase);
        w.begin(stage + 2 * HALF_BYTES, out);
        if (c == 0)
            unit[0] = mx_unit(w.scales.x), unit[1] = mx_unit(w.scales.y);
        even.decode(w, 0);
        even.multiply<N>(acc, low, left < each);
        odd.decode(w, 1);
        odd.multiply<N>(acc, low + 4, 1);
        w.load(2);
        wgmma_wait<1>();
        even.decode(w, 2);
        even.multiply<N>(acc, high, 1);
        wgmma_wait<1>();
        odd.decode(w, 3);
        odd.multiply<N>(acc, high + 4, 1);
        wgmma_wait<0>();
        mbarrier_arrive_warp(r.emptied());
        r.next();
        if (--left == 0 || c + 1 == chunks) {
            add_split<TERMS, N>(sum, acc, c < each);
            left = each;
        }
    }
    const bool empty = (K_SPLITS - 1) * each >= chunks; /* an empty split: -0 becomes 0 */
#pragma unroll
    for (int i = 0; i < N / 2 / TERMS; i++)
        sum[i] = (empty ? sum[i] + 0.f : sum[i]) * unit[i * TERMS / 2 % 2];
}

template <int TERMS>
__device__ __forceinline__ void multiply_tiles(const prefill_experts &a, pointer_ring r,
                                               const pair_tiles &tiling, int group,
                                               const sum_buffer &e)
{
    const int chunks = chunks_of(a), t = (int)threadIdx.x % 128;
    const int out = group * HALF_OUT + t / 32 * 16 + t % 32 / 4;
    uint32_t turn = 1;
    for (int tile = (int)blockIdx.x, i = 0; tiling.reach(a.tiles_out, tile, i);
         tile += (int)gridDim.x, turn ^= 1) {
        float acc[MAX_COLS / 2], sum[MAX_COLS / 2 / TERMS];
        const int cols = tiling.each[i] * TERMS;
        if (cols > 88)
            multiply_tile<TERMS, 96>(r, chunks, out, acc, sum);
        else if (cols > 80)
            multiply_tile<TERMS, 88>(r, chunks, out, acc, sum);
        else if (cols > 72)
            multiply_tile<TERMS, 80>(r, chunks, out, acc, sum);
        else if (cols > 64)
            multiply_tile<TERMS, 72>(r, chunks, out, acc, sum);
        else if (cols > 48)
            multiply_tile<TERMS, 64>(r, chunks, out, acc, sum);
        else
            multiply_tile<TERMS, 48>(r, chunks, out, acc, sum);
        mbarrier_wait(e.drained, turn);
        store_sums<TERMS, OUTS>(e.sums, sum, out);
        mbarrier_arrive_warp(e.filled);
    }
}

/* ---- device: epilogue ----------------------------------------------------------------------- */

/* An epilogue warp's rows of a tile, in twos: 2 warp, 2 warp + 1, 2 (warp + EPILOGUE_WARPS), ...
 * Lane l looks up the pair and the factor of the l-th of them. */
struct own_rows {
    int pair;
    float inv;
    __device__ __forceinline__ own_rows(const prefill_experts &a, const tile_coord &at, int warp)
    {
        const int l = (int)threadIdx.x % 32, i = (l / 2 * EPILOGUE_WARPS + warp) * 2 + l % 2;
        pair = __ldcg(a.m.order + min(at.from + i, at.to - 1));
        inv = a.down ? a.m.h_undo : __ldcg(a.m.x_inv + pair / a.m.top_k);
    }
};

/* A warp takes two rows at a time; each lane has STEPS times four outputs of them. */
enum { FOURS = OUTS / 4, STEPS = 2 * FOURS / 32 };

/* A lane's share of a warp's n-th two rows as they were summed. The dependency chains that follow
 * are long, and a scheduler has only one epilogue warp, so all steps run interleaved and only the
 * stores branch. */
struct two_rows {
    int i[STEPS], pair[STEPS]; /* row of the tile; may be beyond its end */
    float4 y[STEPS];
    template <int TERMS>
    __device__ __forceinline__ void load(const own_rows &own, int n, int warp, const float *scratch)
    {
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            const int four = (int)threadIdx.x % 32 + 32 * s, second = four / FOURS;
            i[s] = (n * EPILOGUE_WARPS + warp) * 2 + second;
            pair[s] = __shfl_sync(~0u, own.pair, 2 * n + second);
            const float inv = __shfl_sync(~0u, own.inv, 2 * n + second);
            const float4 v =
                *(const float4 *)(scratch + sum_at<TERMS, OUTS>(i[s], four % FOURS * 4));
            y[s] = make_float4(mx_sum(v.x * inv), mx_sum(v.y * inv), mx_sum(v.z * inv),
                               mx_sum(v.w * inv));
        }
    }
};

/* The first of a lane's four outputs of a step; the same for all rows. */
__device__ __forceinline__ int own_output(const tile_coord &at, int step)
{
    return at.out + ((int)threadIdx.x % 32 + 32 * step) % FOURS * 4;
}

template <int TERMS>
__device__ __forceinline__ void write_down(const prefill_experts &a, const tile_coord &at, int warp,
                                           const own_rows &own, const float *scratch)
{
    for (int n = 0; (n * EPILOGUE_WARPS + warp) * 2 < at.to - at.from; n++) {
        struct two_rows two;
        two.load<TERMS>(own, n, warp, scratch);
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            const int out = own_output(at, s);
            if (at.from + two.i[s] < at.to && out < a.m.in)
                *(float4 *)(a.m.down + (size_t)two.pair[s] * (size_t)a.m.in + (size_t)out) =
                    two.y[s];
        }
    }
}

/* Stores hidden values i and i + 1 (i even) of packed row p, in tile order. */
template <int TERMS>
__device__ __forceinline__ void store_two_hidden(const moe_args &a, int p, int i, float h0,
                                                 float h1)
{
    uint16_t *to = a.h_to + (size_t)p * (size_t)(TERMS * a.h.kp) + (size_t)tile_place(i);
    float x0 = h0 * a.h_scale, x1 = h1 * a.h_scale;
#pragma unroll
    for (int t = 0; t < TERMS; t++, to += a.h.kp)
        *(uint32_t *)to = split_two<__half>(x0, x1);
}

/* Gate and up, interleaved, become hidden values; zeros after the last. CLAMPED: the activation is
 * ACT_SWIGLU_CLAMP, else a.m.act. */
template <int TERMS, bool CLAMPED>
__device__ __forceinline__ void write_hidden(const prefill_experts &a, const tile_coord &at,
                                             int warp, const own_rows &own,
                                             const float4 (&bias)[STEPS], const float *scratch)
{
    const int act = CLAMPED ? (int)ACT_SWIGLU_CLAMP : a.m.act;
    for (int n = 0; (n * EPILOGUE_WARPS + warp) * 2 < at.to - at.from; n++) {
        struct two_rows two;
        two.load<TERMS>(own, n, warp, scratch);
        float2 h[STEPS];
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            const float4 y = two.y[s], b = bias[s];
            const int i = own_output(at, s) / 2;
            h[s] = make_float2(gated(y.x + b.x, y.y + b.y, act, a.m.limit),
                               gated(y.z + b.z, y.w + b.w, act, a.m.limit));
            h[s].x = i < a.m.ffn ? h[s].x : 0, h[s].y = i + 1 < a.m.ffn ? h[s].y : 0;
        }
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            const int i = own_output(at, s) / 2, p = at.from + two.i[s];
            if (p < at.to && i < a.m.h.kp)
                store_two_hidden<TERMS>(a.m, p, i, h[s].x, h[s].y);
        }
    }
}

/* The last tile of outputs pads the hidden rows with zeros. */
template <int TERMS>
__device__ __forceinline__ void fill_hidden(const prefill_experts &a, const tile_coord &at,
                                            int warp)
{
    const int first = (at.out + OUTS) / 2, lane = (int)threadIdx.x % 32;
    if (a.down || first < a.m.ffn)
        return;
    for (int p = at.from + warp; p < at.to; p += EPILOGUE_WARPS)
        for (int i = first + lane * 2; i < a.m.h.kp; i += 64)
            store_two_hidden<TERMS>(a.m, p, i, 0, 0);
}

template <int TERMS>
__device__ __forceinline__ void write_tiles(const prefill_experts &a, const pair_tiles &tiling,
                                            int warp, const sum_buffer &e)
{
    const struct vec b = a.m.gate_up_b;
    uint32_t turn = 0;
    struct tile_coord at = {(int)blockIdx.x};
    for (; tiling.locate(a.m, a.tiles_out, OUTS, at); at.tile += (int)gridDim.x, turn ^= 1) {
        const struct own_rows own(a, at, warp);
        float4 bias[STEPS]; /* a lane has the same outputs of all its rows */
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            const int out = own_output(at, s);
            bias[s] = make_float4(0, 0, 0, 0);
            if (!a.down && b.p && out < 2 * a.m.ffn)
                bias[s] = four_weights(b, INT_MAX, at.expert * (int)a.m.gate_up_b_pitch + out);
        }
        fill_hidden<TERMS>(a, at, warp);
        mbarrier_wait(e.filled, turn);
        if (a.down)
            write_down<TERMS>(a, at, warp, own, e.sums);
        else if (a.m.act == ACT_SWIGLU_CLAMP)
            write_hidden<TERMS, true>(a, at, warp, own, bias, e.sums);
        else
            write_hidden<TERMS, false>(a, at, warp, own, bias, e.sums);
        mbarrier_arrive_warp(e.drained);
    }
}

#endif

/* ---- the kernel ----------------------------------------------------------------------------- */

template <int TERMS>
__global__ void __launch_bounds__(THREADS, 1)
    prefill_experts_kernel(const __grid_constant__ struct prefill_experts a)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ uint8_t dynamic[];
    __shared__ uint64_t full[STAGES], empty[STAGES], filled, drained;
    __shared__ struct pair_tiles tiling;
    uint8_t *stage = align_stages(dynamic);
    const struct sum_buffer e = {(float *)(stage + STAGES * STAGE_SPAN), &filled, &drained};
    pdl_trigger();
    if (threadIdx.x == 0) {
        init_ring(full, empty, STAGES, 1, 4 * WARPGROUPS);
        mbarrier_init(&filled, warp_arrivals(4 * WARPGROUPS)),
            mbarrier_init(&drained, warp_arrivals(EPILOGUE_WARPS));
        mbarrier_init_fence();
    }
    pdl_wait_trigger();
    if (threadIdx.x < 32)
        tiling.make<MAX_COLS / TERMS>(a.m);
    __syncthreads();
    pointer_ring r = {stage, full, empty, STAGES, STAGE_SPAN, {}};
    int warp = __shfl_sync(~0u, (int)threadIdx.x / 32, 0);
    if (warp < 4) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 80;");
        if (threadIdx.x == 0)
            fetch_tiles<TERMS>(a, r, tiling);
        if (warp > 0)
            write_tiles<TERMS>(a, tiling, warp - 1, e);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 144;");
        multiply_tiles<TERMS>(a, r, tiling, warp / 4 - 1, e);
    }
#endif
}

/* ---- host ----------------------------------------------------------------------------------- */

template <int TERMS> static void run(struct kdev *d, const struct moe_args *m, bool down)
{
    struct prefill_experts a = {};
    a.m = *m;
    a.down = down;
    const struct mat *w = down ? &m->down_m : &m->gate_up_m;
    const struct packed *x = down ? &m->h : &m->x;
    a.tiles_out = div_up(w->n, OUTS);
    const int groups = (int)w->scale_pitch / 4, sixteens = m->n_expert * w->n / 16;
    cuda_piece_map(d, &a.w, w->w, 1024, groups, sixteens, OUTS / 16);
    cuda_piece_map(d, &a.s, w->scale, 64, groups, sixteens, OUTS / 16);
    cuda_tile_map(d, &a.x, x->x, m->rows * m->top_k * TERMS, x->kp, (size_t)x->kp * 2, STAGE_K / 2,
                  BOX_COLS);
    cuda_launch(d, prefill_experts_kernel<TERMS>, dim3((unsigned)d->gpu.n_sm), THREADS, SHARED, a);
}

void cuda_prefill_experts(struct kdev *d, const struct moe_args *m)
{
    for (int down = 0; down < 2; down++)
        m->terms == 1 ? run<1>(d, m, down) : run<2>(d, m, down);
}
