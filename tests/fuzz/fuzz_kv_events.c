/* KV events in MessagePack: each value of the input is the payload of a batch, as vLLM and SGLang
 * send them, and what it says is applied to the blocks of a server. Counts of blocks agree with the
 * blocks. */
#include "engine/remote/kv_blocks.h"
#include "engine/remote/msgpack.h"
#include "tests/fuzz/fuzz.h"

const int fuzz_inputs = 4000;

static struct kv_blocks blocks;

/* Reads all values head by head: the reader moves on, stays within the text, and skips as much. */
static void walk(const char *text, size_t n)
{
    struct msgpack m = msgpack_of(text, n), skip = m;
    struct msgpack_value v;
    uint64_t open = 1;
    if (!n)
        return;
    const uint8_t *end = m.end;
    while (open && !m.bad) {
        const uint8_t *from = m.p;
        if (!msgpack_next(&m, &v))
            break;
        CHECK(m.p > from && m.p <= end);
        open--;
        if (v.kind == MP_ARRAY || v.kind == MP_MAP)
            open += (uint64_t)v.n << (v.kind == MP_MAP);
        else if (v.kind == MP_TEXT || v.kind == MP_BYTES || v.kind == MP_OTHER)
            CHECK(!v.n || (v.p >= text && v.p + v.n <= text + n));
    }
    bool whole = msgpack_skip(&skip);
    CHECK(whole == (open == 0));
    CHECK(!whole || skip.p == m.p);
}

static void apply(void *arg, const struct kv_event *ev)
{
    char text[BLOCK_HASH_TEXT];
    int *n = arg;
    (*n)++;
    CHECK(ev->n_hash >= 0 && ev->n_hash <= KV_HASHES && ev->rank >= 0 && ev->group >= -1);
    CHECK((int)ev->kind >= KV_STORED && (int)ev->kind <= KV_CLEARED);
    CHECK(memchr(ev->medium, '\0', sizeof ev->medium) &&
          memchr(ev->layers, '\0', sizeof ev->layers));
    for (int i = 0; i < ev->n_hash; i++) {
        CHECK(ev->hash[i].kind && ev->hash[i].n <= sizeof ev->hash[i].v);
        block_hash_text(&ev->hash[i], text, sizeof text);
        CHECK(text[0]);
    }
    if (ev->kind == KV_STORED && ev->token)
        CHECK(ev->block_size > 0 && (int64_t)ev->n_hash * ev->block_size <= KV_TOKENS);
    kv_blocks_apply(&blocks, ev);
}

/* Counts again what the blocks say. */
static void recount(const struct kv_blocks *k)
{
    int64_t held[BLOCK_GROUPS] = {0}, copies[BLOCK_GROUPS] = {0};
    size_t n = 0, tokens = 0;
    for (size_t i = 0; i < k->n_bucket; i++)
        for (const struct block *b = k->by_hash[i]; b; b = b->next_hash) {
            uint32_t sum = 0;
            n++;
            tokens += (size_t)b->n_token;
            for (int g = 0; g < BLOCK_GROUPS; g++) {
                held[g] += b->copies[g] > 0;
                copies[g] += b->copies[g];
                sum += b->copies[g];
            }
            CHECK(b->n_copy == sum && sum > 0);
        }
    CHECK(n == k->n_block && tokens == k->n_token && n <= BLOCKS_KEPT &&
          tokens <= BLOCK_TOKENS_KEPT);
    CHECK(k->n_group >= 0 && k->n_group <= BLOCK_GROUPS);
    for (int g = 0; g < k->n_group; g++)
        CHECK(k->group[g].blocks == held[g] && k->group[g].copies == copies[g]);
    for (int i = 0, at = 0; i < k->n_chain; at += k->chain[i++].n)
        CHECK(k->chain[i].position == at && at + k->chain[i].n <= k->ids.n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const int32_t ids[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
    const char *text = fuzz_tail(data, n);
    struct session_block chain[4];
    struct blocks_view view = {0};
    if (!blocks.n_bucket)
        kv_blocks_init(&blocks);
    kv_blocks_session(&blocks, ids, 16);
    for (int k = 0; n && k < 8; k++) {
        struct msgpack m = msgpack_of(text, n);
        struct kv_batch b;
        struct err e = {0};
        int events = 0;
        walk(text, n);
        size_t size = msgpack_skip(&m) ? (size_t)((const char *)m.p - text) : n;
        if (kv_batch_read(&b, text, size, apply, &events, &e))
            CHECK(b.n_refused >= 0 && b.n_refused <= b.n_event &&
                  memchr(b.why, '\0', sizeof b.why) && b.rank >= 0);
        else
            fuzz_message(&e);
        text += size;
        n -= size;
    }
    recount(&blocks);
    kv_blocks_sample(&blocks, 1000000000);
    kv_blocks_chain(&blocks, chain, 4);
    kv_blocks_view(&blocks, &view);
    kv_blocks_session(&blocks, ids, 3);
    recount(&blocks);
    kv_blocks_clear(&blocks);
    recount(&blocks);
    CHECK(blocks.n_block == 0 && blocks.n_token == 0);
    return 0;
}
