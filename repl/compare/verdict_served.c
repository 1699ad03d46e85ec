/* verdict_served.c - the verdict if one of the two runs, or both, were computed by a server: see
 * verdict.h.
 *
 * Prompts are compared first, then the replies by position; as ids if both sides have them, else as
 * text. The band is measured on the local side: its margins under noise of the size of roundings,
 * given the same tokens. If both sides are servers, there is no band. */
#include <math.h>

#include <jansson.h>

#include "engine/tools/noise_backend.h"
#include "kernels/json_read.h"
#include "repl/compare/facts.h"
#include "repl/compare/judge.h"

/* ---- conditions ------------------------------------------------------------------------------ */

/* "vLLM 0.26.0", "aerie 0.9.0 on cpu". The caller frees. */
static char *computed_by(const char *about)
{
    FREED(free_at) char *kind = facts_value(about, "server_kind");
    FREED(free_at) char *version = facts_value(about, "server_version");
    FREED(free_at) char *server = facts_value(about, "server");
    FREED(free_at) char *aerie = facts_value(about, "version");
    FREED(free_at) char *device = facts_value(about, "backend");
    if (!facts_served(about))
        return xasprintf("aerie %s, %s", aerie ? aerie : AERIE_VERSION,
                         device ? device : "an unknown device");
    if (kind && *kind)
        return xasprintf("%s%s%s", kind, version && *version ? " " : "", version ? version : "");
    return xstrdup(server && *server ? server : "a server that is not named");
}

static void note_sampling(struct judge *j, const struct trace_turn *a, const struct trace_turn *b)
{
    static const struct {
        const char *name;
        unsigned may;
        bool greedy; /* it changes greedy choices, too */
    } same[] = {{"presence_penalty", MAY_SAMPLE, true},
                {"frequency_penalty", MAY_SAMPLE, true},
                {"repetition_penalty", MAY_SAMPLE, true},
                {"logit_bias", MAY_SAMPLE, true},
                {"temperature", MAY_SAMPLE, false},
                {"top_p", MAY_SAMPLE, false},
                {"top_k", MAY_SAMPLE, false},
                {"min_p", MAY_SAMPLE, false},
                {"seed", MAY_SAMPLE, false},
                {"max_tokens", MAY_END, true}};
    FREED(free_at) char *ta = facts_value(a->settings, "temperature"),
                        *tb = facts_value(b->settings, "temperature");
    double heat_a = ta ? strtod(ta, NULL) : 0, heat_b = tb ? strtod(tb, NULL) : 0;
    bool greedy = heat_a <= 0 && heat_b <= 0;
    j->r->sampled |= heat_a > 0 || (!j->r->forced && heat_b > 0);
    for (size_t i = 0; i < LEN(same); i++) {
        char *x = facts_value(a->settings, same[i].name),
             *y = facts_value(b->settings, same[i].name);
        bool counts = (!greedy || same[i].greedy) && !j->r->forced;
        if (x && y && counts && strcmp(x, y) != 0)
            conditions_add(&j->r->conditions, same[i].name, x, y, same[i].may);
        FREE(x, y);
    }
}

/* A fact of a run: for a server from the JSON object of its facts, else from a line of `about`.
 * NULL: not reported. The caller frees. */
static char *fact_value(const char *about, const char *name)
{
    if (!facts_served(about))
        return facts_value(about, name);
    char *facts = facts_value(about, "server_facts"), *value = NULL;
    json_t *all = facts ? json_parse(facts, strlen(facts), 0, NULL) : NULL,
        *v = json_object_get(all, name);
    if (json_is_string(v) && json_string_length(v))
        value = xstrdup(json_string_value(v));
    json_decref(all);
    free(facts);
    return value;
}

/* "bf16", "f32", ...; NULL: not reported. vLLM reports it within its configuration. */
static char *precision_of(const char *about)
{
    char *config = facts_served(about) ? fact_value(about, "vllm_config") : NULL;
    const char *at = config ? strstr(config, "dtype=torch.") : NULL;
    char *dtype = facts_served(about) ? fact_value(about, "dtype") : NULL,
         *precision = fact_value(about, "precision");
    char *out = precision ? xstrdup(precision) : dtype ? xstrdup(dtype) : NULL;
    if (!out && at)
        out = xasprintf("%.*s", (int)strcspn(at + 12, ", )'\""), at + 12);
    FREE(config, dtype, precision);
    if (out && (!strcmp(out, "bfloat16") || !strcmp(out, "float32")))
        memcpy(out, out[0] == 'b' ? "bf16" : "f32", out[0] == 'b' ? 5 : 4);
    return out;
}

/* Notes a fact that both sides report with different values. */
static bool note_fact(struct judge *j, const char *name, char *a, char *b, unsigned may)
{
    bool same = a && b && strcmp(a, b) == 0;
    if (a && b && !same)
        conditions_add(&j->r->conditions, name, a, b, may);
    FREE(a, b);
    return same;
}

/* Whether the sides are the same build of aerie with the same weights on the same kind of device:
 * then every bit must agree. */
static bool note_facts(struct judge *j, const char *a, const char *b)
{
    bool same =
        note_fact(j, "weights", fact_value(a, "model_sha"), fact_value(b, "model_sha"), MAY_LOGITS);
    same &= note_fact(j, "precision", precision_of(a), precision_of(b), MAY_ROUND);
    same &= note_fact(j, "kv", fact_value(a, "kv"), fact_value(b, "kv"), MAY_ROUND);
    same &= note_fact(j, "backend", fact_value(a, "backend"), fact_value(b, "backend"), MAY_ROUND);
    char *build[2] = {fact_value(a, facts_served(a) ? "build" : "flags"),
                      fact_value(b, facts_served(b) ? "build" : "flags")};
    return note_fact(j, "build", build[0], build[1], MAY_BUILD) && same;
}

static void note_turn(struct judge *j, const struct trace_turn *a, const struct trace_turn *b)
{
    const struct trace_turn *t[] = {a, b};
    char *by[2], *model[2];
    for (int i = 0; i < 2; i++) {
        by[i] = computed_by(t[i]->about);
        model[i] = facts_value(t[i]->about, "model_dir");
    }
    if (strcmp(by[0], by[1]) != 0)
        conditions_add(&j->r->conditions, "computed by", by[0], by[1], MAY_ROUND);
    j->exact = note_facts(j, a->about, b->about) && j->exact;
    if (j->served[0] && j->served[1] && model[0] && model[1] && *model[0] && *model[1] &&
        strcmp(model[0], model[1]) != 0)
        conditions_add(&j->r->conditions, "model", model[0], model[1], MAY_LOGITS);
    note_sampling(j, a, b);
    for (int i = 0; i < 2; i++)
        FREE(by[i], model[i]);
}

static void note_conditions(struct judge *j)
{
    int n = min_int(j->t[0]->n, j->t[1]->n);
    j->exact = n > 0;
    for (int i = 0; i < n; i++)
        note_turn(j, &j->t[0]->turn[i], &j->t[1]->turn[i]);
}

/* Reports which sides do not report what they computed with. */
static void say_unreported(struct judge *j)
{
    for (int i = 0; i < 2; i++) {
        const char *about = j->t[i]->n ? j->t[i]->turn[0].about : "";
        char *weights = fact_value(about, "model_sha"), *precision = precision_of(about);
        if (j->served[i] && !weights)
            report_say(j->r,
                       "%s does not report its weights%s: a model of the same name is taken for "
                       "the same model", j->ask->who[i], precision ? "" : " or its precision");
        FREE(weights, precision);
    }
}

/* ---- tokens ---------------------------------------------------------------------------------- */

/* Whether token i of the reply was given by hand instead of being chosen. */
static bool by_hand(const struct trace_turn *t, int i)
{
    int at;
    const struct step_row *s = trace_token(t, i, &at);
    return s && at < s->rec.forced;
}

/* The trace of a side: for the local side that of the new run, which has all facts. */
static const struct trace_turn *turn_with_facts(const struct judge *j, int side, int i)
{
    bool again = side == j->local && i < j->base.trace.n;
    return again ? &j->base.trace.turn[i] : &j->t[side]->turn[i];
}

static void note_logp(struct judge *j, const struct token_fact *x, const struct token_fact *y,
                      int turn, int token)
{
    struct diff_counts *n = &j->r->counts;
    if (!x || !y || isnan(x->logp) || isnan(y->logp))
        return;
    MAKE_ROOM(j->logp, n->n_logp);
    j->logp[n->n_logp] = fabs((double)x->logp - (double)y->logp);
    counts_logp(n, x->logp, y->logp, turn, token);
    n->facts = true;
}

static struct reported_reply reported(const struct trace_turn *t)
{
    return (struct reported_reply){.ids = &t->reply,
                               .has_ids = t->reply.n || (!t->no_text && !*t->text),
                               .text = t->no_text ? NULL : t->text,
                               .ended = t->stop == STOP_END,
                               .counted = t->n_reply};
}

/* The token of a reply at which the sides part: what each of them chose, by which margin. */
static void note_parting(struct report *r, int token, const int step[2], const int32_t chosen[2],
                         double a, double b)
{
    r->diff.token = token;
    memcpy(r->diff.step, step, sizeof r->diff.step);
    r->has_margin = true;
    memcpy(r->chosen, chosen, sizeof r->chosen);
    r->margins[0] = a;
    r->margins[1] = b;
}

static void compare_replies(struct judge *j, int index, const struct trace_turn *a,
                            const struct trace_turn *b)
{
    struct report *r = j->r;
    struct reported_reply x = reported(a), y = reported(b);
    bool by_text;
    if (!(x.has_ids && y.has_ids) && !(x.text && y.text)) {
        j->no_reply++;
        return;
    }
    int at = differ_replies(&x, &y, &by_text), n = min_int(a->reply.n, b->reply.n), step[2];
    j->no_ids += by_text;
    r->counts.text_only |= by_text;
    if (by_text && at >= 0)
        differ_set(&r->diff, DIFF_REPLY, "the texts differ at byte %d: \"%.40s\" %s, \"%.40s\" %s",
                   at, a->text + at, j->ask->names.a, b->text + at, j->ask->names.b);
    for (int i = 0; i < n && !by_text; i++) {
        const struct token_fact *f = trace_fact(turn_with_facts(j, 0, index), i, &step[0]);
        const struct token_fact *g = trace_fact(turn_with_facts(j, 1, index), i, &step[1]);
        if (i == at) {
            const int32_t chosen[] = {a->reply.v[i], b->reply.v[i]};
            differ_set(&r->diff, DIFF_LOGITS, "token %d is %d %s, %d %s", i, chosen[0],
                       j->ask->names.a, chosen[1], j->ask->names.b);
            j->by_hand = by_hand(a, i) || by_hand(b, i);
            r->steered = j->by_hand || facts_steered(a->settings) || facts_steered(b->settings);
            note_parting(r, i, step, chosen, margin_of(f), margin_of(g));
            return;
        }
        note_logp(j, f, g, a->n, i);
        r->counts.tokens++;
    }
    if (at == n && !by_text && !a->cut && !b->cut)
        differ_set(&r->diff, DIFF_REPLY, "%d tokens %s (%s), %d %s (%s)", a->reply.n,
                   j->ask->names.a, stop_name(a->stop), b->reply.n, j->ask->names.b,
                   stop_name(b->stop));
}

static bool compare_prompts(struct judge *j, const struct trace_turn *a, const struct trace_turn *b)
{
    j->no_prompt += !a->prompt.n || !b->prompt.n;
    return differ_prompts(a, b, &j->ask->names, &j->r->diff);
}

static void compare(struct judge *j)
{
    struct difference *d = &j->r->diff;
    const struct trace *a = j->t[0], *b = j->t[1];
    for (int i = 0; i < min_int(a->n, b->n) && !d->class; i++) {
        const struct trace_turn *x = &a->turn[i], *y = &b->turn[i];
        d->index = i;
        d->turn = x->n;
        if (compare_prompts(j, x, y))
            break;
        compare_replies(j, i, x, y);
        j->r->counts.turns += !d->class;
    }
    if (!d->class)
        differ_numbers_of_turns(a, b, &j->ask->names, d);
}

/* ---- forced: the local engine is given the server's prompts and tokens ----------------------- */

/* The token that the local engine would have chosen in place of a given one. */
static bool parts(const struct token_fact *f)
{
    return f && f->rival >= 0 && f->rival_logp > f->logp;
}

/* The first token that the local engine would not choose. If the server's own numbers prefer
 * another one, too, the choices differ, not the numbers. */
static void note_choice(struct judge *j, const struct trace_turn *a, int i, const int step[2],
                        const struct token_fact *f, const struct token_fact *g)
{
    struct difference *d = &j->r->diff;
    const int32_t chosen[] = {a->reply.v[i], g->rival};
    bool own = margin_of(f) < 0 && !j->r->sampled; /* not if it is not known */
    differ_set(d, own ? DIFF_SAMPLER : DIFF_LOGITS, "token %d is %d %s, %d would be chosen %s", i,
               chosen[0], j->ask->names.a, chosen[1], j->ask->names.b);
    d->turn = a->n;
    d->token = i;
    memcpy(d->step, step, sizeof d->step);
    if (!own)
        note_parting(j->r, i, step, chosen, margin_of(f), -margin_of(g));
    else
        report_say(j->r, "token %d is not the best by its own log's numbers, either: what chose it "
                         "the log does not name (a default bias or penalty of the server, the form "
                         "of the reply, or a fault of the sampler)", i);
}

static void forced_turn(struct judge *j, const struct trace_turn *a, const struct trace_turn *b)
{
    struct report *r = j->r;
    int step[2], n = min_int(a->reply.n, trace_emitted(b));
    bool changed = n && facts_steered(a->settings);
    j->n_steered += changed;
    for (int i = 0; i < n; i++) {
        const struct token_fact *f = trace_fact(a, i, &step[0]), *g = trace_fact(b, i, &step[1]);
        note_logp(j, f, g, a->n, i);
        r->given++;
        if (changed || by_hand(a, i) || !parts(g) || r->parts++ || r->diff.class)
            continue;
        note_choice(j, a, i, step, f, g);
    }
    if (n < a->reply.n)
        report_say(j->r, "turn %d: only %d of %d tokens were given: %s", a->n, n, a->reply.n,
                   *b->fault ? b->fault : stop_name(b->stop));
}

/* Whether a pack has neither the text of a prompt nor its ids: the tokens of the reply were given
 * after another prompt here. */
static bool lost_prompt(const struct trace_turn *t)
{
    return t->no_text && !t->prompt.n;
}

static void forced_prompt(struct judge *j, const struct trace_turn *a, const struct trace_turn *b)
{
    if (a->prompt.n)
        return;
    j->rendered++;
    if (a->n_prompt >= 0 && a->n_prompt != b->prompt.n)
        report_say(j->r,
                   "turn %d: the prompt rendered here has %d tokens, the server counted %lld: "
                   "another chat template or tokenizer", a->n, b->prompt.n, (long long)a->n_prompt);
}

static void compare_forced(struct judge *j)
{
    for (int i = 0; i < min_int(j->t[0]->n, j->t[1]->n); i++) {
        const struct trace_turn *a = &j->t[0]->turn[i], *b = &j->t[1]->turn[i];
        if (lost_prompt(a)) {
            j->no_prompt++;
            continue;
        }
        forced_prompt(j, a, b);
        j->no_ids += !a->reply.n && *a->text;
        j->r->counts.turns += a->reply.n > 0;
        forced_turn(j, a, b);
    }
    j->r->counts.tokens = j->r->given;
}

/* ---- the band -------------------------------------------------------------------------------- */

/* A lower bound of the movement of one token's margin between the sides; NAN: not known. f, g:
 * facts of the token from the server and from the local side; best: the server chooses the token of
 * the largest log probability. */
static double movement(bool best, const struct token_fact *f, const struct token_fact *g)
{
    double s = margin_of(f), l = margin_of(g);
    if (isnan(l))
        return (double)NAN;
    /* the server chose its best token: the margin is not negative */
    if (isnan(s) && best)
        return l < 0 ? -l : (double)NAN;
    return fabs(s - l);
}

/* Fills in the movements between the sides of the tokens up to the first difference. */
static void find_moves(const struct judge *j, const struct band *b, double *moved)
{
    const struct trace *other = j->t[!j->local];
    const struct difference *d = &j->r->diff;
    bool best = false;
    for (int i = 0; i < b->n; i++) {
        const struct band_token *p = &b->at[i];
        const struct trace_turn *t = p->index < other->n ? &other->turn[p->index] : NULL;
        if (p->token == 0)
            best = t && !j->r->sampled && !facts_steered(t->settings);
        bool past = !j->r->forced && d->class &&
                    (p->index > d->index ||
                     (p->index == d->index && (d->token < 0 || p->token >= d->token)));
        bool known = t && !past && p->token < t->reply.n && !lost_prompt(t);
        moved[i] = known ? movement(best && !by_hand(t, p->token), trace_fact(t, p->token, NULL),
                                    trace_fact(&b->base->turn[p->index], p->token, NULL))
                         : (double)NAN;
    }
}

/* Runs the local side with noise and judges. */
static void judge_by_band(struct judge *j)
{
    struct report *r = j->r;
    FREED(band_free) struct band b = {0};
    int far = -1;
    band_begin(&b, &j->base.trace);
    FREED(free_at) double *moved = xcalloc((size_t)b.n + 1, sizeof *moved);
    find_moves(j, &b, moved);
    struct band_ask ask = {.side = j->local,
                           .given = j->t[j->local],
                           .size = NOISE_BF16,
                           .moved = moved,
                           .parting = r->sampled || r->steered ? 0 : parting_of(r),
                           .clear = 4 * FAR_MARGIN}; /* servers compute in 16 bits */
    if (judge_band(j, &b, &ask, &far)) {
        bool there = band_parts(j, &b, ask.parting);
        if (far >= 0 || there)
            r->verdict = VERDICT_BEYOND;
        else if (r->diff.class == DIFF_LOGITS && !r->sampled && !r->steered)
            r->verdict = VERDICT_WITHIN;
    }
}

/* ---- the verdict ----------------------------------------------------------------------------- */

static void judge_logs(struct judge *j)
{
    struct report *r = j->r;
    unsigned may = r->conditions.may;
    switch (r->diff.class) {
    case DIFF_NONE:
        r->verdict = (r->forced && !r->given) || j->no_reply ? VERDICT_OPEN : VERDICT_EQUAL;
        break;
    case DIFF_PROMPT:
    case DIFF_MESSAGE: r->verdict = VERDICT_OTHER; break;
    case DIFF_REPLY: r->verdict = may & MAY_END ? VERDICT_PURPOSE : VERDICT_OPEN; break;
    default: r->verdict = VERDICT_OPEN; break;
    }
    if (r->diff.class == DIFF_LOGITS && r->sampled)
        report_say(j->r, "the replies were sampled: the sides draw other random numbers, so "
                         "another token is no difference of the numbers");
    else if (r->diff.class == DIFF_LOGITS && r->steered)
        report_say(j->r, "where the tokens part, one was given by hand, or penalties or biases "
                         "changed the logits: the margins of log probabilities decide nothing");
    if (j->n_steered)
        report_say(j->r, "penalties or biases changed the logits of %d repl%s: only log "
                         "probabilities were compared there", j->n_steered,
                   j->n_steered == 1 ? "y" : "ies");
}

static void say_ids(struct judge *j)
{
    if (j->no_prompt)
        report_say(j->r, "the prompts' ids are not known on both sides for %d turn%s: whether the "
                   "prompts were the same is not known", j->no_prompt, plural(j->no_prompt));
    if (j->rendered)
        report_say(j->r, "the server reported no ids of %d prompt%s: rendered by the local chat "
                   "template", j->rendered, plural(j->rendered));
    if (j->no_ids && j->r->forced)
        report_say(
            j->r,
            "the server reported no ids of %d repl%s: nothing was given to the local engine there",
            j->no_ids, j->no_ids == 1 ? "y" : "ies");
    else if (j->no_ids)
        report_say(j->r, "a side reported no ids of %d repl%s: the texts were compared", j->no_ids,
                   j->no_ids == 1 ? "y" : "ies");
    if (j->no_reply)
        report_say(j->r, "neither ids nor text of %d repl%s are known on both sides: not compared",
                   j->no_reply, j->no_reply == 1 ? "y" : "ies");
    if (j->r->forced && !j->r->given)
        report_say(j->r, "so nothing was compared");
    if (j->r->counts.n_logp == 0 && j->r->counts.tokens)
        report_say(j->r, "log probabilities are not known on both sides");
}

/* If both sides are the same build: they must agree in every bit, without a band. */
static void judge_exact(struct judge *j)
{
    struct report *r = j->r;
    if (r->verdict == VERDICT_OTHER)
        return;
    report_say(j->r, "the server is the same build of aerie with the same weights on the same kind "
                     "of device, which computes the same bits: the band is 0");
    bool alike = !r->sampled && !j->by_hand && !(r->conditions.may & MAY_SAMPLE); /* chosen */
    if (r->counts.most > 0 || (r->diff.class == DIFF_LOGITS && alike))
        r->verdict = VERDICT_BEYOND;
}

/* Runs the local side again, given its tokens, with the strict checker. */
static bool run_base(struct judge *j, const struct trace *given, struct err *e)
{
    struct run_ask ask = {.forced = given, .plain = true, .strict = true, .row = -1, .layer = -1};
    bool ok = judge_run(j, j->local, &ask, &j->base, "given the same tokens", e);
    judge_rule(j, j->local, &j->base, "on the local side");
    if (ok)
        judge_checked(j, "on the local side", j->base.checks);
    return ok;
}

static bool judge_forced(struct judge *j, struct err *e)
{
    j->local = 1;
    if (!run_base(j, j->t[0], e))
        return false;
    j->t[1] = &j->base.trace;
    note_conditions(j);
    compare_forced(j);
    return true;
}

static void judge_two(struct judge *j)
{
    struct err e;
    j->local = j->ask->log_only ? -1 : !j->served[0] ? 0 : !j->served[1] ? 1 : -1;
    if (j->local >= 0 && !run_base(j, j->t[j->local], &e))
        j->local = -1;
    note_conditions(j);
    compare(j);
    if (j->served[0] && j->served[1] && j->r->diff.class == DIFF_LOGITS)
        report_say(j->r, "both sides are servers, so no band can be measured here");
}

bool judge_served(struct judge *j, struct err *e)
{
    const struct verdict_ask *ask = j->ask;
    struct report *r = j->r;
    r->served = true;
    r->forced = ask->forced;
    r->diff.token = -1;
    r->counts.by_position = true;
    r->counts.most_turn = -1;
    if (!ask->forced && !ask->log_b)
        return err_set(e, ERR_USAGE, "a server's session cannot be computed again here with "
                       "changes; --forced gives its tokens to the local engine");
    j->served[0] = trace_served(ask->log_a);
    j->served[1] = ask->log_b && trace_served(ask->log_b);
    if (ask->forced && !j->served[0])
        return err_set(e, ERR_USAGE, "--forced compares a server's session with the local engine; "
                       "this one was computed locally");
    if (!ask->forced)
        judge_two(j);
    else if (!judge_forced(j, e))
        return false;
    r->n_logp = (int)r->counts.n_logp;
    r->logp_median = median(j->logp, r->n_logp);
    judge_conditions(j);
    say_unreported(j);
    say_ids(j);
    judge_logs(j);
    if (j->exact && r->n_logp)
        judge_exact(j);
    else if (j->local >= 0 && !ask->no_band && r->verdict != VERDICT_OTHER &&
             (r->counts.tokens || r->has_margin))
        judge_by_band(j);
    return true;
}
