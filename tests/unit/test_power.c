/* Power cuts: a simulated disk (disk_kit.h) is stopped before a change of a file, and the log that
 * it might hold then is opened again. `make test` cuts at a few changes of each operation; with
 * CUTS=all at every change of a file. */
#include "history/internal.h"
#include "tests/disk_kit.h"
#include "tests/history_kit.h"

#include <sys/stat.h>

enum { MOST = 20000, WINDOW = 40, SAMPLE = 4 };

static char base[110];         /* folder with the log before the operation */
static uint64_t acked[MOST];   /* turns that were acknowledged when the power failed */
static struct history *writer; /* its status counts them; NULL: all_acked does */
static uint64_t all_acked;
static long long sessions_before, sessions_after;
static bool whole[MOST];       /* the operation had ended */

static void shell(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

static void shell(const char *fmt, ...)
{
    char cmd[1000];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(cmd, sizeof cmd, fmt, ap);
    va_end(ap);
    if (system(cmd) != 0)
        fail_msg("%s", cmd);
}

static const char *in_folder(const char *folder, const char *name)
{
    static char path[4][400];
    static int i;
    i = (i + 1) % 4;
    snprintf(path[i], sizeof path[i], "%s/%s", folder, name);
    return path[i];
}

/* ---- logs before the operation ---- */

static void make_sessions(void)
{
    struct history *h = log_open(LOG_TREE);
    for (int i = 0; i < 5; i++) {
        char id[SESSION_ID];
        session_new_id(id);
        write_session(h, id, 2);
        assert_true(history_flush(h, 60000));
    }
    history_close(h);
}

static void make_plain_sessions(void)
{
    make_sessions();
    change_log("PRAGMA journal_mode=DELETE");
}

/* A log whose writer was killed within a reply. */
static void make_crashed(void)
{
    char id[SESSION_ID];
    struct ids context = {0};
    struct made_turn t;
    struct history *h = log_open(LOG_TREE);
    session_new_id(id);
    write_session(h, id, 2);
    make_turn(&t, id, 3, &context);
    post_turn(h, &t, t.n_steps, false);
    assert_true(history_flush(h, 60000));
    char folder[200];
    snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(db_path, '/') - db_path), db_path);
    shell("mkdir %s.crashed && cp %s/* %s.crashed && rm %s.crashed/*-shm", folder, folder, folder,
          folder);
    history_close(h);
    shell("rm -r %s && mv %s.crashed %s", folder, folder, folder);
    free_turn(&t);
    ids_free(&context);
}

/* A log beside which a side file holds two turns. */
static void make_side_file(void)
{
    char id[SESSION_ID];
    struct history_left left = {0};
    sqlite3 *other;
    struct history *h = log_open(LOG_TREE);
    session_new_id(id);
    write_session(h, id, 1);
    assert_true(history_flush(h, 60000));
    assert_int_equal(sqlite3_open(db_path, &other), SQLITE_OK);
    assert_int_equal(sqlite3_exec(other, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
    one_turn(h, id, 2, false);
    one_turn(h, id, 3, false);
    for (int i = 0; i < 100 && !left.kept[0]; i++)
        history_finish(h, 100, &left);
    assert_true(left.kept[0] != 0);
    history_close(h);
    sqlite3_close(other);
}

static void make_damaged(void)
{
    make_plain_sessions();
    change_log("UPDATE turn SET text='x' WHERE role='reply' AND n=1 AND session_id=(SELECT id FROM "
               "session WHERE number=2)");
}

/* ---- operations ---- */

static void open_and_close(void)
{
    history_close(log_open(LOG_STEPS));
}

/* Turns of two sessions, the second a fork; settings, a notice, a reply generated again, a title;
 * the program ends within a reply. */
static void chat(void)
{
    char first[SESSION_ID], second[SESSION_ID];
    struct err e = {0};
    struct history_left left;
    struct ids context = {0};
    struct made_turn t;
    struct history *h = writer = log_open(LOG_TREE);
    session_new_id(first);
    session_new_id(second);
    describe_texts(h);
    write_session(h, first, 1);
    assert_true(history_flush(h, 60000));
    post_op(h, first, OP_SET, 1, "temperature=0.5");
    one_turn(h, first, 2, true);
    assert_true(history_flush(h, 60000));
    assert_true(history_set_title(db_path, first, "A title", &e));
    post_session(h, second, first, 1);
    post_op(h, second, OP_OPEN, 0, "temperature=0\nseed=1\n");
    for (int i = 2; i < 6; i++) {
        one_turn(h, second, i, false);
        assert_true(history_flush(h, 60000));
    }
    struct event ev = event_of(EV_NOTICE, second, 5, "a notice");
    post(h, &ev);
    make_turn(&t, second, 6, &context);
    post_turn(h, &t, t.n_steps, true);
    free_turn(&t);
    make_turn(&t, second, 7, &context);
    post_turn(h, &t, 1, false);
    assert_true(history_finish(h, 5000, &left));
    all_acked = 7;
    writer = NULL;
    history_close(h);
    free_turn(&t);
    ids_free(&context);
}

static void sealed_chat(void)
{
    struct err e = {0};
    char key[200];
    snprintf(key, sizeof key, "%s/key", scratch);
    if (access(key, F_OK) != 0)
        assert_true(hdb_save(key, "0123456789abcdef", 16, &e));
    if (!history_seal_with(key, &e))
        fail_msg("%s", e.msg);
    chat();
}

static void title_and_pin(void)
{
    struct err e = {0};
    struct session_row r;
    struct hdb *d = read_open();
    assert_true(hdb_find(d, "2", &r, &e));
    hdb_close(d);
    assert_true(history_set_title(db_path, r.id, "Another title", &e));
    assert_true(history_pin(db_path, r.id, true, &e));
    session_row_free(&r);
}

static void prune(void)
{
    struct pruned gone;
    struct err e = {0};
    const struct prune_rule rule = {.older_than = ANY_AGE, .keep = 3, .to_bytes = -1};
    assert_true(history_prune(db_path, &rule, &gone, NULL, &e));
}

static void vacuum(void)
{
    int64_t a, b;
    struct err e = {0};
    assert_true(history_vacuum(db_path, &a, &b, &e));
}

static bool copy_of(bool (*make)(const char *to, struct err *e), struct err *e)
{
    char to[200];
    snprintf(to, sizeof to, "%.*s/copy.db", (int)(strrchr(db_path, '/') - db_path), db_path);
    return make(to, e);
}

static bool backup_to(const char *to, struct err *e)
{
    return history_backup(db_path, to, e);
}

static bool repair_to(const char *to, struct err *e)
{
    struct buf report = {0};
    int lost;
    bool ok = history_repair(db_path, to, &report, &lost, e);
    buf_free(&report);
    return ok;
}

static void backup(void)
{
    struct err e = {0};
    if (!copy_of(backup_to, &e))
        fail_msg("%s", e.msg);
}

static void repair(void)
{
    struct err e = {0};
    if (!copy_of(repair_to, &e))
        fail_msg("%s", e.msg);
}

/* ---- what is left ---- */

static void check_copy(bool (*make)(const char *to, struct err *e), const char *folder, long n)
{
    struct err e = {0};
    const char *to = in_folder(folder, "copy.db");
    assert_true(access(to, F_OK) == 0 || !whole[n]);
    if (access(to, F_OK) != 0 && !copy_of(make, &e)) /* what the first try left behind is in
                                                        nobody's way */
        fail_msg("%s", e.msg);
    sound(to);
    assert_int_equal(sessions(to), 5);
    shell("test 1 = $(ls %s | grep -c '^copy')", folder);
}

static void check_backup(const char *folder, long n)
{
    check_copy(backup_to, folder, n);
}

static void check_repair(const char *folder, long n)
{
    check_copy(repair_to, folder, n);
}

/* Every acknowledged turn is there. */
static void check_chat(const char *folder, long n)
{
    long long there = count(in_folder(folder, "sessions.db"),
                            "SELECT count(*) AS n FROM turn WHERE role='reply' AND stop NOT IN "
                            "('', 'crashed')");
    there -= 10 * (sessions_before > 0);
    if (there < (long long)acked[n])
        fail_msg("%s: %llu turns were acknowledged, %lld are left", folder,
                 (unsigned long long)acked[n], there);
}

static void check_title(const char *folder, long n)
{
    if (whole[n])
        assert_int_equal(count(in_folder(folder, "sessions.db"),
                               "SELECT count(*) AS n FROM session WHERE pinned=1 AND"
                                                                 " title='Another title'"), 1);
}

/* The turns of the side file are there once. */
static void check_side_file(const char *folder, long n)
{
    (void)n;
    assert_int_equal(count(in_folder(folder, "sessions.db"),
                           "SELECT count(*) AS n FROM turn WHERE role='reply' AND"
                                                             " stop NOT IN ('', 'crashed')"), 3);
    shell("test 0 = $(ls %s | grep -c unsaved)", folder);
}

static void check_crashed(const char *folder, long n)
{
    (void)n;
    const char *db = in_folder(folder, "sessions.db");
    assert_int_equal(count(db, "SELECT count(*) AS n FROM turn WHERE role='reply' AND stop NOT IN "
                               "('', 'crashed')"), 2);
    assert_int_equal(count(db, "SELECT count(*) AS n FROM turn WHERE stop='crashed'"), 1);
}

static const struct operation {
    const char *name;
    void (*make)(void); /* makes the log before it; NULL: there is none */
    void (*run)(void);
    void (*check)(const char *folder, long n); /* after the log was opened again; may be NULL */
    bool no_wal;
} operations[] = {
    {"new-log", NULL, open_and_close, NULL, false},
    {"new-log-chat", NULL, chat, check_chat, false},
    {"chat", make_sessions, chat, check_chat, false},
    {"chat-without-wal", make_plain_sessions, chat, check_chat, true},
    {"sealed-chat", NULL, sealed_chat, check_chat, false},
    {"crashed", make_crashed, open_and_close, check_crashed, false},
    {"side-file", make_side_file, open_and_close, check_side_file, false},
    {"title", make_sessions, title_and_pin, check_title, false},
    {"prune", make_sessions, prune, NULL, false},
    {"prune-without-wal", make_plain_sessions, prune, NULL, true},
    {"vacuum", make_sessions, vacuum, NULL, false},
    {"vacuum-without-wal", make_plain_sessions, vacuum, NULL, true},
    {"backup", make_sessions, backup, check_backup, false},
    {"repair", make_damaged, repair, check_repair, false},
};

static void check_cut(const struct operation *o, const char *folder, long n)
{
    char was[128];
    const char *db = in_folder(folder, "sessions.db");
    if (access(db, F_OK) != 0) {
        assert_true(!o->make && !acked[n]);
        return;
    }
    memcpy(was, db_path, sizeof was);
    snprintf(db_path, sizeof db_path, "%.127s", db);
    struct history *h = log_open(LOG_STEPS); /* migrates, recovers */
    struct history_status s;
    history_status(h, &s);
    assert_null(strstr(s.notice, "damaged"));
    history_close(h);
    if (o->run == repair) { /* damaged before, and as it was */
        assert_int_equal(count(db, "SELECT count(*) AS n FROM turn WHERE text='x'"), 1);
    } else {
        sound(db_path);
        long long there = sessions(db_path), lo = sessions_before < sessions_after ? sessions_before
                          : sessions_after;
        long long hi = sessions_before + sessions_after - lo;
        if (there < lo || there > hi || (whole[n] && there != sessions_after))
            fail_msg("%s: %lld sessions are left", folder, there);
    }
    assert_int_equal(count(db_path, "SELECT (SELECT count(*) FROM held) + (SELECT count(*) FROM "
                                    "run WHERE ended=0) +"
                                    " (SELECT count(*) FROM turn WHERE stop='') AS n"), 0);
    if (o->check)
        o->check(folder, n);
    memcpy(db_path, was, sizeof was);
}

static void note_acked(long n)
{
    struct history_status s = {.acked_turns = all_acked};
    assert_true(n < MOST);
    if (writer)
        history_status(writer, &s);
    acked[n] = s.acked_turns;
}

/* Runs the operation, with power cuts before some changes of files and one after its end. Returns
 * the changes. */
static long run_with_cuts(const struct operation *o, long first, long step, long last)
{
    char folder[200], prefix[220];
    snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(db_path, '/') - db_path), db_path);
    snprintf(prefix, sizeof prefix, "%s/%s-", scratch, o->name);
    shell("rm -rf %s && cp -a %s %s", folder, base, folder);
    memset(whole, 0, sizeof whole);
    memset(acked, 0, sizeof acked);
    all_acked = 0;
    disk.no_wal = o->no_wal;
    shim_install();
    disk.track = true;
    disk.prefix = prefix;
    disk.on_cut = note_acked;
    disk.first = first, disk.step = step, disk.last = last;
    o->run();
    long ops = disk.op;
    disk.step = 0;
    if (first <= ops) {
        cut_number(ops + 1);
        whole[ops + 1] = true;
    }
    shim_remove();
    return ops;
}

static int check_cuts(const struct operation *o, long ops)
{
    char folder[300];
    int n = 0;
    for (long i = 1; i <= ops + 1; i++) {
        snprintf(folder, sizeof folder, "%s/%s-%ld", scratch, o->name, i);
        if (access(folder, F_OK) != 0)
            continue;
        check_cut(o, folder, i);
        shell("rm -r %s", folder);
        n++;
    }
    return n;
}

static void prepare(const struct operation *o)
{
    snprintf(base, sizeof base, "%s/%s", scratch, o->name);
    snprintf(db_path, sizeof db_path, "%.110s/sessions.db", base);
    assert_int_equal(mkdir(base, 0700), 0);
    if (o->make)
        o->make();
    snprintf(db_path, sizeof db_path, "%s/work/sessions.db", scratch);
    shell("rm -rf %s/work && cp -a %s %s/work", scratch, base, scratch);
    sessions_before = 0;
    if (o->make) {
        open_and_close();
        sessions_before = sessions(db_path);
    }
}

static void test_a_power_cut_leaves_the_log_before_or_after(void **state)
{
    (void)state;
    const char *cuts = getenv("CUTS"), *only = getenv("ONLY");
    bool all = cuts && strcmp(cuts, "all") == 0;
    int total = 0;
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++) {
        const struct operation *o = &operations[i];
        if (only && strcmp(o->name, only) != 0)
            continue;
        int n = 0;
        prepare(o);
        long ops = run_with_cuts(o, MOST, 1, 0);
        sessions_after = sessions(db_path);
        if (all) {
            for (long from = 1; from <= ops; from += WINDOW) {
                ops = run_with_cuts(o, from, 1, from + WINDOW - 1);
                n += check_cuts(o, ops);
            }
        } else {
            long step = ops / SAMPLE + 1;
            ops = run_with_cuts(o, 1 + (long)roll((uint64_t)step), step, ops);
            n = check_cuts(o, ops);
        }
        print_message("%-20s %4ld changes of files, %4d power cuts\n", o->name, ops, n);
        history_seal_with(NULL, NULL);
        shell("rm -r %s", base);
        total += n;
    }
    print_message("%d power cuts\n", total);
    /* an operation that makes fewer changes when it is run again is cut SAMPLE times, else once
     * more */
    assert_true(only ||
                total >= (all ? 1000 : SAMPLE * (int)(sizeof operations / sizeof *operations)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_a_power_cut_leaves_the_log_before_or_after),
    };
    return cmocka_run_group_tests_name("power", tests, NULL, NULL);
}
