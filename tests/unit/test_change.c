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

static const char *const opening[] = {
    "model=a", "draft=ngram", "eagle_capture=2,4,5", "device=cpu", "precision=f32", "weights=fp8",
    "draft_weights=fp8", "threads=2", "raw=on", "context=512", "page_size=4", "full_pages=40",
    "swa_pages=40",
};

static void test_an_option_of_opening_needs_another_engine(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < sizeof opening / sizeof *opening; i++) {
        struct engine_opts a = defaults(), b = a;
        struct buf lines = {0};
        assert_true(apply(&b, opening[i]));
        assert_true(change_reopens(&a, &b) && change_reopens(&b, &a));
        assert_true(apply(&a, opening[i]));
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
                                         "check=strict", "bug.24617=on", "bug.draft-extend-extent=2"};
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_option_of_opening_needs_another_engine),
        cmocka_unit_test(test_equal_texts_at_two_places_are_equal),
        cmocka_unit_test(test_lines_lead_from_one_side_to_the_other),
        cmocka_unit_test(test_wrong_changes_change_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
