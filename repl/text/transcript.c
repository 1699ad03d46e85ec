/* transcript.c - see transcript.h. */
#include "repl/text/transcript.h"
#include "repl/text/markdown.h"

enum {
    MEASURE = 100,   /* largest width of prose, for legibility */
    PACE = 64,       /* the open block is rendered again when it has grown by 1/PACE, ... */
    PATIENCE = 10,   /* ... or after this many frames, so that the cost is linear in the text */
    LONG_MESSAGE = 30, SHORTENED = 12, /* a message of more rows is reduced to so many */
    BLOCK_MOST = 1 << 20, /* a longer block of Markdown is shown as plain text */
    PIECE_MOST = 1 << 16, /* bytes of plain text between two looks at `stop` */
};

void transcript_init(struct transcript *t, bool ascii)
{
    *t = (struct transcript){.ascii = ascii, .tail = true, .width = 80, .cursor = -1};
}

static void entry_free(struct entry *e)
{
    buf_free(&e->text);
    free(e->mark);
    sheet_free(&e->src);
    sheet_free(&e->rows);
}

void transcript_clear(struct transcript *t)
{
    for (int i = 0; i < t->n; i++)
        entry_free(&t->entry[i]);
    t->n = 0;
    t->cursor = -1;
    transcript_to_tail(t);
}

void transcript_free(struct transcript *t)
{
    transcript_clear(t);
    free(t->entry);
    *t = (struct transcript){0};
}

static struct entry *add_entry(struct transcript *t, enum entry_kind kind, int turn)
{
    struct entry *e = APPEND(t->entry, t->n);
    *e = (struct entry){.kind = kind, .turn = turn};
    buf_add(&e->text, "", 0);
    e->src = (struct sheet){.ascii = t->ascii};
    e->rows = (struct sheet){.ascii = t->ascii};
    return e;
}

void transcript_user(struct transcript *t, int turn, const char *text, size_t n)
{
    buf_add(&add_entry(t, ENTRY_USER, turn)->text, text, n);
}

/* The index of an entry after entry `from` has become the last one. */
static int index_after(const struct transcript *t, int i, int from)
{
    return i == from ? t->n - 1 : i > from ? i - 1 : i;
}

/* Makes an entry the last one; the cursor and the window keep the entries that they are on. */
static void move_to_end(struct transcript *t, int i)
{
    struct entry e = t->entry[i];
    memmove(t->entry + i, t->entry + i + 1, (size_t)(t->n - 1 - i) * sizeof *t->entry);
    t->entry[t->n - 1] = e;
    t->cursor = index_after(t, t->cursor, i);
    if (!t->tail && t->top < t->n)
        t->top = index_after(t, t->top, i);
}

/* The open entry of this turn and kind; -1: none. */
static int find_open(const struct transcript *t, int turn, enum entry_kind kind)
{
    int i = t->n - 1;
    while (i >= 0 && !(t->entry[i].open && t->entry[i].turn == turn && t->entry[i].kind == kind))
        i--;
    return i;
}

void transcript_append(struct transcript *t, int turn, enum entry_kind kind, const char *text,
                       size_t n)
{
    int i = find_open(t, turn, kind);
    struct entry *e = i < 0 ? add_entry(t, kind, turn) : &t->entry[i];
    e->open = true;
    buf_add(&e->text, text, n);
}

void transcript_go_on(struct transcript *t, int turn)
{
    static const enum entry_kind kind[] = {ENTRY_THINK, ENTRY_REPLY};
    for (int k = 0; k < 2; k++) {
        int i = find_open(t, turn, kind[k]);
        if (i >= 0)
            move_to_end(t, i);
    }
}

void transcript_end(struct transcript *t, int turn)
{
    for (int i = 0; i < t->n; i++)
        if (t->entry[i].turn == turn && t->entry[i].open) {
            t->entry[i].open = false;
            t->entry[i].shown = SIZE_MAX; /* the last rendering may have omitted some text */
        }
}

void transcript_sheet(struct transcript *t, enum entry_kind kind, struct sheet *s)
{
    if (s->n_row == 0)
        return;
    struct entry *e = add_entry(t, kind, 0);
    sheet_free(&e->src);
    e->src = *s;
    e->src.open = false;
    *s = (struct sheet){.ascii = s->ascii};
}

void transcript_retract(struct transcript *t, int turn)
{
    int kept = 0;
    if (turn <= 0)
        return;
    for (int i = 0; i < t->n; i++) {
        if (t->entry[i].turn == turn)
            entry_free(&t->entry[i]);
        else
            t->entry[kept++] = t->entry[i];
    }
    t->n = kept;
    t->cursor = -1;
    transcript_to_tail(t);
}

static void forget_layout(struct entry *e)
{
    sheet_clear(&e->rows);
    e->width = 0;
    e->done = e->shown = 0;
    e->done_rows = 0;
}

void transcript_set_raw(struct transcript *t, bool raw)
{
    t->raw = raw;
    for (int i = 0; i < t->n; i++)
        if (t->entry[i].kind == ENTRY_REPLY || t->entry[i].kind == ENTRY_USER)
            forget_layout(&t->entry[i]);
}

void transcript_set_think(struct transcript *t, bool think)
{
    t->think = think;
    for (int i = 0; i < t->n; i++)
        if (t->entry[i].kind == ENTRY_THINK)
            forget_layout(&t->entry[i]);
}

/* ---- layout ---- */

static bool stops(const struct transcript *t)
{
    return t->stop && t->stop();
}

/* Adds rows of plain text, line by line. */
static void lay_plain(struct entry *e, enum style st, const char *p, size_t n)
{
    FREED(sheet_free) struct sheet lines = {.ascii = e->rows.ascii};
    sheet_source(&lines, e->text.p, e->text.n, 0);
    for (const char *end = p + n; p <= end;) {
        const char *nl = memchr(p, '\n', (size_t)(end - p));
        sheet_addn(&lines, st, p, (size_t)((nl ? nl : end) - p));
        sheet_line(&lines);
        if (!nl)
            break;
        p = nl + 1;
    }
    sheet_append_wrapped(&e->rows, &lines, e->width);
}

/* Appends rows for bytes of a reply, below a gap if there are rows above. */
static void lay_block(struct entry *e, const char *p, size_t n, bool open)
{
    int before = e->rows.n_row, width = min_int(e->width, MEASURE);
    if (before > 0)
        sheet_line(&e->rows);
    if (open)
        markdown_render_open(p, n, width, &e->rows);
    else
        markdown_render(p, n, width, &e->rows);
    sheet_shift(&e->rows, before, (int)(p - e->text.p));
    if (e->rows.n_row == before + 1 && before > 0)
        sheet_truncate(&e->rows, before); /* no rows, so no gap either */
}

/* The length of the next piece of n bytes of plain text: up to the last line break in it, else up
 * to the last blank. */
static size_t piece_length(const char *p, size_t n)
{
    if (n <= PIECE_MOST)
        return n;
    const char *end = memrchr(p, '\n', PIECE_MOST);
    end = end ? end : memrchr(p, ' ', PIECE_MOST);
    if (end)
        return (size_t)(end + 1 - p);
    for (n = PIECE_MOST; n > PIECE_MOST - 4 && ((unsigned char)p[n] & 0xC0) == 0x80;)
        n--; /* not inside a character */
    return n;
}

/* Adds the final rows of the next n bytes of text. */
static void settle_text(const struct transcript *t, struct entry *e, size_t n, bool markdown,
                        enum style st)
{
    const size_t end = e->done + n;
    markdown = markdown && n <= BLOCK_MOST;
    do {
        const char *p = e->text.p + e->done;
        n = markdown ? n : piece_length(p, end - e->done);
        if (markdown)
            lay_block(e, p, n, false);
        else
            lay_plain(e, st, p, p[n - 1] == '\n' ? n - 1 : n);
        e->done += n;
        e->done_rows = e->rows.n_row;
    } while (e->done < end && !stops(t));
}

/* Bytes of the text after e->done that are final: a complete Markdown block, or complete lines. */
static size_t final_bytes(const struct entry *e, bool markdown)
{
    const char *p = e->text.p + e->done;
    size_t n = e->text.n - e->done, k = 0;
    if (markdown) {
        k = markdown_block(p, n);
    } else if (n > 0) {
        const char *nl = memrchr(p, '\n', n);
        k = nl ? (size_t)(nl + 1 - p) : 0;
    }
    return k == 0 && !e->open ? n : k;
}

/* If it is stopped, the next call goes on where it ended. */
static void lay_text(const struct transcript *t, struct entry *e, bool markdown, enum style st)
{
    size_t grown = e->text.n - e->shown, k;
    if (e->shown > 0 && e->shown != SIZE_MAX && grown < (e->text.n - e->done) / PACE &&
        t->frame - e->frame < PATIENCE)
        return;
    sheet_truncate(&e->rows, e->done_rows);
    e->shown = 0;
    while ((k = final_bytes(e, markdown)) > 0) {
        settle_text(t, e, k, markdown, st);
        if (stops(t))
            return;
    }
    const char *p = e->text.p + e->done;
    size_t open = e->text.n - e->done;
    if (open > 0 && markdown && open <= BLOCK_MOST)
        lay_block(e, p, open, true);
    else if (open > 0)
        lay_plain(e, st, p, open);
    e->shown = e->text.n;
    e->frame = t->frame;
}

static void lay_folded(struct entry *e)
{
    int lines = 1;
    for (size_t i = 0; i < e->text.n; i++)
        lines += e->text.p[i] == '\n' && i + 1 < e->text.n;
    sheet_truncate(&e->rows, 0);
    say_line(&e->rows, ST_DIM, "thinking%s %d line%s, Ctrl-T shows", e->open ? "," : ":", lines,
             lines == 1 ? "" : "s");
    e->shown = e->text.n;
}

/* Reduces a long message (a pasted file) to its beginning. */
static void shorten(struct entry *e)
{
    int more = e->rows.n_row - SHORTENED;
    if (e->rows.n_row <= LONG_MESSAGE)
        return;
    sheet_truncate(&e->rows, SHORTENED);
    say_line(&e->rows, ST_DIM, "[%d more lines, Ctrl-X r shows them]", more);
}

static void lay_out(const struct transcript *t, struct entry *e)
{
    bool text = e->kind == ENTRY_USER || e->kind == ENTRY_REPLY || e->kind == ENTRY_THINK;
    if (e->width == t->width && (!text || e->shown == e->text.n || stops(t)))
        return; /* once stopped, rows stay where they are: transcript_view() points to them */
    if (e->width != t->width) {
        forget_layout(e);
        e->width = t->width;
    }
    if (!text)
        sheet_append_wrapped(&e->rows, &e->src, e->width);
    else if (e->kind == ENTRY_THINK && !t->think)
        lay_folded(e);
    else
        lay_text(t, e, e->kind == ENTRY_REPLY && !t->raw,
                 e->kind == ENTRY_USER ? ST_USER : e->kind == ENTRY_THINK ? ST_DIM : ST_TEXT);
    if (e->kind == ENTRY_USER && !t->raw)
        shorten(e);
}

/* Blank rows before an entry: one, except between notices. */
static int gap(const struct transcript *t, int i)
{
    return i > 0 && !(t->entry[i].kind == ENTRY_NOTE && t->entry[i - 1].kind == ENTRY_NOTE);
}

static int rows_of(struct transcript *t, int i)
{
    lay_out(t, &t->entry[i]);
    return gap(t, i) + t->entry[i].rows.n_row;
}

void transcript_lay(struct transcript *t, int entry)
{
    lay_out(t, &t->entry[entry]);
}

/* ---- the window ---- */

void transcript_to_tail(struct transcript *t)
{
    t->tail = true;
    t->below = 0;
}

void transcript_to_head(struct transcript *t)
{
    t->tail = t->n == 0;
    t->top = t->top_row = 0;
}

/* Moves (*i, *row) up by `rows` rows; false: the beginning was reached. */
static bool move_up(struct transcript *t, int *i, int *row, int rows)
{
    while (rows > *row) {
        if (*i == 0) {
            *row = 0;
            return false;
        }
        rows -= *row;
        --*i;
        *row = rows_of(t, *i);
    }
    *row -= rows;
    return true;
}

static int rows_below(struct transcript *t, int i, int row)
{
    int n = -row;
    for (; i < t->n; i++)
        n += rows_of(t, i);
    return n;
}

/* Sets the window's top so that it shows the end. */
static void find_tail(struct transcript *t, int height)
{
    t->top = t->n;
    t->top_row = 0;
    move_up(t, &t->top, &t->top_row, height);
}

/* Keeps the top within the transcript; a window that shows the end then follows it. */
static int scroll_to_view(struct transcript *t, int height)
{
    if (!t->tail) {
        t->top = min_int(t->top, max_int(t->n - 1, 0));
        if (t->n > 0)
            t->top_row = min_int(t->top_row, max_int(rows_of(t, t->top) - 1, 0));
        int below = t->n ? rows_below(t, t->top, t->top_row) - height : 0;
        if (below > 0)
            return below;
        transcript_to_tail(t);
    }
    find_tail(t, height);
    return 0;
}

void transcript_scroll(struct transcript *t, int rows, int height)
{
    scroll_to_view(t, height);
    if (rows < 0) {
        move_up(t, &t->top, &t->top_row, -rows);
    } else {
        t->top_row += rows;
        while (t->top < t->n && t->top_row >= rows_of(t, t->top)) {
            t->top_row -= rows_of(t, t->top);
            t->top++;
        }
    }
    t->tail = t->top >= t->n;
    t->below = scroll_to_view(t, height);
}

void transcript_show(struct transcript *t, int entry, int row, bool last, int height)
{
    scroll_to_view(t, height);
    int down = row + gap(t, entry) - t->top_row; /* rows from the window's top to the row */
    for (int i = t->top; i < entry; i++)
        down += rows_of(t, i);
    if (!last && entry >= t->top && down >= 0 && down < height)
        return;
    t->top = entry;
    t->top_row = row + gap(t, entry);
    move_up(t, &t->top, &t->top_row, last ? height - 1 : height / 2);
    t->tail = false;
    t->below = scroll_to_view(t, height);
}

int transcript_view(struct transcript *t, int width, int height, struct transcript_line *line)
{
    if (width != t->width && !t->tail && t->n > 0) { /* keep the same text at the top */
        struct entry *e = &t->entry[min_int(t->top, t->n - 1)];
        int before = max_int(e->rows.n_row, 1);
        t->width = width;
        lay_out(t, e);
        t->top_row = (int)((int64_t)t->top_row * e->rows.n_row / before);
        t->below = scroll_to_view(t, height);
    }
    t->width = width;
    t->frame++;
    int below = scroll_to_view(t, height), i = t->top, row = t->top_row;
    for (int y = 0; y < height; y++) {
        while (i < t->n && row >= rows_of(t, i)) {
            i++;
            row = 0;
        }
        line[y] = (struct transcript_line){0};
        if (i < t->n) {
            int r = row - gap(t, i);
            line[y].kind = t->entry[i].kind;
            line[y].row = r >= 0 ? &t->entry[i].rows.row[r] : NULL;
            line[y].first = r == 0;
            line[y].entry = i;
            line[y].n = r;
            row++;
        }
    }
    return below;
}
