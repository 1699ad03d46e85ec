/* incoming.h - replies of a server: sends requests, reads streams, and repeats requests that
 * failed.
 *
 * One loop drives one reply or many. A request is sent again only if the server cannot have begun
 * it (http.h: unsent) or refused it before any work (429, 503), at most RETRIES times, and never
 * after the first token. Threads: as http.h.
 */
#pragma once

#include "engine/remote/answer.h"
#include "engine/remote/http.h"
#include "engine/remote/wire.h"

enum {
    REPLY_TOKENS = 1 << 20, /* a longer reply is broken off: a server may send without end */
    REPLY_TEXT = 16 << 20,  /* bytes */
};

/* Tokens that came in one piece: [first, first + n) of the reply. n 0: text without tokens. */
struct piece {
    int first, n;
    uint64_t ns; /* clock_ns() when they came */
};

struct incoming;

/* Called while a reply arrives; each may be NULL. */
struct incoming_news {
    /* 0 final, 1 thought */
    void (*text)(struct incoming *in, int channel, const char *text, size_t n);
    void (*progress)(struct incoming *in, int64_t done, int64_t total);         /* of the prompt */
    void (*notice)(struct incoming *in, const char *line);
};

enum incoming_state { INCOMING_WAITS, INCOMING_RUNS, INCOMING_DONE };

struct incoming {
    /* set by the caller */
    const struct incoming_news *news;
    void *arg;
    const char *path, *body; /* of the request; live until the end */

    enum incoming_state state;
    bool failed, stopped; /* once DONE: failed: *why says why; stopped: by the caller */
    struct err why;
    /* what the server has sent */
    struct answer_token *token; /* (n_token) */
    int n_token, cap_token;
    struct tops tops;    /* of those with log probabilities; k counts `token` */
    bool ids;            /* every token so far came with its id; once DONE, no token is missing
                            either (except, with some servers, the stop token) */
    struct piece *piece; /* (n_piece) */
    int n_piece;
    size_t n_bytes;      /* of text */
    int n_text;          /* pieces of text: an estimate of the tokens if nothing else counts them */
    struct ids prompt;   /* ids of the prompt and (reply) of the whole reply, if the server sends
                            them */
    struct ids reply;
    struct ids accepted, drafted; /* of each step of the server */
    struct answer_counts count;
    enum finish finish;
    char finish_word[32]; /* the server's finish reason */
    bool end;            /* the server said that the reply is complete */
    uint64_t ns_first;   /* of the first token; 0: none came */
    uint64_t ns_last;
    /* private to incoming.c */
    struct http_call call;
    const struct stop *stop;
    struct wire wire;
    struct buf whole;    /* an answer that is not a stream */
    size_t shown;        /* bytes of a cumulative text that were reported */
    int attempt;
    uint64_t ns_again;   /* the request is not sent again before this time */
};

/* Sends all n requests in order, at most at_once at the same time, and reads the replies until all
 * are done or *stop is set; replies that are not done are then stopped and their connections
 * closed. Calls meanwhile(), unless it is NULL, at least every 50 ms. */
void incoming_run(struct http *http, struct incoming *in, int n, int at_once,
                  const struct stop *stop, void (*meanwhile)(void *arg), void *arg);
void incoming_init(struct incoming *in); /* zeroes, with nothing reported */
void incoming_free(struct incoming *in);

/* The number of tokens of the reply: the server's count, else the number received. */
int incoming_tokens(const struct incoming *in);
/* Why a reply that ended without an error may be incomplete; NULL: it is complete. */
const char *incoming_doubt(const struct incoming *in);

/* ---- for tests ---- */

/* Reads n bytes of an answer of a content type, and the end of the answer, as if they had come. */
bool incoming_bytes(struct incoming *in, const char *type, const void *p, size_t n, struct err *e);
bool incoming_end(struct incoming *in, struct err *e);
