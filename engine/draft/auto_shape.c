/* auto_shape.c - see auto_shape.h. */
#include "engine/draft/auto_shape.h"

#include <math.h>

enum {
    COLD_RUNS = 2,   /* a device runs a new graph kernel by kernel, then records it */
    LEAST_STAY = 8,  /* steps between two switches */
    PROBE_STEPS = 6, PROBE_CLOSE = 16, /* steps of a probe; of a probe of a rival that is nearly as
                                          fast */
    PROBE_WAIT = 32, /* steps between two probes */
    FRESH = 48,      /* a rival measured within the last so many steps needs no probe */
    DRAFT_EVERY = 192, /* steps without a draft until acceptance is measured again */
    SURE = 24,       /* measured steps from which on their average is used as it is: see hoped() */
};
static const double FORGET = 1 - 1.0 / 96; /* decay of measured acceptance with each drafting
                                              step */
static const double MARGIN = 1.03;         /* advantage that a switch needs */
static const double CLEARLY = 1.3;         /* advantage with which a switch need not wait for
                                              LEAST_STAY steps */
static const double CLOSE = 0.1, WORST = 0.6; /* loss() of a rival: below CLOSE its probe is longer,
                                                 from WORST on it has none */
static const double BUDGET = 0.0008;       /* share of the time for probes of one rival */
static const double PROBE_RATE = 0.3;      /* rate of the moving average during a probe */
static const double NOISE = 0.1;           /* relative error of an average of few steps */
static const double SPIKE = 2;             /* a step's time counts as at most this multiple of the
                                              average */

static const struct tree_shape shapes[AUTO_SHAPES] = {
    {0, 0, 1}, {1, 1, 2}, {2, 1, 3}, {3, 1, 4}, {5, 1, 6}, {7, 1, 8}, {10, 1, 11}, {5, 4, 16},
    {5, 8, 60},
};
/* A prior: how often another child is right if the best one is wrong. */
static const double prior_rescue[AUTO_SHAPES] = {0, 0, 0, 0, 0, 0, 0, 0.35, 0.5};

const struct tree_shape *auto_shape_at(int i)
{
    CHECK(i >= 0 && i < AUTO_SHAPES);
    return &shapes[i];
}

static bool wide(int i)
{
    return shapes[i].topk > 1;
}

static int nearest(const struct tree_shape *s)
{
    int best = 1;
    for (int i = 1; i < AUTO_SHAPES; i++)
        if (wide(i) == (s->topk > 1) &&
            (wide(best) != (s->topk > 1) ||
             abs(shapes[i].nodes - s->nodes) < abs(shapes[best].nodes - s->nodes)))
            best = i;
    return best;
}

void auto_shape_init(struct auto_shape *a, const struct tree_shape *first)
{
    *a = (struct auto_shape){.ready = true, .drift = 1, .wait = PROBE_WAIT};
    a->now = a->home = nearest(first);
}

const struct tree_shape *auto_shape_next(const struct auto_shape *a)
{
    return &shapes[a->now];
}

/* ---- the model ------------------------------------------------------------------------------- */

/* The expected accepted nodes of a tree, summed over depths: the best child is right, or another
 * one is. A depth with few measurements is estimated by the depth above. */
static double model_accepted(const struct auto_shape *a, int i)
{
    const double weight = 3, doubt = 8;
    const struct auto_measure *m = &a->of[i];
    double rescue = (m->rescued + doubt * prior_rescue[i]) / (m->failed + doubt);
    double sum = 0, all = 1, p = 0.6;
    for (int d = 1; d <= shapes[i].steps; d++) {
        p = (a->hit[d] + weight * p) / (a->tried[d] + weight);
        all *= wide(i) ? p + (1 - p) * rescue : p;
        sum += all;
    }
    return sum;
}

/* The expected tokens of a step: 1 + A(s) c(s). */
double auto_shape_tokens(const struct auto_shape *a, int i)
{
    const double weight = 12;
    const struct auto_measure *m = &a->of[i];
    return 1 + model_accepted(a, i) * (m->accepted + weight) / (m->expected + weight);
}

double auto_shape_ns(const struct auto_shape *a, int i)
{
    return a->of[i].ns * a->drift;
}

/* A lower bound of the nanoseconds that one more row adds to the target's pass, from the measured
 * shapes with the fewest and the most rows, less possible noise; < 0: not known. */
static double row_ns(const struct auto_shape *a)
{
    int few = -1, many = -1;
    for (int i = 0; i < AUTO_SHAPES; i++)
        if (a->of[i].n) {
            few = few < 0 ? i : few;
            many = i;
        }
    return few == many ? -1
                       : fmax(0, (a->of[many].verify - (1 + NOISE) * a->of[few].verify) /
                                     (shapes[many].nodes - shapes[few].nodes));
}

/* Estimates the time of a shape that never ran from one that did, by their difference in levels and
 * rows. Errs towards fast. */
static double estimate(const struct auto_shape *a, int i, int from)
{
    const struct auto_measure *m = &a->of[from];
    int rows = shapes[i].nodes - shapes[from].nodes;
    double ns = m->ns + (shapes[i].steps - shapes[from].steps) * m->level, row = row_ns(a);
    if (row >= 0)
        ns += rows * row * (rows > 0 ? 0.5 : 1);
    else if (rows < 0)
        ns += rows * m->verify * 0.5 / shapes[from].nodes;
    return fmax(ns, 0.25 * m->ns);
}

static double tokens_a_ns(const struct auto_shape *a, int i, int from)
{
    double ns = a->of[i].n ? a->of[i].ns : estimate(a, i, from);
    return auto_shape_tokens(a, i) / ns;
}

/* ---- what a step measured -------------------------------------------------------------------- */

/* The best child of a node, or the accepted one; -1: there is none. */
static int child(const struct tree *t, int of, bool accepted)
{
    for (int i = of + 1; i < t->n; i++)
        if (t->parent[i] == of && (!accepted || t->fate[i] == FATE_ACCEPTED))
            return i;
    return -1;
}

/* Walks the accepted path: at each of its nodes, whether the draft's best child was right, and if
 * not, whether another one was. */
static void take_acceptance(struct auto_shape *a, const struct tree *t, int accepted)
{
    struct auto_measure *m = &a->of[a->now];
    m->expected = m->expected * FORGET + model_accepted(a, a->now);
    m->accepted = m->accepted * FORGET + accepted;
    m->failed *= FORGET;
    m->rescued *= FORGET;
    for (int d = 1; d <= MAX_STEPS; d++) {
        a->tried[d] *= FORGET;
        a->hit[d] *= FORGET;
    }
    for (int d = 1, at = 0, next; d <= MAX_STEPS; d++, at = next) {
        int best = child(t, at, false);
        next = child(t, at, true);
        if (best < 0 || (next < 0 && t->fate[best] != FATE_REJECTED))
            break; /* a leaf, or a limit ended the path */
        a->tried[d]++;
        a->hit[d] += next == best;
        m->failed += next != best;
        m->rescued += next >= 0 && next != best;
        if (next < 0)
            break;
    }
}

static void blend(double *old, double now, double rate)
{
    *old += (now - *old) * rate;
}

static void take_time(struct auto_shape *a, const struct auto_step *s)
{
    struct auto_measure *m = &a->of[a->now];
    int levels = shapes[a->now].steps > 1 ? shapes[a->now].steps - 1 : 1;
    if (m->runs++ < COLD_RUNS || a->stay == 0)
        return;
    double ns = s->ns / a->drift, verify = s->ns_verify / a->drift;
    double level = s->ns_draft / a->drift / levels;
    if (m->n >= 2 && ns > SPIKE * m->ns)
        ns = SPIKE * m->ns;
    double rate = a->left ? PROBE_RATE : m->n < LEAST_STAY ? 0.25 : 1.0 / 24;
    if (m->n < 3) { /* the first measurements may have been disturbed */
        rate = 1;
        ns = m->n ? fmin(m->ns, ns) : ns;
    }
    if (m->n >= LEAST_STAY && a->left == 0) {
        double by = 1 + (ns / m->ns - 1) / 12;
        a->drift *= by;
        ns /= by;
    }
    blend(&m->ns, ns, rate);
    blend(&m->verify, verify, rate);
    blend(&m->level, level, rate);
    m->n++;
    m->last = a->steps;
}

/* ---- the choice ------------------------------------------------------------------------------ */

/* Plain decoding measures no acceptance, so earlier measurements lose weight. */
static void doubt(struct auto_shape *a)
{
    const double most = 8;
    for (int d = 1; d <= MAX_STEPS; d++)
        if (a->tried[d] > most) {
            a->hit[d] *= most / a->tried[d];
            a->tried[d] = most;
        }
}

static void switch_to(struct auto_shape *a, int i, enum auto_reason why)
{
    a->switches += i != a->now;
    if (shapes[a->now].steps == 0 && i != a->now)
        doubt(a);
    a->stay = i == a->now ? a->stay : 0;
    a->now = i;
    a->why = why;
}

static void stay_with(struct auto_shape *a, int i, enum auto_reason why)
{
    a->wait = PROBE_WAIT;
    a->left = 0;
    a->home = i;
    switch_to(a, i, why);
}

/* The fastest measured shape; or, of the shapes that never ran and seem faster, the one with the
 * fewest rows, because its time then predicts those of more rows. */
static int best(const struct auto_shape *a, int from)
{
    int top = from;
    for (int i = 0; i < AUTO_SHAPES; i++)
        if (a->of[i].n && tokens_a_ns(a, i, from) > tokens_a_ns(a, top, from))
            top = i;
    for (int i = 0; i < AUTO_SHAPES; i++)
        if (!a->of[i].n && tokens_a_ns(a, i, from) > MARGIN * tokens_a_ns(a, top, from))
            return i;
    return top;
}

/* An optimistic estimate of a rival's tokens per nanosecond, to decide about probes: while it has
 * few measured steps, which the machine may have disturbed, the shorter of the estimated and the
 * measured time counts. */
static double hoped(const struct auto_shape *a, int i)
{
    const struct auto_measure *m = &a->of[i];
    double ns = estimate(a, i, a->now);
    if (m->n)
        ns = m->n < SURE ? fmin(ns, m->ns) : m->ns;
    return auto_shape_tokens(a, i) / ns;
}

/* The share of the speed that is lost during steps of a rival. */
static double loss(const struct auto_shape *a, int i)
{
    return fmax(0, 1 - hoped(a, i) / tokens_a_ns(a, a->now, a->now));
}

static int probe_steps(double lost)
{
    return lost < CLOSE ? PROBE_CLOSE : PROBE_STEPS;
}

/* The rival to probe: the fastest of those measured so long ago that a probe stays within the
 * budget. Plain decoding measures no acceptance, so during it a small chain runs from time to time,
 * however slow it is expected to be. -1: none. */
static int rival(const struct auto_shape *a)
{
    int top = -1;
    for (int i = 0; i < AUTO_SHAPES; i++) {
        double age = (double)(a->steps - a->of[i].last), lost = loss(a, i);
        if (i != a->now && lost < WORST && age > FRESH && age * BUDGET > lost * probe_steps(lost) &&
            (top < 0 || lost < loss(a, top)))
            top = i;
    }
    bool unknown = shapes[a->now].steps == 0 && a->steps - a->drafted > DRAFT_EVERY;
    return top < 0 && unknown ? 2 : top;
}

static void choose(struct auto_shape *a)
{
    if (a->left > 0) {
        bool slow = a->of[a->now].n && a->stay > COLD_RUNS &&
                    tokens_a_ns(a, a->home, a->home) > CLEARLY * tokens_a_ns(a, a->now, a->home);
        if (--a->left == 0 || slow)
            stay_with(a, best(a, a->home), AUTO_BEST);
        return;
    }
    if (a->stay < COLD_RUNS + 3 || a->of[a->now].n == 0)
        return;
    int top = best(a, a->now);
    double ahead = tokens_a_ns(a, top, a->now) / tokens_a_ns(a, a->now, a->now);
    if (a->stay < LEAST_STAY && ahead < CLEARLY)
        return;
    if (top != a->now && ahead > MARGIN) {
        stay_with(a, top, a->of[top].n ? AUTO_BEST : AUTO_TRIED);
        return;
    }
    a->why = AUTO_BEST;
    if (--a->wait > 0)
        return;
    int probe = rival(a);
    if (probe < 0)
        return;
    a->left = probe_steps(loss(a, probe));
    switch_to(a, probe, AUTO_PROBED);
}

void auto_shape_take(struct auto_shape *a, const struct auto_step *s)
{
    a->steps++;
    take_time(a, s);
    if (s->tree && s->tree->n > 1) {
        a->drafted = a->steps;
        take_acceptance(a, s->tree, s->accepted);
    }
    a->stay++;
    choose(a);
}

void auto_shape_rest(struct auto_shape *a)
{
    if (a->left > 0)
        stay_with(a, a->home, AUTO_BEST);
}
