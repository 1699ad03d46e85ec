/* prefill.cu - the prefill kernel: products of more than MAX_VERIFY_ROWS rows with bf16 matrices,
 * with wgmma on Hopper.
 *
 * The kernel is persistent: one block a multiprocessor takes tile after tile (128 outputs by COLS
 * columns). TMA fetches stages of 64 of k. With GLU one of a block's two consumer warpgroups
 * multiplies with the gate matrix and the other with the up matrix. wgmma reads weights and rows
 * from shared memory: panels are stored in the order of its operands (base/panel.cuh). A matrix
 * quantized to FP8 (fp8.cuh) is read in that form (BYTES 1) and widened in registers.
 */
#include "kernels/cuda/dense/fp8.cuh"
#include "kernels/cuda/dense/wgmma.cuh"

enum {
    STAGE_K = 64,
    CHUNK_BYTES = HALF_OUT * (int)K_CHUNK_BYTES, /* bytes of one chunk's weights of a consumer
                                                   warpgroup */
    HALF_BYTES = 2 * CHUNK_BYTES,
    GROUP = 8, /* tiles of rows that are processed together, so that they read the same weights
                  from L2 */
    PANEL_PARTS = 2,
    BATCH = 2, /* rows whose old values a writer loads together */
};

/* The number of columns of a tile decides how much shared memory and how many registers are
 * left. */
template <int COLS> struct form {
    enum {
        TILE_STAGE_BYTES = 2 * HALF_BYTES + COLS * STAGE_K * 2,
        SUM_BYTES = COLS * TILE_OUT * (int)sizeof(float),
        STAGES = (MAX_SMEM - 1024 - 256 - SUM_BYTES) / TILE_STAGE_BYTES,
        SHARED = STAGES * TILE_STAGE_BYTES + SUM_BYTES + 1024,
        OTHERS = COLS <= 160 ? 8 : 4, /* warps that do not multiply: one fetches, the others
                                         write */
        WRITERS = OTHERS - 1,
        THREADS = (OTHERS + 8) * 32,
        OTHERS_REGS = COLS == 128 ? 72 : 56, /* registers of a thread */
        MULTIPLY_REGS = COLS == 128 ? 184 : COLS == 160 ? 200 : 224,
    };
};

/* How a matrix's outputs are divided into tiles. The rows of its panels are divided into one part
 * or two: the first run[0] rows, and the others. A tile has one part of successive panels. */
struct division {
    int run[PANEL_PARTS];    /* rows of a part: successive outputs of a tile */
    int panels[PANEL_PARTS]; /* panels of a tile */
    int n, first;      /* number of tiles; of these, tiles of the first part */
};

struct prefill_args {
    CUtensorMap w[MAX_MATS][PANEL_PARTS], x;
    struct product p;
    struct division of[MAX_MATS];
    int tiles_out, tiles_row;
    uint32_t scale[MAX_MATS]; /* FP8: each matrix's scale (fp8_factor()) */
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* ---- device: tiles -------------------------------------------------------------------------- */

struct tile_origin {
    int mat, part;  /* the tile's outputs: their matrix, their part of its panels, */
    int panel, row; /* the first panel, the first row in each panel, */
    int run, wide;  /* how many are successive, how many there are (GLU: of each matrix) */
    int col;        /* the tile's first column */
};
/* Tiles of both parts take turns in proportion to their numbers, so that a panel's parts are read
 * close to each other. */
template <int COLS>
__device__ __forceinline__ struct tile_origin origin_of(const prefill_args &a, int tile)
{
    struct tile_origin at = {};
    int first = tile / (GROUP * a.tiles_out) * GROUP, width = min(GROUP, a.tiles_row - first);
    int in = tile - first * a.tiles_out, t = in / width;
    at.col = (first + in % width) * COLS;
    while (!a.p.glu && at.mat + 1 < a.p.n_mats && t >= a.p.first[at.mat + 1])
        at.mat++;
    t -= a.p.first[at.mat];
    const struct division &of = a.of[at.mat];
    const int before = t * of.first / of.n; /* tiles of the first part */
    at.part = (t + 1) * of.first / of.n == before;
    at.panel = (at.part ? t - before : before) * of.panels[at.part];
    at.row = at.part ? of.run[0] : 0;
    at.run = of.run[at.part];
    at.wide = at.run * of.panels[at.part];
    return at;
}

/* ---- device: the roles ---------------------------------------------------------------------- */

/* Fetches a tile's weights: for each of a stage's two chunks of k, 16 bytes of each output, one
 * output after the other, four times (the units of a panel); of FP8, 32 bytes of each output. With
 * GLU a stage has both chunks of the gate's outputs, then both of up's. */
template <int BYTES> struct tile_weights {
    const CUtensorMap *map;
    int panel, row, bytes; /* the first panel; the first row in each; bytes of one chunk */
    bool glu;
    __device__ __forceinline__ tile_weights(const prefill_args &a, const tile_origin &at)
        : map(&a.w[at.mat][at.part]), panel(at.panel), row(at.row),
          bytes(at.wide * K_CHUNK * BYTES), glu(a.p.glu)
    {
    }
    __device__ __forceinline__ void copy(uint32_t to, const CUtensorMap *from, int place,
                                         uint64_t *full) const
    {
        if (BYTES == 2)
            copy_units(to, from, place, panel, full, row);
        else
            copy_pieces(to, from, place, panel, full, row * (K_CHUNK / 8));
    }
    __device__ __forceinline__ void fetch(uint8_t *to, const k_stages &k, int rows_bytes,
                                          uint64_t *full) const
    {
        bulk_expect(full, (bytes << (int)glu) * k.n + rows_bytes);
        const uint32_t at = shared_at(to);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if (i == k.n)
                break;
            copy(at + i * CHUNK_BYTES * (glu ? 1 : 2), map, k.place[i], full);
            if (glu)
                copy(at + (2 + i) * CHUNK_BYTES, map + PANEL_PARTS, k.place[i], full);
        }
    }
};

/* The one thread that fetches. It requests the weights of the first stages while the previous
 * kernel drains. */
template <int COLS, int BYTES>
__device__ __forceinline__ void fetch_tiles(const prefill_args &a, pointer_ring r)
{
    using F = form<COLS>;
    const struct ksplit c = ksplit_of(a.p.x.kp);
    const int tiles = a.tiles_out * a.tiles_row, rows_bytes = COLS * STAGE_K * 2;
    int early = 0;
    const tile_weights<BYTES> first(a, origin_of<COLS>(a, (int)blockIdx.x));
#pragma unroll 1
    for (k_stages k(c, 0, c.splits); early < F::STAGES && !k.over(); early++, k.next(c))
        first.fetch(r.at + early * F::TILE_STAGE_BYTES, k, rows_bytes, &r.full[early]);
    pdl_wait_trigger();
    for (int tile = (int)blockIdx.x; tile < tiles; tile += (int)gridDim.x) {
        const struct tile_origin at = origin_of<COLS>(a, tile);
        const tile_weights<BYTES> w(a, at);
#pragma unroll 1
        for (k_stages k(c, 0, c.splits); !k.over(); k.next(c)) {
            uint8_t *to = r.place();
            if (early == 0) {
                mbarrier_wait(r.emptied(), r.pos.phase ^ 1);
                w.fetch(to, k, rows_bytes, r.filled());
            }
            early -= early > 0;
            copy_box(shared_at(to) + 2 * HALF_BYTES, &a.x, k.k(c), at.col, r.filled());
            r.next();
        }
    }
}

/* A consumer warp's position in the ring, as addresses in shared memory that change by additions
 * only: between two products a warp has time for few instructions. */
template <int COLS> struct consumer_ring {
    uint32_t first_at, first_full, to_empty; /* to_empty: from a full to its empty barrier */
    uint32_t at, full, rows; /* the stage, its full barrier, the low word of its rows' descriptor */
    uint32_t phase;
    int slot;
    __device__ __forceinline__ consumer_ring(const pointer_ring &r)
        : first_at(shared_at(r.at)), first_full(shared_at(r.full)),
          to_empty(shared_at(r.empty) - shared_at(r.full)), phase(0), slot(0)
    {
        begin();
    }
    __device__ __forceinline__ void begin()
    {
        at = first_at, full = first_full;
        rows = (uint32_t)wgmma_descriptor(first_at + 2 * HALF_BYTES);
    }
    __device__ __forceinline__ void next()
    {
        using F = form<COLS>;
        at += F::TILE_STAGE_BYTES, full += 8, rows += F::TILE_STAGE_BYTES / 16;
        if (++slot == F::STAGES)
            slot = 0, phase ^= 1, begin();
    }
    __device__ __forceinline__ uint64_t descriptor() const
    {
        return (wgmma_descriptor(0) & ~(uint64_t)UINT32_MAX) | rows;
    }
    /* The address of the stage's rows, in 16 bytes. */
    __device__ __forceinline__ uint32_t rows_at() const { return rows & 0xffff; }
    __device__ __forceinline__ void wait() const { mbarrier_wait(full, phase); }
    /* Releases the stage whose full barrier is at `of`. */
    __device__ __forceinline__ void release(uint32_t of) const
    {
        mbarrier_arrive_warp(of + to_empty);
    }
};

/* The first of a thread's two outputs among the 64 of its warpgroup; the second is + 8. */
__device__ __forceinline__ int own_output()
{
    int t = (int)threadIdx.x % 128;
    return t / 32 * 16 + t % 32 / 4;
}

/* Where the weights of a warpgroup's outputs are, for the tile at hand. bf16: the descriptor of
 * those of the first sixteen of a stage's k, relative to the address of the stage's rows; from
 * there on, in 16 bytes, those of the second sixteen, and the second chunk. Without GLU the
 * outputs of both warpgroups are successive. */
template <int BYTES> struct own_weights {
    uint64_t first;
    uint32_t sixteen, second;
    int behind; /* bytes from the stage on */
    __device__ __forceinline__ own_weights(int half, bool glu)
        : first(0), sixteen(0), second(CHUNK_BYTES * (glu ? 1 : 2) / 16),
          behind(half * (glu ? 2 * CHUNK_BYTES : HALF_OUT * (int)UNIT_BYTES))
    {
    }
    __device__ __forceinline__ void begin(const prefill_args &, const tile_origin &at, int)
    {
        const int unit = at.wide * UNIT_BYTES;
        first = wgmma_units(0, unit) - (uint64_t)((2 * HALF_BYTES - behind) / 16);
        sixteen = (uint32_t)(2 * unit / 16);
    }
};

/* Issues the products of the first CHUNKS chunks of a stage, when it has arrived. */
template <int COLS, int CHUNKS>
__device__ __forceinline__ void multiply_stage(float (&acc)[COLS / 2],
                                               const consumer_ring<COLS> &r,
                                               const own_weights<2> &own, bool onto)
{
    const uint64_t rows = r.descriptor(), w = r.rows_at() + own.first;
    r.wait();
    wgmma_fence();
    wgmma_bf16(acc, w, rows, onto);
    wgmma_bf16(acc, w + own.sixteen, rows + 2, 1);
    if constexpr (CHUNKS == 2) {
        wgmma_bf16(acc, w + own.second, rows + 4, 1);
        wgmma_bf16(acc, w + own.second + own.sixteen, rows + 6, 1);
    }
    wgmma_commit();
}

/* Accumulates one k split of n > 0 chunks into acc. While wgmma multiplies a stage, the next
 * stage's products are issued. A stage is released when no wgmma reads it any more. */
template <int COLS>
__device__ __forceinline__ void multiply_split(float (&acc)[COLS / 2], consumer_ring<COLS> &r,
                                               int n, const own_weights<2> &own)
{
    uint32_t last = 0;
#pragma unroll 1
    for (int i = 0; i + 1 < n; i += 2) {
        multiply_stage<COLS, 2>(acc, r, own, i > 0);
        wgmma_wait<1>(); /* the previous stage has been read */
        if (i > 0)
            r.release(last);
        last = r.full;
        r.next();
    }
    if (n % 2) {
        multiply_stage<COLS, 1>(acc, r, own, n > 1);
        wgmma_wait<1>();
        if (n > 1)
            r.release(last);
        last = r.full;
        r.next();
    }
    wgmma_wait<0>();
    r.release(last);
}

/* FP8: a thread's weights of two outputs, one chunk (32 of k). */
struct widened {
    uint4 r0, r1;
    __device__ __forceinline__ void load(uint32_t at, uint32_t scale)
    {
        const uint2 v0 = shared8(at), v1 = shared8(at + 8 * K_CHUNK);
        r0 = fp8_eight(v0, scale), r1 = fp8_eight(v1, scale);
    }
    template <int EACH>
    __device__ __forceinline__ void multiply(float (&acc)[EACH], uint64_t rows, bool onto) const
    {
        wgmma_fence();
        wgmma_bf16(acc, r0.x, r1.x, r0.y, r1.y, rows, onto);
        wgmma_bf16(acc, r0.z, r1.z, r0.w, r1.w, rows + 2, 1);
        wgmma_commit();
    }
};

/* FP8: where a thread's weights are: those of a stage's first chunk, from the stage on; those of
 * the second chunk, from there on. Without GLU the outputs of both warpgroups are successive. */
template <> struct own_weights<1> {
    uint32_t first, second, scale;
    __device__ __forceinline__ own_weights(int half, bool glu)
        : first((uint32_t)(half * (glu ? 2 * CHUNK_BYTES : HALF_OUT * K_CHUNK) +
                           own_output() * K_CHUNK + (int)threadIdx.x % 4 * 8)),
          second(CHUNK_BYTES * (glu ? 1 : 2)), scale(0)
    {
    }
    __device__ __forceinline__ void begin(const prefill_args &a, const tile_origin &at, int half)
    {
        scale = a.scale[a.p.glu ? half : at.mat];
    }
};

/* The same with FP8. While wgmma multiplies one chunk, the next one's weights are loaded and
 * widened. */
template <int COLS>
__device__ __forceinline__ void multiply_split(float (&acc)[COLS / 2], consumer_ring<COLS> &r,
                                               int n, const own_weights<1> &own)
{
    struct widened even, odd;
    uint32_t last = 0;
#pragma unroll 1
    for (int i = 0; i + 1 < n; i += 2) {
        const uint64_t rows = r.descriptor();
        r.wait();
        even.load(r.at + own.first, own.scale);
        even.multiply(acc, rows, i > 0);
        wgmma_wait<1>(); /* the previous stage has been read, and `odd` may be overwritten */
        if (i > 0)
            r.release(last);
        odd.load(r.at + own.first + own.second, own.scale);
        odd.multiply(acc, rows + 4, true);
        wgmma_wait<1>();
        last = r.full;
        r.next();
    }
    if (n % 2) {
        r.wait();
        even.load(r.at + own.first, own.scale);
        even.multiply(acc, r.descriptor(), n > 1);
        wgmma_wait<0>();
        if (n > 1)
            r.release(last);
        last = r.full;
        r.next();
    }
    wgmma_wait<0>();
    r.release(last);
}

/* One of the two consumer warpgroups. */
template <int TERMS, int COLS, int BYTES>
__device__ __forceinline__ void multiply_tiles(const prefill_args &a, pointer_ring r, int half,
                                               const sum_buffer &e)
{
    const struct ksplit c = ksplit_of(a.p.x.kp);
    const int tiles = a.tiles_out * a.tiles_row;
    own_weights<BYTES> own(half, a.p.glu);
    consumer_ring<COLS> ring(r);
    uint32_t parity = 1;
    for (int tile = (int)blockIdx.x; tile < tiles; tile += (int)gridDim.x, parity ^= 1) {
        float acc[COLS / 2], sum[COLS / 2 / TERMS];
        own.begin(a, origin_of<COLS>(a, tile), half);
#pragma unroll
        for (int i = 0; i < COLS / 2 / TERMS; i++)
            sum[i] = -0.f; /* the only number that changes no bit when it is added */
        for (int split = 0; split < K_SPLITS; split++) {
            int n = min(c.chunks - split * c.each, c.each);
            if (n <= 0) { /* as product_kernel, which adds zero for an empty split: -0 becomes 0 */
#pragma unroll
                for (int i = 0; i < COLS / 2 / TERMS; i++)
                    sum[i] += 0.f;
                continue;
            }
            multiply_split(acc, ring, n, own);
#pragma unroll
            for (int i = 0; i < COLS / 2 / TERMS; i++)
                sum[i] += TERMS == 1 ? acc[i] : acc[2 * i] + acc[2 * i + 1];
        }
        mbarrier_wait(e.drained, parity);
        store_sums<TERMS>(e.sums, sum, half * HALF_OUT + own_output());
        mbarrier_arrive_warp(e.filled);
    }
}

/* The part of a tile that a writer warp stores: rows warp, warp + WRITERS, ... The writers' code is
 * small, because the consumers share the instruction cache with it. */
struct strip {
    const float *sums;
    int first, rows;                /* the first of the product's rows, number of rows */
    int panel, row, run, wide; /* the outputs: see tile_origin */
    int high;                  /* rows of a panel */
    int n;                          /* outputs of the matrix */
    int warp;
    /* The output at a place of the tile; n or more: none. The output at an even place and the next
     * one are successive. */
    __device__ __forceinline__ int output(int at) const
    {
        return at < wide ? (panel + at / run) * high + row + at % run : n;
    }
};

/* Stores sums, after bias and addition, 16 bytes a lane where these are successive. */
template <int TERMS, int WRITERS>
__device__ __forceinline__ void write_wide(const strip &s, const epilogue &f)
{
    const int mine = (int)threadIdx.x % 32 * 4, out = s.output(mine), more = s.output(mine + 2);
    const bool low = out < s.n, high = more < s.n, whole = out % 4 == 0 && more == out + 2 && high;
    if (!low && !high)
        return;
    float4 b = make_float4(0, 0, 0, 0);
    if (f.b.p && low)
        b.x = weight_at(f.b, (size_t)out), b.y = weight_at(f.b, (size_t)(out + 1));
    if (f.b.p && high)
        b.z = weight_at(f.b, (size_t)more), b.w = weight_at(f.b, (size_t)(more + 1));
    const bool bias = f.b.p, add = f.add;
    const size_t pitch = f.dst_stride;
    float *dst = f.dst + (size_t)s.first * pitch + (low ? out : more);
    const int apart = low && high ? more - out : 0;
    for (int i = s.warp; i < s.rows; i += BATCH * WRITERS) {
        float2 old[BATCH][2];
#pragma unroll
        for (int j = 0; add && j < BATCH; j++) {
            const float *from = dst + (size_t)min(i + j * WRITERS, s.rows - 1) * pitch;
            old[j][0] = *(const float2 *)from, old[j][1] = *(const float2 *)(from + apart);
        }
#pragma unroll
        for (int j = 0; j < BATCH; j++) {
            const int row = i + j * WRITERS;
            if (row >= s.rows)
                break;
            float2 l = *(const float2 *)(s.sums + sum_at<TERMS>(row, mine));
            float2 h = *(const float2 *)(s.sums + sum_at<TERMS>(row, mine + 2));
            if (bias)
                l.x += b.x, l.y += b.y, h.x += b.z, h.y += b.w;
            if (add)
                l.x += old[j][0].x, l.y += old[j][0].y, h.x += old[j][1].x, h.y += old[j][1].y;
            float *to = dst + (size_t)row * pitch;
            if (whole) {
                *(float4 *)to = make_float4(l.x, l.y, h.x, h.y);
                continue;
            }
            if (low)
                *(float2 *)to = l;
            if (high)
                *(float2 *)(to + apart) = h;
        }
    }
}

/* The same one output a lane, where outputs cannot be stored 16 bytes at once. */
template <int TERMS, int WRITERS>
__device__ __forceinline__ void write_single(const strip &s, const epilogue &f)
{
    enum { EACH = 4 * BATCH };
    const bool bias = f.b.p, add = f.add;
    const size_t pitch = f.dst_stride;
#pragma unroll 1
    for (int at = (int)threadIdx.x % 32; at < TILE_OUT; at += 32) {
        const int out = s.output(at);
        if (out >= s.n)
            continue;
        const float b = bias ? weight_at(f.b, (size_t)out) : 0;
        float *dst = f.dst + (size_t)s.first * pitch + out;
        for (int i = s.warp; i < s.rows; i += EACH * WRITERS) {
            float old[EACH];
#pragma unroll
            for (int j = 0; add && j < EACH; j++)
                old[j] = dst[(size_t)min(i + j * WRITERS, s.rows - 1) * pitch];
#pragma unroll
            for (int j = 0; j < EACH; j++) {
                const int row = i + j * WRITERS;
                if (row >= s.rows)
                    break;
                float y = s.sums[sum_at<TERMS>(row, at)];
                if (bias)
                    y += b;
                dst[(size_t)row * pitch] = add ? y + old[j] : y;
            }
        }
    }
}

/* GLU: stores act(gate) * up packed for the next product, in rows of `pitch` elements, two outputs
 * a lane. */
template <int TERMS, int WRITERS, int ACT>
__device__ __forceinline__ void pack_gated(const strip &s, uint16_t *to, size_t pitch)
{
    const int mine = (int)threadIdx.x % 32 * 2, out = s.output(mine);
    if (out >= s.n)
        return;
    to += (size_t)(s.first * TERMS) * pitch + (size_t)tile_place(out);
#pragma unroll 4
    for (int row = s.warp; row < s.rows; row += WRITERS) {
        const float2 gate = *(const float2 *)(s.sums + sum_at<TERMS>(row, mine));
        const float2 up = *(const float2 *)(s.sums + sum_at<TERMS>(row, HALF_OUT + mine));
        float2 y = make_float2(activate(gate.x, ACT) * up.x, activate(gate.y, ACT) * up.y);
#pragma unroll
        for (int t = 0; t < TERMS; t++)
            *(uint32_t *)(to + (size_t)(row * TERMS + t) * pitch) = split_two<bf16>(y.x, y.y);
    }
}

/* GLU: stores act(gate) * up as floats, one output a lane. */
template <int TERMS, int WRITERS, int ACT>
__device__ __forceinline__ void write_gated(const strip &s, const epilogue &f)
{
#pragma unroll 1
    for (int at = (int)threadIdx.x % 32; at < HALF_OUT; at += 32) {
        const int out = s.output(at);
        for (int row = s.warp; row < s.rows && out < s.n; row += WRITERS) {
            float y = activate(s.sums[sum_at<TERMS>(row, at)], ACT) *
                      s.sums[sum_at<TERMS>(row, HALF_OUT + at)];
            f.dst[(size_t)(s.first + row) * f.dst_stride + (size_t)out] = y;
        }
    }
}

template <int TERMS, int WRITERS, int ACT>
__device__ __forceinline__ void finish_gated(const strip &s, const epilogue &f, uint16_t *pack_to,
                                             size_t pitch)
{
    if (pack_to)
        pack_gated<TERMS, WRITERS, ACT>(s, pack_to, pitch);
    else
        write_gated<TERMS, WRITERS, ACT>(s, f);
}

/* Stores sums after any epilogue. */
template <int TERMS, int WRITERS>
__device__ __forceinline__ void write_any(const strip &s, const epilogue &f)
{
#pragma unroll 1
    for (int at = (int)threadIdx.x % 32; at < TILE_OUT; at += 32) {
        const int out = s.output(at);
#pragma unroll 1
        for (int row = s.warp; row < s.rows && out < s.n; row += WRITERS)
            store_output(f, apply_epilogue(f, s.sums[sum_at<TERMS>(row, at)], out, s.first + row),
                         out, s.first + row);
    }
}

template <int TERMS, int COLS>
__device__ __forceinline__ void write_tiles(const prefill_args &a, int warp, const sum_buffer &e)
{
    enum { WRITERS = form<COLS>::WRITERS };
    const int tiles = a.tiles_out * a.tiles_row;
    uint32_t parity = 0;
    for (int tile = (int)blockIdx.x; tile < tiles; tile += (int)gridDim.x, parity ^= 1) {
        const struct tile_origin at = origin_of<COLS>(a, tile);
        const struct epilogue &f = a.p.f[at.mat];
        const struct mat &m = a.p.m[at.mat];
        const int first = at.col / TERMS, rows = min(COLS / TERMS, a.p.rows - first);
        const struct strip s = {e.sums, first, rows, at.panel, at.row, at.run,
                                at.wide, m.panels.rows, m.n, warp};
        const bool plain = f.act == ACT_NONE && f.softcap <= 0 && f.scale == 1 && !f.mul;
        const bool wide = plain && s.n % 4 == 0 &&
                          ((size_t)f.dst | f.dst_stride * sizeof(float)) % 16 == 0;
        const size_t pitch = (size_t)a.p.pack_as.kp;
        mbarrier_wait(e.filled, parity);
        if (a.p.glu && a.p.glu_act == ACT_SILU)
            finish_gated<TERMS, WRITERS, ACT_SILU>(s, f, a.p.pack_to, pitch);
        else if (a.p.glu && a.p.glu_act == ACT_GELU_TANH)
            finish_gated<TERMS, WRITERS, ACT_GELU_TANH>(s, f, a.p.pack_to, pitch);
        else if (a.p.glu)
            finish_gated<TERMS, WRITERS, ACT_NONE>(s, f, a.p.pack_to, pitch);
        else if (wide)
            write_wide<TERMS, WRITERS>(s, f);
        else if (plain)
            write_single<TERMS, WRITERS>(s, f);
        else
            write_any<TERMS, WRITERS>(s, f);
        mbarrier_arrive_warp(e.drained);
    }
}

#endif

/* ---- the kernel ----------------------------------------------------------------------------- */

/* The body is compiled only for GPUs with wgmma; kdev.has_wgmma is false on others. */
template <int TERMS, int COLS, int BYTES>
__global__ void __launch_bounds__(form<COLS>::THREADS, 1)
    prefill_kernel(const __grid_constant__ struct prefill_args a)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    using F = form<COLS>;
    extern __shared__ uint8_t dynamic[];
    __shared__ uint64_t full[F::STAGES], empty[F::STAGES], filled, drained;
    uint8_t *stage = align_stages(dynamic);
    const struct sum_buffer e = {(float *)(stage + F::STAGES * F::TILE_STAGE_BYTES), &filled,
                                 &drained};
    pdl_trigger();
    if (threadIdx.x == 0) {
        init_ring(full, empty, F::STAGES, 1, 8);
        mbarrier_init(&filled, warp_arrivals(8)),
            mbarrier_init(&drained, warp_arrivals(F::WRITERS));
        mbarrier_init_fence();
    }
    __syncthreads();
    pointer_ring r = {stage, full, empty, F::STAGES, F::TILE_STAGE_BYTES, {}};
    int warp = __shfl_sync(~0u, (int)threadIdx.x / 32, 0);
    if (warp < F::OTHERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"((int)F::OTHERS_REGS));
        if (threadIdx.x == 0)
            fetch_tiles<COLS, BYTES>(a, r);
        if (warp > 0) {
            pdl_wait_trigger();
            write_tiles<TERMS, COLS>(a, warp - 1, e);
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"((int)F::MULTIPLY_REGS));
        multiply_tiles<TERMS, COLS, BYTES>(a, r, (warp - F::OTHERS) / 4, e);
    }
#endif
}

/* ---- host ----------------------------------------------------------------------------------- */

typedef CUresult encode_fn(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                           const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                           const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                           CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/* The driver's function that encodes tensor maps; NULL: the driver has none. */
static encode_fn *encoder()
{
    static encode_fn *f;
    void *p = NULL;
    cudaDriverEntryPointQueryResult found;
    if (!f && cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &p, 12000,
                                               cudaEnableDefault, &found) == cudaSuccess &&
        found == cudaDriverEntryPointSuccess)
        f = (encode_fn *)p;
    return f;
}

bool cuda_has_tensor_maps() { return encoder() != NULL; }

void cuda_tile_map(struct kdev *d, CUtensorMap *map, const void *p, int rows, int n, size_t pitch,
                   int box_n, int box_rows)
{
    const cuuint64_t dim[] = {(cuuint64_t)n, (cuuint64_t)rows}, stride[] = {pitch};
    const cuuint32_t box[] = {(cuuint32_t)box_n, (cuuint32_t)box_rows}, one[] = {1, 1};
    if (encoder()(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, (void *)p, dim, stride, box, one,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS)
        cuda_fail(d, "a tensor map was refused");
}

/* A map of words of 8 bytes; dim, stride (in bytes) and box as the driver takes them. */
static void word_map(struct kdev *d, CUtensorMap *map, const void *p, int n_dim,
                     const cuuint64_t *dim, const cuuint64_t *stride, const cuuint32_t *box)
{
    const cuuint32_t one[] = {1, 1, 1, 1};
    if (encoder()(map, CU_TENSOR_MAP_DATA_TYPE_INT64, (cuuint32_t)n_dim, (void *)p, dim, stride,
                  box, one, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS)
        cuda_fail(d, "a tensor map was refused");
}

void cuda_piece_map(struct kdev *d, CUtensorMap *map, const void *p, int bytes, int pieces,
                    int rows, int box_rows, int box_bytes)
{
    const cuuint64_t dim[] = {(cuuint64_t)bytes / 8, (cuuint64_t)pieces, (cuuint64_t)rows},
                     stride[] = {(cuuint64_t)bytes, (cuuint64_t)bytes * (cuuint64_t)pieces};
    const cuuint32_t box[] = {(cuuint32_t)(box_bytes ? box_bytes : bytes) / 8, 1,
                              (cuuint32_t)box_rows};
    word_map(d, map, p, 3, dim, stride, box);
}

void cuda_panel_map(struct kdev *d, CUtensorMap *map, const void *p, const struct panels *l,
                    int box_panels, int box_rows)
{
    const cuuint64_t unit = (cuuint64_t)(l->rows * UNIT_BYTES);
    const cuuint64_t dim[] = {unit / 8, (cuuint64_t)l->n, UNITS, (cuuint64_t)l->ksplit.chunks},
                     stride[] = {panel_bytes(*l), unit, unit * UNITS};
    const cuuint32_t box[] = {(cuuint32_t)(box_rows * UNIT_BYTES / 8), (cuuint32_t)box_panels,
                              UNITS, 1};
    word_map(d, map, p, 4, dim, stride, box);
}

/* The division into parts of all but `rest` rows and of `rest` rows (0: one part). */
static struct division division_of(const struct panels *l, int most, int rest)
{
    struct division d = {};
    d.run[0] = l->rows - rest, d.run[1] = rest;
    d.panels[0] = most / d.run[0];
    d.n = d.first = div_up(l->n, d.panels[0]);
    if (rest) {
        d.panels[1] = most / rest;
        d.n += div_up(l->n, d.panels[1]);
    }
    return d;
}

/* Divides a matrix into the fewest tiles of at most `most` outputs; of divisions into as many,
 * takes one part before two, then the longest second part. TMA copies a part as pieces of 16 bytes
 * a row. A stage of 192 columns takes about 0.65 us with pieces of 320 bytes, 0.73 with 176, which
 * are no whole sectors of 32 bytes, 0.93 with 32; one of 160 columns 0.58 with 64 (one H200; from
 * products of two lengths of k). So parts have an even number of rows, at least four. Panels of 20
 * rows become parts of 16 and 4, of 22 rows 14 and 8 or 16 and 6, of 24 rows with GLU 16 and 8:
 * these fill 126 to 128 of a tile's outputs, where whole panels fill 120, 110 and 96. */
static struct division best_division(const struct panels *l, int most)
{
    enum { LEAST = 4 };
    struct division best = division_of(l, most, 0);
    for (int rest = LEAST; rest <= l->rows / 2; rest += 2) {
        const struct division d = division_of(l, most, rest);
        if (d.n < best.n || (d.n == best.n && best.run[1]))
            best = d;
    }
    return best;
}

/* Divides the outputs into tiles. first: the first tile of each matrix. Returns the number of
 * tiles. */
static int tiles_of(const struct product *p, int *first, struct division *of)
{
    int tiles = 0;
    for (int i = 0; i < p->n_mats; i++) {
        of[i] = best_division(&p->m[i].panels, p->glu ? HALF_OUT : TILE_OUT);
        first[i] = tiles;
        if (!p->glu || i == 0)
            tiles += of[i].n;
    }
    return tiles;
}

/* Describes to TMA the boxes of one part of a matrix: one chunk of a tile's outputs. */
template <int BYTES>
static void part_map(struct kdev *d, CUtensorMap *map, const struct mat *m, int panels, int run)
{
    const struct panels *l = &m->panels;
    if (BYTES == 2)
        cuda_panel_map(d, map, m->w, l, panels, run);
    else
        cuda_piece_map(d, map, m->w, l->rows * K_CHUNK, l->ksplit.chunks, l->n, panels,
                       run * K_CHUNK);
}

template <int TERMS, int COLS, int BYTES>
static void run_bytes(struct kdev *d, const struct product *p)
{
    using F = form<COLS>;
    struct prefill_args a = {};
    a.p = *p;
    a.tiles_out = tiles_of(p, a.p.first, a.of);
    for (int i = 0; i < p->n_mats; i++) {
        for (int part = 0; part < PANEL_PARTS && a.of[i].run[part]; part++)
            part_map<BYTES>(d, &a.w[i][part], &p->m[i], a.of[i].panels[part], a.of[i].run[part]);
        a.scale[i] = BYTES == 1 ? fp8_factor(p->m[i].unit) : 0;
    }
    a.tiles_row = div_up(p->rows * TERMS, COLS);
    cuda_tile_map(d, &a.x, p->x.x, p->rows * TERMS, p->x.kp, (size_t)p->x.kp * 2, STAGE_K,
                  COLS);
    dim3 grid((unsigned)min_int(a.tiles_out * a.tiles_row, d->gpu.n_sm));
    cuda_launch(d, prefill_kernel<TERMS, COLS, BYTES>, grid, F::THREADS, F::SHARED, a);
}

template <int TERMS, int COLS> static void run(struct kdev *d, const struct product *p)
{
    p->m[0].fp8 ? run_bytes<TERMS, COLS, 1>(d, p) : run_bytes<TERMS, COLS, 2>(d, p);
}

/* The relative time with tiles of `cols` columns: tiles of a multiprocessor times the time of a
 * tile's stage, of which a part does not depend on the columns (tests/bench/results-h200.md). */
static int cost_of(const struct kdev *d, const struct product *p, int cols)
{
    enum { FIXED = 64 }; /* that part, in columns */
    int first[MAX_MATS];
    struct division of[MAX_MATS];
    int tiles = tiles_of(p, first, of) * div_up(p->rows * d->gpu.terms, cols);
    return div_up(tiles, d->gpu.n_sm) * (cols + FIXED);
}

void cuda_product_prefill(struct kdev *d, const struct product *p)
{
    int c128 = cost_of(d, p, 128), c160 = cost_of(d, p, 160), c192 = cost_of(d, p, 192);
    if (d->gpu.terms == 2)
        run<2, 160>(d, p);
    else if (c160 <= c128 && c160 <= c192)
        run<1, 160>(d, p);
    else
        c128 <= c192 ? run<1, 128>(d, p) : run<1, 192>(d, p);
}
