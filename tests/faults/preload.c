/* preload.c - loaded into the program under test with LD_PRELOAD: counts its allocations and fails one.
 *
 * An allocation is a call of malloc(), calloc(), realloc(), aligned_alloc(), posix_memalign() or
 * memalign() by the program, by a library of its or by the C library itself. Counting begins when all
 * libraries are loaded and stays off in programs that the program starts. trace.c learns of that
 * moment from a call of prctl() that the kernel refuses.
 */
#include "tests/faults/shared.h"

#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

static struct faults_page *page;

__attribute__((constructor)) static void begin(void)
{
    const char *name = getenv(FAULTS_PAGE);
    int fd = name ? open(name, O_RDWR | O_CLOEXEC) : -1;
    void *p = fd >= 0 ? mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (fd >= 0)
        close(fd);
    if (p == MAP_FAILED)
        return;
    void *first[2]; /* loads what backtrace() needs, here where allocations are not counted */
    backtrace(first, 2);
    unsetenv("LD_PRELOAD");
    unsetenv(FAULTS_PAGE);
    page = p;
    prctl(FAULTS_MARK, 0, 0, 0, 0);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t n);
extern void *__libc_memalign(size_t align, size_t n);

static bool fails(void)
{
    static _Thread_local bool inside __attribute__((tls_model("initial-exec")));
    if (!page || inside)
        return false;
    long n = atomic_fetch_add(&page->allocs, 1) + 1;
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
