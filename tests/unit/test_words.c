/* test_words.c - from the words on the screen back to the tokens that produced them: sources of
 * rendered rows (sheet.h, markdown.h), tokens and text (align.h), words of the transcript
 * (words.h). */
#include "kernels/utf8.h"
#include "repl/text/align.h"
#include "repl/text/markdown.h"
#include "repl/text/words.h"
#include "tests/chance.h"

#include <setjmp.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

static void random_document(struct buf *b, int n)
{
    static const char *const bits[] = {
        "word ", "another, ", "\n", "\n\n", "**bold** ", "*", "`code` ", "`", "```c\n", "```\n",
        "~~~\n",
        "- item\n", "  - deeper\n", "1. one\n", "> quote\n", "> ```\n> in quote\n",
        "| a | b |\n|---|---|\n",
        "| x | a cell of several words |\n", "# Head\n", "---\n", "    indented\n", "[link](u) ",
        "[1]: http://x\n",
        "&amp;", "&#65;", "<i>", "\xE4\xB8\xAD\xE6\x96\x87 ", "\033[31m", "\xFF", "\t", "\\*",
        "![i](s)", "\r", "e\xCC\x81 ", "\xF0\x9F\x98\x80", "ha", "ha",
    };
    buf_clear(b);
    buf_add(b, "", 0);
    for (int i = 0; i < n; i++)
        buf_str(b, bits[below(sizeof bits / sizeof *bits)]);
}

/* ---- sources of rows ---- */

/* What a row shows one to one is in the text at its source. Returns how many bytes were
 * compared. */
static size_t assert_sources(const struct sheet *s, int from, const char *text, size_t n)
{
    size_t compared = 0;
    for (int i = from; i < s->n_row; i++)
        for (int k = 0; k < s->row[i].n_span; k++) {
            const struct span *sp = &s->row[i].span[k];
            if (sp->src < 0)
                continue;
            assert_true(sp->src_n > 0 && (size_t)(sp->src + sp->src_n) <= n);
            if (sp->n != sp->src_n || sp->style == ST_ESCAPE || text[sp->src] == '&')
                continue;
            for (int c = 0; c < sp->n; c++) {
                char shown = s->row[i].text.p[sp->at + c], is = text[sp->src + c];
                assert_true(shown == is || (shown == ' ' && is == '\t'));
            }
            compared += (size_t)sp->n;
        }
    return compared;
}

static void test_rows_know_their_sources(void **state)
{
    (void)state;
    struct buf b = {0};
    size_t compared = 0, bytes = 0;
    for (int i = 0; i < 3000; i++) {
        random_document(&b, below(40));
        struct sheet s = {.ascii = i % 3 == 0};
        markdown_render(b.p, b.n, 1 + below(80), &s);
        compared += assert_sources(&s, 0, b.p, b.n);
        bytes += b.n;
        sheet_clear(&s);
        markdown_render_open(b.p, b.n, 40, &s);
        assert_sources(&s, 0, b.p, b.n);
        sheet_free(&s);
    }
    assert_true(compared > bytes / 3); /* the rest is marks, blanks and line breaks */
    buf_free(&b);
}

/* All letters of a text are shown with their places, whatever is around them. */
static void test_every_letter_has_its_source(void **state)
{
    (void)state;
    static const char *const docs[] = {
        "plain words", "**bold** and *em* and `code`", "- a\n- b\n  - c", "> quoted text\n> more",
        "```c\nint x;\n\ty;\n```",
        "    code\n    more", "| a | b |\n|---|---|\n| cell | other |", "# Head\n\ntext",
        "[1]: http://x\n\nsee [1]",
        "> ```\n> fenced\n> ```", "1. one\n\n   para", "a [link](target) b",
    };
    for (size_t d = 0; d < sizeof docs / sizeof *docs; d++)
        for (int width = 3; width < 80; width += 19) {
            size_t n = strlen(docs[d]);
            char *seen = xcalloc(n + 1, 1);
            struct sheet s = {0};
            markdown_render(docs[d], n, width, &s);
            for (int i = 0; i < s.n_row; i++)
                for (int k = 0; k < s.row[i].n_span; k++)
                    for (int c = 0; c < s.row[i].span[k].src_n; c++)
                        seen[s.row[i].span[k].src + c] = 1;
            for (size_t i = 0; i < n; i++)
                if (docs[d][i] >= 'a' && docs[d][i] <= 'z' && !strstr(docs[d], "target") &&
                    docs[d][i + 1] != '\n' && !(strncmp(docs[d] + i, "c\nint", 5) == 0))
                    assert_true(seen[i]);
            sheet_free(&s);
            free(seen);
        }
}

/* ---- tokens and text ---- */

struct told {
    size_t from[400], to[400];
    int order; /* the last token reported by the callback */
};

static void tell(void *arg, int token, size_t from, size_t to)
{
    struct told *w = arg;
    assert_true(token < 400 && from < to && token >= w->order);
    if (w->to[token] > w->from[token]) /* more of the same token */
        assert_int_equal(w->to[token], from);
    else
        w->from[token] = from;
    w->to[token] = to;
    w->order = token;
}

/* A reply of random tokens, some of which show nothing. The places found are the true ones. */
static void test_random_tokens_find_their_text(void **state)
{
    (void)state;
    static const char *const piece[] = {"the", " the", " a", "\n", "\xE4\xB8", "\xE6\x96\x87",
                                        " \xF0\x9F", ".", "aa", "a"};
    static const char *const rest[] = {[4] = "\xAD", [6] = "\x98\x80", [9] = NULL};
    static const char *const mark[] = {"<|end|>", "<|channel|>", "analysis", "final",
                                       "<|message|>"};
    for (int round = 0; round < 3000; round++) {
        struct align a = {0};
        struct told *got = xcalloc(1, sizeof *got);
        struct buf text = {0};
        size_t from[400], to[400], cut;
        int n = 1 + below(160);
        const char *open = NULL; /* completes the character */
        for (int i = 0; i < n; i++) {
            bool hidden = !open && below(6) == 0;
            int k = below(10);
            const char *p = open ? open : hidden ? mark[below(5)] : piece[k];
            open = open || hidden ? NULL : rest[k];
            from[i] = text.n;
            if (!hidden)
                buf_str(&text, p);
            to[i] = text.n;
            align_token(&a, p, strlen(p));
        }
        cut = text.n ? below((int)text.n) : 0;
        align_text(&a, text.p, cut);
        align_text(&a, text.p + cut, text.n - cut);
        align_run(&a, tell, got);
        size_t at = 0; /* every byte belongs to one token */
        for (int i = 0; i < n; i++)
            if (got->to[i] > got->from[i]) {
                assert_int_equal(got->from[i], at);
                at = got->to[i];
            }
        assert_int_equal(at, text.n);
        for (int i = 0; i < n; i++) /* and to the true one: none of the texts above reads in two
                                       ways */
            if (to[i] > from[i]) {
                assert_int_equal(got->from[i], from[i]);
                assert_int_equal(got->to[i], to[i]);
            }
        align_free(&a);
        buf_free(&text);
        free(got);
    }
}

/* A server removes blanks at the beginning and ends a reply within a token, at a stop string. */
static void test_removed_blanks_and_a_stop_string(void **state)
{
    (void)state;
    static const char *const token[] = {"<think>", "final", "</think>", "\n\nfinal", " word",
                                        " and<<", "<stop", "<eos>"};
    struct align a = {0};
    struct told got = {0};
    for (size_t i = 0; i < sizeof token / sizeof *token; i++)
        align_token(&a, token[i], strlen(token[i]));
    align_text(&a, "final word and", 14);
    align_run(&a, tell, &got);
    assert_int_equal(got.to[1], 0); /* the header says "final", too */
    assert_int_equal(got.from[3], 0);
    assert_int_equal(got.to[3], 5);
    assert_int_equal(got.to[4], 10);
    assert_int_equal(got.to[5], 14);
    assert_int_equal(got.to[6], 0);
    align_free(&a);
}

/* ---- words ---- */

/* A transcript whose reply has a mark for each random piece of its text. */
static void marked(struct transcript *t, struct buf *doc)
{
    transcript_init(t, below(3) == 0);
    t->raw = below(6) == 0;
    transcript_user(t, 1, "question", 8);
    transcript_append(t, 1, ENTRY_REPLY, doc->p, doc->n);
    if (below(2))
        transcript_end(t, 1);
    for (int at = 0, i = 0; at < (int)doc->n; i++) {
        int n = min_int(1 + below(7), (int)doc->n - at);
        words_mark(t, 1, ENTRY_REPLY,
                   (struct token_mark){.from = at, .to = at + n, .step = 1 + i / 3, .nth = i % 3,
                                       .id = i});
        at += n;
    }
}

/* Each character of a word that is shown as it is stands in the token that the word names for
 * it. */
static int assert_word(const struct transcript *t, struct word w)
{
    const struct entry *e = &t->entry[w.entry];
    const struct sheet_row *r = &e->rows.row[w.row];
    int first, n = words_tokens(e, w, &first), x = 0, shown = 0;
    struct glyph g;
    assert_true(n > 0 && w.from < w.to && w.to <= (int)e->text.n);
    assert_true(e->mark[first].from <= w.from && e->mark[first + n - 1].to >= w.to);
    for (size_t at = 0; at < r->text.n; x += g.width) {
        size_t k = text_next(r->text.p + at, r->text.n - at, &g);
        for (size_t i = 0; i < k && x >= w.x && x < w.x + w.w; i++) {
            int len, src = sheet_source_of(r, (int)(at + i), &len);
            const struct token_mark *m = words_token(e, src);
            assert_true(src >= w.from && src < w.to && m && m->id >= e->mark[first].id &&
                        m->id < e->mark[first].id + n);
            shown += len == 1 && r->text.p[at + i] == e->text.p[src];
        }
        at += k;
    }
    return shown;
}

static void test_every_word_names_its_tokens(void **state)
{
    (void)state;
    struct buf doc = {0};
    int shown = 0;
    for (int i = 0; i < 1500; i++) {
        struct transcript t;
        struct transcript_line line[30];
        struct word w, v, back[400];
        int n = 0;
        random_document(&doc, 1 + below(40));
        marked(&t, &doc);
        transcript_view(&t, 10 + below(80), 30, line);
        for (bool any = words_end(&t, false, &w); any && n < 400; any = words_next(&t, 1, &w)) {
            shown += assert_word(&t, w);
            back[n++] = w;
            assert_true(words_at(&t, w.entry, w.row, w.x + w.w - 1, &v) && v.x == w.x &&
                        v.from == w.from);
            assert_true(words_of_byte(&t, w.entry, w.from, &v) && v.from <= w.from &&
                        v.to > w.from);
        }
        for (int k = n; n < 400 && k-- > 0;) { /* and back the same way */
            assert_memory_equal(&back[k], &w, sizeof w);
            assert_int_equal(words_next(&t, -1, &w), k > 0);
        }
        if (n > 0 && words_of_step(&t, 1, 2, &v)) {
            const struct token_mark *m = words_token(&t.entry[v.entry], v.from);
            assert_true(m && (m->step <= 2 || v.from > t.entry[v.entry].mark[3].from));
        }
        transcript_free(&t);
    }
    assert_true(shown > 20000);
    buf_free(&doc);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_know_their_sources),
        cmocka_unit_test(test_every_letter_has_its_source),
        cmocka_unit_test(test_random_tokens_find_their_text),
        cmocka_unit_test(test_removed_blanks_and_a_stop_string),
        cmocka_unit_test(test_every_word_names_its_tokens),
    };
    return cmocka_run_group_tests_name("words", tests, NULL, NULL);
}
