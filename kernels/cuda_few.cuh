/* cuda_few.cuh - what the products of a few rows (cuda_few.cu) stand on: how a block's shared memory
 * is divided, copies and their barriers, the ring of stages, and the warp that fills it.
 */
#ifndef AERIE_CUDA_FEW_CUH
#define AERIE_CUDA_FEW_CUH

#include "kernels/cuda_product.cuh"

enum {
    FEW_THREADS = PRODUCT_THREADS + 32,
    HELD_BYTES = 56 << 10, /* most of packed rows in shared memory, where that is large */
    LARGE = 160 << 10,     /* shared memory; where it is smaller, fewer columns a block */
    STAGE_BYTES_WANTED = 45 << 10,
    WINDOW = 96 << 10, /* bytes under way at once */
    LEAST_STAGES = 4, MOST_STAGES = 16,
    SLACK = 2048, /* what tiles and columns may read behind the end of the rings */
    SUM_COLS = 16, SUM_ROOMS = 2, /* one is added up while the other is written */
};

/* A unit: what a block multiplies before it adds up the runs. A panel; or of a gated pair the same
 * panel of both matrices; or of q, k and v the two panels of a head that turn with each other. */
enum unit_kind { PLAIN, GATED, TURNED };

/* Which units of a matrix a block has: number blockIdx.x - lo, if that is less than n, and every
 * n-th behind it, of `units` in all. half: from the one panel of a TURNED unit to the other. */
struct deal {
    int lo, n, units;
    int half, shift; /* 2^shift */
};

/* Where things lie in shared memory, and how much a stage has. */
struct few {
    int stages, stage;      /* of the ring; bytes */
    int window;             /* stages that are under way at most */
    int second_at, rows_at; /* in a stage: the second panel of a unit, rows */
    int held_at, sums_at;
    int head_shift;          /* a head has 2^head_shift elements */
    int mats;                /* matrices that are dealt, the last one first */
    struct deal deal[MAX_MATS];
    int positions[MAX_MATS]; /* of k in a stage */
    int sum_cols;            /* columns that are added up at once */
    int group;               /* columns of a block */
};

/* Floats from one column of sums to the next, for so many tiles of eight rows; no bank twice, and
 * lanes that have no output read no further. */
static constexpr inline __host__ __device__ int sum_pitch(int tiles)
{
    return (tiles * 8 < 32 ? 32 : tiles * 8) + 8;
}

#ifdef __CUDACC__

/* ---- copies --------------------------------------------------------------------------------- */

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define FEED_LANES 32 /* every lane copies, and says so */
#else
#define FEED_LANES 1
#endif

__device__ __forceinline__ void barrier_init(uint32_t b, int n)
{
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(b), "r"(n) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t b)
{
    asm volatile("{\n.reg .b64 s;\nmbarrier.arrive.shared.b64 s, [%0];\n}" ::"r"(b) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint32_t b, uint32_t phase)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n"
                 "}" ::"r"(b),
                 "r"(phase)
                 : "memory");
#else
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.test_wait.parity.shared.b64 done, [%0], %1;\n"
                 "@!done bra again;\n"
                 "}" ::"r"(b),
                 "r"(phase)
                 : "memory");
#endif
}

/* So many bytes will come. By one lane of the feeder; where lanes copy themselves, by nobody. */
__device__ __forceinline__ void feed_expect(uint32_t full, int bytes)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(full), "r"(bytes)
                 : "memory");
#endif
}
/* Copies a multiple of 16 bytes; by the lanes that feed. */
__device__ __forceinline__ void feed(uint32_t to, const uint8_t *from, int bytes, uint32_t full)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n"
                 ".reg .b64 once;\n"
                 "createpolicy.fractional.L2::evict_first.b64 once, 1.0;\n"
                 "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], once;\n"
                 "}" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(full)
                 : "memory");
#else
    for (int i = (int)threadIdx.x % 32 * 16; i < bytes; i += 32 * 16)
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to + i),
                     "l"(from + i)
                     : "memory");
#endif
}
/* All copies of a stage have been asked for. */
__device__ __forceinline__ void feed_end(uint32_t full)
{
#if __CUDA_ARCH__ < 900
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(full) : "memory");
#endif
}

__device__ __forceinline__ uint4 shared16(uint32_t at)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at));
    return v;
}

/* ---- the ring ------------------------------------------------------------------------------- */

struct ring {
    uint32_t at, full, empty; /* shared memory: stages, barriers */
    int stages, stage;
    int slot;
    uint32_t phase;
    __device__ __forceinline__ uint32_t place() const { return at + (uint32_t)(slot * stage); }
    __device__ __forceinline__ uint32_t filled() const { return full + (uint32_t)slot * 8; }
    __device__ __forceinline__ uint32_t emptied() const { return empty + (uint32_t)slot * 8; }
    __device__ __forceinline__ void next()
    {
        if (++slot == stages)
            slot = 0, phase ^= 1;
    }
};

/* ---- the feeder ----------------------------------------------------------------------------- */

/* A block's units, one after the other. */
struct course {
    int mat, unit;
    __device__ __forceinline__ explicit course(const few &f) : mat(f.mats) { enter(f); }
    __device__ __forceinline__ bool over() const { return mat < 0; }
    __device__ __forceinline__ void enter(const few &f) /* the next matrix that has any for us */
    {
        do
            unit = --mat < 0 ? 0 : (int)blockIdx.x - f.deal[mat].lo;
        while (mat >= 0 && (unit < 0 || unit >= min(f.deal[mat].n, f.deal[mat].units)));
    }
    __device__ __forceinline__ void next(const few &f)
    {
        unit += f.deal[mat].n;
        if (unit >= f.deal[mat].units)
            enter(f);
    }
    /* The unit's panel, or its first one. */
    __device__ __forceinline__ int panel(const few &f) const
    {
        const int half = f.deal[mat].half;
        return half ? (unit >> f.deal[mat].shift) * 2 * half + (unit & (half - 1)) : unit;
    }
};

/* Their stages: positions i and on of a unit. */
struct stages {
    course at;
    int i;
    __device__ __forceinline__ explicit stages(const few &f) : at(f), i(0) {}
    __device__ __forceinline__ bool over() const { return at.over(); }
    __device__ __forceinline__ void next(const product &p, const few &f)
    {
        i += f.positions[at.mat];
        if (i < p.m[at.mat].panels.cut.each)
            return;
        i = 0;
        at.next(f);
    }
    /* The stage's chunks, as they lie in a panel: the first and the number. */
    __device__ __forceinline__ int chunks(const product &p, const few &f, int &first) const
    {
        const struct cut &c = p.m[at.mat].panels.cut;
        first = chunks_before(c, i);
        return chunks_before(c, min(i + f.positions[at.mat], c.each)) - first;
    }
};

/* Columns of this block. */
__device__ __forceinline__ int group_cols(const product &p, const few &f)
{
    return min(p.rows * p.x.terms - (int)blockIdx.y * f.group, f.group);
}

template <int KIND, bool HELD>
__device__ __forceinline__ void feed_weights(const product &p, const few &f, const stages &s,
                                             const ring &r)
{
    const mat &m = p.m[s.at.mat];
    int first, n = s.chunks(p, f, first), bytes = n * m.panels.rows * K_CHUNK_BYTES;
    size_t from = (size_t)s.at.panel(f) * panel_bytes(m.panels) +
                  (size_t)(first * m.panels.rows) * K_CHUNK_BYTES;
    const int rows = HELD ? 0 : n * group_cols(p, f) * K_CHUNK_BYTES;
    feed_expect(r.filled(), bytes * (KIND == PLAIN ? 1 : 2) + rows);
    feed(r.place(), m.w + from, bytes, r.filled());
    if (KIND == GATED)
        feed(r.place() + (uint32_t)f.second_at, p.m[1].w + from, bytes, r.filled());
    if (KIND == TURNED)
        feed(r.place() + (uint32_t)f.second_at,
             m.w + from + (size_t)f.deal[s.at.mat].half * panel_bytes(m.panels), bytes, r.filled());
    if (HELD)
        feed_end(r.filled());
}

__device__ __forceinline__ void feed_rows(const product &p, const few &f, const stages &s,
                                          const ring &r)
{
    const int cols = group_cols(p, f);
    int first, n = s.chunks(p, f, first);
    const uint8_t *group =
        (const uint8_t *)p.x.x + (size_t)blockIdx.y * (size_t)(f.group * p.x.kp * 2);
    feed(r.place() + (uint32_t)f.rows_at, group + (size_t)(first * cols) * K_CHUNK_BYTES,
         n * cols * K_CHUNK_BYTES, r.filled());
    feed_end(r.filled());
}

/* How many stages are under way at most, and no more than the ring has: what is beyond only queues
 * up before other loads. */
struct window {
    struct ring r;
    int asked;
    __device__ __forceinline__ void wait(const few &f)
    {
        if (asked++ < f.window)
            return;
        barrier_wait(r.filled(), r.phase);
        r.next();
    }
};

/* Weights that fill the ring come before the wait, the rows that belong to them behind it. */
template <int KIND, bool HELD>
__device__ __forceinline__ void feed_block(const product &p, const few &f, ring r, uint32_t held,
                                           uint32_t held_full)
{
    stages s(f), first = s;
    ring start = r;
    int early = 0;
    struct window behind = {r, 0};
    for (; early < r.stages && !s.over(); early++, s.next(p, f), r.next()) {
        if (HELD)
            behind.wait(f);
        feed_weights<KIND, HELD>(p, f, s, r);
    }
    if (!HELD || p.x.x)
        wait_before();
    if (HELD && p.x.x) {
        int bytes = p.rows * p.x.terms * p.x.kp * 2;
        feed_expect(held_full, bytes);
        feed(held, (const uint8_t *)p.x.x, bytes, held_full);
        feed_end(held_full);
    }
    if (!HELD)
        for (int i = 0; i < early; i++, first.next(p, f), start.next())
            feed_rows(p, f, first, start);
    for (; !s.over(); s.next(p, f), r.next()) {
        barrier_wait(r.emptied(), r.phase ^ 1);
        if (HELD)
            behind.wait(f);
        feed_weights<KIND, HELD>(p, f, s, r);
        if (!HELD)
            feed_rows(p, f, s, r);
    }
}

#endif
#endif
