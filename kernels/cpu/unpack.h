/* unpack.h - packed weights (kernels/packed.h) as float32 numbers in the order of products.
 *
 * Included by math.h. 32 elements are a group: 16 even and 16 odd ones, each rounded to bf16, the
 * same bits as packed_bf16() has. Rows are unpacked in chunks of PACKED_BLOCK elements: one block
 * of a K type, or up to eight of 32 elements.
 */
#include "kernels/cpu/vec.h"

/* A chunk of up to eight groups, into (groups, 32) floats. */
typedef void unpack_fn(enum dtype t, const uint8_t *b, int groups, float *dst);
/* multiply() of 1 to DOT_ROWS input rows. */
enum { DOT_ROWS = CPU_ISA == 2 ? 4 : 2 };
typedef void dot_fn(const struct cpu_mat *w, const float *const *x, int rows, int out, int n,
                    float *tile);

static void unpack_any(enum dtype t, const uint8_t *b, int groups, float *dst)
{
    uint16_t h[PACKED_BLOCK];
    packed_bf16(t, b, (size_t)groups * 32, h);
    for (int g = 0; g < groups; g++) {
        v16 even, odd;
        v_split_bf16(h + 32 * g, &even, &odd);
        v_store(dst + 32 * g, even);
        v_store(dst + 32 * g + 16, odd);
    }
}

#if CPU_ISA > 0

/* As _mm_cvtph_ps(), reading memory: compilers load a register first, which takes longer. */
V_FN __m128 four_halves(const uint8_t *p)
{
    struct __attribute__((packed)) eight_bytes {
        uint64_t v;
    };
    __m128 f;
    __asm__("vcvtph2ps %1, %0" : "=x"(f) : "m"(*(const struct eight_bytes *)p));
    return f;
}

/* ---- codes: sixteen integers, in the low bits of each lane ----------------------------------- */
#if CPU_ISA == 2

typedef __m512i vi;

V_FN vi vi_srl(vi v, int n) { return _mm512_srli_epi32(v, (unsigned)n); }
V_FN vi vi_sll(vi v, int n) { return _mm512_slli_epi32(v, (unsigned)n); }
V_FN vi vi_and(vi v, int mask) { return _mm512_and_si512(v, _mm512_set1_epi32(mask)); }
V_FN vi vi_sub(vi v, int n) { return _mm512_sub_epi32(v, _mm512_set1_epi32(n)); }
/* a where the mask has ones, else b */
V_FN vi vi_select(int mask, vi a, vi b)
{
    return _mm512_ternarylogic_epi32(_mm512_set1_epi32(mask), a, b, 0xCA);
}
V_FN v16 vi_float(vi v) { return _mm512_cvtepi32_ps(v); }
V_FN v16 vi_bits(vi v) { return _mm512_castsi512_ps(v); } /* the floats with these bits */
/* x, but negative where the highest bit of v is set: 0 becomes -0. */
V_FN v16 v_with_sign(v16 x, vi v)
{
    return vi_bits(vi_select(INT32_MAX, _mm512_castps_si512(x), v));
}
/* The masked bits of each lane minus bias: as the mantissa of a number from 2^23 on. */
V_FN v16 vi_masked_float(vi v, int mask, int bias)
{
    vi m = _mm512_set1_epi32(mask), exponent = _mm512_set1_epi32(0x4b000000);
    return v_sub(_mm512_castsi512_ps(_mm512_ternarylogic_epi32(v, m, exponent, 0xEA)),
                 v_set((float)((1 << 23) + bias)));
}
/* The same of the second byte of each lane: from 2^15 on. */
V_FN v16 vi_second_float(vi v, int mask, int bias)
{
    vi m = _mm512_set1_epi32(mask << 8), exponent = _mm512_set1_epi32(0x47000000);
    return v_sub(_mm512_castsi512_ps(_mm512_ternarylogic_epi32(v, m, exponent, 0xEA)),
                 v_set((float)((1 << 15) + bias)));
}
/* The low byte of each lane, signed: plus 128, in the same way. */
V_FN v16 vi_even_float(vi v)
{
    vi m = _mm512_set1_epi32(255), number = _mm512_set1_epi32(0x4b000080);
    return v_sub(_mm512_castsi512_ps(_mm512_ternarylogic_epi32(v, m, number, 0x6A)),
                 v_set((1 << 23) + 128));
}
/* The second byte of a lane of vi_signed(). */
V_FN v16 vi_odd_float(vi v) { return vi_float(_mm512_srai_epi32(v, 8)); }
/* 32 bytes: 2 l in the low eight bits of lane l, 2 l + 1 in the next eight; the rest is 0, or for
 * vi_signed() the sign of byte 2 l + 1 */
V_FN vi vi_pairs(const uint8_t *p)
{
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)p));
}
V_FN vi vi_signed(const uint8_t *p)
{
    return _mm512_cvtepi16_epi32(_mm256_loadu_si256((const void *)p));
}
/* 16 bytes whose low four bits are elements 0-15, and the high ones 16-31: element 2 l in the low
 * four bits of lane l, 2 l + 1 in bits 8-11; other bits are undefined */
V_FN vi vi_nibbles(const uint8_t *p)
{
    __m512i word = _mm512_set_epi32(3, 3, 2, 2, 1, 1, 0, 0, 3, 3, 2, 2, 1, 1, 0, 0);
    __m512i by = _mm512_set_epi32(20, 4, 20, 4, 20, 4, 20, 4, 16, 0, 16, 0, 16, 0, 16, 0);
    __m512i b = _mm512_castsi128_si512(_mm_loadu_si128((const void *)p));
    return _mm512_srlv_epi32(_mm512_permutexvar_epi32(word, b), by);
}
/* Bit 2 l + odd of the 32 bits as bit 4 of lane l; other bits are undefined. */
V_FN vi vi_fifth(uint32_t bits, int odd)
{
    __m512i by = _mm512_set_epi32(26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0, -2, -4);
    return _mm512_rorv_epi32(_mm512_set1_epi32((int)bits),
                             _mm512_add_epi32(by, _mm512_set1_epi32(odd)));
}
/* x *p, x + *p, z - x *p, where *p is an operand in memory. Compilers load a number that is used
 * twice into a vector first, which takes an operation of its own on some processors (Zen 4). */
V_FN v16 v_mul_by(v16 x, const float *p)
{
    __asm__("vmulps %2%{1to16%}, %1, %0" : "=v"(x) : "v"(x), "m"(*p));
    return x;
}
V_FN v16 v_add_to(v16 x, const float *p)
{
    __asm__("vaddps %2%{1to16%}, %1, %0" : "=v"(x) : "v"(x), "m"(*p));
    return x;
}
V_FN v16 v_fnma_by(v16 x, const float *p, v16 z)
{
    __asm__("vfnmadd231ps %2%{1to16%}, %1, %0" : "+v"(z) : "v"(x), "m"(*p));
    return z;
}
/* the f16 at p in all lanes; reads eight bytes */
V_FN v16 v_half(const uint8_t *p) { return _mm512_broadcastss_ps(four_halves(p)); }
V_FN v16 v_halves(v16 a, v16 b) { return _mm512_mask_mov_ps(a, 0xff00, b); } /* lanes 0-7 of a */
/* the f16 at b in lanes 0-7, minus the one after it in the others; reads eight bytes */
V_FN v16 v_scale_and_minus(const uint8_t *b)
{
    vi at = _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
    v16 v = _mm512_permutexvar_ps(at, _mm512_castps128_ps512(four_halves(b)));
    return _mm512_mask_xor_ps(v, 0xff00, v, v_set(-0.f));
}
/* p[i] in lanes 0-7, p[i + 1] in the others, i < 15; reads sixteen floats */
V_FN v16 v_two_of(const float *p, const int i)
{
    vi at = _mm512_set_epi32(i + 1, i + 1, i + 1, i + 1, i + 1, i + 1, i + 1, i + 1, i, i, i, i, i,
                             i, i, i);
    return _mm512_permutexvar_ps(at, v_load(p));
}
V_FN v16 v_bytes(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)p)));
}
V_FN v16 v_signed_bytes(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)p)));
}

#else

typedef struct {
    __m256i a, b;
} vi;

V_FN vi vi_srl(vi v, int n) { return (vi){_mm256_srli_epi32(v.a, n), _mm256_srli_epi32(v.b, n)}; }
V_FN vi vi_sll(vi v, int n) { return (vi){_mm256_slli_epi32(v.a, n), _mm256_slli_epi32(v.b, n)}; }
V_FN vi vi_and(vi v, int mask)
{
    __m256i m = _mm256_set1_epi32(mask);
    return (vi){_mm256_and_si256(v.a, m), _mm256_and_si256(v.b, m)};
}
V_FN vi vi_sub(vi v, int n)
{
    __m256i m = _mm256_set1_epi32(n);
    return (vi){_mm256_sub_epi32(v.a, m), _mm256_sub_epi32(v.b, m)};
}
V_FN vi vi_select(int mask, vi a, vi b)
{
    __m256i m = _mm256_set1_epi32(mask);
    return (vi){_mm256_or_si256(_mm256_and_si256(m, a.a), _mm256_andnot_si256(m, b.a)),
                _mm256_or_si256(_mm256_and_si256(m, a.b), _mm256_andnot_si256(m, b.b))};
}
V_FN v16 vi_float(vi v) { return (v16){_mm256_cvtepi32_ps(v.a), _mm256_cvtepi32_ps(v.b)}; }
V_FN v16 vi_bits(vi v) { return (v16){_mm256_castsi256_ps(v.a), _mm256_castsi256_ps(v.b)}; }
V_FN v16 v_with_sign(v16 x, vi v)
{
    const __m256 sign = _mm256_set1_ps(-0.f);
    const v16 s = vi_bits(v);
    return (v16){_mm256_or_ps(_mm256_andnot_ps(sign, x.a), _mm256_and_ps(s.a, sign)),
                 _mm256_or_ps(_mm256_andnot_ps(sign, x.b), _mm256_and_ps(s.b, sign))};
}
V_FN vi vi_pairs(const uint8_t *p)
{
    const __m128i *v = (const void *)p;
    return (vi){_mm256_cvtepu16_epi32(_mm_loadu_si128(v)),
                _mm256_cvtepu16_epi32(_mm_loadu_si128(v + 1))};
}
V_FN vi vi_signed(const uint8_t *p)
{
    const __m128i *v = (const void *)p;
    return (vi){_mm256_cvtepi16_epi32(_mm_loadu_si128(v)),
                _mm256_cvtepi16_epi32(_mm_loadu_si128(v + 1))};
}
V_FN v16 vi_masked_float(vi v, int mask, int bias)
{
    return vi_float(vi_sub(vi_and(v, mask), bias));
}
V_FN v16 vi_second_float(vi v, int mask, int bias)
{
    v = vi_and(v, mask << 8);
    const __m256i exponent = _mm256_set1_epi32(0x47000000);
    return v_sub(vi_bits((vi){_mm256_or_si256(v.a, exponent), _mm256_or_si256(v.b, exponent)}),
                 v_set((float)((1 << 15) + bias)));
}
V_FN v16 vi_even_float(vi v)
{
    v = vi_sll(v, 24);
    return vi_float((vi){_mm256_srai_epi32(v.a, 24), _mm256_srai_epi32(v.b, 24)});
}
V_FN v16 vi_odd_float(vi v)
{
    return vi_float((vi){_mm256_srai_epi32(v.a, 8), _mm256_srai_epi32(v.b, 8)});
}
V_FN vi vi_nibbles(const uint8_t *p)
{
    __m256i v = _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p));
    return (vi){v, _mm256_srli_epi32(v, 4)};
}
V_FN vi vi_fifth(uint32_t bits, int odd)
{
    __m256i h = _mm256_set1_epi32((int)(bits >> odd));
    __m256i a = _mm256_set_epi32(1 << 14, 1 << 12, 1 << 10, 1 << 8, 1 << 6, 1 << 4, 1 << 2, 1);
    __m256i b = _mm256_slli_epi32(a, 16);
    return (vi){_mm256_cmpeq_epi32(_mm256_and_si256(h, a), a),
                _mm256_cmpeq_epi32(_mm256_and_si256(h, b), b)};
}
V_FN v16 v_mul_by(v16 x, const float *p) { return v_mul(x, v_set(*p)); }
V_FN v16 v_half(const uint8_t *p)
{
    __m256 f = _mm256_broadcastss_ps(four_halves(p));
    return (v16){f, f};
}
V_FN v16 v_halves(v16 a, v16 b) { return (v16){a.a, b.b}; }
V_FN v16 v_scale_and_minus(const uint8_t *b)
{
    return v_halves(v_half(b), v_sub(v_set(-0.f), v_half(b + 2)));
}
V_FN v16 v_two_of(const float *p, const int i) { return v_halves(v_set(p[i]), v_set(p[i + 1])); }
V_FN v16 v_bytes(const uint8_t *p)
{
    return (v16){_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)p))),
                 _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)(p + 8))))};
}
V_FN v16 v_signed_bytes(const uint8_t *p)
{
    return (v16){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)p))),
                 _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)(p + 8))))};
}
#endif

/* ---- values ---------------------------------------------------------------------------------- */

/* x rounded to bf16, nearest even. Veltkamp's splitting: high = x (2^16 + 1) rounded holds the
 * leading eight bits of x behind the 24 bits of x 2^16, so that its rounding is the one that is
 * wanted, ties included, and both differences are exact. For |x| < 2^111 that is 0 or not below
 * 2^-126: values of f16 scales are multiples of 2^-24. (test_packed.c compares all
 * products of a scale and a byte.) */
V_FN v16 v_near_bf16(v16 x)
{
    v16 high = v_mul(x, v_set(65537));
    return v_sub(high, v_sub(high, x));
}

static const float levels_of_halves[16] = {0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7};
static const float levels[32] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31};

/* (code - bias) s + m for the low `bits` bits of both bytes of each lane. m is -0 where the format
 * has no minimum: -0 + y is y, signed zeros included. */
V_FN void v_computed(vi pairs, const int bits, const int bias, v16 s, v16 m, v16 *even, v16 *odd)
{
    const int mask = (1 << bits) - 1;
    *even = v_near_bf16(v_fma(vi_masked_float(pairs, mask, bias), s, m));
    *odd = v_near_bf16(v_fma(vi_second_float(pairs, mask, bias), s, m));
}

#if CPU_ISA == 2
/* level *s + *m rounded to bf16 as v_near_bf16() does. m == NULL: no *m; level *s and 65537 level
 * must have at most 24 bits, so that 65537 level times *s is the product that is wanted. */
V_FN v16 v_near_level(v16 level, const float *s, const float *m)
{
    if (m)
        return v_near_bf16(v_add_to(v_mul_by(level, s), m));
    v16 high = v_mul_by(v_mul(level, v_set(65537)), s);
    return v_sub(high, v_fnma_by(level, s, high));
}
#endif

/* The same of codes of 4 or 5 bits, in the low bits of each lane, with one scale; m == NULL: no
 * minimum. The products of codes and scales must be exact. */
V_FN void v_linear(vi even_code, vi odd_code, const int bits, const int bias, const float *s,
                   const float *m, v16 *even, v16 *odd)
{
#if CPU_ISA == 2 /* the values of all codes once for 32 elements */
    const v16 b = v_set((float)bias);
    const v16 low = v_near_level(v_sub(v_load(levels), b), s, m);
    if (bits == 4) {
        *even = _mm512_permutexvar_ps(even_code, low);
        *odd = _mm512_permutexvar_ps(odd_code, low);
    } else {
        const v16 high = v_near_level(v_sub(v_load(levels + 16), b), s, m);
        *even = _mm512_permutex2var_ps(low, even_code, high);
        *odd = _mm512_permutex2var_ps(low, odd_code, high);
    }
#else
    const int mask = (1 << bits) - 1;
    const v16 scale = v_set(*s), add = v_set(m ? *m : -0.f);
    *even = v_near_bf16(v_fma(vi_masked_float(even_code, mask, bias), scale, add));
    *odd = v_near_bf16(v_fma(vi_masked_float(odd_code, mask, bias), scale, add));
#endif
}

/* The same with 2 or 3 bits; s and m may differ between lanes 0-7 and 8-15. */
V_FN void v_short(vi pairs, const int bits, const int bias, v16 s, v16 m, v16 *even, v16 *odd)
{
#if CPU_ISA == 2 /* the values of all codes, of both halves */
    const v16 value = v_near_bf16(v_fma(v_sub(v_load(levels_of_halves), v_set((float)bias)), s, m));
    const vi half = _mm512_set_epi32(8, 8, 8, 8, 8, 8, 8, 8, 0, 0, 0, 0, 0, 0, 0, 0);
    *even = _mm512_permutexvar_ps(vi_select((1 << bits) - 1, pairs, half), value);
    *odd = _mm512_permutexvar_ps(vi_select((1 << bits) - 1, vi_srl(pairs, 8), half), value);
#else
    v_computed(pairs, bits, bias, s, m, even, odd);
#endif
}

/* level[code] *s for the four low bits of both bytes of each lane; exact: in bf16, too. */
V_FN void v_nonlinear(vi pairs, const int8_t *level, const float *s, const bool exact, v16 *even,
                      v16 *odd)
{
#if CPU_ISA == 2
    v16 table = v_mul_by(v_signed_bytes((const uint8_t *)level), s);
    if (!exact)
        table = v_near_bf16(table);
    *even = _mm512_permutexvar_ps(pairs, table);
    *odd = _mm512_permutexvar_ps(vi_srl(pairs, 8), table);
#else
    __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)level));
    pairs = vi_and(pairs, 0x0f0f);
    pairs = (vi){_mm256_shuffle_epi8(table, pairs.a), _mm256_shuffle_epi8(table, pairs.b)};
    *even = v_mul_by(vi_even_float(pairs), s);
    *odd = v_mul_by(vi_even_float(vi_srl(pairs, 8)), s);
    if (!exact) {
        *even = v_near_bf16(*even);
        *odd = v_near_bf16(*odd);
    }
#endif
}

/* A block of E4M3. Scales that are zero or of unusual size take unpack_any(). */
V_FN void v_split_e4m3(const uint8_t *b, v16 *even, v16 *odd)
{
    const uint16_t scale = (uint16_t)(b[0] | b[1] << 8);
    const unsigned exponent = scale >> 7 & 255; /* biased */
    if (exponent < 127 - 100 || exponent > 127 + 6) {
        float y[32];
        unpack_any(DT_E4M3, b, 1, y);
        *even = v_load(y), *odd = v_load(y + 16);
        return;
    }
    const v16 d = v_set(bf16_to_f32(scale) * 0x1p8f);
    v_codes_e4m3(b + 2, even, odd);
    *even = v_near_bf16(v_mul(*even, d));
    *odd = v_near_bf16(v_mul(*odd, d));
}

/* A block of E2M1. Numbers of unusual size take unpack_any(). */
V_FN void v_split_e2m1(const uint8_t *b, v16 *even, v16 *odd)
{
    float factor, scale[2];
    memcpy(&factor, b, sizeof factor);
    if (!(fabsf(factor) > 0x1p-90f && fabsf(factor) < 0x1p90f)) {
        float y[32];
        unpack_any(DT_E2M1, b, 1, y);
        *even = v_load(y), *odd = v_load(y + 16);
        return;
    }
    for (int k = 0; k < 2; k++) { /* the code's bits as a float32 with another exponent; halved, as
                                     packed_e2m1 has codes doubled */
        const uint32_t bits = (uint32_t)(b[4 + k] & 0x80) << 24 | (uint32_t)(b[4 + k] & 0x7f) << 20;
        memcpy(&scale[k], &bits, sizeof bits);
        scale[k] *= 0x1p119f;
    }
    const v16 s = v_halves(v_set(scale[0]), v_set(scale[1])), f = v_set(factor);
    static const float one = 1;
    const vi q = vi_nibbles(b + 6);
    v_nonlinear(q, packed_e2m1, &one, true, even, odd);
    *even = v_with_sign(*even, vi_sll(q, 28)), *odd = v_with_sign(*odd, vi_sll(q, 20));
    *even = v_near_bf16(v_mul(v_mul(*even, s), f));
    *odd = v_near_bf16(v_mul(v_mul(*odd, s), f));
}

/* ---- the formats ----------------------------------------------------------------------------- */

/* Scales of a chunk, as floats. Types with blocks of 32: s[2 g] of group g, and s[2 g + 1], the
 * number that Q4_1 and Q5_1 add. Q4_K, Q5_K: s[k] of 32 elements, and minus the minimum, s[8 + k];
 * IQ4_XS: s[k]; Q2_K, Q3_K, Q6_K: s[i] of 16 elements; Q2_K: minus their minimum, m[i]. */
struct block_scales {
    _Alignas(64) float s[16], m[16];
};

V_FN uint32_t word_at(const uint8_t *p)
{
    uint32_t u;
    memcpy(&u, p, 4);
    return u;
}

/* v_half() where fewer than eight bytes follow. */
V_FN v16 v_last_half(const uint8_t *p)
{
    return v_set(_mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(p[0] | p[1] << 8))));
}

/* Bytes of a block of 32 elements with scales that small_scale() reads; 0: another type. */
V_FN int small_block(const enum dtype t)
{
    return t == DT_Q8_0                     ? 34
           : t == DT_Q4_0 || t == DT_IQ4_NL ? 18
           : t == DT_Q4_1                   ? 20
           : t == DT_Q5_0                   ? 22
           : t == DT_Q5_1                   ? 24
           : t == DT_MXFP4                  ? 17
                                            : 0;
}

/* The block's scale, halved for MXFP4, and the f16 after it. */
V_FN void small_scale(const enum dtype t, const uint8_t *b, float *to)
{
    if (t == DT_MXFP4) {
        const uint32_t half = b[0] < 2 ? 0x200000u << b[0] : (uint32_t)(b[0] - 1) << 23;
        memcpy(to, &half, sizeof half);
    } else {
        _mm_storel_pi((__m64 *)to, four_halves(b));
    }
}

V_FN void v_scales(const enum dtype t, const uint8_t *b, int groups, struct block_scales *to)
{
    const int size = small_block(t);
    if (size && groups == 8) {
        UNROLL
        for (int g = 0; g < 8; g++)
            small_scale(t, b + g * size, to->s + 2 * g);
    } else if (size) {
        for (int g = 0; g < 8 && g < groups; g++)
            small_scale(t, b + g * size, to->s + 2 * g);
    } else if (t == DT_Q4_K || t == DT_Q5_K) {
        uint32_t x = word_at(b + 4), y = word_at(b + 8), z = word_at(b + 12);
        uint32_t bytes[4] = {x & 0x3f3f3f3f, (z & 0x0f0f0f0f) | (x >> 2 & 0x30303030),
                             y & 0x3f3f3f3f, (z >> 4 & 0x0f0f0f0f) | (y >> 2 & 0x30303030)};
        v_store(to->s, v_mul(v_bytes((const uint8_t *)bytes), v_scale_and_minus(b)));
    } else if (t == DT_Q2_K) {
        __m128i low = _mm_set1_epi8(15), both = _mm_loadu_si128((const void *)b), minus;
        minus = _mm_and_si128(_mm_srli_epi16(both, 4), low);
        both = _mm_and_si128(both, low);
        v_store(to->s, v_mul(v_bytes((const uint8_t *)&both), v_last_half(b + 80)));
        v_store(to->m,
                v_mul(v_bytes((const uint8_t *)&minus), v_sub(v_set(-0.f), v_last_half(b + 82))));
    } else if (t == DT_Q3_K) {
        uint32_t x = word_at(b + 96), y = word_at(b + 100), z = word_at(b + 104);
        uint32_t bytes[4] = {(x & 0x0f0f0f0f) | (z << 4 & 0x30303030),
                             (y & 0x0f0f0f0f) | (z << 2 & 0x30303030),
                             (x >> 4 & 0x0f0f0f0f) | (z & 0x30303030),
                             (y >> 4 & 0x0f0f0f0f) | (z >> 2 & 0x30303030)};
        v_store(to->s,
                v_mul(v_sub(v_bytes((const uint8_t *)bytes), v_set(32)), v_last_half(b + 108)));
    } else if (t == DT_Q6_K) {
        v_store(to->s, v_mul(v_signed_bytes(b + 192), v_last_half(b + 208)));
    } else if (t == DT_IQ4_XS) {
        uint8_t bytes[16] = {0};
        uint32_t high = b[2] | (uint32_t)b[3] << 8;
        for (int k = 0; k < 8; k++)
            bytes[k] = (uint8_t)((b[4 + k / 2] >> 4 * (k % 2) & 15) | (high >> 2 * k & 3) << 4);
        v16 s = v_sub(v_bytes(bytes), v_set(32));
        v_store(to->s, v_mul(s, v_half(b)));
    } else {
        return; /* E4M3, E2M1: scales are read with their codes */
    }
    __asm__("" : "+m"(*to)); /* or compilers keep the scales in a register and permute it */
}

/* Group g of the chunk at b. */
V_FN void v_split_packed(const enum dtype t, const uint8_t *b, const struct block_scales *scales,
                         const int g, v16 *even, v16 *odd)
{
    const v16 none = v_set(-0.f);
    const float *d = scales->s + 2 * g, *add = d + 1; /* of types with blocks of 32 */
    if (t == DT_Q8_0) {
        vi q = vi_signed(b + 34 * g + 2);
        *even = v_near_bf16(v_mul_by(vi_even_float(q), d));
        *odd = v_near_bf16(v_mul_by(vi_odd_float(q), d));
    } else if (t == DT_E4M3) {
        v_split_e4m3(b + 34 * g, even, odd);
    } else if (t == DT_E2M1) {
        v_split_e2m1(b + 22 * g, even, odd);
    } else if (t == DT_Q4_0) {
        vi q = vi_nibbles(b + 18 * g + 2);
        v_linear(q, vi_srl(q, 8), 4, 8, d, NULL, even, odd);
    } else if (t == DT_Q4_1) {
        vi q = vi_nibbles(b + 20 * g + 4);
        v_linear(q, vi_srl(q, 8), 4, 0, d, add, even, odd);
    } else if (t == DT_Q5_0 || t == DT_Q5_1) {
        const uint8_t *p = b + (t == DT_Q5_0 ? 22 : 24) * g, *at = p + (t == DT_Q5_0 ? 2 : 4);
        uint32_t bits = word_at(at);
        vi q = vi_nibbles(at + 4), e = vi_select(16, vi_fifth(bits, 0), q);
        vi o = vi_select(16, vi_fifth(bits, 1), vi_srl(q, 8));
        if (t == DT_Q5_0)
            v_linear(e, o, 5, 16, d, NULL, even, odd);
        else
            v_linear(e, o, 5, 0, d, add, even, odd);
    } else if (t == DT_Q4_K || t == DT_Q5_K) {
        vi q = vi_pairs(b + (t == DT_Q4_K ? 16 : 48) + 32 * (g / 2)), e = g % 2 ? vi_srl(q, 4) : q;
        vi o = vi_srl(q, g % 2 ? 12 : 8);
        if (t == DT_Q5_K) {
            vi high = vi_pairs(b + 16);
            e = vi_select(16, g < 4 ? vi_sll(high, 4 - g) : vi_srl(high, g - 4), e);
            o = vi_select(16, vi_srl(high, 4 + g), o);
        }
        v_linear(e, o, t == DT_Q4_K ? 4 : 5, 0, scales->s + g, scales->s + 8 + g, even, odd);
    } else if (t == DT_Q6_K) {
        const int h = g / 4, j = g % 4;
        vi low = vi_pairs(b + 64 * h + 32 * (j % 2)), high = vi_pairs(b + 128 + 32 * h);
        low = j / 2 ? vi_srl(low, 4) : low;
        high = j < 2 ? vi_sll(high, 4 - 2 * j) : vi_srl(high, 2 * j - 4);
        vi q = vi_select(0x3030, high, low);
        v_computed(q, 6, 32, v_two_of(scales->s, 2 * g), none, even, odd);
    } else if (t == DT_Q2_K || t == DT_Q3_K) {
        vi q = vi_pairs(b + (t == DT_Q2_K ? 16 : 32) + 32 * (g / 4));
        q = vi_srl(q, 2 * (g % 4));
        v16 s = v_two_of(scales->s, 2 * g), m = none;
        if (t == DT_Q2_K) {
            m = v_two_of(scales->m, 2 * g);
        } else {
            vi high = vi_pairs(b);
            q = vi_select(0x0404, g < 2 ? vi_sll(high, 2 - g) : vi_srl(high, g - 2), q);
        }
        v_short(q, t == DT_Q2_K ? 2 : 3, t == DT_Q2_K ? 0 : 4, s, m, even, odd);
    } else if (t == DT_IQ4_NL) {
        v_nonlinear(vi_nibbles(b + 18 * g + 2), packed_iq4, d, false, even, odd);
    } else if (t == DT_IQ4_XS) {
        v_nonlinear(vi_nibbles(b + 8 + 16 * g), packed_iq4, scales->s + g, false, even, odd);
    } else { /* DT_MXFP4 */
        v_nonlinear(vi_nibbles(b + 17 * g + 1), packed_e2m1, d, true, even, odd);
    }
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* The types, and the elements of a block. */
#define EACH_TYPE(X)                                                                               \
    X(Q8_0, 32) X(Q4_0, 32) X(Q4_1, 32) X(Q5_0, 32) X(Q5_1, 32) X(IQ4_NL, 32) X(MXFP4, 32)         \
    X(E4M3, 32) X(E2M1, 32)                                                                        \
    X(Q2_K, 256) X(Q3_K, 256) X(Q4_K, 256) X(Q5_K, 256) X(Q6_K, 256) X(IQ4_XS, 256)

V_FN void unpack_group(const enum dtype t, const uint8_t *b, const struct block_scales *s,
                       const int g, float *dst)
{
    v16 even, odd;
    v_split_packed(t, b, s, g, &even, &odd);
    v_store(dst + 32 * g, even);
    v_store(dst + 32 * g + 16, odd);
}

/* F is called for the groups of a chunk, whose numbers are constants if there are eight, as there
 * always are of a type with blocks of 256. */
#define CHUNK(F, T, elements, b, s, groups, ...)                                                   \
    if (elements == 256 || groups == 8)                                                            \
        F(DT_##T, b, s, 0, __VA_ARGS__), F(DT_##T, b, s, 1, __VA_ARGS__),                          \
            F(DT_##T, b, s, 2, __VA_ARGS__), F(DT_##T, b, s, 3, __VA_ARGS__),                      \
            F(DT_##T, b, s, 4, __VA_ARGS__), F(DT_##T, b, s, 5, __VA_ARGS__),                      \
            F(DT_##T, b, s, 6, __VA_ARGS__), F(DT_##T, b, s, 7, __VA_ARGS__);                      \
    else                                                                                           \
        for (int g = 0; g < groups; g++)                                                           \
            F(DT_##T, b, s, g, __VA_ARGS__)

#define UNPACK(T, elements)                                                                        \
    static void unpack_##T(enum dtype t, const uint8_t *b, int groups, float *dst)                 \
    {                                                                                              \
        struct block_scales s;                                                                     \
        (void)t;                                                                                   \
        v_scales(DT_##T, b, groups, &s);                                                           \
        CHUNK(unpack_group, T, elements, b, &s, groups, dst);                                      \
    }

/* Products of few rows: weights are unpacked in registers and multiplied with R input rows there, O
 * rows of weights at a time, as many as the registers have room for: each input is then loaded once
 * for all of them, and there are more running sums than the latency of an addition needs. */
enum { DOT_OUT = 2, DOT_SUMS = CPU_ISA == 2 ? DOT_OUT * DOT_ROWS : DOT_OUT };
struct dot_sums { /* [row of weights * R + input row] */
    v16 even[DOT_SUMS], odd[DOT_SUMS];
};

V_FN void dot_group(const enum dtype t, const uint8_t *const *b, const struct block_scales *s,
                    const int g, const float *const *x, int at, struct dot_sums *sum, const int O,
                    const int R)
{
    v16 even[DOT_OUT], odd[DOT_OUT];
    UNROLL
    for (int o = 0; o < O; o++) {
        v_split_packed(t, b[o], s + o, g, &even[o], &odd[o]);
        if (R == 1) { /* at once: the registers of AVX2 do not hold the weights of two rows */
            sum->even[o] = v_fma(even[o], v_load(x[0] + at + 32 * g), sum->even[o]);
            sum->odd[o] = v_fma(odd[o], v_load(x[0] + at + 32 * g + 16), sum->odd[o]);
        }
    }
    UNROLL
    for (int r = 0; R > 1 && r < R; r++) {
        const float *in = x[r] + at + 32 * g;
        v16 x_even = v_load(in), x_odd = v_load(in + 16);
        UNROLL
        for (int o = 0; o < O; o++) {
            sum->even[o * R + r] = v_fma(even[o], x_even, sum->even[o * R + r]);
            sum->odd[o * R + r] = v_fma(odd[o], x_odd, sum->odd[o * R + r]);
        }
    }
}

/* The rows of a tile follow one another, and O of them are read at a time: meanwhile the next ones
 * are prefetched as one ascending stream, DOT_AHEAD bytes ahead at least. */
enum { DOT_AHEAD = 2048 };
V_FN void prefetch_bytes(const uint8_t *p, size_t size, bool far)
{
    if (far)
        for (size_t line = 0; line < size; line += 64)
            prefetch(p + line, true);
    else
        for (size_t line = 0; line < size; line += 64)
            prefetch(p + line, false);
}
#define DOT_CHUNK(T, elements)                                                                     \
    V_FN void scales_##T(const uint8_t *const *b, size_t at, int groups, struct block_scales *s,   \
                         const int O)                                                              \
    {                                                                                              \
        for (int o = 0; o < O; o++)                                                                \
            v_scales(DT_##T, b[o] + at, groups, s + o);                                            \
    }                                                                                              \
    V_FN void chunk_##T(const uint8_t *const *b, const struct block_scales *s, int groups,         \
                        const float *const *x, int at, struct dot_sums *sum, const int O,          \
                        const int R)                                                               \
    {                                                                                              \
        CHUNK(dot_group, T, elements, b, s, groups, x, at, sum, O, R);                             \
    }

/* O rows of weights from row `out` on. n: how many exist; if one does, it is read twice. */
#define DOT_OUTS(T, elements)                                                                      \
    V_FN void outs_##T(const struct cpu_mat *w, const float *const *x, int out, int n,             \
                       float *tile, const int O, const int R)                                      \
    {                                                                                              \
        const size_t step = dtype_bytes(DT_##T, PACKED_BLOCK), all = (size_t)O * w->pitch;         \
        struct dot_sums sum;                                                                       \
        struct block_scales s[2][DOT_OUT]; /* of a chunk, and of the next: ready when needed */    \
        const uint8_t *first = w->data + (size_t)out * w->pitch;                                   \
        const uint8_t *b[DOT_OUT] = {first, first + (n > 1 ? w->pitch : 0)};                       \
        const size_t ahead = all > DOT_AHEAD ? all : DOT_AHEAD;                                    \
        const bool far = prefetch_far(w->k, R, ahead);                                             \
        const uint8_t *next = b[0] + ahead;                                                        \
        UNROLL                                                                                     \
        for (int i = 0; i < O * R; i++)                                                            \
            sum.even[i] = sum.odd[i] = v_zero();                                                   \
        int left = w->k / 32, now = 0;                                                             \
        scales_##T(b, 0, left < 8 ? left : 8, s[0], O);                                            \
        for (int at = 0; left > 0; at += PACKED_BLOCK, left -= 8, now = !now) {                    \
            prefetch_bytes(next, (size_t)O * step, far);                                           \
            next += (size_t)O * step;                                                              \
            if (left > 8)                                                                          \
                scales_##T(b, step, left < 16 ? left - 8 : 8, s[!now], O);                         \
            chunk_##T(b, s[now], left < 8 ? left : 8, x, at, &sum, O, R);                          \
            for (int o = 0; o < O; o++)                                                            \
                b[o] += step;                                                                      \
        }                                                                                          \
        UNROLL                                                                                     \
        for (int i = 0; i < O * R; i += 4) {                                                       \
            v16 four[4];                                                                           \
            float y[4];                                                                            \
            UNROLL                                                                                 \
            for (int j = 0; j < 4; j++)                                                            \
                four[j] = i + j < O * R ? v_add(sum.even[i + j], sum.odd[i + j]) : v_zero();       \
            v_sum4(four[0], four[1], four[2], four[3], y);                                         \
            UNROLL                                                                                 \
            for (int j = 0; j < 4; j++)                                                            \
                if (i + j < O * R && (i + j) / R < n)                                              \
                    tile[(i + j) % R * TILE_OUT + (i + j) / R] = y[j];                             \
        }                                                                                          \
    }
#if CPU_ISA == 2
#define DOT_EACH(T)                                                                                \
    if (rows == 1)                                                                                 \
        outs_##T(w, x, out + o, n - o, tile + o, 2, 1);                                            \
    else if (rows == 2)                                                                            \
        outs_##T(w, x, out + o, n - o, tile + o, 2, 2);                                            \
    else if (rows == 3)                                                                            \
        outs_##T(w, x, out + o, n - o, tile + o, 2, 3);                                            \
    else                                                                                           \
        outs_##T(w, x, out + o, n - o, tile + o, 2, 4);
#else
#define DOT_EACH(T)                                                                                \
    if (rows == 1) {                                                                               \
        outs_##T(w, x, out + o, n - o, tile + o, 2, 1);                                            \
    } else {                                                                                       \
        outs_##T(w, x, out + o, 1, tile + o, 1, 2);                                                \
        if (o + 1 < n)                                                                             \
            outs_##T(w, x, out + o + 1, 1, tile + o + 1, 1, 2);                                    \
    }
#endif
#define DOT(T, elements)                                                                           \
    static void dot_##T(const struct cpu_mat *w, const float *const *x, int rows, int out, int n,  \
                        float *tile)                                                               \
    {                                                                                              \
        for (int o = 0; o < n; o += DOT_OUT) {                                                     \
            DOT_EACH(T)                                                                            \
        }                                                                                          \
    }

EACH_TYPE(UNPACK)
EACH_TYPE(DOT_CHUNK)
EACH_TYPE(DOT_OUTS)
EACH_TYPE(DOT)
#endif

struct unpacking {
    unpack_fn *unpack;
    dot_fn *dot; /* NULL: unpack, then multiply */
};

static struct unpacking unpacking(enum dtype t)
{
    struct unpacking f = {unpack_any, NULL};
#if CPU_ISA > 0
#define FAST(T, elements) [DT_##T] = {unpack_##T, dot_##T},
    static const struct unpacking fast[DT_E2M1 + 1] = {EACH_TYPE(FAST)};
    if (fast[t].unpack)
        f = fast[t];
#endif
    (void)t;
    return f;
}
