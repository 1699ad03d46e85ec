/* parity_report.c - the report of `aerie parity`: a line for each reply that differs, the sums of
 * all sides, which side stands alone, and the verdict. See parity.h. */
#include <math.h>

#include "repl/cli/parity.h"

/* ---- comparing ------------------------------------------------------------------------------- */

static struct reported_reply reported(const struct parity_reply *o)
{
    return (struct reported_reply){.ids = &o->ids,
                               .has_ids = o->ids.n > 0 || o->n_tokens == 0,
                               .text = o->text,
                               .ended = o->reason == STOP_END,
                               .counted = o->n_tokens};
}

void parity_compare(struct compared *c)
{
    const struct parity_reply *a = c->side[0], *b = c->side[1];
    struct reported_reply x = reported(a), y = reported(b);
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

/* The token at the first difference, under the side's name. */
static void print_at(const struct parity *p, const struct compared *c, int side,
                     const struct printer *to)
{
    const struct ids *ids = &c->side[side]->ids;
    struct backend *words = vocabulary(p, c, side);
    char name[2] = {p->side[c->of[side]].name};
    if (c->index >= ids->n) {
        print_none(to, name);
        print_add(to, ST_BAD, "the end (%s)", stop_name(c->side[side]->reason));
    } else {
        int32_t id = ids->v[c->index];
        size_t n = 0;
        const char *text = words ? backend_token(words, id, &n) : "";
        PRINT_IN(to, name, '{');
        print_add(to, ST_TEXT, "\f%d{token}", id);
        if (words)
            print_add(to, ST_TEXT, "\f%.*s{text}", (int)n, text);
        if (words && !to->json)
            sheet_quote(to->out, ST_BAD, text, n, 24);
        print_add(to, ST_TEXT, words ? " (%d)" : "token %d", id);
    }
    print_add(to, ST_TEXT, " with %s", name);
}

static void print_outcome(const struct parity_reply *o, const char *answer, char side,
                          const struct printer *to)
{
    char name[2] = {side};
    PRINT_IN(to, name, '{');
    if (o->refused)
        print_str(to, "error", o->why);
    else
        print_add(to, ST_TEXT, "\f%d{tokens}%d{steps}%d{drafting_steps}%d{drafted}%d{accepted}"
                  "%s{reason}", o->n_tokens, o->n_steps, o->n_spec, o->n_drafted, o->n_accepted,
                  stop_name(o->reason));
    if (answer && !o->refused)
        print_add(to, ST_TEXT, "\f%s{answer}%d{right?}", o->answer[0] ? o->answer : NULL,
                  strcmp(answer, o->answer) == 0);
}

static void add_prompt_id(const struct parity *p, const struct compared *c, int side,
                          const struct printer *to)
{
    const struct ids *ids = &c->side[side]->prompt;
    if (c->prompt_index < ids->n)
        print_add(to, ST_TEXT, "id %d with %c", ids->v[c->prompt_index], p->side[c->of[side]].name);
    else
        print_add(to, ST_TEXT, "the end (%d ids) with %c", ids->n, p->side[c->of[side]].name);
}

static void print_margins(const struct parity *p, const struct compared *c,
                          const struct printer *to)
{
    double at = margin_at(c);
    if (isfinite(at) && !p->servers)
        print_add(to, ST_TEXT, "; margin %.3g", at);
    if (p->servers)
        print_open(to, "margins", '[');
    for (int i = 0; i < 2 && p->servers; i++) {
        double m = margin_of(c, i);
        print_real(to, NULL, m);
        print_add(to, ST_TEXT, isfinite(m) ? "%s%.3g with %c" : "%snot reported\f%f\f with %c",
                  i ? ", " : "; margin ", m, p->side[c->of[i]].name);
    }
    if (p->servers)
        print_close(to, ']');
    print_real(to, "margin", at);
}

/* A side reported no ids: the first byte of the texts that differs. */
static void print_byte(const struct parity *p, const struct compared *c, const struct printer *to)
{
    print_add(to, ST_TEXT, " (line %d) differs at \f%d{byte}\fbyte %d of the reply's text: ",
              c->line, c->index, c->index + 1);
    for (int i = 0; i < 2; i++) {
        const char *rest = c->side[i]->text + c->index;
        if (*rest && !to->json)
            sheet_quote(to->out, ST_BAD, rest, strlen(rest), 24);
        else
            print_add(to, ST_BAD, "the end (%s)", stop_name(c->side[i]->reason));
        print_add(to, ST_TEXT, " with %c%s", p->side[c->of[i]].name, i ? "" : ", ");
    }
    print_add(to, ST_TEXT, "; a side reported no ids");
}

static void print_first(const struct parity *p, const struct compared *c, const struct printer *to)
{
    PRINT_IN(to, "first", '{');
    if (c->by_text) {
        print_byte(p, c, to);
    } else {
        print_add(to, ST_TEXT, " (line %d) differs at \f%d{index}\fposition %d{position}, "
                               "token %d of the reply: ", c->line, c->index,
                  c->side[0]->n_prompt + c->index, c->index + 1);
        print_at(p, c, 0, to);
        print_add(to, ST_TEXT, ", ");
        print_at(p, c, 1, to);
        print_margins(p, c, to);
    }
}

/* Where a side's prompt or reply departs from the first side's: a line, or members. */
static void print_pair(const struct parity *p, const struct compared *c, const struct printer *to)
{
    bool refused = c->side[0]->refused || c->side[1]->refused, prompts = c->prompt_index >= 0;
    print_add(to, ST_HEAD, "prompt %d", c->prompt);
    if (c->by_text)
        print_add(to, ST_TEXT, "\f%d{by_text?}", true);
    if (prompts)
        print_add(to, ST_TEXT, "\f%d{prompt_differs_at}", c->prompt_index);
    if (refused) {
        print_add(to, ST_WARN, " is refused%s: %s", c->index < 0 ? "" : " on one side only",
                  c->side[c->side[1]->refused]->why);
    } else if (prompts) {
        print_add(to, ST_TEXT, " (line %d) is another prompt on each side: at position %d ",
                  c->line, c->prompt_index);
        add_prompt_id(p, c, 0, to);
        print_add(to, ST_TEXT, ", ");
        add_prompt_id(p, c, 1, to);
        print_add(to, ST_TEXT, "; the replies %s", c->index < 0 ? "are equal" : "differ, too");
    }
    if (c->index >= 0 && !refused && (to->json || !prompts))
        print_first(p, c, to);
    print_end(to);
}

/* What programs get of each prompt. */
static void prompt_members(const struct parity *p, const struct compared pair[MAX_SIDES],
                           const struct parity_reply *const all[MAX_SIDES], bool refused,
                           const struct printer *to)
{
    bool equal = true;
    for (int k = 1; k < p->n_side; k++)
        equal = equal && !differs(&pair[k]);
    print_add(to, ST_TEXT, "\f%d{prompt}%d{line}%d{compared?}%d{equal?}", pair[1].prompt,
              pair[1].line, !refused, equal);
    for (int k = 0; k < p->n_side; k++)
        print_outcome(all[k], pair[1].answer, p->side[k].name, to);
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

/* One prompt: under --json each; else a line for each side that differs, or is refused. */
static void print_prompt(const struct parity *p, const struct compared pair[MAX_SIDES],
                         bool with[MAX_SIDES][MAX_SIDES],
                         const struct parity_reply *const all[MAX_SIDES])
{
    bool told = false, refused = false;
    for (int k = 0; k < p->n_side; k++)
        refused |= all[k]->refused;
    const struct printer *to = cli_answer(p->c, '{');
    prompt_members(p, pair, all, refused, to);
    for (int k = 1; k < p->n_side; k++) {
        char name[4] = {'a', '_', p->side[k].name};
        bool here = all[0]->refused || all[k]->refused;
        bool nested = p->n_side > 2 && differs(&pair[k]);
        bool shown = (here && !(told && pair[k].index < 0)) ||
                     (differs(&pair[k]) && !said_before(p, pair, with, k));
        if (!(to->json ? nested || p->n_side == 2 : shown))
            continue;
        told = true;
        if (nested)
            print_open(to, name, '{');
        print_pair(p, &pair[k], to);
        if (nested)
            print_close(to, '}');
    }
    cli_answer_end();
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
    if (!p->c->opt.json && (refused || any))
        cli_progress_end();
    print_prompt(p, pair, with, all);
    out_flush();
}

/* ---- the verdict ----------------------------------------------------------------------------- */

/* Whether a side is known to have drafted. */
static bool proved(const struct parity *p)
{
    bool any = false;
    FOR_EACH(const struct side, s, p->side, p->n_side)
        any |= s->spec > 0 || s->drafted > 0 || (s->metered && s->drafts.drafted > 0);
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

static const char *ies(int n)
{
    return n == 1 ? "y" : "ies";
}

/* If no request reports drafts: the counts from the server's metrics. */
static void server_drafts(const struct side *s, const struct printer *to)
{
    if (s->drafted)
        print_add(to, ST_TEXT, ", %ld of %ld drafted tokens accepted, as its replies report",
                  s->accepted, s->drafted);
    else if (s->metered)
        print_add(to, ST_TEXT, ", %ld of %ld drafted tokens accepted, by its metrics before and "
                  "after (all clients)", s->drafts.accepted, s->drafts.drafted);
    else
        print_add(to, ST_TEXT, ", drafting not reported");
}

static void print_server(const struct parity *p, const struct side *s, const struct printer *to)
{
    if (s->metered) {
        PRINT_IN(to, "metrics", '{');
        print_add(to, ST_TEXT, "\f%ld{drafts}%ld{drafted}%ld{accepted}", s->drafts.drafts,
                  s->drafts.drafted, s->drafts.accepted);
    }
    print_facts(to, ST_DIM, s->reset[0] ? "   %s{cache}" : "   prefix cache not emptied: "
                "nothing was computed\f%s{cache}", s->reset);
    if (p->c->control)
        print_facts(to, s->again_differ ? ST_WARN : ST_DIM, "   control: %d{computed_twice} repl%s "
                    "computed twice, %d{differ_from_itself} differ%s from the first time", s->again,
                    ies(s->again), s->again_differ, s->again_differ == 1 ? "s" : "");
}

/* Mean, tail and largest difference of log probabilities, and the estimate of the divergence,
 * unless nothing was compared. */
static void print_kl(struct kl *k, const char *key, const char *of, const struct printer *to)
{
    const struct kl_sum *s = &k->part[KL_ALL];
    if (s->n == 0)
        return;
    print_open(to, key, '{');
    print_add(to, ST_TEXT, "\f%ld{tokens}%ld{equal}%g{k3_mean}%g{k3_of_a_reply}%g{mean}%g{tail}"
              "%g{largest}", s->n, s->equal, kl_mean(s), k->k3_most, s->abs / (double)s->n,
              kl_below(k, 0.99), s->most);
    print_close(to, '}');
    if (!of)
        return;
    print_add(to, s->most > 0 ? ST_WARN : ST_DIM, "   %s: ", of);
    if (s->most > 0)
        print_note(to, ST_TEXT, "k3 mean %.3g, largest mean of a reply %.3g; |difference| mean "
                   "%.3g, 99 %% at most %.3g, largest %.3g (%ld tokens)", kl_mean(s), k->k3_most,
                   s->abs / (double)s->n, kl_below(k, 0.99), s->most, s->n);
    else
        print_note(to, ST_TEXT, "%ld tokens with equal log probabilities", s->n);
}

static void print_side(const struct parity *p, struct side *s, const struct printer *to)
{
    char name[2] = {s->name};
    PRINT_IN(to, name, '{');
    print_add(to, ST_BOLD, "%s\v  %s{changes}: %ld{tokens} token%s\f%ld{steps}%ld{drafting_steps}"
              "%ld{drafted}%ld{accepted}%d{at_limit}", name, s->label, s->tokens,
              plural((int)s->tokens), s->steps, s->spec, s->drafted, s->accepted, s->at_limit);
    if (!s->word || s->steps)
        print_add(to, ST_TEXT, " in %ld step%s", s->steps, plural((int)s->steps));
    if (s->word)
        server_drafts(s, to);
    else if (s->spec)
        print_add(to, ST_TEXT, ", %ld of them drafted, %ld of %ld drafted tokens accepted", s->spec,
                  s->accepted, s->drafted);
    else
        print_add(to, ST_TEXT, ", none drafted");
    if (s->at_limit)
        print_add(to, ST_WARN, "; %d repl%s cut at a limit", s->at_limit, ies(s->at_limit));
    print_end(to);
    side_drafts(s, to);
    if (p->n_side > 2) {
        int32_t n[MAX_SIDES];
        for (int k = 0; k < p->n_side; k++)
            n[k] = s->differ[k];
        print_ints(to, "differs_from", n, p->n_side);
        print_int(to, "alone", s->alone);
    }
    if (s->word)
        print_server(p, s, to);
    print_kl(&s->kl, "kl_against_a", s->kl.part[KL_ALL].most > 0 ? "kl against a" : NULL, to);
    print_kl(&s->read, "kl_as_a_prompt", "kl of replies read as prompts", to);
    if (p->graded)
        print_int(to, "right", s->right);
}

/* Which sides agree: a table of all pairs, and the side that stands alone. */
static void pairs_table(const struct parity *p, const struct printer *to)
{
    int alone = -1;
    if (p->n_side == 2)
        return;
    print_add(to, ST_HEAD, "%-14s", "differs from");
    for (int k = 0; k < p->n_side; k++)
        print_add(to, ST_HEAD, "%6c", p->side[k].name);
    print_note(to, ST_HEAD, "%8s", "alone");
    for (int i = 0; i < p->n_side; i++) {
        const struct side *s = &p->side[i];
        print_add(to, ST_BOLD, "%-14c", s->name);
        for (int k = 0; k < p->n_side; k++)
            print_add(to, s->differ[k] ? ST_BAD : ST_TEXT, "%6d{:-1}", k == i ? -1 : s->differ[k]);
        print_note(to, s->alone ? ST_BAD : ST_TEXT, "%8d", s->alone);
        if (s->alone > 0 && (alone < 0 || s->alone > p->side[alone].alone))
            alone = i;
    }
    if (alone < 0)
        return;
    print_add(to, ST_BAD, "%c stands alone", p->side[alone].name);
    print_note(to, ST_TEXT, " in %d of %d prompt%s that differ%s: %s", p->side[alone].alone,
               p->differ, plural(p->differ), p->differ == 1 ? "s" : "", p->side[alone].label);
}

static void print_answers(const struct parity *p, const struct printer *to)
{
    const struct side *a = &p->side[0], *b = &p->side[1];
    if (!p->graded)
        return;
    print_add(to, ST_TEXT, "answers: %d of %d right with a", a->right, p->graded);
    for (int k = 1; k < p->n_side; k++)
        print_add(to, ST_TEXT, ", %d with %c", p->side[k].right, p->side[k].name);
    print_add(to, ST_TEXT, "; %d differ%s", p->answers_differ, p->answers_differ == 1 ? "s" : "");
    if (a->right_only || b->right_only)
        print_add(to, ST_WARN, "; %d right only with a, %d right only with b", a->right_only,
                  b->right_only);
    print_end(to);
}

/* For a server: the log probabilities, and facts that could not be compared. */
static void print_servers(struct parity *p, const struct printer *to)
{
    int64_t n = logps(p);
    if (n && p->servers) {
        const struct side *s = farthest(p);
        double most = s->kl.part[KL_ALL].most;
        print_add(to, ST_TEXT, "log probabilities of %ld equal token%s: ", n, plural((int)n));
        print_note(to, ST_TEXT, most > 0 ? "differ by at most %.3g (prompt %d)" : "equal\f%f%d",
                   most, s->kl_prompt);
    }
    if (p->by_text)
        print_note(to, ST_WARN, "%d repl%s compared by text only: a side reported no ids",
                   p->by_text, p->by_text == 1 ? "y was" : "ies were");
    if (p->prompts_unknown)
        print_note(to, ST_WARN, "ids of %d prompt%s not compared: a side told none",
                   p->prompts_unknown, p->prompts_unknown == 1 ? " were" : "s were");
}

static void print_verdict(const struct parity *p, const char *verdict, bool equal,
                          const struct printer *to)
{
    print_add(to, equal ? ST_GOOD : ST_BAD, "%s", verdict);
    print_add(to, ST_TEXT, ": %d of %d prompt%s compared, %d differ%s", p->compared, p->n,
              plural(p->n), p->differ, p->differ == 1 ? "s" : "");
    if (p->refused)
        print_add(to, ST_WARN, ", %d refused", p->refused);
    if (p->fault)
        print_add(to, ST_WARN, "; a fault of %c ended the run", p->fault_side);
    else if (p->signal)
        print_add(to, ST_WARN, "; interrupted");
    if (p->compared && no_proof(p))
        print_add(to, ST_WARN, "; no step drafted, so this says nothing about drafting");
    else if (p->compared && p->servers && !proved(p))
        print_add(to, ST_WARN, "; no side reported drafts, so this says nothing about drafting");
    print_end(to);
}

/* What programs get of all prompts. */
static void sum_members(struct parity *p, const char *verdict, const struct printer *to)
{
    print_add(to, ST_TEXT, "\f%s{verdict}%d{prompts}%d{compared}%d{differ}%d{refused}"
              "%d{drafting_proved?}", verdict, p->n, p->compared, p->differ, p->refused, proved(p));
    if (p->servers)
        print_add(to, ST_TEXT, "\f%d{compared_by_text}%d{prompts_differ}%d{prompts_unknown}"
                  "%ld{log_probabilities}", p->by_text, p->prompts_differ, p->prompts_unknown,
                  logps(p));
    if (p->servers && logps(p))
        print_real(to, "log_probability_differs_by", farthest(p)->kl.part[KL_ALL].most);
    if (p->graded)
        print_add(to, ST_TEXT, "\f%d{graded}%d{answers_differ}", p->graded, p->answers_differ);
    if (p->graded && p->servers && p->n_side == 2)
        print_add(to, ST_TEXT, "\f%d{right_only_a}%d{right_only_b}", p->side[0].right_only,
                  p->side[1].right_only);
}

int parity_verdict(struct parity *p)
{
    bool all = p->compared + p->refused == p->n && !p->refused && !p->fault;
    bool unproved = p->compared && no_proof(p), equal = !p->differ && !unproved && all;
    const char *verdict = p->differ              ? "different"
                          : unproved             ? "no proof"
                          : equal && p->by_text  ? "equal text"
                          : equal                ? "equal"
                                                 : "incomplete";
    const struct printer *to = cli_answer(p->c, 0);
    print_open(to, NULL, '{');
    sum_members(p, verdict, to);
    for (int i = 0; i < p->n_side; i++)
        print_side(p, &p->side[i], to);
    print_answers(p, to);
    print_servers(p, to);
    print_close(to, '}');
    drafts_table(p, to);
    pairs_table(p, to);
    print_verdict(p, verdict, equal, to);
    cli_answer_end();
    int rc = p->differ ? ERR_NEGATIVE : equal ? 0 : ERR_USAGE;
    return p->signal ? 128 + p->signal : p->fault ? (int)p->fault : rc;
}
