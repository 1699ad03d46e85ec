/* The ring of steps: every record and tree that was pushed comes back until the bounds are reached,
 * what is held is an unbroken run that ends with the newest, and a cut takes the latest away. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/past/step_ring.h"
#include "tests/chance.h"

/* A tree that follows from the step alone, so that it need not be kept to be compared. */
static void tree_of(int turn, int step, int most, struct tree *t)
{
    uint64_t keep = dice;
    dice = mix64((uint64_t)turn << 32 | (uint32_t)step);
    tree_init(t, below(1000));
    int n = 1 + below(most);
    while (t->n < n)
        tree_add(t, below(t->n), below(1000), 0.25f, -1);
    for (int i = 0; i < t->n; i++) {
        t->p[i] = below(3) ? 0.5f : NAN;
        t->u[i] = below(2) ? 0.75f : NAN;
        t->fate[i] = (uint8_t)below(4);
    }
    dice = keep;
}

/* Its tokens, likewise. Returns how many. */
static int tokens_of(int turn, int step, int32_t token[TREE_MAX], struct token_fact fact[TREE_MAX])
{
    uint64_t keep = dice;
    dice = mix64((uint64_t)step << 32 | (uint32_t)turn);
    int n = below(9);
    for (int i = 0; i < n; i++) {
        token[i] = below(1000);
        fact[i] = (struct token_fact){(float)-below(100), (float)-below(100), below(1000) - 1};
    }
    dice = keep;
    return n;
}

static bool same_float(float a, float b)
{
    return isnan(a) ? isnan(b) : !(a < b) && !(a > b);
}

static void assert_holds(const struct step_ring *r, int turn, int step, int most)
{
    const struct ring_entry *e = ring_find(r, turn, step);
    struct tree want, got;
    assert_non_null(e);
    assert_true(e->turn == turn && e->step == step && e->rec.pos0 == 7 * turn + step);
    tree_of(turn, step, most, &want);
    ring_tree(r, e, &got);
    assert_int_equal(got.n, want.n > 1 ? want.n : 0);
    int32_t token[TREE_MAX], held[TREE_MAX];
    struct token_fact fact[TREE_MAX], held_fact[TREE_MAX];
    int n = tokens_of(turn, step, token, fact);
    ring_tokens(r, e, held, held_fact);
    assert_int_equal(e->n_token, n);
    assert_true(e->held.n[0] == turn && e->held.n[1] == step && e->held.n[2] == -1);
    assert_memory_equal(held, token, (size_t)n * sizeof *token);
    assert_memory_equal(held_fact, fact, (size_t)n * sizeof *fact);
    for (int i = 0; i < got.n; i++) {
        assert_int_equal(got.token[i], want.token[i]);
        assert_int_equal(got.parent[i], want.parent[i]);
        assert_int_equal(got.depth[i], want.depth[i]);
        assert_true(got.anc[i] == want.anc[i] && got.fate[i] == want.fate[i]);
        assert_true(same_float(got.q[i], want.q[i]) && same_float(got.p[i], want.p[i]) &&
                    same_float(got.u[i], want.u[i]));
    }
}

static void push(struct step_ring *r, int turn, int step, int most)
{
    struct tree t;
    struct step_rec rec = {.kind = STEP_SPEC, .pos0 = 7 * turn + step};
    int32_t token[TREE_MAX];
    struct token_fact fact[TREE_MAX];
    struct pages_held held = {{turn, step, -1}};
    int n = tokens_of(turn, step, token, fact);
    tree_of(turn, step, most, &t);
    ring_push(r, turn, step, &rec, &t, token, fact, n, &held);
}

/* most: nodes of a tree; the bound that is met first differs. */
static void fill(int most)
{
    struct step_ring r;
    int turn = 1, step = 0, n = 3 * RING_STEPS / 2;
    ring_open(&r);
    assert_null(ring_drafted(&r));
    for (int i = 0; i < n; i++) {
        if (below(40) == 0) {
            turn += 1 + below(3);
            step = 0;
        }
        push(&r, turn, ++step, most);
        uint64_t held = r.end - r.first;
        assert_true(held >= 1 && held <= RING_STEPS && r.node_end - ring_at(&r, 0)->node <=
                    RING_NODES);
        assert_true(r.token_end - ring_at(&r, 0)->token <= RING_TOKENS);
        if (i % 1000 == 0 || i == n - 1)
            for (int k = 0; k < 50; k++) {
                const struct ring_entry *e = ring_at(&r, (uint64_t)below((int)held));
                assert_holds(&r, e->turn, e->step, most);
            }
    }
    const struct ring_entry *oldest = ring_at(&r, 0);
    assert_true(r.first > 0); /* something left */
    assert_null(ring_find(&r, 1, 1));
    assert_null(ring_find(&r, turn, step + 1));
    assert_null(ring_find(&r, turn + 1, 1));
    assert_null(ring_find(&r, oldest->turn, 0));
    if (r.end - r.first < RING_STEPS) /* no room was given away */
        assert_true(r.node_end - oldest->node > RING_NODES - 2 * TREE_MAX ||
                    r.token_end - oldest->token > RING_TOKENS - 2 * TREE_MAX);
    ring_close(&r);
}

static void test_small_trees_are_held_up_to_the_bound_of_steps(void **state)
{
    (void)state;
    fill(6);
}

static void test_large_trees_are_held_up_to_the_bound_of_nodes(void **state)
{
    (void)state;
    fill(TREE_MAX - 1);
}

static void test_a_cut_takes_later_turns_away(void **state)
{
    (void)state;
    struct step_ring r;
    ring_open(&r);
    for (int turn = 1; turn <= 9; turn++)
        for (int step = 1; step <= 5; step++)
            push(&r, turn, step, 6);
    ring_cut(&r, 6);
    assert_int_equal(r.end - r.first, 30);
    assert_null(ring_find(&r, 7, 1));
    assert_true(ring_drafted(&r)->turn <= 6 && ring_drafted(&r)->n_node > 0);
    push(&r, 7, 1, 6); /* the fork's own turn */
    for (int turn = 1; turn <= 6; turn++)
        for (int step = 1; step <= 5; step++)
            assert_holds(&r, turn, step, 6);
    assert_holds(&r, 7, 1, 6);
    ring_cut(&r, 0);
    assert_true(r.end == r.first && !ring_drafted(&r));
    push(&r, 1, 1, 6);
    assert_holds(&r, 1, 1, 6);
    ring_clear(&r);
    assert_null(ring_find(&r, 1, 1));
    ring_close(&r);
}

/* What the header states. */
static void test_entries_are_as_small_as_stated(void **state)
{
    (void)state;
    assert_int_equal(sizeof(struct ring_entry), 152);
    assert_int_equal(sizeof(struct tree_node), 20);
    assert_int_equal(sizeof(struct ring_token), 16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small_trees_are_held_up_to_the_bound_of_steps),
        cmocka_unit_test(test_large_trees_are_held_up_to_the_bound_of_nodes),
        cmocka_unit_test(test_a_cut_takes_later_turns_away),
        cmocka_unit_test(test_entries_are_as_small_as_stated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
