/* Page tables of the past: applying the page events yields the live state after every step,
 * whatever happened between the steps, and a seek to any earlier step yields the state at that
 * step. */
#include "tests/chance.h"
#include "tests/serve_kit.h"

#include "engine/past/page_history.h"

/* ---- the packed form ------------------------------------------------------------------------- */

enum { MOST = 300 };

static int random_events(struct page_event *ev)
{
    int n = 0, most = below(MOST);
    while (n < most) {
        struct page_event one = {(uint8_t)below(N_POOLS), (uint8_t)below(LAST_PAGE_OP + 1),
                                 (uint8_t)below(LAST_PAGE_HOLDER + 1), below(1000), below(500) - 1,
                                 below(3)};
        int d = 1 - below(3), run = 1 + below(20);
        for (int k = 0; k < run && n < most; k++) {
            ev[n++] = one;
            one.page = max_int(0, one.page + d);
            one.column = one.column < 0 ? -1 : max_int(-1, one.column + d);
            if (below(8) == 0)
                ev[n - 1].pool = (uint8_t)below(N_POOLS);
        }
    }
    return n;
}

/* The events of a pool about one page, in their order. */
static int of_page(const struct page_event *ev, int n, int pool, int page, struct page_event *out)
{
    int k = 0;
    for (int i = 0; i < n; i++)
        if (ev[i].pool == pool && ev[i].page == page)
            out[k++] = ev[i];
    return k;
}

static void same_events(const struct page_event *a, int n, const struct page_event *b, int m)
{
    static struct page_event x[MOST], y[MOST];
    assert_int_equal(n, m);
    for (int at = 0; at < n; at++) {
        int k = of_page(a, n, a[at].pool, a[at].page, x);
        assert_int_equal(k, of_page(b, m, a[at].pool, a[at].page, y));
        for (int i = 0; i < k; i++)
            assert_true(x[i].op == y[i].op && x[i].holder == y[i].holder &&
                        x[i].page == y[i].page && x[i].column == y[i].column &&
                        x[i].refs == y[i].refs);
    }
}

static void test_packed_events_come_back(void **state)
{
    (void)state;
    struct err e;
    for (int round = 0; round < 400; round++) {
        struct page_event ev[MOST], *got;
        struct context_lengths l = {below(1 << 20), below(99), -below(2), below(7)}, back;
        struct buf b = {0};
        int n = random_events(ev), m;
        page_pack(&l, ev, n, &b);
        must(page_unpack(b.p, b.n, &back, &got, &m, &e), &e);
        same_events(ev, n, got, m);
        assert_memory_equal(&l, &back, sizeof l);
        assert_true(b.n <= (size_t)(PAGE_PACK_HEAD + PAGE_PACK_RUN * n));
        free(got);
        /* damaged: refused, or read as other events, never a crash */
        for (int k = 0; k < 20; k++) {
            struct page_history h = {0};
            b.p[below((int)b.n)] ^= (char)(1 << below(8));
            if (page_unpack(b.p, b.n - (size_t)below(2), &back, &got, &m, &e))
                free(got);
            page_history_apply(&h, b.p, b.n, &e);
            page_history_free(&h);
        }
        buf_free(&b);
    }
}

static void test_a_thousand_neighbours_are_one_run(void **state)
{
    (void)state;
    static struct page_event ev[2000];
    struct buf b = {0};
    for (int i = 0; i < 1000; i++) { /* as kv_fork() interleaves them */
        ev[2 * i] = (struct page_event){POOL_FULL, PAGE_SHARE, HOLDER_POINT, 1 + i, i, 2};
        ev[2 * i + 1] = (struct page_event){POOL_SWA, PAGE_SHARE, HOLDER_POINT, 1 + i, i, 2};
    }
    page_pack(&(struct context_lengths){0}, ev, 2000, &b);
    assert_int_equal(b.n, PAGE_PACK_HEAD + 2 * PAGE_PACK_RUN);
    buf_free(&b);
}

/* Two conversations have taken their pages in turn: what a checkpoint of one shares are few
 * runs. */
static void test_pages_taken_in_turn_are_few_runs(void **state)
{
    (void)state;
    static struct page_event ev[1000], *got;
    struct context_lengths l;
    struct buf b = {0};
    struct err e;
    int n;
    for (int i = 0; i < 1000; i++) {
        int column = 999 - i;
        ev[i] = (struct page_event){POOL_FULL, PAGE_DROP, HOLDER_POINT,
                                    column % 2 ? 2 + column : 2002 + column, column, 2};
    }
    page_pack(&(struct context_lengths){0}, ev, 1000, &b);
    assert_true(b.n <= PAGE_PACK_HEAD + 2 * PAGE_PACK_RUN);
    must(page_unpack(b.p, b.n, &l, &got, &n, &e), &e);
    assert_int_equal(n, 1000);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(got[i].page, (got[i].column % 2 ? 2 : 2002) + got[i].column);
    free(got);
    buf_free(&b);
}

/* ---- pools alone: any holder does anything between two steps --------------------------------- */

enum { N_SEQ = 6, CELLS = 200 };

struct pools {
    struct kv kv;
    struct seq seq[N_SEQ];
};

static void pools_open(struct pools *w, int page_size, int window, bool draft)
{
    int pages = N_SEQ * (CELLS / page_size + 2) + 1;
    struct kv_shape s = {.page_size = page_size, .window = window, .full_pages = pages,
                         .swa_pages = window ? pages : 0, .draft_pages = draft ? pages : 0};
    *w = (struct pools){0};
    kv_init(&w->kv, &s);
    w->kv.log.keep = true;
    for (int i = 0; i < N_SEQ; i++)
        w->seq[i].holder = i == 0 ? HOLDER_SESSION : i < 3 ? HOLDER_IDLE : HOLDER_POINT;
}

static const struct seq *const *all_seqs(struct pools *w)
{
    static const struct seq *all[N_SEQ];
    for (int i = 0; i < N_SEQ; i++)
        all[i] = &w->seq[i];
    return all;
}

static void random_change(struct pools *w)
{
    struct err e;
    int i = below(N_SEQ), j = below(N_SEQ);
    struct seq *s = &w->seq[i];
    int upto = min_int(CELLS, s->committed + 1 + below(40));
    switch (below(7)) {
    case 0: case 1:
        must(kv_reserve(&w->kv, s, upto, &e), &e);
        kv_commit(&w->kv, s, s->committed + below(upto - s->committed + 1));
        break;
    case 2:
        if (!w->kv.has_draft)
            break;
        upto = min_int(CELLS, s->drafted + 1 + below(40));
        must(kv_reserve_draft(&w->kv, s, s->drafted - min_int(s->drafted, below(2)), upto, &e), &e);
        kv_commit_draft(&w->kv, s, upto);
        break;
    case 3: kv_rollback(&w->kv, s); break;
    case 4: kv_release_window(&w->kv, s); break;
    case 5:
        if (i != j) {
            kv_drop(&w->kv, s);
            kv_fork(&w->kv, &w->seq[j], s);
        }
        break;
    default:
        if (below(3) == 0)
            kv_drop(&w->kv, s);
    }
    w->kv.n_copy = 0;
}

static void same_as_live(const struct pools *w, const struct page_history *h)
{
    const struct seq *s = &w->seq[0];
    struct page_table t;
    page_history_table(h, &t);
    assert_int_equal(t.n_page, max_int(s->n_col, s->n_dcol));
    for (int c = 0; c < t.n_page; c++) {
        assert_int_equal(t.page[c].full, c < s->n_col ? s->col[c].full.v : 0);
        assert_int_equal(t.page[c].swa, c < s->n_col ? s->col[c].swa.v : 0);
        assert_int_equal(t.page[c].draft, c < s->n_dcol ? s->dcol[c].v : 0);
    }
    for (int p = 0; p < N_POOLS; p++) {
        const struct pool *pool = &w->kv.pool[p];
        assert_int_equal(t.pool[p].exists, pool->total > 0);
        if (pool->total == 0)
            continue;
        assert_int_equal(t.pool[p].total, pool->total);
        assert_int_equal(t.pool[p].free, pool->n_free);
        assert_memory_equal(t.refs[p], pool->ref, (size_t)pool->total * sizeof *pool->ref);
    }
    page_table_free(&t);
}

/* What a step left: to be compared with what a seek finds. */
struct seen {
    int turn, step;
    struct buf whole;
};

static void seek(const struct page_tape *tape, const struct seen *s, bool *held)
{
    struct page_history h = {0};
    struct buf b = {0}, whole = {0};
    struct err e;
    *held = tape_copy(tape, s->turn, s->step, &b);
    if (*held) {
        must(page_history_apply(&h, b.p, b.n, &e), &e);
        page_history_pack(&h, &whole);
        assert_int_equal(whole.n, s->whole.n);
        assert_memory_equal(whole.p, s->whole.p, whole.n);
    }
    page_history_free(&h);
    buf_free(&b);
    buf_free(&whole);
}

/* The tape is an unbroken run of steps that ends with the newest; a step that is not there is not
 * found. */
static void seek_all(const struct page_tape *tape, const struct seen *seen, int n)
{
    bool before = false, held = false;
    for (int i = 0; i < n; i++, before = held) {
        seek(tape, &seen[i], &held);
        assert_true(held || !before);
    }
    assert_true(held);
    struct buf none = {0};
    assert_false(tape_copy(tape, seen[n - 1].turn, seen[n - 1].step + 1, &none));
    assert_false(tape_copy(tape, 0, 1, &none));
    buf_free(&none);
}

/* All changes of all pages, as struct page_change, and the changes of one page up to one of them,
 * newest
 * first: back to where the pool was emptied without this page. */
static int changes_of(const struct buf *all, int upto, enum pool_id pool, int page,
                      struct page_change *out, int max)
{
    const struct page_change *c = (const void *)all->p;
    int n = 0;
    bool held = false;
    for (int i = upto - 1; i >= 0 && n < max; i--) {
        const struct page_event *ev = &c[i].event;
        if (i + 1 < upto && (c[i].turn != c[i + 1].turn || c[i].step != c[i + 1].step))
            held = false;
        if (ev->pool == pool && ev->op == PAGE_RESET && !held)
            break;
        if (ev->pool == pool && ev->op != PAGE_RESET && ev->page == page) {
            held |= ev->op == PAGE_HOLD;
            out[n++] = c[i];
        }
    }
    return n;
}

/* The changes of a page at any step are those that were packed, as far back as the tape goes. */
static void walk_some(const struct page_tape *tape, const struct buf *all, const int *upto,
                      const struct seen *seen, int n_seen, bool complete)
{
    enum { LISTED = 40 };
    for (int i = 0; i < 400; i++) {
        struct page_change want[LISTED], got[LISTED];
        int k = below(n_seen), max = 1 + below(LISTED), turn = seen[k].turn, step = seen[k].step;
        enum pool_id pool = (enum pool_id)below(2);
        struct page_walk w = {.pool = pool, .page = 1 + below(12), .out = got, .max = max};
        int n = changes_of(all, upto[k], pool, w.page, want, max);
        while (!w.over && tape_walk(tape, &turn, &step, &w))
            ;
        assert_true(complete ? w.n == n : w.n <= n);
        for (int j = 0; j < w.n; j++)
            assert_true(got[j].turn == want[j].turn && got[j].step == want[j].step &&
                        got[j].event.op == want[j].event.op &&
                        got[j].event.refs == want[j].event.refs &&
                        got[j].event.column == want[j].event.column && got[j].event.page == w.page);
        page_walk_end(&w);
        assert_true(w.n == 0 || got[w.n - 1].turn == want[0].turn);
    }
}

enum { STEPS = 700 };

/* True: the oldest steps have left the tape. */
static bool fold_steps(int page_size, int window, bool draft, size_t budget)
{
    static struct seen seen[STEPS];
    static int upto[STEPS];
    struct buf all = {0};
    struct pools w;
    struct page_history h = {0};
    struct page_tape tape = {0};
    struct err e;
    int turn = 1, step = 0;
    tape_budget(&tape, budget);
    pools_open(&w, page_size, window, draft);
    kv_log_state(&w.kv, all_seqs(&w), N_SEQ, CELLS);
    for (int i = 0; i < STEPS; i++) {
        struct buf change = {0}, whole = {0};
        struct context_lengths l = {below(99), w.seq[0].committed, w.seq[0].drafted,
                                    w.seq[0].swa_lo};
        for (int k = below(6); k > 0; k--)
            random_change(&w);
        if (below(60) == 0) /* a fork or a batch: the state begins anew */
            kv_log_state(&w.kv, all_seqs(&w), N_SEQ, CELLS);
        page_pack(&l, w.kv.log.since, w.kv.log.n_since, &change);
        step = below(30) ? step + 1 : (turn += 1 + below(3), 1);
        for (int k = 0; k < w.kv.log.n_since; k++)
            buf_add(&all, &(struct page_change){turn, step, w.kv.log.since[k]},
                    sizeof(struct page_change));
        upto[i] = (int)(all.n / sizeof(struct page_change));
        w.kv.log.n_since = 0;
        must(page_history_apply(&h, change.p, change.n, &e), &e);
        same_as_live(&w, &h);
        assert_memory_equal(&h.lengths, &l, sizeof l);
        seen[i] = (struct seen){.turn = turn, .step = step};
        page_history_pack(&h, &seen[i].whole);
        bool wants = tape_wants_whole(&tape);
        if (wants)
            page_history_pack(&h, &whole);
        tape_add(&tape, turn, step, wants ? &whole : &change, &change);
        assert_true(budget == 0 || tape.used <= budget || tape.n == 1);
        buf_free(&change);
        buf_free(&whole);
    }
    seek_all(&tape, seen, STEPS);
    bool left = tape.group[0]->at[0].step != seen[0].step ||
                tape.group[0]->at[0].turn != seen[0].turn;
    assert_true(budget || !left);
    walk_some(&tape, &all, upto, seen, STEPS, !left);
    buf_free(&all);
    const struct seen *cut = &seen[STEPS - 40];
    tape_cut(&tape, cut->turn, cut->step);
    bool held;
    for (int i = STEPS - 80; i < STEPS; i++) {
        seek(&tape, &seen[i], &held);
        assert_true(i > STEPS - 40 ? !held : held || left);
    }
    for (int i = 0; i < STEPS; i++)
        buf_free(&seen[i].whole);
    for (int i = 0; i < N_SEQ; i++)
        kv_drop(&w.kv, &w.seq[i]);
    tape_close(&tape);
    page_history_free(&h);
    kv_free(&w.kv);
    return left;
}

static void test_the_fold_is_the_live_state(void **state)
{
    (void)state;
    static const int size[] = {1, 4, 16, 64};
    int left = 0;
    for (int i = 0; i < 4; i++)
        for (int variant = 0; variant < 3; variant++)
            left += fold_steps(size[i], variant == 1 ? 0 : 1 + below(40), variant != 2,
                               variant ? 100 << 10 : 0);
    assert_true(left > 0);
}

static void test_a_leak_and_other_nonsense_is_refused_or_shown(void **state)
{
    (void)state;
    struct page_history h = {0};
    struct buf b = {0};
    struct err e;
    const struct page_event take = {POOL_FULL, PAGE_TAKE, HOLDER_SESSION, 3, 0, 1};
    page_pack(&(struct context_lengths){0}, &take, 1, &b);
    assert_false(page_history_apply(&h, b.p, b.n, &e)); /* no PAGE_RESET: the pools are unknown */
    assert_non_null(strstr(e.msg, "full page 3"));
    buf_free(&b);
    page_history_free(&h);
    struct pools w;
    pools_open(&w, 4, 8, true);
    int32_t lost = pool_take(&w.kv.pool[POOL_SWA], (struct page_use){HOLDER_BATCH, -1});
    kv_log_state(&w.kv, all_seqs(&w), N_SEQ, CELLS);
    page_pack(&(struct context_lengths){0}, w.kv.log.since, w.kv.log.n_since, &b);
    must(page_history_apply(&h, b.p, b.n, &e), &e);
    assert_int_equal(h.pool[POOL_SWA].refs[lost], 1);
    assert_true(h.page_size == 4 && h.window == 8 && h.capacity == CELLS);
    page_history_free(&h);
    buf_free(&b);
    kv_free(&w.kv);
}

/* ---- a live engine --------------------------------------------------------------------------- */

enum { MAX_SEEN = 4000 };

/* Of one engine: those two facts, too. */
static void same_session_tables(const struct page_table *a, const struct page_table *b)
{
    assert_string_equal(a->session, b->session);
    assert_int_equal(a->capacity, b->capacity);
    same_tables(a, b);
}

struct watch {
    struct backend *g;
    struct page_history log; /* folded from the events, as the log does */
    struct page_table seen[MAX_SEEN];
    int n, n_looks;
};

static void fold_event(struct watch *w, const struct event *ev)
{
    struct err e;
    struct buf packed = {0};
    page_pack(&ev->lengths, ev->pages, ev->n_pages, &packed);
    must(page_history_apply(&w->log, packed.p, packed.n, &e), &e);
    buf_free(&packed);
}

/* The engine is paused after a step: live, from the ring and from the log the table is the same. */
static void look_at_step(struct watch *w)
{
    struct page_table live, ring, log;
    struct err e;
    w->g->pages->table(w->g, &live);
    must(w->g->pages->table_at(w->g, live.turn, live.step, &ring, &e), &e);
    same_session_tables(&live, &ring);
    page_history_table(&w->log, &log);
    memcpy(log.session, live.session, sizeof log.session);
    log.turn = live.turn;
    log.step = live.step;
    same_session_tables(&live, &log);
    for (int k = 0; k < 3; k++) { /* positions, too */
        struct pos_view a, b;
        int at = below(live.length);
        must(w->g->pages->position(w->g, at, &a, &e), &e);
        must(page_history_position(&w->log, at, a.token, &b, &e), &e);
        assert_memory_equal(&a, &b, sizeof a);
        must(w->g->pages->position_at(w->g, live.turn, live.step, at, &b, &e), &e);
        assert_memory_equal(&a, &b, sizeof a);
    }
    page_table_free(&ring);
    page_table_free(&log);
    assert_true(w->n < MAX_SEEN);
    w->seen[w->n++] = live;
    w->n_looks++;
    int i = below(w->n); /* a step from before, if the session still has it */
    if (w->g->pages->table_at(w->g, w->seen[i].turn, w->seen[i].step, &ring, &e)) {
        memcpy(w->seen[i].session, ring.session, sizeof ring.session); /* a fork's parent */
        same_session_tables(&w->seen[i], &ring);
        page_table_free(&ring);
    } else {
        assert_int_equal(e.kind, ERR_NEGATIVE);
    }
}

static void forget_seen(struct watch *w, int turn)
{
    while (w->n && w->seen[w->n - 1].turn > turn)
        page_table_free(&w->seen[--w->n]);
}

/* Runs until the engine is idle; every step is looked at while it is paused. */
static void watch(struct watch *w)
{
    struct event ev;
    struct err e;
    while (serve_event(w->g, &ev)) {
        if (ev.kind == EV_STEP)
            fold_event(w, &ev);
        if (ev.kind == EV_PAUSE && ev.step)
            look_at_step(w);
        if (ev.kind == EV_PAUSE)
            must(w->g->debug->run(w->g, RUN_STEP, 1, NULL, &e), &e);
        event_free(&ev);
    }
}

static void send(struct watch *w, enum request_kind kind, const char *text, int count)
{
    submit(w->g, kind, text, count);
    watch(w);
}

static void new_session(struct watch *w, enum request_kind kind, int n)
{
    struct err e;
    struct request rq = {.kind = kind, .next_turn = 1};
    snprintf(rq.session, sizeof rq.session, "01ARZ3NDEKTSV4RRFFQ69G5%03d", n);
    forget_seen(w, 0);
    must(backend_submit(w->g, &rq, &e), &e);
    watch(w);
}

/* A fork that goes on with the first turns of the conversation, here only its very beginning. */
static void fork_at(struct watch *w, int turn, int n)
{
    struct err e;
    struct request rq = {.kind = RQ_FORK, .next_turn = turn + 1};
    snprintf(rq.session, sizeof rq.session, "01ARZ3NDEKTSV4RRFFQ69G6%03u", (unsigned)n % 1000);
    forget_seen(w, turn);
    must(backend_submit(w->g, &rq, &e), &e);
    watch(w);
}

static void random_request(struct watch *w, int i)
{
    static const char *const say[] = {
        "count to nine", "Tell me about the sky.", "Hello!",
        "Tell me a story about Clara the owl, and what the owl saw in the night over the lake."};
    struct page_table t;
    switch (below(10)) {
    case 0: send(w, RQ_REGEN, NULL, 0); break;
    case 1: send(w, RQ_UNDO, NULL, 0); break;
    case 2: send(w, RQ_SEVERAL, "What is an owl?", 2); break;
    case 3: send(w, RQ_FORGET, "1 2 3", 0); break;
    case 4:
        w->g->pages->table(w->g, &t);
        fork_at(w, t.turn ? below(t.turn + 1) : 0, i);
        page_table_free(&t);
        break;
    case 5:
        if (below(3) == 0)
            new_session(w, below(2) ? RQ_NEW : RQ_RESUME, i);
        break;
    case 6: send(w, RQ_SET, below(2) ? "spec=off" : "spec=on", 0); break;
    default: send(w, RQ_SAY, say[below(4)], 0);
    }
}

static void test_a_live_engine(void **state)
{
    (void)state;
    static const int size[] = {1, 4, 16, 64};
    static struct watch w;
    int looks = 0;
    for (int i = 0; i < 4; i++) {
        struct engine_opts o = serve_opts();
        struct err e;
        o.page_size = size[i];
        o.context = 512;
        o.full_pages = i % 2 ? 1024 / size[i] : 0; /* short of pages: checkpoints are given up */
        o.settings.max_tokens = 16;
        o.settings.chunk = 16;
        w.g = serve_open(&o);
        w.n = w.n_looks = 0;
        must(w.g->debug->run(w.g, RUN_STEP, 1, NULL, &e), &e);
        new_session(&w, RQ_NEW, 99);
        for (int k = 0; k < 50; k++)
            random_request(&w, k);
        looks += w.n_looks;
        forget_seen(&w, 0);
        backend_close(w.g);
        page_history_free(&w.log);
    }
    assert_true(looks > 200);
}

int main(void)
{
    dice = 20261122;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_packed_events_come_back),
        cmocka_unit_test(test_a_thousand_neighbours_are_one_run),
        cmocka_unit_test(test_pages_taken_in_turn_are_few_runs),
        cmocka_unit_test(test_the_fold_is_the_live_state),
        cmocka_unit_test(test_a_leak_and_other_nonsense_is_refused_or_shown),
        cmocka_unit_test(test_a_live_engine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
