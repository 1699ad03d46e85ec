/* admin.c - maintenance of the database: backup, prune, check, titles. Each call opens its own
 * connection.
 */
#include "history/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool open_as(struct db *d, const char *path, int flags,
                    bool (*accept)(struct db *d, struct err *e), struct err *e)
{
    enum file_owner owner = file_owner(path, e);
    if (owner == FILE_MISSING)
        return err_set(e, ERR_NEGATIVE, "%s: %s", path, strerror(ENOENT));
    if (owner != FILE_OURS || !db_open(d, path, flags, e))
        return false;
    if (accept(d, e))
        return true;
    db_close(d);
    return false;
}

bool open_existing(struct db *d, const char *path, int flags, struct err *e)
{
    return open_as(d, path, flags, schema_check, e);
}

bool history_backup(const char *path, const char *to, struct err *e)
{
    struct db d;
    if (!open_existing(&d, path, SQLITE_OPEN_READONLY, e))
        return false;
    int fd = file_create(to, e); /* 0600; SQLite would apply the umask only */
    bool ok = fd >= 0;
    if (ok && db_do(&d, "VACUUM INTO ?", "s", to))
        ok = db_fail(&d, e, "cannot back up");
    if (ok && fsync(fd) != 0)
        ok = err_set(e, ERR_DB, "cannot write %s: %s", to, strerror(errno));
    if (fd >= 0) {
        close(fd);
        if (!ok)
            unlink(to);
    }
    db_close(&d);
    return ok;
}

/* ---- prune ---- */

/* Deletes the sessions that no session was forked from, that are old enough and not open. Repeats,
 * because a parent qualifies once its children are deleted. */
static int prune_ends(struct db *d, int64_t before_ms, int *removed)
{
    for (;;) {
        int n, rc = chain_delete(d, db_cached(d, "DELETE FROM session WHERE updated_ms < ?"
                       " AND id NOT IN (SELECT parent FROM session WHERE parent NOT NULL) AND id"
                       " NOT IN (SELECT session_id FROM run WHERE ended = 0) RETURNING id", "i",
                       before_ms), &n);
        if (rc || !n)
            return rc;
        *removed += n;
    }
}

static int prune_transaction(struct db *d, int64_t before_ms, int *removed)
{
    int rc = db_do(d, "BEGIN IMMEDIATE", "");
    if (!rc)
        rc = prune_ends(d, before_ms, removed);
    if (!rc && *removed) /* removes the deleted text from the full-text index */
        rc = db_do(d, "INSERT INTO turn_fts(turn_fts) VALUES('rebuild')", "");
    return rc ? rc : db_do(d, "COMMIT", "");
}

int history_prune(const char *path, int older_than_days, struct err *e)
{
    struct db d;
    struct live l = {.fd = -1};
    int closed, removed = 0;
    if (!open_existing(&d, path, SQLITE_OPEN_READWRITE, e))
        return -1;
    /* ends the sessions of dead processes, so that they can be pruned */
    bool ok = live_open(&l, path, e);
    if (ok && (recover_dead(&d, &l, &closed) ||
               prune_transaction(&d, clock_unix_ms() - older_than_days * INT64_C(86400000),
                                 &removed)))
        ok = db_fail(&d, e, "cannot prune");
    if (ok) {
        db_do(&d, "PRAGMA incremental_vacuum", "");
        sqlite3_wal_checkpoint_v2(d.h, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL);
    }
    live_close(&l);
    db_close(&d);
    return ok ? removed : -1;
}

/* ---- check ---- */

/* Runs a check whose result rows are problems, except the row "ok", and reports them. */
static bool complaints(struct db *d, const char *what, const char *sql, struct buf *report,
                       bool *clean, struct err *e)
{
    sqlite3_stmt *st = db_prepare(d, e, sql, "");
    if (!st)
        return false;
    int rc;
    while ((rc = sqlite3_step(st)) == SQLITE_ROW) {
        char *line = col_str(st, 0);
        if (strcmp(line, "ok") != 0) {
            buf_printf(report, "%s: %s\n", what, line);
            *clean = false;
        }
        free(line);
    }
    sqlite3_finalize(st);
    return rc == SQLITE_DONE || db_fail(d, e, what);
}

/* Compares the full-text index with the text. FTS5 requires a writable connection for that, but
 * nothing is written. */
static bool check_words(struct db *d, struct buf *report, bool *clean, struct err *e)
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

/* For open_as(): accepts any schema, because history_check() reports every difference itself. */
static bool accept_any(struct db *d, struct err *e)
{
    (void)d, (void)e;
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
    return ok;
}

/* Opening a pack checks its seal. */
static bool check_pack(const char *path, struct buf *report, struct err *e)
{
    struct hdb *h = hdb_open(path, e);
    if (h)
        buf_printf(report, "a pack; the seal matches: %.12s\n", hdb_packed(h)->seal);
    hdb_close(h);
    return h;
}

bool history_check(const char *path, struct buf *report, struct err *e)
{
    struct db d;
    int differ = 0;
    bool clean = true;
    if (file_owner(path, NULL) == FILE_PACK)
        return check_pack(path, report, e);
    if (!open_as(&d, path, SQLITE_OPEN_READWRITE, accept_any, e))
        return false;
    bool ok = schema_report(&d, report, &differ, e);
    if (ok && differ) /* a foreign view or trigger must not run */
        buf_str(report, "the rows were not checked: the schema is not aerie's\n");
    if (ok && !differ)
        ok = check_content(&d, report, &clean, e);
    db_close(&d);
    return ok && ((clean && !differ) || err_set(e, ERR_DB, "%s is damaged", path));
}

/* ---- titles ---- */

bool history_set_title(const char *path, const char *session, const char *title, struct err *e)
{
    struct db d;
    if (!open_existing(&d, path, SQLITE_OPEN_READWRITE, e))
        return false;
    int rc = db_do(&d, "BEGIN IMMEDIATE", "");
    if (!rc)
        rc = db_do(&d, "UPDATE session SET title=? WHERE id=?", "ss", title, session);
    bool found = !rc && sqlite3_changes(d.h);
    if (!rc)
        rc = chain_seal(&d, session);
    if (!rc)
        rc = db_do(&d, "COMMIT", "");
    bool ok = rc ? db_fail(&d, e, "cannot set the title")
                 : found || err_set(e, ERR_NEGATIVE, "no session \"%s\"", session);
    db_close(&d);
    return ok;
}
