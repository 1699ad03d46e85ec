/* front.c - HTTP over libmicrohttpd, in the main thread: see serve.h.
 *
 * libmicrohttpd runs on an epoll descriptor of its own, which front_wait() waits for beside the
 * backend's. A request whose body is being read (body.h), or that waits for tokens, is suspended.
 * libmicrohttpd does not watch its connection meanwhile, so this file does, to find clients that
 * have disconnected. A stream is written from the reply only as fast as its client reads. */
#include "repl/http/body.h"
#include "repl/http/entry.h"
#include "repl/http/responses.h"

#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "kernels/ascii.h"
#include "kernels/late.h"

/* the functions of libmicrohttpd, which front_open() loads */
#define MHD_CALLS(X) \
    X(add_response_header) X(create_response_from_buffer) X(create_response_from_callback) \
    X(destroy_response) X(get_connection_info) X(get_connection_values) X(get_daemon_info) \
    X(get_timeout) X(lookup_connection_value) X(queue_response) X(quiesce_daemon) \
    X(resume_connection) X(run) X(start_daemon) X(stop_daemon) X(suspend_connection)
#define POINTER(name) __typeof__(MHD_##name) *name;
#define NAME(name) "MHD_" #name,
static struct {
    MHD_CALLS(POINTER)
} mhd;
static const char *const mhd_names[] = {MHD_CALLS(NAME)};

enum {
    BODY_BYTES = 32 << 20, /* defaults */
    ALL_BODIES = 256 << 20, /* that are being received */
    TIMEOUT_S = 60, /* in which a client reads nothing of its answer */
    STREAM_BYTES = 16 << 10, /* made at once of a stream */
};

struct route;

/* One request, from its first header to the end of its answer. */
struct call {
    struct front *f;
    struct MHD_Connection *conn;
    struct door *door;
    int fd;
    const struct route *route; /* NULL: an error is the answer */
    struct refusal refused;
    const char *method;
    char path[512];
    bool cors; /* from a page of the origin that may ask */
    bool http11, half_closed; /* half_closed: the client sends nothing more, or has left */
    struct buf body, out; /* body: what has come of it; out: what a stream has to send */
    struct body *reading; /* the body, given to the threads that read bodies; NULL: not now */
    struct body *got;     /* the body, read; NULL: not yet */
    size_t sent;          /* of out */
    struct task *task;    /* NULL: not begun, or released */
    bool suspended, streams, gone;
    bool broken; /* a stream that ended with an error */
    bool unread; /* the answer comes before the body, and ends the connection */
    char why[200]; /* of a refusal; "": none */
    int status;
    int64_t n_prompt, n_generated;
    uint64_t ns;
    struct call *prev, *next;
};

struct front {
    struct serve *s;
    struct http_entry entry;
    struct MHD_Daemon *d;
    struct bodies *bodies;
    int fd; /* of libmicrohttpd */
    int n_call;
    size_t held; /* bytes of bodies */
    struct call *calls;
    struct pollfd *poll; /* room for all */
    struct call **polled;
};

struct route {
    const char *method, *path; /* a path that ends in "/" is the beginning of one */
    enum MHD_Result (*answer)(struct call *c);
    bool open; /* needs no key */
    int body;  /* 1 + its enum body_kind: `answer` is called when the body was read; 0: it has
                  none */
    void (*write)(const struct serve *s, struct buf *out); /* for get_json(): the answer */
};

static bool is_read(const struct route *r)
{
    return !strcmp(r->method, "GET");
}

/* ---- answers --------------------------------------------------------------------------------- */

/* Whether no request can follow on the connection. */
static bool is_last(const struct call *c)
{
    struct pollfd p = {.fd = c->fd, .events = POLLRDHUP};
    return c->unread || c->half_closed || poll(&p, 1, 0) != 0;
}

static enum MHD_Result put_answer(struct call *c, int status, struct MHD_Response *r,
                                  const char *type)
{
    mhd.add_response_header(r, "Server", "aerie/" AERIE_VERSION);
    if (type)
        mhd.add_response_header(r, "Content-Type", type);
    if (status == 405 && c->route)
        mhd.add_response_header(r, "Allow", is_read(c->route) ? "GET, HEAD" : c->route->method);
    if (c->cors) {
        mhd.add_response_header(r, "Access-Control-Allow-Origin", c->f->s->opt.cors);
        mhd.add_response_header(r, "Vary", "Origin");
    }
    if (is_last(c))
        mhd.add_response_header(r, "Connection", "close");
    if (status == 401)
        mhd.add_response_header(r, "WWW-Authenticate", "Bearer");
    if (status == 503)
        mhd.add_response_header(r, "Retry-After", "1");
    c->status = status;
    enum MHD_Result ok = mhd.queue_response(c->conn, (unsigned)status, r);
    mhd.destroy_response(r);
    return ok;
}

/* Takes the buffer's memory. */
static enum MHD_Result send_text(struct call *c, int status, struct buf *b, const char *type)
{
    struct MHD_Response *r =
        b->n ? mhd.create_response_from_buffer(b->n, b->p, MHD_RESPMEM_MUST_FREE)
             : mhd.create_response_from_buffer(0, "", MHD_RESPMEM_PERSISTENT);
    if (!b->n)
        buf_free(b);
    *b = (struct buf){0};
    return r ? put_answer(c, status, r, type) : MHD_NO;
}

static enum MHD_Result send_json(struct call *c, struct buf *b)
{
    return send_text(c, 200, b, "application/json");
}

static enum MHD_Result send_refusal(struct call *c, const struct refusal *r)
{
    struct buf b = {0};
    c->f->s->meter.refused++;
    snprintf(c->why, sizeof c->why, "%.199s", r->message);
    refusal_json(r, &b);
    b.n--; /* the line break */
    return send_text(c, r->status, &b, "application/json");
}

/* ---- replies --------------------------------------------------------------------------------- */

static void suspend(struct call *c)
{
    c->suspended = true;
    mhd.suspend_connection(c->conn);
}

static void resume(struct call *c)
{
    if (!c->suspended)
        return;
    c->suspended = false;
    mhd.resume_connection(c->conn);
}

static void count_tokens(struct call *c)
{
    struct task_counts n;
    task_count(c->task, &n);
    c->n_prompt = n.prompt;
    c->n_generated = n.generated;
}

static void give_back(struct call *c)
{
    struct task *t = c->task;
    if (!t)
        return;
    count_tokens(c);
    c->task = NULL;
    serve_release(c->f->s, t);
}

/* A reply that failed ends the connection within the body, so that no client takes what it has for
 * the whole. */
static ssize_t end_stream(struct call *c)
{
    c->broken = c->task && c->task->failed.status;
    return c->broken ? MHD_CONTENT_READER_END_WITH_ERROR : MHD_CONTENT_READER_END_OF_STREAM;
}

/* Called by libmicrohttpd when the client can take more of a stream. */
static ssize_t read_stream(void *arg, uint64_t, char *to, size_t most)
{
    struct call *c = arg;
    if (c->gone)
        return MHD_CONTENT_READER_END_WITH_ERROR;
    if (c->sent == c->out.n) {
        buf_clear(&c->out);
        c->sent = 0;
        if (c->task)
            (c->task->ask.responses ? responses_stream : task_stream)(c->task, STREAM_BYTES,
                                                                      &c->out);
        if (c->out.n == 0 && (!c->task || c->task->closed))
            return end_stream(c);
    }
    size_t n = c->out.n - c->sent < most ? c->out.n - c->sent : most;
    if (n == 0)
        suspend(c);
    else
        memcpy(to, c->out.p + c->sent, n);
    c->sent += n;
    return (ssize_t)n;
}

static enum MHD_Result answer_task(struct call *c)
{
    struct task *t = c->task;
    if (t->failed.status && task_done(t) && !c->streams) {
        struct refusal r = t->failed;
        give_back(c);
        return send_refusal(c, &r);
    }
    if (t->ask.stream) {
        c->streams = true;
        struct MHD_Response *r =
            mhd.create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BYTES, read_stream, c, NULL);
        if (!r)
            return MHD_NO;
        mhd.add_response_header(r, "Cache-Control", "no-cache");
        return put_answer(c, 200, r, "text/event-stream; charset=utf-8");
    }
    struct buf b = {0};
    (t->ask.responses ? responses_answer : task_answer)(t, &b);
    give_back(c);
    return send_json(c, &b);
}

/* Whether the answer of the task can begin. */
static bool task_ready(const struct task *t)
{
    return task_done(t) || (t->ask.stream && task_begun(t));
}

void front_news(void *call)
{
    struct call *c = call;
    if (c->suspended && (c->streams || task_ready(c->task)))
        resume(c);
}

static bool is_json(struct call *c)
{
    const char *type = mhd.lookup_connection_value(c->conn, MHD_HEADER_KIND, "Content-Type");
    return type && ascii_same_n(type, "application/json", 16) && strchr("; \t", type[16]);
}

/* The client's name for the request, as far as it fits an id. */
static void request_name(struct call *c, char out[64])
{
    const char *id = mhd.lookup_connection_value(c->conn, MHD_HEADER_KIND, "X-Request-Id");
    size_t n = id ? strspn(id, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_.")
                  : 0;
    bool fits = id && n > 0 && n < 64 && !id[n];
    snprintf(out, 64, "%s", fits ? id : "");
}

static void drop_body(struct call *c)
{
    c->f->held -= c->body.n;
    buf_free(&c->body);
}

/* Gives the body to the threads that read bodies. */
static enum MHD_Result read_body(struct call *c)
{
    c->reading = body_new((enum body_kind)(c->route->body - 1), &c->f->s->of, &c->body, c);
    bodies_read(c->f->bodies, c->reading);
    suspend(c);
    return MHD_YES;
}

/* The request needs its body no more. One that is being read is freed when the reading has
 * ended. */
static void leave_body(struct call *c)
{
    if (c->reading) {
        body_stop(c->reading);
        c->reading->call = NULL;
    }
    c->reading = NULL;
    body_free(c->got);
    c->got = NULL;
}

/* Resumes the requests whose bodies were read. */
static void take_bodies(struct front *f)
{
    for (struct body *b; (b = bodies_next(f->bodies));) {
        struct call *c = b->call;
        f->held -= b->bytes;
        if (!c) {
            body_free(b);
            continue;
        }
        c->reading = NULL;
        c->got = b;
        resume(c);
    }
}

static enum MHD_Result begin_call(struct call *c)
{
    struct refusal r = {0};
    char name[64];
    request_name(c, name);
    c->task = serve_begin(c->f->s, &c->got->ask, name, c, &r);
    leave_body(c);
    if (!c->task)
        return send_refusal(c, &r);
    suspend(c);
    return MHD_YES;
}

static enum MHD_Result send_read(struct call *c)
{
    return send_json(c, &c->got->answer);
}

/* ---- about the server ------------------------------------------------------------------------ */

static enum MHD_Result get_health(struct call *c)
{
    struct buf b = {0};
    return send_text(c, c->f->s->ending ? 503 : 200, &b, NULL);
}

static void put_version(const struct serve *, struct buf *out)
{
    buf_str(out, "{\"version\":\"" AERIE_VERSION "\"}");
}

static enum MHD_Result get_json(struct call *c)
{
    struct buf b = {0};
    c->route->write(c->f->s, &b);
    return send_json(c, &b);
}

static enum MHD_Result get_model(struct call *c)
{
    struct refusal r;
    if (!ask_is_model(c->path + strlen(c->route->path), &c->f->s->of, &r))
        return send_refusal(c, &r);
    return get_json(c);
}

static enum MHD_Result get_metrics(struct call *c)
{
    struct buf b = {0};
    serve_metrics(c->f->s, &b);
    return send_text(c, 200, &b, "text/plain; version=0.0.4; charset=utf-8");
}

static enum MHD_Result post_reset(struct call *c)
{
    struct buf b = {0};
    struct refusal r;
    if (serve_reset(c->f->s)) {
        buf_str(&b, "{\"success\":true}");
        return send_json(c, &b);
    }
    refuse(&r, 503, NULL, "replies are computed now; the prefix cache can be emptied when there "
                          "are none");
    return send_refusal(c, &r);
}

static const struct route routes[] = {
    {"POST", "/v1/chat/completions", begin_call, .body = 1 + BODY_CHAT},
    {"POST", "/v1/completions", begin_call, .body = 1 + BODY_COMPLETION},
    {"POST", "/v1/responses", begin_call, .body = 1 + BODY_RESPONSE},
    {"GET", "/v1/models", get_json, .write = serve_models},
    {"GET", "/v1/models/", get_model, .write = serve_model},
    {"POST", "/tokenize", send_read, .body = 1 + BODY_TOKENIZE},
    {"POST", "/detokenize", send_read, .body = 1 + BODY_DETOKENIZE},
    {"GET", "/metrics", get_metrics, .body = 0},
    {"GET", "/health", get_health, .open = true},
    {"GET", "/ping", get_health, .open = true},
    {"GET", "/version", get_json, .write = put_version},
    {"GET", "/load", get_json, .write = serve_load},
    {"GET", "/server_info", get_json, .write = serve_facts},
    {"POST", "/reset_prefix_cache", post_reset, .body = 0},
};

/* ---- requests -------------------------------------------------------------------------------- */

/* What a browser asks before a page of another origin may send a request. */
static enum MHD_Result send_preflight(struct call *c)
{
    const char *wanted = mhd.lookup_connection_value(c->conn, MHD_HEADER_KIND,
                                                     "Access-Control-Request-Headers");
    struct MHD_Response *r = mhd.create_response_from_buffer(0, "", MHD_RESPMEM_PERSISTENT);
    if (!r)
        return MHD_NO;
    mhd.add_response_header(r, "Access-Control-Allow-Methods", "GET, HEAD, POST");
    if (wanted)
        mhd.add_response_header(r, "Access-Control-Allow-Headers", wanted);
    mhd.add_response_header(r, "Access-Control-Max-Age", "600");
    return put_answer(c, 204, r, NULL);
}

static bool is_path(const struct route *r, const char *path)
{
    size_t n = strlen(r->path);
    return r->path[n - 1] == '/' ? !strncmp(r->path, path, n) : !strcmp(r->path, path);
}

static bool is_route(const char *path)
{
    return ANY(i, LEN(routes), is_path(&routes[i], path));
}

/* Refuses a path that the server does not have, and says which ones it has. */
static void no_route(struct call *c)
{
    FREED(buf_free) struct buf all = {0};
    FREED(free_at) char *with_v1 = xasprintf("/v1%s", c->path);
    if (is_route(with_v1)) {
        refuse(&c->refused, 404, NULL, "there is no %.100s; expected %.100s: a base URL ends in "
               "/v1", c->path, with_v1);
        return;
    }
    FOR_EACH(const struct route, r, routes, LEN(routes))
        if (!ends_with(r->path, "/"))
            buf_printf(&all, "%s%s", all.n ? ", " : "", r->path);
    refuse(&c->refused, 404, NULL, "there is no %.100s; expected one of %s", c->path, all.p);
}

static bool is_preflight(const struct call *c)
{
    return c->cors && c->route && !strcmp(c->method, "OPTIONS");
}

static int body_most(const struct call *c)
{
    return c->f->s->opt.body_bytes ? c->f->s->opt.body_bytes : BODY_BYTES;
}

static void too_long(struct call *c)
{
    c->unread = true;
    if (!c->refused.status)
        refuse(&c->refused, 413, NULL, "the body is longer than %d bytes", body_most(c));
}

/* A client that sends without waiting gets no answer if the connection is closed while it sends: up
 * to twice the limit is read and dropped before the answer. */
static void declared_too_long(struct call *c, long long length)
{
    bool unread = c->unread || length / 2 > body_most(c) ||
                  mhd.lookup_connection_value(c->conn, MHD_HEADER_KIND, "Expect");
    too_long(c);
    c->unread = unread;
}

static enum MHD_Result add_field(void *head, enum MHD_ValueKind, const char *name,
                                 const char *value)
{
    asked_add(head, name, value ? value : "");
    return MHD_YES;
}

/* Chooses the route, or an error, from the head of the request. */
static void choose(struct call *c)
{
    struct asked h = {.method = c->method, .http11 = c->http11};
    bool known;
    mhd.get_connection_values(c->conn, MHD_HEADER_KIND, add_field, &h);
    for (size_t i = 0; i < LEN(routes) && !c->route; i++)
        if (is_path(&routes[i], c->path))
            c->route = &routes[i];
    c->cors = entry_is_cors(&c->f->entry, &h);
    h.open = (c->route && c->route->open) || is_preflight(c);
    bool reads = c->route && is_read(c->route);
    bool admitted = entry_admits(&c->f->entry, &h, &known, &c->refused);
    if (known)
        door_known(&c->f->entry, c->door);
    c->unread = c->refused.status == 400; /* where the body ends is not certain */
    long long length = h.value[ASKED_LENGTH] ? strtoll(h.value[ASKED_LENGTH], NULL, 10) : 0;
    if (length > body_most(c))
        declared_too_long(c, length);
    if (!admitted || c->refused.status || is_preflight(c))
        return;
    if (!c->route)
        no_route(c);
    else if (strcmp(c->route->method, c->method) != 0 && !(reads && !strcmp(c->method, "HEAD")))
        refuse(&c->refused, 405, NULL, "%.200s takes %s only", c->path,
               reads ? "GET and HEAD" : c->route->method);
    else if (c->route->body && !is_json(c))
        refuse(&c->refused, 400, NULL, "Unsupported Media Type: Only 'application/json' is "
                                       "allowed");
}

static void add_body(struct call *c, const char *part, size_t n)
{
    if (c->f->held + n > ALL_BODIES && !c->refused.status)
        refuse(&c->refused, 503, NULL, "too many long requests come in at once");
    if (c->refused.status) {
        drop_body(c);
        return;
    }
    buf_add(&c->body, part, n);
    door_received(c->door, n);
    c->f->held += n;
}

static struct door *door_of(struct MHD_Connection *conn)
{
    return mhd.get_connection_info(conn, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
}

static struct call *new_call(struct front *f, struct MHD_Connection *conn, const char *path,
                             const char *method, const char *version)
{
    static const char *const known[] = {"GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH"};
    struct call *c = xcalloc(1, sizeof *c);
    c->f = f;
    c->conn = conn;
    c->ns = clock_ns();
    c->method = "?";
    for (size_t i = 0; i < LEN(known); i++)
        if (!strcmp(method, known[i]))
            c->method = known[i];
    snprintf(c->path, sizeof c->path, "%s", path);
    c->door = door_of(conn);
    c->fd = c->door->fd;
    c->http11 = !strcmp(version, MHD_HTTP_VERSION_1_1);
    c->next = f->calls;
    if (f->calls)
        f->calls->prev = c;
    f->calls = c;
    f->n_call++;
    choose(c);
    return c;
}

/* libmicrohttpd calls this with the head of a request, with each part of its body, at its end, and
 * again when it was resumed. */
static enum MHD_Result on_request(void *arg, struct MHD_Connection *conn, const char *path,
                                  const char *method,
                                  const char *version, const char *part, size_t *n, void **state)
{
    struct call *c = *state;
    if (!c) {
        *state = c = new_call(arg, conn, path, method, version);
        return c->unread ? send_refusal(c, &c->refused) : MHD_YES;
    }
    if (c->gone)
        return MHD_NO;
    if (*n) {
        if (c->body.n + *n > (size_t)body_most(c))
            too_long(c);
        add_body(c, part, *n);
        *n = 0;
        return MHD_YES;
    }
    door_served(c->door);
    if (c->refused.status)
        return send_refusal(c, &c->refused);
    if (is_preflight(c))
        return send_preflight(c);
    if (c->task)
        return answer_task(c);
    if ((c->got ? stop_asked(&c->got->stop) : c->route->body && c->f->s->ending) &&
        serve_refuses(c->f->s, &c->refused))
        return send_refusal(c, &c->refused);
    if (c->got && c->got->refused.status)
        return send_refusal(c, &c->got->refused);
    if (!c->route->body || c->got)
        return c->route->answer(c);
    return read_body(c);
}

static void tell(const struct call *c)
{
    const struct serve_opts *o = &c->f->s->opt;
    char line[520];
    int n;
    if (!o->told)
        return;
    n = snprintf(line, sizeof line, "%s %.127s %d", c->method, c->path, c->gone ? 499 : c->status);
    if (c->n_prompt)
        n += snprintf(line + n, sizeof line - (size_t)n, ", %lld + %lld tokens",
                      (long long)c->n_prompt, (long long)c->n_generated);
    const char *end = c->gone ? ", the client left" : c->broken ? ", the reply failed" : "";
    snprintf(line + n, sizeof line - (size_t)n, ", %.0f ms%s%s%s",
             (double)(clock_ns() - c->ns) / 1e6, end, *end || !c->why[0] ? "" : ": ",
             *end ? "" : c->why);
    o->told(o->told_arg, line);
}

static void on_completed(void *arg, struct MHD_Connection *, void **state,
                         enum MHD_RequestTerminationCode how)
{
    struct call *c = *state;
    struct front *f = arg;
    if (!c)
        return;
    *state = NULL;
    c->gone |= how != MHD_REQUEST_TERMINATED_COMPLETED_OK && !c->broken;
    give_back(c);
    tell(c);
    *(c->prev ? &c->prev->next : &f->calls) = c->next;
    if (c->next)
        c->next->prev = c->prev;
    f->n_call--;
    door_waits(&f->entry, c->door);
    drop_body(c);
    leave_body(c);
    buf_free(&c->out);
    free(c);
}

static void on_connection(void *arg, struct MHD_Connection *conn, void **door,
                          enum MHD_ConnectionNotificationCode what)
{
    struct front *f = arg;
    if (what != MHD_CONNECTION_NOTIFY_STARTED) {
        door_close(&f->entry, *door);
        return;
    }
    const union MHD_ConnectionInfo
        *fd = mhd.get_connection_info(conn, MHD_CONNECTION_INFO_CONNECTION_FD),
        *from = mhd.get_connection_info(conn, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    *door = door_open(&f->entry, fd->connect_fd, from->client_addr);
}

/* ---- the loop -------------------------------------------------------------------------------- */

/* The client of a suspended request has disconnected: drops what was computed for it. */
static void drop(struct call *c)
{
    c->gone = true;
    give_back(c);
    leave_body(c);
    resume(c);
}

/* The client sends nothing more: it has closed the connection, or this direction of it and waits
 * for its answer. A few bytes tell which, because a reset comes from a client that has left: an
 * interim response, which HTTP/1.1 allows before every answer, or a comment in a stream that has
 * begun. */
static void half_closed(struct call *c)
{
    static const char interim[] = "HTTP/1.1 100 Continue\r\n\r\n";
    const int how = MSG_NOSIGNAL | MSG_DONTWAIT;
    c->half_closed = true;
    if (c->streams) {
        buf_str(&c->out, ":\n\n");
        resume(c);
    } else if (c->http11 && send(c->fd, interim, sizeof interim - 1, how) < 0) {
        drop(c);
    }
}

void front_wait(struct front *f, int ms, int fd)
{
    MHD_UNSIGNED_LONG_LONG most;
    int n = 0, log = f->s->n_unstored ? history_fd(f->s->history) : -1;
    f->poll[n++] = (struct pollfd){.fd = f->fd, .events = POLLIN};
    f->poll[n++] = (struct pollfd){.fd = backend_fd(f->s->b), .events = POLLIN};
    f->poll[n++] = (struct pollfd){.fd = fd, .events = POLLIN};
    f->poll[n++] = (struct pollfd){.fd = log, .events = POLLIN};
    f->poll[n++] = (struct pollfd){.fd = bodies_fd(f->bodies), .events = POLLIN};
    const int first = n;
    for (struct call *c = f->calls; c; c = c->next) {
        if (!c->suspended)
            continue;
        f->polled[n] = c;
        f->poll[n++] = (struct pollfd){.fd = c->fd, .events = c->half_closed ? 0 : POLLRDHUP};
    }
    ms = entry_look(&f->entry, ms);
    if (mhd.get_timeout(f->d, &most) == MHD_YES && most < (unsigned long long)ms)
        ms = (int)most;
    if (poll(f->poll, (nfds_t)n, ms) <= 0)
        return;
    for (int i = first; i < n; i++)
        if (f->poll[i].revents & (POLLHUP | POLLERR))
            drop(f->polled[i]);
        else if (f->poll[i].revents & POLLRDHUP)
            half_closed(f->polled[i]);
}

void front_run(struct front *f)
{
    take_bodies(f);
    mhd.run(f->d);
}

void front_end(struct front *f)
{
    MHD_socket listening = mhd.quiesce_daemon(f->d);
    if (listening != MHD_INVALID_SOCKET)
        close(listening);
    for (struct call *c = f->calls; c; c = c->next)
        if (c->reading)
            body_stop(c->reading);
}

bool front_idle(const struct front *f)
{
    return f->n_call == 0;
}

int front_port(const struct front *f)
{
    const union MHD_DaemonInfo *i = mhd.get_daemon_info(f->d, MHD_DAEMON_INFO_BIND_PORT);
    return i ? i->port : 0;
}

static void quiet(void *, const char *, va_list)
{
}

static bool listen_at(struct front *f, const struct sockaddr *at, unsigned flags, struct err *e)
{
    const struct serve_opts *o = &f->s->opt;
    f->d = mhd.start_daemon(MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG | flags, 0,
                            NULL, NULL,
                            on_request, f, MHD_OPTION_EXTERNAL_LOGGER, quiet, NULL,
                            MHD_OPTION_SOCK_ADDR, at, MHD_OPTION_CONNECTION_LIMIT,
                            (unsigned)(entry_places(&f->entry) + PLACES_SPARE),
                            MHD_OPTION_CONNECTION_TIMEOUT,
                            (unsigned)(o->timeout_s ? o->timeout_s : TIMEOUT_S),
                            MHD_OPTION_NOTIFY_COMPLETED, on_completed, f,
                            MHD_OPTION_NOTIFY_CONNECTION, on_connection, f, MHD_OPTION_END);
    int error = errno;
    const union MHD_DaemonInfo *i = f->d ? mhd.get_daemon_info(f->d, MHD_DAEMON_INFO_EPOLL_FD)
                                         : NULL;
    if (i) {
        f->fd = i->epoll_fd;
        return true;
    }
    return err_set(e, ERR_USAGE, "cannot listen at %s, port %d: %s%s", o->host, o->port,
                   strerror(error), error == EADDRINUSE ? "; --port N names another port, 0 any "
                                                          "that is free" : "");
}

struct front *front_open(struct serve *s, struct err *e)
{
    struct front *f = xcalloc(1, sizeof *f);
    struct sockaddr_in a4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)s->opt.port)};
    struct sockaddr_in6 a6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)s->opt.port)};
    f->s = s;
    f->entry.o = &s->opt;
    int most = entry_places(&f->entry) + PLACES_SPARE + 5;
    f->poll = xcalloc((size_t)most, sizeof *f->poll);
    f->polled = xcalloc((size_t)most, sizeof *f->polled);
    f->bodies = bodies_open(e);
    bool ok = !f->bodies || !late_load(LIBMICROHTTPD, mhd_names, &mhd,
                                       (int)LEN(mhd_names), e)
                  ? false
              : inet_pton(AF_INET, s->opt.host, &a4.sin_addr) == 1
                  ? listen_at(f, (struct sockaddr *)&a4, 0, e)
              : inet_pton(AF_INET6, s->opt.host, &a6.sin6_addr) == 1
                  ? listen_at(f, (struct sockaddr *)&a6, MHD_USE_IPv6, e)
                  : err_set(e, ERR_USAGE, "--host cannot be \"%.80s\"; expected an address such as "
                                          "127.0.0.1 or ::1", s->opt.host);
    if (ok)
        return f;
    front_close(f);
    return NULL;
}

void front_close(struct front *f)
{
    if (!f)
        return;
    for (struct call *c = f->calls; c; c = c->next)
        if (c->suspended)
            drop(c);
    if (f->d) {
        mhd.run(f->d); /* no connection may be suspended from here on */
        mhd.stop_daemon(f->d);
    }
    bodies_close(f->bodies);
    FREE(f->poll, f->polled, f);
}
