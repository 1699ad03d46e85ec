/* verdict_text.c - the report of verdict.h as lines for people, and as JSON. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/json.h"
#include "repl/text/sheet.h"
#include "repl/compare/verdict.h"

static enum style style_of(enum verdict v)
{
    return v == VERDICT_BUG || v == VERDICT_BEYOND ? ST_BAD
           : v == VERDICT_EQUAL                    ? ST_GOOD
                                                   : ST_WARN;
}

/* What differs between sides that cannot be compared. */
static const char *other_of(const struct report *r)
{
    return r->diff.class == DIFF_MESSAGE ? "the messages differ" : "the prompts differ";
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

static void label(struct sheet *out, const char *name)
{
    sheet_add(out, ST_LABEL, name);
    sheet_tab(out, 12);
}

/* "1.10", or "1.10 | 1.12" if the sides differ. */
static void steps(struct sheet *out, int turn, const int step[2])
{
    int one = step[0] ? step[0] : step[1];
    sheet_printf(out, ST_KEY, "%d.%d", turn, one);
    if (step[0] && step[1] && step[0] != step[1])
        sheet_printf(out, ST_KEY, " | %d.%d", turn, step[1]);
}

static void write_difference(const struct report *r, struct sheet *out)
{
    const struct difference *d = &r->diff;
    label(out, "differs");
    if (d->class == DIFF_NONE) {
        sheet_printf(out, ST_GOOD, "nowhere");
        sheet_printf(out, ST_TEXT, ": %d turn%s, %d token%s %s", r->counts.turns,
                     plural(r->counts.turns), r->counts.tokens, plural(r->counts.tokens),
                     r->counts.by_position ? "by position" : "and every step");
        if (r->served) /* log probabilities have a line of their own */
            sheet_add(out, ST_TEXT, r->counts.text_only ? ", texts where no ids are known" : "");
        else if (r->counts.facts && r->counts.most > 0)
            sheet_printf(out, ST_TEXT, "; log probabilities differ by at most %.3g",
                         r->counts.most);
        else if (r->counts.facts)
            sheet_add(out, ST_TEXT, ", equal log probabilities");
        if (r->counts.stopped)
            sheet_printf(out, ST_TEXT, "; %d turn%s up to where %s stopped", r->counts.stopped,
                         plural(r->counts.stopped), r->counts.stopped == 1 ? "it was"
                         : "they were");
        sheet_line(out);
        return;
    }
    if (d->step[0] || d->step[1]) {
        sheet_add(out, ST_TEXT, "first at step ");
        steps(out, d->turn, d->step);
    } else {
        sheet_printf(out, ST_TEXT, "first in turn %d", d->turn);
    }
    sheet_add(out, ST_TEXT, ": ");
    sheet_add(out, ST_BOLD, diff_class_name(d->class));
    sheet_printf(out, ST_TEXT, ": %s", d->why);
    sheet_line(out);
}

static void write_place(const struct report *r, struct sheet *out)
{
    const struct place *p = &r->place;
    if (!p->found)
        return;
    label(out, "place");
    sheet_add(out, ST_TEXT, "step ");
    steps(out, r->turn, r->step);
    if (p->at != N_PROBE_POINTS)
        sheet_printf(out, ST_TEXT, ", layer %d (%s)", p->layer, p->sliding ? "sliding" : "full");
    sheet_add(out, ST_TEXT, ", ");
    sheet_add(out, ST_BOLD, place_operation(p));
    sheet_printf(out, ST_TEXT, ": row %d, position %d", p->row, p->pos);
    if (p->rows > 1)
        sheet_printf(out, ST_TEXT, " and %d more", p->rows - 1);
    if (isinf(p->far))
        sheet_add(out, ST_TEXT, "; no number on one side");
    else
        sheet_printf(out, ST_TEXT, "; off by %.2g of the row", p->far);
    if (p->band > 0)
        sheet_printf(out, ST_TEXT, ", the band is %.2g", p->band);
    sheet_line(out);
}

/* The margins of both sides, each of its own token over its own rival. */
static void write_margins(const struct report *r, struct sheet *out)
{
    if (!r->has_margin)
        return;
    label(out, "margin");
    for (int i = 0; i < 2; i++) {
        if (isnan(r->margins[i]))
            sheet_add(out, ST_TEXT, "not reported");
        else
            sheet_printf(out, ST_TEXT, "%.3g", fabs(r->margins[i]));
        sheet_printf(out, ST_TEXT, " for token %d %s%s", r->chosen[i], r->side[i], i ? "" : ", ");
    }
    if (r->noise_runs)
        sheet_printf(out, ST_TEXT, "; the band is %.3g (%d runs with noise)", r->band,
                     r->noise_runs);
    sheet_line(out);
}

static void write_served(const struct report *r, struct sheet *out)
{
    if (r->forced) {
        label(out, "forced");
        sheet_printf(out, ST_TEXT,
                     "%d token%s given to the local engine, which would choose another at %d",
                     r->given, plural(r->given), r->parts);
        sheet_line(out);
    }
    if (r->n_logp) {
        label(out, "log p");
        if (r->counts.most > 0)
            sheet_printf(out, ST_TEXT,
                         "%d token%s: they differ by at most %.3g (turn %d, token %d), median %.3g",
                         r->n_logp, plural(r->n_logp), r->counts.most, r->counts.most_turn,
                         r->counts.most_token, r->logp_median);
        else
            sheet_printf(out, ST_TEXT, "%d token%s: equal", r->n_logp, plural(r->n_logp));
        sheet_line(out);
    }
}

/* Acceptance of both sides, if either drafted: "17 of 20 drafted tokens here (MAL 5.25), ...". */
static void write_drafts(const struct report *r, struct sheet *out)
{
    if (!r->drafts[0].cycles && !r->drafts[1].cycles)
        return;
    label(out, "accepted");
    for (int i = 0; i < 2; i++) {
        const struct draft_sums *s = &r->drafts[i];
        if (s->cycles)
            sheet_printf(out, ST_TEXT, "%s%llu of %llu drafted tokens %s (MAL %.2f)", i ? ", " : "",
                         (unsigned long long)s->accepted, (unsigned long long)s->drafted,
                         r->side[i], draft_sums_mal(s));
        else
            sheet_printf(out, ST_DIM, "%s%s %s", i ? ", " : "", r->side[i],
                         r->served ? "no drafts are known" : "nothing was drafted");
    }
    sheet_line(out);
}

void verdict_text(const struct report *r, struct sheet *out)
{
    write_difference(r, out);
    write_place(r, out);
    write_margins(r, out);
    write_served(r, out);
    write_drafts(r, out);
    label(out, "verdict");
    sheet_add(out, style_of(r->verdict), name_of(r));
    if (r->verdict == VERDICT_OTHER && r->diff.index > 0)
        sheet_printf(out, style_of(r->verdict), " from turn %d on", r->diff.turn);
    if (r->verdict == VERDICT_OTHER)
        sheet_printf(out, style_of(r->verdict), ": %s", other_of(r));
    sheet_line(out);
    for (int i = 0; i < r->n_evidence; i++) {
        sheet_tab(out, 12);
        sheet_printf(out, ST_DIM, "- %s", r->evidence[i]);
        sheet_line(out);
    }
}

static void place_json(const struct report *r, struct buf *b)
{
    const struct place *p = &r->place;
    jput_kopen(b, "place", '{');
    jput_fields(b, "%d{turn}%d{step}%d{step_b}", r->turn, r->step[0], r->step[1]);
    if (p->at != N_PROBE_POINTS)
        jput_fields(b, "%d{layer}%s{kind}", p->layer, p->sliding ? "sliding" : "full");
    jput_fields(b, "%s{operation}%d{row}%d{position}%d{rows}%g{distance}%g{band}",
                place_operation(p), p->row, p->pos, p->rows, p->far, p->band);
    jput_close(b, '}');
}

static void difference_json(const struct difference *d, struct buf *b)
{
    jput_kopen(b, "difference", '{');
    jput_fields(b, "%d{turn}%d{step}%d{step_b}", d->turn, d->step[0], d->step[1]);
    if (d->token >= 0)
        jput_kint(b, "token", d->token);
    jput_fields(b, "%s{class}%s{why}", diff_class_name(d->class), d->why);
    jput_close(b, '}');
}

static void measured_json(const struct report *r, struct buf *b)
{
    jput_kopen(b, "band", '{');
    jput_fields(b, "%d{runs}%g{noise}%g{margin}%g{largest_movement_in_bands}", r->noise_runs,
                r->noise, r->band, r->worst);
    jput_close(b, '}');
}

static void margins_json(const struct report *r, struct buf *b)
{
    jput_kopen(b, "margins", '[');
    for (int i = 0; i < 2; i++)
        jput_real(b, fabs(r->margins[i]));
    jput_close(b, ']');
    jput_key(b, "chosen");
    jput_ints(b, r->chosen, 2);
}

static void served_json(const struct report *r, struct buf *b)
{
    if (r->forced)
        jput_fields(b, "%d{given}%d{chosen_otherwise}", r->given, r->parts);
    jput_kint(b, "log_probabilities", r->n_logp);
    if (r->n_logp)
        jput_fields(b, "%g{log_probability_differs_by}%g{median}", r->counts.most, r->logp_median);
    jput_fields(b, "%d{sampled?}%d{text_only?}", r->sampled, r->counts.text_only);
}

void verdict_json(const struct report *r, struct buf *b)
{
    jput_kstr(b, "verdict", name_of(r));
    if (r->verdict == VERDICT_OTHER)
        jput_kstr(b, "reason", other_of(r));
    jput_fields(b, "%d{equal?}%d{turns}%d{tokens}%d{stopped_turns}", !r->diff.class,
                r->counts.turns, r->counts.tokens, r->counts.stopped);
    if (r->diff.class)
        difference_json(&r->diff, b);
    if (r->place.found)
        place_json(r, b);
    if (r->rule[0]) {
        jput_kopen(b, "violation", '{');
        jput_fields(b, "%s{side}%d{turn}%d{step}%s{text}", r->rule_side ? "b" : "a", r->rule_turn,
                    r->rule_step, r->rule);
        jput_close(b, '}');
    }
    if (r->has_margin)
        margins_json(r, b);
    if (r->served)
        served_json(r, b);
    if (r->noise_runs)
        measured_json(r, b);
    conditions_json(&r->conditions, "a", "b", b);
    jput_kopen(b, "drafts", '[');
    for (int i = 0; i < 2; i++)
        jput_record(b, "%lu{cycles}%lu{drafted}%lu{accepted}%g{MAL}",
                    (unsigned long)r->drafts[i].cycles, (unsigned long)r->drafts[i].drafted,
                    (unsigned long)r->drafts[i].accepted, draft_sums_mal(&r->drafts[i]));
    jput_close(b, ']');
    jput_kopen(b, "evidence", '[');
    for (int i = 0; i < r->n_evidence; i++)
        jput_str(b, r->evidence[i]);
    jput_close(b, ']');
}

/* ---- the report ---- */

void report_say(struct report *r, const char *fmt, ...)
{
    char line[512];
    va_list ap;
    if (r->n_evidence == MAX_EVIDENCE)
        return;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
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
