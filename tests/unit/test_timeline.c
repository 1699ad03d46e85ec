/* test_timeline.c - the line of steps (repl/tui/timeline.h): cells against sums made anew,
 * addresses, turns, going back; and the mouse's reports as keys (repl/tui/keys.h). */
#include "repl/tui/keys.h"
#include "repl/tui/timeline.h"
#include "tests/chance.h"

#include <setjmp.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

static struct moment moment(int turn, int step)
{
    bool spec = step > 1 && below(5) > 0;
    return (struct moment){.turn = turn, .step = step, .kind = step == 1 ? STEP_PREFILL : spec
                           ? STEP_SPEC : STEP_DECODE,
                           .drafted = 8, .accepted = (uint8_t)(spec ? below(9) : 0),
                           .marks = (uint8_t)(below(6) ? 0 : MARK_WINDOW)};
}

/* However the timeline came about, its cells are the sums of its steps. */
static void assert_sums(const struct timeline *t)
{
    int used = timeline_used(t);
    assert_true(t->unit >= 1 && used <= t->cells && used * t->unit >= t->n);
    /* no unit smaller than needed */
    assert_true(t->unit == 1 || (t->n + t->unit - 2) / (t->unit - 1) > t->cells);
    for (int c = 0; c < used; c++) {
        struct moment_sum want = {0};
        for (int i = c * t->unit; i < t->n && i < (c + 1) * t->unit; i++) {
            const struct moment *m = &t->at[i];
            want.steps++;
            want.cycles += m->kind == STEP_SPEC;
            want.accepted += m->kind == STEP_SPEC ? m->accepted : 0;
            want.marks |= m->marks;
            assert_int_equal(timeline_cell_of(t, i), c);
        }
        const struct moment_sum *got = &t->cell[c];
        assert_true(got->steps == want.steps && got->cycles == want.cycles &&
                    got->accepted == want.accepted && got->marks == want.marks);
        enum style st;
        bool underline;
        const char *s = timeline_cell(t, c, false, &st, &underline),
            *a = timeline_cell(t, c, true, &st, &underline);
        assert_int_equal(text_width(s, strlen(s)), 1);
        assert_true(strlen(a) == 1 && a[0] > ' ' && a[0] < 0x7F);
        assert_int_equal(underline, (want.marks & MARK_WINDOW) != 0);
        assert_int_equal(timeline_cell_of(t, timeline_step_of(t, c)), c);
    }
}

static void test_cells_are_the_sums_of_their_steps(void **state)
{
    (void)state;
    for (int round = 0; round < 60; round++) {
        struct timeline t = {0};
        int turn = 1, step = 0;
        timeline_fit(&t, 1 + below(60));
        for (int i = 0; i < 300; i++) {
            switch (below(12)) {
            case 0: turn++, step = 0; break;
            case 1: timeline_fit(&t, 1 + below(200)); break;
            case 2: timeline_mark(&t, 1 + below(turn), below(40),
                                  MARK_PAUSE); break;
            case 3: /* back, and on again from there */
                if (below(6) == 0 && t.n > 0) {
                    const struct moment *m = &t.at[below(t.n)];
                    turn = m->turn, step = m->step - 1;
                }
                break;
            default: break;
            }
            timeline_add(&t, moment(turn, ++step));
            assert_true(t.at[t.n - 1].turn == turn && t.at[t.n - 1].step == step);
            if (i % 16 == 0)
                assert_sums(&t);
        }
        assert_sums(&t);
        for (int i = 1; i < t.n; i++) {
            assert_true(t.at[i - 1].turn < t.at[i].turn ||
                        (t.at[i - 1].turn == t.at[i].turn && t.at[i - 1].step < t.at[i].step));
            assert_int_equal((t.at[i].marks & MARK_TURN) != 0, t.at[i].turn != t.at[i - 1].turn);
        }
        timeline_cut(&t, turn - 1);
        assert_true(t.n == 0 || t.at[t.n - 1].turn < turn);
        assert_sums(&t);
        timeline_free(&t);
    }
}

static void test_addresses_and_turns(void **state)
{
    (void)state;
    struct timeline t = {0};
    timeline_fit(&t, 10);
    assert_int_equal(timeline_find(&t, 1, 1), -1);
    assert_int_equal(timeline_step_of(&t, 0), -1);
    for (int turn = 2; turn <= 6; turn += 2)
        for (int step = 1; step <= 5; step++)
            timeline_add(&t, moment(turn, step));
    assert_int_equal(timeline_find(&t, 2, 1), 0);
    assert_int_equal(timeline_find(&t, 4, 3), 7);
    assert_int_equal(timeline_find(&t, 4, 9), 9); /* the latest before */
    assert_int_equal(timeline_find(&t, 3, 1), 4);
    assert_int_equal(timeline_find(&t, 1, 9), -1);
    assert_int_equal(timeline_turn(&t, 7, -1), 5);
    assert_int_equal(timeline_turn(&t, 5, -1), 0);
    assert_int_equal(timeline_turn(&t, 0, -1), 0);
    assert_int_equal(timeline_turn(&t, 3, 1), 5);
    assert_int_equal(timeline_turn(&t, 12, 1), 14); /* no turn follows: the end */
    assert_int_equal(t.unit, 2);
    timeline_free(&t);
}

static struct key report(const char *bytes)
{
    struct keys k = {0};
    struct key out = {0};
    keys_feed(&k, bytes, strlen(bytes));
    if (!keys_next(&k, false, &out))
        out = (struct key){0};
    struct key more;
    assert_false(keys_next(&k, true, &more)); /* nothing of it is typed */
    keys_free(&k);
    return out;
}

static void test_the_mouse_is_a_key(void **state)
{
    (void)state;
    static const struct { const char *bytes; enum mouse_act act; int x, y; } cases[] = {
        {"\033[<0;1;1M", MOUSE_PRESS, 0, 0}, {"\033[<0;200;60m", MOUSE_RELEASE, 199, 59},
        {"\033[<32;7;3M", MOUSE_DRAG, 6, 2}, {"\033[<64;4;5M", MOUSE_WHEEL_UP, 3, 4},
        {"\033[<65;4;5M", MOUSE_WHEEL_DOWN, 3, 4}, {"\033[<16;4;5M", MOUSE_PRESS, 3, 4},
    };
    static const char *const none[] = {"\033[<1;4;5M", "\033[<2;4;5M", "\033[<0;0;5M", "\033[<0;5M",
                                       "\033[<0;1;1;1M",
                                       "\033[<M", "\033[<35;2;2M", "\033[<0;1;1A"};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct key k = report(cases[i].bytes);
        assert_true(k.code == K_MOUSE && k.mouse == cases[i].act && k.x == cases[i].x &&
                    k.y == cases[i].y);
    }
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        assert_int_equal(report(none[i]).code, K_NONE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cells_are_the_sums_of_their_steps),
        cmocka_unit_test(test_addresses_and_turns),
        cmocka_unit_test(test_the_mouse_is_a_key),
    };
    return cmocka_run_group_tests_name("timeline", tests, NULL, NULL);
}
