/* rows.c - see rows.h. */
#include "models/checkpoint/safetensors.h"

#include "kernels/packed.h"
#include "models/checkpoint/json.h"

#include <math.h>

enum { CHUNK = 64 << 10, MX_BLOCK = 17, MX_ELEMS = 32 };

/* Whether the sources are codes and scales. */
static bool of_codes(const struct rows *r)
{
    return r->make == MAKE_SCALED || r->make == MAKE_BLOCKS;
}

static size_t source_bytes(const struct rows *r, int k)
{
    if (of_codes(r))
        return k ? scaled_scale_bytes(&r->scaled) : r->scaled.code_bytes;
    return dtype_bytes(r->from[k].type, (size_t)r->elems);
}

size_t rows_bytes(const struct rows *r)
{
    size_t n = (size_t)r->elems;
    switch (r->make) {
    case MAKE_SAME: return source_bytes(r, 0);
    case MAKE_TYPE: return n * dtype_size(r->to);
    case MAKE_LESS_1: return n * 4;
    case MAKE_CODES: return n / 2;
    case MAKE_SCALES: return n / MX_ELEMS;
    case MAKE_SCALED: return (size_t)r->scaled.cols * 2;
    case MAKE_BLOCKS: return dtype_bytes(r->to, (size_t)r->scaled.cols);
    case MAKE_OUTER: return dtype_bytes(DT_E2M1, n);
    }
    return 0;
}

/* The source of row i, and its row there. */
static int source_of(const struct rows *r, int64_t i, int64_t *row)
{
    int64_t g = r->group, in;
    switch (r->order) {
    case ROWS_SAME: break;
    case ROWS_HALVES:
        in = i % g;
        return *row = i - in + (in < g / 2 ? 2 * in : 2 * (in - g / 2) + 1), 0;
    case ROWS_PAIRS: return *row = i / 2, (int)(i % 2);
    case ROWS_STACKED: in = i % (2 * g); return *row = i / (2 * g) * g + in % g, in >= g;
    }
    return *row = i, 0;
}

/* ---- converting ---- */

static void floats_of(enum dtype t, const char *p, size_t n, float *out)
{
    uint16_t v;
    if (dtype_packed(t)) {
        packed_floats(t, p, n, out);
        return;
    }
    if (t == DT_F32) {
        memcpy(out, p, n * 4);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        memcpy(&v, p + 2 * i, 2);
        out[i] = t == DT_F16 ? f16_to_f32(v) : bf16_to_f32(v);
    }
}

/* Byte j of a block holds elements j and j + 16; of the codes, 2 j and 2 j + 1. */
static void codes_of(const uint8_t *block, uint8_t *out)
{
    for (size_t b = 0; b < 8; b++) {
        int even = block[1 + 2 * b], odd = block[2 + 2 * b];
        out[b] = (uint8_t)((even & 15) | (odd & 15) << 4);
        out[b + 8] = (uint8_t)(even >> 4 | (odd >> 4) << 4);
    }
}

static void convert_blocks(const struct rows *r, const char *p, size_t n, char *out)
{
    for (size_t b = 0; b < n / MX_ELEMS; b++, p += MX_BLOCK)
        if (r->make == MAKE_CODES)
            codes_of((const uint8_t *)p, (uint8_t *)out + 16 * b);
        else
            out[b] = *p;
}

/* n elements of blocks of NVFP4, whose scales have no sign, as blocks of E2M1 with a factor. */
static void outer_blocks(const uint8_t *p, size_t n, float factor, uint8_t *out)
{
    enum { ELEMS = 64, BYTES = 36, BLOCK = 22 };
    for (size_t i = 0; i < n / 32; i++, out += BLOCK) {
        const uint8_t *b = p + i / (ELEMS / 32) * BYTES, *scale = b + 2 * (i % 2),
                      *code = b + 4 + 16 * (i % 2);
        memcpy(out, &factor, sizeof factor);
        out[4] = scale[0] & 0x7f, out[5] = scale[1] & 0x7f;
        for (int j = 0; j < 8; j++) { /* elements j, j + 8, and, 16 behind them, j + 16, j + 24 */
            out[6 + j] = (uint8_t)((code[j] & 15) | (code[8 + j] & 15) << 4);
            out[14 + j] = (uint8_t)(code[j] >> 4 | (code[8 + j] >> 4) << 4);
        }
    }
}

/* Converts n elements of source k, which `outer` multiplies; tmp has room for them as floats. */
static void convert(const struct rows *r, int k, const char *p, size_t n, float outer, char *out,
                    float *tmp)
{
    enum dtype t = r->from[k].type;
    if (r->make == MAKE_SAME) {
        memcpy(out, p, dtype_bytes(t, n));
    } else if (r->make == MAKE_CODES || r->make == MAKE_SCALES) {
        convert_blocks(r, p, n, out);
    } else if (r->make == MAKE_OUTER) {
        outer_blocks((const uint8_t *)p, n, outer, (uint8_t *)out);
    } else {
        if (r->from[k].outer.rows) { /* out has room for the blocks: 22 bytes of 32 elements */
            outer_blocks((const uint8_t *)p, n, outer, (uint8_t *)out);
            packed_floats(DT_E2M1, out, n, tmp);
        } else {
            floats_of(t, p, n, tmp);
        }
        for (size_t i = 0; i < n; i++) {
            float v = r->make == MAKE_LESS_1 ? tmp[i] - 1 : tmp[i];
            uint16_t half = f32_to_bf16(v);
            if (r->make == MAKE_TYPE && r->to == DT_BF16)
                memcpy(out + 2 * i, &half, 2);
            else
                memcpy(out + 4 * i, &v, 4);
        }
    }
}

/* ---- reading ---- */

struct row_span { /* rows of a source that a chunk needs */
    int64_t first, end;
    char *p;
    float *outer; /* from that of row `first` on; NULL: there are none */
};

/* Reads the numbers that multiply the rows. */
static bool read_outer(const struct safetensors *st, const struct row_outer *o, struct row_span *s,
                       struct err *e)
{
    if (!o->rows)
        return true;
    const int64_t at = s->first / o->rows, n = (s->end - 1) / o->rows + 1 - at;
    s->outer = xcalloc((size_t)n, sizeof *s->outer);
    if (!shard_pread(&st->shard[o->file], s->outer, (size_t)n * sizeof *s->outer,
                     o->at + (uint64_t)at * sizeof *s->outer, e))
        return false;
    for (int64_t i = 0; i < n; i++)
        if (!(fabsf(s->outer[i]) < PACKED_FACTOR))
            return err_file(e, o->path, "tensor %s has %g at %lld, expected less than 2^112",
                            show(o->name).s, (double)s->outer[i], (long long)at + (long long)i);
    return true;
}

static bool read_span(const struct safetensors *st, const struct rows *r, int k,
                      struct row_span *s, struct err *e)
{
    const struct row_source *f = &r->from[k];
    size_t row = source_bytes(r, k), n = (size_t)(s->end - s->first) * row;
    s->p = xmalloc(n);
    if (!shard_pread(&st->shard[f->file], s->p, n, f->at + (uint64_t)s->first * row, e))
        return false;
    if (!dtype_packed(f->type))
        return true;
    int64_t blocks = (int64_t)n / packed_format(f->type)->bytes;
    return packed_not_finite(f->type, s->p, blocks) < 0 ||
           err_file(e, f->path, "tensor %s has a block with a scale that is not finite",
                    show(f->name).s);
}

/* The same of rows made of codes and scales. */
static bool make_scaled(const struct safetensors *st, const struct rows *r, int64_t first,
                        int64_t end, char *out, struct err *e)
{
    const struct scaled *m = &r->scaled;
    struct row_span code = {first, end, NULL, NULL};
    struct row_span scale = {first / m->block_rows, (end - 1) / m->block_rows + 1, NULL, NULL};
    bool ok = read_span(st, r, 0, &code, e) && read_span(st, r, 1, &scale, e);
    for (int64_t i = first; ok && i < end; i++) {
        const uint8_t *c = (uint8_t *)code.p + (size_t)(i - first) * source_bytes(r, 0);
        const char *s = scale.p + (size_t)(i / m->block_rows - scale.first) * source_bytes(r, 1);
        char why[100];
        bool of_scale = false;
        char *to = out + (size_t)(i - first) * r->bytes;
        if (r->make == MAKE_BLOCKS ? scaled_blocks(m, c, s, (uint8_t *)to)
                                   : scaled_row(m, c, s, (uint16_t *)(void *)to))
            continue;
        scaled_fault(m, i, c, s, &of_scale, why, sizeof why);
        const struct row_source *from = &r->from[of_scale];
        ok = err_file(e, from->path, "%s: %s", show(from->name).s, why);
    }
    FREE(code.p, scale.p);
    return ok;
}

static bool make_rows(const struct safetensors *st, const struct rows *r, int64_t first,
                      int64_t end, char *out, struct err *e)
{
    if (of_codes(r))
        return make_scaled(st, r, first, end, out, e);
    struct row_span s[2] = {{INT64_MAX, 0, NULL, NULL}, {INT64_MAX, 0, NULL, NULL}};
    for (int64_t i = first, row; i < end; i++) {
        struct row_span *of = &s[source_of(r, i, &row)];
        of->first = row < of->first ? row : of->first;
        of->end = row >= of->end ? row + 1 : of->end;
    }
    bool ok = true;
    for (int k = 0; ok && k < r->n_from; k++)
        ok = s[k].end == 0 ||
             (read_span(st, r, k, &s[k], e) && read_outer(st, &r->from[k].outer, &s[k], e));
    const bool at_once = r->order == ROWS_SAME && !s[0].outer;
    size_t n = (size_t)r->elems * (at_once ? (size_t)(end - first) : 1);
    FREED(free_at) float *tmp = ok ? xmalloc(n * sizeof *tmp) : NULL;
    for (int64_t i = first, row; ok && i < end; i++) {
        int k = source_of(r, i, &row);
        const int64_t each = r->from[k].outer.rows;
        const float outer = s[k].outer ? s[k].outer[row / each - s[k].first / each] : 1;
        convert(r, k, s[k].p + (size_t)(row - s[k].first) * source_bytes(r, k), n, outer,
                out + (size_t)(i - first) * r->bytes, tmp);
        if (at_once)
            break;
    }
    FREE(s[0].p, s[1].p, s[0].outer, s[1].outer);
    return ok;
}

bool rows_read(const struct safetensors *s, const struct rows *r, size_t from, size_t n, void *dst,
               struct err *e)
{
    int64_t most = (int64_t)(CHUNK / r->bytes);
    if (most < 1)
        most = 1;
    FREED(free_at) char *rows = xmalloc((size_t)most * r->bytes);
    bool ok = true;
    while (ok && n) {
        int64_t first = (int64_t)(from / r->bytes);
        int64_t need = (int64_t)((from + n - 1) / r->bytes) + 1 - first;
        int64_t end = first + (need < most ? need : most);
        ok = make_rows(s, r, first, end, rows, e);
        size_t skip = from - (size_t)first * r->bytes,
               has = (size_t)(end - first) * r->bytes - skip;
        size_t part = has < n ? has : n;
        if (ok)
            memcpy(dst, rows + skip, part);
        dst = (char *)dst + part;
        from += part;
        n -= part;
    }
    return ok;
}

uint64_t rows_place(const struct rows *r, size_t from, int *file)
{
    int64_t row;
    int k = source_of(r, (int64_t)(from / r->bytes), &row);
    *file = r->from[k].file;
    return r->from[k].at + (uint64_t)row * source_bytes(r, k);
}
