/* codes.c - the choice of GPU code, as the driver makes it. */
#include "kernels/cuda/codes.h"

#include <stdlib.h>
#include <string.h>

/* The word at *at, which then is behind the word. */
static struct cuda_code next_code(const char **at)
{
    char *end;
    struct cuda_code c = {.compute = (int)strtol(*at, &end, 10)};
    size_t n = strcspn(end, " ");
    c.specific = *end == 'a';
    c.ptx = n >= 4 && !memcmp(end + n - 4, "+ptx", 4);
    *at = end + n + strspn(end + n, " ");
    return c;
}

static bool runs(const struct cuda_code *c, int gpu)
{
    if (c->specific)
        return c->compute == gpu;
    return c->compute <= gpu && (c->ptx || c->compute / 10 == gpu / 10);
}

/* Whether a is nearer to the GPU than b. Both run there. */
static bool nearer(const struct cuda_code *a, const struct cuda_code *b)
{
    if (a->ptx != b->ptx)
        return !a->ptx;
    return a->compute > b->compute || (a->compute == b->compute && a->specific && !b->specific);
}

bool cuda_find_code(const char *codes, int major, int minor, struct cuda_code *found)
{
    bool any = false;
    while (*codes) {
        struct cuda_code c = next_code(&codes);
        if (runs(&c, 10 * major + minor) && (!any || nearer(&c, found)))
            *found = c, any = true;
    }
    return any;
}

bool cuda_driver_runs(int driver, int runtime, bool ptx)
{
    return ptx ? driver / 10 >= runtime / 10 : driver / 1000 >= runtime / 1000;
}
