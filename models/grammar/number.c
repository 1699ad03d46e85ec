/* number.c - alternatives for the numbers of a range, digit by digit. See parts.h.
 *
 * A range of integers is cut into runs of numbers with the same number of digits, and a run into
 * prefixes behind which each digit is any of 0 to 9. Of multiples, a rule for each remainder says
 * which digits may follow. */
#include "models/grammar/parts.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    MOST_DIGITS = 18,  /* of an integer */
    MOST_PLACES = 6,   /* of a limit, behind its point */
    MOST_FRACTION = 15,
    MOST_MULTIPLE = 1000,
};

struct digits {
    struct grammar *g;
    int rule;
    bool negative;
    int point; /* digits behind the decimal point; 0: there is none */
    bool fraction; /* any fraction may follow */
    int multiple;  /* of which the digits, read without the point, are a multiple; 0: of any */
    int *rest;     /* (MOST_DIGITS + 1, multiple) 1 + the rule of rest_of(); 0: not made yet */
};

/* The rule of the last n digits of a number whose first digits have the remainder r. */
static int rest_of(const struct digits *d, int n, int r)
{
    int *known = &d->rest[n * d->multiple + r];
    if (*known)
        return *known - 1;
    int rule = grammar_rule(d->g);
    struct sequence s = {0};
    *known = rule + 1;
    if (n == 0 && r == 0)
        grammar_alt(d->g, rule, &s);
    for (int c = 0; n && c <= 9; c++) {
        int now = (10 * r + c) % d->multiple;
        if (n == 1 && now)
            continue;
        if (n == d->point)
            put_literal(d->g, &s, ".");
        put_range(d->g, &s, '0' + c, '0' + c);
        put_call(d->g, &s, rest_of(d, n - 1, now));
        grammar_alt(d->g, rule, &s);
    }
    return rule;
}

/* As add_run(), of multiples. */
static void add_multiples(const struct digits *d, const char *prefix, int n_prefix, int from,
                          int to, int n)
{
    struct sequence s = {0};
    int r = 0;
    for (int i = 0; i < n_prefix; i++)
        r = (10 * r + prefix[i] - '0') % d->multiple;
    for (int c = from; c <= to; c++) {
        int now = (10 * r + c) % d->multiple;
        if (n_prefix == n - 1 && now)
            continue;
        if (d->negative)
            put_literal(d->g, &s, "-");
        for (int i = 0; i <= n_prefix; i++) {
            if (d->point && i == n - d->point)
                put_literal(d->g, &s, ".");
            put_range(d->g, &s, i < n_prefix ? prefix[i] : '0' + c,
                      i < n_prefix ? prefix[i] : '0' + c);
        }
        put_call(d->g, &s, rest_of(d, n - n_prefix - 1, now));
        grammar_alt(d->g, d->rule, &s);
    }
}

/* Adds "[-]PREFIX[from-to]ANY..." with n digits in all. */
static void add_run(const struct digits *d, const char *prefix, int n_prefix, int from, int to,
                    int n)
{
    struct sequence s = {0};
    if (d->multiple) {
        add_multiples(d, prefix, n_prefix, from, to, n);
        return;
    }
    if (d->negative)
        put_literal(d->g, &s, "-");
    for (int i = 0; i < n; i++) {
        if (d->point && i == n - d->point)
            put_literal(d->g, &s, ".");
        if (i < n_prefix)
            put_bytes(d->g, &s, prefix + i, 1);
        else if (i == n_prefix)
            put_range(d->g, &s, '0' + from, '0' + to);
        else
            put_range(d->g, &s, '0', '9');
    }
    if (d->fraction) {
        int digit = grammar_rule(d->g);
        struct sequence one = {0};
        put_range(d->g, &one, '0', '9');
        grammar_alt(d->g, digit, &one);
        put_literal(d->g, &s, ".");
        put_repeat(d->g, &s, digit, 1, MOST_FRACTION);
    }
    grammar_alt(d->g, d->rule, &s);
}

/* The numbers from lo to hi, both of n digits (with leading zeros): those with the common prefix
 * first. */
static void add_same_length(const struct digits *d, const char *lo, const char *hi, int n)
{
    int same = 0;
    while (same < n && lo[same] == hi[same])
        same++;
    if (same >= n - 1) {
        add_run(d, lo, n - 1, lo[n - 1] - '0', hi[n - 1] - '0', n);
        return;
    }
    /* lo's side: prefixes of lo, then a greater digit; the last digit includes lo's own */
    for (int i = n - 1; i > same; i--) {
        int from = lo[i] - '0' + (i < n - 1);
        if (from <= 9)
            add_run(d, lo, i, from, 9, n);
    }
    if (lo[same] + 1 <= hi[same] - 1)
        add_run(d, lo, same, lo[same] + 1 - '0', hi[same] - 1 - '0', n);
    for (int i = same + 1; i < n; i++) {
        int to = hi[i] - '0' - (i < n - 1);
        if (to >= 0)
            add_run(d, hi, i, 0, to, n);
    }
}

static void print_digits(char out[32], int64_t v, int least)
{
    snprintf(out, 32, "%0*" PRId64, least, v);
}

/* Whole numbers 0 <= lo <= hi, written with at least `least` digits. */
static void add_whole(const struct digits *d, int64_t lo, int64_t hi, int least)
{
    char a[32], b[32];
    while (lo <= hi) {
        int64_t end = 9;
        print_digits(a, lo, least);
        for (size_t i = 1; i < strlen(a); i++)
            end = end * 10 + 9;
        end = end < hi ? end : hi;
        print_digits(b, end, least);
        add_same_length(d, a, b, (int)strlen(a));
        lo = end + 1;
    }
}

/* Signed whole numbers lo <= hi. Zero has no sign. */
static void add_signed(struct digits *d, int64_t lo, int64_t hi, int least)
{
    if (lo < 0) {
        d->negative = true;
        add_whole(d, hi < 0 ? -hi : 1, -lo, least);
        d->negative = false;
    }
    if (hi >= 0)
        add_whole(d, lo > 0 ? lo : 0, hi, least);
}

static double most(void)
{
    return pow(10, MOST_DIGITS) - 1;
}

void grammar_integers(struct grammar *g, int rule, double lo, double hi)
{
    const int64_t limit = INT64_C(999999999999999999);
    struct digits d = {.g = g, .rule = rule};
    int64_t from = lo <= -most() ? -limit : lo >= most() ? limit : (int64_t)ceil(lo);
    int64_t to = hi >= most() ? limit : hi <= -most() ? -limit : (int64_t)floor(hi);
    if (lo <= most() && hi >= -most() && from <= to)
        add_signed(&d, from, to, 1);
}

/* Decimal places of a limit, at most MOST_PLACES. */
static int places(double x)
{
    double scale = 1;
    for (int n = 0; n < MOST_PLACES; n++, scale *= 10)
        if (x * scale == floor(x * scale))
            return n;
    return MOST_PLACES;
}

/* Numbers with a fraction between two limits that a double holds exactly enough: whole numbers;
 * whole numbers i with any fraction where all of [i, i + 1) lies inside; and numbers with as many
 * places as the limits have. */
static void add_between(struct grammar *g, int rule, double lo, double hi)
{
    struct digits d = {.g = g, .rule = rule, .fraction = true};
    /* i >= 0: i.f lies in [i, i + 1]; i <= -1 or "-0": in [-i - 1, -i] */
    if (hi > 0 && floor(hi) - 1 >= fmax(ceil(lo), 0))
        add_whole(&d, (int64_t)fmax(ceil(lo), 0), (int64_t)floor(hi) - 1, 1);
    d.negative = true;
    if (lo < 0 && -ceil(lo) - 1 >= fmax(ceil(-hi), 0))
        add_whole(&d, (int64_t)fmax(ceil(-hi), 0), (int64_t)-ceil(lo) - 1, 1);
    d.negative = d.fraction = false;
    d.point = places(lo) > places(hi) ? places(lo) : places(hi);
    if (d.point == 0 && floor(lo) == lo && floor(hi) == hi && hi - lo >= 1)
        return;
    d.point = d.point ? d.point : 1;
    double scale = pow(10, d.point), first = ceil(lo * scale), last = floor(hi * scale);
    /* a decimal text is read as the double nearest to it: stay inside where the product rounds */
    first += first / scale < lo;
    last -= last / scale > hi;
    if (first <= last && fabs(first) < 1e17 && fabs(last) < 1e17)
        add_signed(&d, (int64_t)first, (int64_t)last, d.point + 1);
}

/* A number as JSON has it, of bounded length. */
static void add_any(struct grammar *g, int rule, bool negative)
{
    struct sequence s = {0};
    struct set sign = {0}, e = {0};
    int digit = grammar_rule(g), whole = grammar_rule(g), fraction = grammar_rule(g),
        power = grammar_rule(g);
    put_range(g, &s, '0', '9');
    grammar_alt(g, digit, &s);
    put_literal(g, &s, "0");
    grammar_alt(g, whole, &s);
    put_range(g, &s, '1', '9');
    put_repeat(g, &s, digit, 0, MOST_DIGITS - 1);
    grammar_alt(g, whole, &s);
    grammar_alt(g, fraction, &s);
    put_literal(g, &s, ".");
    put_repeat(g, &s, digit, 1, MOST_FRACTION);
    grammar_alt(g, fraction, &s);
    grammar_alt(g, power, &s);
    set_add(&e, 'e', 'e'), set_add(&e, 'E', 'E');
    set_add(&sign, '+', '+'), set_add(&sign, '-', '-');
    put_set(g, &s, &e);
    put_set(g, &s, &sign);
    put_repeat(g, &s, digit, 1, 2);
    grammar_alt(g, power, &s);
    for (int i = 0; i < 1 + negative; i++) {
        if (i)
            put_literal(g, &s, "-");
        put_call(g, &s, whole);
        put_call(g, &s, fraction);
        put_call(g, &s, power);
        grammar_alt(g, rule, &s);
    }
}

void grammar_numbers(struct grammar *g, int rule, double lo, double hi)
{
    if (lo <= -most() && hi >= most()) {
        add_any(g, rule, true);
        return;
    }
    if (lo <= 0 && hi >= most() && lo == 0) {
        add_any(g, rule, false);
        return;
    }
    grammar_integers(g, rule, lo, hi);
    add_between(g, rule, fmax(lo, -1e15), fmin(hi, 1e15));
}

/* Multiples of m / 10^places from lo to hi, written with so many places. */
static void add_multiples_of(struct grammar *g, int rule, double lo, double hi, int m, int places)
{
    const int64_t limit = INT64_C(99999999999999999);
    double scale = pow(10, places);
    struct digits d = {.g = g, .rule = rule, .point = places, .multiple = m};
    int64_t from = -limit, to = limit;
    if (lo * scale > (double)-limit) {
        from = (int64_t)fmin(floor(lo * scale), (double)limit) - 1;
        while (from <= limit && (double)from / scale < lo)
            from++;
    }
    if (hi * scale < (double)limit) {
        to = (int64_t)fmax(ceil(hi * scale), (double)-limit) + 1;
        while (to >= -limit && (double)to / scale > hi)
            to--;
    }
    d.rest = xcalloc((size_t)(MOST_DIGITS + 1) * (size_t)m, sizeof *d.rest);
    if (from <= to)
        add_signed(&d, from, to, places + 1);
    free(d.rest);
}

bool grammar_multiples(struct grammar *g, int rule, double lo, double hi, double step, bool whole)
{
    double scale = 1;
    int places = 0;
    while (places < MOST_PLACES && round(step * scale) / scale != step)
        scale *= 10, places++;
    double m = round(step * scale);
    if (m / scale != step || m < 1 || m > MOST_MULTIPLE)
        return false;
    int plain = (int)m; /* of whole numbers */
    for (int i = 0; i < places; i++)
        plain /= plain % 10 == 0 ? 10 : plain % 5 == 0 ? 5 : plain % 2 == 0 ? 2 : 1;
    add_multiples_of(g, rule, lo, hi, plain, 0);
    if (places && !whole)
        add_multiples_of(g, rule, lo, hi, (int)m, places);
    return true;
}
