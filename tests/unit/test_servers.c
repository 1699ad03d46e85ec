/* test_servers.c - requests cancelled in every stage, servers that restart or change, and the forms
 * in which SGLang answers. */
#include "tests/server_kit.h"

/* ---- cancelling ------------------------------------------------------------------------------ */

static void f_silent(const struct kind *k, struct play_answer *a)
{
    (void)k;
    a->status = -1; /* no byte */
}
static void f_stall_head(const struct kind *k, struct play_answer *a)
{
    (void)k;
    buf_clear(&a->body);
    a->stall = true;
}
static void f_stall_middle(const struct kind *k, struct play_answer *a)
{
    a->most = event_end(k, &a->body, middle(k, &a->body));
    a->stall = true;
}
static void f_busy_for_long(const struct kind *k, struct play_answer *a)
{
    f_429(k, a);
    a->header = "Retry-After: 20\r\n";
}

/* Waits until the server has seen a request. */
static void wait_seen(struct scene *s)
{
    for (int i = 0; chats(s) == 0; i++) {
        assert_true(i < 2000);
        usleep(2000);
    }
}

static void cancel_now(struct client *c, struct heard *screen, struct heard *log, const char *what)
{
    uint64_t t0 = clock_ns();
    backend_cancel(c->b);
    wait_end(c, screen, log);
    if (clock_ns() - t0 > 5000000000 || screen->why != STOP_CANCEL || screen->faults.n)
        fail_msg("%s: reason %d, faults \"%s\"", what, screen->why, screen->faults.p);
    compare_log(what, screen, log);
}

static void cancels_in_every_stage(void **state)
{
    (void)state;
    static const struct fault stages[] = {
        {.name = "no byte of an answer", .make = f_silent},
        {.name = "no body", .make = f_stall_head},
        {.name = "mid-stream", .make = f_stall_middle},
        {.name = "waiting to ask again", .make = f_busy_for_long},
    };
    for (int i = 0; i < N_KINDS; i++) {
        struct kind k = kinds[i];
        struct scene s = {.kind = &k};
        struct client c;
        if (!k.text)
            read_text(&k);
        play_open(&s.play, choose, &s);
        client_open(&c, s.play.url);
        for (size_t f = 0; f < sizeof stages / sizeof *stages; f++) {
            struct heard screen = {0}, log = {0};
            set_fault(&s, &stages[f]);
            submit(c.b, RQ_SAY, "What is a KV cache?");
            wait_seen(&s);
            if (stages[f].make == f_stall_middle) { /* until some text is shown */
                struct event ev;
                while (screen.text.n == 0 && backend_wait(c.b, &ev, 20000))
                    hear(&screen, &ev);
            }
            cancel_now(&c, &screen, &log, stages[f].name);
            assert_int_equal(chats(&s), 1);
            bool some = stages[f].make == f_stall_middle;
            if ((screen.text.n > 0) != some || !begins(k.text, screen.text.p))
                fail_msg("%s, %s: \"%s\" was shown", k.name, stages[f].name, screen.text.p);
            heard_free(&screen);
            heard_free(&log);
        }
        one_turn(&c, &s, &k, NULL); /* and the next one is whole */
        client_close(&c);
        play_close(&s.play);
    }
}

/* A listening socket whose queue is full: connections to its port wait. */
static int full_socket(int port, int *filler, int n)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                             .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(fd, 0), 0);
    for (int i = 0; i < n; i++) {
        filler[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        connect(filler[i], (struct sockaddr *)&at, sizeof at);
    }
    return fd;
}

/* The server goes away, hangs, comes back, as another one. */
static void a_server_that_restarts(void **state)
{
    (void)state;
    struct kind k = kinds[0];
    struct scene s = {.kind = &k};
    struct client c;
    struct heard screen = {0}, log = {0};
    int filler[4];
    play_open(&s.play, choose, &s);
    int port = s.play.port;
    client_open(&c, s.play.url);
    one_turn(&c, &s, &k, NULL);
    play_close(&s.play);

    /* a host that does not answer: cancelled while connecting */
    int fd = full_socket(port, filler, 4);
    submit(c.b, RQ_SAY, "What is a KV cache?");
    usleep(50000);
    cancel_now(&c, &screen, &log, "connecting");
    for (int i = 0; i < 4; i++)
        close(filler[i]);
    close(fd);
    heard_free(&screen);
    heard_free(&log);

    play_open_at(&s.play, port, choose, &s);
    one_turn(&c, &s, &k, NULL);
    play_close(&s.play);

    /* nobody there: asked again, since nothing was sent; then cancelled */
    screen = log = (struct heard){0};
    submit(c.b, RQ_SAY, "What is a KV cache?");
    struct event ev;
    while (screen.notices.n == 0 && backend_wait(c.b, &ev, 20000))
        hear(&screen, &ev);
    assert_true(begins(screen.notices.p, "cannot reach http://127.0.0.1:") &&
                strstr(screen.notices.p, "; asking again in "));
    cancel_now(&c, &screen, &log, "nobody there");
    heard_free(&screen);
    heard_free(&log);

    play_open_at(&s.play, port, choose, &s);
    one_turn(&c, &s, &k, NULL);
    client_close(&c);
    play_close(&s.play);
}

static void f_no_model(const struct kind *k, struct play_answer *a)
{
    (void)k;
    status(a, 404, "{\"error\":{\"message\":\"The model `nestling` does not "
                   "exist.\",\"code\":404}}");
}

/* Another model is served than when the chat began: the server's words, and the chat goes on once
 * the model is back. */
static void a_server_that_changes_its_model(void **state)
{
    (void)state;
    static const struct fault gone = {"another model", f_no_model, REFUSED,
                                      "the server answers 404: The model `nestling` does not "
                                      "exist.", 1};
    struct kind k = kinds[0];
    struct scene s = {.kind = &k};
    struct client c;
    play_open(&s.play, choose, &s);
    client_open(&c, s.play.url);
    one_turn(&c, &s, &k, &gone);
    one_turn(&c, &s, &k, NULL);
    client_close(&c);
    play_close(&s.play);
}

/* ---- what SGLang says ------------------------------------------------------------------------ */

static void collect(struct incoming *in, int channel, const char *text, size_t n)
{
    if (channel == 0)
        buf_add(in->arg, text, n);
}

/* Asks for a reply below the backend, at any path. */
static void ask_path(const char *path, const char *file, struct incoming *in, struct buf *text)
{
    static const struct incoming_news news = {.text = collect};
    struct kind k = {.name = "sglang", .chat = file};
    struct scene s = {.kind = &k};
    struct http *h;
    struct err e;
    play_open(&s.play, choose, &s);
    assert_true(http_open(&h, &(struct http_opts){.url = s.play.url}, &e));
    incoming_init(in);
    in->news = &news;
    in->path = path;
    in->body = "{}";
    in->arg = text;
    incoming_run(h, in, 1, 1, NULL, NULL, NULL);
    http_close(h);
    play_close(&s.play);
}

/* /generate, cumulative with the old names and incremental with the new ones, and the chat with and
 * without "sglext": the same reply. */
static void sglang_in_all_its_forms(void **state)
{
    (void)state;
    static const struct { const char *path, *file; bool ids, accept; } c[] = {
        {"/generate", "generate", true, true},
        {"/generate", "generate-incremental", true, true},
        {"/v1/chat/completions", "chat", true, true},
        {"/v1/chat/completions", "chat-old", false, false},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        struct incoming in;
        struct buf text = {0};
        ask_path(c[i].path, c[i].file, &in, &text);
        if (in.failed)
            fail_msg("%s: %s", c[i].file, in.why.msg);
        assert_string_equal(text.p, KV_CACHE);
        assert_true(in.finish == FINISH_STOP && in.end);
        assert_true(in.count.prompt == 17 && in.count.generated == 21 && in.count.cached == 16);
        assert_int_equal(in.n_token, 21);
        assert_true(in.token[1].logp < 0 && in.token[0].rival_logp < -9);
        assert_true(c[i].accept ? in.count.verifies == 5 && in.count.accepted == 16 &&
                    in.count.drafted == 25
                                : in.count.verifies < 0 && in.count.accepted < 0 &&
                                in.count.drafted < 0);
        if (c[i].ids)
            assert_true(in.reply.n == 21 && in.reply.v[0] == 324 && in.reply.v[20] == 5);
        else
            assert_int_equal(in.reply.n, 0);
        incoming_free(&in);
        buf_free(&text);
    }
}

/* Old SGLang: /get_server_info, and metrics whose names begin with "sglang_". */
static void an_old_sglang(void **state)
{
    (void)state;
    struct kind k = kinds[2];
    struct scene s = {.kind = &k};
    struct client c;
    struct pool_view pool[N_POOLS] = {0};
    k.at[1].path = "/get_server_info";
    k.at[1].file = "server-info-old";
    k.at[3].file = "metrics-underscore";
    k.chat = "chat-old";
    k.n_prompt = k.n_ids = 0;
    play_open(&s.play, choose, &s);
    client_open(&c, s.play.url);
    assert_string_equal(backend_info(c.b)->family, "SGLang 0.4.6");
    assert_true(backend_has(c.b, VIEW_POOLS));
    for (int i = 0; i < 2000 && !pool[POOL_FULL].exists; i++) {
        c.b->pools->ledger(c.b, pool);
        usleep(2000);
    }
    assert_true(pool[POOL_FULL].used == 412 && pool[POOL_FULL].free == 499000 &&
                pool[POOL_FULL].evictable == 588);
    assert_true(pool[POOL_SWA].used == 128 && pool[POOL_SWA].free == 63800 &&
                pool[POOL_SWA].evictable == 72);
    one_turn(&c, &s, &k, NULL);
    client_close(&c);
    play_close(&s.play);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cancels_in_every_stage),
        cmocka_unit_test(a_server_that_restarts),
        cmocka_unit_test(a_server_that_changes_its_model),
        cmocka_unit_test(sglang_in_all_its_forms),
        cmocka_unit_test(an_old_sglang),
    };
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
