/* combine.cuh - the ends of segments in tile.cu and decode.cu: how a warp closes a segment, how
 * blocks send segments to each other, which tiles a block walks, and how the segments of a row are
 * combined in their order.
 */
#pragma once

#include "kernels/cuda/attention/tile.cuh"

/* ---- outputs -------------------------------------------------------------------------------- */

/* Address of output i in a packed row. Not inlined: layouts other than ROW_TILED are rare here. */
static __device__ __noinline__ uint16_t *packed_address(const row_format &f, uint16_t *x, int row,
                                                        int i)
{
    return packed_at(f, x, row, i);
}
__device__ __forceinline__ uint16_t *packed_output(const tile_args &t, size_t row, int i)
{
    const row_format &f = t.a.pack_as;
    if (f.kind == ROW_TILED)
        return t.a.pack_to + row * (size_t)f.kp + tile_place(i);
    return packed_address(f, t.a.pack_to, (int)row, i);
}

/* Writes V (1, 2 or 4) successive outputs of a row from i on; i is a multiple of V. */
template <int V>
__device__ __forceinline__ void put_output(const tile_args &t, size_t row, int i,
                                           const float (&y)[V])
{
    float *to = t.a.dst + row * (size_t)(t.a.n_head * t.a.head_dim) + (size_t)i;
    if (t.a.pack_to) {
        uint16_t *packed = packed_output(t, row, i);
        if constexpr (V == 1)
            *packed = __bfloat16_as_ushort(__float2bfloat16_rn(y[0]));
        else
            *(__nv_bfloat162 *)packed = __floats2bfloat162_rn(y[0], y[1]);
        if constexpr (V == 4)
            *(__nv_bfloat162 *)(packed + (t.a.pack_as.kind == ROW_TILED ? 8 : 2)) =
                __floats2bfloat162_rn(y[2], y[3]);
    } else if constexpr (V == 4) {
        *(float4 *)to = make_float4(y[0], y[1], y[2], y[3]);
    } else if constexpr (V == 2) {
        *(float2 *)to = make_float2(y[0], y[1]);
    } else {
        *to = y[0];
    }
}

/* ---- sending segments ----------------------------------------------------------------------- */

/* Resident blocks (all are on the device at once) send segments to each other through words that
 * are their own flags (publish(), cuda.h): a word is 0 until it is written, and its reader sets it
 * to 0 again. So no kernel boundary is needed between the walk and the combination.
 *
 * A head is divided into slices of 64 dimensions, which are combined independently. A slice of a
 * segment is 16 chunks of four dimensions, and one chunk with the maximum and the sum of
 * weights. */
enum {
    SLICE = 64,
    SLICE_CHUNKS = SLICE / 4 + 1,
    SLICE_PITCH = SLICE_CHUNKS * 4,
    COMBINE_BATCH = 48, /* segments that are combined at once: as many as 4096 keys have */
    SLICE_SHARED = COMBINE_BATCH * (SLICE_CHUNKS * 16 + 32), /* shared memory to combine a slice */
};

/* The first segment of a slice; the next ones follow. */
template <class S>
__device__ __forceinline__ uint4 *slice_of(const tile_args &t, int row, int head, int part)
{
    const int at = (row * t.a.n_head + head) * (S::HD / SLICE) + part; /* < ATTN_EXCHANGE_BYTES */
    return t.partials + (unsigned)(at * t.a.most_splits * SLICE_CHUNKS);
}

/* A thread holds pairs of dimensions that are 8 apart, and sends two pairs in one store. With CODES
 * an n8 tile has the even or the odd dimensions of 16: the pairs of a thread are two apart, and the
 * tile of the odd ones is the next one, or the next warp's. The dimension that is then at place i
 * of a slice: */
template <class S> __device__ __forceinline__ int dim_at(int i)
{
    if (S::CODES)
        return S::DT == 1 ? (i & ~15) + (i & 7) * 2 + (i >> 3 & 1)
                          : (i & ~3) + (i & 1) * 2 + (i >> 1 & 1);
    return S::DT == 1 ? i : (i & ~15) + (i & 2) * 4 + (i & 12) / 2 + (i & 1);
}

/* Sends a thread's part of a segment: its dimensions and, once a slice, the maximum and the sum. */
template <class S>
__device__ __forceinline__ void send_segment(const place<S> &p, uint32_t *to, int mi, int h,
                                             float m, float l, const sums<S> &x)
{
    const int first = p.wn * S::DT * 8, lane = p.lane % 4;
#pragma unroll
    for (int n = 0; n < S::DT; n += 2)
        if constexpr (S::DT == 1)
            publish_two(to + first % SLICE + n * 8 + lane * 2, x.acc[mi][n][2 * h],
                        x.acc[mi][n][2 * h + 1]);
        else
            publish_four(to + first % SLICE + n * 8 + lane * 4, x.acc[mi][n][2 * h],
                         x.acc[mi][n][2 * h + 1], x.acc[mi][n + 1][2 * h],
                         x.acc[mi][n + 1][2 * h + 1]);
    if (first % SLICE == 0 && lane == 0)
        publish_four(to + SLICE, m, l, 0.f, 0.f);
}

/* Waits for n chunks and copies them to shared memory, setting the sources to 0; SLICE threads. */
__device__ __forceinline__ void receive_chunks(uint4 *from, int n, uint4 *to)
{
    enum { IN_FLIGHT = 9 };
#pragma unroll 1
    for (int i = (int)(threadIdx.x % SLICE); i < n; i += IN_FLIGHT * SLICE) {
        const int mine = (n - i + SLICE - 1) / SLICE;
        uint4 v[IN_FLIGHT], *at = from + i;
        bool missing;
        asm volatile("" : "+l"(at)); /* one address computation; the others are constant offsets */
        do {
            missing = false;
#pragma unroll
            for (int j = 0; j < IN_FLIGHT; j++)
                if (j < mine)
                    v[j] = poll_four(at + j * SLICE);
#pragma unroll
            for (int j = 0; j < IN_FLIGHT; j++)
                missing |= j < mine && !all_published(v[j]);
        } while (WAITS && missing);
#pragma unroll
        for (int j = 0; j < IN_FLIGHT; j++)
            if (j < mine) {
                to[i + j * SLICE] = make_uint4(~v[j].x, ~v[j].y, ~v[j].z, ~v[j].w);
                at[j * SLICE] = make_uint4(0, 0, 0, 0);
            }
    }
}

/* ---- the end of a segment ------------------------------------------------------------------- */

/* Sums of weights: the four threads of a half tile, then the two halves. */
template <class S>
__device__ __forceinline__ void sum_weights(const place<S> &p, const sums<S> &x,
                                            float (&l)[S::MI][2])
{
    float *scratch = (float *)(p.shared + S::L_AT);
#pragma unroll
    for (int mi = 0; mi < S::MI; mi++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float sum = 0;
#pragma unroll
            for (int g = 0; g < S::LG; g++) {
                float y = x.l[mi][h][g];
                y += __shfl_xor_sync(~0u, y, 1);
                y += __shfl_xor_sync(~0u, y, 2);
                if constexpr (S::WN == 1)
                    sum += y;
                else if (p.lane % 4 == 0)
                    scratch[(p.wn * S::LG + g) * S::ROWS + packed_row<S>(p, mi, h)] = y;
            }
            l[mi][h] = sum;
        }
    if constexpr (S::WN > 1) {
        sync_group<S>(p.wm);
#pragma unroll
        for (int mi = 0; mi < S::MI; mi++)
#pragma unroll
            for (int h = 0; h < 2; h++)
#pragma unroll
                for (int g = 0; g < 2; g++)
                    l[mi][h] += scratch[g * S::ROWS + packed_row<S>(p, mi, h)];
    }
}

/* Stored segments keep their writers' register order: of each 16 dimensions, fours of which two
 * dimensions are adjacent and the other two 8 further on. The first dimension of a four: */
__device__ __forceinline__ int first_dim(int four) { return four / 4 * 16 + four % 4 * 2; }

template <class S>
__device__ __forceinline__ void store_segment(const tile_args &t, const place<S> &p, int mi, int h,
                                              int at, float m, float l, const sums<S> &x)
{
    size_t head = (size_t)(p.r0 + p.row[mi][h]) * (size_t)t.a.n_head + (size_t)p.head[mi][h];
    size_t part = head * (size_t)t.a.most_splits + (size_t)at;
    float *out = t.a.part + part * S::HD + p.wn * S::DT * 8 + p.lane % 4 * 4;
#pragma unroll
    for (int n = 0; n < S::DT; n += 2) {
        const float2 y = make_float2(x.acc[mi][n][2 * h], x.acc[mi][n][2 * h + 1]),
                     z = make_float2(x.acc[mi][n + 1][2 * h], x.acc[mi][n + 1][2 * h + 1]);
        if constexpr (S::WGMMA)
            *(float4 *)(out + n * 8) = make_float4(y.x, y.y, z.x, z.y);
        else /* float4 needs four adjacent registers: spills */
            *(float2 *)(out + n * 8) = y, *(float2 *)(out + n * 8 + 2) = z;
    }
    if (p.wn == 0 && p.lane % 4 == 0)
        t.ml[part] = make_float2(m, l);
}

/* Combines a segment with the row's totals (whole), or stores it as the row's segment `at`. */
template <class S>
__device__ __forceinline__ void close_segment(const tile_args &t, const place<S> &p, int mi, int h,
                                              int at, float l, const sums<S> &x, bool whole,
                                              totals<S> &all)
{
    float m = x.m[mi][h] == -INFINITY ? -INFINITY : x.m[mi][h] * t.factor;
    if (whole) {
        combine_scale j = combine_scale_of(all.m[mi][h], m);
        all.m[mi][h] = j.m;
        all.l[mi][h] = combined(j, all.l[mi][h], l);
#pragma unroll
        for (int n = 0; n < S::DT; n++)
#pragma unroll
            for (int i = 2 * h; i < 2 * h + 2; i++) {
                float &y = all.at((mi * S::DT + n) * 4 + i);
                y = combined(j, y, x.acc[mi][n][i]);
            }
        return;
    }
    store_segment<S>(t, p, mi, h, at, m, l, x);
}

/* The index of the row's segment that ends before `tile`. */
template <int TK> __device__ __forceinline__ int segment_before(const visible_keys &r, int tile)
{
    return tile > r.tree_tile ? splits_of<TK>(r)
                         : ((tile - 1) >> r.shift) - ((r.lo / TK) >> r.shift);
}

/* Closes the segments that end before `tile`. ends: the tile before which each packed row's current
 * segment ends; INT_MAX: none. */
template <class S>
__device__ __forceinline__ void end_segments(const tile_args &t, const place<S> &p, int tile,
                                             const int (&stop)[S::MI][2], int (&ends)[S::MI][2],
                                             sums<S> &x, bool whole, totals<S> &all)
{
    float l[S::MI][2];
    sum_weights<S>(p, x, l);
#pragma unroll
    for (int mi = 0; mi < S::MI; mi++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            if (ends[mi][h] == tile) {
                const visible_keys &r = p.rows[p.row[mi][h]];
                close_segment<S>(t, p, mi, h, segment_before<S::TK>(r, tile), l[mi][h], x, whole,
                                 all);
                clear<S>(x, mi, h);
                ends[mi][h] = next_end<S::TK>(r, tile, stop[mi][h]);
            }
}

/* Sends the segments that end before `tile`. to: where the current segment of each of the thread's
 * packed rows goes; the row's next segment follows it. */
template <class S>
__device__ __forceinline__ void send_segments(const tile_args &t, const place<S> &p, int tile,
                                              const int (&stop)[S::MI][2], int (&ends)[S::MI][2],
                                              uint32_t (&to)[S::MI][2], sums<S> &x)
{
    float l[S::MI][2];
    bool more = false;
    sum_weights<S>(p, x, l);
#pragma unroll
    for (int mi = 0; mi < S::MI; mi++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            if (ends[mi][h] != tile)
                continue;
            const float m = x.m[mi][h] == -INFINITY ? -INFINITY : x.m[mi][h] * t.factor;
            send_segment<S>(p, (uint32_t *)(t.partials + to[mi][h]), mi, h, m, l[mi][h], x);
            more |= tile * S::TK < stop[mi][h];
        }
    if (!__any_sync(~0u, more))
        return; /* usual: no row of the warp has another segment */
#pragma unroll
    for (int mi = 0; mi < S::MI; mi++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            if (ends[mi][h] == tile) {
                clear<S>(x, mi, h);
                to[mi][h] += SLICE_CHUNKS;
                ends[mi][h] = next_end<S::TK>(p.rows[max(p.row[mi][h], 0)], tile, stop[mi][h]);
            }
}

/* ---- which tiles a block walks -------------------------------------------------------------- */

/* Tiles [from, to) for the rows of w: a stretch of their prefix parts, or the tree part of one
 * row. */
struct job {
    row_span w;
    bool tree;
    int from, to;
};

template <class S>
__device__ __forceinline__ cell_lookup lookup_of(const tile_args &t, const place<S> &p,
                                                 const job &j)
{
    const row_span &w = j.w;
    return {t.a.pages + (size_t)w.req * (size_t)t.a.n_cols,
            t.a.expand + (size_t)(p.r0 + w.a) * (size_t)t.a.expand_w, w.lo,
            min(w.stop, j.to * S::TK), w.b - w.a == 1 ? p.rows[w.a].hi : INT_MAX};
}

/* Keys [lo, stop) that a thread's packed rows see in a job, and the tile before which their current
 * segment ends (INT_MAX: none). */
template <class S> struct extent {
    int lo[S::MI][2], stop[S::MI][2], ends[S::MI][2];
};

/* The extent of row r as (lo, stop, ends). */
template <class S>
__device__ __forceinline__ int3 extent_of_row(const place<S> &p, const job &j, int r)
{
    if (r < j.w.a || r >= j.w.b)
        return make_int3(INT_MAX, 0, INT_MAX);
    const visible_keys &y = p.rows[r];
    const int lo = j.tree ? max(y.lo, y.tree_tile * S::TK) : y.lo, stop = j.tree ? y.end : y.stop;
    const bool any = lo < stop && j.from * S::TK < stop;
    return make_int3(lo, stop,
                     any ? segment_end<S::TK>(y, max(j.from, lo / S::TK)) : INT_MAX);
}

template <class S>
__device__ __forceinline__ extent<S> extent_of(const place<S> &p, const job &j)
{
    extent<S> e;
#pragma unroll
    for (int mi = 0; mi < S::MI; mi++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int3 x = extent_of_row<S>(p, j, p.row[mi][h]);
            e.lo[mi][h] = x.x, e.stop[mi][h] = x.y, e.ends[mi][h] = x.z;
        }
    return e;
}

/* The jobs of a block, one after another: its splits of each span of rows, then the tree parts of
 * its rows. */
struct schedule {
    job now;
    int row, tree_row, last_tree; /* next row for a span; next tree part of a row, and their end */
    int u, last; /* the block's splits of the current span: u, u + stride, ... last */
    int from, to, shift, stride; /* tiles of the span; log2 of the tiles of a split */
    int splits; /* number of splits of the spans before */
};

/* The splits of a tile of rows are numbered through, and after them the tree parts of its rows. A
 * block takes number blockIdx.x and every stride-th after it. Returns how far the block's first
 * number at or after n is beyond n. */
__device__ __forceinline__ int first_own_after(const schedule &c, int n)
{
    int skip = (int)blockIdx.x - n;
    while (skip < 0) /* rarely more than once; a division takes longer */
        skip += c.stride;
    return skip;
}

/* span_of() for at most 32 rows, one a lane; shorter code. */
static __device__ __noinline__ row_span span_of_32(const visible_keys *rows, int a, int b)
{
    const int r = a + (int)threadIdx.x % 32;
    const visible_keys x = rows[min(r, b - 1)]; /* lanes beyond b repeat the last row */
    const bool any = x.lo < x.stop;
    row_span p = {a, b};
    p.lo = __reduce_min_sync(~0u, any ? x.lo : INT_MAX);
    p.max_lo = __reduce_max_sync(~0u, any ? x.lo : 0);
    p.stop = __reduce_max_sync(~0u, any ? x.stop : 0);
    p.min_stop = __reduce_min_sync(~0u, any ? x.stop : INT_MAX);
    p.shift = __reduce_max_sync(~0u, any ? x.shift : 0);
    p.req = __reduce_max_sync(~0u, any ? x.req : -1);
    const bool apart = any && (x.req != p.req || x.hi < x.stop);
    p.valid = b - a == 1 || (p.max_lo <= p.min_stop && !__any_sync(~0u, apart));
    return p;
}

/* span_from() for at most 32 rows. */
__device__ __forceinline__ row_span span_from_32(const visible_keys *rows, int a, int n)
{
    if (n - a == 1)
        return span_of_one(rows, a);
    const row_span p = span_of_32(rows, a, n);
    if (p.valid)
        return p;
    int b = a + 1;
    while (span_of_32(rows, a, b + 1).valid) /* (a, n) was not valid */
        b++;
    return span_of_32(rows, a, b);
}

/* Starts the next span: all its tiles if the block walks everything, else the block's splits. */
template <class S>
__device__ __forceinline__ void begin_span(const tile_args &t, const place<S> &p, bool whole,
                                           schedule &c)
{
    row_span w;
    if constexpr (S::ROWS <= 32)
        w = span_from_32(p.rows, c.row, p.n);
    else
        w = span_from(p.rows, c.row, p.n);
    c.now.w = w;
    c.row = w.b;
    c.u = 0, c.last = -1;
    if (w.lo < w.stop) {
        c.from = w.lo / S::TK, c.to = (w.stop - 1) / S::TK + 1;
        c.shift = whole ? 30 : w.shift;
        while (t.merge_splits && ((c.to - 1) >> c.shift) - (c.from >> c.shift) >= c.stride &&
               c.shift < 30)
            c.shift++;
        const int first = c.from >> c.shift;
        c.last = (c.to - 1) >> c.shift;
        c.u = first + first_own_after(c, c.splits);
        c.splits += c.last - first + 1;
    }
    if (c.row >= p.n)
        c.tree_row = first_own_after(c, c.splits);
}

/* The job of the tree part of row r. False if the row has no separate tree part. */
template <class S> __device__ __forceinline__ bool tree_job(const place<S> &p, int r, job &j)
{
    const visible_keys y = p.rows[r];
    const int lo = max(y.lo, y.tree_tile * S::TK);
    j = {{r, r + 1, lo, y.end, lo, y.end, 0, y.req, true}, true, lo / S::TK,
         (y.end - 1) / S::TK + 1};
    return y.stop < y.end;
}

/* Advances to the block's next job, c.now; false if there is none. */
template <class S>
__device__ __forceinline__ bool next_job(const tile_args &t, const place<S> &p, bool whole,
                                         schedule &c)
{
    for (;;) {
        if (c.u <= c.last) {
            c.now.tree = false;
            c.now.from = max(c.from, c.u << c.shift);
            c.now.to = c.u == c.last ? c.to : min(c.to, (c.u + 1) << c.shift);
            c.u += c.stride;
            return true;
        }
        if (c.row < p.n) {
            begin_span<S>(t, p, whole, c);
            continue;
        }
        if (c.tree_row >= c.last_tree)
            return false;
        c.tree_row += c.stride;
        if (tree_job<S>(p, c.tree_row - c.stride, c.now))
            return true;
    }
}

/* Totals of no segment. rest: (ROWS, HD), unless they are in registers. */
template <class S> __device__ __forceinline__ void start_totals(float *rest, totals<S> &all)
{
    all.rest = rest;
#pragma unroll
    for (int mi = 0; mi < S::MI; mi++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            all.m[mi][h] = -INFINITY, all.l[mi][h] = 0;
#pragma unroll
    for (int i = 0; i < S::MI * S::DT * 4; i++)
        all.at(i) = 0;
}

/* Writes the rows of a block that walked all their keys. */
template <class S>
__device__ __forceinline__ void finish(const tile_args &t, const place<S> &p, uint32_t sinks,
                                       totals<S> &all)
{
#pragma unroll
    for (int mi = 0; mi < S::MI; mi++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float sink = sink_of(t, p, sinks, p.head[mi][h]);
            int r = p.row[mi][h];
            if (r < 0)
                continue;
            size_t row = (size_t)(p.r0 + r), at = row * (size_t)t.a.n_head + (size_t)p.head[mi][h];
            float by = 0;
            bool writes = p.wn == 0 && p.lane % 4 == 0;
            if (any_key(p.rows[r]))
                by = final_scale(t, sink, row, p.head[mi][h], all.m[mi][h], all.l[mi][h], writes);
            else if (t.a.lse && writes)
                t.a.lse[at] = -INFINITY;
            const int head = p.head[mi][h] * S::HD, first = p.wn * S::DT * 8;
            const int out = head + first + p.lane % 4 * 2;
#pragma unroll
            for (int n = 0; n < S::DT; n++) {
                int i = (mi * S::DT + n) * 4 + 2 * h;
                if constexpr (S::CODES) {
                    const int at = first + (S::DT == 1 ? p.lane % 4 * 2
                                                       : n / 2 * 16 + p.lane % 4 * 4 + n % 2 * 2);
                    put_output<1>(t, row, head + dim_at<S>(at), {all.at(i) * by});
                    put_output<1>(t, row, head + dim_at<S>(at + 1), {all.at(i + 1) * by});
                } else {
                    put_output<2>(t, row, out + n * 8, {all.at(i) * by, all.at(i + 1) * by});
                }
            }
        }
}

/* ---- combining segments --------------------------------------------------------------------- */

/* Scales that combine 32 segments, one a lane, with those before them. m: the maximum before;
 * becomes the maximum of all. Returns (factor of everything before, factor of this segment, this
 * segment's scaled sum of weights). The maxima are scanned across the lanes first (a maximum does
 * not depend on its order), so no lane waits for another lane's exponentials. */
__device__ __forceinline__ float4 combine_scales_of(float2 ml, float &m)
{
    const int lane = (int)threadIdx.x % 32;
    float top = ml.x;
#pragma unroll
    for (int i = 1; i < 32; i *= 2) /* lanes without a predecessor read their own value */
        top = fmaxf(top, __shfl_up_sync(~0u, top, (unsigned)i));
    top = fmaxf(top, m);
    const float last = __shfl_up_sync(~0u, top, 1);
    const combine_scale j = combine_scale_of(lane ? last : m, ml.x);
    m = __shfl_sync(~0u, top, 31);
    return make_float4(j.before, j.now, ml.y * j.now, 0);
}

/* Barrier of the threads that combine one slice. */
__device__ __forceinline__ void sync_slice()
{
    named_barrier_at<SLICE>(1 + (int)threadIdx.x / SLICE);
}

/* Combines a slice from its n segments as they arrive, one dimension a thread. scratch:
 * SLICE_SHARED bytes of shared memory. */
__device__ __forceinline__ float combine_slice(uint4 *from, int n, unsigned char *scratch, float &m,
                                               float &l)
{
    const int lane = (int)(threadIdx.x % 32);
    const float *segments = (const float *)scratch;
    float4 *scales = (float4 *)(scratch + COMBINE_BATCH * SLICE_PITCH * 4) +
                     threadIdx.x % SLICE / 32 * COMBINE_BATCH;
    float v = 0;
    m = -INFINITY, l = 0;
#pragma unroll 1
    for (; n > 0; n -= COMBINE_BATCH, from += COMBINE_BATCH * SLICE_CHUNKS) {
        const int count = min((int)COMBINE_BATCH, n);
        receive_chunks(from, count * SLICE_CHUNKS, (uint4 *)scratch);
        sync_slice();
#pragma unroll 1
        for (int i = lane; i - lane < count; i += 32) {
            const float2 ml = i < count ? *(const float2 *)(segments + i * SLICE_PITCH + SLICE)
                                       : make_float2(-INFINITY, 0);
            const float4 j = combine_scales_of(ml, m);
            if (i < COMBINE_BATCH)
                scales[i] = j;
        }
        __syncwarp();
        const float *s = segments + threadIdx.x % SLICE;
#pragma unroll 4
        for (int i = 0; i < count; i++, s += SLICE_PITCH) {
            const float4 c = scales[i];
            l = fmaf(l, c.x, c.z);
            v = fmaf(v, c.x, *s * c.y);
        }
        sync_slice();
    }
    return v;
}

/* Slices of a tile of rows and kv head. */
template <class S> __device__ __forceinline__ int slices_of(const tile_args &t, const place<S> &p)
{
    return p.n * t.a.group * (S::HD / SLICE);
}

/* The first slice for group `own` of SLICE threads of this block. Few slices are spread over the
 * blocks, one a block. Many slices are combined by few blocks at once, the last ones, which walked
 * the fewest tiles, so that the other blocks exit and make room for the next kernel, which
 * prefetches its weights. */
template <class S>
__device__ __forceinline__ int first_slice(const tile_args &t, const place<S> &p, int own)
{
    const int blocks = (int)gridDim.x, x = (int)blockIdx.x;
    return 2 * slices_of<S>(t, p) <= blocks ? x + own * blocks
                                            : (blocks - 1 - x) * (S::NT / SLICE) + own;
}

/* Combines this block's share of the slices and writes their outputs. */
template <class S>
__device__ __forceinline__ void combine_slices(const tile_args &t, const place<S> &p,
                                               uint32_t sinks)
{
    constexpr int SLICES = S::HD / SLICE, TOGETHER = S::NT / SLICE;
    static_assert(TOGETHER * SLICE_SHARED <= S::Q_AT);
    const int own = (int)(threadIdx.x / SLICE), d = (int)(threadIdx.x % SLICE);
    unsigned char *scratch = p.shared + own * SLICE_SHARED;
#pragma unroll 1
    for (int i = first_slice<S>(t, p, own); i < slices_of<S>(t, p);
         i += TOGETHER * (int)gridDim.x) {
        const int packed = (int)((unsigned)i / SLICES), part = i - packed * SLICES;
        const int r = row_of(t, packed), row = p.r0 + r;
        const int head = p.kv * t.a.group + packed - r * t.a.group;
        const visible_keys x = p.rows[r];
        const int n = any_key(x) ? splits_of<S::TK>(x) + 1 : 0;
        float m, l, by = 0;
        const float v = combine_slice(slice_of<S>(t, row, head, part), n, scratch, m, l);
        const bool writes = part == 0 && d == 0;
        const float sink = sink_of(t, p, sinks, head);
        if (n)
            by = final_scale(t, sink, (size_t)row, head, m, l, writes);
        else if (t.a.lse && writes)
            t.a.lse[(size_t)row * (size_t)t.a.n_head + (size_t)head] = -INFINITY;
        put_output<1>(t, (size_t)row, head * S::HD + part * SLICE + dim_at<S>(d), {v * by});
    }
}
