/* test_mock.c - ten thousand random configurations of the whole engine over a model that is a hash
 * of what it reads: page sizes, pools, chunks, trees, drafters, forks, evictions, batches. Every
 * lane must say what the oracle says, which knows none of them. */
#include "tests/chance.h"
#include "tests/few.h"
#include "tests/mock.h"

#include "engine/bugs.h"

static int pick(const int *v, int n)
{
    return v[below(n)];
}
#define PICK(...)                                                                                  \
    pick((const int[]){__VA_ARGS__}, (int)(sizeof((int[]){__VA_ARGS__}) / sizeof(int)))

struct setup {
    int P, window, chunk, lanes,
        drafter; /* drafter: 0 none, 1, 2 EAGLE3 (2: with a window), 3 frozen, 4 n-grams, 5, 6
                    DFlash (6: with a window), 7, 8 P-EAGLE (8: with a window), 9 DSpark */
    int swa;                              /* 0: the least that suffices, 1: twice that, 2: full */
    struct tree_shape shape;
    bool strict, chunked; /* chunked: chunks of `window` keys in place of the window */
};

static void random_setup(struct setup *s)
{
    s->P = PICK(1, 2, 16, 64);
    s->window = PICK(1, 2, 5, 9, 33);
    s->chunk = PICK(1, 3, max_int(1, s->P - 1), s->P, s->P + 1, 512);
    s->lanes = PICK(1, 1, 2, 3);
    s->drafter = below(10);
    s->swa = below(3);
    s->shape = (struct tree_shape){1 + below(5), PICK(1, 4, 8), 2 + below(20)};
    s->strict = below(4) == 0;
    s->chunked = s->drafter != 3 && below(4) == 0;
}

static struct runtime_shape runtime_of(const struct setup *s)
{
    int P = s->P, rows = min_int(s->chunk, 64);
    /* a lane at work: its window, the pass in flight, a border page; twice, as a checkpoint holds
     * what the lane goes on from */
    int one = div_up(s->window + 1, P) + 1 + div_up(max_int(rows, s->shape.nodes), P) + 1;
    struct runtime_shape r = {.page_size = P, .context = MOCK_MAX, .lanes = 2 * s->lanes};
    r.swa_pages = s->swa == 2 ? 0 : GUARD_PAGES + (s->swa + 1) * 2 * s->lanes * one;
    return r;
}

struct run {
    struct lane lane;
    struct mock_oracle oracle;
    int fed;    /* tokens the oracle has taken */
    int prompt; /* tokens given */
    int want;   /* length at which the lane is done */
};

/* Every token of the lane behind its prompt is the oracle's. */
static void judge(struct run *r, const struct setup *s, int config)
{
    int32_t next = 0;
    while (r->fed < r->lane.tok.n) {
        if (r->fed >= r->prompt && r->lane.tok.v[r->fed] != next)
            fail_msg(
                "configuration %d (page size %d, window %d, chunk %d, %d lanes, drafter %d, swa "
                "%d, tree %d-%d-%d): token %d is %d, expected %d",
                config, s->P, s->window, s->chunk, s->lanes, s->drafter, s->swa, s->shape.steps,
                s->shape.topk, s->shape.nodes, r->fed, r->lane.tok.v[r->fed], next);
        next = mock_next(&r->oracle, r->lane.tok.v[r->fed++]);
    }
    r->oracle.n = r->fed = 0; /* the successor of the last token is computed again next time */
}

static void prompt(struct runtime *runtime, struct run *r, const struct setup *s)
{
    struct lane *l = &r->lane;
    struct err e = {0};
    while (l->seq.committed < l->tok.n) {
        int upto = min_int(l->seq.committed + min_int(s->chunk, 64), l->tok.n);
        bool last = upto == l->tok.n;
        must(lane_extend(runtime, l, upto, last, s->drafter != 0, s->shape.topk, &e), &e);
        if (last)
            break;
    }
}

/* Continues where a copy of another prompt's head stands, or from nothing. */
static void start(struct runtime *runtime, struct run *r, const struct setup *s,
                  const struct ids *tok, struct lane *cached)
{
    if (cached) {
        lane_park(runtime, cached);
        lane_fork(runtime, cached, &r->lane);
    } else {
        r->lane = (struct lane){.tap_row = -1};
    }
    r->lane.tok.n = 0;
    ids_cat(&r->lane.tok, tok->v, tok->n);
    r->prompt = tok->n;
    r->want = tok->n + 8 + below(40);
    for (int l = 0; l < MOCK_LAYERS; l++)
        r->oracle.window[l] = l == 1 ? 0 : s->chunked ? -s->window : s->window;
    prompt(runtime, r, s);
    lane_park(runtime, &r->lane);
}

static uint64_t steps, accepted, drafted, evicted, forked, windowed;

/* Gives every page back and computes it all again. */
static void evict(struct runtime *runtime, struct run *r, const struct setup *s)
{
    struct ids tok = {0};
    ids_cat(&tok, r->lane.tok.v, r->lane.tok.n);
    lane_free(runtime, &r->lane);
    r->lane = (struct lane){.tap_row = -1, .tok = tok};
    prompt(runtime, r, s);
    lane_park(runtime, &r->lane);
    evicted++;
}

static void decode(struct runtime *runtime, struct run *run, const struct setup *s)
{
    for (;;) {
        struct lane *live[3];
        struct step_limits lim[3];
        struct err e = {0};
        int n = 0;
        for (int i = 0; i < s->lanes; i++)
            if (run[i].lane.tok.n < run[i].want) {
                lim[n].max_new = run[i].want - run[i].lane.tok.n;
                live[n++] = &run[i].lane;
            }
        if (n == 0)
            return;
        bool plain =
            s->drafter == 0 || below(8) == 0; /* a plain step between others, now and then */
        must(lane_step(runtime, live, lim, n, plain ? NULL : &s->shape, &e), &e);
        for (int i = 0; i < n; i++) {
            steps++;
            accepted += (uint64_t)live[i]->rec.accepted;
            drafted += (uint64_t)live[i]->rec.drafted;
        }
        if (below(24) == 0)
            evict(runtime, &run[below(s->lanes)], s);
    }
}

static void one_configuration(struct mock *m, int config)
{
    struct setup s;
    struct runtime runtime;
    struct err e = {0};
    static struct run run[3];
    struct ids tok[3];
    random_setup(&s);
    m->m.cfg.window = m->layer[0].window = m->layer[2].window = s.window;
    m->m.cfg.chunked = s.chunked;
    if (s.drafter == 4)
        m->d = (struct draft){.kind = "ngram"};
    else if (s.drafter == 3)
        mock_frozen(m);
    else if (s.drafter == 9)
        mock_dspark(m, 0);
    else if (s.drafter > 6)
        mock_peagle(m, s.drafter == 8 ? 7 : 0);
    else if (s.drafter > 4)
        mock_dflash(m, s.drafter == 6 ? 7 : 0);
    else
        mock_eagle(m, s.drafter == 2 ? 7 : 0);
    struct runtime_shape shape = runtime_of(&s);
    must(runtime_open(&runtime, mock_device(m), &m->m, s.drafter ? &m->d : NULL, &shape, &e), &e);
    runtime.pass.check.level = s.strict ? CHECK_STRICT : CHECK_ON;
    runtime.kv.draft_window = runtime.kv.has_draft && below(2) ? 1 + below(40) : 0;
    memset(run, 0, sizeof run);
    memset(tok, 0, sizeof tok);
    int common = below(2) ? 1 + below(40) : 0;
    struct lane cached = {.tap_row = -1};
    for (int i = 0; i < s.lanes; i++) {
        ids_cat(&tok[i], tok[0].v, i ? min_int(common, tok[0].n) : 0);
        for (int n = 1 + below(60) + (i == 0 ? common : 0); tok[i].n < n + (i ? common : 0);)
            ids_add(&tok[i], below(MOCK_V));
    }
    if (common && common < tok[0].n) { /* the head that all prompts share is computed once */
        ids_cat(&cached.tok, tok[0].v, tok[0].n);
        while (cached.seq.committed < common)
            must(lane_extend(&runtime, &cached,
                             min_int(common, cached.seq.committed + min_int(s.chunk, 64)), false,
                             s.drafter != 0, s.shape.topk, &e),
                 &e);
        forked++;
    }
    for (int i = 0; i < s.lanes; i++)
        start(&runtime, &run[i], &s, &tok[i], cached.seq.committed ? &cached : NULL);
    lane_free(&runtime, &cached);
    decode(&runtime, run, &s);
    const struct seq *all[3];
    for (int i = 0; i < s.lanes; i++) {
        judge(&run[i], &s, config);
        all[i] = &run[i].lane.seq;
    }
    must(check_sweep(&runtime.kv, all, s.lanes, &e), &e);
    windowed += run[0].lane.seq.draft_lo > 0;
    for (int i = 0; i < s.lanes; i++) {
        lane_free(&runtime, &run[i].lane);
        ids_free(&tok[i]);
    }
    must(kv_check(&runtime.kv, NULL, 0, &e), &e);
    assert_int_equal(runtime.pass.check.violations, 0);
    runtime_close(&runtime);
}

static void test_every_configuration_says_what_the_oracle_says(void **state)
{
    (void)state;
    int configs = rounds(4000, 10000);
    struct mock m;
    mock_open(&m, 5);
    dice = 20;
    for (int i = 0; i < configs; i++)
        one_configuration(&m, i);
    print_message("%d configurations, %llu cycles, %llu of %llu drafted tokens accepted, %llu "
                  "evictions, %llu shared heads\n", configs, (unsigned long long)steps,
                  (unsigned long long)accepted, (unsigned long long)drafted,
                  (unsigned long long)evicted, (unsigned long long)forked);
    assert_true(accepted * 20 > drafted); /* the trees are walked, not only built */
    assert_true(evicted > 400 && forked > 1000 && windowed > 300);
    mock_close(&m);
}

/* The test can fail: with a fault on and the checker off, the oracle disagrees. */
static void test_the_oracle_notices_a_fault(void **state)
{
    (void)state;
    struct mock m;
    struct runtime runtime;
    struct err e = {0};
    mock_open(&m, 5);
    mock_eagle(&m, 0);
    struct runtime_shape shape = {.page_size = 1, .context = MOCK_MAX};
    for (int on = 0; on < 2; on++) {
        struct lane l = {.tap_row = -1}, *lp = &l;
        struct mock_oracle o = {.window = {5, 0, 5}};
        const struct tree_shape tree = {4, 4, 12};
        struct bugs bugs = {0};
        bug_switch(&bugs, BUG_TREE_WINDOW_BY_INDEX, on);
        shape.bugs = &bugs;
        must(runtime_open(&runtime, mock_device(&m), &m.m, &m.d, &shape, &e), &e);
        runtime.pass.check.level = on ? CHECK_OFF : CHECK_ON;
        for (int i = 0; i < 20; i++)
            ids_add(&l.tok, i % MOCK_V);
        while (l.seq.committed < 20)
            must(lane_extend(&runtime, &l, min_int(20, l.seq.committed + 6),
                             l.seq.committed + 6 >= 20, true, 4, &e),
                 &e);
        while (l.tok.n < 150)
            must(lane_step(&runtime, &lp, &(struct step_limits){150 - l.tok.n}, 1, &tree, &e), &e);
        int wrong = 0;
        int32_t next = 0;
        for (int i = 0; i < l.tok.n; i++) {
            wrong += i >= 20 && l.tok.v[i] != next;
            next = mock_next(&o, l.tok.v[i]);
        }
        assert_int_equal(wrong > 0, on);
        lane_free(&runtime, &l);
        runtime_close(&runtime);
    }
    mock_close(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_configuration_says_what_the_oracle_says),
        cmocka_unit_test(test_the_oracle_notices_a_fault),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
