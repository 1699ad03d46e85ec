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
                             float scale, float *dst)
{
    let_next();
    after();
    int r = (int)blockIdx.y, i = (int)(blockIdx.x * blockDim.x + threadIdx.x), id = ids[r];
    if (i < n)
        dst[(size_t)r * (size_t)n + (size_t)i] =
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
    dim3 grid((unsigned)div_up(a->n, THREADS), (unsigned)a->rows);
    cuda_launch(d, embed_kernel, grid, THREADS, 0, cuda_i32(a->ids, (size_t)a->rows), t, a->n,
                a->scale, cuda_f32(a->dst, (size_t)a->rows * (size_t)a->n));
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

struct move_args {
    char *k, *v, *room; /* room: (2, pairs) cells */
    const int32_t *slot;
    size_t cell; /* bytes */
    int pairs, n_slots;
};

/* One block a pair and side; cells into the room, or out of it. */
template <bool IN> __global__ void move_kernel(const __grid_constant__ struct move_args a)
{
    let_next();
    after();
    int i = (int)blockIdx.x, slot = a.slot[i];
    if (slot < 0 || slot >= a.n_slots)
        return;
    uint16_t *cell = (uint16_t *)((blockIdx.y ? a.v : a.k) + (size_t)slot * a.cell);
    uint16_t *room =
        (uint16_t *)(a.room + ((size_t)blockIdx.y * (size_t)a.pairs + (size_t)i) * a.cell);
    for (size_t j = threadIdx.x; j < a.cell / 2; j += blockDim.x)
        (IN ? room : cell)[j] = (IN ? cell : room)[j];
}

void cuda_move(struct kdev *d, const struct k_move *a)
{
    cuda_begin(d, "move");
    const struct k_cells *c = &a->cells;
    size_t cell = (size_t)c->n_kv * (size_t)c->head_dim * kv_type_size(c->type);
    CHECK(c->k.n >= (size_t)c->n_slots * cell && c->v.n >= (size_t)c->n_slots * cell);
    if (a->pairs > cuda_fit(a->pairs, 2 * cell)) {
        cuda_fail(d, "too many cells to move at once");
        return;
    }
    struct move_args m = {(char *)c->k.p, (char *)c->v.p,
                          (char *)cuda_take(d, (size_t)a->pairs * 2 * cell),
                          cuda_i32(a->src, (size_t)a->pairs), cell, a->pairs, c->n_slots};
    dim3 grid((unsigned)a->pairs, 2);
    cuda_launch(d, move_kernel<true>, grid, THREADS, 0, m);
    m.slot = cuda_i32(a->dst, (size_t)a->pairs);
    cuda_launch(d, move_kernel<false>, grid, THREADS, 0, m);
}
