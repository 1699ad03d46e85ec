/* stream.h - the targets of both forms of event streams (fuzz_sse.c, fuzz_ndjson.c). */
#pragma once

#include "engine/remote/wire.h"
#include "tests/fuzz/fuzz.h"

struct seen { /* events, each behind its length */
    struct buf all;
    enum wire_form form;
    int n, most; /* most: the event that is refused; -1: none */
};

static bool see(void *arg, const char *data, size_t n, struct err *e)
{
    struct seen *s = arg;
    CHECK(n > 0);
    for (size_t i = 0; i < n; i++)
        CHECK(data[i] != '\r' && (s->form == WIRE_SSE || data[i] != '\n'));
    if (s->n++ == s->most)
        return err_set(e, ERR_NEGATIVE, "enough");
    uint32_t size = (uint32_t)n;
    buf_add(&s->all, &size, sizeof size);
    buf_add(&s->all, data, n);
    return true;
}

/* Reads a stream in pieces whose sizes follow from seed; 0: in one piece. */
static bool read_stream(struct seen *s, struct wire *w, const uint8_t *data, size_t n,
                        uint64_t seed)
{
    struct err e = {0};
    bool ok = true;
    buf_clear(&s->all);
    s->n = 0;
    for (size_t at = 0; ok && at < n;) {
        size_t k = n - at;
        if (seed) {
            seed = mix64(seed);
            size_t want = seed & 1 ? 1 : 1 + (seed >> 8) % 40;
            k = want < k ? want : k;
        }
        char *piece = fuzz_tail(data + at, k);
        ok = wire_feed(w, piece, k, see, s, &e);
        at += k;
    }
    ok = ok && wire_end(w, see, s, &e);
    if (!ok)
        fuzz_message(&e);
    w->line.n = w->data.n = 0;
    *w = (struct wire){.form = w->form, .line = w->line, .data = w->data};
    return ok;
}

/* The events are the same however the bytes are cut, and the reading ends at the event that is
 * refused. */
static void same_events(enum wire_form form, const uint8_t *data, size_t n)
{
    static struct seen whole, cut; /* their memory is kept */
    static struct wire a, b;
    uint64_t seed = 1 + fuzz_choice(data, &n);
    int most = (int)fuzz_choice(data, &n);
    whole.form = cut.form = a.form = b.form = form;
    whole.most = cut.most = most < 32 ? most : -1;
    bool ok = read_stream(&whole, &a, data, n, 0);
    CHECK(read_stream(&cut, &b, data, n, seed) == ok);
    CHECK(ok || whole.n == whole.most + 1);
    CHECK(whole.n == cut.n && whole.all.n == cut.all.n);
    CHECK(!whole.all.n || memcmp(whole.all.p, cut.all.p, whole.all.n) == 0);
    CHECK(whole.all.n <= n + (size_t)whole.n * sizeof(uint32_t));
}
