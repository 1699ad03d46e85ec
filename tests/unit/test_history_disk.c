/* The session log on a disk that is full, locked, gone or failing (power cuts: test_power.c). */
#include "history/internal.h"
#include "tests/disk_kit.h"
#include "tests/history_kit.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/resource.h>
#include <sys/stat.h>

/* ---- the disk refuses ---- */

/* Posts turns until the log complains; false: it never did. *posted counts them. */
static bool fill_until_error(struct history *h, const char *id, int *posted)
{
    struct ids context = {0};
    bool full = false;
    post_session(h, id, "", 0);
    for (int n = 1; !full && n < 400; n++) {
        struct made_turn t;
        make_turn(&t, id, n, &context);
        post_turn(h, &t, t.n_steps, true);
        free_turn(&t);
        *posted = n;
        struct history_status s;
        history_flush(h, 100);
        history_status(h, &s);
        full = *s.error != '\0';
        if (full) {
            assert_null(strstr(s.error, "not saved")); /* the faces say that */
            assert_false(s.recording);
            assert_true(s.queued > 0);
        }
    }
    ids_free(&context);
    return full;
}

/* A turn that begins, and goes on for some tries, while the disk refuses. */
static void post_slow_turn(struct history *h, const char *id, int n)
{
    struct ids context = {0};
    struct made_turn t;
    make_turn(&t, id, n, &context);
    post_turn(h, &t, t.n_steps - 1, false);
    assert_false(history_flush(h, 600));
    post_copy(h, &t.step[t.n_steps - 1]);
    post_copy(h, &t.end);
    assert_false(history_flush(h, 100));
    free_turn(&t);
    ids_free(&context);
}

/* After the disk has room again: everything posted, before and while it was full, is there. */
static void check_recovered(struct history *h, const char *id, int posted)
{
    assert_true(wait_until_acked(h, (uint64_t)posted, 60000));
    assert_true(history_flush(h, 60000));
    struct history_status s;
    history_status(h, &s);
    assert_string_equal(s.error, "");
    assert_true(s.recording);
    assert_int_equal(s.acked_turns, posted);
    struct hdb *d = read_open();
    char sql[200];
    snprintf(sql, sizeof sql, "SELECT count(*) AS n FROM turn WHERE stop<>'' AND session_id='%s'",
             id);
    assert_int_equal(sql_int(d, sql), posted);
    /* a try that was rolled back has left no trace in the turns after it */
    assert_int_equal(sql_int(d, "SELECT count(*) AS n FROM turn u JOIN turn r ON r.n = u.n - 1"
                                " AND r.session_id = u.session_id AND r.role = 'reply'"
                                " WHERE u.role = 'user' AND u.draws0 <> r.draws1"),
                     0);
    assert_int_equal(sql_int(d, "SELECT count(*) AS n FROM turn WHERE stop = 'crashed'"), 0);
    assert_int_equal(sql_int(d, "SELECT count(*) AS n FROM run"), 1);
    int turns;
    assert_int_equal(verify_bad(d, &turns), 0);
    hdb_close(d);
}

static void test_a_file_size_limit_is_waited_out(void **state)
{
    (void)state;
    char id[SESSION_ID];
    int posted = 0;
    session_new_id(id);
    signal(SIGXFSZ, SIG_DFL);
    struct history *h = log_open(LOG_TREE); /* the signal would kill us; it is ignored from here */
    struct rlimit limit, old;
    getrlimit(RLIMIT_FSIZE, &old);
    limit = old;
    limit.rlim_cur = 300000;
    setrlimit(RLIMIT_FSIZE, &limit);
    bool failed = fill_until_error(h, id, &posted);
    setrlimit(RLIMIT_FSIZE, &old);
    assert_true(failed);
    check_recovered(h, id, posted);
    history_close(h);
}

/* Every connection is told through this hook of SQLite's; ours is the first one to open. */
static sqlite3 *first_connection;

static int remember(sqlite3 *db, const char **err, const void *api)
{
    (void)err, (void)api;
    if (!first_connection)
        first_connection = db;
    return SQLITE_OK;
}

static void test_a_full_disk_is_waited_out(void **state)
{
    (void)state;
    first_connection = NULL;
    sqlite3_auto_extension((void (*)(void))remember);
    struct history *h = log_open(LOG_TREE);
    sqlite3_cancel_auto_extension((void (*)(void))remember);
    char id[SESSION_ID];
    int posted = 0;
    session_new_id(id);
    sqlite3_exec(first_connection, "PRAGMA max_page_count=60", NULL, NULL, NULL);
    assert_true(fill_until_error(h, id, &posted));
    struct history_status s;
    history_status(h, &s);
    assert_non_null(strstr(s.error, "database or disk is full"));
    post_slow_turn(h, id, ++posted);
    sqlite3_exec(first_connection, "PRAGMA max_page_count=100000", NULL, NULL, NULL);
    check_recovered(h, id, posted);
    history_close(h);
}

static void test_a_refusing_disk_never_holds_the_engine(void **state)
{
    (void)state;
    first_connection = NULL;
    sqlite3_auto_extension((void (*)(void))remember);
    struct history *h = log_open(LOG_TREE);
    sqlite3_cancel_auto_extension((void (*)(void))remember);
    char id[SESSION_ID];
    int posted = 0;
    struct history_status s;
    session_new_id(id);
    sqlite3_exec(first_connection, "PRAGMA max_page_count=60", NULL, NULL, NULL);
    assert_true(fill_until_error(h, id, &posted));
    struct event ev = event_of(EV_TURN_BEGIN, id, posted + 1, "go on");
    post(h, &ev);
    for (int i = 0; i < 80000; i++) { /* more than is kept: details are dropped, turns are not */
        ev = event_of(EV_STEP, id, posted + 1, NULL);
        ev.step = i + 1;
        post(h, &ev);
    }
    ev = event_of(EV_TURN_END, id, posted + 1, "the whole reply");
    post(h, &ev);
    /* the disk still refuses, and each post has returned: a writer that waited for it would hang
     * here */
    history_status(h, &s);
    assert_false(s.recording);
    assert_true(s.room >= s.queued);
    sqlite3_exec(first_connection, "PRAGMA max_page_count=1000000", NULL, NULL, NULL);
    assert_true(wait_until_acked(h, (uint64_t)posted + 1, 60000));
    history_status(h, &s);
    assert_non_null(strstr(s.error, " events")); /* it says that details are missing */
    assert_true(s.recording);
    assert_int_equal(s.queued, 0);
    assert_true(s.room <= 1024); /* the memory of those that waited is given back */
    struct hdb *d = read_open();
    assert_int_equal(sql_int(d, "SELECT count(*) AS n FROM turn WHERE text='the whole reply'"), 1);
    int turns;
    assert_int_equal(verify_bad(d, &turns), 0);
    hdb_close(d);
    history_close(h);
}

static void test_a_locked_file_is_waited_for(void **state)
{
    (void)state;
    struct history *h = log_open(LOG_STEPS);
    sqlite3 *other;
    assert_int_equal(sqlite3_open(db_path, &other), SQLITE_OK);
    assert_int_equal(sqlite3_exec(other, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
    char id[SESSION_ID];
    session_new_id(id);
    write_session(h, id, 2);
    assert_false(history_flush(h, 600));
    struct history_status s;
    history_status(h, &s);
    assert_string_equal(s.error, ""); /* a short lock is nobody's business */
    assert_false(history_flush(h, 2500));
    history_status(h, &s);
    assert_non_null(strstr(s.error, "locked"));
    sqlite3_exec(other, "COMMIT", NULL, NULL, NULL);
    sqlite3_close(other);
    check_recovered(h, id, 2);
    history_close(h);
}

static void test_a_deleted_file_is_noticed(void **state)
{
    (void)state;
    struct history *h = log_open(LOG_STEPS);
    char id[SESSION_ID], away[160];
    session_new_id(id);
    snprintf(away, sizeof away, "%s.away", db_path);
    assert_int_equal(rename(db_path, away), 0);
    write_session(h, id, 1);
    assert_false(history_flush(h, 500));
    struct history_status s;
    history_status(h, &s);
    assert_non_null(strstr(s.error, "moved or deleted"));
    assert_int_equal(s.acked_turns, 0);
    assert_int_equal(rename(away, db_path), 0);
    check_recovered(h, id, 1);
    history_close(h);
}

/* ---- failures ---- */

/* Each commit is tried until it succeeds. The one that meets the failing change ends a flush with
 * false; after that change none fails. */
static void flush_past_failure(struct history *h)
{
    if (history_flush(h, 60000))
        return;
    pthread_mutex_lock(&disk.mu);
    bool failed = disk.fail_at && disk.op >= disk.fail_at;
    pthread_mutex_unlock(&disk.mu);
    assert_true(failed);
    assert_true(history_flush(h, 60000));
}

/* One life of the log with the n-th change of a file failing: it cannot be opened, or both turns
 * are saved. Returns the changes it made. */
static long life_with_failure(long n, bool *opened)
{
    struct err e;
    disk.op = 0;
    disk.fail_at = n;
    struct history *h = history_open(db_path, LOG_TREE, &about, &e);
    *opened = h != NULL;
    if (h) {
        char id[SESSION_ID];
        session_new_id(id);
        write_session(h, id, 2);
        flush_past_failure(h);
        struct history_status s;
        history_status(h, &s);
        assert_int_equal(s.acked_turns, 2);
        assert_string_equal(s.error, "");
        history_close(h);
    } else {
        assert_int_equal(e.kind, ERR_DB);
    }
    disk.fail_at = 0;
    return disk.op;
}

static void check_lives(int sessions)
{
    history_close(log_open(LOG_STEPS)); /* whatever failed, the next start works */
    struct hdb *d = read_open();
    assert_int_equal(sql_int(d, "SELECT count(*) AS n FROM turn WHERE role='reply' AND stop<>''"),
                     2 * sessions);
    int turns;
    assert_int_equal(verify_bad(d, &turns), 0);
    assert_int_equal(turns, 2 * sessions);
    hdb_close(d);
    assert_int_equal(count_aside(), 0);
}

static void test_any_one_io_failure_is_survived(void **state)
{
    (void)state;
    shim_install();
    bool opened;
    int lives = 0, refused = 0;
    long ops = 60;
    for (long n = 1; n <= ops; n += n < 50 ? 1 : ops / 8) { /* of a log that is made */
        snprintf(db_path, sizeof db_path, "%s/new%ld/sessions.db", scratch, n);
        ops = life_with_failure(n, &opened);
        refused += !opened;
        ops = opened ? ops : 60;
        check_lives(opened);
    }
    assert_true(refused > 10);
    snprintf(db_path, sizeof db_path, "%s/data/aerie/sessions.db", scratch);
    for (long n = 1; n < 100; n += n < 8 ? 1 : 20) { /* of one that goes on */
        life_with_failure(n, &opened);
        lives += opened;
    }
    shim_remove();
    check_lives(lives);
    assert_true(lives > 5);
}

/* Fails unless the message names why the disk refused. */
static void expect_named(const char *operation, const char *message)
{
    if (!strstr(message, strerror(disk.refused_with)))
        fail_msg("%s: \"%s\" does not name \"%s\"", operation, message,
                 strerror(disk.refused_with));
}

/* Each operation is refused with an errno of its own, so that none can be taken for another's. */
static void test_what_reading_needs_and_is_refused_is_named(void **state)
{
    static const struct {
        enum disk_op op;
        int with;
        const char *name;
    } refused[] = {{REFUSE_READ, EIO, "read"}, {REFUSE_SIZE, ESTALE, "size"},
                   {REFUSE_SHM_MAP, ENOMEM, "map"}, {REFUSE_OPEN, EMFILE, "open"}};
    (void)state;
    struct err e = {0};
    struct buf report = {0};
    history_close(log_open(LOG_STEPS));
    shim_install();
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        disk.refused = refused[i].op;
        disk.refused_with = refused[i].with;
        assert_false(history_check(db_path, &report, &e));
        assert_int_equal(e.kind, ERR_DB);
        expect_named(refused[i].name, e.msg);
        assert_null(hdb_open(db_path, &e));
        expect_named(refused[i].name, e.msg);
    }
    shim_remove();
    assert_true(history_check(db_path, &report, &e));
    buf_free(&report);
}

static void test_what_writing_needs_and_is_refused_is_named(void **state)
{
    static const struct {
        enum disk_op op;
        int with;
        const char *name;
        bool no_wal;
    } refused[] = {{REFUSE_WRITE, EDQUOT, "write", false}, {REFUSE_SYNC, EIO, "sync", false},
    {REFUSE_WRITE, EFBIG, "write", true},
                   {REFUSE_DELETE, EROFS, "delete", true}};
    (void)state;
    shim_install();
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        char id[SESSION_ID];
        struct history_status s;
        disk.no_wal = refused[i].no_wal;
        snprintf(db_path, sizeof db_path, "%s/%zu.db", scratch, i);
        struct history *h = log_open(LOG_STEPS);
        session_new_id(id);
        disk.refused_with = refused[i].with;
        disk.refused = refused[i].op;
        write_session(h, id, 1);
        for (*s.error = '\0'; !*s.error; history_status(h, &s))
            history_flush(h, 600);
        expect_named(refused[i].name, s.error);
        disk.refused = REFUSE_NONE;
        check_recovered(h, id, 1);
        history_close(h);
    }
    disk.no_wal = false;
    shim_remove();
}

/* SQLITE_BUSY means that another connection has the lock, or that the system refuses one (ENOLCK).
 * Only the latter is a failed system call, which messages name. */
static void test_only_a_lock_that_the_system_refuses_has_a_cause(void **state)
{
    (void)state;
    struct db d;
    struct err e = {0};
    sqlite3 *other;
    history_close(log_open(LOG_STEPS));
    shim_install();
    assert_true(db_open(&d, db_path, SQLITE_OPEN_READWRITE, &e));
    sqlite3_busy_timeout(d.h, 0);
    disk.refused = REFUSE_LOCK;
    disk.refused_with = ENOLCK;
    assert_false(db_exec(&d, "BEGIN IMMEDIATE", &e));
    expect_named("lock", e.msg);
    disk.refused = REFUSE_NONE;
    assert_true(db_exec(&d, "BEGIN; SELECT count(*) FROM turn", &e));
    disk.refused = REFUSE_SHM_LOCK;
    assert_false(db_exec(&d, "DELETE FROM turn", &e));
    expect_named("lock of the index", e.msg);
    disk.refused = REFUSE_NONE;
    assert_int_equal(sqlite3_open(db_path, &other), SQLITE_OK);
    assert_int_equal(sqlite3_exec(other, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
    assert_false(db_exec(&d, "BEGIN IMMEDIATE", &e));
    assert_non_null(strstr(e.msg, "database is locked"));
    assert_null(strstr(e.msg, strerror(ENOLCK)));
    sqlite3_close(other);
    db_close(&d);
    shim_remove();
}

/* Takes the place of the C library's: fails once for a file whose name ends so. */
static const char *not_opened;

int open(const char *name, int flags, ...)
{
    va_list ap;
    va_start(ap, flags);
    mode_t mode = flags & O_CREAT ? va_arg(ap, mode_t) : 0;
    va_end(ap);
    size_t n = strlen(name), k = not_opened ? strlen(not_opened) : 0;
    if (!k || n < k || strcmp(name + n - k, not_opened) != 0)
        return openat(AT_FDCWD, name, flags, mode);
    not_opened = NULL;
    errno = disk.refused_with;
    return -1;
}

/* SQLite opens in a second way what it could not open, and then there is no such file; that is not
 * the cause. Nor is such a log one that may only be viewed. */
static void test_the_first_cause_of_a_file_not_opened_is_named(void **state)
{
    static const char *const part[] = {"-wal", "-shm"};
    (void)state;
    struct db d;
    struct err e = {0};
    history_close(log_open(LOG_STEPS));
    for (int i = 0; i < 2; i++) {
        assert_true(db_open(&d, db_path, SQLITE_OPEN_READWRITE, &e));
        disk.refused_with = EMFILE;
        not_opened = part[i];
        assert_false(db_exec(&d, "SELECT count(*) FROM turn", &e));
        assert_null(not_opened);
        expect_named(part[i], e.msg);
        assert_true(db_exec(&d, "SELECT count(*) FROM turn", &e));
        db_close(&d);
        not_opened = part[i];
        assert_null(hdb_open(db_path, &e));
        expect_named(part[i], e.msg);
        disk.refused_with = EACCES;
        not_opened = part[i];
        struct hdb *view = hdb_open(db_path, &e);
        assert_non_null(view);
        expect_named(part[i], hdb_warning(view));
        assert_true(hdb_whole(view, &e));
        hdb_close(view);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_a_file_size_limit_is_waited_out),
        TEST(test_a_full_disk_is_waited_out),
        TEST(test_a_refusing_disk_never_holds_the_engine),
        TEST(test_a_locked_file_is_waited_for),
        TEST(test_a_deleted_file_is_noticed),
        TEST(test_any_one_io_failure_is_survived),
        TEST(test_what_reading_needs_and_is_refused_is_named),
        TEST(test_what_writing_needs_and_is_refused_is_named),
        TEST(test_only_a_lock_that_the_system_refuses_has_a_cause),
        TEST(test_the_first_cause_of_a_file_not_opened_is_named),
    };
    return cmocka_run_group_tests_name("history_disk", tests, NULL, NULL);
}
