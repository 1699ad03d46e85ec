/* No operation of this process on its own log drops SQLite's POSIX locks. Otherwise another process
 * that closes the database would miss this process's lock and delete the write-ahead log. */
#include "tests/history_kit.h"

#include <sqlite3.h>
#include <sys/stat.h>
#include <sys/wait.h>

/* Another process, forked before this one opens anything: for each byte that it gets it opens the
 * database, reads, and closes it, as the last connection if this process has no lock. */
static struct other {
    pid_t pid;
    int ask[2], answer[2];
} other;

static void open_and_close(const char *path)
{
    sqlite3 *s;
    bool ok = sqlite3_open(path, &s) == SQLITE_OK &&
              sqlite3_exec(s, "select count(*) from turn", NULL, NULL, NULL) == SQLITE_OK;
    sqlite3_close(s);
    if (!ok || write(other.answer[1], "k", 1) != 1)
        _exit(1);
}

static int other_begin(void **state)
{
    scratch_begin(state);
    assert_int_equal(pipe(other.ask), 0);
    assert_int_equal(pipe(other.answer), 0);
    other.pid = fork();
    assert_true(other.pid >= 0);
    if (other.pid == 0) {
        char c;
        close(other.ask[1]);
        while (read(other.ask[0], &c, 1) == 1)
            open_and_close(db_path);
        _exit(0);
    }
    return 0;
}

static int other_end(void **state)
{
    int status;
    close(other.ask[1]);
    assert_int_equal(waitpid(other.pid, &status, 0), other.pid);
    assert_int_equal(status, 0);
    close(other.ask[0]);
    close(other.answer[0]);
    close(other.answer[1]);
    return scratch_end(state);
}

static ino_t wal_file(void)
{
    char path[200];
    struct stat st;
    snprintf(path, sizeof path, "%s-wal", db_path);
    return stat(path, &st) == 0 ? st.st_ino : 0;
}

/* Fails if the other process deletes the write-ahead log. */
static void expect_locked(const char *after, ino_t wal)
{
    char c;
    assert_int_equal(write(other.ask[1], "g", 1), 1);
    assert_int_equal(read(other.answer[0], &c, 1), 1);
    if (wal_file() != wal)
        fail_msg("after %s another process deletes the write-ahead log", after);
}

static void test_readers_and_maintenance_keep_the_writers_lock(void **state)
{
    (void)state;
    struct err e = {0};
    struct buf report = {0};
    char id[2][SESSION_ID], copy[200];
    session_new_id(id[0]);
    session_new_id(id[1]);
    snprintf(copy, sizeof copy, "%s/copy.db", scratch);
    struct history *h = log_open(LOG_TREE);
    write_session(h, id[0], 2);
    assert_true(history_flush(h, 60000));
    ino_t wal = wal_file();
    assert_true(wal != 0);
    expect_locked("nothing", wal);
    hdb_close(read_open());
    expect_locked("a reader", wal);
    struct hdb *d = read_open();
    hdb_close(read_open());
    expect_locked("a second reader", wal);
    hdb_close(d);
    assert_true(history_set_title(db_path, id[0], "a title", &e));
    expect_locked("a new title", wal);
    assert_true(history_check(db_path, &report, &e));
    expect_locked("a check", wal);
    assert_true(history_backup(db_path, copy, &e));
    expect_locked("a backup", wal);
    write_session(h, id[1], 2);
    assert_true(history_flush(h, 60000));
    history_close(h);
    d = read_open();
    assert_int_equal(sql_int(d, "select count(*) from turn where role = 'reply'"), 4);
    hdb_close(d);
    buf_free(&report);
}

static void test_a_reader_keeps_its_own_lock(void **state)
{
    (void)state;
    char id[SESSION_ID];
    session_new_id(id);
    struct history *h = log_open(LOG_TREE);
    write_session(h, id, 1);
    assert_true(history_flush(h, 60000));
    ino_t wal = wal_file();
    struct hdb *d = read_open();
    /* opens a second connection */
    assert_int_equal(sql_int(d, "select count(*) from turn where role = 'reply'"), 1);
    hdb_close(read_open());
    expect_locked("readers beside a writer", wal);
    hdb_close(d);
    history_close(h);
}

/* ---- a turn that is written in the middle of a check ---- */

static struct {
    struct history *h;
    const char *after; /* the statement after which it is written */
    int n_turn;        /* those in the log */
    char id[SESSION_ID];
} middle;

static int statement_ended(unsigned kind, void *arg, void *statement, void *ns)
{
    (void)kind, (void)arg, (void)ns;
    const char *sql = sqlite3_sql(statement);
    if (middle.after && sql && strstr(sql, middle.after)) {
        middle.after = NULL;
        one_turn(middle.h, middle.id, ++middle.n_turn, false);
        assert_true(history_flush(middle.h, 20000));
    }
    return 0;
}

static int watch_connection(sqlite3 *s, const char **why, const void *api)
{
    (void)why, (void)api;
    return sqlite3_trace_v2(s, SQLITE_TRACE_PROFILE, statement_ended, NULL);
}

static void test_a_turn_that_ends_during_a_check_is_no_damage(void **state)
{
    static const char *const after[] = {"integrity_check", "INSERT INTO temp.anew", "fts5vocab",
                                        "FROM turn_fts_config", "SELECT id, session_id, n"};
    (void)state;
    session_new_id(middle.id);
    middle.h = log_open(LOG_TEXT);
    write_session(middle.h, middle.id, 2);
    assert_true(history_flush(middle.h, 20000));
    middle.n_turn = 2;
    sqlite3_auto_extension((void (*)(void))watch_connection);
    for (size_t i = 0; i < sizeof after / sizeof *after; i++) {
        struct buf report = {0};
        struct err e = {0};
        middle.after = after[i];
        if (!history_check(db_path, &report, &e))
            fail_msg("after %s: %s\n%s", after[i], e.msg, report.p);
        assert_null(middle.after); /* it was written */
        buf_free(&report);
    }
    sqlite3_cancel_auto_extension((void (*)(void))watch_connection);
    history_close(middle.h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_readers_and_maintenance_keep_the_writers_lock,
                                        other_begin, other_end),
        cmocka_unit_test_setup_teardown(test_a_reader_keeps_its_own_lock, other_begin, other_end),
        TEST(test_a_turn_that_ends_during_a_check_is_no_damage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
