/* tile.cu - attention over paged bf16 cells on the tensor cores: trees of many nodes and
 * prompts; it also chooses who does decode and small trees (decode.cu).
 *
 * A block packs rows of one request times the query heads of one kv head into tiles of 16 rows of
 * mma.m16n8k16, or on Hopper of 64 rows of wgmma, so that a cell is read once for all of them. It
 * walks tiles of 64 keys (32 where heads are wider than 128) with running maxima; cells come by
 * cp.async through the page table. Queries and weights of keys are rounded to bf16; scores, maxima
 * and sums are float32.
 *
 * Of a prompt a block walks all that its rows see. Of a tree, two kernels: blocks share the splits
 * of the rows, and two warps walk the tail of each row and kv head, and then join its segments
 * (tree_part.cuh). Rows of a short window are walked by a block each.
 *
 * Order of every sum (law 5). Tiles of keys begin at multiples of their size by logical index. A
 * row's keys are cut into segments: the tail, which begins with the tile of the key 17 before its
 * end and so holds whatever a tree's row sees through the expand table, and before it splits that
 * begin at multiples of a power of two of tiles, chosen by how many tiles the row sees. Inside a
 * segment tiles follow each other; in a tile the instruction fixes the order, a row being
 * independent of its 15 neighbours, and a tile that a row does not see adds exact zeros. Segments
 * are joined in their order. So the bits of a row depend on its keys and their logical indices
 * alone. How many rows share a tile, which warps divide it, whether one block walks all segments
 * (prefill) or one block each (decode), and who joins them changes nothing; nor whether wgmma or
 * mma.sync adds, which agree to the bit (dense/tile.cuh).
 *
 * Cells that no row of the block sees are not read, so that what they hold is never multiplied.
 */
#include "kernels/cuda/attention/tree_part.cuh"

enum {
    FEW_PACKED = 64, /* rows of a request times heads that share keys: cuda_attn_rounds() */
    ALONE = 256,     /* keys of a window: a block walks so many faster than it can share them */
    NEAR = 2048,     /* keys of a window: tiles of 64 rows of 256, so that all have work */
};

/* ---- walking -------------------------------------------------------------------------------- */

/* What a block does once, behind the first cells that it asks for: it waits, if it has not yet, and
 * has the queries, in shared memory or here. */
template <class S> struct opening {
    bool waits, over;
    uint32_t q[S::WIDE ? 1 : S::MI][S::HD / 16][4];
};
template <class S>
__device__ __forceinline__ void open_block(const tile_args &t, const place<S> &p, opening<S> &o)
{
    if (o.over)
        return;
    if (o.waits)
        pdl_wait_trigger();
    if constexpr (S::WIDE)
        share_queries<S>(t, p);
    else if (t.a.q_bits)
        load_queries<S>(t, p, t.a.q_bits, o.q);
    else
        load_queries<S>(t, p, t.a.q, o.q);
    o.over = true;
}

/* Walks the tiles of a job. Segments that end by then join `all` (whole), or are written out. */
template <class S>
__device__ __forceinline__ void walk(const tile_args &t, const place<S> &p, const job &j,
                                     bool whole, opening<S> &first, totals<S> &all)
{
    sums<S> x;
    int cell[S::FOUND];
    const int from = j.from, to = j.to;
    const cells c = cells_of<S>(t, p, j);
    find<S>(t, c, p.kv, from, cell);
    keep<S>(p.ring, 0, cell);
    if (to - from > 4) {
        find<S>(t, c, p.kv, from + 4, cell);
        keep<S>(p.ring, 4, cell);
    }
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < S::STAGES; i++) {
        if (from + i < to)
            fetch<S>(t, p.ring, i, p.base + (uint32_t)(i * S::PAIR_BYTES));
        if (i == 0 || i < S::STAGES - 1) /* the last one's group is ended in the loop */
            fetch_commit();
    }
    open_block<S>(t, p, first);
    extent<S> e = extent_of<S>(p, j);
#pragma unroll
    for (int mi = 0; mi < S::MI; mi++)
        clear<S>(x, mi, 0), clear<S>(x, mi, 1);
    if constexpr (S::WIDE)
        wait_queries(t);
    for (int k = from, stage = 0; k < to; k++) {
        fetch_wait<S::STAGES - 2>();
        if constexpr (S::WIDE)
            publish();
        __syncthreads(); /* tile k is there, and nobody reads the stage before it */
        int next = stage == 0 ? S::STAGES - 1 : stage - 1;
        const int i = k - from;
        const bool look = i % 4 == 0 && i && k + 4 < to; /* up, for four tiles, four ahead */
        if (look)
            find<S>(t, c, p.kv, k + 4, cell);
        if (i && k + S::STAGES - 1 < to)
            fetch<S>(t, p.ring, i + S::STAGES - 1, p.base + (uint32_t)(next * S::PAIR_BYTES));
        fetch_commit();
        bool over = false;
#pragma unroll
        for (int mi = 0; mi < S::MI; mi++)
            over |= e.ends[mi][0] == k || e.ends[mi][1] == k;
        if (__any_sync(~0u, over))
            end_segments<S>(t, p, k, e.stop, e.ends, x, whole, all);

        uint32_t at = p.base + (uint32_t)(stage * S::PAIR_BYTES);
        float s[S::MI][S::KT][4];
        if constexpr (S::WIDE)
            score_wide<S>(p, at, s);
        else
            score<S>(first.q, at, p.wn, p.lane, s);
        if (t.a.softcap > 0)
            cap_scores<S>(t.a.scale, t.a.softcap, s);
        if (k * S::TK < j.w.last_lo || (k + 1) * S::TK > j.w.first_stop)
            mask<S>(e.lo, e.stop, k * S::TK + p.wn * S::KT * 8 + p.lane % 4 * 2, s);
        weigh<S>(t, p, x, s);
        if constexpr (S::WN > 1)
            share_weights<S>(p, s);
        if constexpr (S::WIDE)
            add_values_wide<S>(at + S::TILE_BYTES, s, x);
        else
            add_values<S>(p, at + S::TILE_BYTES, s, x);
        if (look)
            keep<S>(p.ring, i + 4, cell);
        stage = stage + 1 == S::STAGES ? 0 : stage + 1;
    }
    end_segments<S>(t, p, to, e.stop, e.ends, x, whole, all);
    fetch_wait<0>();
    __syncthreads();
}

/* ---- the kernel ----------------------------------------------------------------------------- */

/* Blocks (units of splits, kv head, tile of rows, the last first), or whole ones, which walk all
 * that their rows see. Splits of rows with expanded keys have no cell of the pass at hand: their
 * first cells are asked for before the wait. */
template <class S, bool whole>
__global__ void __launch_bounds__(S::NT, S::BLOCKS)
    tile_kernel(const __grid_constant__ tile_args t)
{
    if (S::WIDE && !HAVE_WGMMA)
        return;
    extern __shared__ __align__(1024) unsigned char shared[];
    __shared__ seen rows[S::ROWS];
    __shared__ __align__(16) int ring[RING * S::TK];
    place<S> p = place_of<S>(t, rows, shared, ring);
    if (S::WIDE && threadIdx.x / 32 == S::NT / 32 - 1) /* the first ones have rows to look at */
        warm_table(t, p.r0);
    opening<S> first;
    first.waits = t.wait == WAIT_FOR_NEW && !whole && t.a.n_expand, first.over = false;
    if (!first.waits)
        pdl_wait_trigger(); /* a kernel behind this one finds all that came before it */
    bool old = true;
    for (int r = (int)threadIdx.x; r < p.n; r += S::NT) {
        seen x = seen_by<S::TK>(t, p.r0 + r);
        old &= x.hi < x.end;
        if (!whole)
            x.stop = parted_stop<S::TK>(x);
        else if (p.n == 1)
            x.stop = x.end; /* nobody walks with it */
        rows[r] = x;
    }
    if (!__syncthreads_and(old) && first.waits) { /* cells of the pass may be among the splits' */
        pdl_wait_trigger();
        first.waits = false;
    }
    course c = {};
    c.last = -1;
    c.stride = whole ? 1 : t.units;
    c.last_tail = whole ? p.n : 0;
    const uint32_t sinks = whole ? fetch_sinks(t, p) : 0;
    totals<S> all;
    if (whole)
        start_totals<S>(p, all);
    while (next_job<S>(t, p, whole, c))
        walk<S>(t, p, c.now, whole, first, all);
    if (first.waits && !first.over)
        pdl_wait_trigger();
    if (whole)
        finish<S>(t, p, sinks, all);
}

/* ---- host ----------------------------------------------------------------------------------- */

/* Splits are few enough to join, and enough that with all kv heads they fill the machine. */
static int cap_shift_of(int n_kv)
{
    int shift = 4;
    while (shift < 6 && n_kv << (shift + 1) <= 256)
        shift++;
    return shift;
}

/* Blocks for the splits: no more than the machine holds, nor than a window has splits if it begins
 * with one. If it does not, its first and its last split are parts of one, and a block's. */
template <class S> static void share_splits(struct kdev *d, tile_args &t)
{
    const int splits = t.units, most = S::BLOCKS * d->n_sm / (t.tiles * t.a.n_kv);
    t.units = max_int(1, min_int(splits, most));
    if (t.a.window)
        t.units = min_int(t.units, div_up(t.a.window, S::TK << t.least_shift));
    t.longer = splits > t.units + 2;
}

template <class S> static void run(struct kdev *d, tile_args t)
{
    typedef tail_form<S::HD> E;
    if (t.units)
        share_splits<S>(d, t);
    dim3 grid((unsigned)max_int(t.units, 1), (unsigned)t.a.n_kv, (unsigned)t.tiles);
    dim3 ends(1, (unsigned)t.a.n_kv, (unsigned)t.a.rows);
    if (t.units) {
        cuda_launch(d, tile_kernel<S, false>, grid, S::NT, S::PARTED_BYTES, t);
        cuda_launch(d, tail_kernel<E>, ends, E::NT, tail_bytes<E>(t), t);
    } else {
        cuda_launch(d, tile_kernel<S, true>, grid, S::NT, S::BYTES, t);
    }
}

/* Into how many splits rows may fall, and room for their segments; or none where rows alone give
 * every multiprocessor work, or there is no room. */
static void plan_splits(struct kdev *d, tile_args &t)
{
    attn_args &a = t.a;
    int tk = a.head_dim > 128 ? 32 : 64, blocks = t.tiles * a.n_kv;
    int cap = (1 << max_int(t.cap_shift, t.long_shift)) + 1;
    size_t keys = (size_t)a.n_cols * (size_t)a.page_size + (size_t)(a.n_expand ? a.expand_w : 0);
    size_t most = keys / (size_t)tk + 1;
    if (a.window)
        cap = min_int(cap, a.window / (tk << t.least_shift) + 2);
    t.units = max_int(1, most < (size_t)cap ? (int)most : cap);
    a.most_splits = max_int(t.units, FEW) + 1;
    size_t heads = (size_t)a.rows * (size_t)a.n_head * (size_t)a.most_splits;
    size_t scratch = heads * (size_t)(a.head_dim + 2) * sizeof(float) + 4096;
    bool small = a.window && a.window <= ALONE && (!a.n_expand || t.each == 1);
    bool many = a.rows > 64 ? 2 * blocks >= d->n_sm : blocks >= 2 * d->n_sm;
    if (many || scratch > ARENA_BYTES || small) {
        t.units = 0;
        return;
    }
    a.part = (float *)cuda_take(d, heads * (size_t)a.head_dim * sizeof(float));
    t.ml = (float2 *)cuda_take(d, heads * sizeof(float2));
}

static bool has_tiles(const struct attn_args *a)
{
    bool wide = a->head_dim == 64 || a->head_dim == 128 || a->head_dim == 256;
    return wide && (size_t)a->n_slots * (size_t)a->n_kv <= INT_MAX && a->group <= MOST_GROUP &&
           a->scale > 0 && !(a->page_size & (a->page_size - 1)) && a->rows > 0;
}

/* Rows of a tile: as many as fill `packed`. */
static void lay_out(struct kdev *d, tile_args &t, int packed)
{
    int together = div_up(t.a.rows, max_int(t.a.n_req, 1));
    t.each = max_int(1, min_int(together, packed / t.a.group));
    t.tiles = div_up(t.a.rows, t.each);
    plan_splits(d, t);
}

/* packed: rows of a tile */
static void run_tiles(struct kdev *d, const tile_args &t, int packed)
{
    if (t.a.head_dim == 256)
        packed == 128              ? run<form<256, 1, 8, 1, 3, 1, true>>(d, t)
        : t.units && d->has_wgmma      ? run<form<256, 1, 4, 1, 2, 2, true>>(d, t)
                                   : run<form<256, 1, 4, 2, 3, 1>>(d, t);
    else if (t.a.head_dim == 128)
        packed == 64 ? run<form<128, 1, 4, 1, 2, 2>>(d, t) : run<form<128, 1, 8, 1, 2, 1>>(d, t);
    else if (packed == 64)
        run<form<64, 1, 4, 1, 4, 2>>(d, t);
    else if (d->has_wgmma)
        run<form<64, 1, 8, 1, 3, 2, true>>(d, t);
    else
        run<form<64, 2, 4, 1, 3, 2>>(d, t);
}

/* A block a row. */
static void run_alone(struct kdev *d, const tile_args &t)
{
    if (t.a.head_dim == 256)
        run<form<256, 1, 1, 2, 2, 2>>(d, t);
    else if (t.a.head_dim == 128)
        run<form<128, 1, 1, 2, 2, 3>>(d, t);
    else
        run<form<64, 1, 1, 2, 3, 4>>(d, t);
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
    t.cap_shift = t.long_shift - 1; /* measured: fewer to join is worth more */
    int together = div_up(a->rows, max_int(a->n_req, 1)), packed = together * a->group;
    bool few = packed <= 16 || (packed <= FEW_PACKED && !long_context(t.a));
    bool near = a->window && a->window <= NEAR;
    bool alone = a->rows <= 64 && a->window && a->window <= ALONE;
    bool rounds = alone ? a->rows * a->n_kv <= 2 * d->n_sm : few; /* at most two blocks each */
    bool wide = packed > 64 && (a->head_dim < 256 || (d->has_wgmma && a->rows <= 64 && !near));
    bool more = packed > 16 && a->head_dim > 64; /* rounds of 32 rows of 64 lack registers */
    int most = alone ? a->group : few ? (more ? 32 : 16) : wide ? 128 : 64;
    lay_out(d, t, most);
    if (!t.units && a->head_dim == 256 && most > 64) /* no room for the sums of so many rows */
        lay_out(d, t, most = 64);
    t.wait = d->prev_triggers_late && (!rounds || a->rows <= OWN) ? WAIT_FOR_NEW : WAIT_FIRST;
    if (rounds)
        cuda_attn_rounds(d, t);
    else if (alone)
        run_alone(d, t);
    else
        run_tiles(d, t, most);
    return true;
}
