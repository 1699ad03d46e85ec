/* by_ids.c - see by_ids.h. Fields are those of vLLM 0.26 and aerie (/v1/completions), SGLang of
 * late 2026 (/generate) and llama-server b11434 (/completion). */
#include "engine/remote/by_ids.h"

#include <math.h>

#include "engine/remote/answer.h"
#include "engine/remote/server.h"
#include "engine/remote/upkeep_own.h"
#include "kernels/json.h"

enum { BEST = 5, BEST_SCORED = 40 }; /* tokens reported beside each; to find a given one */

bool ids_can_ask(const struct upkeep *upkeep, struct err *e)
{
    enum server_kind k = upkeep->server.kind;
    if (k == SERVER_OLLAMA)
        return err_set(e, ERR_USAGE, "ollama takes no prompts of token ids and reports none");
    if (k == SERVER_OPENAI)
        return err_set(e, ERR_USAGE,
                       "this server is not known to take prompts of token ids; expected vLLM, "
                       "SGLang, llama-server or aerie");
    return true;
}

bool ids_scores_at_once(const struct upkeep *upkeep)
{
    return upkeep->server.kind != SERVER_LLAMA;
}

bool ids_has_arenas(const struct upkeep *upkeep)
{
    return upkeep->server.kind == SERVER_VLLM || upkeep->server.kind == SERVER_SGLANG;
}

void ids_ask_free(struct ids_ask *ask)
{
    ids_free(&ask->reply);
    FREE(ask->logp, ask->margin, ask->prompt_logp);
    ids_free(&ask->accepted);
    ask->logp = ask->margin = ask->prompt_logp = NULL;
    ask->done = ask->cancelled = ask->unreachable = false;
    ask->why = (struct err){0};
    ask->status = 0;
    ask->cached = ask->drafted = ask->n_accepted = -1;
}

/* ---- requests -------------------------------------------------------------------------------- */

static const char *put_sglang(const struct ids_ask *ask, struct buf *b)
{
    jput_kints(b, "input_ids", ask->prompt.v, ask->prompt.n);
    jput_kopen(b, "sampling_params", '{');
    jput_fields(b, "%d{temperature}%d{max_new_tokens}%d{ignore_eos?}", 0, ask->most, true);
    jput_close(b, '}');
    jput_fields(b, "%d{return_logprob?}%d{top_logprobs_num}%d{logprob_start_len}"
                "%d{return_text_in_logprobs?}", true, 2, ask->score ? 0 : -1, false);
    if (ask->arena)
        jput_kstr(b, "extra_key", ask->arena);
    return "/generate";
}

static const char *put_llama(const struct ids_ask *ask, int best, struct buf *b)
{
    jput_kints(b, "prompt", ask->prompt.v, ask->prompt.n);
    jput_fields(b, "%d{n_predict}%d{temperature}%d{top_k}%d{seed}%d{ignore_eos?}%d{cache_prompt?}"
                "%d{return_tokens?}%d{n_probs}", ask->most, 0, best > BEST ? 0 : 1, 1, true,
                !ask->cold, true, best);
    return "/completion";
}

static const char *put_openai(const struct server *server, const struct ids_ask *ask, struct buf *b)
{
    jput_kstr(b, "model", server->model);
    jput_kints(b, "prompt", ask->prompt.v, ask->prompt.n);
    jput_fields(b, "%d{max_tokens}%d{temperature}%d{seed}%d{ignore_eos?}%d{logprobs}"
                "%d{return_token_ids?}%d{return_tokens_as_token_ids?}", ask->most, 0, 1, true, 2,
                true, true);
    if (ask->score)
        jput_kint(b, "prompt_logprobs", 0);
    if (ask->arena && server->kind == SERVER_VLLM)
        jput_kstr(b, "cache_salt", ask->arena);
    return "/v1/completions";
}

static const char *put_request(const struct server *server, const struct ids_ask *ask, int best,
                               struct buf *b)
{
    JPUT_IN(b, '{');
    const char *path = server->kind == SERVER_SGLANG  ? put_sglang(ask, b)
                       : server->kind == SERVER_LLAMA ? put_llama(ask, best, b)
                                                      : put_openai(server, ask, b);
    return path;
}

const char *ids_request(const struct upkeep *upkeep, const struct ids_ask *ask, struct buf *body)
{
    return put_request(&upkeep->server, ask, BEST, body);
}

/* ---- answers --------------------------------------------------------------------------------- */

static void take_prompt(struct ids_ask *ask, const struct answer *answer)
{
    ask->prompt_logp = xcalloc((size_t)ask->prompt.n, sizeof *ask->prompt_logp);
    for (int i = 0; i < ask->prompt.n; i++) {
        bool same = i < answer->n_prompt_token &&
                    (answer->prompt_token[i].id == ask->prompt.v[i] ||
                     answer->prompt_token[i].id < 0);
        ask->prompt_logp[i] = i > 0 && same ? answer->prompt_token[i].logp : NAN;
    }
}

/* A log probability above 0 by so much is no rounding. */
#define ABOVE_ONE 0.01F

/* False and ask->why: the answer is not that of such a request. */
static bool take_reply(struct ids_ask *ask, const struct answer *answer)
{
    int n = answer->n_token;
    ask->logp = xcalloc((size_t)n + 1, sizeof *ask->logp);
    ask->margin = xcalloc((size_t)n + 1, sizeof *ask->margin);
    for (int i = 0; i < n; i++) {
        const struct answer_token *token = &answer->token[i];
        int32_t id = answer->reply.n == n ? answer->reply.v[i] : token->id;
        if (id < 0)
            return err_set(&ask->why, ERR_MODEL, "the server reports no id of token %d", i + 1);
        if (token->logp > ABOVE_ONE)
            return err_set(&ask->why, ERR_MODEL, "the server reports the log probability %g of "
                           "token %d; expected at most 0", (double)token->logp, i + 1);
        ids_add(&ask->reply, id);
        ask->logp[i] = token->logp;
        ask->margin[i] = token->logp - token->rival_logp;
    }
    if (n == 0)
        return err_set(&ask->why, ERR_MODEL, "the server's answer has no tokens");
    ids_cat(&ask->accepted, answer->accepted.v, answer->accepted.n);
    ask->cached = answer->count.cached;
    ask->drafted = answer->count.drafted;
    ask->n_accepted = answer->count.accepted;
    if (ask->score)
        take_prompt(ask, answer);
    return true;
}

static void take_answer(struct ids_ask *ask, const struct http_call *call)
{
    FREED(answer_free) struct answer answer = {0};
    ask->status = call->status;
    if (call->failed) {
        ask->why = call->why;
        ask->unreachable = call->unsent;
        return;
    }
    if (call->status / 100 != 2) {
        http_refused(call, &ask->why);
        return;
    }
    if (!answer_read(&answer, buf_text(&call->answer), call->answer.n, &ask->why))
        return;
    if (answer.error[0])
        err_set(&ask->why, ERR_MODEL, "the server reports: %s", answer.error);
    else
        ask->done = take_reply(ask, &answer);
}

/* ---- sending --------------------------------------------------------------------------------- */

struct sent {
    struct http_call call;
    struct buf body;
    int attempt;
    uint64_t from_ms; /* when it is sent, after the first one */
    bool begun, ended;
};

static uint64_t ms_after(uint64_t since)
{
    return (clock_ns() - since) / 1000000;
}

/* One look at a request; true: it has ended. */
static bool look_at_request(struct upkeep *upkeep, struct ids_ask *ask, struct sent *s,
                            uint64_t begin, int best)
{
    if (!s->begun && ms_after(begin) >= s->from_ms) {
        buf_clear(&s->body);
        s->call = (struct http_call){.method = "POST", .answer = s->call.answer,
                                     .path = put_request(&upkeep->server, ask, best, &s->body)};
        s->call.body = s->body.p;
        http_begin(upkeep->http, &s->call);
        s->begun = true;
    }
    if (!s->begun)
        return false;
    if (s->call.done) {
        int wait = s->call.failed ? -1 : http_retry_ms(&s->call, s->attempt);
        if (wait >= 0) {
            http_end(upkeep->http, &s->call);
            s->from_ms = ms_after(begin) + (uint64_t)wait;
            s->attempt++;
            s->begun = false;
            return false;
        }
        take_answer(ask, &s->call);
        ask->ns = s->call.ns_end - s->call.ns_begin;
        return true;
    }
    ask->cancelled = ask->cancel_ms && ms_after(s->call.ns_begin) >= (uint64_t)ask->cancel_ms;
    return ask->cancelled;
}

static void ask_all(struct upkeep *upkeep, struct ids_ask *ask, int n, int best,
                    const struct stop *stop, void (*meanwhile)(void *arg), void *arg)
{
    struct sent s[IDS_AT_ONCE] = {{.begun = false}};
    uint64_t begin = clock_ns();
    CHECK(n <= IDS_AT_ONCE);
    for (int i = 0; i < n; i++)
        s[i].from_ms = (uint64_t)ask[i].after_ms;
    for (int left = n; left > 0 && !stop_asked(stop);) {
        bool timed = false;
        for (int i = 0; i < n; i++) {
            if (!s[i].ended && look_at_request(upkeep, &ask[i], &s[i], begin, best)) {
                http_end(upkeep->http, &s[i].call);
                s[i].ended = true;
                left--;
            }
            timed |= !s[i].ended && (!s[i].begun || ask[i].cancel_ms);
        }
        if (left > 0)
            http_run(upkeep->http, timed ? 1 : 50);
        if (meanwhile)
            meanwhile(arg);
    }
    for (int i = 0; i < n; i++) {
        if (s[i].begun && !s[i].ended)
            http_end(upkeep->http, &s[i].call);
        if (!s[i].ended)
            err_set(&ask[i].why, ERR_NEGATIVE, "stopped");
        buf_free(&s[i].call.answer);
        buf_free(&s[i].body);
    }
}

void ids_ask_all(struct upkeep *upkeep, struct ids_ask *ask, int n, const struct stop *stop,
                 void (*meanwhile)(void *arg), void *arg)
{
    for (int i = 0; i < n; i++)
        ids_ask_free(&ask[i]);
    ask_all(upkeep, ask, n, BEST, stop, meanwhile, arg);
}

/* ---- log probabilities of a prompt ----------------------------------------------------------- */

static void arena_name(struct upkeep *upkeep, char name[48])
{
    unsigned long long number = clock_ns();
    snprintf(name, 48, "score-%llx-%llx", number, (unsigned long long)++upkeep->n_asked);
}

static bool score_at_once(struct upkeep *upkeep, const struct ids *ids, int from, float *logp,
                          const struct stop *stop, struct err *e)
{
    char name[48];
    struct ids_ask ask = {.prompt = *ids, .most = 1, .score = true, .cold = true, .arena = name};
    arena_name(upkeep, name);
    ids_ask_all(upkeep, &ask, 1, stop, NULL, NULL);
    bool any = false;
    for (int i = from; ask.done && i < ids->n; i++) {
        logp[i] = ask.prompt_logp[i];
        any |= !isnan(logp[i]);
    }
    if (!ask.done)
        *e = ask.why;
    else if (!any)
        err_set(e, ERR_MODEL, "the server reports no log probabilities of a prompt");
    ids_ask_free(&ask);
    return any;
}

/* The log probability of `id` in the row behind a prompt; NAN: not among the best. */
static bool score_one(struct upkeep *upkeep, const struct ids *prompt, int32_t id, float *logp,
                      const struct stop *stop, struct err *e)
{
    struct ids_ask ask = {.prompt = *prompt, .most = 1, .cold = true};
    struct sent s = {.call = {.method = "POST"}};
    FREED(answer_free) struct answer answer = {0};
    s.call.path = put_request(&upkeep->server, &ask, BEST_SCORED, &s.body);
    s.call.body = s.body.p;
    bool ok = upkeep_call(upkeep, &s.call, stop, e) &&
              answer_read(&answer, buf_text(&s.call.answer), s.call.answer.n, e);
    *logp = NAN;
    for (int i = 0; ok && i < answer.tops.n && answer.tops.at[i].k == 0; i++)
        if (answer.tops.at[i].id == id)
            *logp = answer.tops.at[i].logp;
    buf_free(&s.call.answer);
    buf_free(&s.body);
    return ok;
}

bool ids_score(struct upkeep *upkeep, const struct ids *ids, int from, float *logp,
               const struct stop *stop, struct err *e)
{
    if (ids_scores_at_once(upkeep))
        return score_at_once(upkeep, ids, from, logp, stop, e);
    bool ok = true;
    for (int i = max_int(from, 1); ok && i < ids->n; i++) {
        struct ids before = {.v = ids->v, .n = i};
        ok = score_one(upkeep, &before, ids->v[i], &logp[i], stop, e);
    }
    return ok;
}

/* ---- text ------------------------------------------------------------------------------------ */

bool ids_of_text(struct upkeep *upkeep, const char *text, struct ids *out, const struct stop *stop,
                 struct err *e)
{
    FREED(buf_free) struct buf body = {0};
    FREED(answer_free) struct answer answer = {0};
    struct http_call call = {.method = "POST", .path = "/tokenize"};
    jput_open(&body, '{');
    if (upkeep->server.kind == SERVER_LLAMA) {
        jput_fields(&body, "%s{content}%d{add_special?}", text, false);
    } else {
        jput_fields(&body, "%s{model}%s{prompt}%d{add_special_tokens?}", upkeep->server.model, text,
                    false);
    }
    jput_close(&body, '}');
    call.body = body.p;
    bool ok = (upkeep_call(upkeep, &call, stop, e) || err_prefix(e, "/tokenize")) &&
              answer_read(&answer, buf_text(&call.answer), call.answer.n, e);
    for (int i = 0; ok && i < answer.n_token; i++)
        if (answer.token[i].id >= 0)
            ids_add(out, answer.token[i].id);
    if (ok && out->n == 0)
        ok = err_set(e, ERR_MODEL, "the server's /tokenize returns no ids");
    buf_free(&call.answer);
    return ok;
}
