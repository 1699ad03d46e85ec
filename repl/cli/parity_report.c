/* parity_report.c - the report of `aerie parity`: a line for each reply that differs, the sums of
 * all sides, which side stands alone, and the verdict. See parity.h. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/json.h"
#include "repl/cli/parity.h"

/* ---- comparing ------------------------------------------------------------------------------- */

static struct told_reply told(const struct parity_reply *o)
{
    return (struct told_reply){.ids = &o->ids,
                               .has_ids = o->ids.n > 0 || o->n_tokens == 0,
                               .text = o->text,
                               .ended = o->reason == STOP_END,
                               .counted = o->n_tokens};
}

void parity_compare(struct compared *c)
{
    const struct parity_reply *a = c->side[0], *b = c->side[1];
    struct told_reply x = told(a), y = told(b);
    int index = differ_replies(&x, &y, &c->by_text);
    c->index = a->refused != b->refused ? 0 : index;
    c->prompt_index = a->prompt.n && b->prompt.n && !a->refused && !b->refused
                          ? ids_differ_at(&a->prompt, &b->prompt)
                          : -1;
}

static bool differs(const struct compared *c)
{
    return c->index >= 0 || c->prompt_index >= 0;
}

/* ---- sums ------------------------------------------------------------------------------------ */

static bool at_limit(enum stop_reason r)
{
    return r == STOP_MAX || r == STOP_CONTEXT || r == STOP_KV_FULL;
}

static bool is_right(const struct compared *c, int side)
{
    return c->answer && strcmp(c->answer, c->side[side]->answer) == 0;
}

/* The log probabilities of one token on both sides, up to the first token that differs. */
static void note_logp(struct parity *p, const struct compared *c)
{
    const struct parity_reply *a = c->side[0], *b = c->side[1];
    struct kl *k = &p->side[c->of[1]].kl;
    int n = c->by_text || c->prompt_index >= 0 || !a->logp || !b->logp ? 0
            : c->index >= 0                                            ? c->index
                                                                       : a->ids.n;
    if (n)
        kl_add(k, &(struct kl_reply){.n_prompt = a->n_prompt, .n = n, .decoded = a->logp,
                                     .read = b->logp});
    if (k->most_reply == k->n_reply && n) /* the prompt's number in place of the reply's */
        p->side[c->of[1]].kl_prompt = c->prompt;
}

static void add_side(struct side *s, const struct parity_reply *o, const char *answer)
{
    s->tokens += o->n_tokens;
    s->steps += o->n_steps;
    s->spec += o->n_spec;
    s->drafted += o->n_drafted;
    s->accepted += o->n_accepted;
    s->at_limit += at_limit(o->reason);
    s->right += answer && strcmp(answer, o->answer) == 0;
}

/* Adds the pairs of one prompt: with[i][k] says that sides i and k differ. */
static void add_pairs(struct parity *p, bool with[MAX_SIDES][MAX_SIDES])
{
    for (int i = 0; i < p->n_side; i++) {
        bool alone = p->n_side > 2;
        for (int k = 0; k < p->n_side; k++) {
            p->side[i].differ[k] += with[i][k];
            alone = alone && (k == i || with[i][k]);
            for (int m = 0; m < k; m++)
                alone = alone && (m == i || k == i || !with[m][k]);
        }
        p->side[i].alone += alone;
    }
}

static void add_up(struct parity *p, const struct compared pair[MAX_SIDES], const char *answer,
                   const struct parity_reply *const all[MAX_SIDES])
{
    bool any = false, by_text = false, prompts = false, unknown = false, answers = false;
    for (int k = 1; k < p->n_side; k++) {
        any |= differs(&pair[k]);
        by_text |= pair[k].by_text;
        prompts |= pair[k].prompt_index >= 0;
        answers |= answer && strcmp(all[0]->answer, all[k]->answer) != 0;
        note_logp(p, &pair[k]);
    }
    for (int k = 0; k < p->n_side; k++) {
        unknown |= p->servers && !all[k]->prompt.n;
        add_side(&p->side[k], all[k], answer);
    }
    p->compared++;
    p->differ += any;
    p->by_text += by_text;
    p->prompts_differ += prompts;
    p->prompts_unknown += unknown;
    p->graded += answer != NULL;
    p->answers_differ += answers;
    for (int k = 0; answer && p->n_side == 2 && k < 2; k++)
        p->side[k].right_only += is_right(&pair[1], k) && !is_right(&pair[1], !k);
}

/* ---- one prompt ------------------------------------------------------------------------------ */

/* The backend that knows the texts of a side's tokens: its own engine, or, for a server, the local
 * engine if both sides have the same ids of the prompt. NULL: none does. */
static struct backend *vocabulary(const struct parity *p, const struct compared *c, int side)
{
    if (!p->servers)
        return p->same_tokens || c->of[side] == p->n_side - 1 ? p->g : NULL; /* opened last */
    bool agree = c->prompt_index < 0 && c->side[0]->prompt.n && c->side[1]->prompt.n;
    for (int i = 0; i < 2; i++)
        if (!p->side[c->of[i]].word && (i == side || agree))
            return p->own[c->of[i]];
    return NULL;
}

static double margin_of(const struct compared *c, int side)
{
    const struct parity_reply *o = c->side[side];
    bool known = !c->by_text && c->index >= 0 && c->index < o->ids.n && o->margin;
    return known ? (double)o->margin[c->index] : (double)NAN;
}

/* The margin at the first different id, from the first side that knows one; NAN: none does. */
static double margin_at(const struct compared *c)
{
    double a = margin_of(c, 0);
    return isnan(a) ? margin_of(c, 1) : a;
}

static void token_json(const struct parity *p, const struct compared *c, int side, struct buf *b)
{
    const struct ids *ids = &c->side[side]->ids;
    if (c->index >= ids->n) {
        jput_null(b);
        return;
    }
    struct backend *words = vocabulary(p, c, side);
    jput_open(b, '{');
    jput_kint(b, "token", ids->v[c->index]);
    if (words) {
        size_t n;
        const char *text = backend_token(words, ids->v[c->index], &n);
        jput_key(b, "text");
        jput_strn(b, text, n);
    }
    jput_close(b, '}');
}

static void outcome_json(const struct parity_reply *o, const char *answer, struct buf *b)
{
    jput_open(b, '{');
    if (o->refused) {
        jput_kstr(b, "error", o->why);
    } else {
        jput_fields(b, "%d{tokens}%d{steps}%d{drafting_steps}%d{drafted}%d{accepted}%s{reason}",
                    o->n_tokens, o->n_steps, o->n_spec, o->n_drafted, o->n_accepted,
                    stop_name(o->reason));
    }
    if (answer && !o->refused)
        jput_fields(b, "%s{answer}%d{right?}", o->answer[0] ? o->answer : NULL,
                    strcmp(answer, o->answer) == 0);
    jput_close(b, '}');
}

static void first_json(const struct parity *p, const struct compared *c, struct buf *b)
{
    jput_kopen(b, "first", '{');
    jput_kint(b, c->by_text ? "byte" : "index", c->index);
    if (!c->by_text) {
        jput_kint(b, "position", c->side[0]->n_prompt + c->index);
        for (int i = 0; i < 2; i++) {
            char name[2] = {p->side[c->of[i]].name};
            jput_key(b, name);
            token_json(p, c, i, b);
        }
        if (p->servers) {
            jput_kopen(b, "margins", '[');
            for (int i = 0; i < 2; i++)
                jput_real(b, margin_of(c, i));
            jput_close(b, ']');
        }
        jput_kreal(b, "margin", margin_at(c));
    }
    jput_close(b, '}');
}

/* Where a side's prompt or reply departs from the first side's. */
static void pair_json(const struct parity *p, const struct compared *c, struct buf *b)
{
    if (c->by_text)
        jput_kbool(b, "by_text", true);
    if (c->prompt_index >= 0)
        jput_kint(b, "prompt_differs_at", c->prompt_index);
    if (c->index >= 0 && !c->side[0]->refused && !c->side[1]->refused)
        first_json(p, c, b);
}

static void prompt_json(const struct parity *p, const struct compared pair[MAX_SIDES],
                        const struct parity_reply *const all[MAX_SIDES])
{
    const struct compared *c = &pair[1];
    struct buf b = {0};
    bool refused = false, equal = true;
    for (int k = 0; k < p->n_side; k++) {
        refused |= all[k]->refused;
        equal = equal && (k == 0 || !differs(&pair[k]));
    }
    jput_open(&b, '{');
    jput_fields(&b, "%d{prompt}%d{line}%d{compared?}%d{equal?}", c->prompt, c->line, !refused,
                equal);
    for (int k = 0; k < p->n_side; k++) {
        char name[2] = {p->side[k].name};
        jput_key(&b, name);
        outcome_json(all[k], c->answer, &b);
    }
    if (p->n_side == 2)
        pair_json(p, c, &b);
    for (int k = 1; p->n_side > 2 && k < p->n_side; k++) {
        char name[8] = {'a', '_', p->side[k].name};
        if (!differs(&pair[k]))
            continue;
        jput_kopen(&b, name, '{');
        pair_json(p, &pair[k], &b);
        jput_close(&b, '}');
    }
    jput_close(&b, '}');
    cli_json(&b);
    buf_free(&b);
}

static void add_token(const struct parity *p, const struct compared *c, int side, struct sheet *s)
{
    const struct ids *ids = &c->side[side]->ids;
    if (c->index >= ids->n) {
        sheet_printf(s, ST_BAD, "the end (%s)", stop_name(c->side[side]->reason));
    } else {
        struct backend *words = vocabulary(p, c, side);
        size_t n = 0;
        const char *text = words ? backend_token(words, ids->v[c->index], &n) : "";
        if (words)
            sheet_quote(s, ST_BAD, text, n, 24);
        sheet_printf(s, ST_TEXT, "%s%d%s", words ? " (" : "token ", ids->v[c->index],
                     words ? ")" : "");
    }
    sheet_printf(s, ST_TEXT, " with %c", p->side[c->of[side]].name);
}

static void add_prompt_id(const struct parity *p, const struct compared *c, int side,
                          struct sheet *s)
{
    const struct ids *ids = &c->side[side]->prompt;
    if (c->prompt_index < ids->n)
        sheet_printf(s, ST_TEXT, "id %d with %c", ids->v[c->prompt_index],
                     p->side[c->of[side]].name);
    else
        sheet_printf(s, ST_TEXT, "the end (%d ids) with %c", ids->n, p->side[c->of[side]].name);
}

static void add_margins(const struct parity *p, const struct compared *c, struct sheet *s)
{
    bool any = isfinite(margin_at(c));
    if (any && !p->servers)
        sheet_printf(s, ST_TEXT, "; margin %.3g", margin_at(c));
    for (int i = 0; i < 2 && p->servers; i++) {
        double m = margin_of(c, i);
        sheet_add(s, ST_TEXT, i ? ", " : "; margin ");
        if (isfinite(m))
            sheet_printf(s, ST_TEXT, "%.3g with %c", m, p->side[c->of[i]].name);
        else
            sheet_printf(s, ST_TEXT, "not reported with %c", p->side[c->of[i]].name);
    }
}

static void add_text(const struct parity *p, const struct compared *c, struct sheet *s)
{
    sheet_printf(s, ST_TEXT, " (line %d) differs at byte %d of the reply's text: ", c->line,
                 c->index + 1);
    for (int i = 0; i < 2; i++) {
        const char *rest = c->side[i]->text + c->index;
        if (*rest)
            sheet_quote(s, ST_BAD, rest, strlen(rest), 24);
        else
            sheet_printf(s, ST_BAD, "the end (%s)", stop_name(c->side[i]->reason));
        sheet_printf(s, ST_TEXT, " with %c%s", p->side[c->of[i]].name, i ? "" : ", ");
    }
    sheet_add(s, ST_TEXT, "; a side told no ids");
}

static void prompt_text(const struct parity *p, const struct compared *c)
{
    struct sheet s;
    sheet_init(&s, p->c->opt.ascii);
    sheet_printf(&s, ST_HEAD, "prompt %d", c->prompt);
    if (c->side[0]->refused || c->side[1]->refused) {
        const struct parity_reply *o = c->side[c->side[1]->refused];
        sheet_printf(&s, ST_WARN, " is refused%s: %s", c->index < 0 ? "" : " on one side only",
                     o->why);
    } else if (c->prompt_index >= 0) {
        sheet_printf(&s, ST_TEXT, " (line %d) is another prompt on each side: at position %d ",
                     c->line, c->prompt_index);
        add_prompt_id(p, c, 0, &s);
        sheet_add(&s, ST_TEXT, ", ");
        add_prompt_id(p, c, 1, &s);
        sheet_printf(&s, ST_TEXT, "; the replies %s", c->index < 0 ? "are equal" : "differ, too");
    } else if (c->by_text) {
        add_text(p, c, &s);
    } else {
        sheet_printf(&s, ST_TEXT, " (line %d) differs at position %d, token %d of the reply: ",
                     c->line, c->side[0]->n_prompt + c->index, c->index + 1);
        add_token(p, c, 0, &s);
        sheet_add(&s, ST_TEXT, ", ");
        add_token(p, c, 1, &s);
        add_margins(p, c, &s);
    }
    sheet_line(&s);
    cli_print(p->c, &s);
    sheet_free(&s);
}

/* Whether a side before k has the same reply as k, and differs from the first side where k does. */
static bool said_before(const struct parity *p, const struct compared pair[MAX_SIDES],
                        bool with[MAX_SIDES][MAX_SIDES], int k)
{
    for (int i = 1; i < k && i < p->n_side; i++)
        if (!with[i][k] && pair[i].index == pair[k].index)
            return true;
    return false;
}

void parity_report(struct parity *p, int prompt, int line, const char *answer,
                   const struct parity_reply *const all[MAX_SIDES])
{
    struct compared pair[MAX_SIDES];
    bool with[MAX_SIDES][MAX_SIDES] = {{0}}, refused = false, any = false;
    for (int k = 0; k < p->n_side; k++) {
        refused |= all[k]->refused;
        for (int i = 0; i < k; i++) {
            struct compared c = {.prompt = prompt, .line = line, .of = {i, k}, .answer = answer,
                                 .side = {all[i], all[k]}};
            parity_compare(&c);
            with[i][k] = with[k][i] = differs(&c);
            if (i == 0)
                pair[k] = c;
        }
        any |= with[0][k];
    }
    if (!refused) {
        add_up(p, pair, answer, all);
        add_pairs(p, with);
    }
    p->refused += refused;
    for (int k = 1, once = refused; once && k < p->n_side; k++)
        if (pair[k].index >= 0) {
            p->differ++;
            once = false;
        }
    if (p->c->opt.json)
        prompt_json(p, pair, all);
    else if (refused || any)
        cli_progress_end();
    bool told = false;
    for (int k = 1; !p->c->opt.json && k < p->n_side; k++) {
        bool here = all[0]->refused || all[k]->refused;
        if ((here && !(told && pair[k].index < 0)) ||
            (differs(&pair[k]) && !said_before(p, pair, with, k))) {
            prompt_text(p, &pair[k]);
            told = true;
        }
    }
    out_flush();
}

/* ---- the verdict ----------------------------------------------------------------------------- */

/* Whether a side is known to have drafted. */
static bool proved(const struct parity *p)
{
    bool any = false;
    for (int i = 0; i < p->n_side; i++) {
        const struct side *s = &p->side[i];
        any |= s->spec > 0 || s->drafted > 0 || (s->metered && s->drafts.drafted > 0);
    }
    return any;
}

/* Whether a side should draft and never did: equality then shows nothing about drafting. Always
 * false for a server, of which this is not known. */
static bool no_proof(const struct parity *p)
{
    bool asked = false;
    if (p->servers)
        return false;
    int64_t ran = 0;
    for (int i = 0; i < p->n_side; i++) {
        asked |= p->side[i].opts.settings.spec && p->side[i].opts.draft;
        ran += p->side[i].spec;
    }
    return asked && ran == 0;
}

static void server_json(const struct parity *p, const struct side *s, struct buf *b)
{
    if (s->metered) {
        jput_kopen(b, "metrics", '{');
        jput_fields(b, "%ld{drafts}%ld{drafted}%ld{accepted}", s->drafts.drafts, s->drafts.drafted,
                    s->drafts.accepted);
        jput_close(b, '}');
    }
    jput_kstr(b, "cache", s->reset);
    if (p->c->control)
        jput_fields(b, "%d{computed_twice}%d{differ_from_itself}", s->again, s->again_differ);
}

/* Mean, tail and largest difference of log probabilities, and the estimate of the divergence. */
static void kl_json(struct kl *k, const char *key, struct buf *b)
{
    const struct kl_sum *s = &k->part[KL_ALL];
    if (s->n == 0)
        return;
    jput_kopen(b, key, '{');
    jput_fields(b, "%ld{tokens}%ld{equal}%g{k3_mean}%g{k3_of_a_reply}%g{mean}%g{tail}%g{largest}",
                s->n, s->equal, kl_mean(s), k->k3_most, s->abs / (double)s->n, kl_below(k, 0.99),
                s->most);
    jput_close(b, '}');
}

static void side_json(struct parity *p, int i, struct buf *b)
{
    struct side *s = &p->side[i];
    char name[2] = {s->name};
    jput_kopen(b, name, '{');
    jput_fields(b, "%s{changes}%ld{tokens}%ld{steps}%ld{drafting_steps}%ld{drafted}%ld{accepted}"
                "%d{at_limit}", s->label, s->tokens, s->steps, s->spec, s->drafted, s->accepted,
                s->at_limit);
    parity_drafts_json(s, b);
    if (p->n_side > 2) {
        int32_t n[MAX_SIDES];
        for (int k = 0; k < p->n_side; k++)
            n[k] = s->differ[k];
        jput_key(b, "differs_from");
        jput_ints(b, n, p->n_side);
        jput_kint(b, "alone", s->alone);
    }
    kl_json(&s->kl, "kl_against_a", b);
    kl_json(&s->read, "kl_as_a_prompt", b);
    if (p->graded)
        jput_kint(b, "right", s->right);
    if (s->word)
        server_json(p, s, b);
    jput_close(b, '}');
}

/* The side whose log probabilities are the farthest from the first side's. */
static struct side *farthest(struct parity *p)
{
    struct side *s = &p->side[1];
    for (int k = 2; k < p->n_side; k++)
        if (p->side[k].kl.part[KL_ALL].most > s->kl.part[KL_ALL].most)
            s = &p->side[k];
    return s;
}

static int64_t logps(const struct parity *p)
{
    int64_t n = 0;
    for (int k = 1; k < p->n_side; k++)
        n += p->side[k].kl.part[KL_ALL].n;
    return n;
}

static void verdict_json(struct parity *p, const char *verdict)
{
    struct buf b = {0};
    jput_open(&b, '{');
    jput_fields(&b, "%s{verdict}%d{prompts}%d{compared}%d{differ}%d{refused}%d{drafting_proved?}",
                verdict, p->n, p->compared, p->differ, p->refused, proved(p));
    if (p->servers) {
        jput_fields(&b, "%d{compared_by_text}%d{prompts_differ}%d{prompts_unknown}"
                    "%ld{log_probabilities}", p->by_text, p->prompts_differ, p->prompts_unknown,
                    logps(p));
        if (logps(p))
            jput_kreal(&b, "log_probability_differs_by", farthest(p)->kl.part[KL_ALL].most);
    }
    if (p->graded) {
        jput_fields(&b, "%d{graded}%d{answers_differ}", p->graded, p->answers_differ);
        if (p->servers && p->n_side == 2) {
            jput_fields(&b, "%d{right_only_a}%d{right_only_b}", p->side[0].right_only,
                        p->side[1].right_only);
        }
    }
    for (int i = 0; i < p->n_side; i++)
        side_json(p, i, &b);
    jput_close(&b, '}');
    cli_json(&b);
    buf_free(&b);
}

/* If no request reports drafts: the counts from the server's metrics. */
static void server_drafts(const struct side *s, struct sheet *out)
{
    if (s->drafted)
        sheet_printf(out, ST_TEXT, ", %lld of %lld drafted tokens accepted, as its replies report",
                     (long long)s->accepted, (long long)s->drafted);
    else if (s->metered)
        sheet_printf(out, ST_TEXT,
                     ", %lld of %lld drafted tokens accepted, by its metrics before and after (all "
                     "clients)",
                     (long long)s->drafts.accepted, (long long)s->drafts.drafted);
    else
        sheet_add(out, ST_TEXT, ", drafting not reported");
}

static void server_lines(const struct parity *p, const struct side *s, struct sheet *out)
{
    sheet_line(out);
    sheet_printf(out, ST_DIM, "   %s",
                 s->reset[0] ? s->reset : "prefix cache not emptied: nothing was computed");
    if (!p->c->control)
        return;
    sheet_line(out);
    sheet_printf(out, s->again_differ ? ST_WARN : ST_DIM,
                 "   control: %d repl%s computed twice, %d differ%s from the first time", s->again,
                 s->again == 1 ? "y" : "ies", s->again_differ, s->again_differ == 1 ? "s" : "");
}

/* A line of kl figures, unless nothing was compared. */
static void kl_line(struct kl *k, const char *of, struct sheet *out)
{
    const struct kl_sum *s = &k->part[KL_ALL];
    if (s->n == 0)
        return;
    sheet_printf(out, s->most > 0 ? ST_WARN : ST_DIM, "   %s: ", of);
    if (s->most > 0)
        sheet_printf(out, ST_TEXT, "k3 mean %.3g, largest mean of a reply %.3g; |difference| mean "
                     "%.3g, 99 %% at most %.3g, largest %.3g (%lld tokens)", kl_mean(s), k->k3_most,
                     s->abs / (double)s->n, kl_below(k, 0.99), s->most, (long long)s->n);
    else
        sheet_printf(out, ST_TEXT, "%lld tokens with equal log probabilities", (long long)s->n);
    sheet_line(out);
}

static void side_line(const struct parity *p, struct side *s, struct sheet *out)
{
    sheet_printf(out, ST_BOLD, "%c", s->name);
    sheet_printf(out, ST_TEXT, "  %s: %lld token%s", s->label, (long long)s->tokens,
                 plural((int)s->tokens));
    if (!s->word || s->steps)
        sheet_printf(out, ST_TEXT, " in %lld step%s", (long long)s->steps, plural((int)s->steps));
    if (s->word)
        server_drafts(s, out);
    else if (s->spec)
        sheet_printf(out, ST_TEXT, ", %lld of them drafted, %lld of %lld drafted tokens accepted",
                     (long long)s->spec, (long long)s->accepted, (long long)s->drafted);
    else
        sheet_add(out, ST_TEXT, ", none drafted");
    if (s->at_limit)
        sheet_printf(out, ST_WARN, "; %d repl%s cut at a limit", s->at_limit,
                     s->at_limit == 1 ? "y" : "ies");
    if (s->word)
        server_lines(p, s, out);
    sheet_line(out);
    if (s->kl.part[KL_ALL].most > 0)
        kl_line(&s->kl, "kl against a", out);
    kl_line(&s->read, "kl of replies read as prompts", out);
}

/* Which sides agree: a table of all pairs, and the side that stands alone. */
static void pairs_table(const struct parity *p, struct sheet *out)
{
    int alone = -1;
    if (p->n_side == 2)
        return;
    sheet_printf(out, ST_HEAD, "%-14s", "differs from");
    for (int k = 0; k < p->n_side; k++)
        sheet_printf(out, ST_HEAD, "%6c", p->side[k].name);
    sheet_printf(out, ST_HEAD, "%8s", "alone");
    sheet_line(out);
    for (int i = 0; i < p->n_side; i++) {
        const struct side *s = &p->side[i];
        sheet_printf(out, ST_BOLD, "%-14c", s->name);
        for (int k = 0; k < p->n_side; k++)
            if (k == i)
                sheet_printf(out, ST_DIM, "%6s", "-");
            else
                sheet_printf(out, s->differ[k] ? ST_BAD : ST_TEXT, "%6d", s->differ[k]);
        sheet_printf(out, s->alone ? ST_BAD : ST_TEXT, "%8d", s->alone);
        sheet_line(out);
        if (s->alone > 0 && (alone < 0 || s->alone > p->side[alone].alone))
            alone = i;
    }
    if (alone < 0)
        return;
    sheet_printf(out, ST_BAD, "%c stands alone", p->side[alone].name);
    sheet_printf(out, ST_TEXT, " in %d of %d prompt%s that differ%s: %s", p->side[alone].alone,
                 p->differ, plural(p->differ), p->differ == 1 ? "s" : "", p->side[alone].label);
    sheet_line(out);
}

static void answers_line(const struct parity *p, struct sheet *out)
{
    const struct side *a = &p->side[0], *b = &p->side[1];
    if (!p->graded)
        return;
    sheet_printf(out, ST_TEXT, "answers: %d of %d right with a", a->right, p->graded);
    for (int k = 1; k < p->n_side; k++)
        sheet_printf(out, ST_TEXT, ", %d with %c", p->side[k].right, p->side[k].name);
    sheet_printf(out, ST_TEXT, "; %d differ%s", p->answers_differ,
                 p->answers_differ == 1 ? "s" : "");
    if (a->right_only || b->right_only)
        sheet_printf(out, ST_WARN, "; %d right only with a, %d right only with b", a->right_only,
                     b->right_only);
    sheet_line(out);
}

/* For a server: the log probabilities, and facts that could not be compared. */
static void servers_lines(struct parity *p, struct sheet *out)
{
    int64_t n = logps(p);
    if (n && p->servers) {
        const struct side *s = farthest(p);
        sheet_printf(out, ST_TEXT, "log probabilities of %lld equal token%s: ", (long long)n,
                     plural((int)n));
        if (s->kl.part[KL_ALL].most > 0)
            sheet_printf(out, ST_TEXT, "differ by at most %.3g (prompt %d)",
                         s->kl.part[KL_ALL].most, s->kl_prompt);
        else
            sheet_add(out, ST_TEXT, "equal");
        sheet_line(out);
    }
    if (p->by_text) {
        sheet_printf(out, ST_WARN, "%d repl%s compared by text only: a side told no ids",
                     p->by_text, p->by_text == 1 ? "y was" : "ies were");
        sheet_line(out);
    }
    if (p->prompts_unknown) {
        sheet_printf(out, ST_WARN, "ids of %d prompt%s not compared: a side told none",
                     p->prompts_unknown, p->prompts_unknown == 1 ? " were" : "s were");
        sheet_line(out);
    }
}

static void verdict_text(struct parity *p, const char *verdict)
{
    struct sheet s;
    sheet_init(&s, p->c->opt.ascii);
    for (int i = 0; i < p->n_side; i++)
        side_line(p, &p->side[i], &s);
    answers_line(p, &s);
    servers_lines(p, &s);
    parity_drafts(p, &s);
    pairs_table(p, &s);
    bool good = strncmp(verdict, "equal", 5) == 0;
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
    else if (p->compared && p->servers && !proved(p))
        sheet_add(&s, ST_WARN, "; no side reported drafts, so this says nothing about drafting");
    sheet_line(&s);
    cli_print(p->c, &s);
    sheet_free(&s);
}

int parity_verdict(struct parity *p)
{
    bool all = p->compared + p->refused == p->n && !p->refused && !p->fault;
    const char *verdict = p->differ                    ? "different"
                          : p->compared && no_proof(p) ? "no proof"
                          : all && p->by_text          ? "equal text"
                          : all                        ? "equal"
                                                       : "incomplete";
    if (p->c->opt.json)
        verdict_json(p, verdict);
    else
        verdict_text(p, verdict);
    int rc = p->differ ? ERR_NEGATIVE : strncmp(verdict, "equal", 5) == 0 ? 0 : ERR_USAGE;
    return p->signal ? 128 + p->signal : p->fault ? (int)p->fault : rc;
}
