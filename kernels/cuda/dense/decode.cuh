/* decode.cuh - building blocks of the decode kernel (decode_run.cuh): the division of a block's
 * work and of its shared memory, and the producer warp, which fills a ring of stages
 * (base/ring.cuh).
 */
#pragma once

#include "kernels/cuda/base/copy.cuh"
#include "kernels/cuda/base/ring.cuh"
#include "kernels/cuda/dense/packed.cuh"
#include "kernels/cuda/dense/product.cuh"

enum {
    DECODE_THREADS = PRODUCT_THREADS + 32,
    STAGE_BYTES_WANTED = 50 << 10,
    WINDOW = 96 << 10, /* bytes in flight at once */
    MIN_STAGES = 4, MAX_STAGES = 16,
    OWN_BYTES = 512, /* static shared memory of the kernel: barriers and the like */
    SLACK = 2048, /* bytes that may be read behind the rings, for absent tiles and columns */
    SUM_COLS = 16, SUM_BUFS = 2, /* two, so that one is reduced while the other is filled */
};

/* A unit is what a block multiplies before it reduces the k splits: some panels side by side.
 * UNIT_PLAIN: one panel. UNIT_DOUBLE: two successive ones. UNIT_GATED: the same panel of gate and
 * up. UNIT_JOINED: panels of q, k and v, so that one pass over the rows serves all three. With
 * resident rows the kernel also finishes the heads; then a unit has, with each panel, the panel of
 * its rope partners. */
enum { MAX_PARTS = 4 };
static constexpr inline __host__ __device__ int parts_of(int kind)
{
    return kind == UNIT_PLAIN ? 1 : kind == UNIT_JOINED ? (int)MAX_PARTS : 2;
}

/* The panels of one matrix in the units of a set. UNIT_PLAIN, UNIT_GATED: unit u has panel u.
 * UNIT_JOINED: unit u has panel first + (u >> shift) * times + (u & mask). UNIT_DOUBLE: it has
 * panel 2u + first, or if there is none, once more the last one, which is number `times`. */
struct unit_part {
    const uint8_t *w; /* panel 0 */
    uint32_t at;      /* where its chunks begin in a stage, in bytes */
    uint32_t scales, blocks; /* packed weights: where its scales and blocks begin in a stage */
    int rows;         /* rows of a panel */
    int mat;
    int first, shift, times, mask;
};

/* Units of the same shape, and their assignment to blocks: block lo + i, i < n, has units i, i + n,
 * i + 2n, ... of `units`. */
struct unit_set {
    int lo, n, units;
    int positions; /* positions of k in a stage */
    struct ksplit ksplit;
    int parts, rows; /* rows of all parts of a unit */
    struct unit_part part[MAX_PARTS];
    uint32_t output[JOINED_MAX]; /* UNIT_JOINED: the unit's outputs (struct output) */
};

/* One output of a UNIT_JOINED unit in one word, so that each lane finds its output without a
 * branch: where its first weights begin in a stage (bits 0 to 15, in 16 bytes), the rows of its
 * panel (5 bits), its row in the panel (5), its part (2). Entries behind the unit's last output
 * repeat it. */
struct output {
    uint32_t bits;
    __host__ __device__ __forceinline__ uint32_t at() const { return (bits & 0xffff) * 16; }
    __host__ __device__ __forceinline__ int rows() const { return bits >> 16 & 31; }
    __host__ __device__ __forceinline__ int row() const { return bits >> 21 & 31; }
    __host__ __device__ __forceinline__ int part() const { return bits >> 26 & 3; }
};

/* The division of a block's work and shared memory. The memory idles until the producer warp has
 * issued its first copy, so all that the producer reads is here (it reads no other parameters), and
 * what it reads first is in front. */
struct decode_args {
    int n_sets;
    int stages, stage; /* of the ring: stages, bytes of a stage */
    int window;        /* most stages in flight */
    const uint8_t *x;  /* packed rows; NULL: each block packs its row in the prologue */
    int cols, group;   /* columns: all, of a block */
    struct unit_set set[MAX_MATS];
    int column;        /* bytes of a column */
    int rows_at;       /* where the rows are in a stage */
    int resident_at, sums_at;
    int sum_cols;                        /* columns that are reduced at once */
    int head_shift;                      /* a head has 2^head_shift elements */
    int half[MAX_MATS], lists[MAX_MATS]; /* panels of half a head; where each matrix's lists
                                            begin (head_list()) */
    uint32_t scale[MAX_MATS]; /* FP8: each matrix's scale (fp8_factor()) */
};

/* Floats from one column of sums to the next, for `tiles` tiles of eight rows; chosen to avoid bank
 * conflicts, and wide enough for lanes without an output to read. */
static constexpr inline __host__ __device__ int sum_pitch(int tiles)
{
    return (tiles * 8 < 32 ? 32 : tiles * 8) + 8;
}

#ifdef __CUDACC__

/* ---- a block's units ------------------------------------------------------------------------ */

/* Keeps v in a register. Reading an indexed parameter takes about 50 cycles, and the compiler would
 * read it again at each use. */
__device__ __forceinline__ void keep(int &v) { asm("" : "+r"(v)); }
__device__ __forceinline__ void keep(uint32_t &v) { asm("" : "+r"(v)); }

/* Makes the compiler compute v before what follows. */
__device__ __forceinline__ void pin(int &v)
{
    asm volatile("" : "+r"(v));
}
__device__ __forceinline__ void pin(uint32_t &v)
{
    asm volatile("" : "+r"(v));
}

/* Iterates over a block's units. The first set is read at its constant address: with an indexed
 * address, the index would have to be computed before the load can start. */
struct unit_iter {
    int set, unit, n, units;
    __device__ __forceinline__ explicit unit_iter(const decode_args &f) : set(0)
    {
        load(f.set[0]);
        if (none())
            enter(f);
    }
    __device__ __forceinline__ void load(const struct unit_set &d)
    {
        n = d.n, units = d.units, unit = (int)blockIdx.x - d.lo;
    }
    __device__ __forceinline__ bool none() const { return unit < 0 || unit >= min(n, units); }
    __device__ __forceinline__ bool over() const { return units == 0; }
    __device__ __forceinline__ void enter(const decode_args &f) /* the next set in which this
                                                                   block has units */
    {
#pragma unroll 1
        do {
            if (++set >= f.n_sets) {
                units = 0;
                return;
            }
            load(f.set[set]);
        } while (none());
    }
    __device__ __forceinline__ void next(const decode_args &f)
    {
        unit += n;
        if (unit >= units)
            enter(f);
    }
    template <int KIND> __device__ __forceinline__ int panel(const struct unit_part &a) const
    {
        return KIND == UNIT_JOINED   ? a.first + (unit >> a.shift) * a.times + (unit & a.mask)
               : KIND == UNIT_DOUBLE ? min(2 * unit + a.first, a.times)
                                     : unit;
    }
};

/* The number of columns of this block. */
__device__ __forceinline__ int group_cols(const decode_args &f)
{
    return min(f.cols - (int)blockIdx.y * f.group, f.group);
}

/* ---- the producer warp ---------------------------------------------------------------------- */

/* Iterates over the stages of a block's units. A stage has n chunks, from chunk `first` of the
 * panel on. */
template <int KIND, int STORED> struct stage_iter {
    static constexpr int UNIT_PARTS = parts_of(KIND);
    unit_iter at;
    int i, first, n; /* i: the stage's first position */
    int positions, rows, parts; /* of the unit */
    struct ksplit ksplit;
    const uint8_t *w[UNIT_PARTS]; /* the stage's chunks in each part's panel */
    int chunk[UNIT_PARTS];        /* bytes of a chunk */
    uint32_t place[UNIT_PARTS];   /* where the part's chunks go in a stage */
    static constexpr bool PACKED = scale_bytes(STORED) > 0;
    static constexpr int SCALES = PACKED ? UNIT_PARTS : 1;
    const uint8_t *s[SCALES];   /* packed weights: the stage's scales in each part's panel, */
    int of_scales[SCALES];      /* bytes of a position's scales, of whole pairs of positions, */
    uint32_t scales_at[SCALES]; /* where they go in a stage */
    static constexpr int BLOCKS = block_bytes(STORED) ? UNIT_PARTS : 1;
    const uint8_t *b[BLOCKS];   /* the unit's blocks in each part's panel, */
    int of_block[BLOCKS];       /* bytes of all splits' blocks of a number, */
    uint32_t blocks_at[BLOCKS]; /* where they go in a stage */
    __device__ __forceinline__ explicit stage_iter(const decode_args &f) : at(f)
    {
        enter(f.set[0]);
        if (at.set)
            enter(f.set[at.set]);
    }
    __device__ __forceinline__ bool over() const { return at.over(); }
    __device__ __forceinline__ void enter(const struct unit_set &d) /* begins a unit */
    {
        positions = d.positions, rows = d.rows, parts = d.parts, ksplit = d.ksplit;
        keep(positions), keep(rows), keep(ksplit.each), keep(ksplit.splits), keep(ksplit.rest);
#pragma unroll
        for (int j = 0; j < UNIT_PARTS; j++) {
            chunk[j] = d.part[j].rows * code_bytes(STORED), place[j] = d.part[j].at;
            keep(chunk[j]), keep(place[j]);
            const int places = PACKED ? ksplit.each * (int)K_SPLITS : ksplit.chunks;
            uint32_t panel = (uint32_t)(places * chunk[j]);
            if (PACKED) {
                of_scales[j] = d.part[j].rows * K_SPLITS * scale_bytes(STORED);
                scales_at[j] = d.part[j].scales;
                keep(of_scales[j]), keep(scales_at[j]);
                panel += (uint32_t)(in_pairs(ksplit.each) * of_scales[j]);
            }
            const uint32_t whole = panel;
            if (block_bytes(STORED)) {
                of_block[j] = d.part[j].rows * K_SPLITS * block_bytes(STORED);
                blocks_at[j] = d.part[j].blocks;
                keep(of_block[j]), keep(blocks_at[j]);
                panel += (uint32_t)((last_block(ksplit.each - 1) + 1) * of_block[j]);
            }
            w[j] = d.part[j].w + (uint64_t)(uint32_t)at.panel<KIND>(d.part[j]) * panel;
            if (PACKED)
                s[j] = w[j] + (uint32_t)(places * chunk[j]);
            if (block_bytes(STORED))
                b[j] = w[j] + whole;
        }
        i = first = 0;
        size();
    }
    __device__ __forceinline__ void size()
    {
        n = chunks_before(ksplit, min(i + positions, ksplit.each)) - first;
    }
    /* Positions of the stage. */
    __device__ __forceinline__ int length() const { return min(positions, ksplit.each - i); }
    /* Places of chunks of weights in the stage: packed weights have one for every split. */
    __device__ __forceinline__ int places() const { return PACKED ? length() * (int)K_SPLITS : n; }
    /* The stage's first block, and how many. */
    __device__ __forceinline__ int block() const { return i / BLOCK_CHUNKS; }
    __device__ __forceinline__ int blocks() const
    {
        return block_bytes(STORED) ? last_block(i + length() - 1) + 1 - block() : 0;
    }
    /* Bytes of the stage's weights. */
    __device__ __forceinline__ int bytes() const
    {
        const int scales = PACKED ? in_pairs(length()) * scale_bytes(STORED) : 0;
        return rows * (places() * code_bytes(STORED) +
                       (scales + blocks() * block_bytes(STORED)) * (int)K_SPLITS);
    }
    __device__ __forceinline__ void next(const decode_args &f)
    {
        i += positions;
        if (i >= ksplit.each) {
            at.next(f);
            if (!over())
                enter(f.set[at.set]);
            return;
        }
#pragma unroll
        for (int j = 0; j < UNIT_PARTS; j++)
            w[j] += (PACKED ? positions * (int)K_SPLITS : n) * chunk[j];
#pragma unroll
        for (int j = 0; PACKED && j < SCALES; j++)
            s[j] += positions * of_scales[j];
        first += n;
        size();
    }
};

template <int KIND, bool RESIDENT, int STORED>
__device__ __forceinline__ void
issue_weights(const decode_args &f, const stage_iter<KIND, STORED> &s, const address_ring &r)
{
    const int rows = RESIDENT ? 0 : group_cols(f);
    bulk_expect(r.filled(), s.bytes() + s.n * rows * K_CHUNK_BYTES);
#pragma unroll
    for (int j = 0; j < s.UNIT_PARTS; j++)
        if (KIND != UNIT_JOINED || j < s.parts)
            bulk_copy_once(r.place() + s.place[j], s.w[j], s.places() * s.chunk[j], r.filled());
#pragma unroll
    for (int j = 0; s.PACKED && j < s.SCALES; j++)
        if (KIND != UNIT_JOINED || j < s.parts)
            bulk_copy_once(r.place() + s.scales_at[j], s.s[j],
                           in_pairs(s.length()) * s.of_scales[j], r.filled());
#pragma unroll
    for (int j = 0; block_bytes(STORED) && j < s.BLOCKS; j++)
        if (KIND != UNIT_JOINED || j < s.parts)
            bulk_copy_once(r.place() + s.blocks_at[j], s.b[j] + s.block() * s.of_block[j],
                           s.blocks() * s.of_block[j], r.filled());
    if (RESIDENT)
        bulk_issued(r.filled());
}

template <int KIND, int STORED>
__device__ __forceinline__ void issue_rows(const decode_args &f, const stage_iter<KIND, STORED> &s,
                                           const address_ring &r)
{
    const int cols = group_cols(f);
    const uint8_t *group = f.x + (size_t)blockIdx.y * (size_t)(f.group * f.column);
    bulk_copy_once(r.place() + (uint32_t)f.rows_at,
                   group + (size_t)(s.first * cols) * K_CHUNK_BYTES, s.n * cols * K_CHUNK_BYTES,
                   r.filled());
    bulk_issued(r.filled());
}

/* Limits the number of stages in flight; more would only queue up before other loads. */
struct window {
    address_ring r;
    int issued;
    __device__ __forceinline__ void wait(const decode_args &f)
    {
        if (issued++ >= f.window)
            wait_for_next();
    }
    __device__ __forceinline__ void wait_for_next()
    {
        mbarrier_wait(r.filled(), r.pos.phase);
#ifdef STAMPS
        if (arrived++ == 0)
            STAMP_BLOCK(FIRST, 0);
#endif
        r.next();
    }
#ifdef STAMPS
    int arrived = 0;
    unsigned bytes = 0;
    __device__ __forceinline__ void drain()
    {
        while (arrived < issued)
            wait_for_next();
        STAMP_BLOCK(LAST, bytes);
    }
#endif
};

/* Waits for the previous kernel, then issues the copies of resident rows, or the rows of the
 * `early` stages whose weights were issued before. */
template <int KIND, bool RESIDENT, int STORED>
__device__ __forceinline__ void issue_after_wait(const decode_args &f, address_ring r, int early,
                                                 uint32_t resident, uint32_t resident_full)
{
    if (!f.x)
        return;
    pdl_wait();
    if (RESIDENT) {
        bulk_expect(resident_full, f.cols * f.column);
        bulk_copy_once(resident, f.x, f.cols * f.column, resident_full);
        bulk_issued(resident_full);
        return;
    }
    stage_iter<KIND, STORED> s(f);
#pragma unroll 1
    for (int i = 0; i < early; i++, s.next(f), r.next())
        issue_rows(f, s, r);
}

/* Issues the rest of a block's stages; s and r are at the first. As many weights as fill the ring
 * are issued before the wait for the previous kernel. */
template <int KIND, bool RESIDENT, int STORED>
__device__ __forceinline__ void issue_rest(const decode_args &f, stage_iter<KIND, STORED> &s,
                                           address_ring r, uint32_t resident,
                                           uint32_t resident_full)
{
    const address_ring start = r;
    struct window in_flight = {r, 1};
#ifdef STAMPS
    in_flight.bytes = s.bytes();
#endif
#pragma unroll 1
    for (int n = 1;; n++) {
        s.next(f), r.next();
        if (n == r.stages || (n < r.stages && s.over()))
            issue_after_wait<KIND, RESIDENT, STORED>(f, start, n, resident, resident_full);
#ifdef STAMPS
        if (RESIDENT && s.over())
            in_flight.drain();
        in_flight.bytes += s.over() ? 0 : s.bytes();
#endif
        if (s.over())
            return;
        if (n >= r.stages)
            mbarrier_wait(r.emptied(), r.pos.phase ^ 1);
        if (RESIDENT)
            in_flight.wait(f);
        issue_weights<KIND, RESIDENT>(f, s, r);
        if (!RESIDENT && n >= r.stages)
            issue_rows(f, s, r);
    }
}

/* Named barrier at which the producer warp has initialised the mbarriers (1: ROW_BARRIER). */
enum { READY_BARRIER = 2 };

/* The producer warp. It issues the first stage before anything else, as soon as that stage's
 * barrier is initialised. The consumer warps wait for the other barriers (wait_for_barriers()). */
template <int KIND, bool RESIDENT, int STORED>
__device__ __forceinline__ void producer_warp(const decode_args &f, const address_ring &r,
                                              uint32_t resident, uint32_t resident_full)
{
    const bool one = threadIdx.x % 32 == 0, copies = threadIdx.x % 32 < COPY_LANES;
    stage_iter<KIND, STORED> s(f);
    if (one) {
        STAMP_BLOCK(BEGINS, KIND == UNIT_GATED ? STAMP_PAIR
                            : KIND == UNIT_JOINED ? STAMP_HEADS : STAMP_PRODUCT);
        mbarrier_init(r.full, COPY_LANES);
        mbarrier_init_fence();
    }
    __syncwarp();
    if (copies)
        issue_weights<KIND, RESIDENT>(f, s, r);
    if (one) {
        mbarrier_init(r.empty, warp_arrivals(K_SPLITS));
#pragma unroll 1
        for (int i = 1; i < r.stages; i++) {
            mbarrier_init(r.full + (uint32_t)i * 8, COPY_LANES);
            mbarrier_init(r.empty + (uint32_t)i * 8, warp_arrivals(K_SPLITS));
        }
        mbarrier_init(resident_full, COPY_LANES);
        mbarrier_init_fence();
    }
    __syncwarp();
    named_barrier_arrive<READY_BARRIER, DECODE_THREADS>();
    if (copies)
        issue_rest<KIND, RESIDENT>(f, s, r, resident, resident_full);
}
__device__ __forceinline__ void wait_for_barriers()
{
    named_barrier<READY_BARRIER, DECODE_THREADS>();
}

#endif
