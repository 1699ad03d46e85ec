/* by_ids.c - see by_ids.h. Fields are those of vLLM 0.26 and aerie (/v1/completions), SGLang of
 * late 2026 (/generate) and llama-server b11434 (/completion). */
#include "engine/remote/by_ids.h"

#include <math.h>
#include <stdlib.h>

#include "engine/remote/answer.h"
#include "engine/remote/server.h"
#include "engine/remote/upkeep_own.h"
#include "kernels/json.h"

enum { BEST = 5, BEST_SCORED = 40 }; /* tokens reported beside each; to find a given one */

bool ids_can_ask(const struct upkeep *u, struct err *e)
{
    enum server_kind k = u->server.kind;
    if (k == SERVER_OLLAMA)
        return err_set(e, ERR_USAGE, "ollama takes no prompts of token ids and reports none");
    if (k == SERVER_OPENAI)
        return err_set(e, ERR_USAGE,
                       "this server is not known to take prompts of token ids; expected vLLM, "
                       "SGLang, llama-server or aerie");
    return true;
}

bool ids_scores_at_once(const struct upkeep *u)
{
    return u->server.kind != SERVER_LLAMA;
}

bool ids_has_arenas(const struct upkeep *u)
{
    return u->server.kind == SERVER_VLLM || u->server.kind == SERVER_SGLANG;
}

void ids_ask_free(struct ids_ask *a)
{
    ids_free(&a->reply);
    free(a->logp);
    free(a->margin);
    free(a->prompt_logp);
    ids_free(&a->accepted);
    a->logp = a->margin = a->prompt_logp = NULL;
    a->done = a->cancelled = a->unreachable = false;
    a->why = (struct err){0};
    a->status = 0;
    a->cached = a->drafted = a->n_accepted = -1;
}

/* ---- requests -------------------------------------------------------------------------------- */

static void put_prompt(struct buf *b, const char *key, const struct ids *ids)
{
    jput_key(b, key);
    jput_ints(b, ids->v, ids->n);
}

static const char *put_sglang(const struct ids_ask *a, struct buf *b)
{
    put_prompt(b, "input_ids", &a->prompt);
    jput_kopen(b, "sampling_params", '{');
    jput_fields(b, "%d{temperature}%d{max_new_tokens}%d{ignore_eos?}", 0, a->most, true);
    jput_close(b, '}');
    jput_fields(b, "%d{return_logprob?}%d{top_logprobs_num}%d{logprob_start_len}"
                "%d{return_text_in_logprobs?}", true, 2, a->score ? 0 : -1, false);
    if (a->arena)
        jput_kstr(b, "extra_key", a->arena);
    return "/generate";
}

static const char *put_llama(const struct ids_ask *a, int best, struct buf *b)
{
    put_prompt(b, "prompt", &a->prompt);
    jput_fields(b, "%d{n_predict}%d{temperature}%d{top_k}%d{seed}%d{ignore_eos?}%d{cache_prompt?}"
                "%d{return_tokens?}%d{n_probs}", a->most, 0, best > BEST ? 0 : 1, 1, true,
                !a->cold, true, best);
    return "/completion";
}

static const char *put_openai(const struct server *s, const struct ids_ask *a, struct buf *b)
{
    jput_kstr(b, "model", s->model);
    put_prompt(b, "prompt", &a->prompt);
    jput_fields(b, "%d{max_tokens}%d{temperature}%d{seed}%d{ignore_eos?}%d{logprobs}"
                "%d{return_token_ids?}%d{return_tokens_as_token_ids?}", a->most, 0, 1, true, 2,
                true, true);
    if (a->score)
        jput_kint(b, "prompt_logprobs", 0);
    if (a->arena && s->kind == SERVER_VLLM)
        jput_kstr(b, "cache_salt", a->arena);
    return "/v1/completions";
}

static const char *put_request(const struct server *s, const struct ids_ask *a, int best,
                               struct buf *b)
{
    jput_open(b, '{');
    const char *path = s->kind == SERVER_SGLANG  ? put_sglang(a, b)
                       : s->kind == SERVER_LLAMA ? put_llama(a, best, b)
                                                 : put_openai(s, a, b);
    jput_close(b, '}');
    return path;
}

const char *ids_request(const struct upkeep *u, const struct ids_ask *a, struct buf *body)
{
    return put_request(&u->server, a, BEST, body);
}

/* ---- answers --------------------------------------------------------------------------------- */

static void take_prompt(struct ids_ask *a, const struct answer *r)
{
    a->prompt_logp = xcalloc((size_t)a->prompt.n, sizeof *a->prompt_logp);
    for (int i = 0; i < a->prompt.n; i++) {
        bool same = i < r->n_prompt_token &&
                    (r->prompt_token[i].id == a->prompt.v[i] || r->prompt_token[i].id < 0);
        a->prompt_logp[i] = i > 0 && same ? r->prompt_token[i].logp : NAN;
    }
}

/* False and a->why: the answer is not that of such a request. */
static bool take_reply(struct ids_ask *a, const struct answer *r)
{
    int n = r->n_token;
    a->logp = xcalloc((size_t)n + 1, sizeof *a->logp);
    a->margin = xcalloc((size_t)n + 1, sizeof *a->margin);
    for (int i = 0; i < n; i++) {
        const struct answer_token *t = &r->token[i];
        int32_t id = r->reply.n == n ? r->reply.v[i] : t->id;
        if (id < 0)
            return err_set(&a->why, ERR_MODEL, "the server reports no id of token %d", i + 1);
        ids_add(&a->reply, id);
        a->logp[i] = t->logp;
        a->margin[i] = t->logp - t->rival_logp;
    }
    if (n == 0)
        return err_set(&a->why, ERR_MODEL, "the server's answer has no tokens");
    ids_cat(&a->accepted, r->accepted.v, r->accepted.n);
    a->cached = r->count.cached;
    a->drafted = r->count.drafted;
    a->n_accepted = r->count.accepted;
    if (a->score)
        take_prompt(a, r);
    return true;
}

static void take_answer(struct ids_ask *a, const struct http_call *c)
{
    struct answer r;
    a->status = c->status;
    if (c->failed) {
        a->why = c->why;
        a->unreachable = c->unsent;
        return;
    }
    if (c->status / 100 != 2) {
        http_refused(c, &a->why);
        return;
    }
    if (!answer_read(&r, c->answer.p ? c->answer.p : "", c->answer.n, &a->why))
        return;
    if (r.error[0])
        err_set(&a->why, ERR_MODEL, "%s", r.error);
    else
        a->done = take_reply(a, &r);
    answer_free(&r);
}

/* ---- sending --------------------------------------------------------------------------------- */

struct sent {
    struct http_call call;
    struct buf body;
    bool begun, ended;
};

static uint64_t ms_after(uint64_t since)
{
    return (clock_ns() - since) / 1000000;
}

/* One look at a request; true: it has ended. */
static bool look(struct upkeep *u, struct ids_ask *a, struct sent *s, uint64_t begin, int best)
{
    if (!s->begun && ms_after(begin) >= (uint64_t)a->after_ms) {
        s->call = (struct http_call){.method = "POST",
                                     .path = put_request(&u->server, a, best, &s->body)};
        s->call.body = s->body.p;
        http_begin(u->http, &s->call);
        s->begun = true;
    }
    if (!s->begun)
        return false;
    if (s->call.done) {
        take_answer(a, &s->call);
        a->ns = s->call.ns_end - s->call.ns_begin;
        return true;
    }
    a->cancelled = a->cancel_ms && ms_after(s->call.ns_begin) >= (uint64_t)a->cancel_ms;
    return a->cancelled;
}

static void ask_all(struct upkeep *u, struct ids_ask *a, int n, int best, const struct stop *stop,
                    void (*meanwhile)(void *arg), void *arg)
{
    struct sent s[IDS_AT_ONCE] = {{.begun = false}};
    uint64_t begin = clock_ns();
    CHECK(n <= IDS_AT_ONCE);
    for (int left = n; left > 0 && !stop_asked(stop);) {
        bool timed = false;
        for (int i = 0; i < n; i++) {
            if (!s[i].ended && look(u, &a[i], &s[i], begin, best)) {
                http_end(u->http, &s[i].call);
                s[i].ended = true;
                left--;
            }
            timed |= !s[i].ended && (!s[i].begun || a[i].cancel_ms);
        }
        if (left > 0)
            http_run(u->http, timed ? 1 : 50);
        if (meanwhile)
            meanwhile(arg);
    }
    for (int i = 0; i < n; i++) {
        if (s[i].begun && !s[i].ended)
            http_end(u->http, &s[i].call);
        if (!s[i].ended)
            err_set(&a[i].why, ERR_NEGATIVE, "stopped");
        buf_free(&s[i].call.answer);
        buf_free(&s[i].body);
    }
}

void ids_ask_all(struct upkeep *u, struct ids_ask *a, int n, const struct stop *stop,
                 void (*meanwhile)(void *arg), void *arg)
{
    for (int i = 0; i < n; i++)
        ids_ask_free(&a[i]);
    ask_all(u, a, n, BEST, stop, meanwhile, arg);
}

/* ---- log probabilities of a prompt ----------------------------------------------------------- */

static void arena_name(struct upkeep *u, char name[48])
{
    unsigned long long number = clock_ns();
    snprintf(name, 48, "score-%llx-%llx", number, (unsigned long long)++u->n_asked);
}

static bool score_at_once(struct upkeep *u, const struct ids *ids, int from, float *logp,
                          const struct stop *stop, struct err *e)
{
    char name[48];
    struct ids_ask a = {.prompt = *ids, .most = 1, .score = true, .cold = true, .arena = name};
    arena_name(u, name);
    ids_ask_all(u, &a, 1, stop, NULL, NULL);
    bool any = false;
    for (int i = from; a.done && i < ids->n; i++) {
        logp[i] = a.prompt_logp[i];
        any |= !isnan(logp[i]);
    }
    if (!a.done)
        *e = a.why;
    else if (!any)
        err_set(e, ERR_MODEL, "the server reports no log probabilities of a prompt");
    ids_ask_free(&a);
    return any;
}

/* The log probability of `id` in the row behind a prompt; NAN: not among the best. */
static bool score_one(struct upkeep *u, const struct ids *prompt, int32_t id, float *logp,
                      const struct stop *stop, struct err *e)
{
    struct ids_ask a = {.prompt = *prompt, .most = 1, .cold = true};
    struct sent s = {.call = {.method = "POST"}};
    struct answer r = {0};
    s.call.path = put_request(&u->server, &a, BEST_SCORED, &s.body);
    s.call.body = s.body.p;
    bool ok = http_call(u->http, &s.call, stop, e) &&
              answer_read(&r, s.call.answer.p ? s.call.answer.p : "", s.call.answer.n, e);
    *logp = NAN;
    for (int i = 0; ok && i < r.tops.n && r.tops.at[i].k == 0; i++)
        if (r.tops.at[i].id == id)
            *logp = r.tops.at[i].logp;
    answer_free(&r);
    buf_free(&s.call.answer);
    buf_free(&s.body);
    return ok;
}

bool ids_score(struct upkeep *u, const struct ids *ids, int from, float *logp,
               const struct stop *stop, struct err *e)
{
    if (ids_scores_at_once(u))
        return score_at_once(u, ids, from, logp, stop, e);
    bool ok = true;
    for (int i = max_int(from, 1); ok && i < ids->n; i++) {
        struct ids before = {.v = ids->v, .n = i};
        ok = score_one(u, &before, ids->v[i], &logp[i], stop, e);
    }
    return ok;
}

/* ---- text ------------------------------------------------------------------------------------ */

bool ids_of_text(struct upkeep *u, const char *text, struct ids *out, const struct stop *stop,
                 struct err *e)
{
    struct buf body = {0};
    struct answer r = {0};
    struct http_call c = {.method = "POST", .path = "/tokenize"};
    jput_open(&body, '{');
    if (u->server.kind == SERVER_LLAMA) {
        jput_fields(&body, "%s{content}%d{add_special?}", text, false);
    } else {
        jput_fields(&body, "%s{model}%s{prompt}%d{add_special_tokens?}", u->server.model, text,
                    false);
    }
    jput_close(&body, '}');
    c.body = body.p;
    bool ok = http_call(u->http, &c, stop, e) &&
              answer_read(&r, c.answer.p ? c.answer.p : "", c.answer.n, e);
    for (int i = 0; ok && i < r.n_token; i++)
        if (r.token[i].id >= 0)
            ids_add(out, r.token[i].id);
    if (ok && out->n == 0)
        ok = err_set(e, ERR_MODEL, "the server's /tokenize returns no ids");
    answer_free(&r);
    buf_free(&c.answer);
    buf_free(&body);
    return ok;
}
