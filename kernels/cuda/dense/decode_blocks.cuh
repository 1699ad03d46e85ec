/* decode_blocks.cuh - the main loop of the decode kernel for weights packed in blocks (packed.cuh).
 *
 * Packed weights are few bytes and many instructions: on an H200 a multiprocessor's memory brings
 * the codes of eight rows of two chunks of Q4_0 in the time of about 69 instructions of each of its
 * schedulers. Multiplications of bf16 pairs unpack most types, an fma of floats those whose weights
 * are rounded to float32 before; tensor cores, which can multiply codes by scales, take six places
 * of issue or more for an instruction. What is done once for each chunk of a split is as little as
 * possible, too: every position has a place for all splits, so that addresses advance by constants,
 * and the columns alone tell the chunks that a split does not have, by zeros in their place. Tried
 * without a gain: loads ahead of the chunks at hand, four chunks at once, more warps, and warps
 * that do not wait for each other (results-h200.md).
 */
#pragma once

#include "kernels/cuda/dense/decode_pipeline.cuh"

#ifdef __CUDACC__

/* A lane's columns of two chunks, as in struct batch. */
template <int XT> struct packed_columns {
    uint4 low[2][XT], high[2][XT];
};
/* Two tiles of weights in two chunks. */
template <int STORED> struct packed_tiles {
    struct packed_eight<STORED> w[2];
};

/* A consumer warp's k split of a unit, as struct split_of_unit. A group of tiles is successive in a
 * stage: a panel's, or with UNIT_JOINED one tile. Of absent rows, any bytes behind the panel's are
 * loaded. */
template <int XT, int NT, int KIND, int ROWS, int STORED> struct packed_split {
    static constexpr bool RESIDENT = is_resident(ROWS);
    static constexpr int SUMS = sums_of(NT, ROWS);
    static constexpr int GROUPS = KIND == UNIT_JOINED ? NT : parts_of(KIND), OF_GROUP = NT / GROUPS;
    static constexpr int STEPS = KIND == UNIT_JOINED ? NT : 1; /* a unit's panels have as many
                                                                  rows */
    static constexpr int CODES = code_bytes(STORED), SCALES = 2 * scale_bytes(STORED); /* of a row
                                                                    and position; of two */
    static constexpr int BLOCKS = block_bytes(STORED);

    int each, have, rest; /* positions: all; chunks of this split, of the last split */
    int positions, splits, tiles;
    bool column; /* whether the lane has a column */
    int phase; /* positions of the split's first block that are in the split before */
    uint32_t codes[GROUPS], scales[GROUPS], blocks[GROUPS]; /* where the lane's first are in a
                                                               stage */
    uint32_t step[STEPS]; /* bytes from a position to the next, */
    uint32_t scale_step[STEPS]; /* from two positions to the next two, */
    uint32_t block_step[STEPS]; /* from a block to the next */
    uint32_t resident, col, none; /* as in split_of_unit */

    __device__ __forceinline__ packed_split(const decode_args &f, const unit_iter &at,
                                            uint32_t columns, uint32_t zeros)
    {
        const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4;
        const struct unit_set &d = f.set[at.set];
        const struct ksplit &c = d.ksplit;
        each = c.each, have = min(each, c.chunks - (int)warp * each), rest = c.rest;
        positions = d.positions, splits = c.splits, tiles = (d.rows + 7) / 8;
        column = (int)g < cols_of<ROWS>(f);
        phase = (int)warp * each % BLOCK_CHUNKS;
        keep(each), keep(have), keep(positions);
#pragma unroll
        for (int i = 0; i < GROUPS; i++) {
            const bool joined = KIND == UNIT_JOINED;
            const struct output one = {d.output[joined ? i * 8 + g : 0]};
            const struct unit_part &p = d.part[joined ? one.part() : i];
            const uint32_t row = joined ? (uint32_t)one.row() : g;
            codes[i] = p.at + (warp * (uint32_t)p.rows + row / 2 * 2) * CODES +
                       (uint32_t)codes_of(STORED, (int)(lane % 4 * 2 + row % 2));
            scales[i] = p.scales + (warp * (uint32_t)p.rows + row) * SCALES + of_scales(STORED);
            pin(codes[i]), pin(scales[i]);
            if (BLOCKS) {
                blocks[i] = p.blocks + (warp * (uint32_t)p.rows + row) * BLOCKS + of_block(STORED);
                pin(blocks[i]);
            }
            if (i < STEPS) {
                step[i] = (uint32_t)(p.rows * (int)K_SPLITS * CODES);
                scale_step[i] = (uint32_t)(p.rows * (int)K_SPLITS * SCALES);
                pin(step[i]), pin(scale_step[i]);
                if (BLOCKS) {
                    block_step[i] = (uint32_t)(p.rows * (int)K_SPLITS * BLOCKS);
                    pin(block_step[i]);
                }
            }
        }
        col = (uint32_t)cols_of<ROWS>(f) * K_CHUNK_BYTES;
        resident = columns + warp * (uint32_t)each * col + lane * 16, none = zeros + lane * 16;
        keep(col);
    }

    /* Where the chunks at hand are: the first one's codes, scales and block in each group, and its
     * columns. */
    struct place {
        uint32_t w[GROUPS], s[GROUPS], b[GROUPS], x;
    };
    __device__ __forceinline__ bool block_ends(int position) const
    {
        return BLOCKS && (phase + position + 1) % BLOCK_CHUNKS == 0;
    }
    /* Bytes from a chunk's columns to the next one's. */
    __device__ __forceinline__ uint32_t columns_step(int position) const
    {
        return RESIDENT ? col : col * (uint32_t)(splits - (position >= rest ? 1 : 0));
    }
    /* Loads tiles n and n + 1 of the chunks at `position` and behind it. If that is the stage's
     * last one, or there is none, others are loaded, and zeros as their columns. */
    template <int TILES>
    __device__ __forceinline__ void fetch(packed_tiles<STORED> &b, const place &at, int n,
                                          int position, int end) const
    {
        /* whether there is a second chunk; whether the lane loads from the block behind */
        const bool two = position + 1 < end;
        const bool ends = two && block_ends(position) && threadIdx.x % 4 > 1;
#pragma unroll
        for (int j = n; j < min(n + 2, TILES); j++) {
            const int g = j / OF_GROUP, t = j % OF_GROUP * 8, i = g < STEPS ? g : 0;
            const uint32_t w = at.w[g] + (uint32_t)(t * CODES);
            b.w[j - n].fetch(
                w, w + (two ? step[i] : 0), at.s[g] + (uint32_t)(t * SCALES),
                BLOCKS ? at.b[g] + (uint32_t)(t * BLOCKS) + (ends ? block_step[i] : 0) : 0);
        }
    }
    __device__ __forceinline__ void fetch_columns(packed_columns<XT> &b, const place &at,
                                                  int position, int end) const
    {
        const uint32_t x[2] = {position < min(have, end) ? at.x : none,
                               position + 1 < min(have, end) ? at.x + columns_step(position)
                                                             : none};
#pragma unroll
        for (int u = 0; u < 2; u++)
#pragma unroll
            for (int m = 0; m < XT; m++) {
                if (!RESIDENT || column)
                    b.low[u][m] = shared16(x[u] + (uint32_t)m * 16 * K_CHUNK_BYTES);
                if (!is_narrow(ROWS))
                    b.high[u][m] = shared16(x[u] + (uint32_t)(m * 16 + 8) * K_CHUNK_BYTES);
            }
    }
    /* From `position` to the one after the next, if there is one in the stage; otherwise the place
     * stays. */
    template <int TILES>
    __device__ __forceinline__ void advance(place &at, int position, int end) const
    {
        const bool more = position + 2 < end;
        const bool next_block = more && (block_ends(position) || block_ends(position + 1));
#pragma unroll
        for (int g = 0; g < (TILES + OF_GROUP - 1) / OF_GROUP; g++) {
            const int i = g < STEPS ? g : 0;
            at.w[g] += more ? 2 * step[i] : 0;
            at.s[g] += more ? scale_step[i] : 0;
            if (BLOCKS)
                at.b[g] += next_block ? block_step[i] : 0;
        }
        at.x += columns_step(position) + columns_step(position + 1);
    }
    /* Multiplies two tiles, or one, by a chunk. */
    template <int TILES>
    __device__ __forceinline__ static void multiply_tiles(float (&acc)[XT][SUMS][4], int n,
                                                          const uint4 (&w)[2],
                                                          const uint4 (&low)[XT],
                                                          const uint4 (&high)[XT])
    {
        if constexpr (is_narrow(ROWS)) {
            uint32_t none;
            asm volatile("" : "=r"(none));
            const bool two = n + 1 < TILES;
#pragma unroll
            for (int m = 0; m < XT; m++) {
                mma_bf16(acc[m][n / 2], w[0].x, two ? w[1].x : none, w[0].y, two ? w[1].y : none,
                         low[m].x, low[m].y);
                mma_bf16(acc[m][n / 2], w[0].z, two ? w[1].z : none, w[0].w, two ? w[1].w : none,
                         low[m].z, low[m].w);
            }
        } else {
#pragma unroll
            for (int i = n; i < min(n + 2, TILES); i++)
#pragma unroll
                for (int m = 0; m < XT; m++) {
                    const uint4 &v = w[i - n];
                    mma_bf16(acc[m][i], low[m].x, high[m].x, low[m].y, high[m].y, v.x, v.y);
                    mma_bf16(acc[m][i], low[m].z, high[m].z, low[m].w, high[m].w, v.z, v.w);
                }
        }
    }
    template <int TILES>
    __device__ __forceinline__ void multiply(float (&acc)[XT][SUMS][4], int n,
                                             const packed_tiles<STORED> &b,
                                             const packed_columns<XT> &x) const
    {
        uint4 w[2][2]; /* of a chunk; of a tile */
        b.w[0].as_bf16(w[0][0], w[1][0]);
        if (n + 1 < TILES)
            b.w[1].as_bf16(w[0][1], w[1][1]);
#pragma unroll
        for (int u = 0; u < 2; u++)
            multiply_tiles<TILES>(acc, n, w[u], x.low[u], x.high[u]);
    }
    /* Multiplies the two chunks at `position`. */
    template <int TILES>
    __device__ __forceinline__ void two_chunks(float (&acc)[XT][SUMS][4], place &at, int position,
                                               int end) const
    {
        packed_tiles<STORED> w[(TILES + 1) / 2];
        packed_columns<XT> x;
#pragma unroll
        for (int n = 0; n < TILES; n += 2)
            fetch<TILES>(w[n / 2], at, n, position, end);
        fetch_columns(x, at, position, end);
        advance<TILES>(at, position, end);
#pragma unroll
        for (int n = 0; n < TILES; n += 2)
            multiply<TILES>(acc, n, w[n / 2], x);
    }
    /* Accumulates the whole split. */
    template <int TILES>
    __device__ __forceinline__ void all(float (&acc)[XT][SUMS][4], const decode_args &f,
                                        address_ring &r) const
    {
#pragma unroll 1
        for (int i = 0; i < each; i += positions) {
            const int end = min(i + positions, each);
            place at;
            mbarrier_wait(r.filled(), r.pos.phase);
#pragma unroll
            for (int g = 0; g < GROUPS; g++)
                at.w[g] = r.place() + codes[g], at.s[g] = r.place() + scales[g];
            /* the stage has blocks from the one of its first position in a split of phase 0 on */
            const bool later = BLOCKS && (phase + i) / BLOCK_CHUNKS > i / BLOCK_CHUNKS;
#pragma unroll
            for (int g = 0; BLOCKS && g < GROUPS; g++)
                at.b[g] = r.place() + blocks[g] + (later ? block_step[g < STEPS ? g : 0] : 0);
            at.x = RESIDENT ? resident + (uint32_t)i * col
                            : r.place() + (uint32_t)f.rows_at + threadIdx.x / 32 * col +
                                  threadIdx.x % 32 * 16;
#pragma unroll 1
            for (int j = i; j < end; j += 2)
                two_chunks<TILES>(acc, at, j, end);
            mbarrier_arrive_warp(r.emptied());
            r.next();
        }
    }
};

#endif
