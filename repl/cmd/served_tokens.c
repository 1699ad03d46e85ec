/* served_tokens.c - /why, /top and /tokens with a server: the tokens of its steps, and the best
 * tokens of their rows as far as the server sent them.
 *
 * Some servers list their drafting steps (vLLM, aerie serve). For others, a "step" is one piece of
 * the stream, and whether a draft held a token is not known. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "repl/cmd/cmd.h"

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

static void add_text(struct app *a, struct sheet *out, enum style st, const struct top *t,
                     int32_t id)
{
    if (t && t->text)
        sheet_quote(out, st, t->text, (size_t)t->n, CELLS);
    else
        view_token(out, st, a->backend, t ? t->id : id, CELLS);
    size_t n = 0;
    if (id >= 0 && !(t && t->text))
        backend_token(a->backend, id, &n);
    if (id >= 0 && (n || (t && t->text))) /* else the id is shown already */
        sheet_printf(out, ST_DIM, " #%d", (int)id);
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

static void head_line(struct app *a, const char *title, const struct served_step *s,
                      struct sheet *out)
{
    sheet_add(out, ST_HEAD, title);
    if (s->v.rec.source == STEP_PIECE)
        sheet_printf(out, ST_TEXT, "  piece %d.%d of the stream", s->v.turn, s->v.step);
    else
        sheet_printf(out, ST_TEXT, "  step %d.%d of %s, %d of %d drafts accepted", s->v.turn,
                     s->v.step,
                     backend_info(a->backend)->family, s->v.rec.accepted, s->v.rec.drafted);
    sheet_line(out);
}

/* ---- /why ------------------------------------------------------------------------------------ */

static void why_text(struct app *a, const struct served_step *s, struct sheet *out)
{
    char origin[64], p[16];
    head_line(a, "WHY", s, out);
    for (int k = 0; k < tokens_of(s); k++) {
        const struct top *own = top_of(s, k, 0), *rival = top_of(s, k, 1);
        int32_t id = k < s->v.n_token ? s->v.token[k] : own ? own->id : -1;
        float logp = own ? own->logp : k < s->v.n_token ? s->v.fact[k].logp : NAN;
        add_text(a, out, ST_BOLD, own, id);
        sheet_printf(out, ST_DIM, "  draft: %s", origin_of(&s->v.rec, k, origin));
        sheet_line(out);
        sheet_add(out, ST_LABEL, "  target ");
        if (isnan(logp))
            sheet_add(out, ST_DIM, "its probability was not sent");
        else
            sheet_printf(out, ST_TEXT, "p %s", share(logp, p));
        if (rival && !isnan(rival->logp)) {
            sheet_add(out, ST_TEXT, "; rival ");
            add_text(a, out, ST_TEXT, rival, rival->id);
            sheet_printf(out, ST_TEXT, " p %s", share(rival->logp, p));
            if (!isnan(logp))
                sheet_printf(out, fabsf(logp - rival->logp) < 0.05f ? ST_WARN : ST_DIM,
                             ", margin %.3g nats", (double)(logp - rival->logp));
        }
        sheet_line(out);
    }
    if (tokens_of(s) == 0)
        say_line(out, ST_DIM, "the server sent neither ids nor log probabilities of these tokens");
}

static void candidate_json(struct app *a, const struct top *t, struct buf *json)
{
    size_t n;
    const char *text = t->text ? t->text : backend_token(a->backend, t->id, &n);
    jput_record(json, "%d{token:-1}%.*s{text}%g{logp}", max_int(t->id, -1),
                t->text ? t->n : (int)n, text, t->logp); /* null where it is NAN */
}

static void step_json(struct app *a, const struct served_step *s, int row, struct buf *json)
{
    char origin[64];
    jput_open(json, '{');
    jput_fields(json, "%d{turn}%d{step}%s{source}", s->v.turn, s->v.step,
                step_source_name(s->v.rec.source));
    jput_kopen(json, "tokens", '[');
    for (int k = 0; k < tokens_of(s); k++) {
        const struct top *t;
        if (row >= 0 && k != row)
            continue;
        jput_open(json, '{');
        jput_fields(json, "%d{token:-1}%s{draft}", k < s->v.n_token ? s->v.token[k] : -1,
                    origin_of(&s->v.rec, k, origin));
        jput_kopen(json, "top", '[');
        for (int i = 0; (t = top_of(s, k, i)); i++)
            candidate_json(a, t, json);
        jput_close(json, ']');
        jput_close(json, '}');
    }
    jput_close(json, ']');
    jput_close(json, '}');
}

bool served_why(struct app *a, int turn, int step, const struct printer *to, struct err *e)
{
    struct served_step s;
    if (!find_step(a, turn, step, &s, e))
        return false;
    if (to->json)
        step_json(a, &s, -1, to->json);
    else
        why_text(a, &s, to->out);
    tops_free(s.tops);
    return true;
}

/* ---- /top ------------------------------------------------------------------------------------ */

static void top_text(struct app *a, const struct served_step *s, int row, struct sheet *out)
{
    const struct top *t;
    char p[16];
    int n = 0;
    head_line(a, "TOP", s, out);
    for (int k = 0; k < tokens_of(s); k++) {
        if (row >= 0 && k != row)
            continue;
        for (int i = 0; (t = top_of(s, k, i)); i++, n++) {
            sheet_printf(out, ST_DIM, i ? "      " : "%4d  ", k);
            sheet_printf(out, i ? ST_TEXT : ST_BOLD, "%8s  ", isnan(t->logp) ? "-"
                         : share(t->logp, p));
            add_text(a, out, i ? ST_TEXT : ST_BOLD, t, t->id);
            sheet_line(out);
        }
    }
    if (n == 0)
        say_line(out, ST_DIM, "the server sent no log probabilities of these tokens");
    else
        say_line(out, ST_DIM, "the token itself, then the best others, as the server sent them");
}

bool served_top(struct app *a, int turn, int step, int row, const struct printer *to, struct err *e)
{
    struct served_step s;
    if (!find_step(a, turn, step, &s, e))
        return false;
    if (row >= tokens_of(&s) && row > 0) {
        err_set(e, ERR_USAGE, "step %d.%d has no token %d: its tokens are 0 to %d", s.v.turn,
                s.v.step, row, tokens_of(&s) - 1);
        tops_free(s.tops);
        return false;
    }
    if (to->json)
        step_json(a, &s, row, to->json);
    else
        top_text(a, &s, row, to->out);
    tops_free(s.tops);
    return true;
}

/* ---- /tokens --------------------------------------------------------------------------------- */

static void token_line(struct app *a, const struct step_view *v, int k, struct sheet *out)
{
    char step[24], origin[64];
    const struct token_fact *f = &v->fact[k];
    snprintf(step, sizeof step, "%d.%d", v->turn, v->step);
    sheet_printf(out, ST_TEXT, "%7s %6d ", step, (int)v->token[k]);
    view_token(out, ST_TEXT, a->backend, v->token[k], CELLS);
    sheet_tab(out, 16 + CELLS);
    if (isnan(f->logp))
        sheet_printf(out, ST_DIM, "%6s", "-");
    else
        sheet_printf(out, ST_TEXT, "%6.3f", exp((double)f->logp));
    if (isnan(f->rival_logp))
        sheet_printf(out, ST_DIM, " %6s  ", "-");
    else
        sheet_printf(out, ST_TEXT, " %6.3f  ", exp((double)f->rival_logp));
    sheet_add(out, ST_DIM, origin_of(&v->rec, k, origin));
    sheet_line(out);
}

static void token_json(struct app *a, const struct step_view *v, int k, struct buf *json)
{
    size_t n;
    char origin[64];
    const char *text = backend_token(a->backend, v->token[k], &n);
    jput_record(json, "%d{turn}%d{step}%d{token}%.*s{text}%g{logp}%g{rival_logp}%s{draft}", v->turn,
                v->step, v->token[k], (int)n, text, v->fact[k].logp, v->fact[k].rival_logp,
                origin_of(&v->rec, k, origin));
}

bool served_tokens(struct app *a, long most, const struct printer *to, struct err *e)
{
    struct step_info *info = xmalloc(STEPS_KEPT * sizeof *info);
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
            if (skip-- > 0)
                continue;
            else if (to->json)
                token_json(a, &v, k, to->json);
            else
                token_line(a, &v, k, to->out);
    }
    free(info);
    print_close(to, ']');
    if (held)
        print_note(to, ST_DIM, "the latest tokens of replies, as the server sent them; rival: p of "
                 "the best other token (/why, /top name it)");
    return held > 0 || to->json ||
           err_set(e, ERR_NEGATIVE, n ? "%s sent no ids of its tokens"
                                      : "there is no token yet: send a message first",
                   backend_info(a->backend)->family);
}
