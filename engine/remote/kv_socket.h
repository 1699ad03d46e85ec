/* kv_socket.h - receives KV events by ZeroMQ, on a thread of its own, and hands them to a feed.
 *
 * kv_socket.c is compiled only if libzmq was found when the program was built (HAVE_ZMQ); otherwise
 * the inline functions replace it.
 */
#pragma once

#include "engine/remote/kv_feed.h"

struct kv_socket;

#if HAVE_ZMQ
/* Connects to the addresses of the feed, even if no server is there yet, and requests the batches
 * that the server still has. NULL and *e (ERR_USAGE, ERR_MODEL). The feed must live until
 * kv_socket_close(). */
struct kv_socket *kv_socket_open(struct kv_feed *feed, struct err *e);
void kv_socket_close(struct kv_socket *socket); /* NULL is fine */
/* "libzmq 4.3.4"; if *built is false: why KV events cannot be read. */
const char *kv_socket_about(bool *built);
#else
static inline const char *kv_socket_about(bool *built)
{
    *built = false;
    return "this build cannot read KV events: libzmq (libzmq3-dev) was not found when it was made";
}
static inline struct kv_socket *kv_socket_open(struct kv_feed *feed, struct err *e)
{
    bool built;
    (void)feed;
    err_set(e, ERR_USAGE, "%s", kv_socket_about(&built));
    return NULL;
}
static inline void kv_socket_close(struct kv_socket *socket) { (void)socket; }
#endif
