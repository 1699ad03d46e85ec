/* The sanitiser: what it lets through cannot act on a terminal and is not changed by it again;
 * pieces of a stream are as clean; widths and clusters of any bytes are within bounds. */
#include "repl/text/sheet.h"
#include "tests/fuzz/fuzz.h"

const int fuzz_inputs = 4000;

static void widths(const char *s, size_t n)
{
    struct glyph g;
    int used, all = text_width(s, n), sum = 0;
    for (size_t at = 0, k; at < n; at += k) {
        k = text_next(s + at, n - at, &g);
        CHECK(k > 0 && k <= n - at && g.n >= 1 && g.n <= GLYPH_MAX && g.width >= 0);
        sum += g.width;
    }
    CHECK(sum == all);
    for (int cells = 0; cells < 6; cells++) {
        size_t fit = text_fit(s, n, cells, &used);
        CHECK(fit <= n && used <= cells && text_width(s, fit) == used);
    }
}

static void stream(const char *s, size_t n, uint64_t seed)
{
    static struct buf tail, out;
    buf_clear(&out);
    buf_clear(&tail);
    for (size_t at = 0, k; at < n; at += k) {
        seed = mix64(seed);
        k = 1 + seed % 6;
        k = k < n - at ? k : n - at;
        text_sanitise_next(&tail, s + at, k, &out);
    }
    fuzz_clean(out.p ? out.p : "", out.n, true);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static struct buf out, again;
    unsigned choice = fuzz_choice(data, &n);
    bool lines = choice & 1;
    char *s = fuzz_tail(data, n);
    buf_clear(&out);
    buf_clear(&again);
    text_sanitise(&out, s, n, lines);
    fuzz_clean(out.p, out.n, lines);
    text_sanitise(&again, out.p, out.n, lines);
    CHECK(again.n == out.n && memcmp(again.p, out.p, out.n) == 0);
    widths(s, n);
    widths(out.p, out.n);
    stream(s, n, choice);
    return 0;
}
