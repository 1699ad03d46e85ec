/* panel.cuh - how a matrix of bf16 lies on the device.
 *
 * A panel is a few successive rows of the matrix (outputs). It lies in memory in the order in which
 * a block multiplies with it (dense/decode.cu), so that a block reads one run of bytes from its first
 * to its last: k is ksplit into chunks of 32 and these into K_SPLITS splits, each of which a warp adds up
 * (dense/product.cuh); after the first chunks of all splits come the second ones, and so on. A chunk
 * is 64 bytes of one row after the other.
 *
 *     (panels, positions, splits, rows of a panel, 32)
 *
 * Rows behind the matrix's last one and elements behind k are zeros. How many rows a panel has
 * depends on the number of rows and of multiprocessors: every multiprocessor should have as much to
 * read as the others.
 */
#ifndef AERIE_CUDA_PANEL_CUH
#define AERIE_CUDA_PANEL_CUH

#include "kernels/cuda/cuda.h"

enum {
    K_SPLITS = 8,
    PANEL_MAX_ROWS = 24, /* rows */
    K_CHUNK = 32, K_CHUNK_BYTES = 64,
};

static inline __host__ __device__ int panel_rows(int n, int n_sm)
{
    /* panels of a multiprocessor */
    int each = (n + n_sm * PANEL_MAX_ROWS - 1) / (n_sm * PANEL_MAX_ROWS);
    return ((n + n_sm * each - 1) / (n_sm * each) + 1) / 2 * 2;   /* even, for stores of pairs */
}

/* How k is ksplit. Runs have `each` chunks, but the last that has any has `rest`; `splits` have any. */
struct ksplit {
    int chunks, each, splits, rest;
};
static inline __host__ __device__ struct ksplit ksplit_of(int kp)
{
    struct ksplit c;
    c.chunks = kp / K_CHUNK;
    c.each = (c.chunks + K_SPLITS - 1) / K_SPLITS;
    c.splits = (c.chunks + c.each - 1) / c.each;
    c.rest = c.chunks - (c.splits - 1) * c.each;
    return c;
}
/* Chunks of the positions before i. */
static inline __host__ __device__ int chunks_before(const struct ksplit &c, int i)
{
    return i * c.splits - (i > c.rest ? i - c.rest : 0);
}
/* Which of a panel's chunks, as they lie, is number `chunk` of k. */
static inline __host__ __device__ int chunk_place(const struct ksplit &c, int chunk)
{
    return chunks_before(c, chunk % c.each) + chunk / c.each;
}
/* And back. */
static inline __host__ __device__ int chunk_at(const struct ksplit &c, int place)
{
    int whole = c.rest * c.splits, i, run;
    if (place < whole)
        i = place / c.splits, run = place % c.splits;
    else
        i = c.rest + (place - whole) / (c.splits - 1), run = (place - whole) % (c.splits - 1);
    return run * c.each + i;
}

/* A matrix of (n, k). */
struct panels {
    int rows, n; /* rows of a panel, panels */
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
/* Where 32 elements of a row lie, in bytes from the first panel. */
static inline __host__ __device__ size_t panel_chunk(const struct panels &p, int row, int chunk)
{
    size_t at = (size_t)(row / p.rows) * (size_t)p.ksplit.chunks + (size_t)chunk_place(p.ksplit, chunk);
    return (at * (size_t)p.rows + (size_t)(row % p.rows)) * K_CHUNK_BYTES;
}

/* Whether the device keeps a tensor so. */
static inline bool cuda_paneled(const struct tensor *t)
{
    return t->type == DT_BF16 && t->n_dim == 2 && !t->by_row;
}
static inline struct panels cuda_panels(const struct kdev *d, const struct tensor *t)
{
    CHECK(cuda_paneled(t) && t->dim[0] <= INT32_MAX && t->dim[1] <= INT32_MAX);
    return panels_of((int)t->dim[0], (int)t->dim[1], d->n_sm);
}

#endif
