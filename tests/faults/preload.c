/* preload.c - loaded into the program under test with LD_PRELOAD: counts its allocations and fails
 * one.
 *
 * An allocation is a call of malloc(), calloc(), realloc(), aligned_alloc(), posix_memalign() or
 * memalign() by the program, by a library of its or by the C library itself. Counting begins when
 * all libraries are loaded, and stays off in programs that the program starts. trace.c learns of
 * that moment from a call of prctl() that the kernel refuses.
 *
 * With FORKED, each allocation fails once, in a process that is forked just before it and has no
 * other thread. Most such processes end at once with "out of memory"; the program's earlier states
 * do not matter then. If a process goes on (it allocates again, takes long, or ends in another
 * way), it is killed and the number of its allocation is listed: that allocation has to fail in a
 * run of its own.
 */
#include "tests/faults/shared.h"

#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static struct faults_page *page;

__attribute__((constructor)) static void begin(void)
{
    const char *name = getenv(FAULTS_PAGE);
    int fd = name ? open(name, O_RDWR | O_CLOEXEC) : -1;
    void *p = fd >= 0 ? mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
                      : MAP_FAILED;
    if (fd >= 0)
        close(fd);
    if (p == MAP_FAILED)
        return;
    void *first[2]; /* backtrace() loads a library at its first call: here, where allocations are
                       not counted */
    backtrace(first, 2);
    unsetenv("LD_PRELOAD");
    unsetenv(FAULTS_PAGE);
    page = p;
    prctl(FAULTS_MARK, 0, 0, 0, 0);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

static bool failed_here; /* in a forked process */

extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t n);
extern void *__libc_memalign(size_t align, size_t n);

/* Whether a forked process, whose message comes through `from`, ended with status 2 and one line
 * "out of memory". */
static bool ended_well(pid_t pid, int from)
{
    static const char head[] = "aerie: out of memory (", tail[] = ")\n";
    char said[512];
    size_t n = 0;
    ssize_t k = 0;
    int status = 0;
    struct pollfd p = {.fd = from, .events = POLLIN};
    for (int r; n < sizeof said - 1; n += (size_t)k) {
        while ((r = poll(&p, 1, 5000)) < 0 && errno == EINTR)
            ;
        if (r != 1)
            kill(pid, SIGKILL);
        while ((k = read(from, said + n, sizeof said - 1 - n)) < 0 && errno == EINTR)
            ;
        if (k <= 0)
            break;
    }
    said[n] = '\0';
    if (k > 0)
        kill(pid, SIGKILL);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return WIFEXITED(status) && WEXITSTATUS(status) == 2 && strncmp(said, head, sizeof head - 1) ==
           0 &&
           strchr(said, '\n') == said + n - 1 && strcmp(said + n - (sizeof tail - 1), tail) == 0;
}

/* True in the process where the allocation is to fail. */
static bool fails_in_fork(long n)
{
    int end[2] = {-1, -1}, keep = errno;
    bool ok = pipe2(end, O_CLOEXEC) == 0;
    pid_t pid = ok ? _Fork() : -1;
    if (pid == 0) {
        struct rlimit none = {0, 0};
        int null = open("/dev/null", O_RDWR | O_CLOEXEC); /* the program closes what it inherits */
        dup2(null, 0), dup2(null, 1), dup2(end[1], 2);
        close(end[0]), close(end[1]), close(null);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        setrlimit(RLIMIT_FSIZE, &none);
        failed_here = true;
        errno = ENOMEM;
        return true;
    }
    close(end[1]);
    if (pid > 0 && ended_well(pid, end[0])) {
        atomic_fetch_add(&page->ended, 1);
    } else {
        long i = atomic_fetch_add(&page->n_other, 1);
        if (i < FAULTS_LISTED)
            page->other[i] = n;
    }
    close(end[0]);
    errno = keep;
    return false;
}

static bool fails(void)
{
    static _Thread_local bool inside __attribute__((tls_model("initial-exec")));
    if (!page || inside)
        return false;
    if (failed_here)
        _exit(77);
    long n = atomic_fetch_add(&page->allocs, 1) + 1;
    if (page->forks) {
        inside = true;
        bool here = fails_in_fork(n);
        inside = false;
        return here;
    }
    if (page->fail == 0 || n < page->fail || (n > page->fail && !page->and_later))
        return false;
    if (atomic_exchange(&page->fired, 1) == 0) {
        void *at[FAULTS_FRAMES];
        inside = true;
        page->n_frame = backtrace(at, FAULTS_FRAMES);
        inside = false;
        for (int i = 0; i < page->n_frame; i++)
            page->frame[i] = (unsigned long)(uintptr_t)at[i];
    }
    errno = ENOMEM;
    return true;
}

void *malloc(size_t n) { return fails() ? NULL : __libc_malloc(n); }
void *calloc(size_t n, size_t size) { return fails() ? NULL : __libc_calloc(n, size); }
void *realloc(void *p, size_t n) { return fails() ? NULL : __libc_realloc(p, n); }
void *memalign(size_t align, size_t n) { return fails() ? NULL : __libc_memalign(align, n); }
void *aligned_alloc(size_t align, size_t n) { return fails() ? NULL : __libc_memalign(align, n); }

int posix_memalign(void **out, size_t align, size_t n)
{
    void *p = fails() ? NULL : __libc_memalign(align, n);
    if (p)
        *out = p;
    return p ? 0 : ENOMEM;
}

#endif
