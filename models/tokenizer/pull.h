/* pull.h - a pull parser for JSON, used for the large parts of tokenizer.json.
 *
 * Jansson parses all other files; for a vocabulary of 200,000 tokens it would build two million
 * objects, which takes too long. This parser walks the text in place and allocates nothing: strings
 * point into the text, where escapes are decoded in place.
 * Only the first error is kept: later calls return false, and pull_failed() reports it.
 */
#pragma once

#include "kernels/base.h"

struct pull {
    char *begin, *p, *end;
    const char *bad; /* the error at p; NULL: none */
};

/* A string of the file: valid UTF-8, not NUL-terminated, valid as long as the file's buffer. */
struct pull_str {
    const char *s;
    size_t n;
};

/* Whether there was an error; sets *e to "FILE: TEXT at byte N" then. */
bool pull_failed(const struct pull *j, struct err *e, const char *file);

/* The kind of the next value, after white space: '{', '[', '"', '0' for a number, 't', 'f', 'n', or
 * 0 at the end or after an error. */
char pull_peek(struct pull *j);

/* Iterate over an object or array: `for (bool more = pull_open(j, '{'); more; more = pull_next(j,
 * '}'))`; in an object each member begins with pull_key(). */
bool pull_open(struct pull *j, char open);
bool pull_next(struct pull *j, char close);
bool pull_key(struct pull *j, struct pull_str *key);

bool pull_string(struct pull *j, struct pull_str *out);
bool pull_int(struct pull *j, int64_t *out); /* an integer of at most 2^53 in magnitude */
bool pull_bool(struct pull *j, bool *out);
/* Skips one value of at most 64 levels; *raw is its text. The value is not validated beyond finding
 * its end. */
bool pull_skip(struct pull *j, struct pull_str *raw);
bool pull_end(struct pull *j); /* whether only white space is left; else an error */

static inline bool pull_is(struct pull_str a, const char *b)
{
    return a.n == __builtin_strlen(b) && __builtin_memcmp(a.s, b, a.n) == 0;
}
