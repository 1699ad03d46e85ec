/* device.h - choosing a backend by name. Any thread; a device belongs to the thread that uses it. */
#ifndef AERIE_DEVICE_H
#define AERIE_DEVICE_H

#include "engine/forward.h"

/* "cpu", "cuda", or "auto" (NULL too): CUDA where it works, else the CPU. threads: CPU, 0 = all.
 * precision: "bf16" (NULL too: activations and KV cells on CUDA) or "f32"; the CPU computes in
 * float32 whatever it says. */
bool device_open(struct device *dev, const char *name, int threads, const char *precision,
                 struct err *e);
void device_close(struct device *dev);
/* One line a backend of this build: what it found, or why it cannot be used. */
void device_list(struct buf *out);

#endif
