/* http.h - requests to one server, over libcurl: whole answers and streams, several at once.
 *
 * Nothing is sent twice: a request that failed is failed, and its sender decides whether to ask
 * again. Redirects are not followed, so a key never reaches another host. A stream has no time limit
 * as a whole, but one for the first byte and one for silence. Compressed answers are unpacked.
 *
 * Threads: a struct http and its requests belong to one thread. http_wake() may be called from any
 * thread (not from a signal handler).
 */
#ifndef AERIE_HTTP_H
#define AERIE_HTTP_H

#include "kernels/base.h"

struct http;

struct http_opts {
    const char *url;     /* "http://host:8000" or with a path in front of all others */
    const char *key;     /* sent as "Authorization: Bearer KEY"; NULL: none */
    const char *const *header; /* (n_header) "Name: value" */
    int n_header;
    int connect_ms, first_ms, silence_ms; /* 0: 10 s, 600 s, 120 s */
};

enum { HTTP_BODY = 64 << 20 }; /* bytes of a whole answer */

/* One request. The caller fills in the first part before http_begin(); the struct must stay where it
 * is until http_end(). */
struct http_call {
    const char *method, *path; /* "GET", "/v1/models" */
    const char *body;          /* JSON, sent as it is; NULL: none */
    /* Takes the bytes of a stream (an answer of status 200); NULL: `answer` collects them. False:
     * the request ends with *e. */
    bool (*bytes)(void *arg, const void *p, size_t n, struct err *e);
    void *arg;

    bool done;         /* all is received, or *why says why not */
    bool failed;
    bool unsent;       /* failed before the server can have read the request: asking again costs
                          nothing */
    struct err why;    /* one line */
    int status;        /* of HTTP; 0: none was received */
    char type[64];     /* Content-Type without parameters, lower case */
    char agent[64];    /* the Server header */
    char moved[256];   /* Location of a redirect, or "" */
    int retry_s;       /* Retry-After, -1: none */
    struct buf answer; /* whole, or the body of an error */
    uint64_t ns_begin, ns_first, ns_last, ns_end; /* clock_ns(): of its bytes; 0: not yet */
    uint64_t n_bytes;  /* received */
    void *own;         /* of http.c */
};

/* False and *e (ERR_USAGE): the address is no http or https address, or a header is malformed. */
bool http_open(struct http **h, const struct http_opts *o, struct err *e);
void http_close(struct http *h);
/* Why sending the key or a conversation to this address is unsafe ("plain http to another machine");
 * NULL: it is not. */
const char *http_warning(const struct http *h);
const char *http_url(const struct http *h); /* without user, password and query */

void http_begin(struct http *h, struct http_call *c);
/* Sends and receives for at most ms milliseconds, less where something has happened. */
void http_run(struct http *h, int ms);
/* Ends a request, in mid-stream if need be (the connection is closed then, which cancels it on the
 * server), and frees what it holds but `answer`. */
void http_end(struct http *h, struct http_call *c);
void http_wake(struct http *h);

/* A whole request. False: it failed or was stopped (*e), or the status is not 2xx: *e then has the
 * server's own words (ERR_MODEL). c->answer is the caller's. */
bool http_call(struct http *h, struct http_call *c, const struct stop *stop, struct err *e);
/* *e for an answer whose status is not 2xx: the status, and the server's words if there are any. */
bool http_refused(const struct http_call *c, struct err *e);

#endif
