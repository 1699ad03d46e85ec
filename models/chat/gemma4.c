/* gemma4.c - functions in gemma-4's format: declared in the system turn, called and answered within
 * the model's turn.
 *
 *     <|tool>declaration:NAME{description:<|"|>...<|"|>,parameters:{...}}<tool|>
 *     <|tool_call>call:NAME{key:VALUE,...}<tool_call|>
 *     <|tool_response>response:NAME{value:VALUE}<tool_response|>
 *
 * A value is <|"|>text<|"|>, true, false, None, a number, [VALUE,...] or {key:VALUE,...}. Keys are
 * sorted as Jinja's dictsort sorts them; numbers are written as Python writes them. */
#include "models/chat/parts.h"
#include "kernels/ascii.h"
#include "kernels/json_read.h"

enum { MOST_DEPTH = 64 };

bool gemma4_has_tools(const struct chat *c)
{
    for (int i = MARK_TOOL; i <= MARK_QUOTE; i++)
        if (c->mark[i] < 0)
            return false;
    return true;
}

const char *gemma4_spelled(const struct chat *c, int id)
{
    static const enum mark shown[] = {MARK_TOOL_CALL, MARK_TOOL_CALL_END, MARK_QUOTE};
    for (size_t i = 0; c->tools == TOOLS_GEMMA4 && i < LEN(shown); i++)
        if (id == c->mark[shown[i]])
            return c->format->mark[shown[i]];
    return NULL;
}

/* ---- values ---------------------------------------------------------------------------------- */

/* A text, which may be NULL, in capitals if `upper`. */
static void put_quoted(struct render *r, const char *s, bool upper)
{
    put_mark(r, MARK_QUOTE);
    for (; s && *s; s++)
        buf_char(&r->text, upper ? ascii_upper(*s) : *s);
    put_mark(r, MARK_QUOTE);
}

/* The text of a member or item, after a comma unless it is the first behind its bracket. */
static void put_next(struct render *r, const char *s)
{
    char last = r->text.n ? r->text.p[r->text.n - 1] : '\0';
    put_str(r, last == '{' || last == '[' ? "" : ",");
    put_str(r, s);
}

/* [TEXT,...] */
static void put_texts(struct render *r, const json_t *list, bool upper)
{
    const json_t *one;
    size_t i;
    put_str(r, "[");
    json_array_foreach(list, i, one) {
        put_next(r, "");
        put_quoted(r, json_string_value(one), upper);
    }
    put_str(r, "]");
}

static int compare_keys(const void *a, const void *b)
{
    const char *x = *(const char *const *)a, *y = *(const char *const *)b;
    for (; *x && ascii_lower(*x) == ascii_lower(*y); x++, y++)
        ;
    return (int)(unsigned char)ascii_lower(*x) - (int)(unsigned char)ascii_lower(*y);
}

/* The keys of an object in the order in which they are written: an array that the caller frees, of
 * json_object_size() names, which are the object's. */
static const char **sorted_keys(const json_t *o)
{
    const char **key = xcalloc(json_object_size(o) + 1, sizeof *key), *name;
    size_t n = 0;
    json_t *v;
    json_object_foreach((json_t *)o, name, v)
        key[n++] = name;
    for (size_t i = 1; i < n; i++) /* stable; functions have few parameters */
        for (size_t k = i; k && compare_keys(&key[k - 1], &key[k]) > 0; k--)
            SWAP(key[k], key[k - 1]);
    return key;
}

static void put_value(struct render *r, const json_t *v, bool quote_keys, int depth);

/* key:VALUE,... */
static void put_members(struct render *r, const json_t *o, bool quote_keys, int depth)
{
    FREED(free_at) const char **key = sorted_keys(o);
    for (size_t i = 0; i < json_object_size(o); i++) {
        put_next(r, quote_keys ? "" : key[i]);
        if (quote_keys)
            put_quoted(r, key[i], false);
        put_str(r, ":");
        put_value(r, json_object_get(o, key[i]), quote_keys, depth + 1);
    }
}

static void put_value(struct render *r, const json_t *v, bool quote_keys, int depth)
{
    const json_t *one;
    size_t i;
    if (json_is_string(v)) {
        put_quoted(r, json_string_value(v), false);
    } else if (json_is_boolean(v)) {
        put_str(r, json_is_true(v) ? "true" : "false");
    } else if (json_is_integer(v)) {
        put_format(r, "%lld", (long long)json_integer_value(v));
    } else if (json_is_real(v)) {
        char s[32];
        json_real_text(s, json_real_value(v));
        put_str(r, s);
    } else if (json_is_object(v) && depth < MOST_DEPTH) {
        put_str(r, "{");
        put_members(r, v, quote_keys, depth);
        put_str(r, "}");
    } else if (json_is_array(v) && depth < MOST_DEPTH) {
        put_str(r, "[");
        json_array_foreach(v, i, one) {
            put_next(r, "");
            put_value(r, one, quote_keys, depth + 1);
        }
        put_str(r, "]");
    } else {
        put_str(r, "None");
    }
}

/* ---- declarations ---------------------------------------------------------------------------- */

/* What Jinja takes for true. */
static bool is_set(const json_t *v)
{
    return json_is_string(v)    ? *json_string_value(v) != 0
           : json_is_object(v)  ? json_object_size(v) > 0
           : json_is_array(v)   ? json_array_size(v) > 0
           : json_is_integer(v) ? json_integer_value(v) != 0
           : json_is_real(v)    ? json_real_value(v) != 0
                                : json_is_true(v);
}

/* Whether the type of a schema, a name or a list of names, names this one. */
static bool names_type(const json_t *type, const char *lower, const char *upper)
{
    const char *s = json_string_value(type);
    const json_t *one;
    size_t i;
    if (s)
        return strstr(s, lower) || strstr(s, upper);
    json_array_foreach(type, i, one) {
        const char *name = json_string_value(one);
        if (name && (!strcmp(name, lower) || !strcmp(name, upper)))
            return true;
    }
    return false;
}

static void put_type(struct render *r, const json_t *type)
{
    if (json_is_string(type))
        put_quoted(r, json_string_value(type), true);
    else
        put_texts(r, type, true);
}

static void put_required(struct render *r, const json_t *names)
{
    if (!is_set(names))
        return;
    put_next(r, "required:");
    put_texts(r, names, false);
}

static void put_properties(struct render *r, const json_t *all, bool filter, int depth);

/* items:{...}, whose members are those of the schema. */
static void put_items(struct render *r, const json_t *items, int depth)
{
    FREED(free_at) const char **key = sorted_keys(items);
    put_next(r, "items:{");
    for (size_t i = 0; i < json_object_size(items); i++) {
        const json_t *v = json_object_get(items, key[i]);
        if (json_is_null(v))
            continue;
        put_next(r, key[i]);
        put_str(r, ":");
        if (!strcmp(key[i], "properties"))
            put_properties(r, v, false, depth + 1);
        else if (!strcmp(key[i], "required"))
            put_texts(r, v, false);
        else if (!strcmp(key[i], "type"))
            put_type(r, v);
        else
            put_value(r, v, true, depth + 1);
    }
    put_str(r, "}");
}

/* NAME:{...}: one parameter. */
static void put_property(struct render *r, const char *name, const json_t *v, int depth)
{
    const json_t *type = json_object_get(v, "type"), *required = json_object_get(v, "required");
    const json_t *about = json_object_get(v, "description"), *items = json_object_get(v, "items");
    const json_t *values = json_object_get(v, "enum"), *inner = json_object_get(v, "properties");
    put_next(r, name);
    put_str(r, ":{");
    if (is_set(about)) {
        put_next(r, "description:");
        put_quoted(r, json_string_value(about), false);
    }
    bool string = names_type(type, "string", "STRING");
    if (string && is_set(values)) {
        put_next(r, "enum:");
        put_value(r, values, true, depth + 1);
    } else if (!string && names_type(type, "array", "ARRAY") && json_object_size(items)) {
        put_items(r, items, depth);
    }
    if (is_set(json_object_get(v, "nullable")))
        put_next(r, "nullable:true");
    if (names_type(type, "object", "OBJECT")) {
        put_next(r, "properties:");
        put_properties(r, json_is_object(inner) ? inner : v, !json_is_object(inner), depth + 1);
        put_required(r, required);
    }
    put_next(r, "type:");
    put_type(r, type);
    put_str(r, "}");
}

/* {NAME:{...},...}. filter: without the keywords of a schema, because `all` is one. */
static void put_properties(struct render *r, const json_t *all, bool filter, int depth)
{
    static const char *const keyword[] = {"description", "type", "properties", "required",
                                          "nullable"};
    FREED(free_at) const char **key = depth < MOST_DEPTH ? sorted_keys(all) : NULL;
    put_str(r, "{");
    for (size_t i = 0; key && i < json_object_size(all); i++)
        if (!filter || !ROW_NAMED(keyword, key[i]))
            put_property(r, key[i], json_object_get(all, key[i]), depth);
    put_str(r, "}");
}

static void put_declaration(struct render *r, const json_t *f)
{
    const json_t *p = json_object_get(f, "parameters"), *all = json_object_get(p, "properties");
    const json_t *type = json_object_get(p, "type");
    put_mark(r, MARK_TOOL);
    put_format(r, "declaration:%s{description:", json_str(f, "name"));
    put_quoted(r, json_str(f, "description"), false);
    if (is_set(p)) {
        put_str(r, ",parameters:{");
        if (is_set(all)) {
            put_str(r, "properties:");
            put_properties(r, all, false, 0);
        }
        put_required(r, json_object_get(p, "required"));
        if (is_set(type)) {
            put_next(r, "type:");
            put_type(r, type);
        }
        put_str(r, "}");
    }
    put_str(r, "}");
    put_mark(r, MARK_TOOL_END);
}

void gemma4_declare(struct render *r)
{
    const json_t *one;
    size_t i;
    json_array_foreach(r->style->tools, i, one) {
        put_declaration(r, json_object_get(one, "function"));
    }
}

/* ---- calls and responses --------------------------------------------------------------------- */

void gemma4_calls(struct render *r, const struct message *m)
{
    const json_t *one;
    size_t i;
    json_array_foreach(m->calls, i, one) {
        const json_t *arguments = json_object_get(one, "arguments");
        put_mark(r, MARK_TOOL_CALL);
        put_format(r, "call:%s{", json_str(one, "name"));
        if (json_is_string(arguments))
            put_arguments(r, arguments);
        else
            put_members(r, arguments, false, 0);
        put_str(r, "}");
        put_mark(r, MARK_TOOL_CALL_END);
    }
}

void gemma4_responses(struct render *r, const struct message *m, int n)
{
    for (int i = 0; i < n; i++) {
        put_mark(r, MARK_TOOL_RESPONSE);
        put_format(r, "response:%s{value:", m[i].name ? m[i].name : "unknown");
        put_quoted(r, m[i].text, false);
        put_str(r, "}");
        put_mark(r, MARK_TOOL_RESPONSE_END);
    }
}

/* ---- calls in replies ------------------------------------------------------------------------ */

struct scan {
    const char *p, *end;
    int depth;
};

static const char quote[] = "<|\"|>";

static void skip(struct scan *s)
{
    while (s->p < s->end && strchr(" \t\r\n", *s->p))
        s->p++;
}

static bool take(struct scan *s, const char *text)
{
    size_t n = strlen(text);
    bool is = (size_t)(s->end - s->p) >= n && !memcmp(s->p, text, n);
    s->p += is ? n : 0;
    return is;
}

/* Where a text in JSON's quotes ends, behind its quote; NULL: nowhere. */
static const char *json_text_end(const struct scan *s)
{
    for (const char *p = s->p + 1; p < s->end; p++) {
        if (*p == '"')
            return p + 1;
        p += *p == '\\';
    }
    return NULL;
}

/* A text in gemma's or in JSON's quotes. NULL: there is none. */
static json_t *scan_text(struct scan *s)
{
    const char *from = s->p, *end;
    if (take(s, quote)) {
        from = s->p;
        end = memmem(from, (size_t)(s->end - from), quote, sizeof quote - 1);
        if (!end)
            return NULL;
        s->p = end + sizeof quote - 1;
        return json_stringn(from, (size_t)(end - from));
    }
    end = s->p < s->end && *s->p == '"' ? json_text_end(s) : NULL;
    if (!end)
        return NULL;
    s->p = end;
    return json_parse(from, (size_t)(end - from), JSON_DECODE_ANY, NULL);
}

/* A number, true, false, null or None; another word is a text without its quotes. */
static json_t *scan_word(struct scan *s)
{
    const char *from = s->p;
    while (s->p < s->end && !strchr(",}]", *s->p))
        s->p++;
    size_t n = (size_t)(s->p - from);
    from = trimmed(from, &n);
    if (n == 0)
        return NULL;
    if (n == 4 && !memcmp(from, "None", 4))
        return json_null();
    json_t *v = json_parse(from, n, JSON_DECODE_ANY, NULL);
    return v ? v : json_stringn(from, n);
}

static json_t *scan_value(struct scan *s);

static json_t *scan_array(struct scan *s)
{
    json_t *all = json_array();
    for (skip(s); !take(s, "]"); skip(s)) {
        json_t *one = NULL;
        bool ok = !json_array_size(all) || take(s, ",");
        if (ok)
            one = scan_value(s);
        if (!one || json_array_append_new(all, one)) {
            json_decref(all);
            return NULL;
        }
    }
    return all;
}

/* A key and its colon, as a text. NULL: there is none. */
static json_t *scan_key(struct scan *s)
{
    json_t *key;
    skip(s);
    if (s->p < s->end && (*s->p == '"' || *s->p == '<')) {
        key = scan_text(s);
    } else {
        const char *from = s->p, *end = memchr(from, ':', (size_t)(s->end - from));
        size_t n = end ? (size_t)(end - from) : 0;
        from = trimmed(from, &n);
        key = n ? json_stringn(from, n) : NULL;
        s->p = end ? end : s->p;
    }
    skip(s);
    if (key && take(s, ":"))
        return key;
    json_decref(key);
    return NULL;
}

static json_t *scan_object(struct scan *s)
{
    json_t *all = json_object();
    for (skip(s); !take(s, "}"); skip(s)) {
        json_t *key = NULL, *one = NULL;
        if (!json_object_size(all) || take(s, ","))
            key = scan_key(s);
        if (key)
            one = scan_value(s);
        bool ok = one && !json_object_set_new(all, json_string_value(key), one);
        json_decref(key);
        if (!ok) {
            json_decref(all);
            return NULL;
        }
    }
    return all;
}

static json_t *scan_value(struct scan *s)
{
    json_t *v;
    skip(s);
    if (s->depth >= MOST_DEPTH)
        return NULL;
    s->depth++;
    if (take(s, "{"))
        v = scan_object(s);
    else if (take(s, "["))
        v = scan_array(s);
    else if (s->p < s->end && (*s->p == '"' || *s->p == '<'))
        v = scan_text(s);
    else
        v = scan_word(s);
    s->depth--;
    return v;
}

json_t *gemma4_call(const char *p, size_t n)
{
    struct scan s = {trimmed(p, &n), NULL, 0};
    s.end = s.p + n;
    const char *name = s.p + 5, *brace = n ? memchr(s.p, '{', n) : NULL;
    if (!take(&s, "call:") || !brace)
        return NULL;
    size_t width = (size_t)(brace - name);
    name = trimmed(name, &width);
    s.p = brace;
    FREED(json_decrefp) json_t *arguments = width ? scan_value(&s) : NULL;
    return arguments && s.p == s.end
               ? json_pack("{s:s%,s:O}", "name", name, width, "arguments", arguments) : NULL;
}
