/* mem.cu - device memory, and the conversion of weights to their device layout during upload.
 *
 * MXFP4. The checkpoint has 16 bytes for each block of 32 weights, two weights in a byte. On the
 * device a row has a multiple of four blocks (the added ones are zero). Each group of four blocks,
 * 64 bytes, is transposed so that thread q, of the four that share a row in mma.m16n8k16, finds its
 * eight weights of all four blocks in 16 bytes: word b of the 16 bytes holds weights 8q .. 8q + 7
 * of block b. Sixteen rows make a tile, 1,024 bytes a group, whose groups are stored in the order
 * in which the warps of moe/experts.cu read them: the first group of each k split, then the second
 * of each, and so on. Scales have the same order, 64 bytes a group of a tile: the four of rows 0,
 * 8, 1, 9, ...
 *
 * A byte of a word holds two weights. The first is stored as the high byte of an f16 whose value is
 * the weight times 2^-14 (subnormals included): the sign in bit 7, exponent and mantissa in bits 3
 * .. 1. The bits of the second are chosen so that (w >> 3) ^ (w << 7) has the second weight in the
 * same place: bits 6 .. 4 and 0 compensate the bits that other weights bring there. So eight
 * weights become four pairs of f16 in eight integer operations (e2m1_pairs): weights 0 and 1 come
 * from bytes 1 and 3, weights 2 and 3 from bytes 0 and 2; weights 4 and 5, 6 and 7 are the second
 * weights of the same bytes.
 *
 * The byte s of a block's scale 2^(s - 127) becomes the high byte of the f16 2^(s - most + 13),
 * where `most` is the largest s of the row except 255. 255 means NaN and becomes infinity; results
 * below 2^-14 become 0. The low two bits of a row's first four scale bytes hold `most` (why:
 * moe/experts.cuh).
 *
 * bf16 experts are stored in tiles where wgmma runs (cuda_tiles_experts()).
 */
#include "kernels/cuda/moe/experts.cuh"

/* ---- buffers -------------------------------------------------------------------------------- */

/* Sets *e for a failed allocation. engine/cycle/fit.c compares all that will be allocated with the
 * free memory before anything is allocated, so memory runs out here only if another program took
 * some since, if a buffer grew later, or if a packed matrix with a scale that is too large becomes
 * bf16, which the comparison cannot know. */
static bool out_of_memory(const char *what, size_t bytes, const char *way_out, cudaError_t rc,
                          struct err *e)
{
    size_t left = 0, all = 0;
    cudaGetLastError();
    if (rc != cudaErrorMemoryAllocation)
        return err_set(e, ERR_MODEL, "CUDA: %s: %s", what, cudaGetErrorString(rc));
    if (cudaMemGetInfo(&left, &all) != cudaSuccess)
        cudaGetLastError();
    return err_set(e, ERR_MODEL, "out of GPU memory: %s needs %zu MiB, %zu of %zu MiB are free; %s",
                   what, bytes >> 20, left >> 20, all >> 20, way_out);
}

void cuda_memory(struct kdev *d, size_t *free_bytes, size_t *total_bytes)
{
    cuda_begin(d, "memory");
    *free_bytes = *total_bytes = 0;
    if (!d->failed)
        cuda_ok(d, cudaMemGetInfo(free_bytes, total_bytes));
}

kbuf cuda_alloc(struct kdev *d, size_t bytes, const char *what, struct err *e)
{
    kbuf b = {NULL, bytes};
    cuda_begin(d, "alloc");
    if (d->failed) {
        if (e)
            *e = d->first;
        return kbuf{NULL, 0};
    }
    cudaError_t rc = cudaMalloc(&b.p, bytes ? bytes : 1);
    if (rc == cudaSuccess)
        return b;
    out_of_memory(what, bytes, "a smaller --context needs less", rc, e);
    return kbuf{NULL, 0};
}

void cuda_release(struct kdev *d, kbuf b)
{
    if (!b.p)
        return;
    cuda_begin(d, "release");
    cuda_finish(d); /* keeps no failure: an earlier one is kept already, and sync() sees a new
                       one */
    if (!cuda_hung(d))
        cuda_ok(d, cudaFree(b.p));
}

/* A put of at most STAGE_BYTES / 2 is copied to pinned memory and sent from there, without
 * waiting. */
void cuda_put(struct kdev *d, kbuf dst, const void *src, size_t bytes)
{
    CHECK(bytes <= dst.n);
    cuda_begin(d, "put");
    if (!bytes || d->failed)
        return;
    if (bytes > STAGE_BYTES / 2) { /* a copy of memory that is not pinned waits in the driver */
        if (cuda_wait(d) &&
            cuda_ok(d, cudaMemcpyAsync(dst.p, src, bytes, cudaMemcpyHostToDevice, d->stream)))
            cuda_wait(d);
        return;
    }
    if (d->stage_at + bytes > STAGE_BYTES) {
        if (!cuda_wait(d)) /* all earlier puts have left the staging buffer */
            return;
        d->stage_at = 0;
    }
    char *at = d->stage + d->stage_at;
    memcpy(at, src, bytes);
    d->stage_at = cuda_round(d->stage_at + bytes, 64);
    cuda_ok(d, cudaMemcpyAsync(dst.p, at, bytes, cudaMemcpyHostToDevice, d->stream));
}

void cuda_get(struct kdev *d, void *dst, kbuf src, size_t bytes)
{
    CHECK(bytes <= src.n);
    cuda_begin(d, "get");
    if (!bytes)
        return;
    const bool lands = bytes <= LAND_BYTES;
    void *to = lands ? d->stage + STAGE_BYTES : dst;
    if (!d->failed && (lands || cuda_wait(d)) &&
        cuda_ok(d, cudaMemcpyAsync(to, src.p, bytes, cudaMemcpyDeviceToHost, d->stream)) &&
        cuda_wait(d)) {
        if (lands)
            memcpy(dst, to, bytes);
        return;
    }
    memset(dst, 0, bytes); /* sync() reports the failure */
}

void cuda_fill(struct kdev *d, kbuf dst, uint8_t byte)
{
    cuda_begin(d, "fill");
    if (dst.n && !d->failed)
        cuda_ok(d, cudaMemsetAsync(dst.p, byte, dst.n, d->stream));
}

/* ---- weights -------------------------------------------------------------------------------- */

bool cuda_holds(struct kdev *d, const struct tensor *t)
{
    for (int i = 0; i < d->n_held; i++)
        if (d->held[i] == t->data)
            return true;
    return false;
}

static void *alloc_weights(size_t bytes, const struct tensor *t, struct err *e)
{
    void *p = NULL;
    cudaError_t rc = cudaMalloc(&p, bytes ? bytes : 1);
    if (rc == cudaSuccess)
        return p;
    out_of_memory(t->name, bytes, "--device cpu needs none", rc, e); /* weights have a fixed size */
    return NULL;
}

/* From now on the device owns p, from alloc_weights(). */
static void hold(struct kdev *d, void *p)
{
    if (d->n_held == d->cap_held) {
        d->cap_held = d->cap_held * 2 + 64;
        d->held = (void **)xrealloc(d->held, (size_t)d->cap_held, sizeof *d->held);
    }
    d->held[d->n_held++] = p;
}

static bool upload_failed(const struct tensor *t, cudaError_t rc, struct err *e)
{
    return err_set(e, ERR_MODEL, "CUDA: %s: %s", t->name, cudaGetErrorString(rc));
}

/* Copies bytes of the checkpoint's tensor to the arena. */
static cudaError_t fetch(struct kdev *d, const struct tensor *t, size_t from, size_t bytes)
{
    return cudaMemcpyAsync(d->arena, (const char *)t->data + from, bytes, cudaMemcpyDefault,
                           d->stream);
}

/* One thread converts words q of four blocks to 16 bytes of a row, and stores them at the row's
 * place in its tile. */
__global__ void repack_mxfp4(const uint32_t *src, uint4 *dst, size_t rows, int blocks, int groups)
{
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= rows * (size_t)groups * 4)
        return;
    int q = (int)(i % 4), group = (int)(i / 4 % (size_t)groups);
    size_t row = i / 4 / (size_t)groups;
    uint32_t out[4];
    for (int b = 0; b < 4; b++) {
        int block = group * 4 + b;
        out[b] = block < blocks
                     ? packed_word(src[(row * (size_t)blocks + (size_t)block) * 4 + (size_t)q]) : 0;
    }
    size_t place = row / 16 * (size_t)groups + (size_t)chunk_place(group, groups);
    size_t at = (place * 16 + row % 16) * 4 + (size_t)q;
    dst[at] = make_uint4(out[0], out[1], out[2], out[3]);
}

/* One warp converts the scales of a row and adds zeros up to a whole group. */
__global__ void repack_scales(const uint8_t *src, uint8_t *dst, size_t rows, int blocks, int groups)
{
    const size_t row = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    const int lane = (int)threadIdx.x % 32;
    if (row >= rows)
        return;
    src += row * (size_t)blocks;
    unsigned most = 0;
    for (int i = lane; i < blocks; i += 32)
        most = max(most, src[i] == 255 ? 0u : src[i]);
    most = __reduce_max_sync(~0u, most);
    for (int i = lane; i < groups * 4; i += 32) {
        int exponent = 0; /* biased exponent of the f16 */
        if (i < blocks)
            exponent = src[i] == 255 ? 31 : max(src[i] - (int)most + 28, 0);
        size_t place = row / 16 * (size_t)groups + (size_t)chunk_place(i / 4, groups);
        size_t at = (place * 16 + row % 8 * 2 + row / 8 % 2) * 4 + (size_t)(i % 4);
        dst[at] = (uint8_t)((unsigned)exponent << 2 | (i < 4 ? most >> i * 2 & 3 : 0));
    }
}

/* An MXFP4 tensor on the device: its weights, or its scales. */
struct mxfp4 {
    bool is_scales;
    size_t rows, bytes; /* bytes: with the rows rounded up to whole tiles */
    int blocks, groups;
};

/* False: t is not an MXFP4 tensor. */
static bool mxfp4_of(const struct tensor *t, struct mxfp4 *m)
{
    if (t->type != DT_U8 || !(t->n_dim == 3 || (t->n_dim == 4 && t->dim[3] == 16)))
        return false;
    m->is_scales = t->n_dim == 3;
    m->rows = (size_t)(t->dim[0] * t->dim[1]);
    m->blocks = (int)t->dim[2];
    m->groups = div_up(m->blocks, 4);
    m->bytes = cuda_round(m->rows, 16) * (size_t)m->groups * (m->is_scales ? 4 : 64);
    return true;
}

/* Converts `rows` rows, which are in the arena, into whole tiles at `to`. */
static void repack(struct kdev *d, const struct mxfp4 *m, size_t rows, uint8_t *to)
{
    size_t n = rows * (size_t)m->groups * 4;
    if (m->is_scales)
        repack_scales<<<(unsigned)((rows + 7) / 8), 256, 0, d->stream>>>(
            (const uint8_t *)d->arena, to, rows, m->blocks, m->groups);
    else
        repack_mxfp4<<<(unsigned)((n + 255) / 256), 256, 0, d->stream>>>(
            (const uint32_t *)d->arena, (uint4 *)to, rows, m->blocks, m->groups);
}

/* Copies rows of `row` bytes to the arena, as many tiles of TILE_OUTS rows at a time as fit there,
 * and converts them from there: convert(rows, to) starts the kernel that does. row_to: bytes of a
 * row on the device. */
template <class CONVERT>
static cudaError_t put_in_tiles(struct kdev *d, const struct tensor *t, size_t rows, size_t row,
                                size_t row_to, uint8_t *to, const CONVERT &convert)
{
    const size_t fit = ARENA_BYTES / row / TILE_OUTS * TILE_OUTS;
    CHECK(fit > 0);
    for (size_t at = 0; at < rows; at += fit) {
        const size_t n = rows - at < fit ? rows - at : fit;
        TRY(fetch(d, t, at * row, n * row));
        convert(n, to + at * row_to);
        TRY(cudaGetLastError());
    }
    return cudaSuccess;
}

static cudaError_t put_mxfp4(struct kdev *d, const struct tensor *t, const struct mxfp4 *m,
                             uint8_t *to)
{
    return put_in_tiles(d, t, m->rows, t->bytes / m->rows,
                        m->bytes / cuda_round(m->rows, TILE_OUTS), to,
                        [&](size_t rows, uint8_t *at) { repack(d, m, rows, at); });
}

/* Packed experts. */
static cudaError_t put_experts(struct kdev *d, const struct tensor *t, uint8_t *to)
{
    const int k = (int)t->dim[2];
    const size_t row = dtype_bytes(t->type, (size_t)k),
                 tile_to = (size_t)(k / K_CHUNK) * (size_t)chunk_bytes(experts_as(t->type));
    return put_in_tiles(d, t, t->bytes / row, row, tile_to / TILE_OUTS, to,
                        [&](size_t rows, uint8_t *at) {
                            cuda_repack_experts(d, t->type, d->arena, k, (int)rows / TILE_OUTS, at);
                        });
}

/* One thread copies eight elements of a row of k to a tile of bf16 experts
 * (cuda_tiles_experts()). */
__global__ void repack_tiles(const uint16_t *src, uint4 *dst, size_t rows, int k, int chunks)
{
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= rows * (size_t)chunks * 4)
        return;
    const int eight = (int)(i % ((size_t)chunks * 4)), c = eight / 4;
    const size_t row = i / ((size_t)chunks * 4);
    uint32_t w[4] = {};
#pragma unroll
    for (int e = 0; e < 8; e++)
        if (eight * 8 + e < k)
            w[e / 2] |= (uint32_t)src[row * (size_t)k + (size_t)(eight * 8 + e)] << 16 * (e % 2);
    const size_t place = row / 16 * (size_t)chunks + (size_t)chunk_place(ksplit_of(chunks * 32), c);
    dst[(place * 16 + row % 16) * 4 + (size_t)(eight % 4)] = make_uint4(w[0], w[1], w[2], w[3]);
}

static cudaError_t put_tiles(struct kdev *d, const struct tensor *t, uint8_t *to)
{
    const int k = (int)t->dim[2], chunks = div_up(k, K_CHUNK);
    return put_in_tiles(
        d, t, (size_t)(t->dim[0] * t->dim[1]), (size_t)k * sizeof(uint16_t),
        (size_t)chunks * K_CHUNK_BYTES, to, [&](size_t rows, uint8_t *at) {
            const size_t n = rows * (size_t)chunks * 4;
            repack_tiles<<<(unsigned)((n + 255) / 256), 256, 0, d->stream>>>(
                (const uint16_t *)d->arena, (uint4 *)at, rows, k, chunks);
        });
}

/* A tensor as rows of `width` bytes, `pitch` bytes apart on the device. */
struct rows {
    size_t n, width, pitch;
};

static struct rows rows_of(const struct tensor *t)
{
    size_t size = dtype_size(t->type), n = (size_t)t->dim[t->n_dim - 1];
    struct rows r = {1, n * size, cuda_pitch(t) * size};
    for (int i = 0; i + 1 < t->n_dim; i++)
        r.n *= (size_t)t->dim[i];
    return r;
}

/* The padding between rows is zero. */
static cudaError_t put_rows(struct kdev *d, const struct tensor *t, uint8_t *to)
{
    const struct rows r = rows_of(t);
    if (r.pitch == r.width)
        return cudaMemcpyAsync(to, t->data, r.n * r.width, cudaMemcpyDefault, d->stream);
    TRY(cudaMemsetAsync(to, 0, r.n * r.pitch, d->stream));
    return cudaMemcpy2DAsync(to, r.pitch, t->data, r.width, r.width, r.n, cudaMemcpyDefault,
                             d->stream);
}

/* One thread copies a unit of a row of one of n panels, or with FP8 the codes of eight successive
 * elements; src: the panels' rows, of k elements each. An infinite weight becomes NaN: some
 * products multiply a weight with zeros, too (decode_pipeline.cuh, and the second terms of
 * activations), so only a NaN gives the same output everywhere. */
template <bool FP8>
__global__ void repack_panels(const uint16_t *src, int rows, int k,
                              const __grid_constant__ struct panels p, int n, int scale,
                              uint8_t *dst)
{
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    size_t pieces = panel_bytes(p) / 16;
    if (i >= (size_t)n * pieces)
        return;
    const size_t chunk = i / UNITS / (size_t)p.rows;
    int unit = (int)(i % UNITS), row = (int)(i / UNITS % (size_t)p.rows);
    int place = (int)(chunk % (size_t)p.ksplit.chunks), panel = (int)(i / pieces);
    const struct split_chunk of = split_chunk_of(p.ksplit, place);
    int r = panel * p.rows + row, from = (of.split * p.ksplit.each + of.position) * K_CHUNK;
    uint16_t v[8];
    for (int e = 0; e < 8; e++) {
        const int at = from + (FP8 ? unit * 8 + e : tile_element(unit * 8 + e));
        v[e] = r < rows && at < k ? src[(size_t)r * (size_t)k + (size_t)at] : 0;
        if ((v[e] & 0x7fff) == 0x7f80) /* infinite */
            v[e] = 0x7fff;
    }
    if (FP8)
        ((uint2 *)dst)[i] = fp8_codes(v, scale);
    else
        memcpy(dst + (chunk * UNITS * (size_t)p.rows + (size_t)(unit * p.rows + row)) * UNIT_BYTES,
               v, UNIT_BYTES);
}

/* Device bytes of a panel. */
static size_t panel_bytes_of(const struct panels &p, const struct tensor *t)
{
    return stored_bytes(p, t->quantize ? (int)STORED_FP8 : cuda_panels_as(t));
}

/* Some successive panels of a matrix, as many as fit into the arena as the checkpoint has them. */
struct panel_rows {
    int panel, n;    /* the first panel, and how many */
    int rows;        /* of the matrix, from panel * p.rows on */
    size_t from, bytes; /* in the checkpoint */
};
static struct panel_rows panel_rows_from(const struct panels &p, const struct tensor *t, int panel)
{
    const size_t row = dtype_bytes(t->type, (size_t)t->dim[1]);
    const size_t fit = ((size_t)ARENA_BYTES - 256) / (row * (size_t)p.rows);
    struct panel_rows r = {panel, min_int((int)fit, p.n - panel), 0, 0, 0};
    const int first = panel * p.rows;
    r.rows = min_int(r.n * p.rows, (int)t->dim[0] - first);
    r.from = (size_t)first * row, r.bytes = (size_t)r.rows * row;
    return r;
}

/* A word behind the rows in the arena, which kernels set during an upload. */
static unsigned *upload_word(const struct kdev *d)
{
    return (unsigned *)(d->arena + ARENA_BYTES - 128);
}

/* The largest magnitude of the weights. The first panels remain in the arena if they are all
 * (*there). */
static cudaError_t find_largest(struct kdev *d, const struct tensor *t, bool *there,
                                unsigned *largest)
{
    const struct panels p = cuda_panels(d, t);
    unsigned *found = upload_word(d);
    struct panel_rows r = {};
    TRY(cudaMemsetAsync(found, 0, sizeof *found, d->stream));
    for (int at = 0; at < p.n; at += r.n) {
        r = panel_rows_from(p, t, at);
        TRY(fetch(d, t, r.from, r.bytes));
        cuda_find_largest(d, d->arena, r.bytes / sizeof(uint16_t), found);
    }
    *there = r.n == p.n;
    TRY(cudaMemcpyAsync(largest, found, sizeof *largest, cudaMemcpyDefault, d->stream));
    return cuda_finish(d);
}

/* Sets t->unit. False and *e: a weight is not finite, or the device failed. */
static bool find_unit(struct kdev *d, struct tensor *t, bool *there, struct err *e)
{
    unsigned largest = 0;
    const cudaError_t rc = find_largest(d, t, there, &largest);
    if (rc != cudaSuccess)
        return upload_failed(t, rc, e);
    if (largest >= FP8_NOT_FINITE)
        return err_set(e, ERR_MODEL, FP8_REFUSED, t->name);
    t->unit = fp8_unit((uint16_t)largest);
    return true;
}

/* Copies the rows to the arena, as many panels at a time as fit there, unless they are `there`, and
 * rearranges them from there. *too_large: see cuda_repack_blocks(). */
static cudaError_t put_panels(struct kdev *d, const struct tensor *t, bool there, uint8_t *to,
                              unsigned *too_large)
{
    const struct panels p = cuda_panels(d, t);
    const size_t each = panel_bytes_of(p, t);
    const bool packed = dtype_packed(t->type);
    struct panel_rows r = {};
    if (packed) {
        TRY(cudaMemsetAsync(to, 0, (size_t)p.n * each, d->stream));
        TRY(cudaMemsetAsync(upload_word(d), 0, sizeof *too_large, d->stream));
    }
    for (int at = 0; at < p.n; at += r.n) {
        r = panel_rows_from(p, t, at);
        if (!there)
            TRY(fetch(d, t, r.from, r.bytes));
        const size_t threads = (size_t)r.n * panel_bytes(p) / 16;
        const unsigned blocks = (unsigned)((threads + 255) / 256);
        if (packed)
            cuda_repack_blocks(d, &p, t->type, d->arena, r.rows, (int)t->dim[1], r.n,
                               to + (size_t)at * each, upload_word(d));
        else if (t->quantize)
            repack_panels<true><<<blocks, 256, 0, d->stream>>>(
                (const uint16_t *)d->arena, r.rows, (int)t->dim[1], p, r.n, t->unit,
                to + (size_t)at * each);
        else
            repack_panels<false><<<blocks, 256, 0, d->stream>>>(
                (const uint16_t *)d->arena, r.rows, (int)t->dim[1], p, r.n, 0,
                to + (size_t)at * each);
        TRY(cudaGetLastError());
    }
    return packed ? cudaMemcpyAsync(too_large, upload_word(d), sizeof *too_large,
                                    cudaMemcpyDefault, d->stream)
                  : cudaSuccess;
}

/* The bf16 tensor with the values of a packed one; without data. */
static struct tensor unpacked(const struct tensor *t)
{
    struct tensor plain = *t;
    plain.type = DT_BF16;
    plain.bytes = sizeof(uint16_t);
    for (int i = 0; i < t->n_dim; i++)
        plain.bytes *= (size_t)t->dim[i];
    plain.data = NULL;
    return plain;
}

/* No operation reads such packed weights: the tensor becomes the bf16 one (packed.h), which the
 * host makes of `blocks`, the tensor's data in host memory. */
static bool upload_unpacked(struct kdev *d, struct tensor *t, const void *blocks, struct err *e)
{
    struct tensor plain = unpacked(t);
    void *host = malloc(plain.bytes);
    if (!host)
        return err_set(e, ERR_MODEL, "out of memory: %s needs %zu bytes to be unpacked", t->name,
                       plain.bytes);
    packed_bf16(t->type, blocks, plain.bytes / sizeof(uint16_t), (uint16_t *)host);
    plain.data = host;
    const bool ok = cuda_upload(d, &plain, e);
    free(host);
    if (ok)
        *t = plain;
    return ok;
}

/* The same of a tensor whose data may be in device memory: synthesize() makes them there. */
static bool fetch_and_unpack(struct kdev *d, struct tensor *t, struct err *e)
{
    void *host = malloc(t->bytes);
    if (!host)
        return err_set(e, ERR_MODEL, "out of memory: %s needs %zu bytes", t->name, t->bytes);
    cudaError_t rc = cudaMemcpyAsync(host, t->data, t->bytes, cudaMemcpyDefault, d->stream);
    if (rc == cudaSuccess)
        rc = cuda_finish(d);
    const bool ok =
        rc == cudaSuccess ? upload_unpacked(d, t, host, e) : upload_failed(t, rc, e);
    free(host);
    return ok;
}

/* Converts t->data to the device layout at `to`, of cuda_footprint() bytes, and waits. *too_large:
 * see cuda_repack_blocks(). False and *e: a weight is not finite, or the device failed. */
static bool convert(struct kdev *d, struct tensor *t, uint8_t *to, unsigned *too_large,
                    struct err *e)
{
    bool there = false;
    if (t->quantize && cuda_paneled(t) && !find_unit(d, t, &there, e))
        return false;
    struct mxfp4 m;
    cudaError_t rc = cuda_packed_experts(t)     ? put_experts(d, t, to)
                     : cuda_tiles_experts(d, t) ? put_tiles(d, t, to)
                     : mxfp4_of(t, &m)          ? put_mxfp4(d, t, &m, to)
                     : cuda_paneled(t)          ? put_panels(d, t, there, to, too_large)
                                                : put_rows(d, t, to);
    if (rc == cudaSuccess)
        rc = cuda_finish(d);
    return rc == cudaSuccess || upload_failed(t, rc, e);
}

bool cuda_upload(struct kdev *d, struct tensor *t, struct err *e)
{
    cuda_begin(d, "upload");
    if (d->failed) {
        if (e)
            *e = d->first;
        return false;
    }
    if (!t->data || cuda_holds(d, t))
        return true;
    if (cuda_paneled(t) && t->dim[1] > PANEL_MAX_K)
        return err_set(e, ERR_MODEL, "CUDA: %s has rows of %lld elements; expected at most %d "
                       "(--device cpu takes longer ones)", t->name, (long long)t->dim[1],
                       PANEL_MAX_K);
    if (dtype_packed(t->type) && !cuda_stays_packed(d, t))
        return upload_unpacked(d, t, t->data, e);
    uint8_t *to = (uint8_t *)alloc_weights(cuda_footprint(d, t), t, e);
    if (!to)
        return false;
    unsigned too_large = 0;
    const bool ok = convert(d, t, to, &too_large, e);
    if (!ok || too_large) {
        cuda_release(d, kbuf{to, 0});
        return ok && fetch_and_unpack(d, t, e);
    }
    hold(d, to);
    t->data = to;
    return true;
}

void cuda_unload(struct kdev *d, struct tensor *t)
{
    for (int i = 0; t->data && i < d->n_held; i++)
        if (d->held[i] == t->data) {
            d->held[i] = d->held[--d->n_held];
            cuda_release(d, kbuf{t->data, t->bytes});
            t->data = NULL;
        }
}

size_t cuda_footprint(struct kdev *d, const struct tensor *t)
{
    if (dtype_packed(t->type) && !cuda_stays_packed(d, t)) {
        const struct tensor plain = unpacked(t);
        return cuda_footprint(d, &plain);
    }
    if (cuda_packed_experts(t))
        return packed_experts_size(t);
    struct mxfp4 m;
    if (mxfp4_of(t, &m))
        return m.bytes;
    if (cuda_paneled(t)) {
        const struct panels p = cuda_panels(d, t);
        return (size_t)p.n * panel_bytes_of(p, t);
    }
    struct rows r = rows_of(t);
    return r.n * r.pitch;
}
