/* What the session log holds: no change goes unseen, SQL only reads, exports parse back, and
 * backup, check and prune do what they say. */
#include "tests/history_kit.h"

#include <jansson.h>
#include <sqlite3.h>
#include <sys/stat.h>

/* ---- the chain ---- */

/* One random change to one value of one row, as SQL. */
static char *random_change(struct hdb *d)
{
    static const struct {
        const char *table, *column, *key;
    } places[] = {
        {"turn", "text", "id"},
        {"turn", "tokens", "id"},
        {"turn", "seed", "id"},
        {"turn", "stop", "id"},
        {"turn", "n", "id"},
        {"turn", "sampling", "id"},
        {"turn", "n_accepted", "id"},
        {"turn", "sum", "id"},
        {"turn", "link", "id"},
        {"step", "tokens", "id"},
        {"step", "draws", "id"},
        {"step", "kind", "id"},
        {"step", "page_digest", "id"},
        {"step", "turn_id", "id"},
        {"step", "accepted", "id"},
        {"tree", "nodes", "step_id"},
        {"tree", "step_id", "step_id"},
        {"event", "text", "id"},
        {"event", "op", "id"},
        {"event", "sum", "id"},
        {"run", "config", "id"},
        {"model", "weights_sha", "id"},
        {"session", "created_ms", "rowid"},
        {"session", "chain", "rowid"},
        {"pages", "events", "step_id"},
        {"step", "facts", "id"},
        {"step", "margin", "id"},
        {"step", "forced", "id"},
        {"turn", "held", "id"},
        {"turn", "change", "id"},
        {"session", "number", "rowid"},
        {"token", "text", "id"},
        {"tokenizer", "texts", "id"},
        {"session", "links", "rowid"},
    };
    size_t i = roll(sizeof places / sizeof *places);
    char sql[400];
    snprintf(sql, sizeof sql, "SELECT %s AS k FROM %s WHERE %s NOT NULL ORDER BY random() LIMIT 1",
             places[i].key, places[i].table, places[i].column);
    long long row = sql_int(d, sql);
    const char *c = places[i].column;
    if (roll(8) == 0)
        return xasprintf("DELETE FROM %s WHERE %s = %lld", places[i].table, places[i].key, row);
    return xasprintf(
        "UPDATE %s SET %s = CASE typeof(%s) WHEN 'integer' THEN %s + 1000003"
        " WHEN 'real' THEN %s + 1"
        " WHEN 'blob' THEN CAST(%s || x'00' AS BLOB) ELSE '+' || %s END WHERE %s = %lld",
        places[i].table, c, c, c, c, c, c, places[i].key, row);
}

static int ignore_row(void *arg, int n, char **v, char **names)
{
    (void)arg, (void)n, (void)v, (void)names;
    return 0;
}

static void copy_file(const char *from, const char *to)
{
    struct buf b = {0};
    assert_true(buf_read_file(&b, from, 64 << 20, NULL));
    FILE *f = fopen(to, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(b.p, 1, b.n, f), b.n);
    fclose(f);
    buf_free(&b);
}

static void fill_and_close(int sessions)
{
    struct history *h = log_open(LOG_TREE);
    describe_texts(h);
    for (int i = 0; i < sessions; i++) {
        char id[SESSION_ID];
        session_new_id(id);
        write_session(h, id, 1 + (int)roll(4));
    }
    history_close(h);
}

static void test_every_change_by_sql_breaks_the_chain(void **state)
{
    (void)state;
    fill_and_close(4);
    char copy[160];
    snprintf(copy, sizeof copy, "%s/copy.db", scratch);
    for (int i = 0; i < 150; i++) {
        struct hdb *d = read_open();
        char *sql = random_change(d);
        hdb_close(d);
        copy_file(db_path, copy);
        sqlite3 *s;
        assert_int_equal(sqlite3_open(copy, &s), SQLITE_OK);
        int rc = sqlite3_exec(s, sql, ignore_row, NULL, NULL);
        int changed = sqlite3_changes(s);
        sqlite3_close(s);
        if (rc == SQLITE_OK) { /* else a constraint of the schema refused the change */
            assert_int_equal(changed, 1);
            int turns, bad = 0;
            struct err e;
            d = hdb_open(copy, &e);
            assert_non_null(d);
            if (hdb_verify(d, "", &turns, &bad, NULL, &e) && bad == 0)
                fail_msg("not found: %s", sql);
            hdb_close(d);
        }
        free(sql);
        unlink(copy);
    }
}

/* Everything a reader can see, in one string; false when it cannot be read. */
static bool content(const char *path, struct buf *out)
{
    static const char *const tables[] = {
        "SELECT id, parent, fork_turn, created_ms, number FROM session ORDER BY 1",
        "SELECT * FROM run ORDER BY 1",
        "SELECT * FROM build ORDER BY 1",
        "SELECT * FROM model ORDER BY 1",
        "SELECT * FROM turn ORDER BY 1",
        "SELECT * FROM turn_part ORDER BY 1, 2",
        "SELECT * FROM step ORDER BY 1",
        "SELECT * FROM tree ORDER BY 1",
        "SELECT * FROM pages ORDER BY 1",
        "SELECT * FROM tokenizer ORDER BY 1",
        "SELECT * FROM token ORDER BY 1, 2",
        "SELECT * FROM event ORDER BY 1"};
    sqlite3 *s;
    bool ok = sqlite3_open_v2(path, &s, SQLITE_OPEN_READONLY, NULL) == SQLITE_OK;
    for (size_t i = 0; ok && i < sizeof tables / sizeof *tables; i++) {
        sqlite3_stmt *st = NULL;
        int rc = sqlite3_prepare_v2(s, tables[i], -1, &st, NULL);
        while (rc == SQLITE_OK && (rc = sqlite3_step(st)) == SQLITE_ROW) {
            rc = SQLITE_OK;
            for (int c = 0; c < sqlite3_column_count(st); c++) {
                const void *p = sqlite3_column_blob(st, c);
                buf_printf(out, "%d:%d:", sqlite3_column_type(st, c), sqlite3_column_bytes(st, c));
                buf_add(out, p, (size_t)sqlite3_column_bytes(st, c));
            }
        }
        ok = rc == SQLITE_DONE;
        sqlite3_finalize(st);
    }
    sqlite3_close(s);
    return ok;
}

static void flip_bit(const char *path, uint64_t bit)
{
    FILE *f = fopen(path, "r+b");
    fseek(f, (long)(bit / 8), SEEK_SET);
    int c = fgetc(f);
    fseek(f, (long)(bit / 8), SEEK_SET);
    fputc(c ^ 1 << bit % 8, f);
    fclose(f);
}

static void test_every_flipped_bit_that_changes_content_is_found(void **state)
{
    (void)state;
    fill_and_close(3);
    char copy[160];
    snprintf(copy, sizeof copy, "%s/copy.db", scratch);
    struct stat st;
    assert_int_equal(stat(db_path, &st), 0);
    struct buf before = {0};
    assert_true(content(db_path, &before));
    int changed = 0;
    for (int i = 0; i < 300; i++) {
        copy_file(db_path, copy);
        uint64_t bit = roll((uint64_t)st.st_size * 8);
        flip_bit(copy, bit);
        struct buf after = {0};
        bool readable = content(copy, &after);
        if (readable && (after.n != before.n || memcmp(after.p, before.p, after.n) != 0)) {
            changed++;
            struct err e;
            struct buf report = {0};
            if (history_check(copy, &report, &e))
                fail_msg("bit %llu changes content and is not found", (unsigned long long)bit);
            buf_free(&report);
        }
        buf_free(&after);
        unlink(copy);
    }
    assert_true(changed > 20); /* else this test says nothing */
    buf_free(&before);
}

/* ---- SQL ---- */

static void test_sql_can_only_read(void **state)
{
    (void)state;
    fill_and_close(1);
    struct hdb *d = read_open();
    struct err e;
    static const char *const bad[] = {
        "DELETE FROM turn",
        "UPDATE turn SET text='x'",
        "INSERT INTO build VALUES(9,'','','')",
        "DROP TABLE turn",
        "CREATE TABLE t(x)",
        "CREATE TEMP TABLE t(x)",
        "ATTACH 'x.db' AS x",
        "ATTACH ':memory:' AS x",
        "DETACH main",
        "VACUUM",
        "VACUUM INTO '/tmp/aerie-stolen.db'",
        "PRAGMA journal_mode=DELETE",
        "PRAGMA user_version=9",
        "PRAGMA writable_schema=ON",
        "PRAGMA query_only=OFF",
        "PRAGMA wal_checkpoint",
        "PRAGMA integrity_check",
        "BEGIN",
        "COMMIT",
        "SAVEPOINT a",
        "REINDEX",
        "ANALYZE",
        "SELECT load_extension('x')",
        "SELECT 1; DELETE FROM turn",
        "SELECT 1; SELECT 2",
        "",
        "   ",
        "-- nothing",
        "SELEC 1",
        "SELECT * FROM nothere",
        "INSERT INTO turn_fts(turn_fts) VALUES('rebuild')",
        "SELECT fts5(1)",
        "WITH x AS (SELECT 1) DELETE FROM turn",
        "UPDATE sqlite_master SET sql='x'",
        "DELETE FROM sqlite_master",
        "SELECT zeroblob(100000000)",
        "SELECT tree_json(x'07')",
        "WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM r) SELECT max(i) FROM r",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct buf out = {0};
        if (hdb_sql(d, bad[i], false, 10, &out, &e))
            fail_msg("allowed: %s", bad[i]);
        assert_true(strlen(e.msg) > 0);
        buf_free(&out);
    }
    assert_int_not_equal(access("/tmp/aerie-stolen.db", F_OK), 0);
    static const char *const good[] = {"SELECT 1",
                                       "SELECT count(*) FROM turn;",
                                       "SELECT * FROM turn -- all",
                                       "WITH x AS (SELECT n FROM step) SELECT sum(n) FROM x",
                                       "PRAGMA table_info(turn)",
                                       "PRAGMA user_version",
                                       "SELECT name FROM pragma_table_list",
                                       "EXPLAIN SELECT 1",
                                       "SELECT ids(tokens) FROM turn",
                                       "SELECT count(*), min(q) FROM v_node",
                                       "SELECT rowid FROM turn_fts WHERE turn_fts MATCH 'page'",
                                       "VALUES(1),(2)",
                                       "SELECT json_extract('{\"a\":1}', '$.a')"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct buf out = {0};
        if (!hdb_sql(d, good[i], i % 2, 10, &out, &e))
            fail_msg("%s: %s", good[i], e.msg);
        buf_free(&out);
    }
    hdb_close(d);
}

static void test_sql_prints_a_table_or_json(void **state)
{
    (void)state;
    fill_and_close(1);
    struct hdb *d = read_open();
    struct err e;
    struct buf out = {0};
    assert_true(hdb_sql(d,
                        "SELECT 1 AS one, 'a' || char(10) || 'b' AS t, NULL AS z UNION ALL "
                        "SELECT 22, '\xE9\xB7\xB9', x'00ff'",
                        false, 10, &out, &e));
    assert_string_equal(out.p,
                        "one  t    z\n---  ---  -------\n  1  a b  -\n 22  \xE9\xB7\xB9   x'00ff'\n"
                        "(2 rows)\n");
    buf_clear(&out);
    assert_true(hdb_sql(d, "SELECT value AS v FROM json_each('[1,2,3]')", true, 2, &out, &e));
    assert_string_equal(out.p,
                        "{\"rows\":[\n{\"v\":1},\n{\"v\":2}\n],\"truncated\":true}\n");
    buf_clear(&out);
    /* the nodes of a tree are those of v_node */
    assert_true(hdb_sql(d, "SELECT (SELECT count(*) || ' ' || sum(json_extract(value, '$.token')) || ' ' "
                           "|| sum(json_extract(value, '$.depth')) FROM tree, json_each(tree_json(nodes))) = "
                           "(SELECT count(*) || ' ' || sum(token) || ' ' || sum(depth) FROM v_node) AS same,"
                           " (SELECT count(*) > 5 FROM v_node) AS some, tree_json(NULL) AS none",
                        true, 1, &out, &e));
    assert_string_equal(out.p, "{\"rows\":[\n{\"same\":1,\"some\":1,\"none\":null}\n],\"truncated\":false}\n");
    buf_clear(&out);
    assert_true(
        hdb_sql(d, "SELECT char(27, 0x202e, 0x1f985) AS v, 9007199254740993 AS big, 1e999 AS f",
                true, 2, &out, &e));
    assert_non_null(strstr(out.p, "\"\\u001b\\u202e\\ud83e\\udd85\""));
    assert_non_null(strstr(out.p, "\"9007199254740993\""));
    assert_non_null(strstr(out.p, "\"f\":null"));
    buf_clear(&out);
    assert_true(hdb_sql(d, "SELECT 1 WHERE 0", true, 2, &out, &e));
    assert_string_equal(out.p, "{\"rows\":[],\"truncated\":false}\n");
    buf_free(&out);
    hdb_close(d);
}

/* ---- export ---- */

/* The text of a record as it was stored: from the exact bytes where it was no UTF-8. */
static void exported_text(json_t *record, struct buf *out)
{
    json_t *hex = json_object_get(record, "text_hex");
    if (!hex) {
        json_t *t = json_object_get(record, "text");
        buf_add(out, json_string_value(t), json_string_length(t));
        return;
    }
    const char *p = json_string_value(hex);
    for (size_t i = 0; i < json_string_length(hex); i += 2) {
        unsigned v;
        sscanf(p + i, "%2x", &v);
        buf_char(out, (char)v);
    }
}

static bool same_as_record(const struct turn_row *r, void *arg)
{
    json_t *record = NULL, *t;
    size_t i;
    json_array_foreach(arg, i, t) if (json_object_get(t, "role") && json_object_get(t, "stop") &&
                                      json_integer_value(json_object_get(t, "id")) == r->rowid)
        record = t;
    assert_non_null(record);
    struct buf text = {0};
    exported_text(record, &text);
    assert_int_equal(text.n, r->text_n);
    assert_memory_equal(text.p, r->text, r->text_n);
    json_t *ids = json_object_get(record, "tokens");
    int shared = (int)json_integer_value(json_object_get(record, "shared"));
    assert_int_equal((int)json_array_size(ids) + shared, r->tokens.n);
    for (int k = shared; k < r->tokens.n; k++)
        assert_int_equal(json_integer_value(json_array_get(ids, (size_t)(k - shared))),
                         r->tokens.v[k]);
    buf_free(&text);
    return true;
}

static bool same_tree_as_record(const struct step_row *r, void *arg)
{
    json_t *t;
    size_t i;
    int *seen = ((void **)arg)[1];
    json_array_foreach(((void **)arg)[0], i, t)
    {
        json_t *nodes = json_object_get(t, "nodes");
        if (!r->tree || !nodes || (int)json_array_size(nodes) != r->tree->n)
            continue;
        bool same = true;
        for (int k = 0; same && k < r->tree->n; k++) {
            json_t *node = json_array_get(nodes, (size_t)k);
            same = json_integer_value(json_object_get(node, "token")) == r->tree->token[k] &&
                   json_integer_value(json_object_get(node, "parent")) == r->tree->parent[k] &&
                   (float)json_number_value(json_object_get(node, "q")) == r->tree->q[k];
        }
        if (same) {
            ++*seen;
            return true;
        }
    }
    assert_null(r->tree);
    return true;
}

static void test_an_export_parses_back_to_what_was_stored(void **state)
{
    (void)state;
    fill_and_close(2);
    struct hdb *d = read_open();
    struct err e;
    char path[160];
    snprintf(path, sizeof path, "%s/out.jsonl", scratch);
    if (!hdb_export(d, "last", path, &e))
        fail_msg("%s", e.msg);
    struct buf b = {0};
    assert_true(buf_read_file(&b, path, 64 << 20, &e));
    assert_true(b.n > 0);
    for (size_t i = 0; i < b.n; i++)
        assert_true(b.p[i] == '\n' || (b.p[i] >= 0x20 && b.p[i] < 0x7F));
    json_t *all = json_array();
    for (char *line = strtok(b.p, "\n"); line; line = strtok(NULL, "\n")) {
        json_error_t je;
        json_t *v = json_loads(line, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &je);
        if (!v)
            fail_msg("%s: %s", je.text, line);
        json_array_append_new(all, v);
    }
    json_t *head = json_array_get(all, 0);
    assert_int_equal(json_integer_value(json_object_get(head, "aerie_export")), 1);
    assert_int_equal(json_integer_value(json_object_get(head, "schema")), 9);
    const char *id = json_string_value(json_object_get(head, "session"));
    assert_true(hdb_turns(d, id, 0, same_as_record, all, &e) >= 2);
    int trees = 0;
    void *arg[] = {all, &trees};
    assert_true(hdb_steps(d, id, 0, same_tree_as_record, arg, &e) > 0);
    char sql[200];
    snprintf(sql, sizeof sql,
             "SELECT count(DISTINCT step_id) AS n FROM tree JOIN step ON step.id=step_id"
             " JOIN turn ON turn.id=turn_id WHERE session_id='%s'",
             id);
    assert_int_equal(trees, sql_int(d, sql));
    json_decref(all);
    buf_clear(&b);

    assert_false(hdb_export(d, "last", path, &e)); /* never over a file that exists */
    buf_free(&b);
    hdb_close(d);
}

/* ---- care ---- */

static void test_backup_check_titles_and_prune(void **state)
{
    (void)state;
    fill_and_close(3);
    struct err e = {0};
    struct buf report = {0};
    char to[160];
    snprintf(to, sizeof to, "%s/backup.db", scratch);
    assert_true(history_backup(db_path, to, &e));
    assert_false(history_backup(db_path, to, &e)); /* never over a file that exists */
    struct buf a = {0}, b = {0};
    assert_true(content(db_path, &a) && content(to, &b));
    assert_true(a.n == b.n && memcmp(a.p, b.p, a.n) == 0);
    buf_free(&a);
    buf_free(&b);
    if (!history_check(to, &report, &e))
        fail_msg("%s\n%s", e.msg, report.p);
    assert_non_null(strstr(report.p, "0 records are not what was written"));
    buf_clear(&report);

    struct hdb *d = read_open();
    struct session_row r;
    assert_true(hdb_find(d, "last", &r, &e));
    assert_true(history_set_title(db_path, r.id, "my title", &e));
    assert_false(history_set_title(db_path, "01H", "x", &e));
    session_row_free(&r);
    assert_true(hdb_find(d, "last", &r, &e));
    assert_string_equal(r.title, "my title");
    int turns;
    assert_int_equal(verify_bad(d, &turns), 0);

    /* a parent stays while a child is kept, and a session that is being written stays */
    struct history *h = log_open(LOG_STEPS);
    char child[SESSION_ID];
    session_new_id(child);
    post_session(h, child, r.id, 1);
    one_turn(h, child, 2, false);
    assert_true(history_flush(h, 60000));
    assert_int_equal(prune_older(db_path, 1, &e), 0);
    assert_int_equal(prune_older(db_path, -1, &e), 2); /* "older" than tomorrow */
    assert_int_equal(sql_int(d, "SELECT count(*) AS n FROM session"), 2);
    history_close(h);
    assert_int_equal(prune_older(db_path, -1, &e), 2);
    static const char *const tables[] = {"session", "run",        "turn",  "turn_part", "step",
                                         "tree",    "pages",      "event", "turn_fts"};
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        char sql[80];
        snprintf(sql, sizeof sql, "SELECT count(*) AS n FROM %s", tables[i]);
        assert_int_equal(sql_int(d, sql), 0);
    }
    hdb_close(d);
    /* nothing of what was said is left in the file */
    struct buf bytes = {0};
    assert_true(buf_read_file(&bytes, db_path, 64 << 20, &e));
    assert_null(memmem(bytes.p, bytes.n, "Falke", 5));
    assert_null(memmem(bytes.p, bytes.n, "falke", 5));
    buf_free(&bytes);
    assert_true(history_check(db_path, &report, &e));
    buf_free(&report);
    session_row_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_every_change_by_sql_breaks_the_chain),
        TEST(test_every_flipped_bit_that_changes_content_is_found),
        TEST(test_sql_can_only_read),
        TEST(test_sql_prints_a_table_or_json),
        TEST(test_an_export_parses_back_to_what_was_stored),
        TEST(test_backup_check_titles_and_prune),
    };
    return cmocka_run_group_tests_name("history_content", tests, NULL, NULL);
}
