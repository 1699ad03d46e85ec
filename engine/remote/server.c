/* server.c - kinds of servers: see server.h. Endpoints and fields as recorded from vLLM 0.26.0 and
 * llama-server b11434, and as documented by SGLang and ollama in late 2026. */
#include "engine/remote/server.h"

#include <jansson.h>
#include <math.h>

#include "engine/remote/gauges.h"
#include "engine/remote/metrics.h"
#include "kernels/ascii.h"
#include "kernels/json.h"
#include "kernels/json_read.h"
#include "kernels/lines.h"

static const char *const kind_name[N_SERVERS] = {"an OpenAI-compatible server", "vLLM", "SGLang",
                                                 "llama-server", "ollama", "aerie"};
static const char *const report_names[N_REPORTS] = {
    "ids of the prompt",  "ids of the reply",           "log probabilities",
    "accepted drafts",    "accepted drafts by step",    "reused prompt tokens",
    "times of a request", "use of the KV pools",        "metrics",
    "launch arguments"};

const char *server_kind_name(enum server_kind k) { return kind_name[k]; }
const char *report_name(enum report r) { return report_names[r]; }

/* Why a kind of server does not report something by itself; NULL: it does. */
static const char *const lacks[N_SERVERS][N_REPORTS] = {
    [SERVER_OPENAI] =
        {"the OpenAI API has no ids of prompts", "the OpenAI API has no token ids", NULL,
         "the OpenAI API says nothing about drafts", "the OpenAI API says nothing about drafts",
         NULL,
         "the OpenAI API has no times", "the OpenAI API says nothing about the KV cache",
         "this server has no /metrics", "the OpenAI API says nothing about the server"},
    [SERVER_VLLM] =
        {NULL, NULL, NULL,
         "vLLM reports drafts of a request only with --per-request-spec-decode-metrics (after "
         "0.28)",
         "vLLM reports drafts by step only with --per-request-spec-decode-metrics detailed (after "
         "0.28)", NULL,
         "vLLM reports queue time and time to the first token only with "
         "--enable-per-request-metrics", NULL,
         NULL, "vLLM tells its launch arguments only with VLLM_SERVER_DEV_MODE=1 in its "
         "environment"},
    [SERVER_SGLANG] = {NULL, NULL, NULL, NULL, "SGLang reports no single steps", NULL, NULL,
                       "SGLang reports its pools only with --enable-metrics",
                       "SGLang has /metrics only with --enable-metrics", NULL},
    [SERVER_LLAMA] = {"llama-server does not say how it tokenized a chat", NULL, NULL, NULL,
                      "llama-server reports no single steps", NULL, NULL,
                      "llama-server reports its slots only with --slots",
                      "llama-server has /metrics only with --metrics", NULL},
    [SERVER_OLLAMA] = {"ollama reports no token ids", "ollama reports no token ids", NULL,
                       "ollama does not draft", "ollama does not draft",
                       "ollama does not report reuse", NULL, "ollama does not report its KV cache",
                       "ollama has no /metrics",
                       "ollama does not tell how it was started"},
    [SERVER_AERIE] = {NULL},
};

/* What the answer of a probed endpoint decides. */
static bool is_probed(enum report r)
{
    return r == REPORT_POOLS || r == REPORT_METRICS || r == REPORT_LAUNCH;
}

const char *server_lacks(const struct server *server, enum report r)
{
    if (server->said[r] || (is_probed(r) && server->answers[r]))
        return NULL;
    if (is_probed(r) && !lacks[server->kind][r])
        return r == REPORT_LAUNCH ? "this server does not tell how it was started"
                                       : "this server has no /metrics";
    return lacks[server->kind][r];
}

/* ---- how drafts are counted ------------------------------------------------------------------ */

/* vLLM and aerie: the target's own token of each step counts. */
static double length_by_steps(const struct served *served)
{
    return served->verifies > 0 && served->accepted >= 0
               ? 1 + (double)served->accepted / (double)served->verifies
               : NAN;
}

/* SGLang: the prompt's token counts, too. */
static double length_by_tokens(const struct served *served)
{
    return served->verifies > 0 && served->generated >= 0
               ? (double)served->generated / (double)served->verifies : NAN;
}

/* llama-server counts no steps: each yields its accepted drafts and one token more. */
static double length_derived(const struct served *served)
{
    return served->accepted >= 0 && served->drafted > 0 && served->generated > served->accepted
                    ? (double)served->generated / (double)(served->generated - served->accepted)
                    : NAN;
}

static const struct counting {
    const char *rate, *length;
    double (*value)(const struct served *s);
} counting[N_SERVERS] = {
    [SERVER_VLLM] = {"num_accepted_draft_tokens / num_draft_tokens",
                     "1 + num_accepted_draft_tokens / num_spec_steps", length_by_steps},
    [SERVER_AERIE] = {"num_accepted_draft_tokens / num_draft_tokens",
                      "1 + num_accepted_draft_tokens / num_spec_steps", length_by_steps},
    [SERVER_SGLANG] = {"spec_num_correct_drafts / spec_num_proposed_drafts (before: "
                       "spec_accept_token_num / spec_draft_token_num)",
                       "completion_tokens / spec_verify_ct", length_by_tokens},
    [SERVER_LLAMA] = {"draft_n_accepted / draft_n",
                      "at most predicted_n / (predicted_n - draft_n_accepted), derived: "
                      "llama-server does not count its steps, and counts accepted drafts behind "
                      "the end", length_derived},
};

const char *server_rate_formula(enum server_kind k) { return counting[k].rate; }
const char *server_length_formula(enum server_kind k) { return counting[k].length; }
double (*server_length(enum server_kind k))(const struct served *served)
{
    return counting[k].value;
}

/* ---- probing --------------------------------------------------------------------------------- */

/* GET path: the JSON object of the answer, which the caller releases; NULL: no such endpoint. *e is
 * set (kind not ERR_NONE) only if the server cannot be reached. */
static json_t *get_json(struct http *http, const char *path, char *agent,
                        struct err *e)
{
    struct http_call call = {.method = "GET", .path = path};
    json_t *o = NULL;
    struct err why;
    *e = (struct err){0};
    if (http_call(http, &call, NULL, &why))
        o = json_parse(call.answer.p, call.answer.n, 0, NULL);
    else if (call.status == 0 || call.status == 401 || call.status == 403 || call.status == 503)
        *e = why;
    if (agent && call.agent[0])
        memcpy(agent, call.agent, sizeof call.agent);
    buf_free(&call.answer);
    if (o && !json_is_object(o)) {
        json_decref(o);
        o = NULL;
    }
    return o;
}

static void copy_text(char *out, size_t room, const json_t *v)
{
    if (json_is_string(v))
        snprintf(out, room, "%s", json_string_value(v));
}

/* SGLang reports the arguments of its launch, keys included. */
static bool is_secret(const char *name)
{
    static const char *const word[] = {"api_key", "apikey", "password", "passwd", "secret",
                                       "credential", "auth", "hf_token", "access_token"};
    return ANY(i, LEN(word), ascii_contains(name, word[i]));
}

/* Adds single values of an object as "name=value" lines. Lists and objects are left out. */
static void add_facts(struct buf *out, const json_t *o)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)o, key, v) {
        bool one = !json_is_object(v) && !json_is_array(v) && !is_secret(key) &&
                   !strpbrk(key, "=\n") && !line_value(out->p, key).p;
        FREED(free_at) char *text = one ? json_written(v, 0) : NULL;
        if (text && !strchr(text, '\n') && strlen(text) < 400)
            buf_printf(out, "%s=%s\n", key, text);
    }
}

enum { MOST_MODELS = 1000 }; /* whose names are kept */

/* The names of the models served; picks one. */
static bool pick_model(struct server *server, const json_t *models, const char *want, struct err *e)
{
    json_t *list = json_object_get(models, "data"), *m;
    size_t i;
    char first[sizeof server->model] = "";
    json_array_foreach(list, i, m) {
        char id[sizeof server->model] = "";
        copy_text(id, sizeof id, json_object_get(m, "id"));
        if (id[0] && i < MOST_MODELS)
            buf_printf(&server->models, "%s\n", id);
        if (i > 0 && !(want && !strcmp(id, want)))
            continue;
        if (want && i == 0 && strcmp(id, want) != 0) {
            memcpy(first, id, sizeof first);
            continue;
        }
        memcpy(server->model, id, sizeof id);
        json_t *most = json_object_get(m, "max_model_len");
        if (!most)
            most = json_object_get(json_object_get(m, "meta"), "n_ctx");
        if (json_is_integer(most))
            server->context = (int)json_integer_value(most);
    }
    if (server->model[0])
        return true;
    if (want && first[0]) {
        struct buf all = {0};
        for (const char *p = server->models.p; *p; p++)
            if (*p != '\n' || p[1])
                buf_printf(&all, "%.*s", *p == '\n' ? 2 : 1, *p == '\n' ? ", " : p);
        err_set(e, ERR_MODEL, "the server has no model \"%.100s\"; it serves %.300s", want, all.p);
        buf_free(&all);
        return false;
    }
    return err_set(e, ERR_MODEL, "the server lists no model");
}

/* The kind, by the endpoints that only one kind has; fills version and facts. False:
 * unreachable. */
static bool find_kind(struct server *server, struct http *http,
                      struct err *e)
{
    static const struct { const char *path; enum server_kind kind; const char *version; } sign[] = {
        {"/get_model_info", SERVER_SGLANG, NULL},
        {"/props", SERVER_LLAMA, "build_info"},
        {"/version", SERVER_VLLM, "version"},
        {"/api/version", SERVER_OLLAMA, "version"},
    };
    for (size_t i = 0; i < LEN(sign); i++) {
        char agent[64] = "";
        json_t *o = get_json(http, sign[i].path, agent, e);
        if (!o && e->kind != ERR_NONE)
            return false;
        bool aerie = !strncmp(agent, "aerie/", 6);
        if (aerie) {
            server->kind = SERVER_AERIE;
            snprintf(server->version, sizeof server->version, "%s", agent + 6);
        } else if (o) {
            server->kind = sign[i].kind;
            if (sign[i].version)
                copy_text(server->version, sizeof server->version,
                          json_object_get(o, sign[i].version));
            add_facts(&server->facts, o);
        }
        json_decref(o);
        if (aerie || server->kind != SERVER_OPENAI)
            return true;
    }
    return true;
}

/* Reads further facts from endpoints of the kind that was found. */
static void ask_more(struct server *server, struct http *http)
{
    struct err e;
    json_t *o = NULL;
    if (server->kind == SERVER_SGLANG) {
        o = get_json(http, "/server_info", NULL, &e);
        if (!o)
            o = get_json(http, "/get_server_info", NULL, &e);
        copy_text(server->version, sizeof server->version, json_object_get(o, "version"));
    } else if (server->kind == SERVER_VLLM || server->kind == SERVER_AERIE) {
        o = get_json(http, "/server_info", NULL, &e); /* vLLM: only in development mode */
    } else if (server->kind == SERVER_LLAMA && server->context == 0) {
        o = get_json(http, "/props", NULL, &e);
        json_t *n = json_object_get(json_object_get(o, "default_generation_settings"), "n_ctx");
        if (json_is_integer(n))
            server->context = (int)json_integer_value(n);
        json_decref(o);
        o = NULL;
    }
    server->answers[REPORT_LAUNCH] = o || server->kind == SERVER_LLAMA; /* whose /props answered */
    add_facts(&server->facts, o);
    json_decref(o);
}

/* vLLM reports the configuration of its cache in the labels of a metric. */
static void add_config(struct server *server)
{
    FREED(metrics_free) struct metrics metrics = {0};
    if (!server->page.n || !metrics_read(&metrics, server->page.p, server->page.n, NULL))
        return;
    for (int i = 0; i < metrics.n; i++) {
        FREED(json_decrefp) json_t *o = json_object();
        const char *at = strcmp(metrics.at[i].name, "cache_config_info") ? ""
                         : metrics.at[i].labels, *p;
        for (size_t n; (p = metric_pair(&at, &n));) {
            FREED(free_at) char *name = xasprintf("%.*s", (int)strcspn(p, "=\""), p);
            FREED(free_at) char *fact = xasprintf("cache_config.%s", name);
            FREED(buf_free) struct buf value = {0};
            if (metric_label(&metrics.at[i], name, &value))
                json_object_set_new(o, fact, json_string(buf_text(&value)));
        }
        add_facts(&server->facts, o);
    }
}

void server_facts_json(const struct server *server, struct buf *out)
{
    JPUT_IN(out, '{');
    FOR_LINES(l, server->facts.p) {
        struct line name = line_name(l);
        FREED(free_at) char *key = line_copy(name);
        FREED(free_at) char *value = line_copy(line_at(l.p + name.n + 1));
        jput_key(out, key);
        jput_raw(out, value);
    }
}

/* Whether its metrics report how full a pool is. */
static bool has_pools(const struct server *server)
{
    struct gauge_page page;
    gauge_page_init(&page);
    return server->page.n && gauges_read(server->kind, server->page.p, server->page.n, &page) &&
           page.about;
}

static void probe_metrics(struct server *server, struct http *http)
{
    struct http_call call = {.method = "GET", .path = "/metrics"};
    if (server->kind == SERVER_OLLAMA)
        return;
    server->answers[REPORT_METRICS] = http_call(http, &call, NULL, NULL);
    if (server->answers[REPORT_METRICS])
        server->page = call.answer;
    else
        buf_free(&call.answer);
    server->answers[REPORT_POOLS] = has_pools(server);
    add_config(server);
    if (server->kind == SERVER_LLAMA) {
        struct http_call slots = {.method = "GET", .path = "/slots"};
        server->answers[REPORT_POOLS] = http_call(http, &slots, NULL, NULL);
        if (server->answers[REPORT_POOLS])
            server->slots = slots.answer;
        else
            buf_free(&slots.answer);
    }
}

bool server_probe(struct server *server, struct http *http, const char *model, struct err *e)
{
    *server = (struct server){0};
    struct err why;
    if (!find_kind(server, http, &why)) {
        if (e)
            *e = why;
        return false;
    }
    json_t *models = get_json(http, "/v1/models", NULL, &why);
    bool ok = models && pick_model(server, models, model, e);
    if (!models && why.kind == ERR_NONE)
        err_set(e, ERR_MODEL, "the server has no /v1/models at this address: no server of a model "
                "answers there");
    else if (!models && e)
        *e = why;
    json_decref(models);
    if (ok) {
        ask_more(server, http);
        probe_metrics(server, http);
    }
    return ok;
}

void server_free(struct server *server)
{
    buf_free(&server->models);
    buf_free(&server->facts);
    buf_free(&server->page);
    buf_free(&server->slots);
    *server = (struct server){0};
}

/* ---- the connection -------------------------------------------------------------------------- */

/* The key in a file: its first line. */
static bool read_key(const char *path, struct buf *out, struct err *e)
{
    if (!path)
        return true;
    if (!buf_read_file(out, path, 65536, e))
        return err_prefix(e, "the key");
    size_t n = out->p ? strcspn(out->p, "\r\n") : 0;
    if (n == 0)
        return err_set(e, ERR_USAGE, "%s holds no key; expected it in the first line", path);
    out->p[n] = '\0';
    return true;
}

bool server_http(struct http **http, const struct server_opts *opts, struct err *e)
{
    FREED(buf_free) struct buf key = {0};
    bool ok = read_key(opts->key_file, &key, e) &&
              http_open(http,
                        &(struct http_opts){.url = opts->url, .key = opts->key_file ? key.p : NULL,
                                                  .header = opts->header,
                                                  .n_header = opts->n_header}, e);
    if (key.p)
        memset(key.p, 0, key.n);
    return ok;
}

/* ---- requests -------------------------------------------------------------------------------- */

bool server_knows(const struct server *server, const char *setting)
{
    int i = settings_index(setting);
    const struct option *o = i >= 0 ? settings_at(i) : NULL;
    return o &&
           (o->served == ANY_SERVER || (o->served == NO_OPENAI && server->kind != SERVER_OPENAI));
}

static void put_messages(struct buf *b, const struct said *said, int n)
{
    JPUT_KIN(b, "messages", '[');
    for (int i = 0; i < n; i++)
        jput_record(b, "%s{role}%s{content}", said[i].role, said[i].text);
}

/* What differs from the default. A client does not learn with which defaults an aerie server was
 * started: it sends every value, so that the server computes with those that the client's log
 * names. ollama and llama-server call one of them otherwise. */
static void put_penalties(const struct server *server, const struct settings *set, struct buf *b)
{
    bool ggml = server->kind == SERVER_LLAMA || server->kind == SERVER_OLLAMA;
    bool all = server->kind == SERVER_AERIE;
    const struct logit_bias *bias = &set->logit_bias;
    char key[16];
    if (all || set->presence_penalty != 0)
        jput_kreal(b, "presence_penalty", set->presence_penalty);
    if (all || set->frequency_penalty != 0)
        jput_kreal(b, "frequency_penalty", set->frequency_penalty);
    if (all || (set->repetition_penalty != 1 && server_knows(server, "repetition_penalty")))
        jput_kreal(b, ggml ? "repeat_penalty" : "repetition_penalty", set->repetition_penalty);
    if (bias->n == 0 && !all)
        return;
    JPUT_KIN(b, "logit_bias", '{');
    for (int i = 0; i < bias->n; i++) {
        snprintf(key, sizeof key, "%d", (int)bias->id[i]);
        jput_kreal(b, key, (double)bias->by[i]);
    }
}

static void put_sampling(const struct server *server, const struct settings *set, int64_t seed,
                         const char *max_tokens, struct buf *b)
{
    jput_kreal(b, "temperature", set->temperature);
    if (set->temperature > 0) {
        jput_kreal(b, "top_p", set->top_p);
        if (server_knows(server, "top_k")) {
            /* "all" is 0 in llama-server and ollama, -1 in the others */
            bool zero = server->kind == SERVER_LLAMA || server->kind == SERVER_OLLAMA;
            jput_fields(b, "%d{top_k}%g{min_p}", set->top_k ? set->top_k : zero ? 0 : -1,
                        set->min_p);
        }
    }
    put_penalties(server, set, b);
    if (seed >= 0)
        jput_kint(b, "seed", seed & 0x7FFFFFFF);
    if (set->max_tokens)
        jput_kint(b, max_tokens, set->max_tokens);
}

/* The variables of a chat template that stand for an effort. */
static void put_variables(enum effort f, struct buf *b)
{
    if (f == EFFORT_AUTO)
        return;
    JPUT_KIN(b, "chat_template_kwargs", '{');
    if (f == EFFORT_NONE)
        jput_kbool(b, "enable_thinking", false);
    else
        jput_kstr(b, "reasoning_effort", effort_name(f));
}

/* ollama's "think" is a bool or an effort; the others have OpenAI's name for the effort, and those
 * that render a template of their own a variable to switch thinking off. */
static void put_effort(const struct server *server, enum effort f, struct buf *b)
{
    const char *name = server->kind == SERVER_OLLAMA ? "think" : "reasoning_effort";
    if (f == EFFORT_AUTO)
        return;
    if (f != EFFORT_NONE || server->kind == SERVER_OPENAI)
        jput_kstr(b, name, effort_name(f));
    else if (server->kind == SERVER_OLLAMA)
        jput_kbool(b, name, false);
    else
        put_variables(f, b);
}

static const char *ask_ollama(const struct server *server, const struct said *said, int n,
                              const struct settings *set, int64_t seed, struct buf *b)
{
    jput_open(b, '{');
    jput_kstr(b, "model", server->model);
    put_messages(b, said, n);
    jput_kbool(b, "stream", true);
    put_effort(server, (enum effort)set->effort, b);
    jput_kopen(b, "options", '{');
    put_sampling(server, set, seed, "num_predict", b);
    jput_close(b, '}');
    jput_close(b, '}');
    return "/api/chat";
}

const char *server_ask(const struct server *server, const struct said *said, int n,
                       const struct settings *set, int64_t seed, struct buf *b)
{
    if (server->kind == SERVER_OLLAMA)
        return ask_ollama(server, said, n, set, seed, b);
    jput_open(b, '{');
    jput_kstr(b, "model", server->model);
    put_messages(b, said, n);
    put_sampling(server, set, seed, "max_tokens", b);
    put_effort(server, (enum effort)set->effort, b);
    jput_kbool(b, "stream", true);
    jput_key(b, "stream_options");
    jput_raw(b, "{\"include_usage\":true}");
    jput_fields(b, "%d{logprobs?}%d{top_logprobs}", true, 4);
    if (server->kind == SERVER_VLLM || server->kind == SERVER_AERIE) {
        /* ids of the rivals, too */
        jput_fields(b, "%d{return_token_ids?}%d{return_tokens_as_token_ids?}", true, true);
    }
    if (server->kind == SERVER_LLAMA) {
        jput_fields(b, "%d{return_tokens?}%d{return_progress?}%d{timings_per_token?}", true, true,
                    true);
    }
    if (server->kind == SERVER_SGLANG) {
        static const char *const ask[] = {
            "return_output_ids_in_sglext", "return_input_ids_in_sglext", "return_output_ids",
            "return_input_ids", "return_spec_tokens_details", "return_cached_tokens_details"};
        for (size_t i = 0; i < LEN(ask); i++)
            jput_kbool(b, ask[i], true);
    }
    jput_close(b, '}');
    return "/v1/chat/completions";
}

const char *server_ask_prompt(const struct server *server, const struct said *said, int n,
                              const struct settings *set, struct buf *b)
{
    if (server->kind != SERVER_VLLM && server->kind != SERVER_AERIE)
        return NULL;
    jput_open(b, '{');
    jput_kstr(b, "model", server->model);
    put_messages(b, said, n);
    jput_kbool(b, "add_generation_prompt", true);
    put_variables((enum effort)set->effort, b);
    jput_close(b, '}');
    return "/tokenize";
}
