/* Foreign and changed files: files of other programs are not touched, a changed schema is never
 * used, and `db check` names everything that was added, removed or edited. */
#include "history/internal.h"
#include "tests/history_kit.h"

#include <dirent.h>
#include <sys/stat.h>

/* ---- files of other programs ---- */

static int count_files(const char *folder)
{
    DIR *d = opendir(folder);
    int n = 0;
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

/* Every way in refuses the file, and neither the file nor its folder changes. */
static void refused_untouched(const char *path, const char *why)
{
    char to[200];
    struct stat before, after;
    struct buf was = {0}, is = {0}, report = {0};
    struct err e = {0};
    snprintf(to, sizeof to, "%s.backup", path);
    assert_int_equal(chmod(path, 0644), 0);
    assert_int_equal(stat(path, &before), 0);
    assert_true(buf_read_file(&was, path, 64 << 20, NULL));
    int files = count_files(scratch);
    assert_null(history_open(path, LOG_STEPS, &about, &e));
    assert_int_equal(e.kind, ERR_DB);
    if (!strstr(e.msg, why))
        fail_msg("%s", e.msg);
    assert_null(hdb_open(path, &e));
    assert_int_equal(e.kind, ERR_DB);
    assert_false(history_check(path, &report, &e));
    assert_false(history_backup(path, to, &e));
    assert_int_equal(prune_older(path, 0, &e), -1);
    assert_false(history_set_title(path, "x", "y", &e));
    assert_int_equal(stat(path, &after), 0);
    assert_int_equal(after.st_mode & 0777, 0644);
    assert_int_equal(after.st_ino, before.st_ino);
    assert_int_equal(count_files(scratch), files);
    assert_true(buf_read_file(&is, path, 64 << 20, NULL));
    assert_true(was.n == is.n && memcmp(was.p, is.p, was.n) == 0);
    buf_free(&was);
    buf_free(&is);
    buf_free(&report);
}

static void test_a_text_file_is_left_alone(void **state)
{
    (void)state;
    char path[160];
    struct buf text = {0};
    snprintf(path, sizeof path, "%s/notes.txt", scratch);
    write_bytes(path, "remember the milk\n", 18);
    refused_untouched(path, "no session log");
    for (int i = 0; i < 1000; i++)
        buf_str(&text, "long enough to be looked at as a database ");
    write_bytes(path, text.p, text.n);
    refused_untouched(path, "no session log");
    buf_free(&text);
}

static void test_a_database_of_another_program_is_left_alone(void **state)
{
    (void)state;
    static const char *const make[] = {
        "CREATE TABLE bookmark(url)",
        "PRAGMA application_id=77; CREATE TABLE bookmark(url)",
        "PRAGMA user_version=3",
        "PRAGMA journal_mode=WAL; CREATE TABLE bookmark(url)",
    };
    for (int i = 0; i < 4; i++) {
        char path[160];
        sqlite3 *s;
        snprintf(path, sizeof path, "%s/other%d.db", scratch, i);
        assert_int_equal(sqlite3_open(path, &s), SQLITE_OK);
        assert_int_equal(sqlite3_exec(s, make[i], NULL, NULL, NULL), SQLITE_OK);
        sqlite3_close(s);
        refused_untouched(path, "another program");
    }
}

/* Its only table is still in its write-ahead log, and its owner goes on writing. */
static void test_a_database_that_another_program_has_open_is_left_alone(void **state)
{
    (void)state;
    char path[160];
    sqlite3 *s;
    snprintf(path, sizeof path, "%s/open.db", scratch);
    sqlite3_open(path, &s);
    sqlite3_exec(s, "PRAGMA journal_mode=WAL; CREATE TABLE t(x)", NULL, NULL, NULL);
    refused_untouched(path, "another program");
    assert_int_equal(sqlite3_exec(s, "INSERT INTO t VALUES(1)", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(s);
}

static void test_a_fifo_as_database_is_refused_at_once(void **state)
{
    (void)state;
    char path[160];
    struct err e = {0};
    struct buf report = {0};
    snprintf(path, sizeof path, "%s/fifo", scratch);
    assert_int_equal(mkfifo(path, 0600), 0);
    alarm(300);
    assert_null(history_open(path, LOG_STEPS, &about, &e));
    assert_int_equal(e.kind, ERR_DB);
    assert_non_null(strstr(e.msg, "it is a FIFO"));
    assert_null(hdb_open(path, &e));
    assert_false(history_check(path, &report, &e));
    alarm(0);
}

/* ---- a schema that was changed ---- */

static void make_log(int sessions)
{
    struct history *h = log_open(LOG_TREE);
    for (int i = 0; i < sessions; i++) {
        char id[SESSION_ID];
        session_new_id(id);
        write_session(h, id, 2);
    }
    history_close(h);
}

static void check_says(const char *line)
{
    struct buf report = {0};
    struct err e = {0};
    bool ok = history_check(db_path, &report, &e);
    if (ok || !report.n || !strstr(report.p, line))
        fail_msg("expected \"%s\" in: %s %s", line, report.p ? report.p : "", ok ? "" : e.msg);
    buf_free(&report);
}

static void test_a_planted_view_or_trigger_never_runs(void **state)
{
    (void)state;
    static const struct {
        const char *sql, *line;
    } plant[] = {
        {"CREATE TRIGGER reset AFTER UPDATE ON turn BEGIN UPDATE turn SET stop='' WHERE id=new.id;"
         " END",
         "schema: trigger \"reset\" was added"},
        {"CREATE VIEW extra AS SELECT 1", "schema: view \"extra\" was added"},
        {"ALTER TABLE session RENAME TO s2; CREATE VIEW session AS WITH RECURSIVE c(id, parent,"
         " fork_turn, title, created_ms, updated_ms, last_run, links, chain, seal) AS"
         " (VALUES('A',NULL,0,'t',0,0,0,0,x'',x'') UNION ALL SELECT * FROM c) SELECT * FROM c",
         "schema: view \"session\" is not as aerie made it"},
        {"DROP INDEX turn_open", "schema: index \"turn_open\" is missing"},
        {"ALTER TABLE model ADD COLUMN note TEXT", "schema: table \"model\" is not as aerie made"},
    };
    for (size_t i = 0; i < sizeof plant / sizeof *plant; i++) {
        struct err e = {0};
        snprintf(db_path, sizeof db_path, "%s/%zu/sessions.db", scratch, i);
        make_log(1);
        change_log(plant[i].sql);
        alarm(300); /* an endless view that runs dies here */
        assert_null(history_open(db_path, LOG_STEPS, &about, &e));
        assert_int_equal(e.kind, ERR_DB);
        assert_non_null(strstr(e.msg, "is not used: schema:"));
        assert_null(hdb_open(db_path, &e));
        check_says(plant[i].line);
        alarm(0);
    }
    assert_int_equal(count_aside(), 0);
}

/* The schema was aerie's when the log was opened: what is planted afterwards does not run
 * either. */
static void test_what_is_planted_in_an_open_log_never_runs(void **state)
{
    (void)state;
    char id[SESSION_ID];
    struct err e = {0};
    int n = 0;
    make_log(1);
    struct history *h = log_open(LOG_TREE);
    struct hdb *d = read_open();
    session_new_id(id);
    write_session(h, id, 1);
    assert_true(history_flush(h, 60000));
    long long events = sql_int(d, "SELECT count(*) AS n FROM event");
    change_log("CREATE TRIGGER reset AFTER INSERT ON turn BEGIN DELETE FROM event; END;"
           "CREATE TRIGGER undo AFTER UPDATE ON turn BEGIN UPDATE turn SET text='forged' WHERE "
           "id=new.id; END");
    one_turn(h, id, 2, false);
    assert_true(history_flush(h, 60000));
    assert_int_equal(sql_int(d, "SELECT count(*) AS n FROM event"), events);
    assert_int_equal(sql_int(d, "SELECT count(*) AS n FROM turn WHERE text='forged'"), 0);
    history_close(h);
    /* a reader that is open meets a view in a table's place */
    change_log("DROP TRIGGER reset; DROP TRIGGER undo; ALTER TABLE session RENAME TO s2;"
           "CREATE VIEW session AS SELECT * FROM s2");
    assert_int_equal(hdb_sessions(d, NULL, NULL, 5, count_session, &n, &e), -1);
    assert_int_equal(n, 0);
    if (!strstr(e.msg, "access to view \"session\" prohibited"))
        fail_msg("%s", e.msg);
    hdb_close(d);
}

/* With another text a log is compared object by object, which takes longer. */
static void test_the_known_digests_are_those_of_new_logs_and_packs(void **state)
{
    (void)state;
    struct err e = {0};
    struct db d;
    char hex[65];
    if (sqlite3_libversion_number() / 1000 != 3040) /* the version that wrote the known ones */
        skip();
    make_log(0);
    assert_true(open_existing(&d, db_path, SQLITE_OPEN_READONLY, &e));
    assert_true(schema_digest(&d, hex));
    assert_string_equal(hex, schema_known_digest(false));
    db_close(&d);
    assert_true(db_open(&d, ":memory:", SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, &e));
    assert_true(schema_make_pack(&d, &e) && schema_digest(&d, hex));
    assert_string_equal(hex, schema_known_digest(true));
    db_close(&d);
}

/* Bits of the text of the schema, wherever it lies in the file. */
static void test_every_flipped_bit_of_the_schema_text_is_found(void **state)
{
    (void)state;
    struct buf good = {0};
    int flips = 0, missed = 0;
    make_log(1);
    change_log("PRAGMA journal_mode=DELETE");
    assert_true(buf_read_file(&good, db_path, 64 << 20, NULL));
    for (size_t at = 0; at + 12 < good.n; at++) {
        if (memcmp(good.p + at, "CREATE ", 7) != 0)
            continue;
        for (int k = 0; k < 6; k++) {
            size_t byte = at + 7 + roll(60);
            struct buf bad = {0}, report = {0};
            struct err e = {0};
            if ((unsigned char)good.p[byte] < 0x20) /* beyond the text */
                continue;
            buf_add(&bad, good.p, good.n);
            bad.p[byte] ^= (char)(1 << roll(7));
            write_bytes(db_path, bad.p, bad.n);
            flips++;
            if (history_check(db_path, &report, &e)) {
                missed++;
                print_error("missed: byte %zu, %zu of \"%.300s\"\n", byte, byte - at, good.p + at);
            }
            buf_free(&bad);
            buf_free(&report);
        }
    }
    assert_true(flips > 48);
    assert_int_equal(missed, 0);
    buf_free(&good);
}

/* ---- rows ---- */

static void test_added_removed_and_edited_rows_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *sql, *line;
    } edit[] = {
        {"INSERT INTO turn(session_id, run_id, n, role, text, tokens, stop, created_ms) SELECT"
         " session_id, run_id, 9, 'reply', 'forged', x'', 'end', 1 FROM turn LIMIT 1;"
         "INSERT INTO turn_fts(turn_fts) VALUES('rebuild')",
         "the reply of turn 9 is not covered by the chain"},
        {"INSERT INTO turn(session_id, run_id, n, role, text, tokens, stop, created_ms) SELECT"
         " session_id, run_id, 9, 'reply', 'forged', x'', '', 1 FROM turn LIMIT 1;"
         "INSERT INTO turn_fts(turn_fts) VALUES('rebuild')",
         "the reply of turn 9 is not covered by the chain"},
        /* of a run that is going on, one reply, the last, may be in progress */
        {"UPDATE run SET ended=0; INSERT INTO turn(session_id, run_id, n, role, text, tokens, stop,"
         " created_ms) SELECT session_id, run_id, n + 8, 'reply', 'forged', x'', '', 1 FROM turn"
         " WHERE run_id=(SELECT min(run_id) FROM turn) AND role='user' AND n IN (1, 2) ORDER BY n;"
         "INSERT INTO turn_fts(turn_fts) VALUES('rebuild')",
         "the reply of turn 9 is not covered by the chain"},
        {"DELETE FROM turn WHERE id=(SELECT min(id) FROM turn);"
         "INSERT INTO turn_fts(turn_fts) VALUES('rebuild')", "what stood before link"},
        {"INSERT INTO event(session_id, turn, step, kind, text, created_ms) SELECT id, 1, 1,"
         " 'notice', 'forged', 1 FROM session LIMIT 1",
         "notice 3 is not covered by the chain"},
        {"INSERT INTO run(session_id, build_id, target_id, config, writer, ended, created_ms)"
         " SELECT session_id, build_id, target_id, '', 1, 1, 1 FROM run LIMIT 1",
         "run 3 is not covered by the chain"},
        {"PRAGMA foreign_keys=ON; DELETE FROM session WHERE id = (SELECT max(id) FROM session);"
         "INSERT INTO turn_fts(turn_fts) VALUES('rebuild')",
         "is missing: another program deleted it after head"},
        {"UPDATE session SET title='mine'", "its title, number, pin, times or the ends"},
        {"UPDATE session SET title=NULL", "its title, number, pin, times or the ends"},
        {"UPDATE session SET updated_ms=updated_ms+1", "its title, number, pin, times or the ends"},
        {"UPDATE run SET ended=2", "its title, number, pin, times or the ends"},
    };
    for (size_t i = 0; i < sizeof edit / sizeof *edit; i++) {
        struct buf report = {0};
        struct err e = {0};
        snprintf(db_path, sizeof db_path, "%s/%zu/sessions.db", scratch, i);
        make_log(2);
        if (!history_check(db_path, &report, &e))
            fail_msg("%s", report.p);
        buf_free(&report);
        change_log(edit[i].sql);
        check_says(edit[i].line);
    }
}

static void test_what_aerie_does_itself_passes(void **state)
{
    (void)state;
    struct buf report = {0};
    struct err e = {0};
    char id[SESSION_ID];
    make_log(3);
    struct history *h = log_open(LOG_STEPS);
    session_new_id(id);
    write_session(h, id, 2);
    assert_true(history_flush(h, 60000));
    assert_true(history_set_title(db_path, id, "a title", &e));
    one_turn(h, id, 3, false);
    assert_true(history_flush(h, 60000));
    assert_true(history_check(db_path, &report, &e)); /* while the session is open */
    history_close(h);
    assert_int_equal(prune_older(db_path, -1, &e), 4);
    make_log(1);
    if (!history_check(db_path, &report, &e))
        fail_msg("%s", report.p);
    buf_free(&report);
}

/* ---- other versions ---- */

static void test_a_log_of_another_version_is_refused(void **state)
{
    (void)state;
    static const struct {
        int version;
        const char *line;
    } of[] = {{8, "has schema version 8, from before the first release; expected version 9"},
              {10, "has schema version 10; this aerie knows versions up to 9"}};
    struct err e = {0};
    make_log(1);
    for (int i = 0; i < 2; i++) {
        char set[60];
        struct buf before = {0}, after = {0};
        snprintf(set, sizeof set, "PRAGMA user_version=%d", of[i].version);
        change_log(set);
        assert_true(buf_read_file(&before, db_path, 1 << 20, &e));
        assert_null(hdb_open(db_path, &e));
        assert_non_null(strstr(e.msg, of[i].line));
        assert_null(history_open(db_path, LOG_STEPS, &about, &e));
        assert_non_null(strstr(e.msg, of[i].line));
        assert_true(buf_read_file(&after, db_path, 1 << 20, &e));
        assert_true(before.n == after.n && memcmp(before.p, after.p, before.n) == 0);
        buf_free(&before);
        buf_free(&after);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_a_text_file_is_left_alone),
        TEST(test_a_database_of_another_program_is_left_alone),
        TEST(test_a_database_that_another_program_has_open_is_left_alone),
        TEST(test_a_fifo_as_database_is_refused_at_once),
        TEST(test_a_planted_view_or_trigger_never_runs),
        TEST(test_what_is_planted_in_an_open_log_never_runs),
        TEST(test_the_known_digests_are_those_of_new_logs_and_packs),
        TEST(test_every_flipped_bit_of_the_schema_text_is_found),
        TEST(test_added_removed_and_edited_rows_are_named),
        TEST(test_what_aerie_does_itself_passes),
        TEST(test_a_log_of_another_version_is_refused),
    };
    return cmocka_run_group_tests_name("history_foreign", tests, NULL, NULL);
}
