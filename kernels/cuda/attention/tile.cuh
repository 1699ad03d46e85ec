/* tile.cuh - the pieces of tile.cu and decode.cu: what rows see and
 * which walk together, how cells come into shared memory, and what a warp does with one tile of
 * keys. How segments end and are joined: combine.cuh.
 */
#ifndef AERIE_CUDA_ATTN_TILE_CUH
#define AERIE_CUDA_ATTN_TILE_CUH

#include "kernels/cuda/attention/attention.cuh"

#include <limits.h>

enum {
    OWN = K_MAX_STEPS + 1, /* keys that end every row and that only it may see */
    FEW = 4,               /* tiles: so few are never split */
    SHORT = 4096,          /* keys: up to here fewer splits, for the sake of their join */
    RING = 8,              /* tiles whose cells are looked up ahead */
};

/* When a kernel waits for those before it. */
enum wait_when {
    WAIT_FIRST,    /* before it reads anything */
    WAIT_FOR_NEW,  /* before it reads q and cells of the pass at hand */
};

struct tile_args {
    struct attn_args a;
    float2 *ml;         /* (rows, n_head, most_splits): maximum in powers of two, and sum */
    uint4 *handed;      /* segments on their way from block to block (combine.cuh) */
    enum wait_when wait;
    float factor;       /* of scores: their exponent of two */
    int page_shift, least_shift, cap_shift, long_shift;
    int inverse;        /* of a.group, see row_of() */
    int tiles, each;    /* tiles of rows, rows of one */
    int units;          /* blocks that share a tile's keys; 0: one block walks them all */
    bool longer;        /* a block walks successive splits at once */
};

/* A block: WM groups of WN warps, a group taking MI * 16 packed rows, its warps dividing keys for
 * the scores and dimensions for the values. WIDE: a group is one warp, and each four of them
 * multiply together (wgmma), queries being in shared memory. */
template <int HD_, int MI_, int WM_, int WN_, int STAGES_, int BLOCKS_, bool WIDE_ = false>
struct form {
    static_assert(!WIDE_ || (MI_ == 1 && WN_ == 1 && WM_ % 4 == 0));
    enum : int {
        HD = HD_, MI = MI_, WM = WM_, WN = WN_, STAGES = STAGES_, BLOCKS = BLOCKS_, WIDE = WIDE_,
        NT = 32 * WM * WN,
        WARPS = WN,                      /* of a group */
        ROWS = 16 * MI * WM,
        TK = HD > 128 ? 32 : 64,         /* keys of a tile */
        CHUNKS = HD / 8,                 /* 16 bytes each, of a cell */
        EACH = TK * CHUNKS / NT,         /* chunks of K that a thread fetches, and of V */
        STEP = NT / CHUNKS,              /* keys from one of them to the next */
        FOUND = (4 * TK + NT - 1) / NT,  /* keys of four tiles that a thread looks up */
        KT = TK / 8 / WN,                /* tiles of 8 keys of a warp */
        DT = HD / 8 / WN,                /* tiles of 8 dimensions of a warp */
        LG = 2 / WN,                     /* its halves of the keys, summed apart */
        LT = KT / LG,                    /* tiles of 8 keys in a half */
        HELD = !WIDE && MI * DT * 4 <= 32, /* the joined sums stay in registers */
        TILE_BYTES = TK * HD * 2,
        PAIR_BYTES = 2 * TILE_BYTES,
        P_AT = STAGES * PAIR_BYTES,
        MAX_AT = P_AT + (WN > 1 ? ROWS * TK * 2 : 0),
        L_AT = MAX_AT + (WN > 1 ? ROWS * WN * 4 : 0),
        Q_AT = L_AT + (WN > 1 ? ROWS * 2 * 4 : 0),
        TOTAL_AT = Q_AT + (WIDE ? ROWS * HD * 2 : 0),
        PARTED_BYTES = TOTAL_AT,         /* where segments are written out */
        BYTES = TOTAL_AT + (HELD ? 0 : ROWS * HD * 4),
    };
};

/* ---- instructions --------------------------------------------------------------------------- */

__device__ __forceinline__ float exp2_of(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void matrices(uint32_t (&r)[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

__device__ __forceinline__ void matrices_turned(uint32_t (&r)[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

/* Has an address translated, and what lies there brought near, before it may be read. */
__device__ __forceinline__ void warm(const void *p)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

/* 16 bytes, or zeros where there is no cell to read */
__device__ __forceinline__ void fetch16(uint32_t to, const void *from, int cell)
{
    asm volatile("{\n"
                 ".reg .pred none;\n"
                 "setp.lt.s32 none, %2, 0;\n"
                 "cp.async.cg.shared.global [%0], [%1], 16, none;\n"
                 "}" ::"r"(to), "l"(from), "r"(cell)
                 : "memory");
}
__device__ __forceinline__ void fetch_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int N> __device__ __forceinline__ void fetch_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

__device__ __forceinline__ uint32_t pair_of(float low, float high)
{
    __nv_bfloat162 x = __floats2bfloat162_rn(low, high);
    return *(uint32_t *)&x;
}

/* The warps that share rows wait for each other. */
template <class S> __device__ __forceinline__ void meet(int wm)
{
    if constexpr (S::WN == 1)
        __syncwarp();
    else if constexpr (S::WM == 1)
        __syncthreads();
    else
        asm volatile("bar.sync %0, %1;" ::"r"(1 + wm), "n"(32 * S::WN) : "memory");
}

/* i / group, for packed rows i and groups of at most 16 */
__device__ __forceinline__ int row_of(const tile_args &t, int i) { return i * t.inverse >> 16; }

/* ---- what rows see -------------------------------------------------------------------------- */

struct seen {
    int lo, hi, end, req;
    int stop;  /* the part walked with other rows ends here */
    int tail;  /* tile with which the tail begins */
    int shift; /* log2 of the tiles of a split */
};

__device__ __forceinline__ bool any_key(const seen &x) { return x.lo < x.end; }

/* Where the common part ends of a row whose tail is walked apart. */
template <int TK> __device__ __forceinline__ int parted_stop(const seen &x)
{
    return max(min(x.end, x.tail * TK), x.lo);
}

/* The tail is walked apart where it lies in cells that only the row sees. */
template <int TK> __device__ __forceinline__ seen seen_by(const tile_args &t, int r)
{
    const attn_args &a = t.a;
    seen x;
    int extra = a.n_expand ? a.n_expand[r] : 0;
    x.lo = a.lo[r], x.hi = a.hi[r], x.req = a.req[r];
    x.end = x.hi + extra;
    x.tail = max(x.end - OWN, 0) / TK;
    x.stop = extra > 0 ? parted_stop<TK>(x) : x.end;
    int n = max(x.tail - x.lo / TK, 0);
    int most = n * TK <= SHORT ? t.cap_shift : t.long_shift;
    x.shift = n <= FEW ? 3 : max(t.least_shift, 32 - __clz((n - 1) >> most));
    return x;
}

template <int TK> __device__ __forceinline__ int splits_of(const seen &x)
{
    int first = x.lo / TK;
    return first < x.tail ? ((x.tail - 1) >> x.shift) - (first >> x.shift) + 1 : 0;
}

/* The tile before which the row's segment ends that tile t is in. */
template <int TK> __device__ __forceinline__ int segment_end(const seen &x, int t)
{
    int behind = (x.end - 1) / TK + 1;
    return t < x.tail ? min(((t >> x.shift) + 1) << x.shift, x.tail) : behind;
}

/* Where the segment ends that begins with tile t; none where the row's keys end before. */
template <int TK> __device__ __forceinline__ int next_end(const seen &x, int t, int stop)
{
    return t * TK < stop ? segment_end<TK>(x, t) : INT_MAX;
}

/* Rows [a, b) of a tile that are walked together: of one request, with no gap between what they
 * see, so that every cell from lo to stop is some row's. */
struct pass {
    int a, b;
    int lo, stop;         /* what any row sees */
    int last_lo, first_stop; /* what all see */
    int shift, req;
    bool good;
};

__device__ __forceinline__ pass pass_of_one(const seen *rows, int r)
{
    const seen x = rows[r];
    return {r, r + 1, x.lo, x.stop, x.lo, x.stop, x.shift, x.req, true};
}

/* Of one warp, the same in all. */
static __device__ __noinline__ pass pass_of_more(const seen *rows, int a, int b)
{
    pass p = {a, b, INT_MAX, 0, 0, INT_MAX, 0, 0, true};
    int low = INT_MAX, high = -1;
    bool early = false;
    for (int r = a + (int)threadIdx.x % 32; r < b; r += 32) {
        const seen x = rows[r];
        if (x.lo >= x.stop)
            continue;
        p.lo = min(p.lo, x.lo), p.last_lo = max(p.last_lo, x.lo);
        p.stop = max(p.stop, x.stop), p.first_stop = min(p.first_stop, x.stop);
        p.shift = max(p.shift, x.shift);
        low = min(low, x.req), high = max(high, x.req);
        early |= x.hi < x.stop;
    }
    p.lo = __reduce_min_sync(~0u, p.lo), p.last_lo = __reduce_max_sync(~0u, p.last_lo);
    p.stop = __reduce_max_sync(~0u, p.stop);
    p.first_stop = __reduce_min_sync(~0u, p.first_stop);
    p.shift = __reduce_max_sync(~0u, p.shift);
    low = __reduce_min_sync(~0u, low), high = __reduce_max_sync(~0u, high);
    p.req = high;
    p.good =
        (high < 0 || low == high) && p.last_lo <= p.first_stop && !__any_sync(~0u, early);
    return p;
}

__device__ __forceinline__ pass pass_of(const seen *rows, int a, int b)
{
    return b - a == 1 ? pass_of_one(rows, a) : pass_of_more(rows, a, b);
}

/* The longest pass from row a on: all rows, mostly. */
__device__ __forceinline__ pass pass_from(const seen *rows, int a, int n)
{
    pass p = pass_of(rows, a, n);
    if (p.good)
        return p;
    int b = a + 1;
    while (pass_of_more(rows, a, b + 1).good) /* all of them together are not */
        b++;
    return pass_of(rows, a, b);
}

/* What rows see, and the first of their queries, pages and cells, before any of it may be read: by
 * the lanes of a warp. */
__device__ __forceinline__ void warm_table(const tile_args &t, int r)
{
    const attn_args &a = t.a;
    const size_t q = (size_t)r * (size_t)(a.n_head * a.head_dim);
    switch ((int)threadIdx.x % 32) {
    case 0: warm(a.lo + r); break;
    case 1: warm(a.hi + r); break;
    case 2: warm(a.req + r); break;
    case 3: warm(a.pages); break;
    case 4: warm(a.k); break;
    case 5: warm(a.v); break;
    case 6:
        if (a.n_expand)
            warm(a.n_expand + r);
        break;
    case 7: warm(a.q_bits ? (const void *)(a.q_bits + q) : a.q + q);
    }
}

/* ---- cells ---------------------------------------------------------------------------------- */

/* Where a walk finds its keys. */
struct cells {
    const int32_t *pages, *expand; /* of the request; of the row, if only one is walked */
    int lo, stop, hi;
};

/* The cell of key j, -1 where there is none. */
__device__ __forceinline__ int cell_of(const tile_args &t, const cells &c, int kv, int j)
{
    const attn_args &a = t.a;
    int slot = -1;
    if (j >= c.lo && j < c.stop) {
        bool paged = j < c.hi;
        slot = paged ? c.pages[j >> t.page_shift] : c.expand[j - c.hi];
        slot = paged ? (slot << t.page_shift) + (j & (a.page_size - 1)) : slot;
    }
    return (unsigned)slot < (unsigned)a.n_slots ? slot * a.n_kv + kv : -1;
}

/* The cells of four tiles of keys, a thread some keys. */
template <class S>
__device__ __forceinline__ void find(const tile_args &t, const cells &c, int kv, int tile,
                                     int (&cell)[S::FOUND])
{
#pragma unroll
    for (int i = 0; i < S::FOUND; i++)
        cell[i] = cell_of(t, c, kv, tile * S::TK + (int)threadIdx.x + i * S::NT);
}

/* The ring holds a thread's keys of a tile side by side. */
template <class S>
__device__ __forceinline__ void keep(int *ring, int tile, const int (&cell)[S::FOUND])
{
#pragma unroll
    for (int i = 0; i < S::FOUND; i++) {
        int at = (int)threadIdx.x + i * S::NT, key = at % S::TK;
        if (4 * S::TK % S::NT == 0 || at < 4 * S::TK)
            ring[(tile + at / S::TK) % RING * S::TK + key % S::STEP * S::EACH + key / S::STEP] =
                cell[i];
    }
}

/* Where a chunk of a key's cell lies. WIDE: 64 dimensions of all keys, then the next 64. */
template <class S> __device__ __forceinline__ uint32_t chunk_at(int key, int chunk)
{
    if constexpr (S::WIDE)
        return (uint32_t)(chunk / 8 * (S::TK * 128) + key * 128 + ((chunk % 8 ^ (key & 7)) << 4));
    else
        return (uint32_t)(key * S::HD * 2 + ((chunk ^ (key & 7)) << 4));
}

template <class S>
__device__ __forceinline__ void fetch(const tile_args &t, const int *ring, int tile, uint32_t stage)
{
    const int first = (int)threadIdx.x / S::CHUNKS, chunk = (int)threadIdx.x % S::CHUNKS;
    const char *k = (const char *)t.a.k + chunk * 16, *v = (const char *)t.a.v + chunk * 16;
    const int *cells = ring + tile % RING * S::TK + first * S::EACH;
    constexpr int N = S::EACH < 4 ? S::EACH : 4; /* looked up together */
#pragma unroll
    for (int i = 0; i < S::EACH; i += N) {
        int cell[N];
#pragma unroll
        for (int j = 0; j < N; j += 2)
            *(int2 *)(cell + j) = *(const int2 *)(cells + i + j);
#pragma unroll
        for (int j = 0; j < N; j++) {
            const size_t from = (size_t)(unsigned)max(cell[j], 0) * (S::HD * 2);
            const uint32_t to = stage + chunk_at<S>(first + (i + j) * S::STEP, chunk);
            fetch16(to, k + from, cell[j]);
            fetch16(to + S::TILE_BYTES, v + from, cell[j]);
        }
    }
}

/* ---- a warp's rows -------------------------------------------------------------------------- */

/* Sums over one segment: values, maximum score, and the sums of weights by halves of tiles. */
template <class S> struct sums {
    float acc[S::MI][S::DT][4], m[S::MI][2], l[S::MI][2][S::LG];
};

/* Sums over the segments so far. HELD: in registers. */
template <class S> struct totals {
    float m[S::MI][2], l[S::MI][2], acc[S::HELD ? S::MI * S::DT * 4 : 1];
    float *rest; /* shared memory, element i at i * NT + thread */
    __device__ __forceinline__ float &at(int i)
    {
        if constexpr (S::HELD)
            return acc[i];
        else
            return rest[i * S::NT + (int)threadIdx.x];
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

/* One segment joins those before it: (m, l, acc) and (sm, sl, sacc), maxima in powers of two. */
struct joint {
    float m, before, now;
};
__device__ __forceinline__ joint joint_of(float m, float sm)
{
    joint j;
    j.m = fmaxf(m, sm);
    float at = j.m == -INFINITY ? 0.f : j.m;
    j.before = exp2_of(m - at);
    j.now = exp2_of(sm - at);
    return j;
}
__device__ __forceinline__ float joined(const joint &j, float x, float s)
{
    return fmaf(x, j.before, s * j.now);
}

/* A call, for it is long and rare. */
static __device__ __noinline__ float log_of_sum(float m, float l)
{
    return (float)((double)m * 0.69314718055994530942 + log((double)l));
}

/* What the joined values are multiplied by; writes the row's lse. sink: the head's, if there are
 * any. */
__device__ __forceinline__ float closing(const tile_args &t, float sink, size_t row, int head,
                                            float m, float l, bool writes)
{
    float keep = 1;
    if (t.a.sinks.p) {
        sink *= 1.44269504088896341f;
        float top = fmaxf(m, sink);
        keep = exp2_of(m - top);
        l = fmaf(l, keep, exp2_of(sink - top));
        m = top;
    }
    if (writes && t.a.lse)
        t.a.lse[row * (size_t)t.a.n_head + (size_t)head] = log_of_sum(m, l);
    return keep / l;
}

/* A block's place, and what its threads know about their rows. */
template <class S> struct place {
    int tile, kv, r0, n;  /* tile of rows, kv head, first row, rows */
    const seen *rows;     /* (n) */
    uint32_t base;        /* of shared memory */
    unsigned char *shared;
    int *ring;            /* (RING, TK) cells of the tiles of a walk */
    int wm, wn, lane;
    int row[S::MI][2], head[S::MI][2]; /* in the tile, -1: none; query head */
};

template <class S> __device__ __forceinline__ int packed_row(const place<S> &p, int mi, int h)
{
    return (p.wm * S::MI + mi) * 16 + p.lane / 4 + 8 * h;
}

template <class S>
__device__ __forceinline__ place<S> place_of(const tile_args &t, const seen *rows,
                                             unsigned char *shared, int *ring)
{
    const int tid = (int)threadIdx.x;
    place<S> p;
    p.tile = t.tiles - 1 - (int)blockIdx.z;
    p.kv = (int)blockIdx.y, p.r0 = p.tile * t.each, p.n = min(t.each, t.a.rows - p.r0);
    p.rows = rows, p.shared = shared, p.ring = ring;
    p.base = (uint32_t)__cvta_generic_to_shared(shared);
    p.lane = tid % 32, p.wn = tid / 32 % S::WARPS, p.wm = tid / 32 / S::WARPS;
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

/* Sinks are weights, and in no cache: fetched as they lie, long before they are read. */
__device__ __forceinline__ uint32_t fetch_sink(const tile_args &t, int head)
{
    const vec &v = t.a.sinks;
    if (!v.p)
        return 0;
    return v.type == DT_F32 ? __ldg((const uint32_t *)v.p + head)
                            : (uint32_t)__ldg((const uint16_t *)v.p + head);
}
__device__ __forceinline__ float sink_value(const tile_args &t, uint32_t sink)
{
    return t.a.sinks.type == DT_F32    ? __uint_as_float(sink)
           : t.a.sinks.type == DT_BF16 ? __uint_as_float(sink << 16)
                                       : __half2float(__ushort_as_half((uint16_t)sink));
}

/* The sinks of the query heads of the block's kv head, lane by lane. */
template <class S>
__device__ __forceinline__ uint32_t fetch_sinks(const tile_args &t, const place<S> &p)
{
    return fetch_sink(t, p.kv * t.a.group + p.lane - row_of(t, p.lane) * t.a.group);
}

/* That of a query head among them; the whole warp. */
template <class S>
__device__ __forceinline__ float sink_of(const tile_args &t, const place<S> &p, uint32_t sinks,
                                         int head)
{
    return sink_value(t, __shfl_sync(~0u, sinks, head - p.kv * t.a.group));
}

__device__ __forceinline__ uint32_t pair_at(const float *x)
{
    const float2 v = *(const float2 *)x;
    return pair_of(v.x, v.y);
}
__device__ __forceinline__ uint32_t pair_at(const uint16_t *x) { return *(const uint32_t *)x; }

/* The queries of a thread's rows, from x, as bf16. */
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
            if (!any) /* of the warp's eight rows */
                continue;
#pragma unroll
            for (int k = 0; k < S::HD / 16; k++)
#pragma unroll
                for (int half = 0; half < 2; half++)
                    if (p.row[mi][h] >= 0)
                        q[mi][k][2 * half + h] = pair_at(from + k * 16 + half * 8);
        }
}

/* ---- a tile of keys ------------------------------------------------------------------------- */

/* s = q k, for this warp's keys */
template <class S>
__device__ __forceinline__ void score(const uint32_t (&q)[S::MI][S::HD / 16][4], uint32_t keys,
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
            matrices(b, keys + chunk_at<S>(key, 2 * k + lane / 8 % 2));
#pragma unroll
            for (int mi = 0; mi < S::MI; mi++) {
                multiply(s[mi][2 * n], q[mi][k], b[0], b[1]);
                multiply(s[mi][2 * n + 1], q[mi][k], b[2], b[3]);
            }
        }
}

/* cap tanh(s scale / cap) */
template <int N>
__device__ __forceinline__ void cap_some(float scale, float cap, float (&s)[N][4])
{
    const float by = 2.88539008177792681f * scale / cap;
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[n][i] = cap - __fdividef(2 * cap, exp2_of(s[n][i] * by) + 1);
}
template <class S> __device__ __forceinline__ void cap_scores(float scale, float cap,
                                                              float (&s)[S::MI][S::KT][4])
{
#pragma unroll
    for (int mi = 0; mi < S::MI; mi++)
        cap_some<S::KT>(scale, cap, s[mi]);
}

/* Keys that a row does not see score -inf. */
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

/* The largest score of a row, half h of a tile of 16, among N tiles of 8 keys: for its lanes. */
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

/* s becomes the weights exp(s - m); what was summed before is brought to the new maxima. */
template <class S>
__device__ __forceinline__ void weigh(const tile_args &t, const place<S> &p, sums<S> &x,
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
        float *room = (float *)(p.shared + S::MAX_AT);
        if (p.lane % 4 == 0)
#pragma unroll
            for (int mi = 0; mi < S::MI; mi++)
#pragma unroll
                for (int h = 0; h < 2; h++)
                    room[p.wn * S::ROWS + packed_row<S>(p, mi, h)] = top[mi][h];
        meet<S>(p.wm);
#pragma unroll
        for (int mi = 0; mi < S::MI; mi++)
#pragma unroll
            for (int h = 0; h < 2; h++)
#pragma unroll
                for (int w = 0; w < S::WN; w++)
                    top[mi][h] = fmaxf(top[mi][h], room[w * S::ROWS + packed_row<S>(p, mi, h)]);
    }
#pragma unroll
    for (int mi = 0; mi < S::MI; mi++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float was = x.m[mi][h], m = fmaxf(was, top[mi][h]);
            by[mi][h] = was == m ? 1.f : exp2_of((was - m) * t.factor);
            moved |= was != m;
            x.m[mi][h] = m;
            float at = m == -INFINITY ? 0.f : m * t.factor;
#pragma unroll
            for (int g = 0; g < S::LG; g++) {
                float l = 0;
#pragma unroll
                for (int n = g * S::LT; n < (g + 1) * S::LT; n++)
#pragma unroll
                    for (int i = 2 * h; i < 2 * h + 2; i++)
                        l += s[mi][n][i] = exp2_of(fmaf(s[mi][n][i], t.factor, -at));
                x.l[mi][h][g] = fmaf(x.l[mi][h][g], by[mi][h], l);
            }
        }
    if (!__any_sync(~0u, moved)) /* times 1 */
        return;
#pragma unroll
    for (int mi = 0; mi < S::MI; mi++)
#pragma unroll
        for (int n = 0; n < S::DT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                x.acc[mi][n][i] *= by[mi][i / 2];
}

/* Where the weights of a packed row and 8 keys lie, for the warps that share rows. */
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
                              p.lane % 4 * 4) = pair_of(s[mi][n][2 * h], s[mi][n][2 * h + 1]);
    meet<S>(p.wm);
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
                w[mi][0] = pair_of(s[mi][2 * k][0], s[mi][2 * k][1]);
                w[mi][1] = pair_of(s[mi][2 * k][2], s[mi][2 * k][3]);
                w[mi][2] = pair_of(s[mi][2 * k + 1][0], s[mi][2 * k + 1][1]);
                w[mi][3] = pair_of(s[mi][2 * k + 1][2], s[mi][2 * k + 1][3]);
            } else {
                int row = (p.wm * S::MI + mi) * 16 + p.lane % 16;
                matrices(w[mi], p.base + weights_at<S>(row, 2 * k + p.lane / 16));
            }
#pragma unroll
        for (int n = 0; n < S::DT / 2; n++) {
            uint32_t b[4];
            int key = k * 16 + p.lane % 16, chunk = p.wn * S::DT + 2 * n + p.lane / 16;
            matrices_turned(b, values + chunk_at<S>(key, chunk));
#pragma unroll
            for (int mi = 0; mi < S::MI; mi++) {
                multiply(x.acc[mi][2 * n], w[mi], b[0], b[1]);
                multiply(x.acc[mi][2 * n + 1], w[mi], b[2], b[3]);
            }
        }
    }
}

/* ---- four warps multiply together ------------------------------------------------------------ */

/* wgmma adds sixteen products to a sum exactly as mma.sync does (dense/tile.cuh). The host chooses
 * these forms only where kdev.has_wgmma; code for other GPUs has them without a body. */
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define HAVE_WGMMA 1
#else
#define HAVE_WGMMA 0
#endif

/* Before a barrier: what this thread wrote to shared memory is there for wgmma. */
__device__ __forceinline__ void publish()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

__device__ __forceinline__ void wide_begin()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wide_end()
{
    asm volatile("wgmma.commit_group.sync.aligned;\n"
                 "wgmma.wait_group.sync.aligned 0;" ::: "memory");
}

#define SUMS8(a, i)                                                                                \
    "+f"(a[i]), "+f"(a[i + 1]), "+f"(a[i + 2]), "+f"(a[i + 3]), "+f"(a[i + 4]), "+f"(a[i + 5]),    \
        "+f"(a[i + 6]), "+f"(a[i + 7])
#define SUMS16(a, i) SUMS8(a, i), SUMS8(a, i + 8)
#define SUMS64(a, i) SUMS16(a, i), SUMS16(a, i + 16), SUMS16(a, i + 32), SUMS16(a, i + 48)
#define NAMES16                                                                                    \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define NAMES32 NAMES16 ","                                                                        \
    "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define NAMES128 NAMES32 ","                                                                       \
    "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,"     \
    "%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,"     \
    "%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,"     \
    "%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,"     \
    "%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"

/* s = or += queries (64 rows by 16 dimensions) * keys */
#define WIDE_SCORE(shape, names, queries, keys, more, ...)                                         \
    asm volatile("{\n"                                                                             \
                 ".reg .pred p;\n"                                                                 \
                 "setp.ne.b32 p, " more ", 0;\n"                                                   \
                 "wgmma.mma_async.sync.aligned." shape ".f32.bf16.bf16 {" names "}, "              \
                 queries ", " keys ", p, 1, 1, 0, 0;\n"                                            \
                 "}\n"                                                                             \
                 : __VA_ARGS__                                                                     \
                 : "l"(q), "l"(k), "r"(onto))

__device__ __forceinline__ void wide_score(float (&s)[16], uint64_t q, uint64_t k, int onto)
{
    WIDE_SCORE("m64n32k16", NAMES16, "%16", "%17", "%18", SUMS16(s, 0));
}
__device__ __forceinline__ void wide_score(float (&s)[32], uint64_t q, uint64_t k, int onto)
{
    WIDE_SCORE("m64n64k16", NAMES32, "%32", "%33", "%34", SUMS16(s, 0), SUMS16(s, 16));
}

/* x += weights (64 rows by 16 keys) * values, which lie key after key */
#define WIDE_VALUES(shape, names, w0, w1, w2, w3, values, ...)                                     \
    asm volatile("wgmma.mma_async.sync.aligned." shape ".f32.bf16.bf16 {" names "}, "              \
                 "{" w0 "," w1 "," w2 "," w3 "}, " values ", 1, 1, 1, 1;"                          \
                 : __VA_ARGS__                                                                     \
                 : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "l"(v))

__device__ __forceinline__ void wide_values(float (&x)[32], const uint32_t (&w)[4], uint64_t v)
{
    WIDE_VALUES("m64n64k16", NAMES32, "%32", "%33", "%34", "%35", "%36", SUMS16(x, 0),
                SUMS16(x, 16));
}
__device__ __forceinline__ void wide_values(float (&x)[128], const uint32_t (&w)[4], uint64_t v)
{
    WIDE_VALUES("m64n256k16", NAMES128, "%128", "%129", "%130", "%131", "%132", SUMS64(x, 0),
                SUMS64(x, 64));
}

#undef WIDE_SCORE
#undef WIDE_VALUES

/* Rows of 128 bytes, chunks turned by their row's number modulo 8, as wgmma is told of them. apart:
 * bytes from 64 dimensions of values to the next 64. */
__device__ __forceinline__ uint64_t described(uint32_t at, int apart)
{
    return (uint64_t)(at >> 4) | (uint64_t)(apart >> 4) << 16 | (uint64_t)64 << 32 |
           (uint64_t)1 << 62;
}

/* s = q k, for this warp's rows */
template <class S>
__device__ __forceinline__ void score_wide(const place<S> &p, uint32_t keys,
                                           float (&s)[1][S::KT][4])
{
    const uint32_t queries = p.base + (uint32_t)(S::Q_AT + p.wm / 4 * 64 * 128);
    wide_begin();
#pragma unroll
    for (int k = 0; k < S::HD / 16; k++)
        wide_score(reinterpret_cast<float(&)[S::KT * 4]>(s[0]),
                   described(queries + (uint32_t)(k / 4 * S::ROWS * 128 + k % 4 * 32), 16),
                   described(keys + (uint32_t)(k / 4 * S::TK * 128 + k % 4 * 32), 16), k);
    wide_end();
}

/* acc += weights v */
template <class S>
__device__ __forceinline__ void add_values_wide(uint32_t values, const float (&s)[1][S::KT][4],
                                                sums<S> &x)
{
    uint32_t w[S::TK / 16][4];
#pragma unroll
    for (int k = 0; k < S::TK / 16; k++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            w[k][i] = pair_of(s[0][2 * k + i / 2][i % 2 * 2], s[0][2 * k + i / 2][i % 2 * 2 + 1]);
    wide_begin();
#pragma unroll
    for (int k = 0; k < S::TK / 16; k++)
        wide_values(reinterpret_cast<float(&)[S::DT * 4]>(x.acc[0]), w[k],
                    described(values + (uint32_t)(k * 16 * 128), S::TK * 128));
    wide_end();
}

#else

template <class S>
__device__ __forceinline__ void score_wide(const place<S> &, uint32_t, float (&)[1][S::KT][4])
{
}
template <class S>
__device__ __forceinline__ void add_values_wide(uint32_t, const float (&)[1][S::KT][4], sums<S> &)
{
}

#endif

/* Queries as bf16: 64 dimensions of all rows, then the next 64. Where they are bf16 already they
 * are only asked for, and wait_queries() waits. */
template <class S>
__device__ __forceinline__ void share_queries(const tile_args &t, const place<S> &p)
{
    const attn_args &a = t.a;
    const int chunk = (int)threadIdx.x % S::CHUNKS;
    const uint32_t to = (uint32_t)(S::Q_AT + chunk / 8 * (S::ROWS * 128));
    const size_t first = ((size_t)p.r0 * (size_t)a.n_head + (size_t)(p.kv * a.group)) * S::HD +
                         (size_t)(chunk * 8);
    const int row0 = (int)threadIdx.x / S::CHUNKS, more = a.n_head - a.group;
    if (a.q_bits) {
#pragma unroll 2
        for (int row = row0; row < S::ROWS; row += S::STEP) {
            const int r = row_of(t, row), there = r < p.n ? 0 : -1;
            const uint16_t *from = a.q_bits + first + (r < p.n ? (r * more + row) * S::HD : 0);
            fetch16(p.base + to + row * 128 + ((chunk % 8 ^ (row & 7)) << 4), from, there);
        }
        fetch_commit();
        return;
    }
#pragma unroll 8
    for (int row = row0; row < S::ROWS; row += S::STEP) {
        const int r = row_of(t, row);
        float4 x = {0, 0, 0, 0}, y = x;
        if (r < p.n) {
            const float4 *q = (const float4 *)(a.q + first + (r * more + row) * S::HD);
            x = __ldcg(q), y = __ldcg(q + 1);
        }
        *(uint4 *)(p.shared + to + row * 128 + ((chunk % 8 ^ (row & 7)) << 4)) =
            make_uint4(pair_of(x.x, x.y), pair_of(x.z, x.w), pair_of(y.x, y.y), pair_of(y.z, y.w));
    }
}

/* For those that were asked for, and for the cells that were before them. */
__device__ __forceinline__ void wait_queries(const tile_args &t)
{
    if (t.a.q_bits)
        fetch_wait<0>();
}

/* ---- host -------------------------------------------------------------------------------- */

/* Whether rows may see so many keys that two blocks a multiprocessor pay. */
static inline bool long_context(const attn_args &a)
{
    return !a.window && (size_t)a.n_cols * (size_t)a.page_size > 2 * SHORT;
}

/* At most 32 packed rows a tile, 16 of heads of 64. */
void cuda_attn_rounds(struct kdev *d, const tile_args &t);

#endif
