/* test_serve_front.c - requests and answers of `aerie serve`, and what its clients do wrong, over a
 * made-up engine: tests/serve_front.h. */
#include "tests/serve_front.h"

#include <sqlite3.h>

#include "engine/remote/metrics.h"
#include "tests/few.h"
#include "tests/scratch.h"

#include <time.h>

#define CHAT "/v1/chat/completions"
#define COMPLETIONS "/v1/completions"
#define ASKED "\"messages\":[{\"role\":\"user\",\"content\":\"What is a KV cache?\"}]"
static const char said[] = "The KV cache stores the keys and values of earlier tokens so that they "
"need not be "
                           "computed again.";

static const char *text_at(const json_t *o, const char *path)
{
    char key[64];
    while (*path) {
        size_t n = strcspn(path, ".");
        snprintf(key, sizeof key, "%.*s", (int)n, path);
        o = json_is_array(o) ? json_array_get(o, (size_t)atoi(key)) : json_object_get(o, key);
        path += n + (path[n] == '.');
    }
    return json_is_string(o) ? json_string_value(o) : "";
}

/* ---- shapes ---------------------------------------------------------------------------------- */

/* Every field of vLLM's recorded object is here, of the same type, or null on either side. */
static void assert_shape(const json_t *theirs, const json_t *ours, const char *where)
{
    const char *key;
    json_t *v;
    if (json_is_null(theirs) || json_is_null(ours))
        return;
    if (json_typeof(theirs) != json_typeof(ours) &&
        !(json_is_number(theirs) && json_is_number(ours))) fail_msg("%s: another type", where);
    if (json_is_array(theirs) && json_array_size(theirs) && json_array_size(ours))
        assert_shape(json_array_get(theirs, 0), json_array_get(ours, 0), where);
    if (!json_is_object(theirs) || strstr(where, "top_logprobs.") ||
        !strcmp(where, "prompt_logprobs")) return;
    json_object_foreach((json_t *)theirs, key, v) {
        char at[256];
        if (!strcmp(where, "top_logprobs") && !json_object_get(theirs, "token"))
            return; /* a legacy row: its keys are tokens */
        if (!json_object_get(ours, key))
            fail_msg("%s: no field \"%s\"", where, key);
        snprintf(at, sizeof at, "%s", key);
        assert_shape(v, json_object_get(ours, key), at);
    }
}

static void read_recorded(const char *name, struct buf *out)
{
    struct err e;
    char path[128];
    snprintf(path, sizeof path, "tests/exchanges/%s", name);
    if (!buf_read_file(out, path, 1 << 20, &e))
        fail_msg("%s", e.msg);
    const char *p = strchr(strchr(out->p, '\n') + 1, '\n') + 1;
    out->n -= (size_t)(p - out->p);
    memmove(out->p, p, out->n + 1);
}

static json_t *event_at(const struct buf *b, int i)
{
    const char *p = b->p;
    for (; p && i > 0; i--)
        p = strstr(p + 1, "data: ");
    assert_non_null(p);
    json_t *o = json_loads(p + 6, JSON_DISABLE_EOF_CHECK, NULL);
    assert_non_null(o);
    return o;
}

static int count_events(const struct buf *b)
{
    int n = 0;
    for (const char *p = b->p; (p = strstr(p, "data: ")); p += 6)
        n++;
    return n;
}

/* Compares the kinds of chunks of a stream: first, middle, last with a reason, usage. */
static void compare_stream(struct desk *d, const char *recorded, const char *path, const char *body)
{
    struct buf theirs = {0}, ours = {0};
    read_recorded(recorded, &theirs);
    assert_int_equal(desk_ask(d, "POST", path, "", body, &ours), 200);
    int n = count_events(&theirs), m = count_events(&ours), from_end[] = {3, 2};
    for (int i = 0; i < 2; i++) {
        json_t *a = event_at(&theirs, i), *b = event_at(&ours, i);
        assert_shape(a, b, recorded);
        json_decref(a);
        json_decref(b);
        a = event_at(&theirs, n - from_end[i]);
        b = event_at(&ours, m - from_end[i]);
        assert_shape(a, b, recorded);
        json_decref(a);
        json_decref(b);
    }
    assert_non_null(strstr(ours.p, "data: [DONE]\n\n"));
    buf_free(&theirs);
    buf_free(&ours);
}

static void test_shapes_are_those_of_vllm(void **state)
{
    static const struct { const char *file, *path, *body; } whole[] = {
        {"vllm-echo", COMPLETIONS,
         "{\"prompt\":[2,4,516,267,204,371],\"max_tokens\":2,\"echo\":true,\"logprobs\":1}"},
        {"vllm-err-model", CHAT, "{\"model\":\"nope\"," ASKED "}"},
        {"vllm-err-context", CHAT, "{\"max_tokens\":4096," ASKED "}"},
        {"vllm-models", "/v1/models", NULL},
        {"vllm-version", "/version", NULL},
        {"vllm-tokenize", "/tokenize", "{" ASKED ",\"return_token_strs\":true}"},
    };
    static const int status[] = {200, 404, 400, 200, 200, 200};
    struct desk d;
    (void)state;
    desk_open(&d, NULL);
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++) {
        struct buf b = {0};
        read_recorded(whole[i].file, &b);
        json_t *theirs = json_loads(b.p, 0, NULL),
            *ours = desk_json(&d, whole[i].path, whole[i].body, status[i]);
        assert_shape(theirs, ours, whole[i].file);
        if (!strcmp(whole[i].file, "vllm-tokenize"))
            assert_true(json_equal(json_object_get(theirs, "tokens"),
                                   json_object_get(ours, "tokens")) &&
                        json_equal(json_object_get(theirs, "token_strs"),
                                   json_object_get(ours, "token_strs")));
        json_decref(theirs);
        json_decref(ours);
        buf_free(&b);
    }
    compare_stream(&d, "vllm-chat", CHAT,
                   "{\"stream\":true,\"logprobs\":true,\"top_logprobs\":4,\"return_token_ids\":true,\"stream_options\":{\"include_usage\":true}," ASKED "}");
    compare_stream(&d, "vllm-completion", COMPLETIONS,
                   "{\"stream\":true,\"logprobs\":4,\"return_token_ids\":true,\"stream_options\":{\"include_usage\":true},\"prompt\":[2,4,516],\"max_tokens\":100}");
    desk_close(&d);
}

/* The recorded text offsets, of vLLM with the same tokenizer. */
static void test_echoed_prompt_has_offsets_and_log_probabilities(void **state)
{
    struct desk d;
    struct buf b = {0};
    (void)state;
    desk_open(&d, NULL);
    fake_script(&d.f, "The KV cache");
    read_recorded("vllm-echo", &b);
    json_t *theirs = json_loads(b.p, 0, NULL);
    json_t *ours = desk_json(&d, COMPLETIONS,
                             "{\"prompt\":[2,4,516,267,204,371,291,263,1163,1066,36,5,204,4,2895,333,204],\"max_tokens\":2,\"echo\":true,\"logprobs\":1}", 200);
    json_t *a = json_array_get(json_object_get(theirs, "choices"), 0),
        *c = json_array_get(json_object_get(ours, "choices"), 0);
    static const char *const same[] = {"text_offset", "tokens"};
    assert_string_equal(text_at(a, "text"), text_at(c, "text"));
    for (int i = 0; i < 2; i++)
        assert_true(json_equal(json_object_get(json_object_get(a, "logprobs"), same[i]),
                               json_object_get(json_object_get(c, "logprobs"), same[i])));
    json_t *logp = json_object_get(json_object_get(c, "logprobs"), "token_logprobs");
    assert_true(json_is_null(json_array_get(logp, 0)));
    assert_true(json_number_value(json_array_get(logp, 2)) == (double)fake_logp(516));
    json_decref(theirs);
    json_decref(ours);
    /* a text's own bos is a token of no width; no tokens are wanted: the prompt alone */
    ours = desk_json(&d, COMPLETIONS,
                     "{\"prompt\":\"Hello, world\",\"max_tokens\":0,\"echo\":true,\"logprobs\":0}",
                     200);
    c = json_array_get(json_object_get(ours, "choices"), 0);
    assert_string_equal(text_at(c, "text"), "Hello, world");
    assert_string_equal(text_at(c, "finish_reason"), "length");
    json_t *offset = json_object_get(json_object_get(c, "logprobs"), "text_offset"),
        *want = json_loads("[0,0,5,6]", 0, NULL);
    assert_true(json_equal(offset, want));
    json_decref(want);
    json_decref(ours);
    buf_free(&b);
    desk_close(&d);
}

/* ---- replies --------------------------------------------------------------------------------- */

static void join_stream(const struct buf *b, bool chat, struct buf *text, struct ids *ids,
                        struct buf *finish)
{
    for (const char *p = b->p; (p = strstr(p, "data: {")); p++) {
        json_t *o = json_loads(p + 6, JSON_DISABLE_EOF_CHECK, NULL);
        json_t *c = json_array_get(json_object_get(o, "choices"), 0), *id;
        size_t k;
        buf_str(text, text_at(c, chat ? "delta.content" : "text"));
        json_array_foreach(json_object_get(c, "token_ids"), k, id)
            ids_add(ids, (int32_t)json_integer_value(id));
        buf_str(finish, text_at(c, "finish_reason"));
        json_decref(o);
    }
}

/* Whatever tokens come in one step: text, ids and reason are the same, streamed or whole. */
static void test_steps_change_no_byte_of_a_reply(void **state)
{
    static const struct { const char *stop, *text, *reason; int tokens; } cases[] = {
        {"", said, "stop", 21},
        {",\"stop\":\"the\"", "The KV cache stores ", "stop", 5},
        {",\"stop\":[\"zzz\",\" values of\"]", "The KV cache stores the keys and", "stop", 9},
        {",\"stop\":\"keys\",\"include_stop_str_in_output\":true", "The KV cache stores the keys",
         "stop", 6},
        {",\"stop\":[\"again.!\"]", said, "stop", 21},
        {",\"max_tokens\":6", "The KV cache stores the keys", "length", 6},
        {",\"stop_token_ids\":[269]", "The KV cache stores", "stop", 5},
        {",\"stop\":[\"T\"]", "", "stop", 1},
    };
    struct desk d;
    (void)state;
    desk_open(&d, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int step = 0; step < 7; step++) {
            char body[400];
            struct buf b = {0}, text = {0}, finish = {0};
            struct ids ids = {0};
            d.f.step = step;
            buf_str(&text, "");
            snprintf(body, sizeof body, "{\"return_token_ids\":true%s," ASKED "}", cases[i].stop);
            json_t *o = desk_json(&d, CHAT, body, 200),
                *c = json_array_get(json_object_get(o, "choices"), 0);
            assert_string_equal(text_at(c, "message.content"), cases[i].text);
            assert_string_equal(text_at(c, "finish_reason"), cases[i].reason);
            assert_int_equal(json_array_size(json_object_get(c, "token_ids")), cases[i].tokens);
            assert_int_equal(json_integer_value(json_object_get(json_object_get(o, "usage"),
                                                                "completion_tokens")),
                             cases[i].tokens);
            json_decref(o);
            snprintf(body, sizeof body, "{\"stream\":true,\"return_token_ids\":true%s," ASKED "}",
                     cases[i].stop);
            assert_int_equal(desk_ask(&d, "POST", CHAT, "", body, &b), 200);
            join_stream(&b, true, &text, &ids, &finish);
            assert_string_equal(text.p, cases[i].text);
            assert_string_equal(finish.p, cases[i].reason);
            assert_int_equal(ids.n, cases[i].tokens);
            ids_free(&ids);
            buf_free(&b);
            buf_free(&text);
            buf_free(&finish);
        }
    desk_close(&d);
}

/* A character of several tokens is sent whole, whichever step completes it. */
static void test_streams_send_whole_characters(void **state)
{
    static const char odd[] = "a \xf0\x9f\xa6\x86 b \xe2\x82\xac\xe2\x82\xac c";
    struct desk d;
    (void)state;
    desk_open(&d, NULL);
    fake_script(&d.f, odd);
    for (int step = 1; step < 5; step++) {
        struct buf b = {0}, text = {0}, finish = {0};
        struct ids ids = {0};
        d.f.step = step;
        assert_int_equal(desk_ask(&d, "POST", COMPLETIONS, "",
                                  "{\"stream\":true,\"prompt\":\"x\",\"max_tokens\":99}", &b), 200);
        join_stream(&b, false, &text, &ids, &finish);
        assert_string_equal(text.p, odd);
        ids_free(&ids);
        buf_free(&b);
        buf_free(&text);
        buf_free(&finish);
    }
    desk_close(&d);
}

/* The bundled tokenizer with the marks of a format that thinks. */
static void write_thinking(const char *folder)
{
    static const char *const mark[] = {"<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>",
                                       "</think>"};
    char path[512];
    json_t *o = json_load_file(NESTLING "/tokenizer.json", 0, NULL);
    assert_non_null(o);
    for (int i = 0; i < 5; i++)
        json_array_append_new(json_object_get(o, "added_tokens"),
                              json_pack("{s:i,s:s,s:b}", "id", 4096 + i, "content", mark[i],
                                        "special", i < 3));
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    assert_int_equal(json_dump_file(o, path, 0), 0);
    json_decref(o);
}

/* A thought is the message's reasoning and no part of its content; stop texts look at the
 * content. */
static void test_thoughts_are_apart(void **state)
{
    char *folder = scratch_folder();
    struct desk d;
    (void)state;
    write_thinking(folder);
    desk_open_as(&d, NULL, folder, "qwen3", NULL);
    /* the template's switch: an empty thought at the end of the prompt, the same for /tokenize */
    json_t *as[] = {
        desk_json(&d, "/tokenize", "{" ASKED "}", 200),
        desk_json(&d, "/tokenize",
                  "{\"chat_template_kwargs\":{\"enable_thinking\":false}," ASKED "}", 200),
        desk_json(&d, "/tokenize", "{\"reasoning_effort\":\"none\"," ASKED "}", 200)};
    assert_true(json_array_size(json_object_get(as[0], "tokens")) <
                json_array_size(json_object_get(as[1], "tokens")));
    assert_true(json_equal(json_object_get(as[1], "tokens"), json_object_get(as[2], "tokens")));
    for (int i = 0; i < 3; i++)
        json_decref(as[i]);
    json_decref(desk_json(&d, CHAT,
                          "{\"max_tokens\":1,\"chat_template_kwargs\":{\"enable_thinking\":true}," ASKED "}", 200));
    json_decref(desk_json(&d, CHAT, "{\"reasoning_effort\":\"low\"," ASKED "}", 400));
    fake_script(&d.f, "<think>\nthe stored keys\n</think>\n\nIt stores keys.<|im_end|>");
    for (int step = 1; step < 5; step++) {
        struct buf b = {0}, text[2] = {{0}};
        d.f.step = step;
        json_t *o = desk_json(&d, CHAT, "{\"stop\":\" keys\"," ASKED "}", 200);
        assert_string_equal(text_at(o, "choices.0.message.content"), "It stores");
        assert_non_null(strstr(text_at(o, "choices.0.message.reasoning"), "the stored keys"));
        assert_int_equal(desk_ask(&d, "POST", CHAT, "",
                                  "{\"stream\":true,\"stop\":\" keys\"," ASKED "}", &b), 200);
        for (int i = 0; i < count_events(&b) - 1; i++) {
            json_t *c = event_at(&b, i);
            buf_str(&text[0], text_at(c, "choices.0.delta.content"));
            buf_str(&text[1], text_at(c, "choices.0.delta.reasoning"));
            json_decref(c);
        }
        assert_string_equal(text[0].p, "It stores");
        assert_string_equal(text[1].p, text_at(o, "choices.0.message.reasoning"));
        json_decref(o);
        buf_free(&b);
        buf_free(&text[0]);
        buf_free(&text[1]);
    }
    desk_close(&d);
    scratch_remove(folder);
}

static void test_a_request_reaches_the_engine_as_it_was_asked(void **state)
{
    struct desk d;
    (void)state;
    desk_open(&d, NULL);
    json_t *o = desk_json(&d, COMPLETIONS,
                          "{\"prompt\":[[2,4],[2,5,6]],\"n\":2,\"seed\":40,\"temperature\":0.5,\"top_p\":0.25,\"top_k\":7,\"min_p\":0.125,\"max_tokens\":3,\"ignore_eos\":true,\"user\":\"u\",\"best_of\":1,"
                          "\"presence_penalty\":0.5,\"frequency_penalty\":-0.25,\"repetition_penalty\":1.25,"
                          "\"logit_bias\":{\"5\":-100,\"3\":1.5},\"metadata\":{}}", 200);
    assert_int_equal(json_array_size(json_object_get(o, "choices")), 4);
    json_t *usage = json_object_get(o, "usage");
    assert_int_equal(json_integer_value(json_object_get(usage, "prompt_tokens")), 5);
    assert_int_equal(json_integer_value(json_object_get(usage, "completion_tokens")), 12);
    assert_int_equal(d.f.n_job, 4);
    for (int i = 0; i < 4; i++) {
        const struct job_ask *a = &d.f.job[i].ask;
        assert_int_equal(a->prompt.n, i < 2 ? 2 : 3);
        assert_int_equal(a->seed, 40 + i % 2);
        assert_true(a->temperature == 0.5f && a->top_p == 0.25f && a->top_k == 7 &&
                    a->min_p == 0.125f);
        assert_true(a->penalties.presence == 0.5f && a->penalties.frequency == -0.25f &&
                    a->penalties.repetition == 1.25f && a->penalties.bias.n == 2 &&
                    a->penalties.bias.id[0] == 5 && a->penalties.bias.by[0] == -100 &&
                    a->penalties.bias.id[1] == 3 && a->penalties.bias.by[1] == 1.5f);
        assert_true(a->most == 3 && a->run_on && a->prompt_top == -1);
    }
    json_decref(o);
    json_decref(desk_json(&d, CHAT, "{" ASKED ",\"max_completion_tokens\":2}", 200));
    json_decref(desk_json(&d, CHAT, "{" ASKED ",\"max_completion_tokens\":2}", 200));
    assert_true(d.f.job[4].ask.temperature == 1 && d.f.job[4].ask.most == 2 &&
                !d.f.job[4].ask.run_on);
    assert_true(d.f.job[4].ask.seed != d.f.job[5].ask.seed); /* none was named */
    desk_close(&d);
}

static void expect_refused(struct desk *d, const char *path, const char *rest, const char *name,
                           const char *value)
{
    struct buf body = {0};
    buf_printf(&body, "{\"%s\":%s,%s}", name, value, rest);
    json_t *o = desk_json(d, path, body.p, 400);
    if (strcmp(text_at(o, "error.param"), name) != 0 || !strstr(text_at(o, "error.message"), name))
        fail_msg("%s: %s", body.p, text_at(o, "error.message"));
    json_decref(o);
    buf_free(&body);
}

/* Fields of other servers that ask for what every answer is anyway are accepted, also in another
 * spelling of the number; any other value is refused by the field's name. "*": any value will
 * do. */
static void test_neutral_values_are_accepted(void **state)
{
    static const struct { const char *name, *neutral[3], *other; } cases[] = {
        /* OpenAI */
        {"user", {"\"u\""}, "*"}, {"metadata", {"{\"a\":\"b\"}"}, "*"}, {"store", {"true"}, "*"},
        {"service_tier", {"\"auto\""}, "*"}, {"parallel_tool_calls", {"true", "false"}, "*"},
        {"presence_penalty", {"0", "0.1"}, "3"}, {"frequency_penalty", {"0", "-1"}, "-2.5"},
        {"logit_bias", {"{}", "[]", "{\"5\":1}"}, "{\"5\":101}"}, {"n", {"1"}, "0"},
        {"best_of", {"1"}, "2"},
        {"tools", {"[]"}, "[{}]"}, {"tool_choice", {"\"none\"", "\"auto\""}, "\"required\""},
        {"functions", {"[]"}, "[{}]"}, {"function_call", {"\"none\""}, "{\"name\":\"f\"}"},
        {"response_format", {"{\"type\":\"text\"}", "{\"type\":\"json_object\"}"},
         "{\"type\":\"xml\"}"},
        {"modalities", {"[\"text\"]"}, "[\"audio\"]"}, {"verbosity", {"\"medium\""}, "\"low\""},
        /* vLLM */
        {"min_p", {"0"}, "2"}, {"repetition_penalty", {"1", "1.1"}, "0"},
        {"length_penalty", {"1"}, "2"},
        {"use_beam_search", {"false"}, "true"}, {"skip_special_tokens", {"true"}, "false"},
        {"spaces_between_special_tokens", {"true", "false"}, "1"}, {"min_tokens", {"0"}, "3"},
        {"guided_json", {"{}", "{\"type\":\"object\"}"}, "{\"type\":\"date\"}"},
        {"guided_regex", {"\"\""}, "\"a+\""},
        {"guided_choice", {"[]"}, "[\"a\"]"}, {"guided_grammar", {"\"\""}, "\"root ::= x\""},
        {"structured_outputs", {"{}", "{\"json\":{}}"}, "{\"regex\":\"a\"}"},
        {"bad_words", {"[]"}, "[\"x\"]"},
        {"allowed_token_ids", {"[]"}, "[5]"}, {"thinking_token_budget", {"-1"}, "100"},
        {"cache_salt", {"\"s\""}, "*"}, {"priority", {"3"}, "*"}, {"request_id", {"\"r\""}, "*"},
        {"watermarking", {"false"}, "true"}, {"logprob_token_ids", {"[]"}, "[5]"},
        /* llama-server */
        {"cache_prompt", {"true", "false"}, "*"}, {"id_slot", {"-1"}, "*"},
        {"n_predict", {"-1", "5"}, "-2"},
        {"repeat_penalty", {"1.0", "1.1"}, "0"}, {"repeat_last_n", {"-1"}, "*"},
        {"typical_p", {"1", "1.0"}, "0.9"},
        {"typ_p", {"1"}, "0.5"}, {"tfs_z", {"1"}, "0.5"}, {"mirostat", {"0"}, "2"},
        {"mirostat_tau", {"5"}, "*"},
        {"mirostat_eta", {"0.1"}, "*"}, {"xtc_probability", {"0"}, "0.5"},
        {"xtc_threshold", {"0.1"}, "*"},
        {"dry_multiplier", {"0"}, "0.8"}, {"dry_base", {"1.75"}, "*"},
        {"dry_allowed_length", {"2"}, "*"},
        {"dry_penalty_last_n", {"-1"}, "*"}, {"dry_sequence_breakers", {"[\"a\"]"}, "*"},
        {"dynatemp_range", {"0"}, "0.5"}, {"dynatemp_exponent", {"1"}, "*"},
        {"top_n_sigma", {"-1", "0"}, "2"},
        {"min_keep", {"0"}, "2"}, {"samplers", {"[]"}, "[\"top_k\"]"},
        {"grammar", {"\"\""}, "\"root ::= x\""},
        {"json_schema", {"{}"}, "{\"type\":\"date\"}"}, {"n_probs", {"0"}, "3"},
        {"timings_per_token", {"true"}, "*"},
        {"n_keep", {"0"}, "*"}, {"t_max_predict_ms", {"-1", "0"}, "5"},
        {"lora", {"[]"}, "[{\"id\":0}]"},
        {"reasoning_format", {"\"auto\""}, "\"none\""}, {"return_progress", {"true"}, "*"},
        {"speculative.n_max", {"8"}, "*"}, {"return_tokens", {"false"}, "true"},
        /* ollama, SGLang and clients */
        {"keep_alive", {"-1", "\"5m\""}, "*"}, {"session_id", {"\"s\""}, "*"},
        {"num_ctx", {"4096"}, "*"},
        {"num_predict", {"-1", "-2"}, "7"}, {"options", {"{}"}, "{\"temperature\":0}"},
        {"format", {"\"\""}, "\"json\""},
        {"rid", {"\"r\""}, "*"}, {"separate_reasoning", {"true"}, "false"}, {"top_a", {"0"}, "0.2"},
        {"no_repeat_ngram_size", {"0"}, "3"}, {"guidance_scale", {"1"}, "2"},
        {"smoothing_factor", {"0"}, "1"},
    };
    struct desk d;
    (void)state;
    desk_open(&d, NULL);
    static const struct { const char *path, *rest; } kinds[] = {{CHAT, ASKED},
                                                                {COMPLETIONS, "\"prompt\":\"a\""}};
    for (int k = 0; k < 2; k++) {
        struct buf all[3] = {{0}};
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            for (int v = 0; v < 3; v++) /* the v-th value of each, or the first, or nothing */
                buf_printf(&all[v], "\"%s\":%s,", cases[i].name,
                           v == 2 ? "null" : cases[i].neutral[v] ? cases[i].neutral[v]
                           : cases[i].neutral[0]);
            if (*cases[i].other != '*')
                expect_refused(&d, kinds[k].path, kinds[k].rest, cases[i].name, cases[i].other);
        }
        for (int v = 0; v < 3; v++) {
            char *body = xasprintf("{%s%s}", all[v].p, kinds[k].rest);
            json_decref(desk_json(&d, kinds[k].path, body, 200));
            free(body);
            buf_free(&all[v]);
        }
    }
    assert_int_equal(d.f.n_job, 6);
    expect_refused(&d, CHAT, ASKED, "no_such_field", "0");
    expect_refused(&d, COMPLETIONS, "\"prompt\":\"a\"", "suffix", "\"z\"");
    json_decref(desk_json(&d, COMPLETIONS,
                          "{\"prompt\":\"a\",\"suffix\":null,\"echo\":false,\"logprobs\":false}",
                          200));
    json_decref(desk_json(&d, CHAT,
                          "{" ASKED ",\"echo\":false,\"ignore_eos\":false,\"reasoning_effort\":\"none\","
                          "\"chat_template_kwargs\":{\"enable_thinking\":false}}", 200)); /* this format never thinks */
    desk_close(&d);
}

/* -1 is no limit, and any seed. */
static void test_minus_one(void **state)
{
    struct desk d;
    (void)state;
    desk_open(&d, &(struct serve_opts){.seeded = true, .seed = 5});
    static const char *const body[] = {"{\"max_tokens\":-1,\"seed\":-1," ASKED "}",
                                       "{\"max_completion_tokens\":-1,\"seed\":-1," ASKED "}",
                                       "{\"max_tokens\":-1,\"prompt\":\"a\"}",
                                       "{\"max_completion_tokens\":7,\"prompt\":\"a\",\"max_tokens\":3}"};
    static const int most[] = {-1, -1, -1, 7};
    for (int i = 0; i < 4; i++) {
        json_decref(desk_json(&d, i < 2 ? CHAT : COMPLETIONS, body[i], 200));
        assert_int_equal(d.f.job[i].ask.most, most[i]);
    }
    /* the server's own seed is for those that name none */
    assert_true(d.f.job[0].ask.seed != d.f.job[1].ask.seed);
    assert_true(d.f.job[2].ask.seed == 5 && d.f.job[3].ask.seed == 5);
    /* any other integer of 64 bits is a seed, as OpenAI's clients send them */
    static const char *const seed[] = {"-2", "9223372036854775807", "9007199254740863"};
    for (int i = 0; i < 3; i++) {
        char *text = xasprintf("{\"seed\":%s," ASKED "}", seed[i]);
        json_decref(desk_json(&d, CHAT, text, 200));
        assert_true(d.f.job[4 + i].ask.seed < (UINT64_C(1) << 53) - 128);
        free(text);
    }
    assert_true(d.f.job[6].ask.seed == 9007199254740863 % ((UINT64_C(1) << 53) - 128));
    desk_close(&d);
}

/* A format without turns of later system messages has one for all that begin a conversation, as
 * agents send their instructions and a developer's message. */
static void test_system_messages_at_the_beginning_are_joined(void **state)
{
    static const char *const first[] = {
        "{\"role\":\"system\",\"content\":\"Be brief.\"},"
        "{\"role\":\"developer\",\"content\":\"Be kind.\"},"
        "{\"role\":\"system\",\"content\":\"Hm.\"},",
        "{\"role\":\"system\",\"content\":\"Be brief.\\n\\nBe kind.\\n\\nHm.\"},"};
    struct desk d;
    json_t *tokens[2];
    (void)state;
    desk_open(&d, &(struct serve_opts){0});
    for (int i = 0; i < 2; i++) {
        char *body = xasprintf("{\"messages\":[%s{\"role\":\"user\",\"content\":\"a\"}]}",
                               first[i]);
        tokens[i] = desk_json(&d, "/tokenize", body, 200);
        free(body);
    }
    assert_true(json_equal(json_object_get(tokens[0], "tokens"),
                           json_object_get(tokens[1], "tokens")));
    json_decref(tokens[0]);
    json_decref(tokens[1]);
    json_decref(desk_json(&d, "/v1/responses", "{\"instructions\":\"Be brief.\","
        "\"client_metadata\":{},"
        "\"input\":[{\"role\":\"developer\",\"content\":\"Be kind.\"},"
        "{\"role\":\"user\",\"content\":\"a\"}]}", 200));
    json_decref(desk_json(&d, CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},"
        "{\"role\":\"system\",\"content\":\"b\"},{\"role\":\"user\",\"content\":\"c\"}]}", 400));
    desk_close(&d);
}

static void test_one_model_and_heads_alone(void **state)
{
    static const char *const path[] = {"/v1/models", "/v1/models/nestling", "/health", "/ping",
                                       "/version", "/load", "/server_info", "/metrics"};
    struct desk d;
    struct buf b = {0};
    (void)state;
    desk_open(&d, NULL);
    json_t *all = desk_json(&d, "/v1/models", NULL, 200),
        *one = desk_json(&d, "/v1/models/nestling", NULL, 200);
    assert_true(json_equal(json_array_get(json_object_get(all, "data"), 0), one));
    json_decref(all);
    json_decref(one);
    static const char *const other[] = {"/v1/models/nope", "/v1/models/nestling/x", "/v1/models/",
                                        "/v1/models/NESTLING"};
    for (int i = 0; i < 4; i++) {
        json_t *o = desk_json(&d, other[i], NULL, 404);
        assert_string_equal(text_at(o, "error.type"), "NotFoundError");
        assert_string_equal(text_at(o, "error.param"), "model");
        json_decref(o);
    }
    for (size_t i = 0; i < sizeof path / sizeof *path; i++) {
        struct client c, *list[2] = {&c, NULL};
        client_open(&c, serve_port(d.s));
        client_ask(&c, "HEAD", path[i], "", NULL, true);
        assert_true(desk_run(&d, &c, 1, 2000, all_closed, list));
        assert_int_equal(strncmp(c.got.p, "HTTP/1.1 200", 12), 0);
        assert_true(c.got.n > 4 && !strcmp(c.got.p + c.got.n - 4, "\r\n\r\n")); /* no body */
        client_close(&c);
    }
    assert_int_equal(desk_ask(&d, "GET", CHAT, "", NULL, &b), 405);
    buf_free(&b);
    desk_close(&d);
}

/* ---- errors ---------------------------------------------------------------------------------- */

static void test_every_refusal_is_an_error_object(void **state)
{
    static const struct { const char *path, *body; int status; const char *param; } cases[] = {
        {CHAT, "{\"model\":\"nestling\", ", 400, ""},
        {CHAT, "", 400, ""},
        {CHAT, "[]", 400, ""},
        {CHAT, "{}", 400, "messages"},
        {CHAT, "{\"messages\":\"hello\"}", 400, "messages"},
        {CHAT, "{\"messages\":[]}", 400, "messages"},
        {CHAT, "{\"messages\":[7]}", 400, "messages.0"},
        {CHAT, "{\"messages\":[{\"role\":\"user\"}]}", 400, "messages.0.content"},
        {CHAT, "{\"messages\":[{\"role\":\"tool\",\"content\":\"x\"}]}", 400, "messages.0"},
        {CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}", 400,
         "messages.0.content"},
        {CHAT, "{\"messages\":[{\"role\":\"assistant\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"}]}", 400,
         "messages"},
        {CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\\u0000b\"}]}", 400, "messages.0"},
        {CHAT, "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{}]}]}", 400, "messages.0"},
        {CHAT, "{\"model\":\"nope\"," ASKED "}", 404, "model"},
        {CHAT, "{\"model\":1," ASKED "}", 400, "model"},
        {CHAT, "{\"temperature\":-1," ASKED "}", 400, "temperature"},
        {CHAT, "{\"temperature\":\"hot\"," ASKED "}", 400, "temperature"},
        {CHAT, "{\"top_p\":0," ASKED "}", 400, "top_p"},
        {CHAT, "{\"n\":0," ASKED "}", 400, "n"},
        {CHAT, "{\"n\":100000," ASKED "}", 400, "n"},
        {CHAT, "{\"n\":1.5," ASKED "}", 400, "n"},
        {CHAT, "{\"max_tokens\":0," ASKED "}", 400, "max_tokens"},
        {CHAT, "{\"max_tokens\":100000," ASKED "}", 400, "max_tokens"},
        {CHAT, "{\"max_tokens\":1e300," ASKED "}", 400, "max_tokens"},
        {CHAT, "{\"max_tokens\":4096," ASKED "}", 400, "input_tokens"},
        {CHAT, "{\"max_tokens\":-2," ASKED "}", 400, "max_tokens"},
        {CHAT, "{\"max_completion_tokens\":0," ASKED "}", 400, "max_completion_tokens"},
        {CHAT, "{\"chat_template_kwargs\":7," ASKED "}", 400, "chat_template_kwargs"},
        {CHAT, "{\"chat_template_kwargs\":{\"enable_thinking\":true}," ASKED "}", 400,
         "chat_template_kwargs"},
        {CHAT, "{\"chat_template_kwargs\":{\"enable_thinking\":1}," ASKED "}", 400,
         "chat_template_kwargs.enable_thinking"},
        {CHAT, "{\"chat_template_kwargs\":{\"other\":1}," ASKED "}", 400,
         "chat_template_kwargs.other"},
        {COMPLETIONS, "{\"prompt\":\"a\",\"reasoning_effort\":\"low\"}", 400, "reasoning_effort"},
        {COMPLETIONS, "{\"prompt\":\"a\",\"tools\":[{}]}", 400, "tools"},
        {CHAT, "{\"seed\":1.5," ASKED "}", 400, "seed"},
        {CHAT, "{\"seed\":\"x\"," ASKED "}", 400, "seed"},
        {CHAT, "{\"stop\":7," ASKED "}", 400, "stop"},
        {CHAT, "{\"stop\":[\"\"]," ASKED "}", 400, "stop"},
        {CHAT, "{\"stop_token_ids\":[-1]," ASKED "}", 400, "stop_token_ids"},
        {CHAT, "{\"stream\":1," ASKED "}", 400, "stream"},
        {CHAT, "{\"stream_options\":{}," ASKED "}", 400, "stream_options"},
        {CHAT, "{\"logprobs\":true,\"top_logprobs\":50," ASKED "}", 400, "top_logprobs"},
        {CHAT, "{\"top_logprobs\":5," ASKED "}", 400, "top_logprobs"},
        {CHAT, "{\"logprobs\":2," ASKED "}", 400, "logprobs"},
        {CHAT, "{\"tools\":[{}]," ASKED "}", 400, "tools"},
        {CHAT, "{\"response_format\":{\"type\":\"json_schema\"}," ASKED "}", 400,
         "response_format"},
        {CHAT, "{\"logit_bias\":{\"x\":-100}," ASKED "}", 400, "logit_bias"},
        {CHAT, "{\"logit_bias\":{\"4096\":-100}," ASKED "}", 400, "logit_bias"},
        {CHAT, "{\"presence_penalty\":2.5," ASKED "}", 400, "presence_penalty"},
        {CHAT, "{\"repetition_penalty\":-1," ASKED "}", 400, "repetition_penalty"},
        {CHAT, "{\"repeat_penalty\":1.1,\"repeat_last_n\":64," ASKED "}", 400, "repeat_last_n"},
        {CHAT, "{\"reasoning_effort\":\"high\"," ASKED "}", 400, "reasoning_effort"},
        {CHAT, "{\"no_such_field\":3," ASKED "}", 400, "no_such_field"},
        {COMPLETIONS, "{}", 400, "prompt"},
        {COMPLETIONS, "{\"prompt\":[]}", 400, "prompt"},
        {COMPLETIONS, "{\"prompt\":[[]]}", 400, "prompt"},
        {COMPLETIONS, "{\"prompt\":[5,-1]}", 400, "prompt"},
        {COMPLETIONS, "{\"prompt\":[5,999999]}", 400, "prompt"},
        {COMPLETIONS, "{\"prompt\":[5,\"x\"]}", 400, "prompt"},
        {COMPLETIONS, "{\"prompt\":{}}", 400, "prompt"},
        {COMPLETIONS, "{\"prompt\":\"a\",\"logprobs\":50}", 400, "logprobs"},
        {COMPLETIONS, "{\"prompt\":\"a\",\"logprobs\":true}", 400, "logprobs"},
        {COMPLETIONS, "{\"prompt\":\"a\",\"best_of\":2}", 400, "best_of"},
        {COMPLETIONS, "{\"prompt\":\"a\",\"suffix\":\"z\"}", 400, "suffix"},
        {COMPLETIONS, "{\"prompt\":\"\",\"add_special_tokens\":false}", 400, "prompt"},
        {"/tokenize", "{}", 400, "prompt"},
        {"/detokenize", "{\"tokens\":[4095,4096]}", 400, "tokens"}, /* of 4096 */
        {"/detokenize", "{\"tokens\":[-1]}", 400, "tokens"},
        {"/detokenize", "{\"tokens\":7}", 400, "tokens"},
        {"/v1/nothing", "{}", 404, ""},
        {"/v1/models", "{}", 405, ""},
        {"/v1/models/nestling", "{}", 405, ""},
    };
    struct desk d;
    (void)state;
    desk_open(&d, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *o = desk_json(&d, cases[i].path, cases[i].body, cases[i].status);
        assert_true(*text_at(o, "error.message") && *text_at(o, "error.type"));
        if (strcmp(text_at(o, "error.param"), cases[i].param) != 0)
            fail_msg("%s: param %s", cases[i].body, text_at(o, "error.param"));
        assert_int_equal(json_integer_value(json_object_get(json_object_get(o, "error"), "code")),
                         cases[i].status);
        json_decref(o);
    }
    assert_int_equal(tok_vocab(d.f.tok), 4096);
    json_t *o = desk_json(&d, COMPLETIONS, "{\"prompt\":\"a\",\"logit_bias\":{\"4096\":1}}", 400);
    assert_string_equal(text_at(o, "error.message"), "logit_bias: \"4096\" is no token: the "
                                                     "vocabulary has 4096 tokens, 0 to 4095");
    json_decref(o);
    assert_int_equal(d.f.n_job, 0);
    struct buf b = {0};
    assert_int_equal(desk_ask(&d, "GET", CHAT, "", NULL, &b), 405);
    assert_int_equal(desk_ask(&d, "POST", CHAT, "Content-Type: text/plain\r\nContent-Length: 0\r\n",
                              NULL, &b), 400);
    assert_int_equal(desk_ask(&d, "DELETE", "/v1/models", "", NULL, &b), 405);
    buf_free(&b);
    desk_close(&d);
}

#define F(name) "{\"type\":\"function\",\"function\":{\"name\":\"" name "\"}}"
#define ALLOWED(mode, list)                                                                        \
    "\"tool_choice\":{\"type\":\"allowed_tools\",\"allowed_tools\":{\"mode\":\"" mode             \
    "\",\"tools\":[" list "]}},"

static int prompt_tokens(struct desk *d, const char *path, const char *fields, const char *rest)
{
    char *body = xasprintf("{%s%s}", fields, rest);
    json_t *o = desk_json(d, path, body, 200), *usage = json_object_get(o, "usage");
    json_t *n = json_object_get(usage, *rest == '"' && strstr(rest, "messages") ? "prompt_tokens"
                                                                               : "input_tokens");
    int got = (int)json_integer_value(n);
    json_decref(o);
    free(body);
    return got;
}

/* Only the functions that tool_choice allows are offered. */
static void test_tools_may_be_narrowed_by_tool_choice(void **state)
{
    static const char both[] = "\"tools\":[" F("f") "," F("g") "],",
                      one[] = "\"tools\":[" F("g") "],",
                      allowed[] = "\"tools\":[" F("f") "," F("g") "]," ALLOWED("auto", F("g")),
                      input[] = "\"input\":\"What is a KV cache?\"";
    static const char *const bad[] = {ALLOWED("none", F("g")), ALLOWED("auto", ""),
                                      ALLOWED("auto", F("h")), ALLOWED("required", "7")};
    struct desk d;
    (void)state;
    desk_open(&d, NULL);
    int two = prompt_tokens(&d, CHAT, both, ASKED), few = prompt_tokens(&d, CHAT, one, ASKED);
    assert_true(few < two);
    assert_int_equal(prompt_tokens(&d, CHAT, allowed, ASKED), few);
    assert_int_equal(prompt_tokens(&d, "/v1/responses",
                                   "\"tools\":[{\"type\":\"function\",\"name\":\"f\"},{\"type\":"
                                   "\"function\",\"name\":\"g\"}],\"tool_choice\":{\"type\":"
                                   "\"allowed_tools\",\"mode\":\"auto\",\"tools\":[{\"type\":"
                                   "\"function\",\"name\":\"g\"}]},", input), few);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char *body = xasprintf("{%s%s%s}", both, bad[i], ASKED);
        json_t *o = desk_json(&d, CHAT, body, 400);
        assert_string_equal(text_at(o, "error.param"), "tool_choice");
        json_decref(o);
        free(body);
    }
    desk_close(&d);
}

/* A reply that reached its limit within a call comes back with arguments that are no JSON. */
static void test_a_call_that_was_cut_off_may_be_sent_back(void **state)
{
    static const char talk[] =
        "\"messages\":[{\"role\":\"user\",\"content\":\"Go.\"},{\"role\":\"assistant\",\"content\":"
        "[{\"type\":\"refusal\",\"refusal\":\"No.\"}],\"tool_calls\":[{\"id\":\"1\",\"type\":"
        "\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\": [1, "
        "\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"1\",\"content\":\"x\"}]";
    struct desk d;
    (void)state;
    desk_open(&d, NULL);
    assert_true(prompt_tokens(&d, CHAT, "\"tools\":[" F("f") "],", talk) > 0);
    desk_close(&d);
}

/* A streamed call is an item of its own, whose arguments come in one piece; the whole response at
 * the end is that without a stream. */
static void test_a_call_is_streamed_as_an_item(void **state)
{
    static const char ask[] = "{\"tools\":[{\"type\":\"function\",\"name\":\"f\"}],\"input\":\"Go.\"%s}";
    static const char *const want[] = {
        "response.output_item.added", "response.function_call_arguments.delta",
        "response.function_call_arguments.done", "response.output_item.done",
        "response.completed"};
    struct desk d;
    struct buf b = {0};
    json_t *item[2] = {NULL, NULL}, *end = NULL;
    int n = 0;
    (void)state;
    desk_open(&d, NULL);
    fake_script(&d.f, "{\"name\": \"f\", \"parameters\": {\"a\": [1, \"x\"]}}<end_of_turn>");
    char *body[2] = {xasprintf(ask, ""), xasprintf(ask, ",\"stream\":true")};
    json_t *whole = desk_json(&d, "/v1/responses", body[0], 200);
    assert_int_equal(desk_ask(&d, "POST", "/v1/responses", "", body[1], &b), 200);
    buf_char(&b, '\0');
    for (const char *p = strstr(b.p, "response.output_item.added"); p; p = strstr(p, "\ndata: ")) {
        p += *p == '\n' ? 7 : 0;
        json_t *o = json_loads(p, JSON_DISABLE_EOF_CHECK, NULL);
        if (!o)
            continue;
        assert_true(n < 5);
        assert_string_equal(text_at(o, "type"), want[n]);
        if (n == 0 || n == 3)
            item[n == 3] = json_incref(json_object_get(o, "item"));
        if (n == 1)
            assert_string_equal(text_at(o, "delta"), "{\"a\": [1, \"x\"]}");
        if (n == 2) {
            assert_string_equal(text_at(o, "name"), "f");
            assert_string_equal(text_at(o, "arguments"), "{\"a\": [1, \"x\"]}");
        }
        if (n == 1 || n == 2)
            assert_string_equal(text_at(o, "item_id"), text_at(item[0], "id"));
        if (++n == 5)
            end = json_incref(json_object_get(o, "response"));
        json_decref(o);
    }
    assert_int_equal(n, 5);
    assert_string_equal(text_at(item[0], "arguments"), "");
    assert_string_equal(text_at(item[0], "status"), "in_progress");
    assert_true(json_equal(item[1], json_array_get(json_object_get(end, "output"), 0)));
    assert_int_equal(json_array_size(json_object_get(end, "output")), 1);
    json_t *of_whole = json_array_get(json_object_get(whole, "output"), 0);
    static const char *const same[] = {"type", "name", "arguments", "status"};
    for (int i = 0; i < 4; i++)
        assert_string_equal(text_at(item[1], same[i]), text_at(of_whole, same[i]));
    json_decref(whole);
    json_decref(end);
    for (int i = 0; i < 2; i++) {
        json_decref(item[i]);
        free(body[i]);
    }
    buf_free(&b);
    desk_close(&d);
}

static void test_keys_hosts_and_lengths(void **state)
{
    struct desk d;
    struct buf b = {0}, body = {0};
    (void)state;
    desk_open(&d, &(struct serve_opts){.key = "s3cret", .body_bytes = 2000});
    static const struct { const char *head; int status; } keys[] = {
        {"", 401}, {"Authorization: Bearer nope\r\n", 401},
        {"Authorization: Bearer s3cre\r\n", 401},
        {"Authorization: Bearer s3crets3cret\r\n", 401}, {"Authorization: Bearer \r\n", 401},
        {"Authorization: Basic s3cret\r\n", 401}, {"Authorization: Bearer s3cret\r\n", 200},
        {"Authorization: bearer s3cret\r\n", 200}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        assert_int_equal(desk_ask(&d, "GET", "/v1/models", keys[i].head, NULL, &b), keys[i].status);
    assert_int_equal(desk_ask(&d, "GET", "/health", "", NULL, &b), 200);
    assert_int_equal(desk_ask(&d, "GET", "/metrics", "", NULL, &b), 401);
    for (int i = 0; i < 3000; i++)
        buf_char(&body, ' ');
    assert_int_equal(desk_ask(&d, "POST", CHAT, keys[6].head, body.p, &b), 413);
    assert_non_null(strstr(b.p, "longer than 2000 bytes"));
    desk_close(&d);
    desk_open(&d, NULL);
    struct client c, *list[2] = {&c, NULL};
    client_open(&c, serve_port(d.s));
    buf_str(&c.to, "GET /v1/models HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n");
    assert_true(desk_run(&d, &c, 1, 2000, all_closed, list));
    assert_int_equal(strncmp(c.got.p, "HTTP/1.1 403", 12), 0);
    client_close(&c);
    buf_free(&b);
    buf_free(&body);
    desk_close(&d);
}

/* Sends text as it is, perhaps then closes that direction, and returns the first answer's status;
 * 0: the connection ended without one. */
static int ask_raw(struct desk *d, const char *text, bool half, struct buf *body)
{
    struct client c, *list[2] = {&c, NULL};
    int status = 0;
    client_open(&c, serve_port(d->s));
    buf_str(&c.to, text);
    for (int i = 0; half && c.sent < c.to.n; i++)
        client_move(&c);
    if (half)
        shutdown(c.fd, SHUT_WR);
    if (!desk_run(d, &c, 1, 5000, all_closed, list))
        fail_msg("the connection does not end: %s", text);
    const char *from = c.got.n ? c.got.p : "";
    if (!strncmp(from, "HTTP/1.1 100 Continue\r\n\r\n", 25))
        from += 25;
    if (*from)
        split_answer(from, c.got.p + c.got.n, &status, body);
    client_close(&c);
    return status;
}

static bool has_answer(void *arg)
{
    return ((const struct client *)arg)->got.n > 0;
}

/* A body over the limit is read and dropped, since a client that still sends would lose the answer
 * with the connection; one over twice the limit is refused by its length, as is one whose client
 * waits for a word before it sends. */
static void test_a_body_that_is_too_long_is_read_before_it_is_refused(void **state)
{
    static const struct { int length; const char *more; bool at_once; } cases[] = {
        {2500, "", false}, {4000, "", false}, {4002, "", true},
        {2500, "Expect: 100-continue\r\n", true}};
    struct desk d;
    (void)state;
    desk_open(&d, &(struct serve_opts){.body_bytes = 2000});
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct client c;
        client_open(&c, serve_port(d.s));
        buf_printf(&c.to, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                   "application/json\r\nContent-Length: %d\r\n%s\r\n", CHAT, cases[i].length,
                   cases[i].more);
        if (desk_run(&d, &c, 1, cases[i].at_once ? 5000 : 300, has_answer, &c) != cases[i].at_once)
            fail_msg("a body of %d bytes %s", cases[i].length, cases[i].more);
        for (int k = 0; !cases[i].at_once && k < cases[i].length; k++)
            buf_char(&c.to, ' ');
        assert_true(desk_run(&d, &c, 1, 5000, has_answer, &c));
        assert_int_equal(strncmp(c.got.p, "HTTP/1.1 413", 12), 0);
        client_close(&c);
    }
    desk_close(&d);
}

/* Heads that two readers might read differently. */
static void test_a_head_says_one_thing(void **state)
{
    static const struct { const char *head; int status; } cases[] = {
        {"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n", 200},
        {"GET /v1/models HTTP/1.0\r\n", 200},
        {"GET /v1/models HTTP/1.1\r\n", 400},
        {"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n", 400},
        {"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nhost: evil.example\r\n", 400},
        {"POST /reset_prefix_cache HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
         "0\r\nContent-Length: 0\r\n", 400},
        {"POST /reset_prefix_cache HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
         "0\r\ncontent-length: 5\r\n", 400},
        {"POST /reset_prefix_cache HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
         "0\r\nTransfer-Encoding: chunked\r\n", 400},
        {"POST /reset_prefix_cache HTTP/1.1\r\nHost: localhost\r\nContent-Length : 5\r\n", 400},
        {"POST /reset_prefix_cache HTTP/1.1\r\nHost: localhost\r\nContent-Length\t: 5\r\n", 400},
        {"POST /reset_prefix_cache HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: xchunked\r\n",
         400},
        {"POST /reset_prefix_cache HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n",
         400},
        {"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nOrigin: a\r\nOrigin: b\r\n", 400},
        {"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: a\r\nAuthorization: b\r\n",
         400},
    };
    struct desk d;
    struct buf b = {0}, text = {0};
    (void)state;
    desk_open(&d, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        buf_clear(&text);
        buf_printf(&text, "%s%s\r\n", cases[i].head, cases[i].status == 200
                   ? "Connection: close\r\n" : "");
        int status = ask_raw(&d, text.p, false, &b);
        if (status != cases[i].status)
            fail_msg("%d, not %d: %s", status, cases[i].status, cases[i].head);
        assert_int_equal(strstr(b.p, "\"error\":{") != NULL, status == 400);
    }
    assert_int_equal(d.f.n_reset, 0);
    buf_free(&b);
    buf_free(&text);
    desk_close(&d);
}

/* A client that closes its direction behind the request is answered. */
static void test_a_half_closed_client_gets_its_answer(void **state)
{
    static const char *const body[] = {"{" ASKED "}", "{\"stream\":true," ASKED "}"};
    struct desk d;
    struct buf b = {0}, text = {0};
    (void)state;
    desk_open(&d, NULL);
    assert_int_equal(ask_raw(&d, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", true, &b), 200);
    for (int i = 0; i < 3; i++) { /* a stream over HTTP/1.0 has no chunks, which split_answer()
                                     expects */
        const char *version = i == 2 ? "HTTP/1.0" : "HTTP/1.1";
        buf_clear(&text);
        buf_printf(&text, "POST " CHAT " %s\r\nHost: localhost\r\nContent-Type: "
                                       "application/json\r\n"
                   "Content-Length: %zu\r\n\r\n%s", version, strlen(body[i & 1]), body[i & 1]);
        assert_int_equal(ask_raw(&d, text.p, true, &b), 200);
        assert_non_null(strstr(b.p, i & 1 ? "data: [DONE]" : said));
    }
    assert_int_equal(d.f.n_cancel, 0);
    buf_free(&b);
    buf_free(&text);
    desk_close(&d);
}

static void test_pages_of_other_origins_change_nothing(void **state)
{
    static const struct { const char *head; int status; } cases[] = {
        {"Origin: https://evil.example\r\nContent-Type: text/plain\r\n", 403},
        {"Origin: https://evil.example\r\nContent-Type: application/json\r\n", 403},
        {"Origin: null\r\n", 403},
        {"Origin: http://localhost:3000\r\n", 403},
        {"Origin: http://localhost.evil.example\r\n", 403},
        {"Origin: http://localhost\r\n", 200}, /* the test's Host */
        {"", 200},
    };
    static const char *const path[] = {"/reset_prefix_cache", CHAT, COMPLETIONS, "/tokenize",
                                       "/detokenize"};
    struct desk d;
    struct buf b = {0};
    (void)state;
    desk_open(&d, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(desk_ask(&d, "POST", path[0], cases[i].head, NULL, &b), cases[i].status);
    assert_int_equal(d.f.n_reset, 2);
    for (size_t i = 1; i < sizeof path / sizeof *path; i++)
        assert_int_equal(desk_ask(&d, "POST", path[i], cases[0].head, NULL, &b), 403);
    desk_close(&d);
    /* one origin may */
    desk_open(&d, &(struct serve_opts){.cors = "https://chat.example", .key = "k"});
    struct client c, *list[2] = {&c, NULL};
    static const struct { const char *origin, *first; bool allowed; } asks[] = {
        {"https://chat.example", "HTTP/1.1 204", true},
        {"https://evil.example", "HTTP/1.1 403", false}};
    for (int i = 0; i < 2; i++) {
        client_open(&c, serve_port(d.s));
        buf_printf(&c.to, "OPTIONS " CHAT " HTTP/1.1\r\nHost: localhost\r\nOrigin: "
                                          "%s\r\nConnection: close\r\n"
                   "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: "
                   "authorization, x-a\r\n\r\n", asks[i].origin);
        assert_true(desk_run(&d, &c, 1, 2000, all_closed, list));
        assert_int_equal(strncmp(c.got.p, asks[i].first, 12), 0);
        assert_int_equal(strstr(c.got.p, "\r\nAccess-Control-Allow-Origin: "
                                         "https://chat.example\r\n") != NULL, asks[i].allowed);
        assert_int_equal(strstr(c.got.p, "\r\nAccess-Control-Allow-Headers: authorization, "
                                         "x-a\r\n") != NULL, asks[i].allowed);
        client_close(&c);
    }
    client_open(&c, serve_port(d.s));
    client_ask(&c, "POST", CHAT, "Origin: https://chat.example\r\nAuthorization: Bearer k\r\n",
               "{" ASKED "}", true);
    assert_true(desk_run(&d, &c, 1, 2000, all_closed, list));
    assert_int_equal(strncmp(c.got.p, "HTTP/1.1 200", 12), 0);
    assert_non_null(strstr(c.got.p, "\r\nAccess-Control-Allow-Origin: https://chat.example\r\n"));
    client_close(&c);
    assert_int_equal(desk_ask(&d, "POST", CHAT, "Origin: https://chat.example\r\n", "{" ASKED "}",
                              &b), 401);
    assert_int_equal(desk_ask(&d, "OPTIONS", CHAT, "", NULL, &b), 401);
    buf_free(&b);
    desk_close(&d);
}

/* ---- places ---------------------------------------------------------------------------------- */

enum { MANY_SLOW = 40 };
static struct client drips[MANY_SLOW];

static int open_slow(void)
{
    int n = 0;
    for (int i = 0; i < MANY_SLOW; i++)
        n += !drips[i].closed;
    return n;
}

/* Each sends one more byte of a head that does not end, or of a body. */
static void drip(struct desk *d, const char *what)
{
    for (int i = 0; i < MANY_SLOW; i++)
        if (!drips[i].closed)
            buf_str(&drips[i].to, what);
    desk_run(d, drips, MANY_SLOW, 3, NULL, NULL);
}

static void open_all_slow(struct desk *d, const char *begin)
{
    for (int i = 0; i < MANY_SLOW; i++) {
        client_open(&drips[i], serve_port(d->s));
        buf_str(&drips[i].to, begin);
        desk_run(d, drips, i + 1, 2, NULL, NULL);
    }
}

static void close_all_slow(void)
{
    for (int i = 0; i < MANY_SLOW; i++)
        client_close(&drips[i]);
}

/* Clients that send a byte now and then, many more than there are places, keep nobody out: they
 * hold an eighth of the places, a newcomer gets the place of the oldest, and all of them end in
 * time, although none of them stands still. */
static void test_slow_clients_keep_nobody_out(void **state)
{
    static const char *const begin[] = {
        "GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
        "application/json\r\nContent-Length: 100000\r\n\r\n {",
    };
    static const char key[] = "Authorization: Bearer s3cret\r\n";
    struct buf b = {0};
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct desk d;
        desk_open(&d, &(struct serve_opts){.key = "s3cret", .connections = 32, .head_s = 1});
        struct client mine;
        client_open(&mine, serve_port(d.s)); /* has shown the key, and keeps its connection */
        client_ask(&mine, "GET", "/v1/models", key, NULL, false);
        desk_run(&d, &mine, 1, 50, NULL, NULL);
        assert_true(mine.got.n > 0);
        uint64_t from = clock_ns();
        open_all_slow(&d, begin[i]);
        drip(&d, "a");
        assert_true(open_slow() <= 4);
        assert_int_equal(desk_ask(&d, "GET", "/health", "", NULL, &b), 200);
        assert_int_equal(desk_ask(&d, "POST", CHAT, key, "{" ASKED "}", &b), 200);
        size_t before = mine.got.n;
        client_ask(&mine, "GET", "/v1/models", key, NULL, false);
        desk_run(&d, &mine, 1, 50, NULL, NULL);
        assert_true(mine.got.n > before && !mine.closed);
        while (open_slow() && clock_ns() - from < 20 * 1000000000ull) {
            drip(&d, "a");
            usleep(20000);
        }
        assert_int_equal(open_slow(), 0);
        client_close(&mine);
        close_all_slow();
        desk_close(&d);
    }
    buf_free(&b);
}

/* Where all places are taken by connections that are known and wait, the one that has waited
 * longest ends; those that are being answered stay. */
static void test_connections_that_wait_make_place(void **state)
{
    struct desk d;
    struct buf b = {0};
    (void)state;
    desk_open(&d, &(struct serve_opts){.connections = 8});
    struct client c[8];
    d.f.held = 1;
    for (int i = 0; i < 8; i++) {
        client_open(&c[i], serve_port(d.s));
        if (i < 6)
            client_ask(&c[i], "GET", "/v1/models", "", NULL, false);
        else
            client_ask(&c[i], "POST", CHAT, "", "{" ASKED "}", false);
        desk_run(&d, c, i + 1, 20, NULL, NULL);
        assert_true(i >= 6 || c[i].got.n > 0);
    }
    desk_await_jobs(&d, c, 8, 2);
    assert_int_equal(desk_ask(&d, "GET", "/health", "", NULL, &b), 200);
    desk_run(&d, c, 8, 20, NULL, NULL);
    assert_true(c[0].closed && !c[5].closed && !c[6].closed && !c[7].closed);
    d.f.held = 0;
    desk_run(&d, c, 8, 500, NULL, NULL);
    assert_true(strstr(c[6].got.p, said) && strstr(c[7].got.p, said));
    for (int i = 0; i < 8; i++)
        client_close(&c[i]);
    buf_free(&b);
    desk_close(&d);
}

/* ---- clients that misbehave ------------------------------------------------------------------ */

static bool job_ended(void *arg)
{
    return ((struct fake_job *)arg)->ended;
}

static void test_a_client_that_leaves_ends_its_job(void **state)
{
    static const char *const body[] = {"{" ASKED "}", "{\"stream\":true," ASKED "}"};
    struct desk d;
    (void)state;
    desk_open(&d, NULL);
    for (int i = 0; i < 4; i++) { /* while it waits, and while it is answered */
        struct client c;
        d.f.held = 1;
        int cancels = d.f.n_cancel;
        client_open(&c, serve_port(d.s));
        client_ask(&c, "POST", CHAT, "", body[i % 2], false);
        desk_await_jobs(&d, &c, 1, i + 1);
        struct fake_job *j = &d.f.job[d.f.n_job - 1];
        assert_int_equal(d.f.n_job, i + 1);
        if (i >= 2) {
            fake_begin(&d.f, j);
            fake_step(&d.f, j, 1);
            desk_run(&d, &c, 1, 50, NULL, NULL);
            assert_int_equal(c.got.n > 0, i % 2);
        }
        client_close(&c);
        assert_true(desk_run(&d, NULL, 0, 2000, job_ended, j));
        assert_true(j->cancelled && d.f.n_cancel > cancels);
        desk_run(&d, NULL, 0, 10, NULL, NULL);
        assert_true(serve_idle(d.s));
    }
    desk_close(&d);
}

static void test_a_client_that_reads_nothing_holds_nobody(void **state)
{
    struct desk d;
    struct client slow, *list[2] = {&slow, NULL};
    struct buf b = {0}, text = {0}, finish = {0};
    struct ids ids = {0};
    int status;
    (void)state;
    desk_open(&d, NULL);
    d.f.script.n = 0;
    for (int i = 0; i < 4000; i++)
        ids_add(&d.f.script, 1066);
    client_open(&slow, serve_port(d.s));
    slow.most = 100;
    client_ask(&slow, "POST", CHAT, "",
               "{\"n\":2,\"stream\":true,\"logprobs\":true,\"top_logprobs\":20,\"return_token_ids\":true," ASKED "}",
               true);
    desk_await_jobs(&d, &slow, 1, 2);
    desk_run(&d, &slow, 1, 4100, NULL, NULL);
    assert_true(d.f.job[0].ended && d.f.job[1].ended && slow.got.n == 100 && !slow.closed);
    assert_true(d.s->n_task == 1);
    assert_int_equal(desk_ask(&d, "POST", CHAT, "", "{\"max_tokens\":5," ASKED "}", &b), 200);
    slow.most = -1;
    assert_true(desk_run(&d, &slow, 1, 100000, all_closed, list));
    split_answer(slow.got.p, slow.got.p + slow.got.n, &status, &b);
    join_stream(&b, true, &text, &ids, &finish);
    assert_int_equal(ids.n, 8000);
    assert_string_equal(finish.p, "stopstop");
    ids_free(&ids);
    buf_free(&text);
    buf_free(&finish);
    buf_free(&b);
    client_close(&slow);
    desk_close(&d);
}

static void test_requests_in_a_row_on_one_connection(void **state)
{
    struct desk d;
    struct client c, *list[2] = {&c, NULL};
    struct buf b = {0};
    (void)state;
    desk_open(&d, NULL);
    client_open(&c, serve_port(d.s));
    for (int i = 1; i < 4; i++) {
        char body[100];
        snprintf(body, sizeof body, "{\"max_tokens\":%d," ASKED "}", i);
        client_ask(&c, "POST", CHAT, "", body, false);
    }
    client_ask(&c, "POST", CHAT, "", "{\"bad\":", false);
    client_ask(&c, "GET", "/health", "", NULL, true);
    assert_true(desk_run(&d, &c, 1, 20000, all_closed, list));
    const char *p = c.got.p, *end = c.got.p + c.got.n;
    for (int i = 1; i < 6; i++) {
        int status;
        p = split_answer(p, end, &status, &b);
        assert_int_equal(status, i == 4 ? 400 : 200);
        if (i < 4) {
            json_t *o = json_loads(b.p, 0, NULL);
            assert_int_equal(json_integer_value(json_object_get(json_object_get(o, "usage"),
                                                                "completion_tokens")), i);
            json_decref(o);
        }
    }
    assert_true(p == end);
    buf_free(&b);
    client_close(&c);
    desk_close(&d);
}

static void test_many_clients_at_once(void **state)
{
    enum { MANY = 120 };
    static struct client c[MANY];
    static struct client *list[MANY + 1];
    struct desk d;
    (void)state;
    desk_open(&d, NULL);
    d.f.step = 0;
    for (int i = 0; i < MANY; i++) {
        char body[120];
        client_open(&c[i], serve_port(d.s));
        snprintf(body, sizeof body, "{\"stream\":%s,\"max_tokens\":%d," ASKED "}", i % 3 ? "true"
                 : "false", 1 + i % 20);
        client_ask(&c[i], "POST", CHAT, "", body, true);
        list[i] = &c[i];
    }
    assert_true(desk_run(&d, c, MANY, 20000, all_closed, list));
    for (int i = 0; i < MANY; i++) {
        struct buf b = {0}, text = {0}, finish = {0};
        struct ids ids = {0};
        int status;
        split_answer(c[i].got.p, c[i].got.p + c[i].got.n, &status, &b);
        assert_int_equal(status, 200);
        if (i % 3) {
            join_stream(&b, true, &text, &ids, &finish);
        } else {
            json_t *o = json_loads(b.p, 0, NULL);
            buf_str(&text, text_at(o, "choices.0.message.content"));
            json_decref(o);
        }
        assert_int_equal(strncmp(text.p, said, text.n), 0);
        ids_free(&ids);
        buf_free(&b);
        buf_free(&text);
        buf_free(&finish);
        client_close(&c[i]);
    }
    desk_close(&d);
}

static uint64_t used_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* {"prompt": n bytes} */
static char *long_body(size_t n)
{
    struct buf b = {0};
    buf_str(&b, "{\"prompt\":\"");
    while (b.n < n)
        buf_str(&b, "the window of a fox holds 64 pages, and a word more; ");
    buf_str(&b, "\"}");
    return b.p;
}

/* A long text is encoded beside the loop, which answers others meanwhile: short prompts, too. */
static void test_a_long_text_delays_nobody(void **state)
{
    const size_t bytes = (size_t)rounds(4, 30) << 20;
    char *body = long_body(bytes);
    struct desk d;
    struct client c[2];
    struct buf b = {0};
    uint64_t most = 0;
    int status, answered = 0;
    (void)state;
    desk_open(&d, NULL);
    client_open(&c[0], serve_port(d.s));
    client_ask(&c[0], "POST", "/tokenize", "", body, true);
    for (c[1].closed = true; !c[0].closed;) {
        if (c[1].closed && answered++)
            client_close(&c[1]);
        if (c[1].closed) {
            client_open(&c[1], serve_port(d.s));
            bool chat = answered % 16 == 0 && d.f.n_job < 500;
            client_ask(&c[1], chat ? "POST" : "GET", chat ? CHAT : "/health", "",
                       chat ? "{" ASKED "}" : NULL, true);
        }
        client_move(&c[0]);
        client_move(&c[1]);
        uint64_t t0 = used_ns(CLOCK_THREAD_CPUTIME_ID);
        serve_step(d.s, 0, -1);
        uint64_t took = used_ns(CLOCK_THREAD_CPUTIME_ID) - t0;
        most = took > most && !c[0].got.n ? took : most;
        fake_run(&d.f);
    }
    split_answer(c[0].got.p, c[0].got.p + c[0].got.n, &status, &b);
    assert_int_equal(status, 200);
    assert_true(strtol(b.p + strlen("{\"count\":"), NULL, 10) > (long)bytes / 8);
    assert_true(answered > 20);
    if (most > 60000000)
        fail_msg("the loop took %.0f ms between two events", (double)most * 1e-6);
    client_close(&c[0]);
    client_close(&c[1]);
    buf_free(&b);
    free(body);
    desk_close(&d);
}

/* The end of the server ends what is being read, and what comes later is not read. */
static void test_the_end_of_the_server_ends_encoding(void **state)
{
    char *body = long_body(4 << 20);
    struct desk d;
    struct client c[3], *list[4] = {&c[0], &c[1], &c[2], NULL};
    struct buf b = {0};
    uint64_t loop = used_ns(CLOCK_THREAD_CPUTIME_ID), all = used_ns(CLOCK_PROCESS_CPUTIME_ID);
    int status;
    (void)state;
    desk_open(&d, NULL);
    for (int i = 0; i < 3; i++) {
        client_open(&c[i], serve_port(d.s));
        client_ask(&c[i], "POST", "/tokenize", "", body, true);
    }
    do /* until the other thread has read for a while */
        desk_run(&d, c, 3, 1, NULL, NULL);
    while (used_ns(CLOCK_PROCESS_CPUTIME_ID) - all < used_ns(CLOCK_THREAD_CPUTIME_ID) - loop +
           30000000);
    serve_end(d.s);
    all = used_ns(CLOCK_PROCESS_CPUTIME_ID);
    loop = used_ns(CLOCK_THREAD_CPUTIME_ID);
    assert_true(desk_run(&d, c, 3, 1000000, all_closed, list));
    all = used_ns(CLOCK_PROCESS_CPUTIME_ID) - all - (used_ns(CLOCK_THREAD_CPUTIME_ID) - loop);
    for (int i = 0; i < 3; i++) {
        split_answer(c[i].got.p, c[i].got.p + c[i].got.n, &status, &b);
        assert_int_equal(status, 503);
        assert_non_null(strstr(b.p, "the server ends"));
        client_close(&c[i]);
    }
    assert_true(serve_idle(d.s));
    if (all > 100000000)
        fail_msg("the encoding went on for %.0f ms", (double)all * 1e-6);
    buf_free(&b);
    free(body);
    desk_close(&d);
}

/* A prompt of more bytes than the context's tokens can stand for is refused before it is
 * encoded. */
static void test_a_prompt_without_end_is_not_encoded(void **state)
{
    char *body = long_body(20 << 20),
        *chat = xasprintf("{\"messages\":[{\"role\":\"user\",\"content\":%s]}",
                                                         strchr(body, ':') + 1);
    struct desk d;
    (void)state;
    desk_open(&d, NULL);
    for (int i = 0; i < 2; i++) {
        json_t *o = desk_json(&d, i ? CHAT : COMPLETIONS, i ? chat : body, 400);
        assert_non_null(strstr(text_at(o, "error.message"),
                               "; the context of 4096 tokens holds at most 61440"));
        json_decref(o);
    }
    assert_int_equal(d.f.n_job, 0);
    free(body);
    free(chat);
    desk_close(&d);
}

static void test_too_many_jobs_are_told_to_wait(void **state)
{
    struct desk d;
    (void)state;
    desk_open(&d, NULL);
    d.f.refuse_from = 3;
    json_t *o = desk_json(&d, CHAT, "{\"n\":4," ASKED "}", 503);
    assert_string_equal(text_at(o, "error.message"), "too many jobs wait");
    json_decref(o);
    assert_int_equal(d.f.n_job, 2);
    desk_run(&d, NULL, 0, 20, NULL, NULL);
    assert_true(d.f.job[0].cancelled && d.f.job[1].cancelled && serve_idle(d.s));
    desk_close(&d);
}

/* A job that ends without a beginning, or with a fault in the middle. */
static void test_failed_jobs_are_errors(void **state)
{
    struct desk d;
    struct buf b = {0};
    (void)state;
    desk_open(&d, NULL);
    for (int i = 0; i < 4; i++) {
        bool stream = i & 1, late = i & 2;
        struct client c, *list[2] = {&c, NULL};
        int status;
        d.f.held = 1;
        client_open(&c, serve_port(d.s));
        client_ask(&c, "POST", CHAT, "", stream ? "{\"stream\":true," ASKED "}" : "{" ASKED "}",
                   true);
        desk_await_jobs(&d, &c, 1, i + 1);
        struct fake_job *j = &d.f.job[i];
        if (late) {
            fake_begin(&d.f, j);
            fake_step(&d.f, j, 1);
            desk_run(&d, &c, 1, 50, NULL, NULL);
        }
        fake_end(&d.f, j, late ? STOP_FAULT : STOP_KV_FULL);
        assert_true(desk_run(&d, &c, 1, 2000, all_closed, list));
        split_answer(c.got.p, c.got.p + c.got.n, &status, &b);
        assert_int_equal(status, late && stream ? 200 : late ? 500 : 503);
        assert_non_null(strstr(b.p, "\"error\":{"));
        assert_null(strstr(b.p, "[DONE]"));
        assert_null(strstr(b.p, "\"finish_reason\":\""));
        client_close(&c);
    }
    buf_free(&b);
    desk_close(&d);
}

static void lose_device(struct desk *d)
{
    struct event ev = {.kind = EV_FAULT, .ns = clock_ns(), .lost = true};
    buf_str(&ev.text, "model.safetensors was truncated");
    evq_put(d->f.base.screen, &ev);
}

/* The end of the server, which follows a lost device, does not hide why a reply failed: neither
 * from jobs whose end is on its way, nor from those that the end cancels, nor from later
 * requests. */
static void test_a_lost_device_is_an_error_for_everybody(void **state)
{
    (void)state;
    for (int i = 0; i < 16; i++) {
        bool stream = i & 1, begun = i & 2, stepped = i & 4, cancelled = i & 8;
        struct desk d;
        struct client c[2], *list[3] = {&c[0], &c[1], NULL};
        struct buf b = {0};
        int status;
        desk_open(&d, NULL);
        d.f.held = 1;
        client_open(&c[0], serve_port(d.s));
        client_open(&c[1], serve_port(d.s));
        client_ask(&c[0], "POST", CHAT, "", stream ? "{\"stream\":true," ASKED "}" : "{" ASKED "}",
                   true);
        desk_await_jobs(&d, c, 2, 1);
        struct fake_job *j = &d.f.job[0];
        if (begun)
            fake_begin(&d.f, j);
        if (begun && stepped)
            fake_step(&d.f, j, 1);
        desk_run(&d, c, 2, 50, NULL, NULL);
        lose_device(&d);
        serve_step(d.s, 0, -1);
        assert_true(d.s->lost);
        serve_end(d.s); /* as the program does */
        fake_end(&d.f, j, cancelled ? STOP_CANCEL : STOP_DEVICE);
        client_ask(&c[1], "POST", CHAT, "", "{" ASKED "}", true);
        assert_true(desk_run(&d, c, 2, 2000, all_closed, list));
        for (int k = 0; k < 2; k++) {
            split_answer(c[k].got.p, c[k].got.p + c[k].got.n, &status, &b);
            assert_int_equal(status, k == 0 && stream && begun ? 200 : 500);
            assert_non_null(strstr(b.p, "\"error\":{"));
            assert_null(strstr(b.p, "[DONE]"));
            assert_null(strstr(b.p, "\"finish_reason\":\""));
            client_close(&c[k]);
        }
        assert_int_equal(d.f.n_job, 1);
        buf_free(&b);
        desk_close(&d);
    }
}

static const struct history_about about = {.version = "0", .device = "cpu", .flags = "",
                                           .model_dir = "m",
                                           .model_sha = "a", .draft_dir = "", .draft_sha = "",
                                           .tokenizer_sha = "t", .config = "served=chat\n"};

/* Whether the log holds this many replies with the whole text. */
static bool log_has(const char *db, int n)
{
    sqlite3 *log;
    sqlite3_stmt *q;
    assert_int_equal(sqlite3_open_v2(db, &log, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(log, "SELECT count(*) FROM v_turn WHERE stop = 'end' AND "
                                             "reply = ?",
                                        -1, &q, NULL), SQLITE_OK);
    sqlite3_bind_text(q, 1, said, -1, SQLITE_STATIC);
    assert_int_equal(sqlite3_step(q), SQLITE_ROW);
    int found = sqlite3_column_int(q, 0);
    sqlite3_finalize(q);
    sqlite3_close(log);
    return found == n;
}

/* While another process holds the log's lock, nobody is told that a reply is complete. */
static void test_a_reply_is_acknowledged_when_the_log_has_it(void **state)
{
    struct desk d;
    struct client c[2], *list[3] = {&c[0], &c[1], NULL};
    struct err e = {0};
    struct buf b = {0};
    sqlite3 *other;
    int status;
    char *folder = scratch_folder(), *db = xasprintf("%s/log.db", folder);
    struct history *h = history_open(db, LOG_TEXT, &about, &e);
    (void)state;
    assert_non_null(h);
    assert_int_equal(sqlite3_open(db, &other), SQLITE_OK);
    assert_int_equal(sqlite3_exec(other, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
    desk_open_as(&d, NULL, NESTLING, "gemma3", h);
    for (int i = 0; i < 2; i++) {
        client_open(&c[i], serve_port(d.s));
        client_ask(&c[i], "POST", CHAT, "", i ? "{\"stream\":true," ASKED "}" : "{" ASKED "}",
                   true);
    }
    desk_await_jobs(&d, c, 2, 2);
    desk_run(&d, c, 2, 500, NULL, NULL);
    assert_true(d.f.job[0].ended && d.f.job[1].ended && d.s->n_task == 2);
    assert_true(c[0].got.n == 0 && !c[1].closed && log_has(db, 0));
    assert_non_null(strstr(c[1].got.p, " again")); /* the text of a stream does not wait */
    assert_null(strstr(c[1].got.p, "\"finish_reason\":\""));
    assert_int_equal(sqlite3_exec(other, "COMMIT", NULL, NULL, NULL), SQLITE_OK);
    for (int i = 0; i < 5000 && !all_closed(list); i++) {
        desk_run(&d, c, 2, 1, NULL, NULL);
        if (c[0].got.n || strstr(c[1].got.p, "\"finish_reason\":\"stop\""))
            assert_true(log_has(db, 2));
        usleep(1000);
    }
    split_answer(c[0].got.p, c[0].got.p + c[0].got.n, &status, &b);
    assert_int_equal(status, 200);
    assert_non_null(strstr(c[1].got.p, "data: [DONE]\n\n"));
    for (int i = 0; i < 2; i++)
        client_close(&c[i]);
    buf_free(&b);
    desk_close(&d);
    history_close(h);
    sqlite3_close(other);
    scratch_remove(folder);
    free(db);
}

static void test_a_reply_that_the_log_cannot_store_is_an_error(void **state)
{
    static const char *const body[] = {"{" ASKED "}", "{\"stream\":true," ASKED "}"};
    struct desk d;
    struct err e = {0};
    struct buf b = {0};
    char *folder = scratch_folder(), *db = xasprintf("%s/log.db", folder);
    struct history *h = history_open(db, LOG_TEXT, &about, &e);
    (void)state;
    assert_non_null(h);
    desk_open_as(&d, NULL, NESTLING, "gemma3", h);
    assert_int_equal(desk_ask(&d, "POST", CHAT, "", body[0], &b), 200);
    unlink(db); /* the writer notices, and keeps what it has */
    for (int i = 0; i < 2; i++) {
        assert_int_equal(desk_ask(&d, "POST", CHAT, "", body[i], &b), i ? 200 : 500);
        assert_non_null(strstr(b.p, "could not be stored in the log: not saved: the log's file was "
                                    "moved or deleted"));
        assert_null(strstr(b.p, "[DONE]"));
        assert_null(strstr(b.p, "\"finish_reason\":\""));
    }
    buf_free(&b);
    desk_close(&d);
    history_close(h);
    scratch_remove(folder);
    free(db);
}

static bool keep_stop(const struct turn_row *r, void *arg)
{
    struct turn_row *reply = arg;
    if (!r->is_user)
        turn_row_copy(reply, r);
    return true;
}

static bool keep_id(const struct session_row *r, void *arg)
{
    memcpy(arg, r->id, SESSION_ID);
    return false;
}

/* The engine computes on until it hears of the cancel, perhaps to the reply's own end. */
static void test_what_follows_a_stop_text_is_not_in_the_log(void **state)
{
    struct desk d;
    struct client c, *list[2] = {&c, NULL};
    struct err e = {0};
    struct turn_row reply = {0};
    char *folder = scratch_folder(), *db = xasprintf("%s/log.db", folder), id[SESSION_ID];
    struct history *h = history_open(db, LOG_STEPS, &about, &e);
    (void)state;
    assert_non_null(h);
    desk_open_as(&d, NULL, NESTLING, "gemma3", h);
    d.f.held = 1;
    client_open(&c, serve_port(d.s));
    client_ask(&c, "POST", CHAT, "", "{\"stop\":[\" values\"]," ASKED "}", true);
    desk_await_jobs(&d, &c, 1, 1);
    struct fake_job *j = &d.f.job[0];
    fake_begin(&d.f, j);
    while (j->at < d.f.script.n)
        fake_step(&d.f, j, 1);
    fake_end(&d.f, j, STOP_END);
    assert_true(desk_run(&d, &c, 1, 2000, all_closed, list));
    client_close(&c);
    desk_close(&d);
    history_close(h);
    struct hdb *log = hdb_open(db, &e);
    assert_non_null(log);
    assert_int_equal(hdb_sessions(log, NULL, NULL, 0, keep_id, id, &e), 1);
    assert_int_equal(hdb_turns(log, id, 0, keep_stop, &reply, &e), 2);
    assert_string_equal(reply.text, "The KV cache stores the keys and");
    assert_int_equal(reply.stop, STOP_CANCEL);
    assert_int_equal(reply.tokens.n, 8);
    assert_int_equal(reply.n_steps, 8);
    turn_row_free(&reply);
    hdb_close(log);
    scratch_remove(folder);
    free(db);
}

static void test_the_end_of_the_server_ends_replies(void **state)
{
    struct desk d;
    struct client c[2], *list[3] = {&c[0], &c[1], NULL};
    int status;
    struct buf b = {0};
    (void)state;
    desk_open(&d, NULL);
    d.f.held = 1;
    for (int i = 0; i < 2; i++) {
        client_open(&c[i], serve_port(d.s));
        client_ask(&c[i], "POST", CHAT, "", i ? "{\"stream\":true," ASKED "}" : "{" ASKED "}",
                   true);
    }
    desk_await_jobs(&d, c, 2, 2);
    for (int i = 0; i < 2; i++) {
        fake_begin(&d.f, &d.f.job[i]);
        fake_step(&d.f, &d.f.job[i], 1);
    }
    desk_await_jobs(&d, c, 2, 2);
    serve_end(d.s);
    assert_true(desk_run(&d, c, 2, 2000, all_closed, list));
    desk_run(&d, c, 0, 5, NULL, NULL);
    assert_true(serve_idle(d.s));
    for (int i = 0; i < 2; i++) {
        split_answer(c[i].got.p, c[i].got.p + c[i].got.n, &status, &b);
        assert_int_equal(status, 200);
        assert_non_null(strstr(b.p, "\"finish_reason\":\"abort\""));
        client_close(&c[i]);
    }
    buf_free(&b);
    desk_close(&d);
}

/* Half a request, and a stream that is not read: both end when nothing has moved for a second. */
static void test_connections_that_stand_still_end(void **state)
{
    struct desk d;
    struct client c[2];
    (void)state;
    desk_open(&d, &(struct serve_opts){.timeout_s = 1});
    d.f.script.n = 0;
    for (int i = 0; i < 4000; i++)
        ids_add(&d.f.script, 1066);
    for (int i = 0; i < 2; i++)
        client_open(&c[i], serve_port(d.s));
    buf_str(&c[0].to, "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Le");
    c[1].most = 0;
    client_ask(&c[1], "POST", CHAT, "",
               "{\"n\":2,\"stream\":true,\"logprobs\":true,\"top_logprobs\":20," ASKED "}", false);
    for (int i = 0; i < 3000 && !(c[0].closed && d.s->n_task == 0 && d.f.n_job); i++) {
        desk_run(&d, c, 2, 50, NULL, NULL);
        usleep(20000);
    }
    assert_true(c[0].closed && d.f.n_job == 2 && d.s->n_task == 0 && serve_idle(d.s));
    for (int i = 0; i < 2; i++)
        client_close(&c[i]);
    desk_close(&d);
}

static void damage(struct buf *b, uint64_t luck)
{
    size_t at = luck % b->n, gap = luck >> 20 & 0x3f, rest = b->n - at;
    switch (luck >> 40 & 3) {
    case 0: b->p[at] = "{}[]\",:019-.ntf"[luck >> 48 & 15]; break;
    case 1: b->p[at] = (char)(luck >> 48); break;
    case 2: b->n = at + 1; break;
    case 3:
        gap = gap < rest ? gap : rest - 1;
        memmove(b->p + at, b->p + at + gap, rest - gap);
        b->n -= gap;
    }
}

/* Bodies with bytes changed, cut and left out: read, or refused with a reason. */
static void test_broken_bodies_are_read_or_refused(void **state)
{
    static const char *const whole[] = {
        ("{\"model\":\"nestling\",\"stream\":true,\"stop\":[\"a\",\"\\u00e9\"],\"seed\":5,\"n\":2,\"logprobs\":true,"
         "\"top_logprobs\":3,\"stream_options\":{\"include_usage\":true}," ASKED "}"),
        ("{\"prompt\":[[2,4],[516,267]],\"max_tokens\":0,\"echo\":true,\"logprobs\":5,\"temperature\":0.5,\"top_p\":0.9,"
         "\"stop_token_ids\":[5],\"logit_bias\":{},\"best_of\":1,\"prompt_logprobs\":null}"),
        "{\"prompt\":[\"<bos>caf\\u00e9\",\"x\"],\"max_tokens\":4095,\"min_p\":0.1,\"top_k\":-1,\"ignore_eos\":false}",
    };
    struct desk d;
    uint64_t luck = 11;
    int read = 0, refused = 0;
    (void)state;
    desk_open(&d, NULL);
    for (int i = 0; i < 12000; i++) {
        struct buf b = {0};
        struct ask a;
        struct refusal r;
        buf_str(&b, whole[i % 3]);
        for (int k = 0; k < 1 + i % 3; k++)
            damage(&b, luck = mix64(luck));
        if (ask_read(&a, &d.s->of, i % 3 == 0, b.p, b.n, &r)) {
            read++;
            assert_true(a.n_prompt > 0 && a.prompt[0].n > 0);
            ask_free(&a);
        } else {
            refused++;
            assert_true(r.status >= 400 && r.status < 500 && r.message[0] && a.n_prompt == 0);
        }
        buf_free(&b);
    }
    assert_true(read > 100 && refused > 1000);
    desk_close(&d);
}

/* A body that is JSON, but of more values than a reader takes, is called too large, not broken. */
static void test_a_body_is_refused_for_what_it_is(void **state)
{
    static const struct { const char *part; int n; const char *says; } cases[] = {
        {"{},", 1000000, "the body is too large: line 1"},
        {"{,", 1, "the body is no JSON: line 1"}};
    struct desk d;
    (void)state;
    desk_open(&d, NULL);
    for (int i = 0; i < 2; i++) {
        struct buf b = {0};
        struct ask a;
        struct refusal r;
        buf_str(&b, "{\"x\":[");
        for (int k = 0; k < cases[i].n; k++)
            buf_str(&b, cases[i].part);
        buf_str(&b, "{}]," ASKED "}");
        assert_false(ask_read(&a, &d.s->of, true, b.p, b.n, &r));
        assert_int_equal(r.status, 400);
        assert_memory_equal(r.message, cases[i].says, strlen(cases[i].says));
        buf_free(&b);
    }
    desk_close(&d);
}

/* ---- metrics --------------------------------------------------------------------------------- */

static double metric(const struct buf *page, const char *name, const char *label, const char *value)
{
    struct metrics m;
    double v = -1;
    assert_true(metrics_read(&m, page->p, page->n, NULL));
    assert_true(metrics_value(&m, name, label, value, METRICS_SUM, &v, NULL));
    metrics_free(&m);
    return v;
}

static void test_metrics_count_what_was_served(void **state)
{
    struct desk d;
    struct buf b = {0};
    (void)state;
    desk_open(&d, NULL);
    d.f.step = 4;
    for (int i = 0; i < 3; i++)
        json_decref(desk_json(&d, CHAT, "{" ASKED "}", 200));
    json_decref(desk_json(&d, CHAT, "{}", 400));
    assert_int_equal(desk_ask(&d, "GET", "/metrics", "", NULL, &b), 200);
    assert_true(metric(&b, "prompt_tokens_total", NULL, NULL) == 51);
    assert_true(metric(&b, "prefix_cache_hits_total", NULL, NULL) == 12);
    assert_true(metric(&b, "generation_tokens_total", NULL, NULL) == 63);
    assert_true(metric(&b, "spec_decode_num_drafts_total", NULL, NULL) == 15);
    assert_true(metric(&b, "spec_decode_num_accepted_tokens_total", NULL, NULL) == 45);
    assert_true(metric(&b, "spec_decode_num_accepted_tokens_per_pos_total", "position", "2") == 15);
    assert_true(metric(&b, "request_success_total", "finished_reason", "stop") == 3);
    assert_true(metric(&b, "time_to_first_token_seconds_count", NULL, NULL) == 3);
    assert_true(metric(&b, "requests_refused_total", NULL, NULL) == 1);
    assert_true(metric(&b, "kv_cache_usage_perc", NULL, NULL) == 0.3);
    assert_true(metric(&b, "kv_used_tokens", NULL, NULL) == 480);
    assert_true(metric(&b, "swa_available_tokens", NULL, NULL) == 80);
    assert_int_equal(desk_ask(&d, "POST", "/reset_prefix_cache", "", NULL, &b), 200);
    assert_int_equal(d.f.n_reset, 1);
    assert_int_equal(desk_ask(&d, "GET", "/server_info", "", NULL, &b), 200);
    buf_free(&b);
    desk_close(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes_are_those_of_vllm),
        cmocka_unit_test(test_echoed_prompt_has_offsets_and_log_probabilities),
        cmocka_unit_test(test_steps_change_no_byte_of_a_reply),
        cmocka_unit_test(test_streams_send_whole_characters),
        cmocka_unit_test(test_thoughts_are_apart),
        cmocka_unit_test(test_a_request_reaches_the_engine_as_it_was_asked),
        cmocka_unit_test(test_neutral_values_are_accepted),
        cmocka_unit_test(test_minus_one),
        cmocka_unit_test(test_system_messages_at_the_beginning_are_joined),
        cmocka_unit_test(test_one_model_and_heads_alone),
        cmocka_unit_test(test_every_refusal_is_an_error_object),
        cmocka_unit_test(test_tools_may_be_narrowed_by_tool_choice),
        cmocka_unit_test(test_a_call_is_streamed_as_an_item),
        cmocka_unit_test(test_a_call_that_was_cut_off_may_be_sent_back),
        cmocka_unit_test(test_keys_hosts_and_lengths),
        cmocka_unit_test(test_a_body_that_is_too_long_is_read_before_it_is_refused),
        cmocka_unit_test(test_a_head_says_one_thing),
        cmocka_unit_test(test_a_half_closed_client_gets_its_answer),
        cmocka_unit_test(test_pages_of_other_origins_change_nothing),
        cmocka_unit_test(test_slow_clients_keep_nobody_out),
        cmocka_unit_test(test_connections_that_wait_make_place),
        cmocka_unit_test(test_a_client_that_leaves_ends_its_job),
        cmocka_unit_test(test_a_client_that_reads_nothing_holds_nobody),
        cmocka_unit_test(test_requests_in_a_row_on_one_connection),
        cmocka_unit_test(test_many_clients_at_once),
        cmocka_unit_test(test_a_long_text_delays_nobody),
        cmocka_unit_test(test_the_end_of_the_server_ends_encoding),
        cmocka_unit_test(test_a_prompt_without_end_is_not_encoded),
        cmocka_unit_test(test_too_many_jobs_are_told_to_wait),
        cmocka_unit_test(test_failed_jobs_are_errors),
        cmocka_unit_test(test_a_lost_device_is_an_error_for_everybody),
        cmocka_unit_test(test_a_reply_is_acknowledged_when_the_log_has_it),
        cmocka_unit_test(test_a_reply_that_the_log_cannot_store_is_an_error),
        cmocka_unit_test(test_what_follows_a_stop_text_is_not_in_the_log),
        cmocka_unit_test(test_the_end_of_the_server_ends_replies),
        cmocka_unit_test(test_connections_that_stand_still_end),
        cmocka_unit_test(test_broken_bodies_are_read_or_refused),
        cmocka_unit_test(test_a_body_is_refused_for_what_it_is),
        cmocka_unit_test(test_metrics_count_what_was_served),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
