/* records.c - see records.h. Replies are read by answer.h, so a field that the client understands
 * in a server's answer is understood in a file, too. */
#include "engine/remote/records.h"

#include <jansson.h>
#include <math.h>

#include "kernels/json_read.h"

static json_t *at(const json_t *o, const char *key)
{
    return json_object_get(o, key); /* NULL where o is no object */
}

/* The first of the keys that is there and not null. */
static json_t *first_of(const json_t *o, const char *const *keys)
{
    for (; *keys; keys++) {
        json_t *v = at(o, *keys);
        if (v && !json_is_null(v))
            return v;
    }
    return NULL;
}

static bool some(const json_t *v)
{
    return v && !json_is_null(v);
}

void record_free(struct record *record)
{
    past_free(record->past, record->n_past);
    FREE(record->name, record->system, record->text, record->answer, record->thought,
         record->token, record->error);
    ids_free(&record->prompt);
    ids_free(&record->accepted);
    ids_free(&record->drafted);
    buf_free(&record->settings);
    *record = (struct record){0};
}

/* ---- the request ----------------------------------------------------------------------------- */

static bool take_ids(const json_t *v, struct ids *out, struct err *e)
{
    size_t i;
    json_t *id;
    if (json_array_size(v) > (size_t)ANSWER_TOKENS * 16)
        return err_set(e, ERR_USAGE, "a prompt of %zu ids; expected at most %d", json_array_size(v),
                       ANSWER_TOKENS * 16);
    json_array_foreach(v, i, id) {
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) > INT32_MAX) {
            out->n = 0;
            return err_set(e, ERR_USAGE, "item %zu of the prompt's ids is no token id", i + 1);
        }
        ids_add(out, (int32_t)json_integer_value(id));
    }
    return true;
}

/* The text of a message: a string, or a list of parts. */
static void add_content(struct record *record, const json_t *content, struct buf *out)
{
    size_t i;
    json_t *part;
    buf_str(out, "");
    if (json_is_string(content))
        buf_add(out, json_string_value(content), json_string_length(content));
    json_array_foreach(content, i, part) {
        const json_t *text = json_is_string(part) ? part : at(part, "text");
        if (json_is_string(text))
            buf_add(out, json_string_value(text), json_string_length(text));
        else
            record->left_out++;
    }
}

/* Messages become a system prompt, exchanges and a question. */
struct record_exchange {
    struct buf user, reply;
    bool asked, answered;
};

static void end_exchange(struct record *record, struct record_exchange *t)
{
    past_add(&record->past, &record->n_past, record->n_past + 1, buf_text(&t->user),
             buf_text(&t->reply));
    buf_clear(&t->user);
    buf_clear(&t->reply);
    t->asked = t->answered = false;
}

static void join_text(struct record *record, struct buf *to, bool *there, const struct buf *text)
{
    if (*there)
        buf_str(to, "\n");
    record->joined += *there;
    buf_add(to, text->p, text->n);
    *there = true;
}

static bool take_messages(struct record *record, const json_t *all, struct err *e)
{
    struct record_exchange t = {0};
    size_t i;
    json_t *m;
    bool ok = json_array_size(all) > 0 && json_array_size(all) <= RECORD_MESSAGES;
    if (!ok)
        return err_set(e, ERR_USAGE, "%zu messages; expected 1 to %d", json_array_size(all),
                       RECORD_MESSAGES);
    json_array_foreach(all, i, m) {
        const char *role = json_string_value(at(m, "role"));
        FREED(buf_free) struct buf text = {0};
        ok = ok && (role || err_set(e, ERR_USAGE, "message %zu has no role", i + 1));
        add_content(record, at(m, "content"), &text);
        if (!ok)
            ;
        else if (i == 0 && (!strcmp(role, "system") || !strcmp(role, "developer")))
            record->system = xstrdup(text.p);
        else if (strcmp(role, "assistant") == 0) {
            join_text(record, &t.reply, &t.answered, &text);
        } else {
            if (t.answered)
                end_exchange(record, &t);
            join_text(record, &t.user, &t.asked, &text);
        }
    }
    if (t.answered) /* the reply goes on with the assistant's last message */
        end_exchange(record, &t);
    record->text = xstrdup(buf_text(&t.user));
    buf_free(&t.user);
    buf_free(&t.reply);
    return ok;
}

/* A text, a list of ids, or a list of one of either. */
static bool take_prompt(struct record *record, const json_t *v, struct err *e)
{
    const json_t *one = json_array_get(v, 0);
    if (json_is_array(v) && json_array_size(v) == 1 && !json_is_integer(one))
        return take_prompt(record, one, e);
    if (json_is_array(v) && json_array_size(v) > 1 && !json_is_integer(one))
        return err_set(e, ERR_USAGE, "%zu prompts in one request; expected one a line",
                       json_array_size(v));
    record->raw = true;
    if (json_is_string(v)) {
        set_text(&record->text, json_string_value(v));
        return true;
    }
    if (json_is_array(v) && json_array_size(v) > 0)
        return take_ids(v, &record->prompt, e);
    return err_set(e, ERR_USAGE, "the prompt is neither a text nor a list of ids");
}

static void add_setting(struct record *record, const char *name, const json_t *v)
{
    struct settings try;
    char value[64];
    if (json_is_integer(v))
        snprintf(value, sizeof value, "%lld", (long long)json_integer_value(v));
    else if (json_is_real(v))
        snprintf(value, sizeof value, "%.9g", json_real_value(v));
    else
        return;
    if (strcmp(name, "top_k") == 0 && json_is_integer(v) && json_integer_value(v) <= 0)
        snprintf(value, sizeof value, "0"); /* all, in some servers -1 */
    settings_init(&try);
    /* settings that this program does not have are dropped */
    if (settings_set(&try, name, value, NULL))
        buf_printf(&record->settings, "%s=%s\n", name, value);
}

static void take_sampling(struct record *record, const json_t *o)
{
    static const char *const same[] = {"temperature", "top_p", "top_k", "min_p",
                                       "presence_penalty", "frequency_penalty",
                                       "repetition_penalty"};
    static const char *const most[] = {"max_completion_tokens", "max_tokens", "max_new_tokens",
                                       "n_predict", NULL};
    static const char *const seed[] = {"seed", "sampling_seed", NULL};
    for (size_t i = 0; i < LEN(same); i++)
        add_setting(record, same[i], at(o, same[i]));
    add_setting(record, "max_tokens", first_of(o, most));
    add_setting(record, "seed", first_of(o, seed));
}

static bool take_request(struct record *record, const json_t *o, struct err *e)
{
    static const char *const prompt[] = {"prompt", "text", NULL};
    static const char *const ids[] = {"input_ids", "prompt_token_ids", NULL};
    const json_t *messages = at(o, "messages"), *p = first_of(o, prompt), *known = first_of(o, ids);
    const json_t *sampling = at(o, "sampling_params"), *model = at(o, "model");
    bool ok = true;
    if (json_is_array(messages))
        ok = take_messages(record, messages, e);
    else if (some(p))
        ok = take_prompt(record, p, e);
    else if (!json_is_array(known))
        return err_set(e, ERR_USAGE, "the request has neither messages nor a prompt");
    if (ok && json_is_array(known) && !record->prompt.n) {
        record->raw |= !json_is_array(messages);
        ok = take_ids(known, &record->prompt, e);
    }
    if (ok && !record->text)
        record->text = xstrdup("");
    take_sampling(record, json_is_object(sampling) ? sampling : o);
    if (json_is_string(model))
        snprintf(record->model, sizeof record->model, "%s", json_string_value(model));
    record->request = ok;
    return ok;
}

/* ---- the reply ------------------------------------------------------------------------------- */

static char *text_of(const struct buf *b)
{
    return b->n ? xasprintf("%.*s", (int)b->n, b->p) : xstrdup("");
}

static enum stop_reason reason_of(const struct answer *answer)
{
    return answer->finish == FINISH_LENGTH  ? STOP_MAX
           : answer->finish == FINISH_ABORT ? STOP_FAULT
           : answer->finish == FINISH_NONE  ? STOP_FAULT
                                            : STOP_END;
}

/* The tokens, if the record has all their ids: with their log probabilities, or separately. */
static void take_tokens(struct record *record, const struct answer *answer)
{
    int n = answer->n_token ? answer->n_token : answer->reply.n;
    bool all = n > 0 && (!answer->n_token || !answer->reply.n || answer->reply.n == n);
    record->token = xcalloc((size_t)n + 1, sizeof *record->token);
    for (int i = 0; all && i < n; i++) {
        record->token[i] = answer->n_token ? answer->token[i]
                                           : (struct answer_token){-1, -1, NAN, NAN};
        if (answer->reply.n)
            record->token[i].id = answer->reply.v[i];
        all = record->token[i].id >= 0;
    }
    int64_t missing = answer->count.generated - n;
    bool whole =
        answer->count.generated < 0 || missing == 0 ||
        (missing == 1 && answer->finish == FINISH_STOP);
    record->n_token = all && whole ? n : 0;
}

static void take_reply(struct record *record, const json_t *o)
{
    FREED(answer_free) struct answer answer;
    answer_take(&answer, o);
    const json_t *choice = json_array_get(at(o, "choices"), 0), *word = at(choice, "finish_reason");
    const json_t *print = at(o, "system_fingerprint"), *created = at(o, "created");
    record->answer = text_of(&answer.text);
    record->thought = text_of(&answer.thought);
    take_tokens(record, &answer);
    if (!record->prompt.n)
        ids_cat(&record->prompt, answer.prompt.v, answer.prompt.n);
    ids_cat(&record->accepted, answer.accepted.v, answer.accepted.n);
    ids_cat(&record->drafted, answer.drafted.v, answer.drafted.n);
    record->count = answer.count;
    record->reason = reason_of(&answer);
    record->choices = (int)json_array_size(at(o, "choices"));
    if (json_is_string(word))
        snprintf(record->finish, sizeof record->finish, "%s", json_string_value(word));
    if (answer.model[0])
        snprintf(record->model, sizeof record->model, "%s", answer.model);
    if (json_is_string(print))
        snprintf(record->server, sizeof record->server, "%s", json_string_value(print));
    if (json_is_number(created))
        record->created = json_number_value(created);
    if (answer.error[0])
        record->error = xstrdup(answer.error);
    record->reply = true;
}

/* vLLM's own outputs as choices of the API. */
static void take_outputs(struct record *record, const json_t *o)
{
    FREED(json_decrefp) json_t *as = json_object();
    json_object_set(as, "choices", at(o, "outputs"));
    if (some(at(o, "usage")))
        json_object_set(as, "usage", at(o, "usage"));
    if (some(at(o, "metrics")))
        json_object_set(as, "metrics", at(o, "metrics"));
    take_reply(record, as);
}

/* ---- the line -------------------------------------------------------------------------------- */

/* A body that is an object, or a text that holds one. The caller releases. */
static json_t *body_of(const json_t *v)
{
    if (json_is_string(v))
        return json_parse(json_string_value(v), json_string_length(v), 0, NULL);
    return json_incref((json_t *)v);
}

static bool is_reply(const json_t *o)
{
    static const char *const sign[] = {"choices", "meta_info", "output_ids", "content", "error",
                                       NULL};
    return first_of(o, sign) != NULL;
}

static bool is_request(const json_t *o)
{
    static const char *const sign[] = {"messages", "prompt", "input_ids", "prompt_token_ids", NULL};
    return first_of(o, sign) != NULL;
}

static void take_error(struct record *record, const json_t *v, const json_t *status)
{
    const json_t *text = json_is_string(v) ? v : at(v, "message");
    if (!some(v) && !(json_is_integer(status) && json_integer_value(status) >= 400))
        return;
    free(record->error);
    record->error = json_is_string(text) ? xasprintf("%.300s", json_string_value(text))
                    : json_is_integer(status)
                        ? xasprintf("status %lld", (long long)json_integer_value(status))
                        : xstrdup("the request failed");
    record->reply = true;
}

/* The two parts of the line, each an object or NULL; the caller releases both. */
static void find_parts(const json_t *o, json_t **request, json_t **reply)
{
    const json_t *rq = at(o, "request"), *rs = at(o, "response");
    if (some(at(rq, "body")))
        *request = body_of(at(rq, "body"));
    else if (some(rq))
        *request = body_of(rq);
    else if (json_is_object(at(o, "body")))
        *request = body_of(at(o, "body"));
    else if (is_request(o))
        *request = json_incref((json_t *)o);
    if (some(at(rs, "body")))
        *reply = body_of(at(rs, "body"));
    else if (some(rs) && !some(at(rs, "status_code")))
        *reply = body_of(rs);
    else if (!some(rs) && some(rq) && some(at(o, "body")))
        *reply = body_of(at(o, "body"));
    else if (!some(rs) && (is_reply(o) || some(at(o, "outputs"))))
        *reply = json_incref((json_t *)o);
}

static void take_names(struct record *record, const json_t *o)
{
    static const char *const name[] = {"custom_id", "rid", "request_id", NULL};
    const json_t *id = first_of(o, name), *server = at(o, "server"),
                 *created = at(o, "created_time");
    if (json_is_string(id) && !record->name)
        record->name = xasprintf("%.200s", json_string_value(id));
    if (json_is_string(server))
        snprintf(record->server, sizeof record->server, "%s", json_string_value(server));
    if (json_is_number(created))
        record->created = json_number_value(created);
}

static bool take_line(struct record *record, const json_t *o, struct err *e)
{
    json_t *request = NULL, *reply = NULL;
    find_parts(o, &request, &reply);
    const json_t *body = at(o, "body"), *sent = at(at(o, "response"), "body");
    bool ok = reply || !(json_is_string(body) || json_is_string(sent)) ||
              err_set(e, ERR_USAGE, "the reply's body is no JSON object; streams are not read");
    if (ok && json_is_object(request))
        ok = take_request(record, request, e);
    if (ok && json_is_object(reply) && json_object_size(reply))
        (json_is_array(at(reply, "outputs")) ? take_outputs : take_reply)(record, reply);
    if (ok)
        take_error(record, at(o, "error"), at(at(o, "response"), "status_code"));
    take_names(record, o);
    json_decref(request);
    json_decref(reply);
    return ok &&
           (record->request || record->reply ||
            err_set(e, ERR_USAGE,
                    "neither a request (messages, prompt, body) nor a reply (choices, response)"));
}

bool record_read(struct record *record, const char *line, size_t n, struct err *e)
{
    json_error_t why;
    json_t *o = json_parse(line, n, 0, &why);
    *record = (struct record){.count = NO_COUNTS, .reason = STOP_FAULT};
    bool ok = o ? json_is_object(o) || err_set(e, ERR_USAGE, "no JSON object")
                : err_set(e, ERR_USAGE, "%s", why.text);
    ok = ok && take_line(record, o, e);
    json_decref(o);
    if (!ok) {
        e->kind = ERR_USAGE;
        record_free(record);
    }
    return ok;
}

void record_join(struct record *to, struct record *from)
{
    to->request = from->request;
    to->system = from->system;
    to->past = from->past;
    to->n_past = from->n_past;
    to->text = from->text;
    to->joined = from->joined;
    to->left_out = from->left_out;
    to->raw = from->raw;
    to->settings = from->settings;
    if (!to->prompt.n) {
        to->prompt = from->prompt;
        from->prompt = (struct ids){0};
    }
    if (!to->model[0])
        memcpy(to->model, from->model, sizeof to->model);
    from->system = from->text = NULL;
    from->past = NULL;
    from->n_past = 0;
    from->settings = (struct buf){0};
    record_free(from);
}
