/* device.h - choosing a backend by name. Any thread; a device belongs to the thread that uses it. */
#ifndef AERIE_DEVICE_H
#define AERIE_DEVICE_H

#include "engine/run/forward.h"

/* "cpu", "cuda", or "auto" (NULL too): CUDA where it works, else the CPU. threads: CPU, 0 = all.
 * precision: "bf16" (NULL too: activations and KV cells on CUDA) or "f32"; the CPU computes in
 * float32 whatever it says. */
bool device_open(struct device *dev, const char *name, int threads, const char *precision,
                 struct err *e);

struct device_wish {
    const char *name;            /* these three as above */
    int threads;
    const char *precision;
    const struct kernels *table; /* this one, whatever the name says; NULL: by name */
};
/* Where "auto" had to make do with the CPU, *passed says why, else it is left alone. A build
 * without CUDA has nothing to say: nobody could have expected it. */
bool device_choose(struct device *dev, const struct device_wish *w, struct err *passed,
                   struct err *e);
void device_close(struct device *dev);
/* Prompt tokens of one pass, unless somebody says otherwise: few where the host waits for them, as
 * many as fill the device where passes queue. */
static inline int device_chunk(const struct device *dev)
{
    return dev->k->queued ? 2048 : 256;
}
/* What makes the first passes on the device slow, one line for people; NULL: nothing. Lives as long as the device. */
static inline const char *device_slow_start(const struct device *dev)
{
    return dev->k->slow_start ? dev->k->slow_start(dev->d) : NULL;
}
/* Each backend: whether it can be used, and what it found or why not. */
void device_list(void (*tell)(void *arg, bool ok, const char *line), void *arg);

#endif
