/* mapped.c - see mapped.h. */
#include "kernels/mapped.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

/* Entries are never freed, because a handler may read the list at any time: a closed one is used
 * again. */
struct mapped {
    struct mapped *next;
    _Atomic uintptr_t base; /* 0: closed */
    _Atomic size_t size;
    atomic_bool lost; /* a read failed, and zeros were put there */
    int fd;
    char *path;
    struct stat was;
};

static struct mapped *_Atomic list;
static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER; /* the entries, but for handlers */

/* ---- signals ---- */

static struct sigaction before; /* the disposition before mapped_catch() */
static uintptr_t page;          /* bytes of one */

bool mapped_fault(int sig, const siginfo_t *info)
{
    uintptr_t at = (uintptr_t)info->si_addr;
    if (sig != SIGBUS || info->si_code != BUS_ADRERR)
        return false;
    for (struct mapped *m = atomic_load(&list); m; m = m->next) {
        uintptr_t base = atomic_load(&m->base);
        size_t size = atomic_load(&m->size);
        if (!base || at < base || at - base >= size)
            continue;
        int keep = errno;
        uintptr_t from = base + ((at - base) & ~(page - 1));
        void *p = mmap((void *)from, base + size - from, PROT_READ, /* raw system calls only */
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        errno = keep;
        atomic_store(&m->lost, true);
        return p != MAP_FAILED;
    }
    return false;
}

static void on_signal(int sig, siginfo_t *info, void *context)
{
    if (mapped_fault(sig, info))
        return;
    if ((before.sa_flags & SA_SIGINFO) && before.sa_sigaction) {
        before.sa_sigaction(sig, info, context);
        return;
    }
    sigaction(sig, &before, NULL);
    /* sent by a process: raise it again; a fault occurs again when the handler returns */
    if (info->si_code <= 0)
        raise(sig);
}

static void catch_once(void)
{
    struct sigaction sa = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigemptyset(&sa.sa_mask);
    page = (uintptr_t)sysconf(_SC_PAGESIZE);
    sigaction(SIGBUS, &sa, &before);
}

void mapped_catch(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, catch_once);
}

/* ---- open and close ---- */

/* A closed entry, or a new one. */
static struct mapped *take_entry(void)
{
    for (struct mapped *m = atomic_load(&list); m; m = m->next)
        if (!atomic_load(&m->base))
            return m;
    struct mapped *m = xcalloc(1, sizeof *m);
    m->next = atomic_load(&list);
    atomic_store(&list, m);
    return m;
}

struct mapped *mapped_open(int fd, const char *path, struct err *e)
{
    struct stat st;
    mapped_catch();
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (own < 0 || fstat(own, &st)) {
        err_set(e, ERR_MODEL, "%s: cannot map: %s", path, strerror(errno));
        if (own >= 0)
            close(own);
        return NULL;
    }
    size_t size = (size_t)st.st_size;
    void *p = mmap(NULL, size, PROT_READ, MAP_SHARED, own, 0);
    if (p == MAP_FAILED) {
        err_set(e, ERR_MODEL, "%s: cannot map: %s", path, strerror(errno));
        close(own);
        return NULL;
    }
    LOCKED(&mu);
    struct mapped *m = take_entry();
    m->fd = own;
    m->path = xstrdup(path);
    m->was = st;
    atomic_store(&m->lost, false);
    atomic_store(&m->size, size);
    atomic_store(&m->base, (uintptr_t)p);
    return m;
}

void mapped_close(struct mapped *m)
{
    if (!m)
        return;
    LOCKED(&mu);
    munmap((void *)atomic_load(&m->base), atomic_load(&m->size));
    close(m->fd);
    free(m->path);
    atomic_store(&m->base, 0);
}

const char *mapped_base(const struct mapped *m)
{
    return (const char *)atomic_load(&m->base);
}

size_t mapped_size(const struct mapped *m)
{
    return atomic_load(&m->size);
}

/* ---- checking ---- */

static bool same_time(const struct timespec *a, const struct timespec *b)
{
    return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

#define WHILE " while its weights were in use (--load copy reads a copy into memory)"

static bool entry_check(const struct mapped *m, struct err *e)
{
    struct stat now;
    if (!atomic_load(&m->base))
        return true;
    if (fstat(m->fd, &now))
        return err_set(e, ERR_MODEL, "%s: %s" WHILE, m->path, strerror(errno));
    if (now.st_size < m->was.st_size)
        return err_set(e, ERR_MODEL, "%s was cut from %lld to %lld bytes" WHILE,
                       m->path, (long long)m->was.st_size, (long long)now.st_size);
    if (now.st_size != m->was.st_size || !same_time(&now.st_mtim, &m->was.st_mtim))
        return err_set(e, ERR_MODEL, "%s was written to" WHILE, m->path);
    if (atomic_load(&m->lost))
        return err_set(e, ERR_MODEL, "%s could not be read" WHILE, m->path);
    return true;
}

bool mapped_check(struct err *e)
{
    bool ok = true;
    if (!atomic_load(&list))
        return true;
    LOCKED(&mu);
    for (const struct mapped *m = atomic_load(&list); m && ok; m = m->next)
        ok = entry_check(m, e);
    return ok;
}

/* ---- trust ---- */

/* File systems whose contents only this machine changes, as statfs() names them. */
static bool is_local(const struct statfs *fs)
{
    static const uint32_t local[] = {
        0xEF53 /* ext2, 3, 4 */, 0x58465342 /* xfs */,    0x9123683E /* btrfs */,
        0x01021994 /* tmpfs */,  0x858458F6 /* ramfs */,  0x794C7630 /* overlay */,
        0xF2F52010 /* f2fs */,   0x2FC12FC1 /* zfs */,    0xCA451A4E /* bcachefs */,
        0x73717368 /* squashfs */, 0xE0F5E1E2 /* erofs */, 0x3153464A /* jfs */,
    };
    return ANY(i, LEN(local), (uint32_t)fs->f_type == local[i]);
}

bool mapped_trusted(int fd, const char **why)
{
    enum { SETTLED = 2 }; /* seconds: coarser than the times of every file system */
    struct statfs fs;
    struct stat st;
    if (fstatfs(fd, &fs) || fstat(fd, &st))
        return *why = "the system does not describe the file", false;
    if (!is_local(&fs))
        return *why = "the file system is not known to be one of this machine alone", false;
    if (st.st_mode & S_IWOTH)
        return *why = "everybody may write to the file", false;
    if (time(NULL) - st.st_mtim.tv_sec < SETTLED)
        return *why = "the file was written to a moment ago", false;
    return *why = NULL, true;
}
