/* steps.c - the Steps pane: a row for each step around the one that is shown. See tui.h. */
#include "repl/cmd/views.h"
#include "repl/tui/tui.h"

/* Rows of a pane on this screen. */
static int height_of(const struct tui *t, enum pane_kind kind)
{
    struct layout l;
    int at = 0;
    tui_layout(t, max_int(t->n_open, 1), &l);
    for (int i = 0; i < t->n_open; i++)
        if (t->open[i] == kind)
            at = i;
    return l.too_small ? 1 : l.pane[max_int(min_int(at, l.n_pane - 1), 0)].h;
}

/* Writes as many of the step's tokens as fit. */
static void tokens(struct tui *t, const struct moment *m, int width, struct sheet *s)
{
    struct step_view v;
    struct err e;
    if (!backend_has(t->app->backend, VIEW_STEPS) ||
        !app_find_step(t->app, m->turn, m->step, &v, &e))
        return;
    if (m->piece)
        sheet_printf(s, ST_DIM, "%9.1f ms", (double)v.rec.us_arrived / 1e3);
    view_step_tokens(t->app, &v, width, s);
}

static void row(struct tui *t, int i, bool here, int width, struct sheet *s)
{
    static const struct { int mark; const char *utf8, *ascii; } sign[] = {
        {MARK_FAULT, "✗", "!"}, {MARK_PAUSE, "●", "*"}, {MARK_EVICT, "◇", "e"},
        {MARK_WINDOW, "▿", "w"}};
    const struct moment *m = &t->time.line.at[i];
    char at[24];
    const char *mark = " ";
    for (int k = 3; k >= 0; k--)
        if (m->marks & sign[k].mark)
            mark = s->ascii ? sign[k].ascii : sign[k].utf8;
    snprintf(at, sizeof at, "%d.%d", m->turn, m->step);
    sheet_add(s, ST_KEY, here ? s->ascii ? ">" : "▶" : " ");
    sheet_printf(s, here ? ST_BOLD : ST_TEXT, "%-8s", at);
    sheet_printf(s, m->kind == STEP_SPEC ? ST_TEXT : ST_DIM, "%-8s", m->piece ? "piece"
                 : step_kind_name((enum step_kind)m->kind));
    if (m->kind == STEP_SPEC)
        sheet_printf(s, ST_TEXT, "%2d/%-2d", m->accepted, m->drafted);
    else
        sheet_add(s, ST_DIM, "     ");
    sheet_printf(s, m->marks & MARK_FAULT ? ST_BAD : ST_WARN, " %s", mark);
    tokens(t, m, width, s);
    sheet_line(s);
}

void tui_steps_write(struct tui *t, struct pane *p, int width)
{
    const struct timeline *l = &t->time.line;
    struct sheet *s = &p->rows;
    int at = time_index(t), rows = max_int(height_of(t, PANE_STEPS) - 2, 1);
    int first = max_int(min_int(at - rows / 2, l->n - rows), 0);
    sheet_add(s, ST_HEAD, "STEPS");
    if (l->n > 0)
        sheet_printf(s, ST_DIM, "   %d.%d to %d.%d, %d in all", l->at[0].turn, l->at[0].step,
                     l->at[l->n - 1].turn, l->at[l->n - 1].step, l->n);
    sheet_line(s);
    bool server = backend_has(t->app->backend, VIEW_SERVED), pieces = server && l->n &&
                  l->at[l->n - 1].piece;
    say_line(s, ST_DIM, "%s", pieces ? " pieces of the stream: ms since the request, tokens; "
                                 "the server lists no steps"
                        : l->n ? " step    kind    accepted/drafted, tokens" : "no step yet: "
                        "send a message first");
    p->head = 2;
    p->top = 0;
    t->steps_first = first;
    for (int i = first; i < l->n && i < first + rows; i++)
        row(t, i, i == at, width, s);
}
