/* worker.c - the engine's thread: requests in, events out (turns: turn.c; opening: open.c). */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/thread/calibrate.h"
#include "engine/bugs.h"
#include "engine/thread/internal.h"

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

void engine_start_stats(struct engine *g)
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

/* Empties the conversation and the pools. A format of replies ends with the session before. */
static void begin_session(struct engine *g, const char *id)
{
    session_reset(&g->own.ses, id);
    free(g->own.format);
    g->own.format = NULL;
    engine_start_stats(g);
    engine_log_pages(g);
}

static void do_new(struct engine *g, const struct request *rq)
{
    begin_session(g, rq->session);
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

void engine_resolve_settings(struct engine *g)
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
    engine_resolve_settings(g);
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
    begin_session(g, rq->session);
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
    engine_resolve_settings(g);
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
                           .stop = &g->stop};
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

void engine_work_in_pause(struct engine *g)
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

void *engine_thread(void *arg)
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

bool local_submit(struct backend *b, struct request *rq, struct err *e)
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

void local_cancel(struct backend *b)
{
    stop_all(&engine_of(b)->stop);
}

bool local_busy(struct backend *b)
{
    struct engine *g = engine_of(b);
    pthread_mutex_lock(&g->inbox.mu);
    bool busy = g->inbox.n > 0 || g->inbox.n_client > 0 || g->inbox.working;
    pthread_mutex_unlock(&g->inbox.mu);
    return busy;
}
