/* pack.cu - packs rows for a product, one block a row: applies a pending residual update,
 * normalises, and stores the 16-bit terms.
 *
 * pack_short_kernel packs most rows. It is so short that its latency counts: its code has to be
 * fetched from memory, too, and its predecessor and successor wait for it. Everything that does not
 * depend on the row is done before the wait.
 */
#include "kernels/cuda/dense/product.cuh"

/* ---- rows that can be loaded four floats at a time ------------------------------------------ */

template <int REGS>
__device__ __forceinline__ void norm_short(row_groups<REGS> &y, int n, const struct norm &norm,
                                           const norm_groups<REGS> &w, float *scratch)
{
    const float inv = row_inverse_short(y, n, norm, scratch);
#pragma unroll
    for (int j = 0; j < REGS; j++)
        y.v[j] = normed_short(norm, y.v[j], inv, w.v[j]);
}

template <int REGS>
__device__ __forceinline__ void fetch_row(const float *src, int n, row_groups<REGS> &x)
{
#pragma unroll
    for (int j = 0; j < REGS; j++)
        x.v[j] = load_four_volatile(src + row_index(0, j), row_index(0, j) < n);
}

/* The sum of a row's partial sums, in the order of the splits; absent splits count as zeros. raw:
 * the thread's first element in the first split. */
template <int REGS>
__device__ __forceinline__ void fetch_splits(const float *raw, int rows, int splits, int n,
                                             row_groups<REGS> &y)
{
    const size_t apart = partial_floats(rows, n), step = (size_t)(ROW_STEP * partial_rows(rows));
#pragma unroll
    for (int from = 0; from < REGS; from += ROW_REGS) { /* registers hold so many at a time */
        row_part part[PENDING_SPLITS];
#pragma unroll
        for (int r = 0; r < PENDING_SPLITS; r++)
#pragma unroll
            for (int j = 0; j < ROW_REGS; j++)
                part[r].v[j] =
                    load_four_volatile(raw + (size_t)r * apart + (size_t)(from + j) * step,
                                       r < splits && row_index(0, from + j) < n);
#pragma unroll
        for (int j = 0; j < ROW_REGS; j++)
            y.v[from + j] = part[0].v[j];
#pragma unroll
        for (int r = 1; r < PENDING_SPLITS; r++)
#pragma unroll
            for (int j = 0; j < ROW_REGS; j++)
                y.v[from + j] = plus(y.v[from + j], part[r].v[j]);
    }
}
static_assert(WIDE_REGS % ROW_REGS == 0);

/* Up to this many rows, pack_short_kernel triggers early: the following product's blocks find free
 * multiprocessors and can fetch weights. With more rows those blocks would occupy multiprocessors
 * that the remaining rows need. */
enum { EARLY = 16 };

/* The update that comes before a row's own norm: none, or of rows, or of split-K partial sums. */
enum update { NO_UPDATE, UPDATE_ROWS, UPDATE_SPLITS };

template <int UPDATE, int REGS>
__global__ void __launch_bounds__(ROW_THREADS, 1)
    pack_short_kernel(const __grid_constant__ struct rows_in in,
                      const __grid_constant__ struct row_update update, int splits,
                      const __grid_constant__ struct row_format f, uint16_t *x)
{
    __shared__ float scratch[2 * ROW_WARPS];
    const int r = (int)blockIdx.x, n = in.n, rows = (int)gridDim.x;
    constexpr bool updates = UPDATE != NO_UPDATE;
    norm_groups<REGS> w, post;
    row_groups<REGS> y, old;
    uint16_t *to[REGS];
    const bool early = rows <= EARLY;
    if (early)
        pdl_trigger();
    fetch_short(in.norm, n, w);
    if (updates)
        fetch_short(update.post, n, post);
#pragma unroll
    for (int j = 0; j < REGS; j++)
        to[j] = packed_at(f, x, r, row_index(0, j));
    float *sum = update.x + (size_t)r * (size_t)n;
    const float *src = UPDATE == UPDATE_SPLITS   ? update.src + partial_at(rows, r, row_index(0, 0))
                       : UPDATE == UPDATE_ROWS ? update.src + (size_t)r * (size_t)n
                                           : in.src + (size_t)r * in.stride;
    pdl_wait();
    if (!early)
        pdl_trigger();
    if (UPDATE == UPDATE_SPLITS)
        fetch_splits(src, rows, splits, n, y);
    else
        fetch_row(src, n, y);
    if (updates && update.add)
        fetch_row(sum, n, old);
    if (updates) {
        norm_short(y, n, update.post, post, scratch);
#pragma unroll
        for (int j = 0; j < REGS; j++) {
            if (update.add)
                y.v[j] = plus(y.v[j], old.v[j]);
            if (row_index(0, j) < n)
                *(float4 *)(sum + row_index(0, j)) = y.v[j];
        }
    }
    if (in.capture)
        store_part(in.capture + (size_t)r * in.capture_stride, n, y);
    norm_short(y, n, in.norm, w, scratch + ROW_WARPS);
#pragma unroll
    for (int j = 0; j < REGS; j++)
        if (row_index(0, j) < n)
            put_short(to[j], f.kind == ROW_TILED, y.v[j]);
    if (UPDATE == UPDATE_SPLITS)
        __syncwarp(); /* all lanes have their values: without norms nothing else says so */
#pragma unroll
    for (int j = 0; UPDATE == UPDATE_SPLITS && j < REGS; j++)
        if (row_index(0, j) < n)
            discard_splits(src + (size_t)j * (size_t)(ROW_STEP * partial_rows(rows)),
                         partial_floats(rows, n), splits);
}

/* ---- any rows ------------------------------------------------------------------------------- */

__global__ void __launch_bounds__(ROW_THREADS)
    pack_kernel(const __grid_constant__ struct rows_in in, int terms,
                const __grid_constant__ struct row_format f, uint16_t *x)
{
    __shared__ float scratch[ROW_WARPS];
    row_part norm;
    pdl_trigger();
    load_norm(in.norm, in.n, 0, norm);
    pdl_wait_trigger();
    pack_row(in, (int)blockIdx.x, terms, norm, x, f, scratch);
}

/* Rows without a norm do not need a block each. Blocks (row, part of the row), four elements a
 * thread. */
__global__ void __launch_bounds__(ROW_THREADS)
    pack_plain_kernel(const __grid_constant__ struct rows_in in, int terms,
                      const __grid_constant__ struct row_format f, uint16_t *x)
{
    const int r = (int)blockIdx.x, i = row_index((int)blockIdx.y * ROW_STEP, 0);
    const float *src = in.src + (size_t)r * in.stride;
    pdl_trigger();
    pdl_wait_trigger();
    if (i < f.kp)
        put_terms(four_of(src, in.n, i), i, in.n, terms, x, r * terms, f);
}

/* ---- host ----------------------------------------------------------------------------------- */

/* See cuda_exclusive_smem(). For few rows before q, k and v, blocks may share a multiprocessor:
 * those products have so little weight data that all of it should be requested early, and the
 * product's blocks start only after all blocks of this kernel have started. */
static size_t room_of(const struct kdev *d, const struct product *p)
{
    return p->glu || p->rows > EARLY ? cuda_exclusive_smem(d, p->rows) : 0;
}

template <int REGS> static void pack_short(struct kdev *d, struct product *p,
                                           const struct row_format *f, uint16_t *x)
{
    cuda_launch(d,
                p->update_splits ? pack_short_kernel<UPDATE_SPLITS, REGS>
                : p->update.src  ? pack_short_kernel<UPDATE_ROWS, REGS>
                                 : pack_short_kernel<NO_UPDATE, REGS>,
                dim3((unsigned)p->rows), ROW_THREADS, room_of(d, p), p->in, p->update,
                p->update_splits, *f, x);
}

void cuda_pack_rows(struct kdev *d, struct product *p, enum row_pack how,
                    const struct row_format *f)
{
    const size_t bytes = (size_t)p->rows * (size_t)p->x.terms * (size_t)p->x.kp * sizeof(uint16_t);
    uint16_t *x = (uint16_t *)cuda_take(d, bytes);
    const dim3 rows((unsigned)p->rows);
    p->x.x = x;
    if (how == PACK_PLAIN)
        cuda_launch(d, pack_plain_kernel, dim3(rows.x, (unsigned)div_up(p->x.kp, ROW_STEP)),
                    ROW_THREADS, 0, p->in, p->x.terms, *f, x);
    else if (how == PACK_ANY)
        cuda_launch(d, pack_kernel, rows, ROW_THREADS, 0, p->in, p->x.terms, *f, x);
    else if (p->in.n <= ROW_PASS)
        pack_short<ROW_REGS>(d, p, f, x);
    else
        pack_short<WIDE_REGS>(d, p, f, x);
}
