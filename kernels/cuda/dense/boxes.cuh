/* boxes.cuh - how the kernels with wgmma fetch weights in panels by TMA: the boxes of a stage (two
 * chunks of k of some panels), for bf16, FP8 (fp8.cuh) and weights packed in blocks (packed.cuh).
 */
#pragma once

#include "kernels/cuda/dense/fp8.cuh"
#include "kernels/cuda/dense/packed.cuh"
#include "kernels/cuda/dense/wgmma.cuh"

static constexpr inline __host__ __device__ bool is_packed(int stored)
{
    return scale_bytes(stored) > 0;
}

/* Words of a row in the scales of a pair of positions; blocks have one. */
static constexpr inline __host__ __device__ int scale_words(int stored)
{
    return scale_bytes(stored) / 2;
}
/* TMA copies from multiples of 16 bytes, and so many. A box of words, one or three a row, begins 0
 * or 2 words before its first row (skew_of()), as many with three as with one; rows are even, so
 * two or four words a row need no skew. */
static inline __host__ __device__ int box_words(int run, int words)
{
    return words % 2 ? (run * words + 5) & ~3 : run * words;
}
static inline __host__ __device__ int skew_of(int words, int row)
{
    return words % 2 ? row & 3 : 0;
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* Where the boxes of a stage of packed weights begin in a panel: those of rows from `row` on. */
template <int STORED> struct packed_boxes {
    const struct ksplit &c;
    const k_stages &k;
    int rows, first; /* rows of a panel; the first one's place among those of a position */
    __device__ __forceinline__ packed_boxes(const struct ksplit &c, const k_stages &k, int rows,
                                            int row)
        : c(c), k(k), rows(rows), first(k.split * rows + row)
    {
    }
    /* The piece of chunk i's codes. */
    __device__ __forceinline__ int place(int i) const
    {
        return (k.in + i) * (int)K_SPLITS + k.split;
    }
    /* The words of both chunks' scales; K_SPLITS skews nothing. */
    __device__ __forceinline__ int scales() const
    {
        const int words = scale_words(STORED);
        return (k.in / 2 * (int)K_SPLITS * rows + first) * words - skew_of(words, first);
    }
    /* Those of what chunk i's blocks have. */
    __device__ __forceinline__ int block(int i) const
    {
        return block_of(c, k.split, k.in + i) * (int)K_SPLITS * rows + first - skew_of(1, first);
    }
};

#endif

/* ---- host ----------------------------------------------------------------------------------- */

/* Describes to TMA the boxes of one part of a matrix: one chunk of a tile's outputs. */
template <int STORED>
static void part_map(struct kdev *d, CUtensorMap *map, const struct mat *m, int panels, int run)
{
    const struct panels *l = &m->panels;
    const int bytes = code_bytes(STORED);
    if (STORED == DT_BF16)
        cuda_panel_map(d, map, m->w, l, panels, run);
    else if (is_packed(STORED))
        cuda_piece_map(d, map, m->w, l->rows * bytes, l->ksplit.each * K_SPLITS, l->n, panels,
                       run * bytes, stored_bytes(*l, STORED));
    else
        cuda_piece_map(d, map, m->w, l->rows * bytes, l->ksplit.chunks, l->n, panels, run * bytes);
}

/* Packed weights: the same for a box of scales, and of blocks. */
template <int STORED>
static void scale_maps(struct kdev *d, CUtensorMap *scales, CUtensorMap *blocks,
                       const struct mat *m, int panels, int run)
{
    const struct panels *l = &m->panels;
    const size_t pitch = stored_bytes(*l, STORED);
    const struct packed_place at = packed_place_of(*l, STORED, 0, 0, 0);
    const int of_scales = in_pairs(l->ksplit.each) / 2 * (int)K_SPLITS * l->rows,
              of_blocks = (last_block(l->ksplit.each - 1) + 1) * (int)K_SPLITS * l->rows,
              words = scale_words(STORED);
    cuda_word_map(d, scales, m->w + at.high, of_scales * words, l->n, pitch,
                  box_words(run, words), panels);
    if (block_bytes(STORED))
        cuda_word_map(d, blocks, m->w + at.block, of_blocks, l->n, pitch, box_words(run, 1),
                      panels);
}
