/* settings.c - see settings.h: the rows of the settings, and the values of every row as text. */
#include "engine/settings.h"

#include "kernels/lines.h"

#include <errno.h>
#include <math.h>

const char *check_level_name(enum check_level l)
{
    static const char *const name[] = {"off", "on", "strict"};
    return name[l];
}

const char *effort_name(enum effort f)
{
    static const char *const name[] = {NULL, "none", "low", "medium", "high"};
    return name[f];
}

#define AT(field) .at = offsetof(struct settings, field)

static const struct option table[] = {
    {"temperature", "0 .. 100", "randomness; 0: always the likeliest token",
     OPT_REAL, AT(temperature), 0, 100, .may = MAY_SAMPLE, .what_if = true, .served = ANY_SERVER},
    {"top_k", "0 .. 1000000", "sample among the k likeliest tokens; 0: all",
     OPT_INT, AT(top_k), 0, 1e6, .may = MAY_SAMPLE, .what_if = true, .served = NO_OPENAI},
    {"top_p", "0 .. 1", "sample among the likeliest with this probability",
     OPT_REAL, AT(top_p), 0, 1, .usual = 1, .may = MAY_SAMPLE, .what_if = true,
     .served = ANY_SERVER},
    {"min_p", "0 .. 1", "drop tokens below this share of the likeliest one",
     OPT_REAL, AT(min_p), 0, 1, .may = MAY_SAMPLE, .what_if = true, .served = NO_OPENAI},
    {"presence_penalty", "-2 .. 2", "subtracted from logits of tokens that the reply has",
     OPT_REAL, AT(presence_penalty), -2, 2, .may = MAY_SAMPLE, .what_if = true,
     .served = ANY_SERVER},
    {"frequency_penalty", "-2 .. 2", "the same, times how often the reply has the token",
     OPT_REAL, AT(frequency_penalty), -2, 2, .may = MAY_SAMPLE, .what_if = true,
     .served = ANY_SERVER},
    {"repetition_penalty", "0.01 .. 100", "divides positive logits of tokens so far",
     OPT_REAL, AT(repetition_penalty), 0.01, 100, .usual = 1, .may = MAY_SAMPLE, .what_if = true,
     .served = NO_OPENAI},
    {"logit_bias", "ID:BIAS,ID:BIAS with a bias of -100 .. 100, or none",
     "added to the logits of single tokens",
     OPT_BIAS, AT(logit_bias), -100, 100, .may = MAY_SAMPLE, .what_if = true,
     .served = ANY_SERVER},
    {"seed", "0 .. 9007199254740991", "where the random numbers start",
     OPT_I64, AT(seed), 0, 9007199254740991.0, .usual = 1, .may = MAY_SAMPLE, .what_if = true,
     .served = ANY_SERVER},
    {"max_tokens", "0 .. 1000000", "longest reply in tokens; 0: up to the context's end",
     OPT_INT, AT(max_tokens), 0, 1e6, .may = MAY_END | MAY_STEP, .served = ANY_SERVER},
    {"spec", "on | off", "speculative drafting",
     OPT_BOOL, AT(spec), .usual = 1, .may = MAY_STEP, .what_if = true},
    {"draft.steps", "1 .. 16", "depth of the draft tree",
     OPT_PART, AT(steps), 1, 16, .usual = 5, .may = MAY_STEP, .what_if = true},
    {"draft.topk", "1 .. 16", "children kept at each level of the draft tree",
     OPT_PART, AT(topk), 1, 16, .usual = 1, .may = MAY_STEP, .what_if = true},
    {"draft.nodes", "2 .. 64", "tree nodes verified at once, the root included",
     OPT_PART, AT(nodes), 2, 64, .usual = 6, .may = MAY_STEP, .what_if = true},
    {"draft.shape", "auto, or steps-topk-nodes as 5-1-6",
     "shape of the tree; auto: the fastest as measured",
     OPT_SHAPE, AT(auto_shape), .may = MAY_STEP, .what_if = true},
    {"draft.window", "0 .. 16777216", "newest positions that the draft model sees; 0: all",
     OPT_INT, AT(draft_window), 0, 1 << 24, .may = MAY_STEP, .what_if = true},
    {"chunk", "0 .. 4096", "prompt tokens of a prefill pass; 0: device's choice",
     OPT_INT, AT(chunk), 0, 4096, .may = MAY_STEP},
    {"check", "off | on | strict", "checker of plans and pools before each pass",
     OPT_WORD, AT(check), .usual = CHECK_ON, .what_if = true},
    {"forget", "auto | ask | oldest | never", "full context: ask, drop oldest turns, or refuse",
     OPT_WORD, AT(forget), .may = MAY_PROMPT, .served = ANY_SERVER},
    {"ring", "1 .. 4096", "megabytes of past page tables in memory",
     OPT_INT, AT(ring), 1, 4096, .usual = 16},
    {"gauge.ms", "0 .. 3600000", "reads a server's metrics every N ms; 0: never",
     OPT_INT, AT(gauge_ms), 0, 3600000, .usual = 1000, .served = ANY_SERVER},
    {"graph", "on | off", "replay recorded cycles (CUDA graphs)",
     OPT_BOOL, AT(graph), .usual = 1},
    {"verbose", "on | off", "a line of statistics after each reply",
     OPT_BOOL, AT(verbose), .served = ANY_SERVER},
    {"effort", "auto | none | low | medium | high",
     "how much replies reason; auto: as the model was made",
     OPT_WORD, AT(effort), .may = MAY_PROMPT, .served = ANY_SERVER},
    {"think", "on | off", "show the reasoning of models that reason",
     OPT_BOOL, AT(think), .usual = 1, .served = ANY_SERVER},
};
enum { N = LEN(table) };

void settings_init(struct settings *s)
{
    *s = (struct settings){0};
    for (int i = 0; i < N; i++) {
        void *at = (char *)s + table[i].at;
        switch (table[i].kind) {
        case OPT_REAL: *(double *)at = table[i].usual; break;
        case OPT_I64: *(int64_t *)at = (int64_t)table[i].usual; break;
        case OPT_BOOL: *(bool *)at = table[i].usual != 0; break;
        case OPT_INT:
        case OPT_PART:
        case OPT_WORD: *(int *)at = (int)table[i].usual; break;
        default: break; /* the shape is its parts */
        }
    }
}

int settings_count(void)
{
    return N;
}

const struct option *settings_at(int i)
{
    CHECK(i >= 0 && i < N);
    return &table[i];
}

const struct option *settings_named(const char *name)
{
    return ROW_NAMED(table, name);
}

static const struct option *find_option(const char *name)
{
    return settings_named(strcmp(name, "draft") ? name : "spec"); /* users type "draft off" */
}

int settings_index(const char *name)
{
    const struct option *t = find_option(name);
    return t ? (int)(t - table) : -1;
}

static bool unknown(const char *name, struct err *e)
{
    char all[320] = "";
    for (int i = 0; i < N; i++) {
        size_t n = strlen(all);
        snprintf(all + n, sizeof all - n, "%s%s", i ? ", " : "", table[i].name);
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

int word_index(const char *words, const char *text)
{
    size_t n = strlen(text);
    for (int i = 0; *words; i++) {
        size_t here = strcspn(words, " |");
        if (here == n && memcmp(words, text, n) == 0)
            return i;
        words += here;
        words += strspn(words, " |");
    }
    return -1;
}

static bool read_bool(const char *words, const char *text, bool *out)
{
    int i = word_index(words, text);
    if (i >= 0)
        *out = i & 1;
    return i >= 0;
}

static bool in_range(const struct option *t, double v)
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

/* "12:-1.5,7:3", or "none". */
static bool read_bias(const struct option *o, const char *text, struct logit_bias *out)
{
    struct logit_bias got = {0};
    if (!strcmp(text, "none"))
        text = "";
    while (*text) {
        char number[64];
        size_t n = strcspn(text, ","), colon = strcspn(text, ":");
        int64_t id;
        double by;
        if (n >= sizeof number || colon >= n || got.n == MOST_BIAS)
            return false;
        memcpy(number, text, n);
        number[n] = number[colon] = '\0';
        if (!read_int(number, &id) || id < 0 || id > INT32_MAX ||
            !read_real(number + colon + 1, &by) || !in_range(o, by))
            return false;
        for (int i = 0; i < got.n; i++)
            if (got.id[i] == (int32_t)id)
                return false;
        got.id[got.n] = (int32_t)id;
        got.by[got.n++] = (float)by + 0.f;
        text += n;
        if (*text == ',' && !*++text)
            return false;
    }
    *out = got;
    return true;
}

bool option_read(const struct option *o, void *in, const char *text)
{
    void *at = (char *)in + o->at;
    double real;
    int64_t whole;
    int word;
    switch (o->kind) {
    case OPT_REAL:
        if (!read_real(text, &real) || !in_range(o, real))
            return false;
        *(double *)at = real + 0.0; /* "-0" becomes 0 */
        return true;
    case OPT_INT:
    case OPT_POW2:
    case OPT_PART:
        if (!read_int(text, &whole) || !in_range(o, (double)whole) ||
            (o->kind == OPT_POW2 && (whole & (whole - 1))))
            return false;
        *(int *)at = (int)whole;
        if (o->kind == OPT_PART)
            ((struct settings *)in)->auto_shape = false;
        return true;
    case OPT_I64:
        if (!read_int(text, &whole) || !in_range(o, (double)whole))
            return false;
        *(int64_t *)at = whole;
        return true;
    case OPT_BOOL: return read_bool("off|on|false|true|no|yes|0|1", text, at);
    case OPT_FLAG: return read_bool("off|on", text, at);
    case OPT_WORD:
        if ((word = word_index(o->range, text)) < 0)
            return false;
        *(int *)at = word;
        return true;
    case OPT_NAME:
        if (word_index(o->range, text) < 0)
            return false;
        *(const char **)at = text;
        return true;
    case OPT_TEXT: *(const char **)at = text; return true;
    case OPT_SHAPE: return store_shape(in, text);
    case OPT_BIAS: return read_bias(o, text, at);
    }
    return false;
}

bool settings_set(struct settings *s, const char *name, const char *value, struct err *e)
{
    const struct option *t = find_option(name);
    if (!t)
        return unknown(name, e);
    if (!option_read(t, s, value))
        return err_set(e, ERR_USAGE, "%s cannot be \"%.64s\"; expected %s", t->name, value,
                       t->range);
    return true;
}

bool settings_fit(const struct settings *s, int vocab, struct err *e)
{
    const struct logit_bias *b = &s->logit_bias;
    for (int i = 0; i < b->n && vocab > 0; i++)
        if (b->id[i] >= vocab)
            return err_set(e, ERR_USAGE, "logit_bias: %d is no token: the vocabulary has %d "
                           "tokens, 0 to %d", (int)b->id[i], vocab, vocab - 1);
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

static void print_bias(const struct logit_bias *b, struct buf *out)
{
    char text[40];
    for (int i = 0; i < b->n; i++) {
        for (int digits = 3; digits <= 9; digits++) { /* 3: -100 has no exponent */
            snprintf(text, sizeof text, "%.*g", digits, (double)b->by[i]);
            if (strtof(text, NULL) == b->by[i])
                break;
        }
        buf_printf(out, "%s%d:%s", i ? "," : "", (int)b->id[i], text);
    }
    if (b->n == 0)
        buf_str(out, "none");
}

/* The i-th word of "a|b|c". */
static void print_word(const char *words, int i, struct buf *out)
{
    for (; i > 0 && *words; i--) {
        words += strcspn(words, " |");
        words += strspn(words, " |");
    }
    CHECK(*words && i == 0);
    buf_add(out, words, strcspn(words, " |"));
}

void option_print(const struct option *o, const void *in, struct buf *out)
{
    const void *at = (const char *)in + o->at;
    const struct settings *s = in;
    switch (o->kind) {
    case OPT_REAL: print_real(*(const double *)at, out); break;
    case OPT_INT:
    case OPT_POW2:
    case OPT_PART: buf_printf(out, "%d", *(const int *)at); break;
    case OPT_I64: buf_printf(out, "%lld", (long long)*(const int64_t *)at); break;
    case OPT_BOOL: buf_str(out, *(const bool *)at ? "on" : "off"); break;
    case OPT_FLAG: buf_str(out, *(const bool *)at ? "1" : "0"); break;
    case OPT_WORD: print_word(o->range, *(const int *)at, out); break;
    case OPT_NAME:
    case OPT_TEXT: buf_str(out, *(const char *const *)at ? *(const char *const *)at : ""); break;
    case OPT_SHAPE:
        if (s->auto_shape)
            buf_str(out, "auto");
        else
            buf_printf(out, "%d-%d-%d", s->steps, s->topk, s->nodes);
        break;
    case OPT_BIAS: print_bias(at, out); break;
    }
}

bool settings_get(const struct settings *s, const char *name, struct buf *out)
{
    const struct option *t = find_option(name);
    if (t)
        option_print(t, s, out);
    return t != NULL;
}

void settings_print(const struct settings *s, struct buf *out)
{
    for (int i = 0; i < N; i++) {
        buf_printf(out, "%s=", table[i].name);
        option_print(&table[i], s, out);
        buf_char(out, '\n');
    }
}

bool settings_parse(struct settings *s, const char *lines, struct err *e)
{
    struct settings got = *s;
    int number = 0;
    FOR_LINES(l, lines) {
        const size_t name = line_name(l).n;
        number++;
        if (l.n == 0)
            continue;
        if (name == l.n)
            return err_set(e, ERR_USAGE, "line %d: expected name=value", number);
        FREED(free_at) char *line = line_copy(l);
        line[name] = '\0';
        if (!settings_set(&got, line, line + name + 1, e))
            return err_prefix(e, "line %d", number);
    }
    *s = got;
    return true;
}

/* ---- penalties ---- */

bool penalties_any(const struct penalties *p)
{
    bool repetition = p->repetition != 1 && p->repetition != 0;
    return p->presence != 0 || p->frequency != 0 || repetition || p->bias.n > 0;
}

void settings_penalties(const struct settings *s, struct penalties *out)
{
    *out = (struct penalties){.presence = (float)s->presence_penalty,
                              .frequency = (float)s->frequency_penalty,
                              .repetition = (float)s->repetition_penalty,
                              .bias = s->logit_bias};
}
