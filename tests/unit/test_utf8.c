/* test_utf8.c - decoding against the table of well-formed sequences in the Unicode standard. */
#include "kernels/ascii.h"
#include "kernels/utf8.h"

#include <ctype.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* The bytes at which some rule changes, and their neighbours. */
static const uint8_t edges[] = {0x00, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1,
                                0xC2,
                                0xDF, 0xE0, 0xE1, 0xEC, 0xED, 0xEE, 0xEF, 0xF0, 0xF1, 0xF3, 0xF4,
                                0xF5, 0xF8, 0xFF};
enum { N_EDGES = sizeof edges };

/* Table 3-7: length and range of the second byte for a first byte; 0: starts no character. */
static int first_byte(uint8_t c, uint8_t *lo, uint8_t *hi)
{
    *lo = c == 0xE0 ? 0xA0 : c == 0xF0 ? 0x90 : 0x80;
    *hi = c == 0xED ? 0x9F : c == 0xF4 ? 0x8F : 0xBF;
    return c < 0x80 ? 1 : c < 0xC2 ? 0 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : c < 0xF5 ? 4 : 0;
}

/* Good bytes at the beginning of p; *len: how many a character needs. */
static size_t good_bytes(const uint8_t *p, size_t n, size_t *len)
{
    uint8_t lo, hi;
    size_t k = 1;
    *len = (size_t)first_byte(p[0], &lo, &hi);
    if (*len == 0)
        return 0;
    for (; k < *len && k < n && p[k] >= lo && p[k] <= hi; k++)
        lo = 0x80, hi = 0xBF;
    return k;
}

static void compare(const uint8_t *p, size_t n)
{
    const char *s = (const char *)p;
    uint32_t cp = 12345, want = 0;
    size_t len, good = good_bytes(p, n, &len);
    bool whole = len && good == len, open = false;
    size_t got = utf8_char(s, n, &cp);
    if (got != (whole ? len : 0))
        fail_msg("%02x %02x %02x %02x of %zu: length %zu", p[0], p[1], p[2], p[3], n, got);
    if (whole) {
        want = len == 1 ? p[0] : p[0] & (0x7Fu >> len);
        for (size_t i = 1; i < len; i++)
            want = want << 6 | (p[i] & 63u);
        struct buf back = {0};
        buf_utf8(&back, cp);
        assert_int_equal(cp, want);
        assert_int_equal(utf8_at(s), want);
        assert_int_equal(utf8_len(s), len);
        assert_true(back.n == len && memcmp(back.p, s, len) == 0);
        buf_free(&back);
        return;
    }
    assert_int_equal(cp, 12345); /* left alone */
    size_t part = utf8_invalid(s, n, &open);
    if (part != (good ? good : 1) || open != (good == n))
        fail_msg("%02x %02x %02x %02x of %zu: an invalid sequence of %zu, open %d", p[0], p[1],
                 p[2], p[3], n, part, open);
    assert_int_equal(utf8_decode(s, n, &cp), part);
    assert_int_equal(cp, 0xFFFD);
}

static void test_every_sequence_of_bytes_at_the_edges(void **state)
{
    (void)state;
    uint8_t p[4];
    for (int i = 0; i < N_EDGES * N_EDGES * N_EDGES * N_EDGES; i++) {
        for (int k = 0, rest = i; k < 4; k++, rest /= N_EDGES)
            p[3 - k] = edges[rest % N_EDGES];
        for (size_t n = 4; n >= 1 && (n == 4 || p[n] == 0); n--) /* each length of a head once */
            compare(p, n);
    }
}

static void test_every_code_point_comes_back(void **state)
{
    (void)state;
    struct buf b = {0};
    for (uint32_t c = 0; c < 0x110000; c++) {
        buf_clear(&b);
        buf_utf8(&b, c);
        uint32_t got = 0;
        if (c >= 0xD800 && c < 0xE000)
            continue; /* no text holds them: the decoder refuses what an encoder may write */
        assert_true(b.n > 0 && utf8_char(b.p, b.n, &got) == b.n && got == c &&
                    utf8_check(b.p, b.n));
    }
    buf_free(&b);
}

static void test_texts_are_checked_to_their_end(void **state)
{
    (void)state;
    assert_true(utf8_check("", 0));
    assert_true(utf8_check("na\xC3\xAFve", 6));
    assert_false(utf8_check("na\xC3", 3));
    assert_false(utf8_check("\xED\xA0\x80", 3)); /* a surrogate */
}

/* As the C library has it in the locale "C", in which a program begins. */
static void test_ascii_has_the_classes_of_the_locale_c(void **state)
{
    (void)state;
    for (int i = 0; i < 256; i++) {
        char c = (char)i, upper[] = {'x', ascii_upper(c), 0}, lower[] = {'X', ascii_lower(c), 0};
        assert_int_equal(ascii_digit(c), !!isdigit(i));
        assert_int_equal(ascii_alpha(c), !!isalpha(i));
        assert_int_equal(ascii_alnum(c), !!isalnum(i));
        assert_int_equal(ascii_space(c), !!isspace(i));
        assert_int_equal(ascii_punct(c), !!ispunct(i));
        assert_int_equal((uint8_t)ascii_lower(c), tolower(i));
        assert_int_equal((uint8_t)ascii_upper(c), toupper(i));
        assert_true(ascii_same(upper, lower) && ascii_same_n(upper, lower, 9));
    }
    assert_true(ascii_same("", "") && !ascii_same("a", "ab") && !ascii_same("ab", "a") &&
                !ascii_same("I", "\xC4\xB1"));
    assert_true(ascii_same_n("abc", "ABd", 2) && !ascii_same_n("abc", "ABd", 3) &&
                ascii_same_n("a", "b", 0));
    assert_true(ascii_contains("HF_API_KEY", "api_key") && ascii_contains("x", "") &&
                ascii_contains("ends", "DS"));
    assert_true(!ascii_contains("api_ke", "api_key") && !ascii_contains("", "a"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_sequence_of_bytes_at_the_edges),
        cmocka_unit_test(test_every_code_point_comes_back),
        cmocka_unit_test(test_texts_are_checked_to_their_end),
        cmocka_unit_test(test_ascii_has_the_classes_of_the_locale_c),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
