/* test_remote.c - the remote backend against a server in the same process that plays recorded
 * answers, whole and with faults: nothing hangs, nothing is sent twice once the server may have
 * begun, what a reply has said is kept, and every failure is one line. */
#include "engine/remote/remote.h"
#include "engine/remote/server.h"

#include "tests/play.h"
#include "tests/scratch.h"

enum { MOST_SEEN = 64 };

/* How the next answers to /v1/chat/completions go wrong. */
struct scene {
    struct play play;
    const char *kind;      /* whose recorded answers: "vllm", "llama" */
    const char *chat;      /* exchange of a chat, "chat" */
    const char *body;      /* a body of its own instead; NULL: recorded */
    const char *type, *header;
    int status;            /* 0: as recorded */
    int fail_first;        /* so many requests get `status`, the others a recorded answer */
    int cut, pause_us;
    size_t most;
    bool reset, stall, length, gzip, vanish; /* vanish: close without an answer */
    int n_chat;            /* chat requests that came */
    int n_ask;             /* requests for the ids of a prompt */
    struct buf last;       /* body of the last one */
    char key[512];         /* Authorization of the last request of any kind */
};

static const char *path_name(const struct scene *s, const struct play_request *rq)
{
    static const struct { const char *path, *vllm, *llama; } at[] = {
        {"/version", "version", NULL}, {"/v1/models", "models", "models"},
        {"/metrics", "metrics", "metrics"},
        {"/tokenize", "tokenize", NULL}, {"/props", NULL, "props"}, {"/slots", NULL, "slots"},
    };
    for (size_t i = 0; i < sizeof at / sizeof *at; i++)
        if (strcmp(at[i].path, rq->path) == 0)
            return strcmp(s->kind, "vllm") == 0 ? at[i].vllm : at[i].llama;
    return NULL;
}

static void read_gzip(struct buf *out)
{
    struct err e;
    if (!buf_read_file(out, "tests/exchanges/vllm-chat.gz", 1 << 20, &e))
        fail_msg("%s", e.msg);
}

static void choose_chat(struct scene *s, const struct play_request *rq, struct play_answer *a)
{
    s->n_chat++;
    buf_clear(&s->last);
    buf_str(&s->last, rq->body.p);
    bool fails = s->n_chat <= s->fail_first;
    if (s->vanish && fails) {
        a->status = 0;
        return;
    }
    if (!play_recorded(s->kind, rq, s->chat ? s->chat : "chat", a))
        fail_msg("no recorded answer to %s %s", rq->method, rq->path);
    if (s->body || (fails && s->status)) {
        buf_clear(&a->body);
        buf_str(&a->body, s->body ? s->body : "{\"error\":{\"message\":\"not now\"}}");
    }
    if (s->gzip) {
        buf_free(&a->body);
        read_gzip(&a->body);
        a->header = "Content-Encoding: gzip\r\n";
    }
    if (s->status && (fails || !s->fail_first))
        a->status = s->status;
    if (s->type)
        a->type = s->type;
    if (s->header)
        a->header = s->header;
    a->cut = s->cut;
    a->pause_us = s->pause_us;
    a->most = s->most;
    a->reset = s->reset;
    a->stall = s->stall;
    a->length = s->length;
}

static void choose(void *arg, const struct play_request *rq, struct play_answer *a)
{
    struct scene *s = arg;
    const char *key = play_header(rq, "authorization");
    snprintf(s->key, sizeof s->key, "%s", key ? key : "");
    const char *name = path_name(s, rq);
    s->n_ask += strcmp(rq->path, "/tokenize") == 0;
    if (strcmp(rq->path, "/v1/chat/completions") == 0) {
        choose_chat(s, rq, a);
    } else if (!name || !play_recorded(s->kind, rq, name, a)) {
        *a = (struct play_answer){.status = 404, .type = "application/json"};
        buf_str(&a->body, "{\"detail\":\"Not Found\"}");
    }
}

/* Chat requests that came; the server's threads count them. */
static int chats(struct scene *s)
{
    pthread_mutex_lock(&s->play.mu);
    int n = s->n_chat;
    pthread_mutex_unlock(&s->play.mu);
    return n;
}

/* Whether the newest request came with this value of "Authorization". Requests of the client's own
 * (/metrics) may come meanwhile. */
static bool came_with_key(struct scene *s, const char *key)
{
    pthread_mutex_lock(&s->play.mu);
    bool same = strcmp(s->key, key) == 0;
    pthread_mutex_unlock(&s->play.mu);
    return same;
}

/* ---- the client ------------------------------------------------------------------------------ */

struct seen {
    struct buf text, thought, notices, faults;
    struct ids ids, steps, prompt;
    enum stop_reason why;
    int n_tokens, n_steps, n_end, n_drafted, n_accepted;
    size_t before; /* bytes of text before the present turn */
};

static void seen_free(struct seen *s)
{
    buf_free(&s->text);
    buf_free(&s->thought);
    buf_free(&s->notices);
    buf_free(&s->faults);
    ids_free(&s->ids);
    ids_free(&s->steps);
    ids_free(&s->prompt);
}

static void add_event(struct seen *s, const struct event *ev)
{
    switch (ev->kind) {
    case EV_TURN_BEGIN:
        ids_cat(&s->prompt, ev->tokens.v, ev->tokens.n);
        s->before = s->text.n;
        break;
    case EV_TEXT: buf_add(ev->channel ? &s->thought : &s->text, ev->text.p, ev->text.n); break;
    case EV_STEP: ids_cat(&s->steps, ev->tokens.v, ev->tokens.n); s->n_steps++; break;
    case EV_NOTICE: buf_printf(&s->notices, "%s|", ev->text.p); break;
    case EV_FAULT: buf_printf(&s->faults, "%s|", ev->text.p); break;
    case EV_TURN_END:
        assert_int_equal(ev->text.n, s->text.n - s->before); /* the turn's text is what was shown */
        s->why = ev->reason;
        s->n_tokens = ev->n_tokens;
        s->n_drafted = ev->n_drafted;
        s->n_accepted = ev->n_accepted;
        ids_cat(&s->ids, ev->tokens.v, ev->tokens.n);
        s->n_end++;
        break;
    default: break;
    }
}

static void submit(struct backend *b, enum request_kind kind, const char *text)
{
    struct request rq = {.kind = kind, .text = text ? xstrdup(text) : NULL};
    struct err e;
    if (kind == RQ_NEW)
        memcpy(rq.session, "01JAERIETESTSESSIONNUMBER01", SESSION_ID - 1);
    if (!backend_submit(b, &rq, &e))
        fail_msg("%s", e.msg);
}

/* All events until so many turns have ended. */
static void watch(struct backend *b, int turns, struct seen *s)
{
    struct event ev;
    buf_str(&s->text, "");
    buf_str(&s->notices, "");
    buf_str(&s->faults, "");
    for (int want = s->n_end + turns; s->n_end < want;) {
        if (!backend_wait(b, &ev, 60000))
            fail_msg("no event for a minute");
        add_event(s, &ev);
        event_free(&ev);
    }
}

static void scene_open(struct scene *s, const char *kind)
{
    *s = (struct scene){.kind = kind};
    play_open(&s->play, choose, s);
}

static void scene_close(struct scene *s)
{
    play_close(&s->play);
    buf_free(&s->last);
}

static struct backend *connect_to(const struct scene *s, const char *key_file)
{
    struct engine_opts o = {.server = {.url = s->play.url, .key_file = key_file}};
    struct err e;
    settings_init(&o.settings);
    struct backend *b = remote_open(&o, &e);
    if (!b)
        fail_msg("%s", e.msg);
    submit(b, RQ_NEW, NULL);
    return b;
}

/* One question to the scene. */
static void ask(struct scene *s, struct seen *out)
{
    struct backend *b = connect_to(s, NULL);
    *out = (struct seen){0};
    submit(b, RQ_SAY, "What is a KV cache?");
    watch(b, 1, out);
    backend_close(b);
}

static const char KV_CACHE[] = "The KV cache stores the keys and values of earlier tokens so that "
"they need "
                               "not be computed again.";

/* ---- answers as they should be --------------------------------------------------------------- */

static void expect_whole(struct scene *s)
{
    struct seen got;
    ask(s, &got);
    assert_string_equal(got.faults.p, "");
    assert_string_equal(got.notices.p, "");
    assert_string_equal(got.text.p, KV_CACHE);
    assert_int_equal(got.why, STOP_END);
    assert_true(got.ids.n == 21 && got.ids.v[0] == 324 && got.ids.v[20] == 5 && got.n_tokens == 21);
    assert_int_equal(got.steps.n, 21);
    assert_memory_equal(got.steps.v, got.ids.v, 21 * sizeof(int32_t));
    assert_int_equal(got.prompt.n, 17);
    assert_int_equal(chats(s), 1);
    assert_int_equal(s->n_ask, 0); /* the stream says the prompt's ids */
    seen_free(&got);
}

static void a_stream_cut_anywhere_is_the_same(void **state)
{
    (void)state;
    static const int cuts[] = {0, 1, 2, 7, 100, 4096};
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        struct scene s;
        scene_open(&s, "vllm");
        s.cut = cuts[i];
        expect_whole(&s);
        scene_close(&s);
    }
}

/* A server that says the ids of the prompt nowhere in its stream is asked for them, and no text is
 * lost meanwhile. */
static void a_prompt_without_ids_is_asked_for(void **state)
{
    (void)state;
    struct scene s;
    struct seen got;
    struct play_answer a = {0};
    scene_open(&s, "vllm");
    assert_true(play_recorded("vllm", &(struct play_request){"POST", "/v1/chat/completions", {0},
                                                             {0}}, "chat", &a));
    memcpy(strstr(a.body.p, "prompt_token_ids"), "something_unseen", 16);
    s.body = a.body.p;
    ask(&s, &got);
    assert_string_equal(got.text.p, KV_CACHE);
    assert_int_equal(got.prompt.n, 17);
    assert_int_equal(s.n_ask, 1);
    seen_free(&got);
    buf_free(&a.body);
    scene_close(&s);
}

static void gzip_is_unpacked(void **state)
{
    (void)state;
    struct scene s;
    scene_open(&s, "vllm");
    s.gzip = true;
    expect_whole(&s);
    scene_close(&s);
}

static void llama_server_is_recognized(void **state)
{
    (void)state;
    struct scene s;
    struct seen got;
    scene_open(&s, "llama");
    s.chat = "chat-draft";
    struct backend *b = connect_to(&s, NULL);
    assert_true(strncmp(backend_info(b)->family, "llama-server ", 13) == 0);
    got = (struct seen){0};
    submit(b, RQ_SAY, "What is a page table?");
    watch(b, 1, &got);
    assert_int_equal(got.why, STOP_END);
    assert_true(got.n_drafted == 15 && got.n_accepted == 15 && got.n_tokens == 19);
    assert_int_equal(got.prompt.n, 0); /* not reported, so not logged */
    seen_free(&got);
    backend_close(b);
    scene_close(&s);
}

/* The conversation is sent whole, with its system prompt; /undo and /regen change it. */
static void the_conversation_is_sent(void **state)
{
    (void)state;
    struct scene s;
    struct seen got = {0};
    scene_open(&s, "vllm");
    struct backend *b = connect_to(&s, NULL);
    submit(b, RQ_SYSTEM, "Be \"brief\".");
    submit(b, RQ_SAY, "one");
    submit(b, RQ_SAY, "two\n\x01");
    watch(b, 2, &got);
    assert_non_null(strstr(s.last.p, "{\"role\":\"system\",\"content\":\"Be \\\"brief\\\".\"},"
                                     "{\"role\":\"user\",\"content\":\"one\"},"
                                     "{\"role\":\"assistant\",\"content\":\"The KV cache"));
    assert_non_null(strstr(s.last.p, "{\"role\":\"user\",\"content\":\"two\\n\\u0001\"}]"));
    submit(b, RQ_UNDO, NULL);
    submit(b, RQ_REGEN, NULL);
    watch(b, 1, &got);
    assert_null(strstr(s.last.p, "two"));
    assert_non_null(strstr(s.last.p, "{\"role\":\"user\",\"content\":\"one\"}]"));
    struct request rq = {.kind = RQ_SET, .text = xstrdup("draft.nodes=3")};
    struct err e;
    assert_false(backend_submit(b, &rq, &e));
    assert_string_equal(e.msg, "vLLM has no setting draft.nodes");
    seen_free(&got);
    backend_close(b);
    scene_close(&s);
}

/* Several questions at once: every reply is reported in its order, one that fails alone. */
static void a_batch_is_sent_at_once(void **state)
{
    (void)state;
    enum { N = 20 };
    struct scene s;
    scene_open(&s, "vllm");
    s.pause_us = 500;
    s.cut = 1000;
    s.status = 400; /* of the first to come */
    s.fail_first = 1;
    struct backend *b = connect_to(&s, NULL);
    struct request rq = {.kind = RQ_BATCH, .count = N, .prompts = xcalloc(N, sizeof(char *))};
    struct event ev;
    struct err e;
    int replies = 0, failed = 0;
    for (int i = 0; i < N; i++)
        rq.prompts[i] = xasprintf("question %d", i);
    assert_true(backend_submit(b, &rq, &e));
    for (bool end = false; !end; event_free(&ev)) {
        assert_true(backend_wait(b, &ev, 20000));
        end = ev.kind == EV_BATCH_END;
        if (ev.kind == EV_BATCH_REPLY) {
            assert_int_equal(ev.batch.index, replies++);
            failed += ev.batch.refused;
            assert_string_equal(ev.text.p, ev.batch.refused ? "the server answers 400: not now"
                                                            : KV_CACHE);
            assert_int_equal(ev.tokens.n, ev.batch.refused ? 0 : 21);
        }
        if (end)
            assert_true(ev.batch.n_done == N - 1 && ev.batch.n_tokens == 21 * (N - 1));
    }
    assert_true(replies == N && failed == 1 && chats(&s) == N);
    assert_non_null(strstr(s.last.p, "question "));
    backend_close(b);
    scene_close(&s);
}

/* ---- faults ---------------------------------------------------------------------------------- */

/* One question that fails: the turn ends, the failure is one line that begins so, and the request
 * was sent so many times. */
static void expect_fault(struct scene *s, const char *line, int sent)
{
    struct seen got;
    ask(s, &got);
    if (strncmp(got.faults.p, line, strlen(line)) != 0)
        fail_msg("\"%s\" does not begin with \"%s\"", got.faults.p, line);
    assert_null(strchr(got.faults.p, '\n'));
    assert_int_equal(got.why, STOP_FAULT);
    assert_int_equal(chats(s), sent);
    seen_free(&got);
}

static void refusals_are_one_line(void **state)
{
    (void)state;
    static const struct { int status; const char *body, *line; int sent; } c[] = {
        {400, "{\"error\":{\"message\":\"too\\nlong\",\"code\":400}}",
         "the server answers 400: too long", 1},
        {401, "{\"error\":\"no\"}", "the server answers 401 (a key is needed, or another one): no",
         1},
        {404, "<html>\n<b>no", "the server answers 404: <html> <b>no", 1},
        {500, "", "the server answers 500", 1},
        {302, "", "the server redirects to http://other/; redirects are not followed", 1},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        struct scene s;
        scene_open(&s, "vllm");
        s.status = c[i].status;
        s.body = c[i].body;
        s.header = "Location: http://other/\r\n";
        expect_fault(&s, c[i].line, c[i].sent);
        scene_close(&s);
    }
}

/* 429 and 503 come before any work: asked again. */
static void a_busy_server_is_asked_again(void **state)
{
    (void)state;
    struct scene s;
    struct seen got;
    scene_open(&s, "vllm");
    s.status = 429;
    s.fail_first = 2;
    s.header = "Retry-After: 0\r\n";
    ask(&s, &got);
    assert_string_equal(got.text.p, KV_CACHE);
    assert_int_equal(got.why, STOP_END);
    assert_int_equal(chats(&s), 3);
    assert_true(strncmp(got.notices.p, "the server answers 429 (too many requests): not now; "
                                       "asking again", 60) == 0);
    seen_free(&got);
    scene_close(&s);

    scene_open(&s, "vllm"); /* but not for ever */
    s.status = 503;
    s.header = "Retry-After: 0\r\n";
    s.body = "{}";
    expect_fault(&s, "the server answers 503", 4);
    scene_close(&s);
}

/* A request that the server may have begun is never sent again, whatever became of it. */
static void nothing_is_paid_twice(void **state)
{
    (void)state;
    struct scene s;
    scene_open(&s, "vllm");
    s.vanish = true;
    s.fail_first = 9;
    expect_fault(&s, "the connection to ", 1);
    scene_close(&s);
    scene_open(&s, "vllm");
    s.most = 700; /* in the middle of the second event */
    s.reset = true;
    expect_fault(&s, "the connection to ", 1);
    scene_close(&s);
}

/* What was said before a failure stays, with its ids. */
static void a_broken_reply_keeps_what_it_said(void **state)
{
    (void)state;
    struct scene s;
    struct seen got;
    scene_open(&s, "vllm");
    s.most = 5000;
    s.length = true; /* more was promised */
    ask(&s, &got);
    assert_int_equal(got.why, STOP_FAULT);
    assert_true(got.text.n > 10 && strncmp(got.text.p, KV_CACHE, got.text.n) == 0);
    assert_true(got.ids.n > 0 && got.ids.v[0] == 324 && got.n_tokens == got.ids.n);
    seen_free(&got);
    scene_close(&s);
}

static void ends_without_done(void **state)
{
    (void)state;
    static const struct { const char *body, *text, *notice; enum stop_reason why; } c[] = {
        {"data: {\"choices\":[{\"delta\":{\"content\":\"a\"},\"finish_reason\":\"stop\"}]}\n\n",
         "a", "", STOP_END},
        {"data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata: [DONE]\n\ndata: more\n\n",
         "a", "the server ended the reply without saying why|", STOP_END},
        {"data: {\"choices\":[{\"delta\":{\"content\":\"a\"},\"finish_reason\":\"length\"}]}\n\n",
         "a", "", STOP_MAX},
        {": ping\n\ndata:\n\ndata: {\"choices\":[]}\n\ndata: "
         "{\"choices\":[{\"delta\":{\"content\":\"\xFF\"},\"finish_reason\":\"stop\"}]}\n\n",
         "\xEF\xBF\xBD", "", STOP_END},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        struct scene s;
        struct seen got;
        scene_open(&s, "vllm");
        s.body = c[i].body;
        ask(&s, &got);
        assert_string_equal(got.text.p, c[i].text);
        assert_string_equal(got.notices.p, c[i].notice);
        assert_int_equal(got.why, c[i].why);
        assert_int_equal(got.ids.n, 0); /* none were sent, so there are none */
        seen_free(&got);
        scene_close(&s);
    }
}

static void errors_in_mid_stream(void **state)
{
    (void)state;
    struct scene s;
    scene_open(&s, "vllm");
    s.body = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata: "
    "{\"error\":{\"message\":\"out of memory\"}}\n\n";
    expect_fault(&s, "the server reports: out of memory", 1);
    scene_close(&s);
    scene_open(&s, "vllm"); /* cut, although the connection ends well */
    s.body = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}";
    expect_fault(&s, "the server's stream ended without an end of the reply", 1);
    scene_close(&s);
    scene_open(&s, "vllm");
    s.body =
        "data: {\"choices\":[{\"delta\":{\"content\":\"a\"},\"finish_reason\":\"abort\"}]}\n\ndata: [DONE]\n\n";
    expect_fault(&s, "the server aborted the reply", 1);
    scene_close(&s);
    scene_open(&s, "vllm");
    s.body = "data: {\"choices\":\n\n";
    expect_fault(&s, "the server sent what is no JSON object: {\"choices\":", 1);
    scene_close(&s);
    scene_open(&s, "vllm");
    s.type = "text/html";
    expect_fault(&s, "the server answers with text/html instead of a stream of events", 1);
    scene_close(&s);
}

/* A server that does not stream answers in one piece. */
static void an_answer_in_one_piece(void **state)
{
    (void)state;
    struct scene s;
    struct seen got;
    scene_open(&s, "vllm");
    s.type = "application/json; charset=utf-8";
    s.length = true;
    s.body = "{\n \"choices\": [{\"message\": {\"content\": \"Hi.\", \"reasoning\": \"hm\"}, "
    "\"finish_reason\": \"stop\"}],\n"
             " \"usage\": {\"prompt_tokens\": 5, \"completion_tokens\": 2}}\n";
    ask(&s, &got);
    assert_string_equal(got.text.p, "Hi.");
    assert_string_equal(got.thought.p, "hm");
    assert_true(got.why == STOP_END && got.n_tokens == 2);
    seen_free(&got);
    scene_close(&s);
}

static void a_line_of_ten_megabytes(void **state)
{
    (void)state;
    struct scene s;
    struct seen got;
    struct buf body = {0};
    buf_str(&body, "data: {\"choices\":[{\"finish_reason\":\"stop\",\"delta\":{\"content\":\"");
    for (int i = 0; i < 10 << 20; i++)
        buf_char(&body, 'x');
    buf_str(&body, "\"}}]}\n\n");
    scene_open(&s, "vllm");
    s.body = body.p;
    ask(&s, &got);
    assert_int_equal(got.text.n, 10 << 20);
    assert_int_equal(got.why, STOP_END);
    seen_free(&got);
    buf_free(&body);
    scene_close(&s);
}

/* Ctrl-C closes the connection at once, in mid-stream and in a silence; the reply keeps its
 * text. */
static void a_cancel_ends_the_request(void **state)
{
    (void)state;
    for (int silent = 0; silent < 2; silent++) {
        struct scene s;
        struct seen got = {0};
        scene_open(&s, "vllm");
        s.cut = 200;
        s.pause_us = silent ? 0 : 30000;
        s.most = silent ? 1500 : 0;
        s.stall = silent;
        struct backend *b = connect_to(&s, NULL);
        submit(b, RQ_SAY, "What is a KV cache?");
        struct event ev;
        for (bool text = false; !text; event_free(&ev)) {
            assert_true(backend_wait(b, &ev, 20000));
            text = ev.kind == EV_TEXT;
            add_event(&got, &ev);
        }
        uint64_t t0 = clock_ns();
        backend_cancel(b);
        watch(b, 1, &got);
        assert_true(clock_ns() - t0 < 2000000000);
        assert_int_equal(got.why, STOP_CANCEL);
        assert_true(got.text.n > 0 && strncmp(got.text.p, KV_CACHE, got.text.n) == 0);
        backend_close(b);
        seen_free(&got);
        for (int i = 0, gone = 0; !gone; i++) { /* the server sees it */
            assert_true(i < 500);
            usleep(10000);
            pthread_mutex_lock(&s.play.mu);
            gone = s.play.n_gone;
            pthread_mutex_unlock(&s.play.mu);
        }
        scene_close(&s);
    }
}

/* ---- opening --------------------------------------------------------------------------------- */

static void wrong_addresses_are_one_line(void **state)
{
    (void)state;
    static const struct { const char *url, *line; } c[] = {
        {"", "\"\" is no address of a server; expected http://HOST:PORT"},
        {"ftp://a/", "\"ftp://a/\" is no address of a server; expected http://HOST:PORT"},
        {"localhost:80", "\"localhost:80\" is no address of a server; expected http://HOST:PORT"},
        {"http://127.0.0.1:1", "cannot reach http://127.0.0.1:1/: "},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        struct engine_opts o = {.server = {.url = c[i].url}};
        struct err e = {0};
        settings_init(&o.settings);
        assert_null(remote_open(&o, &e));
        if (strncmp(e.msg, c[i].line, strlen(c[i].line)) != 0)
            fail_msg("\"%s\" does not begin with \"%s\"", e.msg, c[i].line);
    }
}

static void headers_and_keys(void **state)
{
    (void)state;
    char *folder = scratch_folder(), *file = xasprintf("%s/key", folder);
    FILE *f = fopen(file, "w");
    assert_true(f && fputs("sk-1 2\r\nmore", f) > 0 && fclose(f) == 0);
    struct scene s;
    scene_open(&s, "vllm");
    struct backend *b = connect_to(&s, file);
    assert_true(came_with_key(&s, "Bearer sk-1 2"));
    backend_close(b);
    static const char *const bad[] = {"no colon", ": x", "a b: c", "A: x\r\nB: y"};
    for (size_t i = 0; i < 4; i++) {
        struct engine_opts o = {.server = {.url = s.play.url, .n_header = 1, .header = bad + i}};
        struct err e = {0};
        assert_null(remote_open(&o, &e));
        assert_non_null(strstr(e.msg, "is no header; expected \"Name: value\""));
    }
    struct engine_opts o = {.server = {.url = s.play.url, .key_file = "/nonexistent"}};
    struct err e = {0};
    assert_null(remote_open(&o, &e));
    assert_true(strncmp(e.msg, "the key: ", 9) == 0);
    free(file);
    scratch_remove(folder);
    scene_close(&s);
}

/* How each kind of server is asked for an effort, in the request for a reply and in the one for its
 * prompt. */
static void test_the_effort_is_asked_for_in_each_servers_words(void **unused)
{
    (void)unused;
    static const struct {
        enum server_kind kind;
        const char *effort, *want, *prompt; /* prompt NULL: such a server is not asked for it */
    } at[] = {
        {SERVER_OPENAI, "high", "\"reasoning_effort\":\"high\"", NULL},
        {SERVER_OPENAI, "none", "\"reasoning_effort\":\"none\"", NULL},
        {SERVER_OLLAMA, "low", "\"think\":\"low\"", NULL},
        {SERVER_OLLAMA, "none", "\"think\":false", NULL},
        {SERVER_VLLM, "low", "\"reasoning_effort\":\"low\"",
         "\"chat_template_kwargs\":{\"reasoning_effort\":\"low\"}"},
        {SERVER_AERIE, "none", "\"chat_template_kwargs\":{\"enable_thinking\":false}",
         "\"chat_template_kwargs\":{\"enable_thinking\":false}"},
        {SERVER_LLAMA, "none", "\"chat_template_kwargs\":{\"enable_thinking\":false}", NULL},
    };
    struct said said = {"user", "hello"};
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        struct server s = {.kind = at[i].kind};
        struct settings set;
        struct buf plain = {0}, body = {0}, ask = {0};
        settings_init(&set);
        server_ask(&s, &said, 1, &set, 1, &plain);
        assert_null(strstr(plain.p, "effort"));
        assert_null(strstr(plain.p, "think"));
        assert_true(settings_set(&set, "effort", at[i].effort, NULL));
        server_ask(&s, &said, 1, &set, 1, &body);
        assert_non_null(strstr(body.p, at[i].want));
        assert_int_equal(server_ask_prompt(&s, &said, 1, &set, &ask) != NULL, at[i].prompt != NULL);
        if (at[i].prompt)
            assert_non_null(strstr(ask.p, at[i].prompt));
        buf_free(&plain);
        buf_free(&body);
        buf_free(&ask);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_effort_is_asked_for_in_each_servers_words),
        cmocka_unit_test(a_stream_cut_anywhere_is_the_same),
        cmocka_unit_test(a_prompt_without_ids_is_asked_for),
        cmocka_unit_test(gzip_is_unpacked),
        cmocka_unit_test(llama_server_is_recognized),
        cmocka_unit_test(the_conversation_is_sent),
        cmocka_unit_test(a_batch_is_sent_at_once),
        cmocka_unit_test(refusals_are_one_line),
        cmocka_unit_test(a_busy_server_is_asked_again),
        cmocka_unit_test(nothing_is_paid_twice),
        cmocka_unit_test(a_broken_reply_keeps_what_it_said),
        cmocka_unit_test(ends_without_done),
        cmocka_unit_test(errors_in_mid_stream),
        cmocka_unit_test(an_answer_in_one_piece),
        cmocka_unit_test(a_line_of_ten_megabytes),
        cmocka_unit_test(a_cancel_ends_the_request),
        cmocka_unit_test(wrong_addresses_are_one_line),
        cmocka_unit_test(headers_and_keys),
    };
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
