/* parity_drafts.c - both sides' drafts of `aerie parity` side by side: how two drafters, or two
 * ways of drafting, compare. See parity.h. */
#include <stdio.h>

#include "kernels/json.h"
#include "repl/cli/parity.h"

enum { NAME = 18, COLUMN = 14, DEPTHS = 16 };

/* One row: a name, and a number of each side; "-" where a side has none. */
static void row(struct sheet *out, const char *name, const char *unit, const double v[2],
                const bool has[2])
{
    sheet_printf(out, ST_TEXT, "%-*s", NAME, name);
    for (int i = 0; i < 2; i++)
        if (has[i])
            sheet_printf(out, ST_TEXT, "%*.2f", COLUMN, v[i]);
        else
            sheet_printf(out, ST_DIM, "%*s", COLUMN, "-");
    sheet_printf(out, ST_DIM, "  %s", unit);
    sheet_line(out);
}

static double ratio(uint64_t part, uint64_t whole)
{
    return whole ? (double)part / (double)whole : 0;
}

static double per_cycle_ms(const struct draft_report *d, uint64_t us)
{
    return ratio(us, d->all.cycles) / 1e3;
}

static double tokens_a_second(const struct side *s)
{
    return s->ns ? (double)s->replied / ((double)s->ns * 1e-9) : 0;
}

static void depths(const struct draft_report *const d[2], struct sheet *out)
{
    for (int at = 1; at <= DEPTHS; at++) {
        char name[24];
        double v[2];
        bool has[2];
        for (int i = 0; i < 2; i++) {
            has[i] = d[i]->all.depth[at].drafted > 0;
            v[i] = ratio(d[i]->all.depth[at].accepted, d[i]->all.cycles);
        }
        snprintf(name, sizeof name, "depth %d", at);
        if (has[0] || has[1])
            row(out, name, "accepted there / cycles", v, has);
    }
}

static void contexts(const struct draft_report *const d[2], struct sheet *out)
{
    for (int k = 0; k < DRAFT_RANGES; k++) {
        char name[32];
        double v[2];
        bool has[2];
        for (int i = 0; i < 2; i++) {
            const struct draft_range *g = &d[i]->range[k];
            has[i] = g->cycles > 0;
            v[i] = 1 + ratio(g->accepted, g->cycles);
        }
        if (k + 1 < DRAFT_RANGES)
            snprintf(name, sizeof name, "context %d-%d", draft_range_first(k),
                     draft_range_first(k + 1) - 1);
        else
            snprintf(name, sizeof name, "context %d-", draft_range_first(k));
        if (has[0] || has[1])
            row(out, name, "MAL = 1 + accepted / cycles", v, has);
    }
}

void parity_drafts(const struct parity *p, struct sheet *out)
{
    const struct draft_report *const d[2] = {&p->side[0].drafts_of, &p->side[1].drafts_of};
    const bool has[2] = {d[0]->all.cycles > 0, d[1]->all.cycles > 0}, both[2] = {true, true};
    if (!has[0] && !has[1])
        return;
    sheet_printf(out, ST_HEAD, "%-*s%*c%*c", NAME, "drafts", COLUMN, p->side[0].name, COLUMN,
                 p->side[1].name);
    sheet_line(out);
    row(out, "MAL", "1 + accepted / cycles",
        (double[]){draft_sums_mal(&d[0]->all), draft_sums_mal(&d[1]->all)}, has);
    depths(d, out);
    contexts(d, out);
    row(out, "draft passes", "ms a cycle",
        (double[]){per_cycle_ms(d[0], d[0]->us_draft), per_cycle_ms(d[1], d[1]->us_draft)}, has);
    row(out, "verify pass", "ms a cycle",
        (double[]){per_cycle_ms(d[0], d[0]->us_verify), per_cycle_ms(d[1], d[1]->us_verify)}, has);
    row(out, "tokens a second", "of replies, their prompts' time included",
        (double[]){tokens_a_second(&p->side[0]), tokens_a_second(&p->side[1])}, both);
}

static void ranges_json(const struct draft_report *d, struct buf *b)
{
    jput_kopen(b, "contexts", '[');
    for (int k = 0; k < DRAFT_RANGES; k++) {
        const struct draft_range *g = &d->range[k];
        if (g->cycles) {
            jput_record(b, "%d{from}%lu{cycles}%lu{drafted}%lu{accepted}", draft_range_first(k),
                        g->cycles, g->drafted, g->accepted);
        }
    }
    jput_close(b, ']');
}

void parity_drafts_json(const struct side *s, struct buf *b)
{
    const struct draft_report *d = &s->drafts_of;
    jput_kreal(b, "tokens_a_second", tokens_a_second(s));
    if (!d->all.cycles)
        return;
    jput_kopen(b, "drafts", '{');
    jput_fields(b, "%lu{cycles}%g{mal}%lu{us_draft}%lu{us_verify}", d->all.cycles,
                draft_sums_mal(&d->all), d->us_draft, d->us_verify);
    jput_kopen(b, "accepted_at", '[');
    for (int at = 1; at < TREE_MAX && d->all.depth[at].drafted; at++)
        jput_int(b, (int64_t)d->all.depth[at].accepted);
    jput_close(b, ']');
    ranges_json(d, b);
    jput_close(b, '}');
}
