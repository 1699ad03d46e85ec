/* talk.c - the conversation, its requests and its events: see talk.h. */
#include "engine/remote/talk.h"

#include <math.h>

#include "engine/past/room.h"
#include "kernels/json_read.h"
#include "kernels/text.h"

enum { MOST_WAITING = sizeof((struct talk *)0)->waiting / sizeof(struct request) };

static struct talk *talk_of(struct backend *backend)
{
    return (struct talk *)backend;
}

/* ---- events ---------------------------------------------------------------------------------- */

struct event talk_event(struct talk *talk, enum event_kind kind)
{
    struct event ev = {.kind = kind, .seq = ++talk->seq, .ns = clock_ns(), .turn = talk->view.turn};
    memcpy(ev.session, talk->view.session, sizeof ev.session);
    return ev;
}

void talk_post(struct talk *talk, struct event *ev)
{
    if (talk->hooks->posted)
        talk->hooks->posted(talk, ev);
    evq_post(talk->base.screen, talk->log, ev);
}

void talk_notice(struct talk *talk, const char *text)
{
    struct event ev = talk_event(talk, EV_NOTICE);
    buf_str(&ev.text, text);
    talk_post(talk, &ev);
}

enum stop_reason talk_fault(struct talk *talk, const char *text, bool lost)
{
    struct event ev = talk_event(talk, EV_FAULT);
    ev.fault = ERR_MODEL;
    ev.lost = talk->lost = lost;
    buf_str(&ev.text, text);
    talk_post(talk, &ev);
    return lost ? STOP_DEVICE : STOP_FAULT;
}

static void post_op(struct talk *talk, enum op_kind op, const char *text, int turn)
{
    struct event ev = talk_event(talk, EV_OP);
    ev.op = op;
    ev.turn = turn;
    buf_str(&ev.text, text);
    talk_post(talk, &ev);
}

/* Posts an operation that names turns. */
static void post_turns(struct talk *talk, enum op_kind op, const struct ids *turns, int turn)
{
    struct event ev = talk_event(talk, EV_OP);
    ev.op = op;
    ev.turn = turn;
    ids_cat(&ev.turns, turns->v, turns->n);
    talk_post(talk, &ev);
}

static void post_session(struct talk *talk, enum op_kind op, const char *parent)
{
    struct event ev = talk_event(talk, EV_SESSION);
    FREED(buf_free) struct buf lines = {0};
    if (parent)
        memcpy(ev.parent, parent, sizeof ev.parent);
    ev.fork_turn = parent ? talk->view.turn : 0;
    talk_post(talk, &ev);
    if (parent) {
        FREED(ids_free) struct ids turns = {0};
        for (int i = 0; i < talk->n_said; i++)
            ids_add(&turns, talk->said[i].turn);
        post_turns(talk, OP_FORK, &turns, talk->view.turn);
    }
    if (op != OP_FORK) {
        settings_print(&talk->view.settings, &lines);
        post_op(talk, op, lines.p, 0);
        /* also an empty one, as do_resume() in engine/thread/worker.c */
        if (talk->system || op == OP_RESUME)
            post_op(talk, OP_SYSTEM, talk->system ? talk->system : "", 0);
    }
}

/* ---- the conversation ------------------------------------------------------------------------ */

static void unsay(struct talk *talk, int i)
{
    past_turn_free(&talk->said[i]);
    CUT(talk->said, talk->n_said, i);
}

static struct past_turn *say(struct talk *talk, int turn, const char *user, const char *reply)
{
    return past_add(&talk->said, &talk->n_said, turn, user, reply);
}

static int count_words(const char *s)
{
    int n = 0;
    for (; *s; s++)
        n += *s != ' ' && (s[1] == ' ' || !s[1]);
    return n;
}

int talk_words(const struct talk *talk)
{
    int n = talk->system ? count_words(talk->system) : 0;
    for (int i = 0; i < talk->n_said; i++)
        n += count_words(talk->said[i].user) + count_words(talk->said[i].reply);
    return n;
}

static size_t bytes_of(const struct past_turn *pair)
{
    return strlen(pair->user) + strlen(pair->reply);
}

static size_t bytes_said(const struct talk *talk)
{
    size_t n = talk->system ? strlen(talk->system) : 0;
    for (int i = 0; i < talk->n_said; i++)
        n += bytes_of(&talk->said[i]);
    return n;
}

void talk_counted(struct talk *talk, int tokens)
{
    talk->prompt_tokens = tokens;
    talk->prompt_bytes = bytes_said(talk);
}

static void set_system(struct talk *talk, const char *text)
{
    set_text(&talk->system, text && *text ? text : NULL);
}

/* ---- a turn ---------------------------------------------------------------------------------- */

void talk_turn_begins(struct talk *talk, bool regen, struct ids *prompt, int n_prompt)
{
    struct event ev = talk_event(talk, EV_TURN_BEGIN);
    pthread_mutex_lock(&talk->mu);
    talk->view.prompt_tokens += (uint64_t)n_prompt;
    pthread_mutex_unlock(&talk->mu);
    buf_str(&ev.text, talk->said[talk->n_said - 1].user);
    ev.n_tokens = n_prompt;
    ev.seed = talk->view.settings.seed;
    ev.regen = regen;
    ev.tokens = *prompt;
    *prompt = (struct ids){0};
    talk_post(talk, &ev);
}

void talk_text(struct talk *talk, struct talk_reply *reply, int channel, const char *text, size_t n)
{
    if (n == 0)
        return;
    struct event ev = talk_event(talk, EV_TEXT);
    buf_add(&ev.text, text, n);
    ev.channel = channel;
    if (channel == 0)
        buf_add(&reply->text, text, n);
    talk_post(talk, &ev);
}

static void end_turn(struct talk *talk, struct talk_reply *reply)
{
    struct event ev = talk_event(talk, EV_TURN_END);
    ev.reason = reply->why;
    ev.n_tokens = reply->n_tokens;
    ev.n_drafted = reply->n_drafted;
    ev.n_accepted = reply->n_accepted;
    ev.n_steps = reply->n_steps;
    ev.us_prefill = reply->us_prefill;
    ev.us_decode = reply->us_decode;
    ev.text = reply->text;
    ids_cat(&ev.tokens, reply->ids.v, reply->ids.n);
    reply->text = (struct buf){0};
    ev.prompt = reply->prompt;
    reply->prompt = (struct ids){0};
    ev.served = reply->served;
    reply->served = NULL;
    talk_post(talk, &ev);
}

static void answer_message(struct talk *talk, const char *text, bool regen)
{
    struct talk_reply reply = {.why = STOP_END};
    buf_str(&reply.text, "");
    pthread_mutex_lock(&talk->mu);
    talk->view.turn++;
    pthread_mutex_unlock(&talk->mu);
    struct past_turn *p = say(talk, talk->view.turn, text, "");
    talk->hooks->answer(talk, regen, &reply);
    if (reply.n_tokens > 0) {
        set_text(&p->reply, reply.text.p);
        ids_cat(&p->ids, reply.ids.v, reply.ids.n);
    } else {
        unsay(talk, talk->n_said - 1);
    }
    end_turn(talk, &reply);
    ids_free(&reply.ids);
}

/* ---- room for a message ---------------------------------------------------------------------- */

/* Tokens a byte, by what the server counted for the last prompt, within the bounds of usual texts:
 * a short prompt has more tokens of the chat format than of its texts. */
static double tokens_each(const struct talk *talk)
{
    double each = talk->prompt_tokens / fmax(1, (double)talk->prompt_bytes);
    return talk->prompt_tokens ? fmin(fmax(each, 0.15), 0.35) : 0.25;
}

/* The tokens of the prompt with one more message: those that the server counted, and an estimate of
 * what the texts grew by since. */
static int estimate_prompt(const struct talk *talk, const char *text)
{
    double grown = (double)bytes_said(talk) + (double)strlen(text) - (double)talk->prompt_bytes;
    return (int)fmin(fmax(1, talk->prompt_tokens + grown * tokens_each(talk)), 1e9);
}

static int estimate_text(const struct talk *talk, size_t bytes)
{
    return 1 + (int)fmin((double)bytes * tokens_each(talk), 1e9);
}

bool talk_nearly_full(const struct talk *talk)
{
    int64_t context = talk->base.info.context;
    return context > 0 && talk->n_said > 1 &&
           estimate_text(talk, bytes_of(&talk->said[talk->n_said - 1])) < context &&
           estimate_prompt(talk, "") * INT64_C(4) > context * 3;
}

static void forget(struct talk *talk, const struct ids *turns)
{
    for (int i = talk->n_said - 1; i >= 0; i--)
        if (turns_have(turns, talk->said[i].turn))
            unsay(talk, i);
    post_turns(talk, OP_FORGET, turns, 0);
}

/* Posts a turn without a reply, and a notice why; the conversation does not change. */
static void refuse(struct talk *talk, const char *text, const char *why)
{
    struct talk_reply reply = {.why = STOP_CONTEXT};
    pthread_mutex_lock(&talk->mu);
    talk->view.turn++;
    pthread_mutex_unlock(&talk->mu);
    say(talk, talk->view.turn, text, "");
    talk_turn_begins(talk, false, &(struct ids){0}, 0);
    talk_notice(talk, why);
    unsay(talk, talk->n_said - 1);
    buf_str(&reply.text, "");
    end_turn(talk, &reply);
}

/* Marks the turns that have to leave the context so that the message has room. full: it has none,
 * whatever is estimated. Returns the estimated tokens with the message, and in *rest of those that
 * stay. */
static int choose_turns(const struct talk *talk, const char *text, bool full, bool *gone, int *rest)
{
    int n = talk->n_said, context = talk->base.info.context;
    FREED(free_at) int *tokens = xcalloc((size_t)n, sizeof *tokens);
    int all = estimate_prompt(talk, text);
    if (full)
        all = max_int(all, context);
    for (int i = 0; i < n; i++)
        tokens[i] = estimate_text(talk, bytes_of(&talk->said[i]));
    if (all + room_reserve(context) > context)
        room_choose(&(struct room_turns){tokens, gone, n, context}, all);
    *rest = all;
    for (int i = 0; i < n; i++)
        *rest -= gone[i] ? tokens[i] : 0;
    return all;
}

/* Makes room for a message as the setting `forget` says. False: the message is refused. */
static bool find_room(struct talk *talk, const char *text, bool make_room)
{
    int context = talk->base.info.context, rest;
    enum forget policy = talk->view.settings.forget;
    if (context <= 0 || talk->n_said == 0 ||
        (!make_room && (!talk->prompt_tokens || policy == FORGET_NEVER)))
        return true; /* the server decides */
    FREED(free_at) bool *gone = xcalloc((size_t)talk->n_said, sizeof *gone);
    FREED(ids_free) struct ids turns = {0};
    FREED(buf_free) struct buf list = {0}, line = {0};
    int all = choose_turns(talk, text, make_room, gone, &rest);
    for (int i = 0; i < talk->n_said; i++)
        if (gone[i])
            ids_add(&turns, talk->said[i].turn);
    room_print_turns(&turns, &list);
    bool asks = !make_room && policy == FORGET_ASK;
    if (turns.n == 0 || rest >= context || (asks && all + room_least(context) <= context))
        return true; /* rest >= context: the message does not fit, whatever leaves */
    if (asks) {
        buf_printf(&line, "not sent, nothing has changed: with the message the context would hold "
                   "about %d of %d tokens; /forget leaves out %.200s and sends it", all, context,
                   list.p);
        refuse(talk, text, line.p);
        return false;
    }
    buf_printf(&line, "leaving out %s: the context was full, about %d of %d free now%s", list.p,
               max_int(0, context - rest), context,
               make_room ? "" : "; /set forget ask asks first");
    talk_notice(talk, line.p);
    forget(talk, &turns);
    return true;
}

/* ---- requests -------------------------------------------------------------------------------- */

static void do_regen(struct talk *talk)
{
    if (talk->n_said == 0) {
        talk_notice(talk, "there is no reply to generate again");
        return;
    }
    FREED(free_at) char *text = xstrdup(talk->said[talk->n_said - 1].user);
    unsay(talk, talk->n_said - 1);
    answer_message(talk, text, true);
}

static void do_undo(struct talk *talk)
{
    if (talk->n_said == 0)
        return;
    int turn = talk->said[talk->n_said - 1].turn;
    unsay(talk, talk->n_said - 1);
    post_op(talk, OP_UNDO, "", turn);
}

static void do_forget(struct talk *talk, const struct ids *turns)
{
    FREED(ids_free) struct ids leave = {0};
    FREED(buf_free) struct buf line = {0};
    for (int i = 0; i < talk->n_said; i++)
        if (turns_have(turns, talk->said[i].turn))
            ids_add(&leave, talk->said[i].turn);
    buf_str(&line, "leaving out ");
    room_print_turns(&leave, &line);
    if (leave.n)
        talk_notice(talk, line.p);
    forget(talk, turns);
}

static void do_set(struct talk *talk, const char *line)
{
    struct err e;
    FREED(free_at) char *name = xstrdup(line);
    char *value = strchr(name, '=');
    bool ok = false;
    if (!value)
        err_set(&e, ERR_USAGE, "\"%.100s\" is no NAME=VALUE", line);
    else {
        LOCKED(&talk->mu);
        *value++ = '\0';
        ok = settings_set(&talk->view.settings, name, value, &e);
    }
    if (ok)
        post_op(talk, OP_SET, line, 0);
    else
        talk_notice(talk, e.msg);
}

/* Makes the session that of the request, with its turns. */
static void take_session(struct talk *talk, const struct request *rq)
{
    while (talk->n_said)
        unsay(talk, talk->n_said - 1);
    talk->prompt_tokens = 0, talk->prompt_bytes = 0; /* counts of another conversation */
    FOR_EACH(const struct past_turn, p, rq->past, rq->n_past) {
        struct past_turn *q = say(talk, p->turn, p->user, p->reply);
        ids_cat(&q->ids, p->ids.v, p->ids.n);
    }
    LOCKED(&talk->mu);
    struct settings set = talk->view.settings;
    talk->view = (struct chat_view){.settings = set, .committed = -1,
                                    .capacity = talk->base.info.context,
                                    .turn = max_int(0, rq->next_turn - 1)};
    memcpy(talk->view.session, rq->session, sizeof talk->view.session);
    if (rq->settings)
        settings_parse(&talk->view.settings, rq->settings, NULL);
}

static void serve(struct talk *talk, const struct request *rq)
{
    char parent[SESSION_ID];
    memcpy(parent, talk->view.session, sizeof parent);
    switch (rq->kind) {
    case RQ_SAY:
        if (find_room(talk, rq->text, rq->make_room))
            answer_message(talk, rq->text, false);
        break;
    case RQ_REGEN: do_regen(talk); break;
    case RQ_UNDO: do_undo(talk); break;
    case RQ_FORGET: do_forget(talk, &rq->turns); break;
    case RQ_SET: do_set(talk, rq->text); break;
    case RQ_SYSTEM:
        set_system(talk, rq->text);
        post_op(talk, OP_SYSTEM, rq->text, 0);
        break;
    case RQ_NEW:
        take_session(talk, rq);
        if (rq->text)
            set_system(talk, rq->text);
        post_session(talk, OP_OPEN, NULL);
        break;
    case RQ_RESUME:
        take_session(talk, rq);
        set_system(talk, rq->text);
        post_session(talk, OP_RESUME, rq->parent[0] ? rq->parent : NULL);
        break;
    case RQ_FORK:
        take_session(talk, rq);
        post_session(talk, OP_FORK, parent);
        break;
    default: talk->hooks->other(talk, rq); break;
    }
}

/* Waits for a request, with talk->mu held; calls the hook `idle` if there is one. */
static void wait_idle(struct talk *talk)
{
    if (!talk->hooks->idle) {
        pthread_cond_wait(&talk->filled, &talk->mu);
        return;
    }
    pthread_mutex_unlock(&talk->mu);
    talk->hooks->idle(talk);
    pthread_mutex_lock(&talk->mu);
}

/* Wakes the talk's thread: there is a request, or the thread shall end. */
static void wake(struct talk *talk)
{
    pthread_cond_signal(&talk->filled);
    if (talk->hooks->wake)
        talk->hooks->wake(talk);
}

static void *talk_thread(void *arg)
{
    struct talk *talk = arg;
    json_stop_on(&talk->stop);
    pthread_mutex_lock(&talk->mu);
    for (;;) {
        talk->working = false;
        while (talk->n_waiting == 0 && !talk->closing)
            wait_idle(talk);
        if (talk->closing)
            break;
        struct request rq = talk->waiting[0];
        CUT(talk->waiting, talk->n_waiting, 0);
        talk->working = true;
        talk->stop.running = rq.number;
        pthread_mutex_unlock(&talk->mu);
        if (talk->lost)
            talk_fault(talk, "the server is gone", true);
        else
            serve(talk, &rq);
        request_free(&rq);
        pthread_mutex_lock(&talk->mu);
    }
    pthread_mutex_unlock(&talk->mu);
    return NULL;
}

/* ---- the backend ----------------------------------------------------------------------------- */

static bool submit(struct backend *backend, struct request *rq, struct err *e)
{
    struct talk *talk = talk_of(backend);
    const char *why = talk->hooks->refuses(talk, rq);
    pthread_mutex_lock(&talk->mu);
    if (!why && talk->n_waiting == MOST_WAITING)
        why = "64 requests are waiting already";
    if (!why) {
        rq->number = atomic_fetch_add(&talk->stop.submitted, 1) + 1;
        talk->waiting[talk->n_waiting++] = *rq;
        *rq = (struct request){0};
    }
    wake(talk);
    pthread_mutex_unlock(&talk->mu);
    if (!why)
        return true;
    request_free(rq);
    return err_set(e, ERR_NEGATIVE, "%s", why);
}

static void cancel(struct backend *backend)
{
    stop_all(&talk_of(backend)->stop);
}

static bool busy(struct backend *backend)
{
    struct talk *talk = talk_of(backend);
    LOCKED(&talk->mu);
    return talk->n_waiting > 0 || talk->working;
}

static void close_talk(struct backend *backend)
{
    struct talk *talk = talk_of(backend);
    cancel(backend);
    pthread_mutex_lock(&talk->mu);
    talk->closing = true;
    wake(talk);
    pthread_mutex_unlock(&talk->mu);
    evq_close(talk->base.screen);
    pthread_join(talk->thread, NULL);
    while (talk->n_waiting)
        request_free(&talk->waiting[--talk->n_waiting]);
    while (talk->n_said)
        unsay(talk, talk->n_said - 1);
    evq_free(talk->base.screen);
    FREE(talk->said, talk->system);
    pthread_mutex_destroy(&talk->mu);
    pthread_cond_destroy(&talk->filled);
    talk->hooks->closed(talk);
    free(talk);
}

static const char *token(struct backend *backend, int32_t id, size_t *n)
{
    struct talk *talk = talk_of(backend);
    if (talk->hooks->token)
        return talk->hooks->token(talk, id, n);
    *n = 0;
    return "";
}

static void chat(struct backend *backend, struct chat_view *v)
{
    struct talk *talk = talk_of(backend);
    bool is_busy = busy(backend);
    pthread_mutex_lock(&talk->mu);
    *v = talk->view;
    bool accepts = talk->accepts;
    pthread_mutex_unlock(&talk->mu);
    if (accepts) /* known only after the server's first answer */
        talk->base.lacks[VIEW_ACCEPT] = NULL;
    v->busy = is_busy;
}

/* The thread of an idle talk waits, so that its messages can be read. */
static void said(struct backend *backend, struct request *rq)
{
    struct talk *talk = talk_of(backend);
    CHECK(!busy(backend));
    memcpy(rq->session, talk->view.session, sizeof rq->session);
    rq->text = xstrdup(talk->system ? talk->system : "");
    rq->next_turn = talk->view.turn + 1;
    FOR_EACH(const struct past_turn, said, talk->said, talk->n_said) {
        struct past_turn *p = past_add(&rq->past, &rq->n_past, said->turn, said->user, said->reply);
        ids_cat(&p->ids, said->ids.v, said->ids.n);
    }
}

bool talk_open(struct talk *talk, struct evq *log, struct err *e)
{
    static const struct backend_ops ops = {
        .close = close_talk, .submit = submit, .cancel = cancel, .busy = busy, .token = token,
        .chat = chat, .said = said,
    };
    talk->base.ops = &ops;
    talk->log = log;
    talk->view.committed = -1;
    if (talk->view.settings.forget == FORGET_AUTO)
        talk->view.settings.forget = FORGET_OLDEST;
    talk->base.screen = evq_new(SCREEN_QUEUE);
    pthread_mutex_init(&talk->mu, NULL);
    pthread_cond_init(&talk->filled, NULL);
    if (talk->base.screen && pthread_create(&talk->thread, NULL, talk_thread, talk) == 0)
        return true;
    evq_free(talk->base.screen);
    return err_set(e, ERR_MODEL, "no thread or descriptor is left to talk to the server");
}
