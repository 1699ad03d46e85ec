/* cuda_few.cu - products of bf16 matrices with a few rows (decode, verify, a draft's steps), at the
 * speed of memory.
 *
 * A matrix of 20 to 100 MB is read in 5 to 25 us: what counts is that the memory never idles, from
 * the kernel before to the one behind. So a block asks for its first weights before it waits for
 * its rows: as many as its ring in shared memory holds, and more into the second cache. Every
 * thread copies to the ring exactly the 16 bytes that it will itself feed to the tensor cores, so
 * the ring needs no barrier and has no bank conflicts.
 *
 * The grid stays: a block takes every gridDim.x-th unit (MT tiles of 16 outputs; with GLU they
 * alternate between gate and up), and its ring runs on from one unit into the next. A warp has one
 * run of k in each. With FOLD the rows are normalised and cut by every block itself, into shared
 * memory; otherwise they lie packed in memory and come through the ring.
 *
 * The order of sums is that of cuda_product.cuh.
 */
#include "kernels/cuda_product.cuh"

#ifndef FEW_RING
#define FEW_RING 64
#endif
#ifndef FEW_AHEAD
#define FEW_AHEAD 160
#endif
#ifndef FEW_BLOCKS
#define FEW_BLOCKS 1
#endif
#ifndef FEW_FOLD
#define FEW_FOLD 1
#endif

enum {
    PIECE = PRODUCT_THREADS * 16, /* bytes that the block's threads copy with one instruction */
    RED_PITCH = 20,               /* floats from column to column of the sums: no bank twice */
    FOLD_ROWS = FEW_FOLD, FOLD_BYTES = 72 << 10, /* of packed rows in shared memory */
    AHEAD = FEW_AHEAD << 10,             /* bytes that a block prefetches beyond its ring */
    RING = FEW_RING << 10,
    WIDE_RING = 192 << 10,
};

/* What a kernel's shape implies. */
template <int MT, int NT, bool GLU, bool FOLD> struct plan {
    static constexpr int SIDES = GLU ? 2 : 1;
    static constexpr int PART = NT < 4 ? NT : 4;                /* column tiles added up at once */
    static constexpr int PIECES = 2 * MT + (FOLD ? 0 : NT);     /* of a chunk of k */
    static constexpr int SUMS = SIDES * RUNS * PART * 8 * RED_PITCH * (int)sizeof(float);
    static constexpr int FIT = (FOLD ? RING : NT <= 2 ? RING * 3 / 2 : WIDE_RING - SUMS) / (PIECES * PIECE);
    static constexpr int STAGES = FIT < 3 ? 3 : FIT;
    static constexpr int BYTES = STAGES * PIECES * PIECE + SUMS;
};

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

/* Which matrix a unit belongs to, and its first output there. */
template <int MT, bool GLU> __device__ __forceinline__ int mat_of_unit(const product &p, int u, int &n0)
{
    int mi = 0;
    while (!GLU && mi + 1 < p.n_mats && u >= p.first[mi + 1])
        mi++;
    n0 = (u - p.first[mi]) * 16 * (GLU ? MT / 2 : MT);
    return mi;
}

/* Asks for a unit's weights to come into the second cache; the whole block. */
template <int MT, bool GLU> __device__ __forceinline__ void prefetch_unit(const product &p, int u)
{
    int n0, mi = mat_of_unit<MT, GLU>(p, u, n0);
#pragma unroll
    for (int side = 0; side < (GLU ? 2 : 1); side++) {
        const mat &m = p.m[GLU ? side : mi];
        const uint8_t *from = m.w + (size_t)n0 * m.pitch;
        int bytes = min(16 * (GLU ? MT / 2 : MT), m.n - n0) * (int)m.pitch;
        for (int at = (int)threadIdx.x * 128; at < bytes; at += PRODUCT_THREADS * 128)
            asm volatile("prefetch.global.L2 [%0];" ::"l"(from + at));
    }
}

/* A thread's pointers into the weights of a unit. */
template <int MT, bool GLU>
__device__ __forceinline__ void seek(const product &p, int u, const uint8_t *(&w)[MT][2])
{
    const int lane = (int)threadIdx.x % 32, g = lane / 4, q = lane % 4;
    int n0, mi = mat_of_unit<MT, GLU>(p, u, n0);
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const mat &m = p.m[GLU ? i % 2 : mi];
            int row = min(n0 + (GLU ? i / 2 : i) * 16 + h * 8 + g, m.n - 1);
            w[i][h] = m.w + (size_t)row * m.pitch + q * 16;
        }
}

/* Adds up the runs of one tile (or of gate and up), in their order, and stores what follows. */
template <int SIDES, int PART>
__device__ __forceinline__ void finish_tile(const product &p, const float (&acc)[SIDES][PART][4],
                                            float *red, int mi, int n0, int row0)
{
    constexpr int COLS = PART * 8;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, g = lane / 4, q = lane % 4;
    const bool two = p.x.terms == 2;
#pragma unroll
    for (int side = 0; side < SIDES; side++) {
        float *to = red + (side * RUNS + warp) * COLS * RED_PITCH + g;
#pragma unroll
        for (int j = 0; j < PART; j++) {
            const float *a = acc[side][j];
            float *at = to + (two ? j * 4 + q : j * 8 + 2 * q) * RED_PITCH;
            at[0] = two ? a[0] + a[1] : a[0];
            at[8] = two ? a[2] + a[3] : a[2];
            if (!two) {
                at[RED_PITCH] = a[1];
                at[RED_PITCH + 8] = a[3];
            }
        }
    }
    __syncthreads();
    const int rows = min(COLS / p.x.terms, p.rows - row0);
    for (int at = (int)threadIdx.x; at < 16 * rows; at += PRODUCT_THREADS) {
        int o = at % 16, out = n0 + o, row = row0 + at / 16;
        float y[SIDES];
#pragma unroll
        for (int side = 0; side < SIDES; side++) {
            const float *from = red + side * RUNS * COLS * RED_PITCH + at / 16 * RED_PITCH + o;
            y[side] = from[0];
#pragma unroll
            for (int r = 1; r < RUNS; r++)
                y[side] += from[r * COLS * RED_PITCH];
        }
        if (out >= p.m[mi].n)
            continue;
        if constexpr (SIDES == 2)
            p.f[0].dst[(size_t)row * p.f[0].dst_stride + (size_t)out] =
                activate(y[0], p.glu_act) * y[1];
        else
            store_one(p.f[mi], finished(p.f[mi], y[0], out, row), out, row);
    }
    __syncthreads();
}

/* Shared: FOLD: the packed rows; the sums; the ring. */
template <int MT, int NT, bool GLU, bool FOLD>
__global__ void __launch_bounds__(PRODUCT_THREADS, FOLD ? 2 : 1)
    few_kernel(const __grid_constant__ struct product p, int units)
{
    using S = plan<MT, NT, GLU, FOLD>;
    constexpr int STAGE = S::PIECES * PIECE;
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ float room[33];
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, g = lane / 4, q = lane % 4;
    const int step = (int)gridDim.x, cols = p.rows * p.x.terms, col0 = (int)blockIdx.y * NT * 8;

    /* this warp's run of k, in each of the block's units */
    const int chunks = p.x.kp / 32, each = (chunks + RUNS - 1) / RUNS;
    const int c0 = min(warp * each, chunks), c1 = min(c0 + each, chunks);

    const size_t x_pitch = (size_t)p.x.kp * 2 + (p.x.kp % 64 ? 0 : 64); /* FOLD: no bank twice */
    uint8_t *const rows = shared;
    float *const red = (float *)(shared + (FOLD ? (size_t)cols * x_pitch : 0));
    const uint32_t ring = (uint32_t)__cvta_generic_to_shared((uint8_t *)red + S::SUMS) +
                          threadIdx.x * 16;

    /* the packed columns of this thread */
    uint32_t x_at[NT]; /* bytes from the first */
#pragma unroll
    for (int j = 0; j < NT; j++)
        x_at[j] = (uint32_t)min(col0 + j * 8 + g, cols - 1) *
                  (FOLD ? (uint32_t)x_pitch : (uint32_t)p.x.kp * 2) + (uint32_t)q * 16;

    const uint8_t *w[MT][2];
    int u_in = (int)blockIdx.x, c_in = c0; /* what comes into the ring next */
    uint32_t in = ring, out = ring;
    seek<MT, GLU>(p, u_in, w);
    auto fetch_weights = [&] {
        if (c_in == c1 && c0 < c1) {
            u_in += step, c_in = c0;
            if (u_in < units)
                seek<MT, GLU>(p, u_in, w);
        }
        if (u_in < units && c_in < c1)
#pragma unroll
            for (int i = 0; i < MT; i++) {
                copy16(in + (uint32_t)(2 * i) * PIECE, w[i][0] + (size_t)c_in * 64);
                copy16(in + (uint32_t)(2 * i + 1) * PIECE, w[i][1] + (size_t)c_in * 64);
            }
    };
    auto fetch_rows = [&](int c, uint32_t to) {
#pragma unroll
        for (int j = 0; j < NT; j++)
            copy16(to + (uint32_t)(2 * MT + j) * PIECE,
                   (const uint8_t *)p.x.x + x_at[j] + (size_t)c * 64);
    };
    auto forth = [&](uint32_t &at) {
        at += STAGE;
        if (at == ring + S::STAGES * STAGE)
            at = ring;
    };

    /* before the wait: the ring's weights, then the second cache's */
#pragma unroll
    for (int s = 0; s < S::STAGES - 1; s++) {
        fetch_weights();
        c_in++;
        forth(in);
        if (FOLD)
            copies_end();
    }
    const int unit_bytes = 16 * MT * (int)p.m[0].pitch, ahead = 1 + AHEAD / unit_bytes;
    for (int i = 0, u = (int)blockIdx.x; i < ahead && u < units; i++, u += step)
        prefetch_unit<MT, GLU>(p, u);
    struct row_part norm;
    if (FOLD)
        load_norm(p.in.norm, p.in.n, 0, norm);
    if ((int)blockIdx.x + ahead * step >= units)
        let_next();
    wait_before();

    if constexpr (FOLD) {
        for (int r = 0; r < p.rows; r++)
            pack_row(p.in, r, p.x.kp, p.x.terms, norm,
                     (uint16_t *)(rows + (size_t)(r * p.x.terms) * x_pitch), x_pitch / 2, room);
        __syncthreads();
    } else { /* the rows that belong to the weights in the ring */
        uint32_t to = ring;
        int c = c0;
#pragma unroll
        for (int s = 0; s < S::STAGES - 1; s++) {
            if (c0 < c1)
                fetch_rows(c, to);
            c = c + 1 < c1 ? c + 1 : c0;
            forth(to);
            copies_end();
        }
    }
    const uint32_t x_shared = (uint32_t)__cvta_generic_to_shared(rows);

    for (int u = (int)blockIdx.x; u < units; u += step) {
        if (u != (int)blockIdx.x && u + (ahead - 1) * step < units) {
            prefetch_unit<MT, GLU>(p, u + (ahead - 1) * step);
            if (u + ahead * step >= units)
                let_next();
        }
        float acc[MT][NT][4] = {};
        for (int c = c0; c < c1; c++) {
            copies_wait<S::STAGES - 2>();
            uint4 a[MT][2];
#pragma unroll
            for (int i = 0; i < MT; i++) {
                a[i][0] = shared16(out + (uint32_t)(2 * i) * PIECE);
                a[i][1] = shared16(out + (uint32_t)(2 * i + 1) * PIECE);
            }
#pragma unroll
            for (int j = 0; j < NT; j++) {
                uint4 b = FOLD ? shared16(x_shared + x_at[j] + (uint32_t)c * 64)
                               : shared16(out + (uint32_t)(2 * MT + j) * PIECE);
#pragma unroll
                for (int i = 0; i < MT; i++) {
                    mma_bf16(acc[i][j], a[i][0].x, a[i][1].x, a[i][0].y, a[i][1].y, b.x, b.y);
                    mma_bf16(acc[i][j], a[i][0].z, a[i][1].z, a[i][0].w, a[i][1].w, b.z, b.w);
                }
            }
            fetch_weights();
            if (!FOLD && u_in < units)
                fetch_rows(c_in, in);
            copies_end();
            c_in++;
            forth(in);
            forth(out);
        }
        int n0, mi = mat_of_unit<MT, GLU>(p, u, n0);
#pragma unroll
        for (int i = 0; i < MT; i += S::SIDES)
#pragma unroll
            for (int j = 0; j < NT; j += S::PART) {
                float sums[S::SIDES][S::PART][4];
#pragma unroll
                for (int side = 0; side < S::SIDES; side++)
#pragma unroll
                    for (int t = 0; t < S::PART; t++)
#pragma unroll
                        for (int e = 0; e < 4; e++)
                            sums[side][t][e] = acc[i + side][j + t][e];
                int row0 = (col0 + j * 8) / p.x.terms;
                if (row0 < p.rows)
                    finish_tile<S::SIDES, S::PART>(p, sums, red, mi, n0 + i / S::SIDES * 16, row0);
            }
    }
}

#endif

/* ---- host ------------------------------------------------------------------------------------ */

template <int MT, int NT, bool GLU, bool FOLD>
static void run(struct kdev *d, struct product *p, int blocks_of_an_sm)
{
    using S = plan<MT, NT, GLU, FOLD>;
    int units = 0, per_unit = 16 * MT / S::SIDES, cols = p->rows * p->x.terms;
    for (int i = 0; i < (GLU ? 1 : p->n_mats); i++) {
        p->first[i] = units;
        units += div_up(p->m[i].n, per_unit);
    }
    size_t x_pitch = (size_t)p->x.kp * 2 + (p->x.kp % 64 ? 0 : 64);
    size_t bytes = S::BYTES + (FOLD ? (size_t)cols * x_pitch : 0);
    dim3 grid((unsigned)min_int(units, blocks_of_an_sm * d->n_sm),
              FOLD ? 1u : (unsigned)div_up(cols, NT * 8));
    cuda_launch(d, few_kernel<MT, NT, GLU, FOLD>, grid, PRODUCT_THREADS, bytes, *p, units);
}

bool cuda_folds(const struct kdev *d, int rows, int kp)
{
    return rows <= FOLD_ROWS && rows * d->terms <= 8 &&
           rows * d->terms * (2 * kp + 64) <= FOLD_BYTES;
}

template <bool GLU> static void run_few(struct kdev *d, struct product *p, bool fold)
{
    constexpr int M = GLU ? 2 : 1;
    int cols = p->rows * p->x.terms;
    if (fold)
        run<M, 1, GLU, true>(d, p, FEW_BLOCKS);
    else if (cols <= 16)
        run<2, 2, GLU, false>(d, p, 1);
    else if (cols <= 32)
        run<2, 4, GLU, false>(d, p, 1);
    else
        run<2, 8, GLU, false>(d, p, 1);
}

void cuda_product_few(struct kdev *d, struct product *p, bool glu, bool fold)
{
    glu ? run_few<true>(d, p, fold) : run_few<false>(d, p, fold);
}
