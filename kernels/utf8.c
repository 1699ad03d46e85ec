/* utf8.c - see utf8.h. */
#include "kernels/utf8.h"

#include <utf8proc.h>

size_t utf8_char(const char *s, size_t n, uint32_t *cp)
{
    const uint8_t *p = (const uint8_t *)s;
    utf8proc_int32_t c = p[0];
    /* at most 4 bytes: a length beyond the type's range must not read as "up to a zero byte" */
    utf8proc_ssize_t k = c < 0x80 ? 1 : utf8proc_iterate(p, n < 4 ? (utf8proc_ssize_t)n : 4, &c);
    if (k <= 0)
        return 0;
    *cp = (uint32_t)c;
    return (size_t)k;
}

/* Whether the k bytes at s begin a valid character of `len` bytes. Trying two continuations is
 * enough: the range of a second byte contains 0x80 or 0xBF, that of later bytes both. */
static bool can_be_completed(const char *s, size_t k, size_t len)
{
    for (int filler = 0x80; filler <= 0xBF; filler += 0x3F) {
        char whole[4];
        uint32_t cp;
        memset(whole, filler, sizeof whole);
        memcpy(whole, s, k);
        if (utf8_char(whole, len, &cp) == len)
            return true;
    }
    return false;
}

size_t utf8_invalid(const char *s, size_t n, bool *open)
{
    size_t len = utf8_len(s), k = n < len ? n : len - 1;
    while (k > 0 && !can_be_completed(s, k, len))
        k--;
    if (open)
        *open = k == n;
    return k ? k : 1;
}

size_t utf8_decode(const char *s, size_t n, uint32_t *cp)
{
    size_t k = utf8_char(s, n, cp);
    if (k)
        return k;
    *cp = 0xFFFD;
    return utf8_invalid(s, n, NULL);
}

bool utf8_check(const char *s, size_t n)
{
    uint32_t cp;
    size_t i = 0, k = 1;
    for (; i < n && k; i += k)
        k = utf8_char(s + i, n - i, &cp);
    return k > 0;
}

/* Assigned, but invisible (Default_Ignorable_Code_Point outside of category Cf). */
static bool is_invisible(uint32_t cp)
{
    return cp == 0x034F || cp == 0x115F || cp == 0x1160 || cp == 0x17B4 || cp == 0x17B5 ||
           (cp >= 0x180B && cp <= 0x180F) || cp == 0x3164 || cp == 0xFFA0 ||
           (cp >= 0xFE00 && cp <= 0xFE0D) || (cp >= 0xE0100 && cp <= 0xE01EF);
}

bool utf8_is_hidden(uint32_t cp)
{
    enum { ZWNJ = 0x200C, ZWJ = 0x200D };
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return true;
    case UTF8PROC_CATEGORY_CF: return cp != ZWJ && cp != ZWNJ;
    default: return is_invisible(cp);
    }
}

size_t utf8_mark(const char *s, size_t n)
{
    return n >= 3 && memcmp(s, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
}

void utf8_drop_mark(struct buf *text)
{
    size_t mark = text->n ? utf8_mark(text->p, text->n) : 0;
    if (mark == 0)
        return;
    memmove(text->p, text->p + mark, text->n - mark + 1);
    text->n -= mark;
}
