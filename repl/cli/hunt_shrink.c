/* hunt_shrink.c - makes a case that differs smaller: see hunt.h. Requests are left out, prompts
 * and replies shortened, and requests sent one after the other instead of at once, as long as the
 * judged reply still differs. */

#include "repl/cli/hunt.h"

enum { MOST_TRIES = 60, TIMED_TRIES = 3 };

/* ---- changes --------------------------------------------------------------------------------- */

static bool is_followed(const struct hunt_case *c, int i)
{
    return ANY(k, c->n, c->ask[k].follows == i);
}

static bool without(struct hunt_case *c, int i)
{
    if (c->n == 1 || c->ask[i].judged || is_followed(c, i))
        return false;
    for (int k = i; k + 1 < c->n; k++)
        c->ask[k] = c->ask[k + 1];
    c->n--;
    for (int k = 0; k < c->n; k++)
        c->ask[k].follows -= c->ask[k].follows > i;
    return true;
}

static bool shorten(int *n, int to, int least)
{
    if (to >= *n || to < least)
        return false;
    *n = to;
    return true;
}

/* The k-th change of the i-th ask; false: it changes nothing. */
static bool change(struct hunt_case *c, int i, int k, const struct hunt_diff *d)
{
    struct hunt_ask *a = &c->ask[i];
    switch (k) {
    case 0: return without(c, i);
    case 1: return shorten(&a->most, a->judged ? d->token + 1 : 1, 1);
    case 2: return shorten(&a->n, a->n / 2, a->fork ? a->fork + 1 : 2);
    case 3: return shorten(&a->n, a->n - a->n / 4, a->fork ? a->fork + 1 : 2);
    case 4: return shorten(&a->n, a->n - 1, a->fork ? a->fork + 1 : 2);
    case 5: return shorten(&a->cancel_ms, 0, 0);
    case 6: return shorten(&a->after_ms, 0, 0);
    case 7: /* alone instead of beside the ask before it */
        if (i == 0 || c->ask[i - 1].group != a->group)
            return false;
        for (int m = i; m < c->n; m++)
            c->ask[m].group++;
        return true;
    default: return false;
    }
}
enum { CHANGES = 8 };

static bool is_timed(const struct hunt_case *c)
{
    return ANY(i, c->n, c->ask[i].after_ms || c->ask[i].cancel_ms || hunt_beside(c, i));
}

static bool is_late(const struct hunt *p)
{
    return p->until && clock_ns() >= p->until;
}

/* Whether a difference shows as much as the one that was found: a wrong id stays a wrong id. */
static bool is_as_good(enum hunt_differs was, enum hunt_differs is)
{
    return is == was || (was == DIFF_LOGP && is == DIFF_IDS);
}

/* Whether the case differs so, in one of a few runs where the time decides. */
static bool differs(struct hunt *p, const struct hunt_case *c, enum hunt_differs how,
                    struct hunt_diff *d, bool *ok, struct err *e)
{
    int tries = is_timed(c) ? TIMED_TRIES : 1;
    for (int i = 0; i < tries && *ok; i++) {
        *ok = hunt_run(p, c, d, e);
        if (*ok && is_as_good(how, d->how))
            return true;
    }
    return false;
}

/* Whether the case still differs with the k-th change of its i-th ask: then it is kept. */
static bool try(struct hunt *p, struct hunt_found *f, int i, int k, int *tries, bool *ok,
                struct err *e)
{
    struct hunt_case c = f->c;
    struct hunt_diff d;
    if (!change(&c, i, k, &f->d))
        return false;
    ++*tries;
    if (!differs(p, &c, f->d.how, &d, ok, e))
        return false;
    f->c = c;
    f->d = d;
    return true;
}

bool hunt_shrink(struct hunt *p, struct hunt_found *f, struct err *e)
{
    bool ok = true;
    int tries = 0;
    p->quick = true;
    for (bool again = true; ok && again && tries < MOST_TRIES && !is_late(p);) {
        again = false;
        for (int k = 0; ok && k < CHANGES; k++)
            for (int i = f->c.n; ok && i-- > 0;) /* those behind the judged one cannot matter */
                while (ok && i < f->c.n && tries < MOST_TRIES && !is_late(p) &&
                       try(p, f, i, k, &tries, &ok, e))
                    again = true;
    }
    p->quick = false;
    return ok;
}
