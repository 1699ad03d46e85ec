/* The debugger of the decode loop: a turn that is paused anywhere yields the bits of one that runs
 * through, conditions hold the turn at their exact step, and a paused engine can be looked at.
 *
 *   test_debug [DEVICE [PRECISION]]     cpu f32 */
#include "tests/few.h"
#include "tests/serve_kit.h"

#include <math.h>

/* ---- a turn and its pauses ------------------------------------------------------------------- */

enum { MAX_RECS = 200, MAX_PAUSES = 400 };

struct recorded {
    struct step_rec rec[MAX_RECS];
    int n_rec;
    struct ids tokens;
    struct { int turn, step; enum step_phase phase; char why[200]; int nodes, n_token,
             accepted; struct tree tree; } pause[MAX_PAUSES];
    int n_pause;
    enum stop_reason reason;
    struct buf faults;
};

static void recorded_free(struct recorded *r)
{
    ids_free(&r->tokens);
    buf_free(&r->faults);
    *r = (struct recorded){0};
}

/* What to do at pause number i: control the engine, or leave it paused (false). */
typedef bool at_pause_fn(struct backend *g, const struct debug_view *v, int i);

static bool go_on(struct backend *g, const struct debug_view *v, int i)
{
    (void)i;
    struct err e = {0};
    must(g->debug->run(g, v->until, 1, NULL, &e), &e);
    return true;
}

static void note_pause(struct backend *g, struct recorded *r, at_pause_fn *at_pause)
{
    struct debug_view v;
    g->debug->view(g, &v);
    assert_true(v.paused && r->n_pause < MAX_PAUSES);
    int i = r->n_pause++;
    r->pause[i].turn = v.turn;
    r->pause[i].step = v.step;
    r->pause[i].nodes = v.tree.n;
    r->pause[i].n_token = v.n_token;
    r->pause[i].accepted = v.verified ? v.rec.accepted : -1;
    r->pause[i].tree = v.tree;
    r->pause[i].phase = v.phase;
    snprintf(r->pause[i].why, sizeof r->pause[i].why, "%.199s", v.why);
    at_pause(g, &v, i);
}

static void take(struct backend *g, const struct event *ev, struct recorded *r,
                 at_pause_fn *at_pause)
{
    switch (ev->kind) {
    case EV_STEP:
        assert_true(r->n_rec < MAX_RECS);
        r->rec[r->n_rec++] = ev->rec;
        ids_cat(&r->tokens, ev->tokens.v, ev->tokens.n);
        break;
    case EV_TURN_END: r->reason = ev->reason; break;
    case EV_FAULT: buf_str(&r->faults, ev->text.p); break;
    case EV_PAUSE: note_pause(g, r, at_pause); break;
    default: break;
    }
}

static void converse(struct backend *g, const char *text, struct recorded *r, at_pause_fn *at_pause)
{
    struct event ev;
    submit(g, RQ_SAY, text, 0);
    while (serve_event(g, &ev)) {
        take(g, &ev, r, at_pause);
        event_free(&ev);
    }
}

static void begin_session(struct backend *g)
{
    struct err e = {0};
    struct request rq = {.kind = RQ_NEW};
    memcpy(rq.session, "01ARZ3NDEKTSV4RRFFQ69G5FAV", SESSION_ID);
    must(backend_submit(g, &rq, &e), &e);
}

static const char *precision = "f32";

static const struct { int steps, topk, nodes; } shape[] = {{0, 0, 0}, {4, 1, 5}, {3, 3, 12},
                                                           {5, 6, 40}};
enum { N_SHAPES = sizeof shape / sizeof *shape };

static struct engine_opts opts_of(int page_size, int s, double temperature)
{
    struct engine_opts o = serve_opts();
    o.device = device;
    o.precision = precision;
    o.page_size = page_size;
    o.settings.spec = shape[s].steps > 0;
    o.settings.temperature = temperature;
    o.settings.chunk = 16;
    if (shape[s].steps) {
        o.settings.steps = shape[s].steps;
        o.settings.topk = shape[s].topk;
        o.settings.nodes = shape[s].nodes;
    }
    return o;
}

static void same_run(const struct recorded *a, const struct recorded *b)
{
    assert_int_equal(a->n_rec, b->n_rec);
    assert_int_equal(a->tokens.n, b->tokens.n);
    assert_memory_equal(a->tokens.v, b->tokens.v, (size_t)a->tokens.n * sizeof *a->tokens.v);
    assert_int_equal(a->reason, b->reason);
    for (int i = 0; i < a->n_rec; i++) {
        struct step_rec x = a->rec[i], y = b->rec[i];
        x.us_draft = x.us_verify = x.us_commit = x.us_check = 0;
        y.us_draft = y.us_verify = y.us_commit = y.us_check = 0;
        if (x.fused == y.fused) /* see struct step_rec */
            assert_int_equal(x.page_digest, y.page_digest);
        assert_int_equal(x.draft_digest, y.draft_digest);
        assert_int_equal(x.logit_digest, y.logit_digest);
        assert_int_equal(x.kind, y.kind);
        assert_int_equal(x.pos0, y.pos0);
        assert_int_equal(x.accepted, y.accepted);
        assert_int_equal(x.draws, y.draws);
    }
}

static const char question[] = "Tell me about the sky, and count to nine.";

/* Two turns; until: how the second engine is stepped. */
static void run_twice(const struct engine_opts *o, enum run_until until, struct recorded *plain,
                      struct recorded *stepped)
{
    struct err e = {0};
    for (int k = 0; k < 2; k++) {
        struct recorded *r = k ? stepped : plain;
        struct backend *g = serve_open(o);
        begin_session(g);
        if (k)
            must(g->debug->run(g, until, 1, NULL, &e), &e);
        converse(g, question, r, go_on);
        converse(g, "And again?", r, go_on);
        backend_close(g);
    }
}

static void test_phases_yield_the_bits_of_running(void **state)
{
    (void)state;
    static const int page_size[] = {1, 16, 64};
    for (int i = 0; i < 3 * N_SHAPES; i += one_in(5)) {
        int s = i % N_SHAPES;
        struct engine_opts o = opts_of(page_size[i / N_SHAPES], s, i % 2 ? 0.9 : 0);
        struct recorded plain = {0}, stepped = {0};
        run_twice(&o, i % 3 ? RUN_PHASE : RUN_STEP, &plain, &stepped);
        same_run(&plain, &stepped);
        int prefills = 0, by_phase = i % 3 != 0;
        for (int k = 0; k < plain.n_rec; k++)
            prefills += plain.rec[k].kind == STEP_PREFILL;
        /* each turn's beginning, each step, and of a cycle four phases */
        assert_int_equal(stepped.n_pause,
                         2 + plain.n_rec + by_phase * 4 * (plain.n_rec - prefills));
        assert_int_equal(plain.n_pause, 0);
        recorded_free(&plain);
        recorded_free(&stepped);
    }
}

/* After draft the tree is there, after verify also its nodes' fates, and after accept the
 * tokens. */
static void known_after_phases(double temperature)
{
    struct engine_opts o = opts_of(16, 2, temperature);
    struct recorded plain = {0}, r = {0};
    run_twice(&o, RUN_PHASE, &plain, &r);
    int trees = 0;
    for (int i = 0; i < r.n_pause; i++) {
        enum step_phase p = r.pause[i].phase;
        bool before = p == PHASE_DRAFT || p == PHASE_VERIFY;
        if (before)
            assert_int_equal(r.pause[i].n_token, 0);
        if (p == PHASE_DRAFT)
            assert_int_equal(r.pause[i].accepted, -1);
        if (p == PHASE_VERIFY) { /* what accept then finds */
            assert_true(r.pause[i].accepted >= 0);
            assert_int_equal(r.pause[i].accepted, r.pause[i + 1].accepted);
            assert_memory_equal(&r.pause[i].tree, &r.pause[i + 1].tree, sizeof r.pause[i].tree);
        }
        trees += before && r.pause[i].nodes > 1;
        if (p == PHASE_ACCEPT || p == PHASE_COMMIT)
            assert_true(r.pause[i].n_token > 0);
    }
    assert_true(trees > 4);
    recorded_free(&plain);
    recorded_free(&r);
}

static void test_a_phase_shows_what_is_known(void **state)
{
    (void)state;
    for (int sampled = 0; sampled < 2; sampled++)
        known_after_phases(sampled ? 0.9 : 0);
}

/* ---- conditions ------------------------------------------------------------------------------ */

static bool continue_on(struct backend *g, const struct debug_view *v, int i)
{
    (void)v, (void)i;
    struct err e = {0};
    must(g->debug->run(g, RUN_ON, 1, NULL, &e), &e);
    return true;
}

/* The steps that a condition must hold the turn at, worked out from the records. */
static bool few_accepted(const struct step_rec *r) { return r->drafted > 0 && r->accepted < 3; }
static bool wraps(const struct step_rec *r)
{
    for (int p = r->pos0; p < r->pos0 + (r->kind == STEP_PREFILL ? r->rows : step_emits(r)); p++)
        if (p % 16 == 0)
            return true;
    return false;
}
static bool is_prompt(const struct step_rec *r) { return r->kind == STEP_PREFILL; }
static bool many_draws(const struct step_rec *r) { return r->accepted >= 2 && r->pos0 > 30; }

static void test_conditions_hold_the_turn_at_their_step(void **state)
{
    (void)state;
    static const struct {
        const char *condition;
        bool (*of)(const struct step_rec *r);
    } c[] = {{"drafted>0 && accept<3", few_accepted},
             {"accept<3", few_accepted}, /* unknown where nothing was drafted */
             {"!(accepted>=3)", few_accepted},
             {"page_wrap", wraps},
             {"prefill", is_prompt},
             {"accepted>=2 and pos>30 and fault==0 and rows>0", many_draws}};
    struct engine_opts o = opts_of(16, 2, 0.9);
    struct err e = {0};
    for (size_t i = 0; i < sizeof c / sizeof *c; i += (size_t)one_in(3)) {
        struct recorded r = {0};
        struct debug_view v;
        struct backend *g = serve_open(&o);
        begin_session(g);
        assert_int_equal(g->debug->add(g, c[i].condition, false, &e), 1);
        converse(g, question, &r, continue_on);
        int at = 0;
        for (int k = 0; k < r.n_rec; k++)
            if (c[i].of(&r.rec[k])) {
                assert_true(at < r.n_pause);
                assert_int_equal(r.pause[at++].step, k + 1);
            }
        assert_int_equal(at, r.n_pause);
        assert_true(at > 0);
        g->debug->view(g, &v);
        assert_int_equal(v.n_break, 1);
        assert_int_equal(v.at[0].hits, at);
        backend_close(g);
        recorded_free(&r);
    }
}

/* Texts of tokens, single nodes, the margin: against the same facts from the events of a first
 * run. */
static void test_conditions_on_tokens_nodes_and_margin(void **state)
{
    (void)state;
    struct engine_opts o = opts_of(16, 2, 0);
    struct err e = {0};
    struct recorded plain = {0};
    struct backend *g = serve_open(&o);
    begin_session(g);
    converse(g, question, &plain, continue_on);
    int32_t wanted = plain.tokens.v[plain.tokens.n - 3];
    size_t n;
    const char *text = backend_token(g, wanted, &n);
    char condition[100];
    snprintf(condition, sizeof condition, "token==\"%.*s\"", (int)n, text);
    backend_close(g);
    int at = 0; /* the step that emitted the first such token */
    for (int k = 0, i = 0; i < plain.tokens.n && plain.tokens.v[i] != wanted; k++) {
        int n_new = step_emits(&plain.rec[k]);
        bool here = false;
        for (int j = 0; j < n_new; j++, i++)
            here |= plain.tokens.v[i] == wanted;
        at = k + 1;
        if (here)
            break;
    }
    const char *const other[] = {condition, "node.depth>=3 && node.accepted && node.q>0",
                                 "margin>=0 && margin<100"};
    for (int i = 0; i < 3; i++) {
        struct recorded r = {0};
        g = serve_open(&o);
        begin_session(g);
        must(g->debug->run(g, RUN_ON, 1, other[i], &e), &e); /* one pause, as /until */
        converse(g, question, &r, continue_on);
        same_run(&plain, &r);
        assert_int_equal(r.n_pause, 1);
        if (i == 0)
            assert_int_equal(r.pause[0].step, at);
        if (i == 1)
            assert_true(plain.rec[r.pause[0].step - 1].accepted >= 3);
        if (i == 2) /* the first step that chooses a token */
            assert_true(plain.rec[r.pause[0].step - 1].bonus >= 0 &&
                        (r.pause[0].step == 1 || plain.rec[r.pause[0].step - 2].bonus < 0));
        backend_close(g);
        recorded_free(&r);
    }
    recorded_free(&plain);
}

static void test_a_watch_sees_every_change(void **state)
{
    (void)state;
    struct engine_opts o = opts_of(16, 1, 0);
    struct err e = {0};
    struct recorded r = {0};
    struct backend *g = serve_open(&o);
    begin_session(g);
    assert_int_equal(g->debug->add(g, "accepted", true, &e), 1);
    converse(g, question, &r, continue_on);
    int at = 0;
    for (int k = 1; k < r.n_rec; k++)
        if (r.rec[k - 1].drafted && /* else it was unknown */
            (!r.rec[k].drafted || r.rec[k].accepted != r.rec[k - 1].accepted)) {
            assert_true(at < r.n_pause);
            char change[80], is[16] = "unknown";
            if (r.rec[k].drafted)
                snprintf(is, sizeof is, "%d", r.rec[k].accepted);
            snprintf(change, sizeof change, "watch 1: accepted was %d, is %s",
                     r.rec[k - 1].accepted, is);
            assert_int_equal(r.pause[at].step, k + 1);
            assert_non_null(strstr(r.pause[at++].why, change));
        }
    assert_int_equal(at, r.n_pause);
    assert_true(at > 0);
    assert_false(g->debug->remove(g, 2, &e));
    assert_true(g->debug->remove(g, 1, &e));
    int before = r.n_pause;
    converse(g, question, &r, continue_on);
    assert_int_equal(r.n_pause, before);
    assert_int_equal(g->debug->add(g, "accept==", false, &e), 0);
    assert_false(g->debug->run(g, RUN_ON, 1, "what", &e));
    assert_int_equal(g->debug->add(g, "5", BREAK_IF, &e), 0);
    assert_non_null(strstr(e.msg, "the same for each step; expected a fact of a step, as in turn==5"));
    assert_int_equal(g->debug->add(g, "2.5", BREAK_WATCH, &e), 0);
    assert_false(g->debug->run(g, RUN_ON, 1, "!0 && \"a\"==\"b\"", &e));
    for (int i = 0; i < MAX_BREAKS; i++)
        assert_int_equal(g->debug->add(g, "turn==99", false, &e), 2 + i);
    assert_int_equal(g->debug->add(g, "turn==99", false, &e), 0);
    backend_close(g);
    recorded_free(&r);
}

/* ---- going on -------------------------------------------------------------------------------- */

static enum run_until script_until;

static bool scripted(struct backend *g, const struct debug_view *v, int i)
{
    (void)v;
    struct err e = {0};
    must(g->debug->run(g, i == 2 ? script_until : RUN_STEP, i == 0 ? 3 : 1, NULL, &e), &e);
    return true;
}

static void test_finish_next_and_counts(void **state)
{
    (void)state;
    for (int next = 0; next < 2; next++) {
        struct engine_opts o = opts_of(16, 1, 0);
        struct err e = {0};
        struct recorded r = {0};
        struct backend *g = serve_open(&o);
        begin_session(g);
        script_until = next ? RUN_TURN : RUN_FINISH;
        must(g->debug->add(g, "rows>0", false, &e) == 1, &e); /* holds at each step */
        must(g->debug->remove(g, 0, &e), &e);
        must(g->debug->run(g, RUN_STEP, 1, NULL, &e), &e);
        converse(g, question, &r, scripted);
        assert_int_equal(r.n_pause, 3); /* begins, after 3 steps, after one more; then to the end */
        assert_int_equal(r.pause[1].step, 3);
        assert_int_equal(r.pause[2].step, 4);
        converse(g, "Again.", &r, continue_on);
        assert_int_equal(r.n_pause, next ? 4 : 3);
        if (next)
            assert_true(r.pause[3].turn == 2 && r.pause[3].step == 0);
        backend_close(g);
        recorded_free(&r);
    }
}

static int cancel_at;

static bool cancelling(struct backend *g, const struct debug_view *v, int i)
{
    struct err e = {0};
    if (i == cancel_at) {
        struct page_table t;
        struct check_report report;
        struct pool_view pool[N_POOLS];
        g->pages->table(g, &t); /* a paused engine can be looked at */
        page_table_free(&t);
        g->pools->ledger(g, pool);
        if (v->phase == WHOLE_STEP || v->phase == PHASE_COMMIT)
            must(g->check->sweep(g, &report, &e), &e);
        backend_cancel(g);
        must(g->debug->run(g, RUN_ON, 1, NULL, &e), &e); /* for the next turn */
        return false;
    }
    return go_on(g, v, i);
}

static void test_a_cancel_between_phases_leaves_the_conversation_sound(void **state)
{
    (void)state;
    struct engine_opts o = opts_of(16, 2, 0);
    o.settings.check = CHECK_STRICT;
    struct err e = {0};
    for (cancel_at = 0; cancel_at < 14; cancel_at += one_in(4)) {
        struct recorded r = {0}, after = {0};
        struct check_report report;
        struct backend *g = serve_open(&o);
        begin_session(g);
        must(g->debug->run(g, RUN_PHASE, 1, NULL, &e), &e);
        converse(g, question, &r, cancelling);
        assert_int_equal(r.reason, STOP_CANCEL);
        assert_int_equal(r.n_pause, cancel_at + 1);
        must(g->check->sweep(g, &report, &e), &e);
        converse(g, "Count to five.", &after, continue_on);
        assert_int_equal(after.faults.n, 0);
        assert_true(after.reason == STOP_END || after.reason == STOP_MAX);
        backend_close(g);
        recorded_free(&r);
        recorded_free(&after);
    }
}

/* Closing does not wait for somebody to let the turn run on. */
static bool leave(struct backend *g, const struct debug_view *v, int i)
{
    (void)g, (void)v, (void)i;
    return false;
}

static void test_closing_ends_a_paused_turn(void **state)
{
    (void)state;
    struct engine_opts o = opts_of(16, 1, 0);
    struct err e = {0};
    struct event ev;
    struct recorded r = {0};
    struct backend *g = serve_open(&o);
    begin_session(g);
    must(g->debug->run(g, RUN_PHASE, 1, NULL, &e), &e);
    submit(g, RQ_SAY, question, 0);
    while (r.n_pause == 0 && backend_wait(g, &ev, 60000)) {
        take(g, &ev, &r, leave);
        event_free(&ev);
    }
    assert_int_equal(r.n_pause, 1);
    backend_close(g);
    recorded_free(&r);
}

static void test_a_fault_holds_the_turn(void **state)
{
    (void)state;
    struct engine_opts o = opts_of(16, 2, 0);
    struct err e = {0};
    struct recorded r = {0};
    struct backend *g = serve_open(&o);
    begin_session(g);
    submit(g, RQ_SET, "bug.26512=on", 0);
    must(g->debug->add(g, "fault", false, &e) == 1, &e);
    converse(g, question, &r, continue_on);
    assert_int_equal(r.reason, STOP_FAULT);
    assert_int_equal(r.n_pause, 1);
    assert_int_equal(r.pause[0].step, r.n_rec + 1);
    assert_non_null(strstr(r.pause[0].why, "a rule was violated in step 1."));
    backend_close(g);
    recorded_free(&r);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_phases_yield_the_bits_of_running),
        cmocka_unit_test(test_a_phase_shows_what_is_known),
        cmocka_unit_test(test_conditions_hold_the_turn_at_their_step),
        cmocka_unit_test(test_conditions_on_tokens_nodes_and_margin),
        cmocka_unit_test(test_a_watch_sees_every_change),
        cmocka_unit_test(test_finish_next_and_counts),
        cmocka_unit_test(test_a_cancel_between_phases_leaves_the_conversation_sound),
        cmocka_unit_test(test_closing_ends_a_paused_turn),
        cmocka_unit_test(test_a_fault_holds_the_turn),
    };
    device = argc > 1 ? argv[1] : device;
    precision = argc > 2 ? argv[2] : precision;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
