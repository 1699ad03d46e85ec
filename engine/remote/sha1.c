/* sha1.c - see sha1.h. */
#include "engine/remote/sha1.h"

static uint32_t turn(uint32_t x, int n)
{
    return x << n | x >> (32 - n);
}

static void sha1_block(struct sha1 *s)
{
    uint32_t w[80], v[5];
    for (size_t i = 0; i < 16; i++)
        w[i] = (uint32_t)s->block[4 * i] << 24 | (uint32_t)s->block[4 * i + 1] << 16 |
               (uint32_t)s->block[4 * i + 2] << 8 | s->block[4 * i + 3];
    for (int i = 16; i < 80; i++)
        w[i] = turn(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
    memcpy(v, s->h, sizeof v);
    for (int i = 0; i < 80; i++) {
        static const uint32_t k[] = {0x5A827999, 0x6ED9EBA1, 0x8F1BBCDC, 0xCA62C1D6};
        uint32_t f = i < 20   ? (v[1] & v[2]) | (~v[1] & v[3])
                     : i < 40 ? v[1] ^ v[2] ^ v[3]
                     : i < 60 ? (v[1] & v[2]) | (v[1] & v[3]) | (v[2] & v[3])
                              : v[1] ^ v[2] ^ v[3];
        uint32_t t = turn(v[0], 5) + f + v[4] + k[i / 20] + w[i];
        v[4] = v[3];
        v[3] = v[2];
        v[2] = turn(v[1], 30);
        v[1] = v[0];
        v[0] = t;
    }
    for (int i = 0; i < 5; i++)
        s->h[i] += v[i];
    s->used = 0;
}

void sha1_add(struct sha1 *s, const void *p, size_t n)
{
    const uint8_t *b = p;
    s->n += n;
    for (size_t i = 0; i < n; i++) {
        s->block[s->used++] = b[i];
        if (s->used == 64)
            sha1_block(s);
    }
}

void sha1_end_hex(struct sha1 *s, char out[41])
{
    uint64_t bits = s->n * 8;
    sha1_add(s, "\x80", 1);
    while (s->used != 56)
        sha1_add(s, "", 1);
    uint8_t all[20], length[8];
    for (int i = 0; i < 8; i++)
        length[i] = (uint8_t)(bits >> (56 - 8 * i));
    sha1_add(s, length, 8);
    for (int i = 0; i < 20; i++)
        all[i] = (uint8_t)(s->h[i / 4] >> (24 - 8 * (i % 4)));
    hex_digits(out, all, 20);
    out[40] = '\0';
}
