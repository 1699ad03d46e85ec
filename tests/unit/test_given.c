/* test_given.c - given tokens: a lane emits them in place of the target's choices, and nothing else
 * changes.
 *
 * Over the mock model, with random tokens, trees, windows and page sizes, greedy and sampled. */
#include "tests/chance.h"
#include "tests/mock.h"
#include "tests/serve_kit.h"

enum { LONGEST = 24 };

struct setup {
    int drafter; /* 0 none, 1, 2 EAGLE3 (2: with a window), 3 frozen KV, 4 n-gram, 5 DFlash,
                    6 P-EAGLE */
    int chunk;
    struct tree_shape shape;
    bool hot;
};

static const struct tree_shape *shape_of(const struct setup *u)
{
    return u->drafter ? &u->shape : NULL;
}

static struct setup random_setup(struct mock *m, struct runtime_shape *rt)
{
    static const int page_sizes[] = {1, 4, 16, 64};
    struct setup u = {.drafter = below(7), .chunk = 1 + below(20),
                      .shape = {1 + below(5), 1 + below(4), 2 + below(20)}, .hot = below(2)};
    int window = 1 + below(20);
    m->m.cfg.window = m->layer[0].window = m->layer[2].window = window;
    if (u.drafter == 3)
        mock_frozen(m);
    else if (u.drafter == 4)
        m->d = (struct draft){.kind = "ngram"};
    else if (u.drafter == 5)
        mock_dflash(m, 0);
    else if (u.drafter == 6)
        mock_peagle(m, 0);
    else
        mock_eagle(m, u.drafter == 2 ? 7 : 0);
    *rt = (struct runtime_shape){.page_size = page_sizes[below(4)], .context = MOCK_MAX,
                                 .lanes = 3};
    return u;
}

static void begin(struct runtime *r, struct lane *l, const struct setup *u, const struct ids *tok,
                  const struct ids *given)
{
    *l = (struct lane){.tap_row = -1, .seed = 7,
                       .how = {.temperature = u->hot ? 0.9f : 0, .top_p = 1}};
    ids_cat(&l->tok, tok->v, tok->n);
    l->given = given ? given->v : NULL;
    l->n_given = given ? given->n : 0;
    lane_prompt(r, l, u->chunk, shape_of(u));
}

/* How many nodes follow the root on the path that these tokens describe. */
static int in_tree(const struct tree *t, const int32_t *token, int n)
{
    int at = 0, depth = 0;
    while (depth < n) {
        int child = at + 1;
        while (child < t->n && !(t->parent[child] == at && t->token[child] == token[depth]))
            child++;
        if (child >= t->n)
            break;
        at = child;
        depth++;
    }
    return depth;
}

struct totals {
    int forced, accepted, bonus, steps;
};

/* One cycle with given tokens left: they come first, a drafted one is accepted. */
static void step_given(struct runtime *r, struct lane *l, const struct setup *u, int max_new,
                       struct totals *sum)
{
    struct step_limits lim = {max_new};
    struct err e = {0};
    const int32_t *given = l->given;
    int n_given = l->n_given, n = l->tok.n;
    uint64_t draws = l->draws;
    must(lane_step(r, &l, &lim, 1, shape_of(u), &e), &e);
    int k = min_int(l->n_new, n_given);
    assert_true(l->n_new >= 1 && l->n_new <= max_new && l->tok.n == n + l->n_new);
    assert_int_equal(l->rec.forced, k);
    assert_int_equal(l->n_given, n_given - k);
    assert_memory_equal(l->tok.v + n, given, (size_t)k * sizeof *given);
    assert_int_equal(l->draws, draws + (u->hot ? (uint64_t)l->n_new : 0));
    int drafted = l->tree.n > 1 ? in_tree(&l->tree, given, n_given) : 0;
    if (l->n_new < n_given && !l->stopped)
        assert_int_equal(l->n_new, min_int(max_new, 1 + drafted));
    for (int i = 1; i < l->tree.n; i++)
        if (l->tree.fate[i] == FATE_ACCEPTED)
            assert_int_equal(l->tree.token[i], l->tok.v[n + l->tree.depth[i] - 1]);
    sum->forced += k;
    sum->accepted += min_int(k, l->rec.accepted);
    sum->bonus += k > l->rec.accepted;
    sum->steps++;
}

/* The target's own tokens, given back, change no bit; other tokens lead to the state of a prompt
 * that ends with them. */
static void one_configuration(struct mock *m, int config, struct totals *sum)
{
    static struct runtime r;
    struct runtime_shape rt;
    struct setup u = random_setup(m, &rt);
    struct err e = {0};
    struct ids tok = {0}, given = {0}, whole = {0};
    struct lane a, b, c;
    for (int n = 2 + below(30); n > 0; n--)
        ids_add(&tok, below(MOCK_V));
    must(runtime_open(&r, mock_device(m), &m->m, u.drafter ? &m->d : NULL, &rt, &e), &e);
    r.fuse = below(2);
    begin(&r, &a, &u, &tok, NULL);
    for (int i = 1 + below(LONGEST); i > 0; i--) { /* its own tokens with others in between */
        bool own = below(4) > 0;
        if (a.tok.n <= tok.n + given.n) {
            struct lane *l = &a;
            struct step_limits lim = {40};
            must(lane_step(&r, &l, &lim, 1, shape_of(&u), &e), &e);
        }
        ids_add(&given, own ? a.tok.v[tok.n + given.n] : below(MOCK_V));
    }
    begin(&r, &b, &u, &tok, &given);
    assert_int_equal(b.rec.forced, 1);
    assert_int_equal(b.tok.v[tok.n], given.v[0]);
    while (b.n_given > 0)
        step_given(&r, &b, &u, below(4) ? 40 : 1 + below(4), sum);
    ids_cat(&whole, tok.v, tok.n);
    ids_cat(&whole, given.v, given.n);
    int after = b.tok.n - whole.n; /* tokens that the last cycle emitted after the given ones */
    begin(&r, &c, &u, &whole, NULL);
    if (u.hot) { /* the uniforms of the places after the given tokens */
        c.tok.n = whole.n;
        lane_free(&r, &c);
        c = (struct lane){.tap_row = -1, .seed = 7, .how = b.how, .draws = (uint64_t)given.n};
        ids_cat(&c.tok, whole.v, whole.n);
        lane_prompt(&r, &c, u.chunk, shape_of(&u));
    }
    lane_run(&r, &b, 20, shape_of(&u));
    lane_run(&r, &c, 19 + after, shape_of(&u));
    if (b.tok.n != c.tok.n || memcmp(b.tok.v, c.tok.v, (size_t)b.tok.n * sizeof *b.tok.v))
        fail_msg("configuration %d: tokens after the given ones differ", config);
    const struct seq *seqs[] = {&a.seq, &b.seq, &c.seq};
    must(check_sweep(&r.kv, seqs, 3, &e), &e);
    lane_free(&r, &a);
    lane_free(&r, &b);
    lane_free(&r, &c);
    ids_free(&tok);
    ids_free(&given);
    ids_free(&whole);
    runtime_close(&r);
}

static void test_given_tokens_come_first_and_the_rest_follows_from_them(void **state)
{
    (void)state;
    struct mock m;
    struct totals sum = {0};
    mock_open(&m, 5);
    dice = 17;
    for (int i = 0; i < 1500; i++)
        one_configuration(&m, i, &sum);
    print_message("# %d steps with given tokens: %d tokens, %d of them drafted, %d as bonus\n",
                  sum.steps, sum.forced, sum.accepted, sum.bonus);
    assert_true(sum.accepted > 1000 && sum.bonus > 1000);
    mock_close(&m);
}

static void same_step(const struct lane *x, const struct lane *y)
{
    struct step_rec p = x->rec, q = y->rec;
    if (p.fused) /* see struct step_rec */
        p.page_digest = q.page_digest;
    assert_memory_equal(&p, &q, offsetof(struct step_rec, us_draft));
    assert_int_equal(x->tree.n, y->tree.n);
    assert_int_equal(tree_digest(&x->tree), tree_digest(&y->tree));
    size_t n = (size_t)x->tree.n * sizeof(float);
    assert_memory_equal(x->tree.u, y->tree.u, n);
    assert_memory_equal(x->tree.p, y->tree.p, n);
}

/* Two runtimes, so that the pages are the same ones: one lane chooses (perhaps in fused cycles),
 * the other is given what was chosen. */
static void test_the_targets_own_tokens_given_back_change_no_bit(void **state)
{
    (void)state;
    static struct runtime r[2];
    struct mock m;
    uint64_t fused = 0;
    mock_open(&m, 5);
    dice = 18;
    for (int config = 0; config < 400; config++) {
        struct runtime_shape rt;
        struct setup u = random_setup(&m, &rt);
        struct err e = {0};
        struct ids tok = {0}, given = {0};
        struct lane a, b, plain, *live[2] = {&a, &b};
        for (int n = 2 + below(30); n > 0; n--)
            ids_add(&tok, below(MOCK_V));
        for (int i = 0; i < 2; i++)
            must(runtime_open(&r[i], mock_device(&m), &m.m, u.drafter ? &m.d : NULL, &rt, &e), &e);
        r[0].fuse = config % 2;
        begin(&r[0], &plain, &u, &tok, NULL);
        lane_run(&r[0], &plain, 60, shape_of(&u));
        ids_cat(&given, plain.tok.v + tok.n, plain.tok.n - tok.n);
        lane_free(&r[0], &plain);
        kv_reset(&r[0].kv);
        kv_reset(&r[1].kv);
        begin(&r[0], &a, &u, &tok, NULL);
        begin(&r[1], &b, &u, &tok, &given);
        same_step(&a, &b);
        while (b.n_given > 6) {
            struct step_limits lim = {40};
            must(lane_step(&r[0], &live[0], &lim, 1, shape_of(&u), &e), &e);
            must(lane_step(&r[1], &live[1], &lim, 1, shape_of(&u), &e), &e);
            same_step(&a, &b);
            assert_int_equal(b.rec.forced, b.n_new);
        }
        assert_int_equal(r[1].n_fused, 0);
        fused += r[0].n_fused;
        for (int i = 0; i < 2; i++) {
            lane_free(&r[i], live[i]);
            runtime_close(&r[i]);
        }
        ids_free(&tok);
        ids_free(&given);
    }
    assert_true(fused > 500);
    mock_close(&m);
}

/* A given stop token ends the reply like a chosen one, and the tokens after it stay unused. */
static void test_a_given_stop_token_ends_the_reply(void **state)
{
    (void)state;
    static struct runtime r;
    struct mock m;
    int ended_in_tree = 0;
    mock_open(&m, 5);
    dice = 19;
    for (int config = 0; config < 400; config++) {
        struct runtime_shape rt;
        struct setup u = random_setup(&m, &rt);
        struct err e = {0};
        struct ids tok = {0}, given = {0};
        struct lane l, plain;
        for (int n = 2 + below(30); n > 0; n--)
            ids_add(&tok, below(MOCK_V));
        must(runtime_open(&r, mock_device(&m), &m.m, u.drafter ? &m.d : NULL, &rt, &e), &e);
        begin(&r, &plain, &u, &tok, NULL); /* tokens that a tree may hold */
        lane_run(&r, &plain, 30, shape_of(&u));
        ids_cat(&given, plain.tok.v + tok.n, 20);
        r.stop[0] = given.v[1 + below(10)];
        r.n_stop = 1;
        int at = 0;
        while (given.v[at] != r.stop[0])
            at++;
        begin(&r, &l, &u, &tok, &given);
        while (!l.stopped && l.tok.n < tok.n + 20) {
            struct lane *one = &l;
            struct step_limits lim = {below(3) ? 40 : 1 + below(3)};
            must(lane_step(&r, &one, &lim, 1, shape_of(&u), &e), &e);
        }
        assert_true(l.stopped);
        assert_int_equal(l.tok.n, tok.n + at + 1);
        assert_int_equal(l.tok.v[l.tok.n - 1], r.stop[0]);
        assert_int_equal(l.n_given, 20 - at - 1);
        ended_in_tree += l.tree.n > 1 && l.n_new > 1;
        lane_free(&r, &l);
        lane_free(&r, &plain);
        ids_free(&tok);
        ids_free(&given);
        runtime_close(&r);
    }
    assert_true(ended_in_tree > 40);
    mock_close(&m);
}

/* A fork has no given tokens: they belong to one reply. */
static void test_forks_have_no_given_tokens(void **state)
{
    (void)state;
    static struct runtime r;
    struct mock m;
    struct err e = {0};
    struct lane l, other;
    struct ids tok = {0};
    int32_t given[] = {1, 2, 3};
    mock_open(&m, 5);
    must(runtime_open(&r, mock_device(&m), &m.m, NULL,
                      &(struct runtime_shape){.page_size = 4, .context = MOCK_MAX, .lanes = 2}, &e),
         &e);
    ids_add(&tok, 3);
    ids_add(&tok, 4);
    begin(&r, &l, &(struct setup){.chunk = 8}, &tok, &(struct ids){.v = given, .n = 3});
    lane_fork(&r, &l, &other);
    assert_int_equal(l.n_given, 2);
    assert_int_equal(other.n_given, 0);
    lane_free(&r, &other);
    lane_free(&r, &l);
    ids_free(&tok);
    runtime_close(&r);
    mock_close(&m);
}

/* ---- as a request ---------------------------------------------------------------------------- */

static void ask_given(struct backend *g, enum request_kind kind, const int32_t *given, int n,
                      bool only, struct brought *b)
{
    struct err e = {0};
    struct request rq = {.kind = kind, .text = xstrdup("What is a page table?"),
                         .only_given = only};
    ids_cat(&rq.given, given, n);
    brought_clear(b);
    must(backend_submit(g, &rq, &e), &e);
    settle(g, b);
}

static void test_a_request_gives_tokens_and_may_end_with_them(void **state)
{
    (void)state;
    struct engine_opts o = serve_opts();
    struct backend *g = serve_open(&o);
    struct brought own = {0}, b = {0};
    int32_t other[40];
    ask_given(g, RQ_SAY, NULL, 0, false, &own);
    int n = own.end_tokens.n;
    assert_true(n > 10 && n <= 40);
    memcpy(other, own.end_tokens.v, (size_t)n * sizeof *other);
    other[4] = (other[4] + 1) % backend_info(g)->vocab;
    ask_given(g, RQ_REGEN, other, 7, true, &b);
    assert_int_equal(b.reason[0], STOP_CANCEL);
    assert_int_equal(b.end_tokens.n, 7);
    assert_memory_equal(b.end_tokens.v, other, 7 * sizeof *other);
    ask_given(g, RQ_REGEN, other, 7, false, &b); /* the reply goes on by itself */
    assert_true(b.reason[0] == STOP_MAX || b.reason[0] == STOP_END);
    assert_true(b.end_tokens.n > 7);
    assert_memory_equal(b.end_tokens.v, other, 7 * sizeof *other);
    ask_given(g, RQ_REGEN, own.end_tokens.v, n, true, &b); /* the reply's own end comes first */
    assert_int_equal(b.reason[0], own.reason[0]);
    assert_memory_equal(b.end_tokens.v, own.end_tokens.v, (size_t)n * sizeof *other);
    ask_given(g, RQ_REGEN, NULL, 0, false, &b); /* given tokens do not outlive their turn */
    assert_int_equal(b.end_tokens.n, n);
    assert_memory_equal(b.end_tokens.v, own.end_tokens.v, (size_t)n * sizeof *other);
    other[2] = backend_info(g)->vocab;
    ask_given(g, RQ_REGEN, other, 7, false, &b);
    assert_int_equal(b.n_begin, 0);
    assert_non_null(strstr(b.notices.p, "given token 2 is "));
    backend_close(g);
    brought_free(&own);
    brought_free(&b);
}

/* Asks for a reply and compares, token by token, the bytes that the text events give to it with
 * those that /tokens shows: all of them, or none of a special token. Returns the most tokens of one
 * step. */
static int compare_spans(struct backend *g, const struct ids *given, bool *multi)
{
    struct err e = {0};
    struct event ev;
    struct ids tok = {0};
    struct buf *of = xcalloc(400, sizeof *of);
    struct request rq = {.kind = RQ_SAY, .text = xstrdup("What is a page table?"),
                         .only_given = given->n > 0};
    int burst = 0;
    ids_cat(&rq.given, given->v, given->n);
    must(backend_submit(g, &rq, &e), &e);
    for (; serve_event(g, &ev); event_free(&ev)) {
        for (int i = 0, from = 0; ev.kind == EV_TEXT && i < ev.ends.n; from = ev.ends.v[i++])
            buf_add(&of[ev.first + i], ev.text.p + from, (size_t)(ev.ends.v[i] - from));
        if (ev.kind == EV_STEP) {
            ids_cat(&tok, ev.tokens.v, ev.tokens.n);
            burst = max_int(burst, ev.tokens.n);
        }
    }
    assert_true(tok.n > 0 && tok.n < 400);
    for (int i = 0; i < tok.n; i++) {
        size_t n;
        const char *p = backend_token(g, tok.v[i], &n);
        if (i + 1 < tok.n || of[i].n) { /* the last one is a stop token */
            assert_int_equal(of[i].n, n);
            assert_memory_equal(of[i].p, p, n);
        }
        *multi |= of[i].n == 1 && (of[i].p[0] & 0x80);
        buf_free(&of[i]);
    }
    ids_free(&tok);
    free(of);
    return burst;
}

static void test_text_events_name_the_tokens_that_the_steps_have(void **state)
{
    (void)state;
    struct engine_opts o = serve_opts();
    struct ids none = {0}, given = {0};
    bool multi = false;
    o.settings.max_tokens = 100;
    struct backend *g = serve_open(&o);
    assert_true(compare_spans(g, &none, &multi) > 2 && !multi); /* drafted tokens come in bursts */
    /* characters of several tokens, at all places of a step */
    for (int round = 0; round < 8; round++) {
        static const char text[] = "The \xE4\xB8\xAD\xE6\x96\x87 \xF0\x9F\x98\x80\xE2\x82\xAC end "
        "of it";
        given.n = 0;
        for (int i = 0; i < round; i++)
            ids_cat(&given, (int32_t[]){tok_find(engine_of(g)->loaded.tok, "a")}, 1);
        assert_true(tok_encode(engine_of(g)->loaded.tok, text, strlen(text), TOK_INNER, &given,
                               NULL));
        compare_spans(g, &given, &multi);
    }
    assert_true(multi);
    ids_free(&given);
    backend_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_given_tokens_come_first_and_the_rest_follows_from_them),
        cmocka_unit_test(test_the_targets_own_tokens_given_back_change_no_bit),
        cmocka_unit_test(test_a_given_stop_token_ends_the_reply),
        cmocka_unit_test(test_forks_have_no_given_tokens),
        cmocka_unit_test(test_a_request_gives_tokens_and_may_end_with_them),
        cmocka_unit_test(test_text_events_name_the_tokens_that_the_steps_have),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
