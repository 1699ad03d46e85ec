/* row.cuh - one row of float32 in a block of ROW_THREADS: its norm, and its conversion to packed
 * 16-bit terms.
 *
 * A row may be normalised by a kernel of its own, in the prologue of a product, or by the block
 * that completes the row. All of them add the squares in the order defined here: thread t takes
 * elements 4 (t + i * ROW_THREADS) .. + 3 for i = 0, 1, ..., then row_sum() adds the threads' sums.
 * So a row has the same bits wherever it is normalised.
 */
#pragma once

#include "kernels/cuda/base/panel.cuh"
#include "kernels/cuda/base/reduce.cuh"
#include "kernels/cuda/base/terms.cuh"

enum { ROW_THREADS = 256 };

/* Rows that are to be normalised and packed. */
struct rows_in {
    const float *src; /* (rows, n) */
    size_t stride;    /* floats */
    int n;
    struct norm norm;
    float *capture; /* out: the rows before their norm, capture_stride floats apart; or NULL */
    size_t capture_stride;
};

/* A residual update that the kernel applies before it normalises and packs the row: x (+)=
 * post(src). In a decode product every block computes the row for itself, and one block stores x
 * after all blocks have read it. */
struct row_update {
    const float *src; /* NULL: no update */
    struct norm post;
    bool add;
    float *x;
    unsigned *readers; /* number of blocks that have read the row; 0 before and after */
};

/* Layouts of packed rows. A column is one term of one row. */
enum row_kind {
    ROW_PLAIN,    /* (columns, kp) */
    ROW_TILED,    /* the same, with elements permuted for wgmma (tile_place()) */
    ROW_BY_CHUNK, /* (chunks of k, columns, 32) */
    ROW_BY_STAGE, /* for each group of columns: (chunks of k in panel order, columns, 32) */
};
struct row_format {
    enum row_kind kind;
    int cols;             /* number of columns */
    int kp;               /* elements of a column */
    int group;            /* ROW_BY_STAGE: columns of a group */
    struct ksplit ksplit; /* ROW_BY_STAGE */
};

/* Layout of split-K partial sums in memory: (splits, outputs / 32, rows, 32), with rows in groups
 * of eight of which the even rows come first. With this layout the kernel that stores partial sums
 * writes whole 32-byte sectors, and a kernel that reads one row reads whole 128-byte lines. */
enum { PARTIAL_TILE = 32 };
static inline __host__ __device__ int partial_rows(int rows) { return (rows + 7) / 8 * 8; }
/* The number of floats of one split. */
static inline __host__ __device__ size_t partial_floats(int rows, int outs)
{
    return (size_t)partial_rows(rows) *
           (size_t)((outs + PARTIAL_TILE - 1) / PARTIAL_TILE * PARTIAL_TILE);
}
/* Where the partial sum of a row's output `out` is, in floats from the split's first. */
static inline __host__ __device__ size_t partial_at(int rows, int row, int out)
{
    int at = row / 8 * 8 + row % 2 * 4 + row % 8 / 2;
    return (size_t)((out / PARTIAL_TILE * partial_rows(rows) + at) * PARTIAL_TILE +
                    out % PARTIAL_TILE);
}

#ifdef __CUDACC__

/* Discards the L2 lines of partial sums that have been read. x: the thread's four floats in the
 * first split. Of the eight threads that share a line in every split, thread i discards the line of
 * split i. The whole warp must have its values. */
__device__ __forceinline__ void discard_splits(const float *x, size_t apart, int splits)
{
    static_assert((int)PARTIAL_TILE == 8 * 4);
    const int own = (int)threadIdx.x % 8;
    if (own < splits)
        discard(x - own * 4 + (size_t)own * apart);
}

enum {
    ROW_REGS = 3,  /* groups of four elements that a thread keeps in registers, */
    WIDE_REGS = 6, /* of rows that are wider than ROW_PASS */
    ROW_STEP = 4 * ROW_THREADS,
    ROW_PASS = ROW_REGS * ROW_STEP,
    ROW_WARPS = ROW_THREADS / 32,
};
static_assert((int)ROW_PASS == (int)PROLOGUE_ROW && (int)WIDE_REGS * ROW_STEP == (int)SHORT_ROW,
              "route.c knows what a block holds in registers");
static_assert((int)SHORT_ROW >= (int)MAX_PENDING_WIDTH, "a pending row is held in registers");

/* The thread's first REGS groups of elements, from an element `from` on; zeros behind the end of
 * the row. */
template <int REGS> struct row_groups {
    float4 v[REGS];
};
typedef row_groups<ROW_REGS> row_part;

__device__ __forceinline__ float4 plus(float4 a, float4 b)
{
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

/* Loads bypass L1, which may hold what another kernel has overwritten since. */
__device__ __forceinline__ float4 four_of(const float *src, int n, int i)
{
    if (i + 4 <= n && (uintptr_t)src % 16 == 0)
        return __ldcg((const float4 *)(src + i));
    float4 v = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int j = 0; j < 4; j++)
        (&v.x)[j] = i + j < n ? __ldcg(src + i + j) : 0.f;
    return v;
}

/* Loads four floats, or zeros if not `there`. The assembler is volatile, so the compiler does not
 * move the load. */
__device__ __forceinline__ float4 load_four_volatile(const float *p, bool there)
{
    float4 v;
    asm volatile("{\n.reg .pred p;\nsetp.ne.s32 p, %5, 0;\n"
                 "mov.f32 %0, 0f00000000;\nmov.f32 %1, 0f00000000;\n"
                 "mov.f32 %2, 0f00000000;\nmov.f32 %3, 0f00000000;\n"
                 "@p ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];\n}"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"(p), "r"((int)there)
                 : "memory");
    return v;
}

__device__ __forceinline__ float4 four_weights(struct vec v, int n, int i)
{
    if (v.type == DT_BF16 && i + 4 <= n && (uintptr_t)v.p % 8 == 0)
        return floats_of(__ldg((const uint2 *)((const bf16 *)v.p + i)));
    float4 w = make_float4(0, 0, 0, 0);
    for (int j = 0; j < 4 && i + j < n; j++)
        (&w.x)[j] = weight_at(v, (size_t)(i + j));
    return w;
}

/* The first of the thread's four elements in group j behind element `from`. */
__device__ __forceinline__ int row_index(int from, int j)
{
    return from + j * ROW_STEP + (int)threadIdx.x * 4;
}

__device__ __forceinline__ void load_part(const float *src, int n, int from, row_part &p)
{
#pragma unroll
    for (int j = 0; j < ROW_REGS; j++)
        p.v[j] = four_of(src, n, row_index(from, j));
}

/* If the norm has no weights, w is left as it is. */
__device__ __forceinline__ void load_norm(const struct norm &norm, int n, int from,
                                          row_part &w)
{
    if (norm.w.p)
#pragma unroll
        for (int j = 0; j < ROW_REGS; j++)
            w.v[j] = four_weights(norm.w, n, row_index(from, j));
}

/* A barrier of the ROW_THREADS threads that share a row; the block may have other threads. */
enum { ROW_BARRIER = 1 }; /* named barrier */
__device__ __forceinline__ void row_barrier()
{
    named_barrier<ROW_BARRIER, ROW_THREADS>();
}

/* The sum over the threads that share a row, for each of them. scratch: ROW_WARPS floats of shared
 * memory that no thread still reads. */
__device__ __forceinline__ float row_sum(float v, float *scratch)
{
    return serial_sum<ROW_WARPS>(v, scratch, row_barrier);
}

template <int REGS>
__device__ __forceinline__ float part_squares(const row_groups<REGS> &x, float ss)
{
#pragma unroll
    for (int j = 0; j < REGS; j++) {
        ss = fmaf(x.v[j].x, x.v[j].x, ss);
        ss = fmaf(x.v[j].y, x.v[j].y, ss);
        ss = fmaf(x.v[j].z, x.v[j].z, ss);
        ss = fmaf(x.v[j].w, x.v[j].w, ss);
    }
    return ss;
}

/* 1 / rms of a row that the block holds in x. */
template <int REGS>
__device__ __forceinline__ float row_inverse_short(const row_groups<REGS> &x, int n,
                                                   const struct norm &norm, float *scratch)
{
    if (norm.kind == NORM_NONE)
        return 1;
    return 1 / sqrtf(row_sum(part_squares(x, 0), scratch) / (float)n + norm.eps);
}

/* 1 / rms of a row of which the block holds the first elements in x. */
__device__ __forceinline__ float row_inverse(const row_part &x, const float *src, int n,
                                             const struct norm &norm, float *scratch)
{
    if (norm.kind == NORM_NONE)
        return 1;
    float ss = part_squares(x, 0);
    for (int from = ROW_PASS; from < n; from += ROW_PASS) {
        row_part more;
        load_part(src, n, from, more);
        ss = part_squares(more, ss);
    }
    return 1 / sqrtf(row_sum(ss, scratch) / (float)n + norm.eps);
}

__device__ __forceinline__ float4 four_normed(int kind, float4 x, float inv, float4 w)
{
    return make_float4(normed_by(kind, x.x, inv, w.x), normed_by(kind, x.y, inv, w.y),
                       normed_by(kind, x.z, inv, w.z), normed_by(kind, x.w, inv, w.w));
}

/* The norm in less code, for rows that a block holds in registers, of a multiple of four elements,
 * whose norm weights are bf16 and aligned to four (loads_by_four()): the thread's weights as
 * loaded; zeros if the norm has none or behind the end of the row. */
template <int REGS> struct norm_groups {
    uint2 v[REGS];
};
typedef norm_groups<ROW_REGS> short_weights;
template <int REGS>
__device__ __forceinline__ void fetch_short(const struct norm &norm, int n, norm_groups<REGS> &w)
{
#pragma unroll
    for (int j = 0; j < REGS; j++)
        w.v[j] = norm.w.p && row_index(0, j) < n
                     ? __ldg((const uint2 *)((const bf16 *)norm.w.p + row_index(0, j)))
                     : make_uint2(0, 0);
}
__device__ __forceinline__ float4 normed_short(const struct norm &norm, float4 x, float inv,
                                               uint2 w)
{
    if (norm.kind == NORM_NONE)
        return x;
    const float one = norm.kind == NORM_RMS ? 0.f : 1.f; /* without weights w is zero */
    return make_float4(x.x * inv * (one + low_bf16(w.x)), x.y * inv * (one + high_bf16(w.x)),
                       x.z * inv * (one + low_bf16(w.y)), x.w * inv * (one + high_bf16(w.y)));
}

/* Where element i of a packed row is stored for wgmma (dense/wgmma.cuh): of 32 successive elements,
 * number 8q + 4h + 2s + e goes to 16h + 8s + 2q + e. So wgmma adds at once the same sixteen
 * elements that mma.sync adds when thread q of a quad has read 8q .. 8q + 7. */
__device__ __forceinline__ int tile_place(int i)
{
    return (i & ~31) | (i & 4) << 2 | (i & 2) << 2 | (i >> 3 & 3) << 1 | (i & 1);
}

/* The element that is stored at a place; the inverse of tile_place(). */
__device__ __forceinline__ int tile_element(int at)
{
    return (at & ~31) | (at >> 1 & 3) << 3 | (at >> 4 & 1) << 2 | (at >> 3 & 1) << 1 | (at & 1);
}

/* Where element i, a multiple of 4, of a column is stored. */
__device__ __forceinline__ uint16_t *packed_at(const struct row_format &f, uint16_t *x, int col,
                                               int i)
{
    if (f.kind == ROW_PLAIN)
        return x + (size_t)col * (size_t)f.kp + i;
    if (f.kind == ROW_TILED)
        return x + (size_t)col * (size_t)f.kp + tile_place(i);
    if (f.kind == ROW_BY_CHUNK)
        return x + (i / K_CHUNK * f.cols + col) * K_CHUNK + i % K_CHUNK;
    const int first = col / f.group * f.group, cols = min(f.cols - first, f.group);
    const int at = chunk_place(f.ksplit, i / K_CHUNK) * cols + col - first;
    return x + (size_t)first * (size_t)f.kp + at * K_CHUNK + i % K_CHUNK;
}

/* Stores the terms of four elements at `to` (packed_at()). */
__device__ __forceinline__ void put_four_terms(uint16_t *to, bool tiled, uint2 v)
{
    if (tiled)
        *(uint32_t *)to = v.x, *(uint32_t *)(to + 8) = v.y;
    else
        *(uint2 *)to = v;
}
/* Stores four elements of a packed row of one term. */
__device__ __forceinline__ void put_short(uint16_t *to, bool tiled, float4 y)
{
    put_four_terms(to, tiled, bf16_four(y));
}

/* Stores the terms of elements i .. i + 3 of a row of n elements; col: the row's first column. */
__device__ __forceinline__ void put_terms(float4 y, int i, int n, int terms, uint16_t *x, int col,
                                          const struct row_format &f)
{
#pragma unroll
    for (int e = 0; e < 4; e++)
        (&y.x)[e] = i + e < n ? (&y.x)[e] : 0.f; /* padding is zero, whatever the norm made of it */
    for (int t = 0; t < terms; t++) {
        const uint2 v = split_four<bf16>(y);
        put_four_terms(packed_at(f, x, col + t, i), f.kind == ROW_TILED, v);
    }
}

/* Normalises row r and packs it into columns r * terms .. of x, with zeros up to f.kp. w0: the
 * first weights of the row's norm. scratch: see row_sum(). */
__device__ __forceinline__ void pack_row(const struct rows_in &a, int r, int terms,
                                         const row_part &w0, uint16_t *x,
                                         const struct row_format &f, float *scratch)
{
    const float *src = a.src + (size_t)r * a.stride;
    row_part y, w = w0;
    load_part(src, a.n, 0, y);
    float inv = row_inverse(y, src, a.n, a.norm, scratch);
    for (int from = 0; from < f.kp; from += ROW_PASS) {
        if (from) {
            load_norm(a.norm, a.n, from, w);
            load_part(src, a.n, from, y);
        }
#pragma unroll
        for (int j = 0; j < ROW_REGS; j++)
            if (row_index(from, j) < f.kp)
                put_terms(four_normed(a.norm.kind, y.v[j], inv, w.v[j]), row_index(from, j), a.n,
                          terms, x, r * terms, f);
    }
}

/* Stores a row that a block holds in registers; n is a multiple of four. */
template <int REGS>
__device__ __forceinline__ void store_part(float *dst, int n, const row_groups<REGS> &y)
{
#pragma unroll
    for (int j = 0; j < REGS; j++)
        if (row_index(0, j) < n)
            *(float4 *)(dst + row_index(0, j)) = y.v[j];
}

/* dst = (norm(src) + (add ? dst : 0)) * scale for one row; src and dst may be the same. w0, old0:
 * the norm's first weights, and the first elements of dst if they are added. */
__device__ __forceinline__ void norm_row(const float *src, float *dst, int n,
                                         const struct norm &norm, const row_part &w0,
                                         const row_part &old0, bool add, float scale,
                                         float *scratch)
{
    row_part x, old = old0, w = w0;
    load_part(src, n, 0, x);
    float inv = row_inverse(x, src, n, norm, scratch);
    for (int from = 0; from < n; from += ROW_PASS) {
        if (from) {
            load_norm(norm, n, from, w);
            load_part(src, n, from, x);
            if (add)
                load_part(dst, n, from, old);
        }
#pragma unroll
        for (int j = 0; j < ROW_REGS; j++) {
            int i = row_index(from, j);
            float4 y = four_normed(norm.kind, x.v[j], inv, w.v[j]);
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float z = (&y.x)[e];
                (&y.x)[e] = (add ? z + (&old.v[j].x)[e] : z) * scale;
            }
            if (i + 4 <= n && (uintptr_t)dst % 16 == 0)
                *(float4 *)(dst + i) = y;
            else
                for (int e = 0; e < 4; e++)
                    if (i + e < n)
                        dst[i + e] = (&y.x)[e];
        }
    }
}

#endif

/* ---- host ------------------------------------------------------------------------------------ */

/* Whether the weights can be loaded four at a time. */
static inline bool loads_by_four(const struct vec *v)
{
    return !v->p || (v->type == DT_BF16 && (uintptr_t)v->p % 8 == 0);
}
/* Whether fetch_short() and normed_short() take the norm of a row of `width` elements. */
static inline bool is_short_norm(const struct norm *n, int width)
{
    return n->kind == NORM_NONE || (width <= SHORT_ROW && loads_by_four(&n->w));
}
