/* cuda_few.cu - products of bf16 matrices with a few rows (decode, verify, a draft's steps), at the
 * speed of memory.
 *
 * A matrix of 20 to 100 MB is read in 5 to 25 us: what counts is that the memory never idles. So
 * every multiprocessor has one block, which asks for as many of its weights as its ring in shared
 * memory holds before it waits for its rows. The ring takes more than half of the multiprocessor:
 * where two blocks of the next kernel fit, some multiprocessors get two of them and others none.
 * Every thread copies to the ring exactly the 16 bytes that it will itself feed to the tensor
 * cores, so the ring needs no barrier and has no bank conflicts.
 *
 * That is for long streams. Where a multiprocessor would get no more than three tiles of a short k,
 * three small blocks with a tile each are faster; the hardware hands them out.
 *
 * Blocks have equal shares of the outputs, which they make MT tiles (a unit) at a time; the ring
 * runs on from one unit into the next. A tile is 16 outputs, or, of a gated pair of matrices, 8 of
 * each. A warp has one run of k. With HELD the rows lie in shared memory: a single one is
 * normalised and cut by every block itself, and the last block to arrive at a head, or at the end,
 * does what comes behind it. Otherwise rows come packed, through the ring.
 *
 * The order of sums is that of cuda_product.cuh.
 */
#include "kernels/cuda_product.cuh"

enum {
    PIECE = PRODUCT_THREADS * 16, /* bytes that the block's threads copy with one instruction */
    RED_PITCH = 20,               /* floats from column to column of the sums: no bank twice */
    HELD_BYTES = 56 << 10,        /* most of packed rows in shared memory */
    RING = 160 << 10, SMALL_RING = 64 << 10,
    SHORT = 4096,                 /* kp of rows that small blocks are good for */
    AHEAD = 20,                   /* chunks beyond a small ring */
};

/* What a kernel's shape implies. */
template <int MT, int NT, bool HELD> struct plan {
    static constexpr int PART = NT < 4 ? NT : 4;            /* column tiles added up at once */
    static constexpr int PIECES = 2 * MT + (HELD ? 0 : NT); /* of a chunk of k */
    static constexpr int STAGE = PIECES * PIECE;
    static constexpr int SUMS = RUNS * PART * 8 * RED_PITCH; /* floats; two of them */
    static constexpr bool SMALL = HELD && MT == 1;
    static constexpr int STAGES = (SMALL ? SMALL_RING : RING) / STAGE;
    static constexpr int BYTES = STAGES * STAGE + 2 * SUMS * (int)sizeof(float);
};

static inline __host__ __device__ size_t held_pitch(int kp) /* bytes; no bank twice */
{
    return (size_t)kp * 2 + (kp % 64 ? 0 : 64);
}

#ifdef __CUDACC__

__device__ __forceinline__ void copy16(uint32_t to, const void *from)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from)
                 : "memory");
}
__device__ __forceinline__ void copies_end()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
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

/* The outputs of all matrices in one row of numbers: where number n lies. With a gate only the
 * first matrix is numbered. */
__device__ __forceinline__ int mat_of(const product &p, int n)
{
    int mi = 0;
    while (mi + 1 < p.n_mats && !p.glu && n >= p.first[mi + 1])
        mi++;
    return mi;
}

/* Packed rows into shared memory, for the whole block. */
__device__ __forceinline__ void copy_rows(const packed &x, int cols, uint8_t *to)
{
    const size_t pitch = held_pitch(x.kp);
    const int each = x.kp / 8;
    for (int c = 0; c < cols; c++) {
        const uint4 *from = (const uint4 *)(x.x + (size_t)c * (size_t)x.kp);
#pragma unroll 4
        for (int i = (int)threadIdx.x; i < each; i += PRODUCT_THREADS)
            *(uint4 *)(to + (size_t)c * pitch + (size_t)i * 16) = __ldcg(from + i);
    }
}

/* Adds up the runs of a tile, in their order, and stores what follows. n0: its first output, end:
 * behind the block's last. bias: of output threadIdx.x % 16. */
template <int PART>
__device__ __forceinline__ void finish_tile(const product &p, const float (&acc)[PART][4],
                                            float *red, int n0, int end, float bias, int row0)
{
    constexpr int COLS = PART * 8;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int g = lane / 4, q = lane % 4;
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
    const int rows = min(COLS / p.x.terms, p.rows - row0), o = (int)threadIdx.x % 16, n = n0 + o;
    for (int t = (int)threadIdx.x / 16; t < (rows + 1) / 2 * 2; t += PRODUCT_THREADS / 16) {
        const float *from = red + t * RED_PITCH + o;
        float y = from[0];
#pragma unroll
        for (int r = 1; r < RUNS; r++)
            y += from[r * COLS * RED_PITCH];
        int row = row0 + t;
        if (p.glu) {
            float up = __shfl_down_sync(~0u, y, 8);
            if (o < 8 && t < rows && n < end)
                p.f[0].dst[(size_t)row * p.f[0].dst_stride + (size_t)n] =
                    activate(y, p.glu_act) * up;
        } else if (t < rows && n < end) {
            int mi = mat_of(p, n), out = n - p.first[mi];
            const finish &f = p.f[mi];
            store_one(f, behind_bias(f, f.b.p ? y + bias : y, out, row), out, row);
        }
    }
}

/* True for the block with which `all` is reached, whose threads then see (past the first cache)
 * what all blocks wrote; *counter is 0 before and after. */
__device__ __forceinline__ bool arrived(unsigned *counter, unsigned n, unsigned all)
{
    __shared__ bool last;
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        last = atomicAdd(counter, n) + n == all;
        if (last)
            *counter = 0;
        __threadfence();
    }
    __syncthreads();
    return last;
}

/* What comes behind a single row's product, of which this block made outputs n0 .. end - 1. */
__device__ __forceinline__ void finish_row(const product &p, int n0, int end, float *room)
{
    const struct behind &b = p.behind;
    if (b.dst) {
        int n = p.m[0].n;
        struct row_part w, old;
        load_norm(b.post, n, 0, w);
        if (b.add)
            load_part(b.dst, n, 0, old);
        if (arrived(b.counters, (unsigned)(end - n0), (unsigned)n))
            norm_row(p.f[0].dst, b.dst, n, b.post, w, old, b.add, 1, room);
    }
    for (int n = b.heads.head_dim, h = n0 / n; b.turns && h * n < end; h++) {
        struct head_part part;
        load_head(b.heads, 0, h, part);
        int mine = min(end, (h + 1) * n) - max(n0, h * n);
        if (arrived(b.counters + h, (unsigned)mine, (unsigned)n))
            finish_head(b.heads, 0, h, part, room);
    }
}

/* Shared: HELD: the packed row; the sums; the ring. */
template <int MT, int NT, bool HELD>
__global__ void __launch_bounds__(PRODUCT_THREADS, plan<MT, NT, HELD>::SMALL ? 3 : 1)
    few_kernel(const __grid_constant__ struct product p, int share)
{
    using S = plan<MT, NT, HELD>;
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ float room[ROW_WARPS];
    if (!p.behind.turns)
        let_next();
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int g = lane / 4, q = lane % 4;
    const int cols = p.rows * p.x.terms, col0 = (int)blockIdx.y * NT * 8;
    const int tile = p.glu ? 8 : 16; /* outputs of it */
    const int begin = (int)blockIdx.x * share, end = min(begin + share, p.outputs);

    /* this warp's run of k, in each of the block's units */
    const int chunks = p.x.kp / 32, each = (chunks + RUNS - 1) / RUNS;
    const int c0 = min(warp * each, chunks), c1 = min(c0 + each, chunks);

    uint8_t *const rows = shared;
    float *const red = (float *)(shared + (HELD ? (size_t)cols * held_pitch(p.x.kp) : 0));
    const uint32_t ring = (uint32_t)__cvta_generic_to_shared(red + 2 * S::SUMS) + threadIdx.x * 16;

    /* what comes into the ring next: chunk c_in of the unit from n_in on */
    int n_in = begin, c_in = c0;
    uint32_t in = ring;
    const uint8_t *w[MT][2];
    bool real[MT][2];
    auto seek = [&] {
#pragma unroll
        for (int i = 0; i < MT; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                int n = n_in + i * tile + (p.glu ? 0 : h * 8) + g, mi = mat_of(p, n);
                real[i][h] = n < end;
                w[i][h] = p.m[p.glu ? h : mi].w + q * 16;
                if (real[i][h])
                    w[i][h] += (size_t)(n - p.first[mi]) * p.m[mi].pitch;
            }
    };
    auto fetch_weights = [&] {
        if (n_in < end && c_in < c1)
#pragma unroll
            for (int i = 0; i < MT; i++)
#pragma unroll
                for (int h = 0; h < 2; h++)
                    if (real[i][h])
                        copy16(in + (uint32_t)(2 * i + h) * PIECE, w[i][h] + (size_t)c_in * 64);
    };
    /* the columns of this thread: bytes from the first */
    uint32_t x_at[NT];
#pragma unroll
    for (int j = 0; j < NT; j++)
        x_at[j] = (uint32_t)min(col0 + j * 8 + g, cols - 1) *
                  (HELD ? (uint32_t)held_pitch(p.x.kp) : (uint32_t)p.x.kp * 2) + (uint32_t)q * 16;
    auto fetch_rows = [&](int c, uint32_t to) {
        if (c < c1)
#pragma unroll
            for (int j = 0; j < NT; j++)
                copy16(to + (uint32_t)(2 * MT + j) * PIECE,
                       (const uint8_t *)p.x.x + x_at[j] + (size_t)c * 64);
    };
    auto forth = [&](uint32_t &at) {
        at += S::STAGE;
        if (at == ring + S::STAGES * S::STAGE)
            at = ring;
    };
    auto next_in = [&] {
        forth(in);
        if (++c_in >= c1) {
            c_in = c0;
            n_in += MT * tile;
            if (n_in < end)
                seek();
        }
    };

    /* before the wait */
    seek();
#pragma unroll 1
    for (int s = 0; s < S::STAGES - 1; s++) {
        fetch_weights();
        next_in();
        if (HELD)
            copies_end();
    }
    if (S::SMALL && q == 0 && n_in == begin && c_in < c1)
#pragma unroll
        for (int h = 0; h < 2; h++)
            if (real[0][h])
                prefetch(w[0][h] + (size_t)c_in * 64, min(c1 - c_in, AHEAD) * 64);
    struct row_part norm;
    if (HELD && !p.x.x)
        load_norm(p.in.norm, p.in.n, 0, norm);
    wait_before();
    if (p.behind.turns) /* attention reads old cells before it waits (settles, cuda.h) */
        let_next();
    if constexpr (HELD) {
        if (p.x.x)
            copy_rows(p.x, cols, rows);
        else
            pack_row(p.in, 0, p.x.kp, p.x.terms, norm, (uint16_t *)rows, held_pitch(p.x.kp) / 2,
                     room);
        __syncthreads();
    } else { /* the rows that belong to the weights in the ring */
        uint32_t to = ring;
        int c = c0;
#pragma unroll 1
        for (int s = 0; s < S::STAGES - 1; s++) {
            fetch_rows(c, to);
            c = c + 1 < c1 ? c + 1 : c0;
            forth(to);
            copies_end();
        }
    }
    const uint32_t x_shared = (uint32_t)__cvta_generic_to_shared(rows);

    uint32_t slot = ring;
    int turn = 0; /* of the two places for sums */
    for (int n0 = begin; n0 < end; n0 += MT * tile) {
        float bias[MT];
#pragma unroll
        for (int i = 0; i < MT; i++) {
            int n = n0 + i * 16 + (int)threadIdx.x % 16, mi = mat_of(p, n);
            const finish &f = p.f[mi];
            bias[i] = f.b.p && n < end ? weight_at(f.b, (size_t)(n - p.first[mi])) : 0.f;
        }
        float acc[MT][NT][4] = {};
        for (int c = c0; c < c1; c++) {
            copies_wait<S::STAGES - 2>();
            uint4 a[MT][2];
#pragma unroll
            for (int i = 0; i < 2 * MT; i++)
                a[i / 2][i % 2] = shared16(slot + (uint32_t)i * PIECE);
#pragma unroll
            for (int j = 0; j < NT; j++) {
                uint4 b = make_uint4(0, 0, 0, 0);
                if (!HELD)
                    b = shared16(slot + (uint32_t)(2 * MT + j) * PIECE);
                else if (g < cols) /* the other columns are nobody's */
                    b = shared16(x_shared + x_at[j] + (uint32_t)c * 64);
#pragma unroll
                for (int i = 0; i < MT; i++) {
                    mma_bf16(acc[i][j], a[i][0].x, a[i][1].x, a[i][0].y, a[i][1].y, b.x, b.y);
                    mma_bf16(acc[i][j], a[i][0].z, a[i][1].z, a[i][0].w, a[i][1].w, b.z, b.w);
                }
            }
            fetch_weights(); /* to where the chunk before this one was */
            if (!HELD && n_in < end)
                fetch_rows(c_in, in);
            copies_end();
            next_in();
            forth(slot);
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
                if (row0 >= p.rows || n0 + i * tile >= end)
                    continue;
                finish_tile<S::PART>(p, sums, red + turn * S::SUMS, n0 + i * tile, end, bias[i],
                                     row0);
                turn ^= 1;
            }
    }
    if (HELD && !p.x.x)
        finish_row(p, begin, end, room);
}

#endif

/* ---- host ------------------------------------------------------------------------------------ */

template <int MT, int NT, bool HELD> static void run(struct kdev *d, struct product *p)
{
    using S = plan<MT, NT, HELD>;
    int cols = p->rows * p->x.terms;
    p->outputs = 0;
    for (int i = 0; i < (p->glu ? 1 : p->n_mats); i++) {
        p->first[i] = p->outputs;
        p->outputs += p->m[i].n;
    }
    int share = S::SMALL ? p->glu ? 8 : 16 : div_up(p->outputs, d->n_sm);
    size_t bytes = S::BYTES + (HELD ? (size_t)cols * held_pitch(p->x.kp) : 0);
    dim3 grid((unsigned)div_up(p->outputs, share), HELD ? 1u : (unsigned)div_up(cols, NT * 8));
    cuda_launch(d, few_kernel<MT, NT, HELD>, grid, PRODUCT_THREADS, bytes, *p, share);
}

static int tiles_of_a_block(const struct kdev *d, const struct product *p)
{
    int outputs = 0;
    for (int i = 0; i < (p->glu ? 1 : p->n_mats); i++)
        outputs += p->m[i].n;
    return div_up(div_up(outputs, d->n_sm), p->glu ? 8 : 16);
}

bool cuda_folds(const struct product *p)
{
    return p->rows == 1 && p->x.terms * held_pitch(p->x.kp) <= HELD_BYTES &&
           !(p->behind.turns && p->behind.heads.whole);
}

void cuda_product_few(struct kdev *d, struct product *p, bool fold)
{
    int cols = p->rows * p->x.terms;
    if (fold || (cols <= 8 && (size_t)cols * held_pitch(p->x.kp) <= HELD_BYTES))
        fold && tiles_of_a_block(d, p) <= 3 && p->x.kp <= SHORT ? run<1, 1, true>(d, p)
                                                                : run<2, 1, true>(d, p);
    else if (cols <= 16)
        run<2, 2, false>(d, p);
    else if (cols <= 32)
        run<2, 4, false>(d, p);
    else
        run<2, 8, false>(d, p);
}
