/* test_probe_serve.c - steps of a session run with taps: past steps computed again have the
 * recorded logits, an armed step runs as without taps, and neither changes the session. Also the
 * contexts of turns, kept as differences. */
#include "tests/chance.h"
#include "tests/serve_kit.h"

/* The steps that a session brought, and its probes. */
struct seen {
    struct buf steps; /* a line each */
    struct step_rec rec[256];
    int turn[256], step[256], n;
    struct probe *probe; /* the latest */
    struct buf why;      /* or why there is none */
};

static void see(struct seen *s, struct event *ev)
{
    const struct step_rec *r = &ev->rec;
    if (ev->kind == EV_STEP) {
        buf_printf(&s->steps, "%d.%d: %d rows at %d, %d accepted, bonus %d, pages %016llx, tree "
                   "%016llx, logits %016llx\n", ev->turn, ev->step, r->rows, r->pos0, r->accepted,
                   r->bonus, (unsigned long long)r->page_digest,
                   (unsigned long long)r->draft_digest, (unsigned long long)r->logit_digest);
        assert_true(s->n < 256);
        s->rec[s->n] = *r;
        s->turn[s->n] = ev->turn;
        s->step[s->n++] = ev->step;
    } else if (ev->kind == EV_PROBE) {
        probe_free(s->probe);
        s->probe = ev->probe;
        ev->probe = NULL;
        buf_clear(&s->why);
        buf_add(&s->why, ev->text.p ? ev->text.p : "", ev->text.n);
    } else if (ev->kind == EV_FAULT) {
        fail_msg("%s", ev->text.p);
    }
}

static void settle_seen(struct backend *g, struct seen *s)
{
    struct event ev;
    while (serve_event(g, &ev)) {
        see(s, &ev);
        event_free(&ev);
    }
}

static void free_seen(struct seen *s)
{
    probe_free(s->probe);
    buf_free(&s->steps);
    buf_free(&s->why);
}

static void send(struct backend *g, struct seen *s, enum request_kind kind, const char *text)
{
    submit(g, kind, text, 0);
    settle_seen(g, s);
}

static struct probe *probe_of(struct backend *g, struct seen *s, int turn, int step)
{
    struct err e = {0};
    struct probe_ask ask = {.turn = turn, .step = step, .row = -1, .layer = -1};
    must(g->probe->ask(g, &ask, &e), &e);
    settle_seen(g, s);
    if (!s->probe)
        fail_msg("step %d.%d: %s", turn, step, s->why.p);
    assert_true(s->probe->turn == turn && s->probe->step == step && s->probe->again);
    return s->probe;
}

/* Every step so far, computed again, has its recorded logits. Returns how many cells were
 * shared. */
static int probe_all(struct backend *g, struct seen *s)
{
    int shared = 0;
    for (int i = 0; i < s->n; i++) {
        const struct probe *p = probe_of(g, s, s->turn[i], s->step[i]);
        assert_int_equal(p->n_rows, s->rec[i].rows);
        assert_int_equal(p->pos0, s->rec[i].pos0);
        assert_true(p->has_digest == (step_emits(&s->rec[i]) > 0));
        if (p->has_digest && !p->same)
            fail_msg("step %d.%d has other logits the second time", s->turn[i], s->step[i]);
        shared += p->n_shared;
    }
    return shared;
}

static const char *const said[] = {"Tell me a story about a fox.", "What is a page table?",
                                   "My name is Ada.", "What is my name?"};

/* A session with turns, an undone one, one generated again, and sampling. */
static void talk(struct backend *g, struct seen *s, bool probed)
{
    int shared = 0;
    submit(g, RQ_NEW, NULL, 0);
    send(g, s, RQ_SET, "check=strict");
    send(g, s, RQ_SAY, said[0]);
    shared += probed ? probe_all(g, s) : 0;
    send(g, s, RQ_SAY, said[1]);
    send(g, s, RQ_UNDO, NULL);
    send(g, s, RQ_SET, "draft.topk=4");
    send(g, s, RQ_SET, "draft.nodes=16");
    send(g, s, RQ_SAY, said[2]);
    shared += probed ? probe_all(g, s) : 0;
    send(g, s, RQ_SET, "temperature=0.8");
    send(g, s, RQ_REGEN, NULL);
    send(g, s, RQ_SET, "spec=off");
    send(g, s, RQ_SAY, said[3]);
    shared += probed ? probe_all(g, s) : 0;
    send(g, s, RQ_SAY, said[0]);
    if (probed)
        assert_true(shared > 1000); /* or nothing of the session's cells was used */
}

static void test_past_steps_come_out_as_they_were(void **state)
{
    (void)state;
    static const int page_size[] = {1, 16, 64};
    for (int i = 0; i < 3; i++) {
        struct seen plain = {0}, probed = {0};
        struct err e = {0};
        struct check_report r;
        struct engine_opts o = serve_opts();
        o.page_size = page_size[i];
        o.context = 700;
        o.settings.chunk = i ? 64 : 23;
        struct backend *g = serve_open(&o);
        talk(g, &plain, false);
        backend_close(g);
        g = serve_open(&o);
        talk(g, &probed, true);
        assert_string_equal(plain.steps.p, probed.steps.p); /* pages, trees and logits */
        must(g->check->sweep(g, &r, &e), &e);
        backend_close(g);
        free_seen(&plain);
        free_seen(&probed);
    }
}

/* ---- while a turn is paused ------------------------------------------------------------------ */

/* Handles events until the turn is paused, a probe is answered, or the turn has ended. */
static enum event_kind until_something(struct backend *g, struct seen *s)
{
    for (;;) {
        struct event ev;
        assert_true(backend_wait(g, &ev, 60000));
        enum event_kind kind = ev.kind;
        see(s, &ev);
        event_free(&ev);
        if (kind == EV_PAUSE || kind == EV_PROBE || kind == EV_TURN_END)
            return kind;
    }
}

/* The marks of the paused step's tree agree with the target's best tokens (greedy). */
static void assert_judged(const struct debug_view *v, const struct probe *p)
{
    assert_non_null(p);
    assert_true(p->turn == v->turn && p->step == v->step && p->n_rows == v->rec.rows);
    for (int i = 1; i < v->tree.n; i++) {
        int up = v->tree.parent[i];
        bool best = p->best[up][0] == v->tree.token[i], on = v->tree.fate[up] == FATE_ACCEPTED ||
                    up == 0;
        assert_true(v->tree.p[i] >= 0 && v->tree.p[i] <= 1);
        assert_int_equal(v->tree.fate[i], !on ? FATE_CUT : best ? FATE_ACCEPTED : FATE_REJECTED);
    }
}

/* At every phase of a turn the newest step and the first one are computed again, and from verify on
 * the step that is paused in its middle, too: that changes no bit and no page of the turn. */
static void test_probes_between_phases_leave_no_trace(void **state)
{
    (void)state;
    struct seen plain = {0}, probed = {0};
    struct err e = {0};
    struct engine_opts o = serve_opts();
    o.settings.topk = 4;
    o.settings.nodes = 16;
    int verified = 0, done = 0;
    for (int round = 0; round < 2; round++) {
        struct seen *s = round ? &probed : &plain;
        struct backend *g = serve_open(&o);
        submit(g, RQ_NEW, NULL, 0);
        settle_seen(g, s);
        must(g->debug->run(g, RUN_PHASE, 1, NULL, &e), &e);
        submit(g, RQ_SAY, said[0], 0);
        while (until_something(g, s) == EV_PAUSE) {
            struct debug_view v;
            g->debug->view(g, &v);
            for (int k = 0; k < 2 && round && s->n > 0; k++) {
                int i = k ? 0 : s->n - 1;
                struct probe_ask ask = {.turn = s->turn[i], .step = s->step[i], .row = -1,
                                        .layer = 2};
                must(g->probe->ask(g, &ask, &e), &e);
                assert_int_equal(until_something(g, s), EV_PROBE);
                assert_true(s->probe && s->probe->same);
                done++;
            }
            struct probe_ask ask = {.turn = v.turn, .step = v.step, .row = -1, .layer = -1};
            if (round && v.verified) {
                must(g->probe->ask(g, &ask, &e), &e);
                assert_int_equal(until_something(g, s), EV_PROBE);
                assert_judged(&v, s->probe);
                verified++;
            } else if (round && v.phase) {
                assert_false(g->probe->ask(g, &ask, &e));
            }
            must(g->debug->run(g, RUN_PHASE, 1, NULL, &e), &e);
        }
        settle_seen(g, s);
        backend_close(g);
    }
    assert_string_equal(plain.steps.p, probed.steps.p);
    assert_true(verified > 15 && done > verified);
    free_seen(&plain);
    free_seen(&probed);
}

/* ---- the armed step -------------------------------------------------------------------------- */

static void arm(struct backend *g, int turn, int step)
{
    struct err e = {0};
    struct probe_ask ask = {.turn = turn, .step = step, .row = -1, .layer = 1, .armed = true};
    must(g->probe->ask(g, &ask, &e), &e);
}

static void assert_same_taps(const struct probe *a, const struct probe *b)
{
    assert_true(a->n_rows == b->n_rows && a->row0 == b->row0 && a->n_layer == b->n_layer);
    for (int l = 0; l <= a->n_layer; l++)
        for (int i = 0; i < N_PROBE_POINTS; i++) {
            size_t n = (size_t)(a->n_row * a->layer[l].width[i]) * sizeof(float);
            assert_int_equal(a->layer[l].width[i], b->layer[l].width[i]);
            if (n)
                assert_memory_equal(a->layer[l].tap[i], b->layer[l].tap[i], n);
        }
    assert_memory_equal(a->best, b->best, sizeof a->best);
}

/* Keys and weights that were listed while the step ran, and what the second run lists. */
static void assert_same_keys(const struct probe *a, const struct probe *b)
{
    size_t n = (size_t)a->n_key * sizeof(int32_t);
    assert_true(a->n_key == b->n_key && a->n_key > 0 && a->share_row == b->share_row);
    assert_memory_equal(a->key_pos, b->key_pos, n);
    assert_memory_equal(a->key_token, b->key_token, n);
    for (int i = 0; i < a->n_key; i++)
        assert_true(a->key_token[i] >= 0);
    assert_memory_equal(a->key_p, b->key_p, (size_t)a->layer[a->key_layer].n_head * n);
    assert_int_equal(a->key_token[a->n_key - 1], a->token[a->share_row - a->row0]);
}

static void test_the_armed_step_runs_as_ever_and_equals_its_second_run(void **state)
{
    (void)state;
    struct seen plain = {0}, armed = {0};
    struct engine_opts o = serve_opts();
    struct backend *g = serve_open(&o);
    submit(g, RQ_NEW, NULL, 0);
    send(g, &plain, RQ_SAY, said[0]);
    backend_close(g);
    for (int step = 1; step <= plain.n; step += 2) {
        g = serve_open(&o);
        submit(g, RQ_NEW, NULL, 0);
        arm(g, 1, step);
        buf_clear(&armed.steps);
        armed.n = 0;
        send(g, &armed, RQ_SAY, said[0]);
        assert_string_equal(plain.steps.p, armed.steps.p);
        struct probe *first = armed.probe;
        armed.probe = NULL;
        assert_non_null(first);
        assert_true(first->turn == 1 && first->step == step && !first->again);
        assert_int_equal(first->key_layer, 1);
        assert_true(first->rec.logit_digest == plain.rec[step - 1].logit_digest);
        assert_same_taps(first, probe_of(g, &armed, 1, step));
        struct err e = {0};
        struct probe_ask ask = {.turn = 1, .step = step, .row = first->share_row, .layer = 1};
        must(g->probe->ask(g, &ask, &e), &e);
        settle_seen(g, &armed);
        assert_non_null(armed.probe);
        assert_same_keys(first, armed.probe);
        probe_free(first);
        backend_close(g);
    }
    free_seen(&plain);
    free_seen(&armed);
}

static void test_an_armed_step_that_never_comes(void **state)
{
    (void)state;
    struct seen s = {0};
    struct engine_opts o = serve_opts();
    struct backend *g = serve_open(&o);
    submit(g, RQ_NEW, NULL, 0);
    arm(g, 1, 200);
    send(g, &s, RQ_SAY, said[0]);
    assert_null(s.probe);
    assert_non_null(strstr(s.why.p, "turn 1 ended after step"));
    buf_clear(&s.why);
    arm(g, 2, 1);
    arm(g, 0, 0);
    send(g, &s, RQ_SAY, said[1]);
    assert_null(s.probe);
    assert_true(s.why.n == 0);
    backend_close(g);
    free_seen(&s);
}

static void test_what_cannot_be_probed_is_refused(void **state)
{
    (void)state;
    struct seen s = {0};
    struct err e = {0};
    struct engine_opts o = serve_opts();
    struct backend *g = serve_open(&o);
    struct probe_ask ask = {.turn = 1, .step = 1, .row = -1, .layer = -1};
    submit(g, RQ_NEW, NULL, 0);
    settle_seen(g, &s);
    assert_false(g->probe->ask(g, &ask, &e));
    assert_string_equal(e.msg, "there is no step yet: send a message first");
    send(g, &s, RQ_SAY, said[0]);
    ask.step = 500;
    assert_false(g->probe->ask(g, &ask, &e));
    assert_non_null(strstr(e.msg, "step 1.500 is not in memory: the steps 1.1 to 1."));
    ask.step = 2;
    ask.row = 64;
    must(g->probe->ask(g, &ask, &e), &e);
    settle_seen(g, &s);
    assert_null(s.probe);
    assert_non_null(strstr(s.why.p, "step 1.2 has no row 64: its rows are 0 to "));
    backend_close(g);
    free_seen(&s);
}

/* Steps that a log tells wrong are refused, whatever is wrong with them; a right one is
 * computed. */
static void test_steps_from_a_log_are_checked(void **state)
{
    (void)state;
    struct seen s = {0};
    struct err e = {0};
    struct engine_opts o = serve_opts();
    struct backend *g = serve_open(&o);
    submit(g, RQ_NEW, NULL, 0);
    settle_seen(g, &s);
    for (int wrong = 0; wrong < 10; wrong++) {
        struct probe_past *p = xcalloc(1, sizeof *p);
        p->rec = (struct step_rec){.kind = STEP_SPEC, .pos0 = 3, .rows = 3, .drafted = 2,
                                   .accepted = 1, .bonus = 9};
        for (int i = 0; i < 4; i++)
            ids_add(&p->context, 20 + i);
        p->n_prompt = 2;
        tree_init(&p->tree, 23);
        tree_add(&p->tree, 0, 30, 0.5f, 0);
        tree_add(&p->tree, 1, 31, 0.5f, 0);
        switch (wrong) {
        case 1: p->rec.pos0 = -1; break;
        case 2: p->rec.pos0 = 4; break;
        case 3: p->rec.rows = 0; break;
        case 4: p->rec.rows = 65; break;
        case 5: p->context.v[1] = 1 << 20; break;
        case 6: p->context.v[0] = -1; break;
        case 7: p->tree.token[2] = 1 << 20; break;
        case 8: p->tree.token[0] = 24; break;
        case 9: p->rec.accepted = 64; break;
        }
        struct probe_ask ask = {.turn = 7, .step = 7, .row = -1, .layer = 1, .past = p};
        must(g->probe->ask(g, &ask, &e), &e);
        settle_seen(g, &s);
        assert_true((s.probe != NULL) == (wrong == 0));
        if (wrong)
            assert_non_null(strstr(s.why.p, "step 7.7 cannot be computed again"));
        else
            assert_true(s.probe->has_digest && !s.probe->same); /* the digest is made up */
    }
    backend_close(g);
    free_seen(&s);
}

/* ---- contexts -------------------------------------------------------------------------------- */

enum { TURNS = 60 };

/* Random turns against whole copies. */
static void test_contexts_are_the_tokens_that_turns_held(void **state)
{
    (void)state;
    for (int round = 0; round < 200; round++) {
        struct contexts c = {0};
        struct ids want[TURNS + 1] = {{0}};
        int n_prompt[TURNS + 1] = {0}, last = 0;
        for (int op = 0; op < TURNS; op++) {
            if (op % 13 == 12) {
                int turn = below(last + 1);
                contexts_cut(&c, turn);
                for (; last > turn; last--)
                    want[last].n = 0;
            }
            int turn = ++last, keep = turn > 1 ? below(want[turn - 1].n + 1) : 0;
            struct ids *w = &want[turn];
            w->n = 0;
            ids_cat(w, want[turn - 1].v, keep);
            for (int i = below(9) + 1; i > 0; i--)
                ids_add(w, below(3));
            contexts_begin(&c, turn, w->v, n_prompt[turn] = w->n);
            for (int i = below(6); i > 0; i--) { /* some of them after a step back */
                int at = w->n - (below(4) ? 0 : below(w->n - n_prompt[turn] + 1)), tok[3];
                w->n = at;
                for (int k = 0; k < 3; k++)
                    ids_add(w, tok[k] = below(3));
                contexts_add(&c, at, tok, 3);
            }
        }
        for (int t = 1; t <= last; t++) {
            struct ids got = {0};
            int prompt;
            assert_true(contexts_of(&c, t, &got, &prompt));
            assert_true(got.n == want[t].n && prompt == n_prompt[t]);
            assert_memory_equal(got.v, want[t].v, (size_t)got.n * sizeof *got.v);
            ids_free(&got);
        }
        struct ids none = {0};
        int prompt;
        assert_false(contexts_of(&c, last + 1, &none, &prompt));
        contexts_free(&c);
        for (int t = 0; t <= TURNS; t++)
            ids_free(&want[t]);
    }
}

/* Turns that have nothing in common: the oldest leave, the others stay whole. */
static void test_contexts_are_bounded(void **state)
{
    (void)state;
    enum { LONG = 100000 };
    struct contexts c = {0};
    struct ids got = {0};
    int prompt;
    int32_t *tok = xmalloc(LONG * sizeof *tok);
    for (int t = 1; t <= 50; t++) {
        for (int i = 0; i < LONG; i++)
            tok[i] = i < LONG / 2 ? t / 2 : t; /* each two turns share a half */
        contexts_begin(&c, t, tok, LONG);
        int64_t n = 0;
        for (int i = 0; i < c.n; i++)
            n += c.v[i].rest.n;
        assert_true(n == c.n_id && (n <= CONTEXT_IDS || c.n == 1));
    }
    assert_true(c.v[0].turn > 1 && c.n > 20);
    for (int t = c.v[0].turn; t <= 50; t++) {
        got.n = 0;
        assert_true(contexts_of(&c, t, &got, &prompt));
        assert_true(got.n == LONG && got.v[0] == t / 2 && got.v[LONG - 1] == t);
    }
    assert_false(contexts_of(&c, 1, &got, &prompt));
    ids_free(&got);
    free(tok);
    contexts_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_past_steps_come_out_as_they_were),
        cmocka_unit_test(test_probes_between_phases_leave_no_trace),
        cmocka_unit_test(test_the_armed_step_runs_as_ever_and_equals_its_second_run),
        cmocka_unit_test(test_an_armed_step_that_never_comes),
        cmocka_unit_test(test_what_cannot_be_probed_is_refused),
        cmocka_unit_test(test_steps_from_a_log_are_checked),
        cmocka_unit_test(test_contexts_are_the_tokens_that_turns_held),
        cmocka_unit_test(test_contexts_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
