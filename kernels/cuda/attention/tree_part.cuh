/* tree_part.cuh - the tree parts of rows in tile.cu: two warps walk the tree part of one row and kv
 * head, wait for the row's splits, and combine all its segments.
 *
 * Most of this code runs once a block, so latency and instruction fetches are its cost: both tiles
 * of a tree part are fetched and scored together, and few loops are unrolled.
 */
#pragma once

#include "kernels/cuda/attention/combine.cuh"

enum {
    /* Segments (of two heads) that a thread fetches in one group, and groups in flight: enough for
     * all segments of a window of 1024 keys. */
    FETCH_SEGMENTS = 9, FETCH_DEPTH = 2,
};
static_assert((int)FETCH_DEPTH == 2, "parts take turns");

/* A tree part is one tile of keys, half of which each warp scores, and at most 16 keys of the next
 * tile, which the first warp scores: it begins with the tile of the key TREE_KEYS before the row's
 * end. Each warp has half the dimensions of the values. The weights overwrite the keys. */
template <int HD_, bool FP8_> struct tree_config {
    static_assert((int)TREE_KEYS <= 17);
    enum : int {
        HD = HD_, MI = 1, NT = 64, ROWS = 16, FP8 = FP8_, CODES = 0,
        TK = HD > 128 ? 32 : 64,
        KEYS = TK + 16,
        CELLS = (KEYS + 31) / 32,    /* keys that a lane looks up */
        CHUNKS = HD / 8,             /* chunks of 16 bytes of a cell in shared memory */
        CELL_PARTS = HD / (FP8 ? 16 : 8), /* parts of 16 bytes of a cell in its pool */
        STEP = NT / CELL_PARTS, STEPS = FP8 ? 1 : 2, /* keys fetched at once; unrolled steps */
        KT = TK / 16,                /* n8 tiles of keys of a warp */
        DT = HD / 16,                /* n8 tiles of dimensions of a warp */
        P_PITCH = KEYS * 2 + 16,     /* bytes between rows of weights */
        V_AT = KEYS * HD * 2,
        MAXIMA_AT = 2 * V_AT,           /* maxima by tile, warp, row */
        L_AT = MAXIMA_AT + 2 * 2 * ROWS * 4, /* sums by warp, row */
        Q_AT = L_AT + 2 * ROWS * 4,
        EACH = HD / 4, HEADS = NT / EACH, /* combining: threads of a head, heads at once */
        PITCH = NT * 16,                  /* bytes between segments */
        PART_BYTES = 2 * FETCH_SEGMENTS * PITCH,
        HEAD_MAXIMA_AT = FETCH_DEPTH * PART_BYTES,
        SCALES_AT = HEAD_MAXIMA_AT + MAX_GROUP * 4,
    };
    static_assert(ROWS * P_PITCH <= V_AT && Q_AT % 128 == 0);
    static_assert(KEYS % (STEP * STEPS) == 0 && TK % (STEP * STEPS) == 0 &&
                  32 % (STEP * STEPS) == 0);
};

/* Bytes of shared memory for a tree part and the combination. */
template <class S> static size_t tree_bytes(const tile_args &t)
{
    const int walk = S::Q_AT + t.a.group * S::HD * 2;
    const int combine = S::SCALES_AT + t.a.group * t.a.most_splits * (int)sizeof(float4);
    return (size_t)max_int(walk, combine);
}

/* ---- the keys of a tree part ---------------------------------------------------------------- */

/* The tree part of a row. Of place<S> only the members that the combination needs are set. */
template <class S> struct tree_part {
    place<S> p;
    visible_keys x;
    int from, warp;      /* first key of the first tile; this thread's warp */
    bool two;            /* the second tile has keys */
    int cell[S::CELLS];  /* of keys from + lane, from + lane + 32, ... */
};

template <class S>
__device__ __forceinline__ tree_part<S> tree_of(const tile_args &t, int r, unsigned char *shared)
{
    tree_part<S> y;
    place<S> &p = y.p;
    p.kv = (int)blockIdx.y, p.r0 = r, p.lane = (int)threadIdx.x % 32;
    p.shared = shared, p.base = shared_at(shared);
    const visible_keys x = y.x = visible_to<S::TK>(t, r);
    y.warp = (int)threadIdx.x / 32;
    y.from = x.tree_tile * S::TK;
    y.two = x.end > y.from + S::TK;
    const cell_lookup c = {t.a.pages + (size_t)x.req * (size_t)t.a.n_cols,
                     t.a.expand + (size_t)r * (size_t)t.a.expand_w, max(x.lo, y.from), x.end, x.hi};
#pragma unroll
    for (int i = 0; i < S::CELLS; i++)
        y.cell[i] = cell_of<S::FP8>(t, c, p.kv, y.from + i * 32 + p.lane);
    return y;
}

/* Where the thread's part of a key is in shared memory. */
template <class S> __device__ __forceinline__ uint32_t tree_part_at(const tree_part<S> &y, int key)
{
    const int chunk = chunk_of<S>((int)threadIdx.x % S::CELL_PARTS);
    return y.p.base + (uint32_t)(key * S::HD * 2 + ((chunk ^ (key & 7)) << 4));
}

/* Starts the copies of the cells. */
template <class S>
__device__ __forceinline__ void fetch_tree(const tile_args &t, const tree_part<S> &y)
{
    const int thread = (int)threadIdx.x, part = thread % S::CELL_PARTS, kv = y.p.kv;
    const char *k = part_of<S>(t.a.k, kv, part), *v = part_of<S>(t.a.v, kv, part);
    const int scales = scales_after<S>(t, kv, part);
#pragma unroll 1
    for (int first = 0; first < (y.two ? S::KEYS : S::TK); first += S::STEPS * S::STEP)
#pragma unroll
        for (int i = 0; i < S::STEPS; i++) {
            const int key = first + i * S::STEP + thread / S::CELL_PARTS;
            int cell = y.cell[0];
#pragma unroll
            for (int j = 1; j < S::CELLS; j++)
                cell = first < j * 32 ? cell : y.cell[j];
            cell = __shfl_sync(~0u, cell, key % 32);
            const uint32_t at = tree_part_at<S>(y, key);
            copy_part<S>(t, at, k, scales, cell);
            copy_part<S>(t, at + S::V_AT, v, scales, cell);
        }
    cp_async_commit();
}

/* FP8: widens what this thread has fetched, which has arrived. */
template <class S> __device__ __forceinline__ void widen_tree(const tree_part<S> &y)
{
    const int keys = y.two ? S::KEYS : S::TK;
    if constexpr (S::FP8)
#pragma unroll 1
        for (int key = (int)threadIdx.x / S::CELL_PARTS; key < keys; key += S::STEP) {
            const uint32_t at = tree_part_at<S>(y, key);
            fp8_cell_widen(at, scale_of(y.p.kv));
            fp8_cell_widen(at + S::V_AT, scale_of(y.p.kv));
        }
}

/* Copies the row's queries to shared memory as bf16. */
template <class S>
__device__ __forceinline__ void fetch_tree_queries(const tile_args &t, const place<S> &p)
{
    const attn_args &a = t.a;
    const size_t first =
        ((size_t)p.r0 * (size_t)a.n_head + (size_t)(p.kv * a.group)) * S::HD;
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < a.group * S::CHUNKS; i += S::NT) {
        const int row = i / S::CHUNKS, chunk = i % S::CHUNKS;
        const int at = S::Q_AT + row * S::HD * 2 + ((chunk ^ (row & 7)) << 4);
        if (a.q_bf16) {
            cp_async16(p.base + (uint32_t)at, a.q_bf16 + first + i * 8, 0);
            continue;
        }
        const float4 *q = (const float4 *)(a.q + first + i * 8);
        const float4 x = __ldcg(q), z = __ldcg(q + 1);
        *(uint4 *)(p.shared + at) = make_uint4(bf16_two(x.x, x.y), bf16_two(x.z, x.w),
                                               bf16_two(z.x, z.y), bf16_two(z.z, z.w));
    }
}

/* ---- multiplying ---------------------------------------------------------------------------- */

/* s = q k for this warp's keys of the first tile, and for the 16 keys of the second. */
template <class S>
__device__ __forceinline__ void score_tree(const tile_args &t, const tree_part<S> &y,
                                           float (&s)[S::KT + 2][4])
{
    const int lane = y.p.lane, row = min(lane % 16, t.a.group - 1), key = lane % 8 + lane / 16 * 8;
    const uint32_t q = y.p.base + (uint32_t)(S::Q_AT + row * S::HD * 2);
    const uint32_t k = y.p.base + (uint32_t)((y.warp * S::KT * 8 + key) * S::HD * 2);
    const uint32_t more = y.p.base + (uint32_t)((S::TK + key) * S::HD * 2);
#pragma unroll
    for (int n = 0; n < S::KT + 2; n++)
        s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0;
#pragma unroll 1
    for (int i = 0; i < S::HD / 64; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const uint32_t on = (uint32_t)(i * 128 + (((2 * j + lane / 8 % 2) ^ (key & 7)) << 4));
            uint32_t a[4], b[4];
            ldmatrix_x4(a, q + (uint32_t)(i * 128 + (((2 * j + lane / 16) ^ (row & 7)) << 4)));
#pragma unroll
            for (int n = 0; n <= S::KT / 2; n++) {
                ldmatrix_x4(b, (n < S::KT / 2 ? k + (uint32_t)(n * 16 * S::HD * 2) : more) + on);
                mma_bf16(s[2 * n], a, b[0], b[1]);
                mma_bf16(s[2 * n + 1], a, b[2], b[3]);
            }
        }
}

/* Sets the scores of keys that the row does not see to -inf; for the second warp, all keys of the
 * second tile. */
template <class S>
__device__ __forceinline__ void mask_tree(const tile_args &t, const tree_part<S> &y,
                                          float (&s)[S::KT + 2][4])
{
    const int first = y.from + y.p.lane % 4 * 2, lo = y.x.lo;
#pragma unroll
    for (int n = 0; n < S::KT + 2; n++) {
        const bool second = n >= S::KT;
        const int stop = second && y.warp ? 0 : y.x.end;
        const int at = first + (second ? S::TK + (n - S::KT) * 8 : (y.warp * S::KT + n) * 8);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int j = at + i % 2;
            s[n][i] = j < lo || j >= stop ? -INFINITY : s[n][i];
        }
    }
}

/* A thread's two packed rows: the running maxima, and the factors that rescale the sums of the
 * first tile before the second is added. */
struct tree_sums {
    float m[2] = {}, by[2] = {};
};

/* s of N n8 tiles of keys becomes weights; returns their sum. */
template <int N>
__device__ __forceinline__ float exp_scores(float (*s)[4], int h, float factor, float m)
{
    const float at = m == -INFINITY ? 0.f : m * factor;
    float l = 0;
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 2 * h; i < 2 * h + 2; i++)
            l += s[n][i] = exp2_approx(fmaf(s[n][i], factor, -at));
    return l;
}

/* Scores become weights in shared memory. The sums are rescaled as in softmax_tile(), one tile
 * after the other. */
template <class S>
__device__ __forceinline__ void softmax_tree(const tile_args &t, const tree_part<S> &y,
                                             float (&s)[S::KT + 2][4], tree_sums &x)
{
    const int lane = y.p.lane, row = lane / 4;
    float *tops = (float *)(y.p.shared + S::MAXIMA_AT), *sums = (float *)(y.p.shared + S::L_AT);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (8 * h >= t.a.group)
            continue;
        const float one = largest_of<S::KT>(s, h), two = largest_of<2>(s + S::KT, h);
        if (lane % 4 == 0) {
            tops[y.warp * S::ROWS + row + 8 * h] = one;
            tops[(2 + y.warp) * S::ROWS + row + 8 * h] = two;
        }
    }
    __syncthreads(); /* all maxima are stored, and no thread reads the keys any more */
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (8 * h >= t.a.group) /* these packed rows have no head */
            continue;
        const float *top = tops + row + 8 * h;
        const float m = fmaxf(top[0], top[S::ROWS]);
        x.m[h] = fmaxf(m, top[2 * S::ROWS]);
        x.by[h] = m == x.m[h] ? 1.f : exp2_approx((m - x.m[h]) * t.factor);
        const float l = exp_scores<S::KT>(s, h, t.factor, m);
        float sum = fmaf(l, x.by[h], exp_scores<2>(s + S::KT, h, t.factor, x.m[h]));
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        if (lane % 4 == 0)
            sums[y.warp * S::ROWS + row + 8 * h] = sum;
        unsigned char *p = y.p.shared + (row + 8 * h) * S::P_PITCH + lane % 4 * 4;
#pragma unroll
        for (int n = 0; n < S::KT + 2; n++)
            if (n < S::KT || !y.warp)
                *(uint32_t *)(p + (n < S::KT ? y.warp * S::KT + n : S::KT + n) * 16) =
                    bf16_two(s[n][2 * h], s[n][2 * h + 1]);
    }
}

/* acc = weights v, for this warp's dimensions */
template <class S>
__device__ __forceinline__ void add_tree(const tree_part<S> &y, const tree_sums &x,
                                         float (&acc)[S::DT][4])
{
    const int lane = y.p.lane;
    const uint32_t w = y.p.base + (uint32_t)(lane % 16 * S::P_PITCH + lane / 16 * 16);
    const uint32_t v = y.p.base + (uint32_t)(S::V_AT + lane % 16 * S::HD * 2);
#pragma unroll
    for (int n = 0; n < S::DT; n++)
        acc[n][0] = acc[n][1] = acc[n][2] = acc[n][3] = 0;
#pragma unroll 1
    for (int k = 0; k < S::TK / 16 + y.two; k++) {
        if (k == S::TK / 16) /* the second tile */
#pragma unroll
            for (int n = 0; n < S::DT; n++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    acc[n][i] *= x.by[i / 2];
        uint32_t a[4];
        ldmatrix_x4(a, w + (uint32_t)(k * 32));
#pragma unroll
        for (int n = 0; n < S::DT / 2; n++) {
            const int chunk = y.warp * S::DT + 2 * n + lane / 16;
            uint32_t b[4];
            ldmatrix_x4_trans(b, v + (uint32_t)(k * 16 * S::HD * 2 + ((chunk ^ (lane & 7)) << 4)));
            mma_bf16(acc[2 * n], a, b[0], b[1]);
            mma_bf16(acc[2 * n + 1], a, b[2], b[3]);
        }
    }
}

/* Stores the segment after those of the splits, in the layout of store_segment(). */
template <class S>
__device__ __forceinline__ void store_tree_segment(const tile_args &t, const tree_part<S> &y,
                                                   const tree_sums &x, const float (&acc)[S::DT][4])
{
    const float *sums = (const float *)(y.p.shared + S::L_AT);
    const int at = splits_of<S::TK>(y.x), lane = y.p.lane;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = lane / 4 + 8 * h;
        if (row >= t.a.group)
            continue;
        const size_t head =
            (size_t)y.p.r0 * (size_t)t.a.n_head + (size_t)(y.p.kv * t.a.group + row);
        const size_t part = head * (size_t)t.a.most_splits + (size_t)at;
        float *out = t.a.part + part * S::HD + y.warp * S::DT * 8 + lane % 4 * 4;
#pragma unroll
        for (int n = 0; n < S::DT; n += 2)
            *(float4 *)(out + n * 8) = make_float4(acc[n][2 * h], acc[n][2 * h + 1],
                                                   acc[n + 1][2 * h], acc[n + 1][2 * h + 1]);
        if (y.warp == 0 && lane % 4 == 0)
            t.ml[part] = make_float2(x.m[h] == -INFINITY ? -INFINITY : x.m[h] * t.factor,
                                     sums[row] + sums[S::ROWS + row]);
    }
}

/* Scores, weights, weighted values; the segment is stored. */
template <class S>
__device__ __forceinline__ void walk_tree(const tile_args &t, const tree_part<S> &y)
{
    float s[S::KT + 2][4], acc[S::DT][4];
    tree_sums x;
    cp_async_wait<0>();
    widen_tree<S>(y);
    __syncthreads(); /* all cells and queries have arrived */
    score_tree<S>(t, y, s);
    if (t.a.softcap > 0)
        softcap_tiles<S::KT + 2>(t.a.scale, t.a.softcap, s);
    mask_tree<S>(t, y, s);
    softmax_tree<S>(t, y, s, x);
    __syncthreads(); /* all weights are stored */
    add_tree<S>(y, x, acc);
    store_tree_segment<S>(t, y, x, acc);
}

/* ---- combining segments --------------------------------------------------------------------- */

/* The next segments that a thread fetches: of the heads h and h + HEADS of the block, from segment
 * k on. Only this thread reads what it fetches, so no barrier is needed. */
struct segment_fetch {
    const float *at, *first; /* of head h: segment k, segment 0 */
    int h, k, n;
};
template <class S>
__device__ __forceinline__ void fetch_segments(const tile_args &t, segment_fetch &f, uint32_t to)
{
    const size_t apart = (size_t)(S::HEADS * t.a.most_splits) * S::HD;
    if (f.h < t.a.group) {
        const float *second = f.at + apart;
        const int more = f.h + S::HEADS < t.a.group ? f.n : 0;
#pragma unroll
        for (int i = 0; i < FETCH_SEGMENTS; i++) {
            cp_async16_if(to + 2 * i * S::PITCH, f.at + i * S::HD, f.k + i < f.n);
            cp_async16_if(to + (2 * i + 1) * S::PITCH, second + i * S::HD, f.k + i < more);
        }
        f.k += FETCH_SEGMENTS, f.at += FETCH_SEGMENTS * S::HD;
        if (f.k >= f.n) {
            f.k = 0, f.h += 2 * S::HEADS;
            f.at = f.first += 2 * apart;
        }
    }
    cp_async_commit();
}

/* Scales that combine the n segments of each head, and the heads' maxima; one head a warp. ml: of
 * the first head; x: the first element of ml that this thread needs. */
template <class S>
__device__ __forceinline__ void find_scales(const tile_args &t, int warp, const float2 *ml,
                                            float2 x, int n, float4 *scales, float *tops)
{
    const int lane = (int)threadIdx.x % 32;
#pragma unroll 1
    for (int h = warp; h < t.a.group; h += S::NT / 32) {
        const int first = h * t.a.most_splits;
        float m = -INFINITY;
#pragma unroll 1
        for (int k = lane; k - lane < n; k += 32) {
            if (k >= 32 || h > warp)
                x = __ldcg(ml + first + min(k, n - 1));
            const float4 j = combine_scales_of(k < n ? x : make_float2(-INFINITY, 0), m);
            if (k < n)
                scales[first + k] = j;
        }
        tops[h] = m;
    }
}

/* Four dimensions of a head, and the head's sum of weights. */
struct combined_part {
    float4 v;
    float l;
};
__device__ __forceinline__ void add_segment(combined_part &x, float4 by, float4 y)
{
    x.l = fmaf(x.l, by.x, by.z);
    x.v.x = fmaf(x.v.x, by.x, y.x * by.y), x.v.y = fmaf(x.v.y, by.x, y.y * by.y);
    x.v.z = fmaf(x.v.z, by.x, y.z * by.y), x.v.w = fmaf(x.v.w, by.x, y.w * by.y);
}

/* Discards the cache lines of n segments of each head, from `part` on, all of which have been
 * read. */
template <class S>
__device__ __forceinline__ void discard_segments(const float *part, int heads, int n, int pitch)
{
    enum { LINE = 32, LINES = S::HD / LINE };
    const int thread = (int)threadIdx.x;
    part += (thread / LINES) * S::HD + thread % LINES * LINE;
#pragma unroll 1
    for (int h = 0; h < heads; h++, part += pitch * S::HD)
#pragma unroll 1
        for (int k = thread / LINES; k < n; k += S::NT / LINES)
            discard(part + (k - thread / LINES) * S::HD);
}

/* Combines the row's heads from their segments: a thread has four dimensions (first_dim()) of a
 * head, the block as many heads as it has threads for, and a second head each. Kept short, because
 * fetching code that runs once takes as long as running it. */
template <class S>
__device__ __forceinline__ void combine_row(const tile_args &t, const tree_part<S> &y,
                                            uint32_t sinks)
{
    const place<S> &p = y.p;
    const int thread = (int)threadIdx.x, own = thread / S::EACH, lane = thread % S::EACH;
    const int n = any_key(y.x) ? splits_of<S::TK>(y.x) + 1 : 0;
    const int group = t.a.group, pitch = t.a.most_splits;
    const size_t row = (size_t)p.r0, head = row * (size_t)t.a.n_head + (size_t)(p.kv * group);
    const size_t first = head * (size_t)pitch;
    const uint32_t to = p.base + (uint32_t)(thread * 16);
    const float4 *parts = (const float4 *)p.shared + thread;
    float *tops = (float *)(p.shared + S::HEAD_MAXIMA_AT);
    float4 *scales = (float4 *)(p.shared + S::SCALES_AT);
    const float2 *own_ml =
        t.ml + first + min(y.warp, group - 1) * pitch + min(p.lane, n - 1);
    const float2 ml = n ? __ldcg(own_ml) : make_float2(-INFINITY, 0);
    segment_fetch f = {};
    f.at = f.first = t.a.part + (first + (size_t)(own * pitch)) * S::HD + lane * 4;
    f.h = own, f.n = n;
#pragma unroll 1
    for (int i = 0; i < FETCH_DEPTH; i++)
        fetch_segments<S>(t, f, to + (uint32_t)(i * S::PART_BYTES));
    find_scales<S>(t, y.warp, t.ml + first, ml, n, scales, tops);
    __syncthreads();
    int part = 0;
    /* The threads of a warp make the same iterations. */
#pragma unroll 1
    for (int h = own; h - own < group; h += 2 * S::HEADS) {
        const int in[2] = {min(h, group - 1), min(h + S::HEADS, group - 1)};
        combined_part x = {}, z = {};
#pragma unroll 1
        for (int from = 0; from < n; from += FETCH_SEGMENTS) {
            const float4 *s = parts + part * 2 * FETCH_SEGMENTS * S::NT;
            cp_async_wait<FETCH_DEPTH - 1>();
#pragma unroll 3
            for (int k = 0; k < min((int)FETCH_SEGMENTS, n - from); k++) {
                add_segment(x, scales[in[0] * pitch + from + k], s[2 * k * S::NT]);
                add_segment(z, scales[in[1] * pitch + from + k], s[(2 * k + 1) * S::NT]);
            }
            fetch_segments<S>(t, f, to + (uint32_t)(part * S::PART_BYTES));
            part ^= 1;
        }
#pragma unroll 1
        for (int i = h, at = in[0]; i < h + 2 * S::HEADS; i += S::HEADS, at = in[1], x = z) {
            const int q = p.kv * group + at, to_dim = q * S::HD + first_dim(lane);
            const float sink = sink_of(t, p, sinks, q);
            float by = 0;
            if (n)
                by = final_scale(t, sink, row, q, tops[at], x.l, lane == 0 && at == i);
            else if (t.a.lse && lane == 0)
                t.a.lse[head + (size_t)at] = -INFINITY;
            if (at < i)
                continue;
            put_output<2>(t, row, to_dim, {x.v.x * by, x.v.y * by});
            put_output<2>(t, row, to_dim + 8, {x.v.z * by, x.v.w * by});
        }
    }
    __syncthreads(); /* no thread reads the segments any more */
    discard_segments<S>(t.a.part + first * S::HD, group, n, pitch);
}

/* ---- the kernel ----------------------------------------------------------------------------- */

/* The tree parts of rows whose splits tile_kernel() walks, while that kernel may still run; then
 * the combination of each row's heads from both kernels' segments. Blocks (1, kv head, row). */
template <class S>
__global__ void __launch_bounds__(S::NT, 4) tree_part_kernel(const __grid_constant__ tile_args t)
{
    extern __shared__ __align__(1024) unsigned char shared[];
    const tree_part<S> y = tree_of<S>(t, (int)blockIdx.z, shared);
    const uint32_t sinks = fetch_sinks(t, y.p);
    fetch_tree_queries<S>(t, y.p);
    fetch_tree<S>(t, y);
    if (any_key(y.x))
        walk_tree<S>(t, y);
    cp_async_wait<0>();
    pdl_trigger(); /* any earlier, the next kernel's blocks would compete with these */
    pdl_wait(); /* for the splits of tile_kernel() */
    __syncthreads(); /* the segment is stored by all threads, and no thread reads the cells */
    combine_row<S>(t, y, sinks);
}
