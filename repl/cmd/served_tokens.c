/* served_tokens.c - /why, /top and /tokens with a server: the tokens of its steps, and the best
 * tokens of their rows as far as the server sent them.
 *
 * Some servers list their drafting steps (vLLM, aerie serve). For others, a "step" is one piece of
 * the stream, and whether a draft held a token is not known. */
#include <math.h>

#include "repl/cmd/cmd.h"
#include "repl/cmd/views.h"

enum { CELLS = 20, SHOWN = 32 };

/* One step with the best tokens of its rows. */
struct served_step {
    struct step_view v;
    struct tops *tops; /* owned or NULL */
};

static bool find_step(struct app *a, int turn, int step, struct served_step *s, struct err *e)
{
    *s = (struct served_step){0};
    if (turn ? !app_find_step(a, turn, step, &s->v, e) : !app_newest_step(a, &s->v, e))
        return false;
    s->tops = app_tops(a, s->v.turn, s->v.step);
    return true;
}

/* The i-th best token in place of token k; 0 is the token itself; NULL: the server sent fewer. */
static const struct top *top_of(const struct served_step *s, int k, int i)
{
    for (int j = 0; s->tops && j < s->tops->n; j++)
        if (s->tops->at[j].k == k && i-- == 0)
            return &s->tops->at[j];
    return NULL;
}

static int tokens_of(const struct served_step *s)
{
    int n = s->v.n_token;
    for (int j = 0; s->tops && j < s->tops->n; j++)
        n = max_int(n, s->tops->at[j].k + 1);
    return n;
}

/* "0.9048", "3.1e-06" */
static const char *share(float logp, char out[16])
{
    double p = exp((double)logp);
    snprintf(out, 16, p < 0.001 ? "%.1e" : "%.4f", p);
    return out;
}

/* For people only. */
static void add_text(struct app *a, const struct printer *to, enum style st, const struct top *t,
                     int32_t id)
{
    size_t n = 0;
    if (to->json)
        return;
    if (t && t->text)
        sheet_quote(to->out, st, t->text, (size_t)t->n, CELLS);
    else
        view_token(to->out, st, a->backend, t ? t->id : id, CELLS);
    if (id >= 0 && !(t && t->text))
        backend_token(a->backend, id, &n);
    if (id >= 0 && (n || (t && t->text))) /* else the id is shown already */
        print_add(to, ST_DIM, " #%d", id);
}

static const char *origin_of(const struct step_rec *r, int k, char out[64])
{
    if (r->source == STEP_PIECE)
        return "not reported";
    if (r->drafted == 0)
        return "the target's own, nothing was drafted";
    if (k < r->accepted)
        snprintf(out, 64, "accepted draft %d of %d", k + 1, r->drafted);
    else
        snprintf(out, 64, "the target's own, after %d of %d drafts", r->accepted, r->drafted);
    return out;
}

/* ---- /why and /top --------------------------------------------------------------------------- */

/* The lines of /why about token k of the step. */
static void explain(struct app *a, const struct served_step *s, int k, const struct printer *to)
{
    char origin[64], p[16];
    const struct top *own = top_of(s, k, 0), *rival = top_of(s, k, 1);
    float logp = own ? own->logp : k < s->v.n_token ? s->v.fact[k].logp : NAN;
    add_text(a, to, ST_BOLD, own, k < s->v.n_token ? s->v.token[k] : own ? own->id : -1);
    print_note(to, ST_DIM, "  draft: %s", origin_of(&s->v.rec, k, origin));
    print_add(to, ST_LABEL, "  target ");
    if (isnan(logp))
        print_add(to, ST_DIM, "its probability was not sent");
    else
        print_add(to, ST_TEXT, "p %s", share(logp, p));
    if (rival && !isnan(rival->logp)) {
        print_add(to, ST_TEXT, "; rival ");
        add_text(a, to, ST_TEXT, rival, rival->id);
        print_add(to, ST_TEXT, " p %s", share(rival->logp, p));
        if (!isnan(logp))
            print_add(to, fabsf(logp - rival->logp) < 0.05f ? ST_WARN : ST_DIM,
                      ", margin %.3g nats", (double)(logp - rival->logp));
    }
    print_end(to);
}

/* The i-th best token in place of token k; shown: as a line, too. */
static void candidate(struct app *a, const struct top *t, int k, int i, bool shown,
                      const struct printer *to)
{
    char p[16];
    size_t n = (size_t)t->n;
    const char *text = t->text ? t->text : backend_token(a->backend, t->id, &n);
    print_open(to, NULL, '{');
    print_add(to, ST_TEXT, "\f%d{token:-1}%.*s{text}%g{logp}", max_int(t->id, -1), (int)n, text,
              t->logp);
    print_close(to, '}');
    if (!shown)
        return;
    print_add(to, ST_DIM, i ? "      \f%d" : "%4d  ", k);
    print_add(to, i ? ST_TEXT : ST_BOLD, "%8s  ", isnan(t->logp) ? "-" : share(t->logp, p));
    add_text(a, to, i ? ST_TEXT : ST_BOLD, t, t->id);
    print_end(to);
}

/* row: of which token only; -1: of all. */
static void show_step(struct app *a, const struct served_step *s, int row, bool why,
                      const struct printer *to)
{
    char origin[64];
    const struct top *t;
    int n = 0, last = tokens_of(s) - 1;
    bool piece = s->v.rec.source == STEP_PIECE;
    print_open(to, NULL, '{');
    print_add(to, ST_HEAD, why ? "WHY" : "TOP");
    print_add(to, ST_TEXT, piece ? "  piece %d{turn}.%d{step} of the stream\f%s{source}"
                                 : "  step %d{turn}.%d{step} of \f%s{source}", s->v.turn,
              s->v.step, step_source_name(s->v.rec.source));
    if (!piece)
        print_add(to, ST_TEXT, "%s, %d of %d drafts accepted", backend_info(a->backend)->family,
                  s->v.rec.accepted, s->v.rec.drafted);
    print_end(to);
    print_open(to, "tokens", '[');
    for (int k = max_int(row, 0); k <= (row < 0 ? last : min_int(row, last)); k++) {
        PRINT_IN(to, NULL, '{');
        print_add(to, ST_TEXT, "\f%d{token:-1}%s{draft}", k < s->v.n_token ? s->v.token[k] : -1,
                  origin_of(&s->v.rec, k, origin));
        if (why)
            explain(a, s, k, to);
        PRINT_IN(to, "top", '[');
        for (int i = 0; (t = top_of(s, k, i)); i++, n++)
            candidate(a, t, k, i, !why, to);
    }
    print_close(to, ']');
    print_close(to, '}');
    if (why && last < 0)
        print_note(to, ST_DIM, "the server sent neither ids nor log probabilities of these tokens");
    else if (!why)
        print_note(to, ST_DIM, n ? "the token itself, then the best others, as the server sent them"
                                 : "the server sent no log probabilities of these tokens");
}

bool served_why(struct app *a, int turn, int step, const struct printer *to, struct err *e)
{
    struct served_step s;
    if (!find_step(a, turn, step, &s, e))
        return false;
    show_step(a, &s, -1, true, to);
    tops_free(s.tops);
    return true;
}

bool served_top(struct app *a, int turn, int step, int row, const struct printer *to, struct err *e)
{
    struct served_step s;
    if (!find_step(a, turn, step, &s, e))
        return false;
    bool is = row <= 0 || row < tokens_of(&s) ||
              err_set(e, ERR_USAGE, "step %d.%d has no token %d: its tokens are 0 to %d", s.v.turn,
                      s.v.step, row, tokens_of(&s) - 1);
    if (is)
        show_step(a, &s, row, false, to);
    tops_free(s.tops);
    return is;
}

/* ---- /tokens --------------------------------------------------------------------------------- */

static void show_token(struct app *a, const struct step_view *v, int k, const struct printer *to)
{
    char step[24], origin[64];
    const struct token_fact *f = &v->fact[k];
    snprintf(step, sizeof step, "%d.%d", v->turn, v->step);
    PRINT_IN(to, NULL, '{');
    print_add(to, ST_TEXT, "%7s %6d \f%d{turn}%d{step}%g{logp}%g{rival_logp}", step, v->token[k],
              v->turn, v->step, f->logp, f->rival_logp);
    print_token(to, ST_TEXT, a->backend, v->token[k], CELLS);
    print_tab(to, 16 + CELLS);
    print_add(to, ST_TEXT, "%6.3f %6.3f  ", exp((double)f->logp), exp((double)f->rival_logp));
    print_facts(to, ST_DIM, "%s{draft}", origin_of(&v->rec, k, origin));
}

bool served_tokens(struct app *a, long most, const struct printer *to, struct err *e)
{
    FREED(free_at) struct step_info *info = xmalloc(STEPS_KEPT * sizeof *info);
    int n = app_steps(a, info, STEPS_KEPT), first = n;
    long held = 0, skip;
    while (first > 0 && held < most)
        held += info[--first].n_token;
    skip = max_int(0, (int)(held - most));
    print_open(to, NULL, '[');
    if (held)
        print_note(to, ST_HEAD, "%7s %6s %-*s %6s %6s  %s", "step", "id", CELLS, "token", "p",
                   "rival", "draft");
    for (int i = first; i < n; i++) {
        struct step_view v;
        if (!app_find_step(a, info[i].turn, info[i].step, &v, NULL))
            continue;
        for (int k = 0; k < v.n_token; k++)
            if (skip-- <= 0)
                show_token(a, &v, k, to);
    }
    print_close(to, ']');
    if (held)
        print_note(to, ST_DIM, "the latest tokens of replies, as the server sent them; rival: p of "
                 "the best other token (/why, /top name it)");
    return held > 0 || to->json ||
           err_set(e, ERR_NEGATIVE, n ? "%s sent no ids of its tokens"
                                      : "there is no token yet: send a message first",
                   backend_info(a->backend)->family);
}
