/* gguf_values.c - the values of a GGUF file's metadata by key and type; see gguf.h. */
#include <inttypes.h>
#include <math.h>

#include "models/checkpoint/gguf.h"
#include "models/checkpoint/json.h"

const struct value_kind gguf_values[N_VALUES] = {
    [V_U8] = {"u8", 1},       [V_I8] = {"i8", 1},     [V_U16] = {"u16", 2},
    [V_I16] = {"i16", 2},     [V_U32] = {"u32", 4},   [V_I32] = {"i32", 4},
    [V_F32] = {"f32", 4},     [V_BOOL] = {"bool", 1}, [V_STRING] = {"string", 0},
    [V_ARRAY] = {"array", 0}, [V_U64] = {"u64", 8},   [V_I64] = {"i64", 8},
    [V_F64] = {"f64", 8},
};

bool gguf_refuse(const struct gguf *g, const char *key, struct err *e, const char *fmt, ...)
{
    char what[240];
    PRINT_ARGS(what, fmt);
    return err_file(e, g->file[0].path, "key %s %s", show(key).s, what);
}

const struct gguf_entry *gguf_entry(const struct gguf_file *f, const struct gguf_entry *x, int n,
                                    const char *key)
{
    int at = FIRST_NOT(i, n, strcmp(f->head + x[i].key, key) < 0);
    return at < n && !strcmp(f->head + x[at].key, key) ? &x[at] : NULL;
}

static bool is_int(enum value_type t)
{
    return t != V_F32 && t != V_F64 && t != V_STRING && t != V_ARRAY;
}

/* Element i of integers, bools included. False: it does not fit. */
static bool int_at_place(const char *p, enum value_type t, int64_t *out)
{
    uint64_t v = little(p, gguf_values[t].bytes);
    switch (t) {
    case V_I8: *out = (int8_t)v; return true;
    case V_I16: *out = (int16_t)v; return true;
    case V_I32: *out = (int32_t)v; return true;
    case V_BOOL: *out = v != 0; return true;
    default: *out = (int64_t)v; return t != V_U64 || v <= INT64_MAX;
    }
}

int64_t gguf_entry_int(const struct gguf_file *f, const struct gguf_entry *x)
{
    int64_t v = -1;
    if (!x || x->array || !is_int(x->type) || !int_at_place(f->head + x->at, x->type, &v))
        return -1;
    return v;
}

static double real_at_place(const char *p, enum value_type t)
{
    uint64_t v = little(p, gguf_values[t].bytes);
    union {
        uint32_t u;
        float f;
    } x = {.u = (uint32_t)v};
    union {
        uint64_t u;
        double d;
    } y = {.u = v};
    return t == V_F32 ? (double)x.f : y.d;
}

static const struct gguf_entry *find_entry(const struct gguf *g, const char *key)
{
    return gguf_entry(&g->file[0], g->entry, g->n_entry, key);
}

static const char *entry_place(const struct gguf *g, const struct gguf_entry *x)
{
    return g->file[0].head + x->at;
}

static bool wrong_type(const struct gguf *g, const char *key, const struct gguf_entry *x,
                       const char *expected, struct err *e)
{
    return gguf_refuse(g, key, e, "is %s %s, expected %s", x->array ? "an array of" : "of type",
                       gguf_values[x->type].name, expected);
}

bool gguf_has(const struct gguf *g, const char *key)
{
    return find_entry(g, key) != NULL;
}

const char *gguf_key(const struct gguf *g, int i)
{
    return i < g->n_entry ? g->file[0].head + g->entry[i].key : NULL;
}

bool gguf_ints(const struct gguf *g, const char *key, int64_t min, int64_t max, int64_t **out,
               size_t *n, struct err *e)
{
    const struct gguf_entry *x = find_entry(g, key);
    if (!x)
        return true;
    if (!is_int(x->type))
        return wrong_type(g, key, x, "integers", e);
    int64_t *v = xcalloc((size_t)x->n, sizeof *v);
    const char *p = entry_place(g, x);
    for (uint64_t i = 0; i < x->n; i++, p += gguf_values[x->type].bytes)
        if (!int_at_place(p, x->type, &v[i]) || v[i] < min || v[i] > max) {
            free(v);
            return gguf_refuse(g, key, e, "has %" PRIu64 " at %" PRIu64 ", expected %lld to %lld",
                               little(p, gguf_values[x->type].bytes), i, (long long)min,
                               (long long)max);
        }
    *out = v;
    *n = (size_t)x->n;
    return true;
}

bool gguf_int(const struct gguf *g, const char *key, int64_t min, int64_t max, int64_t *out,
              struct err *e)
{
    const struct gguf_entry *x = find_entry(g, key);
    int64_t v = 0;
    if (!x)
        return true;
    if (x->array || !is_int(x->type))
        return wrong_type(g, key, x, "an integer", e);
    if (!int_at_place(entry_place(g, x), x->type, &v))
        return gguf_refuse(g, key, e, "is more than 2^63 - 1");
    if (v < min || v > max)
        return gguf_refuse(g, key, e, "is %lld, expected %lld to %lld", (long long)v,
                           (long long)min, (long long)max);
    *out = v;
    return true;
}

bool gguf_token_id(const struct gguf *g, const char *name, int64_t n, int *out, struct err *e)
{
    char key[64];
    int64_t id = -1;
    *out = -1;
    snprintf(key, sizeof key, "tokenizer.ggml.%s_token_id", name);
    if (gguf_int(g, key, UINT32_MAX, UINT32_MAX, &id, NULL) && id >= 0)
        return true;
    bool ok = gguf_int(g, key, 0, n - 1, &id, e);
    *out = ok ? (int)id : -1;
    return ok;
}

bool gguf_real(const struct gguf *g, const char *key, double *out, struct err *e)
{
    const struct gguf_entry *x = find_entry(g, key);
    if (!x)
        return true;
    if (x->array || (x->type != V_F32 && x->type != V_F64))
        return wrong_type(g, key, x, "a number of type f32 or f64", e);
    double v = real_at_place(entry_place(g, x), x->type);
    if (!isfinite(v))
        return gguf_refuse(g, key, e, "is not a finite number");
    *out = v;
    return true;
}

bool gguf_bool(const struct gguf *g, const char *key, bool *out, struct err *e)
{
    const struct gguf_entry *x = find_entry(g, key);
    if (!x)
        return true;
    if (x->array || x->type != V_BOOL)
        return wrong_type(g, key, x, "a bool", e);
    *out = *entry_place(g, x) != 0;
    return true;
}

bool gguf_reals(const struct gguf *g, const char *key, float **out, size_t *n, struct err *e)
{
    const struct gguf_entry *x = find_entry(g, key);
    if (!x)
        return true;
    if (x->type != V_F32 && x->type != V_F64)
        return wrong_type(g, key, x, "numbers of type f32 or f64", e);
    *out = xcalloc((size_t)x->n, sizeof **out);
    *n = (size_t)x->n;
    for (size_t i = 0; i < *n; i++)
        (*out)[i] = (float)real_at_place(entry_place(g, x) + i * (size_t)gguf_values[x->type].bytes,
                                         x->type);
    return true;
}

static struct gguf_text text_at(const char **p)
{
    struct gguf_text t = {*p + 8, (size_t)little(*p, 8)};
    *p = t.p + t.n;
    return t;
}

bool gguf_string(const struct gguf *g, const char *key, struct gguf_text *out, struct err *e)
{
    const struct gguf_entry *x = find_entry(g, key);
    if (!x)
        return true;
    if (x->array || x->type != V_STRING)
        return wrong_type(g, key, x, "a string", e);
    *out = text_at(&(const char *){entry_place(g, x)});
    return true;
}

bool gguf_strings(const struct gguf *g, const char *key, struct gguf_text **out, size_t *n,
                  struct err *e)
{
    const struct gguf_entry *x = find_entry(g, key);
    if (!x)
        return true;
    if (x->type != V_STRING)
        return wrong_type(g, key, x, "strings", e);
    *out = xcalloc((size_t)x->n, sizeof **out);
    *n = (size_t)x->n;
    const char *p = entry_place(g, x);
    for (size_t i = 0; i < *n; i++)
        (*out)[i] = text_at(&p);
    return true;
}

/* The bytes of a value: of an array, all its elements. */
static size_t value_bytes(const struct gguf *g, const struct gguf_entry *x)
{
    size_t n = (size_t)x->n * (size_t)gguf_values[x->type].bytes;
    if (x->type == V_STRING)
        for (uint64_t i = 0; i < x->n; i++)
            n += 8 + (size_t)little(entry_place(g, x) + n, 8);
    return n;
}

void gguf_digest(const struct gguf *g, const char *const *key, int n, char out[65])
{
    struct sha256 h;
    sha256_init(&h);
    for (int i = 0; i < n; i++) {
        const struct gguf_entry *x = find_entry(g, key[i]);
        if (!x)
            continue;
        FREED(free_at) char *head = xasprintf("%s %s %" PRIu64 "\n", key[i],
                                              gguf_values[x->type].name, x->n);
        sha256_add(&h, head, strlen(head));
        sha256_add(&h, entry_place(g, x), value_bytes(g, x));
    }
    sha256_end_hex(&h, out);
}
