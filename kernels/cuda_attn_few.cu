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
 * The blocks share splits and tails. They are all on the device at once, so that they join each
 * other's segments as they come.
 */
#include "kernels/cuda_attn_join.cuh"

/* MI * 16 packed rows. WHOLE: a block walks all that its rows see; else blocks share that, and hand
 * segments over. */
template <int HD_, int MI_, int G_, int BLOCKS_, bool WHOLE_> struct round_form {
    enum : int {
        HD = HD_, MI = MI_, G = G_, BLOCKS = BLOCKS_,
        WARPS = 2 * G,              /* half a tile's scores each */
        WN = 1,                     /* every warp has the sums over all keys */
        HELD = 1, LG = 2,
        WHOLE = WHOLE_, WIDE = 0, HANDS = !WHOLE_,
        NT = 32 * WARPS,
        ROWS = 16 * MI,
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
    static_assert(KEYS <= NT && ROWS <= NT);
};

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

/* Keys [a, b) of a round, of K or V. There are many, and most of the time goes to saying so: little
 * is computed for each. */
template <class S>
__device__ __forceinline__ void fetch_round(const void *from, const int *cells, int a, int b,
                                            uint32_t to)
{
    constexpr int N = S::EACH < 4 ? S::EACH : 4; /* cells looked up together */
    const int first = (int)threadIdx.x / S::CHUNKS, chunk = (int)threadIdx.x % S::CHUNKS;
    const char *x = (const char *)from + chunk * 16;
    asm volatile("" : "+l"(x)); /* one addition a chunk from here on */
#pragma unroll
    for (int i = 0; i < S::EACH; i += N) {
        int cell[N];
#pragma unroll
        for (int j = 0; j < N; j += 2)
            *(int2 *)(cell + j) = *(const int2 *)(cells + first * S::EACH + i + j);
#pragma unroll
        for (int j = 0; j < N; j++) {
            const int key = first + (i + j) * S::STEP, turn = S::STEP % 8 ? key : first;
            if ((unsigned)(key - a) < (unsigned)(b - a))
                fetch16(to + (uint32_t)(key * S::HD * 2 + ((chunk ^ (turn & 7)) << 4)),
                        x + (size_t)(unsigned)max(cell[j], 0) * (S::HD * 2), cell[j]);
        }
    }
}

/* ---- queries -------------------------------------------------------------------------------- */

template <class S> __device__ __forceinline__ uint32_t query_at(int row, int chunk)
{
    return (uint32_t)(S::Q_AT + row * S::HD * 2 + ((chunk ^ (row & 7)) << 4));
}

/* A thread's chunks of the queries, as they are. */
template <class S> struct queries {
    enum { N = (S::ROWS * S::CHUNKS + S::NT - 1) / S::NT };
    float4 x[N][2];
};

template <class S>
__device__ __forceinline__ void load_queries(const tile_args &t, const place<S> &p, queries<S> &q)
{
#pragma unroll
    for (int n = 0; n < queries<S>::N; n++) {
        const int i = (int)threadIdx.x + n * S::NT, row = i / S::CHUNKS, r = row_of(t, row);
        q.x[n][0] = q.x[n][1] = {0, 0, 0, 0};
        if (r < p.n) {
            size_t head = (size_t)(p.r0 + r) * (size_t)t.a.n_head +
                          (size_t)(p.kv * t.a.group + row - r * t.a.group);
            const float4 *from = (const float4 *)(t.a.q + head * S::HD) + 2 * (i % S::CHUNKS);
            q.x[n][0] = __ldcg(from), q.x[n][1] = __ldcg(from + 1);
        }
    }
}

template <class S>
__device__ __forceinline__ void store_queries(const place<S> &p, const queries<S> &q)
{
#pragma unroll
    for (int n = 0; n < queries<S>::N; n++) {
        const int i = (int)threadIdx.x + n * S::NT;
        const float4 x = q.x[n][0], y = q.x[n][1];
        if (i < S::ROWS * S::CHUNKS)
            *(uint4 *)(p.shared + query_at<S>(i / S::CHUNKS, i % S::CHUNKS)) = make_uint4(
                pair_of(x.x, x.y), pair_of(x.z, x.w), pair_of(y.x, y.y), pair_of(y.z, y.w));
    }
}

/* ---- a round -------------------------------------------------------------------------------- */

/* What a step of 16 dimensions multiplies: queries and this warp's keys. */
template <class S> struct step_parts {
    uint32_t a[S::MI][4], b[S::KT / 2][4];
};

template <class S>
__device__ __forceinline__ void load_step(const place<S> &p, int k, step_parts<S> &x)
{
#pragma unroll
    for (int mi = 0; mi < S::MI; mi++)
        matrices(x.a[mi], p.base + query_at<S>(mi * 16 + p.lane % 16, 2 * k + p.lane / 16));
#pragma unroll
    for (int n = 0; n < S::KT / 2; n++) {
        int key = p.wn * S::KT * 8 + n * 16 + p.lane % 8 + p.lane / 16 * 8;
        int chunk = 2 * k + p.lane / 8 % 2;
        matrices(x.b[n], p.base + (uint32_t)(key * S::HD * 2 + ((chunk ^ (key & 7)) << 4)));
    }
}

/* s = q k, for this warp's keys, each row's sum in the order of score(). A step is loaded while the
 * one before is multiplied. */
template <class S>
__device__ __forceinline__ void score_round(const place<S> &p, float (&s)[S::MI][S::KT][4])
{
    step_parts<S> x[2];
#pragma unroll
    for (int mi = 0; mi < S::MI; mi++)
#pragma unroll
        for (int n = 0; n < S::KT; n++)
            s[mi][n][0] = s[mi][n][1] = s[mi][n][2] = s[mi][n][3] = 0;
    load_step<S>(p, 0, x[0]);
#pragma unroll 4
    for (int k = 0; k < S::HD / 16; k++) {
        load_step<S>(p, min(k + 1, S::HD / 16 - 1), x[(k + 1) % 2]);
        const step_parts<S> &now = x[k % 2];
#pragma unroll
        for (int n = 0; n < S::KT / 2; n++)
#pragma unroll
            for (int mi = 0; mi < S::MI; mi++) {
                multiply(s[mi][2 * n], now.a[mi], now.b[n][0], now.b[n][1]);
                multiply(s[mi][2 * n + 1], now.a[mi], now.b[n][2], now.b[n][3]);
            }
    }
}

/* The largest score of each row among this warp's keys. */
template <class S>
__device__ __forceinline__ void store_tops(const place<S> &p, const float (&s)[S::MI][S::KT][4])
{
    float *top = (float *)(p.shared + S::TOP_AT) + p.wn * S::ROWS;
#pragma unroll
    for (int mi = 0; mi < S::MI; mi++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float m = fmaxf(s[mi][0][2 * h], s[mi][0][2 * h + 1]);
#pragma unroll
            for (int n = 1; n < S::KT; n++)
                m = fmaxf(m, fmaxf(s[mi][n][2 * h], s[mi][n][2 * h + 1]));
            m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
            m = fmaxf(m, __shfl_xor_sync(~0u, m, 2));
            if (p.lane % 4 == 0)
                top[packed_row<S>(p, mi, h)] = m;
        }
}

/* The running maxima of rows at tile `own` of the round, which begins with tile k; was: before that
 * tile. */
template <class S>
__device__ __forceinline__ void running_tops(const place<S> &p, int k, int own, const extent<S> &e,
                                             float (&m)[S::MI][2], float (&was)[S::MI][2])
{
    const float *tops = (const float *)(p.shared + S::TOP_AT) + packed_row<S>(p, 0, 0);
    int ends[S::MI][2];
#pragma unroll
    for (int mi = 0; mi < S::MI; mi++)
        ends[mi][0] = e.ends[mi][0], ends[mi][1] = e.ends[mi][1];
#pragma unroll 1
    for (int g = 0; g <= own; g++, tops += 2 * S::ROWS) {
        float top[S::MI][2];
#pragma unroll
        for (int mi = 0; mi < S::MI; mi++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                top[mi][h] = fmaxf(tops[mi * 16 + h * 8], tops[S::ROWS + mi * 16 + h * 8]);
#pragma unroll
        for (int mi = 0; mi < S::MI; mi++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                if (k + g == ends[mi][h]) {
                    m[mi][h] = -INFINITY;
                    ends[mi][h] = next_end<S::TK>(p.rows[p.row[mi][h]], k + g, e.stop[mi][h]);
                }
                was[mi][h] = m[mi][h];
                m[mi][h] = fmaxf(m[mi][h], top[mi][h]);
            }
    }
}

template <class S> __device__ __forceinline__ int weight_at(int row, int chunk)
{
    return S::P_AT + row * S::KEYS * 2 + ((chunk ^ (row & 7)) << 4);
}

/* This warp's scores become weights in shared memory, beside the sums of its half a tile, what is
 * summed before the tile is multiplied by, and the running maxima of the tile. */
template <class S>
__device__ __forceinline__ void weigh_round(const tile_args &t, const place<S> &p, int k,
                                            const extent<S> &e, const sums<S> &x,
                                            const float (&s)[S::MI][S::KT][4])
{
    float *sum = (float *)(p.shared + S::L_AT);
    float2 *run = (float2 *)(p.shared + S::RUN_AT);
    const int own = p.wn / 2;
    float m[S::MI][2], was[S::MI][2];
#pragma unroll
    for (int mi = 0; mi < S::MI; mi++)
        m[mi][0] = x.m[mi][0], m[mi][1] = x.m[mi][1];
    running_tops<S>(p, k, own, e, m, was);
#pragma unroll
    for (int mi = 0; mi < S::MI; mi++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int row = packed_row<S>(p, mi, h);
            const float at = m[mi][h] == -INFINITY ? 0.f : m[mi][h] * t.factor;
            float l = 0;
#pragma unroll
            for (int n = 0; n < S::KT; n++) {
                float u = exp2_of(fmaf(s[mi][n][2 * h], t.factor, -at));
                float v = exp2_of(fmaf(s[mi][n][2 * h + 1], t.factor, -at));
                l += u;
                l += v;
                *(uint32_t *)(p.shared + weight_at<S>(row, p.wn * S::KT + n) + p.lane % 4 * 4) =
                    pair_of(u, v);
            }
            sum[(p.wn * S::ROWS + row) * 4 + p.lane % 4] = l;
            const float by = exp2_of((was[mi][h] - m[mi][h]) * t.factor);
            if (p.wn % 2 == 0 && p.lane % 4 == 0)
                run[own * S::ROWS + row] =
                    make_float2(was[mi][h] == m[mi][h] ? 1.f : by, m[mi][h]);
        }
}

/* Tile g of the round joins what was summed before it. Everything is asked for before anything is
 * used: a wait for shared memory is as long as two products. */
template <class S>
__device__ __forceinline__ void add_tile(const place<S> &p, int g, sums<S> &x)
{
    const float *sum = (const float *)(p.shared + S::L_AT) + p.lane % 4;
    const float2 *run = (const float2 *)(p.shared + S::RUN_AT) + g * S::ROWS;
    uint32_t w[S::MI][S::TK / 16][4], v[S::TK / 32][S::DT][4];
#pragma unroll
    for (int mi = 0; mi < S::MI; mi++)
#pragma unroll
        for (int k = 0; k < S::TK / 16; k++) {
            const int row = mi * 16 + p.lane % 16, chunk = g * S::TK / 8 + 2 * k + p.lane / 16;
            matrices(w[mi][k], p.base + (uint32_t)weight_at<S>(row, chunk));
        }
#pragma unroll
    for (int k = 0; k < S::TK / 32; k++)
#pragma unroll
        for (int n = 0; n < S::DT; n++) {
            int key = g * S::TK + k * 32 + p.lane, chunk = p.wn * S::DT + n;
            matrices_turned(v[k][n], p.base + (uint32_t)(S::V_AT + key * S::HD * 2 +
                                                         ((chunk ^ (key & 7)) << 4)));
        }
#pragma unroll
    for (int mi = 0; mi < S::MI; mi++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int row = packed_row<S>(p, mi, h);
            const float2 r = run[row];
            x.m[mi][h] = r.y;
#pragma unroll
            for (int i = 0; i < 2; i++)
                x.l[mi][h][i] = fmaf(x.l[mi][h][i], r.x, sum[((2 * g + i) * S::ROWS + row) * 4]);
#pragma unroll
            for (int n = 0; n < S::DT; n++)
                x.acc[mi][n][2 * h] *= r.x, x.acc[mi][n][2 * h + 1] *= r.x;
        }
#pragma unroll
    for (int mi = 0; mi < S::MI; mi++)
#pragma unroll
        for (int k = 0; k < S::TK / 16; k++)
#pragma unroll
            for (int n = 0; n < S::DT; n++)
                multiply(x.acc[mi][n], w[mi][k], v[k / 2][n][k % 2 * 2],
                         v[k / 2][n][k % 2 * 2 + 1]);
}

/* ---- walking -------------------------------------------------------------------------------- */

/* Keys before this one are not of the pass at hand (k_table). */
template <class S>
__device__ __forceinline__ int first_new(const place<S> &p, const pass &w)
{
    static_assert(S::ROWS <= 32);
    const int r = w.a + p.lane;
    return __reduce_min_sync(~0u, r < w.b ? max(p.rows[r].end - OWN, 0) : INT_MAX);
}

/* Keys [a, b) of the first round, of K and then of V; whole: nothing else comes to them. */
template <class S>
__device__ __forceinline__ void fetch_both(const tile_args &t, const place<S> &p, const int *cells,
                                           int a, int b, bool whole)
{
#pragma unroll 1
    for (int side = 0; side < 2; side++) {
        fetch_round<S>(side ? t.a.v : t.a.k, cells, a, b, p.base + (uint32_t)(side * S::V_AT));
        if (whole)
            fetch_commit();
    }
}

/* What is touched behind the wait: its address is translated before. */
template <class S>
__device__ __forceinline__ void warm_places(const tile_args &t, const place<S> &p)
{
    const size_t head = (size_t)p.r0 * (size_t)t.a.n_head + (size_t)(p.kv * t.a.group);
    switch ((int)threadIdx.x) {
    case 32: warm(t.a.q + head * S::HD); break;
    case 64: warm(t.a.dst + head * S::HD); break;
    case 96: warm(piece_of<S>(t, p.r0, p.kv * t.a.group, 0));
    }
}

/* The first round's cells and, once for all walks of the block, the queries and sinks. What is new
 * is fetched after the wait, and nothing that comes then waits for another. */
template <class S>
__device__ __forceinline__ void begin_walk(const tile_args &t, const place<S> &p, const job &j,
                                           const int *cells, bool &first, uint32_t &sinks)
{
    const bool waits = first && t.wait == WAIT_FOR_NEW;
    const int n = min(S::G, j.to - j.from) * S::TK;
    const int old = waits ? max(0, min(n, first_new<S>(p, j.w) - j.from * S::TK)) : n;
    queries<S> q;
    fetch_both<S>(t, p, cells, 0, old, old == n);
    if (first) {
        warm_places<S>(t, p);
        sinks = fetch_sinks(t, p);
    }
    if (waits)
        wait_before();
    if (first)
        load_queries<S>(t, p, q);
    if (old < n)
        fetch_both<S>(t, p, cells, old, n, true);
    if (first)
        store_queries<S>(p, q);
    first = false;
}

/* Walks the tiles of a job as walk() of cuda_attn_tile.cu does, in rounds. */
template <class S>
__device__ __forceinline__ void walk_rounds(const tile_args &t, const place<S> &p, const job &j,
                                            bool &first, uint32_t &sinks, totals<S> &all)
{
    sums<S> x;
    const cells c = cells_of<S>(t, p, j);
    int *ring = p.ring, cell = 0;
#pragma unroll 1
    for (int i = 0; i < 2; i++)
        if (j.from + i * S::G < j.to)
            keep_round<S>(ring + i * S::KEYS, find_round<S>(t, c, p.kv, j.from + i * S::G));
    extent<S> e = extent_of<S>(p, j);
#pragma unroll
    for (int mi = 0; mi < S::MI; mi++)
        clear<S>(x, mi, 0), clear<S>(x, mi, 1);
    __syncthreads();
    begin_walk<S>(t, p, j, ring, first, sinks);

#pragma unroll 1
    for (int k = j.from, turn = 0; k < j.to; k += S::G, turn ^= 1) {
        const int next = k + S::G, own = k + p.wn / 2;
        const int coming = max(j.to - next, 0) * S::TK; /* keys */
        const int *more = ring + (turn ^ 1) * S::KEYS;
        fetch_wait<1>();
        __syncthreads(); /* the keys are there, and the queries */
        if (next + S::G < j.to)
            cell = find_round<S>(t, c, p.kv, next + S::G);
        float s[S::MI][S::KT][4];
        if (own < j.to) {
            score_round<S>(p, s);
            if (t.a.softcap > 0)
                cap_scores<S>(t.a.scale, t.a.softcap, s);
            if (own * S::TK < j.w.last_lo || (own + 1) * S::TK > j.w.first_stop)
                mask<S>(e.lo, e.stop, k * S::TK + p.wn * S::KT * 8 + p.lane % 4 * 2, s);
            store_tops<S>(p, s);
        }
        __syncthreads(); /* nobody reads these keys any more, and all maxima are known */
        if (coming > 0) /* else nothing is to be asked for, in so much code */
            fetch_round<S>(t.a.k, more, 0, coming, p.base);
        fetch_commit();
        if (next + S::G < j.to)
            keep_round<S>(ring + turn * S::KEYS, cell);
        if (own < j.to)
            weigh_round<S>(t, p, k, e, x, s);
        fetch_wait<1>();
        __syncthreads(); /* the values are there, and the weights */
#pragma unroll 1
        for (int g = 0; g < min(S::G, j.to - k); g++) {
            add_tile<S>(p, g, x);
            bool over = false;
#pragma unroll
            for (int mi = 0; mi < S::MI; mi++)
                over |= e.ends[mi][0] == k + g + 1 || e.ends[mi][1] == k + g + 1;
            if (__any_sync(~0u, over))
                end_segments<S>(t, p, k + g + 1, e.stop, e.ends, x, S::WHOLE, all);
        }
        __syncthreads(); /* nobody reads these values any more */
        if (coming > 0)
            fetch_round<S>(t.a.v, more, 0, coming, p.base + S::V_AT);
        fetch_commit();
    }
}

/* ---- the kernel ----------------------------------------------------------------------------- */

/* Pages of the first request into the first cache, while it is still looked up what rows see. */
__device__ __forceinline__ void fetch_pages(const tile_args &t, uint32_t room)
{
    const int lane = (int)threadIdx.x % 32, at = lane * 32; /* a line each */
    if (threadIdx.x / 32 == 1 && at < t.a.n_cols)
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(room + (uint32_t)lane * 4),
                     "l"(t.a.pages + at)
                     : "memory");
}

/* Blocks (units of splits and tails, kv head, tile of rows, the last first). */
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
    fetch_pages(t, p.base + S::TOP_AT);
    if ((int)threadIdx.x < p.n) {
        seen x = seen_by<S::TK>(t, p.r0 + (int)threadIdx.x);
        if (!S::WHOLE)
            x.stop = parted_stop<S::TK>(x);
        else if (p.n == 1)
            x.stop = x.end; /* nobody walks with it */
        rows[threadIdx.x] = x;
    }
    __syncthreads();
    bool first = true;
    uint32_t sinks = 0;
    course c = {};
    c.last = -1;
    c.stride = S::WHOLE ? 1 : (int)gridDim.x;
    c.last_tail = p.n;
    totals<S> all;
    if (S::WHOLE)
        start_totals<S>(p, all);
    while (!done(c, p.n) && next_job<S>(t, p, S::WHOLE, c))
        walk_rounds<S>(t, p, c.now, first, sinks, all);
    if (first) { /* there was nothing to walk */
        if (!S::WHOLE && first_piece<S>(t, p, 0) >= pieces_of<S>(t, p))
            return; /* nor to join: makes room */
        sinks = fetch_sinks(t, p);
        wait_before();
    }
    if constexpr (S::WHOLE)
        finish<S>(t, p, sinks, all);
    else
        join_pieces<S>(t, p, sinks);
}

/* ---- host ----------------------------------------------------------------------------------- */

/* As many splits as a row can have: no blocks for more, which would only be in the way. */
static int most_splits(const tile_args &t)
{
    size_t keys = (size_t)t.a.n_cols * (size_t)t.a.page_size;
    if (t.a.window && (size_t)t.a.window < keys)
        keys = (size_t)t.a.window;
    const int shortest = (t.a.head_dim > 128 ? 32 : 64) << t.least_shift;
    const int most = 1 << (keys <= SHORT + OWN - 1 ? t.cap_shift : t.long_shift);
    return min_int(most, (int)(keys / (size_t)shortest)) + (t.a.window ? 1 : 0);
}

/* Blocks that are on the device at once, whatever of the kernel before is there: that one ends
 * without this one. */
template <class S> static int room_for(const struct kdev *d)
{
    const int apart = 2048; /* what a block has of its own, and what the system takes */
    return d->n_sm * min_int(S::BLOCKS, (int)(d->shared_most + apart) / (S::BYTES + apart));
}

template <int HD, int MI, int G, int BLOCKS> static void run(struct kdev *d, tile_args t)
{
    using S = round_form<HD, MI, G, BLOCKS, false>;
    using W = round_form<HD, MI, G, BLOCKS, true>;
    const size_t pieces = (size_t)(t.a.rows * t.a.n_head * HD / PIECE);
    const size_t bytes = pieces * (size_t)t.a.most_splits * PIECE_CHUNKS * sizeof *t.handed;
    const int most = bytes > HANDED_BYTES ? 0 : room_for<S>(d) / (t.a.n_kv * t.tiles);
    t.handed = (uint4 *)d->handed;
    if (t.units)
        t.units = min_int(min_int(t.units, max_int(most_splits(t), 1)) + t.each, most);
    dim3 grid((unsigned)max_int(1, t.units), (unsigned)t.a.n_kv, (unsigned)t.tiles);
    cuda_launch(d, t.units ? round_kernel<S> : round_kernel<W>, grid, S::NT, S::BYTES, t);
}

/* Long contexts want two blocks a multiprocessor, short ones all their cells at once; so do more
 * than 16 packed rows, which need the registers of both. */
template <int HD> static void run_wide(struct kdev *d, const tile_args &t)
{
    if (t.each * t.a.group > 16)
        run<HD, 2, 4, 1>(d, t);
    else if (long_context(t.a))
        run<HD, 1, 2, 2>(d, t);
    else
        run<HD, 1, 4, 1>(d, t);
}

void cuda_attn_rounds(struct kdev *d, const tile_args &t)
{
    if (t.a.head_dim == 64)
        run<64, 1, 4, 2>(d, t);
    else if (t.a.head_dim == 128)
        run_wide<128>(d, t);
    else
        run_wide<256>(d, t);
}
