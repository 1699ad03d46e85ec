/* steps.c - /steps: a line a step, with its drafts, its time and its tokens; the pane (F4) has the
 * same tokens. */

#include "repl/cmd/cmd.h"
#include "repl/cmd/views.h"

enum { SHOWN = 20, MOST = 1000 };

/* ---- the tokens of a step -------------------------------------------------------------------- */

/* The cells that are left in the last line, of `width` (0: any). */
static int cells_left(const struct sheet *s, int width)
{
    const struct buf *text = &s->row[s->n_row - 1].text;
    return width ? width - text_width(text->p, text->n) - 1 : 10000;
}

/* The texts of tokens that a server sent without their ids. */
static void texts(struct app *a, const struct step_view *v, int width, struct sheet *s)
{
    struct tops *tops = app_tops(a, v->turn, v->step);
    for (int i = 0; tops && i < tops->n; i++) {
        const struct top *x = &tops->at[i];
        int left = cells_left(s, width);
        if (i > 0 && tops->at[i - 1].k == x->k) /* another candidate for the same token */
            continue;
        if (left < 3)
            break;
        sheet_add(s, ST_TEXT, " ");
        if (x->text)
            sheet_quote(s, ST_DIM, x->text, (size_t)x->n, left - 2);
    }
    tops_free(tops);
}

void view_step_tokens(struct app *a, const struct step_view *v, int width, struct sheet *s)
{
    bool spec = v->rec.kind == STEP_SPEC;
    if (v->n_token == 0 && backend_has(a->backend, VIEW_SERVED))
        texts(a, v, width, s);
    for (int i = 0; i < v->n_token; i++) {
        int left = cells_left(s, width);
        if (left < 3)
            return;
        sheet_add(s, ST_TEXT, " ");
        view_token(s, !spec ? ST_TEXT : i < v->rec.accepted ? ST_DEPTH1 : ST_BONUS, a->backend,
                   v->token[i], width ? left - 2 : 0);
    }
}

static void token_list(struct app *a, const struct step_view *v, const struct printer *to)
{
    PRINT_IN(to, "tokens", '[');
    for (int i = 0; i < v->n_token; i++) {
        PRINT_IN(to, NULL, '{');
        print_token(to, ST_TEXT, a->backend, v->token[i], 0);
    }
}

/* ---- the command ----------------------------------------------------------------------------- */

/* The latest `want` steps, in a ring. */
struct latest {
    struct address *at; /* (want) */
    int want, n;
};

static bool take(const struct step_view *s, void *arg)
{
    struct latest *l = arg;
    l->at[l->n++ % l->want] = (struct address){s->turn, s->step};
    return true;
}

static void show_step(struct app *a, const struct step_view *v, const struct printer *to)
{
    const struct step_rec *r = &v->rec;
    bool piece = r->source == STEP_PIECE;
    char at[24];
    snprintf(at, sizeof at, "%d.%d", v->turn, v->step);
    PRINT_IN(to, NULL, '{');
    print_add(to, ST_KEY, "%8s\f%d{turn}%d{step}", at, v->turn, v->step);
    print_add(to, ST_TEXT, "  %-7s{kind} %6d{position}", piece ? "piece" : step_kind_name(r->kind),
              r->pos0);
    if (r->drafted)
        print_add(to, ST_TEXT, " %2d{accepted}/%-2d{drafted}", r->accepted, r->drafted);
    else
        print_add(to, ST_TEXT, " %5s\f%d{accepted}%d{drafted}", "", 0, 0);
    if (r->source != STEP_COMPUTED && !r->us_arrived && !to->json)
        print_add(to, ST_TEXT, "%8s", "-"); /* imported, without times */
    else if (r->source != STEP_COMPUTED)
        print_add(to, ST_TEXT, "%8.1f\f%lu{us_arrived}", (double)r->us_arrived / 1e3,
                  r->us_arrived);
    else
        print_add(to, ST_TEXT, "%8.1f\f%u{us_draft}%u{us_verify}%u{us_commit}",
                  (r->us_draft + r->us_verify + r->us_commit) / 1e3, r->us_draft, r->us_verify,
                  r->us_commit);
    if (to->json)
        token_list(a, v, to);
    else
        view_step_tokens(a, v, a->face.width, to->out);
    print_end(to);
}

bool cmd_steps(struct cmd_call *c)
{
    struct app *a = c->app;
    struct step_view v = {0};
    char source[STEP_SOURCE];
    long want = SHOWN;
    if (!arg_number(c, "the number of steps", 1, MOST, &want) || !cmd_needs(c, VIEW_STEPS))
        return false;
    struct latest l = {xcalloc((size_t)want, sizeof *l.at), (int)want, 0};
    app_each_step(a, false, take, &l, source);
    int first = max_int(0, l.n - l.want);
    print_note(&c->to, ST_HEAD, "STEPS\v  %s%d of %d, %s", first ? "the latest " : "", l.n - first,
               l.n, source);
    print_note(&c->to, ST_HEAD, "%8s  %-7s %6s %5s%8s  %s", "step", "kind", "pos", "drafts", "ms",
               "tokens");
    print_open(&c->to, NULL, '[');
    for (int i = first; i < l.n; i++) {
        struct address at = l.at[i % l.want];
        if (app_find_step(a, at.turn, at.step, &v, NULL))
            show_step(a, &v, &c->to);
    }
    print_close(&c->to, ']');
    bool piece = v.rec.source == STEP_PIECE, told = v.rec.source == STEP_REPORTED;
    print_note(&c->to, ST_DIM, "%s", l.n == 0 ? "no step yet: send a message first"
               : piece ? "pieces of the stream: ms since the request; the server lists no steps"
               : told ? "drafts: accepted/drafted, as the server lists its steps; ms since the "
                        "request; /why T.S looks at one"
               : "drafts: accepted/drafted; ms: draft, verify and commit; /tree T.S, /why T.S and "
                 "/at T.S look at one");
    free(l.at);
    return true;
}
