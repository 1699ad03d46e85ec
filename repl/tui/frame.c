/* frame.c - see frame.h. */
#include "repl/tui/frame.h"

enum { GUTTER = 2, PANE_MIN = 46, TALK_MIN = 40, SIDE_BY_SIDE = 100, PANE_ROWS = 8, TIME_ROWS = 16,
       SCALE = 14, MAX_QUEUED = 3 };

/* ---- cells ---- */

void grid_resize(struct grid *g, int w, int h)
{
    w = max_int(w, 1), h = max_int(h, 1);
    g->cell = xrealloc(g->cell, (size_t)w * (size_t)h, sizeof *g->cell);
    g->w = w, g->h = h;
    g->x = g->y = -1;
    for (int64_t i = 0; i < mul64(w, h); i++)
        g->cell[i] = (struct cell){.cp = {' '}, .width = 1};
}

void grid_free(struct grid *g)
{
    free(g->cell);
    *g = (struct grid){0};
}

static void put_cell(struct grid *g, int x, int y, struct cell c)
{
    struct cell *at = &g->cell[mul64(y, g->w) + x];
    *at = c;
    if (c.width == 2)
        at[1] = (struct cell){.cp = {0}, .width = 0, .style = c.style, .flags = c.flags};
}

/* Draws one grapheme cluster if it fits completely; false: it does not. */
static bool put_glyph(struct grid *g, int x, int y, int room, enum style st, int flags,
                      const struct glyph *gl)
{
    if (gl->width > room)
        return false;
    if (gl->n == 1) {
        put_cell(g, x, y, (struct cell){.cp = {gl->cp[0]}, .width = (uint8_t)gl->width,
                                        .style = (uint8_t)st, .flags = (uint8_t)flags});
        return true;
    }
    for (int i = 0; i < gl->n;) {
        int w = text_cp_width(gl->cp[i]), marks = 0;
        struct cell c = {.cp = {gl->cp[i]}, .width = (uint8_t)w, .style = (uint8_t)st,
                         .flags = (uint8_t)flags};
        for (i++; i < gl->n && text_cp_width(gl->cp[i]) == 0; i++)
            if (marks < CELL_MARKS)
                c.cp[1 + marks++] = gl->cp[i];
        put_cell(g, x, y, c);
        x += w;
    }
    return true;
}

/* Whether text, without trailing blanks, is wider than `room` cells. */
static bool is_cut(const char *s, size_t n, int room)
{
    size_t fit = room > 0 ? text_fit(s, n, room, NULL) : n;
    while (n > fit && s[n - 1] == ' ')
        n--;
    return n > fit;
}

/* Draws the mark at the end of truncated text. */
static int put_mark(struct grid *g, int x, int y, enum style st, int flags)
{
    struct glyph gl;
    const char *s = g->ascii ? "~" : "…";
    text_next(s, strlen(s), &gl);
    put_glyph(g, x, y, 1, st, flags, &gl);
    return 1;
}

int grid_text(struct grid *g, int x, int y, int room, enum style st, int flags, const char *s,
              size_t n)
{
    struct glyph gl;
    int used = 0;
    if (y < 0 || y >= g->h || x < 0)
        return 0;
    room = min_int(room, g->w - x);
    bool cut = is_cut(s, n, room);
    for (size_t at = 0; at < n;) {
        at += text_next(s + at, n - at, &gl);
        if (!put_glyph(g, x + used, y, room - cut - used, st, flags, &gl))
            break;
        used += gl.width;
    }
    return used + (cut ? put_mark(g, x + used, y, st, flags) : 0);
}

static int put_text(struct grid *g, int x, int y, int room, enum style st, const char *s)
{
    return grid_text(g, x, y, room, st, 0, s, strlen(s));
}

/* A row in which matches of a search are highlighted; find NULL: none are. */
struct found {
    const struct find *find;
    int entry, row;
};

/* The flags of a character, which show a match also without colours. */
static int found_flags(struct found in, size_t at)
{
    int here = in.find ? find_here(in.find, in.entry, in.row, (int)at) : 0;
    return here == 0 ? 0 : here == 1 ? CELL_UNDERLINE | CELL_BOLD : CELL_REVERSE | CELL_BOLD;
}

/* Draws a sheet's row span by span; a cluster may extend over two spans. */
static int put_row(struct grid *g, int x, int y, int room, const struct sheet_row *r,
                   struct found in)
{
    struct glyph gl;
    int used = 0, span = 0;
    if (y < 0 || y >= g->h || x < 0)
        return 0;
    room = min_int(room, g->w - x);
    bool cut = is_cut(r->text.p, r->text.n, room);
    for (size_t at = 0; at < r->text.n;) {
        while (span + 1 < r->n_span && at >= (size_t)r->span[span + 1].at)
            span++;
        int flags = found_flags(in, at);
        at += text_next(r->text.p + at, r->text.n - at, &gl);
        enum style st = flags ? ST_KEY : r->span[span].style;
        if (!put_glyph(g, x + used, y, room - cut - used, st, flags, &gl))
            break;
        used += gl.width;
    }
    return used + (cut ? put_mark(g, x + used, y, ST_DIM, 0) : 0);
}

static void fill(struct grid *g, struct rect r, enum style st, const char *s)
{
    struct glyph gl;
    text_next(s, strlen(s), &gl);
    for (int y = r.y; y < min_int(r.y + r.h, g->h); y++)
        for (int x = r.x; x < min_int(r.x + r.w, g->w); x++)
            put_glyph(g, x, y, 1, st, 0, &gl);
}

/* ---- layout ---- */

/* Divides the height of r among n panes by their weights. */
static void stack(struct rect r, int n, const int *weight, struct rect *out)
{
    int sum = 0, y = 0, part = 0;
    for (int i = 0; i < n; i++)
        sum += weight[i] > 0 ? weight[i] : WEIGHT_DEFAULT;
    for (int i = 0; i < n; i++) {
        part += weight[i] > 0 ? weight[i] : WEIGHT_DEFAULT;
        int end = i + 1 == n ? r.h : (int)((int64_t)r.h * part / sum), least = PANE_ROWS / 2;
        end = i + 1 == n ? end : max_int(min_int(end, r.h - (n - 1 - i) * least), y + least);
        out[i] = (struct rect){r.x, r.y + y, r.w, end - y};
        y = end;
    }
}

void frame_layout(int w, int h, const struct shape *s, struct layout *l)
{
    *l = (struct layout){0};
    l->too_small = w < MIN_WIDTH || h < MIN_HEIGHT;
    if (l->too_small)
        return;
    int rows = max_int(min_int(s->input_rows, h / 3), 1), time = s->time && h >= TIME_ROWS;
    int body = h - rows - time - 2;
    l->rule = (struct rect){0, body, w, 1};
    l->time = (struct rect){0, body + 1, w, time};
    l->input = (struct rect){0, body + 1 + time, w, rows};
    l->status = (struct rect){0, h - 1, w, 1};
    l->talk = (struct rect){0, 0, w, body};
    struct rect panes = l->talk;
    l->below = w < SIDE_BY_SIDE && s->words && s->n_pane > 0;
    l->pane_only = w < SIDE_BY_SIDE && !s->words && s->n_pane > 0;
    if (l->below) {
        panes.h = body / 2;
        l->talk.h = panes.y = body - panes.h;
    }
    l->n_pane = min_int(min_int(s->n_pane, MAX_PANES), max_int(panes.h / PANE_ROWS, 1));
    if (l->n_pane == 0)
        return;
    if (l->pane_only) {
        l->talk.h = 0;
    } else if (!l->below) {
        int share = s->side > 0 ? max_int(min_int(s->side, SIDE_MAX), SIDE_MIN) : SIDE_DEFAULT;
        int side = min_int(max_int(w * share / 100, PANE_MIN), w - TALK_MIN - 1);
        l->talk.w = w - side - 1;
        panes.x = w - side + 1;
        panes.w = side - 1;
    }
    stack(panes, l->n_pane, s->weight, l->pane);
}

static int input_rows(const struct frame *f, int w)
{
    f->input->width = max_int(w - GUTTER, 2);
    input_layout(f->input);
    return f->input->n_row + (f->attached != NULL);
}

static void layout_of(const struct frame *f, int w, int h, struct layout *l)
{
    struct shape s = {.n_pane = f->n_pane, .input_rows = input_rows(f, w), .time = f->time != NULL,
                      .words = f->focus == FOCUS_WORDS, .side = f->side};
    memcpy(s.weight, f->weight, sizeof s.weight);
    frame_layout(w, h, &s, l);
}

int frame_talk_height(const struct frame *f, int w, int h)
{
    struct layout l;
    layout_of(f, w, h, &l);
    return l.talk.h;
}

/* ---- parts ---- */

static const char *gutter(const struct frame *f, const struct transcript_line *line)
{
    if (!line->row)
        return "  ";
    if (line->kind == ENTRY_USER && line->first)
        return f->ascii ? "> " : "› ";
    if (line->kind == ENTRY_THINK)
        return f->ascii ? ": " : "┆ ";
    return "  ";
}

/* Draws the queued messages at the bottom of the transcript. Returns the number of rows used. */
static int draw_queued(const struct frame *f, struct grid *g, struct rect r)
{
    int n = min_int(f->n_queued, min_int(MAX_QUEUED, r.h / 3));
    for (int i = 0; i < n; i++) {
        int y = r.y + r.h - n + i, x = r.x;
        const char *text = f->queued[f->n_queued - n + i];
        x += put_text(g, x, y, r.w, ST_DIM, f->ascii ? "> queued  " : "› queued  ");
        grid_text(g, x, y, r.x + r.w - x, ST_DIM, 0, text, strcspn(text, "\n"));
    }
    return n;
}

/* ---- words: the step of the address, tints, the cursor ---- */

/* How a character of a reply is drawn. */
struct tone {
    bool later; /* it comes after the address */
    bool now;   /* the step of the address produced it */
    bool cursor;
    enum style tint; /* ST_TEXT: none */
};

static enum style tint_of(const struct token_mark *m)
{
    if (m->bonus)
        return ST_BONUS;
    return m->depth == 0 ? ST_TEXT : m->depth == 1 ? ST_DEPTH1 : m->depth == 2 ? ST_DEPTH2
           : ST_DEPTH3;
}

static struct tone tone_of(const struct transcript *t, const struct transcript_line *line, int src)
{
    const struct entry *e = &t->entry[line->entry];
    const struct token_mark *m = src >= 0 ? words_token(e, src) : NULL;
    struct tone o = {.tint = t->tint && m ? tint_of(m) : ST_TEXT};
    o.cursor = t->cursor == line->entry && src >= t->cursor_from && src < t->cursor_to;
    if (t->at_turn > 0) {
        o.later = e->turn > t->at_turn || (e->turn == t->at_turn && m && m->step > t->at_step);
        o.now = e->turn == t->at_turn && m && m->step == t->at_step;
    }
    return o;
}

/* Draws a row of a message or a reply. Characters that no token produced (marks, bars) are drawn
 * like those before them, or, at the beginning of a row, like those after them. */
static void put_talk_row(const struct frame *f, struct grid *g, int x, int y, int room,
                         const struct transcript_line *line)
{
    const struct sheet_row *r = line->row;
    const struct transcript *t = f->talk;
    struct found in = {f->find_in ? NULL : f->find, line->entry, line->n};
    struct tone tone = {0};
    struct glyph gl;
    int used = 0, span = 0, n;
    for (int i = 0; i < r->n_span; i++)
        if (r->span[i].src >= 0) {
            tone = tone_of(t, line, r->span[i].src);
            break;
        }
    if (!tone.later && t->entry[line->entry].turn > t->at_turn && t->at_turn > 0)
        tone.later = true;
    for (size_t at = 0; at < r->text.n;) {
        while (span + 1 < r->n_span && at >= (size_t)r->span[span + 1].at)
            span++;
        int src = sheet_source_of(r, (int)at, &n), flags = found_flags(in, at);
        bool found = flags != 0;
        if (src >= 0)
            tone = tone_of(t, line, src);
        at += text_next(r->text.p + at, r->text.n - at, &gl);
        enum style st = r->span[span].style;
        bool own = src >= 0, strong = st == ST_BOLD || st == ST_HEAD;
        if (tone.later && t->hide)
            gl = (struct glyph){.cp = {' '}, .n = 1, .width = gl.width == 2 ? 1 : gl.width};
        else if (tone.later)
            st = ST_DIM;
        else if (own && tone.tint != ST_TEXT)
            st = tone.tint, flags |= strong ? CELL_BOLD : 0;
        if (found)
            st = ST_KEY;
        if (own && tone.now)
            flags |= CELL_UNDERLINE | CELL_BOLD;
        if (own && tone.cursor)
            flags |= CELL_REVERSE;
        if (!put_glyph(g, x + used, y, room - used, st, flags, &gl))
            break;
        used += gl.width;
    }
}

/* Draws the transcript. Returns the number of rows below the window. */
static int draw_talk(struct frame *f, struct grid *g, struct rect r)
{
    int queued = draw_queued(f, g, r), h = r.h - queued;
    FREED(free_at) struct transcript_line *line = xcalloc((size_t)max_int(h, 1), sizeof *line);
    int below = transcript_view(f->talk, max_int(r.w - GUTTER - 1, 1), h, line);
    for (int y = 0; y < h; y++) {
        int x = put_text(g, r.x, r.y + y, r.w, line[y].kind == ENTRY_USER ? ST_USER : ST_DIM,
                         gutter(f, &line[y]));
        if (line[y].row && line[y].kind <= ENTRY_THINK)
            put_talk_row(f, g, r.x + x, r.y + y, r.w - x, &line[y]);
        else if (line[y].row)
            put_row(g, r.x + x, r.y + y, r.w - x, line[y].row,
                    (struct found){f->find_in ? NULL : f->find, line[y].entry, line[y].n});
    }
    return below;
}

static void draw_pane(const struct frame *f, struct grid *g, struct rect r, struct pane *p,
                      bool focus)
{
    int head = min_int(max_int(min_int(p->head, r.h - p->least), 1), r.h), body = r.h - head;
    int n = max_int(p->rows.n_row - head, 0);
    p->still = head;
    if (p->scroll_to >= head) {
        p->top = min_int(p->top, p->scroll_to - head);
        p->top = max_int(p->top, p->scroll_to - head + 1 - body);
    }
    p->top = max_int(min_int(p->top, n - body), 0);
    for (int y = 0; y < head && y < p->rows.n_row; y++)
        put_row(g, r.x, r.y + y, r.w, &p->rows.row[y], (struct found){0});
    for (int y = 0; y < body && y + p->top < n; y++)
        put_row(g, r.x, r.y + head + y, r.w, &p->rows.row[head + p->top + y],
                (struct found){f->find_in == p ? f->find : NULL, 0, head + p->top + y});
    if (n > p->top + body && body > 0) { /* the number of rows below */
        char text[32];
        int k = snprintf(text, sizeof text, f->ascii ? " +%d " : " ↓%d ", n - p->top - body);
        k -= f->ascii ? 0 : 2; /* cells, not bytes */
        put_text(g, r.x + r.w - k, r.y + r.h - 1, k, ST_DIM, text);
    }
    static const char keys[] = " has the keys ";
    int k = (int)sizeof keys - 1;
    if (focus && p->rows.n_row && sheet_row_width(&p->rows.row[0]) + k < r.w)
        put_text(g, r.x + r.w - k, r.y, k, ST_KEY, keys);
    for (int x = r.x; focus && x < r.x + r.w; x++)
        g->cell[mul64(r.y, g->w) + x].flags |= CELL_REVERSE;
}

/* Where a pane takes the place of the chat: how one comes back. */
static void draw_way_back(struct grid *g, struct rect r, const struct pane *p)
{
    char text[32];
    int k = snprintf(text, sizeof text, " F%d: back to the chat ", p->key);
    if (p->key && p->rows.n_row && sheet_row_width(&p->rows.row[0]) + k < r.w)
        put_text(g, r.x + r.w - k, r.y, k, ST_DIM, text);
}

static void draw_divider(const struct frame *f, struct grid *g, const struct layout *l)
{
    struct rect r = {l->talk.w, 0, 1, l->rule.y};
    fill(g, r, f->focus >= 0 ? ST_KEY : ST_DIM, f->ascii ? "|" : "│");
    put_text(g, r.x, l->rule.y, 1, ST_DIM, f->ascii ? "+" : "┴");
    for (int i = 1; i < l->n_pane; i++) { /* the title row of a lower pane serves as divider */
        struct rect p = l->pane[i];
        put_text(g, r.x, p.y, 1, ST_DIM, f->ascii ? "+" : "├");
    }
}

/* Bytes of the longest beginning of a text that fits `room` cells and ends before a blank or at the
 * end; a word that is too long is cut. */
static size_t words_fit(const char *s, size_t n, int room)
{
    size_t k = text_fit(s, n, room, NULL);
    if (k == n || s[k] == ' ')
        return k;
    const char *blank = memrchr(s, ' ', k);
    return blank && blank > s ? (size_t)(blank - s) : k;
}

/* Draws a message whole: its last line in the row r, those before it in the rows above, with a
 * blank before and after each. most: the cells that it may have if it needs one line only. */
static void put_message(struct grid *g, struct rect r, int most, enum style st, const char *s)
{
    enum { LINES = 5 };
    struct buf line[LINES] = {{0}};
    size_t n = strlen(s), k;
    int room = max_int(text_width(s, n) <= most - 2 ? most - 2 : r.w - 2, 1), lines = 0;
    for (; n > 0 && lines < min_int(LINES, r.y + 1); s += k, n -= k) {
        k = lines + 1 == min_int(LINES, r.y + 1) ? n : words_fit(s, n, room);
        buf_add(&line[lines++], s, k);
        k += k < n && s[k] == ' ';
    }
    for (int i = 0; i < lines; i++) {
        int y = r.y - (lines - 1 - i), x = r.x + put_text(g, r.x, y, 1, st, " ");
        x += grid_text(g, x, y, room, st, 0, line[i].p, line[i].n);
        do
            x += put_text(g, x, y, 1, st, " ");
        while (i + 1 < lines && x < r.x + r.w);
        buf_free(&line[i]);
    }
}

/* Draws "12 lines below" at the right end of the rule. Returns the number of cells used. */
static int draw_below(const struct frame *f, struct grid *g, struct rect r, int below)
{
    char text[64];
    int fresh = below - f->talk->below, n = fresh > 0 ? fresh : below;
    int k = snprintf(text, sizeof text, " %d%s line%s below ", n, fresh > 0 ? " new" : "",
                     n == 1 ? "" : "s");
    if (below <= 0 || k + 4 >= r.w)
        return 0;
    put_text(g, r.x + r.w - k - 2, r.y, k, fresh > 0 ? ST_KEY : ST_DIM, text);
    return k + 2;
}

/* Draws the rule, the line between transcript and input, with progress, hint and attachments. */
static void draw_rule(const struct frame *f, struct grid *g, struct rect r, int below)
{
    FREED(buf_free) struct buf text = {0};
    if (f->find_line)
        buf_str(&text, f->find_line);
    else if (f->hint)
        buf_str(&text, f->hint);
    else if (f->focus >= 0)
        buf_str(&text, "? keys, / finds, arrows move, [ ] time; Esc or typing returns");
    else if (f->focus == FOCUS_WORDS)
        buf_str(&text, "arrows by word, [ ] by step, Enter facts; Esc returns");
    else if (f->focus == FOCUS_TIME)
        buf_str(&text, "[ ] step, { } turn, Home End, . live; Esc or typing returns");
    else if (f->n_queued > 0)
        buf_printf(&text, "%d queued, Up edits", f->n_queued);
    else if (f->input->pasted_lines > 20)
        buf_printf(&text, "[pasted %d lines] Enter sends, Ctrl-C discards", f->input->pasted_lines);
    int used = draw_below(f, g, r, below);
    struct rect part = {r.x + 2, r.y, r.w - 4 - used, 1};
    if (text.n)
        put_message(g, part, used ? part.w : g->w - 4,
                    f->find_line ? ST_KEY : f->hint ? ST_WARN : ST_DIM, text.p);
}

/* The cells of the timeline in its row, which also has room for the scale at its end. */
static struct rect time_cells(struct rect r)
{
    return (struct rect){r.x + GUTTER, r.y, max_int(r.w - GUTTER - SCALE, 1), r.h};
}

static void draw_time(const struct frame *f, struct grid *g, struct rect r)
{
    const struct timeline *t = f->time;
    struct rect c = time_cells(r);
    int used = min_int(timeline_used(t), c.w), here = f->time_at >= 0
                   ? timeline_cell_of(t, f->time_at) : -1;
    bool focus = f->focus == FOCUS_TIME;
    char scale[32];
    put_text(g, r.x, r.y, GUTTER, focus ? ST_KEY : ST_DIM, f->ascii ? "t" : "◷");
    for (int i = 0; i < used; i++) {
        enum style st;
        bool underline;
        const char *s = timeline_cell(t, i, f->ascii, &st, &underline);
        int flags = (underline ? CELL_UNDERLINE : 0) | (i == here ? CELL_REVERSE : 0);
        grid_text(g, c.x + i, r.y, 1, i == here ? ST_KEY : st, flags, s, strlen(s));
    }
    if (t->n == 0)
        put_text(g, c.x, r.y, c.w, ST_DIM, "no step yet");
    else if (t->unit > 1)
        snprintf(scale, sizeof scale, " %d steps/cell", t->unit);
    else
        snprintf(scale, sizeof scale, " %d step%s", t->n, t->n == 1 ? "" : "s");
    if (t->n > 0)
        put_text(g, c.x + used, r.y, r.x + r.w - c.x - used, ST_DIM, scale);
}

/* Draws one row of the input by clusters: tabs as blanks, control characters as placeholders. */
static void draw_input_row(const struct input *in, struct grid *g, struct rect r, int y,
                           struct input_row row, enum style st)
{
    struct glyph gl;
    int x = 0, w;
    for (size_t at = row.from; at < row.to; x += w) {
        const char *p = in->text.p + at;
        size_t k = input_cluster(p, in->text.n - at, &w);
        if (*p == '\t') {
            at += k;
            continue;
        }
        text_next(p, k, &gl);
        enum style as = gl.cp[0] == 0xFFFD ? ST_ESCAPE : st;
        if (!put_glyph(g, r.x + x, y, r.w - x, as, 0, &gl))
            break;
        at += k;
    }
}

static const char *placeholder(const struct frame *f)
{
    if (f->focus >= 0)
        return "the pane has the keys; type to write here";
    if (f->focus != FOCUS_INPUT)
        return f->focus == FOCUS_WORDS ? "the words have the keys; type to write here"
                                       : "the timeline has the keys; type to write here";
    if (f->attached && !f->busy)
        return "message about the file, or Enter";
    if (f->paused)
        return "the turn is paused: /step, /phase, /continue; Ctrl-C ends it";
    return f->busy ? "sent when the reply ends; Ctrl-C stops it"
                   : "message, or /help";
}

static void draw_input(struct frame *f, struct grid *g, struct rect r)
{
    struct input *in = f->input;
    int row, column, top;
    if (f->attached && r.h > 1) {
        int x = r.x + put_text(g, r.x, r.y, r.w, ST_KEY, "+ ");
        x += put_text(g, x, r.y, r.x + r.w - x - 16, ST_TEXT, f->attached);
        put_text(g, x, r.y, r.x + r.w - x, ST_DIM, "  Ctrl-X d drops");
        r.y++, r.h--;
    }
    f->typed = (struct rect){r.x + GUTTER, r.y, r.w - GUTTER, r.h};
    input_cursor(in, &row, &column);
    top = max_int(min_int(row - r.h / 2, in->n_row - r.h), 0);
    if (row < top)
        top = row;
    for (int y = 0; y < r.h && top + y < in->n_row; y++) {
        bool first = top + y == 0;
        put_text(g, r.x, r.y + y, GUTTER, first && f->focus == FOCUS_INPUT ? ST_KEY : ST_DIM,
                 first ? (f->ascii ? "> " : "› ") : (f->ascii ? ". " : "· "));
        struct rect body = {r.x + GUTTER, r.y, r.w - GUTTER, r.h};
        draw_input_row(in, g, body, r.y + y, in->row[top + y], ST_TEXT);
    }
    if (in->text.n == 0 && !in->searching)
        put_text(g, r.x + GUTTER, r.y, r.w - GUTTER, ST_DIM, placeholder(f));
    else if (in->text.n == 1 && in->text.p[0] == '/' && f->n_choice == 0 && !in->searching)
        put_text(g, r.x + GUTTER + 3, r.y, r.w - GUTTER - 3, ST_DIM,
                 "Tab lists the commands; Ctrl-P finds one by some letters");
    /* hidden while something else has the focus */
    g->x = f->focus != FOCUS_INPUT || f->find_line ? -1 : min_int(r.x + GUTTER + column, g->w - 1);
    g->y = r.y + row - top;
}

/* Draws the search pattern (Ctrl-R) in the rule, above the line that was found. */
static void draw_search(const struct frame *f, struct grid *g, struct rect rule)
{
    char text[256];
    const struct input *in = f->input;
    snprintf(text, sizeof text, " search: %.*s%s ", 200, in->pattern.p,
             in->match < 0 && in->pattern.n ? " (nothing found)" : "");
    put_text(g, rule.x + 2, rule.y, rule.w - 4, ST_KEY, text);
}

static void draw_progress(const struct frame *f, struct grid *g, struct rect r)
{
    char text[64];
    int cells = min_int(30, r.w / 3), x = r.x + 1;
    int full = f->total ? (int)((int64_t)cells * f->done / f->total) : 0;
    x += put_text(g, x, r.y, r.w, ST_LABEL, "reading ");
    for (int i = 0; i < cells; i++)
        x += put_text(g, x, r.y, 1, i < full ? ST_HOT : ST_DIM,
                      f->ascii ? (i < full ? "#" : ".") : (i < full ? "█" : "░"));
    snprintf(text, sizeof text, " %d/%d tokens, Ctrl-C stops", f->done, f->total);
    put_text(g, x, r.y, r.x + r.w - x, ST_TEXT, text);
}

/* Draws the status, which app_status() made for this width. Returns its cells. */
static int put_status(struct grid *g, struct rect r, const struct sheet_row *row)
{
    int x = r.x, end = r.x + r.w;
    for (int i = 0; i < row->n_span && x < end; i++) {
        const struct span *sp = &row->span[i];
        x += grid_text(g, x, r.y, end - x, sp->style, 0, row->text.p + sp->at, (size_t)sp->n);
    }
    return x - r.x;
}

static void draw_status(const struct frame *f, struct grid *g, struct rect r)
{
    static const char help[] = "F1 help ";
    int room = r.w - 1;
    if (f->total > 0) {
        draw_progress(f, g, r);
        return;
    }
    struct rect body = {r.x + 1, r.y, room, 1};
    int used = f->status->n_row ? put_status(g, body, &f->status->row[0]) : 0;
    int k = (int)sizeof help - 1;
    if (used + 2 + k <= room)
        put_text(g, r.x + r.w - k, r.y, k, ST_DIM, help);
}

/* ---- the whole screen ---- */

static void draw_too_small(struct grid *g)
{
    char text[64];
    put_text(g, 0, 0, g->w, ST_TEXT, "terminal too small");
    snprintf(text, sizeof text, "needs %dx%d", MIN_WIDTH, MIN_HEIGHT);
    put_text(g, 0, 1, g->w, ST_DIM, text);
}

static void draw_overlay(const struct frame *f, struct grid *g)
{
    struct rect r = {1, 0, g->w - 2, g->h - 1};
    draw_pane(f, g, r, f->overlay, false);
    const char *said = f->find_line ? f->find_line : f->footer ? f->footer : "";
    put_message(g, (struct rect){0, g->h - 1, g->w, 1}, g->w, f->find_line ? ST_KEY : ST_DIM, said);
}

/* The first pane drawn: if not all fit, the panes up to the one with the focus are drawn, else the
 * newest ones. */
static int first_pane(const struct frame *f, const struct layout *l)
{
    int last = f->focus >= 0 ? max_int(f->focus, l->n_pane - 1) : f->n_pane - 1;
    return max_int(min_int(last, f->n_pane - 1) - l->n_pane + 1, 0);
}

static bool inside(struct rect r, int x, int y)
{
    return x >= r.x && x < r.x + r.w && y >= r.y && y < r.y + r.h;
}

/* The row of a pane's sheet that is drawn at row y of the pane. */
static int pane_row(const struct pane *p, int y)
{
    return y < p->still ? y : y + p->top;
}

struct hit frame_hit(struct frame *f, int w, int h, int x, int y)
{
    struct layout l;
    struct hit hit = {.entry = -1, .row = -1, .x = x};
    layout_of(f, w, h, &l);
    if (l.too_small || x < 0 || y < 0 || x >= w || y >= h)
        return hit;
    if (f->overlay) {
        hit.place = PLACE_OVERLAY;
        hit.row = pane_row(f->overlay, y);
        return hit;
    }
    for (int i = 0; i < l.n_pane; i++)
        if (inside(l.pane[i], x, y)) {
            hit = (struct hit){PLACE_PANE, first_pane(f, &l) + i, -1, 0, x - l.pane[i].x};
            hit.row = pane_row(f->pane[hit.pane], y - l.pane[i].y);
            return hit;
        }
    if (inside(l.talk, x, y)) {
        FREED(free_at) struct transcript_line *line = xcalloc((size_t)l.talk.h, sizeof *line);
        transcript_view(f->talk, max_int(l.talk.w - GUTTER - 1, 1), l.talk.h, line);
        hit.place = PLACE_TALK;
        if (line[y].row) {
            hit.entry = line[y].entry;
            hit.row = line[y].n;
        }
        hit.x = x - GUTTER;
    } else if (inside(l.time, x, y)) {
        hit.place = PLACE_TIME;
        hit.x = x - time_cells(l.time).x;
    } else if (inside(l.input, x, y)) {
        hit.place = PLACE_INPUT;
    }
    return hit;
}

int frame_time_cells(int w)
{
    return time_cells((struct rect){0, 0, w, 1}).w;
}

void frame_sheet(const struct sheet *s, bool ascii, struct grid *g)
{
    int w = max_int(1, sheet_width(s));
    grid_resize(g, w, max_int(s->n_row, 1));
    g->ascii = ascii;
    for (int i = 0; i < s->n_row; i++)
        put_row(g, 0, i, w, &s->row[i], (struct found){0});
}

void frame_draw(struct frame *f, struct grid *g)
{
    struct layout l;
    f->typed = (struct rect){0};
    g->ascii = f->ascii;
    layout_of(f, g->w, g->h, &l);
    if (l.too_small) {
        draw_too_small(g);
        return;
    }
    if (f->overlay) {
        draw_overlay(f, g);
        return;
    }
    int below = l.pane_only ? 0 : draw_talk(f, g, l.talk);
    int first = first_pane(f, &l);
    for (int i = 0; i < l.n_pane; i++)
        draw_pane(f, g, l.pane[i], f->pane[first + i], f->focus == first + i);
    if (l.pane_only && f->focus != first)
        draw_way_back(g, l.pane[0], f->pane[first]);
    struct rect rule = l.rule;
    fill(g, rule, ST_DIM, f->ascii ? "-" : "─");
    bool beside = l.n_pane > 0 && !l.pane_only && !l.below;
    rule.w = beside ? l.talk.w : rule.w;
    if (beside)
        draw_divider(f, g, &l);
    draw_rule(f, g, rule, below);
    if (l.time.h > 0)
        draw_time(f, g, l.time);
    draw_input(f, g, l.input);
    if (f->input->searching)
        draw_search(f, g, l.rule);
    draw_status(f, g, l.status);
    if (f->n_choice > 0)
        frame_choices(f, g, l.rule);
}
