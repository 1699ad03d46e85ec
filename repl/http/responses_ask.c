/* responses_ask.c - requests of /v1/responses as requests for a chat: see responses.h. */
#include "repl/http/responses.h"
#include "kernels/json_read.h"

/* ---- input ----------------------------------------------------------------------------------- */

/* The content of a message: a text, or parts of which only texts are supported. */
static json_t *content_of(const json_t *v, size_t at, struct refusal *r)
{
    json_t *out, *part;
    size_t i;
    char where[64];
    if (json_is_string(v))
        return json_incref((json_t *)(uintptr_t)v);
    out = json_array();
    snprintf(where, sizeof where, "input.%zu.content", at);
    json_array_foreach(v, i, part) {
        const char *type = json_str(part, "type");
        json_t *text = json_object_get(part, !strcmp(type, "refusal") ? "refusal" : "text");
        if (json_is_string(text) && (!strcmp(type, "input_text") || !strcmp(type, "output_text") ||
                                     !strcmp(type, "text") || !strcmp(type, "refusal"))) {
            json_array_append_new(out, json_pack("{s:s,s:O}", "type", "text", "text", text));
            continue;
        }
        json_decref(out);
        refuse(r, 400, where, "only parts of type input_text and output_text are supported");
        return NULL;
    }
    return out;
}

/* The last message, if it is one of calls, else a new one of the assistant. */
static json_t *calls_of(json_t *messages)
{
    json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    json_t *calls = json_object_get(last, "tool_calls");
    if (calls)
        return calls;
    bool assistant = last && !strcmp(json_str(last, "role"), "assistant");
    if (!assistant)
        json_array_append_new(messages, last = json_pack("{s:s,s:s}", "role", "assistant",
                                                         "content", ""));
    json_object_set_new(last, "tool_calls", json_array());
    return json_object_get(last, "tool_calls");
}

/* The text of a function's result. */
static json_t *output_of(const json_t *v)
{
    FREED(free_at) char *text = json_is_string(v) ? NULL : json_written(v, 0);
    json_t *out = json_is_string(v) ? json_incref((json_t *)(uintptr_t)v)
                                    : json_string(text ? text : "");
    return out;
}

static bool add_item(json_t *messages, const json_t *item, size_t at, struct refusal *r)
{
    const char *type = json_str(item, "type"), *role = json_str(item, "role");
    char where[64];
    snprintf(where, sizeof where, "input.%zu", at);
    if (!strcmp(type, "reasoning"))
        return true; /* thoughts are not sent back */
    if (!strcmp(type, "function_call")) {
        json_array_append_new(calls_of(messages), json_pack("{s:s,s:s,s:{s:s,s:s}}", "id",
                              json_str(item, "call_id"), "type", "function", "function", "name",
                              json_str(item, "name"), "arguments", json_str(item, "arguments")));
        return true;
    }
    if (!strcmp(type, "function_call_output")) {
        json_array_append_new(messages, json_pack("{s:s,s:s,s:o}", "role", "tool", "tool_call_id",
                                                  json_str(item, "call_id"), "content",
                                                  output_of(json_object_get(item, "output"))));
        return true;
    }
    if ((*type && strcmp(type, "message") != 0) || !*role)
        return refuse(r, 400, where, "an item of input should be a message, a function_call, a "
                      "function_call_output or reasoning");
    json_t *content = content_of(json_object_get(item, "content"), at, r);
    if (content)
        json_array_append_new(messages, json_pack("{s:s,s:o}", "role", role, "content", content));
    return content != NULL;
}

/* Instructions come before a system message of the input, in one message. */
static bool add_input(json_t *out, const json_t *o, struct refusal *r)
{
    json_t *input = json_object_get(o, "input"), *messages = json_array(), *item;
    const char *system = json_string_value(json_object_get(o, "instructions"));
    size_t i;
    json_object_set_new(out, "messages", messages);
    if (json_is_string(input)) {
        json_array_append_new(messages, json_pack("{s:s,s:O}", "role", "user", "content", input));
    } else if (!json_is_array(input)) {
        return refuse(r, 400, "input", "input should be a text or a list of items");
    }
    json_array_foreach(input, i, item)
        if (!add_item(messages, item, i, r))
            return false;
    json_t *first = json_array_get(messages, 0), *old = json_object_get(first, "content");
    bool merge = !strcmp(json_str(first, "role"), "system") ||
                 !strcmp(json_str(first, "role"), "developer");
    if (system && *system && merge && json_is_string(old))
        json_object_set_new(first, "content", json_sprintf("%s\n\n%s", system,
                                                           json_string_value(old)));
    else if (system && *system)
        json_array_insert_new(messages, 0, json_pack("{s:s,s:s}", "role", "system", "content",
                                                     system));
    return true;
}

/* ---- the other fields ------------------------------------------------------------------------ */

static bool add_tools(json_t *out, const json_t *tools, struct refusal *r)
{
    json_t *list = json_array(), *one;
    size_t i;
    json_object_set_new(out, "tools", list);
    json_array_foreach(tools, i, one) {
        json_t *f = json_object();
        json_array_append_new(list, json_pack("{s:s,s:o}", "type", "function", "function", f));
        if (strcmp(json_str(one, "type"), "function") != 0)
            return refuse(r, 400, "tools", "only tools of type function are supported");
        for (int k = 0; k < 3; k++) {
            static const char *const key[] = {"name", "description", "parameters"};
            json_t *v = json_object_get(one, key[k]);
            if (v && !json_is_null(v))
                json_object_set(f, key[k], v);
        }
    }
    return true;
}

static bool add_choice(json_t *out, json_t *v, struct refusal *r)
{
    if (json_is_string(v))
        return !json_object_set(out, "tool_choice", v);
    if (!strcmp(json_str(v, "type"), "allowed_tools")) {
        json_t *few = json_array(), *one;
        size_t i;
        json_array_foreach(json_object_get(v, "tools"), i, one) {
            json_array_append_new(few, json_pack("{s:{s:s}}", "function", "name",
                                                 json_str(one, "name")));
        }
        return !json_object_set_new(
            out, "tool_choice", json_pack("{s:s,s:{s:s,s:o}}", "type", "allowed_tools",
                                          "allowed_tools", "mode", json_str(v, "mode"), "tools",
                                          few));
    }
    if (strcmp(json_str(v, "type"), "function") != 0)
        return refuse(r, 400, "tool_choice", "tool_choice should be a text, or name functions");
    return !json_object_set_new(out, "tool_choice",
                                json_pack("{s:s,s:{s:s}}", "type", "function", "function", "name",
                                          json_str(v, "name")));
}

static bool add_text(json_t *out, const json_t *v, struct refusal *r)
{
    json_t *format = json_object_get(v, "format"), *how = json_object_get(v, "verbosity");
    const char *type = json_str(format, "type");
    if (how && !json_is_null(how) && strcmp(json_str(v, "verbosity"), "medium") != 0)
        return refuse(r, 400, "text", "text.verbosity is not supported");
    if (!format || json_is_null(format) || !strcmp(type, "text"))
        return true;
    if (strcmp(type, "json_schema") != 0)
        return !json_object_set(out, "response_format", format);
    return !json_object_set_new(out, "response_format",
                                json_pack("{s:s,s:O}", "type", "json_schema", "json_schema",
                                          format));
}

/* Fields that a chat has, too, under another name or the same; and those without any effect. */
static const struct {
    const char *name, *chat; /* chat NULL: ignored */
} same[] = {{"model", "model"}, {"max_output_tokens", "max_completion_tokens"},
            {"temperature", "temperature"}, {"top_p", "top_p"}, {"stream", "stream"},
            {"parallel_tool_calls", "parallel_tool_calls"}, {"seed", "seed"}, {"top_k", "top_k"},
            {"min_p", "min_p"}, {"presence_penalty", "presence_penalty"},
            {"frequency_penalty", "frequency_penalty"},
            {"repetition_penalty", "repetition_penalty"}, {"logit_bias", "logit_bias"},
            {"user", NULL}, {"metadata", NULL}, {"store", NULL}, {"service_tier", NULL},
            {"safety_identifier", NULL}, {"prompt_cache_key", NULL},
            {"prompt_cache_retention", NULL}, {"include", NULL}, {"stream_options", NULL},
            {"max_tool_calls", NULL}, {"client_metadata", NULL}};

static bool add_field(json_t *out, const char *name, json_t *v, struct refusal *r)
{
    const char *truncation = json_string_value(v);
    for (size_t i = 0; i < LEN(same); i++)
        if (!strcmp(name, same[i].name))
            return !same[i].chat || !json_object_set(out, same[i].chat, v);
    if (!strcmp(name, "tools"))
        return add_tools(out, v, r);
    if (!strcmp(name, "tool_choice"))
        return add_choice(out, v, r);
    if (!strcmp(name, "text"))
        return add_text(out, v, r);
    if (!strcmp(name, "reasoning")) {
        json_t *effort = json_object_get(v, "effort");
        return !effort || json_is_null(effort) || !json_object_set(out, "reasoning_effort", effort);
    }
    bool usual = (!strcmp(name, "background") && json_is_false(v)) ||
                 (!strcmp(name, "top_logprobs") && json_number_value(v) == 0) ||
                 (!strcmp(name, "truncation") && truncation && !strcmp(truncation, "disabled"));
    return usual || refuse(r, 400, name, "%.60s is not supported by /v1/responses of this server",
                           name);
}

json_t *responses_chat(const json_t *o, struct refusal *r)
{
    json_t *out = json_object(), *v;
    const char *name;
    bool ok = add_input(out, o, r);
    json_object_foreach((json_t *)(uintptr_t)o, name, v)
        if (ok && !json_is_null(v) && strcmp(name, "input") != 0 &&
            strcmp(name, "instructions") != 0)
            ok = add_field(out, name, v, r);
    if (ok)
        return out;
    json_decref(out);
    return NULL;
}
