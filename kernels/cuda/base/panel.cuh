/* panel.cuh - the panel layout of bf16 matrices on the device.
 *
 * k, the dimension along which a product sums, is divided into chunks of 32 elements, and the
 * chunks into K_SPLITS contiguous ranges, the k splits. One warp accumulates each k split, and the
 * splits' partial sums are added in order (dense/product.cuh).
 *
 * A panel is a few successive rows of the matrix (outputs). Its chunks are stored in the order in
 * which a block multiplies them (dense/decode.cu), so that the block reads one contiguous range of
 * memory: first the first chunk of every split, then the second chunk of every split, and so on.
 * The index within a split is called the position. A chunk of a panel is 64 bytes of one row after
 * the other:
 *
 *     (panels, positions, splits, rows of a panel, 32)
 *
 * Rows behind the matrix's last row and elements behind k are zeros. The number of rows of a panel
 * depends on the matrix's rows and on the number of multiprocessors, so that every multiprocessor
 * has about the same number of bytes to read.
 */
#ifndef AERIE_CUDA_PANEL_CUH
#define AERIE_CUDA_PANEL_CUH

#include "kernels/cuda/cuda.h"

enum {
    K_SPLITS = 8,
    PANEL_MAX_ROWS = 24,
    PANEL_SHORT_ROWS = 8, /* of a matrix with at most two rows a multiprocessor */
    K_CHUNK = 32, K_CHUNK_BYTES = 64,
};

/* The number of rows of a panel of a matrix of n rows, on n_sm multiprocessors. */
static inline __host__ __device__ int panel_rows(int n, int n_sm)
{
    /* `each`: panels of a multiprocessor. The result is even, so that outputs can be stored in
     * pairs. Panels of two rows are slower than PANEL_SHORT_ROWS (measured: results-h200.md, ninth
     * round): more blocks take part, and one warp cannot read the sums of squares of all panels of
     * a head of 256 (cuda_fuses_heads()). */
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
/* The inverse of chunk_place(). */
static inline __host__ __device__ int chunk_at(const struct ksplit &c, int place)
{
    int whole = c.rest * c.splits, i, run;
    if (place < whole)
        i = place / c.splits, run = place % c.splits;
    else
        i = c.rest + (place - whole) / (c.splits - 1), run = (place - whole) % (c.splits - 1);
    return run * c.each + i;
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
/* Where chunk `chunk` of row `row` begins, in bytes from the first panel. */
static inline __host__ __device__ size_t panel_chunk(const struct panels &p, int row, int chunk)
{
    size_t at =
        (size_t)(row / p.rows) * (size_t)p.ksplit.chunks + (size_t)chunk_place(p.ksplit, chunk);
    return (at * (size_t)p.rows + (size_t)(row % p.rows)) * K_CHUNK_BYTES;
}

/* Whether the device stores the tensor in panels. */
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
