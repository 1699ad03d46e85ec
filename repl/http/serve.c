/* serve.c - the server: the events of jobs, and the log of them. See serve.h. */
#include "repl/http/serve.h"

#include <sys/random.h>

enum { LOG_PATIENCE_MS = 5000 }; /* a reply whose turn is not stored by then is not acknowledged */

/* ---- the log: each job is a session of one turn ---------------------------------------------- */

static struct event log_event(struct serve *s, const struct reply_job *j, enum event_kind kind)
{
    struct event ev = {.kind = kind, .seq = ++s->seq, .ns = clock_ns(), .turn = 1};
    memcpy(ev.session, j->session, sizeof ev.session);
    return ev;
}

static void post(struct serve *s, struct event *ev)
{
    if (s->history)
        evq_put(history_queue(s->history), ev);
    else
        event_free(ev);
}

static void log_op(struct serve *s, const struct reply_job *j, enum op_kind op, const char *text)
{
    struct event ev = log_event(s, j, EV_OP);
    ev.turn = 0;
    ev.op = op;
    buf_str(&ev.text, text);
    post(s, &ev);
}

/* The settings of a conversation that would give the same reply. */
static void job_settings(const struct ask *a, uint64_t seed, struct buf *out)
{
    struct settings set = a->set;
    set.seed = (int64_t)seed;
    set.max_tokens = max_int(0, a->most);
    settings_print(&set, out);
}

static void log_begin(struct serve *s, const struct task *t, const struct reply_job *j,
                      const struct event *of)
{
    const struct ask *a = &t->ask;
    int i = j->reply.index;
    const char *text = a->text[i / a->n];
    FREED(buf_free) struct buf lines = {0};
    struct event ev = log_event(s, j, EV_SESSION);
    ev.turn = 0;
    ev.beside = true;
    post(s, &ev);
    job_settings(a, job_seed(a, i), &lines);
    log_op(s, j, OP_OPEN, lines.p);
    if (a->system)
        log_op(s, j, OP_SYSTEM, a->system);
    if (a->format)
        log_op(s, j, OP_FORMAT, a->format);
    ev = log_event(s, j, EV_TURN_BEGIN);
    ev.ns = of->ns;
    if (text)
        buf_str(&ev.text, text);
    else
        tok_decode(t->of.tok, j->reply.prompt->v, j->reply.prompt->n, &ev.text);
    ids_cat(&ev.tokens, j->reply.prompt->v, j->reply.prompt->n);
    ev.n_tokens = ev.tokens.n;
    ev.n_reused = j->reply.n_reused;
    ev.seed = (int64_t)job_seed(a, i);
    post(s, &ev);
}

static void log_step(struct serve *s, struct reply_job *j, const struct event *of)
{
    struct event ev;
    event_copy(&ev, of);
    ev.kind = EV_STEP;
    memcpy(ev.session, j->session, sizeof ev.session);
    ev.seq = ++s->seq;
    ev.turn = 1;
    ev.step = j->n_step;
    post(s, &ev);
}

/* The text is that sent to the client. The ids are those of all steps, including those after a stop
 * text in the last step, so that a replay can compute them. */
static void log_end(struct serve *s, struct reply_job *j, const struct event *of)
{
    struct event ev = log_event(s, j, EV_TURN_END);
    const struct reply *r = &j->reply;
    ev.ns = of->ns;
    /* STOP_CANCEL: a replay then generates nothing if no token was asked for, and no tokens that
     * the engine computed between the stop and the cancel */
    ev.reason = r->ask->most == 0 || j->cut ? STOP_CANCEL : of->reason;
    const struct buf *text = r->ask->calls ? &r->raw : &r->text;
    buf_add(&ev.text, text->p, text->n);
    ids_cat(&ev.tokens, j->all.v, j->all.n);
    ev.n_tokens = ev.tokens.n;
    ev.n_steps = j->n_step;
    ev.n_drafted = j->n_drafted;
    ev.n_accepted = j->n_accepted;
    ev.us_prefill = of->job && of->job->us_prefill > 0 ? (uint64_t)of->job->us_prefill : 0;
    ev.us_decode = of->job && of->job->us_decode > 0 ? (uint64_t)of->job->us_decode : 0;
    post(s, &ev);
}

/* ---- events ---------------------------------------------------------------------------------- */

static struct reply_job *find_job(struct serve *s, uint64_t id, struct task **t)
{
    for (int i = 0; i < s->n_task; i++) {
        *t = s->task[i];
        for (int k = 0; k < (*t)->n_job; k++)
            if ((*t)->job[k].id == id && !(*t)->job[k].ended)
                return &(*t)->job[k];
    }
    return NULL;
}

static void on_begin(struct serve *s, struct task *t, struct reply_job *j, struct event *ev)
{
    j->begun = true;
    reply_begin(&j->reply, ev);
    meter_begin(&s->meter, &j->reply);
    log_begin(s, t, j, ev);
}

static void on_step(struct serve *s, struct task *t, struct reply_job *j, struct event *ev)
{
    if (!j->begun || j->reply.finish != FINISH_OPEN)
        return; /* the job's cancel has not reached the engine yet */
    meter_step(&s->meter, ev, j->reply.ns_last);
    j->n_step++;
    j->n_drafted += ev->rec.drafted;
    j->n_accepted += ev->rec.accepted;
    ids_cat(&j->all, ev->tokens.v, ev->tokens.n);
    log_step(s, j, ev);
    j->cut = reply_step(&j->reply, ev);
    if (j->cut)
        s->b->jobs->cancel(s->b, j->id);
    ids_add(&t->order, j->reply.index);
}

/* A job that failed, before or after its first token, fails the answer. The end of the server,
 * which cancels all jobs, follows a lost device; so a job that was cancelled then has failed, too.
 */
static void note_failure(const struct serve *s, struct task *t, const struct reply_job *j,
                         const struct event *ev)
{
    const char *why = ev->text.p && *ev->text.p ? ev->text.p : stop_name(ev->reason);
    bool cancelled = ev->reason == STOP_CANCEL && !j->cut;
    if (t->failed.status)
        return;
    if (cancelled && s->lost)
        serve_refuses(s, &t->failed);
    else if (j->begun && j->reply.finish == FINISH_ERROR)
        refuse(&t->failed, 500, NULL, "the reply could not be computed: %s", why);
    else if (!j->begun && cancelled)
        refuse(&t->failed, 503, NULL, "the server ends");
    else if (!j->begun)
        refuse(&t->failed, ev->reason == STOP_KV_FULL ? 503 : ev->reason == STOP_CONTEXT ? 400
               : 500, NULL, "the prompt cannot be computed: %s", why);
}

/* The job's end may be told: its turn is in the log, or the answer fails. */
static void settle(struct task *t, struct reply_job *j)
{
    j->settled = true;
    t->n_settled++;
    if (j->begun && !t->failed.status)
        ids_add(&t->order, j->reply.index);
}

static void on_end(struct serve *s, struct task *t, struct reply_job *j, struct event *ev)
{
    reply_end(&j->reply, ev);
    j->ended = true;
    meter_end(&s->meter, t, &j->reply, ev);
    note_failure(s, t, j, ev);
    if (j->begun)
        log_end(s, j, ev);
    j->mark = j->begun && s->history ? history_mark(s->history) : 0;
    j->ns_marked = clock_ns();
    if (j->mark)
        s->n_unstored++;
    else
        settle(t, j);
}

/* The task has something to send, or nobody waits for it any more. */
static void tell_news(struct serve *s, struct task *t)
{
    if (t->call)
        front_news(t->call);
    else if (task_done(t))
        serve_drop(s, t);
}

/* Whether job j need not wait for the log any longer. */
static bool log_has_spoken(struct task *t, const struct reply_job *j,
                           const struct history_status *log)
{
    if (log->mark_stored >= j->mark)
        return true;
    bool late = clock_ns() - j->ns_marked > LOG_PATIENCE_MS * 1000000ull;
    if (log->mark_failed < j->mark && !late)
        return false;
    if (!t->failed.status)
        refuse(&t->failed, 500, NULL, "the reply could not be stored in the log: %s%s",
               log->error[0] ? "not saved: " : "the log is busy", log->error);
    return true;
}

/* Acknowledges the replies whose turns the log has stored. */
static void settle_stored(struct serve *s)
{
    struct history_status log;
    if (!s->n_unstored)
        return;
    history_status(s->history, &log);
    for (int i = s->n_task; i-- > 0;) {
        struct task *t = s->task[i];
        bool news = false;
        FOR_EACH(struct reply_job, j, t->job, t->n_job) {
            if (!j->mark || j->settled || !log_has_spoken(t, j, &log))
                continue;
            settle(t, j);
            s->n_unstored--;
            news = true;
        }
        if (news)
            tell_news(s, t);
    }
}

static void take_fault(struct serve *s, const struct event *ev)
{
    const char *why = ev->text.p ? ev->text.p : "the engine failed";
    err_print("%s", why);
    if (ev->lost && !s->lost)
        snprintf(s->why_lost, sizeof s->why_lost, "%s", why);
    s->lost |= ev->lost;
}

static void take_event(struct serve *s, struct event *ev)
{
    struct task *t = NULL;
    struct reply_job *j = ev->job ? find_job(s, ev->job->id, &t) : NULL;
    if (ev->kind == EV_FAULT)
        take_fault(s, ev);
    if (!j)
        return;
    switch (ev->kind) {
    case EV_JOB_BEGIN: on_begin(s, t, j, ev); break;
    case EV_JOB_STEP: on_step(s, t, j, ev); break;
    case EV_JOB_END: on_end(s, t, j, ev); break;
    default: break;
    }
    tell_news(s, t);
}

void serve_step(struct serve *s, int ms, int fd)
{
    enum { AT_ONCE = 256 }; /* events between two calls that serve connections */
    struct event ev;
    front_wait(s->front, ms, fd);
    for (int i = 0; i < AT_ONCE && backend_next(s->b, &ev); i++) {
        take_event(s, &ev);
        event_free(&ev);
    }
    settle_stored(s);
    front_run(s->front);
}

/* ---- the server ------------------------------------------------------------------------------ */

struct serve *serve_open(struct backend *b, struct history *h, const struct serve_opts *o,
                         struct err *e)
{
    const struct backend_info *i = backend_info(b);
    struct chat_view now;
    if (!backend_has(b, VIEW_JOBS))
        return FAILED(NULL, e, ERR_MODEL, "this engine serves nobody: %s", b->lacks[VIEW_JOBS]);
    struct serve *s = xcalloc(1, sizeof *s);
    s->opt = *o;
    s->b = b;
    s->history = h;
    s->since = clock_unix_ms() / 1000;
    backend_chat(b, &now);
    s->settings = now.settings;
    s->of = (struct ask_of){.model = o->model, .chat = b->jobs->chat(b),
                            .tok = b->jobs->tokenizer(b),
                            .context = i->context, .vocab = i->vocab, .set = s->settings};
    s->of.set.temperature = o->temperature;
    s->of.set.top_p = o->top_p;
    s->of.set.min_p = o->min_p;
    s->of.set.top_k = o->top_k;
    snprintf(s->print, sizeof s->print, "aerie-%s-%.8s", AERIE_VERSION, i->model_sha);
    if (getrandom(&s->random, sizeof s->random, 0) != sizeof s->random)
        s->random = clock_ns();
    s->front = front_open(s, e);
    if (s->front)
        return s;
    free(s);
    return NULL;
}

int serve_port(const struct serve *s)
{
    return front_port(s->front);
}

void serve_end(struct serve *s)
{
    s->ending = true;
    front_end(s->front);
    for (int i = 0; i < s->n_task; i++)
        serve_cancel(s, s->task[i]);
}

bool serve_idle(const struct serve *s)
{
    return s->n_task == 0 && front_idle(s->front);
}

void serve_close(struct serve *s)
{
    if (!s)
        return;
    front_close(s->front);
    while (s->n_task)
        serve_drop(s, s->task[s->n_task - 1]);
    FREE(s->task, s);
}
