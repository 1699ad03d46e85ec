/* test_records.c - requests and replies of files: each known form, what is missing, and hostile
 * lines. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/remote/records.h"

static void get(const char *line, struct record *r)
{
    struct err e = {0};
    if (!record_read(r, line, strlen(line), &e))
        fail_msg("%s: %s", line, e.msg);
}

static void refused(const char *line, const char *why)
{
    struct record r;
    struct err e = {0};
    if (record_read(&r, line, strlen(line), &e))
        fail_msg("taken: %s", line);
    if (!strstr(e.msg, why))
        fail_msg("%s: \"%s\" does not say %s", line, e.msg, why);
    assert_int_equal(e.kind, ERR_USAGE);
    assert_null(r.text);
    assert_int_equal(r.n_past, 0);
}

static void assert_ids(const struct ids *ids, int n, const int32_t *want)
{
    assert_int_equal(ids->n, n);
    assert_memory_equal(ids->v, want, (size_t)n * sizeof *want);
}

static void test_a_batch_request_and_its_reply(void **unused)
{
    (void)unused;
    struct record rq, rs;
    get("{\"custom_id\":\"q7\",\"method\":\"POST\",\"url\":\"/v1/chat/completions\",\"body\":{\"model\":\"m\",\"temperature\":0,"
        "\"max_tokens\":24,\"top_k\":-1,\"messages\":[{\"role\":\"system\",\"content\":\"Be "
        "brief.\"},{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"},{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"c\"},{\"type\":\"image_url\"}]}]}}",
        &rq);
    assert_true(rq.request && !rq.reply && !rq.raw);
    assert_string_equal(rq.name, "q7");
    assert_string_equal(rq.system, "Be brief.");
    assert_int_equal(rq.n_past, 1);
    assert_string_equal(rq.past[0].user, "a");
    assert_string_equal(rq.past[0].reply, "b");
    assert_string_equal(rq.text, "c");
    assert_int_equal(rq.left_out, 1);
    assert_string_equal(rq.settings.p, "temperature=0\ntop_k=0\nmax_tokens=24\n");
    get("{\"id\":\"x\",\"custom_id\":\"q7\",\"error\":null,\"response\":{\"status_code\":200,\"body\":{\"model\":\"m\",\"system_fingerprint\":"
        "\"vllm-0.26.0\",\"created\":1700000000,\"prompt_token_ids\":[2,4],\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"d\","
        "\"reasoning\":\"hm\"},\"token_ids\":[7,8],\"finish_reason\":\"stop\",\"logprobs\":{\"content\":[{\"token\":\"token_id:7\",\"logprob\":-0.5,"
        "\"top_logprobs\":[{\"token\":\"token_id:7\",\"logprob\":-0.5},{\"token\":\"token_id:9\",\"logprob\":-1.5}]},{\"token\":\"token_id:8\",\"logprob\":-0.25}]}}],"
        "\"usage\":{\"prompt_tokens\":2,\"completion_tokens\":2,\"prompt_tokens_details\":{\"cached_tokens\":1}}}}}",
        &rs);
    assert_true(rs.reply && !rs.request);
    record_join(&rs, &rq);
    assert_true(rs.request);
    assert_string_equal(rs.text, "c");
    assert_string_equal(rs.answer, "d");
    assert_string_equal(rs.thought, "hm");
    assert_string_equal(rs.server, "vllm-0.26.0");
    assert_ids(&rs.prompt, 2, (int32_t[]){2, 4});
    assert_int_equal(rs.n_token, 2);
    assert_int_equal(rs.token[0].id, 7);
    assert_int_equal(rs.token[0].rival, 9);
    assert_true(rs.token[0].logp == -0.5F && rs.token[0].rival_logp == -1.5F &&
                isnan(rs.token[1].rival_logp));
    assert_true(rs.count.prompt == 2 && rs.count.generated == 2 && rs.count.cached == 1 &&
                rs.count.drafted == -1);
    assert_int_equal(rs.reason, STOP_END);
    assert_string_equal(rs.finish, "stop");
    record_free(&rs);
    record_free(&rq);
}

static void test_a_failed_request_keeps_its_reason(void **unused)
{
    (void)unused;
    struct record r;
    get("{\"custom_id\":\"a\",\"response\":{\"status_code\":404,\"body\":{\"error\":{\"message\":\"no such model\"}}},\"error\":null}",
        &r);
    assert_string_equal(r.error, "status 404");
    record_free(&r);
    get("{\"custom_id\":\"a\",\"response\":null,\"error\":{\"code\":\"expired\",\"message\":\"too "
        "late\"}}", &r);
    assert_string_equal(r.error, "too late");
    assert_true(r.reply && r.reason == STOP_FAULT && r.n_token == 0);
    record_free(&r);
}

static void test_plain_lines(void **unused)
{
    (void)unused;
    struct record r;
    get("{\"prompt\":\"Once\",\"choices\":[{\"text\":\" upon\",\"finish_reason\":\"length\"}]}",
        &r);
    assert_true(r.raw && r.request && r.reply);
    assert_string_equal(r.text, "Once");
    assert_string_equal(r.answer, " upon");
    assert_int_equal(r.reason, STOP_MAX);
    assert_true(r.n_token == 0 && r.count.generated == -1 && r.prompt.n == 0);
    record_free(&r);
    get("{\"prompt\":[5,6],\"choices\":[{\"text\":\"x\",\"token_ids\":[9],\"finish_reason\":\"stop\"},{\"text\":\"y\"}]}",
        &r);
    assert_ids(&r.prompt, 2, (int32_t[]){5, 6});
    assert_string_equal(r.text, "");
    assert_int_equal(r.choices, 2);
    assert_true(r.n_token == 1 && r.token[0].id == 9 && isnan(r.token[0].logp));
    record_free(&r);
    get("{\"prompt\":\"Hi\",\"prompt_token_ids\":[1,2,3],\"outputs\":[{\"index\":0,\"text\":\"yes\",\"token_ids\":[4],\"finish_reason\":\"stop\"}]}",
        &r);
    assert_ids(&r.prompt, 3, (int32_t[]){1, 2, 3});
    assert_string_equal(r.answer, "yes");
    assert_int_equal(r.token[0].id, 4);
    record_free(&r);
}

static void test_an_sglang_dump(void **unused)
{
    (void)unused;
    struct record r;
    get("{\"server\":\"SGLang\",\"rid\":\"r1\",\"created_time\":1700000000.5,\"request\":{\"input_ids\":[1,2],\"sampling_params\":{\"temperature\":0.5,"
        "\"max_new_tokens\":8},\"model\":\"m\"},\"response\":{\"text\":\"ok\",\"output_ids\":[3,4],\"meta_info\":{\"prompt_tokens\":2,"
        "\"completion_tokens\":2,\"cached_tokens\":1,\"spec_verify_ct\":1,\"finish_reason\":{\"type\":\"stop\",\"matched\":4},"
        "\"output_token_logprobs\":[[-0.5,3,null],[-0.25,4,null]]}}}",
        &r);
    assert_string_equal(r.name, "r1");
    assert_string_equal(r.server, "SGLang");
    assert_true(r.raw && r.n_token == 2 && r.token[1].id == 4 && r.token[1].logp == -0.25F);
    assert_string_equal(r.settings.p, "temperature=0.5\nmax_tokens=8\n");
    assert_int_equal(r.reason, STOP_END);
    assert_true(r.created > 1.6e9);
    record_free(&r);
    get("{\"server\":\"SGLang\",\"rid\":\"r2\",\"request\":{\"text\":\"Hi\"}}",
        &r); /* it ran when the server died */
    assert_true(r.request && !r.reply);
    assert_string_equal(r.text, "Hi");
    record_free(&r);
}

static void test_ids_of_a_part_are_not_taken_for_the_whole(void **unused)
{
    (void)unused;
    struct record r;
    get("{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"choices\":[{\"text\":\"x y "
        "z\",\"token_ids\":[9],\"finish_reason\":\"stop\"}],\"usage\":{\"completion_tokens\":3}}",
        &r);
    assert_int_equal(r.n_token, 0);
    assert_int_equal(r.count.generated, 3);
    record_free(&r);
}

static void test_messages_out_of_turn_are_joined(void **unused)
{
    (void)unused;
    struct record r;
    get("{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"tool\",\"content\":\"b\"},{\"role\":\"assistant\",\"content\":\"c\"},"
        "{\"role\":\"assistant\",\"content\":null}]}",
        &r);
    assert_int_equal(r.joined, 2);
    assert_int_equal(r.n_past, 1);
    assert_string_equal(r.past[0].user, "a\nb");
    assert_string_equal(r.text, "");
    record_free(&r);
}

static void test_lines_that_are_no_records(void **unused)
{
    (void)unused;
    refused("", "");
    refused("{", "");
    refused("[1]", "no JSON object");
    refused("{}", "neither a request");
    refused("{\"messages\":[]}", "0 messages");
    refused("{\"messages\":[{\"content\":\"a\"}]}", "message 1 has no role");
    refused("{\"prompt\":[\"a\",\"b\"]}", "2 prompts in one request");
    refused("{\"prompt\":[[1],[2]]}", "2 prompts in one request");
    refused("{\"prompt\":[1,-2]}", "item 2 of the prompt's ids");
    refused("{\"prompt\":[1,99999999999]}", "item 2 of the prompt's ids");
    refused("{\"prompt\":7}", "neither a text nor a list");
    refused("{\"body\":{\"model\":\"m\"},\"custom_id\":\"x\"}", "neither messages nor a prompt");
    refused("{\"request\":{\"prompt\":\"a\"},\"response\":{\"body\":\"data: {}\"}}",
            "no JSON object");
    refused("{\"prompt\":\"\xff\"}", "");
}

/* Mutated records neither crash nor leak, and what is taken is whole. */
static void test_mutated_lines(void **unused)
{
    (void)unused;
    static const char line[] =
        "{\"custom_id\":\"q\",\"request\":{\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"a\"}],\"seed\":3},"
        "\"response\":{\"text\":\"ok\",\"output_ids\":[3,4],\"choices\":[{\"message\":{\"content\":\"d\"},\"token_ids\":[7,8],\"logprobs\":{\"content\":"
        "[{\"token\":\"a\",\"logprob\":-1,\"id\":7}]}}],\"meta_info\":{\"prompt_tokens\":2,\"output_token_logprobs\":[[-0.5,3,null]]},"
        "\"metrics\":{\"speculative_decoding\":{\"per_step_accepted\":[1,2],\"per_step_drafted\":[5,5]}}}}";
    static const char *const part[] = {"null",  "[]", "{}", "-1",   "1e999",
                                       "\"x\"", ",",  "\"", "[[[[", "}"};
    uint64_t state = 11;
    int taken = 0;
    for (int round = 0; round < 20000; round++) {
        struct buf text = {0};
        state = mix64(state + 1);
        size_t n = sizeof line - 1, from = state % n, len = (state >> 20) % 12;
        buf_add(&text, line, from);
        if (state >> 40 & 1)
            buf_str(&text, part[(state >> 41) % (sizeof part / sizeof *part)]);
        else if (state >> 50 & 1)
            buf_char(&text, (char)(state >> 51));
        if (from + len < n)
            buf_add(&text, line + from + len, n - from - len);
        buf_str(&text, "");
        struct record r;
        struct err e = {0};
        if (record_read(&r, text.p, text.n, &e)) {
            taken++;
            assert_true(r.request || r.reply);
            assert_true(!r.request || r.text);
            for (int i = 0; i < r.n_token; i++)
                assert_true(r.token[i].id >= 0);
            record_free(&r);
        } else {
            assert_true(e.kind == ERR_USAGE && e.msg[0]);
        }
        buf_free(&text);
    }
    assert_true(taken > 500 && taken < 19000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_batch_request_and_its_reply),
        cmocka_unit_test(test_a_failed_request_keeps_its_reason),
        cmocka_unit_test(test_plain_lines),
        cmocka_unit_test(test_an_sglang_dump),
        cmocka_unit_test(test_ids_of_a_part_are_not_taken_for_the_whole),
        cmocka_unit_test(test_messages_out_of_turn_are_joined),
        cmocka_unit_test(test_lines_that_are_no_records),
        cmocka_unit_test(test_mutated_lines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
