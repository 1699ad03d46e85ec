/* json.h - writes JSON into a buffer, value by value.
 *
 * Commas come by themselves: a value or key puts one in front unless it stands first. The result is
 * one line of ASCII: everything else is escaped, invalid UTF-8 becomes U+FFFD, so no byte of it can
 * act on a terminal. Numbers that JSON does not have (NaN, infinities) become null.
 */
#ifndef AERIE_REPL_JSON_H
#define AERIE_REPL_JSON_H

#include "kernels/base.h"

void jput_open(struct buf *b, char bracket);  /* '{' or '[' */
void jput_close(struct buf *b, char bracket); /* '}' or ']' */
void jput_key(struct buf *b, const char *key);
void jput_str(struct buf *b, const char *s); /* NULL: null */
void jput_strn(struct buf *b, const char *s, size_t n);
void jput_int(struct buf *b, int64_t v);
void jput_real(struct buf *b, double v);
void jput_bool(struct buf *b, bool v);
void jput_null(struct buf *b);
void jput_raw(struct buf *b, const char *json); /* a value that is JSON already; its line ends go */

/* key and value at once */
void jput_kstr(struct buf *b, const char *key, const char *s);
void jput_kint(struct buf *b, const char *key, int64_t v);
void jput_kreal(struct buf *b, const char *key, double v);
void jput_kbool(struct buf *b, const char *key, bool v);

#endif
