/* words.c - see words.h. */
#include "repl/text/words.h"

enum { MAX_WORDS = 512 }; /* of one row */

/* ---- marks ---- */

void words_mark(struct transcript *t, int turn, enum entry_kind kind, struct token_mark m)
{
    struct entry *e = NULL;
    for (int i = t->n - 1; i >= 0 && !e; i--)
        if (t->entry[i].turn == turn && t->entry[i].kind == kind)
            e = &t->entry[i];
    if (!e || m.from >= m.to)
        return;
    struct token_mark *last = e->n_mark ? &e->mark[e->n_mark - 1] : NULL;
    /* the rest of a token whose last character was incomplete */
    if (last && last->step == m.step && last->nth == m.nth) {
        last->to = m.to;
        return;
    }
    *APPEND(e->mark, e->n_mark) = m;
}

/* The index of the first mark that ends after `at`; n_mark: none. */
static int mark_from(const struct entry *e, int at)
{
    return FIRST_NOT(i, e->n_mark, e->mark[i].to <= at);
}

const struct token_mark *words_token(const struct entry *e, int at)
{
    int i = mark_from(e, at);
    return i < e->n_mark && e->mark[i].from <= at ? &e->mark[i] : NULL;
}

int words_tokens(const struct entry *e, struct word w, int *first)
{
    int n = 0;
    *first = mark_from(e, w.from);
    while (*first + n < e->n_mark && e->mark[*first + n].from < w.to)
        n++;
    return n;
}

/* ---- the words of a row ---- */

static bool has_words(const struct transcript *t, int i)
{
    const struct entry *e = &t->entry[i];
    return e->turn > 0 && (e->kind == ENTRY_REPLY || (e->kind == ENTRY_THINK && t->think));
}

/* Text in wide characters has no blanks: there, words end where tokens end. */
static bool divides(const struct entry *e, int src)
{
    const struct token_mark *m = words_token(e, src);
    return m && m->from == src;
}

static int words_of_row(struct transcript *t, int entry, int row, struct word out[MAX_WORDS])
{
    const struct entry *e = &t->entry[entry];
    const struct sheet_row *r = &e->rows.row[row];
    struct glyph g;
    int n = 0, x = 0, wide = 0;
    bool open = false;
    for (size_t at = 0, k; at < r->text.n && n < MAX_WORDS; at += k, x += g.width) {
        int len, src = sheet_source_of(r, (int)at, &len), last;
        k = text_next(r->text.p + at, r->text.n - at, &g);
        if (src < 0 || r->text.p[at] == ' ') {
            open = false;
            continue;
        }
        if (open && wide == 2 && g.width == 2 && divides(e, src))
            open = false;
        wide = g.width;
        if (!open)
            out[n++] = (struct word){.entry = entry, .row = row, .x = x, .from = src};
        open = true;
        int end = sheet_source_of(r, (int)(at + k) - 1, &last);
        out[n - 1].to = max_int(out[n - 1].to, end < 0 ? src + len : end + last);
        out[n - 1].w = x + g.width - out[n - 1].x;
    }
    return n;
}

/* ---- finding words ---- */

/* The words of the first row that has any, from (entry, row) on in the direction `by`. Returns how
 * many. */
static int search(struct transcript *t, int entry, int row, int by, struct word out[MAX_WORDS])
{
    int n = 0;
    while (entry >= 0 && entry < t->n) {
        if (has_words(t, entry))
            transcript_lay(t, entry);
        int rows = has_words(t, entry) ? t->entry[entry].rows.n_row : 0;
        for (row = by < 0 ? min_int(row, rows - 1) : row; row >= 0 && row < rows; row += by)
            if ((n = words_of_row(t, entry, row, out)) > 0)
                return n;
        entry += by;
        row = by < 0 ? INT32_MAX : 0;
    }
    return 0;
}

bool words_end(struct transcript *t, bool last, struct word *w)
{
    struct word out[MAX_WORDS];
    int n = last ? search(t, t->n - 1, INT32_MAX, -1, out) : search(t, 0, 0, 1, out);
    if (n > 0)
        *w = out[last ? n - 1 : 0];
    return n > 0;
}

bool words_next(struct transcript *t, int by, struct word *w)
{
    struct word out[MAX_WORDS];
    int n = 0, i = 0;
    if (w->entry < 0 || w->entry >= t->n)
        return words_end(t, by > 0, w);
    transcript_lay(t, w->entry);
    if (w->row < t->entry[w->entry].rows.n_row)
        n = words_of_row(t, w->entry, w->row, out);
    while (i < n && out[i].x < w->x)
        i++;
    i += by > 0 ? i < n && out[i].x == w->x : -1;
    if (i < 0 || i >= n) {
        n = search(t, w->entry, w->row + by, by, out);
        i = by > 0 ? 0 : n - 1;
    }
    if (n == 0)
        return false;
    *w = out[i];
    return true;
}

bool words_below(struct transcript *t, int by, struct word *w)
{
    struct word out[MAX_WORDS];
    int n = search(t, w->entry, w->row + by, by, out), middle = w->x + w->w / 2, best = 0;
    for (int i = 1; i < n; i++)
        if (out[i].x <= middle)
            best = i;
    if (n > 0)
        *w = out[best];
    return n > 0;
}

bool words_at(struct transcript *t, int entry, int row, int x, struct word *w)
{
    struct word out[MAX_WORDS];
    if (entry < 0 || entry >= t->n || !has_words(t, entry) || row < 0 ||
        row >= t->entry[entry].rows.n_row)
        return false;
    int n = words_of_row(t, entry, row, out);
    for (int i = 0; i < n; i++)
        if (x >= out[i].x && x < out[i].x + out[i].w) {
            *w = out[i];
            return true;
        }
    return false;
}

/* The largest source offset that a row shows, plus one; 0: it shows none. */
static int row_end(const struct sheet_row *r)
{
    int end = 0;
    for (int i = 0; i < r->n_span; i++)
        if (r->span[i].src >= 0)
            end = max_int(end, r->span[i].src + r->span[i].src_n);
    return end;
}

bool words_of_byte(struct transcript *t, int entry, int at, struct word *w)
{
    struct word out[MAX_WORDS], next = {0};
    if (entry < 0 || entry >= t->n || !has_words(t, entry))
        return false;
    transcript_lay(t, entry);
    const struct entry *e = &t->entry[entry];
    for (int row = 0; row < e->rows.n_row; row++) { /* the cells of a table are not in order */
        int n = row_end(&e->rows.row[row]) > at ? words_of_row(t, entry, row, out) : 0;
        for (int i = 0; i < n; i++) {
            if (out[i].from <= at && out[i].to > at) {
                *w = out[i];
                return true;
            }
            if (out[i].from > at && (next.w == 0 || out[i].from < next.from))
                next = out[i];
        }
    }
    if (next.w > 0)
        *w = next;
    return next.w > 0;
}

bool words_of_step(struct transcript *t, int turn, int step, struct word *w)
{
    for (int i = 0; i < t->n; i++) {
        const struct entry *e = &t->entry[i];
        if (e->turn != turn || e->n_mark == 0 || !has_words(t, i))
            continue;
        int lo = FIRST_NOT(k, e->n_mark, e->mark[k].step < step);
        if (lo < e->n_mark && e->mark[lo].step == step && words_of_byte(t, i, e->mark[lo].from, w))
            return true;
    }
    return false;
}
