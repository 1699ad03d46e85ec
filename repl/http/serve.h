/* serve.h - `aerie serve`: the local engine as a server in OpenAI's and vLLM's form.
 *
 * One thread, the main one, owns connections, requests and backend. jobs.c begins jobs for
 * requests, serve.c takes their events and logs each job as a session of one turn, front.c speaks
 * HTTP. */
#pragma once

#include "engine/backend.h"
#include "history/history.h"
#include "repl/http/meter.h"
#include "repl/http/task.h"

struct serve_opts {
    const char *host; /* a numeric address */
    int port;         /* 0: any that is free */
    const char *key;  /* that clients must send; NULL: none */
    const char *model; /* its name for clients */
    float temperature, top_p, min_p; /* of requests that name none */
    int top_k;
    bool seeded;      /* requests that name no seed use this one; else each has another */
    uint64_t seed;
    int lanes;
    const char *cors; /* the origin whose pages may ask, as browsers write it; NULL: none */
    int body_bytes, connections, head_s, timeout_s; /* 0: defaults */
    void (*told)(void *arg, const char *line); /* a line for each request; or NULL */
    void *told_arg;
};

struct front;

struct serve {
    struct serve_opts opt;
    struct backend *b;
    struct history *history; /* NULL: nothing is logged */
    struct ask_of of;
    char print[64];
    struct settings settings; /* the backend's */
    struct task **task;       /* (n_task) that have not been freed */
    int n_task;
    uint64_t last_id, seq, random;
    int64_t since;     /* seconds since 1970 */
    struct meter meter;
    struct front *front;
    bool ending;
    bool lost; /* the device has failed: no request can be answered any more */
    char why_lost[256];
    int n_unstored; /* jobs that have ended and wait for the log */
};

/* Listens. The caller keeps the backend and the history (or NULL) and ends with serve_close(). NULL
 * and *e: the backend has no jobs, or the address cannot be used. */
struct serve *serve_open(struct backend *b, struct history *h, const struct serve_opts *o,
                         struct err *e);
int serve_port(const struct serve *s);
/* Waits up to ms for connections, events or fd (-1: none), and handles them. */
void serve_step(struct serve *s, int ms, int fd);
/* Accepts no more connections and ends all replies; serve_step() sends their remaining text. */
void serve_end(struct serve *s);
bool serve_idle(const struct serve *s); /* no answer is on its way */
void serve_close(struct serve *s);

/* ---- jobs.c, for serve.c and front.c --------------------------------------------------------- */

/* Whether no request can be answered any more: *r says why. */
bool serve_refuses(const struct serve *s, struct refusal *r);
/* Begins to answer; takes over *a. Until serve_release(), front_news() is called for `call`
 * whenever the task has news. NULL and *r: too many requests wait. */
struct task *serve_begin(struct serve *s, struct ask *a, const char *name, void *call,
                         struct refusal *r);
/* The client has its answer or has disconnected: cancels running jobs. */
void serve_release(struct serve *s, struct task *t);
void serve_cancel(struct serve *s, struct task *t); /* its jobs that run */
void serve_drop(struct serve *s, struct task *t);   /* frees it: all its jobs have ended */
/* Of the task's i-th reply. */
static inline uint64_t job_seed(const struct ask *a, int i)
{
    return a->seed + (uint64_t)(i % a->n);
}
/* Append what the server says of itself: facts, the model and the list of it as JSON; the
 * number of requests that it has; the page of /metrics. */
void serve_facts(const struct serve *s, struct buf *out);
void serve_model(const struct serve *s, struct buf *out);
void serve_models(const struct serve *s, struct buf *out);
void serve_load(const struct serve *s, struct buf *out);
void serve_metrics(const struct serve *s, struct buf *out);
/* Drops the KV that is held for reuse. False: not possible while replies are computed. */
bool serve_reset(struct serve *s);

/* ---- front.c, for serve.c -------------------------------------------------------------------- */

struct front *front_open(struct serve *s, struct err *e);
void front_close(struct front *f);
int front_port(const struct front *f);
/* Waits up to ms for connections, the backend, fd and clients that leave. */
void front_wait(struct front *f, int ms, int fd);
void front_run(struct front *f); /* reads and writes what can be; after whatever may have resumed a
                                    request */
void front_end(struct front *f);
bool front_idle(const struct front *f);
void front_news(void *call); /* the task has something to send, or is done */
