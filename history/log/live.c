/* live.c - detects which writers are alive, and locks a session for the process that writes it.
 *
 * Neither a process id nor a time tells whether another aerie still writes a turn: ids are reused
 * and clocks jump. A file lock does, because the kernel releases it with the process: every writer
 * locks one byte of PATH.live, at a random offset, and stores that offset in its run rows.
 *
 * The lock of a session is a row of `held` that names the writer. It counts only while the writer
 * is alive, so it ends with its process however the process dies. A dead writer's row is replaced
 * by the next lock of the session, or removed at the next start.
 */
#include "history/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

static struct flock byte_of(int64_t id)
{
    return (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = id, .l_len = 1};
}

/* Opens or creates PATH.live. */
static int open_file(const char *path, struct err *e)
{
    FREED(free_at) char *name = xasprintf("%s.live", path);
    return file_open_beside(name, O_RDWR | O_CREAT, e);
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

enum live_state { LIVE_NO, LIVE_YES, LIVE_UNKNOWN /* the file system has no locks */ };

static enum live_state live_state(const struct live *l, int64_t id)
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

/* ---- locks of sessions ---- */

/* The id of this boot of this machine; "" if unknown. */
static void boot_id(char out[64])
{
    struct buf b;
    out[0] = '\0';
    if (!buf_read_file(&b, "/proc/sys/kernel/random/boot_id", 4096, NULL))
        return;
    snprintf(out, 64, "%.*s", (int)strcspn(b.p, "\n"), b.p);
    buf_free(&b);
}

struct holder {
    int64_t writer, pid, since_ms, number; /* the session's number for people */
    char host[64];
};

/* If the file system has no locks, a process of this boot is looked up by its pid; a process of
 * another boot may run on another machine, so it counts as alive. */
static bool is_alive(const struct live *l, const struct holder *h)
{
    char here[64];
    enum live_state s = live_state(l, h->writer);
    if (s != LIVE_UNKNOWN)
        return s == LIVE_YES;
    boot_id(here);
    return strcmp(h->host, here) != 0 || h->pid <= 0 || h->pid > INT32_MAX ||
           kill((pid_t)h->pid, 0) == 0 || errno != ESRCH;
}

/* Reads who has locked the session; h->writer 0: nobody. */
static int read_holder(struct db *d, const char *session, struct holder *h)
{
    *h = (struct holder){0};
    sqlite3_stmt *st = db_cached(d, "SELECT writer, pid, since_ms, host, (SELECT number FROM "
                                 "session WHERE id=session_id) FROM held WHERE session_id=?", "s",
                                 session);
    int rc;
    if (db_row(d, st, &rc)) {
        const char *host = (const char *)sqlite3_column_text(st, 3);
        *h = (struct holder){sqlite3_column_int64(st, 0), sqlite3_column_int64(st, 1),
                             sqlite3_column_int64(st, 2), sqlite3_column_int64(st, 4), ""};
        snprintf(h->host, sizeof h->host, "%s", host ? host : "");
    }
    sqlite3_reset(st);
    return rc;
}

int session_lock_row(struct db *d, const struct live *l, const char *session)
{
    char here[64];
    boot_id(here);
    return db_do(d, "INSERT OR IGNORE INTO held(session_id, writer, pid, host, since_ms)"
                 " VALUES(?,?,?,?,?)", "siisi", session, l->id, (int64_t)getpid(), here,
                 clock_unix_ms()) ?:
           head_state(d);
}

int session_unlock(struct db *d, const struct live *l, const char *session)
{
    return (session ? db_do(d, "DELETE FROM held WHERE session_id=? AND writer=?", "si", session,
                            l->id)
                    : db_do(d, "DELETE FROM held WHERE writer=?", "i", l->id)) ?:
           head_state(d);
}

int session_unlock_dead(struct db *d, const struct live *l)
{
    for (;;) {
        char dead[SESSION_ID] = "";
        sqlite3_stmt *st = db_cached(d, "SELECT session_id, writer, pid, host FROM held", "");
        int rc;
        while (!*dead && db_row(d, st, &rc)) {
            const char *host = (const char *)sqlite3_column_text(st, 3);
            struct holder h = {sqlite3_column_int64(st, 1), sqlite3_column_int64(st, 2), 0, 0, ""};
            snprintf(h.host, sizeof h.host, "%s", host ? host : "");
            if (!is_alive(l, &h))
                col_id(st, 0, dead);
        }
        sqlite3_reset(st);
        if (!*dead)
            return rc ?: head_state(d);
        rc = db_do(d, "DELETE FROM held WHERE session_id=?", "s", dead);
        if (rc)
            return rc;
    }
}

/* Formats a time as "14:05", with the date unless it is today. */
static void format_since(int64_t ms, char *out, size_t size)
{
    time_t then = (time_t)(ms / 1000), now = (time_t)(clock_unix_ms() / 1000);
    struct tm a, b;
    snprintf(out, size, "an unknown time");
    if (!localtime_r(&then, &a) || !localtime_r(&now, &b))
        return;
    bool today = a.tm_yday == b.tm_yday && a.tm_year == b.tm_year;
    strftime(out, size, today ? "%H:%M" : "%Y-%m-%d %H:%M", &a);
}

static bool refuse_locked(const struct holder *h, struct err *e)
{
    char since[40], here[64];
    boot_id(here);
    format_since(h->since_ms, since, sizeof since);
    return err_set(e, ERR_DB, "session #%lld is open in another aerie (pid %lld%s, since %s)",
                   (long long)h->number, (long long)h->pid, strcmp(h->host, here)
                   ? " of another machine" : "", since);
}

bool session_lock(struct db *d, const struct live *l, const char *session, bool *elsewhere,
                  struct err *e)
{
    *elsewhere = false;
    struct holder h;
    int rc = db_do(d, "BEGIN IMMEDIATE", "") ?: read_holder(d, session, &h);
    if (!rc && h.writer && h.writer != l->id && is_alive(l, &h)) {
        db_rollback(d);
        *elsewhere = true;
        return refuse_locked(&h, e);
    }
    if (!rc && h.writer && h.writer != l->id)
        rc = db_do(d, "DELETE FROM held WHERE session_id=?", "s", session);
    rc = rc ?: session_lock_row(d, l, session) ?: db_do(d, "COMMIT", "");
    return rc == SQLITE_OK || db_fail(d, e, "cannot lock the session");
}
