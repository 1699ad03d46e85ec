/* test_differ.c - the conditions of two runs decide which results must be equal: steps bit by bit,
 * tokens by position, page tables by their meaning (repl/compare/differ.h,
 * repl/compare/differ_pages.h). How far margins move (repl/compare/judge.h). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "repl/compare/judge.h"

static const struct diff_names in = {"in a", "in b"};

/* A run of one turn; every step emits two tokens. */
static void begin(struct trace *t, const char *about, const char *settings)
{
    *t = (struct trace){0};
    trace_begin(t, 1, settings, about);
    t->turn[0].stop = STOP_END;
}

static void step(struct trace *t, int n, int32_t a, int32_t b, float logp,
                 const struct page_event *ev, int n_ev, const struct context_lengths *l)
{
    struct token_fact fact[2] = {{logp, -3, 9}, {logp, -3, 9}};
    struct event e = {.kind = EV_STEP, .turn = 1, .step = n, .facts = fact, .n_pages = n_ev};
    e.rec = (struct step_rec){.kind = STEP_SPEC, .pos0 = 2 * n, .rows = 3, .drafted = 2,
                              .accepted = 1,
                              .bonus = b, .page_digest = 1, .draft_digest = 2, .logit_digest = 3};
    e.pages = (struct page_event *)(uintptr_t)ev;
    if (l)
        e.lengths = *l;
    ids_add(&e.tokens, a);
    ids_add(&e.tokens, b);
    trace_event(t, &e);
    ids_cat(&t->turn[0].reply, e.tokens.v, e.tokens.n);
    ids_free(&e.tokens);
}

static enum diff_class differ(const struct trace *a, const struct trace *b, struct difference *d,
                              struct diff_counts *n)
{
    struct conditions c;
    differ_traces(a, b, DIFF_BY_CONDITIONS, &in, d, &c, n);
    conditions_free(&c);
    return d->class;
}

static void test_each_field_of_a_step_has_its_class(void **state)
{
    (void)state;
    static const struct {
        size_t at, n;
        enum diff_class class;
    } field[] = {
        {offsetof(struct step_rec, kind), 4, DIFF_PAGES},
        {offsetof(struct step_rec, pos0), 4, DIFF_PAGES},
        {offsetof(struct step_rec, page_digest), 8, DIFF_PAGES},
        {offsetof(struct step_rec, drafted), 4, DIFF_DRAFT},
        {offsetof(struct step_rec, draft_digest), 8, DIFF_DRAFT},
        {offsetof(struct step_rec, logit_digest), 8, DIFF_LOGITS},
        {offsetof(struct step_rec, rows), 4, DIFF_PAGES},
        {offsetof(struct step_rec, accepted), 4, DIFF_SAMPLER},
        {offsetof(struct step_rec, bonus), 4, DIFF_SAMPLER},
        {offsetof(struct step_rec, draws), 8, DIFF_SAMPLER}};
    for (size_t i = 0; i < sizeof field / sizeof *field; i++) {
        struct trace a, b;
        struct difference d;
        struct diff_counts n;
        begin(&a, "page_size=4\n", "");
        begin(&b, "page_size=4\n", "");
        for (int k = 1; k <= 3; k++) {
            step(&a, k, 5, 6, -1, NULL, 0, NULL);
            step(&b, k, 5, 6, -1, NULL, 0, NULL);
        }
        assert_int_equal(differ(&a, &b, &d, &n), DIFF_NONE);
        assert_int_equal(n.steps, 3);
        ((char *)&b.turn[0].step[1].rec)[field[i].at] ^= 1;
        assert_int_equal(differ(&a, &b, &d, &n), field[i].class);
        assert_int_equal(d.step[0], 2);
        trace_free(&a);
        trace_free(&b);
    }
}

static void test_other_trees_are_compared_by_position(void **state)
{
    (void)state;
    struct trace a, b;
    struct difference d;
    struct diff_counts n;
    begin(&a, "", "draft.topk=1\ntemperature=0\n");
    begin(&b, "", "draft.topk=4\ntemperature=0\n");
    step(&a, 1, 5, 6, -1, NULL, 0, NULL);
    step(&b, 1, 5, 6, -1, NULL, 0, NULL);
    b.turn[0].step[0].rec.draft_digest = b.turn[0].step[0].rec.page_digest = 99;
    assert_int_equal(differ(&a, &b, &d, &n), DIFF_NONE);
    assert_true(n.by_position && n.facts && n.tokens == 2);
    struct token_fact *fact = &b.turn[0].step[0].facts[1];
    const struct token_fact same = *fact, other[] = {{-1, -2.5f, 9}, {-1, -3, 8}, {-1.5f, -3, 9}};
    for (size_t i = 0; i < LEN(other); i++) {
        *fact = other[i]; /* another tree changes no number */
        assert_int_equal(differ(&a, &b, &d, &n), DIFF_LOGITS);
        assert_int_equal(d.token, 1);
    }
    *fact = same;
    fact->rival_logp = -2.5f;
    free(b.turn[0].settings);
    /* nor does another temperature */
    b.turn[0].settings = xstrdup("draft.topk=1\ntemperature=0.5\n");
    assert_int_equal(differ(&a, &b, &d, &n), DIFF_LOGITS);
    b.turn[0].step[0].facts[1] = a.turn[0].step[0].facts[1];
    b.turn[0].step[0].tokens.v[1] = 9; /* the rival was drawn: its row has the same best token */
    b.turn[0].step[0].facts[1] = (struct token_fact){-3, -1, 6};
    assert_int_equal(differ(&a, &b, &d, &n), DIFF_SAMPLER);
    free(b.turn[0].about);
    b.turn[0].about = xstrdup("precision=bf16\n");
    free(a.turn[0].about);
    a.turn[0].about = xstrdup("precision=f32\n");
    b.turn[0].step[0].tokens.v[1] = 6;
    b.turn[0].step[0].facts[1].logp = -1.25f;
    /* numbers may differ by rounding, tokens not */
    assert_int_equal(differ(&a, &b, &d, &n), DIFF_NONE);
    assert_true(n.most > 0.2 && n.most < 0.3);
    trace_free(&a);
    trace_free(&b);
}

/* Where the sides accept other nodes, digests of drafts differ, and the trees say whether the
 * drafts do. */
static void test_drafts_of_other_paths_are_compared_as_trees(void **state)
{
    (void)state;
    static const struct {
        int32_t token;
        int parent;
        enum diff_class class;
        const char *why;
    } last[] = {{4, 1, DIFF_SAMPLER, "accepted 1 in a, 2 in b"},
                {4, 2, DIFF_DRAFT, "parent of a node 1 in a, 2 in b"},
                {5, 1, DIFF_DRAFT, "token of a node 4 in a, 5 in b"}};
    for (size_t i = 0; i < LEN(last); i++) {
        struct trace t[2];
        struct difference d;
        struct diff_counts n;
        for (int side = 0; side < 2; side++) {
            begin(&t[side], "", "");
            step(&t[side], 1, 5, 6, -1, NULL, 0, NULL);
            struct step_row *row = &t[side].turn[0].step[0];
            row->tree = xcalloc(1, sizeof *row->tree);
            tree_init(row->tree, 1);
            tree_add(row->tree, 0, 2, 0.5f, -1);
            tree_add(row->tree, 0, 3, 0.4f, -1);
            tree_add(row->tree, side ? last[i].parent : 1, side ? last[i].token : 4, 0.3f, -2);
            row->rec.accepted = 1 + side;
            row->rec.draft_digest = (uint64_t)side;
        }
        assert_int_equal(differ(&t[0], &t[1], &d, &n), last[i].class);
        assert_non_null(strstr(d.why, last[i].why));
        trace_free(&t[0]);
        trace_free(&t[1]);
    }
}

static void test_a_turn_that_one_side_lacks_is_named(void **state)
{
    (void)state;
    for (int side = 0; side < 2; side++) {
        struct trace t[2];
        struct difference d;
        struct diff_counts n;
        begin(&t[0], "", "");
        begin(&t[1], "", "");
        trace_begin(&t[side], 3, "", "");
        trace_begin(&t[side], 4, "", "");
        assert_int_equal(differ(&t[0], &t[1], &d, &n), DIFF_MESSAGE);
        assert_true(d.index == 1 && d.turn == 3);
        assert_string_equal(d.why, side ? "there is no such turn in a" : "there is no such turn in b");
        trace_free(&t[0]);
        trace_free(&t[1]);
    }
}

/* How a check compares: whatever the conditions, and a turn that was cut short as well. */
static void test_exactly_means_every_bit_of_every_turn(void **state)
{
    (void)state;
    static const struct {
        enum diff_class class;
        const char *why; /* a part of it */
    } expect[] = {{DIFF_NONE, ""},
                  {DIFF_DRAFT, "digest"},
                  {DIFF_REPLY, "token 0 is 5 in a, 7 in b"},
                  {DIFF_REPLY, "no such step in b"},
                  {DIFF_REPLY, "no such step in a"},
                  {DIFF_STOP, "I4 one (in b only)"},
                  {DIFF_STOP, "I4 one in a, I4 one in b"}};
    for (int i = 0; i < 7; i++) {
        struct trace a, b;
        struct comparison c;
        begin(&a, "precision=f32\n", "draft.topk=1\n");
        begin(&b, "precision=bf16\n", "draft.topk=4\n");
        for (int k = 1; k <= 2; k++) {
            step(&a, k, 5, 6, -1, NULL, 0, NULL);
            step(&b, k, 5, 6, -1, NULL, 0, NULL);
        }
        struct trace_turn *x = &a.turn[0], *y = &b.turn[0];
        x->cut = i == 2 || i == 3 || i == 6;
        y->cut = x->cut || i == 5;
        y->step[1].rec.draft_digest += i == 1;
        y->reply.v[0] += i == 2 ? 2 : 0;
        if (i == 3 || i == 6)
            step_row_free(&y->step[--y->n_step]);
        if (i == 4)
            step_row_free(&x->step[--x->n_step]);
        snprintf(y->fault, sizeof y->fault, "%s", i >= 5 ? "I4 one" : "");
        snprintf(x->fault, sizeof x->fault, "%s", i == 6 ? "I4 one" : "");
        y->rule = i >= 5 ? 4 : 0;
        x->rule = i == 6 ? 4 : 0;
        if (i == 6) /* in the prompt, after another number of its chunks */
            x->step[0].tokens.n = x->step[1].tokens.n = y->step[0].tokens.n = 0;
        comparison_begin(&c, DIFF_EXACTLY, &in);
        comparison_turn(&c, x, y);
        if (c.d.class != expect[i].class || !strstr(c.d.why, expect[i].why))
            fail_msg("case %d: class %d, \"%s\"", i, (int)c.d.class, c.d.why);
        comparison_free(&c);
        trace_free(&a);
        trace_free(&b);
    }
}

/* A historical fault that is on on both sides may stop them at different places if anything else
 * differs; later turns are compared if no reply differs. */
static void test_where_a_fault_may_stop_the_sides(void **state)
{
    (void)state;
    static const struct {
        const char *settings_a, *settings_b;
        int steps_a, steps_b, rule_a, rule_b; /* rule -1: it did not stop */
        enum diff_class class;
        bool over;
        const char *why;
    } at[] = {
#define FAULT "bug.24617=on\n"
#define CHAIN FAULT "draft.topk=1\n"
#define TREE FAULT "draft.topk=4\n"
        {CHAIN, TREE, 1, 2, 4, -1, DIFF_NONE, true, "stopped in a only; the historical fault is"},
        {CHAIN, TREE, 2, 1, -1, 4, DIFF_NONE, true, "stopped in b only; the historical fault is"},
        {CHAIN, TREE, 0, 2, 4, -1, DIFF_NONE, false, "stopped in a only; the historical fault is"},
        {CHAIN, TREE, 1, 1, 4, -1, DIFF_NONE, false, "stopped in a only; the historical fault is"},
        {CHAIN, TREE, 1, 2, 4, 4, DIFF_NONE, true, "after 2 tokens in a, after 4 in b, by the"},
        {CHAIN, TREE, 0, 2, 4, 4, DIFF_NONE, false, "after 0 tokens in a, after 4 in b, by the"},
        {CHAIN, TREE, 1, 1, 4, 4, DIFF_NONE, false, "after the same 2 tokens on both sides"},
        {CHAIN, TREE, 1, 1, 4, 5, DIFF_STOP, false, "I4 one in a, I5 one in b"},
        {CHAIN, TREE, 1, 2, 0, -1, DIFF_LOGITS, false, "I0 one (in a)"},
        {CHAIN, CHAIN, 1, 2, 4, 4, DIFF_STOP, false, "I4 one in a, I4 one in b"},
        {CHAIN, CHAIN, 1, 2, 4, -1, DIFF_STOP, false, "I4 one (in a only)"},
        {CHAIN, "draft.topk=4\n", 1, 2, 4, -1, DIFF_STOP, false, "I4 one (in a only)"},
        {"draft.topk=1\n", "draft.topk=4\n", 1, 2, 4, -1, DIFF_STOP, false, "I4 one (in a only)"},
#undef FAULT
#undef CHAIN
#undef TREE
    };
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        struct trace t[2];
        struct difference d;
        struct diff_counts n;
        for (int side = 0; side < 2; side++) {
            int rule = side ? at[i].rule_b : at[i].rule_a;
            begin(&t[side], "", side ? at[i].settings_b : at[i].settings_a);
            for (int k = 1; k <= (side ? at[i].steps_b : at[i].steps_a); k++)
                step(&t[side], k, 5, 6, -1, NULL, 0, NULL);
            t[side].turn[0].cut = rule >= 0;
            t[side].turn[0].rule = max_int(rule, 0);
            if (rule >= 0)
                snprintf(t[side].turn[0].fault, sizeof t[side].turn[0].fault, "I%d one", rule);
        }
        enum diff_class class = differ(&t[0], &t[1], &d, &n);
        const char *why = class ? d.why : n.stop;
        if (class != at[i].class || n.over != at[i].over || !strstr(why, at[i].why))
            fail_msg("case %d: class %d, over %d: %s", (int)i, (int)class, (int)n.over, why);
        assert_int_equal(!!strstr(why, "later turns have different contexts"), at[i].over);
        assert_int_equal(n.stopped, 1);
        trace_free(&t[0]);
        trace_free(&t[1]);
    }
}

/* Replies that servers reported, by ids or by text; a server may leave out the stop token's id, and
 * count it. */
static void test_where_reported_replies_differ(void **state)
{
    (void)state;
    static const struct {
        int n[2];
        int32_t id[2][4];
        bool ended[2];
        int64_t counted[2];
        int at;
    } by_ids[] = {
        {{2, 2}, {{1, 2}, {1, 2}}, {true, true}, {-1, -1}, -1},
        {{2, 2}, {{1, 2}, {1, 3}}, {true, true}, {2, 2}, 1},
        {{2, 3}, {{1, 2}, {1, 2, 9}}, {true, true}, {3, 3}, -1},
        {{2, 3}, {{1, 2}, {1, 2, 9}}, {true, true}, {2, 3}, 2},
        {{2, 3}, {{1, 2}, {1, 2, 9}}, {true, true}, {-1, 3}, 2},
        {{2, 3}, {{1, 2}, {1, 2, 9}}, {false, true}, {3, 3}, 2},
        {{2, 3}, {{1, 2}, {1, 2, 9}}, {true, false}, {3, 3}, 2},
        {{2, 4}, {{1, 2}, {1, 2, 9, 9}}, {true, true}, {4, 4}, 2},
        {{2, 3}, {{1, 3}, {1, 2, 9}}, {true, true}, {3, 3}, 1}};
    static const struct {
        const char *text[2];
        int at;
    } by_texts[] = {{{"abc", "abc"}, -1}, {{"abc", "abd"}, 2}, {{"ab", "abc"}, 2}, {{"", ""}, -1}};
    bool by_text;
    for (size_t i = 0; i < LEN(by_ids); i++) {
        struct ids ids[2] = {{0}, {0}};
        struct reported_reply r[2];
        for (int side = 0; side < 2; side++) {
            ids_cat(&ids[side], by_ids[i].id[side], by_ids[i].n[side]);
            r[side] = (struct reported_reply){.has_ids = true, .ids = &ids[side], .text = "x",
                                              .ended = by_ids[i].ended[side],
                                              .counted = by_ids[i].counted[side]};
        }
        assert_int_equal(differ_replies(&r[0], &r[1], &by_text), by_ids[i].at);
        assert_int_equal(differ_replies(&r[1], &r[0], &by_text), by_ids[i].at);
        assert_false(by_text);
        ids_free(&ids[0]);
        ids_free(&ids[1]);
    }
    for (size_t i = 0; i < LEN(by_texts); i++) {
        struct ids one = {0}, none = {0};
        ids_add(&one, 7); /* the other has no ids: texts are compared */
        struct reported_reply a = {.has_ids = true, .ids = &one, .text = by_texts[i].text[0]},
            b = {.ids = &none, .text = by_texts[i].text[1]};
        assert_int_equal(differ_replies(&a, &b, &by_text), by_texts[i].at);
        assert_true(by_text);
        ids_free(&one);
    }
}

/* Page tables of 32 committed positions: `size` tokens a page, page numbers from `first` on; the
 * pages of the swa pool from position `lo` on. `change` is made in the last event. */
static void step_with_pages(struct trace *t, int size, int first, int lo, int change)
{
    struct page_event ev[80] = {{.pool = POOL_FULL, .op = PAGE_RESET, .page = 200, .column = size,
                                 .refs = 512},
                                {.pool = POOL_SWA, .op = PAGE_RESET, .page = 200, .column = size,
                                 .refs = 16},
                                {.pool = POOL_DRAFT, .op = PAGE_RESET, .column = size}};
    struct context_lengths l = {.length = 33, .committed = 32, .window_lo = lo};
    int n = 3;
    for (int c = 0; c < 32 / size; c++)
        ev[n++] = (struct page_event){.pool = POOL_FULL, .op = PAGE_TAKE, .page = first + c,
                                      .column = c, .refs = 1};
    for (int c = lo / size; c < 32 / size; c++)
        ev[n++] = (struct page_event){.pool = POOL_SWA, .op = PAGE_TAKE, .page = first + c,
                                      .column = c, .refs = 1};
    if (change == 1) /* the page of the column before */
        ev[n - 1].page--, ev[n - 1].op = PAGE_SHARE, ev[n - 1].refs = 2;
    if (change == 2) /* no page */
        n--;
    step(t, 1, 5, 6, -1, ev, n, &l);
}

static void test_other_page_sizes_are_compared_by_what_the_tables_mean(void **state)
{
    (void)state;
    static const struct {
        int size, first, lo, change;
        const char *why; /* NULL: equal */
    } other[] = {
        {4, 60, 16, 0, NULL},
        {1, 7, 17, 0, NULL},
        {8, 9, 16, 0, NULL},
        {16, 20, 16, 0, NULL},
        {4, 60, 16, 1, "share page"},
        {4, 60, 16, 2, "position 28 has no page of the swa pool in b"},
        {4, 60, 4, 0, "the swa pool holds positions from 16 on in a, from 4 on in b"},
        {4, 60, 20, 0, "the swa pool holds positions from 16 on in a, from 20 on in b"}};
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        struct trace a, b;
        struct difference d;
        struct diff_counts n;
        char about[32];
        snprintf(about, sizeof about, "page_size=%d\nswa_pages=%d\n", other[i].size, (int)i + 10);
        begin(&a, "page_size=2\nswa_pages=5\n", "");
        begin(&b, about, "");
        step_with_pages(&a, 2, 1, 16, 0);
        step_with_pages(&b, other[i].size, other[i].first, other[i].lo, other[i].change);
        b.turn[0].step[0].rec.page_digest = 77;
        enum diff_class class = differ(&a, &b, &d, &n);
        assert_true(n.meaning);
        if (class != (other[i].why ? DIFF_PAGES : DIFF_NONE))
            fail_msg("case %d: %s", (int)i, d.class ? d.why : "equal");
        if (other[i].why && !strstr(d.why, other[i].why))
            fail_msg("case %d: \"%s\", expected \"%s\"", (int)i, d.why, other[i].why);
        trace_free(&a);
        trace_free(&b);
    }
}

/* A margin is that over the rival of the run without noise, whoever comes second with it. */
static void test_margins_move_over_the_rival_of_the_base(void **state)
{
    (void)state;
    struct trace a, b;
    struct band band;
    double moved[6];
    begin(&a, "", "");
    begin(&b, "", "");
    for (int k = 1; k <= 3; k++)
        step(&a, k, 5, 6, -1, NULL, 0, NULL); /* margins of 2 */
    step(&b, 1, 5, 6, -1.25f, NULL, 0, NULL);
    step(&b, 2, 5, 7, -1, NULL, 0, NULL);
    step(&b, 3, 5, 6, -1, NULL, 0, NULL);
    b.turn[0].step[0].facts[1] = (struct token_fact){-1.5f, -1.75f, 8}; /* another rival */
    free(b.turn[0].step[2].facts);
    b.turn[0].step[2].facts = NULL;
    b.turn[0].step[2].tokens.n = 1;
    band_begin(&band, &a);
    assert_int_equal(band.n, 6);
    assert_true(band.at[3].turn == 1 && band.at[3].token == 3 && band.at[3].margin == 2);
    band_moves(&band, &b, moved);
    assert_true(moved[0] == -0.25 && moved[1] == -0.5 && moved[2] == 0);
    assert_true(isinf(moved[3]) && isinf(moved[4]) && isnan(moved[5]));
    const double sizes[] = {3, NAN, 1, 2};
    assert_true(median(sizes, 4) == 2 && median(sizes, 0) == 0);
    band_free(&band);
    trace_free(&a);
    trace_free(&b);
}

static unsigned may(const char *about_a, const char *about_b)
{
    struct conditions c = {0};
    conditions_read(&c, NULL, about_a, NULL, about_b);
    unsigned m = c.may;
    conditions_free(&c);
    return m;
}

static void test_a_change_may_change_what_its_nature_says(void **state)
{
    (void)state;
    assert_int_equal(may("page_size=4\n", "page_size=8\n"), MAY_NUMBER);
    assert_int_equal(may("page_size=4\nfull_pages=80\nswa_pages=40\n",
                         "page_size=8\nfull_pages=44\nswa_pages=24\n"), MAY_NUMBER);
    assert_int_equal(may("page_size=8\nfull_pages=80\n", "page_size=8\nfull_pages=4\n"),
                     MAY_NUMBER | MAY_STEP | MAY_END); /* a reply may end where the pool is full */
    assert_int_equal(may("page_size=8\nswa_pages=40\n", "page_size=8\nswa_pages=20\n"),
                     MAY_NUMBER | MAY_STEP | MAY_END);
    assert_int_equal(may("context=160\n", "context=400\n"), /* near its end trees are smaller */
                     MAY_NUMBER | MAY_STEP | MAY_PROMPT | MAY_END);
    assert_int_equal(may("precision=f32\nkv=f32\n", "precision=bf16\nkv=f32\n"), MAY_ROUND);
    assert_int_equal(may("device=cpu, 2 threads, AVX-512\n", "device=cpu, 8 threads, AVX2\n"), 0);
    assert_int_equal(may("device=cpu, 2 threads\n", "device=cuda, H100\n"), MAY_BUILD);
    assert_int_equal(may("weights=stored\ndraft_weights=\n", "weights=fp8\ndraft_weights=\n"),
                     MAY_LOGITS | MAY_STEP);
    assert_int_equal(may("check=on\nbug.24617=on\n", "check=off\n"), MAY_FAULT);
    assert_int_equal(may("check=on\n", "check=off\nbug.9279=on\n"), MAY_FAULT);
    assert_int_equal(may("bug.24617=off\n", ""), 0);
    assert_int_equal(may("draft_sha=ab\n", "draft_sha=\n"), MAY_STEP);
    static const char ngram[] = "draft_sha=\ndraft_dir=ngram\n", none[] = "draft_sha=\n";
    assert_int_equal(may(ngram, none), MAY_STEP);
    assert_int_equal(may(none, ngram), MAY_STEP);
    assert_int_equal(may(ngram, ngram), 0);
    assert_int_equal(may("draft_sha=ab\ndraft_dir=x\n", ngram), MAY_STEP);
    FREED(conditions_free) struct conditions c = {0};
    FREED(buf_free) struct buf text = {0};
    conditions_add(&c, "draft_sha", "0123456789abcdef", "", MAY_STEP);
    conditions_add(&c, "capture", "2,4,5", "", MAY_STEP);
    conditions_add(&c, "device", "", "cuda", MAY_BUILD);
    conditions_text(&c, ~0u, &text);
    assert_string_equal(text.p, "draft 0123456789ab | none, capture 2,4,5 | none, device - | cuda");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_field_of_a_step_has_its_class),
        cmocka_unit_test(test_other_trees_are_compared_by_position),
        cmocka_unit_test(test_drafts_of_other_paths_are_compared_as_trees),
        cmocka_unit_test(test_a_turn_that_one_side_lacks_is_named),
        cmocka_unit_test(test_exactly_means_every_bit_of_every_turn),
        cmocka_unit_test(test_where_a_fault_may_stop_the_sides),
        cmocka_unit_test(test_where_reported_replies_differ),
        cmocka_unit_test(test_other_page_sizes_are_compared_by_what_the_tables_mean),
        cmocka_unit_test(test_margins_move_over_the_rival_of_the_base),
        cmocka_unit_test(test_a_change_may_change_what_its_nature_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
