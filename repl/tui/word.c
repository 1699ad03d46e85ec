/* word.c - the cursor on the words of replies, and the Word pane, which shows the facts of the
 * tokens of the word under the cursor. See tui.h. */
#include "repl/cmd/views.h"
#include "repl/tui/tui.h"

#include <math.h>

/* ---- the cursor ---- */

/* The first token of the word under the cursor; NULL: no word, or no token is known. */
static const struct token_mark *token_here(const struct tui *t)
{
    int first;
    if (!t->word.w || t->word.entry >= t->talk.n)
        return NULL;
    const struct entry *e = &t->talk.entry[t->word.entry];
    return words_tokens(e, t->word, &first) ? &e->mark[first] : NULL;
}

void word_ids(const struct tui *t, struct buf *out)
{
    int first, n = 0;
    const struct entry *e = token_here(t) ? &t->talk.entry[t->word.entry] : NULL;
    if (e)
        n = words_tokens(e, t->word, &first);
    for (int i = 0; i < n; i++)
        buf_printf(out, "%s%d", i ? " " : "", e->mark[first + i].id);
}

static void show_cursor(struct tui *t)
{
    t->talk.cursor = t->word.w ? t->word.entry : -1;
    t->talk.cursor_from = t->word.from;
    t->talk.cursor_to = t->word.to;
    t->dirty = true;
}

void word_forget(struct tui *t)
{
    t->word = (struct word){0};
    if (t->focus == FOCUS_WORDS)
        t->focus = FOCUS_INPUT;
    show_cursor(t);
}

/* Moves the cursor to a word, and the address to the step of its first token. */
static void go_to_word(struct tui *t, struct word w)
{
    t->word = w;
    show_cursor(t);
    const struct token_mark *m = token_here(t);
    if (m) {
        t->page_at = m->position;
        t->app->at = (struct address){t->talk.entry[w.entry].turn, m->step};
        time_changed(t);
    }
    transcript_show(&t->talk, w.entry, w.row, false,
                    max_int(frame_talk_height(&t->frame, t->w, t->h), 2));
}

bool word_begin(struct tui *t)
{
    struct word w;
    bool was = t->word.w > 0 && t->word.entry < t->talk.n &&
               words_of_byte(&t->talk, t->word.entry, t->word.from, &w);
    if (!was && t->app->at.turn)
        was = words_of_step(&t->talk, t->app->at.turn, t->app->at.step, &w);
    if (!was && !words_end(&t->talk, true, &w)) {
        tui_hint(t, "there is no reply yet whose words the cursor could stand on");
        return false;
    }
    t->focus = FOCUS_WORDS;
    t->frame.focus = FOCUS_WORDS; /* set now: go_to_word() needs the layout that depends on it */
    go_to_word(t, w);
    return true;
}

void word_click(struct tui *t, int entry, int row, int x)
{
    struct word w;
    if (!words_at(&t->talk, entry, row, x, &w))
        return;
    t->focus = FOCUS_WORDS;
    go_to_word(t, w);
}

bool word_key(struct tui *t, const struct key *k)
{
    struct word w = t->word;
    bool moved = false;
    if (k->code == K_LEFT || k->code == K_RIGHT)
        moved = words_next(&t->talk, k->code == K_LEFT ? -1 : 1, &w);
    else if (k->code == K_UP || k->code == K_DOWN)
        moved = words_below(&t->talk, k->code == K_UP ? -1 : 1, &w);
    else if (k->code == K_HOME || k->code == K_END)
        moved = words_end(&t->talk, k->code == K_END, &w);
    else if (k->code == K_ENTER)
        tui_pane_open_key(t, K_F6);
    else if (!time_key(t, k))
        return false;
    else if (t->app->at.turn && words_of_step(&t->talk, t->app->at.turn, t->app->at.step, &w)) {
        t->word = w;
        show_cursor(t);
    }
    if (moved)
        go_to_word(t, w);
    return true;
}

/* ---- the Word pane ---- */

static void add_token(struct tui *t, struct sheet *s, enum style st, int32_t id, int cells)
{
    size_t n;
    const char *p = backend_token(t->app->backend, id, &n);
    if (n == 0)
        sheet_printf(s, st, "#%d", (int)id);
    else
        sheet_quote(s, st, p, n, cells);
}

/* "p 0.83", from a log probability. */
static void add_p(struct sheet *s, float logp)
{
    if (isnan(logp))
        sheet_add(s, ST_DIM, "p -");
    else
        sheet_printf(s, ST_TEXT, logp > -6.9f ? "p %.3f" : "p %.1e", exp((double)logp));
}

/* The node of the tree that is the step's nth accepted token; -1: none. */
static int accepted_node(const struct tree *r, int nth)
{
    int node = 0;
    for (int d = 0; d <= nth; d++) {
        int child = -1;
        for (int i = node + 1; i < r->n; i++)
            if (r->parent[i] == node && r->fate[i] == FATE_ACCEPTED)
                child = i;
        if (child < 0)
            return -1;
        node = child;
    }
    return node;
}

/* How the token came about: one row. */
static void add_origin(const struct step_view *v, int nth, struct sheet *s)
{
    const struct step_rec *r = &v->rec;
    sheet_add(s, ST_LABEL, "  from   ");
    if (nth < r->forced) {
        sheet_add(s, ST_WARN, "given by hand");
    } else if (r->source == STEP_PIECE) {
        sheet_add(s, ST_DIM, "a piece of the server's stream; whether a draft held it is not "
                             "reported");
    } else if (r->kind == STEP_PREFILL) {
        sheet_add(s, ST_TEXT, "the prompt's pass: the target's own choice");
    } else if (r->kind == STEP_DECODE || r->drafted == 0) {
        sheet_add(s, ST_TEXT, "the target's own choice, nothing was drafted");
    } else if (nth >= r->accepted) {
        sheet_printf(s, ST_BONUS, "bonus: the target's own, after %d accepted of %d drafted",
                     r->accepted, r->drafted);
    } else {
        int of = 0, node = accepted_node(&v->tree, nth);
        sheet_printf(s, ST_GOOD, "accepted at depth %d", nth + 1);
        if (node > 0) {
            sheet_printf(s, ST_TEXT, ", rank %d", tree_rank(&v->tree, node, &of));
            sheet_printf(s, ST_DIM, " of %d", of);
            sheet_printf(s, ST_TEXT, ", q %.3f", (double)v->tree.q[node]);
            if (!isnan(v->tree.u[node]))
                sheet_printf(s, ST_TEXT, ", u %.3f", (double)v->tree.u[node]);
        }
    }
    sheet_line(s);
}

/* The best other token, if the server sent only its text. */
static void add_named_rival(struct tui *t, const struct step_view *v, int nth, int cells,
                            struct sheet *s)
{
    struct tops *tops = app_tops(t->app, v->turn, v->step);
    const struct token_fact *f = &v->fact[nth];
    for (int i = 1; tops && i < tops->n; i++) {
        const struct top *x = &tops->at[i];
        if (x->k != nth || tops->at[i - 1].k != nth)
            continue;
        sheet_add(s, ST_DIM, f->logp >= x->logp ? ", beat " : ", over the likelier ");
        sheet_quote(s, ST_TEXT, x->text ? x->text : "?", x->text ? (size_t)x->n : 1, cells);
        sheet_add(s, ST_TEXT, " ");
        add_p(s, x->logp);
        sheet_printf(s, ST_DIM, ", margin %.2f", (double)(f->logp - x->logp));
        break;
    }
    tops_free(tops);
}

static void add_choice(struct tui *t, const struct step_view *v, int nth, int width,
                       struct sheet *s)
{
    const struct token_fact *f = &v->fact[nth];
    sheet_add(s, ST_LABEL, "  target ");
    add_p(s, f->logp);
    if (f->rival >= 0 && !isnan(f->rival_logp)) {
        sheet_add(s, ST_DIM, f->logp >= f->rival_logp ? ", beat " : ", over the likelier ");
        add_token(t, s, ST_TEXT, f->rival, max_int(min_int(20, width - 48), 6));
        sheet_add(s, ST_TEXT, " ");
        add_p(s, f->rival_logp);
        sheet_printf(s, ST_DIM, ", margin %.2f", (double)(f->logp - f->rival_logp));
    } else if (!isnan(f->rival_logp)) {
        add_named_rival(t, v, nth, max_int(min_int(20, width - 48), 6), s);
    }
    sheet_line(s);
}

static void add_place(const struct page_table *p, int pos, struct sheet *s)
{
    FREED(sheet_free) struct sheet lines = {.ascii = s->ascii};
    map_translation(p, pos, &lines);
    for (int i = 0; i < lines.n_row; i++) {
        sheet_add(s, ST_LABEL, i ? "         " : "  pages  ");
        sheet_add_row(s, &lines.row[i], 0, (int)lines.row[i].text.n);
        sheet_line(s);
    }
    int c = pos / map_page_size(p);
    if (c < p->n_page && p->page[c].draft)
        say_line(s, ST_DIM, "         draft page %d", (int)p->page[c].draft);
}

static void add_facts(struct tui *t, const struct step_view *v, const struct page_table *pages,
                      int nth, int width, struct sheet *s)
{
    int pos = v->rec.pos0 + (v->rec.kind == STEP_PREFILL ? v->rec.rows : 1) + nth;
    sheet_line(s);
    add_token(t, s, ST_BOLD, v->token[nth], max_int(width - 34, 8));
    say_line(s, ST_DIM, "   id %d   position %d   step %d.%d", (int)v->token[nth], pos, v->turn,
             v->step);
    add_origin(v, nth, s);
    add_choice(t, v, nth, width, s);
    if (pages)
        add_place(pages, pos, s);
}

/* The tokens from the nth on, n of them, of one step. */
static void add_step(struct tui *t, int turn, int step, int nth, int n, int width, struct sheet *s)
{
    struct backend *b = t->app->backend;
    struct step_view v;
    FREED(page_table_free) struct page_table p = {0};
    struct err e = {0};
    if (!app_find_step(t->app, turn, step, &v, &e)) {
        say_line(s, ST_DIM, "%s", e.msg);
        return;
    }
    if (v.n_token == 0 && backend_has(b, VIEW_SERVED))
        say_line(s, ST_DIM, "the server sent no ids of these tokens; F7 shows what it sent");
    bool pages = backend_has(b, VIEW_PAGES) && app_table_at(t->app, turn, step, &p, &e);
    for (int i = nth; i < nth + n && i < v.n_token; i++)
        add_facts(t, &v, pages ? &p : NULL, i, width, s);
}

void tui_word_write(struct tui *t, struct pane *p, int width)
{
    FREED(sheet_free) struct sheet text = {.ascii = t->app->ascii};
    struct sheet *s = &text;
    int first = 0, n = 0, at = time_index(t);
    const struct entry *e = t->word.w && t->word.entry < t->talk.n ? &t->talk.entry[t->word.entry]
                            : NULL;
    sheet_add(s, ST_HEAD, "WORD");
    if (e) {
        sheet_add(s, ST_DIM, "   ");
        sheet_quote(s, ST_BOLD, e->text.p + t->word.from, (size_t)(t->word.to - t->word.from),
                    max_int(width - 24, 8));
        n = words_tokens(e, t->word, &first);
        sheet_printf(s, ST_DIM, "  %d token%s", n, n == 1 ? "" : "s");
    } else if (at >= 0) {
        sheet_printf(s, ST_DIM, "   the tokens of step %d.%d", t->time.line.at[at].turn,
                     t->time.line.at[at].step);
    }
    sheet_line(s);
    for (int i = first; e && i < first + n;) { /* the word's tokens, step by step */
        int k = i;
        while (k < first + n && e->mark[k].step == e->mark[i].step)
            k++;
        add_step(t, e->turn, e->mark[i].step, e->mark[i].nth, k - i, width, s);
        i = k;
    }
    if (e && n == 0)
        sheet_add(s, ST_DIM, "no step of this process produced this word"), sheet_line(s);
    else if (!e && at < 0)
        sheet_add(s, ST_DIM, "no step yet; Ctrl-X t puts a cursor on the words of the reply"),
        sheet_line(s);
    else if (!e)
        add_step(t, t->time.line.at[at].turn, t->time.line.at[at].step, 0, TREE_MAX, width, s);
    sheet_append_wrapped(&p->rows, s, width);
}
