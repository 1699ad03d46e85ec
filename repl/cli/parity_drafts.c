/* parity_drafts.c - all sides' drafts of `aerie parity` side by side: how drafters, or ways of
 * drafting, compare. See parity.h. */
#include <math.h>

#include "repl/cli/parity.h"
#include "repl/compare/accepted.h"

enum { NAME = 18, COLUMN = 14, DEPTHS = 16 };

/* A number of each side; has: that the side has one. */
struct numbers {
    double v[MAX_SIDES];
    bool has[MAX_SIDES];
};

/* One row: a name, and the numbers of all sides; "-" where a side has none. */
static void row(const struct parity *p, const struct printer *to, const char *name,
                const char *unit, const struct numbers *x)
{
    print_add(to, ST_TEXT, "%-*s", NAME, name);
    for (int i = 0; i < p->n_side; i++)
        print_add(to, ST_TEXT, "%*.2f", COLUMN, x->has[i] ? x->v[i] : NAN);
    print_note(to, ST_DIM, "  %s", unit);
}

static bool any(const struct parity *p, const struct numbers *x)
{
    return ANY(i, p->n_side, x->has[i]);
}

static double per_cycle_ms(const struct draft_report *d, uint64_t us)
{
    return ratio(us, d->all.cycles) / 1e3;
}

static double tokens_a_second(const struct side *s)
{
    return s->ns ? (double)s->replied / ((double)s->ns * 1e-9) : 0;
}

static void depths(const struct parity *p, const struct printer *to)
{
    for (int at = 1; at <= DEPTHS; at++) {
        char name[24];
        struct numbers x = {0};
        for (int i = 0; i < p->n_side; i++) {
            const struct draft_report *d = &p->side[i].drafts_of;
            x.has[i] = d->all.depth[at].drafted > 0;
            x.v[i] = ratio(d->all.depth[at].accepted, d->all.cycles);
        }
        snprintf(name, sizeof name, "depth %d", at);
        if (any(p, &x))
            row(p, to, name, "accepted there / cycles", &x);
    }
}

static void contexts(const struct parity *p, const struct printer *to)
{
    for (int k = 0; k < DRAFT_RANGES; k++) {
        char name[32];
        struct numbers x = {0};
        for (int i = 0; i < p->n_side; i++) {
            const struct draft_range *g = &p->side[i].drafts_of.range[k];
            x.has[i] = g->cycles > 0;
            x.v[i] = 1 + ratio(g->accepted, g->cycles);
        }
        if (k + 1 < DRAFT_RANGES)
            snprintf(name, sizeof name, "context %d-%d", draft_range_first(k),
                     draft_range_first(k + 1) - 1);
        else
            snprintf(name, sizeof name, "context %d-", draft_range_first(k));
        if (any(p, &x))
            row(p, to, name, "MAL = 1 + accepted / cycles", &x);
    }
}

void drafts_table(const struct parity *p, const struct printer *to)
{
    struct numbers mal = {0}, draft = {0}, verify = {0}, speed = {0};
    for (int i = 0; i < p->n_side; i++) {
        const struct draft_report *d = &p->side[i].drafts_of;
        mal.has[i] = draft.has[i] = verify.has[i] = d->all.cycles > 0;
        mal.v[i] = draft_sums_mal(&d->all);
        draft.v[i] = per_cycle_ms(d, d->us_draft);
        verify.v[i] = per_cycle_ms(d, d->us_verify);
        speed.has[i] = true;
        speed.v[i] = tokens_a_second(&p->side[i]);
    }
    if (!any(p, &mal))
        return;
    print_add(to, ST_HEAD, "%-*s", NAME, "drafts");
    for (int i = 0; i < p->n_side; i++)
        print_add(to, ST_HEAD, "%*c", COLUMN, p->side[i].name);
    print_end(to);
    row(p, to, "MAL", "1 + accepted / cycles", &mal);
    depths(p, to);
    contexts(p, to);
    row(p, to, "draft passes", "ms a cycle", &draft);
    row(p, to, "verify pass", "ms a cycle", &verify);
    row(p, to, "tokens a second", "of replies, their prompts' time included", &speed);
}

void side_drafts(const struct side *s, const struct printer *to)
{
    const struct draft_report *d = &s->drafts_of;
    print_real(to, "tokens_a_second", tokens_a_second(s));
    if (!d->all.cycles)
        return;
    PRINT_IN(to, "drafts", '{');
    print_add(to, ST_TEXT, "\f%lu{cycles}%g{mal}%lu{us_draft}%lu{us_verify}", d->all.cycles,
              draft_sums_mal(&d->all), d->us_draft, d->us_verify);
    print_open(to, "accepted_at", '[');
    for (int at = 1; at < TREE_MAX && d->all.depth[at].drafted; at++)
        print_int(to, NULL, (int64_t)d->all.depth[at].accepted);
    print_close(to, ']');
    PRINT_IN(to, "contexts", '[');
    for (int k = 0; k < DRAFT_RANGES; k++)
        if (d->range[k].cycles)
            print_line(to, ST_TEXT, "\f%d{from}%lu{cycles}%lu{drafted}%lu{accepted}",
                       draft_range_first(k), d->range[k].cycles, d->range[k].drafted,
                       d->range[k].accepted);
}
