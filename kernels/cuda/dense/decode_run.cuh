/* decode_run.cuh - the decode kernel: products of bf16 matrices with decode rows, limited by
 * memory bandwidth. decode.cu has its forms for bf16 and FP8, decode_packed.cu those for weights
 * packed in blocks.
 *
 * A matrix of 20 to 100 MB is read in 5 to 25 us, so the memory must never idle. Every
 * multiprocessor has one block. The block's producer warp requests as many of the block's weights
 * as its ring in shared memory holds before it waits for the previous kernel; eight consumer warps
 * multiply. Panels (base/panel.cuh) are stored in the order in which they are read, so a stage of
 * the ring is one bulk copy for each panel; unlike loads by threads, bulk copies do not hold up
 * other loads.
 *
 * A matrix quantized to FP8 (fp8.cuh) is read in that form, half the bytes. Its weights are
 * converted to bf16 in registers; everything else is the same, to the last bit. (Slower: two warps
 * for each k split, larger batches.) The same holds for weights packed in blocks (packed.cuh),
 * whose scales are a second copy for each panel of a stage.
 *
 * A unit is a panel, or two successive ones, or with GLU the same panel of both matrices, or panels
 * of q, k and v side by side, so that rows are read once for all of them. If the rows are resident,
 * such a unit has the panels that rope pairs with each other; then no kernel has to follow for the
 * heads, and other blocks contribute only the sums of squares. A unit's rows of weights form tiles
 * of eight. Each consumer warp accumulates one k split (decode_pipeline.cuh). At the end of a unit
 * one warp a row reduces the splits (decode_epilogue.cuh) while the others go on.
 *
 * Rows of activations are resident in shared memory, or come with the weights of their stage. A
 * single row of one term is packed in the prologue: every block applies the pending residual
 * update, normalises and packs the row for itself. (For two to eight rows this was no faster than
 * packing them in a kernel before.)
 *
 * Rows of weights behind a panel's end and columns behind the last row have undefined values; the
 * results are not used.
 *
 * The order of summation is that of product.cuh.
 */
#pragma once

#include "kernels/cuda/dense/decode_epilogue.cuh"

#include <type_traits>

#ifdef __CUDACC__

/* ---- the prologue of a single row ----------------------------------------------------------- */

/* The prologue has to be little code, because it runs once and its instructions have to be fetched
 * from memory while the weights are (measured: results-h200.md, sixth round). So it supports only
 * what PACK_PROLOGUE (route.c) accepts: floats and bf16 norm weights that can be loaded four at a
 * time, whole chunks, one term. The bits are those of base/row.cuh. */

__device__ __forceinline__ void fetch_part(const float *src, int n, row_part &x)
{
#pragma unroll
    for (int j = 0; j < ROW_REGS; j++)
        x.v[j] = row_index(0, j) < n ? __ldcg((const float4 *)(src + row_index(0, j)))
                                     : make_float4(0, 0, 0, 0);
}

/* x = pack(row), for a row without a norm. */
__device__ __forceinline__ void pack_as_is(const product &p, uint16_t *x)
{
    const int n = p.in.n;
#pragma unroll 1
    for (int from = 0; from < n; from += 4 * ROW_STEP) {
        float4 v[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (row_index(from, j) < n)
                v[j] = __ldcg((const float4 *)(p.in.src + row_index(from, j)));
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (row_index(from, j) < n)
                put_short(x + row_index(from, j), false, v[j]);
    }
}

/* x = pack(norm(row)), after row (+)= post(src) if an update is pending. y: the row before its
 * norm. */
__device__ __forceinline__ void pack_normed(const product &p, const short_weights &w,
                                            const short_weights &post, uint16_t *x, float *scratch,
                                            row_part &y)
{
    const int n = p.in.n;
    const bool updates = p.update.src != NULL;
    row_part old;
    fetch_part(updates ? p.update.src : p.in.src, n, y);
    if (updates && p.update.add)
        fetch_part(p.in.src, n, old);
#pragma unroll 1
    for (int pass = updates ? 0 : 1; pass < 2; pass++) { /* a loop, to have the norm's code once */
        const struct norm &norm = pass ? p.in.norm : p.update.post;
        float inv = row_inverse_short(y, n, norm, scratch + pass * ROW_WARPS);
#pragma unroll
        for (int j = 0; j < ROW_REGS; j++) {
            float4 z = normed_short(norm, y.v[j], inv, pass ? w.v[j] : post.v[j]);
            if (pass) {
                if (row_index(0, j) < n)
                    put_short(x + row_index(0, j), false, z);
                continue;
            }
            if (p.update.add)
                z = plus(z, old.v[j]);
            y.v[j] = z;
        }
    }
}

/* Packs the row; y: the row before its norm. */
__device__ __forceinline__ void pack_row_fused(const product &p, const short_weights &w,
                                               const short_weights &post, uint16_t *x,
                                               float *scratch, row_part &y)
{
    if (p.in.norm.kind == NORM_NONE && !p.update.src)
        pack_as_is(p, x);
    else
        pack_normed(p, w, post, x, scratch, y);
}

/* The first block stores the updated row, which every block has computed for itself, after all
 * blocks have read the old one. */
__device__ __forceinline__ void store_updated_row(const product &p, const row_part &y)
{
    unsigned *readers = p.update.readers;
    if (threadIdx.x == 0) {
        while (WAITS && load_acquire(readers) < gridDim.x)
            ;
        *readers = 0;
    }
    row_barrier();
    store_part(p.update.x, p.in.n, y);
}

/* ---- the kernel ----------------------------------------------------------------------------- */

/* Blocks (n_sm or as many as have units, groups of columns). A block prepares its first unit, and
 * loads that unit's first weights into registers if they have arrived, before it waits for the
 * previous kernel. Code and parameters of the producer warp come first, so that they are fetched
 * first. */
template <int XT, int NT, int KIND, int ROWS, int STORED>
__global__ void __launch_bounds__(DECODE_THREADS, 1)
    decode_kernel(const __grid_constant__ struct decode_args f,
                  const __grid_constant__ struct product p)
{
    constexpr bool RESIDENT = is_resident(ROWS);
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ uint64_t full[MAX_STAGES], empty[MAX_STAGES], resident_full;
    __shared__ float scratch[2 * ROW_WARPS];
    __shared__ __align__(16) uint8_t zeros[zero_bytes(XT, ROWS)];
    const uint32_t base = shared_at(shared);
    address_ring r = {base, shared_at(full), shared_at(empty), f.stages, f.stage, {}};
    const uint32_t resident = base + (uint32_t)f.resident_at,
                   resident_at = shared_at(&resident_full);
    const int warp = (int)threadIdx.x / 32;
    if (__builtin_expect(warp == K_SPLITS, 1)) {
        producer_warp<KIND, RESIDENT, STORED>(f, r, resident, resident_at);
        return;
    }
    if (KIND == UNIT_GATED || !p.row_epilogue.is_qkv)
        pdl_trigger();
    keep(r.at), keep(r.full), keep(r.empty);

    const bool packs = ROWS == FUSED_ROW && !f.x, updates = packs && p.update.src;
    row_part row;
    short_weights w, post;
    if (packs)
        fetch_short(p.in.norm, p.in.n, w);
    if (updates)
        fetch_short(p.update.post, p.in.n, post);
    static_assert(sizeof(zeros) / 16 <= PRODUCT_THREADS);
    if (threadIdx.x < sizeof(zeros) / 16)
        ((uint4 *)zeros)[threadIdx.x] = make_uint4(0, 0, 0, 0);
    uint32_t none = shared_at(zeros);
    keep(none);
    int sum_buf = 0, first_warp = 0; /* first_warp: the warp that finishes row 0 */
    unit_iter at(f);
    lane_outputs<NT, KIND> mine = lane_outputs_of<NT, KIND, ROWS>(p, f, at, warp);
    constexpr bool PACKED = scale_bytes(STORED) > 0;
    typedef std::conditional_t<PACKED, packed_split<XT, NT, KIND, ROWS, STORED>,
                               split_of_unit<XT, NT, KIND, ROWS, STORED>> split;
    std::conditional_t<PACKED, int, batch<XT, NT, PACKED ? (int)DT_BF16 : STORED>> first;
    split run(f, at, resident, none);
    wait_for_barriers();
    bool ahead = false;
    if constexpr (!PACKED) {
        ahead = RESIDENT && KIND != UNIT_JOINED && mbarrier_done(r.filled(), r.pos.phase);
        if (ahead)
            run.fetch(first, f, r);
    }

    pdl_wait();
    if (p.row_epilogue.is_qkv)
        pdl_trigger(); /* late, because attention reads old cells before its own wait
                          (kdev.late_epoch) */
    fetch_lane_outputs<NT, KIND, ROWS>(p, mine);
    if (packs) {
        pack_row_fused(p, w, post, (uint16_t *)(shared + f.resident_at), scratch, row);
        row_barrier();
    } else if (RESIDENT) {
        mbarrier_wait(resident_at, 0);
    }
    if (updates && threadIdx.x == 0) /* the values have been read: nothing to wait for */
        asm volatile("red.add.relaxed.gpu.global.u32 [%0], 1;" ::"l"(p.update.readers) : "memory");

    float *const sums = (float *)(shared + f.sums_at);
    for (;;) {
        float acc[XT][sums_of(NT, ROWS)][4] = {};
        if (fuses_heads(KIND, ROWS) && run.tiles <= 2) {
            run.template all<2>(acc, f, r);
        } else if constexpr (PACKED) {
            run.template all<NT>(acc, f, r);
        } else {
            if (!ahead)
                run.fetch(first, f, r);
            run.template all<NT>(acc, f, r, first);
        }
        ahead = false;
        finish_unit<XT, NT, KIND, ROWS>(p, f, acc, sums, sum_buf, mine);
        at.next(f);
        if (at.over())
            break;
        first_warp += p.rows;
        mine = lane_outputs_of<NT, KIND, ROWS>(p, f, at, (warp - first_warp) & ((int)K_SPLITS - 1));
        fetch_lane_outputs<NT, KIND, ROWS>(p, mine);
        run = split(f, at, resident, none);
    }
    if (updates && blockIdx.x == 0)
        store_updated_row(p, row);
    if (threadIdx.x % 32 == 0 && mine.of[0].row < p.rows)
        STAMP_BLOCK(ENDS, 0);
}

#endif

/* ---- host ------------------------------------------------------------------------------------ */

/* Positions of a stage: a multiple of what is multiplied at once. */
static int whole_batches(int positions, int stored)
{
    return scale_bytes(stored) ? max_int(positions / 2 * 2, 2)
           : positions > 4    ? positions / 4 * 4
                              : positions;
}

/* log2 of n, a power of two. */
static int shift_of(int n)
{
    int s = 0;
    while (n >> (s + 1))
        s++;
    return s;
}

/* Adds a matrix to the units of a set. half: each unit has two of its panels, `half` panels apart;
 * 0: one panel. */
static void add_panels(struct unit_set *set, const struct product *p, int mat, int half)
{
    const struct panels *l = &p->m[mat].panels;
    for (int second = 0; second < (half ? 2 : 1); second++) {
        CHECK(set->parts < MAX_PARTS);
        struct unit_part *a = &set->part[set->parts++];
        *a = {p->m[mat].w,
              0,
              0,
              0,
              l->rows,
              mat,
              second * half,
              half ? shift_of(half) : 0,
              half ? 2 * half : 1,
              half ? half - 1 : 0};
        set->rows += l->rows;
    }
    set->units = half ? l->n / 2 : l->n;
    set->ksplit = l->ksplit;
}

/* The form_ functions define the units of a product. UNIT_GATED: */
static void form_pairs(const struct product *p, struct decode_args *f) /* gate and up */
{
    f->n_sets = 1;
    add_panels(&f->set[0], p, 0, 0);
    add_panels(&f->set[0], p, 1, 0);
}

static void form_singles(const struct product *p, struct decode_args *f)
{
    for (int i = 0; i < p->n_mats; i++)
        add_panels(&f->set[f->n_sets++], p, i, 0);
}

/* Two successive panels of a matrix. */
static void form_doubles(const struct product *p, struct decode_args *f)
{
    struct unit_set *set = &f->set[f->n_sets++];
    const int panels = p->m[0].panels.n;
    add_panels(set, p, 0, 0), add_panels(set, p, 0, 0);
    for (int j = 0; j < 2; j++)
        set->part[j].first = j, set->part[j].times = panels - 1;
    set->units = (panels + 1) / 2;
}

/* Units that finish heads: panels that rope pairs with each other; k and v in one unit, if a warp
 * has lanes for both. */
static void form_heads(const struct product *p, struct decode_args *f)
{
    const struct heads *h = &p->row_epilogue.heads;
    int lists = 0;
    f->head_shift = shift_of(h->head_dim);
    for (int i = 0; i < p->n_mats; i++) {
        const struct panels *l = &p->m[i].panels;
        const bool beside = i == HEAD_V && 4 * l->rows <= 32 && l->rows == p->m[HEAD_K].panels.rows;
        f->half[i] = h->head_dim / (2 * l->rows), f->lists[i] = lists;
        lists += l->n / 2 * p->rows * 2 * f->half[i];
        f->n_sets += !beside;
        add_panels(&f->set[f->n_sets - 1], p, i, f->half[i]);
    }
}

/* Units of q, k and v: one or two panels of q, one of k, one of v. */
static void form_joined(const struct product *p, struct decode_args *f)
{
    f->n_sets = 1;
    for (int i = 0; i < p->n_mats; i++)
        add_panels(&f->set[0], p, i, p->m[i].panels.n > p->m[1].panels.n);
}

/* Assigns units of `rows` rows each to blocks from .. to - 1 and returns the most rows that any
 * block then has. load: rows of each block, updated if `keep`. */
static int assign_to(int *load, int n_sm, int from, int to, int units, int rows, bool keep)
{
    int most = 0;
    for (int b = 0; b < n_sm; b++) {
        int mine = b < from || b >= to ? 0 : (units - (b - from) + to - from - 1) / (to - from);
        int sum = load[b] + max_int(mine, 0) * rows;
        most = max_int(most, sum);
        if (keep)
            load[b] = sum;
    }
    return most;
}

/* A block with units of several sets begins with the last set, whose units are smaller if sizes
 * differ (measured: results-h200.md, sixth round). */
static void order_sets(struct decode_args *f)
{
    const struct unit_set *first = &f->set[0];
    bool several = false;
    for (int i = 1; i < f->n_sets; i++) {
        const struct unit_set *d = &f->set[i];
        several |= d->lo < first->lo + min_int(first->n, first->units) &&
                   first->lo < d->lo + min_int(d->n, d->units);
    }
    for (int i = 0, j = f->n_sets - 1; several && i < j; i++, j--) {
        const struct unit_set d = f->set[i];
        f->set[i] = f->set[j], f->set[j] = d;
    }
}

/* Assigns the units so that every block has about the same number of bytes to read: the units of
 * each set go to a range of blocks, bounded by blocks at which the load of the sets before changes,
 * such that the largest load is smallest. Returns the number of blocks that have units. */
static int assign_units(const struct kdev *d, struct decode_args *f)
{
    enum { MAX_SM = 512 };
    int load[MAX_SM] = {}, n_sm = min_int(d->gpu.n_sm, MAX_SM), blocks = 0;
    for (int i = 0; i < f->n_sets; i++) {
        struct unit_set *set = &f->set[i];
        int best = INT32_MAX, at[3 * MAX_MATS], n = 0;
        for (int b = 0; b < n_sm && n < 3 * MAX_MATS - 1; b++)
            if (!b || load[b] != load[b - 1])
                at[n++] = b;
        at[n] = n_sm;
        for (int from = 0; from < n; from++)
            for (int to = n; to > from; to--) {
                int most =
                    assign_to(load, n_sm, at[from], at[to], set->units, set->rows, false);
                if (most < best)
                    best = most, set->lo = at[from], set->n = at[to] - at[from];
            }
        assign_to(load, n_sm, set->lo, set->lo + set->n, set->units, set->rows, true);
        blocks = max_int(blocks, set->lo + min_int(set->n, set->units));
    }
    order_sets(f);
    return blocks;
}

/* Two buffers if a block has more than one unit. */
static size_t sums_bytes(const struct decode_args *f, int tiles)
{
    const bool one = f->n_sets == 1 && f->set[0].units <= f->set[0].n && f->group <= SUM_COLS;
    return (size_t)(one ? 1 : SUM_BUFS) * K_SPLITS * (size_t)(f->sum_cols * sum_pitch(tiles)) *
           sizeof(float);
}

/* Bytes of a stage beside its weights and rows: those before parts (place_parts()). */
static int skew_bytes(bool joined, int stored)
{
    return joined && stored == DT_BF16 ? MAX_PARTS * 128 : 0;
}

/* Bytes from an output's first weights of a chunk to the next output's. */
static int bytes_apart(int stored)
{
    return stored == DT_BF16 ? (int)UNIT_BYTES : code_bytes(stored);
}

/* The most bytes of blocks of a stage of so many positions, of a unit of so many rows. */
static int blocks_bytes(int positions, int rows, int stored)
{
    return (last_block(BLOCK_CHUNKS - 1 + positions - 1) + 1) * K_SPLITS * block_bytes(stored) *
           rows;
}

/* Sets where each part is in a stage: the chunks of all parts, then their scales, then their
 * blocks. UNIT_JOINED with bf16: output i of a unit begins at bank 4 * (i % 8), so that a tile of
 * outputs of two panels is loaded without bank conflicts if their numbers of rows are the same
 * modulo 8. */
static void place_parts(struct unit_set *set, bool joined, int stored)
{
    uint32_t at = 0;
    int n = 0;
    for (int j = 0; j < set->parts; j++) {
        struct unit_part *a = &set->part[j];
        if (skew_bytes(joined, stored))
            at += ((uint32_t)n - at / UNIT_BYTES) % 8 * UNIT_BYTES;
        a->at = at;
        for (int row = 0; joined && row < a->rows; row++) {
            uint32_t from = at + (uint32_t)(row * bytes_apart(stored));
            CHECK(n < JOINED_MAX && from / 16 <= 0xffff);
            set->output[n++] = from / 16 | (uint32_t)(a->rows << 16 | row << 21 | j << 26);
        }
        at += (uint32_t)(set->positions * K_SPLITS * code_bytes(stored) * a->rows);
    }
    for (int j = 0; j < set->parts; j++) {
        set->part[j].scales = at;
        at += (uint32_t)(in_pairs(set->positions) * K_SPLITS * scale_bytes(stored) *
                         set->part[j].rows);
    }
    for (int j = 0; j < set->parts; j++) {
        set->part[j].blocks = at;
        at += (uint32_t)blocks_bytes(set->positions, set->part[j].rows, stored);
    }
    for (int i = n; joined && i < JOINED_MAX; i++)
        set->output[i] = set->output[n - 1];
}

/* Bytes that are read behind the last chunk of a stage with `cols` columns, for absent columns, or
 * somewhat more, so that the next stage begins at a multiple of 128 bytes. They are part of the
 * stage, because the next one may be on its way. */
static int absent_columns_bytes(int cols)
{
    const size_t absent = cuda_round((size_t)cols, cols <= 8 ? 8 : 16) - (size_t)cols;
    return (int)cuda_round(absent * K_CHUNK_BYTES, 128);
}

/* The same for absent rows of the weights (see eight), where no columns follow the weights. tiles:
 * the tiles of eight rows that a warp loads, of all parts. UNIT_JOINED: absent rows are the last
 * one. */
static int absent_rows_bytes(const struct decode_args *f, int tiles, bool joined, int stored)
{
    int behind = 0;
    for (int i = 0; i < f->n_sets && !joined; i++)
        for (int j = 0; j < f->set[i].parts; j++)
            behind = max_int(behind, 8 * tiles / f->set[i].parts - f->set[i].part[j].rows);
    return (int)cuda_round((size_t)(behind * bytes_apart(stored)), 128);
}

/* Divides shared memory; own: bytes that the kernel uses statically. If rows come in the stages,
 * all sets have the same number of positions a stage. Returns the dynamic shared memory in
 * bytes. */
static size_t divide_shared(const struct kdev *d, const struct product *p, int tiles, bool joined,
                            bool resident, int stored, size_t own, struct decode_args &f)
{
    int cols = p->rows * p->x.terms, wide = 0, each = 1;
    f.x = (const uint8_t *)p->x.x, f.cols = cols, f.column = p->x.kp * 2;
    f.group = resident ? cols : decode_group(&d->gpu);
    f.sum_cols = min_int(cols, SUM_COLS);
    int in_stage = resident ? 0 : min_int(cols, f.group);
    for (int i = 0; i < f.n_sets; i++) {
        wide = max_int(wide, f.set[i].rows);
        each = max_int(each, f.set[i].ksplit.each);
    }
    int of_rows = K_SPLITS * K_CHUNK_BYTES * in_stage;
    const int of_scales = K_SPLITS * scale_bytes(stored) * wide; /* of one position */
    int of_weights = K_SPLITS * code_bytes(stored) * wide + of_scales;
    size_t sums = sums_bytes(&f, tiles);
    size_t rows = resident ? cuda_round((size_t)cols * (size_t)p->x.kp * 2, 128) : 0;
    size_t left = d->gpu.smem_max - SLACK - sums - rows - own;
    int absent = resident ? absent_rows_bytes(&f, tiles, joined, stored)
                          : absent_columns_bytes(in_stage);
    int wanted = min_int(STAGE_BYTES_WANTED, (int)(left / MIN_STAGES) - absent) -
                 blocks_bytes(BLOCK_CHUNKS, wide, stored);
    int positions =
        min_int(whole_batches(max_int(wanted / (of_weights + of_rows), 1), stored), each);
    int beside = skew_bytes(joined, stored) + positions % 2 * of_scales, blocks = 0;
    for (int i = 0; i < f.n_sets; i++) {
        struct unit_set *set = &f.set[i];
        int fit = positions * wide / set->rows;
        set->positions =
            min_int(resident ? whole_batches(fit, stored) : positions, set->ksplit.each);
        place_parts(set, joined, stored);
        blocks = max_int(blocks, blocks_bytes(set->positions, set->rows, stored));
    }
    beside += blocks;
    f.rows_at = positions * of_weights + beside;
    f.stage = positions * (of_weights + of_rows) + beside + absent;
    f.stages = min_int((int)(left / (size_t)f.stage), MAX_STAGES);
    CHECK(f.stages >= 2);
    f.window = min_int(max_int(WINDOW / f.stage, 2), f.stages);
    f.resident_at = f.stages * f.stage;
    f.sums_at = f.resident_at + (int)rows;
    return (size_t)f.sums_at + SLACK + sums;
}

template <int XT, int NT, int KIND, int ROWS, int STORED>
static void run(struct kdev *d, struct product *p)
{
    struct decode_args f = {};
    for (int i = 0; i < p->n_mats && STORED == STORED_FP8; i++)
        f.scale[i] = fp8_factor(p->m[i].unit);
    if (KIND == UNIT_GATED)
        form_pairs(p, &f);
    else if (KIND == UNIT_PLAIN)
        form_singles(p, &f);
    else if (KIND == UNIT_DOUBLE)
        form_doubles(p, &f);
    else if (fuses_heads(KIND, ROWS))
        form_heads(p, &f);
    else
        form_joined(p, &f);
    int blocks = assign_units(d, &f), cols = p->rows * p->x.terms;
    size_t bytes = divide_shared(d, p, NT, KIND == UNIT_JOINED, is_resident(ROWS), STORED,
                                 OWN_BYTES + zero_bytes(XT, ROWS), f);
    dim3 grid((unsigned)blocks, (unsigned)div_up(cols, f.group));
    const auto kernel = decode_kernel<XT, NT, KIND, ROWS, STORED>;
    if (fuses_heads(KIND, ROWS) || p->update.src) /* blocks wait for each other */
        cuda_launch_resident(d, kernel, grid, DECODE_THREADS, bytes, f, *p);
    else
        cuda_launch(d, kernel, grid, DECODE_THREADS, bytes, f, *p);
}

/* Runs the form of the route. Packed weights stay packed only with one term (packs_on()), so that
 * there are never more than 16 columns. */
template <int STORED> static void run_form(struct kdev *d, struct product *p,
                                           const struct decode_form f)
{
#define RUN(columns_, tiles_, kind_, rows_)                                                  \
    if constexpr ((columns_ == 1 || !scale_bytes(STORED)) &&                                  \
                  (kind_ != UNIT_DOUBLE || in_doubles(STORED)))                               \
        if (f.columns == columns_ && f.tiles == tiles_ && f.kind == kind_ && f.rows == rows_) \
            return run<columns_, tiles_, kind_, rows_, STORED>(d, p);
    DECODE_FORMS(RUN)
#undef RUN
    CHECK(!"a form of the list");
}
