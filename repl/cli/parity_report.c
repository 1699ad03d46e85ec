/* parity_report.c - what `aerie parity` prints: a line for each reply that differs, the sums of both
 * sides, and the verdict. See parity.h. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/json.h"
#include "repl/cli/parity.h"

static bool at_limit(enum stop_reason r)
{
    return r == STOP_MAX || r == STOP_CONTEXT || r == STOP_KV_FULL;
}

static bool is_right(const struct comparison *c, int side)
{
    return c->answer && strcmp(c->answer, c->side[side]->answer) == 0;
}

static void add_up(struct parity *p, const struct comparison *c)
{
    p->compared++;
    p->differ += c->index >= 0;
    p->graded += c->answer != NULL;
    p->answers_differ += c->answer && strcmp(c->side[0]->answer, c->side[1]->answer) != 0;
    for (int i = 0; i < 2; i++) {
        const struct outcome *o = c->side[i];
        struct side *s = &p->side[i];
        s->tokens += o->ids.n;
        s->steps += o->n_steps;
        s->spec += o->n_spec;
        s->drafted += o->n_drafted;
        s->accepted += o->n_accepted;
        s->at_limit += at_limit(o->reason);
        s->right += is_right(c, i);
    }
}

/* ---- one prompt ------------------------------------------------------------------------------ */

static bool knows(const struct parity *p, int side)
{
    return p->same_tokens || side == 1; /* the engine of side b is opened last */
}

/* How close the choice was where the ids part, on the first side that knows; NAN: none does. */
static double margin_at(const struct comparison *c)
{
    for (int i = 0; i < 2; i++)
        if (c->index >= 0 && c->index < c->side[i]->ids.n && c->side[i]->margin)
            return (double)c->side[i]->margin[c->index];
    return (double)NAN;
}

static void token_json(const struct parity *p, const struct comparison *c, int side, struct buf *b)
{
    const struct ids *ids = &c->side[side]->ids;
    if (c->index >= ids->n) {
        jput_null(b);
        return;
    }
    size_t n;
    const char *text = backend_token(p->g, ids->v[c->index], &n);
    jput_open(b, '{');
    jput_kint(b, "token", ids->v[c->index]);
    if (knows(p, side)) {
        jput_key(b, "text");
        jput_strn(b, text, n);
    }
    jput_close(b, '}');
}

static void outcome_json(const struct comparison *c, int side, struct buf *b)
{
    const struct outcome *o = c->side[side];
    jput_open(b, '{');
    if (o->refused) {
        jput_kstr(b, "error", o->why);
    } else {
        jput_kint(b, "tokens", o->ids.n);
        jput_kint(b, "steps", o->n_steps);
        jput_kint(b, "drafting_steps", o->n_spec);
        jput_kint(b, "drafted", o->n_drafted);
        jput_kint(b, "accepted", o->n_accepted);
        jput_kstr(b, "reason", stop_name(o->reason));
    }
    if (c->answer && !o->refused) {
        jput_kstr(b, "answer", o->answer[0] ? o->answer : NULL);
        jput_kbool(b, "right", is_right(c, side));
    }
    jput_close(b, '}');
}

static void prompt_json(const struct parity *p, const struct comparison *c)
{
    struct buf b = {0};
    jput_open(&b, '{');
    jput_kint(&b, "prompt", c->prompt);
    jput_kint(&b, "line", c->line);
    jput_kbool(&b, "compared", !c->side[0]->refused && !c->side[1]->refused);
    jput_kbool(&b, "equal", c->index < 0);
    for (int i = 0; i < 2; i++) {
        char name[2] = {p->side[i].name};
        jput_key(&b, name);
        outcome_json(c, i, &b);
    }
    if (c->index >= 0 && !c->side[0]->refused && !c->side[1]->refused) {
        jput_key(&b, "first");
        jput_open(&b, '{');
        jput_kint(&b, "index", c->index);
        jput_kint(&b, "position", c->side[0]->n_prompt + c->index);
        for (int i = 0; i < 2; i++) {
            char name[2] = {p->side[i].name};
            jput_key(&b, name);
            token_json(p, c, i, &b);
        }
        jput_kreal(&b, "margin", margin_at(c));
        jput_close(&b, '}');
    }
    jput_close(&b, '}');
    cli_json(&b);
    buf_free(&b);
}

static void add_token(const struct parity *p, const struct comparison *c, int side, struct sheet *s)
{
    const struct ids *ids = &c->side[side]->ids;
    if (c->index >= ids->n) {
        sheet_printf(s, ST_BAD, "the end (%s)", stop_name(c->side[side]->reason));
    } else {
        size_t n;
        const char *text = backend_token(p->g, ids->v[c->index], &n);
        if (knows(p, side))
            sheet_quote(s, ST_BAD, text, n, 24);
        sheet_printf(s, ST_TEXT, "%s%d%s", knows(p, side) ? " (" : "token ", ids->v[c->index],
                     knows(p, side) ? ")" : "");
    }
    sheet_printf(s, ST_TEXT, " with %c", p->side[side].name);
}

static void prompt_text(const struct parity *p, const struct comparison *c)
{
    struct sheet s;
    sheet_init(&s, p->c->opt.ascii);
    sheet_printf(&s, ST_HEAD, "prompt %d", c->prompt);
    if (c->side[0]->refused || c->side[1]->refused) {
        const struct outcome *o = c->side[c->side[1]->refused];
        sheet_printf(&s, ST_WARN, " is refused%s: %s", c->index < 0 ? "" : " on one side only", o->why);
    } else {
        sheet_printf(&s, ST_TEXT, " (line %d) differs at position %d, token %d of the reply: ", c->line,
                     c->side[0]->n_prompt + c->index, c->index + 1);
        add_token(p, c, 0, &s);
        sheet_add(&s, ST_TEXT, ", ");
        add_token(p, c, 1, &s);
        if (isfinite(margin_at(c)))
            sheet_printf(&s, ST_TEXT, "; margin %.3g", margin_at(c));
    }
    sheet_line(&s);
    cli_print(p->c, &s);
    sheet_free(&s);
}

void parity_report(struct parity *p, const struct comparison *c)
{
    bool refused = c->side[0]->refused || c->side[1]->refused;
    if (!refused)
        add_up(p, c);
    p->refused += refused;
    p->differ += refused && c->index >= 0;
    if (p->c->opt.json)
        prompt_json(p, c);
    else if (refused || c->index >= 0) {
        cli_progress_end();
        prompt_text(p, c);
    }
    fflush(stdout);
}

/* ---- the verdict ----------------------------------------------------------------------------- */

/* Whether a side was to draft and never did: equality then says nothing about drafting. */
static bool no_proof(const struct parity *p)
{
    bool asked = false;
    int64_t ran = 0;
    for (int i = 0; i < 2; i++) {
        asked |= p->side[i].opts.settings.spec && p->side[i].opts.draft;
        ran += p->side[i].spec;
    }
    return asked && ran == 0;
}

static void side_json(const struct parity *p, int i, struct buf *b)
{
    const struct side *s = &p->side[i];
    char name[2] = {s->name};
    jput_key(b, name);
    jput_open(b, '{');
    jput_kstr(b, "changes", s->label);
    jput_kint(b, "tokens", s->tokens);
    jput_kint(b, "steps", s->steps);
    jput_kint(b, "drafting_steps", s->spec);
    jput_kint(b, "drafted", s->drafted);
    jput_kint(b, "accepted", s->accepted);
    jput_kint(b, "at_limit", s->at_limit);
    if (p->graded)
        jput_kint(b, "right", s->right);
    jput_close(b, '}');
}

static void verdict_json(const struct parity *p, const char *verdict)
{
    struct buf b = {0};
    jput_open(&b, '{');
    jput_kstr(&b, "verdict", verdict);
    jput_kint(&b, "prompts", p->n);
    jput_kint(&b, "compared", p->compared);
    jput_kint(&b, "differ", p->differ);
    jput_kint(&b, "refused", p->refused);
    jput_kbool(&b, "drafting_proved", p->side[0].spec + p->side[1].spec > 0);
    if (p->graded) {
        jput_kint(&b, "graded", p->graded);
        jput_kint(&b, "answers_differ", p->answers_differ);
    }
    side_json(p, 0, &b);
    side_json(p, 1, &b);
    jput_close(&b, '}');
    cli_json(&b);
    buf_free(&b);
}

static void side_line(const struct side *s, struct sheet *out)
{
    sheet_printf(out, ST_BOLD, "%c", s->name);
    sheet_printf(out, ST_TEXT, "  %s: %lld token%s in %lld step%s", s->label, (long long)s->tokens,
                 plural((int)s->tokens), (long long)s->steps, plural((int)s->steps));
    if (s->spec)
        sheet_printf(out, ST_TEXT, ", %lld of them drafted, %lld of %lld drafted tokens accepted",
                     (long long)s->spec, (long long)s->accepted, (long long)s->drafted);
    else
        sheet_add(out, ST_TEXT, ", none drafted");
    if (s->at_limit)
        sheet_printf(out, ST_WARN, "; %d repl%s cut at a limit", s->at_limit,
                     s->at_limit == 1 ? "y" : "ies");
    sheet_line(out);
}

static void verdict_text(const struct parity *p, const char *verdict)
{
    struct sheet s;
    sheet_init(&s, p->c->opt.ascii);
    side_line(&p->side[0], &s);
    side_line(&p->side[1], &s);
    if (p->graded) {
        sheet_printf(&s, ST_TEXT, "answers: %d of %d right with a, %d with b; %d differ%s",
                     p->side[0].right, p->graded, p->side[1].right, p->answers_differ,
                     p->answers_differ == 1 ? "s" : "");
        sheet_line(&s);
    }
    bool good = strcmp(verdict, "equal") == 0;
    sheet_printf(&s, good ? ST_GOOD : ST_BAD, "%s", verdict);
    sheet_printf(&s, ST_TEXT, ": %d of %d prompt%s compared, %d differ%s", p->compared, p->n,
                 plural(p->n), p->differ, p->differ == 1 ? "s" : "");
    if (p->refused)
        sheet_printf(&s, ST_WARN, ", %d refused", p->refused);
    if (p->fault)
        sheet_printf(&s, ST_WARN, "; a fault of %c ended the run", p->fault_side);
    else if (p->signal)
        sheet_add(&s, ST_WARN, "; interrupted");
    if (p->compared && no_proof(p))
        sheet_add(&s, ST_WARN, "; no step drafted, so this says nothing about drafting");
    sheet_line(&s);
    cli_print(p->c, &s);
    sheet_free(&s);
}

int parity_verdict(const struct parity *p)
{
    bool all = p->compared + p->refused == p->n && !p->refused && !p->fault;
    const char *verdict = p->differ                    ? "different"
                          : p->compared && no_proof(p) ? "no proof"
                          : all                        ? "equal"
                                                       : "incomplete";
    if (p->c->opt.json)
        verdict_json(p, verdict);
    else
        verdict_text(p, verdict);
    int rc = p->differ ? ERR_NEGATIVE : strcmp(verdict, "equal") == 0 ? 0 : ERR_USAGE;
    return p->signal ? 128 + p->signal : p->fault ? (int)p->fault : rc;
}
