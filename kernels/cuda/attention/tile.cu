/* tile.cu - attention over paged bf16 or FP8 cells on the tensor cores, for large trees and prefill
 * rows. cuda_attn_tiles() also decides when decode.cu serves instead (decode rows, small trees).
 *
 * A block packs rows of one request times the query heads of one kv head into tiles of 16 rows
 * (mma.m16n8k16), or on Hopper of 64 rows (wgmma), so that a cell is read once for all of them. It
 * walks tiles of 64 keys (32 if heads are wider than 128) with an online softmax; cells are copied
 * by cp.async through the page table. Queries and weights are rounded to bf16; scores, maxima and
 * sums are float32.
 *
 * For a prompt, one block walks all keys of its rows. For a tree there are two kernels: in the
 * first, blocks share the splits of the rows; in the second, two warps walk the tree part of each
 * row and kv head and then combine the row's segments (tree_part.cuh). Rows with a short window are
 * walked by one block each.
 *
 * Order of every sum (law 5). Tiles of keys begin at multiples of the tile size by logical index. A
 * row's keys are divided into segments. The last segment is the tree part; it begins with the tile
 * of the key 17 before the row's end, and so holds every key that a row of a tree reads through the
 * expand table. The segments before it are splits, which begin at multiples of a power of two of
 * tiles; the power depends on how many tiles the row sees. Within a segment the tiles are added in
 * order; within a tile the instruction fixes the order, a packed row being independent of its 15
 * neighbours, and a tile that a row does not see adds exact zeros. Segments are combined in order.
 * So the bits of a row depend on its keys and their logical indices alone. They do not depend on
 * how many rows share a tile, which warps divide it, whether one block walks all segments (prefill)
 * or one block each (decode), or who combines them; nor on whether wgmma or mma.sync adds, which
 * agree to the bit (dense/wgmma.cuh).
 *
 * Cells that no row of the block sees are not read, so their contents are never multiplied.
 */
#include "kernels/cuda/attention/tree_part.cuh"
#include "kernels/cuda/attention/wgmma.cuh"

enum {
    MAX_ROUND_ROWS = 64, /* most packed rows of a request for cuda_attn_rounds() */
    ONE_BLOCK_WINDOW = 256, /* keys of a window: up to here one block is fastest */
    SHORT_WINDOW = 2048, /* keys of a window: up to here tiles of fewer rows */
};

/* ---- walking -------------------------------------------------------------------------------- */

/* What a block does once, after it has started the copies of its first cells: it waits for earlier
 * kernels if it has not yet (waits), and loads the queries into shared memory (WGMMA) or
 * registers. */
template <class S> struct block_prologue {
    bool waits, over;
    uint32_t q[S::WGMMA ? 1 : S::MI][S::HD / 16][4];
};
template <class S>
__device__ __forceinline__ void run_prologue(const tile_args &t, const place<S> &p,
                                             block_prologue<S> &o)
{
    if (o.over)
        return;
    if (o.waits)
        pdl_wait_trigger();
    if constexpr (S::WGMMA)
        share_queries<S>(t, p);
    else if (t.a.q_bf16)
        load_queries<S>(t, p, t.a.q_bf16, o.q);
    else
        load_queries<S>(t, p, t.a.q, o.q);
    o.over = true;
}

/* The address of tile i of a job in shared memory. */
template <class S> __device__ __forceinline__ uint32_t tile_at(const place<S> &p, int i)
{
    return p.base + (unsigned)i % S::STAGES * S::PAIR_BYTES;
}

/* Looks up the cells of a job's first eight tiles, and starts the copies of its first n tiles. */
template <class S>
__device__ __forceinline__ void start_job(const tile_args &t, const place<S> &p, const job &j,
                                          const cell_lookup &c, int n)
{
    int cell[S::LOOKUPS];
    for (int i = 0; i < 8 && (i == 0 || j.from + i < j.to); i += 4) {
        look_up_cells<S>(t, c, p.kv, j.from + i, cell);
        store_cells<S>(p.ring, i, cell);
    }
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < n; i++) {
        if (j.from + i < j.to)
            fetch_tile<S>(t, p.kv, p.ring, i, tile_at<S>(p, i));
        cp_async_commit();
    }
}

/* Walks the tiles of a job with the scores one tile ahead (AHEAD): wgmma multiplies the queries by
 * the next tile's keys while the softmax of this tile is computed, and this tile's weights by its
 * values while a further tile is fetched. */
template <class S>
__device__ __forceinline__ void walk_ahead(const tile_args &t, const place<S> &p, const job &j,
                                           bool whole, block_prologue<S> &first, totals<S> &all)
{
    static_assert(S::STAGES == 4);
    enum { FETCH = 3 }; /* tiles from the one at hand to the one that is fetched */
    sums<S> x;
    float s[1][S::KT][4], next[1][S::KT][4];
    int cell[S::LOOKUPS];
    const int from = j.from, to = j.to;
    const cell_lookup c = lookup_of<S>(t, p, j);
    start_job<S>(t, p, j, c, FETCH);
    run_prologue<S>(t, p, first);
    extent<S> e = extent_of<S>(p, j);
    clear<S>(x, 0, 0), clear<S>(x, 0, 1);
    cp_async_wait<0>(); /* the first tiles; the queries, if they are copied asynchronously */
    widen_tile<S>(p.kv, tile_at<S>(p, 0)), widen_tile<S>(p.kv, tile_at<S>(p, 1));
    fence_async_proxy_shared();
    __syncthreads();
    start_scores<S>(p, tile_at<S>(p, 0), s);
    wgmma_wait<0>();
    for (int k = from; k < to; k++) {
        const int i = k - from;
        start_scores<S>(p, tile_at<S>(p, i + 1), next); /* unused behind the last tile */
        /* Look up four more tiles, four tiles ahead. */
        const bool look = i % 4 == 0 && i && k + 4 < to;
        if (look)
            look_up_cells<S>(t, c, p.kv, k + 4, cell);
        if (__any_sync(~0u, e.ends[0][0] == k || e.ends[0][1] == k))
            end_segments<S>(t, p, k, e.stop, e.ends, x, whole, all);
        if (t.a.softcap > 0)
            softcap_scores<S>(t.a.scale, t.a.softcap, s);
        if (k * S::TK < j.w.max_lo || (k + 1) * S::TK > j.w.min_stop)
            mask<S>(e.lo, e.stop, k * S::TK + p.lane % 4 * 2, s);
        softmax_tile<S>(t, p, x, s);
        start_values<S>(p, tile_at<S>(p, i) + S::TILE_BYTES, s, x);
        cp_async_wait<0>();
        widen_tile<S>(p.kv, tile_at<S>(p, i + 2));
        fence_async_proxy_shared(); /* before the next copy begins: the fence waits for copies */
        if (k + FETCH < to) /* to the place of tile k - 1 */
            fetch_tile<S>(t, p.kv, p.ring, i + FETCH, tile_at<S>(p, i + FETCH));
        cp_async_commit();
        if (look)
            store_cells<S>(p.ring, i + 4, cell);
        wgmma_wait<0>();
#pragma unroll
        for (int n = 0; n < S::KT; n++)
#pragma unroll
            for (int v = 0; v < 4; v++)
                s[0][n][v] = next[0][n][v];
        __syncthreads(); /* tile k + 2 has arrived, and no warp multiplies tile k */
    }
    end_segments<S>(t, p, to, e.stop, e.ends, x, whole, all);
}

/* Walks the tiles of a job. Segments that end are combined into `all` (whole) or stored. */
template <class S>
__device__ __forceinline__ void walk(const tile_args &t, const place<S> &p, const job &j,
                                     bool whole, block_prologue<S> &first, totals<S> &all)
{
    sums<S> x;
    int cell[S::LOOKUPS];
    const int from = j.from, to = j.to;
    const cell_lookup c = lookup_of<S>(t, p, j);
    look_up_cells<S>(t, c, p.kv, from, cell);
    store_cells<S>(p.ring, 0, cell);
    if (to - from > 4) {
        look_up_cells<S>(t, c, p.kv, from + 4, cell);
        store_cells<S>(p.ring, 4, cell);
    }
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < S::STAGES; i++) {
        if (from + i < to)
            fetch_tile<S>(t, p.kv, p.ring, i, p.base + (uint32_t)(i * S::PAIR_BYTES));
        if (i == 0 || i < S::STAGES - 1) /* the last stage's group is committed in the loop */
            cp_async_commit();
    }
    run_prologue<S>(t, p, first);
    extent<S> e = extent_of<S>(p, j);
#pragma unroll
    for (int mi = 0; mi < S::MI; mi++)
        clear<S>(x, mi, 0), clear<S>(x, mi, 1);
    if constexpr (S::WGMMA)
        wait_queries(t);
    for (int k = from, stage = 0; k < to; k++) {
        cp_async_wait<S::STAGES - 2>();
        widen_tile<S>(p.kv, p.base + (uint32_t)(stage * S::PAIR_BYTES));
        if constexpr (S::WGMMA)
            fence_async_proxy_shared();
        __syncthreads(); /* tile k has arrived, and no thread reads the stage before it */
        int next = stage == 0 ? S::STAGES - 1 : stage - 1;
        const int i = k - from;
        /* Look up four more tiles, four tiles ahead. */
        const bool look = i % 4 == 0 && i && k + 4 < to;
        if (look)
            look_up_cells<S>(t, c, p.kv, k + 4, cell);
        if (i && k + S::STAGES - 1 < to)
            fetch_tile<S>(t, p.kv, p.ring, i + S::STAGES - 1,
                          p.base + (uint32_t)(next * S::PAIR_BYTES));
        cp_async_commit();
        bool over = false;
#pragma unroll
        for (int mi = 0; mi < S::MI; mi++)
            over |= e.ends[mi][0] == k || e.ends[mi][1] == k;
        if (__any_sync(~0u, over))
            end_segments<S>(t, p, k, e.stop, e.ends, x, whole, all);

        uint32_t at = p.base + (uint32_t)(stage * S::PAIR_BYTES);
        float s[S::MI][S::KT][4];
        if constexpr (S::WGMMA)
            start_scores<S>(p, at, s), wgmma_wait<0>();
        else
            score_tile<S>(first.q, at, p.wn, p.lane, s);
        if (t.a.softcap > 0)
            softcap_scores<S>(t.a.scale, t.a.softcap, s);
        if (k * S::TK < j.w.max_lo || (k + 1) * S::TK > j.w.min_stop)
            mask<S>(e.lo, e.stop, k * S::TK + p.wn % S::WN * S::KT * 8 + p.lane % 4 * 2, s);
        softmax_tile<S>(t, p, x, s);
        if constexpr (S::WN > 1)
            share_weights<S>(p, s);
        if constexpr (S::WGMMA)
            start_values<S>(p, at + S::TILE_BYTES, s, x), wgmma_wait<0>();
        else
            add_values<S>(p, at + S::TILE_BYTES, s, x);
        if (look)
            store_cells<S>(p.ring, i + 4, cell);
        stage = stage + 1 == S::STAGES ? 0 : stage + 1;
    }
    end_segments<S>(t, p, to, e.stop, e.ends, x, whole, all);
    cp_async_wait<0>();
    __syncthreads();
}

/* Where the block's combined sums lie, unless they are in registers. */
template <class S>
__device__ __forceinline__ float *totals_of(const tile_args &t, const place<S> &p)
{
    const size_t block = blockIdx.z * gridDim.y + blockIdx.y;
    return S::IN_SCRATCH ? t.totals + block * (S::ROWS * S::HD)
                         : (float *)(p.shared + S::TOTAL_AT);
}

/* ---- the kernel ----------------------------------------------------------------------------- */

/* Blocks (index among the blocks that share the splits, kv head, tile of rows from the last to the
 * first); or blocks that walk all keys of their rows (whole). Splits of rows with expanded keys
 * hold no cell that this pass writes: their first cells are copied before the wait. */
template <class S, bool whole>
__global__ void __launch_bounds__(S::NT, S::BLOCKS)
    tile_kernel(const __grid_constant__ tile_args t)
{
    if (S::WGMMA && !HAVE_WGMMA)
        return;
    if (S::WGMMA) /* divisions by constants become shifts; the other forms would spill more */
        __builtin_assume(threadIdx.x < S::NT);
    extern __shared__ __align__(1024) unsigned char shared[];
    __shared__ visible_keys rows[S::ROWS];
    __shared__ __align__(16) int ring[RING_TILES * S::TK];
    place<S> p = place_of<S>(t, rows, shared, ring);
    if (S::WGMMA && threadIdx.x / 32 == S::NT / 32 - 1) /* the first warps have rows to look up */
        prefetch_table(t, p.r0);
    block_prologue<S> first;
    first.waits = t.wait == WAIT_BEFORE_NEW && !whole && t.a.n_expand, first.over = false;
    if (!first.waits)
        pdl_wait_trigger(); /* a later kernel may rely on all kernels before this one */
    bool old_cells = true, trees = false;
    for (int r = (int)threadIdx.x; r < p.n; r += S::NT) {
        visible_keys x = visible_to<S::TK>(t, p.r0 + r);
        old_cells &= x.hi < x.end;
        if (!whole)
            x.stop = prefix_end<S::TK>(x);
        else if (p.n == 1)
            x.stop = x.end; /* no other row walks with it */
        trees |= x.stop < x.end;
        rows[r] = x;
    }
    if (whole && S::WGMMA) {
        trees = __syncthreads_or(trees);
    } else if (whole) {
        __syncthreads();
        trees = true; /* the schedule asks each row: one value less in registers, which spill */
    } else if (!__syncthreads_and(old_cells) && first.waits) { /* may be cells of this pass */
        pdl_wait_trigger();
        first.waits = false;
    }
    schedule c = {};
    c.last = -1;
    c.stride = whole ? 1 : t.split_blocks;
    c.last_tree = whole && trees ? p.n : 0;
    const uint32_t sinks = whole ? fetch_sinks(t, p) : 0;
    totals<S> all;
    if (whole)
        start_totals<S>(totals_of<S>(t, p), all);
    while (next_job<S>(t, p, whole, c))
        if constexpr (S::AHEAD)
            walk_ahead<S>(t, p, c.now, whole, first, all);
        else
            walk<S>(t, p, c.now, whole, first, all);
    if (first.waits && !first.over)
        pdl_wait_trigger();
    if (whole)
        finish<S>(t, p, sinks, all);
}

/* ---- host ----------------------------------------------------------------------------------- */

/* The largest power of two of tiles in a split such that the splits are few enough to combine, and
 * with all kv heads enough to fill the device. */
static int cap_shift_of(int n_kv)
{
    int shift = 4;
    while (shift < 6 && n_kv << (shift + 1) <= 256)
        shift++;
    return shift;
}

/* Sets the number of blocks that share the splits: at most what the device holds, and at most the
 * splits of a window that begins on a split boundary. If the window begins elsewhere, its first and
 * last split together are as long as one, and one block walks both. */
template <class S> static void share_splits(struct kdev *d, tile_args &t)
{
    const int splits = t.split_blocks, most = S::BLOCKS * d->n_sm / (t.tiles * t.a.n_kv);
    t.split_blocks = max_int(1, min_int(splits, most));
    if (t.a.window)
        t.split_blocks = min_int(t.split_blocks, div_up(t.a.window, S::TK << t.least_shift));
    t.merge_splits = splits > t.split_blocks + 2;
}

template <class S> static void run_cells(struct kdev *d, tile_args t)
{
    typedef tree_config<S::HD, S::FP8> E;
    if (t.split_blocks)
        share_splits<S>(d, t);
    dim3 grid((unsigned)max_int(t.split_blocks, 1), (unsigned)t.a.n_kv, (unsigned)t.tiles);
    dim3 ends(1, (unsigned)t.a.n_kv, (unsigned)t.a.rows);
    if (t.split_blocks) {
        cuda_launch(d, tile_kernel<S, false>, grid, S::NT, S::SPLIT_BYTES, t);
        cuda_launch(d, tree_part_kernel<E>, ends, E::NT, tree_bytes<E>(t), t);
    } else {
        cuda_launch(d, tile_kernel<S, true>, grid, S::NT, S::BYTES, t);
    }
}

template <class S> static void run(struct kdev *d, const tile_args &t)
{
    t.a.cell_bytes ? run_cells<typename S::with_fp8>(d, t) : run_cells<S>(d, t);
}

/* Bounds the splits of a row and takes scratch for their segments. One block walks all keys
 * (split_blocks = 0) if the tiles of rows alone fill every multiprocessor, if the window is at most
 * ONE_BLOCK_WINDOW, or if there is no room for the segments. */
static void plan_splits(struct kdev *d, tile_args &t)
{
    attn_args &a = t.a;
    int tk = a.head_dim > 128 ? 32 : 64, blocks = t.tiles * a.n_kv;
    int cap = (1 << max_int(t.cap_shift, t.long_shift)) + 1;
    size_t keys = (size_t)a.n_cols * (size_t)a.page_size + (size_t)(a.n_expand ? a.expand_w : 0);
    size_t most = keys / (size_t)tk + 1;
    if (a.window)
        cap = min_int(cap, a.window / (tk << t.least_shift) + 2);
    t.split_blocks = max_int(1, most < (size_t)cap ? (int)most : cap);
    a.most_splits = max_int(t.split_blocks, UNSPLIT_TILES) + 1;
    size_t heads = (size_t)a.rows * (size_t)a.n_head * (size_t)a.most_splits;
    size_t scratch = heads * (size_t)(a.head_dim + 2) * sizeof(float) + 4096;
    bool one_block = a.window && a.window <= ONE_BLOCK_WINDOW && (!a.n_expand || t.tile_rows == 1);
    bool fills_device = a.rows > 64 ? 2 * blocks >= d->n_sm : blocks >= 2 * d->n_sm;
    if (fills_device || scratch > ARENA_BYTES || one_block) {
        t.split_blocks = 0;
        return;
    }
    a.part = (float *)cuda_take(d, heads * (size_t)a.head_dim * sizeof(float));
    t.ml = (float2 *)cuda_take(d, heads * sizeof(float2));
}

/* Whether this file and decode.cu serve a shape: all numbers of rows or none, because attention.cu
 * adds in another order. */
static bool has_tiles(const struct attn_args *a)
{
    bool wide = a->head_dim == 64 || a->head_dim == 128 || a->head_dim == 256;
    return wide && (size_t)a->n_slots * (size_t)a->n_kv <= INT_MAX && a->group <= MAX_GROUP &&
           a->scale > 0 && !(a->page_size & (a->page_size - 1)) && a->rows > 0;
}

/* Chooses the rows of a tile: as many as give `packed` packed rows. */
static void plan_tiles(struct kdev *d, tile_args &t, int packed)
{
    int together = div_up(t.a.rows, max_int(t.a.n_req, 1));
    t.tile_rows = max_int(1, min_int(together, packed / t.a.group));
    t.tiles = div_up(t.a.rows, t.tile_rows);
    plan_splits(d, t);
}

enum { WIDE_ROWS = 128 }; /* packed rows of the largest tile */

/* Whether blocks that walk all keys of WIDE_ROWS packed rows with heads of 256 dimensions are
 * faster than blocks of 64, although their combined sums lie in device memory: segments must be
 * long, since the sums are read and written at the end of each, and the blocks must fill the
 * device. */
static bool scratch_pays(const struct kdev *d, const attn_args &a)
{
    enum { LONG_KEYS = 32768 };
    const size_t blocks = (size_t)(a.rows / (WIDE_ROWS / a.group)) * (size_t)a.n_kv;
    return d->has_wgmma && a.head_dim == 256 && !a.window && a.rows > 64 &&
           (size_t)a.n_cols * (size_t)a.page_size >= LONG_KEYS && 2 * blocks >= (size_t)d->n_sm;
}

/* Takes scratch for the combined sums of blocks of WIDE_ROWS packed rows; false if there is no
 * room. */
static bool take_totals(struct kdev *d, tile_args &t)
{
    const size_t each = (size_t)(WIDE_ROWS * t.a.head_dim) * sizeof(float);
    const size_t bytes = (size_t)t.tiles * (size_t)t.a.n_kv * each;
    if (bytes > ARENA_BYTES / 2)
        return false;
    t.totals = (float *)cuda_take(d, bytes);
    return true;
}

/* Whether a block fits where blocks have the least shared memory (99 KiB). */
template <class S>
static constexpr bool fits_everywhere =
    S::BYTES + S::ROWS * (int)sizeof(visible_keys) + RING_TILES * S::TK * (int)sizeof(int) <=
    (int)LEAST_SHARED;
static_assert(fits_everywhere<tile_config<256, 1, 4, 2, 2, 1>> &&
              fits_everywhere<tile_config<256, 1, 1, 2, 2, 2>> &&
              fits_everywhere<tile_config<128, 1, 4, 1, 2, 1>> &&
              fits_everywhere<tile_config<128, 1, 8, 1, 2, 1>> &&
              fits_everywhere<tile_config<128, 1, 1, 2, 2, 3>>);

/* Launches the kernel for tiles of `packed` packed rows. If blocks have less shared memory than
 * LARGE, heads of 256 have two stages, and heads of 128 one block a multiprocessor, whose combined
 * sums stay in registers. */
static void run_tiles(struct kdev *d, const tile_args &t, int packed)
{
    constexpr size_t THREE_STAGES = (size_t)tile_config<256, 1, 4, 2, 3, 1>::BYTES + 2048;
    if (t.a.head_dim == 256)
        packed == WIDE_ROWS          ? run<tile_config<256, 1, 8, 1, 4, 1, true>>(d, t)
        : t.split_blocks && d->has_wgmma ? run<tile_config<256, 1, 4, 1, 2, 2, true>>(d, t)
        : d->has_wgmma               ? run<tile_config<256, 1, 4, 2, 4, 1, true>>(d, t)
        : d->smem_max > THREE_STAGES ? run<tile_config<256, 1, 4, 2, 3, 1>>(d, t)
                                     : run<tile_config<256, 1, 4, 2, 2, 1>>(d, t);
    else if (t.a.head_dim == 128)
        packed == 64 && d->smem_max >= LARGE ? run<tile_config<128, 1, 4, 1, 2, 2>>(d, t)
        : packed == 64 ? run<tile_config<128, 1, 4, 1, 2, 1>>(d, t)
        : d->has_wgmma ? run<tile_config<128, 1, 8, 1, 4, 1, true>>(d, t)
                       : run<tile_config<128, 1, 8, 1, 2, 1>>(d, t);
    else if (packed == 64)
        run<tile_config<64, 1, 4, 1, 4, 2>>(d, t);
    else if (d->has_wgmma)
        run<tile_config<64, 1, 8, 1, 3, 2, true>>(d, t);
    else
        run<tile_config<64, 2, 4, 1, 3, 2>>(d, t);
}

/* One block a row. */
static void run_row_blocks(struct kdev *d, const tile_args &t)
{
    if (t.a.head_dim == 256)
        run<tile_config<256, 1, 1, 2, 2, 2>>(d, t);
    else if (t.a.head_dim == 128)
        run<tile_config<128, 1, 1, 2, 2, 3>>(d, t);
    else
        run<tile_config<64, 1, 1, 2, 3, 4>>(d, t);
}

bool cuda_attn_tiles(struct kdev *d, const struct attn_args *a)
{
    if (!has_tiles(a))
        return false;
    tile_args t = {};
    t.a = *a;
    t.factor = a->softcap > 0 ? 1.44269504088896341f : a->scale * 1.44269504088896341f;
    while (1 << t.page_shift < a->page_size)
        t.page_shift++;
    t.inverse = 65536 / a->group + 1;
    t.least_shift = a->head_dim > 128 ? 1 : 2;
    t.long_shift = cap_shift_of(a->n_kv);
    t.cap_shift = t.long_shift - 1; /* measured: combining fewer segments is worth more */
    int together = div_up(a->rows, max_int(a->n_req, 1)), packed = together * a->group;
    bool small = packed <= 16 || (packed <= MAX_ROUND_ROWS && !long_context(t.a));
    bool short_window = a->window && a->window <= SHORT_WINDOW;
    bool row_blocks = a->rows <= 64 && a->window && a->window <= ONE_BLOCK_WINDOW;
    /* row_blocks: rounds only if they are at most two blocks a multiprocessor */
    bool rounds = row_blocks ? a->rows * a->n_kv <= 2 * d->n_sm : small;
    const bool long_scratch = scratch_pays(d, *a);
    bool wide = packed > 64 && (a->head_dim < 256 || long_scratch ||
                                (d->has_wgmma && a->rows <= 64 && !short_window));
    /* 32 packed rows; with heads of 64 dimensions they would lack registers */
    bool rows_32 = packed > 16 && a->head_dim > 64;
    int most = row_blocks ? a->group : small ? (rows_32 ? 32 : 16) : wide ? WIDE_ROWS : 64;
    plan_tiles(d, t, most);
    if (!t.split_blocks && a->head_dim == 256 && most == WIDE_ROWS &&
        !(long_scratch && take_totals(d, t))) /* the sums do not fit into shared memory */
        plan_tiles(d, t, most = 64);
    t.wait = d->prev_triggers_late && (!rounds || a->rows <= TREE_KEYS) ? WAIT_BEFORE_NEW
                                                                        : WAIT_AT_START;
    if (!rounds)
        cuda_store_fresh(d, &a->fresh);
    if (rounds)
        cuda_attn_rounds(d, t);
    else if (row_blocks)
        run_row_blocks(d, t);
    else
        run_tiles(d, t, most);
    return true;
}
