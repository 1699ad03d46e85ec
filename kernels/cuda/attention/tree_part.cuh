/* tree_part.cuh - the ends of trees' rows in tile.cu: two warps walk a row's tail of
 * one kv head, wait for the splits of the row, and join its segments.
 *
 * All of it is run once, and costs what its latencies and those of its instructions do: both tiles
 * of a tail are asked for and weighed at once, and little is unrolled.
 */
#ifndef AERIE_CUDA_ATTN_TAIL_CUH
#define AERIE_CUDA_ATTN_TAIL_CUH

#include "kernels/cuda/attention/combine.cuh"

enum {
    MOST_GROUP = 16, /* heads that share keys */
    /* Segments of two heads that a thread asks for at once, and how many such parts are under way:
     * those of a window of 1024 keys all are. */
    JOIN_PART = 9, JOIN_AHEAD = 2,
};
static_assert((int)JOIN_AHEAD == 2, "parts take turns");

/* A tail is a tile of keys, of which each warp has scores for a half, and at most 16 keys of the
 * next one, which are the first warp's: it begins with the tile of the key OWN before its end. Of
 * the values each warp has half the dimensions. The weights lie where the keys were. */
template <int HD_> struct tail_form {
    static_assert((int)OWN <= 17);
    enum : int {
        HD = HD_, MI = 1, NT = 64, ROWS = 16,
        TK = HD > 128 ? 32 : 64,
        KEYS = TK + 16,
        CELLS = (KEYS + 31) / 32,    /* keys of a lane */
        CHUNKS = HD / 8,             /* 16 bytes each, of a cell */
        STEP = NT / CHUNKS, STEPS = 2, /* keys that are fetched at once, and how often in a row */
        KT = TK / 16,                /* tiles of 8 keys of a warp */
        DT = HD / 16,                /* tiles of 8 dimensions of a warp */
        P_PITCH = KEYS * 2 + 16,     /* bytes from row to row of the weights */
        V_AT = KEYS * HD * 2,
        TOP_AT = 2 * V_AT,           /* maxima by tile, warp, row */
        L_AT = TOP_AT + 2 * 2 * ROWS * 4, /* sums by warp, row */
        Q_AT = L_AT + 2 * ROWS * 4,
        EACH = HD / 4, HEADS = NT / EACH, /* joining: threads of a head, heads */
        PITCH = NT * 16,             /* bytes from segment to segment */
        PART_BYTES = 2 * JOIN_PART * PITCH,
        TOPS_AT = JOIN_AHEAD * PART_BYTES,
        JOINTS_AT = TOPS_AT + MOST_GROUP * 4,
    };
    static_assert(ROWS * P_PITCH <= V_AT && Q_AT % 128 == 0);
};

/* Bytes of shared memory of a tail and its join. */
template <class S> static size_t tail_bytes(const tile_args &t)
{
    const int walk = S::Q_AT + t.a.group * S::HD * 2;
    const int join = S::JOINTS_AT + t.a.group * t.a.most_splits * (int)sizeof(float4);
    return (size_t)max_int(walk, join);
}

/* ---- a tail's keys -------------------------------------------------------------------------- */

/* A tail: of which row, and what it sees. Of place<S> it has what a join needs. */
template <class S> struct tail {
    place<S> p;
    seen x;
    int from, warp;      /* the first key of its first tile */
    bool two;            /* it has keys of a second one */
    int cell[S::CELLS];  /* of keys lane, lane + 32, ... from there on */
};

template <class S>
__device__ __forceinline__ tail<S> tail_of(const tile_args &t, int r, unsigned char *shared)
{
    tail<S> y;
    place<S> &p = y.p;
    p.kv = (int)blockIdx.y, p.r0 = r, p.lane = (int)threadIdx.x % 32;
    p.shared = shared, p.base = (uint32_t)__cvta_generic_to_shared(shared);
    const seen x = y.x = seen_by<S::TK>(t, r);
    y.warp = (int)threadIdx.x / 32;
    y.from = x.tail * S::TK;
    y.two = x.end > y.from + S::TK;
    const cells c = {t.a.pages + (size_t)x.req * (size_t)t.a.n_cols,
                     t.a.expand + (size_t)r * (size_t)t.a.expand_w, max(x.lo, y.from), x.end, x.hi};
#pragma unroll
    for (int i = 0; i < S::CELLS; i++)
        y.cell[i] = cell_of(t, c, p.kv, y.from + i * 32 + p.lane);
    return y;
}

/* Its cells. */
template <class S>
__device__ __forceinline__ void fetch_tail(const tile_args &t, const tail<S> &y)
{
    const int thread = (int)threadIdx.x, chunk = thread % S::CHUNKS;
    const char *k = (const char *)t.a.k + chunk * 16, *v = (const char *)t.a.v + chunk * 16;
    const uint32_t to = y.p.base + (uint32_t)(thread / S::CHUNKS * S::HD * 2);
#pragma unroll 1
    for (int first = 0; first < (y.two ? S::KEYS : S::TK); first += S::STEPS * S::STEP)
#pragma unroll
        for (int i = 0; i < S::STEPS; i++) {
            const int key = first + i * S::STEP + thread / S::CHUNKS;
            int cell = y.cell[0];
#pragma unroll
            for (int j = 1; j < S::CELLS; j++)
                cell = first < j * 32 ? cell : y.cell[j];
            cell = __shfl_sync(~0u, cell, key % 32);
            const size_t from = (size_t)(unsigned)max(cell, 0) * (S::HD * 2);
            const uint32_t at = to + (uint32_t)((first + i * S::STEP) * S::HD * 2 +
                                                ((chunk ^ (key & 7)) << 4));
            fetch16(at, k + from, cell);
            fetch16(at + S::V_AT, v + from, cell);
        }
    fetch_commit();
}

/* The row's queries, as bf16. */
template <class S>
__device__ __forceinline__ void fetch_tail_queries(const tile_args &t, const place<S> &p)
{
    const attn_args &a = t.a;
    const size_t first =
        ((size_t)p.r0 * (size_t)a.n_head + (size_t)(p.kv * a.group)) * S::HD;
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < a.group * S::CHUNKS; i += S::NT) {
        const int row = i / S::CHUNKS, chunk = i % S::CHUNKS;
        const int at = S::Q_AT + row * S::HD * 2 + ((chunk ^ (row & 7)) << 4);
        if (a.q_bits) {
            fetch16(p.base + (uint32_t)at, a.q_bits + first + i * 8, 0);
            continue;
        }
        const float4 *q = (const float4 *)(a.q + first + i * 8);
        const float4 x = __ldcg(q), z = __ldcg(q + 1);
        *(uint4 *)(p.shared + at) = make_uint4(pair_of(x.x, x.y), pair_of(x.z, x.w),
                                               pair_of(z.x, z.y), pair_of(z.z, z.w));
    }
}

/* ---- multiplying ---------------------------------------------------------------------------- */

/* s = q k for this warp's keys of the first tile, and for the 16 of the second. */
template <class S>
__device__ __forceinline__ void score_tail(const tile_args &t, const tail<S> &y,
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
            matrices(a, q + (uint32_t)(i * 128 + (((2 * j + lane / 16) ^ (row & 7)) << 4)));
#pragma unroll
            for (int n = 0; n <= S::KT / 2; n++) {
                matrices(b, (n < S::KT / 2 ? k + (uint32_t)(n * 16 * S::HD * 2) : more) + on);
                multiply(s[2 * n], a, b[0], b[1]);
                multiply(s[2 * n + 1], a, b[2], b[3]);
            }
        }
}

/* Keys that the row does not see score -inf: of the second tile all those of the second warp. */
template <class S>
__device__ __forceinline__ void mask_tail(const tile_args &t, const tail<S> &y,
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

/* What is known of a thread's two rows: running maxima, and what was summed before the second tile
 * is multiplied by. */
struct tail_sums {
    float m[2] = {}, by[2] = {};
};

/* s of N tiles of 8 keys become weights; their sum. */
template <int N>
__device__ __forceinline__ float weigh_some(float (*s)[4], int h, float factor, float m)
{
    const float at = m == -INFINITY ? 0.f : m * factor;
    float l = 0;
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 2 * h; i < 2 * h + 2; i++)
            l += s[n][i] = exp2_of(fmaf(s[n][i], factor, -at));
    return l;
}

/* Scores become weights in shared memory. What a row sums up is as in weigh(), one tile after the
 * other. */
template <class S>
__device__ __forceinline__ void weigh_tail(const tile_args &t, const tail<S> &y,
                                           float (&s)[S::KT + 2][4], tail_sums &x)
{
    const int lane = y.p.lane, row = lane / 4;
    float *tops = (float *)(y.p.shared + S::TOP_AT), *sums = (float *)(y.p.shared + S::L_AT);
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
    __syncthreads(); /* all maxima are known, and nobody reads the keys any more */
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (8 * h >= t.a.group) /* no head is there */
            continue;
        const float *top = tops + row + 8 * h;
        const float m = fmaxf(top[0], top[S::ROWS]);
        x.m[h] = fmaxf(m, top[2 * S::ROWS]);
        x.by[h] = m == x.m[h] ? 1.f : exp2_of((m - x.m[h]) * t.factor);
        const float l = weigh_some<S::KT>(s, h, t.factor, m);
        float sum = fmaf(l, x.by[h], weigh_some<2>(s + S::KT, h, t.factor, x.m[h]));
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        if (lane % 4 == 0)
            sums[y.warp * S::ROWS + row + 8 * h] = sum;
        unsigned char *p = y.p.shared + (row + 8 * h) * S::P_PITCH + lane % 4 * 4;
#pragma unroll
        for (int n = 0; n < S::KT + 2; n++)
            if (n < S::KT || !y.warp)
                *(uint32_t *)(p + (n < S::KT ? y.warp * S::KT + n : S::KT + n) * 16) =
                    pair_of(s[n][2 * h], s[n][2 * h + 1]);
    }
}

/* acc = weights v, for this warp's dimensions */
template <class S>
__device__ __forceinline__ void add_tail(const tail<S> &y, const tail_sums &x,
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
        matrices(a, w + (uint32_t)(k * 32));
#pragma unroll
        for (int n = 0; n < S::DT / 2; n++) {
            const int chunk = y.warp * S::DT + 2 * n + lane / 16;
            uint32_t b[4];
            matrices_turned(b, v + (uint32_t)(k * 16 * S::HD * 2 + ((chunk ^ (lane & 7)) << 4)));
            multiply(acc[2 * n], a, b[0], b[1]);
            multiply(acc[2 * n + 1], a, b[2], b[3]);
        }
    }
}

/* The segment, behind those of the splits, as write_out() has it. */
template <class S>
__device__ __forceinline__ void write_tail(const tile_args &t, const tail<S> &y,
                                           const tail_sums &x, const float (&acc)[S::DT][4])
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

/* Scores, weights, values; its segment is written out. */
template <class S> __device__ __forceinline__ void walk_tail(const tile_args &t, const tail<S> &y)
{
    float s[S::KT + 2][4], acc[S::DT][4];
    tail_sums x;
    fetch_wait<0>();
    __syncthreads(); /* all is there */
    score_tail<S>(t, y, s);
    if (t.a.softcap > 0)
        cap_some<S::KT + 2>(t.a.scale, t.a.softcap, s);
    mask_tail<S>(t, y, s);
    weigh_tail<S>(t, y, s, x);
    __syncthreads(); /* the weights are there */
    add_tail<S>(y, x, acc);
    write_tail<S>(t, y, x, acc);
}

/* ---- joining -------------------------------------------------------------------------------- */

__device__ __forceinline__ void ask16(uint32_t to, const float *from, bool there)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.s32 p, %2, 0;\n"
                 "@p cp.async.cg.shared.global [%0], [%1], 16;\n}" ::"r"(to), "l"(from),
                 "r"((int)there)
                 : "memory");
}

/* What a thread asks for next: of the heads h and h + HEADS of the block's, from segment k on;
 * all of it only that thread reads, so that nobody has to meet. */
struct feed {
    const float *at, *first; /* of head h: segment k, segment 0 */
    int h, k, n;
};
template <class S>
__device__ __forceinline__ void ask_part(const tile_args &t, feed &f, uint32_t to)
{
    const size_t apart = (size_t)(S::HEADS * t.a.most_splits) * S::HD;
    if (f.h < t.a.group) {
        const float *second = f.at + apart;
        const int more = f.h + S::HEADS < t.a.group ? f.n : 0;
#pragma unroll
        for (int i = 0; i < JOIN_PART; i++) {
            ask16(to + 2 * i * S::PITCH, f.at + i * S::HD, f.k + i < f.n);
            ask16(to + (2 * i + 1) * S::PITCH, second + i * S::HD, f.k + i < more);
        }
        f.k += JOIN_PART, f.at += JOIN_PART * S::HD;
        if (f.k >= f.n) {
            f.k = 0, f.h += 2 * S::HEADS;
            f.at = f.first += 2 * apart;
        }
    }
    fetch_commit();
}

/* How n segments of each head join those before them, and their heads' maxima; a head a warp.
 * ml: of the first head; x: what the thread needs of it first. */
template <class S>
__device__ __forceinline__ void find_joints(const tile_args &t, int warp, const float2 *ml,
                                            float2 x, int n, float4 *joints, float *tops)
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
            const float4 j = joints_of(k < n ? x : make_float2(-INFINITY, 0), m);
            if (k < n)
                joints[first + k] = j;
        }
        tops[h] = m;
    }
}

/* Four dimensions of a head, and its sum of weights. */
struct joined_part {
    float4 v;
    float l;
};
__device__ __forceinline__ void join_part(joined_part &x, float4 by, float4 y)
{
    x.l = fmaf(x.l, by.x, by.z);
    x.v.x = fmaf(x.v.x, by.x, y.x * by.y), x.v.y = fmaf(x.v.y, by.x, y.y * by.y);
    x.v.z = fmaf(x.v.z, by.x, y.z * by.y), x.v.w = fmaf(x.v.w, by.x, y.w * by.y);
}

/* n segments of each head, the first ones from `part` on, are read. */
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

/* The row's heads from their segments: four dimensions a thread (first_part()) of as many heads at
 * a time as the block has threads for, and as many again. What is run once takes as long to fetch
 * as to run, so there is little code. */
template <class S>
__device__ __forceinline__ void join_row(const tile_args &t, const tail<S> &y, uint32_t sinks)
{
    const place<S> &p = y.p;
    const int thread = (int)threadIdx.x, own = thread / S::EACH, lane = thread % S::EACH;
    const int n = any_key(y.x) ? splits_of<S::TK>(y.x) + 1 : 0;
    const int group = t.a.group, pitch = t.a.most_splits;
    const size_t row = (size_t)p.r0, head = row * (size_t)t.a.n_head + (size_t)(p.kv * group);
    const size_t first = head * (size_t)pitch;
    const uint32_t to = p.base + (uint32_t)(thread * 16);
    const float4 *parts = (const float4 *)p.shared + thread;
    float *tops = (float *)(p.shared + S::TOPS_AT);
    float4 *joints = (float4 *)(p.shared + S::JOINTS_AT);
    const float2 *own_ml =
        t.ml + first + min(y.warp, group - 1) * pitch + min(p.lane, n - 1);
    const float2 ml = n ? __ldcg(own_ml) : make_float2(-INFINITY, 0);
    feed f = {};
    f.at = f.first = t.a.part + (first + (size_t)(own * pitch)) * S::HD + lane * 4;
    f.h = own, f.n = n;
#pragma unroll 1
    for (int i = 0; i < JOIN_AHEAD; i++)
        ask_part<S>(t, f, to + (uint32_t)(i * S::PART_BYTES));
    find_joints<S>(t, y.warp, t.ml + first, ml, n, joints, tops);
    __syncthreads();
    int part = 0;
#pragma unroll 1
    for (int h = own; h - own < group; h += 2 * S::HEADS) { /* a warp's threads stay together */
        const int in[2] = {min(h, group - 1), min(h + S::HEADS, group - 1)};
        joined_part x = {}, z = {};
#pragma unroll 1
        for (int from = 0; from < n; from += JOIN_PART) {
            const float4 *s = parts + part * 2 * JOIN_PART * S::NT;
            fetch_wait<JOIN_AHEAD - 1>();
#pragma unroll 3
            for (int k = 0; k < min((int)JOIN_PART, n - from); k++) {
                join_part(x, joints[in[0] * pitch + from + k], s[2 * k * S::NT]);
                join_part(z, joints[in[1] * pitch + from + k], s[(2 * k + 1) * S::NT]);
            }
            ask_part<S>(t, f, to + (uint32_t)(part * S::PART_BYTES));
            part ^= 1;
        }
#pragma unroll 1
        for (int i = h, at = in[0]; i < h + 2 * S::HEADS; i += S::HEADS, at = in[1], x = z) {
            const int q = p.kv * group + at, to_dim = q * S::HD + first_part(lane);
            const float sink = sink_of(t, p, sinks, q);
            float by = 0;
            if (n)
                by = closing(t, sink, row, q, tops[at], x.l, lane == 0 && at == i);
            else if (t.a.lse && lane == 0)
                t.a.lse[head + (size_t)at] = -INFINITY;
            if (at < i)
                continue;
            put_output<2>(t, row, to_dim, {x.v.x * by, x.v.y * by});
            put_output<2>(t, row, to_dim + 8, {x.v.z * by, x.v.w * by});
        }
    }
    __syncthreads(); /* nobody reads them any more */
    discard_segments<S>(t.a.part + first * S::HD, group, n, pitch);
}

/* ---- the kernel ----------------------------------------------------------------------------- */

/* The tails of rows whose splits tile_kernel() walks, whatever of it still runs; then their heads,
 * from these and from those. Blocks (1, kv head, row). */
template <class S>
__global__ void __launch_bounds__(S::NT, 4) tail_kernel(const __grid_constant__ tile_args t)
{
    extern __shared__ __align__(1024) unsigned char shared[];
    const tail<S> y = tail_of<S>(t, (int)blockIdx.z, shared);
    const uint32_t sinks = fetch_sinks(t, y.p);
    fetch_tail_queries<S>(t, y.p);
    fetch_tail<S>(t, y);
    if (any_key(y.x))
        walk_tail<S>(t, y);
    fetch_wait<0>();
    pdl_trigger(); /* said earlier, the next kernel's blocks would be in these blocks' way */
    pdl_wait(); /* for the splits */
    __syncthreads(); /* the tail is there for all threads, and nobody reads its cells */
    join_row<S>(t, y, sinks);
}

#endif
