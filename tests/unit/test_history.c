/* The session log: readers get what was posted, at every log level, and searches find it. */
#include "history/columns.h"
#include "tests/history_kit.h"

/* ---- round trip ---- */

struct expect {
    struct made_turn *t;
    int i; /* rows seen */
};

static bool same_ids(const struct ids *a, const struct ids *b)
{
    return a->n == b->n && (!a->n || memcmp(a->v, b->v, (size_t)a->n * sizeof *a->v) == 0);
}

static bool check_turn(const struct turn_row *r, void *arg)
{
    struct expect *x = arg;
    const struct made_turn *t = &x->t[x->i / 2];
    const struct event *ev = x->i % 2 ? &t->end : &t->begin;
    assert_int_equal(r->is_user, x->i % 2 == 0);
    assert_int_equal(r->n, ev->turn);
    assert_string_equal(r->session, ev->session);
    assert_int_equal(r->text_n, ev->text.n);
    assert_memory_equal(r->text, ev->text.p, ev->text.n);
    assert_true(same_ids(&r->tokens, &ev->tokens));
    assert_int_equal(r->seed, t->begin.seed);
    assert_int_equal(r->n_reused, t->begin.n_reused);
    if (r->is_user)
        assert_memory_equal(&r->reuse, &t->begin.reuse, sizeof r->reuse);
    assert_string_equal(r->sampling, "temperature=0\nseed=1\n");
    assert_int_equal(r->draws0,
                     x->i < 2 ? 0
                              : x->t[x->i / 2 - 1].step[x->t[x->i / 2 - 1].n_steps - 1].rec.draws);
    if (!r->is_user) {
        assert_int_equal(r->stop, ev->reason);
        assert_int_equal(r->draws1, t->step[t->n_steps - 1].rec.draws);
        assert_int_equal(r->n_steps, ev->n_steps);
        assert_int_equal(r->n_drafted, ev->n_drafted);
        assert_int_equal(r->n_accepted, ev->n_accepted);
        assert_int_equal(r->us_prefill, ev->us_prefill);
        assert_int_equal(r->us_decode, ev->us_decode);
    }
    x->i++;
    return true;
}

/* Bytes of a column in struct step_rec; 0: the column is none of them. */
static size_t bytes_of(enum column_type type)
{
    return type == TYPE_TOKENS || type == TYPE_FACTS ? 0
           : type == TYPE_FLAG                       ? sizeof(bool)
           : type == TYPE_U64 || type == TYPE_DIGEST || type == TYPE_ARRIVED ? sizeof(uint64_t)
                                                                            : sizeof(int32_t);
}

static const char *in_rec(const struct step_rec *rec, const struct column *c)
{
    return (const char *)rec + c->at - offsetof(struct step_row, rec);
}

static void same_step(const struct step_rec *a, const struct step_rec *b)
{
    for (const struct column *c = step_columns; c < step_columns + N_STEP_COLUMNS; c++)
        if (bytes_of(c->type) && memcmp(in_rec(a, c), in_rec(b, c), bytes_of(c->type)))
            fail_msg("%s is not what was posted", c->name);
}

static bool check_step(const struct step_row *r, void *arg)
{
    struct expect *x = arg;
    struct made_turn *t = x->t;
    while (x->i >= t->n_steps)
        x->i -= t++->n_steps;
    const struct event *ev = &t->step[x->i];
    x->i = (int)(x->i + 1);
    for (struct made_turn *k = x->t; k < t; k++)
        x->i += k->n_steps;
    assert_int_equal(r->turn, ev->turn);
    assert_int_equal(r->n, ev->step);
    same_step(&r->rec, &ev->rec);
    assert_true(same_ids(&r->tokens, &ev->tokens));
    assert_non_null(r->facts);
    assert_memory_equal(r->facts, ev->facts, (size_t)ev->tokens.n * sizeof *ev->facts);
    struct buf packed = {0};
    page_pack(&ev->lengths, ev->pages, ev->n_pages, &packed);
    assert_int_equal(r->pages.n, packed.n);
    assert_memory_equal(r->pages.p, packed.p, packed.n);
    buf_free(&packed);
    assert_int_equal(r->tree != NULL, ev->tree != NULL);
    if (r->tree) {
        assert_int_equal(r->tree->n, ev->tree->n);
        for (int i = 0; i < r->tree->n; i++) {
            assert_int_equal(r->tree->token[i], ev->tree->token[i]);
            assert_int_equal(r->tree->parent[i], ev->tree->parent[i]);
            assert_int_equal(r->tree->fate[i], ev->tree->fate[i]);
            assert_memory_equal(&r->tree->q[i], &ev->tree->q[i], sizeof r->tree->q[i]);
            assert_memory_equal(&r->tree->u[i], &ev->tree->u[i], sizeof r->tree->u[i]);
        }
    }
    return true;
}

static void test_what_is_posted_is_read_back(void **state)
{
    (void)state;
    struct history *h = log_open(LOG_TREE);
    struct made_turn turns[8][6];
    char id[8][SESSION_ID];
    int n[8];
    for (int s = 0; s < 8; s++) {
        struct ids context = {0};
        session_new_id(id[s]);
        n[s] = 1 + (int)roll(6);
        post_session(h, id[s], "", 0);
        post_op(h, id[s], OP_OPEN, 0, "temperature=0\nseed=1\n");
        for (int i = 0; i < n[s]; i++) {
            make_turn(&turns[s][i], id[s], i + 1, &context);
            post_turn(h, &turns[s][i], turns[s][i].n_steps, true);
            if (roll(3) == 0)
                context.n /= 2; /* an undo: the next prompt goes on from earlier */
        }
        ids_free(&context);
    }
    assert_true(history_flush(h, 60000));
    struct hdb *d = read_open();
    struct err e = {0};
    for (int s = 0; s < 8; s++) {
        struct expect x = {.t = turns[s]};
        assert_int_equal(hdb_turns(d, id[s], 0, check_turn, &x, &e), 2 * n[s]);
        x = (struct expect){.t = turns[s], .i = 2 * (n[s] - 1)};
        assert_int_equal(hdb_turns(d, id[s], n[s], check_turn, &x, &e), 2);
        x = (struct expect){.t = turns[s]};
        assert_true(hdb_steps(d, id[s], 0, check_step, &x, &e) > 0);
        for (int i = 0; i < n[s]; i++)
            free_turn(&turns[s][i]);
    }
    int checked, bad = verify_bad(d, &checked);
    assert_int_equal(bad, 0);
    assert_int_equal(checked, sql_int(d, "SELECT count(*) AS n FROM turn WHERE role='reply'"));
    assert_true(sql_int(d, "SELECT sum(shared) AS n FROM turn") > 0);
    hdb_close(d);
    history_close(h);
}

/* Any value of a column's type. */
static void fill(struct step_rec *rec, const struct column *c, bool served)
{
    char *at = (char *)in_rec(rec, c);
    uint64_t bits = c->type == TYPE_KIND     ? roll(STEP_SPEC + 1)
                    : c->type == TYPE_SOURCE ? served ? 1 + roll(STEP_PIECE) : STEP_COMPUTED
                    : c->type == TYPE_FLAG   ? roll(2)
                    : c->type == TYPE_TOKEN  ? roll(100) - 1
                    : c->type == TYPE_COUNT  ? roll(INT32_MAX / 2)
                    : c->type == TYPE_FLOAT  ? 0x3f800000 + roll(1 << 23)
                    : c->type == TYPE_ARRIVED && !served ? 0 : mix64(roll(1 << 30));
    memcpy(at, &bits, bytes_of(c->type));
}

static bool check_columns(const struct step_row *r, void *arg)
{
    struct event *ev = (struct event *)arg + r->n - 1;
    struct buf json = {0};
    char key[64];
    same_step(&r->rec, &ev->rec);
    step_row_json(r, &json);
    buf_char(&json, '\0');
    for (const struct column *c = step_columns; c < step_columns + N_STEP_COLUMNS; c++) {
        snprintf(key, sizeof key, "\"%s\":", c->name);
        const char *first = strstr(json.p, key);
        if (!first && c->type == TYPE_ARRIVED && r->rec.source == STEP_COMPUTED)
            continue;
        if (!first || strstr(first + 1, key))
            fail_msg("%s stands not once in %s", c->name, json.p);
    }
    buf_free(&json);
    return true;
}

static void test_every_column_of_a_step_is_stored_and_shown(void **state)
{
    (void)state;
    enum { STEPS = 40 };
    char id[SESSION_ID];
    struct event ev[STEPS];
    struct err e = {0};
    struct history *h = log_open(LOG_TREE);
    session_new_id(id);
    post_session(h, id, "", 0);
    struct made_turn t = {.begin = event_of(EV_TURN_BEGIN, id, 1, NULL),
                          .end = event_of(EV_TURN_END, id, 1, NULL)};
    post_copy(h, &t.begin);
    for (int i = 0; i < STEPS; i++) {
        ev[i] = random_step(id, 1, i + 1);
        for (const struct column *c = step_columns; c < step_columns + N_STEP_COLUMNS; c++)
            if (bytes_of(c->type))
                fill(&ev[i].rec, c, i % 2);
        post_copy(h, &ev[i]);
    }
    post_copy(h, &t.end);
    assert_true(history_flush(h, 60000));
    struct hdb *d = read_open();
    assert_int_equal(hdb_steps(d, id, 0, check_columns, ev, &e), STEPS);
    assert_int_equal(sql_int(d, "SELECT count(*) AS n FROM pragma_table_info('step')"),
                     N_STEP_COLUMNS + 3);
    assert_int_equal(sql_int(d, "SELECT count(*) AS n FROM pragma_table_info('served')"),
                     N_SERVED_COLUMNS + 2);
    hdb_close(d);
    history_close(h);
    for (int i = 0; i < STEPS; i++)
        event_free(&ev[i]);
    event_free(&t.begin);
    event_free(&t.end);
}

/* ---- levels ---- */

static void test_each_level_stores_what_it_promises(void **state)
{
    (void)state;
    static const struct {
        enum log_level level;
        bool turns, steps, trees, pages;
    } cases[] = {{LOG_OFF, 0, 0, 0, 0},
                 {LOG_TEXT, 1, 0, 0, 0},
                 {LOG_STEPS, 1, 1, 0, 0},
                 {LOG_TREE, 1, 1, 1, 1}};
    struct history *h = log_open(LOG_OFF);
    char id[4][SESSION_ID];
    for (int i = 0; i < 4; i++) {
        assert_true(history_flush(h, 60000));
        history_level(h, cases[i].level);
        session_new_id(id[i]);
        write_session(h, id[i], 5);
    }
    assert_true(history_flush(h, 60000));
    struct history_status s;
    history_status(h, &s);
    assert_int_equal(s.acked_turns, 15);
    assert_true(s.recording);
    assert_string_equal(s.error, "");
    struct hdb *d = read_open();
    for (int i = 0; i < 4; i++) {
        static const char *const from[] = {
            "turn WHERE", "step JOIN turn ON turn.id = turn_id WHERE",
            "tree JOIN step ON step.id = step_id JOIN turn ON turn.id = turn_id WHERE",
            "pages JOIN step ON step.id = step_id JOIN turn ON turn.id = turn_id WHERE"};
        const bool want[] = {cases[i].turns, cases[i].steps, cases[i].trees, cases[i].pages};
        for (int k = 0; k < 4; k++) {
            char sql[300];
            snprintf(sql, sizeof sql, "SELECT count(*) AS n FROM %s session_id='%s'", from[k],
                     id[i]);
            assert_int_equal(sql_int(d, sql) > 0, want[k]);
        }
    }
    int turns;
    assert_int_equal(verify_bad(d, &turns), 0);
    hdb_close(d);
    history_close(h);
}

static void test_a_turn_begun_before_off_is_still_ended(void **state)
{
    (void)state;
    struct history *h = log_open(LOG_STEPS);
    struct made_turn t;
    struct ids context = {0};
    char id[SESSION_ID];
    session_new_id(id);
    post_session(h, id, "", 0);
    make_turn(&t, id, 1, &context);
    post_turn(h, &t, t.n_steps, false);
    assert_true(history_flush(h, 60000));
    history_level(h, LOG_OFF);
    post_copy(h, &t.end);
    assert_true(history_flush(h, 60000));
    struct hdb *d = read_open();
    assert_int_equal(sql_int(d, "SELECT count(*) AS n FROM turn WHERE stop=''"), 0);
    hdb_close(d);
    history_close(h);
    free_turn(&t);
    ids_free(&context);
}

/* ---- operations, forks, undo, resume ---- */

struct seen_ops {
    char line[16][64];
    int n;
};

static bool see_op(const struct op_row *r, void *arg)
{
    struct seen_ops *s = arg;
    char *line = s->line[s->n++];
    int at = snprintf(line, sizeof s->line[0], "%s %d %s", op_name(r->op), r->turn, r->text);
    if (r->turns.n == 2)
        snprintf(line + at, 24, " [%d %d]", r->turns.v[0], r->turns.v[1]);
    if (r->forced.step)
        snprintf(line + at, 24, " [%d:%d]", r->forced.step, r->forced.token);
    return true;
}

static void post_turns(struct history *h, const char *id, enum op_kind op, int a, int b)
{
    struct event ev = event_of(EV_OP, id, op == OP_FORK ? 3 : 0, NULL);
    ev.op = op;
    ids_add(&ev.turns, a);
    ids_add(&ev.turns, b);
    post(h, &ev);
}

struct marks {
    int undone, regen, rows;
    int64_t order;
    char sampling[64];
};

static bool see_marks(const struct turn_row *r, void *arg)
{
    struct marks *m = arg;
    m->rows++;
    m->undone |= r->undone << r->n;
    m->regen |= r->regen << r->n;
    assert_true(r->order > m->order);
    m->order = r->order;
    snprintf(m->sampling, sizeof m->sampling, "%s", r->sampling);
    return true;
}

static bool see_session(const struct session_row *r, void *arg)
{
    *(struct session_row *)arg = *r;
    return true;
}

static void test_operations_keep_their_order_and_turns_their_marks(void **state)
{
    (void)state;
    struct history *h = log_open(LOG_STEPS);
    char id[SESSION_ID], child[SESSION_ID];
    session_new_id(id);
    session_new_id(child);
    post_session(h, id, "", 0);
    post_op(h, id, OP_OPEN, 0, "temperature=0\ntop_k=40\nseed=1\n");
    one_turn(h, id, 1, false);
    post_op(h, id, OP_SET, 0, "top_k=7");
    one_turn(h, id, 2, false);
    post_op(h, id, OP_UNDO, 2, "");
    one_turn(h, id, 3, false);
    one_turn(h, id, 4, true);
    post_session(h, child, id, 3);
    post_turns(h, child, OP_FORK, 1, 3);
    one_turn(h, child, 4, false);
    struct event force = event_of(EV_OP, child, 4, NULL);
    force.op = OP_FORCE;
    force.forced = (struct forced_token){.step = 2, .token = 269};
    post(h, &force);
    post_turns(h, child, OP_FORGET, 3, 4);
    post_op(h, child, OP_FORCE, 4, ""); /* as in a pack without tokens */
    post_session(h, id, "", 0); /* back to the parent: the same session, a new run */
    post_op(h, id, OP_RESUME, 0, "temperature=1\n");
    one_turn(h, id, 5, false);
    assert_true(history_flush(h, 60000));

    struct hdb *d = read_open();
    struct err e;
    struct seen_ops ops = {0};
    assert_int_equal(hdb_ops(d, id, see_op, &ops, &e), 4);
    assert_string_equal(ops.line[1], "set 0 top_k=7");
    assert_string_equal(ops.line[2], "undo 2 ");
    assert_string_equal(ops.line[3], "resume 0 temperature=1\n");
    ops.n = 0;
    assert_int_equal(hdb_ops(d, child, see_op, &ops, &e), 4);
    assert_string_equal(ops.line[0], "fork 3 1 3 [1 3]");
    assert_string_equal(ops.line[1], "force 4 2 269 [2:269]");
    assert_string_equal(ops.line[2], "forget 0 3 4 [3 4]");
    assert_string_equal(ops.line[3], "force 4 ");
    assert_int_equal(stop_parse("no reason"), STOP_CRASHED);
    struct marks m = {0};
    assert_int_equal(hdb_turns(d, id, 3, see_marks, &m, &e), 2);
    assert_string_equal(m.sampling, "temperature=0\ntop_k=7\nseed=1\n");
    m = (struct marks){0};
    assert_int_equal(hdb_turns(d, id, 0, see_marks, &m, &e), 10);
    assert_int_equal(m.undone, 1 << 2);
    assert_int_equal(m.regen, 1 << 4);
    assert_string_equal(m.sampling, "temperature=1\n");
    m = (struct marks){0};
    assert_int_equal(hdb_turns(d, child, 0, see_marks, &m, &e), 2);
    assert_string_equal(m.sampling, "temperature=0\ntop_k=7\nseed=1\n");

    struct session_row r;
    assert_true(hdb_find(d, child, &r, &e));
    assert_string_equal(r.parent, id);
    assert_int_equal(r.fork_turn, 3);
    assert_true(r.ended);
    session_row_free(&r);
    assert_true(hdb_find(d, "last", &r, &e));
    assert_string_equal(r.id, id); /* the one used last, not the one begun last */
    assert_int_equal(r.n_turns, 5);
    assert_false(r.ended);
    assert_true(strlen(r.title) > 0);
    assert_string_equal(r.model, about.model_dir);
    session_row_free(&r);
    int turns;
    assert_int_equal(verify_bad(d, &turns), 0);
    hdb_close(d);
    history_close(h);
    d = read_open();
    assert_true(hdb_find(d, id, &r, &e));
    assert_true(r.ended);
    session_row_free(&r);
    hdb_close(d);
}

struct seen_runs {
    int n;
    int64_t id, order;
    char first[300], last[300];
};

static bool see_run(const struct run_row *r, void *arg)
{
    struct seen_runs *s = arg;
    assert_true(r->id > s->id && r->order > s->order);
    s->id = r->id;
    s->order = r->order;
    snprintf(s->n++ ? s->last : s->first, sizeof s->first, "%s", r->about);
    return true;
}

static void test_each_run_says_what_it_ran_with(void **state)
{
    (void)state;
    char id[SESSION_ID];
    session_new_id(id);
    struct history *h = log_open(LOG_STEPS);
    post_session(h, id, "", 0);
    one_turn(h, id, 1, false);
    assert_true(history_flush(h, 60000));
    struct history_about more = about;
    more.device = "cuda";
    more.draft_dir = NULL;
    history_describe(h, &about, NULL);
    history_describe(h, &more, NULL);
    post_session(h, id, "", 0);
    one_turn(h, id, 2, false);
    assert_true(history_flush(h, 60000));
    struct hdb *d = read_open();
    struct err e;
    struct seen_runs s = {0};
    assert_int_equal(hdb_runs(d, id, see_run, &s, &e), 2);
    assert_non_null(strstr(s.first, "device=cpu avx2\n"));
    assert_non_null(strstr(s.first, "draft_sha=bb22\n"));
    assert_non_null(strstr(s.last, "device=cuda\n"));
    assert_non_null(strstr(s.last, "draft_dir=\n"));
    struct buf b = {0};
    assert_true(hdb_about(d, id, &b, &e));
    assert_string_equal(b.p, s.last);
    assert_false(hdb_about(d, "01H", &b, &e));
    assert_int_equal(e.kind, ERR_NEGATIVE);
    buf_free(&b);
    hdb_close(d);
    history_describe(h, &about, NULL); /* never taken over: freed all the same */
    history_close(h);
}

static void test_a_start_without_a_message_leaves_nothing(void **state)
{
    (void)state;
    char id[SESSION_ID];
    struct history *h = log_open(LOG_STEPS);
    session_new_id(id);
    post_session(h, id, "", 0);
    post_op(h, id, OP_OPEN, 0, "temperature=0\n");
    assert_true(history_flush(h, 60000));
    struct hdb *d = read_open();
    struct session_row r = {0};
    struct err e;
    assert_int_equal(hdb_sessions(d, NULL, NULL, 10, see_session, &r, &e), 0);
    assert_false(hdb_find(d, "last", &r, &e));
    assert_int_equal(e.kind, ERR_NEGATIVE);
    history_close(h);
    assert_int_equal(sql_int(d, "SELECT count(*) AS n FROM session"), 0);
    assert_int_equal(sql_int(d, "SELECT count(*) AS n FROM event"), 0);
    hdb_close(d);
}

/* ---- finding ---- */

static void say(struct history *h, const char *id, int n, const char *user, const char *reply)
{
    struct event ev = event_of(EV_TURN_BEGIN, id, n, user);
    post(h, &ev);
    ev = event_of(EV_TURN_END, id, n, reply);
    post(h, &ev);
}

struct hits {
    int n;
    char snippet[200], text[200];
};

static bool see_hit(const struct turn_row *r, void *arg)
{
    struct hits *x = arg;
    if (x->n++ == 0) {
        snprintf(x->snippet, sizeof x->snippet, "%s", r->snippet);
        snprintf(x->text, sizeof x->text, "%s", r->text);
    }
    return true;
}

static void test_words_are_found_and_no_query_is_an_error(void **state)
{
    (void)state;
    struct history *h = log_open(LOG_TEXT);
    char a[SESSION_ID], b[SESSION_ID];
    session_new_id(a);
    session_new_id(b);
    post_session(h, a, "", 0);
    say(h, a, 1, "what is a swa pool?", "A pool for the sliding window.");
    say(h, a, 2, "and a full-pool", "It holds every token; \"everything\", even foo:bar.");
    post_session(h, b, "", 0);
    say(h, b, 1, "Gr\xC3\xBC\xC3\x9F dich, \xD0\xBC\xD0\xB8\xD1\x80", "hello");
    assert_true(history_flush(h, 60000));
    struct hdb *d = read_open();
    struct err e;
    struct hits x = {0};
    assert_int_equal(hdb_search(d, "sliding", 10, see_hit, &x, &e), 1);
    assert_non_null(strstr(x.snippet, "\x01sliding\x02"));
    assert_string_equal(x.text, "A pool for the sliding window.");
    assert_int_equal(hdb_search(d, "pool", 10, see_hit, &x, &e), 3);
    assert_int_equal(hdb_search(d, "pool", 2, see_hit, &x, &e), 2);
    assert_int_equal(hdb_search(d, "pool NOT sliding", 10, see_hit, &x, &e), 2);
    assert_int_equal(hdb_search(d, "slid*", 10, see_hit, &x, &e), 1);
    assert_int_equal(hdb_search(d, "\xD0\x9C\xD0\x98\xD0\xA0", 10, see_hit, &x, &e), 1);
    /* what FTS5 would refuse is searched for as words */
    assert_int_equal(hdb_search(d, "full-pool", 10, see_hit, &x, &e), 1);
    assert_int_equal(hdb_search(d, "foo:bar", 10, see_hit, &x, &e), 1);
    assert_int_equal(hdb_search(d, "what is a swa pool?", 10, see_hit, &x, &e), 1);
    static const char *const odd[] = {"\"",   "(",         "a AND",   "NEAR(", "*",
                                      "^",    "nosuch: x", "'; DROP", "{",     "-",
                                      "\"\"", "\\",        "a OR",    "+ +",   "\xff\xfe"};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        e.msg[0] = '\0';
        if (hdb_search(d, odd[i], 10, see_hit, &x, &e) < 0)
            fail_msg("%s: %s", odd[i], e.msg);
    }
    assert_int_equal(hdb_search(d, "  ", 10, see_hit, &x, &e), -1);
    assert_int_equal(e.kind, ERR_USAGE);

    int n = 0;
    assert_int_equal(hdb_sessions(d, "pool", NULL, 0, count_session, &n, &e), 1);
    assert_int_equal(hdb_sessions(d, "pool OR hello", NULL, 0, count_session, &n, &e), 2);
    assert_int_equal(hdb_sessions(d, NULL, "nestling", 0, count_session, &n, &e), 2);
    assert_int_equal(hdb_sessions(d, NULL, "gpt-oss", 0, count_session, &n, &e), 0);
    assert_int_equal(hdb_sessions(d, "zebra AND (", NULL, 0, count_session, &n, &e), 0);
    hdb_close(d);
    history_close(h);
}

/* The index has the first MiB of a text: storing, searching, quoting and checking agree on that. */
static void test_the_beginning_of_a_long_text_is_indexed(void **state)
{
    (void)state;
    struct history *h = log_open(LOG_TEXT);
    char a[SESSION_ID];
    struct buf text = {0}, report = {0};
    struct hits x = {0};
    struct err e = {0};
    buf_str(&text, "zebra ");
    while (text.n < (1 << 20) - 16)
        buf_str(&text, "\xC3\xA9t\xC3\xA9 ");
    buf_str(&text, " giraffe okapi and \xC3\xA9\xC3\xA9\xC3\xA9 "); /* the limit is near here */
    while (text.n < 3 << 20)
        buf_printf(&text, "%zx ", text.n);
    buf_str(&text, "walrus");
    session_new_id(a);
    post_session(h, a, "", 0);
    say(h, a, 1, "hi", text.p);
    assert_true(history_flush(h, 60000));
    struct hdb *d = read_open();
    assert_int_equal(hdb_search(d, "zebra", 10, see_hit, &x, &e), 1);
    assert_non_null(strstr(x.snippet, "\x01zebra\x02"));
    assert_int_equal(hdb_search(d, "walrus", 10, see_hit, &x, &e), 0);
    hdb_close(d);
    history_close(h);
    if (!history_check(db_path, &report, &e))
        fail_msg("%s %s", report.p ? report.p : "", e.msg);
    buf_free(&report);
    buf_free(&text);
}

static bool see_nothing(const struct turn_row *r, void *arg)
{
    (void)r, (void)arg;
    return true;
}

static int asked, stop_at;

static bool stop_now(void)
{
    return ++asked >= stop_at;
}

/* Whatever a reader does ends when it is asked to, with one error, and it can be used again. */
static void test_a_reader_stops_when_asked(void **state)
{
    (void)state;
    struct history *h = log_open(LOG_TEXT);
    char id[SESSION_ID];
    session_new_id(id);
    post_session(h, id, "", 0);
    post_op(h, id, OP_OPEN, 0, "temperature=0\nseed=1\n");
    for (int i = 1; i <= 200; i++)
        say(h, id, i, "a question about pages", "an answer about pages");
    assert_true(history_flush(h, 60000));
    struct hdb *d = read_open();
    for (int what = 0; what < 3; what++) {
        struct err e = {0};
        struct hits hits = {0};
        int n, sessions = 0;
        asked = 0;
        for (stop_at = 1; stop_at >= 0; stop_at--) { /* stopped at once; then free to run */
            hdb_stop_when(stop_at ? stop_now : NULL);
            n = what == 0 ? hdb_sessions(d, "pages", NULL, 0, count_session, &sessions, &e)
              : what == 1 ? hdb_search(d, "pages", 0, see_hit, &hits, &e)
                          : hdb_turns(d, id, 0, see_nothing, NULL, &e);
            assert_int_equal(n < 0, stop_at);
            if (stop_at)
                assert_non_null(strstr(e.msg, "interrupted"));
        }
        assert_true(asked > 0);
    }
    hdb_close(d);
    history_close(h);
}

static void test_a_title_is_the_first_line_that_says_something(void **state)
{
    (void)state;
    static const struct {
        const char *message, *title;
    } cases[] = {
        {"hello\nworld", "hello"},
        {"\n \n  hello there\r\nworld", "hello there"},
        {"  \n", "second"}, /* the next message's, then */
        {"0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567",
         "01234567890123456789012345678901234567890123456789012345678901234567890123456789"},
        {"0123456789012345678901234567890123456789012345678901234567890123456789012345678\xE9\xB7"
         "\xB9",
         "0123456789012345678901234567890123456789012345678901234567890123456789012345678"},
    };
    struct history *h = log_open(LOG_TEXT);
    struct hdb *d = read_open();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char id[SESSION_ID];
        session_new_id(id);
        post_session(h, id, "", 0);
        say(h, id, 1, cases[i].message, "reply");
        say(h, id, 2, "second", "reply");
        assert_true(history_flush(h, 60000));
        struct session_row r;
        struct err e;
        assert_true(hdb_find(d, id, &r, &e));
        assert_string_equal(r.title, cases[i].title);
        session_row_free(&r);
    }
    hdb_close(d);
    history_close(h);
}

static void test_ids_only_grow_and_their_beginnings_find_sessions(void **state)
{
    (void)state;
    char last[SESSION_ID] = "", id[SESSION_ID];
    for (int i = 0; i < 20000; i++) {
        session_new_id(id);
        assert_int_equal(strlen(id), 26);
        assert_true(strcmp(id, last) > 0);
        memcpy(last, id, sizeof last);
    }
    uint64_t ms = 0;
    for (int i = 0; i < 10; i++)
        ms = ms << 5 | (uint64_t)(strchr("0123456789ABCDEFGHJKMNPQRSTVWXYZ", id[i]) -
                                  "0123456789ABCDEFGHJKMNPQRSTVWXYZ");
    assert_true((int64_t)ms <= clock_unix_ms() && (int64_t)ms > clock_unix_ms() - 60000);

    struct history *h = log_open(LOG_TEXT);
    static const char *const ids[] = {"01HAAAAAAAAAAAAAAAAAAAAAAA", "01HAAAAAAAAAAAAAAAAAAAAAAB",
                                      "01HBBBBBBBBBBBBBBBBBBBBBBB"};
    for (int i = 0; i < 3; i++) {
        post_session(h, ids[i], "", 0);
        say(h, ids[i], 1, "hi", "hello");
    }
    assert_true(history_flush(h, 60000));
    struct hdb *d = read_open();
    struct session_row r;
    struct err e;
    static const struct {
        const char *id;
        enum err_kind kind;
        int is;
    } cases[] = {{"01HB", ERR_NONE, 2},
                 {"01hb", ERR_NONE, 2},
                 {"01HA", ERR_USAGE, 0},
                 {"01HC", ERR_NEGATIVE, 0},
                 {"", ERR_NEGATIVE, 0},
                 {"last", ERR_NONE, 2},
                 {"01HAAAAAAAAAAAAAAAAAAAAAAA", ERR_NONE, 0},
                 {"%", ERR_NEGATIVE, 0},
                 {"01HAAAAAAAAAAAAAAAAAAAAAAAA", ERR_NEGATIVE, 0},
                 {"01H'", ERR_NEGATIVE, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        e.kind = ERR_NONE;
        bool ok = hdb_find(d, cases[i].id, &r, &e);
        assert_int_equal(e.kind, cases[i].kind);
        assert_int_equal(ok, cases[i].kind == ERR_NONE);
        if (ok)
            assert_string_equal(r.id, ids[cases[i].is]);
        session_row_free(&r);
    }
    struct buf b = {0};
    assert_true(hdb_about(d, ids[0], &b, &e));
    assert_non_null(strstr(b.p, "version=0.1.0\n"));
    assert_non_null(strstr(b.p, "draft_sha=bb22\n"));
    assert_non_null(strstr(b.p, "tokenizer_sha=cc33\npage_size=16\ncontext=512\n"));
    buf_free(&b);
    hdb_close(d);
    history_close(h);
}

static bool count_config(const char *config, void *arg)
{
    ++*(int *)arg;
    return strstr(config, "page_size=16\n") != NULL;
}

/* Neither time nor the end of a turn begins a transaction: a mark does, and nothing is
 * acknowledged. */
static void test_many_sessions_are_stored_at_marks_only(void **state)
{
    (void)state;
    struct history *h = log_open(LOG_TREE);
    struct history_status s;
    struct err e = {0};
    char id[SESSION_ID];
    int n = 0;
    history_store_many(h);
    session_new_id(id);
    write_session(h, id, 2);
    nanosleep(&(struct timespec){.tv_nsec = 150000000}, NULL);
    struct hdb *d = read_open();
    assert_int_equal(sql_int(d, "SELECT count(*) AS n FROM session"), 0);
    assert_true(history_flush(h, 60000));
    assert_int_equal(sql_int(d, "SELECT count(*) AS n FROM turn WHERE stop <> ''"), 2);
    history_status(h, &s);
    assert_int_equal(s.acked_turns, 0);
    assert_int_equal(hdb_configs(d, "page_size", count_config, &n, &e), 1);
    assert_int_equal(hdb_configs(d, "age_size", count_config, &n, &e), 0);
    session_new_id(id); /* a run with an open turn does not count */
    write_session(h, id, 1);
    struct ids context = {0};
    struct made_turn t;
    make_turn(&t, id, 2, &context);
    post_turn(h, &t, 0, false);
    free_turn(&t);
    ids_free(&context);
    assert_true(history_flush(h, 60000));
    assert_int_equal(hdb_configs(d, "page_size", count_config, &n, &e), 1);
    assert_int_equal(n, 2);
    hdb_close(d);
    history_close(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_what_is_posted_is_read_back),
        TEST(test_many_sessions_are_stored_at_marks_only),
        TEST(test_every_column_of_a_step_is_stored_and_shown),
        TEST(test_each_level_stores_what_it_promises),
        TEST(test_a_turn_begun_before_off_is_still_ended),
        TEST(test_operations_keep_their_order_and_turns_their_marks),
        TEST(test_each_run_says_what_it_ran_with),
        TEST(test_a_start_without_a_message_leaves_nothing),
        TEST(test_words_are_found_and_no_query_is_an_error),
        TEST(test_the_beginning_of_a_long_text_is_indexed),
        TEST(test_a_reader_stops_when_asked),
        TEST(test_a_title_is_the_first_line_that_says_something),
        TEST(test_ids_only_grow_and_their_beginnings_find_sessions),
    };
    return cmocka_run_group_tests_name("history", tests, NULL, NULL);
}
