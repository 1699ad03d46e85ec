/* sheet.h - styled lines of text, which commands write, the screen draws and plain mode prints.
 *
 * All output to the terminal goes through sheets. Every string added by sheet_add() is sanitised:
 * control characters, bidi controls, invisible and tag characters become visible escapes, invalid
 * UTF-8 becomes U+FFFD, combining marks are capped (reference: the policy in repl/README.md,
 * "Safety"). Line breaks in the text are shown as escapes too; sheet_line() ends a line. Main
 * thread only. */
#pragma once

#include "kernels/base.h"

/* Styles name meanings; the theme maps them to colours (none with NO_COLOR). */
enum style {
    ST_TEXT, ST_DIM, ST_BOLD, ST_ITALIC, ST_CODE, ST_HEAD, ST_LINK, ST_QUOTE,
    ST_USER,     /* what the user typed */
    ST_GOOD,     /* accepted, ok */
    ST_BAD,      /* rejected, violated */
    ST_WARN, ST_KEY, ST_LABEL, ST_DRAFT, /* draft: tokens that came from the drafter */
    ST_ESCAPE,   /* a sanitised character */
    ST_HOT, ST_WARM, ST_COOL, ST_COLD,   /* heat map: read now, in window, held, free */
    ST_BONUS, ST_DEPTH1, ST_DEPTH2, ST_DEPTH3, /* words by acceptance: the target's own, drafted at
                                                  a depth of 1, 2, 3 or more */
    N_STYLES
};

struct span {
    enum style style;
    int at, n; /* bytes of the line's text */
    int src, src_n; /* the source bytes that the span shows: one to one if n == src_n, else each
                       byte of the span shows all of them (an escape, an entity, a tab); src -1:
                       none */
};
struct sheet_row {
    struct buf text; /* sanitised UTF-8, no newline */
    struct span *span;
    int n_span;
    int tab_at, tab_cells; /* the first tab_at bytes, which end where a tab was added, have so many
                              cells */
};
struct sheet {
    struct sheet_row *row;
    int n_row;
    bool open;       /* text is appended to the last row; false: to a new one */
    bool ascii;      /* use '#', '+', '|' instead of block and line characters */
    int escaped;     /* number of characters that were escaped */
    const char *source; /* sheet_source() */
    size_t source_n;
    int source_at;
};

/* {0} is an empty sheet; the owner calls sheet_free(). */
void sheet_free(struct sheet *s);
void sheet_clear(struct sheet *s);
void sheet_add(struct sheet *s, enum style st, const char *text);
void sheet_addn(struct sheet *s, enum style st, const char *bytes, size_t n);
void sheet_printf(struct sheet *s, enum style st, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Adds text in quotes, with a backslash before each quote and backslash in it. Between the quotes
 * are at most `cells` cells, the last one an ellipsis if the text is truncated; 0: complete. */
void sheet_quote(struct sheet *s, enum style st, const char *bytes, size_t n, int cells);
/* From now on, text that is added from within bytes[n] records its source offset, which is at + i
 * for bytes[i]. The bytes must stay in place until the next call; NULL ends this. */
void sheet_source(struct sheet *s, const char *bytes, size_t n, int at);
/* Adds text that shows the source bytes [src, src + src_n), as an entity does. */
void sheet_add_for(struct sheet *s, enum style st, const char *bytes, size_t n, int src, int src_n);
/* Adds `by` to the source offsets of all rows from row `from` on. */
void sheet_shift(struct sheet *s, int from, int by);
/* The source offset of byte `at` of a row, in *n how many source bytes it shows; -1: of none. */
int sheet_source_of(const struct sheet_row *r, int at, int *n);
void sheet_line(struct sheet *s); /* ends the current line; an empty one if nothing was added */
/* Pads the current line with spaces up to a column (in cells). */
void sheet_tab(struct sheet *s, int column);
/* Moves all rows of src to the end of s, wrapped to width cells (0: no wrapping). */
void sheet_append_wrapped(struct sheet *s, const struct sheet *src, int width);
/* Adds bytes [from, to) of a row of another sheet with their styles. */
void sheet_add_row(struct sheet *s, const struct sheet_row *r, int from, int to);
/* Cells of a row, and of the widest row; 0: there is none. */
int sheet_row_width(const struct sheet_row *r);
int sheet_width(const struct sheet *s);
/* Truncates rows wider than `width` cells, with "…" at their end. */
void sheet_cut(struct sheet *s, int width);
/* Keeps the first n_row rows; the last of them is ended. */
void sheet_truncate(struct sheet *s, int n_row);
/* Appends the rows as lines to out, without styles or (`color`) with ANSI colours. */
void sheet_to_text(const struct sheet *s, bool color, struct buf *out);

/* A line of text, and text of several lines, a row each; a final line break adds no empty row. */
void say_line(struct sheet *out, enum style st, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void say_text(struct sheet *out, enum style st, const char *text);
void sheet_lines(struct sheet *out, enum style st, const char *bytes, size_t n);

/* ---- text.c: all code that depends on Unicode ------------------------------------------------ */

/* Appends sanitised text to out. */
void text_sanitise(struct buf *out, const char *bytes, size_t n, bool keep_newlines);
/* Sanitises the next piece of a stream, line ends kept. An accent in a token of its own belongs to
 * the letter before it, which is printed already: so both are sanitised together, and only what the
 * piece adds is appended to out. tail: the stream's last character and its marks, empty at its
 * beginning. */
void text_sanitise_next(struct buf *tail, const char *s, size_t n, struct buf *out);
/* Width in terminal cells of sanitised UTF-8, by grapheme clusters (utf8proc). */
int text_width(const char *s, size_t n);
/* Bytes of the longest prefix of s that fits in `cells`; *used is its width. */
size_t text_fit(const char *s, size_t n, int cells, int *used);

/* The sanitiser behind text_sanitise() and sheet_addn(). Calls emit() for each piece of the text in
 * order: clean text, an escape (to be shown in its own style), a tab ("\t") or a line break
 * ("\n"). from: the bytes of the input that the piece stands for; of clean text s itself. */
enum text_piece { PIECE_CLEAN, PIECE_ESCAPE, PIECE_TAB, PIECE_NEWLINE };
typedef void text_emit(void *arg, enum text_piece kind, const char *s, size_t n, const char *from,
                       size_t from_n);
void text_scan(const char *bytes, size_t n, text_emit *emit, void *arg);

/* The first grapheme cluster of s as it is drawn: code points of width 1 or 2, each followed by its
 * zero-width marks. Emoji sequences are reduced to their first picture and flags to their two
 * letters, because terminals disagree about their widths. Returns the cluster's bytes in s, 0 at
 * the end. */
enum { GLYPH_MAX = 16 };
struct glyph {
    uint32_t cp[GLYPH_MAX];
    int n, width;
};
size_t text_next(const char *s, size_t n, struct glyph *g);
/* Cells of one code point: 0 (marks), 1 or 2. A character that cannot be drawn has 1, for a
 * placeholder. */
int text_cp_width(uint32_t cp);
