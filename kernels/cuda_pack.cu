/* cuda_pack.cu - rows become packed ones, between products: with what they are still owed, and with
 * their norm. One block a row.
 *
 * The kernel that most rows come by is short: it comes from memory as other data does, and what
 * stands before it and behind it waits. Everything that is not of the row is done before the wait.
 */
#include "kernels/cuda_product.cuh"

/* ---- rows that can be read by fours --------------------------------------------------------- */

__device__ __forceinline__ void fetch_short(const struct norm &norm, int n, short_weights &w)
{
#pragma unroll
    for (int j = 0; j < ROW_HELD; j++)
        w.v[j] = norm.w.p && row_index(0, j) < n
                     ? __ldg((const uint2 *)((const bf16 *)norm.w.p + row_index(0, j)))
                     : make_uint2(0, 0);
}

__device__ __forceinline__ void fetch_row(const float *src, int n, struct row_part &x)
{
#pragma unroll
    for (int j = 0; j < ROW_HELD; j++)
        x.v[j] = ask_four(src + row_index(0, j), row_index(0, j) < n);
}

/* The sum of a row's runs, in their order; missing ones are zeros. raw: the first one's row. */
__device__ __forceinline__ void fetch_runs(const float *raw, size_t apart, int runs, int n,
                                           struct row_part &y)
{
    struct row_part part[RAW_RUNS];
#pragma unroll
    for (int r = 0; r < RAW_RUNS; r++)
        fetch_row(raw + (size_t)min(r, runs - 1) * apart, n, part[r]);
    y = part[0];
#pragma unroll
    for (int r = 1; r < RAW_RUNS; r++)
#pragma unroll
        for (int j = 0; j < ROW_HELD; j++)
            y.v[j] = plus(y.v[j], r < runs ? part[r].v[j] : make_float4(0, 0, 0, 0));
}

__device__ __forceinline__ void put_short(uint16_t *to, bool tiled, float4 y)
{
    const __nv_bfloat162 a = __floats2bfloat162_rn(y.x, y.y), b = __floats2bfloat162_rn(y.z, y.w);
    const uint2 v = make_uint2(*(const uint32_t *)&a, *(const uint32_t *)&b);
    if (tiled)
        *(uint32_t *)to = v.x, *(uint32_t *)(to + 8) = v.y;
    else
        *(uint2 *)to = v;
}

/* RUNS_BEFORE: what rows are owed is the sum of `runs` runs. */
template <bool RUNS_BEFORE>
__global__ void __launch_bounds__(ROW_THREADS, 1)
    pack_short_kernel(const __grid_constant__ struct rows_in in,
                      const __grid_constant__ struct row_before before, int runs,
                      const __grid_constant__ struct row_format f, uint16_t *x)
{
    __shared__ float room[2 * ROW_WARPS];
    const int r = (int)blockIdx.x, n = in.n;
    const bool joins = before.raw;
    const size_t at = (size_t)r * (joins ? (size_t)n : in.stride);
    short_weights w, post;
    struct row_part y, old;
    uint16_t *to[ROW_HELD];
    let_next();
    fetch_short(in.norm, n, w);
    if (joins)
        fetch_short(before.post, n, post);
#pragma unroll
    for (int j = 0; j < ROW_HELD; j++)
        to[j] = packed_at(f, x, r, row_index(0, j));
    after();
    if (joins && before.add)
        fetch_row(before.x + at, n, old);
    if (RUNS_BEFORE)
        fetch_runs(before.raw + at, (size_t)gridDim.x * (size_t)n, runs, n, y);
    else
        fetch_row((joins ? before.raw : in.src) + at, n, y);
#pragma unroll 1
    for (int turn = joins ? 0 : 1; turn < 2; turn++) { /* one code for both norms */
        const struct norm &norm = turn ? in.norm : before.post;
        const float inv = row_inverse_short(y, n, norm, room + turn * ROW_WARPS);
#pragma unroll
        for (int j = 0; j < ROW_HELD; j++) {
            float4 z = normed_short(norm, y.v[j], inv, turn ? w.v[j] : post.v[j]);
            if (row_index(0, j) >= n)
                continue;
            if (turn) {
                put_short(to[j], f.kind == ROW_TILED, z);
                continue;
            }
            y.v[j] = before.add ? plus(z, old.v[j]) : z;
            *(float4 *)(before.x + at + row_index(0, j)) = y.v[j];
        }
    }
}

/* ---- any rows ------------------------------------------------------------------------------- */

__global__ void __launch_bounds__(ROW_THREADS)
    pack_kernel(const __grid_constant__ struct rows_in in, int terms,
                const __grid_constant__ struct row_format f, uint16_t *x)
{
    __shared__ float room[ROW_WARPS];
    struct row_part norm;
    let_next();
    load_norm(in.norm, in.n, 0, norm);
    after();
    pack_row(in, (int)blockIdx.x, terms, norm, x, f, room);
}

/* ---- host ----------------------------------------------------------------------------------- */

static bool short_norm(const struct norm *n)
{
    return !n->w.p || (n->w.type == DT_BF16 && (uintptr_t)n->w.p % 8 == 0);
}

bool cuda_packs_short(const struct product *p)
{
    return p->x.terms == 1 && p->in.n % K_CHUNK == 0 && p->in.n <= ROW_PASS &&
           p->in.stride % 4 == 0 && (uintptr_t)p->in.src % 16 == 0 && short_norm(&p->in.norm);
}

void cuda_pack_rows(struct kdev *d, struct product *p, const struct row_format *f)
{
    const size_t bytes = (size_t)p->rows * (size_t)p->x.terms * (size_t)p->x.kp * sizeof(uint16_t);
    uint16_t *x = (uint16_t *)cuda_take(d, bytes);
    const dim3 rows((unsigned)p->rows);
    p->x.x = x;
    if (!cuda_packs_short(p))
        cuda_launch(d, pack_kernel, rows, ROW_THREADS, 0, p->in, p->x.terms, *f, x);
    else if (p->before_runs)
        cuda_launch(d, pack_short_kernel<true>, rows, ROW_THREADS, 0, p->in, p->before,
                    p->before_runs, *f, x);
    else
        cuda_launch(d, pack_short_kernel<false>, rows, ROW_THREADS, 0, p->in, p->before, 0, *f, x);
}
