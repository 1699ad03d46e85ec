/* utf8.h - UTF-8 to code points, for every folder; utf8proc decides what is valid. buf_utf8() is
 * the way back.
 *
 * Valid is what the Unicode standard calls well-formed: shortest forms up to U+10FFFF, without
 * surrogates. Pure functions; any thread.
 */
#pragma once

#include "kernels/base.h"

/* The character at s, which has n >= 1 bytes: its length and *cp. 0: there is no valid one. */
size_t utf8_char(const char *s, size_t n, uint32_t *cp);
/* Length of the invalid sequence at s, where utf8_char() returned 0: the longest prefix of a valid
 * character, else one byte (the standard's "maximal subpart": one U+FFFD replaces it). *open (or
 * NULL): the sequence is all n bytes, and more bytes could make a valid character of it. */
size_t utf8_invalid(const char *s, size_t n, bool *open);
/* The character at s, or U+FFFD for an invalid sequence; returns its bytes, at least 1. n >= 1. */
size_t utf8_decode(const char *s, size_t n, uint32_t *cp);
bool utf8_check(const char *s, size_t n); /* all of it is valid */
/* Bytes of the byte order mark with which some editors begin a file: 3, or 0 if there is none. */
size_t utf8_mark(const char *s, size_t n);
void utf8_drop_mark(struct buf *text); /* removes it */
/* Whether a code point must not reach a terminal: controls, among them those that change the
 * direction of text, surrogates, unassigned, and invisible ones except joiners. */
bool utf8_is_hidden(uint32_t cp);

/* Whether Unicode calls a code point white space. */
static inline bool utf8_is_white(uint32_t c)
{
    return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
           c == 0x205F || c == 0x3000;
}

/* Bytes of the character at s, which is valid there. */
static inline size_t utf8_len(const char *s)
{
    uint8_t c = (uint8_t)*s;
    return c < 0x80 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
}

/* Characters of valid text. */
static inline size_t utf8_chars(const char *s, size_t n)
{
    size_t chars = 0;
    for (size_t i = 0; i < n; i++)
        chars += ((uint8_t)s[i] & 0xC0) != 0x80;
    return chars;
}

/* The code point at s, which is valid there. */
static inline uint32_t utf8_at(const char *s)
{
    uint32_t cp = (uint8_t)*s;
    if (cp >= 0x80)
        utf8_char(s, utf8_len(s), &cp);
    return cp;
}
