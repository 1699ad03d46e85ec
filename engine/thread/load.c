/* load.c - see load.h. */
#include "engine/thread/load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine/cycle/fit.h"
#include "engine/run/device.h"
#include "kernels/idioms.h"
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

static bool load_device(struct loaded *l, const struct engine_opts *o, struct err *e)
{
    struct err passed = {0};
    struct device_opts w = {o->device, o->threads, o->precision, o->backend, o->kv};
    if (!device_choose(&l->dev, &w, &passed, e))
        return false;
    if (passed.kind)
        l->passed = xstrdup(passed.msg);
    if (device_slow_start(&l->dev))
        notice(o, "%s", device_slow_start(&l->dev));
    return true;
}

/* A device that computes in main memory uses the mapped weights in place, and quantizes them there
 * for --weights fp8. Other devices copy the weights. */
static enum file_use file_use(const struct loaded *l, const struct engine_opts *o)
{
    size_t left, all = 0;
    if (o->headers)
        return READ_HEADERS;
    if (l->dev.k)
        l->dev.k->memory(l->dev.d, &left, &all);
    if (all || models_quant_text(&o->quant) || (o->load && !strcmp(o->load, "copy")))
        return READ_COPY;
    return o->load && !strcmp(o->load, "map") ? READ_MAP : READ_AUTO;
}

/* If the draft does not fit the target, a notice says so and decoding is plain, unless the draft is
 * required. */
static bool load_draft(const struct loaded *l, const struct engine_opts *o, const struct loading *p,
                       struct loaded_draft *d, struct err *e)
{
    struct err why = {0};
    if (!o->draft) {
        d->off = xstrdup("no draft head was given");
        return !o->require_draft || err_set(e, ERR_MODEL, "no draft head was given (--draft DIR)");
    }
    d->has = drafter_load(&d->draft, o->draft, &l->model, o->capture, p, &why);
    if (d->has && o->draft_from) {
        char *title = hub_title_in_cache(o->draft);
        notice(o, "draft: %s, %s (--draft none: without)", title ? title : o->draft, o->draft_from);
        free(title);
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

static bool load_models(struct loaded *l, const struct engine_opts *o, struct err *e)
{
    struct loading how = {o->progress, o->progress_arg, file_use(l, o), o->stop};
    if (o->make ? !o->make(o->make_arg, &l->model, &l->draft, e)
                : !model_load(&l->model, o->model, &how, e))
        return false;
    l->has_draft = l->draft.kind != NULL;
    struct loaded_draft d = {0};
    if (!l->has_draft && !load_draft(l, o, &how, &d, e))
        return false;
    if (!l->has_draft) {
        l->draft = d.draft;
        l->has_draft = d.has;
        l->draft_off = d.off;
    }
    if (l->model.note)
        notice(o, "%s", l->model.note);
    if (l->has_draft && l->draft.note)
        notice(o, "%s", l->draft.note);
    return true;
}

/* ---- text ------------------------------------------------------------------------------------ */

/* Masks ids without text: padding of the vocabulary. */
static void find_mask(struct loaded *l)
{
    int n = l->model.cfg.vocab, found = 0;
    l->mask = xcalloc((size_t)n, 1);
    for (int i = 0; i < n; i++) {
        size_t len;
        l->mask[i] = tok_bytes(l->tok, i, &len) == NULL;
        found += l->mask[i];
    }
    if (found)
        return;
    free(l->mask);
    l->mask = NULL;
}

static bool load_text(struct loaded *l, const struct engine_opts *o, struct err *e)
{
    const char *warning = NULL;
    l->tok = tok_open(o->model, e);
    l->chat = l->tok ? chat_open(&l->model, l->tok, o->raw, &warning, e) : NULL;
    if (!l->chat)
        return false;
    if (warning)
        notice(o, "%s", warning);
    time_t now = time(NULL);
    struct tm tm;
    if (o->date)
        snprintf(l->date, sizeof l->date, "%.10s", o->date);
    else if (localtime_r(&now, &tm))
        strftime(l->date, sizeof l->date, "%Y-%m-%d", &tm);
    l->n_stop = chat_stops(l->chat, l->stop);
    find_mask(l);
    struct chat_style style = load_style(&o->settings);
    return chat_has_style(l->chat, &style, e) && chat_set_date(l->chat, l->date, e);
}

static bool unload_tensor(struct tensor *t, void *arg, struct err *e)
{
    struct device *dev = arg;
    (void)e;
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

static bool load_files(struct loaded *l, const struct engine_opts *o, int parts, struct err *e)
{
    return load_models(l, o, e) && (!(parts & LOAD_TEXT) || load_text(l, o, e)) &&
           models_quantize(&l->model, l->has_draft ? &l->draft : NULL, &o->quant, e);
}

bool engine_load(struct loaded *l, const struct engine_opts *o, int parts, struct err *e)
{
    *l = (struct loaded){0};
    bool ok = opts_check(o, e) && /* unknown names are refused first */
              (!(parts & LOAD_DEVICE) || load_device(l, o, e)) && load_files(l, o, parts, e);
    if (!ok)
        engine_unload(l);
    return ok;
}

bool engine_load_draft(struct loaded *l, const struct engine_opts *o, struct loaded_draft *d,
                       struct err *e)
{
    struct loading how = {o->progress, o->progress_arg, file_use(l, o), o->stop};
    *d = (struct loaded_draft){0};
    if (load_draft(l, o, &how, d, e) &&
        models_quantize(NULL, d->has ? &d->draft : NULL, &o->quant, e))
        return true;
    loaded_draft_free(l, d);
    return false;
}

void loaded_draft_free(struct loaded *l, struct loaded_draft *d)
{
    drop_draft(&l->dev, &d->draft);
    free(d->off);
    *d = (struct loaded_draft){0};
}

/* Frees all but the device. */
static void unload_files(struct loaded *l)
{
    chat_close(l->chat);
    tok_close(l->tok);
    drop_draft(&l->dev, &l->draft);
    if (l->dev.k)
        model_each(&l->model, unload_tensor, &l->dev, NULL);
    model_free(&l->model);
    free(l->draft_off);
    free(l->mask);
    *l = (struct loaded){.dev = l->dev, .passed = l->passed};
}

bool engine_load_again(struct loaded *l, const struct engine_opts *o, struct err *e)
{
    unload_files(l);
    if (load_files(l, o, LOAD_TEXT, e))
        return true;
    unload_files(l);
    return false;
}

void engine_unload(struct loaded *l)
{
    unload_files(l);
    device_close(&l->dev);
    free(l->passed);
    *l = (struct loaded){0};
}

/* ---- runtimes -------------------------------------------------------------------------------- */

struct chat_style load_style(const struct settings *set)
{
    struct chat_style s = {0};
    chat_style_effort(&s, effort_name((enum effort)set->effort));
    return s;
}

int load_chunk(const struct loaded *l, const struct settings *set)
{
    return set->chunk ? set->chunk : device_chunk(&l->dev);
}

void runtime_set(struct runtime *r, const struct settings *set)
{
    r->pass.check.level = (enum check_level)set->check;
    r->record = set->graph && r->dev.k->queued;
    r->kv.draft_window = r->kv.has_draft ? set->draft_window : 0;
}

bool loaded_runtime(struct runtime *r, struct loaded *l, const struct runtime_shape *shape,
                    struct err *e)
{
    struct runtime_shape fitting = *shape;
    struct draft *d = l->has_draft ? &l->draft : NULL;
    *r = (struct runtime){0};
    if (!fit_shape(l->dev, &l->model, d, &fitting, e) ||
        !runtime_open(r, l->dev, &l->model, d, &fitting, e))
        return false;
    memcpy(r->stop, l->stop, sizeof r->stop);
    r->n_stop = l->n_stop;
    if (!l->mask || runtime_mask(r, l->mask, l->model.cfg.vocab, e))
        return true;
    runtime_close(r);
    return false;
}

/* The longest context within reason. Where cells lie in the machine's memory, they may take a
 * quarter of it; how many fit a device with memory of its own, loaded_runtime() finds out
 * (fit.h). */
static int pick_context(const struct loaded *l, const struct engine_opts *o)
{
    const struct model *m = &l->model;
    const struct device *dev = &l->dev;
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

/* The shape that the options ask for. */
static struct runtime_shape asked_shape(const struct loaded *l, const struct engine_opts *o)
{
    return (struct runtime_shape){
        .page_size = o->page_size ? o->page_size : 16, .context = pick_context(l, o),
        .full_pages = o->full_pages, .swa_pages = o->swa_pages,
        .max_rows = o->rows ? o->rows : max_int(512, load_chunk(l, &o->settings)),
        .lanes = 1 + min_int(o->lanes, MAX_LANES), .kv = l->dev.kv,
        .shorten = !o->context && !o->full_pages, .bugs = &o->bugs};
}

int engine_context(const struct loaded *l, const struct engine_opts *o)
{
    return pick_context(l, o);
}

bool engine_fit(struct loaded *l, const struct engine_opts *o, struct fit *f, struct err *e)
{
    struct runtime_shape shape = asked_shape(l, o);
    return fit_look(l->dev, &l->model, l->has_draft ? &l->draft : NULL, &shape, f, e);
}

struct need engine_need(struct loaded *l, const struct engine_opts *o, const struct runtime *r)
{
    struct runtime_shape shape = asked_shape(l, o);
    shape.context = r->context;
    return fit_need(l->dev, &l->model, l->has_draft ? &l->draft : NULL, &shape);
}

/* Chooses the rotation of the context's length where a rope has two. */
static void use_ropes(struct loaded *l, const struct engine_opts *o, int context)
{
    struct config *c = &l->model.cfg;
    for (int i = 0; i < c->n_rope; i++) {
        rope_for_context(&c->rope[i], context);
        if (c->rope[i].beyond)
            notice(o, "longrope: a context of %d tokens has the long factors, also for texts below "
                   "%.0f tokens", context, c->rope[i].original_max);
    }
}

bool engine_runtime(struct runtime *r, struct loaded *l, const struct engine_opts *o, struct err *e)
{
    struct runtime_shape shape = asked_shape(l, o);
    if (shape.context < 16)
        return err_set(e, ERR_USAGE, "a context of %d tokens is too short: expected 16 or more",
                       shape.context);
    if (!loaded_runtime(r, l, &shape, e))
        return false;
    runtime_set(r, &o->settings);
    use_ropes(l, o, r->context);
    if (r->context < shape.context)
        notice(o, "the context is %d tokens: no more than that fits the device's memory",
               r->context);
    return true;
}
