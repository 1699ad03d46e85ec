/* The session log when things go wrong: killed processes, other processes, damaged files, other
 * versions, missing permissions. */
#include "history/internal.h"
#include "tests/history_kit.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

/* ---- kill -9 ---- */

/* A turn whose every part can be computed from its session and number. */
static void known_turn(struct made_turn *t, const char *id, int n)
{
    struct ids context = {0};
    dice = hash64(id, strlen(id), (uint64_t)n);
    make_turn(t, id, n, &context);
    t->end.text.n = 0;
    for (int i = 0; i < t->n_steps * 8; i++)
        buf_printf(&t->end.text, "word%d of %s ", i, id);
    ids_free(&context);
}

/* Streams turns for ever; writes a byte when the log is open and one for each acknowledged turn. */
static _Noreturn void stream_turns(const char *id, int acks)
{
    struct err e;
    struct history *h = history_open(db_path, LOG_TREE, &about, &e);
    if (!h || write(acks, "o", 1) != 1)
        _exit(3);
    post_session(h, id, "", 0);
    for (int n = 1; n < 10000; n++) {
        struct made_turn t;
        known_turn(&t, id, n);
        post_copy(h, &t.begin);
        size_t sent = 0;
        for (int i = 0; i < t.n_steps; i++) {
            post_copy(h, &t.step[i]);
            size_t upto = t.end.text.n * (size_t)(i + 1) / (size_t)t.n_steps;
            struct event ev = event_of(EV_TEXT, id, n, NULL);
            buf_add(&ev.text, t.end.text.p + sent, upto - sent);
            sent = upto;
            post(h, &ev);
            if (n > 2)
                sleep_ms(25); /* as a slow model would, so that most kills hit a running turn */
        }
        post_copy(h, &t.end);
        if (!wait_until_acked(h, (uint64_t)n, 10000) || write(acks, "+", 1) != 1)
            _exit(4);
        free_turn(&t);
    }
    _exit(0);
}

struct after_kill {
    const char *id;
    int acked, last, crashed;
    size_t partial;
};

static bool check_survivor(const struct turn_row *r, void *arg)
{
    struct after_kill *k = arg;
    struct made_turn t;
    known_turn(&t, k->id, r->n);
    assert_true(r->stop != STOP_OPEN || r->is_user); /* nothing is open */
    if (r->is_user) {
        k->last = r->n;
        assert_int_equal(r->text_n, t.begin.text.n);
        assert_memory_equal(r->text, t.begin.text.p, r->text_n);
    } else if (r->stop == STOP_CRASHED) {
        k->crashed++;
        k->partial += r->text_n;
        assert_true(r->n > k->acked);
        assert_true(r->text_n <= t.end.text.n && r->tokens.n <= t.end.tokens.n);
        assert_memory_equal(r->text, t.end.text.p, r->text_n);
        assert_memory_equal(r->tokens.v, t.end.tokens.v, (size_t)r->tokens.n * sizeof *r->tokens.v);
    } else {
        assert_int_equal(r->text_n, t.end.text.n);
        assert_int_equal(r->tokens.n, t.end.tokens.n);
        assert_memory_equal(r->text, t.end.text.p, r->text_n);
    }
    free_turn(&t);
    return true;
}

static void test_kill_9_loses_no_acknowledged_turn(void **state)
{
    (void)state;
    enum { KILLS = 110 };
    char id[KILLS][SESSION_ID];
    int acked[KILLS], total = 0;
    uint64_t luck = 42;
    for (int i = 0; i < KILLS; i++) {
        int acks[2];
        assert_int_equal(pipe(acks), 0);
        session_new_id(id[i]);
        pid_t pid = fork();
        if (pid == 0) {
            close(acks[0]);
            stream_turns(id[i], acks[1]);
        }
        close(acks[1]);
        luck = mix64(luck);
        char bytes[1000];
        /* One in eight may be killed while it opens the log. Half of the others have acknowledged
         * two
         * turns: the third is slow, so the kill hits it also where the processor is shared by
         * many. */
        int want = i % 8 == 0 ? 0 : i % 2 ? 3 : 1;
        ssize_t n = 0;
        while (n < want && read(acks[0], bytes, 1) == 1)
            n++;
        sleep_ms((long)(luck % 60));
        kill(pid, SIGKILL);
        assert_int_equal(waitpid(pid, NULL, 0), pid);
        for (acked[i] = (int)n - 1; (n = read(acks[0], bytes, sizeof bytes)) > 0;)
            acked[i] += (int)n;
        acked[i] = max_int(acked[i], 0);
        close(acks[0]);
        total += acked[i];
    }
    history_close(log_open(LOG_STEPS)); /* the next start */
    struct hdb *d = read_open();
    struct err e;
    struct after_kill all = {0};
    for (int i = 0; i < KILLS; i++) {
        struct after_kill k = {.id = id[i], .acked = acked[i]};
        assert_true(hdb_turns(d, id[i], 0, check_survivor, &k, &e) >= 0);
        assert_true(k.last >= acked[i]);
        all.crashed += k.crashed;
        all.partial += k.partial;
    }
    int turns;
    assert_int_equal(verify_bad(d, &turns), 0);
    assert_int_equal(sql_int(d, "SELECT count(*) AS n FROM run WHERE ended=0"), 0);
    hdb_close(d);
    struct buf report = {0};
    assert_true(history_check(db_path, &report, &e));
    buf_free(&report);
    print_message("# %d kills: %d turns acknowledged, all there; %d running turns kept %zu bytes\n",
                  KILLS, total, all.crashed, all.partial);
    assert_true(total > KILLS / 4 && all.crashed > KILLS / 8 && all.partial > 0);
}

static void test_a_killed_turn_keeps_what_was_streamed(void **state)
{
    (void)state;
    char id[SESSION_ID];
    session_new_id(id);
    pid_t pid = fork();
    if (pid == 0) {
        struct err e;
        struct history *h = history_open(db_path, LOG_STEPS, &about, &e);
        post_session(h, id, "", 0);
        struct event ev = event_of(EV_TURN_BEGIN, id, 1, "question");
        post(h, &ev);
        for (int i = 0; i < 5; i++) {
            ev = event_of(EV_TEXT, id, 1, i == 2 ? "thinking" : "abc");
            ev.channel = i == 2;
            post(h, &ev);
            ev = event_of(EV_STEP, id, 1, NULL);
            ev.step = i + 1;
            ev.rec.draws = (uint64_t)i + 10;
            ids_add(&ev.tokens, 100 + i);
            post(h, &ev);
        }
        sleep_ms(250); /* promised: at most this much is lost */
        kill(getpid(), SIGKILL);
    }
    waitpid(pid, NULL, 0);
    struct history *h = log_open(LOG_STEPS);
    struct history_status s;
    history_status(h, &s);
    assert_non_null(strstr(s.notice, "1 unfinished turn of a killed aerie was saved"));
    struct hdb *d = read_open();
    char *v =
        sql_value(d, "SELECT text || '|' || ids(tokens) || '|' || stop || '|' || draws1 || '|' ||"
                     " n_steps AS v FROM turn WHERE role='reply'");
    assert_string_equal(v, "\"abcabcabcabc|[100,101,102,103,104]|crashed|14|5\"");
    free(v);
    v = sql_value(d, "SELECT group_concat(channel || text) AS v FROM turn_part");
    assert_string_equal(v, "\"1thinking\"");
    free(v);
    assert_int_equal(
        sql_int(d, "SELECT count(*) AS n FROM turn_fts WHERE turn_fts MATCH 'abcabcabcabc'"), 1);
    hdb_close(d);
    history_close(h);
}

/* ---- other processes ---- */

static void test_a_running_turn_of_a_living_process_is_left_alone(void **state)
{
    (void)state;
    char id[SESSION_ID];
    session_new_id(id);
    int go[2], ready[2];
    assert_true(pipe(go) == 0 && pipe(ready) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        close(go[1]), close(ready[0]); /* so that read() below ends if the parent dies */
        struct err e;
        struct history *h = history_open(db_path, LOG_STEPS, &about, &e);
        post_session(h, id, "", 0);
        struct event ev = event_of(EV_TURN_BEGIN, id, 1, "question");
        post(h, &ev);
        history_flush(h, 5000);
        char c = '+';
        if (write(ready[1], &c, 1) != 1 || read(go[0], &c, 1) != 1)
            _exit(3);
        ev = event_of(EV_TURN_END, id, 1, "answer");
        post(h, &ev);
        history_close(h);
        _exit(0);
    }
    char c;
    assert_int_equal(read(ready[0], &c, 1), 1);
    struct history *h = log_open(LOG_STEPS);
    struct hdb *d = read_open();
    assert_int_equal(sql_int(d, "SELECT count(*) AS n FROM turn WHERE stop=''"), 1);
    assert_int_equal(write(go[1], "+", 1), 1);
    int status;
    waitpid(pid, &status, 0);
    assert_int_equal(status, 0);
    char *v = sql_value(d, "SELECT text AS v FROM turn WHERE role='reply' AND stop='end'");
    assert_string_equal(v, "\"answer\"");
    free(v);
    hdb_close(d);
    history_close(h);
    close(go[0]), close(go[1]), close(ready[0]), close(ready[1]);
}

static _Noreturn void write_as_process(int k, const char *shared)
{
    struct err e;
    struct history *h = history_open(db_path, LOG_TREE, &about, &e);
    if (!h) {
        fprintf(stderr, "# process %d: %s\n", k, e.msg);
        _exit(3);
    }
    char own[SESSION_ID];
    session_new_id(own);
    dice = (uint64_t)k + 77;
    for (int i = 0; i < 5; i++) {
        struct ids context = {0};
        struct made_turn t;
        const char *id = i % 2 ? shared : own;
        post_session(h, id, "", 0);
        make_turn(&t, id, i + 1, &context);
        post_turn(h, &t, t.n_steps, true);
        free_turn(&t);
        ids_free(&context);
    }
    bool done = history_flush(h, 10000);
    struct history_status s;
    history_status(h, &s);
    history_close(h);
    _exit(done && s.acked_turns == 5 && !*s.error ? 0 : 4);
}

static void test_processes_write_side_by_side(void **state)
{
    (void)state;
    enum { N = 4 };
    char shared[SESSION_ID];
    session_new_id(shared);
    pid_t pid[N];
    for (int k = 0; k < N; k++) {
        pid[k] = fork();
        if (pid[k] == 0)
            write_as_process(k, shared);
    }
    for (int k = 0; k < N; k++) {
        int status;
        waitpid(pid[k], &status, 0);
        assert_int_equal(status, 0);
    }
    struct hdb *d = read_open();
    assert_int_equal(sql_int(d, "SELECT count(*) AS n FROM turn WHERE role='reply' AND stop<>''"),
                     5 * N);
    char sql[200]; /* all four wrote turns 2 and 4 of one session: no number was used twice */
    snprintf(sql, sizeof sql, "SELECT count(DISTINCT n) AS n FROM turn WHERE session_id='%s'",
             shared);
    assert_int_equal(sql_int(d, sql), 2 * N);
    int turns;
    assert_int_equal(verify_bad(d, &turns), 0);
    assert_int_equal(turns, 5 * N);
    hdb_close(d);
    struct err e;
    struct buf report = {0};
    if (!history_check(db_path, &report, &e))
        fail_msg("%s", report.p);
    buf_free(&report);
}

/* ---- files ---- */

static int mode_of(const char *folder, const char *name)
{
    char path[300];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return stat(path, &st) == 0 ? (int)(st.st_mode & 0777) : -1;
}

static void test_files_are_private_whatever_the_umask(void **state)
{
    (void)state;
    static const mode_t masks[] = {022, 0, 077};
    for (int i = 0; i < 3; i++) {
        mode_t old = umask(masks[i]);
        snprintf(db_path, sizeof db_path, "%s/data%d/aerie/sessions.db", scratch, i);
        char folder[sizeof db_path], to[160];
        struct err e;
        snprintf(folder, sizeof folder, "%s/data%d/aerie", scratch, i);
        struct history *h = log_open(LOG_STEPS);
        char id[SESSION_ID];
        session_new_id(id);
        write_session(h, id, 1);
        assert_true(history_flush(h, 60000));
        snprintf(to, sizeof to, "%s/backup.db", folder);
        assert_true(history_backup(db_path, to, &e));
        struct hdb *d = read_open();
        snprintf(to, sizeof to, "%s/out.jsonl", folder);
        assert_true(hdb_export(d, id, to, &e));
        static const char *const names[] = {"sessions.db",     "sessions.db-wal",
                                            "sessions.db-shm", "sessions.db.live",
                                            "backup.db",       "out.jsonl"};
        for (int k = 0; k < 6; k++)
            assert_int_equal(mode_of(folder, names[k]), 0600);
        assert_int_equal(mode_of(folder, "."), 0700);
        assert_int_equal(mode_of(folder, ".."), 0700);
        hdb_close(d);
        history_close(h);
        umask(old);
    }
    chmod(db_path, 0644); /* made wide by something else: closed again */
    history_close(log_open(LOG_STEPS));
    struct stat st;
    stat(db_path, &st);
    assert_int_equal(st.st_mode & 0777, 0600);
}

/* Opens a log beside which a link leads to `target`. why: of the error that has to come; "": one
 * may come; NULL: none may. */
static void open_beside_link(const char *tail, const char *target, const char *why)
{
    struct err e = {0};
    char *name = xasprintf("%s%s", db_path, tail);
    unlink(name);
    assert_int_equal(symlink(target, name), 0);
    struct history *h = history_open(db_path, LOG_STEPS, &about, &e);
    if (why && *why && (h || !strstr(e.msg, why)))
        fail_msg("%s as a link: %s; expected: %s", tail, h ? "opened" : e.msg, why);
    if (!why && !h)
        fail_msg("%s as a link: %s", tail, e.msg);
    if (h)
        history_close(h);
    unlink(name);
    free(name);
}

/* Whatever the links lead to is neither opened nor made. */
static void test_links_beside_the_log_lead_nowhere(void **state)
{
    (void)state;
    static const struct {
        const char *tail, *why;
    } beside[] = {{".live", "is a symbolic link"},     {"-wal", "symbolic links"},
                  {"-shm", "symbolic links"},          {"-journal", ""},
                  {".unsaved-0000000000000001", NULL}, {".unsaved-0000000000000001.part", NULL}};
    char victim[120], absent[120], text[32];
    struct stat st;
    snprintf(db_path, sizeof db_path, "%s/linked/sessions.db", scratch);
    snprintf(victim, sizeof victim, "%s/victim", scratch);
    snprintf(absent, sizeof absent, "%s/absent", scratch);
    history_close(log_open(LOG_STEPS));
    write_bytes(victim, "not aerie's", 11);
    for (size_t i = 0; i < sizeof beside / sizeof *beside; i++) {
        open_beside_link(beside[i].tail, victim, beside[i].why);
        open_beside_link(beside[i].tail, absent, beside[i].why);
        FILE *f = fopen(victim, "rb");
        assert_non_null(f);
        size_t n = fread(text, 1, sizeof text, f);
        fclose(f);
        assert_int_equal(n, 11);
        assert_memory_equal(text, "not aerie's", 11);
        assert_int_equal(lstat(absent, &st), -1);
    }
    snprintf(db_path, sizeof db_path, "%s/linked/gone.db", scratch);
    open_beside_link("", absent, "a link to a file that is not there");
    assert_int_equal(lstat(absent, &st), -1);
}

/* A FIFO would make the open wait for a reader. */
static void test_a_fifo_beside_the_log_is_refused(void **state)
{
    (void)state;
    struct err e = {0};
    snprintf(db_path, sizeof db_path, "%s/fifo/sessions.db", scratch);
    history_close(log_open(LOG_STEPS));
    char *name = xasprintf("%s.live", db_path);
    unlink(name);
    assert_int_equal(mkfifo(name, 0600), 0);
    assert_null(history_open(db_path, LOG_STEPS, &about, &e));
    assert_non_null(strstr(e.msg, "is no regular file"));
    free(name);
}

/* Root's look at a user's log must not lock the user out: what root leaves beside it is the
 * user's. */
static void test_the_owner_of_files_beside_another_users_log(void **state)
{
    (void)state;
    enum { SOMEBODY = 12345 };
    static const char *const tails[] = {"-wal", "-shm", ".live"};
    struct stat st;
    if (geteuid() != 0)
        skip();
    snprintf(db_path, sizeof db_path, "%s/theirs/sessions.db", scratch);
    history_close(log_open(LOG_STEPS));
    char *live = xasprintf("%s.live", db_path);
    assert_int_equal(unlink(live) | chown(db_path, SOMEBODY, SOMEBODY), 0);
    free(live);
    history_before_isolation(db_path, true);
    for (int i = 0; i < 3; i++) {
        char *name = xasprintf("%s%s", db_path, tails[i]);
        assert_int_equal(lstat(name, &st), 0);
        assert_int_equal(st.st_uid, SOMEBODY);
        assert_int_equal(st.st_mode & 07777, 0600);
        free(name);
    }
    history_close(log_open(LOG_STEPS)); /* SQLite takes them as its own */
}

/* The damaged file is kept byte for byte, and the log works. */
static void check_replaced(const struct buf *damaged, int asides)
{
    struct history *h = log_open(LOG_STEPS);
    struct history_status s;
    history_status(h, &s);
    const char *at = strstr(s.notice, "it is kept as ");
    assert_non_null(at);
    char kept[200];
    assert_int_equal(sscanf(at, "it is kept as %199[^,]", kept), 1);
    struct buf b = {0};
    assert_true(buf_read_file(&b, kept, 64 << 20, NULL));
    assert_int_equal(b.n, damaged->n);
    assert_memory_equal(b.p, damaged->p, b.n);
    buf_free(&b);
    assert_int_equal(count_aside(), asides);
    char id[SESSION_ID];
    session_new_id(id);
    write_session(h, id, 1);
    assert_true(history_flush(h, 60000));
    history_close(h);
}

static void test_a_damaged_log_is_set_aside(void **state)
{
    (void)state;
    struct history *h = log_open(LOG_STEPS);
    char id[SESSION_ID];
    session_new_id(id);
    write_session(h, id, 3);
    history_close(h);
    struct buf good = {0};
    assert_true(buf_read_file(&good, db_path, 64 << 20, NULL));
    for (int i = 0; i < 5; i++) {
        struct buf bad = {0};
        switch (i) {
        case 0:
            buf_str(&bad, "this is not a database, but it is long enough to be looked at as one");
            break;
        case 1: buf_add(&bad, good.p, good.n), memset(bad.p, 0xAA, 100); break; /* the header */
        case 2:
            buf_add(&bad, good.p, good.n), memset(bad.p + 100, 0xFF, 900);
            break;                                        /* the schema */
        case 3: buf_add(&bad, good.p, good.n / 2); break; /* cut off */
        case 4:
            for (int k = 0; k < 20000; k++)
                buf_char(&bad, (char)roll(256));
            break;
        }
        write_bytes(db_path, bad.p, bad.n);
        check_replaced(&bad, i + 1);
        buf_free(&bad);
    }
    buf_free(&good);
}

static void test_foreign_and_newer_databases_are_refused_untouched(void **state)
{
    (void)state;
    history_close(log_open(LOG_STEPS));
    static const char *const make[] = {
        "PRAGMA user_version=99",
        "PRAGMA application_id=1234",
        "PRAGMA application_id=0",
    };
    static const char *const expect[] = {"schema version 99", "another program", "another program"};
    for (int i = 0; i < 3; i++) {
        sqlite3 *s;
        sqlite3_open(db_path, &s);
        sqlite3_exec(s, make[i], NULL, NULL, NULL);
        sqlite3_close(s);
        struct buf before = {0}, after = {0};
        assert_true(buf_read_file(&before, db_path, 64 << 20, NULL));
        struct err e = {0};
        assert_null(history_open(db_path, LOG_STEPS, &about, &e));
        assert_int_equal(e.kind, ERR_DB);
        assert_non_null(strstr(e.msg, expect[i]));
        assert_null(hdb_open(db_path, &e));
        assert_non_null(strstr(e.msg, expect[i]));
        assert_true(buf_read_file(&after, db_path, 64 << 20, NULL));
        assert_true(before.n == after.n && memcmp(before.p, after.p, before.n) == 0);
        buf_free(&before);
        buf_free(&after);
    }
    assert_int_equal(count_aside(), 0);

    struct err e = {0}; /* a file that is empty because the disk was full is none of these */
    snprintf(db_path, sizeof db_path, "%s/empty.db", scratch);
    write_bytes(db_path, "", 0);
    assert_null(hdb_open(db_path, &e));
    assert_non_null(strstr(e.msg, "its creation was interrupted"));
    history_close(log_open(LOG_STEPS));
    struct hdb *whole = hdb_open(db_path, &e);
    assert_non_null(whole);
    hdb_close(whole);
}

static void test_an_older_schema_is_migrated_after_a_backup(void **state)
{
    (void)state;
    static const struct migration list[] = {
        {1, {"CREATE TABLE t(x)", "INSERT INTO t VALUES('old'), ('rows')"}, NULL},
        {2, {"ALTER TABLE t ADD COLUMN y DEFAULT 7;"}, NULL},
        {3, {"CREATE TABLE u(z); INSERT INTO nowhere VALUES(1);"}, NULL},
    };
    char path[160], cmd[200];
    snprintf(path, sizeof path, "%s/old.db", scratch);
    struct err e = {0};
    struct db d;
    int64_t v;
    assert_true(db_open(&d, path, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, &e));
    assert_true(schema_migrate(&d, list, 1, &e));
    assert_true(schema_migrate(&d, list, 2, &e));
    db_int(&d, &v, 0, "SELECT sum(y) FROM t", "");
    assert_int_equal(v, 14);
    db_int(&d, &v, 0, "PRAGMA user_version", "");
    assert_int_equal(v, 2);
    assert_false(schema_migrate(&d, list, 3, &e)); /* fails half way: nothing of it stays */
    assert_non_null(strstr(e.msg, "schema version 3"));
    db_int(&d, &v, 0, "PRAGMA user_version", "");
    assert_int_equal(v, 2);
    db_int(&d, &v, 0, "SELECT count(*) FROM sqlite_schema WHERE name='u'", "");
    assert_int_equal(v, 0);
    assert_false(schema_migrate(&d, list, 1, &e)); /* newer than known */
    db_close(&d);

    snprintf(cmd, sizeof cmd, "ls %s/old.db.v1-*", scratch);
    FILE *f = popen(cmd, "r");
    char backup[200] = "";
    assert_int_equal(fscanf(f, "%199s", backup), 1);
    pclose(f);
    struct stat st;
    assert_int_equal(stat(backup, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_true(db_open(&d, backup, SQLITE_OPEN_READONLY, &e));
    db_int(&d, &v, 0, "SELECT count(*) FROM t", "");
    assert_int_equal(v, 2);
    db_int(&d, &v, 0, "PRAGMA user_version", "");
    assert_int_equal(v, 1);
    db_close(&d);
}

/* ---- not allowed to write ---- */

/* As a user who may read the folder but not write it: what happens, as an exit status. */
static int as_nobody(void)
{
    if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0))
        return 50;
    struct err e = {0};
    struct history *h = history_open(db_path, LOG_STEPS, &about, &e);
    if (h || e.kind != ERR_DB || !strlen(e.msg))
        return 51;
    struct hdb *d = hdb_open(db_path, &e);
    if (!d)
        return 52;
    if (!strstr(hdb_warning(d), "view only"))
        return 53;
    struct buf out = {0};
    if (!hdb_sql(d, "SELECT count(*) AS n FROM turn", true, 10, &out, &e) ||
        !strstr(out.p, "\"n\":4"))
        return 54;
    buf_free(&out);
    int turns, bad;
    if (!hdb_verify(d, "", &turns, &bad, NULL, &e) || bad || turns != 2)
        return 55;
    hdb_close(d);
    return 0;
}

static void test_a_log_that_cannot_be_written_can_be_viewed(void **state)
{
    (void)state;
    char top[] = "/tmp/aerie-history-XXXXXX", folder[160]; /* nobody may not enter TMPDIR */
    assert_non_null(mkdtemp(top));
    snprintf(db_path, sizeof db_path, "%s/data/aerie/sessions.db", top);
    struct history *h = log_open(LOG_STEPS);
    char id[SESSION_ID];
    session_new_id(id);
    write_session(h, id, 2);
    history_close(h);
    chmod(top, 0755);
    snprintf(folder, sizeof folder, "%s/data", top);
    chmod(folder, 0755);
    snprintf(folder, sizeof folder, "%s/data/aerie", top);
    chmod(folder, 0555);
    chmod(db_path, 0444);
    pid_t pid = fork();
    if (pid == 0)
        _exit(as_nobody());
    int status;
    waitpid(pid, &status, 0);
    chmod(folder, 0755);
    scratch_drop(top);
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void test_what_is_no_file_is_a_clear_error(void **state)
{
    (void)state;
    struct err e = {0};
    assert_null(history_open(scratch, LOG_STEPS, &about, &e));
    assert_non_null(strstr(e.msg, "it is a folder"));
    char path[160];
    snprintf(path, sizeof path, "%s/file", scratch);
    write_bytes(path, "x", 1);
    snprintf(path, sizeof path, "%s/file/sessions.db", scratch);
    assert_null(history_open(path, LOG_STEPS, &about, &e));
    assert_int_equal(e.kind, ERR_DB);
    snprintf(path, sizeof path, "%s/none.db", scratch);
    assert_null(hdb_open(path, &e));
    assert_int_equal(e.kind, ERR_NEGATIVE);
    assert_int_equal(access(path, F_OK), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_kill_9_loses_no_acknowledged_turn),
        TEST(test_a_killed_turn_keeps_what_was_streamed),
        TEST(test_a_running_turn_of_a_living_process_is_left_alone),
        TEST(test_processes_write_side_by_side),
        TEST(test_files_are_private_whatever_the_umask),
        TEST(test_links_beside_the_log_lead_nowhere),
        TEST(test_a_fifo_beside_the_log_is_refused),
        TEST(test_the_owner_of_files_beside_another_users_log),
        TEST(test_a_damaged_log_is_set_aside),
        TEST(test_foreign_and_newer_databases_are_refused_untouched),
        TEST(test_an_older_schema_is_migrated_after_a_backup),
        TEST(test_a_log_that_cannot_be_written_can_be_viewed),
        TEST(test_what_is_no_file_is_a_clear_error),
    };
    return cmocka_run_group_tests_name("history_faults", tests, NULL, NULL);
}
