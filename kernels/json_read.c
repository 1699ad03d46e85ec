/* json_read.c - see json_read.h. */
#include "kernels/json_read.h"

/* What Jansson 2.14 allocates for a value, with its place in the array or object that holds it, on
 * a 64-bit system (measured in tests/unit/test_malformed.c); rounded up. */
enum {
    OBJECT_COST = 240,
    ARRAY_COST = 144,
    NUMBER_COST = 60,
    STRING_COST = 100, /* and its bytes */
    KEY_COST = 136,    /* and its bytes */
    WORD_COST = 28,    /* true, false, null */
    PARSER_COST = 256,
    TOKEN_COST = 4,    /* a byte of the longest string: the token's buffer, which grows by
                          doubling */
};

/* What was counted so far. */
struct json_count {
    uint64_t cost;
    size_t longest; /* string */
};

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool in_number(char c)
{
    return (c >= '0' && c <= '9') || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E';
}

static bool is_lower(char c)
{
    return c >= 'a' && c <= 'z';
}

/* The end of the string that begins at text[i], behind its closing quotation mark. */
static size_t string_end(const char *text, size_t n, size_t i)
{
    for (i++; i < n && text[i] != '"'; i++)
        i += text[i] == '\\';
    return i < n ? i + 1 : n;
}

static bool colon_follows(const char *text, size_t n, size_t i)
{
    while (i < n && is_blank(text[i]))
        i++;
    return i < n && text[i] == ':';
}

static void add_string(struct json_count *c, bool key, size_t n)
{
    c->cost += (key ? KEY_COST : STRING_COST) + n;
    if (n > c->longest) {
        c->cost += TOKEN_COST * (n - c->longest);
        c->longest = n;
    }
}

/* Counts the token at text[i]; returns its end. */
static size_t add_token(struct json_count *c, const char *text, size_t n, size_t i)
{
    size_t end = i + 1;
    if (text[i] == '{') {
        c->cost += OBJECT_COST;
    } else if (text[i] == '[') {
        c->cost += ARRAY_COST;
    } else if (text[i] == '"') {
        end = string_end(text, n, i);
        add_string(c, colon_follows(text, n, end), end - i);
    } else if (in_number(text[i])) {
        for (c->cost += NUMBER_COST; end < n && in_number(text[end]);)
            end++;
    } else if (is_lower(text[i])) {
        for (c->cost += WORD_COST; end < n && is_lower(text[end]);)
            end++;
    }
    return end;
}

/* The first token with which the cost exceeds `most`; n: it does not. */
static size_t exceeds(struct json_count *c, const char *text, size_t n, uint64_t most)
{
    for (size_t i = 0, next; i < n; i = next) {
        next = add_token(c, text, n, i);
        if (c->cost > most)
            return i;
    }
    return n;
}

uint64_t json_cost(const char *text, size_t n)
{
    struct json_count c = {.cost = PARSER_COST};
    exceeds(&c, text, n, UINT64_MAX);
    return c.cost;
}

static void tell_too_many(json_error_t *why, const char *text, size_t at)
{
    *why = (json_error_t){.line = 1, .column = 1,
                          .position = (int)(at < INT32_MAX ? at : INT32_MAX), .source = "<buffer>"};
    for (size_t i = 0; i < at; i++, why->column++)
        if (text[i] == '\n')
            why->line++, why->column = 0;
    snprintf(why->text, sizeof why->text, "too many small values: they would take more than %d "
                                          "bytes of memory for each byte of text", JSON_FACTOR);
    /* where json_error_code() finds it */
    why->text[sizeof why->text - 1] = json_error_out_of_memory;
}

/* ---- parsing ---- */

static _Thread_local const struct stop *stop_flag;

void json_stop_on(const struct stop *stop)
{
    stop_flag = stop;
}

/* A text on its way to the parser. */
struct feed {
    const char *text;
    size_t n, at;
    bool stopped;
};

/* The next part of the text; 0: its end, or a stop. */
static size_t next_part(void *room, size_t most, void *arg)
{
    struct feed *f = arg;
    size_t n = f->n - f->at < most ? f->n - f->at : most;
    f->stopped = stop_asked(stop_flag);
    if (f->stopped)
        return 0;
    memcpy(room, f->text + f->at, n);
    f->at += n;
    return n;
}

static json_t *parse_in_parts(const char *text, size_t n, size_t flags, json_error_t *why)
{
    struct feed f = {.text = text, .n = n};
    json_error_t own = {0};
    why = why ? why : &own;
    json_t *o = json_load_callback(next_part, &f, flags, why);
    if (!o && f.stopped)
        snprintf(why->text, sizeof why->text - 1, "stopped");
    return o;
}

json_t *json_parse(const char *text, size_t n, size_t flags, json_error_t *why)
{
    enum { AT_ONCE = 1 << 20 }; /* bytes that are parsed without asking */
    struct json_count c = {.cost = PARSER_COST};
    size_t at = exceeds(&c, text, n, (uint64_t)JSON_FACTOR * n + JSON_SPARE);
    if (at == n && stop_flag && n > AT_ONCE)
        return parse_in_parts(text, n, flags, why);
    if (at == n)
        return json_loadb(n ? text : "", n, flags, why);
    if (why)
        tell_too_many(why, text, at);
    return NULL;
}

/* Whether the number is an integer that 64 bits do not hold. */
static bool is_wide(const char *s, size_t n)
{
    static const char most[2][20] = {"9223372036854775807", "9223372036854775808"};
    enum { DIGITS = 19 };
    bool minus = n && *s == '-', whole = true;
    s += minus, n -= minus;
    for (size_t i = 0; i < n; i++)
        whole &= s[i] >= '0' && s[i] <= '9';
    return whole && (n > DIGITS || (n == DIGITS && memcmp(s, most[minus], n) > 0));
}

/* Appends the text, in which integers that 64 bits do not hold get a fraction. */
static void widen(struct buf *out, const char *text, size_t n)
{
    for (size_t i = 0, end; i < n; i = end) {
        end = text[i] == '"' ? string_end(text, n, i) : i + 1;
        while (in_number(text[i]) && end < n && in_number(text[end]))
            end++;
        buf_add(out, text + i, end - i);
        if (is_wide(text + i, end - i))
            buf_str(out, ".0");
    }
}

json_t *json_parse_wide(const char *text, size_t n, json_error_t *why)
{
    json_error_t own = {0};
    why = why ? why : &own;
    json_t *o = json_parse(text, n, JSON_REJECT_DUPLICATES, why);
    if (o || json_error_code(why) != json_error_numeric_overflow)
        return o;
    FREED(buf_free) struct buf wide = {0};
    widen(&wide, text, n);
    return json_parse(wide.p, wide.n, JSON_REJECT_DUPLICATES, why);
}

/* ---- writing ---- */

void json_real_text(char s[32], double v)
{
    enum { MOST = 17, SIZE = 32 };
    int digits = 1;
    do
        snprintf(s, SIZE, "%.*e", digits - 1, v);
    while (strtod(s, NULL) != v && digits++ < MOST);
    const char *e = strchr(s, 'e');
    int exponent = e ? (int)strtol(e + 1, NULL, 10) : 0;
    if (exponent >= -4 && exponent < 16)
        snprintf(s, SIZE, "%.*f", digits - 1 > exponent ? digits - 1 - exponent : 1, v);
}

/* Appends the number at p, as json_dumps() wrote it, and returns its length. */
static size_t add_number(struct buf *out, const char *p)
{
    char s[32];
    size_t n = strspn(p, "+-.0123456789eE"), whole = strspn(p, "-0123456789");
    if (whole < n) {
        json_real_text(s, strtod(p, NULL));
        buf_str(out, s);
    } else
        buf_add(out, p, n);
    return n;
}

char *json_written(const json_t *v, size_t flags)
{
    char *text = json_dumps(v, flags | JSON_ENCODE_ANY);
    struct buf out = {0};
    if (!text)
        return NULL;
    for (size_t i = 0, n = strlen(text), end; i < n; i = end) {
        char c = text[i];
        if (c == '-' || (c >= '0' && c <= '9')) {
            end = i + add_number(&out, text + i);
            continue;
        }
        end = c == '"' ? string_end(text, n, i) : i + 1;
        buf_add(&out, text + i, end - i);
    }
    free(text);
    buf_char(&out, '\0');
    return out.p;
}
