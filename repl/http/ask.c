/* ask.c - see ask.h. Names, defaults and messages of errors are those of vLLM 0.26 where it has
 * them. */
#include "repl/http/ask_parts.h"

#include <math.h>

#include "kernels/json_read.h"

/* ---- fields ---------------------------------------------------------------------------------- */

static bool get_bool(const json_t *o, const char *name, bool *out, struct refusal *r)
{
    json_t *v = get(o, name);
    if (v && !json_is_boolean(v))
        return refuse(r, 400, name, "%s should be true or false", name);
    if (v)
        *out = json_is_true(v);
    return true;
}

static bool get_int(const json_t *o, const char *name, int64_t lo, int64_t hi, int *out,
                    struct refusal *r)
{
    json_t *v = get(o, name);
    double real = json_is_real(v) ? json_real_value(v) : 0;
    int64_t n = json_is_real(v) ? (fabs(real) < 1e15 ? (int64_t)real : hi + 1)
                                : json_integer_value(v);
    if (!v)
        return true;
    if (!json_is_number(v) || (json_is_real(v) && real != floor(real)))
        return refuse(r, 400, name, "%s should be an integer", name);
    if (n < lo || n > hi)
        return refuse(r, 400, name, "%s must be from %lld to %lld, got %lld", name, (long long)lo,
                      (long long)hi, (long long)n);
    *out = (int)n;
    return true;
}

static bool get_real(const json_t *o, const char *name, double lo, double hi, double *out,
                     struct refusal *r)
{
    json_t *v = get(o, name);
    if (!v)
        return true;
    if (!json_is_number(v))
        return refuse(r, 400, name, "%s should be a number", name);
    double x = json_number_value(v);
    if (!(x >= lo && x <= hi))
        return refuse(r, 400, name, "%s must be from %g to %g, got %g", name, lo, hi, x);
    *out = x;
    return true;
}

/* ---- prompts --------------------------------------------------------------------------------- */

json_t *ask_object(const char *body, size_t n, struct refusal *r)
{
    json_error_t why;
    json_t *o = json_parse(body, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
    if (!o) {
        bool large = json_error_code(&why) == json_error_out_of_memory;
        refuse(r, 400, NULL, "the body %s: line %d, column %d: %s",
               large ? "is too large" : "is no JSON", why.line, why.column, why.text);
    } else if (!json_is_object(o)) {
        refuse(r, 400, NULL, "the body should be a JSON object");
        json_decref(o);
        o = NULL;
    }
    return o;
}

bool ask_is_model(const char *name, const struct ask_of *of, struct refusal *r)
{
    return !strcmp(name, of->model) ||
           refuse(r, 404, "model", "The model `%.100s` does not exist; this server has `%.100s`.",
                  name, of->model);
}

bool ask_model(const json_t *o, const struct ask_of *of, struct refusal *r)
{
    json_t *v = get(o, "model");
    if (v && !json_is_string(v))
        return refuse(r, 400, "model", "model should be a string");
    return !v || ask_is_model(json_string_value(v), of, r);
}

/* A text cannot be encoded, or its encoding was stopped. */
static bool refuse_text(struct refusal *r, const char *param, const struct err *e)
{
    if (e->kind == ERR_NEGATIVE)
        return refuse(r, 503, NULL, "the server ends");
    return refuse(r, 400, param, "%s", e->msg);
}

bool ask_encode(const struct ask_of *of, const char *text, size_t n, bool bare, struct ids *out,
                struct refusal *r)
{
    struct err e;
    int bos = bare ? -1 : tok_bos(of->tok);
    if (bos >= 0)
        ids_add(out, bos);
    return tok_encode(of->tok, text, n, TOK_SPECIAL, out, &e) || refuse_text(r, "prompt", &e);
}

/* The text of a message's "content": a string, or a list of parts of type "text". */
static bool content_of(const json_t *m, int at, struct buf *out, struct refusal *r)
{
    json_t *v = get(m, "content"), *part;
    size_t i;
    char where[64];
    snprintf(where, sizeof where, "messages.%d.content", at);
    buf_str(out, "");
    if (json_is_string(v) || !v) {
        buf_add(out, v ? json_string_value(v) : "", json_string_length(v));
        return v || !strcmp(json_string_value(get(m, "role")), "assistant") ||
               refuse(r, 400, where, "a message has no content");
    }
    if (!json_is_array(v))
        return refuse(r, 400, where, "content should be a string or a list of parts");
    json_array_foreach(v, i, part) {
        const char *type = json_string_value(json_object_get(part, "type"));
        bool refused = type && !strcmp(type, "refusal");
        json_t *text = json_object_get(part, refused ? "refusal" : "text");
        if (!type || (!refused && strcmp(type, "text") != 0) || !json_is_string(text))
            return refuse(r, 400, where, "only parts of type \"text\" are supported");
        if (i)
            buf_char(out, '\n');
        buf_add(out, json_string_value(text), json_string_length(text));
    }
    return true;
}

static bool read_message(const json_t *list, int at, struct message *out, struct refusal *r)
{
    const json_t *m = json_array_get(list, (size_t)at);
    static const struct { const char *name; enum role role; } roles[] = {
        {"system", ROLE_SYSTEM}, {"developer", ROLE_SYSTEM}, {"user", ROLE_USER},
        {"assistant", ROLE_ASSISTANT}, {"tool", ROLE_TOOL}};
    char where[64];
    struct buf text = {0};
    snprintf(where, sizeof where, "messages.%d", at);
    json_t *role = get(m, "role"), *calls = get(m, "tool_calls");
    if (!json_is_object(m) || !json_is_string(role))
        return refuse(r, 400, where, "a message should be an object with a role and a content");
    if (calls && (!json_is_array(calls) || strcmp(json_string_value(role), "assistant") != 0))
        return refuse(r, 400, where, "tool_calls should be a list, in a message of the assistant");
    size_t i = 0;
    while (i < LEN(roles) && strcmp(roles[i].name, json_string_value(role)) != 0)
        i++;
    if (i == LEN(roles))
        return refuse(r, 400, where, "role \"%.40s\" is not supported; expected system, "
                                     "user, assistant or tool", json_string_value(role));
    if (!content_of(m, at, &text, r)) {
        buf_free(&text);
        return false;
    }
    if (strlen(text.p) != text.n) {
        buf_free(&text);
        return refuse(r, 400, where, "the content holds a NUL character");
    }
    *out = (struct message){.role = roles[i].role, .text = text.p};
    if (out->role == ROLE_TOOL && !(out->name = called_name(list, at, m)))
        return refuse(r, 400, where, "a message of role tool should have the tool_call_id of a "
                                     "call before it");
    if (json_array_size(calls))
        out->calls = read_calls(calls, where, r);
    return !json_array_size(calls) || out->calls;
}

/* One variable of "chat_template_kwargs". */
static bool read_variable(const char *name, const json_t *v, struct chat_style *s,
                          struct refusal *r)
{
    char where[96];
    snprintf(where, sizeof where, "chat_template_kwargs.%.60s", name);
    if (!strcmp(name, "enable_thinking")) {
        s->think = json_is_true(v) ? THINK : THINK_NOT;
        return json_is_boolean(v) ||
               refuse(r, 400, where, "enable_thinking should be true or false");
    }
    if (strcmp(name, "reasoning_effort") != 0)
        return refuse(r, 400, where, "%s is not known; expected enable_thinking or "
                      "reasoning_effort", where);
    s->effort = json_string_value(v);
    return s->effort || refuse(r, 400, where, "reasoning_effort should be a text");
}

static bool read_style(const json_t *o, const struct ask_of *of, struct chat_style *s,
                       struct refusal *r)
{
    json_t *all = get(o, "chat_template_kwargs"), *effort = get(o, "reasoning_effort"), *v;
    const char *name;
    struct err e;
    *s = (struct chat_style){.tools = tools_of(o)};
    if (all && !json_is_object(all))
        return refuse(r, 400, "chat_template_kwargs", "chat_template_kwargs should be an object");
    json_object_foreach(all, name, v) {
        if (!json_is_null(v) && !read_variable(name, v, s, r))
            return false;
    }
    if (effort && !json_is_string(effort))
        return refuse(r, 400, "reasoning_effort", "reasoning_effort should be a text");
    if (effort && *json_string_value(effort))
        s->effort = json_string_value(effort);
    chat_style_effort(s, s->effort);
    return chat_has_style(of->chat, s, &e) ||
           refuse(r, 400, s->tools && !effort && !all ? "tools" : effort ? "reasoning_effort"
                  : "chat_template_kwargs", "%s", e.msg);
}

/* Joins the system messages at the beginning, such as instructions and a developer's message,
 * unless the chat format has a turn for each. Returns how many messages there are then. */
static size_t join_systems(const struct chat *chat, struct message *m, size_t n)
{
    size_t first = 0;
    while (first < n && m[first].role == ROLE_SYSTEM)
        first++;
    if (first < 2 || chat_later_system(chat))
        return n;
    struct buf all = {0};
    for (size_t i = 0; i < first; i++) {
        buf_printf(&all, "%s%s", i ? "\n\n" : "", m[i].text);
        free(m[i].text); /* only a reply has calls, too */
    }
    m[0].text = all.p;
    memmove(m + 1, m + first, (n - first) * sizeof *m);
    return n - first + 1;
}

bool ask_messages(const json_t *o, const struct ask_of *of, bool fit, struct ids *out, char **user,
                  char **system, struct refusal *r)
{
    const json_t *list = get(o, "messages");
    struct chat_style style;
    enum { MOST = 100000 };
    size_t n = json_array_size(list);
    struct err e;
    if (!json_is_array(list) || n == 0 || n > MOST)
        return refuse(r, 400, "messages", "messages should be a list of at least one message");
    if (!check_tools(o, r) || !read_style(o, of, &style, r))
        return false;
    FREED(free_at) struct message *m = xcalloc(n, sizeof *m);
    bool ok = true;
    size_t i = 0;
    for (; ok && i < n; i++)
        ok = read_message(list, (int)i, &m[i], r);
    if (ok)
        n = join_systems(of->chat, m, n);
    if (ok && fit && !chat_fits(of->chat, "the messages", m, (int)n, of->context, &e))
        ok = refuse(r, 400, "messages", "%s", e.msg);
    if (ok && !chat_render_in(of->chat, &style, m, (int)n, out, &e))
        ok = refuse_text(r, "messages", &e);
    for (size_t k = n; ok && user && !*user && k-- > 0;)
        if (m[k].role == ROLE_USER)
            *user = xstrdup(m[k].text);
    if (ok && system && m[0].role == ROLE_SYSTEM)
        *system = xstrdup(m[0].text);
    for (size_t k = 0; k < n; k++) {
        free(m[k].text);
        json_decref((json_t *)(uintptr_t)m[k].calls);
    }
    return ok;
}

static bool read_ids(const json_t *list, const struct ask_of *of, struct ids *out,
                     struct refusal *r)
{
    json_t *v;
    size_t i;
    if (json_array_size(list) == 0)
        return refuse(r, 400, "prompt", "a prompt has no tokens");
    json_array_foreach(list, i, v) {
        if (!json_is_integer(v))
            return refuse(r, 400, "prompt", "a prompt of token ids should hold integers only");
        if (json_integer_value(v) < 0 || json_integer_value(v) >= of->vocab)
            return refuse(r, 400, "prompt", "Token id %lld is out of vocabulary",
                          (long long)json_integer_value(v));
        ids_add(out, (int32_t)json_integer_value(v));
    }
    return true;
}

static bool add_prompt(struct ask *a, const struct ask_of *of, const json_t *v, bool bare,
                       struct refusal *r)
{
    int i = a->n_prompt++;
    if (json_is_array(v))
        return read_ids(v, of, &a->prompt[i], r);
    if (!json_is_string(v))
        return refuse(r, 400, "prompt", "a prompt should be a text or a list of token ids");
    if (strlen(json_string_value(v)) != json_string_length(v))
        return refuse(r, 400, "prompt", "a prompt holds a NUL character");
    size_t most = tok_most_bytes(of->tok, of->context, TOK_SPECIAL);
    if (json_string_length(v) > most)
        return refuse(r, 400, "prompt", "the prompt has %zu bytes; the context of %d tokens holds "
                                        "at most %zu", json_string_length(v), of->context, most);
    a->text[i] = xstrdup(json_string_value(v));
    return ask_encode(of, json_string_value(v), json_string_length(v), bare, &a->prompt[i], r) &&
           (a->prompt[i].n > 0 || refuse(r, 400, "prompt", "a prompt has no tokens"));
}

/* A text, texts, ids, or lists of ids. */
static bool read_prompts(struct ask *a, const struct ask_of *of, const json_t *o, struct refusal *r)
{
    json_t *v = get(o, "prompt");
    bool special = true;
    if (!v)
        return refuse(r, 400, "prompt", "prompt: Field required");
    if (!get_bool(o, "add_special_tokens", &special, r))
        return false;
    bool many = json_is_array(v) && !json_is_integer(json_array_get(v, 0));
    size_t n = many ? json_array_size(v) : 1;
    if (n == 0)
        return refuse(r, 400, "prompt", "You must pass at least one prompt");
    if (n > MOST_CHOICES)
        return refuse(r, 400, "prompt", "more than %d prompts", MOST_CHOICES);
    a->prompt = xcalloc(n, sizeof *a->prompt);
    a->text = xcalloc(n, sizeof *a->text);
    for (size_t i = 0; i < n; i++)
        if (!add_prompt(a, of, many ? json_array_get(v, i) : v, !special, r))
            return false;
    return true;
}

static bool read_chat(struct ask *a, const struct ask_of *of, const json_t *o, struct refusal *r)
{
    if (!get(o, "messages"))
        return refuse(r, 400, "messages", "messages: Field required");
    a->prompt = xcalloc(1, sizeof *a->prompt);
    a->text = xcalloc(1, sizeof *a->text);
    a->n_prompt = 1;
    return ask_messages(o, of, true, &a->prompt[0], &a->text[0], &a->system, r);
}

/* ---- what is asked for ----------------------------------------------------------------------- */

/* {"ID": BIAS} in place of the default biases; the order is that of the ids. */
static bool read_bias(struct ask *a, const struct ask_of *of, const json_t *v, struct refusal *r)
{
    struct logit_bias *b = &a->set.logit_bias;
    const char *key;
    json_t *one;
    b->n = 0;
    if (json_array_size(v) == 0 && json_is_array(v))
        return true;
    if (!json_is_object(v) || json_object_size(v) > MOST_BIAS)
        return refuse(r, 400, "logit_bias", "logit_bias should be an object of at most %d token "
                                            "ids with a bias each", MOST_BIAS);
    json_object_foreach((json_t *)v, key, one) {
        char *end;
        long id = strtol(key, &end, 10);
        double by = json_number_value(one);
        if (!*key || *end || id < 0 || id >= of->vocab || key[0] == ' ' || key[0] == '+')
            return refuse(r, 400, "logit_bias", "logit_bias: \"%.40s\" is no token: the vocabulary "
                          "has %d tokens, 0 to %d", key, of->vocab, of->vocab - 1);
        if (!json_is_number(one) || !(by >= -100 && by <= 100))
            return refuse(r, 400, "logit_bias", "logit_bias: the bias of token %ld should be a "
                          "number from -100 to 100", id);
        for (int i = 0; i < b->n; i++)
            if (b->id[i] == id)
                return refuse(r, 400, "logit_bias", "logit_bias names token %ld twice", id);
        b->id[b->n] = (int32_t)id;
        b->by[b->n++] = (float)by + 0.f;
    }
    return true;
}

static bool read_penalties(struct ask *a, const struct ask_of *of, const json_t *o,
                           struct refusal *r)
{
    json_t *bias = get(o, "logit_bias"), *last = get(o, "repeat_last_n");
    struct settings *s = &a->set;
    bool ok = get_real(o, "presence_penalty", -2, 2, &s->presence_penalty, r) &&
           get_real(o, "frequency_penalty", -2, 2, &s->frequency_penalty, r) &&
           get_real(o, "repeat_penalty", 0.01, 100, &s->repetition_penalty, r) &&
           get_real(o, "repetition_penalty", 0.01, 100, &s->repetition_penalty, r) &&
           (!bias || read_bias(a, of, bias, r));
    struct penalties p;
    settings_penalties(s, &p);
    p.bias.n = 0;
    if (ok && last && json_number_value(last) != -1 && penalties_any(&p))
        return refuse(r, 400, "repeat_last_n", "repeat_last_n must be -1: penalties count the "
                      "whole reply, and repetition_penalty the prompt, too");
    return ok;
}

/* Ranges are those of the settings (engine/settings.h), so that the log can name them. */
static bool read_sampling(struct ask *a, const struct ask_of *of, const json_t *o,
                          struct refusal *r)
{
    const uint64_t seeds = (UINT64_C(1) << 53) - MOST_CHOICES; /* each reply adds its index */
    json_t *seed = get(o, "seed");
    if (!get_real(o, "temperature", 0, 100, &a->set.temperature, r) ||
        !get_real(o, "top_p", 1e-9, 1, &a->set.top_p, r) ||
        !get_real(o, "min_p", 0, 1, &a->set.min_p, r) ||
        !get_int(o, "top_k", -1, INT32_MAX, &a->set.top_k, r) ||
        !get_int(o, "n", 1, MOST_CHOICES, &a->n, r))
        return false;
    if (!read_penalties(a, of, o, r))
        return false;
    a->set.top_k = a->set.top_k < 0 || a->set.top_k >= of->vocab ? 0 : a->set.top_k;
    if (seed && !json_is_integer(seed))
        return refuse(r, 400, "seed", "seed should be an integer");
    a->seed_is = !seed ? SEED_NONE : json_integer_value(seed) == -1 ? SEED_ANY : SEED_GIVEN;
    a->seed = a->seed_is == SEED_GIVEN ? (uint64_t)json_integer_value(seed) % seeds : 0;
    return true;
}

/* Of the names for one limit the last counts. -1: as many tokens as there is room for. */
static bool read_lengths(struct ask *a, const json_t *o, struct refusal *r)
{
    static const char *const name[] = {"n_predict", "max_tokens", "max_completion_tokens"};
    a->most = a->chat ? -1 : 16; /* OpenAI's defaults */
    for (int i = 0; i < 3; i++) {
        if (!get_int(o, name[i], -1, INT32_MAX, &a->most, r))
            return false;
        if (a->chat && a->most == 0)
            return refuse(r, 400, name[i], "%s must be at least 1, or -1 for no limit", name[i]);
    }
    return get_bool(o, "ignore_eos", &a->run_on, r);
}

static bool add_stop(struct ask *a, const json_t *v, struct refusal *r)
{
    if (!json_is_string(v) || json_string_length(v) == 0)
        return refuse(r, 400, "stop", "stop should be a text or a list of texts, "
                                      "none of them empty");
    if (json_string_length(v) > STOP_BYTES || a->n_stop == MOST_STOPS)
        return refuse(r, 400, "stop", "stop: at most %d texts of %d bytes", MOST_STOPS, STOP_BYTES);
    buf_add(&a->stop[a->n_stop++], json_string_value(v), json_string_length(v));
    return true;
}

static bool read_stops(struct ask *a, const struct ask_of *of, const json_t *o, struct refusal *r)
{
    json_t *v = get(o, "stop"), *ids = get(o, "stop_token_ids"), *one;
    size_t i;
    if (v && !json_is_array(v) && !add_stop(a, v, r))
        return false;
    json_array_foreach(v, i, one) {
        if (!add_stop(a, one, r))
            return false;
    }
    if (ids && (!json_is_array(ids) || json_array_size(ids) > MOST_STOPS))
        return refuse(r, 400, "stop_token_ids", "stop_token_ids should be a list of at most %d ids",
                      MOST_STOPS);
    json_array_foreach(ids, i, one) {
        if (!json_is_integer(one) || json_integer_value(one) < 0 ||
            json_integer_value(one) >= of->vocab)
            return refuse(r, 400, "stop_token_ids",
                          "stop_token_ids should hold ids of the vocabulary");
        a->stop_id[a->n_stop_id++] = (int32_t)json_integer_value(one);
    }
    return get_bool(o, "include_stop_str_in_output", &a->keep_stop, r);
}

static bool read_stream(struct ask *a, const json_t *o, struct refusal *r)
{
    json_t *opt = get(o, "stream_options");
    if (!get_bool(o, "stream", &a->stream, r))
        return false;
    if (!opt)
        return true;
    if (!a->stream)
        return refuse(r, 400, "stream_options",
                      "Stream options can only be defined when `stream=True`.");
    if (!json_is_object(opt))
        return refuse(r, 400, "stream_options", "stream_options should be an object");
    if (!get_bool(opt, "include_usage", &a->usage, r) ||
        !get_bool(opt, "continuous_usage_stats", &a->usage_each, r))
        return false;
    a->usage_each &= a->usage;
    return true;
}

/* Chat: logprobs is a switch and top_logprobs a number; completions: logprobs is the number. */
static bool read_logprobs(struct ask *a, const json_t *o, struct refusal *r)
{
    bool on = false;
    a->top = a->prompt_top = -1;
    if (a->chat) {
        if (!get_bool(o, "logprobs", &on, r))
            return false;
        if (!on && json_number_value(get(o, "top_logprobs")) != 0)
            return refuse(r, 400, "top_logprobs",
                          "when using `top_logprobs`, `logprobs` must be set to true.");
        int top = 0;
        if (!get_int(o, "top_logprobs", 0, JOB_TOP, &top, r))
            return false;
        a->top = on ? top : -1;
    } else if (json_is_true(get(o, "logprobs"))) {
        return refuse(r, 400, "logprobs", "logprobs should be an integer: how many of the best "
                                          "tokens");
    } else if (!json_is_false(get(o, "logprobs")) &&
               !get_int(o, "logprobs", 0, JOB_TOP, &a->top, r)) {
        return false;
    } else if (!get_bool(o, "echo", &a->echo, r)) {
        return false;
    }
    if (!get_int(o, "prompt_logprobs", 0, JOB_TOP, &a->prompt_top, r))
        return false;
    if (a->echo && a->top >= 0)
        a->prompt_top = max_int(a->prompt_top, a->top);
    if (a->prompt_top >= 0 && a->stream && !a->echo)
        return refuse(r, 400, "prompt_logprobs",
                      "`prompt_logprobs` are not available when `stream=True`.");
    return get_bool(o, "return_token_ids", &a->ids, r) &&
           get_bool(o, "return_tokens_as_token_ids", &a->names_ids, r);
}

static bool check_room(const struct ask *a, const struct ask_of *of, struct refusal *r)
{
    if (a->n * a->n_prompt > MOST_CHOICES)
        return refuse(r, 400, "n", "more than %d replies to one request", MOST_CHOICES);
    if (a->most > of->context)
        return refuse(r, 400, "max_tokens",
                      "max_tokens=%d cannot be greater than max_model_len=%d. Please request fewer "
                      "output tokens.", a->most, of->context);
    for (int i = 0; i < a->n_prompt; i++) {
        int n = a->prompt[i].n, least = a->most < 0 ? 1 : a->most;
        if (n > of->context - least)
            return refuse(r, 400, "input_tokens", "This model's maximum context length is %d "
                          "tokens. However, you requested %d output tokens and your prompt "
                          "contains %d input tokens, for a total of %d tokens. Please reduce the "
                          "length of the input prompt or the number of requested output tokens.",
                          of->context, least, n, n + least);
    }
    return true;
}

/* ---- the whole request ----------------------------------------------------------------------- */

bool ask_read(struct ask *a, const struct ask_of *of, bool chat, const char *body, size_t n,
              struct refusal *r)
{
    *a = (struct ask){.chat = chat, .n = 1, .set = of->set};
    *r = (struct refusal){0};
    json_auto_t *o = ask_object(body, n, r);
    bool ok = o && ask_model(o, of, r) &&
              check_fields(o, chat ? CHAT : COMPLETION, r) &&
              read_sampling(a, of, o, r) && read_lengths(a, o, r) && read_stops(a, of, o, r) &&
              read_stream(a, o, r) && read_logprobs(a, o, r) && read_format(a, o, r) &&
              (!chat || (check_tools(o, r) && narrow_tools(o, r) && read_choice(a, of, o, r))) &&
              (chat ? read_chat : read_prompts)(a, of, o, r) && check_room(a, of, r);
    if (!ok)
        ask_free(a);
    return ok;
}

void ask_free(struct ask *a)
{
    for (int i = 0; i < a->n_prompt; i++) {
        ids_free(&a->prompt[i]);
        free(a->text[i]);
    }
    FREE(a->prompt, a->text, a->system, a->format);
    for (int i = 0; i < a->n_stop; i++)
        buf_free(&a->stop[i]);
    *a = (struct ask){0};
}
