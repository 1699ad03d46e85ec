/* A session's conversation through its parents (history/log/past.c), and the order of sessions. */
#include "tests/history_kit.h"

#include <limits.h>

static void say(struct history *h, const char *id, int n, const char *text, bool regen)
{
    struct event begin = event_of(EV_TURN_BEGIN, id, n, text),
        end = event_of(EV_TURN_END, id, n, text);
    ids_add(&begin.tokens, n);
    ids_add(&end.tokens, n);
    begin.regen = regen;
    end.n_steps = 1;
    post(h, &begin);
    post(h, &end);
}

/* The live turns as "1 2 4". */
static char *live(const char *id, int upto)
{
    struct hdb *d = read_open();
    struct hdb_past p;
    struct err e = {0};
    struct buf b = {0};
    buf_str(&b, "");
    if (!hdb_past(d, id, upto, &p, &e))
        fail_msg("%s", e.msg);
    for (int i = 0; i < p.n; i++)
        if (p.turn[i].state == PAST_LIVE)
            buf_printf(&b, "%s%d", b.n ? " " : "", p.turn[i].user.n);
    hdb_past_free(&p);
    hdb_close(d);
    return b.p;
}

static void assert_live(const char *id, int upto, const char *turns)
{
    char *got = live(id, upto);
    assert_string_equal(got, turns);
    free(got);
}

static void test_the_past_is_as_it_stood_after_a_turn(void **state)
{
    (void)state;
    struct history *h = log_open(LOG_STEPS);
    char id[3][SESSION_ID];
    for (int i = 0; i < 3; i++)
        session_new_id(id[i]);
    post_session(h, id[0], "", 0);
    post_op(h, id[0], OP_OPEN, 0, "seed=1\n");
    for (int i = 1; i <= 3; i++)
        say(h, id[0], i, "x", false);
    post_op(h, id[0], OP_UNDO, 3, "");
    say(h, id[0], 4, "x", false);
    say(h, id[0], 5, "x", true); /* replaces 4 */
    post_op(h, id[0], OP_UNDO, 5, "");
    post_op(h, id[0], OP_UNDO, 2, "");
    say(h, id[0], 6, "x", false);
    post_session(h, id[1], id[0], 3); /* turn 3 is in it again */
    post_op(h, id[1], OP_FORK, 3, "1 2 3");
    say(h, id[1], 4, "x", false);
    post_op(h, id[1], OP_UNDO, 4, "");
    post_op(h, id[1], OP_UNDO, 3, "");
    post_session(h, id[2], id[1], 0);
    post_op(h, id[2], OP_FORK, 0, "");
    say(h, id[2], 1, "x", false);
    history_close(h);
    static const char *const want[] = {"", "1", "1 2", "1 2 3", "1 2 4", "1 2 5", "1 6"};
    for (int i = 0; i <= 6; i++)
        assert_live(id[0], i, want[i]);
    assert_live(id[0], INT_MAX, "1 6");
    assert_live(id[1], INT_MAX, "1 2");
    assert_live(id[1], 4, "1 2 3 4");
    assert_live(id[1], 3, "1 2 3");
    assert_live(id[1], 2, "1 2");
    assert_live(id[2], INT_MAX, "1");
}

static void test_settings_and_draws_are_those_at_the_end(void **state)
{
    (void)state;
    struct history *h = log_open(LOG_STEPS);
    char id[SESSION_ID];
    session_new_id(id);
    post_session(h, id, "", 0);
    post_op(h, id, OP_OPEN, 0, "seed=1\ntemperature=0\n");
    post_op(h, id, OP_SYSTEM, 0, "Be brief.");
    post_op(h, id, OP_SET, 0, "temperature=0.5");
    post_op(h, id, OP_SET, 0, "bug.24617=on");
    say(h, id, 1, "x", false);
    history_close(h);
    struct hdb *d = read_open();
    struct hdb_past p;
    struct err e = {0};
    assert_true(hdb_past(d, id, INT_MAX, &p, &e));
    assert_string_equal(p.settings.p, "seed=1\ntemperature=0.5\nbug.24617=on\n");
    assert_string_equal(p.system, "Be brief.");
    assert_int_equal(p.last, 1);
    hdb_past_free(&p);
    hdb_close(d);
}

static void test_a_turn_that_is_being_written_is_the_last_and_not_complete(void **state)
{
    (void)state;
    struct history *h = log_open(LOG_STEPS);
    char id[SESSION_ID], child[SESSION_ID];
    session_new_id(id);
    session_new_id(child);
    post_session(h, id, "", 0);
    say(h, id, 1, "x", false);
    struct event begin = event_of(EV_TURN_BEGIN, id, 2, "x");
    ids_add(&begin.tokens, 2);
    post(h, &begin);
    assert_true(history_flush(h, 5000));
    struct history *other = log_open(LOG_STEPS);
    post_session(other, child, id, 1);
    post_op(other, child, OP_FORK, 1, "1");
    history_close(other);
    static const int want[2][2] = {{2, 1}, {1, 1}};
    struct hdb *d = read_open();
    for (int i = 0; i < 2; i++) {
        struct hdb_past p;
        struct err e = {0};
        assert_true(hdb_past(d, i ? child : id, INT_MAX, &p, &e));
        assert_int_equal(p.last, want[i][0]);
        assert_int_equal(p.complete, want[i][1]);
        hdb_past_free(&p);
    }
    hdb_close(d);
    history_close(h);
}

/* Two processes: the session that was opened first is used last. */
static bool keep_first(const struct session_row *r, void *arg)
{
    memcpy(arg, r->id, SESSION_ID);
    return false;
}

static void test_sessions_are_sorted_by_when_they_were_used(void **state)
{
    (void)state;
    char a[SESSION_ID], b[SESSION_ID], first[SESSION_ID];
    session_new_id(a);
    session_new_id(b);
    struct history *h[2] = {log_open(LOG_STEPS), log_open(LOG_STEPS)};
    post_session(h[0], a, "", 0);
    say(h[0], a, 1, "x", false);
    assert_true(history_flush(h[0], 5000));
    sleep_ms(3);
    post_session(h[1], b, "", 0);
    say(h[1], b, 1, "x", false);
    assert_true(history_flush(h[1], 5000));
    sleep_ms(3);
    say(h[0], a, 2, "x", false);
    history_close(h[0]);
    history_close(h[1]);
    struct hdb *d = read_open();
    struct err e = {0};
    assert_true(hdb_sessions(d, NULL, NULL, 0, keep_first, first, &e) > 0);
    assert_string_equal(first, a);
    assert_true(hdb_sessions(d, "x", NULL, 0, keep_first, first, &e) > 0);
    assert_string_equal(first, a);
    hdb_close(d);
}

/* One turn of one step: the step yields n tokens, the reply holds m. */
static void yield(struct history *h, const char *id, int turn, int n, int m)
{
    struct event begin = event_of(EV_TURN_BEGIN, id, turn, "x");
    struct event step = event_of(EV_STEP, id, turn, NULL),
        end = event_of(EV_TURN_END, id, turn, "x");
    step.step = 1;
    for (int i = 0; i < n; i++)
        ids_add(&step.tokens, 7 + i);
    for (int i = 0; i < m; i++)
        ids_add(&end.tokens, 7 + i);
    end.n_steps = 1;
    post(h, &begin);
    post(h, &step);
    post(h, &end);
}

static int unaccounted(const char *id, int *first)
{
    struct hdb *d = read_open();
    struct err e = {0};
    int bad = -1, turns;
    assert_true(hdb_account(d, id, first, &bad, NULL, &e));
    assert_int_equal(verify_bad(d, &turns), 0); /* the log is whole: only this check finds it */
    hdb_close(d);
    return bad;
}

static void test_tokens_that_no_step_yielded_are_found(void **state)
{
    (void)state;
    char id[4][SESSION_ID];
    static const enum log_level level[] = {LOG_STEPS, LOG_STEPS, LOG_TEXT, LOG_STEPS};
    for (int i = 0; i < 4; i++) {
        struct history *h = log_open(level[i]);
        session_new_id(id[i]);
        post_session(h, id[i], "", 0);
        post_op(h, id[i], OP_OPEN, 0, "seed=1\n");
        yield(h, id[i], 1, 3, 3);
        yield(h, id[i], 2, 3, i == 0 ? 3 : i == 3 ? 2 : 5);
        yield(h, id[i], 3, 0, 0);
        history_close(h);
    }
    int first;
    assert_int_equal(unaccounted(id[0], &first), 0);
    assert_int_equal(unaccounted(id[1], &first), 1);
    assert_int_equal(first, 2);
    assert_int_equal(unaccounted(id[2], &first), 0); /* no steps were logged */
    assert_int_equal(unaccounted(id[3], &first), 1);
    assert_int_equal(unaccounted("", &first), 2);
    struct buf report = {0};
    struct err e = {0};
    assert_false(history_check(db_path, &report, &e)); /* `aerie db check` says so, too */
    assert_non_null(strstr(report.p, "turn 2: the reply has 5 tokens, its steps 3"));
    assert_non_null(strstr(report.p, "2 replies with other tokens than their steps"));
    buf_free(&report);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_the_past_is_as_it_stood_after_a_turn),
        TEST(test_settings_and_draws_are_those_at_the_end),
        TEST(test_a_turn_that_is_being_written_is_the_last_and_not_complete),
        TEST(test_tokens_that_no_step_yielded_are_found),
        TEST(test_sessions_are_sorted_by_when_they_were_used),
    };
    return cmocka_run_group_tests_name("past", tests, NULL, NULL);
}
