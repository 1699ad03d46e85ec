/* decode_blocks.cuh - the main loop of the decode kernel for weights packed in blocks (packed.cuh).
 *
 * Packed weights are few bytes and many instructions: on an H200 a multiprocessor's memory brings
 * the codes of eight rows of a chunk in the time of about 35 instructions of each of its
 * schedulers, and unpacking them takes 26. So what is done once for each chunk of a split is as
 * little as
 * possible: every position has a place for all splits, so that addresses advance by constants, and
 * the columns alone tell the chunks that a split does not have, by zeros in their place. The next
 * chunk's codes are loaded while the present ones are multiplied, within a stage.
 */
#ifndef AERIE_CUDA_DECODE_BLOCKS_CUH
#define AERIE_CUDA_DECODE_BLOCKS_CUH

#include "kernels/cuda/dense/decode_pipeline.cuh"

#ifdef __CUDACC__

/* A lane's eight weights of a row as stored. codes: where row lane / 4 of a tile has those of
 * elements 8 * (lane % 4) and the following; scales, block: where that row's are. */
template <int STORED> struct packed_eight;
template <> struct packed_eight<DT_Q4_0> {
    uint32_t w, d;
    __device__ __forceinline__ void fetch(uint32_t codes, uint32_t scales, uint32_t)
    {
        w = shared4(codes), d = shared2(scales);
    }
    __device__ __forceinline__ uint4 as_bf16() const { return q4_0_eight(w, d); }
};
template <> struct packed_eight<DT_Q8_0> {
    uint2 w;
    uint32_t d;
    __device__ __forceinline__ void fetch(uint32_t codes, uint32_t scales, uint32_t)
    {
        w = shared8(codes), d = shared2(scales);
    }
    __device__ __forceinline__ uint4 as_bf16() const { return q8_0_eight(w, d); }
};
template <> struct packed_eight<DT_Q4_K> {
    uint32_t w, own, d;
    __device__ __forceinline__ void fetch(uint32_t codes, uint32_t scales, uint32_t block)
    {
        w = shared4(codes), own = shared2(scales), d = shared4(block);
    }
    __device__ __forceinline__ uint4 as_bf16() const { return q4_k_eight(w, d, own); }
};
template <> struct packed_eight<DT_Q6_K> {
    uint32_t w, high, d;
    __device__ __forceinline__ void fetch(uint32_t codes, uint32_t scales, uint32_t)
    {
        w = shared4(codes), high = shared2(codes - threadIdx.x % 4 * 2 + 16), d = shared4(scales);
    }
    __device__ __forceinline__ uint4 as_bf16() const
    {
        return q6_k_eight(w, high, d, (int)threadIdx.x % 4);
    }
};

/* A lane's operands of a chunk, as in struct batch. */
template <int XT, int NT, int STORED> struct packed_batch {
    struct packed_eight<STORED> w[NT];
    uint4 low[XT], high[XT];
};

/* A consumer warp's k split of a unit, as struct split_of_unit. A group of tiles is successive in a
 * stage: a panel's, or with UNIT_JOINED one tile. */
template <int XT, int NT, int KIND, int ROWS, int STORED> struct packed_split {
    static constexpr bool RESIDENT = is_resident(ROWS);
    static constexpr int SUMS = sums_of(NT, ROWS);
    static constexpr int GROUPS = KIND == UNIT_JOINED ? NT : parts_of(KIND), OF_GROUP = NT / GROUPS;
    static constexpr int STEPS = KIND == UNIT_JOINED ? NT : 1; /* a unit's panels have as many
                                                                  rows */
    static constexpr int CODES = code_bytes(STORED), SCALES = scale_bytes(STORED); /* of a row */
    static constexpr int BLOCKS = block_bytes(STORED);

    int each, have, rest; /* positions: all; chunks of this split, of the last split */
    int positions, splits, tiles;
    bool last, column; /* whether the lane has a row in a panel's last tile; has a column */
    int phase; /* positions of the split's first block that are in the split before */
    uint32_t codes[GROUPS], scales[GROUPS], blocks[GROUPS]; /* where the lane's first are in a
                                                               stage */
    uint32_t step[STEPS], scale_step[STEPS]; /* bytes from a position to the next */
    uint32_t block_step[STEPS];              /* from a block to the next */
    uint32_t resident, col, none; /* as in split_of_unit */

    __device__ __forceinline__ packed_split(const decode_args &f, const unit_iter &at,
                                            uint32_t columns, uint32_t zeros)
    {
        const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        const struct unit_set &d = f.set[at.set];
        const struct ksplit &c = d.ksplit;
        each = c.each, have = min(each, c.chunks - (int)warp * each), rest = c.rest;
        positions = d.positions, splits = c.splits, tiles = (d.rows + 7) / 8;
        last = KIND == UNIT_JOINED || (OF_GROUP - 1) * 8 + (int)lane / 4 < d.part[0].rows;
        column = (int)lane / 4 < cols_of<ROWS>(f);
        phase = (int)warp * each % BLOCK_CHUNKS;
        keep(each), keep(have), keep(positions);
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            const struct output o = {d.output[KIND == UNIT_JOINED ? g * 8 + lane / 4 : 0]};
            const struct unit_part &p = d.part[KIND == UNIT_JOINED ? o.part() : g];
            const uint32_t row = KIND == UNIT_JOINED ? (uint32_t)o.row() : lane / 4;
            codes[g] = p.at + (warp * (uint32_t)p.rows + row) * CODES +
                       lane % 4 * (STORED == DT_Q8_0 ? 8 : 4);
            scales[g] = p.scales + (warp * (uint32_t)p.rows + row) * SCALES;
            pin(codes[g]), pin(scales[g]);
            if (BLOCKS) {
                blocks[g] = p.blocks + (warp * (uint32_t)p.rows + row) * BLOCKS;
                pin(blocks[g]);
            }
            if (g < STEPS) {
                step[g] = (uint32_t)(p.rows * (int)K_SPLITS * CODES);
                scale_step[g] = (uint32_t)(p.rows * (int)K_SPLITS * SCALES);
                pin(step[g]), pin(scale_step[g]);
                if (BLOCKS) {
                    block_step[g] = (uint32_t)(p.rows * (int)K_SPLITS * BLOCKS);
                    pin(block_step[g]);
                }
            }
        }
        col = (uint32_t)cols_of<ROWS>(f) * K_CHUNK_BYTES;
        resident = columns + warp * (uint32_t)each * col + lane * 16, none = zeros + lane * 16;
        keep(col);
    }

    /* Where the chunk at hand is: its codes, scales and block in each group, its columns. */
    struct place {
        uint32_t w[GROUPS], s[GROUPS], b[GROUPS], x;
    };
    template <int TILES>
    __device__ __forceinline__ void fetch(packed_batch<XT, TILES, STORED> &b, const place &at,
                                          int position) const
    {
#pragma unroll
        for (int n = 0; n < TILES; n++) {
            const int g = n / OF_GROUP, t = n % OF_GROUP;
            if (t < OF_GROUP - 1 || last)
                b.w[n].fetch(at.w[g] + (uint32_t)(t * 8 * CODES),
                             at.s[g] + (uint32_t)(t * 8 * SCALES),
                             BLOCKS ? at.b[g] + (uint32_t)(t * 8 * BLOCKS) : 0);
        }
        const uint32_t x = position < have ? at.x : none;
#pragma unroll
        for (int m = 0; m < XT; m++) {
            if (!RESIDENT || column)
                b.low[m] = shared16(x + (uint32_t)m * 16 * K_CHUNK_BYTES);
            if (!is_narrow(ROWS))
                b.high[m] = shared16(x + (uint32_t)(m * 16 + 8) * K_CHUNK_BYTES);
        }
    }
    /* From `position` to the next, if there is one in the stage; otherwise the place stays. */
    template <int TILES>
    __device__ __forceinline__ void advance(place &at, int position, bool more) const
    {
        const bool next_block = BLOCKS && more && (phase + position + 1) % BLOCK_CHUNKS == 0;
#pragma unroll
        for (int g = 0; g < (TILES + OF_GROUP - 1) / OF_GROUP; g++) {
            const int i = g < STEPS ? g : 0;
            at.w[g] += more ? step[i] : 0;
            at.s[g] += more ? scale_step[i] : 0;
            if (BLOCKS)
                at.b[g] += next_block ? block_step[i] : 0;
        }
        at.x += !more                       ? 0
                : RESIDENT                  ? col
                                            : col * (uint32_t)(splits - (position >= rest ? 1 : 0));
    }
    template <int TILES>
    __device__ __forceinline__ void multiply(float (&acc)[XT][SUMS][4],
                                             const packed_batch<XT, TILES, STORED> &b) const
    {
        uint4 w[TILES];
#pragma unroll
        for (int n = 0; n < TILES; n++)
            w[n] = b.w[n].as_bf16();
        multiply_chunk<XT, ROWS>(acc, w, b.low, b.high);
    }
    /* Accumulates the whole split. */
    template <int TILES>
    __device__ __forceinline__ void all(float (&acc)[XT][SUMS][4], const decode_args &f,
                                        address_ring &r) const
    {
        typedef packed_batch<XT, TILES, STORED> operands;
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
            operands now, next;
            fetch<TILES>(now, at, i);
#pragma unroll 1
            for (int j = i;; j += 2) {
                advance<TILES>(at, j, j + 1 < end);
                fetch<TILES>(next, at, j + 1);
                multiply<TILES>(acc, now);
                if (j + 1 >= end)
                    break;
                advance<TILES>(at, j + 1, j + 2 < end);
                fetch<TILES>(now, at, j + 2);
                multiply<TILES>(acc, next);
                if (j + 2 >= end)
                    break;
            }
            mbarrier_arrive_warp(r.emptied());
            r.next();
        }
    }
};

#endif
#endif
