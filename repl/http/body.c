/* body.c - see body.h. */
#include "repl/http/body.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "kernels/json.h"
#include "kernels/json_read.h"
#include "repl/http/responses.h"

/* ---- tokens and text ------------------------------------------------------------------------- */

static bool is_stopped(const struct body *b, struct refusal *r)
{
    return stop_asked(&b->stop) && !refuse(r, 503, NULL, "the server ends");
}

static bool read_tokenize(const struct ask_of *of, json_t *o, struct ids *ids, bool *strs,
                          struct refusal *r)
{
    json_t *prompt = json_object_get(o, "prompt");
    bool bare = json_is_false(json_object_get(o, "add_special_tokens"));
    *strs = json_is_true(json_object_get(o, "return_token_strs"));
    if (json_is_string(prompt))
        return ask_encode(of, json_string_value(prompt), json_string_length(prompt), bare, ids, r);
    if (!json_object_get(o, "messages"))
        return refuse(r, 400, "prompt", "expected prompt, a text, or messages");
    if (json_is_false(json_object_get(o, "add_generation_prompt")))
        return refuse(r, 400, "add_generation_prompt",
                      "add_generation_prompt: false is not supported");
    return ask_messages(o, of, false, ids, NULL, NULL, r);
}

enum { CHECK_EVERY = 1 << 14 }; /* ids between two looks at the stop */

static void put_tokens(struct body *b, const struct ids *ids, bool strs)
{
    struct buf *out = &b->answer;
    JPUT_IN(out, '{');
    jput_fields(out, "%d{count}%d{max_model_len}", ids->n, b->of->context);
    jput_kints(out, "tokens", ids->v, ids->n);
    jput_key(out, "token_strs");
    if (strs)
        jput_open(out, '[');
    else
        jput_null(out);
    for (int i = 0; strs && i < ids->n && !(i % CHECK_EVERY == 0 && is_stopped(b, &b->refused));
         i++)
        token_spelling(b->of->tok, ids->v[i], out);
    if (strs)
        jput_close(out, ']');
}

static void tokenize(struct body *b)
{
    FREED(ids_free) struct ids ids = {0};
    bool strs = false;
    json_auto_t *o = ask_object(b->text.p, b->text.n, &b->refused);
    if (o && ask_model(o, b->of, &b->refused) && read_tokenize(b->of, o, &ids, &strs, &b->refused))
        put_tokens(b, &ids, strs);
}

static bool read_tokens(struct body *b, const json_t *list, struct ids *ids)
{
    struct refusal *r = &b->refused;
    json_t *v;
    size_t i;
    if (!json_is_array(list))
        return refuse(r, 400, "tokens", "tokens should be a list of token ids");
    json_array_foreach(list, i, v) {
        if (i % CHECK_EVERY == 0 && is_stopped(b, r))
            return false;
        if (!json_is_integer(v) || json_integer_value(v) < 0 ||
            json_integer_value(v) >= b->of->vocab)
            return refuse(r, 400, "tokens", "tokens should hold ids of the vocabulary, 0 to %d",
                          b->of->vocab - 1);
        ids_add(ids, (int32_t)json_integer_value(v));
    }
    return true;
}

static void detokenize(struct body *b)
{
    FREED(ids_free) struct ids ids = {0};
    FREED(buf_free) struct buf text = {0};
    struct buf *out = &b->answer;
    json_auto_t *o = ask_object(b->text.p, b->text.n, &b->refused);
    if (o && ask_model(o, b->of, &b->refused) &&
        read_tokens(b, json_object_get(o, "tokens"), &ids)) {
        tok_decode(b->of->tok, ids.v, ids.n, &text);
        jput_record(out, "%.*s{prompt}", (int)text.n, text.n ? text.p : "");
    }
}

/* ---- the threads ----------------------------------------------------------------------------- */

enum { SHORT, LONG, N_THREADS };

struct queue {
    struct body *first, **end;
};

struct body_reader {
    struct bodies *all;
    struct queue waiting;
    struct body *running;
    pthread_cond_t filled;
    pthread_t thread;
    bool started;
};

struct bodies {
    pthread_mutex_t mu; /* of all queues, `running` and `closing` */
    struct body_reader reader[N_THREADS];
    struct queue done;
    bool closing;
    int fd; /* an eventfd: `done` is not empty */
};

static void put_body(struct queue *q, struct body *b)
{
    b->next = NULL;
    *q->end = b;
    q->end = &b->next;
}

static struct body *take_body(struct queue *q)
{
    struct body *b = q->first;
    if (b && !(q->first = b->next))
        q->end = &q->first;
    return b;
}

/* The request for a chat that asks for the same. */
static void read_response(struct body *b)
{
    json_t *o = ask_object(b->text.p, b->text.n, &b->refused);
    json_t *chat = o ? responses_chat(o, &b->refused) : NULL;
    FREED(free_at) char *text = chat ? json_written(chat, JSON_COMPACT) : NULL;
    if (text && ask_read(&b->ask, b->of, true, text, strlen(text), &b->refused))
        b->ask.responses = true;
    else if (chat && !text)
        refuse(&b->refused, 400, NULL, "the request cannot be read");
    json_decref(chat);
    json_decref(o);
}

static void read_body(struct body *b)
{
    tok_stop_on(&b->stop);
    json_stop_on(&b->stop);
    if (is_stopped(b, &b->refused))
        ;
    else if (b->kind == BODY_TOKENIZE)
        tokenize(b);
    else if (b->kind == BODY_DETOKENIZE)
        detokenize(b);
    else if (b->kind == BODY_RESPONSE)
        read_response(b);
    else
        ask_read(&b->ask, b->of, b->kind == BODY_CHAT, b->text.p, b->text.n, &b->refused);
    tok_stop_on(NULL);
    json_stop_on(NULL);
    buf_free(&b->text);
    if (is_stopped(b, &b->refused))
        buf_free(&b->answer);
}

static void *reader_main(void *arg)
{
    struct body_reader *r = arg;
    struct bodies *all = r->all;
    pthread_mutex_lock(&all->mu);
    while (!all->closing) {
        r->running = take_body(&r->waiting);
        if (!r->running) {
            pthread_cond_wait(&r->filled, &all->mu);
            continue;
        }
        pthread_mutex_unlock(&all->mu);
        read_body(r->running);
        pthread_mutex_lock(&all->mu);
        put_body(&all->done, r->running);
        r->running = NULL;
        CHECK(write(all->fd, &(uint64_t){1}, 8) == 8);
    }
    pthread_mutex_unlock(&all->mu);
    return NULL;
}

static bool start(struct bodies *all, struct body_reader *r, struct err *e)
{
    sigset_t every, old;
    r->all = all;
    r->waiting.end = &r->waiting.first;
    pthread_cond_init(&r->filled, NULL);
    sigfillset(&every);
    pthread_sigmask(SIG_BLOCK, &every, &old); /* signals belong to the main thread */
    int rc = pthread_create(&r->thread, NULL, reader_main, r);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    r->started = rc == 0;
    return r->started || err_set(e, ERR_USAGE, "cannot start a thread for requests: %s",
                                 strerror(rc));
}

struct bodies *bodies_open(struct err *e)
{
    struct bodies *all = xcalloc(1, sizeof *all);
    pthread_mutex_init(&all->mu, NULL);
    all->done.end = &all->done.first;
    all->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    bool ok = all->fd >= 0 || err_set(e, ERR_USAGE, "cannot open an eventfd: %s", strerror(errno));
    for (int i = 0; ok && i < N_THREADS; i++)
        ok = start(all, &all->reader[i], e);
    if (ok)
        return all;
    bodies_close(all);
    return NULL;
}

static void free_queue(struct queue *q)
{
    for (struct body *b; (b = take_body(q));)
        body_free(b);
}

void bodies_close(struct bodies *all)
{
    if (!all)
        return;
    pthread_mutex_lock(&all->mu);
    all->closing = true;
    for (int i = 0; i < N_THREADS; i++) {
        if (all->reader[i].running)
            body_stop(all->reader[i].running);
        if (all->reader[i].started)
            pthread_cond_signal(&all->reader[i].filled);
    }
    pthread_mutex_unlock(&all->mu);
    FOR_EACH(struct body_reader, r, all->reader, N_THREADS) {
        if (!r->started)
            continue;
        pthread_join(r->thread, NULL);
        free_queue(&r->waiting);
        pthread_cond_destroy(&r->filled);
    }
    free_queue(&all->done);
    if (all->fd >= 0)
        close(all->fd);
    pthread_mutex_destroy(&all->mu);
    free(all);
}

int bodies_fd(const struct bodies *all)
{
    return all->fd;
}

void bodies_read(struct bodies *all, struct body *b)
{
    struct body_reader *r = &all->reader[b->text.n > SHORT_BYTES ? LONG : SHORT];
    LOCKED(&all->mu);
    put_body(&r->waiting, b);
    pthread_cond_signal(&r->filled);
}

struct body *body_new(enum body_kind kind, const struct ask_of *of, struct buf *text, void *call)
{
    struct body *b = xcalloc(1, sizeof *b);
    *b = (struct body){.kind = kind, .of = of, .text = *text, .bytes = text->n, .call = call,
                       .stop = {.submitted = 1, .running = 1}};
    *text = (struct buf){0};
    return b;
}

struct body *bodies_next(struct bodies *all)
{
    uint64_t n;
    LOCKED(&all->mu);
    struct body *b = take_body(&all->done);
    if (!b && read(all->fd, &n, sizeof n) < 0)
        CHECK(errno == EAGAIN);
    return b;
}

void body_stop(struct body *b)
{
    stop_all(&b->stop);
}

void body_free(struct body *b)
{
    if (!b)
        return;
    buf_free(&b->text);
    buf_free(&b->answer);
    ask_free(&b->ask);
    free(b);
}
