/* panel.cuh - the panel layout of bf16 matrices on the device.
 *
 * k, the dimension along which a product sums, is divided into chunks of 32 elements, and the
 * chunks into K_SPLITS contiguous ranges, the k splits. One warp accumulates each k split, and the
 * splits' partial sums are added in order (dense/product.cuh).
 *
 * A panel is a few successive rows of the matrix (outputs). Its chunks are stored in the order in
 * which a block multiplies them (dense/decode_run.cuh), so that the block reads one contiguous
 * range of memory: first the first chunk of every split, then the second chunk of every split, and
 * so on. The index within a split is called the position. Of the 32 elements of each row, a chunk
 * of a panel has four units of 16 bytes, in the order of tile_place() (base/row.cuh): the first
 * unit of all rows, then the second, and so on:
 *
 *     (panels, positions, splits, 4 units, rows of a panel, 8)
 *
 * So eight rows of a unit are 128 successive bytes. That is what wgmma reads as an operand in
 * shared memory, whatever the panels that a tile begins and ends in (dense/prefill.cu); and
 * ldmatrix gives a lane the same four words of a row that it would have loaded as elements 8q ..
 * 8q + 7 of the row, without bank conflicts.
 *
 * Rows behind the matrix's last row and elements behind k are zeros. The number of rows of a panel
 * depends on the matrix's rows and on the number of multiprocessors, so that every multiprocessor
 * has about the same number of bytes to read.
 */
#pragma once

#include "kernels/cuda/cuda.h"

enum {
    K_SPLITS = 8,
    PANEL_MAX_ROWS = 24,
    PANEL_SHORT_ROWS = 8, /* of a matrix with at most two rows a multiprocessor */
    PANEL_MAX_K = 139776, /* elements of the longest row: dense/tile.cu has places of 22 bits */
    K_CHUNK_BYTES = 64,
    UNITS = 4, UNIT_BYTES = 16, /* of a row's chunk */
};

/* The number of rows of a panel of a matrix of n rows, on n_sm multiprocessors. */
static inline __host__ __device__ int panel_rows(int n, int n_sm)
{
    /* `each`: panels of a multiprocessor. The result is even, so that outputs can be stored in
     * pairs. Panels of two rows are slower than PANEL_SHORT_ROWS (measured: results-h200.md, ninth
     * round): more blocks take part, and one warp cannot read the sums of squares of all panels of
     * a head of 256 (finishes_heads() of route.c). */
    int each = (n + n_sm * PANEL_MAX_ROWS - 1) / (n_sm * PANEL_MAX_ROWS);
    int rows = ((n + n_sm * each - 1) / (n_sm * each) + 1) / 2 * 2;
    return rows < 4 ? PANEL_SHORT_ROWS : rows;
}

/* How k is divided. `splits` of the K_SPLITS splits have chunks: each has `each` chunks, but the
 * last of them has `rest`. */
struct ksplit {
    int chunks, each, splits, rest;
};
/* The division of k; kp: k rounded up to whole chunks. */
static inline __host__ __device__ struct ksplit ksplit_of(int kp)
{
    struct ksplit c;
    c.chunks = kp / K_CHUNK;
    c.each = (c.chunks + K_SPLITS - 1) / K_SPLITS;
    c.splits = (c.chunks + c.each - 1) / c.each;
    c.rest = c.chunks - (c.splits - 1) * c.each;
    return c;
}
/* The number of chunks at positions before i. */
static inline __host__ __device__ int chunks_before(const struct ksplit &c, int i)
{
    return i * c.splits - (i > c.rest ? i - c.rest : 0);
}
/* The place in a panel of chunk number `chunk` of k. */
static inline __host__ __device__ int chunk_place(const struct ksplit &c, int chunk)
{
    return chunks_before(c, chunk % c.each) + chunk / c.each;
}
/* Which chunk of which k split is at a place of a panel, the inverse of chunk_place(): number
 * split * each + position of k. Behind the last place: anything. */
struct split_chunk {
    int split, position;
};
static inline __host__ __device__ struct split_chunk split_chunk_of(const struct ksplit &c,
                                                                    int place)
{
    const int whole = c.rest * c.splits; /* places of positions that every split has */
    const int splits = place < whole ? c.splits : c.splits - 1, from = place < whole ? 0 : whole;
    const int in = (int)((unsigned)(place - from) / (unsigned)(splits ? splits : 1));
    return {place - from - in * splits, in + (place < whole ? 0 : c.rest)};
}

/* The panels of an (n, k) matrix. */
struct panels {
    int rows, n; /* rows of a panel; number of panels */
    struct ksplit ksplit;
};
static inline __host__ __device__ struct panels panels_of(int n, int k, int n_sm)
{
    struct panels p;
    p.rows = panel_rows(n, n_sm);
    p.n = (n + p.rows - 1) / p.rows;
    p.ksplit = ksplit_of((k + K_CHUNK - 1) / K_CHUNK * K_CHUNK);
    return p;
}
static inline __host__ __device__ size_t panel_bytes(const struct panels &p)
{
    return (size_t)p.ksplit.chunks * (size_t)p.rows * K_CHUNK_BYTES;
}
/* Where elements i and i + 1 of the first row of a panel are, in bytes from the panel on; i is a
 * multiple of 4. Elements i + 2 and i + 3 are one unit of all rows further, and the next row's are
 * UNIT_BYTES further. */
static inline __host__ __device__ uint32_t panel_place(const struct panels &p, int i)
{
    const int unit = i / 4 % 2 * 2, word = i % K_CHUNK / 8;
    return (uint32_t)(chunk_place(p.ksplit, i / K_CHUNK) * p.rows * K_CHUNK_BYTES +
                      unit * p.rows * UNIT_BYTES + word * 4);
}

/* Whether the device stores the tensor in panels; a packed one: if it stays packed. */
static inline bool cuda_paneled(const struct tensor *t)
{
    return dtype_as_bf16(t->type) && t->n_dim == 2 && !t->by_row;
}
enum { TILE_OUTS = 16 }; /* outputs of a tile of experts */
/* Whether a tensor holds experts that stay packed on the device (moe/expert_blocks.cuh): a tile
 * must belong to one expert. */
static inline bool cuda_packed_experts(const struct tensor *t)
{
    return experts_as(t->type) != DT_NONE && t->n_dim == 3 && t->dim[1] % TILE_OUTS == 0;
}
/* Whether upload() leaves a packed tensor packed. */
static inline bool cuda_stays_packed(const struct kdev *d, const struct tensor *t)
{
    return cuda_packed_experts(t) || (dtype_packed(t->type) && packs_on(&d->gpu, t->type) &&
                                    !t->quantize && cuda_paneled(t));
}
/* How the panels of a matrix that is not quantized are stored: DT_BF16, or packed_as(). */
static inline int cuda_panels_as(const struct tensor *t)
{
    return dtype_packed(t->type) ? packed_as(t->type) : (int)t->type;
}
static inline struct panels cuda_panels(const struct kdev *d, const struct tensor *t)
{
    CHECK(cuda_paneled(t) && t->dim[0] <= INT32_MAX && t->dim[1] <= INT32_MAX);
    return panels_of((int)t->dim[0], (int)t->dim[1], d->gpu.n_sm);
}

#ifdef __CUDACC__

/* A lane's four words of eight rows, from shared memory; at: where row lane % 8 has unit lane / 8.
 * Lane l gets word l % 4 of each unit of row l / 4: elements 8 * (l % 4) and the next seven. */
__device__ __forceinline__ uint4 shared_units(uint32_t at)
{
    uint4 v;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at));
    return v;
}

#endif
