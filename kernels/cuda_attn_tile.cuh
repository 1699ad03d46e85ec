/* cuda_attn_tile.cuh - the pieces of cuda_attn_tile.cu and cuda_attn_few.cu: what rows see and
 * which walk together, how cells come into shared memory, what a warp does with one tile of keys,
 * and how segments end and are joined.
 */
#ifndef AERIE_CUDA_ATTN_TILE_CUH
#define AERIE_CUDA_ATTN_TILE_CUH

#include "kernels/cuda_attn.cuh"

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
    WAIT_TO_JOIN,  /* before it reads the segments that the kernel before it wrote */
};

struct tile_args {
    struct attn_args a;
    float2 *ml;         /* (rows, n_head, most_splits): maximum in powers of two, and sum */
    enum wait_when wait;
    float factor;       /* of scores: their exponent of two */
    int page_shift, least_shift, cap_shift, long_shift;
    int inverse;        /* of a.group, see row_of() */
    int tiles, each;    /* tiles of rows, rows of one */
    int units;          /* blocks that share the splits; 0: one block walks a tile's keys */
    int tails;          /* blocks behind those that share the rows' tails */
};

/* A block: WM groups of WN warps, a group taking MI * 16 packed rows, its warps dividing keys for
 * the scores and dimensions for the values. */
template <int HD_, int MI_, int WM_, int WN_, int STAGES_, int BLOCKS_> struct form {
    enum : int {
        HD = HD_, MI = MI_, WM = WM_, WN = WN_, STAGES = STAGES_, BLOCKS = BLOCKS_,
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
        HELD = MI * DT * 4 <= 32,        /* the joined sums stay in registers */
        TILE_BYTES = TK * HD * 2,
        PAIR_BYTES = 2 * TILE_BYTES,
        TOTAL_AT = STAGES * PAIR_BYTES,
        P_AT = TOTAL_AT + (HELD ? 0 : ROWS * HD * 4),
        MAX_AT = P_AT + (WN > 1 ? ROWS * TK * 2 : 0),
        L_AT = MAX_AT + (WN > 1 ? ROWS * WN * 4 : 0),
        BYTES = L_AT + (WN > 1 ? ROWS * 2 * 4 : 0),
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

/* 16 bytes, or zeros where there are none to read */
__device__ __forceinline__ void fetch16(uint32_t to, const void *from, bool any)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(any ? 16 : 0)
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

template <class S>
__device__ __forceinline__ void fetch(const tile_args &t, const int *ring, int tile, uint32_t stage)
{
    const int first = (int)threadIdx.x / S::CHUNKS, chunk = (int)threadIdx.x % S::CHUNKS;
    const char *k = (const char *)t.a.k + chunk * 16, *v = (const char *)t.a.v + chunk * 16;
    int cell[S::EACH];
#pragma unroll
    for (int i = 0; i < S::EACH; i += 4)
        *(int4 *)(cell + i) = *(const int4 *)(ring + tile % RING * S::TK + first * S::EACH + i);
#pragma unroll
    for (int i = 0; i < S::EACH; i++) {
        int key = first + i * S::STEP;
        bool any = cell[i] >= 0;
        size_t from = (size_t)(unsigned)max(cell[i], 0) * (S::HD * 2);
        uint32_t to = stage + (uint32_t)(key * S::HD * 2 + ((chunk ^ (key & 7)) << 4));
        fetch16(to, k + from, any);
        fetch16(to + S::TILE_BYTES, v + from, any);
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

/* What the joined values are multiplied by; writes the row's lse. */
__device__ __forceinline__ float closing(const tile_args &t, size_t row, int head, float m, float l,
                                         bool writes)
{
    float keep = 1;
    if (t.a.sinks.p) {
        float sink = weight_at(t.a.sinks, (size_t)head) * 1.44269504088896341f;
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

template <class S>
__device__ __forceinline__ void load_queries(const tile_args &t, const place<S> &p,
                                             uint32_t (&q)[S::MI][S::HD / 16][4])
{
#pragma unroll
    for (int mi = 0; mi < S::MI; mi++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float *x = t.a.q + ((size_t)(p.r0 + max(p.row[mi][h], 0)) * (size_t)t.a.n_head +
                                      (size_t)p.head[mi][h]) * S::HD + p.lane % 4 * 2;
#pragma unroll
            for (int k = 0; k < S::HD / 16; k++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    float2 v = {0, 0};
                    if (p.row[mi][h] >= 0)
                        v = *(const float2 *)(x + k * 16 + half * 8);
                    q[mi][k][2 * half + h] = pair_of(v.x, v.y);
                }
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
            int chunk = 2 * k + lane / 8 % 2;
            matrices(b, keys + (uint32_t)(key * S::HD * 2 + ((chunk ^ (key & 7)) << 4)));
#pragma unroll
            for (int mi = 0; mi < S::MI; mi++) {
                multiply(s[mi][2 * n], q[mi][k], b[0], b[1]);
                multiply(s[mi][2 * n + 1], q[mi][k], b[2], b[3]);
            }
        }
}

/* cap tanh(s scale / cap) */
template <class S> __device__ __forceinline__ void cap_scores(float scale, float cap,
                                                              float (&s)[S::MI][S::KT][4])
{
    const float by = 2.88539008177792681f * scale / cap;
#pragma unroll
    for (int mi = 0; mi < S::MI; mi++)
#pragma unroll
        for (int n = 0; n < S::KT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                s[mi][n][i] = cap - __fdividef(2 * cap, exp2_of(s[mi][n][i] * by) + 1);
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
            float m = fmaxf(s[mi][0][2 * h], s[mi][0][2 * h + 1]);
#pragma unroll
            for (int n = 1; n < S::KT; n++)
                m = fmaxf(m, fmaxf(s[mi][n][2 * h], s[mi][n][2 * h + 1]));
            m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
            top[mi][h] = fmaxf(m, __shfl_xor_sync(~0u, m, 2));
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
            matrices_turned(b, values + (uint32_t)(key * S::HD * 2 + ((chunk ^ (key & 7)) << 4)));
#pragma unroll
            for (int mi = 0; mi < S::MI; mi++) {
                multiply(x.acc[mi][2 * n], w[mi], b[0], b[1]);
                multiply(x.acc[mi][2 * n + 1], w[mi], b[2], b[3]);
            }
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
    add_halves<S>(p, x, l);
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
                ends[mi][h] = next_end<S::TK>(r, tile, stop[mi][h]);
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

template <class S>
__device__ __forceinline__ extent<S> extent_of(const place<S> &p, const job &j)
{
    extent<S> e;
#pragma unroll
    for (int mi = 0; mi < S::MI; mi++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int r = p.row[mi][h];
            e.lo[mi][h] = e.ends[mi][h] = INT_MAX, e.stop[mi][h] = 0;
            if (r < j.w.a || r >= j.w.b)
                continue;
            const seen &y = p.rows[r];
            e.lo[mi][h] = j.tail ? max(y.lo, y.tail * S::TK) : y.lo;
            e.stop[mi][h] = j.tail ? y.end : y.stop;
            if (e.lo[mi][h] < e.stop[mi][h] && j.from * S::TK < e.stop[mi][h])
                e.ends[mi][h] = segment_end<S::TK>(y, max(j.from, e.lo[mi][h] / S::TK));
        }
    return e;
}

struct course {
    job now;
    int row, tails, last_tail; /* next row of a pass, next row with a tail of its own, last + 1 */
    int each_tail;             /* rows from one of them to the next; 0: 1 */
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
    if (w.b - w.a == 1) /* a row's tail is not cut: it is walked with the split it begins in */
        end = min(end, max(p.rows[w.a].tail, c.from) >> c.shift);
    c.splits += end - first + 1;
    if (x >= c.stride)
        return;
    int skip = (x - before) % c.stride;
    c.u = first + (skip < 0 ? skip + c.stride : skip), c.last = end;
}

__device__ __forceinline__ bool done(const course &c, int rows)
{
    return c.u > c.last && c.row >= rows && c.tails >= c.last_tail;
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
        if (c.tails >= c.last_tail)
            return false;
        int r = c.tails;
        c.tails += max(c.each_tail, 1);
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

/* V dimensions of a row and head from its segments, AT_ONCE of which are read before they are
 * added. */
template <int HD, int V, int AT_ONCE>
__device__ __forceinline__ void join_row(const tile_args &t, const seen &x, int r, int head, int d)
{
    constexpr int TK = HD > 128 ? 32 : 64;
    const size_t at = (size_t)r * (size_t)t.a.n_head + (size_t)head;
    const size_t first = at * (size_t)t.a.most_splits;
    const float2 *ml = t.ml + first;
    const float *part = t.a.part + first * HD + (size_t)d;
    const int n = any_key(x) ? splits_of<TK>(x) + 1 : 0;
    float m = -INFINITY, l = 0, v[V] = {}, by = 0;
#pragma unroll 1
    for (int from = 0; from < n; from += AT_ONCE) {
        float2 y[AT_ONCE];
        float s[AT_ONCE][V];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) { /* no branch, so that all are on their way at once */
            const int k = min(from + i, n - 1);
            y[i] = __ldcg(ml + k);
            if constexpr (V == 4)
                *(float4 *)s[i] = __ldcg((const float4 *)(part + (size_t)k * HD));
            else
                s[i][0] = __ldcg(part + (size_t)k * HD);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            if (from + i >= n)
                break;
            joint j = joint_of(m, y[i].x);
            m = j.m;
            l = joined(j, l, y[i].y);
#pragma unroll
            for (int k = 0; k < V; k++)
                v[k] = joined(j, v[k], s[i][k]);
        }
    }
    if (n)
        by = closing(t, (size_t)r, head, m, l, d == 0);
    else if (t.a.lse && d == 0)
        t.a.lse[at] = -INFINITY;
    float *out = t.a.dst + at * HD + (size_t)d;
    if constexpr (V == 4)
        *(float4 *)out = make_float4(v[0] * by, v[1] * by, v[2] * by, v[3] * by);
    else
        *out = v[0] * by;
}

/* ---- host -------------------------------------------------------------------------------- */

/* Whether rows may see so many keys that two blocks a multiprocessor pay. */
static inline bool long_context(const attn_args &a)
{
    return !a.window && (size_t)a.n_cols * (size_t)a.page_size > 2 * SHORT;
}

/* At most 16 packed rows a tile; with WAIT_TO_JOIN one row, whose tail and sum this makes. */
void cuda_attn_rounds(struct kdev *d, const tile_args &t);

#endif
