/* vfs.c - SQLite's file system layer, which keeps why an operation of a file failed.
 *
 * SQLite keeps the system's errno for some result codes, and until the next call only. This layer keeps it for each,
 * in the thread in which the operation failed; messages name it (db_why()). Four failures are changed:
 * - A page that the system cannot read (EIO) is reported by SQLite's own layer as a corrupt file system, which SQLite turns
 *   into "database disk image is malformed". A log for which this is said is set aside as damaged, although the next
 *   read may succeed. Here such a read is an I/O error.
 * - If a database cannot be opened for writing for any reason (no descriptors), SQLite's layer opens it for reading, which ends
 *   in "attempt to write a readonly database". Here only a file without the permission is opened so.
 * - A file that could not be looked at (EIO) is taken for a file that was moved. Here it is looked at again.
 * - An unlocking that fails is tried again.
 */
#include "history/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

enum { KINDS = 8 }; /* tables of functions that a layer may have; its other files are left as they are */

static struct kind {
    sqlite3_io_methods own; /* the first member: a file's methods point to it */
    const sqlite3_io_methods *from;
} kind[KINDS];
static int n_kind;

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static sqlite3_vfs own, *base; /* (mu) */
enum { RESULTS = 32, TRIES = 3 };
static _Thread_local int cause[RESULTS]; /* by primary result code: the errno of the last failure with it */
static _Thread_local int open_error;     /* of the first open() of an operation that failed */

/* SQLite tries to open in a second way what it could not open, and its errno is that of the second. */
static int open_kept(const char *name, int flags, int mode)
{
    int fd = open(name, flags, mode);
    if (fd < 0 && errno != EINTR && !open_error)
        open_error = errno;
    return fd;
}

/* An operation that fails without the system leaves no errno. */
static void begin(void)
{
    errno = open_error = 0;
}

static const sqlite3_io_methods *below(const sqlite3_file *f)
{
    begin();
    return ((const struct kind *)(const void *)f->pMethods)->from;
}

static int keep(int rc)
{
    int primary = rc & 0xff;
    if (primary != SQLITE_OK && primary < RESULTS)
        cause[primary] = open_error ? open_error : errno;
    return rc;
}

/* To SQLite a lock that the system refused is one that somebody else has. */
static int keep_lock(int rc)
{
    if (errno == EAGAIN || errno == EACCES)
        errno = 0;
    if (rc == SQLITE_OK)
        cause[SQLITE_BUSY] = 0;
    return keep(rc);
}

static int read_told(sqlite3_file *f, void *p, int n, sqlite3_int64 at)
{
    int rc = below(f)->xRead(f, p, n, at);
    if (rc == SQLITE_IOERR_SHORT_READ) /* the file ends here */
        return rc;
    return keep(rc == SQLITE_IOERR_CORRUPTFS ? SQLITE_IOERR_READ : rc);
}

static int write_told(sqlite3_file *f, const void *p, int n, sqlite3_int64 at)
{
    return keep(below(f)->xWrite(f, p, n, at));
}

static int truncate_told(sqlite3_file *f, sqlite3_int64 n)
{
    return keep(below(f)->xTruncate(f, n));
}

static int sync_told(sqlite3_file *f, int flags)
{
    return keep(below(f)->xSync(f, flags));
}

static int size_told(sqlite3_file *f, sqlite3_int64 *n)
{
    return keep(below(f)->xFileSize(f, n));
}

static int map_told(sqlite3_file *f, int part, int bytes, int extend, void volatile **at)
{
    return keep(below(f)->xShmMap(f, part, bytes, extend, at));
}

static int lock_told(sqlite3_file *f, int level)
{
    return keep_lock(below(f)->xLock(f, level));
}

static int reserved_told(sqlite3_file *f, int *out)
{
    return keep(below(f)->xCheckReservedLock(f, out));
}

static int unlock_told(sqlite3_file *f, int level)
{
    int rc = below(f)->xUnlock(f, level);
    for (int i = 0; i < TRIES && rc != SQLITE_OK; i++)
        rc = below(f)->xUnlock(f, level);
    return keep(rc);
}

/* SQLite ignores that a lock could not be given up, and everyone would wait for it from then on. */
static int shm_lock_told(sqlite3_file *f, int at, int n, int flags)
{
    int rc = below(f)->xShmLock(f, at, n, flags);
    if (!(flags & SQLITE_SHM_UNLOCK))
        return keep_lock(rc);
    for (int i = 0; i < TRIES && rc != SQLITE_OK; i++)
        rc = below(f)->xShmLock(f, at, n, flags);
    return keep(rc);
}

/* SQLITE_FCNTL_HAS_MOVED alone has a failure that must be told apart; *moved then stays 1. */
static int control_told(sqlite3_file *f, int op, void *arg)
{
    int rc = below(f)->xFileControl(f, op, arg);
    if (op != SQLITE_FCNTL_HAS_MOVED || rc != SQLITE_OK)
        return rc;
    for (int i = 0; i < TRIES && *(int *)arg && errno && errno != ENOENT; i++)
        rc = below(f)->xFileControl(f, op, arg);
    if (*(int *)arg)
        cause[SQLITE_READONLY] = errno;
    return rc;
}

static int delete_told(sqlite3_vfs *v, const char *name, int sync_folder)
{
    (void)v;
    begin();
    int rc = base->xDelete(base, name, sync_folder);
    return rc == SQLITE_IOERR_DELETE_NOENT ? rc : keep(rc);
}

static int full_name_told(sqlite3_vfs *v, const char *name, int n, char *out)
{
    (void)v;
    begin();
    return keep(base->xFullPathname(base, name, n, out));
}

static int open_told(sqlite3_vfs *v, sqlite3_filename name, sqlite3_file *f, int flags, int *out)
{
    (void)v;
    begin();
    int got = 0, rc = keep(base->xOpen(base, name, f, flags, &got));
    bool writes = flags & SQLITE_OPEN_READWRITE;
    for (int i = 0; rc == SQLITE_OK && writes && (got & SQLITE_OPEN_READONLY) && name && access(name, W_OK) == 0; i++) {
        f->pMethods->xClose(f); /* opened for reading only, though it may be written: try again */
        f->pMethods = NULL;
        if (i == TRIES)
            return keep(SQLITE_CANTOPEN);
        begin();
        rc = keep(base->xOpen(base, name, f, flags, &got));
    }
    if (rc == SQLITE_OK && writes && (got & SQLITE_OPEN_READONLY))
        cause[SQLITE_READONLY] = open_error;
    if (out)
        *out = got;
    if (!f->pMethods)
        return rc;
    pthread_mutex_lock(&mu);
    int i = 0;
    while (i < n_kind && kind[i].from != f->pMethods)
        i++;
    if (i == n_kind && i < KINDS) {
        kind[i] = (struct kind){*f->pMethods, f->pMethods};
        sqlite3_io_methods *m = &kind[i].own;
        m->xRead = read_told, m->xWrite = write_told, m->xTruncate = truncate_told, m->xSync = sync_told;
        m->xFileSize = size_told, m->xLock = lock_told, m->xUnlock = unlock_told, m->xCheckReservedLock = reserved_told;
        m->xFileControl = control_told;
        if (m->iVersion >= 2)
            m->xShmMap = map_told, m->xShmLock = shm_lock_told;
        n_kind++;
    }
    if (i < n_kind)
        f->pMethods = &kind[i].own;
    pthread_mutex_unlock(&mu);
    return rc;
}

const char *vfs_name(void)
{
    static const char name[] = "aerie";
    pthread_mutex_lock(&mu);
    sqlite3_vfs *now = sqlite3_vfs_find(NULL);
    CHECK(now != &own); /* a layer above itself would call itself for ever */
    if (now && now != base) { /* tests exchange the default layer */
        if (base)
            sqlite3_vfs_unregister(&own);
        base = now;
        own = *now;
        own.zName = name;
        own.pNext = NULL;
        own.xOpen = open_told;
        own.xDelete = delete_told;
        own.xFullPathname = full_name_told;
        if (now->iVersion >= 3 && now->xSetSystemCall)
            now->xSetSystemCall(now, "open", (sqlite3_syscall_ptr)open_kept);
        sqlite3_vfs_register(&own, 0);
        if (own.pNext) /* before this layer in the list, so that this one is not the default when `now` is removed */
            sqlite3_vfs_register(own.pNext, 0);
    }
    pthread_mutex_unlock(&mu);
    return now ? name : NULL;
}

int vfs_cause(int rc)
{
    int primary = (rc & 0xff) == SQLITE_PROTOCOL ? SQLITE_BUSY : rc & 0xff; /* SQLite gave up waiting for a lock */
    return primary < RESULTS ? cause[primary] : 0;
}

void vfs_forget(void)
{
    memset(cause, 0, sizeof cause);
}
