/* pair_tiles.cuh - how the pairs of the active experts are divided into tiles for the products of
 * prefill rows (experts_prefill.cu, experts_tile.cu).
 */
#pragma once

#include "kernels/cuda/base/reduce.cuh"
#include "kernels/cuda/moe/experts.cuh"

#ifdef __CUDACC__

/* A tile: pairs [from, to) of an expert, outputs out and on. */
struct tile_coord {
    int tile, i; /* the i-th active expert */
    int expert, from, to, out;
};

/* Tiles of one expert and the same outputs are successive, and as wide as the expert's pairs need,
 * since columns beyond them are wasted. */
struct pair_tiles {
    int n;                     /* active experts */
    int upto[MAX_EXPERTS + 1]; /* tiles of pairs before the i-th expert; last entry: all tiles */
    int each[MAX_EXPERTS];     /* pairs of a tile of the i-th expert */
    /* By the first warp of a block. A tile has at most MOST pairs. */
    template <int MOST> __device__ __forceinline__ void make(const moe_args &m)
    {
        const int lane = (int)threadIdx.x, active = __ldcg(m.n_active);
        int sum = 0;
        for (int first = 0; first < active; first += 32) {
            const int i = first + lane, at = min(i, active - 1);
            const int pairs = __ldcg(m.begin + at + 1) - __ldcg(m.begin + at);
            const int tiles = i < active ? (pairs + MOST - 1) / MOST : 0;
            const int before = inclusive_scan(tiles);
            if (i < active)
                upto[i + 1] = sum + before, each[i] = (pairs + tiles - 1) / tiles;
            sum += __shfl_sync(~0u, before, 31);
        }
        if (lane == 0)
            n = active, upto[0] = 0;
    }
    /* Advances i to the expert of a tile; false if there is no such tile. tiles_out: tiles of
     * outputs. */
    __device__ __forceinline__ bool reach(int tiles_out, int tile, int &i) const
    {
        if (tile >= upto[n] * tiles_out)
            return false;
        while (tile >= upto[i + 1] * tiles_out)
            i++;
        return true;
    }
    /* Fills in the tile at.tile; false if there is none. outs: outputs of a tile. */
    __device__ __forceinline__ bool locate(const moe_args &m, int tiles_out, int outs,
                                           struct tile_coord &at) const
    {
        if (!reach(tiles_out, at.tile, at.i))
            return false;
        const int tiles = upto[at.i + 1] - upto[at.i], in = at.tile - upto[at.i] * tiles_out;
        const int begin = __ldcg(m.begin + at.i), end = __ldcg(m.begin + at.i + 1);
        at.expert = __ldcg(m.active + at.i);
        at.from = min(begin + in % tiles * each[at.i], end);
        at.to = min(at.from + each[at.i], end);
        at.out = in / tiles * outs;
        return true;
    }
};

#endif
