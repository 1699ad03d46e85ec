/* test_auto_shape.c - draft.shape = auto: in scripted worlds of costs and acceptance the chosen
 * shapes are nearly as fast as the best fixed one, after few steps, and every choice is a pure
 * function of what was measured. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/draft/auto_shape.h"

/* ---- a world --------------------------------------------------------------------------------- */

/* A step takes plain + level * (levels of the draft) + row * (rows - 1) + follow, in microseconds,
 * with noise. The target's token is the draft's best child with probability `right`, the second
 * best with (1 - right) * 0.34, then 0.14, 0.09, 0.06 ... */
struct world {
    const char *name;
    double plain, level, row, follow, right;
};

static uint64_t rng;

static double draw(void)
{
    rng = mix64(rng);
    return (double)(rng >> 11) * 0x1p-53;
}

/* Rank of the target's token among the draft's guesses, from 0; 16: it is none. */
static int draw_rank(const struct world *w)
{
    static const double share[] = {0.34, 0.14, 0.09, 0.06, 0.04, 0.03, 0.02};
    double u = draw() - w->right;
    if (u < 0)
        return 0;
    for (int k = 0; k < 7; k++)
        if ((u -= (1 - w->right) * share[k]) < 0)
            return k + 1;
    return 16;
}

/* A step of a shape; returns its tokens. Nodes are divided evenly among the levels; below a node
 * that is wrong the tree ends. */
static int run(const struct world *w, const struct tree_shape *shape, struct tree *t,
               struct auto_step *s)
{
    int at = 0, accepted = 0, each = 0;
    tree_init(t, 0);
    t->fate[0] = FATE_ACCEPTED;
    if (shape->steps)
        each = min_int(shape->topk, (shape->nodes - 1) / shape->steps);
    for (int d = 1; d <= shape->steps && at >= 0; d++) {
        int rank = draw_rank(w), next = -1;
        for (int k = 0; k < each; k++) {
            int node = tree_add(t, at, 100 * d + k, 0.5f, 0);
            t->fate[node] = k == rank ? FATE_ACCEPTED : FATE_REJECTED;
            next = k == rank ? node : next;
        }
        accepted += next >= 0;
        at = next;
    }
    double draft = shape->steps ? w->level * (shape->steps - 1) * (1 + 0.05 * (shape->topk - 1))
                                : 0;
    double verify = w->plain + w->row * (shape->nodes - 1);
    double noise = (0.95 + 0.1 * draw()) * (draw() < 0.01 ? 5 : 1);
    *s = (struct auto_step){
        .ns = 1e3 * noise * (draft + verify + (shape->steps ? w->follow : 0)),
        .ns_draft = 1e3 * noise * draft, .ns_verify = 1e3 * noise * verify,
        .tree = shape->steps ? t : NULL, .accepted = accepted};
    return 1 + accepted;
}

/* Tokens a second of a fixed shape, and the best of all. */
static double fixed_speed(const struct world *w, const struct tree_shape *shape)
{
    struct tree t;
    struct auto_step s;
    double tokens = 0, ns = 0;
    for (int i = 0; i < 4000; i++) {
        tokens += run(w, shape, &t, &s);
        ns += s.ns;
    }
    return tokens / ns * 1e9;
}

static double best_speed(const struct world *w, int *which)
{
    double best = 0;
    for (int i = 0; i < AUTO_SHAPES; i++) {
        double v = fixed_speed(w, auto_shape_at(i));
        if (v > best) {
            best = v;
            *which = i;
        }
    }
    return best;
}

static double auto_speed(const struct world *w, struct auto_shape *a, int steps)
{
    struct tree t;
    struct auto_step s;
    double tokens = 0, ns = 0;
    for (int i = 0; i < steps; i++) {
        tokens += run(w, auto_shape_next(a), &t, &s);
        ns += s.ns;
        auto_shape_take(a, &s);
    }
    return tokens / ns * 1e9;
}

static const struct tree_shape usual = {5, 1, 6};

/* Published models on a large GPU, the bundled one on two cores, and drafts that are useless. */
static const struct world worlds[] = {
    {"dense, good draft", 2000, 90, 1, 100, 0.8},
    {"dense, fair draft", 2000, 90, 1, 100, 0.65},
    {"dense, poor draft", 2000, 90, 1, 100, 0.3},
    {"experts, fair draft", 1300, 140, 170, 150, 0.65},
    {"experts, poor draft", 1300, 140, 170, 150, 0.3},
    {"many experts, fair draft", 1800, 140, 380, 150, 0.65},
    {"many experts, useless draft", 1800, 140, 380, 150, 0.02},
    {"small, on two cores", 480, 60, 110, 70, 0.75},
    {"small, useless draft", 480, 60, 110, 70, 0.05},
    {"nearly free rows", 170, 14, 0.3, 20, 0.75},
};
enum { N_WORLDS = sizeof worlds / sizeof *worlds };

static void test_auto_is_nearly_as_fast_as_the_best_shape(void **unused)
{
    (void)unused;
    for (int i = 0; i < N_WORLDS; i++) {
        struct auto_shape a;
        int which = 0;
        rng = 17 + (uint64_t)i;
        double best = best_speed(&worlds[i], &which);
        auto_shape_init(&a, &usual);
        double early = auto_speed(&worlds[i], &a, 400), later = auto_speed(&worlds[i], &a, 4000);
        print_message("# %-28s best %d (%.0f tok/s), auto %.3f of it in 400 steps, %.3f later, "
                      "%d switches\n",
                      worlds[i].name, which, best, early / best, later / best, (int)a.switches);
        assert_true(early > 0.85 * best && later > 0.93 * best);
    }
}

/* The text, then the machine changes: auto follows, and shapes that did not run meanwhile do not
 * look fast because the machine has become slower since. */
static void test_auto_follows_changes(void **unused)
{
    (void)unused;
    struct world w = worlds[3];
    struct auto_shape a;
    auto_shape_init(&a, &usual);
    rng = 5;
    auto_speed(&w, &a, 1500);
    for (int turn = 0; turn < 6; turn++) {
        static const double right[] = {0.05, 0.8, 0.8, 0.05, 0.65, 0.65};
        double slower = turn == 2 || turn == 5 ? 3 : 1;
        int which = 0;
        uint64_t before = a.switches;
        w = worlds[3];
        w.right = right[turn];
        w.plain *= slower, w.level *= slower, w.row *= slower, w.follow *= slower;
        double best = best_speed(&w, &which), now = auto_speed(&w, &a, 1500);
        print_message("# draft right %.2f, %.0f x slower: %.3f of the best, %d switches\n", w.right,
                      slower, now / best, (int)(a.switches - before));
        assert_true(now > 0.85 * best && auto_speed(&w, &a, 1500) > 0.9 * best);
    }
}

/* The same measurements give the same choices; other candidates' states do not matter. */
static void test_the_choice_is_a_function_of_what_was_measured(void **unused)
{
    (void)unused;
    struct auto_shape a, b;
    struct tree t;
    struct auto_step s;
    auto_shape_init(&a, &usual);
    rng = 9;
    for (int i = 0; i < 3000; i++) {
        run(&worlds[i / 1000], auto_shape_next(&a), &t, &s);
        b = a;
        auto_shape_take(&a, &s);
        auto_shape_take(&b, &s);
        assert_memory_equal(&a, &b, sizeof a);
        const struct tree_shape *next = auto_shape_next(&a);
        assert_true(next->steps <= MAX_STEPS && next->topk <= AUTO_GUESSES &&
                    next->nodes <= TREE_MAX);
        if (i % 97 == 0) {
            auto_shape_rest(&a);
            assert_true(a.left == 0 && a.now == a.home);
        }
    }
}

/* Times of nothing, of hours, and trees that a limit has cut are no reason to divide by zero. */
static void test_odd_measurements(void **unused)
{
    (void)unused;
    struct auto_shape a;
    struct tree t;
    auto_shape_init(&a, &(struct tree_shape){16, 16, 64});
    assert_int_equal(auto_shape_next(&a)->topk, 8);
    auto_shape_init(&a, &(struct tree_shape){1, 1, 2});
    assert_int_equal(auto_shape_next(&a)->nodes, 2);
    rng = 4;
    for (int i = 0; i < 20000; i++) {
        const struct tree_shape *shape = auto_shape_next(&a);
        struct auto_step s = {.ns = draw() < 0.1 ? 1 : draw() < 0.1 ? 1e15 : 1e6 * draw() + 1,
                              .ns_verify = 1e6 * draw()};
        tree_init(&t, 0);
        for (int k = 0; k < shape->steps; k++)
            t.fate[tree_add(&t, k, k, 1, 0)] = (uint8_t)(draw() * 4);
        s.tree = &t;
        auto_shape_take(&a, &s);
        for (int k = 0; k < AUTO_SHAPES; k++)
            assert_true(isfinite(auto_shape_tokens(&a, k)) && auto_shape_tokens(&a, k) >= 1 &&
                        isfinite(auto_shape_ns(&a, k)));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_auto_is_nearly_as_fast_as_the_best_shape),
        cmocka_unit_test(test_auto_follows_changes),
        cmocka_unit_test(test_the_choice_is_a_function_of_what_was_measured),
        cmocka_unit_test(test_odd_measurements),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
