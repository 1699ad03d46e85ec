/* test_several.c - several replies at once: they fork the live conversation, give the same text as
 * alone, wait for pages, and leave the pools as they were. */
#include "tests/jobs_kit.h"

static struct engine_opts several_opts(void)
{
    struct engine_opts o = serve_opts();
    spy_on(&o, false);
    o.context = 1024;
    o.settings.check = CHECK_STRICT; /* every pool and sequence, after each step */
    return o;
}

/* ---- what must not change -------------------------------------------------------------------- */

/* The pools of an engine that is idle: who holds what, and what will be handed out next. */
struct pools {
    struct kv_order order;
    uint16_t *ref[N_POOLS];
    int total[N_POOLS];
};

static void pools_take(struct backend *g, struct pools *p)
{
    const struct kv *kv = &engine_of(g)->own.runtime.kv;
    kv_save_order(kv, &p->order);
    for (int i = 0; i < N_POOLS; i++) {
        p->total[i] = kv->pool[i].total;
        p->ref[i] = xcalloc((size_t)p->total[i] + 1, sizeof *p->ref[i]);
        if (p->total[i])
            memcpy(p->ref[i], kv->pool[i].ref, (size_t)p->total[i] * sizeof *p->ref[i]);
    }
}

static void pools_free(struct pools *p)
{
    for (int i = 0; i < N_POOLS; i++) {
        free(p->order.free[i]);
        free(p->ref[i]);
    }
}

static void assert_same_pools(const struct pools *a, const struct pools *b)
{
    for (int i = 0; i < N_POOLS; i++) {
        assert_int_equal(a->order.n[i], b->order.n[i]);
        for (int k = 0; k < a->order.n[i]; k++)
            assert_int_equal(a->order.free[i][k], b->order.free[i][k]);
        for (int k = 0; k < a->total[i]; k++)
            assert_int_equal(a->ref[i][k], b->ref[i][k]);
    }
}

#define TOLD "My dog is called Rex and my cat is called Tom. Please remember that."
#define ASKED "Tell me a story about a dog and a cat."

/* A reply to ASKED behind TOLD, alone, with this seed. */
static void alone(int seed, bool spec, struct brought *b)
{
    struct engine_opts o = serve_opts();
    char set[32];
    o.settings.spec = spec;
    struct backend *g = serve_open(&o);
    ask(g, RQ_NEW, NULL, b);
    ask(g, RQ_SAY, TOLD, b);
    ask(g, RQ_SET, "temperature=0.8", b);
    snprintf(set, sizeof set, "seed=%d", seed);
    ask(g, RQ_SET, set, b);
    ask(g, RQ_SAY, ASKED, b);
    backend_close(g);
}

/* /n computes the question and nothing else; its replies are those of a session of their own; and
 * afterwards the conversation, the pools and the order of their free pages are as before. */
static void several(bool spec, int n)
{
    struct engine_opts o = several_opts();
    struct brought b = {0}, solo = {0};
    struct pools before, after;
    struct chat_view v;
    struct ids prompt = {0};
    struct err e = {0};
    o.settings.spec = spec;
    struct backend *g = serve_open(&o);
    ask(g, RQ_NEW, NULL, &b);
    ask(g, RQ_SAY, TOLD, &b);
    backend_chat(g, &v);
    int committed = v.committed;
    must(session_render(&engine_of(g)->own.ses, ASKED, &prompt, &e), &e);
    pools_take(g, &before);
    brought_clear(&b);
    submit(g, RQ_SEVERAL, ASKED, n);
    settle(g, &b);
    pools_take(g, &after);
    assert_same_pools(&before, &after);
    assert_whole(g);
    backend_chat(g, &v);
    assert_int_equal(v.committed, committed);
    assert_string_equal(b.notices.p, "");
    assert_string_equal(b.faults.p, "");

    /* the question once but for its last token, which every reply runs */
    int question = prompt.n - committed;
    assert_int_equal(b.batch_begin.n_reused, committed);
    assert_int_equal(b.batch_end.n_computed, question - 1 + n);
    assert_int_equal(b.batch_begin.n_shared, n > 1 ? (prompt.n - 1) / 16 : 0);
    assert_true(b.n_reply == n && b.batch_reason == STOP_END && b.n_batch_end == 1);
    for (int i = 0; i < n; i++) {
        const struct brought_reply *r = &b.reply[i];
        alone(1 + i, spec, &solo);
        assert_int_equal(r->rec.n_prompt, prompt.n);
        assert_int_equal(r->rec.n_computed, n > 1 ? 1 : question);
        assert_int_equal(r->tokens.n, solo.end_tokens.n);
        assert_memory_equal(r->tokens.v, solo.end_tokens.v,
                            (size_t)solo.end_tokens.n * sizeof *solo.end_tokens.v);
        assert_string_equal(r->text.p, solo.text.p);
        assert_string_equal(r->pieces.p, solo.text.p);
        assert_true((r->n_accepted > 0) == spec && r->n_drafted >= r->n_accepted);
    }
    ids_free(&prompt);
    pools_free(&before);
    pools_free(&after);
    backend_close(g);
    brought_free(&b);
    brought_free(&solo);
}

static void test_replies_share_the_live_conversation(void **state)
{
    (void)state;
    several(true, 3);
    several(false, 4);
    several(true, 1);
}

/* More lanes than the runtime's buffers take in one cycle: they run in groups, with the same
 * text. */
static void test_lanes_run_in_groups_where_the_buffers_are_small(void **state)
{
    (void)state;
    struct brought b = {0}, solo = {0};
    struct engine_opts o = several_opts();
    o.settings.topk = 4;
    o.settings.nodes = 32;
    struct backend *g = serve_open(&o);
    struct tree_shape shape = {o.settings.steps, 4, 32};
    assert_int_equal(runtime_step_lanes(&engine_of(g)->own.runtime, &shape), 2);
    ask(g, RQ_NEW, NULL, &b);
    ask(g, RQ_SAY, TOLD, &b);
    brought_clear(&b);
    submit(g, RQ_SEVERAL, ASKED, 5);
    settle(g, &b);
    assert_int_equal(b.n_reply, 5);
    for (int i = 0; i < 5; i += 2) {
        alone(1 + i, true, &solo);
        assert_string_equal(b.reply[i].text.p, solo.text.p);
    }
    backend_close(g);
    brought_free(&b);
    brought_free(&solo);
}

static int refs_of(struct backend *g, int column)
{
    struct page_table t;
    g->pages->table(g, &t);
    assert_true(column < t.n_page);
    int refs = t.page[column].full_refs;
    page_table_free(&t);
    return refs;
}

static void test_shared_pages_count_their_holders_while_replies_run(void **state)
{
    (void)state;
    struct brought b = {0};
    struct engine_opts o = several_opts();
    struct backend *g = serve_open(&o);
    ask(g, RQ_NEW, NULL, &b);
    ask(g, RQ_SAY, TOLD, &b);
    int before = refs_of(g, 0);
    int most = 0;
    hold(10);
    submit(g, RQ_SEVERAL, ASKED, 4);
    for (int at = 20; at <= 60; at += 10) { /* lanes join, then run */
        await_hold();
        most = max_int(most, refs_of(g, 0));
        assert_whole(g); /* the checker knows the lanes, the ledger counts their pages */
        atomic_store(&spy.hold_at, at);
    }
    let_go();
    settle(g, &b);
    assert_int_equal(most, before + 1 + 4); /* the head and four lanes */
    assert_int_equal(b.n_reply, 4);
    assert_int_equal(refs_of(g, 0), before);
    backend_close(g);
    brought_free(&b);
}

/* A session with a batch in it, and the same without: the turns behind get the same pages. */
static void test_turns_after_a_batch_find_the_same_pages(void **state)
{
    (void)state;
    uint64_t digest[2] = {0};
    for (int with = 0; with < 2; with++) {
        struct brought b = {0};
        struct engine_opts o = several_opts();
        struct backend *g = serve_open(&o);
        ask(g, RQ_NEW, NULL, &b);
        ask(g, RQ_SAY, TOLD, &b);
        if (with)
            submit(g, RQ_SEVERAL, ASKED, 4);
        submit(g, RQ_SAY, "What is my dog called?", 0);
        settle(g, &b);
        digest[with] = engine_of(g)->own.ses.lane.rec.page_digest;
        backend_close(g);
        brought_free(&b);
    }
    assert_true(digest[0] != 0 && digest[0] == digest[1]);
}

/* ---- admission ------------------------------------------------------------------------------- */

static void test_a_prompt_that_cannot_fit_is_refused_and_the_others_go_on(void **state)
{
    (void)state;
    struct brought b = {0};
    struct engine_opts o = several_opts();
    char *long_ = words(60);
    o.full_pages = 24; /* the prompt fits the context, not the pool */
    o.lanes = 2;
    struct backend *g = serve_open(&o);
    const char *prompt[] = {"Hello!", long_, "What is a page?"};
    submit_batch(g, prompt, 3);
    settle(g, &b);
    assert_true(b.n_reply == 3 && b.batch_end.n_done == 2 && b.batch_reason == STOP_END);
    assert_true(b.reply[1].rec.refused && b.reply[1].reason == STOP_KV_FULL);
    assert_int_equal(b.reply[1].rec.n_computed, 0); /* it was not tried */
    assert_non_null(strstr(b.reply[1].text.p, "pages of the full pool"));
    for (int i = 0; i < 3; i += 2)
        assert_true(!b.reply[i].rec.refused && b.reply[i].reason == STOP_END);
    assert_whole(g);
    backend_close(g);
    free(long_);
    brought_free(&b);
}

/* Two prompts that fit one after the other, but not together: the second waits, nothing runs
 * twice. */
static void test_a_prompt_waits_until_its_pages_exist(void **state)
{
    (void)state;
    struct brought b = {0};
    struct engine_opts o = several_opts();
    char *text = words(20), *other = words(21);
    o.lanes = 2;
    o.settings.max_tokens = 8;
    o.settings.chunk = 16; /* a prompt that joins too early computes some of itself twice */
    for (int tight = 0; tight < 2; tight++) {
        o.full_pages = tight ? 16 : 0;
        struct backend *g = serve_open(&o);
        const char *prompt[] = {text, other + 5}; /* nothing in common to share */
        brought_clear(&b);
        submit_batch(g, prompt, 2);
        settle(g, &b);
        assert_int_equal(b.batch_end.n_done, 2);
        for (int i = 0; i < 2; i++) {
            assert_true(b.reply[i].rec.n_prompt > 8 * 16); /* more than half of the tight pool */
            assert_int_equal(b.reply[i].rec.n_computed, b.reply[i].rec.n_prompt);
        }
        backend_close(g);
    }
    free(text);
    free(other);
    brought_free(&b);
}

/* ---- stopping -------------------------------------------------------------------------------- */

static void test_a_stopped_batch_tells_what_is_finished(void **state)
{
    (void)state;
    struct brought b = {0};
    struct engine_opts o = several_opts();
    o.lanes = 2;
    o.settings.max_tokens = 0;
    struct backend *g = serve_open(&o);
    struct event ev;
    struct pools before, after;
    pools_take(g, &before);
    const char *prompt[] = {"Hello!", "count to one hundred", "count to one hundred", "Hello!"};
    submit_batch(g, prompt, 4);
    while (b.n_reply == 0) /* the first is complete: the others run or wait */
        if (backend_wait(g, &ev, 20)) {
            bring(&b, &ev);
            event_free(&ev);
        }
    backend_cancel(g);
    settle(g, &b);
    assert_true(b.batch_reason == STOP_CANCEL && b.n_batch_end == 1);
    assert_int_equal(b.reply[0].reason, STOP_END);
    assert_true(b.n_reply >= 2 && b.n_reply < 4 && b.batch_end.n_done == 1);
    assert_int_equal(b.reply[1].reason, STOP_CANCEL);
    assert_true(b.reply[1].tokens.n > 0 && b.reply[1].text.n > 0);
    pools_take(g, &after);
    assert_same_pools(&before, &after);
    ask(g, RQ_SAY, "Hello!", &b);
    assert_int_equal(b.reason[0], STOP_END);
    pools_free(&before);
    pools_free(&after);
    backend_close(g);
    brought_free(&b);
}

static void test_a_stopped_calibration_says_so(void **state)
{
    (void)state;
    struct brought b = {0};
    struct engine_opts o = several_opts();
    struct backend *g = serve_open(&o);
    hold(500);
    submit(g, RQ_CALIBRATE, NULL, 0);
    await_hold();
    backend_cancel(g);
    let_go();
    settle(g, &b);
    assert_true(b.n_calibration == 1 && b.calibration.stopped);
    assert_true(b.calibration.tokens == 0 && b.calibration.n_row == 0);
    brought_clear(&b);
    ask(g, RQ_CALIBRATE, NULL, &b);
    assert_true(b.n_calibration == 1 && !b.calibration.stopped && b.calibration.certain);
    assert_int_equal(b.calibration.best, 0);
    backend_close(g);
    brought_free(&b);
}

/* ---- the log --------------------------------------------------------------------------------- */

static void test_a_log_keeps_replies_and_calibrations_as_notices(void **state)
{
    (void)state;
    struct event ev = {.kind = EV_BATCH_REPLY, .seq = 7, .turn = 2, .reason = STOP_END,
                       .session = "s", .batch = {.index = 1, .count = 3, .n_tokens = 4}};
    buf_str(&ev.text, "Four tokens.");
    assert_true(event_to_log(&ev));
    assert_true(ev.kind == EV_NOTICE && ev.seq == 7 && ev.turn == 2);
    assert_string_equal(ev.session, "s");
    assert_string_equal(ev.text.p, "reply 2 of 3 (4 tokens, end): Four tokens.");
    event_free(&ev);
    struct event calib = {.kind = EV_CALIBRATION,
                          .calibration = xcalloc(1, sizeof *calib.calibration)};
    *calib.calibration = (struct calibration){.n_row = 2, .n_capture = 2, .tokens = 9, .best = 1,
                                              .certain = true};
    calib.calibration->row[1].boundary[0] = 3;
    calib.calibration->row[1].boundary[1] = 5;
    calib.calibration->row[1].agree = 8;
    struct event copy;
    event_copy(&copy, &calib);
    assert_true(copy.calibration != calib.calibration && copy.calibration->tokens == 9);
    event_free(&copy);
    assert_true(event_to_log(&calib) && calib.kind == EV_NOTICE && !calib.calibration);
    assert_string_equal(calib.text.p,
                        "calibration: boundaries 3,5 agree at 8 of 9 tokens, certainly the best");
    event_free(&calib);
    const enum event_kind gone[] = {EV_PREFILL, EV_BATCH_BEGIN, EV_BATCH_TEXT, EV_BATCH_END};
    for (int i = 0; i < 4; i++)
        assert_false(event_to_log(&(struct event){.kind = gone[i]}));
    assert_true(event_to_log(&(struct event){.kind = EV_OP}));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_replies_share_the_live_conversation),
        cmocka_unit_test(test_lanes_run_in_groups_where_the_buffers_are_small),
        cmocka_unit_test(test_shared_pages_count_their_holders_while_replies_run),
        cmocka_unit_test(test_turns_after_a_batch_find_the_same_pages),
        cmocka_unit_test(test_a_prompt_that_cannot_fit_is_refused_and_the_others_go_on),
        cmocka_unit_test(test_a_prompt_waits_until_its_pages_exist),
        cmocka_unit_test(test_a_stopped_batch_tells_what_is_finished),
        cmocka_unit_test(test_a_stopped_calibration_says_so),
        cmocka_unit_test(test_a_log_keeps_replies_and_calibrations_as_notices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
