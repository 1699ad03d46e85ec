/* test_patterns.c - regular expressions of tokenizer.json: what is refused, and that spans tile the
 * text whatever the expression, with bounded work.
 */
#include "models/tokenizer/parts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <utf8proc.h>

static void matcher_done(struct matcher *f, struct spans *out)
{
    matcher_free(f);
    free(out->v);
    *out = (struct spans){0};
}

/* ---- what is refused ---- */

static void test_constructs_that_no_tokenizer_uses_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *pattern, *says;
    } bad[] = {
        {"(?=(?1))a|zz(ab\\K)", "(?1"},
        {"(?(DEFINE)(ab\\K))(?=(?1))a", "(?("},
        {"a\\Kb", "\\K"},
        {"(?=a\\K)", "\\K"},
        {"(?<=a\\K)b", "\\K"},
        {"[a\\K]", "\\K"},
        {"(?x)#[\n\\K]", "(?x"},
        {"(?x)#[\n(?1)(a)]", "(?x"},
        {"(?x:a)", "(?x"},
        {"(?im-x)a", "flag"},
        {"(?#[)\\K(?#])", "(?#"},
        {"\\Qa\\E", "\\Q"},
        {"a\\E", "\\E"},
        {"(?R)", "(?R"},
        {"(a)(?-1)", "flag"},
        {"(a)(?+1)", "(?+"},
        {"(?&x)", "(?&"},
        {"(?P<x>a)", "(?P"},
        {"(?<x>a)", "(?<"},
        {"(?'x'a)", "(?'"},
        {"(a)\\g<1>", "\\g"},
        {"(a)\\g1", "\\g"},
        {"(a)\\k<1>", "\\k"},
        {"(?C1)a", "(?C"},
        {"(?C'x')a", "(?C"},
        {"(?{x})a", "(?{"},
        {"(?~a)", "(?~"},
        {"(?|a|b)", "(?|"},
        {"(?(1)a|b)", "(?("},
        {"(*ACCEPT)", "(*"},
        {"(*UTF)a", "(*"},
        {"(*LIMIT_MATCH=1)a", "(*"},
        {"a(*SKIP)b", "(*"},
        {"(*pla:a)", "(*"},
        {"(*napla:a)", "(*"},
        {"\\C", "\\C"},
        {"\\N", "\\N"},
        {"\\R", "\\R"},
        {"\\o{101}", "\\o"},
        {"\\0", "\\0"},
        {"(a)\\12", "\\1"},
        {"\\cA", "\\c"},
        {"\\M-a", "\\M"},
        {"\\pL", "\\p"},
        {"\\p{L", "\\p"},
        {"\\p{L)}", "\\p"},
        {"\\x{110000}", "regular"},
        {"\\x{}", "\\x"},
        {"\\x4", "\\x"},
        {"\\u12", "\\u"},
        {"\\H", "\\H"},
        {"[\\W]", "\\W"},
        {"[[a]]", "class inside"},
        {"[a&&b]", "class inside"},
        {"[[:alpha:]]", "[:name:]"},
        {"[a", "an unclosed ["},
        {"a)", "an unmatched )"},
        {"a\\", "at its end"},
        {"(a", "regular expression"},
        {"\xFF", "UTF-8"},
        {"\\\xC3", "UTF-8"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct pattern p;
        struct err e = {0};
        if (pattern_open(&p, true, bad[i].pattern, strlen(bad[i].pattern), &e))
            fail_msg("%s: accepted", bad[i].pattern);
        if (e.kind != ERR_MODEL || !strstr(e.msg, bad[i].says) || strchr(e.msg, '\n'))
            fail_msg("%s: said \"%s\"", bad[i].pattern, e.msg);
        pattern_free(&p);
    }
}

/* The parts of `text` that the expression matches, with | between. */
static void matches(const char *pattern, const char *text, struct buf *out)
{
    struct pattern p;
    struct matcher f = {0};
    struct spans spans = {0};
    struct err e = {0};
    if (!pattern_open(&p, true, pattern, strlen(pattern), &e) ||
        !pattern_spans(&p, &f, text, strlen(text), &spans, &e))
        fail_msg("%s: %s", pattern, e.msg);
    buf_str(out, "");
    for (size_t i = 0; i < spans.n; i++)
        if (spans.v[i].match) {
            buf_add(out, text + spans.v[i].off, spans.v[i].len);
            buf_char(out, '|');
        }
    matcher_done(&f, &spans);
    pattern_free(&p);
}

static void test_what_is_rewritten_means_the_same(void **state)
{
    (void)state;
    static const char *const want[][3] = {
        {"[]a]", "]ab", "]|a|"},
        {"[^]a]", "]ab", "b|"},
        {"[\\w-.]", "a-+", "a|-|"},
        {"[a-c]", "a-d", "a|"},
        {"[-a]", "a-b", "a|-|"},
        {"[+--]", "+,-.", "+|,|-|"},
        {"\\v", "\x0B\n", "\x0B|"},
        {"[\\b]", "b\x08", "\x08|"},
        {"\\\xC3\xA9", "\xC3\xA9", "\xC3\xA9|"},
        {"a#b]}", "a#b]}", "a#b]}|"},
        {"\\x41\\x{42}\\u0043", "ABC", "ABC|"},
        {"a{,2}b", "aab", "aab|"},
        {"x{2", "x{2", "x{2|"},
        {"\\*\\(", "*(", "*(|"},
        {"(?i-m:A)b", "ab", "ab|"},
        {"[\\]\\[]", "[]", "[|]|"},
        {"(?>a+)b|(?<!x)c", "aabc", "aab|c|"},
        {"(a)\\1", "aa", "aa|"},
        {"[$^.]", "$^.", "$|^|.|"},
        {"[\\\\\\-x]", "-\\x", "-|\\|x|"},
        {"[!-/]+", "a!#*b", "!#*|"},
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        struct buf got = {0};
        matches(want[i][0], want[i][1], &got);
        if (strcmp(got.p, want[i][2]) != 0)
            fail_msg("%s on %s: \"%s\", expected \"%s\"", want[i][0], want[i][1], got.p,
                     want[i][2]);
        buf_free(&got);
    }
}

/* Expressions that PCRE2 takes and that match backwards; the matcher itself must stop them. */
static void test_a_match_that_ends_before_it_starts_is_an_error(void **state)
{
    (void)state;
    static const char *const bad[] = {"(?=(?1))a|zz(ab\\K)", "(?(DEFINE)(ab\\K))(?=(?1))a"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int code;
        PCRE2_SIZE at;
        struct pattern p = {.re = pcre2_compile((PCRE2_SPTR)bad[i], PCRE2_ZERO_TERMINATED,
                                                PCRE2_UTF, &code, &at, NULL)};
        struct matcher f = {0};
        struct spans out = {0};
        struct err e = {0};
        assert_non_null(p.re);
        assert_false(pattern_spans(&p, &f, "xabab", 5, &out, &e));
        assert_int_equal(e.kind, ERR_MODEL);
        assert_non_null(strstr(e.msg, "matches bytes"));
        matcher_done(&f, &out);
        pattern_free(&p);
    }
}

/* ---- work ---- */

static void test_work_that_grows_faster_than_the_text_is_an_error(void **state)
{
    (void)state;
    static const char *const slow[] = {
        "(?=.*b)a|a", "(?:(?=.*b)a)*c|a",         "(?:a|aa)+\\1|(x)",
        "a*b|a",      "(?<=a)(?!.*c)[bd]|a+[bd]", "(?:.*.*)*[cd]",
    };
    enum { N = 300000 };
    char *text = memset(xmalloc(N), 'a', N);
    for (size_t i = 0; i < sizeof slow / sizeof *slow; i++) {
        struct pattern p;
        struct matcher f = {0};
        struct spans out = {0};
        struct err e = {0};
        if (!pattern_open(&p, true, slow[i], strlen(slow[i]), &e))
            fail_msg("%s: %s", slow[i], e.msg);
        bool ok = pattern_spans(&p, &f, text, N, &out, &e);
        if (ok || e.kind != ERR_MODEL || !strstr(e.msg, "gives up on a text of 300000 bytes"))
            fail_msg("%s: %s", slow[i], ok ? "no error" : e.msg);
        assert_true(f.spent < f.allowed + (1 << 21) && f.allowed < 200 << 20);
        matcher_done(&f, &out);
        pattern_free(&p);
    }
    free(text);
}

static const char cl100k[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+"
    "[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
static const char o200k[] =
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+"
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+"
    "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+"
    "[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

static void test_published_expressions_need_a_few_units_a_byte(void **state)
{
    (void)state;
    static const char *const pattern[] = {cl100k, o200k};
    static const char *const unit[] = {
        "A", " ", "\xE4\xBD\xA0", "\n", "a ", "  x", " \n", "it's 3.14\n", "if (a[i] == '\\n')\t"};
    for (size_t k = 0; k < 2; k++)
        for (size_t u = 0; u < sizeof unit / sizeof *unit; u++) {
            struct pattern p;
            struct matcher f = {0};
            struct spans out = {0};
            struct buf text = {0};
            struct err e = {0};
            while (text.n < 200000)
                buf_str(&text, unit[u]);
            assert_true(pattern_open(&p, true, pattern[k], strlen(pattern[k]), &e));
            assert_true(pattern_spans(&p, &f, text.p, text.n, &out, &e));
            assert_true(f.spent >= 1 && f.spent <= 32 * text.n);
            matcher_done(&f, &out);
            pattern_free(&p);
            buf_free(&text);
        }
}

static void test_matching_ends_when_it_is_stopped(void **state)
{
    (void)state;
    struct pattern p;
    struct stop stop = {.submitted = 1, .cancelled = 1, .running = 1};
    struct matcher f = {.stop = &stop};
    struct spans out = {0};
    struct err e = {0};
    assert_true(pattern_open(&p, true, cl100k, strlen(cl100k), &e));
    assert_false(pattern_spans(&p, &f, "some text", 9, &out, &e));
    assert_int_equal(e.kind, ERR_NEGATIVE);
    matcher_done(&f, &out);
    pattern_free(&p);
}

/* ---- normal forms ---- */

/* What limit.c and normal_form() rely on, for each character of this Unicode version: how far a
 * normal form shortens it, and that no two characters of a composition are of different
 * clusters. */
static void test_every_character_composes_within_a_cluster(void **state)
{
    (void)state;
    for (int32_t c = 0; c <= 0x10FFFF; c++) {
        int32_t v[32];
        int last = 0;
        char s[4];
        if (!utf8proc_codepoint_valid(c))
            continue;
        utf8proc_ssize_t k = utf8proc_decompose_char(c, v, 32, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE,
                                                     &last);
        utf8proc_ssize_t bytes = utf8proc_encode_char(c, (uint8_t *)s);
        assert_true(k >= 1 && k <= 32);
        assert_true(4 * k <= 6 * bytes);
        for (int i = 1; i < k; i++)
            if (utf8proc_get_property(v[i])->combining_class == 0 &&
                utf8proc_grapheme_break(v[i - 1], v[i]))
                fail_msg("U+%04X is composed of two clusters", (unsigned)c);
    }
}

/* A text whose normal form is made in parts has that of the whole. */
static void test_normal_forms_are_made_in_parts(void **state)
{
    static const int32_t pick[] = {'a', 'e', ' ', 0x300, 0x301, 0x323, 0x1100, 0x1161, 0x11A8,
                                   0xAC00, 0xE9, 0x4E00,
                                   0x3099, 0x304B, 0x9C7, 0x9BE, 0x1F600, 0x212B, 0x344};
    static const int form[] = {UTF8PROC_STABLE | UTF8PROC_COMPOSE,
                               UTF8PROC_STABLE | UTF8PROC_DECOMPOSE,
                               UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT};
    (void)state;
    for (int k = 0; k < 3; k++) {
        struct tokenizer t = {.n_norm = 1};
        struct tok_work w = {0};
        struct buf text = {0};
        uint8_t *want;
        t.norm[0] = (struct norm_step){.kind = NORMALIZE_FORM, .form = form[k]};
        for (uint64_t x = 1; text.n < 900000; x = mix64(x))
            buf_utf8(&text, (uint32_t)pick[x % (sizeof pick / sizeof *pick)]);
        buf_char(&text, 0);
        text.n--;
        work_bound(&w, text.n);
        assert_true(normalize(&t, text.p, text.n, &w, NULL));
        utf8proc_ssize_t n = utf8proc_map((const uint8_t *)text.p, (utf8proc_ssize_t)text.n, &want,
                                          (utf8proc_option_t)form[k]);
        assert_int_equal(w.text.n, n);
        assert_memory_equal(w.text.p, want, (size_t)n);
        free(want);
        buf_free(&text);
        tok_work_free(&w);
    }
}

/* ---- any expression over any short text ---- */

static uint32_t seed;

static int draw(int n)
{
    seed = seed * 1664525u + 1013904223u;
    return (int)((seed >> 8) % (uint32_t)n);
}

#define PICK(list) list[draw((int)(sizeof list / sizeof *list))]

static void put_expression(struct buf *b, int depth);

static void put_atom(struct buf *b, int depth)
{
    static const char *const plain[] = {"a",   "b",   "ab",  "1",   " ",      "\xC3\xA9",
                                        ".",   "^",   "$",   "\\n", "\\s",    "\\S",
                                        "\\w", "\\b", "\\B", "\\d", "\\p{L}", "\\P{L}",
                                        "\\A", "\\z", "\\X", "\\h", "\\1",    "\\x62"};
    static const char *const class[] = {"[ab]",   "[^a]",   "[\\s1]",      "[^\\r\\n\\p{L}]",
                                        "[a-b-]", "[\\w.]", "[[:punct:]]", "[^\\S\\n]",
                                        "[]a]"};
    static const char *const open[] = {
        "(", "(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?m:", "(?-i:"};
    static const char *const refused[] = {"\\K",     "(?1)", "(?R)", "\\g<1>", "(?C1)", "(*ACCEPT)",
                                          "(?(1)a)", "\\Q",  "(?x)", "(?#)",   "(?<n>a)"};
    int kind = draw(64);
    if (kind == 0 && draw(3) == 0)
        buf_str(b, PICK(refused));
    else if (kind < 24 && depth) {
        buf_str(b, PICK(open));
        put_expression(b, depth - 1);
        buf_char(b, ')');
    } else if (kind < 36)
        buf_str(b, PICK(class));
    else
        buf_str(b, PICK(plain));
}

static void put_expression(struct buf *b, int depth)
{
    static const char *const repeat[] = {"*",  "+",   "?",     "*?",   "+?",   "*+",
                                         "++", "{2}", "{1,2}", "{,2}", "{1,}", "{1,2}+"};
    for (int branch = draw(3); branch >= 0; branch--) {
        for (int i = draw(4); i >= 0; i--) {
            put_atom(b, depth);
            if (draw(3) == 0)
                buf_str(b, PICK(repeat));
        }
        if (branch)
            buf_char(b, '|');
    }
}

static void check_spans(const char *pattern, const struct pattern *p)
{
    static const char *const part[] = {
        "a", "b", "ab", "1", " ", "\n", "\xC3\xA9", "\xF0\x9F\x98\x80", "aab"};
    struct matcher f = {0};
    struct spans out = {0};
    struct buf text = {0};
    struct err e = {0};
    buf_str(&text, "");
    for (int i = draw(10); i > 0; i--)
        buf_str(&text, PICK(part));
    if (pattern_spans(p, &f, text.p, text.n, &out, &e)) {
        size_t at = 0;
        for (size_t i = 0; i < out.n; at += out.v[i++].len)
            if (out.v[i].off != at || out.v[i].len > text.n - at)
                fail_msg("%s on \"%s\": span %zu is %u, %u", pattern, text.p, i, out.v[i].off,
                         out.v[i].len);
        if (at != text.n)
            fail_msg("%s on \"%s\": spans end at %zu of %zu", pattern, text.p, at, text.n);
    } else if (e.kind != ERR_MODEL || !strstr(e.msg, "gives up")) {
        fail_msg("%s on \"%s\": %s", pattern, text.p, e.msg);
    }
    matcher_done(&f, &out);
    buf_free(&text);
}

static void test_spans_tile_any_text_for_any_expression(void **state)
{
    (void)state;
    enum { ROUNDS = 4000 };
    int taken = 0;
    for (int round = 0; round < ROUNDS; round++) {
        struct buf b = {0};
        struct pattern p;
        struct err e = {0};
        seed = (uint32_t)round * 2654435761u;
        put_expression(&b, 3);
        bool ok = pattern_open(&p, true, b.p, b.n, &e);
        if (!ok && (e.kind != ERR_MODEL || strchr(e.msg, '\n')))
            fail_msg("%s: %s", b.p, e.msg);
        taken += ok;
        for (int i = 0; ok && i < 4; i++)
            check_spans(b.p, &p);
        pattern_free(&p);
        buf_free(&b);
    }
    assert_true(taken >= ROUNDS / 8 && taken <= ROUNDS - ROUNDS / 20); /* both ends were reached */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_constructs_that_no_tokenizer_uses_are_refused),
        cmocka_unit_test(test_what_is_rewritten_means_the_same),
        cmocka_unit_test(test_a_match_that_ends_before_it_starts_is_an_error),
        cmocka_unit_test(test_work_that_grows_faster_than_the_text_is_an_error),
        cmocka_unit_test(test_published_expressions_need_a_few_units_a_byte),
        cmocka_unit_test(test_matching_ends_when_it_is_stopped),
        cmocka_unit_test(test_every_character_composes_within_a_cluster),
        cmocka_unit_test(test_normal_forms_are_made_in_parts),
        cmocka_unit_test(test_spans_tile_any_text_for_any_expression),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
