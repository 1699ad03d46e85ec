/* vfs.c - wraps SQLite's file system layer (its VFS) and keeps the errno of file operations that
 * failed.
 *
 * SQLite keeps errno for some result codes only, and only until the next call. This wrapper keeps
 * the last errno of each result code and thread; db_why() adds it to messages. It treats four
 * failures unlike SQLite's own layer:
 * - SQLite's layer reports a page that the system cannot read (EIO) as a corrupt file system, which
 *   SQLite turns into "database disk image is malformed". history_open() would set such a log aside
 *   as damaged, although the next read may succeed. The wrapper reports an I/O error.
 * - If a database cannot be opened for writing, e.g. because no descriptor is left, SQLite's layer
 *   opens it for reading, and writes fail with "attempt to write a readonly database". The wrapper
 *   opens a file for reading only if the process may not write it.
 * - If stat() of the open database fails (EIO), SQLite's layer says that the file was moved. The
 *   wrapper calls it again.
 * - If unlocking fails, the wrapper tries again.
 */
#include "history/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

enum { KINDS = 8 }; /* method tables that are wrapped; files with yet another table stay
                       unwrapped */

static struct kind {
    sqlite3_io_methods own;         /* the first member: wrapped() casts a file's method pointer to
                                       this struct */
    const sqlite3_io_methods *from; /* the table that `own` wraps */
} kind[KINDS];
static int n_kind;

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static sqlite3_vfs own, *base; /* (mu) */
enum { RESULTS = 32, TRIES = 3 };
static _Thread_local int cause[RESULTS]; /* by primary result code: the errno of the last failure
                                            with it */
static _Thread_local int open_error;     /* errno of the first open() that failed in this operation;
                                            0: none did */

/* In place of open(): if it fails, SQLite opens the file with other flags, and errno is that of the
 * second attempt. */
static int open_keeping_errno(const char *name, int flags, int mode)
{
    int fd = open(name, flags, mode);
    if (fd < 0 && errno != EINTR && !open_error)
        open_error = errno;
    return fd;
}

/* Call before an operation: if it fails although no system call failed, errno is 0 afterwards. */
static void clear_errno(void)
{
    errno = open_error = 0;
}

/* Begins an operation on an open file: the methods of SQLite's own layer. */
static const sqlite3_io_methods *wrapped(const sqlite3_file *f)
{
    clear_errno();
    return ((const struct kind *)(const void *)f->pMethods)->from;
}

static int keep_errno(int rc)
{
    int primary = rc & 0xff;
    if (primary != SQLITE_OK && primary < RESULTS)
        cause[primary] = open_error ? open_error : errno;
    return rc;
}

/* SQLITE_BUSY means that another process has the lock (EAGAIN, EACCES), or that the system refused
 * one (ENOLCK, ...). Only the latter leaves an errno. */
static int keep_lock_errno(int rc)
{
    if (errno == EAGAIN || errno == EACCES)
        errno = 0;
    if (rc == SQLITE_OK)
        cause[SQLITE_BUSY] = 0;
    return keep_errno(rc);
}

static int wrap_read(sqlite3_file *f, void *p, int n, sqlite3_int64 at)
{
    int rc = wrapped(f)->xRead(f, p, n, at);
    if (rc == SQLITE_IOERR_SHORT_READ) /* the file ends here */
        return rc;
    return keep_errno(rc == SQLITE_IOERR_CORRUPTFS ? SQLITE_IOERR_READ : rc);
}

static int wrap_write(sqlite3_file *f, const void *p, int n, sqlite3_int64 at)
{
    return keep_errno(wrapped(f)->xWrite(f, p, n, at));
}

static int wrap_truncate(sqlite3_file *f, sqlite3_int64 n)
{
    return keep_errno(wrapped(f)->xTruncate(f, n));
}

static int wrap_sync(sqlite3_file *f, int flags)
{
    return keep_errno(wrapped(f)->xSync(f, flags));
}

static int wrap_size(sqlite3_file *f, sqlite3_int64 *n)
{
    return keep_errno(wrapped(f)->xFileSize(f, n));
}

static int wrap_map(sqlite3_file *f, int part, int bytes, int extend, void volatile **at)
{
    return keep_errno(wrapped(f)->xShmMap(f, part, bytes, extend, at));
}

static int wrap_lock(sqlite3_file *f, int level)
{
    return keep_lock_errno(wrapped(f)->xLock(f, level));
}

static int wrap_reserved(sqlite3_file *f, int *out)
{
    return keep_errno(wrapped(f)->xCheckReservedLock(f, out));
}

static int wrap_unlock(sqlite3_file *f, int level)
{
    int rc = wrapped(f)->xUnlock(f, level);
    for (int i = 0; i < TRIES && rc != SQLITE_OK; i++)
        rc = wrapped(f)->xUnlock(f, level);
    return keep_errno(rc);
}

/* SQLite ignores that unlocking failed; every process would wait for that lock from then on. */
static int wrap_shm_lock(sqlite3_file *f, int at, int n, int flags)
{
    int rc = wrapped(f)->xShmLock(f, at, n, flags);
    if (!(flags & SQLITE_SHM_UNLOCK))
        return keep_lock_errno(rc);
    for (int i = 0; i < TRIES && rc != SQLITE_OK; i++)
        rc = wrapped(f)->xShmLock(f, at, n, flags);
    return keep_errno(rc);
}

/* SQLITE_FCNTL_HAS_MOVED also sets *(int *)arg to 1 if stat() failed, with an errno other than
 * ENOENT. If that persists, errno is kept for SQLITE_READONLY, which SQLite returns for a moved
 * file. */
static int wrap_control(sqlite3_file *f, int op, void *arg)
{
    int rc = wrapped(f)->xFileControl(f, op, arg);
    if (op != SQLITE_FCNTL_HAS_MOVED || rc != SQLITE_OK)
        return rc;
    for (int i = 0; i < TRIES && *(int *)arg && errno && errno != ENOENT; i++)
        rc = wrapped(f)->xFileControl(f, op, arg);
    if (*(int *)arg)
        cause[SQLITE_READONLY] = errno;
    return rc;
}

static int wrap_delete(sqlite3_vfs *, const char *name, int sync_folder)
{
    clear_errno();
    int rc = base->xDelete(base, name, sync_folder);
    return rc == SQLITE_IOERR_DELETE_NOENT ? rc : keep_errno(rc);
}

static int wrap_full_name(sqlite3_vfs *, const char *name, int n, char *out)
{
    clear_errno();
    return keep_errno(base->xFullPathname(base, name, n, out));
}

static int wrap_open(sqlite3_vfs *, sqlite3_filename name, sqlite3_file *f, int flags, int *out)
{
    clear_errno();
    int got = 0, rc = keep_errno(base->xOpen(base, name, f, flags, &got));
    bool writes = flags & SQLITE_OPEN_READWRITE;
    for (int i = 0; rc == SQLITE_OK && writes && (got & SQLITE_OPEN_READONLY) && name &&
         access(name, W_OK) == 0; i++) {
        f->pMethods->xClose(f); /* opened for reading only, though it may be written: try again */
        f->pMethods = NULL;
        if (i == TRIES)
            return keep_errno(SQLITE_CANTOPEN);
        clear_errno();
        rc = keep_errno(base->xOpen(base, name, f, flags, &got));
    }
    if (rc == SQLITE_OK && writes && (got & SQLITE_OPEN_READONLY))
        cause[SQLITE_READONLY] = open_error;
    if (out)
        *out = got;
    if (!f->pMethods)
        return rc;
    LOCKED(&mu);
    int i = 0;
    while (i < n_kind && kind[i].from != f->pMethods)
        i++;
    if (i == n_kind && i < KINDS) {
        kind[i] = (struct kind){*f->pMethods, f->pMethods};
        sqlite3_io_methods *m = &kind[i].own;
        m->xRead = wrap_read, m->xWrite = wrap_write, m->xTruncate = wrap_truncate,
            m->xSync = wrap_sync;
        m->xFileSize = wrap_size, m->xLock = wrap_lock, m->xUnlock = wrap_unlock,
            m->xCheckReservedLock = wrap_reserved;
        m->xFileControl = wrap_control;
        if (m->iVersion >= 2)
            m->xShmMap = wrap_map, m->xShmLock = wrap_shm_lock;
        n_kind++;
    }
    if (i < n_kind)
        f->pMethods = &kind[i].own;
    return rc;
}

const char *vfs_name(void)
{
    static const char name[] = "aerie";
    LOCKED(&mu);
    sqlite3_vfs *now = sqlite3_vfs_find(NULL);
    CHECK(now != &own); /* else the wrapper would wrap itself and recurse without end */
    if (now && now != base) { /* tests exchange the default layer */
        if (base)
            sqlite3_vfs_unregister(&own);
        base = now;
        own = *now;
        own.zName = name;
        own.pNext = NULL;
        own.xOpen = wrap_open;
        own.xDelete = wrap_delete;
        own.xFullPathname = wrap_full_name;
        if (now->iVersion >= 3 && now->xSetSystemCall)
            now->xSetSystemCall(now, "open", (sqlite3_syscall_ptr)open_keeping_errno);
        sqlite3_vfs_register(&own, 0);
        /* moved before the wrapper, which must not become the default if `now` is removed */
        if (own.pNext)
            sqlite3_vfs_register(own.pNext, 0);
    }
    return now ? name : NULL;
}

int vfs_cause(int rc)
{
    /* SQLite gave up waiting for a lock */
    int primary = (rc & 0xff) == SQLITE_PROTOCOL ? SQLITE_BUSY : rc & 0xff;
    return primary < RESULTS ? cause[primary] : 0;
}

void vfs_forget(void)
{
    memset(cause, 0, sizeof cause);
}
