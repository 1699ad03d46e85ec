/* Care of the session log: backup while it is used, prune and pins, vacuum, the size limit,
 * repair. */
#include "history/internal.h"
#define MEASURES_SQLITE
#include "tests/history_kit.h"

#include <sys/stat.h>

/* The id of a session, by its number. */
static void id_of(int number, char id[SESSION_ID])
{
    struct err e = {0};
    struct session_row r;
    char text[16];
    struct hdb *d = read_open();
    snprintf(text, sizeof text, "%d", number);
    assert_true(hdb_find(d, text, &r, &e));
    memcpy(id, r.id, SESSION_ID);
    session_row_free(&r);
    hdb_close(d);
}

/* Sessions 1 to n, the longest unused first; 3 is a fork of 1. */
static void make_log(int n)
{
    struct history *h = log_open(LOG_TREE);
    char id[SESSION_ID], first[SESSION_ID];
    for (int i = 1; i <= n; i++) {
        session_new_id(id);
        if (i == 1)
            memcpy(first, id, sizeof id);
        if (i == 3) {
            post_session(h, id, first, 1);
            one_turn(h, id, 2, false);
        } else {
            write_session(h, id, 2);
        }
        assert_true(history_flush(h, 60000));
        sleep_ms(3);
    }
    history_close(h);
}

/* ---- backup ---- */

static void test_a_backup_in_use_is_whole_and_checked(void **state)
{
    (void)state;
    struct err e = {0};
    char to[160], id[SESSION_ID];
    struct stat st;
    struct history *h = log_open(LOG_TREE);
    session_new_id(id);
    write_session(h, id, 2);
    for (int i = 0; i < 10; i++) { /* while it is written */
        one_turn(h, id, 3 + i, false);
        snprintf(to, sizeof to, "%s/copy%d.db", scratch, i);
        if (!history_backup(db_path, to, &e))
            fail_msg("%s", e.msg);
        sound(to);
        assert_int_equal(stat(to, &st), 0);
        assert_int_equal(st.st_mode & 0777, 0600);
    }
    history_close(h);
    assert_false(history_backup(db_path, to, &e)); /* never over a file that exists */
    change_log("UPDATE turn SET text='forged' WHERE role='user'; INSERT INTO turn_fts(turn_fts) "
               "VALUES('rebuild')");
    snprintf(to, sizeof to, "%s/damaged.db", scratch);
    assert_false(history_backup(db_path, to, &e));
    assert_non_null(strstr(e.msg, "is copied, but its check says: "));
}

/* ---- prune ---- */

static struct pruned prune(struct prune_rule rule)
{
    struct pruned out;
    struct err e = {0};
    if (!history_prune(db_path, &rule, &out, NULL, &e))
        fail_msg("%s", e.msg);
    return out;
}

static void test_prune_keeps_what_others_need(void **state)
{
    (void)state;
    struct err e = {0};
    struct buf report = {0};
    struct pruned gone;
    char second[SESSION_ID];
    make_log(6);
    id_of(2, second);
    assert_true(history_pin(db_path, second, true, &e));
    assert_false(history_pin(db_path, "01H", true, &e));
    sound(db_path);
    const struct prune_rule dry = {.older_than = ANY_AGE, .keep = 4, .to_bytes = -1, .dry = true};
    assert_true(history_prune(db_path, &dry, &gone, &report, &e));
    assert_int_equal(gone.sessions, 2); /* 3, then 1, which is no parent any more; not 2 */
    assert_non_null(strstr(report.p, "    3  "));
    assert_int_equal(sessions(db_path), 6);
    sound(db_path);
    buf_free(&report);
    assert_int_equal(prune((struct prune_rule){.older_than = ANY_AGE, .keep = 4,
                                               .to_bytes = -1}).sessions, 2);
    assert_int_equal(count(db_path, "SELECT min(number) AS n FROM session"), 2);
    sound(db_path);
    /* all but the pinned one */
    struct prune_rule all = {.older_than = ANY_AGE, .keep = -1, .to_bytes = 0};
    assert_int_equal(prune(all).sessions, 3);
    sound(db_path);
    assert_true(history_pin(db_path, second, false, &e));
    /* used today */
    struct prune_rule old = {.older_than = 1, .keep = -1, .to_bytes = -1};
    assert_int_equal(prune(old).sessions, 0);
    assert_int_equal(prune((struct prune_rule){.older_than = 0, .keep = 1,
                                               .to_bytes = -1}).sessions, 1);
    sound(db_path);
}

static int remove_session(int number, bool dry, struct err *e)
{
    char id[SESSION_ID];
    struct pruned gone;
    id_of(number, id);
    const struct prune_rule rule = {.older_than = ANY_AGE, .keep = -1, .to_bytes = -1, .only = id,
                                    .dry = dry};
    return history_prune(db_path, &rule, &gone, NULL, e) ? gone.sessions : -1;
}

/* One session is removed by its name, unless another one needs it, or it is pinned or open. */
static void test_one_session_is_removed(void **state)
{
    (void)state;
    struct err e = {0};
    char second[SESSION_ID], open_one[SESSION_ID];
    make_log(5);
    id_of(2, second);
    assert_int_equal(remove_session(1, false, &e), -1); /* 3 is its fork */
    assert_int_equal(e.kind, ERR_USAGE);
    assert_non_null(strstr(e.msg, "session #1 cannot be removed before #3, forked from it"));
    assert_true(history_pin(db_path, second, true, &e));
    assert_int_equal(remove_session(2, false, &e), -1);
    assert_non_null(strstr(e.msg, "aerie db unpin 2"));
    assert_int_equal(remove_session(3, true, &e), 1); /* dry */
    assert_int_equal(sessions(db_path), 5);
    assert_int_equal(remove_session(3, false, &e), 1);
    assert_int_equal(remove_session(1, false, &e), 1);
    sound(db_path);
    assert_int_equal(count(db_path, "SELECT sum(number) AS n FROM session"), 2 + 4 + 5);
    struct history *h = log_open(LOG_TREE);
    session_new_id(open_one);
    write_session(h, open_one, 1);
    assert_true(history_flush(h, 60000));
    assert_int_equal(remove_session(6, false, &e), -1);
    assert_int_equal(e.kind, ERR_DB);
    history_close(h);
    assert_int_equal(remove_session(6, false, &e), 1);
    sound(db_path);
}

static void test_prune_by_size_stops_at_the_size(void **state)
{
    (void)state;
    make_log(12);
    int64_t before = 0, after = 0;
    struct err e = {0};
    assert_true(history_vacuum(db_path, &before, &after, &e));
    assert_true(after <= before);
    sound(db_path);
    assert_int_equal(prune((struct prune_rule){.older_than = ANY_AGE, .keep = -1,
                                               .to_bytes = after}).sessions, 0);
    struct pruned gone = prune((struct prune_rule){.older_than = ANY_AGE, .keep = -1,
                                                   .to_bytes = after - 40000});
    assert_true(gone.sessions > 0 && gone.sessions < 10 && gone.bytes > 0 &&
                gone.turns >= gone.sessions);
    assert_int_equal(sessions(db_path), 12 - gone.sessions);
    sound(db_path);
}

static void test_vacuum_takes_no_memory_for_the_log(void **state)
{
    (void)state;
    enum { MB = 1 << 20 };
    struct err e = {0};
    int64_t before = 0, after = 0;
    char mark[200];
    make_log(4);
    change_log("UPDATE turn SET tokens=randomblob(900000)");
    snprintf(mark, sizeof mark, "%s", sqlite3_temp_directory ? sqlite3_temp_directory : "");
    sqlite3_int64 used = sqlite3_memory_used();
    sqlite3_memory_highwater(1);
    assert_true(history_vacuum(db_path, &before, &after, &e));
    assert_true(after > 10 * MB);
    assert_true(sqlite3_memory_highwater(0) - used < 8 * MB);
    assert_string_equal(mark, sqlite3_temp_directory ? sqlite3_temp_directory : "");
}

/* ---- the size limit ---- */

static void test_prune_makes_room_in_a_full_log(void **state)
{
    (void)state;
    char id[SESSION_ID];
    struct history_status s;
    make_log(8);
    struct history *h = log_open(LOG_TREE);
    history_status(h, &s);
    history_set_limit(h, &(struct history_limit){1 << 30, true});
    history_status(h, &s);
    history_set_limit(h, &(struct history_limit){s.bytes, true});
    session_new_id(id);
    write_session(h, id, 1);
    assert_true(history_flush(h, 5000));
    history_status(h, &s);
    assert_int_equal(s.left_out, 1);
    assert_true(prune((struct prune_rule){.older_than = ANY_AGE, .keep = 2,
                                          .to_bytes = -1}).sessions > 4);
    session_new_id(id);
    write_session(h, id, 1);
    assert_true(history_flush(h, 5000));
    history_status(h, &s);
    assert_int_equal(s.left_out, 1);
    assert_true(s.recording && !s.error[0]);
    history_close(h);
    sound(db_path);
}

static void test_a_full_log_says_so_before_and_stops_or_goes_on(void **state)
{
    (void)state;
    for (int stop = 0; stop < 2; stop++) {
        char id[SESSION_ID];
        struct history_status s;
        snprintf(db_path, sizeof db_path, "%s/%d/sessions.db", scratch, stop);
        struct history *h = log_open(LOG_TREE);
        history_set_limit(h, &(struct history_limit){1 << 30, stop});
        history_status(h, &s);
        assert_string_equal(s.limit, "");
        assert_true(s.bytes > 0);
        session_new_id(id);
        write_session(h, id, 1);
        assert_true(history_flush(h, 60000));
        history_status(h, &s);
        history_set_limit(h, &(struct history_limit){s.bytes * 100 / 95, stop});
        history_status(h, &s);
        assert_int_equal(s.room_left, ROOM_LITTLE);
        assert_non_null(strstr(s.limit, "the log is 95% full"));
        assert_true(s.recording && !s.error[0]);
        history_set_limit(h, &(struct history_limit){s.bytes, stop});
        one_turn(h, id, 2, false);
        assert_true(history_flush(h, 60000));
        history_status(h, &s);
        assert_int_equal(s.room_left, ROOM_NONE);
        assert_non_null(strstr(s.limit, "the log is full"));
        assert_int_equal(s.left_out, stop);
        assert_int_equal(s.recording, !stop);
        assert_int_equal(s.error[0] != 0, stop);
        assert_int_equal(count(db_path, "SELECT count(*) AS n FROM turn WHERE role='reply'"),
                         2 - stop);
        history_set_limit(h, &(struct history_limit){1 << 30, stop}); /* room again */
        one_turn(h, id, 3, false);
        assert_true(history_flush(h, 60000));
        history_status(h, &s);
        assert_true(s.recording && !s.error[0] && !s.limit[0] && s.room_left == ROOM_ENOUGH);
        history_close(h);
        assert_int_equal(count(db_path, "SELECT count(*) AS n FROM turn WHERE role='reply'"),
                         3 - stop);
        sound(db_path);
    }
}

/* ---- repair ---- */

static void repaired(char to[160], struct buf *report, int *lost)
{
    struct err e = {0};
    struct buf was = {0}, is = {0};
    static int n;
    snprintf(to, 160, "%s/repaired%d.db", scratch, n++);
    assert_true(buf_read_file(&was, db_path, 64 << 20, NULL));
    buf_clear(report);
    if (!history_repair(db_path, to, report, lost, &e))
        fail_msg("%s\n%s", e.msg, report->p);
    assert_true(buf_read_file(&is, db_path, 64 << 20, NULL));
    /* the damaged file stays as it is */
    assert_true(was.n == is.n && memcmp(was.p, is.p, was.n) == 0);
    sound(to);
    buf_free(&was);
    buf_free(&is);
}

static bool read_turn(const struct turn_row *r, void *arg)
{
    *(int *)arg += r->n > 0;
    return true;
}

/* Every session of a log can be read with every reader. */
static void readable(const char *path)
{
    struct err e = {0};
    struct hdb *d = hdb_open(path, &e);
    assert_non_null(d);
    int turns = 0;
    for (int i = 1; i < 9; i++) {
        struct session_row r;
        char name[12];
        snprintf(name, sizeof name, "%d", i);
        if (!hdb_find(d, name, &r, &e))
            continue;
        if (hdb_turns(d, r.id, 0, read_turn, &turns, &e) < 0)
            fail_msg("session %d: %s", i, e.msg);
        struct hdb_past p;
        if (!hdb_past(d, r.id, INT32_MAX, &p, &e))
            fail_msg("session %d: %s", i, e.msg);
        hdb_past_free(&p);
        session_row_free(&r);
    }
    hdb_close(d);
}

static void test_repair_keeps_what_is_sound_and_names_the_rest(void **state)
{
    (void)state;
    static const struct {
        const char *sql, *line;
        int sessions, turns; /* left; of 4 sessions, 7 turns */
    } damage[] = {
        {"SELECT 1", "0 lost or left out", 4, 7},
        {"UPDATE turn SET text='x' WHERE role='reply' AND n=1 AND session_id=(SELECT id FROM "
         "session WHERE number=2)",
         "the reply of turn 1 is not what was written, and left out", 4, 7},
        {"UPDATE turn SET text='x' WHERE role='user' AND n=1 AND session_id=(SELECT id FROM "
         "session WHERE number=2)",
         "the message of turn 1 is not what was written, and left out", 4, 6},
        {"UPDATE step SET draws=draws+1 WHERE turn_id=(SELECT max(turn_id) FROM step)",
         "is not what was written, and left out", 4, 7},
        {"DELETE FROM turn WHERE role='reply' AND n=1 AND session_id=(SELECT id FROM session WHERE "
         "number=1)", "what stood before", 4, 7},
        {"DELETE FROM turn WHERE n=2 AND session_id=(SELECT id FROM session WHERE number=4)",
         "are missing", 4, 6},
        {"DELETE FROM turn WHERE role='reply' AND n=1 AND session_id=(SELECT id FROM session WHERE "
         "number=4);"
         "UPDATE turn SET text='x' WHERE role='user' AND n=2 AND session_id=(SELECT id FROM "
         "session WHERE number=4)",
         "the message of turn 2 is not what was written, and left out", 4, 6},
        {"UPDATE session SET title='x' WHERE number=1", "its title, number, pin, times", 4, 7},
        {"PRAGMA foreign_keys=ON; DELETE FROM session WHERE number=2",
         "its row nor any of its records can be read, and left out", 3, 5},
        {"DELETE FROM session WHERE number=2", "its title, number, pin and what it was forked from "
                                               "are not known", 4, 7},
        {"DELETE FROM session", "its title, number, pin and what it was forked from are not known",
         4, 7},
        {"DELETE FROM build", "of run 1 these facts are lost: build\n", 4, 7},
        {"DELETE FROM model", "these facts are lost: model, draft model", 4, 7},
        {"DELETE FROM build; DELETE FROM model", "these facts are lost: build, model, draft model",
         4, 7},
        {"DELETE FROM run", "is lost: its build, model and settings are not known", 4, 7},
        {"DELETE FROM run; DELETE FROM session; DELETE FROM build",
         "its build, model and settings are not known", 4, 7},
        {"INSERT INTO token VALUES(99, 1, 'x')",
         "the texts of 1 tokenizer are not what was written", 4, 7},
        {"PRAGMA foreign_keys=ON; DELETE FROM session WHERE number=1",
         "was forked from one that is lost", 3, 5},
        {"UPDATE token SET text='x'", "texts of", 4, 7},
        {"CREATE TRIGGER evil AFTER INSERT ON turn BEGIN DELETE FROM turn; END",
         "trigger \"evil\" was added", 4, 7},
        {"DELETE FROM head; UPDATE roll SET heads=0", "0 lost or left out", 4, 7},
    };
    struct buf report = {0}, good = {0};
    char to[160];
    make_log(4);
    struct history *h = log_open(LOG_TREE);
    describe_texts(h);
    history_close(h);
    change_log("PRAGMA journal_mode=DELETE");
    assert_true(buf_read_file(&good, db_path, 64 << 20, NULL));
    for (size_t i = 0; i < sizeof damage / sizeof *damage; i++) {
        FILE *f = fopen(db_path, "wb");
        assert_int_equal(fwrite(good.p, 1, good.n, f), good.n);
        fclose(f);
        change_log(damage[i].sql);
        int lost = 0;
        repaired(to, &report, &lost);
        if (strncmp(damage[i].sql, "UPDATE token", 12) != 0 && !strstr(report.p, damage[i].line))
            fail_msg("%s: expected \"%s\" in: %s", damage[i].sql, damage[i].line, report.p);
        assert_int_equal(sessions(to), damage[i].sessions);
        assert_int_equal(count(to, "SELECT count(*) AS n FROM turn WHERE role='user'"),
                         damage[i].turns);
        readable(to);
        unlink(to);
    }
    buf_free(&report);
    buf_free(&good);
}

/* Pages of the file are overwritten, one after the other (all of them with CUTS=all): every log is
 * repaired, and a page of the schema costs no session. */
static void test_repair_of_damaged_pages_keeps_other_sessions(void **state)
{
    (void)state;
    enum { PAGE = 4096 };
    struct buf report = {0}, good = {0};
    char to[160];
    int tried = 0, opened = 0, all = 0;
    make_log(4);
    change_log("PRAGMA journal_mode=DELETE");
    assert_true(buf_read_file(&good, db_path, 64 << 20, NULL));
    bool each = getenv("CUTS") && strcmp(getenv("CUTS"), "all") == 0;
    for (size_t page = 0; page < good.n / PAGE; page += each ? 1 : 1 + page / 4) {
        struct err e = {0};
        int lost = 0;
        snprintf(to, sizeof to, "%s/page%zu.db", scratch, page);
        memset(good.p + page * PAGE, 0xA5, PAGE);
        FILE *f = fopen(db_path, "wb");
        assert_int_equal(fwrite(good.p, 1, good.n, f), good.n);
        fclose(f);
        buf_free(&good);
        buf_clear(&report);
        tried++;
        if (history_repair(db_path, to, &report, &lost, &e)) {
            opened++;
            all += sessions(to) == 4;
            if (sessions(to) != 4)
                print_message("page %zu:\n%s", page, report.p);
            if (strstr(report.p, "tables were found by what they hold") && sessions(to) != 4)
                fail_msg("page %zu: %lld sessions\n%s", page, sessions(to), report.p);
            readable(to);
        } else {
            fail_msg("page %zu: %s\n%s", page, e.msg, report.p);
        }
        unlink(to);
        unlink(db_path);
        make_log(4);
        change_log("PRAGMA journal_mode=DELETE");
        assert_true(buf_read_file(&good, db_path, 64 << 20, NULL));
    }
    print_message("%d pages damaged, %d logs repaired, %d with all sessions\n", tried, opened, all);
    assert_true(opened == tried && all > tried / 2);
    buf_free(&report);
    buf_free(&good);
}

/* One changed byte where a page says what it is, or where its cells are: pages below an inner page,
 * and turns that have no rows in the table, lose nothing. */
static void test_repair_needs_no_root_and_no_index(void **state)
{
    (void)state;
    enum { PAGE = 4096, SESSIONS = 24, INNER = 5, LEAF = 13 };
    static const char *const names[] = {"turn", "step", "tree", "pages", "served", "metric", "top",
                                        "turn_part", "session", "sqlite_autoindex_session_1",
                                        "sqlite_autoindex_step_1", "sqlite_autoindex_run_1"};
    static const size_t at[] = {0, 13}; /* the kind of the page; where its first cell is */
    struct buf report = {0}, good = {0};
    char to[160];
    int damaged = 0;
    make_log(SESSIONS);
    change_log("PRAGMA journal_mode=DELETE");
    assert_true(buf_read_file(&good, db_path, 64 << 20, NULL));
    int64_t turns = count(db_path, "SELECT count(*) AS n FROM turn");
    int64_t steps = count(db_path, "SELECT count(*) AS n FROM step");
    for (size_t i = 0; i < 2 * (LEN(names)); i++) {
        char sql[160];
        snprintf(sql, sizeof sql, "SELECT coalesce(max(rootpage),0) AS n FROM sqlite_schema WHERE "
                                  "name='%s'", names[i / 2]);
        size_t page = ((size_t)count(db_path, sql) - 1) * PAGE, byte = page + at[i % 2];
        int kind = good.p[page];
        bool some = good.p[page + 3] || good.p[page + 4];
        if ((kind == LEAF && some) || (kind != INNER && i % 2)) /* these rows are lost */
            continue;
        good.p[byte] ^= 0x20;
        FILE *f = fopen(db_path, "wb");
        assert_int_equal(fwrite(good.p, 1, good.n, f), good.n);
        fclose(f);
        good.p[byte] ^= 0x20;
        int lost = 0;
        repaired(to, &report, &lost);
        if (count(to, "SELECT count(*) AS n FROM turn") != turns ||
            count(to, "SELECT count(*) AS n FROM step") != steps || sessions(to) != SESSIONS)
            fail_msg("%s, byte %zu: %s", names[i / 2], at[i % 2], report.p);
        readable(to);
        unlink(to);
        f = fopen(db_path, "wb");
        assert_int_equal(fwrite(good.p, 1, good.n, f), good.n);
        fclose(f);
        damaged++;
    }
    assert_true(damaged >= 8);
    buf_free(&report);
    buf_free(&good);
}

/* One bit of a session's id changes wherever the file has it, in tables and in indexes: a record is
 * kept in the session that its own row names, or left out. */
static void test_repair_takes_no_record_for_another_session(void **state)
{
    (void)state;
    struct buf report = {0}, good = {0};
    char to[160], id[SESSION_ID];
    int changed = 0;
    make_log(3);
    id_of(2, id);
    change_log("PRAGMA journal_mode=DELETE");
    assert_true(buf_read_file(&good, db_path, 64 << 20, NULL));
    for (char *p = good.p; (p = memmem(p, (size_t)(good.p + good.n - p), id, strlen(id)));) {
        p += strlen(id);
        p[-1] ^= 1;
        FILE *f = fopen(db_path, "wb");
        assert_int_equal(fwrite(good.p, 1, good.n, f), good.n);
        fclose(f);
        p[-1] ^= 1;
        int lost = 0;
        repaired(to, &report, &lost);
        assert_true(sessions(to) >= 3);
        readable(to);
        unlink(to);
        changed++;
    }
    assert_true(changed > 10);
    buf_free(&report);
    buf_free(&good);
}

/* A changed byte in the header costs no record, also where the file then seems to be another
 * program's, or of another version. A file without records is refused. */
static void test_repair_of_a_damaged_header(void **state)
{
    (void)state;
    static const size_t at[] = {0, 15, 16, 47, 59, 60, 63, 68, 71};
    struct buf report = {0}, good = {0};
    struct err e = {0};
    char to[160], live[160], id[SESSION_ID];
    make_log(1);
    struct history *h = log_open(LOG_TREE);
    describe_texts(h);
    session_new_id(id);
    write_session(h, id, 2);
    assert_true(history_flush(h, 60000));
    history_close(h);
    change_log("PRAGMA journal_mode=DELETE");
    int64_t texts = count(db_path, "SELECT count(*) AS n FROM token");
    assert_true(texts > 0);
    snprintf(live, sizeof live, "%s.live", db_path);
    assert_true(buf_read_file(&good, db_path, 64 << 20, NULL));
    for (size_t i = 0; i < 2 * LEN(at); i++) {
        good.p[at[i / 2]] ^= 0x5a;
        FILE *f = fopen(db_path, "wb");
        assert_int_equal(fwrite(good.p, 1, good.n, f), good.n);
        fclose(f);
        good.p[at[i / 2]] ^= 0x5a;
        f = i % 2 ? fopen(live, "wb") : NULL; /* a copy of the log has no such file beside it */
        if (f)
            fclose(f);
        int lost = 0;
        repaired(to, &report, &lost);
        if (lost || sessions(to) != 2 || count(to, "SELECT count(*) AS n FROM turn") != 8 ||
            count(to, "SELECT count(*) AS n FROM token") != texts)
            fail_msg("byte %zu: %s", at[i / 2], report.p);
        unlink(to);
        unlink(live);
    }
    int lost = 0;
    unlink(db_path);
    change_log("PRAGMA application_id=7; CREATE TABLE a(x); INSERT INTO a VALUES('text')");
    snprintf(to, sizeof to, "%s/none.db", scratch);
    buf_clear(&report);
    assert_false(history_repair(db_path, to, &report, &lost, &e));
    assert_non_null(strstr(e.msg, "belongs to another program"));
    assert_true(access(to, F_OK) != 0 && report.n == 0);
    buf_free(&report);
    buf_free(&good);
}

/* The page where the texts of tokens begin is overwritten: the report names the loss. */
static void test_repair_says_that_texts_of_tokens_are_lost(void **state)
{
    (void)state;
    enum { PAGE = 4096 };
    char to[160], id[SESSION_ID], none[PAGE] = {0};
    struct buf report = {0};
    int lost = 0;
    struct history *h = log_open(LOG_TREE);
    describe_texts(h);
    session_new_id(id);
    write_session(h, id, 2);
    assert_true(history_flush(h, 60000));
    history_close(h);
    change_log("PRAGMA journal_mode=DELETE");
    assert_true(count(db_path, "SELECT count(*) AS n FROM token") > 0);
    long root = (long)count(db_path, "SELECT rootpage AS n FROM sqlite_schema WHERE name='token'");
    FILE *f = fopen(db_path, "r+b");
    assert_int_equal(fseek(f, (root - 1) * PAGE, SEEK_SET), 0);
    assert_int_equal(fwrite(none, 1, PAGE, f), PAGE);
    fclose(f);
    repaired(to, &report, &lost);
    if (lost != 1 || !strstr(report.p, "the texts of 1 tokenizer are not what was written, "
                                       "and left"))
        fail_msg("%d lost: %s", lost, report.p);
    assert_int_equal(count(to, "SELECT count(*) AS n FROM turn"), 4);
    buf_free(&report);
}

static void test_repair_refuses_a_log_in_use_and_never_overwrites(void **state)
{
    (void)state;
    struct err e = {0};
    struct buf report = {0};
    int lost;
    char to[160];
    make_log(1);
    struct history *h = log_open(LOG_STEPS);
    snprintf(to, sizeof to, "%s/new.db", scratch);
    assert_false(history_repair(db_path, to, &report, &lost, &e));
    assert_non_null(strstr(e.msg, "is open in another aerie"));
    history_close(h);
    assert_false(history_repair(db_path, db_path, &report, &lost, &e));
    assert_non_null(strstr(e.msg, "exists; expected the name of a new file"));
    assert_true(hdb_save(to, "notes", 5, &e));
    assert_false(history_repair(to, db_path, &report, &lost, &e));
    buf_free(&report);
}

/* A table that is not as aerie made it is not repaired, whatever other programs added. */
static void test_a_table_that_was_changed_is_not_repaired(void **state)
{
    (void)state;
    struct err e = {0};
    struct buf report = {0};
    int lost;
    char to[160];
    make_log(1);
    change_log("ALTER TABLE metric ADD COLUMN x; CREATE TABLE zz(a)");
    snprintf(to, sizeof to, "%s/new.db", scratch);
    assert_false(history_repair(db_path, to, &report, &lost, &e));
    assert_non_null(strstr(e.msg, "cannot be repaired: schema: table \"metric\" is not as aerie "
                                  "made it"));
    assert_non_null(strstr(report.p, "\"zz\" was added"));
    buf_free(&report);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_a_backup_in_use_is_whole_and_checked),
        TEST(test_prune_keeps_what_others_need),
        TEST(test_one_session_is_removed),
        TEST(test_prune_by_size_stops_at_the_size),
        TEST(test_vacuum_takes_no_memory_for_the_log),
        TEST(test_prune_makes_room_in_a_full_log),
        TEST(test_a_full_log_says_so_before_and_stops_or_goes_on),
        TEST(test_repair_keeps_what_is_sound_and_names_the_rest),
        TEST(test_repair_of_damaged_pages_keeps_other_sessions),
        TEST(test_repair_needs_no_root_and_no_index),
        TEST(test_repair_takes_no_record_for_another_session),
        TEST(test_repair_of_a_damaged_header),
        TEST(test_repair_says_that_texts_of_tokens_are_lost),
        TEST(test_repair_refuses_a_log_in_use_and_never_overwrites),
        TEST(test_a_table_that_was_changed_is_not_repaired),
    };
    return cmocka_run_group_tests_name("history_care", tests, NULL, NULL);
}
