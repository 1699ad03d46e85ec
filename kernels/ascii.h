/* ascii.h - classes and case of ASCII characters, and how strings end, for every folder.
 *
 * The C library's functions of the same kind depend on the locale: in tr_TR, 'I' is no capital 'i',
 * and in ISO 8859-1 bytes of a UTF-8 character are letters or blanks. Product files use these
 * instead (tests/e2e/test_layers.sh). Bytes beyond ASCII are in no class and have no case. Pure
 * functions; any thread.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

static inline bool ascii_digit(char c) { return c >= '0' && c <= '9'; }
static inline bool ascii_alpha(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
static inline bool ascii_alnum(char c) { return ascii_digit(c) || ascii_alpha(c); }
static inline bool ascii_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
static inline bool ascii_punct(char c) { return c > ' ' && c < 0x7f && !ascii_alnum(c); }
static inline char ascii_lower(char c) { return c >= 'A' && c <= 'Z' ? (char)(c + 32) : c; }
static inline char ascii_upper(char c) { return c >= 'a' && c <= 'z' ? (char)(c - 32) : c; }

/* Whether the first n bytes, or all bytes up to a NUL before, are equal but for case. */
static inline bool ascii_same_n(const char *a, const char *b, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (ascii_lower(a[i]) != ascii_lower(b[i]))
            return false;
        if (!a[i])
            return true;
    }
    return true;
}

/* Whether two strings are equal but for case. */
static inline bool ascii_same(const char *a, const char *b)
{
    return ascii_same_n(a, b, strlen(a) + 1);
}

/* Whether a string ends in another, in this case. */
static inline bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), k = strlen(end);
    return n >= k && memcmp(s + n - k, end, k) == 0;
}

/* Whether a string contains a word in any case. */
static inline bool ascii_contains(const char *text, const char *word)
{
    size_t n = strlen(word);
    do
        if (ascii_same_n(text, word, n))
            return true;
    while (*text++);
    return false;
}
