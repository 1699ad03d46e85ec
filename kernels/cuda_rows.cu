/* cuda_rows.cu - operations that copy, scale, turn or normalise rows. */
#include "kernels/cuda_row.cuh"

enum { THREADS = 256, MOST_PAIRS = 256 /* rope frequencies that travel with a launch */ };

/* ---- embed ---------------------------------------------------------------------------------- */

/* A table as rows of `pitch` elements, or in panels. */
struct table {
    struct vec rows;
    size_t pitch;
    bool paneled;
    struct panels panels;
    int n_rows;
};

__device__ __forceinline__ float table_at(const table &t, int id, int i)
{
    if (!t.paneled)
        return weight_at(t.rows, (size_t)id * t.pitch + (size_t)i);
    size_t at = panel_chunk(t.panels, id, i / K_CHUNK) / sizeof(bf16) + (size_t)(i % K_CHUNK);
    return weight_at(t.rows, at);
}

__global__ void embed_kernel(const int32_t *ids, const __grid_constant__ table t, int n,
                             float scale, float *dst, int dst_stride)
{
    let_next();
    after();
    int r = (int)blockIdx.y, i = (int)(blockIdx.x * blockDim.x + threadIdx.x), id = ids[r];
    if (i < n)
        dst[(size_t)r * (size_t)dst_stride + (size_t)i] =
            id >= 0 && id < t.n_rows ? table_at(t, id, i) * scale : NAN;
}

void cuda_embed(struct kdev *d, const struct k_embed *a)
{
    cuda_begin(d, "embed");
    CHECK(a->table->n_dim == 2 && a->table->dim[1] == a->n);
    table t = {};
    t.rows = cuda_vec(a->table);
    t.pitch = cuda_pitch(a->table);
    t.n_rows = (int)a->table->dim[0];
    t.paneled = cuda_paneled(a->table);
    if (t.paneled)
        t.panels = cuda_panels(d, a->table);
    int ds = cuda_stride(a->dst_stride, a->n);
    dim3 grid((unsigned)div_up(a->n, THREADS), (unsigned)a->rows);
    cuda_launch(d, embed_kernel, grid, THREADS, 0, cuda_i32(a->ids, (size_t)a->rows), t, a->n,
                a->scale, cuda_f32(a->dst, cuda_span(a->rows, ds, a->n)), ds);
}

/* ---- rope ----------------------------------------------------------------------------------- */

struct freqs {
    float f[MOST_PAIRS];
};

__global__ void rope_kernel(const int32_t *pos, const __grid_constant__ struct freqs inv, int from,
                            int n, int half, float factor, float *cs)
{
    let_next();
    after();
    int r = (int)blockIdx.x, i = (int)threadIdx.x;
    if (i >= n)
        return;
    double s, c;
    float angle = (float)pos[r] * inv.f[i]; /* rounded, see k_rope */
    sincos((double)angle, &s, &c);
    float *at = cs + ((size_t)r * (size_t)half + (size_t)(from + i)) * 2;
    at[0] = (float)c * factor;
    at[1] = (float)s * factor;
}

void cuda_rope(struct kdev *d, const struct k_rope *a)
{
    cuda_begin(d, "rope");
    const int32_t *pos = cuda_i32(a->pos, (size_t)a->rows);
    float *cs = cuda_f32(a->cs, (size_t)a->rows * (size_t)a->half * 2);
    for (int from = 0; from < a->half; from += MOST_PAIRS) {
        struct freqs inv = {};
        int n = min_int(MOST_PAIRS, a->half - from);
        memcpy(inv.f, a->inv_freq + from, (size_t)n * sizeof *inv.f);
        cuda_launch(d, rope_kernel, dim3((unsigned)a->rows), MOST_PAIRS, 0, pos, inv, from, n,
                    a->half, a->factor, cs);
    }
}

/* ---- normalize ------------------------------------------------------------------------------ */

/* One block a row; src and dst may be the same. */
__global__ void __launch_bounds__(ROW_THREADS)
    norm_kernel(const float *src, int src_stride, float *dst, int dst_stride, int n,
                const __grid_constant__ struct norm norm, bool add, float scale)
{
    __shared__ float room[ROW_WARPS];
    struct row_part w;
    let_next();
    load_norm(norm, n, 0, w);
    after();
    src += (size_t)blockIdx.x * (size_t)src_stride;
    dst += (size_t)blockIdx.x * (size_t)dst_stride;
    struct row_part old;
    if (add)
        load_part(dst, n, 0, old);
    norm_row(src, dst, n, norm, w, old, add, scale, room);
}

void cuda_norm_rows(struct kdev *d, const float *src, int src_stride, float *dst, int dst_stride,
                    int rows, int n, const struct norm *norm, bool add, float scale)
{
    cuda_launch(d, norm_kernel, dim3((unsigned)rows), ROW_THREADS, 0, src, src_stride, dst,
                dst_stride, n, *norm, add, scale);
}

void cuda_normalize(struct kdev *d, const struct k_normalize *a)
{
    cuda_begin(d, "normalize");
    int ss = cuda_stride(a->src_stride, a->n), ds = cuda_stride(a->dst_stride, a->n);
    struct norm norm = cuda_norm(&a->norm);
    cuda_norm_rows(d, cuda_f32(a->src, cuda_span(a->rows, ss, a->n)), ss,
                   cuda_f32(a->dst, cuda_span(a->rows, ds, a->n)), ds, a->rows, a->n, &norm, a->add,
                   a->scale);
}

/* ---- scale and rows ------------------------------------------------------------------------- */

__global__ void scale_kernel(float *x, size_t n, struct vec s)
{
    let_next();
    after();
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        x[i] *= weight_at(s, 0);
}

void cuda_scale(struct kdev *d, const struct k_scale *a)
{
    cuda_begin(d, "scale");
    size_t n = (size_t)a->rows * (size_t)a->n;
    cuda_launch(d, scale_kernel, dim3((unsigned)((n + THREADS - 1) / THREADS)), THREADS, 0,
                cuda_f32(a->x, n), n, cuda_vec(a->s));
}

__global__ void rows_kernel(const float *src, int src_stride, float *dst, int dst_stride, int n,
                            const int32_t *idx, int limit)
{
    let_next();
    after();
    int r = (int)blockIdx.y, i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    int from = idx ? idx[r] : r;
    if (i < n)
        dst[(size_t)r * (size_t)dst_stride + (size_t)i] =
            from >= 0 && from < limit ? src[(size_t)from * (size_t)src_stride + (size_t)i] : NAN;
}

void cuda_rows(struct kdev *d, const struct k_rows *a)
{
    cuda_begin(d, "rows");
    int ss = cuda_stride(a->src_stride, a->n), ds = cuda_stride(a->dst_stride, a->n);
    size_t floats = a->src.n / sizeof(float); /* rows of src that lie in its buffer whole */
    int limit = floats < (size_t)a->n ? 0 : (int)((floats - (size_t)a->n) / (size_t)ss) + 1;
    const int32_t *idx = a->idx.p ? cuda_i32(a->idx, (size_t)a->rows) : NULL;
    CHECK(idx || a->rows <= limit);
    dim3 grid((unsigned)div_up(a->n, THREADS), (unsigned)a->rows);
    cuda_launch(d, rows_kernel, grid, THREADS, 0, (const float *)a->src.p, ss,
                cuda_f32(a->dst, cuda_span(a->rows, ds, a->n)), ds, a->n, idx, limit);
}

/* ---- move ----------------------------------------------------------------------------------- */

enum { MOVE_THREADS = 64, MOVE_AT_ONCE = 8, MOST_MOVED = 64 /* layers of a launch */ };
static_assert((int)MOVE_THREADS >= (int)K_MAX_PAIRS, "a thread reads the slots of a pair");

struct moved {
    char *k, *v;
    uint32_t cell; /* bytes */
    int n_slots, pool;
};

struct move_args {
    const int32_t *src[2], *dst[2];
    int pairs;
    moved layer[MOST_MOVED];
};

/* A thread has one word of every cell of a layer's K or V, and keeps those of the sources in its
 * own column of shared memory until it has them all: no other thread reads or writes them. */
template <class Word>
__global__ void __launch_bounds__(MOVE_THREADS)
    move_kernel(const __grid_constant__ struct move_args a)
{
    extern __shared__ __align__(16) char room[]; /* (pairs, MOVE_THREADS) words */
    __shared__ int from[K_MAX_PAIRS], to[K_MAX_PAIRS];
    const int tid = (int)threadIdx.x;
    const moved &m = a.layer[blockIdx.z];
    const size_t words = m.cell / sizeof(Word), at = blockIdx.x * MOVE_THREADS + threadIdx.x;
    Word *cells = (Word *)(blockIdx.y ? m.v : m.k) + at, *held = (Word *)room + tid;
    let_next();
    after();
    if (tid < a.pairs) {
        int s = __ldcg(a.src[m.pool] + tid), d = __ldcg(a.dst[m.pool] + tid);
        bool moves = s != d && s >= 0 && d >= 0 && s < m.n_slots && d < m.n_slots;
        from[tid] = moves ? s : -1, to[tid] = d;
    }
    __syncthreads();
    if (at >= words)
        return;
    for (int i = 0; i < a.pairs; i += MOVE_AT_ONCE) {
        Word w[MOVE_AT_ONCE];
#pragma unroll
        for (int j = 0; j < MOVE_AT_ONCE; j++)
            if (i + j < a.pairs && from[i + j] >= 0)
                w[j] = __ldcg(cells + (size_t)from[i + j] * words);
#pragma unroll
        for (int j = 0; j < MOVE_AT_ONCE; j++)
            if (i + j < a.pairs)
                held[(i + j) * MOVE_THREADS] = w[j];
    }
    for (int i = 0; i < a.pairs; i++)
        if (from[i] >= 0)
            cells[(size_t)to[i] * words] = held[i * MOVE_THREADS];
}

/* One launch of n layers. */
static void move_layers(struct kdev *d, const struct move_args &m, int n)
{
    size_t cell = 0, bits = 0; /* the largest; of all that tells how they can be read */
    for (int l = 0; l < n; l++) {
        const moved &c = m.layer[l];
        cell = c.cell > cell ? c.cell : cell;
        bits |= c.cell | (uintptr_t)c.k | (uintptr_t)c.v;
    }
    const bool wide = bits % sizeof(uint4) == 0;
    const size_t word = wide ? sizeof(uint4) : sizeof(uint16_t);
    dim3 grid((unsigned)((cell / word + MOVE_THREADS - 1) / MOVE_THREADS), 2, (unsigned)n);
    cuda_launch(d, wide ? move_kernel<uint4> : move_kernel<uint16_t>, grid, MOVE_THREADS,
                (size_t)m.pairs * MOVE_THREADS * word, m);
}

void cuda_move(struct kdev *d, const struct k_move *a)
{
    cuda_begin(d, "move");
    CHECK(a->pairs <= K_MAX_PAIRS && a->n_pools <= 2);
    struct move_args m = {};
    int n = 0;
    m.pairs = a->pairs;
    for (int p = 0; p < a->n_pools; p++) {
        const struct k_pool *pool = &a->pool[p];
        m.src[p] = cuda_i32(pool->src, (size_t)a->pairs);
        m.dst[p] = cuda_i32(pool->dst, (size_t)a->pairs);
        for (int l = 0; l < pool->n_layers; l++) {
            const struct k_cells *c = &pool->cells[l];
            size_t cell = (size_t)c->n_kv * (size_t)c->head_dim * kv_type_size(c->type);
            size_t all = (size_t)c->n_slots * cell;
            CHECK(c->k.n >= all && c->v.n >= all);
            m.layer[n++] = {(char *)c->k.p, (char *)c->v.p, (uint32_t)cell, c->n_slots, p};
            if (n == MOST_MOVED)
                move_layers(d, m, n), n = 0;
        }
    }
    if (n)
        move_layers(d, m, n);
}
