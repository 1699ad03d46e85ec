/* disk_kit.h - a simulated disk: an SQLite VFS that fails on demand, and that can write out the
 * files as a power cut might leave them.
 */
#pragma once

#include "tests/history_kit.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <sqlite3.h>
#include <sys/stat.h>

enum { SECTOR = 512, MAX_DISK_FILES = 24 };

/* A file: its synced content, and the writes since its last sync. */
struct disk_file {
    char name[200];
    enum {
        THERE,
        UNLINKED, /* deleted, but the folder is not synced: a power cut may bring the file back */
        GONE,
    } state;
    bool synced;
    struct buf safe;
    struct late {
        sqlite3_int64 at;
        struct buf bytes; /* no bytes: truncation to `at` */
    } * late;
    int n_late;
};

static struct {
    pthread_mutex_t mu;
    bool track;
    long op, fail_at; /* the fail_at-th change of a file fails; 0: none */
    long first, step, last;     /* before each of these changes, cut_power(PREFIXn); step 0:
                                   never */
    const char *prefix;
    void (*on_cut)(long n);     /* called before; may be NULL */
    enum disk_op {
        REFUSE_NONE,
        REFUSE_READ,
        REFUSE_WRITE,
        REFUSE_TRUNCATE,
        REFUSE_SYNC,
        REFUSE_SIZE,
        REFUSE_LOCK, /* SQLite reports this and the next as SQLITE_BUSY */
        REFUSE_SHM_LOCK,
        REFUSE_SHM_MAP,
        REFUSE_DELETE,
        REFUSE_OPEN,
    } refused;                  /* every such operation fails */
    int refused_with;           /* errno */
    bool no_wal;                /* as on a file system without shared memory */
    uint64_t dice;              /* random numbers: which unsynced writes survive a power cut */
    struct disk_file file[MAX_DISK_FILES];
    int n_files;
} disk = {.mu = PTHREAD_MUTEX_INITIALIZER, .dice = 1};

struct shim_file {
    sqlite3_file base;
    struct disk_file *disk;
    sqlite3_file *real;
};

static sqlite3_file *real_of(sqlite3_file *f)
{
    return ((struct shim_file *)f)->real;
}

KIT void cut_power(const char *folder);

KIT void cut_number(long n)
{
    char folder[300];
    snprintf(folder, sizeof folder, "%s%ld", disk.prefix, n);
    if (disk.on_cut)
        disk.on_cut(n);
    cut_power(folder);
}

KIT bool disk_fails(void)
{
    pthread_mutex_lock(&disk.mu);
    long n = ++disk.op;
    pthread_mutex_unlock(&disk.mu);
    if (disk.step && n >= disk.first && n <= disk.last && (n - disk.first) % disk.step == 0)
        cut_number(n);
    return n == disk.fail_at;
}

static bool refuses(enum disk_op op)
{
    if (disk.refused != op)
        return false;
    errno = disk.refused_with;
    return true;
}

static bool survives(void)
{
    disk.dice = mix64(disk.dice);
    return disk.dice & 1;
}

static void add_late(struct disk_file *f, sqlite3_int64 at, const void *p, int n)
{
    if (!f || !disk.track)
        return;
    f->late = xrealloc(f->late, (size_t)f->n_late + 1, sizeof *f->late);
    struct late *l = &f->late[f->n_late++];
    *l = (struct late){.at = at};
    buf_add(&l->bytes, p, (size_t)n);
}

static void put(struct buf *b, sqlite3_int64 at, const char *p, size_t n)
{
    while (b->n < (size_t)at + n)
        buf_char(b, 0);
    memcpy(b->p + at, p, n);
}

/* Applies the unsynced writes to `b`: all of them, or a random choice of sectors. */
static void settle(const struct disk_file *f, struct buf *b, bool all)
{
    for (int i = 0; i < f->n_late; i++) {
        const struct late *l = &f->late[i];
        if (!l->bytes.n && (all || survives()) && b->n > (size_t)l->at)
            b->n = (size_t)l->at;
        for (size_t k = 0; k < l->bytes.n; k += SECTOR) {
            size_t n = l->bytes.n - k < SECTOR ? l->bytes.n - k : SECTOR;
            if (all || survives())
                put(b, l->at + (sqlite3_int64)k, l->bytes.p + k, n);
        }
    }
}

KIT void put_file(const char *name, const struct buf *b)
{
    FILE *f = fopen(name, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(b->p, 1, b->n, f), b->n);
    fclose(f);
}

static int shim_close(sqlite3_file *f)
{
    return real_of(f)->pMethods->xClose(real_of(f));
}
static int shim_read(sqlite3_file *f, void *p, int n, sqlite3_int64 at)
{
    if (refuses(REFUSE_READ))
        return SQLITE_IOERR_READ;
    return real_of(f)->pMethods->xRead(real_of(f), p, n, at);
}
static int shim_write(sqlite3_file *f, const void *p, int n, sqlite3_int64 at)
{
    if (disk_fails() || refuses(REFUSE_WRITE))
        return SQLITE_IOERR_WRITE;
    pthread_mutex_lock(&disk.mu);
    add_late(((struct shim_file *)f)->disk, at, p, n);
    pthread_mutex_unlock(&disk.mu);
    return real_of(f)->pMethods->xWrite(real_of(f), p, n, at);
}
static int shim_truncate(sqlite3_file *f, sqlite3_int64 n)
{
    if (disk_fails() || refuses(REFUSE_TRUNCATE))
        return SQLITE_IOERR_TRUNCATE;
    pthread_mutex_lock(&disk.mu);
    add_late(((struct shim_file *)f)->disk, n, "", 0);
    pthread_mutex_unlock(&disk.mu);
    return real_of(f)->pMethods->xTruncate(real_of(f), n);
}
static int shim_sync(sqlite3_file *f, int flags)
{
    (void)flags;
    if (disk_fails() || refuses(REFUSE_SYNC))
        return SQLITE_IOERR_FSYNC;
    struct disk_file *d = ((struct shim_file *)f)->disk;
    pthread_mutex_lock(&disk.mu);
    if (d && disk.track) {
        bool fresh = !d->synced; /* SQLite's own VFS syncs the folder with the first sync of a new
                                    file */
        for (int i = 0; fresh && i < disk.n_files; i++)
            if (disk.file[i].state == UNLINKED)
                disk.file[i].state = GONE;
        d->synced = true;
        settle(d, &d->safe, true);
        for (int i = 0; i < d->n_late; i++)
            buf_free(&d->late[i].bytes);
        d->n_late = 0;
    }
    pthread_mutex_unlock(&disk.mu);
    return SQLITE_OK;
}
static int shim_size(sqlite3_file *f, sqlite3_int64 *n)
{
    return refuses(REFUSE_SIZE) ? SQLITE_IOERR_FSTAT
                                : real_of(f)->pMethods->xFileSize(real_of(f), n);
}
static int shim_lock(sqlite3_file *f, int l)
{
    if (refuses(REFUSE_LOCK))
        return SQLITE_BUSY;
    return real_of(f)->pMethods->xLock(real_of(f), l);
}
static int shim_unlock(sqlite3_file *f, int l)
{
    return real_of(f)->pMethods->xUnlock(real_of(f), l);
}
static int shim_reserved(sqlite3_file *f, int *out)
{
    return real_of(f)->pMethods->xCheckReservedLock(real_of(f), out);
}
static int shim_control(sqlite3_file *f, int op, void *arg)
{
    return real_of(f)->pMethods->xFileControl(real_of(f), op, arg);
}
static int shim_sector(sqlite3_file *f)
{
    (void)f;
    return SECTOR;
}
static int shim_traits(sqlite3_file *f)
{
    (void)f;
    return 0; /* no promise of atomic writes */
}
static int shim_map(sqlite3_file *f, int i, int n, int extend, void volatile **p)
{
    return refuses(REFUSE_SHM_MAP) ? SQLITE_IOERR_SHMMAP
                                   : real_of(f)->pMethods->xShmMap(real_of(f), i, n, extend, p);
}
static int shim_shm_lock(sqlite3_file *f, int at, int n, int flags)
{
    if (!(flags & SQLITE_SHM_UNLOCK) && refuses(REFUSE_SHM_LOCK))
        return SQLITE_BUSY;
    return real_of(f)->pMethods->xShmLock(real_of(f), at, n, flags);
}
static void shim_barrier(sqlite3_file *f)
{
    real_of(f)->pMethods->xShmBarrier(real_of(f));
}
static int shim_unmap(sqlite3_file *f, int del)
{
    return real_of(f)->pMethods->xShmUnmap(real_of(f), del);
}

static const sqlite3_io_methods shim_methods = {.iVersion = 2,
                                                .xClose = shim_close,
                                                .xRead = shim_read,
                                                .xWrite = shim_write,
                                                .xTruncate = shim_truncate,
                                                .xSync = shim_sync,
                                                .xFileSize = shim_size,
                                                .xLock = shim_lock,
                                                .xUnlock = shim_unlock,
                                                .xCheckReservedLock = shim_reserved,
                                                .xFileControl = shim_control,
                                                .xSectorSize = shim_sector,
                                                .xDeviceCharacteristics = shim_traits,
                                                .xShmMap = shim_map,
                                                .xShmLock = shim_shm_lock,
                                                .xShmBarrier = shim_barrier,
                                                .xShmUnmap = shim_unmap};

static sqlite3_io_methods shim_without_wal;
static sqlite3_vfs *real_vfs;

static int shim_delete(sqlite3_vfs *v, const char *name, int sync_folder)
{
    (void)v;
    if (disk_fails() || refuses(REFUSE_DELETE))
        return SQLITE_IOERR_DELETE;
    pthread_mutex_lock(&disk.mu);
    for (int i = 0; i < disk.n_files; i++)
        if (strcmp(disk.file[i].name, name) == 0)
            disk.file[i].state = sync_folder ? GONE : UNLINKED;
    pthread_mutex_unlock(&disk.mu);
    return real_vfs->xDelete(real_vfs, name, sync_folder);
}

static void forget_file(struct disk_file *f)
{
    for (int k = 0; k < f->n_late; k++)
        buf_free(&f->late[k].bytes);
    free(f->late);
    buf_free(&f->safe);
    *f = (struct disk_file){0};
}

static struct disk_file *disk_file_of(const char *name)
{
    struct disk_file *f = NULL;
    for (int i = 0; !f && i < disk.n_files; i++)
        if (strcmp(disk.file[i].name, name) == 0)
            f = &disk.file[i];
    if (f && f->state == THERE)
        return f;
    if (f)
        forget_file(f);
    else
        f = &disk.file[disk.n_files++];
    assert_true(disk.n_files < MAX_DISK_FILES);
    snprintf(f->name, sizeof f->name, "%s", name);
    f->synced = access(name, F_OK) == 0;
    if (f->synced) /* the content before this open is on the disk */
        buf_read_file(&f->safe, name, 64 << 20, NULL);
    return f;
}

static int shim_open(sqlite3_vfs *v, sqlite3_filename name, sqlite3_file *f, int flags, int *out)
{
    struct shim_file *s = (struct shim_file *)f;
    (void)v;
    s->base.pMethods = NULL;
    if (refuses(REFUSE_OPEN))
        return SQLITE_CANTOPEN;
    s->real = (sqlite3_file *)(s + 1);
    s->disk = name && disk.track ? disk_file_of(name) : NULL;
    int rc = real_vfs->xOpen(real_vfs, name, s->real, flags, out);
    if (!rc)
        s->base.pMethods = disk.no_wal ? &shim_without_wal : &shim_methods;
    return rc;
}

KIT void shim_install(void)
{
    static sqlite3_vfs shim;
    real_vfs = sqlite3_vfs_find(NULL);
    shim = *real_vfs;
    shim.zName = "shim";
    shim.szOsFile += (int)sizeof(struct shim_file);
    shim.xOpen = shim_open;
    shim.xDelete = shim_delete;
    shim_without_wal = shim_methods;
    shim_without_wal.iVersion = 1;
    disk.op = disk.fail_at = disk.step = disk.n_files = 0;
    assert_int_equal(sqlite3_vfs_register(&shim, 1), SQLITE_OK);
}

KIT void shim_remove(void)
{
    sqlite3_vfs_unregister(sqlite3_vfs_find("shim"));
    for (int i = 0; i < disk.n_files; i++)
        forget_file(&disk.file[i]);
    disk.track = false;
    disk.fail_at = disk.step = disk.n_files = 0;
    disk.refused = REFUSE_NONE;
}

/* Writes to a new folder the files that the disk might hold if the power failed now: of files that
 * SQLite wrote, the synced content and some of the unsynced writes; other files of the same folder
 * completely. */
KIT void cut_power(const char *folder)
{
    char name[600], beside[200] = "";
    assert_int_equal(mkdir(folder, 0700), 0);
    pthread_mutex_lock(&disk.mu);
    for (int i = 0; i < disk.n_files; i++) {
        const struct disk_file *d = &disk.file[i];
        struct buf b = {0};
        snprintf(beside, sizeof beside, "%.*s", (int)(strrchr(d->name, '/') - d->name), d->name);
        if (d->state == GONE || (d->state == UNLINKED && !survives()) ||
            (d->state == THERE && access(d->name, F_OK) != 0))
            continue; /* gone, or (access() fails) renamed or removed by aerie itself */
        buf_add(&b, d->safe.p, d->safe.n);
        settle(d, &b, false);
        snprintf(name, sizeof name, "%s/%s", folder, strrchr(d->name, '/') + 1);
        put_file(name, &b);
        buf_free(&b);
    }
    DIR *dir = *beside ? opendir(beside) : NULL;
    for (struct dirent *x; dir && (x = readdir(dir));) {
        struct buf b = {0};
        snprintf(name, sizeof name, "%s/%s", beside, x->d_name);
        bool known = *x->d_name == '.' || strstr(x->d_name, "-shm");
        for (int i = 0; i < disk.n_files; i++)
            known |= strcmp(disk.file[i].name, name) == 0;
        if (known || !buf_read_file(&b, name, 64 << 20, NULL))
            continue;
        snprintf(name, sizeof name, "%s/%s", folder, x->d_name);
        put_file(name, &b);
        buf_free(&b);
    }
    if (dir)
        closedir(dir);
    pthread_mutex_unlock(&disk.mu);
}
