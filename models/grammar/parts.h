/* parts.h - grammars as they are built; internal to models/grammar/.
 *
 * A rule is a list of alternatives, each a sequence of elements. The symbols that elements consume
 * are the 256 bytes and the special tokens of a chat format. */
#pragma once

#include "models/grammar/grammar.h"

enum {
    SYMBOLS = 256 + 8,
    SYMBOL_CHANNEL = 256,
    SYMBOL_MESSAGE,
    SYMBOL_END,
    SYMBOL_START,
    SYMBOL_CALL,
    SYMBOL_CALL_END,
    SET_WORDS = (SYMBOLS + 31) / 32,
    MANY = INT32_MAX,        /* no upper limit of a repetition */
    MOST_ELEMENTS = 1 << 20, /* of a grammar */
};

struct set {
    uint32_t bit[SET_WORDS];
};
static inline void set_add(struct set *s, int from, int to)
{
    for (int i = from; i <= to; i++)
        s->bit[i >> 5] |= 1u << (i & 31);
}
static inline void set_drop(struct set *s, int i)
{
    s->bit[i >> 5] &= ~(1u << (i & 31));
}
static inline bool set_has(const struct set *s, int i)
{
    return s->bit[i >> 5] >> (i & 31) & 1;
}

enum element_kind { ELEMENT_END, ELEMENT_SET, ELEMENT_CALL, ELEMENT_REPEAT };

struct element {
    enum element_kind kind; /* END: of an alternative */
    int at;                 /* SET: index of the set; CALL, REPEAT: of the rule */
    int min, max;           /* REPEAT: how often; the rule has no empty text */
};

/* An alternative while it is built. */
struct sequence {
    struct element *v;
    int n;
};

struct rule {
    int *alt; /* (n) first elements */
    int n;
};

/* Rules that many schemas use, made when they are first needed. */
enum known_rule {
    RULE_SPACE,    /* between values: nothing, a blank, or a line break and blanks */
    RULE_CHAR,     /* of a string */
    RULE_WIDE_CHAR, /* of two to four bytes but U+2028 and U+2029 */
    RULE_RAW_CHAR, /* without an escape */
    RULE_STRING,
    RULE_INTEGER,
    RULE_NUMBER,
    RULE_VALUE,
    RULE_OBJECT,
    RULE_ARRAY,
    N_KNOWN,
};

struct grammar {
    struct element *element;
    int n_element, cap_element;
    struct set *set;
    int n_set;
    struct rule *rule;
    int n_rule;
    int known[N_KNOWN]; /* 1 + the rule; 0: not made yet */
    int byte[256];      /* 1 + the set of this byte alone; 0: not made yet */
    int root;
    bool full; /* it has too many elements */
    struct reply_form form;
};

/* rules.c; grammar_known(): json.c. */
int grammar_rule(struct grammar *grammar);                 /* a new rule without alternatives */
/* adds one and empties *seq */
void grammar_alt(struct grammar *grammar, int rule, struct sequence *seq);
int grammar_known(struct grammar *grammar, enum known_rule k);

/* Appends what `form` says: its bytes as they are, and for
 *   %c      a call of a rule (int)
 *   %*      repetitions of a rule (int rule, int min, int max); nothing if max is 0
 *   %[a-z_] one of these bytes; a ] that is meant stands first
 *   %r      one symbol of a range (int from, int to)
 *   %s      one of a set (const struct set *)
 *   %t      a text (const char *) */
void grammar_put(struct grammar *grammar, struct sequence *seq, const char *form, ...);
/* Adds an alternative of such a form to a rule. */
void grammar_add(struct grammar *grammar, int rule, const char *form, ...);
void put_bytes(struct grammar *grammar, struct sequence *seq, const char *p, size_t n);
/* The JSON text of a string, raw where JSON allows that. */
void put_json_string(struct grammar *grammar, struct sequence *seq, const char *p, size_t n);

/* number.c: adds alternatives for the numbers from lo to hi (either may be infinite). */
void grammar_integers(struct grammar *grammar, int rule, double lo, double hi);
void grammar_numbers(struct grammar *grammar, int rule, double lo, double hi);
/* The multiples of step among them, by their decimal digits; whole: whole numbers only. False: such
 * a step is not supported. */
bool grammar_multiples(struct grammar *grammar, int rule, double lo, double hi, double step,
                       bool whole);

/* pattern.c: the rule of the texts that a regular expression matches, spelled as JSON without the
 * quotes; -1 and *e: it has what is not supported. The expression of a "format", or NULL. */
int grammar_pattern(struct grammar *grammar, const char *pattern, struct err *e);
const char *grammar_format(const char *format);

/* schema.c: the rule of a schema, or -1 and *e. */
int grammar_schema(struct grammar *grammar, const json_t *schema, struct err *e);
