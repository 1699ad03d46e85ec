/* The facts and metrics of a server that the log keeps: never a key, never another model's
 * numbers. */
#include "engine/remote/by_ids.h"
#include "engine/remote/http.h"
#include "engine/remote/page_pair.h"

#include <math.h>

#include "tests/play.h"

/* ---- the launch ------------------------------------------------------------------------------ */

static void choose_sglang(void *arg, const struct play_request *rq, struct play_answer *a)
{
    static const struct { const char *path, *body; } at[] = {
        {"/get_model_info", "{\"model_path\":\"/home/me/models/gpt\",\"is_generation\":true}"},
        {"/server_info",
         "{\"tp_size\":2,\"api_key\":\"sk-one\",\"admin_api_key\":\"sk-two\",\"hf_token\":\"sk-three\","
                         "\"ssl_keyfile_password\":\"sk-four\",\"num_key_value_heads\":8,\"bos_token\":\"<s>\","
                         "\"host\":\"10.1.2.3\",\"enable_metrics\":true,\"quantization\":null,"
                         "\"internal_states\":[{\"a\":1}],\"version\":\"0.5.9\"}"},
        {"/v1/models", "{\"data\":[{\"id\":\"gpt\"}]}"},
        {"/metrics", "sglang:num_running_reqs{model_name=\"gpt\"} 1\n"},
    };
    (void)arg;
    *a = (struct play_answer){.status = 404, .type = "application/json"};
    for (size_t i = 0; i < sizeof at / sizeof *at; i++)
        if (!strcmp(at[i].path, rq->path)) {
            a->status = 200;
            buf_str(&a->body, at[i].body);
            return;
        }
    buf_str(&a->body, "{}");
}

static void keys_of_a_launch_are_not_kept(void **state)
{
    (void)state;
    struct play play;
    struct http *h;
    struct server s;
    struct err e;
    struct buf json = {0};
    char url[128];
    play_open(&play, choose_sglang, NULL);
    snprintf(url, sizeof url, "http://me:sk-five@127.0.0.1:%d/?api_key=sk-six", play.port);
    assert_true(http_open(&h, &(struct http_opts){.url = url}, &e));
    assert_null(strstr(http_url(h), "sk-"));
    assert_null(strstr(http_url(h), "me"));
    http_close(h);
    assert_true(http_open(&h, &(struct http_opts){.url = play.url}, &e));
    if (!server_probe(&s, h, NULL, &e))
        fail_msg("%s", e.msg);
    assert_int_equal(s.kind, SERVER_SGLANG);
    server_facts_json(&s, &json);
    assert_null(strstr(json.p, "sk-"));
    static const char *const kept[] = {"\"tp_size\":2", "\"num_key_value_heads\":8",
                                       "\"bos_token\":\"<s>\"",
                                       "\"enable_metrics\":true", "\"quantization\":null",
                                       "\"model_path\":\"/home/me/models/gpt\""};
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
        if (!strstr(json.p, kept[i]))
            fail_msg("%s is not in %s", kept[i], json.p);
    buf_free(&json);
    server_free(&s);
    http_close(h);
    play_close(&play);
}

/* ---- metrics --------------------------------------------------------------------------------- */

static const struct served_metric *find(const struct served *s, const char *name,
                                        const char *labels)
{
    for (int i = 0; i < s->n_metric; i++)
        if (!strcmp(s->metric[i].name, name) && !strcmp(s->metric[i].labels, labels))
            return &s->metric[i];
    return NULL;
}

static void two_pages_become_pairs(void **state)
{
    (void)state;
    struct buf before = {0}, after = {0};
    struct served *s = served_new();
    buf_str(&before, "# HELP x\nvllm:tokens_total{engine=\"0\",model_name=\"m\"} 5\n"
                     "vllm:tokens_total{engine=\"1\",model_name=\"m\"} 7\n"
                     "vllm:gone{model_name=\"m\"} 1\n"
                     "vllm:tokens_total{engine=\"0\",model_name=\"other\"} 99\n"
                     "vllm:t_bucket{le=\"1\"} 3\nvllm:t_sum 2.5\nvllm:t_created "
                     "9\nvllm:c_info{a=\"b\"} 1\nprocess_open_fds 4\nvllm:nan NaN\n");
    buf_str(&after, "vllm:tokens_total{model_name=\"m\",engine=\"0\"} 8\n"
                    "vllm:tokens_total{engine=\"1\",model_name=\"m\"} 7\nvllm:new{a=\"x,\\\"y\"} "
                    "2\nvllm:t_sum 3.5\n");
    page_pair_join(&before, &after, "m", s);
    const struct served_metric *m = find(s, "vllm:tokens_total", "engine=\"0\"");
    assert_non_null(m);
    assert_true(m->before > 4.9 && m->before < 5.1 && m->after > 7.9 && m->after < 8.1);
    assert_non_null(find(s, "vllm:tokens_total", "engine=\"1\""));
    assert_true(isnan(find(s, "vllm:gone", "")->after));
    assert_true(isnan(find(s, "vllm:new", "a=\"x,\\\"y\"")->before));
    assert_true(find(s, "vllm:t_sum", "")->after > 3.4);
    assert_int_equal(s->n_metric, 5);
    served_free(s);
    buf_free(&before);
    buf_free(&after);
}

static void pages_are_bounded(void **state)
{
    (void)state;
    struct buf page = {0}, none = {0};
    struct served *s = served_new();
    for (int i = 0; i < 2 * SERVED_METRICS; i++)
        buf_printf(&page, "vllm:m%d 1\n", i);
    page_pair_join(&none, &page, "m", s);
    assert_int_equal(s->n_metric, SERVED_METRICS);
    served_free(s);
    buf_free(&page);
}

/* ---- requests by ids ------------------------------------------------------------------------- */

/* A server of one kind: the endpoint by which it is known, and its answer to a prompt of ids. */
struct ids_server {
    const char *known, *path, *answer;
    struct buf asked; /* the bodies, a line each */
    int busy;         /* requests by POST that are refused before one is answered */
};

static void choose_by_ids(void *arg, const struct play_request *rq, struct play_answer *a)
{
    struct ids_server *s = arg;
    const char *body = !strcmp(rq->path, s->known)         ? "{\"version\":\"1\"}"
                       : !strcmp(rq->path, "/v1/models")   ? "{\"data\":[{\"id\":\"m\"}]}"
                       : !strcmp(rq->path, s->path)        ? s->answer
                       : !strcmp(rq->path, "/tokenize")    ? "{\"tokens\":[4,5,6]}"
                                                           : NULL;
    *a = (struct play_answer){.status = body ? 200 : 404, .type = "application/json"};
    if (rq->body.n && s->busy && s->busy--) {
        a->status = 429;
        a->header = "Retry-After: 0\r\n";
    }
    buf_str(&a->body, body ? body : "{}");
    if (!strcmp(rq->path, s->path))
        buf_printf(&s->asked, "%s\n", rq->body.p);
}

static struct upkeep *open_by_ids(struct play *play, struct ids_server *s)
{
    struct err e;
    play_open(play, choose_by_ids, s);
    struct upkeep *u = upkeep_open(&(struct server_opts){.url = play->url}, NULL, &e);
    if (!u)
        fail_msg("%s", e.msg);
    return u;
}

/* Each kind is asked in its own form, and its ids and log probabilities are read. */
static void prompts_of_ids_are_asked_in_each_form(void **state)
{
    static const struct { const char *known, *path, *answer, *asked[4]; bool at_once; } c[] = {
        {"/version", "/v1/completions",
         "{\"choices\":[{\"text\":\"a\",\"token_ids\":[7,8],\"logprobs\":{\"tokens\":[\"token_id:7\",\"token_id:8\"],"
         "\"token_logprobs\":[-0.5,-0.25],\"top_logprobs\":[{\"token_id:7\":-0.5,\"token_id:9\":-1.5},{\"token_id:8\":-0.25}]},"
         "\"prompt_logprobs\":[null,{\"5\":{\"logprob\":-3}},{\"6\":{\"logprob\":-2}}]}],\"usage\":"
         "{\"prompt_tokens_details\":{\"cached_tokens\":2}}}",
         {"\"prompt\":[4,5,6]", "\"ignore_eos\":true", "\"cache_salt\":\"here\"",
          "\"prompt_logprobs\":0"}, true},
        {"/get_model_info", "/generate",
         "{\"text\":\"a\",\"output_ids\":[7,8],\"meta_info\":{\"completion_tokens\":2,\"cached_tokens\":2,"
         "\"output_token_logprobs\":[[-0.5,7,null],[-0.25,8,null]],\"output_top_logprobs\":[[[-0.5,7,null],[-1.5,9,null]],null],"
         "\"input_token_logprobs\":[[null,4,null],[-3,5,null],[-2,6,null]]}}",
         {"\"input_ids\":[4,5,6]", "\"max_new_tokens\":2", "\"extra_key\":\"here\"",
          "\"logprob_start_len\":0"}, true},
        {"/props", "/completion",
         "{\"content\":\"a\",\"tokens\":[7,8],\"stop\":true,\"completion_probabilities\":[{\"id\":7,\"token\":\"a\",\"logprob\":-0.5,"
         "\"top_logprobs\":[{\"id\":7,\"token\":\"a\",\"logprob\":-0.5},{\"id\":9,\"token\":\"b\",\"logprob\":-1.5}]},{\"id\":8,\"logprob\":-0.25}],"
         "\"timings\":{\"cache_n\":2}}",
         {"\"prompt\":[4,5,6]", "\"n_predict\":2", "\"cache_prompt\":true",
          "\"return_tokens\":true"}, false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        struct ids_server s = {.known = c[i].known, .path = c[i].path, .answer = c[i].answer};
        struct play play;
        struct upkeep *u = open_by_ids(&play, &s);
        struct ids_ask a = {.most = 2, .score = c[i].at_once, .arena = "here"};
        struct err e;
        assert_true(ids_can_ask(u, &e) && ids_scores_at_once(u) == c[i].at_once);
        assert_true(ids_of_text(u, "four five six", &a.prompt, NULL, &e) && a.prompt.n == 3);
        ids_ask_all(u, &a, 1, NULL, NULL, NULL);
        if (!a.done)
            fail_msg("%s: %s", c[i].path, a.why.msg);
        assert_true(a.reply.n == 2 && a.reply.v[0] == 7 && a.reply.v[1] == 8 && a.cached == 2);
        if (a.logp[0] != -0.5F || a.logp[1] != -0.25F || a.margin[0] != 1)
            fail_msg("%s: %g, %g, margin %g", c[i].path, (double)a.logp[0], (double)a.logp[1],
                     (double)a.margin[0]);
        if (c[i].at_once)
            assert_true(isnan(a.prompt_logp[0]) && a.prompt_logp[1] == -3 &&
                        a.prompt_logp[2] == -2);
        for (int k = 0; k < 4; k++)
            if (!strstr(s.asked.p, c[i].asked[k]))
                fail_msg("%s: no %s in %s", c[i].path, c[i].asked[k], s.asked.p);
        float logp[3] = {NAN, NAN, NAN};
        a.prompt.v[2] = c[i].at_once ? 6 : 9; /* by token: the answer's row has 7 and 9 */
        assert_true(ids_score(u, &a.prompt, 2, logp, NULL, &e));
        assert_true(isnan(logp[1]) && logp[2] == (c[i].at_once ? -2 : -1.5F));
        ids_ask_free(&a);
        ids_free(&a.prompt);
        upkeep_close(u);
        play_close(&play);
        buf_free(&s.asked);
    }
}

/* A kind that takes no ids is refused by name; an answer without ids or with an error is one
 * line. */
static void servers_without_ids_are_refused(void **state)
{
    static const char *const answer[] = {"{\"choices\":[{\"text\":\"a\"}]}",
                                         "{\"error\":{\"message\":\"no room\"}}",
                                         "[]", "{\"choices\":[{\"logprobs\":{\"tokens\":[\"a\"],\"token_logprobs\":[-1]}}]}",
                                         "{\"choices\":[{\"token_ids\":[7],\"logprobs\":{\"tokens\":[\"a\"],\"token_logprobs\":[5]}}]}"};
    static const char *const why[] = {"no tokens", "no room", "no JSON object", "no id of token 1",
                                      "the log probability 5 of token 1"};
    struct err e;
    struct play play;
    struct ids_server ollama = {.known = "/api/version", .path = "/none"};
    (void)state;
    struct upkeep *u = open_by_ids(&play, &ollama);
    assert_false(ids_can_ask(u, &e));
    assert_non_null(strstr(e.msg, "ollama"));
    upkeep_close(u);
    play_close(&play);
    for (int i = 0; i < 5; i++) {
        struct ids_server s = {.known = "/version", .path = "/v1/completions", .answer = answer[i]};
        int32_t id = 4;
        struct ids_ask a = {.prompt = {.v = &id, .n = 1}, .most = 1};
        u = open_by_ids(&play, &s);
        ids_ask_all(u, &a, 1, NULL, NULL, NULL);
        assert_false(a.done);
        if (!strstr(a.why.msg, why[i]))
            fail_msg("%s instead of %s", a.why.msg, why[i]);
        ids_ask_free(&a);
        upkeep_close(u);
        play_close(&play);
        buf_free(&s.asked);
    }
}

/* What a server refuses before any work is asked again, a few times. */
static void a_busy_server_is_asked_again(void **state)
{
    struct ids_server s = {.known = "/version", .path = "/v1/completions",
                           .answer = "{\"choices\":[{\"text\":\"a\",\"token_ids\":[7]}]}"};
    struct play play;
    struct upkeep *u = open_by_ids(&play, &s);
    struct ids_ask a = {.most = 1};
    struct err e;
    (void)state;
    s.busy = RETRIES;
    assert_true(ids_of_text(u, "four five six", &a.prompt, NULL, &e) && a.prompt.n == 3);
    s.busy = RETRIES;
    ids_ask_all(u, &a, 1, NULL, NULL, NULL);
    assert_true(a.done && a.reply.n == 1 && s.busy == 0);
    s.busy = RETRIES + 1;
    ids_ask_all(u, &a, 1, NULL, NULL, NULL);
    assert_true(!a.done && a.status == 429 && s.busy == 0);
    ids_ask_free(&a);
    ids_free(&a.prompt);
    upkeep_close(u);
    play_close(&play);
    buf_free(&s.asked);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_of_a_launch_are_not_kept),
        cmocka_unit_test(prompts_of_ids_are_asked_in_each_form),
        cmocka_unit_test(servers_without_ids_are_refused),
        cmocka_unit_test(a_busy_server_is_asked_again),
        cmocka_unit_test(two_pages_become_pairs),
        cmocka_unit_test(pages_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
