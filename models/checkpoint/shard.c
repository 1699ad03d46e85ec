/* shard.c - the header of one safetensors file (safetensors.h).
 *
 * A file is: N as 8 little-endian bytes; N bytes of JSON, an object, which may be padded at its end
 * with spaces; the data. Each entry but "__metadata__" names a type, a shape and a byte range of
 * the data. Checked before any data is read:
 *   (1) N <= 100,000,000 and the header lies within the file;
 *   (2) each entry has a known type, a shape whose size is computed without overflow, and a range
 *       of exactly that size;
 *   (3) sorted by offset, the ranges tile the data: no hole, no overlap, and the last one ends at
 *       the end of the file.
 */
#include "models/checkpoint/safetensors.h"

#include "models/checkpoint/json.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>

/* ---- element types ---- */

static const struct type_name {
    const char *name;
    int bits;
    enum dtype type;
} type_names[] = {
    {"BOOL", 8, DT_BOOL},      {"U8", 8, DT_U8},           {"I8", 8, DT_I8},
    {"I16", 16, DT_I16},       {"U16", 16, DT_OTHER},      {"I32", 32, DT_I32},
    {"U32", 32, DT_OTHER},     {"I64", 64, DT_I64},        {"U64", 64, DT_OTHER},
    {"F16", 16, DT_F16},       {"BF16", 16, DT_BF16},      {"F32", 32, DT_F32},
    {"F64", 64, DT_OTHER},     {"C64", 64, DT_OTHER},      {"F8_E4M3", 8, DT_OTHER},
    {"F8_E5M2", 8, DT_OTHER},  {"F8_E8M0", 8, DT_OTHER},   {"F8_E4M3FNUZ", 8, DT_OTHER},
    {"F4", 4, DT_OTHER},       {"F8_E5M2FNUZ", 8, DT_OTHER}, {"F6_E2M3", 6, DT_OTHER},
    {"F6_E3M2", 6, DT_OTHER},
};

/* ---- reading bytes ---- */

bool shard_pread(const struct shard *f, void *dst, size_t n, uint64_t at, struct err *e)
{
    ptrdiff_t got = pread_fully(f->fd, dst, n, at);
    if (got < 0)
        return err_file(e, f->path, "cannot read: %s", strerror(errno));
    return (size_t)got == n ||
           err_file(e, f->path,
                    "ends at byte %" PRIu64 " while %zu more are expected (did it shrink?)",
                    at + (uint64_t)got, n - (size_t)got);
}

/* ---- one header entry ---- */

bool bad_entry(const struct shard *f, const char *name, struct err *e, const char *fmt, ...)
{
    char what[200];
    PRINT_ARGS(what, fmt);
    return err_file(e, f->path, "tensor %s: %s", show(name).s, what);
}

/* Reads "shape" into t->dim and t->n_dim and computes t->bytes. */
static bool entry_shape(const struct shard *f, const char *name, const json_t *shape,
                        const struct type_name *type, struct tensor *t, struct err *e)
{
    if (!json_is_array(shape))
        return bad_entry(f, name, e, "\"shape\" is not a list");
    uint64_t count = 1, bits;
    size_t i, rank = json_array_size(shape);
    const json_t *v;
    json_array_foreach(shape, i, v) {
        if (!json_is_integer(v) || json_integer_value(v) < 0)
            return bad_entry(f, name, e, "dimension %zu of \"shape\" is not a count", i);
        if (__builtin_mul_overflow(count, (uint64_t)json_integer_value(v), &count))
            return bad_entry(f, name, e, "the product of its shape overflows");
        if (i < TENSOR_DIMS)
            t->dim[i] = json_integer_value(v);
    }
    if (__builtin_mul_overflow(count, (uint64_t)type->bits, &bits))
        return bad_entry(f, name, e, "its size in bytes overflows");
    if (bits % 8)
        return bad_entry(f, name, e, "%" PRIu64 " elements of type %s do not fill whole bytes",
                         count, type->name);
    t->n_dim = (int)rank; /* at most the header's 10^8 bytes / 2 */
    t->bytes = bits / 8;
    return true;
}

static bool entry_read(const struct shard *f, const char *name, const json_t *v, uint64_t data,
                       struct st_entry *out, struct err *e)
{
    if (!name_is_plain(name, strlen(name)))
        return bad_entry(f, name, e, "the name is empty or has control characters");
    if (!json_is_object(v))
        return bad_entry(f, name, e, "the entry is not an object");
    const char *key;
    json_t *field;
    json_object_foreach((json_t *)v, key, field)
        if (strcmp(key, "dtype") != 0 && strcmp(key, "shape") != 0 && strcmp(key, "data_offsets") !=
            0)
            return bad_entry(f, name, e, "unknown field \"%.60s\"", show(key).s);
    const char *dtype = json_string_value(json_object_get(v, "dtype"));
    const struct type_name *type = dtype ? ROW_NAMED(type_names, dtype) : NULL;
    if (!type)
        return bad_entry(f, name, e, "unknown type \"%.60s\"", dtype ? show(dtype).s : "");
    struct tensor t = {.type = type->type};
    if (!entry_shape(f, name, json_object_get(v, "shape"), type, &t, e))
        return false;
    const json_t *o = json_object_get(v, "data_offsets");
    const json_t *b = json_array_get(o, 0), *z = json_array_get(o, 1);
    if (json_array_size(o) != 2 || !json_is_integer(b) || !json_is_integer(z))
        return bad_entry(f, name, e, "\"data_offsets\" is not a pair of integers");
    json_int_t begin = json_integer_value(b), end = json_integer_value(z);
    if (begin < 0 || end < begin || (uint64_t)end > f->size - data)
        return bad_entry(f, name, e, "data_offsets [%lld, %lld] do not lie within the %" PRIu64
                         " bytes of data", (long long)begin, (long long)end, f->size - data);
    if ((uint64_t)(end - begin) != t.bytes)
        return bad_entry(f, name, e, "data_offsets span %lld bytes, its type and shape need %zu",
                         (long long)(end - begin), t.bytes);
    t.name = xstrdup(name);
    *out = (struct st_entry){.t = t, .type = type->name, .at = data + (uint64_t)begin};
    return true;
}

/* ---- one file ---- */

static int by_offset(const void *a, const void *b)
{
    const struct st_entry *x = a, *y = b;
    if (x->at != y->at)
        return x->at < y->at ? -1 : 1;
    return (x->t.bytes > y->t.bytes) - (x->t.bytes < y->t.bytes);
}

/* Rule (3): sorts the shard's entries and checks that they tile [data, size). */
static bool check_tiling(struct safetensors *s, const struct shard *f, uint64_t data, struct err *e)
{
    if (f->n)
        qsort(s->entry + f->first, (size_t)f->n, sizeof *s->entry, by_offset);
    uint64_t at = data;
    for (int i = f->first; i < f->first + f->n; i++) {
        const struct st_entry *x = &s->entry[i];
        if (x->at != at)
            return bad_entry(f, x->t.name, e, "starts at byte %" PRIu64 " of the data, which "
                             "leaves %s; expected %" PRIu64, x->at - data,
                             x->at < at ? "an overlap" : "a hole", at - data);
        at += x->t.bytes;
    }
    if (at != f->size)
        return err_file(e, f->path, "the file has %" PRIu64 " bytes, its tensors end at %" PRIu64,
                        f->size, at);
    return true;
}

static bool check_metadata(const struct shard *f, const json_t *meta, struct err *e)
{
    const char *key;
    json_t *v;
    if (!json_is_object(meta))
        return err_file(e, f->path, "\"__metadata__\" is not an object");
    json_object_foreach((json_t *)meta, key, v)
        if (!json_is_string(v))
            return err_file(e, f->path, "\"__metadata__\" entry \"%s\" is not a string",
                            show(key).s);
    return true;
}

struct st_entry *entry_room(struct safetensors *s)
{
    MAKE_ROOM(s->entry, s->n);
    return &s->entry[s->n];
}

static bool header_entries(struct safetensors *s, struct shard *f, const json_t *root,
                           uint64_t data, struct err *e)
{
    const char *name;
    json_t *v;
    f->first = s->n;
    json_object_foreach((json_t *)root, name, v) {
        if (!strcmp(name, "__metadata__")) {
            if (!check_metadata(f, v, e))
                return false;
            continue;
        }
        struct st_entry *x = entry_room(s);
        if (!entry_read(f, name, v, data, x, e))
            return false;
        x->shard = (int)(f - s->shard);
        s->n++;
        f->n++;
    }
    return check_tiling(s, f, data, e);
}

/* Whether the file lacks its end: what its entries span is as much as they hold. Entries that are
 * not as they should be say nothing here. */
static bool is_cut(const struct shard *f, const json_t *root, uint64_t data, struct err *e)
{
    uint64_t end = 0, sum = 0;
    const char *name;
    json_t *v;
    json_object_foreach((json_t *)root, name, v) {
        const json_t *o = json_object_get(v, "data_offsets");
        json_int_t a = json_integer_value(json_array_get(o, 0));
        json_int_t z = json_integer_value(json_array_get(o, 1));
        if (a < 0 || z < a || __builtin_add_overflow(sum, (uint64_t)(z - a), &sum))
            return false;
        end = (uint64_t)z > end ? (uint64_t)z : end;
    }
    if (sum != end || end <= f->size - data)
        return false;
    err_file(e, f->path, "has %" PRIu64 " bytes of %" PRIu64 ": its end is missing, as after a "
             "download that was cut off", f->size, data + end);
    return true;
}

/* Whether the file has another content than its name says. */
static bool is_mistaken(const struct shard *f, struct err *e)
{
    char head[64];
    size_t n = f->size < sizeof head ? f->size : sizeof head;
    return pread_fully(f->fd, head, n, 0) == (ptrdiff_t)n && err_mistaken(e, f->path, head, n);
}

/* Checks rule (1), parses the header and reads its entries. */
static bool header_read(struct safetensors *s, struct shard *f, struct err *e)
{
    uint8_t raw[8];
    const char *at = f->path;
    if (is_mistaken(f, e))
        return false;
    if (f->size < 8)
        return err_file(e, at, "%" PRIu64 " bytes are too few for a safetensors file", f->size);
    if (!shard_pread(f, raw, 8, 0, e))
        return false;
    uint64_t n = little(raw, sizeof raw);
    if (n > MAX_HEADER || n > f->size - 8 || n < 2)
        return err_file(e, at, "the header claims %" PRIu64 " bytes, expected 2 to %" PRIu64, n,
                        f->size - 8 < MAX_HEADER ? f->size - 8 : MAX_HEADER);
    FREED(free_at) char *text = xmalloc(n);
    if (!shard_pread(f, text, n, 8, e))
        return false;
    size_t used = n;
    while (used && text[used - 1] == ' ')
        used--;
    if (text[0] != '{' || text[used - 1] != '}')
        return err_file(e, at, "the header is not a JSON object from its first byte to its last "
                        "(only spaces may follow)");
    FREED(json_decrefp) json_t *root = json_read(text, used, HEADER_DEPTH, at, e);
    return root && !is_cut(f, root, 8 + n, e) && header_entries(s, f, root, 8 + n, e);
}

bool shard_open(struct safetensors *s, struct shard *f, struct err *e)
{
    if (!open_regular(f->path, &f->fd, &f->size, e))
        return false;
    posix_fadvise(f->fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    return header_read(s, f, e);
}
