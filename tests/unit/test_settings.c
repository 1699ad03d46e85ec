/* test_settings.c - settings: the defaults, every range at its edges, text that is almost a value,
 * and the round trip through lines. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/settings.h"

static bool set(struct settings *s, const char *name, const char *value)
{
    struct err e = {0};
    struct settings before = *s;
    bool ok = settings_set(s, name, value, &e);
    if (!ok) { /* refused: nothing changes, and the message names what was meant */
        assert_memory_equal(s, &before, sizeof before);
        assert_int_equal(e.kind, ERR_USAGE);
        assert_non_null(strstr(e.msg, name));
        assert_null(strchr(e.msg, '\n'));
    }
    return ok;
}

static void test_defaults_are_the_documented_ones(void **unused)
{
    (void)unused;
    struct settings s;
    struct buf b = {0};
    settings_init(&s);
    settings_print(&s, &b);
    assert_string_equal(b.p,
                        "temperature=0\ntop_k=0\ntop_p=1\nmin_p=0\npresence_penalty=0\nfrequency_penalty=0\n"
                             "repetition_penalty=1\nlogit_bias=none\nseed=1\nmax_tokens=0\n"
                             "spec=on\ndraft.steps=5\ndraft.topk=1\ndraft.nodes=6\ndraft.shape=5-1-6\ndraft.window=0\nchunk=0\n"
                             "check=on\nforget=auto\nring=16\ngauge.ms=1000\ngraph=on\nverbose=off\neffort=auto\nthink=on\n");
    buf_free(&b);
}

static void test_ranges_end_where_they_say(void **unused)
{
    (void)unused;
    struct settings s;
    settings_init(&s);
    for (int i = 0; i < settings_count(); i++) {
        const struct option *t = settings_at(i);
        long long lo, hi;
        char text[64];
        if (sscanf(t->range, "%lld .. %lld", &lo, &hi) != 2)
            continue;
        snprintf(text, sizeof text, "%lld", lo);
        assert_true(set(&s, t->name, text));
        snprintf(text, sizeof text, "%lld", hi);
        assert_true(set(&s, t->name, text));
        snprintf(text, sizeof text, "%lld", lo - 1);
        assert_false(set(&s, t->name, text));
        snprintf(text, sizeof text, "%lld", hi + 1);
        assert_false(set(&s, t->name, text));
    }
    assert_true(s.temperature == 100 && s.top_k == 1000000 && s.seed == 9007199254740991 &&
                s.steps == 16 && s.topk == 16 && s.nodes == 64 && s.chunk == 4096);
}

static void test_words_of_a_range_are_its_values(void **unused)
{
    (void)unused;
    struct settings s;
    settings_init(&s);
    for (int i = 0; i < settings_count(); i++) {
        const struct option *t = settings_at(i);
        char range[64], *at = range, *word;
        snprintf(range, sizeof range, "%s", t->range);
        if (!strstr(range, " | "))
            continue;
        while ((word = strtok_r(at, " |", &at))) {
            struct buf b = {0};
            assert_true(set(&s, t->name, word));
            assert_true(settings_get(&s, t->name, &b));
            assert_string_equal(b.p, word);
            buf_free(&b);
        }
        assert_false(set(&s, t->name, "maybe"));
        assert_false(set(&s, t->name, ""));
        assert_false(set(&s, t->name, "on "));
    }
    assert_true(set(&s, "draft", "off") && !s.spec && set(&s, "draft", "on") && s.spec);
    assert_true(set(&s, "spec", "false") && !s.spec && set(&s, "verbose", "1") && s.verbose);
}

static void test_a_shape_is_three_numbers_or_auto(void **unused)
{
    (void)unused;
    static const char *const bad[] = {"", "5", "5-1", "5-1-", "5-1-6-", "5-1-6 ", "-5-1-6",
                                      "5--1-6", "0-1-6",
                                      "17-1-6", "5-17-6", "5-1-65", "5-1-1", "5-1-6x", "Auto",
                                      "auto "};
    static const char *const part[] = {"draft.steps", "draft.topk", "draft.nodes"};
    struct settings s;
    struct buf b = {0};
    settings_init(&s);
    assert_true(!s.auto_shape && set(&s, "draft.shape", "3-2-9"));
    assert_true(!s.auto_shape && s.steps == 3 && s.topk == 2 && s.nodes == 9);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(set(&s, "draft.shape", bad[i]));
    for (int i = 0; i < 3; i++) { /* a part fixes the shape */
        assert_true(set(&s, "draft.shape", "auto") && s.auto_shape);
        settings_get(&s, "draft.shape", &b);
        assert_string_equal(b.p, "auto");
        buf_clear(&b);
        assert_false(set(&s, part[i], "99"));
        assert_true(s.auto_shape && set(&s, part[i], "4") && !s.auto_shape);
    }
    settings_get(&s, "draft.shape", &b);
    assert_string_equal(b.p, "4-4-4");
    buf_clear(&b);
    struct settings back;
    struct err e;
    settings_init(&back);
    assert_true(set(&s, "draft.shape", "auto"));
    settings_print(&s, &b);
    assert_true(settings_parse(&back, b.p, &e) && back.auto_shape && back.steps == 4);
    assert_true(settings_parse(&back, "draft.steps=5\n", &e) && !back.auto_shape); /* an old log */
    buf_free(&b);
}

static void test_almost_numbers_are_refused(void **unused)
{
    (void)unused;
    static const char *const real[] = {"", " 1", "1 ", "nan", "inf", "-inf", "0x1", "1,5", "1.5.5",
                                       "e", "--1", "1e999", "."};
    static const char *const whole[] = {"", " 1", "1 ", "+1", "1.0", "1e3", "0x10", "ten", "-",
                                        "99999999999999999999", "-99999999999999999999"};
    struct settings s;
    settings_init(&s);
    for (size_t i = 0; i < sizeof real / sizeof *real; i++)
        assert_false(set(&s, "temperature", real[i]));
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++) {
        assert_false(set(&s, "top_k", whole[i]));
        assert_false(set(&s, "seed", whole[i]));
    }
    assert_true(set(&s, "temperature", "1e-3") && s.temperature == 1e-3);
    assert_true(set(&s, "temperature", "-0"));
    struct buf b = {0};
    settings_get(&s, "temperature", &b);
    assert_string_equal(b.p, "0");
    buf_free(&b);
}

static void test_unknown_names_are_answered_with_the_known_ones(void **unused)
{
    (void)unused;
    static const char *const bad[] = {"", "temp", "Temperature", "temperature ", "draft.step"};
    struct settings s;
    struct buf b = {0};
    settings_init(&s);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct err e;
        assert_false(settings_set(&s, bad[i], "1", &e));
        for (int k = 0; k < settings_count(); k++)
            assert_non_null(strstr(e.msg, settings_at(k)->name));
        assert_false(settings_get(&s, bad[i], &b));
    }
    assert_int_equal(b.n, 0);
    buf_free(&b);
}

static void test_printed_settings_read_back_bit_for_bit(void **unused)
{
    (void)unused;
    uint64_t x = 1;
    struct settings s, back;
    settings_init(&s);
    settings_init(&back);
    for (int round = 0; round < 5000; round++) {
        struct buf b = {0}, again = {0};
        struct err e;
        x = mix64(x);
        s.temperature = (double)(x >> 11) * 0x1p-53 * 100;
        s.top_p = (double)(x >> 12) * 0x1p-52;
        s.min_p = (double)(x % 1000) / 1000;
        s.seed = (int64_t)(x % 9007199254740992);
        s.presence_penalty = (double)(x % 4001) / 1000 - 2;
        s.repetition_penalty = 1 + (double)(x >> 12) * 0x1p-52;
        s.logit_bias.n = (int)(x % 5) == 4 ? MOST_BIAS : (int)(x % 5);
        for (int i = 0; i < s.logit_bias.n; i++) {
            s.logit_bias.id[i] = (int32_t)(x % 1000000) + 7 * i;
            s.logit_bias.by[i] = (float)(mix64(x + (uint64_t)i) >> 40) * 0x1p-24f * 200 - 100;
        }
        s.steps = 1 + (int)(x % 16), s.nodes = 2 + (int)(x % 63), s.check = (int)(x % 3);
        s.spec = x & 1, s.think = x & 2, s.verbose = x & 4;
        settings_print(&s, &b);
        if (!settings_parse(&back, b.p, &e))
            fail_msg("%s", e.msg);
        settings_print(&back, &again);
        assert_string_equal(b.p, again.p);
        assert_true(back.temperature == s.temperature && back.top_p == s.top_p &&
                    back.min_p == s.min_p && back.seed == s.seed &&
                    back.presence_penalty == s.presence_penalty &&
                    back.repetition_penalty == s.repetition_penalty &&
                    back.logit_bias.n == s.logit_bias.n);
        assert_memory_equal(back.logit_bias.id, s.logit_bias.id, 4 * (size_t)s.logit_bias.n);
        assert_memory_equal(back.logit_bias.by, s.logit_bias.by, 4 * (size_t)s.logit_bias.n);
        buf_free(&b);
        buf_free(&again);
    }
}

static void test_biases_are_ids_and_numbers(void **unused)
{
    (void)unused;
    static const char *const bad[] = {"", "5", "5:", ":1", "5:1,", ",5:1", "5:1,5:2", "-1:1",
                                      "5:101",
                                      "5:-100.5", "5:x", "a:1", "5:1;6:1", "2147483648:1", "5: 1"};
    struct settings s;
    struct buf b = {0};
    settings_init(&s);
    assert_true(set(&s, "logit_bias", "7:-100,3:0.1"));
    settings_get(&s, "logit_bias", &b);
    assert_string_equal(b.p, "7:-100,3:0.1");
    for (size_t i = 1; i < sizeof bad / sizeof *bad; i++)
        assert_false(set(&s, "logit_bias", bad[i]));
    assert_int_equal(s.logit_bias.n, 2);
    struct err e = {0};
    assert_true(settings_fit(&s, 8, &e) && settings_fit(&s, 0, &e)); /* 0: not known */
    assert_false(settings_fit(&s, 7, &e));
    assert_string_equal(e.msg, "logit_bias: 7 is no token: the vocabulary has 7 tokens, 0 to 6");
    assert_true(set(&s, "logit_bias", "none"));
    assert_true(settings_fit(&s, 7, &e));
    assert_int_equal(s.logit_bias.n, 0);
    buf_free(&b);
}

static void test_one_bad_line_leaves_all_settings_alone(void **unused)
{
    (void)unused;
    static const char *const bad[] = {"seed=5\ntop_k=x\n", "seed=5\n\nhello", "seed=5\n=3",
                                      "seed=5\nseed"};
    static const char *const line[] = {"line 2", "line 3", "line 2", "line 2"};
    struct settings s, before;
    settings_init(&s);
    before = s;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct err e;
        assert_false(settings_parse(&s, bad[i], &e));
        assert_non_null(strstr(e.msg, line[i]));
        assert_memory_equal(&s, &before, sizeof s);
    }
    char longest[600];
    struct err e;
    memset(longest, 'a', sizeof longest);
    longest[sizeof longest - 1] = '\0';
    assert_false(settings_parse(&s, longest, &e));
    assert_true(settings_parse(&s, "\n\nseed=5", &e) && s.seed == 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults_are_the_documented_ones),
        cmocka_unit_test(test_ranges_end_where_they_say),
        cmocka_unit_test(test_words_of_a_range_are_its_values),
        cmocka_unit_test(test_a_shape_is_three_numbers_or_auto),
        cmocka_unit_test(test_almost_numbers_are_refused),
        cmocka_unit_test(test_unknown_names_are_answered_with_the_known_ones),
        cmocka_unit_test(test_printed_settings_read_back_bit_for_bit),
        cmocka_unit_test(test_biases_are_ids_and_numbers),
        cmocka_unit_test(test_one_bad_line_leaves_all_settings_alone),
    };
    return cmocka_run_group_tests_name("settings", tests, NULL, NULL);
}
