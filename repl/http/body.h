/* body.h - the bodies of requests are read on threads of their own: JSON, the ids of prompts, and
 * the answers of /tokenize and /detokenize.
 *
 * The time for a body grows with the body, and the loop that serves all connections (front.c) must
 * not wait for it. One thread reads the bodies of up to SHORT_BYTES, which holds every prompt that
 * a context can hold, the other one the longer ones: these delay each other only. A body that is
 * stopped is read no further, within a fraction of a second.
 *
 * Threads: all functions belong to the main thread. A body that was given to bodies_read() is the
 * threads' until bodies_next() gives it back; the main thread may set `call` and use body_stop()
 * meanwhile. */
#pragma once

#include "repl/http/ask.h"

enum { SHORT_BYTES = 1 << 20 };

enum body_kind { BODY_CHAT, BODY_COMPLETION, BODY_RESPONSE, BODY_TOKENIZE, BODY_DETOKENIZE };

struct body {
    enum body_kind kind;
    const struct ask_of *of; /* does not change meanwhile */
    struct buf text;         /* the body; empty when it was read */
    size_t bytes;            /* of text at first */
    void *call;              /* whose body it is; NULL: the client has left */
    /* what was read: */
    struct refusal refused;  /* status 0: none */
    struct ask ask;          /* of a chat or a completion */
    struct buf answer;       /* to the others: JSON */
    struct stop stop;
    struct body *next;       /* private to body.c */
};

struct bodies;

/* NULL and *e (ERR_USAGE): the system has no more threads or descriptors. */
struct bodies *bodies_open(struct err *e);
/* Stops and frees the bodies that are being read. NULL is allowed. */
void bodies_close(struct bodies *all);
int bodies_fd(const struct bodies *all); /* readable when bodies_next() has one */
void bodies_read(struct bodies *all, struct body *b); /* takes over b until bodies_next() */
/* A body that was read, or whose reading was stopped; NULL: none. The caller frees it. */
struct body *bodies_next(struct bodies *all);
/* takes over *text */
struct body *body_new(enum body_kind kind, const struct ask_of *of, struct buf *text, void *call);
void body_stop(struct body *b); /* it is refused with status 503 when, or before, it is read */
void body_free(struct body *b);
