/* cuda_attn_tile.cu - attention over paged bf16 cells on the tensor cores, for decode, tree verify
 * and prefill alike.
 *
 * A block packs rows of one request times the query heads of one kv head into tiles of 16 rows of
 * mma.m16n8k16, so that a cell is read once for all of them. It walks tiles of 64 keys (32 where
 * heads are wider than 128) with running maxima; cells come by cp.async through the page table.
 * Queries and weights of keys are rounded to bf16; scores, maxima and sums are float32.
 *
 * Order of every sum (law 5). Tiles of keys begin at multiples of their size by logical index. A
 * row's keys are cut into segments: the tail, which begins with the tile of the key 17 before its
 * end and so holds whatever a tree's row sees through the expand table, and before it splits that
 * begin at multiples of a power of two of tiles, chosen by how many tiles the row sees. Inside a
 * segment tiles follow each other; in a tile the instruction fixes the order, a row being
 * independent of its 15 neighbours, and a tile that a row does not see adds exact zeros. Segments
 * are joined in their order. So the bits of a row depend on its keys and their logical indices
 * alone. How many rows share a tile, which warps divide it, whether one block walks all segments
 * (prefill) or one block each (decode), and who joins them changes nothing.
 *
 * Cells that no row of the block sees are not read, so that what they hold is never multiplied.
 */
#include "kernels/cuda_attn_tile.cuh"

enum {
    ALONE = 6,             /* a block walks so many tiles faster than it can share them */
    AT_ONCE = 17,          /* segments that a join reads before it adds */
    JOIN_BLOCK = 64,
};

/* ---- the end of a segment ------------------------------------------------------------------- */

/* The sums of weights: of a quarter's four threads, then of the quarters in their order. */
template <class S>
__device__ __forceinline__ void add_quarters(const place<S> &p, const sums<S> &x,
                                             float (&l)[S::MI][2])
{
    float *room = (float *)(p.shared + S::L_AT);
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
                    room[(p.wn * S::LG + g) * S::ROWS + packed_row<S>(p, mi, h)] = y;
            }
            l[mi][h] = sum;
        }
    if constexpr (S::WN > 1) {
        meet<S>(p.wm);
#pragma unroll
        for (int mi = 0; mi < S::MI; mi++)
#pragma unroll
            for (int h = 0; h < 2; h++)
#pragma unroll
                for (int g = 0; g < 4; g++)
                    l[mi][h] += room[g * S::ROWS + packed_row<S>(p, mi, h)];
    }
}

/* Joins the segment of a row to its totals (whole), or writes it out, as number `at` of the row. */
template <class S>
__device__ __forceinline__ void close_segment(const tile_args &t, const place<S> &p, int mi, int h,
                                              int at, float l, const sums<S> &x, bool whole,
                                              totals<S> &all)
{
    float m = x.m[mi][h] == -INFINITY ? -INFINITY : x.m[mi][h] * t.factor;
    if (whole) {
        joint j = joint_of(all.m[mi][h], m);
        all.m[mi][h] = j.m;
        all.l[mi][h] = joined(j, all.l[mi][h], l);
#pragma unroll
        for (int n = 0; n < S::DT; n++)
#pragma unroll
            for (int i = 2 * h; i < 2 * h + 2; i++) {
                float &y = all.at((mi * S::DT + n) * 4 + i);
                y = joined(j, y, x.acc[mi][n][i]);
            }
        return;
    }
    size_t head = (size_t)(p.r0 + p.row[mi][h]) * (size_t)t.a.n_head + (size_t)p.head[mi][h];
    size_t part = head * (size_t)t.a.most_splits + (size_t)at;
    float *out = t.a.part + part * S::HD + p.wn * S::DT * 8 + p.lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < S::DT; n++)
        *(float2 *)(out + n * 8) = make_float2(x.acc[mi][n][2 * h], x.acc[mi][n][2 * h + 1]);
    if (p.wn == 0 && p.lane % 4 == 0)
        t.ml[part] = make_float2(m, l);
}

/* Ends what ends before `tile`. ends: the tile before which a row's segment ends, INT_MAX: none. */
template <class S>
__device__ __forceinline__ void end_segments(const tile_args &t, const place<S> &p, int tile,
                                             const int (&stop)[S::MI][2], int (&ends)[S::MI][2],
                                             sums<S> &x, bool whole, totals<S> &all)
{
    float l[S::MI][2];
    add_quarters<S>(p, x, l);
#pragma unroll
    for (int mi = 0; mi < S::MI; mi++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            if (ends[mi][h] == tile) {
                const seen &r = p.rows[p.row[mi][h]];
                int at = tile > r.tail ? splits_of<S::TK>(r)
                                       : ((tile - 1) >> r.shift) - ((r.lo / S::TK) >> r.shift);
                close_segment<S>(t, p, mi, h, at, l[mi][h], x, whole, all);
                clear<S>(x, mi, h);
                ends[mi][h] =
                    tile * S::TK < stop[mi][h] ? segment_end<S::TK>(r, tile) : INT_MAX;
            }
}

/* ---- walking -------------------------------------------------------------------------------- */

/* Walks tiles [from, to) for rows [w.a, w.b): their common part, or the tail of one row. Segments
 * that end by then join `all` (whole), or are written out. */
template <class S>
__device__ __forceinline__ void walk(const tile_args &t, const place<S> &p, const pass &w,
                                     bool tail, int from, int to, bool whole, totals<S> &all)
{
    sums<S> x;
    int lo[S::MI][2], stop[S::MI][2], ends[S::MI][2], cell[S::FOUND];
    uint32_t q[S::MI][S::HD / 16][4];
    const seen &first = p.rows[w.a];
    cells c = {t.a.pages + (size_t)w.req * (size_t)t.a.n_cols,
               t.a.expand + (size_t)(p.r0 + w.a) * (size_t)t.a.expand_w, w.lo,
               min(w.stop, to * S::TK), w.b - w.a == 1 ? first.hi : INT_MAX};
    {
        int more[S::FOUND];
        find<S>(t, c, p.kv, from, cell);
        find<S>(t, c, p.kv, from + 4, more);
        keep<S>(p.ring, 0, cell);
        keep<S>(p.ring, 4, more);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < S::STAGES - 1; i++) {
        if (from + i < to)
            fetch<S>(t, p.ring, i, p.base + (uint32_t)(i * S::PAIR_BYTES));
        fetch_commit();
    }
    load_queries<S>(t, p, q);
#pragma unroll
    for (int mi = 0; mi < S::MI; mi++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int r = p.row[mi][h];
            clear<S>(x, mi, h);
            lo[mi][h] = ends[mi][h] = INT_MAX, stop[mi][h] = 0;
            if (r < w.a || r >= w.b)
                continue;
            const seen &y = p.rows[r];
            lo[mi][h] = tail ? max(y.lo, y.tail * S::TK) : y.lo;
            stop[mi][h] = tail ? y.end : y.stop;
            if (lo[mi][h] < stop[mi][h] && from * S::TK < stop[mi][h])
                ends[mi][h] = segment_end<S::TK>(y, max(from, lo[mi][h] / S::TK));
        }
    for (int k = from, stage = 0; k < to; k++) {
        fetch_wait<S::STAGES - 2>();
        __syncthreads(); /* tile k is there, and nobody reads the stage before it */
        int next = stage == 0 ? S::STAGES - 1 : stage - 1;
        const int i = k - from;
        const bool look = i % 4 == 0 && i && k + 4 < to; /* up, for four tiles, four ahead */
        if (look)
            find<S>(t, c, p.kv, k + 4, cell);
        if (k + S::STAGES - 1 < to)
            fetch<S>(t, p.ring, i + S::STAGES - 1, p.base + (uint32_t)(next * S::PAIR_BYTES));
        fetch_commit();
        bool over = false;
#pragma unroll
        for (int mi = 0; mi < S::MI; mi++)
            over |= ends[mi][0] == k || ends[mi][1] == k;
        if (__any_sync(~0u, over))
            end_segments<S>(t, p, k, stop, ends, x, whole, all);

        uint32_t at = p.base + (uint32_t)(stage * S::PAIR_BYTES);
        float s[S::MI][S::KT][4];
        score<S>(q, at, p.wn, p.lane, s);
        if (t.a.softcap > 0)
            cap_scores<S>(t.a.scale, t.a.softcap, s);
        if (k * S::TK < w.last_lo || (k + 1) * S::TK > w.first_stop)
            mask<S>(lo, stop, k * S::TK + p.wn * S::KT * 8 + p.lane % 4 * 2, s);
        weigh<S>(t, p, x, s);
        if constexpr (S::WN > 1)
            share_weights<S>(p, s);
        add_values<S>(p, at + S::TILE_BYTES, s, x);
        if (look)
            keep<S>(p.ring, i + 4, cell);
        stage = stage + 1 == S::STAGES ? 0 : stage + 1;
    }
    end_segments<S>(t, p, to, stop, ends, x, whole, all);
    fetch_wait<0>();
    __syncthreads();
}

/* What a block has to walk. */
struct job {
    pass w;
    bool tail;
    int from, to;
};
struct course {
    job now;
    int row, tails, last_tail; /* next row of a pass, next row with a tail of its own, last + 1 */
    int u, last;               /* splits that are left of the pass, every stride-th */
    int from, to, shift, stride;
    int splits;                /* of the passes before */
};

/* Starts a pass: all of it for a block that does everything, else this block's splits: of all of
 * the tile's splits in a row, number blockIdx.x and every units-th after it. */
template <class S>
__device__ __forceinline__ void begin_pass(const tile_args &t, const place<S> &p, bool whole,
                                           course &c)
{
    pass w = c.now.w = pass_from(p.rows, c.row, p.n);
    c.row = w.b;
    c.u = 0, c.last = -1;
    if (w.lo >= w.stop)
        return;
    c.from = w.lo / S::TK, c.to = (w.stop - 1) / S::TK + 1;
    c.shift = whole ? 30 : w.shift;
    int x = whole ? 0 : (int)blockIdx.x, before = c.splits;
    int first = c.from >> c.shift, end = (c.to - 1) >> c.shift;
    c.splits += end - first + 1;
    if (x >= c.stride)
        return;
    int skip = (x - before) % c.stride;
    c.u = first + (skip < 0 ? skip + c.stride : skip), c.last = end;
}

template <class S>
__device__ __forceinline__ bool next_job(const tile_args &t, const place<S> &p, bool whole,
                                         course &c)
{
    for (;;) {
        if (c.u <= c.last) {
            c.now.tail = false;
            c.now.from = max(c.from, c.u << c.shift);
            c.now.to = whole ? c.to : min(c.to, (c.u + 1) << c.shift);
            c.u += c.stride;
            return true;
        }
        if (c.row < p.n) {
            begin_pass<S>(t, p, whole, c);
            continue;
        }
        if (c.tails >= c.last_tail)
            return false;
        int r = c.tails++;
        const seen y = p.rows[r];
        if (y.stop >= y.end)
            continue;
        int lo = max(y.lo, y.tail * S::TK);
        c.now = {{r, r + 1, lo, y.end, lo, y.end, 0, y.req, true}, true, lo / S::TK,
                 (y.end - 1) / S::TK + 1};
        return true;
    }
}

template <class S>
__device__ __forceinline__ void start_totals(const place<S> &p, totals<S> &all)
{
    all.rest = (float *)(p.shared + S::TOTAL_AT);
#pragma unroll
    for (int mi = 0; mi < S::MI; mi++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            all.m[mi][h] = -INFINITY, all.l[mi][h] = 0;
#pragma unroll
    for (int i = 0; i < S::MI * S::DT * 4; i++)
        all.at(i) = 0;
}

/* Writes the rows of a block that walked everything they see. */
template <class S>
__device__ __forceinline__ void finish(const tile_args &t, const place<S> &p, totals<S> &all)
{
#pragma unroll
    for (int mi = 0; mi < S::MI; mi++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int r = p.row[mi][h];
            if (r < 0)
                continue;
            size_t row = (size_t)(p.r0 + r), at = row * (size_t)t.a.n_head + (size_t)p.head[mi][h];
            float by = 0;
            bool writes = p.wn == 0 && p.lane % 4 == 0;
            if (any_key(p.rows[r]))
                by = closing(t, row, p.head[mi][h], all.m[mi][h], all.l[mi][h], writes);
            else if (t.a.lse && writes)
                t.a.lse[at] = -INFINITY;
            float *out = t.a.dst + at * S::HD + p.wn * S::DT * 8 + p.lane % 4 * 2;
#pragma unroll
            for (int n = 0; n < S::DT; n++) {
                int i = (mi * S::DT + n) * 4 + 2 * h;
                *(float2 *)(out + n * 8) = make_float2(all.at(i) * by, all.at(i + 1) * by);
            }
        }
}

/* ---- joining -------------------------------------------------------------------------------- */

/* Four dimensions of a row and head from its segments. */
template <int HD>
__device__ __forceinline__ void join_row(const tile_args &t, int r, int head, int d)
{
    constexpr int TK = HD > 128 ? 32 : 64;
    const seen x = seen_by<TK>(t, r);
    size_t at = (size_t)r * (size_t)t.a.n_head + (size_t)head;
    float4 *out = (float4 *)(t.a.dst + at * HD + (size_t)d);
    if (!any_key(x)) {
        *out = make_float4(0, 0, 0, 0);
        if (t.a.lse && d == 0)
            t.a.lse[at] = -INFINITY;
        return;
    }
    size_t first = at * (size_t)t.a.most_splits;
    const float2 *ml = t.ml + first;
    const float4 *part = (const float4 *)(t.a.part + first * HD + (size_t)d);
    int n = splits_of<TK>(x) + 1;
    float m = -INFINITY, l = 0;
    float4 v = {0, 0, 0, 0};
    for (int from = 0; from < n; from += AT_ONCE) {
        float2 y[AT_ONCE];
        float4 s[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if (from + i < n) {
                y[i] = __ldcg(ml + from + i);
                s[i] = __ldcg(part + (size_t)(from + i) * (HD / 4));
            }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if (from + i < n) {
                joint j = joint_of(m, y[i].x);
                m = j.m;
                l = joined(j, l, y[i].y);
                v.x = joined(j, v.x, s[i].x), v.y = joined(j, v.y, s[i].y);
                v.z = joined(j, v.z, s[i].z), v.w = joined(j, v.w, s[i].w);
            }
    }
    float by = closing(t, (size_t)r, head, m, l, d == 0);
    *out = make_float4(v.x * by, v.y * by, v.z * by, v.w * by);
}

template <int HD>
__global__ void __launch_bounds__(JOIN_BLOCK) join_rows(const __grid_constant__ tile_args t)
{
    let_next();
    after();
    int at = (int)blockIdx.x * JOIN_BLOCK + (int)threadIdx.x, d = at % (HD / 4) * 4;
    int head = at / (HD / 4) % t.a.n_head, r = at / (HD / 4) / t.a.n_head;
    if (r < t.a.rows && !t.done[r / t.each * t.a.n_kv + head / t.a.group])
        join_row<HD>(t, r, head, d);
}

/* ---- the kernel ----------------------------------------------------------------------------- */

/* Blocks (units of splits, then rows' tails; kv head; tile of rows, the last first). */
template <class S>
__global__ void __launch_bounds__(S::NT, S::BLOCKS)
    tile_kernel(const __grid_constant__ tile_args t)
{
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ seen rows[S::ROWS];
    __shared__ __align__(16) int ring[RING * S::TK];
    let_next();
    const int tid = (int)threadIdx.x, tile = t.tiles - 1 - (int)blockIdx.z, x = (int)blockIdx.x;
    place<S> p;
    p.kv = (int)blockIdx.y, p.r0 = tile * t.each, p.n = min(t.each, t.a.rows - p.r0);
    p.rows = rows, p.shared = shared, p.ring = ring;
    p.base = (uint32_t)__cvta_generic_to_shared(shared);
    p.lane = tid % 32, p.wn = tid / 32 % S::WN, p.wm = tid / 32 / S::WN;
#pragma unroll
    for (int mi = 0; mi < S::MI; mi++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int at = packed_row<S>(p, mi, h), r = at / t.a.group;
            p.row[mi][h] = r < p.n ? r : -1;
            p.head[mi][h] = p.kv * t.a.group + at % t.a.group;
        }
    after();
    for (int r = tid; r < p.n; r += S::NT)
        rows[r] = seen_by<S::TK>(t, p.r0 + r);
    __syncthreads();
    bool whole = t.units == 0;
    if (!whole) { /* what one block does as fast as many, it does alone */
        pass w = pass_of(rows, 0, p.n);
        bool paged = true;
        for (int r = p.lane; r < p.n; r += 32)
            paged &= rows[r].stop == rows[r].end;
        int tiles = w.lo < w.stop ? (w.stop - 1) / S::TK - w.lo / S::TK + 1 : 0;
        whole = w.good && __all_sync(~0u, paged) && tiles <= ALONE;
        if (x == 0 && tid == 0)
            t.done[tile * t.a.n_kv + p.kv] = whole;
        if (whole && x > 0)
            return;
    }
    course c = {};
    c.last = -1;
    c.stride = whole ? 1 : t.units;
    c.last_tail = whole ? p.n : 0;
    if (!whole) {
        __syncthreads();
        for (int r = tid; r < p.n; r += S::NT)
            rows[r].stop = parted_stop<S::TK>(rows[r]);
        __syncthreads();
        if (x >= t.units)
            c.tails = x - t.units, c.last_tail = min(c.tails + 1, p.n);
    }
    totals<S> all;
    start_totals<S>(p, all);
    while (next_job<S>(t, p, whole, c))
        walk<S>(t, p, c.now.w, c.now.tail, c.now.from, c.now.to, whole, all);
    if (whole)
        finish<S>(t, p, all);
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

template <class S> static bool run(struct kdev *d, tile_args t)
{
    attn_args &a = t.a;
    t.each = S::ROWS / a.group;
    t.tiles = div_up(a.rows, t.each);
    int blocks = t.tiles * a.n_kv, cap = (1 << max_int(t.cap_shift, t.long_shift)) + 1;
    size_t keys = (size_t)a.n_cols * (size_t)a.page_size + (size_t)(a.n_expand ? a.expand_w : 0);
    size_t most = keys / S::TK + 1;
    t.units = most < (size_t)cap ? (int)most : cap;
    t.units = max_int(t.units, 1);
    a.most_splits = max_int(t.units, FEW) + 1;
    size_t heads = (size_t)a.rows * (size_t)a.n_head * (size_t)a.most_splits;
    size_t scratch = heads * (size_t)(S::HD + 2) * sizeof(float) + (size_t)blocks * 4 + 4096;
    bool many = a.rows > 64 ? 2 * blocks >= d->n_sm : blocks >= 2 * d->n_sm;
    if (many || scratch > ARENA_BYTES) {
        t.units = 0;
    } else {
        a.part = (float *)cuda_take(d, heads * S::HD * sizeof(float));
        t.ml = (float2 *)cuda_take(d, heads * sizeof(float2));
        t.done = (int32_t *)cuda_take(d, (size_t)blocks * sizeof(int32_t));
    }
    dim3 grid((unsigned)(t.units ? t.units + min_int(t.each, a.rows) : 1), (unsigned)a.n_kv,
              (unsigned)t.tiles);
    cuda_launch(d, tile_kernel<S>, grid, S::NT, S::BYTES, t);
    size_t items = (size_t)a.rows * (size_t)a.n_head * (S::HD / 4);
    if (t.units)
        cuda_launch(d, join_rows<S::HD>, dim3((unsigned)((items + JOIN_BLOCK - 1) / JOIN_BLOCK)),
                    JOIN_BLOCK, 0, t);
    return true;
}

bool cuda_attn_tiles(struct kdev *d, const struct attn_args *a)
{
    if ((size_t)a->n_slots * (size_t)a->n_kv > INT_MAX || a->group > 16 ||
        !(a->scale > 0) || a->page_size & (a->page_size - 1) || a->rows == 0)
        return false;
    tile_args t = {};
    t.a = *a;
    t.factor = a->softcap > 0 ? 1.44269504088896341f : a->scale * 1.44269504088896341f;
    while (1 << t.page_shift < a->page_size)
        t.page_shift++;
    t.long_shift = cap_shift_of(a->n_kv);
    t.cap_shift = t.long_shift - 1; /* measured: fewer to join is worth more */
    int packed = div_up(a->rows, max_int(a->n_req, 1)) * a->group; /* rows that share keys */
    if (a->head_dim == 64)
        return packed <= 16   ? run<form<64, 1, 1, 4, 4, 3>>(d, t)
               : packed <= 64 ? run<form<64, 1, 4, 1, 4, 2>>(d, t)
                              : run<form<64, 2, 4, 1, 3, 2>>(d, t);
    if (a->head_dim == 128)
        return packed <= 16   ? run<form<128, 1, 1, 4, 3, 2>>(d, t)
               : packed <= 64 ? run<form<128, 1, 4, 1, 2, 2>>(d, t)
                              : run<form<128, 1, 8, 1, 2, 1>>(d, t);
    if (a->head_dim == 256)
        return packed <= 16 ? run<form<256, 1, 1, 4, 3, 2>>(d, t)
                            : run<form<256, 1, 4, 2, 3, 1>>(d, t);
    return false;
}
