/* test_load.c - engine_load(): what it reads, its notices, its errors, and that nothing is
 * leaked; engine_reopen(): another draft or model in the same engine, and the way back.
 */
#include "tests/few.h"
#include "tests/runtimes.h"

#include "engine/cycle/accept.h"
#include "engine/cycle/pools.h"
#include "engine/engine.h"
#include "engine/thread/load.h"

#include <limits.h>
#include <unistd.h>

#include "kernels/kernels.h"

#define NESTLING "models/nestling/target"
#define NESTLING_DRAFT "models/nestling/draft"
#define OTHER_DRAFT "tests/golden/eagle3-gptoss-a" /* a head for another model */

static void keep_line(void *arg, const char *line)
{
    buf_printf(arg, "%s\n", line);
}

static struct engine_opts opts(struct buf *notices)
{
    struct engine_opts o = {.model = NESTLING, .draft = NESTLING_DRAFT, .device = "cpu",
                            .threads = test_threads(), .notice = keep_line, .notice_arg = notices};
    settings_init(&o.settings);
    buf_str(notices, "");
    return o;
}

static void assert_empty(const struct loaded *l)
{
    static const struct loaded empty;
    assert_memory_equal(l, &empty, sizeof empty);
}

static void test_a_runtime_has_stop_ids_and_mask_of_what_was_loaded(void **state)
{
    (void)state;
    struct buf notices = {0};
    struct engine_opts o = opts(&notices);
    struct loaded l;
    struct err e = {0};
    struct runtime r;
    must(engine_load(&l, &o, LOAD_DEVICE | LOAD_TEXT, &e), &e);
    assert_true(l.has_draft && !l.draft_off && l.n_stop > 0);
    int32_t stop[MAX_STOP];
    assert_int_equal(chat_stops(l.chat, stop), l.n_stop);
    must(engine_runtime(&r, &l, &o, &e), &e);
    assert_int_equal(r.n_stop, l.n_stop);
    assert_memory_equal(r.stop, stop, (size_t)l.n_stop * sizeof *stop);
    assert_true((r.mask.p != NULL) == (l.mask != NULL));
    for (int i = 0; i < l.model.cfg.vocab; i++) {
        size_t n;
        assert_true((tok_bytes(l.tok, i, &n) == NULL) == (l.mask && l.mask[i]));
    }
    runtime_close(&r);
    engine_unload(&l);
    assert_empty(&l);
    assert_string_equal(notices.p, "");
    buf_free(&notices);
}

static void test_a_draft_that_does_not_fit_is_noticed_or_refused(void **state)
{
    (void)state;
    for (int required = 0; required < 2; required++) {
        struct buf notices = {0};
        struct engine_opts o = opts(&notices);
        struct loaded l;
        struct err e = {0};
        o.draft = OTHER_DRAFT;
        o.require_draft = required;
        if (engine_load(&l, &o, LOAD_DEVICE, &e)) {
            assert_false(required);
            assert_true(!l.has_draft && l.draft_off[0]);
            assert_int_equal(strncmp(notices.p, "drafting is off: ", 17), 0);
            assert_non_null(strstr(notices.p, l.draft_off));
            engine_unload(&l);
        } else {
            assert_true(required && e.kind == ERR_MODEL);
            assert_string_equal(notices.p, "");
            assert_empty(&l);
        }
        buf_free(&notices);
    }
}

static void test_parts_that_were_not_asked_for_are_not_opened(void **state)
{
    (void)state;
    struct buf notices = {0};
    struct engine_opts o = opts(&notices);
    struct loaded l;
    struct err e = {0};
    must(engine_load(&l, &o, LOAD_TEXT, &e), &e);
    assert_true(!l.dev.k && l.tok && l.chat);
    engine_unload(&l);
    o.device = "no such device";
    assert_false(engine_load(&l, &o, LOAD_TEXT | LOAD_DEVICE, &e));
    assert_non_null(strstr(e.msg, "\"no such device\"; expected auto, cpu or cuda"));
    assert_empty(&l);
    o.device = "cpu";
    o.model = "tests/golden/gptoss-a"; /* without a tokenizer */
    o.draft = NULL;
    must(engine_load(&l, &o, LOAD_DEVICE, &e), &e);
    assert_true(l.dev.k && !l.tok && !l.chat && l.n_stop == 0 && !l.mask);
    assert_string_equal(l.draft_off, "no draft head was given");
    engine_unload(&l);
    buf_free(&notices);
}

static void test_shapes_that_cannot_be_are_refused(void **state)
{
    (void)state;
    static const struct { int page_size, context, full, swa, lanes,
                          rows; const char *says; } bad[] = {
        {3, 0, 0, 0, 0, 0, "page size 3"}, {128, 0, 0, 0, 0, 0, "page size 128"},
        {-16, 0, 0, 0, 0, 0, "page size -16"},
        {16, 15, 0, 0, 0, 0, "a context of 15 tokens"},
        {16, -1, 0, 0, 0, 0, "a context of -1 tokens"},
        {16, 0, 3, 0, 0, 0, "at least 4 pages"}, {16, 0, 0, 2, 0, 0, "at least 4 pages"},
        {16, 0, 0, -5, 0, 0, "at least 4 pages"},
        /* products that do not fit an int: of flags, and of a log that is replayed */
        {64, 0, 1 << 25, 0, 0, 0, "the full pool would have 33554432 pages of 64 tokens: "
                                  "expected at most 2147483647"},
        {64, 0, 1 << 28, 0, 0, 0, "the full pool would have 268435456 pages of 64 tokens"},
        {16, 0, 0, 1 << 28, 0, 0, "the swa pool would have 268435456 pages of 16 tokens"},
        {16, 0, 0, 0, INT32_MAX, 0, "65 conversations at once: expected at most 64"},
        {16, 0, 0, 0, 1 << 25, 0, "65 conversations at once"},
        {16, 0, 0, 0, 0, INT32_MAX, "2147483647 rows of a pass"},
        {16, 0, 0, 0, 0, -1, "-1 rows of a pass"}};
    struct buf notices = {0};
    struct engine_opts o = opts(&notices);
    struct loaded l;
    struct err e = {0};
    must(engine_load(&l, &o, LOAD_DEVICE, &e), &e);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct runtime r;
        o.page_size = bad[i].page_size;
        o.context = bad[i].context;
        o.full_pages = bad[i].full;
        o.swa_pages = bad[i].swa;
        o.lanes = bad[i].lanes;
        o.rows = bad[i].rows;
        assert_false(engine_runtime(&r, &l, &o, &e));
        assert_non_null(strstr(e.msg, bad[i].says));
        assert_int_equal(e.kind, ERR_USAGE);
    }
    /* sizes that an int holds, and memory perhaps does not */
    struct kv_shape k;
    const struct runtime_shape s = {.page_size = 1, .context = 64, .full_pages = INT32_MAX,
                                    .swa_pages = INT32_MAX};
    uint64_t memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    bool fits = pools_shape(&s, &l.model, NULL, &k, &e);
    assert_true(kv_bytes(&k) > UINT64_C(32) * INT32_MAX);
    assert_int_equal(fits, kv_bytes(&k) <= memory);
    assert_true(fits || strstr(e.msg, "GiB of memory, the machine has"));
    engine_unload(&l);
    buf_free(&notices);
}

/* Of a draft with an end token in it, a lane that runs on takes all, another one that token. */
static void end_in_draft(struct runtime *r, struct lane *lane, bool on)
{
    static struct outcome out;
    struct err e = {0};
    struct tree t;
    int32_t chosen[3] = {8, 6, 7};
    r->n_stop = 1;
    r->stop[0] = chosen[0];
    lane->run_on = on;
    tree_init(&t, 5);
    for (int i = 0; i < 2; i++)
        tree_add(&t, i, chosen[i], 0.5f, -1);
    must(accept_tree(r, lane, &t, 9, chosen, NULL, &out, &e), &e);
    assert_int_equal(out.n_new, on ? 3 : 1);
}

/* Runs a prompt and two steps of two lanes. */
static void run_two_lanes(struct runtime *r)
{
    struct err e = {0};
    struct lane lane[2] = {{.tap_row = -1, .run_on = true}, {.tap_row = -1}},
        *live[2] = {&lane[0], &lane[1]};
    struct step_limits lim[2] = {{9}, {9}};
    for (int i = 0; i < 200; i++)
        ids_add(&lane[0].tok, i % r->model->cfg.vocab);
    must(lane_extend(r, &lane[0], lane[0].tok.n, true, false, 1, &e), &e);
    lane_park(r, &lane[0]);
    lane_fork(r, &lane[0], &lane[1]);
    for (int i = 0; i < 2; i++)
        must(lane_step(r, live, lim, 2, NULL, &e), &e);
    for (int i = 0; i < 2; i++)
        end_in_draft(r, &lane[i], i == 0);
    /* a prompt goes on from a lane where at least one of its tokens is not computed */
    struct ids prompt = {.v = lane[0].tok.v, .n = lane[0].seq.committed};
    assert_false(lane_continues(r, &lane[0], &prompt, false));
    prompt.n++;
    assert_true(prompt.n <= lane[0].tok.n && lane_continues(r, &lane[0], &prompt, false));
    const struct seq *const all[2] = {&lane[0].seq, &lane[1].seq};
    must(kv_check(&r->kv, all, 2, &e), &e);
    for (int i = 0; i < 2; i++)
        lane_free(r, &lane[i]);
}

/* Windows that config.json may give: the first one made the pages of 17 windows, in tokens, wrap
 * around an int. */
static void test_a_sliding_pool_is_no_larger_than_the_context_needs(void **state)
{
    (void)state;
    static const int windows[] = {171798464, 1 << 24, 1 << 30, 257, 256, 64};
    for (int i = 0; i < 12; i++) {
        struct buf notices = {0};
        struct engine_opts o = opts(&notices);
        struct loaded l;
        struct runtime r;
        struct err e = {0};
        must(engine_load(&l, &o, LOAD_DEVICE, &e), &e);
        l.model.cfg.window = windows[i / 2];
        l.model.cfg.max_pos = 1 << 30;
        for (int k = 0; k < l.model.cfg.n_layer; k++)
            if (l.model.layer[k].window)
                l.model.layer[k].window = l.model.cfg.window;
        o.page_size = i % 2 ? 16 : 1;
        o.context = 256;
        o.lanes = 1;
        must(engine_runtime(&r, &l, &o, &e), &e);
        assert_true(r.kv.pool[POOL_SWA].total <= r.kv.pool[POOL_FULL].total);
        assert_int_equal(r.kv.mem[POOL_SWA].slots, r.kv.pool[POOL_SWA].total * r.kv.page_size);
        run_two_lanes(&r);
        runtime_close(&r);
        engine_unload(&l);
        buf_free(&notices);
    }
}

/* ---- opening again ---- */

static int refused_from = INT_MAX, refused_to; /* calls of alloc(), counted from now on */

static kbuf refusing_alloc(struct kdev *d, size_t bytes, const char *what, struct err *e)
{
    refused_to--;
    if (refused_from-- > 0 || refused_to < 0)
        return kernels_cpu.alloc(d, bytes, what, e);
    err_set(e, ERR_MODEL, "no memory for %s", what);
    return (kbuf){0};
}

/* Says a message in a new session; returns the digest of the reply's ids. */
static uint64_t say(struct backend *b, const char *text)
{
    struct request rq = {.kind = RQ_NEW, .session = "01ARZ3NDEKTSV4RRFFQ69G5FAV"};
    struct event ev;
    struct err e = {0};
    struct ids reply = {0};
    must(backend_submit(b, &rq, &e), &e);
    rq = (struct request){.kind = RQ_SAY, .text = xstrdup(text)};
    must(backend_submit(b, &rq, &e), &e);
    for (bool ended = false; !ended;) {
        assert_true(backend_wait(b, &ev, 60000));
        if (ev.kind == EV_STEP && ev.rec.kind != STEP_PREFILL)
            ids_cat(&reply, ev.tokens.v, ev.tokens.n);
        ended = ev.kind == EV_TURN_END;
        assert_int_not_equal(ev.kind, EV_FAULT);
        event_free(&ev);
    }
    while (backend_busy(b))
        usleep(100);
    assert_true(reply.n > 0);
    uint64_t digest = hash64(reply.v, (size_t)reply.n * sizeof *reply.v, 0);
    ids_free(&reply);
    return digest;
}

static bool at_once(void *arg)
{
    (void)arg;
    return true;
}

static int turns_said(struct backend *b)
{
    struct request rq;
    backend_said(b, &rq);
    int n = rq.n_past;
    request_free(&rq);
    return n;
}

static void test_an_engine_is_opened_again_with_another_draft_or_model(void **state)
{
    (void)state;
    struct kernels refusing = kernels_cpu;
    struct engine_opts now = {.model = NESTLING, .draft = NESTLING_DRAFT, .device = "cpu",
                              .threads = test_threads(), .backend = &refusing}, o;
    struct err e = {0};
    refusing.alloc = refusing_alloc;
    settings_init(&now.settings);
    struct backend *b = engine_open(&now, &e);
    if (!b)
        fail_msg("%s", e.msg);
    uint64_t reply = say(b, "My dog is called Rex.");

    /* refused before anything is closed: the session goes on */
    static const struct { const char *model, *draft; } wrong[] = {
        {NESTLING, OTHER_DRAFT}, {NESTLING, "no such draft"}, {NESTLING, "tests"},
        {"tests/golden/gptoss-a", NULL}, {"tests", NULL}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        o = now;
        o.model = wrong[i].model;
        o.draft = wrong[i].draft;
        assert_int_equal(engine_reopen(b, &now, &o, &e), REOPEN_KEPT);
        assert_true(e.kind == ERR_MODEL && e.msg[0]);
        assert_int_equal(turns_said(b), 1);
        assert_string_equal(backend_info(b)->draft_kind, "eagle3");
    }

    /* other drafts, the same replies */
    static const char *const draft[] = {"ngram", NULL, NESTLING_DRAFT, "ngram"};
    for (size_t i = 0; i < sizeof draft / sizeof *draft; i++) {
        o = now;
        o.draft = draft[i];
        assert_int_equal(engine_reopen(b, &now, &o, &e), REOPEN_DONE);
        assert_true(!draft[i] == !backend_info(b)->draft_dir);
        assert_true(!draft[i] || !strcmp(backend_info(b)->draft_dir, draft[i]));
        assert_int_equal(turns_said(b), 0);
        assert_true(say(b, "My dog is called Rex.") == reply);
        now = o;
    }

    /* no memory for the new runtime: the old one is opened again */
    o.draft = NESTLING_DRAFT;
    refused_from = 3;
    refused_to = 4;
    assert_int_equal(engine_reopen(b, &now, &o, &e), REOPEN_EMPTIED);
    assert_non_null(strstr(e.msg, "no memory for"));
    assert_string_equal(backend_info(b)->draft_kind, "ngram");
    assert_true(say(b, "My dog is called Rex.") == reply);

    /* another model, on the same device */
    refused_from = INT_MAX;
    o.model = "models/nestling/../nestling/target";
    assert_int_equal(engine_reopen(b, &now, &o, &e), REOPEN_DONE);
    assert_string_equal(backend_info(b)->model_dir, o.model);
    assert_string_equal(backend_info(b)->draft_kind, "eagle3");
    assert_true(say(b, "My dog is called Rex.") == reply);
    now = o;
    o.model = NESTLING;
    o.stop = at_once;
    assert_int_equal(engine_reopen(b, &now, &o, &e), REOPEN_EMPTIED);
    assert_non_null(strstr(e.msg, "stopped"));
    assert_string_equal(backend_info(b)->model_dir, now.model);
    assert_true(say(b, "My dog is called Rex.") == reply);

    /* neither the new one nor the old one */
    o.stop = NULL;
    refused_from = 0;
    refused_to = INT_MAX;
    assert_int_equal(engine_reopen(b, &now, &o, &e), REOPEN_FAILED);
    refused_from = INT_MAX;
    backend_close(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_runtime_has_stop_ids_and_mask_of_what_was_loaded),
        cmocka_unit_test(test_a_draft_that_does_not_fit_is_noticed_or_refused),
        cmocka_unit_test(test_parts_that_were_not_asked_for_are_not_opened),
        cmocka_unit_test(test_shapes_that_cannot_be_are_refused),
        cmocka_unit_test(test_a_sliding_pool_is_no_larger_than_the_context_needs),
        cmocka_unit_test(test_an_engine_is_opened_again_with_another_draft_or_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
