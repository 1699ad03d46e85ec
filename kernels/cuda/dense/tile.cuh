/* tile.cuh - building blocks of the tile kernels: dense/tile.cu and moe/experts_tile.cu. They take
 * 17 rows and more on GPUs without wgmma, with mma.sync and cp.async, which every GPU since Ampere
 * has.
 *
 * A block computes a tile of outputs by columns (a column is a term of a packed row). Its warps
 * divide the tile; each has MT times 16 columns by NT times 8 outputs. All threads copy stages of
 * weights and columns into a ring in shared memory, several stages ahead of the multiplication. The
 * ring has mbarriers (base/ring.cuh), so that warps need not keep in step, and each warp loads the
 * operands of its next products into registers while the tensor cores execute the present ones.
 *
 * Weights are the B operand, columns the A operand; in the decode kernel it is the other way round,
 * which changes no bit. Thread (g, q) of a warp reads 8 successive weights of output g from shared
 * memory, where they are as in memory; they are B operands as they are read. Columns are packed as
 * ROW_TILED (tile_place()), so that ldmatrix gives each thread the activations for the same k. Of
 * 16 columns the even ones are the first eight rows of the A operand, so that both terms of a row
 * end in one thread. The 16-byte pieces of columns are stored XORed with bits of the column's
 * number, so that ldmatrix meets no bank conflict.
 *
 * The order of summation is that of product.cuh: the k splits are accumulated one after the other,
 * each from zero, and added in order.
 */
#pragma once

#include "kernels/cuda/base/copy.cuh"
#include "kernels/cuda/dense/product.cuh"

/* The shape of a tile: warps along outputs and columns, and a warp's share in units of 8 outputs
 * (NT) and 16 columns (MT). BLOCKS: blocks on a multiprocessor. */
template <int WARPS_OUT_, int WARPS_COL_, int NT_, int MT_, int BLOCKS_> struct tile_shape {
    static constexpr int WARPS_OUT = WARPS_OUT_, WARPS_COL = WARPS_COL_, NT = NT_, MT = MT_,
                         BLOCKS = BLOCKS_, THREADS = WARPS_OUT * WARPS_COL * 32,
                         WARP_OUTS = NT * 8, WARP_COLS = MT * 16, OUTS = WARPS_OUT * WARP_OUTS,
                         COLS = WARPS_COL * WARP_COLS;
};

#ifdef __CUDACC__

/* Where 16-byte piece `piece` of a column is in shared memory, in bytes; the column has PIECES of
 * them. Eight even (or odd) columns in succession have a piece in eight different groups of
 * banks. */
template <int PIECES> __device__ __forceinline__ int piece_at(int col, int piece)
{
    static_assert(PIECES == 4 || PIECES == 16);
    if (PIECES == 16)
        return (col * 16 + (piece ^ col / 2 % 8)) * 16;
    return (col / 2 * 8 + ((col % 2 * 4 + piece) ^ col / 2 % 8)) * 16;
}

/* The column and the piece (of two) for which a lane gives ldmatrix an address. */
__device__ __forceinline__ int lane_column()
{
    const int lane = (int)threadIdx.x % 32;
    return lane % 8 * 2 + lane / 8 % 2;
}
__device__ __forceinline__ int lane_piece() { return (int)threadIdx.x % 32 / 16; }

/* What is called between products where nothing is copied. */
struct no_copies {
    template <int STEP> __device__ __forceinline__ void operator()() const {}
};

template <int MT, int NT, int EACH>
__device__ __forceinline__ void set_sums(float (&sum)[MT][NT][EACH], float to)
{
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int j = 0; j < NT; j++)
#pragma unroll
            for (int e = 0; e < EACH; e++)
                sum[i][j][e] = to;
}

/* Adds a k split's sums, both terms of a row together. Before the first split the sums are -0, to
 * which any number is added exactly. */
template <int TERMS, int MT, int NT>
__device__ __forceinline__ void add_split(float (&sum)[MT][NT][4 / TERMS],
                                          const float (&acc)[MT][NT][4])
{
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int j = 0; j < NT; j++)
#pragma unroll
            for (int e = 0; e < 4 / TERMS; e++)
                sum[i][j][e] += TERMS == 1 ? acc[i][j][e] : acc[i][j][e] + acc[i][j][e + 2];
}

/* The row, of the warp's first, to which sums [i][.][2 * half] and [i][.][2 * half + 1] belong:
 * those of outputs 2q and 2q + 1 of eight. */
template <int TERMS> __device__ __forceinline__ int row_of(int i, int half)
{
    const int g = (int)threadIdx.x % 32 / 4;
    return TERMS == 1 ? i * 16 + 2 * g + half : i * 8 + g;
}

#endif
