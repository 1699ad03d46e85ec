/* test_jobs.c - jobs of clients: any number of them, started, joined and cancelled at any time, in
 * small pools, drafting or not: each one's tokens, log probabilities and best tokens are those of a
 * lane of its own that is fed token by token, and nothing stays behind.
 *
 *   test_jobs [DEVICE [PRECISION [FILTER]]]      cpu f32 */
#include "tests/serve_kit.h"

#include <math.h>
#include <unistd.h>

#ifndef TEST_DEVICE
#define TEST_DEVICE "cpu"
#endif
static const char *device = TEST_DEVICE, *precision = "f32";

enum { MAX_KEPT = 64, LONGEST = 160, REPLY = 24 };

/* ---- what a job brought ---------------------------------------------------------------------- */

struct told {
    struct job_ask ask; /* its prompt is a copy */
    bool started, cancelled, ended;
    int n_begin, n_reused, n_generated, n_steps, n_accepted;
    struct ids tokens;
    struct buf facts, top;             /* struct token_fact, struct job_token */
    struct buf prompt_facts, prompt_top;
    enum stop_reason reason;
    struct buf why;
};

static void told_free(struct told *k)
{
    ids_free(&k->ask.prompt);
    ids_free(&k->tokens);
    buf_free(&k->facts);
    buf_free(&k->top);
    buf_free(&k->prompt_facts);
    buf_free(&k->prompt_top);
    buf_free(&k->why);
    *k = (struct told){0};
}

static void take_begin(struct told *k, const struct event *ev)
{
    const struct job_news *n = ev->job;
    assert_true(k->n_begin++ == 0 && k->tokens.n == 0);
    assert_int_equal(n->n_prompt, k->ask.prompt.n);
    assert_true((n->prompt_fact != NULL) == (k->ask.prompt_top >= 0));
    k->n_reused = n->n_reused;
    if (n->prompt_fact)
        buf_add(&k->prompt_facts, n->prompt_fact, (size_t)n->n_prompt * sizeof *n->prompt_fact);
    if (n->top)
        buf_add(&k->prompt_top, n->top, (size_t)(n->n_prompt * n->n_top) * sizeof *n->top);
}

static void take_step(struct told *k, const struct event *ev)
{
    assert_true(k->n_begin == 1 && ev->tokens.n > 0 && ev->facts);
    ids_cat(&k->tokens, ev->tokens.v, ev->tokens.n);
    buf_add(&k->facts, ev->facts, (size_t)ev->tokens.n * sizeof *ev->facts);
    assert_true((ev->job->top != NULL) == (k->ask.top > 0));
    if (ev->job->top)
        buf_add(&k->top, ev->job->top, (size_t)(ev->tokens.n * k->ask.top) * sizeof *ev->job->top);
}

static void take_end(struct told *k, const struct event *ev)
{
    k->ended = true;
    k->reason = ev->reason;
    k->n_generated = ev->job->n_generated;
    k->n_steps = ev->job->n_steps;
    k->n_accepted = ev->job->n_accepted;
    buf_add(&k->why, ev->text.p ? ev->text.p : "", ev->text.n);
    if (k->n_begin)
        assert_int_equal(k->n_reused, ev->job->n_reused);
    assert_int_equal(k->n_generated, k->tokens.n);
    assert_true(ev->job->us_wait >= 0 && ev->job->us_prefill >= 0 && ev->job->us_decode >= 0);
}

/* Takes one event in; false: it is none of a job. */
static bool take(struct told *all, const struct event *ev)
{
    if (ev->kind != EV_JOB_BEGIN && ev->kind != EV_JOB_STEP && ev->kind != EV_JOB_END) {
        if (ev->kind == EV_FAULT || ev->kind == EV_NOTICE)
            fail_msg("%s", ev->text.p);
        return false;
    }
    struct told *k = &all[ev->job->id - 1];
    assert_true(ev->job->id >= 1 && ev->job->id <= MAX_KEPT && k->started && !k->ended);
    if (ev->kind == EV_JOB_BEGIN)
        take_begin(k, ev);
    else if (ev->kind == EV_JOB_STEP)
        take_step(k, ev);
    else
        take_end(k, ev);
    return true;
}

/* Until all jobs have ended. */
static void take_all(struct backend *g, struct told *all)
{
    struct event ev;
    for (bool busy = true; busy;) {
        busy = backend_busy(g);
        while (busy ? backend_wait(g, &ev, 20) : backend_next(g, &ev)) {
            take(all, &ev);
            event_free(&ev);
        }
    }
}

static void start(struct backend *g, struct told *k, uint64_t id)
{
    struct err e = {0};
    struct job_ask a = k->ask;
    k->ask.id = a.id = id;
    a.prompt = (struct ids){0};
    ids_cat(&a.prompt, k->ask.prompt.v, k->ask.prompt.n);
    k->started = true;
    must(g->jobs->start(g, &a, &e), &e);
    assert_null(a.prompt.v);
}

/* ---- engines --------------------------------------------------------------------------------- */

static struct engine_opts opts(int lanes)
{
    struct engine_opts o = serve_opts();
    o.device = device;
    o.precision = precision;
    o.lanes = lanes;
    o.context = 256;
    o.settings.check = CHECK_STRICT;
    return o;
}

static struct backend *open_engine(const struct engine_opts *o)
{
    struct err e = {0};
    struct backend *g = engine_open(o, &e);
    if (!g && strcmp(device, "cpu") != 0) {
        print_message("# no %s: %s\n", device, e.msg);
        skip();
    }
    must(g != NULL, &e);
    return g;
}

static void assert_whole(struct backend *g)
{
    struct pool_view pool[N_POOLS];
    struct check_report r;
    struct err e = {0};
    g->pools->ledger(g, pool);
    for (int i = 0; i < N_POOLS; i++)
        assert_int_equal(pool[i].free + pool[i].used + pool[i].evictable + pool[i].protected_,
                         pool[i].total - pool[i].reserved);
    must(g->check->sweep(g, &r, &e), &e);
}

/* A request gives all pages back that jobs have held. */
static void assert_empty(struct backend *g)
{
    struct pool_view pool[N_POOLS];
    struct told none[1] = {{.started = false}};
    submit(g, RQ_SYSTEM, "", 0);
    take_all(g, none);
    g->pools->ledger(g, pool);
    for (int i = 0; i < N_POOLS; i++)
        assert_int_equal(pool[i].free, pool[i].exists ? pool[i].total - pool[i].reserved : 0);
    assert_whole(g);
}

static void encode(struct backend *g, const char *text, struct ids *out)
{
    struct err e = {0};
    struct message m = {.role = ROLE_USER, .text = (char *)(uintptr_t)text};
    out->n = 0;
    must(chat_render(g->jobs->chat(g), &m, 1, out, &e), &e);
}

static struct told job_of(struct backend *g, const char *text, int most)
{
    struct told k = {.ask = {.most = most, .top_p = 1, .prompt_top = -1}};
    encode(g, text, &k.ask.prompt);
    return k;
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void test_a_job_is_answered_from_its_prompt_to_its_end(void **state)
{
    (void)state;
    struct engine_opts o = opts(2);
    struct backend *g = open_engine(&o);
    struct told all[4] = {job_of(g, "Hello!", -1), job_of(g, "count to one hundred", 7),
                          job_of(g, "Hello!", 0), job_of(g, "Hello!", 30)};
    struct brought b = {0};
    all[3].ask.run_on = true;
    assert_true(backend_has(g, VIEW_JOBS) && g->jobs->tokenizer(g));
    for (uint64_t i = 0; i < 4; i++)
        start(g, &all[i], i + 1);
    take_all(g, all);
    assert_whole(g);
    static const enum stop_reason reason[] = {STOP_END, STOP_MAX, STOP_MAX, STOP_MAX};
    static const int most[] = {-1, 7, 0, 30};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(all[i].reason, reason[i]);
        assert_true(all[i].n_begin == 1 && all[i].ended);
        if (most[i] >= 0)
            assert_int_equal(all[i].tokens.n, most[i]);
    }
    /* the reply goes on behind the token that ended the other one */
    assert_true(all[0].tokens.n < 30);
    assert_memory_equal(all[0].tokens.v, all[3].tokens.v, (size_t)all[0].tokens.n * 4);
    ask(g, RQ_NEW, NULL, &b);
    ask(g, RQ_SAY, "Hello!", &b); /* the conversation says the same */
    assert_int_equal(b.end_tokens.n, all[0].tokens.n);
    assert_memory_equal(b.end_tokens.v, all[0].tokens.v, (size_t)all[0].tokens.n * 4);
    for (int i = 0; i < 4; i++)
        told_free(&all[i]);
    brought_clear(&b);
    ask(g, RQ_NEW, NULL, &b);
    assert_empty(g);
    brought_free(&b);
    backend_close(g);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_job_is_answered_from_its_prompt_to_its_end),
    };
    device = argc > 1 ? argv[1] : device;
    precision = argc > 2 ? argv[2] : precision;
    if (argc > 3)
        cmocka_set_test_filter(argv[3]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
