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

enum { N_JOBS = 20, CONTEXT = 224, REPLY = 40 };

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
    assert_true((n->prompt_fact != NULL) == (k->ask.prompt_top >= 0) &&
                (n->top != NULL) == (k->ask.prompt_top > 0));
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
    assert_true(ev->job->id >= 1 && ev->job->id <= N_JOBS && k->started && !k->ended);
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
    o.context = CONTEXT;
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

/* ---- a job alone, fed token by token --------------------------------------------------------- */

static void told_step(struct told *k, struct runtime *r, const struct lane *l, bool prompt)
{
    struct job_token best[(MAX_STEPS + 1) * JOB_TOP];
    int n = prompt ? k->ask.prompt_top : k->ask.top;
    if (n >= 0)
        buf_add(prompt ? &k->prompt_facts : &k->facts, l->fact, sizeof *l->fact);
    if (n > 0) {
        lane_best(r, l, n, best);
        buf_add(prompt ? &k->prompt_top : &k->top, best, (size_t)n * sizeof *best);
    }
    if (!prompt)
        ids_add(&k->tokens, l->tok.v[l->tok.n - 1]);
}

/* The prompt by passes of several rows, as a GPU rounds them. */
static void feed_chunks(struct told *k, struct runtime *r, struct lane *l)
{
    struct err e = {0};
    int n = k->ask.prompt.n, top = max_int(0, k->ask.prompt_top);
    struct prompt_scores s = {.n = n, .k = top};
    s.fact = xcalloc((size_t)n, sizeof *s.fact);
    s.top = xcalloc((size_t)(n * top) + 1, sizeof *s.top);
    l->tok.n = 0;
    ids_cat(&l->tok, k->ask.prompt.v, n);
    l->scores = &s;
    if (n > 1)
        must(lane_extend(r, l, n - 1, false, false, 1, &e), &e);
    l->scores = NULL;
    if (k->ask.prompt_top >= 0)
        buf_add(&k->prompt_facts, s.fact + 1, (size_t)(n - 1) * sizeof *s.fact);
    buf_add(&k->prompt_top, s.top + top, (size_t)((n - 1) * top) * sizeof *s.top);
    free(s.fact);
    free(s.top);
}

/* The prompt by passes of one row: each token is given in place of the target's choice. */
static void feed_tokens(struct told *k, struct runtime *r, struct lane *l)
{
    struct err e = {0};
    struct step_limits lim = {1};
    int n = k->ask.prompt.n;
    l->given = k->ask.prompt.v + 1;
    l->n_given = n - 1;
    for (int i = 1; i < n; i++) {
        must(i == 1 ? lane_extend(r, l, 1, true, false, 1, &e)
                    : lane_step(r, &l, &lim, 1, NULL, &e), &e);
        told_step(k, r, l, true);
    }
}

static bool over(const struct told *k, const struct runtime *r, const struct lane *l)
{
    return (l->stopped && !k->ask.run_on) || l->tok.n >= r->context ||
           (k->ask.most >= 0 && k->tokens.n >= k->ask.most);
}

/* Fills in what the job must bring. */
static void run_alone(struct told *k, struct runtime *r)
{
    struct err e = {0};
    struct step_limits lim = {1};
    struct lane lane = {.tap_row = -1}, *l = &lane;
    struct token_fact none = {.logp = NAN, .rival = -1, .rival_logp = NAN};
    if (k->ask.prompt_top >= 0)
        buf_add(&k->prompt_facts, &none, sizeof none);
    for (int i = 0; i < k->ask.prompt_top; i++)
        buf_add(&k->prompt_top, &(struct job_token){-1, NAN}, sizeof(struct job_token));
    ids_add(&l->tok, k->ask.prompt.v[0]);
    if (strcmp(device, "cpu") == 0)
        feed_tokens(k, r, l);
    else
        feed_chunks(k, r, l);
    l->how = (struct sampling){k->ask.temperature, k->ask.top_k, k->ask.top_p, k->ask.min_p};
    l->seed = k->ask.seed;
    l->draws = 0;
    l->stopped = false;
    while (!over(k, r, l)) {
        must(l->seq.committed == 0 ? lane_extend(r, l, 1, true, false, 1, &e)
                                   : lane_step(r, &l, &lim, 1, NULL, &e), &e);
        told_step(k, r, l, false);
    }
    k->reason = l->stopped && !k->ask.run_on                        ? STOP_END
                : k->ask.most >= 0 && k->tokens.n >= k->ask.most ? STOP_MAX
                                                                 : STOP_CONTEXT;
    lane_free(r, l);
}

/* What two sides have in common of a list of items; false: they differ there. */
static bool same_head(const void *a, size_t na, const void *b, size_t nb, bool whole)
{
    return (whole ? na == nb : na <= nb) && (na == 0 || memcmp(a, b, na) == 0);
}

/* NULL: the job brought what the reference has; or the first words of it, where it was cancelled.
 * Else what differs. */
static const char *differs(const struct told *k, const struct told *want)
{
    bool whole = !k->cancelled || k->reason != STOP_CANCEL;
    bool begun = whole || k->n_begin;
    if (!k->ended)
        return "it has not ended";
    if (whole && k->reason != want->reason)
        return "the reason";
    if (!same_head(k->tokens.v, (size_t)k->tokens.n * 4, want->tokens.v,
                   (size_t)want->tokens.n * 4, whole))
        return "the tokens";
    if (k->ask.top >= 0 && !same_head(k->facts.p, k->facts.n, want->facts.p, want->facts.n, whole))
        return "the log probabilities";
    if (!same_head(k->top.p, k->top.n, want->top.p, want->top.n, whole))
        return "the best tokens";
    if (begun && !same_head(k->prompt_facts.p, k->prompt_facts.n, want->prompt_facts.p,
                            want->prompt_facts.n, true))
        return "the log probabilities of the prompt";
    if (begun && !same_head(k->prompt_top.p, k->prompt_top.n, want->prompt_top.p,
                            want->prompt_top.n, true))
        return "the best tokens of the prompt";
    return NULL;
}

/* ---- random jobs ----------------------------------------------------------------------------- */

static uint64_t state_of_random = 1;
static int below(int n)
{
    state_of_random = mix64(state_of_random);
    return (int)(state_of_random % (uint64_t)n);
}

static struct told wanted[N_JOBS];

/* The prompt of the i-th job: a question; a question of many words; an earlier job's prompt again, or
 * a part of it, or behind it the reply to it or other words. */
static void make_prompt(struct bed *b, int i, struct ids *out)
{
    static const char *const text[] = {"Hello!", "What is a page table?", "count to forty",
                                       "Tell me a story about Clara the owl."};
    const struct told *old = &wanted[i ? below(i) : 0];
    char *many = words(8 + below(12));
    int kind = i < 4 ? 0 : i < 6 ? 1 : 2 + below(4);
    out->n = 0;
    if (kind < 2)
        chat_prompt(b, kind ? many : text[i], out);
    if (kind >= 2)
        ids_cat(out, old->ask.prompt.v, kind == 3 ? 1 + below(old->ask.prompt.n) : old->ask.prompt.n);
    if (kind >= 4)
        ids_cat(out, old->tokens.v, old->tokens.n);
    for (int k = kind == 5 ? 1 + below(20) : kind == 3; k > 0; k--)
        ids_add(out, 40 + below(400));
    out->n = min_int(out->n, CONTEXT - 60);
    free(many);
}

static void make_job(struct bed *b, int i)
{
    static const int top[] = {0, 0, 1, 5, 20}, prompt_top[] = {-1, -1, -1, 0, 3, 20};
    struct job_ask *a = &wanted[i].ask;
    *a = (struct job_ask){.top_p = 1, .seed = (uint64_t)below(1000)};
    make_prompt(b, i, &a->prompt);
    a->temperature = below(3) ? 0.7f + (float)below(8) / 10 : 0;
    a->top_k = below(3) ? 0 : 20;
    a->top_p = below(3) ? 1 : 0.9f;
    a->min_p = below(4) ? 0 : 0.05f;
    a->most = i % 7 == 6 ? 0 : i == 2 ? -1 : 1 + below(REPLY);
    a->run_on = i == 2 || below(3) == 0;
    a->top = top[below(5)];
    a->prompt_top = prompt_top[below(6)];
}

static int make_jobs(void **state)
{
    struct bed b;
    (void)state;
    if (!bed_device(&b, device, precision))
        return 0; /* every test is skipped */
    bed_load(&b, NESTLING, NULL);
    bed_chat(&b, NESTLING);
    bed_runtime(&b, &(struct runtime_shape){.page_size = 16, .context = CONTEXT, .kv = b.dev.kv});
    bed_stop(&b);
    for (int i = 0; i < N_JOBS; i++) {
        make_job(&b, i);
        run_alone(&wanted[i], &b.r);
    }
    bed_close(&b);
    return 0;
}

static int free_jobs(void **state)
{
    (void)state;
    for (int i = 0; i < N_JOBS; i++)
        told_free(&wanted[i]);
    return 0;
}

/* Takes at most n events in. */
static void take_some(struct backend *g, struct told *all, int n)
{
    struct event ev;
    while (n-- > 0 && backend_wait(g, &ev, 5)) {
        take(all, &ev);
        event_free(&ev);
    }
}

static void copy_ask(struct told *k, const struct told *from)
{
    *k = (struct told){.ask = from->ask};
    k->ask.prompt = (struct ids){0};
    ids_cat(&k->ask.prompt, from->ask.prompt.v, from->ask.prompt.n);
}

/* Starts all jobs in a random order at random times, and cancels some. */
static void run_jobs(struct backend *g, struct told *all, int cancels)
{
    int order[N_JOBS];
    for (int i = 0; i < N_JOBS; i++) {
        copy_ask(&all[i], &wanted[i]);
        order[i] = i;
    }
    for (int i = N_JOBS - 1; i > 0; i--) {
        int k = below(i + 1), x = order[i];
        order[i] = order[k];
        order[k] = x;
    }
    for (int i = 0; i < N_JOBS; i++) {
        start(g, &all[order[i]], (uint64_t)order[i] + 1);
        if (below(3) == 0)
            take_some(g, all, below(30));
        if (below(100) < cancels) {
            int k = order[below(i + 1)];
            all[k].cancelled = true;
            g->jobs->cancel(g, (uint64_t)k + 1);
        }
    }
    g->jobs->cancel(g, 12345);
    take_all(g, all);
}

static int compare_all(struct told *all, bool fails)
{
    int n = 0;
    for (int i = 0; i < N_JOBS; i++) {
        const char *what = differs(&all[i], &wanted[i]);
        if (what && fails)
            fail_msg("job %d of %d prompt tokens (%d reused) and %d tokens: %s", i,
                     all[i].ask.prompt.n, all[i].n_reused, all[i].tokens.n, what);
        n += what != NULL;
    }
    return n;
}

/* Settings under which the jobs run: a job has room alone, all lanes together have not. */
static const struct way {
    int lanes, page_size, chunk, steps, topk, nodes;
} way[] = {{1, 16, 7, 5, 4, 16}, {3, 1, 64, 5, 4, 16}, {8, 4, 24, 3, 1, 4},
           {8, 1, 24, 3, 1, 4},  {3, 4, 7, 0, 1, 4},   {8, 16, 64, 5, 4, 16}};
enum { N_WAYS = sizeof way / sizeof *way };

static struct engine_opts small_opts(const struct way *w)
{
    struct engine_opts o = opts(w->lanes);
    o.page_size = w->page_size;
    o.settings.chunk = w->chunk;
    o.settings.spec = w->steps > 0;
    o.settings.steps = max_int(1, w->steps);
    o.settings.topk = w->topk;
    o.settings.nodes = w->nodes;
    o.full_pages = div_up(CONTEXT + 20, w->page_size) + 2;
    o.swa_pages = div_up(64 + 64 + 40, w->page_size) + 4;
    return o;
}

static void test_jobs_bring_what_they_bring_alone(void **state)
{
    int reused = 0, accepted = 0, cancelled = 0;
    (void)state;
    for (int i = 0; i < N_WAYS; i++) {
        struct engine_opts o = small_opts(&way[i]);
        struct told all[N_JOBS];
        struct backend *g = open_engine(&o);
        for (int again = 0; again < 2; again++) {
            run_jobs(g, all, i % 2 ? 12 : 0);
            compare_all(all, true);
            assert_whole(g);
            for (int k = 0; k < N_JOBS; k++) {
                reused += all[k].n_reused;
                accepted += all[k].n_accepted;
                cancelled += all[k].reason == STOP_CANCEL;
                told_free(&all[k]);
            }
        }
        assert_empty(g);
        backend_close(g);
    }
    print_message("# %d tokens reused, %d accepted, %d jobs cancelled\n", reused, accepted, cancelled);
    assert_true(reused > 0 && accepted > 0 && cancelled > 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_job_is_answered_from_its_prompt_to_its_end),
        cmocka_unit_test(test_jobs_bring_what_they_bring_alone),
    };
    device = argc > 1 ? argv[1] : device;
    precision = argc > 2 ? argv[2] : precision;
    if (argc > 3)
        cmocka_set_test_filter(argv[3]);
    return cmocka_run_group_tests(tests, make_jobs, free_jobs);
}
