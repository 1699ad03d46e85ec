/* json.c - see json.h. */
#include "models/checkpoint/json.h"
#include "kernels/json_read.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { MAX_CONFIG_BYTES = 16 << 20 };

/* ---- text for messages ---- */

static struct shown shown_bytes(const char *text, size_t n)
{
    struct shown out;
    size_t i;
    for (i = 0; i < n; i++)
        out.s[i] = (unsigned char)text[i] < 0x20 || text[i] == 0x7f ? '?' : text[i];
    out.s[i] = '\0';
    return out;
}

struct shown show(const char *text)
{
    size_t n = strlen(text), room = sizeof(struct shown) - 4;
    if (n <= room)
        return shown_bytes(text, n);
    struct shown out = shown_bytes(text, room);
    memcpy(out.s + room, "...", 4);
    return out;
}

struct shown show_path(const char *path)
{
    size_t n = strlen(path), room = sizeof(struct shown) - 4;
    if (n <= room)
        return shown_bytes(path, n);
    struct shown out = shown_bytes(path + n - room, room);
    memcpy(out.s, "...", 3);
    return out;
}

/* ---- parsing ---- */

struct span {
    size_t at, n;
};

/* Result of a scan over the bytes before parsing: where the nesting exceeds its limit (the parser
 * is recursive, so depth is bounded before it runs), and the last key that begins before `stop`, in
 * the top object and at any depth, for messages. */
struct scan {
    size_t too_deep; /* n: nowhere */
    struct span top, key;
};

static struct scan scan_until(const char *p, size_t n, size_t stop, int max_depth)
{
    struct scan s = {.too_deep = n};
    int depth = 0;
    for (size_t i = 0; i < n && i < stop; i++) {
        if (p[i] == '"') {
            size_t from = ++i;
            while (i < n && p[i] != '"')
                i += p[i] == '\\' ? 2 : 1;
            size_t after = i + 1;
            while (after < n && strchr(" \t\r\n", p[after]) && p[after])
                after++;
            if (after < n && p[after] == ':')
                s.key = (struct span){from, i - from};
            if (depth == 1)
                s.top = s.key;
        } else if (p[i] == '{' || p[i] == '[') {
            if (++depth > max_depth) {
                s.too_deep = i;
                return s;
            }
        } else if (p[i] == '}' || p[i] == ']') {
            depth--;
        }
    }
    return s;
}

static struct shown shown_span(const char *bytes, struct span s)
{
    return shown_bytes(bytes + s.at, s.n < 120 ? s.n : 120);
}

static bool parse_error(const char *bytes, const struct scan *s, const char *file, int line,
                        const char *what, struct err *e)
{
    struct shown at = show_path(file), top = shown_span(bytes, s->top);
    err_set(e, ERR_MODEL, "%s: line %d is not valid JSON: %.100s", at.s, line, what);
    struct shown key = shown_span(bytes, s->key);
    size_t n = e ? strlen(e->msg) : 0;
    if (e && s->key.n && s->key.at != s->top.at)
        snprintf(e->msg + n, sizeof e->msg - n, ", at or after key \"%s\" of \"%s\"", key.s, top.s);
    else if (e && s->key.n)
        snprintf(e->msg + n, sizeof e->msg - n, ", at or after key \"%s\"", key.s);
    return false;
}

json_t *json_read(const char *bytes, size_t n, int max_depth, const char *file, struct err *e)
{
    struct scan s = scan_until(bytes, n, n, max_depth);
    if (s.too_deep < n) {
        char what[64];
        snprintf(what, sizeof what, "nested deeper than %d levels", max_depth);
        parse_error(bytes, &s, file, 1, what, e);
        return NULL;
    }
    json_error_t je;
    json_t *root = json_parse(bytes, n, JSON_REJECT_DUPLICATES, &je);
    if (!root && json_error_code(&je) == json_error_out_of_memory) {
        err_set(e, ERR_MODEL, "%s: line %d: %s", show_path(file).s, je.line, je.text);
        return NULL;
    }
    if (!root) {
        size_t stop = je.position > 0 ? (size_t)je.position : 0;
        s = scan_until(bytes, n, stop, max_depth);
        parse_error(bytes, &s, file, je.line, show(je.text).s, e);
        return NULL;
    }
    if (!json_is_object(root)) {
        json_decref(root);
        err_set(e, ERR_MODEL, "%s: not a JSON object", show_path(file).s);
        return NULL;
    }
    return root;
}

json_t *json_open(const char *path, bool *absent, struct err *e)
{
    if (absent) {
        *absent = access(path, F_OK) != 0 && errno == ENOENT;
        if (*absent)
            return NULL;
    }
    struct buf b;
    if (!buf_read_file(&b, path, MAX_CONFIG_BYTES, e)) {
        if (e)
            e->kind = ERR_MODEL;
        return NULL;
    }
    json_t *root = json_read(b.p, b.n, JSON_DEPTH, path, e);
    buf_free(&b);
    return root;
}

/* ---- one object of a config ---- */

bool conf_refuse(const struct conf *c, const char *key, const char *fmt, ...)
{
    struct conf_file *f = c->file;
    if (f->bad)
        return false;
    f->bad = true;
    char what[300];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    return err_set(f->e, ERR_MODEL, "%s: %s%s %s", show_path(f->path).s, c->at, show(key).s, what);
}

bool conf_sees(const struct conf *c, const char *key)
{
    if (!c->keys)
        return true;
    CHECK(key_decides(key));
    for (const char *const *k = c->keys; *k; k++)
        if (!strcmp(*k, key))
            return true;
    return false;
}

const json_t *conf_value(const struct conf *c, const char *key)
{
    const json_t *v = conf_sees(c, key) ? json_object_get(c->obj, key) : NULL;
    return v && !json_is_null(v) ? v : NULL;
}

bool conf_has(const struct conf *c, const char *key)
{
    return conf_value(c, key) != NULL;
}

bool conf_is_null(const struct conf *c, const char *key)
{
    return conf_sees(c, key) && json_is_null(json_object_get(c->obj, key));
}

bool conf_enter(const struct conf *c, const char *key, struct conf *out)
{
    const json_t *v = conf_value(c, key);
    if (!v)
        return false;
    if (!json_is_object(v))
        return conf_refuse(c, key, "is not an object");
    struct conf in = {.obj = v, .file = c->file};
    snprintf(in.at, sizeof in.at, "%.60s%.30s.", c->at, key);
    *out = in; /* out may be c */
    return true;
}

int conf_int(const struct conf *c, const char *key, int64_t dflt, int min, int max)
{
    const json_t *v = conf_value(c, key);
    if (!v && dflt != CONF_NEEDED)
        return (int)dflt;
    if (!v)
        return conf_refuse(c, key, "is missing"), min;
    if (!json_is_integer(v)) {
        if (json_is_real(v))
            conf_refuse(c, key, "is %g, expected an integer", json_real_value(v));
        else
            conf_refuse(c, key, "is not a number, expected an integer");
        return min;
    }
    json_int_t n = json_integer_value(v);
    if (n < min || n > max)
        return conf_refuse(c, key, "is %lld, expected %d to %d", (long long)n, min, max), min;
    return (int)n;
}

double conf_num(const struct conf *c, const char *key, double dflt, double min, double max)
{
    const json_t *v = conf_value(c, key);
    if (!v && !isnan(dflt))
        return dflt;
    if (!v)
        return conf_refuse(c, key, "is missing"), min;
    if (!json_is_number(v))
        return conf_refuse(c, key, "is not a number"), min;
    double x = json_number_value(v);
    if (!(x >= min && x <= max))
        return conf_refuse(c, key, "is %g, expected %g to %g", x, min, max), min;
    return x;
}

bool conf_bool(const struct conf *c, const char *key, bool dflt)
{
    const json_t *v = conf_value(c, key);
    if (!v)
        return dflt;
    if (!json_is_boolean(v))
        return conf_refuse(c, key, "is neither true nor false"), dflt;
    return json_is_true(v);
}

const char *conf_str(const struct conf *c, const char *key, const char *dflt)
{
    const json_t *v = conf_value(c, key);
    if (!v)
        return dflt;
    if (!json_is_string(v))
        return conf_refuse(c, key, "is not a string"), dflt;
    return json_string_value(v);
}

int conf_ints(const struct conf *c, const char *key, int64_t *v, int max)
{
    const json_t *j = conf_value(c, key);
    size_t n = !j ? 0 : json_is_array(j) ? json_array_size(j) : 1;
    if (n > (size_t)max)
        return conf_refuse(c, key, "has %zu entries, expected at most %d", n, max), 0;
    for (size_t i = 0; i < n; i++) {
        const json_t *x = json_is_array(j) ? json_array_get(j, i) : j;
        if (!json_is_integer(x))
            return conf_refuse(c, key, "is not an integer or a list of integers"), 0;
        v[i] = json_integer_value(x);
    }
    return (int)n;
}
