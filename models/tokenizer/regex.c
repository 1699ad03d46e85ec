/* regex.c - patterns over text, in time linear in it for every expression in use.
 *
 * Text is valid UTF-8 when it comes here, so PCRE2 never checks it again. Matching uses the JIT
 * with its small default stack, then with a large one, then the interpreter on the heap: each gives
 * the same answer. The work allowed grows with the text, so that only an expression that backtracks
 * more than linearly is ever stopped, and that is an error, not another answer.
 */
#include "models/tokenizer/parts.h"

#include <stdlib.h>
#include <string.h>

/* ---- from one dialect to the other ---- */

struct dialect {
    const char *s, *end;
    struct buf *out;
    size_t atom; /* where in out the last thing that can be repeated begins */
    size_t group[64];
    int depth;
    struct err *e;
};

static bool refuse(struct dialect *d, const char *what)
{
    return err_set(d->e, ERR_MODEL, "regular expression with %s", what);
}

/* \w: Alphabetic, marks, decimal digits, connectors (PCRE2's own leaves marks out and has all
 * numbers). Outside of a class the reference's has Latin-1's superscripts and fractions too. */
#define WORD_CLASS                                                                                 \
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{24B6}-\\x{24E9}\\x{1F130}-\\x{1F149}"                    \
    "\\x{1F150}-\\x{1F169}\\x{1F170}-\\x{1F189}"
static const char word[] = WORD_CLASS "\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}";

static bool dialect_escape(struct dialect *d, bool in_class)
{
    if (d->end - d->s < 2)
        return refuse(d, "a \\ at its end");
    char c = d->s[1];
    if (c == 'w')
        buf_printf(d->out, in_class ? "%s" : "[%s]", in_class ? WORD_CLASS : word);
    else if (c == 'W' && !in_class)
        buf_printf(d->out, "[^%s]", word);
    else if ((c == 'b' || c == 'B') && !in_class)
        buf_printf(d->out, c == 'b' ? "(?:(?<=[%s])(?![%s])|(?<![%s])(?=[%s]))"
                                    : "(?:(?<=[%s])(?=[%s])|(?<![%s])(?![%s]))",
                   word, word, word, word);
    else if (c == 'h')
        buf_str(d->out, in_class ? "0-9a-fA-F" : "[0-9a-fA-F]");
    else if (c == 'u' && d->end - d->s >= 6)
        buf_printf(d->out, "\\x{%.4s}", d->s + 2);
    else if (c == 'W' || c == 'H' || c == 'u')
        return refuse(d, "\\W in a class, \\H or a short \\u");
    else
        buf_add(d->out, d->s, 2);
    d->s += c == 'u' ? 6 : 2;
    if (strchr("pPxkg", c) && d->s < d->end && *d->s == '{') { /* its name, not a repeat */
        const char *stop = memchr(d->s, '}', (size_t)(d->end - d->s));
        if (!stop)
            return refuse(d, "a { without its }");
        buf_add(d->out, d->s, (size_t)(stop + 1 - d->s));
        d->s = stop + 1;
    }
    return true;
}

/* "[:name:]" inside a class, for the names whose meaning is known to be the same. */
static bool dialect_posix(struct dialect *d)
{
    static const struct {
        const char *name, *means;
    } set[] = {{"[:punct:]", "\\p{P}\\p{S}"}, {"[:word:]", WORD_CLASS}, {"[:space:]", "\\s"},
               {"[:digit:]", "\\d"}, {"[:xdigit:]", "0-9a-fA-F"}};
    for (size_t i = 0; i < sizeof set / sizeof *set; i++)
        if (strncmp(d->s, set[i].name, strlen(set[i].name)) == 0) {
            buf_str(d->out, set[i].means);
            d->s += strlen(set[i].name);
            return true;
        }
    return refuse(d, "a [:name:] other than punct, word, space, digit, xdigit");
}

/* A bracketed class, d->s at its '['. Nested classes and && have no equal in PCRE2. */
static bool dialect_class(struct dialect *d)
{
    buf_char(d->out, *d->s++);
    if (d->s < d->end && *d->s == '^')
        buf_char(d->out, *d->s++);
    if (d->s < d->end && *d->s == ']')
        buf_char(d->out, *d->s++);
    while (d->s < d->end && *d->s != ']') {
        if (*d->s == '\\') {
            if (!dialect_escape(d, true))
                return false;
        } else if (d->s[0] == '[' && d->s[1] == ':') {
            if (!dialect_posix(d))
                return false;
        } else if (d->s[0] == '[' || (d->s[0] == '&' && d->s[1] == '&')) {
            return refuse(d, "a class inside a class");
        } else {
            buf_char(d->out, *d->s++);
        }
    }
    if (d->s == d->end)
        return refuse(d, "a [ without its ]");
    buf_char(d->out, *d->s++);
    return true;
}

/* "(", "(?flags:" and so on; the flag m of Ruby is s here. */
static bool dialect_open(struct dialect *d)
{
    if (d->depth == 64)
        return refuse(d, "more than 64 nested groups");
    d->group[d->depth++] = d->out->n;
    buf_char(d->out, *d->s++);
    if (d->s + 1 >= d->end || *d->s != '?' || !strchr("imx-", d->s[1]))
        return true;
    for (buf_char(d->out, *d->s++); d->s < d->end && strchr("imx-", *d->s); d->s++)
        buf_char(d->out, *d->s == 'm' ? 's' : *d->s);
    return true;
}

/* Length of a "{n,m}" at s, or 0 when the brace stands for itself. */
static size_t braces(const char *s, const char *end)
{
    const char *p = s + 1;
    p += strspn(p, "0123456789");
    bool digits = p > s + 1;
    if (p < end && *p == ',') {
        const char *upper = ++p;
        p += strspn(p, "0123456789");
        digits |= p > upper;
    }
    return digits && p < end && *p == '}' ? (size_t)(p + 1 - s) : 0;
}

/* "{n,m}", which "+" after it does not make possessive here: it repeats the repeat. */
static void dialect_braces(struct dialect *d)
{
    size_t n = braces(d->s, d->end);
    if (!n) {
        d->atom = d->out->n;
        buf_str(d->out, "\\{");
        d->s++;
        return;
    }
    buf_str(d->out, d->s[1] == ',' ? "{0" : "{");
    buf_add(d->out, d->s + 1, n - 1);
    d->s += n;
    if (d->s == d->end || *d->s != '+')
        return;
    struct buf tail = {0};
    buf_add(&tail, d->out->p + d->atom, d->out->n - d->atom);
    d->out->n = d->atom;
    buf_printf(d->out, "(?:%s)", tail.p);
    buf_free(&tail);
}

static bool dialect_next(struct dialect *d)
{
    size_t at = d->out->n;
    switch (*d->s) {
    case '\\':
        d->atom = at;
        return dialect_escape(d, false);
    case '[':
        d->atom = at;
        return dialect_class(d);
    case '(':
        return dialect_open(d);
    case ')':
        if (!d->depth)
            return refuse(d, "a ) without its (");
        d->atom = d->group[--d->depth];
        break;
    case '{':
        dialect_braces(d);
        return true;
    case '*': case '+': case '?': case '|':
        break;
    default:
        d->atom = at;
        buf_add(d->out, d->s, utf8_len(d->s));
        d->s += utf8_len(d->s);
        return true;
    }
    buf_char(d->out, *d->s++);
    return true;
}

bool onig_to_pcre(const char *s, size_t n, struct buf *out, struct err *e)
{
    char *copy = memcpy(xcalloc(n + 1, 1), s, n); /* terminated, so that looking ahead is safe */
    struct dialect d = {.s = copy, .end = copy + n, .out = out, .e = e};
    bool ok = !memchr(s, 0, n) || refuse(&d, "a NUL byte");
    while (ok && d.s < d.end)
        ok = dialect_next(&d);
    free(copy);
    return ok;
}

/* ---- compiling ---- */

static bool compile(struct pattern *p, const char *s, size_t n, struct err *e)
{
    enum { OPTIONS = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C };
    struct buf text = {0};
    if (!onig_to_pcre(s, n, &text, e)) {
        buf_free(&text);
        return false;
    }
    int code;
    PCRE2_SIZE at;
    pcre2_compile_context *c = pcre2_compile_context_create(NULL);
    if (!c)
        die("out of memory (pattern)");
    pcre2_set_newline(c, PCRE2_NEWLINE_LF);
    p->re = pcre2_compile((PCRE2_SPTR)(text.p ? text.p : ""), text.n, OPTIONS, &code, &at, c);
    pcre2_compile_context_free(c);
    buf_free(&text);
    if (!p->re) {
        char why[128];
        pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
        return err_set(e, ERR_MODEL, "regular expression: %s", why);
    }
    pcre2_jit_compile(p->re, PCRE2_JIT_COMPLETE); /* without it the interpreter does */
    return true;
}

bool pattern_open(struct pattern *p, bool regex, const char *s, size_t n, struct err *e)
{
    enum { MAX_PATTERN = 1 << 16 };
    *p = (struct pattern){0};
    if (n == 0 || n > MAX_PATTERN)
        return err_set(e, ERR_MODEL, "a pattern of %zu bytes; expected 1 to %d", n, MAX_PATTERN);
    if (regex)
        return compile(p, s, n, e);
    p->literal = xmalloc(n);
    memcpy(p->literal, s, n);
    p->n = n;
    return true;
}

void pattern_free(struct pattern *p)
{
    free(p->literal);
    pcre2_code_free(p->re);
    *p = (struct pattern){0};
}

/* ---- matching ---- */

void finder_free(struct finder *f)
{
    pcre2_match_data_free(f->match);
    pcre2_match_context_free(f->limits);
    pcre2_jit_stack_free(f->stack);
    buf_free(&f->subject);
    *f = (struct finder){0};
}

static void finder_ready(struct finder *f)
{
    if (f->match)
        return;
    f->match = pcre2_match_data_create(1, NULL); /* only where the whole match lies */
    f->limits = pcre2_match_context_create(NULL);
    if (!f->match || !f->limits)
        die("out of memory (matching)");
    pcre2_set_heap_limit(f->limits, 2u << 20); /* KiB */
}

/* One match at or after `from`: 1, 0 when there is none, negative on an error. */
static int match_once(const struct pattern *p, struct finder *f, const char *s, size_t n,
                      size_t from)
{
    enum { BIG_STACK = 64 << 20 };
    PCRE2_SPTR text = (PCRE2_SPTR)s;
    int rc = pcre2_match(p->re, text, n, from, PCRE2_NO_UTF_CHECK, f->match, f->limits);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT && !f->stack) {
        f->stack = pcre2_jit_stack_create(1 << 16, BIG_STACK, NULL);
        pcre2_jit_stack_assign(f->limits, NULL, f->stack);
        rc = pcre2_match(p->re, text, n, from, PCRE2_NO_UTF_CHECK, f->match, f->limits);
    }
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(p->re, text, n, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, f->match,
                         f->limits);
    return rc >= 0 ? 1 : rc == PCRE2_ERROR_NOMATCH ? 0 : rc;
}

void spans_add(struct spans *a, size_t off, size_t len, bool match)
{
    if (a->n == a->cap) {
        a->cap = 2 * a->cap + 64;
        a->v = xrealloc(a->v, a->cap, sizeof *a->v);
    }
    a->v[a->n++] = (struct span){(uint32_t)off, (uint32_t)len, match};
}

static void literal_spans(const struct pattern *p, const char *s, size_t n, struct spans *out)
{
    size_t done = 0;
    const char *hit;
    while ((hit = memmem(s + done, n - done, p->literal, p->n))) {
        size_t at = (size_t)(hit - s);
        if (at > done)
            spans_add(out, done, at - done, false);
        spans_add(out, at, p->n, true);
        done = at + p->n;
    }
    if (done < n || n == 0)
        spans_add(out, done, n - done, false);
}

bool pattern_spans(const struct pattern *p, struct finder *f, const char *s, size_t n,
                   struct spans *out, struct err *e)
{
    if (p->literal || n == 0) {
        if (n == 0)
            spans_add(out, 0, 0, false);
        else
            literal_spans(p, s, n, out);
        return true;
    }
    finder_ready(f);
    uint64_t steps = 10000000 + 64 * (uint64_t)n;
    pcre2_set_match_limit(f->limits, (uint32_t)(steps > UINT32_MAX ? UINT32_MAX : steps));
    const PCRE2_SIZE *ov = pcre2_get_ovector_pointer(f->match);
    size_t done = 0, from = 0, last = SIZE_MAX; /* last: end of the last match */
    while (from <= n) {
        int rc = match_once(p, f, s, n, from);
        if (rc < 0)
            return err_set(e, ERR_MODEL, "the splitter's expression gives up on this text (%d)",
                           rc);
        if (!rc)
            break;
        size_t a = ov[0], b = ov[1];
        if (a == b && b == last) { /* an empty match right after a match does not count */
            from += from < n ? utf8_len(s + from) : 1;
            continue;
        }
        if (a > done)
            spans_add(out, done, a - done, false);
        spans_add(out, a, b - a, true);
        done = from = last = b;
    }
    if (done < n)
        spans_add(out, done, n - done, false);
    return true;
}
