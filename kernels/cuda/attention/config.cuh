/* config.cuh - what the kernels of tile.cu and decode.cu are configured by: their arguments, the
 * shape of a thread block.
 *
 * Words of these files. A key is a token position that has a cell, its K and V of one kv head. The
 * tree part of a row is its last tiles of keys, from the tile of the key 17 before the row's end:
 * it holds all keys that the row reads through the expand table. The prefix part is everything
 * before. A segment is a run of successive tiles of one row whose sums (maximum score, sum of
 * weights, weighted values) are kept apart and combined by log-sum-exp: the tree part is one
 * segment, the splits of the prefix part are the others. A weight is exp(score - maximum). A packed
 * row is one row and one query head: the rows of a tile times the query heads of a kv head are the
 * rows that an MMA multiplies.
 */
#pragma once

#include "kernels/cuda/attention/attention.cuh"
#include "kernels/cuda/attention/cell.cuh"
#include "kernels/cuda/base/mma.cuh"

#include <limits.h>

enum {
    TREE_KEYS = K_MAX_STEPS + 1, /* the last keys of a row, which only that row may see */
    RING_TILES = 8,              /* tiles whose cells are looked up ahead */
    LEAST_SHARED = 99 << 10,     /* shared memory of a block on the GPUs since 8.0 with the least */
};

/* When a kernel waits for the kernels before it in the stream (programmatic dependent launch). */
enum wait_when {
    WAIT_AT_START,    /* before it reads anything */
    WAIT_BEFORE_NEW,  /* before it reads q and the cells that this forward pass writes */
};

struct tile_args {
    struct attn_args a;
    float2 *ml;         /* (rows, n_head, most_splits): maximum as an exponent of two, and sum of
                           weights */
    uint4 *partials;    /* segments sent from block to block (combine.cuh) */
    float *totals;      /* IN_SCRATCH: the combined sums of each block that walks all keys */
    enum wait_when wait;
    float factor;       /* score * factor is the exponent of two of a weight */
    /* log2 of the page size; of the least tiles of a split; of the most splits of a row, up to
     * SHORT_KEYS keys and beyond */
    int page_shift, least_shift, cap_shift, long_shift;
    int inverse;        /* 65536 / a.group + 1, see row_of() */
    int tiles, tile_rows; /* tiles of rows; rows of a tile */
    int split_blocks;   /* blocks that share a tile's splits; 0: one block walks all keys */
    bool merge_splits;  /* a block walks successive splits as one stretch of tiles */
};

/* The shape of a block: WM groups of WARPS warps. A group takes MI * 16 packed rows; its warps
 * divide the keys for the scores and the dimensions for the values. WGMMA: warps of four groups
 * multiply together, and the queries are in shared memory; each warp of a group computes the scores
 * of all keys, so that the warps exchange nothing, and the values of its share of the dimensions.
 * FP8: of the cells. */
template <int HD_, int MI_, int WM_, int WARPS_, int STAGES_, int BLOCKS_, bool WGMMA_ = false,
          bool FP8_ = false>
struct tile_config {
    using with_fp8 = tile_config<HD_, MI_, WM_, WARPS_, STAGES_, BLOCKS_, WGMMA_, true>;
    static_assert(!WGMMA_ || (MI_ == 1 && WM_ % 4 == 0));
    enum : int {
        HD = HD_, MI = MI_, WM = WM_, STAGES = STAGES_, BLOCKS = BLOCKS_, WGMMA = WGMMA_,
        FP8 = FP8_, CODES = 0,
        WARPS = WARPS_,                  /* warps of a group */
        WN = WGMMA ? 1 : WARPS,          /* warps among which the keys are divided */
        NT = 32 * WM * WARPS,
        ROWS = 16 * MI * WM,
        TK = HD > 128 ? 32 : 64,         /* keys of a tile */
        CHUNKS = HD / 8,                 /* chunks of 16 bytes of a cell in shared memory */
        CELL_PARTS = HD / (FP8 ? 16 : 8),     /* parts of 16 bytes of a cell in its pool */
        EACH = TK * CELL_PARTS / NT,          /* parts of K (and of V) that a thread fetches */
        STEP = NT / CELL_PARTS,               /* keys between two successive parts of a thread */
        LOOKUPS = (4 * TK + NT - 1) / NT, /* keys of four tiles that a thread looks up */
        KT = TK / 8 / WN,                /* n8 tiles of keys of a warp */
        DT = HD / 8 / WARPS,             /* n8 tiles of dimensions of a warp */
        LG = 2 / WN,                     /* parts of a warp's keys, each in one half tile */
        LT = KT / LG,                    /* n8 tiles of such a part */
        /* The combined sums stay in registers, or lie in device memory, or in shared memory. */
        IN_REGS = (!WGMMA || BLOCKS == 1) && MI * DT * 4 <= (BLOCKS == 1 ? 64 : 32),
        REG_TOTALS = IN_REGS ? MI * DT * 4 : 0,
        IN_SCRATCH = ROWS * HD > 16384,
        AHEAD = WGMMA && STAGES == 4,    /* scores are computed one tile ahead */
        TILE_BYTES = TK * HD * 2,
        PAIR_BYTES = 2 * TILE_BYTES,
        P_AT = STAGES * PAIR_BYTES,
        MAX_AT = P_AT + (WN > 1 ? ROWS * TK * 2 : 0),
        L_AT = MAX_AT + (WN > 1 ? ROWS * WN * 4 : 0),
        Q_AT = L_AT + (WN > 1 ? ROWS * 2 * 4 : 0),
        TOTAL_AT = Q_AT + (WGMMA ? ROWS * HD * 2 : 0),
        SPLIT_BYTES = TOTAL_AT,         /* shared memory if segments are stored: no combined sums */
        BYTES = TOTAL_AT + (IN_REGS || IN_SCRATCH ? 0 : ROWS * HD * 4),
    };
};

/* Barrier of the warps that share rows. */
template <class S> __device__ __forceinline__ void sync_group(int wm)
{
    if constexpr (S::WN == 1)
        __syncwarp();
    else if constexpr (S::WM == 1)
        __syncthreads();
    else
        named_barrier_at<32 * S::WN>(1 + wm);
}

/* The row of packed row i: i / group, for i < ROWS and groups of at most 16. */
__device__ __forceinline__ int row_of(const tile_args &t, int i) { return i * t.inverse >> 16; }

/* ---- host -------------------------------------------------------------------------------- */

/* Attention by decode.cu. At most 32 packed rows a tile; 16 for heads of 64 dimensions. */
void cuda_attn_rounds(struct kdev *d, const tile_args &t, const struct round_form &f);
