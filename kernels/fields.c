/* fields.c - see fields.h. */
#include "kernels/fields.h"

static int64_t integer(char conv, int longs, bool size, struct values *v)
{
    if (size)
        return (int64_t)va_arg(v->ap, size_t);
    if (longs == 2)
        return va_arg(v->ap, long long);
    if (longs == 1)
        return va_arg(v->ap, long);
    return conv == 'u' || conv == 'x' ? (int64_t)va_arg(v->ap, unsigned) : va_arg(v->ap, int);
}

/* Digits, or "*" for the next value; -1: neither. */
static const char *number(const char *p, struct values *v, int *n)
{
    if (*p == '*') {
        *n = va_arg(v->ap, int);
        return p + 1;
    }
    size_t digits = strspn(p, "0123456789");
    *n = digits ? (int)strtol(p, NULL, 10) : -1;
    return p + digits;
}

/* The "{name}" behind a conversion, if there is one. */
static const char *name_of(const char *p, struct field *f)
{
    if (*p != '{')
        return p;
    size_t whole = strcspn(++p, "}"), n = strcspn(p, "?:}");
    CHECK(p[whole] == '}' && n < sizeof f->name);
    memcpy(f->name, p, n);
    f->mark = n < whole ? p[n] : '\0';
    if (f->mark == ':')
        f->none = strtoll(p + n + 1, NULL, 10);
    return p + whole + 1;
}

const char *field_next(const char *fmt, struct values *v, struct field *f)
{
    const char *p = fmt + 1;
    size_t flags = strspn(p, "-+ #0");
    *f = (struct field){.precision = -1};
    CHECK(flags < sizeof f->flags);
    memcpy(f->flags, p, flags);
    p = number(p + flags, v, &f->width);
    if (*p == '.') {
        f->counted = p[1] == '*';
        p = number(p + 1, v, &f->precision);
    }
    size_t longs = strspn(p, "l"), size = strspn(p, "z");
    p += longs + size;
    f->conv = *p++;
    if (f->conv == '%')
        return p;
    if (strchr("diuxc", f->conv))
        f->i = integer(f->conv, (int)longs, size > 0, v);
    else if (strchr("fge", f->conv))
        f->f = va_arg(v->ap, double);
    else if (f->conv == 's')
        f->s = va_arg(v->ap, const char *);
    else
        CHECK(!"a conversion without a value");
    return name_of(p, f);
}
