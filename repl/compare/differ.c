/* differ.c - see differ.h. */
#include "repl/compare/differ.h"

#include <math.h>

#include "kernels/lines.h"
#include "repl/compare/facts.h"

const char *diff_class_name(enum diff_class c)
{
    static const char *const name[] = {"none", "prompt", "page table", "draft", "logits", "tokens",
                                       "reply", "stop", "messages", "log"};
    return name[c];
}

/* ---- one step -------------------------------------------------------------------------------- */

bool differ_set(struct difference *d, enum diff_class class, const char *fmt, ...)
{
    PRINT_ARGS(d->why, fmt);
    d->class = class;
    return true;
}

static bool numbers(struct difference *d, enum diff_class class, const char *name, int64_t a,
                    int64_t b, const struct diff_names *in)
{
    return a != b && differ_set(d, class, "%s %lld %s, %lld %s", name, (long long)a, in->a,
                                (long long)b, in->b);
}

static bool digests(struct difference *d, enum diff_class class, uint64_t a, uint64_t b,
                    const struct diff_names *in)
{
    return a != b && differ_set(d, class, "digest %016llx %s, %016llx %s", (unsigned long long)a,
                                in->a, (unsigned long long)b, in->b);
}

int ids_differ_at(const struct ids *a, const struct ids *b)
{
    int i = 0, n = min_int(a->n, b->n);
    while (i < n && a->v[i] == b->v[i])
        i++;
    return i == a->n && i == b->n ? -1 : i;
}

static bool differ_ids(const struct ids *a, const struct ids *b, enum diff_class class,
                       const struct diff_names *in, struct difference *d)
{
    int i = ids_differ_at(a, b);
    if (i >= 0 && i < min_int(a->n, b->n))
        return differ_set(d, class, "token %d is %d %s, %d %s", i, a->v[i], in->a, b->v[i], in->b);
    return i >= 0 && differ_set(d, class, "%d tokens %s, %d %s", a->n, in->a, b->n, in->b);
}

/* Whether b is a and the stop token, whose id the program that computed a did not tell. */
static bool lacks_end(const struct reported_reply *a, const struct reported_reply *b, int first)
{
    return a->ended && b->ended && first == a->ids->n && b->ids->n == first + 1 &&
           a->counted == b->ids->n;
}

int differ_replies(const struct reported_reply *a, const struct reported_reply *b, bool *by_text)
{
    int i = 0;
    *by_text = !(a->has_ids && b->has_ids) && a->text && b->text;
    if (*by_text) {
        while (a->text[i] && a->text[i] == b->text[i])
            i++;
        return a->text[i] == b->text[i] ? -1 : i;
    }
    i = ids_differ_at(a->ids, b->ids);
    return lacks_end(a, b, i) || lacks_end(b, a, i) ? -1 : i;
}

/* The drafted tree; which nodes were accepted is compared with the tokens. */
static bool shapes(struct difference *d, const struct tree *a, const struct tree *b,
                   const struct diff_names *in)
{
    if (numbers(d, DIFF_DRAFT, "tree nodes", a->n, b ? b->n : 0, in))
        return true;
    for (int i = 0; b && i < a->n; i++)
        if (numbers(d, DIFF_DRAFT, "token of a node", a->token[i], b->token[i], in) ||
            numbers(d, DIFF_DRAFT, "parent of a node", a->parent[i], b->parent[i], in))
            return true;
    return false;
}

/* The page digest covers the draft's pass over the accepted cells, and the draft digest the fates
 * of its nodes. Both therefore differ if another path was accepted; they are evidence only if the
 * path is the same. */
static bool same_path(const struct step_row *a, const struct step_row *b)
{
    return a->rec.accepted == b->rec.accepted && a->rec.bonus == b->rec.bonus &&
           ids_equal(&a->tokens, &b->tokens);
}

/* Compares what a step drafted: the trees if both logs have them, else the numbers of nodes and, on
 * the same path, the digests. */
static bool drafts(struct difference *d, const struct step_row *a, const struct step_row *b,
                   bool same, const struct diff_names *in)
{
    return numbers(d, DIFF_DRAFT, "drafted nodes", a->rec.drafted, b->rec.drafted, in) ||
           (a->tree && b->tree && shapes(d, a->tree, b->tree, in)) ||
           (same && digests(d, DIFF_DRAFT, a->rec.draft_digest, b->rec.draft_digest, in));
}

/* One token of a reply: where it was emitted, and what the logits said; fact NULL: not known. */
struct emitted {
    int32_t token;
    int step;
    const struct token_fact *fact;
};

static bool same_bits(float a, float b)
{
    return memcmp(&a, &b, sizeof a) == 0;
}

/* Whether the rows from which two tokens were chosen have the same best logits, as far as is known:
 * for greedy choices the best two, whichever of them was chosen. */
static bool same_row(const struct emitted *x, const struct emitted *y)
{
    const struct token_fact *a = x->fact, *b = y->fact;
    if (x->token == y->token)
        return same_bits(a->logp, b->logp) && a->rival == b->rival &&
               same_bits(a->rival_logp, b->rival_logp);
    return a->rival == y->token && b->rival == x->token && same_bits(a->logp, b->rival_logp) &&
           same_bits(a->rival_logp, b->logp);
}

/* The rival of a sampled token that is not the best one is the best one, so two draws from equal
 * logits agree in the best token's log probability. */
static bool same_best(const struct emitted *x, const struct emitted *y)
{
    const struct token_fact *a = x->fact, *b = y->fact;
    return same_row(x, y) ||
           same_bits(fmaxf(a->logp, a->rival_logp), fmaxf(b->logp, b->rival_logp));
}

/* Whether the rows from which the first differing token and those before it were chosen are equal
 * on both sides: then the choice differs, not the logits. The digest does not show that: it covers
 * all rows of the path, which differ after the first different token. */
static bool chosen_from_equal_rows(const struct step_row *a, const struct step_row *b)
{
    int i = 0, n = min_int(a->tokens.n, b->tokens.n);
    if (!a->facts || !b->facts)
        return false;
    for (bool same = true; i < n && same; i++) {
        struct emitted x = {a->tokens.v[i], a->n, &a->facts[i]},
            y = {b->tokens.v[i], b->n, &b->facts[i]};
        same = x.token == y.token;
        if (!(same ? same_row(&x, &y) : same_best(&x, &y)))
            return false;
    }
    return true;
}

/* Compares logits, choices and tokens of a step with equal drafts. */
static bool choices(struct difference *d, const struct step_row *a, const struct step_row *b,
                    const struct diff_names *in)
{
    const struct step_rec *x = &a->rec, *y = &b->rec;
    bool path = !same_path(a, b) && chosen_from_equal_rows(a, b);
    return (!path && digests(d, DIFF_LOGITS, x->logit_digest, y->logit_digest, in)) ||
           numbers(d, DIFF_SAMPLER, "accepted", x->accepted, y->accepted, in) ||
           numbers(d, DIFF_SAMPLER, "bonus token", x->bonus, y->bonus, in) ||
           differ_ids(&a->tokens, &b->tokens, DIFF_SAMPLER, in, d) ||
           numbers(d, DIFF_SAMPLER, "random numbers drawn", (int64_t)x->draws, (int64_t)y->draws,
                   in) ||
           (a->tree && b->tree &&
            digests(d, DIFF_SAMPLER, tree_digest(a->tree), tree_digest(b->tree), in));
}

/* Compares two records of the same step. pages: both runs number pages alike, so page digests can
 * be compared. */
static bool differ_step(const struct step_row *a, const struct step_row *b, bool pages,
                        const struct diff_names *in, struct difference *d)
{
    const struct step_rec *x = &a->rec, *y = &b->rec;
    struct difference draft = *d;
    bool same = same_path(a, b);
    if (numbers(d, DIFF_PAGES, "step kind", x->kind, y->kind, in) ||
        numbers(d, DIFF_PAGES, "position", x->pos0, y->pos0, in))
        return true;
    bool drafted = drafts(&draft, a, b, same, in);
    if (pages && same && !drafted && digests(d, DIFF_PAGES, x->page_digest, y->page_digest, in))
        return true;
    if (!drafted)
        return numbers(d, DIFF_PAGES, "rows", x->rows, y->rows, in) || choices(d, a, b, in);
    *d = draft;
    return true;
}

/* ---- one turn -------------------------------------------------------------------------------- */

/* Sets the steps at which the runs differ: a in the first run, b in the second; 0: none. */
static void at_steps(struct difference *d, int a, int b)
{
    d->step[0] = a;
    d->step[1] = b;
}

static bool by_steps(struct comparison *of, const struct trace_turn *a, const struct trace_turn *b)
{
    const struct diff_names *in = of->in;
    struct difference *d = &of->d;
    struct diff_counts *n = &of->n;
    char why[200];
    int both = min_int(a->n_step, b->n_step);
    bool exact = of->how == DIFF_EXACTLY, numbered = !(of->all.may & MAY_NUMBER);
    pages_turn(&of->pages, a->settings, b->settings);
    for (int i = 0; i < both; i++) {
        const struct step_row *x = &a->step[i], *y = &b->step[i];
        bool pages = exact || (numbered && x->rec.fused == y->rec.fused);
        n->pages |= pages;
        bool meant = !numbered && pages_differ(&of->pages, x, y, in, why, sizeof why);
        n->meaning |= !numbered && !of->pages.unknown;
        if (differ_step(x, y, pages, in, d) || (meant && differ_set(d, DIFF_PAGES, "%s", why))) {
            at_steps(d, x->n, y->n);
            return true;
        }
        n->steps++;
        n->tokens += x->tokens.n;
    }
    if (!numbered)
        pages_follow(&of->pages, a, b, both);
    bool more_a = a->n_step > both && (!b->cut || (exact && !b->fault[0]));
    bool more_b = b->n_step > both && !a->cut;
    if (!more_a && !more_b)
        return false;
    const struct step_row *x = more_a ? &a->step[both] : &b->step[both];
    at_steps(d, more_a ? x->n : 0, more_a ? 0 : x->n);
    return differ_set(d, DIFF_REPLY, "there is no such step %s: the turn is over (%s)",
                      more_a ? in->b : in->a, stop_name(more_a ? b->stop : a->stop));
}

static struct emitted emitted(const struct trace_turn *t, int i)
{
    int at, k = trace_step_of(t, i, &at);
    const struct step_row *s = &t->step[k];
    return (struct emitted){s->tokens.v[at], s->n, s->facts ? &s->facts[at] : NULL};
}

void counts_logp(struct diff_counts *n, float a, float b, int turn, int token)
{
    double far = fabs((double)a - (double)b);
    n->n_logp += !isnan(far);
    if (far > n->most) {
        n->most = far;
        n->most_turn = turn;
        n->most_token = token;
    }
}

static bool by_position(struct comparison *of, const struct trace_turn *a,
                        const struct trace_turn *b)
{
    const struct conditions *c = &of->all;
    const struct diff_names *in = of->in;
    struct difference *d = &of->d;
    struct diff_counts *n = &of->n;
    int both = min_int(trace_emitted(a), trace_emitted(b));
    bool exact = !(c->may & (MAY_ROUND | MAY_LOGITS));
    n->by_position = true;
    for (int i = 0; i < both; i++) {
        struct emitted x = emitted(a, i), y = emitted(b, i);
        bool facts = x.fact && y.fact;
        if (facts && x.token == y.token)
            counts_logp(n, x.fact->logp, y.fact->logp, a->n, i);
        d->token = i;
        at_steps(d, x.step, y.step);
        n->facts |= facts;
        if (x.token != y.token) {
            bool chosen = c->may & MAY_SAMPLE || (exact && facts);
            bool equal = !facts || same_best(&x, &y);
            return differ_set(d, chosen && equal ? DIFF_SAMPLER : DIFF_LOGITS,
                              "token %d is %d %s, %d %s", i, x.token, in->a, y.token, in->b);
        }
        if (exact && facts && !same_row(&x, &y))
            return differ_set(d, DIFF_LOGITS, "log probability of token %d %.9g %s, %.9g %s; of "
                              "its rival %.9g, %.9g", i, (double)x.fact->logp, in->a,
                              (double)y.fact->logp, in->b, (double)x.fact->rival_logp,
                              (double)y.fact->rival_logp);
        n->tokens++;
    }
    d->token = -1;
    at_steps(d, 0, 0);
    n->steps += a->n_step;
    return false;
}

/* ---- turns that were stopped ----------------------------------------------------------------- */

static bool faults_on(const char *settings)
{
    FOR_LINES(l, settings)
        if (strncmp(l.p, "bug.", 4) == 0 && strncmp(l.p + line_name(l).n, "=off", 4) != 0)
            return true;
    return false;
}

/* Whether the sides may be stopped at different places: a historical fault is on on both, and what
 * it does depends on pages, trees and numbers, of which some differ. */
static bool stops_may_differ(const struct conditions *c, const struct trace_turn *a,
                             const struct trace_turn *b)
{
    return c->may & ~(unsigned)(MAY_FAULT | MAY_BUILD) && !(c->may & MAY_FAULT) &&
           faults_on(a->settings) && faults_on(b->settings);
}

/* Whether later turns have different contexts. A turn without a reply leaves nothing in the
 * context; a replay that got further takes its reply back. */
static bool contexts_part(const struct trace_turn *a, const struct trace_turn *b)
{
    int x = trace_emitted(a), y = trace_emitted(b);
    return x && y && x != y;
}

__attribute__((format(printf, 2, 3)))
static void say_stop(struct diff_counts *n, const char *fmt, ...)
{
    if (!n->stop[0])
        PRINT_ARGS(n->stop, fmt);
}

/* A fault ended the turn on both sides. */
static bool both_stopped(struct comparison *of, const struct trace_turn *a,
                         const struct trace_turn *b)
{
    int at = trace_emitted(a);
    bool steps = of->how != DIFF_EXACTLY || !a->n_step || a->n_step == b->n_step;
    if (a->rule != b->rule || !steps ||
        (at != trace_emitted(b) && !stops_may_differ(&of->all, a, b))) {
        at_steps(&of->d, a->fault_step, b->fault_step);
        return differ_set(&of->d, DIFF_STOP, "%.90s %s, %.90s %s", a->fault, of->in->a, b->fault,
                          of->in->b);
    }
    of->n.over = contexts_part(a, b);
    if (at != trace_emitted(b))
        say_stop(&of->n, "turn %d was stopped after %d token%s %s, after %d %s, by the same rule: "
                         "%.90s%s",
                 a->n, at, plural(at), of->in->a, trace_emitted(b), of->in->b, a->fault,
                 of->n.over ? "; later turns have different contexts" : "");
    else
        say_stop(&of->n, "turn %d was stopped after the same %d token%s on both sides: %.140s",
                 a->n, at, plural(at), a->fault);
    return false;
}

/* A fault ended the turn on one side only. */
static bool one_stopped(struct comparison *of, const struct trace_turn *a,
                        const struct trace_turn *b)
{
    const struct trace_turn *bad = a->fault[0] ? a : b;
    const char *where = bad == a ? of->in->a : of->in->b;
    at_steps(&of->d, bad == a ? bad->fault_step : 0, bad == a ? 0 : bad->fault_step);
    if (!bad->rule) /* the device, or invalid numbers */
        return differ_set(&of->d, DIFF_LOGITS, "%.200s (%s)", bad->fault, where);
    if (!stops_may_differ(&of->all, a, b))
        return differ_set(&of->d, DIFF_STOP, "%.200s (%s only)", bad->fault, where);
    at_steps(&of->d, 0, 0);
    of->n.over = contexts_part(a, b);
    say_stop(&of->n, "turn %d was stopped %s only; the historical fault is on on both sides, and "
                     "what it does depends on what differs: %.90s%s", a->n, where, bad->fault,
             of->n.over ? "; later turns have different contexts" : "");
    return false;
}

static bool stops(struct comparison *of, const struct trace_turn *a, const struct trace_turn *b)
{
    of->n.stopped += a->cut || b->cut;
    if (a->forced || b->forced || (!a->fault[0] && !b->fault[0]))
        return false;
    return (a->fault[0] && b->fault[0] ? both_stopped : one_stopped)(of, a, b);
}

/* ---- turns ----------------------------------------------------------------------------------- */

/* A message in one line, shortened. */
static void quote(const char *text, char out[64])
{
    size_t n = 0;
    const char *p = text;
    while (*p && n < 56)
        out[n++] = (unsigned char)*p < ' ' ? ' ' : *p, p++;
    while (*p && n && ((unsigned char)*p & 0xc0) == 0x80) /* not within a character */
        n--, p--;
    snprintf(out + n, 64 - n, "%s", *p ? "..." : "");
}

bool differ_prompts(const struct trace_turn *a, const struct trace_turn *b,
                    const struct diff_names *in, struct difference *d)
{
    char x[64], y[64];
    const char *mine = a->user ? a->user : "", *other = b->user ? b->user : "";
    bool known = a->prompt.n && b->prompt.n, same = strcmp(mine, other) == 0;
    if (a->no_ids != b->no_ids)
        return differ_set(d, DIFF_MESSAGE, "not known %s, a pack without text and token ids",
                          a->no_ids ? in->a : in->b);
    if (!known && !facts_served(a->about) && !facts_served(b->about))
        known = a->prompt.n || b->prompt.n; /* of a refused message there is no prompt */
    if (known && ids_equal(&a->prompt, &b->prompt))
        return false;
    if (known && (same || !*mine || !*other))
        return differ_ids(&a->prompt, &b->prompt, DIFF_PROMPT, in, d);
    if (a->no_text || b->no_text)
        return false; /* whether they differ is not known */
    quote(mine, x);
    quote(other, y);
    return !same && differ_set(d, DIFF_MESSAGE, "\"%s\" %s, \"%s\" %s", x, in->a, y, in->b);
}

/* Whether a run ended the reply where a pool was full, and the other ended it elsewhere. */
static bool full_elsewhere(const struct trace_turn *a, const struct trace_turn *b)
{
    bool differ = a->stop != b->stop || !ids_equal(&a->reply, &b->reply);
    return differ && (a->stop == STOP_KV_FULL || b->stop == STOP_KV_FULL);
}

/* Whether a run reused fewer tokens of the prompt, because pages had run short. */
static bool evicted_elsewhere(const struct trace_turn *a, const struct trace_turn *b)
{
    return a->n_reused != b->n_reused && (a->evicted || b->evicted);
}

static int int_fact(const char *lines, const char *name)
{
    FREED(free_at) char *v = lines ? facts_value(lines, name) : NULL;
    const char *at = v;
    int n = 0;
    return v && int_at(&at, &n) ? n : 0;
}

/* Whether a chunk of the prompt was halved, because pages had run short: how often depends on what
 * a page holds. */
static bool halved(const struct trace_turn *t)
{
    int chunk = int_fact(t->settings, "chunk"), rows = int_fact(t->about, "rows");
    bool found = false;
    if (rows && rows < chunk)
        chunk = rows;
    for (int i = 0; i + 1 < t->n_step && t->step[i + 1].rec.kind == STEP_PREFILL; i++)
        found |= 2 * t->step[i].rec.rows <= chunk;
    return found;
}

static bool turns(struct comparison *of, const struct trace_turn *a, const struct trace_turn *b)
{
    const struct conditions *c = &of->all;
    const struct diff_names *in = of->in;
    struct difference *d = &of->d;
    struct diff_counts *n = &of->n;
    bool exact = of->how == DIFF_EXACTLY, forced = a->forced || b->forced;
    bool logged = a->n_step && (b->n_step || exact);
    if (differ_prompts(a, b, in, d))
        return true;
    if (!exact && full_elsewhere(a, b))
        conditions_short(&of->all, MAY_STEP | MAY_END);
    if (!exact && (evicted_elsewhere(a, b) || halved(a) || halved(b)))
        conditions_short(&of->all, MAY_STEP);
    bool steps = !(c->may & (MAY_STEP | MAY_ROUND | MAY_LOGITS | MAY_SAMPLE)) && !forced;
    if (logged && (steps ? by_steps : by_position)(of, a, b))
        return true;
    if (stops(of, a, b))
        return true;
    n->text_only |= a->reply.n && !a->n_step;
    n->turns++;
    bool end = !a->cut && (exact || !b->cut) && !forced && !(c->may & MAY_END);
    if ((end || exact) && differ_ids(&a->reply, &b->reply, DIFF_REPLY, in, d))
        return true;
    return end && a->stop != STOP_OPEN && b->stop != STOP_OPEN && a->stop != b->stop &&
           differ_set(d, DIFF_REPLY, "it ended with %s %s, with %s %s", stop_name(a->stop), in->a,
                      stop_name(b->stop), in->b);
}

void comparison_begin(struct comparison *c, enum diff_how how, const struct diff_names *in)
{
    *c = (struct comparison){.how = how, .in = in, .d.token = -1, .n.most_turn = -1,
                             .all.may = how == DIFF_BY_POSITION ? MAY_STEP : 0};
}

void comparison_turn(struct comparison *c, const struct trace_turn *a, const struct trace_turn *b)
{
    if (c->d.class || c->n.over)
        return;
    if (c->how != DIFF_EXACTLY)
        conditions_read(&c->all, a->about, a->settings, b->about, b->settings);
    c->d.index = c->n_turn++;
    c->d.turn = a->n;
    turns(c, a, b);
}

void comparison_free(struct comparison *c)
{
    page_meaning_free(&c->pages);
    conditions_free(&c->all);
}

bool differ_numbers_of_turns(const struct trace *a, const struct trace *b,
                             const struct diff_names *in, struct difference *d)
{
    if (a->n == b->n)
        return false;
    d->index = min_int(a->n, b->n);
    d->turn = (a->n > b->n ? a : b)->turn[d->index].n;
    return differ_set(d, DIFF_MESSAGE, "there is no such turn %s", a->n > b->n ? in->b : in->a);
}

void differ_traces(const struct trace *a, const struct trace *b, enum diff_how how,
                   const struct diff_names *in, struct difference *d, struct conditions *all,
                   struct diff_counts *n)
{
    struct comparison c;
    comparison_begin(&c, how, in);
    for (int i = 0; i < min_int(a->n, b->n); i++)
        comparison_turn(&c, &a->turn[i], &b->turn[i]);
    if (!c.d.class && !c.n.over)
        differ_numbers_of_turns(a, b, in, &c.d);
    *d = c.d;
    *all = c.all;
    *n = c.n;
    page_meaning_free(&c.pages);
}
