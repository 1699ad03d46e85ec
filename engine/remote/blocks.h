/* blocks.h - the view of a server's blocks: the feed of KV events that --kv-events names, as
 * blocks_ops.
 *
 * Any thread, except for opening and closing.
 */
#pragma once

#include "engine/remote/kv_socket.h"

struct blocks {
    bool on; /* false: nothing below is valid */
    struct kv_feed feed;
    struct kv_socket *socket;
};

/* url: server_opts.kv_events; NULL: *b stays off. False and *e (ERR_USAGE, ERR_MODEL). */
bool blocks_open(struct blocks *b, const char *url, struct err *e);
void blocks_close(struct blocks *b);
/* Why the view does not exist; NULL: it exists. */
const char *blocks_lacks(const struct blocks *b);
/* The ids of the session's latest prompt and reply so far, as the server sent them. */
void blocks_ids(struct blocks *b, const struct ids *prompt, const struct ids *reply);
/* `aerie doctor --remote`: a line for each event that arrives at the address within ms
 * milliseconds. */
void blocks_doctor(const char *address, int ms, void (*tell)(void *arg, bool ok, const char *line),
                   void *arg);
