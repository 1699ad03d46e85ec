/* verdict_text.c - the report of verdict.h as lines for people, and as JSON. */
#include <math.h>

#include "repl/compare/verdict.h"

static enum style style_of(enum verdict v)
{
    return v == VERDICT_BUG || v == VERDICT_BEYOND ? ST_BAD
           : v == VERDICT_EQUAL                    ? ST_GOOD
                                                   : ST_WARN;
}

/* Why sides cannot be compared. */
static const char *other_of(const struct report *r)
{
    return r->no_ids                       ? "a pack without text and token ids"
           : r->diff.class == DIFF_MESSAGE ? "the messages differ"
                                           : "the prompts differ";
}

/* Equal tokens of two programs do not mean equal logits. */
static const char *name_of(const struct report *r)
{
    if (!r->served || r->verdict != VERDICT_EQUAL)
        return verdict_name(r->verdict);
    return r->counts.text_only                ? "equal texts"
           : r->n_logp && r->counts.most == 0 ? "equal"
                                              : "equal tokens";
}

/* "1.10", or "1.10 | 1.12" if the sides differ. */
static void steps(const struct printer *to, int turn, const int step[2])
{
    print_add(to, ST_KEY, "%d.%d", turn, step[0] ? step[0] : step[1]);
    if (step[0] && step[1] && step[0] != step[1])
        print_add(to, ST_KEY, " | %d.%d", turn, step[1]);
}

/* The line of two runs that do not differ. */
static void print_nowhere(const struct report *r, const struct printer *to)
{
    const struct diff_counts *n = &r->counts;
    print_add(to, ST_GOOD, "nowhere\v: %d turn%s, %d token%s %s", n->turns, plural(n->turns),
              n->tokens, plural(n->tokens), n->by_position ? "by position" : "and every step");
    if (r->served) /* log probabilities have a line of their own */
        print_add(to, ST_TEXT, n->text_only ? ", texts where no ids are known" : "");
    else if (n->facts && n->most > 0)
        print_add(to, ST_TEXT, "; log probabilities differ by at most %.3g", n->most);
    else if (n->facts)
        print_add(to, ST_TEXT, ", equal log probabilities");
    if (n->stopped)
        print_add(to, ST_TEXT, "; %d turn%s up to where %s stopped", n->stopped,
                  plural(n->stopped), n->stopped == 1 ? "it was" : "they were");
    print_end(to);
}

static void print_difference(const struct report *r, const struct printer *to)
{
    const struct difference *d = &r->diff;
    print_add(to, ST_LABEL, "%-12s", "differs");
    if (d->class == DIFF_NONE) {
        print_nowhere(r, to);
        return;
    }
    PRINT_IN(to, "difference", '{');
    print_add(to, ST_TEXT, "\f%d{turn}%d{step}%d{step_b}\f%s", d->turn, d->step[0], d->step[1],
              d->step[0] || d->step[1] ? "first at step " : "first in turn ");
    if (d->step[0] || d->step[1])
        steps(to, d->turn, d->step);
    else
        print_add(to, ST_TEXT, "%d", d->turn);
    print_add(to, ST_TEXT, ": ");
    if (d->token >= 0)
        print_add(to, ST_TEXT, "\f%d{token}", d->token);
    print_facts(to, ST_BOLD, "%s{class}\v: %s{why}", diff_class_name(d->class), d->why);
}

static void print_place(const struct report *r, const struct printer *to)
{
    const struct place *p = &r->place;
    if (!p->found)
        return;
    print_add(to, ST_LABEL, "%-12s\vstep ", "place");
    steps(to, r->turn, r->step);
    PRINT_IN(to, "place", '{');
    print_add(to, ST_TEXT, "\f%d{turn}%d{step}%d{step_b}", r->turn, r->step[0], r->step[1]);
    if (p->at != N_PROBE_POINTS)
        print_add(to, ST_TEXT, ", layer %d{layer} (%s{kind})", p->layer,
                  p->sliding ? "sliding" : "full");
    print_add(to, ST_TEXT, ", ");
    print_add(to, ST_BOLD, "%s{operation}\v: row %d{row}, position %d{position}",
              place_operation(p), p->row, p->pos);
    print_add(to, ST_TEXT, p->rows > 1 ? "\f%d{rows}\f and %d more" : "\f%d{rows}%d", p->rows,
              p->rows - 1);
    print_add(to, ST_TEXT, isinf(p->far) ? "; no number on one side\f%g{distance}"
                                         : "; off by %.2g{distance} of the row", p->far);
    print_add(to, ST_TEXT, p->band > 0 ? ", the band is %.2g{band}" : "\f%g{band}", p->band);
    print_end(to);
}

static void print_violation(const struct report *r, const struct printer *to)
{
    if (!r->rule[0])
        return;
    PRINT_IN(to, "violation", '{');
    print_add(to, ST_TEXT, "\f%s{side}%d{turn}%d{step}%s{text}", r->rule_side ? "b" : "a",
              r->rule_turn, r->rule_step, r->rule);
}

/* The margins of both sides, each of its own token over its own rival. */
static void print_margins(const struct report *r, const struct printer *to)
{
    if (!r->has_margin)
        return;
    print_add(to, ST_LABEL, "%-12s", "margin");
    for (int i = 0; i < 2; i++) {
        print_add(to, ST_TEXT, isnan(r->margins[i]) ? "not reported\f%f" : "%.3g",
                  fabs(r->margins[i]));
        print_add(to, ST_TEXT, " for token %d %s%s", r->chosen[i], r->side[i], i ? "" : ", ");
    }
    if (r->noise_runs)
        print_add(to, ST_TEXT, "; the band is %.3g (%d runs with noise)", r->band, r->noise_runs);
    print_end(to);
    print_open(to, "margins", '[');
    for (int i = 0; i < 2; i++)
        print_real(to, NULL, fabs(r->margins[i]));
    print_close(to, ']');
    print_ints(to, "chosen", r->chosen, 2);
}

static void print_served(const struct report *r, const struct printer *to)
{
    const struct diff_counts *n = &r->counts;
    if (r->forced)
        print_facts(to, ST_LABEL, "%-12s\v%d{given} token%s given to the local engine, which would "
                    "choose another at %d{chosen_otherwise}", "forced", r->given, plural(r->given),
                    r->parts);
    if (r->served)
        print_add(to, ST_TEXT, "\f%d{log_probabilities}", r->n_logp);
    if (r->n_logp)
        print_facts(to, ST_LABEL, n->most > 0
                        ? "%-12s\v%d token%s: they differ by at most "
                          "%.3g{log_probability_differs_by} (turn %d, token %d), median "
                          "%.3g{median}"
                        : "%-12s\v%d token%s: equal\f%g{log_probability_differs_by}%d%d%g{median}",
                    "log p", r->n_logp, plural(r->n_logp), n->most, n->most_turn, n->most_token,
                    r->logp_median);
    if (r->served)
        print_add(to, ST_TEXT, "\f%d{sampled?}%d{text_only?}", r->sampled, n->text_only);
}

/* Acceptance of both sides, if either drafted: "17 of 20 drafted tokens here (MAL 5.25), ...". */
static void print_drafts(const struct report *r, const struct printer *to)
{
    const struct draft_sums *d = r->drafts;
    bool any = d[0].cycles || d[1].cycles;
    if (any)
        print_add(to, ST_LABEL, "%-12s", "accepted");
    print_open(to, "drafts", '[');
    for (int i = 0; i < 2 && (any || to->json); i++) {
        PRINT_IN(to, NULL, '{');
        print_add(to, ST_TEXT, "\f%lu{cycles}%lu{drafted}%lu{accepted}%g{MAL}", d[i].cycles,
                  d[i].drafted, d[i].accepted, draft_sums_mal(&d[i]));
        if (d[i].cycles)
            print_add(to, ST_TEXT, "%s%lu of %lu drafted tokens %s (MAL %.2f)", i ? ", " : "",
                      d[i].accepted, d[i].drafted, r->side[i], draft_sums_mal(&d[i]));
        else
            print_add(to, ST_DIM, "%s%s %s", i ? ", " : "", r->side[i],
                      r->served ? "no drafts are known" : "nothing was drafted");
    }
    print_close(to, ']');
    if (any)
        print_end(to);
}

static void print_evidence(const struct report *r, const struct printer *to)
{
    enum style st = style_of(r->verdict);
    bool other = r->verdict == VERDICT_OTHER;
    print_add(to, ST_LABEL, "%-12s", "verdict");
    print_add(to, st, "%s", name_of(r));
    if (other && r->diff.index > 0)
        print_add(to, st, " from turn %d on", r->diff.turn);
    print_note(to, st, "%s%s", other ? ": " : "", other ? other_of(r) : "");
    PRINT_IN(to, "evidence", '[');
    for (int i = 0; i < r->n_evidence; i++) {
        print_note(to, ST_DIM, "%12s- %s", "", r->evidence[i]);
        print_str(to, NULL, r->evidence[i]);
    }
}

void verdict_print(const struct report *r, const struct printer *to)
{
    print_add(to, ST_TEXT, "\f%s{verdict}", name_of(r));
    if (r->verdict == VERDICT_OTHER)
        print_add(to, ST_TEXT, "\f%s{reason}", other_of(r));
    print_add(to, ST_TEXT, "\f%d{equal?}%d{turns}%d{tokens}%d{stopped_turns}", !r->diff.class,
              r->counts.turns, r->counts.tokens, r->counts.stopped);
    print_difference(r, to);
    print_place(r, to);
    print_violation(r, to);
    print_margins(r, to);
    print_served(r, to);
    if (r->noise_runs) {
        PRINT_IN(to, "band", '{');
        print_add(to, ST_TEXT, "\f%d{runs}%g{noise}%g{margin}%g{largest_movement_in_bands}",
                  r->noise_runs, r->noise, r->band, r->worst);
    }
    conditions_list(&r->conditions, "a", "b", to);
    print_drafts(r, to);
    print_evidence(r, to);
}

/* ---- the report ---- */

void report_say(struct report *r, const char *fmt, ...)
{
    char line[512];
    if (r->n_evidence == MAX_EVIDENCE)
        return;
    PRINT_ARGS(line, fmt);
    r->evidence[r->n_evidence++] = xstrdup(line);
}

void report_free(struct report *r)
{
    conditions_free(&r->conditions);
    for (int i = 0; i < r->n_evidence; i++)
        free(r->evidence[i]);
    *r = (struct report){0};
}

const char *verdict_name(enum verdict v)
{
    static const char *const name[] = {"equal", "bug", "rounding", "changed on purpose", "open",
                                       "not comparable", "rounding within the band",
                                       "differs by more than the band"};
    return name[v];
}
