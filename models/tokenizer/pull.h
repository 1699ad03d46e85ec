/* pull.h - a pull reader for the one large JSON file there is, tokenizer.json.
 *
 * Jansson reads every other file. Here it would build some two million objects for a 200,000-token
 * vocabulary, three times the wanted load time; this reader walks the text in place, allocates
 * nothing, and hands strings out as they lie (escapes are undone where they stand).
 * The first mistake sticks: everything after it returns false, and pull_failed() says what it was.
 */
#ifndef AERIE_TOKENIZER_PULL_H
#define AERIE_TOKENIZER_PULL_H

#include "kernels/base.h"

struct pull {
    char *begin, *p, *end;
    const char *bad; /* what is wrong at p; NULL: nothing yet */
};

/* A string of the file: bytes of valid UTF-8, not terminated, as long-lived as the file's. */
struct pull_str {
    const char *s;
    size_t n;
};

bool pull_failed(const struct pull *j, struct err *e, const char *file);

/* What begins at p: '{', '[', '"', '0' for a number, 't', 'f', 'n', or 0 at the end. */
char pull_peek(struct pull *j);

/* Walk an object or array: `for (bool more = pull_open(j, '{'); more; more = pull_next(j, '}'))`,
 * and in an object pull_key() first. */
bool pull_open(struct pull *j, char open);
bool pull_next(struct pull *j, char close);
bool pull_key(struct pull *j, struct pull_str *key);

bool pull_string(struct pull *j, struct pull_str *out);
bool pull_int(struct pull *j, int64_t *out); /* an integer of at most 2^53 */
bool pull_bool(struct pull *j, bool *out);
/* Passes over one value and says where it lies; nesting of at most 64. The value is checked only as
 * far as finding its end needs. */
bool pull_skip(struct pull *j, struct pull_str *raw);
bool pull_end(struct pull *j); /* nothing but white space is left */

static inline bool pull_is(struct pull_str a, const char *b)
{
    return a.n == __builtin_strlen(b) && __builtin_memcmp(a.s, b, a.n) == 0;
}

#endif
