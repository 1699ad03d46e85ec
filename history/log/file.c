/* file.c - where the log is, whether a file is a session log; creates and renames files.
 *
 * The header is checked before SQLite opens a file, because SQLite could create files beside it,
 * change its journal mode or replay its journal. Files are created 0600 and folders 0700, whatever
 * the umask; no file is overwritten or deleted.
 */
#include "history/internal.h"

#include "kernels/text.h"

#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef RENAME_NOREPLACE /* a C library without the function: musl 1.2.3 */
#define RENAME_NOREPLACE 1
static int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags)
{
    return (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, flags);
}
#endif

/* ---- where the log is ---- */

char *history_default_path(void)
{
    char *path = xdg_path("XDG_DATA_HOME", ".local/share", "sessions.db");
    if (path)
        return path;
    const struct passwd *me = getpwuid(geteuid());
    return xasprintf("%s/.local/share/aerie/sessions.db",
                     me && *me->pw_dir == '/' ? me->pw_dir : "");
}

/* ---- whose file it is ---- */

/* Offsets in the header of a database (page 1) and of its write-ahead log, all big-endian. */
enum {
    HEADER = 108, /* bytes of both headers of page 1: the file's and the schema root page's */
    AT_VERSION = 60, AT_APPLICATION = 68, AT_ROOT_KIND = 100, AT_ROOT_CELLS = 103,
    WAL_HEADER = 32, WAL_AT_PAGE_SIZE = 8, WAL_FRAME = 24,
    LEAF_OF_TABLE = 13,
};

static uint32_t big_endian(const unsigned char *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static bool page_is_ours(const unsigned char *page)
{
    return big_endian(page + AT_APPLICATION) == APPLICATION_ID;
}

/* Whether a database is empty: no version, no application id, no table. */
static bool page_is_blank(const unsigned char *page)
{
    return !big_endian(page + AT_APPLICATION) && !big_endian(page + AT_VERSION) &&
           page[AT_ROOT_KIND] == LEAF_OF_TABLE && !page[AT_ROOT_CELLS] && !page[AT_ROOT_CELLS + 1];
}

int file_open_beside(const char *name, int flags, struct err *e)
{
    struct stat st;
    int fd = file_open(name, flags | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0600);
    if (fd < 0 && errno == ELOOP) {
        err_set(e, ERR_DB, "%s is a symbolic link; expected a file of aerie's own", name);
        errno = ELOOP;
    } else if (fd < 0) {
        int why = errno;
        err_set(e, ERR_DB, "cannot %s %s: %s", flags & O_CREAT ? "create" : "open", name,
                strerror(why));
        errno = why;
    } else if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        err_set(e, ERR_DB, "%s is no regular file; expected a file of aerie's own", name);
        close(fd);
        errno = EINVAL;
        return -1;
    }
    return fd;
}

/* Whether the write-ahead log beside a blank database holds the first page of a session log.
 * *empty: it holds no page. */
static bool wal_is_ours(const char *path, bool *empty)
{
    FREED(free_at) char *name = xasprintf("%s-wal", path);
    unsigned char head[WAL_HEADER], frame[WAL_FRAME + HEADER];
    FREED(fd_close) int fd = file_open_beside(name, O_RDONLY, NULL);
    bool ours = false;
    *empty = true;
    if (fd >= 0 && pread_fully(fd, head, sizeof head, 0) == sizeof head) {
        off_t step = WAL_FRAME + (off_t)big_endian(head + WAL_AT_PAGE_SIZE);
        for (off_t at = WAL_HEADER; step >= 512 && !ours &&
                                    pread_fully(fd, frame, sizeof frame, (uint64_t)at) ==
                                    sizeof frame; at += step) {
            *empty = false;
            ours = big_endian(frame) == 1 && page_is_ours(frame + WAL_FRAME);
        }
    }
    return ours;
}

/* Whether PATH.live exists (live.c). It shows that PATH is a log even if the header is damaged or
 * the log's creation was interrupted. */
static bool has_companion(const char *path)
{
    FREED(free_at) char *name = xasprintf("%s.live", path);
    struct stat st;
    return lstat(name, &st) == 0 && S_ISREG(st.st_mode) && st.st_size == 0;
}

/* Why the file at path cannot be read; false: it can. Nothing is opened: see read_header(). */
static bool is_unreadable(const char *path, const struct stat *st, struct err *e)
{
    if (!S_ISREG(st->st_mode))
        return !err_set(e, ERR_DB, "cannot read %s: it is %s", path,
                        S_ISDIR(st->st_mode)    ? "a folder"
                        : S_ISFIFO(st->st_mode) ? "a FIFO; expected a regular file"
                                                : "a device; expected a regular file");
    return access(path, R_OK) != 0 && !err_set(e, ERR_DB, "cannot open %s: %s", path,
                                               strerror(errno));
}

/* Reads the first *n bytes of a database; the rest of *head is 0.
 *
 * It reads through SQLite's file system layer, not with open() and close(): when a process closes
 * any descriptor of a file, the kernel drops all POSIX locks of the process on that file, those of
 * SQLite's connections, too. Another process would then miss this one's lock, delete the
 * write-ahead log when it closes the database, and later writes would be lost. SQLite's layer knows
 * the connections of this process, and closes descriptors only when the last connection is
 * closed. */
static bool read_header(const char *path, unsigned char head[HEADER], size_t *n, struct err *e)
{
    sqlite3_vfs *vfs = sqlite3_vfs_find(vfs_name());
    sqlite3_file *f = xcalloc(1, (size_t)vfs->szOsFile);
    char *full = xcalloc(1, (size_t)vfs->mxPathname + 1);
    int rc = vfs->xFullPathname(vfs, path, vfs->mxPathname + 1, full) & 0xff;
    const char *name = rc == SQLITE_OK ? sqlite3_create_filename(full, "", "", 0, NULL) : NULL;
    sqlite3_int64 size = 0;
    memset(head, 0, HEADER);
    rc = rc == SQLITE_OK && !name ? SQLITE_NOMEM : rc;
    if (name)
        rc = vfs->xOpen(vfs, name, f, SQLITE_OPEN_READONLY | SQLITE_OPEN_MAIN_DB, NULL);
    if (name && rc == SQLITE_OK)
        rc = f->pMethods->xFileSize(f, &size);
    if (name && rc == SQLITE_OK) {
        rc = f->pMethods->xRead(f, head, HEADER, 0);
        rc = rc == SQLITE_IOERR_SHORT_READ ? SQLITE_OK : rc;
    }
    if (f->pMethods)
        f->pMethods->xClose(f);
    if (name)
        sqlite3_free_filename((char *)name);
    FREE(full, f);
    *n = size < HEADER ? (size_t)size : HEADER;
    if (rc == SQLITE_OK)
        return true;
    int why = vfs_cause(rc);
    return err_set(e, ERR_DB, "cannot read %s: %s", path, why ? strerror(why) : sqlite3_errstr(rc));
}

enum file_owner file_owner(const char *path, struct err *e)
{
    struct stat st;
    unsigned char head[HEADER];
    size_t n;
    if (stat(path, &st) != 0) {
        if (errno == ENOENT)
            return FILE_MISSING;
        return FAILED(FILE_REFUSED, e, ERR_DB, "cannot open %s: %s", path, strerror(errno));
    }
    if (is_unreadable(path, &st, e) || !read_header(path, head, &n, e))
        return FILE_REFUSED;
    bool empty = true, database = n == HEADER && memcmp(head, "SQLite format 3", 16) == 0;
    if (database && big_endian(head + AT_APPLICATION) == PACK_ID)
        return FAILED(FILE_PACK, e, ERR_DB, "%s is a pack, which is only read; expected a session "
                      "log", path);
    if (database ? page_is_ours(head) : n == 0 || has_companion(path))
        return FILE_OURS;
    if (database && page_is_blank(head) &&
        (has_companion(path) || wal_is_ours(path, &empty) || empty))
        return FILE_OURS; /* a log whose creation was interrupted */
    err_set(e, ERR_DB, database ? "%s belongs to another program, it is no session log; expected "
                                  "another file with --db"
                                : "%s is no session log, so it was left as it is; expected another "
                                  "file with --db", path);
    return FILE_FOREIGN;
}

/* ---- creating and renaming ---- */

void time_stamp(char out[16])
{
    time_t now = (time_t)(clock_unix_ms() / 1000);
    struct tm tm;
    localtime_r(&now, &tm);
    strftime(out, 16, "%Y%m%d-%H%M%S", &tm);
}

bool file_make_folder(const char *path, struct err *e)
{
    FREED(free_at) char *copy = xstrdup(path);
    bool ok = true;
    for (char *p = strchr(copy + 1, '/'); ok && p; p = strchr(p + 1, '/')) {
        *p = '\0';
        if (mkdir(copy, 0700) == 0)
            file_sync_folder(copy); /* else a power cut could take the folder with the log */
        else if (errno != EEXIST)
            ok = err_set(e, ERR_DB, "cannot create the folder %s: %s", copy, strerror(errno));
        *p = '/';
    }
    return ok;
}

int file_create(const char *path, struct err *e)
{
    int fd = file_open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (fd < 0 && errno == EEXIST && file_missing(path))
        err_set(e, ERR_DB, "cannot create %s: it is a link to a file that is not there", path);
    else if (fd < 0)
        err_set(e, ERR_DB, "cannot create %s: %s", path, strerror(errno));
    return fd;
}

/* Renames without replacing a file; -1 and errno (EEXIST). */
static int rename_to_new(const char *from, const char *to)
{
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0)
        return 0;
    if (errno != EINVAL && errno != ENOSYS) /* both: the file system cannot do it in one step */
        return -1;
    if (!file_missing(to)) {
        errno = EEXIST;
        return -1;
    }
    return rename(from, to);
}

int file_begin(const char *path, char **part, struct err *e)
{
    static const char *const tails[] = {"", "-wal", "-shm", "-journal"};
    *part = NULL;
    if (access(path, F_OK) == 0)
        return FAILED(-1, e, ERR_DB, "%s exists; expected the name of a new file", path);
    *part = xasprintf("%s.part", path);
    for (int i = 0; i < 4; i++) { /* of a process that was interrupted */
        FREED(free_at) char *name = xasprintf("%s%s", *part, tails[i]);
        unlink(name);
    }
    return file_create(*part, e);
}

bool file_complete(int fd, bool ok, char *part, const char *path, struct err *e)
{
    if (ok && (fsync(fd) != 0 || rename_to_new(part, path) != 0))
        ok = err_set(e, ERR_DB, "cannot write %s: %s", path, strerror(errno));
    if (!ok && fd >= 0)
        unlink(part);
    if (fd >= 0)
        close(fd);
    if (ok)
        file_sync_folder(path);
    free(part);
    return ok;
}

/* Renames without replacing a file: if the name exists, "-1", "-2", ... is appended. */
static bool rename_to_free_name(const char *from, char **to)
{
    char *base = *to;
    for (int i = 0; i < 100; i++) {
        char *name = i ? xasprintf("%s-%d", base, i) : xstrdup(base);
        if (rename_to_new(from, name) == 0) {
            free(base);
            *to = name;
            return true;
        }
        free(name);
        if (errno != EEXIST)
            return false;
    }
    return false;
}

bool file_rename_damaged(const char *path, char **to, struct err *e)
{
    char stamp[16];
    time_stamp(stamp);
    *to = xasprintf("%s.corrupt-%s", path, stamp);
    if (!rename_to_free_name(path, to)) {
        err_set(e, ERR_DB, "%s is damaged and cannot be renamed to %s: %s", path, *to,
                strerror(errno));
        DROP(*to);
        return false;
    }
    static const char *const tails[] = {"-wal", "-shm", "-journal"};
    for (int i = 0; i < 3; i++) {
        char *from = xasprintf("%s%s", path, tails[i]), *name = xasprintf("%s%s", *to, tails[i]);
        if (!file_missing(from))
            rename_to_free_name(from, &name); /* best effort: the database itself is what matters */
        FREE(from, name);
    }
    return true;
}

void file_sync_folder(const char *path)
{
    FREED(free_at) char *folder = path_folder(path);
    int fd = file_open(folder, O_RDONLY | O_DIRECTORY, 0);
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
}
