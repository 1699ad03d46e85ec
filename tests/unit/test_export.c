/* A session as Markdown: what is in it, that its text passes the one sanitiser, and that a fork
 * holds the turns that it inherited. */
#include "tests/history_kit.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <utf8proc.h>

#include "repl/compare/facts.h"
#include "repl/repl.h"

static struct buf exported(const char *id)
{
    char path[160];
    struct buf b = {0};
    struct err e = {0};
    struct hdb *d = read_open();
    snprintf(path, sizeof path, "%s/out.md", scratch);
    unlink(path);
    if (!export_markdown(d, id, path, &e))
        fail_msg("%s", e.msg);
    assert_false(export_markdown(d, id, path, &e)); /* never over a file that exists */
    assert_true(buf_read_file(&b, path, 64 << 20, &e));
    hdb_close(d);
    return b;
}

/* One turn that says `text` and hears it. */
static void say_until(struct history *h, const char *id, int n, const char *text, size_t size,
                      enum stop_reason reason)
{
    struct event begin = event_of(EV_TURN_BEGIN, id, n, NULL),
        end = event_of(EV_TURN_END, id, n, NULL);
    buf_add(&begin.text, text, size);
    buf_add(&end.text, text, size);
    ids_add(&begin.tokens, n);
    ids_add(&end.tokens, n);
    begin.seed = 1;
    end.n_steps = 1;
    end.reason = reason;
    post(h, &begin);
    post(h, &end);
}

static void say(struct history *h, const char *id, int n, const char *text, size_t size)
{
    say_until(h, id, n, text, size, STOP_END);
}

static void one_session(const char *text, size_t size)
{
    struct history *h = log_open(LOG_STEPS);
    char id[SESSION_ID];
    session_new_id(id);
    post_session(h, id, "", 0);
    post_op(h, id, OP_OPEN, 0, "temperature=0.7\nseed=4\ncheck=on\nmax_tokens=9\n");
    say(h, id, 1, text, size);
    history_close(h);
}

static void add_cp(struct buf *b, uint32_t cp)
{
    utf8proc_uint8_t bytes[4];
    utf8proc_ssize_t n = utf8proc_encode_char((utf8proc_int32_t)cp, bytes);
    buf_add(b, bytes, (size_t)n);
}

/* Controls, reordering, invisible and unassigned code points: none of them is ever raw. */
static void test_no_code_point_that_hides_or_reorders_is_raw(void **state)
{
    (void)state;
    struct buf text = {0};
    int denied = 0;
    for (uint32_t cp = 1; cp <= 0x10FFFF; cp++) {
        utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
        if ((c == UTF8PROC_CATEGORY_CC && cp != '\n' && cp != '\t') || c == UTF8PROC_CATEGORY_CF ||
            c == UTF8PROC_CATEGORY_ZL || c == UTF8PROC_CATEGORY_ZP) {
            buf_char(&text, 'x');
            add_cp(&text, cp);
            denied++;
        }
    }
    static const uint32_t invisible[] = {0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x180B, 0x3164,
                                         0xFFA0, 0xFE00, 0xFE0D, 0xE0100, 0xE01EF};
    for (size_t i = 0; i < sizeof invisible / sizeof *invisible; i++) {
        buf_char(&text, 'x');
        add_cp(&text, invisible[i]);
    }
    buf_char(&text, 'x');
    assert_true(denied > 200);
    one_session(text.p, text.n);
    struct buf md = exported("last"), raw = {0};
    for (size_t i = 0; i < md.n;) {
        utf8proc_int32_t cp;
        utf8proc_ssize_t k = utf8proc_iterate((utf8proc_uint8_t *)md.p + i, -1, &cp);
        assert_true(k > 0);
        utf8proc_category_t c = utf8proc_category(cp);
        bool control = c == UTF8PROC_CATEGORY_CC && cp != '\n' && cp != '\t';
        if (control || c == UTF8PROC_CATEGORY_CF || c == UTF8PROC_CATEGORY_ZL ||
            c == UTF8PROC_CATEGORY_ZP)
            buf_printf(&raw, "U+%04X ", (unsigned)cp);
        for (size_t j = 0; j < sizeof invisible / sizeof *invisible; j++)
            if ((uint32_t)cp == invisible[j])
                buf_printf(&raw, "U+%04X ", (unsigned)cp);
        i += (size_t)k;
    }
    if (raw.n)
        fail_msg("raw in the file: %s", raw.p);
    assert_non_null(strstr(md.p, "x<U+202E>"));
    buf_free(&text);
    buf_free(&md);
}

static void test_marks_are_capped_and_tabs_kept(void **state)
{
    (void)state;
    struct buf text = {0};
    buf_str(&text, "a\tb e");
    for (int i = 0; i < 40; i++)
        add_cp(&text, 0x0301);
    one_session(text.p, text.n);
    struct buf md = exported("last");
    int marks = 0;
    for (const char *p = md.p; (p = strstr(p, "\xCC\x81")); p += 2)
        marks++;
    assert_int_equal(marks, 2 * 8 + 8); /* in the message, in the reply, in the title */
    assert_non_null(strstr(md.p, "<+32 marks>"));
    assert_non_null(strstr(md.p, "\na\tb e"));
    buf_free(&text);
    buf_free(&md);
}

static void test_it_says_what_it_was_computed_with(void **state)
{
    (void)state;
    struct history *h = log_open(LOG_STEPS);
    char id[SESSION_ID];
    session_new_id(id);
    post_session(h, id, "", 0);
    post_op(h, id, OP_OPEN, 0, "temperature=0.7\nseed=4\ncheck=on\nmax_tokens=9\ntop_k=0\n");
    say(h, id, 1, "hello", 5);
    post_op(h, id, OP_SET, 0, "bug.24617=on");
    post_op(h, id, OP_SET, 0, "check=off");
    say(h, id, 2, "again", 5);
    say_until(h, id, 3, "more", 4, STOP_CANCEL);
    history_close(h);
    struct buf md = exported(id);
    assert_non_null(strstr(md.p, "*settings: seed 4, temperature 0.7, check on, max_tokens 9*"));
    char *second = strstr(md.p, "## 2. You");
    assert_non_null(strstr(second, "*now: check off, fault 24617 on*"));
    assert_null(strstr(strstr(second, "*now: ") + 6, "*now: "));
    assert_non_null(strstr(strstr(md.p, "## 3. You"), "**BUG 24617 · CHECK OFF**"));
    assert_non_null(strstr(strstr(md.p, "## 2. Reply"), "\n*complete; 1 token in 1 step, "));
    assert_non_null(strstr(strstr(md.p, "## 3. Reply"), "\n*stopped by the user; 1 token"));
    assert_non_null(strstr(md.p, "- computed: cpu avx2; page size 16; context 512; aerie 0.1.0"));
    buf_free(&md);
}

static void test_a_fork_holds_what_it_inherited(void **state)
{
    (void)state;
    struct history *h = log_open(LOG_STEPS);
    char id[2][SESSION_ID];
    for (int i = 0; i < 2; i++)
        session_new_id(id[i]);
    post_session(h, id[0], "", 0);
    post_op(h, id[0], OP_OPEN, 0, "seed=1\n");
    for (int i = 1; i <= 4; i++)
        say(h, id[0], i, (const char *[]){"one", "two", "three", "four"}[i - 1], 3);
    post_session(h, id[1], id[0], 2);
    post_op(h, id[1], OP_FORK, 2, "1 2");
    say(h, id[1], 3, "own", 3);
    history_close(h);
    struct buf md = exported(id[1]);
    char mark[64];
    snprintf(mark, sizeof mark, "*inherited from %s*", id[0]);
    assert_non_null(strstr(strstr(md.p, "## 1. You"), mark));
    assert_non_null(strstr(strstr(md.p, "## 2. You"), mark));
    assert_null(strstr(strstr(md.p, "## 3. You"), mark));
    assert_null(strstr(md.p, "thr"));
    assert_null(strstr(md.p, "fou"));
    assert_non_null(strstr(strstr(md.p, "## 3. You"), "own"));
    assert_non_null(strstr(md.p, " after turn 2\n"));
    buf_free(&md);

    struct hdb *d = read_open();
    struct err e = {0};
    char path[160];
    snprintf(path, sizeof path, "%s/out.jsonl", scratch);
    assert_true(hdb_export(d, id[1], path, &e));
    assert_true(buf_read_file(&md, path, 1 << 20, &e));
    int turns = 0;
    for (const char *p = md.p; (p = strstr(p, "{\"type\":\"turn\"")); p++)
        turns++;
    assert_int_equal(turns, 6); /* two rows each */
    assert_non_null(strstr(md.p, "\"inherited\":[{"));
    assert_non_null(strstr(md.p, "\"upto\":2}],\"hazards\":null}"));
    assert_null(strstr(md.p, "\"thr\""));
    buf_free(&md);
    hdb_close(d);
}

/* An export into a disk that is full is refused with the reason, and leaves no part of a file. Of
 * several failures the message names the first. */
static void test_an_export_that_cannot_be_written_is_refused(void **state)
{
    (void)state;
    static char text[200000];
    memset(text, 'x', sizeof text);
    one_session(text, sizeof text);
    struct hdb *d = read_open();
    struct err e = {0};
    char path[160];
    int out = dup(STDOUT_FILENO), full = open("/dev/full", O_WRONLY | O_CLOEXEC);
    assert_true(out >= 0 && full >= 0);
    dup2(full, STDOUT_FILENO);
    bool ok = hdb_export(d, "last", "-", &e);
    dup2(out, STDOUT_FILENO);
    assert_false(ok);
    assert_string_equal(e.msg, "cannot write standard output: No space left on device");
    close(out);
    close(full);

    struct rlimit was, small;
    snprintf(path, sizeof path, "%s/large.jsonl", scratch);
    getrlimit(RLIMIT_FSIZE, &was);
    small = (struct rlimit){100000, was.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    ok = hdb_export(d, "last", path, &e);
    setrlimit(RLIMIT_FSIZE, &was);
    signal(SIGXFSZ, SIG_DFL);
    assert_false(ok);
    assert_non_null(strstr(e.msg, "large.jsonl: File too large"));
    assert_int_equal(access(path, F_OK), -1);
    hdb_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_no_code_point_that_hides_or_reorders_is_raw),
        TEST(test_marks_are_capped_and_tabs_kept),
        TEST(test_it_says_what_it_was_computed_with),
        TEST(test_a_fork_holds_what_it_inherited),
        TEST(test_an_export_that_cannot_be_written_is_refused),
    };
    return cmocka_run_group_tests_name("export", tests, NULL, NULL);
}
