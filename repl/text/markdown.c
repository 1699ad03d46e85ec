/* markdown.c - see markdown.h. */
#include "repl/text/markdown.h"

#include <md4c.h>

enum {
    MAX_NEST = 12,
    MAX_COLUMNS = 128, /* md4c's own limit */
    MIN_COLUMN = 3,    /* cells; a table whose columns would be narrower than this, or than their */
    MOST_WORD = 12,    /* longest words of at most these cells, is shown as a list */
};

/* The text that a list item or a quote puts before its first row and before the rest. */
struct md_prefix {
    char first[16], rest[16];
    enum style style;
    bool used; /* the first row is written */
};

struct md_list {
    bool ordered, tight;
    unsigned next;
};

struct md_table {
    struct sheet *cell; /* (n_cell) one sheet each, row-major */
    int n_cell, columns, head_rows;
    int column; /* of the cell being read */
    MD_ALIGN align[MAX_COLUMNS];
    int width[MAX_COLUMNS];
};

struct md {
    struct sheet *out;
    int width;
    const char *source; /* the text being parsed; the bytes after source_n were added to it */
    size_t source_n;
    struct sheet line; /* the inline content of the block being read */
    struct md_prefix prefix[MAX_NEST];
    struct md_list list[MAX_NEST];
    int n_prefix, n_list; /* may exceed MAX_NEST: deeper levels are counted, not drawn */
    int bold, italic, code, link, strike, head;
    struct link {
        struct buf target;
        size_t from; /* offset of its text in the line, counted over all rows */
    } links[MAX_NEST]; /* open links, the innermost last (a link may contain an image) */
    int n_link; /* may exceed MAX_NEST, too */
    struct buf text; /* of the code block being read */
    struct code_piece {   /* where its text comes from: text.p[at] on is the source from src on */
        size_t at;
        int src;
    } *piece;
    int n_piece;
    bool gap; /* a blank row is due before the next block */
    bool in_code;
    struct md_table table;
};

/* An empty line whose text keeps its place in the source. */
static void line_init(struct md *m)
{
    m->line = (struct sheet){.ascii = m->out->ascii};
    sheet_source(&m->line, m->source, m->source_n, 0);
}

/* ---- rows with their prefixes ---- */

static int prefix_width(const struct md *m)
{
    int w = 0;
    for (int i = 0; i < m->n_prefix && i < MAX_NEST; i++)
        w += text_width(m->prefix[i].rest, strlen(m->prefix[i].rest));
    return w;
}

static void put_prefix(struct md *m)
{
    for (int i = 0; i < m->n_prefix && i < MAX_NEST; i++) {
        struct md_prefix *p = &m->prefix[i];
        sheet_add(m->out, p->style, p->used ? p->rest : p->first);
        p->used = true;
    }
}

static int room(const struct md *m)
{
    return max_int(m->width - prefix_width(m), 4);
}

static void put_gap(struct md *m)
{
    bool tight = m->n_list > 0 && m->n_list <= MAX_NEST && m->list[m->n_list - 1].tight;
    if (m->gap && !tight) {
        int quotes = 0; /* the bars of quotes continue through the gap */
        for (int i = 0; i < m->n_prefix && i < MAX_NEST; i++)
            if (m->prefix[i].style == ST_QUOTE && m->prefix[i].used)
                quotes = i + 1;
        for (int i = 0; i < quotes; i++)
            sheet_add(m->out, m->prefix[i].style, m->prefix[i].rest);
        sheet_line(m->out);
    }
    m->gap = false;
}

/* Writes the inline content read so far as wrapped rows. */
static void flush_line(struct md *m)
{
    if (m->line.n_row == 0)
        return;
    FREED(sheet_free) struct sheet wrapped = {.ascii = m->out->ascii};
    sheet_append_wrapped(&wrapped, &m->line, room(m));
    for (int i = 0; i < wrapped.n_row; i++) {
        put_prefix(m);
        sheet_add_row(m->out, &wrapped.row[i], 0, (int)wrapped.row[i].text.n);
        sheet_line(m->out);
    }
    m->out->escaped += wrapped.escaped;
    sheet_clear(&m->line);
}

static void put_rule(struct md *m, int cells)
{
    put_prefix(m);
    for (int i = 0; i < cells; i++)
        sheet_add(m->out, ST_DIM, m->out->ascii ? "-" : "─");
    sheet_line(m->out);
}

/* ---- code blocks: a bar at the left, long lines are broken between grapheme clusters ---- */

/* Marks where the bytes of a line of code come from: the part behind its indentation, which has
 * been removed or written by the parser, is one piece of the source. */
static void code_source(const struct md *m, struct sheet *row, const char *p, size_t n)
{
    size_t from = (size_t)(p - m->text.p);
    int k = 0;
    while (k < m->n_piece && m->piece[k].at < from)
        k++;
    if (k == m->n_piece || m->piece[k].at >= from + n)
        return;
    size_t bytes = from + n - m->piece[k].at, own = m->source_n - (size_t)m->piece[k].src;
    sheet_source(row, m->text.p + m->piece[k].at, bytes < own ? bytes : own, m->piece[k].src);
}

static void code_row(struct md *m, const char *p, size_t n)
{
    const char *bar = m->out->ascii ? "| " : "│ ";
    FREED(sheet_free) struct sheet row = {.ascii = m->out->ascii};
    code_source(m, &row, p, n);
    sheet_addn(&row, ST_CODE, p, n);
    const struct sheet_row *r = &row.row[0];
    size_t at = 0;
    do {
        size_t k = text_fit(r->text.p + at, r->text.n - at, room(m) - 2, NULL);
        if (k == 0)
            k = r->text.n - at; /* a cluster wider than the row, which the frame clips */
        put_prefix(m);
        sheet_add(m->out, ST_DIM, bar);
        sheet_add_row(m->out, r, (int)at, (int)(at + k));
        sheet_line(m->out);
        at += k;
    } while (at < r->text.n);
    m->out->escaped += row.escaped;
}

static void code_begin(struct md *m, const MD_BLOCK_CODE_DETAIL *d)
{
    m->in_code = true;
    buf_clear(&m->text);
    buf_str(&m->text, "");
    m->n_piece = 0;
    if (d->lang.size > 0) {
        FREED(sheet_free) struct sheet label = {.ascii = m->out->ascii};
        sheet_add(&label, ST_DIM, m->out->ascii ? "+ " : "╭ ");
        sheet_addn(&label, ST_DIM, d->lang.text, d->lang.size);
        sheet_cut(&label, room(m));
        put_prefix(m);
        sheet_add_row(m->out, &label.row[0], 0, (int)label.row[0].text.n);
        sheet_line(m->out);
        m->out->escaped += label.escaped;
    }
}

static void code_end(struct md *m)
{
    m->in_code = false;
    const char *p = m->text.p, *end = p + m->text.n;
    while (p < end) {
        const char *nl = memchr(p, '\n', (size_t)(end - p));
        code_row(m, p, (size_t)((nl ? nl : end) - p));
        p = nl ? nl + 1 : end;
    }
    m->gap = true;
}

/* ---- tables ---- */

static struct sheet *table_cell(struct md_table *t)
{
    return APPEND(t->cell, t->n_cell);
}

/* Cells of the longest word; wide characters may stand on two rows. */
static int longest_word(const struct sheet *s)
{
    struct glyph g;
    int longest = 0;
    for (int i = 0; i < s->n_row; i++) {
        const struct buf *text = &s->row[i].text;
        int w = 0;
        for (size_t at = 0; at < text->n; longest = max_int(longest, w)) {
            bool ends = text->p[at] == ' ';
            at += text_next(text->p + at, text->n - at, &g);
            w = ends ? 0 : g.width > 1 ? g.width : w + g.width;
        }
    }
    return longest;
}

/* Computes the column widths: the natural ones, of which the widest that is wider than its words is
 * reduced until the table fits (3 cells between columns). False: it cannot fit. */
static bool table_widths(struct md_table *t, int cells)
{
    int total = 3 * (t->columns - 1), least[MAX_COLUMNS];
    memset(t->width, 0, sizeof t->width);
    for (int c = 0; c < t->columns; c++)
        least[c] = MIN_COLUMN;
    for (int i = 0; i < t->n_cell; i++) {
        int c = i % t->columns;
        t->width[c] = max_int(t->width[c], sheet_width(&t->cell[i]));
        least[c] = max_int(least[c], min_int(longest_word(&t->cell[i]), MOST_WORD));
    }
    for (int c = 0; c < t->columns; c++)
        total += t->width[c] = max_int(t->width[c], 1);
    for (; total > cells; total--) {
        int widest = -1;
        for (int c = 0; c < t->columns; c++)
            if (t->width[c] > least[c] && (widest < 0 || t->width[c] > t->width[widest]))
                widest = c;
        if (widest < 0)
            return false;
        t->width[widest]--;
    }
    return true;
}

static void table_cell_row(struct md *m, const struct sheet *s, int r, int c)
{
    const struct md_table *t = &m->table;
    bool there = r < s->n_row;
    int w = there ? sheet_row_width(&s->row[r]) : 0;
    int pad = max_int(t->width[c] - w, 0), left = 0;
    if (t->align[c] == MD_ALIGN_RIGHT)
        left = pad;
    else if (t->align[c] == MD_ALIGN_CENTER)
        left = pad / 2;
    sheet_printf(m->out, ST_TEXT, "%*s", left, "");
    if (there)
        sheet_add_row(m->out, &s->row[r], 0, (int)s->row[r].text.n);
    if (c + 1 < t->columns) {
        sheet_printf(m->out, ST_TEXT, "%*s", pad - left, "");
        sheet_add(m->out, ST_DIM, m->out->ascii ? " | " : " │ ");
    }
}

static void table_row(struct md *m, int first)
{
    struct md_table *t = &m->table;
    FREED(free_at) struct sheet *wrapped = xcalloc((size_t)t->columns, sizeof *wrapped);
    int rows = 1;
    for (int c = 0; c < t->columns; c++) {
        wrapped[c] = (struct sheet){.ascii = m->out->ascii};
        sheet_append_wrapped(&wrapped[c], &t->cell[first + c], t->width[c]);
        rows = max_int(rows, wrapped[c].n_row);
    }
    for (int r = 0; r < rows; r++) {
        put_prefix(m);
        for (int c = 0; c < t->columns; c++)
            table_cell_row(m, &wrapped[c], r, c);
        sheet_line(m->out);
    }
    for (int c = 0; c < t->columns; c++)
        sheet_free(&wrapped[c]);
}

static void table_rule(struct md *m)
{
    bool ascii = m->out->ascii;
    put_prefix(m);
    for (int c = 0; c < m->table.columns; c++) {
        if (c)
            sheet_add(m->out, ST_DIM, ascii ? "-+-" : "─┼─");
        for (int i = 0; i < m->table.width[c]; i++)
            sheet_add(m->out, ST_DIM, ascii ? "-" : "─");
    }
    sheet_line(m->out);
}

/* Writes a row of a table that is too wide: a line "head: value" for each cell. */
static void table_list(struct md *m, int first)
{
    struct md_table *t = &m->table;
    for (int c = 0; c < t->columns; c++) {
        const struct sheet *head = &t->cell[c], *cell = &t->cell[first + c];
        for (int r = 0; t->head_rows > 0 && r < head->n_row; r++)
            sheet_add_row(&m->line, &head->row[r], 0, (int)head->row[r].text.n);
        sheet_add(&m->line, ST_DIM, ": ");
        for (int r = 0; r < cell->n_row; r++) {
            sheet_add(&m->line, ST_TEXT, r ? " " : "");
            sheet_add_row(&m->line, &cell->row[r], 0, (int)cell->row[r].text.n);
        }
        sheet_line(&m->line);
        flush_line(m);
    }
}

static void table_end(struct md *m)
{
    struct md_table *t = &m->table;
    bool fits = t->columns > 0 && table_widths(t, room(m));
    for (int i = 0, row = 0; t->columns > 0 && i < t->n_cell; i += t->columns, row++) {
        if (fits)
            table_row(m, i);
        else if (row >= t->head_rows)
            table_list(m, i);
        if (fits && row + 1 == t->head_rows)
            table_rule(m);
        else if (!fits && row >= t->head_rows && i + t->columns < t->n_cell)
            put_rule(m, MIN_COLUMN);
    }
    for (int i = 0; i < t->n_cell; i++)
        sheet_free(&t->cell[i]);
    t->n_cell = 0;
    m->gap = true;
}

/* ---- blocks ---- */

static void push_prefix(struct md *m, enum style st, const char *first, const char *rest)
{
    if (m->n_prefix < MAX_NEST) {
        struct md_prefix *p = &m->prefix[m->n_prefix];
        *p = (struct md_prefix){.style = st};
        snprintf(p->first, sizeof p->first, "%s", first);
        snprintf(p->rest, sizeof p->rest, "%s", rest);
    }
    m->n_prefix++;
}

static void push_list(struct md *m, struct md_list l)
{
    flush_line(m);
    put_gap(m);
    if (m->n_list < MAX_NEST)
        m->list[m->n_list] = l;
    m->n_list++;
}

static void item_begin(struct md *m, const MD_BLOCK_LI_DETAIL *d)
{
    struct md_list *l = &m->list[min_int(m->n_list, MAX_NEST) - 1];
    char mark[16];
    put_gap(m);
    if (d->is_task)
        snprintf(mark, sizeof mark, "[%c] ", d->task_mark == ' ' ? ' ' : 'x');
    else if (l->ordered)
        snprintf(mark, sizeof mark, "%u. ", l->next++);
    else
        snprintf(mark, sizeof mark, "%s ", m->out->ascii ? "-" : m->n_list % 2 ? "•" : "◦");
    char rest[16];
    snprintf(rest, sizeof rest, "%*s", text_width(mark, strlen(mark)), "");
    push_prefix(m, ST_LABEL, mark, rest);
}

static void item_end(struct md *m)
{
    flush_line(m);
    if (m->n_prefix <= MAX_NEST && !m->prefix[m->n_prefix - 1].used) { /* an empty item */
        put_prefix(m);
        sheet_line(m->out);
    }
    m->n_prefix--;
    m->gap = !m->list[min_int(m->n_list, MAX_NEST) - 1].tight;
}

static int enter_block(MD_BLOCKTYPE type, void *detail, void *arg)
{
    struct md *m = arg;
    switch (type) {
    case MD_BLOCK_UL:
        push_list(m, (struct md_list){.tight = ((MD_BLOCK_UL_DETAIL *)detail)->is_tight});
        break;
    case MD_BLOCK_OL: {
        const MD_BLOCK_OL_DETAIL *d = detail;
        push_list(m, (struct md_list){.ordered = true, .tight = d->is_tight, .next = d->start});
        break;
    }
    case MD_BLOCK_LI: item_begin(m, detail); break;
    case MD_BLOCK_QUOTE:
        flush_line(m);
        put_gap(m);
        push_prefix(m, ST_QUOTE, m->out->ascii ? "| " : "▌ ", m->out->ascii ? "| " : "▌ ");
        break;
    case MD_BLOCK_HR:
        flush_line(m);
        put_gap(m);
        put_rule(m, room(m));
        m->gap = true;
        break;
    case MD_BLOCK_H:
        m->head = (int)((MD_BLOCK_H_DETAIL *)detail)->level;
        flush_line(m);
        put_gap(m);
        break;
    case MD_BLOCK_CODE:
        flush_line(m);
        put_gap(m);
        code_begin(m, detail);
        break;
    case MD_BLOCK_P:
        flush_line(m);
        put_gap(m);
        break;
    case MD_BLOCK_TABLE:
        flush_line(m);
        put_gap(m);
        m->table.columns = min_int((int)((MD_BLOCK_TABLE_DETAIL *)detail)->col_count, MAX_COLUMNS);
        m->table.head_rows = (int)((MD_BLOCK_TABLE_DETAIL *)detail)->head_row_count;
        break;
    case MD_BLOCK_TR: m->table.column = 0; break;
    case MD_BLOCK_TH: m->bold++; break;
    default: break;
    }
    return 0;
}

/* Keeps the content of a table cell until the widths of all cells are known. */
static void cell_end(struct md *m, MD_BLOCKTYPE type, const MD_BLOCK_TD_DETAIL *d)
{
    struct md_table *t = &m->table;
    if (type == MD_BLOCK_TH)
        m->bold--;
    if (t->column < t->columns) {
        t->align[t->column++] = d->align;
        *table_cell(t) = m->line;
    } else {
        sheet_free(&m->line);
    }
    line_init(m);
}

/* Ends a row: adds empty cells up to the table's columns. */
static void row_end(struct md *m)
{
    for (; m->table.column < m->table.columns; m->table.column++)
        *table_cell(&m->table) = (struct sheet){.ascii = m->out->ascii};
}

static int leave_block(MD_BLOCKTYPE type, void *detail, void *arg)
{
    struct md *m = arg;
    switch (type) {
    case MD_BLOCK_UL:
    case MD_BLOCK_OL:
        m->n_list--;
        m->gap = true;
        break;
    case MD_BLOCK_LI: item_end(m); break;
    case MD_BLOCK_QUOTE:
        flush_line(m);
        m->n_prefix--;
        m->gap = true;
        break;
    case MD_BLOCK_H:
        flush_line(m);
        m->head = 0;
        m->gap = true;
        break;
    case MD_BLOCK_P:
        flush_line(m);
        m->gap = true;
        break;
    case MD_BLOCK_CODE: code_end(m); break;
    case MD_BLOCK_TABLE: table_end(m); break;
    case MD_BLOCK_TR: row_end(m); break;
    case MD_BLOCK_TH:
    case MD_BLOCK_TD: cell_end(m, type, detail); break;
    default: break;
    }
    return 0;
}

/* ---- inline text ---- */

static enum style inline_style(const struct md *m)
{
    if (m->code)
        return ST_CODE;
    if (m->link)
        return ST_LINK;
    if (m->head == 1)
        return ST_HEAD;
    if (m->bold || m->head)
        return ST_BOLD;
    if (m->italic)
        return ST_ITALIC;
    return m->strike ? ST_DIM : ST_TEXT;
}

/* ---- links: the target is always shown ---- */

static size_t line_bytes(const struct md *m)
{
    size_t n = 0;
    for (int i = 0; i < m->line.n_row; i++)
        n += m->line.row[i].text.n;
    return n;
}

static void link_begin(struct md *m, const MD_ATTRIBUTE *target)
{
    if (m->n_link < MAX_NEST) {
        struct link *l = &m->links[m->n_link];
        *l = (struct link){.from = line_bytes(m)};
        buf_add(&l->target, target->text, target->size);
    }
    m->n_link++;
    m->link++;
}

/* Whether the link's text is its target, as in <http://x> and <a@b>. */
static bool shows_target(const struct md *m, const struct link *l)
{
    FREED(buf_free) struct buf shown = {0}, clean = {0};
    for (int i = 0; i < m->line.n_row; i++)
        buf_add(&shown, m->line.row[i].text.p, m->line.row[i].text.n);
    text_sanitise(&clean, l->target.p, l->target.n, false);
    size_t n = shown.n - l->from, mail = clean.n == n + 7 && memcmp(clean.p, "mailto:", 7) == 0 ? 7
               : 0;
    return n > 0 && clean.n == n + mail && memcmp(shown.p + l->from, clean.p + mail, n) == 0;
}

static void link_end(struct md *m)
{
    m->link--;
    if (--m->n_link >= MAX_NEST)
        return;
    struct link *l = &m->links[m->n_link];
    if (l->target.n > 0 && !shows_target(m, l)) {
        sheet_add(&m->line, ST_DIM, " (");
        sheet_addn(&m->line, ST_DIM, l->target.p, l->target.n);
        sheet_add(&m->line, ST_DIM, ")");
    }
    buf_free(&l->target);
}

static int enter_span(MD_SPANTYPE type, void *detail, void *arg)
{
    struct md *m = arg;
    switch (type) {
    case MD_SPAN_EM: m->italic++; break;
    case MD_SPAN_STRONG: m->bold++; break;
    case MD_SPAN_CODE: m->code++; break;
    case MD_SPAN_DEL: m->strike++; break;
    case MD_SPAN_A: link_begin(m, &((MD_SPAN_A_DETAIL *)detail)->href); break;
    case MD_SPAN_IMG:
        sheet_add(&m->line, ST_DIM, "image: ");
        link_begin(m, &((MD_SPAN_IMG_DETAIL *)detail)->src);
        break;
    default: break;
    }
    return 0;
}

static int leave_span(MD_SPANTYPE type, void *, void *arg)
{
    struct md *m = arg;
    switch (type) {
    case MD_SPAN_EM: m->italic--; break;
    case MD_SPAN_STRONG: m->bold--; break;
    case MD_SPAN_CODE: m->code--; break;
    case MD_SPAN_DEL: m->strike--; break;
    case MD_SPAN_A:
    case MD_SPAN_IMG: link_end(m); break;
    default: break;
    }
    return 0;
}

static const struct entity {
    const char *name, *text;
} entities[] = {
    {"&amp;", "&"},    {"&lt;", "<"},     {"&gt;", ">"},     {"&quot;", "\""},  {"&apos;", "'"},
    {"&nbsp;", " "},   {"&ndash;", "–"},  {"&mdash;", "—"},  {"&hellip;", "…"}, {"&rarr;", "→"},
    {"&larr;", "←"},   {"&times;", "×"},  {"&le;", "≤"},     {"&ge;", "≥"},     {"&ne;", "≠"},
    {"&copy;", "©"},   {"&deg;", "°"},    {"&middot;", "·"}, {"&bull;", "•"},   {"&euro;", "€"},
};

/* The offset of p in the source, -1: it is not there. */
static int source_at(const struct md *m, const char *p)
{
    bool in = (uintptr_t)p >= (uintptr_t)m->source &&
              (uintptr_t)p < (uintptr_t)(m->source + m->source_n);
    return in ? (int)(p - m->source) : -1;
}

/* Adds code and remembers where in the source it stands. */
static void put_code(struct md *m, const char *p, size_t n)
{
    int src = source_at(m, p);
    if (src >= 0 && n > 0)
        *APPEND(m->piece, m->n_piece) = (struct code_piece){m->text.n, src};
    buf_add(&m->text, p, n);
}

/* Adds a character reference: decodes numeric ones and common names; others are shown verbatim. */
static void put_entity(struct md *m, const char *p, size_t n)
{
    int src = source_at(m, p);
    char name[16];
    if (n < sizeof name) {
        memcpy(name, p, n);
        name[n] = '\0';
        for (size_t i = 0; i < LEN(entities); i++)
            if (strcmp(entities[i].name, name) == 0) {
                sheet_add_for(&m->line, inline_style(m), entities[i].text, strlen(entities[i].text),
                              src, (int)n);
                return;
            }
        if (name[1] == '#') {
            bool hex = name[2] == 'x' || name[2] == 'X';
            FREED(buf_free) struct buf b = {0};
            unsigned long cp = strtoul(name + (hex ? 3 : 2), NULL, hex ? 16 : 10);
            bool valid = cp > 0 && cp <= 0x10FFFF && !(cp >= 0xD800 && cp <= 0xDFFF);
            buf_utf8(&b, valid ? (uint32_t)cp : 0xFFFD);
            sheet_add_for(&m->line, inline_style(m), b.p, b.n, src, (int)n);
            return;
        }
    }
    sheet_addn(&m->line, inline_style(m), p, n);
}

static int put_text(MD_TEXTTYPE type, const MD_CHAR *p, MD_SIZE n, void *arg)
{
    struct md *m = arg;
    if (m->in_code) {
        put_code(m, type == MD_TEXT_NULLCHAR ? "" : p, type == MD_TEXT_NULLCHAR ? 1 : n);
        return 0;
    }
    switch (type) {
    case MD_TEXT_NULLCHAR: sheet_addn(&m->line, inline_style(m), "", 1); break;
    case MD_TEXT_BR:
    case MD_TEXT_SOFTBR: sheet_line(&m->line); break;
    case MD_TEXT_ENTITY: put_entity(m, p, n); break;
    default: sheet_addn(&m->line, inline_style(m), p, n);
    }
    return 0;
}

/* How many of these ascending numbers are below x. */
static int count_below(const struct ids *list, int x)
{
    return FIRST_NOT(i, list->n, list->v[i] < x);
}

/* Turns offsets in `shown` into offsets in the text that markdown_definitions() made it from: each
 * backslash that was added moves those after it by one. */
static void unescape_sources(struct sheet *out, int from, const char *text, size_t n,
                             const struct buf *shown)
{
    FREED(ids_free) struct ids added = {0};
    for (size_t i = 0, k = 0; i < shown->n && shown->n > n; i++)
        if (k < n && shown->p[i] == text[k])
            k++;
        else
            ids_add(&added, (int32_t)i);
    for (int r = from; r < out->n_row && added.n > 0; r++)
        for (int s = 0; s < out->row[r].n_span; s++) {
            struct span *sp = &out->row[r].span[s];
            int before = count_below(&added, sp->src);
            /* shown, as in code, and of no source */
            int within = count_below(&added, sp->src + sp->src_n) - before;
            sp->src -= sp->src >= 0 ? before : 0;
            sp->src_n -= sp->src >= 0 ? within : 0;
        }
}

/* Appends rows; the bytes from n_own on are not the writer's: no span shows them. */
static void render_part(const char *text, size_t n, size_t n_own, int width, struct sheet *out)
{
    struct md m = {.out = out, .width = width};
    const MD_PARSER parser = {
        .flags = MD_FLAG_TABLES | MD_FLAG_STRIKETHROUGH | MD_FLAG_TASKLISTS | MD_FLAG_NOHTML,
        .enter_block = enter_block,
        .leave_block = leave_block,
        .enter_span = enter_span,
        .leave_span = leave_span,
        .text = put_text,
    };
    FREED(buf_free) struct buf shown = {0};
    markdown_definitions(text, n, &shown);
    CHECK(shown.n < UINT32_MAX);
    int from = out->n_row;
    m.source = shown.p;
    m.source_n = shown.n - (n - n_own);
    line_init(&m);
    if (md_parse(shown.p, (MD_SIZE)shown.n, &parser, &m) != 0) /* no callback fails */
        no_memory("Markdown");
    flush_line(&m);
    unescape_sources(out, from, text, n, &shown);
    sheet_free(&m.line);
    buf_free(&m.text);
    FREE(m.piece, m.table.cell);
}

void markdown_render(const char *text, size_t n, int width, struct sheet *out)
{
    render_part(text, n, n, width, out);
}

void markdown_render_open(const char *text, size_t n, int width, struct sheet *out)
{
    FREED(buf_free) struct buf closed = {0};
    size_t own = markdown_closed(text, n, &closed);
    render_part(closed.p, closed.n, own, width, out);
}
