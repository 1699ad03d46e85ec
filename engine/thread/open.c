/* open.c - opens and closes the engine, and opens it again with another draft or model. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "engine/run/device.h"
#include "engine/thread/internal.h"

enum { SCREEN_QUEUE = 4096 };

static void hold(void *arg, bool on)
{
    if (on)
        shared_lock(arg);
    else
        shared_unlock(arg);
}

static void post_notice(void *arg, const char *line)
{
    engine_post_text(arg, EV_NOTICE, line);
}

/* The options with what the engine adds: its notices are events. */
static struct engine_opts with_notices(struct engine *g, const struct engine_opts *asked)
{
    struct engine_opts o = *asked;
    o.notice = post_notice;
    o.notice_arg = g;
    return o;
}

/* The runtime of the conversation, over the models that are loaded, and an empty session. */
static bool open_runtime(struct engine *g, const struct engine_opts *o, struct err *e)
{
    struct runtime *r = &g->own.runtime;
    engine_resolve_settings(g);
    if (!engine_runtime(r, &g->loaded, o, e))
        return false;
    r->pass.hold = hold;
    r->pass.hold_arg = &g->shared;
    g->shared.pass = &r->pass;
    g->shared.ses = &g->own.ses;
    g->shared.bugs = &g->own.runtime.bugs;
    /* on a device with a queue a pass is only enqueued; elsewhere it computes, and must be
     * stoppable */
    r->net.stop = r->dev.k->queued ? NULL : &g->stop;
    session_init(&g->own.ses, r, g->loaded.chat, &g->shared.set);
    r->kv.log.keep = true;
    engine_log_pages(g);
    return true;
}

/* Models, device and the runtime of the conversation. */
static bool load(struct engine *g, const struct engine_opts *asked, struct err *e)
{
    struct engine_opts o = with_notices(g, asked);
    return engine_load(&g->loaded, &o, LOAD_DEVICE | LOAD_TEXT, e) && open_runtime(g, &o, e);
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
static char *print_sharing(const struct engine *g)
{
    const struct loaded *l = &g->loaded;
    const struct model *m = &l->model;
    struct buf all = {0};
    for (int owner = 0; owner < m->cfg.n_layer; owner++) {
        struct buf one = {0};
        if (print_readers(m, owner, &one)) {
            bool several = strpbrk(one.p, ",-");
            buf_printf(&all, "%slayer%s %s read%s layer %d (%s)", all.n ? "; " : "",
                       several ? "s" : "", one.p, several ? "" : "s", owner,
                       pool_name(m->layer[owner].window ? POOL_SWA : POOL_FULL));
        }
        buf_free(&one);
    }
    const int owner[] = {l->draft.kv_full, l->draft.kv_swa};
    for (int i = 0; l->has_draft && drafter_kv_of(&l->draft) == DRAFT_KV_TARGET && i < 2; i++)
        if (owner[i] >= 0)
            buf_printf(&all, "%sthe draft's %s layers read layer %d", all.n ? "; " : "",
                       i ? "sliding" : "full", owner[i]);
    return all.p;
}

static void free_strings(struct engine *g)
{
    for (size_t i = 0; i < sizeof g->strings / sizeof *g->strings; i++) {
        free(g->strings[i]);
        g->strings[i] = NULL;
    }
}

/* False and *e: the tokenizer's files cannot be read. */
static bool fill_info(struct engine *g, const struct engine_opts *o, struct err *e)
{
    const struct loaded *l = &g->loaded;
    struct backend_info *i = &g->info;
    free_strings(g);
    *i = (struct backend_info){0};
    i->model_dir = g->strings[0] = xstrdup(o->model);
    i->draft_dir = l->has_draft ? (g->strings[1] = xstrdup(o->draft)) : NULL;
    i->draft_kind = l->has_draft ? l->draft.kind : NULL;
    i->draft_about = l->has_draft ? drafter_ops_of(&l->draft)->about : NULL;
    i->draft_kv = drafter_kv_of(l->has_draft ? &l->draft : NULL);
    i->family = l->model.cfg.family;
    i->stored = l->model.about;
    i->served_inputs = l->model.served_inputs;
    i->draft_off = l->draft_off;
    i->passed = l->passed;
    memcpy(i->date, l->date, sizeof i->date);
    const char *quant = models_quant_text(&o->quant);
    const char *file = l->model.about;
    i->device = g->strings[2] = xasprintf("%s, %s%s%s%s%s", l->dev.k->name,
                                          l->dev.k->about(l->dev.d), quant ? ", " : "",
                                          quant ? quant : "", file ? ", " : "", file ? file : "");
    i->shared_kv = g->strings[3] = print_sharing(g);
    i->chat = chat_name(l->chat);
    i->context = g->own.runtime.context;
    i->page_size = g->own.runtime.kv.page_size;
    i->window = l->model.cfg.window;
    i->n_layer = l->model.cfg.n_layer;
    for (int k = 0; k < i->n_layer; k++)
        i->n_swa_layer += l->model.layer[k].window > 0;
    i->vocab = l->model.cfg.vocab;
    i->weight_bytes = l->model.bytes + (l->has_draft ? l->draft.bytes : 0);
    memcpy(i->model_sha, l->model.sha, sizeof i->model_sha);
    if (l->has_draft)
        memcpy(i->draft_sha, l->draft.sha, sizeof i->draft_sha);
    i->backend = l->dev.k->name;
    i->precision = l->dev.precision == K_BF16 ? "bf16" : "f32";
    i->kv = l->dev.kv == KV_FP8 ? "fp8" : i->precision;
    i->rows = g->own.runtime.max_rows;
    for (int k = 0; l->has_draft && k < l->draft.n_capture; k++) {
        size_t n = strlen(i->capture);
        snprintf(i->capture + n, sizeof i->capture - n, "%s%d", k ? "," : "", l->draft.capture[k]);
    }
    for (int p = 0; p < N_POOLS; p++)
        i->n_pages[p] = g->own.runtime.kv.pool[p].total;
    i->need = engine_need(&g->loaded, o, &g->own.runtime);
    return tok_digest(o->model, i->tokenizer_sha, e);
}

static void init_locks(struct engine *g)
{
    pthread_mutex_init(&g->inbox.mu, NULL);
    pthread_mutex_init(&g->shared.mu, NULL);
    pthread_mutex_init(&g->plans.mu, NULL);
    pthread_cond_init(&g->inbox.filled, NULL);
    debug_open(&g->debug, engine_work_in_pause);
}

static bool start_thread(struct engine *g, struct err *e)
{
    int rc = pthread_create(&g->thread, NULL, engine_thread, g);
    g->running = rc == 0;
    return g->running || err_set(e, ERR_USAGE, "cannot start a thread: %s", strerror(rc));
}

static void stop_thread(struct engine *g)
{
    pthread_mutex_lock(&g->inbox.mu);
    g->inbox.closing = true;
    pthread_cond_signal(&g->inbox.filled);
    pthread_mutex_unlock(&g->inbox.mu);
    if (g->running)
        pthread_join(g->thread, NULL);
    g->running = false;
}

/* What belongs to the conversation of an engine whose thread has ended. */
static void close_runtime(struct engine *g)
{
    if (g->own.ses.runtime)
        session_free(&g->own.ses);
    guide_close(g->own.guide);
    token_order_close(g->own.order);
    free(g->own.format);
    g->own.guide = NULL;
    g->own.order = NULL;
    g->own.format = NULL;
    runtime_close(&g->own.runtime);
}

/* Stops and frees an engine, also one that was opened only in part. */
static void local_close(struct backend *b)
{
    struct engine *g = engine_of(b);
    local_cancel(b);
    evq_close(g->screen);
    stop_thread(g);
    while (g->inbox.n)
        request_free(&g->inbox.rq[--g->inbox.n]);
    close_runtime(g);
    engine_unload(&g->loaded);
    evq_free(g->screen);
    ring_close(&g->shared.ring);
    contexts_free(&g->shared.contexts);
    tape_close(&g->shared.pages);
    free_strings(g);
    debug_close(&g->debug);
    buf_free(&g->plans.json);
    free(g);
}

static const struct backend_info *local_info(struct backend *b)
{
    return &engine_of(b)->info;
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
    const struct engine *g = engine_of(b);
    const struct message m = {.role = ROLE_USER, .text = (char *)(uintptr_t)text};
    return chat_fits(g->loaded.chat, "the text", &m, 1, g->own.runtime.context, e);
}

static void local_said(struct backend *b, struct request *rq)
{
    const struct session *s = &engine_of(b)->own.ses;
    CHECK(!local_busy(b)); /* the engine's thread waits, so that its state can be read */
    memcpy(rq->session, s->id, sizeof rq->session);
    rq->text = xstrdup(s->system);
    rq->next_turn = s->turn + 1;
    rq->draws = s->draws;
    rq->past = xcalloc((size_t)max_int(1, s->n_msg), sizeof *rq->past);
    for (int i = 0; i + 1 < s->n_msg; i++)
        if (s->msg[i].role == ROLE_USER && s->msg[i + 1].role == ROLE_ASSISTANT) {
            struct past_turn *t = &rq->past[rq->n_past++];
            *t = (struct past_turn){.turn = s->turn_of[i], .user = xstrdup(s->msg[i].text),
                                    .reply = xstrdup(s->msg[i + 1].text)};
            ids_cat(&t->ids, s->msg[i + 1].ids.v, s->msg[i + 1].ids.n);
        }
}

static int local_fd(struct backend *b)
{
    return evq_fd(engine_of(b)->screen);
}

static bool local_next(struct backend *b, struct event *ev)
{
    return evq_get(engine_of(b)->screen, ev);
}

static bool local_wait(struct backend *b, struct event *ev, int ms)
{
    return evq_wait(engine_of(b)->screen, ev, ms);
}

static void local_rest(struct backend *b, int ms)
{
    evq_rest(engine_of(b)->screen, SCREEN_QUEUE / 4, ms);
}

static const struct backend_ops local_ops = {
    .close = local_close, .info = local_info, .submit = local_submit, .cancel = local_cancel,
    .busy = local_busy, .fd = local_fd, .next = local_next, .wait = local_wait,
    .rest = local_rest, .token = local_token, .chat = local_chat, .fits = local_fits,
    .said = local_said,
};

struct backend *engine_open(const struct engine_opts *o, struct err *e)
{
    struct engine *g = xcalloc(1, sizeof *g);
    g->base.ops = &local_ops;
    local_views(&g->base);
    init_locks(g);
    ring_open(&g->shared.ring);
    g->screen = evq_new(SCREEN_QUEUE);
    bool ok = g->screen != NULL ||
              err_set(e, ERR_USAGE, "cannot make the queue of events: %s", strerror(errno));
    g->log = o->log;
    g->shared.set = o->settings;
    g->attended = o->attended;
    g->lanes = o->lanes;
    ok = ok && load(g, o, e) && fill_info(g, o, e) && start_thread(g, e);
    if (ok)
        return &g->base;
    local_close(&g->base);
    return NULL;
}

/* ---- opening again --------------------------------------------------------------------------- */

/* Whether a model can be opened in place of the present one, by the headers of its files. */
static bool look_at_model(struct engine *g, const struct engine_opts *asked, struct err *e)
{
    struct engine_opts o = *asked;
    struct loaded l;
    struct fit f;
    o.headers = true;
    if (!engine_load(&l, &o, LOAD_TEXT, e))
        return false;
    l.dev = g->loaded.dev;
    bool ok = engine_fit(&l, &o, &f, e);
    l.dev = (struct device){0};
    engine_unload(&l);
    size_t least = f.need.weights + f.need.draft + f.need.work;
    size_t room = f.left + need_sum(&g->info.need); /* once the present model is gone */
    if (ok && f.own && least > room)
        ok = err_set(e, ERR_MODEL, "it needs %.1f GiB of the device's memory without any context; "
                     "%.1f GiB are there without the present model", (double)least / 0x1p30,
                     (double)room / 0x1p30);
    return ok;
}

/* The draft takes the place of the loaded one, which *d then holds. */
static void swap_drafts(struct loaded *l, struct loaded_draft *d)
{
    struct loaded_draft was = {l->draft, l->has_draft, l->draft_off};
    l->draft = d->draft;
    l->has_draft = d->has;
    l->draft_off = d->off;
    *d = was;
}

/* A new runtime over the present target, with the draft of *d; *d then holds the draft that is not
 * used. On failure the runtime has the draft that it had. */
static enum reopened with_draft(struct engine *g, const struct engine_opts *now,
                                const struct engine_opts *o, struct loaded_draft *d, struct err *e)
{
    swap_drafts(&g->loaded, d);
    if (open_runtime(g, o, e))
        return REOPEN_DONE;
    swap_drafts(&g->loaded, d);
    return open_runtime(g, now, &(struct err){0}) ? REOPEN_EMPTIED : REOPEN_FAILED;
}

static enum reopened with_model(struct engine *g, const struct engine_opts *now,
                                const struct engine_opts *o, struct err *e)
{
    if (engine_load_again(&g->loaded, o, e) && open_runtime(g, o, e))
        return REOPEN_DONE;
    struct err again = {0};
    if (engine_load_again(&g->loaded, now, &again) && open_runtime(g, now, &again))
        return REOPEN_EMPTIED;
    return REOPEN_FAILED;
}

enum reopened engine_reopen(struct backend *b, const struct engine_opts *now,
                            const struct engine_opts *asked, struct err *e)
{
    struct engine *g = engine_of(b);
    struct engine_opts o = with_notices(g, asked), was = with_notices(g, now);
    struct loaded_draft d = {0};
    bool same = strcmp(now->model, asked->model) == 0;
    CHECK(!local_busy(b));
    if (g->own.lost) {
        err_set(e, ERR_MODEL, "the device has failed and cannot be used any more");
        return REOPEN_KEPT;
    }
    o.require_draft = o.draft != NULL;
    if (!(same ? engine_load_draft(&g->loaded, &o, &d, e) : look_at_model(g, &o, e)))
        return REOPEN_KEPT;
    stop_thread(g);
    close_runtime(g);
    engine_start_stats(g);
    enum reopened got = same ? with_draft(g, &was, &o, &d, e) : with_model(g, &was, &o, e);
    loaded_draft_free(&g->loaded, &d);
    g->inbox.closing = false;
    bool ok = got != REOPEN_FAILED && fill_info(g, got == REOPEN_DONE ? &o : &was, e) &&
              start_thread(g, e);
    return ok ? got : REOPEN_FAILED;
}

void engine_devices(void (*tell)(void *arg, bool ok, const char *line), void *arg)
{
    device_list(tell, arg);
}
