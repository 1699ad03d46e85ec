/* Text to ids and back, by a byte-level and a byte-fallback tokenizer: valid text comes back as it
 * was, and an invalid sequence is encoded as U+FFFD is. Ids of any kind are decoded. */
#include "tests/fuzz/tokens.h"

const int fuzz_inputs = 3000;

static struct tokenizer *open_one(unsigned which)
{
    static struct tokenizer *t[2];
    static const char *const path[] = {"models/nestling/target",
                                       "tests/tokenizers/gemmastyle.json"};
    struct err e;
    which %= 2;
    if (!t[which] && !(t[which] = tok_open(path[which], &e)))
        die("%s", e.msg);
    return t[which];
}

static void make_valid(const char *s, size_t n, struct buf *out)
{
    buf_clear(out);
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        i += utf8_decode(s + i, n - i, &cp);
        buf_utf8(out, cp);
    }
    buf_add(out, "", 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static struct ids ids, same;
    static struct buf valid, out;
    unsigned choice = fuzz_choice(data, &n), flags = choice >> 1 & 3;
    const struct tokenizer *t = open_one(choice);
    char *text = fuzz_tail(data, n);
    make_valid(text, n, &valid);
    bool ok = fuzz_encode(t, text, n, flags, &ids);
    CHECK(fuzz_encode(t, valid.p, valid.n, flags, &same) == ok);
    CHECK(ids.n == same.n && (!ids.n || memcmp(ids.v, same.v, (size_t)ids.n * sizeof *ids.v) == 0));
    fuzz_decode(t, &ids, &out);
    if (ok && !memmem(text, n, "\xE2\x96\x81", 3)) /* which stands for a space in byte-fallback
                                                      files */
        CHECK(out.n == valid.n && (!out.n || memcmp(out.p, valid.p, out.n) == 0));
    ids.n = 0;
    for (size_t i = 0; i + 1 < n; i += 2)
        ids_add(&ids, (int32_t)(data[i] | data[i + 1] << 8) - 9);
    fuzz_decode(t, &ids, &out);
    return 0;
}
