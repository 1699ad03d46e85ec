/* test_bugs.c - historical faults: each is named by its rule before anything is launched,
 * does the damage it did with the checker off, and leaves no trace when it is off. */
#include "tests/few.h"
#include "tests/runtimes.h"

#include <math.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/bugs.h"
#include "engine/tools/bugs_try.h"

#define NESTLING "models/nestling/target"
#define NESTLING_DRAFT "models/nestling/draft"

/* ---- the smallest inputs --------------------------------------------------------------------- */

static int shown;

static void try_on(const char *target, const char *draft, bool print)
{
    struct bed b;
    bed_models(&b, target, draft);
    for (int i = 0; i < N_BUGS; i++)
        for (int v = 1; v <= bug_variants((enum bug)i); v++) {
            struct bug_outcome o;
            struct err e = {0};
            must(bug_try(b.dev, &b.m, &b.d, (enum bug)i, v, &o, &e), &e);
            if (o.needs[0])
                continue;
            if (print)
                print_message("%d %s: %s | %d/%d wrong from %d, %d NaN, %.3g %s\n",
                              bug_at((enum bug)i)->number,
                              bug_at((enum bug)i)->variant[v - 1], o.caught, o.wrong, o.rows,
                              o.first, o.nan, (double)o.worst, o.stopped);
            if (!o.rule_right)
                fail_msg("%s: expected %s, got: %s", bug_at((enum bug)i)->name,
                         fault_rule(bug_at((enum bug)i)->rule), o.caught);
            assert_true(strstr(o.caught, " row ") || strstr(o.caught, " column ") ||
                        strstr(o.caught, " request ") || strstr(o.caught, " pages"));
            assert_true(o.prevented > 0); /* kernels that the checker kept from being launched */
            if (o.expected_first < o.rows)
                assert_int_equal(o.first, o.expected_first);
            else
                assert_true(o.stopped[0]);
            shown++;
        }
    bed_close(&b);
}

static void
test_every_fault_is_named_before_launch_and_does_its_damage_without_the_checker(void **state)
{
    (void)state;
    shown = 0;
    try_on("tests/golden/gptoss-a", "tests/golden/eagle3-gptoss-a", true);
    assert_int_equal(shown, 22); /* all but two rules of 26966, which need a frozen drafter */
    try_on("tests/golden/gemma4-a", "tests/golden/gemma4-a-assistant", true);
    assert_true(shown >= 22 + 2 + 15);
    try_on(NESTLING, NESTLING_DRAFT, false);
}

/* ---- low use and high use of the pools ------------------------------------------------------- */

static void prompt_tokens(struct lane *l, int n, int vocab)
{
    for (int i = l->tok.n; i < n; i++)
        ids_add(&l->tok, 3 + (i * 37 + i / 7) % (vocab - 3));
}

/* The logits of a root with two children behind `prefix` tokens; the caller frees. False:
 * refused. */
static float *fork_logits(struct bed *b, int prefix, enum check_level level, struct err *e)
{
    struct lane l = {.tap_row = -1};
    struct tree t;
    prompt_tokens(&l, prefix + 1, b->m.cfg.vocab);
    b->r.pass.check.level = level;
    while (l.seq.committed < prefix)
        must(lane_extend(&b->r, &l, min_int(prefix, l.seq.committed + 3), false, false, 1, e), e);
    tree_init(&t, 5);
    tree_add(&t, 0, 7, 0.5f, -1);
    tree_add(&t, 0, 9, 0.4f, -2);
    struct plan_req req = {.seq = &l.seq, .n = 3, .token = t.token, .tree = &t};
    must(kv_reserve(&b->r.kv, &l.seq, prefix + 3, e), e);
    float *out = NULL;
    if (pass_prepare(&b->r.pass, PLAN_VERIFY, &req, 1, e)) {
        size_t n = (size_t)(3 * b->m.cfg.vocab) * sizeof *out;
        net_forward(&b->r.net, &b->r.pass.plan[PLAN_VERIFY], &b->r.pass.kp, NULL);
        net_logits(&b->r.net, 3, (kbuf){0}, b->r.logits);
        b->dev.k->get(b->dev.d, out = xmalloc(n), b->r.logits, n);
    }
    lane_free(&b->r, &l);
    return out;
}

/* Whether fn() ends the process: a kernel was asked for a slot that its pool does not have. */
static bool kills(void (*fn)(struct bed *b), struct bed *b)
{
    int status = 0;
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        if (!freopen("/dev/null", "w", stderr))
            _exit(9);
        signal(SIGABRT, SIG_DFL);
        fn(b);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

/* One thread: a forked child has no others. */
static void bed_one_thread(struct bed *b, const char *target, const char *draft, int swa_pages)
{
    struct err e = {0};
    *b = (struct bed){0};
    must(device_open(&b->dev, "cpu", 1, NULL, &e), &e);
    bed_load(b, target, draft);
    bed_runtime(b, &(struct runtime_shape){.page_size = 1, .context = 512, .max_rows = 64,
                                           .swa_pages = swa_pages});
}

enum { LOW = 4, HIGH = 300, SWA_PAGES = 96 };

static void fork_high(struct bed *b)
{
    struct err e = {0};
    free(fork_logits(b, HIGH, CHECK_OFF, &e));
}

static void test_untranslated_tables_are_silent_at_low_use_and_fault_at_high_use(void **state)
{
    (void)state;
    struct bed b;
    struct err e = {0};
    bed_one_thread(&b, "tests/golden/gptoss-a", NULL, SWA_PAGES);
    size_t n = (size_t)(3 * b.m.cfg.vocab) * sizeof(float);
    float *low = fork_logits(&b, LOW, CHECK_ON, &e), *high = fork_logits(&b, HIGH, CHECK_ON, &e);
    bed_close(&b);
    bed_one_thread(&b, "tests/golden/gptoss-a", NULL, SWA_PAGES);
    runtime_bug(&b.r, BUG_SWA_UNTRANSLATED, 1);
    /* fresh pools number their pages alike: the wrong table is, by luck, the right one */
    float *bad = fork_logits(&b, LOW, CHECK_ON, &e);
    assert_non_null(bad);
    assert_memory_equal(low, bad, n);
    free(bad);
    assert_true(kills(fork_high, &b));
    assert_null(fork_logits(&b, HIGH, CHECK_ON, &e));
    assert_memory_equal(e.msg, "I4 ", 3);
    runtime_bug(&b.r, BUG_SWA_UNTRANSLATED, 0);
    bad = fork_logits(&b, HIGH, CHECK_ON, &e);
    assert_memory_equal(high, bad, n);
    free(low);
    free(high);
    free(bad);
    bed_close(&b);
}

static bool frozen_guess(struct bed *b, int prefix, enum check_level level, struct guess *g,
                         struct err *e)
{
    struct lane l = {.tap_row = -1};
    prompt_tokens(&l, prefix, b->m.cfg.vocab);
    b->r.pass.check.level = level;
    bool ok = true;
    while (ok && l.seq.committed < prefix) {
        int upto = min_int(prefix, l.seq.committed + 3);
        ok = lane_extend(&b->r, &l, upto, upto == prefix, true, 4, e);
    }
    *g = (struct guess){.n = l.guess.n};
    memcpy(g->token, l.guess.token, (size_t)g->n * sizeof *g->token);
    memcpy(g->logp, l.guess.logp, (size_t)g->n * sizeof *g->logp);
    lane_free(&b->r, &l);
    return ok;
}

static void frozen_high(struct bed *b)
{
    struct guess g;
    struct err e = {0};
    frozen_guess(b, HIGH, CHECK_OFF, &g, &e);
}

static void test_a_stale_pool_is_silent_at_low_use_and_faults_at_high_use(void **state)
{
    (void)state;
    struct bed b;
    struct err e = {0};
    struct guess low, bad;
    bed_one_thread(&b, "tests/golden/gemma4-a", "tests/golden/gemma4-a-assistant", SWA_PAGES);
    must(frozen_guess(&b, LOW, CHECK_ON, &low, &e), &e);
    bed_close(&b);
    bed_one_thread(&b, "tests/golden/gemma4-a", "tests/golden/gemma4-a-assistant", SWA_PAGES);
    runtime_bug(&b.r, BUG_FROZEN_STALE_POOL, 1);
    must(frozen_guess(&b, LOW, CHECK_OFF, &bad, &e), &e);
    assert_memory_equal(&low, &bad, sizeof low);
    assert_true(kills(frozen_high, &b));
    assert_false(
        frozen_guess(&b, LOW, CHECK_ON, &bad, &e)); /* the checker does not wait for luck to end */
    assert_memory_equal(e.msg, "I11 ", 4);
    bed_close(&b);
}

/* ---- an extend in two parts ------------------------------------------------------------------ */

static float *extend_logits(struct bed *b, int prefix, int n, int parts)
{
    struct lane l = {.tap_row = -1};
    struct err e = {0};
    prompt_tokens(&l, prefix + n, b->m.cfg.vocab);
    b->r.parts = 1;
    while (l.seq.committed < prefix)
        must(lane_extend(&b->r, &l, prefix, false, false, 1, &e), &e);
    b->r.pass.opts.parts = parts;
    must(net_two_parts(&b->r.net, &e), &e);
    struct plan_req req = {.seq = &l.seq, .n = n, .token = l.tok.v + prefix};
    must(kv_reserve(&b->r.kv, &l.seq, prefix + n, &e), &e);
    must(pass_prepare(&b->r.pass, PLAN_EXTEND, &req, 1, &e), &e);
    assert_int_equal(plan_two_parts(&b->r.pass.plan[PLAN_EXTEND]), parts == 2);
    float *out = xmalloc((size_t)(n * b->m.cfg.vocab) * sizeof *out);
    net_forward(&b->r.net, &b->r.pass.plan[PLAN_EXTEND], &b->r.pass.kp, NULL);
    net_logits(&b->r.net, n, (kbuf){0}, b->r.logits);
    b->dev.k->get(b->dev.d, out, b->r.logits, (size_t)(n * b->m.cfg.vocab) * sizeof *out);
    lane_free(&b->r, &l);
    return out;
}

static void two_parts_equal(const char *target, int P)
{
    static const int prefix[] = {0, 1, 2, 6, 7, 8, 9, 12, 16, 25}, more[] = {1, 2, 3, 7, 8, 9, 17};
    struct bed b;
    double worst = 0;
    bed_models(&b, target, NULL);
    bed_runtime(&b, &(struct runtime_shape){.page_size = P, .context = 256, .max_rows = 64});
    for (size_t i = 0; i < sizeof prefix / sizeof *prefix; i++)
        for (size_t k = 0; k < sizeof more / sizeof *more; k++) {
            float *one = extend_logits(&b, prefix[i], more[k], 1);
            float *two = extend_logits(&b, prefix[i], more[k], 2);
            double diff = 0, norm = 0;
            for (int j = 0; j < more[k] * b.m.cfg.vocab; j++) {
                diff += (double)(one[j] - two[j]) * (double)(one[j] - two[j]);
                norm += (double)one[j] * (double)one[j];
            }
            if (!(sqrt(diff / norm) < 2e-6))
                fail_msg("%s page size %d, prefix %d, %d new: relative difference %g", target, P,
                         prefix[i], more[k], sqrt(diff / norm));
            worst = diff / norm > worst ? diff / norm : worst;
            free(one);
            free(two);
        }
    print_message("%s, page size %d: 70 combinations, worst relative difference %.2g\n", target, P,
                  sqrt(worst));
    bed_close(&b);
}

/* Windows of 8: rows whose prefix part is empty, whole or cut; sinks counted once; full layers
 * too. */
static void test_two_parts_of_an_extend_equal_one(void **state)
{
    (void)state;
    for (int P = 1; P <= 16; P *= 4) {
        two_parts_equal("tests/golden/gptoss-a", P);
        two_parts_equal("tests/golden/gemma3-a", P);
    }
}

static int allocated, refused; /* buffers held; the n-th allocation from now on fails */

static kbuf alloc_counted(struct kdev *d, size_t bytes, const char *what, struct err *e)
{
    if (refused && --refused == 0) {
        err_set(e, ERR_MODEL, "out of memory: %s", what);
        return (kbuf){0};
    }
    allocated++;
    return kernels_cpu.alloc(d, bytes, what, e);
}

/* Each of the three buffers fails once: the next extend allocates what is missing, and nothing
 * twice. */
static void test_two_parts_without_memory(void **state)
{
    (void)state;
    struct kernels counted = kernels_cpu;
    counted.alloc = alloc_counted;
    for (int nth = 1; nth <= 3; nth++) {
        struct bed b;
        struct err e = {0};
        bed_models(&b, "tests/golden/gptoss-a", NULL);
        bed_runtime(&b, &(struct runtime_shape){.page_size = 4, .context = 64, .max_rows = 16});
        b.r.net.dev.k = &counted;
        allocated = 0;
        refused = nth;
        assert_false(net_two_parts(&b.r.net, &e));
        assert_string_equal(e.msg, "out of memory: activations");
        e = (struct err){0};
        must(net_two_parts(&b.r.net, &e), &e);
        assert_int_equal(allocated, 3);
        must(net_two_parts(&b.r.net, &e), &e);
        assert_int_equal(allocated, 3);
        bed_close(&b);
    }
}

/* ---- what a user would have seen ------------------------------------------------------------- */

struct talk {
    struct ids tok;
    int cycles;
    char stop[256];
};

/* A reply under the bundled model, beside a sequence that has no draft; with faults on, without the
 * checker. */
static void talk(int P, const char *text, const struct tree_shape *s, int chunk,
                 const struct bugs *on, struct talk *t)
{
    struct bed b;
    struct lane l = {.tap_row = -1}, other = {.tap_row = -1}, *lp = &l;
    struct err e = {0};
    *t = (struct talk){.cycles = 0};
    bed_models(&b, NESTLING, NESTLING_DRAFT);
    bed_chat(&b, NESTLING);
    bed_runtime(&b, &(struct runtime_shape){.page_size = P, .context = 2048, .bugs = on});
    bed_stop(&b);
    b.r.pass.check.level = bugs_any(on) ? CHECK_OFF : CHECK_ON;
    chat_prompt(&b, text, &l.tok);
    ids_cat(&other.tok, l.tok.v, 9);
    int n = l.tok.n;
    bool ok = lane_extend(&b.r, &other, 8, false, false, 1, &e);
    while (ok && l.seq.committed < n) {
        int upto = min_int(l.seq.committed + chunk, n);
        ok = lane_extend(&b.r, &l, upto, upto == n, true, s->topk, &e);
    }
    while (ok && !l.stopped && l.tok.n < n + 150) {
        struct step_limits lim = {n + 150 - l.tok.n};
        ok = lane_step(&b.r, &lp, &lim, 1, s, &e);
        t->cycles += ok;
    }
    if (!ok)
        snprintf(t->stop, sizeof t->stop, "%.250s", e.msg);
    ids_cat(&t->tok, l.tok.v + n, l.tok.n - n);
    lane_free(&b.r, &other);
    lane_free(&b.r, &l);
    bed_close(&b);
}

static const struct bugs none;

enum { N_ASKED = 4 };
static char *asked[N_ASKED];

/* Three questions with replies of some length, and a long one whose answer lies far before the
 * window. */
static void take_long(int i, const char *kind, const char *text, void *arg)
{
    (void)i, (void)arg;
    if (!asked[3] && !strcmp(kind, "recall needle"))
        asked[3] = xstrdup(text);
}

static int read_questions(void **state)
{
    (void)state;
    asked[0] = xstrdup("Write a poem about the sea.");
    asked[1] = xstrdup("Tell me a story about a fox.");
    asked[2] = xstrdup("Write a table with the numbers from 1 to 20.");
    each_prompt(take_long, NULL);
    return asked[3] ? 0 : -1;
}

static int free_questions(void **state)
{
    (void)state;
    for (int k = 0; k < N_ASKED; k++)
        free(asked[k]);
    return 0;
}

/* Faults in a drafter's tables cost acceptance and nothing else: the target decides every token. */
static void test_draft_faults_cost_acceptance_and_leave_the_text_alone(void **state)
{
    (void)state;
    static const struct { enum bug bug; int variant; } faults[] = {
        {BUG_DRAFT_EXPAND_OVERFLOW, 1}, {BUG_DRAFT_EXTEND_EXTENT, 1}, {BUG_DRAFT_EXTEND_EXTENT, 2},
        {BUG_FROZEN_STALE_POOL, 2}, {BUG_DRAFT_GROUP_ZERO, 1}};
    const struct tree_shape shape = {5, 4, 16};
    struct talk right[N_ASKED], wrong;
    int cycles = 0, n = rounds(2, N_ASKED);
    for (int k = 0; k < n; k++) {
        talk(4, asked[k], &shape, 64, &none, &right[k]);
        cycles += right[k].cycles;
    }
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        int with = 0;
        struct bugs on = {0};
        bug_switch(&on, faults[i].bug, faults[i].variant);
        for (int k = 0; k < n; k++) {
            talk(4, asked[k], &shape, 64, &on, &wrong);
            with += wrong.cycles;
            assert_int_equal(wrong.tok.n, right[k].tok.n);
            assert_memory_equal(wrong.tok.v, right[k].tok.v, (size_t)wrong.tok.n * 4);
            ids_free(&wrong.tok);
        }
        print_message("%s %s: %d cycles for the same text, right: %d\n",
                      bug_at(faults[i].bug)->name, bug_state_name(faults[i].bug, faults[i].variant),
                      with, cycles);
        assert_true(with > cycles);
    }
    for (int k = 0; k < n; k++)
        ids_free(&right[k].tok);
}

/* Faults in the target's tables change the reply, or end it where the output is no number. Those
 * that only move a window's edge (26513, 9279, 39287) make wrong rows, as shown above, and happen
 * to leave these replies alone: that is what silent means. */
static void test_target_faults_change_the_text(void **state)
{
    (void)state;
    static const struct { enum bug bug; int chunk; } faults[] = {
        {BUG_SWA_UNTRANSLATED, 64}, {BUG_PAGE_NOT_LOC, 64}, {BUG_VERIFY_FROM_ZERO, 64},
        {BUG_PREFIX_ONE_BLOCK, 4}, {BUG_WINDOW_OF_GROUP, 64},
        {BUG_WINDOW_FREED_EARLY, 64}};
    const struct tree_shape shape = {5, 4, 16};
    struct talk right[N_ASKED], wrong;
    for (int k = 0; k < N_ASKED; k++)
        talk(4, asked[k], &shape, 17, &none, &right[k]);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        int differ = 0;
        struct bugs on = {0};
        bug_switch(&on, faults[i].bug, 1);
        for (int k = 0; k < N_ASKED; k++) {
            int same = 0;
            talk(4, asked[k], &shape, faults[i].chunk, &on, &wrong);
            while (same < min_int(right[k].tok.n, wrong.tok.n) &&
                   right[k].tok.v[same] == wrong.tok.v[same])
                same++;
            differ += same < right[k].tok.n;
            print_message("%s, \"%.20s\": equal for %d of %d tokens %s\n",
                          bug_at(faults[i].bug)->name, asked[k], same, right[k].tok.n, wrong.stop);
            ids_free(&wrong.tok);
        }
        assert_true(differ > 0);
    }
    for (int k = 0; k < N_ASKED; k++) { /* and off again, it is what it was */
        talk(16, asked[k], &shape, 64, &none, &wrong);
        assert_int_equal(wrong.tok.n, right[k].tok.n);
        assert_memory_equal(wrong.tok.v, right[k].tok.v, (size_t)wrong.tok.n * 4);
        ids_free(&wrong.tok);
        ids_free(&right[k].tok);
    }
}

/* ---- two runtimes in one process ------------------------------------------------------------- */

/* How much of the lane's tokens a prompt shares that differs from them at token `same`. */
static uint64_t shared_digest(struct runtime *r, const struct lane *l, int same)
{
    struct ids prompt = {0};
    ids_cat(&prompt, l->tok.v, same);
    ids_add(&prompt, l->tok.v[same] == 3 ? 4 : 3);
    ids_add(&prompt, 5);
    uint64_t d = (uint64_t)lane_shared(r, l, &prompt, false) << 32 |
                 (uint64_t)lane_shared(r, l, &prompt, true);
    ids_free(&prompt);
    return d;
}

/* A digest of what a runtime does beside a sequence without a draft: a prompt in chunks, a fork
 * before the prompt's end, drafted steps. A failure ends it and counts by its message. */
static uint64_t work_digest(struct runtime *r)
{
    enum { HALF = 19, ALL = 31 };
    const struct tree_shape shape = {4, 2, 6};
    struct lane l = {.tap_row = -1}, fork = {.tap_row = -1}, other = {.tap_row = -1}, *lp = &l;
    struct err e = {0};
    uint64_t d = (uint64_t)kv_capacity(&r->kv, POOL_DRAFT);
    prompt_tokens(&l, ALL, r->model->cfg.vocab);
    prompt_tokens(&other, 2, r->model->cfg.vocab);
    bool ok = lane_extend(r, &other, 1, false, false, 1, &e);
    while (ok && l.seq.committed < HALF) {
        ok = lane_extend(r, &l, min_int(HALF, l.seq.committed + 2 + (l.seq.committed > 0)), false,
                         true, 2, &e);
        d = mix64(d ^ shared_digest(r, &l, max_int(0, l.seq.committed - 2)));
    }
    lane_park(r, &l);
    lane_fork(r, &l, &fork);
    d = mix64(d ^ (uint64_t)fork.seq.committed);
    lane_free(r, &fork);
    ok = ok && lane_extend(r, &l, ALL, true, true, 2, &e);
    d = mix64(d ^ shared_digest(r, &l, HALF));
    for (int i = 0; i < 4 && ok; i++) {
        ok = lane_step(r, &lp, &(struct step_limits){20}, 1, &shape, &e);
        d = mix64(d ^ l.rec.page_digest ^ (uint64_t)l.rec.rows << 32 ^ (uint64_t)l.rec.bonus);
        for (int p = 0; p < N_POOLS; p++)
            d = mix64(d ^ (uint64_t)pool_used(&r->kv.pool[p]));
    }
    d = mix64(d ^ hash64(e.msg, strlen(e.msg), (uint64_t)ok));
    lane_free(r, &other);
    lane_free(r, &l);
    return d;
}

static int fired[N_BUGS][4];

/* While one runtime has a fault, another that was opened before does what it does alone. */
static void beside_every_fault(const char *target, const char *draft)
{
    struct bed b;
    const struct runtime_shape shape = {
        .page_size = 2, .context = 256, .max_rows = 64, .swa_pages = 60};
    bed_models(&b, target, draft);
    bed_runtime(&b, &shape);
    uint64_t right = work_digest(&b.r);
    runtime_close(&b.r);
    for (int i = 0; i < N_BUGS; i++)
        for (int v = 1; v <= bug_variants((enum bug)i); v++) {
            struct runtime other;
            struct err e = {0};
            bed_runtime(&b, &shape);
            must(runtime_open(&other, b.dev, &b.m, &b.d, &shape, &e), &e);
            runtime_bug(&other, (enum bug)i, v);
            fired[i][v] += work_digest(&other) != right;
            if (work_digest(&b.r) != right)
                fail_msg("%s of another runtime changes this one", bug_at((enum bug)i)->name);
            runtime_bug(&other, (enum bug)i, 0);
            assert_false(bugs_any(&other.bugs));
            assert_true(!other.kv.hook.capacity && !other.kv.hook.rolling_back &&
                        !other.kv.hook.holds && !other.hook.shared && !other.hook.pairs &&
                        !other.hook.accepted && !other.hook.passed);
            assert_true(!other.pass.opts.hook.extent && !other.pass.opts.hook.built);
            runtime_close(&other);
            runtime_close(&b.r);
        }
    bed_close(&b);
}

static void test_faults_of_one_runtime_leave_another_alone(void **state)
{
    (void)state;
    beside_every_fault("tests/golden/gptoss-a", "tests/golden/eagle3-gptoss-a");
    beside_every_fault("tests/golden/gemma4-a", "tests/golden/gemma4-a-assistant");
    for (int i = 0; i < N_BUGS; i++) /* or the test could not fail */
        for (int v = 1; v <= bug_variants((enum bug)i); v++)
            if (!fired[i][v])
                fail_msg("%s, variant %d, changed nothing in its own runtime",
                         bug_at((enum bug)i)->name, v);
}

/* ---- the switches ---------------------------------------------------------------------------- */

static void test_switches_are_set_by_number_and_name(void **state)
{
    (void)state;
    struct err e = {0};
    enum bug b;
    struct bugs on = {0};
    assert_false(bugs_any(&on));
    assert_true(bug_set(&on, "27360", "on", &e));
    assert_int_equal(bug_on(&on, BUG_DRAFT_EXPAND_OVERFLOW), 1);
    assert_true(bugs_any(&on));
    assert_true(bug_set(&on, "draft-expand-overflow", "off", &e));
    assert_int_equal(bug_on(&on, BUG_DRAFT_EXPAND_OVERFLOW), 0);
    assert_false(bugs_any(&on));
    assert_true(bug_set(&on, "26966", "dummy-pool", &e));
    assert_string_equal(bug_state_name(BUG_FROZEN_STALE_POOL, on.variant[BUG_FROZEN_STALE_POOL]),
                        "dummy-pool");
    assert_true(bug_set(&on, "26512", "2", &e));
    assert_string_equal(bug_state_name(BUG_DRAFT_EXTEND_EXTENT, 2), "counted-twice");
    struct bugs before = on;
    assert_false(bug_set(&on, "26512", "3", &e));
    assert_false(bug_set(&on, "24617", "maybe", &e));
    assert_false(bug_set(&on, "1", "on", &e));
    assert_memory_equal(&on, &before, sizeof on);
    assert_non_null(strstr(e.msg, "24617"));
    assert_false(bug_find("", &b, &e));
    for (int i = 0; i < N_BUGS; i++)
        for (int j = 0; j < i; j++)
            assert_int_not_equal(bug_at((enum bug)i)->number, bug_at((enum bug)j)->number);
}

/* What a switch needs is named before it is missed. */
static void test_a_switch_that_cannot_fire_says_what_it_needs(void **state)
{
    (void)state;
    struct bug_facts f = {.window = true, .spec = true, .draft = NEED_EAGLE3, .topk = 1, .steps = 5,
                          .nodes = 6, .page_size = 16};
    struct buf b = {0};
    assert_true(bug_needs(BUG_SWA_UNTRANSLATED, 1, &f, true, &b));
    assert_string_equal(b.p, "draft.topk 2 (now 1)");
    buf_clear(&b);
    f.topk = 2;
    assert_false(bug_needs(BUG_SWA_UNTRANSLATED, 1, &f, true, &b));
    assert_false(bug_needs(BUG_FROZEN_STALE_POOL, 2, &f, true, &b));
    assert_true(bug_needs(BUG_FROZEN_STALE_POOL, 1, &f, true, &b));
    assert_string_equal(b.p, "a frozen-KV drafter (now an EAGLE3 head)");
    buf_clear(&b);
    f = (struct bug_facts){.window = false, .steps = 1, .topk = 1, .nodes = 1, .page_size = 1};
    assert_true(bug_needs(BUG_DRAFT_EXPAND_OVERFLOW, 1, &f, true, &b));
    assert_string_equal(b.p, "an EAGLE3 head (now none), spec on (now off), draft.topk 2 (now 1), "
                             "draft.steps 3 (now 1), draft.nodes 3 (now 1), --page-size 2 (now 1)");
    buf_clear(&b);
    assert_true(bug_needs(BUG_PAGE_NOT_LOC, 1, NULL, false, &b));
    assert_string_equal(b.p, "sliding-window layers, --page-size 2");
    buf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            test_every_fault_is_named_before_launch_and_does_its_damage_without_the_checker),
        cmocka_unit_test(test_untranslated_tables_are_silent_at_low_use_and_fault_at_high_use),
        cmocka_unit_test(test_a_stale_pool_is_silent_at_low_use_and_faults_at_high_use),
        cmocka_unit_test(test_two_parts_of_an_extend_equal_one),
        cmocka_unit_test(test_two_parts_without_memory),
        cmocka_unit_test(test_draft_faults_cost_acceptance_and_leave_the_text_alone),
        cmocka_unit_test(test_target_faults_change_the_text),
        cmocka_unit_test(test_faults_of_one_runtime_leave_another_alone),
        cmocka_unit_test(test_switches_are_set_by_number_and_name),
        cmocka_unit_test(test_a_switch_that_cannot_fire_says_what_it_needs),
    };
    return cmocka_run_group_tests(tests, read_questions, free_questions);
}
