/* tokenizer.json: refused with a message, or it encodes and decodes any text. */
#include "tests/fuzz/tokens.h"

const int fuzz_inputs = 1500;

static void use(const struct tokenizer *t)
{
    static struct ids ids;
    static struct buf out;
    static const char *const text[] = {
        "", "The quick brown fox's 12,345 jumps: caf\xC3\xA9  \n\n\t<bos>x</s>",
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        "\xE9\xB7\xB9\xE3\x81\xAE\xF0\x9F\xA6\x85 \xFF\xC3(\xE2\x96\x81 ab ",
    };
    for (size_t i = 0; i < sizeof text / sizeof *text; i++)
        for (unsigned flags = 0; flags < 4; flags++)
            if (fuzz_encode(t, text[i], strlen(text[i]), flags, &ids))
                fuzz_decode(t, &ids, &out);
    ids.n = 0;
    for (int id = -1; id < 40; id++) {
        size_t n;
        const char *s = tok_bytes(t, id, &n);
        CHECK(!s || n < 1 << 20);
        ids_add(&ids, id);
    }
    fuzz_decode(t, &ids, &out);
    CHECK(tok_bos(t) >= -1 && tok_bos(t) < tok_vocab(t));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static struct fuzz_file file;
    struct err e = {0};
    struct tokenizer *t = tok_open(fuzz_file(&file, data, n), &e);
    if (t)
        use(t);
    else
        fuzz_message(&e);
    tok_close(t);
    return 0;
}
