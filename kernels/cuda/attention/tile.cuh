/* tile.cuh - what a warp does with one tile of keys on the tensor cores (mma.sync): scores, online
 * softmax, weighted values. How segments end and are combined: combine.cuh.
 */
#pragma once

#include "kernels/cuda/attention/keys.cuh"

/* ---- a warp's rows -------------------------------------------------------------------------- */

/* Sums over one segment: weighted values, maximum score, and the sums of weights by half tiles. */
template <class S> struct sums {
    float acc[S::MI][S::DT][4], m[S::MI][2], l[S::MI][2][S::LG];
};

/* Combined sums of the segments so far; the first REG_TOTALS of a thread in registers. */
template <class S> struct totals {
    float m[S::MI][2], l[S::MI][2], acc[S::REG_TOTALS ? S::REG_TOTALS : 1];
    float *rest; /* the others: element i at i * NT + thread */
    __device__ __forceinline__ float &at(int i)
    {
        if (i < S::REG_TOTALS)
            return acc[i];
        return rest[(i - S::REG_TOTALS) * S::NT + (int)threadIdx.x];
    }
};

template <class S> __device__ __forceinline__ void clear(sums<S> &x, int mi, int h)
{
    x.m[mi][h] = -INFINITY;
#pragma unroll
    for (int g = 0; g < S::LG; g++)
        x.l[mi][h][g] = 0;
#pragma unroll
    for (int n = 0; n < S::DT; n++)
        x.acc[mi][n][2 * h] = x.acc[mi][n][2 * h + 1] = 0;
}

/* Factors that combine a segment (sm, sl, sacc) with those before it (m, l, acc). Maxima are
 * exponents of two. */
struct combine_scale {
    float m, before, now;
};
__device__ __forceinline__ combine_scale combine_scale_of(float m, float sm)
{
    combine_scale j;
    j.m = fmaxf(m, sm);
    float at = j.m == -INFINITY ? 0.f : j.m;
    j.before = exp2_approx(m - at);
    j.now = exp2_approx(sm - at);
    return j;
}
__device__ __forceinline__ float combined(const combine_scale &j, float x, float s)
{
    return fmaf(x, j.before, s * j.now);
}

/* Not inlined: long, and rarely needed. */
static __device__ __noinline__ float log_of_sum(float m, float l)
{
    return (float)((double)m * 0.69314718055994530942 + log((double)l));
}

/* The factor of the combined values, which divides them by the sum of weights, sink included.
 * Writes the row's lse if `writes`. sink: the head's; unused if there are no sinks. */
__device__ __forceinline__ float final_scale(const tile_args &t, float sink, size_t row, int head,
                                             float m, float l, bool writes)
{
    float keep = 1;
    if (t.a.sinks.p) {
        sink *= 1.44269504088896341f;
        float top = fmaxf(m, sink);
        keep = exp2_approx(m - top);
        l = fmaf(l, keep, exp2_approx(sink - top));
        m = top;
    }
    if (writes && t.a.lse)
        t.a.lse[row * (size_t)t.a.n_head + (size_t)head] = log_of_sum(m, l);
    return keep / l;
}

/* The position of a block in the problem, and what each of its threads knows of its packed rows. */
template <class S> struct place {
    int tile, kv, r0, n;  /* tile of rows, kv head, first row, rows */
    const visible_keys *rows; /* (n) */
    uint32_t base;        /* address of shared memory */
    unsigned char *shared;
    int *ring;            /* (RING_TILES, TK): cells of the tiles ahead */
    int wm, wn, lane;     /* the warp's group, its number in the group */
    int row[S::MI][2], head[S::MI][2]; /* row within the tile, -1: none; query head */
};

template <class S> __device__ __forceinline__ int packed_row(const place<S> &p, int mi, int h)
{
    return (p.wm * S::MI + mi) * 16 + p.lane / 4 + 8 * h;
}

template <class S>
__device__ __forceinline__ place<S> place_of(const tile_args &t, const visible_keys *rows,
                                             unsigned char *shared, int *ring)
{
    const int tid = (int)threadIdx.x;
    place<S> p;
    p.tile = t.tiles - 1 - (int)blockIdx.z;
    p.kv = (int)blockIdx.y, p.r0 = p.tile * t.tile_rows, p.n = min(t.tile_rows, t.a.rows - p.r0);
    p.rows = rows, p.shared = shared, p.ring = ring;
    p.base = shared_at(shared);
    p.lane = tid % 32;
    if constexpr (S::WGMMA) /* warps that multiply together are successive */
        p.wm = tid / 32 % S::WM, p.wn = tid / 32 / S::WM;
    else
        p.wn = tid / 32 % S::WARPS, p.wm = tid / 32 / S::WARPS;
#pragma unroll
    for (int mi = 0; mi < S::MI; mi++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int at = packed_row<S>(p, mi, h), r = row_of(t, at);
            p.row[mi][h] = r < p.n ? r : -1;
            p.head[mi][h] = p.kv * t.a.group + at - r * t.a.group;
        }
    return p;
}

/* Sinks are weights, which no earlier kernel has brought into a cache: their bits are fetched long
 * before they are converted and used. */
__device__ __forceinline__ uint32_t fetch_sink(const tile_args &t, int head)
{
    return t.a.sinks.p ? raw_at(t.a.sinks, head) : 0;
}

/* The sinks of the query heads of the block's kv head, one a lane. */
template <class S>
__device__ __forceinline__ uint32_t fetch_sinks(const tile_args &t, const place<S> &p)
{
    return fetch_sink(t, p.kv * t.a.group + p.lane - row_of(t, p.lane) * t.a.group);
}

/* The sink of query head `head` among them; the whole warp calls. */
template <class S>
__device__ __forceinline__ float sink_of(const tile_args &t, const place<S> &p, uint32_t sinks,
                                         int head)
{
    return raw_value(t.a.sinks.type, __shfl_sync(~0u, sinks, head - p.kv * t.a.group));
}

__device__ __forceinline__ uint32_t bf16x2_at(const float *x)
{
    const float2 v = *(const float2 *)x;
    return bf16_two(v.x, v.y);
}
__device__ __forceinline__ uint32_t bf16x2_at(const uint16_t *x) { return *(const uint32_t *)x; }

/* Loads the queries of a thread's packed rows from x, as bf16. */
template <class S, class T>
__device__ __forceinline__ void load_queries(const tile_args &t, const place<S> &p, const T *x,
                                             uint32_t (&q)[S::MI][S::HD / 16][4])
{
#pragma unroll
    for (int mi = 0; mi < S::MI; mi++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const T *from = x + ((size_t)(p.r0 + max(p.row[mi][h], 0)) * (size_t)t.a.n_head +
                                 (size_t)p.head[mi][h]) * S::HD + p.lane % 4 * 2;
            const bool any = packed_row<S>(p, mi, h) - p.lane / 4 < p.n * t.a.group;
#pragma unroll
            for (int k = 0; k < S::HD / 16; k++)
                q[mi][k][h] = q[mi][k][2 + h] = 0;
            if (!any) /* none of the warp's eight packed rows is a row */
                continue;
#pragma unroll
            for (int k = 0; k < S::HD / 16; k++)
#pragma unroll
                for (int half = 0; half < 2; half++)
                    if (p.row[mi][h] >= 0)
                        q[mi][k][2 * half + h] = bf16x2_at(from + k * 16 + half * 8);
        }
}

/* ---- a tile of keys ------------------------------------------------------------------------- */

/* s = q k for this warp's keys */
template <class S>
__device__ __forceinline__ void score_tile(const uint32_t (&q)[S::MI][S::HD / 16][4], uint32_t keys,
                                           int wn, int lane, float (&s)[S::MI][S::KT][4])
{
#pragma unroll
    for (int mi = 0; mi < S::MI; mi++)
#pragma unroll
        for (int n = 0; n < S::KT; n++)
            s[mi][n][0] = s[mi][n][1] = s[mi][n][2] = s[mi][n][3] = 0;
#pragma unroll
    for (int k = 0; k < S::HD / 16; k++)
#pragma unroll
        for (int n = 0; n < S::KT / 2; n++) {
            uint32_t b[4];
            int key = wn * S::KT * 8 + n * 16 + lane % 8 + lane / 16 * 8;
            ldmatrix_x4(b, keys + chunk_at<S>(key, 2 * k + lane / 8 % 2));
#pragma unroll
            for (int mi = 0; mi < S::MI; mi++) {
                mma_bf16(s[mi][2 * n], q[mi][k], b[0], b[1]);
                mma_bf16(s[mi][2 * n + 1], q[mi][k], b[2], b[3]);
            }
        }
}

/* cap tanh(s scale / cap) */
template <int N>
__device__ __forceinline__ void softcap_tiles(float scale, float cap, float (&s)[N][4])
{
    const float by = 2.88539008177792681f * scale / cap;
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[n][i] = cap - __fdividef(2 * cap, exp2_approx(s[n][i] * by) + 1);
}
template <class S>
__device__ __forceinline__ void softcap_scores(float scale, float cap, float (&s)[S::MI][S::KT][4])
{
#pragma unroll
    for (int mi = 0; mi < S::MI; mi++)
        softcap_tiles<S::KT>(scale, cap, s[mi]);
}

/* Sets the scores of keys that a row does not see to -inf. */
template <class S>
__device__ __forceinline__ void mask(const int (&lo)[S::MI][2], const int (&stop)[S::MI][2], int j0,
                                     float (&s)[S::MI][S::KT][4])
{
#pragma unroll
    for (int mi = 0; mi < S::MI; mi++)
#pragma unroll
        for (int n = 0; n < S::KT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int j = j0 + n * 8 + i % 2;
                if (j < lo[mi][i / 2] || j >= stop[mi][i / 2])
                    s[mi][n][i] = -INFINITY;
            }
}

/* The largest score of a packed row (half h of its m16 tile) over N n8 tiles of keys, for the lanes
 * of that row. */
template <int N> __device__ __forceinline__ float largest_of(const float (*s)[4], int h)
{
    float m = fmaxf(s[0][2 * h], s[0][2 * h + 1]);
#pragma unroll
    for (int n = 1; n < N; n++)
        m = fmaxf(m, fmaxf(s[n][2 * h], s[n][2 * h + 1]));
    m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
    return fmaxf(m, __shfl_xor_sync(~0u, m, 2));
}
template <class S>
__device__ __forceinline__ float largest_score(const float (&s)[S::KT][4], int h)
{
    return largest_of<S::KT>(s, h);
}

/* Online softmax: s becomes the weights exp(s - m), and the sums so far are rescaled to the new
 * maxima. */
template <class S>
__device__ __forceinline__ void softmax_tile(const tile_args &t, const place<S> &p, sums<S> &x,
                                             float (&s)[S::MI][S::KT][4])
{
    float top[S::MI][2], by[S::MI][2];
    bool moved = false;
#pragma unroll
    for (int mi = 0; mi < S::MI; mi++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            top[mi][h] = largest_score<S>(s[mi], h);
        }
    if constexpr (S::WN > 1) {
        float *scratch = (float *)(p.shared + S::MAX_AT);
        if (p.lane % 4 == 0)
#pragma unroll
            for (int mi = 0; mi < S::MI; mi++)
#pragma unroll
                for (int h = 0; h < 2; h++)
                    scratch[p.wn * S::ROWS + packed_row<S>(p, mi, h)] = top[mi][h];
        sync_group<S>(p.wm);
#pragma unroll
        for (int mi = 0; mi < S::MI; mi++)
#pragma unroll
            for (int h = 0; h < 2; h++)
#pragma unroll
                for (int w = 0; w < S::WN; w++)
                    top[mi][h] = fmaxf(top[mi][h], scratch[w * S::ROWS + packed_row<S>(p, mi, h)]);
    }
#pragma unroll
    for (int mi = 0; mi < S::MI; mi++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float was = x.m[mi][h], m = fmaxf(was, top[mi][h]);
            by[mi][h] = was == m ? 1.f : exp2_approx((was - m) * t.factor);
            moved |= was != m && was != -INFINITY; /* sums of no key are 0 */
            x.m[mi][h] = m;
            float at = m == -INFINITY ? 0.f : m * t.factor;
#pragma unroll
            for (int g = 0; g < S::LG; g++) {
                float l = 0;
#pragma unroll
                for (int n = g * S::LT; n < (g + 1) * S::LT; n++)
#pragma unroll
                    for (int i = 2 * h; i < 2 * h + 2; i++)
                        l += s[mi][n][i] = exp2_approx(fmaf(s[mi][n][i], t.factor, -at));
                x.l[mi][h][g] = fmaf(x.l[mi][h][g], by[mi][h], l);
            }
        }
    if (!__any_sync(~0u, moved)) /* all factors are 1 */
        return;
#pragma unroll
    for (int mi = 0; mi < S::MI; mi++)
#pragma unroll
        for (int n = 0; n < S::DT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                x.acc[mi][n][i] *= by[mi][i / 2];
}

/* Where the weights of a packed row and 8 keys are in shared memory, for groups of several
 * warps. */
template <class S> __device__ __forceinline__ uint32_t weights_at(int row, int chunk)
{
    int turn = S::TK == 64 ? row & 7 : row >> 1 & 3;
    return (uint32_t)(S::P_AT + row * S::TK * 2 + ((chunk ^ turn) << 4));
}

template <class S>
__device__ __forceinline__ void share_weights(const place<S> &p, const float (&s)[S::MI][S::KT][4])
{
#pragma unroll
    for (int mi = 0; mi < S::MI; mi++)
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int n = 0; n < S::KT; n++)
                *(uint32_t *)(p.shared + weights_at<S>(packed_row<S>(p, mi, h), p.wn * S::KT + n) +
                              p.lane % 4 * 4) = bf16_two(s[mi][n][2 * h], s[mi][n][2 * h + 1]);
    sync_group<S>(p.wm);
}

/* acc += weights v, for this warp's dimensions */
template <class S>
__device__ __forceinline__ void add_values(const place<S> &p, uint32_t values,
                                           const float (&s)[S::MI][S::KT][4], sums<S> &x)
{
#pragma unroll
    for (int k = 0; k < S::TK / 16; k++) {
        uint32_t w[S::MI][4];
#pragma unroll
        for (int mi = 0; mi < S::MI; mi++)
            if constexpr (S::WN == 1) {
                w[mi][0] = bf16_two(s[mi][2 * k][0], s[mi][2 * k][1]);
                w[mi][1] = bf16_two(s[mi][2 * k][2], s[mi][2 * k][3]);
                w[mi][2] = bf16_two(s[mi][2 * k + 1][0], s[mi][2 * k + 1][1]);
                w[mi][3] = bf16_two(s[mi][2 * k + 1][2], s[mi][2 * k + 1][3]);
            } else {
                int row = (p.wm * S::MI + mi) * 16 + p.lane % 16;
                ldmatrix_x4(w[mi], p.base + weights_at<S>(row, 2 * k + p.lane / 16));
            }
#pragma unroll
        for (int n = 0; n < S::DT / 2; n++) {
            uint32_t b[4];
            int key = k * 16 + p.lane % 16, chunk = p.wn * S::DT + 2 * n + p.lane / 16;
            ldmatrix_x4_trans(b, values + chunk_at<S>(key, chunk));
#pragma unroll
            for (int mi = 0; mi < S::MI; mi++) {
                mma_bf16(x.acc[mi][2 * n], w[mi], b[0], b[1]);
                mma_bf16(x.acc[mi][2 * n + 1], w[mi], b[2], b[3]);
            }
        }
    }
}
