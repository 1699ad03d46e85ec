/* scratch.h - a folder of a test's own, with all that a log leaves beside itself, below TMPDIR, in
 * which tests/run.sh looks for what a test left behind. */
#pragma once

#include "kernels/base.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>

/* The path of a new folder; free it by scratch_remove(). */
static inline char *scratch_folder(void)
{
    const char *tmp = getenv("TMPDIR");
    char *path = xasprintf("%s/aerie-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    CHECK(mkdtemp(path));
    return path;
}

static inline int scratch_remove_one(const char *path, const struct stat *st, int type,
                                     struct FTW *f)
{
    (void)st, (void)type, (void)f;
    return remove(path);
}

static inline void scratch_remove(char *folder)
{
    CHECK(nftw(folder, scratch_remove_one, 16, FTW_DEPTH | FTW_PHYS) == 0);
    free(folder);
}
