/* kv_blocks.c - see kv_blocks.h. */
#include "engine/remote/kv_blocks.h"

/* ---- two tables of the same blocks ----------------------------------------------------------- */

static size_t bucket(const struct kv_blocks *blocks, const struct block_hash *h)
{
    return hash64(h, sizeof *h, blocks->seed) & (blocks->n_bucket - 1);
}

static bool same(const struct block_hash *a, const struct block_hash *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

static struct block *find_block(const struct kv_blocks *blocks, const struct block_hash *h)
{
    struct block *b = blocks->by_hash[bucket(blocks, h)];
    while (b && !same(&b->hash, h))
        b = b->next_hash;
    return b;
}

static void link_block(struct kv_blocks *blocks, struct block *b)
{
    b->at_hash = &blocks->by_hash[bucket(blocks, &b->hash)];
    b->at_parent = &blocks->by_parent[bucket(blocks, &b->parent)];
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

static void set_buckets(struct kv_blocks *blocks, size_t n)
{
    FREED(free_at) struct block **old = blocks->by_hash;
    size_t n_old = blocks->n_bucket;
    free(blocks->by_parent);
    blocks->by_hash = xcalloc(n, sizeof(struct block *));
    blocks->by_parent = xcalloc(n, sizeof(struct block *));
    blocks->n_bucket = n;
    for (size_t i = 0; i < n_old; i++)
        for (struct block *b = old[i], *next; b; b = next) {
            next = b->next_hash;
            link_block(blocks, b);
        }
}

void kv_blocks_init(struct kv_blocks *blocks)
{
    *blocks = (struct kv_blocks){0};
    blocks->seed = clock_ns();
    set_buckets(blocks, 256);
    blocks->sample = xcalloc(BLOCK_SAMPLES_KEPT, sizeof *blocks->sample);
}

static void free_block(struct kv_blocks *blocks, struct block *b)
{
    blocks->n_block--;
    blocks->n_token -= (size_t)b->n_token;
    FREE(b->token, b);
}

void kv_blocks_free(struct kv_blocks *blocks)
{
    kv_blocks_clear(blocks);
    FREE(blocks->by_hash, blocks->by_parent, blocks->sample, blocks->chain);
    ids_free(&blocks->ids);
    *blocks = (struct kv_blocks){0};
}

/* ---- the session's blocks -------------------------------------------------------------------- */

/* Whether a block holds the ids that follow the chain. */
static bool follows(const struct kv_blocks *blocks, const struct block *b)
{
    static const struct block_hash root;
    const struct chain *last = blocks->n_chain ? &blocks->chain[blocks->n_chain - 1] : NULL;
    int at = last ? last->position + last->n : 0;
    return b->token && b->n_token <= blocks->ids.n - at &&
           same(&b->parent, last ? &last->hash : &root) &&
           memcmp(b->token, blocks->ids.v + at, (size_t)b->n_token * sizeof(int32_t)) == 0;
}

static void add_to_chain(struct kv_blocks *blocks, const struct block *b)
{
    const struct chain *last = blocks->n_chain ? &blocks->chain[blocks->n_chain - 1] : NULL;
    int at = last ? last->position + last->n : 0;
    *APPEND(blocks->chain, blocks->n_chain) = (struct chain){b->hash, at, b->n_token};
}

/* Adds the blocks that are stored and follow the chain. */
static void extend_chain(struct kv_blocks *blocks)
{
    static const struct block_hash root;
    struct block *b;
    do {
        const struct block_hash *parent = blocks->n_chain ? &blocks->chain[blocks->n_chain - 1].hash
                                                          : &root;
        b = blocks->by_parent[bucket(blocks, parent)];
        while (b && !follows(blocks, b))
            b = b->next_parent;
        if (b)
            add_to_chain(blocks, b);
    } while (b);
}

void kv_blocks_session(struct kv_blocks *blocks, const int32_t *id, int n)
{
    int common = 0;
    while (common < n && common < blocks->ids.n && blocks->ids.v[common] == id[common])
        common++;
    while (blocks->n_chain && blocks->chain[blocks->n_chain - 1].position +
           blocks->chain[blocks->n_chain - 1].n > common)
        blocks->n_chain--;
    blocks->ids.n = common;
    ids_cat(&blocks->ids, id + common, n - common);
    extend_chain(blocks);
}

/* ---- groups ---------------------------------------------------------------------------------- */

/* The group of an event; -1: there is none, and no room for another one. */
static int group_of(struct kv_blocks *blocks, const struct kv_event *ev)
{
    for (int g = 0; g < blocks->n_group; g++) {
        const struct block_group *at = &blocks->group[g];
        if (at->rank == ev->rank && at->index == ev->group && !strcmp(at->medium, ev->medium))
            return g;
    }
    if (blocks->n_group == BLOCK_GROUPS || ev->kind != KV_STORED)
        return -1;
    struct block_group *new = &blocks->group[blocks->n_group];
    *new = (struct block_group){.rank = ev->rank, .index = ev->group};
    memcpy(new->medium, ev->medium, sizeof new->medium);
    return blocks->n_group++;
}

/* ---- events ---------------------------------------------------------------------------------- */

static struct block *new_block(struct kv_blocks *blocks, const struct block_hash *hash,
                               const struct block_hash *parent, const int32_t *token, int n)
{
    struct block *b = xcalloc(1, sizeof *b);
    b->hash = *hash;
    b->parent = *parent;
    if (token && blocks->n_token + (size_t)n <= BLOCK_TOKENS_KEPT) {
        b->token = xcopy(token, (size_t)n, sizeof *token);
        b->n_token = n;
        blocks->n_token += (size_t)n;
    }
    if (++blocks->n_block > blocks->n_bucket)
        set_buckets(blocks, 2 * blocks->n_bucket);
    link_block(blocks, b);
    return b;
}

static void store(struct kv_blocks *blocks, const struct kv_event *ev)
{
    int g = group_of(blocks, ev);
    if (g < 0) {
        blocks->dropped += (uint64_t)ev->n_hash;
        return;
    }
    struct block_group *in = &blocks->group[g];
    memcpy(in->kind, ev->layers, sizeof in->kind);
    in->window = ev->window;
    in->block_size = ev->block_size;
    for (int i = 0; i < ev->n_hash; i++) {
        struct block *b = find_block(blocks, &ev->hash[i]);
        if (!b && blocks->n_block == BLOCKS_KEPT) {
            blocks->dropped++;
            continue;
        }
        if (!b) {
            b = new_block(blocks, &ev->hash[i], i ? &ev->hash[i - 1] : &ev->parent,
                          ev->token ? ev->token + (size_t)i * (size_t)ev->block_size : NULL,
                          ev->block_size);
            if (follows(blocks, b))
                extend_chain(blocks);
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

static void drop(struct kv_blocks *blocks, struct block *b)
{
    unlink_block(b);
    free_block(blocks, b);
}

static void take_away(struct kv_blocks *blocks, const struct kv_event *ev)
{
    int g = group_of(blocks, ev);
    for (int i = 0; i < ev->n_hash; i++) {
        struct block *b = g < 0 ? NULL : find_block(blocks, &ev->hash[i]);
        if (!b || b->copies[g] == 0) {
            blocks->unknown++;
            continue;
        }
        blocks->group[g].removed++;
        blocks->group[g].copies--;
        blocks->group[g].blocks -= --b->copies[g] == 0;
        if (--b->n_copy == 0)
            drop(blocks, b);
    }
}

/* Removes the blocks of all groups of a rank; -1: of all ranks. */
static void clear_rank(struct kv_blocks *blocks, int rank)
{
    for (size_t i = 0; i < blocks->n_bucket; i++)
        for (struct block *b = blocks->by_hash[i], *next; b; b = next) {
            next = b->next_hash;
            for (int g = 0; g < blocks->n_group; g++)
                if (rank < 0 || blocks->group[g].rank == rank) {
                    b->n_copy -= b->copies[g];
                    b->copies[g] = 0;
                }
            if (b->n_copy == 0)
                drop(blocks, b);
        }
    for (int g = 0; g < blocks->n_group; g++)
        if (rank < 0 || blocks->group[g].rank == rank) {
            blocks->group[g].removed += (uint64_t)blocks->group[g].copies;
            blocks->group[g].blocks = blocks->group[g].copies = 0;
        }
}

void kv_blocks_clear(struct kv_blocks *blocks)
{
    clear_rank(blocks, -1);
    blocks->n_chain = 0;
}

void kv_blocks_apply(struct kv_blocks *blocks, const struct kv_event *ev)
{
    if (ev->kind == KV_STORED)
        store(blocks, ev);
    else if (ev->kind == KV_REMOVED)
        take_away(blocks, ev);
    else
        clear_rank(blocks, ev->rank);
}

/* ---- views and samples ----------------------------------------------------------------------- */

void kv_blocks_sample(struct kv_blocks *blocks, uint64_t ns)
{
    struct block_sample s = {.ns = ns, .n_group = blocks->n_group};
    for (int g = 0; g < blocks->n_group; g++)
        s.blocks[g] = (int32_t)blocks->group[g].blocks;
    uint64_t n = blocks->n_sample;
    if (n == 0 || blocks->sample[(n - 1) % BLOCK_SAMPLES_KEPT].ns / 1000000000 != ns / 1000000000)
        n++;
    blocks->sample[(n - 1) % BLOCK_SAMPLES_KEPT] = s;
    blocks->n_sample = n;
}

int kv_blocks_samples(const struct kv_blocks *blocks, struct block_sample *out, int max)
{
    uint64_t kept = blocks->n_sample < BLOCK_SAMPLES_KEPT ? blocks->n_sample : BLOCK_SAMPLES_KEPT;
    int n = kept < (uint64_t)max ? (int)kept : max;
    for (int i = 0; i < n; i++)
        out[i] =
            blocks->sample[(blocks->n_sample - (uint64_t)n + (uint64_t)i) % BLOCK_SAMPLES_KEPT];
    return n;
}

int kv_blocks_chain(const struct kv_blocks *blocks, struct session_block *out, int max)
{
    int n = min_int(blocks->n_chain, max);
    for (int i = 0; i < n; i++) {
        const struct chain *c = &blocks->chain[i];
        const struct block *b = find_block(blocks, &c->hash);
        out[i] = (struct session_block){.position = c->position, .n_token = c->n};
        block_hash_text(&c->hash, out[i].hash, sizeof out[i].hash);
        for (int g = 0; b && g < blocks->n_group; g++)
            out[i].held |= (uint32_t)(b->copies[g] > 0) << g;
    }
    return n;
}

void kv_blocks_view(const struct kv_blocks *blocks, struct blocks_view *v)
{
    v->n_group = blocks->n_group;
    v->n_session = blocks->n_chain;
    memcpy(v->group, blocks->group, sizeof v->group);
    for (int i = 0; i < blocks->n_chain; i++) {
        const struct block *b = find_block(blocks, &blocks->chain[i].hash);
        for (int g = 0; b && g < blocks->n_group; g++)
            v->group[g].n_session += b->copies[g] > 0;
    }
}
