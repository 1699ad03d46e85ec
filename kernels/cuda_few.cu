/* cuda_few.cu - products of bf16 matrices with a few rows (decode, verify, a draft's steps), at the
 * speed of memory.
 *
 * A matrix of 20 to 100 MB is read in 5 to 25 us: what counts is that the memory never idles. So
 * every multiprocessor has one block. One of its warps (the feeder) asks for as many of the block's
 * weights as its ring in shared memory holds before it waits for the kernel before; eight multiply.
 * Panels (cuda_panel.cuh) lie as they are read, so a stage of the ring is one copy by the copy
 * engine, whose requests, unlike those of threads, hold up nobody's loads.
 *
 * A unit is a panel, or with a gate the same panel of both matrices. Its rows of weights are tiles
 * of 16: of a gated pair 8 of each. A warp has one run of k. The rows of activations lie in shared
 * memory or come with the weights of their stage. A single one is folded: every block normalises
 * and cuts it for itself, along with what the product before left to do, and the last block to
 * arrive at a head turns it.
 *
 * Rows of weights behind a panel's last one, and columns behind the last row's, hold whatever lies
 * there; nobody looks at what becomes of them.
 *
 * The order of sums is that of cuda_product.cuh.
 */
#include "kernels/cuda_few.cuh"

#ifdef __CUDACC__

/* ---- multiplying ---------------------------------------------------------------------------- */

/* How a warp reads a unit. In bytes: from one chunk to the next, and of a gated pair from the one
 * matrix to the other; the same of its columns of rows. */
struct strides {
    uint32_t chunk, other;
    uint32_t col_chunk, held; /* held: the columns of this lane in shared memory */
};

/* One lane's share of one chunk. */
template <int MT, int NT, bool GLU> struct chunk_of_unit {
    uint4 a[MT][2], b[NT];
    __device__ __forceinline__ void load(uint32_t w, uint32_t x, const strides &s)
    {
        constexpr uint32_t EIGHT = 8 * K_CHUNK_BYTES;
#pragma unroll
        for (int m = 0; m < MT; m++) {
            a[m][0] = shared16(w + (uint32_t)m * (GLU ? EIGHT : 2 * EIGHT));
            if (GLU)
                a[m][1] = shared16(w + s.other + (uint32_t)m * EIGHT);
            else if (m * 16 + 8 < PANEL_MOST)
                a[m][1] = shared16(w + (uint32_t)m * 2 * EIGHT + EIGHT);
            else
                a[m][1] = a[m][0]; /* panels have no such rows */
        }
#pragma unroll
        for (int n = 0; n < NT; n++)
            b[n] = shared16(x + (uint32_t)n * EIGHT);
    }
    __device__ __forceinline__ void multiply(float (&acc)[MT][NT][4]) const
    {
#pragma unroll
        for (int n = 0; n < NT; n++) {
#pragma unroll
            for (int m = 0; m < MT; m++)
                mma_bf16(acc[m][n], a[m][0].x, a[m][1].x, a[m][0].y, a[m][1].y, b[n].x, b[n].y);
#pragma unroll
            for (int m = 0; m < MT; m++)
                mma_bf16(acc[m][n], a[m][0].z, a[m][1].z, a[m][0].w, a[m][1].w, b[n].z, b[n].w);
        }
    }
};

/* One run of a unit, as many chunks at a time as registers hold. */
template <int MT, int NT, bool GLU, bool HELD>
__device__ __forceinline__ void multiply_unit(float (&acc)[MT][NT][4], const few &f, ring &r,
                                              const struct cut &c, int positions,
                                              const strides &s)
{
    constexpr int AT_ONCE = NT > 2 ? 1 : NT == 2 || MT == 3 ? 2 : 4;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, mine = lane * 16;
    const int run = min(c.each, c.chunks - (int)warp * c.each);
    uint32_t x = s.held + (warp * (uint32_t)c.each) * s.col_chunk, w = 0;
    int i = 0;
    auto on = [&] {
        const uint32_t step = (uint32_t)(i < c.rest ? c.runs : c.runs - 1);
        w += step * s.chunk;
        x += HELD ? s.col_chunk : step * s.col_chunk;
        i++;
    };
    for (int i0 = 0; i0 < c.each; i0 += positions) {
        barrier_wait(r.filled(), r.phase);
        w = r.place() + warp * s.chunk + mine;
        if (!HELD)
            x = r.place() + (uint32_t)f.rows_at + warp * s.col_chunk + mine;
        const int end = min(i0 + positions, run);
        chunk_of_unit<MT, NT, GLU> now[AT_ONCE];
        i = i0;
#pragma unroll 1
        while (AT_ONCE > 1 && i + AT_ONCE <= end) {
#pragma unroll
            for (int u = 0; u < AT_ONCE; u++) {
                now[u].load(w, x, s);
                on();
            }
#pragma unroll
            for (int u = 0; u < AT_ONCE; u++)
                now[u].multiply(acc);
        }
#pragma unroll 1
        while (i < end) {
            now[0].load(w, x, s);
            on();
            now[0].multiply(acc);
        }
        __syncwarp();
        if (lane == 0)
            barrier_arrive(r.emptied());
        r.next();
    }
}

/* ---- a single row --------------------------------------------------------------------------- */

/* The fold of a single row has to be little code, for it runs once, and as new to the instruction
 * cache as the weights are to the other (7,300 instructions took 4 us more than these). So it takes
 * only what cuda_folds() lets through: floats and weights of norms (bf16) that can be read by
 * fours, whole chunks, one term. The bits are those of cuda_row.cuh. */

/* Four weights of a norm, as fetched, and what a normalised element is multiplied with. */
struct norm_weights {
    uint2 v[ROW_HELD];
};
__device__ __forceinline__ void fetch_norm(const struct norm &norm, int n, norm_weights &w)
{
#pragma unroll
    for (int j = 0; j < ROW_HELD; j++)
        if (norm.w.p && row_index(0, j) < n)
            w.v[j] = __ldg((const uint2 *)((const bf16 *)norm.w.p + row_index(0, j)));
        else
            w.v[j] = make_uint2(0, 0);
}
__device__ __forceinline__ float4 normed_four(const struct norm &norm, float4 x, float inv, uint2 w)
{
    if (norm.kind == NORM_NONE)
        return x;
    const float one = norm.kind == NORM_RMS ? 0.f : 1.f; /* no weights are zeros */
    return make_float4(x.x * inv * (one + __uint_as_float(w.x << 16)),
                       x.y * inv * (one + __uint_as_float(w.x & 0xffff0000u)),
                       x.z * inv * (one + __uint_as_float(w.y << 16)),
                       x.w * inv * (one + __uint_as_float(w.y & 0xffff0000u)));
}

__device__ __forceinline__ void fetch_part(const float *src, int n, struct row_part &x)
{
#pragma unroll
    for (int j = 0; j < ROW_HELD; j++)
        x.v[j] = row_index(0, j) < n ? __ldcg((const float4 *)(src + row_index(0, j)))
                                     : make_float4(0, 0, 0, 0);
}
__device__ __forceinline__ void put_packed(uint16_t *x, int i, float4 y)
{
    __nv_bfloat162 a = __floats2bfloat162_rn(y.x, y.y), b = __floats2bfloat162_rn(y.z, y.w);
    *(uint2 *)(x + i) = make_uint2(*(uint32_t *)&a, *(uint32_t *)&b);
}

/* x = pack(norm(x)), where x may still be owed x (+)= post(raw); y: the row before its norm. */
__device__ __forceinline__ void pack_single(const product &p, const norm_weights &w,
                                            const norm_weights &post, uint16_t *x, float *room,
                                            struct row_part &y)
{
    const int n = p.in.n;
    const bool joins = p.before.raw != NULL;
    if (p.in.norm.kind == NORM_NONE && !joins) {
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
                    put_packed(x, row_index(from, j), v[j]);
        }
        return;
    }
    fetch_part(joins ? p.before.raw : p.in.src, n, y);
    struct row_part old;
    if (joins && p.before.add)
        fetch_part(p.in.src, n, old);
#pragma unroll 1
    for (int turn = joins ? 0 : 1; turn < 2; turn++) { /* one copy of the code for both norms */
        const struct norm &norm = turn ? p.in.norm : p.before.post;
        float inv = row_inverse_short(y, n, norm, room + turn * ROW_WARPS);
#pragma unroll
        for (int j = 0; j < ROW_HELD; j++) {
            float4 z = normed_four(norm, y.v[j], inv, turn ? w.v[j] : post.v[j]);
            if (turn) {
                if (row_index(0, j) < n)
                    put_packed(x, row_index(0, j), z);
                continue;
            }
            if (p.before.add)
                z = make_float4(z.x + old.v[j].x, z.y + old.v[j].y, z.z + old.v[j].z,
                                z.w + old.v[j].w);
            y.v[j] = z;
        }
    }
}

/* ---- what follows --------------------------------------------------------------------------- */

/* The block's unit: outputs first .. first + n - 1 of a matrix. */
struct unit {
    int mat, first, n;
};

/* What a thread stores of a unit: output o of it, of every step-th row. */
struct share {
    int o, row, step; /* o -1: nothing */
    uint32_t bias;    /* fetched ahead, as it lies */
    float old;        /* the same, of row 0 */
};

__device__ __forceinline__ uint32_t raw_at(const vec &v, int i)
{
    return v.type == DT_F32 ? __ldg((const uint32_t *)v.p + i)
                            : (uint32_t)__ldg((const uint16_t *)v.p + i);
}
__device__ __forceinline__ float raw_value(const vec &v, uint32_t raw)
{
    return v.type == DT_F32    ? __uint_as_float(raw)
           : v.type == DT_BF16 ? __uint_as_float(raw << 16)
                               : __half2float(__ushort_as_half((uint16_t)raw));
}

template <int MT, bool GLU>
__device__ __forceinline__ share share_of(const product &p, const unit &u)
{
    constexpr int width = MT * (GLU ? 8 : 16);
    const int tid = (int)threadIdx.x;
    const finish &f = p.f[u.mat];
    share s = {tid % width, tid / width, PRODUCT_THREADS / width, 0, 0};
    if (s.row >= s.step || s.o >= u.n)
        s.o = -1;
    else if (f.b.p)
        s.bias = raw_at(f.b, u.first + s.o);
    if (s.o >= 0 && f.add && p.rows == 1 && s.row == 0)
        s.old = __ldcg(f.dst + (size_t)(u.first + s.o));
    return s;
}

/* Element i of packed row r. */
__device__ __forceinline__ void put_one(const product &p, float y, int r, int i)
{
    const int terms = p.x.terms;
    for (int t = 0; t < terms; t++) {
        bf16 b = __float2bfloat16_rn(y);
        *packed_at(p.pack_as, p.pack_to, r * terms + t, i) = __bfloat16_as_ushort(b);
        y = isfinite(__bfloat162float(b)) ? y - __bfloat162float(b) : 0.f;
    }
}

/* Adds up the runs, in their order, and stores what follows. */
template <int MT, int NT, bool GLU>
__device__ __forceinline__ void finish_unit(const product &p, const few &f,
                                            const float (&acc)[MT][NT][4], float *sums,
                                            const unit &u, const share &s)
{
    constexpr int PITCH = MT * 16 + 4; /* no bank twice */
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, g = lane / 4,
              q = lane % 4;
    const bool two = p.x.terms == 2;
    const int cols = group_cols(p, f), row0 = (int)blockIdx.y * f.group / p.x.terms;
    const finish &fin = p.f[u.mat];
    for (int n0 = 0; n0 < NT && n0 * 8 < cols; n0 += 2) {
        row_meet(); /* nobody reads the sums before */
#pragma unroll
        for (int n = 0; n < NT; n++) {
            int at = (n - n0) * 8 + 2 * q;
            if (n / 2 * 2 != n0 || n * 8 + 2 * q >= cols)
                continue;
            at = two ? at / 2 : at;
#pragma unroll
            for (int m = 0; m < MT; m++) {
                const float *a = acc[m][n];
                float *to = sums + (warp * f.sum_cols + at) * PITCH + m * 16 + g;
                to[0] = two ? a[0] + a[1] : a[0];
                to[8] = two ? a[2] + a[3] : a[2];
                if (!two && n * 8 + 2 * q + 1 < cols) {
                    to[PITCH] = a[1];
                    to[PITCH + 8] = a[3];
                }
            }
        }
        row_meet();
        const int here = min(cols - n0 * 8, (int)SUM_COLS) / p.x.terms;
        for (int t = s.row; s.o >= 0 && t < here; t += s.step) {
            const int at = GLU ? s.o / 8 * 16 + s.o % 8 : s.o;
            const int row = row0 + n0 * 8 / p.x.terms + t, out = u.first + s.o;
            float y = 0, up = 0;
#pragma unroll
            for (int r = 0; r < RUNS; r++) {
                const float *from = sums + (r * f.sum_cols + t) * PITCH + at;
                y = r ? y + from[0] : from[0];
                if (GLU)
                    up = r ? up + from[8] : from[8];
            }
            float *dst = fin.dst + (size_t)row * fin.dst_stride + (size_t)out;
            if (GLU) {
                y = activate(y, p.glu_act) * up;
                if (p.pack_to)
                    put_one(p, y, row, out);
                else
                    *dst = y;
                continue;
            }
            y = behind_bias(fin, fin.b.p ? y + raw_value(fin.b, s.bias) : y, out, row);
            *dst = fin.add ? y + (p.rows == 1 ? s.old : *dst) : y;
        }
    }
}

/* The heads that a block's panels touch: thread t has one. */
struct touched {
    int head, outputs; /* head -1: none; outputs of it that are the block's */
};
__device__ __forceinline__ touched touched_by(const product &p)
{
    const struct heads &h = p.behind.heads;
    int t = (int)threadIdx.x, before = 0;
    for (int mi = 0; mi < p.n_mats; mi++) {
        const panels &l = p.m[mi].panels;
        const int each = (l.rows - 1) / h.head_dim + 2;
        const int mine = max(0, (l.n - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x);
        if (t < mine * each) {
            const int first = ((int)blockIdx.x + t / each * (int)gridDim.x) * l.rows;
            const int end = min(first + l.rows, p.m[mi].n);
            const int head = first / h.head_dim + t % each;
            const int n = min(end, (head + 1) * h.head_dim) - max(first, head * h.head_dim);
            return {n > 0 ? before + head : -1, n};
        }
        t -= mine * each;
        before += p.m[mi].n / h.head_dim;
    }
    return {-1, 0};
}

/* What comes behind a single row's product; the block's outputs are stored. */
__device__ __forceinline__ void finish_heads(const product &p, float *room)
{
    __shared__ int16_t last[HEAD_SLOTS];
    const struct behind &b = p.behind;
    const int tid = (int)threadIdx.x;
    const touched mine = touched_by(p);
    row_meet();
    if (tid < HEAD_SLOTS) {
        unsigned *counter = b.counters + mine.head;
        last[tid] = -1;
        if (mine.head >= 0 &&
            count_up(counter, (unsigned)mine.outputs) == (unsigned)b.heads.head_dim) {
            *counter = 0;
            last[tid] = (int16_t)mine.head;
        }
    }
    row_meet();
    for (int i = 0; i < HEAD_SLOTS; i += 32)
        for (unsigned left = __ballot_sync(~0u, last[i + tid % 32] >= 0); left; left &= left - 1) {
            const int head = last[i + __ffs((int)left) - 1];
            struct head_part part;
            load_head(b.heads, 0, head, part);
            finish_head(b.heads, 0, head, part, room);
            row_meet();
        }
}

/* The first block writes the row that all of them have made for themselves. */
__device__ __forceinline__ void finish_before(const product &p, const struct row_part &y)
{
    unsigned *readers = p.before.readers;
    if (threadIdx.x == 0) {
        unsigned n;
        do
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(n) : "l"(readers) : "memory");
        while (n < gridDim.x);
        *readers = 0;
    }
    row_meet();
    store_part(p.before.x, p.in.n, y);
}

/* ---- the kernel ----------------------------------------------------------------------------- */

/* Where the rows of activations are: in shared memory, a single one from end to end (see above) or
 * up to eight columns, or in the stages. */
enum rows_kind { FOLDED, HELD_ROWS, STAGED };

/* Blocks (n_sm, or as many as there are panels; groups of columns). */
template <int MT, int NT, bool GLU, int ROWS>
__global__ void __launch_bounds__(FEW_THREADS, 1)
    few_kernel(const __grid_constant__ struct product p, const __grid_constant__ struct few f)
{
    constexpr bool FOLD = ROWS == FOLDED, HELD = ROWS != STAGED;
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ uint64_t full[MOST_STAGES], empty[MOST_STAGES], held_full;
    __shared__ float room[2 * ROW_WARPS];
    if (GLU || !p.behind.turns)
        let_next();
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const uint32_t base = (uint32_t)__cvta_generic_to_shared(shared);
    struct ring r = {base, (uint32_t)__cvta_generic_to_shared(full),
                     (uint32_t)__cvta_generic_to_shared(empty), f.stages, f.stage, 0, 0};
    const uint32_t held = base + (uint32_t)f.held_at,
                   held_at = (uint32_t)__cvta_generic_to_shared(&held_full);
    if (threadIdx.x == 0) {
        for (int i = 0; i < f.stages; i++) {
            barrier_init(r.full + (uint32_t)i * 8, FEED_LANES);
            barrier_init(r.empty + (uint32_t)i * 8, RUNS);
        }
        barrier_init(held_at, FEED_LANES);
#if __CUDA_ARCH__ >= 900
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
    }
    __syncthreads();
    if (warp == RUNS) {
        if (lane < FEED_LANES)
            feed_block<HELD>(p, f, r, held, held_at);
        return;
    }

    struct row_part row;
    const bool packs = FOLD && !p.x.x, joins = packs && p.before.raw;
    norm_weights w, post;
    if (packs)
        fetch_norm(p.in.norm, p.in.n, w);
    if (joins)
        fetch_norm(p.before.post, p.in.n, post);
    wait_before();
    if (!GLU && p.behind.turns) /* attention reads old cells before it waits (settles, cuda.h) */
        let_next();
    if (HELD && !packs)
        barrier_wait(held_at, 0);
    if (packs) {
        pack_single(p, w, post, (uint16_t *)(shared + f.held_at), room, row);
        row_meet();
    }
    if (joins && threadIdx.x == 0)
        asm volatile("red.add.release.gpu.global.u32 [%0], 1;" ::"l"(p.before.readers) : "memory");

    float *const sums = (float *)(shared + f.sums_at);
    const uint32_t cols = (uint32_t)(HELD ? p.rows * p.x.terms : group_cols(p, f));
    const uint32_t own = (uint32_t)lane / 4 < cols ? (uint32_t)lane : (uint32_t)lane % 4;
    for (int mi = 0; mi < (GLU ? 1 : p.n_mats); mi++) {
        const panels &l = p.m[mi].panels;
        const strides s = {(uint32_t)l.rows * K_CHUNK_BYTES, (uint32_t)f.second_at,
                           cols * K_CHUNK_BYTES, held + own * 16};
        for (int panel = (int)blockIdx.x; panel < l.n; panel += (int)gridDim.x) {
            const unit u = {mi, panel * l.rows, min(l.rows, p.m[mi].n - panel * l.rows)};
            const share mine = share_of<MT, GLU>(p, u);
            float acc[MT][NT][4] = {};
            multiply_unit<MT, NT, GLU, HELD>(acc, f, r, l.cut, f.positions[mi], s);
            finish_unit<MT, NT, GLU>(p, f, acc, sums, u, mine);
        }
    }
    if (FOLD && !GLU && p.behind.turns)
        finish_heads(p, room);
    if (joins && blockIdx.x == 0)
        finish_before(p, row);
}

#endif

/* ---- host ------------------------------------------------------------------------------------ */

/* Columns of a block whose rows are not held. */
static int group_of(const struct kdev *d) { return d->shared_most >= LARGE ? 64 : 16; }

/* Positions of a stage: as many as are multiplied at once go in without rest. */
static int by_fours(int positions) { return positions > 4 ? positions / 4 * 4 : positions; }

/* Divides shared memory. With rows in the stages all matrices have as many positions a stage. */
static struct few plan_of(const struct kdev *d, const struct product *p, int mt, bool held)
{
    struct few f = {};
    int n = p->glu ? 1 : p->n_mats, cols = p->rows * p->x.terms, wide = 0, most = 1;
    f.group = held ? cols : group_of(d);
    int in_stage = held ? 0 : min_int(cols, f.group);
    for (int i = 0; i < n; i++) {
        wide = max_int(wide, p->m[i].panels.rows);
        most = max_int(most, p->m[i].panels.cut.each);
    }
    int each = RUNS * K_CHUNK_BYTES, of_rows = each * in_stage,
        of_weights = each * wide * (p->glu ? 2 : 1);
    f.sum_cols = min_int(cols, SUM_COLS);
    size_t sums = (size_t)(RUNS * f.sum_cols * (mt * 16 + 4)) * sizeof(float);
    size_t rows = held ? cuda_round((size_t)cols * (size_t)p->x.kp * 2, 128) : 0;
    size_t left = d->shared_most - SLACK - sums - rows - 1024; /* the kernel's own */
    int wanted = min_int(STAGE_BYTES_WANTED, (int)(left / LEAST_STAGES));
    int positions = min_int(by_fours(max_int(wanted / (of_weights + of_rows), 1)), most);
    f.second_at = positions * each * wide;
    f.rows_at = positions * of_weights;
    f.stage = positions * (of_weights + of_rows);
    for (int i = 0; i < n; i++) {
        int fit = positions * wide / p->m[i].panels.rows;
        f.positions[i] = min_int(held ? by_fours(fit) : positions, p->m[i].panels.cut.each);
    }
    f.stages = min_int((int)(left / (size_t)f.stage), MOST_STAGES);
    CHECK(f.stages >= 2);
    f.window = min_int(max_int(WINDOW / f.stage, 2), f.stages);
    f.held_at = f.stages * f.stage;
    f.sums_at = f.held_at + (int)rows;
    return f;
}

template <int MT, int NT, bool GLU, int ROWS> static void run(struct kdev *d, struct product *p)
{
    struct few f = plan_of(d, p, MT, ROWS != STAGED);
    int blocks = 0, cols = p->rows * p->x.terms;
    for (int i = 0; i < (p->glu ? 1 : p->n_mats); i++)
        blocks = max_int(blocks, p->m[i].panels.n);
    size_t bytes = (size_t)f.sums_at + SLACK +
                   (size_t)(RUNS * f.sum_cols * (MT * 16 + 4)) * sizeof(float);
    dim3 grid((unsigned)min_int(blocks, d->n_sm), (unsigned)div_up(cols, f.group));
    cuda_launch(d, few_kernel<MT, NT, GLU, ROWS>, grid, FEW_THREADS, bytes, *p, f);
}

template <int MT, bool GLU> static void run_tiles(struct kdev *d, struct product *p, bool held)
{
    int cols = min_int(p->rows * p->x.terms, group_of(d));
    if (held)
        run<MT, 1, GLU, HELD_ROWS>(d, p);
    else if (cols <= 16)
        run<MT, 2, GLU, STAGED>(d, p);
    else if (cols <= 32)
        run<MT, 4, GLU, STAGED>(d, p);
    else
        run<MT, 8, GLU, STAGED>(d, p);
}

/* Panels a block may have, times the heads that one touches. */
static bool heads_fit(const struct kdev *d, const struct product *p)
{
    int slots = 0;
    for (int i = 0; i < p->n_mats; i++) {
        const struct panels *l = &p->m[i].panels;
        slots += div_up(l->n, d->n_sm) * ((l->rows - 1) / p->behind.heads.head_dim + 2);
    }
    return slots <= HEAD_SLOTS;
}

static bool fits_held(const struct kdev *d, int cols, int kp)
{
    size_t most = d->shared_most >= LARGE ? HELD_BYTES : HELD_BYTES / 2;
    return cols <= 8 && (size_t)cols * (size_t)kp * 2 <= most;
}

static bool short_norm(const struct norm *n, int width)
{
    return n->kind == NORM_NONE ||
           (width <= MOST_PENDING &&
            (!n->w.p || (n->w.type == DT_BF16 && (uintptr_t)n->w.p % 8 == 0)));
}

bool cuda_folds(const struct kdev *d, const struct product *p)
{
    const struct behind *b = &p->behind;
    const struct heads *h = &b->heads;
    return p->rows == 1 && p->x.terms == 1 && fits_held(d, 1, p->x.kp) && p->in.n % K_CHUNK == 0 &&
           (p->x.x || (uintptr_t)p->in.src % 16 == 0) && short_norm(&p->in.norm, p->in.n) &&
           !(b->turns && (h->whole || !heads_fit(d, p)));
}

bool cuda_leaves(const struct product *p)
{
    const struct behind *b = &p->behind;
    int n = p->m[0].n;
    return b->dst_stride == (size_t)n && p->f[0].dst_stride == (size_t)n && p->rows <= MOST_FEW &&
           (uintptr_t)b->dst % 16 == 0 && n % K_CHUNK == 0 && n <= MOST_PENDING &&
           short_norm(&b->post, n);
}

struct row_format cuda_few_rows(const struct kdev *d, int rows, int kp)
{
    struct row_format f = {};
    f.cols = rows * d->terms;
    f.kind = fits_held(d, f.cols, kp) ? ROW_HELD_COLS : ROW_STAGES;
    f.kp = kp;
    f.group = group_of(d);
    f.cut = cut_of(kp);
    return f;
}

void cuda_product_few(struct kdev *d, struct product *p)
{
    bool held = fits_held(d, p->rows * p->x.terms, p->x.kp);
    int most = 0;
    for (int i = 0; i < p->n_mats; i++)
        most = max_int(most, p->m[i].panels.rows);
    if (p->fold && p->glu)
        run<3, 1, true, FOLDED>(d, p);
    else if (p->fold)
        most <= 16 ? run<1, 1, false, FOLDED>(d, p) : run<2, 1, false, FOLDED>(d, p);
    else if (p->glu)
        run_tiles<3, true>(d, p, held);
    else
        run_tiles<2, false>(d, p, held);
}
