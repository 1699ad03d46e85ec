/* json.c - the rules of JSON: see parts.h. */
#include "models/grammar/parts.h"

#include <math.h>

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

/* Adds the characters of two to four bytes but U+2028 and U+2029, which end lines. */
static void make_wide_char(struct grammar *g, int rule)
{
    static const uint8_t form[][4][2] = {
        {{0xC2, 0xDF}, {0x80, 0xBF}},
        {{0xE0, 0xE0}, {0xA0, 0xBF}, {0x80, 0xBF}},
        {{0xE1, 0xE1}, {0x80, 0xBF}, {0x80, 0xBF}},
        {{0xE2, 0xE2}, {0x80, 0x80}, {0x80, 0xA7}},
        {{0xE2, 0xE2}, {0x80, 0x80}, {0xAA, 0xBF}},
        {{0xE2, 0xE2}, {0x81, 0xBF}, {0x80, 0xBF}},
        {{0xE3, 0xEC}, {0x80, 0xBF}, {0x80, 0xBF}},
        {{0xED, 0xED}, {0x80, 0x9F}, {0x80, 0xBF}},
        {{0xEE, 0xEF}, {0x80, 0xBF}, {0x80, 0xBF}},
        {{0xF0, 0xF0}, {0x90, 0xBF}, {0x80, 0xBF}, {0x80, 0xBF}},
        {{0xF1, 0xF3}, {0x80, 0xBF}, {0x80, 0xBF}, {0x80, 0xBF}},
        {{0xF4, 0xF4}, {0x80, 0x8F}, {0x80, 0xBF}, {0x80, 0xBF}},
    };
    struct sequence s = {0};
    for (size_t i = 0; i < sizeof form / sizeof *form; i++) {
        for (int k = 0; k < 4 && form[i][k][0]; k++)
            put_range(g, &s, form[i][k][0], form[i][k][1]);
        grammar_alt(g, rule, &s);
    }
}

/* The characters of UTF-8 that need no escape. */
static void make_raw_char(struct grammar *g, int rule)
{
    struct sequence s = {0};
    struct set ascii = {0};
    set_add(&ascii, 0x20, 0x7E);
    set_drop(&ascii, '"');
    set_drop(&ascii, '\\');
    put_set(g, &s, &ascii);
    grammar_alt(g, rule, &s);
    make_wide_char(g, rule);
    put_literal(g, &s, "\xE2\x80");
    put_range(g, &s, 0xA8, 0xA9);
    grammar_alt(g, rule, &s);
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
    case RULE_WIDE_CHAR: make_wide_char(g, rule); break;
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
