/* pattern.c - "pattern" and "format" of a string's schema: a regular expression as rules. See
 * parts.h.
 *
 * The texts are those that the whole expression matches: a part of those in which it matches
 * somewhere. A text is spelled as JSON. What an expression has beyond alternatives, groups,
 * classes, repetitions, and anchors at its ends is refused by name, and so is a repetition of what
 * may be empty, which has no form among the rules. */
#include "models/grammar/parts.h"

#include "kernels/ascii.h"

enum { MOST_GROUPS = 40, MOST_BYTES = 4096, MOST_TIMES = 1000000 };

/* The characters that one place of a text may have. */
struct class {
    bool ascii[128];
    bool wide; /* all others, too, but for the line ends among them */
};

struct regex {
    struct grammar *grammar;
    const char *p, *end;
    int depth;
    const char *why; /* what is not supported; NULL: nothing yet */
    char what[8];    /* the text of it */
};

static bool refuse_it(struct regex *regex, const char *why, const char *at, size_t n)
{
    if (!regex->why) {
        regex->why = why;
        n = n < sizeof regex->what - 1 ? n : sizeof regex->what - 1;
        while (n && at + n > regex->end)
            n--;
        memcpy(regex->what, at, n);
        regex->what[n] = '\0';
    }
    return false;
}

static bool more(const struct regex *regex)
{
    return regex->p < regex->end;
}

static bool next_is(const struct regex *regex, char c)
{
    return more(regex) && *regex->p == c;
}

/* ---- characters ------------------------------------------------------------------------------ */

/* The rule of one character of the class, as JSON spells it. NUL and DEL are left out. */
static int class_rule(struct regex *regex, const struct class *class)
{
    static const char escaped[] = "\"\\\n\t\r\b\f", name[] = "\"\\ntrbf";
    int rule = grammar_rule(regex->grammar);
    struct set raw = {0};
    bool any = false;
    for (int i = 0x20; i < 0x7F; i++)
        if (class->ascii[i] && i != '"' && i != '\\') {
            set_add(&raw, i, i);
            any = true;
        }
    if (any)
        grammar_add(regex->grammar, rule, "%s", &raw);
    for (int i = 0; escaped[i]; i++)
        if (class->ascii[(int)escaped[i]])
            grammar_add(regex->grammar, rule, "\\%r", name[i], name[i]);
    if (class->wide)
        grammar_add(regex->grammar, rule, "%c", grammar_known(regex->grammar, RULE_WIDE_CHAR));
    return rule;
}

static void add_range(struct class *class, int from, int to)
{
    for (int i = from; i <= to; i++)
        class->ascii[i] = true;
}

/* Adds \d, \w, \s or its opposite. */
static void add_kind(struct class *class, char kind)
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
        class->ascii[i] |= k.ascii[i] == (kind == low);
    class->wide |= kind == 'D' || kind == 'W'; /* some of the others are white space */
}

static int hex_number(struct regex *regex, int digits)
{
    int v = 0;
    for (int i = 0; i < digits; i++, regex->p++) {
        int c = more(regex) ? ascii_lower(*regex->p) : 0;
        if (!ascii_digit((char)c) && (c < 'a' || c > 'f'))
            return -1;
        v = 16 * v + (ascii_digit((char)c) ? c - '0' : c - 'a' + 10);
    }
    return v;
}

/* After a backslash, a character that stands for itself or has a name. -1 and the reason: another
 * one. */
static int escape(struct regex *regex)
{
    static const char name[] = "ntrfv", stands[] = "\n\t\r\f\v";
    const char *from = regex->p;
    char c = more(regex) ? *regex->p++ : '\0';
    const char *at = c ? strchr(name, c) : NULL;
    int v = at ? stands[at - name] : c == 'x' ? hex_number(regex, 2) : c == 'u'
                ? hex_number(regex, 4) : -1;
    if (v < 0 && ascii_punct(c))
        v = c;
    if (v <= 0 || v > 127)
        refuse_it(regex, "the escape", from - 1, 2);
    return v <= 0 || v > 127 ? -1 : v;
}

/* Reads the characters between [ and ]. */
static bool read_class(struct regex *regex, struct class *class)
{
    const char *from = regex->p - 1;
    bool no = next_is(regex, '^');
    bool white = false; /* it names white space, of which there is more beyond ASCII */
    *class = (struct class){.wide = false};
    regex->p += no;
    while (more(regex) && *regex->p != ']') {
        int a = (unsigned char)*regex->p++, b;
        if (a == '\\' && more(regex) && strchr("dDwWsS", *regex->p)) {
            white |= *regex->p == 's';
            add_kind(class, *regex->p++);
            continue;
        }
        a = a == '\\' ? escape(regex) : a;
        b = a;
        if (next_is(regex, '-') && regex->p + 1 < regex->end && regex->p[1] != ']') {
            regex->p++;
            b = (unsigned char)*regex->p++;
            b = b == '\\' ? escape(regex) : b;
        }
        if (a < 0 || b < 0)
            return false;
        if (a > 127 || b > 127 || a > b)
            return refuse_it(regex, a > b ? "the range" : "a character beyond ASCII in the class",
                             from, 6);
        add_range(class, a, b);
    }
    if (!more(regex))
        return refuse_it(regex, "the class without an end", from, 6);
    regex->p++;
    if (!no)
        return true;
    for (int i = 1; i < 128; i++)
        class->ascii[i] = !class->ascii[i];
    class->wide = !class->wide && !white;
    return true;
}

/* ---- expressions ----------------------------------------------------------------------------- */

static int alternatives(struct regex *regex, bool *empty);

static int group(struct regex *regex, bool *empty)
{
    const char *from = regex->p - 1;
    if (next_is(regex, '?')) {
        if (regex->p + 1 >= regex->end || regex->p[1] != ':') {
            refuse_it(regex, "the group", from, 4);
            return -1;
        }
        regex->p += 2;
    }
    if (++regex->depth > MOST_GROUPS) {
        refuse_it(regex, "more groups in each other than 40:", from, 1);
        return -1;
    }
    int rule = alternatives(regex, empty);
    regex->depth--;
    if (rule >= 0 && !next_is(regex, ')')) {
        refuse_it(regex, "the group without an end", from, 6);
        return -1;
    }
    regex->p++;
    return rule;
}

/* The rule of the next character, class or group. */
static int atom(struct regex *regex, bool *empty)
{
    struct class class = {.wide = false};
    const char *from = regex->p;
    unsigned char byte = (unsigned char)*regex->p++;
    *empty = false;
    if (byte == '(')
        return group(regex, empty);
    if (byte >= 0x80) { /* the bytes of one character */
        struct sequence seq = {0};
        int rule = grammar_rule(regex->grammar);
        while (more(regex) && ((unsigned char)*regex->p & 0xC0) == 0x80)
            regex->p++;
        put_bytes(regex->grammar, &seq, from, (size_t)(regex->p - from));
        grammar_alt(regex->grammar, rule, &seq);
        return rule;
    }
    if (byte == '[') {
        if (!read_class(regex, &class))
            return -1;
    } else if (byte == '.') {
        add_range(&class, 1, 127);
        class.ascii['\n'] = class.ascii['\r'] = false;
        class.wide = true;
    } else if (byte == '\\' && more(regex) && strchr("dDwWsS", *regex->p)) {
        add_kind(&class, *regex->p++);
    } else if (byte == '\\') {
        int v = escape(regex);
        if (v < 0)
            return -1;
        class.ascii[v] = true;
    } else if (strchr("*+?{^$", byte)) {
        refuse_it(regex, strchr("^$", byte) ? "the anchor inside," : "the repetition of nothing,",
                  from, 1);
        return -1;
    } else {
        class.ascii[byte] = true;
    }
    return class_rule(regex, &class);
}

static int times(struct regex *regex)
{
    int n = -1;
    for (; more(regex) && ascii_digit(*regex->p); regex->p++)
        n = min_int(MOST_TIMES + 1, 10 * max_int(n, 0) + *regex->p - '0');
    return n;
}

/* Reads *, +, ?, {n}, {n,} or {n,m}, which need not be there, and the ? of the shortest match. */
static bool read_times(struct regex *regex, int *min, int *max)
{
    const char *from = regex->p;
    *min = *max = 1;
    if (next_is(regex, '*') || next_is(regex, '+') || next_is(regex, '?')) {
        *min = *regex->p == '+';
        *max = *regex->p++ == '?' ? 1 : MANY;
    } else if (next_is(regex, '{')) {
        regex->p++;
        *min = *max = times(regex);
        if (next_is(regex, ',')) {
            regex->p++;
            *max = next_is(regex, '}') ? MANY : times(regex);
        }
        if (*min < 0 || *max < *min || !next_is(regex, '}') || *min > MOST_TIMES ||
            (*max != MANY && *max > MOST_TIMES))
            return refuse_it(regex, "the repetition", from, 6);
        regex->p++;
    } else {
        return true;
    }
    regex->p += next_is(regex, '?');
    return true;
}

/* Adds the alternative up to the next | or ). */
static bool one_alternative(struct regex *regex, int rule, bool *empty)
{
    struct sequence seq = {0};
    bool ok = true;
    *empty = true;
    if (regex->depth == 0 && next_is(regex, '^'))
        regex->p++;
    while (ok && more(regex) && *regex->p != '|' && *regex->p != ')') {
        const char *from = regex->p;
        int min, max;
        bool nothing;
        if (regex->depth == 0 && *regex->p == '$' &&
            (regex->p + 1 == regex->end || regex->p[1] == '|')) {
            regex->p++;
            break;
        }
        int one = atom(regex, &nothing);
        ok = one >= 0 && read_times(regex, &min, &max);
        if (!ok)
            break;
        if (nothing && (min != 1 || max != 1))
            ok = refuse_it(regex, "the repetition of what may be empty,", from, 6);
        else if (min == 1 && max == 1)
            grammar_put(regex->grammar, &seq, "%c", one);
        else
            grammar_put(regex->grammar, &seq, "%*", one, min, max);
        *empty &= nothing || min == 0;
    }
    if (ok)
        grammar_alt(regex->grammar, rule, &seq);
    free(seq.v);
    return ok;
}

static int alternatives(struct regex *regex, bool *empty)
{
    int rule = grammar_rule(regex->grammar);
    *empty = false;
    do {
        bool nothing;
        if (!one_alternative(regex, rule, &nothing))
            return -1;
        *empty |= nothing;
    } while (next_is(regex, '|') && regex->p++);
    return rule;
}

int grammar_pattern(struct grammar *grammar, const char *pattern, struct err *e)
{
    struct regex regex = {.grammar = grammar, .p = pattern, .end = pattern + strlen(pattern)};
    bool empty;
    if (regex.end - regex.p > MOST_BYTES)
        return FAILED(-1, e, ERR_USAGE, "the schema's pattern has more than %d bytes",
                      (int)MOST_BYTES);
    int rule = alternatives(&regex, &empty);
    if (rule >= 0 && !more(&regex))
        return rule;
    refuse_it(&regex, "the end of no group,", regex.p, 1);
    return FAILED(-1, e, ERR_USAGE, "the schema's pattern has %s %s, which is not supported",
                  regex.why, regex.what);
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
    static const struct named {
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
    const struct named *found = ROW_NAMED(known, format);
    return found ? found->pattern : NULL;
}
