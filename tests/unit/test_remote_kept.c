/* test_remote_kept.c - the parts of a session that the remote backend keeps for its views (steps,
 * replies, texts of ids, best tokens), and its messages about the connection. The server plays
 * recorded answers of vLLM. */
#include <math.h>

#include "engine/remote/remote.h"
#include "tests/play.h"

struct scene {
    struct play play;
    int refuse; /* so many chat requests are answered with 429 */
    bool hang_up; /* requests for metrics get no answer */
};

static void choose(void *arg, const struct play_request *rq, struct play_answer *a)
{
    static const struct { const char *path, *name; } at[] = {
        {"/version", "version"}, {"/v1/models", "models"}, {"/metrics", "metrics"},
        {"/tokenize", "tokenize"},
        {"/v1/chat/completions", "chat"}};
    struct scene *s = arg;
    bool chat = strcmp(rq->path, "/v1/chat/completions") == 0;
    if (chat && s->refuse > 0) {
        s->refuse--;
        *a = (struct play_answer){.status = 429, .type = "application/json",
                                  .header = "Retry-After: 1\r\n"};
        buf_str(&a->body, "{\"error\":{\"message\":\"busy\"}}");
        return;
    }
    if (s->hang_up && strcmp(rq->path, "/metrics") == 0) {
        *a = (struct play_answer){0};
        return;
    }
    for (size_t i = 0; i < sizeof at / sizeof *at; i++)
        if (strcmp(at[i].path, rq->path) == 0 && play_recorded("vllm", rq, at[i].name, a))
            return;
    *a = (struct play_answer){.status = 404, .type = "application/json"};
    buf_str(&a->body, "{}");
}

static void submit(struct backend *b, enum request_kind kind, const char *text, const char *session)
{
    struct request rq = {.kind = kind, .text = text ? xstrdup(text) : NULL};
    struct err e;
    if (session)
        memcpy(rq.session, session, SESSION_ID - 1);
    if (kind == RQ_FORK) {
        rq.n_past = 1;
        rq.next_turn = 2;
        rq.past = xcalloc(1, sizeof *rq.past);
        rq.past[0] = (struct past_turn){.turn = 1, .user = xstrdup("a"), .reply = xstrdup("b")};
    }
    if (!backend_submit(b, &rq, &e))
        fail_msg("%s", e.msg);
}

static struct backend *open_scene(struct scene *s)
{
    struct engine_opts o = {.server = {.url = s->play.url}};
    struct err e;
    settings_init(&o.settings);
    o.settings.gauge_ms = 20;
    struct backend *b = remote_open(&o, &e);
    if (!b)
        fail_msg("%s", e.msg);
    submit(b, RQ_NEW, NULL, "01JAERIETESTSESSIONNUMBER01");
    return b;
}

/* Reads events until one of this kind came. */
static void until(struct backend *b, enum event_kind kind)
{
    struct event ev;
    for (bool found = false; !found;) {
        if (!backend_wait(b, &ev, 20000))
            fail_msg("no event for 20 s");
        found = ev.kind == kind;
        event_free(&ev);
    }
}

static void until_idle(struct backend *b)
{
    for (int i = 0; backend_busy(b) && i < 2000; i++)
        usleep(5000);
    assert_false(backend_busy(b));
}

static void what_a_reply_leaves(void **state)
{
    (void)state;
    struct scene s = {0};
    play_open(&s.play, choose, &s);
    struct backend *b = open_scene(&s);
    struct step_range r;
    struct served_turn turn[8];
    struct step_view v;
    size_t n;
    assert_true(backend_has(b, VIEW_STEPS) && backend_has(b, VIEW_SERVED) &&
                !backend_has(b, VIEW_TREES));
    b->steps->range(b, &r);
    assert_true(r.n == 0 && b->served->turns(b, turn, 8) == 0);
    assert_int_equal(strlen(backend_token(b, 324, &n)), 0); /* nothing was said of it yet */
    submit(b, RQ_SAY, "What is a KV cache?", NULL);
    until(b, EV_TURN_END);
    b->steps->range(b, &r);
    assert_true(r.n > 1 && r.first_turn == 1 && r.first_step == 1 && r.last_step == (int)r.n);
    assert_int_equal(b->served->turns(b, turn, 8), 1);
    assert_true(turn[0].turn == 1 && turn[0].n_tokens == 21 && turn[0].served.prompt == 17 &&
                turn[0].us_first > 0);
    assert_true(turn[0].served.drafted == -1 && isnan(turn[0].length) && turn[0].served.n_metric ==
                0);
    assert_string_equal(backend_token(b, 324, &n), "The");
    assert_int_equal(n, 3);
    /* the steps hold the reply's tokens in their order, each with its probability; the rival has a
     * text only */
    int tokens = 0;
    for (int i = 1; i <= (int)r.n; i++) {
        assert_true(b->steps->of_step(b, 1, i, &v) && v.rec.source == STEP_PIECE && v.tree.n == 0);
        struct tops *t = b->served->tops(b, 1, i);
        assert_true(v.n_token == 0 || (t && t->n >= v.n_token));
        for (int k = 0; k < v.n_token; k++)
            assert_true(!isnan(v.fact[k].logp) && !isnan(v.fact[k].rival_logp) &&
                        v.fact[k].rival == -1);
        if (i == 1) {
            assert_true(v.token[0] == 324 && t->at[1].k == 0 && t->at[1].id == -1);
            assert_string_equal(t->at[1].text, "A");
        }
        assert_int_equal(v.rec.pos0, 16 + tokens); /* the token before is computed by the step */
        tokens += v.n_token;
        tops_free(t);
    }
    assert_int_equal(tokens, 21);
    assert_false(b->steps->of_step(b, 1, (int)r.n + 1, &v) || b->steps->of_step(b, 2, 1, &v));
    backend_close(b);
    play_close(&s.play);
}

static void sessions_begin_empty_and_forks_go_on(void **state)
{
    (void)state;
    struct scene s = {0};
    play_open(&s.play, choose, &s);
    struct backend *b = open_scene(&s);
    struct step_range r, fork;
    struct served_turn turn[8];
    for (int i = 0; i < 3; i++) {
        submit(b, RQ_SAY, "hello", NULL);
        until(b, EV_TURN_END);
    }
    b->steps->range(b, &r);
    assert_true(r.last_turn == 3 && b->served->turns(b, turn, 8) == 3 &&
                b->served->turns(b, turn, 2) == 2);
    assert_int_equal(turn[1].turn, 3); /* the latest ones */
    submit(b, RQ_FORK, NULL, "01JAERIETESTSESSIONNUMBER02"); /* after turn 1 */
    until_idle(b);
    b->steps->range(b, &fork);
    assert_true(fork.n * 3 == r.n && fork.last_turn == 1 && b->served->turns(b, turn, 8) == 1);
    submit(b, RQ_SAY, "again", NULL);
    until(b, EV_TURN_END);
    assert_true(b->served->turns(b, turn, 8) == 2 && turn[0].turn == 1 && turn[1].turn == 2);
    backend_close(b);
    b = open_scene(&s);
    submit(b, RQ_SAY, "hello", NULL);
    until(b, EV_TURN_END);
    submit(b, RQ_NEW, NULL, "01JAERIETESTSESSIONNUMBER03");
    until_idle(b);
    b->steps->range(b, &r);
    assert_true(r.n == 0 && b->served->turns(b, turn, 8) == 0);
    backend_close(b);
    play_close(&s.play);
}

static void wait_for_trouble(struct backend *b, const char *part)
{
    struct chat_view v = {0};
    for (int i = 0; i < 4000 && !strstr(v.trouble, part); i++, usleep(5000))
        backend_chat(b, &v);
    if (!strstr(v.trouble, part))
        fail_msg("expected a trouble with \"%s\" within 20 s, there is: \"%s\"", part, v.trouble);
}

static void trouble_is_said_while_it_lasts(void **state)
{
    (void)state;
    struct scene s = {.refuse = 1};
    struct chat_view v;
    bool seen = false;
    play_open(&s.play, choose, &s);
    struct backend *b = open_scene(&s);
    backend_chat(b, &v);
    assert_string_equal(v.trouble, "");
    submit(b, RQ_SAY, "hello", NULL);
    until(b, EV_NOTICE);
    for (int i = 0; i < 20000 && backend_busy(b); i++, usleep(5000)) {
        backend_chat(b, &v);
        seen |= strstr(v.trouble, "429") != NULL;
    }
    until(b, EV_TURN_END);
    backend_chat(b, &v);
    assert_true(seen && v.trouble[0] == '\0');
    pthread_mutex_lock(&s.play.mu); /* the server ends within a reading of its metrics */
    s.hang_up = true;
    pthread_mutex_unlock(&s.play.mu);
    wait_for_trouble(b, "before an answer");
    play_close(&s.play); /* the next reading finds no server */
    wait_for_trouble(b, "cannot reach");
    backend_close(b);
}

/* The metrics are read while nothing is asked, no faster than the setting says, and not at all at
 * 0. */
static void metrics_are_read_beside_the_conversation(void **state)
{
    (void)state;
    struct scene s = {0};
    struct gauges_view v = {0};
    play_open(&s.play, choose, &s);
    struct backend *b = open_scene(&s);
    uint64_t begin = clock_ns();
    for (int i = 0; i < 20000 && v.n_read < 5; i++, usleep(5000))
        b->gauges->view(b, &v);
    assert_true(v.n_read >= 5 && v.ms == 20 && v.reported[GAUGE_RUNNING] &&
                strcmp(v.unit, "blocks") == 0);
    /* five readings are four intervals apart */
    assert_true(clock_ns() - begin >= 4 * 20 * 1000000ull);
    submit(b, RQ_SET, "gauge.ms=0", NULL);
    until_idle(b);
    b->gauges->view(b, &v);
    uint64_t n = v.n_read;
    usleep(200000); /* ten intervals */
    b->gauges->view(b, &v);
    assert_true(v.ms == 0 && v.n_read <= n + 1); /* one reading may have been on its way */
    backend_close(b);
    play_close(&s.play);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_a_reply_leaves),
        cmocka_unit_test(sessions_begin_empty_and_forks_go_on),
        cmocka_unit_test(trouble_is_said_while_it_lasts),
        cmocka_unit_test(metrics_are_read_beside_the_conversation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
