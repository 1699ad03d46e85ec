/* test_kept_plans.c - the kept plans of a step that was named before it ran: those of all its
 * passes, with their page tables; and the step has the same bits as without keeping them. */
#include "tests/serve_kit.h"

struct told {
    uint64_t logits; /* over all steps */
    int kind, pos0, rows, n_node; /* of the named step */
};

static struct told run(struct backend *g, const char *text, int turn, int step)
{
    struct told t = {.kind = -1};
    struct event ev;
    submit(g, RQ_SAY, text, 0);
    while (serve_event(g, &ev)) {
        if (ev.kind == EV_STEP)
            t.logits = mix64(t.logits ^ ev.rec.logit_digest);
        if (ev.kind == EV_STEP && ev.turn == turn && ev.step == step)
            t = (struct told){t.logits, (int)ev.rec.kind, ev.rec.pos0, ev.rec.rows,
                              ev.tree ? ev.tree->n : 0};
        event_free(&ev);
    }
    return t;
}

static int count(const char *s, const char *what)
{
    int n = 0;
    for (const char *p = s; (p = strstr(p, what)); p++)
        n++;
    return n;
}

static void test_each_pass_of_the_step_is_kept(void **state)
{
    (void)state;
    struct engine_opts o = serve_opts();
    struct backend *a = serve_open(&o), *b = serve_open(&o);
    struct buf plans = {0};
    b->plan->keep(b, 1, 3);
    assert_false(b->plan->kept(b, &plans));
    struct told want = run(a, "Tell me a story.", 1, 3), have = run(b, "Tell me a story.", 1, 3);
    assert_memory_equal(&want, &have, sizeof want);
    assert_int_equal(have.kind, STEP_SPEC);
    assert_true(b->plan->kept(b, &plans));
    buf_str(&plans, "");
    /* each with its plan and with its case */
    assert_int_equal(count(plans.p, "\"mode\":\"verify\""), 2);
    /* the first of 5 levels reads the follow pass */
    assert_int_equal(count(plans.p, "\"mode\":\"draft\""), 8);
    assert_int_equal(count(plans.p, "\"mode\":\"draft-extend\""), 2);
    char prefix[64];
    snprintf(prefix, sizeof prefix, "\"prefix_len\":%d,\"q_len\":%d", have.pos0, have.rows);
    const char *verify = strstr(plans.p, "\"mode\":\"verify\"");
    assert_non_null(strstr(verify, prefix));
    assert_null(strstr(plans.p, "\"pages\":[[]]")); /* none has been overtaken by a later plan */
    buf_clear(&plans);
    b->plan->keep(b, 2, 1); /* a prompt */
    run(b, "And another one.", 2, 1);
    assert_true(b->plan->kept(b, &plans));
    assert_int_equal(count(plans.p, "\"mode\":\"extend\""), 2);
    buf_clear(&plans);
    b->plan->keep(b, 9, 9);
    run(b, "What?", 3, 1);
    assert_false(b->plan->kept(b, &plans));
    buf_free(&plans);
    backend_close(a);
    backend_close(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_each_pass_of_the_step_is_kept)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
