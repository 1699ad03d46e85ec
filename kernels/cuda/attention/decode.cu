/* decode.cu - attention of at most 64 packed rows over paged bf16 or FP8 cells: decode rows and
 * small trees; and of any rows if heads are of 512 dimensions, unless blocks of 64 packed rows with
 * combined sums in device memory pay (scratch_pays(), route.c). Here are the kernel, the jobs of a
 * block and their rounds of keys, and the launches; what a block does with one round is in
 * round.cuh.
 *
 * Latency decides here, not throughput: the time until the first cell arrives, and from the last
 * cell to the row's result. A round has four barriers, and the next round's keys are copied while
 * this round's values are added.
 *
 * Such a kernel executes most of its instructions once, and fetching an instruction costs as much
 * as executing it. So loops stay rolled unless unrolling shortens a round, rare cases are calls or
 * branches, one lane computes what several threads need and shuffles it to them, and everything
 * that does not depend on earlier kernels is computed before the wait for them.
 *
 * The blocks share splits and tree parts. All blocks are resident, so they combine each other's
 * segments as these arrive. If there are more splits and tree parts than blocks, the cells of a
 * block's tree part are copied together with those of its split.
 *
 * Always true:
 *   - Queries, and the cells that this forward pass writes, are read only after the wait for the
 *     kernels before; cells of earlier passes may be read before that wait.
 *   - A block waits for other blocks only if all blocks are resident (cuda_launch_resident()).
 */
#include "kernels/cuda/attention/round.cuh"
#include "kernels/cuda/dense/fresh.cuh"

/* ---- what rows see -------------------------------------------------------------------------- */

/* What a thread's packed rows see of a job (extent), and where their segments go
 * (send_segments()). */
template <class S> struct round_extent : extent<S> {
    uint32_t to[S::MI][2];
};

/* Each lane computes the extent of one packed row; shuffles copy it to the threads that have that
 * row. Shorter code than one extent a thread. */
template <class S>
__device__ __forceinline__ round_extent<S> round_extent_of(const tile_args &t, const place<S> &p,
                                                           const job &j)
{
    round_extent<S> e;
    const int packed = p.lane % S::ROWS, row = row_of(t, packed), r = row < p.n ? row : -1;
    const int3 x = extent_of_row<S>(p, j, r);
    uint32_t at = 0;
    if (!S::WHOLE && x.z < INT_MAX) {
        const int head = p.kv * t.a.group + packed - r * t.a.group;
        at = (uint32_t)(((p.r0 + r) * t.a.n_head + head) * (S::HD / SLICE) * t.a.most_splits +
                        segment_before<S::TK>(p.rows[r], x.z));
    }
#pragma unroll
    for (int mi = 0; mi < S::MI; mi++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int from = packed_row<S>(p, mi, h);
            e.lo[mi][h] = __shfl_sync(~0u, x.x, from), e.stop[mi][h] = __shfl_sync(~0u, x.y, from);
            e.ends[mi][h] = __shfl_sync(~0u, x.z, from);
            e.to[mi][h] = (__shfl_sync(~0u, at, from) +
                           (uint32_t)(p.wn * S::DT * 8 / SLICE * t.a.most_splits)) *
                          SLICE_CHUNKS;
        }
    return e;
}

/* ---- walking -------------------------------------------------------------------------------- */

/* The first key that this forward pass may write (k_table); earlier keys were written by earlier
 * passes. */
template <class S>
__device__ __forceinline__ int first_new(const place<S> &p, const row_span &w)
{
    const int r = w.a + p.lane;
    return __reduce_min_sync(~0u, r < w.b ? max(p.rows[r].end - TREE_KEYS, 0) : INT_MAX);
}

/* Prefetches the address translations of what is read or written only after the wait. */
template <class S>
__device__ __forceinline__ void prefetch_places(const tile_args &t, const place<S> &p)
{
    const size_t head = (size_t)p.r0 * (size_t)t.a.n_head + (size_t)(p.kv * t.a.group);
    switch ((int)threadIdx.x) {
    case 32: prefetch_l2(t.a.q + head * S::HD); break;
    case 64: prefetch_l2(t.a.dst + head * S::HD); break;
    case 96: prefetch_l2(slice_of<S>(t, p.r0, p.kv * t.a.group, 0));
    }
}

/* The first of a thread's last chunks of the queries. */
template <class S>
static constexpr int LAST_QUERIES = (int)queries<S>::ALL - (int)queries<S>::N;

/* Waits for the kernels before this one, then loads the queries and sinks; once a block. Stores all
 * chunks of the queries but a thread's last ones, which it leaves in q. */
template <class S>
__device__ __forceinline__ void wait_for_queries(const tile_args &t, const place<S> &p,
                                                 queries<S> &q, uint32_t &sinks)
{
    prefetch_places<S>(t, p);
    sinks = fetch_sinks(t, p);
    find_queries<S>(t, p, 0, q);
    if (t.wait == WAIT_BEFORE_NEW)
        pdl_wait();
    load_queries<S>(q);
#pragma unroll
    for (int i = 0; i < LAST_QUERIES<S>; i += queries<S>::N) {
        store_queries<S>(p, i, q);
        find_queries<S>(t, p, i + queries<S>::N, q);
        load_queries<S>(q);
    }
}

/* What a block does once. */
struct block_state {
    bool first;  /* has not waited for the kernels before */
    bool stores; /* there are fresh cells (struct fresh_cells), and the block has not stored them */
    uint32_t sinks;
};

/* Stores the fresh cells of the block's kv head. Every block that reads one does, because blocks
 * do not wait for each other; they store the same bytes. */
template <class S>
__device__ __forceinline__ void store_fresh(const tile_args &t, int kv, block_state &b)
{
    if constexpr (S::FP8 && S::HD <= 256) { /* wider heads are stored by the product's kernels */
#pragma unroll 1
        for (int i = (int)threadIdx.x / 32; i < 2 * t.a.fresh.rows; i += S::WARPS)
            store_fresh_head<S::HD>(t.a.fresh, i / 2, i % 2, kv);
        __syncthreads();
        b.stores = false;
    }
}

/* Starts the copies of the first round's cells and of `ahead` keys of the tree part that is walked
 * next, and loads queries and sinks before the block's first walk. Cells that this pass writes are
 * fetched after the wait. So are the values if MI > 1: otherwise the queries would queue behind
 * them, and values are needed later. Two commit groups: the keys, and everything else; then two for
 * each round more of DEPTH. */
template <class S>
__device__ __forceinline__ void begin_walk(const tile_args &t, const place<S> &p, const job &j,
                                           int ahead, block_state &b)
{
    const int n = min(S::G, j.to - j.from) * S::TK;
    const bool waits = b.first && t.wait == WAIT_BEFORE_NEW, may_store = S::FP8 && b.stores;
    const int new_from = waits || may_store ? first_new<S>(p, j.w) - j.from * S::TK : n;
    const bool stores = may_store && (ahead || new_from < (j.to - j.from) * S::TK);
    const int old = waits || stores ? max(0, min(n, new_from)) : n;
    const kv_buffers to = buffers_of<S>(p, 0);
    queries<S> q;
    if constexpr (S::MI > 1) {
        fetch_round<S>(t, p.kv, t.a.k, p.ring, 0, old, to.k, to.k_scales);
        if (b.first)
            wait_for_queries<S>(t, p, q, b.sinks);
        if (stores)
            store_fresh<S>(t, p.kv, b);
        if (old < n)
            fetch_round<S>(t, p.kv, t.a.k, p.ring, old, n, to.k, to.k_scales);
        cp_async_commit();
        fetch_round<S>(t, p.kv, t.a.v, p.ring, 0, n, to.v, to.v_scales);
    } else {
        fetch_both<S>(t, p.kv, p.ring, 0, old, to, old == n);
        if (b.first)
            wait_for_queries<S>(t, p, q, b.sinks);
        if (stores)
            store_fresh<S>(t, p.kv, b);
        if (old < n)
            fetch_both<S>(t, p.kv, p.ring, old, n, to, true);
    }
    if (ahead)
        fetch_both<S>(t, p.kv, p.ring + (S::DEPTH + 1) * S::KEYS, 0, ahead,
                      buffers_of<S>(p, S::DEPTH), false);
    cp_async_commit();
#pragma unroll
    for (int i = 1; i < S::DEPTH; i++) {
        const int more = max(j.to - j.from - i * S::G, 0) * S::TK;
        fetch_both<S>(t, p.kv, p.ring + i * S::KEYS, 0, more, buffers_of<S>(p, i), true);
        cp_async_commit();
    }
    if (b.first)
        store_queries<S>(p, LAST_QUERIES<S>, q);
    b.first = false;
}

/* Looks up the cells of a job's first rounds and of the tree part that is walked next, and
 * starts their copies. The extents are computed while the look-ups are in flight. */
template <class S>
__device__ __forceinline__ void start_walk(const tile_args &t, const place<S> &p, const job &j,
                                           const job &next, int ahead, const cell_lookup &c,
                                           round_extent<S> &e, block_state &b)
{
    const int cell = look_up_round<S>(t, c, p.kv, j.from);
    e = round_extent_of<S>(t, p, j);
    store_round<S>(p.ring, cell);
#pragma unroll
    for (int i = 1; i <= S::DEPTH; i++)
        if (j.from + i * S::G < j.to)
            store_round<S>(p.ring + i * S::KEYS, look_up_round<S>(t, c, p.kv, j.from + i * S::G));
    if (ahead)
        store_round<S>(p.ring + (S::DEPTH + 1) * S::KEYS,
                       look_up_round<S>(t, lookup_of<S>(t, p, next), p.kv, next.from));
    __syncthreads();
    begin_walk<S>(t, p, j, ahead, b);
}

/* Whether a warp scores tile `own`. */
template <class S>
__device__ __forceinline__ bool scores(const place<S> &p, int own, const job &j)
{
    return (S::WARPS == S::SCORERS || p.wn < S::SCORERS) && own < j.to;
}

/* Walks the tiles of a job in rounds; the same sums as walk() of tile.cu. here: its cells were
 * fetched with the job before; ahead: keys of `then`, the next job, that are fetched with this
 * one. */
template <class S>
__device__ __forceinline__ void walk_rounds(const tile_args &t, const place<S> &p, const job &j,
                                            bool here, const job &then, int ahead,
                                            block_state &b, totals<S> &all)
{
    sums<S> x;
    const cell_lookup c = lookup_of<S>(t, p, j);
    constexpr int BEFORE = 2 * S::DEPTH - 1; /* commit groups after the one that is waited for */
    int *ring = p.ring, cell = 0;
    round_extent<S> e;
#pragma unroll
    for (int mi = 0; mi < S::MI; mi++)
        clear<S>(x, mi, 0), clear<S>(x, mi, 1);
    if (here)
        e = round_extent_of<S>(t, p, j);
    else
        start_walk<S>(t, p, j, then, ahead, c, e, b);

    /* slot: of this round's cells among DEPTH + 1; turn: of its buffers */
#pragma unroll 1
    for (int k = j.from, slot = 0, turn = 0; k < j.to; k += S::G) {
        const kv_buffers in = buffers_of<S>(p, here ? (int)S::DEPTH : turn);
        const int next = k + S::DEPTH * S::G, own = k + p.wn / 2;
        const int coming = max(j.to - next, 0) * S::TK; /* keys of the round that is fetched */
        const int keys = min((int)S::G, j.to - k) * S::TK; /* keys of this round */
        const int *more = ring + (slot ? slot - 1 : (int)S::DEPTH) * S::KEYS;
        cp_async_wait<BEFORE>();
        bool far = round_arrived<S>(p, keys, in.k_scales, false); /* queries have arrived, too */
        if (next + S::G < j.to)
            cell = look_up_round<S>(t, c, p.kv, next + S::G);
        float s[S::MI][S::KT][4];
        if (scores<S>(p, own, j)) {
            if constexpr (!S::CODES)
                score_round<S>(p, in.k, s);
            else if (far)
                score_codes<S, true>(p, in.k, s);
            else
                score_codes<S, false>(p, in.k, s);
            if (t.a.softcap > 0)
                softcap_scores<S>(t.a.scale, t.a.softcap, s);
            if (own * S::TK < j.w.max_lo || (own + 1) * S::TK > j.w.min_stop)
                mask<S>(e.lo, e.stop, k * S::TK + p.wn * S::KT * 8 + p.lane % 4 * 2, s);
            store_maxima<S>(p, s);
        }
        __syncthreads(); /* no thread reads these keys any more; all maxima are stored */
        if (coming > 0) /* skips the loop's instructions in the last round */
            fetch_round<S>(t, p.kv, t.a.k, more, 0, coming, in.k, in.k_scales);
        cp_async_commit();
        if (next + S::G < j.to)
            store_round<S>(ring + slot * S::KEYS, cell);
        if (scores<S>(p, own, j))
            softmax_round<S>(t, p, k, e, x, s);
        cp_async_wait<BEFORE>();
        far = round_arrived<S>(p, keys, in.v_scales, true); /* weights are stored, too */
#pragma unroll 1
        for (int g = 0; g < min(S::G, j.to - k); g++) {
            add_tile<S>(p, in.v, g, far, x);
            bool over = false;
#pragma unroll
            for (int mi = 0; mi < S::MI; mi++)
                over |= e.ends[mi][0] == k + g + 1 || e.ends[mi][1] == k + g + 1;
            if (!__any_sync(~0u, over))
                continue;
            if constexpr (S::WHOLE)
                end_segments<S>(t, p, k + g + 1, e.stop, e.ends, x, true, all);
            else
                send_segments<S>(t, p, k + g + 1, e.stop, e.ends, e.to, x);
        }
        __syncthreads(); /* no thread reads these values any more */
        if (coming > 0)
            fetch_round<S>(t, p.kv, t.a.v, more, 0, coming, in.v, in.v_scales);
        cp_async_commit();
        slot = slot == S::DEPTH ? 0 : slot + 1;
        turn = turn + 1 == S::DEPTH ? 0 : turn + 1;
    }
}

/* Whether the block's next job is certainly a tree part; if so, makes that job the current one. */
template <class S> __device__ __forceinline__ bool tree_is_next(const place<S> &p, schedule &c)
{
    if (c.u <= c.last || c.row < p.n || c.tree_row >= c.last_tree)
        return false;
    c.tree_row += c.stride;
    return tree_job<S>(p, c.tree_row - c.stride, c.now);
}

/* Walks all jobs of a block. If a tree part follows the first job and has room in shared memory
 * (ahead), its cells are fetched together with the first job's. */
template <class S>
__device__ __forceinline__ void walk_all(const tile_args &t, const place<S> &p, bool ahead,
                                         block_state &b, totals<S> &all)
{
    schedule c = {};
    c.last = -1;
    c.stride = S::WHOLE ? 1 : (int)gridDim.x;
    c.last_tree = p.n;
    for (bool here = false; here || next_job<S>(t, p, S::WHOLE, c);) {
        const job now = c.now;
        int keys = 0;
        if (S::TREE_AHEAD > 0 && ahead && b.first && tree_is_next<S>(p, c))
            keys = (c.now.to - c.now.from) * S::TK;
        walk_rounds<S>(t, p, now, here, c.now, keys, b, all);
        here = keys > 0;
    }
}

/* ---- the kernel ----------------------------------------------------------------------------- */

/* Brings the pages of the first request and the rows' expanded slots into L1 while the rows' key
 * ranges are computed. */
template <class S>
__device__ __forceinline__ void fetch_pages(const tile_args &t, const place<S> &p, uint32_t scratch)
{
    const int32_t *from = NULL;
    if (threadIdx.x / 32 == 1 && p.lane * 32 < t.a.n_cols)
        from = t.a.pages + p.lane * 32; /* one line a lane */
    if (threadIdx.x / 32 == 2 && p.lane < p.n && t.a.n_expand)
        from = t.a.expand + (p.r0 + p.lane) * t.a.expand_w;
    if (from)
        cp_async4(scratch + threadIdx.x * 4, from);
}

/* Blocks (index among the blocks that share splits and tree parts, kv head, tile of rows from the
 * last to the first). ahead: see walk_all(). */
template <class S>
__global__ void __launch_bounds__(S::NT, S::BLOCKS)
    round_kernel(const __grid_constant__ tile_args t, bool ahead)
{
    __builtin_assume(threadIdx.x < S::NT); /* divisions by constants become shifts */
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ visible_keys rows[S::ROWS];
    place<S> p = place_of<S>(t, rows, shared, (int *)(shared + S::CELL_AT));
    if (threadIdx.x == 0)
        STAMP_BLOCK(BEGINS, STAMP_ATTENTION);
    pdl_trigger();
    if (t.wait == WAIT_AT_START)
        pdl_wait();
    fetch_pages<S>(t, p, p.base + S::MAXIMA_AT);
    if ((int)threadIdx.x < p.n) {
        visible_keys x = visible_to<S::TK>(t, p.r0 + (int)threadIdx.x);
        if (!S::WHOLE)
            x.stop = prefix_end<S::TK>(x);
        else if (p.n == 1)
            x.stop = x.end; /* no other row walks with it */
        rows[threadIdx.x] = x;
    }
    __syncthreads();
    block_state b = {true, S::FP8 && t.a.fresh.k, 0};
    totals<S> all;
    if (S::WHOLE)
        start_totals<S>((float *)(shared + S::TOTAL_AT), all);
    walk_all<S>(t, p, ahead, b, all);
    if (threadIdx.x == 0)
        STAMP_BLOCK(LAST, 0);
    const bool stores = b.stores && blockIdx.x == 0; /* also cells that no row reads */
    if (b.first) { /* the block had no job */
        if (!S::WHOLE && !stores && first_slice<S>(t, p, 0) >= slices_of<S>(t, p))
            return; /* no slice to combine either: the block makes room */
        b.sinks = fetch_sinks(t, p);
        pdl_wait();
    }
    if (stores)
        store_fresh<S>(t, p.kv, b);
    if constexpr (S::WHOLE)
        finish<S>(t, p, b.sinks, all);
    else
        combine_slices<S>(t, p, b.sinks);
    if (threadIdx.x == 0)
        STAMP_BLOCK(ENDS, 0);
}

/* ---- host ----------------------------------------------------------------------------------- */

/* The most splits that a row can have; more blocks would only take room. */
static int most_splits(const tile_args &t)
{
    size_t keys = (size_t)t.a.n_cols * (size_t)t.a.page_size;
    if (t.a.window && (size_t)t.a.window < keys)
        keys = (size_t)t.a.window;
    const int shortest = (t.a.head_dim > 128 ? 32 : 64) << t.least_shift;
    const int most = 1 << (keys < (int)SHORT_KEYS + (int)TREE_KEYS ? t.cap_shift : t.long_shift);
    return min_int(most, (int)(keys / (size_t)shortest)) + (t.a.window ? 1 : 0);
}

/* Static shared memory of a block, and the part that the system reserves. */
static constexpr int STATIC_SHARED = 2048;

/* Blocks of this kernel that can be resident at once, whatever is left of the kernel before: that
 * kernel ends without waiting for this one. */
template <class S> static int resident_blocks(const struct kdev *d)
{
    return d->gpu.n_sm *
           min_int(S::BLOCKS, (int)(d->gpu.smem_max + STATIC_SHARED) / (S::BYTES + STATIC_SHARED));
}

template <int HD, int MI, int G, int BLOCKS, bool FP8>
static void run_cells(struct kdev *d, tile_args t)
{
    using S = round_config<HD, MI, G, BLOCKS, false, FP8>;
    using W = round_config<HD, MI, G, BLOCKS, true, FP8>;
    const size_t slices = (size_t)(t.a.rows * t.a.n_head * HD / SLICE);
    const size_t bytes = slices * (size_t)t.a.most_splits * SLICE_CHUNKS * sizeof *t.partials;
    const int most = bytes > ATTN_EXCHANGE_BYTES ? 0 : resident_blocks<S>(d) / (t.a.n_kv * t.tiles);
    t.partials = (uint4 *)d->attn_exchange;
    const int jobs = min_int(t.split_blocks, max_int(most_splits(t), 1)) + t.tile_rows;
    if (t.split_blocks)
        t.split_blocks = min_int(jobs, most);
    const bool ahead = S::TREE_AHEAD > 0 && jobs > most &&
                       (size_t)(S::TREE_AHEAD_BYTES + STATIC_SHARED) <= d->gpu.smem_max;
    dim3 grid((unsigned)max_int(1, t.split_blocks), (unsigned)t.a.n_kv, (unsigned)t.tiles);
    if (t.split_blocks) /* blocks wait for each other */
        cuda_launch_resident(d, round_kernel<S>, grid, S::NT,
                             ahead ? S::TREE_AHEAD_BYTES : S::BYTES, t, ahead);
    else
        cuda_launch(d, round_kernel<W>, grid, W::NT, W::BYTES, t, ahead);
}

/* Whether a block with bf16 cells and one with FP8 cells fit where blocks have the least shared
 * memory (99 KiB). */
template <int HD, int MI, int G, int BLOCKS>
static constexpr bool fits_everywhere =
    round_config<HD, MI, G, BLOCKS, true, false>::BYTES + STATIC_SHARED <= LEAST_SHARED &&
    round_config<HD, MI, G, BLOCKS, true, true>::BYTES + STATIC_SHARED <= LEAST_SHARED;
static_assert(fits_everywhere<128, 1, 2, 2> && fits_everywhere<128, 2, 2, 1> &&
              fits_everywhere<256, 1, 2, 2> && fits_everywhere<256, 2, 2, 1> &&
              fits_everywhere<512, 1, 1, 1>);

void cuda_attn_rounds(struct kdev *d, const tile_args &t, const struct round_form &f)
{
#define RUN(hd, mi_, g_, blocks_)                                                 \
    if (f.head_dim == hd && f.mi == mi_ && f.g == g_ && f.blocks == blocks_)      \
        return t.a.cell_bytes ? run_cells<hd, mi_, g_, blocks_, true>(d, t)       \
                              : run_cells<hd, mi_, g_, blocks_, false>(d, t);
    ATTN_ROUND_FORMS(RUN)
#undef RUN
    CHECK(!"a form of the list");
}
