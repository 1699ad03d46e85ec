/* fuzz.h - what the targets of fuzzing share (tests/fuzz/README.md).
 *
 * A target is a file fuzz_NAME.c with libFuzzer's function LLVMFuzzerTestOneInput() and the number
 * of mutations that `make test` feeds it. It keeps nothing between two inputs that a result could
 * depend on, frees what it allocates, and aborts where a property does not hold (CHECK). Bytes that
 * choose among variants are the last ones of an input, so that a recorded file is an input as it
 * stands. One thread.
 */
#pragma once

#include "kernels/base.h"
#include "kernels/utf8.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
extern const int fuzz_inputs;

#define KIT static __attribute__((unused))

/* Takes the last byte off the input; 0 where there is none. */
KIT unsigned fuzz_choice(const uint8_t *data, size_t *n)
{
    return *n ? data[--*n] : 0;
}

/* A copy that ends where its memory ends, so that a read beyond it is seen. It lives until the next
 * call: no memory is allocated for it, which an address sanitizer does slowly. */
KIT char *fuzz_tail(const void *p, size_t n)
{
    static char *room;
    static size_t size;
    if (n > size || !room) {
        free(room);
        room = xmalloc(size = n + 4096);
    }
    char *to = room + size - n;
    if (n)
        memcpy(to, p, n);
    return to;
}

/* A copy with a NUL behind it, cut at the first NUL; the caller frees. */
KIT char *fuzz_string(const void *p, size_t n)
{
    n = n ? strnlen(p, n) : 0;
    char *s = xmalloc(n + 1);
    if (n)
        memcpy(s, p, n);
    s[n] = '\0';
    return s;
}

/* A message for people: one line, which ends within its buffer. */
KIT void fuzz_message(const struct err *e)
{
    CHECK(e->kind != ERR_NONE);
    CHECK(memchr(e->msg, '\0', sizeof e->msg));
    CHECK(e->msg[0]);
}

/* ---- files in memory ------------------------------------------------------------------------- */

struct fuzz_file {
    int fd; /* 0: not made yet */
    char path[40];
};

/* Puts n bytes into a file that only exists in memory, and which f->path opens. */
KIT const char *fuzz_file(struct fuzz_file *f, const void *p, size_t n)
{
    if (!f->fd) {
        f->fd = memfd_create("fuzz", MFD_CLOEXEC);
        CHECK(f->fd > 0);
        snprintf(f->path, sizeof f->path, "/proc/self/fd/%d", f->fd);
    }
    CHECK(ftruncate(f->fd, 0) == 0 && pwrite(f->fd, p, n, 0) == (ssize_t)n);
    return f->path;
}

static char fuzz_folder_path[64];

KIT int fuzz_remove(const char *path, const struct stat *st, int type, struct FTW *f)
{
    (void)st, (void)type, (void)f;
    return remove(path);
}

KIT void fuzz_remove_folder(void)
{
    nftw(fuzz_folder_path, fuzz_remove, 16, FTW_DEPTH | FTW_PHYS);
}

/* A folder in memory, where there is some, that is removed at the end of the process. */
KIT const char *fuzz_folder(void)
{
    char *path = fuzz_folder_path;
    if (!path[0]) {
        snprintf(path, sizeof fuzz_folder_path, "%s/aerie-fuzz-XXXXXX",
                 access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
        CHECK(mkdtemp(path));
        atexit(fuzz_remove_folder);
    }
    return path;
}

/* ---- properties of text for a terminal ------------------------------------------------------- */

/* Valid UTF-8 without control characters (line ends apart), and without bidirectional controls. */
KIT void fuzz_clean(const char *s, size_t n, bool lines)
{
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        size_t k = utf8_char(s + i, n - i, &cp);
        CHECK(k > 0);
        CHECK((cp >= 0x20 && cp != 0x7F && !(cp >= 0x80 && cp < 0xA0)) || (lines && cp == '\n'));
        CHECK(!(cp >= 0x202A && cp <= 0x202E) && !(cp >= 0x2066 && cp <= 0x2069) && cp != 0x200E &&
              cp != 0x200F);
        CHECK(!(cp >= 0xE0000 && cp <= 0xE007F) && cp != 0x2028 && cp != 0x2029);
        i += k;
    }
}
