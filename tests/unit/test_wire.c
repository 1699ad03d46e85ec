/* test_wire.c - streams of events, metrics and answers of servers: the same result however the
 * bytes are cut, recorded answers of real servers, and random bytes. */
#include "engine/remote/answer.h"
#include "engine/remote/gauges.h"
#include "engine/remote/metrics.h"
#include "engine/remote/wire.h"
#include "tests/chance.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- events ---------------------------------------------------------------------------------- */

static bool collect(void *arg, const char *data, size_t n, struct err *e)
{
    struct buf *out = arg;
    (void)e;
    buf_printf(out, "[%zu:", n);
    buf_add(out, data, n);
    buf_char(out, ']');
    return true;
}

/* All events of a stream, cut into pieces of `cut` bytes, or of random length where cut is 0. */
static void read_events(enum wire_form form, const char *p, size_t n, size_t cut, struct buf *out)
{
    struct wire w = {.form = form};
    struct err e;
    buf_clear(out);
    for (size_t at = 0; at < n;) {
        size_t k = cut ? cut : (size_t)(1 + below(12));
        if (k > n - at)
            k = n - at;
        char *piece = malloc(k); /* so that a read beyond it is seen */
        memcpy(piece, p + at, k);
        assert_true(wire_feed(&w, piece, k, collect, out, &e));
        free(piece);
        at += k;
    }
    assert_true(wire_end(&w, collect, out, &e));
    wire_free(&w);
    buf_str(out, "");
}

static void expect_events(enum wire_form form, const char *stream, const char *want)
{
    struct buf got = {0};
    read_events(form, stream, strlen(stream), strlen(stream) + 1, &got);
    assert_string_equal(got.p, want);
    buf_free(&got);
}

static void events_follow_the_standard(void **state)
{
    (void)state;
    expect_events(WIRE_SSE, "data: a\n\ndata:b\n\n", "[1:a][1:b]");
    expect_events(WIRE_SSE, "data: a\r\n\r\ndata: b\r\rdata: c\n\n", "[1:a][1:b][1:c]");
    expect_events(WIRE_SSE, ": ping\n\n:\n\ndata: a\n\n", "[1:a]");       /* keep-alives */
    expect_events(WIRE_SSE, "data:\n\ndata: \n\ndata: a\n\n", "[1:a]");     /* empty events */
    expect_events(WIRE_SSE, "event: x\nid: 7\nretry: 9\ndata: a\n\n", "[1:a]");
    expect_events(WIRE_SSE, "data: a\ndata: b\n\n", "[3:a\nb]");
    expect_events(WIRE_SSE, "data:  two spaces\n\n", "[11: two spaces]");
    expect_events(WIRE_SSE, "\xEF\xBB\xBF""data: a\n\n", "[1:a]");          /* byte order mark */
    /* the end is missing */
    expect_events(WIRE_SSE, "data: a\n\ndata: cut off", "[1:a][7:cut off]");
    expect_events(WIRE_SSE, "datax: a\n\nDATA: b\n\ndata\n\n", "");
    expect_events(WIRE_LINES, "{1}\n\n  \r\n{2}\r\n{3}", "[3:{1}][3:{2}][3:{3}]");
}

static void events_do_not_depend_on_the_pieces(void **state)
{
    (void)state;
    static const char *const part[] = {"data: ", "data:", "\n", "\r", "\r\n", "\n\n", ": c", "x",
                                       "{}", "event: a", "data", "\xEF\xBB\xBF", "\0", " ", "id:1"};
    struct buf stream = {0}, whole = {0}, cut = {0};
    for (int round = 0; round < 3000; round++) {
        buf_clear(&stream);
        for (int i = below(24); i >= 0; i--) {
            const char *s = part[below(sizeof part / sizeof *part)];
            buf_add(&stream, s, *s ? strlen(s) : 1);
        }
        for (int form = 0; form < 2; form++) {
            read_events((enum wire_form)form, stream.p, stream.n, stream.n, &whole);
            read_events((enum wire_form)form, stream.p, stream.n, 1, &cut);
            assert_string_equal(whole.p, cut.p);
            read_events((enum wire_form)form, stream.p, stream.n, 0, &cut);
            assert_int_equal(whole.n, cut.n);
            assert_memory_equal(whole.p, cut.p, whole.n);
        }
    }
    buf_free(&stream);
    buf_free(&whole);
    buf_free(&cut);
}

static bool refuse(void *arg, const char *data, size_t n, struct err *e)
{
    int *calls = arg;
    (void)data, (void)n;
    return ++*calls < 2 || err_set(e, ERR_MODEL, "no");
}

static void reading_ends_where_its_caller_says(void **state)
{
    (void)state;
    struct wire w = {.form = WIRE_SSE};
    struct err e;
    int calls = 0;
    const char *s = "data: a\n\ndata: b\n\ndata: c\n\n";
    assert_false(wire_feed(&w, s, strlen(s), refuse, &calls, &e));
    assert_int_equal(calls, 2);
    wire_free(&w);
}

static void an_endless_line_is_refused(void **state)
{
    (void)state;
    struct wire w = {.form = WIRE_SSE};
    struct buf out = {0}, block = {0};
    struct err e;
    bool ok = true;
    size_t fed = 0;
    for (int i = 0; i < 1 << 16; i++)
        buf_char(&block, 'x');
    for (; ok && fed < 2 * (size_t)WIRE_MOST; fed += block.n)
        ok = wire_feed(&w, block.p, block.n, collect, &out, &e);
    assert_false(ok);
    assert_true(fed > WIRE_MOST && fed < WIRE_MOST + 3 * block.n);
    assert_string_equal(e.msg, "the server sent an event of more than 16 MiB");
    wire_free(&w);
    buf_free(&out);
    buf_free(&block);
}

/* ---- metrics --------------------------------------------------------------------------------- */

static void metrics_follow_the_format(void **state)
{
    (void)state;
    static const char page[] =
        "# HELP a b\n# TYPE a "
        "gauge\nvllm:kv_cache_usage_perc{engine=\"0\",model_name=\"a}b\\\"c\"} "
        "0.25\nvllm:kv_cache_usage_perc{engine=\"1\",model_name=\"x\"} 0.5 "
        "1700000000000\r\nsglang_token_usage 1e-3\nplain 3\nnan_one NaN\ninf_one "
        "+Inf\nbad\nbad{\nbad{a=\"1\"}\nbad{a=\"1\"} x\n{a=\"1\"} 4\n  spaced  7  \nlast{a=\"\"} 8";
    struct metrics m;
    struct err e;
    struct buf label = {0};
    double v = -1;
    int n;
    assert_true(metrics_read(&m, page, sizeof page - 1, &e));
    assert_int_equal(m.n, 8);
    assert_int_equal(m.n_bad, 5);
    assert_true(metrics_value(&m, "kv_cache_usage_perc", NULL, NULL, METRICS_SUM, &v, &n));
    assert_true(v == 0.75 && n == 2);
    assert_true(metrics_value(&m, "kv_cache_usage_perc", NULL, NULL, METRICS_MAX, &v, &n));
    assert_true(v == 0.5);
    assert_true(metrics_value(&m, "kv_cache_usage_perc", "engine", "0", METRICS_SUM, &v, &n));
    assert_true(v == 0.25 && n == 1);
    assert_true(metric_label(&m.at[0], "model_name", &label));
    assert_string_equal(label.p, "a}b\"c");
    assert_string_equal(m.at[0].prefix, "vllm");
    assert_true(metrics_value(&m, "token_usage", NULL, NULL, METRICS_SUM, &v, &n) && v == 1e-3);
    assert_true(metrics_value(&m, "spaced", NULL, NULL, METRICS_SUM, &v, &n) && v == 7);
    assert_true(metrics_value(&m, "inf_one", NULL, NULL, METRICS_SUM, &v, &n) && isinf(v));
    assert_false(metrics_value(&m, "nothing", NULL, NULL, METRICS_SUM, &v, &n));
    assert_int_equal(n, 0);
    metrics_free(&m);
    buf_free(&label);
}

static void read_exchange(const char *name, struct buf *body);

static void pools_come_from_metrics(void **state)
{
    (void)state;
    struct gauge_page v;
    struct buf page = {0};
    const char *sglang = "sglang:kv_used_tokens{tp_rank=\"0\"} "
    "30\nsglang:kv_used_tokens{tp_rank=\"1\"} 30\n"
                         "sglang:kv_available_tokens{tp_rank=\"0\"} 60\nsglang:kv_evictable_tokens "
                         "10\nsglang:swa_used_tokens 5\nsglang:swa_available_tokens "
                         "15\nsglang:swa_evictable_tokens 0\nsglang:num_running_reqs "
                         "2\nsglang:token_usage 0.9\n";
    gauge_page_init(&v);
    assert_true(gauges_read(SERVER_SGLANG, sglang, strlen(sglang), &v));
    assert_true(v.pool[POOL_FULL].used == 30 && v.pool[POOL_FULL].free == 60 &&
                v.pool[POOL_FULL].evictable == 10);
    assert_true(v.pool[POOL_FULL].total == 100 && v.pool[POOL_SWA].total == 20 &&
                v.pool[POOL_SWA].used == 5);
    assert_float_equal(v.v[GAUGE_POOL + POOL_FULL], 0.3, 1e-6); /* not the greatest of the pools */
    assert_true(v.v[GAUGE_RUNNING] == 2 && isnan(v.v[GAUGE_WAITING]) && !v.pool[POOL_DRAFT].exists);
    read_exchange("vllm-metrics", &page);
    gauge_page_init(&v);
    assert_true(gauges_read(SERVER_VLLM, page.p, page.n, &v));
    assert_true(v.pool[POOL_FULL].page_size == 16 && v.pool[POOL_FULL].total == 1814801);
    assert_true(!v.pool[POOL_SWA].exists && v.hits == 160 && v.queries == 978 && v.tokens == 1331);
    assert_true(v.drafts == 580 && v.accepted == 789 && v.v[GAUGE_WAITING] == 0);
    read_exchange("llama-slots", &page);
    gauge_page_init(&v);
    assert_true(gauges_read(SERVER_LLAMA, page.p, page.n, &v));
    assert_true(v.pool[POOL_FULL].total == 2048 && v.pool[POOL_FULL].used >= 705 &&
                v.v[GAUGE_RUNNING] == 1);
    read_exchange("llama-metrics", &page); /* beside the slots */
    assert_true(gauges_read(SERVER_LLAMA, page.p, page.n, &v));
    assert_true(v.pool[POOL_FULL].total == 2048 && v.v[GAUGE_WAITING] == 0 &&
                v.queries == 157 + 180);
    gauge_page_init(&v);
    assert_false(gauges_read(SERVER_VLLM, "x 1\n", 4, &v));
    assert_false(gauges_read(SERVER_SGLANG, "", 0, &v));
    assert_false(gauges_read(SERVER_LLAMA, "{}", 2, &v));
    buf_free(&page);
}

/* ---- answers --------------------------------------------------------------------------------- */

/* A recorded exchange: its body. */
static void read_exchange(const char *name, struct buf *body)
{
    char *path = xasprintf("tests/exchanges/%s", name);
    struct err e;
    buf_free(body);
    if (!buf_read_file(body, path, 1 << 20, &e))
        fail_msg("%s", e.msg);
    for (int i = 0; i < 2; i++) {
        char *end = memchr(body->p, '\n', body->n);
        assert_non_null(end);
        size_t head = (size_t)(end + 1 - body->p);
        memmove(body->p, end + 1, body->n - head);
        body->n -= head;
    }
    body->p[body->n] = '\0';
    free(path);
}

/* What a stream says in all. */
struct total {
    struct buf text;
    struct ids ids, prompt;
    int n_events, n_logp, n_rival, n_rival_id;
    enum finish finish;
    struct answer_counts count;
    bool end;
    char error[400];
};

static bool add_answer(void *arg, const char *data, size_t n, struct err *e)
{
    struct total *t = arg;
    struct answer a;
    if (!answer_read(&a, data, n, e))
        return false;
    t->n_events++;
    buf_add(&t->text, a.text.p, a.text.n);
    for (int i = 0; i < a.n_token; i++) {
        ids_add(&t->ids, a.token[i].id);
        t->n_logp += !isnan(a.token[i].logp);
        t->n_rival += !isnan(a.token[i].rival_logp);
        t->n_rival_id += a.token[i].rival >= 0;
        assert_true(isnan(a.token[i].rival_logp) || a.token[i].rival_logp <= 0);
    }
    ids_cat(&t->prompt, a.prompt.v, a.prompt.n);
    if (a.finish != FINISH_NONE)
        t->finish = a.finish;
    if (a.count.generated >= 0)
        t->count = a.count;
    t->end |= a.end;
    if (a.error[0])
        memcpy(t->error, a.error, sizeof t->error);
    answer_free(&a);
    return true;
}

static void read_stream(const char *name, enum wire_form form, struct total *t)
{
    struct buf body = {0};
    struct wire w = {.form = form};
    struct err e = {0};
    *t = (struct total){0};
    buf_str(&t->text, "");
    read_exchange(name, &body);
    for (size_t i = 0; i < body.n; i += 7)
        if (!wire_feed(&w, body.p + i, body.n - i < 7 ? body.n - i : 7, add_answer, t, &e))
            fail_msg("%s: %s", name, e.msg);
    assert_true(wire_end(&w, add_answer, t, &e));
    wire_free(&w);
    buf_free(&body);
}

static void total_free(struct total *t)
{
    buf_free(&t->text);
    ids_free(&t->ids);
    ids_free(&t->prompt);
}

static const char KV_CACHE[] = "The KV cache stores the keys and values of earlier tokens so that "
"they need "
                               "not be computed again.";

static void vllm_streams(void **state)
{
    (void)state;
    struct total t;
    read_stream("vllm-chat", WIRE_SSE, &t);
    assert_string_equal(t.text.p, KV_CACHE);
    assert_int_equal(t.ids.n, 21);
    assert_int_equal(t.ids.v[0], 324);
    assert_int_equal(t.ids.v[20], 5);
    assert_int_equal(t.prompt.n, 17);
    assert_int_equal(t.n_logp, 21);
    assert_int_equal(t.n_rival, 21);
    assert_int_equal(t.finish, FINISH_STOP);
    assert_int_equal(t.count.prompt, 17);
    assert_int_equal(t.count.generated, 21);
    assert_int_equal(t.count.cached, 0);
    assert_true(t.end);
    total_free(&t);

    read_stream("vllm-completion", WIRE_SSE, &t); /* the columns of the completions API */
    assert_string_equal(t.text.p, KV_CACHE);
    assert_true(t.ids.n == 21 && t.ids.v[20] == 5 && t.n_logp == 21 && t.n_rival == 21);
    total_free(&t);

    read_stream("vllm-chat-bare", WIRE_SSE, &t); /* nothing was asked for */
    assert_true(t.ids.n == 0 && t.prompt.n == 0 && t.finish == FINISH_LENGTH);
    total_free(&t);

    read_stream("vllm-aborted", WIRE_SSE, &t);
    assert_int_equal(t.finish, FINISH_ABORT);
    total_free(&t);
}

static void llama_streams(void **state)
{
    (void)state;
    struct total t;
    read_stream("llama-chat", WIRE_SSE, &t);
    assert_true(strncmp(t.text.p, "The page table lists, for each request", 38) == 0);
    assert_int_equal(t.finish, FINISH_STOP);
    assert_int_equal(t.ids.v[0], 324); /* ids stand in the entries of the log probabilities */
    assert_int_equal(t.n_rival_id, t.ids.n);
    assert_int_equal(t.count.generated, 19);
    assert_int_equal(t.count.cached, 12);
    total_free(&t);

    read_stream("llama-chat-draft", WIRE_SSE, &t);
    assert_int_equal(t.count.drafted, 15);
    assert_int_equal(t.count.accepted, 15);
    total_free(&t);

    read_stream("llama-completion", WIRE_SSE, &t);
    assert_true(t.ids.n == 6 && t.ids.v[5] == 5 && t.n_logp == 6 && t.end);
    assert_int_equal(t.finish, FINISH_STOP); /* "eos" */
    total_free(&t);
}

static void errors_are_read(void **state)
{
    (void)state;
    static const struct { const char *json, *error; int code; } c[] = {
        {"{\"error\":{\"message\":\"a\",\"code\":503}}", "a", 503},
        {"{\"error\":\"model 'x' not found\"}", "model 'x' not found", 0},
        {"{\"object\":\"error\",\"message\":\"b\\nc\",\"code\":400}", "b c", 400},
        {"{\"detail\":\"Not Found\"}", "Not Found", 0},
        {"{\"error\":{}}", "the server reports an error without a text", 0},
        {"{\"error\":\"\"}", "the server reports an empty error", 0},
        {"{\"error\":null,\"choices\":[]}", "", 0},
    };
    struct answer a;
    struct err e;
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        assert_true(answer_read(&a, c[i].json, strlen(c[i].json), &e));
        assert_string_equal(a.error, c[i].error);
        assert_int_equal(a.error_code, c[i].code);
        answer_free(&a);
    }
    assert_false(answer_read(&a, "[1]", 3, &e));
    assert_false(answer_read(&a, "{\"a\":", 5, &e));
    assert_string_equal(e.msg, "the server sent what is no JSON object: {\"a\":");
    answer_free(&a);
}

/* Pieces of calls in a stream, and a whole one of ollama. */
static void calls_of_functions_are_shown(void **state)
{
    (void)state;
    static const char *const c[] = {
        "{\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"c\",\"function\":{\"name\":\"now\","
        "\"arguments\":\"\"}}]}}]}",
        "{\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"{\\\"a\\\":1}\"}}]},"
        "\"finish_reason\":\"tool_calls\"}]}",
        "{\"message\":{\"content\":\"\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":{\"b\":2}}}]}}",
        "{\"choices\":[{\"delta\":{\"tool_calls\":[5,{\"function\":\"x\"}]}}]}",
    };
    static const char *const text[] = {"\ncall now ", "{\"a\":1}", "\ncall f {\"b\": 2}", ""};
    struct answer a;
    struct err e;
    for (size_t i = 0; i < 4; i++) {
        assert_true(answer_read(&a, c[i], strlen(c[i]), &e));
        assert_int_equal(a.text.n, strlen(text[i]));
        assert_memory_equal(a.text.n ? a.text.p : "", text[i], a.text.n);
        assert_int_equal(a.finish, i == 1 ? FINISH_STOP : FINISH_NONE);
        answer_free(&a);
    }
}

/* Fields of a wrong type, negative counts and ids that are none are as if they were not there. */
static void what_is_no_fact_is_not_reported(void **state)
{
    (void)state;
    static const char *const c[] = {
        "{\"choices\":[{\"delta\":{\"content\":5},\"token_ids\":[1,-2],\"logprobs\":{\"content\":[3]}}]}",
        "{\"choices\":[{\"delta\":\"x\",\"token_ids\":[1.5],\"finish_reason\":7}]}",
        "{\"choices\":[3],\"usage\":{\"prompt_tokens\":-1,\"completion_tokens\":\"9\"}}",
        "{\"choices\":{\"a\":1},\"timings\":[1,2]}",
        "{\"usage\":7,\"metrics\":{\"speculative_decoding\":{\"per_step_accepted\":[1,null]}}}",
        "{\"meta_info\":{\"output_token_logprobs\":[[]]},\"text\":5}",
    };
    struct answer a;
    struct err e;
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        assert_true(answer_read(&a, c[i], strlen(c[i]), &e));
        assert_int_equal(a.text.n, 0);
        for (int k = 0; k < a.n_token; k++)
            assert_true(a.token[k].id == -1 && isnan(a.token[k].logp));
        assert_true(a.count.prompt == -1 && a.count.generated == -1 && a.accepted.n == 0);
        assert_int_equal(a.finish, FINISH_NONE);
        answer_free(&a);
    }
}

static void other_servers_are_read(void **state)
{
    (void)state;
    struct answer a;
    struct err e;
    const char *sglang = "{\"text\":\"Hi "
    "you\",\"output_ids\":[7,8],\"meta_info\":{\"prompt_tokens\":4,"
                         "\"completion_tokens\":2,\"cached_tokens\":3,\"spec_verify_ct\":1,"
                         "\"spec_num_correct_drafts\":1,\"spec_num_proposed_drafts\":3,\"finish_reason\":"
                         "{\"type\":\"length\",\"length\":2},\"output_token_logprobs\":[[-0.5,7,null],"
                         "[-0.25,8,null]],\"output_top_logprobs\":[[[-0.5,7,null],[-1.5,9,null]],null]}}";
    assert_true(answer_read(&a, sglang, strlen(sglang), &e));
    assert_true(a.cumulative && a.text.n == 6 && a.reply.n == 2 && a.n_token == 2);
    assert_true(a.token[0].id == 7 && a.token[0].rival == 9 && a.token[0].rival_logp == -1.5f);
    assert_true(a.token[1].rival == -1 && isnan(a.token[1].rival_logp));
    assert_true(a.count.cached == 3 && a.count.accepted == 1 && a.count.drafted == 3);
    assert_int_equal(a.finish, FINISH_LENGTH);
    answer_free(&a);
    const char *ollama =
        "{\"model\":\"m\",\"message\":{\"role\":\"assistant\",\"content\":\"a\",\"thinking\":"
                         "\"b\"},\"done\":true,\"done_reason\":\"stop\",\"eval_count\":2,\"eval_duration\":3000000}";
    assert_true(answer_read(&a, ollama, strlen(ollama), &e));
    assert_true(a.end && a.finish == FINISH_STOP && a.count.generated == 2 &&
                a.count.ms_decode == 3);
    assert_string_equal(a.thought.p, "b");
    answer_free(&a);
    const char *steps =
        "{\"choices\":[],\"metrics\":{\"speculative_decoding\":{\"num_spec_steps\":2,"
                        "\"num_draft_tokens\":6,\"num_accepted_draft_tokens\":3,\"per_step_accepted\":[2,1],"
                        "\"per_step_drafted\":[3,3]}}}";
    assert_true(answer_read(&a, steps, strlen(steps), &e));
    assert_true(a.accepted.n == 2 && a.accepted.v[0] == 2 && a.drafted.v[1] == 3 &&
                a.count.verifies == 2);
    answer_free(&a);
}

/* The token itself is the first of an object's; a key that is no id, or an entry that is no object,
 * is a token of which nothing is known. */
static void log_probabilities_of_a_prompt_are_read(void **state)
{
    static const struct { const char *json; int n, id[3]; float logp[3]; } c[] = {
        {"{\"choices\":[{\"text\":\"\",\"prompt_logprobs\":[null,{\"2\":{\"logprob\":-1.5},\"9\":"
         "{\"logprob\":-0.25}},{\"3\":{\"logprob\":-4.5}}]}]}", 3, {-1, 2, 3}, {NAN, -1.5F, -4.5F}},
        {"{\"text\":\"\",\"meta_info\":{\"input_token_logprobs\":[[null,1,null],[-1.5,2,\"b\"],"
         "[-4.5,3,null]]}}", 3, {1, 2, 3}, {NAN, -1.5F, -4.5F}},
        {"{\"choices\":[{\"text\":\"\"}],\"prompt_logprobs\":[[],{\"x\":{\"logprob\":-1}},"
         "{\"3\":-1}]}", 3, {-1, -1, 3}, {NAN, -1, NAN}},
        {"{\"choices\":[{\"text\":\"\",\"prompt_logprobs\":{\"2\":1}}]}", 0, {0}, {0}},
    };
    struct answer a;
    struct err e;
    (void)state;
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        assert_true(answer_read(&a, c[i].json, strlen(c[i].json), &e));
        assert_int_equal(a.n_prompt_token, c[i].n);
        for (int k = 0; k < c[i].n; k++) {
            assert_int_equal(a.prompt_token[k].id, c[i].id[k]);
            assert_true(isnan(c[i].logp[k]) ? isnan(a.prompt_token[k].logp)
                                            : a.prompt_token[k].logp == c[i].logp[k]);
        }
        answer_free(&a);
    }
}

/* With return_tokens_as_token_ids the strings are ids; the bytes are the token's (aerie, vLLM's own
 * entry) or the string's once more (vLLM's candidates). */
static void texts_beside_ids_are_kept(void **state)
{
    (void)state;
    struct answer a;
    struct err e;
    const char *entry =
        "{\"choices\":[{\"delta\":{\"content\":\" "
        "KV\"},\"token_ids\":[1163],\"logprobs\":{\"content\":[{\"token\":\"token_id:1163\",\"logprob\":-0.1,\"bytes\":[32,75,86],\"top_logprobs\":[{\"token\":\"token_id:1163\","
        "\"logprob\":-0.1,\"bytes\":[32,75,86]},{\"token\":\"token_id:9\",\"logprob\":-2.5,\"bytes\":"
        "[116,111,107,101,110,95,105,100,58,57]},{\"token\":\"token_id:8\",\"logprob\":-3.5,\"bytes\":[97]}]}]}}]}";
    assert_true(answer_read(&a, entry, strlen(entry), &e));
    assert_true(a.n_token == 1 && a.token[0].id == 1163 && a.token[0].rival == 9 && a.tops.n == 3);
    assert_true(a.tops.at[0].id == 1163 && a.tops.at[0].n == 3 &&
                !memcmp(a.tops.at[0].text, " KV", 3));
    assert_true(a.tops.at[1].id == 9 && a.tops.at[1].text == NULL);
    assert_true(a.tops.at[2].id == 8 && a.tops.at[2].n == 1 && a.tops.at[2].text[0] == 'a');
    answer_free(&a);
}

/* Of a row in any order the best 256 are kept, best first, behind the token itself; those of one
 * log probability in the server's order, those without one last. */
static void the_best_tokens_of_a_row_are_kept(void **state)
{
    (void)state;
    enum { N = 5000, KEPT = ANSWER_TOPS };
    struct buf b = {0};
    struct answer a;
    struct err e;
    buf_str(&b, "{\"choices\":[{\"delta\":{},\"logprobs\":{\"content\":[");
    for (int row = 0; row < 2; row++) {
        buf_printf(&b,
                   "%s{\"token\":\"token_id:70000\",\"logprob\":-0.5,\"top_logprobs\":[{\"token\":\"token_id:6\"}",
                   row ? "," : "");
        for (int i = 0; i < (row ? 3 : N); i++) /* two of each log probability, and no order */
            buf_printf(&b, ",{\"token\":\"token_id:%d\",\"logprob\":-%d}", i, (i * 7919 % N) / 2);
        buf_str(&b, "]}");
    }
    buf_str(&b, "]}}]}");
    assert_true(answer_read(&a, b.p, b.n, &e));
    assert_int_equal(a.n_token, 2);
    assert_int_equal(a.tops.n, KEPT + 5);
    assert_int_equal(a.token[0].rival, 0);
    for (int i = 1; i < KEPT; i++) {
        const struct top *x = &a.tops.at[i], *before = &a.tops.at[i - 1];
        assert_true(x->k == 0 && -x->logp == (float)((i - 1) / 2));
        assert_true(i % 2 == 1 || x->id > before->id);
    }
    assert_true(a.tops.at[0].id == 70000 && a.tops.at[KEPT].id == 70000 && a.tops.at[KEPT].k == 1);
    assert_true(a.tops.at[KEPT + 4].id == 6 && isnan(a.tops.at[KEPT + 4].logp));
    answer_free(&a);
    buf_free(&b);
}

/* ---- random bytes ---------------------------------------------------------------------------- */

/* Flips, cuts and repeats bytes of recorded answers: every input is read or refused. */
static void mutate(struct buf *b)
{
    for (int k = below(6); k >= 0 && b->n > 1; k--) {
        size_t i = below((int)b->n), n = 1 + below(16);
        if (n > b->n - i)
            n = b->n - i;
        switch (below(4)) {
        case 0: b->p[i] = (char)below(256); break;
        case 1: memmove(b->p + i, b->p + i + n, b->n - i - n); b->n -= n; break;
        case 2: b->p[i] = "{}[]\",:\\0\n\r"[below(11)]; break;
        default: memmove(b->p + i, b->p, n < i ? n : i); break;
        }
    }
}

static bool swallow(void *arg, const char *data, size_t n, struct err *e)
{
    struct answer a;
    (void)arg, (void)e;
    struct err why;
    if (answer_read(&a, data, n, &why))
        CHECK(a.n_token <= ANSWER_TOKENS && (a.n_token == 0 || a.token));
    answer_free(&a);
    return true;
}

static void broken_answers_are_read_or_refused(void **state)
{
    (void)state;
    static const char *const file[] = {"vllm-chat", "llama-chat", "vllm-completion",
                                       "llama-completion",
                                       "vllm-echo", "llama-props", "vllm-err-context",
                                       "llama-metrics"};
    struct buf body = {0}, copy = {0};
    struct err e;
    for (int round = 0; round < 4000; round++) {
        if (round % 500 == 0)
            read_exchange(file[(round / 500) % 8], &body);
        size_t from = below((int)body.n), n = 1 + below(3000);
        buf_clear(&copy);
        buf_add(&copy, body.p + from, n < body.n - from ? n : body.n - from);
        mutate(&copy);
        struct wire w = {.form = round % 3 ? WIRE_SSE : WIRE_LINES};
        wire_feed(&w, copy.p, copy.n, swallow, NULL, &e);
        wire_end(&w, swallow, NULL, &e);
        wire_free(&w);
        struct metrics m;
        assert_true(metrics_read(&m, copy.p, copy.n, &e));
        for (int i = 0; i < m.n; i++) {
            double v;
            metrics_value(&m, m.at[i].name, "engine", "0", METRICS_SUM, &v, NULL);
        }
        metrics_free(&m);
    }
    buf_free(&body);
    buf_free(&copy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_follow_the_standard),
        cmocka_unit_test(events_do_not_depend_on_the_pieces),
        cmocka_unit_test(reading_ends_where_its_caller_says),
        cmocka_unit_test(an_endless_line_is_refused),
        cmocka_unit_test(metrics_follow_the_format),
        cmocka_unit_test(pools_come_from_metrics),
        cmocka_unit_test(vllm_streams),
        cmocka_unit_test(llama_streams),
        cmocka_unit_test(errors_are_read),
        cmocka_unit_test(calls_of_functions_are_shown),
        cmocka_unit_test(what_is_no_fact_is_not_reported),
        cmocka_unit_test(other_servers_are_read),
        cmocka_unit_test(log_probabilities_of_a_prompt_are_read),
        cmocka_unit_test(texts_beside_ids_are_kept),
        cmocka_unit_test(the_best_tokens_of_a_row_are_kept),
        cmocka_unit_test(broken_answers_are_read_or_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
