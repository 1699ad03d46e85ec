/* fit.c - see fit.h. */
#include "engine/cycle/fit.h"

#include "engine/cycle/pools.h"

#include <unistd.h>

enum {
    SHORTEST = 512,     /* the shortest context that is proposed */
    CONTEXT_STEP = 256, /* proposed contexts are multiples of this ... */
    PAGE_STEP = 16,     /* ... and proposed pool sizes of this */
};

/* Bytes kept free for the driver, for plans, which grow with the context, and for graphs. */
static const size_t SPARE = (size_t)384 << 20;

/* ---- a device that only counts --------------------------------------------------------------- */

struct fit_count {
    struct device real;
    bool own;  /* the device has memory of its own */
    bool held; /* weights that it holds count */
    const struct draft *draft;
    struct need need;
};

static struct fit_count *count_of(struct kdev *d)
{
    return (struct fit_count *)(void *)d;
}

/* A driver allocates large buffers in units of 2 MiB, and small ones inside such a unit; the
 * machine gives pages. */
static size_t rounded(const struct fit_count *count, size_t bytes)
{
    size_t unit = !count->own ? 4096 : bytes < (size_t)1 << 20 ? 512 : (size_t)2 << 20;
    return (bytes + unit - 1) / unit * unit;
}

static kbuf count_alloc(struct kdev *d, size_t bytes, const char *what, struct err *)
{
    struct fit_count *count = count_of(d);
    size_t *to = &count->need.work;
    for (int p = 0; p < N_POOLS; p++)
        if (strcmp(what, pool_cells((enum pool_id)p)) == 0)
            to = &count->need.cells[p];
    *to += rounded(count, bytes);
    return (kbuf){count, bytes}; /* not NULL; never read or written */
}

static bool is_in(const struct tensor *t, const void *from, size_t bytes)
{
    return (const char *)t >= (const char *)from && (const char *)t < (const char *)from + bytes;
}

static bool of_draft(const struct draft *draft, const struct tensor *t)
{
    return draft && (is_in(t, draft, sizeof *draft) ||
                     is_in(t, draft->layer, (size_t)draft->cfg.n_layer * sizeof *draft->layer));
}

static bool count_upload(struct kdev *d, struct tensor *t, struct err *)
{
    struct fit_count *count = count_of(d);
    if (!count->held && count->real.k->holds(count->real.d, t))
        return true;
    size_t bytes = count->real.k->footprint(count->real.d, t);
    if (!bytes && !count->own) /* the weights are used where they were loaded */
        bytes = t->bytes;
    *(of_draft(count->draft, t) ? &count->need.draft : &count->need.weights) += bytes
            ? rounded(count, bytes) : 0;
    return true;
}

static bool count_synthesize(struct kdev *d, struct tensor *t, uint64_t, float,
                             struct err *e)
{
    return count_upload(d, t, e);
}

static void count_release(struct kdev *, kbuf) {}
static void count_fill(struct kdev *, kbuf, uint8_t) {}
static void count_put(struct kdev *, kbuf, const void *, size_t)
{
}

/* Operations by which a drafter prepares its weights when it is opened: nothing is counted. */
static void count_gather(struct kdev *, const struct k_gather *) {}
static void count_linear(struct kdev *, const struct k_linear *) {}
static void count_rows(struct kdev *, const struct k_rows *) {}

static bool count_sync(struct kdev *, struct err *)
{
    return true;
}

static void count_memory(struct kdev *, size_t *free_bytes, size_t *total_bytes)
{
    *free_bytes = *total_bytes = 0; /* unknown: a runtime that only counts always fits */
}

struct need fit_need(struct device dev, struct model *model, struct draft *draft,
                     const struct runtime_shape *shape, bool held)
{
    const struct kernels k = {
        .name = dev.k->name, .queued = dev.k->queued, .alloc = count_alloc,
        .release = count_release, .put = count_put, .fill = count_fill, .upload = count_upload,
        .synthesize = count_synthesize, .gather = count_gather, .linear = count_linear,
        .rows = count_rows, .sync = count_sync, .memory = count_memory};
    size_t left, all;
    dev.k->memory(dev.d, &left, &all);
    struct fit_count count = {.real = dev, .own = all > 0, .held = held, .draft = draft};
    struct device counting = {&k, (struct kdev *)(void *)&count, dev.kv, dev.precision};
    struct runtime rt;
    struct err e = {0};
    if (runtime_open(&rt, counting, model, draft, shape, &e))
        runtime_close(&rt);
    return count.need;
}

/* ---- what fits ------------------------------------------------------------------------------- */

struct fit_try {
    struct device dev;
    struct model *model;
    struct draft *draft;
    size_t room; /* bytes */
    bool own;    /* of the device */
    bool fp8;    /* assume that the weights were quantized as by `--weights fp8` */
};

/* fp8: the weights are not quantized before and after. */
static bool fits(const struct fit_try *trial, const struct runtime_shape *shape)
{
    struct kv_shape sizes;
    if (!pools_shape(shape, trial->model, trial->draft, &sizes, NULL))
        return false;
    if (trial->fp8)
        models_mark(trial->model, trial->draft, true);
    struct need n = fit_need(trial->dev, trial->model, trial->draft, shape, false);
    if (trial->fp8)
        models_mark(trial->model, trial->draft, false);
    return need_sum(&n) <= trial->room;
}

static bool is_quantized(const struct fit_try *trial)
{
    bool any = trial->model->head.quantize || trial->model->embed.quantize;
    for (int i = 0; i < trial->model->cfg.n_layer; i++)
        any |= trial->model->layer[i].wq.quantize;
    for (int i = 0; trial->draft && i < trial->draft->cfg.n_layer; i++)
        any |= trial->draft->layer[i].wq.quantize;
    return any;
}

/* The largest value of *knob, a member of *shape, with which *shape fits, among least, least +
 * step, ... below its present value; 0: none fits. */
static int largest(const struct fit_try *trial, struct runtime_shape *shape, int *knob, int least,
                   int step)
{
    int lo = 0, hi = (*knob - 1 - least) / step + 1; /* lo steps up from least - step fit */
    if (*knob <= least)
        return 0;
    while (lo < hi) {
        int mid = lo + (hi - lo + 1) / 2;
        *knob = least + (mid - 1) * step;
        if (fits(trial, shape))
            lo = mid;
        else
            hi = mid - 1;
    }
    return lo ? least + (lo - 1) * step : 0;
}

struct fit_size {
    char s[32];
};

static struct fit_size text(size_t bytes)
{
    struct fit_size t;
    if (bytes < (size_t)1 << 30)
        snprintf(t.s, sizeof t.s, "%zu MiB", bytes >> 20);
    else
        snprintf(t.s, sizeof t.s, "%.1f GiB", (double)bytes / 0x1p30);
    return t;
}

/* The largest context or pool of full layers that fits, as text; "": none fits. */
static struct fit_size propose_size(const struct fit_try *trial, const struct runtime_shape *shape)
{
    struct runtime_shape smaller = *shape;
    struct fit_size t = {""};
    bool pages = smaller.full_pages > 0;
    int n = largest(trial, &smaller, pages ? &smaller.full_pages : &smaller.context,
                    pages ? PAGE_STEP : SHORTEST, pages ? PAGE_STEP : CONTEXT_STEP);
    if (n)
        snprintf(t.s, sizeof t.s, "%s %d", pages ? "--full-pages" : "--context", n);
    return t;
}

/* Proposes changes with which the runtime would fit, as text. */
static void propose(const struct fit_try *trial, const struct runtime_shape *shape, char *out,
                    size_t size)
{
    struct fit_try alone = *trial, fp8 = *trial;
    struct fit_size less = propose_size(trial, shape), less_fp8 = {""};
    alone.draft = NULL;
    fp8.fp8 = !is_quantized(trial);
    const bool whole = fp8.fp8 && fits(&fp8, shape);
    if (fp8.fp8 && !whole)
        less_fp8 = propose_size(&fp8, shape);
    if (*less.s)
        snprintf(out, size, "%s%s fits", less.s, whole ? " or --weights fp8" : "");
    else if (trial->draft && fits(&alone, shape))
        snprintf(out, size, "it fits without the draft%s", whole ? " or with --weights fp8" : "");
    else if (whole)
        snprintf(out, size, "--weights fp8 fits");
    else if (*less_fp8.s)
        snprintf(out, size, "--weights fp8 with %s fits", less_fp8.s);
    else
        snprintf(out, size, "no context fits%s", trial->own ? "; --device cpu needs none" : "");
}

static bool too_large(const struct fit_try *trial, const struct runtime_shape *shape,
                      size_t free_bytes, struct err *e)
{
    struct need n = fit_need(trial->dev, trial->model, trial->draft, shape, false);
    char how[96];
    propose(trial, shape, how, sizeof how);
    size_t weights = n.weights + n.draft, cells = need_sum(&n) - weights - n.work;
    if (weights > trial->room)
        return err_set(e, ERR_MODEL, "the model's weights need %s of GPU memory, %s are free: %s "
                       "(aerie fit lists the sizes)", text(weights + SPARE).s, text(free_bytes).s,
                       how);
    return err_set(e, ERR_MODEL, "the model needs %s of GPU memory (weights %s, KV cells of %lld "
                   "tokens %s), %s are free: %s (aerie fit lists the sizes)",
                   text(need_sum(&n) + SPARE).s, text(weights).s,
                   shape->full_pages ? (long long)shape->full_pages * shape->page_size
                                     : shape->context,
                   text(cells).s, text(free_bytes).s, how);
}

bool fit_shape(struct device dev, struct model *model, struct draft *draft,
               struct runtime_shape *shape, struct err *e)
{
    size_t left, all;
    dev.k->memory(dev.d, &left, &all);
    if (all == 0)
        return true;
    struct fit_try trial = {dev, model, draft, left > SPARE ? left - SPARE : 0, true, false};
    if (fits(&trial, shape))
        return true;
    struct runtime_shape shorter = *shape;
    int n = shape->shorten ? largest(&trial, &shorter, &shorter.context, SHORTEST, CONTEXT_STEP)
                           : 0;
    if (n == 0)
        return too_large(&trial, shape, left, e);
    shape->context = n;
    return true;
}

/* ---- what a person asks ---------------------------------------------------------------------- */

/* Memory that the machine can give without taking it from others; all of it where the system does
 * not say. */
static size_t machine_free(size_t all)
{
    static const char key[] = "MemAvailable:";
    char line[128];
    size_t kib = all >> 10;
    FILE *f = fopen("/proc/meminfo", "re");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, key, sizeof key - 1) == 0)
            kib = (size_t)strtoull(line + sizeof key - 1, NULL, 10);
    if (f)
        fclose(f);
    return kib << 10;
}

static int longest(const struct fit_try *trial, const struct runtime_shape *shape)
{
    struct runtime_shape longer = *shape;
    longer.context = trial->model->cfg.max_pos;
    if (fits(trial, &longer))
        return longer.context;
    return largest(trial, &longer, &longer.context, SHORTEST, CONTEXT_STEP);
}

bool fit_look(struct device dev, struct model *model, struct draft *draft,
              const struct runtime_shape *shape, struct fit *out, struct err *e)
{
    struct kv_shape sizes;
    *out = (struct fit){0};
    if (!pools_shape(shape, model, draft, &sizes, e))
        return false;
    dev.k->memory(dev.d, &out->left, &out->total);
    out->own = out->total > 0;
    if (!out->own) {
        out->total = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
        out->left = machine_free(out->total);
    }
    out->spare = out->own ? SPARE : 0;
    struct fit_try trial = {dev, model, draft, out->left > out->spare ? out->left - out->spare : 0,
                            out->own, false};
    out->need = fit_need(dev, model, draft, shape, false);
    for (int k = 0; k < 3; k++) {
        struct runtime_shape s = *shape;
        s.kv = (enum kv_type)k;
        struct need n = fit_need(dev, model, draft, &s, false);
        out->kv[k] = n.cells[POOL_FULL] + n.cells[POOL_SWA] + n.cells[POOL_DRAFT];
    }
    out->fits = need_sum(&out->need) <= trial.room;
    if (!shape->full_pages)
        out->longest = longest(&trial, shape);
    if (!out->fits)
        propose(&trial, shape, out->how, sizeof out->how);
    return true;
}
