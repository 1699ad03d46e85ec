/* pull.c - see pull.h. */
#include "models/tokenizer/pull.h"

#include <utf8proc.h>

static bool syntax_error(struct pull *j, const char *what)
{
    if (!j->bad)
        j->bad = what;
    return false;
}

bool pull_failed(const struct pull *j, struct err *e, const char *file)
{
    if (j->bad)
        err_set(e, ERR_MODEL, "%s: %s at byte %td", file, j->bad, j->p - j->begin);
    return j->bad != NULL;
}

static bool accept_char(struct pull *j, char c)
{
    if (j->p == j->end || *j->p != c)
        return false;
    j->p++;
    return true;
}

char pull_peek(struct pull *j)
{
    while (j->p < j->end && (*j->p == ' ' || *j->p == '\n' || *j->p == '\t' || *j->p == '\r'))
        j->p++;
    if (j->bad || j->p == j->end)
        return 0;
    return *j->p == '-' || (*j->p >= '0' && *j->p <= '9') ? '0' : *j->p;
}

bool pull_open(struct pull *j, char open)
{
    if (pull_peek(j) != open)
        return syntax_error(j, open == '{' ? "expected an object" : "expected an array");
    j->p++;
    if (pull_peek(j) != (open == '{' ? '}' : ']'))
        return true;
    j->p++;
    return false;
}

bool pull_next(struct pull *j, char close)
{
    char c = pull_peek(j);
    if (j->bad)
        return false;
    if (c != ',' && c != close)
        return syntax_error(j, close == '}' ? "expected , or }" : "expected , or ]");
    j->p++;
    return c == ',';
}

bool pull_key(struct pull *j, struct pull_str *key)
{
    if (!pull_string(j, key))
        return false;
    if (pull_peek(j) != ':')
        return syntax_error(j, "expected :");
    j->p++;
    return true;
}

/* ---- strings ---- */

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool unit16(struct pull *j, uint32_t *out)
{
    if (j->end - j->p < 4)
        return syntax_error(j, "a \\u escape needs four digits");
    *out = 0;
    for (int i = 0; i < 4; i++, j->p++) {
        int d = hex_digit(*j->p);
        if (d < 0)
            return syntax_error(j, "a \\u escape needs four digits");
        *out = *out << 4 | (uint32_t)d;
    }
    return true;
}

/* Decodes one code point behind "\u", from one UTF-16 unit or a surrogate pair, into *to. Its UTF-8
 * is never longer than the escape. */
static bool unicode_escape(struct pull *j, char **to)
{
    uint32_t c, low;
    if (!unit16(j, &c))
        return false;
    if (c >= 0xD800 && c < 0xE000) {
        if (c >= 0xDC00 || !accept_char(j, '\\') || !accept_char(j, 'u') || !unit16(j, &low) ||
            low < 0xDC00 || low >= 0xE000)
            return syntax_error(j, "an unpaired surrogate");
        c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
    }
    *to += utf8proc_encode_char((utf8proc_int32_t)c, (utf8proc_uint8_t *)*to);
    return true;
}

static bool decode_escape(struct pull *j, char **to)
{
    static const char from[] = "\"\\/bfnrt", plain[] = "\"\\/\b\f\n\r\t";
    if (j->p == j->end)
        return syntax_error(j, "an unterminated string");
    char c = *j->p++;
    if (c == 'u')
        return unicode_escape(j, to);
    const char *at = c ? strchr(from, c) : NULL;
    if (!at)
        return syntax_error(j, "an unknown escape");
    *(*to)++ = plain[at - from];
    return true;
}

bool pull_string(struct pull *j, struct pull_str *out)
{
    if (pull_peek(j) != '"')
        return syntax_error(j, "expected a string");
    char *s = ++j->p, *to = s;
    while (j->p < j->end && *j->p != '"') {
        if ((uint8_t)*j->p < 0x20)
            return syntax_error(j, "a control character in a string");
        if (*j->p != '\\')
            *to++ = *j->p++;
        else if (j->p++, !decode_escape(j, &to))
            return false;
    }
    if (!accept_char(j, '"'))
        return syntax_error(j, "an unterminated string");
    *out = (struct pull_str){s, (size_t)(to - s)};
    return true;
}

/* ---- numbers and words ---- */

bool pull_int(struct pull *j, int64_t *out)
{
    if (pull_peek(j) != '0')
        return syntax_error(j, "expected a number");
    bool neg = accept_char(j, '-');
    const char *first = j->p;
    int64_t v = 0;
    for (; j->p < j->end && *j->p >= '0' && *j->p <= '9'; j->p++) {
        v = 10 * v + (*j->p - '0');
        if (v > INT64_C(1) << 53)
            return syntax_error(j, "a number that is too large");
    }
    if (j->p == first || (*first == '0' && j->p - first > 1))
        return syntax_error(j, "a malformed number");
    if (j->p < j->end && (*j->p == '.' || (*j->p | 0x20) == 'e'))
        return syntax_error(j, "expected a whole number");
    *out = neg ? -v : v;
    return true;
}

static bool accept_word(struct pull *j, const char *w)
{
    size_t n = strlen(w);
    if ((size_t)(j->end - j->p) < n || memcmp(j->p, w, n) != 0)
        return false;
    j->p += n;
    return true;
}

bool pull_bool(struct pull *j, bool *out)
{
    char c = pull_peek(j);
    *out = c == 't';
    if ((c == 't' && accept_word(j, "true")) || (c == 'f' && accept_word(j, "false")))
        return true;
    return syntax_error(j, "expected true or false");
}

/* ---- skipping ---- */

static bool skip_string(struct pull *j)
{
    for (j->p++; j->p < j->end && *j->p != '"'; j->p++)
        if (*j->p == '\\' && ++j->p == j->end)
            break;
    return accept_char(j, '"') || syntax_error(j, "an unterminated string");
}

static bool skip_scalar(struct pull *j, char c)
{
    if (c == '"')
        return skip_string(j);
    if (c != '0')
        return accept_word(j, "true") || accept_word(j, "false") || accept_word(j, "null") ||
               syntax_error(j, "expected a value");
    while (j->p < j->end && *j->p && strchr("+-.0123456789eE", *j->p))
        j->p++;
    return true;
}

bool pull_skip(struct pull *j, struct pull_str *raw)
{
    enum { MAX_DEPTH = 64 };
    char close[MAX_DEPTH];
    int depth = 0;
    char c = pull_peek(j);
    raw->s = j->p;
    do {
        c = pull_peek(j);
        if (c == '{' || c == '[') {
            if (depth == MAX_DEPTH)
                return syntax_error(j, "nested too deeply");
            close[depth++] = c == '{' ? '}' : ']';
            j->p++;
        } else if (depth && c == close[depth - 1]) {
            depth--;
            j->p++;
        } else if (depth && (c == ',' || c == ':')) {
            j->p++;
        } else if (!skip_scalar(j, c)) {
            return false;
        }
    } while (depth);
    raw->n = (size_t)(j->p - raw->s);
    return true;
}

bool pull_end(struct pull *j)
{
    if (pull_peek(j) || j->p < j->end)
        return syntax_error(j, "text after the end of the object");
    return !j->bad;
}
