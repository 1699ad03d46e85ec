/* scratch.h - a folder of a test's own, with all that a log leaves beside itself, below TMPDIR, in
 * which tests/run.sh looks for what a test left behind. */
#pragma once

#include "kernels/base.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* The path of a new folder; free it by scratch_remove(). Without TMPDIR it is in memory if that is
 * possible. */
static inline char *scratch_folder(void)
{
    const char *tmp = getenv("TMPDIR"), *other = access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm";
    char *path = xasprintf("%s/aerie-XXXXXX", tmp && *tmp ? tmp : other);
    CHECK(mkdtemp(path));
    return path;
}

static inline int scratch_remove_one(const char *path, const struct stat *st, int type,
                                     struct FTW *f)
{
    (void)st, (void)type, (void)f;
    return remove(path);
}

static inline void scratch_drop(const char *folder) /* without freeing its path */
{
    CHECK(nftw(folder, scratch_remove_one, 16, FTW_DEPTH | FTW_PHYS) == 0);
}

static inline void scratch_empty(const char *folder) /* removes all in it */
{
    scratch_drop(folder);
    CHECK(mkdir(folder, 0700) == 0);
}

static inline void scratch_remove(char *folder)
{
    scratch_drop(folder);
    free(folder);
}
