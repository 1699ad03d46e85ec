/* rows.cu - operations that gather, copy, scale, rotate, normalise or move rows. */
#include "kernels/cuda/dense/fp8.cuh"
#include "kernels/cuda/dense/packed.cuh"
#include "kernels/cuda/dense/product.cuh"

enum { THREADS = 256, MAX_PAIRS = 256 /* rope frequencies passed as kernel arguments */ };

/* ---- embed ---------------------------------------------------------------------------------- */

/* An embedding table: rows of `pitch` elements, or panels. */
struct table {
    struct vec rows;
    size_t pitch;
    bool paneled;
    struct panels panels;
    uint32_t factor; /* panels of FP8: their scale (fp8_factor()); 0: of bf16, or packed */
    int packed;      /* panels of weights packed in blocks: packed_as(); 0: others */
    int n_rows;
};

/* Four successive elements: of FP8 as stored in a panel; of bf16 two at `at`, and two `apart` bytes
 * from there on. */
__device__ __forceinline__ float4 four_at(const char *at, uint32_t apart, uint32_t factor)
{
    return floats_of(factor ? fp8_four(__ldg((const uint32_t *)at), factor)
                            : make_uint2(__ldg((const uint32_t *)at),
                                         __ldg((const uint32_t *)(at + apart))));
}
/* Where row `id` begins in a table of panels; its elements are panel_place() or fp8_place() from
 * there on. */
__device__ __forceinline__ const char *paneled_row(const table &t, int id)
{
    const struct panels &l = t.panels;
    const size_t panel = t.factor ? fp8_panel_bytes(l) : panel_bytes(l);
    return (const char *)t.rows.p + (size_t)(id / l.rows) * panel +
           (size_t)(id % l.rows * (t.factor ? (int)K_CHUNK : (int)UNIT_BYTES));
}
__device__ __forceinline__ uint32_t paneled_place(const table &t, int i)
{
    return t.factor ? fp8_place(t.panels, i) : panel_place(t.panels, i);
}
__device__ __forceinline__ uint32_t apart_in(const table &t)
{
    return t.paneled ? (uint32_t)(t.panels.rows * UNIT_BYTES) : 4;
}

/* Elements i .. i + 3 of row `id` of a table that is packed in blocks. Inlined, it would make
 * gather_kernel spill registers. */
__device__ __noinline__ float4 packed_four(const table &t, int id, int i)
{
    const struct panels &l = t.panels;
    const uint8_t *panel =
        (const uint8_t *)t.rows.p + (size_t)(id / l.rows) * stored_bytes(l, t.packed);
    const int row = id % l.rows, chunk = i / (int)K_CHUNK, each = l.ksplit.each;
    const struct packed_place at = packed_place_of(l, t.packed, row, chunk / each, chunk % each);
    const uint4 v = eight_at(at, t.packed, panel, row, i / 8 % 4, t.rows.type);
    return floats_of(i % 8 ? make_uint2(v.z, v.w) : make_uint2(v.x, v.y));
}

__device__ __forceinline__ float table_at(const table &t, int id, int i)
{
    if (!t.paneled)
        return weight_at(t.rows, (size_t)id * t.pitch + (size_t)i);
    const float4 v =
        t.packed ? packed_four(t, id, i / 4 * 4)
                 : four_at(paneled_row(t, id) + paneled_place(t, i / 4 * 4), apart_in(t), t.factor);
    return (&v.x)[i % 4];
}

__global__ void embed_kernel(const int32_t *ids, const __grid_constant__ table t, int n,
                             float scale, float *dst, int dst_stride)
{
    pdl_trigger();
    pdl_wait_trigger();
    int r = (int)blockIdx.y, i = (int)(blockIdx.x * blockDim.x + threadIdx.x), id = ids[r];
    if (i < n)
        dst[(size_t)r * (size_t)dst_stride + (size_t)i] =
            id >= 0 && id < t.n_rows ? table_at(t, id, i) * scale : NAN;
}

static table table_of(const struct kdev *d, const struct tensor *w, int n)
{
    CHECK(w->n_dim == 2 && w->dim[1] == n);
    table t = {};
    t.packed = dtype_packed(w->type) ? packed_as(w->type) : 0;
    t.rows = t.packed ? vec{w->data, (int)w->type} : cuda_vec(w);
    t.pitch = cuda_pitch(w);
    t.n_rows = (int)w->dim[0];
    t.paneled = cuda_paneled(w);
    CHECK(t.paneled || (!w->quantize && !t.packed));
    if (t.paneled)
        t.panels = cuda_panels(d, w);
    if (w->quantize)
        t.factor = fp8_factor(w->unit);
    return t;
}

void cuda_embed(struct kdev *d, const struct k_embed *a)
{
    cuda_begin(d, "embed");
    table t = table_of(d, a->table, a->n);
    int ds = cuda_stride(a->dst_stride, a->n);
    dim3 grid((unsigned)div_up(a->n, THREADS), (unsigned)a->rows);
    cuda_launch(d, embed_kernel, grid, THREADS, 0, cuda_i32(a->ids, (size_t)a->rows), t, a->n,
                a->scale, cuda_f32(a->dst, cuda_span(a->rows, ds, a->n)), ds);
}

/* ---- rope ----------------------------------------------------------------------------------- */

struct freqs {
    float f[MAX_PAIRS];
};

__device__ __forceinline__ void rope_angle(float pos, float freq, float factor, float *cs)
{
    double s, c;
    float angle = pos * freq; /* rounded to float32, see k_rope */
    sincos((double)angle, &s, &c);
    cs[0] = (float)c * factor;
    cs[1] = (float)s * factor;
}

__global__ void rope_kernel(const int32_t *pos, const __grid_constant__ struct freqs inv, int from,
                            int n, int half, float factor, float *cs)
{
    pdl_trigger();
    pdl_wait_trigger();
    int r = (int)blockIdx.x, i = (int)threadIdx.x;
    if (i < n)
        rope_angle((float)pos[r], inv.f[i], factor,
                   cs + ((size_t)r * (size_t)half + (size_t)(from + i)) * 2);
}

void cuda_rope(struct kdev *d, const struct k_rope *a)
{
    cuda_begin(d, "rope");
    const int32_t *pos = cuda_i32(a->pos, (size_t)a->rows);
    float *cs = cuda_f32(a->cs, (size_t)a->rows * (size_t)a->half * 2);
    for (int from = 0; from < a->half; from += MAX_PAIRS) {
        struct freqs inv = {};
        int n = min_int(MAX_PAIRS, a->half - from);
        memcpy(inv.f, a->inv_freq + from, (size_t)n * sizeof *inv.f);
        cuda_launch(d, rope_kernel, dim3((unsigned)a->rows), MAX_PAIRS, 0, pos, inv, from, n,
                    a->half, a->factor, cs);
    }
}

/* ---- normalize ------------------------------------------------------------------------------ */

/* One block a row; src and dst may be the same. */
__global__ void __launch_bounds__(ROW_THREADS)
    norm_kernel(const float *src, int src_stride, float *dst, int dst_stride, int n,
                const __grid_constant__ struct norm norm, bool add, float scale)
{
    __shared__ float scratch[ROW_WARPS];
    row_part w;
    pdl_trigger();
    load_norm(norm, n, 0, w);
    pdl_wait_trigger();
    src += (size_t)blockIdx.x * (size_t)src_stride;
    dst += (size_t)blockIdx.x * (size_t)dst_stride;
    row_part old;
    if (add)
        load_part(dst, n, 0, old);
    norm_row(src, dst, n, norm, w, old, add, scale, scratch);
}

void cuda_norm_rows(struct kdev *d, const float *src, int src_stride, float *dst, int dst_stride,
                    int rows, int n, const struct norm *norm, bool add, float scale)
{
    cuda_launch(d, norm_kernel, dim3((unsigned)rows), ROW_THREADS, 0, src, src_stride, dst,
                dst_stride, n, *norm, add, scale);
}

/* NORM_LAYER; one block a row. A thread reads and writes the same elements, so src and dst may be
 * the same. */
__global__ void __launch_bounds__(ROW_THREADS)
    layer_norm_kernel(const float *src, int src_stride, float *dst, int dst_stride, int n,
                      struct vec w, float eps, bool add, float scale)
{
    __shared__ float scratch[ROW_WARPS];
    float sum = 0, squares = 0;
    pdl_trigger();
    pdl_wait_trigger();
    src += (size_t)blockIdx.x * (size_t)src_stride;
    dst += (size_t)blockIdx.x * (size_t)dst_stride;
    for (int i = (int)threadIdx.x; i < n; i += ROW_THREADS)
        sum += src[i];
    const float mean = row_sum(sum, scratch) / (float)n;
    for (int i = (int)threadIdx.x; i < n; i += ROW_THREADS)
        squares = fmaf(src[i] - mean, src[i] - mean, squares);
    row_barrier(); /* no thread still reads the first sum */
    const float inv = 1 / sqrtf(row_sum(squares, scratch) / (float)n + eps);
    for (int i = (int)threadIdx.x; i < n; i += ROW_THREADS) {
        const float y = (src[i] - mean) * inv * weight_at(w, (size_t)i);
        dst[i] = (add ? y + dst[i] : y) * scale;
    }
}

void cuda_normalize(struct kdev *d, const struct k_normalize *a)
{
    cuda_begin(d, "normalize");
    int ss = cuda_stride(a->src_stride, a->n), ds = cuda_stride(a->dst_stride, a->n);
    const float *src = cuda_f32(a->src, cuda_span(a->rows, ss, a->n));
    float *dst = cuda_f32(a->dst, cuda_span(a->rows, ds, a->n));
    if (a->norm.kind == NORM_LAYER) {
        CHECK(a->norm.w && a->norm.w->data);
        cuda_launch(d, layer_norm_kernel, dim3((unsigned)a->rows), ROW_THREADS, 0, src, ss, dst, ds,
                    a->n, cuda_vec(a->norm.w), a->norm.eps, a->add, a->scale);
        return;
    }
    struct norm norm = cuda_norm(&a->norm);
    cuda_norm_rows(d, src, ss, dst, ds, a->rows, a->n, &norm, a->add, a->scale);
}

/* ---- scale and rows ------------------------------------------------------------------------- */

__global__ void scale_kernel(float *x, size_t n, struct vec s)
{
    pdl_trigger();
    pdl_wait_trigger();
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        x[i] *= weight_at(s, 0);
}

__global__ void far_scale_kernel(float *x, size_t n, int width, const int32_t *pos, float beta,
                                 float period, int from)
{
    pdl_trigger();
    pdl_wait_trigger();
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        x[i] *= 1 + beta * logf(1 + floorf((float)(pos[i / (size_t)width] + from) / period));
}

__global__ void gate_kernel(float *x, size_t n, const float *by, int group, int gate, float limit)
{
    pdl_trigger();
    pdl_wait_trigger();
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    const float y = by[i / (size_t)group];
    if (gate == GATE_CLAMP) /* written so that NaN passes */
        x[i] = (x[i] > limit ? limit : x[i]) * (y > limit ? limit : y < -limit ? -limit : y);
    else
        x[i] *= gate == GATE_SIGMOID ? sigmoid(y) : fmaxf(y, 0.f) + log1pf(expf(-fabsf(y)));
}

void cuda_scale(struct kdev *d, const struct k_scale *a)
{
    cuda_begin(d, "scale");
    size_t n = (size_t)a->rows * (size_t)a->n;
    dim3 blocks((unsigned)((n + THREADS - 1) / THREADS));
    CHECK(!a->by.p || (a->gate != GATE_NONE && a->group > 0 && a->n % a->group == 0));
    if (a->by.p)
        cuda_launch(d, gate_kernel, blocks, THREADS, 0, cuda_f32(a->x, n), n,
                    (const float *)cuda_f32(a->by, n / (size_t)a->group), a->group, (int)a->gate,
                    a->limit);
    else if (a->s)
        cuda_launch(d, scale_kernel, blocks, THREADS, 0, cuda_f32(a->x, n), n, cuda_vec(a->s));
    else
        cuda_launch(d, far_scale_kernel, blocks, THREADS, 0, cuda_f32(a->x, n), n, a->n,
                    cuda_i32(a->pos, (size_t)a->rows), a->beta, a->period, a->from);
}

__global__ void rows_kernel(const float *src, int src_stride, float *dst, int dst_stride, int n,
                            const int32_t *idx, int limit)
{
    pdl_trigger();
    pdl_wait_trigger();
    int r = (int)blockIdx.y, i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    int from = idx ? idx[r] : r;
    if (i < n)
        dst[(size_t)r * (size_t)dst_stride + (size_t)i] =
            from >= 0 && from < limit ? src[(size_t)from * (size_t)src_stride + (size_t)i] : NAN;
}

void cuda_copy_rows(struct kdev *d, const float *src, size_t src_stride, float *dst,
                    size_t dst_stride, int rows, int n)
{
    dim3 grid((unsigned)div_up(n, THREADS), (unsigned)rows);
    cuda_launch(d, rows_kernel, grid, THREADS, 0, src, (int)src_stride, dst, (int)dst_stride, n,
                (const int32_t *)NULL, rows);
}

/* The number of whole rows in a buffer. */
static int whole_rows(kbuf src, int n, int stride)
{
    size_t floats = src.n / sizeof(float);
    return floats < (size_t)n ? 0 : (int)((floats - (size_t)n) / (size_t)stride) + 1;
}

void cuda_rows(struct kdev *d, const struct k_rows *a)
{
    cuda_begin(d, "rows");
    int ss = cuda_stride(a->src_stride, a->n), ds = cuda_stride(a->dst_stride, a->n);
    int limit = whole_rows(a->src, a->n, ss);
    const int32_t *idx = a->idx.p ? cuda_i32(a->idx, (size_t)a->rows) : NULL;
    CHECK(idx || a->rows <= limit);
    dim3 grid((unsigned)div_up(a->n, THREADS), (unsigned)a->rows);
    cuda_launch(d, rows_kernel, grid, THREADS, 0, (const float *)a->src.p, ss,
                cuda_f32(a->dst, cuda_span(a->rows, ds, a->n)), ds, a->n, idx, limit);
}

/* ---- conv ------------------------------------------------------------------------------------ */

struct conv_args {
    const int32_t *run;
    const float *src, *by;
    struct vec base;
    size_t pitch; /* elements between rows of base */
    int n, taps, group, at, by_stride;
    bool add;
    float *dst;
};

__global__ void __launch_bounds__(THREADS) conv_kernel(const __grid_constant__ conv_args a)
{
    pdl_trigger();
    pdl_wait_trigger();
    const int r = (int)blockIdx.y, i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= a.n)
        return;
    const int groups = a.n / a.group, run = a.run[r];
    const float *by = a.by + (size_t)r * (size_t)a.by_stride;
    float sum = 0;
    for (int t = 0; t < a.taps && t <= r && a.run[r - t] == run; t++)
        sum += (weight_at(a.base, (size_t)(a.at + t) * a.pitch + (size_t)i) +
                by[t * groups + i / a.group]) *
               a.src[(size_t)(r - t) * (size_t)a.n + (size_t)i];
    float *dst = a.dst + (size_t)r * (size_t)a.n + (size_t)i;
    *dst = a.add ? *dst + sum : sum;
}

void cuda_conv(struct kdev *d, const struct k_conv *a)
{
    cuda_begin(d, "conv");
    const size_t rows = (size_t)a->rows, n = rows * (size_t)a->n;
    CHECK(a->taps > 0 && a->taps <= K_MAX_TAPS && a->group > 0 && a->n % a->group == 0);
    CHECK(a->base->n_dim == 2 && a->base->dim[1] == a->n && a->base->dim[0] >= a->at + a->taps);
    CHECK(!cuda_paneled(a->base) && a->dst.p != a->src.p);
    const int wide = a->taps * (a->n / a->group);
    conv_args c = {cuda_i32(a->run, rows), cuda_f32(a->src, n),
                   cuda_f32(a->by, cuda_span(a->rows, a->by_stride, wide)), cuda_vec(a->base),
                   cuda_pitch(a->base), a->n, a->taps, a->group, a->at, a->by_stride, a->add,
                   cuda_f32(a->dst, n)};
    dim3 grid((unsigned)div_up(a->n, THREADS), (unsigned)a->rows);
    cuda_launch(d, conv_kernel, grid, THREADS, 0, c);
}

/* ---- gather ---------------------------------------------------------------------------------- */

/* k_part, as the kernels take it. */
struct gather_part {
    const float *src;
    size_t stride;
    struct table table; /* the source; rows.p NULL: src is the source */
    float scale;
    int limit; /* rows of the source */
    const int32_t *idx;
    struct norm norm;
    int n, blocks; /* blocks for each row */
    float *copy;
    bool copy_normed;
    void *dst;
    int width, at;
    int terms; /* terms of a packed row; 0: dst holds floats */
    struct row_format f;
};

/* Arguments of one k_rope. */
struct rope_table {
    const int32_t *pos;
    struct freqs inv;
    int half;
    float factor, *cs;
};

struct gather_args {
    struct gather_part part[K_MAX_PARTS];
    int n_parts;
    struct rope_table rope[K_MAX_ROPES];
};

/* Elements i .. i + 3 of source row `id`, before the norm; i is a multiple of 4. */
__device__ __forceinline__ float4 four_of(const gather_part &p, int id, int i)
{
    if (id < 0 || id >= p.limit)
        return make_float4(NAN, NAN, NAN, NAN);
    const table &t = p.table;
    if (!t.rows.p)
        return four_of(p.src + (size_t)id * p.stride, p.n, i);
    float4 w;
    if (t.packed) {
        w = packed_four(t, id, i);
    } else if (t.paneled) {
        w = four_at(paneled_row(t, id) + paneled_place(t, i), apart_in(t), t.factor);
    } else {
        const size_t size = t.rows.type == DT_F32 ? 4 : 2;
        const struct vec v = {(const char *)t.rows.p + (size_t)id * t.pitch * size, t.rows.type};
        w = four_weights(v, p.n, i);
    }
    return make_float4(w.x * p.scale, w.y * p.scale, w.z * p.scale, w.w * p.scale);
}

__device__ __forceinline__ void put_floats(float *dst, int n, int i, float4 y)
{
    if (i + 4 <= n && (uintptr_t)dst % 16 == 0) {
        *(float4 *)(dst + i) = y;
        return;
    }
    for (int e = 0; e < 4; e++)
        if (i + e < n)
            dst[i + e] = (&y.x)[e];
}

/* Stores elements i .. i + 3 of row r; x: before the norm, y: after it. */
__device__ __forceinline__ void put_part(const gather_part &p, int r, int i, float4 x, float4 y)
{
    if (i >= p.n)
        return;
    if (p.copy)
        put_floats(p.copy + (size_t)r * (size_t)p.n, p.n, i, p.copy_normed ? y : x);
    if (p.terms)
        put_terms(y, p.at + i, p.at + p.n, p.terms, (uint16_t *)p.dst, r * p.terms, p.f);
    else
        put_floats((float *)p.dst + (size_t)r * (size_t)p.width + (size_t)p.at, p.n, i, y);
}

__device__ __forceinline__ void fetch_part(const gather_part &p, int id, int from,
                                           row_part &x)
{
#pragma unroll
    for (int j = 0; j < ROW_REGS; j++)
        x.v[j] = row_index(from, j) < p.n ? four_of(p, id, row_index(from, j))
                                          : make_float4(0, 0, 0, 0);
}

/* A row with a norm is processed by one block, which adds the squares in the order of
 * row_inverse(). w: the first weights of the norm. */
__device__ __forceinline__ void gather_normed(const gather_part &p, int r, int id,
                                              row_part &w, float *scratch)
{
    row_part x;
    fetch_part(p, id, 0, x);
    float ss = part_squares(x, 0);
    for (int from = ROW_PASS; from < p.n; from += ROW_PASS) {
        row_part more;
        fetch_part(p, id, from, more);
        ss = part_squares(more, ss);
    }
    const float inv = 1 / sqrtf(row_sum(ss, scratch) / (float)p.n + p.norm.eps);
    for (int from = 0; from < p.n; from += ROW_PASS) {
        if (from) {
            load_norm(p.norm, p.n, from, w);
            fetch_part(p, id, from, x);
        }
#pragma unroll
        for (int j = 0; j < ROW_REGS; j++)
            put_part(p, r, row_index(from, j), x.v[j],
                     four_normed(p.norm.kind, x.v[j], inv, w.v[j]));
    }
}

__device__ __forceinline__ void gather_any(const gather_part &p, int r, int block, float *scratch)
{
    row_part w;
    load_norm(p.norm, p.n, 0, w);
    pdl_wait_trigger();
    const int id = p.idx ? __ldcg(p.idx + r) : r, i = row_index(block * ROW_STEP, 0);
    if (p.norm.kind != NORM_NONE) {
        gather_normed(p, r, id, w, scratch);
    } else if (i < p.n) {
        float4 x = four_of(p, id, i);
        put_part(p, r, i, x, x);
    }
}

/* gather_any() in less code, for rows that can be loaded and stored four elements at a time
 * (gathers_short()). Every address is computed before the wait, except for the row's number. */
__device__ __forceinline__ void gather_short(const gather_part &p, int r, int block, float *scratch)
{
    const bool normed = p.norm.kind != NORM_NONE, tabled = p.table.rows.p;
    const int from = block * ROW_STEP, end = normed ? p.n : min(p.n, from + ROW_STEP);
    const uint32_t factor = tabled ? p.table.factor : 0, apart = tabled ? apart_in(p.table) : 0;
    short_weights w;
    row_part x;
    uint32_t off[ROW_REGS]; /* bytes from the row's first element */
    void *to[ROW_REGS];
#pragma unroll
    for (int j = 0; j < ROW_REGS; j++) {
        const int i = row_index(from, j), at = p.at + i;
        const bool there = i < end;
        w.v[j] = p.norm.w.p && there ? __ldg((const uint2 *)((const bf16 *)p.norm.w.p + i))
                                     : make_uint2(0, 0); /* fetch_short() of this block's part */
        off[j] = (uint32_t)i * (tabled ? 2 : 4);
        if (tabled && p.table.paneled && there)
            off[j] = paneled_place(p.table, i);
        to[j] = !p.terms ? (void *)((float *)p.dst + (size_t)r * (size_t)p.width + at)
                : there  ? (void *)packed_at(p.f, (uint16_t *)p.dst, r, at)
                         : NULL;
    }
    pdl_wait();
    const int id = p.idx ? __ldcg(p.idx + r) : r;
    const bool is = id >= 0 && id < p.limit;
    const char *row = (const char *)(tabled ? p.table.rows.p : p.src);
    if (tabled && p.table.paneled)
        row = paneled_row(p.table, id);
    else
        row += tabled ? (size_t)id * p.table.pitch * 2 : (size_t)id * p.stride * 4;
#pragma unroll
    for (int j = 0; j < ROW_REGS; j++) {
        const bool there = is && row_index(from, j) < end;
        const float none = row_index(from, j) < end ? NAN : 0.f;
        x.v[j] = make_float4(none, none, none, none);
        if (there && tabled) {
            const float4 v = four_at(row + off[j], apart, factor);
            x.v[j] = make_float4(v.x * p.scale, v.y * p.scale, v.z * p.scale, v.w * p.scale);
        } else if (there) {
            x.v[j] = __ldcg((const float4 *)(row + off[j]));
        }
    }
    const float inv = row_inverse_short(x, p.n, p.norm, scratch);
#pragma unroll
    for (int j = 0; j < ROW_REGS; j++) {
        const int i = row_index(from, j);
        const float4 y = normed_short(p.norm, x.v[j], inv, w.v[j]);
        if (i >= end)
            break;
        if (p.copy)
            *(float4 *)(p.copy + (size_t)r * (size_t)p.n + i) = p.copy_normed ? y : x.v[j];
        if (p.terms)
            put_short((uint16_t *)to[j], p.f.kind == ROW_TILED, y);
        else
            *(float4 *)to[j] = y;
    }
}

/* Blocks (row, the blocks of all parts and then one for each rope). */
template <bool SHORT>
__global__ void __launch_bounds__(ROW_THREADS)
    gather_kernel(const __grid_constant__ struct gather_args a)
{
    __shared__ float scratch[ROW_WARPS];
    const int r = (int)blockIdx.x;
    int part = 0, block = (int)blockIdx.y;
    pdl_trigger();
    while (part < a.n_parts && block >= a.part[part].blocks)
        block -= a.part[part++].blocks;
    if (part == a.n_parts) {
        const rope_table &t = a.rope[block];
        pdl_wait_trigger();
        if ((int)threadIdx.x < t.half)
            rope_angle((float)t.pos[r], t.inv.f[threadIdx.x], t.factor,
                       t.cs + ((size_t)r * (size_t)t.half + threadIdx.x) * 2);
    } else if (SHORT) {
        gather_short(a.part[part], r, block, scratch);
    } else {
        gather_any(a.part[part], r, block, scratch);
    }
}

static gather_part part_of(const struct kdev *d, const struct k_part *k, int rows)
{
    gather_part p = {};
    p.n = k->n, p.width = k->width, p.at = k->at;
    CHECK(k->at >= 0 && k->at + k->n <= k->width);
    if (k->table) {
        p.table = table_of(d, k->table, k->n);
        p.limit = p.table.n_rows;
    } else {
        p.stride = (size_t)cuda_stride(k->src_stride, k->n);
        p.src = (const float *)k->src.p;
        p.limit = whole_rows(k->src, k->n, (int)p.stride);
    }
    p.scale = k->scale;
    CHECK(k->idx.p || (!k->table && rows <= p.limit));
    p.idx = k->idx.p ? cuda_i32(k->idx, (size_t)rows) : NULL;
    p.norm = cuda_norm(&k->norm);
    p.blocks = k->norm.kind == NORM_NONE ? div_up(k->n, ROW_STEP) : 1;
    p.copy = k->copy.p ? cuda_f32(k->copy, (size_t)rows * (size_t)k->n) : NULL;
    p.copy_normed = k->copy_normed;
    p.dst = cuda_f32(k->dst, (size_t)rows * (size_t)k->width);
    if (k->packed && cuda_makes_packed(k->width, DT_BF16)) {
        CHECK(k->at % 4 == 0 && k->n % 4 == 0);
        p.terms = d->gpu.terms;
        p.f = cuda_rows_format(d, rows, k->width);
    }
    return p;
}

static rope_table rope_table_of(const struct k_rope *k)
{
    rope_table t = {cuda_i32(k->pos, (size_t)k->rows), {}, k->half, k->factor,
               cuda_f32(k->cs, (size_t)k->rows * (size_t)k->half * 2)};
    memcpy(t.inv.f, k->inv_freq, (size_t)k->half * sizeof *t.inv.f);
    return t;
}

static bool gathers_short(const gather_part &p)
{
    const bool fits = p.norm.kind == NORM_NONE || (p.n <= ROW_PASS && is_short_norm(&p.norm, p.n));
    const bool reads = p.table.rows.p ? p.table.rows.type == DT_BF16 && at_16(p.table.rows.p)
                                      : p.stride % 4 == 0 && at_16(p.src);
    return fits && reads && p.terms <= 1 && p.n % 4 == 0 && p.at % 4 == 0 && p.width % 4 == 0 &&
           at_16(p.copy) && at_16(p.dst);
}

/* The packed rows of the first part are those that the next operation reads (kdev.packed). */
void cuda_gather(struct kdev *d, const struct k_gather *a)
{
    struct gather_args l = {};
    int blocks = 0;
    bool all_short = true;
    CHECK(a->n_parts <= K_MAX_PARTS);
    for (int i = 0; i < K_MAX_ROPES && a->rope[i]; i++) {
        CHECK(a->rope[i]->rows == a->rows);
        if (a->rope[i]->half > MAX_PAIRS)
            cuda_rope(d, a->rope[i]);
        else
            l.rope[blocks++] = rope_table_of(a->rope[i]);
    }
    cuda_begin(d, "gather");
    l.n_parts = a->n_parts;
    for (int i = 0; i < a->n_parts; i++) {
        l.part[i] = part_of(d, &a->part[i], a->rows);
        blocks += l.part[i].blocks;
        all_short = all_short && gathers_short(l.part[i]);
    }
    if (a->n_parts && a->part[0].packed)
        d->packed = {a->part[0].dst.p, l.part[0].terms ? LAYOUT_PACKED : LAYOUT_FLOATS, a->rows,
                     a->part[0].width, d->epoch};
    cuda_launch(d, all_short ? gather_kernel<true> : gather_kernel<false>,
                dim3((unsigned)a->rows, (unsigned)blocks), ROW_THREADS, 0, l);
}

/* ---- move ----------------------------------------------------------------------------------- */

enum { MOVE_THREADS = 64, MOVE_AT_ONCE = 8, MAX_MOVED = 64 /* layers in one launch */ };
static_assert((int)MOVE_THREADS >= (int)K_MAX_PAIRS, "a thread reads the slots of a pair");

struct moved {
    char *k, *v;
    uint32_t cell; /* bytes of a cell */
    int n_slots, pool;
};

struct move_args {
    const int32_t *src[2], *dst[2];
    int pairs;
    moved layer[MAX_MOVED];
};

/* A thread has one word of every cell of a layer's K or V. It first loads that word of all source
 * cells into its own column of shared memory, which no other thread reads or writes, and then
 * stores to the targets. */
template <class Word>
__global__ void __launch_bounds__(MOVE_THREADS)
    move_kernel(const __grid_constant__ struct move_args a)
{
    extern __shared__ __align__(16) char scratch[]; /* (pairs, MOVE_THREADS) words */
    __shared__ int from[K_MAX_PAIRS], to[K_MAX_PAIRS];
    const int tid = (int)threadIdx.x;
    const moved &m = a.layer[blockIdx.z];
    const size_t words = m.cell / sizeof(Word), at = blockIdx.x * MOVE_THREADS + threadIdx.x;
    Word *cells = (Word *)(blockIdx.y ? m.v : m.k) + at, *held = (Word *)scratch + tid;
    pdl_trigger();
    pdl_wait_trigger();
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

/* One launch for n layers. */
static void move_layers(struct kdev *d, const struct move_args &m, int n)
{
    size_t cell = 0, bits = 0; /* the largest cell; the OR of all addresses and sizes */
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
            size_t cell = kv_cell_bytes(c->type, c->n_kv, c->head_dim);
            size_t all = (size_t)c->n_slots * cell;
            CHECK(c->k.n >= all && c->v.n >= all);
            m.layer[n++] = {(char *)c->k.p, (char *)c->v.p, (uint32_t)cell, c->n_slots, p};
            if (n == MAX_MOVED)
                move_layers(d, m, n), n = 0;
        }
    }
    if (n)
        move_layers(d, m, n);
}
