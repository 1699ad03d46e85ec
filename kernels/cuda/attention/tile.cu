/* tile.cu - attention over paged bf16 or FP8 cells on the tensor cores, for large trees and prefill
 * rows. decode.cu serves decode rows and small trees (attn_route_of()).
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

template <class S, bool whole> static void run(struct kdev *d, const tile_args &t)
{
    dim3 grid((unsigned)max_int(t.split_blocks, 1), (unsigned)t.a.n_kv, (unsigned)t.tiles);
    cuda_launch(d, tile_kernel<S, whole>, grid, S::NT, whole ? S::BYTES : S::SPLIT_BYTES, t);
    if constexpr (!whole) {
        typedef tree_config<S::HD, S::FP8> E;
        dim3 ends(1, (unsigned)t.a.n_kv, (unsigned)t.a.rows);
        cuda_launch(d, tree_part_kernel<E>, ends, E::NT, tree_bytes<E>(t), t);
    }
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

static void run_form(struct kdev *d, const tile_args &t, const struct tile_form &f)
{
#define RUN(hd, mi_, wm_, warps_, stages_, blocks_, wgmma_, whole)                                \
    if (f.head_dim == hd && f.mi == mi_ && f.wm == wm_ && f.warps == warps_ &&                    \
        f.stages == stages_ && f.blocks == blocks_ && f.wgmma == wgmma_ &&                        \
        whole == !t.split_blocks) {                                                               \
        using S = tile_config<hd, mi_, wm_, warps_, stages_, blocks_, wgmma_>;                    \
        if constexpr (hd < 512)                                                                   \
            if (t.a.cell_bytes)                                                                   \
                return run<typename S::with_fp8, whole>(d, t);                                    \
        return run<S, whole>(d, t);                                                               \
    }
    ATTN_TILE_FORMS(RUN)
#undef RUN
    CHECK(!"a form of the list");
}

/* The arguments that follow from those of the operation and its route, and their scratch. */
static tile_args args_of(struct kdev *d, const struct attn_args *a, const struct attn_route *r)
{
    tile_args t = {};
    t.a = *a;
    t.factor = a->softcap > 0 ? 1.44269504088896341f : a->scale * 1.44269504088896341f;
    while (1 << t.page_shift < a->page_size)
        t.page_shift++;
    t.inverse = 65536 / a->group + 1;
    t.least_shift = r->least_shift, t.cap_shift = r->cap_shift, t.long_shift = r->long_shift;
    t.tiles = r->tiles, t.tile_rows = r->tile_rows;
    t.split_blocks = r->split_blocks, t.merge_splits = r->merge_splits;
    t.a.most_splits = r->most_splits;
    if (r->parts) {
        const size_t segments = r->parts / (size_t)a->head_dim;
        t.a.part = (float *)cuda_take(d, r->parts * sizeof(float));
        t.ml = (float2 *)cuda_take(d, segments * sizeof(float2));
    }
    if (r->totals)
        t.totals = (float *)cuda_take(d, r->totals * sizeof(float));
    return t;
}

void cuda_attn_tiles(struct kdev *d, const struct attn_args *a, const struct attn_route *r)
{
    tile_args t = args_of(d, a, r);
    const bool rounds = r->kernel == ATTN_ROUNDS;
    t.wait = cuda_was_last(d, d->late_epoch) && (!rounds || a->rows <= TREE_KEYS)
                 ? WAIT_BEFORE_NEW
                 : WAIT_AT_START;
    if (rounds)
        return cuda_attn_rounds(d, t, r->round);
    cuda_store_fresh(d, &a->fresh);
    run_form(d, t, r->tile);
}
