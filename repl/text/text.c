/* text.c - the sanitiser, and the width of text (sheet.h); all code that depends on Unicode.
 *
 * The clean text of text_scan() is valid UTF-8 without control, bidi, invisible, tag or unassigned
 * code points. Every mark has a base character, which has at most MARKS_MAX marks; a joiner is kept
 * only between characters that it joins. Widths are those of the grapheme clusters as frame.c draws
 * them. */
#include "kernels/utf8.h"
#include "repl/text/sheet.h"

#include <utf8proc.h>

enum { MARKS_MAX = 8, TAB_STOP = 8, ZWNJ = 0x200C, ZWJ = 0x200D };

/* ---- code points ---- */

static utf8proc_category_t category(uint32_t cp)
{
    return utf8proc_category((utf8proc_int32_t)cp);
}

static bool is_letter(uint32_t cp)
{
    utf8proc_category_t c = category(cp);
    return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
}

static bool is_combining(uint32_t cp)
{
    utf8proc_category_t c = category(cp);
    return c == UTF8PROC_CATEGORY_MN || c == UTF8PROC_CATEGORY_MC || c == UTF8PROC_CATEGORY_ME;
}

static bool is_picture(uint32_t cp)
{
    return utf8proc_get_property((utf8proc_int32_t)cp)->boundclass ==
           UTF8PROC_BOUNDCLASS_EXTENDED_PICTOGRAPHIC;
}

static bool is_selector(uint32_t cp) { return cp == 0xFE0E || cp == 0xFE0F; }
static bool is_tone(uint32_t cp) { return cp >= 0x1F3FB && cp <= 0x1F3FF; }
static bool is_flag(uint32_t cp) { return cp >= 0x1F1E6 && cp <= 0x1F1FF; }

int text_cp_width(uint32_t cp)
{
    if (cp >= 0x20 && cp < 0x7F)
        return 1;
    /* vowels and finals of decomposed Hangul join the leading consonant's cell */
    if ((cp >= 0x1160 && cp <= 0x11FF) || (cp >= 0xD7B0 && cp <= 0xD7FF))
        return 0;
    if (cp == ZWJ || cp == ZWNJ || is_selector(cp))
        return 0;
    utf8proc_category_t c = category(cp);
    if (utf8_is_hidden(cp) || c == UTF8PROC_CATEGORY_MC)
        return 1;
    return utf8proc_charwidth((utf8proc_int32_t)cp);
}

/* ---- the sanitiser ---- */

struct scan {
    text_emit *emit;
    void *arg;
    const char *run; /* clean bytes not emitted yet */
    size_t n_run;
    uint32_t prev;   /* the last code point kept; 0: none to which a mark could belong */
    int marks;       /* zero-width marks of the current base */
    int excess;      /* marks beyond MARKS_MAX, to be escaped, ... */
    const char *excess_at; /* ... the first of them, ... */
    size_t excess_n;       /* ... and their bytes */
    bool selected;   /* the base has its variation selector */
};

static void flush_run(struct scan *s)
{
    if (s->n_run)
        s->emit(s->arg, PIECE_CLEAN, s->run, s->n_run, s->run, s->n_run);
    s->n_run = 0;
}

/* Emits text for the k bytes at p. */
static void emit_other(struct scan *s, enum text_piece kind, const char *text, size_t n,
                       const char *p, size_t k)
{
    flush_run(s);
    s->emit(s->arg, kind, text, n, p, k);
    s->prev = 0;
    s->marks = 0;
    s->selected = false;
}

static void flush_excess(struct scan *s)
{
    char text[32];
    if (s->excess)
        emit_other(s, PIECE_ESCAPE, text, (size_t)snprintf(text, sizeof text, "<+%d marks>",
                   s->excess), s->excess_at, s->excess_n);
    s->excess = 0;
}

static void keep_char(struct scan *s, const char *p, size_t k, uint32_t cp)
{
    if (!s->n_run)
        s->run = p;
    s->n_run += k;
    s->prev = cp;
}

static void add_escape(struct scan *s, uint32_t cp, const char *p, size_t k)
{
    char text[32];
    emit_other(s, PIECE_ESCAPE, text, (size_t)snprintf(text, sizeof text, "<U+%04X>", cp), p, k);
}

/* Whether a joiner is between two letters of a script that uses it (Persian, Indic), or between two
 * emoji. */
static bool joins(const struct scan *s, uint32_t cp, const char *rest, size_t n)
{
    if (s->prev < 0x80 || n == 0)
        return false;
    uint32_t next;
    utf8_decode(rest, n, &next);
    if (next < 0x80 || next == 0xFFFD || utf8_is_hidden(next) || text_cp_width(next) == 0)
        return false;
    if (is_picture(next))
        return cp == ZWJ && (is_picture(s->prev) || is_selector(s->prev) || is_tone(s->prev));
    return (is_letter(s->prev) || is_combining(s->prev)) && is_letter(next);
}

/* Handles a zero-width code point: kept behind a base, up to MARKS_MAX. */
static void scan_mark(struct scan *s, const char *p, size_t k, size_t n, uint32_t cp)
{
    bool fits = s->prev != 0;
    if (cp == ZWJ || cp == ZWNJ)
        fits = joins(s, cp, p + k, n - k);
    else if (is_selector(cp))
        fits = fits && !s->selected;
    if (!fits) {
        flush_excess(s);
        add_escape(s, cp, p, k);
    } else if (is_selector(cp)) {
        s->selected = true;
        keep_char(s, p, k, cp);
    } else if (s->marks < MARKS_MAX) {
        s->marks++;
        keep_char(s, p, k, cp);
    } else {
        flush_run(s);
        s->excess_at = s->excess++ ? s->excess_at : p;
        s->excess_n = (size_t)(p + k - s->excess_at);
    }
}

static void scan_one(struct scan *s, const char *p, size_t k, size_t n, uint32_t cp)
{
    bool valid = cp != 0xFFFD || (k == 3 && memcmp(p, "\xEF\xBF\xBD", 3) == 0);
    if (cp != '\n' && cp != '\t' && valid && !utf8_is_hidden(cp) && text_cp_width(cp) == 0) {
        scan_mark(s, p, k, n, cp);
        return;
    }
    flush_excess(s);
    if (cp == '\n' || cp == '\t')
        emit_other(s, cp == '\n' ? PIECE_NEWLINE : PIECE_TAB, p, 1, p, 1);
    else if (!valid)
        emit_other(s, PIECE_ESCAPE, "\xEF\xBF\xBD", 3, p, k);
    else if (utf8_is_hidden(cp))
        add_escape(s, cp, p, k);
    else {
        s->marks = 0;
        s->selected = false;
        keep_char(s, p, k, cp);
    }
}

void text_scan(const char *bytes, size_t n, text_emit *emit, void *arg)
{
    struct scan s = {.emit = emit, .arg = arg};
    size_t i = 0;
    while (i < n) {
        size_t from = i;
        while (i < n && bytes[i] >= 0x20 && bytes[i] < 0x7F)
            i++;
        if (i > from) { /* plain ASCII, the common case */
            flush_excess(&s);
            s.marks = 0;
            s.selected = false;
            keep_char(&s, bytes + from, i - from, (uint32_t)bytes[i - 1]);
            continue;
        }
        uint32_t cp;
        size_t k = utf8_decode(bytes + i, n - i, &cp);
        scan_one(&s, bytes + i, k, n - i, cp);
        i += k;
    }
    flush_excess(&s);
    flush_run(&s);
}

struct sanitise {
    struct buf *out;
    size_t line; /* offset of the current line in out */
    bool keep_newlines;
};

static void sanitise_piece(void *arg, enum text_piece kind, const char *s, size_t n,
                           const char *, size_t)
{
    struct sanitise *z = arg;
    if (kind == PIECE_TAB) {
        int column = text_width(z->out->p ? z->out->p + z->line : "", z->out->n - z->line);
        buf_printf(z->out, "%*s", TAB_STOP - column % TAB_STOP, "");
    } else if (kind == PIECE_NEWLINE && !z->keep_newlines) {
        buf_str(z->out, "<U+000A>");
    } else {
        buf_add(z->out, s, n);
        if (kind == PIECE_NEWLINE)
            z->line = z->out->n;
    }
}

void text_sanitise(struct buf *out, const char *bytes, size_t n, bool keep_newlines)
{
    struct sanitise z = {.out = out, .line = out->n, .keep_newlines = keep_newlines};
    text_scan(bytes, n, sanitise_piece, &z);
    buf_add(out, "", 0); /* makes out->p a string even if it is empty */
}

/* ---- clusters ---- */

/* Whether a code point of a cluster is drawn: of an emoji sequence the first picture, of a flag its
 * letters, of other clusters all code points except joiners. */
static bool drawn(uint32_t cp, uint32_t first)
{
    if (cp == ZWJ || cp == ZWNJ || is_selector(cp))
        return false;
    return !is_picture(first) || is_flag(cp);
}

static void add_drawn(struct glyph *g, uint32_t cp, uint32_t first)
{
    if (g->n > 0 && (cp == 0x20E3 || is_tone(cp) || !drawn(cp, first)))
        return;
    if (is_flag(cp))
        cp = 'A' + (cp - 0x1F1E6);
    int w = text_cp_width(cp);
    if (utf8_is_hidden(cp) || cp == ZWJ || cp == ZWNJ || (g->n == 0 && w == 0))
        cp = 0xFFFD, w = 1; /* unsanitised text, or a mark at a row's start */
    g->cp[g->n++] = cp;
    g->width += w;
}

size_t text_next(const char *s, size_t n, struct glyph *g)
{
    g->n = g->width = 0;
    if (n == 0)
        return 0;
    uint32_t first, cp, prev;
    size_t at = utf8_decode(s, n, &first);
    if (first < 0x80 && (at == n || (unsigned char)s[at] < 0x80)) { /* ASCII, the common case */
        g->cp[g->n++] = first >= 0x20 && first < 0x7F ? first : 0xFFFD;
        g->width = 1;
        return at;
    }
    add_drawn(g, first, first);
    utf8proc_int32_t state = 0;
    prev = first;
    while (at < n && g->n < GLYPH_MAX) {
        size_t k = utf8_decode(s + at, n - at, &cp);
        if (utf8proc_grapheme_break_stateful((utf8proc_int32_t)prev, (utf8proc_int32_t)cp, &state))
            break;
        add_drawn(g, cp, first);
        at += k;
        prev = cp;
    }
    return at;
}

int text_width(const char *s, size_t n)
{
    int used;
    text_fit(s, n, INT32_MAX, &used);
    return used;
}

size_t text_fit(const char *s, size_t n, int cells, int *used)
{
    struct glyph g;
    size_t at = 0, k;
    int w = 0;
    while (at < n) {
        /* ASCII followed by ASCII is a cluster of one cell */
        if (s[at] >= 0x20 && s[at] < 0x7F && (at + 1 == n || (unsigned char)s[at + 1] < 0x80)) {
            g.width = 1;
            k = 1;
        } else {
            k = text_next(s + at, n - at, &g);
        }
        if (g.width > cells - w)
            break;
        w += g.width;
        at += k;
    }
    if (used)
        *used = w;
    return at;
}

/* ---- a stream of text ------------------------------------------------------------------------ */

/* Where the last character begins that a combining mark may still follow. */
static size_t last_base(const char *s, size_t n)
{
    size_t base = n;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        size_t k = utf8_decode(s + i, n - i, &cp);
        if (base == n || text_cp_width(cp) > 0)
            base = i;
        i += k;
    }
    return base;
}

void text_sanitise_next(struct buf *tail, const char *s, size_t n, struct buf *out)
{
    enum { MAX_TAIL = 256 };
    FREED(buf_free) struct buf before = {0}, after = {0};
    text_sanitise(&before, buf_text(tail), tail->n, true);
    buf_add(tail, s, n);
    text_sanitise(&after, tail->p, tail->n, true);
    if (after.n >= before.n && (before.n == 0 || memcmp(before.p, after.p, before.n) == 0))
        buf_add(out, after.p + before.n, after.n - before.n);
    else
        text_sanitise(out, s, n, true);
    size_t base = last_base(tail->p, tail->n);
    if (tail->n - base > MAX_TAIL)
        base = tail->n;
    memmove(tail->p, tail->p + base, tail->n - base);
    tail->n -= base;
}
