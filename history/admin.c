/* admin.c - maintenance of the database: backup, prune, titles (check: check.c). Each call opens its own
 * connection.
 */
#include "history/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool open_as(struct db *d, const char *path, int flags,
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

/* ---- titles ---- */

bool history_set_title(const char *path, const char *session, const char *title, struct err *e)
{
    struct db d;
    if (!open_existing(&d, path, SQLITE_OPEN_READWRITE, e))
        return false;
    int rc = db_do(&d, "BEGIN IMMEDIATE", "");
    if (!rc)
        rc = chain_touch(&d, session);
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
