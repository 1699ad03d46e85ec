/* grammar.c - rules and their alternatives, those of JSON, and a whole grammar. See grammar.h. */
#include "models/grammar/parts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- rules ----------------------------------------------------------------------------------- */

int grammar_rule(struct grammar *g)
{
    if (g->n_rule == g->cap_rule)
        g->rule = xrealloc(g->rule, (size_t)(g->cap_rule = 2 * g->cap_rule + 32),
                           sizeof *g->rule);
    g->rule[g->n_rule] = (struct rule){0};
    return g->n_rule++;
}

static void put(struct sequence *s, struct element e)
{
    if (s->n == s->cap)
        s->v = xrealloc(s->v, (size_t)(s->cap = 2 * s->cap + 16), sizeof *s->v);
    s->v[s->n++] = e;
}

void grammar_alt(struct grammar *g, int rule, struct sequence *s)
{
    struct rule *r = &g->rule[rule];
    put(s, (struct element){.kind = ELEMENT_END});
    g->full |= g->n_element + s->n > MOST_ELEMENTS;
    if (!g->full) {
        if (g->n_element + s->n > g->cap_element)
            g->element = xrealloc(g->element,
                                  (size_t)(g->cap_element = 2 * g->cap_element + s->n + 64),
                                  sizeof *g->element);
        if (r->n == r->cap)
            r->alt = xrealloc(r->alt, (size_t)(r->cap = 2 * r->cap + 2), sizeof *r->alt);
        r->alt[r->n++] = g->n_element;
        memcpy(g->element + g->n_element, s->v, (size_t)s->n * sizeof *s->v);
        g->n_element += s->n;
    }
    free(s->v);
    *s = (struct sequence){0};
}

void put_set(struct grammar *g, struct sequence *s, const struct set *set)
{
    if (g->n_set == g->cap_set)
        g->set = xrealloc(g->set, (size_t)(g->cap_set = 2 * g->cap_set + 64), sizeof *g->set);
    g->set[g->n_set] = *set;
    put(s, (struct element){.kind = ELEMENT_SET, .at = g->n_set++});
}

void put_range(struct grammar *g, struct sequence *s, int from, int to)
{
    struct set set = {0};
    set_add(&set, from, to);
    put_set(g, s, &set);
}

void put_bytes(struct grammar *g, struct sequence *s, const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        int byte = (unsigned char)p[i];
        if (!g->byte[byte]) {
            put_range(g, s, byte, byte);
            g->byte[byte] = g->n_set;
        } else {
            put(s, (struct element){.kind = ELEMENT_SET, .at = g->byte[byte] - 1});
        }
    }
}

void put_literal(struct grammar *g, struct sequence *s, const char *text)
{
    put_bytes(g, s, text, strlen(text));
}

void put_call(struct grammar *g, struct sequence *s, int rule)
{
    (void)g;
    put(s, (struct element){.kind = ELEMENT_CALL, .at = rule});
}

void put_repeat(struct grammar *g, struct sequence *s, int rule, int min, int max)
{
    (void)g;
    if (max > 0)
        put(s, (struct element){.kind = ELEMENT_REPEAT, .at = rule, .min = min, .max = max});
}

void put_json_string(struct grammar *g, struct sequence *s, const char *p, size_t n)
{
    put_literal(g, s, "\"");
    for (size_t i = 0; i < n; i++) {
        char escape[8] = {p[i]};
        if (p[i] == '"' || p[i] == '\\')
            snprintf(escape, sizeof escape, "\\%c", p[i]);
        else if ((unsigned char)p[i] < 0x20)
            snprintf(escape, sizeof escape, "\\u%04x", (unsigned)p[i]);
        put_bytes(g, s, escape, escape[0] == '\\' ? strlen(escape) : 1);
    }
    put_literal(g, s, "\"");
}

/* ---- rules of JSON --------------------------------------------------------------------------- */

enum { MOST_INDENT = 32, MOST_DIGITS = 18 };

static void make_space(struct grammar *g, int rule)
{
    struct sequence s = {0};
    int blank = grammar_rule(g);
    put_literal(g, &s, " ");
    grammar_alt(g, blank, &s);
    grammar_alt(g, rule, &s);
    put_literal(g, &s, " ");
    grammar_alt(g, rule, &s);
    put_literal(g, &s, "\n");
    put_repeat(g, &s, blank, 0, MOST_INDENT);
    grammar_alt(g, rule, &s);
}

/* The characters of UTF-8 that need no escape. */
static void make_raw_char(struct grammar *g, int rule)
{
    static const uint8_t form[][4][2] = {
        {{0xC2, 0xDF}, {0x80, 0xBF}},
        {{0xE0, 0xE0}, {0xA0, 0xBF}, {0x80, 0xBF}},
        {{0xE1, 0xEC}, {0x80, 0xBF}, {0x80, 0xBF}},
        {{0xED, 0xED}, {0x80, 0x9F}, {0x80, 0xBF}},
        {{0xEE, 0xEF}, {0x80, 0xBF}, {0x80, 0xBF}},
        {{0xF0, 0xF0}, {0x90, 0xBF}, {0x80, 0xBF}, {0x80, 0xBF}},
        {{0xF1, 0xF3}, {0x80, 0xBF}, {0x80, 0xBF}, {0x80, 0xBF}},
        {{0xF4, 0xF4}, {0x80, 0x8F}, {0x80, 0xBF}, {0x80, 0xBF}},
    };
    struct sequence s = {0};
    struct set ascii = {0};
    set_add(&ascii, 0x20, 0x7E);
    set_drop(&ascii, '"');
    set_drop(&ascii, '\\');
    put_set(g, &s, &ascii);
    grammar_alt(g, rule, &s);
    for (size_t i = 0; i < sizeof form / sizeof *form; i++) {
        for (int k = 0; k < 4 && form[i][k][0]; k++)
            put_range(g, &s, form[i][k][0], form[i][k][1]);
        grammar_alt(g, rule, &s);
    }
}

static void put_hex(struct grammar *g, struct sequence *s, int n)
{
    struct set hex = {0};
    set_add(&hex, '0', '9');
    set_add(&hex, 'a', 'f');
    set_add(&hex, 'A', 'F');
    for (int i = 0; i < n; i++)
        put_set(g, s, &hex);
}

/* Neither NUL nor halves of surrogate pairs, so that a character of the text is one of the rule. */
static void make_char(struct grammar *g, int rule)
{
    struct sequence s = {0};
    struct set short_ = {0}, high = {0}, d = {0};
    for (const char *p = "\"\\/bfnrt"; *p; p++)
        set_add(&short_, *p, *p);
    put_call(g, &s, grammar_known(g, RULE_RAW_CHAR));
    grammar_alt(g, rule, &s);
    put_literal(g, &s, "\\");
    put_set(g, &s, &short_);
    grammar_alt(g, rule, &s);
    put_literal(g, &s, "\\u00");
    set_add(&high, '1', '9'), set_add(&high, 'a', 'f'), set_add(&high, 'A', 'F');
    put_set(g, &s, &high);
    put_hex(g, &s, 1);
    grammar_alt(g, rule, &s);
    put_literal(g, &s, "\\u0");
    put_set(g, &s, &high);
    put_hex(g, &s, 2);
    grammar_alt(g, rule, &s);
    set_drop(&high, 'd'), set_drop(&high, 'D');
    put_literal(g, &s, "\\u");
    put_set(g, &s, &high);
    put_hex(g, &s, 3);
    grammar_alt(g, rule, &s);
    set_add(&d, 'd', 'd'), set_add(&d, 'D', 'D');
    put_literal(g, &s, "\\u");
    put_set(g, &s, &d);
    put_range(g, &s, '0', '7');
    put_hex(g, &s, 2);
    grammar_alt(g, rule, &s);
}

static void make_string(struct grammar *g, int rule)
{
    struct sequence s = {0};
    put_literal(g, &s, "\"");
    put_repeat(g, &s, grammar_known(g, RULE_CHAR), 0, MANY);
    put_literal(g, &s, "\"");
    grammar_alt(g, rule, &s);
}

static void make_value(struct grammar *g, int rule)
{
    static const char *const word[] = {"true", "false", "null"};
    static const enum known_rule of[] = {RULE_STRING, RULE_NUMBER, RULE_OBJECT, RULE_ARRAY};
    struct sequence s = {0};
    for (size_t i = 0; i < 3; i++) {
        put_literal(g, &s, word[i]);
        grammar_alt(g, rule, &s);
    }
    for (size_t i = 0; i < 4; i++) {
        put_call(g, &s, grammar_known(g, of[i]));
        grammar_alt(g, rule, &s);
    }
}

/* Any members or items: OPEN CLOSE, or OPEN one (, one)* CLOSE. */
static void make_list(struct grammar *g, int rule, bool object)
{
    struct sequence s = {0};
    int one = grammar_rule(g), more = grammar_rule(g), space = grammar_known(g, RULE_SPACE);
    if (object) {
        put_call(g, &s, grammar_known(g, RULE_STRING));
        put_literal(g, &s, ":");
        put_call(g, &s, space);
    }
    put_call(g, &s, grammar_known(g, RULE_VALUE));
    grammar_alt(g, one, &s);
    put_literal(g, &s, ",");
    put_call(g, &s, space);
    put_call(g, &s, one);
    grammar_alt(g, more, &s);
    put_literal(g, &s, object ? "{" : "[");
    put_literal(g, &s, object ? "}" : "]");
    grammar_alt(g, rule, &s);
    put_literal(g, &s, object ? "{" : "[");
    put_call(g, &s, space);
    put_call(g, &s, one);
    put_repeat(g, &s, more, 0, MANY);
    put_call(g, &s, space);
    put_literal(g, &s, object ? "}" : "]");
    grammar_alt(g, rule, &s);
}

int grammar_known(struct grammar *g, enum known_rule k)
{
    if (g->known[k])
        return g->known[k] - 1;
    int rule = grammar_rule(g);
    g->known[k] = rule + 1; /* before it is filled: values hold values */
    switch (k) {
    case RULE_SPACE: make_space(g, rule); break;
    case RULE_CHAR: make_char(g, rule); break;
    case RULE_RAW_CHAR: make_raw_char(g, rule); break;
    case RULE_STRING: make_string(g, rule); break;
    case RULE_INTEGER: grammar_integers(g, rule, -HUGE_VAL, HUGE_VAL); break;
    case RULE_NUMBER: grammar_numbers(g, rule, -HUGE_VAL, HUGE_VAL); break;
    case RULE_VALUE: make_value(g, rule); break;
    case RULE_OBJECT: make_list(g, rule, true); break;
    case RULE_ARRAY: make_list(g, rule, false); break;
    case N_KNOWN: break;
    }
    return rule;
}

/* ---- what precedes the text ------------------------------------------------------------------ */

/* A thought up to its first "</think>": rule i has read i bytes of the tag. */
static int thought(struct grammar *g, int then)
{
    static const char tag[] = "</think>";
    enum { N = sizeof tag - 1 };
    int rule[N + 1], white = grammar_rule(g);
    struct sequence s = {0};
    struct set blank = {0};
    set_add(&blank, ' ', ' '), set_add(&blank, '\n', '\n');
    put_set(g, &s, &blank);
    grammar_alt(g, white, &s);
    for (int i = 0; i <= N; i++)
        rule[i] = grammar_rule(g);
    for (int i = 0; i < N; i++) {
        struct set other = {0};
        set_add(&other, 0, 255);
        set_drop(&other, (unsigned char)tag[i]);
        set_drop(&other, '<');
        put_range(g, &s, (unsigned char)tag[i], (unsigned char)tag[i]);
        put_call(g, &s, rule[i + 1]);
        grammar_alt(g, rule[i], &s);
        put_set(g, &s, &other);
        put_call(g, &s, rule[0]);
        grammar_alt(g, rule[i], &s);
        if (tag[i] == '<')
            continue;
        put_literal(g, &s, "<");
        put_call(g, &s, rule[1]);
        grammar_alt(g, rule[i], &s);
    }
    put_repeat(g, &s, white, 0, 2);
    put_call(g, &s, then);
    grammar_alt(g, rule[N], &s);
    return rule[0];
}

/* <|channel|>analysis<|message|>...<|end|><|start|>assistant any number of times, then
 * <|channel|>final<|message|>. */
static int harmony(struct grammar *g, int then)
{
    int rule = grammar_rule(g), byte = grammar_rule(g);
    struct sequence s = {0};
    put_range(g, &s, 0, 255);
    grammar_alt(g, byte, &s);
    put_range(g, &s, SYMBOL_CHANNEL, SYMBOL_CHANNEL);
    put_literal(g, &s, "analysis");
    put_range(g, &s, SYMBOL_MESSAGE, SYMBOL_MESSAGE);
    put_repeat(g, &s, byte, 0, MANY);
    put_range(g, &s, SYMBOL_END, SYMBOL_END);
    put_range(g, &s, SYMBOL_START, SYMBOL_START);
    put_literal(g, &s, "assistant");
    put_call(g, &s, rule);
    grammar_alt(g, rule, &s);
    put_range(g, &s, SYMBOL_CHANNEL, SYMBOL_CHANNEL);
    put_literal(g, &s, "final");
    put_range(g, &s, SYMBOL_MESSAGE, SYMBOL_MESSAGE);
    put_call(g, &s, then);
    grammar_alt(g, rule, &s);
    return rule;
}

/* ---- what can be spelled --------------------------------------------------------------------- */

/* Leaves in all sets only the bytes that are tokens of their own. */
static void keep_spelled(struct grammar *g, const struct tokenizer *t)
{
    struct set one = {0};
    set_add(&one, 256, SYMBOLS - 1);
    for (int id = 0; id < tok_vocab(t); id++) {
        size_t n;
        const char *p = tok_bytes(t, id, &n);
        if (p && n == 1 && !tok_is_special(t, id))
            set_add(&one, (unsigned char)*p, (unsigned char)*p);
    }
    for (int i = 0; i < g->n_set; i++)
        for (int w = 0; w < SET_WORDS; w++)
            g->set[i].bit[w] &= one.bit[w];
}

static bool is_empty(const struct set *s)
{
    uint32_t any = 0;
    for (int w = 0; w < SET_WORDS; w++)
        any |= s->bit[w];
    return !any;
}

static bool can_end(const struct grammar *g, int at, const bool *ends)
{
    bool ok = true;
    for (const struct element *e = &g->element[at]; ok && e->kind != ELEMENT_END; e++)
        ok = e->kind == ELEMENT_SET    ? !is_empty(&g->set[e->at])
             : e->kind == ELEMENT_CALL ? ends[e->at]
                                       : e->min == 0 || ends[e->at];
    return ok;
}

/* Removes the alternatives that no finite text has. A repetition of a rule without a text remains
 * where it may be empty; guides find no way into it. */
static bool drop_endless(struct grammar *g)
{
    bool *ends = xcalloc((size_t)g->n_rule, sizeof *ends), more = true;
    while (more) {
        more = false;
        for (int i = 0; i < g->n_rule; i++)
            for (int k = 0; k < g->rule[i].n && !ends[i]; k++)
                more |= ends[i] = can_end(g, g->rule[i].alt[k], ends);
    }
    for (int i = 0; i < g->n_rule; i++) {
        struct rule *r = &g->rule[i];
        int n = 0;
        for (int k = 0; k < r->n; k++)
            if (can_end(g, r->alt[k], ends))
                r->alt[n++] = r->alt[k];
        r->n = n;
    }
    bool ok = ends[g->root];
    free(ends);
    return ok;
}

/* ---- a grammar ------------------------------------------------------------------------------- */

static int compile(struct grammar *g, const json_t *format, struct err *e)
{
    const char *type = json_string_value(json_object_get(format, "type"));
    if (type && !strcmp(type, "json_object"))
        return grammar_known(g, RULE_OBJECT);
    const json_t *schema = json_object_get(format, "schema");
    if (!type || strcmp(type, "json_schema") != 0 || !schema) {
        err_set(e, ERR_USAGE, "a response format is {\"type\": \"json_object\"} or "
                "{\"type\": \"json_schema\", \"schema\": SCHEMA}");
        return -1;
    }
    return grammar_schema(g, schema, e);
}

struct grammar *grammar_open(const json_t *format, const struct reply_form *form,
                             const struct tokenizer *t, struct err *e)
{
    struct grammar *g = xcalloc(1, sizeof *g);
    g->form = form ? *form : (struct reply_form){0};
    g->root = compile(g, format, e);
    bool ok = g->root >= 0;
    if (ok && g->form.kind == FORM_THOUGHT)
        g->root = thought(g, g->root);
    else if (ok && g->form.kind == FORM_HARMONY)
        g->root = harmony(g, g->root);
    if (ok && t)
        keep_spelled(g, t);
    if (ok && g->full)
        ok = err_set(e, ERR_USAGE, "the schema is too large: its grammar has more than %d elements",
                     (int)MOST_ELEMENTS);
    if (ok && !drop_endless(g))
        ok = err_set(e, ERR_USAGE, "the schema has no value that can be written");
    if (ok)
        return g;
    grammar_close(g);
    return NULL;
}

void grammar_close(struct grammar *g)
{
    if (!g)
        return;
    for (int i = 0; i < g->n_rule; i++)
        free(g->rule[i].alt);
    free(g->rule);
    free(g->set);
    free(g->element);
    free(g);
}
