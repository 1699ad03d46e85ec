/* serve_front.h - `aerie serve` over a made-up engine, in one thread: the test says which tokens
 * each job gets and in which steps, and moves clients, server and engine by hand.
 */
#pragma once

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "repl/http/serve.h"

#define NESTLING "models/nestling/target"

/* ---- the engine ------------------------------------------------------------------------------ */

struct fake_job {
    struct job_ask ask;
    bool begun, cancelled, ended;
    int at; /* tokens given */
};

struct fake {
    struct backend base;
    struct model model;
    struct tokenizer *tok;
    struct chat *chat;
    struct fake_job job[600];
    int n_job;
    int refuse_from; /* jobs from this one on find the queue full; 0: none */
    struct ids script; /* what every reply says */
    int step;          /* tokens of one step; 0: chosen by `luck` */
    uint64_t luck;
    int held;          /* jobs do not run while this is not 0 */
    int n_cancel, n_reset;
};

static struct fake *fake_of(struct backend *b) { return (struct fake *)b; }
static const struct chat *fake_chat(struct backend *b) { return fake_of(b)->chat; }
static const struct tokenizer *fake_tokenizer(struct backend *b) { return fake_of(b)->tok; }

static bool fake_submit(struct backend *b, struct request *rq, struct err *e)
{
    (void)e;
    fake_of(b)->n_reset += rq->kind == RQ_NEW;
    return true;
}

static void fake_view(struct backend *b, struct chat_view *v)
{
    (void)b;
    *v = (struct chat_view){0};
    settings_init(&v->settings);
}

static void fake_ledger(struct backend *b, struct pool_view pool[N_POOLS])
{
    (void)b;
    memset(pool, 0, N_POOLS * sizeof *pool);
    pool[POOL_FULL] = (struct pool_view){.exists = true, .page_size = 16, .total = 102,
                                         .reserved = 2, .used = 25,
                                         .free = 60, .evictable = 10, .protected_ = 5};
    pool[POOL_SWA] = (struct pool_view){.exists = true, .page_size = 16, .total = 12, .reserved = 2,
                                        .used = 5,
                                        .free = 5};
}

static bool fake_start(struct backend *b, struct job_ask *ask, struct err *e)
{
    struct fake *f = fake_of(b);
    assert_true(ask->prompt.n > 0 && ask->id > 0);
    if (f->refuse_from && f->n_job + 1 >= f->refuse_from)
        return err_set(e, ERR_NEGATIVE, "too many jobs wait");
    assert_true(f->n_job < 600);
    f->job[f->n_job++] = (struct fake_job){.ask = *ask};
    f->job[f->n_job - 1].ask.format = NULL;
    free(ask->format);
    *ask = (struct job_ask){0};
    return true;
}

static void fake_cancel(struct backend *b, uint64_t id)
{
    struct fake *f = fake_of(b);
    f->n_cancel++;
    for (int i = 0; i < f->n_job; i++)
        f->job[i].cancelled |= f->job[i].ask.id == id;
}

static struct event fake_event(const struct fake_job *j, enum event_kind kind)
{
    struct event ev = {.kind = kind, .ns = clock_ns(), .job = xcalloc(1, sizeof *ev.job)};
    ev.job->id = j->ask.id;
    ev.job->n_prompt = j->ask.prompt.n;
    ev.job->n_reused = min_int(4, j->ask.prompt.n - 1);
    return ev;
}

/* The log probability that the made-up engine gives a token, and the best ones. */
static float fake_logp(int32_t id) { return -(float)(id % 97) / 16; }
static void fake_top(int32_t id, int n, struct job_token *out)
{
    for (int k = 0; k < n; k++)
        out[k] = (struct job_token){k == 0 ? id : 300 + k, fake_logp(id) - (float)k};
}

static void fake_begin(struct fake *f, struct fake_job *j)
{
    struct event ev = fake_event(j, EV_JOB_BEGIN);
    const struct ids *p = &j->ask.prompt;
    int n = j->ask.prompt_top;
    if (n >= 0) {
        ev.job->prompt_fact = xcalloc((size_t)p->n, sizeof *ev.job->prompt_fact);
        ev.job->top = xcalloc((size_t)p->n * (size_t)max_int(n, 1), sizeof *ev.job->top);
        ev.job->n_top = n;
        for (int i = 0; i < p->n; i++) {
            ev.job->prompt_fact[i] = (struct token_fact){fake_logp(p->v[i]), -9, 7};
            fake_top(p->v[i], n, ev.job->top + (size_t)i * (size_t)n);
        }
    }
    j->begun = true;
    evq_put(f->base.screen, &ev);
}

static int fake_most(const struct fake *f, const struct fake_job *j)
{
    int most = j->ask.most < 0 ? INT32_MAX : j->ask.most;
    return min_int(most, f->script.n);
}

static void fake_end(struct fake *f, struct fake_job *j, enum stop_reason why)
{
    struct event ev = fake_event(j, EV_JOB_END);
    ev.reason = why;
    ev.job->n_generated = j->at;
    j->ended = true;
    evq_put(f->base.screen, &ev);
}

/* One step of n tokens. */
static void fake_step(struct fake *f, struct fake_job *j, int n)
{
    struct event ev = fake_event(j, EV_JOB_STEP);
    n = j->at == 0 ? 1 : min_int(n, fake_most(f, j) - j->at);
    ev.rec.kind = j->at == 0 ? STEP_PREFILL : n > 1 ? STEP_SPEC : STEP_DECODE;
    ev.rec.drafted = n > 1 ? 5 : 0;
    ev.rec.accepted = n - 1;
    ev.facts = xcalloc((size_t)n, sizeof *ev.facts);
    int top = j->ask.top;
    ev.job->n_top = top;
    ev.job->top = top ? xcalloc((size_t)n * (size_t)top, sizeof *ev.job->top) : NULL;
    for (int i = 0; i < n; i++) {
        int32_t id = f->script.v[j->at + i];
        ids_add(&ev.tokens, id);
        ev.facts[i] = (struct token_fact){fake_logp(id), -9, 7};
        if (top)
            fake_top(id, top, ev.job->top + (size_t)i * (size_t)top);
    }
    j->at += n;
    evq_put(f->base.screen, &ev);
}

static void fake_run_job(struct fake *f, struct fake_job *j)
{
    if (j->ended || (f->held && !j->cancelled))
        return;
    if (!j->begun && !j->cancelled) {
        fake_begin(f, j);
    } else if (j->cancelled) {
        fake_end(f, j, STOP_CANCEL);
    } else if (j->at >= fake_most(f, j)) {
        bool stop = j->at && j->at == f->script.n;
        fake_end(f, j, stop ? STOP_END : STOP_MAX);
    } else {
        f->luck = mix64(f->luck);
        fake_step(f, j, f->step ? f->step : 1 + (int)(f->luck % 6));
    }
}

static void fake_run(struct fake *f)
{
    for (int i = 0; i < f->n_job; i++)
        fake_run_job(f, &f->job[i]);
}

static void fake_script(struct fake *f, const char *text)
{
    struct err e;
    f->script.n = 0;
    assert_true(tok_encode(f->tok, text, strlen(text), TOK_SPECIAL, &f->script, &e));
}

/* dir, family: of another tokenizer and chat format than the bundled model's; or NULL. */
static void fake_open_as(struct fake *f, const char *dir, const char *family)
{
    static const struct backend_ops ops = {.submit = fake_submit, .chat = fake_view};
    static const struct jobs_ops jobs = {.start = fake_start, .cancel = fake_cancel,
                                         .chat = fake_chat,
                                         .tokenizer = fake_tokenizer};
    static const struct pools_ops pools = {.ledger = fake_ledger};
    struct err e = {0};
    memset(f, 0, sizeof *f);
    f->base.ops = &ops;
    f->base.jobs = &jobs;
    f->base.pools = &pools;
    f->tok = tok_open(dir, &e);
    f->model.dir = (char *)(uintptr_t)dir;
    snprintf(f->model.cfg.family, sizeof f->model.cfg.family, "%s", family);
    f->model.cfg.bos = f->model.cfg.pad = -1;
    f->chat = f->tok ? chat_open(&f->model, f->tok, false, NULL, &e) : NULL;
    if (!f->chat)
        fail_msg("%s", e.msg);
    f->base.info = (struct backend_info){.context = 4096, .vocab = tok_vocab(f->tok),
                                         .family = "gemma3", .chat = "gemma", .device = "none",
                                         .backend = "cpu", .precision = "f32", .kv = "f32"};
    f->base.screen = evq_new(1 << 16);
    f->luck = 7;
    f->step = 1;
    fake_script(f, "The KV cache stores the keys and values of earlier tokens so that they need "
                   "not be computed again.<end_of_turn>");
}

static void fake_close(struct fake *f)
{
    for (int i = 0; i < f->n_job; i++)
        ids_free(&f->job[i].ask.prompt);
    ids_free(&f->script);
    evq_close(f->base.screen);
    evq_free(f->base.screen);
    chat_close(f->chat);
    tok_close(f->tok);
}

/* ---- clients --------------------------------------------------------------------------------- */

struct client {
    int fd;
    struct buf to, got;
    size_t sent;
    bool closed; /* by the server */
    int most;    /* bytes read at most from now on; -1: all */
};

static void client_open(struct client *c, int port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int small = 1 << 16;
    *c = (struct client){.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), .most = -1};
    setsockopt(c->fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    assert_int_equal(connect(c->fd, (struct sockaddr *)&at, sizeof at), 0);
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
}

static void client_close(struct client *c)
{
    if (c->fd >= 0)
        close(c->fd);
    buf_free(&c->to);
    buf_free(&c->got);
    c->fd = -1;
}

/* A request with a body of JSON; last: the connection ends with its answer. */
static void client_ask(struct client *c, const char *method, const char *path, const char *head,
                       const char *body, bool last)
{
    buf_printf(&c->to, "%s %s HTTP/1.1\r\nHost: localhost\r\n%s", method, path,
               last ? "Connection: close\r\n" : "");
    buf_str(&c->to, head);
    if (body)
        buf_printf(&c->to, "Content-Type: application/json\r\nContent-Length: %zu\r\n",
                   strlen(body));
    buf_str(&c->to, "\r\n");
    if (body)
        buf_str(&c->to, body);
}

static void client_move(struct client *c)
{
    char part[65536];
    ssize_t n;
    if (c->fd < 0)
        return;
    if (c->sent < c->to.n && (n = send(c->fd, c->to.p + c->sent, c->to.n - c->sent, MSG_NOSIGNAL)) >
        0) c->sent += (size_t)n;
    size_t most = c->most < 0 ? sizeof part : (size_t)c->most;
    if (!most)
        return;
    n = recv(c->fd, part, most < sizeof part ? most : sizeof part, 0);
    if (n > 0) {
        buf_add(&c->got, part, (size_t)n);
        if (c->most >= 0)
            c->most -= (int)n;
    }
    if (n == 0 || (n < 0 && errno != EAGAIN))
        c->closed = true;
}

/* ---- moving ---------------------------------------------------------------------------------- */

struct desk {
    struct fake f;
    struct serve *s;
};

static void desk_open_as(struct desk *d, const struct serve_opts *more, const char *dir,
                         const char *family, struct history *h)
{
    struct err e = {0};
    struct serve_opts o = more ? *more : (struct serve_opts){0};
    o.host = "127.0.0.1";
    o.model = "nestling";
    o.temperature = o.top_p = 1;
    o.lanes = 8;
    fake_open_as(&d->f, dir, family);
    d->s = serve_open(&d->f.base, h, &o, &e);
    if (!d->s)
        fail_msg("%s", e.msg);
}

static void desk_open(struct desk *d, const struct serve_opts *more)
{
    desk_open_as(d, more, NESTLING, "gemma3", NULL);
}

static void desk_close(struct desk *d)
{
    serve_close(d->s);
    fake_close(&d->f);
}

/* Everybody moves, until done() or for so many rounds. */
static bool desk_run(struct desk *d, struct client *c, int n, int rounds, bool (*done)(void *arg),
                     void *arg)
{
    for (int i = 0; i < rounds; i++) {
        for (int k = 0; k < n; k++)
            client_move(&c[k]);
        serve_step(d->s, 0, -1);
        fake_run(&d->f);
        serve_step(d->s, 0, -1);
        if (done && done(arg))
            return true;
        if (i > 200) /* the kernel carries bytes from end to end in its own time */
            usleep(100);
    }
    return done == NULL;
}

struct jobs_wanted {
    const struct fake *f;
    int n;
};

static bool has_jobs(void *arg)
{
    const struct jobs_wanted *w = arg;
    return w->f->n_job >= w->n;
}

/* Everybody moves until n requests have reached the engine: their bodies are read on another
 * thread. */
static void desk_await_jobs(struct desk *d, struct client *c, int clients, int n)
{
    assert_true(desk_run(d, c, clients, 100000, has_jobs, &(struct jobs_wanted){&d->f, n}));
}

static bool all_closed(void *arg)
{
    struct client **c = arg; /* NULL-terminated */
    for (; *c; c++)
        if (!(*c)->closed)
            return false;
    return true;
}

/* Sends one request and returns the status; *body: the answer's, without its chunks' framing. */
static int desk_ask(struct desk *d, const char *method, const char *path, const char *head,
                    const char *body, struct buf *answer);

static void unchunk(const char *p, const char *end, struct buf *out)
{
    while (p < end) {
        char *after;
        unsigned long n = strtoul(p, &after, 16);
        if (n == 0)
            break;
        p = after + 2;
        assert_true(p + n + 2 <= end);
        buf_add(out, p, n);
        p += n + 2;
    }
}

/* One answer of a connection; returns where the next begins. */
static const char *split_answer(const char *p, const char *end, int *status, struct buf *body)
{
    const char *head = memmem(p, (size_t)(end - p), "\r\n\r\n", 4);
    assert_non_null(head);
    assert_int_equal(strncmp(p, "HTTP/1.1 ", 9), 0);
    *status = atoi(p + 9);
    assert_non_null(memmem(p, (size_t)(head - p), "Server: aerie/" AERIE_VERSION,
                           13 + strlen(AERIE_VERSION)));
    const char *length = memmem(p, (size_t)(head - p), "Content-Length: ", 16);
    buf_clear(body);
    buf_str(body, "");
    if (length) {
        size_t n = (size_t)atol(length + 16);
        assert_true(head + 4 + n <= end);
        buf_add(body, head + 4, n);
        return head + 4 + n;
    }
    unchunk(head + 4, end, body);
    return end;
}

static int desk_ask(struct desk *d, const char *method, const char *path, const char *head,
                    const char *body, struct buf *answer)
{
    struct client c, *list[2] = {&c, NULL};
    int status;
    client_open(&c, serve_port(d->s));
    client_ask(&c, method, path, head, body, true);
    if (!desk_run(d, &c, 1, 20000, all_closed, list))
        fail_msg("no answer to %s %s: %s", method, path, c.got.p ? c.got.p : "");
    assert_non_null(c.got.p);
    split_answer(c.got.p, c.got.p + c.got.n, &status, answer);
    client_close(&c);
    return status;
}

static json_t *desk_json(struct desk *d, const char *path, const char *body, int want)
{
    struct buf b = {0};
    int status = desk_ask(d, body ? "POST" : "GET", path, "", body, &b);
    if (status != want)
        fail_msg("%s %s: %d, not %d: %s", path, body ? body : "", status, want, b.p);
    json_t *o = json_loadb(b.p, b.n, JSON_REJECT_DUPLICATES, NULL);
    if (!o)
        fail_msg("no JSON: %s", b.p);
    buf_free(&b);
    return o;
}
