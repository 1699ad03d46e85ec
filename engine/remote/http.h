/* http.h - requests to one server, over libcurl: whole answers and streams, several at once.
 *
 * Nothing is sent twice: after a failure the caller decides whether to send the request again.
 * Redirects are not followed, so a key never reaches another host. A stream has no time limit as a
 * whole, but one for the first byte and one for silence. Compressed answers are unpacked.
 *
 * Threads: a struct http and its requests belong to one thread. http_wake() may be called from any
 * thread (not from a signal handler).
 */
#pragma once

#include "kernels/base.h"

struct http;

struct http_opts {
    const char *url;     /* "http://host:8000", perhaps with a path that precedes all others */
    const char *key;     /* sent as "Authorization: Bearer KEY"; NULL: none */
    const char *const *header; /* (n_header) "Name: value" */
    int n_header;
    int connect_ms, first_ms, silence_ms; /* 0: 10 s, 600 s, 120 s */
};

enum {
    HTTP_BODY = 64 << 20,   /* bytes of a whole answer, unpacked */
    HTTP_STREAM = 1 << 30,  /* bytes of a stream, unpacked */
    RETRIES = 3,            /* of a request that had no effect */
};

/* One request. The caller fills in the first part before http_begin(); the struct must stay where
 * it is until http_end(). */
struct http_call {
    const char *method, *path; /* "GET", "/v1/models" */
    const char *body;          /* JSON, sent as it is; NULL: none */
    uint64_t from;             /* asks for the bytes from this one on; 0: for all */
    bool as_stored;            /* asks for an answer that is not compressed */
    uint64_t most;             /* bytes of a stream, at most; 0: HTTP_STREAM */
    /* Takes the bytes of a stream (an answer of status 200, or 206 with `from`); NULL: `answer`
     * collects them. False: the request ends with *e. */
    bool (*bytes)(void *arg, const void *p, size_t n, struct err *e);
    void *arg;
    const struct stop *stop; /* asked for each part that comes, because an answer can unpack to a
                                thousand times its size; NULL: nothing stops it */

    bool done;         /* everything was received, or `failed` and *why says why not */
    bool failed;
    bool unsent;       /* failed before the server can have read the request: it may be sent
                          again */
    struct err why;    /* one line */
    int status;        /* of HTTP; 0: none was received */
    char type[64];     /* Content-Type without parameters, lower case */
    char agent[64];    /* the Server header */
    char moved[4096];  /* Location of a redirect, or "" */
    int64_t first;     /* of an answer of status 206: where its bytes begin; -1: not said */
    int retry_s;       /* Retry-After, -1: none */
    struct buf answer; /* the whole answer, or the body of an error */
    uint64_t ns_begin, ns_first, ns_last, ns_end; /* clock_ns(): of its bytes; 0: not yet */
    uint64_t n_bytes;  /* received */
    void *own;         /* private to http.c */
};

/* False and *e (ERR_USAGE): the address is no http or https address, or a header is malformed. */
bool http_open(struct http **http, const struct http_opts *opts, struct err *e);
void http_close(struct http *http);
/* Why it is unsafe to send the key or a conversation to this address ("plain http to another
 * machine"); NULL: it is safe. */
const char *http_warning(const struct http *http);
const char *http_url(const struct http *http); /* without user, password and query */

void http_begin(struct http *http, struct http_call *call);
/* Sends and receives for at most ms milliseconds; returns earlier if something has happened. */
void http_run(struct http *http, int ms);
/* Ends a request and frees everything it holds except `answer`. If the request is not done, its
 * connection is closed, which cancels it on the server. */
void http_end(struct http *http, struct http_call *call);
void http_wake(struct http *http);

/* Sends a request and waits for the whole answer. False and *e: it failed or was stopped, or the
 * status is not 2xx: *e (ERR_MODEL) then has the server's message. The caller frees
 * call->answer. */
bool http_call(struct http *http, struct http_call *call, const struct stop *stop, struct err *e);
/* Sets *e for an answer whose status is not 2xx: the status, and the server's message if there is
 * one. */
bool http_refused(const struct http_call *call, struct err *e);
/* How many ms to wait until a request that had no effect (unsent; 429 and 503: refused before any
 * work) is sent again after `attempt` retries; -1: it had one, or there were RETRIES. */
int http_retry_ms(const struct http_call *call, int attempt);
