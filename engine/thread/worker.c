/* worker.c - opens the engine and runs its thread: requests in, events out (turns: turn.c). */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/thread/calibrate.h"
#include "engine/bugs.h"
#include "engine/engine.h"
#include "engine/run/device.h"
#include "engine/thread/internal.h"

enum { SCREEN_QUEUE = 4096 };

/* ---- events ---------------------------------------------------------------------------------- */

static void post_settings(struct engine *g, enum op_kind op)
{
    struct buf b = {0};
    settings_print(&g->shared.set, &b);
    engine_post_op(g, op, b.p ? b.p : "", 0);
    buf_clear(&b);
    /* fault switches outlive sessions: each session's log names those that are on */
    for (int i = 0; i < N_BUGS; i++)
        if (bug_on(&g->own.runtime.bugs, (enum bug)i)) {
            buf_printf(&b, "bug.%d=%s", bug_at((enum bug)i)->number,
                       bug_state_name((enum bug)i, bug_on(&g->own.runtime.bugs, (enum bug)i)));
            engine_post_op(g, OP_SET, b.p, 0);
            buf_clear(&b);
        }
    buf_free(&b);
}

static void post_session(struct engine *g, const char *parent, int fork_turn)
{
    struct event ev = engine_event(g, EV_SESSION);
    ev.fork_turn = fork_turn;
    if (parent)
        memcpy(ev.parent, parent, sizeof ev.parent);
    engine_post(g, &ev);
}

/* ---- requests -------------------------------------------------------------------------------- */

static void start_stats(struct engine *g)
{
    shared_lock(&g->shared);
    g->shared.stats = (struct chat_view){0};
    checker_start(&g->own.runtime.pass.check);
    ring_clear(&g->shared.ring);
    contexts_free(&g->shared.contexts);
    tape_clear(&g->shared.pages);
    g->shared.turn = g->shared.step = 0;
    g->shared.count = (struct turn_count){0};
    shared_unlock(&g->shared);
}

static void do_new(struct engine *g, const struct request *rq)
{
    session_reset(&g->own.ses, rq->session);
    free(g->own.format); /* a new session's log has none */
    g->own.format = NULL;
    start_stats(g);
    engine_log_pages(g);
    if (rq->text)
        session_set_system(&g->own.ses, rq->text);
    post_session(g, NULL, 0);
    post_settings(g, OP_OPEN);
    if (g->own.ses.system[0])
        engine_post_op(g, OP_SYSTEM, g->own.ses.system, 0);
}

/* What replies must be from now on; a format that is not supported changes nothing. */
static void do_format(struct engine *g, const char *format)
{
    struct err e;
    struct grammar *grammar = NULL;
    if (*format && !constrain_compile(&g->loaded, format, NULL, &grammar, &e)) {
        engine_post_text(g, EV_NOTICE, e.msg);
        return;
    }
    grammar_close(grammar);
    free(g->own.format);
    g->own.format = *format ? xstrdup(format) : NULL;
    engine_post_op(g, OP_FORMAT, format, 0);
}

/* Replaces automatic settings by the values that the engine chose, so that the log holds what a
 * replay needs. */
static void resolve_settings(struct engine *g)
{
    g->shared.set.chunk = load_chunk(&g->loaded, &g->shared.set);
    tape_budget(&g->shared.pages, (size_t)g->shared.set.ring << 20);
    if (g->shared.set.forget == FORGET_AUTO)
        g->shared.set.forget = g->attended ? FORGET_ASK : FORGET_OLDEST;
}

/* Fills the conversation with the turns of the request. */
static void take_past(struct engine *g, const struct request *rq)
{
    struct session *s = &g->own.ses;
    for (int i = 0; i < rq->n_past; i++) {
        const struct past_turn *p = &rq->past[i];
        if (p->ids.n == 0 && (!p->reply || !p->reply[0]))
            continue; /* a turn without a reply is not in the context */
        session_add(s, ROLE_USER, p->turn, p->user, NULL, 0);
        session_add(s, ROLE_ASSISTANT, p->turn, p->reply ? p->reply : "", p->ids.v, p->ids.n);
    }
    shared_lock(&g->shared);
    s->turn = g->shared.turn = max_int(0, rq->next_turn - 1);
    g->shared.step = 0;
    shared_unlock(&g->shared);
    s->draws = rq->draws;
}

/* The sender has already refused settings that do not apply. */
static void take_settings(struct engine *g, const char *lines)
{
    struct err e = {0};
    shared_lock(&g->shared);
    bool ok = settings_parse(&g->shared.set, lines, &e);
    resolve_settings(g);
    shared_unlock(&g->shared);
    if (!ok)
        engine_post_text(g, EV_NOTICE, e.msg);
}

/* The numbers of the turns that a fork's child begins with. */
static void post_fork(struct engine *g)
{
    struct buf turns = {0};
    for (int i = 0; i < g->own.ses.n_msg; i++)
        if (g->own.ses.msg[i].role == ROLE_USER)
            buf_printf(&turns, "%s%d", turns.n ? " " : "", g->own.ses.turn_of[i]);
    engine_post_op(g, OP_FORK, turns.p ? turns.p : "", g->own.ses.turn);
    buf_free(&turns);
}

static void do_resume(struct engine *g, const struct request *rq)
{
    session_reset(&g->own.ses, rq->session);
    start_stats(g);
    engine_log_pages(g);
    if (rq->settings)
        take_settings(g, rq->settings);
    if (rq->text)
        session_set_system(&g->own.ses, rq->text);
    take_past(g, rq);
    post_session(g, rq->parent[0] ? rq->parent : NULL, rq->parent[0] ? g->own.ses.turn : 0);
    if (rq->parent[0])
        post_fork(g);
    post_settings(g, OP_RESUME);
    if (rq->text) /* also if it is empty: the system prompt in the log may be another */
        engine_post_op(g, OP_SYSTEM, g->own.ses.system, 0);
}

static void do_fork(struct engine *g, const struct request *rq)
{
    char parent[SESSION_ID];
    memcpy(parent, g->own.ses.id, sizeof parent);
    session_fork(&g->own.ses, rq->session);
    struct replaced old = session_take_messages(&g->own.ses);
    take_past(g, rq);
    session_fit_states(&g->own.ses, &old);
    engine_log_pages(g);
    shared_lock(&g->shared);
    ring_cut(&g->shared.ring, g->own.ses.turn);
    contexts_cut(&g->shared.contexts, g->own.ses.turn);
    tape_cut(&g->shared.pages, g->own.ses.turn, INT_MAX);
    shared_unlock(&g->shared);
    post_session(g, parent, g->own.ses.turn);
    post_fork(g);
}

static void do_undo(struct engine *g)
{
    if (g->own.ses.n_msg < 2) {
        engine_post_text(g, EV_NOTICE, "there is nothing to undo");
        return;
    }
    int turn = g->own.ses.turn_of[g->own.ses.n_msg - 1];
    session_rewind(&g->own.ses, 2, CHANGE_UNDO);
    engine_post_op(g, OP_UNDO, "", turn);
}

/* The engine's switches of historical faults: name is the fault's number or name. */
static bool set_bug(struct engine *g, const char *name, const char *value, struct err *e)
{
    struct bugs on = g->own.runtime.bugs;
    bool ok = bug_set(&on, name, value, e);
    if (ok)
        runtime_set_bugs(&g->own.runtime, &on);
    return ok;
}

static void do_set(struct engine *g, const char *line)
{
    struct err e = {0};
    char *name = xstrdup(line), *value = strchr(name, '=');
    if (value)
        *value++ = '\0';
    shared_lock(&g->shared);
    bool ok = strncmp(name, "bug.", 4) == 0
                  ? set_bug(g, name + 4, value ? value : "", &e)
                  : settings_set(&g->shared.set, name, value ? value : "", &e);
    resolve_settings(g);
    shared_unlock(&g->shared);
    struct buf done = {0};
    buf_printf(&done, "%s=", name);
    if (!ok)
        engine_post_text(g, EV_NOTICE, e.msg);
    else if (settings_get(&g->shared.set, name, &done)) /* the value in place of `auto` */
        engine_post_op(g, OP_SET, done.p, 0);
    else
        engine_post_op(g, OP_SET, line, 0);
    buf_free(&done);
    free(name);
}

/* Scores the ways to read the draft's captured layers on the conversation, on a runtime of its
 * own. */
static void do_calibrate(struct engine *g)
{
    struct err e = {0};
    struct calibration c;
    const struct ids *said = &g->own.ses.lane.tok;
    struct calib_opts o = {.l = &g->loaded, .text = said->v, .n_text = said->n,
                           .bugs = &g->own.runtime.bugs, .stop = &g->stop};
    struct event ev = engine_event(g, EV_CALIBRATION);
    if (!calibrate_run(&o, &c, &e)) {
        engine_fail(g, &e);
        return;
    }
    ev.calibration = xmalloc(sizeof c);
    *ev.calibration = c;
    engine_post(g, &ev);
}

static void serve(struct engine *g, const struct request *rq)
{
    switch (rq->kind) {
    case RQ_SAY: engine_say(g, rq); break;
    case RQ_REGEN: engine_regen(g, rq); break;
    case RQ_FORGET: engine_forget(g, rq->text ? rq->text : ""); break;
    case RQ_UNDO: do_undo(g); break;
    case RQ_NEW: do_new(g, rq); break;
    case RQ_SYSTEM:
        session_set_system(&g->own.ses, rq->text ? rq->text : "");
        engine_post_op(g, OP_SYSTEM, g->own.ses.system, 0);
        break;
    case RQ_FORMAT: do_format(g, rq->text ? rq->text : ""); break;
    case RQ_SET: do_set(g, rq->text ? rq->text : ""); break;
    case RQ_FORK: do_fork(g, rq); break;
    case RQ_RESUME: do_resume(g, rq); break;
    case RQ_SEVERAL: engine_several(g, rq); break;
    case RQ_BATCH: engine_batch(g, rq); break;
    case RQ_PROBE: engine_probe(g, &rq->probe); break;
    case RQ_WHAT_IF: engine_what_if(g, rq->text); break;
    case RQ_CALIBRATE: do_calibrate(g); break;
    }
}

enum work { WORK_REQUEST, WORK_JOBS, WORK_OVER };

/* Waits for a request or for jobs; if both are there, they are served alternately. */
static enum work next_work(struct engine *g, enum work last, struct request *rq)
{
    pthread_mutex_lock(&g->inbox.mu);
    g->inbox.working = false;
    while (g->inbox.n == 0 && g->inbox.n_client == 0 && !g->inbox.closing)
        pthread_cond_wait(&g->inbox.filled, &g->inbox.mu);
    /* requests and jobs take turns; but RQ_NEW, by which a server empties its prefix cache, must
     * not drop the KV of a job that was begun after it */
    bool fresh = g->inbox.n > 0 && g->inbox.rq[0].kind == RQ_NEW;
    bool jobs = g->inbox.n_client && (g->inbox.n == 0 || (last == WORK_REQUEST && !fresh));
    enum work work = g->inbox.closing ? WORK_OVER : jobs ? WORK_JOBS : WORK_REQUEST;
    if (work == WORK_REQUEST) {
        *rq = g->inbox.rq[0];
        g->stop.running = rq->number;
        g->inbox.n--;
        memmove(g->inbox.rq, g->inbox.rq + 1, (size_t)g->inbox.n * sizeof *g->inbox.rq);
        g->inbox.working = true;
    }
    pthread_mutex_unlock(&g->inbox.mu);
    return work;
}

/* Takes the first request that a paused turn can serve out of the queue. False: there is none. */
static bool next_for_pause(struct engine *g, struct request *rq)
{
    pthread_mutex_lock(&g->inbox.mu);
    int i = 0;
    while (i < g->inbox.n && g->inbox.rq[i].kind != RQ_PROBE &&
           g->inbox.rq[i].kind != RQ_WHAT_IF)
        i++;
    bool got = i < g->inbox.n;
    if (got) {
        *rq = g->inbox.rq[i];
        g->inbox.n--;
        memmove(g->inbox.rq + i, g->inbox.rq + i + 1,
                (size_t)(g->inbox.n - i) * sizeof *g->inbox.rq);
    }
    pthread_mutex_unlock(&g->inbox.mu);
    return got;
}

/* While a turn is paused: carries out the probes that wait. They use the buffer of the logits, and
 * say so in own.probed. */
static void work_in_pause(struct engine *g)
{
    struct request rq;
    while (next_for_pause(g, &rq)) {
        if (rq.kind == RQ_WHAT_IF)
            engine_what_if(g, rq.text);
        else
            engine_probe(g, &rq.probe);
        request_free(&rq);
    }
}

static void *engine_thread(void *arg)
{
    struct engine *g = arg;
    struct request rq;
    tok_stop_on(&g->stop); /* a long message is encoded on this thread */
    for (enum work w = WORK_JOBS; (w = next_work(g, w, &rq)) != WORK_OVER;) {
        if (w == WORK_JOBS) {
            engine_jobs(g);
            continue;
        }
        engine_jobs_rest(g);
        if (g->own.lost)
            engine_fault(g, 0, &(struct err){.kind = ERR_MODEL});
        else
            serve(g, &rq);
        request_free(&rq);
    }
    engine_jobs_free(g);
    return NULL;
}

/* Whether the model has what a setting asks for. A value that is none is reported elsewhere. */
static bool has_setting(const struct engine *g, const char *line, struct err *e)
{
    struct settings s;
    settings_init(&s);
    if (!settings_parse(&s, line, NULL))
        return true;
    struct chat_style style = load_style(&s);
    return chat_has_style(g->loaded.chat, &style, e);
}

static bool local_submit(struct backend *b, struct request *rq, struct err *e)
{
    struct engine *g = engine_of(b);
    if (rq->kind == RQ_SET && !has_setting(g, rq->text, e)) {
        request_free(rq);
        return false;
    }
    pthread_mutex_lock(&g->inbox.mu);
    bool ok = g->inbox.n < MAX_REQUESTS;
    if (ok) {
        rq->number = atomic_fetch_add(&g->stop.submitted, 1) + 1;
        g->inbox.rq[g->inbox.n++] = *rq;
    }
    pthread_cond_signal(&g->inbox.filled);
    pthread_mutex_unlock(&g->inbox.mu);
    if (!ok) {
        request_free(rq);
        return err_set(e, ERR_USAGE, "%d requests are waiting already", MAX_REQUESTS);
    }
    *rq = (struct request){0};
    return true;
}

static void local_cancel(struct backend *b)
{
    stop_all(&engine_of(b)->stop);
}

static bool local_busy(struct backend *b)
{
    struct engine *g = engine_of(b);
    pthread_mutex_lock(&g->inbox.mu);
    bool busy = g->inbox.n > 0 || g->inbox.n_client > 0 || g->inbox.working;
    pthread_mutex_unlock(&g->inbox.mu);
    return busy;
}

/* ---- opening and closing --------------------------------------------------------------------- */

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

/* Models, device and the runtime of the conversation. */
static bool load(struct engine *g, const struct engine_opts *asked, struct err *e)
{
    struct engine_opts o = *asked;
    struct runtime *r = &g->own.runtime;
    o.notice = post_notice;
    o.notice_arg = g;
    if (!engine_load(&g->loaded, &o, LOAD_DEVICE | LOAD_TEXT, e))
        return false;
    resolve_settings(g);
    if (!engine_runtime(r, &g->loaded, &o, e))
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

static void fill_info(struct engine *g, const struct engine_opts *o)
{
    const struct loaded *l = &g->loaded;
    struct backend_info *i = &g->info;
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
}

static void init_locks(struct engine *g)
{
    pthread_mutex_init(&g->inbox.mu, NULL);
    pthread_mutex_init(&g->shared.mu, NULL);
    pthread_mutex_init(&g->plans.mu, NULL);
    pthread_cond_init(&g->inbox.filled, NULL);
    debug_open(&g->debug, work_in_pause);
}

/* Stops and frees an engine, also one that was opened only in part. */
static void local_close(struct backend *b)
{
    struct engine *g = engine_of(b);
    local_cancel(b);
    pthread_mutex_lock(&g->inbox.mu);
    g->inbox.closing = true;
    pthread_cond_signal(&g->inbox.filled);
    pthread_mutex_unlock(&g->inbox.mu);
    evq_close(g->screen);
    if (g->running)
        pthread_join(g->thread, NULL);
    while (g->inbox.n)
        request_free(&g->inbox.rq[--g->inbox.n]);
    if (g->own.ses.runtime)
        session_free(&g->own.ses);
    guide_close(g->own.guide);
    token_order_close(g->own.order);
    free(g->own.format);
    runtime_close(&g->own.runtime);
    engine_unload(&g->loaded);
    evq_free(g->screen);
    ring_close(&g->shared.ring);
    contexts_free(&g->shared.contexts);
    tape_close(&g->shared.pages);
    for (size_t i = 0; i < sizeof g->strings / sizeof *g->strings; i++)
        free(g->strings[i]);
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
    ok = ok && load(g, o, e) && tok_digest(o->model, g->info.tokenizer_sha, e);
    if (ok) {
        fill_info(g, o);
        int rc = pthread_create(&g->thread, NULL, engine_thread, g);
        g->running = rc == 0;
        ok = g->running || err_set(e, ERR_USAGE, "cannot start a thread: %s", strerror(rc));
    }
    if (ok)
        return &g->base;
    local_close(&g->base);
    return NULL;
}

void engine_devices(void (*tell)(void *arg, bool ok, const char *line), void *arg)
{
    device_list(tell, arg);
}
