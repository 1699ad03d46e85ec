/* shim.c - loaded into the programs of a soak with LD_PRELOAD: a wall clock that runs faster, and leaks on purpose.
 *
 * AERIE_SOAK_CLOCK names a file of 8 bytes, the nanoseconds by which the wall clock is ahead. Monotonic time is the
 * kernel's, because waits end by it. AERIE_SOAK_LEAK=memory, descriptors or threads loses some at every sync of a file,
 * so that it can be seen that the soak finds it.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *ahead;
static char leak;

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("AERIE_SOAK_CLOCK"), *what = getenv("AERIE_SOAK_LEAK");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        void *p = mmap(NULL, sizeof *ahead, PROT_READ, MAP_SHARED, fd, 0);
        ahead = p == MAP_FAILED ? NULL : p;
        close(fd);
    }
    leak = what ? what[0] : 0;
}

int clock_gettime(clockid_t clock, struct timespec *t)
{
    int rc = (int)syscall(SYS_clock_gettime, clock, t);
    if (rc == 0 && ahead && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t ns = t->tv_nsec + *ahead % 1000000000;
        t->tv_sec += *ahead / 1000000000 + ns / 1000000000;
        t->tv_nsec = ns % 1000000000;
    }
    return rc;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    int rc = clock_gettime(CLOCK_REALTIME, &now);
    *t = (struct timeval){now.tv_sec, now.tv_nsec / 1000};
    return rc;
}

time_t time(time_t *t)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (t)
        *t = now.tv_sec;
    return now.tv_sec;
}

static void *sleep_for_ever(void *arg)
{
    for (;;)
        pause();
    return arg;
}

static void lose(void)
{
    enum { BYTES = 524288 };
    pthread_t thread;
    char *p;
    if (leak == 'm' && (p = malloc(BYTES)) != NULL)
        memset(p, 1, BYTES);
    if (leak == 'd' && dup(0) < 0)
        leak = 0;
    if (leak == 't' && pthread_create(&thread, NULL, sleep_for_ever, NULL) != 0)
        leak = 0;
}

int fdatasync(int fd)
{
    lose();
    return (int)syscall(SYS_fdatasync, fd);
}

int fsync(int fd)
{
    lose();
    return (int)syscall(SYS_fsync, fd);
}
