/* schema.c - the rules of a JSON schema (draft 2020-12, and what older ones call otherwise). See
 * grammar.h and parts.h. */
#include "kernels/idioms.h"
#include "models/grammar/parts.h"
#include "models/grammar/values.h"
#include "kernels/json_read.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_DEPTH = 64, MOST_MEMO = 10000, MOST_NAME = 256, MOST_REPEATS = 1000000 };

struct compiler {
    struct grammar *g;
    const json_t *root;
    struct memo {
        const json_t *schema;
        int rule;
    } *memo; /* (n) the schemas that have a rule */
    int n, cap, depth;
    struct err *e;
};

static int compile(struct compiler *c, const json_t *schema);

static bool fail(struct compiler *c, const char *fmt, const char *what)
{
    return err_set(c->e, ERR_USAGE, fmt, what);
}

/* ---- which keywords there are ---------------------------------------------------------------- */

/* Keywords that say nothing about which values are valid. */
static const char *const notes[] = {
    "title", "description", "default", "examples", "example", "$schema", "$id", "$comment",
    "$anchor",
    "deprecated", "readOnly", "writeOnly", "format", "discriminator", "$defs", "definitions",
    "contentEncoding", "contentMediaType", "contentSchema", "strict", "name", NULL};
static const char *const reads[] = {
    "$ref", "const", "enum", "anyOf", "oneOf", "allOf", "type", "nullable", "properties",
    "required",
    "additionalProperties", "items", "prefixItems", "minItems", "maxItems", "uniqueItems",
    "minLength", "maxLength", "pattern", "minimum", "maximum", "exclusiveMinimum",
    "exclusiveMaximum", "multipleOf", "unevaluatedProperties", "propertyNames",
    "minProperties", NULL};

static bool is_in(const char *word, const char *const *list)
{
    for (; *list; list++)
        if (!strcmp(word, *list))
            return true;
    return false;
}

/* Whether a schema has keywords other than notes and those of `but`. */
static const char *other_than(const json_t *o, const char *const *but)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)o, key, v)
        if (!is_in(key, notes) && !is_in(key, but))
            return key;
    return NULL;
}

static bool known_keywords(struct compiler *c, const json_t *o)
{
    const char *odd = other_than(o, reads);
    return !odd || fail(c, "the schema's keyword \"%.80s\" is not supported", odd);
}

/* Reads a whole number that need not be there. */
static bool read_count(struct compiler *c, const json_t *o, const char *key, int *out)
{
    json_t *v = schema_get(o, key);
    double x = json_number_value(v);
    if (!v)
        return true;
    if (!json_is_number(v) || x < 0 || x != floor(x))
        return fail(c, "the schema's \"%.40s\" should be a whole number that is not negative", key);
    *out = x > MOST_REPEATS ? MANY : (int)x;
    return true;
}

/* ---- constants ------------------------------------------------------------------------------- */

static void put_constant(struct grammar *g, struct sequence *s, const json_t *v)
{
    const char *key;
    json_t *one;
    size_t i;
    bool first = true;
    if (json_is_string(v)) {
        put_json_string(g, s, json_string_value(v), json_string_length(v));
    } else if (json_is_array(v)) {
        put_literal(g, s, "[");
        json_array_foreach(v, i, one) {
            put_literal(g, s, i ? ", " : "");
            put_constant(g, s, one);
        }
        put_literal(g, s, "]");
    } else if (json_is_object(v)) {
        put_literal(g, s, "{");
        json_object_foreach((json_t *)v, key, one) {
            put_literal(g, s, first ? "" : ", ");
            put_json_string(g, s, key, strlen(key));
            put_literal(g, s, ": ");
            put_constant(g, s, one);
            first = false;
        }
        put_literal(g, s, "}");
    } else {
        char *text = json_written(v, 0);
        put_literal(g, s, text ? text : "null");
        free(text);
    }
}

static bool add_constants(struct compiler *c, int rule, const json_t *o)
{
    static const char *const with[] = {"const", "enum", "type", "nullable", NULL};
    const char *odd = other_than(o, with);
    json_t *list = schema_get(o, "enum"), *one = schema_get(o, "const"), *v;
    struct sequence s = {0};
    size_t i;
    if (odd)
        return fail(c, "the schema's keyword \"%.80s\" is not supported beside enum or const", odd);
    if (list && !json_is_array(list))
        return fail(c, "the schema's \"%s\" should be a list", "enum");
    if (one && schema_type_allows(schema_get(o, "type"), one)) {
        put_constant(c->g, &s, one);
        grammar_alt(c->g, rule, &s);
    }
    json_array_foreach(list, i, v) {
        if (one || !schema_type_allows(schema_get(o, "type"), v))
            continue;
        put_constant(c->g, &s, v);
        grammar_alt(c->g, rule, &s);
    }
    return true;
}

/* ---- strings and numbers --------------------------------------------------------------------- */

static bool add_string(struct compiler *c, int rule, const json_t *o)
{
    int min = 0, max = MANY, texts = -1;
    bool lengths = schema_get(o, "minLength") || schema_get(o, "maxLength");
    const char *format = json_string_value(schema_get(o, "format")), *pattern = NULL;
    struct sequence s = {0};
    if (!read_count(c, o, "minLength", &min) || !read_count(c, o, "maxLength", &max))
        return false;
    if (min > max)
        return true; /* no string */
    if (schema_get(o, "pattern")) {
        pattern = json_string_value(schema_get(o, "pattern"));
        if (!pattern)
            return fail(c, "the schema's \"%s\" should be a text", "pattern");
        if (lengths)
            return fail(c, "the schema's keyword \"%s\" is not supported beside a length",
                        "pattern");
    } else if (format && !lengths) { /* where it cannot be kept it is a note, as drafts have it */
        pattern = grammar_format(format);
    }
    if (pattern && (texts = grammar_pattern(c->g, pattern, c->e)) < 0)
        return false;
    put_literal(c->g, &s, "\"");
    if (pattern)
        put_call(c->g, &s, texts);
    else
        put_repeat(c->g, &s, grammar_known(c->g, RULE_CHAR), min, max);
    put_literal(c->g, &s, "\"");
    grammar_alt(c->g, rule, &s);
    return true;
}

static bool read_limits(struct compiler *c, const json_t *o, double *lo, double *hi, bool whole)
{
    static const char *const key[] = {"minimum", "maximum", "exclusiveMinimum",
                                      "exclusiveMaximum"};
    *lo = -HUGE_VAL, *hi = HUGE_VAL;
    for (int i = 0; i < 4; i++) {
        json_t *v = schema_get(o, key[i]);
        double x = json_number_value(v);
        if (!v)
            continue;
        if (!json_is_number(v))
            return fail(c, "the schema's \"%s\" should be a number", key[i]);
        if (i >= 2) /* the next one inside */
            x = i == 2 ? (whole ? floor(x) + 1 : nextafter(x, HUGE_VAL))
                       : (whole ? ceil(x) - 1 : nextafter(x, -HUGE_VAL));
        if (i % 2 == 0)
            *lo = fmax(*lo, x);
        else
            *hi = fmin(*hi, x);
    }
    return true;
}

static bool add_number(struct compiler *c, int rule, const json_t *o, bool whole)
{
    double lo, hi;
    struct sequence s = {0};
    json_t *step = schema_get(o, "multipleOf");
    if (!read_limits(c, o, &lo, &hi, whole))
        return false;
    if (step)
        return grammar_multiples(c->g, rule, lo, hi, json_number_value(step), whole) ||
               fail(c, "the schema's keyword \"%s\" is supported for steps of at most 6 places and "
                    "3 digits, such as 5, 0.01 or 2.5", "multipleOf");
    if (lo == -HUGE_VAL && hi == HUGE_VAL) {
        put_call(c->g, &s, grammar_known(c->g, whole ? RULE_INTEGER : RULE_NUMBER));
        grammar_alt(c->g, rule, &s);
    } else if (whole) {
        grammar_integers(c->g, rule, lo, hi);
    } else {
        grammar_numbers(c->g, rule, lo, hi);
    }
    return true;
}

/* ---- arrays ---------------------------------------------------------------------------------- */

enum { MOST_UNIQUE = 10 };

/* What may follow in an array of different values: value[i] is the rule of the value with number i;
 * used: a bit for each that came; rest: (1 << n) 1 + the rule for `used`. */
struct unique {
    int value[MOST_UNIQUE], n, min, max;
    int rest[1 << MOST_UNIQUE];
};

static int unique_rest(struct grammar *g, struct unique *u, int used)
{
    if (u->rest[used])
        return u->rest[used] - 1;
    int rule = grammar_rule(g), count = __builtin_popcount((unsigned)used);
    struct sequence s = {0};
    u->rest[used] = rule + 1;
    if (count >= u->min) {
        put_call(g, &s, grammar_known(g, RULE_SPACE));
        put_literal(g, &s, "]");
        grammar_alt(g, rule, &s);
    }
    for (int i = 0; count < u->max && i < u->n; i++) {
        if (used >> i & 1)
            continue;
        put_literal(g, &s, used ? "," : "");
        put_call(g, &s, grammar_known(g, RULE_SPACE));
        put_call(g, &s, u->value[i]);
        put_call(g, &s, unique_rest(g, u, used | 1 << i));
        grammar_alt(g, rule, &s);
    }
    return rule;
}

/* An array of different values of a finite set, in any order. */
static bool add_unique(struct compiler *c, int rule, const json_t *o, int min, int max)
{
    struct grammar *g = c->g;
    json_t *all = schema_get(o, "items") ? schema_values(c->root, schema_get(o, "items")) : NULL,
        *v;
    bool ok = all && json_array_size(all) <= MOST_UNIQUE && !schema_get(o, "prefixItems");
    struct unique *u = xcalloc(1, sizeof *u);
    struct sequence s = {0};
    size_t i;
    u->min = min, u->max = max;
    json_array_foreach(all, i, v) {
        if (!ok)
            break;
        u->value[u->n++] = grammar_rule(g);
        put_constant(g, &s, v);
        grammar_alt(g, u->value[i], &s);
    }
    if (ok) {
        put_literal(g, &s, "[");
        put_call(g, &s, unique_rest(g, u, 0));
        grammar_alt(g, rule, &s);
    }
    free(u);
    json_decref(all);
    return ok ||
           fail(c, "the schema's keyword \"%s\" is supported where items are one of at most 10 "
                      "constants, or where maxItems is 1", "uniqueItems");
}

static bool add_array(struct compiler *c, int rule, const json_t *o)
{
    struct grammar *g = c->g;
    json_t *items = schema_get(o, "items"), *first = schema_get(o, "prefixItems"), *v;
    int min = 0, max = MANY, item = -1, n = (int)json_array_size(first);
    int space = grammar_known(g, RULE_SPACE), more = grammar_rule(g);
    struct sequence s = {0};
    size_t i;
    if (!read_count(c, o, "minItems", &min) || !read_count(c, o, "maxItems", &max))
        return false;
    if (json_is_true(schema_get(o, "uniqueItems")) && max > 1)
        return add_unique(c, rule, o, min, max);
    if (first && !json_is_array(first))
        return fail(c, "the schema's \"%s\" should be a list", "prefixItems");
    if (json_is_false(items))
        max = min_int(max, n);
    else if ((item = items ? compile(c, items) : grammar_known(g, RULE_VALUE)) < 0)
        return false;
    if (min > max || n > max)
        return true; /* no array; a prefix is always written whole */
    if (min == 0 && n == 0) {
        put_literal(g, &s, "[]");
        grammar_alt(g, rule, &s);
    }
    if (max == 0)
        return true;
    if (item >= 0) {
        put_literal(g, &s, ",");
        put_call(g, &s, space);
        put_call(g, &s, item);
        grammar_alt(g, more, &s);
    }
    put_literal(g, &s, "[");
    put_call(g, &s, space);
    json_array_foreach(first, i, v) {
        int one = compile(c, v);
        if (one < 0) {
            free(s.v);
            return false;
        }
        if (i) {
            put_literal(g, &s, ",");
            put_call(g, &s, space);
        }
        put_call(g, &s, one);
    }
    if (n == 0)
        put_call(g, &s, item);
    n = max_int(n, 1);
    if (item >= 0)
        put_repeat(g, &s, more, max_int(0, min - n), max == MANY ? MANY : max - n);
    put_call(g, &s, space);
    put_literal(g, &s, "]");
    grammar_alt(g, rule, &s);
    return true;
}

/* ---- objects --------------------------------------------------------------------------------- */

struct property {
    const char *name;
    int value; /* rule */
    bool required;
};

/* A key that is none of the properties: raw characters, among which ways that could become one are
 * cut. from: bytes that all names of p have in common so far. */
static int other_key(struct grammar *g, const struct property *p, int n, size_t from)
{
    int rule = grammar_rule(g), raw = grammar_known(g, RULE_RAW_CHAR);
    struct sequence s = {0};
    struct set other = {0};
    bool ends = false, done[128] = {false};
    set_add(&other, 0x20, 0x7E);
    set_drop(&other, '"');
    set_drop(&other, '\\');
    for (int i = 0; i < n; i++) {
        unsigned char byte = (unsigned char)p[i].name[from];
        ends |= !byte;
        if (byte && byte < 0x80)
            set_drop(&other, byte);
    }
    if (!ends) { /* a name that goes on is another one */
        put_literal(g, &s, "\"");
        grammar_alt(g, rule, &s);
    }
    put_set(g, &s, &other);
    put_repeat(g, &s, raw, 0, MANY);
    put_literal(g, &s, "\"");
    grammar_alt(g, rule, &s);
    for (int i = 0; i < n; i++) {
        unsigned char byte = (unsigned char)p[i].name[from];
        if (byte < 0x20 || byte >= 0x7F || byte == '"' || byte == '\\' || done[byte])
            continue;
        done[byte] = true;
        struct property *same = xcalloc((size_t)n, sizeof *same);
        int k = 0;
        for (int j = 0; j < n; j++)
            if ((unsigned char)p[j].name[from] == byte)
                same[k++] = p[j];
        int next = other_key(g, same, k, from + 1);
        free(same);
        put_range(g, &s, byte, byte);
        put_call(g, &s, next);
        grammar_alt(g, rule, &s);
    }
    return rule;
}

/* The rest of an object: members of other names, and its end. first: no member came before. some:
 * an object has a member. */
static int object_end(struct grammar *g, int one, bool first, bool some)
{
    int rule = grammar_rule(g), more = grammar_rule(g), space = grammar_known(g, RULE_SPACE);
    struct sequence s = {0};
    if (one >= 0) {
        put_literal(g, &s, ",");
        put_call(g, &s, space);
        put_call(g, &s, one);
        grammar_alt(g, more, &s);
    }
    if (first) {
        if (!some) {
            put_literal(g, &s, "}");
            grammar_alt(g, rule, &s);
        }
        if (one < 0)
            return rule;
        put_call(g, &s, one);
    }
    if (one >= 0)
        put_repeat(g, &s, more, 0, MANY);
    put_call(g, &s, space);
    put_literal(g, &s, "}");
    grammar_alt(g, rule, &s);
    return rule;
}

/* The rules from the last property to the first: rest[k] with no (0) or with members before. */
static int object_rest(struct grammar *g, const struct property *p, int n, int one, bool some)
{
    int rest[2] = {object_end(g, one, true, some), object_end(g, one, false, some)};
    int space = grammar_known(g, RULE_SPACE);
    while (n-- > 0) {
        int now[2] = {grammar_rule(g), grammar_rule(g)};
        for (int k = 0; k < 2; k++) {
            struct sequence s = {0};
            if (k) {
                put_literal(g, &s, ",");
                put_call(g, &s, space);
            }
            put_json_string(g, &s, p[n].name, strlen(p[n].name));
            put_literal(g, &s, ":");
            put_call(g, &s, space);
            put_call(g, &s, p[n].value);
            put_call(g, &s, rest[1]);
            grammar_alt(g, now[k], &s);
            if (p[n].required)
                continue;
            put_call(g, &s, rest[k]);
            grammar_alt(g, now[k], &s);
        }
        rest[0] = now[0], rest[1] = now[1];
    }
    return rest[0];
}

/* Whether every text is a name: true, {} or a schema that says no more than that it is a text. */
static bool any_name(const json_t *o)
{
    static const char *const with[] = {"type", NULL};
    const char *type = json_string_value(schema_get(o, "type"));
    return !o || json_is_true(o) ||
           (json_is_object(o) && !other_than(o, with) && !schema_get(o, "format") &&
                                     (!schema_get(o, "type") || (type && !strcmp(type, "string"))));
}

/* Fills p with the properties and with required names that are none of them; names: those that
 * there may be, or NULL: any. */
static int read_properties(struct compiler *c, const json_t *o, const json_t *names,
                           struct property *p)
{
    json_t *all = schema_get(o, "properties"), *v, *more = schema_get(o, "additionalProperties");
    const char *name;
    size_t i;
    int n = 0;
    json_object_foreach(all, name, v) {
        if (strlen(name) > MOST_NAME) {
            fail(c, "the property \"%.40s...\" has a name of more than 256 bytes", name);
            return -1;
        }
        json_t *text = json_string(name);
        bool allowed = !names || schema_holds(names, text);
        json_decref(text);
        p[n] = (struct property){name, allowed ? compile(c, v) : grammar_rule(c->g),
                                 schema_requires(o, name)};
        if (p[n++].value < 0)
            return -1;
    }
    json_array_foreach(names, i, v) {
        name = json_string_value(v);
        if (!name || schema_get(all, name) || strlen(name) > MOST_NAME || json_is_false(more))
            continue;
        p[n] = (struct property){name, json_is_object(more) ? compile(c, more)
                                 : grammar_known(c->g, RULE_VALUE), schema_requires(o, name)};
        if (p[n++].value < 0)
            return -1;
    }
    json_array_foreach(schema_get(o, "required"), i, v) {
        name = json_string_value(v);
        if (!name || schema_get(all, name) || strlen(name) > MOST_NAME)
            continue;
        if (names) { /* among them, or never allowed */
            if (!schema_holds(names, v))
                p[n++] = (struct property){name, grammar_rule(c->g), true};
            continue;
        }
        int value = more && !json_is_boolean(more) ? compile(c, more)
                                                   : grammar_known(c->g, RULE_VALUE);
        if (value < 0)
            return -1;
        if (json_is_false(more))
            value = grammar_rule(c->g); /* no value: the object cannot be written */
        p[n++] = (struct property){name, value, true};
    }
    return n;
}

/* Whether the item with this index equals one before it. */
static bool is_before(const json_t *list, size_t at)
{
    bool is = false;
    for (size_t i = 0; i < at; i++)
        is |= json_equal(json_array_get(list, i), json_array_get(list, at));
    return is;
}

static bool add_object(struct compiler *c, int rule, const json_t *o)
{
    struct grammar *g = c->g;
    json_t *v;
    size_t i;
    json_t *all = schema_get(o, "properties"), *required = schema_get(o, "required"),
           *more = schema_get(o, "additionalProperties");
    struct sequence s = {0};
    json_t *allowed = schema_get(o, "propertyNames"), *names = NULL;
    if (!more)
        more = schema_get(o, "unevaluatedProperties");
    if (all && !json_is_object(all))
        return fail(c, "the schema's \"%s\" should be an object", "properties");
    if (required && !json_is_array(required))
        return fail(c, "the schema's \"%s\" should be a list", "required");
    if (!any_name(allowed) && !(names = schema_values(c->root, allowed)))
        return fail(c, "the schema's keyword \"%s\" is supported with constants only",
                    "propertyNames");
    int least = 0, known = 0; /* members that an object always has */
    json_array_foreach(required, i, v)
        known += !is_before(required, i);
    if (!read_count(c, o, "minProperties", &least))
        return false;
    if (least > max_int(1, known))
        return fail(c, "the schema's keyword \"%s\" is supported up to 1, or to the number of "
                    "required properties", "minProperties");
    size_t most = json_object_size(all) + json_array_size(required) + json_array_size(names);
    struct property *p = xcalloc(most + 1, sizeof *p);
    int n = read_properties(c, o, names, p), value = -1, one = -1;
    /* other properties: those that the schema describes, or any where it describes none */
    if (names)
        ; /* all that there may be are properties */
    else if (n >= 0 && json_is_object(more) && (value = compile(c, more)) < 0)
        n = -1;
    else if (n == 0 && !json_is_false(more) && value < 0)
        value = grammar_known(g, RULE_VALUE);
    else if (n > 0 && json_is_true(more))
        value = grammar_known(g, RULE_VALUE);
    if (n >= 0 && value >= 0) {
        one = grammar_rule(g);
        if (n) {
            put_literal(g, &s, "\"");
            put_call(g, &s, other_key(g, p, n, 0));
        } else {
            put_call(g, &s, grammar_known(g, RULE_STRING));
        }
        put_literal(g, &s, ":");
        put_call(g, &s, grammar_known(g, RULE_SPACE));
        put_call(g, &s, value);
        grammar_alt(g, one, &s);
    }
    if (n >= 0) {
        put_literal(g, &s, "{");
        put_call(g, &s, grammar_known(g, RULE_SPACE));
        put_call(g, &s, object_rest(g, p, n, one, least > 0));
        grammar_alt(g, rule, &s);
    }
    free(p);
    json_decref(names);
    return n >= 0;
}

/* ---- alternatives ---------------------------------------------------------------------------- */

static bool add_call(struct compiler *c, int rule, const json_t *schema)
{
    struct sequence s = {0};
    int r = compile(c, schema);
    if (r < 0)
        return false;
    put_call(c->g, &s, r);
    grammar_alt(c->g, rule, &s);
    return true;
}

static bool alone(struct compiler *c, const json_t *o, const char *key)
{
    const char *const with[] = {key, NULL};
    const char *odd = other_than(o, with);
    return !odd ||
           err_set(c->e, ERR_USAGE, "the schema's keyword \"%.80s\" is not supported beside "
                           "%s", odd, key);
}

static bool add_ref(struct compiler *c, int rule, const json_t *o)
{
    const char *ref = json_string_value(schema_get(o, "$ref"));
    const json_t *to = ref ? schema_at(c->root, ref) : NULL;
    if (!alone(c, o, "$ref"))
        return false;
    return to ? add_call(c, rule, to)
              : fail(c, "the schema's $ref \"%.80s\" names no part of it", ref ? ref : "");
}

static bool add_alternatives(struct compiler *c, int rule, const json_t *o, const char *key)
{
    json_t *list = schema_get(o, key), *v, *w;
    size_t i, k;
    if (!json_is_array(list) || json_array_size(list) == 0)
        return fail(c, "the schema's \"%s\" should be a list of schemas", key);
    if (!alone(c, o, key))
        return false;
    if (!strcmp(key, "allOf") && json_array_size(list) > 1)
        return fail(c, "the schema's keyword \"%s\" is supported with one schema only", key);
    json_array_foreach(list, i, v) {
        for (k = 0; !strcmp(key, "oneOf") && k < i; k++) {
            w = json_array_get(list, k);
            if (!schema_apart(c->root, v, w))
                return fail(c, "the schema's \"%s\" has alternatives of which a value may match "
                            "several; anyOf allows that", key);
        }
        if (!add_call(c, rule, v))
            return false;
    }
    return true;
}

/* ---- a schema -------------------------------------------------------------------------------- */

/* The type that a schema without one means by its keywords; NULL: any. */
static const char *implied_type(const json_t *o)
{
    static const struct {
        const char *key, *type;
    } implied[] = {{"properties", "object"}, {"required", "object"},
                   {"additionalProperties", "object"}, {"items", "array"},
                   {"prefixItems", "array"}, {"minItems", "array"}, {"maxItems", "array"},
                   {"minLength", "string"}, {"maxLength", "string"}, {"pattern", "string"},
                   {"minimum", "number"}, {"maximum", "number"}, {"exclusiveMinimum", "number"},
                   {"exclusiveMaximum", "number"}, {"multipleOf", "number"},
                   {"uniqueItems", "array"}, {"propertyNames", "object"},
                   {"minProperties", "object"}};
    for (size_t i = 0; i < sizeof implied / sizeof *implied; i++)
        if (schema_get(o, implied[i].key))
            return implied[i].type;
    return NULL;
}

static bool add_type(struct compiler *c, int rule, const json_t *o, const char *type)
{
    struct sequence s = {0};
    if (!strcmp(type, "object"))
        return add_object(c, rule, o);
    if (!strcmp(type, "array"))
        return add_array(c, rule, o);
    if (!strcmp(type, "string"))
        return add_string(c, rule, o);
    if (!strcmp(type, "integer") || !strcmp(type, "number"))
        return add_number(c, rule, o, type[0] == 'i');
    if (strcmp(type, "boolean") != 0 && strcmp(type, "null") != 0)
        return fail(c, "the schema's type \"%.40s\" is not known", type);
    put_literal(c->g, &s, type[0] == 'b' ? "true" : "null");
    grammar_alt(c->g, rule, &s);
    if (type[0] == 'b') {
        put_literal(c->g, &s, "false");
        grammar_alt(c->g, rule, &s);
    }
    return true;
}

static bool add_types(struct compiler *c, int rule, const json_t *o)
{
    json_t *type = schema_get(o, "type"), *one;
    const char *implied = implied_type(o);
    size_t i;
    if (json_is_true(schema_get(o, "nullable")) && !add_type(c, rule, o, "null"))
        return false;
    if (json_is_string(type))
        return add_type(c, rule, o, json_string_value(type));
    if (type && !json_is_array(type))
        return fail(c, "the schema's \"%s\" should be a text or a list of texts", "type");
    json_array_foreach(type, i, one) {
        if (!json_is_string(one))
            return fail(c, "the schema's \"%s\" should be a text or a list of texts", "type");
        if (!add_type(c, rule, o, json_string_value(one)))
            return false;
    }
    if (type)
        return true;
    if (implied)
        return add_type(c, rule, o, implied);
    struct sequence s = {0};
    put_call(c->g, &s, grammar_known(c->g, RULE_VALUE));
    grammar_alt(c->g, rule, &s);
    return true;
}

static bool fill(struct compiler *c, int rule, const json_t *o)
{
    if (!known_keywords(c, o))
        return false;
    if (schema_get(o, "$ref"))
        return add_ref(c, rule, o);
    if (schema_get(o, "const") || schema_get(o, "enum"))
        return add_constants(c, rule, o);
    for (int i = 0; i < 3; i++) {
        static const char *const key[] = {"anyOf", "oneOf", "allOf"};
        if (schema_get(o, key[i]))
            return add_alternatives(c, rule, o, key[i]);
    }
    return add_types(c, rule, o);
}

/* The rule of a schema, made once for each; -1: *c->e. */
static int compile(struct compiler *c, const json_t *schema)
{
    if (json_is_true(schema))
        return grammar_known(c->g, RULE_VALUE);
    if (json_is_false(schema))
        return grammar_rule(c->g); /* no value */
    for (int i = 0; i < c->n; i++)
        if (c->memo[i].schema == schema)
            return c->memo[i].rule;
    if (!json_is_object(schema) || c->depth == MOST_DEPTH || c->n == MOST_MEMO) {
        fail(c, !json_is_object(schema) ? "a schema should be an object%s"
                : c->n == MOST_MEMO ? "the schema is too large%s"
                                    : "the schema is nested too deep%s", "");
        return -1;
    }
    MAKE_ROOM(c->memo, c->n, c->cap, 32);
    int rule = grammar_rule(c->g);
    c->memo[c->n++] = (struct memo){schema, rule};
    c->depth++;
    bool ok = fill(c, rule, schema);
    c->depth--;
    return ok ? rule : -1;
}

int grammar_schema(struct grammar *g, const json_t *schema, struct err *e)
{
    struct compiler c = {.g = g, .root = schema, .e = e};
    int rule = compile(&c, schema);
    free(c.memo);
    return rule;
}
