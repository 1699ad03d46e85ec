/* A regular expression of tokenizer.json, and behind a NUL a text that it cuts: refused with a
 * message, or what was encoded is the text again. */
#include "kernels/json.h"
#include "tests/fuzz/tokens.h"

const int fuzz_inputs = 1500;

static void round_trip(const struct tokenizer *t, const char *text, size_t n)
{
    static struct ids ids;
    static struct buf out;
    if (!fuzz_encode(t, text, n, 0, &ids))
        return;
    fuzz_decode(t, &ids, &out);
    CHECK(out.n == n && memcmp(out.p, text, n) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static struct fuzz_file file;
    static struct buf split, json;
    static const char *const behavior[] = {"Isolated", "Removed", "MergedWithPrevious",
                                           "MergedWithNext", "Contiguous"};
    static const char text[] = "It's 12,345 caf\xC3\xA9s  \n\n\t(ab) "
    "aaaaaaaaaaaa\xE9\xB7\xB9\xE3\x81\xAE\xF0\x9F\xA6\x85 zzab ";
    struct err e = {0};
    unsigned choice = fuzz_choice(data, &n);
    const uint8_t *nul = n ? memchr(data, 0, n) : NULL;
    size_t first = nul ? (size_t)(nul - data) : n;
    buf_clear(&split);
    buf_clear(&json);
    buf_str(&split, "{\"type\":\"Split\",\"pattern\":{\"Regex\":");
    jput_strn(&split, (const char *)data, first);
    unsigned how = choice % 5 == 1 ? 0 : choice % 5; /* "Removed" does what it says */
    buf_printf(&split, "},\"behavior\":\"%s\",\"invert\":%s}", behavior[how], choice & 64 ? "true"
               : "false");
    fuzz_tokenizer_json(split.p, &json);
    struct tokenizer *t = tok_open(fuzz_file(&file, json.p, json.n), &e);
    if (!t) {
        fuzz_message(&e);
        return 0;
    }
    round_trip(t, text, sizeof text - 1);
    if (nul && utf8_check((const char *)nul + 1, n - first - 1))
        round_trip(t, (const char *)nul + 1, n - first - 1);
    tok_close(t);
    return 0;
}
