/* Packs: which columns they keep, that a pack without text contains none, that any change of its
 * bytes is detected, and that opening a pack creates and changes no file. */
#include "history/internal.h"
#include "tests/history_kit.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#define ID "01PACK0000000000000000000A"
#define CHILD "01PACK0000000000000000000B"

static char pack_path[160];

/* A session of n turns whose texts are words that nothing else in a database has, ids from
 * 70,000 on. */
static void write_worded(struct history *h, const char *id, int n)
{
    post_session(h, id, "", 0);
    post_op(h, id, OP_OPEN, 0, "temperature=0\nseed=1\n");
    post_op(h, id, OP_SYSTEM, 0, "xylophone system");
    struct event notice = event_of(EV_NOTICE, id, 0, "quagmire notice");
    post(h, &notice);
    struct event fault = event_of(EV_FAULT, id, 0, "I4 verify swa table row 0");
    post(h, &fault);
    struct ids context = {0};
    for (int i = 1; i <= n; i++) {
        struct made_turn t;
        make_turn(&t, id, i, &context);
        buf_clear(&t.begin.text);
        buf_printf(&t.begin.text, "marmalade question %d", i);
        buf_clear(&t.end.text);
        buf_printf(&t.end.text, "kaleidoscope answer %d", i);
        post_turn(h, &t, t.n_steps, true);
        free_turn(&t);
    }
    ids_free(&context);
}

static void make_log(int turns)
{
    struct history *h = log_open(LOG_TREE);
    write_worded(h, ID, turns);
    assert_true(history_flush(h, 60000));
    history_close(h);
    snprintf(pack_path, sizeof pack_path, "%s/some pack.aerie", scratch);
}

static void make_pack(enum pack_level level, const char *id, struct pack_about *a)
{
    struct err e = {0};
    struct hdb *d = read_open();
    struct pack_opts o = {.level = level, .made_by = "the test"};
    unlink(pack_path);
    if (!hdb_pack(d, id, &o, pack_path, a, &e))
        fail_msg("%s", e.msg);
    hdb_close(d);
}

static struct hdb *open_pack(void)
{
    struct err e = {0};
    struct hdb *d = hdb_open(pack_path, &e);
    if (!d)
        fail_msg("%s", e.msg);
    return d;
}

/* ---- columns ---- */

static int times_named(const struct pack_rule *r, const char *column)
{
    return pack_names(r->facts, column) + pack_names(r->paths, column) +
           pack_names(r->ids, column) + pack_names(r->text, column) + pack_names(r->never, column);
}

static const struct pack_rule *rule_of(const char *table)
{
    for (int i = 0; pack_rule(i); i++)
        if (!strcmp(pack_rule(i)->table, table))
            return pack_rule(i);
    return NULL;
}

/* Tables of which a pack keeps no row: checksums over all sessions, and state of writers. */
static bool is_left_out(const char *table)
{
    static const char *const name[] = {"roll", "head", "held", "taken"};
    for (size_t i = 0; i < sizeof name / sizeof *name; i++)
        if (!strcmp(name[i], table))
            return true;
    return false;
}

/* A column that is added to the schema fails here until it is sorted. */
static void test_every_column_of_the_schema_has_one_rule(void **state)
{
    (void)state;
    int columns = 0;
    struct history *h = log_open(LOG_TREE);
    history_close(h);
    sqlite3 *s;
    sqlite3_stmt *st;
    assert_int_equal(sqlite3_open(db_path, &s), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(s, "SELECT t.name, c.name FROM sqlite_schema t JOIN"
        " pragma_table_info(t.name) c WHERE t.type='table' AND t.name NOT LIKE 'turn_fts%'"
        " AND t.name NOT LIKE 'sqlite_%'", -1, &st, NULL), SQLITE_OK);
    for (; sqlite3_step(st) == SQLITE_ROW; columns++) {
        const char *table = (const char *)sqlite3_column_text(st, 0);
        const char *column = (const char *)sqlite3_column_text(st, 1);
        const struct pack_rule *r = rule_of(table);
        if (!r && !is_left_out(table))
            fail_msg("history/pack/pack.c has no rule for the table %s", table);
        if (r && times_named(r, column) != 1)
            fail_msg("history/pack/pack.c names %s.%s %d times, expected once", table, column,
                     times_named(r, column));
    }
    assert_true(columns > 60);
    sqlite3_finalize(st);
    sqlite3_close(s);
}

/* ---- text and ids ---- */

static bool in_file(const char *word)
{
    struct buf file = {0};
    assert_true(buf_read_file(&file, pack_path, 64 << 20, NULL));
    bool found = memmem(file.p, file.n, word, strlen(word)) != NULL;
    buf_free(&file);
    return found;
}

static bool id_in_file(int32_t id)
{
    struct buf file = {0};
    assert_true(buf_read_file(&file, pack_path, 64 << 20, NULL));
    bool found = memmem(file.p, file.n, &id, sizeof id) != NULL;
    buf_free(&file);
    return found;
}

static void test_a_pack_keeps_what_its_level_says(void **state)
{
    (void)state;
    static const char *const words[] = {"xylophone", "quagmire", "marmalade", "kaleidoscope",
                                        "nestling/target"};
    make_log(5);
    struct hdb *log = read_open();
    int32_t id = (int32_t)sql_int(log, "SELECT token FROM v_token WHERE token > 65536 LIMIT 1");
    assert_true(id > 65536);
    for (int level = 0; level < N_PACK_LEVELS; level++) {
        struct pack_about a;
        make_pack((enum pack_level)level, ID, &a);
        assert_int_equal(a.level, level);
        assert_int_equal(a.turns, 5);
        for (int i = 0; i < 5; i++)
            assert_int_equal(in_file(words[i]), level == PACK_TEXT);
        assert_int_equal(id_in_file(id), level != PACK_SHAPE);
        assert_true(in_file("I4 verify swa table row 0"));
        assert_true(in_file("temperature=0"));
        struct hdb *d = open_pack();
        static const char *const same[] = {
            "SELECT count(*) FROM turn", "SELECT count(*) FROM step", "SELECT count(*) FROM tree",
            "SELECT count(*) FROM pages",
            "SELECT sum(length(events)) FROM pages", "SELECT count(*) FROM v_node",
            "SELECT count(*) FROM v_token", "SELECT count(*) FROM v_prompt",
            "SELECT sum(drafted * 7 + accepted) FROM step", "SELECT count(*) FROM event"};
        for (size_t i = 0; i < sizeof same / sizeof *same; i++)
            assert_int_equal(sql_int(d, same[i]), sql_int(log, same[i]));
        long long tokens = sql_int(d, "SELECT sum(token) FROM v_token");
        assert_int_equal(tokens == sql_int(log, "SELECT sum(token) FROM v_token"),
                         level != PACK_SHAPE);
        assert_int_equal(sql_int(d, "SELECT count(*) FROM turn_fts WHERE turn_fts MATCH "
                                    "'marmalade'"),
                         level == PACK_TEXT ? 5 : 0);
        hdb_close(d);
    }
    hdb_close(log);
}

/* What a pack lost does not come back, and packing it again loses more. */
static void test_a_pack_of_a_pack_keeps_no_more(void **state)
{
    (void)state;
    struct pack_about a;
    struct err e = {0};
    char again[200];
    make_log(2);
    make_pack(PACK_IDS, ID, &a);
    struct hdb *d = open_pack();
    for (int level = 0; level < N_PACK_LEVELS; level++) {
        struct pack_opts o = {.level = (enum pack_level)level};
        snprintf(again, sizeof again, "%s/again-%d.aerie", scratch, level);
        assert_true(hdb_pack(d, ID, &o, again, &a, &e));
        assert_int_equal(a.level, level < PACK_IDS ? PACK_IDS : level);
    }
    hdb_close(d);
}

/* ---- slices and forks ---- */

static void test_a_slice_ends_with_its_turn_and_keeps_its_trees(void **state)
{
    (void)state;
    struct pack_about a;
    struct err e = {0};
    make_log(9);
    struct hdb *log = read_open(), *d;
    struct pack_opts o = {.level = PACK_IDS, .from_turn = 3, .from_step = 1, .to_turn = 5,
                          .to_step = 2};
    if (!hdb_pack(log, ID, &o, pack_path, &a, &e))
        fail_msg("%s", e.msg);
    assert_string_equal(a.trees, "3.1..5.2");
    d = open_pack();
    assert_int_equal(sql_int(d, "SELECT max(n) FROM turn"), 5);
    assert_int_equal(sql_int(d, "SELECT count(*) FROM step"),
                     sql_int(log, "SELECT count(*) FROM v_step WHERE turn <= 5"));
    assert_int_equal(sql_int(d, "SELECT count(*) FROM tree"),
                     sql_int(log, "SELECT count(DISTINCT turn*1000+step) FROM v_node WHERE"
                                  " turn IN (3, 4) OR (turn = 5 AND step <= 2)"));
    hdb_close(d);
    unlink(pack_path);
    o.to_turn = o.from_turn = 12;
    assert_false(hdb_pack(log, ID, &o, pack_path, &a, &e));
    assert_int_equal(e.kind, ERR_NEGATIVE);
    assert_non_null(strstr(e.msg, "has no turn 12; its newest is turn 9"));
    assert_int_equal(access(pack_path, F_OK), -1);
    o = (struct pack_opts){.level = PACK_IDS, .from_turn = 2, .from_step = 90, .to_turn = 2,
                           .to_step = 95};
    assert_false(hdb_pack(log, ID, &o, pack_path, &a, &e));
    assert_int_equal(e.kind, ERR_NEGATIVE);
    hdb_close(log);
}

static bool count_rows(const struct turn_row *r, void *arg)
{
    int *n = arg;
    n[0] += r->is_user;
    n[1] += r->tokens.n;
    return true;
}

/* Parents go along; of an unrelated session nothing does. */
static void test_a_fork_is_packed_with_its_parents(void **state)
{
    (void)state;
    struct pack_about a;
    struct hdb_past want, have;
    struct err e = {0};
    struct history *h = log_open(LOG_TREE);
    write_worded(h, "01PACK0000000000000000000Z", 2);
    write_worded(h, ID, 4);
    post_session(h, CHILD, ID, 3);
    post_op(h, CHILD, OP_FORK, 3, "1 2 3");
    one_turn(h, CHILD, 4, false);
    one_turn(h, CHILD, 5, false);
    assert_true(history_flush(h, 60000));
    history_close(h);
    snprintf(pack_path, sizeof pack_path, "%s/fork.aerie", scratch);
    make_pack(PACK_IDS, CHILD, &a);
    struct hdb *d = open_pack(), *log = read_open();
    assert_true(hdb_past(d, CHILD, INT32_MAX, &have, &e));
    assert_true(hdb_past(log, CHILD, INT32_MAX, &want, &e));
    assert_int_equal(have.n, want.n);
    assert_int_equal(have.n_part, 2);
    for (int i = 0; i < have.n; i++) {
        assert_int_equal(have.turn[i].state, want.turn[i].state);
        assert_int_equal(have.turn[i].reply.tokens.n, want.turn[i].reply.tokens.n);
    }
    int n[2] = {0}, m[2] = {0};
    assert_true(hdb_turns(d, CHILD, 0, count_rows, n, &e) == hdb_turns(log, CHILD, 0, count_rows, m,
                                                                       &e));
    assert_memory_equal(n, m, sizeof n);
    assert_int_equal(sql_int(d, "SELECT count(*) FROM session"), 2);
    struct session_row row;
    assert_true(hdb_find(d, "last", &row, &e));
    assert_string_equal(row.id, CHILD);
    session_row_free(&row);
    hdb_past_free(&have);
    hdb_past_free(&want);
    hdb_close(d);
    hdb_close(log);
}

/* ---- the file ---- */

static int count_files(void)
{
    DIR *d = opendir(scratch);
    int n = 0;
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

static void test_opening_a_pack_writes_nothing(void **state)
{
    (void)state;
    struct pack_about a;
    struct stat before, after;
    struct err e = {0};
    make_log(3);
    make_pack(PACK_TEXT, ID, &a);
    assert_int_equal(stat(pack_path, &before), 0);
    assert_int_equal(before.st_mode & 0777, 0600);
    assert_int_equal(chmod(pack_path, 0400), 0);
    assert_int_equal(stat(pack_path, &before), 0);
    int files = count_files();
    struct hdb *d = open_pack();
    assert_string_equal(hdb_packed(d)->session, ID);
    assert_int_equal(sql_int(d, "SELECT count(*) FROM turn"), 6);
    assert_int_equal(count_files(), files);
    hdb_close(d);
    assert_int_equal(stat(pack_path, &after), 0);
    assert_int_equal(count_files(), files);
    assert_true(after.st_mtim.tv_sec == before.st_mtim.tv_sec && after.st_size == before.st_size);
    /* no writer takes it for a log, and no file is overwritten */
    struct buf report = {0};
    assert_null(history_open(pack_path, LOG_STEPS, &about, &e));
    assert_non_null(strstr(e.msg, "is a pack"));
    assert_false(history_set_title(pack_path, ID, "x", &e));
    assert_int_equal(prune_older(pack_path, 0, &e), -1);
    assert_true(history_check(pack_path, &report, &e));
    assert_non_null(strstr(report.p, "the seal matches"));
    struct hdb *log = read_open();
    struct pack_opts o = {.level = PACK_IDS};
    assert_false(hdb_pack(log, ID, &o, pack_path, &a, &e));
    assert_non_null(strstr(e.msg, "File exists"));
    hdb_close(log);
    assert_int_equal(count_files(), files);
    buf_free(&report);
}

static void write_file(const struct buf *b)
{
    int fd = open(pack_path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0 && write_fully(fd, b->p, b->n));
    close(fd);
}

static bool opens(void)
{
    struct err e = {0};
    struct hdb *d = hdb_open(pack_path, &e);
    if (!d && (e.kind != ERR_DB || !e.msg[0]))
        fail_msg("kind %d: %s", e.kind, e.msg);
    hdb_close(d);
    return d;
}

static void test_every_changed_byte_is_noticed(void **state)
{
    (void)state;
    struct pack_about a;
    struct buf file = {0};
    make_log(4);
    make_pack(PACK_TEXT, ID, &a);
    assert_true(buf_read_file(&file, pack_path, 64 << 20, NULL));
    int flips = 0;
    for (int i = 0; i < 400; i++) {
        size_t at = i < 100 ? (size_t)i : i < 185 ? file.n - 85 + (size_t)(i - 100)
                                                  : (size_t)roll(file.n);
        char was = file.p[at];
        file.p[at] = (char)(was ^ (1 << roll(8)));
        write_file(&file);
        flips += !opens();
        file.p[at] = was;
    }
    assert_int_equal(flips, 400);
    size_t n = file.n;
    for (int i = 0; i < 50; i++) { /* cut short */
        file.n = i < 25 ? n - 1 - (size_t)i * 7 : (size_t)roll(n);
        if (file.n > 0) {
            write_file(&file);
            assert_false(opens());
        }
    }
    file.n = n;
    buf_char(&file, '\n');
    write_file(&file);
    assert_false(opens());
    file.n = n;
    write_file(&file);
    assert_true(opens());
    buf_free(&file);
}

/* Another program's changes: rows edited, deleted, added, a view planted, a page vacuumed away. */
static void test_every_edit_is_noticed(void **state)
{
    (void)state;
    static const char *const edit[] = {
        "UPDATE turn SET n_accepted = n_accepted + 1 WHERE id = 2", "DELETE FROM step WHERE id = 3",
        "DELETE FROM tree", "UPDATE pack SET value = 'text' WHERE name = 'keeps'",
        "INSERT INTO event(session_id, turn, step, kind, text, "
        "created_ms) VALUES('" ID "',0,0,'notice','x',1)",
        "CREATE VIEW turn_view AS SELECT 1", "PRAGMA user_version=77",
    };
    struct pack_about a;
    make_log(3);
    for (size_t i = 0; i < sizeof edit / sizeof *edit; i++) {
        sqlite3 *s;
        make_pack(PACK_IDS, ID, &a);
        assert_int_equal(sqlite3_open(pack_path, &s), SQLITE_OK);
        if (sqlite3_exec(s, edit[i], NULL, NULL, NULL) != SQLITE_OK)
            fail_msg("%s: %s", edit[i], sqlite3_errmsg(s));
        sqlite3_close(s);
        assert_false(opens());
    }
}

/* A file whose maker sealed it: what it holds beside the tables is still refused in one line. */
static void test_a_hostile_pack_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *sql, *why;
    } plant[] = {
        {"CREATE TRIGGER t AFTER INSERT ON turn BEGIN DELETE FROM step; END",
         "aerie did not make it"},
        {"CREATE VIEW v AS SELECT load_extension('x')", "aerie did not make it"},
        {"DROP TABLE tree", "is missing"},
        {"PRAGMA user_version=99", "schema version 99"},
        {"PRAGMA user_version=0", "no pack"},
        {"DELETE FROM pack", "does not say which session"},
        {"PRAGMA writable_schema=ON; UPDATE sqlite_schema SET sql='CREATE TABLE turn(x)' WHERE "
         "name='turn'", ""},
    };
    struct pack_about a;
    make_log(1);
    for (size_t i = 0; i < sizeof plant / sizeof *plant; i++) {
        make_pack(PACK_IDS, ID, &a);
        struct buf file = {0};
        struct err e = {0};
        sqlite3 *s;
        char *why = NULL;
        assert_int_equal(sqlite3_open(pack_path, &s), SQLITE_OK);
        sqlite3_exec(s, plant[i].sql, NULL, NULL, &why);
        sqlite3_close(s);
        assert_true(buf_read_file(&file, pack_path, 64 << 20, NULL));
        size_t n = file.n / 4096 * 4096;
        unlink(pack_path);
        assert_true(pack_write(pack_path, file.p, n, &e));
        struct hdb *d = hdb_open(pack_path, &e);
        assert_null(d);
        assert_int_equal(e.kind, ERR_DB);
        if (!strstr(e.msg, plant[i].why) || strchr(e.msg, '\n'))
            fail_msg("%s: %s", plant[i].sql, e.msg);
        buf_free(&file);
        sqlite3_free(why);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_every_column_of_the_schema_has_one_rule),
        TEST(test_a_pack_keeps_what_its_level_says),
        TEST(test_a_pack_of_a_pack_keeps_no_more),
        TEST(test_a_slice_ends_with_its_turn_and_keeps_its_trees),
        TEST(test_a_fork_is_packed_with_its_parents),
        TEST(test_opening_a_pack_writes_nothing),
        TEST(test_every_changed_byte_is_noticed),
        TEST(test_every_edit_is_noticed),
        TEST(test_a_hostile_pack_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
