/* json.h - writes JSON into a buffer, value by value.
 *
 * Commas are written by these functions: a value or key writes one first, unless it is the first in
 * its array or object or on a new line of the buffer. The result is one line of ASCII: other
 * characters are escaped and invalid UTF-8 becomes U+FFFD, so no byte of the result can act on a
 * terminal. Numbers that JSON does not have (NaN, infinities) become null. Any thread.
 */
#pragma once

#include "kernels/base.h"

void jput_open(struct buf *b, char bracket);  /* '{' or '[' */
void jput_close(struct buf *b, char bracket); /* '}' or ']' */
/* jput_open() or jput_kopen() whose jput_close() comes where the block is left. */
#define JPUT_IN(b, bracket)                                                                        \
    FREED(jput_leave) struct jput_in OF_LINE(in_) = jput_enter(b, NULL, bracket)
#define JPUT_KIN(b, key, bracket)                                                                  \
    FREED(jput_leave) struct jput_in OF_LINE(in_) = jput_enter(b, key, bracket)
struct jput_in {
    struct buf *b;
    char end;
};
struct jput_in jput_enter(struct buf *b, const char *key, char bracket); /* key NULL: none */
void jput_leave(struct jput_in *in);
void jput_key(struct buf *b, const char *key);
void jput_str(struct buf *b, const char *s); /* NULL: null */
bool jput_strn(struct buf *b, const char *s, size_t n); /* false: invalid UTF-8 was replaced */
void jput_int(struct buf *b, int64_t v);
void jput_wide(struct buf *b, int64_t v);    /* beyond 2^53, where readers would round: a string */
void jput_digest(struct buf *b, uint64_t v); /* a string of 16 hexadecimal digits */
void jput_ints(struct buf *b, const int32_t *v, int n);       /* an array */
void jput_hex(struct buf *b, const void *p, size_t n);        /* a string of 2 n digits */
void jput_real(struct buf *b, double v);
void jput_bool(struct buf *b, bool v);
void jput_null(struct buf *b);
void jput_raw(struct buf *b, const char *json); /* a value that is JSON already; its line ends go */

/* Members of an object, the named values of a format (fields.h): "%d{turn}%s{phase}%.3g{ms}".
 * Values are written in full: precision and width do not count, except in "%.*s", a string of so
 * many bytes. "%d{ok?}" is a boolean, "%d{page:0}" is null where the value is 0, "%016lx{digest}"
 * is jput_digest(). Other values and text are left out. */
void jput_fields(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void jput_vfields(struct buf *b, const char *fmt, va_list ap);
/* The same as an object of its own. */
void jput_record(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* key and value at once */
void jput_kopen(struct buf *b, const char *key, char bracket);
void jput_kstr(struct buf *b, const char *key, const char *s);
void jput_kint(struct buf *b, const char *key, int64_t v);
void jput_kints(struct buf *b, const char *key, const int32_t *v, int n);
void jput_kreal(struct buf *b, const char *key, double v);
void jput_kbool(struct buf *b, const char *key, bool v);
