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
            word |= code_of(type, b, k, q * 8 + i) << (pairs ? 16 * (i % 2) + 4 * (i / 2) : 4 * i);
        *(uint32_t *)own = word;
        return;
    }
    if (type == DT_E4M3) {
        const uint8_t *c = b + 2 + q * 8;
        *(uint2 *)own = make_uint2(fp8_word(c), fp8_word(c + 4));
        return;
    }
    if (form == DT_Q6_K || five_bit(form)) {
        const bool five = five_bit(form), three = type == DT_Q3_K;
        const int low = five ? 3 : 2; /* bits of the second beside the first */
        uint32_t word = 0, high = 0;
        for (int at = 0; at < 4; at++) { /* elements 4 (at % 2) + at / 2 and the second behind it */
            const int i = q * 8 + at % 2 * 4 + at / 2;
            uint32_t first = code_of(type, b, k, i), second = code_of(type, b, k, i + 2);
            if (three) /* from levels -4 to 3, plus 32, to eight times those, plus 32 */
                first = first * 8 - 224, second = second * 8 - 224;
            word |= (first << low | (second & ((1u << low) - 1))) << 8 * at;
            high |= second >> low << (five ? 6 - 2 * at : at < 2 ? 8 * at + 4 : 8 * at - 16);
        }
        *(uint32_t *)own = word;
        if (five)
            high_bytes[q] = (uint8_t)high;
        else
            *(uint16_t *)(to + high_codes_of(2 * q + r)) = (uint16_t)high;
        return;
    }
    for (int i = 0; i < 8; i++)
        to[codes_of(type, 2 * q + i % 2) + i / 2 * 2 + r] = (uint8_t)code_of(type, b, k, q * 8 + i);
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
    case DT_Q5_1: {
        const float d = half_at(b);
        put_scaled(d, 17, .25f, to, too_large);
        *(uint16_t *)(to + 2) = type == DT_Q5_0 ? __half_as_ushort(__float2half_rn(-16 * d))
                                                : (uint16_t)(b[2] | b[3] << 8);
        return;
    }
    case DT_IQ4_XS:
        to[2] = type == DT_IQ4_XS ? iq4_xs_scale(b, k) : 129, to[3] = 0;
        put_scaled(half_at(b), 21, 0x1p-5f / (float)max(abs(to[2] - 128), 1), to, too_large);
        return;
    case DT_E2M1: put_e2m1_numbers(type, b, k, to, too_large); return;
    default: break;
    }
    if (type == DT_Q4_0) {
        const two_factors f = factors_of(half_at(b));
        *(uint16_t *)to = f.second, *(uint16_t *)(to + FIRST_FACTOR) = f.first;
        return;
    }
    if (form == DT_Q6_K) {
        const bool six = type == DT_Q6_K;
        if (six)
            put_half_scales(b, k, to + 2);
        else
            to[2] = q3_k_scale(b, 2 * k), to[3] = q3_k_scale(b, 2 * k + 1);
        const int most = max(max(abs(to[2] - 128), abs(to[3] - 128)), 1);
        put_scaled(half_at(b + (six ? 208 : 108)), six ? 19 : 16, (six ? .125f : 1.f) / (float)most,
                   to, too_large);
        return;
    }
    to[0] = b[0], to[1] = b[1];
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

/* Byte i of a word minus 128, a float: in bits 8 to 15 a byte adds itself to 2^15. */
__device__ __forceinline__ float byte_level(uint32_t word, int i)
{
    return __uint_as_float(__byte_perm(word, 0x47000000, 0x7404 | i << 4)) - 0x1.01p15f;
}

/* eight_at() with words in place of bytes of Q8_0. */
template <int TYPE>
__device__ __forceinline__ uint4 eight_by_words(const struct packed_place &at,
                                                const uint8_t *panel, int row, int q)
{
    if (TYPE != DT_Q8_0)
        return eight_at(at, TYPE, panel, row, q, false);
    const float by = half_value(*(const uint16_t *)(panel + at.scales));
    uint2 w[2]; /* of both rows */
    for (int e = 0; e < 2; e++)
        w[e] = *(const uint2 *)(panel + at.codes + codes_of(TYPE, 2 * q + e));
    uint4 y;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        float two[2];
#pragma unroll
        for (int e = 0; e < 2; e++)
            two[e] = byte_level(j < 2 ? w[e].x : w[e].y, j % 2 * 2 + row % 2);
        (&y.x)[j] = bf16_pair(two[0] * by, two[1] * by);
    }
    return y;
}

/* Both kernels: blocks (threads of a panel, panels). The memory should bring 20 bytes for each
 * eight weights in the time of a thread's instructions, so there is no division of 64 bits.
 *
 * A thread unpacks a row's chunk, which has 16 bytes in each unit of a panel of bf16
 * (panel_place()); successive threads have successive rows. */
template <int TYPE>
__global__ void __launch_bounds__(THREADS)
    unpack_chunks(const uint8_t *src, const __grid_constant__ struct panels p, uint8_t *dst)
{
    const unsigned i = blockIdx.x * THREADS + threadIdx.x, rows = (unsigned)p.rows;
    const struct ksplit &c = p.ksplit;
    const int place = (int)(i / rows), whole = c.rest * c.splits;
    const int row = (int)(i - (unsigned)place * rows);
    const int splits = place < whole ? c.splits : c.splits - 1, from = place < whole ? 0 : whole;
    const int in = (int)((unsigned)(place - from) / (unsigned)max(splits, 1));
    const int split = place - from - in * splits, position = in + (place < whole ? 0 : c.rest);
    pdl_wait();
    if (place >= c.chunks)
        return;
    src += blockIdx.y * stored_bytes(p, TYPE);
    const struct packed_place at = packed_place_of(p, TYPE, row, split, position);
    const int unit = p.rows * (int)UNIT_BYTES;
    uint8_t *to = dst + blockIdx.y * panel_bytes(p) + (size_t)(place * (int)UNITS) * (size_t)unit +
                  row * (int)UNIT_BYTES;
    uint4 eight[4];
#pragma unroll
    for (int q = 0; q < 4; q++)
        eight[q] = eight_by_words<TYPE>(at, src, row, q);
#pragma unroll
    for (int j = 0; j < UNITS; j++)
        *(uint4 *)(to + j * unit) = make_uint4((&eight[0].x)[j], (&eight[1].x)[j],
                                               (&eight[2].x)[j], (&eight[3].x)[j]);
}

/* A thread unpacks eight weights, which are four words of 4 bytes there; the threads of a warp have
 * eight rows of a chunk. For the types that were not measured with the kernel above. */
template <int TYPE>
__global__ void __launch_bounds__(THREADS)
    unpack_panels(const uint8_t *src, const __grid_constant__ struct panels p, uint8_t *dst)
{
    const unsigned i = blockIdx.x * THREADS + threadIdx.x, rows = (unsigned)p.rows;
    const struct ksplit &c = p.ksplit;
    const int q = (int)(i % 4), place = (int)(i / 4 / rows), whole = c.rest * c.splits;
    const int row = (int)(i / 4 - (unsigned)place * rows);
    const int splits = place < whole ? c.splits : c.splits - 1, from = place < whole ? 0 : whole;
    const int in = (int)((unsigned)(place - from) / (unsigned)max(splits, 1));
    const int split = place - from - in * splits, position = in + (place < whole ? 0 : c.rest);
    pdl_wait();
    if (place >= c.chunks)
        return;
    src += blockIdx.y * stored_bytes(p, TYPE);
    dst += blockIdx.y * panel_bytes(p) + (size_t)(place * p.rows) * K_CHUNK_BYTES;
    const uint4 v = eight_at(packed_place_of(p, TYPE, row, split, position), TYPE, src, row, q,
                             false);
    uint8_t *to = dst + row * UNIT_BYTES + q * 4;
    const int unit = p.rows * (int)UNIT_BYTES;
    *(uint32_t *)to = v.x;
    *(uint32_t *)(to + unit) = v.y;
    *(uint32_t *)(to + 2 * unit) = v.z;
    *(uint32_t *)(to + 3 * unit) = v.w;
}

void cuda_unpack_panels(struct kdev *d, const struct panels *p, int type, const void *panels,
                        int first, int n, void *dst)
{
    const uint8_t *src = (const uint8_t *)panels + (size_t)first * stored_bytes(*p, type);
    const int most = 65535; /* rows of a grid */
    void (*kernel)(const uint8_t *, struct panels, uint8_t *) = NULL;
    int each = 4; /* eights of weights of a thread */
    switch (type) {
    case DT_Q4_0: kernel = unpack_chunks<DT_Q4_0>; break;
    case DT_Q8_0: kernel = unpack_chunks<DT_Q8_0>; break;
    case DT_E4M3: kernel = unpack_chunks<DT_E4M3>; break;
    case DT_Q4_K: kernel = unpack_chunks<DT_Q4_K>; break;
    case DT_Q6_K: kernel = unpack_chunks<DT_Q6_K>; break;
    case DT_Q5_K: kernel = unpack_panels<DT_Q5_K>, each = 1; break;
    case DT_Q5_1: kernel = unpack_panels<DT_Q5_1>, each = 1; break;
    case DT_IQ4_XS: kernel = unpack_panels<DT_IQ4_XS>, each = 1; break;
    default: kernel = unpack_panels<DT_E2M1>, each = 1;
    }
    const int threads = p->ksplit.chunks * p->rows * (4 / each);
    for (int i = 0; i < n; i += most)
        cuda_launch(d, kernel,
                    dim3((unsigned)div_up(threads, THREADS), (unsigned)min_int(n - i, most)),
                    THREADS, 0, src + (size_t)i * stored_bytes(*p, type), *p,
                    (uint8_t *)dst + (size_t)i * panel_bytes(*p));
    d->serial = true;
}
