/* test_kvcache.c - the page cache against plain arrays, over a million random operations; and the
 * checker over every plan made on the way, none of which it may object to. */
#include "tests/kv_kit.h"

#include <stdio.h>

static uint64_t all_ops, all_plans, all_short, all_rows[N_MODES];

static void live(int P, int window, bool frozen, bool least, uint64_t seed, int rounds)
{
    struct world w;
    w_open(&w, P, window, frozen, least, seed);
    for (int i = 0; i < rounds; i++) {
        w_op(&w);
        if (i % 64 == 0) {
            const struct seq *all[N_SEQ];
            struct err e = {0};
            for (int k = 0; k < N_SEQ; k++)
                all[k] = &w.seq[k];
            w_must(kv_check(&w.kv, all, N_SEQ, &e), &e);
        }
        if (i % 512 == 0)
            w_check_all(&w);
    }
    w_check_all(&w);
    assert_int_equal(w.check.violations, 0);
    all_ops += w.ops;
    all_plans += w.plans;
    all_short += w.short_of;
    for (int m = 0; m < N_MODES; m++)
        all_rows[m] += w.rows[m];
    w_close(&w);
}

static void test_a_million_operations_keep_every_cell(void **state)
{
    (void)state;
    uint64_t seed = 1;
    for (int P = 1; P <= 64; P *= 2)
        for (int least = 0; least < 2; least++)
            for (int kind = 0; kind < 4; kind++) /* no window, two windows, frozen KV */
                live(P, kind == 0 ? 0 : kind == 1 ? 7 : 20, kind == 3, least, seed++, 9000);
    print_message("%llu operations, %llu plans of all modes checked, %llu reservations refused\n",
                  (unsigned long long)all_ops, (unsigned long long)all_plans,
                  (unsigned long long)all_short);
    assert_true(all_ops >= 1000000);
    assert_true(all_plans >= 300000);
    assert_true(all_short > 1000);
    for (int m = 0; m < N_MODES; m++) {
        print_message("  %s: %llu rows\n", plan_mode_name((enum plan_mode)m),
                      (unsigned long long)all_rows[m]);
        assert_true(all_rows[m] > 50000);
    }
}

static void test_strict_checking_objects_to_nothing_either(void **state)
{
    (void)state;
    for (int P = 1; P <= 64; P *= 4) {
        struct world w;
        w_open(&w, P, 9, false, P & 5, 77 + (uint64_t)P);
        w.check.level = CHECK_STRICT;
        for (int i = 0; i < 4000; i++)
            w_op(&w);
        w_check_all(&w);
        assert_int_equal(w.check.violations, 0);
        w_close(&w);
    }
}

/* Every mode takes no request at all. */
static void test_the_empty_batch_is_a_plan_in_every_mode(void **state)
{
    (void)state;
    struct world w;
    w_open(&w, 4, 9, false, false, 3);
    for (int mode = 0; mode < N_MODES; mode++)
        for (int parts = 1; parts <= 2; parts++) {
            struct err e = {0};
            struct plan_opts o = {.draft_full = true, .draft_window = 5, .parts = parts};
            plan_build(&w.plan, &w.kv, (enum plan_mode)mode, NULL, 0, &o);
            w_must(check_plan(&w.check, &w.plan, &w.kv, NULL, &e), &e);
            assert_int_equal(w.plan.n_rows, 0);
            assert_int_equal(w.plan.row0[0], 0);
        }
    w_close(&w);
}

/* The same operations hand out the same pages: replay relies on it. */
static void test_the_same_operations_give_the_same_pages(void **state)
{
    (void)state;
    uint64_t digest[2] = {0, 0};
    for (int k = 0; k < 2; k++) {
        struct world w;
        w_open(&w, 4, 9, false, true, 5);
        for (int i = 0; i < 3000; i++) {
            w_op(&w);
            digest[k] = mix64(digest[k] ^ plan_digest(&w.plan));
        }
        w_close(&w);
    }
    assert_true(digest[0] == digest[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_million_operations_keep_every_cell),
        cmocka_unit_test(test_strict_checking_objects_to_nothing_either),
        cmocka_unit_test(test_the_empty_batch_is_a_plan_in_every_mode),
        cmocka_unit_test(test_the_same_operations_give_the_same_pages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
