/* print.c - see print.h. */
#include "repl/text/print.h"

#include <math.h>

#include "kernels/fields.h"

static bool is_unknown(const struct field *f)
{
    return strchr("fge", f->conv) ? isnan(f->f)
           : strchr("diux", f->conv) && f->mark == ':' && f->i == f->none;
}

/* Appends a value as its conversion says. */
static void add_field(struct buf *out, const struct field *f)
{
    char spec[16];
    int n = f->precision; /* negative: as if there were none */
    snprintf(spec, sizeof spec, "%%%s*.*%s%c", f->flags, strchr("diux", f->conv) ? "ll" : "",
             f->conv);
    if (f->conv == '%')
        buf_char(out, '%');
    else if (strchr("fge", f->conv))
        buf_printf(out, spec, max_int(f->width, 0), n, f->f);
    else if (f->conv == 's')
        buf_printf(out, spec, max_int(f->width, 0), n, f->s);
    else
        buf_printf(out, spec, max_int(f->width, 0), n, (long long)f->i);
}

/* Appends the text and empties it. */
static void flush(const struct printer *o, enum style st, struct buf *text)
{
    sheet_addn(o->out, st, buf_text(text), text->n);
    buf_clear(text);
}

/* Appends what people see: all but what stands between "\f"s. Returns whether this is anything. */
static bool add_text(const struct printer *o, enum style st, const char *fmt, va_list ap)
{
    struct values v;
    struct field f;
    FREED(buf_free) struct buf text = {0};
    bool hidden = false, any = false;
    va_copy(v.ap, ap);
    while (*fmt) {
        size_t n = strcspn(fmt, "%\f\v");
        if (n && !hidden)
            buf_add(&text, fmt, n);
        any |= !hidden && (n || fmt[n] == '%');
        fmt += n;
        if (*fmt == '%') {
            fmt = field_next(fmt, &v, &f);
            if (!hidden && is_unknown(&f)) {
                flush(o, st, &text);
                buf_printf(&text, "%*s", max_int(f.width, 0), "-");
                flush(o, ST_DIM, &text);
            } else if (!hidden) {
                add_field(&text, &f);
            }
        } else if (*fmt == '\v') {
            flush(o, st, &text);
            st = ST_TEXT;
            fmt++;
        } else if (*fmt) {
            hidden = !hidden;
            fmt++;
        }
    }
    va_end(v.ap);
    if (any) /* else not even an empty line begins */
        flush(o, st, &text);
    return any;
}

/* record: JSON gets an object of its own. line: text ends its line. */
static void print_args(const struct printer *o, enum style st, const char *fmt, va_list ap,
                       bool record, bool line)
{
    if (o->json) {
        if (record)
            jput_open(o->json, '{');
        jput_vfields(o->json, fmt, ap);
        if (record)
            jput_close(o->json, '}');
    } else if (add_text(o, st, fmt, ap) && line) {
        sheet_line(o->out);
    }
}

void print_line(const struct printer *o, enum style st, const char *fmt, ...)
{
    WITH_ARGS(ap, fmt, print_args(o, st, fmt, ap, true, true));
}

void print_facts(const struct printer *o, enum style st, const char *fmt, ...)
{
    WITH_ARGS(ap, fmt, print_args(o, st, fmt, ap, false, true));
}

void print_add(const struct printer *o, enum style st, const char *fmt, ...)
{
    WITH_ARGS(ap, fmt, print_args(o, st, fmt, ap, false, false));
}

void print_note(const struct printer *o, enum style st, const char *fmt, ...)
{
    WITH_ARGS(ap, fmt, if (!o->json && add_text(o, st, fmt, ap)) sheet_line(o->out));
}

void print_text(const struct printer *o, enum style st, const char *text)
{
    if (!o->json)
        say_text(o->out, st, text);
}

void print_ready(const struct printer *o, const char *text)
{
    if (o->json)
        jput_raw(o->json, text);
    else
        say_text(o->out, ST_TEXT, text);
}

void print_tab(const struct printer *o, int column)
{
    if (!o->json)
        sheet_tab(o->out, column);
}

void print_end(const struct printer *o)
{
    if (!o->json)
        sheet_line(o->out);
}

/* Whether a value for programs follows; its key is written. */
static bool value(const struct printer *o, const char *key)
{
    if (o->json && key)
        jput_key(o->json, key);
    return o->json;
}

void print_open(const struct printer *o, const char *key, char bracket)
{
    if (value(o, key))
        jput_open(o->json, bracket);
}

void print_body(const struct printer *o, enum style st, const char *key, const struct buf *text)
{
    if (value(o, key))
        jput_strn(o->json, buf_text(text), text->n);
    else
        sheet_lines(o->out, st, text->p, text->n);
}

void print_none(const struct printer *o, const char *key)
{
    if (value(o, key))
        jput_null(o->json);
}

void print_real(const struct printer *o, const char *key, double v)
{
    if (value(o, key))
        jput_real(o->json, v);
}

void print_int(const struct printer *o, const char *key, int64_t v)
{
    if (value(o, key))
        jput_int(o->json, v);
}

void print_str(const struct printer *o, const char *key, const char *s)
{
    if (value(o, key))
        jput_str(o->json, s);
}

void print_ints(const struct printer *o, const char *key, const int32_t *v, int n)
{
    if (value(o, key))
        jput_ints(o->json, v, n);
}

void print_close(const struct printer *o, char bracket)
{
    if (o->json)
        jput_close(o->json, bracket);
}

struct print_in print_enter(const struct printer *o, const char *key, char bracket)
{
    print_open(o, key, bracket);
    return (struct print_in){o, bracket == '{' ? '}' : ']'};
}

void print_leave(struct print_in *in)
{
    print_close(in->o, in->end);
}
