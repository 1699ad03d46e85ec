/* shim.c - loaded into the programs of a soak with LD_PRELOAD: a wall clock that runs faster, and
 * leaks on purpose.
 *
 * AERIE_SOAK_CLOCK names a file of 8 bytes, the nanoseconds by which the wall clock is ahead.
 * Monotonic time is unchanged, because waits use it. AERIE_SOAK_LEAK=memory, descriptors or threads
 * leaks some at every sync of a file, to show that the soak finds a leak. AERIE_SOAK_HEAP names a
 * file of three 64-bit numbers, written before each wait for input: the bytes of the heap that are
 * in use, those that the allocator holds, and those in use that are SQLite's.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
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
static volatile int64_t *heap;
static pid_t of; /* the process whose heap is measured: not its monitor */
static char leak;

static void *map_file(const char *path, int access, int protection, size_t size)
{
    int fd = path ? open(path, access | O_CLOEXEC) : -1;
    void *p = fd >= 0 ? mmap(NULL, size, protection, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (fd >= 0)
        close(fd);
    return p == MAP_FAILED ? NULL : p;
}

__attribute__((constructor)) static void begin(void)
{
    const char *what = getenv("AERIE_SOAK_LEAK");
    ahead = map_file(getenv("AERIE_SOAK_CLOCK"), O_RDONLY, PROT_READ, sizeof *ahead);
    heap = map_file(getenv("AERIE_SOAK_HEAP"), O_RDWR, PROT_READ | PROT_WRITE, 3 * sizeof *heap);
    of = getpid();
    leak = what ? what[0] : 0;
}

int poll(struct pollfd *fd, nfds_t n, int ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
    if (heap && ms != 0 && getpid() == of) {
        struct mallinfo2 m = mallinfo2();
        int64_t (*sqlite)(void) = (int64_t(*)(void))dlsym(RTLD_DEFAULT, "sqlite3_memory_used");
        heap[0] = (int64_t)(m.uordblks + m.hblkhd);
        heap[2] = sqlite ? sqlite() : 0;
        heap[1] = (int64_t)(m.arena + m.hblkhd);
    }
    return ppoll(fd, n, ms < 0 ? NULL : &t, NULL);
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
    static char *volatile lost; /* volatile: else the compiler omits the allocation */
    pthread_t thread;
    if (leak == 'm' && (lost = malloc(BYTES)) != NULL)
        memset(lost, 1, BYTES);
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
