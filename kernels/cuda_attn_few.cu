/* cuda_attn_few.cu - attention of few rows over paged bf16 cells: decode and small trees.
 *
 * What counts here is not work but time: until the first cell is there, and from the last one to
 * the row's sum. A block walks rounds of up to four tiles. Its warps share a round: each has scores
 * for half a tile of keys, then values for its part of the dimensions, so that the tiles of a
 * round, whose sums follow each other (cuda_attn_tile.cu says in which order), are weighed at the
 * same time. A round has four barriers, and the next one's keys are on their way while the values
 * of this one are added.
 *
 * A kernel like this runs most of its instructions once, and fetching them costs as much as
 * running them: loops stay rolled wherever a round is not the longer for it, and rare things are
 * calls.
 *
 * The blocks share splits and tails, and a second kernel joins the segments.
 */
#include "kernels/cuda_attn_join.cuh"

enum { JOIN_BLOCK = 64 };

template <int HD_, int G_, int BLOCKS_> struct round_form {
    enum : int {
        HD = HD_, MI = 1, G = G_, BLOCKS = BLOCKS_,
        WARPS = 2 * G,              /* half a tile's scores each */
        WN = 1,                     /* every warp has the sums over all keys */
        HELD = 1, LG = 2,
        NT = 32 * WARPS,
        ROWS = 16,
        TK = HD > 128 ? 32 : 64,
        KEYS = G * TK,              /* of a round */
        CHUNKS = HD / 8,            /* 16 bytes each, of a cell */
        EACH = KEYS * CHUNKS / NT,  /* chunks of K that a thread fetches, and of V */
        STEP = NT / CHUNKS,         /* keys from one of them to the next */
        KT = KEYS / 8 / WARPS,      /* tiles of 8 keys of a warp */
        DT = HD / 8 / WARPS,        /* tiles of 8 dimensions of a warp */
        V_AT = KEYS * HD * 2,
        Q_AT = 2 * V_AT,
        P_AT = Q_AT + ROWS * HD * 2,
        TOP_AT = P_AT + ROWS * KEYS * 2,
        L_AT = TOP_AT + WARPS * ROWS * 4,
        RUN_AT = L_AT + WARPS * ROWS * 16,
        CELL_AT = RUN_AT + G * ROWS * 8,
        BYTES = CELL_AT + 2 * KEYS * 4,
    };
    static_assert(KEYS <= NT);
};

/* Whether any of a thread's second rows is one: the group of a single row ends before. */
template <class S> __device__ __forceinline__ int halves_of(const tile_args &t, const place<S> &p)
{
    return p.n * t.a.group > 8 ? 2 : 1;
}

/* ---- cells ---------------------------------------------------------------------------------- */

/* The cell of a thread's key in the round from `tile` on. */
template <class S>
__device__ __forceinline__ int find_round(const tile_args &t, const cells &c, int kv, int tile)
{
    int key = (int)threadIdx.x;
    return key < S::KEYS ? cell_of(t, c, kv, tile * S::TK + key) : -1;
}

/* The keys that a thread fetches lie side by side. */
template <class S> __device__ __forceinline__ void keep_round(int *to, int cell)
{
    int key = (int)threadIdx.x;
    if (key < S::KEYS)
        to[key % S::STEP * S::EACH + key / S::STEP] = cell;
}

/* Tiles [a, b) of a round, of K or V. */
template <class S>
__device__ __forceinline__ void fetch_round(const void *from, const int *cells, int a, int b,
                                            uint32_t to)
{
    const int first = (int)threadIdx.x / S::CHUNKS, chunk = (int)threadIdx.x % S::CHUNKS;
    const char *x = (const char *)from + chunk * 16;
    constexpr int OF = S::TK / S::STEP; /* of a tile, that a thread fetches */
#pragma unroll 1
    for (int g = a; g < b; g++)
#pragma unroll
        for (int i = 0; i < OF; i++) {
            int key = g * S::TK + first + i * S::STEP, cell = cells[first * S::EACH + g * OF + i];
            fetch16(to + (uint32_t)(key * S::HD * 2 + ((chunk ^ (key & 7)) << 4)),
                    x + (size_t)(unsigned)max(cell, 0) * (S::HD * 2), cell >= 0);
        }
}

/* ---- queries -------------------------------------------------------------------------------- */

template <class S> __device__ __forceinline__ uint32_t query_at(int row, int chunk)
{
    return (uint32_t)(S::Q_AT + row * S::HD * 2 + ((chunk ^ (row & 7)) << 4));
}

template <class S>
__device__ __forceinline__ void store_queries(const tile_args &t, const place<S> &p)
{
    for (int i = (int)threadIdx.x; i < S::ROWS * S::CHUNKS; i += S::NT) {
        int row = i / S::CHUNKS, chunk = i % S::CHUNKS, r = row_of(t, row);
        float4 x = {0, 0, 0, 0}, y = x;
        if (r < p.n) {
            size_t head = (size_t)(p.r0 + r) * (size_t)t.a.n_head +
                          (size_t)(p.kv * t.a.group + row - r * t.a.group);
            const float4 *q = (const float4 *)(t.a.q + head * S::HD) + 2 * chunk;
            x = __ldcg(q), y = __ldcg(q + 1);
        }
        *(uint4 *)(p.shared + query_at<S>(row, chunk)) = make_uint4(
            pair_of(x.x, x.y), pair_of(x.z, x.w), pair_of(y.x, y.y), pair_of(y.z, y.w));
    }
}

/* ---- a round -------------------------------------------------------------------------------- */

/* s = q k, for this warp's keys, each row's sum in the order of score() */
template <class S>
__device__ __forceinline__ void score_round(const place<S> &p, float (&s)[1][S::KT][4])
{
#pragma unroll
    for (int n = 0; n < S::KT; n++)
        s[0][n][0] = s[0][n][1] = s[0][n][2] = s[0][n][3] = 0;
#pragma unroll 4
    for (int k = 0; k < S::HD / 16; k++) {
        uint32_t a[4];
        matrices(a, p.base + query_at<S>(p.lane % 16, 2 * k + p.lane / 16));
#pragma unroll
        for (int n = 0; n < S::KT / 2; n++) {
            uint32_t b[4];
            int key = p.wn * S::KT * 8 + n * 16 + p.lane % 8 + p.lane / 16 * 8;
            int chunk = 2 * k + p.lane / 8 % 2;
            matrices(b, p.base + (uint32_t)(key * S::HD * 2 + ((chunk ^ (key & 7)) << 4)));
            multiply(s[0][2 * n], a, b[0], b[1]);
            multiply(s[0][2 * n + 1], a, b[2], b[3]);
        }
    }
}

/* The largest score of each row among this warp's keys. */
template <class S>
__device__ __forceinline__ void store_tops(const place<S> &p, int halves,
                                           const float (&s)[1][S::KT][4])
{
    float *top = (float *)(p.shared + S::TOP_AT) + p.wn * S::ROWS;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (h == halves)
            break;
        float m = fmaxf(s[0][0][2 * h], s[0][0][2 * h + 1]);
#pragma unroll
        for (int n = 1; n < S::KT; n++)
            m = fmaxf(m, fmaxf(s[0][n][2 * h], s[0][n][2 * h + 1]));
        m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
        m = fmaxf(m, __shfl_xor_sync(~0u, m, 2));
        if (p.lane % 4 == 0)
            top[packed_row<S>(p, 0, h)] = m;
    }
}

/* The running maximum of a row at tile `own` of the round, which begins with tile k; was: before
 * that tile. */
template <class S>
__device__ __forceinline__ float running_top(const place<S> &p, int k, int own, int row, int at,
                                             float m, int ends, int stop, float &was)
{
    const float *tops = (const float *)(p.shared + S::TOP_AT) + at;
#pragma unroll 1
    for (int g = 0; g <= own; g++, tops += 2 * S::ROWS) {
        if (k + g == ends) {
            m = -INFINITY;
            ends = next_end<S::TK>(p.rows[row], k + g, stop);
        }
        was = m;
        m = fmaxf(m, fmaxf(tops[0], tops[S::ROWS]));
    }
    return m;
}

template <class S> __device__ __forceinline__ int weight_at(int row, int chunk)
{
    return S::P_AT + row * S::KEYS * 2 + ((chunk ^ (row & 7)) << 4);
}

/* This warp's scores become weights in shared memory, beside the sums of its half a tile, what is
 * summed before the tile is multiplied by, and the running maxima of the tile. */
template <class S>
__device__ __forceinline__ void weigh_round(const tile_args &t, const place<S> &p, int k,
                                            int halves, const extent<S> &e, const sums<S> &x,
                                            const float (&s)[1][S::KT][4])
{
    float *sum = (float *)(p.shared + S::L_AT);
    float2 *run = (float2 *)(p.shared + S::RUN_AT);
    const int own = p.wn / 2;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (h == halves)
            break;
        const int row = packed_row<S>(p, 0, h);
        float was = 0;
        const float m = running_top<S>(p, k, own, p.row[0][h], row, x.m[0][h], e.ends[0][h],
                                       e.stop[0][h], was);
        const float at = m == -INFINITY ? 0.f : m * t.factor;
        float l = 0;
#pragma unroll
        for (int n = 0; n < S::KT; n++) {
            float u = exp2_of(fmaf(s[0][n][2 * h], t.factor, -at));
            float v = exp2_of(fmaf(s[0][n][2 * h + 1], t.factor, -at));
            l += u;
            l += v;
            *(uint32_t *)(p.shared + weight_at<S>(row, p.wn * S::KT + n) + p.lane % 4 * 4) =
                pair_of(u, v);
        }
        sum[(p.wn * S::ROWS + row) * 4 + p.lane % 4] = l;
        if (p.wn % 2 == 0 && p.lane % 4 == 0)
            run[own * S::ROWS + row] =
                make_float2(was == m ? 1.f : exp2_of((was - m) * t.factor), m);
    }
}

/* Tile g of the round joins what was summed before it. Everything is asked for before anything is
 * used: a wait for shared memory is as long as two products. */
template <class S>
__device__ __forceinline__ void add_tile(const place<S> &p, int g, int halves, sums<S> &x)
{
    const float *sum = (const float *)(p.shared + S::L_AT) + p.lane % 4;
    const float2 *run = (const float2 *)(p.shared + S::RUN_AT) + g * S::ROWS;
    uint32_t w[S::TK / 16][4], v[S::TK / 32][S::DT][4];
#pragma unroll
    for (int k = 0; k < S::TK / 16; k++)
        matrices(w[k], p.base + (uint32_t)weight_at<S>(p.lane % 16,
                                                       g * S::TK / 8 + 2 * k + p.lane / 16));
#pragma unroll
    for (int k = 0; k < S::TK / 32; k++)
#pragma unroll
        for (int n = 0; n < S::DT; n++) {
            int key = g * S::TK + k * 32 + p.lane, chunk = p.wn * S::DT + n;
            matrices_turned(v[k][n], p.base + (uint32_t)(S::V_AT + key * S::HD * 2 +
                                                         ((chunk ^ (key & 7)) << 4)));
        }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (h == halves)
            break;
        const int row = packed_row<S>(p, 0, h);
        const float2 r = run[row];
        x.m[0][h] = r.y;
#pragma unroll
        for (int i = 0; i < 2; i++)
            x.l[0][h][i] = fmaf(x.l[0][h][i], r.x, sum[((2 * g + i) * S::ROWS + row) * 4]);
#pragma unroll
        for (int n = 0; n < S::DT; n++)
            x.acc[0][n][2 * h] *= r.x, x.acc[0][n][2 * h + 1] *= r.x;
    }
#pragma unroll
    for (int k = 0; k < S::TK / 16; k++)
#pragma unroll
        for (int n = 0; n < S::DT; n++)
            multiply(x.acc[0][n], w[k], v[k / 2][n][k % 2 * 2], v[k / 2][n][k % 2 * 2 + 1]);
}

/* ---- walking -------------------------------------------------------------------------------- */

/* Tiles before this one hold no key that the pass at hand wrote (k_table). */
template <class S>
__device__ __forceinline__ int first_new(const place<S> &p, const pass &w)
{
    int tile = INT_MAX;
    for (int r = w.a; r < w.b; r++)
        tile = min(tile, p.rows[r].tail);
    return tile;
}

/* The first round's cells and, once for all walks of the block, the queries. What is new is
 * fetched after the wait. */
template <class S>
__device__ __forceinline__ void begin_walk(const tile_args &t, const place<S> &p, const job &j,
                                           const int *cells, bool &first)
{
    const int n = min(S::G, j.to - j.from);
    int from = 0, to = n;
    if (first && t.wait == WAIT_FOR_NEW)
        to = max(0, min(n, first_new<S>(p, j.w) - j.from));
#pragma unroll 1
    for (;;) {
        fetch_round<S>(t.a.k, cells, from, to, p.base);
        if (to == n)
            fetch_commit();
        fetch_round<S>(t.a.v, cells, from, to, p.base + S::V_AT);
        if (to == n)
            fetch_commit();
        if (first && t.wait == WAIT_FOR_NEW)
            wait_before();
        if (first)
            store_queries<S>(t, p);
        first = false;
        if (to == n)
            return;
        from = to, to = n;
    }
}

/* Walks the tiles of a job as walk() of cuda_attn_tile.cu does, in rounds. */
template <class S>
__device__ __forceinline__ void walk_rounds(const tile_args &t, const place<S> &p, const job &j,
                                            bool whole, bool &first, totals<S> &all)
{
    sums<S> x;
    const cells c = cells_of<S>(t, p, j);
    const int halves = halves_of<S>(t, p);
    int *ring = p.ring, cell = 0;
#pragma unroll 1
    for (int i = 0; i < 2; i++)
        if (j.from + i * S::G < j.to)
            keep_round<S>(ring + i * S::KEYS, find_round<S>(t, c, p.kv, j.from + i * S::G));
    extent<S> e = extent_of<S>(p, j);
    clear<S>(x, 0, 0), clear<S>(x, 0, 1);
    __syncthreads();
    begin_walk<S>(t, p, j, ring, first);

#pragma unroll 1
    for (int k = j.from, turn = 0; k < j.to; k += S::G, turn ^= 1) {
        const int next = k + S::G, own = k + p.wn / 2, coming = min(S::G, j.to - next);
        const int *more = ring + (turn ^ 1) * S::KEYS;
        fetch_wait<1>();
        __syncthreads(); /* the keys are there, and the queries */
        if (next + S::G < j.to)
            cell = find_round<S>(t, c, p.kv, next + S::G);
        float s[1][S::KT][4];
        if (own < j.to) {
            score_round<S>(p, s);
            if (t.a.softcap > 0)
                cap_scores<S>(t.a.scale, t.a.softcap, s);
            if (own * S::TK < j.w.last_lo || (own + 1) * S::TK > j.w.first_stop)
                mask<S>(e.lo, e.stop, k * S::TK + p.wn * S::KT * 8 + p.lane % 4 * 2, s);
            store_tops<S>(p, halves, s);
        }
        __syncthreads(); /* nobody reads these keys any more, and all maxima are known */
        fetch_round<S>(t.a.k, more, 0, coming, p.base);
        fetch_commit();
        if (next + S::G < j.to)
            keep_round<S>(ring + turn * S::KEYS, cell);
        if (own < j.to)
            weigh_round<S>(t, p, k, halves, e, x, s);
        fetch_wait<1>();
        __syncthreads(); /* the values are there, and the weights */
#pragma unroll 1
        for (int g = 0; g < min(S::G, j.to - k); g++) {
            add_tile<S>(p, g, halves, x);
            if (__any_sync(~0u, e.ends[0][0] == k + g + 1 || e.ends[0][1] == k + g + 1))
                end_segments<S>(t, p, k + g + 1, e.stop, e.ends, x, whole, all);
        }
        __syncthreads(); /* nobody reads these values any more */
        fetch_round<S>(t.a.v, more, 0, coming, p.base + S::V_AT);
        fetch_commit();
    }
}

/* ---- the kernel ----------------------------------------------------------------------------- */

/* Which splits or tails are this block's: all of them, its share of the splits, or one tail. */
template <class S>
__device__ __forceinline__ course course_of(const tile_args &t, const place<S> &p, bool whole)
{
    course c = {};
    c.last = -1;
    c.stride = whole ? 1 : t.units;
    if (whole)
        c.last_tail = p.n;
    else if ((int)blockIdx.x >= t.units)
        c.tails = (int)blockIdx.x - t.units, c.last_tail = p.n, c.each_tail = t.tails;
    return c;
}

/* Blocks (units of splits, then of rows' tails; kv head; tile of rows, the last first). */
template <class S>
__global__ void __launch_bounds__(S::NT, S::BLOCKS)
    round_kernel(const __grid_constant__ tile_args t)
{
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ seen rows[S::ROWS];
    place<S> p = place_of<S>(t, rows, shared, (int *)(shared + S::CELL_AT));
    let_next();
    if (t.wait == WAIT_FIRST)
        wait_before();
    const bool whole = t.units == 0;
    for (int r = (int)threadIdx.x; r < p.n; r += S::NT) {
        seen x = seen_by<S::TK>(t, p.r0 + r);
        if (p.n == 1)
            x.stop = x.end; /* nobody walks with it */
        else if (!whole)
            x.stop = parted_stop<S::TK>(x);
        rows[r] = x;
    }
    if (whole && t.a.sinks.p) { /* weights: fetched now, so that the rows' ends find them near */
        float sink = weight_at(t.a.sinks, (size_t)(p.kv * t.a.group + p.lane % t.a.group));
        asm volatile("" ::"f"(sink));
    }
    __syncthreads();
    bool first = true;
    course c = course_of<S>(t, p, whole);
    totals<S> all;
    start_totals<S>(p, all);
    while (!done(c, p.n) && next_job<S>(t, p, whole, c))
        walk_rounds<S>(t, p, c.now, whole, first, all);
    if (first && blockIdx.x > 0)
        return; /* without work: makes room, and block 0 waits for what came before */
    if (first)
        wait_before();
    if (whole)
        finish<S>(t, p, all);
}

/* Rows and heads from their segments, a dimension a thread. */
template <int HD>
__global__ void __launch_bounds__(JOIN_BLOCK) join_rows(const __grid_constant__ tile_args t)
{
    __shared__ float4 room[JOIN_BLOCK / 32][32];
    __shared__ float sinks[JOIN_BLOCK]; /* a thread's own */
    const int at = (int)blockIdx.x * JOIN_BLOCK + (int)threadIdx.x, d = at % HD;
    const int head = at / HD % t.a.n_head, r = at / HD / t.a.n_head;
    let_next();
    /* a weight, and not in any cache: fetched before anything is waited for */
    sinks[threadIdx.x] = t.a.sinks.p ? weight_at(t.a.sinks, (size_t)head) : 0.f;
    if (t.wait == WAIT_FIRST)
        wait_before();
    const seen x = seen_by<(HD > 128 ? 32 : 64)>(t, r);
    if (t.wait != WAIT_FIRST)
        wait_before();
    join_one<HD>(t, x, &sinks[threadIdx.x], r, head, d, room[threadIdx.x / 32]);
}

/* ---- host ----------------------------------------------------------------------------------- */

/* As many splits as a row can have: no blocks for more, which would only be in the way. */
static int most_splits(const tile_args &t)
{
    size_t keys = (size_t)t.a.n_cols * (size_t)t.a.page_size;
    if (t.a.window && (size_t)t.a.window < keys)
        keys = (size_t)t.a.window;
    return (1 << (keys <= SHORT + OWN - 1 ? t.cap_shift : t.long_shift)) + 1;
}

template <class S> static void run(struct kdev *d, tile_args t)
{
    int slots = S::BLOCKS * d->n_sm / t.a.n_kv;
    if (t.units) {
        t.tails = t.each > 1 ? min_int(t.each, 8) : 0;
        t.units = max_int(1, min_int(min_int(t.units, most_splits(t)), slots - t.tails));
    }
    dim3 grid((unsigned)max_int(1, t.units + t.tails), (unsigned)t.a.n_kv, (unsigned)t.tiles);
    cuda_launch(d, round_kernel<S>, grid, S::NT, S::BYTES, t);
    if (!t.units)
        return;
    constexpr int of_head = (int)S::HD / JOIN_BLOCK;
    static_assert(of_head * JOIN_BLOCK == (int)S::HD);
    cuda_launch(d, join_rows<S::HD>, dim3((unsigned)(t.a.rows * t.a.n_head * of_head)), JOIN_BLOCK,
                0, t);
}

/* Long contexts want two blocks a multiprocessor, short ones all their cells at once. */
template <int HD> static void run_wide(struct kdev *d, const tile_args &t)
{
    if (long_context(t.a))
        run<round_form<HD, 2, 2>>(d, t);
    else
        run<round_form<HD, 4, 1>>(d, t);
}

void cuda_attn_rounds(struct kdev *d, const tile_args &t)
{
    if (t.a.head_dim == 64)
        run<round_form<64, 4, 2>>(d, t);
    else if (t.a.head_dim == 128)
        run_wide<128>(d, t);
    else
        run_wide<256>(d, t);
}
