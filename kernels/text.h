/* text.h - texts that are put together in several places. Any thread. */
#pragma once

#include "kernels/base.h"

/* "1 2 4" */
static inline void buf_ints(struct buf *b, const int32_t *v, int n)
{
    for (int i = 0; i < n; i++)
        buf_printf(b, "%s%d", i ? " " : "", v[i]);
}

/* $VARIABLE/aerie/NAME if the variable (XDG_...) holds an absolute path, else
 * $HOME/USUAL/aerie/NAME. The caller frees. NULL: $HOME is no absolute path either. */
static inline char *xdg_path(const char *variable, const char *usual, const char *name)
{
    const char *dir = getenv(variable), *home = getenv("HOME");
    if (dir && *dir == '/')
        return xasprintf("%s/aerie/%s", dir, name);
    return home && *home == '/' ? xasprintf("%s/%s/aerie/%s", home, usual, name) : NULL;
}
