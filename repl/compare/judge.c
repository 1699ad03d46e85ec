/* judge.c - see judge.h. */
#include "repl/compare/judge.h"
#include "kernels/sort.h"

#include <math.h>

/* ---- runs ------------------------------------------------------------------------------------ */

bool judge_run(struct judge *j, int side, const struct run_ask *ask, struct run_facts *f,
               const char *what, struct err *e)
{
    if (j->ask->progress)
        j->ask->progress(j->ask->arg, what);
    bool ok = side_run(&j->side[side], ask, f, e);
    if (!ok)
        report_say(j->r, "%s cannot be run again here: %.300s", j->ask->who[side], e->msg);
    return ok;
}

void judge_rule(struct judge *j, int side, const struct run_facts *f, const char *where)
{
    struct report *r = j->r;
    if (!f->rule[0] || r->rule[0])
        return;
    snprintf(r->rule, sizeof r->rule, "%s", f->rule);
    r->rule_turn = f->rule_turn;
    r->rule_step = f->rule_step;
    r->rule_side = side;
    report_say(r, "a rule is violated %s at step %d.%d: %s", where, r->rule_turn, r->rule_step,
               r->rule);
}

/* ---- sentences ------------------------------------------------------------------------------- */

void judge_conditions(struct judge *j)
{
    FREED(buf_free) struct buf text = {0}, may = {0};
    const struct conditions *c = &j->r->conditions;
    /* that two logs are of other builds is reported where it matters */
    unsigned other = MAY_FAULT | (j->r->served ? 0u : (unsigned)MAY_BUILD);
    conditions_text(c, ~other, &text);
    may_text(c->may & ~other, &may);
    if (text.n)
        report_say(j->r, "%s: %.300s, which may change %.120s",
                   j->r->served ? "other conditions" : "changed", text.p, may.p);
    else if (!j->r->served)
        report_say(j->r,
                   "nothing was changed that may change a number, a page, a draft or a choice");
    text.n = 0;
    conditions_text(c, MAY_FAULT, &text);
    if (text.n)
        report_say(j->r, "a historical fault is switched: %.200s", text.p);
}

void judge_checked(struct judge *j, const char *where, uint64_t checks)
{
    if (!j->r->rule[0] && checks)
        report_say(j->r, "no rule is violated %s: %llu plans checked strictly", where,
                   (unsigned long long)checks);
}

static void say_band(struct judge *j, const struct band *b, const struct band_ask *of, int far)
{
    struct report *r = j->r;
    double moved = parting_of(r);
    report_say(r, "noise band: %d runs of %s with noise of %.2g of each element that enters a "
               "product, given the same tokens: margins move by %.3g", r->noise_runs,
               j->ask->who[of->side], (double)r->noise, b->usual);
    if (r->worst > 0)
        report_say(r, "between the sides the margins of the same tokens move by at most %.2g bands "
                   "(turn %d, token %d)", r->worst, r->worst_turn, r->worst_token);
    if (moved > 0 && !r->sampled && !r->steered)
        report_say(r, "where the choices part, the margin moved by %.3g or more: %.2g bands", moved,
                   moved / fmax(r->band, 1e-12));
    if (far >= 0)
        report_say(r, "the margin of token %d of turn %d lies far beyond the band",
                   b->at[far].token, b->at[far].turn);
}

/* ---- statistics ------------------------------------------------------------------------------ */

double median(const double *v, int n)
{
    FREED(free_at) double *s = xcalloc((size_t)n + 1, sizeof *s);
    int k = 0;
    for (int i = 0; i < n; i++)
        if (!isnan(v[i]))
            s[k++] = v[i];
    sort_up(s, k);
    return k ? s[k / 2] : 0;
}

double margin_of(const struct token_fact *f)
{
    return f ? (double)f->logp - (double)f->rival_logp : (double)NAN;
}

/* ---- the band -------------------------------------------------------------------------------- */

void band_begin(struct band *b, const struct trace *base)
{
    *b = (struct band){.base = base};
    for (int i = 0; i < base->n; i++)
        b->n += trace_emitted(&base->turn[i]);
    b->at = xcalloc((size_t)b->n + 1, sizeof *b->at);
    b->rms = xcalloc((size_t)b->n + 1, sizeof *b->rms);
    for (int i = 0, k = 0; i < base->n; i++)
        for (int token = 0, n = trace_emitted(&base->turn[i]); token < n; token++)
            b->at[k++] = (struct band_token){i, base->turn[i].n, token,
                                             margin_of(trace_fact(&base->turn[i], token, NULL))};
}

void band_free(struct band *b)
{
    FREE(b->at, b->rms);
    *b = (struct band){0};
}

/* The margin of a token over the rival that it has in the base. If its rival is another one, only
 * its own log probability is compared. */
static double margin_over(const struct token_fact *f, const struct token_fact *base)
{
    return f->rival == base->rival ? margin_of(f)
                                   : (double)f->logp - (double)base->logp + margin_of(base);
}

void band_moves(const struct band *b, const struct trace *t, double *moved)
{
    for (int i = 0; i < b->n; i++) {
        const struct band_token *p = &b->at[i];
        const struct trace_turn *x = &b->base->turn[p->index];
        const struct trace_turn *y = p->index < t->n ? &t->turn[p->index] : NULL;
        int at_x, at_y;
        const struct step_row *s = trace_token(x, p->token, &at_x);
        const struct step_row *with = trace_token(y, p->token, &at_y);
        moved[i] = (double)NAN;
        if (isnan(p->margin) || !with)
            continue;
        moved[i] = with->facts && with->tokens.v[at_y] == s->tokens.v[at_x]
                       ? margin_over(&with->facts[at_y], &s->facts[at_x]) - p->margin
                       : (double)INFINITY;
    }
}

static double width(const struct band *b, int i)
{
    return fmax(fmax(b->rms[i], b->usual), 1e-12);
}

/* The band of a token; the median token's if the base has no such token. */
static double band_at(const struct band *b, int turn, int token)
{
    for (int i = 0; i < b->n; i++)
        if (b->at[i].turn == turn && b->at[i].token == token)
            return width(b, i);
    return b->usual;
}

/* Adds runs with noise until there are `upto`; b->rms holds sums of squares until they are done. */
static bool add_runs(struct judge *j, struct band *b, const struct band_ask *of, int upto)
{
    FREED(free_at) double *moved = xcalloc((size_t)b->n + 1, sizeof *moved);
    bool ok = true;
    for (int i = 0; i < b->n; i++)
        b->rms[i] *= b->rms[i] * b->runs;
    for (; ok && b->runs < upto; b->runs++) {
        struct run_ask ask = {.forced = of->given, .plain = true, .noise = of->size,
                              .seed = (uint64_t)b->runs + 1, .row = -1, .layer = -1};
        FREED(run_facts_free) struct run_facts f = {0};
        struct err e;
        ok = judge_run(j, of->side, &ask, &f, "with noise", &e);
        band_moves(b, &f.trace, moved);
        for (int i = 0; i < b->n; i++)
            b->rms[i] += isfinite(moved[i]) ? moved[i] * moved[i] : 0;
    }
    for (int i = 0; i < b->n; i++)
        b->rms[i] = sqrt(b->rms[i] / max_int(1, b->runs));
    b->usual = median(b->rms, b->n);
    return ok;
}

/* The first token whose margin moved too far; -1: none. Fills in the worst one. */
static int first_far(struct report *r, const struct band *b, const double *moved)
{
    int first = -1;
    r->worst = 0;
    for (int i = 0; i < b->n; i++) {
        double far = fabs(moved[i]) / width(b, i);
        if (far > r->worst) {
            r->worst = far;
            r->worst_turn = b->at[i].turn;
            r->worst_token = b->at[i].token;
        }
        if (far > FAR_MARGIN && first < 0)
            first = i;
    }
    return first;
}

bool band_parts(const struct judge *j, const struct band *b, double parting)
{
    return parting > FAR_MARGIN * band_at(b, j->r->diff.turn, j->r->diff.token);
}

double parting_of(const struct report *r)
{
    double sum = 0;
    for (int i = 0; i < 2; i++)
        sum += r->has_margin && !isnan(r->margins[i]) ? fabs(r->margins[i]) : 0;
    return sum;
}

bool judge_band(struct judge *j, struct band *b, const struct band_ask *of, int *first)
{
    struct report *r = j->r;
    if (!b->n || !add_runs(j, b, of, NOISE_LEAST))
        return false;
    *first = first_far(r, b, of->moved);
    bool parts = band_parts(j, b, of->parting);
    double most = parts ? of->parting / band_at(b, r->diff.turn, r->diff.token) : 0;
    bool clear = of->clear > 0 && fmax(r->worst, most) >= of->clear;
    if ((*first >= 0 || parts) && !clear && add_runs(j, b, of, NOISE_MOST))
        *first = first_far(r, b, of->moved);
    r->noise_runs = b->runs;
    r->noise = of->size;
    r->band = r->has_margin ? band_at(b, r->diff.turn, r->diff.token) : b->usual;
    say_band(j, b, of, *first);
    return true;
}
