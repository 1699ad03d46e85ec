/* The facts and metrics of a server that the log keeps: never a key, never another model's
 * numbers. */
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
    if (!server_probe(&s, h, NULL, NULL, &e))
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_of_a_launch_are_not_kept),
        cmocka_unit_test(two_pages_become_pairs),
        cmocka_unit_test(pages_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
