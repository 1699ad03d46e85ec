/* UTF-8: the same verdict as a decoder written from the table of the Unicode standard (3-7), for
 * every position of the input. */
#include "tests/fuzz/fuzz.h"

const int fuzz_inputs = 4000;

/* Well-formed sequences: range of the first byte, range of the second, bytes in all. */
static const struct { uint8_t lo, hi, lo2, hi2, n; } row[] = {
    {0x00, 0x7F, 0, 0, 1},       {0xC2, 0xDF, 0x80, 0xBF, 2}, {0xE0, 0xE0, 0xA0, 0xBF, 3},
    {0xE1, 0xEC, 0x80, 0xBF, 3}, {0xED, 0xED, 0x80, 0x9F, 3}, {0xEE, 0xEF, 0x80, 0xBF, 3},
    {0xF0, 0xF0, 0x90, 0xBF, 4}, {0xF1, 0xF3, 0x80, 0xBF, 4}, {0xF4, 0xF4, 0x80, 0x8F, 4},
};

/* Bytes of the character at p, or 0 and in *bad the bytes of the longest beginning of one (at least
 * 1);
 * *open: it goes to the end. */
static size_t expected(const uint8_t *p, size_t n, size_t *bad, bool *open)
{
    *bad = 1;
    *open = false;
    for (size_t r = 0; r < sizeof row / sizeof *row; r++) {
        if (p[0] < row[r].lo || p[0] > row[r].hi)
            continue;
        for (size_t i = 1; i < row[r].n; i++) {
            *bad = i;
            if (i == n) {
                *open = true;
                return 0;
            }
            uint8_t lo = i == 1 ? row[r].lo2 : 0x80, hi = i == 1 ? row[r].hi2 : 0xBF;
            if (p[i] < lo || p[i] > hi)
                return 0;
        }
        return row[r].n;
    }
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static struct buf out;
    bool valid = true;
    char *s = fuzz_tail(data, n);
    buf_clear(&out);
    for (size_t i = 0; i < n;) {
        uint32_t cp = 0, same;
        size_t bad;
        bool open, says = false;
        size_t want = expected(data + i, n - i, &bad, &open), k = utf8_char(s + i, n - i, &cp);
        CHECK(k == want);
        if (k) {
            CHECK(utf8_len(s + i) == k && utf8_at(s + i) == cp);
            size_t from = out.n;
            buf_utf8(&out, cp);
            CHECK(out.n - from == k && memcmp(out.p + from, s + i, k) == 0);
        } else {
            valid = false;
            k = utf8_invalid(s + i, n - i, &says);
            CHECK(k == bad && says == open);
        }
        CHECK(utf8_decode(s + i, n - i, &same) == k && same == (want ? cp : 0xFFFD));
        i += k;
    }
    CHECK(utf8_check(s, n) == valid);
    return 0;
}
