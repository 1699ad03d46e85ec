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
#include "kernels/cuda_attn.cuh"

#include <limits.h>

enum {
    OWN = K_MAX_STEPS + 1, /* keys that end every row and that only it may see */
    ALONE = 6,             /* a block walks so many tiles faster than it can share them */
    FEW = 4,               /* and so many are never split */
    SHORT = 4096,          /* keys: up to here fewer splits, for the sake of their join */
    RING = 8,              /* tiles whose cells are looked up ahead */
    AT_ONCE = 17,          /* segments that a join reads before it adds */
    JOIN_BLOCK = 128,
};

struct tile_args {
    struct attn_args a;
    float2 *ml;         /* (rows, n_head, most_splits): maximum in powers of two, and sum */
    int32_t *done;      /* (tiles, n_kv): 1 where one block did all, and joined */
    unsigned *counters; /* (tiles, n_kv) */
    float factor;       /* of scores: their exponent of two */
    int page_shift, cap_shift, long_shift;
    int tiles, each;    /* tiles of rows, rows of one */
    int units;          /* blocks that share the splits; 0: one block walks a tile's keys */
    bool fold;          /* the last block of a tile joins */
};

/* A block: WM groups of WN warps, a group taking MI * 16 packed rows, its warps dividing keys for
 * the scores and dimensions for the values. */
template <int HD_, int MI_, int WM_, int WN_, int STAGES_, int BLOCKS_> struct form {
    enum : int {
        HD = HD_, MI = MI_, WM = WM_, WN = WN_, STAGES = STAGES_, BLOCKS = BLOCKS_,
        NT = 32 * WM * WN,
        ROWS = 16 * MI * WM,
        TK = HD > 128 ? 32 : 64,         /* keys of a tile */
        CHUNKS = HD / 8,                 /* 16 bytes each, of a cell */
        EACH = TK * CHUNKS / NT,         /* chunks of K that a thread fetches, and of V */
        STEP = NT / CHUNKS,              /* keys from one of them to the next */
        FOUND = (4 * TK + NT - 1) / NT,  /* keys of four tiles that a thread looks up */
        KT = TK / 8 / WN,                /* tiles of 8 keys of a warp */
        DT = HD / 8 / WN,                /* tiles of 8 dimensions of a warp */
        LG = 4 / WN,                     /* its quarters of the keys, summed apart */
        LT = KT / LG,                    /* tiles of 8 keys in a quarter */
        HELD = MI * DT * 4 <= 32,        /* the joined sums stay in registers */
        TILE_BYTES = TK * HD * 2,
        PAIR_BYTES = 2 * TILE_BYTES,
        TOTAL_AT = STAGES * PAIR_BYTES,
        P_AT = TOTAL_AT + (HELD ? 0 : ROWS * HD * 4),
        MAX_AT = P_AT + (WN > 1 ? ROWS * TK * 2 : 0),
        L_AT = MAX_AT + (WN > 1 ? ROWS * WN * 4 : 0),
        BYTES = L_AT + (WN > 1 ? ROWS * 4 * 4 : 0),
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
    x.shift = n <= FEW ? 3 : 32 - __clz((n - 1) >> (n * TK <= SHORT ? t.cap_shift : t.long_shift));
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

/* Rows [a, b) of a tile that are walked together: of one request, with no gap between what they
 * see, so that every cell from lo to stop is some row's. */
struct pass {
    int a, b;
    int lo, stop;         /* what any row sees */
    int last_lo, first_stop; /* what all see */
    int shift, req;
    bool good;
};

/* Of one warp, the same in all. */
__device__ __forceinline__ pass pass_of(const seen *rows, int a, int b)
{
    if (b - a == 1) {
        const seen x = rows[a];
        return {a, b, x.lo, x.stop, x.lo, x.stop, x.shift, x.req, true};
    }
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

__device__ __forceinline__ pass pass_from(const seen *rows, int a, int n)
{
    pass p = pass_of(rows, a, n);
    if (p.good)
        return p;
    p = pass_of(rows, a, a + 1);
    for (int b = a + 2; b <= n; b++) {
        pass longer = pass_of(rows, a, b);
        if (!longer.good)
            break;
        p = longer;
    }
    return p;
}

/* ---- cells ---------------------------------------------------------------------------------- */

/* Where a walk finds its keys. */
struct cells {
    const int32_t *pages, *expand; /* of the request; of the row, if only one is walked */
    int lo, stop, hi;
};

/* The cells of four tiles of keys, a thread some keys: -1 where there is none. */
template <class S>
__device__ __forceinline__ void find(const tile_args &t, const cells &c, int kv, int tile,
                                     int (&cell)[S::FOUND])
{
    const attn_args &a = t.a;
#pragma unroll
    for (int i = 0; i < S::FOUND; i++) {
        int j = tile * S::TK + (int)threadIdx.x + i * S::NT, slot = -1;
        if (j >= c.lo && j < c.stop) {
            bool paged = j < c.hi;
            slot = paged ? c.pages[j >> t.page_shift] : c.expand[j - c.hi];
            slot = paged ? (slot << t.page_shift) + (j & (a.page_size - 1)) : slot;
        }
        cell[i] = (unsigned)slot < (unsigned)a.n_slots ? slot * a.n_kv + kv : -1;
    }
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

/* Sums over one segment: values, maximum score, and the sum of weights by quarters of a tile. */
template <class S> struct sums {
    float acc[S::MI][S::DT][4], m[S::MI][2], l[S::MI][2][S::LG];
};

/* Sums over the segments so far. */
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
        t.a.lse[row * (size_t)t.a.n_head + (size_t)head] =
            (float)((double)m * 0.69314718055994530942 + log((double)l));
    return keep / l;
}

/* A block's place, and what its threads know about their rows. */
template <class S> struct place {
    int kv, r0, n;        /* kv head, first row, rows */
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
    if constexpr (S::KT == 1) {
        int key = wn * 8 + lane % 8;
#pragma unroll
        for (int k = 0; k < S::HD / 32; k++) {
            uint32_t b[4];
            int chunk = 4 * k + lane / 8;
            matrices(b, keys + (uint32_t)(key * S::HD * 2 + ((chunk ^ (key & 7)) << 4)));
#pragma unroll
            for (int mi = 0; mi < S::MI; mi++) {
                multiply(s[mi][0], q[mi][2 * k], b[0], b[1]);
                multiply(s[mi][0], q[mi][2 * k + 1], b[2], b[3]);
            }
        }
    } else {
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
                float l = x.l[mi][h][g] * by[mi][h];
#pragma unroll
                for (int n = g * S::LT; n < (g + 1) * S::LT; n++)
#pragma unroll
                    for (int i = 2 * h; i < 2 * h + 2; i++)
                        l += s[mi][n][i] = exp2_of(fmaf(s[mi][n][i], t.factor, -at));
                x.l[mi][h][g] = l;
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
    int splits;                /* of the passes so far */
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
    int tails = 0;
    if (!whole) {
        __syncthreads();
        for (int r = tid; r < p.n; r += S::NT)
            rows[r].stop = parted_stop<S::TK>(rows[r]);
        __syncthreads();
        for (int r = p.lane; r < p.n; r += 32)
            tails += any_key(rows[r]);
        tails = __reduce_add_sync(~0u, tails);
        if (x >= t.units)
            c.tails = x - t.units, c.last_tail = min(c.tails + 1, p.n);
    }
    totals<S> all;
    start_totals<S>(p, all);
    bool worked = false;
    while (next_job<S>(t, p, whole, c)) {
        walk<S>(t, p, c.now.w, c.now.tail, c.now.from, c.now.to, whole, all);
        worked = true;
    }
    if (whole) {
        finish<S>(t, p, all);
        return;
    }
    /* a tile whose rows see nothing has its zeros from block 0 */
    int blocks = max(min(c.splits, t.units), 1) + tails;
    if (!t.fold || !(worked || x == 0))
        return;
    if (last_to_arrive(&t.counters[tile * t.a.n_kv + p.kv], (unsigned)blocks))
        for (int i = tid; i < p.n * t.a.group * (S::HD / 4); i += S::NT) {
            int d = i % (S::HD / 4) * 4, at = i / (S::HD / 4);
            join_row<S::HD>(t, p.r0 + at / t.a.group, p.kv * t.a.group + at % t.a.group, d);
        }
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
        t.counters = d->counters;
        t.fold = min_int(t.each, a.rows) * a.group * S::HD <= 1024;
    }
    dim3 grid((unsigned)(t.units ? t.units + min_int(t.each, a.rows) : 1), (unsigned)a.n_kv,
              (unsigned)t.tiles);
    cuda_launch(d, tile_kernel<S>, grid, S::NT, S::BYTES, t);
    size_t items = (size_t)a.rows * (size_t)a.n_head * (S::HD / 4);
    if (t.units && !t.fold)
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
    t.cap_shift = cap_shift_of(a->n_kv);
    t.long_shift = t.cap_shift;
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
