/* test_vectors.c - small published examples of another engine's memory and speculation, worked out
 * by aerie's structures. Where aerie differs by design, the test says how.
 *
 * Left out, because aerie has no such thing: radix-tree matching and its bigram keys (prefixes are
 * reused by sharing a lane's pages), duplicated partial pages of draft branches (nodes are read
 * slot by slot), chunked local attention, acceptance thresholds below 1. */
#include "tests/kv_kit.h"

#include "engine/bugs.h"
#include "engine/plan/plan.h"

static struct kv kv;
static struct plan p;
static struct checker on = {.level = CHECK_STRICT};

static void open_kv(int P, int window, int full, int swa, int draft)
{
    kv_init(&kv, &(struct kv_shape){.page_size = P, .window = window, .full_pages = full,
                                    .swa_pages = swa, .draft_pages = draft});
}

static void run(enum plan_mode mode, struct plan_req *req, int n, const struct plan_opts *o)
{
    struct err e = {0};
    plan_build(&p, &kv, mode, req, n, o);
    w_must(check_plan(&on, &p, &kv, req, &e), &e);
    plan_mark(&p, &kv, req);
}

static void extend(struct seq *s, int n, const struct plan_opts *o)
{
    int32_t tok[64] = {0};
    struct err e = {0};
    w_must(kv_reserve(&kv, s, s->committed + n, &e), &e);
    run(PLAN_EXTEND, &(struct plan_req){.seq = s, .n = n, .token = tok}, 1, o);
    kv_commit(&kv, s, s->committed + n);
}

static void close_kv(struct seq *s)
{
    kv_drop(&kv, s);
    kv_free(&kv);
    plan_free(&p);
}

/* ---- the two pools --------------------------------------------------------------------------- */

/* N_full = 8, N_swa = 4, page size 1. Three cells: full 1 2 3 on swa 1 2 3. The first swa cell is
 * released; two more cells: full 4 5 on swa 4 and 1. aerie's free lists are stacks, so the freed
 * cell comes back first: 4 on 1, 5 on 4. Either way full 5 is no index of a pool of 4. */
static void test_the_allocator_example(void **state)
{
    (void)state;
    struct seq s = {0};
    const struct plan_opts o = {0};
    open_kv(1, 3, 9, 5, 0);
    extend(&s, 3, &o);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(s.col[i].full.v, i + 1);
        assert_int_equal(kv_swa_slot(&kv, (full_slot){i + 1}).v, i + 1);
    }
    kv_release_window(&kv, &s); /* the next query sees cells 1, 2 and itself */
    assert_int_equal(kv_swa_slot(&kv, (full_slot){1}).v, 0);
    assert_int_equal(kv.pool[POOL_SWA].n_free, 2);
    extend(&s, 2, &o);
    assert_int_equal(kv_swa_slot(&kv, (full_slot){4}).v, 1);
    assert_int_equal(kv_swa_slot(&kv, (full_slot){5}).v, 4);
    assert_true(s.col[4].full.v >= kv.pool[POOL_SWA].total); /* what 24617 would index with */
    close_kv(&s);
}

/* seq 5, page size 4, five nodes in a chain, two kept: positions 8 and 9 are given back, no
 * more. */
static void test_rejected_cells_free_whole_pages_only(void **state)
{
    (void)state;
    struct seq s = {0};
    struct err e = {0};
    struct tree t;
    const struct plan_opts o = {0};
    open_kv(4, 0, 9, 0, 0);
    extend(&s, 5, &o);
    tree_init(&t, 1);
    for (int i = 0; i < 4; i++)
        tree_add(&t, i, 2 + i, 0.5f, -1);
    w_must(kv_reserve(&kv, &s, 10, &e), &e);
    run(PLAN_VERIFY, &(struct plan_req){.seq = &s, .n = 5, .token = t.token, .tree = &t}, 1, &o);
    assert_int_equal(s.n_col, 3);
    kv_commit(&kv, &s, 7);
    kv_rollback(&kv, &s);
    assert_int_equal(s.n_col, 2); /* cells 0 .. 7 stay */
    close_kv(&s);
}

/* ---- windows and extents --------------------------------------------------------------------- */

/* Decoding at lengths around W: W keys, the query's own among them; backends of the other engine
 * disagree here by one. */
static void test_a_window_holds_w_keys(void **state)
{
    (void)state;
    const struct plan_opts o = {0};
    for (int before = 3; before <= 6; before++) {
        struct seq s = {0};
        struct err e = {0};
        open_kv(1, 4, 17, 17, 0);
        extend(&s, before, &o);
        w_must(kv_reserve(&kv, &s, before + 1, &e), &e);
        run(PLAN_DECODE, &(struct plan_req){.seq = &s, .n = 1, .token = (int32_t[]){1}}, 1, &o);
        assert_int_equal(p.table[TABLE_SWA].hi[0] - p.table[TABLE_SWA].lo[0],
                         min_int(before + 1, 4));
        assert_int_equal(p.table[TABLE_FULL].hi[0] - p.table[TABLE_FULL].lo[0], before + 1);
        close_kv(&s);
    }
}

/* window_left 4 (five keys), prefix 6, three new tokens: the prefix part starts at 2 and its rows
 * are 1111, 0111, 0011; the new tokens' part is a triangle. */
static void test_the_two_part_mask_example(void **state)
{
    (void)state;
    struct seq s = {0};
    struct err e = {0};
    const struct plan_opts one = {.parts = 1}, two = {.parts = 2};
    int32_t tok[3] = {1, 2, 3};
    open_kv(1, 5, 17, 17, 0);
    extend(&s, 6, &one);
    w_must(kv_reserve(&kv, &s, 9, &e), &e);
    struct plan_req req = {.seq = &s, .n = 3, .token = tok};
    run(PLAN_EXTEND, &req, 1, &two);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(p.prefix[TABLE_SWA].lo[i], 2 + i);
        assert_int_equal(p.prefix[TABLE_SWA].hi[i], 6);
        assert_int_equal(p.table[TABLE_SWA].lo[i], 6);
        assert_int_equal(p.table[TABLE_SWA].hi[i], 7 + i);
        assert_int_equal(p.prefix[TABLE_FULL].lo[i], 0);
        assert_int_equal(p.table[TABLE_FULL].lo[i], 6);
    }
    struct buf text = {0}; /* and people see both parts */
    plan_print(&p, false, &text);
    assert_non_null(strstr(text.p, "swa prefix table: swa slots"));
    assert_non_null(strstr(text.p, "row 1   keys [3, 6)\n"));
    buf_clear(&text);
    plan_print(&p, true, &text);
    assert_non_null(strstr(text.p, "{\"table\":\"swa prefix\",\"space\":\"swa\""));
    buf_free(&text);
    /* before the repair: keys 2 .. 8, unmasked, three of them not yet written there */
    struct bugs bugs = {0};
    struct plan_opts faulty = two;
    bug_switch(&bugs, BUG_SWA_EXTEND_WINDOW, 1);
    faulty.hook = plan_faults(&bugs);
    plan_build(&p, &kv, PLAN_EXTEND, &req, 1, &faulty);
    assert_int_equal(p.prefix[TABLE_SWA].lo[2], 2);
    assert_int_equal(p.prefix[TABLE_SWA].hi[0], 9);
    assert_false(check_plan(&on, &p, &kv, &req, &e));
    close_kv(&s);
}

/* The draft's extend, prefix 4, two new: {0..4}, {0..5}. With the prefix's extent alone {0..2},
 * {0..3}; counted twice {0..6}, {0..7}. */
static void test_the_draft_extend_example(void **state)
{
    (void)state;
    static const int hi[3][2] = {{5, 6}, {3, 4}, {7, 8}};
    struct seq s = {0};
    struct err e = {0};
    const struct plan_opts o = {.draft_full = true};
    int32_t tok[8] = {0};
    open_kv(4, 0, 17, 0, 17);
    extend(&s, 8, &o);
    w_must(kv_reserve_draft(&kv, &s, 0, 4, &e), &e);
    kv_commit_draft(&kv, &s, 4);
    w_must(kv_reserve_draft(&kv, &s, 4, 6, &e), &e);
    struct plan_req req = {.seq = &s, .n = 2, .token = tok, .draft_from = 4};
    for (int fault = 0; fault < 3; fault++) {
        struct bugs bugs = {0};
        struct plan_opts with = o;
        bug_switch(&bugs, BUG_DRAFT_EXTEND_EXTENT, fault);
        with.hook = plan_faults(&bugs);
        plan_build(&p, &kv, PLAN_DRAFT_EXTEND, &req, 1, &with);
        for (int i = 0; i < 2; i++)
            assert_int_equal(p.table[TABLE_DRAFT].hi[i], hi[fault][i]);
        assert_int_equal(check_plan(&on, &p, &kv, &req, &e), fault == 0);
    }
    close_kv(&s);
}

/* The extent of a batch is the largest sum of a request, not the sum of the largest parts: prefixes
 * 9 and 2 with 1 and 6 new tokens need 10 columns, not 15. */
static void test_the_widest_request_sets_the_columns(void **state)
{
    (void)state;
    struct seq a = {0}, b = {0};
    struct err e = {0};
    const struct plan_opts o = {0};
    int32_t tok[8] = {0};
    open_kv(1, 0, 40, 0, 0);
    extend(&a, 9, &o);
    extend(&b, 2, &o);
    w_must(kv_reserve(&kv, &a, 10, &e) && kv_reserve(&kv, &b, 8, &e), &e);
    struct plan_req req[2] = {{.seq = &a, .n = 1, .token = tok}, {.seq = &b, .n = 6, .token = tok}};
    run(PLAN_EXTEND, req, 2, &o);
    assert_int_equal(p.table[TABLE_FULL].n_cols, 10);
    kv_drop(&kv, &a);
    close_kv(&b);
}

/* A frozen drafter stands at the last committed position, whatever the depth, and writes
 * nothing. */
static void test_frozen_geometry(void **state)
{
    (void)state;
    struct seq s = {0};
    const struct plan_opts o = {.draft_window = 4};
    int32_t tok[4] = {0};
    open_kv(1, 3, 17, 17, 0);
    kv.reach = 4;
    extend(&s, 7, &(struct plan_opts){0});
    run(PLAN_FROZEN, &(struct plan_req){.seq = &s, .n = 4, .token = tok}, 1, &o);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(p.pos[i], 6);
        assert_int_equal(p.table[TABLE_FULL].hi[i], 7);
        assert_int_equal(p.table[TABLE_SWA].lo[i], 3);
    }
    assert_int_equal(p.kv_len[0], 7);
    assert_null(p.table[TABLE_FULL].write);
    assert_null(p.table[TABLE_SWA].write);
    close_kv(&s);
}

/* ---- drafting -------------------------------------------------------------------------------- */

/* seq 9, page size 4, 5 steps, topk 2. The other engine copies the partial page once a branch and
 * takes 15 new columns; aerie reads nodes slot by slot: four levels of two cells, nothing copied.
 * At level i a row of the table is i wide, and no wider (27360). */
static void test_draft_levels_are_as_wide_as_their_depth(void **state)
{
    (void)state;
    enum { K = 2, LEVELS = 4 };
    struct seq s = {0};
    struct err e = {0};
    const struct plan_opts o = {.draft_full = true};
    struct draft_row row[K];
    int32_t tok[16] = {0};
    open_kv(4, 0, 17, 0, 17);
    extend(&s, 9, &o);
    w_must(kv_reserve_draft(&kv, &s, 0, 9, &e), &e);
    kv_commit_draft(&kv, &s, 9);
    w_must(kv_reserve_draft(&kv, &s, 9, 9 + LEVELS * K, &e), &e);
    assert_int_equal(s.n_dcol, div_up(9 + LEVELS * K, 4));
    assert_int_equal(kv.n_copy, 0);
    memset(row, 0, sizeof row);
    for (int level = 0; level < LEVELS; level++) {
        for (int k = 0; k < K; k++) {
            row[k].depth = level + 1;
            row[k].up = -1;
            row[k].cell = 9 + level * K + k;
            row[k].seen[row[k].n_seen++] = row[k].cell;
        }
        run(PLAN_DRAFT, &(struct plan_req){.seq = &s, .n = K, .token = tok, .draft = row,
                                           .levels = LEVELS, .topk = K}, 1, &o);
        assert_int_equal(p.table[TABLE_DRAFT].expand_w, level + 1);
        for (int k = 0; k < K; k++) {
            assert_int_equal(p.table[TABLE_DRAFT].n_expand[k], level + 1);
            assert_int_equal(p.pos[k], 9 + level);
            assert_int_equal(p.table[TABLE_DRAFT].hi[k], 9);
        }
    }
    close_kv(&s);
}

/* Plans a verify of the tree behind seq tokens and compares positions; returns nothing else. */
static void positions(const struct tree *t, int seq, const int *want)
{
    struct seq s = {0};
    struct err e = {0};
    const struct plan_opts o = {0};
    open_kv(1, 0, 64, 0, 0);
    extend(&s, seq, &o);
    w_must(kv_reserve(&kv, &s, seq + t->n, &e), &e);
    run(PLAN_VERIFY, &(struct plan_req){.seq = &s, .n = t->n, .token = t->token, .tree = t}, 1, &o);
    for (int i = 0; i < t->n; i++)
        assert_int_equal(p.pos[i], want[i]);
    close_kv(&s);
}

static void tree_of(struct tree *t, int n, const int *parent, int first_token)
{
    tree_init(t, first_token);
    for (int i = 1; i < n; i++)
        assert_int_equal(tree_add(t, parent[i], first_token + i, 0.5f, -1), i);
}

static const struct tree_ends all = {.max_nodes = TREE_MAX};

/* K = 2, S = 2, D = 4, seq = 7: a .6 and b .3; from a: c .42, d .12; from b: e .27, f .01. Kept: a,
 * b, c. Mask rows 1000 1100 1010 1101. The target says b, then e: two tokens. */
static void test_the_tiny_tree(void **state)
{
    (void)state;
    static const int parent[] = {-1, 0, 0, 1}, pos[] = {7, 8, 8, 9};
    static const uint64_t mask[] = {1, 3, 5, 11};
    struct tree t;
    int path[TREE_MAX], held;
    tree_of(&t, 4, parent, 100); /* a = 101, b = 102, c = 103; e = 200 was not kept */
    for (int i = 0; i < 4; i++)
        assert_true(t.anc[i] == mask[i]);
    positions(&t, 7, pos);
    const int32_t choice[] = {102, 0, 200, 0};
    assert_int_equal(tree_accept(&t, choice, &all, path, &held), 2);
    assert_int_equal(path[1], 2);
    assert_int_equal(choice[path[1]], 200); /* the bonus */
}

/* K = 4, depth 4, D = 8, lengths 5 and 10. */
static void test_the_published_tree_build(void **state)
{
    (void)state;
    static const int parent[2][8] = {{-1, 0, 0, 1, 2, 3, 4, 5}, {-1, 0, 1, 1, 1, 1, 3, 6}};
    static const int pos[2][8] = {{5, 6, 6, 7, 7, 8, 8, 9}, {10, 11, 12, 12, 12, 12, 13, 14}};
    static const int next[2][8] = {{1, 3, 4, 5, 6, 7, -1, -1}, {1, 2, -1, 6, -1, -1, 7, -1}};
    static const int sibling[2][8] = {{-1, 2, -1, -1, -1, -1, -1, -1},
                                      {-1, -1, 3, 4, 5, -1, -1, -1}};
    for (int b = 0; b < 2; b++) {
        struct tree t;
        tree_of(&t, 8, parent[b], 1);
        positions(&t, b ? 10 : 5, pos[b]);
        for (int i = 0; i < 8; i++) { /* first children and next siblings, from the parents */
            int child = -1, beside = -1;
            for (int j = 7; j > 0; j--) {
                if (t.parent[j] == i)
                    child = j;
                if (j > i && i > 0 && t.parent[j] == t.parent[i])
                    beside = j;
            }
            assert_int_equal(child, next[b][i]);
            assert_int_equal(beside, sibling[b][i]);
        }
    }
}

/* Candidates 0..5 and 7..12; the target says 3, 4, 5 and 11, 12, else 18: accepted 0 3 4 5 and, in
 * flat numbers, 6 10 11. aerie lists siblings in the order they were made, so 1 comes before 4. */
static void test_the_published_greedy_verify(void **state)
{
    (void)state;
    static const int parent[2][6] = {{-1, 0, 1, 0, 3, 4}, {-1, 0, 1, 2, 0, 4}};
    static const int32_t choice[2][6] = {{3, 18, 18, 4, 5, 18}, {11, 18, 18, 18, 12, 18}};
    static const int want[2][4] = {{0, 3, 4, 5}, {0, 4, 5, -1}}, count[] = {3, 2};
    for (int b = 0; b < 2; b++) {
        struct tree t;
        int path[TREE_MAX], held;
        tree_of(&t, 6, parent[b], b ? 7 : 0);
        int n = tree_accept(&t, choice[b], &all, path, &held);
        assert_int_equal(n - 1, count[b]);
        for (int i = 0; i < n; i++)
            assert_int_equal(path[i], want[b][i]);
        assert_int_equal(choice[b][path[n - 1]], 18);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_allocator_example),
        cmocka_unit_test(test_rejected_cells_free_whole_pages_only),
        cmocka_unit_test(test_a_window_holds_w_keys),
        cmocka_unit_test(test_the_two_part_mask_example),
        cmocka_unit_test(test_the_draft_extend_example),
        cmocka_unit_test(test_the_widest_request_sets_the_columns),
        cmocka_unit_test(test_frozen_geometry),
        cmocka_unit_test(test_draft_levels_are_as_wide_as_their_depth),
        cmocka_unit_test(test_the_tiny_tree),
        cmocka_unit_test(test_the_published_tree_build),
        cmocka_unit_test(test_the_published_greedy_verify),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
