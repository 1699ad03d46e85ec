/* pattern.c - "pattern" and "format" of a string's schema: a regular expression as rules. See
 * parts.h.
 *
 * The texts are those that the whole expression matches: a part of those in which it matches
 * somewhere. A text is spelled as JSON. What an expression has beyond alternatives, groups,
 * classes, repetitions, and anchors at its ends is refused by name, and so is a repetition of what
 * may be empty, which has no form among the rules. */
#include "models/grammar/parts.h"

#include "kernels/ascii.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_GROUPS = 40, MOST_BYTES = 4096, MOST_TIMES = 1000000 };

/* The characters that one place of a text may have. */
struct class {
    bool ascii[128];
    bool wide; /* all others, too, but for the line ends among them */
};

struct regex {
    struct grammar *g;
    const char *p, *end;
    int depth;
    const char *why; /* what is not supported; NULL: nothing yet */
    char what[8];    /* the text of it */
};

static bool refuse_it(struct regex *x, const char *why, const char *at, size_t n)
{
    if (!x->why) {
        x->why = why;
        n = n < sizeof x->what - 1 ? n : sizeof x->what - 1;
        while (n && at + n > x->end)
            n--;
        memcpy(x->what, at, n);
        x->what[n] = '\0';
    }
    return false;
}

static bool more(const struct regex *x)
{
    return x->p < x->end;
}

static bool next_is(const struct regex *x, char c)
{
    return more(x) && *x->p == c;
}

/* ---- characters ------------------------------------------------------------------------------ */

/* The rule of one character of the class, as JSON spells it. NUL and DEL are left out. */
static int class_rule(struct regex *x, const struct class *c)
{
    static const char escaped[] = "\"\\\n\t\r\b\f", name[] = "\"\\ntrbf";
    int rule = grammar_rule(x->g);
    struct sequence s = {0};
    struct set raw = {0};
    bool any = false;
    for (int i = 0x20; i < 0x7F; i++)
        if (c->ascii[i] && i != '"' && i != '\\') {
            set_add(&raw, i, i);
            any = true;
        }
    if (any) {
        put_set(x->g, &s, &raw);
        grammar_alt(x->g, rule, &s);
    }
    for (int i = 0; escaped[i]; i++)
        if (c->ascii[(int)escaped[i]]) {
            put_literal(x->g, &s, "\\");
            put_bytes(x->g, &s, &name[i], 1);
            grammar_alt(x->g, rule, &s);
        }
    if (c->wide) {
        put_call(x->g, &s, grammar_known(x->g, RULE_WIDE_CHAR));
        grammar_alt(x->g, rule, &s);
    }
    return rule;
}

static void add_range(struct class *c, int from, int to)
{
    for (int i = from; i <= to; i++)
        c->ascii[i] = true;
}

/* Adds \d, \w, \s or its opposite. */
static void add_kind(struct class *c, char kind)
{
    struct class k = {.wide = false};
    char low = ascii_lower(kind);
    if (low == 'd' || low == 'w')
        add_range(&k, '0', '9');
    if (low == 'w') {
        add_range(&k, 'a', 'z');
        add_range(&k, 'A', 'Z');
        k.ascii['_'] = true;
    }
    if (low == 's') {
        add_range(&k, '\t', '\r');
        k.ascii[' '] = true;
    }
    for (int i = 1; i < 128; i++)
        c->ascii[i] |= k.ascii[i] == (kind == low);
    c->wide |= kind == 'D' || kind == 'W'; /* some of the others are white space */
}

static int hex_number(struct regex *x, int digits)
{
    int v = 0;
    for (int i = 0; i < digits; i++, x->p++) {
        int c = more(x) ? ascii_lower(*x->p) : 0;
        if (!ascii_digit((char)c) && (c < 'a' || c > 'f'))
            return -1;
        v = 16 * v + (ascii_digit((char)c) ? c - '0' : c - 'a' + 10);
    }
    return v;
}

/* After a backslash, a character that stands for itself or has a name. -1 and the reason: another
 * one. */
static int escape(struct regex *x)
{
    static const char name[] = "ntrfv", stands[] = "\n\t\r\f\v";
    const char *from = x->p;
    char c = more(x) ? *x->p++ : '\0';
    const char *at = c ? strchr(name, c) : NULL;
    int v = at ? stands[at - name] : c == 'x' ? hex_number(x, 2) : c == 'u' ? hex_number(x, 4) : -1;
    if (v < 0 && ascii_punct(c))
        v = c;
    if (v <= 0 || v > 127)
        refuse_it(x, "the escape", from - 1, 2);
    return v <= 0 || v > 127 ? -1 : v;
}

/* Reads the characters between [ and ]. */
static bool read_class(struct regex *x, struct class *c)
{
    const char *from = x->p - 1;
    bool no = next_is(x, '^');
    bool white = false; /* it names white space, of which there is more beyond ASCII */
    *c = (struct class){.wide = false};
    x->p += no;
    while (more(x) && *x->p != ']') {
        int a = (unsigned char)*x->p++, b;
        if (a == '\\' && more(x) && strchr("dDwWsS", *x->p)) {
            white |= *x->p == 's';
            add_kind(c, *x->p++);
            continue;
        }
        a = a == '\\' ? escape(x) : a;
        b = a;
        if (next_is(x, '-') && x->p + 1 < x->end && x->p[1] != ']') {
            x->p++;
            b = (unsigned char)*x->p++;
            b = b == '\\' ? escape(x) : b;
        }
        if (a < 0 || b < 0)
            return false;
        if (a > 127 || b > 127 || a > b)
            return refuse_it(x, a > b ? "the range" : "a character beyond ASCII in the class", from,
                             6);
        add_range(c, a, b);
    }
    if (!more(x))
        return refuse_it(x, "the class without an end", from, 6);
    x->p++;
    if (!no)
        return true;
    for (int i = 1; i < 128; i++)
        c->ascii[i] = !c->ascii[i];
    c->wide = !c->wide && !white;
    return true;
}

/* ---- expressions ----------------------------------------------------------------------------- */

static int alternatives(struct regex *x, bool *empty);

static int group(struct regex *x, bool *empty)
{
    const char *from = x->p - 1;
    if (next_is(x, '?')) {
        if (x->p + 1 >= x->end || x->p[1] != ':') {
            refuse_it(x, "the group", from, 4);
            return -1;
        }
        x->p += 2;
    }
    if (++x->depth > MOST_GROUPS) {
        refuse_it(x, "more groups in each other than 40:", from, 1);
        return -1;
    }
    int rule = alternatives(x, empty);
    x->depth--;
    if (rule >= 0 && !next_is(x, ')')) {
        refuse_it(x, "the group without an end", from, 6);
        return -1;
    }
    x->p++;
    return rule;
}

/* The rule of the next character, class or group. */
static int atom(struct regex *x, bool *empty)
{
    struct class c = {.wide = false};
    const char *from = x->p;
    unsigned char byte = (unsigned char)*x->p++;
    *empty = false;
    if (byte == '(')
        return group(x, empty);
    if (byte >= 0x80) { /* the bytes of one character */
        struct sequence s = {0};
        int rule = grammar_rule(x->g);
        while (more(x) && ((unsigned char)*x->p & 0xC0) == 0x80)
            x->p++;
        put_bytes(x->g, &s, from, (size_t)(x->p - from));
        grammar_alt(x->g, rule, &s);
        return rule;
    }
    if (byte == '[') {
        if (!read_class(x, &c))
            return -1;
    } else if (byte == '.') {
        add_range(&c, 1, 127);
        c.ascii['\n'] = c.ascii['\r'] = false;
        c.wide = true;
    } else if (byte == '\\' && more(x) && strchr("dDwWsS", *x->p)) {
        add_kind(&c, *x->p++);
    } else if (byte == '\\') {
        int v = escape(x);
        if (v < 0)
            return -1;
        c.ascii[v] = true;
    } else if (strchr("*+?{^$", byte)) {
        refuse_it(x, strchr("^$", byte) ? "the anchor inside," : "the repetition of nothing,", from,
                  1);
        return -1;
    } else {
        c.ascii[byte] = true;
    }
    return class_rule(x, &c);
}

static int times(struct regex *x)
{
    int n = -1;
    for (; more(x) && ascii_digit(*x->p); x->p++)
        n = min_int(MOST_TIMES + 1, 10 * max_int(n, 0) + *x->p - '0');
    return n;
}

/* Reads *, +, ?, {n}, {n,} or {n,m}, which need not be there, and the ? of the shortest match. */
static bool read_times(struct regex *x, int *min, int *max)
{
    const char *from = x->p;
    *min = *max = 1;
    if (next_is(x, '*') || next_is(x, '+') || next_is(x, '?')) {
        *min = *x->p == '+';
        *max = *x->p++ == '?' ? 1 : MANY;
    } else if (next_is(x, '{')) {
        x->p++;
        *min = *max = times(x);
        if (next_is(x, ',')) {
            x->p++;
            *max = next_is(x, '}') ? MANY : times(x);
        }
        if (*min < 0 || *max < *min || !next_is(x, '}') || *min > MOST_TIMES ||
            (*max != MANY && *max > MOST_TIMES))
            return refuse_it(x, "the repetition", from, 6);
        x->p++;
    } else {
        return true;
    }
    x->p += next_is(x, '?');
    return true;
}

/* Adds the alternative up to the next | or ). */
static bool one_alternative(struct regex *x, int rule, bool *empty)
{
    struct sequence s = {0};
    bool ok = true;
    *empty = true;
    if (x->depth == 0 && next_is(x, '^'))
        x->p++;
    while (ok && more(x) && *x->p != '|' && *x->p != ')') {
        const char *from = x->p;
        int min, max;
        bool nothing;
        if (x->depth == 0 && *x->p == '$' && (x->p + 1 == x->end || x->p[1] == '|')) {
            x->p++;
            break;
        }
        int one = atom(x, &nothing);
        ok = one >= 0 && read_times(x, &min, &max);
        if (!ok)
            break;
        if (nothing && (min != 1 || max != 1))
            ok = refuse_it(x, "the repetition of what may be empty,", from, 6);
        else if (min == 1 && max == 1)
            put_call(x->g, &s, one);
        else
            put_repeat(x->g, &s, one, min, max);
        *empty &= nothing || min == 0;
    }
    if (ok)
        grammar_alt(x->g, rule, &s);
    free(s.v);
    return ok;
}

static int alternatives(struct regex *x, bool *empty)
{
    int rule = grammar_rule(x->g);
    *empty = false;
    do {
        bool nothing;
        if (!one_alternative(x, rule, &nothing))
            return -1;
        *empty |= nothing;
    } while (next_is(x, '|') && x->p++);
    return rule;
}

int grammar_pattern(struct grammar *g, const char *pattern, struct err *e)
{
    struct regex x = {.g = g, .p = pattern, .end = pattern + strlen(pattern)};
    bool empty;
    if (x.end - x.p > MOST_BYTES) {
        err_set(e, ERR_USAGE, "the schema's pattern has more than %d bytes", (int)MOST_BYTES);
        return -1;
    }
    int rule = alternatives(&x, &empty);
    if (rule >= 0 && !more(&x))
        return rule;
    refuse_it(&x, "the end of no group,", x.p, 1);
    err_set(e, ERR_USAGE, "the schema's pattern has %s %s, which is not supported", x.why, x.what);
    return -1;
}

/* ---- formats --------------------------------------------------------------------------------- */

#define LEAP "(?:\\d\\d(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
#define DATE "(?:\\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-" \
             "(?:0[1-9]|[12]\\d|30)|02-(?:0[1-9]|1\\d|2[0-8]))|" LEAP "-02-29)"
#define HOUR "(?:[01]\\d|2[0-3])"
#define TIME HOUR ":[0-5]\\d:[0-5]\\d(?:\\.\\d{1,9})?(?:Z|[+-]" HOUR ":[0-5]\\d)"
#define OCTET "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define LABEL "[A-Za-z0-9]+(?:-[A-Za-z0-9]+)*"

const char *grammar_format(const char *format)
{
    static const struct {
        const char *name, *pattern;
    } known[] = {
        {"date", DATE},
        {"time", TIME},
        {"date-time", DATE "T" TIME},
        {"uuid", "[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"},
        {"ipv4", OCTET "(?:\\." OCTET "){3}"},
        {"email",
         "[A-Za-z0-9]+(?:[._+-][A-Za-z0-9]+)*@" LABEL "(?:\\." LABEL ")*\\.[A-Za-z]{2,24}"},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(known[i].name, format))
            return known[i].pattern;
    return NULL;
}
