/* kv_feed.h - applies a server's KV events in order: finds gaps, applies replayed batches in their
 * place, and empties the blocks when the server was restarted.
 *
 * kv_socket.h receives the messages; this part does not depend on ZeroMQ. Messages come from one
 * thread; kv_feed_view() and the other readers may be called from any.
 */
#pragma once

#include <pthread.h>

#include "engine/remote/kv_blocks.h"

/* "ADDRESS[,replay=ADDRESS]". */
struct kv_address {
    char events[120], replay[120]; /* "tcp://host:5557"; replay "": missed batches cannot be asked
                                      for */
};
bool kv_address_read(struct kv_address *address, const char *text, struct err *e);

struct kv_feed {
    struct kv_address address;
    pthread_mutex_t mu; /* of all below */
    struct kv_blocks blocks;
    struct blocks_view view; /* counts; kv_feed_view() fills in the rest */
    bool begun;         /* a batch was applied: `next` is valid */
    uint64_t next;      /* number of the next batch */
    bool live;          /* a published batch has come since the connection was made */
    uint64_t last_live; /* its number */
};

void kv_feed_open(struct kv_feed *feed, const struct kv_address *address);
void kv_feed_close(struct kv_feed *feed);

/* Handles a published message: topic, number of 8 bytes, batch. False: batches before it are
 * missing, and the replay address may have them: request those from *from on, give the answers to
 * kv_feed_replayed(), and call this function with the same message again. last: applies the batch
 * even if others are missing. */
bool kv_feed_live(struct kv_feed *feed, const void *seq, size_t n_seq, const void *batch, size_t n,
                  bool last, uint64_t *from);
/* Handles an answer of the replay address: number and batch. False: it was the last one. */
bool kv_feed_replayed(struct kv_feed *feed, const void *seq, size_t n_seq, const void *batch,
                      size_t n);
/* Counts a message that is not a batch. */
void kv_feed_refuse(struct kv_feed *feed, const char *why);
void kv_feed_connected(struct kv_feed *feed, bool is);

void kv_feed_session(struct kv_feed *feed, const int32_t *id, int n);
void kv_feed_view(struct kv_feed *feed, struct blocks_view *v);
int kv_feed_samples(struct kv_feed *feed, struct block_sample *out, int max);
int kv_feed_chain(struct kv_feed *feed, struct session_block *out, int max);
