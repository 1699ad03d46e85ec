/* bench_debug.c - what the debugger costs: each step while nobody uses it, and a kept state.
 *
 * The functions that a step calls are called here one after the other, on an engine whose thread
 * waits for requests; then turns are run with a breakpoint that never holds, and without. */
#include "tests/serve_kit.h"

static double ns_of(uint64_t start, int n)
{
    return (double)(clock_ns() - start) / n;
}

/* As begin_step(), end_step() and step_done() of turn.c do. */
static void one_step(struct engine *g, struct back *b)
{
    CHECK(!back_silent(g, b));
    CHECK(force_room(g, 0) > 0);
    force_step_begins(g, 0);
    CHECK(!debug_by_phase(&g->debug));
    force_step_ended(g, true);
    back_step_done(g, b, 256);
    debug_step_done(g);
    CHECK(!debug_back_asked(g));
}

static void idle_cost(struct engine *g)
{
    enum { N = 1000000 };
    struct back b;
    back_begin(g, &b, 256);
    uint64_t start = clock_ns();
    for (int i = 0; i < N; i++)
        one_step(g, &b);
    print_message("# a step while the debugger is not used: %.0f ns\n", ns_of(start, N));
    back_end(g, &b);
}

static void keep_cost(struct engine *g, const char *what)
{
    enum { N = 200 };
    struct kept k;
    uint64_t start = clock_ns();
    for (int i = 0; i < N; i++) {
        keep_state(&k, &g->own.runtime, &g->own.ses.lane);
        keep_free(&k);
    }
    double keep = ns_of(start, N) / 1e3;
    keep_state(&k, &g->own.runtime, &g->own.ses.lane);
    start = clock_ns();
    for (int i = 0; i < N; i++)
        keep_restore(&k, &g->own.runtime, &g->own.ses.lane);
    print_message("# %s: a kept state takes %.0f us and %.2f MB, going back to it %.0f us\n", what,
                  keep, (double)k.bytes / 1e6, ns_of(start, N) / 1e3);
    keep_free(&k);
}

static double reply_ns(struct backend *g, struct brought *b)
{
    ask(g, RQ_REGEN, NULL, b);
    return (double)b->us_decode * 1e3 / (b->end_tokens.n - 1);
}

static void test_what_the_debugger_costs(void **state)
{
    (void)state;
    static const int context[] = {4096, 32768};
    for (int i = 0; i < 2; i++) {
        struct engine_opts o = serve_opts();
        struct brought b = {0};
        struct err e = {0};
        char what[64];
        o.context = context[i];
        o.page_size = i ? 1 : 16;
        o.settings.max_tokens = 200;
        struct backend *g = serve_open(&o);
        engine_of(g)->own.runtime.n_stop = 0;
        ask(g, RQ_SAY, "Tell me a long story about the sea.", &b);
        snprintf(what, sizeof what, "context %d, page size %d", context[i], i ? 1 : 16);
        keep_cost(engine_of(g), what);
        if (i == 0) {
            double off = 1e18, on = 1e18;
            idle_cost(engine_of(g));
            for (int k = 0; k < 6; k++) {
                double x = reply_ns(g, &b);
                off = x < off ? x : off;
                must(g->debug->add(g, "accepted>99", false, &e) > 0, &e);
                x = reply_ns(g, &b);
                on = x < on ? x : on;
                must(g->debug->remove(g, 0, &e), &e);
            }
            print_message("# a token of a reply: %.0f us, with a breakpoint that never holds and "
                          "states kept: %.0f us (best of 6)\n", off / 1e3, on / 1e3);
        }
        backend_close(g);
        brought_free(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_what_the_debugger_costs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
