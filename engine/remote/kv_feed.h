/* kv_feed.h - KV events of a server, in their order: gaps are found, missed batches are taken in where
 * they belong, a server that began anew begins with an empty cache.
 *
 * Whoever receives messages (kv_socket.h) hands them over; nothing here knows ZeroMQ. Messages are
 * handed over by one thread; kv_feed_view() and the other readers may be called from any.
 */
#ifndef AERIE_KV_FEED_H
#define AERIE_KV_FEED_H

#include <pthread.h>

#include "engine/remote/kv_blocks.h"

/* "ADDRESS[,replay=ADDRESS]". */
struct kv_address {
    char events[120], replay[120]; /* "tcp://host:5557"; replay "": missed batches cannot be asked for */
};
bool kv_address_read(struct kv_address *a, const char *text, struct err *e);

struct kv_feed {
    struct kv_address address;
    pthread_mutex_t mu; /* of all below */
    struct kv_blocks blocks;
    struct blocks_view view; /* counts; the rest is filled in when it is asked for */
    bool begun;         /* a batch has been taken in: `next` is valid */
    uint64_t next;      /* number of the next batch */
    bool live;          /* a published batch has come since the connection was made: ... */
    uint64_t last_live; /* ... its number */
};

void kv_feed_open(struct kv_feed *f, const struct kv_address *a);
void kv_feed_close(struct kv_feed *f);

/* Takes a published message: topic, number of 8 bytes, batch. False: batches before it are missing,
 * and may be had at the replay address: ask for those from *from on, hand over what comes by
 * kv_feed_replayed(), and hand this message over again. last: it is taken in now, whatever is missing. */
bool kv_feed_live(struct kv_feed *f, const void *seq, size_t n_seq, const void *batch, size_t n, bool last,
                  uint64_t *from);
/* Takes an answer of the replay address: number and batch. False: it was the last one. */
bool kv_feed_replayed(struct kv_feed *f, const void *seq, size_t n_seq, const void *batch, size_t n);
/* A message that is no batch. */
void kv_feed_refuse(struct kv_feed *f, const char *why);
void kv_feed_connected(struct kv_feed *f, bool is);

void kv_feed_session(struct kv_feed *f, const int32_t *id, int n);
void kv_feed_view(struct kv_feed *f, struct blocks_view *v);
int kv_feed_samples(struct kv_feed *f, struct block_sample *out, int max);
int kv_feed_chain(struct kv_feed *f, struct session_block *out, int max);

#endif
