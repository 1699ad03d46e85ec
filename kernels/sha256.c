/* sha256.c - SHA-256 (FIPS 180-4) in plain C and with the instructions of x86 processors; and
 * CRC-32.
 */
#include "kernels/base.h"

#include <stdatomic.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

static const uint32_t sha_k[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t rotr(uint32_t x, int n)
{
    return (x >> n) | (x << (32 - n));
}

/* A round. The standard moves each of eight words by one place in every round; here the words stay,
 * and their names move: word k of the standard is v[(k - turn) & 7]. */
static inline void sha_round(uint32_t v[8], int turn, uint32_t kw)
{
    uint32_t a = v[-turn & 7], b = v[(1 - turn) & 7], c = v[(2 - turn) & 7];
    uint32_t e = v[(4 - turn) & 7], f = v[(5 - turn) & 7], g = v[(6 - turn) & 7];
    uint32_t t1 = v[(7 - turn) & 7] + (rotr(e, 6) ^ rotr(e, 11) ^ rotr(e, 25)) +
                  (g ^ (e & (f ^ g))) + kw;
    v[(3 - turn) & 7] += t1;
    v[(7 - turn) & 7] = t1 + (rotr(a, 2) ^ rotr(a, 13) ^ rotr(a, 22)) + ((a & b) | (c & (a | b)));
}

static void block_c(uint32_t h[8], const uint8_t *p)
{
    uint32_t w[64], v[8];
    for (size_t i = 0; i < 16; i++)
        w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 |
               (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t s0 = rotr(w[i - 15], 7) ^ rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
        uint32_t s1 = rotr(w[i - 2], 17) ^ rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
        w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    memcpy(v, h, sizeof v);
    /* eight rounds, after which each word is in its place again */
    for (int i = 0; i < 64; i += 8) {
        sha_round(v, 0, sha_k[i] + w[i]);
        sha_round(v, 1, sha_k[i + 1] + w[i + 1]);
        sha_round(v, 2, sha_k[i + 2] + w[i + 2]);
        sha_round(v, 3, sha_k[i + 3] + w[i + 3]);
        sha_round(v, 4, sha_k[i + 4] + w[i + 4]);
        sha_round(v, 5, sha_k[i + 5] + w[i + 5]);
        sha_round(v, 6, sha_k[i + 6] + w[i + 6]);
        sha_round(v, 7, sha_k[i + 7] + w[i + 7]);
    }
    for (int i = 0; i < 8; i++)
        h[i] += v[i];
}

void sha256_blocks_c(uint32_t h[8], const uint8_t *p, size_t blocks)
{
    for (; blocks; blocks--, p += 64)
        block_c(h, p);
}

#if defined(__x86_64__)
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* An instruction does two rounds. It takes the state as the words a b e f and c d g h, the first of
 * them in the highest lane. */
__attribute__((target("sha,ssse3,sse4.1"))) static void
blocks_x86(uint32_t h[8], const uint8_t *p, size_t blocks)
{
    const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    __m128i *state = (__m128i *)(void *)h;
    __m128i cdab = _mm_shuffle_epi32(_mm_loadu_si128(state), 0xB1);
    __m128i efgh = _mm_shuffle_epi32(_mm_loadu_si128(state + 1), 0x1B);
    __m128i abef = _mm_alignr_epi8(cdab, efgh, 8), cdgh = _mm_blend_epi16(efgh, cdab, 0xF0);
    for (; blocks; blocks--, p += 64) {
        const __m128i abef_before = abef, cdgh_before = cdgh;
        __m128i w[4]; /* words 4 i to 4 i + 15 of the schedule, w[i % 4] first */
        UNROLL
        for (int i = 0; i < 4; i++)
            w[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(const void *)p + i),
                                    big_endian);
        UNROLL
        for (int i = 0; i < 16; i++) { /* four rounds */
            const __m128i k =
                _mm_loadu_si128((const __m128i *)(const void *)(sha_k + (ptrdiff_t)4 * i));
            const __m128i kw = _mm_add_epi32(w[i % 4], k), last = w[(i + 3) % 4];
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, kw);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(kw, 0x0E));
            if (i < 12) {
                __m128i sum = _mm_add_epi32(_mm_sha256msg1_epu32(w[i % 4], w[(i + 1) % 4]),
                                            _mm_alignr_epi8(last, w[(i + 2) % 4], 4));
                w[i % 4] = _mm_sha256msg2_epu32(sum, last);
            }
        }
        abef = _mm_add_epi32(abef, abef_before);
        cdgh = _mm_add_epi32(cdgh, cdgh_before);
    }
    __m128i feba = _mm_shuffle_epi32(abef, 0x1B), dchg = _mm_shuffle_epi32(cdgh, 0xB1);
    _mm_storeu_si128(state, _mm_blend_epi16(feba, dchg, 0xF0));
    _mm_storeu_si128(state + 1, _mm_alignr_epi8(dchg, feba, 8));
}

/* Whether the processor has SHA, SSSE3 and SSE4.1. */
static bool has_instructions(void)
{
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_SHA) &&
           __get_cpuid(1, &a, &b, &c, &d) && (c & bit_SSSE3) && (c & bit_SSE4_1);
}
#else
static sha256_blocks_fn *const blocks_x86 = NULL;

static bool has_instructions(void)
{
    return false;
}
#endif

sha256_blocks_fn *sha256_blocks_cpu(void)
{
    static atomic_int known; /* 1: no, 2: yes */
    int has = atomic_load_explicit(&known, memory_order_relaxed);
    if (!has) {
        has = 1 + has_instructions();
        atomic_store_explicit(&known, has, memory_order_relaxed);
    }
    return has == 2 ? blocks_x86 : NULL;
}

static void add_blocks(struct sha256 *s, const uint8_t *p, size_t blocks)
{
    sha256_blocks_fn *own = sha256_blocks_cpu();
    (own ? own : sha256_blocks_c)(s->h, p, blocks);
}

void sha256_init(struct sha256 *s)
{
    static const uint32_t h0[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                   0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memcpy(s->h, h0, sizeof h0);
    s->n = 0;
}

void sha256_add(struct sha256 *s, const void *p, size_t n)
{
    const uint8_t *b = p;
    while (n) {
        size_t at = s->n % 64, take = 64 - at < n ? 64 - at : n;
        if (at == 0 && take == 64) {
            take = n - n % 64;
            add_blocks(s, b, take / 64);
        } else {
            memcpy(s->block + at, b, take);
            if (at + take == 64)
                add_blocks(s, s->block, 1);
        }
        s->n += take;
        b += take;
        n -= take;
    }
}

void sha256_end(struct sha256 *s, uint8_t out[32])
{
    uint64_t bits = s->n * 8;
    static const uint8_t pad[64] = {0x80};
    uint8_t len[8];
    for (int i = 0; i < 8; i++)
        len[i] = (uint8_t)(bits >> (56 - 8 * i));
    size_t at = s->n % 64;
    sha256_add(s, pad, at < 56 ? 56 - at : 120 - at);
    sha256_add(s, len, 8);
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < 4; j++)
            out[4 * i + j] = (uint8_t)(s->h[i] >> (24 - 8 * j));
}

void sha256_end_hex(struct sha256 *s, char out[65])
{
    uint8_t sum[32];
    sha256_end(s, sum);
    hex_digits(out, sum, sizeof sum);
    out[64] = 0;
}

void sha256_hex(const void *p, size_t n, char out[65])
{
    struct sha256 s;
    sha256_init(&s);
    sha256_add(&s, p, n);
    sha256_end_hex(&s, out);
}

uint32_t crc32_of(const void *p, size_t n)
{
    /* what four bits that leave the register add to it */
    static const uint32_t table[16] = {
        0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190, 0x6b6b51f4, 0x4db26158,
        0x5005713c, 0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c, 0x9b64c2b0, 0x86d3d2d4,
        0xa00ae278, 0xbdbdf21c,
    };
    uint32_t c = UINT32_MAX;
    for (const uint8_t *b = p, *end = b + n; b < end; b++) {
        c ^= *b;
        c = table[c & 15] ^ c >> 4;
        c = table[c & 15] ^ c >> 4;
    }
    return ~c;
}
