/* test_faults.c - the engine on a device that is too small, or that fails and stays lost. (With a
 * face: test_fault_faces.c.) */
#include "tests/few.h"
#include "tests/scratch.h"
#include "tests/spy_kit.h"

/* ---- a model that does not fit --------------------------------------------------------------- */

static void spy_bed(struct bed *b)
{
    struct err e = {0};
    const struct device_opts w = {.threads = test_threads(), .precision = "f32",
                                  .table = new_spy(false)};
    *b = (struct bed){0};
    must(device_choose(&b->dev, &w, NULL, &e), &e);
    bed_load(b, NESTLING, NESTLING_DRAFT);
}

/* Bytes of the cells that the layers of a pool own. */
static size_t cell_bytes(const struct net *n, enum pool_id pool)
{
    size_t bytes = 0;
    for (int l = 0; l < n->m->cfg.n_layer; l++)
        if (n->m->layer[l].kv_src == l && (n->m->layer[l].window ? POOL_SWA : POOL_FULL) == pool)
            bytes += n->cells[l].k.n + n->cells[l].v.n;
    return bytes;
}

static void test_what_is_counted_is_what_is_taken(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct bed b;
        struct runtime_shape s = {.page_size = 16, .context = i ? 4096 << i : 64, .lanes = i + 1,
                                  .max_rows = i == 3 ? 2048 : 0};
        spy_bed(&b);
        spy.holds = true;
        struct need n = fit_need(b.dev, &b.m, i == 2 ? NULL : &b.d, &s, false);
        assert_int_equal(spy.n_alloc, 0);
        struct err e = {0};
        must(runtime_open(&b.r, b.dev, &b.m, i == 2 ? NULL : &b.d, &s, &e), &e);
        assert_true(n.weights >= b.m.bytes && (i == 2 ? !n.draft : n.draft >= b.d.bytes));
        for (int p = POOL_FULL; p <= POOL_SWA; p++) {
            size_t cells = cell_bytes(&b.r.net, (enum pool_id)p);
            assert_true(cells && n.cells[p] >= cells && n.cells[p] < cells + ((size_t)64 << 20));
        }
        assert_true(i == 2 ? !n.cells[POOL_DRAFT] : n.cells[POOL_DRAFT] > 0);
        assert_true(need_sum(&n) >= spy.taken);
        assert_true(need_sum(&n) <= spy.taken + (size_t)spy.n_alloc * ((size_t)2 << 20));
        /* weights that are there: counted as what the runtime takes, not as what it needs more */
        struct need has = fit_need(b.dev, &b.m, i == 2 ? NULL : &b.d, &s, true);
        struct need more = fit_need(b.dev, &b.m, i == 2 ? NULL : &b.d, &s, false);
        assert_memory_equal(&has, &n, sizeof n);
        assert_true(!more.weights && !more.draft && more.work == n.work);
        bed_close(&b);
    }
}

/* The number behind `before` in the message. */
static int number_after(const char *msg, const char *before)
{
    const char *at = strstr(msg, before);
    if (!at)
        fail_msg("\"%s\" does not say %s", msg, before);
    return atoi(at + strlen(before));
}

static bool opens(struct bed *b, struct draft *d, const struct runtime_shape *s, struct err *e)
{
    struct runtime_shape fitting = *s;
    *e = (struct err){0};
    b->r = (struct runtime){0};
    bool ok = fit_shape(b->dev, &b->m, d, &fitting, e) &&
              runtime_open(&b->r, b->dev, &b->m, d, &fitting, e);
    runtime_close(&b->r);
    return ok;
}

static void test_too_long_a_context_is_told_the_one_that_fits(void **state)
{
    (void)state;
    struct bed b;
    struct err e;
    struct runtime_shape s = {.page_size = 16, .context = 1 << 20};
    spy_bed(&b);
    small((size_t)1 << 30);
    assert_false(opens(&b, &b.d, &s, &e));
    assert_int_equal(e.kind, ERR_MODEL);
    assert_int_equal(spy.n_alloc, 0); /* nothing was touched */
    assert_non_null(strstr(e.msg, "KV cells of 1048576 tokens"));
    assert_non_null(strstr(e.msg, "1.0 GiB are free"));
    assert_null(strchr(e.msg, '\n'));
    int n = number_after(e.msg, "--context ");
    assert_true(n > 512 && n < s.context);
    s.context = n;
    assert_true(opens(&b, &b.d, &s, &e));
    s.context = n + 256;
    assert_false(opens(&b, &b.d, &s, &e));
    s.context = 1 << 20;
    s.shorten = true;
    must(fit_shape(b.dev, &b.m, &b.d, &s, &e) && runtime_open(&b.r, b.dev, &b.m, &b.d, &s, &e), &e);
    assert_int_equal(b.r.context, n);
    bed_close(&b);
}

static void test_other_ways_out_are_told_too(void **state)
{
    (void)state;
    struct bed b;
    struct err e;
    struct runtime_shape s = {.page_size = 16, .context = 1024, .full_pages = 1 << 16};
    spy_bed(&b);
    small((size_t)800 << 20);
    assert_false(opens(&b, &b.d, &s, &e));
    s.full_pages = number_after(e.msg, "--full-pages ");
    assert_true(opens(&b, &b.d, &s, &e));
    s.full_pages = 0;
    s.context = 512; /* the shortest that is proposed */
    struct need with = fit_need(b.dev, &b.m, &b.d, &s, false);
    struct need without = fit_need(b.dev, &b.m, NULL, &s, false);
    small(((size_t)384 << 20) + (need_sum(&with) + need_sum(&without)) / 2);
    if (opens(&b, &b.d, &s, &e))
        fail_msg("the draft needs nothing");
    assert_non_null(strstr(e.msg, "it fits without the draft"));
    small(((size_t)384 << 20) + with.weights / 4);
    s.shorten = true;
    assert_false(opens(&b, &b.d, &s, &e));
    assert_non_null(strstr(e.msg, "the model's weights need"));
    assert_non_null(strstr(e.msg, "no context fits; --device cpu needs none"));
    bed_close(&b);
}

/* Weights that do not fit as they are stored: FP8 is proposed where it fits, with the context that
 * then fits, and what is proposed opens. */
static void test_weights_that_fit_as_fp8_only(void **state)
{
    (void)state;
    struct bed b;
    struct err e;
    struct runtime_shape s = {.page_size = 16, .context = 4096}, least = s;
    least.context = 512;
    spy_bed(&b);
    small((size_t)8 << 30);
    assert_true(models_mark(&b.m, NULL, true) > 0);
    struct need part = fit_need(b.dev, &b.m, NULL, &least, false);
    struct need all = fit_need(b.dev, &b.m, NULL, &s, false);
    models_mark(&b.m, NULL, false);
    struct need stored = fit_need(b.dev, &b.m, NULL, &s, false);
    assert_true(need_sum(&all) < need_sum(&stored) && part.weights < stored.weights);
    small(((size_t)384 << 20) + need_sum(&all));
    assert_false(opens(&b, NULL, &s, &e));
    assert_non_null(strstr(e.msg, "or --weights fp8 fits"));
    assert_non_null(strstr(e.msg, "--context "));
    small(((size_t)384 << 20) + (need_sum(&part) + need_sum(&all)) / 2);
    spy.left -= (size_t)1 << 20;
    assert_false(opens(&b, NULL, &s, &e));
    print_message("# %s\n", e.msg);
    for (int l = 0; l < b.m.cfg.n_layer; l++)
        assert_false(b.m.layer[l].wq.quantize); /* only asked */
    s.context = number_after(e.msg, "--context ");
    if (strstr(e.msg, "--weights fp8 with"))
        models_mark(&b.m, NULL, true);
    assert_true(opens(&b, NULL, &s, &e));
    models_mark(&b.m, NULL, true); /* quantized already: FP8 is no way out */
    s.context = 1 << 20;
    assert_false(opens(&b, NULL, &s, &e));
    assert_null(strstr(e.msg, "fp8"));
    bed_close(&b);
}

/* Without the weights themselves: their headers, or the config alone. */
static void test_headers_and_config_tell_what_a_model_takes(void **state)
{
    (void)state;
    struct bed b;
    struct err e = {0};
    struct model m;
    struct draft d;
    struct buf config = {0};
    const struct loading how = {.use = READ_HEADERS};
    struct runtime_shape s = {.page_size = 16, .context = 4096, .lanes = 3};
    spy_bed(&b);
    struct need want = fit_need(b.dev, &b.m, &b.d, &s, false), got;
    must(model_load(&m, NESTLING, &how, &e), &e);
    must(draft_load(&d, NESTLING_DRAFT, &m, NULL, &how, &e), &e);
    assert_null(m.layer[0].wq.data);
    assert_int_equal(m.bytes, b.m.bytes);
    assert_string_equal(m.sha, "");
    assert_string_equal(m.layer[1].wq.name, b.m.layer[1].wq.name);
    got = fit_need(b.dev, &m, &d, &s, false);
    assert_memory_equal(&got, &want, sizeof got);
    draft_free(&d);
    model_free(&m);
    must(buf_read_file(&config, NESTLING "/config.json", 1 << 20, &e), &e);
    must(model_shaped(&m, config.p, &e), &e);
    want = fit_need(b.dev, &b.m, NULL, &s, false);
    got = fit_need(b.dev, &m, NULL, &s, false);
    assert_memory_equal(&got, &want, sizeof got);
    model_free(&m);
    buf_free(&config);
    bed_close(&b);
}

/* A head that is the embedding is counted, and quantized, once. */
static void test_headers_of_a_draft_whose_head_is_its_embedding(void **state)
{
    (void)state;
    static const char target[] = "tests/golden/gemma4-a";
    static const char draft[] = "tests/golden/gemma4-a-assistant";
    struct bed b = {0};
    struct err e = {0};
    struct model m;
    struct draft d;
    const struct loading how = {.use = READ_HEADERS};
    struct runtime_shape s = {.page_size = 16, .context = 256};
    const struct device_opts w = {.threads = 1, .precision = "f32", .table = new_spy(false)};
    must(device_choose(&b.dev, &w, NULL, &e), &e);
    bed_load(&b, target, draft);
    must(model_load(&m, target, &how, &e), &e);
    must(draft_load(&d, draft, &m, NULL, &how, &e), &e);
    assert_true(d.cfg.tied && b.d.head.data == b.d.embed.data);
    for (int fp8 = 0; fp8 < 2; fp8++) {
        assert_int_equal(models_mark(&m, &d, fp8), models_mark(&b.m, &b.d, fp8));
        struct need want = fit_need(b.dev, &b.m, &b.d, &s, false);
        struct need got = fit_need(b.dev, &m, &d, &s, false);
        assert_memory_equal(&got, &want, sizeof got);
    }
    draft_free(&d);
    model_free(&m);
    bed_close(&b);
}

/* On a device that just holds the engine another draft or another model takes the place of the
 * present one; what is too large leaves everything as it was, or as if opened anew. */
static void test_a_full_device_takes_another_draft_or_model(void **state)
{
    (void)state;
    struct err e = {0};
    struct answer a = {0};
    new_spy(false);
    spy.holds = true;
    spy.total = spy.room = (size_t)80 << 30;
    struct engine_opts now = spy_opts(), o;
    now.context = 512;
    struct backend *g = engine_open(&now, &e);
    must(g != NULL, &e);
    struct need n = backend_info(g)->need;
    assert_true(n.draft > (size_t)1 << 20 && n.weights > (size_t)8 << 20);
    spy.room = ((size_t)384 << 20) + need_sum(&n) + ((size_t)1 << 20);

    o = now;
    o.draft = "models/nestling/../nestling/draft";
    must(engine_reopen(g, &now, &o, &e) == REOPEN_DONE, &e);
    now = o;
    o.draft = NULL;
    must(engine_reopen(g, &now, &o, &e) == REOPEN_DONE, &e);
    assert_int_equal(backend_info(g)->need.draft, 0);
    must(engine_reopen(g, &o, &now, &e) == REOPEN_DONE, &e);
    o = now;
    o.draft = NESTLING_DRAFT;
    o.context = 1 << 14;
    assert_int_equal(engine_reopen(g, &now, &o, &e), REOPEN_EMPTIED);
    assert_non_null(strstr(e.msg, "of GPU memory"));
    assert_string_equal(backend_info(g)->draft_dir, now.draft);
    ask(g, RQ_SAY, "hello", &a);
    assert_true(a.ended && a.reason <= STOP_MAX && !a.n_fault && a.n_steps > 0);

    o = now;
    o.model = "models/nestling/../nestling/target";
    must(engine_reopen(g, &now, &o, &e) == REOPEN_DONE, &e);
    spy.scale = 8;
    assert_int_equal(engine_reopen(g, &o, &now, &e), REOPEN_KEPT);
    assert_non_null(strstr(e.msg, "are there without the present model"));
    spy.scale = 1;
    ask(g, RQ_SAY, "hello", &a);
    assert_true(a.ended && !a.n_fault);
    answer_free(&a);
    backend_close(g);
    assert_int_equal(spy.taken, 0);
}

static void test_a_look_says_the_longest_context(void **state)
{
    (void)state;
    struct bed b;
    struct err e = {0};
    struct fit f;
    struct runtime_shape s = {.page_size = 16, .context = 4096}, less = s;
    spy_bed(&b);
    small((size_t)8 << 30);
    must(fit_look(b.dev, &b.m, &b.d, &s, &f, &e), &e);
    assert_true(f.fits && f.own && !f.how[0]);
    assert_int_equal(f.longest, b.m.cfg.max_pos);
    assert_true(f.kv[KV_F32] > f.kv[KV_BF16] && f.kv[KV_BF16] > f.kv[KV_FP8]);
    less.context = 1024;
    struct need part = fit_need(b.dev, &b.m, &b.d, &less, false);
    small(((size_t)384 << 20) + (need_sum(&part) + need_sum(&f.need)) / 2);
    must(fit_look(b.dev, &b.m, &b.d, &s, &f, &e), &e);
    assert_true(!f.fits && f.longest >= 1024 && f.longest < 4096);
    assert_int_equal(number_after(f.how, "--context "), f.longest);
    s.context = f.longest;
    assert_true(opens(&b, &b.d, &s, &e));
    s.context = f.longest + 256;
    assert_false(opens(&b, &b.d, &s, &e));
    assert_non_null(strstr(e.msg, "aerie fit"));
    s.page_size = 3;
    assert_false(fit_look(b.dev, &b.m, &b.d, &s, &f, &e));
    bed_close(&b);
}

static void test_an_engine_shortens_a_context_that_nobody_asked_for(void **state)
{
    (void)state;
    struct err e = {0};
    struct answer a = {0};
    new_spy(false);
    struct engine_opts o = spy_opts();
    struct backend *g = engine_open(&o, &e);
    must(g != NULL, &e);
    assert_int_equal(backend_info(g)->context, 4096);
    backend_close(g);
    struct bed b;
    spy_bed(&b);
    struct runtime_shape s = {.page_size = 16, .context = 4096}, less = s;
    less.context = 1024;
    struct need full = fit_need(b.dev, &b.m, &b.d, &s, false);
    struct need part = fit_need(b.dev, &b.m, &b.d, &less, false);
    bed_close(&b);
    new_spy(false);
    small(((size_t)384 << 20) + (need_sum(&full) + need_sum(&part)) / 2);
    g = engine_open(&o, &e);
    must(g != NULL, &e);
    int n = backend_info(g)->context;
    assert_true(n >= 512 && n < 4096);
    ask(g, RQ_SAY, "Hello!", &a);
    assert_int_equal(a.reason, STOP_END);
    assert_int_equal(number_after(a.notices.p, "the context is "), n);
    backend_close(g);
    o.context = 4096; /* asked for: it is that or nothing */
    g = engine_open(&o, &e);
    assert_null(g);
    assert_int_equal(e.kind, ERR_MODEL);
    assert_int_equal(number_after(e.msg, "--context "), n);
    answer_free(&a);
}

/* After `waits` waits the device is gone: what was said before stands, the rest does not come. */
static void one_loss(bool queued, int waits, int gets, const struct answer *healthy)
{
    struct err e = {0};
    struct answer a = {0};
    new_spy(queued);
    struct engine_opts o = spy_opts();
    struct backend *g = engine_open(&o, &e);
    must(g != NULL, &e);
    ask(g, RQ_NEW, NULL, &a);
    spy.waits = waits;
    spy.gets = gets;
    ask(g, RQ_SAY, "count to twenty", &a);
    assert_true(a.ended && a.lost && a.n_fault == 1);
    assert_int_equal(a.reason, STOP_DEVICE);
    assert_int_equal(a.fault, ERR_MODEL);
    assert_string_equal(a.faults.p, "the device failed: " STICKY);
    assert_true(a.text.n < healthy->text.n && a.tokens.n < healthy->tokens.n);
    assert_true(a.text.n == 0 || memcmp(a.text.p, healthy->text.p, a.text.n) == 0);
    assert_true(a.tokens.n == 0 || memcmp(a.tokens.v, healthy->tokens.v,
                                          (size_t)a.tokens.n * sizeof *a.tokens.v) == 0);
    assert_true(waits < 0 || (a.n_steps > 0) == (waits > 0));
    ask(g, RQ_SAY, "and again", &a);
    assert_true(a.lost && a.n_fault == 1 && !a.ended);
    backend_close(g);
    answer_free(&a);
}

static void test_a_lost_device_ends_the_turn_and_keeps_what_was_said(void **state)
{
    (void)state;
    for (int queued = 0; queued < 2; queued++) {
        struct err e = {0};
        struct answer a = {0};
        new_spy(queued);
        struct engine_opts o = spy_opts();
        struct backend *g = engine_open(&o, &e);
        must(g != NULL, &e);
        ask(g, RQ_SAY, "count to twenty", &a);
        assert_true(a.n_fault == 0 && a.n_steps > 6);
        backend_close(g);
        for (int n = 0; n < 8; n++) {
            if (n < 6)
                one_loss(queued, n, -1, &a);
            one_loss(queued, -1, queued ? n : 3 * n, &a); /* single passes copy more */
        }
        answer_free(&a);
    }
}

static void test_a_violated_rule_and_short_memory_leave_the_engine_alive(void **state)
{
    (void)state;
    struct err e = {0};
    struct answer a = {0};
    new_spy(false);
    struct engine_opts o = spy_opts();
    struct backend *g = engine_open(&o, &e);
    must(g != NULL, &e);
    ask(g, RQ_SET, "bug.16267=on", &a);
    ask(g, RQ_SAY, "Hello!", &a);
    assert_true(a.n_fault == 1 && !a.lost);
    assert_int_equal(a.fault, ERR_INVARIANT);
    assert_int_equal(a.reason, STOP_FAULT);
    ask(g, RQ_SET, "bug.16267=off", &a);
    ask(g, RQ_NEW, NULL, &a);
    spy.refuse = "plan";
    ask(g, RQ_SAY, "Hello!", &a);
    assert_true(a.n_fault == 1 && !a.lost);
    assert_int_equal(a.fault, ERR_MODEL);
    assert_int_equal(a.reason, STOP_FAULT);
    ask(g, RQ_SAY, "Hello!", &a);
    assert_int_equal(a.reason, STOP_END);
    backend_close(g);
    answer_free(&a);
}

/* ---- a long prompt that is stopped ----------------------------------------------------------- */

static char *long_prompt(void)
{
    struct buf b = {0};
    for (int i = 0; i < 300; i++)
        buf_printf(&b, "This is line %d. ", i);
    return b.p;
}

/* Cancels at the first chunk that is reported; only the one under way may still come to its end. */
static void stop_early(struct backend *g, struct answer *a)
{
    struct err e = {0};
    struct request rq = {.kind = RQ_SAY, .text = long_prompt()};
    struct event ev;
    uint64_t stopped = 0;
    int done = 0, total = 0, late = 0;
    must(backend_submit(g, &rq, &e), &e);
    while (!a->ended) {
        if (!backend_wait(g, &ev, 1000))
            continue;
        take(a, &ev);
        if (ev.kind == EV_PREFILL) {
            late += stopped && ev.ns > stopped;
            done = ev.done;
            total = ev.total;
            if (!stopped) {
                backend_cancel(g);
                stopped = clock_ns();
            }
        }
        event_free(&ev);
    }
    assert_true(done < total && late <= 1);
    while (backend_busy(g)) /* EV_TURN_END is posted before the session is put back */
        usleep(1000);
}

static void test_a_long_prompt_stops_between_chunks_and_leaves_the_session_usable(void **state)
{
    (void)state;
    for (int queued = 0; queued < 2; queued++) {
        struct err e = {0};
        struct answer a = {0};
        struct check_report report;
        struct chat_view v;
        struct pool_view pool[N_POOLS];
        new_spy(queued);
        struct engine_opts o = spy_opts();
        o.settings.chunk = 32;
        struct backend *g = engine_open(&o, &e);
        must(g != NULL, &e);
        ask(g, RQ_NEW, NULL, &a);
        ask(g, RQ_SAY, "Hello!", &a);
        backend_chat(g, &v);
        g->pools->ledger(g, pool);
        int length = v.length, used = pool[POOL_FULL].used;
        answer_free(&a);
        stop_early(g, &a);
        assert_int_equal(a.reason, STOP_CANCEL);
        assert_true(a.n_fault == 0 && a.text.n == 0 && a.n_steps > 0);
        must(g->check->sweep(g, &report, &e), &e);
        backend_chat(g, &v); /* the conversation is where it was, and so are the pages */
        g->pools->ledger(g, pool);
        assert_true(v.length == length && pool[POOL_FULL].used <= used + 1);
        ask(g, RQ_SAY, "Hello!", &a);
        assert_int_equal(a.reason, STOP_END);
        assert_true(a.text.n > 0);
        backend_close(g);
        answer_free(&a);
    }
}

/* One chunk as long as the prompt: the pass itself is left, between two layers. */
static void test_a_long_chunk_stops_between_layers(void **state)
{
    (void)state;
    struct err e = {0};
    struct answer a = {0};
    struct check_report report;
    new_spy(false);
    spy.k.attn = spy_attn;
    struct engine_opts o = spy_opts();
    o.settings.chunk = 4096;
    struct backend *g = spy.engine = engine_open(&o, &e);
    must(g != NULL, &e);
    char *text = long_prompt();
    spy.cancel_at = 3;
    ask(g, RQ_SAY, text, &a);
    assert_int_equal(a.reason, STOP_CANCEL);
    assert_true(a.n_steps == 0 && a.n_fault == 0 && spy.cancel_at == 0);
    must(g->check->sweep(g, &report, &e), &e);
    ask(g, RQ_SAY, "Hello!", &a);
    assert_int_equal(a.reason, STOP_END);
    backend_close(g);
    free(text);
    answer_free(&a);
}

static void test_the_chunk_suits_the_device_unless_it_is_given(void **state)
{
    (void)state;
    static const struct {
        bool queued;
        int given, want;
    } cases[] = {{false, 0, 256}, {true, 0, 2048}, {true, 300, 300}, {false, 4096, 4096}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err e = {0};
        struct answer a = {0};
        struct chat_view v;
        new_spy(cases[i].queued);
        struct engine_opts o = spy_opts();
        o.settings.chunk = cases[i].given;
        struct backend *g = engine_open(&o, &e);
        must(g != NULL, &e);
        char *text = long_prompt();
        ask(g, RQ_SAY, text, &a);
        assert_true(a.n_prompt > 2048);
        assert_int_equal(a.n_prefill, div_up(a.n_prompt, cases[i].want));
        backend_chat(g, &v);
        assert_int_equal(v.settings.chunk, cases[i].want);
        ask(g, RQ_SET, "chunk=0", &a);
        backend_chat(g, &v);
        assert_int_equal(v.settings.chunk, cases[i].queued ? 2048 : 256);
        free(text);
        backend_close(g);
        answer_free(&a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_counted_is_what_is_taken),
        cmocka_unit_test(test_too_long_a_context_is_told_the_one_that_fits),
        cmocka_unit_test(test_other_ways_out_are_told_too),
        cmocka_unit_test(test_weights_that_fit_as_fp8_only),
        cmocka_unit_test(test_headers_and_config_tell_what_a_model_takes),
        cmocka_unit_test(test_headers_of_a_draft_whose_head_is_its_embedding),
        cmocka_unit_test(test_a_full_device_takes_another_draft_or_model),
        cmocka_unit_test(test_a_look_says_the_longest_context),
        cmocka_unit_test(test_an_engine_shortens_a_context_that_nobody_asked_for),
        cmocka_unit_test(test_a_lost_device_ends_the_turn_and_keeps_what_was_said),
        cmocka_unit_test(test_a_violated_rule_and_short_memory_leave_the_engine_alive),
        cmocka_unit_test(test_a_long_prompt_stops_between_chunks_and_leaves_the_session_usable),
        cmocka_unit_test(test_a_long_chunk_stops_between_layers),
        cmocka_unit_test(test_the_chunk_suits_the_device_unless_it_is_given),
    };
    char *state = scratch_folder();
    setenv("XDG_STATE_HOME", state, 1);
    int bad = cmocka_run_group_tests(tests, NULL, NULL);
    scratch_remove(state);
    return bad;
}
