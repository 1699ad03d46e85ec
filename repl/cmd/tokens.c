/* tokens.c - /tokens: the context token by token: text, step, fate, pages, probability and
 * rival. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "repl/cmd/cmd.h"

enum { SHOWN = 32, MOST = 4096, CELLS = 18 };

/* One token of the context. */
struct token {
    struct pos_view at;
    int turn, step;   /* the step that emitted it; turn 0: a token of a prompt, or of an unknown
                         step */
    const char *fate; /* "" for turn 0 */
    int depth;        /* of an accepted node */
    struct token_fact fact;
};

struct tokens {
    struct token *v; /* positions [from, from + n) */
    int from, n;
};

/* Fills in the facts of the tokens that the step appended, if the context still holds them. A later
 * step at the same positions overwrites the facts of an earlier one, whose turn was undone. */
static bool take_step(const struct step_view *s, void *arg)
{
    struct tokens *t = arg;
    bool prompt = s->rec.kind == STEP_PREFILL;
    int first = s->rec.pos0 + (prompt ? s->rec.rows : 1);
    for (int k = 0; k < s->n_token; k++) {
        int i = first + k - t->from;
        if (i < 0 || i >= t->n || t->v[i].at.token != s->token[k])
            continue;
        struct token *x = &t->v[i];
        bool drafted = k < s->rec.accepted;
        x->turn = s->turn;
        x->step = s->step;
        x->depth = drafted ? k + 1 : 0;
        x->fact = s->fact[k];
        x->fate = k < s->rec.forced           ? "forced"
                  : drafted                    ? "accepted"
                  : s->rec.kind == STEP_SPEC ? "bonus"
                                               : "target";
    }
    return true;
}

/* ---- as text --------------------------------------------------------------------------------- */

static void add_page(struct sheet *out, int slot, int page_size)
{
    if (slot)
        sheet_printf(out, ST_TEXT, " %5d", slot / page_size);
    else
        sheet_printf(out, ST_DIM, " %5s", "-");
}

static void token_line(struct app *a, const struct token *x, int P, struct sheet *out)
{
    char step[24] = "", fate[24] = "prompt";
    if (x->turn) {
        snprintf(step, sizeof step, "%d.%d", x->turn, x->step);
        snprintf(fate, sizeof fate, "%s", x->fate);
    }
    if (x->depth)
        snprintf(fate, sizeof fate, "%s %d", x->fate, x->depth);
    sheet_printf(out, ST_TEXT, "%6d %6d ", x->at.position, x->at.token);
    view_token(out, x->turn ? ST_TEXT : ST_USER, a->backend, x->at.token, CELLS);
    sheet_tab(out, 14 + CELLS + 1);
    sheet_printf(out, ST_TEXT, "%7s ", step);
    sheet_printf(out, x->depth ? ST_DRAFT : x->turn ? ST_TEXT : ST_DIM, "%-10s", fate);
    add_page(out, x->at.full_slot, P);
    add_page(out, x->at.swa_slot, P);
    add_page(out, x->at.draft_slot, P);
    if (x->turn && !isnan(x->fact.logp)) {
        sheet_printf(out, ST_TEXT, "  %.3f", exp((double)x->fact.logp));
        if (x->fact.rival >= 0) {
            sheet_add(out, ST_TEXT, "  ");
            view_token(out, ST_DIM, a->backend, x->fact.rival, CELLS);
            sheet_printf(out, ST_DIM, " %.3f", exp((double)x->fact.rival_logp));
        }
    }
    sheet_line(out);
}

static void list_text(struct app *a, const struct tokens *t, int length, struct sheet *out)
{
    int P = max_int(1, backend_info(a->backend)->page_size);
    sheet_add(out, ST_HEAD, "TOKENS");
    sheet_printf(out, ST_TEXT, "  %d-%d of %d in the context; pages of %d", t->from,
                 t->from + t->n - 1, length, P);
    sheet_line(out);
    say_line(out, ST_HEAD, "%6s %6s %-*s%7s %-10s %5s %5s %5s  %5s  %s", "pos", "id", CELLS + 2,
             "token", "step", "fate", "full", "swa", "draft", "p", "rival");
    for (int i = 0; i < t->n; i++)
        token_line(a, &t->v[i], P, out);
    say_line(out, ST_DIM, "accepted N: drafted at depth N; bonus: the target's own after them; p: "
                          "of the target at temperature 1; rival: the best other token");
}

/* ---- as JSON --------------------------------------------------------------------------------- */

static int page_of(int slot, int page_size)
{
    return slot ? slot / page_size : -1;
}

static void token_json(struct app *a, const struct token *x, int P, struct buf *json)
{
    size_t n;
    const char *text = backend_token(a->backend, x->at.token, &n);
    jput_open(json, '{');
    jput_fields(json, "%d{position}%d{token}%.*s{text}%s{fate}", x->at.position, x->at.token,
                (int)n, text, x->turn ? x->fate : "prompt");
    if (x->turn) {
        jput_fields(json, "%d{turn}%d{step}%d{depth}%g{p}", x->turn, x->step, x->depth,
                    exp((double)x->fact.logp));
        if (x->fact.rival >= 0) {
            jput_fields(json, "%d{rival}%g{rival_p}", x->fact.rival,
                        exp((double)x->fact.rival_logp));
        }
    }
    jput_fields(json, "%d{full:-1}%d{swa:-1}%d{draft:-1}", page_of(x->at.full_slot, P),
                page_of(x->at.swa_slot, P), page_of(x->at.draft_slot, P));
    jput_close(json, '}');
}

/* ---- the command ----------------------------------------------------------------------------- */

static bool range_of(struct app *a, int argc, char **argv, struct tokens *t, int *length,
                     struct err *e)
{
    struct chat_view chat;
    long from, to;
    app_chat(a, &chat);
    *length = chat.length;
    if (chat.length == 0)
        return err_set(e, ERR_NEGATIVE, "the context is empty: send a message first");
    from = max_int(0, chat.length - SHOWN);
    to = chat.length - 1;
    if (argc > 0 && !arg_int(argv[0], "the first position", 0, to, &from, e))
        return false;
    if (argc == 1)
        to = min_int((int)to, (int)from + SHOWN - 1);
    if (argc == 2 && !arg_int(argv[1], "the last position", from, to, &to, e))
        return false;
    if (to - from >= MOST)
        return err_set(e, ERR_USAGE, "at most %d tokens at a time", MOST);
    t->from = (int)from;
    t->n = (int)(to - from + 1);
    return true;
}

/* The positions in the context at the app's address, or now; a running turn may have shortened it
 * since. */
static void read_positions(struct app *a, struct tokens *t)
{
    struct err e;
    struct backend *b = app_shown(a);
    t->v = xcalloc((size_t)t->n, sizeof *t->v);
    for (int i = 0; i < t->n; i++) {
        t->v[i].fate = "";
        t->v[i].fact = (struct token_fact){.logp = NAN, .rival_logp = NAN, .rival = -1};
        if (!(b && b->pages ? b->pages->position(b, t->from + i, &t->v[i].at, &e)
                            : app_position(a, t->from + i, &t->v[i].at, &e)))
            t->n = i;
    }
}

bool cmd_tokens(struct cmd_call *c)
{
    struct app *a = c->app;
    struct tokens t = {0};
    char source[STEP_SOURCE];
    int length;
    if (c->argc > 2)
        return arg_expected(c, "takes a first and a last position");
    if (backend_has(a->backend, VIEW_SERVED))
        return c->argc
                   ? err_set(c->e, ERR_USAGE,
                             "/tokens takes no position with a server: it shows the latest tokens")
                   : served_tokens(a, SHOWN, &c->to, c->e);
    if (!cmd_needs(c, VIEW_PAGES) || !cmd_needs(c, VIEW_STEPS) || !cmd_needs(c, VIEW_TREES) ||
        !range_of(a, c->argc, c->argv, &t, &length, c->e))
        return false;
    read_positions(a, &t);
    app_each_step(a, true, take_step, &t, source);
    if (c->to.json) {
        jput_open(c->to.json, '[');
        for (int i = 0; i < t.n; i++)
            token_json(a, &t.v[i], max_int(1, backend_info(a->backend)->page_size), c->to.json);
        jput_close(c->to.json, ']');
    } else {
        list_text(a, &t, length, c->to.out);
    }
    free(t.v);
    return true;
}
