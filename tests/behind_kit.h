/* behind_kit.h - for tests of lanes whose drafter is behind: the shapes of steps change, and the
 * drafter runs over the cells of plain steps only later. Such a lane must yield the tokens of plain
 * decoding, and, whenever the drafter has caught up, the guesses of a drafter that was never
 * behind. */
#pragma once

#include "tests/chance.h"
#include "tests/runtimes.h"

enum { LENGTH = 150, GUESSES = 4 };

/* The reference: the tokens, and the drafter's guesses at each length. */
struct reference {
    struct ids tok;
    struct guess at[LENGTH + 1];
};

/* Computes the reference: one token a step, over which the drafter runs at once. */
static void run_reference(struct runtime *r, const struct lane *begin, struct reference *ref)
{
    static const struct tree_shape one = {1, 1, 2};
    struct lane l = *begin, *lp = &l;
    struct step_limits lim = {1};
    struct err e = {0};
    l.tok = (struct ids){0};
    ids_cat(&l.tok, begin->tok.v, begin->tok.n);
    lane_prompt(r, &l, 16, &one);
    ref->at[l.seq.committed] = l.guess;
    while (l.tok.n < LENGTH) {
        must(lane_step(r, &lp, &lim, 1, &one, &e), &e);
        ref->at[l.seq.committed] = l.guess;
    }
    ref->tok = (struct ids){0};
    ids_cat(&ref->tok, l.tok.v, l.tok.n);
    lane_free(r, &l);
}

static void same_guess(const struct reference *ref, const struct lane *l)
{
    const struct guess *a = &ref->at[l->seq.committed], *b = &l->guess;
    assert_int_equal(l->seq.drafted, l->seq.committed);
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->token, b->token, (size_t)a->n * sizeof *a->token);
    assert_memory_equal(a->logp, b->logp, (size_t)a->n * sizeof *a->logp);
}

static int caught_up, longest, full;

/* Plain steps follow each other often enough to fill the backlog now and then. */
static void run_changing(struct runtime *r, const struct lane *begin, const struct reference *ref)
{
    static const struct tree_shape shapes[] = {{0, 0, 1}, {1, 1, 2}, {3, 1, 4}, {2, 3, 7},
                                               {4, 4, 12}};
    struct lane l = *begin, *lp = &l;
    struct err e = {0};
    int plain = 0;
    l.tok = (struct ids){0};
    ids_cat(&l.tok, begin->tok.v, begin->tok.n);
    lane_prompt(r, &l, 1 + below(20), &shapes[1]);
    while (l.tok.n < LENGTH) {
        struct step_limits lim = {min_int(LENGTH - l.tok.n, below(4) ? LENGTH : 1 + below(3))};
        if (plain == 0 && below(4) == 0)
            plain = below(3) ? 1 + below(8) : HEAD_BACKLOG + 1 + below(9);
        const struct tree_shape *shape = &shapes[plain > 0 ? 0 : 1 + below(4)];
        int before = l.behind;
        must(lane_step(r, &lp, &lim, 1, shape, &e), &e);
        plain -= plain > 0;
        full += before == HEAD_BACKLOG;
        longest = max_int(longest, l.behind);
        if (shape->steps) {
            caught_up += before > 0;
            same_guess(ref, &l);
        } else {
            assert_true(l.behind > 0 && l.seq.drafted + l.behind == l.seq.committed);
        }
    }
    if (l.behind) { /* the end of a turn */
        must(lane_catch_up(r, &l, 1, &e), &e);
        same_guess(ref, &l);
        assert_true(lane_can_follow(r, &l));
    }
    assert_int_equal(l.tok.n, ref->tok.n);
    assert_memory_equal(l.tok.v, ref->tok.v, (size_t)l.tok.n * sizeof *l.tok.v);
    lane_free(r, &l);
    must(kv_check(&r->kv, NULL, 0, &e), &e); /* every page came back */
}

static void compare(struct runtime *r, int vocab, int times)
{
    static struct reference ref;
    for (int i = 0; i < times; i++) {
        struct lane begin = {.tap_row = -1, .seed = 3, .guesses = GUESSES,
                             .how = {.temperature = i % 2 ? 0.8f : 0, .top_p = 1}};
        for (int n = 2 + below(20); n > 0; n--)
            ids_add(&begin.tok, below(vocab));
        run_reference(r, &begin, &ref);
        for (int k = 0; k < 3; k++)
            run_changing(r, &begin, &ref);
        ids_free(&begin.tok);
        ids_free(&ref.tok);
    }
}
