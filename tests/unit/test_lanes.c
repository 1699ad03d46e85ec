/* test_lanes.c - lanes on the CPU: small and full pools, the edges of a context, batches. */
#include "tests/few.h"
#include "tests/runtimes.h"

#define NESTLING "models/nestling/target"
#define NESTLING_DRAFT "models/nestling/draft"

static const struct tree_shape shapes[] = {{3, 1, 4}, {5, 4, 16}, {6, 8, 60}};

/* ---- poison, pools, edges -------------------------------------------------------------------- */

/* Cells start as NaN (forward.c) and page 0 stays so; with minimal pools every page is reused many
 * times, so a read of a released or foreign cell would change the text. */
static void test_small_pools_change_nothing(void **state)
{
    (void)state;
    struct ids ref = {0};
    for (int k = 0; k < 4; k++) {
        struct bed b;
        struct lane l = {.tap_row = -1};
        int P = k == 3 ? 1 : 16;
        struct runtime_shape s = {.page_size = P, .context = 1024};
        if (k == 1)
            s.full_pages = 40, s.swa_pages = 10;
        if (k >= 2)
            s.full_pages = 600 / P + 8, s.swa_pages = (64 + 64 + 60) / P + 4;
        bed_models(&b, NESTLING, NESTLING_DRAFT);
        bed_chat(&b, NESTLING);
        bed_runtime(&b, &s);
        chat_prompt(&b, "count to one hundred", &l.tok);
        lane_prompt(&b.r, &l, 32, &shapes[1]);
        lane_run(&b.r, &l, 420, &shapes[1]);
        if (k == 0)
            ids_cat(&ref, l.tok.v, l.tok.n);
        assert_int_equal(l.tok.n, ref.n);
        assert_memory_equal(l.tok.v, ref.v, (size_t)ref.n * sizeof *ref.v);
        lane_free(&b.r, &l);
        bed_close(&b);
    }
    ids_free(&ref);
}

static void test_a_full_pool_is_an_error_that_leaves_the_lane_usable(void **state)
{
    (void)state;
    struct bed b;
    struct err e = {0};
    struct lane l = {.tap_row = -1}, *lp = &l;
    bed_models(&b, NESTLING, NESTLING_DRAFT);
    bed_chat(&b, NESTLING);
    bed_runtime(&b, &(struct runtime_shape){.page_size = 4, .context = 4096, .full_pages = 20});
    chat_prompt(&b, "count to one hundred", &l.tok);
    lane_prompt(&b.r, &l, 32, &shapes[0]);
    bool ok = true;
    struct step_limits lim = {1000};
    while (ok)
        ok = lane_step(&b.r, &lp, &lim, 1, &shapes[0], &e);
    assert_int_equal(e.kind, ERR_NEGATIVE);
    assert_non_null(strstr(e.msg, "full pool"));
    const struct seq *seqs[] = {&l.seq};
    must(kv_check(&b.r.kv, seqs, 1, &e), &e);
    assert_int_equal(l.tok.n, l.seq.committed + 1);
    lane_free(&b.r, &l);
    chat_prompt(&b, "Hello!", &l.tok);
    l.tap_row = -1;
    lane_prompt(&b.r, &l, 32, &shapes[0]);
    lane_run(&b.r, &l, 20, &shapes[0]);
    assert_true(l.tok.n > 20);
    lane_free(&b.r, &l);
    bed_close(&b);
}

/* The context's end, max_tokens and the end of text clip the tree: every length is the beginning of
 * the longest plain reply. */
static void test_edges_clip_the_tree(void **state)
{
    (void)state;
    struct bed b;
    bed_models(&b, NESTLING, NESTLING_DRAFT);
    bed_chat(&b, NESTLING);
    bed_runtime(&b, &(struct runtime_shape){.page_size = 4, .context = 64});
    struct lane all = {.tap_row = -1};
    chat_prompt(&b, "count to one hundred", &all.tok);
    int n_prompt = all.tok.n;
    lane_prompt(&b.r, &all, 64, NULL);
    lane_run(&b.r, &all, 80, NULL);
    assert_int_equal(all.tok.n, 64);
    for (int max = 1; max < 80; max++)
        for (int s = 0; s < 3; s++) {
            if (max < 45 && (max + s) % rounds(3, 1) != 0) /* before the context's end a third */
                continue;
            struct lane c = {.tap_row = -1};
            ids_cat(&c.tok, all.tok.v, n_prompt);
            lane_prompt(&b.r, &c, 64, &shapes[s]);
            lane_run(&b.r, &c, max - 1, &shapes[s]);
            assert_int_equal(c.tok.n, min_int(n_prompt + max, 64));
            assert_memory_equal(all.tok.v, c.tok.v, (size_t)c.tok.n * sizeof *c.tok.v);
            lane_free(&b.r, &c);
            if (max > 50)
                max += 7;
        }
    lane_free(&b.r, &all);
    bed_close(&b);
}

/* ---- batches --------------------------------------------------------------------------------- */

/* Lanes of different lengths in one batch, joining and leaving: each equals its solo run. */
static void test_each_lane_of_a_batch_equals_its_solo_run(void **state)
{
    (void)state;
    static const char *const text[] = {"Hello!", "count to forty", "What is a page table?",
                                       "Tell me a story about Clara the owl.", "reverse planet"};
    enum { N = 5 };
    for (int s = -1; s < 3; s++) {
        const struct tree_shape *shape = s < 0 ? NULL : &shapes[s];
        struct bed b;
        struct lane lane[N], *live[N];
        struct ids solo[N];
        memset(solo, 0, sizeof solo);
        bed_models(&b, NESTLING, NESTLING_DRAFT);
        bed_chat(&b, NESTLING);
        bed_runtime(&b, &(struct runtime_shape){.page_size = 4, .context = 512, .lanes = N});
        bed_stop(&b);
        for (int i = 0; i < N; i++) {
            struct lane l = {.tap_row = -1};
            chat_prompt(&b, text[i], &l.tok);
            lane_prompt(&b.r, &l, 256, shape);
            lane_run(&b.r, &l, 40, shape);
            ids_cat(&solo[i], l.tok.v, l.tok.n);
            lane_free(&b.r, &l);
        }
        int n = 0, end[N];
        for (int i = 0; i < N; i++) {
            lane[i] = (struct lane){.tap_row = -1};
            chat_prompt(&b, text[i], &lane[i].tok);
            end[i] = lane[i].tok.n + 41;
            lane_prompt(&b.r, &lane[i], 256, shape);
            lane_park(&b.r, &lane[i]); /* the next prompt overwrites the captured states */
        }
        do {
            struct step_limits lim[N];
            struct err e = {0};
            n = 0;
            for (int i = 0; i < N; i++)
                if (!lane[i].stopped && lane[i].tok.n < end[i]) {
                    lim[n].max_new = end[i] - lane[i].tok.n;
                    live[n++] = &lane[i];
                }
            if (n)
                must(lane_step(&b.r, live, lim, n, shape, &e), &e);
        } while (n);
        for (int i = 0; i < N; i++) {
            assert_int_equal(lane[i].tok.n, solo[i].n);
            assert_memory_equal(lane[i].tok.v, solo[i].v, (size_t)solo[i].n * sizeof *solo[i].v);
            lane_free(&b.r, &lane[i]);
            ids_free(&solo[i]);
        }
        bed_close(&b);
    }
}
int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small_pools_change_nothing),
        cmocka_unit_test(test_a_full_pool_is_an_error_that_leaves_the_lane_usable),
        cmocka_unit_test(test_edges_clip_the_tree),
        cmocka_unit_test(test_each_lane_of_a_batch_equals_its_solo_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
