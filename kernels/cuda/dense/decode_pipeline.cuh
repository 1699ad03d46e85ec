/* decode_pipeline.cuh - the main loop of the decode kernel: how a consumer warp accumulates its k
 * split of a unit, with the next chunks on their way to registers while the present ones are
 * multiplied.
 */
#pragma once

#include "kernels/cuda/dense/decode.cuh"
#include "kernels/cuda/dense/fp8.cuh"

/* Of rows_kind (route.h). */
static constexpr inline __host__ __device__ bool is_resident(int rows)
{
    return rows <= RESIDENT_ROWS;
}
static constexpr inline __host__ __device__ bool is_narrow(int rows) { return rows != STAGED_WIDE; }

/* Bytes of a chunk of zeros in place of columns. */
static constexpr inline __host__ __device__ int zero_bytes(int xt, int rows)
{
    return (is_narrow(rows) ? 8 : 16 * xt) * K_CHUNK_BYTES;
}

#ifdef __CUDACC__

template <int ROWS> __device__ __forceinline__ int cols_of(const decode_args &f)
{
    return ROWS == FUSED_ROW ? 1 : ROWS == RESIDENT_ROWS ? f.cols : group_cols(f);
}

/* ---- multiplying ---------------------------------------------------------------------------- */

/* Accumulators of four floats that a lane has for NT tiles. */
static constexpr inline __host__ __device__ int sums_of(int nt, int rows)
{
    return is_narrow(rows) ? (nt + 1) / 2 : nt;
}

/* A lane's eight weights of a row of a tile as stored: bf16, or FP8, which is converted to bf16
 * before the multiplication. at: bf16: where row lane % 8 has unit lane / 8 (panel.cuh); FP8: where
 * row lane / 4 has elements 8 * (lane % 4) and the following. */
template <int STORED> struct eight;
template <> struct eight<DT_BF16> {
    uint4 w;
    __device__ __forceinline__ void fetch(uint32_t at) { w = shared_units(at); }
    __device__ __forceinline__ uint4 as_bf16(uint32_t) const { return w; }
};
template <> struct eight<STORED_FP8> {
    uint2 w;
    __device__ __forceinline__ void fetch(uint32_t at) { w = shared8(at); }
    __device__ __forceinline__ uint4 as_bf16(uint32_t scale) const { return fp8_eight(w, scale); }
};

/* A lane's operands of some chunks of a unit: NT tiles of weights, XT of columns. A tile is eight
 * rows of weights; a lane's eight weights of it are two operand registers as loaded. Up to eight
 * columns: columns are the B operand and two tiles of weights the A operand; for an odd number of
 * tiles, the last one's partner is undefined. More columns: columns are A operands of 16, and each
 * tile of weights is a B operand. */
template <int XT, int NT, int STORED> struct batch {
    /* two batches must fit into registers; with FP8 one chunk at a time was fastest */
    static constexpr int AT_ONCE = XT > 1 || NT > 3 || STORED != DT_BF16 ? 1 : 2;
    struct eight<STORED> w[AT_ONCE][NT];
    uint4 low[AT_ONCE][XT], high[AT_ONCE][XT];
};

/* Multiplies half a chunk of k (half: 0 or 1) by up to eight columns, `low`. */
template <int TILES, int SUMS>
__device__ __forceinline__ void multiply_narrow(float (&acc)[SUMS][4], const uint4 (&w)[TILES],
                                                uint2 low, int half)
{
    uint32_t none;
    asm volatile("" : "=r"(none));
#pragma unroll
    for (int n = 0; n < TILES; n += 2) {
        const uint4 &v = w[n], &u = w[min(n + 1, TILES - 1)];
        const bool two = n + 1 < TILES;
        mma_bf16(acc[n / 2], half ? v.z : v.x, !two ? none : half ? u.z : u.x, half ? v.w : v.y,
                 !two ? none : half ? u.w : u.y, low.x, low.y);
    }
}
/* Multiplies a chunk of weights by its columns. */
template <int XT, int ROWS, int TILES, int SUMS>
__device__ __forceinline__ void multiply_chunk(float (&acc)[XT][SUMS][4], const uint4 (&w)[TILES],
                                               const uint4 (&lows)[XT], const uint4 (&highs)[XT])
{
#pragma unroll
    for (int m = 0; m < XT; m++) {
        const uint4 low = lows[m], up = highs[m];
        if constexpr (is_narrow(ROWS)) {
            multiply_narrow<TILES>(acc[m], w, make_uint2(low.x, low.y), 0);
            multiply_narrow<TILES>(acc[m], w, make_uint2(low.z, low.w), 1);
        } else {
#pragma unroll
            for (int n = 0; n < TILES; n++)
                mma_bf16(acc[m][n], low.x, up.x, low.y, up.y, w[n].x, w[n].y);
#pragma unroll
            for (int n = 0; n < TILES; n++)
                mma_bf16(acc[m][n], low.z, up.z, low.w, up.w, w[n].z, w[n].w);
        }
    }
}

/* A consumer warp's k split of a unit. Branches are avoided, because where branches join the
 * compiler waits for all loads in flight. So a split that has no chunk, or none left, multiplies
 * other weights of the same outputs with zeros, which leaves its sums as they are: weights are
 * finite, or NaN as the outputs are already (mem.cu). */
template <int XT, int NT, int KIND, int ROWS, int STORED> struct split_of_unit {
    static constexpr bool RESIDENT = is_resident(ROWS), NARROW = is_narrow(ROWS);
    static constexpr int OF_PANEL = KIND == UNIT_GATED ? NT / 2 : NT; /* tiles of a panel */
    static constexpr bool FP8 = STORED == STORED_FP8;
    static constexpr int ROW_BYTES = code_bytes(STORED); /* of a row's chunk of weights */
    static constexpr int TILE_BYTES = 8 * (FP8 ? ROW_BYTES : (int)UNIT_BYTES);
    static constexpr int MAX_AT_ONCE = 2;
    static constexpr int SUMS = sums_of(NT, ROWS);
    static constexpr int SCALES = KIND == UNIT_JOINED ? NT : parts_of(KIND);
    static constexpr int APART = KIND == UNIT_JOINED ? NT : 1;

    int i, end, each, have, rest; /* positions: the next, the stage's end, all; chunks of this
                                     split, of the last split */
    int positions, splits, tiles;
    bool last, column; /* FP8: whether the lane has a row in a panel's last tile (bf16: an absent
                          row's weights are any bytes behind); has a column */
    uint32_t from, chunk, second; /* in a stage: the first chunk, bytes of a chunk, where the
                                     second part begins */
    uint32_t own; /* where the lane's weights are in a chunk (see eight; not UNIT_JOINED) */
    uint32_t place, tile_at[APART], tile_chunk[APART]; /* UNIT_JOINED: the stage, where each tile is
                                                          in it, bytes of its chunk */
    uint32_t w[MAX_AT_ONCE], x[MAX_AT_ONCE]; /* where the next chunks are (UNIT_JOINED: their
                                                numbers), and their columns */
    uint32_t resident, col; /* the split's resident columns; bytes from one chunk of columns to
                               the next */
    uint32_t none; /* address of the zeros */
    uint32_t scale[SCALES]; /* FP8: the scale of each part; UNIT_JOINED: of each tile */

    __device__ __forceinline__ split_of_unit(const decode_args &f, const unit_iter &at,
                                             uint32_t columns, uint32_t zeros)
    {
        const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4;
        const struct unit_set &d = f.set[at.set];
        const struct ksplit &c = d.ksplit;
        i = end = 0, each = c.each, have = min(each, c.chunks - (int)warp * each), rest = c.rest;
        positions = d.positions, splits = c.splits, tiles = (d.rows + 7) / 8;
        last = (OF_PANEL - 1) * 8 + g < (uint32_t)d.part[0].rows;
        column = (int)g < cols_of<ROWS>(f);
        chunk = KIND == UNIT_JOINED ? 1 : (uint32_t)(d.part[0].rows * ROW_BYTES);
        own = KIND == UNIT_JOINED ? 0 : lane_bytes(lane, d.part[0].rows);
        from = warp * chunk + own;
        second = d.part[1].at;
        place = 0;
        if (KIND == UNIT_JOINED)
            find_tiles(f, d);
        else if (FP8)
            for (int j = 0; j < SCALES; j++)
                scale[j] = f.scale[d.part[j].mat];
        keep(each), keep(have), keep(rest), keep(splits), keep(chunk);
        col = (uint32_t)cols_of<ROWS>(f) * K_CHUNK_BYTES;
        resident = columns + warp * (uint32_t)each * col + lane * 16, none = zeros + lane * 16;
    }
    /* Where a lane's weights are in a chunk of a panel of `rows` rows, whose first row is meant. */
    __device__ __forceinline__ static uint32_t lane_bytes(uint32_t lane, int rows)
    {
        return FP8 ? lane / 4 * ROW_BYTES + lane % 4 * (ROW_BYTES / 4)
                   : lane % 8 * UNIT_BYTES + lane / 8 * (uint32_t)(rows * UNIT_BYTES);
    }
    /* UNIT_JOINED: a unit's outputs in their order are the rows of the tiles. */
    __device__ __forceinline__ void find_tiles(const decode_args &f, const struct unit_set &d)
    {
        const int lane = (int)threadIdx.x % 32;
#pragma unroll
        for (int n = 0; n < APART; n++) {
            const struct output o = {d.output[n * 8 + (FP8 ? lane / 4 : lane % 8)]};
            tile_at[n] = o.at() + (uint32_t)(FP8 ? lane % 4 * (ROW_BYTES / 4)
                                                 : lane / 8 * o.rows() * UNIT_BYTES);
            tile_chunk[n] = (uint32_t)(o.rows() * ROW_BYTES);
            if (FP8)
                scale[n] = f.scale[d.part[o.part()].mat];
            pin(tile_at[n]), pin(tile_chunk[n]);
        }
    }
    __device__ __forceinline__ uint32_t tile(uint32_t w, int n) const
    {
        return KIND == UNIT_JOINED
                   ? tile_at[n] + w * tile_chunk[n]
                   : w + (uint32_t)(n / OF_PANEL) * second + (uint32_t)(n % OF_PANEL * TILE_BYTES);
    }
    /* Advances w and x from position `at` by n positions, if the split has a chunk there in this
     * stage; otherwise x becomes the zeros. */
    __device__ __forceinline__ void pass(int at, int n, uint32_t &w, uint32_t &x) const
    {
        const bool more = at + n < min(end, have);
        const uint32_t chunks = (uint32_t)(n * splits - min(max(at + n - rest, 0), n));
        w += more ? chunks * chunk : 0;
        x = more ? x + col * (RESIDENT ? (uint32_t)n : chunks) : none;
    }
    __device__ __forceinline__ void leave(address_ring &r)
    {
        mbarrier_arrive_warp(r.emptied());
        r.next();
    }
    /* Enters the next stage if the present one is used up, and waits until the stage is filled. */
    template <int AT_ONCE>
    __device__ __forceinline__ void enter(const decode_args &f, address_ring &r)
    {
        if (i < end || i >= each)
            return;
        if (i > 0)
            leave(r);
        mbarrier_wait(r.filled(), r.pos.phase);
        end = min(i + positions, each);
        const uint32_t lane = threadIdx.x % 32;
        if (KIND == UNIT_JOINED) {
            const uint32_t to = r.place();
#pragma unroll
            for (int n = 0; n < APART; n++)
                tile_at[n] += to - place;
            place = to;
            w[0] = i < have ? from : 0;
        } else {
            w[0] = r.place() + (i < have ? from : own);
        }
        x[0] = RESIDENT ? resident + (uint32_t)i * col
                    : r.place() + (uint32_t)f.rows_at + threadIdx.x / 32 * col + lane * 16;
        x[0] = i < have ? x[0] : none;
#pragma unroll
        for (int u = 1; u < AT_ONCE; u++) {
            w[u] = w[0], x[u] = x[0];
            pass(i, u, w[u], x[u]);
        }
    }
    template <int TILES>
    __device__ __forceinline__ void weights(batch<XT, TILES, STORED> &b) const
    {
#pragma unroll
        for (int u = 0; u < b.AT_ONCE; u++)
#pragma unroll
            for (int n = 0; n < TILES; n++)
                if (!FP8 || KIND == UNIT_JOINED || n % OF_PANEL < OF_PANEL - 1 || last)
                    b.w[u][n].fetch(tile(w[u], n));
    }
    template <int TILES>
    __device__ __forceinline__ void columns(batch<XT, TILES, STORED> &b) const
    {
#pragma unroll
        for (int u = 0; u < b.AT_ONCE; u++)
#pragma unroll
            for (int m = 0; m < XT; m++) {
                const uint32_t at = x[u] + (uint32_t)m * 16 * K_CHUNK_BYTES;
                if (!RESIDENT || column)
                    b.low[u][m] = shared16(at);
                if (!NARROW)
                    b.high[u][m] = shared16(at + 8 * K_CHUNK_BYTES);
            }
    }
    template <int AT_ONCE> __device__ __forceinline__ void step()
    {
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) /* every address is advanced separately: each has to
                                             wait for the load that uses it */
            pass(i + u, AT_ONCE, w[u], x[u]);
        i = min(i + AT_ONCE, end);
    }
    template <int TILES>
    __device__ __forceinline__ void multiply(float (&acc)[XT][SUMS][4],
                                             const batch<XT, TILES, STORED> &b) const
    {
#pragma unroll
        for (int u = 0; u < b.AT_ONCE; u++) {
            uint4 w[TILES];
#pragma unroll
            for (int n = 0; n < TILES; n++)
                w[n] = b.w[u][n].as_bf16(scale[KIND == UNIT_JOINED ? n : n / OF_PANEL]);
            multiply_chunk<XT, ROWS>(acc, w, b.low[u], b.high[u]);
        }
    }
    /* Loads the weights of the next chunks, if the split has any. */
    template <int TILES>
    __device__ __forceinline__ void fetch(batch<XT, TILES, STORED> &b, const decode_args &f,
                                          address_ring &r)
    {
        enter<batch<XT, TILES, STORED>::AT_ONCE>(f, r);
        weights(b);
    }
    /* Accumulates the whole split; the weights of the first chunks are in `now`. Where registers
     * suffice, the next chunks are loaded while the present ones are multiplied, because the loop
     * is limited by shared memory. */
    template <int TILES>
    __device__ __forceinline__ void all(float (&acc)[XT][SUMS][4], const decode_args &f,
                                        address_ring &r, batch<XT, TILES, STORED> &now)
    {
        constexpr int AT_ONCE = batch<XT, TILES, STORED>::AT_ONCE;
        columns(now);
        step<AT_ONCE>();
        if constexpr (XT > 1) {
#pragma unroll 1
            for (;; step<AT_ONCE>()) {
                multiply(acc, now);
                if (i >= each)
                    break;
                fetch(now, f, r);
                columns(now);
            }
        } else {
            typedef batch<XT, TILES, STORED> operands;
            operands other;
            auto iterate = [&](const operands &now, operands &next) {
                fetch(next, f, r); /* behind the split's end the loads are useless and harmless */
                columns(next);
                if (RESIDENT)
                    __syncwarp(); /* otherwise the compiler makes the loads wait for the products */
                multiply(acc, now);
                step<AT_ONCE>();
            };
            bool more;
#pragma unroll 1
            do {
                iterate(now, other);
                more = i < each;
                iterate(other, now);
            } while (more);
        }
        leave(r);
    }
    template <int TILES>
    __device__ __forceinline__ void all(float (&acc)[XT][SUMS][4], const decode_args &f,
                                        address_ring &r)
    {
        batch<XT, TILES, STORED> now;
        fetch(now, f, r);
        all<TILES>(acc, f, r, now);
    }
};

#endif
