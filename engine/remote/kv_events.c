/* kv_events.c - see kv_events.h. Names and order of fields: vllm/distributed/kv_events.py and
 * sglang/srt/disaggregation/kv_events.py of 2025 and 2026, and frames recorded from vLLM 0.26.0. */
#include "engine/remote/kv_events.h"

#include "engine/remote/msgpack.h"

void block_hash_text(const struct block_hash *h, char *out, size_t room)
{
    uint64_t u = 0;
    if (room)
        *out = '\0';
    if (h->kind == 'i') {
        for (int i = 1; i < h->n; i++)
            u = u << 8 | h->v[i];
        if (h->v[0])
            snprintf(out, room, "%lld", (long long)(int64_t)u);
        else
            snprintf(out, room, "%llu", (unsigned long long)u);
    } else if (h->kind == 'b' && room > (size_t)2 * h->n) {
        hex_digits(out, h->v, h->n);
        out[(size_t)2 * h->n] = '\0';
    }
}

/* ---- values ---------------------------------------------------------------------------------- */

/* A sign byte, then 8 bytes: the numbers -1 and 2^64 - 1 are different hashes. */
static struct block_hash hash_of_number(uint64_t u, bool negative)
{
    struct block_hash h = {.kind = 'i', .n = 9, .v = {negative}};
    for (int i = 0; i < 8; i++)
        h.v[1 + i] = (uint8_t)(u >> (8 * (7 - i)));
    return h;
}

static bool get_hash(const struct msgpack_value *v, struct block_hash *out)
{
    *out = (struct block_hash){0};
    if (v->kind == MP_INT)
        *out = hash_of_number((uint64_t)v->i, v->i < 0);
    else if (v->kind == MP_WIDE)
        *out = hash_of_number(v->wide, false);
    else if ((v->kind == MP_BYTES || v->kind == MP_TEXT) && v->n > 0 && v->n <= sizeof out->v) {
        out->kind = 'b';
        out->n = (uint8_t)v->n;
        memcpy(out->v, v->p, v->n);
    }
    return out->kind != 0;
}

/* Names are shown and compared, so only what can be printed is kept. */
static void get_name(const struct msgpack_value *v, char *out, size_t room)
{
    size_t n = 0;
    if (v->kind == MP_TEXT)
        for (; n < v->n && n + 1 < room; n++)
            out[n] = v->p[n] > ' ' && v->p[n] < 127 ? v->p[n] : '?';
    out[n] = '\0';
}

static int get_count(const struct msgpack_value *v, int64_t most, int none)
{
    return v->kind == MP_INT && v->i >= 0 && v->i <= most ? (int)v->i : none;
}

/* ---- an event -------------------------------------------------------------------------------- */

enum field { F_HASHES, F_PARENT, F_TOKENS, F_SIZE, F_MEDIUM, F_GROUP, F_LAYERS, F_WINDOW, F_NONE };

static const char *const field_name[F_NONE] = {
    "block_hashes", "parent_block_hash", "token_ids", "block_size", "medium", "group_idx",
    "kv_cache_spec_kind", "kv_cache_spec_sliding_window"};

static const char *const type_name[] = {"BlockStored", "BlockRemoved", "AllBlocksCleared"};

/* Fields of an array by their place behind the type. */
static enum field field_at(enum kv_event_kind kind, uint32_t i)
{
    static const uint8_t stored[] = {F_HASHES, F_PARENT, F_TOKENS, F_SIZE, F_NONE /* lora_id */,
                                     F_MEDIUM,
                                     F_NONE /* lora_name */, F_NONE /* extra_keys */, F_GROUP,
                                     F_LAYERS, F_WINDOW};
    static const uint8_t removed[] = {F_HASHES, F_MEDIUM, F_GROUP};
    if (kind == KV_STORED)
        return i < sizeof stored ? (enum field)stored[i] : F_NONE;
    return kind == KV_REMOVED && i < sizeof removed ? (enum field)removed[i] : F_NONE;
}

static enum field field_named(const struct msgpack_value *key)
{
    int f = 0;
    while (f < F_NONE && !msgpack_is(key, field_name[f]))
        f++;
    return (enum field)f;
}

/* The buffers for one event after the other. */
struct kv_reading {
    struct kv_event ev;
    struct block_hash *hash; /* (cap_hash) */
    int32_t *token;          /* (cap_token) */
    int cap_hash, cap_token, n_token;
    const char *wrong; /* what is wrong with the present event; NULL: nothing */
};

static void refuse(struct kv_reading *reading, const char *why)
{
    if (!reading->wrong)
        reading->wrong = why;
}

static void read_hashes(struct kv_reading *reading, struct msgpack pack)
{
    struct msgpack_value v;
    if (!msgpack_next(&pack, &v) || v.kind != MP_ARRAY || v.n > KV_HASHES) {
        refuse(reading, "block_hashes is no array of at most 65536 hashes");
        return;
    }
    int n = (int)v.n;
    RESERVE(reading->hash, n, reading->cap_hash);
    for (int i = 0; i < n; i++)
        if (!msgpack_next(&pack, &v) || !get_hash(&v, &reading->hash[i])) {
            refuse(reading, "a hash is no number and no bytes (at most 32)");
            return;
        }
    static const struct block_hash none;
    reading->ev.hash = n ? reading->hash : &none;
    reading->ev.n_hash = n;
}

/* A token is a number; SGLang pairs it with the next one while an EAGLE head drafts. */
static bool next_token(struct msgpack *pack, int32_t *out)
{
    struct msgpack_value v;
    uint32_t more = 0;
    if (!msgpack_next(pack, &v))
        return false;
    if (v.kind == MP_ARRAY && v.n > 0) {
        more = v.n - 1;
        if (!msgpack_next(pack, &v))
            return false;
    }
    *out = (int32_t)get_count(&v, INT32_MAX, -1);
    while (more-- > 0)
        if (!msgpack_skip(pack))
            return false;
    return *out >= 0;
}

static void read_tokens(struct kv_reading *reading, struct msgpack pack)
{
    struct msgpack_value v;
    reading->n_token = 0;
    if (!msgpack_next(&pack, &v) || v.kind != MP_ARRAY || v.n > KV_TOKENS)
        return;
    int n = (int)v.n;
    RESERVE(reading->token, n, reading->cap_token);
    while (reading->n_token < n && next_token(&pack, &reading->token[reading->n_token]))
        reading->n_token++;
    if (reading->n_token < n)
        reading->n_token = 0;
}

static void read_field(struct kv_reading *reading, enum field f, struct msgpack pack)
{
    struct kv_event *ev = &reading->ev;
    struct msgpack_value v;
    if (f == F_HASHES) {
        read_hashes(reading, pack);
    } else if (f == F_TOKENS) {
        read_tokens(reading, pack);
    } else if (f != F_NONE && msgpack_next(&pack, &v) && v.kind != MP_NIL) {
        if (f == F_PARENT && !get_hash(&v, &ev->parent))
            refuse(reading, "parent_block_hash is no hash");
        else if (f == F_SIZE)
            ev->block_size = get_count(&v, KV_BLOCK_SIZE, 0);
        else if (f == F_MEDIUM)
            get_name(&v, ev->medium, sizeof ev->medium);
        else if (f == F_GROUP)
            ev->group = get_count(&v, INT32_MAX, -1);
        else if (f == F_LAYERS)
            get_name(&v, ev->layers, sizeof ev->layers);
        else if (f == F_WINDOW)
            ev->window = get_count(&v, INT32_MAX, 0);
    }
}

/* Reads the type of an event after its head. False: an unknown type. */
static bool find_type(struct msgpack pack, const struct msgpack_value *head,
                      enum kv_event_kind *out)
{
    struct msgpack_value v = {.kind = MP_NIL};
    bool found = head->kind == MP_ARRAY && head->n > 0 && msgpack_next(&pack, &v);
    for (uint32_t i = 0; head->kind == MP_MAP && i < head->n && !found; i++) {
        if (!msgpack_next(&pack, &v))
            return false;
        bool type = msgpack_is(&v, "type");
        if (v.kind == MP_ARRAY || v.kind == MP_MAP) /* a container as a key: not a known event */
            return false;
        if (type)
            found = msgpack_next(&pack, &v);
        else
            msgpack_skip(&pack);
    }
    for (int k = KV_STORED; found && k <= KV_CLEARED; k++)
        if (msgpack_is(&v, type_name[k])) {
            *out = (enum kv_event_kind)k;
            return true;
        }
    return false;
}

static void read_fields(struct kv_reading *reading, struct msgpack pack,
                        const struct msgpack_value *head)
{
    struct msgpack_value key;
    bool map = head->kind == MP_MAP;
    for (uint32_t i = 0; i < head->n; i++) {
        enum field f = F_NONE;
        if (map && (!msgpack_next(&pack, &key) || key.kind == MP_ARRAY || key.kind == MP_MAP)) {
            refuse(reading, "a name of a field is no text");
            return;
        }
        if (map)
            f = field_named(&key);
        else if (!map && i > 0)
            f = field_at(reading->ev.kind, i - 1);
        read_field(reading, f, pack);
        if (!msgpack_skip(&pack))
            return;
    }
}

static void finish_event(struct kv_reading *reading)
{
    struct kv_event *ev = &reading->ev;
    if (ev->kind != KV_CLEARED && !ev->hash)
        refuse(reading, "block_hashes is missing");
    if (ev->kind == KV_STORED && ev->block_size == 0)
        refuse(reading, "block_size is no number from 1 to 65536");
    if (ev->kind == KV_STORED && (int64_t)ev->n_hash * ev->block_size == reading->n_token)
        ev->token = reading->token;
}

static void read_event(struct kv_reading *reading, struct msgpack pack, int rank)
{
    struct msgpack_value head;
    reading->ev = (struct kv_event){.group = -1, .rank = rank};
    reading->n_token = 0;
    reading->wrong = NULL;
    if (!msgpack_next(&pack, &head) || !find_type(pack, &head, &reading->ev.kind)) {
        refuse(reading, "an event of no known type");
        return;
    }
    read_fields(reading, pack, &head);
    finish_event(reading);
}

/* ---- a batch --------------------------------------------------------------------------------- */

/* Finds the parts of a batch; *events: the position of the array of events. */
static bool find_parts(struct msgpack pack, struct kv_batch *batch, struct msgpack *events)
{
    struct msgpack_value head, v;
    bool found = false;
    if (!msgpack_next(&pack, &head) || (head.kind != MP_ARRAY && head.kind != MP_MAP))
        return false;
    for (uint32_t i = 0; i < head.n; i++) {
        static const char *const name[] = {"ts", "events", "data_parallel_rank", "attn_dp_rank"};
        uint32_t part = i;
        if (head.kind == MP_MAP) {
            if (!msgpack_next(&pack, &v) || v.kind == MP_ARRAY || v.kind == MP_MAP)
                return false;
            for (part = 0; part < 4 && !msgpack_is(&v, name[part]); part++)
                ;
        }
        struct msgpack at = pack;
        if (!msgpack_skip(&pack))
            return false;
        if (part == 1) {
            *events = at;
            found = true;
        } else if (part == 0 && msgpack_next(&at, &v)) {
            batch->time = v.kind == MP_REAL ? v.real : v.kind == MP_INT ? (double)v.i : 0;
        } else if ((part == 2 || part == 3) && msgpack_next(&at, &v)) {
            batch->rank = get_count(&v, 1 << 20, 0);
        }
    }
    return found;
}

bool kv_batch_read(struct kv_batch *batch, const void *payload, size_t n,
                   void (*fn)(void *arg, const struct kv_event *ev), void *arg, struct err *e)
{
    struct msgpack pack = msgpack_of(payload, n), all = pack, events = pack;
    struct msgpack_value v;
    struct kv_reading reading = {0};
    *batch = (struct kv_batch){0};
    if (n > KV_PAYLOAD || !msgpack_skip(&all) || all.p != all.end ||
        !find_parts(pack, batch, &events) || !msgpack_next(&events, &v) || v.kind != MP_ARRAY)
        return err_set(e, ERR_MODEL, "%zu bytes are no batch of KV events", n);
    for (uint32_t i = 0; i < v.n; i++) {
        read_event(&reading, events, batch->rank);
        if (reading.wrong && batch->n_refused++ == 0)
            snprintf(batch->why, sizeof batch->why, "%s", reading.wrong);
        if (!reading.wrong)
            fn(arg, &reading.ev);
        batch->n_event++;
        msgpack_skip(&events);
    }
    FREE(reading.hash, reading.token);
    return true;
}
