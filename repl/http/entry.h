/* entry.h - who may enter `aerie serve`: places and time limits of connections, and what the
 * head of a request must show. Main thread.
 *
 * A connection waits while it has no whole request: from its beginning, and again after each
 * answer. It is a stranger until a request on it was let in: one with the key, if there is a key,
 * else one with a proper Host. A stranger must complete a request within HEAD_S seconds, another
 * connection within NEXT_S, and both have a second more for each BODY_RATE bytes of a body.
 * Strangers hold at most half of the places, those of one address an eighth. A newcomer that finds
 * no place takes that of the connection that has waited longest; so no number of slow clients keeps
 * others out, and half of the places are for those who have shown the key. */
#pragma once

#include <netinet/in.h>

#include "repl/http/ask.h"
#include "repl/http/serve.h"

enum {
    PLACES = 512,      /* connections, by default */
    PLACES_SPARE = 64, /* connections that were shut, and that libmicrohttpd has not closed yet */
    HEAD_S = 10,       /* by default */
    NEXT_S = 60,
    BODY_RATE = 16 << 10, /* bytes a second, at least */
};

/* A connection. */
struct door {
    int fd;
    struct in6_addr from; /* an IPv4 address is mapped */
    bool known;           /* no stranger */
    bool waits;           /* for a whole request */
    bool shut;
    uint64_t since, until; /* while it waits: since when, and when it is shut */
    struct door *prev, *next;
};

struct http_entry {
    const struct serve_opts *o;
    struct door *doors; /* that are not shut, newest first */
    int n, n_strangers;
};

int entry_places(const struct http_entry *e);
/* A connection has come. Finds a place for it, or shuts it. */
struct door *door_open(struct http_entry *e, int fd, const struct sockaddr *from);
void door_close(struct http_entry *e, struct door *d); /* frees *d */
void door_known(struct http_entry *e, struct door *d);
void door_received(struct door *d, size_t n);           /* n bytes of a body that is wanted */
void door_served(struct door *d);                       /* the request is whole */
void door_waits(const struct http_entry *e, struct door *d); /* for the next one */
/* Shuts the connections whose time is over. Returns the milliseconds until that of the next one
 * is, at most ms. */
int entry_look(struct http_entry *e, int ms);

/* The headers that say who sends a request, to whom, and where it ends. */
enum asked_field {
    ASKED_HOST,
    ASKED_LENGTH,
    ASKED_CODING,
    ASKED_TYPE,
    ASKED_KEY,
    ASKED_ORIGIN,
    ASKED_FIELDS,
};

/* The head of a request; its strings are the caller's. */
struct asked {
    const char *method;
    bool http11, open;               /* open: what is asked for needs no key */
    const char *value[ASKED_FIELDS]; /* of the first such header; NULL: there is none */
    int n[ASKED_FIELDS];
    bool odd_name; /* a header's name is no name: another reader may take it for one of these */
};
void asked_add(struct asked *h, const char *name, const char *value); /* any header */
/* Whether the head is proper and its sender may ask; else *r. *known: the sender has shown the
 * key, or there is none. */
bool entry_admits(const struct http_entry *e, const struct asked *h, bool *known,
                  struct refusal *r);
/* Whether the request comes from a page of the origin that --cors names. */
bool entry_is_cors(const struct http_entry *e, const struct asked *h);
