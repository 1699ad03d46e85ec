/* wire.h - reads a server's stream of events, in pieces of any size: server-sent events and NDJSON.
 *
 * Server-sent events follow the HTML standard ("9.2.6 Interpreting an event stream"): lines end in
 * CR, LF or CRLF; lines that begin with a colon are comments, which servers send to keep a
 * connection open; the data lines of an event are joined by LF; an empty line ends the event. Two
 * differences: an event whose data is empty is not delivered, and an event that the end of the
 * stream cuts off is, because servers leave out the last empty line. In NDJSON every line that is
 * not blank is an event.
 *
 * The events are the same however the bytes are cut into pieces. A struct belongs to one thread.
 */
#pragma once

#include "kernels/base.h"

enum wire_form { WIRE_SSE, WIRE_LINES };
enum { WIRE_MOST = 16 << 20 }; /* bytes of one event */

struct wire {
    enum wire_form form;
    struct buf line, data; /* of the event that is not complete yet */
    bool after_cr;         /* the last byte was CR: an LF that follows belongs to it */
    bool begun;            /* a line has been read: a byte order mark can no longer come */
};

/* Takes one event; data lives during the call. False and *e: the reading ends. */
typedef bool wire_fn(void *arg, const char *data, size_t n, struct err *e);

/* Reads n more bytes and calls fn for each event that they complete. False and *e: fn returned
 * false, or an event is longer than WIRE_MOST (ERR_MODEL); nothing more must be read then. */
bool wire_feed(struct wire *wire, const void *bytes, size_t n, wire_fn *fn, void *arg,
               struct err *e);
/* The stream has ended: delivers what is complete but for its line ends. */
bool wire_end(struct wire *wire, wire_fn *fn, void *arg, struct err *e);
void wire_free(struct wire *wire);
