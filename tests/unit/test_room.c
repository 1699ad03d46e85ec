/* test_room.c - a full context: which messages are refused, which turns leave, and that a notice
 * comes before. */
#include "tests/serve_kit.h"

enum { CONTEXT = 512 };

static struct backend *open_full(int forget)
{
    struct engine_opts o = serve_opts();
    struct brought b = {0};
    o.context = CONTEXT;
    o.settings.forget = forget;
    o.settings.max_tokens = 12;
    struct backend *g = serve_open(&o);
    ask(g, RQ_NEW, NULL, &b);
    brought_free(&b);
    return g;
}

static void say_words(struct backend *g, int n, struct brought *b)
{
    char *text = words(n);
    ask(g, RQ_SAY, text, b);
    free(text);
}

static int length(struct backend *g)
{
    struct chat_view v;
    backend_chat(g, &v);
    int n = v.length;
    return n;
}

static void test_a_message_that_cannot_fit_changes_nothing(void **state)
{
    (void)state;
    for (int forget = FORGET_ASK; forget <= FORGET_NEVER; forget++) {
        struct backend *g[2] = {open_full(forget), open_full(forget)};
        struct brought b[2];
        memset(b, 0, sizeof b);
        for (int i = 0; i < 2; i++) {
            ask(g[i], RQ_SAY, "My name is Ada.", &b[i]);
            ask(g[i], RQ_SAY, "Say hello.", &b[i]);
            ask(g[i], RQ_SAY, "count to twenty", &b[i]);
        }
        int before = length(g[0]);
        say_words(g[0], 150, &b[0]); /* more than the whole context */
        assert_int_equal(b[0].reason[0], STOP_CONTEXT);
        assert_int_equal(b[0].n_step[0], 0);
        assert_true(b[0].ops.n == 0);
        assert_non_null(strstr(b[0].notices.p, "the message needs"));
        assert_int_equal(length(g[0]), before);
        for (int i = 0; i < 2; i++)
            ask(g[i], RQ_SAY, "What is my name?", &b[i]);
        assert_int_equal(b[0].prompt.n, b[1].prompt.n);
        assert_memory_equal(b[0].prompt.v, b[1].prompt.v,
                            (size_t)b[0].prompt.n * sizeof *b[0].prompt.v);
        for (int i = 0; i < 2; i++) {
            backend_close(g[i]);
            brought_free(&b[i]);
        }
    }
}

/* What is left when turns leave is in the context, although no lane holds it until the next
 * prompt. */
static void test_the_turns_that_stay_count_as_context(void **state)
{
    (void)state;
    struct backend *g = open_full(FORGET_ASK);
    struct brought b = {0};
    ask(g, RQ_SAY, "My name is Ada.", &b);
    ask(g, RQ_SAY, "Say hello.", &b);
    int before = length(g);
    ask(g, RQ_FORGET, "1", &b);
    int left = length(g);
    assert_in_range(left, 1, before - 1);
    ask(g, RQ_SAY, "Hi", &b);
    assert_in_range(b.prompt.n - left, 1, 3);
    ask(g, RQ_FORGET, "2 3", &b);
    assert_int_equal(length(g), 0);
    backend_close(g);
    brought_free(&b);
}

/* Turns 1 to 4 are short; with one more of `n` lines the context is too small. */
static void fill(struct backend *g, struct brought *b)
{
    for (int i = 0; i < 4; i++)
        say_words(g, 11, b);
}

static void test_asking_refuses_until_the_user_lets_turns_leave(void **state)
{
    (void)state;
    struct backend *g = open_full(FORGET_ASK);
    struct brought b = {0};
    int turns = 0, tokens = 0;
    fill(g, &b);
    int before = b.prompt.n;
    say_words(g, 22, &b);
    assert_int_equal(b.reason[0], STOP_CONTEXT);
    assert_true(b.ops.n == 0);
    const char *named = strstr(b.notices.p, "/forget leaves out turn");
    assert_non_null(named);
    assert_int_equal(sscanf(strchr(named, '('), "(%d tokens)", &tokens), 1);
    brought_clear(&b);
    struct err e = {0};
    struct request rq = {.kind = RQ_SAY, .text = words(22), .make_room = true};
    must(backend_submit(g, &rq, &e), &e);
    settle(g, &b);
    assert_true(b.reason[0] != STOP_CONTEXT && b.end_tokens.n > 0);
    assert_string_equal(b.order.p, "nfb"); /* said, logged, then done */
    assert_non_null(strstr(b.ops.p, "forget:1"));
    for (const char *p = b.ops.p; *p; p++)
        turns += *p >= '1' && *p <= '9';
    char *said = xasprintf("(%d tokens)", tokens);
    assert_non_null(strstr(b.notices.p, said));
    assert_true(turns >= 1 && turns < 4); /* no more than it takes */
    assert_true(b.prompt.n + CONTEXT / 8 <= CONTEXT && b.prompt.n < before + 22 * 12);
    backend_close(g);
    free(said);
    brought_free(&b);
}

static void test_the_oldest_leave_and_a_long_text_stays(void **state)
{
    (void)state;
    struct backend *g = open_full(FORGET_OLDEST);
    struct brought b = {0};
    say_words(g, 24, &b); /* the text that the questions are about */
    assert_true(b.prompt.n > CONTEXT / 4);
    struct ids text = {0};
    ids_cat(&text, b.prompt.v, b.prompt.n);
    int forgotten = 0;
    for (int i = 0; i < 8; i++) {
        ask(g, RQ_SAY, "What does the third line of the long text say, if it says anything?", &b);
        assert_true(b.prompt.n > text.n);
        assert_memory_equal(b.prompt.v, text.v, (size_t)(text.n - 6) * sizeof *text.v);
        forgotten += b.ops.n > 0;
        assert_true(b.ops.n == 0 || strncmp(b.ops.p, "forget:1", 8) != 0);
    }
    assert_true(forgotten > 0);
    say_words(g, 40, &b); /* another long text: now the first has to leave */
    assert_non_null(strstr(b.ops.p, "forget:1"));
    ids_free(&text);
    backend_close(g);
    brought_free(&b);
}

/* Once the context is full, a share of it is freed at once, so that few messages pay for a prompt
 * that is computed again from its changed beginning on. */
static void test_a_long_chat_computes_few_prompts_again(void **state)
{
    (void)state;
    enum { MESSAGES = 60 };
    struct backend *g = open_full(FORGET_OLDEST);
    struct brought b = {0};
    int again = 0, forgotten = 0, full_at = 0;
    for (int i = 0; i < MESSAGES; i++) {
        say_words(g, 2, &b);
        assert_true(b.reason[0] != STOP_CONTEXT && b.prompt.n + CONTEXT / 8 <= CONTEXT);
        forgotten += b.ops.n > 0;
        if (forgotten && !full_at)
            full_at = i;
        if (full_at)
            again += b.prompt.n - b.n_reused;
    }
    assert_true(full_at > 0 && full_at < 20);
    assert_true(forgotten <= 12); /* of 47: if each made only its own room, 47 */
    assert_true(again < 6000);    /* 3,885; if each made only its own room, 20,304 */
    backend_close(g);
    brought_free(&b);
}

static void test_never_keeps_every_turn(void **state)
{
    (void)state;
    struct backend *g = open_full(FORGET_NEVER);
    struct brought b = {0};
    fill(g, &b);
    say_words(g, 22, &b);
    assert_int_equal(b.reason[0], STOP_CONTEXT);
    assert_true(b.ops.n == 0);
    backend_close(g);
    brought_free(&b);
}

static void test_turns_can_be_taken_out_by_their_numbers(void **state)
{
    (void)state;
    struct backend *g = open_full(FORGET_ASK), *h = open_full(FORGET_ASK);
    struct brought b = {0}, c = {0};
    ask(g, RQ_SAY, "My name is Ada.", &b);
    ask(g, RQ_SAY, "count to twenty", &b);
    ask(g, RQ_SAY, "Say hello.", &b);
    ask(g, RQ_FORGET, "2 7", &b);
    assert_string_equal(b.ops.p, "forget:2|");
    assert_non_null(strstr(b.notices.p, "leaving out turn 2 ("));
    ask(g, RQ_FORGET, "2", &b);
    assert_non_null(strstr(b.notices.p, "none of these"));
    ask(g, RQ_SAY, "What is my name?", &b);
    ask(h, RQ_SAY, "My name is Ada.", &c);
    ask(h, RQ_SAY, "Say hello.", &c);
    ask(h, RQ_SAY, "What is my name?", &c);
    /* the same conversation; the reply to "Say hello." was given knowing more */
    assert_true(b.prompt.n > 40 && abs(b.prompt.n - c.prompt.n) < 14);
    ask(g, RQ_REGEN, NULL, &b);
    ask(g, RQ_UNDO, NULL, &b);
    ask(g, RQ_UNDO, NULL, &b);
    ask(g, RQ_UNDO, NULL, &b);
    assert_string_equal(b.notices.p, ""); /* three turns were there to be undone */
    ask(g, RQ_UNDO, NULL, &b);
    assert_non_null(strstr(b.notices.p, "nothing to undo"));
    backend_close(g);
    backend_close(h);
    brought_free(&b);
    brought_free(&c);
}

/* Turn 2 leaves, turn 4 comes; the conversation of turns 1 to 3 has as many messages as that of 1,
 * 3, 4. */
static void test_a_fork_to_before_turns_left_holds_no_state_of_after(void **state)
{
    (void)state;
    static const char *const said[] = {"My name is Ada.", "count to twenty", "Say hello."};
    struct backend *g = open_full(FORGET_ASK);
    struct session *ses = &engine_of(g)->own.ses;
    struct brought b = {0};
    struct err e = {0};
    struct ids whole = {0};
    struct request rq = {.kind = RQ_FORK, .next_turn = 4, .n_past = 3,
                         .past = xcalloc(3, sizeof *rq.past)};
    snprintf(rq.session, sizeof rq.session, "CHILD");
    int end_of_first = 0;
    for (int i = 0; i < 3; i++) {
        ask(g, RQ_SAY, said[i], &b);
        struct past_turn *p = &rq.past[i];
        *p = (struct past_turn){.turn = i + 1, .user = xstrdup(said[i]),
                                .reply = xstrdup(b.text.p)};
        ids_cat(&p->ids, b.end_tokens.v, b.end_tokens.n);
        if (i == 0)
            end_of_first = ses->lane.seq.committed;
    }
    ask(g, RQ_FORGET, "2", &b);
    ask(g, RQ_SAY, "What is my name?", &b);
    brought_clear(&b);
    must(backend_submit(g, &rq, &e), &e);
    settle(g, &b);
    const struct lane *l = &ses->lane;
    must(session_render(ses, "And?", &whole, &e), &e);
    assert_int_equal(ses->n_msg, 6);
    assert_int_equal(l->seq.committed, end_of_first);
    assert_true(whole.n > end_of_first &&
                memcmp(l->tok.v, whole.v, (size_t)end_of_first * sizeof *whole.v) == 0);
    for (int i = 0; i < ses->n_point; i++)
        assert_true(ses->point[i].lane.seq.committed <= end_of_first);
    backend_close(g);
    brought_free(&b);
    ids_free(&whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_message_that_cannot_fit_changes_nothing),
        cmocka_unit_test(test_the_turns_that_stay_count_as_context),
        cmocka_unit_test(test_asking_refuses_until_the_user_lets_turns_leave),
        cmocka_unit_test(test_the_oldest_leave_and_a_long_text_stays),
        cmocka_unit_test(test_a_long_chat_computes_few_prompts_again),
        cmocka_unit_test(test_never_keeps_every_turn),
        cmocka_unit_test(test_turns_can_be_taken_out_by_their_numbers),
        cmocka_unit_test(test_a_fork_to_before_turns_left_holds_no_state_of_after),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
