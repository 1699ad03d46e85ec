/* test_serve.c - queued requests: which of them a cancel or a close ends, which still run, and when
 * the lock is held. */
#include "tests/serve_kit.h"

#include <unistd.h>

/* ---- a spy on the CPU's kernels -------------------------------------------------------------- */

static struct {
    struct kernels k;
    struct engine *g;
    atomic_int calls;   /* of attn */
    int hold_at;        /* the call that waits for a cancel; 0: none */
    int late;           /* calls after it */
    uint64_t rows;      /* of prompts */
    int locked;         /* operations that ran while this thread held the engine's lock */
} spy;

static void look_at_lock(void)
{
    if (!spy.g)
        return;
    if (pthread_mutex_trylock(&spy.g->shared.mu))
        spy.locked++; /* nobody else looks meanwhile */
    else
        pthread_mutex_unlock(&spy.g->shared.mu);
}

static void spy_attn(struct kdev *d, const struct k_attn *a)
{
    kernels_cpu.attn(d, a);
    spy.rows += a->rows > 64 ? (uint64_t)a->rows : 0;
    int n = atomic_fetch_add(&spy.calls, 1) + 1;
    spy.late += spy.hold_at && n > spy.hold_at;
    while (n == spy.hold_at && !stop_asked(&spy.g->stop))
        usleep(100);
}

static void spy_get(struct kdev *d, void *dst, kbuf src, size_t bytes)
{
    look_at_lock();
    kernels_cpu.get(d, dst, src, bytes);
}

static void spy_move(struct kdev *d, const struct k_move *a)
{
    look_at_lock();
    kernels_cpu.move(d, a);
}

static bool spy_sync(struct kdev *d, struct err *e)
{
    look_at_lock();
    return kernels_cpu.sync(d, e);
}

static struct engine_opts spied(void)
{
    struct engine_opts o = serve_opts();
    memset(&spy, 0, sizeof spy);
    spy.k = kernels_cpu;
    spy.k.attn = spy_attn;
    spy.k.get = spy_get;
    spy.k.move = spy_move;
    spy.k.sync = spy_sync;
    o.backend = &spy.k;
    return o;
}

/* ---- cancelling ------------------------------------------------------------------------------ */

static void test_a_cancel_ends_what_was_submitted_before_it(void **state)
{
    (void)state;
    struct engine_opts o = spied();
    struct brought b = {0};
    o.settings.max_tokens = 0;
    struct backend *g = serve_open(&o);
    spy.g = engine_of(g);
    ask(g, RQ_NEW, NULL, &b);
    brought_clear(&b);
    spy.hold_at = 60; /* within the first turn */
    submit(g, RQ_SAY, "count to one hundred", 0);
    submit(g, RQ_SAY, "Hello!", 0);
    submit(g, RQ_SET, "max_tokens=3", 0);
    while (atomic_load(&spy.calls) < spy.hold_at)
        usleep(100);
    backend_cancel(g);
    settle(g, &b);
    assert_int_equal(b.n_end, 2);
    assert_int_equal(b.reason[0], STOP_CANCEL);
    assert_int_equal(b.reason[1], STOP_CANCEL);
    assert_int_equal(b.n_step[1], 0);
    assert_string_equal(b.ops.p, "set:max_tokens=3|"); /* what computes nothing is carried out */
    spy.hold_at = 0;
    ask(g, RQ_SAY, "count to one hundred", &b); /* submitted after it */
    assert_int_equal(b.reason[0], STOP_MAX);
    assert_int_equal(b.end_tokens.n, 3);
    backend_close(g);
    brought_free(&b);
}

/* Waits in the hold_at-th attention for the close, which must then come at once: no layer of the
 * target runs any more, of the draft at most the rest of one tree. */
static void close_within(enum request_kind kind, const char *text, int hold_at)
{
    struct engine_opts o = spied();
    struct brought b = {0};
    o.settings.max_tokens = 0;
    struct backend *g = serve_open(&o);
    spy.g = engine_of(g);
    ask(g, RQ_NEW, NULL, &b);
    spy.hold_at = hold_at;
    submit(g, kind, text, 4);
    submit(g, RQ_SAY, "Hello!", 0);
    while (atomic_load(&spy.calls) < hold_at)
        usleep(100);
    backend_close(g);
    assert_true(spy.late <= 8);
    brought_free(&b);
}

static void test_closing_waits_for_no_reply(void **state)
{
    (void)state;
    char *text = words(150);
    for (int at = 2; at <= 80; at += 78) {
        close_within(RQ_SAY, text, at);
        close_within(RQ_SAY, "count to one hundred", at);
        close_within(RQ_SEVERAL, text, at);
        close_within(RQ_SEVERAL, "count to one hundred", at);
        close_within(RQ_CALIBRATE, NULL, at);
    }
    free(text);
}

static void test_replies_to_one_question_stop_and_keep_what_they_said(void **state)
{
    (void)state;
    struct brought b = {0};
    char *text = words(150);
    for (int long_ = 0; long_ < 2; long_++) {
        struct engine_opts o = spied();
        o.settings.max_tokens = 0;
        struct backend *g = serve_open(&o);
        spy.g = engine_of(g);
        ask(g, RQ_NEW, NULL, &b);
        brought_clear(&b);
        spy.hold_at = long_ ? 3 : 150;
        submit(g, RQ_SEVERAL, long_ ? text : "count to one hundred", 4);
        while (atomic_load(&spy.calls) < spy.hold_at)
            usleep(100);
        backend_cancel(g);
        settle(g, &b);
        assert_true(spy.late <= 8);
        assert_true(b.batch_reason == STOP_CANCEL && b.n_batch_end == 1);
        assert_int_equal(b.n_reply, long_ ? 0 : 4);
        for (int i = 0; i < b.n_reply; i++)
            assert_true(b.reply[i].reason == STOP_CANCEL && b.reply[i].tokens.n > 0 &&
                        b.reply[i].text.n > 0);
        spy.hold_at = 0;
        ask(g, RQ_SAY, "Hello!", &b);
        assert_int_equal(b.reason[0], STOP_END);
        backend_close(g);
    }
    free(text);
    brought_free(&b);
}

/* ---- a failure inside a turn ----------------------------------------------------------------- */

static void test_a_failed_turn_holds_the_tokens_of_its_steps(void **state)
{
    (void)state;
    struct brought b = {0};
    struct chat_view v;
    struct engine_opts o = serve_opts();
    struct backend *g = serve_open(&o);
    ask(g, RQ_NEW, NULL, &b);
    ask(g, RQ_SAY, "Hello!", &b);
    backend_chat(g, &v);
    int length = v.length;
    for (int i = 0; i < 2; i++) {
        ask(g, RQ_SET, "bug.26512=on", &b);
        ask(g, RQ_SAY, "count to twenty", &b);
        assert_int_equal(b.reason[0], STOP_FAULT);
        assert_non_null(strstr(b.faults.p, "I9 "));
        assert_int_equal(b.end_tokens.n, b.step_tokens.n);
        assert_int_equal(b.text.n, 0);
        ask(g, RQ_SET, "bug.26512=off", &b);
    }
    ask(g, RQ_UNDO, NULL, &b); /* the failed turns left no message: this is the first one's */
    ask(g, RQ_SAY, "Hello!", &b);
    backend_chat(g, &v);
    assert_int_equal(v.length, length);
    backend_close(g);
    brought_free(&b);
}

/* ---- two engines in one process -------------------------------------------------------------- */

static void expect_bugs(struct backend *g, int page_not_loc, int extend_extent)
{
    struct bugs on;
    g->faults->on(g, &on);
    assert_int_equal(bug_on(&on, BUG_PAGE_NOT_LOC), page_not_loc);
    assert_int_equal(bug_on(&on, BUG_DRAFT_EXTEND_EXTENT), extend_extent);
}

/* Both work at the same time; each obeys its own switches, from its options or by request. */
static void test_faults_of_one_engine_leave_another_alone(void **state)
{
    (void)state;
    static const char asked[] = "What is a page table?";
    struct brought a = {0}, b = {0}, alone = {0};
    struct engine_opts o = serve_opts(), faulty = serve_opts();
    bug_switch(&faulty.bugs, BUG_PAGE_NOT_LOC, 1);
    struct backend *g = serve_open(&o), *h = serve_open(&faulty);
    ask(g, RQ_NEW, NULL, &a);
    ask(h, RQ_NEW, NULL, &b);
    assert_null(strstr(a.ops.p, "bug."));
    assert_non_null(strstr(b.ops.p, "bug.16267=on"));
    ask(g, RQ_SAY, asked, &alone);
    assert_int_equal(alone.reason[0], STOP_END);
    ask(g, RQ_NEW, NULL, &a);
    for (int round = 0; round < 2; round++) {
        struct backend *right = round ? h : g, *wrong = round ? g : h;
        expect_bugs(h, !round, 0);
        expect_bugs(g, 0, round ? 2 : 0);
        brought_clear(&a);
        brought_clear(&b);
        submit(right, RQ_SAY, asked, 0);
        submit(wrong, RQ_SAY, asked, 0);
        settle(right, &a);
        settle(wrong, &b);
        assert_int_equal(b.reason[0], STOP_FAULT);
        assert_memory_equal(b.faults.p, round ? "I9 " : "I4 ", 3);
        assert_string_equal(a.faults.p, "");
        assert_int_equal(a.end_tokens.n, alone.end_tokens.n);
        assert_memory_equal(a.end_tokens.v, alone.end_tokens.v, (size_t)a.end_tokens.n * 4);
        ask(h, RQ_SET, "bug.16267=off", &b); /* and the other way round */
        ask(g, RQ_SET, "bug.26512=counted-twice", &b);
        ask(g, RQ_NEW, NULL, &b);
        ask(h, RQ_NEW, NULL, &b);
    }
    backend_close(g);
    backend_close(h);
    brought_free(&a);
    brought_free(&b);
    brought_free(&alone);
}

/* ---- batches --------------------------------------------------------------------------------- */

static uint64_t prompt_rows(int full_pages, int n)
{
    struct engine_opts o = spied();
    struct brought b = {0};
    char *text = words(32), *prompt[12];
    for (int i = 0; i < n; i++)
        prompt[i] = xasprintf("%d. %s", 7 * i + 3, text);
    o.context = 1024;
    o.full_pages = full_pages;
    o.lanes = 8;
    o.settings.temperature = 100; /* replies that go on */
    o.settings.max_tokens = 60;
    struct backend *g = serve_open(&o);
    submit_batch(g, (const char *const *)prompt, n);
    settle(g, &b);
    assert_true(b.n_reply == n && b.batch_end.n_done == n && b.batch_reason == STOP_END);
    backend_close(g);
    for (int i = 0; i < n; i++)
        free(prompt[i]);
    free(text);
    brought_free(&b);
    return spy.rows;
}

static void test_a_prompt_is_not_run_again_in_every_cycle(void **state)
{
    (void)state;
    uint64_t ample = prompt_rows(0, 12), tight = prompt_rows(80, 12);
    assert_true(ample > 0);
    if (tight > 2 * ample)
        fail_msg("%llu rows of prompts in a tight pool, %llu in an ample one",
                 (unsigned long long)tight, (unsigned long long)ample);
}

/* ---- the lock -------------------------------------------------------------------------------- */

static void test_nothing_waits_for_the_device_under_the_lock(void **state)
{
    (void)state;
    struct engine_opts o = spied();
    struct brought b = {0};
    o.settings.topk = 4;
    o.settings.nodes = 16;
    struct backend *g = serve_open(&o);
    spy.g = engine_of(g);
    ask(g, RQ_NEW, NULL, &b);
    ask(g, RQ_SAY, "Tell me a story about Clara the owl.", &b);
    submit(g, RQ_FORK, NULL, 0);
    ask(g, RQ_SAY, "Another one.", &b);
    ask(g, RQ_UNDO, NULL, &b);
    ask(g, RQ_SAY, "Another one.", &b);
    spy.g = NULL;
    assert_int_equal(spy.locked, 0);
    backend_close(g);
    brought_free(&b);
}

/* What the screen does all the time. A thread sanitizer's build sees what is read without the
 * lock. */
static void test_views_can_be_taken_at_any_time(void **state)
{
    (void)state;
    struct engine_opts o = serve_opts();
    struct brought b = {0};
    struct err e = {0};
    struct buf text = {0};
    int turn = 0, step = 0;
    struct backend *g = serve_open(&o);
    submit(g, RQ_SAY, "count to twenty", 0);
    submit(g, RQ_SET, "topk=4", 0);
    submit(g, RQ_SET, "nodes=16", 0);
    submit(g, RQ_SET, "check=strict", 0);
    submit(g, RQ_SAY, "Tell me a story about Clara the owl.", 0);
    submit(g, RQ_REGEN, NULL, 0);
    submit(g, RQ_UNDO, NULL, 0);
    submit(g, RQ_SET, "spec=off", 0);
    submit(g, RQ_SAY, "Hello!", 0);
    while (backend_busy(g)) {
        struct chat_view v;
        struct pos_view at;
        struct pool_view pool[N_POOLS];
        struct page_table table;
        struct check_view checks;
        struct step_range held;
        struct step_view tree;
        struct step_info latest[4];
        struct page_change change[4];
        bool whole;
        backend_chat(g, &v);
        assert_true(v.turn > turn || (v.turn == turn && v.step >= step));
        g->pools->ledger(g, pool);
        g->pages->table(g, &table);
        assert_true(table.turn > v.turn || (table.turn == v.turn && table.step >= v.step));
        assert_true(table.committed <= table.length);
        page_table_free(&table);
        g->pages->events(g, 0, 0, POOL_FULL, 1, change, 4, &whole);
        g->check->counts(g, &checks);
        g->steps->range(g, &held);
        g->trees->latest(g, &tree);
        g->steps->latest(g, latest, 4);
        assert_true(v.committed <= v.length);
        turn = v.turn;
        step = v.step;
        g->pages->position(g, 3, &at, &e);
        g->plan->text(g, "", false, &text, &e);
        buf_clear(&text);
        usleep(50);
    }
    settle(g, &b);
    assert_int_equal(b.n_end, 4);
    backend_close(g);
    buf_free(&text);
    brought_free(&b);
}

static void test_the_speed_is_that_of_the_tokens_after_the_first(void **state)
{
    (void)state;
    struct engine_opts o = serve_opts();
    struct brought b = {0};
    struct chat_view v;
    struct backend *g = serve_open(&o);
    ask(g, RQ_NEW, NULL, &b);
    ask(g, RQ_SAY, "count to twenty", &b);
    backend_chat(g, &v);
    double want = (double)(b.end_tokens.n - 1) * 1e6 / (double)b.us_decode;
    assert_true(v.tok_s > 0.999 * want && v.tok_s < 1.001 * want);
    assert_true(reply_tok_s(b.end_tokens.n, b.us_decode) == want);
    assert_true(reply_tok_s(1, 1000) == 0 && reply_tok_s(5, 0) == 0);
    backend_close(g);
    brought_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_cancel_ends_what_was_submitted_before_it),
        cmocka_unit_test(test_closing_waits_for_no_reply),
        cmocka_unit_test(test_replies_to_one_question_stop_and_keep_what_they_said),
        cmocka_unit_test(test_a_failed_turn_holds_the_tokens_of_its_steps),
        cmocka_unit_test(test_faults_of_one_engine_leave_another_alone),
        cmocka_unit_test(test_views_can_be_taken_at_any_time),
        cmocka_unit_test(test_a_prompt_is_not_run_again_in_every_cycle),
        cmocka_unit_test(test_nothing_waits_for_the_device_under_the_lock),
        cmocka_unit_test(test_the_speed_is_that_of_the_tokens_after_the_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
