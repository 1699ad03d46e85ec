/* vfs.c - SQLite's file system layer, with reads that fail told apart from damage.
 *
 * If the system cannot read a page (EIO), SQLite's own layer reports a corrupt file system, which SQLite turns into
 * "database disk image is malformed". A log for which this is said is set aside as damaged, although the next
 * read may succeed. Here such a read is an I/O error, and its errno is kept. And if a database cannot be opened for
 * writing for any reason (no descriptors), SQLite's layer opens it for reading, which ends in "attempt to write a
 * readonly database": here only a file without the permission is opened so. An unlocking that fails is tried again.
 */
#include "history/internal.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

enum { KINDS = 8 }; /* tables of functions that a layer may have; its other files are left as they are */

static struct kind {
    sqlite3_io_methods own; /* the first member: a file's methods point to it */
    const sqlite3_io_methods *from;
} kind[KINDS];
static int n_kind;

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static sqlite3_vfs own, *base; /* (mu) */
static atomic_int read_error, lock_error;

static int read_told(sqlite3_file *f, void *p, int n, sqlite3_int64 at)
{
    int rc = ((const struct kind *)(const void *)f->pMethods)->from->xRead(f, p, n, at);
    if (rc != SQLITE_IOERR_CORRUPTFS && rc != SQLITE_IOERR_READ)
        return rc;
    atomic_store(&read_error, errno ? errno : EIO);
    return SQLITE_IOERR_READ;
}

/* To SQLite a lock that the system refused is one that somebody else has. */
static void note_lock(int rc)
{
    bool refused = rc != SQLITE_OK && errno != 0 && errno != EAGAIN && errno != EACCES;
    atomic_store(&lock_error, refused ? errno : 0);
}

/* SQLite ignores that a lock could not be given up, and everyone would wait for it from then on. */
static int shm_lock_told(sqlite3_file *f, int at, int n, int flags)
{
    const sqlite3_io_methods *from = ((const struct kind *)(const void *)f->pMethods)->from;
    errno = 0;
    int rc = from->xShmLock(f, at, n, flags);
    for (int i = 0; i < 3 && rc != SQLITE_OK && (flags & SQLITE_SHM_UNLOCK); i++)
        rc = from->xShmLock(f, at, n, flags);
    note_lock(rc);
    return rc;
}

static int lock_told(sqlite3_file *f, int level)
{
    errno = 0;
    int rc = ((const struct kind *)(const void *)f->pMethods)->from->xLock(f, level);
    note_lock(rc);
    return rc;
}

static int unlock_told(sqlite3_file *f, int level)
{
    const sqlite3_io_methods *from = ((const struct kind *)(const void *)f->pMethods)->from;
    int rc = from->xUnlock(f, level);
    for (int i = 0; i < 3 && rc != SQLITE_OK; i++)
        rc = from->xUnlock(f, level);
    return rc;
}

static int open_told(sqlite3_vfs *v, sqlite3_filename name, sqlite3_file *f, int flags, int *out)
{
    (void)v;
    int got = 0, rc = base->xOpen(base, name, f, flags, &got);
    for (int i = 0; rc == SQLITE_OK && (flags & SQLITE_OPEN_READWRITE) && (got & SQLITE_OPEN_READONLY) && name &&
                    access(name, W_OK) == 0; i++) { /* opened for reading only, though it may be written: try again */
        f->pMethods->xClose(f);
        f->pMethods = NULL;
        rc = i < 3 ? base->xOpen(base, name, f, flags, &got) : SQLITE_CANTOPEN;
    }
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
        kind[i].own.xRead = read_told;
        kind[i].own.xLock = lock_told;
        kind[i].own.xUnlock = unlock_told;
        if (kind[i].from->iVersion >= 2)
            kind[i].own.xShmLock = shm_lock_told;
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
        sqlite3_vfs_register(&own, 0);
        if (own.pNext) /* before this layer in the list, so that this one is not the default when `now` is removed */
            sqlite3_vfs_register(own.pNext, 0);
    }
    pthread_mutex_unlock(&mu);
    return now ? name : NULL;
}

int vfs_read_error(void)
{
    return atomic_exchange(&read_error, 0);
}

int vfs_lock_error(void)
{
    return atomic_load(&lock_error);
}
