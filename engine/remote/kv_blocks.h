/* kv_blocks.h - which blocks a server's prefix cache holds, from its KV events.
 *
 * A block is identified by its hash and may be stored in several groups (rank, group of layers,
 * medium), in a group also several times, because vLLM does not merge equal blocks. Token ids of a
 * block are kept as long as a group stores it, within the limits below. No locks: the caller's
 * thread, or the caller's lock.
 */
#pragma once

#include "engine/backend.h"
#include "engine/remote/kv_events.h"

enum { BLOCKS_KEPT = 1 << 19, BLOCK_TOKENS_KEPT = 1 << 24 }; /* blocks; token ids of all of them */

struct block {
    struct block_hash hash, parent;
    int32_t *token;   /* (n_token), or NULL */
    int n_token;
    uint16_t copies[BLOCK_GROUPS];
    uint32_t n_copy;  /* their sum; 0: the block is freed */
    struct block *next_hash, *next_parent; /* the next block in the same bucket */
    struct block **at_hash, **at_parent;   /* the links that point to this block */
};

struct kv_blocks {
    struct block **by_hash, **by_parent; /* (n_bucket, a power of two) */
    size_t n_bucket, n_block, n_token;
    uint64_t seed; /* of the bucket function, so that a server cannot choose hashes that fall into
                      one bucket */
    struct block_group group[BLOCK_GROUPS]; /* (n_group) n_session is not kept here */
    int n_group;
    uint64_t unknown; /* removals of blocks that were not stored */
    uint64_t dropped; /* blocks that were not stored: too many blocks or groups */
    struct ids ids;   /* of the session: prompt and reply */
    /* (n_chain) the session's blocks */
    struct chain { struct block_hash hash; int position, n; } *chain;
    int n_chain;
    struct block_sample *sample; /* (BLOCK_SAMPLES_KEPT) a ring */
    uint64_t n_sample;
};

void kv_blocks_init(struct kv_blocks *blocks);
void kv_blocks_free(struct kv_blocks *blocks);
/* Applies an event. */
void kv_blocks_apply(struct kv_blocks *blocks, const struct kv_event *ev);
/* Removes every block, after a restart of the server. Counts stay. */
void kv_blocks_clear(struct kv_blocks *blocks);
/* Sets the ids whose blocks kv_blocks_chain() lists: the latest prompt and reply, as the server
 * sent them. */
void kv_blocks_session(struct kv_blocks *blocks, const int32_t *id, int n);
/* Adds a sample with the present counts for this second. */
void kv_blocks_sample(struct kv_blocks *blocks, uint64_t ns);

int kv_blocks_samples(const struct kv_blocks *blocks, struct block_sample *out, int max);
int kv_blocks_chain(const struct kv_blocks *blocks, struct session_block *out, int max);
/* Fills n_group, group and n_session of a view. */
void kv_blocks_view(const struct kv_blocks *blocks, struct blocks_view *v);
