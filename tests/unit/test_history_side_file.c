/* Turns that cannot be stored when the program ends: they are counted, kept in a side file, and
 * stored by the next start, once, wherever that start is killed. */
#include "history/internal.h"
#include "tests/few.h"
#include "tests/history_kit.h"

#include <glob.h>
#include <poll.h>
#include <sqlite3.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

static char id[SESSION_ID];

static sqlite3 *hold_lock(void)
{
    sqlite3 *s;
    assert_int_equal(sqlite3_open(db_path, &s), SQLITE_OK);
    assert_int_equal(sqlite3_exec(s, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
    return s;
}

static void drop_lock(sqlite3 *s)
{
    sqlite3_exec(s, "ROLLBACK", NULL, NULL, NULL);
    sqlite3_close(s);
}

static struct history *log_with_a_turn(void)
{
    struct history *h = log_open(LOG_TREE);
    session_new_id(id);
    write_session(h, id, 1);
    assert_true(history_flush(h, 60000));
    return h;
}

/* The side file's name, "" if there is none. */
static void side_file(char out[300])
{
    char pattern[200];
    glob_t g;
    snprintf(pattern, sizeof pattern, "%s.unsaved-????????????????", db_path);
    out[0] = '\0';
    if (glob(pattern, 0, NULL, &g) == 0)
        snprintf(out, 300, "%s", g.gl_pathv[0]);
    globfree(&g);
}

/* The turns of the session are there once each, and nothing else is wrong. */
static void check_turns(int turns)
{
    struct err e = {0};
    struct buf report = {0};
    char name[300];
    struct hdb *d = read_open();
    assert_int_equal(sql_int(d, "SELECT count(*) AS n FROM turn WHERE role='user'"), turns);
    assert_int_equal(sql_int(d, "SELECT count(*) AS n FROM turn WHERE role='reply' AND stop NOT IN"
                                " ('', 'crashed')"), turns);
    assert_int_equal(sql_int(d, "SELECT count(*) AS n FROM run WHERE ended=0"), 0);
    hdb_close(d);
    if (!history_check(db_path, &report, &e))
        fail_msg("%s", report.p);
    buf_free(&report);
    side_file(name);
    assert_string_equal(name, "");
}

/* Closes a log that cannot store, until the side file is there. */
static void finish_to_side_file(struct history *h, struct history_left *left)
{
    for (int i = 0; i < 100; i++) {
        assert_false(history_finish(h, 100, left));
        if (left->kept[0])
            return;
    }
    fail_msg("no side file");
}

/* Two more turns that the log cannot take; ends with the side file in place, the lock free. */
static void leave_two_turns(char name[300])
{
    struct history_left left;
    struct stat st;
    struct history *h = log_with_a_turn();
    sqlite3 *other = hold_lock();
    one_turn(h, id, 2, false);
    one_turn(h, id, 3, false);
    assert_false(history_flush(h, 10)); /* its mark is no event to keep */
    finish_to_side_file(h, &left);
    assert_int_equal(left.turns, 2);
    assert_non_null(strstr(left.why, "locked"));
    side_file(name);
    assert_string_equal(left.kept, name);
    assert_int_equal(stat(name, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    history_close(h);
    drop_lock(other);
}

static void test_a_locked_log_leaves_a_file_that_the_next_start_takes_in(void **state)
{
    (void)state;
    char name[300];
    struct history_status s;
    leave_two_turns(name);
    struct history *h = log_open(LOG_STEPS);
    history_status(h, &s);
    assert_non_null(strstr(s.notice, "2 turns that an earlier aerie could not store are stored"));
    history_close(h);
    check_turns(3);
}

/* ---- the rows are those of a log that was never locked ---- */

enum { TURNS = 6 };

/* A session whose second turn has begun. */
static void post_begin(struct history *h, const struct made_turn t[TURNS])
{
    post_session(h, id, "", 0);
    post_turn(h, &t[0], t[0].n_steps, true);
    post_turn(h, &t[1], 1, false);
    assert_true(history_flush(h, 60000));
}

/* The rest of that turn, a setting, a turn, a fork with a turn, a fault, a session beside, and in
 * the first session again a turn that does not end. */
static void post_rest(struct history *h, const struct made_turn t[TURNS])
{
    for (int i = 1; i < t[1].n_steps; i++)
        post_copy(h, &t[1].step[i]);
    post_copy(h, &t[1].end);
    post_op(h, id, OP_SET, 2, "temperature=0.5");
    post_turn(h, &t[2], t[2].n_steps, true);
    post_session(h, t[3].begin.session, id, 2);
    post_op(h, t[3].begin.session, OP_OPEN, 2, "seed=3\n");
    post_turn(h, &t[3], t[3].n_steps, true);
    struct event ev = event_of(EV_FAULT, t[3].begin.session, 3, "page 7 has two owners");
    ev.at.rule = 4;
    post(h, &ev);
    ev = event_of(EV_SESSION, t[4].begin.session, 0, NULL);
    ev.beside = true;
    post(h, &ev);
    post_turn(h, &t[4], t[4].n_steps, true);
    post_session(h, id, "", 0);
    post_op(h, id, OP_RESUME, 3, "seed=4\n");
    ev = event_of(EV_TEXT, id, 4, "thoughts");
    ev.channel = 1;
    post_turn(h, &t[5], 1, false);
    post(h, &ev);
}

/* What is compared of two logs: all but ids of rows, times, and how prompts are stored. */
static const char *const compared[] = {
    "SELECT id, number, parent, fork_turn, title, pinned, links FROM @.session",
    "SELECT session_id, version, dir, server_id, config, ended, link FROM @.run r JOIN"
    " @.build b ON b.id=build_id"
    " JOIN @.model m ON m.id=target_id",
    "SELECT session_id, n, role, text, shared + length(tokens) / 4, regen, seed, sampling,"
    " draws0, n_reused, change,"
    " change_turn, held, same, limited, gone_from, gone_to, stop, draws1, n_steps, n_drafted,"
    " n_accepted, us_prefill,"
    " us_decode, link FROM @.turn",
    "SELECT session_id, n, role, tokens FROM @.turn WHERE role='reply'",
    "SELECT session_id, n, k, channel, p.text FROM @.turn t JOIN @.turn_part p ON p.turn_id=t.id",
    "SELECT session_id, t.n, s.n, kind, pos0, rows, drafted, accepted, bonus, draws,"
    " page_digest, draft_digest,"
    " logit_digest, us_draft, us_verify, us_commit, us_check, s.tokens, margin, forced,"
    " fused, facts, source, us_arrived,"
    " nodes, events FROM @.turn t JOIN @.step s ON s.turn_id=t.id LEFT JOIN @.tree r ON"
    " r.step_id=s.id"
    " LEFT JOIN @.pages p ON p.step_id=s.id",
    "SELECT session_id, t.n, s.n, k, rank, token, logp, o.text FROM @.turn t JOIN @.step s ON"
    " s.turn_id=t.id"
    " JOIN @.top o ON o.step_id=s.id",
    "SELECT session_id, n, prompt, generated, cached, drafted, accepted, verifies, ms_queue,"
    " ms_first, finish,"
    " prompt_ids, reply_ids, v.tokens FROM @.turn t JOIN @.served v ON v.turn_id=t.id",
    ("SELECT session_id, n, name, labels, before, after FROM @.turn t JOIN @.metric m ON"
     " m.turn_id=t.id"),
    "SELECT session_id, turn, step, kind, op, text, link FROM @.event",
};

/* A query with a schema's name in place of each "@". */
static char *of_schema(const char *sql, const char *schema)
{
    struct buf b = {0};
    for (; *sql; sql++)
        buf_printf(&b, "%.*s", *sql == '@' ? 9 : 1, *sql == '@' ? schema : sql);
    return b.p;
}

static void compare_logs(const char *other)
{
    sqlite3 *db;
    sqlite3_stmt *st;
    char *attach = xasprintf("ATTACH '%s' AS other", other);
    assert_int_equal(sqlite3_open(db_path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, attach, NULL, NULL, NULL), SQLITE_OK);
    for (size_t i = 0; i < 2 * sizeof compared / sizeof *compared; i++) {
        char *a = of_schema(compared[i / 2], i % 2 ? "main" : "other");
        char *b = of_schema(compared[i / 2], i % 2 ? "other" : "main");
        char *sql =
            xasprintf("SELECT (SELECT count(*) FROM (%s)), count(*) FROM (%s EXCEPT %s)", a, a, b);
        assert_int_equal(sqlite3_prepare_v2(db, sql, -1, &st, NULL), SQLITE_OK);
        assert_int_equal(sqlite3_step(st), SQLITE_ROW);
        if (!sqlite3_column_int(st, 0) || sqlite3_column_int(st, 1))
            fail_msg("of %d rows %d differ: %s", sqlite3_column_int(st, 0),
                     sqlite3_column_int(st, 1), sql);
        sqlite3_finalize(st);
        free(a);
        free(b);
        free(sql);
    }
    sqlite3_close(db);
    free(attach);
}

static bool add_prompt(const struct turn_row *r, void *arg)
{
    buf_add(arg, r->tokens.v, (size_t)r->tokens.n * sizeof *r->tokens.v);
    return true;
}

/* The prompts and replies of a session, as a reader puts them together. */
static struct buf prompts(const char *session)
{
    struct buf b = {0};
    struct err e = {0};
    struct hdb *d = read_open();
    assert_true(hdb_turns(d, session, 0, add_prompt, &b, &e) > 0);
    hdb_close(d);
    return b;
}

static void test_its_rows_are_those_of_a_log_that_was_never_locked(void **state)
{
    (void)state;
    static const int of[TURNS] = {0, 0, 0, 1, 2, 0}, number[TURNS] = {1, 2, 3, 3, 1, 4};
    struct made_turn t[TURNS];
    struct ids context[3] = {0};
    struct history_left left;
    char session[3][SESSION_ID], locked[sizeof db_path];
    for (int i = 0; i < 3; i++)
        session_new_id(session[i]);
    memcpy(id, session[0], sizeof id);
    for (int i = 0; i < TURNS; i++)
        make_turn(&t[i], session[of[i]], number[i], &context[i == 3 ? 2 : i == 4]);
    make_served(&t[4]);
    struct history *h = log_open(LOG_TREE);
    post_begin(h, t);
    sqlite3 *other = hold_lock();
    post_rest(h, t);
    finish_to_side_file(h, &left);
    assert_int_equal(left.turns, 4);
    history_close(h);
    drop_lock(other);
    history_close(log_open(LOG_STEPS));
    struct buf with[3], without, report = {0};
    if (!history_check(db_path, &report, &(struct err){0}))
        fail_msg("%s", report.p);
    buf_free(&report);
    for (int i = 0; i < 3; i++)
        with[i] = prompts(session[i]);
    memcpy(locked, db_path, sizeof locked);
    snprintf(db_path, sizeof db_path, "%s/free/sessions.db", scratch);
    h = log_open(LOG_TREE);
    post_begin(h, t);
    post_rest(h, t);
    history_close(h);
    compare_logs(locked);
    for (int i = 0; i < 3; i++) {
        without = prompts(session[i]);
        assert_int_equal(with[i].n, without.n);
        assert_memory_equal(with[i].p, without.p, without.n);
        buf_free(&with[i]);
        buf_free(&without);
    }
    for (int i = 0; i < TURNS; i++)
        free_turn(&t[i]);
    ids_free(&context[0]);
    ids_free(&context[1]);
    ids_free(&context[2]);
}

static void copy_file(const char *from, const char *to)
{
    struct buf b = {0};
    assert_true(buf_read_file(&b, from, 64 << 20, NULL));
    FILE *f = fopen(to, "wb");
    assert_int_equal(fwrite(b.p, 1, b.n, f), b.n);
    fclose(f);
    buf_free(&b);
}

static void test_a_file_that_was_taken_in_is_not_taken_again(void **state)
{
    (void)state;
    char name[300], copy[320];
    leave_two_turns(name);
    snprintf(copy, sizeof copy, "%s/copy", scratch);
    copy_file(name, copy);
    history_close(log_open(LOG_STEPS));
    check_turns(3);
    copy_file(copy, name); /* as if the start had died before it removed the file */
    uint64_t writer = strtoull(name + strlen(name) - 16, NULL, 16);
    char sql[100];
    sqlite3 *db;
    snprintf(sql, sizeof sql, "INSERT INTO taken(id) VALUES(x'%016llx')",
             (unsigned long long)__builtin_bswap64(writer));
    assert_int_equal(sqlite3_open(db_path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
    history_close(log_open(LOG_STEPS));
    check_turns(3);
    struct hdb *d = read_open();
    assert_int_equal(sql_int(d, "SELECT count(*) AS n FROM taken"), 0);
    hdb_close(d);
}

static int commits_left;

static int die_at_commit(void *unused)
{
    (void)unused;
    if (commits_left-- == 0)
        _exit(7);
    return 0;
}

static int watch_commits(sqlite3 *db, const char **why, const struct sqlite3_api_routines *api)
{
    (void)why, (void)api;
    sqlite3_commit_hook(db, die_at_commit, NULL);
    return SQLITE_OK;
}

static void test_a_start_that_is_killed_while_it_takes_in_loses_nothing(void **state)
{
    (void)state;
    int died = 0;
    for (int k = 0; k < 4; k++) {
        char name[300];
        snprintf(db_path, sizeof db_path, "%s/%d/sessions.db", scratch, k);
        leave_two_turns(name);
        pid_t pid = fork();
        if (pid == 0) {
            struct err e;
            commits_left = k;
            sqlite3_auto_extension((void (*)(void))watch_commits);
            history_close(history_open(db_path, LOG_STEPS, &about, &e));
            _exit(0);
        }
        int status;
        waitpid(pid, &status, 0);
        died += WEXITSTATUS(status) == 7;
        history_close(log_open(LOG_STEPS));
        check_turns(3);
    }
    assert_true(died >= 2);
}

static void test_a_turn_that_had_begun_is_ended(void **state)
{
    (void)state;
    struct ids context = {0};
    struct made_turn t;
    struct history_left left;
    struct history *h = log_with_a_turn();
    make_turn(&t, id, 2, &context);
    post_turn(h, &t, t.n_steps, false);
    assert_true(history_flush(h, 60000));
    sqlite3 *other = hold_lock();
    post_copy(h, &t.end);
    finish_to_side_file(h, &left);
    assert_int_equal(left.turns, 1);
    history_close(h);
    drop_lock(other);
    history_close(log_open(LOG_STEPS));
    check_turns(2);
    free_turn(&t);
    ids_free(&context);
}

static void test_what_is_stored_after_all_leaves_no_file(void **state)
{
    (void)state;
    struct history_left left;
    struct history *h = log_with_a_turn();
    sqlite3 *other = hold_lock();
    one_turn(h, id, 2, false);
    finish_to_side_file(h, &left);
    drop_lock(other);
    assert_true(history_finish(h, 5000, &left));
    assert_false(left.some);
    history_close(h);
    check_turns(2);
}

static void test_a_full_disk_is_told_as_such(void **state)
{
    (void)state;
    struct history_left left = {0};
    struct rlimit limit, old;
    struct history *h = log_with_a_turn();
    getrlimit(RLIMIT_FSIZE, &old);
    limit = old;
    limit.rlim_cur = 100;
    setrlimit(RLIMIT_FSIZE, &limit);
    one_turn(h, id, 2, false);
    for (int i = 0; i < 50 && (i < 8 || !left.turns); i++)
        assert_false(history_finish(h, 100, &left));
    setrlimit(RLIMIT_FSIZE, &old);
    assert_int_equal(left.turns, 1);
    assert_string_equal(left.kept, "");
    assert_true(history_finish(h, 5000, &left)); /* room again */
    history_close(h);
    check_turns(2);
}

static void test_a_damaged_side_file_is_set_aside(void **state)
{
    (void)state;
    char name[300];
    struct history_status s;
    leave_two_turns(name);
    FILE *f = fopen(name, "r+");
    fseek(f, 300, SEEK_SET);
    fputc('!', f);
    fclose(f);
    struct history *h = log_open(LOG_STEPS);
    history_status(h, &s);
    assert_non_null(strstr(s.notice, "is damaged, it is kept as "));
    history_close(h);
    check_turns(1);
    assert_int_equal(count_aside(), 1);
}

/* Puts odd values into columns of the database in a file. */
static void change_values(const char *file)
{
    static const char *const column[] = {"session.id",
                                         "session.parent",
                                         "session.fork_turn",
                                         "session.title",
                                         "session.updated_ms",
                                         "session.number",
                                         "run.id",
                                         "run.session_id",
                                         "run.created_ms",
                                         "run.config",
                                         "run.link",
                                         "run.build_id",
                                         "build.version",
                                         "turn.id",
                                         "turn.session_id",
                                         "turn.n",
                                         "turn.role",
                                         "turn.text",
                                         "turn.tokens",
                                         "turn.shared",
                                         "turn.stop",
                                         "turn.link",
                                         "turn.change_turn",
                                         "turn.run_id",
                                         "step.id",
                                         "step.turn_id",
                                         "step.n",
                                         "step.tokens",
                                         "step.facts",
                                         "tree.step_id",
                                         "tree.nodes",
                                         "pages.events",
                                         "event.id",
                                         "event.turn",
                                         "event.link",
                                         "event.text"};
    static const char *const value[] = {
        "NULL",    "-1",    "0",          "9223372036854775807", "-9223372036854775808",      "'x'",
        "x'FF00'", "1e300", "2147483648", "zeroblob(100000)",    "(SELECT max(id) FROM turn)"};
    sqlite3 *db;
    assert_int_equal(sqlite3_open(file, &db), SQLITE_OK);
    for (int k = (int)roll(4); k >= 0; k--) {
        const char *c = column[roll(sizeof column / sizeof *column)];
        char *sql =
            xasprintf("UPDATE OR IGNORE %.*s SET %s=%s WHERE %d OR rowid=%d", (int)strcspn(c, "."),
                      c, strchr(c, '.') + 1, value[roll(sizeof value / sizeof *value)],
                      (int)roll(2), 1 + (int)roll(3));
        sqlite3_exec(db, sql, NULL, NULL, NULL); /* the schema may forbid it */
        free(sql);
    }
    sqlite3_close(db);
}

/* Values in a side file are changed, and it is sealed again: it is stored or refused, and what the
 * log then has is what aerie wrote there. */
static void test_no_value_in_a_side_file_harms_the_log(void **state)
{
    (void)state;
    enum { SEAL_BYTES = 20 + 64 + 1 }; /* its last line */
    char name[300], file[200];
    struct buf side = {0}, log = {0}, bad = {0};
    struct err e = {0};
    int stored = 0, all = rounds(16, 400), turns;
    leave_two_turns(name);
    snprintf(file, sizeof file, "%s/values.db", scratch);
    assert_true(buf_read_file(&side, name, 64 << 20, NULL));
    change_log("PRAGMA journal_mode=DELETE");
    assert_true(buf_read_file(&log, db_path, 64 << 20, NULL));
    for (int i = 0; i < all; i++) {
        char *clean = xasprintf("rm -f %s* %s", db_path, file);
        assert_int_equal(system(clean), 0);
        assert_true(hdb_save(file, side.p, side.n - SEAL_BYTES, &e));
        change_values(file);
        assert_true(buf_read_file(&bad, file, 64 << 20, NULL));
        assert_true(hdb_save(db_path, log.p, log.n, &e) && pack_write(name, bad.p, bad.n, &e));
        history_close(log_open(LOG_STEPS));
        struct hdb *d = read_open();
        stored += sql_int(d, "SELECT count(*) AS n FROM turn WHERE role='user'") == 3;
        assert_int_equal(verify_bad(d, &turns), 0);
        hdb_close(d);
        buf_free(&bad);
        free(clean);
    }
    assert_true(stored > all / 4);
    buf_free(&side);
    buf_free(&log);
}

static void test_a_start_without_a_message_leaves_nothing(void **state)
{
    (void)state;
    char name[300];
    struct history_left left;
    history_close(log_with_a_turn());
    struct history *h = log_open(LOG_STEPS);
    sqlite3 *other = hold_lock();
    char fresh[SESSION_ID];
    session_new_id(fresh);
    post_session(h, fresh, "", 0);
    post_op(h, fresh, OP_OPEN, 0, "seed=1\n");
    assert_true(history_finish(h, 3000, &left));
    history_close(h);
    side_file(name);
    assert_string_equal(name, "");
    drop_lock(other);
}

/* ---- the screen is told ---- */

static bool woken(struct history *h, struct history_status *s)
{
    struct pollfd p = {.fd = history_fd(h), .events = POLLIN};
    bool news = poll(&p, 1, 5000) == 1;
    history_status(h, s);
    return news && poll(&p, 1, 0) == 0; /* read: it sleeps again */
}

/* Whether the log wakes until it says that it records, or that it does not. An acknowledged turn
 * wakes, too. */
static bool woken_when(struct history *h, struct history_status *s, bool recording)
{
    for (int i = 0; i < 8; i++)
        if (!woken(h, s))
            return false;
        else if (s->recording == recording)
            return true;
    return false;
}

static void test_a_change_of_the_status_wakes_who_shows_it(void **state)
{
    (void)state;
    struct history_status s;
    struct history *h = log_with_a_turn();
    sqlite3 *other = hold_lock();
    one_turn(h, id, 2, false);
    assert_true(woken_when(h, &s, false));
    assert_non_null(strstr(s.error, "locked"));
    drop_lock(other);
    assert_true(woken_when(h, &s, true));
    assert_string_equal(s.error, "");
    history_close(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_a_locked_log_leaves_a_file_that_the_next_start_takes_in),
        TEST(test_its_rows_are_those_of_a_log_that_was_never_locked),
        TEST(test_a_file_that_was_taken_in_is_not_taken_again),
        TEST(test_a_start_that_is_killed_while_it_takes_in_loses_nothing),
        TEST(test_a_turn_that_had_begun_is_ended),
        TEST(test_what_is_stored_after_all_leaves_no_file),
        TEST(test_a_full_disk_is_told_as_such),
        TEST(test_a_damaged_side_file_is_set_aside),
        TEST(test_no_value_in_a_side_file_harms_the_log),
        TEST(test_a_start_without_a_message_leaves_nothing),
        TEST(test_a_change_of_the_status_wakes_who_shows_it),
    };
    return cmocka_run_group_tests_name("history_side_file", tests, NULL, NULL);
}
