/* json.c - see json.h. */
#include "kernels/json.h"

#include <math.h>

#include "kernels/fields.h"
#include "kernels/utf8.h"

static void separate(struct buf *b)
{
    char last = b->n ? b->p[b->n - 1] : '\n';
    if (!strchr("{[:\n", last))
        buf_char(b, ',');
}

void jput_open(struct buf *b, char bracket)
{
    separate(b);
    buf_char(b, bracket);
}

void jput_close(struct buf *b, char bracket)
{
    buf_char(b, bracket);
}

struct jput_in jput_enter(struct buf *b, const char *key, char bracket)
{
    if (key)
        jput_key(b, key);
    jput_open(b, bracket);
    return (struct jput_in){b, bracket == '{' ? '}' : ']'};
}

void jput_leave(struct jput_in *in)
{
    jput_close(in->b, in->end);
}

static void put_escaped(struct buf *b, uint32_t c)
{
    static const char plain[] = "\"\\\b\f\n\r\t", letter[] = "\"\\bfnrt";
    const char *at = c && c < 128 ? strchr(plain, (int)c) : NULL;
    if (at)
        buf_printf(b, "\\%c", letter[at - plain]);
    else if (c >= 0x20 && c < 0x7F)
        buf_char(b, (char)c);
    else if (c < 0x10000)
        buf_printf(b, "\\u%04x", (unsigned)c);
    else
        buf_printf(b, "\\u%04x\\u%04x", (unsigned)(0xD800 + ((c - 0x10000) >> 10)),
                   (unsigned)(0xDC00 + ((c - 0x10000) & 0x3FF)));
}

static bool needs_no_escape(char c)
{
    return c >= 0x20 && c < 0x7F && c != '"' && c != '\\';
}

bool jput_strn(struct buf *b, const char *s, size_t n)
{
    bool valid = true;
    separate(b);
    buf_char(b, '"');
    for (size_t i = 0; i < n;) {
        uint32_t c;
        size_t run = i;
        while (run < n && needs_no_escape(s[run]))
            run++;
        buf_add(b, s + i, run - i);
        i = run;
        if (i == n)
            break;
        size_t k = utf8_char(s + i, n - i, &c);
        if (k == 0) {
            k = utf8_invalid(s + i, n - i, NULL);
            c = 0xFFFD;
            valid = false;
        }
        put_escaped(b, c);
        i += k;
    }
    buf_char(b, '"');
    return valid;
}

void jput_str(struct buf *b, const char *s)
{
    if (s)
        jput_strn(b, s, strlen(s));
    else
        jput_null(b);
}

void jput_key(struct buf *b, const char *key)
{
    jput_str(b, key);
    buf_char(b, ':');
}

void jput_int(struct buf *b, int64_t v)
{
    separate(b);
    buf_printf(b, "%lld", (long long)v);
}

void jput_wide(struct buf *b, int64_t v)
{
    bool wide = v > (INT64_C(1) << 53) || v < -(INT64_C(1) << 53);
    separate(b);
    buf_printf(b, wide ? "\"%lld\"" : "%lld", (long long)v);
}

void jput_digest(struct buf *b, uint64_t v)
{
    separate(b);
    buf_printf(b, "\"%016llx\"", (unsigned long long)v);
}

void jput_ints(struct buf *b, const int32_t *v, int n)
{
    jput_open(b, '[');
    for (int i = 0; i < n; i++)
        jput_int(b, v[i]);
    jput_close(b, ']');
}

void jput_hex(struct buf *b, const void *p, size_t n)
{
    separate(b);
    buf_char(b, '"');
    buf_hex(b, p, n);
    buf_char(b, '"');
}

void jput_real(struct buf *b, double v)
{
    separate(b);
    if (isfinite(v))
        buf_printf(b, "%.9g", v);
    else
        buf_str(b, "null");
}

void jput_bool(struct buf *b, bool v)
{
    separate(b);
    buf_str(b, v ? "true" : "false");
}

void jput_null(struct buf *b)
{
    separate(b);
    buf_str(b, "null");
}

void jput_raw(struct buf *b, const char *json)
{
    separate(b);
    for (; *json; json++) /* strings hold no raw line ends: these stand between values */
        buf_char(b, *json == '\n' || *json == '\r' ? ' ' : *json);
}

/* A member of an object, by its type. */
#define MEMBER(type, value)                                             \
    void jput_k##type(struct buf *b, const char *key, value v)          \
    {                                                                   \
        jput_key(b, key);                                               \
        jput_##type(b, v);                                              \
    }
MEMBER(str, const char *)
MEMBER(int, int64_t)
MEMBER(real, double)
MEMBER(bool, bool)
MEMBER(open, char)

void jput_kints(struct buf *b, const char *key, const int32_t *v, int n)
{
    jput_key(b, key);
    jput_ints(b, v, n);
}

/* ---- members by a format --------------------------------------------------------------------- */

static void put_field(struct buf *b, const struct field *f)
{
    jput_key(b, f->name);
    if (f->mark == ':' && f->i == f->none)
        jput_null(b);
    else if (f->mark == '?')
        jput_bool(b, f->i);
    else if (f->conv == 's' && f->counted)
        jput_strn(b, f->s, (size_t)f->precision);
    else if (f->conv == 's')
        jput_str(b, f->s);
    else if (f->conv == 'x')
        jput_digest(b, (uint64_t)f->i);
    else if (strchr("fge", f->conv))
        jput_real(b, f->f);
    else
        jput_int(b, f->i);
}

void jput_vfields(struct buf *b, const char *fmt, va_list ap)
{
    struct values v;
    struct field f;
    va_copy(v.ap, ap);
    while ((fmt = strchr(fmt, '%'))) {
        fmt = field_next(fmt, &v, &f);
        if (f.name[0])
            put_field(b, &f);
    }
    va_end(v.ap);
}

void jput_fields(struct buf *b, const char *fmt, ...)
{
    WITH_ARGS(ap, fmt, jput_vfields(b, fmt, ap));
}

void jput_record(struct buf *b, const char *fmt, ...)
{
    jput_open(b, '{');
    WITH_ARGS(ap, fmt, jput_vfields(b, fmt, ap));
    jput_close(b, '}');
}
