/* Response formats and constrained decoding: a format is refused by name or becomes a grammar, in
 * which no state is a dead end, a token leads nowhere if and only if it is banned, and what is
 * accepted is JSON. The input is a format, or a schema; bytes at its end choose among tokens, the
 * last one whether it is a schema and what precedes the text. Of the large grammars, which take
 * most of the time (tables of multiples), one of eight, by its bytes, is followed. */
#include "kernels/json_read.h"
#include "models/grammar/parts.h"
#include "tests/fuzz/chats.h"

const int fuzz_inputs = 1500;

enum { STEPS = 48, STOP = 257, LARGE = 4096 };

static bool is_banned(const uint32_t *banned, int id)
{
    return banned[id / 32] >> (id % 32) & 1;
}

/* The allowed token that the number chooses, counted from a place that is mostly a byte of text. */
static int draw(const uint32_t *banned, uint64_t by)
{
    for (int i = 0; i < FUZZ_VOCAB; i++) {
        int id = (int)((by + (uint64_t)i) % FUZZ_VOCAB);
        if (!is_banned(banned, id))
            return id;
    }
    return -1;
}

static void check_text(const struct ids *ids, bool json)
{
    struct buf text = {0};
    tok_decode(fuzz_bytes(), ids->v, ids->n, &text);
    json_t *v = json ? json_parse(text.p ? text.p : "", text.n, JSON_DECODE_ANY, NULL) : NULL;
    CHECK(!json || v);
    json_decref(v);
    buf_free(&text);
}

/* A reply of allowed tokens, which ends when it can for one number of four. */
static void follow(struct guide *x, uint64_t by, bool json)
{
    struct ids ids = {0};
    int state = guide_after(x, NULL, 0);
    for (int i = 0; i < STEPS; i++) {
        by = mix64(by);
        const uint32_t *banned = guide_banned(x, state);
        bool ends = guide_accepts(x, state), stop = !is_banned(banned, STOP);
        CHECK(state != GUIDE_DEAD && ends == stop);
        if (ends)
            check_text(&ids, json);
        if (ends && by % 4 == 0)
            break;
        int id = draw(banned, by >> 8), other = (int)((by >> 24) % FUZZ_VOCAB);
        CHECK(id >= 0);
        if (id == STOP)
            break;
        if (other != STOP) {
            bool dead = is_banned(banned, other);
            CHECK((guide_next(x, state, other) == GUIDE_DEAD) == dead);
        }
        ids_add(&ids, id);
        state = guide_next(x, state, id);
        if (i % 16 == 15) {
            bool done = guide_accepts(x, state);
            state = guide_after(x, ids.v, ids.n);
            CHECK(guide_accepts(x, state) == done);
        }
    }
    ids_free(&ids);
}

static json_t *read_format(const char *text, size_t n, bool schema)
{
    json_t *o = json_parse(text, n, 0, NULL);
    return !o || !schema ? o : json_pack("{s:s,s:o}", "type", "json_schema", "schema", o);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static struct token_order *order;
    static const int32_t stop[] = {STOP};
    static const struct reply_form thought = {.kind = FORM_THOUGHT};
    order = order ? order : token_order_open(fuzz_bytes());
    unsigned how = fuzz_choice(data, &n);
    uint64_t by = how;
    for (int i = 0; i < 2; i++)
        by = by << 8 | fuzz_choice(data, &n);
    json_t *format = read_format(fuzz_tail(data, n), n, how & 1);
    struct err e = {0}, all = {0};
    if (!format)
        return 0;
    struct grammar *any = grammar_open(format, NULL, NULL, &all);
    if (any && any->n_element > LARGE && hash64(data, n, 1) % 8) {
        grammar_close(any);
        json_decref(format);
        return 0;
    }
    struct grammar *g = grammar_open(format, how & 2 ? &thought : NULL, fuzz_bytes(), &e);
    CHECK(!any == !g); /* the vocabulary has all bytes */
    grammar_close(any);
    if (!g) {
        CHECK(e.kind == ERR_USAGE && all.kind == ERR_USAGE);
        fuzz_message(&e);
    } else {
        const char *type = json_string_value(json_object_get(format, "type"));
        struct guide *x = guide_open(g, order, FUZZ_VOCAB, stop, 1);
        follow(x, by, !(how & 2) && type && strcmp(type, "tools") != 0);
        guide_close(x);
    }
    json_decref(format);
    return 0;
}
