/* test_input.c - bytes to keys (repl/tui/keys.c), the line editor (repl/tui/input.c), input history
 * (repl/tui/recall.c). */
#include "repl/tui/input.h"
#include "kernels/utf8.h"
#include "repl/text/sheet.h"
#include "tests/chance.h"
#include "tests/scratch.h"

#include <setjmp.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- keys ---- */

/* Feeds bytes and names the keys that come out: "a C-a M-b up S-enter paste(text)". */
static void read_keys(const char *bytes, size_t n, size_t part, struct buf *out)
{
    struct keys k = {0};
    struct key key;
    for (size_t i = 0; i < n || n == 0; i += part) {
        keys_feed(&k, bytes + i, part < n - i ? part : n - i);
        while (keys_next(&k, i + part >= n, &key)) {
            static const char *const names[] = {
                [K_ENTER] = "enter", [K_TAB] = "tab", [K_BACKSPACE] = "bs", [K_DELETE] = "del",
                [K_INSERT] = "ins", [K_ESC] = "esc", [K_UP] = "up", [K_DOWN] = "down",
                [K_LEFT] = "left", [K_RIGHT] = "right", [K_HOME] = "home", [K_END] = "end",
                [K_PGUP] = "pgup", [K_PGDN] = "pgdn", [K_F1] = "f1", [K_F2] = "f2", [K_F5] = "f5",
                [K_F12] = "f12",
            };
            buf_printf(out, "%s%s%s%s", out->n ? " " : "", key.ctrl ? "C-" : "",
                       key.alt ? "M-" : "", key.shift ? "S-" : "");
            if (key.code == K_CHAR)
                buf_utf8(out, key.cp);
            else if (key.code == K_PASTE)
                buf_printf(out, "paste(%.*s)", (int)key.n, key.text);
            else
                buf_str(out, names[key.code] ? names[key.code] : "?");
        }
    }
    keys_free(&k);
}

static void test_keys_by_example(void **state)
{
    (void)state;
    static const struct {
        const char *bytes, *keys;
    } cases[] = {
        {"aé中", "a é 中"},
        {"\x01\x1a\r\n\t\x7f\x08", "C-a C-z enter C-j tab bs bs"},
        {"\033[A\033OA\033[1;5C\033[1;3D\033[1;2B", "up up C-right M-left S-down"},
        {"\033[H\033[F\033[1~\033[4~\033[7~\033[8~", "home end home end home end"},
        {"\033[3~\033[5~\033[6~\033[2~", "del pgup pgdn ins"},
        {"\033OP\033[12~\033[15~\033[[A\033[24~", "f1 f2 f5 f1 f12"},
        {"\033b\033\r\033\x7f\033é", "M-b M-enter M-bs M-é"},
        {"\033[Z\033[13;2u\033[27;5;13~", "S-tab S-enter C-enter"},
        {"\033\033[D", "M-left"},
        {"\033", "esc"},
        {"\033[99~x\033[?1;2cy", "x y"}, /* unknown sequences vanish whole */
        {"\033[200~one\rtwo\033[201~z", "paste(one\rtwo) z"},
        {"\033[200~\033[31m\x01\033[201~", "paste(\033[31m\x01)"},
        {"\xff", "\uFFFD"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct buf out = {0};
        read_keys(cases[i].bytes, strlen(cases[i].bytes), SIZE_MAX / 2, &out);
        assert_string_equal(out.p, cases[i].keys);
        buf_free(&out);
    }
}

/* The answer to "which background?" is a key of its own, however late and however cut it comes. */
static void test_answers_of_the_terminal_are_not_typed(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        uint32_t rgb;
    } cases[] = {
        {"\033]11;rgb:1e1e/2F2f/3d3d\033\\", 0x1E2F3D}, {"\033]11;rgb:ff/00/80\007", 0xFF0080},
        {"\033]11;rgb:ffff/ffff/ffff\007", 0xFFFFFF},   {"\033]11;rgb:f/0/8\007", 0xFF0088},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t cut = 2; cut <= strlen(cases[i].bytes); cut++) {
            struct keys k = {.answer_due = true};
            struct key key;
            keys_feed(&k, cases[i].bytes, cut);
            bool whole = keys_next(&k, false, &key);
            assert_int_equal(whole, cut == strlen(cases[i].bytes));
            if (!whole && cut > 2) { /* time passes: nothing is typed */
                assert_true(keys_wait(&k) < 0);
                assert_false(keys_next(&k, true, &key));
            }
            keys_feed(&k, cases[i].bytes + cut, strlen(cases[i].bytes) - cut);
            if (!whole)
                assert_true(keys_next(&k, false, &key));
            assert_int_equal(key.code, K_BACKGROUND);
            assert_int_equal(key.cp, cases[i].rgb);
            keys_feed(&k, "x", 1);
            assert_true(keys_next(&k, false, &key));
            assert_int_equal(key.cp, 'x');
            keys_free(&k);
        }
    for (char c = 1; c > 0; c++) { /* only hexadecimal digits are digits */
        char bytes[] = "\033]11;rgb:1?/1/1\007";
        struct keys k = {0};
        struct key key = {0};
        bytes[10] = c;
        keys_feed(&k, bytes, sizeof bytes - 1);
        bool is_color = keys_next(&k, true, &key) && key.code == K_BACKGROUND;
        assert_int_equal(is_color, strchr("0123456789abcdefABCDEF/", c) && c != '/');
        keys_free(&k);
    }
    struct buf out = {0}; /* an answer that is none, one that a key cuts short, and the keys
                             beside */
    read_keys("a\033]11;?\007b\033]11;rgb:12/\033[Ac\033]", 27, SIZE_MAX / 2, &out);
    assert_string_equal(out.p, "a ? C-g b up c M-]");
    buf_free(&out);
}

static void test_keys_do_not_depend_on_how_bytes_arrive(void **state)
{
    (void)state;
    static const char bytes[] = "a中\033[1;5C\033OP\033b\033[200~pasté\nx\033[201~\033[15~z";
    for (size_t part = 1; part < sizeof bytes; part++) {
        struct buf out = {0};
        read_keys(bytes, sizeof bytes - 1, part, &out);
        assert_string_equal(out.p, "a 中 C-right f1 M-b paste(pasté\nx) f5 z");
        buf_free(&out);
    }
}

/* The hint about a paste ends when the paste does, not only with the whole text. */
static void test_pasted_lines_are_those_still_there(void **state)
{
    (void)state;
    struct input in;
    struct key x, paste = {.code = K_PASTE, .text = "1\n2\n3\n4\n5", .n = 9};
    struct key erase = {.code = K_CHAR, .cp = 'u', .ctrl = true},
        letter = {.code = K_CHAR, .cp = 'a'};
    input_init(&in, NULL);
    input_key(&in, &paste, &x);
    assert_int_equal(in.pasted_lines, 5);
    input_key(&in, &letter, &x);
    assert_int_equal(in.pasted_lines, 5);
    input_key(&in, &erase, &x); /* the last line's text, then its line break */
    assert_int_equal(in.pasted_lines, 5);
    input_key(&in, &erase, &x);
    assert_int_equal(in.pasted_lines, 0);
    assert_true(in.text.n > 0);
    input_free(&in);
}

/* Text that carries end brackets stays text: none of it is typed. */
static void test_paste_cannot_break_out(void **state)
{
    (void)state;
    static const char *const inner[] = {
        "\033[201~rm -rf ~\r", "a\033[20\033[201~1~b\r", "\x9b""201~x\r", "\xC2\x9B""201~x\r",
        "\033[201~\033[201~\r", "\033[2\033[200~01~q\r",
    };
    for (size_t i = 0; i < sizeof inner / sizeof *inner; i++) {
        struct buf bytes = {0};
        struct keys k = {0};
        struct key key;
        buf_printf(&bytes, "\033[200~%s\033[201~", inner[i]);
        keys_feed(&k, bytes.p, bytes.n);
        assert_false(keys_next(&k, false, &key)); /* not before the end is certain */
        assert_true(keys_wait(&k) >= 0);
        assert_true(keys_next(&k, true, &key));
        assert_int_equal(key.code, K_PASTE);
        assert_null(memmem(key.text, key.n, "201~", 4) ? memmem(key.text, key.n, "\033[201~", 6)
                                                       : NULL);
        assert_non_null(memchr(key.text, '\r', key.n));
        assert_false(keys_next(&k, true, &key));
        keys_free(&k);
        buf_free(&bytes);
    }
}

static void test_paste_strip_reaches_a_fixed_point(void **state)
{
    (void)state;
    static const char *const bits[] = {"\033[20", "1~", "0~", "\033[201~", "\x9b", "201~", "\xC2",
                                       "x", "\033", "[", "\033[200~"};
    for (int i = 0; i < 20000; i++) {
        struct buf b = {0}, again = {0};
        for (int n = 1 + below(12); n > 0; n--)
            buf_str(&b, bits[below(sizeof bits / sizeof *bits)]);
        b.n = paste_strip(b.p, b.n);
        buf_add(&again, b.p, b.n);
        assert_int_equal(paste_strip(again.p, again.n), b.n);
        assert_null(memmem(b.p, b.n, "\033[201~", 6));
        assert_null(memmem(b.p, b.n, "\x9b""201~", 5));
        buf_free(&b);
        buf_free(&again);
    }
}

/* Each byte of a paste is looked at once as it comes, and the whole goes into the text at once. */
static void test_a_large_paste_is_one_key(void **state)
{
    (void)state;
    enum { N = 1 << 20, PART = 4096 };
    struct input in;
    struct keys k = {0};
    struct key key, x;
    struct buf b = {0};
    int n_keys = 0;
    for (size_t i = 0; i < N; i++)
        buf_char(&b, i % 61 == 60 ? '\r' : 'a');
    input_init(&in, NULL);
    keys_feed(&k, "\033[200~", 6);
    for (size_t i = 0; i < N; i += PART) {
        keys_feed(&k, b.p + i, PART);
        assert_false(keys_next(&k, false, &key));
        assert_true(k.in.n - k.at < 6); /* no more than the beginning of an end bracket waits */
    }
    keys_feed(&k, "\033[201~", 6);
    while (keys_next(&k, true, &key)) {
        n_keys++;
        assert_int_equal(key.code, K_PASTE);
        input_key(&in, &key, &x);
    }
    input_layout(&in);
    assert_int_equal(n_keys, 1);
    assert_int_equal(in.text.n, N);
    assert_int_equal(in.pasted_lines, 1 + N / 61);
    assert_int_equal(in.n_row, 1 + N / 61);
    input_free(&in);
    keys_free(&k);
    buf_free(&b);
}

/* ---- the editor ---- */

static enum input_act type(struct input *in, const char *bytes)
{
    struct keys k = {0};
    struct key key, x;
    enum input_act act = IN_NONE;
    keys_feed(&k, bytes, strlen(bytes));
    while (keys_next(&k, true, &key))
        act = input_key(in, &key, &x);
    keys_free(&k);
    return act;
}

/* Types and compares text and cursor; '|' in expected is the cursor. */
static void assert_typed(struct input *in, const char *bytes, const char *expected)
{
    struct buf b = {0};
    type(in, bytes);
    buf_add(&b, in->text.p, in->cursor);
    buf_char(&b, '|');
    buf_str(&b, in->text.p + in->cursor);
    assert_string_equal(b.p, expected);
    buf_free(&b);
}

#define LEFT "\033[D"
#define RIGHT "\033[C"
#define UP "\033[A"
#define DOWN "\033[B"

static void test_editing_by_example(void **state)
{
    (void)state;
    static const struct {
        const char *bytes, *expected;
    } cases[] = {
        {"hello", "hello|"},
        {"hello" LEFT LEFT "X", "helX|lo"},
        {"hello\x01" "X\x05Y", "XhelloY|"},
        {"one two\x17", "one |"},
        {"one two\033b\033b\033f", "one| two"},
        {"one two\033\x7f", "one |"},
        {"one two\x01\033d", "| two"},
        {"one two\x01\x0b\x19\x19", "one twoone two|"},
        {"one two three\x17\x17\x19", "one two three|"},
        {"one two\x15\x19!", "one two!|"},
        {"a\nb\nc" UP "X", "a\nbX|\nc"},
        {"long line\nx\nanother one" UP UP, "long line|\nx\nanother one"},
        {"a\033\rb", "a\nb|"},
        {"ab\nc\x01\x7f", "ab|c"},
        {"caf\xC3\xA9" LEFT "X", "cafX|\xC3\xA9"},
        {"e\xCC\x81x" LEFT LEFT "Y", "Y|e\xCC\x81x"},
        {"x\xF0\x9F\x91\xA8\xE2\x80\x8D\xF0\x9F\x91\xA7\x7f", "x|"},
        {"ab\033t", "ba|"},
        {"hello world\x01\033u", "HELLO| world"},
        {"hello\x01\033c", "Hello|"},
        {"ab\x01\x04", "|b"},
        {"x\x01\x0b\x0b", "|"},
        {"one\ntwo\x01" LEFT "\x0b", "one|two"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct input in;
        input_init(&in, NULL);
        assert_typed(&in, cases[i].bytes, cases[i].expected);
        input_free(&in);
    }
}

static void test_acts(void **state)
{
    (void)state;
    struct input in;
    input_init(&in, NULL);
    assert_int_equal(type(&in, "\r"), IN_NONE);
    assert_int_equal(type(&in, "\x04"), IN_EOF);
    assert_int_equal(type(&in, UP), IN_RECALL_QUEUED);
    assert_int_equal(type(&in, "x\r"), IN_SEND);
    assert_int_equal(type(&in, "\x07"), IN_EDITOR);
    assert_int_equal(type(&in, "\x18\x05"), IN_EDITOR);
    assert_int_equal(type(&in, "\x03"), IN_STOP);
    assert_int_equal(type(&in, "\t"), IN_COMPLETE);
    assert_int_equal(type(&in, "\033[11~"), IN_OTHER);
    char *s = input_take(&in, false);
    assert_string_equal(s, "x");
    assert_int_equal(in.text.n, 0);
    free(s);
    input_free(&in);
}

static void test_text_is_capped(void **state)
{
    (void)state;
    struct input in;
    char *big = xmalloc(INPUT_MAX + 10);
    memset(big, 'a', INPUT_MAX + 10);
    memcpy(big + INPUT_MAX - 1, "\xC3\xA9", 2); /* the cap falls inside this character */
    input_init(&in, NULL);
    assert_false(input_insert(&in, big, INPUT_MAX + 10));
    assert_int_equal(in.text.n, INPUT_MAX - 1);
    assert_true(input_insert(&in, "b", 1));
    assert_int_equal(type(&in, "c"), IN_FULL);
    input_free(&in);
    free(big);
}

/* Whatever is typed: rows cover the text in order, the cursor is at a cluster, in the layout. */
static void test_random_keys_keep_the_rules(void **state)
{
    (void)state;
    static const char *const keys[] = {
        "a",
        "b c",
        "\xC3\xA9",
        "\xE4\xB8\xAD",
        "e\xCC\x81",
        "\xF0\x9F\x98\x80",
        "\x1B[200~p\rq\x1B[201~",
        LEFT,
        RIGHT,
        UP,
        DOWN,
        "\x01",
        "\x05",
        "\x17",
        "\x0b",
        "\x15",
        "\x19",
        "\x7f",
        "\x1B[3~",
        "\x1B"
        "b",
        "\x1B"
        "f",
        "\x1B"
        "d",
        "\x1Bt",
        "\x0a",
        "\x12",
        "\x1B[1;5D",
        "\x1B[200~\t\x01\xFF\x1B[201~",
    };
    struct recall r;
    struct input in;
    recall_open(&r, NULL);
    recall_add(&r, "earlier", 7);
    recall_add(&r, "two\nlines", 9);
    for (int round = 0; round < 300; round++) {
        input_init(&in, &r);
        for (int i = 0; i < 200; i++) {
            in.width = TAB_CELLS + below(20);
            type(&in, keys[below(sizeof keys / sizeof *keys)]);
            int row, column, w;
            input_cursor(&in, &row, &column);
            assert_true(row >= 0 && row < in.n_row);
            assert_true(in.cursor >= in.row[row].from && in.cursor <= in.row[row].to);
            assert_true(column <= in.width);
            assert_int_equal(in.row[0].from, 0);
            assert_int_equal(in.row[in.n_row - 1].to, in.text.n);
            bool at_cluster = in.cursor == in.text.n;
            for (size_t k = 0; k < in.text.n; k += input_cluster(in.text.p + k, in.text.n - k, &w))
                at_cluster |= k == in.cursor;
            assert_true(at_cluster);
        }
        input_free(&in);
    }
    recall_close(&r);
}

/* ---- history ---- */

static void test_up_and_down_walk_the_history(void **state)
{
    (void)state;
    struct recall r;
    struct input in;
    recall_open(&r, NULL);
    recall_add(&r, "first", 5);
    recall_add(&r, "second", 6);
    recall_add(&r, "first", 5); /* moves to the end */
    assert_int_equal(r.n, 2);
    input_init(&in, &r);
    assert_typed(&in, "draft" UP, "first|");
    assert_typed(&in, UP, "second|");
    assert_typed(&in, UP, "second|");
    assert_typed(&in, DOWN DOWN, "draft|");
    assert_typed(&in, UP "!\x15", "|");
    input_free(&in);
    recall_close(&r);
}

static void test_incremental_search(void **state)
{
    (void)state;
    struct recall r;
    struct input in;
    recall_open(&r, NULL);
    recall_add(&r, "show the pages", 14);
    recall_add(&r, "page size", 9);
    recall_add(&r, "other", 5);
    input_init(&in, &r);
    assert_typed(&in, "mine\x12" "page", "|page size");
    assert_true(in.searching);
    assert_typed(&in, "\x12", "show the |pages");
    assert_typed(&in, "\x07", "mine|");
    assert_false(in.searching);
    assert_typed(&in, "\x12" "oth\x05", "other|"); /* another key ends it and counts */
    assert_typed(&in, UP, "page size|");
    assert_int_equal(type(&in, "\x12" "show\r"), IN_SEND);
    assert_string_equal(in.text.p, "show the pages");
    input_free(&in);
    recall_close(&r);
}

static void test_history_file_survives(void **state)
{
    (void)state;
    char *folder = scratch_folder(), *old = getenv("XDG_STATE_HOME");
    struct recall r;
    struct stat st;
    char *keep = old ? xstrdup(old) : NULL;
    setenv("XDG_STATE_HOME", folder, 1);
    recall_open(&r, recall_path("history"));
    assert_int_equal(r.n, 0);
    recall_add(&r, "two\nlines \\n \\", 14);
    recall_add(&r, " secret", 7);
    recall_add(&r, "plain", 5);
    for (int i = 0; i < 3 * RECALL_MAX; i++) {
        char text[32];
        recall_add(&r, text, (size_t)snprintf(text, sizeof text, "entry %d", i % (RECALL_MAX - 2)));
    }
    recall_close(&r);
    recall_open(&r, recall_path("history")); /* rewritten, because it had grown */
    recall_close(&r);
    recall_open(&r, recall_path("history"));
    assert_int_equal(r.n, RECALL_MAX);
    assert_string_equal(r.line[0], "two\nlines \\n \\");
    assert_string_equal(r.line[1], "plain");
    assert_int_equal(stat(r.path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    char *dir = xasprintf("%s/aerie", folder);
    assert_int_equal(stat(dir, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    FILE *f = fopen(r.path, "r");
    int lines = 0;
    for (int c; (c = fgetc(f)) != EOF;)
        lines += c == '\n';
    fclose(f);
    assert_int_equal(lines, RECALL_MAX);
    free(dir);
    recall_close(&r);
    scratch_remove(folder);
    if (keep)
        setenv("XDG_STATE_HOME", keep, 1);
    else
        unsetenv("XDG_STATE_HOME");
    free(keep);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keys_by_example),
        cmocka_unit_test(test_pasted_lines_are_those_still_there),
        cmocka_unit_test(test_answers_of_the_terminal_are_not_typed),
        cmocka_unit_test(test_keys_do_not_depend_on_how_bytes_arrive),
        cmocka_unit_test(test_paste_cannot_break_out),
        cmocka_unit_test(test_paste_strip_reaches_a_fixed_point),
        cmocka_unit_test(test_a_large_paste_is_one_key),
        cmocka_unit_test(test_editing_by_example),
        cmocka_unit_test(test_acts),
        cmocka_unit_test(test_text_is_capped),
        cmocka_unit_test(test_random_keys_keep_the_rules),
        cmocka_unit_test(test_up_and_down_walk_the_history),
        cmocka_unit_test(test_incremental_search),
        cmocka_unit_test(test_history_file_survives),
    };
    return cmocka_run_group_tests_name("input", tests, NULL, NULL);
}
