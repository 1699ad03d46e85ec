/* experts_prefill.cu - experts for prefill rows on Hopper: MXFP4, equal to experts.cu to the bit,
 * and bf16 in halves (EXPERT_HALVES), stored as such or packed, equal to product_kernel and
 * experts_few.cu; both products, without the sum. Packed rows are in the order of the experts
 * (router_prefill.cu), so that the copy engine fetches them like weights. A consumer warpgroup
 * brings weights into registers, MXFP4 and packed ones unpacked with their scales, while the
 * previous ones are multiplied.
 */
#include "kernels/cuda/moe/pair_tiles.cuh"
#include "kernels/cuda/dense/wgmma.cuh"

#include <limits.h>
#include <type_traits>

enum {
    WARPGROUPS = 3, /* of consumers */
    THREADS = 128 + WARPGROUPS * 128, /* plus one producer warp and three epilogue warps */
    EPILOGUE_WARPS = 3,
    OUTS = WARPGROUPS * HALF_OUT, /* outputs of a tile */
    MAX_COLS = 96, /* most columns of a tile: each lane of the epilogue warps looks one row up */
    BOX_COLS = 48, /* columns of one copy */
    FEW_COLS = 16, /* the same for tiles of so few */
    PART_BYTES = 2 * BOX_COLS * 128,
    SUM_BYTES = MAX_COLS * OUTS * (int)sizeof(float),
    OWN_BYTES = 6 << 10, /* static shared memory, and what aligns stages */
};

/* What a stage holds: parts of 128 bytes (64 of k) of every column, swizzled; then weights. */
template <int BYTES, int PARTS_> struct stage_form {
    enum {
        PARTS = PARTS_, K = PARTS * 64, WEIGHTS_AT = PARTS * PART_BYTES, WEIGHT_BYTES = BYTES,
        SPAN = (WEIGHTS_AT + BYTES + 1023) / 1024 * 1024,
        STAGES = ((int)MAX_SMEM - (int)OWN_BYTES - (int)SUM_BYTES) / SPAN,
        SHARED = STAGES * SPAN + (int)SUM_BYTES + 1024,
    };
};
/* MXFP4: the outputs' weights in the order of memory (mem.cu), then their scales. */
struct mx_form : stage_form<OUTS * 64 + OUTS * 4, 2> {
    enum { SCALES_AT = OUTS * 64, FETCHED = WEIGHT_BYTES };
    typedef __half term;
};
/* bf16: for each of two chunks of k, 64 bytes of each output, one output after the other. A tile of
 * gate and up has OUTS / 2 outputs of gate, then as many of up, which a thread multiplies in pairs:
 * its sums are in the order of interleaved outputs, as those of MXFP4. */
struct bf16_form : stage_form<OUTS * 128, 1> {
    enum { CHUNK_BYTES = OUTS * 64, FETCHED = WEIGHT_BYTES };
    typedef bf16 term;
};

/* The same from packed experts: for each of two chunks of k, what tiles of 16 outputs have in
 * memory (expert_blocks.cuh), in two halves: gate and up, or half of the outputs each. */
constexpr int half_bytes(int form) /* in a stage: aligned for TMA */
{
    return ((int)OUTS / 2 / (int)TILE_OUTS * chunk_bytes(form) + 127) / 128 * 128;
}
template <int TYPE> struct blocks_form : stage_form<4 * half_bytes(TYPE), 1> {
    enum {
        FORM = TYPE, HALF = half_bytes(TYPE), CHUNK_BYTES = 2 * HALF,
        FETCHED = 2 * OUTS / TILE_OUTS * chunk_bytes(TYPE),
    };
    typedef bf16 term;
};

struct prefill_experts {
    CUtensorMap w, s, x; /* MXFP4: w, s are weights and scales in units of 16 outputs (mem.cu);
                            bf16: w has pieces of a chunk of a tile or output; packed: of each 16;
                            no s */
    CUtensorMap few;     /* x in boxes of FEW_COLS */
    struct moe_args m;
    bool down; /* the down product; else gate and up */
    int tiles_out;
    int piece_shift;          /* bf16: a piece has 1 << piece_shift outputs; 0: k is in order */
    struct ksplit k;          /* of what a stage fetches, and */
    uint32_t inverse_of_each; /* 2^20 over the chunks of a k split, rounded up */
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* ---- device: the shape of the work ---------------------------------------------------------- */

/* The packed rows of the product. */
__device__ __forceinline__ const packed &rows_of(const prefill_experts &a)
{
    return a.down ? a.m.h : a.m.x;
}

/* ---- device: producer ----------------------------------------------------------------------- */

/* The place of chunk c in a tile; behind the end of k, c itself. With divisions, the thread that
 * fetches would be slower than those that multiply. */
__device__ __forceinline__ int place_of(const prefill_experts &a, int c)
{
    const int split = (int)((uint32_t)c * a.inverse_of_each >> 20);
    return c < a.k.chunks ? chunks_before(a.k, c - split * a.k.each) + split : c;
}

__device__ __forceinline__ void fetch_weights(mx_form, const prefill_experts &a,
                                              const tile_coord &at, int stage, uint32_t to,
                                              uint64_t *full)
{
    const int sixteens = (a.down ? a.m.down_m.n : a.m.gate_up_m.n) / 16;
    const int first = at.expert * sixteens + at.out / 16;
    const int here = place_of(a, stage);
    copy_pieces(to, &a.w, here, first, full);
    copy_pieces(to + mx_form::SCALES_AT, &a.s, here, first, full);
}

/* A chunk behind the end of k has zeros. */
__device__ __forceinline__ void fetch_weights(bf16_form, const prefill_experts &a,
                                              const tile_coord &at, int stage, uint32_t to,
                                              uint64_t *full)
{
    const mat &m = a.down ? a.m.down_m : a.m.gate_up_m;
    const int first = (at.expert * m.n + (a.down ? at.out : at.out / 2)) >> a.piece_shift;
    const int second = first + ((a.down ? (int)OUTS / 2 : a.m.ffn) >> a.piece_shift);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int c = 2 * stage + i, place = a.piece_shift ? place_of(a, c) : c;
        const uint32_t chunk = to + (uint32_t)(i * bf16_form::CHUNK_BYTES);
        copy_pieces(chunk, &a.w, place, first, full);
        copy_pieces(chunk + bf16_form::CHUNK_BYTES / 2, &a.w, place, second, full);
    }
}

template <int FORM>
__device__ __forceinline__ void fetch_weights(blocks_form<FORM>, const prefill_experts &a,
                                              const tile_coord &at, int stage, uint32_t to,
                                              uint64_t *full)
{
    typedef blocks_form<FORM> form;
    const mat &m = a.down ? a.m.down_m : a.m.gate_up_m;
    const int first = (at.expert * m.n + (a.down ? at.out : at.out / 2)) / TILE_OUTS;
    const int second = first + (a.down ? (int)OUTS / 2 : a.m.ffn) / TILE_OUTS;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int place = place_of(a, 2 * stage + i);
        const uint32_t chunk = to + (uint32_t)(i * form::CHUNK_BYTES);
        copy_pieces(chunk, &a.w, place, first, full);
        copy_pieces(chunk + form::HALF, &a.w, place, second, full);
    }
}

/* One thread. */
template <class FORM, int TERMS>
__device__ __forceinline__ void fetch_tiles(const prefill_experts &a, pointer_ring r,
                                            const pair_tiles &tiling)
{
    const int stages = (rows_of(a).kp + FORM::K - 1) / FORM::K;
    struct tile_coord at = {(int)blockIdx.x};
    for (; tiling.locate(a.m, a.tiles_out, OUTS, at); at.tile += (int)gridDim.x) {
        const int cols = tiling.each[at.i] * TERMS;
        const bool wide = cols > BOX_COLS;
        const CUtensorMap *x = cols > FEW_COLS ? &a.x : &a.few;
        const int box = wide ? 2 * BOX_COLS : cols > FEW_COLS ? BOX_COLS : FEW_COLS;
        const int bytes = FORM::PARTS * box * 128 + FORM::FETCHED;
#pragma unroll 1
        for (int c = 0; c < stages; c++) {
            uint64_t *full = r.filled();
            uint8_t *stage = r.place();
            mbarrier_wait(r.emptied(), r.pos.phase ^ 1);
            bulk_expect(full, bytes);
            fetch_weights(FORM(), a, at, c, shared_at(stage + FORM::WEIGHTS_AT), full);
            for (int h = 0; h < FORM::PARTS; h++) {
                uint8_t *part = stage + h * PART_BYTES;
                const int k = c * FORM::K + h * 64, col = at.from * TERMS;
                copy_box(shared_at(part), x, k, col, full);
                if (wide)
                    copy_box(shared_at(part + BOX_COLS * 128), &a.x, k, col + BOX_COLS, full);
            }
            r.next();
        }
    }
}

/* ---- device: consumers ---------------------------------------------------------------------- */

/* What a thread multiplies of a stage: its share of two outputs' four blocks of 32 k, two blocks at
 * a time, and their scales. */
struct words {
    uint32_t at;
    uint2 r0, r1, scales;
    __device__ __forceinline__ void load(int b)
    {
        r0 = shared8(at + (uint32_t)(b * 4)), r1 = shared8(at + (uint32_t)(8 * 64 + b * 4));
    }
    __device__ __forceinline__ void begin(uint32_t outs, int out)
    {
        at = outs + (uint32_t)(out * 64) + threadIdx.x % 4 * 16;
        load(0);
        scales = shared8(outs + mx_form::SCALES_AT + (uint32_t)(out / 16 * 64 + out % 8 * 8));
    }
};

/* Two outputs' 32 k in the order of wgmma: four registers for each 16 k of an output. */
template <class T> struct operand {
    uint32_t h0[4], h1[4];
    template <int N, int EACH>
    __device__ __forceinline__ void multiply(float (&acc)[EACH], uint64_t cols, int onto)
    {
        asm volatile("wgmma.fence.sync.aligned;" /* the registers may not change after this */
                     : "+r"(h0[0]), "+r"(h0[1]), "+r"(h0[2]), "+r"(h0[3]), "+r"(h1[0]), "+r"(h1[1]),
                       "+r"(h1[2]), "+r"(h1[3])
                     :
                     : "memory");
        wgmma_narrow<N, T>(acc, h0[0], h1[0], h0[1], h1[1], cols, onto);
        wgmma_narrow<N, T>(acc, h0[2], h1[2], h0[3], h1[3], cols + 2, 1);
        wgmma_commit();
    }
};

/* A block of MXFP4. */
struct decoded : operand<__half> {
    __device__ __forceinline__ void decode(const words &w, int b)
    {
        scaled_pairs(b % 2 ? w.r0.y : w.r0.x, w.scales.x, b, h0);
        scaled_pairs(b % 2 ? w.r1.y : w.r1.x, w.scales.y, b, h1);
    }
};

/* Two outputs' chunk of 32 k, as bf16. */
struct whole : operand<bf16> {
    __device__ __forceinline__ void set(uint4 v0, uint4 v1)
    {
        h0[0] = v0.x, h0[1] = v0.y, h0[2] = v0.z, h0[3] = v0.w;
        h1[0] = v1.x, h1[1] = v1.y, h1[2] = v1.z, h1[3] = v1.w;
    }
};

/* Which outputs of a tile a thread multiplies: rows of a stage's weights, and where their sums are
 * among the tile's outputs. */
struct own_outputs {
    int row, rows_apart, out, apart;
    __device__ __forceinline__ own_outputs(int group, bool pairs)
    {
        const int t = (int)threadIdx.x % 128, warp = group * 4 + t / 32, g = t % 32 / 4;
        row = pairs ? warp * 8 + g : warp * 16 + g, rows_apart = pairs ? (int)OUTS / 2 : 8;
        out = pairs ? 2 * row : row, apart = pairs ? 1 : 8;
    }
};

/* Where a thread's weights of its two outputs are in a stage's chunk. */
template <class FORM> struct own_weights;
template <> struct own_weights<bf16_form> {
    uint32_t first, apart;
    __device__ __forceinline__ own_weights(const own_outputs &own)
        : first((uint32_t)(own.row * 64 + threadIdx.x % 4 * 16)),
          apart((uint32_t)(own.rows_apart * 64))
    {
    }
    __device__ __forceinline__ void load(uint32_t chunk, struct whole &w) const
    {
        w.set(shared16(chunk + first), shared16(chunk + first + apart));
    }
};
template <int FORM> struct own_weights<blocks_form<FORM>> {
    uint32_t first, apart;
    __device__ __forceinline__ own_weights(const own_outputs &own)
    {
        enum { TILES = OUTS / 2 / TILE_OUTS }; /* of a half */
        const int tile = own.row / TILE_OUTS, in = own.row % TILE_OUTS;
        first = (uint32_t)(tile / TILES * blocks_form<FORM>::HALF +
                           tile % TILES * chunk_bytes(FORM) + in / 8 * eight_bytes(FORM));
        apart = own.rows_apart == OUTS / 2 ? (uint32_t)blocks_form<FORM>::HALF
                                           : (uint32_t)eight_bytes(FORM);
    }
    __device__ __forceinline__ void load(uint32_t chunk, struct whole &w) const
    {
        struct coded_eight e0, e1;
        e0.fetch<FORM>(chunk + first), e1.fetch<FORM>(chunk + first + apart);
        w.set(e0.as_bf16<FORM>(), e1.as_bf16<FORM>());
    }
};

/* Adds a k split's partial sums of N columns to the splits before it. A sum begins as -0, to which
 * any number can be added without a change. */
template <int TERMS, int N>
__device__ __forceinline__ void add_split(float (&sum)[MAX_COLS / 2 / TERMS],
                                          const float (&acc)[MAX_COLS / 2])
{
#pragma unroll
    for (int i = 0; i < N / 2 / TERMS; i++)
        sum[i] += TERMS == 1 ? acc[i] : acc[2 * i] + acc[2 * i + 1];
}
template <int TERMS, int N>
__device__ __forceinline__ void begin_sums(float (&sum)[MAX_COLS / 2 / TERMS])
{
#pragma unroll
    for (int i = 0; i < N / 2 / TERMS; i++)
        sum[i] = -0.f;
}

/* A tile's sums of N columns, for one warpgroup; acc is working space. The arrays have the same
 * size for every N, otherwise the compiler runs out of registers. While a block is multiplied the
 * next one is decoded; between stages the other warpgroups keep the tensor cores busy. */
template <int TERMS, int N>
__device__ __forceinline__ void multiply_tile(mx_form, address_ring &r, int kp,
                                              const own_outputs &own,
                                              float (&acc)[MAX_COLS / 2],
                                              float (&sum)[MAX_COLS / 2 / TERMS])
{
    const int chunks = kp / mx_form::K, out = own.out;
    const int each = (chunks + K_SPLITS - 1) / K_SPLITS;
    float unit[2]; /* row scales of the two outputs */
    int left = each;
    begin_sums<TERMS, N>(sum);
#pragma unroll 1
    for (int c = 0; c < chunks; c++) {
        const uint32_t stage = r.place();
        const uint64_t low = wgmma_descriptor(stage), high = low + PART_BYTES / 16;
        struct words w;
        struct decoded even, odd;
        mbarrier_wait(r.filled(), r.pos.phase);
        w.begin(stage + mx_form::WEIGHTS_AT, out);
        if (c == 0)
            unit[0] = mx_unit(w.scales.x), unit[1] = mx_unit(w.scales.y);
        even.decode(w, 0);
        even.multiply<N>(acc, low, left < each);
        odd.decode(w, 1);
        w.load(2);
        odd.multiply<N>(acc, low + 4, 1);
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
            add_split<TERMS, N>(sum, acc);
            left = each;
        }
    }
    const bool empty = (K_SPLITS - 1) * each >= chunks; /* an empty split: -0 becomes 0 */
#pragma unroll
    for (int i = 0; i < N / 2 / TERMS; i++)
        sum[i] = (empty ? sum[i] + 0.f : sum[i]) * unit[i * TERMS / 2 % 2];
}

/* A consumer warp's place among the chunks of k, of which a stage holds two. */
struct chunk_ring {
    address_ring r;
    uint32_t half, left; /* which chunk of the stage; the empty barrier of a stage whose second
                            chunk is being multiplied, or 0 */
    /* Releases that stage. A branch here would make ptxas serialize wgmma. */
    __device__ __forceinline__ void release()
    {
        __syncwarp();
        if (left && threadIdx.x % 32 < (unsigned)LANES_THAT_ARRIVE)
            mbarrier_arrive(left);
        left = 0;
    }
    /* Issues the product of the next chunk, the first of its split or not. */
    template <int N, class FORM>
    __device__ __forceinline__ void multiply(float (&acc)[MAX_COLS / 2],
                                             const own_weights<FORM> &mine, struct whole &w,
                                             bool onto)
    {
        const uint32_t stage = r.place();
        mbarrier_wait(r.filled(), r.pos.phase);
        mine.load(stage + FORM::WEIGHTS_AT + half * (uint32_t)FORM::CHUNK_BYTES, w);
        w.multiply<N>(acc, wgmma_descriptor(stage) + 4 * half, onto);
    }
    /* Goes on to the next chunk when the product before the last one is done. */
    __device__ __forceinline__ void next()
    {
        release();
        left = half ? r.emptied() : 0;
        if (half)
            r.next();
        half ^= 1;
    }
};

/* multiply_tile() for experts whose weights are bf16 when they are multiplied (stored as bf16 or
 * packed). While one chunk is multiplied the next one's weights are brought into registers. A stage
 * holds two chunks of k, and the last chunk of a k split may be either of them. */
template <int TERMS, int N, class FORM>
__device__ __forceinline__ void multiply_tile(FORM, address_ring &r, int kp,
                                              const own_outputs &own,
                                              float (&acc)[MAX_COLS / 2],
                                              float (&sum)[MAX_COLS / 2 / TERMS])
{
    const int chunks = kp / K_CHUNK, each = (chunks + K_SPLITS - 1) / K_SPLITS;
    const struct own_weights<FORM> mine(own);
    struct chunk_ring at = {r, 0, 0};
    begin_sums<TERMS, N>(sum);
#pragma unroll 1
    for (int c = 0; c < chunks; c += each) {
        const int n = min(each, chunks - c);
        struct whole even, odd;
#pragma unroll 1
        for (int i = 0; i + 1 < n; i += 2) {
            at.multiply<N>(acc, mine, even, i > 0);
            wgmma_wait<1>();
            at.next();
            at.multiply<N>(acc, mine, odd, true);
            wgmma_wait<1>();
            at.next();
        }
        if (n % 2) {
            at.multiply<N>(acc, mine, even, n > 1);
            wgmma_wait<1>();
            at.next();
        }
        wgmma_wait<0>();
        at.release();
        add_split<TERMS, N>(sum, acc);
    }
    r = at.r;
    if (at.half) { /* the last stage has one chunk */
        mbarrier_arrive_warp(r.emptied());
        r.next();
    }
    if ((K_SPLITS - 1) * each >= chunks) /* an empty split: -0 becomes 0 */
#pragma unroll
        for (int i = 0; i < N / 2 / TERMS; i++)
            sum[i] += 0.f;
}

template <class FORM, int TERMS>
__device__ __forceinline__ void multiply_tiles(const prefill_experts &a, address_ring r,
                                               const pair_tiles &tiling, int group,
                                               const sum_buffer &e)
{
    const int kp = rows_of(a).kp;
    const struct own_outputs own(group, !std::is_same_v<FORM, mx_form> && !a.down);
    uint32_t turn = 1;
    for (int tile = (int)blockIdx.x, i = 0; tiling.reach(a.tiles_out, tile, i);
         tile += (int)gridDim.x, turn ^= 1) {
        float acc[MAX_COLS / 2], sum[MAX_COLS / 2 / TERMS];
        const int cols = tiling.each[i] * TERMS;
        if constexpr (!std::is_same_v<FORM, mx_form>) { /* with four numbers of columns ptxas runs
                                                           out of registers and serializes wgmma */
            if (cols > BOX_COLS)
                multiply_tile<TERMS, MAX_COLS>(FORM(), r, kp, own, acc, sum);
            else if (cols > FEW_COLS)
                multiply_tile<TERMS, BOX_COLS>(FORM(), r, kp, own, acc, sum);
            else
                multiply_tile<TERMS, FEW_COLS>(FORM(), r, kp, own, acc, sum);
        } else if (cols > 88)
            multiply_tile<TERMS, 96>(FORM(), r, kp, own, acc, sum);
        else if (cols > 80)
            multiply_tile<TERMS, 88>(FORM(), r, kp, own, acc, sum);
        else if (cols > 72)
            multiply_tile<TERMS, 80>(FORM(), r, kp, own, acc, sum);
        else if (cols > 64)
            multiply_tile<TERMS, 72>(FORM(), r, kp, own, acc, sum);
        else if (cols > 48)
            multiply_tile<TERMS, 64>(FORM(), r, kp, own, acc, sum);
        else
            multiply_tile<TERMS, 48>(FORM(), r, kp, own, acc, sum);
        mbarrier_wait(e.drained, turn);
        store_sums<TERMS, OUTS>(e.sums, sum, own.out, own.apart);
        mbarrier_arrive_warp(e.filled);
    }
}

/* ---- device: epilogue ----------------------------------------------------------------------- */

/* An epilogue warp's rows of a tile, in twos: 2 warp, 2 warp + 1, 2 (warp + EPILOGUE_WARPS), ...
 * Lane l looks up the pair of the l-th of them, and with MXFP4 the factor. */
struct own_rows {
    int pair;
    float inv;
    template <class FORM>
    __device__ __forceinline__ own_rows(FORM, const prefill_experts &a, const tile_coord &at,
                                        int warp)
    {
        const int l = (int)threadIdx.x % 32, i = (l / 2 * EPILOGUE_WARPS + warp) * 2 + l % 2;
        pair = __ldcg(a.m.order + min(at.from + i, at.to - 1));
        if constexpr (std::is_same_v<FORM, mx_form>)
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
    template <class FORM, int TERMS>
    __device__ __forceinline__ void load(const own_rows &own, int n, int warp, const float *scratch)
    {
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            const int four = (int)threadIdx.x % 32 + 32 * s, second = four / FOURS;
            i[s] = (n * EPILOGUE_WARPS + warp) * 2 + second;
            pair[s] = __shfl_sync(~0u, own.pair, 2 * n + second);
            y[s] = *(const float4 *)(scratch + sum_at<TERMS, OUTS>(i[s], four % FOURS * 4));
            if constexpr (std::is_same_v<FORM, mx_form>) {
                const float4 v = y[s];
                const float inv = __shfl_sync(~0u, own.inv, 2 * n + second);
                y[s] = make_float4(mx_sum(v.x * inv), mx_sum(v.y * inv), mx_sum(v.z * inv),
                                   mx_sum(v.w * inv));
            }
        }
    }
};

/* The first of a lane's four outputs of a step; the same for all rows. */
__device__ __forceinline__ int own_output(const tile_coord &at, int step)
{
    return at.out + ((int)threadIdx.x % 32 + 32 * step) % FOURS * 4;
}

template <class FORM, int TERMS>
__device__ __forceinline__ void write_down(const prefill_experts &a, const tile_coord &at, int warp,
                                           const own_rows &own, const float *scratch)
{
    for (int n = 0; (n * EPILOGUE_WARPS + warp) * 2 < at.to - at.from; n++) {
        struct two_rows two;
        two.load<FORM, TERMS>(own, n, warp, scratch);
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
template <class FORM, int TERMS>
__device__ __forceinline__ void store_two_hidden(const moe_args &a, int p, int i, float h0,
                                                 float h1)
{
    uint16_t *to = a.h_to + (size_t)p * (size_t)(TERMS * a.h.kp) + (size_t)tile_place(i);
    float x0 = h0 * a.h_scale, x1 = h1 * a.h_scale;
#pragma unroll
    for (int t = 0; t < TERMS; t++, to += a.h.kp)
        *(uint32_t *)to = split_two<typename FORM::term>(x0, x1);
}

/* Gate and up, interleaved, become hidden values; zeros after the last. CLAMPED: the activation is
 * ACT_SWIGLU_CLAMP, else a.m.act. */
template <class FORM, int TERMS, bool CLAMPED>
__device__ __forceinline__ void write_hidden(const prefill_experts &a, const tile_coord &at,
                                             int warp, const own_rows &own,
                                             const float4 (&bias)[STEPS], const float *scratch)
{
    const int act = CLAMPED ? (int)ACT_SWIGLU_CLAMP : a.m.act;
    for (int n = 0; (n * EPILOGUE_WARPS + warp) * 2 < at.to - at.from; n++) {
        struct two_rows two;
        two.load<FORM, TERMS>(own, n, warp, scratch);
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
                store_two_hidden<FORM, TERMS>(a.m, p, i, h[s].x, h[s].y);
        }
    }
}

/* The last tile of outputs pads the hidden rows with zeros. */
template <class FORM, int TERMS>
__device__ __forceinline__ void fill_hidden(const prefill_experts &a, const tile_coord &at,
                                            int warp)
{
    const int first = (at.out + OUTS) / 2, lane = (int)threadIdx.x % 32;
    if (a.down || first < a.m.ffn)
        return;
    for (int p = at.from + warp; p < at.to; p += EPILOGUE_WARPS)
        for (int i = first + lane * 2; i < a.m.h.kp; i += 64)
            store_two_hidden<FORM, TERMS>(a.m, p, i, 0, 0);
}

template <class FORM, int TERMS>
__device__ __forceinline__ void write_tiles(const prefill_experts &a, const pair_tiles &tiling,
                                            int warp, const sum_buffer &e)
{
    const struct vec b = a.m.gate_up_b;
    uint32_t turn = 0;
    struct tile_coord at = {(int)blockIdx.x};
    for (; tiling.locate(a.m, a.tiles_out, OUTS, at); at.tile += (int)gridDim.x, turn ^= 1) {
        const struct own_rows own(FORM(), a, at, warp);
        float4 bias[STEPS]; /* a lane has the same outputs of all its rows */
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            const int out = own_output(at, s);
            bias[s] = make_float4(0, 0, 0, 0);
            if (!a.down && b.p && out < 2 * a.m.ffn)
                bias[s] = four_weights(b, INT_MAX, at.expert * (int)a.m.gate_up_b_pitch + out);
        }
        fill_hidden<FORM, TERMS>(a, at, warp);
        mbarrier_wait(e.filled, turn);
        if (a.down)
            write_down<FORM, TERMS>(a, at, warp, own, e.sums);
        else if (std::is_same_v<FORM, mx_form> && a.m.act == ACT_SWIGLU_CLAMP)
            write_hidden<FORM, TERMS, true>(a, at, warp, own, bias, e.sums);
        else
            write_hidden<FORM, TERMS, false>(a, at, warp, own, bias, e.sums);
        mbarrier_arrive_warp(e.drained);
    }
}

#endif

/* ---- the kernel ----------------------------------------------------------------------------- */

template <class FORM, int TERMS>
__global__ void __launch_bounds__(THREADS, 1)
    prefill_experts_kernel(const __grid_constant__ struct prefill_experts a)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ uint8_t dynamic[];
    __shared__ uint64_t full[FORM::STAGES], empty[FORM::STAGES], filled, drained;
    __shared__ struct pair_tiles tiling;
    uint8_t *stage = align_stages(dynamic);
    const struct sum_buffer e = {(float *)(stage + FORM::STAGES * FORM::SPAN), &filled, &drained};
    pdl_trigger();
    if (threadIdx.x == 0) {
        init_ring(full, empty, FORM::STAGES, 1, 4 * WARPGROUPS);
        mbarrier_init(&filled, warp_arrivals(4 * WARPGROUPS)),
            mbarrier_init(&drained, warp_arrivals(EPILOGUE_WARPS));
        mbarrier_init_fence();
    }
    pdl_wait_trigger();
    if (threadIdx.x < 32)
        tiling.make<MAX_COLS / TERMS>(a.m);
    __syncthreads();
    pointer_ring r = {stage, full, empty, FORM::STAGES, FORM::SPAN, {}};
    int warp = __shfl_sync(~0u, (int)threadIdx.x / 32, 0);
    if (warp < 4) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 80;");
        if (threadIdx.x == 0)
            fetch_tiles<FORM, TERMS>(a, r, tiling);
        if (warp > 0)
            write_tiles<FORM, TERMS>(a, tiling, warp - 1, e);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 144;");
        const address_ring by_address = {shared_at(stage), shared_at(full), shared_at(empty),
                                         FORM::STAGES, FORM::SPAN, {}};
        multiply_tiles<FORM, TERMS>(a, by_address, tiling, warp / 4 - 1, e);
    }
#endif
}

/* ---- host ----------------------------------------------------------------------------------- */

/* place_of() is right for all chunks: the product of less than 8 each chunks and an error of the
 * inverse below each / 2^20 stays below 1 / each. */
static void set_places(struct prefill_experts *a, struct ksplit k)
{
    CHECK(k.each * k.each < 1 << 17);
    a->k = k;
    a->inverse_of_each = ((1u << 20) + (unsigned)k.each - 1) / (unsigned)k.each;
}

static void map_weights(mx_form, struct kdev *d, struct prefill_experts *a, const struct mat *w)
{
    const int groups = (int)w->scale_pitch / 4, sixteens = a->m.n_expert * w->n / 16;
    set_places(a, ksplit_of(groups * (int)K_CHUNK));
    cuda_piece_map(d, &a->w, w->w, 1024, groups, sixteens, OUTS / 16);
    cuda_piece_map(d, &a->s, w->scale, 64, groups, sixteens, OUTS / 16);
}

static void map_weights(bf16_form, struct kdev *d, struct prefill_experts *a, const struct mat *w)
{
    const int together = w->panels.rows ? w->panels.rows : 1;
    a->piece_shift = together == TILE_OUTS ? 4 : 0;
    if (a->piece_shift)
        set_places(a, w->panels.ksplit);
    cuda_piece_map(d, &a->w, w->w, together * K_CHUNK_BYTES, (int)w->pitch / (int)K_CHUNK_BYTES,
                   a->m.n_expert * w->n / together, OUTS / 2 / together);
}

template <int FORM>
static void map_weights(blocks_form<FORM>, struct kdev *d, struct prefill_experts *a,
                        const struct mat *w)
{
    set_places(a, w->panels.ksplit);
    cuda_piece_map(d, &a->w, w->w, chunk_bytes(FORM), w->panels.ksplit.chunks,
                   a->m.n_expert * w->n / TILE_OUTS, OUTS / 2 / TILE_OUTS);
}

template <class FORM, int TERMS>
static void run(struct kdev *d, const struct moe_args *m, bool down)
{
    struct prefill_experts a = {};
    a.m = *m;
    a.down = down;
    const struct mat *w = down ? &m->down_m : &m->gate_up_m;
    const struct packed *x = down ? &m->h : &m->x;
    a.tiles_out = div_up(w->n, OUTS);
    map_weights(FORM(), d, &a, w);
    cuda_tile_map(d, &a.x, x->x, m->rows * m->top_k * TERMS, x->kp, (size_t)x->kp * 2, 64,
                  BOX_COLS);
    cuda_tile_map(d, &a.few, x->x, m->rows * m->top_k * TERMS, x->kp, (size_t)x->kp * 2, 64,
                  FEW_COLS);
    cuda_launch(d, prefill_experts_kernel<FORM, TERMS>, dim3((unsigned)d->gpu.n_sm), THREADS,
                FORM::SHARED, a);
}

static void run_packed(struct kdev *d, const struct moe_args *m, bool down)
{
    switch (down ? m->down_m.type : m->gate_up_m.type) {
#define RUN(type)                                                                          \
    case type: return run<blocks_form<type>, 2>(d, m, down);
        EXPERT_FORMS(RUN, RUN)
#undef RUN
    default: CHECK(!"a form of experts without a kernel");
    }
}

void cuda_prefill_experts(struct kdev *d, const struct moe_args *m)
{
    for (int down = 0; down < 2; down++)
        if (dtype_packed((enum dtype)m->gate_up_m.type))
            run_packed(d, m, down);
        else if (!m->f16)
            run<bf16_form, 2>(d, m, down);
        else
            m->terms == 1 ? run<mx_form, 1>(d, m, down) : run<mx_form, 2>(d, m, down);
}
