/* number.c - alternatives for the numbers of a range, digit by digit. See parts.h.
 *
 * A range of integers is cut into runs of numbers with the same number of digits, and a run into
 * prefixes behind which each digit is any of 0 to 9. Of multiples, a rule for each remainder says
 * which digits may follow. */
#include "models/grammar/parts.h"

#include <inttypes.h>
#include <math.h>

enum {
    MOST_DIGITS = 18,  /* of an integer */
    MOST_PLACES = 6,   /* of a limit, behind its point */
    MOST_FRACTION = 15,
    MOST_MULTIPLE = 1000,
    MULTIPLE_DIGITS = 15, /* of a multiple: a double holds them, and validators divide doubles */
};
#define LARGEST_MULTIPLE INT64_C(999999999999999) /* of so many digits */

struct digits {
    struct grammar *grammar;
    int rule;
    bool negative;
    int point; /* digits behind the decimal point; 0: there is none */
    bool fraction; /* any fraction may follow */
    int multiple;  /* of which the digits, read without the point, are a multiple; 0: of any */
    int *rest;     /* (MOST_DIGITS + 1, multiple) 1 + the rule of rest_of(); 0: not made yet */
};

/* The rule of the last n digits of a number whose first digits have the remainder r. */
static int rest_of(const struct digits *digits, int n, int r)
{
    int *known = &digits->rest[n * digits->multiple + r];
    if (*known)
        return *known - 1;
    int rule = grammar_rule(digits->grammar);
    *known = rule + 1;
    if (n == 0 && r == 0)
        grammar_add(digits->grammar, rule, "");
    for (int c = 0; n && c <= 9; c++) {
        int left = (10 * r + c) % digits->multiple;
        if (n > 1 || !left)
            grammar_add(digits->grammar, rule, n == digits->point ? ".%r%c" : "%r%c", '0' + c,
                        '0' + c, rest_of(digits, n - 1, left));
    }
    return rule;
}

/* The rule of at most n more digits before the point, after those whose remainder is r, and of all
 * behind the point. The digits before it may end with at most `end` left. made: (n + 1, multiple)
 * 1 + the rule; 0: not made yet. */
static int more_of(const struct digits *digits, int *made, int n, int end, int r)
{
    int *known = &made[n * digits->multiple + r];
    if (*known)
        return *known - 1;
    int rule = grammar_rule(digits->grammar);
    *known = rule + 1;
    if (n <= end)
        grammar_add(digits->grammar, rule, "%c", rest_of(digits, digits->point, r));
    for (int c = 0; n && c <= 9; c++)
        grammar_add(digits->grammar, rule, "%r%c", '0' + c, '0' + c,
                    more_of(digits, made, n - 1, end, (10 * r + c) % digits->multiple));
    return rule;
}

/* The multiples of at least n digits, the first of which is not 0: one way to read each, where
 * add_run() has one for each length. */
static void add_longer(const struct digits *digits, int n)
{
    int left = MULTIPLE_DIGITS - digits->point - 1;
    FREED(free_at) int *made = xcalloc((size_t)(left + 1) * (size_t)digits->multiple, sizeof *made);
    for (int c = 1; c <= 9; c++)
        grammar_add(digits->grammar, digits->rule, "%r%c", '0' + c, '0' + c,
                    more_of(digits, made, left, MULTIPLE_DIGITS - n, c % digits->multiple));
}

/* As add_run(), of multiples. */
static void add_multiples(const struct digits *digits, const char *prefix, int n_prefix, int from,
                          int to, int n)
{
    struct sequence seq = {0};
    int r = 0;
    for (int i = 0; i < n_prefix; i++)
        r = (10 * r + prefix[i] - '0') % digits->multiple;
    for (int c = from; c <= to; c++) {
        int left = (10 * r + c) % digits->multiple;
        if (n_prefix == n - 1 && left)
            continue;
        for (int i = 0; i <= n_prefix; i++) {
            int digit = i < n_prefix ? prefix[i] : '0' + c;
            grammar_put(digits->grammar, &seq, digits->point && i == n - digits->point ? ".%r"
                        : "%r", digit, digit);
        }
        grammar_put(digits->grammar, &seq, "%c", rest_of(digits, n - n_prefix - 1, left));
        grammar_alt(digits->grammar, digits->rule, &seq);
    }
}

/* Adds "[-]PREFIX[from-to]ANY..." with n digits in all. */
static void add_run(const struct digits *digits, const char *prefix, int n_prefix, int from, int to,
                    int n)
{
    struct sequence seq = {0};
    if (digits->multiple) {
        add_multiples(digits, prefix, n_prefix, from, to, n);
        return;
    }
    if (digits->negative)
        grammar_put(digits->grammar, &seq, "-");
    for (int i = 0; i < n; i++) {
        if (digits->point && i == n - digits->point)
            grammar_put(digits->grammar, &seq, ".");
        if (i < n_prefix)
            put_bytes(digits->grammar, &seq, prefix + i, 1);
        else if (i == n_prefix)
            grammar_put(digits->grammar, &seq, "%r", '0' + from, '0' + to);
        else
            grammar_put(digits->grammar, &seq, "%[0-9]");
    }
    if (digits->fraction) {
        int digit = grammar_rule(digits->grammar);
        grammar_add(digits->grammar, digit, "%[0-9]");
        grammar_put(digits->grammar, &seq, ".%*", digit, 1, MOST_FRACTION);
    }
    grammar_alt(digits->grammar, digits->rule, &seq);
}

/* The numbers from lo to hi, both of n digits (with leading zeros): those with the common prefix
 * first. */
static void add_same_length(const struct digits *digits, const char *lo, const char *hi, int n)
{
    int same = 0;
    while (same < n && lo[same] == hi[same])
        same++;
    if (same >= n - 1) {
        add_run(digits, lo, n - 1, lo[n - 1] - '0', hi[n - 1] - '0', n);
        return;
    }
    /* what follows may be any digits where lo has zeros only, and hi nines only */
    int lo_end = n - 1, hi_end = lo_end;
    while (lo_end > same && lo[lo_end] == '0')
        lo_end--;
    while (hi_end > same && hi[hi_end] == '9')
        hi_end--;
    /* lo's side: prefixes of lo, then a greater digit; the last digit includes lo's own */
    for (int i = lo_end; i > same; i--) {
        int from = lo[i] - '0' + (i < lo_end);
        if (from <= 9)
            add_run(digits, lo, i, from, 9, n);
    }
    int from = lo[same] - '0' + (lo_end > same), to = hi[same] - '0' - (hi_end > same);
    if (from <= to)
        add_run(digits, lo, same, from, to, n);
    for (int i = same + 1; i <= hi_end; i++) {
        int last = hi[i] - '0' - (i < hi_end);
        if (last >= 0)
            add_run(digits, hi, i, 0, last, n);
    }
}

static void print_digits(char out[32], int64_t v, int least)
{
    snprintf(out, 32, "%0*" PRId64, least, v);
}

/* Whole numbers 0 <= lo <= hi, written with at least `least` digits. */
static void add_whole(const struct digits *digits, int64_t lo, int64_t hi, int least)
{
    char a[32], b[32];
    while (lo <= hi) {
        int64_t end = 9;
        print_digits(a, lo, least);
        if (digits->multiple && hi == LARGEST_MULTIPLE && a[0] == '1' &&
            strspn(a + 1, "0") == strlen(a + 1)) {
            add_longer(digits, (int)strlen(a));
            return;
        }
        for (size_t i = 1; i < strlen(a); i++)
            end = end * 10 + 9;
        end = end < hi ? end : hi;
        print_digits(b, end, least);
        add_same_length(digits, a, b, (int)strlen(a));
        lo = end + 1;
    }
}

/* Signed whole numbers lo <= hi. Zero has no sign. Those with a sign are one alternative: a state
 * follows a few hundred only. */
static void add_signed(struct digits *digits, int64_t lo, int64_t hi, int least)
{
    if (lo < 0) {
        struct digits below = *digits;
        below.rule = grammar_rule(digits->grammar);
        add_whole(&below, hi < 0 ? -hi : 1, -lo, least);
        grammar_add(digits->grammar, digits->rule, "-%c", below.rule);
    }
    if (hi >= 0)
        add_whole(digits, lo > 0 ? lo : 0, hi, least);
}

static double most(void)
{
    return pow(10, MOST_DIGITS) - 1;
}

void grammar_integers(struct grammar *grammar, int rule, double lo, double hi)
{
    const int64_t limit = INT64_C(999999999999999999);
    struct digits digits = {.grammar = grammar, .rule = rule};
    int64_t from = lo <= -most() ? -limit : lo >= most() ? limit : (int64_t)ceil(lo);
    int64_t to = hi >= most() ? limit : hi <= -most() ? -limit : (int64_t)floor(hi);
    if (lo <= most() && hi >= -most() && from <= to)
        add_signed(&digits, from, to, 1);
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
static void add_between(struct grammar *grammar, int rule, double lo, double hi)
{
    struct digits digits = {.grammar = grammar, .rule = rule, .fraction = true};
    /* i >= 0: i.f lies in [i, i + 1]; i <= -1 or "-0": in [-i - 1, -i] */
    if (hi > 0 && floor(hi) - 1 >= fmax(ceil(lo), 0))
        add_whole(&digits, (int64_t)fmax(ceil(lo), 0), (int64_t)floor(hi) - 1, 1);
    digits.negative = true;
    if (lo < 0 && -ceil(lo) - 1 >= fmax(ceil(-hi), 0))
        add_whole(&digits, (int64_t)fmax(ceil(-hi), 0), (int64_t)-ceil(lo) - 1, 1);
    digits.negative = digits.fraction = false;
    digits.point = places(lo) > places(hi) ? places(lo) : places(hi);
    if (digits.point == 0 && floor(lo) == lo && floor(hi) == hi && hi - lo >= 1)
        return;
    digits.point = digits.point ? digits.point : 1;
    double scale = pow(10, digits.point), first = ceil(lo * scale), last = floor(hi * scale);
    /* a decimal text is read as the double nearest to it: stay inside where the product rounds */
    first += first / scale < lo;
    last -= last / scale > hi;
    if (first <= last && fabs(first) < 1e17 && fabs(last) < 1e17)
        add_signed(&digits, (int64_t)first, (int64_t)last, digits.point + 1);
}

/* A number as JSON has it, of bounded length. */
static void add_any(struct grammar *grammar, int rule, bool negative)
{
    int digit = grammar_rule(grammar), whole = grammar_rule(grammar),
        fraction = grammar_rule(grammar), power = grammar_rule(grammar);
    grammar_add(grammar, digit, "%[0-9]");
    grammar_add(grammar, whole, "0");
    grammar_add(grammar, whole, "%[1-9]%*", digit, 0, MOST_DIGITS - 1);
    grammar_add(grammar, fraction, "");
    grammar_add(grammar, fraction, ".%*", digit, 1, MOST_FRACTION);
    grammar_add(grammar, power, "");
    grammar_add(grammar, power, "%[eE]%[+-]%*", digit, 1, 2);
    grammar_add(grammar, rule, "%c%c%c", whole, fraction, power);
    if (negative)
        grammar_add(grammar, rule, "-%c%c%c", whole, fraction, power);
}

void grammar_numbers(struct grammar *grammar, int rule, double lo, double hi)
{
    if (lo <= -most() && hi >= most()) {
        add_any(grammar, rule, true);
        return;
    }
    if (lo == 0 && hi >= most()) {
        add_any(grammar, rule, false);
        return;
    }
    grammar_integers(grammar, rule, lo, hi);
    add_between(grammar, rule, fmax(lo, -1e15), fmin(hi, 1e15));
}

/* Multiples of m / 10^places from lo to hi, written with so many places. */
static void add_multiples_of(struct grammar *grammar, int rule, double lo, double hi, int m,
                             int places)
{
    const int64_t limit = LARGEST_MULTIPLE;
    double scale = pow(10, places);
    struct digits digits = {.grammar = grammar, .rule = rule, .point = places, .multiple = m};
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
    digits.rest = xcalloc((size_t)(MOST_DIGITS + 1) * (size_t)m, sizeof *digits.rest);
    if (from <= to)
        add_signed(&digits, from, to, places + 1);
    free(digits.rest);
}

bool grammar_multiples(struct grammar *grammar, int rule, double lo, double hi, double step,
                       bool whole)
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
    add_multiples_of(grammar, rule, lo, hi, plain, 0);
    if (places && !whole)
        add_multiples_of(grammar, rule, lo, hi, (int)m, places);
    return true;
}
