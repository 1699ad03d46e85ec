/* kv_blocks.c - see kv_blocks.h. */
#include "engine/remote/kv_blocks.h"
#include "kernels/idioms.h"

#include <stdlib.h>
#include <string.h>

/* ---- two tables of the same blocks ----------------------------------------------------------- */

static size_t bucket(const struct kv_blocks *k, const struct block_hash *h)
{
    return hash64(h, sizeof *h, k->seed) & (k->n_bucket - 1);
}

static bool same(const struct block_hash *a, const struct block_hash *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

static struct block *find(const struct kv_blocks *k, const struct block_hash *h)
{
    struct block *b = k->by_hash[bucket(k, h)];
    while (b && !same(&b->hash, h))
        b = b->next_hash;
    return b;
}

static void link_block(struct kv_blocks *k, struct block *b)
{
    b->at_hash = &k->by_hash[bucket(k, &b->hash)];
    b->at_parent = &k->by_parent[bucket(k, &b->parent)];
    if ((b->next_hash = *b->at_hash))
        b->next_hash->at_hash = &b->next_hash;
    if ((b->next_parent = *b->at_parent))
        b->next_parent->at_parent = &b->next_parent;
    *b->at_hash = *b->at_parent = b;
}

static void unlink_block(const struct block *b)
{
    if ((*b->at_hash = b->next_hash))
        b->next_hash->at_hash = b->at_hash;
    if ((*b->at_parent = b->next_parent))
        b->next_parent->at_parent = b->at_parent;
}

static void set_buckets(struct kv_blocks *k, size_t n)
{
    struct block **old = k->by_hash;
    size_t n_old = k->n_bucket;
    free(k->by_parent);
    k->by_hash = xcalloc(n, sizeof(struct block *));
    k->by_parent = xcalloc(n, sizeof(struct block *));
    k->n_bucket = n;
    for (size_t i = 0; i < n_old; i++)
        for (struct block *b = old[i], *next; b; b = next) {
            next = b->next_hash;
            link_block(k, b);
        }
    free(old);
}

void kv_blocks_init(struct kv_blocks *k)
{
    *k = (struct kv_blocks){0};
    k->seed = clock_ns();
    set_buckets(k, 256);
    k->sample = xcalloc(BLOCK_SAMPLES_KEPT, sizeof *k->sample);
}

static void free_block(struct kv_blocks *k, struct block *b)
{
    k->n_block--;
    k->n_token -= (size_t)b->n_token;
    free(b->token);
    free(b);
}

void kv_blocks_free(struct kv_blocks *k)
{
    kv_blocks_clear(k);
    free(k->by_hash);
    free(k->by_parent);
    free(k->sample);
    free(k->chain);
    ids_free(&k->ids);
    *k = (struct kv_blocks){0};
}

/* ---- the session's blocks -------------------------------------------------------------------- */

/* Whether a block holds the ids that follow the chain. */
static bool follows(const struct kv_blocks *k, const struct block *b)
{
    static const struct block_hash root;
    const struct chain *last = k->n_chain ? &k->chain[k->n_chain - 1] : NULL;
    int at = last ? last->position + last->n : 0;
    return b->token && b->n_token <= k->ids.n - at &&
           same(&b->parent, last ? &last->hash : &root) &&
           memcmp(b->token, k->ids.v + at, (size_t)b->n_token * sizeof(int32_t)) == 0;
}

static void add_to_chain(struct kv_blocks *k, const struct block *b)
{
    const struct chain *last = k->n_chain ? &k->chain[k->n_chain - 1] : NULL;
    int at = last ? last->position + last->n : 0;
    MAKE_ROOM(k->chain, k->n_chain, k->cap_chain, 16);
    k->chain[k->n_chain++] = (struct chain){b->hash, at, b->n_token};
}

/* Adds the blocks that are stored and follow the chain. */
static void extend_chain(struct kv_blocks *k)
{
    static const struct block_hash root;
    struct block *b;
    do {
        const struct block_hash *parent = k->n_chain ? &k->chain[k->n_chain - 1].hash : &root;
        b = k->by_parent[bucket(k, parent)];
        while (b && !follows(k, b))
            b = b->next_parent;
        if (b)
            add_to_chain(k, b);
    } while (b);
}

void kv_blocks_session(struct kv_blocks *k, const int32_t *id, int n)
{
    int common = 0;
    while (common < n && common < k->ids.n && k->ids.v[common] == id[common])
        common++;
    while (k->n_chain && k->chain[k->n_chain - 1].position + k->chain[k->n_chain - 1].n > common)
        k->n_chain--;
    k->ids.n = common;
    ids_cat(&k->ids, id + common, n - common);
    extend_chain(k);
}

/* ---- groups ---------------------------------------------------------------------------------- */

/* The group of an event; -1: there is none, and no room for another one. */
static int group_of(struct kv_blocks *k, const struct kv_event *ev)
{
    for (int g = 0; g < k->n_group; g++) {
        const struct block_group *at = &k->group[g];
        if (at->rank == ev->rank && at->index == ev->group && !strcmp(at->medium, ev->medium))
            return g;
    }
    if (k->n_group == BLOCK_GROUPS || ev->kind != KV_STORED)
        return -1;
    struct block_group *new = &k->group[k->n_group];
    *new = (struct block_group){.rank = ev->rank, .index = ev->group};
    memcpy(new->medium, ev->medium, sizeof new->medium);
    return k->n_group++;
}

/* ---- events ---------------------------------------------------------------------------------- */

static struct block *new_block(struct kv_blocks *k, const struct block_hash *hash,
                               const struct block_hash *parent, const int32_t *token, int n)
{
    struct block *b = xcalloc(1, sizeof *b);
    b->hash = *hash;
    b->parent = *parent;
    if (token && k->n_token + (size_t)n <= BLOCK_TOKENS_KEPT) {
        b->token = xcalloc((size_t)n, sizeof *b->token);
        memcpy(b->token, token, (size_t)n * sizeof *b->token);
        b->n_token = n;
        k->n_token += (size_t)n;
    }
    if (++k->n_block > k->n_bucket)
        set_buckets(k, 2 * k->n_bucket);
    link_block(k, b);
    return b;
}

static void store(struct kv_blocks *k, const struct kv_event *ev)
{
    int g = group_of(k, ev);
    if (g < 0) {
        k->dropped += (uint64_t)ev->n_hash;
        return;
    }
    struct block_group *in = &k->group[g];
    memcpy(in->kind, ev->layers, sizeof in->kind);
    in->window = ev->window;
    in->block_size = ev->block_size;
    for (int i = 0; i < ev->n_hash; i++) {
        struct block *b = find(k, &ev->hash[i]);
        if (!b && k->n_block == BLOCKS_KEPT) {
            k->dropped++;
            continue;
        }
        if (!b) {
            b = new_block(k, &ev->hash[i], i ? &ev->hash[i - 1] : &ev->parent,
                          ev->token ? ev->token + (size_t)i * (size_t)ev->block_size : NULL,
                          ev->block_size);
            if (follows(k, b))
                extend_chain(k);
        }
        in->stored++;
        if (b->copies[g] == UINT16_MAX)
            continue;
        in->blocks += b->copies[g] == 0;
        in->copies++;
        b->copies[g]++;
        b->n_copy++;
    }
}

static void drop(struct kv_blocks *k, struct block *b)
{
    unlink_block(b);
    free_block(k, b);
}

static void take_away(struct kv_blocks *k, const struct kv_event *ev)
{
    int g = group_of(k, ev);
    for (int i = 0; i < ev->n_hash; i++) {
        struct block *b = g < 0 ? NULL : find(k, &ev->hash[i]);
        if (!b || b->copies[g] == 0) {
            k->unknown++;
            continue;
        }
        k->group[g].removed++;
        k->group[g].copies--;
        k->group[g].blocks -= --b->copies[g] == 0;
        if (--b->n_copy == 0)
            drop(k, b);
    }
}

/* Removes the blocks of all groups of a rank; -1: of all ranks. */
static void clear_rank(struct kv_blocks *k, int rank)
{
    for (size_t i = 0; i < k->n_bucket; i++)
        for (struct block *b = k->by_hash[i], *next; b; b = next) {
            next = b->next_hash;
            for (int g = 0; g < k->n_group; g++)
                if (rank < 0 || k->group[g].rank == rank) {
                    b->n_copy -= b->copies[g];
                    b->copies[g] = 0;
                }
            if (b->n_copy == 0)
                drop(k, b);
        }
    for (int g = 0; g < k->n_group; g++)
        if (rank < 0 || k->group[g].rank == rank) {
            k->group[g].removed += (uint64_t)k->group[g].copies;
            k->group[g].blocks = k->group[g].copies = 0;
        }
}

void kv_blocks_clear(struct kv_blocks *k)
{
    clear_rank(k, -1);
    k->n_chain = 0;
}

void kv_blocks_apply(struct kv_blocks *k, const struct kv_event *ev)
{
    if (ev->kind == KV_STORED)
        store(k, ev);
    else if (ev->kind == KV_REMOVED)
        take_away(k, ev);
    else
        clear_rank(k, ev->rank);
}

/* ---- views and samples ----------------------------------------------------------------------- */

void kv_blocks_sample(struct kv_blocks *k, uint64_t ns)
{
    struct block_sample s = {.ns = ns, .n_group = k->n_group};
    for (int g = 0; g < k->n_group; g++)
        s.blocks[g] = (int32_t)k->group[g].blocks;
    uint64_t n = k->n_sample;
    if (n == 0 || k->sample[(n - 1) % BLOCK_SAMPLES_KEPT].ns / 1000000000 != ns / 1000000000)
        n++;
    k->sample[(n - 1) % BLOCK_SAMPLES_KEPT] = s;
    k->n_sample = n;
}

int kv_blocks_samples(const struct kv_blocks *k, struct block_sample *out, int max)
{
    uint64_t kept = k->n_sample < BLOCK_SAMPLES_KEPT ? k->n_sample : BLOCK_SAMPLES_KEPT;
    int n = kept < (uint64_t)max ? (int)kept : max;
    for (int i = 0; i < n; i++)
        out[i] = k->sample[(k->n_sample - (uint64_t)n + (uint64_t)i) % BLOCK_SAMPLES_KEPT];
    return n;
}

int kv_blocks_chain(const struct kv_blocks *k, struct session_block *out, int max)
{
    int n = min_int(k->n_chain, max);
    for (int i = 0; i < n; i++) {
        const struct chain *c = &k->chain[i];
        const struct block *b = find(k, &c->hash);
        out[i] = (struct session_block){.position = c->position, .n_token = c->n};
        block_hash_text(&c->hash, out[i].hash, sizeof out[i].hash);
        for (int g = 0; b && g < k->n_group; g++)
            out[i].held |= (uint32_t)(b->copies[g] > 0) << g;
    }
    return n;
}

void kv_blocks_view(const struct kv_blocks *k, struct blocks_view *v)
{
    v->n_group = k->n_group;
    v->n_session = k->n_chain;
    memcpy(v->group, k->group, sizeof v->group);
    for (int i = 0; i < k->n_chain; i++) {
        const struct block *b = find(k, &k->chain[i].hash);
        for (int g = 0; b && g < k->n_group; g++)
            v->group[g].n_session += b->copies[g] > 0;
    }
}
