/* finder.c - Ctrl-F: finds a text in the transcript, or in the pane that has the keys. While it is
 * typed the view goes to the nearest match; Enter ends the typing, n and N then go to the next
 * match and to the one before, Esc ends the search. Any other key ends it too, and does what it
 * does. See tui.h. */
#include "repl/tui/tui.h"

static int talk_height(const struct tui *t)
{
    return max_int(frame_talk_height(&t->frame, t->w, t->h), 1);
}

/* The pane that is searched: the one that has the keys, or that covers the transcript. NULL: the
 * transcript. */
static struct pane *searched_pane(struct tui *t)
{
    struct layout l;
    if (t->over_on)
        return &t->over.pane;
    tui_layout(t, t->n_open, &l);
    if (t->focus >= 0)
        return &t->pane[t->open[t->focus]];
    return l.pane_only ? &t->pane[t->open[t->n_open - 1]] : NULL;
}

void finder_end(struct tui *t)
{
    if (!t->find.on)
        return;
    t->find.on = false;
    find_free(&t->find.text);
    t->dirty = true;
}

void finder_begin(struct tui *t)
{
    struct finder *f = &t->find;
    struct transcript_line *line = NULL;
    int h = talk_height(t);
    finder_end(t);
    buf_free(&f->line);
    *f = (struct finder){.on = true, .typing = true, .pane = searched_pane(t), .text = {.at = -1}};
    tui_hint_end(t);
    if (f->pane) {
        f->top = f->from = f->pane->top;
        f->from += f->pane->still;
        return;
    }
    f->tail = t->talk.tail;
    f->top = t->talk.top;
    f->top_row = t->talk.top_row;
    line = xcalloc((size_t)h, sizeof *line);
    transcript_view(&t->talk, t->talk.width, h, line);
    for (int y = 0; y < h; y++) /* the lowest row that is shown */
        if (line[y].row) {
            f->entry = line[y].entry;
            f->from = line[y].n;
        }
    free(line);
}

/* Back to where the view was when the search began. */
static void restore(struct tui *t)
{
    struct finder *f = &t->find;
    if (f->pane) {
        f->pane->top = f->top;
        f->pane->scroll_to = -1;
        return;
    }
    t->talk.tail = f->tail;
    t->talk.top = f->top;
    t->talk.top_row = f->top_row;
}

/* Reads the rows again: the transcript grows, panes are written anew. */
static void read_rows(struct tui *t)
{
    struct finder *f = &t->find;
    find_clear(&f->text);
    if (f->pane)
        find_rows(&f->text, 0, f->pane->rows.row, max_int(f->pane->head, 1), f->pane->rows.n_row);
    for (int i = 0; !f->pane && i < t->talk.n; i++) {
        transcript_lay(&t->talk, i);
        find_rows(&f->text, i, t->talk.entry[i].rows.row, 0, t->talk.entry[i].rows.n_row);
    }
    f->text.at = min_int(f->text.at, f->text.n - 1);
}

static void show(struct tui *t)
{
    struct finder *f = &t->find;
    const struct find_piece *p = f->text.at >= 0 ? find_match(&f->text, f->text.at) : NULL;
    if (!p)
        restore(t);
    else if (f->pane)
        f->pane->scroll_to = p->row;
    else
        transcript_show(&t->talk, p->entry, p->row, false, talk_height(t));
}

/* The match nearest to where the search began: in the transcript, whose end is read, one that is
 * shown or was said before; in a pane one that is shown or comes later. */
static void nearest(struct tui *t)
{
    struct finder *f = &t->find;
    read_rows(t);
    f->text.at = f->pane ? find_after(&f->text, 0, f->from)
                         : find_before(&f->text, f->entry, f->from);
    if (f->text.at < 0 && f->text.n > 0)
        f->text.at = f->pane ? f->text.n - 1 : 0;
    show(t);
}

static void go_by(struct tui *t, int by)
{
    struct find *f = &t->find.text;
    if (f->n > 0)
        f->at = (f->at + by + f->n) % f->n;
    show(t);
}

void finder_update(struct tui *t)
{
    struct finder *f = &t->find;
    bool open = f->pane == NULL || (t->over_on && f->pane == &t->over.pane);
    if (!f->on)
        return;
    for (int i = 0; i < t->n_open; i++)
        open |= f->pane == &t->pane[t->open[i]];
    if (!open) {
        finder_end(t);
        return;
    }
    read_rows(t);
    struct find *x = &f->text;
    const char *text = buf_text(&x->pattern);
    buf_clear(&f->line);
    buf_printf(&f->line, "find: %s%s", text, f->typing ? t->app->ascii ? "_" : "▏" : "");
    if (x->pattern.n && !x->n)
        buf_str(&f->line, "  not there");
    else if (x->n)
        buf_printf(&f->line, "  %d of %d%s", x->at + 1, x->n, x->n == FIND_MOST ? "+" : "");
    buf_str(&f->line, f->typing ? "  (Enter, then n N; Esc: back)" : "  (n next, N before, / anew, "
                                  "Esc ends)");
}

/* Handles a key while the text is typed. False: another key. */
static bool typing_key(struct tui *t, const struct key *k)
{
    struct finder *f = &t->find;
    if (k->code == K_ENTER && f->text.n > 0) {
        f->typing = false;
    } else if (k->code == K_ENTER && f->text.pattern.n == 0) {
        finder_end(t);
    } else if (k->code == K_ESC || key_is_ctrl(k, 'g') || key_is_ctrl(k, 'c')) {
        restore(t);
        finder_end(t);
    } else if (list_type(&f->text.pattern, k)) {
        nearest(t);
    } else {
        return k->code == K_ENTER;
    }
    return true;
}

bool finder_key(struct tui *t, const struct key *k)
{
    struct finder *f = &t->find;
    if (!f->on)
        return false;
    if (k->code == K_DOWN || key_is_ctrl(k, 'f') || key_is_ctrl(k, 'n'))
        go_by(t, 1);
    else if (k->code == K_UP || key_is_ctrl(k, 'p'))
        go_by(t, -1);
    else if (f->typing && typing_key(t, k))
        ;
    else if (!f->typing && (key_is_letter(k, 'n') || k->code == K_ENTER))
        go_by(t, 1);
    else if (!f->typing && key_is_letter(k, 'N'))
        go_by(t, -1);
    else if (!f->typing && key_is_letter(k, '/'))
        f->typing = true;
    else if (k->code == K_ESC || key_is_ctrl(k, 'c'))
        finder_end(t);
    else if (k->code == K_PGUP || k->code == K_PGDN || key_is_ctrl(k, 'l'))
        return false; /* the search goes on */
    else {
        finder_end(t);
        return false;
    }
    return true;
}
