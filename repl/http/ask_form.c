/* ask_form.c - functions that a reply may call, and what it must be: see ask_parts.h. */
#include "repl/http/ask_parts.h"

#include "kernels/ascii.h"
#include "kernels/json_read.h"
#include "models/grammar/grammar.h"

/* ---- functions ------------------------------------------------------------------------------- */

enum { MOST_TOOLS = 512, MOST_CALLS = 16, NAME_BYTES = 64 };

static bool is_name(const char *s)
{
    size_t n = s ? strlen(s) : 0;
    for (size_t i = 0; i < n; i++)
        if (!ascii_alnum(s[i]) && !strchr("_-.", s[i]))
            return false;
    return n > 0 && n <= NAME_BYTES;
}

/* The arguments of a call: an object, or a text that is none, such as one cut off at a limit of
 * tokens. A new reference. */
static json_t *read_arguments(json_t *v)
{
    if (!v || json_is_null(v) || (json_is_string(v) && !json_string_length(v)))
        return json_object();
    json_t *o = json_is_string(v) ? json_parse(json_string_value(v), json_string_length(v), 0, NULL)
                                  : json_incref(v);
    if (json_is_object(o) || !json_is_string(v))
        return o;
    json_decref(o);
    return json_incref(v);
}

/* The calls of a message of the assistant: [{"name", "arguments"}], a new list. NULL and *r. */
json_t *read_calls(const json_t *list, const char *where, struct refusal *r)
{
    json_t *out = json_array(), *one;
    size_t i;
    json_array_foreach(list, i, one) {
        json_t *f = json_object_get(one, "function");
        json_t *args = read_arguments(json_object_get(f, "arguments"));
        const char *name = json_string_value(json_object_get(f, "name"));
        if (is_name(name) && (json_is_object(args) || json_is_string(args))) {
            json_array_append_new(out, json_pack("{s:s,s:o}", "name", name, "arguments", args));
            continue;
        }
        json_decref(args);
        json_decref(out);
        refuse(r, 400, where, "tool_calls should be a list of {\"function\": {\"name\": NAME, "
               "\"arguments\": JSON TEXT}}");
        return NULL;
    }
    return out;
}

/* The name of the function whose call the message answers: the one with its id, else its "name". */
const char *called_name(const json_t *list, int at, const json_t *m)
{
    const char *id = json_string_value(json_object_get(m, "tool_call_id"));
    json_t *one;
    size_t k;
    for (int i = at - 1; id && i >= 0; i--) {
        json_array_foreach(json_object_get(json_array_get(list, (size_t)i), "tool_calls"), k, one) {
            const char *of = json_string_value(json_object_get(one, "id"));
            if (of && !strcmp(of, id))
                return json_string_value(json_object_get(json_object_get(one, "function"), "name"));
        }
    }
    return json_string_value(json_object_get(m, "name"));
}

/* The functions that a request offers; NULL: none. */
const json_t *tools_of(const json_t *o)
{
    const json_t *tools = get(o, "tools");
    const char *choice = json_string_value(get(o, "tool_choice"));
    return json_array_size(tools) && !(choice && !strcmp(choice, "none")) ? tools : NULL;
}

bool check_tools(const json_t *o, struct refusal *r)
{
    json_t *tools = get(o, "tools"), *one;
    size_t i;
    if (tools && (!json_is_array(tools) || json_array_size(tools) > MOST_TOOLS))
        return refuse(r, 400, "tools", "tools should be a list of at most %d functions",
                      MOST_TOOLS);
    json_array_foreach(tools, i, one) {
        const char *type = json_string_value(json_object_get(one, "type"));
        json_t *f = json_object_get(one, "function"), *p = json_object_get(f, "parameters");
        if ((type && strcmp(type, "function") != 0) || !json_is_object(f) ||
            !is_name(json_string_value(json_object_get(f, "name"))))
            return refuse(r, 400, "tools", "tools.%zu should be {\"type\": \"function\", "
                                           "\"function\": {\"name\": NAME, ...}} with a name of "
                                           "letters, digits, _, - and .", i);
        if (p && !json_is_object(p) && !json_is_null(p))
            return refuse(r, 400, "tools", "tools.%zu.function.parameters should be a schema", i);
    }
    return true;
}

static json_t *named(const json_t *tools, const char *name)
{
    json_t *one;
    size_t i;
    json_array_foreach((json_t *)(uintptr_t)tools, i, one) {
        const char *s = json_string_value(json_object_get(json_object_get(one, "function"),
                                                          "name"));
        if (s && name && !strcmp(s, name))
            return one;
    }
    return NULL;
}

bool narrow_tools(json_t *o, struct refusal *r)
{
    json_t *choice = get(o, "tool_choice"), *in = json_object_get(choice, "allowed_tools"), *one;
    const char *type = json_string_value(json_object_get(choice, "type"));
    json_t *list = json_object_get(in, "tools"), *mode = json_object_get(in, "mode"), *few;
    size_t i;
    if (!type || strcmp(type, "allowed_tools") != 0)
        return true;
    few = json_array();
    json_array_foreach(list, i, one) {
        json_t *f = json_object_get(one, "function");
        json_array_append(few, named(get(o, "tools"), json_string_value(json_object_get(f,
                                                                                    "name"))));
    }
    bool ok = json_is_string(mode) && i > 0 && json_array_size(few) == i &&
              (!strcmp(json_string_value(mode), "auto") ||
               !strcmp(json_string_value(mode), "required"));
    if (!ok) {
        json_decref(few);
        return refuse(r, 400, "tool_choice", "tool_choice.allowed_tools should have the mode "
                      "\"auto\" or \"required\", and tools that are functions of tools");
    }
    json_object_set_new(o, "tools", few);
    json_incref(mode);
    return !json_object_set_new(o, "tool_choice", mode);
}

/* ---- what a reply must be -------------------------------------------------------------------- */

/* A schema is given as an object, or as a text that holds one. Returns a new reference, or NULL and
 * *r. */
static json_t *read_schema(json_t *v, const char *param, struct refusal *r)
{
    json_t *o = json_is_string(v) ? json_parse(json_string_value(v), json_string_length(v),
                                               JSON_ALLOW_NUL, NULL) : json_incref(v);
    if (json_is_object(o) || json_is_boolean(o))
        return o;
    json_decref(o);
    refuse(r, 400, param, "%s should be a JSON schema", param);
    return NULL;
}

/* Takes over the schema; NULL: any JSON object. */
static bool take_format(struct ask *a, json_t *schema, const char *param, struct refusal *r)
{
    struct err e;
    json_t *o = schema ? json_pack("{s:s,s:o}", "type", "json_schema", "schema", schema)
                       : json_pack("{s:s}", "type", "json_object");
    if (!a->chat)
        json_object_set_new(o, "form", json_string("text"));
    struct grammar *g = grammar_open(o, NULL, NULL, &e);
    free(a->format);
    a->format = g ? json_written(o, JSON_COMPACT) : NULL;
    grammar_close(g);
    json_decref(o);
    return a->format || refuse(r, 400, param, "%s: %s", param, g ? "the schema cannot be written"
                               : e.msg);
}

static bool read_response_format(struct ask *a, json_t *v, struct refusal *r)
{
    const char *type = json_string_value(json_object_get(v, "type"));
    json_t *in = json_object_get(v, "json_schema"), *schema;
    if (type && !strcmp(type, "text"))
        return true;
    if (type && !strcmp(type, "json_object"))
        return take_format(a, NULL, "response_format", r);
    if (!type || strcmp(type, "json_schema") != 0)
        return refuse(r, 400, "response_format", "response_format should have the type \"text\", "
                      "\"json_object\" or \"json_schema\"");
    in = in ? json_object_get(in, "schema") : json_object_get(v, "schema");
    if (!in)
        return refuse(r, 400, "response_format", "response_format.json_schema.schema: Field "
                                                 "required");
    schema = read_schema(in, "response_format", r);
    return schema && take_format(a, schema, "response_format", r);
}

/* vLLM's {"json": SCHEMA} and {"choice": [TEXT, ...]}. */
static bool read_structured(struct ask *a, json_t *v, struct refusal *r)
{
    const char *key;
    json_t *one, *schema = NULL;
    if (!json_is_object(v))
        return refuse(r, 400, "structured_outputs", "structured_outputs should be an object");
    json_object_foreach(v, key, one) {
        if (json_is_null(one) || json_is_false(one))
            continue;
        if (!strcmp(key, "json") && !schema) {
            schema = read_schema(one, "structured_outputs", r);
            if (!schema)
                return false;
        } else if (strcmp(key, "json_object") != 0 || !json_is_true(one)) {
            json_decref(schema);
            return refuse(r, 400, "structured_outputs", "structured_outputs.%.40s is not "
                          "supported; expected json or json_object", key);
        } else if (!take_format(a, NULL, "structured_outputs", r)) {
            return false;
        }
    }
    return !schema || take_format(a, schema, "structured_outputs", r);
}

/* "tool_choice": "required", or {"function": {"name": NAME}}: the reply must be calls. */
bool read_choice(struct ask *a, const struct ask_of *of, const json_t *o, struct refusal *r)
{
    json_t *choice = get(o, "tool_choice"), *tools = json_array(), *one;
    const char *word = json_string_value(choice), *name = json_string_value(
        json_object_get(json_object_get(choice, "function"), "name"));
    struct chat_call_form form;
    struct err e;
    size_t i;
    a->calls = tools_of(o) != NULL;
    bool must = json_is_object(choice) || (word && !strcmp(word, "required"));
    json_array_foreach(get(o, "tools"), i, one) {
        json_t *f = json_object_get(one, "function"), *p = json_object_get(f, "parameters");
        json_auto_t *tool = json_pack("{s:O}", "name", json_object_get(f, "name"));
        if (json_object_size(p))
            json_object_set(tool, "parameters", p);
        if (!name || !strcmp(name, json_string_value(json_object_get(f, "name"))))
            json_array_append(tools, tool);
    }
    bool known = must || !choice || (word && (!strcmp(word, "none") || !strcmp(word, "auto")));
    if (!known || (must && !word && !name) || (must && json_array_size(tools) == 0)) {
        json_decref(tools);
        return refuse(r, 400, "tool_choice", known && name
                          ? "tool_choice names no function of tools"
                          : "tool_choice should be \"none\", \"auto\", \"required\" or "
                            "{\"type\": \"function\", \"function\": {\"name\": NAME}}, with tools");
    }
    if (!must || !chat_call_form(of->chat, &form)) {
        json_decref(tools);
        return true; /* a format without tools was refused with the messages */
    }
    bool many = form.between && !name && !json_is_false(get(o, "parallel_tool_calls"));
    json_t *f = json_pack("{s:s,s:o,s:s,s:s,s:s,s:s,s:i}", "type", "tools", "tools", tools, "open",
                          form.open, "middle", form.middle, "close", form.close, "between",
                          form.between ? form.between : "", "most", many ? MOST_CALLS : 1);
    struct grammar *g = grammar_open(f, NULL, NULL, &e);
    if (g && a->format)
        refuse(r, 400, "tool_choice", "a reply cannot be both calls and what response_format says");
    else if (g)
        a->format = json_written(f, JSON_COMPACT);
    else
        refuse(r, 400, "tools", "%s", e.msg);
    grammar_close(g);
    json_decref(f);
    return !r->status;
}

bool read_format(struct ask *a, const json_t *o, struct refusal *r)
{
    json_t *format = get(o, "response_format"), *guided = get(o, "guided_json"),
           *structured = get(o, "structured_outputs"), *plain = get(o, "json_schema");
    if (!format || !json_is_object(format) || json_object_size(format)) {
        if (format && !read_response_format(a, format, r))
            return false;
    }
    if (structured && !read_structured(a, structured, r))
        return false;
    for (int i = 0; i < 2; i++) {
        json_t *v = i ? plain : guided, *schema;
        const char *name = i ? "json_schema" : "guided_json";
        if (!v || (json_is_object(v) && json_object_size(v) == 0))
            continue;
        schema = read_schema(v, name, r);
        if (!schema || !take_format(a, schema, name, r))
            return false;
    }
    return true;
}
