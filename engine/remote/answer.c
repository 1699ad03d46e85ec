/* answer.c - the JSON of servers: see answer.h. Field names are those of vLLM 0.26, SGLang of late
 * 2026 (old and new names), llama-server b11434 and ollama's API documentation. */
#include "engine/remote/answer.h"

#include <math.h>

#include "kernels/json_read.h"
#include "kernels/utf8.h"

/* ---- fields ---------------------------------------------------------------------------------- */

static json_t *at(const json_t *o, const char *key)
{
    return json_object_get(o, key); /* NULL where o is no object */
}

/* A field of a path such as "usage.prompt_tokens_details.cached_tokens". */
static json_t *field(const json_t *o, const char *path)
{
    char key[64];
    json_t *v = (json_t *)o;
    while (v && *path) {
        size_t n = strcspn(path, ".");
        if (n >= sizeof key)
            return NULL;
        memcpy(key, path, n);
        key[n] = '\0';
        v = at(v, key);
        path += n + (path[n] == '.');
    }
    return v;
}

/* A count beyond the range of int, or a time of more than thirty years, is treated as not
 * reported. */
static void get_count(const json_t *o, const char *path, int64_t *out)
{
    json_t *v = field(o, path);
    if (json_is_integer(v) && json_integer_value(v) >= 0 && json_integer_value(v) <= INT32_MAX)
        *out = json_integer_value(v);
}

static void get_ms(const json_t *o, const char *path, double unit, double *out)
{
    json_t *v = field(o, path);
    double ms = json_is_number(v) ? json_number_value(v) * unit : -1;
    if (ms >= 0 && ms <= 1e12)
        *out = ms;
}

static void get_text(const json_t *o, const char *path, struct buf *out)
{
    json_t *v = field(o, path);
    if (json_is_string(v))
        buf_add(out, json_string_value(v), json_string_length(v));
}

static bool get_id(const json_t *v, int32_t *out)
{
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > INT32_MAX)
        return false;
    *out = (int32_t)json_integer_value(v);
    return true;
}

/* An array of ids; left empty unless every item is one. */
static void read_ids(const json_t *v, struct ids *out)
{
    json_t *item;
    size_t i;
    int32_t id;
    if (!json_is_array(v) || json_array_size(v) > ANSWER_TOKENS)
        return;
    json_array_foreach(v, i, item) {
        if (!get_id(item, &id)) {
            out->n = 0;
            return;
        }
        ids_add(out, id);
    }
}

static void get_ids(const json_t *o, const char *path, struct ids *out)
{
    read_ids(field(o, path), out);
}

static float get_logp(const json_t *v)
{
    return json_is_number(v) ? (float)json_number_value(v) : NAN;
}

/* ---- tokens ---------------------------------------------------------------------------------- */

static struct answer_token *add_token(struct answer *answer)
{
    if (answer->n_token == ANSWER_TOKENS)
        return NULL;
    struct answer_token *t = APPEND(answer->token, answer->n_token);
    *t = (struct answer_token){-1, -1, NAN, NAN};
    return t;
}

/* "token_id:324", which vLLM writes for return_tokens_as_token_ids. */
static int32_t id_in_text(const json_t *v)
{
    const char *s = json_is_string(v) ? json_string_value(v) : "";
    char *end;
    if (strncmp(s, "token_id:", 9) != 0)
        return -1;
    long id = strtol(s + 9, &end, 10);
    return end > s + 9 && !*end && id >= 0 && id <= INT32_MAX ? (int32_t)id : -1;
}

static int32_t id_of_entry(const json_t *entry)
{
    int32_t id;
    return get_id(at(entry, "id"), &id) ? id : id_in_text(at(entry, "token"));
}

static void offer_rival(struct answer_token *token, int32_t id, float logp)
{
    if (!isnan(logp) && !(logp <= token->rival_logp)) {
        token->rival = id;
        token->rival_logp = logp;
    }
}

/* The best tokens of one token's row as the server lists them: the token itself, then the others in
 * any order. Texts are the server's JSON. */
struct answer_row {
    struct candidate {
        int32_t id;
        float logp;
        const json_t *entry, *string; /* where its text is: an entry of the chat API, or a
                                         string; */
        const char *key;              /* or the key of an object */
        int order;
    } *v; /* (n) */
    int n;
};

static void row_add(struct answer_row *w, struct candidate candidate)
{
    candidate.order = w->n;
    *APPEND(w->v, w->n) = candidate;
}

/* Best first; those of one log probability in the server's order, those without one last. */
static int better(const void *x, const void *y)
{
    const struct candidate *a = x, *b = y;
    float la = isnan(a->logp) ? -INFINITY : a->logp, lb = isnan(b->logp) ? -INFINITY : b->logp;
    return la != lb ? (la < lb) - (la > lb) : (a->order > b->order) - (a->order < b->order);
}

static void put_string(struct answer *answer, const struct candidate *candidate, const json_t *text)
{
    bool is_text = json_is_string(text) && id_in_text(text) < 0;
    tops_add(&answer->tops, answer->n_token - 1, candidate->id, candidate->logp,
             is_text ? json_string_value(text) : NULL, is_text ? json_string_length(text) : 0);
}

/* The text of an entry of the chat API: its bytes if it has them, because a JSON string cannot hold
 * an incomplete character. */
static void put_entry(struct answer *answer, const struct candidate *candidate)
{
    const json_t *entry = candidate->entry;
    FREED(buf_free) struct buf text = {0};
    json_t *bytes = at(entry, "bytes"), *v;
    size_t i;
    bool whole = json_array_size(bytes) > 0 && json_array_size(bytes) <= 4096;
    json_array_foreach(bytes, i, v) {
        whole = whole && json_is_integer(v) && json_integer_value(v) >= 0 &&
                json_integer_value(v) <= 255;
        if (whole)
            buf_char(&text, (char)json_integer_value(v));
    }
    /* if the token's string is its id, its bytes may still be the token's text (aerie; vLLM's own
     * entry) */
    bool spelled = id_in_text(at(entry, "token")) >= 0 && text.n > 9 &&
                   !memcmp(text.p, "token_id:", 9);
    if (whole && !spelled)
        tops_add(&answer->tops, answer->n_token - 1, candidate->id, candidate->logp, text.p,
                 text.n);
    else
        put_string(answer, candidate, at(entry, "token"));
}

/* Keeps the row of the last token, and empties it: the token itself, then the best others. */
static void put_row(struct answer *answer, struct answer_row *w)
{
    if (w->n > 2)
        qsort(w->v + 1, (size_t)w->n - 1, sizeof *w->v, better);
    for (int i = 0; i < w->n && i < ANSWER_TOPS; i++) {
        const struct candidate *candidate = &w->v[i];
        if (candidate->entry)
            put_entry(answer, candidate);
        else if (candidate->key)
            tops_add(&answer->tops, answer->n_token - 1, candidate->id, candidate->logp,
                     candidate->key, strlen(candidate->key));
        else
            put_string(answer, candidate, candidate->string);
    }
    w->n = 0;
}

/* logprobs.content of the chat API, completion_probabilities of llama-server: entries with token,
 * logprob and top_logprobs, ids in some servers. */
static void get_entries(struct answer *answer, const json_t *entries)
{
    struct answer_row row = {0};
    size_t i, k;
    json_t *entry, *top;
    json_array_foreach(entries, i, entry) {
        struct answer_token *token = add_token(answer);
        if (!token)
            break;
        token->id = id_of_entry(entry);
        token->logp = get_logp(at(entry, "logprob"));
        row_add(&row, (struct candidate){.id = token->id, .logp = token->logp, .entry = entry});
        bool self = false; /* the list holds the token itself, once */
        json_array_foreach(at(entry, "top_logprobs"), k, top) {
            if (!self && json_equal(at(top, "token"), at(entry, "token")) &&
                id_of_entry(top) == token->id) {
                self = true;
                continue;
            }
            struct candidate candidate = {.id = id_of_entry(top),
                                          .logp = get_logp(at(top, "logprob")),
                                          .entry = top};
            offer_rival(token, candidate.id, candidate.logp);
            row_add(&row, candidate);
        }
        put_row(answer, &row);
    }
    free(row.v);
}

/* logprobs of the completions API: parallel arrays; top_logprobs maps texts to log
 * probabilities. */
static void get_columns(struct answer *answer, const json_t *logprobs)
{
    struct answer_row row = {0};
    size_t i;
    json_t *text, *v;
    const char *key;
    json_array_foreach(at(logprobs, "tokens"), i, text) {
        struct answer_token *token = add_token(answer);
        if (!token)
            break;
        token->id = id_in_text(text);
        token->logp = get_logp(json_array_get(at(logprobs, "token_logprobs"), i));
        row_add(&row, (struct candidate){.id = token->id, .logp = token->logp, .string = text});
        json_object_foreach(json_array_get(at(logprobs, "top_logprobs"), i), key, v) {
            if (json_is_string(text) && strcmp(key, json_string_value(text)) == 0)
                continue;
            offer_rival(token, -1, get_logp(v));
            row_add(&row, (struct candidate){.id = -1, .logp = get_logp(v), .key = key});
        }
        put_row(answer, &row);
    }
    free(row.v);
}

/* meta_info.output_token_logprobs of SGLang: [logprob, id, text]; the tops are lists of the
 * same. */
static void get_triples(struct answer *answer, const json_t *meta)
{
    struct answer_row row = {0};
    size_t i, k;
    json_t *entry, *top;
    json_array_foreach(at(meta, "output_token_logprobs"), i, entry) {
        struct answer_token *token = add_token(answer);
        if (!token)
            break;
        get_id(json_array_get(entry, 1), &token->id);
        token->logp = get_logp(json_array_get(entry, 0));
        row_add(&row,
                (struct candidate){.id = token->id, .logp = token->logp,
                                   .string = json_array_get(entry, 2)});
        json_array_foreach(json_array_get(at(meta, "output_top_logprobs"), i), k, top) {
            int32_t id = -1;
            get_id(json_array_get(top, 1), &id);
            if (id == token->id)
                continue;
            struct candidate candidate = {.id = id, .logp = get_logp(json_array_get(top, 0)),
                                          .string = json_array_get(top, 2)};
            offer_rival(token, id, candidate.logp);
            row_add(&row, candidate);
        }
        put_row(answer, &row);
    }
    free(row.v);
}

/* One token of the prompt; null instead of a log probability: it is not known. */
static bool add_prompt_token(struct answer *answer, int32_t id, const json_t *logp)
{
    if (answer->n_prompt_token == ANSWER_TOKENS)
        return false;
    *APPEND(answer->prompt_token, answer->n_prompt_token) =
        (struct answer_token){id, -1, get_logp(logp), NAN};
    return true;
}

static int32_t id_in_key(const char *key)
{
    char *end;
    long id = strtol(key, &end, 10);
    return *key >= '0' && *key <= '9' && !*end && id <= INT32_MAX ? (int32_t)id : -1;
}

/* prompt_logprobs of vLLM and aerie: null, then an object a token, {"ID": {"logprob": ..}, ..}. The
 * token itself is the first of them. */
static void get_prompt_objects(struct answer *answer, const json_t *list)
{
    size_t i;
    json_t *entry;
    if (!json_is_array(list) || answer->n_prompt_token)
        return;
    json_array_foreach(list, i, entry) {
        void *first = json_object_iter(entry); /* NULL where it is no object */
        int32_t id = first ? id_in_key(json_object_iter_key(first)) : -1;
        const json_t *logp = first ? at(json_object_iter_value(first), "logprob") : NULL;
        if (!add_prompt_token(answer, id, logp))
            break;
    }
}

/* meta_info.input_token_logprobs of SGLang: [logprob, id, text], with null for the first. */
static void get_prompt_triples(struct answer *answer, const json_t *meta)
{
    size_t i;
    json_t *entry;
    json_array_foreach(at(meta, "input_token_logprobs"), i, entry) {
        int32_t id = -1;
        get_id(json_array_get(entry, 1), &id);
        if (!add_prompt_token(answer, id, json_array_get(entry, 0)))
            break;
    }
}

/* Ids that came with log probabilities belong to the same tokens if their numbers are equal. */
static void join_ids(struct answer *answer, const json_t *o, const char *path)
{
    FREED(ids_free) struct ids ids = {0};
    get_ids(o, path, &ids);
    if (answer->n_token == 0)
        for (int i = 0; i < ids.n; i++) {
            struct answer_token *token = add_token(answer);
            if (token)
                token->id = ids.v[i];
        }
    else if (answer->n_token == ids.n)
        for (int i = 0; i < ids.n; i++)
            answer->token[i].id = ids.v[i];
}

/* Gives the tokens the ids that came with the log probabilities. */
static void name_tops(struct answer *answer)
{
    for (int i = 0; i < answer->tops.n; i++)
        if (i == 0 || answer->tops.at[i].k != answer->tops.at[i - 1].k)
            answer->tops.at[i].id = answer->token[answer->tops.at[i].k].id;
}

/* ---- parts of an answer ---------------------------------------------------------------------- */

static void get_error(struct answer *answer, const json_t *o)
{
    json_t *v = at(o, "error");
    const char *text = NULL;
    if (json_is_string(v))
        text = json_string_value(v);
    else if (json_is_object(v))
        text = json_string_value(at(v, "message"));
    else if (json_is_string(at(o, "object")) &&
             !strcmp(json_string_value(at(o, "object")), "error"))
        text = json_string_value(at(o, "message"));
    else if (json_is_string(at(o, "detail")))
        text = json_string_value(at(o, "detail"));
    if (json_is_object(v) && !text)
        text = "the server reports an error without a text";
    if (!text)
        return;
    snprintf(answer->error, sizeof answer->error, "%s", *text ? text
             : "the server reports an empty error");
    for (char *p = answer->error; *p; p++)
        if (*p == '\n' || *p == '\r')
            *p = ' ';
    json_t *code = json_is_object(v) ? at(v, "code") : at(o, "code");
    if (json_is_integer(code))
        answer->error_code = (int)json_integer_value(code);
}

static enum finish finish_of(struct answer *answer, const json_t *v)
{
    static const struct finish_name { const char *name; enum finish is; } known[] = {
        {"stop", FINISH_STOP}, {"eos", FINISH_STOP}, {"word", FINISH_STOP},
        {"tool_calls", FINISH_STOP},
        {"length", FINISH_LENGTH}, {"limit", FINISH_LENGTH}, {"abort", FINISH_ABORT},
    };
    if (json_is_object(v)) /* SGLang: {"type": "stop", "matched": 5} */
        v = at(v, "type");
    if (!json_is_string(v))
        return FINISH_NONE;
    snprintf(answer->finish_word, sizeof answer->finish_word, "%s", json_string_value(v));
    const struct finish_name *name = ROW_NAMED(known, json_string_value(v));
    return name ? name->is : *json_string_value(v) ? FINISH_OTHER : FINISH_NONE;
}

/* Calls of functions, and pieces of them, as text: a line "call NAME ARGUMENTS" each. */
static void get_calls(const json_t *said, struct buf *out)
{
    const json_t *list = at(said, "tool_calls"), *one;
    size_t i;
    json_array_foreach(list, i, one) {
        const json_t *f = at(one, "function"), *arguments = at(f, "arguments");
        const char *name = json_string_value(at(f, "name"));
        if (name && *name)
            buf_printf(out, "\ncall %s ", name);
        get_text(f, "arguments", out);
        FREED(free_at) char *text =
            json_is_object(arguments) ? json_written(arguments, 0) : NULL; /* ollama's */
        buf_str(out, text ? text : "");
    }
}

static void get_choice(struct answer *answer, const json_t *c)
{
    int64_t index = 0;
    get_count(c, "index", &index);
    answer->index = index < ANSWER_TOKENS ? (int)index : 0;
    for (int i = 0; i < 2; i++) {
        const json_t *said = at(c, i ? "message" : "delta");
        get_text(said, "content", &answer->text);
        get_calls(said, &answer->text);
        get_text(said, "reasoning_content", &answer->thought);
        if (!json_is_string(at(said, "reasoning_content")))
            get_text(said, "reasoning", &answer->thought);
    }
    get_text(c, "text", &answer->text);
    const json_t *logprobs = at(c, "logprobs");
    if (json_is_array(at(logprobs, "content")))
        get_entries(answer, at(logprobs, "content"));
    else
        get_columns(answer, logprobs);
    join_ids(answer, c, "token_ids");
    get_ids(c, "prompt_token_ids", &answer->prompt);
    get_prompt_objects(answer, at(c, "prompt_logprobs"));
    answer->finish = finish_of(answer, at(c, "finish_reason"));
}

/* The end of a reply: whether `done` says so, and why. */
static void get_end(struct answer *answer, const json_t *done, const json_t *why)
{
    if (!json_is_true(done))
        return;
    answer->end = true;
    answer->finish = finish_of(answer, why);
    if (answer->finish == FINISH_NONE)
        answer->finish = FINISH_STOP;
}

static void get_llama(struct answer *answer, const json_t *o)
{
    get_text(o, "content", &answer->text);
    get_entries(answer, at(o, "completion_probabilities"));
    join_ids(answer, o, "tokens");
    get_end(answer, at(o, "stop"), at(o, "stop_type"));
    get_count(o, "tokens_evaluated", &answer->count.prompt);
    get_count(o, "tokens_predicted", &answer->count.generated);
}

static void get_ollama(struct answer *answer, const json_t *o)
{
    get_text(o, "message.content", &answer->text);
    get_calls(at(o, "message"), &answer->text);
    get_text(o, "message.thinking", &answer->thought);
    get_end(answer, at(o, "done"), at(o, "done_reason"));
    get_count(o, "prompt_eval_count", &answer->count.prompt);
    get_count(o, "eval_count", &answer->count.generated);
    get_ms(o, "prompt_eval_duration", 1e-6, &answer->count.ms_prompt);
    get_ms(o, "eval_duration", 1e-6, &answer->count.ms_decode);
}

/* Acceptance of a request; the names of 2025, then those of 2026. */
static void get_drafts(struct answer *answer, const json_t *o)
{
    get_count(o, "spec_verify_ct", &answer->count.verifies);
    get_count(o, "spec_accept_token_num", &answer->count.accepted);
    get_count(o, "spec_num_correct_drafts", &answer->count.accepted);
    get_count(o, "spec_draft_token_num", &answer->count.drafted);
    get_count(o, "spec_num_proposed_drafts", &answer->count.drafted);
}

/* SGLang's addition to the chat API, "sglext". Ids of the reply are a list for each choice, and so
 * are the acceptance counts of several choices. */
static void get_sglext(struct answer *answer, const json_t *o)
{
    json_t *spec = at(o, "spec_tokens_details"), *ids = at(o, "output_ids"), *v;
    const char *key;
    get_drafts(answer, json_is_array(spec) ? json_array_get(spec, 0) : spec);
    get_ids(o, "input_ids", &answer->prompt);
    if (json_is_array(json_array_get(ids, 0)))
        read_ids(json_array_get(ids, 0), &answer->reply);
    else
        get_ids(o, "output_ids", &answer->reply);
    json_object_foreach(at(o, "cached_tokens_details"), key, v) { /* by where they were held */
        if (json_is_integer(v) && json_integer_value(v) >= 0 && json_integer_value(v) <= INT32_MAX)
            answer->count.cached = (answer->count.cached < 0 ? 0 : answer->count.cached) +
                                   json_integer_value(v);
    }
}

/* SGLang's /generate, and its additions to the chat API. A text of /generate is the whole reply so
 * far, unless the server streams increments: then it has fewer ids than tokens. */
static void get_sglang(struct answer *answer, const json_t *o)
{
    const json_t *meta = at(o, "meta_info");
    if (json_is_object(meta) && json_is_string(at(o, "text"))) {
        get_text(o, "text", &answer->text);
        answer->cumulative = true;
        answer->finish = finish_of(answer, at(meta, "finish_reason"));
        get_triples(answer, meta);
        get_prompt_triples(answer, meta);
        get_ids(o, "output_ids", &answer->reply);
    }
    get_sglext(answer, at(o, "sglext"));
    get_count(meta, "prompt_tokens", &answer->count.prompt);
    get_count(meta, "completion_tokens", &answer->count.generated);
    get_count(meta, "cached_tokens", &answer->count.cached);
    get_drafts(answer, meta);
    get_ms(meta, "queue_time", 1000, &answer->count.ms_queue);
    if (answer->cumulative && answer->reply.n && answer->reply.n < answer->count.generated) {
        answer->cumulative = false;
        answer->partial = true;
    }
    if (answer->cumulative)
        answer->n_output = answer->n_token;
    get_count(meta, "output_token_logprobs_length", &answer->n_output);
}

static void get_usage(struct answer *answer, const json_t *o)
{
    struct answer_counts *counts = &answer->count;
    get_count(o, "usage.prompt_tokens", &counts->prompt);
    get_count(o, "usage.completion_tokens", &counts->generated);
    get_count(o, "usage.prompt_tokens_details.cached_tokens", &counts->cached);
    get_ids(o, "metrics.speculative_decoding.per_step_accepted", &answer->accepted);
    get_ids(o, "metrics.speculative_decoding.per_step_drafted", &answer->drafted);
    get_count(o, "metrics.speculative_decoding.num_spec_steps", &counts->verifies);
    get_count(o, "metrics.speculative_decoding.num_draft_tokens", &counts->drafted);
    get_count(o, "metrics.speculative_decoding.num_accepted_draft_tokens", &counts->accepted);
    get_ms(o, "metrics.time_to_first_token_ms", 1, &counts->ms_first);
    get_ms(o, "metrics.queue_time_ms", 1, &counts->ms_queue);
    get_count(o, "timings.draft_n", &counts->drafted);
    get_count(o, "timings.draft_n_accepted", &counts->accepted);
    get_count(o, "timings.cache_n", &counts->cached);
    get_ms(o, "timings.prompt_ms", 1, &counts->ms_prompt);
    get_ms(o, "timings.predicted_ms", 1, &counts->ms_decode);
    get_count(o, "prompt_progress.processed", &answer->done);
    get_count(o, "prompt_progress.total", &answer->total);
}

static void get_all(struct answer *answer, const json_t *o)
{
    json_t *choices = at(o, "choices"), *model = at(o, "model");
    get_error(answer, o);
    if (json_is_string(model))
        snprintf(answer->model, sizeof answer->model, "%s", json_string_value(model));
    if (json_array_size(choices) > 0)
        get_choice(answer, json_array_get(choices, 0));
    else if (json_is_object(at(o, "message")))
        get_ollama(answer, o);
    else if (json_is_string(at(o, "content")))
        get_llama(answer, o);
    else
        join_ids(answer, o, "tokens"); /* of /tokenize */
    get_sglang(answer, o);
    get_usage(answer, o);
    if (answer->prompt.n == 0)
        get_ids(o, "prompt_token_ids", &answer->prompt);
    get_prompt_objects(answer, at(o, "prompt_logprobs")); /* of a chat */
    name_tops(answer);
}

/* ---- the text -------------------------------------------------------------------------------- */

/* Invalid UTF-8 becomes U+FFFD: Jansson refuses it, and a reply must not be lost for one byte. */
static void make_valid(const char *s, size_t n, struct buf *out)
{
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        i += utf8_decode(s + i, n - i, &cp);
        buf_utf8(out, cp);
    }
}

static json_t *load(struct answer *answer, const char *s, size_t n, json_error_t *why)
{
    const size_t how = JSON_ALLOW_NUL | JSON_DECODE_ANY;
    if (utf8_check(s, n))
        return json_parse(s, n, how, why);
    FREED(buf_free) struct buf valid = {0};
    make_valid(s, n, &valid);
    answer->replaced = true;
    return json_parse(valid.p, valid.n, how, why);
}

static double known_ms(double ms)
{
    return ms < 0 ? NAN : ms;
}

struct served *answer_served(const struct answer_counts *counts)
{
    struct served *served = served_new();
    served->prompt = counts->prompt;
    served->generated = counts->generated;
    served->cached = counts->cached;
    served->drafted = counts->drafted;
    served->accepted = counts->accepted;
    served->verifies = counts->verifies;
    served->ms_prompt = known_ms(counts->ms_prompt);
    served->ms_decode = known_ms(counts->ms_decode);
    served->ms_queue = known_ms(counts->ms_queue);
    served->ms_first = known_ms(counts->ms_first);
    return served;
}

static void nothing_reported(struct answer *answer)
{
    *answer = (struct answer){.count = NO_COUNTS, .done = -1, .total = -1, .n_output = -1};
}

void answer_take(struct answer *answer, const json_t *o)
{
    nothing_reported(answer);
    get_all(answer, o);
}

bool answer_read(struct answer *answer, const char *s, size_t n, struct err *e)
{
    nothing_reported(answer);
    if (n == 6 && memcmp(s, "[DONE]", 6) == 0) {
        answer->end = true;
        return true;
    }
    enum { SHOWN = 60 };
    json_error_t why;
    FREED(json_decrefp) json_t *o = load(answer, s, n, &why);
    bool ok = json_is_object(o);
    if (ok)
        get_all(answer, o);
    else if (n == 0)
        err_set(e, ERR_MODEL, "the server sent an empty answer");
    else if (n <= SHOWN || o)
        err_set(e, ERR_MODEL, "the server sent what is no JSON object: %.*s",
                (int)(n < SHOWN ? n : SHOWN), s);
    else
        err_set(e, ERR_MODEL, "the server sent what is no JSON object: %.*s... (%.100s)", SHOWN, s,
                why.text);
    return ok;
}

void answer_free(struct answer *answer)
{
    buf_free(&answer->text);
    buf_free(&answer->thought);
    FREE(answer->token, answer->prompt_token);
    tops_clear(&answer->tops);
    ids_free(&answer->prompt);
    ids_free(&answer->reply);
    ids_free(&answer->accepted);
    ids_free(&answer->drafted);
    *answer = (struct answer){0};
}
