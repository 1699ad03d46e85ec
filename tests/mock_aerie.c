/* mock_aerie.c - the program over a backend without a model, without pages, without any optional
 * view: what tests/e2e/test_*_mock.sh run. It takes the place of repl/open.c at link time.
 *
 * A reply is a function of the conversation: its last message, how many messages there are, and a
 * digest of all of them, so that two replies are equal exactly when their contexts were. At a
 * temperature of 1 or more a reply never ends by itself. Words that begin a message ask for more:
 * "notice": an EV_NOTICE before the reply; "fault", "lost": the reply fails, for once or for good.
 * Replies come a word at a time, have no token ids, and no steps are reported.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "repl/repl.h"

enum { MOST_WAITING = 64, QUEUE = 4096 };

struct message {
    int turn;
    char *user, *reply;
};

struct mock {
    struct backend base; /* first */
    struct backend_info info;
    struct evq *screen, *log;
    pthread_t thread;
    struct stop stop;

    pthread_mutex_t mu; /* of what follows, up to the empty line */
    pthread_cond_t filled;
    struct request waiting[MOST_WAITING];
    int n_waiting;
    bool closing, working;
    struct chat_view view;

    /* the thread's own */
    struct message *said;
    int n_said;
    char *system;
    uint64_t seq;
    bool lost;
};

static struct mock *mock_of(struct backend *b)
{
    return (struct mock *)b;
}

/* ---- events ---------------------------------------------------------------------------------- */

static struct event new_event(struct mock *m, enum event_kind kind)
{
    struct event ev = {.kind = kind, .seq = ++m->seq, .ns = clock_ns(), .turn = m->view.turn};
    memcpy(ev.session, m->view.session, sizeof ev.session);
    return ev;
}

static void post(struct mock *m, struct event *ev)
{
    if (m->log) {
        struct event copy;
        event_copy(&copy, ev);
        evq_put(m->log, &copy);
    }
    evq_put(m->screen, ev);
}

static void post_text(struct mock *m, enum event_kind kind, const char *text)
{
    struct event ev = new_event(m, kind);
    buf_str(&ev.text, text);
    post(m, &ev);
}

static void post_op(struct mock *m, enum op_kind op, const char *text, int turn)
{
    struct event ev = new_event(m, EV_OP);
    ev.op = op;
    ev.turn = turn;
    buf_str(&ev.text, text);
    post(m, &ev);
}

static void post_session(struct mock *m, enum op_kind op, const char *parent)
{
    struct event ev = new_event(m, EV_SESSION);
    struct buf lines = {0};
    if (parent)
        memcpy(ev.parent, parent, sizeof ev.parent);
    ev.fork_turn = parent ? m->view.turn : 0;
    post(m, &ev);
    settings_print(&m->view.settings, &lines);
    if (parent) {
        struct buf turns = {0};
        buf_str(&turns, "");
        for (int i = 0; i < m->n_said; i++)
            buf_printf(&turns, "%s%d", i ? " " : "", m->said[i].turn);
        post_op(m, OP_FORK, turns.p, m->view.turn);
        buf_free(&turns);
    }
    if (op != OP_FORK)
        post_op(m, op, lines.p, 0);
    if (op != OP_FORK && m->system)
        post_op(m, OP_SYSTEM, m->system, 0);
    buf_free(&lines);
}

/* ---- the conversation ------------------------------------------------------------------------ */

static void unsay(struct mock *m, int i)
{
    free(m->said[i].user);
    free(m->said[i].reply);
    memmove(m->said + i, m->said + i + 1, (size_t)(--m->n_said - i) * sizeof *m->said);
}

static void say(struct mock *m, int turn, const char *user, const char *reply)
{
    m->said = xrealloc(m->said, (size_t)m->n_said + 1, sizeof *m->said);
    m->said[m->n_said++] = (struct message){turn, xstrdup(user), xstrdup(reply)};
}

static int count_words(const char *s)
{
    int n = 0;
    for (; *s; s++)
        n += *s != ' ' && (s[1] == ' ' || !s[1]);
    return n;
}

static int context_length(const struct mock *m)
{
    int n = m->system ? count_words(m->system) : 0;
    for (int i = 0; i < m->n_said; i++)
        n += count_words(m->said[i].user) + count_words(m->said[i].reply);
    return n;
}

static uint64_t mix_text(uint64_t h, const char *s)
{
    for (; *s; s++)
        h = mix64(h ^ (unsigned char)*s);
    return mix64(h + 1);
}

/* The reply to `text` in the present context. */
static char *reply_to(const struct mock *m, const char *text)
{
    uint64_t h = mix_text(7, m->system ? m->system : "");
    for (int i = 0; i < m->n_said; i++)
        h = mix_text(mix_text(h, m->said[i].user), m->said[i].reply);
    int n = (int)strcspn(text, "\n");
    return xasprintf("You said %.*s; with it there are %d messages, and their digest is %08x.",
                     n < 200 ? n : 200, text, 2 * m->n_said + 1, (unsigned)mix_text(h, text));
}

/* ---- a turn ---------------------------------------------------------------------------------- */

struct turn {
    struct buf text;
    int n;               /* words so far */
    int most;            /* 0: no limit */
    uint64_t first_ns, end_ns;
};

static void publish(struct mock *m, const struct turn *t)
{
    pthread_mutex_lock(&m->mu);
    m->view.generated++;
    m->view.length = context_length(m) + t->n;
    m->view.tok_s = reply_tok_s(t->n, (t->end_ns - t->first_ns) / 1000);
    pthread_mutex_unlock(&m->mu);
}

static void post_word(struct mock *m, struct turn *t, const char *word, size_t n)
{
    struct event ev = new_event(m, EV_TEXT);
    buf_add(&ev.text, word, n);
    buf_add(&t->text, word, n);
    post(m, &ev);
    t->n++;
    t->end_ns = clock_ns();
    if (t->n == 1)
        t->first_ns = t->end_ns - 1000;
    publish(m, t);
    usleep(200);
}

static enum stop_reason stream(struct mock *m, struct turn *t, const char *reply, bool endless)
{
    for (const char *at = reply;;) {
        size_t n = strcspn(at, " ");
        n += at[n] == ' ';
        if (stop_asked(&m->stop))
            return STOP_CANCEL;
        if (t->most && t->n == t->most)
            return STOP_MAX;
        if (n == 0 && !endless)
            return STOP_END;
        post_word(m, t, n ? at : "more ", n ? n : 5);
        at += n;
        if (endless)
            usleep(3000);
    }
}

static enum stop_reason fail(struct mock *m, bool lost)
{
    struct event ev = new_event(m, EV_FAULT);
    ev.fault = ERR_MODEL;
    ev.lost = m->lost = lost;
    buf_str(&ev.text, lost ? "the server is gone" : "the server answered 500");
    post(m, &ev);
    return lost ? STOP_DEVICE : STOP_FAULT;
}

static void begin_turn(struct mock *m, const char *text, bool regen)
{
    pthread_mutex_lock(&m->mu);
    m->view.turn++;
    m->view.prompt_tokens += (uint64_t)(context_length(m) + count_words(text));
    pthread_mutex_unlock(&m->mu);
    struct event ev = new_event(m, EV_TURN_BEGIN);
    buf_str(&ev.text, text);
    ev.n_tokens = context_length(m) + count_words(text);
    ev.seed = m->view.settings.seed;
    ev.regen = regen;
    post(m, &ev);
}

static void answer(struct mock *m, const char *text, bool regen)
{
    struct turn t = {.most = m->view.settings.max_tokens};
    bool fault = strncmp(text, "fault", 5) == 0, lost = strncmp(text, "lost", 4) == 0;
    char *reply = reply_to(m, text);
    buf_str(&t.text, "");
    begin_turn(m, text, regen);
    if (strncmp(text, "notice", 6) == 0)
        post_text(m, EV_NOTICE, "the server is busy; waiting");
    enum stop_reason why = fault || lost
                               ? fail(m, lost)
                               : stream(m, &t, reply, m->view.settings.temperature >= 1);
    if (t.n > 0)
        say(m, m->view.turn, text, t.text.p);
    struct event ev = new_event(m, EV_TURN_END);
    ev.reason = why;
    ev.n_tokens = t.n;
    ev.us_decode = (t.end_ns - t.first_ns) / 1000;
    buf_add(&ev.text, t.text.p, t.text.n);
    post(m, &ev);
    free(reply);
    buf_free(&t.text);
}

/* ---- requests -------------------------------------------------------------------------------- */

static void do_regen(struct mock *m)
{
    if (m->n_said == 0) {
        post_text(m, EV_NOTICE, "there is no reply to generate again");
        return;
    }
    char *text = xstrdup(m->said[m->n_said - 1].user);
    unsay(m, m->n_said - 1);
    answer(m, text, true);
    free(text);
}

static void do_undo(struct mock *m)
{
    if (m->n_said == 0)
        return;
    int turn = m->said[m->n_said - 1].turn;
    unsay(m, m->n_said - 1);
    post_op(m, OP_UNDO, "", turn);
}

static void do_forget(struct mock *m, const char *turns)
{
    for (int i = m->n_said - 1; i >= 0; i--)
        if (turn_listed(turns, m->said[i].turn))
            unsay(m, i);
    post_op(m, OP_FORGET, turns, 0);
}

static void do_set(struct mock *m, const char *line)
{
    struct err e;
    char *name = xstrdup(line), *value = strchr(name, '=');
    *value++ = '\0';
    pthread_mutex_lock(&m->mu);
    bool ok = settings_set(&m->view.settings, name, value, &e);
    pthread_mutex_unlock(&m->mu);
    if (ok)
        post_op(m, OP_SET, line, 0);
    else
        post_text(m, EV_NOTICE, e.msg);
    free(name);
}

static void set_system(struct mock *m, const char *text)
{
    free(m->system);
    m->system = text && *text ? xstrdup(text) : NULL;
}

/* The session becomes that of the request, with its turns. */
static void take_session(struct mock *m, const struct request *rq)
{
    while (m->n_said)
        unsay(m, m->n_said - 1);
    for (int i = 0; i < rq->n_past; i++)
        say(m, rq->past[i].turn, rq->past[i].user, rq->past[i].reply ? rq->past[i].reply : "");
    pthread_mutex_lock(&m->mu);
    struct settings set = m->view.settings;
    m->view = (struct chat_view){.settings = set, .committed = -1,
                                 .turn = max_int(0, rq->next_turn - 1)};
    memcpy(m->view.session, rq->session, sizeof m->view.session);
    m->view.length = context_length(m);
    if (rq->settings)
        settings_parse(&m->view.settings, rq->settings, NULL);
    pthread_mutex_unlock(&m->mu);
}

static void serve(struct mock *m, const struct request *rq)
{
    char parent[SESSION_ID];
    memcpy(parent, m->view.session, sizeof parent);
    switch (rq->kind) {
    case RQ_SAY: answer(m, rq->text, false); break;
    case RQ_REGEN: do_regen(m); break;
    case RQ_UNDO: do_undo(m); break;
    case RQ_FORGET: do_forget(m, rq->text); break;
    case RQ_SET: do_set(m, rq->text); break;
    case RQ_SYSTEM:
        set_system(m, rq->text);
        post_op(m, OP_SYSTEM, rq->text, 0);
        break;
    case RQ_NEW:
        take_session(m, rq);
        if (rq->text)
            set_system(m, rq->text);
        post_session(m, OP_OPEN, NULL);
        break;
    case RQ_RESUME:
        take_session(m, rq);
        set_system(m, rq->text);
        post_session(m, OP_RESUME, rq->parent[0] ? rq->parent : NULL);
        break;
    case RQ_FORK:
        take_session(m, rq);
        post_session(m, OP_FORK, parent);
        break;
    default: break;
    }
}

static void *run(void *arg)
{
    struct mock *m = arg;
    pthread_mutex_lock(&m->mu);
    for (;;) {
        m->working = false;
        while (m->n_waiting == 0 && !m->closing)
            pthread_cond_wait(&m->filled, &m->mu);
        if (m->closing)
            break;
        struct request rq = m->waiting[0];
        memmove(m->waiting, m->waiting + 1, (size_t)--m->n_waiting * sizeof *m->waiting);
        m->working = true;
        m->stop.running = rq.number;
        pthread_mutex_unlock(&m->mu);
        if (m->lost)
            fail(m, true);
        else
            serve(m, &rq);
        request_free(&rq);
        pthread_mutex_lock(&m->mu);
    }
    pthread_mutex_unlock(&m->mu);
    return NULL;
}

/* ---- the backend ----------------------------------------------------------------------------- */

/* Why the mock refuses a request; NULL: it does not. */
static const char *why_not(const struct request *rq)
{
    switch (rq->kind) {
    case RQ_SAY: case RQ_REGEN: case RQ_UNDO: case RQ_FORGET: case RQ_SYSTEM: case RQ_NEW:
    case RQ_RESUME: case RQ_FORK: return NULL;
    case RQ_SET:
        return strncmp(rq->text, "draft.nodes=", 12) ? NULL
                                                     : "this backend has no setting draft.nodes";
    case RQ_CALIBRATE: return "this backend has no draft head to calibrate";
    default: return "this backend computes no batches";
    }
}

static bool mock_submit(struct backend *b, struct request *rq, struct err *e)
{
    struct mock *m = mock_of(b);
    const char *why = why_not(rq);
    pthread_mutex_lock(&m->mu);
    if (!why && m->n_waiting == MOST_WAITING)
        why = "64 requests are waiting already";
    if (!why) {
        rq->number = atomic_fetch_add(&m->stop.submitted, 1) + 1;
        m->waiting[m->n_waiting++] = *rq;
        *rq = (struct request){0};
    }
    pthread_cond_signal(&m->filled);
    pthread_mutex_unlock(&m->mu);
    if (!why)
        return true;
    request_free(rq);
    return err_set(e, ERR_NEGATIVE, "%s", why);
}

static void mock_cancel(struct backend *b)
{
    stop_all(&mock_of(b)->stop);
}

static bool mock_busy(struct backend *b)
{
    struct mock *m = mock_of(b);
    pthread_mutex_lock(&m->mu);
    bool busy = m->n_waiting > 0 || m->working;
    pthread_mutex_unlock(&m->mu);
    return busy;
}

static void mock_close(struct backend *b)
{
    struct mock *m = mock_of(b);
    mock_cancel(b);
    pthread_mutex_lock(&m->mu);
    m->closing = true;
    pthread_cond_signal(&m->filled);
    pthread_mutex_unlock(&m->mu);
    evq_close(m->screen);
    pthread_join(m->thread, NULL);
    while (m->n_waiting)
        request_free(&m->waiting[--m->n_waiting]);
    while (m->n_said)
        unsay(m, m->n_said - 1);
    evq_free(m->screen);
    free(m->said);
    free(m->system);
    free(m);
}

static const struct backend_info *mock_info(struct backend *b)
{
    return &mock_of(b)->info;
}

static int mock_fd(struct backend *b)
{
    return evq_fd(mock_of(b)->screen);
}

static bool mock_next(struct backend *b, struct event *ev)
{
    return evq_get(mock_of(b)->screen, ev);
}

static bool mock_wait(struct backend *b, struct event *ev, int ms)
{
    return evq_wait(mock_of(b)->screen, ev, ms);
}

static void mock_rest(struct backend *b, int ms)
{
    evq_rest(mock_of(b)->screen, QUEUE / 4, ms);
}

static const char *mock_token(struct backend *b, int32_t id, size_t *n)
{
    (void)b, (void)id;
    *n = 0;
    return "";
}

static void mock_chat(struct backend *b, struct chat_view *v)
{
    struct mock *m = mock_of(b);
    bool busy = mock_busy(b);
    pthread_mutex_lock(&m->mu);
    *v = m->view;
    pthread_mutex_unlock(&m->mu);
    v->busy = busy;
}

struct backend *open_backend(const struct engine_opts *o, struct err *e)
{
    static const struct backend_ops ops = {
        .close = mock_close, .info = mock_info, .submit = mock_submit, .cancel = mock_cancel,
        .busy = mock_busy, .fd = mock_fd, .next = mock_next, .wait = mock_wait, .rest = mock_rest,
        .token = mock_token, .chat = mock_chat,
    };
    struct mock *m = xcalloc(1, sizeof *m);
    m->base = (struct backend){.ops = &ops, .lacks = {
        [VIEW_ACCEPT] = "this backend does not tell which drafted tokens were accepted",
        [VIEW_STEPS] = "this backend does not tell its steps",
        [VIEW_TREES] = "this backend does not tell its draft trees",
        [VIEW_POOLS] = "this backend does not tell how full its pools are",
        [VIEW_PAGES] = "this backend does not tell which pages hold a token",
        [VIEW_PLAN] = "this backend does not tell its plans",
        [VIEW_CHECK] = "this backend has no checker",
        [VIEW_FAULTS] = "this backend has no historical faults",
        [VIEW_DEBUG] = "this backend cannot pause its turns",
    }};
    m->view = (struct chat_view){.settings = o->settings, .committed = -1};
    if (m->view.settings.forget == FORGET_AUTO)
        m->view.settings.forget = FORGET_OLDEST;
    m->log = o->log;
    m->screen = evq_new(QUEUE);
    pthread_mutex_init(&m->mu, NULL);
    pthread_cond_init(&m->filled, NULL);
    if (m->screen && pthread_create(&m->thread, NULL, run, m) == 0)
        return &m->base;
    evq_free(m->screen);
    free(m);
    err_set(e, ERR_MODEL, "the mock cannot be started");
    return NULL;
}

void list_devices(void (*tell)(void *arg, bool ok, const char *line), void *arg)
{
    tell(arg, true, "mock");
}

bool look_at_server(const struct engine_opts *o, void (*tell)(void *arg, bool ok, const char *line),
                    void *arg, struct err *e)
{
    (void)o, (void)tell, (void)arg;
    return err_set(e, ERR_MODEL, "the mock knows no servers");
}
