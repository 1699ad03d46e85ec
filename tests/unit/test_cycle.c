/* test_cycle.c - a step that fails in any phase leaves every lane unchanged. */
#include "tests/runtimes.h"

#define NESTLING "models/nestling/target"
#define NESTLING_DRAFT "models/nestling/draft"

static const struct tree_shape chain = {5, 1, 6}, wide = {4, 4, 16};

/* The CPU's kernels; `no_number` counts down the samplings until one gives no token. */
static struct kernels table;
static int no_number;

static void spy_sample(struct kdev *d, const struct k_sample *a)
{
    static const int32_t none = -1;
    kernels_cpu.sample(d, a);
    if (no_number > 0 && --no_number == 0)
        kernels_cpu.put(d, a->ids, &none, sizeof none);
}

static void open_bed(struct bed *b, int lanes)
{
    bed_models(b, NESTLING, NESTLING_DRAFT);
    table = *b->dev.k;
    table.sample = spy_sample;
    b->dev.k = &table;
    no_number = 0;
    bed_chat(b, NESTLING);
    bed_runtime(b, &(struct runtime_shape){.page_size = 4, .context = 512, .lanes = lanes});
    bed_stop(b);
}

static void close_bed(struct bed *b)
{
    b->dev.k = b->r.dev.k = &kernels_cpu;
    bed_close(b);
}

/* What a step may change in a lane and in the pools. */
struct before {
    int tok, committed, drafted, used[N_POOLS];
    uint64_t draws;
};

static struct before now(const struct bed *b, const struct lane *l)
{
    struct before x = {.tok = l->tok.n, .committed = l->seq.committed, .drafted = l->seq.drafted,
                       .draws = l->draws};
    for (int p = 0; p < N_POOLS; p++)
        x.used[p] = b->r.kv.pool[p].n_owned;
    return x;
}

static void same(const struct before *a, const struct before *b)
{
    assert_int_equal(a->tok, b->tok);
    assert_int_equal(a->committed, b->committed);
    assert_int_equal(a->drafted, b->drafted);
    assert_int_equal(a->draws, b->draws);
    for (int p = 0; p < N_POOLS; p++)
        assert_int_equal(a->used[p], b->used[p]);
}

static void test_a_prompt_chunk_that_fails_commits_nothing(void **state)
{
    (void)state;
    for (int chunk = 0; chunk < 2; chunk++) { /* the first one, and the last one */
        struct bed b;
        struct err e = {0};
        struct lane l = {.tap_row = -1};
        open_bed(&b, 1);
        chat_prompt(&b, "count to twenty", &l.tok);
        if (chunk)
            must(lane_extend(&b.r, &l, 7, false, true, 1, &e), &e);
        struct before was = now(&b, &l);
        runtime_bug(&b.r, BUG_DRAFT_EXTEND_EXTENT, 1);
        assert_false(lane_extend(&b.r, &l, l.tok.n, true, true, 1, &e));
        assert_int_equal(e.kind, ERR_INVARIANT);
        runtime_bug(&b.r, BUG_DRAFT_EXTEND_EXTENT, 0);
        struct before is = now(&b, &l);
        same(&was, &is);
        must(lane_extend(&b.r, &l, l.tok.n, true, true, 1, &e), &e); /* and it can go on */
        assert_int_equal(l.tok.n, was.tok + 1);
        assert_int_equal(l.seq.drafted, l.seq.committed);
        lane_free(&b.r, &l);
        close_bed(&b);
    }
}

/* Runs two lanes; `spoil` makes the third step fail. Returns the tokens of both, appended. */
static struct ids two_lanes(const struct tree_shape *s, void (*spoil)(struct runtime *r, bool on))
{
    static const char *const text[] = {"count to twenty", "What is a page table?"};
    struct bed b;
    struct err e = {0};
    struct lane lane[2], *live[2] = {&lane[0], &lane[1]};
    struct ids out = {0};
    open_bed(&b, 2);
    for (int i = 0; i < 2; i++) {
        lane[i] = (struct lane){.tap_row = -1};
        chat_prompt(&b, text[i], &lane[i].tok);
        lane_prompt(&b.r, &lane[i], 256, s);
        lane_park(&b.r, &lane[i]);
    }
    for (int k = 0; k < 6; k++) {
        struct step_limits lim[2] = {{100}, {100}};
        if (k == 2 && spoil) {
            struct before was[2] = {now(&b, live[0]), now(&b, live[1])};
            spoil(&b.r, true);
            assert_false(lane_step(&b.r, live, lim, 2, s, &e));
            assert_int_equal(e.kind, ERR_INVARIANT);
            spoil(&b.r, false);
            struct before is[2] = {now(&b, live[0]), now(&b, live[1])};
            same(&was[0], &is[0]);
            same(&was[1], &is[1]);
        }
        must(lane_step(&b.r, live, lim, 2, s, &e), &e);
    }
    for (int i = 0; i < 2; i++) {
        ids_cat(&out, lane[i].tok.v, lane[i].tok.n);
        lane_free(&b.r, &lane[i]);
    }
    close_bed(&b);
    return out;
}

static void fail_follow(struct runtime *r, bool on)
{
    runtime_bug(r, BUG_DRAFT_EXTEND_EXTENT, on);
}

static void fail_second_lane(struct runtime *r, bool on)
{
    (void)r;
    no_number = on ? 2 : 0;
}

static void test_a_batch_that_fails_changes_no_lane(void **state)
{
    (void)state;
    static void (*const fails[])(struct runtime *r, bool on) = {fail_follow, fail_second_lane};
    const struct tree_shape *const shapes[] = {&chain, &wide};
    for (int s = 0; s < 2; s++) {
        struct ids healthy = two_lanes(shapes[s], NULL);
        for (int i = 0; i < 2; i++) {
            struct ids got = two_lanes(shapes[s], fails[i]);
            assert_int_equal(got.n, healthy.n);
            assert_memory_equal(got.v, healthy.v, (size_t)got.n * sizeof *got.v);
            ids_free(&got);
        }
        ids_free(&healthy);
    }
}

/* The record of the first chunk of the next message after three steps, and a fourth that is
 * stopped. */
static struct step_rec next_message(bool stopped)
{
    static const char *const text[] = {"count to twenty", "Hello!"};
    struct bed b;
    struct err e = {0};
    struct stop stop = {.running = 1};
    struct step_limits lim = {100};
    struct lane l = {.tap_row = -1}, *live = &l;
    struct ids more = {0};
    open_bed(&b, 1);
    chat_prompt(&b, text[0], &l.tok);
    lane_prompt(&b.r, &l, 256, &chain);
    b.r.net.stop = &stop;
    for (int k = 0; k < 3; k++)
        must(lane_step(&b.r, &live, &lim, 1, &chain, &e), &e);
    if (stopped) {
        atomic_store(&stop.cancelled, 1);
        assert_false(lane_step(&b.r, &live, &lim, 1, &chain, &e));
        assert_int_equal(e.kind, ERR_NEGATIVE);
        atomic_store(&stop.cancelled, 0);
    }
    lane_park(&b.r, &l);
    l.tok.n = l.seq.committed; /* the pending token does not stay */
    chat_prompt(&b, text[1], &more);
    ids_cat(&l.tok, more.v, more.n);
    must(lane_extend(&b.r, &l, l.tok.n, true, true, 1, &e), &e);
    struct step_rec rec = l.rec;
    b.r.net.stop = NULL;
    ids_free(&more);
    lane_free(&b.r, &l);
    close_bed(&b);
    return rec;
}

static void test_a_stopped_step_leaves_nothing_for_the_next_message(void **state)
{
    (void)state;
    struct step_rec a = next_message(false), b = next_message(true);
    assert_int_equal(a.page_digest, b.page_digest); /* of the plans of target and draft */
    assert_int_equal(a.logit_digest, b.logit_digest);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_prompt_chunk_that_fails_commits_nothing),
        cmocka_unit_test(test_a_batch_that_fails_changes_no_lane),
        cmocka_unit_test(test_a_stopped_step_leaves_nothing_for_the_next_message),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
