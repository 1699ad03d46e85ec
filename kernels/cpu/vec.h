/* vec.h - v16, a vector of sixteen floats, in plain C, AVX2 and AVX-512.
 *
 * Included by each of scalar.c (CPU_ISA 0), avx2.c (1) and avx512.c (2). Every function gives the
 * same bits in all three: each lane does the same IEEE operations in the same order, and lanes are
 * combined only by v_sum4(), whose order is part of its definition. A load of fewer than sixteen
 * elements fills the other lanes and reads no memory beyond.
 */
#pragma once

#include "kernels/cpu/cpu.h"

#include <math.h>

#if CPU_ISA > 0
#include <immintrin.h>
#endif

#if CPU_ISA == 0 /* plain C: unrolling does not help, so the code stays small */
#define V_FN __attribute__((unused)) static
#define UNROLL
#elif defined(__clang__)
#define V_FN static inline __attribute__((always_inline, unused))
#define UNROLL _Pragma("unroll")
#else
#define V_FN static inline __attribute__((always_inline, unused))
#define UNROLL _Pragma("GCC unroll 32")
#endif

/* The last n < 16 elements are copied to a zeroed buffer, so that the other lanes are 0 in all
 * versions. */
#define V_TAIL(p, n, size)                                                                         \
    _Alignas(64) uint8_t tail[128] = {0};                                                          \
    memcpy(tail, (p), (size_t)(n) * (size))

/* ============================================================ AVX-512 ======================== */
#if CPU_ISA == 2

typedef __m512 v16;

V_FN v16 v_set(float x) { return _mm512_set1_ps(x); }
V_FN v16 v_load(const float *p) { return _mm512_loadu_ps(p); }
/* Keeps v in a register; otherwise compilers repeat the load at each use. */
V_FN v16 v_pinned(v16 v)
{
    __asm__("" : "+v"(v));
    return v;
}
V_FN void v_store(float *p, v16 v) { _mm512_storeu_ps(p, v); }
V_FN v16 v_load_n(const float *p, int n, float fill)
{
    return _mm512_mask_loadu_ps(v_set(fill), (__mmask16)((1u << n) - 1), p);
}
V_FN void v_store_n(float *p, v16 v, int n)
{
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), v);
}
V_FN v16 v_keep(v16 v, int n) { return _mm512_maskz_mov_ps((__mmask16)((1u << n) - 1), v); }
V_FN v16 v_add(v16 a, v16 b) { return _mm512_add_ps(a, b); }
V_FN v16 v_sub(v16 a, v16 b) { return _mm512_sub_ps(a, b); }
V_FN v16 v_mul(v16 a, v16 b) { return _mm512_mul_ps(a, b); }
V_FN v16 v_div(v16 a, v16 b) { return _mm512_div_ps(a, b); }
V_FN v16 v_fma(v16 a, v16 b, v16 c) { return _mm512_fmadd_ps(a, b, c); }
V_FN v16 v_max(v16 a, v16 b) { return _mm512_max_ps(a, b); } /* a > b ? a : b */
V_FN v16 v_min(v16 a, v16 b) { return _mm512_min_ps(a, b); } /* a < b ? a : b */
V_FN v16 v_abs(v16 a) { return _mm512_abs_ps(a); }
V_FN v16 v_if_less(v16 a, v16 b, v16 yes, v16 no)
{
    return _mm512_mask_mov_ps(no, _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), yes);
}
V_FN unsigned v_at_least(v16 a, v16 b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }
V_FN unsigned v_not_below(v16 a, v16 b) { return _mm512_cmp_ps_mask(a, b, _CMP_NLT_UQ); }
V_FN v16 v_ban(v16 v, const uint8_t *mask)
{
    __m128i m = _mm_loadu_si128((const __m128i *)mask);
    return _mm512_mask_mov_ps(v, _mm_test_epi8_mask(m, m), v_set(-INFINITY));
}
V_FN v16 v_pow2(v16 magic) /* 2^i, where magic = 1.5 * 2^23 + i */
{
    __m512i i = _mm512_add_epi32(_mm512_castps_si512(magic), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(i, 23));
}
V_FN void v_sum4(v16 a, v16 b, v16 c, v16 d, float out[4])
{
    __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
    __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xEE));
    __m512 s =
        _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xDD));
    s = _mm512_add_ps(s, _mm512_permute_ps(s, 0x4E));
    s = _mm512_add_ps(s, _mm512_permute_ps(s, 0xB1));
    __m512i first = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 8, 4, 0);
    _mm_storeu_ps(out, _mm512_castps512_ps128(_mm512_permutexvar_ps(first, s)));
}
V_FN float v_max_lane(v16 v) { return _mm512_reduce_max_ps(v); }
V_FN void v_split(v16 a, v16 b, v16 *even, v16 *odd)
{
    __m512i e = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    *even = _mm512_permutex2var_ps(a, e, b);
    *odd = _mm512_permutex2var_ps(a, _mm512_add_epi32(e, _mm512_set1_epi32(1)), b);
}
V_FN void v_join(v16 even, v16 odd, v16 *a, v16 *b)
{
    __m512i i = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    *a = _mm512_permutex2var_ps(even, i, odd);
    *b = _mm512_permutex2var_ps(even, _mm512_add_epi32(i, _mm512_set1_epi32(8)), odd);
}
V_FN v16 v_from_bf16(const void *p)
{
    __m512i w = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(w, 16));
}
V_FN v16 v_from_f16(const void *p) { return _mm512_cvtph_ps(_mm256_loadu_si256(p)); }
V_FN void v_split_pairs(v16 pairs, v16 *even, v16 *odd) /* of bf16 */
{
    __m512i w = _mm512_castps_si512(pairs);
    *even = _mm512_castsi512_ps(_mm512_slli_epi32(w, 16));
    *odd = _mm512_castsi512_ps(_mm512_and_si512(w, _mm512_set1_epi32((int)0xffff0000)));
}
V_FN void split_halves(__m512i w, v16 *even, v16 *odd) /* 32 f16 */
{
    *even = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(w));
    *odd = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(w, 16)));
}
V_FN void v_split_f16(const void *p, v16 *even, v16 *odd)
{
    split_halves(_mm512_loadu_si512(p), even, odd);
}
/* 32 codes of E4M3, times 2^-8: shifted by 7 bits, with the sign above, they are f16 numbers,
 * subnormal ones included. (As bits of float32 the subnormal ones would be subnormal float32
 * numbers, with which processors multiply slowly.) */
V_FN void v_codes_e4m3(const void *p, v16 *even, v16 *odd)
{
    __m512i w = _mm512_slli_epi16(_mm512_cvtepi8_epi16(_mm256_loadu_si256(p)), 7);
    split_halves(_mm512_and_si512(w, _mm512_set1_epi32((int)0xbfffbfff)), even, odd);
}
V_FN void v_split_mxfp4(const void *p, float scale, v16 *even, v16 *odd)
{
    __m512 table = _mm512_setr_ps(0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.f, -.5f, -1, -1.5f, -2, -3, -4,
                                  -6);
    __m512i b = _mm512_cvtepu8_epi32(_mm_loadu_si128(p));
    *even = v_mul(_mm512_permutexvar_ps(b, table), v_set(scale)); /* reads the low four bits */
    *odd = v_mul(_mm512_permutexvar_ps(_mm512_srli_epi32(b, 4), table), v_set(scale));
}
V_FN void v_to_bf16(v16 v, uint16_t out[16])
{
    __m512i u = _mm512_castps_si512(v), lsb = _mm512_and_si512(_mm512_srli_epi32(u, 16),
                                                               _mm512_set1_epi32(1));
    __m512i r = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), lsb);
    __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    r = _mm512_mask_or_epi32(r, nan, u, _mm512_set1_epi32(0x400000));
    _mm256_storeu_si256((__m256i *)out, _mm512_cvtepi32_epi16(_mm512_srli_epi32(r, 16)));
}

V_FN void v_transpose(v16 v[16])
{
    __m512 t[16];
    UNROLL
    for (int q = 0; q < 16; q += 4) { /* four rows: each 128 bits hold a column of them */
        __m512 a = _mm512_unpacklo_ps(v[q], v[q + 1]), b = _mm512_unpackhi_ps(v[q], v[q + 1]);
        __m512 c = _mm512_unpacklo_ps(v[q + 2], v[q + 3]);
        __m512 d = _mm512_unpackhi_ps(v[q + 2], v[q + 3]);
        t[q] = _mm512_shuffle_ps(a, c, 0x44);
        t[q + 1] = _mm512_shuffle_ps(a, c, 0xEE);
        t[q + 2] = _mm512_shuffle_ps(b, d, 0x44);
        t[q + 3] = _mm512_shuffle_ps(b, d, 0xEE);
    }
    UNROLL
    for (int j = 0; j < 4; j++) {
        __m512 x0 = _mm512_shuffle_f32x4(t[j], t[4 + j], 0x88);
        __m512 x1 = _mm512_shuffle_f32x4(t[j], t[4 + j], 0xDD);
        __m512 y0 = _mm512_shuffle_f32x4(t[8 + j], t[12 + j], 0x88);
        __m512 y1 = _mm512_shuffle_f32x4(t[8 + j], t[12 + j], 0xDD);
        v[j] = _mm512_shuffle_f32x4(x0, y0, 0x88);
        v[4 + j] = _mm512_shuffle_f32x4(x1, y1, 0x88);
        v[8 + j] = _mm512_shuffle_f32x4(x0, y0, 0xDD);
        v[12 + j] = _mm512_shuffle_f32x4(x1, y1, 0xDD);
    }
}

/* ============================================================ AVX2 =========================== */
#elif CPU_ISA == 1

typedef struct {
    __m256 a, b; /* lanes 0-7, 8-15 */
} v16;

V_FN v16 v_set(float x) { return (v16){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
V_FN v16 v_load(const float *p) { return (v16){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
V_FN v16 v_pinned(v16 v)
{
    __asm__("" : "+x"(v.a), "+x"(v.b));
    return v;
}
V_FN void v_store(float *p, v16 v)
{
    _mm256_storeu_ps(p, v.a);
    _mm256_storeu_ps(p + 8, v.b);
}
V_FN v16 v_load_n(const float *p, int n, float fill)
{
    _Alignas(32) float t[16];
    v_store(t, v_set(fill));
    memcpy(t, p, (size_t)n * sizeof *p);
    return v_load(t);
}
V_FN void v_store_n(float *p, v16 v, int n)
{
    _Alignas(32) float t[16];
    v_store(t, v);
    memcpy(p, t, (size_t)n * sizeof *p);
}
V_FN v16 v_keep(v16 v, int n)
{
    _Alignas(32) float t[16];
    v_store(t, v);
    return v_load_n(t, n, 0);
}
V_FN v16 v_add(v16 x, v16 y) { return (v16){_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
V_FN v16 v_sub(v16 x, v16 y) { return (v16){_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
V_FN v16 v_mul(v16 x, v16 y) { return (v16){_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
V_FN v16 v_div(v16 x, v16 y) { return (v16){_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
V_FN v16 v_fma(v16 x, v16 y, v16 z)
{
    return (v16){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
V_FN v16 v_max(v16 x, v16 y) { return (v16){_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
V_FN v16 v_min(v16 x, v16 y) { return (v16){_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
V_FN v16 v_abs(v16 x)
{
    __m256 sign = _mm256_set1_ps(-0.f);
    return (v16){_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
V_FN v16 v_if_less(v16 x, v16 y, v16 yes, v16 no)
{
    return (v16){_mm256_blendv_ps(no.a, yes.a, _mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ)),
                 _mm256_blendv_ps(no.b, yes.b, _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ))};
}
V_FN unsigned v_at_least(v16 x, v16 y)
{
    return (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(x.a, y.a, _CMP_GE_OQ)) |
           (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(x.b, y.b, _CMP_GE_OQ)) << 8;
}
V_FN unsigned v_not_below(v16 x, v16 y)
{
    return (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(x.a, y.a, _CMP_NLT_UQ)) |
           (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(x.b, y.b, _CMP_NLT_UQ)) << 8;
}
V_FN __m256 ban8(__m256 v, __m128i mask)
{
    __m256i free8 = _mm256_cmpeq_epi32(_mm256_cvtepu8_epi32(mask), _mm256_setzero_si256());
    return _mm256_blendv_ps(_mm256_set1_ps(-INFINITY), v, _mm256_castsi256_ps(free8));
}
V_FN v16 v_ban(v16 v, const uint8_t *mask)
{
    __m128i m = _mm_loadu_si128((const __m128i *)mask);
    return (v16){ban8(v.a, m), ban8(v.b, _mm_srli_si128(m, 8))};
}
V_FN __m256 pow2_8(__m256 magic)
{
    __m256i i = _mm256_add_epi32(_mm256_castps_si256(magic), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(i, 23));
}
V_FN v16 v_pow2(v16 magic) { return (v16){pow2_8(magic.a), pow2_8(magic.b)}; }
V_FN __m256 sum_pair(__m256 p, __m256 q)
{
    return _mm256_add_ps(_mm256_permute2f128_ps(p, q, 0x20), _mm256_permute2f128_ps(p, q, 0x31));
}
V_FN void v_sum4(v16 a, v16 b, v16 c, v16 d, float out[4])
{
    __m256 ac = sum_pair(_mm256_add_ps(a.a, a.b), _mm256_add_ps(c.a, c.b));
    __m256 bd = sum_pair(_mm256_add_ps(b.a, b.b), _mm256_add_ps(d.a, d.b));
    __m256 s = _mm256_add_ps(_mm256_shuffle_ps(ac, bd, 0x44), _mm256_shuffle_ps(ac, bd, 0xEE));
    s = _mm256_add_ps(s, _mm256_permute_ps(s, 0xB1)); /* a a b b | c c d d */
    __m128 lo = _mm256_castps256_ps128(s), hi = _mm256_extractf128_ps(s, 1);
    _mm_storeu_ps(out, _mm_shuffle_ps(lo, hi, 0x88));
}
V_FN float v_max_lane(v16 v)
{
    __m256 m = _mm256_max_ps(v.a, v.b);
    __m128 h = _mm_max_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps(m, 1));
    h = _mm_max_ps(h, _mm_permute_ps(h, 0x4E));
    return _mm_cvtss_f32(_mm_max_ps(h, _mm_permute_ps(h, 0xB1)));
}
V_FN __m256 ordered(__m256 v) { return _mm256_castpd_ps(_mm256_permute4x64_pd(
    _mm256_castps_pd(v), 0xD8)); }
V_FN void v_split(v16 x, v16 y, v16 *even, v16 *odd)
{
    *even = (v16){ordered(_mm256_shuffle_ps(x.a, x.b, 0x88)),
                  ordered(_mm256_shuffle_ps(y.a, y.b, 0x88))};
    *odd = (v16){ordered(_mm256_shuffle_ps(x.a, x.b, 0xDD)),
                 ordered(_mm256_shuffle_ps(y.a, y.b, 0xDD))};
}
V_FN v16 zip(__m256 e, __m256 o)
{
    __m256 lo = _mm256_unpacklo_ps(e, o), hi = _mm256_unpackhi_ps(e, o);
    return (v16){_mm256_permute2f128_ps(lo, hi, 0x20), _mm256_permute2f128_ps(lo, hi, 0x31)};
}
V_FN void v_join(v16 even, v16 odd, v16 *a, v16 *b)
{
    *a = zip(even.a, odd.a);
    *b = zip(even.b, odd.b);
}
V_FN __m256 bf16_8(const uint16_t *p)
{
    __m256i w = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(w, 16));
}
V_FN v16 v_from_bf16(const void *p)
{
    return (v16){bf16_8(p), bf16_8((const uint16_t *)p + 8)};
}
V_FN v16 v_from_f16(const void *p)
{
    const __m128i *h = p;
    return (v16){_mm256_cvtph_ps(_mm_loadu_si128(h)), _mm256_cvtph_ps(_mm_loadu_si128(h + 1))};
}
V_FN void v_split_pairs(v16 pairs, v16 *even, v16 *odd)
{
    __m256i w0 = _mm256_castps_si256(pairs.a), w1 = _mm256_castps_si256(pairs.b);
    __m256i high = _mm256_set1_epi32((int)0xffff0000);
    *even = (v16){_mm256_castsi256_ps(_mm256_slli_epi32(w0, 16)),
                  _mm256_castsi256_ps(_mm256_slli_epi32(w1, 16))};
    *odd = (v16){_mm256_castsi256_ps(_mm256_and_si256(w0, high)),
                 _mm256_castsi256_ps(_mm256_and_si256(w1, high))};
}
V_FN v16 halves(__m256i w0, __m256i w1) /* sixteen f16 in the low halves of 32-bit lanes */
{
    __m256i h = _mm256_permute4x64_epi64(_mm256_packus_epi32(w0, w1), 0xD8);
    return (v16){_mm256_cvtph_ps(_mm256_castsi256_si128(h)),
                 _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1))};
}
V_FN void split_halves(__m256i w0, __m256i w1, v16 *even, v16 *odd)
{
    __m256i low = _mm256_set1_epi32(0xffff);
    *even = halves(_mm256_and_si256(w0, low), _mm256_and_si256(w1, low));
    *odd = halves(_mm256_srli_epi32(w0, 16), _mm256_srli_epi32(w1, 16));
}
V_FN void v_split_f16(const void *p, v16 *even, v16 *odd)
{
    split_halves(_mm256_loadu_si256(p), _mm256_loadu_si256((const __m256i *)p + 1), even, odd);
}
V_FN void v_codes_e4m3(const void *p, v16 *even, v16 *odd)
{
    const __m128i *b = p;
    __m256i w0 = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128(b)), 7);
    __m256i w1 = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128(b + 1)), 7);
    __m256i bits = _mm256_set1_epi32((int)0xbfffbfff);
    split_halves(_mm256_and_si256(w0, bits), _mm256_and_si256(w1, bits), even, odd);
}
V_FN __m256 e2m1_8(__m256i b) /* by the low four bits of each lane */
{
    __m256 table = _mm256_set_ps(6, 4, 3, 2, 1.5f, 1, .5f, 0);
    __m256i sign = _mm256_slli_epi32(_mm256_and_si256(b, _mm256_set1_epi32(8)), 28);
    return _mm256_xor_ps(_mm256_permutevar8x32_ps(table, b), _mm256_castsi256_ps(sign));
}
V_FN void v_split_mxfp4(const void *p, float scale, v16 *even, v16 *odd)
{
    __m128i b = _mm_loadu_si128(p);
    __m256i b0 = _mm256_cvtepu8_epi32(b), b1 = _mm256_cvtepu8_epi32(_mm_srli_si128(b, 8));
    *even = v_mul((v16){e2m1_8(b0), e2m1_8(b1)}, v_set(scale));
    *odd = v_mul((v16){e2m1_8(_mm256_srli_epi32(b0, 4)), e2m1_8(_mm256_srli_epi32(b1, 4))},
                 v_set(scale));
}
V_FN __m256i bf16_bits(__m256 v) /* rounded, in the low halves of 32-bit lanes */
{
    __m256i u = _mm256_castps_si256(v);
    __m256i lsb = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i r = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), lsb);
    __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    return _mm256_srli_epi32(_mm256_blendv_epi8(r, quiet, nan), 16);
}
V_FN void v_to_bf16(v16 v, uint16_t out[16])
{
    __m256i h = _mm256_packus_epi32(bf16_bits(v.a), bf16_bits(v.b));
    _mm256_storeu_si256((__m256i *)out, _mm256_permute4x64_epi64(h, 0xD8));
}

V_FN void transpose_8(__m256 v[8])
{
    __m256 t[8];
    UNROLL
    for (int q = 0; q < 8; q += 4) {
        __m256 a = _mm256_unpacklo_ps(v[q], v[q + 1]), b = _mm256_unpackhi_ps(v[q], v[q + 1]);
        __m256 c = _mm256_unpacklo_ps(v[q + 2], v[q + 3]);
        __m256 d = _mm256_unpackhi_ps(v[q + 2], v[q + 3]);
        t[q] = _mm256_shuffle_ps(a, c, 0x44);
        t[q + 1] = _mm256_shuffle_ps(a, c, 0xEE);
        t[q + 2] = _mm256_shuffle_ps(b, d, 0x44);
        t[q + 3] = _mm256_shuffle_ps(b, d, 0xEE);
    }
    UNROLL
    for (int j = 0; j < 4; j++) {
        v[j] = _mm256_permute2f128_ps(t[j], t[4 + j], 0x20);
        v[4 + j] = _mm256_permute2f128_ps(t[j], t[4 + j], 0x31);
    }
}
V_FN void v_transpose(v16 v[16])
{
    __m256 q[4][8];
    UNROLL
    for (int i = 0; i < 8; i++)
        q[0][i] = v[i].a, q[1][i] = v[8 + i].a, q[2][i] = v[i].b, q[3][i] = v[8 + i].b;
    UNROLL
    for (int i = 0; i < 4; i++)
        transpose_8(q[i]);
    UNROLL
    for (int i = 0; i < 8; i++)
        v[i] = (v16){q[0][i], q[1][i]}, v[8 + i] = (v16){q[2][i], q[3][i]};
}

/* ============================================================ plain C ======================== */
#else

typedef struct {
    float f[16];
} v16;

#define V_EACH(expr)                                                                               \
    v16 r;                                                                                         \
    for (int i = 0; i < 16; i++)                                                                   \
        r.f[i] = (expr);                                                                           \
    return r

V_FN uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}
V_FN float float_of(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}
V_FN uint16_t half_at(const void *p, int i)
{
    uint16_t h;
    memcpy(&h, (const uint8_t *)p + 2 * i, 2);
    return h;
}

V_FN v16 v_set(float x) { V_EACH(x); }
V_FN v16 v_load(const float *p)
{
    v16 r;
    memcpy(r.f, p, sizeof r.f);
    return r;
}
V_FN v16 v_pinned(v16 v) { return v; }
V_FN void v_store(float *p, v16 v) { memcpy(p, v.f, sizeof v.f); }
V_FN v16 v_load_n(const float *p, int n, float fill)
{
    v16 r = v_set(fill);
    memcpy(r.f, p, (size_t)n * sizeof *p);
    return r;
}
V_FN void v_store_n(float *p, v16 v, int n) { memcpy(p, v.f, (size_t)n * sizeof *p); }
V_FN v16 v_keep(v16 v, int n) { return v_load_n(v.f, n, 0); }
V_FN v16 v_add(v16 a, v16 b) { V_EACH(a.f[i] + b.f[i]); }
V_FN v16 v_sub(v16 a, v16 b) { V_EACH(a.f[i] - b.f[i]); }
V_FN v16 v_mul(v16 a, v16 b) { V_EACH(a.f[i] * b.f[i]); }
V_FN v16 v_div(v16 a, v16 b) { V_EACH(a.f[i] / b.f[i]); }
V_FN v16 v_fma(v16 a, v16 b, v16 c) { V_EACH(fmaf(a.f[i], b.f[i], c.f[i])); }
V_FN v16 v_max(v16 a, v16 b) { V_EACH(a.f[i] > b.f[i] ? a.f[i] : b.f[i]); }
V_FN v16 v_min(v16 a, v16 b) { V_EACH(a.f[i] < b.f[i] ? a.f[i] : b.f[i]); }
V_FN v16 v_abs(v16 a) { V_EACH(fabsf(a.f[i])); }
V_FN v16 v_if_less(v16 a, v16 b, v16 yes, v16 no)
{
    V_EACH(a.f[i] < b.f[i] ? yes.f[i] : no.f[i]);
}
V_FN unsigned v_at_least(v16 a, v16 b)
{
    unsigned m = 0;
    for (int i = 0; i < 16; i++)
        m |= (unsigned)(a.f[i] >= b.f[i]) << i;
    return m;
}
V_FN unsigned v_not_below(v16 a, v16 b)
{
    unsigned m = 0;
    for (int i = 0; i < 16; i++)
        m |= (unsigned)!(a.f[i] < b.f[i]) << i;
    return m;
}
V_FN v16 v_ban(v16 v, const uint8_t *mask) { V_EACH(mask[i] ? -INFINITY : v.f[i]); }
V_FN v16 v_pow2(v16 magic) { V_EACH(float_of((bits_of(magic.f[i]) + 127) << 23)); }
V_FN float sum_lanes(v16 v)
{
    for (int step = 8; step; step /= 2)
        for (int i = 0; i < step; i++)
            v.f[i] += v.f[i + step];
    return v.f[0];
}
V_FN void v_sum4(v16 a, v16 b, v16 c, v16 d, float out[4])
{
    out[0] = sum_lanes(a);
    out[1] = sum_lanes(b);
    out[2] = sum_lanes(c);
    out[3] = sum_lanes(d);
}
V_FN float v_max_lane(v16 v)
{
    float m = v.f[0];
    for (int i = 1; i < 16; i++)
        m = m > v.f[i] ? m : v.f[i];
    return m;
}
V_FN void v_split(v16 a, v16 b, v16 *even, v16 *odd)
{
    for (int i = 0; i < 8; i++) {
        even->f[i] = a.f[2 * i], even->f[i + 8] = b.f[2 * i];
        odd->f[i] = a.f[2 * i + 1], odd->f[i + 8] = b.f[2 * i + 1];
    }
}
V_FN void v_join(v16 even, v16 odd, v16 *a, v16 *b)
{
    for (int i = 0; i < 8; i++) {
        a->f[2 * i] = even.f[i], a->f[2 * i + 1] = odd.f[i];
        b->f[2 * i] = even.f[i + 8], b->f[2 * i + 1] = odd.f[i + 8];
    }
}
V_FN v16 v_from_bf16(const void *p) { V_EACH(bf16_to_f32(half_at(p, i))); }
V_FN v16 v_from_f16(const void *p) { V_EACH(f16_to_f32(half_at(p, i))); }
V_FN void v_split_pairs(v16 pairs, v16 *even, v16 *odd)
{
    for (int i = 0; i < 16; i++) {
        uint32_t u = bits_of(pairs.f[i]);
        even->f[i] = float_of(u << 16);
        odd->f[i] = float_of(u & 0xffff0000u);
    }
}
V_FN void v_split_f16(const void *p, v16 *even, v16 *odd)
{
    for (int i = 0; i < 16; i++) {
        even->f[i] = f16_to_f32(half_at(p, 2 * i));
        odd->f[i] = f16_to_f32(half_at(p, 2 * i + 1));
    }
}
V_FN void v_split_mxfp4(const void *p, float scale, v16 *even, v16 *odd)
{
    static const float table[16] = {0,    .5f,  1,  1.5f,  2,  3,  4,  6,
                                    -0.f, -.5f, -1, -1.5f, -2, -3, -4, -6};
    const uint8_t *b = p;
    for (int i = 0; i < 16; i++) {
        even->f[i] = table[b[i] & 15] * scale;
        odd->f[i] = table[b[i] >> 4] * scale;
    }
}
V_FN void v_to_bf16(v16 v, uint16_t out[16])
{
    for (int i = 0; i < 16; i++)
        out[i] = f32_to_bf16(v.f[i]);
}
V_FN void v_transpose(v16 v[16])
{
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < i; j++) {
            float f = v[i].f[j];
            v[i].f[j] = v[j].f[i];
            v[j].f[i] = f;
        }
}
#endif

/* ============================================================ all versions =================== */

V_FN v16 v_zero(void) { return v_set(0); }

/* 32 bf16 numbers: 16 even and 16 odd ones. */
V_FN void v_split_bf16(const void *p, v16 *even, v16 *odd) { v_split_pairs(v_load(p), even, odd); }

/* Loops over n elements, up to 16 at a time: m of them from i on. */
#define BY_16(i, m, n)                                                                             \
    for (int i = 0, m; i < (n) && (m = (n) - i < 16 ? (n) - i : 16); i += 16)

/* The sum of the lanes: pairwise, lane i plus lane i + 8, then + 4, + 2, + 1. */
V_FN float v_sum(v16 v)
{
    float out[4];
    v_sum4(v, v, v, v, out);
    return out[0];
}

/* e^x for x <= 0, within 1 ulp; 0 below -86.6; NaN stays NaN. Cody and Waite's reduction by
 * n = round(x / ln 2), then Taylor's series to r^7 on |r| <= ln(2)/2 (remainder below 2^-27). */
V_FN v16 v_exp(v16 x)
{
    v16 magic = v_set(12582912.f), low = v_set(-86.6f);
    v16 y = v_max(low, x); /* this order of operands keeps NaN */
    v16 t = v_fma(y, v_set(1.44269504088896341f), magic), n = v_sub(t, magic);
    v16 r = v_fma(n, v_set(-0.693359375f), y);
    r = v_fma(n, v_set(2.12194440054690583e-4f), r);
    v16 p = v_fma(r, v_set(1.f / 5040), v_set(1.f / 720));
    p = v_fma(p, r, v_set(1.f / 120));
    p = v_fma(p, r, v_set(1.f / 24));
    p = v_fma(p, r, v_set(1.f / 6));
    p = v_fma(p, r, v_set(.5f));
    p = v_fma(p, r, v_set(1));
    p = v_fma(p, r, v_set(1));
    return v_if_less(x, low, v_zero(), v_mul(p, v_pow2(t)));
}

/* 1 / (1 + e^-x), computed from e^-|x|, which cannot overflow. */
V_FN v16 v_sigmoid(v16 x)
{
    v16 one = v_set(1), e = v_exp(v_sub(v_zero(), v_abs(x)));
    return v_div(v_if_less(x, v_zero(), e, one), v_add(one, e));
}

/* Below 0.625 the odd polynomial of Cephes' tanhf (Moshier), else (1 - e^-2|x|) / (1 + e^-2|x|). */
V_FN v16 v_tanh(v16 x)
{
    v16 z = v_abs(x), one = v_set(1), s = v_mul(x, x);
    v16 p = v_fma(v_set(-5.70498872745e-3f), s, v_set(2.06390887954e-2f));
    p = v_fma(p, s, v_set(-5.37397155531e-2f));
    p = v_fma(p, s, v_set(1.33314422036e-1f));
    p = v_fma(p, s, v_set(-3.33332819422e-1f));
    v16 near = v_fma(v_mul(p, s), x, x);
    v16 e = v_exp(v_mul(z, v_set(-2)));
    v16 far = v_div(v_sub(one, e), v_add(one, e));
    far = v_if_less(x, v_zero(), v_sub(v_zero(), far), far);
    return v_if_less(z, v_set(.625f), near, far);
}

/* x (1 + tanh(u)) / 2, computed as x sigmoid(2u), which keeps its precision where tanh(u) is close
 * to -1. */
V_FN v16 v_gelu_tanh(v16 x)
{
    v16 x3 = v_mul(v_mul(x, x), x);
    v16 u2 = v_mul(v_set(1.59576912160573071f), v_fma(v_set(0.044715f), x3, x));
    return v_mul(x, v_sigmoid(u2));
}

V_FN v16 v_act(v16 x, enum act_kind act)
{
    if (act == ACT_SILU)
        return v_mul(x, v_sigmoid(x));
    return act == ACT_GELU_TANH ? v_gelu_tanh(x) : x;
}

V_FN v16 v_softcap(v16 x, float cap)
{
    return v_mul(v_set(cap), v_tanh(v_div(x, v_set(cap))));
}

/* Whether weights that are prefetched `ahead` bytes before they are read would leave the first
 * cache again by then: `rows` rows of k inputs are read in between, too. */
V_FN bool prefetch_far(int k, const int rows, size_t ahead)
{
    enum { NEAR = 24 << 10 }; /* of a first cache of 32 KB or more */
    return (size_t)k * (size_t)rows * sizeof(float) + ahead > NEAR;
}

/* Into the second cache (far), or the first one. */
V_FN void prefetch(const void *p, bool far)
{
    if (far)
        __builtin_prefetch(p, 0, 2);
    else
        __builtin_prefetch(p);
}

/* Elements [at, at + n) of a tensor that is not packed, n <= 16, in their natural order; other
 * lanes 0. */
V_FN v16 v_weights(const struct tensor *t, size_t at, int n)
{
    size_t size = t->type == DT_F32 ? 4 : 2;
    const uint8_t *p = (const uint8_t *)t->data + at * size;
    if (n < 16) {
        V_TAIL(p, n, size);
        return t->type == DT_F32 ? v_load((const float *)tail)
               : t->type == DT_BF16 ? v_from_bf16(tail) : v_from_f16(tail);
    }
    return t->type == DT_F32 ? v_load_n((const float *)p, 16, 0)
           : t->type == DT_BF16 ? v_from_bf16(p) : v_from_f16(p);
}

/* Loads 32 weights of any type but MXFP4: 16 even and 16 odd ones. */
V_FN void v_split_any(const uint8_t *p, enum cpu_store type, v16 *even, v16 *odd)
{
    if (type == STORED_BF16)
        v_split_bf16(p, even, odd);
    else if (type == STORED_F16)
        v_split_f16(p, even, odd);
    else
        v_split(v_load((const float *)p), v_load((const float *)p + 16), even, odd);
}

/* Loads 32 elements of a cell: float32 as elements 0-15 and 16-31, other types split. */
V_FN void v_load_cell(const uint8_t *p, enum cpu_store type, v16 *a, v16 *b)
{
    if (type == STORED_F32)
        *a = v_load((const float *)p), *b = v_load((const float *)p + 16);
    else
        v_split_any(p, type, a, b);
}

/* The same for the last n < 32 weights of a row; the other lanes are 0. */
V_FN void v_split_tail(const uint8_t *p, enum cpu_store type, int n, v16 *even, v16 *odd)
{
    V_TAIL(p, n, type == STORED_F32 ? 4 : 2);
    v_split_any(tail, type, even, odd);
}

/* The same for the last n < 32 elements of a cell. */
V_FN void v_load_cell_tail(const uint8_t *p, enum cpu_store type, int n, v16 *a, v16 *b)
{
    V_TAIL(p, n, type == STORED_F32 ? 4 : 2);
    v_load_cell(tail, type, a, b);
}
