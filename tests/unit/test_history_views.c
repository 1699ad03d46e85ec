/* The views of the log: plain SQL, without a function of aerie, gives what the readers of aerie
 * decode from the same blobs. */
#include "tests/history_kit.h"

#include <math.h>
#include <sqlite3.h>

enum { TURNS = 6 };

/* Probabilities at the ends of what binary32 can hold, and numbers that are not known. */
static float odd_probability(void)
{
    static const float odd[] = {0, 1, 0x1p-149f, 0x1.fffffcp-127f, 0x1p-126f, 0x1.fffffep-1f, 0.1f,
                                -0.5f, 3};
    uint64_t i = roll(sizeof odd / sizeof *odd + 2);
    return i < sizeof odd / sizeof *odd ? odd[i] : i % 2 ? NAN : (float)roll(1u << 24) * 0x1p-24f;
}

static void write_odd_session(struct history *h, const char *id)
{
    struct ids context = {0};
    post_session(h, id, "", 0);
    post_op(h, id, OP_OPEN, 0, "temperature=0\nsystem.file=C:\\new \"x\"\nseed=1\n");
    for (int i = 1; i <= TURNS; i++) {
        struct made_turn t;
        make_turn(&t, id, i, &context);
        for (int s = 0; s < t.n_steps; s++) {
            for (int k = 0; t.step[s].tree && k < t.step[s].tree->n; k++) {
                struct tree *tree = t.step[s].tree;
                tree->token[k] = roll(8) ? tree->token[k] : -(int32_t)roll(INT32_MAX);
                tree->q[k] = odd_probability();
                tree->p[k] = odd_probability();
                tree->u[k] = odd_probability();
            }
            if (t.step[s].tokens.n)
                t.step[s].tokens.v[0] = roll(3) ? (int32_t)roll(INT32_MAX) : -1;
        }
        post_turn(h, &t, t.n_steps, true);
        free_turn(&t);
    }
    ids_free(&context);
}

static sqlite3 *foreign_open(void) /* as a program opens it that knows nothing of aerie */
{
    sqlite3 *h;
    assert_int_equal(sqlite3_open_v2(db_path, &h, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    return h;
}

static sqlite3_stmt *ask(sqlite3 *h, const char *sql)
{
    sqlite3_stmt *st;
    if (sqlite3_prepare_v2(h, sql, -1, &st, NULL) != SQLITE_OK)
        fail_msg("%s: %s", sql, sqlite3_errmsg(h));
    return st;
}

static void assert_number(sqlite3_stmt *st, int col, float expected)
{
    if (isnan(expected))
        assert_int_equal(sqlite3_column_type(st, col), SQLITE_NULL);
    else
        assert_true(sqlite3_column_double(st, col) == (double)expected);
}

struct both {
    sqlite3 *h;
    sqlite3_stmt *node, *token, *step, *page;
    int nodes, tokens, steps, pages;
};

static int rank_of(const struct tree *t, int node)
{
    int n = 0;
    for (int i = 1; i <= node; i++)
        n += t->parent[i] == t->parent[node];
    return n;
}

static void compare_node(sqlite3_stmt *st, const struct step_row *r, int i)
{
    static const char *const fate[] = {"none", "accepted", "rejected", "cut"};
    const struct tree *t = r->tree;
    assert_int_equal(sqlite3_step(st), SQLITE_ROW);
    assert_int_equal(sqlite3_column_int(st, 0), r->turn);
    assert_int_equal(sqlite3_column_int(st, 1), r->n);
    assert_int_equal(sqlite3_column_int(st, 2), i);
    assert_int_equal(sqlite3_column_type(st, 3) == SQLITE_NULL, i == 0);
    assert_int_equal(sqlite3_column_int(st, 3), i ? t->parent[i] : 0);
    assert_int_equal(sqlite3_column_int(st, 4), t->depth[i]);
    assert_int_equal(sqlite3_column_int(st, 5), i ? rank_of(t, i) : 0);
    assert_int_equal(sqlite3_column_int64(st, 6), t->token[i]);
    assert_string_equal((const char *)sqlite3_column_text(st, 7), fate[t->fate[i]]);
    assert_number(st, 8, t->q[i]);
    assert_number(st, 9, t->p[i]);
    assert_number(st, 10, t->u[i]);
}

/* NULL, or the text of the kit's vocabulary, byte for byte. */
static void assert_text_of(sqlite3_stmt *st, int col, int32_t id)
{
    size_t n = 0;
    const char *text = id >= 0 && id < 250000 ? text_of(NULL, id, &n) : NULL;
    if (!text) {
        assert_int_equal(sqlite3_column_type(st, col), SQLITE_NULL);
        return;
    }
    assert_int_equal(sqlite3_column_type(st, col), n && id % 9 == 0 ? SQLITE_BLOB : SQLITE_TEXT);
    assert_int_equal(sqlite3_column_bytes(st, col), n);
    if (n)
        assert_memory_equal(sqlite3_column_blob(st, col), text, n);
}

static void compare_fact(sqlite3_stmt *st, const struct step_row *r, int i)
{
    const struct token_fact *f = &r->facts[i];
    assert_int_equal(sqlite3_column_int(st, 6), i < r->rec.forced);
    assert_number(st, 7, f->logp);
    assert_int_equal(sqlite3_column_type(st, 8) == SQLITE_NULL, f->rival < 0);
    if (f->rival >= 0)
        assert_int_equal(sqlite3_column_int64(st, 8), f->rival);
    assert_number(st, 9, f->rival_logp);
    assert_text_of(st, 10, r->tokens.v[i]);
    assert_text_of(st, 11, f->rival);
}

static void compare_lengths(sqlite3_stmt *st, const struct step_row *r,
                            const struct context_lengths *l)
{
    assert_int_equal(sqlite3_step(st), SQLITE_ROW);
    assert_int_equal(sqlite3_column_int(st, 0), r->turn);
    assert_int_equal(sqlite3_column_int(st, 1), r->n);
    assert_number(st, 2, r->rec.margin);
    assert_int_equal(sqlite3_column_int(st, 3), r->rec.forced);
    assert_int_equal(sqlite3_column_int(st, 4), r->rec.fused);
    assert_int_equal(sqlite3_column_int(st, 5), l->length);
    assert_int_equal(sqlite3_column_int(st, 6), l->committed);
    assert_int_equal(sqlite3_column_int(st, 7), l->drafted);
    assert_int_equal(sqlite3_column_int(st, 8), l->window_lo);
}

/* seq orders the events of a step; it need not be their number. */
static void compare_page(sqlite3_stmt *st, const struct step_row *r, const struct page_event *p)
{
    static const char *const holder[] = {"session", "checkpoint", "idle", "batch"};
    assert_int_equal(sqlite3_step(st), SQLITE_ROW);
    assert_int_equal(sqlite3_column_int(st, 0), r->turn);
    assert_int_equal(sqlite3_column_int(st, 1), r->n);
    assert_string_equal((const char *)sqlite3_column_text(st, 3), pool_name(p->pool));
    assert_string_equal((const char *)sqlite3_column_text(st, 4), page_op_name(p->op));
    assert_string_equal((const char *)sqlite3_column_text(st, 5), holder[p->holder]);
    assert_int_equal(sqlite3_column_int(st, 6), p->page);
    assert_int_equal(sqlite3_column_type(st, 7) == SQLITE_NULL, p->column < 0);
    if (p->column >= 0)
        assert_int_equal(sqlite3_column_int(st, 7), p->column);
    assert_int_equal(sqlite3_column_int(st, 8), p->refs);
}

static bool compare_step(const struct step_row *r, void *arg)
{
    struct both *b = arg;
    struct context_lengths l;
    struct page_event *ev;
    struct err e = {0};
    int n_ev;
    if (!page_unpack(r->pages.p, r->pages.n, &l, &ev, &n_ev, &e))
        fail_msg("%s", e.msg);
    compare_lengths(b->step, r, &l);
    for (int i = 0; i < n_ev; i++, b->pages++)
        compare_page(b->page, r, &ev[i]);
    free(ev);
    for (int i = 0; r->tree && i < r->tree->n; i++, b->nodes++)
        compare_node(b->node, r, i);
    for (int i = 0; i < r->tokens.n; i++, b->tokens++) {
        bool prefill = r->rec.kind == STEP_PREFILL;
        assert_int_equal(sqlite3_step(b->token), SQLITE_ROW);
        assert_int_equal(sqlite3_column_int(b->token, 0), r->turn);
        assert_int_equal(sqlite3_column_int(b->token, 1), r->n);
        assert_int_equal(sqlite3_column_int(b->token, 2), i);
        assert_int_equal(sqlite3_column_int(b->token, 3),
                         prefill ? r->rec.pos0 + r->rec.rows : r->rec.pos0 + 1 + i);
        assert_int_equal(sqlite3_column_int64(b->token, 4), r->tokens.v[i]);
        assert_int_equal(sqlite3_column_int(b->token, 5), i < r->rec.accepted);
        compare_fact(b->token, r, i);
    }
    b->steps++;
    return true;
}

static void test_nodes_and_tokens_are_what_the_readers_decode(void **state)
{
    (void)state;
    struct err e = {0};
    char id[SESSION_ID];
    session_new_id(id);
    struct history *h = log_open(LOG_TREE);
    describe_texts(h);
    write_odd_session(h, id);
    history_close(h);
    struct hdb *d = read_open();
    struct both b = {.h = foreign_open()};
    b.node = ask(b.h, "SELECT turn, step, node, parent, depth, rank, token, fate, q, p, "
                      "u FROM v_node ORDER BY turn, step, node");
    b.token = ask(b.h, "SELECT turn, step, k, position, token, drafted, forced, logp, rival,"
                       " rival_logp, text, rival_text FROM v_token ORDER BY turn, step, k");
    b.step = ask(b.h, "SELECT turn, step, margin, forced, fused, length, committed, draft_length,"
                      " window_lo FROM v_step ORDER BY turn, step");
    b.page = ask(b.h, "SELECT turn, step, seq, pool, op, holder, page, logical, refs FROM v_page"
                      " ORDER BY turn, step, seq");
    assert_true(hdb_steps(d, id, 0, compare_step, &b, &e) > 0);
    assert_int_equal(sqlite3_step(b.node), SQLITE_DONE);
    assert_int_equal(sqlite3_step(b.token), SQLITE_DONE);
    assert_int_equal(sqlite3_step(b.step), SQLITE_DONE);
    assert_int_equal(sqlite3_step(b.page), SQLITE_DONE);
    assert_true(b.nodes > 50 && b.tokens > 50 && b.steps > 20 && b.pages > 50);
    sqlite3_finalize(b.step);
    sqlite3_finalize(b.page);
    sqlite3_finalize(b.node);
    sqlite3_finalize(b.token);
    sqlite3_close(b.h);
    hdb_close(d);
}

struct prompts {
    sqlite3_stmt *st;
    struct ids before; /* the sequence that the last turn left */
    int rows;
};

static bool compare_prompt(const struct turn_row *t, void *arg)
{
    struct prompts *p = arg;
    if (!t->is_user) {
        ids_cat(&p->before, t->tokens.v, t->tokens.n);
        return true;
    }
    int shared = 0;
    while (shared < p->before.n && shared < t->tokens.n &&
           p->before.v[shared] == t->tokens.v[shared])
        shared++;
    for (int i = shared; i < t->tokens.n; i++, p->rows++) {
        assert_int_equal(sqlite3_step(p->st), SQLITE_ROW);
        assert_int_equal(sqlite3_column_int(p->st, 0), t->n);
        assert_int_equal(sqlite3_column_int(p->st, 1), i);
        assert_int_equal(sqlite3_column_int64(p->st, 2), t->tokens.v[i]);
        assert_int_equal(sqlite3_column_int(p->st, 3), i < t->n_reused);
    }
    p->before.n = 0;
    ids_cat(&p->before, t->tokens.v, t->tokens.n);
    return true;
}

struct turns {
    sqlite3_stmt *st;
    int changed;
};

static bool compare_turn(const struct turn_row *t, void *arg)
{
    struct turns *x = arg;
    const struct reuse *r = &t->reuse;
    if (!t->is_user)
        return true;
    assert_int_equal(sqlite3_step(x->st), SQLITE_ROW);
    assert_int_equal(sqlite3_column_int(x->st, 0), t->n);
    assert_int_equal(sqlite3_column_int(x->st, 1), t->tokens.n);
    assert_int_equal(sqlite3_column_int(x->st, 2), t->n_reused);
    if (r->change == CHANGE_UNKNOWN) {
        assert_int_equal(sqlite3_column_type(x->st, 3), SQLITE_NULL);
        return true;
    }
    x->changed++;
    assert_string_equal((const char *)sqlite3_column_text(x->st, 3), reuse_change_name(r->change));
    assert_int_equal(sqlite3_column_int(x->st, 4), r->turn);
    assert_int_equal(sqlite3_column_int(x->st, 5), r->held);
    assert_int_equal(sqlite3_column_int(x->st, 6), r->same);
    assert_int_equal(sqlite3_column_type(x->st, 7) == SQLITE_NULL, r->limit == LIMIT_NONE);
    if (r->limit != LIMIT_NONE) {
        assert_string_equal((const char *)sqlite3_column_text(x->st, 7),
                            reuse_limit_name(r->limit));
        assert_int_equal(sqlite3_column_int(x->st, 8), r->from);
        assert_int_equal(sqlite3_column_int(x->st, 9), r->to);
    }
    return true;
}

static void test_turns_say_why_a_prompt_was_computed_again(void **state)
{
    (void)state;
    struct err e = {0};
    char id[SESSION_ID];
    session_new_id(id);
    struct history *h = log_open(LOG_TEXT);
    write_session(h, id, 40);
    history_close(h);
    struct hdb *d = read_open();
    sqlite3 *f = foreign_open();
    struct turns x =
        {.st = ask(f, "SELECT turn, prompt_tokens, reused, change, change_turn, held, same,"
                                   " limited, gone_from, gone_to FROM v_turn ORDER BY turn")};
    assert_int_equal(hdb_turns(d, id, 0, compare_turn, &x, &e), 80);
    assert_int_equal(sqlite3_step(x.st), SQLITE_DONE);
    assert_true(x.changed > 15 && x.changed < 40);
    sqlite3_finalize(x.st);
    sqlite3_close(f);
    hdb_close(d);
}

static void test_prompts_and_settings(void **state)
{
    (void)state;
    struct err e = {0};
    char id[SESSION_ID];
    session_new_id(id);
    struct history *h = log_open(LOG_STEPS);
    write_odd_session(h, id);
    history_close(h);
    struct hdb *d = read_open();
    sqlite3 *f = foreign_open();
    struct prompts p = {.st = ask(f, "SELECT turn, position, token, reused FROM v_prompt"
                                     " ORDER BY turn, position")};
    assert_int_equal(hdb_turns(d, id, 0, compare_prompt, &p, &e), 2 * TURNS);
    assert_int_equal(sqlite3_step(p.st), SQLITE_DONE);
    assert_true(p.rows > 10);
    sqlite3_finalize(p.st);
    p.st = ask(f, "SELECT group_concat(name || '=' || value, char(10)) FROM v_settings WHERE turn "
                  "= 3");
    assert_int_equal(sqlite3_step(p.st), SQLITE_ROW);
    assert_string_equal((const char *)sqlite3_column_text(p.st, 0),
                        "temperature=0\nsystem.file=C:\\new \"x\"\nseed=1");
    sqlite3_finalize(p.st);
    sqlite3_close(f);
    ids_free(&p.before);
    hdb_close(d);
}

/* A condition on session and turn must not decode the whole log. */
static void test_a_turn_is_found_by_its_index(void **state)
{
    (void)state;
    static const char *const view[] = {"v_turn", "v_step", "v_token", "v_prompt", "v_node",
                                       "v_settings", "v_page"};
    history_close(log_open(LOG_STEPS));
    sqlite3 *f = foreign_open();
    for (size_t i = 0; i < sizeof view / sizeof *view; i++) {
        char sql[120];
        bool indexed = false;
        snprintf(sql, sizeof sql, "EXPLAIN QUERY PLAN SELECT * FROM %s WHERE session='x' AND "
                                  "turn=7", view[i]);
        sqlite3_stmt *st = ask(f, sql);
        while (sqlite3_step(st) == SQLITE_ROW)
            indexed |= strstr((const char *)sqlite3_column_text(st, 3), "(session_id=? AND n=?") !=
                       NULL;
        if (!indexed)
            fail_msg("%s reads every turn", view[i]);
        sqlite3_finalize(st);
    }
    sqlite3_close(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_nodes_and_tokens_are_what_the_readers_decode),
        TEST(test_turns_say_why_a_prompt_was_computed_again),
        TEST(test_prompts_and_settings),
        TEST(test_a_turn_is_found_by_its_index),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
