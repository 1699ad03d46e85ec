/* settings.c - see settings.h. One table holds every name, type and range; nothing else lists
 * them. */
#include "engine/settings.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* K_PART: an integer that is a part of the draft's shape; K_SHAPE: all of them, or auto */
enum kind { K_REAL, K_INT, K_I64, K_BOOL, K_CHECK, K_FORGET, K_PART, K_SHAPE };

/* the values of enum check_level and enum forget, in their order */
static const char *const check_name[] = {"off", "on", "strict"};
static const char *const forget_name[] = {"auto", "ask", "oldest", "never"};

const char *check_level_name(enum check_level l)
{
    return check_name[l];
}

#define AT(field) offsetof(struct settings, field)

static const struct entry {
    struct setting pub;
    enum kind kind;
    size_t at;
    double min, max; /* numbers only; below 2^53, so that comparing in doubles is exact */
} table[] = {
    {{"temperature", "0 .. 100", "randomness; 0: always the likeliest token"},
     K_REAL, AT(temperature), 0, 100},
    {{"top_k", "0 .. 1000000", "sample among the k likeliest tokens; 0: all"},
     K_INT, AT(top_k), 0, 1e6},
    {{"top_p", "0 .. 1", "sample among the likeliest with this probability"},
     K_REAL, AT(top_p), 0, 1},
    {{"min_p", "0 .. 1", "drop tokens below this share of the likeliest one"},
     K_REAL, AT(min_p), 0, 1},
    {{"seed", "0 .. 9007199254740991", "where the random numbers start"},
     K_I64, AT(seed), 0, 9007199254740991.0},
    {{"max_tokens", "0 .. 1000000", "longest reply in tokens; 0: up to the context's end"},
     K_INT, AT(max_tokens), 0, 1e6},
    {{"spec", "on | off", "speculative drafting"}, K_BOOL, AT(spec), 0, 0},
    {{"draft.steps", "1 .. 16", "depth of the draft tree"}, K_PART, AT(steps), 1, 16},
    {{"draft.topk", "1 .. 16", "children kept at each level of the draft tree"},
     K_PART, AT(topk), 1, 16},
    {{"draft.nodes", "2 .. 64", "tree nodes verified at once, the root included"},
     K_PART, AT(nodes), 2, 64},
    {{"draft.shape", "auto, or steps-topk-nodes as 5-1-6", "shape of the tree; auto: the fastest as measured"},
     K_SHAPE, AT(auto_shape), 0, 0},
    {{"chunk", "0 .. 4096", "prompt tokens of a prefill pass; 0: device's choice"},
     K_INT, AT(chunk), 0, 4096},
    {{"check", "off | on | strict", "checker of plans and pools before each pass"},
     K_CHECK, AT(check), 0, 0},
    {{"forget", "auto | ask | oldest | never",
      "full context: ask, drop oldest turns, or refuse"},
     K_FORGET, AT(forget), 0, 0},
    {{"ring", "1 .. 4096", "megabytes of past page tables in memory"},
     K_INT, AT(ring), 1, 4096},
    {{"gauge.ms", "0 .. 3600000", "reads a server's metrics every N ms; 0: never"},
     K_INT, AT(gauge_ms), 0, 3600000},
    {{"graph", "on | off", "replay recorded cycles (CUDA graphs)"}, K_BOOL, AT(graph), 0, 0},
    {{"verbose", "on | off", "a line of statistics after each reply"},
     K_BOOL, AT(verbose), 0, 0},
    {{"think", "on | off", "show the reasoning of models that reason"}, K_BOOL, AT(think), 0, 0},
};
enum { N = sizeof table / sizeof *table };

void settings_init(struct settings *s)
{
    *s = (struct settings){
        .top_p = 1, .seed = 1, .spec = true, .steps = 5, .topk = 1, .nodes = 6,
        .check = CHECK_ON, .ring = 16, .gauge_ms = 1000, .graph = true, .think = true,
    };
}

int settings_count(void)
{
    return N;
}

const struct setting *settings_at(int i)
{
    CHECK(i >= 0 && i < N);
    return &table[i].pub;
}

static const struct entry *find(const char *name)
{
    if (strcmp(name, "draft") == 0) /* users type "draft off" for "spec off" */
        name = "spec";
    for (int i = 0; i < N; i++)
        if (strcmp(table[i].pub.name, name) == 0)
            return &table[i];
    return NULL;
}

int settings_index(const char *name)
{
    const struct entry *t = find(name);
    return t ? (int)(t - table) : -1;
}

static bool unknown(const char *name, struct err *e)
{
    char all[320] = "";
    for (int i = 0; i < N; i++) {
        size_t n = strlen(all);
        snprintf(all + n, sizeof all - n, "%s%s", i ? ", " : "", table[i].pub.name);
    }
    return err_set(e, ERR_USAGE, "no setting is called \"%.64s\"; there are %s", name, all);
}

/* ---- text to values ---- */

static bool read_real(const char *text, double *out)
{
    /* strtod() also takes blanks, hexadecimal, "nan" and "inf" */
    if (!*text || strspn(text, "0123456789.eE+-") != strlen(text))
        return false;
    char *end;
    *out = strtod(text, &end);
    return *end == '\0' && isfinite(*out);
}

static bool read_int(const char *text, int64_t *out)
{
    size_t sign = text[0] == '-';
    if (!text[sign] || strspn(text + sign, "0123456789") != strlen(text + sign))
        return false;
    errno = 0;
    *out = strtoll(text, NULL, 10);
    return errno == 0;
}

static bool parse_choice(const char *text, const char *const *word, int n, int *out)
{
    for (int i = 0; i < n; i++)
        if (strcmp(text, word[i]) == 0) {
            *out = i;
            return true;
        }
    return false;
}

static bool read_bool(const char *text, bool *out)
{
    static const char *const word[] = {"off", "on", "false", "true", "no", "yes", "0", "1"};
    int i;
    if (!parse_choice(text, word, 8, &i))
        return false;
    *out = i & 1;
    return true;
}

static bool in_range(const struct entry *t, double v)
{
    return v >= t->min && v <= t->max;
}

/* "auto", or "5-1-6": the three parts, which the shape then has. */
static bool store_shape(struct settings *s, const char *text)
{
    static const char *const part[] = {"draft.steps", "draft.topk", "draft.nodes"};
    struct settings got = *s;
    got.auto_shape = strcmp(text, "auto") == 0;
    for (int i = 0; i < 3 && !got.auto_shape; i++) {
        char number[8];
        size_t n = strcspn(text, "-");
        if (n >= sizeof number || (text[n] == '-') != (i < 2))
            return false;
        memcpy(number, text, n);
        number[n] = '\0';
        if (!settings_set(&got, part[i], number, &(struct err){0}))
            return false;
        text += n + (i < 2);
    }
    *s = got;
    return true;
}

/* Writes the value into *s; false leaves *s as it was. */
static bool store(struct settings *s, const struct entry *t, const char *text)
{
    void *at = (char *)s + t->at;
    double real;
    int64_t whole;
    switch (t->kind) {
    case K_REAL:
        if (!read_real(text, &real) || !in_range(t, real))
            return false;
        *(double *)at = real + 0.0; /* "-0" becomes 0 */
        return true;
    case K_INT:
    case K_PART:
        if (!read_int(text, &whole) || !in_range(t, (double)whole))
            return false;
        *(int *)at = (int)whole;
        s->auto_shape &= t->kind != K_PART;
        return true;
    case K_I64:
        if (!read_int(text, &whole) || !in_range(t, (double)whole))
            return false;
        *(int64_t *)at = whole;
        return true;
    case K_BOOL:
        return read_bool(text, at);
    case K_CHECK: return parse_choice(text, check_name, 3, at);
    case K_FORGET: return parse_choice(text, forget_name, 4, at);
    case K_SHAPE: return store_shape(s, text);
    }
    return false;
}

bool settings_set(struct settings *s, const char *name, const char *value, struct err *e)
{
    const struct entry *t = find(name);
    if (!t)
        return unknown(name, e);
    if (!store(s, t, value))
        return err_set(e, ERR_USAGE, "%s cannot be \"%.64s\"; expected %s", t->pub.name, value,
                       t->pub.range);
    return true;
}

/* ---- values to text ---- */

/* The shortest decimal that reads back as the same double. */
static void print_real(double v, struct buf *out)
{
    char text[40];
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        if (strtod(text, NULL) == v)
            break;
    }
    buf_str(out, text);
}

static void print_value(const struct settings *s, const struct entry *t, struct buf *out)
{
    const void *at = (const char *)s + t->at;
    switch (t->kind) {
    case K_REAL: print_real(*(const double *)at, out); break;
    case K_INT:
    case K_PART: buf_printf(out, "%d", *(const int *)at); break;
    case K_SHAPE:
        if (s->auto_shape)
            buf_str(out, "auto");
        else
            buf_printf(out, "%d-%d-%d", s->steps, s->topk, s->nodes);
        break;
    case K_I64: buf_printf(out, "%lld", (long long)*(const int64_t *)at); break;
    case K_BOOL: buf_str(out, *(const bool *)at ? "on" : "off"); break;
    case K_CHECK:
        CHECK((unsigned)*(const int *)at <= CHECK_STRICT);
        buf_str(out, check_name[*(const int *)at]);
        break;
    case K_FORGET:
        CHECK((unsigned)*(const int *)at <= FORGET_NEVER);
        buf_str(out, forget_name[*(const int *)at]);
        break;
    }
}

bool settings_get(const struct settings *s, const char *name, struct buf *out)
{
    const struct entry *t = find(name);
    if (t)
        print_value(s, t, out);
    return t != NULL;
}

void settings_print(const struct settings *s, struct buf *out)
{
    for (int i = 0; i < N; i++) {
        buf_printf(out, "%s=", table[i].pub.name);
        print_value(s, &table[i], out);
        buf_char(out, '\n');
    }
}

bool settings_parse(struct settings *s, const char *lines, struct err *e)
{
    struct settings got = *s;
    int number = 0;
    while (*lines) {
        size_t n = strcspn(lines, "\n"), name = strcspn(lines, "=\n");
        char line[256];
        number++;
        if (n >= sizeof line || (n && name == n))
            return err_set(e, ERR_USAGE, "line %d: expected name=value", number);
        memcpy(line, lines, n);
        line[n] = '\0';
        if (n) {
            line[name] = '\0';
            if (!settings_set(&got, line, line + name + 1, e))
                return err_prefix(e, "line %d", number);
        }
        lines += n + (lines[n] == '\n');
    }
    *s = got;
    return true;
}
