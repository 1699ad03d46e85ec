/* sheet.c - see sheet.h. */
#include "repl/text/sheet.h"

#include "kernels/ascii.h"

enum { TAB_STOP = 8 };

static void row_free(struct sheet_row *r)
{
    buf_free(&r->text);
    free(r->span);
}

void sheet_truncate(struct sheet *s, int n_row)
{
    for (int i = n_row; i < s->n_row; i++)
        row_free(&s->row[i]);
    s->n_row = min_int(s->n_row, n_row);
    s->open = false;
}

int sheet_row_width(const struct sheet_row *r)
{
    return text_width(r->text.p, r->text.n);
}

int sheet_width(const struct sheet *s)
{
    int w = 0;
    for (int i = 0; i < s->n_row; i++)
        w = max_int(w, sheet_row_width(&s->row[i]));
    return w;
}

void sheet_cut(struct sheet *s, int width)
{
    FOR_EACH(struct sheet_row, r, s->row, s->n_row) {
        int used, k = r->n_span - 1;
        if (sheet_row_width(r) <= width || width < 1)
            continue;
        int n = (int)text_fit(r->text.p, r->text.n, width - 1, &used);
        while (k > 0 && r->span[k].at >= n)
            k--;
        r->n_span = k + 1;
        r->span[k].n = n - r->span[k].at;
        r->text.n = (size_t)n;
        const char *mark = s->ascii ? "~" : "…";
        buf_str(&r->text, mark);
        r->span[k].n += (int)strlen(mark);
    }
}

void sheet_clear(struct sheet *s)
{
    sheet_truncate(s, 0);
    s->escaped = 0;
}

void sheet_free(struct sheet *s)
{
    sheet_clear(s);
    free(s->row);
    *s = (struct sheet){.ascii = s->ascii};
}

/* The row to which text is appended; a new one after sheet_line(). */
static struct sheet_row *open_row(struct sheet *s)
{
    if (!s->open) {
        *APPEND(s->row, s->n_row) = (struct sheet_row){0};
        buf_add(&s->row[s->n_row - 1].text, "", 0); /* text.p is never NULL */
        s->open = true;
    }
    return &s->row[s->n_row - 1];
}

/* A piece of the source; {-1}: none. */
struct source {
    int at, n;
};

static bool joins(const struct span *a, struct source b, size_t n)
{
    if (a->src < 0 || b.at < 0)
        return a->src < 0 && b.at < 0;
    return a->n == a->src_n && (int)n == b.n && a->src + a->src_n == b.at;
}

/* Appends sanitised bytes. */
static void row_add(struct sheet_row *r, enum style st, const char *p, size_t n, struct source src)
{
    if (n == 0)
        return;
    int at = (int)r->text.n;
    buf_add(&r->text, p, n);
    struct span *last = r->n_span ? &r->span[r->n_span - 1] : NULL;
    if (last && last->style == st && joins(last, src, n)) {
        last->n += (int)n;
        last->src_n += src.at < 0 ? 0 : src.n;
        return;
    }
    *APPEND(r->span, r->n_span) = (struct span){st, at, (int)n, src.at, src.at < 0 ? 0 : src.n};
}

static int row_width(const struct sheet_row *r)
{
    return r->tab_cells + text_width(r->text.p + r->tab_at, r->text.n - (size_t)r->tab_at);
}

static void row_pad(struct sheet_row *r, int cells, struct source src)
{
    static const char blanks[] = "                                ";
    for (; cells > 0; cells -= 32)
        row_add(r, ST_TEXT, blanks, (size_t)min_int(cells, 32), src);
}

/* Pads to the next tab stop. The width up to the last blank of the pad is kept, or a row of many
 * tabs would be measured from its beginning for each. */
static void row_tab(struct sheet_row *r, struct source src)
{
    int at = row_width(r), cells = TAB_STOP - at % TAB_STOP;
    row_pad(r, cells, src);
    r->tab_at = (int)r->text.n - 1;
    r->tab_cells = at + cells - 1;
}

struct adder {
    struct sheet *sheet;
    enum style style;
    struct source all; /* the source of each piece; {-1}: that of its bytes */
};

/* The source of the first bytes of p[n]; *k: how many of them have it, or have none. */
static struct source source_of(const struct adder *a, const char *p, size_t n, size_t *k)
{
    const struct sheet *s = a->sheet;
    uintptr_t at = (uintptr_t)p, from = (uintptr_t)s->source, to = from + s->source_n;
    *k = n;
    if (a->all.at >= 0)
        return a->all;
    if (!s->source || at >= to || at + n <= from)
        return (struct source){-1, 0};
    if (at < from) {
        *k = from - at;
        return (struct source){-1, 0};
    }
    *k = to - at < n ? to - at : n;
    return (struct source){s->source_at + (int)(at - from), (int)*k};
}

static void add_piece(void *arg, enum text_piece kind, const char *p, size_t n, const char *from,
                      size_t from_n)
{
    const struct adder *a = arg;
    struct sheet_row *r = open_row(a->sheet);
    size_t k;
    struct source src = source_of(a, from, from_n, &k);
    switch (kind) {
    case PIECE_CLEAN: /* from == p */
        for (; n > 0; p += k, n -= k) {
            src = source_of(a, p, n, &k);
            row_add(r, a->style, p, k, src);
        }
        break;
    case PIECE_TAB: row_tab(r, src); break;
    case PIECE_NEWLINE: p = "<U+000A>", n = 8; /* fall through */
    case PIECE_ESCAPE:
        row_add(r, ST_ESCAPE, p, n, src);
        a->sheet->escaped++;
        break;
    }
}

void sheet_addn(struct sheet *s, enum style st, const char *bytes, size_t n)
{
    open_row(s);
    text_scan(bytes, n, add_piece, &(struct adder){s, st, {-1, 0}});
}

void sheet_add_for(struct sheet *s, enum style st, const char *bytes, size_t n, int src, int src_n)
{
    open_row(s);
    text_scan(bytes, n, add_piece, &(struct adder){s, st, {src, src_n}});
}

void sheet_source(struct sheet *s, const char *bytes, size_t n, int at)
{
    s->source = bytes;
    s->source_n = n;
    s->source_at = at;
}

void sheet_shift(struct sheet *s, int from, int by)
{
    for (int i = from; i < s->n_row; i++)
        for (int k = 0; k < s->row[i].n_span; k++)
            s->row[i].span[k].src += s->row[i].span[k].src >= 0 ? by : 0;
}

/* The first span that ends behind `at`, or n_span. */
static int span_at(const struct sheet_row *r, int at)
{
    return FIRST_NOT(i, r->n_span, r->span[i].at + r->span[i].n <= at);
}

int sheet_source_of(const struct sheet_row *r, int at, int *n)
{
    int lo = span_at(r, at);
    *n = 0;
    if (lo == r->n_span || r->span[lo].src < 0)
        return -1;
    const struct span *sp = &r->span[lo];
    bool each = sp->n == sp->src_n;
    *n = each ? 1 : sp->src_n;
    return sp->src + (each ? at - sp->at : 0);
}

void sheet_add(struct sheet *s, enum style st, const char *text)
{
    sheet_addn(s, st, text, strlen(text));
}

void sheet_quote(struct sheet *s, enum style st, const char *bytes, size_t n, int cells)
{
    FREED(buf_free) struct buf quoted = {0}, clean = {0};
    buf_str(&quoted, "");
    for (size_t i = 0; i < n; i++) {
        if (bytes[i] == '"' || bytes[i] == '\\')
            buf_char(&quoted, '\\');
        buf_char(&quoted, bytes[i]);
    }
    text_sanitise(&clean, quoted.p, quoted.n, false);
    int used;
    bool whole = cells <= 0 || text_width(clean.p, clean.n) <= cells;
    size_t fit = whole ? clean.n : text_fit(clean.p, clean.n, cells - 1, &used);
    sheet_add(s, st, "\"");
    if (fit < clean.n)
        sheet_addn(s, st, clean.p, fit);
    else
        sheet_addn(s, st, quoted.p, quoted.n);
    sheet_add(s, st, fit < clean.n ? (s->ascii ? "~\"" : "…\"") : "\"");
}

static void add_vprintf(struct sheet *s, enum style st, const char *fmt, va_list ap)
{
    FREED(buf_free) struct buf text = {0};
    buf_vprintf(&text, fmt, ap);
    sheet_addn(s, st, text.p, text.n);
}

void sheet_printf(struct sheet *s, enum style st, const char *fmt, ...)
{
    WITH_ARGS(ap, fmt, add_vprintf(s, st, fmt, ap));
}

void sheet_line(struct sheet *s)
{
    open_row(s);
    s->open = false;
}

void sheet_tab(struct sheet *s, int column)
{
    struct sheet_row *r = open_row(s);
    row_pad(r, column - row_width(r), (struct source){-1, 0});
}

void sheet_add_row(struct sheet *s, const struct sheet_row *r, int from, int to)
{
    struct sheet_row *dst = open_row(s);
    for (int i = span_at(r, from); i < r->n_span && r->span[i].at < to; i++) {
        const struct span *sp = &r->span[i];
        int a = max_int(sp->at, from), b = min_int(sp->at + sp->n, to);
        struct source src = {sp->src, sp->src_n};
        if (sp->src >= 0 && sp->n == sp->src_n)
            src = (struct source){sp->src + a - sp->at, b - a};
        if (a < b)
            row_add(dst, sp->style, r->text.p + a, (size_t)(b - a), src);
    }
}

/* ---- wrapping ---- */

/* Returns the end of the line that begins at `from`, and in *next the beginning of the next line.
 * The break is at the last space within `cells`, else between two clusters. A line has at least one
 * cluster. */
static int wrap_end(const char *p, int from, int n, int cells, int *next)
{
    int fit = from + (int)text_fit(p + from, (size_t)(n - from), cells, NULL);
    if (fit == from && from < n) {
        struct glyph g;
        fit += (int)text_next(p + from, (size_t)(n - from), &g);
    }
    *next = fit;
    if (fit >= n)
        return n;
    int cut = fit;
    while (cut > from && p[cut] != ' ')
        cut--;
    if (cut == from)
        return fit;
    *next = cut;
    while (*next < n && p[*next] == ' ')
        ++*next;
    while (cut > from && p[cut - 1] == ' ')
        cut--;
    if (cut > from)
        return cut;
    *next = fit; /* only spaces come before */
    return fit;
}

/* Length of the list mark or quote mark at p, with its blanks; 0: none. */
static int mark_length(const char *p, int n)
{
    static const char *const marks[] = {"- ", "* ", "+ ", "> ", "• ", "◦ ", "▌ "};
    int digits = 0;
    for (size_t i = 0; i < LEN(marks); i++) {
        int k = (int)strlen(marks[i]);
        if (k <= n && memcmp(p, marks[i], (size_t)k) == 0)
            return k;
    }
    while (digits < n && digits < 4 && p[digits] >= '0' && p[digits] <= '9')
        digits++;
    bool ordered = digits > 0 && digits + 1 < n && (p[digits] == '.' || p[digits] == ')') &&
                   p[digits + 1] == ' ';
    return ordered ? digits + 2 : 0;
}

/* The blanks between the columns of a row of two: three or more, or two behind its first word,
 * which is then a label. NULL: it has one column. at: its first letter. */
static const char *column_gap(const char *p, int at, int n)
{
    const char *blank = memchr(p + at, ' ', (size_t)(n - at)), *end = p + n;
    bool label = blank && blank + 2 < end && blank[1] == ' ' && ascii_alnum(blank[-1]);
    return label ? blank : memmem(p + at, (size_t)(n - at), "   ", 3);
}

/* Indentation of the rows that continue a wrapped row, in cells: the column of the text of a list
 * item or quote; of the second column in a row of two, or two cells behind the first letter if that
 * column begins in the right half; else of the first letter. */
static int hang_of(const char *p, int n, int width)
{
    int at = 0, indent, mark = 0, most = width / 2;
    while (at < n && p[at] == ' ')
        at++;
    indent = at;
    for (int k; (k = mark_length(p + at, n - at)) > 0; mark = at)
        for (at += k; at < n && p[at] == ' ';)
            at++;
    if (mark == 0) {
        const char *gap = column_gap(p, at, n);
        for (mark = gap ? (int)(gap - p) : 0; mark > 0 && mark < n && p[mark] == ' ';)
            mark++;
    }
    int under = mark > 0 && mark < n ? text_width(p, (size_t)mark) : indent;
    if (under > most || width - under < 2)
        under = mark > indent ? indent + 2 : indent;
    return under > most || width - under < 2 ? 0 : under;
}

static void wrap_row(struct sheet *s, const struct sheet_row *src, int width)
{
    const char *p = src->text.p;
    int n = (int)src->text.n, from = 0, indent = width > 0 ? hang_of(p, n, width) : 0;
    do {
        int next = n, hang = from ? indent : 0;
        int end = width > 0 ? wrap_end(p, from, n, max_int(width - hang, 1), &next) : n;
        struct sheet_row *r = open_row(s);
        if (end > from)
            row_pad(r, hang, (struct source){-1, 0});
        sheet_add_row(s, src, from, end);
        sheet_line(s);
        from = next;
    } while (from < n);
}

void sheet_append_wrapped(struct sheet *s, const struct sheet *src, int width)
{
    if (s->open)
        sheet_line(s);
    for (int i = 0; i < src->n_row; i++)
        wrap_row(s, &src->row[i], width);
    s->escaped += src->escaped;
}

/* ---- plain text ---- */

/* Select Graphic Rendition parameters (ECMA-48) of each style, in the 16 basic colours. */
static const char *const sgr[N_STYLES] = {
    [ST_TEXT] = "",      [ST_DIM] = "2",      [ST_BOLD] = "1",    [ST_ITALIC] = "3",
    [ST_CODE] = "36",    [ST_HEAD] = "1;4",   [ST_LINK] = "4;34", [ST_QUOTE] = "2;3",
    [ST_USER] = "1",     [ST_GOOD] = "32",    [ST_BAD] = "31",    [ST_WARN] = "33",
    [ST_KEY] = "1;36",   [ST_LABEL] = "36",   [ST_DRAFT] = "35",  [ST_ESCAPE] = "7",
    [ST_BONUS] = "33",   [ST_DEPTH1] = "32",  [ST_DEPTH2] = "32", [ST_DEPTH3] = "1;32",
    [ST_HOT] = "1;31",   [ST_WARM] = "33",    [ST_COOL] = "34",   [ST_COLD] = "2",
};

void sheet_to_text(const struct sheet *s, bool color, struct buf *out)
{
    for (int i = 0; i < s->n_row; i++) {
        const struct sheet_row *r = &s->row[i];
        FOR_EACH(const struct span, sp, r->span, r->n_span) {
            bool styled = color && sgr[sp->style][0];
            if (styled)
                buf_printf(out, "\033[%sm", sgr[sp->style]);
            buf_add(out, r->text.p + sp->at, (size_t)sp->n);
            if (styled)
                buf_str(out, "\033[0m");
        }
        if (i + 1 < s->n_row || !s->open)
            buf_char(out, '\n');
    }
}

void say_line(struct sheet *out, enum style st, const char *fmt, ...)
{
    WITH_ARGS(ap, fmt, add_vprintf(out, st, fmt, ap));
    sheet_line(out);
}

void sheet_lines(struct sheet *out, enum style st, const char *bytes, size_t n)
{
    while (n) {
        const char *end = memchr(bytes, '\n', n);
        size_t line = end ? (size_t)(end - bytes) : n;
        sheet_addn(out, st, bytes, line);
        sheet_line(out);
        line += end != NULL;
        bytes += line;
        n -= line;
    }
}

void say_text(struct sheet *out, enum style st, const char *text)
{
    sheet_lines(out, st, text, strlen(text));
}
