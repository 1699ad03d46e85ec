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

/* ---- page lists ------------------------------------------------------------------------------ */

static kbuf host_alloc(struct kdev *d, size_t bytes, const char *what, struct err *e)
{
    (void)d, (void)what, (void)e;
    return (kbuf){memset(xmalloc(bytes), 0x5a, bytes), bytes};
}
static void host_release(struct kdev *d, kbuf b)
{
    (void)d;
    free(b.p);
}
static void host_put(struct kdev *d, kbuf dst, const void *src, size_t bytes)
{
    (void)d;
    memcpy(dst.p, src, bytes);
}
static const struct kernels host_memory = {.alloc = host_alloc, .release = host_release,
                                           .put = host_put};

static int32_t page_of(const struct kv *kv, const struct seq *s, enum pool_id p, int c)
{
    if (p == POOL_DRAFT)
        return c < s->n_dcol ? s->dcol[c].v : 0;
    if (c >= s->n_col || (p == POOL_SWA && !kv->has_swa))
        return 0;
    return p == POOL_FULL ? s->col[c].full.v : s->col[c].swa.v;
}

/* Two lists over all sequences, whichever comes: each holds, here and on the device, what its
 * sequence holds, and has the digest of a list that was written in one go. */
static void lists_follow(int P, int window, uint64_t seed, uint64_t *checked)
{
    struct world w;
    struct page_list list[3];
    struct err e = {0};
    w_open(&w, P, window, false, seed & 1, seed);
    for (int k = 0; k < 3; k++)
        w_must(list_open(&list[k], &host_memory, NULL, MAX_CELLS, &e), &e);
    for (int i = 0; i < 3000; i++) {
        struct page_list *l = &list[w_below(&w, 2)], *fresh = &list[2];
        struct seq *s = &w.seq[w_below(&w, 8) ? 0 : w_below(&w, N_SEQ)];
        w_op(&w);
        enum side side = w_below(&w, 2) ? SIDE_TARGET : SIDE_DRAFT;
        *checked += (uint64_t)list_checked(l, s, side);
        list_write(l, &w.kv, s, side);
        list_send(l, &host_memory, NULL);
        list_mark_unchecked(fresh);
        list_write(fresh, &w.kv, s, side);
        for (enum pool_id p = 0; p < N_POOLS; p++) {
            if (side_of(p) != side)
                continue;
            const int32_t *there = list_view(l, p, MAX_CELLS).p;
            assert_true(l->sum[p] == fresh->sum[p]);
            assert_int_equal(l->page[p][MAX_CELLS], RED_WORD);
            for (int c = 0; c < MAX_CELLS; c++) {
                assert_int_equal(l->page[p][c], page_of(&w.kv, s, p, c));
                assert_int_equal(there[c], l->page[p][c]);
            }
        }
        if (w_below(&w, 4))
            list_mark_checked(l, &w.kv, s, side);
    }
    for (int k = 0; k < 3; k++)
        list_close(&list[k], &host_memory, NULL);
    w_close(&w);
}

static void test_a_list_follows_its_sequence(void **state)
{
    uint64_t checked = 0;
    (void)state;
    for (int P = 1; P <= 16; P *= 4)
        for (int window = 0; window <= 20; window += 10)
            lists_follow(P, window, 90 + (uint64_t)(P + window), &checked);
    print_message("%llu columns skipped\n", (unsigned long long)checked);
    assert_true(checked > 10000);
}

/* What a list's owner does not write again is not checked again before a launch; check_list()
 * looks at it, and so does the plan's check once the list was forgotten, or when it is strict. */
static void test_a_clean_column_that_changed_is_found(void **state)
{
    (void)state;
    struct world w;
    struct page_list l;
    struct err e = {0};
    w_open(&w, 4, 9, false, false, 11);
    w_must(list_open(&l, &host_memory, NULL, MAX_CELLS, &e), &e);
    struct seq *s = &w.seq[0];
    int32_t tok[41] = {0};
    struct plan_req req = {.seq = s, .n = 40, .token = tok};
    w_must(kv_reserve(&w.kv, s, 40, &e), &e);
    plan_build(&w.plan, &w.kv, PLAN_EXTEND, &req, 1, &w.opts);
    plan_mark(&w.plan, &w.kv, &req);
    kv_commit(&w.kv, s, 40);
    kv_release_window(&w.kv, s);
    w_must(kv_reserve(&w.kv, s, 41, &e), &e);
    req.n = 1;
    w.opts.list = &l;
    plan_build(&w.plan, &w.kv, PLAN_DECODE, &req, 1, &w.opts);
    w_must(check_plan(&w.check, &w.plan, &w.kv, &req, &e), &e);
    w_must(check_list(&w.check, &w.plan, &w.kv, &req, &e), &e);
    list_mark_checked(&l, &w.kv, s, SIDE_TARGET);
    assert_int_equal(list_checked(&l, s, SIDE_TARGET), 10);
    int32_t other = s->col[3].full.v, *page = &s->col[1].full.v, mine = *page;
    for (int what = 0; what < 2; what++) {
        if (what == 1)
            page = &l.page[POOL_FULL][1];
        *page = other;
        w.check.level = CHECK_ON;
        w_must(check_plan(&w.check, &w.plan, &w.kv, &req, &e), &e);
        assert_false(check_list(&w.check, &w.plan, &w.kv, &req, &e));
        assert_true(!strncmp(e.msg, "I10 ", 4));
        w.check.level = CHECK_STRICT;
        assert_false(check_plan(&w.check, &w.plan, &w.kv, &req, &e));
        w.check.level = CHECK_ON;
        uint64_t stamp = l.stamp[SIDE_TARGET];
        list_mark_unchecked(&l);
        assert_false(check_plan(&w.check, &w.plan, &w.kv, &req, &e));
        l.stamp[SIDE_TARGET] = stamp;
        *page = mine;
    }
    w_must(check_list(&w.check, &w.plan, &w.kv, &req, &e), &e);
    w.opts.list = NULL;
    list_close(&l, &host_memory, NULL);
    w_close(&w);
}

/* Whether all that kv_reserve() would replace can be shared again: kv_undo() promises no more. */
static bool can_be_undone(const struct world *w, const struct seq *s, int upto)
{
    int P = w->kv.page_size;
    for (int c = s->committed / P; c < min_int(div_up(upto, P), s->n_col); c++)
        if (w->kv.pool[POOL_FULL].ref[s->col[c].full.v] > 1 && w->kv.has_swa &&
            w->kv.pool[POOL_SWA].ref[s->col[c].swa.v] == 1)
            return false;
    return true;
}

/* A fork shares the full page of a column whose swa page the other sequence, which went on, has
 * released. The fork's copy of this column stays: its swa page is free once it is replaced. */
static void test_a_column_whose_swa_page_is_its_own_stays_replaced(void **state)
{
    (void)state;
    struct world w;
    struct err e = {0};
    w_open(&w, 4, 9, false, false, 12);
    struct seq *on = &w.seq[0], *fork = &w.seq[1];
    const struct seq *const both[2] = {on, fork};
    w_must(kv_reserve(&w.kv, on, 6, &e), &e);
    kv_commit(&w.kv, on, 6);
    kv_fork(&w.kv, on, fork);
    w_must(kv_reserve(&w.kv, fork, 7, &e), &e);
    assert_int_equal(fork->n_replaced, 1); /* both pages were shared */
    kv_undo(&w.kv, fork);
    kv_drop(&w.kv, fork);
    w_must(kv_reserve(&w.kv, on, 8, &e), &e);
    kv_commit(&w.kv, on, 8);
    kv_fork_at(&w.kv, on, 6, 0, fork);
    w_must(kv_reserve(&w.kv, on, 40, &e), &e);
    kv_commit(&w.kv, on, 40);
    kv_release_window(&w.kv, on);
    int32_t was = fork->col[1].full.v;
    assert_int_equal(w.kv.pool[POOL_FULL].ref[was], 2);
    assert_int_equal(w.kv.pool[POOL_SWA].ref[fork->col[1].swa.v], 1);
    w_must(kv_reserve(&w.kv, fork, 7, &e), &e);
    assert_int_equal(fork->n_replaced, 0);
    kv_undo(&w.kv, fork);
    assert_int_not_equal(fork->col[1].full.v, was);
    w_must(kv_check(&w.kv, both, 2, &e), &e);
    w_close(&w);
}

/* What the allocator and a sequence's page table are: to be compared as bytes. */
static void bytes_of(const struct world *w, const struct seq *s, struct buf *out)
{
    out->n = 0;
    for (int p = 0; p < N_POOLS; p++) {
        const struct pool *pool = &w->kv.pool[p];
        buf_add(out, pool->free, (size_t)pool->n_free * sizeof *pool->free);
        buf_add(out, pool->ref, (size_t)pool->total * sizeof *pool->ref);
        buf_printf(out, "%d %d %d,", pool->n_free, pool->n_owned, w->kv.held[p]);
    }
    buf_add(out, w->kv.swa_of, (size_t)w->kv.pool[POOL_FULL].total * sizeof *w->kv.swa_of);
    if (w->kv.has_swa)
        buf_add(out, w->kv.full_of, (size_t)w->kv.pool[POOL_SWA].total * sizeof *w->kv.full_of);
    buf_add(out, s->col, (size_t)s->n_col * sizeof *s->col);
    buf_add(out, s->dcol, (size_t)s->n_dcol * sizeof *s->dcol);
    buf_printf(out, "%d %d %d %d %llu", s->committed, s->drafted, s->swa_lo, s->draft_lo,
               (unsigned long long)s->tail);
}

/* A pass of the target and one of the draft, whose cells nobody commits, of a random sequence. Then
 * it is undone; else its pages stay replaced, by copies. Returns the columns that it replaced. */
static int abandoned_pass(struct world *w, int i, bool undo)
{
    struct seq *s = &w->seq[i];
    int32_t tok[TREE_MAX];
    int rows = 1 + w_below(w, TREE_MAX), drafted = s->drafted,
        from = max_int(0, drafted - w_below(w, 2));
    struct plan_req req = {.seq = s, .n = rows, .token = tok};
    for (int k = 0; k < rows; k++)
        tok[k] = 1 + w_below(w, 1000);
    s->n_replaced = 0;
    if (w_reserve(w, i, s->committed + rows) && w_below(w, 4))
        w_pass(w, PLAN_EXTEND, &req, 1);
    if (w_can_draft(w, i) && s->committed > from && w_below(w, 2)) {
        req = (struct plan_req){.seq = s, .n = min_int(rows, s->committed - from), .token = tok,
                                .draft_from = from};
        /* the engine writes final cells of the draft only after the commit */
        if (w_reserve_draft(w, i, from, from + req.n) && from == drafted)
            w_pass(w, PLAN_DRAFT_EXTEND, &req, 1);
    }
    int n = s->n_replaced;
    s->drafted = drafted; /* as follow_abandon() */
    if (undo) {
        kv_undo(&w->kv, s);
    } else {
        kv_rollback(&w->kv, s);
        s->n_replaced = 0;
    }
    return n;
}

/* A stopped step leaves the pages, their order and all cells as they were: a replay does not repeat
 * it. */
static void test_what_is_undone_leaves_no_trace(void **state)
{
    (void)state;
    int replaced = 0, undone = 0, partly = 0, stayed = 0;
    for (int P = 1; P <= 16; P *= 4)
        for (int window = 0; window <= 20; window += 10) {
            struct world w;
            struct buf before = {0}, after = {0};
            w_open(&w, P, window, false, P == 4, 700 + (uint64_t)(P + window));
            for (int k = 0; k < 1800; k++) {
                int i = w_below(&w, N_SEQ);
                w_op(&w);
                if (!w_room(&w, i))
                    continue;
                bool whole = can_be_undone(&w, &w.seq[i], w.seq[i].committed + TREE_MAX);
                bool undo = w_below(&w, 8) > 0;
                w_copies(&w);
                kv_rollback(&w.kv, &w.seq[i]);
                bytes_of(&w, &w.seq[i], &before);
                replaced += abandoned_pass(&w, i, undo);
                if (!whole || !undo) {
                    *(undo ? &partly : &stayed) += 1;
                    w_copies(&w);
                    w_check_all(&w);
                    continue;
                }
                undone++;
                bytes_of(&w, &w.seq[i], &after);
                assert_int_equal(before.n, after.n);
                assert_memory_equal(before.p, after.p, before.n);
                assert_int_equal(w.seq[i].n_replaced, 0);
                if (k % 16 == 0)
                    w_check_all(&w);
            }
            w_check_all(&w);
            buf_free(&before);
            buf_free(&after);
            w_close(&w);
        }
    print_message("%d undone, %d in part, %d not, %d columns replaced\n", undone, partly, stayed,
                  replaced);
    assert_true(undone > 5000 && stayed > 500 && replaced > 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_million_operations_keep_every_cell),
        cmocka_unit_test(test_strict_checking_objects_to_nothing_either),
        cmocka_unit_test(test_the_empty_batch_is_a_plan_in_every_mode),
        cmocka_unit_test(test_the_same_operations_give_the_same_pages),
        cmocka_unit_test(test_a_list_follows_its_sequence),
        cmocka_unit_test(test_a_clean_column_that_changed_is_found),
        cmocka_unit_test(test_a_column_whose_swa_page_is_its_own_stays_replaced),
        cmocka_unit_test(test_what_is_undone_leaves_no_trace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
