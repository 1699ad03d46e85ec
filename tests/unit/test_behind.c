/* test_behind.c - a lane whose drafter is behind: over the mock model, and with weights on the CPU;
 * see behind_kit.h. */
#include "tests/behind_kit.h"
#include "tests/mock.h"

static void test_a_drafter_that_was_behind_guesses_as_one_that_was_not(void **state)
{
    (void)state;
    static const int page_sizes[] = {1, 4, 16, 64};
    struct mock m;
    uint64_t fused = 0;
    dice = 11;
    mock_open(&m, 7);
    for (int i = 0; i < 40; i++) {
        struct runtime r;
        struct err e = {0};
        m.m.cfg.window = m.layer[0].window = m.layer[2].window = 1 + below(30);
        mock_eagle(&m, i % 3 ? 0 : 7);
        must(runtime_open(&r, mock_device(&m), &m.m, &m.d,
                          &(struct runtime_shape){.page_size = page_sizes[i % 4],
                                                  .context = MOCK_MAX},
                          &e), &e);
        r.fuse = i % 2;
        compare(&r, MOCK_V, 3);
        assert_int_equal(r.pass.check.violations, 0);
        fused += r.n_fused;
        runtime_close(&r);
    }
    print_message("# caught up %d times, at most %d cells behind, %d times full, "
                  "%llu fused cycles\n", caught_up, longest, full, (unsigned long long)fused);
    assert_true(caught_up > 500 && longest == HEAD_BACKLOG && full > 10 && fused > 1000);
    mock_close(&m);
}

static void test_the_same_with_weights(void **state)
{
    (void)state;
    struct bed b;
    bed_models(&b, "tests/golden/gptoss-a", "tests/golden/eagle3-gptoss-a");
    bed_runtime(&b, &(struct runtime_shape){.page_size = 4, .context = 256});
    caught_up = 0;
    compare(&b.r, b.m.cfg.vocab, 2);
    assert_true(caught_up > 3);
    bed_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_drafter_that_was_behind_guesses_as_one_that_was_not),
        cmocka_unit_test(test_the_same_with_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
