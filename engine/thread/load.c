/* load.c - see load.h. */
#include "engine/thread/load.h"

#include <limits.h>
#include <unistd.h>

#include "engine/cycle/fit.h"
#include "engine/cycle/pools.h"
#include "engine/run/device.h"
#include "models/checkpoint/hub.h"

__attribute__((format(printf, 2, 3)))
static void notice(const struct engine_opts *o, const char *fmt, ...)
{
    char line[sizeof ((struct err *)NULL)->msg + 64];
    PRINT_ARGS(line, fmt);
    if (o->notice)
        o->notice(o->notice_arg, line);
}

/* ---- device and models ----------------------------------------------------------------------- */

static bool load_device(struct loaded *loaded, const struct engine_opts *o, struct err *e)
{
    struct err passed = {0};
    struct device_opts w = {o->device, o->threads, o->precision, o->backend, o->kv};
    if (!device_choose(&loaded->dev, &w, &passed, e))
        return false;
    if (passed.kind)
        loaded->passed = xstrdup(passed.msg);
    if (device_slow_start(&loaded->dev))
        notice(o, "%s", device_slow_start(&loaded->dev));
    return true;
}

/* A device that computes in main memory uses the mapped weights in place, and quantizes them there
 * for --weights fp8. Other devices copy the weights. */
static enum file_use file_use(const struct loaded *loaded, const struct engine_opts *o)
{
    size_t left, all = 0;
    if (o->headers)
        return READ_HEADERS;
    if (loaded->dev.k)
        loaded->dev.k->memory(loaded->dev.d, &left, &all);
    if (all || models_quant_text(&o->quant) || (o->load && !strcmp(o->load, "copy")))
        return READ_COPY;
    return o->load && !strcmp(o->load, "map") ? READ_MAP : READ_AUTO;
}

/* If the draft does not fit the target, a notice says so and decoding is plain, unless the draft is
 * required. */
static bool load_draft(const struct loaded *loaded, const struct engine_opts *o,
                       const struct loading *p, struct loaded_draft *d, struct err *e)
{
    struct err why = {0};
    if (!o->draft) {
        d->off = xstrdup("no draft head was given");
        return !o->require_draft || err_set(e, ERR_MODEL, "no draft head was given (--draft DIR)");
    }
    d->has = drafter_load(&d->draft, o->draft, &loaded->model, o->capture, p, &why);
    if (d->has && o->draft_from) {
        FREED(free_at) char *title = hub_title_in_cache(o->draft);
        notice(o, "draft: %s, %s (--draft none: without)", title ? title : o->draft, o->draft_from);
    }
    if (d->has)
        return true;
    if (o->require_draft) {
        *e = why;
        return false;
    }
    d->off = xstrdup(why.msg);
    notice(o, "drafting is off: %s", why.msg);
    return true;
}

static bool load_models(struct loaded *loaded, const struct engine_opts *o, struct err *e)
{
    struct loading how = {o->progress, o->progress_arg, file_use(loaded, o), o->stop};
    if (o->make ? !o->make(o->make_arg, &loaded->model, &loaded->draft, e)
                : !model_load(&loaded->model, o->model, &how, e))
        return false;
    loaded->has_draft = loaded->draft.kind != NULL;
    struct loaded_draft d = {0};
    if (!loaded->has_draft && !load_draft(loaded, o, &how, &d, e))
        return false;
    if (!loaded->has_draft) {
        loaded->draft = d.draft;
        loaded->has_draft = d.has;
        loaded->draft_off = d.off;
    }
    if (loaded->model.note)
        notice(o, "%s", loaded->model.note);
    if (o->context > loaded->model.cfg.max_pos)
        notice(o, "the context is %d tokens: the model has no more positions (--context %d)",
               loaded->model.cfg.max_pos, o->context);
    if (loaded->has_draft && loaded->draft.note)
        notice(o, "%s", loaded->draft.note);
    return true;
}

/* ---- text ------------------------------------------------------------------------------------ */

/* Masks ids without text: padding of the vocabulary. */
static void find_mask(struct loaded *loaded)
{
    int n = loaded->model.cfg.vocab, found = 0;
    loaded->mask = xcalloc((size_t)n, 1);
    for (int i = 0; i < n; i++) {
        size_t len;
        loaded->mask[i] = tok_bytes(loaded->tok, i, &len) == NULL;
        found += loaded->mask[i];
    }
    if (found)
        return;
    DROP(loaded->mask);
}

static bool load_text(struct loaded *loaded, const struct engine_opts *o, struct err *e)
{
    const char *warning = NULL;
    loaded->tok = tok_open(o->model, e);
    loaded->chat = loaded->tok ? chat_open(&loaded->model, loaded->tok, o->raw, &warning, e) : NULL;
    if (!loaded->chat)
        return false;
    if (warning)
        notice(o, "%s", warning);
    const char *date = o->date ? o->date : chat_date(loaded->chat);
    snprintf(loaded->date, sizeof loaded->date, "%.10s", date);
    loaded->n_stop = chat_stops(loaded->chat, loaded->stop);
    find_mask(loaded);
    struct chat_style style = load_style(&o->settings);
    return chat_has_style(loaded->chat, &style, e) && chat_set_date(loaded->chat, loaded->date, e);
}

static bool unload_tensor(struct tensor *t, void *arg, struct err *)
{
    struct device *dev = arg;
    dev->k->unload(dev->d, t);
    return true;
}

/* Frees a draft and its memory on the device. */
static void drop_draft(struct device *dev, struct draft *d)
{
    if (dev->k)
        draft_each(d, unload_tensor, dev, NULL);
    draft_free(d);
}

static bool load_files(struct loaded *loaded, const struct engine_opts *o, int parts, struct err *e)
{
    return load_models(loaded, o, e) && (!(parts & LOAD_TEXT) || load_text(loaded, o, e)) &&
           models_quantize(&loaded->model, loaded->has_draft ? &loaded->draft : NULL, &o->quant, e);
}

bool engine_load(struct loaded *loaded, const struct engine_opts *o, int parts, struct err *e)
{
    *loaded = (struct loaded){0};
    bool ok = opts_check(o, e) && /* unknown names are refused first */
              (!(parts & LOAD_DEVICE) || load_device(loaded, o, e)) &&
              load_files(loaded, o, parts, e);
    if (!ok)
        engine_unload(loaded);
    return ok;
}

bool engine_load_draft(struct loaded *loaded, const struct engine_opts *o, struct loaded_draft *d,
                       struct err *e)
{
    struct loading how = {o->progress, o->progress_arg, file_use(loaded, o), o->stop};
    *d = (struct loaded_draft){0};
    if (load_draft(loaded, o, &how, d, e) &&
        models_quantize(NULL, d->has ? &d->draft : NULL, &o->quant, e))
        return true;
    loaded_draft_free(loaded, d);
    return false;
}

void loaded_draft_free(struct loaded *loaded, struct loaded_draft *d)
{
    drop_draft(&loaded->dev, &d->draft);
    free(d->off);
    *d = (struct loaded_draft){0};
}

/* Frees all but the device. */
static void unload_files(struct loaded *loaded)
{
    chat_close(loaded->chat);
    tok_close(loaded->tok);
    drop_draft(&loaded->dev, &loaded->draft);
    if (loaded->dev.k)
        model_each(&loaded->model, unload_tensor, &loaded->dev, NULL);
    model_free(&loaded->model);
    FREE(loaded->draft_off, loaded->mask);
    *loaded = (struct loaded){.dev = loaded->dev, .passed = loaded->passed};
}

bool engine_load_again(struct loaded *loaded, const struct engine_opts *o, struct err *e)
{
    unload_files(loaded);
    if (load_files(loaded, o, LOAD_TEXT, e))
        return true;
    unload_files(loaded);
    return false;
}

void engine_unload(struct loaded *loaded)
{
    unload_files(loaded);
    device_close(&loaded->dev);
    free(loaded->passed);
    *loaded = (struct loaded){0};
}

/* ---- runtimes -------------------------------------------------------------------------------- */

struct chat_style load_style(const struct settings *set)
{
    struct chat_style s = {0};
    chat_style_effort(&s, effort_name((enum effort)set->effort));
    return s;
}

int load_chunk(const struct loaded *loaded, const struct settings *set)
{
    return set->chunk ? set->chunk : device_chunk(&loaded->dev);
}

void runtime_set(struct runtime *rt, const struct settings *set)
{
    rt->pass.check.level = (enum check_level)set->check;
    rt->record = set->graph && rt->dev.k->queued;
    rt->kv.draft_window = rt->kv.has_draft ? set->draft_window : 0;
}

bool loaded_runtime(struct runtime *rt, struct loaded *loaded, const struct runtime_shape *shape,
                    struct err *e)
{
    struct runtime_shape fitting = *shape;
    struct draft *d = loaded->has_draft ? &loaded->draft : NULL;
    *rt = (struct runtime){0};
    if (!fit_shape(loaded->dev, &loaded->model, d, &fitting, e) ||
        !runtime_open(rt, loaded->dev, &loaded->model, d, &fitting, e))
        return false;
    memcpy(rt->stop, loaded->stop, sizeof rt->stop);
    rt->n_stop = loaded->n_stop;
    if (!loaded->mask || runtime_mask(rt, loaded->mask, loaded->model.cfg.vocab, e))
        return true;
    runtime_close(rt);
    return false;
}

/* The longest context within reason. Where cells lie in the machine's memory, they may take a
 * quarter of it; how many fit a device with memory of its own, loaded_runtime() finds out
 * (fit.h). */
static int pick_context(const struct loaded *loaded, const struct engine_opts *o)
{
    const struct model *m = &loaded->model;
    const struct device *dev = &loaded->dev;
    int64_t most = o->lanes > 0 ? 8192 : 131072;
    size_t per_token = 0, left, all;
    if (o->context)
        return min_int(o->context, m->cfg.max_pos);
    dev->k->memory(dev->d, &left, &all);
    for (int i = 0; i < m->cfg.n_layer && !all; i++)
        if (m->layer[i].kv_src == i && m->layer[i].window == 0)
            per_token += 2 * (size_t)mul64(m->layer[i].n_kv, m->layer[i].head_dim) * sizeof(float);
    int64_t ram = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE) / 4;
    if (per_token && ram / (int64_t)per_token < most)
        most = ram / (int64_t)per_token;
    return min_int((int)most, m->cfg.max_pos);
}

/* As many pages of the new size as hold the tokens of `pages` of the old size; either number counts
 * the guard page. */
static int pages_of_size(int pages, int was, int now)
{
    int64_t n = ((int64_t)(pages - 1) * was + now - 1) / now + 1;
    return (int)(n < LEAST_PAGES ? LEAST_PAGES : n > INT_MAX ? INT_MAX : n);
}

/* Pools that an earlier run gave another size than the usual one keep their tokens in pages of
 * another size. The usual size of the sliding pool depends on that of the full pool. */
static void keep_tokens(const struct loaded *loaded, const struct pools_before *was,
                        struct runtime_shape *shape)
{
    const struct draft *draft = loaded->has_draft ? &loaded->draft : NULL;
    struct runtime_shape before = *shape;
    struct kv_shape full, swa;
    struct err e;
    before.page_size = was->page_size;
    before.full_pages = before.swa_pages = 0;
    if (!was->page_size || !pools_shape(&before, &loaded->model, draft, &full, &e))
        return;
    before.full_pages = was->full_pages;
    if (!pools_shape(&before, &loaded->model, draft, &swa, &e))
        return;
    if (!shape->full_pages && was->full_pages && was->full_pages != full.full_pages)
        shape->full_pages = pages_of_size(was->full_pages, was->page_size, shape->page_size);
    if (!shape->swa_pages && was->swa_pages && was->swa_pages != swa.swa_pages)
        shape->swa_pages = pages_of_size(was->swa_pages, was->page_size, shape->page_size);
}

/* The shape that the options ask for. */
static struct runtime_shape asked_shape(const struct loaded *loaded, const struct engine_opts *o)
{
    struct runtime_shape shape = {
        .page_size = o->page_size ? o->page_size : 16, .context = pick_context(loaded, o),
        .full_pages = o->full_pages, .swa_pages = o->swa_pages,
        .max_rows = o->rows ? o->rows : max_int(512, load_chunk(loaded, &o->settings)),
        .lanes = 1 + min_int(o->lanes, MAX_LANES), .kv = loaded->dev.kv,
        .shorten = !o->context && !o->full_pages, .bugs = &o->bugs};
    keep_tokens(loaded, &o->was, &shape);
    return shape;
}

int engine_context(const struct loaded *loaded, const struct engine_opts *o)
{
    return pick_context(loaded, o);
}

bool engine_fit(struct loaded *loaded, const struct engine_opts *o, struct fit *f, struct err *e)
{
    struct runtime_shape shape = asked_shape(loaded, o);
    return fit_look(loaded->dev, &loaded->model, loaded->has_draft ? &loaded->draft : NULL, &shape,
                    f, e);
}

struct need engine_need(struct loaded *loaded, const struct engine_opts *o,
                        const struct runtime *rt)
{
    struct runtime_shape shape = asked_shape(loaded, o);
    shape.context = rt->context;
    return fit_need(loaded->dev, &loaded->model, loaded->has_draft ? &loaded->draft : NULL, &shape,
                    true);
}

/* Chooses the rotation of the context's length where a rope has two. */
static void use_ropes(struct loaded *loaded, const struct engine_opts *o, int context)
{
    struct config *c = &loaded->model.cfg;
    for (int i = 0; i < c->n_rope; i++) {
        rope_for_context(&c->rope[i], context);
        if (c->rope[i].beyond)
            notice(o, "longrope: a context of %d tokens has the long factors, also for texts below "
                   "%.0f tokens", context, c->rope[i].original_max);
    }
}

bool engine_runtime(struct runtime *rt, struct loaded *loaded, const struct engine_opts *o,
                    struct err *e)
{
    struct runtime_shape shape = asked_shape(loaded, o);
    if (shape.context < 16)
        return err_set(e, ERR_USAGE, "a context of %d tokens is too short: expected 16 or more",
                       shape.context);
    if (!loaded_runtime(rt, loaded, &shape, e))
        return false;
    runtime_set(rt, &o->settings);
    use_ropes(loaded, o, rt->context);
    if (rt->context < shape.context)
        notice(o, "the context is %d tokens: no more than that fits the device's memory",
               rt->context);
    return true;
}
