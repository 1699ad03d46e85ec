/* test_prompts.c - files of prompts: numbers in texts, the forms of a line, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "repl/app/prompts.h"
#include "tests/scratch.h"

static void test_the_last_number_is_found_and_written_one_way(void **unused)
{
    (void)unused;
    static const char *const text[][2] = {
        {"7 plus 5 is 12.", "12"}, {"#### 42", "42"}, {"it is 9 #### 42 apples, 3 pears", "3"},
        {"so 5-3 is 2", "2"}, {"-3", "-3"}, {"minus: -3.", "-3"}, {"range 2-3", "3"},
        {"$1,234,567.50 each", "1234567.5"}, {"1,23", "23"}, {"007", "7"}, {"0", "0"},
        {"-0.0", "0"},
        {"0.50", "0.5"}, {"3.0", "3"}, {"3.", "3"}, {"v1.2.3", "3"}, {"10%", "10"},
        {"1,000,", "1000"},
        {"5 #### none", "5"}, {"#### 1 #### 2", "2"}, {"1e5", "5"}, {"x100y", "100"},
        {"100", "100"},
    };
    char out[64];
    for (size_t i = 0; i < sizeof text / sizeof *text; i++) {
        if (!number_find(text[i][0], out))
            fail_msg("no number in \"%s\"", text[i][0]);
        assert_string_equal(out, text[i][1]);
    }
    assert_false(number_find("", out));
    assert_false(number_find("#### none, and - nothing.", out));
}

static void test_a_number_too_long_to_keep_is_none(void **unused)
{
    (void)unused;
    char text[80], out[64];
    for (int n = 1; n < 79; n++) {
        memset(text, '9', (size_t)n);
        text[n] = '\0';
        assert_int_equal(number_find(text, out), n <= 62);
        if (n <= 62)
            assert_string_equal(out, text);
    }
}

/* ---- files ----------------------------------------------------------------------------------- */

static struct buf said;

static void complain(void *arg, const char *line)
{
    (void)arg;
    assert_null(strchr(line, '\n'));
    buf_printf(&said, "%s\n", line);
}

static char *scratch, *path;

static void write_file(const char *text, size_t n)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    buf_clear(&said);
}

static bool open_text(struct prompts *p, const char *text, int limit, struct err *e)
{
    write_file(text, strlen(text));
    *e = (struct err){0};
    return prompts_open(p, path, limit, complain, e);
}

static void expect_texts(struct prompts *p, const char *const *want, int n)
{
    struct err e = {0};
    for (int pass = 0; pass < 2; pass++) {
        struct prompt one;
        assert_int_equal(p->n, n);
        for (int i = 0; i < n; i++) {
            assert_int_equal(prompts_next(p, &one, &e), 1);
            assert_string_equal(one.text, want[i]);
            prompt_free(&one);
        }
        assert_int_equal(prompts_next(p, &one, &e), 0);
        prompts_rewind(p);
    }
    prompts_close(p);
}

static void test_the_first_line_decides_the_form(void **unused)
{
    (void)unused;
    struct prompts p;
    struct err e;
    assert_true(open_text(&p, "\n  \nWhat is {\"prompt\"?\r\n{\"prompt\": \"x\"}\n\nlast", 0, &e));
    expect_texts(&p, (const char *const[]){"What is {\"prompt\"?", "{\"prompt\": \"x\"}", "last"},
                 3);
    assert_true(open_text(&p, "\n {\"prompt\": \"a\"}\n\n{\"question\": \"b\", \"answer\": "
                              "\"#### 1\"}\n", 0, &e));
    expect_texts(&p, (const char *const[]){"a", "b"}, 2);
    assert_true(open_text(&p, "a\nb\nc\n", 2, &e));
    expect_texts(&p, (const char *const[]){"a", "b"}, 2);
}

static void test_messages_become_the_conversation_before_the_prompt(void **unused)
{
    (void)unused;
    struct prompts p;
    struct prompt one, other;
    struct err e;
    static const char text[] =
        "{\"messages\": [{\"role\": \"system\", \"content\": \"S\"}, {\"role\": \"user\", "
        "\"content\": \"1\"}, {\"role\": \"assistant\", \"content\": \"2\"}, {\"role\": \"user\", "
        "\"content\": \"3\"}], \"answer\": \"#### 4,000\"}\n"
        "{\"messages\": [{\"role\": \"system\", \"content\": \"S\"}, {\"role\": \"user\", "
        "\"content\": \"1\"}, {\"role\": \"assistant\", \"content\": \"2\"}, {\"role\": \"user\", "
        "\"content\": \"5\"}]}\n{\"prompt\": \"3\", \"answer\": \"B\"}\n";
    assert_true(open_text(&p, text, 0, &e));
    assert_int_equal(prompts_next(&p, &one, &e), 1);
    assert_string_equal(one.system, "S");
    assert_int_equal(one.n_past, 1);
    assert_string_equal(one.past[0].user, "1");
    assert_string_equal(one.past[0].reply, "2");
    assert_string_equal(one.text, "3");
    assert_string_equal(one.answer, "4000");
    assert_int_equal(prompts_next(&p, &other, &e), 1);
    assert_true(prompt_same_past(&one, &other));
    assert_null(other.answer);
    prompt_free(&other);
    assert_int_equal(prompts_next(&p, &other, &e), 1);
    assert_false(prompt_same_past(&one, &other));
    assert_null(other.answer);
    prompt_free(&one);
    prompt_free(&other);
    prompts_close(&p);
}

/* Each wrong line is one line of complaint that has its number; nothing is left open. */
static void test_every_wrong_line_is_named(void **unused)
{
    (void)unused;
    static const char *const wrong[] = {
        "{}", "{\"prompt\": 1}", "{\"prompt\": \"\"}", "{\"prompt\": \"x\"", "[1]", "\"x\"", "x",
        "{\"prompt\": \"x\", \"prompt\": \"y\"}", "{\"prompt\": \"x\", \"messages\": []}",
        "{\"messages\": {}}", "{\"messages\": []}", "{\"messages\": [1]}",
        "{\"messages\": [{\"role\": \"user\"}]}", "{\"messages\": [{\"content\": \"x\"}]}",
        "{\"messages\": [{\"role\": \"assistant\", \"content\": \"x\"}]}",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}, {\"role\": \"system\", "
        "\"content\": \"x\"}]}",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}, {\"role\": \"assistant\", "
        "\"content\": \"x\"}]}",
        "{\"messages\": [{\"role\": \"user\", \"content\": [\"x\"]}]}",
        "{\"prompt\": \"a\\u0000b\"}", "{\"prompt\": \"\xff\"}",
    };
    enum { N = sizeof wrong / sizeof *wrong };
    struct buf text = {0};
    struct prompts p;
    struct err e;
    buf_str(&text, "{\"prompt\": \"x\"}\n");
    for (int i = 0; i < N; i++)
        buf_printf(&text, "%s\n", wrong[i]);
    assert_false(open_text(&p, text.p, 0, &e));
    assert_int_equal(e.kind, ERR_USAGE);
    assert_non_null(strstr(e.msg, "20 lines of"));
    const char *at = said.p;
    for (int i = 0; i < N; i++) {
        char *want = xasprintf("%s line %d: ", path, i + 2);
        assert_int_equal(strncmp(at, want, strlen(want)), 0);
        free(want);
        at = strchr(at, '\n') + 1;
    }
    assert_int_equal(*at, '\0');
    buf_free(&text);
}

static void test_files_without_prompts_are_refused(void **unused)
{
    (void)unused;
    struct prompts p;
    struct err e;
    assert_false(open_text(&p, "", 0, &e));
    assert_non_null(strstr(e.msg, "no prompt"));
    assert_false(open_text(&p, "\n \n\t\r\n", 0, &e));
    write_file("a\nb\0c\n", 6);
    e = (struct err){0};
    assert_false(prompts_open(&p, path, 0, complain, &e));
    assert_non_null(strstr(said.p, "line 2: the line has a NUL byte"));
    e = (struct err){0};
    assert_false(prompts_open(&p, "/", 0, complain, &e));
    e = (struct err){0};
    assert_false(prompts_open(&p, "/nowhere/to/be/found", 0, complain, &e));
    assert_int_equal(e.kind, ERR_USAGE);
    buf_free(&said);
}

static int begin(void **unused)
{
    (void)unused;
    scratch = scratch_folder();
    path = xasprintf("%s/prompts", scratch);
    return 0;
}

static int end(void **unused)
{
    (void)unused;
    free(path);
    scratch_remove(scratch);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_last_number_is_found_and_written_one_way),
        cmocka_unit_test(test_a_number_too_long_to_keep_is_none),
        cmocka_unit_test(test_the_first_line_decides_the_form),
        cmocka_unit_test(test_messages_become_the_conversation_before_the_prompt),
        cmocka_unit_test(test_every_wrong_line_is_named),
        cmocka_unit_test(test_files_without_prompts_are_refused),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
