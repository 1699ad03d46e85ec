/* test_tree.c - draft trees: the structural rules under mutation, acceptance against a walk written
 * differently, and the packed form under truncation and bit flips. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/cache/tree.h"
#include "tests/chance.h"

static void random_tree(struct tree *t, int max_nodes, int vocab)
{
    tree_init(t, below(vocab));
    for (int n = 1 + below(max_nodes); t->n < n;) {
        int up = below(2) ? t->n - 1 : below(t->n); /* deep and wide */
        float q = (float)(1 + below(1000)) / 1001.0f;
        tree_add(t, up, below(vocab), q, t->score[up] + logf(q));
    }
}

static void test_every_built_tree_obeys_its_rules(void **unused)
{
    (void)unused;
    for (int round = 0; round < 2000; round++) {
        struct tree t;
        struct err e;
        random_tree(&t, TREE_MAX, 50);
        if (!tree_ok(&t, &e))
            fail_msg("%s", e.msg);
        int deepest = 0;
        for (int i = 0; i < t.n; i++) { /* ancestors, found the slow way */
            uint64_t anc = 0;
            int depth = -1;
            for (int j = i; j >= 0; j = t.parent[j], depth++)
                anc |= UINT64_C(1) << j;
            assert_true(anc == t.anc[i]);
            assert_int_equal(depth, t.depth[i]);
            deepest = depth > deepest ? depth : deepest;
        }
        assert_int_equal(tree_depth(&t), deepest);
    }
}

/* Siblings have the ranks 1 to their number: by q, of equal or unknown ones the earlier first. */
static void test_ranks_order_siblings(void **unused)
{
    (void)unused;
    for (int round = 0; round < 500; round++) {
        struct tree t;
        random_tree(&t, 40, 50);
        for (int i = 1; i < t.n; i++) /* equal ones and, in some trees, none that is known */
            t.q[i] = round % 3 ? (float)below(4) / 4.0f : NAN;
        for (int i = 1; i < t.n; i++) {
            int of, of_j, rank = tree_rank(&t, i, &of);
            assert_in_range(rank, 1, of);
            for (int j = 1; j < t.n; j++) {
                if (j == i || t.parent[j] != t.parent[i])
                    continue;
                bool before = round % 3 && t.q[i] != t.q[j] ? t.q[i] > t.q[j] : i < j;
                assert_int_equal(rank < tree_rank(&t, j, &of_j), before);
                assert_int_equal(of, of_j);
            }
        }
    }
}

static void expect_rule(const struct tree *t, const char *rule)
{
    struct err e = {0};
    assert_false(tree_ok(t, &e));
    assert_int_equal(e.kind, ERR_INVARIANT);
    if (!strstr(e.msg, rule))
        fail_msg("expected %s in: %s", rule, e.msg);
}

static void test_each_broken_rule_is_named(void **unused)
{
    (void)unused;
    for (int round = 0; round < 500; round++) {
        struct tree t, bad;
        do
            random_tree(&t, TREE_MAX, 50);
        while (t.n < 2);
        int i = 1 + below(t.n - 1);
        bad = t, bad.parent[i] = (int8_t)(i + below(3)), expect_rule(&bad, "rule 1");
        bad = t, bad.parent[i] = -1, expect_rule(&bad, "rule 1");
        bad = t, bad.parent[0] = 0, expect_rule(&bad, "rule 1");
        bad = t, bad.depth[i]++, expect_rule(&bad, "rule 2");
        bad = t, bad.depth[0] = 1, expect_rule(&bad, "rule 2");
        bad = t, bad.anc[i] ^= UINT64_C(1) << below(64), expect_rule(&bad, "rule 3");
        bad = t, bad.anc[0] = 3, expect_rule(&bad, "rule 3");
        bad = t, bad.n = TREE_MAX + 1, expect_rule(&bad, "65 nodes");
        bad = t, bad.n = 0, expect_rule(&bad, "0 nodes");
    }
}

/* The path by recursion over all nodes; returns its length. stop < 0: no token ends it. */
static int walk(const struct tree *t, const int32_t *choice, int node, int left, bool forced,
                int stop, int *path)
{
    *path = node;
    if (left > 1 && (forced || choice[node] != stop))
        for (int i = 0; i < t->n; i++)
            if (t->parent[i] == node && (forced || t->token[i] == choice[node]))
                return 1 + walk(t, choice, i, left - 1, forced, stop, path + 1);
    return 1;
}

static void test_acceptance_equals_a_recursive_walk(void **unused)
{
    (void)unused;
    int longest = 0, n_held = 0;
    for (int round = 0; round < 20000; round++) {
        struct tree t;
        int32_t choice[TREE_MAX];
        int path[TREE_MAX], want[TREE_MAX], max = 1 + below(8), held;
        random_tree(&t, TREE_MAX, 3); /* few tokens: long paths, equal siblings */
        for (int i = 0; i < t.n; i++)
            choice[i] = below(3);
        int force = below(3) ? 0 : 1 + below(8), most = force && force < max ? force : max;
        int32_t stop = below(4) ? 2 : -1;
        struct tree_ends ends = {.max_nodes = max, .force = force, .stop = &stop,
                                 .n_stop = stop >= 0};
        int n = tree_accept(&t, choice, &ends, path, &held);
        int m = walk(&t, choice, 0, most, force > 0, stop, want);
        assert_int_equal(n, m);
        assert_memory_equal(path, want, (size_t)n * sizeof *path);
        longest = n > longest ? n : longest;

        /* the first child that holds the last token, whatever ended the path */
        int last = path[n - 1], child = last + 1;
        while (child < t.n && !(t.parent[child] == last && t.token[child] == choice[last]))
            child++;
        assert_int_equal(held, child < t.n ? child : -1);
        assert_true(held < 0 || n == most || choice[last] == stop);
        n_held += held >= 0 && choice[last] == stop;

        uint64_t on = 0;
        for (int i = 0; i < n; i++)
            on |= UINT64_C(1) << path[i];
        for (int i = 0; i < t.n; i++) {
            bool above = i == 0 || (on >> t.parent[i] & 1);
            if ((on >> i & 1) || i == held)
                assert_int_equal(t.fate[i], FATE_ACCEPTED);
            else
                assert_int_equal(t.fate[i], above ? FATE_REJECTED : FATE_CUT);
        }
    }
    assert_true(longest == 8 && n_held > 100);
}

static void test_the_last_token_of_a_reply_is_accepted_if_a_node_holds_it(void **unused)
{
    (void)unused;
    struct tree t;
    int path[TREE_MAX], held;
    const int32_t stop = 9;
    struct tree_ends one = {.max_nodes = 1}, two = {.max_nodes = 2},
                     ended = {.max_nodes = 8, .stop = &stop, .n_stop = 1};
    tree_init(&t, 7);
    tree_add(&t, 0, 9, 0.5f, -0.7f);
    tree_add(&t, 1, 4, 0.5f, -0.7f);
    assert_int_equal(tree_accept(&t, (int32_t[]){9, 4, 5}, &one, path, &held), 1);
    assert_true(held == 1 && t.fate[1] == FATE_ACCEPTED && t.fate[2] == FATE_CUT);
    assert_int_equal(tree_accept(&t, (int32_t[]){9, 4, 5}, &two, path, &held), 2);
    assert_true(held == 2 && t.fate[1] == FATE_ACCEPTED && t.fate[2] == FATE_ACCEPTED);
    assert_int_equal(tree_accept(&t, (int32_t[]){9, 4, 5}, &ended, path, &held), 1);
    assert_true(held == 1 && t.fate[1] == FATE_ACCEPTED && t.fate[2] == FATE_CUT);
    assert_int_equal(tree_accept(&t, (int32_t[]){8, 4, 5}, &two, path, &held), 1);
    assert_true(held == -1 && t.fate[1] == FATE_REJECTED && t.fate[2] == FATE_CUT);
}

static void test_the_digest_sees_tokens_parents_and_accepted_fates_only(void **unused)
{
    (void)unused;
    for (int round = 0; round < 500; round++) {
        struct tree t, other;
        do
            random_tree(&t, TREE_MAX, 50);
        while (t.n < 3);
        int i = 1 + below(t.n - 1);
        uint64_t h = tree_digest(&t);
        other = t, other.token[i] ^= 1;
        assert_true(tree_digest(&other) != h);
        other = t, other.parent[2] ^= 1;
        assert_true(tree_digest(&other) != h);
        other = t, other.fate[i] = FATE_ACCEPTED;
        assert_true(tree_digest(&other) != h);
        other = t, other.n--;
        assert_true(tree_digest(&other) != h);
        other = t, other.fate[i] = FATE_CUT, other.q[i] = 0, other.p[i] = 0, other.u[i] = 0;
        assert_true(tree_digest(&other) == h);
    }
}

static bool same_float(float a, float b)
{
    return memcmp(&a, &b, sizeof a) == 0;
}

static void test_packing_round_trips(void **unused)
{
    (void)unused;
    for (int round = 0; round < 1000; round++) {
        struct tree t, back;
        struct buf b = {0};
        struct err e;
        random_tree(&t, TREE_MAX, 262144);
        for (int i = 0; i < t.n; i++) {
            t.fate[i] = (uint8_t)below(4);
            if (below(2))
                t.p[i] = (float)below(1000) / 1000, t.u[i] = (float)below(1000) / 1000;
        }
        tree_pack(&t, &b);
        assert_int_equal(b.n, 2 + 18 * t.n);
        assert_true(tree_unpack(&back, b.p, b.n, &e));
        assert_true(tree_ok(&back, &e));
        assert_true(tree_digest(&back) == tree_digest(&t));
        for (int i = 0; i < t.n; i++) {
            assert_int_equal(back.fate[i], t.fate[i]);
            assert_true(same_float(back.q[i], t.q[i]) && same_float(back.p[i], t.p[i]) &&
                        same_float(back.u[i], t.u[i]));
            assert_true(fabsf(back.score[i] - t.score[i]) <= 1e-5f * (1 + fabsf(t.score[i])));
        }
        buf_free(&b);
    }
}

static void test_packed_bytes_are_the_documented_ones(void **unused)
{
    (void)unused;
    struct tree t;
    struct buf b = {0};
    tree_init(&t, 0x01020304);
    tree_add(&t, 0, 258, 0.5f, 0);
    t.fate[1] = FATE_REJECTED, t.p[0] = t.u[0] = 2, t.p[1] = 0.25f, t.u[1] = 1;
    tree_pack(&t, &b);
    static const uint8_t want[] = {
        1, 2, 4, 3, 2, 1, 255, 0, 0, 0, 128, 63, 0, 0, 0, 64, 0, 0, 0, 64,
        2, 1, 0, 0, 0, 2, 0, 0, 0, 63, 0, 0, 128, 62, 0, 0, 128, 63};
    assert_int_equal(b.n, sizeof want);
    assert_memory_equal(b.p, want, sizeof want);
    buf_free(&b);
}

static void test_unpacking_refuses_what_packing_never_writes(void **unused)
{
    (void)unused;
    for (int round = 0; round < 300; round++) {
        struct tree t, back, before;
        struct buf b = {0};
        struct err e;
        random_tree(&t, 12, 100);
        tree_pack(&t, &b);
        tree_init(&back, 5);
        before = back;
        for (size_t n = 0; n < b.n; n++)
            assert_false(tree_unpack(&back, b.p, n, &e));
        buf_char(&b, 0);
        assert_false(tree_unpack(&back, b.p, b.n, &e));
        b.n--;
        static const int at[] = {0, 1, 6, 7}; /* version, count, root's parent and fate */
        for (int k = 0; k < 4; k++) {
            char old = b.p[at[k]];
            b.p[at[k]] = (char)(4 + below(100) + (at[k] == 1 ? 12 : 0));
            assert_false(tree_unpack(&back, b.p, b.n, &e));
            b.p[at[k]] = old;
        }
        assert_memory_equal(&back, &before, sizeof back);
        /* whatever else the bytes say, what comes out is a tree */
        for (int k = 0; k < 200; k++) {
            int bit = below((int)b.n * 8);
            b.p[bit / 8] ^= (char)(1 << bit % 8);
            if (tree_unpack(&back, b.p, b.n, &e))
                assert_true(tree_ok(&back, &e));
        }
        buf_free(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_built_tree_obeys_its_rules),
        cmocka_unit_test(test_ranks_order_siblings),
        cmocka_unit_test(test_each_broken_rule_is_named),
        cmocka_unit_test(test_acceptance_equals_a_recursive_walk),
        cmocka_unit_test(test_the_last_token_of_a_reply_is_accepted_if_a_node_holds_it),
        cmocka_unit_test(test_the_digest_sees_tokens_parents_and_accepted_fates_only),
        cmocka_unit_test(test_packing_round_trips),
        cmocka_unit_test(test_packed_bytes_are_the_documented_ones),
        cmocka_unit_test(test_unpacking_refuses_what_packing_never_writes),
    };
    return cmocka_run_group_tests_name("tree", tests, NULL, NULL);
}
