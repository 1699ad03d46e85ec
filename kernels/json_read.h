/* json_read.h - the one place that has Jansson parse a text, and write one.
 *
 * Jansson takes up to 78 bytes of memory for a byte of text: an empty object, two bytes, is a table
 * of eight buckets. So the values of a text are counted before it is parsed, and a text whose
 * values would take more than JSON_FACTOR bytes of memory for each of its bytes, and JSON_SPARE
 * more, is refused. Texts that programs write take at most 23. Any thread.
 */
#pragma once

#include "kernels/base.h"

#include <jansson.h>

enum {
    JSON_FACTOR = 32,
    JSON_SPARE = 1 << 20, /* a small text is never refused */
};

/* json_loadb(), for a text that may be NULL if it has no bytes. NULL and *why (or NULL): it cannot
 * be parsed, its values are too many, or parsing was stopped; *why then names the line, and where
 * there are too many it has json_error_out_of_memory. */
json_t *json_parse(const char *text, size_t n, size_t flags, json_error_t *why);

/* The same for a file that Python wrote, in which no object may have a key twice, and whose
 * integers have any number of digits: one that 64 bits do not hold is a real number. (Tokenizers
 * without a longest text have a model_max_length of 10^30.) Of an error in a text with such
 * integers *why has the line, and a position that may be two bytes too far for each of them. */
json_t *json_parse_wide(const char *text, size_t n, json_error_t *why);

/* The text at a key of an object; "": there is none. */
static inline const char *json_str(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

/* From now on json_parse() on the calling thread ends soon after stop_asked(stop) becomes true.
 * NULL, the state of a new thread: nothing stops it. The caller keeps *stop alive until the next
 * call. */
void json_stop_on(const struct stop *stop);

/* A real number as Python writes it, at most 31 characters: the fewest digits that give it back,
 * with an exponent below 1e-4 and from 1e16 on. v is finite. */
void json_real_text(char s[32], double v);

/* json_dumps() of any value, but with reals as above, as the JSON of others has them: Jansson makes
 * 0.10000000000000001 of 0.1. NULL: v is. The caller frees it. */
char *json_written(const json_t *v, size_t flags);

/* For tests: at least the memory that Jansson takes to parse the text, in bytes. */
uint64_t json_cost(const char *text, size_t n);
