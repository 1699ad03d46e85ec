/* The session log as evidence: whatever another program changes in a log, `db check` finds it, or the
 * change is one of those that only a key or a noted head finds. */
#include "history/internal.h"
#include "tests/history_kit.h"

#include <sys/stat.h>

static struct buf base; /* the bytes of a sound log */

static void put_base(void)
{
    FILE *f = fopen(db_path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(base.p, 1, base.n, f), base.n);
    fclose(f);
}

static sqlite3 *raw_open(void)
{
    sqlite3 *s;
    assert_int_equal(sqlite3_open(db_path, &s), SQLITE_OK);
    return s;
}

static void raw(const char *sql)
{
    sqlite3 *s = raw_open();
    char *why = NULL;
    sqlite3_exec(s, sql, NULL, NULL, &why);
    if (why)
        fail_msg("%s: %s", sql, why);
    sqlite3_close(s);
}

static bool is_sound(struct buf *report)
{
    struct err e = {0};
    buf_clear(report);
    return history_check(db_path, report, &e);
}

/* Takes a log of an earlier version, writes a session with every kind of row into it, and leaves a session
 * lock and a note about a side file in it. */
static void make_base(const char *log)
{
    struct err e = {0};
    struct buf old = {0}, report = {0};
    char id[SESSION_ID];
    struct history *h = log_open(LOG_OFF); /* the folder */
    history_close(h);
    assert_int_equal(unlink(db_path), 0);
    assert_true(buf_read_file(&old, log, 1 << 20, &e));
    assert_true(hdb_save(db_path, old.p, old.n, &e));
    h = log_open(LOG_TREE);
    describe_texts(h);
    session_new_id(id);
    post_session(h, id, "", 0);
    post_op(h, id, OP_OPEN, 0, "temperature=0\nseed=1\n");
    struct ids context = {0};
    for (int i = 1; i <= 2; i++) {
        struct made_turn t;
        make_turn(&t, id, i, &context);
        post_copy(h, &t.begin);
        for (int k = 0; k < t.n_steps; k++)
            post_copy(h, &t.step[k]);
        struct event thought = event_of(EV_TEXT, id, i, "a thought");
        thought.channel = 1;
        post(h, &thought);
        post_copy(h, &t.end);
        free_turn(&t);
    }
    ids_free(&context);
    assert_true(history_flush(h, 5000));
    history_close(h);
    struct db d;
    struct live l;
    int64_t writer = 7;
    assert_true(open_existing(&d, db_path, SQLITE_OPEN_READWRITE, &e) && live_open(&l, db_path, &e));
    assert_true(session_lock(&d, &l, id, &e));
    assert_true(db_exec(&d, "BEGIN IMMEDIATE", &e));
    assert_int_equal(side_file_note_stored(&d, writer), SQLITE_OK);
    assert_true(db_exec(&d, "COMMIT", &e));
    live_close(&l);
    db_close(&d);
    raw("PRAGMA journal_mode=DELETE");
    buf_free(&base);
    assert_true(buf_read_file(&base, db_path, 64 << 20, &e));
    if (!is_sound(&report))
        fail_msg("%s", report.p);
    buf_free(&old);
    buf_free(&report);
}

/* ---- one cell ---- */

struct names {
    char name[64][64];
    int n;
};

static struct names names_of(const char *sql)
{
    struct names out = {0};
    sqlite3 *s = raw_open();
    sqlite3_stmt *st;
    assert_int_equal(sqlite3_prepare_v2(s, sql, -1, &st, NULL), SQLITE_OK);
    while (sqlite3_step(st) == SQLITE_ROW && out.n < 64)
        snprintf(out.name[out.n++], 64, "%s", (const char *)sqlite3_column_text(st, 0));
    sqlite3_finalize(st);
    sqlite3_close(s);
    return out;
}

/* Changes a row, so that it stays one that the schema allows. False: the change is no change, or the
 * schema forbids it. */
static bool changes(const char *sql)
{
    sqlite3 *s = raw_open();
    sqlite3_exec(s, "PRAGMA foreign_keys=OFF", NULL, NULL, NULL);
    bool ok = sqlite3_exec(s, sql, NULL, NULL, NULL) == SQLITE_OK && sqlite3_changes(s) > 0;
    sqlite3_close(s);
    return ok;
}

/* Tables of which a changed cell may change nothing: turn_fts is a view of the tables turn_fts_..., the
 * others hold bytes that no search reads (test_a_changed_search_index_is_found). */
static bool may_mean_nothing(const char *table)
{
    return strcmp(table, "turn_fts") == 0 || strcmp(table, "turn_fts_idx") == 0 ||
           strcmp(table, "turn_fts_data") == 0;
}

static int mutate_column(const char *table, const char *column, int *tried)
{
    static const char *const to[] = {
        "CASE typeof(\"%1$s\") WHEN 'integer' THEN \"%1$s\"+1 WHEN 'real' THEN \"%1$s\"*2+1 WHEN 'text' THEN \"%1$s\"||'x'"
        " WHEN 'blob' THEN CAST(\"%1$s\"||x'00' AS BLOB) ELSE 7 END",
        "CASE typeof(\"%1$s\") WHEN 'integer' THEN \"%1$s\"-1 WHEN 'real' THEN -\"%1$s\"-1 WHEN 'text' THEN"
        " CAST(\"%1$s\" AS BLOB) WHEN 'blob' THEN x'' ELSE '' END",
        "CASE typeof(\"%1$s\") WHEN 'null' THEN x'00' WHEN 'text' THEN '' WHEN 'blob' THEN"
        " CAST(substr(hex(\"%1$s\"),2)||'0' AS BLOB) ELSE NULL END",
    };
    static const char *const which[] = {"min", "max"};
    struct buf report = {0};
    int missed = 0;
    for (int k = 0; k < 3; k++)
        for (int w = k > 0; w < 2; w++) {
            char value[600], sql[2000];
            snprintf(value, sizeof value, to[k], column);
            /* tables without rowid have no column of that name */
            snprintf(sql, sizeof sql, "UPDATE \"%s\" SET \"%s\"=%s WHERE rowid=(SELECT %s(rowid) FROM \"%s\") AND"
                     " %s IS NOT \"%s\"", table, column, value, which[w], table, value, column);
            put_base();
            if (!changes(sql)) {
                snprintf(sql, sizeof sql, "UPDATE \"%s\" SET \"%s\"=%s WHERE \"%s\"=(SELECT %s(\"%s\") FROM"
                         " \"%s\") AND %s IS NOT \"%s\"", table, column, value, column, which[w], column, table,
                         value, column);
                put_base();
                if (!changes(sql))
                    continue;
            }
            ++*tried;
            if (is_sound(&report)) {
                missed++;
                print_error("missed: %s\n", sql);
            }
        }
    buf_free(&report);
    return missed;
}

static void mutate_tables(const char *which, int *tried, int *missed)
{
    char list[200];
    snprintf(list, sizeof list, "SELECT name FROM sqlite_schema WHERE type='table' AND name LIKE '%s'", which);
    struct names tables = names_of(list);
    for (int i = 0; i < tables.n; i++) {
        char sql[200];
        snprintf(sql, sizeof sql, "SELECT name FROM pragma_table_info('%s')", tables.name[i]);
        struct names columns = names_of(sql);
        for (int k = 0; k < columns.n; k++)
            if (!may_mean_nothing(tables.name[i]))
                *missed += mutate_column(tables.name[i], columns.name[k], tried);
    }
}

static void test_every_changed_cell_is_found(void **state)
{
    (void)state;
    static const char *const logs[] = {"tests/logs/version-5.db", "tests/logs/version-3.db"};
    static const char *const tables[] = {"%", "page_event"}; /* which version 4 gave up */
    int tried = 0, missed = 0;
    for (int i = 0; i < 2; i++) {
        snprintf(db_path, sizeof db_path, "%s/%d/sessions.db", scratch, i);
        make_base(logs[i]);
        mutate_tables(tables[i], &tried, &missed);
    }
    print_message("%d cells changed, %d missed\n", tried, missed);
    assert_true(tried > 500);
    assert_int_equal(missed, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_every_changed_cell_is_found),
    };
    int bad = cmocka_run_group_tests_name("history_evidence", tests, NULL, NULL);
    buf_free(&base);
    return bad;
}
