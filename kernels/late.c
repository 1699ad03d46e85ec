/* late.c - see late.h. */
#include "kernels/late.h"

#include <dlfcn.h>

bool late_load(const char *file, const char *const *name, void *call, int n, struct err *e)
{
    void *library = dlopen(file, RTLD_LAZY | RTLD_LOCAL);
    if (!library)
        return err_set(e, ERR_USAGE, "cannot load a library: %s", dlerror());
    for (int i = 0; i < n; i++) {
        void *at = dlsym(library, name[i]);
        if (!at)
            return err_set(e, ERR_USAGE, "%s has no function %s; expected a newer one", file,
                           name[i]);
        memcpy((char *)call + (size_t)i * sizeof at, &at, sizeof at);
    }
    return true;
}
