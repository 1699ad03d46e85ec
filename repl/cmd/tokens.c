/* tokens.c - /tokens: the context token by token: text, step, fate, pages, probability and
 * rival. */
#include <math.h>

#include "repl/cmd/cmd.h"
#include "repl/cmd/views.h"

enum { SHOWN = 32, MOST = 4096, CELLS = 18, LEAST_CELLS = 10 };

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

/* ---- what is shown --------------------------------------------------------------------------- */

/* The columns that a narrow screen leaves out, the first one first. Each line has a position, a
 * token, a step and a fate. */
enum { C_RIVAL, C_P, C_ID, C_PAGES, N_COLUMNS };
static const struct {
    int cells;
    const char *name;
} column[N_COLUMNS] = {{28, "rival"}, {7, "p"}, {7, "id"}, {18, "pages"}};

struct columns {
    int token; /* cells of a token's text */
    bool has[N_COLUMNS];
};

/* Lines of at most `width` cells (0: any). Columns are left out until a token has LEAST_CELLS; the
 * cells that are left then are the token's. */
static struct columns columns_in(int width)
{
    enum { ALWAYS = 6 + 1 + 2 + 1 + 7 + 1 + 10 }; /* position, quotes, step, fate, blanks */
    struct columns c = {CELLS, {true, true, true, true}};
    int rest = width - ALWAYS;
    for (int i = 0; i < N_COLUMNS; i++)
        rest -= column[i].cells;
    if (!width || rest >= CELLS)
        return c;
    for (int i = 0; i < N_COLUMNS && rest < LEAST_CELLS; i++) {
        c.has[i] = false;
        rest += column[i].cells;
    }
    c.token = min_int(max_int(rest, LEAST_CELLS), CELLS);
    return c;
}

static int page_of(int slot, int page_size)
{
    return slot ? slot / page_size : -1;
}

/* A fact of programs, and of people if they see its column. */
#define IN_COLUMN(has, fmt) ((has) ? fmt : "\f" fmt "\f")

static void show_token(struct app *a, const struct token *x, const struct columns *c,
                       const struct printer *to)
{
    int P = max_int(1, backend_info(a->backend)->page_size);
    const struct token_fact *f = &x->fact;
    const char *fate = x->turn ? x->fate : "prompt";
    double p = exp((double)f->logp), rival_p = exp((double)f->rival_logp);
    bool rival = x->turn && f->rival >= 0;
    char step[24] = "", depth[16] = "";
    if (x->turn)
        snprintf(step, sizeof step, "%d.%d", x->turn, x->step);
    if (x->depth)
        snprintf(depth, sizeof depth, " %d", x->depth);
    PRINT_IN(to, NULL, '{');
    print_add(to, ST_TEXT, "%6d{position} ", x->at.position);
    if (c->has[C_ID])
        print_add(to, ST_TEXT, "%6d ", x->at.token);
    print_token(to, x->turn ? ST_TEXT : ST_USER, a->backend, x->at.token, c->token);
    print_tab(to, 7 + (c->has[C_ID] ? 7 : 0) + c->token + 2);
    print_add(to, ST_TEXT, " %7s \f%s{fate}", step, fate);
    if (x->turn)
        print_add(to, ST_TEXT, "\f%d{turn}%d{step}%d{depth}%g{p}", x->turn, x->step, x->depth, p);
    if (rival)
        print_add(to, ST_TEXT, "\f%d{rival}%g{rival_p}", f->rival, rival_p);
    print_add(to, x->depth ? ST_DRAFT : x->turn ? ST_TEXT : ST_DIM, "%s%-*s", fate,
              max_int(0, 10 - (int)strlen(fate)), depth);
    print_add(to, ST_TEXT, IN_COLUMN(c->has[C_PAGES], " %5d{full:-1} %5d{swa:-1} %5d{draft:-1}"),
              page_of(x->at.full_slot, P), page_of(x->at.swa_slot, P),
              page_of(x->at.draft_slot, P));
    if (c->has[C_P] && x->turn && !isnan(p))
        print_add(to, ST_TEXT, "  %.3f", p);
    if (c->has[C_RIVAL] && rival && !isnan(p)) {
        print_add(to, ST_TEXT, "  ");
        note_token(to, ST_DIM, a->backend, f->rival, CELLS);
        print_add(to, ST_DIM, " %.3f", rival_p);
    }
    print_end(to);
}

/* The heads of the columns; what they mean; which are left out. */
static void head_of(const struct columns *c, const struct printer *to)
{
    print_add(to, ST_HEAD, "%6s ", "pos");
    if (c->has[C_ID])
        print_add(to, ST_HEAD, "%6s ", "id");
    print_add(to, ST_HEAD, "%-*s %7s %-10s", c->token + 2, "token", "step", "fate");
    if (c->has[C_PAGES])
        print_add(to, ST_HEAD, " %5s %5s %5s", "full", "swa", "draft");
    print_add(to, ST_HEAD, "%s%s", c->has[C_P] ? "      p" : "", c->has[C_RIVAL] ? "  rival" : "");
    print_end(to);
}

static void explain(const struct columns *c, const struct printer *to)
{
    const char *before = "left out for want of room: ";
    print_add(to, ST_DIM, "accepted N: drafted at depth N; bonus: the target's own after them%s%s",
              c->has[C_P] ? "; p: of the target at temperature 1" : "",
              c->has[C_RIVAL] ? "; rival: the best other token" : "");
    print_end(to);
    for (int i = N_COLUMNS - 1; i >= 0; i--) {
        if (c->has[i])
            continue;
        print_add(to, ST_DIM, "%s%s", before, column[i].name);
        before = ", ";
    }
    if (!c->has[C_RIVAL])
        print_end(to);
}

static void list_tokens(struct app *a, const struct tokens *t, int length, const struct printer *to)
{
    struct columns c = columns_in(to->json ? 0 : a->face.width);
    print_note(to, ST_HEAD, "TOKENS\v  %d-%d of %d in the context; pages of %d", t->from,
               t->from + t->n - 1, length, max_int(1, backend_info(a->backend)->page_size));
    if (!to->json)
        head_of(&c, to);
    print_open(to, NULL, '[');
    for (int i = 0; i < t->n; i++)
        show_token(a, &t->v[i], &c, to);
    print_close(to, ']');
    if (!to->json)
        explain(&c, to);
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
    list_tokens(a, &t, length, &c->to);
    free(t.v);
    return true;
}
