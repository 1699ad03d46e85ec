/* breaks.c - see breaks.h. */
#include "engine/thread/breaks.h"

#include <math.h>

int breaks_add(struct breaks *b, const char *expr, enum break_kind kind, struct err *e)
{
    struct breakpoint p = {.about.kind = kind, .last = NAN};
    if (!(kind == BREAK_DISPLAY ? expr_parse : expr_parse_condition)(&p.when, expr, e))
        return 0;
    if (b->n == MAX_BREAKS)
        return FAILED(0, e, ERR_USAGE, "there are %d breakpoints already; /delete removes one",
                      MAX_BREAKS);
    memcpy(p.about.text, p.when.text, sizeof p.about.text);
    p.about.number = ++b->last_number;
    b->at[b->n++] = p;
    return p.about.number;
}

bool breaks_remove(struct breaks *b, int number, struct err *e)
{
    if (number <= 0) {
        int kept = 0;
        for (int i = 0; i < b->n; i++)
            if ((b->at[i].about.kind == BREAK_DISPLAY) == (number == 0))
                b->at[kept++] = b->at[i];
        b->n = kept;
        return true;
    }
    for (int i = 0; i < b->n; i++)
        if (b->at[i].about.number == number) {
            CUT(b->at, b->n, i);
            return true;
        }
    return err_set(e, ERR_USAGE, "there is no breakpoint %d; /breaks lists them", number);
}

bool breaks_pause(const struct breaks *b)
{
    for (int i = 0; i < b->n; i++)
        if (b->at[i].about.kind != BREAK_DISPLAY)
            return true;
    return b->has_condition;
}

void breaks_about(const struct breaks *b, const struct step_facts *s, struct debug_break *out)
{
    for (int i = 0; i < b->n; i++) {
        out[i] = b->at[i].about;
        if (s && out[i].kind == BREAK_DISPLAY)
            expr_print(&b->at[i].when, s, out[i].value, sizeof out[i].value);
    }
}

void breaks_forget(struct breaks *b)
{
    for (int i = 0; i < b->n; i++)
        b->at[i].last = NAN;
}

/* "was 12, is 11"; a number that is not known is said to be unknown. */
static void print_change(char *out, size_t n, double was, double is)
{
    char a[32] = "unknown", b[32] = "unknown";
    if (!isnan(was))
        snprintf(a, sizeof a, "%.9g", was);
    if (!isnan(is))
        snprintf(b, sizeof b, "%.9g", is);
    snprintf(out, n, "was %s, is %s", a, b);
}

/* A watch of a number. */
static bool value_changed(struct breakpoint *b, const struct step_facts *s, char *why, size_t n)
{
    double was = b->last, is = expr_value(&b->when, s);
    bool first = isnan(was), same = was == is || (isnan(was) && isnan(is));
    char change[80];
    b->last = is;
    if (first || same)
        return false;
    print_change(change, sizeof change, was, is);
    snprintf(why, n, "watch %d: %s %s", b->about.number, b->about.text, change);
    return true;
}

/* A watch of nodes or tokens: whether its truth changed. */
static bool truth_changed(struct breakpoint *b, bool holds, char *why, size_t n)
{
    double was = b->last;
    b->last = holds;
    if (isnan(was) || (was != 0) == holds)
        return false;
    snprintf(why, n, "watch %d: %s %s", b->about.number, b->about.text,
             holds ? "has become true" : "has become false");
    return true;
}

static bool fires(struct breakpoint *b, const struct step_facts *s, char *why, size_t n)
{
    int node, token;
    if (b->about.kind == BREAK_DISPLAY)
        return false;
    if (b->about.kind == BREAK_WATCH && !b->when.nodes && !b->when.tokens)
        return value_changed(b, s, why, n);
    bool holds = expr_holds(&b->when, s, &node, &token);
    if (b->about.kind == BREAK_WATCH)
        return truth_changed(b, holds, why, n);
    int k = snprintf(why, n, "breakpoint %d: %s", b->about.number, b->about.text);
    if (holds && node >= 0 && (size_t)k < n)
        snprintf(why + k, n - (size_t)k, " (node %d)", node);
    return holds;
}

bool breaks_hold(struct breaks *b, const struct step_facts *s, bool past, bool *broke, char *why,
                 size_t n)
{
    bool found = false;
    for (int i = 0; i < b->n; i++) {
        char line[340];
        if (!fires(&b->at[i], s, line, sizeof line) || past)
            continue;
        b->at[i].about.hits++;
        if (!found)
            snprintf(why, n, "%s", line);
        found = true;
    }
    *broke = found;
    if (!found && !past && b->has_condition && expr_holds(&b->condition, s, NULL, NULL)) {
        snprintf(why, n, "%s", b->condition.text);
        found = true;
    }
    return found;
}
