/* test_back.c - going back within a turn: after any number of moves back and forth a turn has
 * posted the same events as a turn without them, every state that it reaches again equals the first
 * one, and a difference is always reported.
 *
 *   test_back [DEVICE [PRECISION]]      cpu f32 */
#include "tests/chance.h"
#include "tests/few.h"
#include "tests/serve_kit.h"

#include "engine/what_if.h"

#include <math.h>

static const char *precision = "f32";

enum { MAX_RECS = 300 };

static const char question[] = "Tell me a long story about the sea.";

/* ---- a turn and what it posts ---------------------------------------------------------------- */

struct posted {
    struct step_rec rec[MAX_RECS];
    int n_rec, turn_of[MAX_RECS];
    struct ids tokens, end_tokens;
    struct buf text, end_text, faults, notices;
    enum stop_reason reason;
    int n_pause, n_end, n_fault, n_progress;
};

static void posted_free(struct posted *p)
{
    ids_free(&p->tokens);
    ids_free(&p->end_tokens);
    buf_free(&p->text);
    buf_free(&p->end_text);
    buf_free(&p->faults);
    buf_free(&p->notices);
    *p = (struct posted){0};
}

/* What to do in a pause. */
typedef void at_pause_fn(struct backend *g, const struct debug_view *v, int i);

static void take(struct backend *g, const struct event *ev, struct posted *p, at_pause_fn *at_pause)
{
    struct debug_view v;
    const char *text = ev->text.p ? ev->text.p : "";
    switch (ev->kind) {
    case EV_STEP:
        assert_true(p->n_rec < MAX_RECS);
        p->turn_of[p->n_rec] = ev->turn;
        p->rec[p->n_rec++] = ev->rec;
        ids_cat(&p->tokens, ev->tokens.v, ev->tokens.n);
        break;
    case EV_PREFILL: p->n_progress++; break;
    case EV_TEXT: buf_str(&p->text, text); break;
    case EV_TURN_END:
        p->reason = ev->reason;
        p->n_end++;
        ids_cat(&p->end_tokens, ev->tokens.v, ev->tokens.n);
        buf_str(&p->end_text, text);
        break;
    case EV_FAULT: buf_str(&p->faults, text), p->n_fault++; break;
    case EV_NOTICE: buf_str(&p->notices, text); break;
    case EV_PAUSE:
        g->debug->view(g, &v);
        assert_true(v.paused);
        at_pause(g, &v, p->n_pause++);
        break;
    default: break;
    }
}

static void converse(struct backend *g, enum request_kind kind, const char *text, struct posted *p,
                     at_pause_fn *at_pause)
{
    struct event ev;
    submit(g, kind, text, 0);
    while (serve_event(g, &ev)) {
        take(g, &ev, p, at_pause);
        event_free(&ev);
    }
}

static void same_posted(const struct posted *a, const struct posted *b)
{
    assert_int_equal(a->n_rec, b->n_rec);
    for (int i = 0; i < a->n_rec; i++) {
        struct step_rec x = a->rec[i], y = b->rec[i];
        if (x.fused != y.fused) /* a step run phase by phase on a GPU: see struct step_rec */
            x.page_digest = y.page_digest;
        if (memcmp(&x, &y, offsetof(struct step_rec, us_draft)))
            fail_msg("step %d of turn %d was posted otherwise", i, a->turn_of[i]);
    }
    assert_int_equal(a->tokens.n, b->tokens.n);
    assert_memory_equal(a->tokens.v, b->tokens.v, (size_t)a->tokens.n * sizeof *a->tokens.v);
    assert_int_equal(a->end_tokens.n, b->end_tokens.n);
    assert_memory_equal(a->end_tokens.v, b->end_tokens.v, (size_t)a->end_tokens.n * 4);
    assert_string_equal(a->text.p ? a->text.p : "", b->text.p ? b->text.p : "");
    assert_string_equal(a->end_text.p ? a->end_text.p : "", b->end_text.p ? b->end_text.p : "");
    assert_int_equal(a->reason, b->reason);
    assert_int_equal(a->n_end, b->n_end);
    assert_int_equal(a->n_progress, b->n_progress);
    assert_int_equal(b->n_fault, 0);
}

/* ---- engines --------------------------------------------------------------------------------- */

static const struct { int steps, topk, nodes; } shape[] = {{0, 0, 0}, {4, 1, 5}, {5, 8, 32}};
enum { N_SHAPES = sizeof shape / sizeof *shape };

static struct engine_opts opts_of(int page_size, int s, double temperature)
{
    struct engine_opts o = serve_opts();
    o.device = device;
    o.precision = precision;
    o.page_size = page_size;
    o.settings.spec = shape[s].steps > 0;
    o.settings.temperature = temperature;
    o.settings.chunk = 6;
    o.settings.max_tokens = 64;
    if (shape[s].steps) {
        o.settings.steps = shape[s].steps;
        o.settings.topk = shape[s].topk;
        o.settings.nodes = shape[s].nodes;
    }
    return o;
}

static struct backend *open_session(const struct engine_opts *o)
{
    struct err e = {0};
    struct backend *g = serve_open(o);
    struct request rq = {.kind = RQ_NEW};
    memcpy(rq.session, "01ARZ3NDEKTSV4RRFFQ69G5FAV", SESSION_ID);
    must(backend_submit(g, &rq, &e), &e);
    engine_of(g)->own.runtime.n_stop = 0; /* replies are as long as they may be */
    return g;
}

static void never(struct backend *g, const struct debug_view *v, int i)
{
    (void)g, (void)i;
    fail_msg("the turn paused: %s", v->why);
}

/* ---- what the views show after a step -------------------------------------------------------- */

static uint64_t seen[2][MAX_RECS]; /* by turn and step; 0: not seen yet */

/* Everything about pages, pools and lengths. */
static uint64_t views(struct backend *g)
{
    struct page_table t;
    struct chat_view c;
    struct pool_view pool[N_POOLS];
    g->pages->table(g, &t);
    g->pools->ledger(g, pool);
    g->ops->chat(g, &c);
    int numbers[] = {t.turn, t.step, t.length, t.committed, t.window_lo, t.draft_length, t.n_page,
                     c.step, c.length, c.committed};
    uint64_t h = hash64(numbers, sizeof numbers, 1);
    h = hash64(t.page, (size_t)t.n_page * sizeof *t.page, h);
    for (int p = 0; p < N_POOLS; p++) {
        int held[] = {pool[p].used, pool[p].free, pool[p].evictable, pool[p].protected_};
        h = hash64(held, sizeof held, h);
        if (t.pool[p].exists)
            h = hash64(t.refs[p], (size_t)t.pool[p].total * sizeof *t.refs[p], h);
    }
    page_table_free(&t);
    return h | 1;
}

static void look(struct backend *g, const struct debug_view *v)
{
    struct step_view tree;
    if (v->phase)
        return;
    uint64_t h = views(g), *was = &seen[v->turn - 1][v->step];
    if (*was && *was != h)
        fail_msg("the views of step %d.%d show another state than the first time", v->turn,
                 v->step);
    *was = h;
    if (g->trees->latest(g, &tree))
        assert_true(tree.turn < v->turn || tree.step <= v->step);
    assert_true(v->step <= v->last && v->first == 0);
}

/* ---- 50 steps back and forward --------------------------------------------------------------- */

enum { FAR = 50 };
static int walked, stride;

/* Runs to step FAR + 3, goes FAR steps back, `stride` at a time, FAR forward one by one, then
 * on. */
static void far_and_back(struct backend *g, const struct debug_view *v, int i)
{
    struct err e = {0};
    look(g, v);
    walked = v->turn == 1 ? v->last : walked;
    if (v->turn == 2 || i >= 1 + FAR / stride + FAR)
        must(g->debug->run(g, RUN_ON, 1, NULL, &e), &e);
    else if (i == 0)
        must(g->debug->run(g, RUN_STEP, FAR + 3, NULL, &e), &e);
    else if (i <= FAR / stride)
        must(g->debug->back(g, 1, v->step - stride, &e), &e);
    else
        must(g->debug->run(g, RUN_STEP, 1, NULL, &e), &e);
}

static void run_both(const struct engine_opts *o, at_pause_fn *walk, struct posted *plain,
                     struct posted *walks)
{
    struct err e = {0};
    memset(seen, 0, sizeof seen);
    struct backend *g = open_session(o);
    converse(g, RQ_SAY, question, plain, never);
    converse(g, RQ_SET, "max_tokens=8", plain, never);
    converse(g, RQ_SAY, "And again?", plain, never);
    backend_close(g);
    g = open_session(o);
    must(g->debug->run(g, RUN_STEP, 1, NULL, &e), &e);
    converse(g, RQ_SAY, question, walks, walk);
    converse(g, RQ_SET, "max_tokens=8", walks, never);
    converse(g, RQ_SAY, "And again?", walks, walk);
    struct check_report report;
    must(g->check->sweep(g, &report, &e), &e);
    backend_close(g);
}

static void test_fifty_steps_back_and_forward_again(void **state)
{
    (void)state;
    static const int page_size[] = {1, 16, 64};
    for (int i = 0; i < 3 * N_SHAPES; i++) {
        if (i != 1 && i % rounds(4, 1) != 0) /* each page size and each shape once */
            continue;
        struct engine_opts o = opts_of(page_size[i / N_SHAPES], i % N_SHAPES, i % 2 ? 0.9 : 0);
        struct posted plain = {0}, walks = {0};
        o.settings.chunk = 1; /* so that also a wide tree has so many steps */
        o.settings.max_tokens = 120 + 26 * (i % N_SHAPES);
        stride = i == 1 ? 1 : 10; /* one by one a chain with pages of 1 */
        run_both(&o, far_and_back, &plain, &walks);
        same_posted(&plain, &walks);
        if (walked < FAR + 3)
            fail_msg("configuration %d: the turn has only %d steps", i, walked);
        posted_free(&plain);
        posted_free(&walks);
    }
}

/* ---- any walk -------------------------------------------------------------------------------- */

static int backs, ahead, by_phase;

static void at_random(struct backend *g, const struct debug_view *v, int i)
{
    struct err e = {0};
    look(g, v);
    int what = below(12), to = below(v->last + 1);
    if (i % 50 > 40) {
        must(g->debug->run(g, RUN_ON, 1, NULL, &e), &e);
    } else if (what < 4) {
        backs += to < v->step;
        ahead += to > v->step;
        must(g->debug->back(g, v->turn, to, &e), &e);
    } else if (what < 6) {
        must(g->debug->run(g, RUN_PHASE, 1, NULL, &e), &e);
        by_phase++;
    } else if (what == 6) {
        must(g->debug->run(g, RUN_ON, 1, "accepted>=2", &e), &e);
    } else {
        must(g->debug->run(g, RUN_STEP, 1 + below(9), NULL, &e), &e);
    }
}

static void test_any_walk_posts_what_a_turn_that_runs_through_posts(void **state)
{
    (void)state;
    static const int page_size[] = {1, 16, 64};
    dice = 21;
    for (int i = 0; i < rounds(4, 12); i++) {
        struct engine_opts o = opts_of(page_size[i % 4 % 3], i % N_SHAPES, i % 2 ? 0.9 : 0);
        struct posted plain = {0}, walks = {0};
        o.settings.max_tokens = 130;
        o.settings.check = i % 5 == 0 ? CHECK_STRICT : CHECK_ON;
        run_both(&o, at_random, &plain, &walks);
        same_posted(&plain, &walks);
        posted_free(&plain);
        posted_free(&walks);
    }
    print_message("# %d times back, %d times ahead, %d times a phase\n", backs, ahead, by_phase);
    assert_true(backs > rounds(10, 60) && ahead > rounds(4, 25) && by_phase > rounds(12, 50));
}

/* ---- without a breakpoint from the start ----------------------------------------------------- */

static void to_the_beginning(struct backend *g, const struct debug_view *v, int i)
{
    struct err e = {0};
    if (i == 0) {
        assert_int_equal(v->first, 0); /* the turn's beginning is always kept */
        must(g->debug->back(g, 1, 0, &e), &e);
    } else {
        assert_int_equal(v->step, 0);
        assert_int_equal(v->phase, WHOLE_STEP);
        assert_non_null(strstr(v->why, "turn 1 begins (of 1."));
        must(g->debug->run(g, RUN_ON, 1, NULL, &e), &e);
    }
}

/* The debugger was off until the middle of the turn. */
static void test_the_beginning_of_a_turn_is_always_kept(void **state)
{
    (void)state;
    struct engine_opts o = opts_of(16, 1, 0);
    struct posted plain = {0}, walks = {0};
    struct err e = {0};
    struct event ev;
    struct backend *g = open_session(&o);
    converse(g, RQ_SAY, question, &plain, never);
    backend_close(g);
    g = open_session(&o);
    submit(g, RQ_SAY, question, 0);
    while (walks.n_rec < 5 && backend_wait(g, &ev, 60000)) {
        take(g, &ev, &walks, never);
        event_free(&ev);
    }
    must(g->debug->run(g, RUN_STEP, 1, NULL, &e), &e);
    while (backend_busy(g) && walks.n_pause < 2)
        if (backend_wait(g, &ev, 20)) {
            take(g, &ev, &walks, to_the_beginning);
            event_free(&ev);
        }
    converse(g, RQ_SYSTEM, "", &walks, never);
    same_posted(&plain, &walks);
    backend_close(g);
    posted_free(&plain);
    posted_free(&walks);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void refused(struct backend *g, int turn, int step, const char *why)
{
    struct err e = {0};
    assert_false(g->debug->back(g, turn, step, &e));
    assert_int_equal(e.kind, ERR_USAGE);
    if (!strstr(e.msg, why))
        fail_msg("\"%s\" does not say \"%s\"", e.msg, why);
}

static void refusing(struct backend *g, const struct debug_view *v, int i)
{
    struct err e = {0};
    (void)i;
    refused(g, v->turn, -1, "expected 2.0 to 2.");
    refused(g, v->turn, v->last + 1, "expected 2.0 to 2.");
    refused(g, 1, 3, "aerie replay ID --goto 1.3");
    must(g->debug->run(g, RUN_ON, 1, NULL, &e), &e);
}

static void test_where_a_turn_cannot_go_is_said(void **state)
{
    (void)state;
    struct engine_opts o = opts_of(16, 1, 0);
    struct posted p = {0};
    struct err e = {0};
    struct backend *g = open_session(&o);
    converse(g, RQ_SAY, question, &p, never);
    refused(g, 1, 3, "no turn is paused");
    must(g->debug->run(g, RUN_ON, 1, "step==2.6", &e), &e);
    converse(g, RQ_SAY, question, &p, refusing);
    assert_int_equal(p.n_pause, 1);
    backend_close(g);
    posted_free(&p);
}

/* A pool that is short while the turn runs takes pages from checkpoints: the states that shared
 * them are not gone back to. */
static int kept_from;

static void after_a_loss(struct backend *g, const struct debug_view *v, int i)
{
    struct err e = {0};
    kept_from = v->first;
    if (i == 0 && v->first > 0 && v->first <= v->last)
        refused(g, v->turn, 0, "is kept any more");
    must(g->debug->run(g, RUN_ON, 1, NULL, &e), &e);
}

static void test_states_are_not_used_after_their_pages_were_given_up(void **state)
{
    (void)state;
    struct engine_opts o = opts_of(16, 1, 0);
    struct posted p = {0};
    struct err e = {0};
    o.context = 512;
    o.full_pages = 29;
    o.settings.forget = FORGET_OLDEST;
    struct backend *g = open_session(&o);
    for (int i = 0; i < 6; i++) {
        converse(g, RQ_SAY, question, &p, never);
        posted_free(&p);
    }
    uint64_t given_up = engine_of(g)->own.ses.given_up;
    int most = 0;
    for (int i = 0; i < 4; i++) {
        must(g->debug->add(g, "new>=1 && step>0.0", false, &e) > 0, &e);
        converse(g, RQ_SAY, question, &p, after_a_loss);
        must(g->debug->remove(g, 0, &e), &e);
        posted_free(&p);
        most = max_int(most, kept_from);
    }
    assert_true(engine_of(g)->own.ses.given_up > given_up);
    backend_close(g);
    posted_free(&p);
}

/* ---- differences, faults, cancels ------------------------------------------------------------ */

/* Changes a key that the first cycle after the kept state reads. */
static void poke(struct backend *g, const struct debug_view *v, int i)
{
    struct err e = {0};
    struct runtime *r = &engine_of(g)->own.runtime;
    if (i == 0) {
        must(g->debug->run(g, RUN_STEP, 12, NULL, &e), &e);
    } else if (i == 1) {
        const struct k_cells *c = &r->net.of_pool[POOL_FULL][0];
        full_slot at = kv_full_slot(&r->kv, &engine_of(g)->own.ses.lane.seq, 3);
        size_t row = (size_t)(c->n_kv * c->head_dim) * kv_type_size(c->type);
        uint8_t other[64];
        memset(other, 0x41, sizeof other);
        r->dev.k->put(r->dev.d, kbuf_at(c->k, row * (size_t)at.v, sizeof other), other,
                      sizeof other);
        must(g->debug->back(g, 1, v->step - 2, &e), &e);
    } else {
        must(g->debug->run(g, RUN_ON, 1, NULL, &e), &e);
    }
}

static void test_a_step_that_differs_when_it_runs_again_is_a_fault(void **state)
{
    (void)state;
    struct engine_opts o = opts_of(16, 1, 0);
    struct posted p = {0};
    struct err e = {0};
    struct backend *g = open_session(&o);
    must(g->debug->run(g, RUN_STEP, 1, NULL, &e), &e);
    converse(g, RQ_SAY, question, &p, poke);
    assert_int_equal(p.reason, STOP_FAULT);
    assert_int_equal(p.n_fault, 1);
    assert_non_null(strstr(p.faults.p, "differs from its first run: "));
    backend_close(g);
    posted_free(&p);
}

static int fault_pauses;

static void around_a_fault(struct backend *g, const struct debug_view *v, int i)
{
    struct err e = {0};
    fault_pauses += strstr(v->why, "a rule was violated") != NULL;
    if (i == 0)
        must(g->debug->back(g, v->turn, v->step - 1, &e), &e);
    else if (i == 1)
        must(g->debug->run(g, RUN_STEP, 1, NULL, &e), &e);
    else
        must(g->debug->run(g, RUN_ON, 1, NULL, &e), &e);
}

static void test_a_fault_can_be_met_twice_and_is_posted_once(void **state)
{
    (void)state;
    struct engine_opts o = opts_of(16, 1, 0);
    struct posted p = {0};
    struct err e = {0};
    struct backend *g = open_session(&o);
    submit(g, RQ_SET, "bug.26512=on", 0);
    must(g->debug->add(g, "fault", false, &e) > 0, &e);
    converse(g, RQ_SAY, question, &p, around_a_fault);
    assert_int_equal(p.reason, STOP_FAULT);
    assert_int_equal(p.n_fault, 1);
    assert_int_equal(fault_pauses, 2);
    assert_int_equal(p.n_pause, 3);
    backend_close(g);
    posted_free(&p);
}

static int cancel_phase;

static void cancel_behind(struct backend *g, const struct debug_view *v, int i)
{
    struct err e = {0};
    if (i == 0) {
        must(g->debug->run(g, RUN_STEP, 20, NULL, &e), &e);
    } else if (i == 1) {
        must(g->debug->back(g, 1, v->step - 9, &e), &e);
    } else if (i < 2 + cancel_phase) {
        must(g->debug->run(g, RUN_PHASE, 1, NULL, &e), &e);
    } else {
        assert_true(v->step < v->last);
        backend_cancel(g);
    }
}

/* What was posted is the turn, wherever it stood when it was cancelled. */
static void test_a_cancel_behind_the_frontier_keeps_what_was_posted(void **state)
{
    (void)state;
    for (cancel_phase = 0; cancel_phase < 6; cancel_phase++) {
        struct engine_opts o = opts_of(16, 1, 0);
        struct posted p = {0}, again = {0}, plain = {0};
        struct err e = {0};
        o.settings.max_tokens = 150;
        struct backend *g = open_session(&o);
        must(g->debug->run(g, RUN_STEP, 1, NULL, &e), &e);
        converse(g, RQ_SAY, question, &p, cancel_behind);
        assert_int_equal(p.reason, STOP_CANCEL);
        assert_int_equal(p.n_rec, 20);
        assert_int_equal(p.end_tokens.n, p.tokens.n);
        assert_memory_equal(p.end_tokens.v, p.tokens.v, (size_t)p.tokens.n * sizeof *p.tokens.v);
        assert_string_equal(p.text.p, p.end_text.p);
        must(g->debug->run(g, RUN_ON, 1, NULL, &e), &e);
        converse(g, RQ_SAY, "And again?", &again, never);
        backend_close(g);
        g = open_session(&o); /* a replay: cancelled after the same step */
        struct request rq = {.kind = RQ_SAY, .text = xstrdup(question), .stop_after_step = 20};
        must(backend_submit(g, &rq, &e), &e);
        converse(g, RQ_SYSTEM, "", &plain, never);
        posted_free(&plain);
        converse(g, RQ_SAY, "And again?", &plain, never);
        same_posted(&plain, &again);
        backend_close(g);
        posted_free(&p);
        posted_free(&again);
        posted_free(&plain);
    }
}

/* ---- tokens by hand -------------------------------------------------------------------------- */

static int32_t by_hand[3];
static struct forced_token forced[3];
static int n_forced;

static void force_one(struct backend *g, int k)
{
    struct err e = {0};
    int32_t id = by_hand[k];
    must(g->debug->force(g, NULL, &id, &e), &e);
}

/* The first token before the turn; one at a pause, one between two phases; back and forth
 * between. */
static void forcing(struct backend *g, const struct debug_view *v, int i)
{
    struct err e = {0};
    int32_t id = by_hand[2];
    switch (i) {
    case 0: must(g->debug->run(g, RUN_STEP, 8, NULL, &e), &e); break;
    case 1:
        force_one(g, 1);
        assert_int_equal(v->step, 8);
        must(g->debug->back(g, 1, 3, &e), &e);
        break;
    case 2:
        assert_false(g->debug->force(g, NULL, &id, &e)); /* behind the frontier */
        must(g->debug->run(g, RUN_STEP, 10, NULL, &e), &e); /* past the frontier: 13 */
        break;
    case 3:
        assert_int_equal(v->step, 13);
        must(g->debug->run(g, RUN_PHASE, 1, NULL, &e), &e);
        break;
    case 4:
        assert_int_equal(v->phase, PHASE_DRAFT);
        force_one(g, 2);
        must(g->debug->run(g, RUN_STEP, 1, NULL, &e), &e);
        break;
    case 5: must(g->debug->back(g, 1, 1, &e), &e); break;
    default: must(g->debug->run(g, RUN_ON, 1, NULL, &e), &e); break;
    }
}

static void converse_noting(struct backend *g, struct posted *p)
{
    struct event ev;
    n_forced = 0;
    submit(g, RQ_SAY, question, 0);
    while (serve_event(g, &ev)) {
        if (ev.kind == EV_OP && ev.op == OP_FORCE) {
            forced[n_forced++] = ev.forced;
            assert_int_equal(p->n_rec, ev.forced.step - 1); /* posted before the step */
        }
        take(g, &ev, p, forcing);
        event_free(&ev);
    }
}

static void test_forced_tokens_are_said_and_a_replay_repeats_them(void **state)
{
    (void)state;
    for (int i = 0; i < rounds(1, 2) * N_SHAPES; i++) {
        struct engine_opts o = opts_of(16, i % N_SHAPES, i % 2 ? 0.9 : 0);
        struct posted plain = {0}, hand = {0}, again = {0};
        struct err e = {0};
        struct backend *g = open_session(&o);
        converse(g, RQ_SAY, question, &plain, never);
        backend_close(g);
        for (int k = 0; k < 3; k++)
            by_hand[k] = 300 + 7 * k + i;
        g = open_session(&o);
        must(g->debug->run(g, RUN_STEP, 1, NULL, &e), &e);
        force_one(g, 0);
        converse_noting(g, &hand);
        backend_close(g);
        assert_int_equal(n_forced, 3);
        assert_int_equal(forced[1].step, 9);
        assert_int_equal(forced[2].step, 14);
        for (int k = 0; k < 3; k++) {
            const struct step_rec *r = &hand.rec[forced[k].step - 1];
            int at = 0;
            for (int s = 0; s < forced[k].step - 1; s++)
                at += step_emits(&hand.rec[s]);
            assert_int_equal(forced[k].token, by_hand[k]);
            assert_int_equal(r->forced, 1);
            assert_int_equal(hand.tokens.v[at], by_hand[k]);
        }
        assert_true(plain.tokens.v[0] != hand.tokens.v[0]);
        g = open_session(&o);
        struct request rq = {.kind = RQ_SAY, .text = xstrdup(question), .n_force = 3,
                             .force = memcpy(xmalloc(sizeof forced), forced, sizeof forced)};
        must(backend_submit(g, &rq, &e), &e);
        converse(g, RQ_SYSTEM, "", &again, never);
        same_posted(&hand, &again);
        backend_close(g);
        posted_free(&plain);
        posted_free(&hand);
        posted_free(&again);
    }
}

static void not_forced(struct backend *g, const char *text, int32_t id, const char *why)
{
    struct err e = {0};
    assert_false(g->debug->force(g, text, &id, &e));
    if (!strstr(e.msg, why))
        fail_msg("\"%s\" does not say \"%s\"", e.msg, why);
}

static void test_what_cannot_be_forced_is_said(void **state)
{
    (void)state;
    struct engine_opts o = opts_of(16, 1, 0);
    struct posted p = {0};
    struct err e = {0};
    struct backend *g = open_session(&o);
    struct debug_view v;
    int32_t id = -1;
    const struct loaded *l = &engine_of(g)->loaded;
    not_forced(g, NULL, backend_info(g)->vocab, "expected 0 to ");
    not_forced(g, NULL, l->stop[0], "is special");
    not_forced(g, "two words", -1, " tokens (#");
    for (int i = 0; l->mask && i < backend_info(g)->vocab; i++)
        if (l->mask[i]) {
            not_forced(g, NULL, i, "has no text");
            break;
        }
    must(g->debug->force(g, " the", &id, &e), &e);
    g->debug->view(g, &v);
    assert_int_equal(v.forced, id);
    id = -1;
    must(g->debug->force(g, NULL, &id, &e), &e); /* none after all */
    converse(g, RQ_SAY, question, &p, never);
    for (int i = 0; i < p.n_rec; i++)
        assert_int_equal(p.rec[i].forced, 0);
    backend_close(g);
    posted_free(&p);
}

/* ---- what if --------------------------------------------------------------------------------- */

static const char *const change[] = {"spec=off", "draft.nodes=3", "temperature=0.5 seed=4",
                                     "page_size=4", "draft.topk=2", "window=6", "bug.26512=on",
                                     "check=strict", "draft.window=6"};
enum { N_CHANGES = sizeof change / sizeof *change };
static int asked, answered, failures, others;
static struct what_if last_answer;

static void asking(struct backend *g, const struct debug_view *v, int i)
{
    struct err e = {0};
    look(g, v);
    if (v->turn == 1 && v->step > 4 && asked < N_CHANGES)
        must(g->debug->what_if(g, change[asked++], &e), &e);
    else
        must(g->debug->run(g, v->turn == 1 && asked < N_CHANGES ? RUN_STEP : RUN_ON, 1, NULL, &e),
             &e);
    (void)i;
}

/* Nothing has changed meanwhile; the step as it is is the one that comes; pages change no bit. */
static void take_answer(struct backend *g, const struct event *ev)
{
    struct debug_view v;
    struct err e = {0};
    const struct what_if *w = ev->what_if;
    assert_non_null(w);
    assert_string_equal(w->change, change[asked - 1]);
    g->debug->view(g, &v);
    look(g, &v);
    assert_int_equal(w->step, v.step + 1);
    assert_false(w->side[0].failed);
    /* a GPU rounds cells that a prompt's pass computes otherwise than a cycle's */
    bool pages = strncmp(w->change, "page_size", 9) == 0 && strcmp(device, "cpu") == 0;
    if (pages || strncmp(w->change, "check", 5) == 0) {
        const struct what_if_side *x = &w->side[0], *y = &w->side[1];
        assert_false(y->failed);
        assert_int_equal(x->rec.draft_digest, y->rec.draft_digest);
        assert_int_equal(x->rec.logit_digest, y->rec.logit_digest);
        assert_int_equal(x->rec.draws, y->rec.draws);
        assert_int_equal(x->n_token, y->n_token);
        assert_memory_equal(x->token, y->token, (size_t)x->n_token * sizeof *x->token);
    }
    failures += w->side[1].failed;
    others += w->other_pools;
    last_answer = *w;
    answered++;
    must(g->debug->run(g, RUN_STEP, 1, NULL, &e), &e);
}

static void converse_asking(struct backend *g, const char *text, struct posted *p)
{
    struct event ev;
    submit(g, RQ_SAY, text, 0);
    while (serve_event(g, &ev)) {
        if (ev.kind == EV_WHAT_IF)
            take_answer(g, &ev);
        if (ev.kind == EV_STEP && ev.turn == 1 && ev.step == last_answer.step) {
            const struct what_if_side *s = &last_answer.side[0];
            assert_memory_equal(&ev.rec, &s->rec, offsetof(struct step_rec, us_draft));
            assert_int_equal(ev.tokens.n, s->n_token);
            assert_memory_equal(ev.tokens.v, s->token, (size_t)s->n_token * sizeof *s->token);
        }
        take(g, &ev, p, asking);
        event_free(&ev);
    }
}

static void test_what_if_shows_the_next_step_and_leaves_no_trace(void **state)
{
    (void)state;
    for (int i = 1; i < N_SHAPES; i++) {
        struct engine_opts o = opts_of(i == 1 ? 16 : 1, i, i == 1 ? 0 : 0.9);
        struct posted plain = {0}, what = {0};
        struct err e = {0};
        asked = 0;
        memset(seen, 0, sizeof seen);
        struct backend *g = open_session(&o);
        converse(g, RQ_SAY, question, &plain, never);
        converse(g, RQ_SAY, "And again?", &plain, never);
        backend_close(g);
        g = open_session(&o);
        assert_false(g->debug->what_if(g, change[0], &e));
        assert_non_null(strstr(e.msg, "no turn is paused"));
        must(g->debug->run(g, RUN_STEP, 1, NULL, &e), &e);
        last_answer.step = 0;
        converse_asking(g, question, &what);
        last_answer.step = 0;
        converse_asking(g, "And again?", &what);
        same_posted(&plain, &what);
        assert_int_equal(what.n_fault, 0);
        backend_close(g);
        posted_free(&plain);
        posted_free(&what);
    }
    assert_int_equal(answered, 2 * N_CHANGES);
    assert_int_equal(failures, 2); /* the historical fault, caught by a rule */
    assert_int_equal(others, 7);   /* page size, the windows and a greater topk have pools of
                                      their own */
}

static void wrong_changes(struct backend *g, const struct debug_view *v, int i)
{
    static const char *const wrong[] = {"", "spec", "chunk=3", "page_size=3", "window=0",
                                        "spec=maybe", "bug.99=on", "draft.topk=8 nonsense"};
    struct err e = {0};
    (void)v, (void)i;
    for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
        e = (struct err){0};
        assert_false(g->debug->what_if(g, wrong[k], &e));
        assert_int_equal(e.kind, ERR_USAGE);
    }
    must(g->debug->run(g, RUN_ON, 1, NULL, &e), &e);
}

static void test_wrong_changes_are_refused_at_once(void **state)
{
    (void)state;
    struct engine_opts o = opts_of(16, 1, 0);
    struct posted p = {0};
    struct err e = {0};
    struct backend *g = open_session(&o);
    must(g->debug->run(g, RUN_ON, 1, "step==1.6", &e), &e);
    converse(g, RQ_SAY, question, &p, wrong_changes);
    assert_int_equal(p.n_pause, 1);
    backend_close(g);
    posted_free(&p);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fifty_steps_back_and_forward_again),
        cmocka_unit_test(test_any_walk_posts_what_a_turn_that_runs_through_posts),
        cmocka_unit_test(test_the_beginning_of_a_turn_is_always_kept),
        cmocka_unit_test(test_where_a_turn_cannot_go_is_said),
        cmocka_unit_test(test_states_are_not_used_after_their_pages_were_given_up),
        cmocka_unit_test(test_a_step_that_differs_when_it_runs_again_is_a_fault),
        cmocka_unit_test(test_a_fault_can_be_met_twice_and_is_posted_once),
        cmocka_unit_test(test_a_cancel_behind_the_frontier_keeps_what_was_posted),
        cmocka_unit_test(test_forced_tokens_are_said_and_a_replay_repeats_them),
        cmocka_unit_test(test_what_cannot_be_forced_is_said),
        cmocka_unit_test(test_what_if_shows_the_next_step_and_leaves_no_trace),
        cmocka_unit_test(test_wrong_changes_are_refused_at_once),
    };
    device = argc > 1 ? argv[1] : device;
    precision = argc > 2 ? argv[2] : precision;
    if (argc > 3) cmocka_set_test_filter(argv[3]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
