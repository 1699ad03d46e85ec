/* fields.h - the values of a printf format that gives them names: "step %d{step}: %.1f{ms} ms".
 *
 * Behind a conversion, {name} names the value, {name?} says that it is a boolean, and {name:0} that
 * 0 stands for "not known". The compiler checks the types of the values, since printf prints the
 * names as they are.
 */
#pragma once

#include "kernels/base.h"

struct values {
    va_list ap;
};

/* One conversion of a format, and its value. */
struct field {
    char name[48], mark; /* mark: '?', ':' (`none` stands for "not known"), or 0 */
    char conv;           /* d i u x c: i; f g e: f; s: s; '%': a percent sign */
    int64_t i, none;
    double f;
    const char *s;
    int width, precision; /* -1: the format gives none */
    bool counted;         /* "%.*s": s has `precision` bytes */
    char flags[6];
};

/* Reads the conversion that begins at fmt, a "%", with its name, and takes its value. Returns what
 * follows. */
const char *field_next(const char *fmt, struct values *v, struct field *f);
