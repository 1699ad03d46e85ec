/* cuda_few.cu - products of bf16 matrices with a few rows (decode, verify, a draft's steps), at the
 * speed of memory.
 *
 * A matrix of 20 to 100 MB is read in 5 to 25 us: what counts is that the memory never idles, from
 * the kernel before to the one behind. So a block asks for its weights before it waits for its rows:
 * as many as its ring in shared memory holds, and more into the second cache. Every thread copies
 * to the ring exactly the 16 bytes that it will itself feed to the tensor cores, so the ring needs
 * no barrier and has no bank conflicts.
 *
 * A block makes MT tiles of 16 outputs, or, for a gated pair of matrices, of 8 outputs of each. A
 * warp has one run of k. Multiprocessors are not served alike, so blocks are many and small and
 * the hardware hands them out. With FOLD (one row) the row is normalised and cut by every block
 * itself, and what comes behind is done by the last block to arrive; otherwise rows lie packed in
 * memory and come through the ring.
 *
 * The order of sums is that of cuda_product.cuh.
 */
#include "kernels/cuda_product.cuh"

#ifndef FEW_RING
#define FEW_RING 80
#endif
#ifndef FEW_AHEAD
#define FEW_AHEAD 10
#endif

enum {
    PIECE = PRODUCT_THREADS * 16, /* bytes that the block's threads copy with one instruction */
    RED_PITCH = 20,               /* floats from column to column of the sums: no bank twice */
    FOLD_BYTES = 72 << 10,        /* most of packed rows in shared memory */
    AHEAD = FEW_AHEAD,            /* chunks of each run beyond the ring that are prefetched */
};

/* What a kernel's shape implies. */
template <int MT, int NT, bool FOLD> struct plan {
    static constexpr int PART = NT < 4 ? NT : 4;            /* column tiles added up at once */
    static constexpr int PIECES = 2 * MT + (FOLD ? 0 : NT); /* of a chunk of k */
    static constexpr int STAGE = PIECES * PIECE;
    static constexpr int SUMS = RUNS * PART * 8 * RED_PITCH * (int)sizeof(float);
    static constexpr int RING = ((FOLD || NT == 1 ? FEW_RING : NT == 2 ? 96 : 192 - 20) << 10);
    static constexpr int STAGES = RING / STAGE;
    static constexpr int BYTES = STAGES * STAGE + SUMS;
};

static inline __host__ __device__ size_t folded_pitch(int kp) /* bytes; no bank twice */
{
    return (size_t)kp * 2 + (kp % 64 ? 0 : 64);
}

#ifdef FEW_TRACE
extern __device__ unsigned long long trace_at[1024][160][4];
#define MARK(k) do { if (threadIdx.x == 0 && blockIdx.y == 0 && blockIdx.x < 160) { unsigned long long t; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)); trace_at[id][blockIdx.x][k] = t; } } while (0)
extern int trace_id;
#define TRACE_ID trace_id++
#else
#define MARK(k) (void)id
#define TRACE_ID 0
#endif
#ifdef __CUDACC__

__device__ __forceinline__ void copy16(uint32_t to, const void *from)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from)
                 : "memory");
}
__device__ __forceinline__ void copies_end() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> __device__ __forceinline__ void copies_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
__device__ __forceinline__ uint4 shared16(uint32_t at)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at));
    return v;
}

/* Asks for bytes (a multiple of 16) to come into the second cache. */
__device__ __forceinline__ void prefetch(const void *from, int bytes)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes));
#else
    for (int at = 0; at < bytes; at += 128)
        asm volatile("prefetch.global.L2 [%0];" ::"l"((const char *)from + at));
#endif
}

__device__ __forceinline__ void prefetch_vec(const struct vec &v, int n)
{
    if (v.p && (uintptr_t)v.p % 16 == 0 && threadIdx.x == 0)
        prefetch(v.p, n * (v.type == DT_F32 ? 4 : 2) / 16 * 16);
}

/* Where a tile's outputs lie: matrix and first row; with a gate its second eight rows are those of
 * the other matrix. */
struct place {
    int mi, n0;
};

/* Adds up the runs of a tile, in their order, and stores what follows. bias: of output
 * threadIdx.x % 16. */
template <int PART>
__device__ __forceinline__ void finish_tile(const product &p, const float (&acc)[PART][4],
                                            float *red, struct place at0, float bias, int row0)
{
    constexpr int COLS = PART * 8;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, g = lane / 4, q = lane % 4;
    const bool two = p.x.terms == 2;
    float *to = red + warp * COLS * RED_PITCH + g;
#pragma unroll
    for (int j = 0; j < PART; j++) {
        const float *a = acc[j];
        float *at = to + (two ? j * 4 + q : j * 8 + 2 * q) * RED_PITCH;
        at[0] = two ? a[0] + a[1] : a[0];
        at[8] = two ? a[2] + a[3] : a[2];
        if (!two) {
            at[RED_PITCH] = a[1];
            at[RED_PITCH + 8] = a[3];
        }
    }
    __syncthreads();
    const int rows = min(COLS / p.x.terms, p.rows - row0), o = (int)threadIdx.x % 16;
    for (int t = (int)threadIdx.x / 16; t < (rows + 1) / 2 * 2; t += PRODUCT_THREADS / 16) {
        const float *from = red + t * RED_PITCH + o;
        float y = from[0];
#pragma unroll
        for (int r = 1; r < RUNS; r++)
            y += from[r * COLS * RED_PITCH];
        int out = at0.n0 + o, row = row0 + t;
        if (p.glu) {
            float up = __shfl_down_sync(~0u, y, 8);
            if (o < 8 && t < rows && out < p.m[0].n)
                p.f[0].dst[(size_t)row * p.f[0].dst_stride + (size_t)out] =
                    activate(y, p.glu_act) * up;
        } else if (t < rows && out < p.m[at0.mi].n) {
            const finish &f = p.f[at0.mi];
            store_one(f, behind_bias(f, f.b.p ? y + bias : y, out, row), out, row);
        }
    }
    __syncthreads();
}

/* What comes behind a single row's product, by the last block of a head or of all. */
__device__ __forceinline__ void finish_row(const product &p, struct place at, float *room)
{
    const struct behind &b = p.behind;
    if (b.dst && last_to_arrive(b.counters, gridDim.x)) {
        struct row_part w;
        load_norm(b.post, p.m[0].n, 0, w);
        norm_row(p.f[0].dst, b.dst, p.m[0].n, b.post, w, b.add, 1, room);
    }
    if (!b.turns)
        return;
    int n = b.heads.head_dim, h = at.n0 / n;
    int first = at.mi == 0 ? 0 : b.heads.n_head + (at.mi - 1) * b.heads.n_kv;
    if (!last_to_arrive(b.counters + first + h, (unsigned)(n / 16)))
        return;
    finish_head(b.heads, 0, at.mi, h, room);
    if (at.mi == 1 && b.heads.v_from_k) {
        __syncthreads();
        finish_head(b.heads, 0, 2, h, room);
    }
}

/* Shared: FOLD: the packed row; the sums; the ring. */
template <int MT, int NT, bool FOLD>
__global__ void __launch_bounds__(PRODUCT_THREADS, NT < 4 ? 2 : 1)
    few_kernel(const __grid_constant__ struct product p, int id)
{
    using S = plan<MT, NT, FOLD>;
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ float room[ROW_WARPS];
    MARK(0);
    let_next();
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, g = lane / 4, q = lane % 4;
    const int cols = p.rows * p.x.terms, col0 = (int)blockIdx.y * NT * 8;

    struct place at = {0, 0};
    while (!p.glu && at.mi + 1 < p.n_mats && (int)blockIdx.x >= p.first[at.mi + 1])
        at.mi++;
    at.n0 = ((int)blockIdx.x - p.first[at.mi]) * MT * (p.glu ? 8 : 16);

    /* this warp's run of k */
    const int chunks = p.x.kp / 32, each = (chunks + RUNS - 1) / RUNS;
    const int c0 = min(warp * each, chunks), c1 = min(c0 + each, chunks);

    uint8_t *const rows = shared;
    float *const red = (float *)(shared + (FOLD ? (size_t)cols * folded_pitch(p.x.kp) : 0));
    const uint32_t ring = (uint32_t)__cvta_generic_to_shared((uint8_t *)red + S::SUMS) +
                          threadIdx.x * 16;

    const uint8_t *w[MT][2];
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const mat &m = p.m[p.glu ? h : at.mi];
            int row = min(at.n0 + (p.glu ? i * 8 : i * 16 + h * 8) + g, m.n - 1);
            w[i][h] = m.w + (size_t)row * m.pitch + q * 16;
        }
    auto fetch_weights = [&](int c, uint32_t to) {
#pragma unroll
        for (int i = 0; i < MT; i++) {
            copy16(to + (uint32_t)(2 * i) * PIECE, w[i][0] + (size_t)c * 64);
            copy16(to + (uint32_t)(2 * i + 1) * PIECE, w[i][1] + (size_t)c * 64);
        }
    };

    /* before the wait */
#pragma unroll
    for (int s = 0; s < S::STAGES; s++) {
        if (c0 + s < c1)
            fetch_weights(c0 + s, ring + (uint32_t)s * S::STAGE);
        if (FOLD)
            copies_end();
    }
    if (AHEAD && q == 0 && c0 + S::STAGES < c1) {
        int bytes = min(c1 - c0 - S::STAGES, AHEAD) * 64;
#pragma unroll
        for (int i = 0; i < MT; i++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                prefetch(w[i][h] + (size_t)(c0 + S::STAGES) * 64, bytes);
    }
    float bias[MT];
#pragma unroll
    for (int i = 0; i < MT; i++) {
        int out = at.n0 + i * 16 + (int)threadIdx.x % 16;
        const finish &f = p.f[at.mi];
        bias[i] = f.b.p && out < p.m[at.mi].n ? weight_at(f.b, (size_t)out) : 0.f;
    }
    struct row_part norm;
    if constexpr (FOLD) {
        load_norm(p.in.norm, p.in.n, 0, norm);
        if (blockIdx.x == 0 && p.behind.dst)
            prefetch_vec(p.behind.post.w, p.m[0].n);
        if (blockIdx.x == 0 && p.behind.turns) {
            prefetch_vec(p.behind.heads.q_norm.w, p.behind.heads.head_dim);
            prefetch_vec(p.behind.heads.k_norm.w, p.behind.heads.head_dim);
        }
    }
    wait_before();
    MARK(1);

    /* the columns of this thread: bytes from the first */
    uint32_t x_at[NT];
#pragma unroll
    for (int j = 0; j < NT; j++)
        x_at[j] = (uint32_t)min(col0 + j * 8 + g, cols - 1) *
                  (FOLD ? (uint32_t)folded_pitch(p.x.kp) : (uint32_t)p.x.kp * 2) + (uint32_t)q * 16;
    auto fetch_rows = [&](int c, uint32_t to) {
#pragma unroll
        for (int j = 0; j < NT; j++)
            copy16(to + (uint32_t)(2 * MT + j) * PIECE,
                   (const uint8_t *)p.x.x + x_at[j] + (size_t)c * 64);
    };
    if constexpr (FOLD) {
        pack_row(p.in, 0, p.x.kp, p.x.terms, norm, (uint16_t *)rows, folded_pitch(p.x.kp) / 2, room);
        __syncthreads();
    } else {
#pragma unroll
        for (int s = 0; s < S::STAGES; s++) {
            if (c0 + s < c1)
                fetch_rows(c0 + s, ring + (uint32_t)s * S::STAGE);
            copies_end();
        }
    }
    MARK(2);
    const uint32_t x_shared = (uint32_t)__cvta_generic_to_shared(rows);

    float acc[MT][NT][4] = {};
    uint32_t slot = ring;
    for (int c = c0; c < c1; c++) {
        copies_wait<S::STAGES - 1>();
        uint4 a[MT][2];
#pragma unroll
        for (int i = 0; i < MT; i++) {
            a[i][0] = shared16(slot + (uint32_t)(2 * i) * PIECE);
            a[i][1] = shared16(slot + (uint32_t)(2 * i + 1) * PIECE);
        }
#pragma unroll
        for (int j = 0; j < NT; j++) {
            uint4 b = FOLD ? shared16(x_shared + x_at[j] + (uint32_t)c * 64)
                           : shared16(slot + (uint32_t)(2 * MT + j) * PIECE);
#pragma unroll
            for (int i = 0; i < MT; i++) {
                mma_bf16(acc[i][j], a[i][0].x, a[i][1].x, a[i][0].y, a[i][1].y, b.x, b.y);
                mma_bf16(acc[i][j], a[i][0].z, a[i][1].z, a[i][0].w, a[i][1].w, b.z, b.w);
            }
        }
        if (c + S::STAGES < c1) { /* into the place that was just read, by this very thread */
            fetch_weights(c + S::STAGES, slot);
            if (!FOLD)
                fetch_rows(c + S::STAGES, slot);
        }
        copies_end();
        slot += S::STAGE;
        if (slot == ring + S::STAGES * S::STAGE)
            slot = ring;
    }

#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int j = 0; j < NT; j += S::PART) {
            float sums[S::PART][4];
#pragma unroll
            for (int t = 0; t < S::PART; t++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    sums[t][e] = acc[i][j + t][e];
            int row0 = (col0 + j * 8) / p.x.terms;
            struct place here = {at.mi, at.n0 + i * (p.glu ? 8 : 16)};
            if (row0 < p.rows)
                finish_tile<S::PART>(p, sums, red, here, bias[i], row0);
        }
    if constexpr (FOLD)
        finish_row(p, at, room);
    MARK(3);
}

#endif

/* ---- host ------------------------------------------------------------------------------------ */

template <int MT, int NT, bool FOLD> static void run(struct kdev *d, struct product *p)
{
    using S = plan<MT, NT, FOLD>;
    int units = 0, cols = p->rows * p->x.terms;
    for (int i = 0; i < (p->glu ? 1 : p->n_mats); i++) {
        p->first[i] = units;
        units += div_up(p->m[i].n, MT * (p->glu ? 8 : 16));
    }
    size_t bytes = S::BYTES + (FOLD ? (size_t)cols * folded_pitch(p->x.kp) : 0);
    dim3 grid((unsigned)units, FOLD ? 1u : (unsigned)div_up(cols, NT * 8));
    cuda_launch(d, few_kernel<MT, NT, FOLD>, grid, PRODUCT_THREADS, bytes, *p, TRACE_ID);
}

bool cuda_folds(const struct kdev *d, const struct product *p)
{
    (void)d;
    const struct heads *h = &p->behind.heads;
    return p->rows == 1 && p->x.terms * folded_pitch(p->x.kp) <= FOLD_BYTES &&
           (!p->behind.turns || (!h->whole && h->head_dim % 16 == 0));
}

void cuda_product_few(struct kdev *d, struct product *p, bool fold)
{
    int cols = p->rows * p->x.terms;
    if (fold)
        run<1, 1, true>(d, p);
    else if (cols <= 8)
        run<1, 1, false>(d, p);
    else if (cols <= 16)
        run<2, 2, false>(d, p);
    else if (cols <= 32)
        run<2, 4, false>(d, p);
    else
        run<2, 8, false>(d, p);
}
