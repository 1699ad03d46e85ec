/* packed.cu - matrices packed in blocks: the device layout of blocks (packed.cuh), made during
 * their upload, and its panels as those of a bf16 matrix. */
#include "kernels/cuda/dense/file_blocks.cuh"
#include "kernels/cuda/dense/fp8.cuh"

enum { THREADS = 256 };

/* ---- upload --------------------------------------------------------------------------------- */

/* Half h of chunk k of a block of E2M1, MXFP4 or NVFP4: its scale and factor, without their signs;
 * sign: the bit of a code that a negative product of both changes. */
struct e2m1_scale {
    float scale, factor;
    uint8_t sign;
};
__device__ __forceinline__ struct e2m1_scale e2m1_scale_of(int type, const uint8_t *b, int k, int h)
{
    struct e2m1_scale s = {0, 1, 0};
    if (type == DT_MXFP4) {
        s.scale = __uint_as_float(b[0] ? (uint32_t)b[0] << 23 : 0x400000u);
        return s;
    }
    const uint8_t code = type == DT_NVFP4 ? b[2 * k + h] : b[4 + h];
    s.scale = bf16_value(fp8_value(code & 0x7f, 0));
    if (type == DT_E2M1) {
        s.factor = fabsf(__uint_as_float((uint32_t)(b[0] | b[1] << 8 | b[2] << 16) |
                                         (uint32_t)b[3] << 24));
        s.sign = (b[3] ^ code) >> 4 & 8;
    }
    return s;
}

/* The codes of eight successive elements of E2M1, number q of the chunk's four times eight. MXFP4
 * and NVFP4 have no zero with a sign. */
__device__ __forceinline__ uint32_t e2m1_codes(int type, const uint8_t *b, int k, int q)
{
    const struct e2m1_scale s = e2m1_scale_of(type, b, k, q / 2);
    const bool zeros = s.scale == 0 || s.factor == 0;
    uint8_t code[8];
    for (int i = 0; i < 8; i++) {
        const uint8_t c = (uint8_t)code_of(type, b, k, q * 8 + i);
        code[i] = type != DT_E2M1 && c == 8 ? 0 : ((zeros ? c & 8 : c) ^ s.sign);
    }
    return e2m1_word(code);
}

/* Stores the codes of eight successive elements, number q of the chunk's four times eight, of row r
 * of a pair. form: packed_as(); to: the pair's chunk; high_bytes: the row's. */
__device__ __forceinline__ void put_codes(int type, int form, const uint8_t *b, int k, int q, int r,
                                          uint8_t *to, uint8_t *high_bytes)
{
    uint8_t *const own = to + codes_of(form, 2 * q + r);
    if (form == DT_E2M1) {
        *(uint32_t *)own = e2m1_codes(type, b, k, q);
        return;
    }
    if (four_bit(form)) {
        const bool pairs = form != DT_IQ4_XS;
        uint32_t word = 0;
        for (int i = 0; i < 8; i++)
            word |= (code_of(type, b, k, q * 8 + i) - (type == DT_Q3_K ? 24 : 0))
                    << (pairs ? 16 * (i % 2) + 4 * (i / 2) : 4 * i);
        *(uint32_t *)own = word;
        return;
    }
    if (type == DT_E4M3) {
        const uint8_t *c = b + 2 + q * 8;
        *(uint2 *)own = make_uint2(fp8_word(c), fp8_word(c + 4));
        return;
    }
    if (type == DT_Q2_K) {
        uint32_t word = 0;
        for (int i = 0; i < 8; i++)
            word |= code_of(type, b, k, q * 8 + i) << (8 * (i % 2) + i / 2 * 2);
        *(uint16_t *)own = (uint16_t)word;
        return;
    }
    if (type == DT_Q8_0) {
        for (int i = 0; i < 8; i++)
            own[i] = (uint8_t)code_of(type, b, k, q * 8 + i);
        return;
    }
    const bool five = five_bit(form);
    const int low = five ? 3 : 2; /* bits of the second beside the first */
    uint32_t word = 0, high = 0;
    for (int at = 0; at < 4; at++) { /* elements 4 (at % 2) + at / 2 and the second behind it */
        const int i = q * 8 + at % 2 * 4 + at / 2;
        const uint32_t first = code_of(type, b, k, i), second = code_of(type, b, k, i + 2);
        word |= (first << low | (second & ((1u << low) - 1))) << 8 * at;
        high |= second >> low << (five ? 6 - 2 * at : at < 2 ? 8 * at + 4 : 8 * at - 16);
    }
    *(uint32_t *)own = word;
    if (five)
        high_bytes[q] = (uint8_t)high;
    else
        *(uint16_t *)(to + high_codes_of(2 * q + r)) = (uint16_t)high;
}

/* The number of half a chunk of E2M1 (packed.cuh). used: bits 1 to 7 say which levels it has. */
__device__ __forceinline__ uint16_t e2m1_number(const struct e2m1_scale &s, uint32_t used,
                                                unsigned *too_large)
{
    const float levels[8] = {0, .5f, 1, 1.5f, 2, 3, 4, 6};
    const int bits = (int)__float_as_uint(s.scale * s.factor),
              middle = (bits + 0x1000 - (E2M1_LEAST << 23)) >> 13; /* rounded to 11 bits */
    if (!(used & 0xfe) || s.scale == 0 || s.factor == 0)
        return 0;
    for (int i = 0; i < 5; i++) { /* the nearest one first */
        const int number = middle + (i % 2 ? -(i + 1) / 2 : i / 2);
        const float x = __uint_as_float(((uint32_t)number << 13) + ((uint32_t)E2M1_LEAST << 23));
        bool is = number >= 0 && number <= 0xffff;
        for (int m = 1; m < 8; m++)
            is &= !(used >> m & 1) ||
                  rounded_bf16(levels[m] * x) ==
                      rounded_bf16(__fmul_rn(__fmul_rn(s.scale, levels[m]), s.factor));
        if (is)
            return (uint16_t)number;
    }
    *too_large = 1;
    return 0;
}
/* E2M1, MXFP4, NVFP4: the numbers of both halves of chunk k. */
__device__ __forceinline__ void put_e2m1_numbers(int type, const uint8_t *b, int k, uint8_t *to,
                                                 unsigned *too_large)
{
    for (int h = 0; h < 2; h++) {
        uint32_t used = 0;
        for (int i = 0; i < 16; i++)
            used |= 1u << (code_of(type, b, k, 16 * h + i) & 7);
        *(uint16_t *)(to + 2 * h) = e2m1_number(e2m1_scale_of(type, b, k, h), used, too_large);
    }
}

/* Whether byte_weights() rounds (byte - 128) x to bf16, for all bytes that a layout has. A zero may
 * have another sign. */
__device__ __forceinline__ bool are_parts(int form, float x, uint32_t s)
{
    const uint8_t levels[16] = {1, 24, 45, 63, 79, 93, 106, 118,
                                129, 141, 153, 166, 181, 197, 217, 241};
    const bool iq4 = form == DT_IQ4_XS;
    const int n = iq4 || form == DT_Q3_K ? 16 : form == DT_Q5_0 ? 32 : form == DT_Q6_K ? 64 : 256;
    bool are = true;
    for (int i = 0; i < n && are; i += 2) {
        uint32_t byte[2];
        for (int e = 0; e < 2; e++)
            byte[e] = iq4 ? levels[i + e] : (uint32_t)((i + e) * 256 / n);
        const uint32_t wrong = byte_weights(byte[0] | byte[1] << 16, s) ^
                               bf16_pair(((float)byte[0] - 128) * x, ((float)byte[1] - 128) * x);
        are = !(wrong & (byte[0] == 128 ? 0xffff7fff : ~0u));
    }
    return are;
}
/* 2^6 times the parts of x for byte_weights(), the first in the low half. Every scale of these
 * types has some, as was tried for all digits that one can have: 1.15 tries in the mean; for a few
 * scales of IQ4_XS the larger part is the second. If there were none, *too_large would become 1. */
__device__ __forceinline__ uint32_t parts_of(int form, float x, unsigned *too_large)
{
    enum { FIRST = 11, REST = 5 }; /* numbers that are tried, the nearest one first */
    if (x == 0 || !isfinite(x))
        return bf16_pair(x, x);
    for (int i = 0; i < 2 * FIRST * REST; i++) {
        const int swaps = i / (FIRST * REST), a = i / REST % FIRST, b = i % REST;
        const uint32_t first = __float_as_uint(rounded_bf16(x * 64)) +
                               (uint32_t)(a % 2 ? -(a + 1) / 2 : a / 2) * 0x10000u;
        const uint32_t rest = __float_as_uint(rounded_bf16(x * 64 - __uint_as_float(first))) +
                              (uint32_t)(b % 2 ? -(b + 1) / 2 : b / 2) * 0x10000u;
        const uint32_t s = __byte_perm(first, rest, swaps ? 0x3276 : 0x7632);
        if (are_parts(form, x, s))
            return s;
    }
    *too_large = 1;
    return 0;
}

/* d times 2^up as an f16; *too_large becomes 1 if |d| is `least` or more. */
__device__ __forceinline__ void put_scaled(float d, int up, float least, uint8_t *to,
                                           unsigned *too_large)
{
    if (fabsf(d) >= least)
        *too_large = 1;
    *(uint16_t *)to = __half_as_ushort(__float2half_rn(ldexpf(d, up))); /* exact */
}

/* block: where the block of the chunk is; its chunks store the same there. *too_large becomes 1 if
 * packed.cuh has no place for a scale. */
__device__ __forceinline__ void put_scales(int type, int form, const uint8_t *b, int k, uint8_t *to,
                                           uint8_t *block, unsigned *too_large)
{
    if (type == DT_E4M3) {
        const float d = bf16_value((uint16_t)(b[0] | b[1] << 8));
        if (fabsf(d) >= 256)
            *too_large = 1;
        *(uint16_t *)to = __bfloat16_as_ushort(__float2bfloat16_rn(d * 0x1p120f)); /* exact */
        return;
    }
    switch (form) {
    case DT_Q4_K:
    case DT_Q5_K: {
        const bool five = type == DT_Q5_K;
        put_scale_min(b, k, to);
        put_scaled(half_at(b), five ? 10 : 9, (five ? .25f : .5f) / (float)max(to[0], 1), block,
                   too_large);
        block[2] = b[2], block[3] = b[3];
        return;
    }
    case DT_Q2_K:
        for (int h = 0; h < 2; h++) {
            const int both = b[2 * k + h];
            const float d = half_at(b + 80) * (float)(both & 15),
                        least = half_at(b + 82) * (float)(both >> 4);
            /* two weights a word: stores of single bytes of a bf16 are wrong with ptxas 13.0, which
             * converts its value to an integer */
            const uint32_t low = bf16_pair(d * 0 - least, d - least),
                           high = bf16_pair(d * 2 - least, d * 3 - least);
            *(uint2 *)(to + 8 * h) = make_uint2(__byte_perm(low, high, 0x6420),
                                                __byte_perm(low, high, 0x7531));
        }
        return;
    case DT_Q5_1: {
        const float d = half_at(b);
        put_scaled(d, 17, .25f, to, too_large);
        *(uint16_t *)(to + 2) = (uint16_t)(b[2] | b[3] << 8);
        return;
    }
    case DT_IQ4_XS:
        *(uint32_t *)to =
            parts_of(form, half_at(b) * (type == DT_IQ4_XS ? (float)(iq4_xs_scale(b, k) - 128) : 1),
                     too_large);
        return;
    case DT_Q8_0: *(uint32_t *)to = parts_of(form, half_at(b), too_large); return;
    case DT_Q5_0: *(uint32_t *)to = parts_of(form, half_at(b) / 8, too_large); return;
    case DT_Q6_K:
    case DT_Q3_K:
        for (int h = 0; h < 2; h++) {
            const bool six = form == DT_Q6_K;
            const float d = half_at(b + (six ? 208 : 108));
            const int scale = six ? (int8_t)b[192 + 2 * k + h] : q3_k_scale(b, 2 * k + h) - 128;
            *(uint32_t *)(to + 4 * h) =
                parts_of(form, d * (float)scale / (six ? 4 : 16), too_large);
        }
        return;
    case DT_E2M1: put_e2m1_numbers(type, b, k, to, too_large); return;
    default: { /* Q4_0 */
        const two_factors f = factors_of(half_at(b));
        *(uint16_t *)to = f.second, *(uint16_t *)(to + FIRST_FACTOR) = f.first;
    }
    }
}

/* A thread converts eight weights of a row of one of n panels, and the first of a row's chunk its
 * scales. src: the panels' rows; a block has `each` chunks and `bytes` bytes. dst was filled with
 * zeros. */
__global__ void repack_blocks(const uint8_t *src, int type, int form, int each, int bytes, int rows,
                              const __grid_constant__ struct panels p, int n, uint8_t *dst,
                              unsigned *too_large)
{
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    const int chunks = p.ksplit.chunks;
    const int q = (int)(i % 4), row = (int)(i / 4 % (size_t)p.rows);
    const size_t at = i / 4 / (size_t)p.rows;
    const int chunk = (int)(at % (size_t)chunks), panel = (int)(at / (size_t)chunks);
    const int r = panel * p.rows + row;
    if (panel >= n || r >= rows)
        return;
    const uint8_t *block = src + ((size_t)r * (size_t)(chunks / each) + (size_t)(chunk / each)) *
                                     (size_t)bytes;
    const struct packed_place to =
        packed_place_of(p, form, row, chunk / p.ksplit.each, chunk % p.ksplit.each);
    dst += (size_t)panel * stored_bytes(p, form);
    put_codes(type, form, block, chunk % each, q, row % 2, dst + to.codes, dst + to.high);
    if (q == 0)
        put_scales(type, form, block, chunk % each, dst + to.scales, dst + to.block, too_large);
}

void cuda_repack_blocks(struct kdev *d, const struct panels *p, int type, const void *blocks,
                        int rows, int k, int n, void *dst, unsigned *too_large)
{
    const struct packed_format *f = packed_format((enum dtype)type);
    const size_t threads = (size_t)n * (size_t)p->ksplit.chunks * (size_t)p->rows * 4;
    CHECK(k == p->ksplit.chunks * K_CHUNK && k % f->elements == 0);
    repack_blocks<<<(unsigned)((threads + THREADS - 1) / THREADS), THREADS, 0, d->stream>>>(
        (const uint8_t *)blocks, type, packed_as(type), f->elements / K_CHUNK, f->bytes, rows, *p,
        n, (uint8_t *)dst, too_large);
}

/* ---- panels of bf16 ------------------------------------------------------------------------- */

/* A thread unpacks a row's chunk, which has 16 bytes in each unit of a panel of bf16
 * (panel_place()); successive threads have successive rows. Blocks: threads of a panel, panels. */
template <int TYPE>
__global__ void __launch_bounds__(THREADS)
    unpack_panels(const uint8_t *src, const __grid_constant__ struct panels p, uint8_t *dst)
{
    const unsigned i = blockIdx.x * THREADS + threadIdx.x, rows = (unsigned)p.rows;
    const int place = (int)(i / rows), row = (int)(i - (unsigned)place * rows);
    const struct split_chunk of = split_chunk_of(p.ksplit, place);
    pdl_wait();
    if (place >= p.ksplit.chunks)
        return;
    src += blockIdx.y * stored_bytes(p, TYPE);
    const struct packed_place at = packed_place_of(p, TYPE, row, of.split, of.position);
    const int unit = p.rows * (int)UNIT_BYTES;
    uint8_t *to = dst + blockIdx.y * panel_bytes(p) + (size_t)(place * (int)UNITS) * (size_t)unit +
                  row * (int)UNIT_BYTES;
    uint4 eight[4];
#pragma unroll
    for (int q = 0; q < 4; q++)
        eight[q] = eight_at(at, TYPE, src, row, q, DT_NONE);
#pragma unroll
    for (int j = 0; j < UNITS; j++)
        *(uint4 *)(to + j * unit) = make_uint4((&eight[0].x)[j], (&eight[1].x)[j],
                                               (&eight[2].x)[j], (&eight[3].x)[j]);
}

void cuda_unpack_panels(struct kdev *d, const struct panels *p, int type, const void *panels,
                        int first, int n, void *dst)
{
    const uint8_t *src = (const uint8_t *)panels + (size_t)first * stored_bytes(*p, type);
    const int most = 65535; /* rows of a grid */
    void (*kernel)(const uint8_t *, struct panels, uint8_t *) = NULL;
    switch (type) {
#define UNPACK(stored) case stored: kernel = unpack_panels<stored>; break;
        PACKED_LAYOUTS(UNPACK)
#undef UNPACK
    }
    const unsigned blocks = (unsigned)div_up(p->ksplit.chunks * p->rows, THREADS);
    for (int i = 0; i < n; i += most)
        cuda_launch(d, kernel, dim3(blocks, (unsigned)min_int(n - i, most)), THREADS, 0,
                    src + (size_t)i * stored_bytes(*p, type), *p,
                    (uint8_t *)dst + (size_t)i * panel_bytes(*p));
    d->serial = true;
}
