/* A recording shows at every step what the live engine showed there: pages, trees, tokens and their
 * facts, counters; its debugger stops where the live one's conditions held. */
#include "tests/chance.h"
#include "tests/scratch.h"
#include "tests/serve_kit.h"

#include <unistd.h>

#include "history/history.h"
#include "repl/recorded/recorded.h"

/* ---- a live session, looked at after every step ---------------------------------------------- */

enum { MAX_SEEN = 2000 };

struct seen {
    struct page_table table;
    struct step_view step;
    struct chat_view chat;
    struct pos_view pos;
};

struct live {
    struct backend *g;
    struct seen seen[MAX_SEEN];
    int n;
    struct buf text; /* of the events: what was said */
};

static void look(struct live *w)
{
    struct err e;
    assert_true(w->n < MAX_SEEN);
    struct seen *s = &w->seen[w->n++];
    w->g->pages->table(w->g, &s->table);
    assert_true(w->g->steps->of_step(w->g, s->table.turn, s->table.step, &s->step));
    for (int p = 0; p < N_POOLS; p++) {
        const struct pool_view *v = &s->table.pool[p];
        assert_int_equal(s->step.held.n[p], v->exists ? v->used + v->protected_ + v->evictable
                                                      : -1);
    }
    backend_chat(w->g, &s->chat);
    must(w->g->pages->position(w->g, below(s->table.length), &s->pos, &e), &e);
}

/* What a face shows of an event, but for pieces of text. */
static void describe(const struct event *ev, struct buf *out)
{
    switch (ev->kind) {
    case EV_TURN_BEGIN:
        buf_printf(out, "turn %d %s prompt %d reused %d regen %d\n", ev->turn, ev->text.p,
                   ev->n_tokens, ev->n_reused, ev->regen);
        buf_printf(out, "%016llx\n", (unsigned long long)hash64(
                       ev->tokens.v, (size_t)ev->tokens.n * sizeof *ev->tokens.v, 1));
        break;
    case EV_STEP:
        buf_printf(out, "step %d.%d %s rows %d drafted %d accepted %d tokens %d nodes %d pages %d "
                        "len %d\n",
                   ev->turn, ev->step, step_kind_name(ev->rec.kind), ev->rec.rows, ev->rec.drafted,
                   ev->rec.accepted, ev->tokens.n, ev->tree ? ev->tree->n : 0, ev->n_pages,
                   ev->lengths.length);
        break;
    case EV_TURN_END:
        buf_printf(out, "end %d %s %d: %s\n", ev->turn, stop_name(ev->reason), ev->n_tokens,
                   ev->text.p);
        break;
    case EV_OP:
        if (ev->op == OP_UNDO)
            buf_printf(out, "undo %d\n", ev->turn);
        break;
    default: break;
    }
}

static void run_on(struct live *w)
{
    struct event ev;
    struct err e;
    while (serve_event(w->g, &ev)) {
        describe(&ev, &w->text);
        if (ev.kind == EV_PAUSE && ev.step)
            look(w);
        if (ev.kind == EV_PAUSE)
            must(w->g->debug->run(w->g, RUN_STEP, 1, NULL, &e), &e);
        event_free(&ev);
    }
}

static void send(struct live *w, enum request_kind kind, const char *text)
{
    submit(w->g, kind, text, 2);
    run_on(w);
}

static const char id[SESSION_ID] = "01ARZ3NDEKTSV4RRFFQ69G5FAV",
    child[SESSION_ID] = "01ARZ3NDEKTSV4RRFFQ69G5FAW";

static void begin(struct live *w, enum request_kind kind, const char *session)
{
    struct err e;
    struct request rq = {.kind = kind, .next_turn = 1};
    memcpy(rq.session, session, SESSION_ID);
    must(backend_submit(w->g, &rq, &e), &e);
    run_on(w);
}

/* The first turn again, then a fork with only that turn. */
static void fork_first(struct live *w)
{
    struct err e;
    struct request rq = {.kind = RQ_FORK, .next_turn = w->seen[w->n - 1].table.turn + 1};
    memcpy(rq.session, child, SESSION_ID);
    must(backend_submit(w->g, &rq, &e), &e);
    run_on(w);
}

static const char *text_of(void *arg, int32_t token, size_t *n)
{
    return backend_token(arg, token, n);
}

static void converse(struct live *w, struct history *h, bool forked)
{
    struct err e;
    struct history_about about = {.version = "0", .device = "cpu", .flags = "",
                                  .model_dir = NESTLING,
                                  .model_sha = "a", .draft_dir = "", .draft_sha = "",
                                  .tokenizer_sha = "t",
                                  .config = "page_size=4\ncontext=512\n"};
    struct history_texts texts = {backend_info(w->g)->vocab, text_of, w->g};
    history_describe(h, &about, &texts);
    must(w->g->debug->run(w->g, RUN_STEP, 1, NULL, &e), &e);
    begin(w, RQ_NEW, id);
    send(w, RQ_SAY, "count to nine");
    send(w, RQ_SAY, "Tell me a story about Clara the owl, and what the owl saw in the night.");
    send(w, RQ_REGEN, NULL);
    send(w, RQ_UNDO, NULL);
    send(w, RQ_SEVERAL, "What is an owl?");
    send(w, RQ_SET, "spec=off");
    send(w, RQ_SAY, "Hello!");
    send(w, RQ_SET, "spec=on");
    if (forked)
        fork_first(w);
    send(w, RQ_SAY, "Tell me about the sky.");
}

/* ---- the recording of it --------------------------------------------------------------------- */

static void same_float(float a, float b)
{
    assert_true(isnan(a) ? isnan(b) : !(a < b) && !(a > b));
}

static void same_step(const struct step_view *a, const struct step_view *b)
{
    assert_int_equal(a->tree.n, b->tree.n);
    assert_int_equal(a->n_token, b->n_token);
    assert_int_equal(a->rec.logit_digest, b->rec.logit_digest);
    assert_int_equal(a->rec.accepted, b->rec.accepted);
    same_float(a->rec.margin, b->rec.margin);
    for (int i = 0; i < a->tree.n; i++) {
        assert_int_equal(a->tree.token[i], b->tree.token[i]);
        assert_int_equal(a->tree.parent[i], b->tree.parent[i]);
        assert_int_equal(a->tree.fate[i], b->tree.fate[i]);
        same_float(a->tree.q[i], b->tree.q[i]);
        same_float(a->tree.p[i], b->tree.p[i]);
        same_float(a->tree.u[i], b->tree.u[i]);
    }
    for (int i = 0; i < a->n_token; i++) {
        assert_int_equal(a->token[i], b->token[i]);
        assert_int_equal(a->fact[i].rival, b->fact[i].rival);
        same_float(a->fact[i].logp, b->fact[i].logp);
        same_float(a->fact[i].rival_logp, b->fact[i].rival_logp);
    }
}

static void same_chat(const struct chat_view *a, const struct chat_view *b)
{
    assert_int_equal(a->turn, b->turn);
    assert_int_equal(a->step, b->step);
    assert_int_equal(a->length, b->length);
    assert_int_equal(a->committed, b->committed);
    assert_int_equal(a->generated, b->generated);
    assert_int_equal(a->prompt_tokens, b->prompt_tokens);
    assert_int_equal(a->reused_tokens, b->reused_tokens);
    assert_memory_equal(&a->drafts, &b->drafts, sizeof a->drafts);
    assert_int_equal(a->settings.spec, b->settings.spec);
    assert_int_equal(a->settings.max_tokens, b->settings.max_tokens);
    assert_true(fabs(a->turn_mal - b->turn_mal) < 1e-9);
}

static void same_at(struct backend *b, const struct seen *s)
{
    struct page_table t;
    struct step_view v;
    struct chat_view chat;
    struct pos_view pos;
    struct err e;
    int turn = s->table.turn, step = s->table.step;
    must(b->pages->table_at(b, turn, step, &t, &e), &e);
    same_tables(&s->table, &t);
    page_table_free(&t);
    assert_true(b->steps->of_step(b, turn, step, &v));
    same_step(&s->step, &v);
    assert_memory_equal(&s->step.held, &v.held, sizeof v.held);
    must(b->pages->position_at(b, turn, step, s->pos.position, &pos, &e), &e);
    assert_memory_equal(&s->pos, &pos, sizeof pos);
    must(recorded_seek(b, turn, step, &e), &e);
    b->pages->table(b, &t);
    same_tables(&s->table, &t);
    page_table_free(&t);
    backend_chat(b, &chat);
    same_chat(&s->chat, &chat);
}

/* Every step that the live debugger would have stopped at, found by the recorded one. */
static void same_stops(struct backend *b, const struct live *w)
{
    struct debug_view d;
    struct err e;
    must(recorded_seek(b, w->seen[0].table.turn, 0, &e), &e);
    int number = b->debug->add(b, "accepted==0 && drafted>0 && pool.full.free>2", false, &e);
    assert_true(number == 1);
    for (int i = 0; i < w->n; i++) {
        const struct seen *s = &w->seen[i];
        bool stops = s->step.rec.accepted == 0 && s->step.rec.drafted > 0 &&
                     s->table.pool[POOL_FULL].free > 2;
        if (!stops && i < w->n - 1)
            continue;
        must(b->debug->run(b, RUN_ON, 1, NULL, &e), &e);
        b->debug->view(b, &d);
        assert_int_equal(d.turn, s->table.turn);
        assert_int_equal(d.step, s->table.step);
        assert_true(!stops || strstr(d.why, "breakpoint 1") != NULL);
        assert_int_equal(d.n_token, s->step.n_token);
    }
    assert_false(b->debug->run(b, RUN_STEP, 1, NULL, &e));
    assert_non_null(strstr(e.msg, "ends here"));
}

static void same_texts(struct backend *b, const struct live *w, struct backend *g)
{
    for (int i = 0; i < w->n; i++)
        for (int k = 0; k < w->seen[i].step.n_token; k++) {
            size_t n, m;
            const char *x = backend_token(g, w->seen[i].step.token[k], &n);
            const char *y = backend_token(b, w->seen[i].step.token[k], &m);
            assert_int_equal(n, m);
            assert_memory_equal(x, y, n);
        }
}

static void same_events(struct backend *b, const char *want)
{
    struct buf got = {0};
    struct event ev;
    while (backend_next(b, &ev)) {
        describe(&ev, &got);
        event_free(&ev);
    }
    assert_string_equal(got.p, want);
    buf_free(&got);
}

static void nothing_is_computed(struct backend *b)
{
    struct err e;
    struct request rq = {.kind = RQ_SAY, .text = xstrdup("hello")};
    assert_false(backend_submit(b, &rq, &e));
    assert_non_null(strstr(e.msg, "aerie --session 12 goes on"));
    assert_true(b->lacks[VIEW_PLAN] && b->lacks[VIEW_CHECK] && !b->lacks[VIEW_PAGES]);
    assert_false(recorded_seek(b, 99, 1, &e));
    assert_false(recorded_seek(b, 1, 999, &e));
    assert_false(b->debug->run(b, RUN_PHASE, 1, NULL, &e));
}

static void record_and_compare(int page_size, bool forked)
{
    static struct live w;
    char *folder = scratch_folder(), *path = xasprintf("%s/sessions.db", folder);
    struct err e = {0};
    struct engine_opts o = serve_opts();
    struct history *h = history_open(path, LOG_TREE,
                                     &(struct history_about){.version = "0", .device = "",
        .flags = "", .model_dir = "", .model_sha = "", .draft_dir = "", .draft_sha = "",
        .tokenizer_sha = "", .config = ""}, &e);
    must(h != NULL, &e);
    w = (struct live){0};
    o.page_size = page_size;
    o.context = 512;
    o.settings.max_tokens = 24;
    o.settings.chunk = 16;
    o.log = history_queue(h);
    w.g = serve_open(&o);
    converse(&w, h, forked);
    assert_true(history_flush(h, 60000));
    struct hdb *d = hdb_open(path, &e);
    must(d != NULL, &e);
    struct backend *b = recorded_open(d, forked ? child : id, "12", false, &e);
    must(b != NULL, &e);
    hdb_close(d);
    same_events(b, w.text.p);
    for (int i = 0; i < w.n; i++)
        same_at(b, &w.seen[i]);
    for (int i = 0; i < 40; i++)
        same_at(b, &w.seen[below(w.n)]);
    same_stops(b, &w);
    nothing_is_computed(b);
    same_texts(b, &w, w.g);
    backend_close(b);
    backend_close(w.g);
    history_close(h);
    for (int i = 0; i < w.n; i++)
        page_table_free(&w.seen[i].table);
    buf_free(&w.text);
    scratch_remove(folder);
    free(path);
}

static void test_a_recording_shows_what_was_seen(void **state)
{
    (void)state;
    record_and_compare(4, false);
    record_and_compare(16, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_recording_shows_what_was_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
