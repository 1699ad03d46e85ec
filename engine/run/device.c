/* device.c - opens a backend by name; the only file that knows which backends were built in. */
#include "engine/run/device.h"

#include "kernels/packed.h"

#define NO_CUDA                                                                                    \
    "this build has no CUDA; a package made where the CUDA toolkit is has it, "                    \
    "and the sources build it: 'make CUDA=1'"

static bool open_on(const struct kernels *k, const struct k_opts *o, struct device *dev,
                    struct err *e)
{
    dev->k = k;
    dev->d = k->open(o, e);
    dev->precision = k != &kernels_cpu ? o->precision : K_F32;
    dev->kv = dev->precision == K_BF16 ? KV_BF16 : KV_F32;
    return dev->d != NULL;
}

static bool open_cuda(struct device *dev, const struct k_opts *o, struct err *why)
{
#if HAVE_CUDA
    return open_on(&kernels_cuda, o, dev, why);
#else
    (void)dev, (void)o;
    return err_set(why, ERR_MODEL, NO_CUDA);
#endif
}

static bool open_by_name(struct device *dev, const char *name, const struct k_opts *o,
                         struct err *passed, struct err *e)
{
    struct err why = {0};
    bool any = !name || !strcmp(name, "auto");
    if (!any && strcmp(name, "cpu") != 0 && strcmp(name, "cuda") != 0)
        return err_set(e, ERR_USAGE, "unknown device '%s': expected cpu, cuda or auto", name);
    if (any ? HAVE_CUDA : !strcmp(name, "cuda")) {
        if (open_cuda(dev, o, &why))
            return true;
        if (!any)
            return err_set(e, why.kind, "%s; --device cpu needs none", why.msg);
        if (passed)
            *passed = why;
    }
    return open_on(&kernels_cpu, o, dev, e);
}

bool device_choose(struct device *dev, const struct device_opts *w, struct err *passed,
                   struct err *e)
{
    bool f32 = w->precision && !strcmp(w->precision, "f32");
    struct k_opts o = {.threads = w->threads, .precision = f32 ? K_F32 : K_BF16};
    *dev = (struct device){0};
    bool fp8 = w->kv && !strcmp(w->kv, "fp8");
    if (w->precision && !f32 && strcmp(w->precision, "bf16") != 0)
        return err_set(e, ERR_USAGE, "unknown precision '%s': expected bf16 or f32", w->precision);
    if (w->kv && !fp8 && strcmp(w->kv, "auto") != 0)
        return err_set(e, ERR_USAGE, "unknown type of cells '%s': expected auto or fp8", w->kv);
    if (!(w->table ? open_on(w->table, &o, dev, e) : open_by_name(dev, w->name, &o, passed, e)))
        return false;
    dev->kv = fp8 ? KV_FP8 : dev->kv;
    return true;
}

bool device_open(struct device *dev, const char *name, int threads, const char *precision,
                 struct err *e)
{
    return device_choose(dev, &(struct device_opts){.name = name, .threads = threads,
                                                    .precision = precision},
                         NULL, e);
}

void device_close(struct device *dev)
{
    if (dev->d)
        dev->k->close(dev->d);
    *dev = (struct device){0};
}

/* Each layout of a device has the elements of an unpacked tensor as they are, in another order, and
 * zeros between them; CUDA stores some infinities as NaN. */
bool device_tensor_is_odd(const struct tensor *t, void *arg)
{
    enum { PART = 16 << 20 };
    struct device *dev = arg;
    if (!t->data || t->quantize || dtype_packed(t->type) || t->type == DT_U8)
        return false;
    if (!dev->k->holds(dev->d, t)) /* in host memory */
        return tensor_is_odd(t);
    const size_t bytes = dev->k->footprint(dev->d, t);
    FREED(free_at) char *host = xmalloc(PART);
    struct tensor part = {.type = t->type, .data = host};
    for (size_t at = 0; at < bytes; at += part.bytes) {
        part.bytes = bytes - at < PART ? bytes - at : PART;
        dev->k->get(dev->d, host, (kbuf){(char *)t->data + at, part.bytes}, part.bytes);
        if (tensor_is_odd(&part))
            return true;
    }
    return false;
}

static void report_device(const struct kernels *k,
                          void (*report)(void *arg, bool ok, const char *line), void *arg)
{
    struct err e = {0};
    struct buf line = {0};
    struct kdev *d = k->open(&(struct k_opts){.precision = K_BF16}, &e);
    size_t left = 0, all = 0;
    buf_printf(&line, "%s: %s", k->name, d ? k->about(d) : e.msg);
    if (d)
        k->memory(d, &left, &all);
    if (all)
        buf_printf(&line, ", %.1f GiB free", (double)left / 0x1p30);
    if (d && k->slow_start && k->slow_start(d))
        buf_printf(&line, "; %s", k->slow_start(d));
    report(arg, d != NULL, line.p);
    buf_free(&line);
    if (d)
        k->close(d);
}

void device_list(void (*report)(void *arg, bool ok, const char *line), void *arg)
{
    report_device(&kernels_cpu, report, arg);
#if HAVE_CUDA
    report_device(&kernels_cuda, report, arg);
#else
    report(arg, true, "cuda: " NO_CUDA);
#endif
}
