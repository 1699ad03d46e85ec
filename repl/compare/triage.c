/* triage.c - weighs the causes of low acceptance. See triage.h.
 *
 * A reading of the head that hits more of the same tokens is evidence by the size of its gain
 * against the greatest gain of any reading. That the session drafted otherwise than the same head
 * does on the same tokens is evidence against the running engine, not against the head. What the
 * settings say is a suspicion only, until a measurement shows its effect. */
#include "repl/compare/triage.h"

#include <math.h>
#include <stdarg.h>

/* A gain counts if it is this many points, and this many standard errors from 0. */
#define LEAST_GAIN 0.012
#define SURE 2.5
/* From this weight on a cause is named. */
#define NAMED 30

enum { FEWEST = 20 }; /* cycles */

static const struct {
    const char *name, *about;
} causes[N_CAUSES] = {
    [CAUSE_LAYERS] = {"layers", "the head reads other layers than it was trained on"},
    [CAUSE_NORM] = {"norm", "a norm of the head is missing, misplaced or of another kind"},
    [CAUSE_ROPE] = {"rope", "the head's rope: base, scaling or positions"},
    [CAUSE_IDS] = {"ids", "the head's ids mean other tokens (d2t, draft vocabulary)"},
    [CAUSE_TOKENIZER] = {"tokenizer", "the head was trained with another tokenizer"},
    [CAUSE_EMBED] = {"embedding", "the head's embedding is not the target's"},
    [CAUSE_STALE] = {"stale", "captured states of another step or position"},
    [CAUSE_PAGES] = {"pages", "the draft reads or writes pages of another pool or table"},
    [CAUSE_CELLS] = {"quantized", "quantized cells or weights"},
    [CAUSE_CONTEXT] = {"context", "the context is longer than the head was trained for"},
    [CAUSE_WINDOW] = {"window", "the head sees too much or too little of the context"},
    [CAUSE_TEMPLATE] = {"template", "prompts are not in the model's chat format"},
    [CAUSE_SAMPLING] = {"sampling", "sampling, a penalty or a bias chooses other tokens than a "
                        "greedy draft guesses"},
    [CAUSE_SHAPE] = {"shape", "trees are too short, or their rows are misread"},
    [CAUSE_OTHER] = {"other head", "a head for another model, or one that is hardly trained"},
};

const char *triage_cause_name(enum triage_cause c)
{
    return causes[c].name;
}

const char *triage_cause_about(enum triage_cause c)
{
    return causes[c].about;
}

/* ---- notes ----------------------------------------------------------------------------------- */

struct judging {
    const struct triage *t;
    struct cause_found c[N_CAUSES];
    double most; /* the greatest gain of a reading that counts */
};

__attribute__((format(printf, 4, 0))) static void vnote(struct judging *j, enum triage_cause c,
                                                        bool against, const char *fmt, va_list ap)
{
    struct cause_found *f = &j->c[c];
    if (f->n == TRIAGE_EVIDENCE)
        return;
    struct evidence *e = &f->evidence[f->n++];
    e->against = against;
    vsnprintf(e->text, sizeof e->text, fmt, ap);
}

static void weigh(struct judging *j, enum triage_cause c, double weight)
{
    j->c[c].weight = fmax(j->c[c].weight, fmin(weight, 100));
}

/* Evidence for a cause, which from then on has at least this weight. */
__attribute__((format(printf, 4, 5))) static void pro(struct judging *j, enum triage_cause c,
                                                      double weight, const char *fmt, ...)
{
    WITH_ARGS(ap, fmt, vnote(j, c, false, fmt, ap));
    weigh(j, c, weight);
}

__attribute__((format(printf, 3, 4))) static void con(struct judging *j, enum triage_cause c,
                                                      const char *fmt, ...)
{
    WITH_ARGS(ap, fmt, vnote(j, c, true, fmt, ap));
}

__attribute__((format(printf, 3, 4))) static void confirm(struct judging *j, enum triage_cause c,
                                                          const char *fmt, ...)
{
    PRINT_ARGS(j->c[c].confirm, fmt);
}

static double percent(int part, int whole)
{
    return whole ? 100.0 * part / whole : 0;
}

/* ---- readings -------------------------------------------------------------------------------- */

static const enum triage_cause cause_of[N_READINGS_OF] = {
    [READ_AS_IS] = N_CAUSES,       [READ_LAYERS] = CAUSE_LAYERS, [READ_NORM] = CAUSE_NORM,
    [READ_ROPE] = CAUSE_ROPE,      [READ_WINDOW] = CAUSE_WINDOW, [READ_EMBED] = CAUSE_EMBED,
    [READ_IDS] = CAUSE_IDS,        [READ_STALE] = CAUSE_STALE,   [READ_TOKEN] = CAUSE_STALE,
    [READ_HEAD] = CAUSE_IDS,
};

/* Points gained by a reading, if it is `sure` standard errors from none; else 0. By first guesses,
 * or by the length of chains, each sure by itself or both together: they are correlated by about a
 * half. */
static double gain_at(const struct redraft *re, const struct reading *r, double sure)
{
    int d = r->won - r->lost, n = r->won + r->lost;
    double first = r->tokens ? (double)d / r->tokens : 0, chain = 0;
    double sure_first = n ? d / sqrt(n) : 0, sure_chain = r->error > 0 ? r->longer / r->error : 0;
    bool both = d > 0 && sure_chain > 1 && (sure_first + sure_chain) / sqrt(3) >= sure;
    if (r->cycles && re->chain_steps)
        chain = r->longer / re->chain_steps;
    if (sure_first < sure && !both)
        first = 0;
    if (sure_chain < sure && !both)
        chain = 0;
    return fmax(first < LEAST_GAIN ? 0 : first, chain < LEAST_GAIN ? 0 : chain);
}

/* That of a reading that counts. */
static double gain_of(const struct redraft *re, const struct reading *r)
{
    return gain_at(re, r, SURE);
}

bool triage_is_open(const struct triage *t)
{
    bool any = false;
    for (int i = 1; i < t->re.n; i++)
        any |= gain_of(&t->re, &t->re.r[i]) == 0 && gain_at(&t->re, &t->re.r[i], SURE / 2) > 0;
    return any;
}

static const struct reading *best_of(const struct judging *j, enum reading_of of)
{
    const struct redraft *re = &j->t->re;
    const struct reading *best = NULL;
    for (int i = 1; i < re->n; i++)
        if (re->r[i].of == of && (!best || gain_of(re, &re->r[i]) > gain_of(re, best) ||
                                  (gain_of(re, &re->r[i]) == gain_of(re, best) &&
                                   mul64(re->r[i].hits, best->tokens) >
                                       mul64(best->hits, re->r[i].tokens))))
            best = &re->r[i];
    return best;
}

/* By how much of what is missing a gain explains, and beside the greatest gain. */
static double weight_of(const struct judging *j, double gain)
{
    const struct redraft *re = &j->t->re;
    double right = re->tokens ? (double)re->r[0].hits / re->tokens : 0;
    double missing = fmax(0.05, 0.9 - right);
    return gain > 0 ? (20 + 80 * fmin(1, 2 * gain / missing)) * (0.5 + 0.5 * gain / j->most) : 0;
}

/* The cause of a reading, with the numbers for or against it. */
static void judge_reading(struct judging *j, enum reading_of of)
{
    const struct redraft *re = &j->t->re;
    const struct reading *r = best_of(j, of);
    enum triage_cause c = cause_of[of];
    if (!r)
        return;
    double gain = gain_of(re, r);
    bool chain = r->cycles && gain > 0 && gain > (double)(r->won - r->lost) / r->tokens;
    double is = percent(r->hits, r->tokens), was = percent(r->hits - r->won + r->lost, r->tokens);
    if (of == READ_WINDOW && gain > 0 && re->max_pos < re->longest)
        weigh(j, CAUSE_CONTEXT, weight_of(j, gain) - 1);
    weigh(j, c, weight_of(j, gain));
    if (chain)
        pro(j, c, 0, "%s: chains of %d are %.2f tokens longer (%.1f standard errors)", r->what,
            re->chain_steps, r->longer, r->longer / r->error);
    if (gain > 0 && r->won > r->lost)
        pro(j, c, 0, "%s: %.1f %% of first guesses right, as configured %.1f %% (%d won, %d lost)",
            r->what, is, was, r->won, r->lost);
    if (gain == 0)
        con(j, c, "no gain by %s: %.1f %% of first guesses right, as configured %.1f %%", r->what,
            is, was);
}

static void judge_readings(struct judging *j)
{
    const struct redraft *re = &j->t->re;
    for (int i = 1; i < re->n; i++)
        j->most = fmax(j->most, gain_of(re, &re->r[i]));
    for (int of = READ_AS_IS + 1; of < N_READINGS_OF; of++)
        judge_reading(j, (enum reading_of)of);
    if (re->constant[0])
        pro(j, CAUSE_NORM, 85, "weights that never were trained or loaded: %.180s", re->constant);
}

/* ---- what the ids mean ----------------------------------------------------------------------- */

static void judge_ids(struct judging *j)
{
    const struct redraft *re = &j->t->re;
    double learnt = percent(re->map_hits, re->map_tokens),
           as_is = percent(re->map_as_is, re->map_tokens);
    if (re->map_tokens >= 20 && learnt > as_is + 20) {
        pro(j, CAUSE_IDS, NAMED + 10 + 0.6 * (learnt - as_is), "where the head guesses an id "
            "again, the target's choice is the same other token in %.0f %%, the id's own in %.0f "
            "%% (%d tokens)", learnt, as_is, re->map_tokens);
        pro(j, CAUSE_TOKENIZER, 0.6 * (learnt - as_is), "the head's ids are used as if they were "
            "other tokens");
    } else if (re->map_tokens >= 20) {
        con(j, CAUSE_IDS, "no map of ids would do better: %.0f %% where an id is guessed again, as "
            "it is %.0f %%", learnt, as_is);
    }
    if (re->of_tokenizer[0])
        pro(j, CAUSE_TOKENIZER, 95, "%.200s", re->of_tokenizer);
    if (!isnan(re->embed_other) && re->embed_other > 0.95 && re->embed_alike < 0.5) {
        pro(j, CAUSE_TOKENIZER, 92, "rows of the head's embedding are the target's rows of other "
            "ids (cosine %.2f; of the same ids %.2f)", re->embed_other, re->embed_alike);
    }
    if (!isnan(re->embed_alike) && re->embed_alike < 0.5)
        pro(j, CAUSE_EMBED, 0, "the head's own embedding is unlike the target's: cosine %.2f",
            re->embed_alike);
    else if (!isnan(re->embed_alike))
        con(j, CAUSE_EMBED, "the head's own embedding is the target's: cosine %.2f",
            re->embed_alike);
    else if (re->tokens && !re->has_embed)
        con(j, CAUSE_EMBED, "the head uses the target's embedding");
}

/* ---- the running engine ---------------------------------------------------------------------- */

/* Rules that say which step's or row's states go on; the others are about pages and extents. */
static bool of_states(int rule)
{
    return rule == 19 || rule == 20 || rule == 14 || rule == 15;
}

static void judge_engine(struct judging *j)
{
    const struct triage *t = j->t;
    const struct redraft *re = &t->re;
    double same = percent(re->tokens ? re->r[0].same : 0, re->logged), lost = 100 - same;
    const struct reading *stale = best_of(j, READ_STALE), *token = best_of(j, READ_TOKEN);
    if (re->logged >= FEWEST && lost > 3) {
        pro(j, CAUSE_PAGES, fmin(100, 45 + lost), "the same head on the same tokens guesses "
            "otherwise than the session did in %.0f %% of %d cycles: the running engine is at "
            "fault, not the head", lost, re->logged);
        pro(j, CAUSE_STALE, fmin(95, 40 + lost), "the session's guesses are not those of the head "
            "on the committed states: %.0f %% differ", lost);
    } else if (re->logged >= FEWEST) {
        con(j, CAUSE_PAGES, "the session's guesses are those of the head on the same tokens: "
            "%.0f %% of %d", same, re->logged);
    }
    for (int i = 0; i < 2; i++) {
        const struct reading *r = i ? token : stale;
        int d = r ? r->same_won - r->same_lost : 0;
        if (r && re->logged >= FEWEST && d > SURE * sqrt(r->same_won + r->same_lost)) {
            pro(j, CAUSE_STALE, 100, "%s: %.0f %% of the session's guesses come out, with the "
                "right ones %.0f %%", r->what, percent(r->same, re->logged), same);
        }
    }
    if (t->drafting && t->log.drafts.cycles == 0) {
        pro(j, CAUSE_PAGES, 55, "drafting was on, and none of %llu steps drafted",
            (unsigned long long)t->log.plain);
        pro(j, CAUSE_STALE, 45, "drafting was on, and the head had no state to guess from");
    }
    if (t->rule[0]) {
        enum triage_cause c = of_states(t->rule_number) ? CAUSE_STALE : CAUSE_PAGES;
        pro(j, c, 100, "%s: %.170s", t->rule_again ? "run again with the checker" : "in the log",
            t->rule);
    }
    if (t->faults[0]) {
        pro(j, CAUSE_PAGES, 25, "historical faults were on: %.150s", t->faults);
        pro(j, CAUSE_STALE, 24, "historical faults were on: %.150s", t->faults);
    }
}

/* Whether `b` is above `a` beyond chance: two shares of counts. */
static bool above(int a, int of_a, int b, int of_b)
{
    if (!of_a || !of_b)
        return false;
    double p = (double)a / of_a, q = (double)b / of_b, m = (double)(a + b) / (of_a + of_b);
    double error = sqrt(fmax(m * (1 - m), 1e-9) * (1.0 / of_a + 1.0 / of_b));
    return q - p > LEAST_GAIN && q - p > SURE * error;
}

/* Of a session whose guesses are not known, as a server's: the head here is right much more often
 * than the session's drafts were accepted. Readings that would be right as rarely are suspects. */
static void judge_elsewhere(struct judging *j)
{
    const struct triage *t = j->t;
    const struct redraft *re = &t->re;
    const struct draft_sums *s = &t->log.drafts;
    double right = re->tokens ? (double)re->r[0].hits / re->tokens : 0, was = accepted_at(s, 1);
    if (t->temperature > 0 || t->steered || re->logged >= FEWEST || s->cycles < FEWEST ||
        right < was + 0.1 ||
        !above((int)s->depth[1].accepted, (int)s->cycles, re->r[0].hits, re->tokens))
        return;
    pro(j, CAUSE_PAGES, 52, "the head here is right in %.0f %% of the same tokens, the session's "
        "drafts were in %.0f %%: what drafted there reads something else", 100 * right, 100 * was);
    for (int i = 1; i < re->n; i++) {
        const struct reading *r = &re->r[i];
        double rate = percent(r->hits, r->tokens) / 100, off = fabs(rate - was);
        if (off > 0.08 || rate > right - 0.1)
            continue;
        pro(j, cause_of[r->of], 75 - 300 * off, "%s: the head here would be right in %.0f %%, too",
            r->what, 100 * rate);
    }
}

static void judge_undone(struct judging *j, enum triage_cause c, const struct undone *u,
                         const char *now)
{
    const struct redraft *re = &j->t->re;
    if (!u->known || !re->tokens)
        return;
    double was = percent(re->r[0].hits, re->tokens), is = percent(u->hits, u->tokens);
    if (above(re->r[0].hits, re->tokens, u->hits, u->tokens)) {
        pro(j, c, NAMED + 10 + 60 * fmin(1, (is - was) / fmax(5, 100 * j->most)), "%s: %.1f %% of "
            "first guesses right, %s %.1f %%", u->what, is, now, was);
    } else {
        con(j, c, "%s: %.1f %% of first guesses right, %s %.1f %%", u->what, is, now, was);
    }
}

static void judge_cells(struct judging *j)
{
    const struct triage *t = j->t;
    if (t->cells[0])
        pro(j, CAUSE_CELLS, 20, "cells are stored as %s", t->cells);
    if (t->weights[0])
        pro(j, CAUSE_CELLS, 18, "weights are quantized: %s", t->weights);
    if (!t->cells[0] && !t->weights[0] && !t->server)
        con(j, CAUSE_CELLS, "neither cells nor weights were quantized");
    judge_undone(j, CAUSE_CELLS, &t->plain, "quantized");
}

static void judge_template(struct judging *j)
{
    const struct triage *t = j->t;
    if (t->raw)
        pro(j, CAUSE_TEMPLATE, 25, "the session had no chat format (--raw)");
    if (t->other_prompts) {
        pro(j, CAUSE_TEMPLATE, 28, "%d of %d prompts are not what the %s format makes of the "
            "message", t->other_prompts, t->prompts, t->format_name);
    } else if (t->prompts) {
        con(j, CAUSE_TEMPLATE, "the prompt is what the %s format makes of the message",
            t->format_name);
    }
    judge_undone(j, CAUSE_TEMPLATE, &t->format, "as in the session");
}

/* ---- context and window ---------------------------------------------------------------------- */

/* First guesses that were right in contexts below `n` and from n on: as configured. */
static void split_at(const struct redraft *re, int n, int hits[2], int of[2])
{
    hits[0] = hits[1] = of[0] = of[1] = 0;
    for (int k = 0; k < DRAFT_RANGES; k++) {
        int far = draft_range_first(k) >= n;
        hits[far] += re->r[0].hits_at[k];
        of[far] += re->tokens_at[k];
    }
}

static void judge_context(struct judging *j)
{
    const struct triage *t = j->t;
    const struct redraft *re = &t->re;
    int hits[2], of[2], at = 0;
    bool falls = false;
    if (!re->tokens)
        return;
    for (int k = 1; k < DRAFT_RANGES && !falls; k++) {
        at = draft_range_first(k);
        split_at(re, at, hits, of);
        falls = above(hits[1], of[1], hits[0], of[0]) &&
                percent(hits[0], of[0]) - percent(hits[1], of[1]) > 10;
    }
    if (falls) {
        pro(j, CAUSE_CONTEXT, 32, "first guesses right: %.0f %% below a context of %d, %.0f %% "
            "from there on", percent(hits[0], of[0]), at, percent(hits[1], of[1]));
        pro(j, CAUSE_WINDOW, 31, "first guesses fall with the context: %.0f %%, then %.0f %% from "
            "%d on", percent(hits[0], of[0]), percent(hits[1], of[1]), at);
    } else {
        con(j, CAUSE_CONTEXT, "first guesses do not fall with the length of the context");
    }
    if (t->log.longest > re->max_pos) {
        pro(j, CAUSE_CONTEXT, falls ? 80 : 27, "the head's max_position_embeddings is %d, the "
            "context reached %d", re->max_pos, t->log.longest);
    } else {
        con(j, CAUSE_CONTEXT, "the context reached %d of the head's %d positions",
            t->log.longest, re->max_pos);
    }
    if (re->window || t->sees) {
        pro(j, CAUSE_WINDOW, 15, "the head sees the newest %d positions only",
            t->sees ? t->sees : re->window);
    }
}

/* ---- sampling and shape ---------------------------------------------------------------------- */

static void judge_sampling(struct judging *j)
{
    const struct triage *t = j->t;
    const struct accepted *a = &t->log;
    const struct redraft *re = &t->re;
    double share = ratio(a->sampled_away, a->judged),
           right = re->tokens ? (double)re->r[0].hits / re->tokens : 0;
    if (t->temperature == 0 && !t->steered) {
        con(j, CAUSE_SAMPLING, "the replies were greedy");
        return;
    }
    if (t->temperature > 0)
        pro(j, CAUSE_SAMPLING, 12, "temperature %g", t->temperature);
    if (t->steered)
        pro(j, CAUSE_SAMPLING, 12, "penalties or biases changed the logits");
    if (a->judged >= FEWEST) {
        if (share > 0.2) {
            pro(j, CAUSE_SAMPLING, fmin(NAMED - 2, 10 + 70 * share), "in %.0f %% of the rejections "
                "the guess was the target's best token, and %s chose another", 100 * share,
                t->temperature == 0 ? "a penalty or bias" : "sampling");
            if (share > 0.4 || (re->tokens && right > accepted_at(&a->drafts, 1) + 0.1))
                weigh(j, CAUSE_SAMPLING, NAMED + 70 * share);
        } else {
            con(j, CAUSE_SAMPLING, "in %.0f %% of the rejections only the guess was the target's "
                "best token", 100 * share);
        }
    }
    if (re->tokens && a->drafts.cycles)
        pro(j, CAUSE_SAMPLING, 0, "against the target's best tokens %.0f %% of first guesses are "
            "right, against the chosen ones %.0f %%", percent(re->r[0].hits, re->tokens),
            100 * accepted_at(&a->drafts, 1));
}

static void judge_shape(struct judging *j)
{
    const struct triage *t = j->t;
    const struct accepted *a = &t->log;
    double beside = ratio(a->beside, a->judged),
           ended = ratio(a->ended, a->trees);
    if (a->judged < FEWEST)
        return;
    if (beside > 0.35) {
        pro(j, CAUSE_SHAPE, 20 + 50 * beside, "in %.0f %% of the rejections the chosen token was "
            "in the tree, in another place", 100 * beside);
    } else {
        con(j, CAUSE_SHAPE, "in %.0f %% of the rejections only the chosen token was in another "
            "place of the tree", 100 * beside);
    }
    if (ended > 0.5) {
        pro(j, CAUSE_SHAPE, a->depth <= 2 ? 25 : 8, "%.0f %% of the drafts were accepted to their "
            "end: longer ones would pay (draft.steps %d)", 100 * ended, a->depth);
    }
    const struct redraft *re = &t->re;
    int second = 0;
    for (int k = 2; k <= 4 && re->tokens; k++)
        second += re->rank[k];
    if (re->tokens && t->topk <= 1)
        pro(j, CAUSE_SHAPE, 0, "%.0f %% of the target's choices are the second to fourth guess: "
            "trees with draft.topk 4 would hold them", percent(second, re->tokens));
}

/* ---- the head itself, and what only counters say --------------------------------------------- */

static void judge_head(struct judging *j)
{
    const struct redraft *re = &j->t->re;
    if (!re->tokens)
        return;
    const struct triage *t = j->t;
    double right = percent(re->r[0].hits, re->tokens);
    double best = right + 100 * j->most;
    best = fmax(best, percent(t->format.hits, t->format.tokens));
    best = fmax(best, percent(t->greedy.hits, t->greedy.tokens));
    if (right < 45 && best < 45) {
        pro(j, CAUSE_OTHER, 45 + 45 - best, "%.0f %% of first guesses are right, and no reading of "
            "the head makes them more than %.0f %%", right, best);
    } else {
        con(j, CAUSE_OTHER, "%.0f %% of first guesses are right%s", best,
            best > right + 1 ? " at best" : "");
    }
}

/* The fingerprints of counters: levels and shapes of the rates by depth. */
static void judge_counters(struct judging *j)
{
    const struct triage *t = j->t;
    const struct draft_sums *s = &t->log.drafts;
    double first = accepted_at(s, 1), second = accepted_after(s, 2), fall = 0;
    if (t->re.tokens || !s->cycles || !t->per_depth)
        return;
    for (int d = 3; d < TREE_MAX && s->depth[d].accepted; d++)
        fall = fmax(fall, second - accepted_after(s, d));
    if (first < 0.5 && second > first + 0.25) {
        char mixed[160];
        snprintf(mixed, sizeof mixed, "position 1 is accepted in %.0f %%, but position 2 after it "
                                      "in %.0f %%: the head guesses some of the text well and the "
                                      "rest not at all", 100 * first, 100 * second);
        pro(j, CAUSE_TEMPLATE, 72, "%s", mixed);
        if (t->temperature != 0)
            pro(j, CAUSE_SAMPLING, 62, "%s", mixed);
        weigh(j, CAUSE_LAYERS, 30);
    } else if (first < 0.12) {
        pro(j, CAUSE_LAYERS, first < 0.01 ? 55 : 70, "position 1 is accepted in %.1f %%: as with "
            "states of wrong layers", 100 * first);
        pro(j, CAUSE_OTHER, first < 0.01 ? 50 : 60, "position 1 is accepted in %.1f %%: as with a "
            "head for another model", 100 * first);
        pro(j, CAUSE_PAGES, first < 0.01 ? 70 : 40, "position 1 is accepted in %.1f %%%s",
            100 * first, first < 0.01 ? ": below 1 %, as where the draft reads other pages" : "");
        weigh(j, CAUSE_IDS, 38);
    } else if (first < 0.5) {
        pro(j, CAUSE_LAYERS, 50, "position 1 is accepted in %.0f %%, healthy heads have 65 to 84",
            100 * first);
        pro(j, CAUSE_NORM, 44, "above 1 token a step, but low at every depth");
        pro(j, CAUSE_TEMPLATE, 40, "above 1 token a step, but low at every depth");
    }
    if (first >= 0.5 && fall > 0.2) {
        pro(j, CAUSE_ROPE, 50, "position 1 is fine (%.0f %%), the rate after an accepted one falls "
            "by %.0f points with depth", 100 * first, 100 * fall);
        pro(j, CAUSE_PAGES, 45, "position 1 is fine, and later ones fall: cells of the chain may "
            "not be overwritten after a rejection");
    }
}

/* "2,4,5" */
static const char *list_of(const struct reading *r, char out[64])
{
    size_t at = 0;
    snprintf(out, 64, "LIST");
    for (int i = 0; r && i < r->n_boundary && at < 64; i++)
        at += (size_t)snprintf(out + at, 64 - at, "%s%d", i ? "," : "", r->boundary[i]);
    return out;
}

/* Of a server that tells the mean length only. */
static void judge_length(struct judging *j)
{
    double length = j->t->length;
    static const enum triage_cause low[] = {CAUSE_LAYERS, CAUSE_OTHER, CAUSE_PAGES, CAUSE_IDS};
    if (!j->t->server || length == 0 || length >= 1.6)
        return;
    for (int i = 0; i < 4; i++) {
        pro(j, low[i], (length < 1.1 ? 62 : 50) - 4 * i, "%.2f tokens a verify pass: %s", length,
            length < 1.1 ? "almost no guess is accepted"
                         : "published heads have 2.2 to 2.8 with 3 steps");
    }
    if (length >= 1.1) {
        pro(j, CAUSE_NORM, 48, "above 1 token a pass, but low");
        pro(j, CAUSE_TEMPLATE, 44, "above 1 token a pass, but low");
    }
}

/* Requests of several kinds: cold ones, the same from the prefix cache, long ones. */
static void judge_arms(struct judging *j)
{
    const struct some_drafts *cold = &j->t->arm[0].drafts, *warm = &j->t->arm[1].drafts,
                             *far = &j->t->arm[2].drafts;
    if (!j->t->arm[2].name || cold->drafted == 0)
        return;
    double rate[3];
    for (int i = 0; i < 3; i++)
        rate[i] = percent((int)j->t->arm[i].drafts.accepted, (int)j->t->arm[i].drafts.drafted);
    if (above((int)warm->accepted, (int)warm->drafted, (int)cold->accepted, (int)cold->drafted)) {
        pro(j, CAUSE_PAGES, 85, "with a warm prefix cache %.0f %% of the drafted tokens are "
            "accepted, cold %.0f %%: the prefix comes without the draft's cells", rate[1], rate[0]);
        pro(j, CAUSE_STALE, 75, "acceptance falls with a warm prefix cache: %.0f %%, cold %.0f %%",
            rate[1], rate[0]);
    } else {
        con(j, CAUSE_PAGES, "a warm prefix cache changes little: %.0f %%, cold %.0f %%", rate[1],
            rate[0]);
    }
    if (above((int)far->accepted, (int)far->drafted, (int)cold->accepted, (int)cold->drafted) &&
        rate[0] - rate[2] > 5) {
        pro(j, CAUSE_CONTEXT, 80, "after long prompts %.0f %% of the drafted tokens are accepted, "
            "after short ones %.0f %%", rate[2], rate[0]);
        pro(j, CAUSE_WINDOW, 72, "acceptance falls with the prompt's length: %.0f %%, then %.0f %%",
            rate[0], rate[2]);
    } else {
        con(j, CAUSE_CONTEXT, "after long prompts %.0f %% of the drafted tokens are accepted, "
                              "after short ones %.0f %%", rate[2], rate[0]);
    }
}

/* Deeper or wider trees, or the checker, as the evidence is. */
static void confirm_shape(struct judging *j)
{
    const struct accepted *a = &j->t->log;
    const char *id = j->t->name;
    if (j->t->server)
        confirm(j, CAUSE_SHAPE, "aerie parity FILE --a remote:%s --b local", id);
    else if (a->ended * 2 > a->trees)
        confirm(j, CAUSE_SHAPE, "aerie replay %s --with draft.shape=%d-1-%d", id,
                min_int(16, a->depth + 3), min_int(16, a->depth + 3) + 1);
    else if (a->beside * 3 > a->judged)
        confirm(j, CAUSE_SHAPE, "aerie replay %s --with check=strict", id);
    else
        confirm(j, CAUSE_SHAPE, "aerie replay %s --with draft.shape=5-4-16", id);
}

static void name_commands(struct judging *j)
{
    const char *id = j->t->name;
    bool url = j->t->server;
    const struct reading *r;
    if (url) {
        confirm(j, CAUSE_LAYERS, "aerie doctor -m TARGET --draft HEAD");
        confirm(j, CAUSE_NORM, "aerie --remote %s, a few turns, then aerie triage last -m TARGET "
                "--draft HEAD", id);
        confirm(j, CAUSE_PAGES, "aerie probe %s", id);
        confirm(j, CAUSE_STALE, "aerie probe %s", id);
        confirm(j, CAUSE_CELLS, "aerie kl %s", id);
        confirm(j, CAUSE_TEMPLATE, "aerie parity FILE --a remote:%s --b local", id);
    } else {
        char list[64];
        r = best_of(j, READ_LAYERS);
        confirm(j, CAUSE_LAYERS, "aerie replay %s --with eagle_capture=%s", id, list_of(r, list));
        confirm(j, CAUSE_NORM, "aerie golden FOLDER --draft HEAD (with reference tensors)");
        confirm(j, CAUSE_PAGES, "aerie replay %s --with check=strict", id);
        confirm(j, CAUSE_STALE, "aerie replay %s --with check=strict", id);
        confirm(j, CAUSE_CELLS, "aerie diff %s --with kv=auto", id);
        confirm(j, CAUSE_TEMPLATE, "aerie replay %s --with raw=off", id);
    }
    confirm(j, CAUSE_ROPE, "aerie golden FOLDER --draft HEAD (with reference tensors)");
    confirm(j, CAUSE_IDS, "aerie golden FOLDER --draft HEAD (with reference tensors)");
    confirm(j, CAUSE_TOKENIZER, "aerie tokenize -m TARGET FILE, and the same with the head's "
                                "tokenizer");
    confirm(j, CAUSE_EMBED, "aerie golden FOLDER --draft HEAD (with reference tensors)");
    r = best_of(j, READ_WINDOW);
    int sees = r ? r->sees : 0;
    confirm(j, CAUSE_CONTEXT, url ? "aerie probe %s --shape drafts=1" : "aerie replay %s --with "
            "draft.window=256", id);
    if (!url && sees)
        confirm(j, CAUSE_CONTEXT, "aerie replay %s --with draft.window=%d", id, sees);
    confirm(j, CAUSE_WINDOW, url ? "aerie probe %s" : "aerie replay %s --with draft.window=0", id);
    if (!url && sees)
        confirm(j, CAUSE_WINDOW, "aerie replay %s --with draft.window=%d", id, sees);
    confirm(j, CAUSE_SAMPLING, url ? "aerie parity FILE --a remote:%s --b temperature=0"
                               : j->t->steered ? "aerie replay %s --with temperature=0 "
                                                 "repetition_penalty=1 presence_penalty=0 "
                                                 "frequency_penalty=0 logit_bias=none"
                                               : "aerie replay %s --with temperature=0", id);
    confirm_shape(j);
    confirm(j, CAUSE_OTHER, "aerie doctor -m TARGET --draft HEAD");
}

/* ---- the verdict ----------------------------------------------------------------------------- */

static void sort_causes(const struct judging *j, struct triage_verdict *v)
{
    for (int i = 0; i < N_CAUSES; i++) {
        int at = i;
        while (at > 0 && v->cause[at - 1].weight < j->c[i].weight) {
            v->cause[at] = v->cause[at - 1];
            at--;
        }
        v->cause[at] = j->c[i];
    }
}

static void say(struct triage_verdict *v, const struct triage *t)
{
    const struct cause_found *top = &v->cause[0];
    bool silent = t->drafting && t->log.drafts.cycles == 0;
    double first = t->log.drafts.cycles ? accepted_at(&t->log.drafts, 1) : 0;
    double right = t->re.tokens && !silent ? percent(t->re.r[0].hits, t->re.tokens) / 100 : first;
    if (t->log.drafts.cycles >= FEWEST) /* a head that is right here, but was not there */
        right = fmin(right, first + 0.2);
    bool bare = t->server && t->length > 0;
    if (!bare && !silent && t->log.drafts.cycles < FEWEST && t->re.tokens < 2 * FEWEST) {
        v->is = TRIAGE_TOO_FEW;
        snprintf(v->text, sizeof v->text, "too few cycles to judge: %llu, expected %d or more",
                 (unsigned long long)t->log.drafts.cycles, FEWEST);
    } else if (t->server && !t->per_depth && !bare) {
        v->is = TRIAGE_UNKNOWN;
        snprintf(v->text, sizeof v->text, "the server does not report acceptance by position: its "
                 "length alone names no cause");
    } else if (top->weight >= NAMED) {
        v->is = TRIAGE_CAUSE;
        snprintf(v->text, sizeof v->text, "%s", triage_cause_about(top->cause));
    } else if (bare) {
        v->is = TRIAGE_HEALTHY;
        snprintf(v->text, sizeof v->text, "healthy: %.2f tokens a verify pass", t->length);
    } else if (right >= 0.55 && t->server) {
        v->is = TRIAGE_HEALTHY;
        snprintf(v->text, sizeof v->text, "healthy: position 1 is accepted in %.0f %%",
                 100 * first);
    } else if (right >= 0.55) {
        v->is = TRIAGE_HEALTHY;
        snprintf(v->text, sizeof v->text, "healthy: position 1 is accepted in %.0f %%, and nothing "
                 "that was tried gains anything", 100 * first);
    } else {
        v->is = TRIAGE_UNKNOWN;
        snprintf(v->text, sizeof v->text, "position 1 is accepted in %.0f %%, and no cause was "
                                          "found", 100 * first);
    }
}

void triage_judge(const struct triage *t, struct triage_verdict *v)
{
    struct judging j = {.t = t};
    *v = (struct triage_verdict){0};
    for (int i = 0; i < N_CAUSES; i++)
        j.c[i].cause = (enum triage_cause)i;
    judge_readings(&j);
    judge_ids(&j);
    judge_engine(&j);
    judge_elsewhere(&j);
    judge_cells(&j);
    judge_template(&j);
    judge_context(&j);
    judge_sampling(&j);
    judge_undone(&j, CAUSE_SAMPLING, &j.t->greedy,
                 t->temperature == 0 ? "with penalties or biases" : "as sampled");
    judge_shape(&j);
    judge_head(&j);
    judge_counters(&j);
    judge_length(&j);
    judge_arms(&j);
    name_commands(&j);
    sort_causes(&j, v);
    say(v, t);
}
