/* cuda_few.cu - products of bf16 matrices with a few rows (decode, verify, a draft's steps), at the
 * speed of memory.
 *
 * A matrix of 20 to 100 MB is read in 5 to 25 us: what counts is that the memory never idles. So
 * every multiprocessor has one block. One of its warps (the feeder) asks for as many of the block's
 * weights as its ring in shared memory holds before it waits for the kernel before; eight multiply.
 * Panels (cuda_panel.cuh) lie as they are read, so a stage of the ring is one copy by the copy
 * engine, whose requests, unlike those of threads, hold up nobody's loads.
 *
 * A unit is a panel, or with a gate the same panel of both matrices, or of q, k and v the two
 * panels of a head that turn with each other: then what becomes of a head needs no kernel behind,
 * nor, but for the sum of its squares, another block. Its rows of weights are tiles of eight. A
 * warp has one run of k; at the end of a unit a warp a row adds the runs up while others go on.
 *
 * The rows of activations lie in shared memory or come with the weights of their stage. A single
 * one of one term is folded in: every block normalises and cuts it for itself, along with what the
 * product before left to do. (Folding in up to eight was no faster than packing them before.)
 *
 * Rows of weights behind a panel's last one, and columns behind the last row's, hold whatever lies
 * there; nobody looks at what becomes of them.
 *
 * The order of sums is that of cuda_product.cuh.
 */
#include "kernels/cuda_few.cuh"

#ifdef __CUDACC__

/* ---- multiplying ---------------------------------------------------------------------------- */

/* How a lane reads a unit: tile n has its weights `tile[n]` bytes into a chunk. Tiles are of eight
 * rows of weights, which are the B operand here, since a lane's 16 bytes of it are two operands as
 * they come. Of the columns of activations, the A operand, the upper eight of a tile may be
 * missing: then whatever registers hold takes their place. */
template <int NT> struct strides {
    uint32_t tile[NT];
    uint32_t whole, part;     /* bytes from one chunk to the next: while all runs have one, then */
    uint32_t col, held;       /* from one chunk of columns to the next; the lane's columns, held */
    int tiles;                /* that there are */
    bool last, low;           /* whether the lane has a row of a panel's last tile; a column */
};

/* One lane's share of one chunk: NT tiles of weights, XT of columns. */
template <int XT, int NT, int KIND, bool HELD> struct chunk_of_unit {
    uint4 w[NT], low[XT], high[XT];
    __device__ __forceinline__ void load(uint32_t at, uint32_t x, const strides<NT> &s)
    {
        constexpr int OF_PANEL = KIND == GATED ? NT / 2 : NT;
#pragma unroll
        for (int n = 0; n < NT; n++)
            if (KIND == TURNED ? n == 0 || n < s.tiles : n % OF_PANEL < OF_PANEL - 1 || s.last)
                w[n] = shared16(at + s.tile[n]);
#pragma unroll
        for (int m = 0; m < XT; m++) {
            if (!HELD || s.low)
                low[m] = shared16(x + (uint32_t)m * 16 * K_CHUNK_BYTES);
            if (!HELD)
                high[m] = shared16(x + (uint32_t)m * 16 * K_CHUNK_BYTES + 8 * K_CHUNK_BYTES);
        }
    }
    __device__ __forceinline__ void multiply(float (&acc)[XT][NT][4], const strides<NT> &s) const
    {
#pragma unroll
        for (int m = 0; m < XT; m++) {
            uint4 up = high[m];
            if (HELD)
                asm volatile("" : "=r"(up.x), "=r"(up.y), "=r"(up.z), "=r"(up.w));
#pragma unroll
            for (int n = 0; n < NT; n++)
                if (KIND != TURNED || n == 0 || n < s.tiles)
                    mma_bf16(acc[m][n], low[m].x, up.x, low[m].y, up.y, w[n].x, w[n].y);
#pragma unroll
            for (int n = 0; n < NT; n++)
                if (KIND != TURNED || n == 0 || n < s.tiles)
                    mma_bf16(acc[m][n], low[m].z, up.z, low[m].w, up.w, w[n].z, w[n].w);
        }
    }
};

template <int NT, int KIND, bool HELD>
__device__ __forceinline__ void strides_of(const product &p, const few &f, const panels &l,
                                           strides<NT> &s)
{
    constexpr int OF_PANEL = KIND == GATED ? NT / 2 : NT;
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, q = lane % 4, rows = (uint32_t)l.rows;
    const int cols = HELD ? p.rows * p.x.terms : group_cols(p, f);
#pragma unroll
    for (int n = 0; n < NT; n++) {
        const uint32_t row = (uint32_t)(n % OF_PANEL * 8) + g;
        const uint32_t second = KIND == TURNED ? row >= rows : (uint32_t)(n / OF_PANEL);
        s.tile[n] = second * (uint32_t)f.second_at +
                    (KIND == TURNED && second ? row - rows : row) * K_CHUNK_BYTES + q * 16;
    }
    s.whole = (uint32_t)l.cut.runs * rows * K_CHUNK_BYTES;
    s.part = s.whole - rows * K_CHUNK_BYTES;
    s.col = (uint32_t)cols * K_CHUNK_BYTES;
    s.tiles = (2 * l.rows + 7) / 8;
    s.last = (OF_PANEL - 1) * 8 + (int)g < l.rows;
    s.low = (int)g < cols;
}

/* One run of a unit, as many chunks at a time as registers hold. */
template <int XT, int NT, int KIND, bool HELD>
__device__ __forceinline__ void multiply_unit(float (&acc)[XT][NT][4], const few &f, ring &r,
                                              const struct cut &c, int positions,
                                              const strides<NT> &s)
{
    constexpr int AT_ONCE = XT > 1 ? 1 : HELD && NT <= 3 ? 4 : 2;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int each = c.each, rest = c.rest, have = min(each, c.chunks - (int)warp * each);
    uint32_t x = s.held + warp * (uint32_t)each * s.col;
    for (int i0 = 0; i0 < each; i0 += positions) {
        barrier_wait(r.filled(), r.phase);
        uint32_t w = r.place() + warp * (s.whole - s.part);
        if (!HELD)
            x = r.place() + (uint32_t)f.rows_at + warp * s.col + lane * 16;
        const int end = min(i0 + positions, have);
        chunk_of_unit<XT, NT, KIND, HELD> now[AT_ONCE];
        int i = i0;
        auto load = [&](chunk_of_unit<XT, NT, KIND, HELD> &to) {
            to.load(w, x, s);
            w += i < rest ? s.whole : s.part;
            x += HELD ? s.col : s.col * (uint32_t)(i < rest ? c.runs : c.runs - 1);
            i++;
        };
#pragma unroll 1
        while (AT_ONCE > 1 && i + AT_ONCE <= end) {
#pragma unroll
            for (int u = 0; u < AT_ONCE; u++)
                load(now[u]);
#pragma unroll
            for (int u = 0; u < AT_ONCE; u++)
                now[u].multiply(acc, s);
        }
#pragma unroll 1
        while (i < end) {
            load(now[0]);
            now[0].multiply(acc, s);
        }
        __syncwarp();
        if (lane == 0)
            barrier_arrive(r.emptied());
        r.next();
    }
}

/* ---- rows that are folded in ---------------------------------------------------------------- */

/* The fold has to be little code, for it runs once, and as new to the instruction cache as the
 * weights are to the other (7,300 instructions took 4 us more than these). So it takes only what
 * cuda_folds() lets through: floats and weights of norms (bf16) that can be read by fours, whole
 * chunks, one term. The bits are those of cuda_row.cuh. */

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

/* x = pack(row), where there is no norm. */
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
                put_packed(x, row_index(from, j), v[j]);
    }
}

/* x = pack(norm(row)), where the row may still be owed row (+)= post(raw); y: the row before its
 * norm. */
__device__ __forceinline__ void pack_normed(const product &p, const norm_weights &w,
                                            const norm_weights &post, uint16_t *x, float *room,
                                            struct row_part &y)
{
    const int n = p.in.n;
    const bool joins = p.before.raw != NULL;
    struct row_part old;
    fetch_part(joins ? p.before.raw : p.in.src, n, y);
    if (joins && p.before.add)
        fetch_part(p.in.src, n, old);
#pragma unroll 1
    for (int turn = joins ? 0 : 1; turn < 2; turn++) { /* one code for both norms */
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
                z = plus(z, old.v[j]);
            y.v[j] = z;
        }
    }
}

/* Packs the row; y: what it was before its norm. */
__device__ __forceinline__ void pack_folded(const product &p, uint16_t *x, float *room,
                                            struct row_part &y)
{
    const bool joins = p.before.raw != NULL;
    norm_weights w, post;
    fetch_norm(p.in.norm, p.in.n, w);
    if (joins)
        fetch_norm(p.before.post, p.in.n, post);
    wait_before();
    if (p.behind.turns)
        let_next(); /* attention reads old cells before it waits (settles, cuda.h) */
    if (p.in.norm.kind == NORM_NONE && !joins)
        pack_as_is(p, x);
    else
        pack_normed(p, w, post, x, room, y);
}

/* ---- what follows --------------------------------------------------------------------------- */

/* The unit at hand: outputs first .. first + n - 1 of a matrix; TURNED: the two panels of n. */
struct unit {
    int mat, first, n;
};

/* What a lane ends of a unit: one output of row `row` and of every row as many behind it as warps
 * multiply. What it needs is fetched before the unit is multiplied, as it lies. */
struct share {
    int row, o; /* o -1: no output; nothing to do for the warp if there is no such row */
    uint32_t bias;
    float old; /* of a single row */
    /* TURNED: element i of head h */
    int h, i, slot;
    uint32_t w;
    float2 turn;
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

__device__ __forceinline__ const struct norm &norm_of(const heads &a, int mat)
{
    return mat == HEAD_Q ? a.q_norm : mat == HEAD_K ? a.k_norm : a.v_norm;
}

/* The first lanes have the outputs of the unit's first panel, as many behind them those that turn
 * with them. */
__device__ __forceinline__ void fetch_turn(const product &p, const few &f, const unit &u, share &s)
{
    const heads &a = p.behind.heads;
    const int lane = (int)threadIdx.x % 32;
    const int low = (u.first & (a.head_dim - 1)) + (lane & (u.n - 1));
    const int high = lane & u.n ? a.head_dim / 2 : 0;
    s.h = u.first >> f.head_shift;
    s.i = low + high;
    s.slot = 0;
    if (s.row >= p.rows || lane >= 2 * u.n)
        return;
    s.o = u.first + (lane & (u.n - 1)) + high;
    const struct norm &norm = norm_of(a, u.mat);
    if (norm.w.p)
        s.w = raw_at(norm.w, s.i);
    if (u.mat != HEAD_V && a.rot)
        s.turn = __ldcg((const float2 *)(a.cs + (size_t)s.row * (size_t)a.rot) + low);
    if (u.mat != HEAD_Q)
        s.slot = __ldcg(a.write + s.row);
}

template <int KIND>
__device__ __forceinline__ share share_of(const product &p, const few &f, const unit &u, int row)
{
    const int lane = (int)threadIdx.x % 32;
    const finish &fin = p.f[u.mat];
    share s = {row, -1};
    if (KIND == TURNED)
        fetch_turn(p, f, u, s);
    else if (row < p.rows && lane < u.n)
        s.o = u.first + lane;
    if (s.o >= 0 && fin.b.p)
        s.bias = raw_at(fin.b, s.o);
    if (KIND == PLAIN && s.o >= 0 && fin.add && p.rows == 1)
        s.old = __ldcg(fin.dst + s.o);
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

/* 1 / rms of a head whose panels are several blocks'. Each block has a list in memory for each of
 * its units and rows, one word a panel of the head: those who have a panel write its squares into
 * all lists, inverted, so that a word that is not 0 is one that has come; the reader makes it 0
 * again. The order of the sum is that of head_sum(). All blocks are on the device at once. */
__device__ __forceinline__ float meet_head(const product &p, const few &f, int mat, int n,
                                           const share &s, float y,
                                           const struct norm &norm)
{
    const heads &a = p.behind.heads;
    const int lane = (int)threadIdx.x % 32, half = f.deal[mat].half, panels = 2 * half;
    const int j = (s.i & (a.head_dim / 2 - 1)) / n; /* the unit, among those of the head */
    const int second = lane & n ? half : 0;
    unsigned *lists = p.behind.counters;
    for (int m = 0; m < mat; m++)
        lists += f.deal[m].units * p.rows * 2 * f.deal[m].half;
    lists += (s.h * half * p.rows + s.row) * panels; /* of the head's first unit */
    float ss = s.o >= 0 ? y * y : 0.f;
    for (int d = 1; d < n; d *= 2)
        ss += __shfl_xor_sync(~0u, ss, d);
    for (int to = lane & (n - 1); to < half && lane < 2 * n; to += n)
        asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(
                         lists + to * p.rows * panels + j + second),
                     "r"(~__float_as_uint(ss))
                     : "memory");
    unsigned *own = lists + j * p.rows * panels + (lane & (panels - 1)), v;
    do
        asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(own) : "memory");
    while (!__all_sync(~0u, v != 0));
    if (lane < panels)
        *own = 0;
    ss = __uint_as_float(~v);
    for (int d = 1; d < panels; d *= 2)
        ss += __shfl_xor_sync(~0u, ss, d);
    return 1 / sqrtf(ss / (float)a.head_dim + norm.eps);
}

/* What becomes of an element of a head, as finish_kind() has it; the whole warp. */
__device__ __forceinline__ void turn_one(const product &p, const few &f, const unit &u,
                                         const share &s, float y)
{
    const heads &a = p.behind.heads;
    const struct norm &norm = norm_of(a, u.mat);
    if (norm.kind != NORM_NONE) {
        const float inv = meet_head(p, f, u.mat, u.n, s, y, norm);
        y = normed_by(norm.kind, y, inv, norm.w.p ? raw_value(norm.w, s.w) : 0.f);
    }
    if (u.mat != HEAD_V && a.rot) {
        const float z = __shfl_xor_sync(~0u, y, u.n) * s.turn.y;
        y = fmaf(y, s.turn.x, (int)threadIdx.x % 32 < u.n ? -z : z);
    }
    const size_t at = (size_t)s.h * (size_t)a.head_dim + (size_t)s.i;
    if (s.o < 0)
        return;
    if (u.mat == HEAD_Q)
        a.dst[(size_t)s.row * (size_t)(a.n_head * a.head_dim) + at] = y;
    else if (s.slot >= 0 && s.slot < a.n_slots)
        put_cell(u.mat == HEAD_K ? a.cell_k : a.cell_v, a.kv_bf16,
                 (size_t)s.slot * (size_t)(a.n_kv * a.head_dim) + at, y);
}

/* What becomes of a sum, and of that of the second matrix. */
template <int KIND>
__device__ __forceinline__ void end_one(const product &p, const few &f, const unit &u,
                                        const share &s, int row, float y, float up)
{
    const finish &fin = p.f[u.mat];
    y = KIND != GATED && fin.b.p ? y + raw_value(fin.b, s.bias) : y;
    if (KIND == TURNED) {
        turn_one(p, f, u, s, y);
        return;
    }
    if (KIND == GATED)
        y = activate(y, p.glu_act) * up;
    if (s.o < 0)
        return;
    float *dst = fin.dst + (size_t)row * fin.dst_stride + (size_t)s.o;
    if (KIND == GATED) {
        if (p.pack_to)
            put_one(p, y, row, s.o);
        else
            *dst = y;
        return;
    }
    y = behind_bias(fin, y, s.o, row);
    *dst = fin.add ? y + (p.rows == 1 ? s.old : *dst) : y;
}

/* Adds up the runs, in their order, and stores what follows. A warp that has nothing to end goes on
 * to the next unit, whose sums have another room. */
template <int XT, int NT, int KIND>
__device__ __forceinline__ void finish_unit(const product &p, const few &f,
                                            float (&acc)[XT][NT][4], float *sums, int &room,
                                            const unit &u, const share &s)
{
    constexpr int PITCH = sum_pitch(NT);
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, g = lane / 4,
              q = lane % 4;
    const int two = p.x.terms == 2, cols = group_cols(p, f),
              row0 = (int)blockIdx.y * f.group >> two;
#pragma unroll
    for (int m = 0; m < XT; m++) {
        if (m * 16 >= cols)
            break;
        float *here = sums + room * (int)RUNS * f.sum_cols * PITCH;
        room ^= 1;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            if (m * 16 + h * 8 >= cols)
                break;
            const int row = (g + h * 8) >> two;
            const bool mine = m * 16 + h * 8 + g < cols && !(two && g % 2);
#pragma unroll
            for (int n = 0; n < NT; n++) {
                float2 v = make_float2(acc[m][n][2 * h], acc[m][n][2 * h + 1]);
                if (two) {
                    v.x += __shfl_xor_sync(~0u, v.x, 4);
                    v.y += __shfl_xor_sync(~0u, v.y, 4);
                }
                if (mine)
                    *(float2 *)(here + (warp * f.sum_cols + row) * PITCH + n * 8 + 2 * q) = v;
            }
        }
        row_meet();
        const int rows = min(cols - m * 16, (int)SUM_COLS) >> two;
        for (int t = s.row; t < rows; t += RUNS) {
            float y = 0, up = 0;
#pragma unroll
            for (int r = 0; r < RUNS; r++) {
                const float *from = here + (r * f.sum_cols + t) * PITCH + lane;
                y = r ? y + from[0] : from[0];
                if (KIND == GATED)
                    up = r ? up + from[NT * 4] : from[NT * 4];
            }
            end_one<KIND>(p, f, u, s, row0 + (m * 16 >> two) + t, y, up);
        }
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

/* Where the rows of activations are: in shared memory, up to eight columns, FOLDED where it is one
 * that the block may have to pack itself; or in the stages. */
enum rows_kind { FOLDED, HELD_ROWS, STAGED };

/* Blocks (n_sm, or as many as have units; groups of columns). */
template <int XT, int NT, int KIND, int ROWS>
__global__ void __launch_bounds__(FEW_THREADS, 1)
    few_kernel(const __grid_constant__ struct product p, const __grid_constant__ struct few f)
{
    constexpr bool FOLD = ROWS == FOLDED, HELD = ROWS != STAGED;
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ uint64_t full[MOST_STAGES], empty[MOST_STAGES], held_full;
    __shared__ float room[2 * ROW_WARPS];
    if (KIND == GATED || !p.behind.turns)
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
            feed_block<KIND, HELD>(p, f, r, held, held_at);
        return;
    }

    struct row_part row;
    const bool packs = FOLD && !p.x.x, joins = packs && p.before.raw;
    if (packs) {
        pack_folded(p, (uint16_t *)(shared + f.held_at), room, row);
        row_meet();
    } else {
        wait_before();
        if (p.behind.turns)
            let_next();
    }
    if (HELD && !packs)
        barrier_wait(held_at, 0);
    if (joins && threadIdx.x == 0) /* what was read is here: nothing to wait for */
        asm volatile("red.add.relaxed.gpu.global.u32 [%0], 1;" ::"l"(p.before.readers) : "memory");

    float *const sums = (float *)(shared + f.sums_at);
    int sum_room = 0, turn = 0; /* turn: the warp that ends row 0 */
    for (course at(f); !at.over(); at.next(f)) {
        const panels l = p.m[at.mat].panels;
        const int from = at.panel(f) * l.rows;
        const unit u = {at.mat, from, KIND == TURNED ? l.rows : min(l.rows, p.m[at.mat].n - from)};
        const share mine = share_of<KIND>(p, f, u, (warp - turn) & ((int)RUNS - 1));
        strides<NT> s;
        strides_of<NT, KIND, HELD>(p, f, l, s);
        s.held = held + (uint32_t)lane * 16;
        float acc[XT][NT][4] = {};
        multiply_unit<XT, NT, KIND, HELD>(acc, f, r, l.cut, f.positions[at.mat], s);
        finish_unit<XT, NT, KIND>(p, f, acc, sums, sum_room, u, mine);
        turn += p.rows;
    }
    if (joins && blockIdx.x == 0)
        finish_before(p, row);
}

#endif

/* ---- host ------------------------------------------------------------------------------------ */

/* Columns of a block whose rows are not held. */
static int group_of(const struct kdev *d) { return d->shared_most >= LARGE ? 64 : 16; }

/* Positions of a stage: as many as are multiplied at once go in without rest. */
static int by_fours(int positions) { return positions > 4 ? positions / 4 * 4 : positions; }

/* n a power of two */
static int shift_of(int n)
{
    int s = 0;
    while (n >> (s + 1))
        s++;
    return s;
}

/* Deals the units of one matrix, of so many rows each, to the blocks from .. to: the most rows that
 * any block has then. load: rows of each block. */
static int deal_to(int *load, int n_sm, int from, int to, int units, int rows, bool keep)
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

/* Every block should have as much to read as the others: each matrix goes to those blocks, from one
 * where the loads of the matrices before change to another, among which the fullest is least full.
 * Returns the number of blocks that have anything. */
static int deal_units(const struct kdev *d, const struct product *p, struct few *f)
{
    enum { MOST_SM = 512 };
    int load[MOST_SM] = {}, n_sm = min_int(d->n_sm, MOST_SM), blocks = 0;
    for (int i = 0; i < f->mats; i++) {
        struct deal *deal = &f->deal[i];
        const struct panels *l = &p->m[i].panels;
        deal->half = p->turned ? p->behind.heads.head_dim / (2 * l->rows) : 0;
        deal->units = deal->half ? l->n / 2 : l->n;
        deal->shift = shift_of(deal->half);
        int best = INT32_MAX, rows = l->rows * (deal->half ? 2 : 1), at[3 * MAX_MATS], n = 0;
        for (int b = 0; b < n_sm && n < 3 * MAX_MATS - 1; b++)
            if (!b || load[b] != load[b - 1])
                at[n++] = b;
        at[n] = n_sm;
        for (int from = 0; from < n; from++)
            for (int to = n; to > from; to--) {
                int most = deal_to(load, n_sm, at[from], at[to], deal->units, rows, false);
                if (most < best)
                    best = most, deal->lo = at[from], deal->n = at[to] - at[from];
            }
        deal_to(load, n_sm, deal->lo, deal->lo + deal->n, deal->units, rows, true);
        blocks = max_int(blocks, deal->lo + min_int(deal->n, deal->units));
    }
    return blocks;
}

static size_t sums_bytes(int cols, int tiles)
{
    return (size_t)SUM_ROOMS * (size_t)RUNS * (size_t)(cols * sum_pitch(tiles)) * sizeof(float);
}

/* Divides shared memory. With rows in the stages all matrices have as many positions a stage. */
static struct few plan_of(const struct kdev *d, const struct product *p, int tiles, bool held)
{
    struct few f = {};
    f.mats = p->glu ? 1 : p->n_mats;
    f.head_shift = p->turned ? shift_of(p->behind.heads.head_dim) : 0;
    int cols = p->rows * p->x.terms, wide = 0, most = 1, of_unit = p->glu || p->turned ? 2 : 1;
    f.group = held ? cols : group_of(d);
    int in_stage = held ? 0 : min_int(cols, f.group);
    for (int i = 0; i < f.mats; i++) {
        wide = max_int(wide, p->m[i].panels.rows);
        most = max_int(most, p->m[i].panels.cut.each);
    }
    int each = RUNS * K_CHUNK_BYTES, of_rows = each * in_stage, of_weights = each * wide * of_unit;
    f.sum_cols = min_int(cols, SUM_COLS);
    size_t sums = sums_bytes(f.sum_cols, tiles);
    size_t rows = held ? cuda_round((size_t)cols * (size_t)p->x.kp * 2, 128) : 0;
    size_t left = d->shared_most - SLACK - sums - rows - 1024; /* the kernel's own */
    int wanted = min_int(STAGE_BYTES_WANTED, (int)(left / LEAST_STAGES));
    int positions = min_int(by_fours(max_int(wanted / (of_weights + of_rows), 1)), most);
    f.second_at = positions * each * wide;
    f.rows_at = positions * of_weights;
    f.stage = positions * (of_weights + of_rows);
    for (int i = 0; i < f.mats; i++) {
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

template <int XT, int NT, int KIND, int ROWS> static void run(struct kdev *d, struct product *p)
{
    struct few f = plan_of(d, p, NT, ROWS != STAGED);
    int blocks = deal_units(d, p, &f), cols = p->rows * p->x.terms;
    size_t bytes = (size_t)f.sums_at + SLACK + sums_bytes(f.sum_cols, NT);
    dim3 grid((unsigned)blocks, (unsigned)div_up(cols, f.group));
    cuda_launch(d, few_kernel<XT, NT, KIND, ROWS>, grid, FEW_THREADS, bytes, *p, f);
}

template <int NT, int KIND> static void run_staged(struct kdev *d, struct product *p)
{
    int cols = min_int(p->rows * p->x.terms, group_of(d));
    if (cols <= 16)
        run<1, NT, KIND, STAGED>(d, p);
    else if (cols <= 32)
        run<2, NT, KIND, STAGED>(d, p);
    else
        run<4, NT, KIND, STAGED>(d, p);
}

template <int ROWS> static void run_held(struct kdev *d, struct product *p, int most)
{
    if (p->glu)
        run<1, 6, GATED, ROWS>(d, p);
    else if (p->turned)
        run<1, 4, TURNED, ROWS>(d, p);
    else if (most <= 16)
        run<1, 2, PLAIN, ROWS>(d, p);
    else
        run<1, 3, PLAIN, ROWS>(d, p);
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
    return p->rows == 1 && p->x.terms == 1 && fits_held(d, 1, p->x.kp) && p->in.n % K_CHUNK == 0 &&
           (p->x.x || (uintptr_t)p->in.src % 16 == 0) && short_norm(&p->in.norm, p->in.n);
}

/* Heads and panels are powers of two, a head has pairs of panels, and with a norm a warp looks
 * after all of one. */
bool cuda_turns(const struct kdev *d, const struct product *p)
{
    const struct heads *h = &p->behind.heads;
    size_t lists = 0;
    if (!p->behind.turns || h->whole || h->v_from_k || (h->rot && h->rot != h->head_dim) ||
        h->head_dim & (h->head_dim - 1) || (uintptr_t)h->cs % 8 ||
        !fits_held(d, p->rows * p->x.terms, p->x.kp))
        return false;
    for (int i = 0; i < p->n_mats; i++) {
        const struct panels *l = &p->m[i].panels;
        const struct norm *n = i == 0 ? &h->q_norm : i == 1 ? &h->k_norm : &h->v_norm;
        int of_head = h->head_dim / l->rows;
        if (l->rows > 16 || l->rows & (l->rows - 1) || h->head_dim % (2 * l->rows) ||
            (n->kind != NORM_NONE && of_head > 32))
            return false;
        lists += (size_t)(l->n / 2 * p->rows) * (size_t)of_head;
    }
    return lists <= OWN_COUNTERS;
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
    if (p->fold)
        run_held<FOLDED>(d, p, most);
    else if (held)
        run_held<HELD_ROWS>(d, p, most);
    else if (p->glu)
        run_staged<6, GATED>(d, p);
    else
        run_staged<3, PLAIN>(d, p);
}
