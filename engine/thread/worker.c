/* worker.c - the engine's thread: requests in, events out (turns: turn.c; opening: open.c). */
#include <limits.h>

#include "engine/thread/calibrate.h"
#include "engine/bugs.h"
#include "engine/thread/internal.h"

/* ---- events ---------------------------------------------------------------------------------- */

static void post_settings(struct engine *engine, enum op_kind op)
{
    FREED(buf_free) struct buf b = {0};
    settings_print(&engine->shared.set, &b);
    engine_post_op(engine, op, buf_text(&b), 0);
    buf_clear(&b);
    /* fault switches outlive sessions: each session's log names those that are on */
    for (int i = 0; i < N_BUGS; i++)
        if (bug_on(&engine->own.runtime.bugs, (enum bug)i)) {
            buf_printf(&b, "bug.%d=%s", bug_at((enum bug)i)->number,
                       bug_state_name((enum bug)i, bug_on(&engine->own.runtime.bugs, (enum bug)i)));
            engine_post_op(engine, OP_SET, b.p, 0);
            buf_clear(&b);
        }
}

static void post_session(struct engine *engine, const char *parent, int fork_turn)
{
    struct event ev = engine_event(engine, EV_SESSION);
    ev.fork_turn = fork_turn;
    if (parent)
        memcpy(ev.parent, parent, sizeof ev.parent);
    engine_post(engine, &ev);
}

/* ---- requests -------------------------------------------------------------------------------- */

void engine_start_stats(struct engine *engine)
{
    LOCKED(&engine->shared.mu);
    engine->shared.stats = (struct chat_view){0};
    checker_start(&engine->own.runtime.pass.check);
    ring_clear(&engine->shared.ring);
    contexts_free(&engine->shared.contexts);
    tape_clear(&engine->shared.pages);
    engine->shared.turn = engine->shared.step = 0;
    engine->shared.count = (struct turn_count){0};
}

/* Empties the conversation and the pools. A format of replies ends with the session before. */
static void begin_session(struct engine *engine, const char *id)
{
    session_reset(&engine->own.ses, id);
    DROP(engine->own.format);
    engine_start_stats(engine);
    engine_log_pages(engine);
}

static void do_new(struct engine *engine, const struct request *rq)
{
    begin_session(engine, rq->session);
    if (rq->text)
        session_set_system(&engine->own.ses, rq->text);
    post_session(engine, NULL, 0);
    post_settings(engine, OP_OPEN);
    if (engine->own.ses.system[0])
        engine_post_op(engine, OP_SYSTEM, engine->own.ses.system, 0);
}

/* What replies must be from now on; a format that is not supported changes nothing. */
static void do_format(struct engine *engine, const char *format)
{
    struct err e;
    struct grammar *grammar = NULL;
    if (*format && !constrain_compile(&engine->loaded, format, NULL, &grammar, &e)) {
        engine_notice(engine, e.msg);
        return;
    }
    grammar_close(grammar);
    set_text(&engine->own.format, *format ? format : NULL);
    engine_post_op(engine, OP_FORMAT, format, 0);
}

void engine_resolve_settings(struct engine *engine)
{
    engine->shared.set.chunk = load_chunk(&engine->loaded, &engine->shared.set);
    tape_budget(&engine->shared.pages, (size_t)engine->shared.set.ring << 20);
    if (engine->shared.set.forget == FORGET_AUTO)
        engine->shared.set.forget = engine->attended ? FORGET_ASK : FORGET_OLDEST;
}

/* Fills the conversation with the turns of the request. */
static void take_past(struct engine *engine, const struct request *rq)
{
    struct session *s = &engine->own.ses;
    FOR_EACH(const struct past_turn, p, rq->past, rq->n_past) {
        if (p->ids.n == 0 && (!p->reply || !p->reply[0]))
            continue; /* a turn without a reply is not in the context */
        session_add(s, ROLE_USER, p->turn, p->user, NULL, 0);
        session_add(s, ROLE_ASSISTANT, p->turn, p->reply ? p->reply : "", p->ids.v, p->ids.n);
    }
    shared_lock(&engine->shared);
    s->turn = engine->shared.turn = max_int(0, rq->next_turn - 1);
    engine->shared.step = 0;
    shared_unlock(&engine->shared);
    s->draws = rq->draws;
}

/* The sender has already refused settings that do not apply. */
static void take_settings(struct engine *engine, const char *lines)
{
    struct err e = {0};
    shared_lock(&engine->shared);
    bool ok = settings_parse(&engine->shared.set, lines, &e);
    engine_resolve_settings(engine);
    shared_unlock(&engine->shared);
    if (!ok)
        engine_notice(engine, e.msg);
}

/* The numbers of the turns that a fork's child begins with. */
static void post_fork(struct engine *engine)
{
    FREED(ids_free) struct ids turns = {0};
    for (int i = 0; i < engine->own.ses.n_msg; i++)
        if (engine->own.ses.msg[i].role == ROLE_USER)
            ids_add(&turns, engine->own.ses.turn_of[i]);
    engine_post_turns(engine, OP_FORK, &turns, engine->own.ses.turn);
}

static void do_resume(struct engine *engine, const struct request *rq)
{
    begin_session(engine, rq->session);
    if (rq->settings)
        take_settings(engine, rq->settings);
    if (rq->text)
        session_set_system(&engine->own.ses, rq->text);
    take_past(engine, rq);
    post_session(engine, rq->parent[0] ? rq->parent : NULL, rq->parent[0] ? engine->own.ses.turn
                 : 0);
    if (rq->parent[0])
        post_fork(engine);
    post_settings(engine, OP_RESUME);
    if (rq->text) /* also if it is empty: the system prompt in the log may be another */
        engine_post_op(engine, OP_SYSTEM, engine->own.ses.system, 0);
}

static void do_fork(struct engine *engine, const struct request *rq)
{
    char parent[SESSION_ID];
    memcpy(parent, engine->own.ses.id, sizeof parent);
    session_fork(&engine->own.ses, rq->session);
    struct replaced old = session_take_messages(&engine->own.ses);
    take_past(engine, rq);
    session_fit_states(&engine->own.ses, &old);
    engine_log_pages(engine);
    shared_lock(&engine->shared);
    ring_cut(&engine->shared.ring, engine->own.ses.turn);
    contexts_cut(&engine->shared.contexts, engine->own.ses.turn);
    tape_cut(&engine->shared.pages, engine->own.ses.turn, INT_MAX);
    shared_unlock(&engine->shared);
    post_session(engine, parent, engine->own.ses.turn);
    post_fork(engine);
}

static void do_undo(struct engine *engine)
{
    if (engine->own.ses.n_msg < 2) {
        engine_notice(engine, "there is nothing to undo");
        return;
    }
    int turn = engine->own.ses.turn_of[engine->own.ses.n_msg - 1];
    session_rewind(&engine->own.ses, 2, CHANGE_UNDO);
    engine_post_op(engine, OP_UNDO, "", turn);
}

/* The engine's switches of historical faults: name is the fault's number or name. */
static bool set_bug(struct engine *engine, const char *name, const char *value, struct err *e)
{
    struct bugs on = engine->own.runtime.bugs;
    bool ok = bug_set(&on, name, value, e);
    if (ok)
        runtime_set_bugs(&engine->own.runtime, &on);
    return ok;
}

static void do_set(struct engine *engine, const char *line)
{
    struct err e = {0};
    FREED(free_at) char *name = xstrdup(line);
    char *value = strchr(name, '=');
    if (value)
        *value++ = '\0';
    shared_lock(&engine->shared);
    bool ok = strncmp(name, "bug.", 4) == 0
                  ? set_bug(engine, name + 4, value ? value : "", &e)
                  : settings_set(&engine->shared.set, name, value ? value : "", &e);
    engine_resolve_settings(engine);
    shared_unlock(&engine->shared);
    FREED(buf_free) struct buf done = {0};
    buf_printf(&done, "%s=", name);
    if (!ok)
        engine_notice(engine, e.msg);
    else if (settings_get(&engine->shared.set, name, &done)) /* the value in place of `auto` */
        engine_post_op(engine, OP_SET, done.p, 0);
    else
        engine_post_op(engine, OP_SET, line, 0);
}

/* Scores the ways to read the draft's captured layers on the conversation, on a runtime of its
 * own. */
static void do_calibrate(struct engine *engine)
{
    struct err e = {0};
    struct calibration c;
    const struct ids *said = &engine->own.ses.lane.tok;
    struct calib_opts o = {.l = &engine->loaded, .text = said->v, .n_text = said->n,
                           .stop = &engine->stop};
    struct event ev = engine_event(engine, EV_CALIBRATION);
    if (!calibrate_run(&o, &c, &e)) {
        engine_fail(engine, &e);
        return;
    }
    ev.calibration = xcopy(&c, 1, sizeof c);
    engine_post(engine, &ev);
}

static void serve(struct engine *engine, const struct request *rq)
{
    switch (rq->kind) {
    case RQ_SAY: engine_say(engine, rq); break;
    case RQ_REGEN: engine_regen(engine, rq); break;
    case RQ_FORGET: engine_forget(engine, &rq->turns); break;
    case RQ_UNDO: do_undo(engine); break;
    case RQ_NEW: do_new(engine, rq); break;
    case RQ_SYSTEM:
        session_set_system(&engine->own.ses, rq->text ? rq->text : "");
        engine_post_op(engine, OP_SYSTEM, engine->own.ses.system, 0);
        break;
    case RQ_FORMAT: do_format(engine, rq->text ? rq->text : ""); break;
    case RQ_SET: do_set(engine, rq->text ? rq->text : ""); break;
    case RQ_FORK: do_fork(engine, rq); break;
    case RQ_RESUME: do_resume(engine, rq); break;
    case RQ_SEVERAL: engine_several(engine, rq); break;
    case RQ_BATCH: engine_batch(engine, rq); break;
    case RQ_PROBE: engine_probe(engine, &rq->probe); break;
    case RQ_WHAT_IF: engine_what_if(engine, rq->text); break;
    case RQ_CALIBRATE: do_calibrate(engine); break;
    }
}

enum work { WORK_REQUEST, WORK_JOBS, WORK_OVER };

/* Waits for a request or for jobs; if both are there, they are served alternately. */
static enum work next_work(struct engine *engine, enum work last, struct request *rq)
{
    LOCKED(&engine->inbox.mu);
    engine->inbox.working = false;
    while (engine->inbox.n == 0 && engine->inbox.n_client == 0 && !engine->inbox.closing)
        pthread_cond_wait(&engine->inbox.filled, &engine->inbox.mu);
    /* requests and jobs take turns; but RQ_NEW, by which a server empties its prefix cache, must
     * not drop the KV of a job that was begun after it */
    bool fresh = engine->inbox.n > 0 && engine->inbox.rq[0].kind == RQ_NEW;
    bool jobs = engine->inbox.n_client &&
                (engine->inbox.n == 0 || (last == WORK_REQUEST && !fresh));
    enum work work = engine->inbox.closing ? WORK_OVER : jobs ? WORK_JOBS : WORK_REQUEST;
    if (work == WORK_REQUEST) {
        *rq = engine->inbox.rq[0];
        engine->stop.running = rq->number;
        CUT(engine->inbox.rq, engine->inbox.n, 0);
        engine->inbox.working = true;
    }
    return work;
}

/* Takes the first request that a paused turn can serve out of the queue. False: there is none. */
static bool next_for_pause(struct engine *engine, struct request *rq)
{
    LOCKED(&engine->inbox.mu);
    int i = 0;
    while (i < engine->inbox.n && engine->inbox.rq[i].kind != RQ_PROBE &&
           engine->inbox.rq[i].kind != RQ_WHAT_IF)
        i++;
    bool got = i < engine->inbox.n;
    if (got) {
        *rq = engine->inbox.rq[i];
        CUT(engine->inbox.rq, engine->inbox.n, i);
    }
    return got;
}

void engine_work_in_pause(struct engine *engine)
{
    struct request rq;
    while (next_for_pause(engine, &rq)) {
        if (rq.kind == RQ_WHAT_IF)
            engine_what_if(engine, rq.text);
        else
            engine_probe(engine, &rq.probe);
        request_free(&rq);
    }
}

void *engine_thread(void *arg)
{
    struct engine *engine = arg;
    struct request rq;
    tok_stop_on(&engine->stop); /* a long message is encoded on this thread */
    for (enum work w = WORK_JOBS; (w = next_work(engine, w, &rq)) != WORK_OVER;) {
        if (w == WORK_JOBS) {
            engine_jobs(engine);
            continue;
        }
        engine_jobs_rest(engine);
        if (engine->own.lost)
            engine_fault(engine, 0, &(struct err){.kind = ERR_MODEL});
        else
            serve(engine, &rq);
        request_free(&rq);
    }
    engine_jobs_free(engine);
    return NULL;
}

/* Whether the model has what a setting asks for. A value that is none is reported elsewhere. */
static bool has_setting(const struct engine *engine, const char *line, struct err *e)
{
    struct settings s;
    settings_init(&s);
    if (!settings_parse(&s, line, NULL))
        return true;
    struct chat_style style = load_style(&s);
    return chat_has_style(engine->loaded.chat, &style, e);
}

bool local_submit(struct backend *b, struct request *rq, struct err *e)
{
    struct engine *engine = engine_of(b);
    if (rq->kind == RQ_SET && !has_setting(engine, rq->text, e)) {
        request_free(rq);
        return false;
    }
    pthread_mutex_lock(&engine->inbox.mu);
    bool ok = engine->inbox.n < MAX_REQUESTS;
    if (ok) {
        rq->number = atomic_fetch_add(&engine->stop.submitted, 1) + 1;
        engine->inbox.rq[engine->inbox.n++] = *rq;
    }
    pthread_cond_signal(&engine->inbox.filled);
    pthread_mutex_unlock(&engine->inbox.mu);
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
    struct engine *engine = engine_of(b);
    LOCKED(&engine->inbox.mu);
    return engine->inbox.n > 0 || engine->inbox.n_client > 0 || engine->inbox.working;
}
