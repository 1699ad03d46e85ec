/* The session log as evidence: whatever another program changes in a log, `db check` finds it, or
 * the change is one of those that only a key or a noted head finds. */
#include "history/internal.h"
#include "tests/few.h"
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

/* Posts n turns of a session with every kind of row, as of a server if `served`. */
static void post_session_of_all(struct history *h, const char *id, int first, int n, bool served)
{
    struct ids context = {0};
    post_op(h, id, OP_OPEN, 0, "temperature=0\nseed=1\n");
    for (int i = first; i < first + n; i++) {
        struct made_turn t;
        make_turn(&t, id, i, &context);
        if (served)
            make_served(&t);
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
}

/* Leaves a session lock and a note about a side file in the log. */
static void leave_notes(const char *id)
{
    struct err e = {0};
    struct db d;
    struct live l;
    int64_t writer = 7;
    assert_true(open_existing(&d, db_path, SQLITE_OPEN_READWRITE, &e) &&
                live_open(&l, db_path, &e));
    assert_true(session_lock(&d, &l, id, &(bool){false}, &e));
    assert_true(db_exec(&d, "BEGIN IMMEDIATE", &e));
    assert_int_equal(side_file_note_stored(&d, writer), SQLITE_OK);
    assert_true(db_exec(&d, "COMMIT", &e));
    live_close(&l);
    db_close(&d);
}

/* A log with rows in every table: 1 is a session, 2 its fork, 3 one of a server, 4 one like 1. */
static void make_base(void)
{
    struct err e = {0};
    struct buf report = {0};
    struct history_about of_server = about;
    char id[4][SESSION_ID];
    of_server.server = "vllm", of_server.server_version = "1";
    of_server.server_url = "http://host:1", of_server.server_facts = "{\"a\":1}";
    dice = 1;
    for (int i = 0; i < 4; i++) {
        session_new_id(id[i]);
        struct history *h = i == 2 ? history_open(db_path, LOG_TREE, &of_server, &e)
                                   : log_open(LOG_TREE);
        assert_non_null(h);
        describe_texts(h);
        post_session(h, id[i], i == 1 ? id[0] : "", i == 1);
        if (i == 1)
            post_op(h, id[i], OP_FORK, 1, "1");
        post_session_of_all(h, id[i], 1 + (i == 1), 2, i == 2);
        assert_true(history_flush(h, 60000));
        history_close(h);
        sleep_ms(2); /* sessions of one millisecond have no order */
    }
    leave_notes(id[3]);
    raw("PRAGMA journal_mode=DELETE");
    buf_free(&base);
    assert_true(buf_read_file(&base, db_path, 64 << 20, &e));
    if (!is_sound(&report))
        fail_msg("%s", report.p);
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

/* Changes a row, so that it stays one that the schema allows. False: the change is no change, or
 * the schema forbids it. */
static bool changes(const char *sql)
{
    sqlite3 *s = raw_open();
    sqlite3_exec(s, "PRAGMA foreign_keys=OFF", NULL, NULL, NULL);
    bool ok = sqlite3_exec(s, sql, NULL, NULL, NULL) == SQLITE_OK && sqlite3_changes(s) > 0;
    sqlite3_close(s);
    return ok;
}

/* Counts a change that was made, and tells one that `db check` does not find. */
static bool is_missed(const char *sql, int *tried, struct buf *report)
{
    ++*tried;
    if (!is_sound(report))
        return false;
    print_error("missed: %s\n", sql);
    return true;
}

/* Tables of which a changed cell may change nothing: turn_fts is a view of the tables turn_fts_...,
 * the others hold bytes that no search reads (test_a_changed_search_index_is_found). */
static bool may_mean_nothing(const char *table)
{
    return strcmp(table, "turn_fts") == 0 || strcmp(table, "turn_fts_idx") == 0 ||
           strcmp(table, "turn_fts_data") == 0;
}

static int mutate_column(const char *table, const char *column, int *tried)
{
    static const char *const to[] = {
        "CASE typeof(\"%1$s\") WHEN 'integer' THEN \"%1$s\"+1 WHEN 'real' THEN \"%1$s\"*2+1 WHEN "
        "'text' THEN \"%1$s\"||'x' WHEN 'blob' THEN CAST(iif(substr(\"%1$s\",1,1)=x'41',x'42',"
        "x'41')||substr(\"%1$s\",2) AS BLOB) ELSE 7 END", /* a blob keeps its length */
        "CASE typeof(\"%1$s\") WHEN 'integer' THEN \"%1$s\"-1 WHEN 'real' THEN -\"%1$s\"-1 WHEN "
        "'text' THEN CAST(\"%1$s\" AS BLOB) WHEN 'blob' THEN x'' ELSE '' END",
        "CASE typeof(\"%1$s\") WHEN 'null' THEN x'00' WHEN 'text' THEN '' WHEN 'blob' THEN"
        " CAST(substr(hex(\"%1$s\"),2)||'0' AS BLOB) ELSE NULL END",
    };
    static const char *const which[] = {"min", "max"};
    struct buf report = {0};
    int missed = 0;
    for (int k = 0; k < 3; k++)
        for (int w = rounds(k != 1, 0); w < rounds(k == 1 ? 1 : 2, 2); w++) {
            char value[600], sql[2000];
            snprintf(value, sizeof value, to[k], column);
            /* tables without rowid have no column of that name */
            snprintf(sql, sizeof sql, "UPDATE \"%s\" SET \"%s\"=%s WHERE rowid=(SELECT %s(rowid) "
                                      "FROM \"%s\") AND"
                     " %s IS NOT \"%s\"", table, column, value, which[w], table, value, column);
            put_base();
            if (!changes(sql)) {
                snprintf(sql, sizeof sql, "UPDATE \"%s\" SET \"%s\"=%s WHERE \"%s\"=(SELECT "
                                          "%s(\"%s\") FROM"
                         " \"%s\") AND %s IS NOT \"%s\"", table, column, value, column, which[w],
                         column, table, value, column);
                put_base();
                if (!changes(sql))
                    continue;
            }
            missed += is_missed(sql, tried, &report);
        }
    buf_free(&report);
    return missed;
}

static void mutate_tables(int *tried, int *missed)
{
    struct names tables = names_of("SELECT name FROM sqlite_schema WHERE type='table'");
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
    int tried = 0, missed = 0;
    make_base();
    mutate_tables(&tried, &missed);
    print_message("%d cells changed, %d missed\n", tried, missed);
    assert_true(tried > rounds(240, 500));
    assert_int_equal(missed, 0);
}

/* ---- rows ---- */

/* Deletes, repeats or swaps rows of a table. How many of them were missed. */
static int mutate_rows(const char *table, int *tried)
{
    static const char *const how[] = {
        "DELETE FROM \"%1$s\" WHERE rowid=(SELECT min(rowid) FROM \"%1$s\")",
        "DELETE FROM \"%1$s\" WHERE rowid=(SELECT max(rowid) FROM \"%1$s\")",
        ("DELETE FROM \"%1$s\" WHERE rowid=(SELECT rowid FROM \"%1$s\" ORDER BY rowid LIMIT 1 "
         "OFFSET (SELECT count(*)/2 FROM \"%1$s\"))"),
        "DELETE FROM \"%1$s\"",
        /* of a table without rowid */
        "DELETE FROM \"%1$s\" WHERE %2$s=(SELECT min(%2$s) FROM \"%1$s\")",
    };
    struct buf report = {0};
    char sql[600];
    int missed = 0;
    snprintf(sql, sizeof sql, "SELECT name FROM pragma_table_info('%s')", table);
    put_base();
    struct names columns = names_of(sql);
    for (size_t i = 0; i < sizeof how / sizeof *how; i++) {
        snprintf(sql, sizeof sql, how[i], table, columns.name[0]);
        put_base();
        if (!changes(sql))
            continue;
        missed += is_missed(sql, tried, &report);
    }
    buf_free(&report);
    return missed;
}

static void test_every_deleted_row_is_found(void **state)
{
    (void)state;
    int tried = 0, missed = 0;
    make_base();
    struct names tables = names_of("SELECT name FROM sqlite_schema WHERE type='table' AND name NOT "
                                   "LIKE 'turn_fts%'");
    for (int i = 0; i < tables.n; i++)
        missed += mutate_rows(tables.name[i], &tried);
    print_message("%d deletions, %d missed\n", tried, missed);
    assert_true(tried > 80);
    assert_int_equal(missed, 0);
}

/* What another program may do at once, and a line of the report about it. */
static void test_deleted_added_and_swapped_rows_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *sql, *line;
    } change[] = {
        /* a whole session, with its count: the tail of the log, its middle, a fork */
        {"PRAGMA foreign_keys=ON; DELETE FROM session WHERE number=4; "
         "INSERT INTO turn_fts(turn_fts) VALUES('rebuild')",
         "is missing: another program deleted it after head"},
        {"PRAGMA foreign_keys=ON; DELETE FROM session WHERE number=2; "
         "INSERT INTO turn_fts(turn_fts) VALUES('rebuild')",
         "is missing: another program deleted it after head"},
        {"PRAGMA foreign_keys=ON; DELETE FROM session; DELETE FROM run; DELETE FROM roll; "
         "DELETE FROM head;INSERT INTO turn_fts(turn_fts) VALUES('rebuild')", "and aerie wrote -1"},
        /* the last turn, with the session's end set back to before it */
        {"PRAGMA foreign_keys=ON; DELETE FROM turn WHERE session_id=(SELECT id FROM session WHERE "
         "number=4) AND n=2;"
         "UPDATE session SET links=(SELECT max(l) FROM (SELECT link AS l FROM turn WHERE "
         "session_id=session.id UNION ALL"
         " SELECT link FROM event WHERE session_id=session.id UNION ALL SELECT link FROM run WHERE "
         "session_id=session.id)),"
         " chain=(SELECT sum FROM turn WHERE session_id=session.id ORDER BY link DESC LIMIT 1) "
         "WHERE number=4;INSERT INTO turn_fts(turn_fts) VALUES('rebuild')",
         "its title, number, pin, times"},
        {"UPDATE turn SET text=(SELECT text FROM turn o WHERE o.id<>turn.id AND o.role=turn.role "
         "AND"
         " o.session_id=turn.session_id LIMIT 1) WHERE session_id=(SELECT id FROM session WHERE "
         "number=1);INSERT INTO turn_fts(turn_fts) VALUES('rebuild')",
         "does not match what was written"},
        {"UPDATE step SET n=1000-n", "does not match what was written"},
        {"INSERT INTO model(role, dir, weights_sha, tokenizer_sha) VALUES('target','x','y','z')",
         "has no head: aerie did not write it"},
        {"INSERT INTO tokenizer(sha) VALUES('x')", "has no head: aerie did not write it"},
        {"INSERT INTO head(n, what, name, sum, made_ms, chain) SELECT max(n)+1, 'session', 'X', "
         "x'', 0, chain FROM head", "does not match what was written"},
        {"DELETE FROM head WHERE n=(SELECT max(n) FROM head)", "is the last, and aerie wrote"},
        {"DELETE FROM head WHERE n=3", "heads 3 to 3 are missing"},
        {"UPDATE head SET n=-n WHERE n IN (4,5); UPDATE head SET n=9+n WHERE n<0",
         "does not match what was written"},
        {"UPDATE roll SET heads=heads-1, head=(SELECT chain FROM head ORDER BY n DESC LIMIT 1 "
         "OFFSET 1);"
         "DELETE FROM head WHERE n=(SELECT max(n) FROM head)", "is not as of its newest head"},
        {"CREATE TRIGGER t AFTER INSERT ON turn BEGIN DELETE FROM head; END",
         "schema: trigger \"t\" was added"},
        {"CREATE VIRTUAL TABLE extra USING fts5(x)", "schema: table \"extra\" was added"},
        {"ANALYZE", "schema: table \"sqlite_stat1\" was added"},
        {"DROP VIEW v_turn", "schema: view \"v_turn\" is missing"},
        {"DROP INDEX head_of", "schema: index \"head_of\" is missing"},
    };
    struct buf report = {0};
    make_base();
    for (size_t i = 0; i < sizeof change / sizeof *change; i++) {
        put_base();
        raw(change[i].sql);
        if (is_sound(&report) || !strstr(report.p, change[i].line))
            fail_msg("%s: expected \"%s\" in: %s", change[i].sql, change[i].line, report.p);
    }
    buf_free(&report);
}

/* A search that finds too little is found, wherever in the index the fault is. */
static void test_a_changed_search_index_is_found(void **state)
{
    (void)state;
    static const char *const change[] = {
        "DELETE FROM turn_fts_idx WHERE term=(SELECT max(term) FROM turn_fts_idx)",
        "UPDATE turn_fts_idx SET pgno=pgno+2 WHERE length(term)>0",
        "UPDATE turn_fts_idx SET term=x'30' || term",
        "UPDATE turn_fts_config SET v=3", "UPDATE turn_fts_config SET v=5",
        "INSERT INTO turn_fts_config VALUES('rank', 'bm25(0)')",
        "UPDATE turn_fts_docsize SET sz=x'00' WHERE id=1", "DELETE FROM turn_fts_data WHERE id>10",
        ("UPDATE turn_fts_data SET block=zeroblob(length(block)) WHERE id=(SELECT max(id) FROM "
         "turn_fts_data)"),
    };
    struct buf report = {0}, words = {0};
    struct history *h = log_open(LOG_TEXT);
    char id[SESSION_ID];
    struct ids context = {0};
    struct made_turn t;
    session_new_id(id);
    post_session(h, id, "", 0);
    make_turn(&t, id, 1, &context);
    for (int i = 0; i < 4000; i++) /* an index of several pages */
        buf_printf(&words, "w%llx ", (unsigned long long)mix64((uint64_t)i));
    buf_free(&t.end.text);
    t.end.text = words;
    post_turn(h, &t, 0, true);
    free_turn(&t);
    ids_free(&context);
    history_close(h);
    raw("INSERT INTO turn_fts(turn_fts) VALUES('optimize'); PRAGMA journal_mode=DELETE");
    buf_free(&base);
    assert_true(buf_read_file(&base, db_path, 64 << 20, NULL));
    assert_true(is_sound(&report));
    for (size_t i = 0; i < sizeof change / sizeof *change; i++) {
        put_base();
        assert_true(changes(change[i]));
        if (is_sound(&report))
            fail_msg("missed: %s", change[i]);
    }
    buf_free(&report);
}

/* ---- what aerie must not cover up ---- */

/* A change between two visits of aerie is still there to be found when aerie has written again. */
static void test_writing_on_covers_no_change(void **state)
{
    (void)state;
    static const char *const change[] = {
        "UPDATE session SET title='another' WHERE number=4",
        "UPDATE session SET updated_ms=updated_ms-9 WHERE number=4",
        "UPDATE run SET ended=2 WHERE session_id=(SELECT id FROM session WHERE number=4)",
        "UPDATE token SET text='forged' WHERE id=(SELECT min(id) FROM token)",
        "UPDATE tokenizer SET texts=texts+1", "DELETE FROM head WHERE what='session'",
    };
    struct buf report = {0};
    struct err e = {0};
    make_base();
    for (size_t i = 0; i < sizeof change / sizeof *change; i++) {
        put_base();
        raw(change[i]);
        struct hdb *d = read_open();
        struct session_row r;
        assert_true(hdb_find(d, "4", &r, &e));
        hdb_close(d);
        struct history *h = log_open(LOG_TREE);
        describe_texts(h);
        assert_true(history_lock_session(h, r.id, &(bool){false}, &e));
        post_session(h, r.id, "", 0);
        one_turn(h, r.id, 3, false);
        assert_true(history_flush(h, 60000));
        history_close(h);
        assert_true(history_set_title(db_path, r.id, "mine", &e));
        if (is_sound(&report))
            fail_msg("covered up: %s", change[i]);
        session_row_free(&r);
    }
    buf_free(&report);
}

/* ---- keys ---- */

static void write_key(const char *name, const char *bytes, mode_t mode, char path[200])
{
    snprintf(path, 200, "%s/%s", scratch, name);
    FILE *f = fopen(path, "wb");
    fputs(bytes, f);
    fclose(f);
    assert_int_equal(chmod(path, mode), 0);
}

static void test_hmac_is_that_of_rfc_4231(void **state)
{
    (void)state;
    char key[131], hex[65];
    uint8_t out[32];
    static const struct {
        int n_key, fill;
        const char *key, *data, *mac;
    } known[] = {
        {20, 0x0b, NULL, "Hi There",
         "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"},
        {4, 0, "Jefe", "what do ya want for nothing?",
         "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"},
        {131, 0xaa, NULL, "Test Using Larger Than Block-Size Key - Hash Key First",
         "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        memset(key, known[i].fill, sizeof key);
        if (known[i].key)
            memcpy(key, known[i].key, (size_t)known[i].n_key);
        hmac_sha256(key, (size_t)known[i].n_key, known[i].data, strlen(known[i].data), out);
        for (int k = 0; k < 32; k++)
            snprintf(hex + 2 * k, 3, "%02x", out[k]);
        assert_string_equal(hex, known[i].mac);
    }
}

static void test_a_key_that_others_can_read_is_refused(void **state)
{
    (void)state;
    char path[200];
    struct err e = {0};
    static const char good[] = "0123456789abcdef0123456789abcdef";
    write_key("open", good, 0640, path);
    assert_false(history_seal_with(path, &e));
    assert_non_null(strstr(e.msg, "can be read by others (mode 640)"));
    write_key("short", "secret", 0600, path);
    assert_false(history_seal_with(path, &e));
    assert_non_null(strstr(e.msg, "too few bytes"));
    assert_false(history_seal_with(scratch, &e));
    assert_false(history_seal_with("/dev/zero", &e));
    assert_false(seal_has_key());
    write_key("good", good, 0600, path);
    assert_true(history_seal_with(path, &e));
    assert_true(history_seal_with(NULL, &e));
}

/* An attack without the key: changes a title and computes all checksums again with aerie's own
 * functions. */
static void forge(void)
{
    struct db d;
    struct err e = {0};
    char id[SESSION_ID];
    assert_true(history_seal_with(NULL, &e));
    assert_true(db_open(&d, db_path, SQLITE_OPEN_READWRITE, &e));
    sqlite3_stmt *st = db_prepare(&d, &e, "SELECT id FROM session ORDER BY number DESC LIMIT 1",
                                  "");
    assert_int_equal(sqlite3_step(st), SQLITE_ROW);
    col_id(st, 0, id);
    sqlite3_finalize(st);
    assert_true(db_exec(&d, "BEGIN IMMEDIATE", &e));
    assert_int_equal(db_do(&d, "UPDATE session SET title='forged' WHERE id=?", "s", id), SQLITE_OK);
    assert_int_equal(chain_seal(&d, id), SQLITE_OK);
    /* as if the head had always been so: at the place of the last, which was the session's */
    assert_true(db_exec(&d, "COMMIT", &e));
    db_close(&d);
}

static void test_a_forgery_needs_the_key(void **state)
{
    (void)state;
    char key[200], other[200], id[SESSION_ID];
    struct err e = {0};
    struct buf report = {0};
    write_key("key", "0123456789abcdef0123456789abcdef", 0600, key);
    write_key("other", "another key, that is long enough", 0600, other);
    for (int sealed = 0; sealed < 2; sealed++) {
        snprintf(db_path, sizeof db_path, "%s/%d/sessions.db", scratch, sealed);
        assert_true(history_seal_with(sealed ? key : NULL, &e));
        struct history *h = log_open(LOG_STEPS);
        session_new_id(id);
        write_session(h, id, 2);
        history_close(h);
        if (!is_sound(&report) || (sealed && !strstr(report.p, "heads are sealed\n")))
            fail_msg("%s", report.p);
        forge();
        assert_true(is_sound(&report)); /* without the key nobody can tell */
        assert_true(history_seal_with(key, &e));
        /* a log without seals has nothing to compare */
        assert_int_equal(is_sound(&report), !sealed);
        if (sealed) {
            assert_non_null(strstr(report.p, "were written without the key"));
            assert_true(history_seal_with(other, &e));
            assert_false(is_sound(&report));
            assert_non_null(strstr(report.p, "is not of this key"));
            assert_null(history_open(db_path, LOG_STEPS, &about, &e));
            assert_non_null(strstr(e.msg, "sealed with another key"));
            assert_true(history_seal_with(NULL, &e));
            struct history_status s;
            h = log_open(LOG_STEPS);
            history_status(h, &s);
            history_close(h);
        }
    }
    buf_free(&report);
    assert_true(history_seal_with(NULL, &e));
}

/* Changes of every head's seal are found with the key; the rest of the head without. */
static void test_every_changed_seal_is_found_with_the_key(void **state)
{
    (void)state;
    char key[200], id[SESSION_ID], sql[200];
    struct err e = {0};
    struct buf report = {0};
    write_key("key", "0123456789abcdef0123456789abcdef", 0600, key);
    assert_true(history_seal_with(key, &e));
    struct history *h = log_open(LOG_STEPS);
    session_new_id(id);
    write_session(h, id, 2);
    session_new_id(id);
    write_session(h, id, 2);
    history_close(h);
    raw("PRAGMA journal_mode=DELETE");
    buf_free(&base);
    assert_true(buf_read_file(&base, db_path, 64 << 20, NULL));
    assert_true(is_sound(&report));
    struct hdb *d = read_open();
    int heads = (int)sql_int(d, "SELECT count(*) AS n FROM head");
    hdb_close(d);
    assert_true(heads > 4);
    for (int n = 1; n <= heads; n++)
        for (int how = 0; how < 2; how++) {
            snprintf(sql, sizeof sql, how ? "UPDATE head SET seal=NULL WHERE n=%d"
                                          : "UPDATE head SET seal=(SELECT seal FROM head o WHERE "
                                          "o.n<>head.n) WHERE n=%d", n);
            put_base();
            raw(sql);
            assert_false(is_sound(&report));
        }
    put_base();
    assert_true(history_seal_with(NULL, &e));
    assert_true(is_sound(&report));
    assert_non_null(strstr(report.p, "the seals were not checked"));
    buf_free(&report);
}

/* An older copy in the log's place is intact; only a head that was noted tells. */
static void test_a_noted_head_finds_an_older_copy(void **state)
{
    (void)state;
    struct err e = {0};
    struct buf report = {0};
    char id[SESSION_ID], noted[100];
    make_base(); /* the older copy */
    struct history *h = log_open(LOG_STEPS);
    session_new_id(id);
    write_session(h, id, 1);
    history_close(h);
    assert_true(is_sound(&report));
    const char *at = strstr(report.p, "\nhead ");
    assert_non_null(at);
    snprintf(noted, sizeof noted, "%.*s", (int)strcspn(at + 6, "\n"), at + 6);
    h = log_open(LOG_STEPS);
    one_turn(h, id, 2, false);
    history_close(h);
    assert_true(history_check_head(db_path, noted, &report, &e)); /* the log went on from it */
    assert_non_null(strstr(report.p, "the log's past is still the one of head"));
    put_base();
    assert_true(is_sound(&report));
    assert_false(history_check_head(db_path, noted, &report, &e));
    assert_non_null(strstr(report.p, "the log's past is not the one of head"));
    assert_false(history_check_head(db_path, "12", &report, &e));
    assert_int_equal(e.kind, ERR_USAGE);
    buf_free(&report);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_every_changed_cell_is_found),
        TEST(test_every_deleted_row_is_found),
        TEST(test_deleted_added_and_swapped_rows_are_named),
        TEST(test_a_changed_search_index_is_found),
        TEST(test_writing_on_covers_no_change),
        TEST(test_hmac_is_that_of_rfc_4231),
        TEST(test_a_key_that_others_can_read_is_refused),
        TEST(test_a_forgery_needs_the_key),
        TEST(test_every_changed_seal_is_found_with_the_key),
        TEST(test_a_noted_head_finds_an_older_copy),
    };
    int bad = cmocka_run_group_tests_name("history_evidence", tests, NULL, NULL);
    buf_free(&base);
    return bad;
}
