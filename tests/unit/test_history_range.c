/* Numbers that another program put into the log are range-checked before any arithmetic, and a
 * reader can be stopped. */
#include "history/internal.h"
#include "tests/history_kit.h"

static char id[SESSION_ID];

static void make_log(void)
{
    struct history *h = log_open(LOG_TREE);
    session_new_id(id);
    write_session(h, id, 3);
    history_close(h);
}

static bool any_session(const struct session_row *r, void *arg) { (void)r, (void)arg; return true; }
static bool any_turn(const struct turn_row *r, void *arg) { (void)r, (void)arg; return true; }
static bool any_step(const struct step_row *r, void *arg) { (void)r, (void)arg; return true; }
static bool any_op(const struct op_row *r, void *arg) { (void)r, (void)arg; return true; }

/* Every reader either answers or says which number is wrong. Returns how many said so. */
static int refusals(void)
{
    struct err e[4] = {{0}};
    int n = 0;
    struct hdb_past past;
    struct hdb *d = read_open();
    int got[4] = {hdb_sessions(d, NULL, NULL, 0, any_session, NULL, &e[0]),
                  hdb_turns(d, id, 0, any_turn, NULL, &e[1]),
                  hdb_steps(d, id, 0, any_step, NULL, &e[2]),
                  hdb_ops(d, id, any_op, NULL, &e[3])};
    for (int i = 0; i < 4; i++) {
        n += got[i] < 0;
        if (got[i] < 0 && (e[i].kind != ERR_DB || !strstr(e[i].msg, "out of range")))
            fail_msg("%s", e[i].msg);
    }
    if (hdb_past(d, id, INT32_MAX, &past, &e[0]))
        hdb_past_free(&past);
    hdb_close(d);
    return n;
}

static void test_numbers_out_of_range_are_named(void **state)
{
    (void)state;
    static const char *const edit[] = {
        "UPDATE session SET fork_turn=9223372036854775807",
        "UPDATE session SET fork_turn=-1",
        "UPDATE turn SET n=2147483647 WHERE n=3",
        "UPDATE turn SET n=9223372036854775807 WHERE n=3",
        "UPDATE turn SET n=-5 WHERE n=3",
        "UPDATE turn SET n_reused=4294967296 WHERE role='user'",
        "UPDATE turn SET n_accepted=-1 WHERE role='reply'",
        "UPDATE turn SET n_steps='many' WHERE role='reply'",
        "UPDATE step SET pos0=2147483647",
        "UPDATE step SET n=4294967297 WHERE n=1",
        "UPDATE step SET accepted=-2",
        "UPDATE event SET turn=-9223372036854775807 WHERE kind='op'",
    };
    for (size_t i = 0; i < sizeof edit / sizeof *edit; i++) {
        snprintf(db_path, sizeof db_path, "%s/%zu/sessions.db", scratch, i);
        make_log();
        assert_int_equal(refusals(), 0);
        change_log(edit[i]);
        if (!refusals())
            fail_msg("taken as it is: %s", edit[i]);
    }
}

/* The writer goes on in a session whose numbers leave no room; nothing overflows. */
static void test_the_writer_refuses_numbers_without_room(void **state)
{
    (void)state;
    static const char *const edit[] = {
        "UPDATE turn SET n=9223372036854775807 WHERE n=3",
        "UPDATE turn SET n=2147483647 WHERE n=3",
        "UPDATE session SET links=9223372036854775807",
        "UPDATE session SET links=-1",
    };
    for (size_t i = 0; i < sizeof edit / sizeof *edit; i++) {
        struct history_status s;
        snprintf(db_path, sizeof db_path, "%s/%zu/sessions.db", scratch, i);
        make_log();
        change_log(edit[i]);
        struct history *h = log_open(LOG_STEPS);
        post_session(h, id, "", 0);
        one_turn(h, id, 4, false);
        history_flush(h, 400);
        history_status(h, &s);
        assert_int_equal(s.acked_turns, 0);
        history_close(h);
    }
}

static bool always(void)
{
    return true;
}

static void test_a_reader_is_stopped(void **state)
{
    (void)state;
    make_log();
    struct err e = {0};
    struct hdb *d = read_open();
    sqlite3_stmt *st = db_prepare(&d->db, &e, "WITH RECURSIVE c(x) AS (VALUES(1) UNION ALL SELECT"
                                  " x + 1 FROM c) SELECT max(x) FROM c", "");
    assert_non_null(st);
    hdb_stop_when(always);
    alarm(300);
    assert_int_equal(sqlite3_step(st), SQLITE_INTERRUPT);
    alarm(0);
    assert_false(db_fail(&d->db, &e, "cannot read"));
    assert_int_equal(e.kind, ERR_USAGE);
    assert_string_equal(e.msg, "interrupted");
    hdb_stop_when(NULL);
    d->db.limit = 1000; /* what a damaged file could make endless ends by itself */
    d->db.work = 0;
    assert_int_equal(sqlite3_step(st), SQLITE_INTERRUPT);
    assert_false(db_fail(&d->db, &e, "cannot read"));
    assert_non_null(strstr(e.msg, "took too long and was stopped"));
    sqlite3_finalize(st);
    hdb_close(d);
}

/* ---- what a long session costs ---- */

/* Calls of write() of this process so far. */
static long writes(void)
{
    FILE *f = fopen("/proc/self/io", "r");
    char line[80];
    long n = -1;
    while (f && fgets(line, sizeof line, f))
        sscanf(line, "syscw: %ld", &n);
    if (f)
        fclose(f);
    return n;
}

static void test_an_export_writes_records_by_the_batch(void **state)
{
    (void)state;
    char to[200];
    struct err e = {0};
    struct history *h = log_open(LOG_TREE);
    session_new_id(id);
    write_session(h, id, 100);
    history_close(h);
    struct hdb *d = read_open();
    long long records = sql_int(d, "SELECT (SELECT count(*) FROM step) + (SELECT count(*) FROM"
                                   " turn) + (SELECT count(*) FROM pages) AS n");
    assert_true(records > 1000);
    snprintf(to, sizeof to, "%s/out.jsonl", scratch);
    long before = writes();
    assert_true(hdb_export(d, id, to, &e));
    long took = writes() - before;
    if (before >= 0 && took > records / 10)
        fail_msg("%ld writes for %lld records", took, records);
    hdb_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_numbers_out_of_range_are_named),
        TEST(test_the_writer_refuses_numbers_without_room),
        TEST(test_a_reader_is_stopped),
        TEST(test_an_export_writes_records_by_the_batch),
    };
    return cmocka_run_group_tests_name("history_range", tests, NULL, NULL);
}
