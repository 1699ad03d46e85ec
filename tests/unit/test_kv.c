/* test_kv.c - KV events of servers: MessagePack, both forms of events, the blocks that they
 * reconstruct against a list kept by hand, gaps and replays, hostile bytes, and real sockets where
 * libzmq is. */
#include "engine/remote/blocks.h"
#include "engine/remote/msgpack.h"

#include <setjmp.h>
#include <stdarg.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/chance.h"
#include "tests/kv_play.h"

/* ---- MessagePack ----------------------------------------------------------------------------- */

static void every_form_of_value_is_read(void **state)
{
    (void)state;
    static const struct { const char *hex; enum msgpack_kind kind; int64_t i; uint32_t n; } c[] = {
        {"00", MP_INT, 0, 0}, {"7f", MP_INT, 127, 0}, {"ff", MP_INT, -1, 0}, {"e0", MP_INT, -32, 0},
        {"c0", MP_NIL, 0, 0}, {"c2", MP_BOOL, 0, 0}, {"c3", MP_BOOL, 1, 0},
        {"ccff", MP_INT, 255, 0},
        {"cd0102", MP_INT, 258, 0}, {"ce01020304", MP_INT, 0x01020304, 0},
        {"cf7fffffffffffffff", MP_INT, INT64_MAX, 0}, {"cfffffffffffffffff", MP_WIDE, 0, 0},
        {"d080", MP_INT, -128, 0}, {"d1ff00", MP_INT, -256, 0}, {"d2ffffffff", MP_INT, -1, 0},
        {"d38000000000000000", MP_INT, INT64_MIN, 0}, {"ca3fc00000", MP_REAL, 0, 0},
        {"cb3ff8000000000000", MP_REAL, 0, 0}, {"a0", MP_TEXT, 0, 0}, {"a3616263", MP_TEXT, 0, 3},
        {"d903616263", MP_TEXT, 0, 3}, {"da0003616263", MP_TEXT, 0, 3},
        {"db00000003616263", MP_TEXT, 0, 3},
        {"c403616263", MP_BYTES, 0, 3}, {"c50003616263", MP_BYTES, 0, 3},
        {"c600000003616263", MP_BYTES, 0, 3},
        {"d40161", MP_OTHER, 0, 2}, {"d8" "01" "00112233445566778899aabbccddeeff", MP_OTHER, 0, 17},
        {"c702" "01" "6161", MP_OTHER, 0, 3}, {"c80001" "01" "61", MP_OTHER, 0, 2},
        {"c900000000" "01", MP_OTHER, 0, 1},
        {"92c0c0", MP_ARRAY, 0, 2}, {"dc0002c0c0", MP_ARRAY, 0, 2},
        {"dd00000002c0c0", MP_ARRAY, 0, 2},
        {"81c0c0", MP_MAP, 0, 1}, {"de0001c0c0", MP_MAP, 0, 1}, {"df00000001c0c0", MP_MAP, 0, 1},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        uint8_t b[64];
        size_t n = strlen(c[i].hex) / 2;
        unsigned byte;
        for (size_t k = 0; k < n && sscanf(c[i].hex + 2 * k, "%2x", &byte) == 1; k++)
            b[k] = (uint8_t)byte;
        struct msgpack m = msgpack_of(b, n), all = m;
        struct msgpack_value v;
        if (!msgpack_next(&m, &v) || v.kind != c[i].kind || v.i != c[i].i || v.n != c[i].n)
            fail_msg("%s is read as kind %d, %lld, %u", c[i].hex, v.kind, (long long)v.i, v.n);
        assert_true(v.kind != MP_REAL || v.real == 1.5);
        assert_true(msgpack_skip(&all) && all.p == all.end);
        for (size_t k = 0; k < n; k++) { /* cut anywhere, no value is there */
            struct msgpack cut = msgpack_of(b, k);
            assert_false(msgpack_skip(&cut));
        }
    }
    for (int head = 0; head < 256; head++) { /* what claims more than is there */
        uint8_t b[9] = {(uint8_t)head, 255, 255, 255, 255, 255, 255, 255, 255};
        struct msgpack m = msgpack_of(b, sizeof b);
        struct msgpack_value v;
        bool longer = (head >= 0xC4 && head <= 0xC9) || (head >= 0xD7 && head <= 0xDF);
        assert_int_equal(msgpack_next(&m, &v), !longer && head != 0xC1 &&
                         !(head > 0x84 && head < 0x90) &&
                         !(head > 0x98 && head < 0xA0) && !(head > 0xA8 && head < 0xC0));
    }
}

/* ---- batches --------------------------------------------------------------------------------- */

/* An event written in either form. */
struct spec {
    enum kv_event_kind kind;
    int hash[4], n_hash, parent, size, group, window; /* hash and parent: small numbers; parent 0:
                                                         none */
    const char *medium, *layers;
    bool no_tokens, bytes; /* bytes: hashes are byte strings */
};

static void put_hash(struct buf *b, const struct spec *s, int h)
{
    uint8_t v[32] = {(uint8_t)h, 1, 2};
    if (h == 0)
        mp_nil(b);
    else if (s->bytes)
        mp_bytes(b, v, sizeof v);
    else if (h < 0)
        mp_negative(b, h);
    else
        mp_uint(b, (uint64_t)h * 0x0100000000000001u);
}

static int token_of(int hash, int i) { return (hash < 0 ? 1000 - hash : hash) * 100 + i; }

static void put_hashes(struct buf *b, const struct spec *s)
{
    mp_array(b, (unsigned)s->n_hash);
    for (int i = 0; i < s->n_hash; i++)
        put_hash(b, s, s->hash[i]);
}

static void put_tokens(struct buf *b, const struct spec *s)
{
    mp_array(b, s->no_tokens ? 0 : (unsigned)(s->n_hash * s->size));
    for (int i = 0; i < s->n_hash * s->size && !s->no_tokens; i++)
        mp_uint(b, (uint64_t)token_of(s->hash[i / s->size], i % s->size));
}

static void put_text(struct buf *b, const char *s)
{
    if (s)
        mp_text(b, s);
    else
        mp_nil(b);
}

static void put_key(struct buf *b, bool map, const char *key)
{
    if (map)
        mp_text(b, key);
}

static void put_event(struct buf *b, const struct spec *s, bool map)
{
    static const char *const type[] = {"BlockStored", "BlockRemoved", "AllBlocksCleared"};
    unsigned n = s->kind == KV_STORED ? 12 : s->kind == KV_REMOVED ? 4 : 1;
    if (map)
        mp_map(b, n);
    else
        mp_array(b, n);
    put_key(b, map, "type");
    mp_text(b, type[s->kind]);
    if (s->kind == KV_CLEARED)
        return;
    put_key(b, map, "block_hashes");
    put_hashes(b, s);
    if (s->kind == KV_STORED) {
        put_key(b, map, "parent_block_hash");
        put_hash(b, s, s->parent);
        put_key(b, map, "token_ids");
        put_tokens(b, s);
        put_key(b, map, "block_size");
        mp_uint(b, (uint64_t)s->size);
        put_key(b, map, "lora_id");
        mp_nil(b);
    }
    put_key(b, map, "medium");
    put_text(b, s->medium);
    if (s->kind == KV_STORED) {
        put_key(b, map, "lora_name");
        mp_nil(b);
        put_key(b, map, "extra_keys");
        mp_array(b, 1);
        mp_nil(b);
    }
    put_key(b, map, "group_idx");
    if (s->group >= 0)
        mp_uint(b, (uint64_t)s->group);
    else
        mp_nil(b);
    if (s->kind == KV_STORED) {
        put_key(b, map, "kv_cache_spec_kind");
        put_text(b, s->layers);
        put_key(b, map, "kv_cache_spec_sliding_window");
        if (s->window)
            mp_uint(b, (uint64_t)s->window);
        else
            mp_nil(b);
    }
}

/* form: bit 0: events are maps, bit 1: the batch is one. */
static void put_batch(struct buf *b, const struct spec *s, int n, int form, int rank)
{
    if (form & 2)
        mp_map(b, 3);
    else
        mp_array(b, 3);
    put_key(b, form & 2, "ts");
    mp_real(b, 1.5);
    put_key(b, form & 2, "events");
    mp_array(b, (unsigned)n);
    for (int i = 0; i < n; i++)
        put_event(b, &s[i], form & 1);
    put_key(b, form & 2, "data_parallel_rank");
    mp_uint(b, (uint64_t)rank);
}

static void print_event(void *arg, const struct kv_event *ev)
{
    struct buf *out = arg;
    char text[BLOCK_HASH_TEXT];
    buf_printf(out, "%d r%d g%d %s %s w%d s%d:", ev->kind, ev->rank, ev->group, ev->medium,
               ev->layers, ev->window, ev->block_size);
    block_hash_text(&ev->parent, text, sizeof text);
    buf_printf(out, " <%s", text);
    for (int i = 0; i < ev->n_hash; i++) {
        block_hash_text(&ev->hash[i], text, sizeof text);
        buf_printf(out, " %s", text);
    }
    for (int i = 0; ev->token && i < ev->n_hash * ev->block_size; i++)
        buf_printf(out, "%c%d", i ? ',' : '=', (int)ev->token[i]);
    buf_char(out, '\n');
}

static void all_forms_say_the_same(void **state)
{
    (void)state;
    static const struct spec s[] = {
        {.kind = KV_STORED, .hash = {5, 6}, .n_hash = 2, .size = 2, .group = 1, .window = 64,
         .medium = "GPU",
         .layers = "sliding_window"},
        {.kind = KV_STORED, .hash = {-7}, .n_hash = 1, .parent = 6, .size = 3, .group = -1},
        {.kind = KV_REMOVED, .hash = {5}, .n_hash = 1, .group = 0, .medium = "CPU_PINNED"},
        {.kind = KV_CLEARED},
        {.kind = KV_STORED, .hash = {9}, .n_hash = 1, .size = 1, .bytes = true, .no_tokens = true,
         .group = 0},
    };
    static const char want[] =
        "0 r3 g1 GPU sliding_window w64 s2: < 360287970189639685 "
        "432345564227567622=500,501,600,601\n0 r3 g-1   w0 s3: <432345564227567622 "
        "-7=100700,100701,100702\n1 r3 g0 CPU_PINNED  w0 s0: < 360287970189639685\n"
        "2 r3 g-1   w0 s0: <\n"
        "0 r3 g0   w0 s1: < 0901020000000000000000000000000000000000000000000000000000000000\n";
    for (int form = 0; form < 4; form++) {
        struct buf b = {0}, got = {0};
        struct kv_batch batch;
        struct err e;
        put_batch(&b, s, 5, form, 3);
        assert_true(kv_batch_read(&batch, b.p, b.n, print_event, &got, &e));
        assert_string_equal(got.p, want);
        assert_true(batch.n_event == 5 && batch.n_refused == 0 && batch.rank == 3 &&
                    batch.time == 1.5);
        /* cut anywhere it is no batch, and no event is delivered */
        for (size_t n = 0; n < b.n; n++) {
            buf_clear(&got);
            assert_false(kv_batch_read(&batch, b.p, n, print_event, &got, &e));
            assert_int_equal(got.n, 0);
        }
        buf_free(&b);
        buf_free(&got);
    }
}

/* ["BlockStored", ...] as short as SGLang and old vLLM send it, and its pairs of tokens. */
static void short_arrays_are_read(void **state)
{
    (void)state;
    struct buf b = {0}, got = {0};
    struct kv_batch batch;
    struct err e;
    mp_array(&b, 2);
    mp_uint(&b, 17);
    mp_array(&b, 4);
    mp_array(&b, 6); /* without a medium */
    mp_text(&b, "BlockStored");
    mp_array(&b, 1), mp_negative(&b, -5);
    mp_nil(&b);
    mp_array(&b, 2), mp_array(&b, 2), mp_uint(&b, 8), mp_uint(&b, 9), mp_array(&b, 2),
        mp_uint(&b, 9), mp_uint(&b, 4);
    mp_uint(&b, 2);
    mp_nil(&b);
    mp_array(&b, 8); /* with metadata behind the medium */
    mp_text(&b, "BlockStored");
    mp_array(&b, 1), mp_uint(&b, 6);
    mp_negative(&b, -5);
    mp_array(&b, 1), mp_uint(&b, 3);
    mp_uint(&b, 1);
    mp_nil(&b);
    mp_text(&b, "GPU");
    mp_map(&b, 1), mp_text(&b, "cache_salt"), mp_text(&b, "x");
    mp_array(&b, 2);
    mp_text(&b, "BlockRemoved");
    mp_array(&b, 1), mp_uint(&b, 6);
    mp_array(&b, 1);
    mp_text(&b, "AllBlocksCleared");
    assert_true(kv_batch_read(&batch, b.p, b.n, print_event, &got, &e));
    assert_string_equal(got.p, "0 r0 g-1   w0 s2: < -5=8,9\n0 r0 g-1 GPU  w0 s1: <-5 6=3\n"
                               "1 r0 g-1   w0 s0: < 6\n2 r0 g-1   w0 s0: <\n");
    buf_free(&b);
    buf_free(&got);
}

/* One event that is wrong is left out and counted; the others are delivered. */
static void wrong_events_are_left_out(void **state)
{
    (void)state;
    static const struct { const char *hex, *why; } c[] = {
        {"91a3466f6f", "an event of no known type"},
        {"c0", "an event of no known type"},
        {"80", "an event of no known type"},
        {"91ac426c6f636b52656d6f766564", "block_hashes is missing"},
        {"92ac426c6f636b52656d6f766564c0", "block_hashes is no array of at most 65536 hashes"},
        {"92ac426c6f636b52656d6f76656491c2", "a hash is no number and no bytes (at most 32)"},
        {"92ac426c6f636b52656d6f76656491c400", "a hash is no number and no bytes (at most 32)"},
        {"92ab426c6f636b53746f7265649101", "block_size is no number from 1 to 65536"},
        {"95ab426c6f636b53746f7265649101c09000", "block_size is no number from 1 to 65536"},
        {"95ab426c6f636b53746f7265649101c39001", "parent_block_hash is no hash"},
        {"82a474797065ac426c6f636b52656d6f7665649101c0", "a name of a field is no text"},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        struct buf b = {0}, got = {0};
        struct kv_batch batch;
        struct err e;
        unsigned byte;
        mp_array(&b, 2);
        mp_nil(&b);
        mp_array(&b, 2);
        for (const char *h = c[i].hex; sscanf(h, "%2x", &byte) == 1; h += 2)
            buf_char(&b, (char)byte);
        mp_array(&b, 1);
        mp_text(&b, "AllBlocksCleared");
        if (!kv_batch_read(&batch, b.p, b.n, print_event, &got, &e))
            fail_msg("%s: %s", c[i].hex, e.msg);
        assert_string_equal(batch.why, c[i].why);
        assert_true(batch.n_event == 2 && batch.n_refused == 1 && got.n && got.p[0] == '2');
        buf_free(&b);
        buf_free(&got);
    }
}

enum { MOST_FRAMES = 64 };

static int recorded(struct kv_frame *f)
{
    int n = kv_frames_read("tests/exchanges/vllm-kv-events", f, MOST_FRAMES);
    assert_int_equal(n, 19);
    return n;
}

static void frames_free(struct kv_frame *f, int n)
{
    for (int i = 0; i < n; i++)
        buf_free(&f[i].batch);
}

static void ignore_event(void *arg, const struct kv_event *ev)
{
    *(uint64_t *)arg += (uint64_t)ev->n_hash;
}

/* Bytes of recorded batches changed, cut and repeated: read, or refused in one line. */
static void hostile_bytes_do_no_harm(void **state)
{
    (void)state;
    struct kv_frame f[MOST_FRAMES];
    int n = recorded(f);
    uint64_t hashes = 0, refused = 0;
    for (int i = 0; i < 20000; i++) {
        struct buf b = {0};
        struct kv_batch batch;
        struct err e = {0};
        const struct buf *from = &f[below(n)].batch;
        buf_add(&b, from->p, from->n);
        for (uint32_t k = below(6) + 1; k-- > 0;)
            b.p[below((int)b.n)] = (char)below(256);
        if (below(4) == 0)
            b.n = below((int)b.n);
        if (!kv_batch_read(&batch, b.p, b.n, ignore_event, &hashes, &e)) {
            refused++;
            assert_null(strchr(e.msg, '\n'));
        }
        buf_free(&b);
    }
    assert_true(refused > 1000 && hashes > 1000);
    frames_free(f, n);
}

/* ---- blocks ---------------------------------------------------------------------------------- */

enum { HASHES = 40, GROUPS = 3, RANKS = 2 };

static void apply_spec(struct kv_blocks *k, const struct spec *s, int rank)
{
    struct buf b = {0};
    struct kv_batch batch;
    put_batch(&b, s, 1, below(4), rank);
    assert_true(kv_batch_read(&batch, b.p, b.n,
                              (void (*)(void *, const struct kv_event *))kv_blocks_apply, k, NULL));
    buf_free(&b);
}

/* Hash h > 1 has the parent h / 2, and tokens of its own: every path from the root is a prompt. */
static struct spec store_of(int h, int group)
{
    return (struct spec){.kind = KV_STORED, .hash = {h}, .n_hash = 1, .parent = h / 2, .size = 2,
                         .group = group,
                         .layers = group ? "sliding_window" : "full_attention", .window = group * 8,
                         .medium = "GPU"};
}

static void compare_with_list(const struct kv_blocks *k, int copies[RANKS][GROUPS][HASHES])
{
    struct blocks_view v = {0};
    kv_blocks_view(k, &v);
    size_t stored = 0;
    for (int g = 0; g < v.n_group; g++) {
        const struct block_group *at = &v.group[g];
        int64_t blocks = 0, all = 0;
        for (int h = 0; h < HASHES; h++) {
            blocks += copies[at->rank][at->index][h] > 0;
            all += copies[at->rank][at->index][h];
        }
        assert_int_equal(at->blocks, blocks);
        assert_int_equal(at->copies, all);
        assert_int_equal(at->stored - at->removed, all);
        assert_true(at->window == at->index * 8 && at->block_size == 2);
    }
    for (int h = 0; h < HASHES; h++) {
        int any = 0;
        for (int i = 0; i < RANKS * GROUPS; i++)
            any |= copies[i / GROUPS][i % GROUPS][h];
        stored += any > 0;
    }
    assert_int_equal(k->n_block, stored);
    assert_int_equal(k->n_token, 2 * stored);
}

static void blocks_are_those_of_a_list(void **state)
{
    (void)state;
    struct kv_blocks k;
    int copies[RANKS][GROUPS][HASHES] = {0};
    uint64_t unknown = 0;
    kv_blocks_init(&k);
    for (int i = 0; i < 6000; i++) {
        int h = 1 + below(HASHES - 1), g = below(GROUPS), rank = below(RANKS),
            *at = &copies[rank][g][h];
        struct spec s = store_of(h, g);
        bool clear = below(300) == 0;
        s.kind = clear ? KV_CLEARED : below(2) ? KV_STORED : KV_REMOVED;
        apply_spec(&k, &s, rank);
        if (clear)
            memset(copies[rank], 0, sizeof copies[rank]);
        else if (s.kind == KV_STORED)
            ++*at;
        else if (*at)
            --*at;
        else
            unknown++;
        if (i % 50 == 0)
            compare_with_list(&k, copies);
    }
    compare_with_list(&k, copies);
    assert_int_equal(k.unknown, unknown);
    assert_int_equal(k.dropped, 0);
    kv_blocks_free(&k);
}

/* The session's ids: those of the path to a hash, then some that no block holds. */
static void path_ids(int h, struct ids *out)
{
    if (h == 0)
        return;
    path_ids(h / 2, out);
    ids_add(out, token_of(h, 0));
    ids_add(out, token_of(h, 1));
}

static void blocks_of_the_session_are_found(void **state)
{
    (void)state;
    for (int order = 0; order < 60; order++) {
        struct kv_blocks k;
        struct session_block chain[8];
        struct blocks_view v = {0};
        struct ids ids = {0};
        int path[] = {1, 2, 5, 10, 20}; /* 20's ancestors */
        kv_blocks_init(&k);
        path_ids(20, &ids);
        ids_add(&ids, 7);
        if (order % 2)
            kv_blocks_session(&k, ids.v, ids.n);
        for (int i = 0; i < 5; i++) { /* in any order */
            int j = i + below(5 - i), t = path[i];
            path[i] = path[j];
            path[j] = t;
            struct spec s = store_of(path[i], 0), other = store_of(path[i] + 20, 0);
            apply_spec(&k, &s, 0);
            apply_spec(&k, &other, 0);
            other.kind = KV_REMOVED;
            apply_spec(&k, &other, 0);
        }
        if (order % 2 == 0)
            kv_blocks_session(&k, ids.v, ids.n);
        struct spec gone = store_of(5, 0), window = store_of(10, 1);
        gone.kind = KV_REMOVED;
        apply_spec(&k, &gone, 0);
        apply_spec(&k, &window, 0);
        assert_int_equal(kv_blocks_chain(&k, chain, 8), 5);
        for (int i = 0; i < 5; i++)
            assert_true(chain[i].position == 2 * i && chain[i].n_token == 2 &&
                        chain[i].held == (i == 2 ? 0u : i == 3 ? 3u : 1u)); /* the third is no
                                                                               longer stored */
        kv_blocks_view(&k, &v);
        assert_true(v.n_session == 5 && v.group[0].n_session == 4 && v.group[1].n_session == 1);
        ids.v[5] = 1; /* another third block: the first two stay */
        kv_blocks_session(&k, ids.v, ids.n);
        assert_int_equal(kv_blocks_chain(&k, chain, 8), 2);
        kv_blocks_session(&k, NULL, 0);
        assert_int_equal(kv_blocks_chain(&k, chain, 8), 0);
        ids_free(&ids);
        kv_blocks_free(&k);
    }
}

static void limits_are_counted(void **state)
{
    (void)state;
    struct kv_blocks k;
    kv_blocks_init(&k);
    for (int g = 0; g < BLOCK_GROUPS + 2; g++) {
        struct spec s = store_of(1, g);
        apply_spec(&k, &s, 0);
    }
    assert_true(k.n_group == BLOCK_GROUPS && k.dropped == 2 && k.n_block == 1);
    for (int i = 0; i < BLOCK_SAMPLES_KEPT + 5; i++)
        kv_blocks_sample(&k, (uint64_t)(i + 1) * 500000000); /* two a second */
    struct block_sample s[4];
    assert_int_equal(kv_blocks_samples(&k, s, 4), 4);
    assert_true(s[3].ns - s[2].ns == 1000000000 &&
                s[3].ns == (BLOCK_SAMPLES_KEPT + 5) * 500000000ull && s[3].blocks[0] == 1);
    kv_blocks_free(&k);
}

/* ---- the order of batches -------------------------------------------------------------------- */

/* Batch i stores hash i + 1. */
static void batch_of(uint64_t seq, struct buf *out)
{
    struct spec s = store_of((int)seq % 30 + 1, 0);
    buf_clear(out);
    put_batch(out, &s, 1, (int)(seq & 3), 0);
}

static bool live(struct kv_feed *f, uint64_t seq, bool last, uint64_t *from)
{
    uint8_t number[8];
    struct buf b = {0};
    kv_play_number(number, seq);
    batch_of(seq, &b);
    bool done = kv_feed_live(f, number, 8, b.p, b.n, last, from);
    buf_free(&b);
    return done;
}

static bool again(struct kv_feed *f, uint64_t seq)
{
    uint8_t number[8];
    struct buf b = {0};
    kv_play_number(number, seq);
    batch_of(seq, &b);
    bool more = kv_feed_replayed(f, number, 8, b.p, b.n);
    buf_free(&b);
    return more;
}

static struct blocks_view view_of(struct kv_feed *f)
{
    struct blocks_view v;
    kv_feed_view(f, &v);
    return v;
}

static void feed_open(struct kv_feed *f, const char *address)
{
    struct kv_address a;
    struct err e;
    if (!kv_address_read(&a, address, &e))
        fail_msg("%s", e.msg);
    kv_feed_open(f, &a);
}

static void a_gap_without_replay_is_counted(void **state)
{
    (void)state;
    struct kv_feed f;
    uint64_t from;
    feed_open(&f, "tcp://h:1");
    for (uint64_t seq = 0; seq < 10; seq++)
        assert_true(seq == 4 || seq == 5 || live(&f, seq, false, &from));
    struct blocks_view v = view_of(&f);
    assert_true(v.batches == 8 && v.missed == 2 && v.before == 0 && !v.whole &&
                v.group[0].blocks == 8);
    struct spec clear = {.kind = KV_CLEARED};
    struct buf b = {0};
    uint8_t number[8];
    put_batch(&b, &clear, 1, 1, 0);
    kv_play_number(number, 10);
    assert_true(kv_feed_live(&f, number, 8, b.p, b.n, false, &from));
    v = view_of(&f);
    assert_true(v.whole && v.group[0].blocks == 0 && v.missed == 2); /* empty: exact again */
    assert_true(live(&f, 3, false, &from)); /* a server that began anew: the cache was empty */
    v = view_of(&f);
    assert_true(!v.whole && v.before == 3 && v.group[0].blocks == 1);
    buf_free(&b);
    kv_feed_close(&f);
}

static void a_gap_is_asked_for(void **state)
{
    (void)state;
    struct kv_feed f;
    uint64_t from = 99;
    feed_open(&f, "tcp://h:1,replay=tcp://h:2");
    assert_false(live(&f, 3, false, &from)); /* late: all from the first on */
    assert_int_equal(from, 0);
    for (uint64_t seq = 0; seq < 6; seq++) /* 3 to 5 were published meanwhile */
        assert_true(again(&f, seq));
    assert_false(again(&f, UINT64_MAX));
    assert_true(live(&f, 3, true, &from) && live(&f, 4, false, &from) && live(&f, 5, false, &from));
    struct blocks_view v = view_of(&f);
    assert_true(v.whole && v.batches == 6 && v.replayed == 6 && v.missed == 0 &&
                v.group[0].copies == 6);
    assert_false(live(&f, 8, false, &from));
    assert_int_equal(from, 6);
    assert_true(again(&f, 7)); /* 6 has left the server's memory */
    assert_true(live(&f, 8, true, &from));
    v = view_of(&f);
    assert_true(!v.whole && v.batches == 8 && v.missed == 1 && v.group[0].copies == 8);
    assert_false(live(&f, 2, false, &from)); /* a restart */
    assert_int_equal(from, 0);
    assert_true(again(&f, 0) && again(&f, 1) && again(&f, 2) && live(&f, 2, true, &from));
    v = view_of(&f);
    assert_true(v.whole && v.group[0].copies == 3);
    kv_feed_connected(&f, false); /* again one, unnoticed but for the connection */
    kv_feed_connected(&f, true);
    assert_true(live(&f, 0, false, &from));
    v = view_of(&f);
    assert_true(v.whole && v.group[0].copies == 1);
    kv_feed_close(&f);
}

static void messages_that_are_none_are_refused(void **state)
{
    (void)state;
    struct kv_feed f;
    uint64_t from;
    uint8_t number[8] = {0};
    feed_open(&f, "tcp://h:1");
    assert_true(kv_feed_live(&f, number, 7, "x", 1, false, &from));
    assert_true(kv_feed_live(&f, "\xFF\0\0\0\0\0\0\0", 8, "x", 1, false, &from));
    assert_true(kv_feed_live(&f, number, 8, "\xC1", 1, false, &from));
    assert_true(live(&f, 1, false, &from));
    struct blocks_view v = view_of(&f);
    assert_true(v.refused == 3 && v.batches == 2 && !v.whole && v.group[0].blocks == 1);
    assert_string_equal(v.wrong, "a sequence number is not of 8 bytes");
    assert_string_equal(v.about, "blocks, reconstructed from events; some are missing, "
                                 "so the counts are not exact");
    kv_feed_close(&f);
}

static void addresses(void **state)
{
    (void)state;
    static const char *const bad[] = {"", "h:1", "tcp://", "tcp://h", "tcp://h:", "tcp://:1",
                                      "tcp://*:1", "tcp://h:1x",
                                      "http://h:1", "tcp://h:1,tcp://h:2", "tcp://h:1,replay=",
                                      "tcp://h:1,replay=h:2"};
    struct kv_address a;
    struct err e;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_false(kv_address_read(&a, bad[i], &e));
        assert_non_null(strstr(e.msg, "expected "));
    }
    assert_true(kv_address_read(&a, "tcp://[::1]:5557,replay=ipc:///tmp/x", &e));
    assert_string_equal(a.events, "tcp://[::1]:5557");
    assert_string_equal(a.replay, "ipc:///tmp/x");
}

/* A recorded run of vLLM 0.26: three groups, each hash stored again with every request. */
static void a_recorded_run(void **state)
{
    (void)state;
    struct kv_frame f[MOST_FRAMES];
    struct kv_feed feed;
    uint64_t from;
    int n = recorded(f);
    feed_open(&feed, "tcp://h:1");
    static const int32_t kv_cache[] = {2, 4, 516, 267, 204, 371, 291, 263, 1163, 1066, 36, 5, 204,
                                       4, 2895, 333, 204,
        324, 1163, 1066, 2275, 269, 914, 294, 1165, 299, 2006, 477, 448, 336, 1172, 709, 392, 353,
        2404, 708, 19, 5};
    kv_feed_session(&feed, kv_cache, 38);
    for (int i = 0; i < n; i++) {
        uint8_t number[8];
        kv_play_number(number, f[i].seq);
        assert_true(kv_feed_live(&feed, number, 8, f[i].batch.p, f[i].batch.n, false, &from));
        if (f[i].seq != 12)
            continue;
        struct blocks_view v = view_of(&feed);
        struct session_block s[4];
        assert_true(v.whole && v.n_group == 3 && v.n_session == 2 && v.refused == 0 &&
                    v.unknown == 0);
        for (int g = 0; g < 3; g++) {
            const struct block_group *at = &v.group[g];
            assert_string_equal(at->kind, g < 2 ? "sliding_window" : "full_attention");
            assert_true(at->index == g && at->window == (g < 2 ? 64 : 0) && at->block_size == 16);
            assert_true(at->blocks == 3 && at->copies == 14 && at->n_session == 2);
            assert_string_equal(at->medium, "GPU");
        }
        assert_int_equal(kv_feed_chain(&feed, s, 4), 2);
        assert_string_equal(s[0].hash, "1402897294697696220");
        assert_string_equal(s[1].hash, "16638375076199159622");
        assert_true(s[1].position == 16 && s[1].held == 7);
    }
    struct blocks_view v = view_of(&feed);
    assert_true(v.missed == 67 && v.whole); /* 13 to 79 are not in the file; 82 cleared all */
    kv_feed_close(&feed);
    frames_free(f, n);
}

/* ---- sockets --------------------------------------------------------------------------------- */

#if HAVE_ZMQ
static struct blocks_view wait_for(struct blocks *b, uint64_t batches, uint64_t refused)
{
    struct blocks_view v = {0};
    for (int i = 0; i < 1000 && (v.batches < batches || v.refused < refused); i++) {
        kv_feed_view(&b->feed, &v);
        usleep(5000);
    }
    if (v.batches < batches || v.refused < refused)
        fail_msg("%llu batches and %llu refused came", (unsigned long long)v.batches,
                 (unsigned long long)v.refused);
    return v;
}

static void open_at(struct blocks *b, struct kv_play *p, const char *address)
{
    struct err e;
    kv_play_open(p);
    if (!blocks_open(b, address ? address : p->both, &e))
        fail_msg("%s", e.msg);
}

static void lost_batches_are_replayed(enum kv_form form)
{
    struct kv_play p;
    struct blocks b;
    struct buf batch = {0};
    open_at(&b, &p, NULL);
    pthread_mutex_lock(&p.mu);
    p.form = form;
    pthread_mutex_unlock(&p.mu);
    assert_true(kv_play_wait(&p, 10000));
    for (uint64_t seq = 0; seq < 40; seq++) {
        batch_of(seq, &batch);
        kv_play_send(&p, seq, &batch, seq % 7 == 3 || (seq > 20 && seq < 26));
    }
    struct blocks_view v = wait_for(&b, 40, 0);
    assert_true(v.whole && v.missed == 0 && v.replayed >= 10 && v.connected && v.refused == 0);
    assert_true(v.group[0].copies == 40 && v.group[0].blocks == 30);
    blocks_close(&b);
    kv_play_close(&p);
    buf_free(&batch);
}

static void lost_batches_are_replayed_in_every_form(void **state)
{
    (void)state;
    for (int form = KV_TOPIC; form <= KV_SHORT_END; form++)
        lost_batches_are_replayed((enum kv_form)form);
}

/* Who comes late gets what the server still has. */
static void a_late_subscriber_asks_for_the_past(void **state)
{
    (void)state;
    struct kv_play p;
    struct blocks b;
    struct buf batch = {0};
    struct err e;
    kv_play_open(&p);
    for (uint64_t seq = 5; seq < 12; seq++) {
        batch_of(seq, &batch);
        kv_play_send(&p, seq, &batch, true);
    }
    if (!blocks_open(&b, p.both, &e))
        fail_msg("%s", e.msg);
    struct blocks_view v = wait_for(&b, 7, 0);
    assert_true(!v.whole && v.before == 5 && v.missed == 0 && v.replayed == 7 &&
                v.group[0].blocks == 7);
    blocks_close(&b);
    kv_play_close(&p);
    buf_free(&batch);
}

static void garbage_on_the_wire(void **state)
{
    (void)state;
    struct kv_play p;
    struct blocks b;
    struct buf batch = {0};
    uint8_t number[8];
    kv_play_open(&p);
    struct err e;
    if (!blocks_open(&b, p.events, &e)) /* no replay */
        fail_msg("%s", e.msg);
    assert_true(kv_play_wait(&p, 10000));
    zmq_send(p.pub, "alone", 5, 0);
    zmq_send(p.pub, "", 0, ZMQ_SNDMORE);
    zmq_send(p.pub, "", 0, 0);
    for (int i = 0; i < 20; i++)
        zmq_send(p.pub, "many", 4, i < 19 ? ZMQ_SNDMORE : 0);
    kv_play_publish(&p, "short", 5, "x", 1);
    kv_play_number(number, 0);
    kv_play_publish(&p, number, 8, "\xDD\xFF\xFF\xFF\xFF", 5);
    for (uint64_t seq = 1; seq < 5; seq++) {
        batch_of(seq, &batch);
        kv_play_send(&p, seq, &batch, false);
    }
    struct blocks_view v = wait_for(&b, 5, 5);
    assert_true(!v.whole && v.batches == 5 && v.refused == 5 && v.group[0].blocks == 4);
    blocks_close(&b);
    kv_play_close(&p);
    buf_free(&batch);
}

/* Nobody there, and a server that publishes but does not answer replays: closing does not wait. */
static void silence(void **state)
{
    (void)state;
    struct blocks b;
    struct blocks_view v;
    struct err e;
    assert_true(blocks_open(&b, "tcp://127.0.0.1:1,replay=tcp://127.0.0.1:1", &e));
    kv_feed_view(&b.feed, &v);
    assert_string_equal(v.about, "blocks, reconstructed from events: not connected yet");
    blocks_close(&b);
    struct kv_play p;
    struct buf batch = {0};
    open_at(&b, &p, NULL);
    pthread_mutex_lock(&p.mu);
    p.deaf = true;
    pthread_mutex_unlock(&p.mu);
    assert_true(kv_play_wait(&p, 10000));
    batch_of(4, &batch);
    kv_play_send(&p, 4, &batch, false);
    usleep(20000);
    blocks_close(&b);
    kv_play_close(&p);
    buf_free(&batch);
    assert_false(blocks_open(&b, "tcp://no such host:1", &e));
    assert_true(strncmp(e.msg, "KV events: cannot connect to tcp://no such host:1: ", 50) == 0);
}

static void a_server_that_begins_anew(void **state)
{
    (void)state;
    struct kv_play p;
    struct blocks b;
    struct buf batch = {0};
    open_at(&b, &p, NULL);
    assert_true(kv_play_wait(&p, 10000));
    for (uint64_t i = 0; i < 8; i++) {
        uint64_t seq = i < 5 ? i : i - 5;
        if (i == 5) {
            pthread_mutex_lock(&p.mu);
            while (p.n_kept)
                buf_free(&p.kept[--p.n_kept].batch);
            pthread_mutex_unlock(&p.mu);
        }
        batch_of(seq, &batch);
        kv_play_send(&p, seq, &batch, false);
        wait_for(&b, i + 1, 0);
    }
    struct blocks_view v = wait_for(&b, 8, 0);
    assert_true(v.whole && v.group[0].copies == 3 && v.missed == 0);
    blocks_close(&b);
    kv_play_close(&p);
    buf_free(&batch);
}
#else
static void without_libzmq_it_is_said(void **state)
{
    (void)state;
    struct blocks b;
    struct err e;
    bool built;
    assert_false(blocks_open(&b, "tcp://127.0.0.1:1", &e));
    assert_string_equal(e.msg, kv_socket_about(&built));
    assert_true(!built && blocks_open(&b, NULL, &e));
    assert_string_equal(blocks_lacks(&b), kv_socket_about(&built));
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_form_of_value_is_read),
        cmocka_unit_test(all_forms_say_the_same),
        cmocka_unit_test(short_arrays_are_read),
        cmocka_unit_test(wrong_events_are_left_out),
        cmocka_unit_test(hostile_bytes_do_no_harm),
        cmocka_unit_test(blocks_are_those_of_a_list),
        cmocka_unit_test(blocks_of_the_session_are_found),
        cmocka_unit_test(limits_are_counted),
        cmocka_unit_test(a_gap_without_replay_is_counted),
        cmocka_unit_test(a_gap_is_asked_for),
        cmocka_unit_test(messages_that_are_none_are_refused),
        cmocka_unit_test(addresses),
        cmocka_unit_test(a_recorded_run),
#if HAVE_ZMQ
        cmocka_unit_test(lost_batches_are_replayed_in_every_form),
        cmocka_unit_test(a_late_subscriber_asks_for_the_past),
        cmocka_unit_test(garbage_on_the_wire),
        cmocka_unit_test(silence),
        cmocka_unit_test(a_server_that_begins_anew),
#else
        cmocka_unit_test(without_libzmq_it_is_said),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
