/* blocks.h - the view of a server's blocks: the feed of KV events that --kv-events names, as blocks_ops.
 *
 * Any thread, but for opening and closing.
 */
#ifndef AERIE_BLOCKS_H
#define AERIE_BLOCKS_H

#include "engine/remote/kv_socket.h"

struct blocks {
    bool on; /* false: nothing below is valid */
    struct kv_feed feed;
    struct kv_socket *socket;
};

/* address: of server_opts.kv_events, or NULL: b is then off. False and *e (ERR_USAGE, ERR_MODEL). */
bool blocks_open(struct blocks *b, const char *address, struct err *e);
void blocks_close(struct blocks *b);
/* Why there is no view; NULL: there is one. */
const char *blocks_lacks(const struct blocks *b);
/* The ids of the session's latest prompt and reply so far, as the server sent them. */
void blocks_ids(struct blocks *b, const struct ids *prompt, const struct ids *reply);
/* `aerie doctor --remote`: what arrives at the address within ms milliseconds, as one line each. */
void blocks_doctor(const char *address, int ms, void (*tell)(void *arg, bool ok, const char *line), void *arg);

#endif
