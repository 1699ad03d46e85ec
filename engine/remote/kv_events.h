/* kv_events.h - reads the events of a server's prefix cache, which vLLM and SGLang encode as
 * MessagePack.
 *
 * A batch is [time, [event, ...], rank] or a map of the same with names; so is each event, in
 * either kind of batch: arrays begin with their type (SGLang; vLLM before 0.26), maps have it under
 * "type". Fields at the end may be missing and unknown fields are skipped. Hashes and token ids
 * stay as received: nothing is recomputed. Pure functions.
 */
#pragma once

#include "kernels/base.h"

enum { KV_PAYLOAD = 16 << 20, KV_HASHES = 1 << 16, KV_TOKENS = 1 << 20, KV_BLOCK_SIZE = 1 << 16 };

/* The name of a block: a number or bytes, whichever the server sends. Equal names are equal in all
 * bytes, because unused bytes are 0. */
struct block_hash {
    uint8_t kind; /* 0: none; 'i': a number, 'b': bytes */
    uint8_t n;    /* bytes of v */
    uint8_t v[32];
};
/* A number in decimal, bytes in hexadecimal; "" for none. At most 72 bytes with the NUL. */
void block_hash_text(const struct block_hash *h, char *out, size_t room);

enum kv_event_kind { KV_STORED, KV_REMOVED, KV_CLEARED };

struct kv_event {
    enum kv_event_kind kind;
    int rank;  /* of data parallelism, from the batch; 0: not reported */
    const struct block_hash *hash; /* (n_hash) blocks in the order of their positions; none for
                                      KV_CLEARED */
    int n_hash;
    char medium[24]; /* "GPU"; "": not reported */
    int group;       /* -1: not reported */
    /* KV_STORED */
    struct block_hash parent; /* of the first block; kind 0: it begins the prompt */
    const int32_t *token;     /* (n_hash * block_size), or NULL: the event has another number of
                                 tokens */
    int block_size;
    char layers[32];          /* "full_attention", "sliding_window"; "": not reported */
    int window;               /* 0: not reported */
};

struct kv_batch {
    double time; /* the server's clock, in seconds; 0: not reported */
    int rank;
    int n_event, n_refused; /* events, and how many of them could not be read */
    char why[160];          /* what was wrong with the first one that could not be read */
};

/* Reads a batch and calls fn for each event that can be read; ev and its arrays live during the
 * call. False and *e (ERR_MODEL): the bytes are not a batch, and fn was not called. */
bool kv_batch_read(struct kv_batch *batch, const void *payload, size_t n,
                   void (*fn)(void *arg, const struct kv_event *ev), void *arg, struct err *e);
