/* decode.cuh - what the products of a few rows (decode.cu) stand on: how a block's shared memory
 * is divided, copies and their barriers, the ring of stages, and the warp that fills it.
 */
#ifndef AERIE_CUDA_FEW_CUH
#define AERIE_CUDA_FEW_CUH

#include "kernels/cuda/dense/product.cuh"

enum {
    FEW_THREADS = PRODUCT_THREADS + 32,
    HELD_BYTES = 56 << 10, /* most of packed rows in shared memory, where that is large */
    LARGE = 160 << 10,     /* shared memory; where it is smaller, fewer columns a block */
    STAGE_BYTES_WANTED = 50 << 10,
    WINDOW = 96 << 10, /* bytes under way at once */
    LEAST_STAGES = 4, MOST_STAGES = 16,
    OWN_BYTES = 512, /* the kernel's own: barriers and the like */
    SLACK = 2048, /* what tiles and columns may read behind the end of the rings */
    SUM_COLS = 16, SUM_ROOMS = 2, /* one is added up while the other is written */
};

/* A unit: what a block multiplies before it adds up the runs, some panels side by side. PLAIN: one.
 * GATED: the same one of both matrices of a pair. JOINED: some of q, k and v, so that one pass over
 * the ring does them all; what is held turns the heads as well, and its units have, with a panel,
 * the one that turns with it. */
enum unit_kind { PLAIN, GATED, JOINED };

enum { MOST_PARTS = 4, JOINED_MOST = 48 /* outputs */ };
static constexpr inline __host__ __device__ int parts_of(int kind)
{
    return kind == PLAIN ? 1 : kind == GATED ? 2 : (int)MOST_PARTS;
}

/* The panels of one matrix that are in units. PLAIN, GATED: panel u is in unit u; JOINED: in unit u
 * is panel first + (u >> shift) * times + (u & mask). */
struct part {
    const uint8_t *w; /* panel 0 */
    uint32_t at;      /* where it begins in a stage, in bytes */
    int rows;         /* of a panel */
    int mat;
    int first, shift, times, mask;
};

/* Which units of some parts a block has: number blockIdx.x - lo, if that is less than n, and every
 * n-th behind it, of `units` in all; and how they lie in memory. */
struct deal {
    int lo, n, units;
    int positions; /* of k in a stage */
    struct cut cut;
    int parts, rows; /* rows of all parts */
    struct part part[MOST_PARTS];
    uint32_t
        output[JOINED_MOST]; /* JOINED: where its row lies, and what it is of (struct output) */
};

/* A JOINED unit's output, in one word, so that each lane finds its own without a branch: where its
 * row begins in a stage (bits 0 to 15, in units of 16 bytes), the rows of its panel (5 bits), its
 * number among them (5), its part (2). Behind the unit's last one that one is repeated. */
struct output {
    uint32_t bits;
    __host__ __device__ __forceinline__ uint32_t at() const { return (bits & 0xffff) * 16; }
    __host__ __device__ __forceinline__ int rows() const { return bits >> 16 & 31; }
    __host__ __device__ __forceinline__ int row() const { return bits >> 21 & 31; }
    __host__ __device__ __forceinline__ int part() const { return bits >> 26 & 3; }
};

/* Where things lie in shared memory, how much a stage has, and what else the feeder needs, which
 * reads no other parameters: whatever it does before the first copy, memory idles. So what it reads
 * first lies together in front. */
struct few {
    int deals;
    int stages, stage; /* of the ring; bytes */
    int window;        /* stages that are under way at most */
    const uint8_t *x;  /* packed rows; NULL: the block packs its row itself */
    int cols, group;   /* columns: all, of a block */
    struct deal deal[MAX_MATS];
    int column;        /* bytes of one */
    int rows_at;       /* in a stage: rows */
    int held_at, sums_at;
    int sum_cols;                        /* columns that are added up at once */
    int head_shift;                      /* a head has 2^head_shift elements */
    int half[MAX_MATS], lists[MAX_MATS]; /* panels of half a head; where the lists of one begin */
    uint32_t unit[MAX_MATS]; /* FP8: what the weights of one are multiples of (fp8_pair()) */
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

/* Whether a phase is over; for a whole warp. */
__device__ __forceinline__ bool barrier_done(uint32_t b, uint32_t phase)
{
    int done;
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "mbarrier.test_wait.parity.shared.b64 done, [%1], %2;\n"
                 "selp.s32 %0, 1, 0, done;\n"
                 "}"
                 : "=r"(done)
                 : "r"(b), "r"(phase)
                 : "memory");
    return __all_sync(~0u, done);
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

/* ---- a block's units ------------------------------------------------------------------------ */

/* Stays in a register. A parameter that is indexed takes some 50 cycles, and the compiler would
 * rather read it again wherever it is needed. */
__device__ __forceinline__ void keep(int &v) { asm("" : "+r"(v)); }
__device__ __forceinline__ void keep(uint32_t &v) { asm("" : "+r"(v)); }

/* Is worked out before what follows. */
__device__ __forceinline__ void pin(int &v)
{
    asm volatile("" : "+r"(v));
}
__device__ __forceinline__ void pin(uint32_t &v)
{
    asm volatile("" : "+r"(v));
}

/* A block's units, one after the other. The first deal is looked at where it lies: an index would
 * have to be there before what it indexes can be asked for. */
struct course {
    int deal, unit, n, units;
    __device__ __forceinline__ explicit course(const few &f) : deal(0)
    {
        look(f.deal[0]);
        if (none())
            enter(f);
    }
    __device__ __forceinline__ void look(const struct deal &d)
    {
        n = d.n, units = d.units, unit = (int)blockIdx.x - d.lo;
    }
    __device__ __forceinline__ bool none() const { return unit < 0 || unit >= min(n, units); }
    __device__ __forceinline__ bool over() const { return units == 0; }
    __device__ __forceinline__ void enter(const few &f) /* the next deal that has any for us */
    {
#pragma unroll 1
        do {
            if (++deal >= f.deals) {
                units = 0;
                return;
            }
            look(f.deal[deal]);
        } while (none());
    }
    __device__ __forceinline__ void next(const few &f)
    {
        unit += n;
        if (unit >= units)
            enter(f);
    }
    template <int KIND> __device__ __forceinline__ int panel(const struct part &a) const
    {
        return KIND == JOINED ? a.first + (unit >> a.shift) * a.times + (unit & a.mask) : unit;
    }
};

/* Columns of this block. */
__device__ __forceinline__ int group_cols(const few &f)
{
    return min(f.cols - (int)blockIdx.y * f.group, f.group);
}

/* ---- the feeder ----------------------------------------------------------------------------- */

/* The stages of a block's units: the n chunks from the first, as they lie in a panel. */
template <int KIND, int BYTES> struct stages {
    static constexpr int PARTS = parts_of(KIND);
    course at;
    int i, first, n;
    int positions, rows, parts; /* of the unit */
    struct cut cut;
    const uint8_t *w[PARTS]; /* of the stage, in each part's panel */
    int chunk[PARTS];        /* bytes */
    uint32_t place[PARTS];   /* in a stage of the ring */
    __device__ __forceinline__ explicit stages(const few &f) : at(f)
    {
        enter(f.deal[0]);
        if (at.deal)
            enter(f.deal[at.deal]);
    }
    __device__ __forceinline__ bool over() const { return at.over(); }
    __device__ __forceinline__ void enter(const struct deal &d) /* a unit */
    {
        positions = d.positions, rows = d.rows, parts = d.parts, cut = d.cut;
        keep(positions), keep(rows), keep(cut.each), keep(cut.runs), keep(cut.rest);
#pragma unroll
        for (int j = 0; j < PARTS; j++) {
            chunk[j] = d.part[j].rows * K_CHUNK * BYTES, place[j] = d.part[j].at;
            keep(chunk[j]), keep(place[j]);
            w[j] = d.part[j].w + (uint64_t)(uint32_t)at.panel<KIND>(d.part[j]) *
                                     (uint32_t)(cut.chunks * chunk[j]);
        }
        i = first = 0;
        size();
    }
    __device__ __forceinline__ void size()
    {
        n = chunks_before(cut, min(i + positions, cut.each)) - first;
    }
    __device__ __forceinline__ void next(const few &f)
    {
        i += positions;
        if (i >= cut.each) {
            at.next(f);
            if (!over())
                enter(f.deal[at.deal]);
            return;
        }
#pragma unroll
        for (int j = 0; j < PARTS; j++)
            w[j] += n * chunk[j];
        first += n;
        size();
    }
};

template <int KIND, bool HELD, int BYTES>
__device__ __forceinline__ void feed_weights(const few &f, const stages<KIND, BYTES> &s,
                                             const ring &r)
{
    const int rows = HELD ? 0 : group_cols(f);
    feed_expect(r.filled(), s.n * (s.rows * BYTES + rows * 2) * K_CHUNK);
#pragma unroll
    for (int j = 0; j < s.PARTS; j++)
        if (KIND != JOINED || j < s.parts)
            feed(r.place() + s.place[j], s.w[j], s.n * s.chunk[j], r.filled());
    if (HELD)
        feed_end(r.filled());
}

template <int KIND, int BYTES>
__device__ __forceinline__ void feed_rows(const few &f, const stages<KIND, BYTES> &s, const ring &r)
{
    const int cols = group_cols(f);
    const uint8_t *group = f.x + (size_t)blockIdx.y * (size_t)(f.group * f.column);
    feed(r.place() + (uint32_t)f.rows_at, group + (size_t)(s.first * cols) * K_CHUNK_BYTES,
         s.n * cols * K_CHUNK_BYTES, r.filled());
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

/* What comes behind the wait: held rows, or those of the stages that were asked for before. */
template <int KIND, bool HELD, int BYTES>
__device__ __forceinline__ void feed_after(const few &f, ring r, int early, uint32_t held,
                                           uint32_t held_full)
{
    if (!f.x)
        return;
    pdl_wait();
    if (HELD) {
        feed_expect(held_full, f.cols * f.column);
        feed(held, f.x, f.cols * f.column, held_full);
        feed_end(held_full);
        return;
    }
    stages<KIND, BYTES> s(f);
#pragma unroll 1
    for (int i = 0; i < early; i++, s.next(f), r.next())
        feed_rows(f, s, r);
}

/* The rest of a block's stages; s and r: the first. Weights that fill the ring come before the
 * wait. */
template <int KIND, bool HELD, int BYTES>
__device__ __forceinline__ void feed_rest(const few &f, stages<KIND, BYTES> &s, ring r,
                                          uint32_t held, uint32_t held_full)
{
    const ring start = r;
    struct window behind = {r, 1};
#pragma unroll 1
    for (int n = 1;; n++) {
        s.next(f), r.next();
        if (n == r.stages || (n < r.stages && s.over()))
            feed_after<KIND, HELD, BYTES>(f, start, n, held, held_full);
        if (s.over())
            return;
        if (n >= r.stages)
            barrier_wait(r.emptied(), r.phase ^ 1);
        if (HELD)
            behind.wait(f);
        feed_weights<KIND, HELD>(f, s, r);
        if (!HELD && n >= r.stages)
            feed_rows(f, s, r);
    }
}

__device__ __forceinline__ void fence_barriers()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

/* The feeder, a warp. The first stage is asked for before anything else is done: with one barrier,
 * as soon as that is there. The other warps wait for the rest of them (wait_for_barriers()). */
template <int KIND, bool HELD, int BYTES>
__device__ __forceinline__ void feed_block(const few &f, const ring &r, uint32_t held,
                                           uint32_t held_full)
{
    const bool one = threadIdx.x % 32 == 0, feeds = threadIdx.x % 32 < FEED_LANES;
    stages<KIND, BYTES> s(f);
    if (one) {
        barrier_init(r.full, FEED_LANES);
        fence_barriers();
    }
    __syncwarp();
    if (feeds)
        feed_weights<KIND, HELD>(f, s, r);
    if (one) {
        barrier_init(r.empty, K_SPLITS);
#pragma unroll 1
        for (int i = 1; i < r.stages; i++) {
            barrier_init(r.full + (uint32_t)i * 8, FEED_LANES);
            barrier_init(r.empty + (uint32_t)i * 8, K_SPLITS);
        }
        barrier_init(held_full, FEED_LANES);
        fence_barriers();
    }
    __syncwarp();
    asm volatile("bar.arrive 2, %0;" ::"n"((int)FEW_THREADS) : "memory");
    if (feeds)
        feed_rest<KIND, HELD>(f, s, r, held, held_full);
}
__device__ __forceinline__ void wait_for_barriers()
{
    asm volatile("bar.sync 2, %0;" ::"n"((int)FEW_THREADS) : "memory");
}

#endif
#endif
