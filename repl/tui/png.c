/* png.c - see png.h. The compressed data are one block of deflate (RFC 1951) with its fixed codes.
 */
#include "repl/tui/png.h"

enum { MATCH_MIN = 3, MATCH_MAX = 258, WINDOW = 32768, ADLER = 65521 };

static void put_bits(struct png *p, uint32_t bits, int n)
{
    p->bits |= (uint64_t)bits << p->n_bits;
    for (p->n_bits += n; p->n_bits >= 8; p->n_bits -= 8, p->bits >>= 8)
        buf_char(&p->data, (char)p->bits);
}

/* A code of Huffman's, whose first bit is its highest. */
static void put_code(struct png *p, uint32_t code, int n)
{
    while (n-- > 0)
        put_bits(p, code >> n & 1, 1);
}

/* A literal byte, 256 for the end, or the code of a length. */
static void put_symbol(struct png *p, uint32_t v)
{
    if (v < 144)
        put_code(p, 0x30 + v, 8);
    else if (v < 256)
        put_code(p, 0x190 + v - 144, 9);
    else if (v < 280)
        put_code(p, v - 256, 7);
    else
        put_code(p, 0xC0 + v - 280, 8);
}

static int top_bit(uint32_t v) /* v > 0 */
{
    return 31 - __builtin_clz(v);
}

/* "The `length` bytes that stand `distance` before." */
static void put_match(struct png *p, uint32_t length, uint32_t distance)
{
    uint32_t l = length - MATCH_MIN, d = distance - 1;
    int more = length == MATCH_MAX || l < 8 ? 0 : top_bit(l) - 2;
    put_symbol(p, length == MATCH_MAX ? 285 : 257 + 4 * (uint32_t)more + (l >> more));
    put_bits(p, l & ((1u << more) - 1), more);
    more = d < 4 ? 0 : top_bit(d) - 1;
    put_code(p, 2 * (uint32_t)more + (d >> more), 5);
    put_bits(p, d & ((1u << more) - 1), more);
}

void png_begin(struct png *p, int w)
{
    *p = (struct png){.w = w, .a = 1};
    buf_add(&p->data, "\x78\x01", 2); /* zlib's header (RFC 1950): deflate, a window of 32 KB */
    put_bits(p, 1, 1);                /* the last block, */
    put_bits(p, 1, 2);                /* with fixed codes */
}

uint8_t png_color(struct png *p, uint32_t rgb)
{
    int i = 0;
    while (i < p->n_color && p->color[i] != rgb)
        i++;
    if (i == p->n_color && i < PNG_COLORS)
        p->color[p->n_color++] = rgb;
    return (uint8_t)min_int(i, PNG_COLORS - 1);
}

static size_t match(const uint8_t *row, size_t at, size_t distance, size_t n)
{
    size_t m = 0;
    if (distance > at || distance > WINDOW)
        return 0;
    while (m < MATCH_MAX && at + m < n && row[at + m] == row[at + m - distance])
        m++;
    return m;
}

void png_rows(struct png *p, const uint8_t *row, int n)
{
    size_t line = 1 + (size_t)p->w, all = line * (size_t)n;
    for (size_t i = 0; i < all; i++) {
        p->a = (p->a + row[i]) % ADLER;
        p->b = (p->b + p->a) % ADLER;
    }
    for (size_t i = 0; i < all;) {
        size_t run = match(row, i, 1, all), above = match(row, i, line, all);
        bool far = above > run;
        size_t m = far ? above : run;
        if (m >= MATCH_MIN)
            put_match(p, (uint32_t)m, far ? (uint32_t)line : 1);
        else
            put_symbol(p, row[i]);
        i += m >= MATCH_MIN ? m : 1;
    }
    p->h += n;
}

static void put32(struct buf *out, uint32_t v)
{
    for (int shift = 24; shift >= 0; shift -= 8)
        buf_char(out, (char)(v >> shift));
}

/* A chunk: its length, name, data, and the CRC-32 of name and data. */
static void put_chunk(struct buf *out, const char *name, const void *data, size_t n)
{
    put32(out, (uint32_t)n);
    size_t from = out->n;
    buf_add(out, name, 4);
    buf_add(out, data, n);
    put32(out, crc32_of(out->p + from, out->n - from));
}

void png_end(struct png *p, struct buf *out)
{
    FREED(buf_free) struct buf head = {0}, palette = {0};
    put_symbol(p, 256);
    put_bits(p, 0, (8 - p->n_bits) % 8);
    put32(&p->data, p->b << 16 | p->a);
    put32(&head, (uint32_t)p->w);
    put32(&head, (uint32_t)p->h);
    buf_add(&head, "\x08\x03\0\0\0", 5); /* 8 bits, a palette, the usual compression and filters */
    for (int i = 0; i < p->n_color; i++)
        for (int shift = 16; shift >= 0; shift -= 8)
            buf_char(&palette, (char)(p->color[i] >> shift));
    buf_add(out, "\x89PNG\r\n\x1a\n", 8);
    put_chunk(out, "IHDR", head.p, head.n);
    put_chunk(out, "PLTE", palette.p, palette.n);
    put_chunk(out, "IDAT", p->data.p, p->data.n);
    put_chunk(out, "IEND", "", 0);
    buf_free(&p->data);
}
