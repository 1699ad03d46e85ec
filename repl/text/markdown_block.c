/* markdown_block.c - Markdown as lines of text, before it is parsed: where blocks end, what is open
 * at the end of a reply that is still streaming, and definitions of references. See markdown.h. */
#include "repl/text/markdown.h"

/* ---- fences ---- */

/* The number of marks of a fence line ("```c"), 0 for another line. *closes: nothing follows
 * them. */
static int fence_marks(const char *p, size_t n, char *mark, bool *closes)
{
    size_t i = 0;
    while (i < n && (p[i] == ' ' || p[i] == '\t'))
        i++;
    size_t from = i;
    while (i < n && (p[i] == '`' || p[i] == '~') && p[i] == p[from])
        i++;
    int marks = (int)(i - from);
    if (marks < 3 || (p[from] == '`' && memchr(p + i, '`', n - i)))
        return 0;
    *mark = p[from];
    while (i < n && p[i] == ' ')
        i++;
    *closes = i == n;
    return marks;
}

/* State of fenced code, updated line by line. */
struct fence {
    int marks; /* 0: outside */
    char mark;
};

static void fence_line(struct fence *f, const char *p, size_t n)
{
    char mark = 0;
    bool closes = false;
    int marks = fence_marks(p, n, &mark, &closes);
    if (f->marks == 0) {
        if (marks)
            *f = (struct fence){marks, mark};
    } else if (marks >= f->marks && mark == f->mark && closes) {
        f->marks = 0;
    }
}

static size_t line_length(const char *p, size_t n)
{
    const char *nl = memchr(p, '\n', n);
    return nl ? (size_t)(nl - p) : n;
}

/* ---- reference definitions ---- */

/* Length of the quote marks, list marks and blanks at the beginning of a line. */
static size_t marks_length(const char *p, size_t n)
{
    size_t i = 0;
    for (;;) {
        size_t from = i, digits;
        while (i < n && (p[i] == ' ' || p[i] == '\t' || p[i] == '>'))
            i++;
        for (digits = i; digits < n && p[digits] >= '0' && p[digits] <= '9';)
            digits++;
        if (digits > i && digits + 1 < n && (p[digits] == '.' || p[digits] == ')') &&
            p[digits + 1] == ' ')
            i = digits + 2;
        else if (i + 1 < n && strchr("-*+", p[i]) && p[i + 1] == ' ')
            i += 2;
        if (i == from)
            return i;
    }
}

/* Whether a line begins with "[label]:". */
static bool is_definition(const char *p, size_t n)
{
    size_t i = 1;
    if (n < 4 || p[0] != '[')
        return false;
    while (i + 1 < n && p[i] != ']')
        i += p[i] == '\\' && i + 2 < n ? 2 : 1;
    return i + 1 < n && p[i] == ']' && p[i + 1] == ':';
}

void markdown_definitions(const char *text, size_t n, struct buf *out)
{
    struct fence f = {0};
    buf_add(out, "", 0);
    for (size_t i = 0, k; i < n; i += k + 1) {
        k = line_length(text + i, n - i);
        size_t marks = marks_length(text + i, k);
        bool outside = f.marks == 0;
        fence_line(&f, text + i + marks, k - marks);
        bool shown = outside && f.marks == 0 && is_definition(text + i + marks, k - marks);
        buf_add(out, text + i, shown ? marks : k);
        if (shown) {
            buf_char(out, '\\');
            buf_add(out, text + i + marks, k - marks);
        }
        if (i + k < n)
            buf_char(out, '\n');
    }
}

/* ---- an incomplete block ---- */

static bool only_markup(const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!strchr("-=*_#`~>|+: .0123456789", p[i]))
            return false;
    return true;
}

/* Offset of the last paragraph of text. */
static size_t last_paragraph(const char *text, size_t n)
{
    for (size_t i = n; i > 1; i--)
        if (text[i - 1] == '\n' && text[i - 2] == '\n')
            return i;
    return 0;
}

static bool is_blank(const char *p, size_t n)
{
    while (n > 0 && (*p == ' ' || *p == '\t'))
        p++, n--;
    return n == 0;
}

static bool ends_in_fence(const char *text, size_t n)
{
    struct fence f = {0};
    for (size_t i = 0; i < n;) {
        size_t k = line_length(text + i, n - i);
        fence_line(&f, text + i, k);
        i += k + 1;
    }
    return f.marks > 0;
}

size_t markdown_closed(const char *text, size_t n, struct buf *b)
{
    bool fenced = ends_in_fence(text, n);
    size_t line = n;
    while (line > 0 && text[line - 1] != '\n')
        line--;
    if (!fenced && only_markup(text + line, n - line))
        n = line;
    buf_add(b, text, n);
    if (fenced)
        return n;
    int ticks = 0, stars = 0;
    for (size_t i = last_paragraph(text, n); i < n; i++) {
        if (text[i] == '`')
            ticks++;
        else if (text[i] == '*' && i + 1 < n && text[i + 1] == '*' && ticks % 2 == 0)
            stars++, i++;
    }
    if (ticks % 2 || stars % 2) {
        /* markup that is opened, but empty */
        while (b->n > 0 && strchr("*`_ \n", b->p[b->n - 1])) {
            char c = b->p[--b->n];
            ticks -= c == '`';
            if (c == '*' && b->n > 0 && b->p[b->n - 1] == '*')
                stars--, b->n--;
        }
        n = b->n;
        if (ticks % 2)
            buf_char(b, '`');
        if (stars % 2)
            buf_str(b, "**");
    }
    return n;
}

/* A block ends before a line that is not indented, after an empty line, outside of fences. (The
 * continuation of a list item is indented; a list that continues looks the same as two lists.) */
size_t markdown_block(const char *text, size_t n)
{
    struct fence f = {0};
    bool blank = false, begun = false; /* the previous line was empty; any line was not */
    for (size_t i = 0; i < n;) {
        size_t k = line_length(text + i, n - i);
        bool empty = is_blank(text + i, k);
        if (f.marks == 0 && blank && begun && !empty && text[i] != ' ' && text[i] != '\t')
            return i;
        fence_line(&f, text + i, k);
        blank = empty && f.marks == 0;
        begun |= !empty;
        i += k + 1;
    }
    return 0;
}
