/* live.c - detects which writers are alive, and closes the turns that dead ones left open.
 *
 * Neither a process id nor a time tells whether another aerie still writes a turn: ids are reused
 * and clocks jump. A file lock does, because the kernel releases it with the process: every writer
 * locks one byte of PATH.live, at a random offset, and stores that offset in its run rows.
 */
#include "history/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

static struct flock byte_of(int64_t id)
{
    return (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = id, .l_len = 1};
}

/* Opens or creates PATH.live. */
static int open_file(const char *path, struct err *e)
{
    char *name = xasprintf("%s.live", path);
    int fd = file_open_beside(name, O_RDWR | O_CREAT, e);
    free(name);
    return fd;
}

bool live_create(const char *path, struct err *e)
{
    int fd = open_file(path, e);
    if (fd < 0)
        return false;
    close(fd);
    file_sync_folder(path);
    return true;
}

bool live_open(struct live *l, const char *path, struct err *e)
{
    l->fd = open_file(path, e);
    if (l->fd < 0)
        return false;
    uint64_t r;
    CHECK(getrandom(&r, sizeof r, 0) == sizeof r);
    l->id = (int64_t)(r >> 2);
    l->path = xstrdup(path);
    struct flock lock = byte_of(l->id);
    /* a file system without locks is no error: live_state() is LIVE_UNKNOWN there */
    fcntl(l->fd, F_OFD_SETLK, &lock);
    return true;
}

void live_close(struct live *l)
{
    if (l->fd >= 0)
        close(l->fd);
    free(l->path);
    *l = (struct live){.fd = -1};
}

enum live_state live_state(const struct live *l, int64_t id)
{
    struct flock lock = byte_of(id);
    if (id == l->id)
        return LIVE_YES;
    if (id < 0 || fcntl(l->fd, F_OFD_GETLK, &lock) != 0)
        return LIVE_UNKNOWN;
    return lock.l_type == F_UNLCK ? LIVE_NO : LIVE_YES;
}

bool live_or_unknown(const struct live *l, int64_t id)
{
    return live_state(l, id) != LIVE_NO;
}

/* ---- recovery ---- */

/* The text and ids of an open turn that were stored so far. */
static int read_parts(struct db *d, int64_t reply, struct buf *text, struct ids *tokens)
{
    sqlite3_stmt *st = db_cached(
        d, "SELECT text FROM turn_part WHERE turn_id=? AND channel=0 ORDER BY k", "i", reply);
    if (!st)
        return sqlite3_extended_errcode(d->h);
    int rc;
    while ((rc = sqlite3_step(st)) == SQLITE_ROW) {
        const void *p = sqlite3_column_text(st, 0);
        buf_add(text, p, (size_t)sqlite3_column_bytes(st, 0));
    }
    sqlite3_reset(st);
    if (rc != SQLITE_DONE)
        return rc;
    st = db_cached(d, "SELECT tokens FROM step WHERE turn_id=? ORDER BY n", "i", reply);
    if (!st)
        return sqlite3_extended_errcode(d->h);
    while ((rc = sqlite3_step(st)) == SQLITE_ROW)
        col_ids(st, 0, tokens);
    sqlite3_reset(st);
    return rc == SQLITE_DONE ? SQLITE_OK : rc;
}

/* The session of a turn row. */
static int session_of(struct db *d, int64_t turn, char out[SESSION_ID])
{
    sqlite3_stmt *st = db_cached(d, "SELECT session_id FROM turn WHERE id=?", "i", turn);
    if (!st)
        return sqlite3_extended_errcode(d->h);
    int rc = sqlite3_step(st);
    if (rc == SQLITE_ROW)
        col_id(st, 0, out);
    sqlite3_reset(st);
    return rc == SQLITE_ROW ? SQLITE_OK : rc == SQLITE_DONE ? SQLITE_CORRUPT : rc;
}

int recover_turn(struct db *d, int64_t reply)
{
    struct buf text = {0};
    struct ids tokens = {0};
    char session[SESSION_ID];
    int rc = session_of(d, reply, session);
    if (!rc)
        rc = read_parts(d, reply, &text, &tokens);
    if (!rc)
        rc = db_do(d, "UPDATE turn SET text=?2, tokens=?3, stop=?4,"
                   " (n_steps, n_drafted, n_accepted, us_decode, draws1) = (SELECT count(*),"
                   "  total(drafted), total(accepted), total(us_draft + us_verify + us_commit),"
                   "  coalesce(max(draws), turn.draws1) FROM step WHERE turn_id = ?1) WHERE id=?1",
                   "itbs", reply, text.p, text.n, tokens.v, (size_t)tokens.n * sizeof *tokens.v,
                   stop_name(STOP_CRASHED));
    if (!rc)
        rc = turn_index(d, reply, "", text.p, text.n);
    if (!rc)
        rc = db_do(d, "DELETE FROM turn_part WHERE turn_id=? AND channel=0", "i", reply);
    if (!rc)
        rc = chain_add(d, session, LINK_TURN, reply);
    buf_free(&text);
    ids_free(&tokens);
    return rc;
}

/* Marks a run as ended by the death of its process. */
static int end_run(struct db *d, int64_t run)
{
    char session[SESSION_ID] = "";
    int rc = db_do(d, "UPDATE run SET ended=2 WHERE id=?", "i", run);
    sqlite3_stmt *st = rc ? NULL : db_cached(d, "SELECT session_id FROM run WHERE id=?", "i", run);
    if (!st)
        return sqlite3_extended_errcode(d->h);
    if ((rc = sqlite3_step(st)) == SQLITE_ROW)
        col_id(st, 0, session);
    sqlite3_reset(st);
    return rc == SQLITE_ROW || rc == SQLITE_DONE ? chain_seal(d, session) : rc;
}

/* Calls chain_touch() for the session of a run. */
static int touch_run(struct db *d, int64_t run)
{
    char session[SESSION_ID] = "";
    sqlite3_stmt *st = db_cached(d, "SELECT session_id FROM run WHERE id=?", "i", run);
    if (!st)
        return sqlite3_extended_errcode(d->h);
    int rc = sqlite3_step(st);
    if (rc == SQLITE_ROW)
        col_id(st, 0, session);
    sqlite3_reset(st);
    return rc == SQLITE_ROW ? chain_touch(d, session) : rc == SQLITE_DONE ? SQLITE_OK : rc;
}

/* Closes every open turn of a run, then the run. */
static int close_run(struct db *d, int64_t run, int *closed)
{
    int rc = touch_run(d, run);
    if (rc)
        return rc;
    for (;;) {
        int64_t reply;
        rc = db_int(d, &reply, 0, "SELECT id FROM turn WHERE run_id=? AND stop='' LIMIT 1", "i",
                        run);
        if (rc || !reply)
            return rc ? rc : end_run(d, run);
        rc = recover_turn(d, reply);
        if (rc)
            return rc;
        ++*closed;
    }
}

static int close_dead_runs(struct db *d, const struct live *l, int *closed)
{
    int64_t *dead = NULL;
    size_t n = 0;
    sqlite3_stmt *st = db_cached(d, "SELECT id, writer FROM run WHERE ended=0", "");
    if (!st)
        return sqlite3_extended_errcode(d->h);
    int rc;
    while ((rc = sqlite3_step(st)) == SQLITE_ROW)
        /* a side file holds more events of the run */
        if (!live_or_unknown(l, sqlite3_column_int64(st, 1)) &&
            !side_file_exists(l->path, sqlite3_column_int64(st, 1))) {
            dead = xrealloc(dead, n + 1, sizeof *dead);
            dead[n++] = sqlite3_column_int64(st, 0);
        }
    sqlite3_reset(st);
    rc = rc == SQLITE_DONE ? SQLITE_OK : rc;
    for (size_t i = 0; !rc && i < n; i++)
        rc = close_run(d, dead[i], closed);
    free(dead);
    return rc;
}

int recover_dead(struct db *d, const struct live *l, int *closed)
{
    *closed = 0;
    int rc = db_do(d, "BEGIN IMMEDIATE", "");
    if (rc)
        return rc;
    rc = close_dead_runs(d, l, closed);
    if (!rc)
        rc = session_unlock_dead(d, l);
    int gone;
    if (!rc) /* deletes sessions without any turn */
        rc = chain_delete(d, db_cached(d, "DELETE FROM session WHERE parent IS NULL"
                   " AND NOT EXISTS(SELECT 1 FROM turn WHERE session_id = session.id)"
                   " AND NOT EXISTS(SELECT 1 FROM run WHERE session_id = session.id AND ended = 0)"
                   " AND id NOT IN (SELECT parent FROM session WHERE parent IS NOT NULL)"
                   " RETURNING id", ""), &gone);
    return rc ? rc : db_do(d, "COMMIT", "");
}
