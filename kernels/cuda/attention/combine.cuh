/* combine.cuh - the ends of segments in tile.cu and decode.cu: how a warp
 * closes them, how blocks hand them to each other, what a block has to walk, and how a row's
 * segments are joined in their order.
 */
#ifndef AERIE_CUDA_ATTN_JOIN_CUH
#define AERIE_CUDA_ATTN_JOIN_CUH

#include "kernels/cuda/attention/tile.cuh"

/* ---- outputs -------------------------------------------------------------------------------- */

/* Where output i of a row lies packed; little code where it is not what prompts and trees have. */
static __device__ __noinline__ uint16_t *place_of_output(const row_format &f, uint16_t *x, int row, int i)
{
    return packed_at(f, x, row, i);
}
__device__ __forceinline__ uint16_t *packed_output(const tile_args &t, size_t row, int i)
{
    const row_format &f = t.a.pack_as;
    if (f.kind == ROW_TILED)
        return t.a.pack_to + row * (size_t)f.kp + tile_place(i);
    return place_of_output(f, t.a.pack_to, (int)row, i);
}

/* V (1, 2 or 4) successive outputs of a row, from i on, a multiple of V. */
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

/* ---- handing segments over ------------------------------------------------------------------ */

/* Blocks that are all on the device at once hand segments over as words that are their own
 * flags (publish(), cuda.h), and who has read them makes them 0 again. So no kernel has to end
 * first.
 *
 * A head falls into pieces of 64 dimensions, which are joined apart: of each segment 16 chunks of
 * dimensions, and one with its maximum and its sum. */
enum {
    PIECE = 64,
    PIECE_CHUNKS = PIECE / 4 + 1,
    PIECE_PITCH = PIECE_CHUNKS * 4,
    AT_ONCE = 48,                                  /* segments of a piece: those of 4096 keys */
    PIECE_ROOM = AT_ONCE * (PIECE_CHUNKS * 16 + 32), /* shared memory of those who join one */
};

/* The first segment of a piece, the next ones behind it. */
template <class S>
__device__ __forceinline__ uint4 *piece_of(const tile_args &t, int row, int head, int part)
{
    const int at = (row * t.a.n_head + head) * (S::HD / PIECE) + part; /* < ATTN_EXCHANGE_BYTES */
    return t.handed + (unsigned)(at * t.a.most_splits * PIECE_CHUNKS);
}

__device__ __forceinline__ void show_four(uint32_t *p, float x, float y, float z, float w)
{
    asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(p),
                 "r"(~__float_as_uint(x)), "r"(~__float_as_uint(y)), "r"(~__float_as_uint(z)),
                 "r"(~__float_as_uint(w))
                 : "memory");
}

/* A thread has pairs of dimensions, 8 apart, and hands two of them over together. Which dimension
 * then lies in place i of a piece: */
template <class S> __device__ __forceinline__ int dim_at(int i)
{
    return S::DT == 1 ? i : (i & ~15) + (i & 2) * 4 + (i & 12) / 2 + (i & 1);
}

/* A thread's part of a segment: its dimensions, and once a piece its maximum and its sum. */
template <class S>
__device__ __forceinline__ void hand_over(const place<S> &p, uint32_t *to, int mi, int h, float m,
                                          float l, const sums<S> &x)
{
    const int first = p.wn * S::DT * 8, lane = p.lane % 4;
#pragma unroll
    for (int n = 0; n < S::DT; n += 2)
        if constexpr (S::DT == 1)
            publish_two(to + first % PIECE + n * 8 + lane * 2, x.acc[mi][n][2 * h],
                     x.acc[mi][n][2 * h + 1]);
        else
            show_four(to + first % PIECE + n * 8 + lane * 4, x.acc[mi][n][2 * h],
                      x.acc[mi][n][2 * h + 1], x.acc[mi][n + 1][2 * h],
                      x.acc[mi][n + 1][2 * h + 1]);
    if (first % PIECE == 0 && lane == 0)
        show_four(to + PIECE, m, l, 0.f, 0.f);
}

/* n chunks into shared memory, as they come; PIECE threads. */
__device__ __forceinline__ void take_over(uint4 *from, int n, uint4 *to)
{
    enum { MANY = 9 };
#pragma unroll 1
    for (int i = (int)(threadIdx.x % PIECE); i < n; i += MANY * PIECE) {
        const int mine = (n - i + PIECE - 1) / PIECE;
        uint4 v[MANY], *at = from + i;
        bool missing;
        asm volatile("" : "+l"(at)); /* the others lie at a known distance */
        do {
            missing = false;
#pragma unroll
            for (int j = 0; j < MANY; j++)
                if (j < mine)
                    v[j] = poll_four(at + j * PIECE);
#pragma unroll
            for (int j = 0; j < MANY; j++)
                missing |= j < mine && !all_published(v[j]);
        } while (missing);
#pragma unroll
        for (int j = 0; j < MANY; j++)
            if (j < mine) {
                to[i + j * PIECE] = make_uint4(~v[j].x, ~v[j].y, ~v[j].z, ~v[j].w);
                at[j * PIECE] = make_uint4(0, 0, 0, 0);
            }
    }
}

/* ---- the end of a segment ------------------------------------------------------------------- */

/* The sums of weights: of a half's four threads, then of the two halves. */
template <class S>
__device__ __forceinline__ void add_halves(const place<S> &p, const sums<S> &x,
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
                for (int g = 0; g < 2; g++)
                    l[mi][h] += room[g * S::ROWS + packed_row<S>(p, mi, h)];
    }
}

/* Segments that are written out lie as their writers have them: of 16 dimensions, fours of two and
 * of the two 8 behind them. The first dimension of a four: */
__device__ __forceinline__ int first_part(int four) { return four / 4 * 16 + four % 4 * 2; }

template <class S>
__device__ __forceinline__ void write_out(const tile_args &t, const place<S> &p, int mi, int h,
                                          int at, float m, float l, const sums<S> &x)
{
    size_t head = (size_t)(p.r0 + p.row[mi][h]) * (size_t)t.a.n_head + (size_t)p.head[mi][h];
    size_t part = head * (size_t)t.a.most_splits + (size_t)at;
    float *out = t.a.part + part * S::HD + p.wn * S::DT * 8 + p.lane % 4 * 4;
#pragma unroll
    for (int n = 0; n < S::DT; n += 2) {
        const float2 y = make_float2(x.acc[mi][n][2 * h], x.acc[mi][n][2 * h + 1]),
                     z = make_float2(x.acc[mi][n + 1][2 * h], x.acc[mi][n + 1][2 * h + 1]);
        if constexpr (S::WIDE)
            *(float4 *)(out + n * 8) = make_float4(y.x, y.y, z.x, z.y);
        else /* four registers in a row would cost spills */
            *(float2 *)(out + n * 8) = y, *(float2 *)(out + n * 8 + 2) = z;
    }
    if (p.wn == 0 && p.lane % 4 == 0)
        t.ml[part] = make_float2(m, l);
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
    write_out<S>(t, p, mi, h, at, m, l, x);
}

/* The number of a row's segment that ends before `tile`. */
template <int TK> __device__ __forceinline__ int segment_before(const seen &r, int tile)
{
    return tile > r.tail ? splits_of<TK>(r)
                         : ((tile - 1) >> r.shift) - ((r.lo / TK) >> r.shift);
}

/* Ends what ends before `tile`. ends: the tile before which a row's segment ends, INT_MAX: none. */
template <class S>
__device__ __forceinline__ void end_segments(const tile_args &t, const place<S> &p, int tile,
                                             const int (&stop)[S::MI][2], int (&ends)[S::MI][2],
                                             sums<S> &x, bool whole, totals<S> &all)
{
    float l[S::MI][2];
    add_halves<S>(p, x, l);
#pragma unroll
    for (int mi = 0; mi < S::MI; mi++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            if (ends[mi][h] == tile) {
                const seen &r = p.rows[p.row[mi][h]];
                close_segment<S>(t, p, mi, h, segment_before<S::TK>(r, tile), l[mi][h], x, whole,
                                 all);
                clear<S>(x, mi, h);
                ends[mi][h] = next_end<S::TK>(r, tile, stop[mi][h]);
            }
}

/* Hands over what ends before `tile`. to: where the segments of a thread's rows go, the next one of
 * a row behind the last. */
template <class S>
__device__ __forceinline__ void hand_segments(const tile_args &t, const place<S> &p, int tile,
                                              const int (&stop)[S::MI][2], int (&ends)[S::MI][2],
                                              uint32_t (&to)[S::MI][2], sums<S> &x)
{
    float l[S::MI][2];
    bool more = false;
    add_halves<S>(p, x, l);
#pragma unroll
    for (int mi = 0; mi < S::MI; mi++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            if (ends[mi][h] != tile)
                continue;
            const float m = x.m[mi][h] == -INFINITY ? -INFINITY : x.m[mi][h] * t.factor;
            hand_over<S>(p, (uint32_t *)(t.handed + to[mi][h]), mi, h, m, l[mi][h], x);
            more |= tile * S::TK < stop[mi][h];
        }
    if (!__any_sync(~0u, more))
        return; /* mostly */
#pragma unroll
    for (int mi = 0; mi < S::MI; mi++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            if (ends[mi][h] == tile) {
                clear<S>(x, mi, h);
                to[mi][h] += PIECE_CHUNKS;
                ends[mi][h] = next_end<S::TK>(p.rows[max(p.row[mi][h], 0)], tile, stop[mi][h]);
            }
}

/* ---- what a block has to walk --------------------------------------------------------------- */

/* Tiles [from, to) for the rows of w: their common part, or the tail of one row. */
struct job {
    pass w;
    bool tail;
    int from, to;
};

template <class S>
__device__ __forceinline__ cells cells_of(const tile_args &t, const place<S> &p, const job &j)
{
    const pass &w = j.w;
    return {t.a.pages + (size_t)w.req * (size_t)t.a.n_cols,
            t.a.expand + (size_t)(p.r0 + w.a) * (size_t)t.a.expand_w, w.lo,
            min(w.stop, j.to * S::TK), w.b - w.a == 1 ? p.rows[w.a].hi : INT_MAX};
}

/* What a thread's rows see of a job: keys [lo, stop), and the tile before which their segment ends,
 * INT_MAX: none. */
template <class S> struct extent {
    int lo[S::MI][2], stop[S::MI][2], ends[S::MI][2];
};

/* Of row r, whose segment ends are asked for: (lo, stop, ends). */
template <class S>
__device__ __forceinline__ int3 extent_of_row(const place<S> &p, const job &j, int r)
{
    if (r < j.w.a || r >= j.w.b)
        return make_int3(INT_MAX, 0, INT_MAX);
    const seen &y = p.rows[r];
    const int lo = j.tail ? max(y.lo, y.tail * S::TK) : y.lo, stop = j.tail ? y.end : y.stop;
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

struct course {
    job now;
    int row, tail, last_tail; /* next row of a pass, next row with a tail of its own, last + 1 */
    int u, last;               /* splits that are left of the pass, every stride-th */
    int from, to, shift, stride;
    int splits;                /* of the passes before */
};

/* A tile's splits, and behind them its rows' tails, in a row: a block takes number blockIdx.x and
 * every stride-th after it. Its first one of those that follow the first n: how far behind them. */
__device__ __forceinline__ int own_after(const course &c, int n)
{
    int skip = (int)blockIdx.x - n;
    while (skip < 0) /* seldom more than once: a division is long */
        skip += c.stride;
    return skip;
}

/* pass_of(), for at most 32 rows, in little code: a lane looks at each. */
static __device__ __noinline__ pass pass_of_few(const seen *rows, int a, int b)
{
    const int r = a + (int)threadIdx.x % 32;
    const seen x = rows[min(r, b - 1)]; /* the last one again and again */
    const bool any = x.lo < x.stop;
    pass p = {a, b};
    p.lo = __reduce_min_sync(~0u, any ? x.lo : INT_MAX);
    p.last_lo = __reduce_max_sync(~0u, any ? x.lo : 0);
    p.stop = __reduce_max_sync(~0u, any ? x.stop : 0);
    p.first_stop = __reduce_min_sync(~0u, any ? x.stop : INT_MAX);
    p.shift = __reduce_max_sync(~0u, any ? x.shift : 0);
    p.req = __reduce_max_sync(~0u, any ? x.req : -1);
    const bool apart = any && (x.req != p.req || x.hi < x.stop);
    p.good = b - a == 1 || (p.last_lo <= p.first_stop && !__any_sync(~0u, apart));
    return p;
}

/* pass_from(), likewise. */
__device__ __forceinline__ pass pass_from_few(const seen *rows, int a, int n)
{
    if (n - a == 1)
        return pass_of_one(rows, a);
    const pass p = pass_of_few(rows, a, n);
    if (p.good)
        return p;
    int b = a + 1;
    while (pass_of_few(rows, a, b + 1).good) /* all of them together are not */
        b++;
    return pass_of_few(rows, a, b);
}

/* Starts a pass: all of it for a block that does everything, else this block's splits. */
template <class S>
__device__ __forceinline__ void begin_pass(const tile_args &t, const place<S> &p, bool whole,
                                           course &c)
{
    pass w;
    if constexpr (S::ROWS <= 32)
        w = pass_from_few(p.rows, c.row, p.n);
    else
        w = pass_from(p.rows, c.row, p.n);
    c.now.w = w;
    c.row = w.b;
    c.u = 0, c.last = -1;
    if (w.lo < w.stop) {
        c.from = w.lo / S::TK, c.to = (w.stop - 1) / S::TK + 1;
        c.shift = whole ? 30 : w.shift;
        while (t.longer && ((c.to - 1) >> c.shift) - (c.from >> c.shift) >= c.stride &&
               c.shift < 30)
            c.shift++;
        const int first = c.from >> c.shift;
        c.last = (c.to - 1) >> c.shift;
        c.u = first + own_after(c, c.splits);
        c.splits += c.last - first + 1;
    }
    if (c.row >= p.n)
        c.tail = own_after(c, c.splits);
}

__device__ __forceinline__ bool done(const course &c, int rows)
{
    return c.u > c.last && c.row >= rows && c.tail >= c.last_tail;
}

/* The tail of row r, if it is walked apart. */
template <class S> __device__ __forceinline__ bool tail_job(const place<S> &p, int r, job &j)
{
    const seen y = p.rows[r];
    const int lo = max(y.lo, y.tail * S::TK);
    j = {{r, r + 1, lo, y.end, lo, y.end, 0, y.req, true}, true, lo / S::TK,
         (y.end - 1) / S::TK + 1};
    return y.stop < y.end;
}

template <class S>
__device__ __forceinline__ bool next_job(const tile_args &t, const place<S> &p, bool whole,
                                         course &c)
{
    for (;;) {
        if (c.u <= c.last) {
            c.now.tail = false;
            c.now.from = max(c.from, c.u << c.shift);
            c.now.to = c.u == c.last ? c.to : min(c.to, (c.u + 1) << c.shift);
            c.u += c.stride;
            return true;
        }
        if (c.row < p.n) {
            begin_pass<S>(t, p, whole, c);
            continue;
        }
        if (c.tail >= c.last_tail)
            return false;
        c.tail += c.stride;
        if (tail_job<S>(p, c.tail - c.stride, c.now))
            return true;
    }
}

template <class S>
__device__ __forceinline__ void start_totals(const place<S> &p, totals<S> &all)
{
    if constexpr (!S::HELD)
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
                by = closing(t, sink, row, p.head[mi][h], all.m[mi][h], all.l[mi][h], writes);
            else if (t.a.lse && writes)
                t.a.lse[at] = -INFINITY;
            const int out = p.head[mi][h] * S::HD + p.wn * S::DT * 8 + p.lane % 4 * 2;
#pragma unroll
            for (int n = 0; n < S::DT; n++) {
                int i = (mi * S::DT + n) * 4 + 2 * h;
                put_output<2>(t, row, out + n * 8, {all.at(i) * by, all.at(i + 1) * by});
            }
        }
}

/* ---- joining -------------------------------------------------------------------------------- */

/* How 32 segments, a lane each, join those before them, whose maximum is m and then that of all:
 * (what was before is multiplied by, what this one is, its part of the sum of weights). Maxima may
 * be compared in any order, so that this needs no lane to wait for another's exponentials. */
__device__ __forceinline__ float4 joints_of(float2 ml, float &m)
{
    const int lane = (int)threadIdx.x % 32;
    float top = ml.x;
#pragma unroll
    for (int i = 1; i < 32; i *= 2) /* its own again, where there is no lane before */
        top = fmaxf(top, __shfl_up_sync(~0u, top, (unsigned)i));
    top = fmaxf(top, m);
    const float last = __shfl_up_sync(~0u, top, 1);
    const joint j = joint_of(lane ? last : m, ml.x);
    m = __shfl_sync(~0u, top, 31);
    return make_float4(j.before, j.now, ml.y * j.now, 0);
}

/* Those who join a piece wait for each other. */
__device__ __forceinline__ void meet_at_piece()
{
    asm volatile("bar.sync %0, %1;" ::"r"(1 + (int)threadIdx.x / PIECE), "n"((int)PIECE)
                 : "memory");
}

/* A piece from its n segments, as they come: a dimension a thread. room: PIECE_ROOM bytes. */
__device__ __forceinline__ float join_piece(uint4 *from, int n, unsigned char *room, float &m,
                                            float &l)
{
    const int lane = (int)(threadIdx.x % 32);
    const float *segments = (const float *)room;
    float4 *joints =
        (float4 *)(room + AT_ONCE * PIECE_PITCH * 4) + threadIdx.x % PIECE / 32 * AT_ONCE;
    float v = 0;
    m = -INFINITY, l = 0;
#pragma unroll 1
    for (; n > 0; n -= AT_ONCE, from += AT_ONCE * PIECE_CHUNKS) {
        const int some = min((int)AT_ONCE, n);
        take_over(from, some * PIECE_CHUNKS, (uint4 *)room);
        meet_at_piece();
#pragma unroll 1
        for (int i = lane; i - lane < some; i += 32) {
            const float2 ml = i < some ? *(const float2 *)(segments + i * PIECE_PITCH + PIECE)
                                       : make_float2(-INFINITY, 0);
            const float4 j = joints_of(ml, m);
            if (i < AT_ONCE)
                joints[i] = j;
        }
        __syncwarp();
        const float *s = segments + threadIdx.x % PIECE;
#pragma unroll 4
        for (int i = 0; i < some; i++, s += PIECE_PITCH) {
            const float4 c = joints[i];
            l = fmaf(l, c.x, c.z);
            v = fmaf(v, c.x, *s * c.y);
        }
        meet_at_piece();
    }
    return v;
}

/* Those of a tile and kv head. */
template <class S> __device__ __forceinline__ int pieces_of(const tile_args &t, const place<S> &p)
{
    return p.n * t.a.group * (S::HD / PIECE);
}

/* The first one of a block and of its threads that join it, if there are so many. Where pieces are
 * few a block has one. Where they are many few blocks join many at once, so that the others make
 * room for the next kernel, which has weights to fetch: the last blocks, which walked least. */
template <class S>
__device__ __forceinline__ int first_piece(const tile_args &t, const place<S> &p, int own)
{
    const int blocks = (int)gridDim.x, x = (int)blockIdx.x;
    return 2 * pieces_of<S>(t, p) <= blocks ? x + own * blocks
                                            : (blocks - 1 - x) * (S::NT / PIECE) + own;
}

/* The block's share of them. */
template <class S>
__device__ __forceinline__ void join_pieces(const tile_args &t, const place<S> &p, uint32_t sinks)
{
    constexpr int PARTS = S::HD / PIECE, TOGETHER = S::NT / PIECE;
    static_assert(TOGETHER * PIECE_ROOM <= S::Q_AT);
    const int own = (int)(threadIdx.x / PIECE), d = (int)(threadIdx.x % PIECE);
    unsigned char *room = p.shared + own * PIECE_ROOM;
#pragma unroll 1
    for (int i = first_piece<S>(t, p, own); i < pieces_of<S>(t, p);
         i += TOGETHER * (int)gridDim.x) {
        const int packed = (int)((unsigned)i / PARTS), part = i - packed * PARTS;
        const int r = row_of(t, packed), row = p.r0 + r;
        const int head = p.kv * t.a.group + packed - r * t.a.group;
        const seen x = p.rows[r];
        const int n = any_key(x) ? splits_of<S::TK>(x) + 1 : 0;
        float m, l, by = 0;
        const float v = join_piece(piece_of<S>(t, row, head, part), n, room, m, l);
        const bool writes = part == 0 && d == 0;
        const float sink = sink_of(t, p, sinks, head);
        if (n)
            by = closing(t, sink, (size_t)row, head, m, l, writes);
        else if (t.a.lse && writes)
            t.a.lse[(size_t)row * (size_t)t.a.n_head + (size_t)head] = -INFINITY;
        put_output<1>(t, (size_t)row, head * S::HD + part * PIECE + dim_at<S>(d), {v * by});
    }
}

#endif
