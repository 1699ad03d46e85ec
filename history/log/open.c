/* open.c - opens the writer's database: creates or migrates it, and recovers the turns of dead
 * processes.
 *
 * A damaged database is renamed, never deleted, and a new one takes its place.
 */
#include "history/internal.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { WRITER_BUSY_MS = 250 };

/* Creates the file unless it exists; refuses one that is not a session log. */
static bool prepare_file(const char *path, struct err *e)
{
    enum file_owner owner = file_owner(path, e);
    if (owner != FILE_MISSING)
        return owner == FILE_OURS;
    if (!file_make_folder(path, e) || !live_create(path, e))
        return false;
    int fd = file_create(path, e);
    if (fd >= 0)
        close(fd);
    return fd >= 0 || !file_missing(path); /* or another process created it */
}

/* Makes the files beside another user's log, as that user's: files that root made there would lock
 * him out of his log. */
static void make_files_beside(const char *path, const struct stat *log, bool written)
{
    static const char *const tails[] = {"-wal", "-shm", ".live"};
    for (int i = 0; i < (written ? 3 : 2); i++) {
        FREED(free_at) char *name = xasprintf("%s%s", path, tails[i]);
        FREED(fd_close) int fd = file_open_beside(name, O_RDWR | O_CREAT | O_EXCL, NULL);
        if (fd >= 0 && fchown(fd, log->st_uid, log->st_gid) != 0)
            unlink(name);
    }
}

void history_before_isolation(const char *path, bool written)
{
    struct stat st;
    if (file_owner(path, NULL) != FILE_OURS || stat(path, &st) != 0)
        return;
    if (written)
        file_make_private(path);
    if (geteuid() == 0 && st.st_uid != 0)
        make_files_beside(path, &st, written);
}

__attribute__((format(printf, 2, 3)))
static void set_notice(char notice[NOTICE_BYTES], const char *fmt, ...)
{
    WITH_ARGS(ap, fmt, vsnprintf(notice, NOTICE_BYTES, fmt, ap));
}

/* Stores the turns that an earlier process left in a side file. If that fails, a notice says so and
 * the side file stays for the next start. */
static void store_side_files(struct writer *w, char *notice)
{
    struct err why = {0};
    int turns;
    if (!side_files_store(&w->db, &w->live, &turns, &why))
        set_notice(notice, "%.200s", why.msg);
    else if (turns)
        set_notice(notice, "%d turn%s that an earlier aerie could not store %s stored now", turns,
                   turns == 1 ? "" : "s", turns == 1 ? "is" : "are");
}

/* ---- the turns of dead writers ---- */

/* Closes every open turn of a run, then the run: it ended by the death of its process. */
static int close_run(struct db *d, int64_t run, int *closed)
{
    char session[SESSION_ID] = "";
    int64_t reply = 0;
    sqlite3_stmt *st = db_cached(d, "SELECT session_id FROM run WHERE id=?", "i", run);
    int rc;
    if (!db_row(d, st, &rc))
        return rc ?: SQLITE_CORRUPT;
    col_id(st, 0, session);
    sqlite3_reset(st);
    rc = chain_touch(d, session);
    while (!rc) {
        rc = db_int(d, &reply, 0, "SELECT id FROM turn WHERE run_id=? AND stop='' LIMIT 1", "i",
                    run);
        if (rc || !reply)
            break;
        rc = recover_turn(d, reply);
        *closed += !rc;
    }
    return rc ?:
           db_do(d, "UPDATE run SET ended=2 WHERE id=?", "i", run) ?:
           chain_seal(d, session);
}

static int close_dead_runs(struct db *d, const struct live *l, int *closed)
{
    FREED(free_at) int64_t *dead = NULL;
    size_t n = 0;
    sqlite3_stmt *st = db_cached(d, "SELECT id, writer FROM run WHERE ended=0", "");
    int rc;
    while (db_row(d, st, &rc))
        /* a side file holds more events of the run */
        if (!live_or_unknown(l, sqlite3_column_int64(st, 1)) &&
            !side_file_exists(l->path, sqlite3_column_int64(st, 1)))
            *APPEND(dead, n) = sqlite3_column_int64(st, 0);
    for (size_t i = 0; !rc && i < n; i++)
        rc = close_run(d, dead[i], closed);
    return rc;
}

int recover_dead(struct db *d, const struct live *l, int *closed)
{
    *closed = 0;
    int rc = db_do(d, "BEGIN IMMEDIATE", "");
    if (rc)
        return rc;
    rc = close_dead_runs(d, l, closed) ?: session_unlock_dead(d, l);
    int gone;
    if (!rc) /* deletes sessions without any turn */
        rc = chain_delete(d, db_cached(d, "DELETE FROM session WHERE parent IS NULL"
                   " AND NOT EXISTS(SELECT 1 FROM turn WHERE session_id = session.id)"
                   " AND NOT EXISTS(SELECT 1 FROM run WHERE session_id = session.id AND ended = 0)"
                   " AND id NOT IN (SELECT parent FROM session WHERE parent IS NOT NULL)"
                   " RETURNING id", ""), &gone);
    return rc ?: db_do(d, "COMMIT", "");
}

/* Whether the database is intact, but another process has it locked or the disk is full. */
static bool is_transient(int rc)
{
    return (rc & 0xff) == SQLITE_BUSY || (rc & 0xff) == SQLITE_FULL || rc == SQLITE_IOERR_WRITE;
}

/* Opens, migrates and recovers the database. *damaged: it failed because of the file's content. */
static bool open_once(struct writer *w, const char *path, char *notice, struct err *e,
                      bool *damaged)
{
    *damaged = false;
    if (!prepare_file(path, e) || !db_open(&w->db, path, SQLITE_OPEN_READWRITE, e))
        return false;
    bool ok = !sqlite3_db_readonly(w->db.h, "main") ||
              err_set(e, ERR_DB, "%s is read-only", path);
    int closed = 0;
    ok = ok && schema_accept(&w->db, e);
    if (ok)
        file_make_private(
            path); /* no effect in an isolated process: history_before_isolation() did it */
    w->has_wal = ok && schema_wal(&w->db);
    if (ok && !w->has_wal)
        set_notice(notice,
                   "the session log is on a file system without WAL: writing is slower there");
    ok = ok && db_sync_all(&w->db, e) && schema_open(&w->db, e) && seal_fits(&w->db, e) &&
         live_open(&w->live, path, e);
    if (ok && seal_is_missing(&w->db))
        set_notice(notice, "this log is sealed, and --seal KEYFILE is missing: what is saved now "
                           "has no seal");
    if (ok)
        store_side_files(w, notice);
    if (ok)
        sqlite3_busy_timeout(w->db.h, WRITER_BUSY_MS);
    int rc = ok ? recover_dead(&w->db, &w->live, &closed) : SQLITE_OK;
    if (is_transient(rc)) { /* recovery is left to the next start */
        db_rollback(&w->db);
        closed = 0;
    } else if (rc) {
        ok = db_fail(&w->db, e, "cannot close the turns of a killed process");
    }
    if (ok && closed)
        set_notice(notice, "%d unfinished turn%s of a killed aerie %s saved as far as it got",
                   closed, closed == 1 ? "" : "s", closed == 1 ? "was" : "were");
    if (!ok) {
        *damaged = w->db.failed == SQLITE_NOTADB || w->db.failed == SQLITE_CORRUPT;
        live_close(&w->live);
        db_close(&w->db);
    }
    return ok;
}

bool writer_open(struct writer *w, const char *path, char notice[NOTICE_BYTES], struct err *e)
{
    bool damaged;
    if (open_once(w, path, notice, e, &damaged))
        return true;
    char *to;
    if (!damaged || !file_rename_damaged(path, &to, e))
        return false;
    bool ok = open_once(w, path, notice, e, &damaged);
    set_notice(notice, "the session log was damaged: it is kept as %s, and a new one was begun",
               to);
    free(to);
    return ok;
}
