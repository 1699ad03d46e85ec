/* tools.c - functions that a reply may call: in prompts, and read from replies. See chat.h.
 *
 * The texts are those of the families' templates: Qwen's and Hermes' tags, Llama 3's JSON,
 * harmony's namespace. JSON is written as Jinja's tojson writes it. */
#include "models/chat/parts.h"
#include "kernels/json_read.h"

/* What begins and ends a call. */
static const char *open_tag(const struct chat *c)
{
    return c->tools == TOOLS_GEMMA4 ? c->format->mark[MARK_TOOL_CALL] : "<tool_call>";
}
static const char *close_tag(const struct chat *c)
{
    return c->tools == TOOLS_GEMMA4 ? c->format->mark[MARK_TOOL_CALL_END] : "</tool_call>";
}

/* ---- prompts --------------------------------------------------------------------------------- */

/* The functions' objects alone, indented, as the guide's examples have them. */
static void put_guide(struct render *r)
{
    const json_t *one;
    FREED(json_decrefp) json_t *all = json_array();
    size_t i;
    put_str(r, "You have access to functions. If you decide to invoke any of the function(s),\n"
               "you MUST put it in the format of\n"
               "{\"name\": function name, \"parameters\": dictionary of argument name and its "
               "value}\n\n"
               "You SHOULD NOT include any other text in the response if you call a function\n");
    json_array_foreach(r->style->tools, i, one) {
        json_array_append(all, json_object_get(one, "function"));
    }
    put_json(r, all, JSON_INDENT(2));
    put_str(r, "\n");
}

/* Whether a call is an object {"name": ..., "parameters": ...}, and the whole reply. */
static bool bare_calls(const struct chat *c)
{
    return c->tools == TOOLS_LLAMA || c->tools == TOOLS_GEMMA;
}

void put_tools(struct render *r)
{
    const json_t *one;
    size_t i;
    if (r->c->tools == TOOLS_GEMMA4) {
        gemma4_declare(r);
        return;
    }
    if (r->c->tools == TOOLS_GEMMA) {
        put_guide(r);
        return;
    }
    bool llama = r->c->tools == TOOLS_LLAMA;
    if (llama)
        put_str(r, "Given the following functions, please respond with a JSON for a function call "
                   "with its proper arguments that best answers the given prompt.\n\n"
                   "Respond in the format {\"name\": function name, \"parameters\": dictionary of "
                   "argument name and its value}.Do not use variables.\n\n");
    else
        put_str(r, "# Tools\n\nYou may call one or more functions to assist with the user "
                   "query.\n\nYou are provided with function signatures within <tools></tools> XML "
                   "tags:\n<tools>");
    json_array_foreach(r->style->tools, i, one) {
        put_str(r, llama ? "" : "\n");
        put_json(r, one, llama ? JSON_INDENT(4) : 0);
        put_str(r, llama ? "\n\n" : "");
    }
    if (!llama)
        put_str(r, "\n</tools>\n\nFor each function call, return a json object with function name "
                   "and arguments within <tool_call></tool_call> XML "
                   "tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": "
                   "<args-json-object>}\n</tool_call>");
}

void put_calls(struct render *r, const struct message *m)
{
    const json_t *one;
    size_t i;
    bool bare = bare_calls(r->c);
    if (r->c->tools == TOOLS_GEMMA4) {
        gemma4_calls(r, m);
        return;
    }
    json_array_foreach(m->calls, i, one) {
        if (i ? r->c->tools != TOOLS_LLAMA : !bare && m->text && *m->text)
            put_str(r, "\n");
        put_format(r, "%s{\"name\": \"%s\", \"%s\": ", bare ? "" : "<tool_call>\n",
                   json_str(one, "name"), bare ? "parameters" : "arguments");
        put_arguments(r, json_object_get(one, "arguments"));
        put_str(r, bare ? "}" : "}\n</tool_call>");
    }
}

void put_results(struct render *r, const struct message *m, int n)
{
    if (r->c->tools == TOOLS_GEMMA4) {
        gemma4_responses(r, m, n);
        return;
    }
    if (r->c->tools == TOOLS_LLAMA) {
        for (int i = 0; i < n; i++) {
            begin_turn(r, "ipython");
            put_json_text(r, m[i].text);
            end_message(r, ROLE_USER);
        }
        return;
    }
    begin_message(r, ROLE_USER);
    for (int i = 0; i < n; i++) {
        put_str(r, i ? "\n<tool_response>\n" : "<tool_response>\n");
        put_text(r, m[i].text, strlen(m[i].text));
        put_str(r, "\n</tool_response>");
    }
    end_message(r, ROLE_USER);
}

/* ---- harmony's namespace --------------------------------------------------------------------- */

static bool is_required(const json_t *required, const char *name)
{
    const json_t *one;
    size_t i;
    json_array_foreach(required, i, one)
        if (json_is_string(one) && !strcmp(json_string_value(one), name))
            return true;
    return false;
}

static void put_type(struct render *r, const json_t *s, int depth);

/* What TypeScript calls a simple type; NULL: it is none. */
static const char *simple_type(const char *type)
{
    bool number = !strcmp(type, "number") || !strcmp(type, "integer");
    return number ? "number" : !strcmp(type, "string") || !strcmp(type, "boolean") ? type : NULL;
}

static void put_item_type(struct render *r, const json_t *items, int depth)
{
    const char *simple = simple_type(json_str(items, "type"));
    if (simple)
        put_str(r, simple);
    else {
        struct render inner = *r;
        inner.text = (struct buf){0};
        put_type(&inner, items, depth + 1);
        put_str(r, inner.text.n > 50 ? "any" : inner.text.p ? inner.text.p : "any");
        buf_free(&inner.text);
    }
    put_str(r, "[]");
}

static void put_object_type(struct render *r, const json_t *s, int depth)
{
    json_t *all = json_object_get(s, "properties"), *one;
    const char *name;
    size_t n = json_object_size(all);
    put_str(r, "{\n");
    json_object_foreach(all, name, one) {
        /* as the template indents its own source */
        put_format(r, "%s%s\n                ", name,
                   is_required(json_object_get(s, "required"), name) ? ": " : "?: ");
        put_type(r, one, depth + 1);
        put_str(r, --n ? ", " : "");
    }
    put_str(r, "}");
}

/* A schema as a type of TypeScript, as the template writes it. */
static void put_type(struct render *r, const json_t *s, int depth)
{
    const char *type = json_str(s, "type");
    json_t *list = json_object_get(s, "type"), *options = json_object_get(s, "oneOf"), *one;
    bool null = json_is_true(json_object_get(s, "nullable"));
    size_t i;
    if (depth > 16) {
        put_str(r, "any");
    } else if (!strcmp(type, "array")) {
        if (json_object_get(s, "items"))
            put_item_type(r, json_object_get(s, "items"), depth);
        else
            put_str(r, "any[]");
        put_str(r, null ? " | null" : "");
    } else if (json_array_size(list)) {
        json_array_foreach(list, i, one) {
            put_str(r, i ? " | " : "");
            put_str(r, json_string_value(one) ? json_string_value(one) : "any");
        }
    } else if (options) {
        bool objects = false;
        json_array_foreach(options, i, one)
            objects |= !strcmp(json_str(one, "type"), "object");
        if (objects && json_array_size(options) > 1)
            put_str(r, "any");
        else
            json_array_foreach(options, i, one) {
                put_str(r, i ? " | " : "");
                put_type(r, one, depth + 1);
            }
    } else if (!strcmp(type, "string")) {
        json_t *values = json_object_get(s, "enum");
        json_array_foreach(values, i, one) {
            put_str(r, i ? "\" | \"" : "\"");
            put_str(r, json_string_value(one) ? json_string_value(one) : "");
        }
        put_str(r, json_array_size(values) ? "\"" : null ? "string | null" : "string");
    } else if (simple_type(type)) {
        put_str(r, simple_type(type));
    } else if (!strcmp(type, "object") && json_object_size(json_object_get(s, "properties"))) {
        put_object_type(r, s, depth);
    } else {
        put_str(r, !strcmp(type, "object") ? "object" : "any");
    }
}

static void put_parameter(struct render *r, const char *name, const json_t *s, bool required)
{
    json_t *usual = json_object_get(s, "default");
    if (*json_str(s, "description"))
        put_format(r, "// %s\n", json_str(s, "description"));
    put_format(r, "%s%s", name, required ? ": " : "?: ");
    put_type(r, s, 0);
    if (usual) {
        put_str(r, json_object_get(s, "oneOf") ? "// default: " : ", // default: ");
        if ((json_object_get(s, "enum") || json_object_get(s, "oneOf")) && json_is_string(usual))
            put_str(r, json_string_value(usual));
        else
            put_json(r, usual, 0);
    }
    put_str(r, ",\n");
}

void put_namespace(struct render *r)
{
    const json_t *one;
    size_t i;
    put_str(r, "# Tools\n\n## functions\n\nnamespace functions {\n\n");
    json_array_foreach(r->style->tools, i, one) {
        json_t *f = json_object_get(one, "function"), *p = json_object_get(f, "parameters"), *v;
        json_t *all = json_object_get(p, "properties");
        const char *name;
        put_format(r, "// %s\ntype %s%s", json_str(f, "description"), json_str(f, "name"),
                   json_object_size(all) ? " = (_: {\n" : " = () => any;\n\n");
        json_object_foreach(all, name, v) {
            put_parameter(r, name, v, is_required(json_object_get(p, "required"), name));
        }
        put_str(r, json_object_size(all) ? "}) => any;\n\n" : "");
    }
    put_str(r, "} // namespace functions");
}

/* ---- what a call looks like ------------------------------------------------------------------ */

bool chat_call_tokens(const struct chat *c, int32_t *open, int32_t *close)
{
    *open = c->mark[MARK_TOOL_CALL];
    *close = c->mark[MARK_TOOL_CALL_END];
    return c->tools == TOOLS_GEMMA4;
}

bool chat_call_form(const struct chat *c, struct chat_call_form *out)
{
    static const struct chat_call_form forms[] = {
        [TOOLS_TAGS] = {"<tool_call>\n{\"name\": \"", "\", \"arguments\": ", "}\n</tool_call>",
                        "\n"},
        [TOOLS_LLAMA] = {"{\"name\": \"", "\", \"parameters\": ", "}", NULL},
        [TOOLS_GEMMA] = {"{\"name\": \"", "\", \"parameters\": ", "}", NULL},
        [TOOLS_GEMMA4] = {"<|tool_call>call:", "", "<tool_call|>", ""},
        [TOOLS_HARMONY] = {" to=functions.", "<|channel|>commentary json<|message|>", "", NULL},
    };
    if (c->tools == TOOLS_NONE)
        return false;
    *out = forms[c->tools];
    return true;
}

/* ---- calls in replies ------------------------------------------------------------------------ */

void call_reader_init(struct call_reader *x, const struct chat *c)
{
    *x = (struct call_reader){.chat = c};
}

static void add_call(struct call_reader *x, const char *name, const char *arguments, size_t n)
{
    struct tool_call *c = APPEND(x->call, x->n);
    c->name = xstrdup(name);
    c->arguments = xasprintf("%.*s", (int)n, arguments);
}

/* Adds the call that a JSON text describes. False: it describes none. */
static bool read_call(struct call_reader *x, const char *p, size_t n)
{
    FREED(json_decrefp) json_t *o = x->chat->tools == TOOLS_GEMMA4 ? gemma4_call(p, n)
                                                                   : json_parse(p, n, 0, NULL);
    const json_t *f = json_object_get(o, "function");
    const json_t *call = json_is_object(f) ? f : o;
    const char *name = json_string_value(json_object_get(call, "name"));
    json_t *v = json_object_get(call, "arguments");
    v = v ? v : json_object_get(call, "parameters");
    if (!name || !*name || (v && !json_is_object(v) && !json_is_string(v)))
        return false;
    FREED(free_at) char *text = !v                  ? xstrdup("{}")
                                : json_is_string(v) ? xstrdup(json_string_value(v))
                                                    : json_written(v, 0);
    add_call(x, name, text, strlen(text));
    return true;
}

static void cut(struct buf *b, size_t n)
{
    b->n -= n;
    memmove(b->p, b->p + n, b->n + 1);
}

static void read_tags(struct call_reader *x, struct buf *out)
{
    for (;;) {
        const char *open = open_tag(x->chat), *close = close_tag(x->chat);
        const char *tag = x->inside ? close : open;
        char *at = x->held.n ? memmem(x->held.p, x->held.n, tag, strlen(tag)) : NULL;
        size_t n = at ? (size_t)(at - x->held.p) : 0;
        if (!at) {
            n = x->held.n - partial_tag(&x->held, open);
            if (!x->inside && n) {
                buf_add(out, x->held.p, n);
                cut(&x->held, n);
            }
            return;
        }
        if (!x->inside)
            buf_add(out, x->held.p, n);
        else if (!read_call(x, x->held.p, n)) {
            buf_str(out, open);
            buf_add(out, x->held.p, n + strlen(close));
        }
        x->inside = !x->inside;
        cut(&x->held, n + strlen(tag));
    }
}

/* Where the object of a call begins behind white space and, in gemma's replies, the beginning of a
 * block of JSON. NULL: s[0, n) cannot become one; s + n: not yet known. */
static const char *object_at(const struct chat *c, const char *s, size_t n)
{
    static const char fence[] = "```json";
    const char *end = s + n;
    while (s < end && strchr("\n\r\t ", *s))
        s++;
    if (c->tools == TOOLS_GEMMA && s < end && *s == '`') {
        size_t have = (size_t)(end - s), width = sizeof fence - 1;
        if (memcmp(s, fence, have < width ? have : width) != 0)
            return NULL;
        for (s += have < width ? have : width; s < end && strchr("\n\r\t ", *s);)
            s++;
    }
    return s == end || *s == '{' ? s : NULL;
}

/* The object of a whole reply, without the end of its block. */
static bool read_bare_call(struct call_reader *x)
{
    const char *p = object_at(x->chat, x->held.p, x->held.n), *end = x->held.p + x->held.n;
    while (p && end > p && strchr("\n\r\t `", end[-1]))
        end--;
    return p && read_call(x, p, (size_t)(end - p));
}

/* Text between calls that is white space alone is not shown. */
static void drop_white(struct call_reader *x, struct buf *out, size_t from)
{
    size_t n = from;
    while (n < out->n && strchr("\n\r\t ", out->p[n]))
        n++;
    if (n == out->n && (x->n || x->inside))
        out->n = from;
}

void call_reader_push(struct call_reader *x, const struct chat_reader *r, enum channel channel,
                      const char *text, size_t n, struct buf *out)
{
    size_t from = out->n;
    if (channel == CHAN_ANALYSIS)
        return;
    switch (x->chat->tools) {
    case TOOLS_HARMONY:
        if (channel == CHAN_FINAL)
            buf_add(out, text, n);
        if (channel != CHAN_COMMENTARY || !r->to[0])
            return;
        buf_add(&x->held, text, n);
        memcpy(x->to, r->to, sizeof x->to);
        return;
    case TOOLS_LLAMA:
    case TOOLS_GEMMA:
        if (x->plain) {
            buf_add(out, text, n);
            return;
        }
        buf_add(&x->held, text, n);
        if (!x->held.n || object_at(x->chat, x->held.p, x->held.n))
            return; /* perhaps a call: its end says so */
        x->plain = true;
        buf_add(out, x->held.p, x->held.n);
        buf_clear(&x->held);
        return;
    case TOOLS_TAGS:
    case TOOLS_GEMMA4:
        buf_add(&x->held, text, n);
        read_tags(x, out);
        drop_white(x, out, from);
        return;
    case TOOLS_NONE: buf_add(out, text, n); return;
    }
}

void call_reader_end(struct call_reader *x, struct buf *out)
{
    size_t from = out->n;
    if (x->chat->tools == TOOLS_HARMONY && x->to[0])
        add_call(x, x->to, buf_text(&x->held), x->held.n);
    else if (x->held.n && bare_calls(x->chat) ? read_bare_call(x)
             : x->inside && x->held.n && read_call(x, x->held.p, x->held.n))
        ;
    else if (x->held.n || x->inside) {
        buf_str(out, x->inside ? open_tag(x->chat) : "");
        buf_add(out, x->held.p, x->held.n);
    }
    x->inside = false;
    buf_free(&x->held);
    drop_white(x, out, from);
}

void call_reader_free(struct call_reader *x)
{
    for (int i = 0; i < x->n; i++)
        FREE(x->call[i].name, x->call[i].arguments);
    free(x->call);
    buf_free(&x->held);
    *x = (struct call_reader){0};
}
