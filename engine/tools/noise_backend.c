/* noise_backend.c - see noise_backend.h. */
#include "engine/tools/noise_backend.h"

#include "engine/run/device.h"
#include "engine/tools/golden_noise.h"

const struct kernels *noise_backend(float size, uint64_t seed, struct err *e)
{
    static struct kernels table;
    struct device dev;
    if (!device_open(&dev, "cpu", 1, NULL, e))
        return NULL;
    table = *noise_table(dev.k, size, seed);
    table.queued = false; /* noise is computed on the host, which a recorded graph would not
                             repeat */
    device_close(&dev);
    return &table;
}
