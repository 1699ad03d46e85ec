/* json.c - the rules of JSON: see parts.h. */
#include "models/grammar/parts.h"

#include <math.h>

/* ---- rules of JSON --------------------------------------------------------------------------- */

enum { MOST_INDENT = 32 };

static void make_space(struct grammar *grammar, int rule)
{
    int blank = grammar_rule(grammar);
    grammar_add(grammar, blank, " ");
    grammar_add(grammar, rule, "");
    grammar_add(grammar, rule, " ");
    grammar_add(grammar, rule, "\n%*", blank, 0, MOST_INDENT);
}

#define TAIL "%[\x80-\xBF]"

/* Adds the characters of two to four bytes but U+2028 and U+2029, which end lines. */
static void make_wide_char(struct grammar *grammar, int rule)
{
    static const char *const form[] = {
        "%[\xC2-\xDF]" TAIL,
        "\xE0%[\xA0-\xBF]" TAIL,
        "\xE1" TAIL TAIL,
        "\xE2\x80%[\x80-\xA7]",
        "\xE2\x80%[\xAA-\xBF]",
        "\xE2%[\x81-\xBF]" TAIL,
        "%[\xE3-\xEC]" TAIL TAIL,
        "\xED%[\x80-\x9F]" TAIL,
        "%[\xEE-\xEF]" TAIL TAIL,
        "\xF0%[\x90-\xBF]" TAIL TAIL,
        "%[\xF1-\xF3]" TAIL TAIL TAIL,
        "\xF4%[\x80-\x8F]" TAIL TAIL,
    };
    for (size_t i = 0; i < LEN(form); i++)
        grammar_add(grammar, rule, form[i]);
}

/* The characters of UTF-8 that need no escape. */
static void make_raw_char(struct grammar *grammar, int rule)
{
    grammar_add(grammar, rule, "%[]-~ -!#-[]");
    make_wide_char(grammar, rule);
    grammar_add(grammar, rule, "\xE2\x80%[\xA8-\xA9]");
}

#define HEX "%[0-9a-fA-F]"

/* Neither NUL nor halves of surrogate pairs, so that a character of the text is one of the rule. */
static void make_char(struct grammar *grammar, int rule)
{
    grammar_add(grammar, rule, "%c", grammar_known(grammar, RULE_RAW_CHAR));
    grammar_add(grammar, rule, "\\%[\"\\/bfnrt]");
    grammar_add(grammar, rule, "\\u00%[1-9a-fA-F]" HEX);
    grammar_add(grammar, rule, "\\u0%[1-9a-fA-F]" HEX HEX);
    grammar_add(grammar, rule, "\\u%[1-9a-ce-fA-CE-F]" HEX HEX HEX);
    grammar_add(grammar, rule, "\\u%[dD]%[0-7]" HEX HEX);
}

static void make_string(struct grammar *grammar, int rule)
{
    grammar_add(grammar, rule, "\"%*\"", grammar_known(grammar, RULE_CHAR), 0, MANY);
}

static void make_value(struct grammar *grammar, int rule)
{
    static const enum known_rule of[] = {RULE_STRING, RULE_NUMBER, RULE_OBJECT, RULE_ARRAY};
    grammar_add(grammar, rule, "true");
    grammar_add(grammar, rule, "false");
    grammar_add(grammar, rule, "null");
    for (size_t i = 0; i < LEN(of); i++)
        grammar_add(grammar, rule, "%c", grammar_known(grammar, of[i]));
}

/* Any members or items: OPEN CLOSE, or OPEN one (, one)* CLOSE. */
static void make_list(struct grammar *grammar, int rule, bool object)
{
    int one = grammar_rule(grammar), more = grammar_rule(grammar),
        space = grammar_known(grammar, RULE_SPACE);
    int value = grammar_known(grammar, RULE_VALUE);
    if (object)
        grammar_add(grammar, one, "%c:%c%c", grammar_known(grammar, RULE_STRING), space, value);
    else
        grammar_add(grammar, one, "%c", value);
    grammar_add(grammar, more, ",%c%c", space, one);
    grammar_add(grammar, rule, object ? "{}" : "[]");
    grammar_add(grammar, rule, object ? "{%c%c%*%c}" : "[%c%c%*%c]", space, one, more, 0, MANY,
                space);
}

int grammar_known(struct grammar *grammar, enum known_rule k)
{
    if (grammar->known[k])
        return grammar->known[k] - 1;
    int rule = grammar_rule(grammar);
    grammar->known[k] = rule + 1; /* before it is filled: values hold values */
    switch (k) {
    case RULE_SPACE: make_space(grammar, rule); break;
    case RULE_CHAR: make_char(grammar, rule); break;
    case RULE_WIDE_CHAR: make_wide_char(grammar, rule); break;
    case RULE_RAW_CHAR: make_raw_char(grammar, rule); break;
    case RULE_STRING: make_string(grammar, rule); break;
    case RULE_INTEGER: grammar_integers(grammar, rule, -HUGE_VAL, HUGE_VAL); break;
    case RULE_NUMBER: grammar_numbers(grammar, rule, -HUGE_VAL, HUGE_VAL); break;
    case RULE_VALUE: make_value(grammar, rule); break;
    case RULE_OBJECT: make_list(grammar, rule, true); break;
    case RULE_ARRAY: make_list(grammar, rule, false); break;
    case N_KNOWN: break;
    }
    return rule;
}
