/* test_reuse.c - how much of a prompt is reused, and the reason that the engine reports for not
 * more: every reason arises as in a user's session. Also the facts of emitted tokens in events and
 * in memory. */
#include "tests/serve_kit.h"

#include <math.h>

static struct backend *open_small(void)
{
    struct engine_opts o = serve_opts();
    o.settings.max_tokens = 12;
    o.settings.chunk = 64;
    struct backend *g = serve_open(&o);
    struct brought b = {0};
    ask(g, RQ_NEW, NULL, &b);
    brought_free(&b);
    return g;
}

static void say(struct backend *g, int lines, struct brought *b)
{
    char *text = words(lines);
    ask(g, RQ_SAY, text, b);
    free(text);
}

/* The change, the limit and the turn; and that what the text says follows from them. */
static void expect(const struct brought *b, enum reuse_change change, enum reuse_limit limit,
                   int turn)
{
    struct buf text = {0};
    reuse_text(&b->reuse, b->prompt.n, b->n_reused, &text);
    if (b->reuse.change != change || b->reuse.limit != limit || b->reuse.turn != turn)
        fail_msg("change %s, limit \"%s\", turn %d: %s", reuse_change_name(b->reuse.change),
                 reuse_limit_name(b->reuse.limit), b->reuse.turn, text.p);
    assert_true(text.n > 0 && strncmp(text.p, "reused ", 7) == 0);
    assert_true(b->reuse.same <= b->reuse.held && b->n_reused < b->prompt.n);
    buf_free(&text);
}

static void test_a_chat_that_goes_on_reuses_what_is_held(void **state)
{
    (void)state;
    struct backend *g = open_small();
    struct brought b = {0};
    say(g, 3, &b);
    expect(&b, CHANGE_FIRST, LIMIT_NONE, 0);
    int held = b.prompt.n + b.end_tokens.n - 1;
    say(g, 2, &b);
    expect(&b, CHANGE_NONE, LIMIT_NONE, 0);
    assert_int_equal(b.n_reused, held);
    assert_int_equal(b.reuse.held, held);
    assert_false(reuse_is_notable(&b.reuse, b.prompt.n, b.n_reused));
    backend_close(g);
    brought_free(&b);
}

static void test_another_system_prompt_is_found_where_it_differs(void **state)
{
    (void)state;
    struct backend *g = open_small();
    struct brought b = {0};
    ask(g, RQ_SYSTEM, "Answer in short words.", &b);
    say(g, 40, &b);
    int held = b.prompt.n + b.end_tokens.n - 1;
    ask(g, RQ_SYSTEM, "Answer in long words.", &b);
    say(g, 2, &b);
    expect(&b, CHANGE_SYSTEM, LIMIT_NONE, 0);
    assert_int_equal(b.n_reused, 0);
    assert_true(b.reuse.same > 1 && b.reuse.same < 16);
    assert_int_equal(reuse_again(&b.reuse, b.prompt.n, 0), min_int(held, b.prompt.n));
    assert_true(reuse_is_notable(&b.reuse, b.prompt.n, 0));
    struct buf text = {0};
    reuse_text(&b.reuse, b.prompt.n, 0, &text);
    assert_non_null(strstr(text.p, "the system prompt changed at token"));
    buf_free(&text);
    ask(g, RQ_SYSTEM, "Answer in short words.", &b); /* changed and changed back: no change */
    ask(g, RQ_SYSTEM, "Answer in long words.", &b);
    say(g, 2, &b);
    expect(&b, CHANGE_NONE, LIMIT_NONE, 0);
    backend_close(g);
    brought_free(&b);
}

static void test_undone_and_regenerated_turns_are_named(void **state)
{
    (void)state;
    struct backend *g = open_small();
    struct brought b = {0};
    for (int i = 0; i < 4; i++)
        say(g, 4, &b);
    int prompt = b.prompt.n;
    ask(g, RQ_REGEN, NULL, &b);
    expect(&b, CHANGE_REGEN, b.reuse.limit, 4);
    assert_int_equal(b.prompt.n, prompt);
    ask(g, RQ_UNDO, NULL, &b);
    ask(g, RQ_UNDO, NULL, &b);
    ask(g, RQ_SAY, "Hello!", &b);
    expect(&b, CHANGE_UNDO, LIMIT_NONE, 3); /* the earliest that is gone */
    assert_true(b.n_reused > 0);
    ask(g, RQ_FORGET, "1", &b);
    say(g, 2, &b);
    expect(&b, CHANGE_FORGET, b.reuse.limit, 1);
    assert_int_equal(b.n_reused, 0);
    backend_close(g);
    brought_free(&b);
}

static void test_a_resumed_session_finds_empty_pools(void **state)
{
    (void)state;
    struct backend *g = open_small();
    struct brought b = {0};
    struct err e = {0};
    struct request rq = {.kind = RQ_RESUME, .next_turn = 2, .n_past = 1,
                         .past = xcalloc(1, sizeof *rq.past)};
    say(g, 30, &b);
    snprintf(rq.session, sizeof rq.session, "AGAIN");
    rq.past[0] = (struct past_turn){.turn = 1, .user = words(30), .reply = xstrdup(b.text.p)};
    ids_cat(&rq.past[0].ids, b.end_tokens.v, b.end_tokens.n);
    must(backend_submit(g, &rq, &e), &e);
    say(g, 1, &b);
    expect(&b, CHANGE_EMPTIED, LIMIT_NONE, 0);
    assert_true(b.n_reused == 0 && reuse_is_notable(&b.reuse, b.prompt.n, 0));
    backend_close(g);
    brought_free(&b);
}

/* A checkpoint lies at a long prompt's last chunk; the window's pages before it are gone. */
static void test_the_window_stops_a_prompt_that_is_cut_in_its_middle(void **state)
{
    (void)state;
    struct backend *g = open_small();
    struct session *s = &engine_of(g)->own.ses;
    struct brought b = {0};
    say(g, 30, &b);
    int end = s->lane.seq.committed, lo = s->lane.seq.swa_lo;
    free(s->msg[0].text); /* as if the chat format rendered the question otherwise in its middle */
    char *cut = words(30);
    *strstr(cut, "line 20") = 'L';
    s->msg[0].text = cut;
    say(g, 1, &b);
    expect(&b, CHANGE_FORMAT, LIMIT_WINDOW, 0);
    assert_int_equal(b.reuse.held, end);
    assert_int_equal(b.reuse.from, b.reuse.same - 63); /* what the query there sees: W = 64 */
    assert_int_equal(b.reuse.to, min_int(lo, b.reuse.same) - 1);
    backend_close(g);
    brought_free(&b);
}

static void test_an_evicted_checkpoint_is_named(void **state)
{
    (void)state;
    struct backend *g = open_small();
    struct brought b = {0};
    int end = 0;
    say(g, 4, &b);
    end = b.prompt.n + b.end_tokens.n - 1;
    for (int i = 0; i < MAX_POINTS; i++)
        say(g, 1, &b);
    for (int i = 0; i < MAX_POINTS; i++)
        ask(g, RQ_UNDO, NULL, &b);
    say(g, 2, &b);
    expect(&b, CHANGE_UNDO, LIMIT_EVICTED, 2);
    assert_int_equal(b.reuse.to, end);
    assert_int_equal(b.n_reused, 0);
    backend_close(g);
    brought_free(&b);
}

static void test_a_draft_without_cells_stops_reuse(void **state)
{
    (void)state;
    struct backend *g = open_small();
    struct brought b = {0};
    ask(g, RQ_SET, "spec=off", &b);
    say(g, 6, &b);
    int held = b.prompt.n + b.end_tokens.n - 1;
    ask(g, RQ_SET, "spec=on", &b);
    say(g, 2, &b);
    expect(&b, CHANGE_NONE, LIMIT_DRAFT, 0);
    assert_int_equal(b.reuse.to, held);
    assert_int_equal(b.n_reused, 0);
    backend_close(g);
    brought_free(&b);
}

static void test_events_and_memory_hold_the_facts_of_every_token(void **state)
{
    (void)state;
    struct backend *g = open_small();
    struct brought b = {0};
    struct step_view v;
    int at = 0;
    say(g, 3, &b);
    assert_int_equal(b.facts.n, (size_t)b.end_tokens.n * sizeof(struct token_fact));
    for (int step = 1; step <= b.n_step[0]; step++) {
        assert_true(g->steps->of_step(g, 1, step, &v));
        assert_memory_equal(v.token, b.end_tokens.v + at, (size_t)v.n_token * sizeof *v.token);
        assert_memory_equal(v.fact, b.facts.p + (size_t)at * sizeof *v.fact,
                            (size_t)v.n_token * sizeof *v.fact);
        for (int i = 0; i < v.n_token; i++) /* greedy: the token is the best one */
            assert_true(v.fact[i].logp <= 0 && v.fact[i].logp >= v.fact[i].rival_logp &&
                        v.fact[i].rival != v.token[i] && v.fact[i].rival >= 0);
        if (v.n_token) {
            const struct token_fact *last = &v.fact[v.n_token - 1];
            assert_true(fabsf(v.rec.margin - (last->logp - last->rival_logp)) < 1e-6f);
        } else {
            assert_true(isnan(v.rec.margin));
        }
        assert_int_equal(v.rec.forced, 0);
        at += v.n_token;
    }
    assert_int_equal(at, b.end_tokens.n);
    backend_close(g);
    brought_free(&b);
}

static void test_names_of_facts_can_be_read_back(void **state)
{
    (void)state;
    enum reuse_change c;
    enum reuse_limit l;
    for (int i = CHANGE_UNKNOWN; i <= CHANGE_FORMAT; i++)
        assert_true(reuse_change_parse(reuse_change_name((enum reuse_change)i), &c) && (int)c == i);
    for (int i = LIMIT_NONE; i <= LIMIT_STATE; i++)
        assert_true(reuse_limit_parse(reuse_limit_name((enum reuse_limit)i), &l) && (int)l == i);
    assert_false(reuse_change_parse("windows", &c) || reuse_limit_parse("none at all", &l));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_chat_that_goes_on_reuses_what_is_held),
        cmocka_unit_test(test_another_system_prompt_is_found_where_it_differs),
        cmocka_unit_test(test_undone_and_regenerated_turns_are_named),
        cmocka_unit_test(test_a_resumed_session_finds_empty_pools),
        cmocka_unit_test(test_the_window_stops_a_prompt_that_is_cut_in_its_middle),
        cmocka_unit_test(test_an_evicted_checkpoint_is_named),
        cmocka_unit_test(test_a_draft_without_cells_stops_reuse),
        cmocka_unit_test(test_events_and_memory_hold_the_facts_of_every_token),
        cmocka_unit_test(test_names_of_facts_can_be_read_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
