/* keys.cuh - the keys of rows: which keys a row sees, which rows walk their keys together, and how
 * the cells of keys are found and copied to shared memory.
 */
#pragma once

#include "kernels/cuda/attention/config.cuh"

/* ---- what rows see -------------------------------------------------------------------------- */

/* The keys of a row: [lo, hi) are found through pages, [hi, end) through the expand table. */
struct visible_keys {
    int lo, hi, end, req;
    int stop;      /* end of the keys that are walked together with other rows */
    int tree_tile; /* first tile of the tree part */
    int shift;     /* log2 of the tiles of a split */
};

__device__ __forceinline__ bool any_key(const visible_keys &x) { return x.lo < x.end; }

/* Where the prefix part ends of a row whose tree part is walked separately. */
template <int TK> __device__ __forceinline__ int prefix_end(const visible_keys &x)
{
    return max(min(x.end, x.tree_tile * TK), x.lo);
}

/* A row's tree part is walked separately if the row has expanded keys: those cells are seen by that
 * row only. */
template <int TK> __device__ __forceinline__ visible_keys visible_to(const tile_args &t, int r)
{
    const attn_args &a = t.a;
    visible_keys x;
    int extra = a.n_expand ? a.n_expand[r] : 0;
    x.lo = a.lo[r], x.hi = a.hi[r], x.req = a.req[r];
    x.end = x.hi + extra;
    x.tree_tile = max(x.end - TREE_KEYS, 0) / TK;
    x.stop = extra > 0 ? prefix_end<TK>(x) : x.end;
    int n = max(x.tree_tile - x.lo / TK, 0);
    int most = n * TK <= SHORT_KEYS ? t.cap_shift : t.long_shift;
    x.shift = n <= UNSPLIT_TILES ? 3 : max(t.least_shift, 32 - __clz((n - 1) >> most));
    return x;
}

/* The number of splits of a row's prefix part. */
template <int TK> __device__ __forceinline__ int splits_of(const visible_keys &x)
{
    int first = x.lo / TK;
    return first < x.tree_tile ? ((x.tree_tile - 1) >> x.shift) - (first >> x.shift) + 1 : 0;
}

/* The segment that tile t is in ends before this tile. */
template <int TK> __device__ __forceinline__ int segment_end(const visible_keys &x, int t)
{
    int end_tile = (x.end - 1) / TK + 1;
    return t < x.tree_tile ? min(((t >> x.shift) + 1) << x.shift, x.tree_tile) : end_tile;
}

/* The tile before which the segment ends that begins with tile t; INT_MAX if the row's keys end
 * before t. */
template <int TK> __device__ __forceinline__ int next_end(const visible_keys &x, int t, int stop)
{
    return t * TK < stop ? segment_end<TK>(x, t) : INT_MAX;
}

/* Rows [a, b) of a tile that walk their keys together. All are of one request, and the union of
 * their keys has no gap, so each cell from lo to stop is seen by one of them at least. */
struct row_span {
    int a, b;
    int lo, stop;         /* keys that any row sees */
    int max_lo, min_stop; /* keys that all rows see */
    int shift, req;
    bool valid;
};

__device__ __forceinline__ row_span span_of_one(const visible_keys *rows, int r)
{
    const visible_keys x = rows[r];
    return {r, r + 1, x.lo, x.stop, x.lo, x.stop, x.shift, x.req, true};
}

/* The whole warp calls, and all lanes get the result. */
static __device__ __noinline__ row_span span_of_many(const visible_keys *rows, int a, int b)
{
    row_span p = {a, b, INT_MAX, 0, 0, INT_MAX, 0, 0, true};
    int low = INT_MAX, high = -1;
    bool expanded = false;
    for (int r = a + (int)threadIdx.x % 32; r < b; r += 32) {
        const visible_keys x = rows[r];
        if (x.lo >= x.stop)
            continue;
        p.lo = min(p.lo, x.lo), p.max_lo = max(p.max_lo, x.lo);
        p.stop = max(p.stop, x.stop), p.min_stop = min(p.min_stop, x.stop);
        p.shift = max(p.shift, x.shift);
        low = min(low, x.req), high = max(high, x.req);
        expanded |= x.hi < x.stop;
    }
    p.lo = __reduce_min_sync(~0u, p.lo), p.max_lo = __reduce_max_sync(~0u, p.max_lo);
    p.stop = __reduce_max_sync(~0u, p.stop);
    p.min_stop = __reduce_min_sync(~0u, p.min_stop);
    p.shift = __reduce_max_sync(~0u, p.shift);
    low = __reduce_min_sync(~0u, low), high = __reduce_max_sync(~0u, high);
    p.req = high;
    p.valid =
        (high < 0 || low == high) && p.max_lo <= p.min_stop && !__any_sync(~0u, expanded);
    return p;
}

__device__ __forceinline__ row_span span_of(const visible_keys *rows, int a, int b)
{
    return b - a == 1 ? span_of_one(rows, a) : span_of_many(rows, a, b);
}

/* The longest valid span from row a on; usually all rows. */
__device__ __forceinline__ row_span span_from(const visible_keys *rows, int a, int n)
{
    row_span p = span_of(rows, a, n);
    if (p.valid)
        return p;
    int b = a + 1;
    while (span_of_many(rows, a, b + 1).valid) /* (a, n) was not valid */
        b++;
    return span_of(rows, a, b);
}

/* Prefetches what a row needs first, before any of it may be read: the row's key range, queries,
 * pages and cells. One address a lane. */
__device__ __forceinline__ void prefetch_table(const tile_args &t, int r)
{
    const attn_args &a = t.a;
    const size_t q = (size_t)r * (size_t)(a.n_head * a.head_dim);
    switch ((int)threadIdx.x % 32) {
    case 0: prefetch_l2(a.lo + r); break;
    case 1: prefetch_l2(a.hi + r); break;
    case 2: prefetch_l2(a.req + r); break;
    case 3: prefetch_l2(a.pages); break;
    case 4: prefetch_l2(a.k); break;
    case 5: prefetch_l2(a.v); break;
    case 6:
        if (a.n_expand)
            prefetch_l2(a.n_expand + r);
        break;
    case 7: prefetch_l2(a.q_bf16 ? (const void *)(a.q_bf16 + q) : a.q + q);
    }
}

/* ---- cells ---------------------------------------------------------------------------------- */

/* Where the cells of a span's keys are found. */
struct cell_lookup {
    /* Of the request; of the row, if the span is a single row. */
    const int32_t *pages, *expand;
    int lo, stop, hi;
};

/* The cell of key j (FP8: its slot); -1 if no row of the span sees j or the slot is invalid. */
template <bool FP8>
__device__ __forceinline__ int cell_of(const tile_args &t, const cell_lookup &c, int kv, int j)
{
    const attn_args &a = t.a;
    int slot = -1;
    if (j >= c.lo && j < c.stop) {
        bool paged = j < c.hi;
        slot = paged ? c.pages[j >> t.page_shift] : c.expand[j - c.hi];
        slot = paged ? (slot << t.page_shift) + (j & (a.page_size - 1)) : slot;
    }
    return (unsigned)slot < (unsigned)a.n_slots ? FP8 ? slot : slot * a.n_kv + kv : -1;
}

/* Looks up the cells of four tiles of keys, LOOKUPS keys a thread. */
template <class S>
__device__ __forceinline__ void look_up_cells(const tile_args &t, const cell_lookup &c, int kv,
                                              int tile, int (&cell)[S::LOOKUPS])
{
#pragma unroll
    for (int i = 0; i < S::LOOKUPS; i++)
        cell[i] = cell_of<S::FP8>(t, c, kv, tile * S::TK + (int)threadIdx.x + i * S::NT);
}

/* Where a job's tile number `tile` is in the ring. */
__device__ __forceinline__ int ring_tile(int tile) { return (int)((unsigned)tile % RING_TILES); }

/* Stores the looked-up cells in the ring, in which the keys of a tile that one thread fetches are
 * adjacent. */
template <class S>
__device__ __forceinline__ void store_cells(int *ring, int tile, const int (&cell)[S::LOOKUPS])
{
#pragma unroll
    for (int i = 0; i < S::LOOKUPS; i++) {
        int at = (int)threadIdx.x + i * S::NT, key = at % S::TK;
        if (4 * S::TK % S::NT == 0 || at < 4 * S::TK)
            ring[ring_tile(tile + at / S::TK) * S::TK + key % S::STEP * S::EACH + key / S::STEP] =
                cell[i];
    }
}

/* Offset of a chunk of a key's cell in a stage. WGMMA: panels of 64 dimensions of all keys. */
template <class S> __device__ __forceinline__ uint32_t chunk_at(int key, int chunk)
{
    if constexpr (S::WGMMA)
        return (uint32_t)(chunk / 8 * (S::TK * 128) + key * 128 + ((chunk % 8 ^ (key & 7)) << 4));
    else
        return (uint32_t)(key * S::HD * 2 + ((chunk ^ (key & 7)) << 4));
}

/* Of K or V (pool): where part `part` of cell 0 begins; FP8: of slot 0. */
template <class S>
__device__ __forceinline__ const char *part_of(const void *pool, int kv, int part)
{
    return (const char *)pool + part * 16 + (S::FP8 ? kv * S::HD : 0);
}

/* FP8: bytes from there to the 16 scales among which the head's is (scale_of()). */
template <class S>
__device__ __forceinline__ int scales_after(const tile_args &t, int kv, int part)
{
    return S::FP8 ? t.a.n_kv * S::HD + (kv & ~15) - kv * S::HD - part * 16 : 0;
}
__device__ __forceinline__ int scale_of(int kv) { return kv & 15; }

/* Starts the copy of a thread's part of a cell to its place (FP8: codes to the first of the part's
 * two chunks, `to`, and scales to the second, to ^ 16; CODES: codes alone); zeros if there is no
 * cell. from: part_of(); scales: scales_after(). */
template <class S>
__device__ __forceinline__ void copy_part(const tile_args &t, uint32_t to, const char *from,
                                          int scales, int cell)
{
    if constexpr (S::FP8) {
        from += (size_t)(unsigned)max(cell, 0) * (unsigned)t.a.cell_bytes;
        cp_async16(to, from, cell);
        if (!S::CODES)
            cp_async16(to ^ 16, from + scales, cell);
    } else {
        cp_async16(to, from + (size_t)(unsigned)max(cell, 0) * (S::HD * 2), cell);
    }
}

/* The first chunk of a part in shared memory. */
template <class S> __device__ __forceinline__ int chunk_of(int part)
{
    return S::FP8 ? 2 * part : part;
}

/* Successive cells of the ring. */
template <int N> __device__ __forceinline__ void read_cells(const int *from, int (&cell)[N])
{
    if constexpr (N == 1)
        cell[0] = from[0];
    else
#pragma unroll
        for (int j = 0; j < N; j += 2)
            *(int2 *)(cell + j) = *(const int2 *)(from + j);
}

template <class S>
__device__ __forceinline__ void fetch_tile(const tile_args &t, int kv, const int *ring, int tile,
                                           uint32_t stage)
{
    const int first = (int)threadIdx.x / S::CELL_PARTS, part = (int)threadIdx.x % S::CELL_PARTS;
    const char *k = part_of<S>(t.a.k, kv, part), *v = part_of<S>(t.a.v, kv, part);
    const int scales = scales_after<S>(t, kv, part);
    const int *cells = ring + ring_tile(tile) * S::TK + first * S::EACH;
    constexpr int N = S::EACH < 4 ? S::EACH : 4; /* cells read from the ring together */
#pragma unroll
    for (int i = 0; i < S::EACH; i += N) {
        int cell[N];
        read_cells<N>(cells + i, cell);
#pragma unroll
        for (int j = 0; j < N; j++) {
            const uint32_t to = stage + chunk_at<S>(first + (i + j) * S::STEP, chunk_of<S>(part));
            copy_part<S>(t, to, k, scales, cell[j]);
            copy_part<S>(t, to + S::TILE_BYTES, v, scales, cell[j]);
        }
    }
}

/* FP8: widens what this thread has fetched of the tile, which has arrived. */
template <class S> __device__ __forceinline__ void widen_tile(int kv, uint32_t stage)
{
    if constexpr (S::FP8) {
        const int first = (int)threadIdx.x / S::CELL_PARTS, part = (int)threadIdx.x % S::CELL_PARTS;
#pragma unroll
        for (int i = 0; i < S::EACH; i++) {
            const uint32_t at = stage + chunk_at<S>(first + i * S::STEP, chunk_of<S>(part));
            fp8_cell_widen(at, scale_of(kv));
            fp8_cell_widen(at + S::TILE_BYTES, scale_of(kv));
        }
    }
}
