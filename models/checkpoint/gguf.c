/* gguf.c - see gguf.h.
 *
 * A file is, little-endian and without padding: "GGUF", the version, the numbers of tensors and of
 * keys; for each key its name, the type of its value and the value; for each tensor its name,
 * shape, type and offset; zeros up to a multiple of the alignment; the data. A string is its length
 * in 64 bits and its bytes.
 *
 * The header is read with pread() in pieces as far as it has been understood, so no memory is
 * allocated because of a number that a file merely states.
 */
#include "models/checkpoint/gguf.h"

#include "kernels/packed.h"
#include "models/checkpoint/json.h"

#include <errno.h>
#include <inttypes.h>
#include <unistd.h>

enum {
    PIECE = 1 << 20,
    MAX_KEYS = 1 << 16,
    MAX_TENSORS = 1 << 20,
    MAX_PARTS = 512,
    MAX_KEY = 1 << 10,
    MAX_ELEMENTS = 1 << 24,
    KEY_BYTES = 13,
    TENSOR_BYTES = 24, /* the fewest bytes of an entry */
};

/* ---- types of tensors ---- */

/* DT_NONE: not read. */
static const enum dtype types[GGUF_TYPES] = {
    [GGUF_F32] = DT_F32,       [GGUF_F16] = DT_F16,       [GGUF_BF16] = DT_BF16,
    [GGUF_I8] = DT_I8,         [GGUF_I16] = DT_I16,       [GGUF_I32] = DT_I32,
    [GGUF_I64] = DT_I64,       [GGUF_Q4_0] = DT_Q4_0,     [GGUF_Q4_1] = DT_Q4_1,
    [GGUF_Q5_0] = DT_Q5_0,     [GGUF_Q5_1] = DT_Q5_1,     [GGUF_Q8_0] = DT_Q8_0,
    [GGUF_Q2_K] = DT_Q2_K,     [GGUF_Q3_K] = DT_Q3_K,     [GGUF_Q4_K] = DT_Q4_K,
    [GGUF_Q5_K] = DT_Q5_K,     [GGUF_Q6_K] = DT_Q6_K,     [GGUF_IQ4_NL] = DT_IQ4_NL,
    [GGUF_IQ4_XS] = DT_IQ4_XS, [GGUF_MXFP4] = DT_MXFP4,   [GGUF_NVFP4] = DT_NVFP4,
};

/* The names of types that are not read. */
static const char *const others[GGUF_TYPES] = {
    [9] = "Q8_1",   [15] = "Q8_K",  [16] = "IQ2_XXS", [17] = "IQ2_XS", [18] = "IQ3_XXS",
    [19] = "IQ1_S", [21] = "IQ3_S", [22] = "IQ2_S",   [28] = "F64",    [29] = "IQ1_M",
    [34] = "TQ1_0", [35] = "TQ2_0", [41] = "Q1_0",    [42] = "Q2_0",
};

/* ---- reading the header ---- */

/* Reads on until n bytes from f->pos are in memory. what: for the message. */
static bool need(struct gguf_file *f, uint64_t n, const char *what, struct err *e)
{
    if (n <= f->n_head - f->pos)
        return true;
    if (n > f->size - f->pos)
        return err_file(e, f->path, "%s needs %" PRIu64 " bytes from byte %zu on, but the file "
                        "ends at byte %" PRIu64, what, n, f->pos, f->size);
    if (f->pos + n > GGUF_HEADER) /* no overflow: a file has at most 2^63 bytes */
        return err_file(e, f->path, "%s makes its header larger than %d MB", what,
                        GGUF_HEADER >> 20);
    uint64_t to = f->pos + n + PIECE;
    if (to > f->size)
        to = f->size;
    RESERVE(f->head, (size_t)to, f->room);
    ptrdiff_t got = pread_fully(f->fd, f->head + f->n_head, (size_t)to - f->n_head, f->n_head);
    if (got < 0)
        return err_file(e, f->path, "cannot read: %s", strerror(errno));
    f->n_head += (size_t)got;
    return n <= f->n_head - f->pos ||
           err_file(e, f->path, "ends at byte %zu while its header is read (did it shrink?)",
                    f->n_head);
}

static bool take_number(struct gguf_file *f, int bytes, uint64_t *v, const char *what,
                        struct err *e)
{
    if (!need(f, (uint64_t)bytes, what, e))
        return false;
    *v = little(f->head + f->pos, bytes);
    f->pos += (size_t)bytes;
    return true;
}

/* Takes a string; *at is the place of its bytes. */
static bool take_string(struct gguf_file *f, size_t *at, uint64_t *n, const char *what,
                        struct err *e)
{
    if (!take_number(f, 8, n, what, e) || !need(f, *n, what, e))
        return false;
    *at = f->pos;
    f->pos += (size_t)*n;
    return true;
}

/* ---- metadata of one file ---- */

static bool take_array(struct gguf_file *f, struct gguf_entry *x, const char *what, struct err *e)
{
    uint64_t type;
    if (!take_number(f, 4, &type, what, e) || !take_number(f, 8, &x->n, what, e))
        return false;
    if (type >= N_VALUES || type == V_ARRAY)
        return err_file(e, f->path, "%s is an array of %s", what,
                        type == V_ARRAY ? "arrays, which aerie does not read" : "an unknown type");
    x->array = true;
    x->type = (enum value_type)type;
    x->at = f->pos;
    uint64_t left = f->size - f->pos, least = type == V_STRING ? 8
                    : (uint64_t)gguf_values[type].bytes;
    if (x->n > left / least)
        return err_file(e, f->path,
                        "%s has %" PRIu64 " elements, but %" PRIu64 " bytes of the file are left",
                        what, x->n, left);
    if (x->n > MAX_ELEMENTS)
        return err_file(e, f->path, "%s has %" PRIu64 " elements, expected at most %d", what, x->n,
                        MAX_ELEMENTS);
    if (type != V_STRING) {
        bool ok = need(f, x->n * least, what, e);
        f->pos += ok ? (size_t)(x->n * least) : 0;
        return ok;
    }
    for (uint64_t i = 0, n; i < x->n; i++) {
        size_t at;
        if (!take_string(f, &at, &n, what, e))
            return false;
    }
    return true;
}

static bool take_value(struct gguf_file *f, uint64_t type, struct gguf_entry *x, struct err *e)
{
    char what[200];
    uint64_t n;
    snprintf(what, sizeof what, "key %s", show(f->head + x->key).s);
    if (type == V_ARRAY)
        return take_array(f, x, what, e);
    if (type >= N_VALUES)
        return err_file(e, f->path, "%s has a value of the unknown type %" PRIu64, what, type);
    x->type = (enum value_type)type;
    x->n = 1;
    x->at = f->pos;
    if (type == V_STRING)
        return take_string(f, &(size_t){0}, &n, what, e);
    return take_number(f, gguf_values[type].bytes, &n, what, e);
}

static bool take_entry(struct gguf_file *f, int i, struct gguf_entry *x, struct err *e)
{
    char what[40];
    uint64_t n, type;
    snprintf(what, sizeof what, "key number %d", i + 1);
    if (!take_string(f, &x->key, &n, what, e) || !take_number(f, 4, &type, what, e))
        return false;
    if (n > MAX_KEY || !name_is_plain(f->head + x->key, (size_t)n))
        return err_file(e, f->path, "%s is empty, has control characters or more than %d bytes",
                        what, MAX_KEY);
    f->head[x->key + n] = '\0'; /* over the type, which has been read */
    return take_value(f, type, x, e);
}

static _Thread_local const char *sort_head;

static int by_key(const void *a, const void *b)
{
    return strcmp(sort_head + ((const struct gguf_entry *)a)->key,
                  sort_head + ((const struct gguf_entry *)b)->key);
}

/* Reads the metadata of a file into a new array, ordered by key. */
static bool take_entries(struct gguf_file *f, uint64_t n, struct gguf_entry **out, struct err *e)
{
    uint64_t left = f->size - f->pos;
    if (n > left / KEY_BYTES || n > MAX_KEYS)
        return err_file(e, f->path, "claims %" PRIu64 " keys, expected at most %" PRIu64, n,
                        left / KEY_BYTES < MAX_KEYS ? left / KEY_BYTES : (uint64_t)MAX_KEYS);
    struct gguf_entry *x = *out = xcalloc((size_t)n, sizeof *x);
    for (int i = 0; i < (int)n; i++)
        if (!take_entry(f, i, &x[i], e))
            return false;
    sort_head = f->head;
    if (n)
        qsort(x, (size_t)n, sizeof *x, by_key);
    for (int i = 1; i < (int)n; i++)
        if (!by_key(&x[i - 1], &x[i]))
            return err_file(e, f->path, "key %s is there twice", show(f->head + x[i].key).s);
    return true;
}

/* ---- tensors of one file ---- */

__attribute__((format(printf, 4, 5)))
static bool bad_tensor(const struct gguf_file *f, const struct gguf_tensor *t, struct err *e,
                       const char *fmt, ...)
{
    char what[240];
    PRINT_ARGS(what, fmt);
    return err_file(e, f->path, "tensor %s %s", show(t->name).s, what);
}

static bool read_type(const struct gguf_file *f, struct gguf_tensor *t, uint64_t type,
                      struct err *e)
{
    t->type = type < GGUF_TYPES ? types[type] : DT_NONE;
    if (t->type != DT_NONE)
        return true;
    if (type < GGUF_TYPES && others[type])
        return bad_tensor(f, t, e, "has type %s, which aerie does not read", others[type]);
    bool removed =
        type == 4 || type == 5 || (type >= 31 && type <= 33) || (type >= 36 && type <= 38);
    return bad_tensor(f, t, e, "has type %" PRIu64 ", which %s", type,
                      removed ? "was removed from the format" : "is unknown");
}

/* Computes t->bytes from the shape. */
static bool check_shape(const struct gguf_file *f, struct gguf_tensor *t, struct err *e)
{
    size_t bytes;
    long long row = (long long)t->dim[t->n_dim - 1];
    int block = dtype_packed(t->type) ? packed_format(t->type)->elements : 1;
    if (row % block)
        return bad_tensor(f, t, e,
                          "has rows of %lld elements, expected a multiple of %d, a block of %s",
                          row, block, dtype_name(t->type));
    for (int i = 0; i < t->n_dim; i++)
        if (t->dim[i] < 0)
            return bad_tensor(f, t, e, "has a negative dimension");
    if (!dtype_bytes_fit(t->type, t->n_dim, t->dim, &bytes) || bytes > INT64_MAX)
        return bad_tensor(f, t, e, "has a shape whose size in bytes overflows");
    t->bytes = bytes;
    return true;
}

static bool take_tensor(struct gguf_file *f, uint64_t i, struct gguf_tensor *t, struct err *e)
{
    char what[48];
    uint64_t n, v, type;
    size_t at;
    snprintf(what, sizeof what, "tensor number %" PRIu64, i + 1);
    if (!take_string(f, &at, &n, what, e))
        return false;
    if (n >= GGUF_NAME || !name_is_plain(f->head + at, (size_t)n))
        return err_file(e, f->path,
                        "the name of %s is empty, has control characters or more than %d bytes",
                        what, GGUF_NAME - 1);
    memcpy(t->name, f->head + at, (size_t)n);
    if (!take_number(f, 4, &v, what, e))
        return false;
    if (v < 1 || v > 4)
        return bad_tensor(f, t, e, "has %" PRIu64 " dimensions, expected 1 to 4", v);
    t->n_dim = (int)v;
    for (int k = t->n_dim - 1; k >= 0; k--) {
        if (!take_number(f, 8, &v, what, e))
            return false;
        t->dim[k] = (int64_t)v;
    }
    return take_number(f, 4, &type, what, e) && take_number(f, 8, &t->at, what, e) &&
           read_type(f, t, type, e) && check_shape(f, t, e);
}

static bool take_tensors(struct gguf *g, struct gguf_file *f, uint64_t n, struct err *e)
{
    uint64_t left = f->size - f->pos;
    uint64_t room = (uint64_t)(MAX_TENSORS - g->n_tensor); /* all parts have at most MAX_TENSORS */
    uint64_t most = left / TENSOR_BYTES < room ? left / TENSOR_BYTES : room;
    if (n > most)
        return err_file(e, f->path, "claims %" PRIu64 " tensors, expected at most %" PRIu64, n,
                        most);
    g->tensor = xrealloc(g->tensor, (size_t)g->n_tensor + (size_t)n, sizeof *g->tensor);
    for (uint64_t i = 0; i < n; i++) {
        struct gguf_tensor *t = &g->tensor[g->n_tensor];
        *t = (struct gguf_tensor){.file = (int)(f - g->file)};
        if (!take_tensor(f, i, t, e))
            return false;
        g->n_tensor++;
    }
    return true;
}

/* Tensors follow each other, each at the next multiple of the alignment; the last one may lack
 * what fills it up. Turns offsets into places in the file. */
static bool check_offsets(struct gguf *g, const struct gguf_file *f, int first, uint64_t align,
                          struct err *e)
{
    uint64_t data = (f->pos + align - 1) / align * align, at = 0;
    for (int i = first; i < g->n_tensor; i++) {
        struct gguf_tensor *t = &g->tensor[i];
        if (t->at != at)
            return bad_tensor(f, t, e, "starts at byte %" PRIu64 " of the data, expected %" PRIu64
                              ", where the one before ends", t->at, at);
        if (data > f->size || at > f->size - data || t->bytes > f->size - data - at)
            return bad_tensor(f, t, e, "has %" PRIu64 " bytes, but the file ends at byte %" PRIu64
                              " (is it complete?)", t->bytes, f->size);
        t->at += data;
        at += t->bytes;
        if (at % align)
            at += align - at % align; /* no overflow: both are at most the file's size or 2^32 */
    }
    return true;
}

/* ---- one file ---- */

static bool read_align(const struct gguf_file *f, const struct gguf_entry *x, int n,
                       uint64_t *align, struct err *e)
{
    const struct gguf_entry *a = gguf_entry(f, x, n, "general.alignment");
    *align = a && a->type == V_U32 && !a->array ? little(f->head + a->at, 4) : 0;
    if (!a)
        *align = 32;
    if (!*align || (*align & (*align - 1)))
        return err_file(e, f->path, "key general.alignment is not a power of two of type u32");
    return true;
}

static bool check_start(struct gguf_file *f, uint64_t *tensors, uint64_t *keys, struct err *e)
{
    uint64_t magic, version;
    if (!take_number(f, 4, &magic, "the beginning", e))
        return false;
    if (magic != 0x46554747) /* "GGUF" */
        return err_file(e, f->path, "does not begin with \"GGUF\"");
    if (!take_number(f, 4, &version, "the beginning", e))
        return false;
    if (version && !(version & 0xffff))
        return err_file(e, f->path, "is a big-endian file, which aerie does not read");
    if (version != 2 && version != 3)
        return err_file(e, f->path, "has version %" PRIu64 " of the format, expected 2 or 3",
                        version);
    if (!take_number(f, 8, tensors, "the beginning", e) ||
        !take_number(f, 8, keys, "the beginning", e))
        return false;
    if (*tensors > INT64_MAX || *keys > INT64_MAX)
        return err_file(e, f->path, "claims a negative number of %s",
                        *keys > INT64_MAX ? "keys" : "tensors");
    return true;
}

static struct gguf_file *file_add(struct gguf *g, char *path)
{
    struct gguf_file *f = APPEND(g->file, g->n_file);
    *f = (struct gguf_file){.path = path, .fd = -1};
    return f;
}

/* Reads the header of a new file, which takes over `path`. *entry: its metadata, which the caller
 * frees, also on failure. */
static bool file_read(struct gguf *g, char *path, struct gguf_entry **entry, int *n_entry,
                      struct err *e)
{
    uint64_t tensors = 0, keys = 0, align;
    struct gguf_file *f = file_add(g, path);
    int first = g->n_tensor;
    *entry = NULL;
    if (!open_regular(f->path, &f->fd, &f->size, e) || !check_start(f, &tensors, &keys, e) ||
        !take_entries(f, keys, entry, e))
        return false;
    *n_entry = (int)keys;
    return read_align(f, *entry, *n_entry, &align, e) && take_tensors(g, f, tensors, e) &&
           check_offsets(g, f, first, align, e);
}

/* ---- names of tensors ---- */

static _Thread_local const struct gguf_tensor *sort_tensor;

static int by_tensor_name(const void *a, const void *b)
{
    return strcmp(sort_tensor[*(const int *)a].name, sort_tensor[*(const int *)b].name);
}

static bool index_tensors(struct gguf *g, struct err *e)
{
    g->by_name = xcalloc((size_t)g->n_tensor, sizeof *g->by_name);
    for (int i = 0; i < g->n_tensor; i++)
        g->by_name[i] = i;
    sort_tensor = g->tensor;
    if (g->n_tensor)
        qsort(g->by_name, (size_t)g->n_tensor, sizeof *g->by_name, by_tensor_name);
    for (int i = 1; i < g->n_tensor; i++)
        if (!by_tensor_name(&g->by_name[i - 1], &g->by_name[i])) {
            const struct gguf_tensor *t = &g->tensor[g->by_name[i]];
            return bad_tensor(&g->file[t->file], t, e, "is there twice");
        }
    return true;
}

const struct gguf_tensor *gguf_find(const struct gguf *g, const char *name)
{
    int at = FIRST_NOT(i, g->n_tensor, strcmp(g->tensor[g->by_name[i]].name, name) < 0);
    const struct gguf_tensor *t = at < g->n_tensor ? &g->tensor[g->by_name[at]] : NULL;
    return t && !strcmp(t->name, name) ? t : NULL;
}

/* ---- parts ---- */

/* "...-00001-of-00003.gguf": the length before "-00001"; -1: the name has no such end. */
static int part_stem(const char *path, int no, int count)
{
    char end[40];
    int n = snprintf(end, sizeof end, "-%05d-of-%05d.gguf", no + 1, count);
    size_t len = strlen(path);
    return len >= (size_t)n && !strcmp(path + len - n, end) ? (int)len - n : -1;
}

/* The numbers that a part states about itself; a file that is no part is number 0 of 1. */
static bool read_split(struct gguf *g, int64_t *no, int64_t *count, struct err *e)
{
    *no = 0;
    *count = 1;
    return gguf_int(g, "split.count", 1, MAX_PARTS, count, e) &&
           gguf_int(g, "split.no", 0, *count - 1, no, e);
}

/* Opens part `no`, whose metadata count only as far as they say which part it is. */
static bool open_part(struct gguf *g, int stem, int no, int count, struct err *e)
{
    FREED(free_at) struct gguf_entry *entry = NULL;
    int n = 0;
    if (!file_read(g, xasprintf("%.*s-%05d-of-%05d.gguf", stem, g->file[0].path, no + 1, count),
                   &entry, &n, e))
        return false;
    const struct gguf_file *f = &g->file[g->n_file - 1];
    return (gguf_entry_int(f, gguf_entry(f, entry, n, "split.no")) == no &&
            gguf_entry_int(f, gguf_entry(f, entry, n, "split.count")) == count) ||
           err_file(e, f->path, "its split.no and split.count do not say that it is part %d of %d",
                    no + 1, count);
}

static bool open_parts(struct gguf *g, struct err *e)
{
    int64_t no, count, total = -1;
    if (!read_split(g, &no, &count, e))
        return false;
    if (count == 1)
        return true;
    const char *path = g->file[0].path;
    int stem = part_stem(path, (int)no, (int)count);
    if (no)
        return err_file(e, path,
                        "is part %lld of %lld of a model, expected the first part "
                        "(%s-00001-of-%05lld.gguf)",
                        (long long)no + 1, (long long)count, stem < 0 ? "NAME" : "...",
                        (long long)count);
    if (stem < 0)
        return err_file(e, path,
                        "is the first of %lld parts, expected a name that ends in "
                        "-00001-of-%05lld.gguf", (long long)count, (long long)count);
    for (int i = 1; i < count; i++)
        if (!open_part(g, stem, i, (int)count, e))
            return false;
    if (!gguf_int(g, "split.tensors.count", 0, INT64_MAX, &total, e))
        return false;
    return total < 0 || total == g->n_tensor ||
           gguf_refuse(g, "split.tensors.count", e, "is %lld, but the parts have %d tensors",
                       (long long)total, g->n_tensor);
}

/* ---- open and close ---- */

bool gguf_is(const char *path)
{
    char magic[4];
    FREED(fd_close) int fd = file_open_regular(path, NULL);
    return fd >= 0 && pread_fully(fd, magic, 4, 0) == 4 && !memcmp(magic, "GGUF", 4);
}

struct gguf *gguf_open(const char *path, struct err *e)
{
    struct gguf *g = xcalloc(1, sizeof *g);
    if (file_read(g, xstrdup(path), &g->entry, &g->n_entry, e) && open_parts(g, e) &&
        index_tensors(g, e))
        return g;
    gguf_close(g);
    return NULL;
}

void gguf_close(struct gguf *g)
{
    if (!g)
        return;
    for (int i = 0; i < g->n_file; i++) {
        if (g->file[i].fd >= 0)
            close(g->file[i].fd);
        FREE(g->file[i].path, g->file[i].head);
    }
    FREE(g->file, g->entry, g->tensor, g->by_name, g);
}

bool gguf_read(const struct gguf *g, const struct gguf_tensor *t, void *dst, struct err *e)
{
    const struct gguf_file *f = &g->file[t->file];
    ptrdiff_t n = pread_fully(f->fd, dst, (size_t)t->bytes, t->at);
    if (n < 0)
        return bad_tensor(f, t, e, "cannot be read: %s", strerror(errno));
    return (uint64_t)n == t->bytes || bad_tensor(f, t, e, "is not complete (did the file shrink?)");
}
