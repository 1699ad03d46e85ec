/* Markdown as rows: no row can act on a terminal, every span shows bytes of the text, and a reply
 * that arrives in pieces ends as it looks in one. */
#include "repl/text/markdown.h"
#include "repl/text/transcript.h"
#include "tests/fuzz/fuzz.h"

const int fuzz_inputs = 1200;

static void look_at_rows(const struct sheet *s, size_t n, int width)
{
    for (int i = 0; i < s->n_row; i++) {
        const struct sheet_row *r = &s->row[i];
        fuzz_clean(r->text.p ? r->text.p : "", r->text.n, false);
        if (width >= 50) /* narrower ones cannot hold deep nesting; the frame clips */
            CHECK(text_width(r->text.p ? r->text.p : "", r->text.n) <= width);
        for (int k = 0; k < r->n_span; k++) {
            const struct span *p = &r->span[k];
            CHECK(p->at >= 0 && p->n >= 0 && (size_t)p->at + (size_t)p->n <= r->text.n &&
                  (int)p->style < N_STYLES);
            CHECK(p->src < 0 || (p->src_n >= 0 && (size_t)p->src + (size_t)p->src_n <= n));
        }
    }
}

static void frame(struct transcript *t, struct buf *out)
{
    enum { HEIGHT = 60 };
    struct transcript_line line[HEIGHT];
    transcript_view(t, 60, HEIGHT, line);
    buf_clear(out);
    for (int i = 0; i < HEIGHT; i++) {
        if (line[i].row)
            buf_add(out, line[i].row->text.p, line[i].row->text.n);
        buf_char(out, '\n');
    }
}

static void stream(const char *text, size_t n, uint64_t seed)
{
    static struct buf a, b;
    struct transcript whole, parts;
    transcript_init(&whole, false);
    transcript_init(&parts, false);
    transcript_append(&whole, 1, ENTRY_REPLY, text, n);
    for (size_t at = 0, k; at < n; at += k) {
        seed = mix64(seed);
        k = 1 + seed % 20;
        k = k < n - at ? k : n - at;
        transcript_append(&parts, 1, ENTRY_REPLY, text + at, k);
        if (seed >> 40 & 1)
            frame(&parts, &b);
    }
    transcript_end(&whole, 1);
    transcript_end(&parts, 1);
    frame(&whole, &a);
    frame(&parts, &b);
    CHECK(a.n == b.n && memcmp(a.p, b.p, a.n) == 0);
    transcript_free(&whole);
    transcript_free(&parts);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static struct buf out;
    unsigned choice = fuzz_choice(data, &n);
    int width = choice & 1 ? 60 : 1 + (int)(choice >> 1);
    char *text = fuzz_tail(data, n);
    struct sheet s = {.ascii = choice % 3 == 0};
    markdown_render(text, n, width, &s);
    look_at_rows(&s, n, width);
    sheet_clear(&s);
    markdown_render_open(text, n, width, &s);
    look_at_rows(&s, n, width);
    sheet_free(&s);
    CHECK(markdown_block(text, n) <= n);
    buf_clear(&out);
    markdown_definitions(text, n, &out);
    CHECK(out.n >= n);
    if (choice % 4 == 0)
        stream(text, n, choice);
    return 0;
}
