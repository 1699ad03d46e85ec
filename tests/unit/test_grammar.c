/* test_grammar.c - every text that a grammar allows is valid by its schema, whatever tokens are
 * chosen; what a schema says and a grammar cannot keep is refused by name. */
#include "tests/chance.h"
#include "tests/few.h"
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include <math.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "kernels/json_read.h"
#include "models/grammar/grammar.h"

#define NESTLING "models/nestling/target"

static struct tokenizer *tok;
static struct token_order *order;
static int32_t stop[1];

/* ---- an independent check of a value --------------------------------------------------------- */

static bool valid(const json_t *root, const json_t *s, const json_t *v);

static int hops; /* refs followed for one value: a ref that leads to itself allows none */
static bool valid_within(const json_t *root, const json_t *s, const json_t *v)
{
    int outside = hops;
    hops = 0;
    bool ok = valid(root, s, v);
    hops = outside;
    return ok;
}

static const json_t *follow(const json_t *root, const char *ref)
{
    return strcmp(ref, "#") ? json_object_get(json_object_get(root, "$defs"), ref + 8) : root;
}

static bool of_type(const char *type, const json_t *v)
{
    if (!strcmp(type, "integer"))
        return json_is_number(v) && json_number_value(v) == floor(json_number_value(v));
    return !strcmp(type, "number")    ? json_is_number(v)
           : !strcmp(type, "string")  ? json_is_string(v)
           : !strcmp(type, "object")  ? json_is_object(v)
           : !strcmp(type, "array")   ? json_is_array(v)
           : !strcmp(type, "boolean") ? json_is_boolean(v)
                                      : json_is_null(v);
}

static bool equal(const json_t *a, const json_t *b)
{
    if (json_is_number(a) && json_is_number(b))
        return json_number_value(a) == json_number_value(b);
    return json_equal((json_t *)a, (json_t *)b);
}

static size_t length(const char *s)
{
    size_t n = 0;
    for (; *s; s++)
        n += ((unsigned char)*s & 0xC0) != 0x80;
    return n;
}

static double number(const json_t *s, const char *key, double none)
{
    json_t *v = json_object_get(s, key);
    return v ? json_number_value(v) : none;
}

static bool valid_object(const json_t *root, const json_t *s, const json_t *v)
{
    json_t *all = json_object_get(s, "properties"),
        *more = json_object_get(s, "additionalProperties");
    json_t *one, *x;
    const char *key;
    size_t i;
    json_array_foreach(json_object_get(s, "required"), i, one)
        if (!json_object_get(v, json_string_value(one)))
            return false;
    if ((double)json_object_size(v) < number(s, "minProperties", 0))
        return false;
    json_object_foreach((json_t *)v, key, x) {
        json_t *names = json_object_get(s, "propertyNames"), *name = json_string(key);
        bool ok = !names || valid_within(root, names, name);
        json_decref(name);
        if (!ok)
            return false;
    }
    json_object_foreach((json_t *)v, key, x) {
        json_t *of = json_object_get(all, key);
        if (!of && json_is_false(more))
            return false;
        if (!of)
            of = more;
        if (of && !valid_within(root, of, x))
            return false;
    }
    return true;
}

static bool valid_array(const json_t *root, const json_t *s, const json_t *v)
{
    json_t *first = json_object_get(s, "prefixItems"), *items = json_object_get(s, "items"), *x;
    size_t i, n = json_array_size(v);
    if ((double)n < number(s, "minItems", 0) || (double)n > number(s, "maxItems", HUGE_VAL))
        return false;
    for (size_t k = 0; json_is_true(json_object_get(s, "uniqueItems")) && k < n; k++)
        for (i = 0; i < k; i++)
            if (equal(json_array_get(v, i), json_array_get(v, k)))
                return false;
    json_array_foreach(v, i, x) {
        json_t *of = i < json_array_size(first) ? json_array_get(first, i) : items;
        if (of && !valid_within(root, of, x))
            return false;
    }
    return true;
}

static bool valid_number(const json_t *s, const json_t *v)
{
    double x = json_number_value(v), step = number(s, "multipleOf", 0);
    /* the nearest multiple is the same double: steps have few digits */
    if (step && fabs(x) < 1e6 && llround(x / step) * llround(step * 1e6) != llround(x * 1e6))
        return false;
    return x >= number(s, "minimum", -HUGE_VAL) && x <= number(s, "maximum", HUGE_VAL) &&
           x > number(s, "exclusiveMinimum", -HUGE_VAL) &&
           x < number(s, "exclusiveMaximum", HUGE_VAL);
}

static bool valid(const json_t *root, const json_t *s, const json_t *v)
{
    json_t *ref = json_object_get(s, "$ref"), *type = json_object_get(s, "type"), *one, *list;
    size_t i;
    int n = 0;
    if (json_is_boolean(s))
        return json_is_true(s);
    if (ref) {
        bool ok = ++hops < 12 && valid(root, follow(root, json_string_value(ref)), v);
        hops--;
        return ok;
    }
    if ((one = json_object_get(s, "const")) && !equal(one, v))
        return false;
    if ((list = json_object_get(s, "enum"))) {
        json_array_foreach(list, i, one)
            n += equal(one, v);
        if (n == 0)
            return false;
    }
    n = 0;
    if ((list = json_object_get(s, "anyOf"))) {
        json_array_foreach(list, i, one)
            n += valid(root, one, v);
        return n > 0;
    }
    if ((list = json_object_get(s, "oneOf"))) {
        json_array_foreach(list, i, one)
            n += valid(root, one, v);
        return n == 1;
    }
    if (json_is_string(type) && !of_type(json_string_value(type), v))
        return false;
    json_array_foreach(type, i, one)
        n += of_type(json_string_value(one), v);
    if (json_is_array(type) && n == 0)
        return false;
    if (json_is_string(v))
        return (double)length(json_string_value(v)) >= number(s, "minLength", 0) &&
               (double)length(json_string_value(v)) <= number(s, "maxLength", HUGE_VAL);
    return json_is_number(v)   ? valid_number(s, v)
           : json_is_object(v) ? valid_object(root, s, v)
           : json_is_array(v)  ? valid_array(root, s, v)
                               : true;
}

/* ---- schemas by chance ----------------------------------------------------------------------- */

static const char *const words[] = {"a", "ab", "name", "x y", "caf\xC3\xA9", "q\"uote", "b\\s",
                                    "tab\t", "n", "nam"};

static json_t *constant(int depth)
{
    switch (below(depth ? 7 : 5)) {
    case 0: return json_string(words[below(10)]);
    case 1: return json_integer(below(2000) - 1000);
    case 2: return json_real((below(2000) - 1000) / 8.0);
    case 3: return json_boolean(below(2));
    case 4: return json_null();
    case 5: return json_pack("[o,o]", constant(depth - 1), constant(depth - 1));
    default: return json_pack("{s:o}", words[below(10)], constant(depth - 1));
    }
}

static json_t *schema_of(int depth);

static json_t *number_schema(void)
{
    json_t *s = json_pack("{s:s}", "type", below(2) ? "integer" : "number");
    double at = below(3) ? below(2000) - 1000 : (below(4000) - 2000) / 16.0;
    double wide = below(3) ? below(300) : (1 + below(100)) / 32.0;
    if (below(4) == 0)
        return s;
    if (json_string_value(json_object_get(s, "type"))[0] == 'i')
        wide = wide < 3 ? 3 : wide;
    static const double steps[] = {2, 3, 10, 7, 60, 0.5, 0.01, 0.1, 2.5, 1000, 0.007, 0.25};
    if (below(4) == 0) {
        double step = steps[below(12)];
        wide = fmax(wide, step + 2);
        json_object_set_new(s, "multipleOf", step == floor(step) && below(2)
                                                 ? json_integer((json_int_t)step)
                                                 : json_real(step));
    }
    if (below(4))
        json_object_set_new(s, below(3) ? "minimum" : "exclusiveMinimum", json_real(at));
    if (below(4))
        json_object_set_new(s, below(3) ? "maximum" : "exclusiveMaximum", json_real(at + wide));
    return s;
}

static json_t *object_schema(int depth)
{
    json_t *s = json_pack("{s:s}", "type", "object"), *p = json_object(), *required = json_array();
    for (int i = below(5); i > 0; i--) {
        const char *name = words[below(10)];
        json_object_set_new(p, name, schema_of(depth - 1));
        if (below(2))
            json_array_append_new(required, json_string(name));
    }
    json_object_set_new(s, "properties", p);
    json_object_set_new(s, "required", required);
    if (below(6) == 0)
        json_object_set_new(s, "minProperties", json_integer(1));
    if (below(8) == 0)
        json_object_set_new(s, "propertyNames", json_pack("{s:[s,s,s]}", "enum", words[below(10)],
                                                          words[below(10)], words[below(10)]));
    switch (below(4)) {
    case 0: json_object_set_new(s, "additionalProperties", json_false()); break;
    case 1: json_object_set_new(s, "additionalProperties", json_true()); break;
    case 2: json_object_set_new(s, "additionalProperties", schema_of(depth - 1)); break;
    default: break;
    }
    return s;
}

static json_t *array_schema(int depth)
{
    json_t *s = json_pack("{s:s}", "type", "array");
    int min = below(4), n = below(3) ? 0 : 1 + below(2);
    if (below(4))
        json_object_set_new(s, "items", schema_of(depth - 1));
    if (below(2))
        json_object_set_new(s, "minItems", json_integer(min));
    if (below(2))
        json_object_set_new(s, "maxItems", json_integer(min + n + below(3)));
    if (n) {
        json_t *first = json_array();
        for (int i = 0; i < n; i++)
            json_array_append_new(first, schema_of(depth - 1));
        json_object_set_new(s, "prefixItems", first);
    }
    return s;
}

static json_t *unique_schema(void)
{
    json_t *s = json_pack("{s:s,s:b}", "type", "array", "uniqueItems", 1), *list = json_array();
    for (int i = below(6); i >= 0; i--)
        json_array_append_new(list, constant(1));
    json_object_set_new(s, "items", below(3) ? json_pack("{s:O}", "enum", list)
                        : json_pack("{s:[{s:O},{s:s}]}", "anyOf", "enum", list, "type", "boolean"));
    json_decref(list);
    if (below(3) == 0)
        json_object_set_new(s, "minItems", json_integer(below(3)));
    if (below(2))
        json_object_set_new(s, "maxItems", json_integer(2 + below(3)));
    return s;
}

static json_t *schema_of(int depth)
{
    json_t *s;
    switch (below(depth > 0 ? 13 : 7)) {
    case 0: return json_pack("{s:s}", "type", below(2) ? "boolean" : "null");
    case 1:
    case 2: return number_schema();
    case 3: return json_pack("{s:o}", "const", constant(2));
    case 4: return json_pack("{s:[o,o,o]}", "enum", constant(2), constant(2), constant(0));
    case 5: {
        int min = below(6);
        s = json_pack("{s:s}", "type", "string");
        if (below(2))
            json_object_set_new(s, "minLength", json_integer(min));
        if (below(2))
            json_object_set_new(s, "maxLength", json_integer(min + below(20)));
        return s;
    }
    case 6: return json_pack("{s:[s,s]}", "type", "string", "null");
    case 7: return json_pack("{s:[o,o]}", "anyOf", schema_of(depth - 1), schema_of(depth - 1));
    case 8: return json_pack("{s:[{s:s},{s:s},o]}", "oneOf", "type", "boolean", "type", "null",
                             number_schema());
    case 9: return json_pack("{s:s}", "$ref", below(4) ? "#/$defs/a" : "#");
    case 10: return array_schema(depth);
    case 11: return unique_schema();
    default: return object_schema(depth);
    }
}

static json_t *any_schema(void)
{
    json_t *s = below(3) ? object_schema(3) : array_schema(3);
    json_object_set_new(s, "$defs", json_pack("{s:o}", "a", schema_of(1)));
    return s;
}

/* ---- replies by chance ----------------------------------------------------------------------- */

static bool is_banned(const uint32_t *banned, int32_t id)
{
    return banned[id / 32] >> (id % 32) & 1;
}

/* An allowed token; from some length on most often one that may close something. */
static int32_t draw(struct guide *x, int state, int n)
{
    static const char closing[] = "\"}]e0";
    const uint32_t *banned = guide_banned(x, state);
    int V = tok_vocab(tok);
    if (!is_banned(banned, stop[0]) && (n > 60 || below(8) == 0))
        return stop[0];
    for (size_t i = 0; n > 60 && i < sizeof closing - 1; i++) {
        char one[2] = {closing[i]};
        int id = tok_find(tok, one);
        if (id >= 0 && !is_banned(banned, id) && below(8))
            return id;
    }
    int from = below(V);
    for (int i = 0; i < V; i++)
        if (!is_banned(banned, (from + i) % V))
            return (from + i) % V;
    return -1;
}

/* Whether the bans of a state are exactly the tokens that lead nowhere. */
static void check_bans(struct guide *x, int state)
{
    for (int i = 0; i < 20; i++) {
        int32_t id = below(tok_vocab(tok));
        bool dead = guide_next(x, state, id) == GUIDE_DEAD;
        assert_int_equal(is_banned(guide_banned(x, state), id), dead);
    }
}

/* A reply of at most `most` tokens; false: it was cut. */
static bool reply(struct guide *x, int most, struct buf *text)
{
    struct ids ids = {0};
    bool ended = false;
    for (int n = 0; n < most && !ended; n++) {
        int state = guide_after(x, ids.v, ids.n);
        assert_int_not_equal(state, GUIDE_DEAD);
        if (n % 16 == 0)
            check_bans(x, state);
        int32_t id = draw(x, guide_after(x, ids.v, ids.n), n);
        assert_true(id >= 0);
        ended = id == stop[0];
        ids_add(&ids, id);
    }
    tok_decode(tok, ids.v, ids.n - ended, text);
    ids_free(&ids);
    return ended;
}

static struct guide *open_guide(const json_t *schema, struct err *e)
{
    json_t *format = json_pack("{s:s,s:O}", "type", "json_schema", "schema", schema);
    struct grammar *g = grammar_open(format, NULL, tok, e);
    json_decref(format);
    return g ? guide_open(g, order, tok_vocab(tok), stop, 1) : NULL;
}

static void test_every_allowed_text_is_valid(void **state)
{
    (void)state;
    int n = 0, cut = 0, none = 0;
    for (int i = rounds(250, 10000); i > 0; i--) {
        json_t *schema = any_schema();
        struct err e;
        struct guide *x = open_guide(schema, &e);
        for (int k = 0; x && k < 4; k++) {
            struct buf text = {0};
            json_error_t why;
            if (!reply(x, 1500, &text)) {
                cut++;
                buf_free(&text);
                continue;
            }
            json_t *v = json_parse(text.p, text.n, JSON_DECODE_ANY, &why);
            if (!v || !valid(schema, schema, v))
                fail_msg("%s: %s is not valid by %s", v ? "value" : why.text, text.p,
                         json_dumps(schema, 0));
            json_decref(v);
            buf_free(&text);
            n++;
        }
        if (!x && !strstr(e.msg, "has no value") && !strstr(e.msg, "several"))
            fail_msg("%s: %s", e.msg, json_dumps(schema, 0));
        none += !x;
        guide_close(x);
        json_decref(schema);
    }
    print_message("# %d replies, %d cut, %d schemas without a value\n", n, cut, none);
    assert_true(n > 5 * cut && none < n);
}

/* Ranges of numbers from both sides: every text that is allowed lies inside, and the limits and
 * what lies between them can be written. */
static void test_a_range_of_numbers_is_exact(void **state)
{
    (void)state;
    for (int i = 0; i < rounds(60, 3000); i++) {
        int lo = below(400) - 200, hi = lo + below(250), step = below(2) ? 1 : 1 + below(40);
        json_t *schema = json_pack("{s:s,s:i,s:i}", "type", "integer", "minimum", lo, "maximum",
                                   hi);
        hi = hi < lo + step ? lo + step : hi; /* some multiple lies inside */
        json_object_set_new(schema, "maximum", json_integer(hi));
        if (step > 1)
            json_object_set_new(schema, "multipleOf", json_integer(step));
        struct err e;
        struct guide *x = open_guide(schema, &e);
        assert_non_null(x);
        for (int v = -500; v <= 500; v++) {
            char text[16];
            snprintf(text, sizeof text, "%d", v);
            int at = guide_after(x, NULL, 0);
            for (char *p = text; *p; p++) {
                char one[2] = {*p};
                at = guide_next(x, at, tok_find(tok, one));
            }
            bool in = at != GUIDE_DEAD && guide_accepts(x, at);
            if (in != (v >= lo && v <= hi && v % step == 0))
                fail_msg("%d is %s from %d to %d by %d", v, in ? "allowed" : "refused", lo, hi,
                         step);
        }
        guide_close(x);
        json_decref(schema);
    }
}

/* Whether a text matches an expression, as PCRE2 has it. */
static bool matches(const char *pattern, const char *text)
{
    int code;
    size_t at;
    pcre2_code *re = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                                   PCRE2_UTF | PCRE2_DOLLAR_ENDONLY | PCRE2_ALT_BSUX, &code, &at,
                                   NULL);
    assert_non_null(re);
    pcre2_match_data *m = pcre2_match_data_create_from_pattern(re, NULL);
    bool ok = pcre2_match(re, (PCRE2_SPTR)text, strlen(text), 0, 0, m, NULL) > 0;
    pcre2_match_data_free(m);
    pcre2_code_free(re);
    return ok;
}

/* The token that is this one byte. */
static int token_of(char byte)
{
    size_t n;
    for (int id = 0; id < tok_vocab(tok); id++) {
        const char *p = tok_bytes(tok, id, &n);
        if (p && n == 1 && *p == byte && !tok_is_special(tok, id))
            return id;
    }
    fail_msg("no token is the byte %d", byte & 255);
    return -1;
}

/* Whether the grammar allows this JSON text, byte by byte. */
static bool allows(struct guide *x, const char *text)
{
    int at = guide_after(x, NULL, 0);
    for (const char *p = text; *p && at != GUIDE_DEAD; p++)
        at = guide_next(x, at, token_of(*p));
    return at != GUIDE_DEAD && guide_accepts(x, at);
}

/* Of each length and sign; but not beyond 15 digits, where validators that divide doubles find
 * other multiples. */
static void test_multiples_of_all_lengths_are_allowed(void **state)
{
    (void)state;
    static const struct {
        const char *schema, *in, *out; /* texts, apart by blanks */
    } c[] = {
        {"{\"type\":\"integer\",\"multipleOf\":2.5}",
         "0 5 -5 10 -10 12345 -12345 100000000000000 999999999999995 -999999999999995",
         "1 -1 12 00 05 -0 9999999999999990 -9600000058022535 999999999999999"},
        {"{\"type\":\"number\",\"multipleOf\":2.5}",
         "0 5 2.5 -2.5 0.0 7.5 12345 -1000002.5 99999999999997.5", "2.4 -0.1 2.50 .5 1000002.4"},
        {"{\"type\":\"number\",\"multipleOf\":0.25,\"minimum\":3}",
         "3 3.00 3.25 10.75 99.50 100.25 1234567890.75", "0.25 2.75 -3.25 3.2 10.7 1234567890.80"},
        {"{\"type\":\"integer\",\"multipleOf\":7,\"minimum\":-1000000000000,"
         "\"maximum\":1000000000000}",
         "0 7 -7 14 700 -7000 70000 7000000007 -700000000007 999999999999",
         "1 -1 7001 7000000000007"},
        {"{\"type\":\"integer\",\"multipleOf\":997,\"minimum\":998}",
         "1994 99700 9970000000997", "997 0 1995 -1994"},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        struct err e;
        json_error_t why;
        json_t *schema = json_loads(c[i].schema, 0, &why);
        struct guide *x = open_guide(schema, &e);
        assert_non_null(x);
        for (int in = 0; in < 2; in++) {
            char text[200], *rest = text;
            snprintf(text, sizeof text, "%s", in ? c[i].in : c[i].out);
            for (char *one; (one = strtok_r(rest, " ", &rest)) != NULL;)
                if (allows(x, one) != in)
                    fail_msg("%s: %s is %s", c[i].schema, one, in ? "refused" : "allowed");
        }
        guide_close(x);
        json_decref(schema);
    }
}

static void test_every_text_of_a_pattern_matches_it(void **state)
{
    (void)state;
    static const char *const patterns[] = {
        "^[A-Z]{2}-\\d{3,5}$", "^(?:ab|c)*d?$", "a.c", "^\\w+@\\w+\\.(com|org)$",
        "^[^\"\\\\x]{1,4}$",
        "^caf\xC3\xA9s?$", "^\\$\\d+(\\.\\d\\d)?$|^free$", "^[\\w.-]+$", "\\S{3}", "^\\D\\W\\s$",
        "^$", "^[+-]?(0|[1-9]\\d*)(\\.\\d+)?([eE][+-]?\\d+)?$", "^(\\(\\d{3}\\) )?\\d{3}-\\d{4}$",
        "^\\x41\\u0042?$", "^a{0}b{2,}?$", "^[]a]$", "^[a\\]-]$", "^.{0,3}$",
    };
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        json_t *schema = json_pack("{s:s,s:s}", "type", "string", "pattern", patterns[i]);
        struct err e;
        struct guide *x = open_guide(schema, &e);
        if (!strcmp(patterns[i], "^[]a]$")) { /* of no character, then "a]": as ECMA-262 has it */
            assert_null(x);
            json_decref(schema);
            continue;
        }
        if (!x)
            fail_msg("%s: %s", patterns[i], e.msg);
        for (int k = 0; k < rounds(12, 400); k++) {
            struct buf text = {0};
            if (!reply(x, 300, &text)) {
                buf_free(&text);
                continue;
            }
            json_t *v = json_parse(text.p, text.n, JSON_DECODE_ANY, NULL);
            if (!json_is_string(v) || !matches(patterns[i], json_string_value(v)))
                fail_msg("%s does not match %s", text.p, patterns[i]);
            json_decref(v);
            buf_free(&text);
        }
        guide_close(x);
        json_decref(schema);
    }
}

static void test_patterns_and_formats_allow_what_they_mean(void **state)
{
    (void)state;
    static const struct {
        const char *key, *value, *yes[4], *no[5];
    } cases[] = {
        {"pattern", "^[A-Z]{2}-\\d+$", {"AB-1", "ZZ-0123"}, {"A-1", "AB-", "ab-1", "AB-1x"}},
        {"pattern", "^(a|b\\\\)*$", {"", "ab\\\\a", "a"}, {"b", "c"}},
        {"pattern", "\"|\n", {"\\\"", "\\n"}, {"a", "\\t"}},
        {"x-order", "a note", {"a", ""}, {NULL}},
        {"format", "date", {"2026-01-31", "2024-02-29", "2000-02-29"},
         {"2026-02-29", "1900-02-29", "2026-13-01", "2026-04-31", "26-01-01"}},
        {"format", "time", {"23:59:59Z", "00:00:00.5+01:30"},
         {"24:00:00Z", "12:00:00", "1:00:00Z"}},
        {"format", "date-time", {"2026-11-28T17:15:10Z"}, {"2026-11-28 17:15:10Z", "2026-11-28"}},
        {"format", "uuid", {"01234567-89ab-cdef-0123-456789ABCDEF"}, {"0123", "x"}},
        {"format", "ipv4", {"127.0.0.1", "255.255.255.0"}, {"256.1.1.1", "1.1.1", "01.1.1.1"}},
        {"format", "email", {"a.b+c@x-y.org"}, {"a", "@x.org", "a@x", "a..b@x.org"}},
        {"format", "regex", {"anything", "", "\xE2\x80\xA8", "\xE2\x80\xA9"},
         {"\xED\xA0\x80", "\xC0\x80", "\xE2\x80", "\xF4\x90\x80\x80"}},
        {"pattern", "^.$", {"\xC3\xA9", "\xE2\x80\xAA", "\xF0\x9F\x98\x80", "\xE2\x81\xA8"},
         {"\xE2\x80\xA8", "\xE2\x80\xA9", "\xED\xA0\x80", "\xC0\x80", "\xE0\x80\x80"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *schema = json_pack("{s:s,s:s}", "type", "string", cases[i].key, cases[i].value);
        struct err e;
        struct guide *x = open_guide(schema, &e);
        if (!x)
            fail_msg("%s: %s", cases[i].value, e.msg);
        for (int k = 0; k < 9; k++) {
            const char *text = k < 4 ? cases[i].yes[k] : cases[i].no[k - 4];
            char *quoted = text ? xasprintf("\"%s\"", text) : NULL;
            if (quoted && allows(x, quoted) != (k < 4))
                fail_msg("%s: %s is %s", cases[i].value, quoted, k < 4 ? "refused" : "allowed");
            free(quoted);
        }
        guide_close(x);
        json_decref(schema);
    }
}

/* Reals are written with the fewest digits that give them back. */
static void test_constants_are_written_as_people_write_them(void **state)
{
    (void)state;
    static const char *const written[] = {"0.1", "-19.99", "1e-07", "3.0", "123456789.125",
                                          "1e+16", "0.0001", "5e-324", "1.7976931348623157e+308",
                                          "9007199254740993", "[0.3, \"0.30\", {\"1e5\": 0.7}]"};
    for (size_t i = 0; i < sizeof written / sizeof *written; i++) {
        json_t *v = json_parse(written[i], strlen(written[i]), JSON_DECODE_ANY, NULL);
        json_t *schema = json_pack("{s:O}", "const", v);
        struct err e;
        struct guide *x = open_guide(schema, &e);
        char *text = json_written(v, 0);
        assert_string_equal(text, written[i]);
        assert_true(x && allows(x, written[i]));
        free(text);
        guide_close(x);
        json_decref(schema);
        json_decref(v);
    }
    for (int i = 0; i < 20000; i++) {
        dice = mix64(dice);
        double d = 0;
        char s[32];
        memcpy(&d, &dice, sizeof d);
        if (!isfinite(d))
            continue;
        json_real_text(s, d);
        assert_true(strtod(s, NULL) == d);
    }
}

static void test_what_cannot_be_kept_is_refused_by_name(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        {"{\"pattern\":\"a\",\"maxLength\":3}", "pattern"},
        {"{\"pattern\":3}", "pattern"},
        {"{\"pattern\":\"a(?=b)\"}", "(?=b"},
        {"{\"pattern\":\"(a)\\\\1\"}", "\\1"},
        {"{\"pattern\":\"\\\\bx\"}", "\\b"},
        {"{\"pattern\":\"\\\\p{L}\"}", "\\p"},
        {"{\"pattern\":\"(a*)*\"}", "empty"},
        {"{\"pattern\":\"a^b\"}", "^"},
        {"{\"pattern\":\"a)\"}", ")"},
        {"{\"pattern\":\"(a\"}", "without an end"},
        {"{\"pattern\":\"[a\"}", "without an end"},
        {"{\"pattern\":\"[z-a]\"}", "range"},
        {"{\"pattern\":\"*\"}", "repetition"},
        {"{\"pattern\":\"a{3,2}\"}", "repetition"},
        {"{\"pattern\":\"a\\\\\"}", "escape"},
        {"{\"pattern\":\"[\\u00e4]\"}", "beyond ASCII"},
        {"{\"type\":\"array\",\"uniqueItems\":true}", "uniqueItems"},
        {"{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"type\":\"string\"}}",
         "uniqueItems"},
        {"{\"type\":\"number\",\"multipleOf\":0}", "multipleOf"},
        {"{\"type\":\"number\",\"multipleOf\":-2}", "multipleOf"},
        {"{\"type\":\"number\",\"multipleOf\":1001}", "multipleOf"},
        {"{\"type\":\"number\",\"multipleOf\":1e-7}", "multipleOf"},
        {"{\"type\":\"number\",\"multipleOf\":\"x\"}", "multipleOf"},
        {"{\"multipleOf\":7,\"minimum\":8,\"maximum\":13}", "no value"},
        {"{\"minProperties\":1,\"additionalProperties\":false}", "no value"},
        {"{\"propertyNames\":{\"pattern\":\"a\"}}", "propertyNames"},
        {"{\"propertyNames\":{\"const\":\"a\"},\"required\":[\"b\"]}", "no value"},
        {"{\"not\":{}}", "not"},
        {"{\"type\":\"object\",\"minProperties\":2}", "minProperties"},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"if\":{}}}}", "if"},
        {"{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}", "oneOf"},
        {"{\"allOf\":[{\"type\":\"integer\"},{\"minimum\":3}]}", "allOf"},
        {"{\"$ref\":\"#/$defs/none\"}", "none"},
        {"{\"$ref\":\"#/$defs/x\",\"$defs\":[{\"type\":\"null\"}]}", "#/$defs/x"},
        {"{\"$ref\":\"https://example.org/x\"}", "example.org"},
        {"{\"type\":\"date\"}", "date"},
        {"{\"type\":\"integer\",\"minimum\":5,\"maximum\":4}", "no value"},
        {"{\"$ref\":\"#\"}", "no value"},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}",
         "no value"},
        {"{\"type\":\"string\",\"minLength\":-1}", "minLength"},
        {"false", "no value"},
        {"{\"enum\":[1,2],\"minimum\":2}", "minimum"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct err e = {0};
        json_t *schema = json_parse(bad[i][0], strlen(bad[i][0]), JSON_DECODE_ANY, NULL);
        struct guide *x = open_guide(schema, &e);
        if (x || !strstr(e.msg, bad[i][1]) || strchr(e.msg, '\n'))
            fail_msg("%s: %s", bad[i][0], x ? "allowed" : e.msg);
        json_decref(schema);
    }
}

/* The four tokens of harmony in texts of the test below. */
#define CHANNEL "\x01"
#define MESSAGE "\x02"
#define END "\x03"
#define START "\x04"

/* How many tokens of a text, a byte each, are allowed; -1: all of them, and the reply is
 * complete. */
static int allowed(struct guide *x, const struct reply_form *f, const char *text)
{
    const int32_t mark[] = {f->channel, f->message, f->end, f->start};
    struct ids ids = {0};
    int n = 0;
    for (; text[n]; n++) {
        char one[2] = {text[n]};
        int32_t id = text[n] <= 4 ? mark[text[n] - 1] : tok_find(tok, one);
        assert_true(id >= 0);
        bool banned = is_banned(guide_banned(x, guide_after(x, ids.v, ids.n)), id);
        ids_add(&ids, id);
        assert_int_equal(guide_after(x, ids.v, ids.n) == GUIDE_DEAD, banned);
        if (banned)
            break;
    }
    if (!text[n] && guide_accepts(x, guide_after(x, ids.v, ids.n)))
        n = -1;
    ids_free(&ids);
    return n;
}

/* gpt-oss: messages of the channel "analysis" with any text, then the reply, or a call, behind a
 * header of its own. */
static void test_a_harmony_reply_thinks_before_it_keeps_to_the_format(void **state)
{
    (void)state;
    static const char thought[] = CHANNEL "analysis" MESSAGE "{anything]" END START "assistant",
                      final[] = CHANNEL "final" MESSAGE, call[] = CHANNEL "f" MESSAGE;
    const struct reply_form f = {.kind = FORM_HARMONY, .channel = tok_find(tok, "<start_of_turn>"),
                                 .message = tok_find(tok, "<unk>"), .end = tok_find(tok, "<eos>"),
                                 .start = tok_find(tok, "<bos>"), .call = -1, .call_end = -1};
    const struct {
        bool call;
        const char *text[4]; /* one after the other */
        int n;               /* tokens allowed; -1: it is a whole reply */
    } cases[] = {
        {false, {final, "{\"n\":1}"}, -1},
        {false, {thought, final, "{\"n\":1}"}, -1},
        {false, {thought, thought, final, "{\"n\":1}"}, -1},
        {false, {final, "{\"n\":2}"}, 12},
        {false, {final, "{\"n\":1}", "x"}, 14},
        {false, {"{\"n\":1}"}, 0},
        {false, {"final" MESSAGE "{\"n\":1}"}, 0},
        {false, {CHANNEL "comm"}, 1},
        {false, {CHANNEL "analysis" MESSAGE "a" CHANNEL}, 11},
        {false, {CHANNEL "analysis" MESSAGE "a" END CHANNEL}, 12},
        {false, {CHANNEL "final" END}, 6},
        {true, {call, "{\"n\":1}"}, -1},
        {true, {thought, call, "{\"n\":1}"}, -1},
        {true, {final, "{\"n\":1}"}, 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err e = {0};
        struct buf text = {0};
        json_t *schema = json_pack("{s:s,s:{s:{s:i}},s:[s],s:b}", "type", "object", "properties",
                                   "n", "const", 1, "required", "n", "additionalProperties", 0);
        json_t *format =
            cases[i].call ? json_pack("{s:s,s:[{s:s,s:O}],s:s,s:s,s:s,s:s,s:i}", "type", "tools",
                                      "tools", "name", "f", "parameters", schema, "open",
                                      "<|channel|>", "middle", "<|message|>", "close", "",
                                      "between", "", "most", 1)
                          : json_pack("{s:s,s:O}", "type", "json_schema", "schema", schema);
        struct grammar *g = grammar_open(format, &f, tok, &e);
        if (!g)
            fail_msg("case %zu: %s", i, e.msg);
        struct guide *x = guide_open(g, order, tok_vocab(tok), stop, 1);
        for (int k = 0; k < 4 && cases[i].text[k]; k++)
            buf_str(&text, cases[i].text[k]);
        if (allowed(x, &f, text.p) != cases[i].n)
            fail_msg("case %zu: %d tokens are allowed", i, allowed(x, &f, text.p));
        guide_close(x);
        json_decref(format);
        json_decref(schema);
        buf_free(&text);
    }
}

static int open_all(void **state)
{
    (void)state;
    struct err e;
    tok = tok_open(NESTLING, &e);
    order = tok ? token_order_open(tok) : NULL;
    stop[0] = tok ? tok_find(tok, "<end_of_turn>") : -1;
    return tok ? 0 : 1;
}

static int close_all(void **state)
{
    (void)state;
    token_order_close(order);
    tok_close(tok);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_allowed_text_is_valid),
        cmocka_unit_test(test_a_range_of_numbers_is_exact),
        cmocka_unit_test(test_multiples_of_all_lengths_are_allowed),
        cmocka_unit_test(test_every_text_of_a_pattern_matches_it),
        cmocka_unit_test(test_patterns_and_formats_allow_what_they_mean),
        cmocka_unit_test(test_constants_are_written_as_people_write_them),
        cmocka_unit_test(test_what_cannot_be_kept_is_refused_by_name),
        cmocka_unit_test(test_a_harmony_reply_thinks_before_it_keeps_to_the_format),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
