/* product.cuh - the product of packed rows with a weight matrix: its arguments, its order of
 * summation, and a kernel for weights that are not bf16.
 *
 * Weights are the A operand of mma.m16n8k16 and are loaded from memory 16 bytes a thread: thread
 * (g, q) of a warp holds 8 successive weights of rows g and g + 8, which serve as the four
 * positions of k that the instruction assigns to q, twice. The rows of activations are the B
 * operand. They are permuted along k in the same way because they are loaded in the same way: 16
 * bytes at the same k.
 *
 * A row of activations is two columns of B, its terms: x = hi + lo, two bf16 (16 bits of mantissa
 * in all), or two f16 and a power of two for MXFP4 (22 bits). Products are exact in float32.
 * Weights of f16 and f32 are split into two and three bf16, which is exact, too. Both columns of a
 * row end in one thread, which adds them.
 *
 * Order of every sum (law 5): k is divided into 8 k splits (base/panel.cuh) by its length alone;
 * one warp of the block accumulates a split, chunk after chunk; the 8 partial sums are added in the
 * order of the splits. The number of rows in a block has no influence on that, so a row has the
 * same bits in decode, verify and prefill.
 */
#pragma once

#include "kernels/cuda/base/mma.cuh"
#include "kernels/cuda/dense/heads.cuh"

enum { PRODUCT_THREADS = 32 * (int)K_SPLITS };

enum store {
    STORE_BF16,
    STORE_F16,
    STORE_F32,
    STORE_BLOCKS, /* packed experts, in tiles of 16 outputs (moe/expert_blocks.cuh, moe.cu) */
    STORE_COLUMNS, /* any float type, stored (in, out); slow: one family's checkpoints store
                      experts so */
};

/* One matrix, or one for each expert. */
struct mat {
    const uint8_t *w, *scale;     /* scale: MXFP4 */
    size_t pitch, scale_pitch;    /* bytes between rows; BLOCKS: between tiles; COLUMNS: between
                                     inputs */
    size_t expert, expert_scale;  /* bytes from one expert to the next */
    int n;                        /* outputs */
    int k;                        /* COLUMNS: number of inputs */
    int type;                     /* enum dtype of the elements; BLOCKS: experts_as() */
    struct panels panels;         /* bf16 matrices; of experts in tiles (BLOCKS, and bf16:
                                     cuda_tiles_experts()) ksplit, and rows: 16 if bf16, else 0 */
    bool fp8;                     /* the panels hold FP8 codes (fp8.cuh) */
    int unit;                     /* with fp8: exponent of the scale */
};

/* Packed activations in the product's format (base/row.cuh). kp is a multiple of a chunk, with
 * zeros behind the row's end. product_kernel() always takes two terms. */
struct packed {
    const uint16_t *x;
    int kp;
    int terms;
};

/* The epilogue of one output element, in the order of k_linear. */
struct epilogue {
    struct vec b;
    int act;
    float softcap, scale;
    const float *mul;
    int mul_stride;
    bool add;
    float *dst;
    size_t dst_stride;
};

/* The pairs (row, rank) of each expert: expert active[i] has the pairs order[begin[i] .. begin[i +
 * 1] - 1], and pair p multiplies packed row p / div into row p of dst. */
struct expert_list {
    const int32_t *n_active, *active, *begin, *order;
    int div;
};

/* The part of an epilogue that needs a whole row or a whole head, hence outputs of several blocks.
 * A kernel after the product does it, or the next operation's prologue, or, for heads, the blocks
 * of the product that make the head (decode_run.cuh). */
struct row_epilogue {
    struct norm post; /* post-norm: dst (+)= post(f[0].dst); dst NULL: none */
    float *dst;
    size_t dst_stride;
    bool add;
    bool is_qkv; /* the matrices are q, k, v, and `heads` says what to do with each head's
                    outputs */
    struct heads heads;
    unsigned *counters; /* zero before and after */
};

struct product {
    struct mat m[MAX_MATS];
    struct epilogue f[MAX_MATS];
    int first[MAX_MATS]; /* the first output, or tile of 16 outputs, of a matrix among those of
                            all */
    int outputs, n_mats, rows;
    bool glu; /* act(m[0] x) * (m[1] x) into f[0].dst */
    int glu_act;
    uint16_t *pack_to; /* glu: packed rows of m[0].n elements, in place of f[0].dst */
    struct row_format pack_as; /* format of pack_to; of verify and prefill rows with wgmma always
                                  ROW_TILED */
    struct rows_in in; /* the rows to be packed into x; unused if x.x is set */
    struct row_update update;
    int update_splits; /* update.src holds this many partial sums of each element (struct
                          pending) */
    struct row_epilogue row_epilogue;
    struct packed x;

    struct expert_list e;
};

#ifdef __CUDACC__

/* ---- loads ---------------------------------------------------------------------------------- */

__device__ __forceinline__ uint4 stream16(const void *p)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

/* Removes the next bf16 term from two weights and returns both terms. Unlike split_two() for
 * activations, an infinite weight leaves NaN. */
__device__ __forceinline__ uint32_t next_term(float &x, float &y)
{
    bf16 a = __float2bfloat16_rn(x), b = __float2bfloat16_rn(y);
    x -= __bfloat162float(a);
    y -= __bfloat162float(b);
    return (uint32_t)__bfloat16_as_ushort(b) << 16 | __bfloat16_as_ushort(a);
}

/* ---- a thread's weights: two rows, one chunk of k -------------------------------------------- */

template <int STORE> struct chunk;

/* The place of chunk c in a tile of experts. A warp has the k split of its number. */
__device__ __forceinline__ size_t place_of_split(const mat &m, int c)
{
    const struct ksplit &k = m.panels.ksplit;
    const int split = (int)threadIdx.x / 32;
    return (size_t)(chunks_before(k, c - split * k.each) + split);
}

/* acc += 32 of k, from chunk c on, of the rows x times the weights of 16 outputs: r0 and r1 are a
 * thread's eight of outputs g and g + 8. */
template <int NT>
__device__ __forceinline__ void multiply_eights(float (&acc)[NT][4], uint4 r0, uint4 r1,
                                                const uint16_t *const (&x)[NT], int c, int q)
{
#pragma unroll
    for (int j = 0; j < NT; j++) {
        uint4 b = *(const uint4 *)(x[j] + c * 32 + q * 8);
        mma_bf16(acc[j], r0.x, r1.x, r0.y, r1.y, b.x, b.y);
        mma_bf16(acc[j], r0.z, r1.z, r0.w, r1.w, b.z, b.w);
    }
}

template <> struct chunk<STORE_BF16> {
    enum { K = 32 };
    uint4 r0, r1; /* eight weights of rows g and g + 8 */
    __device__ __forceinline__ void load(const mat &m, const uint8_t *p0, const uint8_t *p1,
                                         int c, int q)
    {
        const size_t at = m.panels.rows ? place_of_split(m, c) * TILE_OUTS * 64 : (size_t)c * 64;
        r0 = stream16(p0 + at + (size_t)q * 16);
        r1 = stream16(p1 + at + (size_t)q * 16);
    }
    template <int NT>
    __device__ __forceinline__ void multiply(float (&acc)[NT][4], const uint16_t *const (&x)[NT],
                                             int c, int q) const
    {
        multiply_eights(acc, r0, r1, x, c, q);
    }
};

/* Eight floats of each of two rows, multiplied as TERMS bf16. */
template <int TERMS> struct float_chunk {
    enum { K = 32 };
    float f0[8], f1[8];
    template <int NT>
    __device__ __forceinline__ void multiply(float (&acc)[NT][4], const uint16_t *const (&x)[NT],
                                             int c, int q) const
    {
        float a[8], b[8];
#pragma unroll
        for (int i = 0; i < 8; i++)
            a[i] = f0[i], b[i] = f1[i];
#pragma unroll
        for (int t = 0; t < TERMS; t++) {
            uint4 r0, r1;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                (&r0.x)[i] = next_term(a[2 * i], a[2 * i + 1]);
                (&r1.x)[i] = next_term(b[2 * i], b[2 * i + 1]);
            }
            multiply_eights(acc, r0, r1, x, c, q);
        }
    }
};

template <> struct chunk<STORE_F16> : float_chunk<2> {
    __device__ __forceinline__ void load(const mat &, const uint8_t *p0, const uint8_t *p1,
                                         int c, int q)
    {
        uint4 v0 = stream16(p0 + (size_t)c * 64 + (size_t)q * 16);
        uint4 v1 = stream16(p1 + (size_t)c * 64 + (size_t)q * 16);
        const __half *h0 = (const __half *)&v0, *h1 = (const __half *)&v1;
#pragma unroll
        for (int i = 0; i < 8; i++)
            f0[i] = __half2float(h0[i]), f1[i] = __half2float(h1[i]);
    }
};

template <> struct chunk<STORE_F32> : float_chunk<3> {
    __device__ __forceinline__ void load(const mat &, const uint8_t *p0, const uint8_t *p1,
                                         int c, int q)
    {
        size_t at = (size_t)c * 128 + (size_t)q * 32;
        *(uint4 *)f0 = stream16(p0 + at);
        *(uint4 *)(f0 + 4) = stream16(p0 + at + 16);
        *(uint4 *)f1 = stream16(p1 + at);
        *(uint4 *)(f1 + 4) = stream16(p1 + at + 16);
    }
};

/* p0, p1: the first input of outputs g and g + 8. */
template <> struct chunk<STORE_COLUMNS> : float_chunk<3> {
    __device__ __forceinline__ void load(const mat &m, const uint8_t *p0, const uint8_t *p1,
                                         int c, int q)
    {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int k = c * 32 + q * 8 + i, tile = m.panels.rows ? k / TILE_OUTS * TILE_OUTS : k;
            const size_t at = (size_t)tile * m.pitch + (size_t)(k - tile) * 64;
            vec v0 = {p0 + at, m.type}, v1 = {p1 + at, m.type};
            f0[i] = k < m.k ? weight_at(v0, 0) : 0.f;
            f1[i] = k < m.k ? weight_at(v1, 0) : 0.f;
        }
    }
};

/* ---- the kernel ------------------------------------------------------------------------------ */

/* The rest of an element's epilogue after the bias, before the addition to dst. */
__device__ __forceinline__ float after_bias(const epilogue &f, float y, int out, int row)
{
    y = soft_capped(activate(y, f.act), f.softcap);
    if (f.scale != 1)
        y *= f.scale;
    if (f.mul)
        y *= f.mul[(size_t)row * (size_t)f.mul_stride + (size_t)out];
    return y;
}

__device__ __forceinline__ float apply_epilogue(const epilogue &f, float y, int out, int row)
{
    return after_bias(f, f.b.p ? y + weight_at(f.b, (size_t)out) : y, out, row);
}

__device__ __forceinline__ void store_output(const epilogue &f, float y, int out, int row)
{
    float *at = f.dst + (size_t)row * f.dst_stride + (size_t)out;
    *at = f.add ? y + *at : y;
}

/* A block computes a tile of 16 outputs for NT * 4 rows at a time, of two terms each. With EXPERTS
 * blockIdx.y is the number of an active expert, otherwise of a group of rows. Chunks are loaded U
 * at a time, the next U while the present ones are multiplied. */
template <int STORE, int NT, bool EXPERTS>
__global__ void __launch_bounds__(PRODUCT_THREADS, 2)
    product_kernel(const __grid_constant__ struct product p)
{
    constexpr int TOK = NT * 4, PITCH = TOK + 1;
    constexpr bool ONE = STORE == STORE_COLUMNS || STORE == STORE_BLOCKS;
    constexpr int U = STORE == STORE_BF16 || (NT == 1 && !ONE) ? 2 : 1;
    __shared__ float red[K_SPLITS][16 * PITCH];
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int g = lane / 4, q = lane % 4;

    int mi = 0, expert = 0, from = 0, to = p.rows;
    if constexpr (EXPERTS) {
        pdl_wait_trigger();
        int n_active = *p.e.n_active; /* four loads at once; values behind the list's end are not
                                         used */
        expert = p.e.active[blockIdx.y];
        from = p.e.begin[blockIdx.y];
        to = p.e.begin[blockIdx.y + 1];
        if ((int)blockIdx.y >= n_active)
            return;
    } else {
        while (mi + 1 < p.n_mats && (int)blockIdx.x >= p.first[mi + 1])
            mi++;
        from = (int)blockIdx.y * TOK;
    }
    const mat &m = p.m[mi];
    const int n0 = ((int)blockIdx.x - p.first[mi]) * 16;
    const int step = EXPERTS ? TOK : TOK * (int)gridDim.y;

    /* this warp's k split */
    const int chunks = p.x.kp / chunk<STORE>::K, each = (chunks + K_SPLITS - 1) / K_SPLITS;
    const int c0 = min(warp * each, chunks), c1 = min(c0 + each, chunks);

    const uint8_t *w[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = min(n0 + h * 8 + g, m.n - 1), in_tile = row - n0;
        size_t at = STORE == STORE_COLUMNS ? (size_t)row * (m.type == DT_F32 ? 4 : 2)
                                           : (size_t)row * m.pitch;
        if (m.panels.rows && STORE == STORE_COLUMNS)
            at = (size_t)chunk_place(m.panels.ksplit, row / 32) * TILE_OUTS * 64 +
                 (size_t)(row % 32) * 2;
        else if (m.panels.rows && STORE == STORE_BF16)
            at = (size_t)n0 * m.pitch + (size_t)in_tile * 64;
        w[h] = m.w + (size_t)expert * m.expert + at;
    }
    if (STORE == STORE_BLOCKS)
        w[0] = m.w + (size_t)expert * m.expert + (size_t)(n0 / 16) * m.pitch;

    chunk<STORE> next[U];
    auto fetch = [&](int c) {
#pragma unroll
        for (int u = 0; u < U; u++)
            if (c + u < c1)
                next[u].load(m, w[0], w[1], c + u, q);
    };
    fetch(c0); /* weights do not depend on the previous kernel: load them while it drains */
    if constexpr (!EXPERTS)
        pdl_wait_trigger();

    for (int t0 = from; t0 < to; t0 += step) {
        const uint16_t *x[NT];
#pragma unroll
        for (int j = 0; j < NT; j++) {
            int t = min(t0 + j * 4 + g / 2, to - 1);
            int row = EXPERTS ? p.e.order[t] / p.e.div : t;
            x[j] = p.x.x + ((size_t)row * 2 + (size_t)(g & 1)) * (size_t)p.x.kp;
        }
        float acc[NT][4] = {};
        if (t0 != from)
            fetch(c0);
#pragma unroll 1
        for (int c = c0; c < c1; c += U) {
            chunk<STORE> now[U];
#pragma unroll
            for (int u = 0; u < U; u++)
                now[u] = next[u];
            if (c + U < c1)
                fetch(c + U);
#pragma unroll
            for (int u = 0; u < U; u++)
                if (c + u < c1)
                    now[u].template multiply<NT>(acc, x, c + u, q);
        }

        /* add the partial sums in the order of the splits */
#pragma unroll
        for (int j = 0; j < NT; j++) {
            red[warp][g * PITCH + j * 4 + q] = acc[j][0] + acc[j][1];
            red[warp][(g + 8) * PITCH + j * 4 + q] = acc[j][2] + acc[j][3];
        }
        __syncthreads();
        for (int at = (int)threadIdx.x; at < 16 * TOK; at += PRODUCT_THREADS) {
            int o = at % 16, out = n0 + o, t = t0 + at / 16;
            float y = red[0][o * PITCH + at / 16];
#pragma unroll
            for (int r = 1; r < K_SPLITS; r++)
                y += red[r][o * PITCH + at / 16];
            if (t >= to || out >= m.n)
                continue;
            int row = EXPERTS ? p.e.order[t] : t;
            store_output(p.f[mi], apply_epilogue(p.f[mi], y, out, row), out, row);
        }
        __syncthreads();
    }
}

#endif

/* ---- host ------------------------------------------------------------------------------------ */

/* Bytes of a packed row of two terms. */
static inline size_t cuda_packed_bytes(int kp) { return (size_t)kp * 2 * sizeof(uint16_t); }

/* Packs the rows, launches the product that p describes, and its row epilogue unless that becomes a
 * pending update. whole_rows: the rows of the operation, of which p may hold a group. */
void cuda_product(struct kdev *d, struct product *p, enum store store, int whole_rows);
/* Packs the rows p->in into p->x (dense/pack.cu) as `how` says: PACK_SHORT, which applies p->update
 * first, PACK_PLAIN or PACK_ANY. */
void cuda_pack_rows(struct kdev *d, struct product *p, enum row_pack how,
                    const struct row_format *f);
/* The decode kernel, for bf16 matrices (decode.cu) and for packed ones: with codes of five bits
 * (decode_five.cu), of two or three (decode_two.cu), of levels (decode_levels.cu), and others
 * (decode_packed.cu, with decode_k.cu for Q4_K and Q6_K). PACK_PROLOGUE: each block packs the row.
 */
void cuda_product_decode(struct kdev *d, struct product *p, const struct product_route *r);
void cuda_product_packed(struct kdev *d, struct product *p, const struct product_route *r);
void cuda_product_k(struct kdev *d, struct product *p, const struct product_route *r);
void cuda_product_five(struct kdev *d, struct product *p, const struct product_route *r);
void cuda_product_two(struct kdev *d, struct product *p, const struct product_route *r);
void cuda_product_levels(struct kdev *d, struct product *p, const struct product_route *r);
struct row_format cuda_decode_format(const struct kdev *d, int rows, int kp);
/* The verify kernel (verify.cu), for rows of one term packed as ROW_TILED. defers: the row epilogue
 * is left to a later kernel, which may also reduce partial sums. Returns the number of partial sums
 * of each element in f[0].dst, or 0 if f[0].dst holds the elements. */
int cuda_product_verify(struct kdev *d, const struct product *p, bool defers);
/* The prefill kernel (prefill.cu), for rows packed as ROW_TILED; only if kdev.has_wgmma. */
void cuda_product_prefill(struct kdev *d, const struct product *p);
/* The same for packed matrices (prefill_packed.cu). */
void cuda_prefill_packed(struct kdev *d, const struct product *p);
/* The tile kernel (tile.cu), for rows packed as ROW_TILED. defers, result: as for the verify
 * kernel. */
int cuda_product_tile(struct kdev *d, const struct product *p, bool defers);
/* Reduces `splits` partial sums (partial_at()) of each of `all` outputs, and applies the
 * epilogues (verify.cu). */
void cuda_reduce_splits(struct kdev *d, const struct product *p, const float *part, int all,
                        int splits);
/* Whether the epilogue does nothing but store. */
bool cuda_is_bare_store(const struct epilogue *f);

/* Whether an operation can store its output rows, n wide, packed for the product that reads them.
 * type: of that product's weights. */
static inline bool cuda_makes_packed(int n, enum dtype type)
{
    return n % K_CHUNK == 0 && type == DT_BF16;
}
/* The format in which a product takes packed rows of kp elements (linear.cu). */
struct row_format cuda_rows_format(const struct kdev *d, int rows, int kp);
/* The product of each pair's packed row with the matrix of its expert (p->e), for experts that are
 * not MXFP4. most_active: the most experts that may be active; most_rows: the most pairs of one. */
void cuda_product_experts(struct kdev *d, const struct product *p, enum store store,
                          int most_active, int most_rows);
/* The enum store of a float matrix; its type is CHECKed. */
enum store cuda_store_of(const struct tensor *t);
