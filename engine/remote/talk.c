/* talk.c - the conversation, its requests and its events: see talk.h. */
#include "engine/remote/talk.h"

#include "kernels/json_read.h"

#include <stdlib.h>
#include <string.h>

enum { SCREEN_QUEUE = 4096,
       MOST_WAITING = sizeof((struct talk *)0)->waiting / sizeof(struct request) };

static struct talk *talk_of(struct backend *b)
{
    return (struct talk *)b;
}

/* ---- events ---------------------------------------------------------------------------------- */

struct event talk_event(struct talk *t, enum event_kind kind)
{
    struct event ev = {.kind = kind, .seq = ++t->seq, .ns = clock_ns(), .turn = t->view.turn};
    memcpy(ev.session, t->view.session, sizeof ev.session);
    return ev;
}

void talk_post(struct talk *t, struct event *ev)
{
    if (t->hooks->posted)
        t->hooks->posted(t, ev);
    if (t->log) {
        struct event copy;
        event_copy(&copy, ev);
        if (event_to_log(&copy))
            evq_put(t->log, &copy);
        else
            event_free(&copy);
    }
    evq_put(t->screen, ev);
}

void talk_notice(struct talk *t, const char *text)
{
    struct event ev = talk_event(t, EV_NOTICE);
    buf_str(&ev.text, text);
    talk_post(t, &ev);
}

enum stop_reason talk_fault(struct talk *t, const char *text, bool lost)
{
    struct event ev = talk_event(t, EV_FAULT);
    ev.fault = ERR_MODEL;
    ev.lost = t->lost = lost;
    buf_str(&ev.text, text);
    talk_post(t, &ev);
    return lost ? STOP_DEVICE : STOP_FAULT;
}

static void post_op(struct talk *t, enum op_kind op, const char *text, int turn)
{
    struct event ev = talk_event(t, EV_OP);
    ev.op = op;
    ev.turn = turn;
    buf_str(&ev.text, text);
    talk_post(t, &ev);
}

/* The turns of the context, "1 2 4". */
static void list_turns(const struct talk *t, struct buf *out)
{
    buf_str(out, "");
    for (int i = 0; i < t->n_said; i++)
        buf_printf(out, "%s%d", i ? " " : "", t->said[i].turn);
}

static void post_session(struct talk *t, enum op_kind op, const char *parent)
{
    struct event ev = talk_event(t, EV_SESSION);
    struct buf lines = {0};
    if (parent)
        memcpy(ev.parent, parent, sizeof ev.parent);
    ev.fork_turn = parent ? t->view.turn : 0;
    talk_post(t, &ev);
    if (parent) {
        list_turns(t, &lines);
        post_op(t, OP_FORK, lines.p, t->view.turn);
    }
    if (op != OP_FORK) {
        buf_clear(&lines);
        settings_print(&t->view.settings, &lines);
        post_op(t, op, lines.p, 0);
        /* also if it is empty: see do_resume() in serve/worker.c */
        if (t->system || op == OP_RESUME)
            post_op(t, OP_SYSTEM, t->system ? t->system : "", 0);
    }
    buf_free(&lines);
}

/* ---- the conversation ------------------------------------------------------------------------ */

static void unsay(struct talk *t, int i)
{
    free(t->said[i].user);
    free(t->said[i].reply);
    ids_free(&t->said[i].ids);
    memmove(t->said + i, t->said + i + 1, (size_t)(--t->n_said - i) * sizeof *t->said);
}

static struct talk_pair *say(struct talk *t, int turn, const char *user, const char *reply)
{
    t->said = xrealloc(t->said, (size_t)t->n_said + 1, sizeof *t->said);
    t->said[t->n_said] = (struct talk_pair){turn, xstrdup(user), xstrdup(reply), {0}};
    return &t->said[t->n_said++];
}

static int count_words(const char *s)
{
    int n = 0;
    for (; *s; s++)
        n += *s != ' ' && (s[1] == ' ' || !s[1]);
    return n;
}

int talk_words(const struct talk *t)
{
    int n = t->system ? count_words(t->system) : 0;
    for (int i = 0; i < t->n_said; i++)
        n += count_words(t->said[i].user) + count_words(t->said[i].reply);
    return n;
}

static void set_system(struct talk *t, const char *text)
{
    char *copy = text && *text ? xstrdup(text) : NULL;
    free(t->system);
    t->system = copy;
}

/* ---- a turn ---------------------------------------------------------------------------------- */

void talk_turn_begins(struct talk *t, bool regen, struct ids *prompt, int n_prompt)
{
    struct event ev = talk_event(t, EV_TURN_BEGIN);
    pthread_mutex_lock(&t->mu);
    t->view.prompt_tokens += (uint64_t)n_prompt;
    pthread_mutex_unlock(&t->mu);
    buf_str(&ev.text, t->said[t->n_said - 1].user);
    ev.n_tokens = n_prompt;
    ev.seed = t->view.settings.seed;
    ev.regen = regen;
    ev.tokens = *prompt;
    *prompt = (struct ids){0};
    talk_post(t, &ev);
}

void talk_text(struct talk *t, struct talk_reply *r, int channel, const char *text, size_t n)
{
    if (n == 0)
        return;
    struct event ev = talk_event(t, EV_TEXT);
    buf_add(&ev.text, text, n);
    ev.channel = channel;
    if (channel == 0)
        buf_add(&r->text, text, n);
    talk_post(t, &ev);
}

static void end_turn(struct talk *t, struct talk_reply *r)
{
    struct event ev = talk_event(t, EV_TURN_END);
    ev.reason = r->why;
    ev.n_tokens = r->n_tokens;
    ev.n_drafted = r->n_drafted;
    ev.n_accepted = r->n_accepted;
    ev.n_steps = r->n_steps;
    ev.us_prefill = r->us_prefill;
    ev.us_decode = r->us_decode;
    ev.text = r->text;
    ids_cat(&ev.tokens, r->ids.v, r->ids.n);
    r->text = (struct buf){0};
    ev.prompt = r->prompt;
    r->prompt = (struct ids){0};
    ev.served = r->served;
    r->served = NULL;
    talk_post(t, &ev);
}

static void answer(struct talk *t, const char *text, bool regen)
{
    struct talk_reply r = {.why = STOP_END};
    buf_str(&r.text, "");
    pthread_mutex_lock(&t->mu);
    t->view.turn++;
    pthread_mutex_unlock(&t->mu);
    struct talk_pair *p = say(t, t->view.turn, text, "");
    t->hooks->answer(t, regen, &r);
    if (r.n_tokens > 0) {
        free(p->reply);
        p->reply = xstrdup(r.text.p);
        ids_cat(&p->ids, r.ids.v, r.ids.n);
    } else {
        unsay(t, t->n_said - 1);
    }
    end_turn(t, &r);
    ids_free(&r.ids);
}

/* ---- requests -------------------------------------------------------------------------------- */

static void do_regen(struct talk *t)
{
    if (t->n_said == 0) {
        talk_notice(t, "there is no reply to generate again");
        return;
    }
    char *text = xstrdup(t->said[t->n_said - 1].user);
    unsay(t, t->n_said - 1);
    answer(t, text, true);
    free(text);
}

static void do_undo(struct talk *t)
{
    if (t->n_said == 0)
        return;
    int turn = t->said[t->n_said - 1].turn;
    unsay(t, t->n_said - 1);
    post_op(t, OP_UNDO, "", turn);
}

static void do_forget(struct talk *t, const char *turns)
{
    for (int i = t->n_said - 1; i >= 0; i--)
        if (turn_listed(turns, t->said[i].turn))
            unsay(t, i);
    post_op(t, OP_FORGET, turns, 0);
}

static void do_set(struct talk *t, const char *line)
{
    struct err e;
    char *name = xstrdup(line), *value = strchr(name, '=');
    bool ok = value != NULL;
    if (ok) {
        *value++ = '\0';
        pthread_mutex_lock(&t->mu);
        ok = settings_set(&t->view.settings, name, value, &e);
        pthread_mutex_unlock(&t->mu);
    } else {
        err_set(&e, ERR_USAGE, "\"%.100s\" is no NAME=VALUE", line);
    }
    if (ok)
        post_op(t, OP_SET, line, 0);
    else
        talk_notice(t, e.msg);
    free(name);
}

/* Makes the session that of the request, with its turns. */
static void take_session(struct talk *t, const struct request *rq)
{
    while (t->n_said)
        unsay(t, t->n_said - 1);
    for (int i = 0; i < rq->n_past; i++) {
        const struct past_turn *p = &rq->past[i];
        struct talk_pair *q = say(t, p->turn, p->user, p->reply ? p->reply : "");
        ids_cat(&q->ids, p->ids.v, p->ids.n);
    }
    pthread_mutex_lock(&t->mu);
    struct settings set = t->view.settings;
    t->view = (struct chat_view){.settings = set, .committed = -1, .capacity = t->info.context,
                                 .turn = max_int(0, rq->next_turn - 1)};
    memcpy(t->view.session, rq->session, sizeof t->view.session);
    if (rq->settings)
        settings_parse(&t->view.settings, rq->settings, NULL);
    pthread_mutex_unlock(&t->mu);
}

static void serve(struct talk *t, const struct request *rq)
{
    char parent[SESSION_ID];
    memcpy(parent, t->view.session, sizeof parent);
    switch (rq->kind) {
    case RQ_SAY: answer(t, rq->text, false); break;
    case RQ_REGEN: do_regen(t); break;
    case RQ_UNDO: do_undo(t); break;
    case RQ_FORGET: do_forget(t, rq->text); break;
    case RQ_SET: do_set(t, rq->text); break;
    case RQ_SYSTEM:
        set_system(t, rq->text);
        post_op(t, OP_SYSTEM, rq->text, 0);
        break;
    case RQ_NEW:
        take_session(t, rq);
        if (rq->text)
            set_system(t, rq->text);
        post_session(t, OP_OPEN, NULL);
        break;
    case RQ_RESUME:
        take_session(t, rq);
        set_system(t, rq->text);
        post_session(t, OP_RESUME, rq->parent[0] ? rq->parent : NULL);
        break;
    case RQ_FORK:
        take_session(t, rq);
        post_session(t, OP_FORK, parent);
        break;
    default: t->hooks->other(t, rq); break;
    }
}

/* Waits for a request, with t->mu held; calls the hook `idle` if there is one. */
static void wait_idle(struct talk *t)
{
    if (!t->hooks->idle) {
        pthread_cond_wait(&t->filled, &t->mu);
        return;
    }
    pthread_mutex_unlock(&t->mu);
    t->hooks->idle(t);
    pthread_mutex_lock(&t->mu);
}

/* Wakes the talk's thread: there is a request, or the thread shall end. */
static void wake(struct talk *t)
{
    pthread_cond_signal(&t->filled);
    if (t->hooks->wake)
        t->hooks->wake(t);
}

static void *talk_thread(void *arg)
{
    struct talk *t = arg;
    json_stop_on(&t->stop);
    pthread_mutex_lock(&t->mu);
    for (;;) {
        t->working = false;
        while (t->n_waiting == 0 && !t->closing)
            wait_idle(t);
        if (t->closing)
            break;
        struct request rq = t->waiting[0];
        memmove(t->waiting, t->waiting + 1, (size_t)--t->n_waiting * sizeof *t->waiting);
        t->working = true;
        t->stop.running = rq.number;
        pthread_mutex_unlock(&t->mu);
        if (t->lost)
            talk_fault(t, "the server is gone", true);
        else
            serve(t, &rq);
        request_free(&rq);
        pthread_mutex_lock(&t->mu);
    }
    pthread_mutex_unlock(&t->mu);
    return NULL;
}

/* ---- the backend ----------------------------------------------------------------------------- */

static bool submit(struct backend *b, struct request *rq, struct err *e)
{
    struct talk *t = talk_of(b);
    const char *why = t->hooks->refuses(t, rq);
    pthread_mutex_lock(&t->mu);
    if (!why && t->n_waiting == MOST_WAITING)
        why = "64 requests are waiting already";
    if (!why) {
        rq->number = atomic_fetch_add(&t->stop.submitted, 1) + 1;
        t->waiting[t->n_waiting++] = *rq;
        *rq = (struct request){0};
    }
    wake(t);
    pthread_mutex_unlock(&t->mu);
    if (!why)
        return true;
    request_free(rq);
    return err_set(e, ERR_NEGATIVE, "%s", why);
}

static void cancel(struct backend *b)
{
    stop_all(&talk_of(b)->stop);
}

static bool busy(struct backend *b)
{
    struct talk *t = talk_of(b);
    pthread_mutex_lock(&t->mu);
    bool is = t->n_waiting > 0 || t->working;
    pthread_mutex_unlock(&t->mu);
    return is;
}

static void close_talk(struct backend *b)
{
    struct talk *t = talk_of(b);
    cancel(b);
    pthread_mutex_lock(&t->mu);
    t->closing = true;
    wake(t);
    pthread_mutex_unlock(&t->mu);
    evq_close(t->screen);
    pthread_join(t->thread, NULL);
    while (t->n_waiting)
        request_free(&t->waiting[--t->n_waiting]);
    while (t->n_said)
        unsay(t, t->n_said - 1);
    evq_free(t->screen);
    free(t->said);
    free(t->system);
    pthread_mutex_destroy(&t->mu);
    pthread_cond_destroy(&t->filled);
    t->hooks->closed(t);
    free(t);
}

static const struct backend_info *info(struct backend *b)
{
    return &talk_of(b)->info;
}

static int fd(struct backend *b)
{
    return evq_fd(talk_of(b)->screen);
}

static bool next(struct backend *b, struct event *ev)
{
    return evq_get(talk_of(b)->screen, ev);
}

static bool wait_event(struct backend *b, struct event *ev, int ms)
{
    return evq_wait(talk_of(b)->screen, ev, ms);
}

static void rest(struct backend *b, int ms)
{
    evq_rest(talk_of(b)->screen, SCREEN_QUEUE / 4, ms);
}

static const char *token(struct backend *b, int32_t id, size_t *n)
{
    struct talk *t = talk_of(b);
    if (t->hooks->token)
        return t->hooks->token(t, id, n);
    *n = 0;
    return "";
}

static void chat(struct backend *b, struct chat_view *v)
{
    struct talk *t = talk_of(b);
    bool is_busy = busy(b);
    pthread_mutex_lock(&t->mu);
    *v = t->view;
    bool accepts = t->accepts;
    pthread_mutex_unlock(&t->mu);
    if (accepts) /* known only after the server's first answer */
        t->base.lacks[VIEW_ACCEPT] = NULL;
    v->busy = is_busy;
}

/* The thread of an idle talk waits, so that its messages can be read. */
static void said(struct backend *b, struct request *rq)
{
    struct talk *t = talk_of(b);
    CHECK(!busy(b));
    memcpy(rq->session, t->view.session, sizeof rq->session);
    rq->text = xstrdup(t->system ? t->system : "");
    rq->next_turn = t->view.turn + 1;
    rq->past = xcalloc((size_t)max_int(1, t->n_said), sizeof *rq->past);
    for (int i = 0; i < t->n_said; i++) {
        struct past_turn *p = &rq->past[rq->n_past++];
        *p = (struct past_turn){.turn = t->said[i].turn, .user = xstrdup(t->said[i].user),
                                .reply = xstrdup(t->said[i].reply)};
        ids_cat(&p->ids, t->said[i].ids.v, t->said[i].ids.n);
    }
}

bool talk_open(struct talk *t, struct evq *log, struct err *e)
{
    static const struct backend_ops ops = {
        .close = close_talk, .info = info, .submit = submit, .cancel = cancel, .busy = busy,
        .fd = fd, .next = next, .wait = wait_event, .rest = rest, .token = token, .chat = chat,
        .said = said,
    };
    t->base.ops = &ops;
    t->log = log;
    t->view.committed = -1;
    if (t->view.settings.forget == FORGET_AUTO)
        t->view.settings.forget = FORGET_OLDEST;
    t->screen = evq_new(SCREEN_QUEUE);
    pthread_mutex_init(&t->mu, NULL);
    pthread_cond_init(&t->filled, NULL);
    if (t->screen && pthread_create(&t->thread, NULL, talk_thread, t) == 0)
        return true;
    evq_free(t->screen);
    return err_set(e, ERR_MODEL, "no thread or descriptor is left to talk to the server");
}
