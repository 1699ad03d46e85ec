/* open.c - opens and closes the engine, and opens it again with another draft or model. */
#include <errno.h>

#include "engine/engine.h"
#include "engine/run/device.h"
#include "engine/thread/internal.h"

static void hold(void *arg, bool on)
{
    if (on)
        shared_lock(arg);
    else
        shared_unlock(arg);
}

static void post_notice(void *arg, const char *line)
{
    engine_notice(arg, line);
}

/* The options with what the engine adds: its notices are events. */
static struct engine_opts with_notices(struct engine *engine, const struct engine_opts *asked)
{
    struct engine_opts o = *asked;
    o.notice = post_notice;
    o.notice_arg = engine;
    return o;
}

/* The runtime of the conversation, over the models that are loaded, and an empty session. */
static bool open_runtime(struct engine *engine, const struct engine_opts *o, struct err *e)
{
    struct runtime *rt = &engine->own.runtime;
    engine_resolve_settings(engine);
    if (!engine_runtime(rt, &engine->loaded, o, e))
        return false;
    rt->pass.hold = hold;
    rt->pass.hold_arg = &engine->shared;
    engine->shared.pass = &rt->pass;
    engine->shared.ses = &engine->own.ses;
    engine->shared.bugs = &engine->own.runtime.bugs;
    /* on a device with a queue a pass is only enqueued; elsewhere it computes, and must be
     * stoppable */
    rt->net.stop = rt->dev.k->queued ? NULL : &engine->stop;
    session_init(&engine->own.ses, rt, engine->loaded.chat, &engine->shared.set);
    rt->kv.log.keep = true;
    engine_log_pages(engine);
    return true;
}

/* Models, device and the runtime of the conversation. */
static bool load(struct engine *engine, const struct engine_opts *asked, struct err *e)
{
    struct engine_opts o = with_notices(engine, asked);
    return engine_load(&engine->loaded, &o, LOAD_DEVICE | LOAD_TEXT, e) &&
           open_runtime(engine, &o, e);
}

/* "15,17-19": the layers other than `owner` that read its cells. False: there are none. */
static bool print_readers(const struct model *m, int owner, struct buf *out)
{
    int n = m->cfg.n_layer, found = 0;
    for (int l = owner + 1; l < n; l++) {
        int first = l;
        while (l < n && m->layer[l].kv_src == owner)
            l++;
        if (l == first)
            continue;
        buf_printf(out, "%s%d", found++ ? "," : "", first);
        if (l - first > 1)
            buf_printf(out, "-%d", l - 1);
    }
    return found > 0;
}

/* Describes which layers have no KV cells of their own, and whose cells they read. Allocated; NULL:
 * all layers have their own. */
static char *print_sharing(const struct engine *engine)
{
    const struct loaded *loaded = &engine->loaded;
    const struct model *m = &loaded->model;
    struct buf all = {0};
    for (int owner = 0; owner < m->cfg.n_layer; owner++) {
        FREED(buf_free) struct buf one = {0};
        if (print_readers(m, owner, &one)) {
            bool several = strpbrk(one.p, ",-");
            buf_printf(&all, "%slayer%s %s read%s layer %d (%s)", all.n ? "; " : "",
                       several ? "s" : "", one.p, several ? "" : "s", owner,
                       pool_name(m->layer[owner].window ? POOL_SWA : POOL_FULL));
        }
    }
    const int owner[] = {loaded->draft.kv_full, loaded->draft.kv_swa};
    for (int i = 0; loaded->has_draft && drafter_kv_of(&loaded->draft) == DRAFT_KV_TARGET && i < 2;
         i++)
        if (owner[i] >= 0)
            buf_printf(&all, "%sthe draft's %s layers read layer %d", all.n ? "; " : "",
                       i ? "sliding" : "full", owner[i]);
    return all.p;
}

static void free_strings(struct engine *engine)
{
    for (size_t i = 0; i < sizeof engine->strings / sizeof *engine->strings; i++)
        DROP(engine->strings[i]);
}

/* False and *e: the tokenizer's files cannot be read. */
static bool fill_info(struct engine *engine, const struct engine_opts *o, struct err *e)
{
    const struct loaded *loaded = &engine->loaded;
    struct backend_info *i = &engine->base.info;
    free_strings(engine);
    *i = (struct backend_info){0};
    i->model_dir = engine->strings[0] = xstrdup(o->model);
    i->draft_dir = loaded->has_draft ? (engine->strings[1] = xstrdup(o->draft)) : NULL;
    i->draft_kind = loaded->has_draft ? loaded->draft.kind : NULL;
    i->draft_block = loaded->has_draft && loaded->draft.block;
    i->draft_about = loaded->has_draft ? drafter_ops_of(&loaded->draft)->about : NULL;
    i->draft_kv = drafter_kv_of(loaded->has_draft ? &loaded->draft : NULL);
    i->family = loaded->model.cfg.family;
    i->stored = loaded->model.about;
    i->served_inputs = loaded->model.served_inputs;
    i->draft_off = loaded->draft_off;
    i->passed = loaded->passed;
    memcpy(i->date, loaded->date, sizeof i->date);
    const char *quant = models_quant_text(&o->quant);
    const char *file = loaded->model.about;
    i->device = engine->strings[2] = xasprintf("%s, %s%s%s%s%s", loaded->dev.k->name,
                                               loaded->dev.k->about(loaded->dev.d), quant ? ", "
                                               : "",
                                               quant ? quant : "", file ? ", " : "", file ? file
                                               : "");
    i->shared_kv = engine->strings[3] = print_sharing(engine);
    i->chat = chat_name(loaded->chat);
    i->context = engine->own.runtime.context;
    i->page_size = engine->own.runtime.kv.page_size;
    i->window = loaded->model.cfg.window;
    i->n_layer = loaded->model.cfg.n_layer;
    for (int k = 0; k < i->n_layer; k++)
        i->n_swa_layer += loaded->model.layer[k].window > 0;
    i->vocab = loaded->model.cfg.vocab;
    memcpy(i->model_sha, loaded->model.sha, sizeof i->model_sha);
    if (loaded->has_draft)
        memcpy(i->draft_sha, loaded->draft.sha, sizeof i->draft_sha);
    i->backend = loaded->dev.k->name;
    i->precision = loaded->dev.precision == K_BF16 ? "bf16" : "f32";
    i->kv = loaded->dev.kv == KV_FP8 ? "fp8" : i->precision;
    i->rows = engine->own.runtime.max_rows;
    for (int k = 0; loaded->has_draft && k < loaded->draft.n_capture; k++) {
        size_t n = strlen(i->capture);
        snprintf(i->capture + n, sizeof i->capture - n, "%s%d", k ? "," : "",
                 loaded->draft.capture[k]);
    }
    for (int p = 0; p < N_POOLS; p++)
        i->n_pages[p] = engine->own.runtime.kv.pool[p].total;
    i->need = engine_need(&engine->loaded, o, &engine->own.runtime);
    return tok_digest(o->model, i->tokenizer_sha, e);
}

static void init_locks(struct engine *engine)
{
    pthread_mutex_init(&engine->inbox.mu, NULL);
    pthread_mutex_init(&engine->shared.mu, NULL);
    pthread_mutex_init(&engine->plans.mu, NULL);
    pthread_cond_init(&engine->inbox.filled, NULL);
    debug_open(&engine->debug, engine_work_in_pause);
}

static bool start_thread(struct engine *engine, struct err *e)
{
    int rc = pthread_create(&engine->thread, NULL, engine_thread, engine);
    engine->running = rc == 0;
    return engine->running || err_set(e, ERR_USAGE, "cannot start a thread: %s", strerror(rc));
}

static void stop_thread(struct engine *engine)
{
    pthread_mutex_lock(&engine->inbox.mu);
    engine->inbox.closing = true;
    pthread_cond_signal(&engine->inbox.filled);
    pthread_mutex_unlock(&engine->inbox.mu);
    if (engine->running)
        pthread_join(engine->thread, NULL);
    engine->running = false;
}

/* What belongs to the conversation of an engine whose thread has ended. */
static void close_runtime(struct engine *engine)
{
    if (engine->own.ses.runtime)
        session_free(&engine->own.ses);
    guide_close(engine->own.guide);
    token_order_close(engine->own.order);
    free(engine->own.format);
    engine->own.guide = NULL;
    engine->own.order = NULL;
    engine->own.format = NULL;
    runtime_close(&engine->own.runtime);
}

/* Stops and frees an engine, also one that was opened only in part. */
static void local_close(struct backend *b)
{
    FREED(free_at) struct engine *engine = engine_of(b);
    local_cancel(b);
    evq_close(engine->base.screen);
    stop_thread(engine);
    while (engine->inbox.n)
        request_free(&engine->inbox.rq[--engine->inbox.n]);
    close_runtime(engine);
    engine_unload(&engine->loaded);
    evq_free(engine->base.screen);
    ring_close(&engine->shared.ring);
    contexts_free(&engine->shared.contexts);
    tape_close(&engine->shared.pages);
    free_strings(engine);
    debug_close(&engine->debug);
    buf_free(&engine->plans.json);
}

static const char *local_token(struct backend *b, int32_t id, size_t *n)
{
    size_t len = 0;
    const char *s = id < 0 ? NULL : tok_bytes(engine_of(b)->loaded.tok, id, &len);
    *n = s ? len : 0;
    return s ? s : "";
}

static bool local_fits(struct backend *b, const char *text, struct err *e)
{
    const struct engine *engine = engine_of(b);
    const struct message m = {.role = ROLE_USER, .text = (char *)(uintptr_t)text};
    return chat_fits(engine->loaded.chat, "the text", &m, 1, engine->own.runtime.context, e);
}

static void local_said(struct backend *b, struct request *rq)
{
    const struct session *s = &engine_of(b)->own.ses;
    CHECK(!local_busy(b)); /* the engine's thread waits, so that its state can be read */
    memcpy(rq->session, s->id, sizeof rq->session);
    rq->text = xstrdup(s->system);
    rq->next_turn = s->turn + 1;
    rq->draws = s->draws;
    for (int i = 0; i + 1 < s->n_msg; i++)
        if (s->msg[i].role == ROLE_USER && s->msg[i + 1].role == ROLE_ASSISTANT) {
            struct past_turn *t = past_add(&rq->past, &rq->n_past, s->turn_of[i], s->msg[i].text,
                                           s->msg[i + 1].text);
            ids_cat(&t->ids, s->msg[i + 1].ids.v, s->msg[i + 1].ids.n);
        }
}

static const struct backend_ops local_ops = {
    .close = local_close, .submit = local_submit, .cancel = local_cancel, .busy = local_busy,
    .token = local_token, .chat = local_chat, .fits = local_fits, .said = local_said,
};

struct backend *engine_open(const struct engine_opts *o, struct err *e)
{
    struct engine *engine = xcalloc(1, sizeof *engine);
    engine->base.ops = &local_ops;
    local_views(&engine->base);
    init_locks(engine);
    ring_open(&engine->shared.ring);
    engine->base.screen = evq_new(SCREEN_QUEUE);
    bool ok = engine->base.screen != NULL ||
              err_set(e, ERR_USAGE, "cannot make the queue of events: %s", strerror(errno));
    engine->log = o->log;
    engine->shared.set = o->settings;
    engine->attended = o->attended;
    engine->lanes = o->lanes;
    ok = ok && load(engine, o, e) && fill_info(engine, o, e) && start_thread(engine, e);
    if (ok)
        return &engine->base;
    local_close(&engine->base);
    return NULL;
}

/* ---- opening again --------------------------------------------------------------------------- */

/* Whether a model can be opened in place of the present one, by the headers of its files. */
static bool look_at_model(struct engine *engine, const struct engine_opts *asked, struct err *e)
{
    struct engine_opts o = *asked;
    struct loaded loaded;
    struct fit f;
    o.headers = true;
    if (!engine_load(&loaded, &o, LOAD_TEXT, e))
        return false;
    loaded.dev = engine->loaded.dev;
    bool ok = engine_fit(&loaded, &o, &f, e);
    loaded.dev = (struct device){0};
    engine_unload(&loaded);
    size_t least = f.need.weights + f.need.draft + f.need.work + f.spare;
    size_t room = f.left + need_sum(&engine->base.info.need); /* once the present model is gone */
    if (ok && f.own && least > room)
        ok = err_set(e, ERR_MODEL, "it needs %.1f GiB of the device's memory without any context; "
                     "%.1f GiB are there without the present model", (double)least / 0x1p30,
                     (double)room / 0x1p30);
    return ok;
}

/* The draft takes the place of the loaded one, which *d then holds. */
static void swap_drafts(struct loaded *loaded, struct loaded_draft *d)
{
    struct loaded_draft was = {loaded->draft, loaded->has_draft, loaded->draft_off};
    loaded->draft = d->draft;
    loaded->has_draft = d->has;
    loaded->draft_off = d->off;
    *d = was;
}

/* A new runtime over the present target, with the draft of *d; *d then holds the draft that is not
 * used. On failure the runtime has the draft that it had. A device with memory of its own need not
 * hold both: the one that it had leaves it first, and on failure is read again. */
static enum reopened with_draft(struct engine *engine, const struct engine_opts *now,
                                const struct engine_opts *o, struct loaded_draft *d, struct err *e)
{
    struct loaded *loaded = &engine->loaded;
    size_t left, all;
    loaded->dev.k->memory(loaded->dev.d, &left, &all);
    swap_drafts(loaded, d);
    if (all)
        loaded_draft_free(loaded, d);
    if (open_runtime(engine, o, e))
        return REOPEN_DONE;
    if (all) {
        struct loaded_draft was;
        if (!engine_load_draft(loaded, now, &was, &(struct err){0}))
            return REOPEN_FAILED;
        swap_drafts(loaded, d);
        loaded_draft_free(loaded, d);
        *d = was;
    }
    swap_drafts(loaded, d);
    return open_runtime(engine, now, &(struct err){0}) ? REOPEN_EMPTIED : REOPEN_FAILED;
}

static enum reopened with_model(struct engine *engine, const struct engine_opts *now,
                                const struct engine_opts *o, struct err *e)
{
    if (engine_load_again(&engine->loaded, o, e) && open_runtime(engine, o, e))
        return REOPEN_DONE;
    struct err again = {0};
    if (engine_load_again(&engine->loaded, now, &again) && open_runtime(engine, now, &again))
        return REOPEN_EMPTIED;
    return REOPEN_FAILED;
}

enum reopened engine_reopen(struct backend *b, const struct engine_opts *now,
                            const struct engine_opts *asked, struct err *e)
{
    struct engine *engine = engine_of(b);
    struct engine_opts o = with_notices(engine, asked), was = with_notices(engine, now);
    struct loaded_draft d = {0};
    bool same = strcmp(now->model, asked->model) == 0;
    CHECK(!local_busy(b));
    if (engine->own.lost)
        return FAILED(REOPEN_KEPT, e, ERR_MODEL, "the device has failed and cannot be used any "
                      "more");
    o.require_draft = o.draft != NULL;
    if (!(same ? engine_load_draft(&engine->loaded, &o, &d, e) : look_at_model(engine, &o, e)))
        return REOPEN_KEPT;
    stop_thread(engine);
    close_runtime(engine);
    engine_start_stats(engine);
    enum reopened got = same ? with_draft(engine, &was, &o, &d, e)
                             : with_model(engine, &was, &o, e);
    loaded_draft_free(&engine->loaded, &d);
    engine->inbox.closing = false;
    bool ok = got != REOPEN_FAILED && fill_info(engine, got == REOPEN_DONE ? &o : &was, e) &&
              start_thread(engine, e);
    return ok ? got : REOPEN_FAILED;
}

void engine_devices(void (*tell)(void *arg, bool ok, const char *line), void *arg)
{
    device_list(tell, arg);
}
