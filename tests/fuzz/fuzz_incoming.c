/* A whole reply on its way from a server, as stream or in one piece: the same text, tokens and
 * counts however the bytes are cut. The last bytes choose the content type and the cuts. */
#include "engine/remote/incoming.h"
#include "tests/fuzz/arena.h"

const int fuzz_inputs = 2000;

static struct buf text[2][2]; /* of each reading and channel */

static void take_text(struct incoming *in, int channel, const char *s, size_t n)
{
    CHECK(channel == 0 || channel == 1);
    buf_add(&text[in->arg != NULL][channel], s, n);
}

static void take_progress(struct incoming *in, int64_t done, int64_t total)
{
    (void)in;
    CHECK(done <= total && total <= INT32_MAX);
}

static const struct incoming_news news = {.text = take_text, .progress = take_progress};

/* seed 0: in one piece. */
static bool read_reply(struct incoming *in, const char *type, const uint8_t *data, size_t n,
                       uint64_t seed)
{
    struct err e = {0};
    bool ok = true;
    incoming_init(in);
    in->news = &news;
    in->arg = seed ? in : NULL;
    buf_clear(&text[seed != 0][0]);
    buf_clear(&text[seed != 0][1]);
    for (size_t at = 0; ok && at < n;) {
        size_t k = n - at;
        if (seed) {
            seed = mix64(seed);
            k = 1 + seed % 50 < k ? 1 + seed % 50 : k;
        }
        ok = incoming_bytes(in, type, fuzz_tail(data + at, k), k, &e);
        at += k;
    }
    ok = ok && incoming_end(in, &e);
    if (!ok)
        fuzz_message(&e);
    return ok;
}

static void check_reply(const struct incoming *in)
{
    int tokens = 0;
    CHECK(incoming_tokens(in) >= 0);
    for (int i = 0; i < in->n_piece; i++) {
        CHECK(in->piece[i].first == tokens && in->piece[i].n >= 0);
        tokens += in->piece[i].n;
    }
    CHECK(tokens == in->n_token);
    for (int i = 0; i < in->n_token; i++)
        CHECK(in->token[i].id >= -1 && (!in->ids || in->token[i].id >= 0));
    for (int i = 0; i < in->tops.n; i++)
        CHECK(in->tops.at[i].k >= 0 && in->tops.at[i].k < in->n_token);
    CHECK(memchr(in->finish_word, '\0', sizeof in->finish_word));
    incoming_doubt(in);
}

static void same_ids(const struct ids *a, const struct ids *b)
{
    CHECK(a->n == b->n && (!a->n || memcmp(a->v, b->v, (size_t)a->n * sizeof *a->v) == 0));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char *const type[] = {"text/event-stream", "application/x-ndjson",
                                       "application/json", "text/html"};
    struct incoming a, b;
    const char *which = type[fuzz_choice(data, &n) % 4];
    uint64_t seed = 1 + fuzz_choice(data, &n);
    arena_begin();
    bool ok = read_reply(&a, which, data, n, 0);
    CHECK(read_reply(&b, which, data, n, seed) == ok);
    check_reply(&a);
    CHECK(a.n_token == b.n_token && a.n_piece == b.n_piece && a.n_text == b.n_text &&
          a.end == b.end && a.ids == b.ids);
    CHECK(a.finish == b.finish && a.tops.n == b.tops.n && a.count.generated == b.count.generated);
    same_ids(&a.prompt, &b.prompt);
    same_ids(&a.reply, &b.reply);
    same_ids(&a.accepted, &b.accepted);
    for (int c = 0; c < 2; c++)
        CHECK(text[0][c].n == text[1][c].n &&
              (!text[0][c].n || memcmp(text[0][c].p, text[1][c].p, text[0][c].n) == 0));
    incoming_free(&a);
    incoming_free(&b);
    arena_end();
    return 0;
}
