/* decode.cu - attention of few rows over paged bf16 cells: decode and small trees.
 *
 * What counts here is not work but time: until the first cell is there, and from the last one to
 * the row's sum. A block walks rounds of up to four tiles. Its warps share a round: each has scores
 * for half a tile of keys, then values for its part of the dimensions, so that the tiles of a
 * round, whose sums follow each other (tile.cu says in which order), are weighed at the
 * same time. A round has four barriers, and the next one's keys are on their way while the values
 * of this one are added.
 *
 * A kernel like this runs most of its instructions once, and fetching them costs as much as
 * running them: loops stay rolled wherever a round is not the longer for it, rare things are calls
 * or lie behind a branch, a lane finds out what several threads ask for, and what can be found
 * before the wait is.
 *
 * The blocks share splits and tails. They are all on the device at once, so that they join each
 * other's segments as they come. Where there are more splits and tails than blocks, a block's tail
 * comes into shared memory with its split.
 */
#include "kernels/cuda/attention/combine.cuh"

/* MI * 16 packed rows. WHOLE: a block walks all that its rows see; else blocks share that, and hand
 * segments over. */
template <int HD_, int MI_, int G_, int BLOCKS_, bool WHOLE_> struct round_form {
    enum : int {
        HD = HD_, MI = MI_, G = G_, BLOCKS = BLOCKS_,
        WARPS = 2 * G,              /* half a tile's scores each */
        WN = 1,                     /* every warp has the sums over all keys */
        HELD = 1, LG = 2,
        WHOLE = WHOLE_, WIDE = 0,
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
        BYTES = CELL_AT + 3 * KEYS * 4,
        AHEAD = !WHOLE && BLOCKS == 1 ? 2 * TK : 0, /* keys of a tail beside the round: OWN < TK */
        AHEAD_AT = (BYTES + 127) / 128 * 128,
        AHEAD_BYTES = AHEAD_AT + 2 * AHEAD * HD * 2,
    };
    static_assert(KEYS <= NT && ROWS <= 32 && (int)OWN < (int)TK);
};

/* ---- what rows see -------------------------------------------------------------------------- */

/* What a thread's rows see of a job (extent), and where their segments go (hand_segments()). */
template <class S> struct round_extent : extent<S> {
    uint32_t to[S::MI][2];
};

/* A lane finds them out for a packed row, for all threads that have that one: in little code. */
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
        at = (uint32_t)(((p.r0 + r) * t.a.n_head + head) * (S::HD / PIECE) * t.a.most_splits +
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
                           (uint32_t)(p.wn * S::DT * 8 / PIECE * t.a.most_splits)) *
                          PIECE_CHUNKS;
        }
    return e;
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
#pragma unroll 1
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

/* A thread's chunks of the queries: where they are, and as they are there. */
template <class S> struct queries {
    enum { N = (S::ROWS * S::CHUNKS + S::NT - 1) / S::NT };
    const float4 *from[N]; /* NULL: no row's */
    float4 x[N][2];
};

template <class S>
__device__ __forceinline__ void find_queries(const tile_args &t, const place<S> &p, queries<S> &q)
{
#pragma unroll
    for (int n = 0; n < queries<S>::N; n++) {
        const int i = (int)threadIdx.x + n * S::NT, row = i / S::CHUNKS, r = row_of(t, row);
        const int head = (p.r0 + r) * t.a.n_head + p.kv * t.a.group + row - r * t.a.group;
        q.from[n] = (const float4 *)(t.a.q + (size_t)head * S::HD) + 2 * (i % S::CHUNKS);
        if (r >= p.n)
            q.from[n] = NULL;
        asm volatile("" : "+l"(q.from[n])); /* before the wait */
    }
}

template <class S> __device__ __forceinline__ void load_queries(queries<S> &q)
{
#pragma unroll
    for (int n = 0; n < queries<S>::N; n++) {
        q.x[n][0] = q.x[n][1] = {0, 0, 0, 0};
        if (q.from[n])
            q.x[n][0] = __ldcg(q.from[n]), q.x[n][1] = __ldcg(q.from[n] + 1);
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

/* Where a lane's rows of queries and keys lie, by steps of 16 dimensions: every four steps the
 * same, STEPS_APART further on. */
enum { STEPS_APART = 4 * 32 };
struct step_places {
    uint32_t q[4], k[4];
};

template <class S>
__device__ __forceinline__ step_places step_places_of(const place<S> &p, uint32_t keys)
{
    step_places at;
    const int key = p.wn * S::KT * 8 + p.lane % 8 + p.lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const int chunk = 2 * k + p.lane / 8 % 2;
        at.q[k] = p.base + query_at<S>(p.lane % 16, 2 * k + p.lane / 16);
        at.k[k] = keys + (uint32_t)(key * S::HD * 2 + ((chunk ^ (key & 7)) << 4));
    }
    return at;
}

/* What a step multiplies: queries and this warp's keys. */
template <class S> struct step_parts {
    uint32_t a[S::MI][4], b[S::KT / 2][4];
};

template <class S>
__device__ __forceinline__ void load_step(const step_places &at, int k, step_parts<S> &x)
{
    constexpr uint32_t SIXTEEN = 16 * S::HD * 2; /* rows */
    const uint32_t on = (uint32_t)(k / 4 * STEPS_APART);
#pragma unroll
    for (int mi = 0; mi < S::MI; mi++)
        matrices(x.a[mi], at.q[k % 4] + on + (uint32_t)mi * SIXTEEN);
#pragma unroll
    for (int n = 0; n < S::KT / 2; n++)
        matrices(x.b[n], at.k[k % 4] + on + (uint32_t)n * SIXTEEN);
}

/* s = q k, for this warp's keys, which lie from `keys` on, each row's sum in the order of score().
 * A step is loaded while the one before is multiplied. */
template <class S>
__device__ __forceinline__ void score_round(const place<S> &p, uint32_t keys,
                                            float (&s)[S::MI][S::KT][4])
{
    constexpr int STEPS = S::HD / 16;
    const step_places at = step_places_of<S>(p, keys);
    step_parts<S> x[2];
#pragma unroll
    for (int mi = 0; mi < S::MI; mi++)
#pragma unroll
        for (int n = 0; n < S::KT; n++)
            s[mi][n][0] = s[mi][n][1] = s[mi][n][2] = s[mi][n][3] = 0;
    load_step<S>(at, 0, x[0]);
#pragma unroll
    for (int k = 0; k < STEPS; k++) {
        if (k + 1 < STEPS)
            load_step<S>(at, k + 1, x[(k + 1) % 2]);
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
            const float m = largest_score<S>(s[mi], h);
            if (p.lane % 4 == 0)
                top[packed_row<S>(p, mi, h)] = m;
        }
}

/* The running maxima of rows at tile `own` of the round, which begins with tile k; was: before that
 * tile. ENDS: segments may end before it. */
template <class S, bool ENDS>
__device__ __forceinline__ void running_tops(const place<S> &p, int k, int own, const extent<S> &e,
                                             float (&m)[S::MI][2], float (&was)[S::MI][2])
{
    const float *tops = (const float *)(p.shared + S::TOP_AT) + packed_row<S>(p, 0, 0);
    extent<S> now = e;
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
                if (ENDS && k + g == now.ends[mi][h]) {
                    m[mi][h] = -INFINITY;
                    now.ends[mi][h] =
                        next_end<S::TK>(p.rows[p.row[mi][h]], k + g, now.stop[mi][h]);
                }
                was[mi][h] = m[mi][h];
                m[mi][h] = fmaxf(m[mi][h], top[mi][h]);
            }
    }
}

/* Whether a segment of this thread's rows ends before tile `to`. */
template <class S> __device__ __forceinline__ bool ends_within(const extent<S> &e, int to)
{
    int first = INT_MAX;
#pragma unroll
    for (int mi = 0; mi < S::MI; mi++)
        first = min(first, min(e.ends[mi][0], e.ends[mi][1]));
    return first < to;
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
    if (__any_sync(~0u, ends_within<S>(e, k + own + 1)))
        running_tops<S, true>(p, k, own, e, m, was);
    else
        running_tops<S, false>(p, k, own, e, m, was);
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

/* Tile g of the round, whose values lie from `values` on, joins what was summed before it.
 * Everything is asked for before anything is used: a wait for shared memory is as long as two
 * products. */
template <class S>
__device__ __forceinline__ void add_tile(const place<S> &p, uint32_t values, int g, sums<S> &x)
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
            matrices_turned(v[k][n],
                            values + (uint32_t)(key * S::HD * 2 + ((chunk ^ (key & 7)) << 4)));
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
    const int r = w.a + p.lane;
    return __reduce_min_sync(~0u, r < w.b ? max(p.rows[r].end - OWN, 0) : INT_MAX);
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

/* Where the keys and the values of a job's rounds lie. */
struct rooms {
    uint32_t k, v;
};
template <class S> __device__ __forceinline__ rooms rooms_of(const place<S> &p, bool ahead)
{
    const uint32_t at = p.base + (ahead ? (uint32_t)S::AHEAD_AT : 0u);
    return {at, at + (ahead ? (uint32_t)(S::AHEAD * S::HD * 2) : (uint32_t)S::V_AT)};
}

/* Keys [a, b) of a round, of K and then of V. */
template <class S>
__device__ __forceinline__ void fetch_both(const tile_args &t, const int *cells, int a, int b,
                                           const rooms &to, bool commits)
{
#pragma unroll 1
    for (int side = 0; side < 2; side++) {
        fetch_round<S>(side ? t.a.v : t.a.k, cells, a, b, side ? to.v : to.k);
        if (commits && !side)
            fetch_commit();
    }
}

/* The queries and sinks, once for all walks of a block. */
template <class S>
__device__ __forceinline__ void wait_for_queries(const tile_args &t, const place<S> &p,
                                                 queries<S> &q, uint32_t &sinks)
{
    warm_places<S>(t, p);
    sinks = fetch_sinks(t, p);
    find_queries<S>(t, p, q);
    if (t.wait == WAIT_FOR_NEW)
        pdl_wait();
    load_queries<S>(q);
}

/* The first round's cells and, once for all walks of the block, the queries and sinks; behind them
 * the cells of the tail that is walked next, `ahead` keys. What is new is asked for after the wait,
 * and so are the values of many rows: their queries would have to wait for those, which have time.
 * Two groups: keys, and everything else. */
template <class S>
__device__ __forceinline__ void begin_walk(const tile_args &t, const place<S> &p, const job &j,
                                           int ahead, bool &first, uint32_t &sinks)
{
    const int n = min(S::G, j.to - j.from) * S::TK;
    const int old = first && t.wait == WAIT_FOR_NEW
                        ? max(0, min(n, first_new<S>(p, j.w) - j.from * S::TK)) : n;
    const rooms to = rooms_of<S>(p, false);
    queries<S> q;
    if constexpr (S::MI > 1) {
        fetch_round<S>(t.a.k, p.ring, 0, old, to.k);
        if (first)
            wait_for_queries<S>(t, p, q, sinks);
        if (old < n)
            fetch_round<S>(t.a.k, p.ring, old, n, to.k);
        fetch_commit();
        fetch_round<S>(t.a.v, p.ring, 0, n, to.v);
    } else {
        fetch_both<S>(t, p.ring, 0, old, to, old == n);
        if (first)
            wait_for_queries<S>(t, p, q, sinks);
        if (old < n)
            fetch_both<S>(t, p.ring, old, n, to, true);
    }
    if (ahead)
        fetch_both<S>(t, p.ring + 2 * S::KEYS, 0, ahead, rooms_of<S>(p, true), false);
    fetch_commit();
    if (first)
        store_queries<S>(p, q);
    first = false;
}

/* Finds the cells of a job's first two rounds, and of the tail that comes next, and asks for them.
 * What the rows see is found out while the first ones are on their way. */
template <class S>
__device__ __forceinline__ void start_walk(const tile_args &t, const place<S> &p, const job &j,
                                           const job &next, int ahead, const cells &c,
                                           round_extent<S> &e, bool &first, uint32_t &sinks)
{
    const int cell = find_round<S>(t, c, p.kv, j.from);
    e = round_extent_of<S>(t, p, j);
    keep_round<S>(p.ring, cell);
    if (j.from + S::G < j.to)
        keep_round<S>(p.ring + S::KEYS, find_round<S>(t, c, p.kv, j.from + S::G));
    if (ahead)
        keep_round<S>(p.ring + 2 * S::KEYS,
                      find_round<S>(t, cells_of<S>(t, p, next), p.kv, next.from));
    __syncthreads();
    begin_walk<S>(t, p, j, ahead, first, sinks);
}

/* Walks the tiles of a job as walk() of tile.cu does, in rounds. here: its cells were
 * asked for with the job before; ahead: so many keys of `then`, the next one, are with this one. */
template <class S>
__device__ __forceinline__ void walk_rounds(const tile_args &t, const place<S> &p, const job &j,
                                            bool here, const job &then, int ahead, bool &first,
                                            uint32_t &sinks, totals<S> &all)
{
    sums<S> x;
    const cells c = cells_of<S>(t, p, j);
    const rooms in = rooms_of<S>(p, here);
    int *ring = p.ring, cell = 0;
    round_extent<S> e;
#pragma unroll
    for (int mi = 0; mi < S::MI; mi++)
        clear<S>(x, mi, 0), clear<S>(x, mi, 1);
    if (here)
        e = round_extent_of<S>(t, p, j);
    else
        start_walk<S>(t, p, j, then, ahead, c, e, first, sinks);

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
            score_round<S>(p, in.k, s);
            if (t.a.softcap > 0)
                cap_scores<S>(t.a.scale, t.a.softcap, s);
            if (own * S::TK < j.w.last_lo || (own + 1) * S::TK > j.w.first_stop)
                mask<S>(e.lo, e.stop, k * S::TK + p.wn * S::KT * 8 + p.lane % 4 * 2, s);
            store_tops<S>(p, s);
        }
        __syncthreads(); /* nobody reads these keys any more, and all maxima are known */
        if (coming > 0) /* else nothing is to be asked for, in so much code */
            fetch_round<S>(t.a.k, more, 0, coming, in.k);
        fetch_commit();
        if (next + S::G < j.to)
            keep_round<S>(ring + turn * S::KEYS, cell);
        if (own < j.to)
            weigh_round<S>(t, p, k, e, x, s);
        fetch_wait<1>();
        __syncthreads(); /* the values are there, and the weights */
#pragma unroll 1
        for (int g = 0; g < min(S::G, j.to - k); g++) {
            add_tile<S>(p, in.v, g, x);
            bool over = false;
#pragma unroll
            for (int mi = 0; mi < S::MI; mi++)
                over |= e.ends[mi][0] == k + g + 1 || e.ends[mi][1] == k + g + 1;
            if (!__any_sync(~0u, over))
                continue;
            if constexpr (S::WHOLE)
                end_segments<S>(t, p, k + g + 1, e.stop, e.ends, x, true, all);
            else
                hand_segments<S>(t, p, k + g + 1, e.stop, e.ends, e.to, x);
        }
        __syncthreads(); /* nobody reads these values any more */
        if (coming > 0)
            fetch_round<S>(t.a.v, more, 0, coming, in.v);
        fetch_commit();
    }
}

/* Whether nothing but a tail can be a block's next job, which it then is. */
template <class S> __device__ __forceinline__ bool tail_is_next(const place<S> &p, course &c)
{
    if (c.u <= c.last || c.row < p.n || c.tail >= c.last_tail)
        return false;
    c.tail += c.stride;
    return tail_job<S>(p, c.tail - c.stride, c.now);
}

/* Walks all jobs of a block. The cells of a tail behind the first one are asked for with the first
 * one's, where there is room for them (ahead). */
template <class S>
__device__ __forceinline__ void walk_all(const tile_args &t, const place<S> &p, bool ahead,
                                         bool &first, uint32_t &sinks, totals<S> &all)
{
    course c = {};
    c.last = -1;
    c.stride = S::WHOLE ? 1 : (int)gridDim.x;
    c.last_tail = p.n;
    for (bool here = false; here || next_job<S>(t, p, S::WHOLE, c);) {
        const job now = c.now;
        int keys = 0;
        if (S::AHEAD > 0 && ahead && first && tail_is_next<S>(p, c))
            keys = (c.now.to - c.now.from) * S::TK;
        walk_rounds<S>(t, p, now, here, c.now, keys, first, sinks, all);
        here = keys > 0;
    }
}

/* ---- the kernel ----------------------------------------------------------------------------- */

/* Pages of the first request, and cells that rows see beside them, into the first cache, while it
 * is still looked up what rows see. */
template <class S>
__device__ __forceinline__ void fetch_pages(const tile_args &t, const place<S> &p, uint32_t room)
{
    const int32_t *from = NULL;
    if (threadIdx.x / 32 == 1 && p.lane * 32 < t.a.n_cols)
        from = t.a.pages + p.lane * 32; /* a line each */
    if (threadIdx.x / 32 == 2 && p.lane < p.n && t.a.n_expand)
        from = t.a.expand + (p.r0 + p.lane) * t.a.expand_w;
    if (from)
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(room + threadIdx.x * 4),
                     "l"(from)
                     : "memory");
}

/* Blocks (units of splits and tails, kv head, tile of rows, the last first). ahead: walk_all(). */
template <class S>
__global__ void __launch_bounds__(S::NT, S::BLOCKS)
    round_kernel(const __grid_constant__ tile_args t, bool ahead)
{
    __builtin_assume(threadIdx.x < S::NT); /* its parts are found without regard to signs */
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ seen rows[S::ROWS];
    place<S> p = place_of<S>(t, rows, shared, (int *)(shared + S::CELL_AT));
    pdl_trigger();
    if (t.wait == WAIT_FIRST)
        pdl_wait();
    fetch_pages<S>(t, p, p.base + S::TOP_AT);
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
    totals<S> all;
    if (S::WHOLE)
        start_totals<S>(p, all);
    walk_all<S>(t, p, ahead, first, sinks, all);
    if (first) { /* there was nothing to walk */
        if (!S::WHOLE && first_piece<S>(t, p, 0) >= pieces_of<S>(t, p))
            return; /* nor to join: makes room */
        sinks = fetch_sinks(t, p);
        pdl_wait();
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

/* Shared memory that a block has beside BYTES, and that the system takes. */
static constexpr int OF_ITS_OWN = 2048;

/* Blocks that are on the device at once, whatever of the kernel before is there: that one ends
 * without this one. */
template <class S> static int room_for(const struct kdev *d)
{
    return d->n_sm *
           min_int(S::BLOCKS, (int)(d->smem_max + OF_ITS_OWN) / (S::BYTES + OF_ITS_OWN));
}

template <int HD, int MI, int G, int BLOCKS> static void run(struct kdev *d, tile_args t)
{
    using S = round_form<HD, MI, G, BLOCKS, false>;
    using W = round_form<HD, MI, G, BLOCKS, true>;
    const size_t pieces = (size_t)(t.a.rows * t.a.n_head * HD / PIECE);
    const size_t bytes = pieces * (size_t)t.a.most_splits * PIECE_CHUNKS * sizeof *t.handed;
    const int most = bytes > ATTN_EXCHANGE_BYTES ? 0 : room_for<S>(d) / (t.a.n_kv * t.tiles);
    t.handed = (uint4 *)d->attn_exchange;
    const int jobs = min_int(t.units, max_int(most_splits(t), 1)) + t.each;
    if (t.units)
        t.units = min_int(jobs, most);
    const bool ahead =
        S::AHEAD > 0 && jobs > most && (size_t)(S::AHEAD_BYTES + OF_ITS_OWN) <= d->smem_max;
    dim3 grid((unsigned)max_int(1, t.units), (unsigned)t.a.n_kv, (unsigned)t.tiles);
    cuda_launch(d, t.units ? round_kernel<S> : round_kernel<W>, grid, S::NT,
                ahead ? S::AHEAD_BYTES : S::BYTES, t, ahead);
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
