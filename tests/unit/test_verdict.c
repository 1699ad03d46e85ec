/* test_verdict.c - sessions recorded with the checker off, with seeded faults in tables, maps,
 * extents, windows, positions, trees, free lists, captured rows, cells, weights and the sampler:
 * the checker names the rule and the step afterwards, and the comparison with the clean run names
 * the first step and, where the fault reaches the target's numbers, layer and operation.
 *
 * And changes that only round differently: none is called a bug. AERIE_CASES=N runs N cases each
 * way and prints the table. */
#include "repl/text/sheet.h"
#include "tests/few.h"
#include "tests/rounding_kit.h"

static const struct scene configs[] = {
    {16, 4, 5, 5, true, 0, 1, 256, 20, {"Tell me a short story.", "What are you?", NULL}},
    {4, 2, 3, 5, true, 0, 1, 17, 16, {"Explain speculative decoding in detail.", NULL}},
    {1, 3, 4, 10, true, 0.8, 7, 64, 40, {"Write a poem about the sea.", NULL}},
    {16, 1, 5, 6, true, 0, 1, 7, 50, {"Tell me a story about Clara the owl.", NULL}},
};
enum { N_CONFIGS = sizeof configs / sizeof *configs };
static struct recorded clean[N_CONFIGS];

static int record_clean(void **state)
{
    (void)state;
    for (int i = 0; i < (getenv("AERIE_CASES") ? N_CONFIGS : 2); i++) /* others use none else */
        record(&clean[i], &configs[i], NULL, NULL);
    return 0;
}

static int free_clean(void **state)
{
    (void)state;
    for (int i = 0; i < N_CONFIGS; i++)
        recorded_free(&clean[i]);
    return 0;
}

static int cases(int few)
{
    const char *n = getenv("AERIE_CASES");
    return n && atoi(n) > 0 ? atoi(n) : few;
}

static void print_report(const struct report *r)
{
    struct buf b = {0};
    struct sheet s = {.ascii = true};
    verdict_print(r, ON_SHEET(&s));
    sheet_to_text(&s, false, &b);
    print_message("%s", b.p ? b.p : "");
    buf_free(&b);
    sheet_free(&s);
}

/* ---- faults ---------------------------------------------------------------------------------- */

/* How often each verdict was given; columns in the order of enum verdict. */
enum { N_VERDICTS = VERDICT_OPEN + 1 };

static void print_row(const char *name, const int *n)
{
    print_message("# %-34s %6d %6d %9d %8d %6d\n", name, n[VERDICT_EQUAL], n[VERDICT_BUG],
                  n[VERDICT_ROUNDING], n[VERDICT_PURPOSE], n[VERDICT_OPEN]);
}

static void print_head(void)
{
    print_message("# %-34s %6s %6s %9s %8s %6s\n", "", "equal", "bug", "rounding", "purpose",
                  "open");
}

static struct {
    int struck, silent, bug, other, by_rule, placed;
} tally;

static bool names_one_of(const char *message, const char *rules)
{
    size_t n = strcspn(message, " ");
    for (const char *p = rules; *p; p += strcspn(p, " "), p += *p == ' ')
        if (strcspn(p, " ") == n && strncmp(p, message, n) == 0)
            return true;
    return false;
}

/* The checker, strict, over the session that was recorded without it. */
static void check_afterwards(const struct recorded *b, struct fault *f)
{
    struct run_facts facts;
    struct err e = {0};
    struct run_ask ask = {.strict = true, .row = -1, .layer = -1};
    struct diff_side s = test_side(&b->script, f, NULL);
    must(side_run(&s, &ask, &facts, &e), &e);
    const char *rule = b->fault.rule;
    if (rule[0] ? !names_one_of(facts.rule, rule) : facts.rule[0])
        fail_msg("%s: expected a rule of \"%s\", got \"%s\"", strike_name(f->kind), rule,
                 facts.rule);
    if (rule[0] && (facts.rule_turn != b->fault.turn || facts.rule_step != b->fault.step))
        fail_msg("%s: struck at step %d.%d, the rule was violated at step %d.%d",
                 strike_name(f->kind),
                 b->fault.turn, b->fault.step, facts.rule_turn, facts.rule_step);
    tally.by_rule += rule[0] != 0;
    run_facts_free(&facts);
}

static void assert_place(const struct report *r, const struct fault *f)
{
    bool right = r->place.found && r->place.layer == f->layer && r->place.at == f->at &&
                 r->turn == f->turn && r->step[0] == f->step;
    if (!right) {
        print_report(r);
        fail_msg("%s: expected step %d.%d, layer %d, point %d", strike_name(f->kind), f->turn,
                 f->step, f->layer, (int)f->at);
    }
    tally.placed++;
}

/* Whether the first difference is where the fault struck: there, or for the free list, whose next
 * page is taken later, after it. */
static bool at_its_step(const struct report *r, const struct fault *f)
{
    const struct difference *d = &r->diff;
    int step = d->step[0] ? d->step[0] : d->step[1];
    bool later = f->kind == S_FREE_LIST || f->may_be_silent;
    later |= f->kind == S_WEIGHT; /* prompt chunks leave no logits: the place is in the first */
    return d->turn > f->turn ? later : d->turn == f->turn &&
           (step == f->step || (later && step > f->step));
}

static void judge_fault(int config, enum strike kind, uint64_t seed, int after)
{
    struct fault f = {.kind = kind, .seed = seed, .after = after};
    struct recorded b;
    struct report r;
    record(&b, &configs[config], &f, NULL);
    if (!b.fault.struck) {
        recorded_free(&b);
        return;
    }
    tally.struck++;
    if (getenv("AERIE_CASES"))
        print_message("# %s of configuration %d at %d.%d, layer %d\n", strike_name(kind), config,
                      b.fault.turn, b.fault.step, b.fault.layer);
    check_afterwards(&b, &f);
    judge(&clean[config], &b, &f, NULL, &r);
    if (!r.diff.class && b.fault.may_be_silent) {
        tally.silent++;
    } else {
        tally.bug += r.verdict == VERDICT_BUG;
        tally.other += r.verdict != VERDICT_BUG;
        if (r.verdict != VERDICT_BUG || !at_its_step(&r, &b.fault)) {
            print_report(&r);
            fail_msg("%s, seed %d of configuration %d struck at step %d.%d", strike_name(kind),
                     (int)seed, config, b.fault.turn, b.fault.step);
        }
        if (b.fault.layer >= 0)
            assert_place(&r, &b.fault);
        else if (r.place.found) {
            print_report(&r);
            fail_msg("%s: it leaves the target alone", strike_name(kind));
        }
    }
    report_free(&r);
    recorded_free(&b);
}

static void test_every_fault_is_a_bug_at_its_step_and_layer(void **state)
{
    (void)state;
    int n = cases(N_STRIKES);
    uint64_t rng = 20240917;
    memset(&tally, 0, sizeof tally);
    for (int i = 0; i < n; i++) {
        rng = mix64(rng);
        uint64_t seed = rng;
        rng = mix64(rng);
        judge_fault(getenv("AERIE_CASES") ? (int)(rng % N_CONFIGS) : 0,
                    (enum strike)(i % N_STRIKES), seed, 20 + (int)((rng >> 20) % 40));
    }
    print_message("# faults: %d struck, %d called bug, %d something else, %d without an effect; "
                  "%d named by a rule, %d by layer and operation\n", tally.struck, tally.bug,
                  tally.other, tally.silent, tally.by_rule, tally.placed);
    assert_int_equal(tally.other, 0);
}

/* ---- rounding -------------------------------------------------------------------------------- */

static struct way way_of(enum other o, uint64_t seed)
{
    struct way w = {.table = rounding_table(o, seed), .bf16 = o == R_BF16 || o == R_CELLS ||
                    o == R_JITTER_BF16};
    if (o == R_THREADS)
        w.threads = 3 - test_threads();
    if (o == R_TWO_PARTS)
        w.opened = put_two_parts;
    return w;
}

/* The configuration, changed where the kind is a change of it. */
static struct scene scene_of(enum other o, int config, uint64_t seed)
{
    static const int sizes[] = {1, 2, 8, 32, 64};
    struct scene c = configs[config];
    if (o == R_PAGES)
        c.page_size = sizes[seed % 5];
    if (o == R_CHUNKS)
        c.chunk = 1 + (int)(seed % 40);
    if (o == R_TREES) {
        c.topk = 1 + (int)(seed % 4);
        c.steps = 1 + (int)(seed / 4 % 5);
        c.nodes = 2 + (int)(seed / 20 % 12);
        c.spec = seed % 7 != 0;
    }
    return c;
}

static enum verdict judge_other(enum other o, int config, uint64_t seed)
{
    struct recorded b;
    struct report r;
    struct way w = way_of(o, seed);
    struct scene c = scene_of(o, config, seed);
    record(&b, &c, NULL, &w);
    judge(&clean[config], &b, NULL, &w, &r);
    enum verdict v = r.verdict;
    bool exact = o >= R_ISA;
    if (v == VERDICT_BUG || v == VERDICT_OPEN || (exact && v != VERDICT_EQUAL)) {
        print_report(&r);
        fail_msg("%s, seed %d of configuration %d", other_name(o), (int)seed, config);
    }
    report_free(&r);
    recorded_free(&b);
    return v;
}

static void test_what_only_rounds_differently_is_no_bug(void **state)
{
    (void)state;
    int n = cases(N_OTHERS), count[N_OTHERS][N_VERDICTS] = {{0}};
    uint64_t rng = 77;
    for (int i = 0; i < n; i++) {
        rng = mix64(rng);
        int config = getenv("AERIE_CASES") ? (int)(rng >> 33) % N_CONFIGS : 1;
        count[i % N_OTHERS][judge_other((enum other)(i % N_OTHERS), config, rng)]++;
    }
    print_head();
    for (int o = 0; o < N_OTHERS; o++)
        print_row(other_name((enum other)o), count[o]);
}

/* A fault on a side that also rounds differently. What a rule names is a bug whatever the band;
 * what only moves numbers is one if it moves them far beyond the band, else the verdict is
 * rounding. */
static enum verdict judge_both(enum other o, int config, enum strike kind, uint64_t seed,
                               bool *ruled)
{
    struct fault f = {.kind = kind, .seed = seed, .after = 20};
    struct recorded b;
    struct report r = {.verdict = VERDICT_EQUAL};
    struct way w = way_of(o, seed);
    record(&b, &configs[config], &f, &w);
    if (b.fault.struck)
        judge(&clean[config], &b, &f, &w, &r);
    *ruled = b.fault.rule[0];
    if (b.fault.struck && *ruled && r.verdict != VERDICT_BUG) {
        print_report(&r);
        fail_msg("%s under %s, seed %d of configuration %d", strike_name(kind), other_name(o),
                 (int)seed, config);
    }
    enum verdict v = b.fault.struck ? r.verdict : (enum verdict)N_VERDICTS;
    report_free(&r);
    recorded_free(&b);
    return v;
}

static void test_a_fault_is_a_bug_under_rounding_too(void **state)
{
    (void)state;
    static const enum other under[] = {R_BF16, R_ORDER, R_CELLS, R_JITTER_F32};
    static const enum strike few[] = {S_SWA_PAGE, S_KEY_CELL};
    int n = cases(2), ruled[N_VERDICTS + 1] = {0}, silent[N_VERDICTS + 1] = {0};
    uint64_t rng = 4711;
    for (int i = 0; i < n; i++) {
        rng = mix64(rng);
        bool by_rule, all = getenv("AERIE_CASES") != NULL;
        enum verdict v = judge_both(under[i % 4], all ? (int)(rng >> 33) % N_CONFIGS : 1,
                                    all ? (enum strike)(rng % N_STRIKES) : few[i % 2], rng,
                                    &by_rule);
        (by_rule ? ruled : silent)[v]++;
    }
    print_head();
    print_row("faults that a rule names", ruled);
    print_row("faults in numbers alone", silent);
}

/* ---- turns that were cancelled --------------------------------------------------------------- */

static struct act *turn_act(struct script *s, int n)
{
    for (int i = 0; i < s->n; i++)
        if (s->act[i].is_turn && s->act[i].user.n == n)
            return &s->act[i];
    fail_msg("no turn %d", n);
    return NULL;
}

static void drop_results(struct act *a)
{
    a->user.tokens.n = a->reply.tokens.n = 0;
    for (int i = 0; i < a->n_step; i++)
        step_row_free(&a->step[i]);
    free(a->step);
    free(a->reply.text);
    a->step = NULL;
    a->reply.text = NULL;
    a->n_step = 0;
}

/* Records the scene, its first turn cancelled after so many steps. */
static void record_cancelled(struct recorded *r, const struct scene *c, int steps)
{
    struct run_facts facts;
    struct run_ask ask = {.row = -1, .layer = -1};
    struct err e = {0};
    int n = 0;
    record(r, c, NULL, NULL);
    struct act *a = turn_act(&r->script, 1);
    assert_true(a->n_step > steps);
    for (int i = 0; i < steps; i++)
        n += a->step[i].tokens.n;
    a->reply.stop = STOP_CANCEL;
    a->reply.n_steps = steps;
    a->reply.tokens.n = n;
    drop_results(turn_act(&r->script, 2));
    struct diff_side s = test_side(&r->script, NULL, NULL);
    must(side_run(&s, &ask, &facts, &e), &e);
    trace_free(&r->log);
    r->log = facts.trace;
    facts.trace = (struct trace){0};
    run_facts_free(&facts);
    assert_true(r->log.n == 2 && r->log.turn[0].n_step == steps && r->log.turn[0].reply.n == n);
    drop_results(a);
    keep_results(&r->script, &r->log);
}

static void test_a_cancelled_turn_is_compared_up_to_there_under_every_change(void **state)
{
    (void)state;
    static const struct scene scene = {16, 2, 3, 6, true, 0, 1, 9, 24,
                                       {"Tell me a short story.", "What are you?", NULL}};
    static const char *const change[] = {"page_size=4", "seed=3", "draft.topk=1", "draft.steps=1",
                                         "spec=off", "chunk=5"};
    static const int after[] = {0, 1, 2, 5}; /* 1: within the prompt */
    for (int i = 0; i < 4; i++) {
        struct recorded r;
        record_cancelled(&r, &scene, after[i]);
        int tokens = r.log.turn[0].reply.n + r.log.turn[1].reply.n;
        assert_true((r.log.turn[0].reply.n > 0) == (i > 1));
        for (int k = 0; k < (int)(sizeof change / sizeof *change); k++) {
            if (rounds(1, 0) && (i + k) % 2)
                continue; /* usually each change after two of the four */
            struct verdict_ask ask = {.a = test_side(&r.script, NULL, NULL),
                                      .b = test_side(&r.script, NULL, NULL),
                                      .log_a = &r.log, .names = {"in a", "in b"},
                                      .who = {"a", "b"}};
            struct report rep;
            struct err e = {0};
            ask.b.how.with = &change[k];
            ask.b.how.n_with = 1;
            must(verdict_find(&ask, &rep, &e), &e);
            if (rep.verdict != VERDICT_EQUAL || rep.counts.turns != 2 || rep.counts.stopped != 1 ||
                rep.counts.tokens != tokens) {
                print_report(&rep);
                fail_msg("cancelled after %d steps, %s: %d of %d tokens", after[i], change[k],
                         rep.counts.tokens, tokens);
            }
            report_free(&rep);
        }
        recorded_free(&r);
    }
}

/* Every change that is asked for is made, however many there are. */
static void test_no_change_is_left_out(void **state)
{
    (void)state;
    static const struct scene scene = {16, 2, 3, 6, true, 0, 1, 9, 4, {"What are you?", NULL}};
    enum { MANY = 90 };
    const char *change[MANY];
    struct recorded r;
    struct run_ask ask = {.strict = true};
    struct run_facts facts;
    struct err e = {0};
    record(&r, &scene, NULL, NULL);
    for (int i = 0; i < MANY; i++)
        change[i] = i < MANY - 1 ? "chunk=5" : "page_size=4";
    struct diff_side s = test_side(&r.script, NULL, NULL);
    s.how.with = change;
    s.how.n_with = MANY;
    must(side_run(&s, &ask, &facts, &e), &e);
    assert_non_null(strstr(facts.about.p, "page_size=4\n"));
    run_facts_free(&facts);
    recorded_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_fault_is_a_bug_at_its_step_and_layer),
        cmocka_unit_test(test_what_only_rounds_differently_is_no_bug),
        cmocka_unit_test(test_a_fault_is_a_bug_under_rounding_too),
        cmocka_unit_test(test_a_cancelled_turn_is_compared_up_to_there_under_every_change),
        cmocka_unit_test(test_no_change_is_left_out),
    };
    return cmocka_run_group_tests(tests, record_clean, free_clean);
}
