/* device.h - opens a backend by name. Any thread; a device belongs to the thread that uses it. */
#pragma once

#include "engine/run/forward.h"

/* "cpu", "cuda", or "auto" (NULL too): CUDA where it works, else the CPU. threads: CPU, 0 = all.
 * precision: "bf16" (NULL too: activations and KV cells on CUDA) or "f32"; the CPU computes in
 * float32 whatever it says. */
bool device_open(struct device *dev, const char *name, int threads, const char *precision,
                 struct err *e);

struct device_opts {
    const char *name; /* name, threads and precision: as above */
    int threads;
    const char *precision;
    const struct kernels *table; /* used whatever `name` says; NULL: chosen by name */
    const char *kv; /* type of the cells: "auto" (NULL too): that of the activations; or "fp8" */
};
/* As device_open(). If "auto" chose the CPU because CUDA failed, *passed says why; else *passed
 * does not change, also in a build without CUDA. */
bool device_choose(struct device *dev, const struct device_opts *o, struct err *passed,
                   struct err *e);
void device_close(struct device *dev);
/* The default number of prompt tokens in one pass: enough to fill a device that queues passes;
 * fewer where the host waits for every pass. */
static inline int device_chunk(const struct device *dev)
{
    return dev->k->queued ? 2048 : 256;
}
/* One line of text that says why the first passes on the device are slow; NULL: they are not. Lives
 * as long as the device. */
static inline const char *device_slow_start(const struct device *dev)
{
    return dev->k->slow_start ? dev->k->slow_start(dev->d) : NULL;
}
/* Whether a tensor that device_upload() has put on the device holds a NaN or an infinity. Reads it
 * back, so no operation may change it meanwhile. False of packed weights, which are not looked at,
 * and of those that the device quantized, which are finite. For model_odd_weight() and
 * draft_odd_weight(); arg: the struct device. */
bool device_tensor_is_odd(const struct tensor *t, void *arg);
/* Calls report() for each backend: ok, whether the backend can be used; line, the device found or
 * the reason. */
void device_list(void (*report)(void *arg, bool ok, const char *line), void *arg);
