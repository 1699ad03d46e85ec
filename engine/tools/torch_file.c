/* torch_file.c - see torch_file.h. */
#include "engine/tools/torch_file.h"

#include <errno.h>
#include <inttypes.h>
#include <unistd.h>

#include <sys/stat.h>

#include "engine/tools/pickle.h"
#include "kernels/ascii.h"
#include "models/checkpoint/json.h"
#include "models/models.h"

enum {
    MOST_MEMBERS = 1 << 20,
    DIRECTORY_BYTES = 256 << 20,
    END_BYTES = 22, /* of the record at the end of an archive */
    HEAD_BYTES = 46, LOCAL_BYTES = 30,
    MOST_COMMENT = 65535,
    MOST_DEPTH = 12,
    MOST_VISITS = 1 << 20, /* values that are looked at: a list may hold a list twice */
};

struct member {
    const char *name; /* in the directory; n bytes */
    size_t n;
    uint64_t at, size, header; /* of its bytes; of its local header */
    uint32_t crc;
};

struct torch_storage {
    const struct member *member;
    int64_t count;
    enum dtype type; /* DT_OTHER: not read */
    const char *type_name;
    int size; /* bytes of an element */
};

struct torch_file {
    char *path;
    int fd;
    uint64_t size;
    struct safetensors *st; /* instead of what follows */
    uint8_t *directory;
    struct member *member; /* (n_member) by name */
    int n_member;
    char *pickled;
    struct pickle pickle;
    struct torch_storage *storage;
    int n_storage, visits;
    struct torch_entry *entry;
    int n;
    int loaded; /* the storage whose bytes are in `bytes`, or -1 */
    uint8_t *bytes;
};

static bool get(const struct torch_file *f, void *dst, uint64_t n, uint64_t at, struct err *e)
{
    if (at > f->size || n > f->size - at)
        return err_file(e, f->path,
                        "bytes %" PRIu64 " to %" PRIu64 " are not in the file of %" PRIu64, at,
                        at + n, f->size);
    ptrdiff_t got = pread_fully(f->fd, dst, (size_t)n, at);
    return got == (ptrdiff_t)n ||
           err_file(e, f->path, "cannot read: %s", got < 0 ? strerror(errno) : "it became shorter");
}

/* ---- the archive ----------------------------------------------------------------------------- */

struct end {
    uint64_t n, bytes, at; /* of the directory: entries, size, offset */
};

/* The 64-bit numbers of the record before the end record, where a number there does not fit. */
static bool end64(const struct torch_file *f, uint64_t at, struct end *d, struct err *e)
{
    uint8_t locator[20], record[56];
    if (at < sizeof locator || !get(f, locator, sizeof locator, at - sizeof locator, e))
        return at >= sizeof locator
                   ? false
                   : err_file(e, f->path, "the archive's end lacks its 64-bit part");
    if (little(locator, 4) != 0x07064b50 || !get(f, record, sizeof record, little(locator + 8, 8),
                                                 e) || little(record, 4) != 0x06064b50)
        return err_file(e, f->path, "the archive's end lacks its 64-bit part");
    *d = (struct end){little(record + 32, 8), little(record + 40, 8), little(record + 48, 8)};
    return true;
}

static bool find_end(const struct torch_file *f, struct end *d, struct err *e)
{
    uint8_t tail[END_BYTES + MOST_COMMENT];
    size_t n = f->size < sizeof tail ? (size_t)f->size : sizeof tail;
    if (n < END_BYTES)
        return err_file(e, f->path, "too short for an archive of torch.save()");
    if (!get(f, tail, n, f->size - n, e))
        return false;
    size_t at = n - END_BYTES;
    while (at > 0 && !(little(tail + at, 4) == 0x06054b50 &&
                       little(tail + at + 20, 2) == n - END_BYTES - at))
        at--;
    const uint8_t *p = tail + at;
    if (little(p, 4) != 0x06054b50)
        return err_file(e, f->path,
                        "no zip archive as torch.save() writes it (older files of torch are none: "
                        "save it again, or as safetensors)");
    *d = (struct end){little(p + 10, 2), little(p + 12, 4), little(p + 16, 4)};
    if (d->n == 0xffff || d->bytes == 0xffffffff || d->at == 0xffffffff)
        return end64(f, f->size - n + at, d, e);
    return true;
}

/* The 64-bit sizes and offset of a directory entry, in its extra field. */
static void widen(const uint8_t *extra, size_t n, uint64_t *stored, uint64_t *size, uint64_t *at)
{
    for (size_t i = 0; n - i >= 4;) {
        size_t len = (size_t)little(extra + i + 2, 2), k = i + 4;
        if (len > n - k)
            return;
        uint64_t *const wide[] = {size, stored, at};
        for (int w = 0; little(extra + i, 2) == 1 && w < 3; w++)
            if (*wide[w] == 0xffffffff && k + 8 <= i + 4 + len) {
                *wide[w] = little(extra + k, 8);
                k += 8;
            }
        i += 4 + len;
    }
}

static bool read_member(const struct torch_file *f, const uint8_t *p, size_t left,
                        struct member *m, size_t *used, struct err *e)
{
    if (left < HEAD_BYTES || little(p, 4) != 0x02014b50)
        return err_file(e, f->path, "the archive's directory is damaged");
    size_t n = (size_t)little(p + 28, 2), extra = (size_t)little(p + 30, 2);
    *used = HEAD_BYTES + n + extra + (size_t)little(p + 32, 2);
    if (*used > left)
        return err_file(e, f->path, "the archive's directory is damaged");
    uint64_t stored = little(p + 20, 4), method = little(p + 10, 2), flags = little(p + 8, 2);
    *m = (struct member){.name = (const char *)p + HEAD_BYTES, .n = n, .size = little(p + 24, 4),
                         .header = little(p + 42, 4), .crc = (uint32_t)little(p + 16, 4)};
    widen(p + HEAD_BYTES + n, extra, &stored, &m->size, &m->header);
    if (method != 0 || stored != m->size)
        return err_file(e, f->path,
                        "a member is compressed (method %d); torch.save() stores them, and nothing "
                        "else is read",
                        (int)method);
    return !(flags & 1) || err_file(e, f->path, "a member is encrypted");
}

static int by_name(const void *a, const void *b)
{
    const struct member *x = a, *y = b;
    int c = memcmp(x->name, y->name, x->n < y->n ? x->n : y->n);
    return c ? c : (x->n > y->n) - (x->n < y->n);
}

static int by_place(const void *a, const void *b)
{
    const struct member *x = a, *y = b;
    return (x->header > y->header) - (x->header < y->header);
}

/* Finds where the members' bytes lie: within the file before the directory, each behind the
 * other. */
static bool place_members(struct torch_file *f, uint64_t directory, struct err *e)
{
    uint64_t end = 0;
    qsort(f->member, (size_t)f->n_member, sizeof *f->member, by_place);
    FOR_EACH(struct member, m, f->member, f->n_member) {
        uint8_t local[LOCAL_BYTES];
        if (!get(f, local, sizeof local, m->header, e))
            return false;
        m->at = m->header + LOCAL_BYTES + little(local + 26, 2) + little(local + 28, 2);
        if (little(local, 4) != 0x04034b50 || m->header < end || m->at > directory ||
            m->size > directory - m->at)
            return err_file(e, f->path, "members of the archive overlap, or lie outside of it");
        end = m->at + m->size;
    }
    qsort(f->member, (size_t)f->n_member, sizeof *f->member, by_name);
    for (int i = 1; i < f->n_member; i++)
        if (by_name(&f->member[i - 1], &f->member[i]) == 0)
            return err_file(e, f->path, "two members of the archive have one name");
    return true;
}

static bool read_directory(struct torch_file *f, struct err *e)
{
    struct end d;
    if (!find_end(f, &d, e))
        return false;
    if (d.n > MOST_MEMBERS || d.bytes > DIRECTORY_BYTES || d.n > d.bytes / HEAD_BYTES)
        return err_file(e, f->path,
                        "the archive's end claims %" PRIu64 " members in %" PRIu64 " bytes", d.n,
                        d.bytes);
    if (d.at > f->size || d.bytes > f->size - d.at)
        return err_file(e, f->path, "the archive's directory lies outside of the file");
    f->directory = xmalloc((size_t)d.bytes + 1);
    f->member = xcalloc((size_t)d.n + 1, sizeof *f->member);
    if (!get(f, f->directory, d.bytes, d.at, e))
        return false;
    for (size_t at = 0, used = 0; f->n_member < (int)d.n; at += used)
        if (!read_member(f, f->directory + at, (size_t)d.bytes - at, &f->member[f->n_member++],
                         &used, e))
            return false;
    return place_members(f, d.at, e);
}

/* The member FOLDER/NAME; NULL: there is none. */
static const struct member *find_member(const struct torch_file *f, const char *folder,
                                        size_t n_folder, const char *name, size_t n)
{
    FREED(free_at) char *full = xmalloc(n_folder + n + 1);
    memcpy(full, folder, n_folder);
    memcpy(full + n_folder, name, n);
    struct member key = {.name = full, .n = n_folder + n};
    int at = FIRST_NOT(i, f->n_member, by_name(&f->member[i], &key) < 0);
    bool found = at < f->n_member && by_name(&key, &f->member[at]) == 0;
    return found ? &f->member[at] : NULL;
}

static bool read_bytes(const struct torch_file *f, const struct member *m, void *dst,
                       struct err *e)
{
    if (!get(f, dst, m->size, m->at, e))
        return false;
    return crc32_of(dst, (size_t)m->size) == m->crc ||
           err_file(e, f->path, "%.*s is damaged, or was saved without checksums",
                    (int)(m->n < 80 ? m->n : 80), m->name);
}

/* ---- tensors --------------------------------------------------------------------------------- */

static const struct {
    const char *storage, *name;
    enum dtype type;
    int size;
} kinds[] = {
    {"torch FloatStorage", "float32", DT_F32, 4}, {"torch HalfStorage", "float16", DT_F16, 2},
    {"torch BFloat16Storage", "bfloat16", DT_BF16, 2},
    {"torch DoubleStorage", "float64", DT_OTHER, 8}, {"torch LongStorage", "int64", DT_I64, 8},
    {"torch IntStorage", "int32", DT_I32, 4}, {"torch ShortStorage", "int16", DT_I16, 2},
    {"torch CharStorage", "int8", DT_I8, 1}, {"torch ByteStorage", "uint8", DT_U8, 1},
    {"torch BoolStorage", "bool", DT_BOOL, 1},
    {"torch.storage UntypedStorage", "a type of 8 bits or less", DT_OTHER, 1},
};

static bool read_storage(struct torch_file *f, const struct pickle_value *v, const char *folder,
                         size_t n_folder, struct torch_storage *s, struct err *e)
{
    const struct pickle *p = &f->pickle;
    const struct pickle_value *type = pickle_item(p, v, 0), *key = pickle_item(p, v, 1);
    size_t k = 0, n_kinds = LEN(kinds);
    while (k < n_kinds && !pickle_is(type, kinds[k].storage))
        k++;
    if (k == n_kinds)
        return err_file(e, f->path, "a storage of %.60s", type->s);
    FREED(free_at) char *name = xasprintf("data/%.*s", (int)key->n, key->s);
    *s = (struct torch_storage){.member = find_member(f, folder, n_folder, name, strlen(name)),
                                .count = pickle_item(p, v, 2)->i, .type = kinds[k].type,
                                .type_name = kinds[k].name, .size = kinds[k].size};
    bool ok = s->member || err_file(e, f->path, "there is no member %.60s for a tensor", name);
    if (ok && (uint64_t)s->count > s->member->size / (uint64_t)s->size)
        return err_file(e, f->path,
                        "a storage claims %" PRId64 " elements of %s, its member has %" PRIu64
                        " bytes",
                        s->count, s->type_name, s->member->size);
    return ok;
}

/* Sizes and strides: every element within the storage. */
static bool read_shape(const struct torch_file *f, const struct pickle_value *v,
                       const struct torch_storage *s, struct torch_entry *t, struct err *e)
{
    const struct pickle *p = &f->pickle;
    const struct pickle_value *dim = pickle_item(p, v, 2), *stride = pickle_item(p, v, 3);
    int64_t last = t->first = pickle_item(p, v, 1)->i, step;
    t->count = 1;
    if (dim->n_item > TENSOR_DIMS)
        return err_file(e, f->path, "tensor %.80s has %d dimensions; at most %d are read", t->name,
                        dim->n_item, TENSOR_DIMS);
    t->n_dim = dim->n_item;
    for (int i = 0; i < t->n_dim; i++) {
        t->dim[i] = pickle_item(p, dim, i)->i;
        t->stride[i] = pickle_item(p, stride, i)->i;
        if (t->dim[i] < 0 || t->stride[i] < 0 ||
            __builtin_mul_overflow(t->count, t->dim[i], &t->count))
            return err_file(e, f->path, "tensor %.80s has a shape or strides that are no sizes",
                            t->name);
        if (t->dim[i] == 1)
            t->stride[i] = 0; /* no element is reached by it */
    }
    for (int i = 0; t->count > 0 && i < t->n_dim; i++)
        if (__builtin_mul_overflow(t->dim[i] - 1, t->stride[i], &step) ||
            __builtin_add_overflow(last, step, &last))
            return err_file(e, f->path, "tensor %.80s has strides beyond 64 bits", t->name);
    if (t->first < 0 || (t->count > 0 && last >= s->count))
        return err_file(e, f->path,
                        "tensor %.80s ends at element %" PRId64 " of a storage of %" PRId64,
                        t->name, last, s->count);
    /* strides of 0 repeat elements: no tensor may be larger than a file could make it */
    if (t->count > (int64_t)f->size)
        return err_file(e, f->path,
                        "tensor %.80s repeats elements to %" PRId64
                        ", more than the file has bytes",
                        t->name, t->count);
    return true;
}

static struct torch_entry *new_entry(struct torch_file *f, const struct buf *name)
{
    struct torch_entry *t = APPEND(f->entry, f->n);
    *t = (struct torch_entry){.name = xstrdup(buf_text(name)), .storage = -1};
    return t;
}

static void put_printable(struct buf *out, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        buf_char(out, s[i] < ' ' || s[i] > '~' ? '?' : s[i]);
}

static bool add_tensor(struct torch_file *f, const struct pickle_value *v, const struct buf *name,
                       const char *folder, size_t n_folder, struct err *e)
{
    struct torch_storage s;
    struct torch_entry *t = new_entry(f, name);
    if (!read_storage(f, pickle_item(&f->pickle, v, 0), folder, n_folder, &s, e) ||
        !read_shape(f, v, &s, t, e))
        return false;
    t->type = s.type;
    t->type_name = v->n_item > 4 ? pickle_item(&f->pickle, v, 4)->s : s.type_name;
    t->storage = f->n_storage;
    *APPEND(f->storage, f->n_storage) = s;
    return true;
}

/* Adds the tensors and texts of a value, and of what it holds. */
static bool add_values(struct torch_file *f, const struct pickle_value *v, struct buf *name,
                       const char *folder, size_t n_folder, int depth, struct err *e)
{
    const struct pickle *p = &f->pickle;
    size_t before = name->n;
    if (++f->visits > MOST_VISITS || depth > MOST_DEPTH || f->n == TORCH_ENTRIES ||
        name->n > 4096)
        return err_file(e, f->path, "more than %d values, or values deeper than %d",
                        (int)TORCH_ENTRIES, MOST_DEPTH);
    if (v->kind == PK_TENSOR)
        return add_tensor(f, v, name, folder, n_folder, e);
    if (v->kind == PK_TEXT) {
        FREED(buf_free) struct buf text = {0};
        put_printable(&text, v->s, v->n);
        new_entry(f, name)->text = xstrdup(buf_text(&text));
    }
    bool dict = v->kind == PK_DICT, ok = true;
    for (int i = 0; ok && (dict || v->kind == PK_LIST) && i < v->n_item; i += 1 + dict) {
        const struct pickle_value *key = pickle_item(p, v, i);
        if (dict && key->kind != PK_TEXT)
            continue; /* no tensor of a dump has another key */
        if (before)
            buf_char(name, '.');
        if (dict)
            put_printable(name, key->s, key->n);
        else
            buf_printf(name, "%d", i);
        ok = add_values(f, pickle_item(p, v, i + dict), name, folder, n_folder, depth + 1, e);
        name->n = before;
        if (name->p)
            name->p[before] = '\0';
    }
    return ok;
}

static int by_entry(const void *a, const void *b)
{
    return strcmp(((const struct torch_entry *)a)->name, ((const struct torch_entry *)b)->name);
}

static bool read_archive(struct torch_file *f, struct err *e)
{
    static const char data[] = "/data.pkl";
    const struct member *m = NULL;
    if (!read_directory(f, e))
        return false;
    for (int i = 0; i < f->n_member && !m; i++)
        if (f->member[i].n > strlen(data) &&
            !memcmp(f->member[i].name + f->member[i].n - strlen(data), data, strlen(data)))
            m = &f->member[i];
    if (!m)
        return err_file(e, f->path, "the archive has no data.pkl: torch.save() did not write it");
    if (m->size > PICKLE_BYTES)
        return err_file(e, f->path, "data.pkl has %" PRIu64 " bytes; at most %d are read", m->size,
                        (int)PICKLE_BYTES);
    size_t n_folder = m->n - strlen("data.pkl");
    const struct member *order = find_member(f, m->name, n_folder, "byteorder", 9);
    char little[6] = "";
    if (order && (order->size != 6 || !read_bytes(f, order, little, e) ||
                  memcmp(little, "little", 6) != 0))
        return err_file(e, f->path, "it was saved on a machine with the other byte order");
    f->pickled = xmalloc((size_t)m->size + 1);
    if (!read_bytes(f, m, f->pickled, e))
        return false;
    if (!pickle_read(&f->pickle, (const uint8_t *)f->pickled, (size_t)m->size, e))
        return err_prefix(e, "%.150s", f->path);
    FREED(buf_free) struct buf name = {0};
    return add_values(f, &f->pickle.v[f->pickle.root], &name, m->name, n_folder, 0, e);
}

/* The same of a safetensors file. */
static void list_safetensors(struct torch_file *f)
{
    for (int i = 0; i < st_count(f->st); i++) {
        const struct tensor *t = st_at(f->st, i);
        struct buf name = {0};
        put_printable(&name, t->name, strlen(t->name));
        struct torch_entry *x = new_entry(f, &name);
        buf_free(&name);
        bool all = t->n_dim <= TENSOR_DIMS;
        x->type = all ? t->type : DT_OTHER;
        x->type_name = all ? dtype_name(t->type) : "of more than 8 dimensions";
        x->n_dim = min_int(t->n_dim, TENSOR_DIMS);
        x->storage = i;
        x->count = 1;
        for (int k = 0; k < x->n_dim; k++) {
            x->dim[k] = t->dim[k];
            x->count *= x->type == DT_OTHER ? 0 : t->dim[k];
        }
        int64_t step = 1;
        for (int k = x->n_dim - 1; k >= 0; k--) {
            x->stride[k] = step;
            step *= x->count ? t->dim[k] : 0;
        }
    }
}

struct torch_file *torch_open(const char *path, struct err *e)
{
    struct torch_file *f = xcalloc(1, sizeof *f);
    struct stat st;
    struct buf name = {0};
    put_printable(&name, path, strlen(path));
    f->path = xstrdup(buf_text(&name));
    buf_free(&name);
    f->loaded = f->fd = -1;
    bool ok, safe = ends_with(path, ".safetensors");
    if (safe) {
        f->st = st_open(path, e);
        ok = f->st != NULL;
        if (ok)
            list_safetensors(f);
    } else {
        f->fd = file_open_regular(path, e);
        ok = f->fd >= 0 && (fstat(f->fd, &st) == 0 || err_file(e, f->path, "%s", strerror(errno)));
        f->size = ok ? (uint64_t)st.st_size : 0;
        ok = ok && read_archive(f, e);
    }
    if (!ok) {
        torch_close(f);
        return NULL;
    }
    if (f->n)
        qsort(f->entry, (size_t)f->n, sizeof *f->entry, by_entry);
    return f;
}

void torch_close(struct torch_file *f)
{
    if (!f)
        return;
    if (f->fd >= 0)
        close(f->fd);
    st_close(f->st);
    for (int i = 0; i < f->n; i++)
        FREE(f->entry[i].name, f->entry[i].text);
    pickle_free(&f->pickle);
    FREE(f->pickled, f->directory, f->member, f->storage, f->entry, f->bytes, f->path, f);
}

int torch_count(const struct torch_file *f) { return f->n; }
const struct torch_entry *torch_at(const struct torch_file *f, int i) { return &f->entry[i]; }

const struct torch_entry *torch_find(const struct torch_file *f, const char *name)
{
    struct torch_entry key = {.name = (char *)(uintptr_t)name};
    return f->n ? bsearch(&key, f->entry, (size_t)f->n, sizeof *f->entry, by_entry) : NULL;
}

/* ---- elements -------------------------------------------------------------------------------- */

/* Reads the storage of a tensor, unless its bytes are there already. */
static bool load(struct torch_file *f, const struct torch_entry *t, struct err *e)
{
    if (f->loaded >= 0 && !f->st &&
        f->storage[f->loaded].member == f->storage[t->storage].member)
        return true;
    if (f->st && f->loaded == t->storage)
        return true;
    uint64_t n = f->st ? st_at(f->st, t->storage)->bytes : f->storage[t->storage].member->size;
    free(f->bytes);
    f->bytes = xmalloc((size_t)n + 1);
    f->loaded = -1;
    if (f->st ? !st_read(f->st, st_at(f->st, t->storage), f->bytes, e)
              : !read_bytes(f, f->storage[t->storage].member, f->bytes, e))
        return false;
    f->loaded = t->storage;
    return true;
}

enum { LARGE = 64 << 20 }; /* bytes of a storage that is not read as a whole */

/* Whether the elements follow each other in the storage, so that some of them can be read alone. */
static bool follow_on(const struct torch_entry *t)
{
    int64_t step = 1;
    for (int k = t->n_dim - 1; k >= 0; k--) {
        if (t->dim[k] != 1 && t->stride[k] != step)
            return false;
        step *= t->dim[k];
    }
    return true;
}

/* Bytes of n elements from element `skip` on of a large storage, in f->bytes, without the check of
 * its CRC, which all of it would have to be read for. *base: where in the storage they begin. */
static bool load_part(struct torch_file *f, const struct torch_entry *t, int64_t skip, int64_t n,
                      int64_t *base, struct err *e)
{
    const struct member *m = f->storage[t->storage].member;
    size_t size = dtype_size(t->type);
    *base = t->first + skip;
    free(f->bytes);
    f->bytes = xmalloc((size_t)n * size + 1);
    f->loaded = -1;
    return get(f, f->bytes, (uint64_t)n * size, m->at + (uint64_t)*base * size, e);
}

static float as_float(const uint8_t *p, enum dtype type)
{
    float x;
    if (type == DT_BF16)
        return bf16_to_f32((uint16_t)little(p, 2));
    if (type == DT_F16)
        return f16_to_f32((uint16_t)little(p, 2));
    memcpy(&x, p, sizeof x);
    return x;
}

static int64_t as_whole(const uint8_t *p, enum dtype type)
{
    int bytes = (int)dtype_size(type);
    uint64_t v = little(p, bytes);
    if (type != DT_U8 && type != DT_BOOL && bytes < 8 && v >> (8 * bytes - 1))
        v |= ~UINT64_C(0) << (8 * bytes);
    return (int64_t)v;
}

/* Visits n elements from element `skip` on, in row-major order. */
static bool each(struct torch_file *f, const struct torch_entry *t, int64_t skip, int64_t n,
                 float *floats, int64_t *wholes, struct err *e)
{
    CHECK(skip >= 0 && n >= 0 && n <= t->count && skip <= t->count - n);
    bool real = t->type == DT_F32 || t->type == DT_F16 || t->type == DT_BF16;
    bool whole = t->type >= DT_I64 && t->type <= DT_BOOL;
    if (t->text || (floats ? !real : !whole))
        return err_file(e, f->path, "%.80s is %s; expected %s numbers",
                        t->name[0] ? t->name : "the value", t->text ? "a text" : t->type_name,
                        floats ? "float32, float16 or bfloat16" : "whole");
    if (n == 0)
        return true;
    int64_t at[TENSOR_DIMS] = {0}, from = t->first, base = 0;
    bool part = !f->st && f->storage[t->storage].member->size > LARGE && follow_on(t);
    if (part ? !load_part(f, t, skip, n, &base, e) : !load(f, t, e))
        return false;
    size_t size = dtype_size(t->type);
    for (int k = t->n_dim - 1; k >= 0; k--) {
        at[k] = skip % t->dim[k];
        skip /= t->dim[k];
        from += at[k] * t->stride[k];
    }
    for (int64_t i = 0; i < n; i++) {
        const uint8_t *p = f->bytes + (size_t)(from - base) * size;
        if (floats)
            floats[i] = as_float(p, t->type);
        if (wholes)
            wholes[i] = as_whole(p, t->type);
        for (int k = t->n_dim - 1; k >= 0; k--) {
            from += t->stride[k];
            if (++at[k] < t->dim[k])
                break;
            from -= at[k] * t->stride[k];
            at[k] = 0;
        }
    }
    return true;
}

bool torch_floats(struct torch_file *f, const struct torch_entry *t, int64_t skip, int64_t n,
                  float *dst, struct err *e)
{
    return each(f, t, skip, n, dst, NULL, e);
}

bool torch_wholes(struct torch_file *f, const struct torch_entry *t, int64_t *dst, struct err *e)
{
    return each(f, t, 0, t->count, NULL, dst, e);
}
