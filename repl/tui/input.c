/* input.c - see input.h. */
#include "repl/tui/input.h"
#include "repl/text/sheet.h"

void input_init(struct input *in, struct recall *recall)
{
    *in = (struct input){.recall = recall, .width = 80, .goal = -1, .match = -1};
    in->at = recall ? recall->n : 0;
    buf_add(&in->text, "", 0);
    buf_add(&in->draft, "", 0);
    buf_add(&in->kill, "", 0);
    buf_add(&in->pattern, "", 0);
    buf_add(&in->before, "", 0);
}

void input_free(struct input *in)
{
    buf_free(&in->text);
    buf_free(&in->draft);
    buf_free(&in->kill);
    buf_free(&in->pattern);
    buf_free(&in->before);
    free(in->row);
    *in = (struct input){0};
}

/* ---- clusters and words ---- */

size_t input_cluster(const char *s, size_t n, int *width)
{
    if (*s == '\t' || *s == '\n') {
        *width = *s == '\t' ? TAB_CELLS : 0;
        return 1;
    }
    if (*s >= 0x20 && *s < 0x7F && (n == 1 || (unsigned char)s[1] < 0x80)) {
        *width = 1;
        return 1;
    }
    struct glyph g;
    size_t k = text_next(s, n, &g);
    *width = g.width;
    return k;
}

static size_t next_cluster(const struct input *in, size_t at)
{
    int w;
    return at < in->text.n ? at + input_cluster(in->text.p + at, in->text.n - at, &w) : at;
}

/* The beginning of the cluster before `at`. Clusters can only be found forwards, so the search
 * starts at a place that is certainly between two: behind two ASCII bytes, or far enough back. */
static size_t prev_cluster(const struct input *in, size_t at)
{
    const char *p = in->text.p;
    size_t from = at, last;
    if (at == 0)
        return 0;
    while (from > 0 && at - from < 256) {
        from--;
        if ((unsigned char)p[from] < 0x80 && (from == 0 || (unsigned char)p[from - 1] < 0x80))
            break;
    }
    while (from > 0 && ((unsigned char)p[from] & 0xC0) == 0x80)
        from--;
    do {
        last = from;
        from = next_cluster(in, from);
    } while (from < at);
    return last;
}

static bool is_word(const char *p)
{
    unsigned char c = (unsigned char)*p;
    return c >= 0x80 || c == '_' || (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') ||
           (c >= 'a' && c <= 'z');
}

static size_t word_right(const struct input *in, size_t at)
{
    while (at < in->text.n && !is_word(in->text.p + at))
        at = next_cluster(in, at);
    while (at < in->text.n && is_word(in->text.p + at))
        at = next_cluster(in, at);
    return at;
}

static size_t word_left(const struct input *in, size_t at)
{
    size_t p;
    while (at > 0 && (p = prev_cluster(in, at), !is_word(in->text.p + p)))
        at = p;
    while (at > 0 && (p = prev_cluster(in, at), is_word(in->text.p + p)))
        at = p;
    return at;
}

/* Ctrl-W: the beginning of the run of non-spaces before `at`, as in a shell. */
static size_t blank_left(const struct input *in, size_t at)
{
    while (at > 0 && strchr(" \t\n", in->text.p[at - 1]))
        at--;
    while (at > 0 && !strchr(" \t\n", in->text.p[at - 1]))
        at--;
    return at;
}

static size_t line_start(const struct input *in, size_t at)
{
    while (at > 0 && in->text.p[at - 1] != '\n')
        at--;
    return at;
}

static size_t line_end(const struct input *in, size_t at)
{
    const char *nl = memchr(in->text.p + at, '\n', in->text.n - at);
    return nl ? (size_t)(nl - in->text.p) : in->text.n;
}

/* ---- changing the text ---- */

static void changed(struct input *in)
{
    in->laid = false;
    int lines = 1;
    for (size_t i = 0; in->pasted_lines > 0 && i < in->text.n; i++)
        lines += in->text.p[i] == '\n';
    if (in->text.n == 0 || lines < in->pasted_lines) /* the pasted text is no longer in the input */
        in->pasted_lines = 0;
}

bool input_insert(struct input *in, const char *text, size_t n)
{
    size_t room = INPUT_MAX - in->text.n;
    bool fits = n <= room;
    if (!fits)
        for (n = room; n > 0 && ((unsigned char)text[n] & 0xC0) == 0x80;)
            n--;
    size_t tail = in->text.n - in->cursor;
    buf_add(&in->text, text, n); /* grows the buffer; memmove() moves the bytes */
    memmove(in->text.p + in->cursor + n, in->text.p + in->cursor, tail);
    memcpy(in->text.p + in->cursor, text, n);
    in->cursor += n;
    changed(in);
    return fits;
}

static void erase(struct input *in, size_t from, size_t to)
{
    memmove(in->text.p + from, in->text.p + to, in->text.n - to);
    in->text.n -= to - from;
    in->text.p[in->text.n] = '\0';
    in->cursor = from;
    changed(in);
}

/* Erases a range and keeps it for Ctrl-Y; successive kills are joined. */
static void kill_range(struct input *in, size_t from, size_t to, bool joined)
{
    struct buf b = {0};
    bool backward = from < in->cursor;
    if (joined && !backward)
        buf_add(&b, in->kill.p, in->kill.n);
    buf_add(&b, in->text.p + from, to - from);
    if (joined && backward)
        buf_add(&b, in->kill.p, in->kill.n);
    buf_free(&in->kill);
    in->kill = b;
    erase(in, from, to);
    in->killing = true;
}

void input_set(struct input *in, const char *text, size_t n)
{
    buf_clear(&in->text);
    in->cursor = 0;
    in->pasted_lines = 0;
    input_insert(in, text, n);
}

void input_replace(struct input *in, size_t from, const char *text)
{
    erase(in, from, in->cursor);
    input_insert(in, text, strlen(text));
}

char *input_take(struct input *in, bool remember)
{
    if (remember && in->recall)
        recall_add(in->recall, in->text.p, in->text.n);
    char *text = in->text.p;
    in->text = (struct buf){0};
    buf_add(&in->text, "", 0);
    in->cursor = 0;
    in->at = in->recall ? in->recall->n : 0;
    in->goal = -1;
    buf_clear(&in->draft);
    changed(in);
    return text;
}

void input_remember(struct input *in, const char *text, size_t n)
{
    if (!in->recall)
        return;
    recall_add(in->recall, text, n); /* entries may have moved: the text is the user's own now */
    in->at = in->recall->n;
    buf_clear(&in->draft);
}

static void transpose(struct input *in)
{
    size_t at = in->cursor;
    if (at == in->text.n || in->text.p[at] == '\n')
        at = prev_cluster(in, at);
    size_t a = prev_cluster(in, at), b = next_cluster(in, at);
    if (a == at || b == at || in->text.p[a] == '\n' || in->text.p[at] == '\n')
        return;
    FREED(buf_free) struct buf left = {0};
    buf_add(&left, in->text.p + a, at - a);
    memmove(in->text.p + a, in->text.p + at, b - at);
    memcpy(in->text.p + a + (b - at), left.p, left.n);
    in->cursor = b;
    changed(in);
}

static enum input_act paste(struct input *in, const struct key *k)
{
    FREED(buf_free) struct buf b = {0};
    int lines = 0;
    for (size_t i = 0; i < k->n; i++) { /* terminals send line breaks as CR */
        bool cr = k->text[i] == '\r';
        if (cr && i + 1 < k->n && k->text[i + 1] == '\n')
            continue;
        buf_char(&b, cr ? '\n' : k->text[i]);
        lines += cr || k->text[i] == '\n';
    }
    lines += b.n > 0 && b.p[b.n - 1] != '\n';
    bool fits = input_insert(in, buf_text(&b), b.n) && !k->cut;
    in->pasted_lines = lines;
    return fits ? IN_NONE : IN_FULL;
}

/* ---- layout ---- */

static void add_row(struct input *in, size_t from, size_t to)
{
    RESERVE(in->row, in->n_row + 1, in->cap_row);
    in->row[in->n_row++] = (struct input_row){from, to};
}

void input_layout(struct input *in)
{
    if (in->laid && in->laid_width == in->width)
        return;
    size_t from = 0, at = 0;
    int used = 0;
    in->n_row = 0;
    while (at < in->text.n) {
        int w;
        size_t k = input_cluster(in->text.p + at, in->text.n - at, &w);
        if (in->text.p[at] == '\n') {
            add_row(in, from, at);
            from = at + 1;
            used = 0;
        } else if (used + w > in->width && at > from) {
            add_row(in, from, at);
            from = at;
            used = w;
        } else {
            used += w;
        }
        at += k;
    }
    add_row(in, from, in->text.n);
    if (used >= in->width && from < in->text.n) /* the cursor needs a cell after a full row */
        add_row(in, in->text.n, in->text.n);
    in->laid = true;
    in->laid_width = in->width;
}

static int cells(const struct input *in, size_t from, size_t to)
{
    int sum = 0, w;
    for (size_t i = from; i < to; sum += w)
        i += input_cluster(in->text.p + i, in->text.n - i, &w);
    return sum;
}

void input_cursor(struct input *in, int *row, int *column)
{
    input_layout(in);
    int lo = 0, hi = in->n_row - 1;
    while (lo < hi) { /* the last row that begins at or before the cursor */
        int mid = (lo + hi + 1) / 2;
        if (in->row[mid].from <= in->cursor)
            lo = mid;
        else
            hi = mid - 1;
    }
    *row = lo;
    *column = cells(in, in->row[lo].from, in->cursor);
}

/* ---- moving between rows and history entries ---- */

static void show_entry(struct input *in, int at)
{
    if (in->at == in->recall->n) {
        buf_clear(&in->draft);
        buf_add(&in->draft, in->text.p, in->text.n);
    }
    in->at = at;
    if (at == in->recall->n)
        input_set(in, in->draft.p, in->draft.n);
    else
        input_set(in, in->recall->line[at], strlen(in->recall->line[at]));
}

static enum input_act vertical(struct input *in, int by)
{
    int row, column;
    input_cursor(in, &row, &column);
    int goal = in->goal >= 0 ? in->goal : column, to = row + by;
    if (to < 0 || to >= in->n_row) {
        if (by < 0 && in->text.n == 0 && (!in->recall || in->at == in->recall->n) &&
            in->draft.n == 0) {
            return IN_RECALL_QUEUED;
        }
        if (in->recall && in->at + by >= 0 && in->at + by <= in->recall->n)
            show_entry(in, in->at + by);
        return IN_NONE;
    }
    size_t at = in->row[to].from;
    for (int used = 0, w; at < in->row[to].to; used += w) {
        size_t k = input_cluster(in->text.p + at, in->text.n - at, &w);
        if (used + w > goal)
            break;
        at += k;
    }
    /* the end of a full row is the beginning of the next */
    if (at == in->row[to].to && to + 1 < in->n_row && in->row[to + 1].from == at &&
        at > in->row[to].from)
        at = prev_cluster(in, at);
    in->cursor = at;
    in->goal = goal;
    return IN_NONE;
}

/* ---- incremental search ---- */

static void search_to(struct input *in, int before)
{
    int m = recall_search(in->recall, in->pattern.p, before);
    if (m < 0 && in->pattern.n > 0)
        return; /* no further match, which the prompt says; the last one stays on the screen */
    in->match = m;
    if (m >= 0) {
        const char *line = in->recall->line[m], *hit = strstr(line, in->pattern.p);
        input_set(in, line, strlen(line));
        in->cursor = hit ? (size_t)(hit - line) : 0;
    }
}

static void search_begin(struct input *in)
{
    if (!in->recall)
        return;
    in->searching = true;
    in->match = -1;
    buf_clear(&in->pattern);
    buf_clear(&in->before);
    buf_add(&in->before, in->text.p, in->text.n);
}

static void search_end(struct input *in, bool keep)
{
    in->searching = false;
    if (keep && in->match >= 0)
        in->at = in->match;
    else if (!keep)
        input_set(in, in->before.p, in->before.n);
}

static void search_pop(struct input *in)
{
    while (in->pattern.n > 0 && ((unsigned char)in->pattern.p[--in->pattern.n] & 0xC0) == 0x80)
        ;
    in->pattern.p[in->pattern.n] = '\0';
    search_to(in, in->recall->n);
}

/* Handles a key of the search. False: the key ended the search and is then handled as usual. */
static bool search_key(struct input *in, const struct key *k)
{
    if (k->code == K_CHAR && !k->ctrl && !k->alt) {
        buf_utf8(&in->pattern, k->cp);
        search_to(in, in->recall->n);
    } else if (k->code == K_BACKSPACE) {
        search_pop(in);
    } else if (key_is_ctrl(k, 'r')) {
        if (in->match >= 0)
            search_to(in, in->match);
    } else if (k->code == K_ESC || key_is_ctrl(k, 'g') || key_is_ctrl(k, 'c')) {
        search_end(in, k->code == K_ESC);
    } else {
        search_end(in, true);
        return false;
    }
    return true;
}

/* ---- keys ---- */

static enum input_act ctrl_key(struct input *in, uint32_t c, bool joined)
{
    size_t at = in->cursor;
    switch (c) {
    case 'a': in->cursor = line_start(in, at); break;
    case 'e': in->cursor = line_end(in, at); break;
    case 'b': in->cursor = prev_cluster(in, at); break;
    case 'n': return vertical(in, 1);
    case 'h':
        if (at > 0)
            erase(in, prev_cluster(in, at), at);
        break;
    case 'd':
        if (in->text.n == 0)
            return IN_EOF;
        erase(in, at, next_cluster(in, at));
        break;
    case 'k': {
        size_t end = line_end(in, at);
        kill_range(in, at, end == at && end < in->text.n ? end + 1 : end, joined);
        break;
    }
    case 'u': {
        size_t start = line_start(in, at);
        kill_range(in, start == at && at > 0 ? at - 1 : start, at, joined);
        break;
    }
    case 'w': kill_range(in, blank_left(in, at), at, joined); break;
    case 'y': return input_insert(in, in->kill.p, in->kill.n) ? IN_NONE : IN_FULL;
    case 't': return IN_OTHER; /* not the editor's: toggles thinking */
    case 'j': return input_insert(in, "\n", 1) ? IN_NONE : IN_FULL;
    case 'r': search_begin(in); break;
    case 'g': return IN_EDITOR;
    case 'c': return IN_STOP;
    case 'x': in->after_x = true; break;
    default: return IN_OTHER;
    }
    return IN_NONE;
}

/* Changes the word after the cursor to upper case, lower case, or one capital (ASCII letters). */
static void change_case(struct input *in, char how)
{
    size_t end = word_right(in, in->cursor);
    bool first = true;
    for (size_t i = in->cursor; i < end; i++) {
        char *c = &in->text.p[i];
        bool upper = how == 'u' || (how == 'c' && first);
        if (*c >= 'a' && *c <= 'z' && upper)
            *c = (char)(*c - 'a' + 'A');
        else if (*c >= 'A' && *c <= 'Z' && !upper)
            *c = (char)(*c - 'A' + 'a');
        first &= !is_word(c);
    }
    in->cursor = end;
    changed(in);
}

static enum input_act alt_key(struct input *in, const struct key *k, bool joined)
{
    size_t at = in->cursor;
    switch (k->cp) {
    case 'b': in->cursor = word_left(in, at); break;
    case 'f': in->cursor = word_right(in, at); break;
    case 'd': kill_range(in, at, word_right(in, at), joined); break;
    case 't': transpose(in); break;
    case 'u':
    case 'l':
    case 'c': change_case(in, (char)k->cp); break;
    case '<': in->cursor = 0; break;
    case '>': in->cursor = in->text.n; break;
    default: return IN_OTHER;
    }
    return IN_NONE;
}

static enum input_act plain_key(struct input *in, const struct key *k, bool joined)
{
    size_t at = in->cursor;
    bool word = k->ctrl || k->alt;
    FREED(buf_free) struct buf b = {0};
    switch (k->code) {
    case K_CHAR:
        buf_utf8(&b, k->cp);
        return input_insert(in, b.p, b.n) ? IN_NONE : IN_FULL;
    case K_PASTE: return paste(in, k);
    case K_ENTER:
        if (k->alt || k->shift || k->ctrl)
            return input_insert(in, "\n", 1) ? IN_NONE : IN_FULL;
        return in->text.n > 0 ? IN_SEND : IN_NONE;
    case K_TAB: return k->shift ? IN_OTHER : IN_COMPLETE;
    case K_BACKSPACE:
        if (k->alt)
            kill_range(in, word_left(in, at), at, joined);
        else if (at > 0)
            erase(in, prev_cluster(in, at), at);
        break;
    case K_DELETE: erase(in, at, word ? word_right(in, at) : next_cluster(in, at)); break;
    case K_LEFT: in->cursor = word ? word_left(in, at) : prev_cluster(in, at); break;
    case K_RIGHT: in->cursor = word ? word_right(in, at) : next_cluster(in, at); break;
    case K_HOME: in->cursor = k->ctrl ? 0 : line_start(in, at); break;
    case K_END: in->cursor = k->ctrl ? in->text.n : line_end(in, at); break;
    case K_UP: return vertical(in, -1);
    case K_DOWN: return vertical(in, 1);
    default: return IN_OTHER;
    }
    return IN_NONE;
}

enum input_act input_key(struct input *in, const struct key *k, struct key *x)
{
    bool joined = in->killing;
    *x = (struct key){0};
    if (in->after_x) {
        in->after_x = false;
        if (key_is_ctrl(k, 'e'))
            return IN_EDITOR;
        *x = *k;
        return IN_OTHER;
    }
    if (in->searching && search_key(in, k))
        return IN_NONE;
    bool moves = k->code == K_UP || k->code == K_DOWN || key_is_ctrl(k, 'n');
    if (!moves)
        in->goal = -1;
    in->killing = false;
    if (k->code == K_CHAR && k->ctrl)
        return ctrl_key(in, k->cp, joined);
    if (k->code == K_CHAR && k->alt)
        return alt_key(in, k, joined);
    return plain_key(in, k, joined);
}
