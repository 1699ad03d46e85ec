/* test_cuda_behind.c - a lane whose drafter is behind, on a GPU: stepped, fused, and recorded as
 * graphs; see behind_kit.h. */
#include "tests/behind_kit.h"

static void run(const char *target, const char *draft, const char *precision, int times)
{
    for (int how = 0; how < 3; how++) {
        struct bed b;
        if (!bed_device(&b, "cuda", precision)) {
            skip();
            return;
        }
        bed_load(&b, target, draft);
        bed_runtime(&b, &(struct runtime_shape){.page_size = how ? 16 : 4, .context = 256});
        b.r.fuse = how > 0;
        b.r.record = how > 1;
        dice = 21;
        caught_up = 0;
        compare(&b.r, b.m.cfg.vocab, times);
        print_message("# %s %s: caught up %d times, %llu fused cycles, %llu as graphs\n", target,
                      precision,
                      caught_up, (unsigned long long)b.r.n_fused,
                      (unsigned long long)b.r.n_replayed);
        assert_true(caught_up > 3 && (how < 1 || b.r.n_fused > 50) &&
                    (how < 2 || b.r.n_replayed > 50));
        bed_close(&b);
    }
}

static void test_experts_in_float32(void **state)
{
    (void)state;
    run("tests/golden/gptoss-a", "tests/golden/eagle3-gptoss-a", "f32", 1);
}

static void test_the_bundled_model_in_bf16(void **state)
{
    (void)state;
    run("models/nestling/target", "models/nestling/draft", "bf16", 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_experts_in_float32),
        cmocka_unit_test(test_the_bundled_model_in_bf16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
