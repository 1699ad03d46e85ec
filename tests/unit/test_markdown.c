/* test_markdown.c - Markdown as rows (repl/text/markdown.c) and the transcript that streams it
 * (repl/text/transcript.c). */
#include "repl/text/markdown.h"
#include "repl/text/transcript.h"
#include "tests/chance.h"

#include <setjmp.h>
#include <cmocka.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *sheet_text(const struct sheet *s)
{
    struct buf b = {0};
    buf_add(&b, "", 0);
    sheet_to_text(s, false, &b);
    return b.p;
}

static void assert_rendered(const char *md, int width, const char *expected)
{
    struct sheet s = {0};
    markdown_render(md, strlen(md), width, &s);
    char *t = sheet_text(&s);
    assert_string_equal(t, expected);
    free(t);
    sheet_free(&s);
}

static void test_blocks_by_example(void **state)
{
    (void)state;
    assert_rendered("", 40, "");
    assert_rendered("one\ntwo", 40, "one\ntwo\n");
    assert_rendered("# Head\ntext", 40, "Head\n\ntext\n");
    assert_rendered("a **b** *c* `d` ~~e~~", 40, "a b c d e\n");
    assert_rendered("[x](http://y)", 40, "x (http://y)\n");
    assert_rendered("- a\n- b\n  - c\n    1. d", 40, "• a\n• b\n  ◦ c\n    1. d\n");
    assert_rendered("- a\n\n- b", 40, "• a\n\n• b\n");
    assert_rendered("7. a\n8. b", 40, "7. a\n8. b\n");
    assert_rendered("- [ ] a\n- [x] b", 40, "[ ] a\n[x] b\n");
    assert_rendered("-\n- b", 40, "• \n• b\n");
    assert_rendered("> a\n>\n> b", 40, "▌ a\n▌ \n▌ b\n");
    assert_rendered("```c\nint x;\n\ny\n```", 40, "╭ c\n│ int x;\n│ \n│ y\n");
    assert_rendered("```\nabcdefghijkl\n```", 10, "│ abcdefgh\n│ ijkl\n");
    assert_rendered("a\n\n---\n\nb", 12, "a\n\n────────────\n\nb\n");
    assert_rendered("| a | bb |\n|---|---:|\n| ccc | d |", 40, "a   │ bb\n────┼───\nccc │  d\n");
    assert_rendered("- aaa bbb ccc", 8, "• aaa\n  bbb\n  ccc\n");
    assert_rendered("&amp; &lt; &#65; &nosuch;", 40, "& < A &nosuch;\n");
    assert_rendered("<b>html</b>", 40, "<b>html</b>\n");
    assert_rendered("a  \nb\\*", 40, "a\nb*\n");
    assert_rendered("a\033[2J `\033` &#27;", 60, "a<U+001B>[2J <U+001B> <U+001B>\n");
}

/* Where a link leads can be read, whatever the link is made of. */
static void test_link_targets_are_written_out(void **state)
{
    (void)state;
    assert_rendered("![alt](http://i)", 60, "image: alt (http://i)\n");
    assert_rendered("[![alt](http://i)](http://evil)", 60, "image: alt (http://i) (http://evil)\n");
    assert_rendered("[a ![b](http://i) c](http://evil) d", 60,
                    "a image: b (http://i) c (http://evil) d\n");
    assert_rendered("![a [b](http://l) c](http://i)", 60, "image: a b (http://l) c (http://i)\n");
    assert_rendered("<http://x> and <a@b.c>", 60, "http://x and a@b.c\n");
    assert_rendered("[http://good](http://evil)", 60, "http://good (http://evil)\n");
    assert_rendered("[http://x](http://x)", 60, "http://x\n");
    assert_rendered("[](http://x)", 60, " (http://x)\n");
    assert_rendered("| [a](http://x) |\n|---|\n| ![b](http://y) |", 60,
                    "a (http://x)\n───────────────────\nimage: b (http://y)\n");
}

/* Definitions stay on the screen, in whatever block they stand; code is left alone. */
static void test_reference_definitions_are_shown(void **state)
{
    (void)state;
    assert_rendered("See [here][1].\n\n[1]: http://x", 60, "See [here][1].\n\n[1]: http://x\n");
    assert_rendered("[a]\n\n[a]:\n<http://y> 'title'", 60, "[a]\n\n[a]:\nhttp://y 'title'\n");
    assert_rendered("> [1]: http://x", 60, "▌ [1]: http://x\n");
    assert_rendered("- a\n  [1]: http://x\n\n  [1]: http://y", 60,
                    "• a\n  [1]: http://x\n\n  [1]: http://y\n");
    assert_rendered("1. [a\\]b]: /url", 60, "1. [a]b]: /url\n");
    assert_rendered("```\n[1]: int\n```", 60, "│ [1]: int\n");
    assert_rendered("> ```\n> [1]: int\n> ```", 60, "▌ │ [1]: int\n");
    assert_rendered("[x] is no definition: it ends", 60, "[x] is no definition: it ends\n");
}

/* A table of n columns and two rows; cell "c.r". */
static void wide_table(struct buf *b, int n, int cells)
{
    for (int r = 0; r < 4; r++) {
        for (int c = 0; c < (r == 2 ? cells : n); c++)
            buf_printf(b, r == 1 ? "|---" : "|%d.%d", c, r);
        buf_str(b, "|\n");
    }
}

static void test_wide_tables_keep_their_rows(void **state)
{
    (void)state;
    static const struct {
        int columns, cells;
    } cases[] = {{2, 2}, {24, 24}, {25, 25}, {40, 40}, {100, 100}, {30, 3}, {30, 50}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct buf md = {0};
        int n = cases[i].columns;
        wide_table(&md, n, cases[i].cells);
        struct sheet s = {0};
        markdown_render(md.p, md.n, 2000, &s); /* room for all: a row a row */
        assert_int_equal(s.n_row, 4);
        for (int r = 0; r < 4; r++) {
            const char *p = s.row[r].text.p, *bar = r == 1 ? "─┼─" : " │ ";
            int bars = 0;
            for (const char *at = p; (at = strstr(at, bar)); at += strlen(bar))
                bars++;
            assert_int_equal(bars, n - 1);
            char last[16];
            snprintf(last, sizeof last, "%d.%d", n - 1, r);
            if (r == 3)
                assert_non_null(strstr(p, last));
        }
        sheet_clear(&s);
        markdown_render(md.p, md.n, 60, &s); /* too narrow for many: a line a cell, none wider */
        bool list = 3 * n + 3 * (n - 1) > 60;
        assert_int_equal(s.n_row, list ? 2 * n + 1 : 4);
        for (int r = 0; r < s.n_row; r++)
            assert_true(text_width(s.row[r].text.p, s.row[r].text.n) <= 60);
        sheet_free(&s);
        buf_free(&md);
    }
    assert_rendered("| a | b | c |\n|---|---|---|\n| long 1 | 2 | 3 |\n| x | y | z |", 9,
                    "a: long 1\nb: 2\nc: 3\n───\na: x\nb: y\nc: z\n");
    /* words are not cut: other columns become narrower, or the table becomes a list */
    static const char words[] = "|model|layers|notes|\n|---|---|---|\n|gpt-oss|24|every second one|\n";
    assert_rendered(words, 26, "model   │ layers │ notes\n────────┼────────┼────────\n"
                               "gpt-oss │ 24     │ every\n        │        │ second\n"
                               "        │        │ one\n");
    assert_rendered(words, 24, "model: gpt-oss\nlayers: 24\nnotes: every second one\n");
    assert_rendered("|a|\n|---|\n|\u4f60\u597d\u4e16\u754c\u4f60\u597d|\n", 8,
                    "a\n────────\n\u4f60\u597d\u4e16\u754c\n\u4f60\u597d\n");
}

/* Styles carry the emphasis where no character does. */
static void test_styles(void **state)
{
    (void)state;
    struct sheet s = {0};
    markdown_render("a **b** `c`", 11, 40, &s);
    assert_int_equal(s.row[0].n_span, 4);
    assert_int_equal(s.row[0].span[1].style, ST_BOLD);
    assert_int_equal(s.row[0].span[3].style, ST_CODE);
    sheet_free(&s);
}

/* ---- random documents ---- */

static void random_document(struct buf *b, int n)
{
    static const char *const bits[] = {
        "word ",
        "another ",
        "\n",
        "\n\n",
        "**bold** ",
        "*",
        "**",
        "`code` ",
        "`",
        "```c\n",
        "```\n",
        "~~~\n",
        "- item\n",
        "  - deeper\n",
        "1. one\n",
        "> quote\n",
        "| a | b |\n|---|---|\n",
        "| x | y |\n",
        "# Head\n",
        "---\n",
        "===\n",
        "    indented\n",
        "[l](u) ",
        "&amp;",
        "<i>",
        "\xE4\xB8\xAD\xE6\x96\x87 ",
        "\033[31m",
        "\xFF",
        "\t",
        "\\",
        "![i](s)",
        "\r",
        "e\xCC\x81 ",
    };
    buf_clear(b);
    buf_add(b, "", 0);
    for (int i = 0; i < n; i++)
        buf_str(b, bits[below(sizeof bits / sizeof *bits)]);
}

static void assert_harmless(const struct sheet *s, int width)
{
    for (int i = 0; i < s->n_row; i++) {
        const struct sheet_row *r = &s->row[i];
        for (size_t k = 0; k < r->text.n; k++)
            assert_true((unsigned char)r->text.p[k] >= 0x20 && r->text.p[k] != 0x7F);
        struct buf b = {0};
        text_sanitise(&b, r->text.p, r->text.n, false);
        assert_int_equal(b.n, r->text.n);
        assert_memory_equal(b.p, buf_text(&r->text), b.n);
        buf_free(&b);
        if (width >= 50) /* narrower ones cannot hold deep nesting; the frame clips */
            assert_true(text_width(r->text.p, r->text.n) <= width);
    }
}

static void test_random_documents_are_harmless_rows(void **state)
{
    (void)state;
    struct buf b = {0};
    for (int i = 0; i < 4000; i++) {
        int width = i % 2 ? 60 : 1 + below(80);
        random_document(&b, below(40));
        struct sheet s = {.ascii = i % 3 == 0};
        markdown_render(b.p, b.n, width, &s);
        assert_harmless(&s, width);
        sheet_clear(&s);
        markdown_render_open(b.p, b.n, width, &s);
        assert_harmless(&s, width);
        assert_true(markdown_block(b.p, b.n) <= b.n);
        sheet_free(&s);
    }
    buf_free(&b);
}

/* ---- streaming ---- */

static void frame(struct transcript *t, int width, int height, struct buf *out)
{
    struct transcript_line line[200];
    assert_true(height <= 200);
    transcript_view(t, width, height, line);
    buf_clear(out);
    buf_add(out, "", 0);
    for (int i = 0; i < height; i++) {
        if (line[i].row)
            buf_add(out, line[i].row->text.p, line[i].row->text.n);
        buf_char(out, '\n');
    }
}

/* However a reply arrives and however often it was drawn meanwhile, its end looks the same. */
static void test_streaming_ends_like_the_whole(void **state)
{
    (void)state;
    struct buf doc = {0}, a = {0}, b = {0};
    for (int i = 0; i < 600; i++) {
        struct transcript whole, parts;
        transcript_init(&whole, false);
        transcript_init(&parts, false);
        random_document(&doc, 1 + below(60));
        transcript_append(&whole, 1, ENTRY_REPLY, doc.p, doc.n);
        for (size_t at = 0, k; at < doc.n; at += k) {
            k = 1 + below(20);
            k = k < doc.n - at ? k : doc.n - at;
            transcript_append(&parts, 1, ENTRY_REPLY, doc.p + at, k);
            if (below(3) == 0)
                frame(&parts, 60, 40, &b);
        }
        transcript_end(&whole, 1);
        transcript_end(&parts, 1);
        frame(&whole, 60, 190, &a);
        frame(&parts, 60, 190, &b);
        assert_string_equal(a.p, b.p);
        transcript_free(&whole);
        transcript_free(&parts);
    }
    buf_free(&doc);
    buf_free(&a);
    buf_free(&b);
}

/* A complete block is rendered alone as it is within the whole. */
static void test_blocks_stand_alone(void **state)
{
    (void)state;
    static const char md[] =
        "# One\n\npara *a*\nb\n\n- x\n- y\n\n```c\ncode\n\nmore\n```\n\nend **of** it";
    size_t n = sizeof md - 1;
    struct sheet whole = {0}, split = {0};
    markdown_render(md, n, 40, &whole);
    for (size_t at = 0; at < n;) {
        size_t k = markdown_block(md + at, n - at);
        if (k == 0)
            k = n - at;
        if (at > 0)
            sheet_line(&split);
        markdown_render(md + at, k, 40, &split);
        at += k;
    }
    char *a = sheet_text(&whole), *b = sheet_text(&split);
    assert_string_equal(a, b);
    /* a fence is one block, however many blank lines it holds */
    assert_int_equal(markdown_block("```\na\n\nb\n\nc", 11), 0);
    assert_int_equal(markdown_block("a\n\nb", 4), 3);
    assert_int_equal(markdown_block("- a\n\n  b", 8), 0);
    free(a);
    free(b);
    sheet_free(&whole);
    sheet_free(&split);
}

static void test_open_blocks_do_not_jump(void **state)
{
    (void)state;
    static const struct {
        const char *md, *rows;
    } cases[] = {
        {"a **bo", "a bo\n"}, {"a **", "a\n"}, {"a `co", "a co\n"}, {"text\n-", "text\n"},
        {"text\n##", "text\n"}, {"```c\nx\n-", "╭ c\n│ x\n│ -\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sheet s = {0};
        markdown_render_open(cases[i].md, strlen(cases[i].md), 40, &s);
        char *t = sheet_text(&s);
        assert_string_equal(t, cases[i].rows);
        free(t);
        sheet_free(&s);
    }
}

/* A long reply drawn every few tokens: each frame renders the open block at the end, and nothing
 * above it again, however long the reply is. */
static void test_streaming_is_linear(void **state)
{
    (void)state;
    enum { BITS = 8000, A_BLOCK = 50, LONGEST = 13 };
    struct transcript t;
    struct transcript_line line[30];
    int frames = 0;
    size_t final = 0;
    transcript_init(&t, false);
    for (int i = 0; i < BITS; i++) {
        const char *bit = i % A_BLOCK == A_BLOCK - 1 ? "\n\n" : i % 9 ? "some words "
                          : "and `code` ";
        transcript_append(&t, 1, ENTRY_REPLY, bit, strlen(bit));
        if (i % 4)
            continue;
        transcript_view(&t, 80, 30, line);
        const struct entry *e = &t.entry[0];
        frames += e->frame == t.frame; /* it was rendered, from `final` on */
        if (e->done < final || (e->frame == t.frame && e->text.n - final > 2 * A_BLOCK * LONGEST))
            fail_msg("%d bits: %zu of %zu bytes were rendered again", i, e->text.n - final,
                     e->text.n);
        final = e->done;
    }
    assert_true(frames > BITS / 16 && final > t.entry[0].text.n - A_BLOCK * LONGEST);
    transcript_free(&t);
}

/* ---- the window ---- */

static void fill(struct transcript *t, int n)
{
    char text[64];
    for (int i = 0; i < n; i++)
        transcript_user(t, i + 1, text, (size_t)snprintf(text, sizeof text, "message %d", i));
}

static void test_window_sticks_to_the_tail_or_holds_still(void **state)
{
    (void)state;
    struct transcript t;
    struct buf a = {0}, b = {0};
    transcript_init(&t, false);
    fill(&t, 20);
    frame(&t, 40, 5, &a);
    assert_string_equal(a.p, "message 17\n\nmessage 18\n\nmessage 19\n");
    transcript_scroll(&t, -6, 5);
    frame(&t, 40, 5, &a);
    assert_string_equal(a.p, "message 14\n\nmessage 15\n\nmessage 16\n");
    transcript_user(&t, 21, "new", 3);
    struct transcript_line line[5];
    assert_int_equal(transcript_view(&t, 40, 5, line), 8);
    assert_int_equal(8 - t.below, 2); /* two of them are new */
    frame(&t, 40, 5, &b);
    assert_string_equal(a.p, b.p);
    transcript_scroll(&t, 100, 5);
    assert_true(t.tail);
    frame(&t, 40, 5, &b);
    assert_string_equal(b.p, "message 18\n\nmessage 19\n\nnew\n");
    transcript_scroll(&t, -1000, 5);
    frame(&t, 40, 5, &b);
    assert_string_equal(b.p, "message 0\n\nmessage 1\n\nmessage 2\n");
    transcript_to_head(&t);
    frame(&t, 40, 5, &a);
    assert_string_equal(a.p, b.p);
    transcript_retract(&t, 1);
    transcript_to_head(&t);
    frame(&t, 40, 3, &b);
    assert_string_equal(b.p, "message 1\n\nmessage 2\n");
    transcript_clear(&t);
    frame(&t, 40, 2, &b);
    assert_string_equal(b.p, "\n\n");
    transcript_free(&t);
    buf_free(&a);
    buf_free(&b);
}

static void test_random_scrolling_and_resizing(void **state)
{
    (void)state;
    struct transcript t;
    struct buf doc = {0};
    struct transcript_line line[60];
    transcript_init(&t, false);
    for (int i = 0; i < 4000; i++) {
        int h = 1 + below(50), w = 1 + below(90), turn = 1 + below(12);
        switch (below(8)) {
        case 0:
            random_document(&doc, below(20));
            transcript_append(&t, turn, below(3) ? ENTRY_REPLY : ENTRY_THINK, doc.p, doc.n);
            break;
        case 1: transcript_end(&t, turn); break;
        case 2: transcript_user(&t, turn, "hello", 5); break;
        case 3: transcript_scroll(&t, below(100) - 50, h); break;
        case 4: transcript_set_think(&t, below(2)); break;
        case 5: transcript_set_raw(&t, below(2)); break;
        case 6:
            if (below(4) == 0)
                transcript_retract(&t, turn);
            break;
        default: below(2) ? transcript_to_head(&t) : transcript_to_tail(&t);
        }
        int below = transcript_view(&t, w, h, line);
        assert_true(below >= 0);
        assert_true(t.tail ? below == 0 : true);
    }
    transcript_free(&t);
    buf_free(&doc);
}

/* Hostile files as a reply, as reasoning and as a message: nothing of them is obeyed. */
static void test_corpus_in_the_transcript(void **state)
{
    (void)state;
    DIR *d = opendir("tests/corpus");
    assert_non_null(d);
    for (struct dirent *f; (f = readdir(d));) {
        char path[512];
        struct buf in = {0};
        snprintf(path, sizeof path, "tests/corpus/%s", f->d_name);
        if (f->d_name[0] == '.' || !buf_read_file(&in, path, 1 << 20, NULL))
            continue;
        struct transcript t;
        struct transcript_line line[80];
        transcript_init(&t, false);
        t.think = true;
        transcript_user(&t, 1, in.p, in.n);
        transcript_append(&t, 1, ENTRY_THINK, in.p, in.n);
        transcript_append(&t, 1, ENTRY_REPLY, in.p, in.n);
        transcript_view(&t, 60, 80, line);
        for (int i = 0; i < t.n; i++)
            assert_harmless(&t.entry[i].rows, 60);
        transcript_set_raw(&t, true);
        transcript_end(&t, 1);
        transcript_view(&t, 60, 80, line);
        for (int i = 0; i < t.n; i++)
            assert_harmless(&t.entry[i].rows, 60);
        transcript_free(&t);
        buf_free(&in);
    }
    closedir(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks_by_example),
        cmocka_unit_test(test_link_targets_are_written_out),
        cmocka_unit_test(test_reference_definitions_are_shown),
        cmocka_unit_test(test_wide_tables_keep_their_rows),
        cmocka_unit_test(test_styles),
        cmocka_unit_test(test_random_documents_are_harmless_rows),
        cmocka_unit_test(test_streaming_ends_like_the_whole),
        cmocka_unit_test(test_blocks_stand_alone),
        cmocka_unit_test(test_open_blocks_do_not_jump),
        cmocka_unit_test(test_streaming_is_linear),
        cmocka_unit_test(test_window_sticks_to_the_tail_or_holds_still),
        cmocka_unit_test(test_random_scrolling_and_resizing),
        cmocka_unit_test(test_corpus_in_the_transcript),
    };
    return cmocka_run_group_tests_name("markdown", tests, NULL, NULL);
}
