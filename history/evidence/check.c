/* check.c - `db check`: whether a log is as aerie wrote it. Reports every difference it finds. */
#include "history/internal.h"

#include <unistd.h>

/* Runs a check whose result rows are problems, except the row "ok", and reports them. */
static bool complaints(struct db *d, const char *what, const char *sql, struct buf *report,
                       bool *clean, struct err *e)
{
    sqlite3_stmt *st = db_prepare(d, e, sql, "");
    struct db_rows rows = db_rows(d, st, what, e);
    while (db_next(&rows)) {
        FREED(free_at) char *line = col_str(st, 0);
        if (strcmp(line, "ok") != 0) {
            buf_printf(report, "%s: %s\n", what, line);
            *clean = false;
        }
    }
    return rows.ok;
}

/* Compares the full-text index with the text. FTS5 requires a writable connection for that, but
 * nothing is written. */
static bool compare_words(struct db *d, struct buf *report, bool *clean, struct err *e)
{
    if (sqlite3_db_readonly(d->h, "main")) {
        buf_str(report, "search index: not checked, the file is read-only\n");
        return true;
    }
    int rc = db_do(d, "INSERT INTO turn_fts(turn_fts, rank) VALUES('integrity-check', 1)", "");
    if ((rc & 0xff) == SQLITE_CORRUPT) {
        buf_str(report, "search index: does not match the text\n");
        *clean = false;
        return true;
    }
    return rc == SQLITE_OK || db_fail(d, e, "cannot check the search index");
}

/* Whether a lookup finds each word as often as in an index that is built anew. The check above
 * trusts the index's table of pages, where a lookup begins. In a read transaction, so that text and
 * index are of one moment while another process writes. */
static bool look_up_words(struct db *d, struct buf *report, bool *clean, struct err *e)
{
    sqlite3_stmt *all, *one = NULL;
    bool ok = db_exec(d, "BEGIN; SELECT count(*) FROM turn;"
                      "CREATE VIRTUAL TABLE temp.anew USING fts5(text, content='', "
                      "tokenize='unicode61');"
                      "INSERT INTO temp.anew(rowid, text) SELECT id, text FROM turn;"
                      "CREATE VIRTUAL TABLE temp.word USING fts5vocab(temp, anew, row)", e);
    all = ok ? db_prepare(d, e, "SELECT '\"' || replace(term, '\"', '\"\"') || '\"', "
                                "doc FROM temp.word", "") : NULL;
    if (all && sqlite3_prepare_v2(d->h, "SELECT count(*) FROM turn_fts WHERE turn_fts MATCH ?", -1,
                                  &one, NULL))
        db_fail(d, e, "cannot check the search index");
    int rc = SQLITE_DONE, lost = 0;
    while (one && (rc = sqlite3_step(all)) == SQLITE_ROW) {
        sqlite3_bind_value(one, 1, sqlite3_column_value(all, 0));
        int got = sqlite3_step(one);
        lost += got != SQLITE_ROW || sqlite3_column_int64(one, 0) != sqlite3_column_int64(all, 1);
        sqlite3_reset(one);
    }
    ok = one && (rc == SQLITE_DONE || (rc & 0xff) == SQLITE_CORRUPT ||
                 db_fail(d, e, "cannot check the search index"));
    if (ok && (lost || rc != SQLITE_DONE)) {
        buf_printf(report, "search index: %d word%s not found as often as the text has them\n",
                   lost, lost == 1 ? " is" : "s are");
        *clean = false;
    }
    sqlite3_finalize(all);
    sqlite3_finalize(one);
    db_rollback(d);
    return ok;
}

static bool check_words(struct db *d, struct buf *report, bool *clean, struct err *e)
{
    int64_t odd = 0;
    bool was = *clean;
    *clean = true;
    bool ok = compare_words(d, report, clean, e);
    if (ok && *clean &&
        (db_int(d, &odd, 0, "SELECT sum(typeof(k)='text' AND k='version' AND typeof(v)='integer'"
                                " AND v=4)<>1 OR count(*)<>1 FROM turn_fts_config", "")))
        ok = db_fail(d, e, "cannot check the search index");
    if (odd) {
        buf_str(report, "search index: its settings are not as aerie made them\n");
        *clean = false;
    }
    if (ok && *clean)
        ok = look_up_words(d, report, clean, e);
    *clean &= was;
    return ok;
}

/* For open_as(): accepts any schema, because history_check() reports every difference itself. */
static bool accept_any(struct db *, struct err *)
{
    return true;
}

/* Reports the replies that no checksum covers yet. */
static bool count_open(struct db *d, struct buf *report, struct err *e)
{
    int64_t n;
    if (db_int(d, &n, 0, "SELECT count(*) FROM turn WHERE role='reply' AND link IS NULL", ""))
        return db_fail(d, e, "cannot read turns");
    if (n)
        buf_printf(report, "%lld repl%s in progress, or cut off by the end of the process: covered "
                   "once %s complete\n", (long long)n, n == 1 ? "y is" : "ies are",
                   n == 1 ? "it is" : "they are");
    return true;
}

static bool check_content(struct db *d, struct buf *report, bool *clean, struct err *e)
{
    int turns = 0, bad = 0, first = 0, strange = 0;
    bool ok = complaints(d, "structure", "PRAGMA integrity_check", report, clean, e) &&
              complaints(d, "rows without an owner", "PRAGMA foreign_key_check", report, clean,
                         e) &&
              check_words(d, report, clean, e) && chain_verify(d, "", &turns, &bad, report, e) &&
              account_check(d, "", &first, &strange, report, e);
    if (ok)
        buf_printf(report, "%d turn%s checked, %d record%s not what was written\n", turns,
                   plural(turns), bad, bad == 1 ? " is" : "s are");
    if (ok && strange)
        buf_printf(report, "%d repl%s with other tokens than their steps\n", strange,
                   strange == 1 ? "y" : "ies");
    *clean &= !bad && !strange;
    return ok && count_open(d, report, e);
}

/* Opening a pack checks its seal. */
static bool check_pack(const char *path, struct buf *report, struct err *e)
{
    FREED(hdb_close_at) struct hdb *h = hdb_open(path, e);
    if (h)
        buf_printf(report, "a pack; the seal matches: %.12s\n", hdb_packed(h)->seal);
    return h != NULL;
}

bool history_check(const char *path, struct buf *report, struct err *e)
{
    return history_check_head(path, NULL, report, e);
}

/* Whether the file and its folder may be written. If so, the log could not be opened for another
 * reason. */
static bool can_be_written(const char *path)
{
    FREED(free_at) char *folder = path_folder(path);
    return access(path, W_OK) == 0 && access(folder, W_OK) == 0;
}

/* Opens the log for the whole check. If nothing may be written there, opens it as immutable,
 * without the turns in the write-ahead log. */
static bool open_to_check(struct db *d, const char *path, struct buf *report, struct err *e)
{
    int64_t n;
    if (!open_as(d, path, SQLITE_OPEN_READWRITE, accept_any, e))
        return false;
    int rc = db_int(d, &n, 0, "SELECT count(*) FROM sqlite_schema", "") & 0xff;
    if (rc != SQLITE_READONLY && rc != SQLITE_CANTOPEN)
        return true;
    if (can_be_written(path)) {
        db_fail(d, e, "cannot open");
        db_close(d);
        return false;
    }
    db_close(d);
    if (db_wal_has_rows(path))
        buf_str(report, "the newest turns were not checked: they are in a write-ahead log that "
                        "cannot be read here\n");
    return db_open_immutable(d, path, e);
}

bool history_check_head(const char *path, const char *head, struct buf *report, struct err *e)
{
    struct db d;
    struct schema_diff differ = {0};
    bool clean = true;
    if (file_owner(path, NULL) == FILE_PACK)
        return check_pack(path, report, e);
    if (!open_to_check(&d, path, report, e))
        return false;
    vfs_forget();
    bool ok = schema_report(&d, report, &differ, e);
    if (ok && differ.n) /* a foreign view or trigger must not run */
        buf_str(report, "the rows were not checked: the schema is not aerie's\n");
    if (ok && !differ.n)
        ok = check_content(&d, report, &clean, e) && head_report(&d, head, report, &clean, e);
    db_close(&d);
    if (!db_whole(path, e)) /* a read failed: it may have caused the other findings */
        return false;
    return ok && ((clean && !differ.n) || err_set(e, ERR_DB, "%s is damaged", path));
}
