/* hooked_aerie.c - the program with some functions of the C library replaced, so that tests decide
 * when it dies and what time it is. A shared library (SQLite) finds the same functions.
 *
 * KILL_AT=n: the process kills itself before its n-th change of a file or write to a pipe. At its
 * end it writes the number of changes to descriptor 3, if that was open at the start; the program
 * cannot close it. SYNC_MS=n: each sync of a file takes n milliseconds.
 * CLOCK_JUMPS="MS:S MS:S ...": MS milliseconds after the start the wall clock shows the true time
 * plus S seconds; with "=" before S, it shows S seconds since 1970. The monotonic clock is as the
 * kernel's.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#ifndef __clang__ /* which has no such warning */
#pragma GCC diagnostic ignored "-Wnonnull-compare"
#endif

/* ---- dying, and slow disks ---- */

static atomic_long changes;
static long kill_at, sync_ms;
static pid_t self;
static int count_fd = -1;

static void tell(void)
{
    if (getpid() == self && count_fd >= 0)
        dprintf(count_fd, "%ld\n", atomic_load(&changes));
}

int close(int fd)
{
    return fd == count_fd && fd >= 0 ? 0 : (int)syscall(SYS_close, fd);
}

static void change(void)
{
    if (atomic_fetch_add(&changes, 1) + 1 == kill_at)
        syscall(SYS_kill, getpid(), SIGKILL);
}

ssize_t write(int fd, const void *p, size_t n)
{
    change();
    return syscall(SYS_write, fd, p, n);
}

ssize_t pwrite(int fd, const void *p, size_t n, off_t at)
{
    change();
    return syscall(SYS_pwrite64, fd, p, n, at);
}

ssize_t pwrite64(int fd, const void *p, size_t n, off64_t at)
{
    change();
    return syscall(SYS_pwrite64, fd, p, n, at);
}

/* The time that a disk takes, before the sync itself. */
static void sync_slowly(void)
{
    struct timespec t = {sync_ms / 1000, sync_ms % 1000 * 1000000};
    while (sync_ms && nanosleep(&t, &t) != 0)
        ;
}

int fsync(int fd)
{
    change();
    sync_slowly();
    return (int)syscall(SYS_fsync, fd);
}

int fdatasync(int fd)
{
    change();
    sync_slowly();
    return (int)syscall(SYS_fdatasync, fd);
}

int ftruncate64(int fd, off64_t n)
{
    change();
    return (int)syscall(SYS_ftruncate, fd, n);
}

int unlink(const char *path)
{
    change();
    return (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}

int rename(const char *from, const char *to)
{
    change();
    return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

int renameat2(int a, const char *from, int b, const char *to, unsigned flags)
{
    change();
    return (int)syscall(SYS_renameat2, a, from, b, to, flags);
}

int mkdir(const char *path, mode_t mode)
{
    change();
    return (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}

/* ---- the time ---- */

static struct jump {
    int64_t ms, s;
    bool absolute;
} jumps[16];
static int n_jumps;
static int64_t start_ns;

static int64_t kernel_ns(clockid_t id)
{
    struct timespec t;
    syscall(SYS_clock_gettime, id, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static int64_t wall_ns(void)
{
    int64_t now = kernel_ns(CLOCK_REALTIME), since = kernel_ns(CLOCK_MONOTONIC) - start_ns;
    int64_t out = now;
    for (int i = 0; i < n_jumps && jumps[i].ms * 1000000 <= since; i++)
        out = jumps[i].s * INT64_C(1000000000) + (jumps[i].absolute ? since - jumps[i].ms * 1000000
                                                  : now);
    return out;
}

int clock_gettime(clockid_t id, struct timespec *t)
{
    int64_t ns;
    if (id != CLOCK_REALTIME && id != CLOCK_REALTIME_COARSE)
        return (int)syscall(SYS_clock_gettime, id, t);
    ns = wall_ns();
    *t = (struct timespec){ns / 1000000000, ns % 1000000000};
    return 0;
}

time_t time(time_t *out)
{
    time_t s = wall_ns() / 1000000000;
    if (out)
        *out = s;
    return s;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone)
{
    int64_t ns = wall_ns();
    (void)zone;
    *t = (struct timeval){ns / 1000000000, ns % 1000000000 / 1000};
    return 0;
}

__attribute__((constructor)) static void begin(void)
{
    const char *at = getenv("KILL_AT"), *p = getenv("CLOCK_JUMPS"), *sync = getenv("SYNC_MS");
    self = getpid();
    count_fd = fcntl(3, F_GETFD) >= 0 ? 3 : -1;
    sync_ms = sync ? atol(sync) : 0;
    kill_at = at ? atol(at) : 0;
    start_ns = kernel_ns(CLOCK_MONOTONIC);
    for (int used; p && n_jumps < 16; p += used, n_jumps++) {
        struct jump *j = &jumps[n_jumps];
        long long ms, s;
        used = 0;
        if (sscanf(p, " %lld:=%lld%n", &ms, &s, &used) == 2 && used)
            j->absolute = true;
        else if (sscanf(p, " %lld:%lld%n", &ms, &s, &used) != 2 || !used)
            break;
        j->ms = ms, j->s = s;
    }
    atexit(tell);
}
