/* test_change.c - "NAME=VALUE" changes: which names there are, what is refused, and the lines that
 * turn the settings and faults of one set of options into another's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "repl/compare/change.h"

static struct engine_opts defaults(void)
{
    struct engine_opts o = {.device = "auto"};
    settings_init(&o.settings);
    return o;
}

static bool apply(struct engine_opts *o, const char *text)
{
    struct err e = {0};
    struct engine_opts before = *o;
    bool ok = change_apply(o, text, &e);
    if (!ok) { /* refused: nothing changes, and the message is one line */
        assert_memory_equal(o, &before, sizeof before);
        assert_int_equal(e.kind, ERR_USAGE);
        assert_true(e.msg[0] && !strchr(e.msg, '\n'));
    }
    return ok;
}

/* "NAME=VALUE" for a row; false: --with does not change it. */
static bool example(const struct option *o, char *text, size_t n)
{
    int word = (int)strcspn(o->range, "|");
    if (o->kind == OPT_NAME) /* the second word: not the default */
        snprintf(text, n, "%s=%.*s", o->name, (int)strcspn(o->range + word + 1, "|"),
                 o->range + word + 1);
    else
        snprintf(text, n, "%s=%s", o->name, o->kind == OPT_TEXT ? "a" : o->kind == OPT_FLAG ? "on"
                 : strcmp(o->name, "lanes") ? "64" : "8");
    return o->change;
}

static void test_an_option_of_opening_needs_another_engine(void **unused)
{
    (void)unused;
    for (int i = 0; i < opts_count(); i++) {
        struct engine_opts a = defaults(), b = a;
        struct buf lines = {0};
        char text[80];
        if (!example(opts_at(i), text, sizeof text)) {
            assert_false(apply(&b, text));
            continue;
        }
        assert_true(apply(&b, text));
        assert_true(change_reopens(&a, &b) && change_reopens(&b, &a));
        assert_true(apply(&a, text));
        assert_false(change_reopens(&a, &b));
        change_lines(&a, &b, &lines);
        assert_int_equal(lines.n, 0);
        buf_free(&lines);
    }
}

static void test_equal_texts_at_two_places_are_equal(void **unused)
{
    (void)unused;
    struct engine_opts a = defaults(), b = a;
    char *one = xstrdup("draft=ngram"), *other = xstrdup("draft=ngram");
    assert_true(apply(&a, one) && apply(&b, other));
    assert_false(change_reopens(&a, &b));
    assert_true(apply(&b, "draft=none"));
    assert_null(b.draft);
    assert_true(change_reopens(&a, &b));
    free(one);
    free(other);
}

/* Applying the lines to `from` gives the settings and faults of `to`. */
static void test_lines_lead_from_one_side_to_the_other(void **unused)
{
    (void)unused;
    static const char *const change[] = {"spec=off", "temperature=0.7", "draft.topk=4", "chunk=7",
                                         "check=strict", "bug.24617=on",
                                         "bug.draft-extend-extent=2"};
    enum { N = sizeof change / sizeof *change };
    for (unsigned some = 0; some < 1u << N; some++) {
        struct engine_opts a = defaults(), b = a;
        struct buf lines = {0};
        for (int i = 0; i < N; i++)
            assert_true(some >> i & 1 ? apply(&b, change[i]) : true);
        for (int i = 0; i < 3; i++) /* the other side differs, too */
            assert_true(apply(&a, change[i * 2]));
        assert_false(change_reopens(&a, &b));
        change_lines(&a, &b, &lines);
        for (char *line = lines.n ? strtok(lines.p, "\n") : NULL; line; line = strtok(NULL, "\n"))
            assert_true(apply(&a, line));
        assert_memory_equal(&a.settings, &b.settings, sizeof a.settings);
        assert_memory_equal(&a.bugs, &b.bugs, sizeof a.bugs);
        buf_free(&lines);
    }
}

static void test_wrong_changes_change_nothing(void **unused)
{
    (void)unused;
    static const char *const wrong[] = {
        "", "spec", "=off", "heat=1", "spec=maybe", "temperature=hot", "bug.=on", "bug.1=on",
        "bug.24617=2", "device=gpu", "device=", "precision=f16", "precision=f", "weights=fp4",
        "draft=", "threads=0", "threads=x", "raw=yes", "context=15", "context=-20", "page_size=3",
        "page_size=128", "page_size=4x", "page-size=4", "full_pages=2",
    };
    struct engine_opts o = defaults();
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (apply(&o, wrong[i]))
            fail_msg("\"%s\" was taken", wrong[i]);
}

static void read_back(const struct engine_opts *logged, const struct engine_opts *asked,
                      const struct option *o, const char *expected)
{
    struct engine_opts got = {0};
    struct buf lines = {0}, value = {0};
    opts_print(logged, &lines);
    opts_read(&got, asked, lines.p);
    option_print(o, &got, &value);
    assert_string_equal(value.p ? value.p : "", expected);
    buf_free(&lines);
    buf_free(&value);
}

/* A replay takes what the command line names, and everything else as the log has it. */
static void test_an_option_is_read_back_from_the_log_unless_it_is_given(void **unused)
{
    (void)unused;
    for (int i = 0; i < opts_count(); i++) {
        const struct option *o = opts_at(i);
        struct engine_opts none = {0}, some = {0};
        struct buf value = {0}, usual = {0};
        char text[80];
        example(o, text, sizeof text);
        assert_true(option_read(o, &some, strchr(text, '=') + 1));
        option_print(o, &some, &value);
        option_print(o, &none, &usual);
        read_back(&none, &some, o, value.p);
        read_back(&some, &none, o, o->line ? value.p : usual.p ? usual.p : "");
        buf_free(&value);
        buf_free(&usual);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_option_of_opening_needs_another_engine),
        cmocka_unit_test(test_equal_texts_at_two_places_are_equal),
        cmocka_unit_test(test_lines_lead_from_one_side_to_the_other),
        cmocka_unit_test(test_wrong_changes_change_nothing),
        cmocka_unit_test(test_an_option_is_read_back_from_the_log_unless_it_is_given),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
