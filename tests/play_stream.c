/* play_stream.c - a server whose replies and metrics are made up by a rule, for scripts that need a
 * stream of a given speed, drafts by step, or metrics that move.
 *
 *   play_stream KIND SECONDS [RATE [TOKENS [FIRST_MS]]]
 *
 * KIND is "vllm" (0.29 with drafts by step), "sglang" (late 2026), "sglang-old" (the field names
 * before), "llama" or "openai" (only what the OpenAI API has, no metrics). Prints
 * "http://127.0.0.1:PORT" on a line of its own and serves for so many seconds: replies of TOKENS
 * tokens (200), RATE tokens a second in the mean (0: as fast as they are read), the first FIRST_MS
 * milliseconds after the request (0). The formats are those of the documentation (see
 * engine/remote/answer.c); no real server was recorded for them. */
#include <math.h>

#include "kernels/json.h"
#include "tests/play.h"

enum { PROMPT = 17, DRAFT = 5, WORDS = 40, POOL = 40000, WINDOW = 8000 };

struct server {
    struct play play;
    const char *kind;
    int rate, tokens, first_ms, n_reply;
    uint64_t begun;
};

static bool is(const struct server *s, const char *kind)
{
    return strncmp(s->kind, kind, strlen(kind)) == 0;
}

/* Token i of every reply, its id, and how many drafts step i accepts: 2 of 5 in the mean. */
static const char *word_of(int i)
{
    static const char *const word[WORDS] = {
        "The", " cache", " of", " keys", " and", " values", " holds", " what", " earlier",
        " tokens", " left", ",", " so",
        " a", " new", " token", " reads", " it", " instead", " of", " computing", " it", " again",
        ".", " A", " page", " is",
        " a", " block", " of", " 16", " slots", ";", " a", " window", " layer", " frees", " old",
        " pages", ".\n"};
    return word[i % WORDS];
}

static int id_of(int i) { return 1000 + i % WORDS; }
static int accepted_of(int step) { return (step * 7 + step / 3) % 6 % (DRAFT + 1); }

static void put_top(struct buf *b, int i, double logp)
{
    jput_open(b, '{');
    jput_kstr(b, "token", word_of(i));
    jput_kreal(b, "logprob", logp);
    jput_key(b, "bytes");
    jput_open(b, '[');
    for (const char *p = word_of(i); *p; p++)
        jput_int(b, (unsigned char)*p);
    jput_close(b, ']');
}

/* A token's entry with four candidates, itself first. */
static void put_entry(struct buf *b, int i)
{
    put_top(b, i, -0.1);
    jput_key(b, "top_logprobs");
    jput_open(b, '[');
    for (int k = 0; k < 4; k++) {
        put_top(b, i + 7 * k, -0.1 - 2.5 * k);
        jput_close(b, '}');
    }
    jput_close(b, ']');
    jput_close(b, '}');
}

static void begin_chunk(struct buf *b)
{
    jput_open(b, '{');
    jput_kstr(b, "object", "chat.completion.chunk");
    jput_kstr(b, "model", "made");
    jput_key(b, "choices");
    jput_open(b, '[');
}

/* Appends the chunk to the stream and frees it. */
static void end_chunk(struct buf *b, struct buf *stream)
{
    jput_close(b, '}');
    buf_printf(stream, "data: %s\n\n", b->p);
    buf_free(b);
}

/* One piece of the stream: tokens [at, at + n). */
static void put_piece(const struct server *s, int at, int n, bool last, struct buf *stream)
{
    struct buf text = {0}, chunk = {0}, *b = &chunk;
    for (int i = at; i < at + n; i++)
        buf_str(&text, word_of(i));
    begin_chunk(b);
    jput_open(b, '{');
    jput_kint(b, "index", 0);
    jput_key(b, "delta");
    jput_open(b, '{');
    jput_kstr(b, "content", text.p);
    jput_close(b, '}');
    if (!is(s, "openai")) {
        jput_key(b, "logprobs");
        jput_open(b, '{');
        jput_key(b, "content");
        jput_open(b, '[');
        for (int i = at; i < at + n; i++)
            put_entry(b, i);
        jput_close(b, ']');
        jput_close(b, '}');
    }
    jput_kstr(b, "finish_reason", last ? "stop" : NULL);
    if (is(s, "vllm")) {
        jput_key(b, "token_ids");
        jput_open(b, '[');
        for (int i = at; i < at + n; i++)
            jput_int(b, id_of(i));
        jput_close(b, ']');
    }
    jput_close(b, '}');
    jput_close(b, ']');
    if (is(s, "vllm") && at == 0) {
        jput_key(b, "prompt_token_ids");
        jput_open(b, '[');
        for (int i = 0; i < PROMPT; i++)
            jput_int(b, 2 + i);
        jput_close(b, ']');
    }
    end_chunk(b, stream);
    buf_free(&text);
}

struct counts {
    int steps, drafted, accepted;
    struct buf by_step[2]; /* accepted, drafted */
};

/* The last chunk, with what the kind of server says about the whole reply. */
static void put_end(const struct server *s, const struct counts *n, struct buf *stream)
{
    struct buf chunk = {0}, *b = &chunk;
    begin_chunk(b);
    jput_close(b, ']');
    jput_key(b, "usage");
    buf_printf(b,
               "{\"prompt_tokens\":%d,\"completion_tokens\":%d,\"prompt_tokens_details\":{\"cached_tokens\":%d}}", PROMPT,
               s->tokens, is(s, "openai") ? 0 : 16);
    if (is(s, "vllm"))
        buf_printf(b,
                   ",\"metrics\":{\"time_to_first_token_ms\":12.5,\"queue_time_ms\":0.75,\"speculative_decoding\":{\"num_spec_steps\":%d,\"num_draft_tokens\":%d,\"num_accepted_draft_tokens\":%d,"
                   "\"per_step_accepted\":[%s],\"per_step_drafted\":[%s]}}",
                   n->steps, n->drafted, n->accepted, n->by_step[0].p, n->by_step[1].p);
    if (is(s, "sglang")) {
        bool old = is(s, "sglang-old");
        buf_printf(b,
                   ",\"meta_info\":{\"prompt_tokens\":%d,\"completion_tokens\":%d,\"cached_tokens\":16,\"queue_time\":0.002,\"spec_verify_ct\":%d,\"%s\":%d,\"%s\":%d}", PROMPT, s->tokens, n->steps,
                   old ? "spec_accept_token_num" : "spec_num_correct_drafts", n->accepted,
                   old ? "spec_draft_token_num" : "spec_num_proposed_drafts", n->drafted);
    }
    if (is(s, "llama"))
        buf_printf(b,
                   ",\"timings\":{\"cache_n\":16,\"prompt_n\":1,\"prompt_ms\":3.5,\"predicted_n\":%d,\"predicted_ms\":%d.0,\"draft_n\":%d,\"draft_n_accepted\":%d}", s->tokens, s->tokens * 2, n->drafted, n->accepted);
    end_chunk(b, stream);
    buf_str(stream, "data: [DONE]\n\n");
}

static void put_reply(struct server *s, struct play_answer *a)
{
    struct counts n = {0};
    int at = 1, pieces = 1;
    put_piece(s, 0, 1, s->tokens == 1, &a->body);
    for (int step = 0; at < s->tokens; step++, pieces++) {
        int took = accepted_of(step), k = min_int(took + 1, s->tokens - at);
        buf_printf(&n.by_step[0], "%s%d", step ? "," : "", took);
        buf_printf(&n.by_step[1], "%s%d", step ? "," : "", DRAFT);
        n.steps++;
        n.drafted += DRAFT;
        n.accepted += took;
        put_piece(s, at, k, at + k == s->tokens, &a->body);
        at += k;
    }
    for (int i = 0; i < 2; i++)
        buf_str(&n.by_step[i], "");
    put_end(s, &n, &a->body);
    a->type = "text/event-stream";
    a->n_paced = pieces;
    a->first_us = 1000 * s->first_ms;
    a->every_us = s->rate ? (int)((double)s->tokens / pieces * 1e6 / s->rate) : 0;
    buf_free(&n.by_step[0]);
    buf_free(&n.by_step[1]);
    s->n_reply++;
}

/* ---- metrics that move ----------------------------------------------------------------------- */

static void put_pool(struct buf *b, const char *pool, int size, double share)
{
    int used = (int)(share * 0.8 * size), evictable = (int)(share * 0.2 * size);
    buf_printf(b, "sglang:%s_used_tokens{tp_rank=\"0\"} "
                  "%d\nsglang:%s_evictable_tokens{tp_rank=\"0\"} %d\n"
               "sglang:%s_available_tokens{tp_rank=\"0\"} %d\n", pool, used, pool, evictable, pool,
               size - used - evictable);
}

static void put_metrics(struct server *s, struct buf *b)
{
    double t = (double)(clock_ns() - s->begun) / 1e9, wave = 0.5 + 0.45 * sin(t / 3);
    int queue = max_int(0, (int)(6 * sin(t / 5))), running = 1 + (int)(3 * wave);
    if (is(s, "vllm"))
        buf_printf(b, "vllm:kv_cache_usage_perc{engine=\"0\"} "
                      "%.4f\nvllm:num_requests_running{engine=\"0\"} %d\n"
                   "vllm:num_requests_waiting{engine=\"0\"} "
                   "%d\nvllm:prefix_cache_queries_total{engine=\"0\"} "
                   "%.0f\nvllm:prefix_cache_hits_total{engine=\"0\"} "
                   "%.0f\nvllm:generation_tokens_total{engine=\"0\"} "
                   "%.0f\nvllm:spec_decode_num_drafts_total{engine=\"0\"} "
                   "%.0f\nvllm:spec_decode_num_accepted_tokens_total{engine=\"0\"} "
                   "%.0f\nvllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"2500\",engine=\"0\"} 1.0\n",
                   wave, running, queue, 1000 + 400 * t, 500 + 200 * t + 100 * sin(t / 4), 500 * t,
                   200 * t, 410 * t);
    if (is(s, "sglang")) {
        put_pool(b, "kv", POOL, wave);
        put_pool(b, "swa", WINDOW, 1 - 0.6 * wave);
        buf_printf(b, "sglang:token_usage{tp_rank=\"0\"} "
                      "%.4f\nsglang:num_running_reqs{tp_rank=\"0\"} %d\n"
                   "sglang:num_queue_reqs{tp_rank=\"0\"} %d\nsglang:cache_hit_rate{tp_rank=\"0\"} "
                   "%.3f\nsglang:gen_throughput{tp_rank=\"0\"} "
                   "%.1f\nsglang:spec_accept_length{tp_rank=\"0\"} %.3f\n",
                   fmax(wave, 1 - 0.6 * wave), running, queue, 0.3 + 0.2 * wave, 400 * wave,
                   2.5 + wave);
    }
    if (is(s, "llama"))
        buf_printf(b, "llamacpp:prompt_tokens_total %.0f\nllamacpp:prompt_tokens_cached_total "
                      "%.0f\n"
                   "llamacpp:tokens_predicted_total %.0f\nllamacpp:requests_processing "
                   "%d\nllamacpp:requests_deferred %d\n", 50 * t, 25 * t, 300 * t, running, queue);
}

static bool put_fact(struct server *s, const char *path, struct play_answer *a)
{
    double t = (double)(clock_ns() - s->begun) / 1e9;
    struct buf *b = &a->body;
    a->type = "application/json";
    if (!strcmp(path, "/v1/models"))
        buf_str(b,
                "{\"object\":\"list\",\"data\":[{\"id\":\"made\",\"object\":\"model\",\"max_model_len\":4096}]}");
    else if (is(s, "vllm") && !strcmp(path, "/version"))
        buf_str(b, "{\"version\":\"0.29.0\"}");
    else if (is(s, "sglang") && !strcmp(path, "/get_model_info"))
        buf_str(b, "{\"model_path\":\"made\",\"is_generation\":true}");
    else if (is(s, "sglang") && !strcmp(path, "/server_info"))
        buf_str(b,
                "{\"version\":\"0.5.9\",\"tp_size\":2,\"speculative_algorithm\":\"EAGLE3\",\"speculative_num_steps\":5,"
                   "\"page_size\":16,\"enable_metrics\":true,\"internal_states\":[{\"avg_spec_accept_length\":2.9}]}");
    else if (is(s, "llama") && !strcmp(path, "/props"))
        buf_str(b,
                "{\"build_info\":\"b11434\",\"total_slots\":2,\"default_generation_settings\":{\"n_ctx\":2048}}");
    else if (is(s, "llama") && !strcmp(path, "/slots"))
        buf_printf(b, "[{\"id\":0,\"n_ctx\":2048,\"is_processing\":true,\"n_prompt_tokens\":%d},"
                   "{\"id\":1,\"n_ctx\":2048,\"is_processing\":false,\"n_prompt_tokens\":300}]",
                   (int)(t * 40) % 2048);
    else if (!is(s, "openai") && !strcmp(path, "/metrics"))
        a->type = "text/plain; version=0.0.4", put_metrics(s, b);
    return b->n > 0;
}

static void choose(void *arg, const struct play_request *rq, struct play_answer *a)
{
    struct server *s = arg;
    a->status = 200;
    if (!strcmp(rq->path, "/v1/chat/completions")) {
        put_reply(s, a);
    } else if (!put_fact(s, rq->path, a)) {
        a->status = 404;
        buf_str(&a->body, "{\"detail\":\"Not Found\"}");
    }
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: play_stream KIND SECONDS [RATE [TOKENS [FIRST_MS]]]\n");
        return 2;
    }
    struct server s = {.kind = argv[1], .rate = argc > 3 ? atoi(argv[3]) : 0, .begun = clock_ns()};
    s.tokens = max_int(1, argc > 4 ? atoi(argv[4]) : 200);
    s.first_ms = argc > 5 ? atoi(argv[5]) : 0;
    play_open(&s.play, choose, &s);
    printf("%s\n", s.play.url);
    fflush(stdout);
    sleep((unsigned)atoi(argv[2]));
    play_close(&s.play);
    return 0;
}
