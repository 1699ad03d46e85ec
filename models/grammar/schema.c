/* schema.c - the rules of a JSON schema (draft 2020-12, and what older ones call otherwise). See
 * grammar.h and parts.h. */
#include "models/grammar/parts.h"
#include "models/grammar/values.h"
#include "kernels/json_read.h"

#include <math.h>

enum { MOST_DEPTH = 64, MOST_MEMO = 10000, MOST_NAME = 256, MOST_REPEATS = 1000000 };

struct compiler {
    struct grammar *grammar;
    const json_t *root;
    struct memo {
        const json_t *schema;
        int rule;
    } *memo; /* (n) the schemas that have a rule */
    int n, depth;
    struct err *e;
};

static int compile(struct compiler *compiler, const json_t *schema);

static bool fail(struct compiler *compiler, const char *fmt, const char *what)
{
    return err_set(compiler->e, ERR_USAGE, fmt, what);
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
        if (strncmp(key, "x-", 2) != 0 && !is_in(key, notes) && !is_in(key, but))
            return key; /* "x-...": notes of programs that write schemas */
    return NULL;
}

/* Reads a whole number that need not be there. */
static bool read_count(struct compiler *compiler, const json_t *o, const char *key, int *out)
{
    json_t *v = schema_get(o, key);
    double x = json_number_value(v);
    if (!v)
        return true;
    if (!json_is_number(v) || x < 0 || x != floor(x))
        return fail(compiler, "the schema's \"%.40s\" should be a whole number that is not "
                              "negative", key);
    *out = x > MOST_REPEATS ? MANY : (int)x;
    return true;
}

/* ---- constants ------------------------------------------------------------------------------- */

static void put_constant(struct grammar *grammar, struct sequence *seq, const json_t *v)
{
    const char *key;
    json_t *one;
    size_t i;
    bool first = true;
    if (json_is_string(v)) {
        put_json_string(grammar, seq, json_string_value(v), json_string_length(v));
    } else if (json_is_array(v)) {
        grammar_put(grammar, seq, "[");
        json_array_foreach(v, i, one) {
            grammar_put(grammar, seq, i ? ", " : "");
            put_constant(grammar, seq, one);
        }
        grammar_put(grammar, seq, "]");
    } else if (json_is_object(v)) {
        grammar_put(grammar, seq, "{");
        json_object_foreach((json_t *)v, key, one) {
            grammar_put(grammar, seq, first ? "" : ", ");
            put_json_string(grammar, seq, key, strlen(key));
            grammar_put(grammar, seq, ": ");
            put_constant(grammar, seq, one);
            first = false;
        }
        grammar_put(grammar, seq, "}");
    } else {
        FREED(free_at) char *text = json_written(v, 0);
        grammar_put(grammar, seq, "%t", text ? text : "null");
    }
}

static void add_constant(struct grammar *grammar, int rule, const json_t *v)
{
    struct sequence seq = {0};
    put_constant(grammar, &seq, v);
    grammar_alt(grammar, rule, &seq);
}

static bool add_constants(struct compiler *compiler, int rule, const json_t *o)
{
    static const char *const with[] = {"const", "enum", "type", "nullable", NULL};
    const char *odd = other_than(o, with);
    json_t *list = schema_get(o, "enum"), *one = schema_get(o, "const"), *v;
    size_t i;
    if (odd)
        return fail(compiler, "the schema's keyword \"%.80s\" is not supported beside enum or "
                              "const", odd);
    if (list && !json_is_array(list))
        return fail(compiler, "the schema's \"%s\" should be a list", "enum");
    if (one && schema_type_allows(schema_get(o, "type"), one))
        add_constant(compiler->grammar, rule, one);
    json_array_foreach(list, i, v)
        if (!one && schema_type_allows(schema_get(o, "type"), v))
            add_constant(compiler->grammar, rule, v);
    return true;
}

/* ---- strings and numbers --------------------------------------------------------------------- */

static bool add_string(struct compiler *compiler, int rule, const json_t *o)
{
    int min = 0, max = MANY, texts = -1;
    bool lengths = schema_get(o, "minLength") || schema_get(o, "maxLength");
    const char *format = json_string_value(schema_get(o, "format")), *pattern = NULL;
    if (!read_count(compiler, o, "minLength", &min) || !read_count(compiler, o, "maxLength", &max))
        return false;
    if (min > max)
        return true; /* no string */
    if (schema_get(o, "pattern")) {
        pattern = json_string_value(schema_get(o, "pattern"));
        if (!pattern)
            return fail(compiler, "the schema's \"%s\" should be a text", "pattern");
        if (lengths)
            return fail(compiler, "the schema's keyword \"%s\" is not supported beside a length",
                        "pattern");
    } else if (format && !lengths) { /* where it cannot be kept it is a note, as drafts have it */
        pattern = grammar_format(format);
    }
    if (pattern && (texts = grammar_pattern(compiler->grammar, pattern, compiler->e)) < 0)
        return false;
    if (pattern)
        grammar_add(compiler->grammar, rule, "\"%c\"", texts);
    else
        grammar_add(compiler->grammar, rule, "\"%*\"", grammar_known(compiler->grammar, RULE_CHAR),
                    min, max);
    return true;
}

static bool read_limits(struct compiler *compiler, const json_t *o, double *lo, double *hi,
                        bool whole)
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
            return fail(compiler, "the schema's \"%s\" should be a number", key[i]);
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

static bool add_number(struct compiler *compiler, int rule, const json_t *o, bool whole)
{
    double lo, hi;
    json_t *step = schema_get(o, "multipleOf");
    if (!read_limits(compiler, o, &lo, &hi, whole))
        return false;
    if (step)
        return grammar_multiples(compiler->grammar, rule, lo, hi, json_number_value(step), whole) ||
               fail(compiler, "the schema's keyword \"%s\" is supported for steps of at most 6 "
                              "places and 3 digits, such as 5, 0.01 or 2.5", "multipleOf");
    if (lo == -HUGE_VAL && hi == HUGE_VAL)
        grammar_add(compiler->grammar, rule, "%c",
                    grammar_known(compiler->grammar, whole ? RULE_INTEGER : RULE_NUMBER));
    else if (whole)
        grammar_integers(compiler->grammar, rule, lo, hi);
    else
        grammar_numbers(compiler->grammar, rule, lo, hi);
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

static int unique_rest(struct grammar *grammar, struct unique *unique, int used)
{
    if (unique->rest[used])
        return unique->rest[used] - 1;
    int rule = grammar_rule(grammar), count = __builtin_popcount((unsigned)used);
    int space = grammar_known(grammar, RULE_SPACE);
    unique->rest[used] = rule + 1;
    if (count >= unique->min)
        grammar_add(grammar, rule, "%c]", space);
    for (int i = 0; count < unique->max && i < unique->n; i++)
        if (!(used >> i & 1))
            grammar_add(grammar, rule, used ? ",%c%c%c" : "%c%c%c", space, unique->value[i],
                        unique_rest(grammar, unique, used | 1 << i));
    return rule;
}

/* An array of different values of a finite set, in any order. */
static bool add_unique(struct compiler *compiler, int rule, const json_t *o, int min, int max)
{
    struct grammar *grammar = compiler->grammar;
    json_t *items = schema_get(o, "items"), *v;
    FREED(json_decrefp) json_t *all = items ? schema_values(compiler->root, items) : NULL;
    bool ok = all && json_array_size(all) <= MOST_UNIQUE && !schema_get(o, "prefixItems");
    FREED(free_at) struct unique *unique = xcalloc(1, sizeof *unique);
    size_t i;
    unique->min = min, unique->max = max;
    json_array_foreach(all, i, v) {
        if (!ok)
            break;
        unique->value[unique->n++] = grammar_rule(grammar);
        add_constant(grammar, unique->value[i], v);
    }
    if (ok)
        grammar_add(grammar, rule, "[%c", unique_rest(grammar, unique, 0));
    return ok ||
           fail(compiler, "the schema's keyword \"%s\" is supported where items are one of at most "
                          "10 constants, or where maxItems is 1", "uniqueItems");
}

static bool add_array(struct compiler *compiler, int rule, const json_t *o)
{
    struct grammar *grammar = compiler->grammar;
    json_t *items = schema_get(o, "items"), *first = schema_get(o, "prefixItems"), *v;
    int min = 0, max = MANY, item = -1, n = (int)json_array_size(first);
    int space = grammar_known(grammar, RULE_SPACE), more = grammar_rule(grammar);
    struct sequence seq = {0};
    size_t i;
    if (!read_count(compiler, o, "minItems", &min) || !read_count(compiler, o, "maxItems", &max))
        return false;
    if (json_is_true(schema_get(o, "uniqueItems")) && max > 1)
        return add_unique(compiler, rule, o, min, max);
    if (first && !json_is_array(first))
        return fail(compiler, "the schema's \"%s\" should be a list", "prefixItems");
    if (json_is_false(items))
        max = min_int(max, n);
    else if ((item = items ? compile(compiler, items) : grammar_known(grammar, RULE_VALUE)) < 0)
        return false;
    if (min > max || n > max)
        return true; /* no array; a prefix is always written whole */
    if (min == 0 && n == 0)
        grammar_add(grammar, rule, "[]");
    if (max == 0)
        return true;
    if (item >= 0)
        grammar_add(grammar, more, ",%c%c", space, item);
    grammar_put(grammar, &seq, "[%c", space);
    json_array_foreach(first, i, v) {
        int one = compile(compiler, v);
        if (one < 0) {
            free(seq.v);
            return false;
        }
        if (i)
            grammar_put(grammar, &seq, ",%c", space);
        grammar_put(grammar, &seq, "%c", one);
    }
    if (n == 0)
        grammar_put(grammar, &seq, "%c", item);
    n = max_int(n, 1);
    if (item >= 0)
        grammar_put(grammar, &seq, "%*", more, max_int(0, min - n), max == MANY ? MANY : max - n);
    grammar_put(grammar, &seq, "%c]", space);
    grammar_alt(grammar, rule, &seq);
    return true;
}

/* ---- objects --------------------------------------------------------------------------------- */

struct property {
    const char *name;
    int value; /* rule */
    bool required;
};

/* A key that is none of the properties: raw characters, among which ways that could become one are
 * cut. from: bytes that the names of all properties have in common so far. */
static int other_key(struct grammar *grammar, const struct property *property, int n, size_t from)
{
    int rule = grammar_rule(grammar), raw = grammar_known(grammar, RULE_RAW_CHAR);
    struct set other = {0};
    bool ends = false, done[128] = {false};
    set_add(&other, 0x20, 0x7E);
    set_drop(&other, '"');
    set_drop(&other, '\\');
    for (int i = 0; i < n; i++) {
        unsigned char byte = (unsigned char)property[i].name[from];
        ends |= !byte;
        if (byte && byte < 0x80)
            set_drop(&other, byte);
    }
    if (!ends) /* a name that goes on is another one */
        grammar_add(grammar, rule, "\"");
    grammar_add(grammar, rule, "%s%*\"", &other, raw, 0, MANY);
    for (int i = 0; i < n; i++) {
        unsigned char byte = (unsigned char)property[i].name[from];
        if (byte < 0x20 || byte >= 0x7F || byte == '"' || byte == '\\' || done[byte])
            continue;
        done[byte] = true;
        FREED(free_at) struct property *same = xcalloc((size_t)n, sizeof *same);
        int k = 0;
        for (int j = 0; j < n; j++)
            if ((unsigned char)property[j].name[from] == byte)
                same[k++] = property[j];
        grammar_add(grammar, rule, "%r%c", byte, byte, other_key(grammar, same, k, from + 1));
    }
    return rule;
}

/* The rest of an object: members of other names, and its end. first: no member came before. some:
 * an object has a member. */
static int object_end(struct grammar *grammar, int one, bool first, bool some)
{
    int rule = grammar_rule(grammar), more = grammar_rule(grammar),
        space = grammar_known(grammar, RULE_SPACE);
    if (one >= 0)
        grammar_add(grammar, more, ",%c%c", space, one);
    if (first && !some)
        grammar_add(grammar, rule, "}");
    if (one < 0 && !first)
        grammar_add(grammar, rule, "%c}", space);
    else if (one >= 0 && first)
        grammar_add(grammar, rule, "%c%*%c}", one, more, 0, MANY, space);
    else if (one >= 0)
        grammar_add(grammar, rule, "%*%c}", more, 0, MANY, space);
    return rule;
}

/* The rules from the last property to the first: rest[k] with no (0) or with members before. */
static int object_rest(struct grammar *grammar, const struct property *property, int n, int one,
                       bool some)
{
    int rest[2] = {object_end(grammar, one, true, some), object_end(grammar, one, false, some)};
    int space = grammar_known(grammar, RULE_SPACE);
    while (n-- > 0) {
        int from[2] = {grammar_rule(grammar), grammar_rule(grammar)};
        for (int k = 0; k < 2; k++) {
            struct sequence seq = {0};
            if (k)
                grammar_put(grammar, &seq, ",%c", space);
            put_json_string(grammar, &seq, property[n].name, strlen(property[n].name));
            grammar_put(grammar, &seq, ":%c%c%c", space, property[n].value, rest[1]);
            grammar_alt(grammar, from[k], &seq);
            if (!property[n].required)
                grammar_add(grammar, from[k], "%c", rest[k]);
        }
        rest[0] = from[0], rest[1] = from[1];
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

/* Adds a property with the rule of its values' schema; false: the schema has none. */
static bool add_property(struct compiler *compiler, const json_t *o, const char *name,
                         const json_t *schema, struct property *property, int *n)
{
    property[*n] = (struct property){name, compile(compiler, schema), schema_requires(o, name)};
    return property[(*n)++].value >= 0;
}

/* Fills property[] with the properties and with required names that are none of them; names: those
 * that there may be, or NULL: any. A name that may not be there has no value: an object that needs
 * it cannot be written. */
static int read_properties(struct compiler *compiler, const json_t *o, const json_t *names,
                           struct property *property)
{
    json_t *all = schema_get(o, "properties"), *v, *more = schema_get(o, "additionalProperties");
    const json_t *any = json_is_object(more) ? more : json_true();
    const char *name;
    size_t i;
    int n = 0;
    json_object_foreach(all, name, v) {
        if (strlen(name) > MOST_NAME) {
            fail(compiler, "the property \"%.40s...\" has a name of more than 256 bytes", name);
            return -1;
        }
        FREED(json_decrefp) json_t *text = json_string(name);
        bool allowed = !names || schema_holds(names, text);
        if (!add_property(compiler, o, name, allowed ? v : json_false(), property, &n))
            return -1;
    }
    json_array_foreach(names, i, v) {
        name = json_string_value(v);
        if (!name || schema_get(all, name) || strlen(name) > MOST_NAME || json_is_false(more))
            continue;
        if (!add_property(compiler, o, name, any, property, &n))
            return -1;
    }
    json_array_foreach(schema_get(o, "required"), i, v) {
        name = json_string_value(v);
        if (!name || schema_get(all, name) || strlen(name) > MOST_NAME ||
            (names && schema_holds(names, v)))
            continue;
        const json_t *schema = names ? json_false() : more ? more : any;
        if (!add_property(compiler, o, name, schema, property, &n))
            return -1;
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

static bool add_object(struct compiler *compiler, int rule, const json_t *o)
{
    struct grammar *grammar = compiler->grammar;
    json_t *v;
    size_t i;
    json_t *all = schema_get(o, "properties"), *required = schema_get(o, "required"),
           *more = schema_get(o, "additionalProperties");
    json_t *allowed = schema_get(o, "propertyNames");
    FREED(json_decrefp) json_t *names = NULL;
    if (!more)
        more = schema_get(o, "unevaluatedProperties");
    if (all && !json_is_object(all))
        return fail(compiler, "the schema's \"%s\" should be an object", "properties");
    if (required && !json_is_array(required))
        return fail(compiler, "the schema's \"%s\" should be a list", "required");
    if (!any_name(allowed) && !(names = schema_values(compiler->root, allowed)))
        return fail(compiler, "the schema's keyword \"%s\" is supported with constants only",
                    "propertyNames");
    int least = 0, known = 0; /* members that an object always has */
    json_array_foreach(required, i, v)
        known += !is_before(required, i);
    if (!read_count(compiler, o, "minProperties", &least))
        return false;
    if (least > max_int(1, known))
        return fail(compiler, "the schema's keyword \"%s\" is supported up to 1, or to the number "
                              "of required properties", "minProperties");
    size_t most = json_object_size(all) + json_array_size(required) + json_array_size(names);
    FREED(free_at) struct property *property = xcalloc(most + 1, sizeof *property);
    int n = read_properties(compiler, o, names, property), value = -1, one = -1;
    int space = grammar_known(grammar, RULE_SPACE);
    /* other properties: those that the schema describes, or any where it describes none */
    if (names)
        ; /* all that there may be are properties */
    else if (n >= 0 && json_is_object(more) && (value = compile(compiler, more)) < 0)
        n = -1;
    else if (n == 0 && !json_is_false(more) && value < 0)
        value = grammar_known(grammar, RULE_VALUE);
    else if (n > 0 && json_is_true(more))
        value = grammar_known(grammar, RULE_VALUE);
    if (n >= 0 && value >= 0) {
        one = grammar_rule(grammar);
        grammar_add(grammar, one, n ? "\"%c:%c%c" : "%c:%c%c",
                    n ? other_key(grammar, property, n, 0) : grammar_known(grammar, RULE_STRING),
                    space, value);
    }
    if (n >= 0)
        grammar_add(grammar, rule, "{%c%c", space,
                    object_rest(grammar, property, n, one, least > 0));
    return n >= 0;
}

/* ---- alternatives ---------------------------------------------------------------------------- */

static bool add_call(struct compiler *compiler, int rule, const json_t *schema)
{
    int called = compile(compiler, schema);
    if (called >= 0)
        grammar_add(compiler->grammar, rule, "%c", called);
    return called >= 0;
}

static bool alone(struct compiler *compiler, const json_t *o, const char *key)
{
    const char *const with[] = {key, NULL};
    const char *odd = other_than(o, with);
    return !odd ||
           err_set(compiler->e, ERR_USAGE, "the schema's keyword \"%.80s\" is not supported beside "
                                           "%s", odd, key);
}

static bool add_ref(struct compiler *compiler, int rule, const json_t *o)
{
    const char *ref = json_string_value(schema_get(o, "$ref"));
    const json_t *to = ref ? schema_at(compiler->root, ref) : NULL;
    if (!alone(compiler, o, "$ref"))
        return false;
    return to ? add_call(compiler, rule, to)
              : fail(compiler, "the schema's $ref \"%.80s\" names no part of it", ref ? ref : "");
}

static bool add_alternatives(struct compiler *compiler, int rule, const json_t *o, const char *key)
{
    json_t *list = schema_get(o, key), *v, *w;
    size_t i, k;
    if (!json_is_array(list) || json_array_size(list) == 0)
        return fail(compiler, "the schema's \"%s\" should be a list of schemas", key);
    if (!alone(compiler, o, key))
        return false;
    if (!strcmp(key, "allOf") && json_array_size(list) > 1)
        return fail(compiler, "the schema's keyword \"%s\" is supported with one schema only", key);
    json_array_foreach(list, i, v) {
        for (k = 0; !strcmp(key, "oneOf") && k < i; k++) {
            w = json_array_get(list, k);
            if (!schema_apart(compiler->root, v, w))
                return fail(compiler, "the schema's \"%s\" has alternatives of which a value may "
                                      "match several; anyOf allows that", key);
        }
        if (!add_call(compiler, rule, v))
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
    for (size_t i = 0; i < LEN(implied); i++)
        if (schema_get(o, implied[i].key))
            return implied[i].type;
    return NULL;
}

static bool add_type(struct compiler *compiler, int rule, const json_t *o, const char *type)
{
    if (!strcmp(type, "object"))
        return add_object(compiler, rule, o);
    if (!strcmp(type, "array"))
        return add_array(compiler, rule, o);
    if (!strcmp(type, "string"))
        return add_string(compiler, rule, o);
    if (!strcmp(type, "integer") || !strcmp(type, "number"))
        return add_number(compiler, rule, o, type[0] == 'i');
    if (strcmp(type, "boolean") != 0 && strcmp(type, "null") != 0)
        return fail(compiler, "the schema's type \"%.40s\" is not known", type);
    grammar_add(compiler->grammar, rule, type[0] == 'b' ? "true" : "null");
    if (type[0] == 'b')
        grammar_add(compiler->grammar, rule, "false");
    return true;
}

static bool add_types(struct compiler *compiler, int rule, const json_t *o)
{
    json_t *type = schema_get(o, "type"), *one;
    const char *implied = implied_type(o);
    size_t i;
    if (json_is_true(schema_get(o, "nullable")) && !add_type(compiler, rule, o, "null"))
        return false;
    for (i = 0; i < (json_is_array(type) ? json_array_size(type) : type != NULL); i++) {
        one = json_is_array(type) ? json_array_get(type, i) : type;
        if (!json_is_string(one))
            return fail(compiler, "the schema's \"%s\" should be a text or a list of texts",
                        "type");
        if (!add_type(compiler, rule, o, json_string_value(one)))
            return false;
    }
    if (type)
        return true;
    if (implied)
        return add_type(compiler, rule, o, implied);
    grammar_add(compiler->grammar, rule, "%c", grammar_known(compiler->grammar, RULE_VALUE));
    return true;
}

static bool fill(struct compiler *compiler, int rule, const json_t *o)
{
    const char *odd = other_than(o, reads);
    if (odd)
        return fail(compiler, "the schema's keyword \"%.80s\" is not supported", odd);
    if (schema_get(o, "$ref"))
        return add_ref(compiler, rule, o);
    if (schema_get(o, "const") || schema_get(o, "enum"))
        return add_constants(compiler, rule, o);
    for (int i = 0; i < 3; i++) {
        static const char *const key[] = {"anyOf", "oneOf", "allOf"};
        if (schema_get(o, key[i]))
            return add_alternatives(compiler, rule, o, key[i]);
    }
    return add_types(compiler, rule, o);
}

/* The rule of a schema, made once for each; -1: *compiler->e. */
static int compile(struct compiler *compiler, const json_t *schema)
{
    if (json_is_true(schema))
        return grammar_known(compiler->grammar, RULE_VALUE);
    if (json_is_false(schema))
        return grammar_rule(compiler->grammar); /* no value */
    for (int i = 0; i < compiler->n; i++)
        if (compiler->memo[i].schema == schema)
            return compiler->memo[i].rule;
    if (!json_is_object(schema) || compiler->depth == MOST_DEPTH || compiler->n == MOST_MEMO) {
        fail(compiler, !json_is_object(schema) ? "a schema should be an object%s"
                : compiler->n == MOST_MEMO ? "the schema is too large%s"
                                    : "the schema is nested too deep%s", "");
        return -1;
    }
    int rule = grammar_rule(compiler->grammar);
    *APPEND(compiler->memo, compiler->n) = (struct memo){schema, rule};
    compiler->depth++;
    bool ok = fill(compiler, rule, schema);
    compiler->depth--;
    return ok ? rule : -1;
}

int grammar_schema(struct grammar *grammar, const json_t *schema, struct err *e)
{
    struct compiler compiler = {.grammar = grammar, .root = schema, .e = e};
    int rule = compile(&compiler, schema);
    free(compiler.memo);
    return rule;
}
