/* test_sheet.c - the sanitiser, widths, and sheets (repl/text/text.c, repl/text/sheet.c). */
#include "kernels/utf8.h"
#include "repl/text/sheet.h"
#include "tests/chance.h"

#include <setjmp.h>
#include <cmocka.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* ---- the policy, written a second time ---- */

static const uint32_t denied[][2] = {
    {0x00, 0x1F}, {0x7F, 0x9F}, {0xAD, 0xAD}, {0x34F, 0x34F}, {0x61C, 0x61C}, {0x115F, 0x1160},
    {0x17B4, 0x17B5}, {0x180B, 0x180F}, {0x200B, 0x200B}, {0x200E, 0x200F}, {0x2028, 0x202E},
    {0x2060, 0x206F}, {0x3164, 0x3164}, {0xD800, 0xDFFF}, {0xFE00, 0xFE0D}, {0xFEFF, 0xFEFF},
    {0xFFA0, 0xFFA0}, {0xFFF0, 0xFFFB}, {0xFFFE, 0xFFFF}, {0xE0000, 0xE0FFF}, {0x10FFFE, 0x10FFFF},
};

static bool is_denied(uint32_t cp)
{
    for (size_t i = 0; i < sizeof denied / sizeof *denied; i++)
        if (cp >= denied[i][0] && cp <= denied[i][1])
            return true;
    return utf8proc_category((utf8proc_int32_t)cp) == UTF8PROC_CATEGORY_CN;
}

/* Strict decoder from the definition of UTF-8 (RFC 3629), independent of utf8_decode(). */
static int decode(const unsigned char *p, size_t n, uint32_t *cp)
{
    int k = p[0] < 0x80 ? 1 : p[0] >= 0xF0 ? 4 : p[0] >= 0xE0 ? 3 : p[0] >= 0xC2 ? 2 : 0;
    if (k == 0 || (size_t)k > n || p[0] > 0xF4)
        return 0;
    *cp = k == 1 ? p[0] : p[0] & (0x7F >> k);
    for (int i = 1; i < k; i++) {
        if ((p[i] & 0xC0) != 0x80)
            return 0;
        *cp = *cp << 6 | (p[i] & 0x3F);
    }
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    return *cp < least[k] || *cp > 0x10FFFF || (*cp >= 0xD800 && *cp <= 0xDFFF) ? 0 : k;
}

static void assert_clean(const char *s, size_t n, bool newlines)
{
    int marks = 0;
    uint32_t cp = 0;
    for (size_t i = 0; i < n;) {
        int k = decode((const unsigned char *)s + i, n - i, &cp);
        assert_int_not_equal(k, 0);
        if (!(newlines && cp == '\n'))
            assert_false(is_denied(cp));
        utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
        marks = c == UTF8PROC_CATEGORY_MN || c == UTF8PROC_CATEGORY_ME ? marks + 1 : 0;
        assert_true(marks <= 9); /* 8 and one variation selector */
        i += (size_t)k;
    }
}

/* ---- random text that likes trouble ---- */

static void random_text(struct buf *b)
{
    static const uint32_t spice[] = {
        0x1B, 0x9B, 0x0D, 0x08, 0x202E, 0x2066, 0x200B, 0x200C, 0x200D, 0xFEFF, 0xE0041, 0xFE0F,
        0xFE0E, 0x301, 0x323, 0x20E3, 0x1F468, 0x1F469, 0x2764, 0x1F3FD, 0x1F1E9, 0x1F1EA, 0x0915,
        0x094D, 0x093F, 0x645, 0x6CC, 0x1112, 0x1161, 0x11AB, 0x3042, 0x4E2D, 0xFFFD, 0x0E33, 9, 10,
    };
    int n = 1 + below(40);
    buf_clear(b);
    for (int i = 0; i < n; i++) {
        switch (below(5)) {
        case 0: buf_char(b, (char)below(256)); break;
        case 1: buf_char(b, (char)(' ' + below(95))); break;
        case 2: buf_utf8(b, below(0x3000)); break;
        case 3: buf_utf8(b, below(0x110000)); break;
        default: buf_utf8(b, spice[below(sizeof spice / sizeof *spice)]);
        }
    }
}

/* The same text as cells, added up one cluster at a time. */
static int width_by_clusters(const char *s, size_t n)
{
    struct glyph g;
    int w = 0;
    for (size_t i = 0, k; i < n; i += k) {
        k = text_next(s + i, n - i, &g);
        assert_true(k > 0 && g.n > 0 && g.n <= GLYPH_MAX && g.width > 0);
        int sum = 0;
        for (int j = 0; j < g.n; j++) {
            assert_false(is_denied(g.cp[j]));
            sum += text_cp_width(g.cp[j]);
        }
        assert_int_equal(sum, g.width);
        assert_true(text_cp_width(g.cp[0]) > 0);
        w += g.width;
    }
    return w;
}

static void test_random_bytes_come_out_clean(void **state)
{
    (void)state;
    struct buf in = {0}, out = {0}, again = {0};
    for (int i = 0; i < 100000; i++) {
        bool newlines = i & 1;
        random_text(&in);
        buf_clear(&out);
        buf_clear(&again);
        text_sanitise(&out, in.p, in.n, newlines);
        assert_clean(out.p, out.n, newlines);
        text_sanitise(&again, out.p, out.n, newlines);
        assert_int_equal(again.n, out.n);
        assert_memory_equal(again.p, out.p, out.n);
        if (!newlines)
            assert_int_equal(text_width(out.p, out.n), width_by_clusters(out.p, out.n));
    }
    buf_free(&in);
    buf_free(&out);
    buf_free(&again);
}

static void test_fit_never_exceeds_and_never_stops_early(void **state)
{
    (void)state;
    struct buf in = {0}, out = {0};
    struct glyph g;
    for (int i = 0; i < 20000; i++) {
        random_text(&in);
        buf_clear(&out);
        text_sanitise(&out, in.p, in.n, false);
        int cells = below(30), used;
        size_t k = text_fit(out.p, out.n, cells, &used);
        assert_true(used <= cells);
        assert_int_equal(used, text_width(out.p, k));
        if (k < out.n) {
            text_next(out.p + k, out.n - k, &g);
            assert_true(used + g.width > cells);
        }
    }
    buf_free(&in);
    buf_free(&out);
}

static void assert_sanitised(const char *in, const char *expected)
{
    struct buf out = {0};
    text_sanitise(&out, in, strlen(in), true);
    assert_string_equal(out.p, expected);
    buf_free(&out);
}

static void test_the_policy_by_example(void **state)
{
    (void)state;
    assert_sanitised("plain text", "plain text");
    assert_sanitised("two\nlines", "two\nlines");
    assert_sanitised("a\tb", "a       b");
    assert_sanitised("ab\n\tc", "ab\n        c");
    assert_sanitised("\033[2J", "<U+001B>[2J");
    assert_sanitised("10 %\rFORGED", "10 %<U+000D>FORGED");
    assert_sanitised("\xc2\x9b""31m", "<U+009B>31m");
    assert_sanitised("\x9b", "\xEF\xBF\xBD");
    assert_sanitised("\xEF\xBF\xBD", "\xEF\xBF\xBD");
    assert_sanitised("\xe2\x82", "\xEF\xBF\xBD");
    assert_sanitised("x\u202ey", "x<U+202E>y");
    assert_sanitised("\U000E0041", "<U+E0041>");
    assert_sanitised("e\u0301", "e\u0301");
    assert_sanitised("\u0301", "<U+0301>");
    assert_sanitised("\u0645\u06cc\u200c\u062e", "\u0645\u06cc\u200c\u062e");
    assert_sanitised("a\u200cb", "a<U+200C>b");
    assert_sanitised("\U0001F468\u200d\U0001F467", "\U0001F468\u200d\U0001F467");
    assert_sanitised("\U0001F468\u200d!", "\U0001F468<U+200D>!");
    assert_sanitised("\u2764\ufe0f", "\u2764\ufe0f");
    assert_sanitised("\u2764\ufe0f\ufe0f", "\u2764\ufe0f<U+FE0F>");
    assert_sanitised("a\u0301\u0301\u0301\u0301\u0301\u0301\u0301\u0301\u0301\u0301b",
                     "a\u0301\u0301\u0301\u0301\u0301\u0301\u0301\u0301<+2 marks>b");
}

static void test_widths_by_example(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int width;
    } cases[] = {
        {"", 0}, {"abc", 3}, {"\u4E2D\u6587", 4}, {"e\u0301x", 2}, {"\u2764\ufe0f", 1},
        {"\U0001F600", 2}, {"\U0001F468\u200d\U0001F469\u200d\U0001F467", 2},
        {"\U0001F44D\U0001F3FD", 2}, {"\U0001F1E9\U0001F1EA", 2}, {"1\ufe0f\u20e3", 1},
        {"\u1112\u1161\u11ab", 2}, {"\u0928\u093f", 2}, {"\uFF21", 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(text_width(cases[i].text, strlen(cases[i].text)), cases[i].width);
}

static void test_corpus_is_harmless(void **state)
{
    (void)state;
    DIR *d = opendir("tests/corpus");
    assert_non_null(d);
    int files = 0;
    for (struct dirent *f; (f = readdir(d));) {
        if (f->d_name[0] == '.')
            continue;
        char path[512];
        snprintf(path, sizeof path, "tests/corpus/%s", f->d_name);
        struct buf in = {0}, out = {0};
        assert_true(buf_read_file(&in, path, 1 << 20, NULL));
        text_sanitise(&out, in.p, in.n, true);
        assert_clean(out.p, out.n, true);
        struct sheet s = {0};
        sheet_addn(&s, ST_TEXT, in.p, in.n);
        sheet_line(&s);
        assert_clean(s.row[0].text.p, s.row[0].text.n, false);
        sheet_free(&s);
        buf_free(&in);
        buf_free(&out);
        files++;
    }
    closedir(d);
    assert_true(files >= 25);
}

/* ---- sheets ---- */

static char *as_text(const struct sheet *s, bool color)
{
    struct buf b = {0};
    sheet_to_text(s, color, &b);
    return b.p;
}

static void test_sheet_marks_escapes_and_counts_them(void **state)
{
    (void)state;
    struct sheet s = {0};
    sheet_add(&s, ST_BOLD, "ok\033x\ny");
    sheet_tab(&s, 24);
    sheet_add(&s, ST_DIM, "end");
    sheet_line(&s);
    sheet_line(&s);
    sheet_printf(&s, ST_GOOD, "%d", 7);
    assert_int_equal(s.n_row, 3);
    assert_int_equal(s.escaped, 2);
    char *t = as_text(&s, false);
    assert_string_equal(t, "ok<U+001B>x<U+000A>y    end\n\n7");
    free(t);
    assert_int_equal(s.row[0].n_span, 7);
    assert_int_equal(s.row[0].span[1].style, ST_ESCAPE);
    int at = 0;
    for (int i = 0; i < s.row[0].n_span; i++) { /* spans cover the text without gaps */
        assert_int_equal(s.row[0].span[i].at, at);
        at += s.row[0].span[i].n;
    }
    assert_int_equal(at, (int)s.row[0].text.n);
    t = as_text(&s, true);
    assert_non_null(strstr(t, "\033[1mok\033[0m\033[7m<U+001B>\033[0m"));
    free(t);
    sheet_free(&s);
}

static void assert_wrapped(const char *text, int width, const char *expected)
{
    struct sheet s = {0}, w = {0};
    sheet_add(&s, ST_TEXT, text);
    sheet_line(&s);
    sheet_append_wrapped(&w, &s, width);
    char *t = as_text(&w, false);
    assert_string_equal(t, expected);
    free(t);
    sheet_free(&s);
    sheet_free(&w);
}

static void test_wrapping_by_example(void **state)
{
    (void)state;
    assert_wrapped("", 10, "\n");
    assert_wrapped("one two three", 8, "one two\nthree\n");
    assert_wrapped("one two three", 7, "one two\nthree\n");
    assert_wrapped("abcdefghij", 4, "abcd\nefgh\nij\n");
    assert_wrapped("  indented text here", 12, "  indented\n  text here\n");
    assert_wrapped("- one two three", 9, "- one two\n  three\n"); /* lists, quotes, two columns */
    assert_wrapped("  name of ten   text of it", 16, "  name of ten\n    text of it\n");
    assert_wrapped("12. one two three", 11, "12. one two\n    three\n");
    assert_wrapped("  > one two three", 11, "  > one two\n    three\n");
    assert_wrapped("> - one two three", 11, "> - one two\n    three\n");
    assert_wrapped("\u2022 one two three", 9, "\u2022 one two\n  three\n");
    assert_wrapped("ab    one two three", 15, "ab    one two\n      three\n");
    assert_wrapped("a word.  Two blanks end it", 14, "a word.  Two\nblanks end it\n");
    assert_wrapped("label  one two three", 15, "label  one two\n       three\n");
    assert_wrapped("Word.  Two blanks end it", 14, "Word.  Two\nblanks end it\n");
    assert_wrapped("a 1 ms  b 2 ms  c 3 ms", 14, "a 1 ms  b 2 ms\nc 3 ms\n");
    assert_wrapped("-one two three", 8, "-one two\nthree\n");
    assert_wrapped("a wide first column    one two", 24, "a wide first column\n  one two\n");
    assert_wrapped("\u4E2D\u6587\u5B57", 5, "\u4E2D\u6587\n\u5B57\n");
    assert_wrapped("\u4E2D\u6587", 1, "\u4E2D\n\u6587\n");
    assert_wrapped("one two", 0, "one two\n");
}

static void test_wrapping_keeps_every_word_and_the_width(void **state)
{
    (void)state;
    struct buf in = {0};
    for (int i = 0; i < 5000; i++) {
        struct sheet s = {0}, w = {0};
        int width = 1 + below(30);
        for (int k = 0; k < 4; k++) {
            random_text(&in);
            sheet_addn(&s, (enum style)below(N_STYLES), in.p, in.n);
            sheet_add(&s, ST_TEXT, " ");
        }
        sheet_line(&s);
        sheet_append_wrapped(&w, &s, width);
        struct buf a = {0}, b = {0};
        for (int r = 0; r < w.n_row; r++) {
            const struct sheet_row *row = &w.row[r];
            struct glyph g;
            size_t lead = strspn(row->text.p, " ");
            size_t k = text_next(row->text.p + lead, row->text.n - lead, &g);
            if (text_width(row->text.p, row->text.n) > width) /* only a cluster that is wider */
                assert_int_equal(lead + k, row->text.n);
            for (size_t c = 0; c < row->text.n; c++)
                if (row->text.p[c] != ' ')
                    buf_char(&b, row->text.p[c]);
        }
        for (size_t c = 0; c < s.row[0].text.n; c++)
            if (s.row[0].text.p[c] != ' ')
                buf_char(&a, s.row[0].text.p[c]);
        buf_str(&a, "");
        buf_str(&b, "");
        assert_string_equal(a.p, b.p);
        buf_free(&a);
        buf_free(&b);
        sheet_free(&s);
        sheet_free(&w);
    }
    buf_free(&in);
}

/* A tab is measured from the tab before; the row is that of one measured from its beginning. */
static void test_tabs_by_example(void **state)
{
    (void)state;
    enum { STOP = 8 };
    static const char *const row[] = {"\t", "a\tbc\tdef\tg", "abcdefgh\t\te",
                                      "\xE6\x97\xA5\t\xE6\x9C\xAC\t",
                                      "a\t\xCC\x81\tb", "12345678\x1b\t1\t"};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct sheet s = {0};
        sheet_add(&s, ST_TEXT, row[i]);
        struct buf want = {0};
        for (const char *p = row[i], *tab; (tab = strchr(p, '\t')); p = tab + 1) {
            struct buf clean = {0};
            text_sanitise(&clean, p, (size_t)(tab - p), false);
            buf_add(&want, clean.p, clean.n);
            buf_free(&clean);
            for (int w = text_width(want.p ? want.p : "", want.n), end = (w / STOP + 1) * STOP;
                 w < end; w++)
                buf_char(&want, ' ');
        }
        assert_true(s.row[0].text.n >= want.n);
        assert_memory_equal(s.row[0].text.p, want.p, want.n);
        buf_free(&want);
        sheet_free(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_bytes_come_out_clean),
        cmocka_unit_test(test_fit_never_exceeds_and_never_stops_early),
        cmocka_unit_test(test_the_policy_by_example),
        cmocka_unit_test(test_widths_by_example),
        cmocka_unit_test(test_corpus_is_harmless),
        cmocka_unit_test(test_sheet_marks_escapes_and_counts_them),
        cmocka_unit_test(test_wrapping_by_example),
        cmocka_unit_test(test_tabs_by_example),
        cmocka_unit_test(test_wrapping_keeps_every_word_and_the_width),
    };
    return cmocka_run_group_tests_name("sheet", tests, NULL, NULL);
}
