/* play.h - an HTTP server in the test's own process that plays answers back, with faults.
 *
 * One thread a connection, one answer a connection ("Connection: close"). A test gives a function
 * that chooses the answer to each request; it runs on the server's threads, under one lock.
 */
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "kernels/base.h"

struct play_request {
    char method[16], path[256];
    struct buf head, body; /* head: all header lines */
};

struct play_answer {
    int status;       /* 0: close without an answer, -1: no byte until the client goes away */
    const char *type; /* Content-Type; NULL: none */
    const char *header; /* more header lines, each with CRLF; NULL: none */
    struct buf body;  /* freed by the server */
    int cut;          /* bytes of one write; 0: all at once */
    int n_paced;      /* events of a stream at a fixed rate, a write each, the last with all that
                         follows; 0: the body is sent as cut and pause_us say */
    int first_us, every_us; /* from the request to the first event, from one to the next */
    int pause_us;     /* between writes */
    size_t most;      /* end after so many bytes of the body; 0: all */
    bool reset;       /* end with a reset instead of an orderly end */
    bool stall;       /* send no more, and wait until the client goes away */
    bool length;      /* send a Content-Length */
};

struct play {
    int fd, port;
    char url[64];
    pthread_t thread;
    pthread_mutex_t mu;
    void (*choose)(void *arg, const struct play_request *rq, struct play_answer *a);
    void *arg;
    int n_open;      /* connections being served */
    int n_gone;      /* answers whose client went away before their end */
    bool closing;
};

struct play_line {
    struct play *p;
    int fd;
};

static inline const char *play_header(const struct play_request *rq, const char *name)
{
    static _Thread_local char value[512];
    size_t n = strlen(name);
    for (const char *s = rq->head.p; s && *s; s = strchr(s, '\n') ? strchr(s, '\n') + 1 : NULL)
        if (strncasecmp(s, name, n) == 0 && s[n] == ':') {
            s += n + 1;
            s += strspn(s, " ");
            snprintf(value, sizeof value, "%.*s", (int)strcspn(s, "\r\n"), s);
            return value;
        }
    return NULL;
}

static inline bool play_read(int fd, struct play_request *rq)
{
    struct buf in = {0};
    char piece[4096], *end = NULL;
    size_t want = 0;
    for (;;) {
        if (!end && in.p && (end = strstr(in.p, "\r\n\r\n"))) {
            sscanf(in.p, "%15s %255s", rq->method, rq->path);
            buf_add(&rq->head, in.p, (size_t)(end - in.p) + 2);
            const char *n = play_header(rq, "content-length");
            want = (size_t)(end - in.p) + 4 + (n ? strtoul(n, NULL, 10) : 0);
        }
        if (end && in.n >= want)
            break;
        ssize_t got = read(fd, piece, sizeof piece);
        if (got <= 0) {
            buf_free(&in);
            return false;
        }
        buf_add(&in, piece, (size_t)got);
        end = end ? strstr(in.p, "\r\n\r\n") : NULL; /* the buffer may have moved */
    }
    buf_add(&rq->body, end + 4, in.n - (size_t)(end + 4 - in.p));
    buf_str(&rq->body, "");
    buf_free(&in);
    return true;
}

static inline bool play_gone(int fd, int ms)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    char c;
    return poll(&p, 1, ms) > 0 && recv(fd, &c, 1, MSG_DONTWAIT) <= 0;
}

/* Each event at its own time, so that a late one delays no other. */
static inline bool play_paced(int fd, const struct play_answer *a)
{
    struct timespec at;
    bool ok = true;
    size_t i = 0;
    clock_gettime(CLOCK_MONOTONIC, &at);
    for (int k = 0; ok && k < a->n_paced; k++) {
        const char *from = a->body.p + i, *blank = memmem(from, a->body.n - i, "\n\n", 2);
        size_t n = k < a->n_paced - 1 && blank ? (size_t)(blank + 2 - from) : a->body.n - i;
        at.tv_nsec += 1000L * (k ? a->every_us : a->first_us);
        at.tv_sec += at.tv_nsec / 1000000000;
        at.tv_nsec %= 1000000000;
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
        ok = send(fd, from, n, MSG_NOSIGNAL) == (ssize_t)n;
        i += n;
    }
    return ok;
}

static inline bool play_write(struct play *p, int fd, const struct play_answer *a)
{
    struct buf head = {0};
    buf_printf(&head, "HTTP/1.1 %d X\r\nConnection: close\r\n", a->status);
    if (a->type)
        buf_printf(&head, "Content-Type: %s\r\n", a->type);
    if (a->length)
        buf_printf(&head, "Content-Length: %zu\r\n", a->body.n);
    buf_printf(&head, "%s\r\n", a->header ? a->header : "");
    while (a->status < 0 && !p->closing)
        if (play_gone(fd, 20))
            break;
    bool ok = a->status > 0 && send(fd, head.p, head.n, MSG_NOSIGNAL) == (ssize_t)head.n;
    buf_free(&head);
    if (a->n_paced)
        return ok && play_paced(fd, a);
    size_t n = a->most && a->most < a->body.n ? a->most : a->body.n;
    for (size_t at = 0; ok && at < n;) {
        size_t k = a->cut ? (size_t)a->cut : n;
        if (k > n - at)
            k = n - at;
        ok = send(fd, a->body.p + at, k, MSG_NOSIGNAL) == (ssize_t)k;
        at += k;
        if (a->pause_us)
            usleep((useconds_t)a->pause_us);
        ok = ok && !play_gone(fd, 0);
    }
    while (ok && a->stall && !p->closing)
        ok = !play_gone(fd, 20);
    return ok;
}

static inline void *play_serve(void *arg)
{
    struct play_line *line = arg;
    struct play *p = line->p;
    struct play_request rq = {0};
    struct play_answer a = {0};
    if (play_read(line->fd, &rq)) {
        pthread_mutex_lock(&p->mu);
        p->choose(p->arg, &rq, &a);
        pthread_mutex_unlock(&p->mu);
        bool whole = a.status == 0 || play_write(p, line->fd, &a);
        pthread_mutex_lock(&p->mu);
        p->n_gone += !whole;
        pthread_mutex_unlock(&p->mu);
    }
    if (a.reset)
        setsockopt(line->fd, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger));
    close(line->fd);
    buf_free(&rq.head);
    buf_free(&rq.body);
    buf_free(&a.body);
    pthread_mutex_lock(&p->mu);
    p->n_open--;
    pthread_mutex_unlock(&p->mu);
    free(line);
    return NULL;
}

static inline void *play_run(void *arg)
{
    struct play *p = arg;
    for (int fd; (fd = accept(p->fd, NULL, NULL)) >= 0;) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
        struct play_line *line = malloc(sizeof *line);
        pthread_t t;
        *line = (struct play_line){p, fd};
        pthread_mutex_lock(&p->mu);
        p->n_open++;
        pthread_mutex_unlock(&p->mu);
        assert_int_equal(pthread_create(&t, NULL, play_serve, line), 0);
        pthread_detach(t);
    }
    return NULL;
}

/* port 0: any that is free. */
static inline void play_open_at(struct play *p, int port,
                                void (*choose)(void *, const struct play_request *,
                                               struct play_answer *),
                                void *arg)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                             .sin_port = htons((uint16_t)port)};
    socklen_t n = sizeof at;
    *p = (struct play){.choose = choose, .arg = arg};
    pthread_mutex_init(&p->mu, NULL);
    p->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(p->fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
    assert_int_equal(bind(p->fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(p->fd, 64), 0);
    assert_int_equal(getsockname(p->fd, (struct sockaddr *)&at, &n), 0);
    p->port = ntohs(at.sin_port);
    snprintf(p->url, sizeof p->url, "http://127.0.0.1:%d", p->port);
    assert_int_equal(pthread_create(&p->thread, NULL, play_run, p), 0);
}

static inline void play_open(struct play *p,
                             void (*choose)(void *, const struct play_request *,
                                            struct play_answer *),
                             void *arg)
{
    play_open_at(p, 0, choose, arg);
}

static inline void play_close(struct play *p)
{
    p->closing = true;
    shutdown(p->fd, SHUT_RDWR);
    close(p->fd);
    pthread_join(p->thread, NULL);
    for (int open = 1; open; usleep(1000)) {
        pthread_mutex_lock(&p->mu);
        open = p->n_open;
        pthread_mutex_unlock(&p->mu);
    }
    pthread_mutex_destroy(&p->mu);
}

/* The body, status and type of a recorded exchange; false: there is none for the request. */
static inline bool play_recorded(const char *kind, const struct play_request *rq, const char *name,
                                 struct play_answer *a)
{
    static _Thread_local char type[128];
    char method[16], path[256], file[256];
    struct buf all = {0};
    struct err e;
    snprintf(file, sizeof file, "tests/exchanges/%s-%s", kind, name);
    if (!buf_read_file(&all, file, 1 << 20, &e))
        fail_msg("%s", e.msg);
    int at = 0;
    for (char *end; all.p[0] == '#' && (end = strchr(all.p, '\n'));
         all.n -= (size_t)(end + 1 - all.p))
        memmove(all.p, end + 1, strlen(end + 1) + 1); /* how the file came to be */
    assert_int_equal(sscanf(all.p, "%15s %255s %d %127[^\n]%n", method, path, &a->status, type,
                            &at), 4);
    bool same = strcmp(method, rq->method) == 0 && strcmp(path, rq->path) == 0;
    if (same) {
        a->type = type;
        buf_add(&a->body, all.p + at + 1, all.n - (size_t)at - 1);
    }
    buf_free(&all);
    return same;
}
