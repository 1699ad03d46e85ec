/* server_kit.h - plays servers of each kind from recordings, and a client that collects the events
 * of a turn, as the screen and as the log received them.
 *
 * vLLM and llama-server answer as recorded, SGLang, ollama and a plain OpenAI server as documented.
 */
#pragma once

#include "engine/remote/incoming.h"
#include "engine/remote/remote.h"

#include "tests/play.h"

/* ---- kinds ----------------------------------------------------------------------------------- */

struct kind {
    const char *name;  /* of the files in tests/exchanges */
    const char *family; /* as backend_info says it */
    const char *chat;  /* exchange of the reply */
    bool lines;        /* NDJSON, else server-sent events */
    int n_prompt, n_ids; /* ids of prompt and reply that are reported */
    const char *text;  /* of the reply */
    const char *word;  /* within one piece of the text, and nowhere else in the stream before it */
    struct { const char *path, *file; } at[6];
};

static const char KV_CACHE[] = "The KV cache stores the keys and values of earlier tokens so that "
"they need "
                               "not be computed again.";

static const struct kind kinds[] __attribute__((unused)) = {
    {"vllm", "vLLM 0.26.0", "chat", false, 17, 21, KV_CACHE, "stores",
     {{"/version", "version"}, {"/v1/models", "models"}, {"/metrics", "metrics"},
      {"/tokenize", "tokenize"}}},
    {"llama", "llama-server ", "chat", false, 0, 18, NULL, NULL,
     {{"/props", "props"}, {"/v1/models", "models"}, {"/metrics", "metrics"}, {"/slots", "slots"}}},
    {"sglang", "SGLang 0.5.19", "chat", false, 17, 21, KV_CACHE, "stores",
     {{"/get_model_info", "model-info"}, {"/server_info", "server-info"}, {"/v1/models", "models"},
      {"/metrics", "metrics"}}},
    {"ollama", "ollama 0.12.6", "chat", true, 0, 0, KV_CACHE, "stores",
     {{"/api/version", "version"}, {"/v1/models", "models"}}},
    {"openai", "an OpenAI-compatible server", "chat", false, 0, 0, KV_CACHE, "stores",
     {{"/v1/models", "models"}}},
};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

/* ---- faults ---------------------------------------------------------------------------------- */

enum outcome {
    WHOLE,    /* the whole reply, no notice */
    BROKEN,   /* the beginning of the reply, at least its first piece, then an error of one line */
    RESET,    /* as BROKEN, but perhaps without any piece */
    REFUSED,  /* no reply, an error of one line */
    REPLACED, /* the reply with U+FFFD in it */
};

/* One way in which an answer goes wrong. */
struct fault {
    const char *name;
    void (*make)(const struct kind *k, struct play_answer *a);
    enum outcome outcome;
    const char *line; /* the beginning of the error; NULL: any */
    int sent;         /* requests for the reply; 0: one */
};

/* The end of the n-th event, n from 1; if there are fewer, of the last one. */
static inline size_t event_end(const struct kind *k, const struct buf *b, int n)
{
    const char *at = b->p, *sign = k->lines ? "\n" : "\n\n";
    for (const char *next; n-- > 0 && (next = strstr(at, sign));)
        at = next + strlen(sign);
    return (size_t)(at - b->p);
}

/* How many events the first piece of text takes, with the event after it. */
static inline int middle(const struct kind *k, const struct buf *b)
{
    const char *word = strstr(b->p, k->word);
    int n = 1;
    while (word && event_end(k, b, n) < (size_t)(word - b->p))
        n++;
    return n;
}

static inline void replace_body(struct play_answer *a, const char *text)
{
    buf_clear(&a->body);
    buf_str(&a->body, text);
}

static inline void status(struct play_answer *a, int code, const char *text)
{
    a->status = code;
    a->type = "application/json";
    replace_body(a, text);
}
static inline void f_429(const struct kind *k, struct play_answer *a)
{
    (void)k;
    status(a, 429, "{\"error\":{\"message\":\"slow down\"}}");
    a->header = "Retry-After: 0\r\n";
}
/* ---- the server ------------------------------------------------------------------------------ */

struct scene {
    struct play play;
    const struct kind *kind;
    const struct fault *fault; /* of the next replies; NULL: none */
    int n_chat;
    bool vanish; /* every path is unknown, as on another server */
};

static inline void choose(void *arg, const struct play_request *rq, struct play_answer *a)
{
    struct scene *s = arg;
    const char *file = NULL;
    for (size_t i = 0; i < sizeof s->kind->at / sizeof *s->kind->at && s->kind->at[i].path; i++)
        if (!strcmp(s->kind->at[i].path, rq->path))
            file = s->kind->at[i].file;
    bool chat = !file && !strcmp(rq->method, "POST") &&
                play_recorded(s->kind->name, rq, s->kind->chat, a);
    if (chat) {
        s->n_chat++;
        if (s->fault)
            s->fault->make(s->kind, a);
    } else if (!file || !play_recorded(s->kind->name, rq, file, a)) {
        *a = (struct play_answer){.status = 404, .type = "application/json"};
        buf_str(&a->body, "{\"detail\":\"Not Found\"}");
    }
}

static inline int chats(struct scene *s)
{
    pthread_mutex_lock(&s->play.mu);
    int n = s->n_chat;
    pthread_mutex_unlock(&s->play.mu);
    return n;
}

static inline void set_fault(struct scene *s, const struct fault *f)
{
    pthread_mutex_lock(&s->play.mu);
    s->fault = f;
    s->n_chat = 0;
    pthread_mutex_unlock(&s->play.mu);
}

/* ---- the client ------------------------------------------------------------------------------ */

/* The events of one turn, collected from the queue of the screen or of the log. */
struct heard {
    struct buf text, notices, faults, end; /* end: the text of EV_TURN_END */
    struct ids prompt, ids;
    enum stop_reason why;
    int n_begin, n_end;
};

static inline void heard_free(struct heard *h)
{
    buf_free(&h->text);
    buf_free(&h->notices);
    buf_free(&h->faults);
    buf_free(&h->end);
    ids_free(&h->prompt);
    ids_free(&h->ids);
}

static inline void hear(struct heard *h, struct event *ev)
{
    switch (ev->kind) {
    case EV_TURN_BEGIN:
        h->n_begin++;
        ids_cat(&h->prompt, ev->tokens.v, ev->tokens.n);
        break;
    case EV_TEXT: buf_add(&h->text, ev->text.p, ev->text.n); break;
    case EV_NOTICE: buf_printf(&h->notices, "%s|", ev->text.p); break;
    case EV_FAULT: buf_printf(&h->faults, "%s|", ev->text.p); break;
    case EV_TURN_END:
        h->n_end++;
        h->why = ev->reason;
        buf_add(&h->end, ev->text.p, ev->text.n);
        ids_cat(&h->ids, ev->tokens.v, ev->tokens.n);
        if (ev->prompt.n) { /* SGLang sends the prompt's ids at the end of the reply */
            h->prompt.n = 0;
            ids_cat(&h->prompt, ev->prompt.v, ev->prompt.n);
        }
        break;
    default: break;
    }
    event_free(ev);
}

static inline void submit(struct backend *b, enum request_kind kind, const char *text)
{
    struct request rq = {.kind = kind, .text = text ? xstrdup(text) : NULL};
    struct err e;
    if (kind == RQ_NEW)
        memcpy(rq.session, "01JAERIETESTSESSIONNUMBER01", SESSION_ID - 1);
    if (!backend_submit(b, &rq, &e))
        fail_msg("%s", e.msg);
}

struct client {
    struct backend *b;
    struct evq *log;
};

static inline void client_open(struct client *c, const char *url)
{
    struct engine_opts o = {.server = {.url = url}};
    struct err e;
    settings_init(&o.settings);
    c->log = o.log = evq_new(1 << 14);
    c->b = remote_open(&o, &e);
    if (!c->b)
        fail_msg("%s", e.msg);
    submit(c->b, RQ_NEW, NULL);
}

static inline void client_close(struct client *c)
{
    backend_close(c->b);
    evq_free(c->log);
}

/* Collects the events for the screen until a turn has ended, then those of the same turn for the
 * log. */
static inline void wait_end(struct client *c, struct heard *screen, struct heard *log)
{
    struct event ev;
    while (screen->n_end == 0) {
        if (!backend_wait(c->b, &ev, 20000))
            fail_msg("no event for 20 s");
        hear(screen, &ev);
    }
    while (evq_get(c->log, &ev))
        hear(log, &ev);
    buf_str(&screen->text, "");
    buf_str(&screen->notices, "");
    buf_str(&screen->faults, "");
    buf_str(&screen->end, "");
    buf_str(&log->end, "");
}

/* The log received the same as the screen. */
static inline void compare_log(const char *what, const struct heard *screen,
                               const struct heard *log)
{
    if (log->n_begin != 1 || log->n_end != 1 || log->why != screen->why ||
        log->prompt.n != screen->prompt.n ||
        log->ids.n != screen->ids.n || strcmp(screen->end.p, screen->text.p) != 0 ||
        strcmp(log->end.p, screen->end.p) != 0)
        fail_msg("%s: the log differs from the screen: \"%s\" and \"%s\"", what, log->end.p,
                 screen->text.p);
}

static inline bool begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

/* Whether the text is one line: no line end but one at its end. */
static inline bool one_line(const struct buf *lines, const char *begin)
{
    const char *end = strchr(lines->p, '|');
    return end && end[1] == '\0' && !strchr(lines->p, '\n') && (!begin || begins(lines->p, begin));
}

static inline void judge(const struct kind *k, const struct fault *f, const struct heard *h)
{
    char what[160];
    bool ok = false;
    enum outcome o = f ? f->outcome : WHOLE;
    const char *line = f ? f->line : NULL;
    size_t n = h->text.n;
    bool part = strncmp(h->text.p, k->text, n) == 0, whole = n == strlen(k->text) && part;
    snprintf(what, sizeof what, "%s, %s", k->name, f ? f->name : "the turn after it");
    switch (o) {
    case WHOLE:
        ok = whole && h->why == STOP_END && !h->faults.n && !h->notices.n && h->ids.n == k->n_ids &&
             h->prompt.n == k->n_prompt;
        break;
    case BROKEN:
    case RESET: ok = (n > 0 || o == RESET) && part && !whole && h->why == STOP_FAULT &&
                     one_line(&h->faults, line); break;
    case REFUSED: ok = n == 0 && h->why == STOP_FAULT && one_line(&h->faults, line); break;
    case REPLACED: ok = n == strlen(k->text) + 2 && h->why == STOP_END &&
                        strstr(h->text.p, "\xEF\xBF\xBD"); break;
    }
    if (!ok)
        fail_msg("%s: text \"%.200s\", %d ids after %d, reason %d, notices \"%s\", faults \"%s\"",
                 what, h->text.p, h->ids.n, h->prompt.n, h->why, h->notices.p, h->faults.p);
}

static inline void one_turn(struct client *c, struct scene *s, const struct kind *k,
                            const struct fault *f)
{
    struct heard screen = {0}, log = {0};
    set_fault(s, f);
    submit(c->b, RQ_SAY, "What is a KV cache?");
    wait_end(c, &screen, &log);
    judge(k, f, &screen);
    compare_log(f ? f->name : "the turn after it", &screen, &log);
    int want = f && f->sent ? f->sent : 1;
    if (chats(s) != want)
        fail_msg("%s, %s: %d requests, not %d", k->name, f ? f->name : "next", chats(s), want);
    heard_free(&screen);
    heard_free(&log);
}

/* Reads the text of llama-server's reply from the recording: it is nowhere else. */
static inline void read_text(struct kind *k)
{
    struct play_request rq = {.method = "POST"};
    struct play_answer a = {0};
    static char text[512], word[32];
    snprintf(rq.path, sizeof rq.path, "/v1/chat/completions");
    assert_true(play_recorded(k->name, &rq, k->chat, &a));
    const char *sign = "\"delta\":{\"content\":\"";
    for (char *at = a.body.p; (at = strstr(at, sign));) {
        at += strlen(sign);
        if (!word[0] && text[0])
            snprintf(word, sizeof word, "%.*s", (int)strcspn(at, "\""), at);
        strncat(text, at, strcspn(at, "\""));
    }
    k->text = text;
    k->word = word;
    buf_free(&a.body);
}
