/* device.c - the one place that knows which backends were built in. */
#include "engine/device.h"

#include <string.h>

static bool open_on(const struct kernels *k, const struct k_opts *o, struct device *dev,
                    struct err *e)
{
    dev->k = k;
    dev->d = k->open(o, e);
    dev->kv = k != &kernels_cpu && o->precision == K_BF16 ? KV_BF16 : KV_F32;
    return dev->d != NULL;
}

bool device_open(struct device *dev, const char *name, int threads, const char *precision,
                 struct err *e)
{
    bool f32 = precision && !strcmp(precision, "f32");
    struct k_opts o = {.threads = threads, .precision = f32 ? K_F32 : K_BF16};
    *dev = (struct device){0};
    if (precision && !f32 && strcmp(precision, "bf16"))
        return err_set(e, ERR_USAGE, "unknown precision '%s': expected bf16 or f32", precision);
    bool any = !name || !strcmp(name, "auto");
    if (!any && strcmp(name, "cpu") && strcmp(name, "cuda"))
        return err_set(e, ERR_USAGE, "unknown device '%s': expected cpu, cuda or auto", name);
#if HAVE_CUDA
    if (any || !strcmp(name, "cuda")) {
        if (open_on(&kernels_cuda, &o, dev, e))
            return true;
        if (!any)
            return false;
    }
#else
    if (!any && !strcmp(name, "cuda"))
        return err_set(e, ERR_MODEL, "this build has no CUDA: build with the CUDA toolkit, or use "
                                     "--device cpu");
#endif
    return open_on(&kernels_cpu, &o, dev, e);
}

void device_close(struct device *dev)
{
    if (dev->d)
        dev->k->close(dev->d);
    *dev = (struct device){0};
}

void device_list(struct buf *out)
{
    static const struct kernels *const all[] = {
        &kernels_cpu,
#if HAVE_CUDA
        &kernels_cuda,
#endif
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct err e = {0};
        struct kdev *d = all[i]->open(&(struct k_opts){0}, &e);
        buf_printf(out, "%s: %s\n", all[i]->name, d ? all[i]->about(d) : e.msg);
        if (d)
            all[i]->close(d);
    }
}
