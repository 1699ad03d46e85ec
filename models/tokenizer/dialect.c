/* dialect.c - translates the regular expressions of tokenizer.json (Oniguruma's syntax) to PCRE2's.
 *
 * The translation is an allow-list: each construct that published tokenizers use has a case below,
 * every other one is refused by name. So no expression can move the start of a match (\K), call a
 * group (\g, (?1), (?R)), run callouts or set options of the matcher ((?C), (*...)), or change how
 * the rest of it is read (\Q, comments, the flag x). In the output every punctuation character that
 * is matched literally has a backslash.
 */
#include "models/tokenizer/parts.h"

#include "kernels/ascii.h"

struct dialect {
    const char *s, *end; /* the text at *end is a NUL byte */
    struct buf *out;
    size_t atom; /* offset in out of the last element that a quantifier can apply to */
    size_t group[64];
    int depth;
    struct err *e;
};

static bool refuse_pattern(struct dialect *d, const char *what)
{
    return err_set(d->e, ERR_MODEL, "regular expression with %s", what);
}

/* Emits the character at d->s as a literal. */
static void literal(struct dialect *d)
{
    size_t n = utf8_len(d->s);
    if (n == 1 && ascii_punct(*d->s))
        buf_char(d->out, '\\');
    buf_add(d->out, d->s, n);
    d->s += n;
}

/* ---- escapes ---- */

/* \w: Alphabetic, marks, decimal digits, connectors. (PCRE2's own \w has no marks, and all
 * numbers.) Outside of a class the reference's \w also has the superscripts and fractions of
 * Latin-1. */
#define WORD_CLASS                                                                                 \
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{24B6}-\\x{24E9}\\x{1F130}-\\x{1F149}"                    \
    "\\x{1F150}-\\x{1F169}\\x{1F170}-\\x{1F189}"
#define WORD WORD_CLASS "\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}"

/* Escapes of one letter: the translation outside and inside of a class; NULL: refused there. */
static const struct {
    char letter;
    const char *outside, *inside;
} escapes[] = {
    {'d', "\\d", "\\d"},
    {'D', "\\D", "\\D"},
    {'s', "\\s", "\\s"},
    {'S', "\\S", "\\S"},
    {'n', "\\n", "\\n"},
    {'r', "\\r", "\\r"},
    {'t', "\\t", "\\t"},
    {'f', "\\f", "\\f"},
    {'a', "\\a", "\\a"},
    {'e', "\\e", "\\e"},
    {'v', "\\x{0B}", "\\x{0B}"},
    {'A', "\\A", NULL},
    {'z', "\\z", NULL},
    {'G', "\\G", NULL}, /* where the search begins: behind the match before */
    {'Z', "\\Z", NULL},
    {'X', "\\X", NULL},
    {'h', "[0-9a-fA-F]", "0-9a-fA-F"},
    {'w', "[" WORD "]", WORD_CLASS},
    {'W', "[^" WORD "]", NULL},
    {'b', "(?:(?<=[" WORD "])(?![" WORD "])|(?<![" WORD "])(?=[" WORD "]))", "\\x{08}"},
    {'B', "(?:(?<=[" WORD "])(?=[" WORD "])|(?<![" WORD "])(?![" WORD "]))", NULL},
};

static bool refuse_escape(struct dialect *d)
{
    char what[16] = "\\";
    memcpy(what + 1, d->s + 1, utf8_len(d->s + 1));
    return refuse_pattern(d, what);
}

/* Translates \p or \P at d->s, followed by "{name}". */
static bool property(struct dialect *d)
{
    const char *p = d->s + 3;
    while (ascii_alnum(*p) || strchr("_ ^=-", *p ? *p : '.'))
        p++;
    if (d->s[2] != '{' || *p != '}')
        return refuse_escape(d);
    buf_add(d->out, d->s, (size_t)(p + 1 - d->s));
    d->s = p + 1;
    return true;
}

/* Translates \x at d->s, followed by two digits or by digits in braces, or \u with four digits. */
static bool code_point(struct dialect *d)
{
    static const char digits[] = "0123456789abcdefABCDEF";
    bool braces = d->s[1] == 'x' && d->s[2] == '{';
    const char *p = d->s + 2 + braces;
    size_t n = strspn(p, digits), want = d->s[1] == 'u' ? 4 : 2;
    if (braces ? n < 1 || n > 6 || p[n] != '}' : n < want)
        return refuse_escape(d);
    n = braces ? n : want;
    buf_printf(d->out, "\\x{%.*s}", (int)n, p);
    d->s = p + n + braces;
    return true;
}

static bool translate_escape(struct dialect *d, bool in_class)
{
    if (d->end - d->s < 2)
        return refuse_pattern(d, "a \\ at its end");
    char c = d->s[1];
    if (c == 'p' || c == 'P')
        return property(d);
    if (c == 'x' || c == 'u')
        return code_point(d);
    if (c >= '1' && c <= '9' && !in_class && !(d->s[2] >= '0' && d->s[2] <= '9')) {
        buf_add(d->out, d->s, 2); /* a back reference */
        d->s += 2;
        return true;
    }
    for (size_t i = 0; i < LEN(escapes); i++)
        if (escapes[i].letter == c) {
            const char *means = in_class ? escapes[i].inside : escapes[i].outside;
            if (!means)
                break;
            buf_str(d->out, means);
            d->s += 2;
            return true;
        }
    if (ascii_alnum(c))
        return refuse_escape(d);
    d->s++;
    literal(d);
    return true;
}

/* ---- classes ---- */

/* Translates "[:name:]" inside a class, for the names that mean the same in both syntaxes. */
static bool posix_class(struct dialect *d)
{
    static const struct {
        const char *name, *means;
    } set[] = {{"[:punct:]", "\\p{P}\\p{S}"},
               {"[:word:]", WORD_CLASS},
               {"[:space:]", "\\s"},
               {"[:digit:]", "\\d"},
               {"[:xdigit:]", "0-9a-fA-F"}};
    for (size_t i = 0; i < LEN(set); i++)
        if (strncmp(d->s, set[i].name, strlen(set[i].name)) == 0) {
            buf_str(d->out, set[i].means);
            d->s += strlen(set[i].name);
            return true;
        }
    return refuse_pattern(d, "a [:name:] other than punct, word, space, digit, xdigit");
}

/* Translates a bracketed class, d->s at its '['. Nested classes and && are refused: PCRE2 has
 * neither. */
static bool class(struct dialect *d)
{
    buf_char(d->out, *d->s++);
    if (*d->s == '^')
        buf_char(d->out, *d->s++);
    bool set = false; /* the previous element is a set, so that a '-' behind it is a literal */
    for (bool first = true; d->s < d->end && (first || *d->s != ']'); first = false) {
        bool after_set = set;
        set = false;
        if (*d->s == '\\') {
            set = d->s[1] && strchr("dDsShwpP", d->s[1]);
            if (!translate_escape(d, true))
                return false;
        } else if (d->s[0] == '[' && d->s[1] == ':') {
            set = true;
            if (!posix_class(d))
                return false;
        } else if (d->s[0] == '[' || (d->s[0] == '&' && d->s[1] == '&')) {
            return refuse_pattern(d, "a class inside a class");
        } else if (*d->s == '-' && !after_set) {
            buf_char(d->out, *d->s++);
        } else {
            literal(d);
        }
    }
    if (d->s == d->end)
        return refuse_pattern(d, "an unclosed [");
    buf_char(d->out, *d->s++);
    return true;
}

/* ---- groups ---- */

/* Translates the flags i, m and - of "(?flags)" or "(?flags:"; d->s is behind "(?". Ruby's flag m
 * is PCRE2's s. */
static bool flags(struct dialect *d)
{
    for (; *d->s && strchr("im-", *d->s); d->s++)
        buf_char(d->out, *d->s == 'm' ? 's' : *d->s);
    if (*d->s != ':' && *d->s != ')')
        return refuse_pattern(d, "a flag other than i and m");
    if (*d->s == ':')
        buf_char(d->out, *d->s++);
    return true;
}

/* Translates the beginning of a group, d->s at its '('. */
static bool group(struct dialect *d)
{
    static const char *const plain[] = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};
    if (d->depth == 64)
        return refuse_pattern(d, "more than 64 nested groups");
    d->group[d->depth++] = d->out->n;
    for (size_t i = 0; i < LEN(plain); i++) {
        size_t n = strlen(plain[i]);
        if (strncmp(d->s, plain[i], n) == 0) {
            buf_add(d->out, d->s, n);
            d->s += n;
            return true;
        }
    }
    if (d->s[1] == '*')
        return refuse_pattern(d, "(*");
    if (d->s[1] != '?') {
        buf_char(d->out, *d->s++);
        return true;
    }
    if (!d->s[2] || !strchr("im-", d->s[2])) {
        char what[8] = "(?";
        if (d->s[2])
            memcpy(what + 2, d->s + 2, utf8_len(d->s + 2));
        return refuse_pattern(d, what);
    }
    buf_add(d->out, d->s, 2);
    d->s += 2;
    return flags(d);
}

/* ---- repeats ---- */

/* Length of a "{n,m}" at s, or 0 if the brace is a literal. */
static size_t braces(const char *s)
{
    const char *p = s + 1;
    p += strspn(p, "0123456789");
    bool digits = p > s + 1;
    if (*p == ',') {
        const char *upper = ++p;
        p += strspn(p, "0123456789");
        digits |= p > upper;
    }
    return digits && *p == '}' ? (size_t)(p + 1 - s) : 0;
}

/* Translates "{n,m}". In Oniguruma a "+" after it does not make it possessive but repeats it. */
static void repeat(struct dialect *d)
{
    size_t n = braces(d->s);
    if (!n) {
        d->atom = d->out->n;
        literal(d);
        return;
    }
    buf_str(d->out, d->s[1] == ',' ? "{0" : "{");
    buf_add(d->out, d->s + 1, n - 1);
    d->s += n;
    if (*d->s != '+')
        return;
    FREED(buf_free) struct buf tail = {0};
    buf_add(&tail, d->out->p + d->atom, d->out->n - d->atom);
    d->out->n = d->atom;
    buf_printf(d->out, "(?:%s)", tail.p);
}

/* ---- all of it ---- */

static bool read_next(struct dialect *d)
{
    size_t at = d->out->n;
    switch (*d->s) {
    case '\\': d->atom = at; return translate_escape(d, false);
    case '[': d->atom = at; return class(d);
    case '(': return group(d);
    case ')':
        if (!d->depth)
            return refuse_pattern(d, "an unmatched )");
        d->atom = d->group[--d->depth];
        break;
    case '{': repeat(d); return true;
    case '*':
    case '+':
    case '?':
    case '|': break;
    case '^':
    case '$':
    case '.': d->atom = at; break;
    default:
        d->atom = at;
        literal(d);
        return true;
    }
    buf_char(d->out, *d->s++);
    return true;
}

bool onig_to_pcre(const char *s, size_t n, struct buf *out, struct err *e)
{
    if (memchr(s, 0, n))
        return err_set(e, ERR_MODEL, "regular expression with a NUL byte");
    FREED(free_at) char *copy = xcalloc(n + 4, 1); /* four NUL bytes: looking ahead is safe */
    memcpy(copy, s, n);
    struct dialect d = {.s = copy, .end = copy + n, .out = out, .e = e};
    bool ok = utf8_check(s, n) || refuse_pattern(&d, "bytes that are not UTF-8");
    while (ok && d.s < d.end)
        ok = read_next(&d);
    return ok;
}
